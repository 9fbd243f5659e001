"""DQN: deep Q-learning, with the components of Rainbow as switches; and Rainbow, which has them all.

Source: Mnih et al. (2015), doi:10.1038/nature14236. Double Q-learning: van Hasselt et al. (2016), arXiv:1509.06461;
dueling streams: Wang et al. (2016), arXiv:1511.06581; prioritized replay: Schaul et al. (2016), arXiv:1511.05952;
n-step targets: Sutton (1988); distributions of returns: Bellemare et al. (2017), arXiv:1707.06887; noisy layers:
Fortunato et al. (2018), arXiv:1706.10295; all of them: Hessel et al. (2018), arXiv:1710.02298. Deviations: Adam instead
of RMSProp; the value after a time limit is bootstrapped; targets are computed without noise; all sub-environments of
one acting call share one draw of noise; β of prioritized replay is constant. With memory, DQN learns from sequences of
`max_seq_len` rows with stored states, as R2D2: Kapturowski et al. (2019), "Recurrent experience replay in distributed
reinforcement learning"; the other parts of R2D2 are `burn_in`, `overlap`, `priority_eta` and `use_h_function`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from pydantic import Field

from rollax.algorithms.action_values import ActionValues
from rollax.algorithms.exploration_bonus import ExplorationBonus
from rollax.algorithms.hindsight import Hindsight
from rollax.algorithms.replay_learning import ReplayLearning
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, Fragment, SampleBatch
from rollax.config import NotIn
from rollax.config.groups import ExplorationBonusFields
from rollax.config.off_policy_groups import HindsightFields, QLearningFields
from rollax.config.replay_groups import ReplayFields, SequenceFields
from rollax.core.schedules import Schedule
from rollax.errors import ConfigError
from rollax.models.config import MOST_LAYERS, Width
from rollax.models.outputs import Outputs
from rollax.models.q_network import CustomQNetwork, QNetwork, expected_values, logits_of, make_q_network
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.q_learning import (
    categorical_cross_entropy,
    categorical_entropy,
    chosen,
    huber,
    projected,
    q_target,
    rescaled,
    unscaled,
)
from rollax.optimizers.sync_replay import SyncReplayOptimizer
from rollax.policy.exploration import Exploration
from rollax.policy.exploration.epsilon_greedy import EpsilonGreedy, SoftQ, ValueExploration
from rollax.policy.exploration.parameter_noise import ParameterNoise, epsilon_distance, softmax_distance
from rollax.policy.targets import periodic_copy
from rollax.policy.update_plan import UpdatePlan

EPSILON = ("initial_epsilon", "final_epsilon", "epsilon_timesteps", "epsilon_schedule")
GREEDY = {"exploration": ("EpsilonGreedy", "ParameterNoise"), "noisy": False}
"""Config keys that ε-greedy exploration requires, with their values."""


class DQNConfig(SequenceFields, ExplorationBonusFields, HindsightFields, QLearningFields, ReplayFields):
    """The fields of DQN, in addition to the fields that all Q-learning shares."""

    requires = {
        ("initial_epsilon", "epsilon_timesteps", "final_epsilon"): {**GREEDY, "epsilon_schedule": None},
        "epsilon_schedule": GREEDY,
        ("v_min", "v_max"): {"num_atoms": NotIn(1)},
        "distribution_error": {"num_atoms": NotIn(1), "prioritized_replay": True},
        ("hiddens", "dueling"): {"model.custom_model": None},
        "sigma0": {"noisy": True, "model.custom_model": None},
        "use_h_function": {"num_atoms": 1},
        "h_function_epsilon": {"use_h_function": True},
        "temperature": {"exploration": "SoftQ"},
        "parameter_noise": {"exploration": "ParameterNoise"},
    }
    places = {
        (
            *("dueling", "hiddens", "noisy", "sigma0"),
            *("num_atoms", "v_min", "v_max", "distribution_error", "use_h_function", "h_function_epsilon"),
        ): ("policy",),
    }
    initial_values = {"sigma0": (), "parameter_noise": ("exploration",)}

    dueling: bool = Field(default=True, description="whether state values and advantages have separate streams")
    hiddens: tuple[Width, ...] = Field(
        default=(), max_length=MOST_LAYERS, description="widths of the hidden layers of each stream"
    )
    num_atoms: int = Field(
        default=1, ge=1, le=2**16, description="K, number of atoms of a distribution of returns; 1 learns only the mean"
    )
    v_min: float = Field(default=-10.0, description="return of the first atom")
    v_max: float = Field(default=10.0, description="return of the last atom")
    distribution_error: Literal["divergence", "cross_entropy"] = Field(
        default="divergence",
        description="error of a row in prioritized replay with num_atoms > 1: divergence, the KL divergence of the "
        "target from the prediction; cross_entropy, that plus the entropy of the target",
    )
    use_h_function: bool = Field(
        default=False, description="whether the model's values are h(Q), on a scale on which large returns differ less"
    )
    h_function_epsilon: float = Field(default=1e-3, ge=0, description="ε of h(x) = sign(x) · (√(|x| + 1) - 1) + ε · x")
    noisy: bool = Field(default=False, description="whether the layers of the streams are noisy; ε is then 0")
    sigma0: float = Field(default=0.5, gt=0, description="σ_0, initial scale of the noise of noisy layers")
    exploration: Literal["EpsilonGreedy", "SoftQ", "ParameterNoise"] = Field(
        default="EpsilonGreedy",
        description="EpsilonGreedy takes a random valid action with probability ε; SoftQ samples in proportion to "
        "exp(Q / temperature); ParameterNoise acts greedily with parameters that are perturbed so much that the policy "
        "is as far from the greedy one as ε-greedy",
    )
    temperature: float = Field(default=1.0, gt=0, description="τ of SoftQ")
    parameter_noise: float = Field(default=0.3, gt=0, description="initial σ of ParameterNoise; it adapts")

    def check(self) -> None:
        super().check()
        if self.v_min >= self.v_max:
            raise ConfigError(
                "v_min is not below v_max.",
                where="config keys 'v_min' and 'v_max'",
                got=f"v_min={self.v_min}, v_max={self.v_max}",
                expected="v_min < v_max",
                fix="set them to the lowest and the highest possible return",
            )
        for key, fits, expected in (("n_step", self.n_step == 1, "1"), ("gamma", self.gamma > 0, "more than 0")):
            if self.exploration_bonus is not None and not fits:
                raise ConfigError(
                    "A bonus is for the observation after one step, and a discount of 0 marks the steps without one.",
                    where=f"config key '{key}' ({type(self).__name__}), with exploration_bonus",
                    got=getattr(self, key),
                    expected=expected,
                    fix=f"change {key}, or leave exploration_bonus out",
                )
        if self.exploration_bonus is not None and (self.is_pretrained or not self.steps_the_env):
            raise ConfigError(
                "Bonuses are for exploration, and their scale follows from fresh experience: there is none.",
                where=f"config key 'exploration_bonus' ({type(self).__name__})",
                got="recorded data alone" + (", at first" if self.is_pretrained else ""),
                expected="fresh experience",
                fix="leave exploration_bonus out, or add 'sampler' to the sources in input, without then_online",
            )


class DQN(Hindsight, ReplayLearning, ActionValues, ExplorationBonus):
    """Values of discrete actions, trained on targets from a target network."""

    config_class = DQNConfig

    @cached_property
    def support(self) -> np.ndarray | None:
        """The returns of the atoms; None if the values are plain numbers."""
        config = self.config
        if config.num_atoms == 1:
            return None
        return np.linspace(config.v_min, config.v_max, config.num_atoms, dtype=np.float32)

    def make_plan(self) -> UpdatePlan:
        config = self.config
        return UpdatePlan(config.train_batch_size, updated_targets=periodic_copy(config.target_network_update_freq))

    def epsilon(self) -> Callable[[float], float]:
        """Returns timestep -> ε."""
        return Schedule(0.0) if self.config.noisy else self.config.epsilon()

    def make_exploration(self) -> Exploration:
        return self.exploration_with(self.epsilon())

    def exploration_with(self, epsilon: Callable[[float], float]) -> Exploration:
        """Returns the exploration with this ε, a function of the timestep."""
        config, space = self.config, self.discrete
        if config.exploration == "SoftQ":
            return SoftQ(space, config.temperature)
        if config.exploration == "EpsilonGreedy":
            return EpsilonGreedy(space, epsilon)
        # The noise changes actions as much as ε-greedy would.
        return ParameterNoise(
            ValueExploration(space),
            softmax_distance,
            lambda timestep: epsilon_distance(epsilon(timestep), int(space.n)),
            config.parameter_noise,
        )

    def make_model(self, rngs: nnx.Rngs) -> QNetwork | CustomQNetwork:
        config = self.config
        model = make_q_network(
            self.observation_space,
            self.discrete,
            config.model,
            hiddens=config.hiddens,
            dueling=config.dueling,
            support=self.support,
            sigma0=config.sigma0 if config.noisy else None,
            rngs=rngs,
        )
        return self.with_distillation(model, rngs)

    def _logits(self, out: Outputs) -> jax.Array:
        """[B, actions, atoms] the logits among the model's outputs; PolicyError if there are none."""
        return logits_of(out, f"{self.label}, make_model")

    def add_bonuses(self, fragment: Fragment, bonuses: np.ndarray) -> None:
        """Does nothing: the bonus of a row shrinks while the row is stored, so `targets` computes it for drawn rows."""

    def next_observations(self, batch: Columns) -> Any:
        if SampleBatch.TARGET_ROWS not in batch:
            return super().next_observations(batch)
        return jax.tree.map(lambda column: column[batch[SampleBatch.TARGET_ROWS]], batch[SampleBatch.OBS])

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        target = self.next_outputs(target_model, batch)
        selector = self.next_outputs(model, batch).policy if self.config.double_q else target.policy
        rewards, discounts = batch[SampleBatch.REWARDS], batch[SampleBatch.DISCOUNTS]
        if self.gives_bonuses:
            bonuses = self.bonuses_of(model, self.next_observations(batch), coefficients)
            rewards = rewards + self.config.bonus_coeff * jnp.where(discounts > 0, bonuses, 0.0)
        if self.support is not None:
            best = jnp.argmax(selector, axis=-1)
            probabilities = jax.nn.softmax(self._logits(target)[jnp.arange(len(best)), best], axis=-1)
            return {SampleBatch.TARGET: projected(probabilities, rewards, discounts, jnp.asarray(self.support))}
        if not self.config.use_h_function:
            return {SampleBatch.TARGET: q_target(rewards, discounts, target.policy, selector)}
        epsilon = self.config.h_function_epsilon  # the values of the models are h(Q)
        values = q_target(rewards, discounts, unscaled(target.policy, epsilon), selector)
        return {SampleBatch.TARGET: rescaled(values, epsilon)}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        actions = self.indices(batch[SampleBatch.ACTIONS])
        logits = self._logits(out)
        # The logits are unmasked, because a recorded action may be one that the action mask forbids.
        values = chosen(expected_values(logits, self.support), actions)
        target = batch[SampleBatch.TARGET]
        if self.support is None:
            errors = values - target
            losses = huber(errors)
        else:
            losses = categorical_cross_entropy(target, logits[jnp.arange(len(actions)), actions])
            errors = losses
            if self.config.distribution_error == "divergence":
                errors = losses - categorical_entropy(target)
            target = target @ jnp.asarray(self.support)
        mask = self.learned_rows(batch, mask)
        loss = masked_mean(losses * batch[SampleBatch.WEIGHTS], mask)
        stats = {
            "q_loss": loss,
            "mean_q": masked_mean(values, mask),
            "mean_target": masked_mean(target, mask),
            "mean_td_error": masked_mean(jnp.abs(values - target), mask),
            SampleBatch.TD_ERROR: self.errors_for_replay(errors, mask, batch),
        }
        # A buffer has no observation after a termination, so such a row has no loss of the predictor.
        return self.with_predictor_loss(
            loss, stats, model, batch, mask * (batch[SampleBatch.DISCOUNTS] > 0), coefficients
        )


class DQNTrainer(Trainer):
    """DQN: deep Q-learning, with the components of Rainbow as switches.

    Source: Mnih et al. (2015), doi:10.1038/nature14236. Its config is `DQNConfig`.
    """

    name = "DQN"
    config_class = DQNConfig
    policy_class = DQN
    optimizer_class = SyncReplayOptimizer


class RainbowConfig(DQNConfig):
    """The fields of DQN with the defaults of the paper's Table 1, but without hidden layers in the dueling streams."""

    defaults = {
        "n_step": 3,
        "num_atoms": 51,
        "noisy": True,
        "prioritized_replay": True,
        "prioritized_replay_alpha": 0.5,
        "lr": 6.25e-5,
        "adam_epsilon": 1.5e-4,
        "learning_starts": 20_000,
        "buffer_size": 1_000_000,
        "target_network_update_freq": 2000,
    }


class Rainbow(DQN):
    """DQN with other defaults."""

    config_class = RainbowConfig


class RainbowTrainer(DQNTrainer):
    """Rainbow: DQN with all of its extensions.

    Source: Hessel et al. (2018), arXiv:1710.02298. Its config is `RainbowConfig`.
    """

    name = "Rainbow"
    config_class = RainbowConfig
    policy_class = Rainbow
