"""Bare environments, stepped with actions drawn beforehand."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.environments import ALL, ManyCartPoles, make_native
from benchmarks.protocol import Link, run, versions


def loop(link: Link, env: str, num_envs: int, fragment: int) -> None:
    """Copies from `gym.make`, stepped in turn and reset when they end."""
    envs = [gym.make(env) for _ in range(num_envs)]
    for index, copy in enumerate(envs):
        copy.reset(seed=index)
        copy.action_space.seed(index)
    actions = [[copy.action_space.sample() for copy in envs] for _ in range(fragment)]

    def collect() -> int:
        for row in actions:
            for copy, action in zip(envs, row, strict=True):
                _, _, terminated, truncated, _ = copy.step(action)
                if terminated or truncated:
                    copy.reset()
        return num_envs * fragment

    link.serve_rates(collect, versions=versions("gymnasium", "numpy"))


def vector(link: Link, env: str, num_envs: int, fragment: int) -> None:
    """A native Gymnasium vector env, which resets its copies by itself."""
    envs = make_native(env, num_envs)
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = np.stack([envs.action_space.sample() for _ in range(fragment)])

    def collect() -> int:
        for row in actions:
            envs.step(row)
        return num_envs * fragment

    link.serve_rates(collect, versions=versions("gymnasium", "ale-py", "numpy"))


def many_cartpoles(link: Link, num_agents: int, num_envs: int, fragment: int) -> None:
    """Copies of several cart-poles in one multi-agent environment, stepped in turn."""
    envs = [ManyCartPoles(num_agents) for _ in range(num_envs)]
    waiting = [list(env.reset(seed=index)[0]) for index, env in enumerate(envs)]
    rng = np.random.default_rng(0)
    actions = [rng.integers(2, size=num_agents).tolist() for _ in range(fragment)]

    def collect() -> int:
        agent_steps = 0
        for row in actions:
            for index, env in enumerate(envs):
                obs, _, terminateds, truncateds, _ = env.step({agent: row[agent] for agent in waiting[index]})
                agent_steps += len(obs)
                if terminateds[ALL]:
                    waiting[index] = list(env.reset()[0])
                else:
                    waiting[index] = [a for a in obs if not (terminateds.get(a) or truncateds.get(a))]
        return agent_steps

    link.serve_rates(collect, versions=versions("gymnasium", "numpy"))


def tic_tac_toe(link: Link, num_envs: int, fragment: int) -> None:
    """Copies of PettingZoo's tic-tac-toe, played in turn; each move takes any free square."""
    import pettingzoo

    envs = [pettingzoo.make("aec", "classic/tictactoe-v3") for _ in range(num_envs)]
    for env in envs:
        env.reset()
    boards: list[Any] = [env.last()[0] for env in envs]
    draws = np.random.default_rng(0).random(fragment).tolist()

    def collect() -> int:
        for draw in draws:
            for index, env in enumerate(envs):
                free = boards[index]["action_mask"].nonzero()[0]
                env.step(int(free[int(draw * len(free))]))
                boards[index], _, terminated, truncated, _ = env.last()
                while terminated or truncated:
                    env.step(None)
                    if not env.agents:
                        env.reset()
                    boards[index], _, terminated, truncated, _ = env.last()
        return num_envs * fragment

    link.serve_rates(collect, versions=versions("pettingzoo", "numpy"))


def atari(link: Link, env: str, num_envs: int, fragment: int, native: bool) -> None:
    """Atari games as rollax creates them: ale-py's vector env, or Gymnasium's wrappers around single envs."""
    from rollax import EnvContext
    from rollax.env.making import make_base_env
    from rollax.env.registry import env_creator
    from rollax.env.rows import Rows

    base = make_base_env(env_creator(env), EnvContext({"native_vector": native}), num_envs)
    everyone = np.arange(num_envs)
    rows = base.reset_rows(everyone, everyone.tolist())
    drawn = np.random.default_rng(0).integers(6, size=(fragment, num_envs))

    def collect() -> int:
        nonlocal rows
        steps = 0
        for actions in drawn:
            assert rows is not None
            acting = rows.acts.nonzero()[0]
            if len(acting):
                base.send_rows(rows, acting, actions[rows.env_index[acting]])
            rows = base.poll_rows()
            steps += int(np.count_nonzero(~rows.starts))
            if len(rows.ended_envs):
                started = base.reset_rows(rows.ended_envs)
                rows = rows if started is None else Rows.concat(rows, started)
        return steps

    link.serve_rates(collect, versions=versions("rollax", "gymnasium", "ale-py", "opencv-python-headless", "numpy"))


if __name__ == "__main__":
    run(loop, vector, many_cartpoles, tic_tac_toe, atari)
