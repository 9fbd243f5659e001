"""Exploration by noise that is added to continuous actions, and by random actions for the first steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rollax.batch import SampleBatch
from rollax.core.trees import namespace
from rollax.models.distributions import MASKED_LOGIT
from rollax.policy.exploration import Exploration, uniform_choice
from rollax.policy.exploration.wrapper import ExplorationWrapper

GREEDY_ACTIONS = "greedy_actions"


class Deterministic(Exploration):
    """Acts greedily: the model's outputs are the actions, flattened; `shape` is the shape of an action."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self.num_inputs = math.prod(shape)
        self.fetched = {GREEDY_ACTIONS: self.num_inputs}

    def mode(self, outputs: Any) -> Any:
        return outputs.reshape(-1, *self._shape)

    def fetches(self, outputs: Any, actions: Any) -> dict[str, Any]:
        return {GREEDY_ACTIONS: outputs}


class GaussianNoise(ExplorationWrapper):
    """Adds independent normal numbers to actions in [-1, 1], and clips the sums to [-1, 1].

    Source: Fujimoto et al. (2018), Algorithm 1, arXiv:1802.09477:  a = π(s) + ε,  ε ~ N(0, σ), with σ = scale(timestep)
        in units of half an action's range.
    """

    def __init__(self, inner: Exploration, shape: tuple[int, ...], scale: Callable[[float], float]) -> None:
        super().__init__(inner)
        self.scale = scale
        self.width = self.own_numbers = math.prod(shape)
        self.from_distribution = False

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        inner = self.inner.noise(rng, rows, timestep)
        own = np.float32(self.scale(timestep)) * rng.standard_normal((rows, self.width), np.float32)
        return np.concatenate([inner, own], axis=1)

    def sample(self, outputs: Any, noise: Any) -> Any:
        inner, own = self.parts(noise)
        actions = self.inner.sample(outputs, inner)
        return namespace(actions).clip(actions + own[:, : self.width].reshape(actions.shape), -1.0, 1.0)


class OrnsteinUhlenbeckNoise(GaussianNoise):
    """Autocorrelated noise: one process for each trajectory, which starts at 0 and is drawn back to 0.

    Source: Lillicrap et al. (2016), section 3 and supplement 7, arXiv:1509.02971; Uhlenbeck and Ornstein (1930):
        x ← x - θ x + σ ε,  ε ~ N(0, 1).  With steps of dt, θ stands for θ · dt and σ for σ · √dt.
    """

    def __init__(
        self,
        inner: Exploration,
        shape: tuple[int, ...],
        scale: Callable[[float], float],
        *,
        theta: float = 0.15,
        sigma: float = 0.2,
    ) -> None:
        super().__init__(inner, shape, scale)
        self.own_numbers = self.width + 1  # the last number is the scale
        self.theta, self.sigma = np.float32(theta), np.float32(sigma)

    def initial_state(self) -> list[np.ndarray]:
        return [*self.inner.initial_state(), np.zeros(self.width, np.float32)]

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        inner = self.inner.noise(rng, rows, timestep)
        own = rng.standard_normal((rows, self.width), np.float32)
        scale = np.full((rows, 1), self.scale(timestep), np.float32)
        return np.concatenate([inner, own, scale], axis=1)

    def advance(self, noise: Any, state: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        inner, own = self.parts(noise)
        *inner_state, x = state
        inner, inner_state = self.inner.advance(inner, inner_state)
        scale = own[:, self.width :]
        x = x - self.theta * x + self.sigma * own[:, : self.width]
        return namespace(noise).concatenate([inner, scale * x, scale], axis=1), [*inner_state, x]


class RandomAtFirst(ExplorationWrapper):
    """Draws valid actions uniformly during the first `steps` steps; for a Box, from [-1, 1].

    All actions of the fragment in which these steps end are random.
    """

    def __init__(self, inner: Exploration, action_space: spaces.Discrete | spaces.Box, steps: int) -> None:
        super().__init__(inner)
        self._steps = steps
        self._shape = action_space.shape or ()
        self._start = int(action_space.start) if isinstance(action_space, spaces.Discrete) else None
        self._width = math.prod(self._shape)
        self.own_numbers = self._width + 1  # the last number is 1 for random actions

    def noise(self, rng: np.random.Generator, rows: int, timestep: int) -> np.ndarray:
        own = np.zeros((rows, self.own_numbers), np.float32)
        if timestep < self._steps:
            rng.random(dtype=np.float32, out=own)
            own[:, -1] = 1.0
        inner = self.inner.noise(rng, rows, timestep)
        return np.concatenate([inner, own], axis=1)

    def sample(self, outputs: Any, noise: Any) -> Any:
        inner, own = self.parts(noise)
        actions = self.inner.sample(outputs, inner)
        is_random = own[:, -1].reshape(-1, *(1,) * len(self._shape)) > 0
        return namespace(outputs).where(is_random, self._uniform(outputs, own[:, :-1]), actions)

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], timestep: int) -> dict[str, Any]:
        """`action_logp` without `action_dist_inputs`, which do not describe random actions."""
        inner = self.inner.behaviour(actions, fetches, timestep)
        if SampleBatch.ACTION_LOGP not in inner:
            return {}
        logp, inputs = inner[SampleBatch.ACTION_LOGP], inner.get(SampleBatch.ACTION_DIST_INPUTS)
        if timestep < self._steps:
            if self._start is None:
                density = -self._width * math.log(2)
            elif inputs is None:
                return {}
            else:
                density = -np.log(np.count_nonzero(inputs > MASKED_LOGIT, axis=-1))
            logp = np.broadcast_to(np.asarray(density, np.float32), logp.shape)
        return {SampleBatch.ACTION_LOGP: logp}

    def probabilities(self, outputs: np.ndarray, timestep: int) -> np.ndarray | None:
        if timestep >= self._steps or self._start is None:
            return self.inner.probabilities(outputs, timestep)
        valid = outputs > MASKED_LOGIT
        return valid / valid.sum(axis=1, keepdims=True)

    def _uniform(self, outputs: Any, uniform: Any) -> Any:
        if self._start is None:
            return 2.0 * uniform.reshape(-1, *self._shape) - 1.0
        return uniform_choice(outputs, uniform[:, 0]) + self._start


def with_action_noise(
    greedy: Exploration, action_space: Any, config: Any, scale: Callable[[float], float]
) -> Exploration:
    """Adds the noise of `config.exploration`, times `scale`, and random actions for the first `config.random_steps`.

    If `config.longest_repeat` is above 1, sampled actions and `GaussianNoise` keep their noise for several steps.
    `OrnsteinUhlenbeckNoise` is not repeated, because it is correlated over time anyway. A policy that has learned
    before (`is_pretrained`) does not begin with random actions.
    """
    exploration = greedy
    if config.exploration == "GaussianNoise":
        exploration = GaussianNoise(greedy, action_space.shape, scale)
    if config.longest_repeat > 1:
        from rollax.policy.exploration.repeated_noise import RepeatedNoise, repeat_probabilities  # only where used

        steps = np.arange(1, config.longest_repeat + 1)
        exploration = RepeatedNoise(exploration, steps, repeat_probabilities(len(steps)))
    if config.exploration == "OrnsteinUhlenbeckNoise":
        theta, sigma = config.ou_theta, config.ou_sigma
        exploration = OrnsteinUhlenbeckNoise(exploration, action_space.shape, scale, theta=theta, sigma=sigma)
    random_steps = 0 if config.is_pretrained else config.random_steps
    return RandomAtFirst(exploration, action_space, random_steps) if random_steps else exploration
