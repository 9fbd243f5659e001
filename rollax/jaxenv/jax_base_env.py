"""`JaxBaseEnv`: a `JaxEnv` as a `BaseEnv`, stepped from the host: for evaluation and what cannot be compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from rollax import runtime, trees
from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.copies import EnvCopies
from rollax.env.observations import ObservationChecks
from rollax.env.rows import Rows
from rollax.env.vector.vector_base_env import Answers
from rollax.jaxenv.sub_environments import Running, SubEnvironments, replaced


class JaxBaseEnv(BaseEnv):
    """`num_envs_per_worker` copies of an environment in JAX; each poll is one compiled step of all of them.

    Attributes:
        running: the running episodes; None before the first reset. `CompiledSampler` steps them without polls.
    """

    in_jax = True

    def __init__(self, copies: EnvCopies) -> None:
        runtime.configure_jax()
        env = copies.vector()
        self.name = repr(env)
        self.num_envs = copies.num_envs
        self.functions = SubEnvironments(env, self.name)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.running: Running | None = None
        self._everyone = np.arange(self.num_envs)
        self._no = np.zeros(self.num_envs, bool)
        self._answers = Answers(self._everyone, self.name)
        self._checks = ObservationChecks(env.observation_space, self.num_envs)
        self._begin = jax.jit(self.functions.begin)
        self._restart = jax.jit(self.functions.restart)
        self._advance = jax.jit(self.functions.advance)
        self._replaced = jax.jit(replaced)

    def poll_rows(self) -> Rows:
        self.running, outcome = self._advance(self.running, self._answers.take())
        obs = self.checked(outcome.obs, self.num_envs, self._where)
        rewards = checks.reward_column(np.asarray(outcome.reward), self._where)
        terminateds, truncateds = np.asarray(outcome.terminated), np.asarray(outcome.truncated)
        waits = ~(terminateds | truncateds)
        ended = (~waits).nonzero()[0]
        self._answers.expect(waits.nonzero()[0] if len(ended) else self._everyone)
        self.ended(ended)
        columns = self._everyone, self._everyone, obs, rewards, terminateds, truncateds, self._no, waits, ended
        return Rows(*columns, in_order=True)

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        self._answers.put(rows, selection, actions)

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows:
        chosen = self._no.copy()
        chosen[env_index] = True
        if self.running is None or seeds is not None:
            # Of those without a seed, a random one.
            numbers = np.random.SeedSequence().generate_state(self.num_envs)
            for index, seed in zip(env_index.tolist(), seeds or (), strict=False):
                if seed is not None:
                    numbers[index] = seed % 2**32
            begun = self._begin(numbers)
            self.running = begun if self.running is None else self._replaced(self.running, chosen, begun)
        else:
            self.running = self._restart(self.running, chosen)
        assert self.running is not None
        self._answers.expect(env_index)
        obs = trees.index(jax.tree.map(np.asarray, self.running.obs), env_index)
        obs = self.checked(obs, len(env_index), lambda row: self._where(int(env_index[row])))
        return Rows.starting(env_index, env_index, obs)

    def checked(self, obs: Any, rows: int, where: Callable[[int], str]) -> trees.Tree:
        """Columns of observations in NumPy, in the dtypes of the space; `where` describes a row in errors.

        Raises:
            EnvError: a NaN, or an infinite number that the space does not allow.
        """
        return self._checks.columns(jax.tree.map(np.asarray, obs), rows, where)

    def ended(self, env_index: np.ndarray) -> None:
        """Notes sub-environments whose episode has ended: observations of the first ones are checked in full."""
        if self._checks.first_episodes.indices:
            self._checks.first_episodes.polled(env_index.tolist())

    def get_sub_environments(self) -> list[Any]:
        return [self.functions.env] * self.num_envs

    def try_render(self, env_id: int | None = None) -> np.ndarray | None:
        if self.running is None:
            return None
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[env_id or 0], self.running.state)
        return self.functions.env.render(state)

    def _where(self, row: int) -> str:
        return f"{self.name}, sub-environment {row}"
