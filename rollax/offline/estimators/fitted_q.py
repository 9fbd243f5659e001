"""Fitted Q evaluation: the action values of a target policy, learned from logged transitions."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from gymnasium import spaces

from rollax.batch import SampleBatch
from rollax.core import runtime, trees
from rollax.core.memory import check_fits
from rollax.core.numbers import is_finite, is_number, is_whole
from rollax.errors import PolicyError
from rollax.models.actor_with_critics import ActionValue
from rollax.models.config import MOST_LAYERS, ModelConfig
from rollax.models.q_network import QNetwork
from rollax.offline.estimators.episodes import LoggedEpisodes
from rollax.offline.estimators.target_policy import TargetPolicy, in_parts
from rollax.offline.formats.common import check_setting
from rollax.ops.mean_over_rows import masked_mean
from rollax.policy.learner import Learner
from rollax.policy.size_checks import check_layers_fit
from rollax.policy.split_model import SplitModel
from rollax.policy.targets import polyak_average
from rollax.policy.update_plan import Minibatches, UpdatePlan, acting_bucket, part_of

log = logging.getLogger("rollax.offline.estimators")
_UPDATES_AT_ONCE = 2000
_NEXT_WEIGHTS, _NEXT_ACTIONS = "next_weights", "next_actions"


class ActionValues(Protocol):
    """Q and V of a target policy, for direct and doubly robust estimates."""

    def q(self, obs: trees.Tree, actions: trees.Tree) -> np.ndarray:
        """[N] Q(s, a) of N raw observations, and actions in the scale of the policy."""
        ...

    def v(self, obs: trees.Tree) -> np.ndarray:
        """[N] V(s) = Σ_a π(a | s) Q(s, a)."""
        ...


@dataclass(frozen=True)
class FQEConfig:
    """Settings of fitted Q evaluation.

    Attributes:
        hiddens: widths of the network's layers; without layers, values of one-hot observations are a table.
        updates: gradient steps.
        batch_size: rows of one step.
        lr: initial step size of Adam. Every 2000 updates the step size becomes lr times the share of the updates that
            are left, so that noise averages out in the last steps.
        tau: Polyak coefficient τ of the target network; None: 5 / ((1 - γ) · updates), clipped to [0.01, 0.2]. Values
            contain rewards about 1 / (1 - γ) steps ahead; each update of the targets carries rewards one step back.
        samples: number of actions drawn from the target policy for each state, if actions are a Box; one if greedy.
        seed: seed of weights and minibatches. Actions are drawn with the random numbers of the policy.
    """

    hiddens: Sequence[int] = (128, 128)
    updates: int = 10_000
    batch_size: int = 256
    lr: float = 1e-3
    tau: float | None = None
    samples: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        hiddens = isinstance(self.hiddens, Sequence) and len(self.hiddens) <= MOST_LAYERS
        hiddens = hiddens and all(is_whole(width) and width > 0 for width in self.hiddens)
        tau = self.tau
        for name, fits, expected in (
            ("hiddens", hiddens, f"at most {MOST_LAYERS} whole numbers, 1 or more"),
            ("updates", is_whole(self.updates) and self.updates > 0, "a whole number, 1 or more"),
            ("batch_size", is_whole(self.batch_size) and self.batch_size > 0, "a whole number, 1 or more"),
            ("samples", is_whole(self.samples) and self.samples > 0, "a whole number, 1 or more"),
            ("lr", is_finite(self.lr) and self.lr > 0, "a number above 0"),
            ("tau", tau is None or (is_number(tau) and 0 < tau <= 1), "a number above 0 and up to 1, or None"),
            ("seed", is_whole(self.seed) and self.seed >= 0, "a whole number, 0 or more"),
        ):
            check_setting(f"FQEConfig.{name}", getattr(self, name), fits, expected)

    def target_rate(self, gamma: float) -> float:
        """The Polyak coefficient τ."""
        if self.tau is not None:
            return self.tau
        return min(max(5 / max((1 - gamma) * self.updates, 1e-6), 0.01), 0.2)


@dataclass(frozen=True)
class _QObjective:
    """The squared error of Q; equal objectives share compiled functions."""

    split: SplitModel
    discrete: bool
    tau: float

    optimizer = optax.scale_by_adam()

    @property
    def plan(self) -> UpdatePlan:
        return UpdatePlan(updated_targets=polyak_average(self.tau, sorted(set(map(part_of, self.split.params)))))

    @partial(jax.jit, static_argnums=0)
    def compiled_values(self, params: Any, extra: Any, columns: Mapping[str, Any]) -> jax.Array:
        return self.values(params, extra, columns)

    def values(self, params: Any, extra: Any, columns: Mapping[str, Any]) -> jax.Array:
        network, obs = self.split.merge(params, extra), columns["obs"]
        if "actions" not in columns:
            return network(obs).policy
        count = columns["actions"].shape[1]
        flat = columns["actions"].reshape(-1, *columns["actions"].shape[2:])
        return network(obs, flat).reshape(-1, count)  # the network repeats each observation's features for its actions

    def loss(
        self, params: Any, targets: Any, extra: Any, batch: Mapping[str, Any], mask: jax.Array, coefficients: Any
    ) -> tuple[jax.Array, tuple[dict, Any]]:
        following: dict[str, Any] = {"obs": batch[SampleBatch.NEW_OBS]}
        if _NEXT_ACTIONS in batch:
            following["actions"] = batch[_NEXT_ACTIONS]
            next_values = self.values(targets, extra, following).mean(axis=1)
        else:
            next_values = (self.values(targets, extra, following) * batch[_NEXT_WEIGHTS]).sum(axis=1)
        target = batch[SampleBatch.REWARDS] + batch[SampleBatch.DISCOUNTS] * next_values
        model = self.split.merge(params, extra, learning=True)
        actions = batch[SampleBatch.ACTIONS]
        if self.discrete:
            values = jnp.take_along_axis(model(batch[SampleBatch.OBS]).policy, actions[:, None], axis=1)[:, 0]
        else:
            values = model(batch[SampleBatch.OBS], actions)
        loss = masked_mean(jnp.square(values - target), mask)
        return loss, ({"total_loss": loss}, self.split.extra_of(model))

    def count_rows(self, batch: Mapping[str, Any], mask: jax.Array) -> jax.Array:
        return mask.sum()


class FittedQ:
    """Action values of a target policy by fitted Q evaluation (FQE).

    Minimizes (Q(s, a) - r - γ Σ_a' π(a' | s') Q̄(s', a'))² over the logged transitions, with Q̄ a slowly moving copy.
    At the end of a truncated trajectory, the target is bootstrapped with the value of the last observation.

    Source: Le, Voloshin and Yue (2019), "Batch policy learning under constraints", Algorithm 3, arXiv:1903.08738.
    Deviations: gradient steps with a target network instead of a complete regression in each iteration; values of Box
        actions are means over `samples` actions, drawn from the policy and clipped as for the environment.

    Args:
        target: the policy to evaluate, without memory.
        gamma: γ.
    Raises:
        PolicyError: a policy with memory, or with actions that are neither Discrete nor a Box.
        ConfigError: a layer does not fit into the memory.
    """

    def __init__(self, target: TargetPolicy, gamma: float, config: FQEConfig | None = None) -> None:
        self.target, self.gamma, self.config = target, gamma, config or FQEConfig()
        policy = target.runner.policy
        self.check(policy)
        runtime.configure_jax()
        rngs = nnx.Rngs(self.config.seed)
        count = int(policy.action_space.n) if isinstance(policy.action_space, spaces.Discrete) else 1
        check_layers_fit(policy.observation_space, [*self.config.hiddens, count], "FQEConfig.hiddens")
        model_config = ModelConfig(fcnet_hiddens=tuple(self.config.hiddens), fcnet_activation="relu")
        network: Any
        if isinstance(policy.action_space, spaces.Discrete):
            network = QNetwork(policy.observation_space, count, model_config, dueling=False, rngs=rngs)
        else:
            assert isinstance(policy.action_space, spaces.Box)
            network = ActionValue(policy.observation_space, policy.action_space, model_config, rngs=rngs)
        split = SplitModel(network)
        params, extra = split.arrays_of(network)
        self._objective = runtime.first_equal(_QObjective(split, target.is_discrete, self.config.target_rate(gamma)))
        self._learner = Learner(self._objective, params, extra)
        self._rng = np.random.default_rng(self.config.seed)

    def fit(self, episodes: LoggedEpisodes) -> FittedQ:
        """Learns from all transitions; returns this object."""
        config, target = self.config, self.target
        following = episodes.following()
        columns: dict[str, Any] = {
            SampleBatch.OBS: target.filtered(episodes.obs),
            SampleBatch.ACTIONS: self._inputs_of(episodes.actions),
            SampleBatch.REWARDS: episodes.rewards.astype(np.float32),
            SampleBatch.DISCOUNTS: episodes.discounts(self.gamma).astype(np.float32),
            SampleBatch.NEW_OBS: target.filtered(following),
        }
        rows = len(episodes.rewards)
        if target.is_discrete:
            columns[_NEXT_WEIGHTS] = target.probabilities(following).astype(np.float32)
        else:
            columns[_NEXT_ACTIONS] = self._drawn(following)
        columns = trees.pad(columns, acting_bucket(rows))
        planned = min(config.updates, _UPDATES_AT_ONCE) * config.batch_size * 4
        check_fits("The order of the rows of updates", planned, "FQEConfig.batch_size", "lower batch_size")
        for first in range(0, config.updates, _UPDATES_AT_ONCE):
            steps = min(_UPDATES_AT_ONCE, config.updates - first)
            plan = self._rng.integers(rows, size=(steps, config.batch_size), dtype=np.int32)
            rate = config.lr * (1 - first / config.updates)
            learn_rows(self._learner, columns, plan, rate, "fitted Q evaluation")
            log.info("Fitted Q evaluation: %d of %d updates", first + steps, config.updates)
        return self

    def q(self, obs: trees.Tree, actions: trees.Tree) -> np.ndarray:
        given = self._inputs_of(actions)[:, None]
        if self.target.is_discrete:
            return np.take_along_axis(self._rows(obs), given, axis=1)[:, 0]
        return self._rows(obs, given)[:, 0]

    def v(self, obs: trees.Tree) -> np.ndarray:
        if self.target.is_discrete:
            return (self._rows(obs) * self.target.probabilities(obs)).sum(axis=1)
        return self._rows(obs, self._drawn(obs)).mean(axis=1)

    def _drawn(self, obs: trees.Tree) -> np.ndarray:
        """[N, K, *shape] actions of the policy for N raw observations."""
        samples = self.config.samples
        size = trees.length(obs) * samples * math.prod(self.target.runner.policy.action_space.shape or ()) * 4
        check_fits(f"{samples:,} actions for each observation", size, "FQEConfig.samples", "lower samples")
        drawn = self._inputs_of(self.target.sampled(obs, samples))
        return drawn.reshape(trees.length(obs), -1, *drawn.shape[1:])

    def _inputs_of(self, actions: np.ndarray) -> np.ndarray:
        """The network's inputs: indices of Discrete actions, and Box actions as the environment receives them.

        A log may have only the clipped actions, and values beyond the bounds would then be extrapolated.
        """
        runner = self.target.runner
        if isinstance(runner.policy.action_space, spaces.Discrete):
            return np.asarray(actions, np.int32) - np.int32(runner.policy.action_space.start)
        return np.asarray(runner.action_map.received(actions), np.float32)

    def _rows(self, obs: trees.Tree, actions: np.ndarray | None = None) -> np.ndarray:
        """[N, n] values of all actions, or [N, K] values of K actions for each observation."""

        def values(columns: Any) -> np.ndarray:
            count, variables = trees.length(columns), self._learner.variables
            padded = trees.pad({**columns, "obs": self.target.filtered(columns["obs"])}, acting_bucket(count))
            return np.asarray(self._objective.compiled_values(variables.params, variables.extra, padded))[:count]

        columns = {"obs": obs} if actions is None else {"obs": obs, "actions": actions}
        return in_parts(values, columns).astype(np.float64)

    @staticmethod
    def check(policy: Any) -> None:
        """Raises PolicyError if the policy has memory, or actions that are neither Discrete nor a Box."""
        space = policy.action_space
        box = isinstance(space, spaces.Box) and math.prod(space.shape) > 0
        if policy.get_initial_state() or not (box or isinstance(space, spaces.Discrete)):
            got = f"action space {space}{', with memory' if policy.get_initial_state() else ''}"
            raise PolicyError("Fitted Q evaluation does not support this policy.", policy.label, got).expected(
                "Discrete or Box actions, and no memory", "estimate it by 'is', 'pdis', 'wis' or 'wpdis'"
            )


def learn_rows(learner: Learner, columns: trees.Tree, plan: np.ndarray, rate: float, where: str) -> None:
    """Gradient steps of a `Learner` with the learning rate `rate` on the rows `plan` [steps, rows of a step]."""
    batches = Minibatches(plan, len(plan), 0, trees.length(columns))
    update = learner.learn(columns, batches, {"lr": np.float32(rate)}, where=where)
    if update.error is not None:
        raise update.error
