"""`JaxBaseEnv`: steps a `JaxEnv` from the host, as a `BaseEnv`, where sampling cannot be compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rollax.core import runtime, trees
from rollax.env import checks
from rollax.env.base_env import BaseEnv
from rollax.env.copies import EnvCopies
from rollax.env.jax.jax_env import Outcome
from rollax.env.jax.sub_environments import ByAgent, EpisodeState, SubEnvironments, joined, replaced
from rollax.env.multi_agent.multi_agent_env import common_space
from rollax.env.rows import Rows
from rollax.env.vector.vector_base_env import ActionBuffer


class JaxBaseEnv(BaseEnv):
    """`num_envs_per_worker` copies of an environment in JAX; each poll is one compiled step of all of them.

    The rows of a sub-environment's agents are adjacent: with k agents, sub-environment i has the slots k · i to
    k · i + k - 1.

    Attributes:
        running: the running episodes; None before the first reset. `CompiledSampler` steps them without polls.
        agents: the ids of all agents.
        checks: of observations, also of those that other classes take from `running`.
    """

    adapts = True

    in_jax = True

    def __init__(self, copies: EnvCopies) -> None:
        runtime.configure_jax()
        env = copies.vector()
        self.name = repr(env)
        self.num_envs = copies.num_envs
        self.functions = SubEnvironments(env, self.name)
        self.agents = self.functions.agents
        self.possible_agents = self.agents if self.functions.several else None
        self.observation_spaces = self.functions.observation_spaces
        self.action_spaces = self.functions.action_spaces
        self.observation_space = common_space(self.observation_spaces)
        self.action_space = common_space(self.action_spaces)
        self.running: EpisodeState | None = None
        self._everyone = np.arange(self.num_envs)
        self._slots = self._slots_of(self._everyone)
        self._no = np.zeros(len(self._slots), bool)
        of_agent = ", agent {!r}" if self.functions.several else ""
        self._answers = {
            agent: ActionBuffer(self._everyone, self.name + of_agent.format(agent)) for agent in self.agents
        }
        self.checks = checks.ObservationChecks(self.num_envs)
        self._begin = jax.jit(self.functions.begin)
        self._restart = jax.jit(self.functions.restart)
        self._advance = jax.jit(self._traced_step)
        self._observed = jax.jit(self._traced_rows)
        self._replaced = jax.jit(replaced)

    def share_functions(self, other: JaxBaseEnv) -> None:
        """Uses the compiled functions of an equal environment in the place of its own."""
        for name in ("functions", "_begin", "_restart", "_advance", "_observed", "_replaced"):
            setattr(self, name, getattr(other, name))

    def poll_rows(self) -> Rows:
        actions = {agent: answers.take() for agent, answers in self._answers.items()}
        self.running, outcome = self._advance(self.running, actions)
        obs = self._columns(outcome.obs, self._everyone)
        rewards = checks.reward_column(np.asarray(outcome.reward).ravel(), self._where)
        terminateds, truncateds = (
            np.repeat(np.asarray(flag), len(self.agents)) for flag in (outcome.terminated, outcome.truncated)
        )
        waits = ~(terminateds | truncateds)
        ended = (~waits[:: len(self.agents)]).nonzero()[0]
        self._expect(np.setdiff1d(self._everyone, ended, assume_unique=True) if len(ended) else self._everyone)
        self.checks.polled(ended)
        envs, agents = self._envs_of(self._slots), self._agents_of(self._everyone)
        columns = envs, self._slots, obs, rewards, terminateds, truncateds, self._no, waits, ended, agents
        return Rows(*columns, in_order=True)

    def send_rows(self, rows: Rows, selection: np.ndarray | None, actions: trees.Tree) -> None:
        if len(self.agents) == 1:
            self._answers[self.agents[0]].put(rows, selection, actions)
            return
        chosen = np.arange(len(rows)) if selection is None else selection
        numbers = rows.slots[chosen] % len(self.agents)
        for number, answers in enumerate(self._answers.values()):
            mine = (numbers == number).nonzero()[0]
            if len(mine):
                answers.put(rows, chosen[mine], trees.index(actions, mine))

    def reset_rows(self, env_index: np.ndarray, seeds: Sequence[int | None] | None = None) -> Rows:
        chosen = np.zeros(self.num_envs, bool)
        chosen[env_index] = True
        if self.running is None or seeds is not None:
            # Sub-environments without a seed get a random seed.
            numbers = np.random.SeedSequence().generate_state(self.num_envs)
            for index, seed in zip(env_index.tolist(), seeds or (), strict=False):
                if seed is not None:
                    numbers[index] = seed % 2**32
            begun = self._begin(numbers)
            self.running = begun if self.running is None else self._replaced(self.running, chosen, begun)
        else:
            self.running = self._restart(self.running, chosen)
        assert self.running is not None
        self._expect(env_index)
        obs, slots = self._columns(self._observed(self.running.obs), env_index), self._slots_of(env_index)
        return Rows.starting(self._envs_of(slots), slots, obs, agents=self._agents_of(env_index))

    def where(self, env_index: int, agent: str) -> str:
        """Describes an agent of a sub-environment in error messages."""
        of_agent = f", agent {agent!r}" if self.functions.several else ""
        return f"{self.name}, sub-environment {env_index}{of_agent}"

    def get_sub_environments(self) -> list[Any]:
        return [self.functions.env] * self.num_envs

    def try_render(self, env_id: int | None = None) -> np.ndarray | None:
        if self.running is None:
            return None
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[env_id or 0], self.running.state)
        return self.functions.env.render(state)

    def _traced_step(self, running: EpisodeState, actions: ByAgent) -> tuple[EpisodeState, Outcome]:
        running, outcome = self.functions.advance(running, actions)
        return running, outcome._replace(obs=self._traced_rows(outcome.obs))

    def _traced_rows(self, obs: ByAgent) -> Any:
        """The rows of all agents; `obs` unchanged if their spaces differ."""
        return obs if self.observation_space is None else joined(obs, self.agents)

    def _columns(self, obs: Any, env_index: np.ndarray) -> Any:
        """Checked observations of some sub-environments; `obs` is the result of `_traced_rows` for all."""
        slots = self._slots_of(env_index)
        if self.observation_space is not None:
            columns = obs if len(env_index) == self.num_envs else trees.index(obs, slots)
            where = lambda row: self._where(int(slots[row]))  # noqa: E731
            return self.checks.columns(self.observation_space, columns, len(slots), where)
        by_agent = []
        for agent, space in self.observation_spaces.items():
            columns = trees.index(obs[agent], env_index)
            where = lambda row, agent=agent: self.where(int(env_index[row]), agent)  # noqa: E731
            by_agent.append(trees.unstack(self.checks.columns(space, columns, len(env_index), where)))
        return [one for together in zip(*by_agent, strict=True) for one in together]

    def _expect(self, env_index: np.ndarray) -> None:
        for answers in self._answers.values():
            answers.expect(env_index)

    def _slots_of(self, env_index: np.ndarray) -> np.ndarray:
        count = len(self.agents)
        return env_index if count == 1 else (env_index[:, None] * count + np.arange(count)).ravel()

    def _envs_of(self, slots: np.ndarray) -> np.ndarray:
        return slots if len(self.agents) == 1 else slots // len(self.agents)

    def _agents_of(self, env_index: np.ndarray) -> list[str] | None:
        return list(self.agents) * len(env_index) if self.functions.several else None

    def _where(self, slot: int) -> str:
        return self.where(slot // len(self.agents), self.agents[slot % len(self.agents)])
