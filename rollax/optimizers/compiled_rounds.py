"""`CompiledRounds`: many rounds of sampling and learning in one compiled call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rollax.batch import SampleBatch
from rollax.config import TrainerConfig
from rollax.core.introspection import overrides
from rollax.core.running_statistics import RunningMoments
from rollax.core.spaces import ACTION_MASK, choices
from rollax.policy.gradient_steps import Variables, means_of_last_epoch
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.running_returns import RunningReturns
from rollax.rollout.callbacks import Callbacks
from rollax.rollout.compiled_policy import PolicyColumns, Statistics
from rollax.rollout.compiled_sampler import Carry, CompiledSampler
from rollax.rollout.compiled_sampler import Rows as Played
from rollax.rollout.simulator_sampler import SimulatorSampler
from rollax.rollout.worker import RolloutWorker

_OF_POLICY = ("compute_values", "learn_on_batch", "prepare_rows", "postprocess_rows", "postprocess_trajectory")


class Round(NamedTuple):
    """What the host draws for a round.

    Args:
        noise: the random numbers of the actions, from `TracedActing.draw_noise`; None for greedy actions.
        learning: the random numbers of the updates.
        coefficients: the coefficients of the loss.
    """

    noise: Any
    learning: Any
    coefficients: Any


class Learned(NamedTuple):
    """The updates of a round: their number, how many were planned and how many each epoch has, and the statistics.

    `sums` and `counts` are as in the results of `GradientSteps.run_plan`.
    """

    taken: Any
    planned: Any
    per_epoch: Any
    sums: Any
    counts: Any

    def means(self) -> dict[str, float]:
        """The statistics of the last epoch that began."""
        last = min(int(self.taken), int(self.planned) - 1)
        return means_of_last_epoch(self.sums, self.counts, last=last, per_epoch=int(self.per_epoch))

    def of(self, number: int) -> Learned:
        """The updates of one of K rounds, whose arrays are [K]."""
        return jax.tree.map(lambda part: part[number], self)


class Loop(NamedTuple):
    """The state between rounds.

    Args:
        number: the number of rounds so far.
        made: the number of rounds up to the first round that is not finite, inclusive; all rounds if all are finite.
        variables: the variables after the last finite round.
        stored: the rows that updates draw from; () if they learn only from the rows of the round.
        statistics: the running statistics of the policy.
        outcomes: rewards [K, N, A, T] and flags [K, N, T] of K rounds, without columns.
        learned: the updates, [K].
        finite: whether observations, outputs and updates of all rounds were finite.
    """

    number: Any
    made: Any
    variables: Variables
    carry: Carry
    stored: Any
    statistics: Statistics
    outcomes: Played
    learned: Learned
    finite: Any


Call = Callable[[Variables, Carry, Any, Statistics, Round, np.int32, np.int32], Loop]
"""`traced_run`, compiled: (variables, carry, stored, statistics, rounds, taken, count) -> the last state."""


class CompiledRounds(ABC):
    """Samples and learns in compiled calls. A round samples T steps with the weights before the round, then learns.

    With several devices, each device steps its share of the sub-environments, and keeps their rows. Each device has
    the variables, and computes the gradients of its share of the rows of a minibatch.

    Args:
        sampler: the sampler of the environment in JAX.
        policy: the only policy of the sampler.
        length: T, the number of steps of each sub-environment in a round.
    Attributes:
        made: the number of rounds of the last call of `called`, including a last round that is not finite.
        call: `traced_run`, compiled, or for a simulator `_stepped_run`. The third argument is donated: its memory is
            reused for the result.
    """

    def __init__(self, sampler: CompiledSampler, policy: JaxPolicy, length: int) -> None:
        self.sampler, self.policy, self.length = sampler, policy, length
        ((self.policy_id, self.compiled),) = sampler.compiled.items()
        self.places = sampler.env.num_envs * len(self.compiled.agents)
        self.devices = policy.learner.devices
        self.made = 0
        self.call: Call = jax.jit(self.traced_run, donate_argnums=2)
        if isinstance(sampler, SimulatorSampler):
            self._learn = jax.jit(self._traced_update, donate_argnums=1)
            self.call = self._stepped_run

    @property
    def rows_of_round(self) -> int:
        """The number of rows that a round samples."""
        return self.length * self.places

    @property
    def env_steps_of_round(self) -> int:
        """The number of environment steps of a round."""
        return self.length * self.sampler.env.num_envs

    def draw_noise(self) -> Any:
        """The random numbers of the actions of a round; None for greedy actions."""
        return self.compiled.draw_noise(self.length) if self.sampler.explore else None

    def _of_policy(self, variables: Variables, carry: Carry, noise: Any) -> tuple[Any, ...]:
        """The arguments of `CompiledSampler.roll`, by policy."""
        noise = {self.policy_id: noise} if noise is not None else None
        return {self.policy_id: variables.params}, {self.policy_id: variables.extra}, carry, noise

    def called(self, stored: Any, rounds: Sequence[Round], taken: int, at_once: int) -> Loop:
        """The state after some rounds, at most `at_once`; numbers, outcomes and updates are in NumPy.

        `advance` brings policy and sampler to this state. After an interrupted call, the next call begins new episodes.

        Args:
            stored: see `Loop`; donated.
            rounds: the numbers drawn for each round, at most `at_once` rounds.
            taken: the number of steps of each sub-environment before the first round.
            at_once: the number of rounds for which the call is compiled.
        """
        self.made = 0
        carry, variables = self.devices.by_row(self.sampler.begun()), self.policy.learner.everywhere()
        statistics = self.compiled.statistics(self.sampler.trajectories_of(self.policy_id))
        statistics = self.devices.everywhere(statistics)
        padded = [*rounds, *[rounds[-1]] * (at_once - len(rounds))]
        stacked = jax.tree.map(lambda *parts: np.stack(parts), *padded)
        found = self.call(variables, carry, stored, statistics, stacked, np.int32(taken), np.int32(len(rounds)))
        parts = found.number, found.made, found.outcomes, found.learned, found.finite
        number, made, outcomes, learned, finite = jax.device_get(parts)
        self.made = int(made)
        return found._replace(number=int(number), made=self.made, outcomes=outcomes, learned=learned, finite=finite)

    def advance(self, found: Loop) -> None:
        """Brings policy and sampler to a state that `called` has returned."""
        self.policy.learner.assign(found.variables, int(found.variables.num_updates))
        outcomes = jax.tree.map(lambda part: _joined(part[: self.made]), found.outcomes)
        played = self.sampler.played(found.carry, outcomes)
        self.compiled.add_to_returns(played)

    def _stepped_run(
        self,
        variables: Variables,
        carry: Carry,
        stored: Any,
        statistics: Statistics,
        rounds: Round,
        taken: np.int32,
        count: np.int32,
    ) -> Loop:
        """As `traced_run`, for an environment that is not compiled: a compiled call for each step and each update."""
        outcomes, learned, finite, made = [], [], True, 0
        while finite and made < count:
            drawn = jax.tree.map(lambda part, at=made: part[at], rounds)
            arguments = self._of_policy(variables, carry, drawn.noise)
            carry, played = self.sampler.roll(*arguments, steps=self.length, learning=frozenset())
            statistics, (after, stored, of_round, sound) = self._learn(
                variables, stored, statistics, played, drawn, np.int32(taken + made * self.length)
            )
            outcomes.append(played._replace(columns={}))
            learned.append(of_round)
            made, finite = made + 1, bool(sound)
            variables = after if finite else variables

        def stacked(parts: list[Any]) -> Any:
            return jax.tree.map(lambda *of_rounds: np.stack(of_rounds), *jax.device_get(parts))

        return Loop(made, made, variables, carry, stored, statistics, stacked(outcomes), stacked(learned), finite)

    # Traced by JAX.

    @abstractmethod
    def traced_learning(
        self, variables: Variables, stored: Any, played: Played, learning: Any, coefficients: Any, taken: jax.Array
    ) -> tuple[Variables, Any, Learned, jax.Array]:
        """`(variables, stored, learned, finite)` after the updates of a round, whose rows are `played`.

        `taken` is the number of steps of each sub-environment before the round.
        """

    def _traced_update(
        self, variables: Variables, stored: Any, statistics: Statistics, played: Played, drawn: Round, taken: jax.Array
    ) -> tuple[Statistics, tuple[Variables, Any, Learned, jax.Array]]:
        """The running statistics after a round, and the result of `traced_learning` with coefficients from them."""
        terminated, truncated = self.traced_flags(played)
        statistics = self.compiled.add_rewards(statistics, self.traced_rewards(played), terminated | truncated)
        coefficients = dict(drawn.coefficients)
        if statistics:  # as in `ModelPolicy.coefficients_of_statistics`
            coefficients["running_statistics"] = {name: one.summary() for name, one in statistics.items()}
        learned = self.traced_learning(variables, stored, played, drawn.learning, coefficients, taken)
        return self.devices.replicated(statistics), learned

    def traced_run(
        self,
        variables: Variables,
        carry: Carry,
        stored: Any,
        statistics: Statistics,
        rounds: Round,
        taken: jax.Array,
        count: jax.Array,
        ends_early: bool = True,
    ) -> Loop:
        """Runs `count` of the K drawn rounds.

        If numbers are not finite, the loop ends early. With `ends_early=False` it goes on, for other runs of a
        `jax.vmap`; `carry` and `stored` are then of no use.
        """
        number, env = len(jax.tree.leaves(rounds)[0]), self.sampler.env
        flags = jnp.zeros((number, env.num_envs, self.length), bool)
        outcomes = Played(jnp.zeros((number, env.num_envs, len(env.agents), self.length)), flags, flags, {})

        def one(
            variables: Variables, carry: Carry, stored: Any, statistics: Statistics, at: jax.Array
        ) -> tuple[Any, ...]:
            drawn = jax.tree.map(lambda part: jnp.asarray(part)[at], rounds)
            arguments = self._of_policy(variables, carry, drawn.noise)
            carry, played = self.sampler.traced_rollout(*arguments, steps=self.length, learning=frozenset())
            statistics, learned = self._traced_update(
                variables, stored, statistics, played, drawn, taken + at * self.length
            )
            return self.devices.share_rows(carry), statistics, played._replace(columns={}), learned

        # Needed twice, for the shapes of the statistics and inside of the loop.
        one = jax.jit(one, inline=True)

        def next_round(loop: Loop) -> Loop:
            carry, statistics, found, (variables, stored, learned, finite) = one(
                loop.variables, loop.carry, loop.stored, loop.statistics, loop.number
            )
            outcomes = jax.tree.map(lambda whole, part: whole.at[loop.number].set(part), loop.outcomes, found)
            goes_on, finite = loop.finite, loop.finite & finite
            # The updates of a round with numbers that are not finite are undone here, and made again on the host.
            variables = jax.tree.map(lambda new, old: jnp.where(finite, new, old), variables, loop.variables)
            learned = jax.tree.map(lambda whole, part: whole.at[loop.number].set(part), loop.learned, learned)
            made = loop.made + goes_on
            return Loop(loop.number + 1, made, variables, carry, stored, statistics, outcomes, learned, finite)

        *_, (_, _, shapes, _) = jax.eval_shape(one, variables, carry, stored, statistics, jnp.int32(0))
        nothing = jax.tree.map(lambda leaf: jnp.zeros((number, *leaf.shape), leaf.dtype), shapes)
        zero, true = jnp.int32(0), jnp.array(True)
        start = Loop(zero, zero, variables, carry, stored, statistics, outcomes, nothing, true)

        def goes_on(loop: Loop) -> jax.Array:
            return (loop.number < count) & (loop.finite if ends_early else True)

        loop = lax.while_loop(goes_on, next_round, start)
        return loop._replace(variables=self.devices.replicated(loop.variables))

    def traced_rewards(self, played: Played) -> jax.Array:
        """[R, T] the rewards of the policy's rows, float32, clipped as the config says."""
        rewards = played.rewards[:, self.compiled.places].reshape(-1, self.length)
        return self.compiled.runner.reward_map(rewards).astype(jnp.float32)

    def traced_flags(self, played: Played) -> tuple[jax.Array, jax.Array]:
        """[R, T] whether an episode terminated, and whether it was truncated, with each row."""
        agents = len(self.compiled.agents)
        terminated, truncated = (jnp.repeat(flag, agents, axis=0) for flag in (played.terminateds, played.truncateds))
        return terminated, truncated

    def traced_sound(self, played: Played) -> jax.Array:
        """Whether the numbers of a round are finite, and its masks allow actions; else the host checks the round."""
        columns: PolicyColumns = played.columns[self.policy_id]
        chosen = self.policy.actor.fetches_of(columns.packed)[self.policy.checked_fetch]
        obs = columns.inputs[SampleBatch.OBS], columns.new_inputs[SampleBatch.OBS]
        numbers = jax.tree.leaves((obs, chosen, played.rewards))
        floats = [leaf for leaf in numbers if jnp.issubdtype(leaf.dtype, jnp.floating)]
        sound = jnp.stack([jnp.isfinite(leaf).all() for leaf in floats]).all()
        if self.policy.algorithm.masks.present:
            widths = choices(self.policy.action_space)
            parts = jnp.split(obs[0][ACTION_MASK] > 0, np.cumsum(widths)[:-1], axis=-1)
            sound &= jnp.stack([part.any(axis=-1).all() for part in parts]).all()
        return sound


def counted_steps(sampler: CompiledSampler, config: TrainerConfig) -> int:
    """The steps of a fragment of all sub-environments, of the kind that `count_steps_by` names."""
    env, by_env = sampler.env, config.count_steps_by == "env_steps"
    return sampler.fragment_length * env.num_envs * (1 if by_env else len(env.agents))


def rounds_at_once(config: TrainerConfig, steps: int, *most: int) -> int:
    """How many rounds of `steps` counted steps a call makes: all of an iteration, at most the smallest of `most`."""
    return max(min(-(-config.timesteps_per_iteration // steps), *most), 1)


def _joined(part: np.ndarray) -> np.ndarray:
    """[K, N, ..., T] -> [N, ..., K · T]."""
    moved = np.moveaxis(part, 0, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def why_only_on_host(worker: RolloutWorker) -> str:
    """Why a worker's rows leave the device before its policy learns from them; empty if they may stay there."""
    sampler = worker.sampler
    if type(sampler) not in (CompiledSampler, SimulatorSampler) or len(worker.policies) > 1:
        return "several policies, or an environment whose observations come to the host in each step"
    assert isinstance(sampler, CompiledSampler)
    ((policy_id, policy),) = worker.policies.items()
    if not isinstance(policy, JaxPolicy) or policy_id not in sampler.compiled:
        return "a policy that is not in JAX, or has no agent"
    trained = worker.config.multiagent.policies_to_train
    reasons = (
        (trained is not None and policy_id not in trained, "a policy that does not learn"),
        (bool(worker.runners[policy_id].filter.leaves), "config key 'observation_filter'"),
        (policy.memory.present, "a model with memory"),
        (sampler.env.num_envs % policy.learner.devices.count > 0, "sub-environments that the devices cannot share"),
        (type(sampler) is SimulatorSampler and policy.learner.devices.count > 1, "several devices, and one simulator"),
        (policy.on_new_variables is not None, "shared variables"),
        (policy.exploration.overrides("after_fragment"), "exploration that adapts to fragments"),
        (any(overrides(type(policy), JaxPolicy, name) for name in _OF_POLICY), "a policy with methods of its own"),
        (overrides(type(worker.callbacks), Callbacks, "on_sample_end"), "callback on_sample_end"),
    )
    found = next((reason for applies, reason in reasons if applies), "")
    return found or _why_statistics_only_on_host(policy.running_statistics)


def _why_statistics_only_on_host(moments: Mapping[str, RunningMoments]) -> str:
    """Why running statistics cannot be updated on the device; empty if they can."""
    for name, one in moments.items():
        if type(one) is not RunningReturns or one.column != SampleBatch.REWARDS:
            return f"running statistics {name!r}, which are not of sampled rewards"
    return ""
