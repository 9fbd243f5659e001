"""Helpers for tests of servers that learn."""

from typing import Any

import numpy as np

from rollax.serving.protocol import Actions, Episode, Trajectory
from tests.waiting import until

TINY = {"fcnet_hiddens": [4]}


def play_episode(client: Any, env: Any, seed: int | None = None) -> int:
    """Plays one episode with the actions of the server; returns its number of steps."""
    obs, _ = env.reset(seed=seed)
    episode, over, steps = client.episode(), False, 0
    while not over:
        obs, reward, terminated, truncated, _ = env.step(episode.get_action(obs))
        episode.log_returns(reward)
        over, steps = terminated or truncated, steps + 1
    episode.end(obs, truncated=truncated)
    return steps


class Answers(list):
    """Collects the answers of `request_actions`."""

    def wait(self, count: int) -> list[Any]:
        until(lambda: len(self) >= count)
        for answer in self:
            if isinstance(answer, BaseException):
                raise answer
        return self


def ask(backend: Any, observations: dict[str, Any]) -> Actions:
    """Requests actions from a backend, and returns its answer."""
    answers = Answers()
    backend.request_actions(observations, answers.append)
    return answers.wait(1)[0]


def trajectory(steps: int, *, logp: float | None = None, **ends: bool) -> Trajectory:
    """A trajectory of CartPole with zeros, as the service passes it to the backend."""
    return Trajectory(
        obs=np.zeros((steps + 1, 4), np.float32),  # type: ignore[arg-type]
        actions=np.zeros(steps, np.int64),  # type: ignore[arg-type]
        rewards=np.ones(steps),  # type: ignore[arg-type]
        action_logp=None if logp is None else np.full(steps, logp, np.float32),  # type: ignore[arg-type]
        **(ends or {"terminated": True}),
    )


def episode(steps: int, version: int | None = None, **values: Any) -> Episode:
    """An episode of one agent."""
    return Episode(agents={"agent0": trajectory(steps, **values)}, policy_version=version)
