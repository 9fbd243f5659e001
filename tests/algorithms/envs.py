"""Small environments whose best policy, returns or values are known."""

import copy
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rollax import EnvContext, MultiAgentEnv
from rollax.core.trees import leaves


class Corridor(gym.Env):
    """States 0, 1, 2, 3, one per step, for every action. Each step earns 1. Episodes end in state 3: terminated in
    sub-environments of even number, truncated in the others."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(2)

    def __init__(self, context: EnvContext) -> None:
        self.terminates = context.vector_index % 2 == 0
        self.state = 0

    def reset(self, *, seed=None, options=None):
        self.state = 0
        return self.state, {}

    def step(self, action):
        self.state += 1
        over = self.state == 3
        return self.state, 1.0, over and self.terminates, over and not self.terminates, {}


class Endless(gym.Env):
    """One state with reward 1 at each step, truncated after 5 steps. Its value is 1 / (1 - γ)."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return 0, {}

    def step(self, action):
        self.steps += 1
        return 0, 1.0, False, self.steps == 5, {}


class Echo(gym.Env):
    """The observation is the right action. The right action earns 1, any other less, in proportion to its error."""

    length: ClassVar[int] = 10

    def __init__(self, context: EnvContext) -> None:
        # A copy, since sampling changes the random state of a space.
        self.action_space = self.observation_space = copy.deepcopy(context["space"])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self.steps = 0
        self.right = self.action_space.sample()
        return self.right, {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = float(np.mean([1 - np.mean(off) for off in leaves(_off(self.action_space, self.right, action))]))
        self.steps += 1
        self.right = self.action_space.sample()
        return self.right, reward, False, self.steps == self.length, {}


def _off(space: spaces.Space, right: Any, action: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _off(part, right[key], action[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_off(part, right[i], action[i]) for i, part in enumerate(space.spaces))
    if isinstance(space, spaces.Box):
        return np.abs(action - right) / (space.high - space.low)
    return np.asarray(action != right, float)


class Shown(gym.Env):
    """The observation shows the right one of four actions: a bright quadrant of an image, or an entry beside noise."""

    action_space = spaces.Discrete(4)

    def __init__(self, context: EnvContext) -> None:
        self.image = context["image"]
        if self.image:
            self.observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
        else:
            self.observation_space = spaces.Dict(
                {
                    "axis": spaces.Discrete(2),
                    "sign": spaces.Box(-1, 1, (1,), np.float32),
                    "noise": spaces.Tuple([spaces.MultiBinary(3), spaces.MultiDiscrete([2, 3])]),
                }
            )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self._next(), {}

    def step(self, action):
        reward = float(action == self.right)
        self.steps += 1
        return self._next(), reward, False, self.steps == 10, {}

    def _next(self):
        self.right = int(self.np_random.integers(4))
        obs = self.observation_space.sample()
        row, column = divmod(self.right, 2)
        if self.image:
            obs //= 2
            obs[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 120
        else:
            obs["axis"] = np.int64(row)
            obs["sign"] = np.array([0.5 + abs(obs["sign"][0]) / 2], np.float32) * (1 if column else -1)
        return obs


class MaskedCartPole(gym.Wrapper):
    """CartPole with ten actions: even ones push left, odd ones right. Two of each are valid, different ones each step.
    An invalid action raises."""

    def __init__(self, context: EnvContext) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.action_space = spaces.Discrete(10)
        seen = {"cart": self.env.observation_space, "action_mask": spaces.MultiBinary(10)}
        self.observation_space = spaces.Dict(seen)

    def reset(self, *, seed=None, options=None):
        cart, info = self.env.reset(seed=seed, options=options)
        return self._masked(cart), info

    def step(self, action):
        if not self.mask[action]:
            raise ValueError(f"action {action} is not among {np.flatnonzero(self.mask)}")
        cart, reward, terminated, truncated, info = self.env.step(int(action) % 2)
        return self._masked(cart), reward, terminated, truncated, info

    def _masked(self, cart):
        self.mask = np.zeros(10, np.int8)
        for side in (0, 1):
            self.mask[2 * self.np_random.choice(5, 2, replace=False) + side] = 1
        return {"cart": cart, "action_mask": self.mask.copy()}


class TwoAgents(MultiAgentEnv):
    """`left` earns 1 and `right` 10 in each of 5 steps, for all actions."""

    def __init__(self, context: EnvContext | None = None) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 1, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._both([np.zeros(2, np.float32)] * 2), self._both([{}, {}])

    def step(self, actions):
        assert actions.keys() == {"left", "right"}
        self.steps += 1
        obs = self._both([np.full(2, self.steps / 5, np.float32)] * 2)
        over = {"__all__": self.steps == 5}
        return obs, self._both([1.0, 10.0]), over, {"__all__": False}, self._both([{}, {}])

    @staticmethod
    def _both(values):
        return dict(zip(("left", "right"), values, strict=True))


class Film(gym.Env):
    """Stacks of the last four images [4, 8, 8]. All pixels of an image are the number of its step."""

    observation_space = spaces.Box(0, 255, (4, 8, 8), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, env_config):
        self.step_number = 0

    def _obs(self):
        numbers = np.maximum(np.arange(self.step_number - 3, self.step_number + 1), 0)
        return np.repeat(numbers, 64).reshape(4, 8, 8).astype(np.uint8)

    def reset(self, *, seed=None, options=None):
        self.step_number = 0
        return self._obs(), {}

    def step(self, action):
        self.step_number += 1
        return self._obs(), 1.0, self.step_number == 9, False, {}


class Slides(Film):
    """The images [8, 8] of a `Film`, one at a time."""

    observation_space = spaces.Box(0, 255, (8, 8), np.uint8)

    def _obs(self):
        return super()._obs()[-1]


class StatelessPendulum(gym.ObservationWrapper):
    """Pendulum-v1 whose observation has the cosine and the sine of the angle, but no velocity."""

    def __init__(self, env_config: dict[str, Any]) -> None:
        super().__init__(gym.make("Pendulum-v1"))
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def observation(self, observation):
        return observation[:2]


class MultiAgentPendulum(MultiAgentEnv):
    """Two agents, each with a Pendulum-v1 of its own. Both have the same time limit, which ends the episode."""

    possible_agents: ClassVar[list[int]] = [0, 1]

    def __init__(self, env_config: dict[str, Any]) -> None:
        self.pendulums = {agent: gym.make("Pendulum-v1") for agent in self.possible_agents}
        self.observation_space = self.pendulums[0].observation_space
        self.action_space = self.pendulums[0].action_space

    def reset(self, *, seed=None, options=None):
        seeds = {agent: None if seed is None else seed + agent for agent in self.pendulums}
        return {agent: pendulum.reset(seed=seeds[agent])[0] for agent, pendulum in self.pendulums.items()}, {}

    def step(self, actions):
        assert actions.keys() == self.pendulums.keys()
        obs, rewards, truncateds = {}, {}, {}
        for agent, action in actions.items():
            obs[agent], rewards[agent], _, truncateds[agent], _ = self.pendulums[agent].step(action)
        truncateds["__all__"] = all(truncateds.values())
        return obs, rewards, {"__all__": False}, truncateds, {}

    def close(self):
        for pendulum in self.pendulums.values():
            pendulum.close()


class RepeatInitialObs(gym.Env):
    """The first observation is 0 or 1, all later ones are 0. An action that equals the first one earns 1, any other -1.

    An episode has 100 steps: at most 100 with memory, and on average 1 without it.
    """

    observation_space = action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.first, self.steps = int(self.np_random.integers(2)), 0
        return self.first, {}

    def step(self, action):
        self.steps += 1
        return 0, 1.0 if action == self.first else -1.0, self.steps == 100, False, {}
