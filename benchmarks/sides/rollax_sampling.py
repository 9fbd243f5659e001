"""rollax's `RolloutWorker.sample` in one process, with PPO's policy: a 64x64 tanh actor and critic."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from benchmarks.environments import (
    ACTION_SPACE,
    OBSERVATION_SPACE,
    FreeAgents,
    ManyCartPoles,
    SleepingEnv,
    make_native,
)
from benchmarks.protocol import Link, run, versions
from rollax import EnvStoppedError, ExternalEnv, MultiAgentEnv, RolloutWorker
from rollax.algorithms.ppo import PPO, PPOConfig
from rollax.models.config import ModelConfig
from rollax.rollout.row_sampler import RowSampler

_LENGTH = 200  # steps of an external episode


def copies(
    link: Link,
    env: str,
    num_envs: int,
    fragment: int,
    native: bool = False,
    stepwise: bool = False,
    model: Mapping[str, Any] | None = None,
) -> None:
    """Samples copies of an environment.

    Args:
        native: one native vector env instead of copies.
        stepwise: an environment in JAX is stepped from the host.
        model: what differs from the 64x64 tanh model.
    """

    def create(_context: object) -> gym.Env | gym.vector.VectorEnv:
        return make_native(env, num_envs) if native else gym.make(env)

    config = _config(
        num_envs_per_worker=num_envs,
        rollout_fragment_length=fragment,
        model={"vf_share_layers": env.startswith("ALE/"), **(model or {})},
        sampler=RowSampler if stepwise else None,
    )
    worker = RolloutWorker(env if env.startswith("jax:") else create, PPO, config=config)
    _serve(link, worker, versions("rollax", "jax", "flax", "gymnasium", "ale-py", "numpy"))


def free_agents(link: Link, num_agents: int, fragment: int) -> None:
    """Samples many agents of one free environment with one shared policy."""

    class FreeEnv(FreeAgents, MultiAgentEnv):
        """`FreeAgents` as a multi-agent env of rollax."""

    worker = RolloutWorker(
        lambda context: FreeEnv(num_agents),
        {"shared": (PPO, OBSERVATION_SPACE, ACTION_SPACE, {})},
        policy_mapping_fn=lambda agent_id: "shared",
        config=_config(num_envs_per_worker=1, rollout_fragment_length=fragment),
    )
    _serve(link, worker, versions("rollax", "jax", "flax", "gymnasium", "numpy"), "agent_steps")


def many_cartpoles(link: Link, num_agents: int, num_envs: int, fragment: int) -> None:
    """Samples several cart-poles in one multi-agent environment with two policies."""

    class CartPoles(ManyCartPoles, MultiAgentEnv):
        """`ManyCartPoles` as a multi-agent env of rollax."""

    worker = RolloutWorker(
        lambda context: CartPoles(num_agents),
        {"even": PPO, "odd": PPO},
        policy_mapping_fn=lambda agent_id: "odd" if agent_id % 2 else "even",
        config=_config(num_envs_per_worker=num_envs, rollout_fragment_length=fragment),
    )
    _serve(link, worker, versions("rollax", "jax", "flax", "gymnasium", "numpy"), "agent_steps")


def tic_tac_toe(link: Link, num_envs: int, fragment: int) -> None:
    """Samples PettingZoo's tic-tac-toe with one masked policy, which plays both sides."""
    import pettingzoo

    config = _config(num_envs_per_worker=num_envs, rollout_fragment_length=fragment)
    worker = RolloutWorker(lambda context: pettingzoo.make("aec", "classic/tictactoe-v3"), PPO, config=config)
    _serve(link, worker, versions("rollax", "jax", "flax", "pettingzoo", "numpy"), "agent_steps")


def sleeping(link: Link, num_envs: int, sleep_ms: float, wait_ms: float | None = None) -> None:
    """Samples environments that sleep in every step.

    Args:
        wait_ms: the sub-environments are remote and wait so long for each other; None: they are in the process.
    """
    config = _config(
        env_config={"sleep_ms": sleep_ms},
        num_envs_per_worker=num_envs,
        rollout_fragment_length=20,
        remote_worker_envs=wait_ms is not None,
        remote_env_batch_wait_ms=wait_ms or 0.0,
    )
    worker = RolloutWorker(SleepingEnv, PPO, config=config)
    _serve(link, worker, versions("rollax", "ray", "jax", "gymnasium", "numpy"))


class FreeEpisodes(ExternalEnv):
    """Precomputed observations, a reward of 1 per step, episodes of 200 steps that end at different times."""

    def __init__(self, episodes: int, threads: bool) -> None:
        super().__init__(OBSERVATION_SPACE, ACTION_SPACE)
        rng = np.random.default_rng(0)
        self.count, self.threads = episodes, threads
        self.obs = rng.normal(size=(episodes, 4)).clip(-10, 10).astype(np.float32)
        self.lengths = rng.integers(1, _LENGTH, episodes).tolist()  # lengths of the first episodes

    def run(self) -> None:
        """Plays all episodes in one thread, or each in its own."""
        if not self.threads:
            self.play_all()
            return
        threads = [threading.Thread(target=self.play, args=(number,)) for number in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def play_all(self) -> None:
        """Plays all episodes in lockstep."""
        left, ids = list(self.lengths), [self.start_episode() for _ in range(self.count)]
        while True:
            self.get_actions(dict(zip(ids, self.obs, strict=True)))
            for number, episode_id in enumerate(ids):
                self.log_returns(episode_id, 1.0)
                left[number] -= 1
                if not left[number]:
                    self.end_episode(episode_id, self.obs[number])
                    ids[number], left[number] = self.start_episode(), _LENGTH

    def play(self, number: int) -> None:
        """Plays one episode after another."""
        obs, length = self.obs[number], self.lengths[number]
        try:
            while True:
                episode_id = self.start_episode()
                for _ in range(length):
                    self.get_action(episode_id, obs)
                    self.log_returns(episode_id, 1.0)
                self.end_episode(episode_id, obs)
                length = _LENGTH
        except EnvStoppedError:
            return


def external(link: Link, episodes: int, fragment: int, threads: bool) -> None:
    """Samples concurrent external episodes that cost nothing.

    Args:
        episodes: how many run at once.
        threads: a thread for each episode instead of `get_actions`.
    """
    config = _config(rollout_fragment_length=fragment, train_batch_size=fragment)
    worker = RolloutWorker(lambda context: FreeEpisodes(episodes, threads), PPO, config=config)
    polls, poll_rows = 0, worker.env.poll_rows

    def counted() -> Any:
        nonlocal polls
        polls += 1
        return poll_rows()

    worker.env.poll_rows = counted  # type: ignore[method-assign]
    _steps(worker)
    polls = 0
    actions_per_forward = round(sum(_steps(worker) for _ in range(10)) / polls, 1)
    installed = versions("rollax", "jax", "flax", "gymnasium", "numpy")
    link.serve_rates(lambda: _steps(worker), actions_per_forward=actions_per_forward, versions=installed)
    worker.stop()


def meeting(
    link: Link, num_envs: int, fragment: int, num_policies: int, numpy: bool = False, stepwise: bool = False
) -> None:
    """Samples a game of two agents, with one policy or two.

    Args:
        numpy: copies of the game in NumPy instead of JAX.
        stepwise: the game in JAX is stepped from the host.
    """
    from benchmarks.sides.meeting import ACTIONS, AGENTS, OBSERVATIONS, make_meeting

    config = _config(
        num_envs_per_worker=num_envs,
        rollout_fragment_length=fragment,
        sampler=RowSampler if stepwise else None,
    )
    names = AGENTS[:num_policies]
    policies = {name: (PPO, OBSERVATIONS, ACTIONS, {}) for name in names}
    mapping = dict.fromkeys(AGENTS, AGENTS[0]) | {name: name for name in names}
    worker = RolloutWorker(
        lambda context: make_meeting(numpy=numpy),
        policies,
        policy_mapping_fn=lambda agent_id: mapping[agent_id],
        config=config,
    )
    _serve(link, worker, versions("rollax", "jax", "flax", "gymnasium", "numpy"))


def _config(*, model: Mapping[str, Any] | None = None, **settings: Any) -> PPOConfig:
    layers = {"fcnet_hiddens": (64, 64), "fcnet_activation": "tanh"}
    return PPOConfig(model=ModelConfig(**{**layers, **(model or {})}), seed=0, **settings)


def _serve(
    link: Link,
    worker: RolloutWorker,
    installed: dict[str, str],
    unit: Literal["env_steps", "agent_steps"] = "env_steps",
) -> None:
    link.serve_rates(lambda: _steps(worker, unit), versions=installed)


def _steps(worker: RolloutWorker, unit: Literal["env_steps", "agent_steps"] = "env_steps") -> int:
    """Samples a fragment and returns the number of its steps."""
    steps = getattr(worker.sample(), unit)
    # A trainer reads the metrics once per iteration; unread metrics would accumulate.
    worker.get_metrics()
    return steps


if __name__ == "__main__":
    run(copies, free_agents, many_cartpoles, tic_tac_toe, sleeping, external, meeting)
