"""`BatchReplayOptimizer`: learns from recorded data, also together with fresh experience or before it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rollax.core.stored_values import read_count, read_dict, read_list
from rollax.errors import ConfigError
from rollax.offline.recorded_data import RecordedData
from rollax.optimizers.optimizer import Stats
from rollax.optimizers.sync_replay import SyncReplayOptimizer
from rollax.replay.mixed import MixedReplay, Part
from rollax.replay.prioritized import PrioritizedReplay

log = logging.getLogger("rollax.offline")
_MOST_BYTES_DRAWN = 64 << 20  # in one compiled call

_OF_FRESH_EXPERIENCE = frozenset(
    (
        *("rollout_fragment_length", "batch_mode", "sample_async", "num_workers"),
        *("buffer_size", "learning_starts", "training_intensity", "output"),
    )
)
"""Keys without effect if the environment is never stepped; accepted, because `input` may be added to any run."""


class BatchReplayOptimizer(SyncReplayOptimizer):
    """Draws from recorded data (`input`), from replay buffers with fresh experience, or from both.

    Recorded data alone: a step makes `updates_per_step` updates, or fewer if `offline_timesteps` or `stop_at` comes
    first, and no environment is stepped. The unit of `timesteps_total` is then a row that was learned from: an update
    counts as `train_batch_size` steps. Schedules use the same unit.

    With fresh experience (`{"sampler": 0.5, "runs/*": 0.5}`): a step samples and learns as in `SyncReplayOptimizer`;
    each row of an update is drawn from one of the sources, chosen by weight. `buffer_size` bounds the fresh rows only.
    Until fresh rows are stored, all rows are recorded rows.

    Offline first (`then_online`): recorded data alone for `offline_timesteps` rows, then together with fresh
    experience. `learning_starts` and `training_intensity` count steps of the environment from then on.

    Attributes:
        data: the recorded data.
        drawn_from: policy id -> the buffers that updates draw from.
    Raises:
        ConfigError: there is no `input`, or no policy learns.
    """

    config_class = SyncReplayOptimizer.config_class
    needs_recorded_data = True
    """Read by `DataInputFields.optimizer_for`: a trainer class with this optimizer class requires recorded data."""

    def _set_up(self) -> None:
        super()._set_up()
        if self.config.input is None:
            raise missing_input(type(self).__name__)
        if not self.policies:
            what, where = "No policy learns from the recorded data.", "config key 'multiagent.policies_to_train'"
            raise ConfigError(what, where, "no policy", fix="name policies, or leave the key out to train all")
        if not self.config.steps_the_env and (unused := sorted(_OF_FRESH_EXPERIENCE & self.config.model_fields_set)):
            log.warning(
                "Config keys without effect: %s. This run learns from recorded data only and does not sample.",
                ", ".join(unused),
            )
        self.data = RecordedData(self.config, self.local_worker, self.policies, self.buffers_of)
        fresh = self.config.weights_of_sources()[1]
        self.drawn_from = {
            policy_id: MixedReplay([*parts, Part(self.buffers[policy_id], fresh)], f"data of policy {policy_id!r}")
            for policy_id, parts in self.data.parts.items()
        }
        self._offline_steps = 0

    @property
    def is_offline(self) -> bool:
        """Whether the next step learns from recorded data alone."""
        if not self.config.learns_offline:
            return False
        return not self.config.then_online or self._offline_steps < self.config.offline_timesteps

    def step(self) -> Stats:
        if not self.is_offline:
            return super().step()
        self.local_worker.set_timestep(self.steps)
        rows = [self.rows_of_update(policy) for policy in self.policies.values()]
        updates = self._updates_of_step(rows)
        while updates > 0:
            at_once = min(updates, self._updates_at_once())
            self._update(at_once)
            updates -= at_once
            self.env_steps += at_once * max(rows)
            self.agent_steps += at_once * sum(rows)
            self._offline_steps += at_once * self._steps_of(rows)
        self._due.begin(self.num_updates)  # steps of the environment make updates due from here on
        return dict(self.stats)

    def stop(self) -> None:
        """Unmaps the files of `input_folder`."""
        super().stop()
        self.data.close()

    def report(self) -> dict[str, Any]:
        """As `SyncReplayOptimizer.report`, with `data`: rows by policy, and how often they were drawn on average."""
        drawn = sum(part.drawn for parts in self.data.parts.values() for part in parts)
        return {
            **super().report(),
            "data": {
                "rows": dict(self.data.rows),
                "trajectories": self.data.trajectories,
                "epochs": drawn / sum(self.data.rows.values()),
                "offline": self.is_offline,
            },
        }

    def begin_exactly(self) -> None:
        if self.config.steps_the_env or self.config.prioritized_replay:
            super().begin_exactly()

    def get_state(self) -> dict[str, Any]:
        """As `SyncReplayOptimizer.get_state`, with the position in the data and, if buffers are stored, priorities."""
        state: dict[str, Any] = {
            "offline_steps": self._offline_steps,
            "fingerprint": self.data.fingerprint,
            "drawn": {policy_id: [part.drawn for part in parts] for policy_id, parts in self.data.parts.items()},
        }
        if self.config.prioritized_replay and self.config.store_buffer_in_checkpoints:
            state["priorities"] = {
                policy_id: [
                    part.buffer.get_priorities() for part in parts if isinstance(part.buffer, PrioritizedReplay)
                ]
                for policy_id, parts in self.data.parts.items()
            }
        return {**super().get_state(), "data": state}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned, also the state of a run without recorded data or with other data.

        Raises:
            CheckpointError: a buffer or a number does not fit.
            ConfigError: a buffer is larger than the memory.
        """
        data, where = read_dict({"data": {}, **state}, "data", "optimizer"), "optimizer: data"
        numbers = {"offline_steps": 0, "fingerprint": self.data.fingerprint, **data}
        offline_steps, fingerprint = (read_count(numbers, name, where) for name in ("offline_steps", "fingerprint"))
        same = fingerprint == self.data.fingerprint
        counts, priorities = self._position(data if same else {}, where)
        for buffer, values in priorities:
            buffer.check_priorities(values)
        super().set_state(state)
        self._offline_steps = offline_steps
        if not same:
            log.warning(
                "The recorded data is not that of the checkpoint. Training continues with different rows; "
                "`epochs` is counted from here."
            )
        for part, count in counts:
            part.drawn = count
        for buffer, values in priorities:
            buffer.set_priorities(values)

    def _position(
        self, data: Mapping[str, Any], where: str
    ) -> tuple[list[tuple[Part, int]], list[tuple[PrioritizedReplay, Mapping[str, Any]]]]:
        """The number of rows drawn from each part, and each buffer's priorities; {} stands for initial priorities."""
        drawn, priorities = (read_dict({name: {}, **data}, name, where) for name in ("drawn", "priorities"))
        counts: list[tuple[Part, int]] = []
        stored: list[tuple[PrioritizedReplay, Mapping[str, Any]]] = []
        for policy_id, parts in self.data.parts.items():
            of_parts = read_list({policy_id: [0] * len(parts), **drawn}, policy_id, f"{where}.drawn")
            for part, count in zip(parts, of_parts, strict=False):
                counts.append((part, read_count({policy_id: count}, policy_id, f"{where}.drawn")))
            buffers = [part.buffer for part in parts if isinstance(part.buffer, PrioritizedReplay)]
            of_buffers = read_list({policy_id: [{} for _ in buffers], **priorities}, policy_id, f"{where}.priorities")
            for buffer, values in zip(buffers, of_buffers, strict=False):
                stored.append((buffer, read_dict({policy_id: values}, policy_id, f"{where}.priorities")))
        return counts, stored

    def _steps_of(self, rows: Sequence[int]) -> int:
        """The number of steps that one update counts as, from the rows of each policy."""
        return max(rows) if self.config.count_steps_by == "env_steps" else sum(rows)

    def _updates_of_step(self, rows: Sequence[int]) -> int:
        left = self.stop_at - self.steps
        if self.config.then_online:
            left = min(left, self.config.offline_timesteps - self._offline_steps)
        updates = self.config.updates_per_step
        return updates if left == math.inf else max(min(updates, math.ceil(left / self._steps_of(rows))), 1)

    def _updates_at_once(self) -> int:
        """The updates of one compiled call, limited by the bytes of their rows; 1 if each update changes priorities."""
        if self.config.prioritized_replay:
            return 1
        rows = [
            self.rows_of_update(policy) * 2 * self.data.parts[policy_id][0].buffer.bytes_per_slot
            for policy_id, policy in self.policies.items()
        ]
        return max(_MOST_BYTES_DRAWN // max(rows), 1)


def missing_input(algorithm: str) -> ConfigError:
    """The error of an algorithm that requires recorded data, if there is no `input`."""
    what = f"{algorithm} learns from recorded data, but none is given."
    return ConfigError(what, "config key 'input'", None).expected(
        "a folder of recorded data, a pattern such as 'runs/*', a DatasetReader, ...",
        "record some: `rollax record CHECKPOINT --episodes 100 --out DIR`, or output=DIR while another algorithm "
        "trains; then set input='DIR'",
    )
