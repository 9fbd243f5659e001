"""Small policies behind a policy server, which records the submitted episodes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rollax import PPO, PolicyClient
from rollax.rollout.filters import make_filter
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.policy_backend import PolicyBackend
from rollax.serving.protocol import Episode, Hello, Submitted

OBS = spaces.Box(-10.0, 10.0, (2,), np.float32)
CONTINUOUS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
DISCRETE = spaces.Discrete(3)
SMALL = {"model": {"fcnet_hiddens": [8]}, "seed": 1}

LSTM = {"use_lstm": True, "lstm_cell_size": 4, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
LSTM["fcnet_hiddens"] = [4]
_RNG = np.random.default_rng(0)


def observations(count: int) -> np.ndarray:
    """[count, 2] observations; other ones in each call."""
    return _RNG.normal(3.0, 2.0, (count, 2)).astype(np.float32)


def runner(
    policy_class: Any = PPO,
    action_space: Space = DISCRETE,
    policy_id: str = "default_policy",
    observation_space: Space = OBS,
    **config: Any,
) -> PolicyRunner:
    """A policy whose filter has statistics of some observations."""
    policy = policy_class.make_policy(observation_space, action_space, {**SMALL, **config})
    policy.name = policy_id
    seen = make_filter("MeanStdFilter" if observation_space is OBS else "NoFilter", observation_space)
    if observation_space is OBS:
        seen(np.random.default_rng(0).normal(3.0, 2.0, (50, 2)).astype(np.float32), update=True)
    return PolicyRunner.of(policy, policy.config, seen)


class SingleEpisode:
    """One episode of one agent with actions directly from the policy."""

    def __init__(self, policy: PolicyRunner) -> None:
        self.policy, self.state, self.action, self.reward = policy, None, None, 0.0

    def act(self, obs: np.ndarray) -> Any:
        state = self.policy.policy.get_initial_state() if self.state is None else self.state
        before = {"prev_action": self.action, "prev_reward": self.reward}
        self.action, self.state, _ = self.policy.compute_single_action(obs, state, **before)
        self.reward = 0.0
        return self.action

    def log(self, obs: np.ndarray, action: Any) -> None:
        self.act(obs)
        self.action = action


class RecordingBackend(PolicyBackend):
    """Answers like a server that learns: it accepts episodes, and gets newer weights on request.

    Attributes:
        episodes: the submitted episodes.
        sent: the ids of the policies whose weights were sent.
    """

    def __init__(self, runners: Mapping[str, PolicyRunner], **settings: Any) -> None:
        super().__init__(runners, version=1, **settings)
        self.episodes: list[Episode] = []
        self.sent: list[str] = []

    def hello(self) -> Hello:
        hello = super().hello()
        hello.learns = True
        return hello

    def submit(self, episodes: list[Episode]) -> Submitted:
        self.episodes += episodes
        return Submitted(len(episodes), 0, self.version)

    def weights(self, policy_id: str) -> bytes:
        self.sent.append(policy_id)
        return super().weights(policy_id)

    def renew(self, runner: PolicyRunner) -> None:
        """Replaces the weights with those of another policy, as the next version."""
        for actor in self.actors.values():
            actor.policy.set_weights(runner.policy.get_weights())
        self._version += 1


def local(address: str, **settings: Any) -> PolicyClient:
    """A client that acts with the weights of the server."""
    return PolicyClient(address, inference_mode="local", **{"seed": 3, **settings})
