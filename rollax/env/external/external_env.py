"""`ExternalEnv` and `ExternalMultiAgentEnv`: environments that run their own loop and request actions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

from gymnasium import Space

from rollax.core.spaces import check_space
from rollax.env.external.episode import ByAgent
from rollax.env.external.episodes import ExternalEpisodes
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import EnvError


class _External:
    """Base of both classes: episodes, `run()` and stopping."""

    patience = 5.0
    """Seconds without events after which the environment is finished, once `run()` has returned."""
    possible_agents: Iterable[Hashable] | None = None
    """All agent ids that may appear; None allows any."""

    samples_in_background = False
    """Whether a background thread samples the environment by default, so that actions do not wait for learning."""

    evaluates = True
    """Whether evaluation can play episodes of this environment."""

    _external_episodes: ExternalEpisodes

    def _begin(
        self, observation_space: Space | None, action_space: Space | None, *, may_lack_spaces: bool = False
    ) -> None:
        name, agents = type(self).__name__, self.possible_agents
        for kind, space in (("observation_space", observation_space), ("action_space", action_space)):
            if space is not None or not may_lack_spaces:
                check_space(space, f"{name}.{kind}")
        self.observation_space, self.action_space = observation_space, action_space
        self._external_episodes = ExternalEpisodes(name, observation_space, action_space, agents or None, self.patience)

    def run(self) -> None:
        """Plays episodes in a loop, or starts other threads that do and waits for them. Implemented by the user.

        Called once, in its own thread, when sampling starts. It should return when `stopped` is true or
        `EnvStoppedError` is raised.
        """
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    def close(self) -> None:
        """Releases resources and unblocks `run()`. Called once, when sampling stops."""

    def sampled_by(self, worker: Any) -> None:
        """Called once, before `run()`, with the `RolloutWorker` that samples this environment."""

    @property
    def stopped(self) -> bool:
        """Whether sampling has stopped: the methods that play episodes then raise `EnvStoppedError`."""
        return self._external_episodes.queue.stopped

    def start_episode(self, episode_id: Hashable | None = None, training_enabled: bool = True) -> Any:
        """Starts an episode and returns its id.

        Args:
            episode_id: any id that no running episode has; None for a new one.
            training_enabled: False for an episode that is not learned from.
        """
        return self._external_episodes.start(episode_id, training_enabled)

    def drop_episode(self, episode_id: Hashable) -> None:
        """Ends an episode whose player is lost; nothing more is learned from it, and it does not count."""
        self._external_episodes.drop(episode_id)


class ExternalEnv(_External):
    """An environment that calls the policy, instead of being stepped: a simulator with its own loop, a log, a server.

    Any number of episodes may run in parallel, from any number of threads, each episode in one thread at a time. One
    forward pass answers all pending requests.

    The methods that play episodes raise `EnvError` for an invalid value, and, except `start_episode`, for an episode id
    that is unknown or has ended. While an episode waits for an action, calls for it also raise `EnvError`, except
    `log_returns` and `drop_episode`. After sampling has stopped, all these methods raise `EnvStoppedError`.

    Args:
        observation_space: space of the observations.
        action_space: space of the actions.
    """

    def __init__(self, observation_space: Space, action_space: Space) -> None:
        self._begin(observation_space, action_space)

    def get_action(self, episode_id: Hashable, observation: Any) -> Any:
        """Returns the policy's action; blocks until it is available."""
        answers = self._external_episodes.request_actions({episode_id: {DEFAULT_AGENT: observation}})
        return answers[episode_id][DEFAULT_AGENT]

    def get_actions(self, observations: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Returns actions for many episodes, episode id -> action, given episode id -> observation. Blocks.

        One call for many episodes is several times faster than many threads.
        """
        answers = self._external_episodes.request_actions(
            {key: {DEFAULT_AGENT: value} for key, value in observations.items()}
        )
        return {key: by_agent[DEFAULT_AGENT] for key, by_agent in answers.items()}

    def request_actions(
        self, observations: Mapping[Hashable, Any], on_actions: Callable[[dict[Hashable, Any] | EnvError], None]
    ) -> None:
        """Requests actions for many episodes without waiting, for an event loop.

        `on_actions` is called once: by the sampler's thread with the actions by episode id, or by the thread that stops
        the environment with an `EnvStoppedError`. It is called again if Ctrl-C interrupts it, and must not block. The
        observations must not be changed afterwards.
        """

        def on_done(answers: dict[Hashable, dict[Hashable, Any]] | EnvError) -> None:
            if not isinstance(answers, EnvError):
                answers = {key: by_agent[DEFAULT_AGENT] for key, by_agent in answers.items()}
            on_actions(answers)

        self._external_episodes.request({key: {DEFAULT_AGENT: value} for key, value in observations.items()}, on_done)

    def log_action(self, episode_id: Hashable, observation: Any, action: Any) -> None:
        """Records an action that the policy did not choose (off-policy). Blocks only while the queue is full."""
        self._external_episodes.log(episode_id, {DEFAULT_AGENT: observation}, {DEFAULT_AGENT: action})

    def log_returns(self, episode_id: Hashable, reward: float, info: dict | None = None) -> None:
        """Adds a finite number to the reward of the latest action, even if this action is still pending.

        A number before the first observation is dropped. `info` is the info dict of the next observation.
        """
        infos: ByAgent = {} if info is None else {DEFAULT_AGENT: info}
        self._external_episodes.add_returns(episode_id, {DEFAULT_AGENT: reward}, infos)

    def end_episode(self, episode_id: Hashable, observation: Any, truncated: bool = False) -> None:
        """Ends an episode, terminated or truncated, with its last observation; its id may be reused afterwards.

        Raises:
            EnvError: also for an episode without any action, which is dropped.
        """
        self._external_episodes.end(episode_id, {DEFAULT_AGENT: observation}, truncated)


class ExternalMultiAgentEnv(_External):
    """An `ExternalEnv` with many agents: observations, actions, rewards and infos are dicts by agent id.

    The trajectory of an agent starts with its first observation and ends with `end_agents` or `end_episode`. Agents act
    simultaneously or in turns. An id that appears again after its end starts a new trajectory.

    Args:
        observation_space: space of every agent; None if the policies define it.
        action_space: space of every agent; None if the policies define it.
    """

    def __init__(self, observation_space: Space | None = None, action_space: Space | None = None) -> None:
        self._begin(observation_space, action_space, may_lack_spaces=True)

    def get_action(self, episode_id: Hashable, observations: ByAgent) -> dict[Hashable, Any]:
        """Returns the actions of the agents with observations; blocks until they are available."""
        return self._external_episodes.request_actions({episode_id: observations})[episode_id]

    def get_actions(self, observations: Mapping[Hashable, ByAgent]) -> dict[Hashable, dict[Hashable, Any]]:
        """Returns actions for many episodes, episode id -> agent -> action, given observations. Blocks."""
        return self._external_episodes.request_actions(observations)

    def request_actions(
        self,
        observations: Mapping[Hashable, ByAgent],
        on_actions: Callable[[dict[Hashable, dict[Hashable, Any]] | EnvError], None],
    ) -> None:
        """Requests actions for many episodes without waiting; see `ExternalEnv.request_actions`."""
        self._external_episodes.request(observations, on_actions)

    def log_action(self, episode_id: Hashable, observations: ByAgent, actions: ByAgent) -> None:
        """Records actions that the policies did not choose. Blocks only while the queue is full."""
        self._external_episodes.log(episode_id, observations, actions)

    def log_returns(self, episode_id: Hashable, rewards: ByAgent, infos: ByAgent | None = None) -> None:
        """Adds to the rewards of the last actions of agents that have not ended; see `ExternalEnv.log_returns`."""
        self._external_episodes.add_returns(episode_id, rewards, {} if infos is None else infos)

    def end_agents(self, episode_id: Hashable, observations: ByAgent, truncated: bool = False) -> None:
        """Ends the trajectories of some agents, given the last observation (or None) of each; the episode continues."""
        self._external_episodes.end_agents(episode_id, observations, truncated)

    def end_episode(self, episode_id: Hashable, observations: ByAgent, truncated: bool = False) -> None:
        """Ends an episode and the trajectories of all its agents; see `ExternalEnv.end_episode`.

        `observations` has the last observation, if there is one, of each agent that has acted.
        """
        self._external_episodes.end(episode_id, observations, truncated)
