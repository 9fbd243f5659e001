"""Actor and critics with memory: the actor has an encoder, and the critics share another encoder."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from gymnasium import spaces
from jaxtyping import Array, Float

from rollax.core.spaces import ACTION_MASK, EMBEDDINGS, is_parametric
from rollax.models.actor_with_critics import ActorWithCritics, Ensemble
from rollax.models.config import ModelConfig
from rollax.models.outputs import Outputs, State, is_recurrent
from rollax.models.recurrent import RecurrentTrunk

CRITIC_INPUTS = "critic_inputs"
"""The key in `Outputs.aux` of the inputs of critics with memory."""
_FEATURES = "features"


def critic_space(observation_space: spaces.Space, config: ModelConfig) -> spaces.Space:
    """Returns the space of the critics' inputs: observations, or, with memory, features of the rows so far."""
    if not config.has_memory:
        return observation_space
    features = spaces.Box(-np.inf, np.inf, (config.memory_width,), np.float32)
    if not is_parametric(observation_space):
        return features
    assert isinstance(observation_space, spaces.Dict)
    return spaces.Dict({_FEATURES: features, **{name: observation_space[name] for name in (ACTION_MASK, EMBEDDINGS)}})


def critic_inputs(out: Outputs, obs: Any) -> Any:
    """Returns the critics' inputs for each row: observations, or, with memory, features in the model's outputs."""
    return out.aux.get(CRITIC_INPUTS, obs)


class RecurrentCritics(nnx.Module):
    """Critics that share an encoder with memory, and are called with the features of the encoder.

    The memory reads observations, and previous actions and rewards if the config says so. The action whose value is
    computed is an input of the critics after the memory, so that it does not change the features of later rows.
    """

    def __init__(self, trunk: RecurrentTrunk, critics: Ensemble) -> None:
        self.trunk, self.critics = trunk, critics

    def inputs(self, obs: Any, state: State, **memory: Any) -> tuple[Any, State]:
        """Returns the inputs of the critics for the rows of B sequences, and the state after the last rows."""
        features, state = self.trunk(obs, state, **memory)
        if not (isinstance(obs, dict) and EMBEDDINGS in obs):
            return features, state
        return {_FEATURES: features, **{name: obs[name] for name in (ACTION_MASK, EMBEDDINGS)}}, state

    def __call__(self, inputs: Any, *actions: Any) -> Float[Array, "N *S"]:
        return self.critics(inputs, *actions)

    def member(self, number: int) -> Any:
        """Returns one critic as a module."""
        return self.critics.member(number)


class RecurrentActorWithCritics(ActorWithCritics):
    """`ActorWithCritics` with memory; see `run_model`. The state is one array: the actor's state, then the critics'.

    Source: Ni et al. (2022), "Recurrent model-free RL can be a strong baseline for many POMDPs", arXiv:2110.05038:
        actor and critics have separate encoders. Deviations: sequences may begin with stored states.
    """

    @property
    def memory_inputs(self) -> tuple[str, ...]:
        """The further arguments of a call: some of `prev_actions` and `prev_rewards`."""
        return self.critics.trunk.memory_inputs

    def initial_state(self) -> tuple[np.ndarray, ...]:
        """The recurrent state at the start of a trajectory."""
        return (np.concatenate([*self.actor.initial_state(), *self.critics.trunk.initial_state()]),)

    def __call__(  # type: ignore[override]  a model with memory is another kind of model
        self, obs: Any, state: State, **memory: Any
    ) -> Outputs:
        (own,) = self.actor.initial_state()
        of_actor, of_critics = jnp.split(state[0], [len(own)], axis=1)
        out = self.actor(obs, (of_actor,), **memory)
        inputs, (after,) = self.critics.inputs(obs, (of_critics,), **memory)
        policy = jnp.tanh(out.policy) if self.squashed else out.policy
        return Outputs(policy, None, (jnp.concatenate([out.state[0], after], axis=1),), {CRITIC_INPUTS: inputs})


def join_actor_and_critics(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    config: ModelConfig,
    actor: Any,
    critics: Ensemble,
    *,
    rngs: nnx.Rngs,
    squashed: bool = False,
    initial_alpha: float | None = None,
) -> ActorWithCritics:
    """Returns an `ActorWithCritics`; if the actor has memory, the critics get their own encoder with memory.

    The inputs of `critics` are in `critic_space`. `squashed` and `initial_alpha` are as in `ActorWithCritics`.
    """
    if not is_recurrent(actor):
        return ActorWithCritics(actor, critics, squashed=squashed, initial_alpha=initial_alpha)
    trunk = RecurrentTrunk(observation_space, action_space, config, rngs=rngs)
    return RecurrentActorWithCritics(
        actor, RecurrentCritics(trunk, critics), squashed=squashed, initial_alpha=initial_alpha
    )
