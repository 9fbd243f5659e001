"""`TorchBaseEnv`: a `TorchVectorEnv` as a `BaseEnv`, whose tensors can stay on the device."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from rollax.env import checks
from rollax.env.copies import EnvCopies
from rollax.env.jax.jax_env import Outcome
from rollax.env.jax.sub_environments import ByAgent, replaced, to_dtypes
from rollax.env.jax.torch_vector_env import Received, TorchVectorEnv
from rollax.env.rows import DEFAULT_AGENT, Rows
from rollax.env.vector.native_vector_env import NativeVectorEnv
from rollax.errors import EnvError


class TorchBaseEnv(NativeVectorEnv):
    """The rows of a `TorchVectorEnv`, in NumPy; `SimulatorSampler` steps it without polls, by `step_on_device`.

    Attributes:
        agents: the id of the only agent of each sub-environment.
        running: empty, because the state is in the simulator; None before the first reset.
    """

    env: TorchVectorEnv
    in_jax = True
    agents = (DEFAULT_AGENT,)

    def __init__(self, copies: EnvCopies) -> None:
        super().__init__(copies)
        self.running: tuple[()] | None = None

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows | None:
        rows = super().reset_rows(env_index, seeds)
        self.running = ()
        return rows

    def step_on_device(self, actions: ByAgent) -> Received:
        """Steps all sub-environments with [N, ...] actions; EnvError if the environment raises."""
        try:
            return self.env.step_tensors(actions[DEFAULT_AGENT])
        except EnvError:
            raise
        except Exception as error:
            raise checks.failed(error, "step()", f"{self.name}, one of its sub-environments") from error

    # Traced by JAX.

    def traced_outcome(self, received: Received) -> tuple[ByAgent, Outcome]:
        """The current observations, in new episodes the first ones, and the outcome of the step.

        The outcome has a `reward` of shape [N, 1], and no state.
        """
        space, terminated, truncated = self.env.single_observation_space, received.terminateds, received.truncateds
        first = last = to_dtypes(space, received.obs)
        if received.final_obs is not None:
            last = replaced(first, terminated | truncated, to_dtypes(space, received.final_obs))
        reward = received.rewards.astype(jnp.float32)[:, None]
        return {DEFAULT_AGENT: first}, Outcome((), {DEFAULT_AGENT: last}, reward, terminated, truncated)

    def where(self, env_index: int, agent: str) -> str:
        return self._where(env_index)
