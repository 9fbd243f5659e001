"""`ExternalEnv` and `ExternalMultiAgentEnv`: environments with a thread of control of their own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from gymnasium import Space

from rollax.env.external.checks import ByAgent
from rollax.env.external.episodes import ExternalEpisodes
from rollax.env.external.queue import EnvStoppedError
from rollax.env.rows import DEFAULT_AGENT
from rollax.spaces import check_space


class _External:
    """What both kinds share: the episodes, the thread's body, and its end."""

    patience = 5.0
    """Seconds without news after which the environment is finished, once `run()` has returned."""
    possible_agents: Iterable[Hashable] | None = None
    """Every agent id that may ever appear; None leaves it open."""

    _external_episodes: ExternalEpisodes

    def _begin(self, observation_space: Space | None, action_space: Space | None) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        name, agents = type(self).__name__, self.possible_agents
        self._external_episodes = ExternalEpisodes(name, observation_space, action_space, agents or None, self.patience)

    def run(self) -> None:
        """Plays: overridden by the user, and called once in a thread of its own when the sampling begins.

        It plays episodes for as long as it likes, or starts other threads that do, and waits for them. Let it return
        when `stopped` is true, or `EnvStoppedError` is raised.
        """
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    def close(self) -> None:
        """Releases what the environment holds, and what `run()` may be waiting for. Called once, as it is stopped."""

    @property
    def stopped(self) -> bool:
        """Nobody samples any more: every call but this raises `EnvStoppedError`."""
        return self._external_episodes.queue.stopped

    def start_episode(self, episode_id: Hashable | None = None, training_enabled: bool = True) -> Any:
        """Begins an episode.

        Args:
            episode_id: any id that no running episode has; None for a new one.
            training_enabled: False for an episode that is served, and not learned from.
        Returns:
            The episode's id.
        Raises:
            EnvError: an episode of this id is running.
            EnvStoppedError: nobody samples any more.
        """
        return self._external_episodes.start(episode_id, training_enabled)


class ExternalEnv(_External):
    """An environment that calls the policy, instead of being stepped: a simulator with its own loop, a log, a server.

    Any number of episodes may be played at once, from any number of threads, and each by one thread at a time. What
    waits at the same moment gets its actions from one forward pass.

    Every method raises `EnvError` for an id that is unknown, has ended or still waits for an action, or for a value
    that is not what it must be; and `EnvStoppedError` once nobody samples any more.

    Args:
        observation_space: of the observations.
        action_space: of the actions.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        for kind, space in (("observation_space", observation_space), ("action_space", action_space)):
            check_space(space, f"{type(self).__name__}.{kind}")
        self._begin(observation_space, action_space)

    def get_action(self, episode_id: Hashable, observation: Any) -> Any:
        """The policy's action; blocks until it is there."""
        answers = self._external_episodes.ask({episode_id: {DEFAULT_AGENT: observation}})
        return answers[episode_id][DEFAULT_AGENT]

    def get_actions(self, observations: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """The policy's actions for many episodes: episode id -> observation, then action. Blocks until all are there.

        One call for many episodes is several times faster than as many threads.
        """
        answers = self._external_episodes.ask({key: {DEFAULT_AGENT: value} for key, value in observations.items()})
        return {key: by_agent[DEFAULT_AGENT] for key, by_agent in answers.items()}

    def log_action(self, episode_id: Hashable, observation: Any, action: Any) -> None:
        """Notes an action that was taken without asking the policy (off-policy). Blocks only while much is queued."""
        self._external_episodes.log(episode_id, {DEFAULT_AGENT: observation}, {DEFAULT_AGENT: action})

    def log_returns(self, episode_id: Hashable, reward: float, info: dict | None = None) -> None:
        """Adds to the reward of the last action; after the last one of an episode too, until its end.

        Args:
            episode_id: which episode.
            reward: a finite number.
            info: goes with the next observation.
        """
        infos: ByAgent = {} if info is None else {DEFAULT_AGENT: info}
        self._external_episodes.add_returns(episode_id, {DEFAULT_AGENT: reward}, infos)

    def end_episode(self, episode_id: Hashable, observation: Any, truncated: bool = False) -> None:
        """Ends an episode.

        Args:
            episode_id: which one; the id may be used again for another.
            observation: the last one.
            truncated: the episode was cut off, and has not reached a terminal state.
        Raises:
            EnvError: also where nothing was decided since the start; the episode is then forgotten.
        """
        self._external_episodes.end(episode_id, {DEFAULT_AGENT: observation}, truncated)


class ExternalMultiAgentEnv(_External):
    """The same with many agents: observations, actions, rewards and infos are dicts by agent id.

    Agents appear with their first observation, act together or in turns, and live until `end_agents` or
    `end_episode`. An id that has ended and shows up again begins a new trajectory.

    Args:
        observation_space: of every agent; None where the policies name their own.
        action_space: likewise.
    """

    def __init__(self, observation_space: Space | None = None, action_space: Space | None = None) -> None:
        for kind, space in (("observation_space", observation_space), ("action_space", action_space)):
            if space is not None:
                check_space(space, f"{type(self).__name__}.{kind}")
        self._begin(observation_space, action_space)

    def get_action(self, episode_id: Hashable, observations: ByAgent) -> dict[Hashable, Any]:
        """The actions of the agents that observed something; blocks until they are there."""
        return self._external_episodes.ask({episode_id: observations})[episode_id]

    def get_actions(self, observations: Mapping[Hashable, ByAgent]) -> dict[Hashable, dict[Hashable, Any]]:
        """The same for many episodes: episode id -> agent -> observation, then action."""
        return self._external_episodes.ask(observations)

    def log_action(self, episode_id: Hashable, observations: ByAgent, actions: ByAgent) -> None:
        """Notes actions that were taken without asking the policies. Blocks only while much is queued."""
        self._external_episodes.log(episode_id, observations, actions)

    def log_returns(self, episode_id: Hashable, rewards: ByAgent, infos: ByAgent | None = None) -> None:
        """Adds to the rewards of the agents' last actions, whether they act next or not.

        Args:
            episode_id: which episode.
            rewards: agent -> a finite number, of agents that have acted and not ended.
            infos: agent -> a dict that goes with its next observation.
        """
        self._external_episodes.add_returns(episode_id, rewards, {} if infos is None else infos)

    def end_agents(self, episode_id: Hashable, observations: ByAgent, truncated: bool = False) -> None:
        """Ends the trajectories of some agents; the episode goes on.

        Args:
            episode_id: which episode.
            observations: agent -> its last observation, or None where there is none.
            truncated: they were cut off, and have not reached a terminal state.
        """
        self._external_episodes.end_agents(episode_id, observations, truncated)

    def end_episode(self, episode_id: Hashable, observations: ByAgent, truncated: bool = False) -> None:
        """Ends an episode and the trajectories of all its agents.

        Args:
            episode_id: which one; the id may be used again for another.
            observations: the last ones, of those agents that have one; of agents that never acted they are left out.
            truncated: the trajectories were cut off, and have not reached a terminal state.
        Raises:
            EnvError: also where nothing was decided since the start; the episode is then forgotten.
        """
        self._external_episodes.end(episode_id, observations, truncated)


__all__ = ["EnvStoppedError", "ExternalEnv", "ExternalMultiAgentEnv"]
