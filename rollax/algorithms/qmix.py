"""QMIX: Q-learning of a joint action value that a mixer computes from the members' values; and VDN, which sums them.

Source: Rashid et al. (2018), arXiv:1803.11485; with `mixer="vdn"` Sunehag et al. (2017), arXiv:1706.05296; with
`mixer=None` independent Q-learning on the group's reward: Tan (1993). Double Q-learning: van Hasselt et al. (2016),
arXiv:1509.06461. Deviations: Adam instead of RMSProp; trajectories longer than `max_seq_len` are split into sequences,
each starting from the recurrent state at the time of acting (with `zero_init_states`, from zeros); without prioritized
replay, the probability of a sequence is proportional to its number of rows; the value after a time limit is
bootstrapped.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from gymnasium import spaces
from pydantic import Field

from rollax.algorithms.replay_learning import ReplayLearning
from rollax.algorithms.trainer import Trainer
from rollax.batch import Columns, SampleBatch
from rollax.config.off_policy_groups import QLearningFields
from rollax.config.replay_groups import ReplayFields, SequenceFields
from rollax.errors import ConfigError, PolicyError
from rollax.models.config import MOST_LAYERS, Width
from rollax.models.group_q_network import UNMASKED, GroupQNetwork, make_group_model
from rollax.models.group_view import GroupView, by_member
from rollax.models.outputs import Outputs
from rollax.ops.mean_over_rows import masked_mean
from rollax.ops.q_learning import chosen
from rollax.optimizers.sync_replay import SyncReplayOptimizer
from rollax.policy.burn_in import after_burn_in
from rollax.policy.exploration import Exploration
from rollax.policy.exploration.epsilon_greedy import EpsilonGreedy, GroupExploration
from rollax.policy.group_masks import GroupMaskChecks
from rollax.policy.mask_checks import refuse_nested_masks
from rollax.policy.targets import periodic_copy
from rollax.policy.update_plan import UpdatePlan


class QMIXConfig(SequenceFields, QLearningFields, ReplayFields):
    """The fields of QMIX, in addition to the fields that all Q-learning shares."""

    defaults = {"train_batch_size": 512, "training_intensity": 0.0625, "target_network_update_freq": 200}
    requires = {("mixing_embed_dim", "hypernet_hiddens"): {"mixer": "qmix"}}
    places = {
        (
            *("mixer", "mixing_embed_dim", "hypernet_hiddens"),
            *("state_key", "agent_ids"),
        ): ("policy",),
    }

    mixer: Literal["qmix", "vdn"] | None = Field(
        default="qmix",
        description="how the members' values become a joint value: qmix, by a network that depends on the state; vdn, "
        "by their sum; None, not at all: each member learns independently",
    )
    mixing_embed_dim: Width = Field(default=32, description="width of the mixing network's hidden layer")
    hypernet_hiddens: tuple[Width, ...] = Field(
        default=(), max_length=MOST_LAYERS, description="widths of the hidden layers of the hypernetworks"
    )
    state_key: str | None = Field(
        default="state",
        description="key of the global state in Dict observations of members; only the mixer sees it. Without such an "
        "entry the state is the observations of all members",
    )
    agent_ids: bool = Field(
        default=True,
        description="whether the index of a member in the group is an input, so that one network can act differently "
        "for each member",
    )


class QMIX(ReplayLearning):
    """A group of agents: each member acts on its own values, and all are trained on the joint value."""

    config_class = QMIXConfig
    statistics = ("q_loss", "mean_q", "mean_target", "mean_td_error")

    def check_spaces(self) -> None:
        # A misspelt state key is refused, because the members would then see the state; the default key may be absent.
        key = self.config.state_key
        if key in (self.view.state_key, QMIXConfig.model_fields["state_key"].default, None):
            return
        member = self.observation_space[0]  # type: ignore[index]  a Tuple: GroupView checks it
        keys = sorted(map(str, member.spaces)) if isinstance(member, spaces.Dict) else None
        raise ConfigError(
            "The observations of the members have no global state under this key.",
            where="config key 'state_key'",
            got=key,
            expected=f"one of {keys}" if keys else f"members that observe a Dict, not {member}",
            fix="correct the key, or set it to None: the state is then what all members observe",
        )

    @cached_property
    def view(self) -> GroupView:
        """How to read the group's observations."""
        config = self.config
        return GroupView.of(self.observation_space, self.action_space, config.state_key, config.agent_ids)

    @property
    def choice(self) -> spaces.Discrete:
        """The action space of each member."""
        return self.action_space[0]  # type: ignore[index]  a Tuple: GroupView checks it

    def make_plan(self) -> UpdatePlan:
        config = self.config
        return UpdatePlan(config.train_batch_size, updated_targets=periodic_copy(config.target_network_update_freq))

    @cached_property
    def masks(self) -> GroupMaskChecks:
        if self.config.model.custom_model is None:
            observed: Any = self.observation_space[0]  # type: ignore[index]  a Tuple too
            fix = "move the mask to the top level of each member's observation"
            refuse_nested_masks(observed, self.choice, "observation space of a member", fix)
        return GroupMaskChecks(self.view.masked, filtered=self.config.observation_filter != "NoFilter")

    def make_exploration(self) -> Exploration:
        return GroupExploration(EpsilonGreedy(self.choice, self.config.epsilon()), self.view.members)

    def make_model(self, rngs: nnx.Rngs) -> GroupQNetwork:
        config = self.config
        return make_group_model(
            self.view,
            self.observation_space,
            self.action_space,
            config.model,
            mixer=config.mixer,
            embed=config.mixing_embed_dim,
            hypernet_hiddens=config.hypernet_hiddens,
            rngs=rngs,
        )

    def check_model(self, model: Any) -> None:
        if not (hasattr(model, "values") and hasattr(model, "joint")):
            raise PolicyError(
                "The model is not that of a group.",
                where=f"{self.label}, make_model",
                got=type(model).__name__,
                expected="a GroupQNetwork, or a module with its methods values and joint",
                fix="set the config key model.custom_model for the network of a member, or return a GroupQNetwork from "
                "make_model",
            )

    def targets(
        self, model: Any, target_model: Any, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> dict[str, jax.Array]:
        rewards, discounts = batch[SampleBatch.REWARDS][:, None], batch[SampleBatch.DISCOUNTS][:, None]
        if SampleBatch.TARGET_ROWS not in batch:
            values = self._greedy_values(model, target_model, {SampleBatch.OBS: batch[SampleBatch.NEW_OBS]})
            return {SampleBatch.TARGET: rewards + discounts * values}
        values = self._greedy_values(model, target_model, batch)
        return {SampleBatch.TARGET: rewards + discounts * values[batch[SampleBatch.TARGET_ROWS]]}

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        obs, weights, target = batch[SampleBatch.OBS], batch[SampleBatch.WEIGHTS], batch[SampleBatch.TARGET]
        actions = by_member(batch[SampleBatch.ACTIONS]) - int(self.choice.start)
        # Unmasked, because a recorded action may be one that the action mask forbids.
        values = out.aux.get(UNMASKED, out.policy).reshape(*actions.shape, -1).astype(jnp.float32)
        learned = self.learned_rows(batch, mask)
        # Other rows of a sequence have no action, so their values may be NaN, and the mixer's gradient would be too.
        joint = model.joint(jnp.where(learned[:, None] > 0, chosen(values, actions), 0.0), obs)
        errors = joint - target
        if self.config.mixer is None:
            errors = errors * self.view.present(obs)
        loss = masked_mean((errors**2).mean(axis=-1) * weights, learned)
        sizes = jnp.abs(errors).mean(axis=-1)
        return loss, {
            "q_loss": loss,
            "mean_q": masked_mean(joint.mean(axis=-1), learned),
            "mean_target": masked_mean(target.mean(axis=-1), learned),
            "mean_td_error": masked_mean(sizes, learned),
            SampleBatch.TD_ERROR: self.errors_for_replay(sizes, learned, batch),
        }

    def _greedy_values(self, model: Any, target_model: Any, columns: Columns) -> jax.Array:
        """Returns `joint` of the target values of the members' greedy actions: [B, 1], or [B, M] without a mixer."""
        values, _ = target_model.values(after_burn_in(target_model, columns))
        selector = model.values(after_burn_in(model, columns))[0] if self.config.double_q else values
        return target_model.joint(chosen(values, jnp.argmax(selector, axis=-1)), columns[SampleBatch.OBS])


class QMIXTrainer(Trainer):
    """QMIX: Q-learning of a joint action value that a mixer computes from the values of a group's members.

    Source: Rashid et al. (2018), arXiv:1803.11485. Its config is `QMIXConfig`.
    """

    name = "QMIX"
    config_class = QMIXConfig
    policy_class = QMIX
    optimizer_class = SyncReplayOptimizer


class VDNConfig(QMIXConfig):
    """The fields of QMIX with the mixer of VDN."""

    requires = {("mixing_embed_dim", "hypernet_hiddens"): "VDN has no mixing network"}

    mixer: Literal["vdn"] = Field(
        default="vdn",
        description="the joint value is the sum of the members' values; the algorithm QMIX has other mixers",
    )


class VDN(QMIX):
    """QMIX with another mixer."""

    config_class = VDNConfig


class VDNTrainer(QMIXTrainer):
    """VDN: Q-learning of a joint action value that is the sum of the members' values.

    Source: Sunehag et al. (2017), arXiv:1706.05296. Its config is `VDNConfig`.
    """

    name = "VDN"
    config_class = VDNConfig
    policy_class = VDN
