"""FlashSAC: soft actor-critic for one update per step, with weights of constant norm and scaled rewards.

Source: Kim et al. (2026), arXiv:2604.04539. All else is as in SAC.

- Actor and critics are residual blocks with batch normalization, whose weights have constant norms (`unit_norm.py`).
  Critics and target critics see (s, a) and (s', a') in one batch, as in CrossQ (Bhatt et al., 2024, arXiv:1902.05605);
  the actor sees s and s' in one batch. Running statistics are used for a', and for the values in the actor's loss.
- Critics are distributions Z over atoms z, and minimize the cross-entropy to the projection of
  r / scale + γ (z - α log π(a'|s')), with the probabilities of the target critic with the smaller mean.
- The scale of rewards is max(std(R), max|R| / v_max), for the discounted sums R of the rewards so far. Each update
  divides by the current scale: replay buffers have the rewards as they were sampled.
- Actor and temperature change in every second gradient step only. The target entropy is that of normals with σ = 0.15.
- Exploration noise stays the same for k steps, with probabilities in proportion to k⁻².

Deviations: the learning rate is constant by default, where the paper halves it linearly over the run (`lr_schedule`);
noise is repeated for each trajectory separately.

With plain layers in the place of residual blocks (`residual_blocks=False`) FlashSAC is close to XQC, Palenicek et al.
(2025), arXiv:2509.25174; `rollax docs algorithms` has settings for XQC.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import lax
from pydantic import Field

from rollax.algorithms.loss_terms import critic_statistics
from rollax.algorithms.sac import SAC, SACConfig, SACTrainer
from rollax.batch import Columns, SampleBatch
from rollax.config import NotIn
from rollax.config.replay_groups import OF_SEQUENCES
from rollax.core.running_statistics import RunningMoments
from rollax.errors import ConfigError
from rollax.models.actor_with_critics import (
    ActorWithCritics,
    joined,
    make_actor,
    make_critic,
    make_critics,
    values_of_both,
)
from rollax.models.config import MOST_LAYERS, ModelConfig, Width
from rollax.models.distributions.factory import check_continuous
from rollax.models.outputs import Outputs
from rollax.models.unit_norm import UnitActionValue, UnitActor, with_unit_norms
from rollax.ops.actor_critic import entropy_of_normals, reward_scale
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.q_learning import categorical_cross_entropy, lowest_distribution, projected
from rollax.policy import gradient_transforms as optimizers
from rollax.policy.projected_optimizer import with_projection
from rollax.policy.running_returns import RunningReturns
from rollax.policy.size_checks import check_layers
from rollax.policy.targets import polyak_average
from rollax.policy.update_plan import UpdatePlan

_NEXT_ACTIONS, _NEXT_NOISE, _RETURNS = "next_actions", "next_noise", "returns"


_OF_LAYERS = ("fcnet_activation", "normalization", "normalize_before_activation", "residual_blocks")


class FlashSACConfig(SACConfig):
    """The fields of FlashSAC, in addition to the fields of SAC."""

    defaults = {
        "train_batch_size": 512,
        "tau": 0.01,
        "random_steps": 10_000,
        "learning_starts": 10_000,
        "initial_alpha": 0.01,
        "policy_delay": 2,
        "longest_repeat": 16,
    }
    requires = {
        "use_sde": "noise stays the same for several steps anyway: see longest_repeat",
        ("actor_hiddens", "residual_blocks"): {"model.custom_model": None},
        "critic_model": "model has the critics' layers, and actor_hiddens the actor's",
        OF_SEQUENCES: "FlashSAC has no memory",
        tuple(f"model.{name}" for name in _OF_LAYERS): "all layers have relu and batch normalization; the key "
        "residual_blocks chooses blocks or plain layers",
        "target_std": {"target_entropy": None, "alpha_lr": NotIn(0)},
    }
    places = {("num_atoms", "v_max", "target_std", "actor_hiddens", "residual_blocks"): ("policy",)}

    model: ModelConfig = Field(
        default=ModelConfig(fcnet_hiddens=(256, 256)),
        description="fcnet_hiddens are the widths of the critics' residual blocks, all of them equal; the width inside "
        "of a block is four times as large",
    )
    actor_hiddens: Annotated[tuple[Width, ...], Field(min_length=1, max_length=MOST_LAYERS)] = Field(
        default=(128, 128), description="the widths of the actor's residual blocks, all of them equal"
    )
    residual_blocks: bool = Field(
        default=True,
        description="whether actor and critics are residual blocks; false: they are plain layers, as in XQC, whose "
        "widths may differ",
    )

    num_atoms: int = Field(default=101, ge=2, description="K, atoms of the critics' distributions of the return")
    v_max: float = Field(default=5.0, gt=0, description="the atoms are evenly spaced from -v_max to v_max")
    target_std: float = Field(
        default=0.15,
        gt=0,
        description="σ of the normal numbers whose entropy is the target entropy, in units of half an action's range",
    )

    def check(self) -> None:
        super().check()
        if self.is_pretrained or not self.steps_the_env:
            raise ConfigError(
                "FlashSAC divides rewards by a scale that follows from its own experience, and there is none.",
                where=f"config key 'input' ({type(self).__name__})",
                got="recorded data alone" + (", at first" if self.is_pretrained else ""),
                expected="fresh experience beside the data: the source sampler",
                fix="add 'sampler' to the sources, without then_online, or use SAC, CQL or TD3BC",
            )
        for key, widths in (("model.fcnet_hiddens", self.model.fcnet_hiddens), ("actor_hiddens", self.actor_hiddens)):
            if self.model.custom_model is None and not (len(set(widths)) == 1 or (widths and not self.residual_blocks)):
                raise ConfigError(
                    "A residual block adds its output to its input, so all blocks have the same width.",
                    where=f"config key '{key}' ({type(self).__name__})",
                    got=widths,
                    expected="one or more equal widths, such as (256, 256) for two blocks",
                    fix="repeat one width for each block, or set residual_blocks=False for layers of any widths",
                )


class FlashSAC(SAC):
    """A stochastic actor, two categorical critics and a temperature, for continuous actions."""

    config_class = FlashSACConfig
    statistics = (*SAC.statistics, "reward_scale")

    def check_spaces(self) -> None:
        check_continuous(self.action_space, f"action_space of {type(self).__name__}")
        super().check_spaces()
        check_layers(self.config.model, type(self).__name__)

    @cached_property
    def support(self) -> np.ndarray:
        """[K] the atoms."""
        return np.linspace(-self.config.v_max, self.config.v_max, self.config.num_atoms, dtype=np.float32)

    def make_plan(self) -> UpdatePlan:
        config = self.config
        targets = polyak_average(config.tau, ("critics",), projection=with_unit_norms)
        return UpdatePlan(config.train_batch_size, updated_targets=targets, every=self.delayed_parts)

    def make_optimizer(self) -> optax.GradientTransformation:
        one = with_projection(optimizers.adam(self.config), with_unit_norms)
        return optimizers.by_part(dict.fromkeys(self.learning_rates(0.0), one), self.plan.every)

    def make_model(self, rngs: nnx.Rngs) -> ActorWithCritics:
        arguments, outputs = (self.observation_space, self.action_space), self.exploration.num_inputs
        sizes = self.config.model
        if sizes.custom_model is None:
            blocks = sizes.model_copy(update={"fcnet_hiddens": self.config.actor_hiddens})
            residual = self.config.residual_blocks
            actor: Any = UnitActor(self.observation_space, outputs, blocks, residual_blocks=residual, rngs=rngs)
        else:
            actor = make_actor(*arguments, outputs, sizes, rngs=rngs)
        return ActorWithCritics(actor, self.make_critics(rngs), initial_alpha=self.config.initial_alpha)

    def make_critics(self, rngs: nnx.Rngs) -> Any:
        config = self.config
        make_one: Any = make_critic
        if config.model.custom_model is None:
            make_one = partial(UnitActionValue, residual_blocks=config.residual_blocks)
        arguments = self.observation_space, self.action_space, config.model
        one = partial(make_one, *arguments, outputs=config.num_atoms, rngs=rngs)
        return make_critics(self.num_critics, one)

    def make_running_statistics(self) -> dict[str, RunningMoments]:
        return {_RETURNS: RunningReturns(self.config.gamma, column=SampleBatch.REWARDS)}

    def forward(self, model: Any, columns: Columns) -> Outputs:
        """One forward pass; with `new_obs` the batch statistics cover both observations."""
        if SampleBatch.NEW_OBS not in columns:
            return super().forward(model, columns)
        both = joined(columns[SampleBatch.OBS], columns[SampleBatch.NEW_OBS])
        out = super().forward(model, {SampleBatch.OBS: both})
        return out._replace(policy=jnp.split(out.policy, 2)[0])

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        outputs = super().forward(model, {SampleBatch.OBS: batch[SampleBatch.NEW_OBS]}).policy
        actions, logp = self.distribution.sample_and_logp(outputs, batch[_NEXT_NOISE])
        target_model.critics.train()  # normalizes with the statistics of the batch
        logits = self.chosen_critics(values_of_both(target_model.critics, batch, actions)[1], batch)
        support = jnp.asarray(self.support)
        lowest = lowest_distribution(jax.nn.softmax(logits), support)
        rewards, discounts = batch[SampleBatch.REWARDS] / self.reward_scale(coefficients), batch[SampleBatch.DISCOUNTS]
        entropy = -jnp.exp(model.log_alpha[...]) * logp
        target = projected(lowest, rewards + discounts * entropy, discounts, support)
        return {SampleBatch.TARGET: target, _NEXT_ACTIONS: actions}

    def reward_scale(self, coefficients: Columns) -> jax.Array:
        """Returns [] the number by which rewards are divided."""
        returns = coefficients["running_statistics"][_RETURNS]
        return reward_scale(returns["deviation"], returns["largest"], limit=self.config.v_max)

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        return loss, {**statistics, "reward_scale": self.reward_scale(coefficients)}

    def critic_loss(self, model: Any, batch: Columns, mask: jax.Array) -> tuple[jax.Array, dict]:
        target = batch[SampleBatch.TARGET]
        logits, _ = values_of_both(model.critics, batch, batch[_NEXT_ACTIONS])
        losses = jax.vmap(categorical_cross_entropy, in_axes=(None, 0))(target, logits).sum(axis=0)
        values, targets = self.expected_values(lax.stop_gradient(logits)), target @ self.support
        errors = jnp.abs(values - targets).mean(axis=0)
        loss = masked_mean(losses * batch[SampleBatch.WEIGHTS], mask)
        return loss, critic_statistics(values, targets, errors, mask)

    def expected_values(self, outputs: jax.Array) -> jax.Array:
        return jax.nn.softmax(outputs) @ self.support

    def target_entropy(self, obs: Any, logp: jax.Array) -> jax.Array:
        if self.config.target_entropy is not None:
            return super().target_entropy(obs, logp)
        return jnp.full_like(logp, entropy_of_normals(self.config.target_std, self.distribution.num_noise))


class FlashSACTrainer(SACTrainer):
    """FlashSAC: soft actor-critic for one update per step, with weights of constant norm and scaled rewards.

    Source: Kim et al. (2026), arXiv:2604.04539. Its config is `FlashSACConfig`.
    """

    name = "FlashSAC"
    config_class = FlashSACConfig
    policy_class = FlashSAC
