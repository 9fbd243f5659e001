"""`MultiAgentBatch`: the rows of several policies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rollax.batch.columns import check_batch, check_kind, whole_number
from rollax.batch.sample_batch import SampleBatch, concatenated

DEFAULT_POLICY = "default_policy"
"""The id of a single policy."""


class MultiAgentBatch(Mapping[str, SampleBatch]):
    """The batches of several policies over the same environment steps; `batch["car1"]` is the batch of one policy.

    Args:
        policy_batches: policy id -> the batch of the policy; a policy without rows may be left out.
        env_steps: environment steps; the rows of several agents may share a step.
    Raises:
        BatchError: a value is not a SampleBatch, or `env_steps` is not an integer of at least 0.
    """

    def __init__(self, policy_batches: Mapping[str, SampleBatch], env_steps: int) -> None:
        self.policy_batches = dict(policy_batches)
        self.env_steps = whole_number(env_steps, 0, "MultiAgentBatch(env_steps=...)")
        for policy_id, batch in self.policy_batches.items():
            check_batch(batch, SampleBatch, f"MultiAgentBatch, policy {policy_id!r}")

    @property
    def agent_steps(self) -> int:
        """Number of rows of all the policies that are steps, neither padding nor bootstrap."""
        return sum(batch.agent_steps for batch in self.policy_batches.values())

    @property
    def nbytes(self) -> int:
        """Memory of the arrays of all the policies."""
        return sum(batch.nbytes for batch in self.policy_batches.values())

    def __getitem__(self, policy_id: str) -> SampleBatch:
        return self.policy_batches[policy_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.policy_batches)

    def __len__(self) -> int:
        return len(self.policy_batches)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        rows = {policy_id: batch.count for policy_id, batch in self.policy_batches.items()}
        return f"MultiAgentBatch(env_steps={self.env_steps}, rows={rows})"

    def copy(self) -> MultiAgentBatch:
        """A batch with its own copy of every array."""
        return MultiAgentBatch({key: batch.copy() for key, batch in self.policy_batches.items()}, self.env_steps)

    @staticmethod
    def concat_samples(batches: Iterable[MultiAgentBatch]) -> MultiAgentBatch:
        """Each policy's rows of all the batches, one after another; a batch may lack some of the policies.

        Raises:
            BatchError: there is no batch, a batch is of another kind, or the columns of one policy differ.
        """
        parts = list(batches)
        check_kind(parts, MultiAgentBatch)
        policy_ids = dict.fromkeys(policy_id for part in parts for policy_id in part)
        merged = {
            policy_id: concatenated([part[policy_id] for part in parts if policy_id in part], f"policy {policy_id!r}")
            for policy_id in policy_ids
        }
        return MultiAgentBatch(merged, sum(part.env_steps for part in parts))
