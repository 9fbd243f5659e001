"""Recorded data in replay buffers, a source of experience in addition to the sampler."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollax.batch import Fragment, SampleBatch
from rollax.core.introspection import defining_class
from rollax.core.memory import available_memory_bytes, gib
from rollax.core.space_json import space_to_json
from rollax.errors import ConfigError
from rollax.offline.decoded_data import check_folder, decoded_data, fingerprint_of
from rollax.offline.mapped import MappedReplay
from rollax.offline.reader import reading
from rollax.offline.recorded_fragments import RecordedFragments
from rollax.policy.base_algorithm import BaseAlgorithm
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.model_policy import ModelPolicy
from rollax.policy.policy import Policy
from rollax.replay.mixed import Part
from rollax.replay.replay import Replay
from rollax.replay.shard import BufferOfSize
from rollax.rollout.worker import RolloutWorker

log = logging.getLogger("rollax.offline")
_FILTERED_AT_ONCE = 8192
_MARKS = (SampleBatch.TERMINATEDS, SampleBatch.TRUNCATEDS, SampleBatch.TRAJECTORY_ID)


class RecordedData:
    """The data sets of a config, each in separate buffers, filled once and in the order of the files.

    The observation filters of the worker's policies get the statistics of the data.

    Attributes:
        parts: policy id -> a buffer and its weight for each data set that has rows of the policy.
        rows: policy id -> number of transitions.
        trajectories: number of trajectories in all data sets.
        fingerprint: checksum of the rows as they are stored.
    Raises:
        ConfigError: a policy has no rows, the data is larger than the memory that it may take, `input_folder` or
            `output` is inside the data, or `input_folder` is set with `prioritized_replay` or `frame_stack_axis`.
        DatasetError, SpaceError, ShapeError, NonFiniteError, PolicyError: data that cannot be read or does not fit.
    """

    def __init__(
        self,
        config: Any,
        worker: RolloutWorker,
        policies: Mapping[str, Policy],
        buffer_of: Callable[[Policy], BufferOfSize],
    ) -> None:
        self._config = config
        self._worker = worker
        self._policies = policies
        self._buffer_of = buffer_of
        self.parts: dict[str, list[Part]] = {policy_id: [] for policy_id in policies}
        self.trajectories = 0
        self.fingerprint = 0
        self._size = 0  # bytes of the data in memory
        sources = config.weights_of_sources()[0]
        for source, _ in sources:
            if config.input_folder is not None:
                check_folder(config.input_folder, source, "input_folder")
            if config.output is not None:
                check_folder(config.output, source, "output")
        for source, weight in sources:
            for policy_id, buffer in self._filled(source).items():
                self.parts[policy_id].append(Part(buffer, weight, self._filtering(policy_id)))
        self.rows = {policy_id: sum(len(part.buffer) for part in parts) for policy_id, parts in self.parts.items()}
        self._check_rows()
        self._update_filters()

    def close(self) -> None:
        """Unmaps the files of `input_folder`; nothing can be drawn from them afterwards."""
        for parts in self.parts.values():
            for part in parts:
                if isinstance(part.buffer, MappedReplay):
                    part.buffer.close()

    def _filled(self, source: Any) -> dict[str, Replay]:
        """Policy id -> a buffer with its rows of a data set."""
        buffers = {policy_id: self._buffer_of(policy) for policy_id, policy in self._policies.items()}
        # The stored columns are known only from a buffer, such as one of a single row.
        columns = {policy_id: make(1).columns for policy_id, make in buffers.items()}
        with reading(source, **self._config.input_config) as reader:
            fragments = RecordedFragments(
                *(reader, self._worker.runners, self._policies.keys(), self._worker.policy_of),
                columns=columns,
                first_trajectory=self.trajectories,
            )
            if self._config.input_folder is not None:
                return self._on_disk(source, fragments, columns)
            collected = self._collected(fragments, columns)
            self.trajectories = fragments.trajectories
        return {policy_id: _in_buffer(found, buffers[policy_id]) for policy_id, found in collected.items() if found}

    def _on_disk(
        self, source: Any, fragments: RecordedFragments, columns: Mapping[str, tuple[str, ...]]
    ) -> dict[str, Replay]:
        """As `_filled`, with the rows in files of `input_folder`."""
        if self._config.prioritized_replay or self._config.frame_stack_axis is not None:
            got = {name: getattr(self._config, name) for name in ("prioritized_replay", "frame_stack_axis")}
            what = "Recorded data on disk has no priorities, and stores observations as they are."
            raise ConfigError(what, "config key 'input_folder'", got).expected(
                "prioritized_replay=False, frame_stack_axis=None",
                "leave these out, or leave input_folder out to keep the data in memory",
            )
        described = {policy_id: self._described(policy_id, names) for policy_id, names in columns.items()}
        own_code = any(_derives(self._policies[policy_id]) for policy_id in columns)
        folder, settings = Path(self._config.input_folder), self._config.input_config
        found = decoded_data(folder, source, settings, described, fragments, columns, by_own_code=own_code)
        self.trajectories += found.trajectories
        self._add_fingerprint(found.fingerprint)
        return {
            policy_id: MappedReplay(
                mapped,
                gamma=self._policies[policy_id].config.gamma,
                n_step=self._policies[policy_id].config.n_step,
                where=f"recorded data of policy {policy_id!r}",
            )
            for policy_id, mapped in found.columns.items()
        }

    def _add_fingerprint(self, of_source: int) -> None:
        self.fingerprint = zlib.crc32(str(of_source).encode(), self.fingerprint)

    def _described(self, policy_id: str, columns: tuple[str, ...]) -> dict[str, Any]:
        """All settings that determine the rows of a policy, as JSON values."""
        policy, runner = self._policies[policy_id], self._worker.runners[policy_id]
        spaces = space_to_json(policy.observation_space), space_to_json(policy.action_space)
        described = {"spaces": spaces, "columns": columns, **runner.settings}
        if SampleBatch.STATE_IN in columns:
            state = [np.asarray(part) for part in policy.get_initial_state()]
            described["state"] = [[part.shape, part.dtype.str, zlib.crc32(part.tobytes())] for part in state]
        return described

    def _collected(
        self, fragments: RecordedFragments, columns: Mapping[str, Collection[str]]
    ) -> dict[str, list[Fragment]]:
        """Policy id -> its fragments, with the stored columns and the columns that separate trajectories."""
        collected: dict[str, list[Fragment]] = {policy_id: [] for policy_id in self._policies}
        fingerprint, given = 0, self._config.input_memory_gb
        limit = available_memory_bytes() // 2 if given is None else int(given * 2**30)
        for policy_id, fragment in fragments:
            names = {*columns[policy_id], *_MARKS}
            fragment = fragment.select(*(name for name in fragment if name in names))
            collected[policy_id].append(fragment)
            fingerprint = fingerprint_of(fragment, columns[policy_id], fingerprint)
            self._size += fragment.nbytes
            if self._size > limit:
                what = "The recorded data is larger than the memory that it may take."
                got = f"more than {gib(self._size)}"
                raise ConfigError(what, "config key 'input'", got).expected(
                    f"at most {gib(limit)} (input_memory_gb)",
                    "set input_folder and no input_memory_gb, or raise input_memory_gb",
                )
        self._add_fingerprint(fingerprint)
        return collected

    def _check_rows(self) -> None:
        for policy_id, rows in self.rows.items():
            if not rows:
                what, where = "The recorded data has no row for a policy.", f"config key 'input', policy {policy_id!r}"
                raise ConfigError(what, where, f"{self.trajectories} trajectories of other policies").expected(
                    "trajectories of agents that policy_mapping_fn maps to this policy",
                    "check `rollax data info` and policy_mapping_fn, or leave the policy out of policies_to_train",
                )

    def _filtering(self, policy_id: str) -> Callable[[SampleBatch], SampleBatch]:
        """Filters the observations of drawn batches with the current statistics."""
        observation_filter = self._worker.runners[policy_id].filter

        def filtered(batch: SampleBatch) -> SampleBatch:
            for name in (SampleBatch.OBS, SampleBatch.NEW_OBS):
                if name in batch:
                    batch[name] = observation_filter(batch[name], update=False)
            return batch

        return filtered

    def _update_filters(self) -> None:
        """Adds all recorded observations to the statistics of the filters."""
        for policy_id, parts in self.parts.items():
            observation_filter = self._worker.runners[policy_id].filter
            if not observation_filter.state():
                continue
            for part in parts:
                for obs in part.buffer.observations(_FILTERED_AT_ONCE):
                    observation_filter(obs, update=True)


def _derives(policy: Policy) -> bool:
    """Whether the policy's postprocessing changes rows by code that may change between runs."""
    authors = {defining_class(type(policy), "postprocess_rows")}
    if issubclass(policy.made_by, BaseAlgorithm):
        authors.add(defining_class(policy.made_by, "postprocess"))
    authors -= {Policy, ModelPolicy, JaxPolicy, BaseAlgorithm}
    return not all(vars(author).get("derives_from_settings") for author in authors)


def _in_buffer(fragments: list[Fragment], buffer_of: BufferOfSize) -> Replay:
    """A buffer with these fragments, which are removed from the list one by one."""
    buffer = buffer_of(buffer_of(1).slots_for(fragments))
    fragments.reverse()
    while fragments:
        buffer.add(fragments.pop())
    return buffer
