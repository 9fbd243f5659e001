"""An external environment as a `BaseEnv`: a poll returns the events that are ready as rows."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from rollax.core import spaces, trees
from rollax.env.base_env import BaseEnv, EnvDict, in_order
from rollax.env.copies import EnvCopies
from rollax.env.dict_rows import RowBuilder
from rollax.env.external.episode import Event, ExternalEpisode, Trajectory
from rollax.env.external.external_env import ExternalEnv, ExternalMultiAgentEnv
from rollax.env.external.queue import EnvStoppedError
from rollax.env.rows import Rows
from rollax.errors import EnvError

log = logging.getLogger("rollax.env")
_SECONDS_TO_STOP = 10.0
_WHOLE = 0  # the number of the environment itself


class ExternalBaseEnv(BaseEnv):
    """Passes events of running episodes to the sampler, and actions back to the playing threads.

    Number 0 is the environment itself, so `num_envs` is always 1. A reset of number 0, as after an interrupt, drops the
    sampler's part of all running episodes. Each running episode is a sub-environment with the lowest free number from
    1 on. A reset of a number above 0, as after the end of its episode, changes nothing.

    Args:
        copies: the external environment.
    """

    adapts = True

    seeds_every_episode = False
    repeats = False

    def __init__(self, copies: EnvCopies) -> None:
        env: ExternalEnv | ExternalMultiAgentEnv = copies.vector()
        episodes = getattr(env, "_external_episodes", None)
        if episodes is None:
            raise EnvError(
                "The external environment was not set up.",
                f"{type(env).__name__}.__init__",
                "no call of super().__init__",
            ).expected("one, before the environment is used", "call super().__init__(observation_space, action_space)")
        self.env, self.name = env, episodes.name
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.samples_in_background, self.evaluates = env.samples_in_background, env.evaluates
        self._queue, self._values = episodes.queue, episodes.values
        self._several_agents = isinstance(env, ExternalMultiAgentEnv)
        agents = env.possible_agents if isinstance(env, ExternalMultiAgentEnv) else None
        self.possible_agents = list(in_order(agents)) if agents else None
        self._open: dict[int, ExternalEpisode] = {}  # by number
        self._alive: dict[int, Trajectory] = {}  # by slot
        self._drop_all()
        self._thread: threading.Thread | None = None
        self._by_dicts = False  # whether an agent that acts again right after its end waits for the next poll

    def poll(self) -> tuple[EnvDict, EnvDict, EnvDict, EnvDict, EnvDict, EnvDict]:
        self._by_dicts = True  # a dict has one entry for each agent
        return super().poll()

    def poll_rows(self) -> Rows:
        self._play()
        self._numbers.free_again()
        self._slots.free_again()
        while True:
            rows = self._rows_of(self._queue.take())
            if len(rows) or len(rows.over_envs()):
                return rows

    def sampled_by(self, worker: Any) -> None:
        self._values.complete(worker.policies, worker.policy_of)
        self.env.sampled_by(worker)

    def interrupt(self, interrupted: bool) -> None:
        self._queue.interrupt(interrupted)

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        slots = (rows.slots if selection is None else rows.slots[selection]).tolist()
        for slot in slots:
            if slot not in self._waiting:
                raise EnvError.not_waiting(
                    "an agent", f"{self.name}, slot {slot}", "no pending request, or a second action"
                )
            self._waiting.remove(slot)
        # Copies, because a playing thread may write into the action while the caller reads its arrays.
        values = trees.unstack(trees.copied(actions))
        self._queue.answer([self._alive[slot] for slot in slots], values)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> None:
        """A reset of number 0 drops running trajectories; agents start new ones. Players begin the next episodes."""
        self._play()
        if _WHOLE in env_index:
            self._drop_all()

    def _drop_all(self) -> None:
        """Drops the sampler's trajectories; pending and later requests then start new ones.

        The method may be called again, and after an interrupt of any method in the sampler's thread.
        """
        for trajectory in self._alive.values():
            trajectory.slot = -1
        for episode in self._open.values():
            episode.number = -1
        self._alive, self._open = {}, {}
        self._waiting: set[int] = set()  # the slots with pending requests
        self._numbers, self._slots = _LowestFree(first=_WHOLE + 1), _LowestFree(first=0)
        self._queue.request_again()

    def _rows_of(self, events: Sequence[Event]) -> Rows:
        builder, trains, dropped = RowBuilder(self.name), [], []
        for event in events:
            if event.drops:
                dropped += self._drop(event)
                continue
            for end in event.ends_before:
                self._add(builder, end)
            is_later, event.ends_before = self._by_dicts and event.restarts_agents(), []
            if is_later:
                self._queue.put_again([event])
            else:
                self._add(builder, event)
            trains += [event.episode.trains] * (len(builder.agents) - len(trains))
        rows = builder.rows()
        if not all(trains):
            rows.trains = np.array(trains)
        if dropped:
            rows.dropped_envs = np.array(dropped, np.int64)
        if not self._several_agents and len(rows):
            rows.agents, rows.slots = None, rows.env_index
            rows.obs = spaces.stack(self.observation_space, rows.obs)  # type: ignore[arg-type]
        return rows

    def _add(self, builder: RowBuilder, event: Event) -> None:
        episode = event.episode
        if event.ends:
            # The end of a dropped trajectory is ignored.
            event = event.part([row for row, trajectory in enumerate(event.trajectories) if trajectory.slot >= 0])
            if episode.number < 0:
                return
        elif episode.number < 0:
            number = self._numbers.take()
            self._open[number] = episode  # set first, so that an interrupt leaves no used number out of this table
            episode.number = number
            if not event.begins:
                builder.resumed.append(number)
        trajectories, rewards, flags = event.trajectories, event.rewards, None
        starts = [trajectory.slot < 0 for trajectory in trajectories]
        if any(starts):
            rewards = [0.0 if new else reward for new, reward in zip(starts, rewards, strict=True)]
        if event.ends or any(starts):
            no, yes = [False] * len(trajectories), [event.ends] * len(trajectories)
            flags = (no, yes, no) if event.truncated else (yes, no, starts)
        for trajectory in trajectories:
            if trajectory.slot < 0:
                slot = self._slots.take() if self._several_agents else episode.number
                self._alive[slot] = trajectory  # set first, as above
                trajectory.slot = slot
        first_row, slots = len(builder.agents), [trajectory.slot for trajectory in trajectories]
        agents = [trajectory.agent for trajectory in trajectories]
        builder.extend(episode.number, agents, event.values, slots, rewards, event.infos, flags)
        if event.ends:
            self._end(builder, event)
        elif event.actions is None:
            self._waiting.update(slots)
        else:
            given = range(first_row, len(builder.agents))
            builder.given.update(zip(given, event.actions, strict=True))
            if event.logps is not None:
                known = zip(given, event.logps, strict=True)
                builder.given_logps.update((row, logp) for row, logp in known if logp is not None)

    def _drop(self, event: Event) -> list[int]:
        """Frees the numbers of a lost episode; returns the number of its sub-environment, if it has one."""
        episode = event.episode
        ended = [trajectory for end in event.ends_before for trajectory in end.trajectories]
        for trajectory in (*episode.trajectories.values(), *ended):
            if trajectory.slot >= 0:
                del self._alive[trajectory.slot]
                self._waiting.discard(trajectory.slot)
                if self._several_agents:
                    self._slots.give_back(trajectory.slot)
        if episode.number < 0:
            return []
        del self._open[episode.number]
        self._numbers.give_back(episode.number)
        return [episode.number]

    def _end(self, builder: RowBuilder, event: Event) -> None:
        builder.unobserved += sum(value is None for value in event.values)
        for trajectory in event.trajectories:
            del self._alive[trajectory.slot]
            if self._several_agents:
                self._slots.give_back(trajectory.slot)
        if event.closes:
            number = event.episode.number
            builder.ended.append(number)
            del self._open[number]
            self._numbers.give_back(number)

    def get_sub_environments(self) -> list[Any]:
        return [self.env]

    def stop(self) -> None:
        """Ends all pending calls, closes the environment and waits up to 10 s for the thread of `run()`."""
        if self._queue.stopped:
            return
        try:
            self._queue.stop()
        finally:
            self.env.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_SECONDS_TO_STOP)
            if thread.is_alive():
                log.warning(
                    "%s: run() is still running %s s after the environment was stopped. Check `stopped` in it, and let "
                    "close() end what run() is waiting for.",
                    *(self.name, _SECONDS_TO_STOP),
                )

    def _play(self) -> None:
        if self._thread is None and not self._queue.stopped:
            self._thread = threading.Thread(target=self._run, name=f"{self.name}.run", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self.env.run()
        except BaseException as error:  # the sampler raises it, because no thread joins this one
            if not isinstance(error, EnvStoppedError):
                self._queue.finish(error)
                return
        self._queue.finish(None)


class _LowestFree:
    """Allocates the lowest free numbers from `first`. A released number is free after the next `free_again`."""

    def __init__(self, first: int) -> None:
        self._next = first
        self._free: list[int] = []
        self._given_back: list[int] = []
        self.give_back = self._given_back.append

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def free_again(self) -> None:
        for number in self._given_back:
            heapq.heappush(self._free, number)
        self._given_back.clear()
