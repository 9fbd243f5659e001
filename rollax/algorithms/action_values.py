"""`ActionValues`: algorithms that learn the value of each action of a Discrete space."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces

from rollax.errors import SpaceError
from rollax.policy.algorithm import Algorithm
from rollax.policy.size_checks import check_layers


class ActionValues(Algorithm):
    """An algorithm whose model returns a value for each action of a Discrete space."""

    statistics = ("q_loss", "mean_q", "mean_target", "mean_td_error")

    def check_spaces(self) -> None:
        if not isinstance(self.action_space, spaces.Discrete):
            raise SpaceError(
                "The actions are not one discrete choice.",
                where=f"action_space of {type(self).__name__}",
                got=self.action_space,
                expected="Discrete(n)",
                fix="use SAC, TD3 or DDPG for Box actions, PPO for composite ones",
            )
        check_layers(self.config.model, type(self).__name__, memory=True)

    @property
    def discrete(self) -> spaces.Discrete:
        assert isinstance(self.action_space, spaces.Discrete)
        return self.action_space

    def indices(self, actions: Any) -> jax.Array:
        """[B] the index of each action among the values of all actions."""
        return jnp.asarray(actions).astype(jnp.int32) - int(self.discrete.start)
