"""`ActorCriticPolicy`: what DDPG, TD3 and SAC share: an actor and critics in one model, one loss, targets that follow.

The loss is the sum of those of the parts. Gradients are stopped between them, so each part gets that of its own loss,
its own optimizer and its own step size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from typing import Any

import optax
from gymnasium import spaces

from rollax.batch import SampleBatch
from rollax.policy.exploration.action_noise import GaussianNoise, OrnsteinUhlenbeckNoise
from rollax.policy.exploration.exploration import Exploration, RandomAtFirst
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.learner import UpdatePlan, polyak_average
from rollax.policy.policy_model import check_layers
from rollax.policy.split_model import part_of


class ActorCriticPolicy(JaxPolicy):
    """A subclass gives `make_model`, with the parts that `part_rates` names, `target_columns` and `loss`.

    Args:
        observation_space: of one agent.
        action_space: of one agent.
        config: with `ActorCriticFields`.
    Raises:
        ConfigError: a model that these algorithms cannot have.
    """

    learns_off_policy = True
    batch_columns = frozenset({SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS, SampleBatch.TRAJECTORY_ID})

    def check_spaces(self) -> None:
        check_layers(self.config.model, type(self).__name__)

    def make_plan(self) -> UpdatePlan:
        config = self.config
        return UpdatePlan(minibatch_size=config.train_batch_size, targets=polyak_average(config.tau, ("critics",)))

    def noise_scale(self) -> Callable[[float], float]:
        """Returns timestep -> factor of the action noise."""
        return self.config.schedule("noise_scale")

    @abstractmethod
    def part_rates(self) -> dict[str, float | None]:
        """The parts of the model, each with its own step size; None: `lr`."""

    def explored(self, greedy: Exploration) -> Exploration:
        """The exploration with the noise that the config asks for, and uniformly random actions at first."""
        config, space = self.config, self.action_space
        assert isinstance(space, spaces.Box | spaces.Discrete)
        assert space.shape is not None
        scale, exploration = self.noise_scale(), greedy
        if config.exploration == "GaussianNoise":
            exploration = GaussianNoise(greedy, space.shape, scale)
        elif config.exploration == "OrnsteinUhlenbeckNoise":
            exploration = OrnsteinUhlenbeckNoise(
                greedy, space.shape, scale, theta=config.ou_theta, sigma=config.ou_sigma
            )
        return RandomAtFirst(exploration, space, config.random_steps) if config.random_steps else exploration

    def make_optimizer(self) -> optax.GradientTransformation:
        parts: dict[Hashable, Any] = {part: self.part_optimizer(part) for part in self.part_rates()}
        return optax.partition(parts, lambda params: {name: part_of(name) for name in params})

    def part_optimizer(self, part: str) -> optax.GradientTransformation:
        """The direction of a step of one part of the model."""
        return super().make_optimizer()

    def learning_rates(self) -> dict[str, float]:
        lr = self.scheduled("lr")
        return {part: lr if own is None else own for part, own in self.part_rates().items()}

    def train_columns(self, batch: SampleBatch) -> dict[str, Any]:
        names = (SampleBatch.REWARDS, SampleBatch.NEW_OBS, SampleBatch.DISCOUNTS, SampleBatch.WEIGHTS)
        return {**super().train_columns(batch), **{name: batch[name] for name in names}}
