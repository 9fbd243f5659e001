"""`CompiledCandidates`: plays candidates in environments in JAX, many steps of all slots in one compiled call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.core import trees
from rollax.env import checks
from rollax.env.jax.jax_base_env import JaxBaseEnv
from rollax.env.jax.sub_environments import EpisodeState
from rollax.env.rows import DEFAULT_AGENT
from rollax.errors import ConfigError, PolicyError
from rollax.policy.stacked_acting import BLOCK
from rollax.rollout.block_sampler import BlockSampler
from rollax.rollout.compiled_policy import CompiledFilter
from rollax.rollout.compiled_sampler import CompiledSampler
from rollax.rollout.policy_runner import PolicyRunner
from rollax.rollout.row_sampler import RowSampler
from rollax.rollout.sampler import Sampler
from rollax.rollout.simulator_sampler import SimulatorSampler
from rollax.search.candidates import CandidatePlayer
from rollax.search.messages import CandidateReturns, Candidates

if TYPE_CHECKING:
    from rollax.rollout.worker import RolloutWorker

_PLAYER = "candidate player"
_STEPS = 64
"""Steps of one compiled call: more steps need fewer calls, but slots whose episode has ended are idle for longer."""


class _Played(NamedTuple):
    """The outcomes of T steps of each slot, [T, slots, ...].

    `acted` is false after the end of an episode; the other values then have no meaning. `obs` precede the actions.
    """

    obs: Any
    rewards: Any
    acted: Any
    over: Any
    finite: Any


class CompiledCandidates(CandidatePlayer):
    """Plays candidates in the slots of a `JaxBaseEnv`; the returns are those of `CandidatePlayer`, up to rounding.

    The slots of a block of `StackedActing` play `_STEPS` steps in one compiled call. A slot whose episode ends rests
    until the call returns, and then gets the next episode.
    """

    compiled_with_env = True

    def __init__(self, sampler: Sampler, runner: PolicyRunner, worker_index: int) -> None:
        super().__init__(sampler, runner, worker_index)
        self._jax_env = cast(JaxBaseEnv, self._env)
        self._filter = CompiledFilter(runner.filter, self._policy.observation_space)
        self._everyone = np.arange(self._jax_env.num_envs)
        self._play_block = jax.jit(self._traced_steps)
        self._parts = jax.jit(_parts)
        self._joined = jax.jit(_joined)

    def _advance(self) -> None:
        """Plays some steps in each slot, and begins the next episodes."""
        played = self._play_steps()
        failing = (played.acted & ~played.finite).any(axis=1)
        # Observations after non-finite outputs are not checked: they may be non-finite as a consequence.
        acted = played.acted & (failing.cumsum() - failing == 0)[:, None]
        steps, slots = acted.nonzero()
        where = lambda row: self._jax_env.where(int(slots[row]), DEFAULT_AGENT)  # noqa: E731
        space, rows = self._policy.observation_space, trees.index(played.obs, acted)
        obs = self._jax_env.checks.columns(space, rows, len(slots), where)
        self._policy.check_masks(obs)
        finite = played.finite[acted]
        if not finite.all():
            raise self._not_finite(int(slots[finite.argmin()]))
        if self._filter.active:
            for rows in np.split(np.arange(len(slots)), np.bincount(steps).cumsum()[:-1]):
                self._moments.add(slots[rows], trees.index(obs, rows))
        rewards, counted = np.zeros(acted.shape), np.zeros(acted.shape)
        rewards[acted] = checks.reward_column(played.rewards[acted], where)
        counted[acted] = self._counted(rewards[acted])
        self._returns += counted.sum(axis=0)
        self._episodes["reward"][self._everyone] += rewards.sum(axis=0)
        self._episodes["length"][self._everyone] += acted.sum(axis=0)
        ended = played.over.any(axis=0).nonzero()[0]
        self._jax_env.checks.polled(ended)
        self._end(ended)
        if not self._progress.is_over:
            self._begin_episodes(ended)

    def _play_steps(self) -> _Played:
        shape = self._policy.action_space.shape
        noise = None
        if amount := self._progress.request.action_noise:
            assert shape is not None
            drawn = np.stack([self._noise.next(self._everyone, shape) for _ in range(_STEPS)])
            noise = np.float32(amount) * drawn
        moments, extra = self._filter.moments(), self._policy.extra
        blocks = self._parts(self._jax_env.running, self._plays, noise)
        played = [
            self._play_block(params, extra, *block, moments)
            for params, block in zip(self._acting.blocks, blocks, strict=True)
        ]
        self._jax_env.running, rows = self._joined(played, self._jax_env.running)
        return jax.tree.map(np.asarray, rows)

    def _traced_steps(
        self, params: Any, extra: Any, running: EpisodeState, plays: jax.Array, noise: Any, moments: Any
    ) -> tuple[EpisodeState, _Played]:
        """Plays T = `_STEPS` steps in the slots of one block; traced by JAX. `noise` is [T, BLOCK, ...], or None."""
        functions, action_map = self._jax_env.functions, self._runner.action_map

        def step(carry: tuple[EpisodeState, jax.Array], noise: Any) -> tuple[tuple[EpisodeState, jax.Array], _Played]:
            running, plays = carry
            obs = running.obs[DEFAULT_AGENT]
            actions, finite = self._acting.act_on_block(params, extra, self._filter(moments, obs))
            actions = actions if noise is None else actions + noise
            after, outcome = functions.advance(running, {DEFAULT_AGENT: action_map(actions)})
            over = plays & (outcome.terminated | outcome.truncated)
            return (after, plays & ~over), _Played(obs, outcome.reward[:, 0], plays, over, finite)

        (running, _), played = lax.scan(step, (running, plays), noise, length=_STEPS)
        return running, played


def _parts(running: EpisodeState, plays: jax.Array, noise: Any) -> list[tuple[EpisodeState, jax.Array, Any]]:
    """The rows of each block; copies of the last slot, which are ignored, fill the last block."""
    count = len(plays)
    parts = []
    for first in range(0, count, BLOCK):
        slots = np.arange(first, first + BLOCK)
        chosen = np.minimum(slots, count - 1)
        rows = jax.tree.map(lambda leaf: leaf[chosen], running)  # noqa: B023
        parts.append((rows, plays[chosen] & (slots < count), None if noise is None else noise[:, chosen]))
    return parts


def _joined(played: list[tuple[EpisodeState, _Played]], before: EpisodeState) -> tuple[EpisodeState, _Played]:
    """The state and rows of all slots, joined from the blocks."""
    count = before.draws.shape[0]
    running, rows = zip(*played, strict=True)
    return (
        jax.tree.map(lambda *parts: jnp.concatenate(parts)[:count], *running),
        jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1)[:, :count], *rows),
    )


def play_candidates(request: Candidates, worker: RolloutWorker) -> CandidateReturns:
    """The returns of candidates around the parameters of a worker's policy; the task of `RolloutWorker.perform`."""
    return candidate_player(worker).play(request)


def candidate_player(worker: RolloutWorker) -> CandidatePlayer:
    """The player of candidates of a worker, made at the first call; compiled if the sampler is.

    Raises:
        ConfigError: the sampler is of a user's class, or the parameters of the candidates do not fit into the memory.
        PolicyError: there are several policies.
        PolicyError, EnvError: as for `CandidatePlayer`.
    """
    if _PLAYER in worker.kept:
        return worker.kept[_PLAYER]
    sampler = worker.sampler
    if type(sampler) not in (BlockSampler, RowSampler, CompiledSampler, SimulatorSampler):
        what = "The sampler has no effect: candidates are played by a loop of their own."
        expected = "the default, or RowSampler for environments in JAX that are to be stepped one by one"
        raise ConfigError(what, "config key 'sampler'", type(sampler).__name__).expected(expected, "leave sampler out")
    if len(sampler.runners) > 1:
        raise PolicyError.one_policy_only("config key 'multiagent.policies'", sampler.runners)
    (runner,) = sampler.runners.values()
    player_class = CompiledCandidates if type(sampler) is CompiledSampler else CandidatePlayer
    return worker.kept.setdefault(_PLAYER, player_class(sampler, runner, worker.worker_index))
