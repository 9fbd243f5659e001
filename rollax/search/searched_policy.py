"""`Searched`: a deterministic policy whose parameters are searched for, without gradients of a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from gymnasium import spaces
from numpy.typing import NDArray

from rollax.batch import Columns, SampleBatch
from rollax.core.memory import check_fits
from rollax.core.spaces import is_parametric
from rollax.errors import PolicyError, ShapeError
from rollax.models.actor_with_critics import make_actor
from rollax.models.linear import LinearPolicy
from rollax.models.outputs import Outputs
from rollax.policy.algorithm import Algorithm
from rollax.policy.devices import SMALL_CALL, cpu_beside_gpu
from rollax.policy.exploration import Exploration, FromDistribution, greedy
from rollax.policy.exploration.action_noise import Deterministic
from rollax.policy.jax_policy import JaxPolicy
from rollax.policy.size_checks import check_layers
from rollax.policy.split_model import vector_parts
from rollax.policy.stacked_acting import BLOCK, StackedActing


class GreedyActions(FromDistribution):
    """The most probable actions, in training too."""

    from_distribution = False
    recorded = frozenset()

    def sample(self, outputs: Any, noise: Any) -> Any:
        return self.mode(outputs)

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], timestep: int) -> dict[str, Any]:
        return {}  # the actions are not drawn from the distribution

    def probabilities(self, outputs: np.ndarray, timestep: int) -> np.ndarray | None:
        return greedy(outputs)


class SearchedPolicy(JaxPolicy):
    """A policy whose optimizer treats all parameters as one vector."""

    def __init__(self, algorithm: Searched, config: Any) -> None:
        super().__init__(algorithm, config)
        self.statistics = (*algorithm.reported, "cur_lr")
        self._shapes = {name: array.shape for name, array in self.split.params.items()}
        if not self._shapes:
            what = "The model has no parameters to search for."
            raise PolicyError(what, f"{algorithm.label}, make_model", "no nnx.Param").expected(
                "a model with trained parameters", "keep the parameters in nnx.Param, as layers such as nnx.Linear do"
            )

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        raise self._cannot("learn_on_batch")

    def compute_gradients(self, batch: SampleBatch) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        raise self._cannot("compute_gradients")

    def td_errors(self, batch: SampleBatch) -> np.ndarray:
        raise self._cannot("td_errors")

    def get_vector(self) -> NDArray[np.float32]:
        """[P] all parameters, one after another, in the order of the model."""
        # The order of `params` changes: compiled functions return names alphabetically, layers.10 before layers.2.
        return np.concatenate([np.asarray(self.params[name], np.float32).ravel() for name in self._shapes])

    def parts_of(self, vector: NDArray[np.float32]) -> Mapping[str, NDArray[np.float32]]:
        """Name -> parameter, as views of a vector such as `get_vector` returns. ShapeError for another length."""
        size = sum(map(math.prod, self._shapes.values()))
        if np.shape(vector) != (size,):
            raise ShapeError(
                "The vector does not have the length of the parameters.", f"{self.label}, parts_of", np.shape(vector)
            ).expected((size,), "change a copy of get_vector() of a policy with the same model")
        return vector_parts(self._shapes, vector)

    def stacked(self, slots: int, *, with_env: bool = False) -> StackedActing:
        """Returns a `StackedActing` with separate parameters in each slot; ConfigError if they do not fit into memory.

        On a machine with a GPU, small models of dense layers act on the CPU, except if the environments are compiled
        with the model (`with_env`).
        """
        copies, size = -(-slots // BLOCK) * BLOCK, sum(map(math.prod, self._shapes.values()))
        check_fits(
            f"A stack of the parameters of {copies} candidates",
            copies * size * np.dtype(np.float32).itemsize,
            f"{self.algorithm.label}, config keys 'num_envs_per_worker' and 'model.fcnet_hiddens'",
            f"use smaller layers, or lower num_envs_per_worker; there are at least {BLOCK} copies",
        )
        dense = all(len(shape) <= 2 for shape in self._shapes.values())  # convolutions use a parameter many times
        small = dense and 2 * size * BLOCK <= SMALL_CALL  # a product and a sum for each parameter
        device = cpu_beside_gpu() if small and not with_env else None
        return StackedActing(self._shapes, self.actor.traced_checked_greedy, slots, device)


class Searched(Algorithm):
    """A greedy policy with one network, whose parameters are searched for.

    A Box action is the network's output, without a squashing function; other actions are the most probable ones.

    Without hidden layers (`model.fcnet_hiddens=()`), the network is linear in the encoded observation, without a bias,
    and these weights begin at 0. An image among other observations is encoded by a CNN. If all observations are images,
    or actions are parametric, the network is the same as in other algorithms.
    """

    policy_class = SearchedPolicy
    reads = ()
    statistics = ("gradient_norm", "weight_norm", "return_mean", "return_std", "return_max")

    @property
    def samples(self) -> frozenset[str]:
        return frozenset({SampleBatch.OBS, SampleBatch.ACTIONS, SampleBatch.REWARDS})

    def check_spaces(self) -> None:
        check_layers(self.config.model, self.label)

    def make_exploration(self) -> Exploration:
        if isinstance(self.action_space, spaces.Box):
            assert self.distribution is not None  # raises SpaceError for a Box of integers
            return Deterministic(self.action_space.shape)
        return GreedyActions(self.distribution)

    def make_model(self, rngs: nnx.Rngs) -> Any:
        space, sizes, outputs = self.observation_space, self.config.model, self.exploration.num_inputs
        actor = make_actor(space, self.action_space, outputs, sizes, rngs=rngs)
        self._refuse_statistics(actor)
        if sizes.custom_model is not None or sizes.fcnet_hiddens or is_parametric(space):
            return actor
        return actor if actor.trunk.encoder.images_only else LinearPolicy(space, outputs, sizes, rngs=rngs)

    def _refuse_statistics(self, model: nnx.Module) -> None:
        """Raises PolicyError for layers such as `nnx.BatchNorm`, whose running statistics change in updates on batches.

        Other state that is not a parameter is constant, and accepted.
        """
        layers = [path for path, node in nnx.iter_graph(model) if hasattr(node, "use_running_average")]
        if layers:
            raise PolicyError(
                "The model has batch normalization, and a search over parameters has no batches.",
                f"{self.label}, make_model",
                ", ".join(".".join(map(str, path)) for path in layers),
            ).expected(
                "a model without running statistics of batches",
                "set model.normalization to None or 'layer', or remove these layers from the custom model; "
                "observation_filter='MeanStdFilter' standardizes observations",
            )

    def loss(
        self, model: Any, out: Outputs, batch: Columns, mask: jax.Array, coefficients: Columns
    ) -> tuple[jax.Array, dict]:
        raise PolicyError("Nothing is learned from rows: parameters are searched for.", where=self.label)
