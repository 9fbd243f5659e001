"""`TorchPolicy`: joins an algorithm and a learner in PyTorch behind the interface of policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rollax.batch import Columns, SampleBatch
from rollax.config import TrainerConfig
from rollax.core import trees
from rollax.core.stored_values import read_count, read_dict
from rollax.errors import PolicyError
from rollax.models.outputs import is_noisy, state_values
from rollax.policy.checks import check_finite, check_weights, checked_loss, naming_missing_columns, td_error_of
from rollax.policy.model_policy import ModelPolicy
from rollax.policy.policy import ActionsResult
from rollax.policy.sequences_as_rows import as_rows
from rollax.policy.update_plan import check_every, check_parts, part_of
from rollax.torch import own_state
from rollax.torch.batch_norm import batch_norms, check_minibatches, in_evaluation, with_running_statistics
from rollax.torch.config import chosen_device
from rollax.torch.learner import Learner
from rollax.torch.optimizers import check_optimizer, check_optimizer_arrays
from rollax.torch.policy_model import check_model, check_module, check_sizes_known
from rollax.torch.random_numbers import random_numbers_of
from rollax.torch.statistics import statistics_of
from rollax.torch.weights import as_numpy, assign, owners_of, parameter_groups, to_numpy, to_tensors

if TYPE_CHECKING:
    from rollax.torch.algorithm import TorchAlgorithm

Result = TypeVar("Result")


class TorchPolicy(ModelPolicy):
    """A policy of a `TorchAlgorithm`. As in every policy, inputs and results are NumPy arrays.

    Tensors are on `device`. Random numbers of losses and layers come from the policy's own `generator`, or from its
    acting stream while it acts; checkpoints store both. PyTorch's global streams do not change.
    """

    custom_state_attributes = frozenset({"_model", "learner", "exploration", "generator", "_batch_norms"})
    learner: Learner

    def __init__(self, algorithm: TorchAlgorithm, config: TrainerConfig) -> None:
        super().__init__(algorithm, config)
        where = algorithm.label
        self._check_exploration()
        self.device = chosen_device(getattr(self.config, "device", "auto"))
        self.generator = torch.Generator().manual_seed(self._seed_of_model())
        self._check_model_size()
        with random_numbers_of(self.generator, self.device):
            self._model: Any = check_module(algorithm.make_model(), where).to(self.device).eval()
            own_forward = algorithm.overrides("forward")
            draws = False if own_forward else self._check_model()
        check_sizes_known(self.model, where)
        self.noisy = is_noisy(self.model)
        self._draws = draws or self.noisy
        self._may_draw = self._draws or own_forward
        self._describe(self.model)
        owners = owners_of(self.model)
        check_parts(owners, self.plan.updated_targets, where)
        norms = batch_norms(self.model)
        check_minibatches(norms, self.plan, self.memory.max_seq_len, f"{where}, make_plan")
        self._batch_norms = tuple(norms.values())
        compiled = getattr(self.config, "torch_compile", False)
        rates = self.learning_rates()
        check_every(set(map(part_of, owners)), self.plan.every, rates, where)
        optimizer = algorithm.make_optimizer(parameter_groups(self.model, rates, where), self.model)
        check_optimizer(optimizer, self.model, rates, self.config.lr, self.label)
        self.learner = Learner(
            self.model,
            torch.compile(self._loss_of_batch, dynamic=False) if compiled else self._loss_of_batch,
            optimizer,
            by_part=isinstance(rates, Mapping),
            every=self.plan.every,
            updated_targets=self.plan.updated_targets,
            stops=self.plan.stops,
            grad_clip=self.config.grad_clip,
            generator=self.generator,
            device=self.device,
            count_rows=self._count_rows,
            compiled=compiled,
            # Padding are rows of the same epoch: as in JAX, batch statistics are those of a whole minibatch.
            keeps_padding=compiled or bool(with_running_statistics(self.model)),
        )

    @property
    def model(self) -> Any:
        """The module that acts and learns; its parameters may be changed in place, but it cannot be replaced."""
        return self._model

    @model.setter
    def model(self, model: Any) -> None:
        # Valid: the first assignment, and the same model, as in `policy.model = policy.model.eval()`.
        if vars(self).setdefault("_model", model) is model:
            return
        raise PolicyError(
            "The model of a policy cannot be replaced: the optimizer has the parameters of the first one.",
            f"{self.label}, attribute 'model'",
            type(model).__name__,
        ).expected(
            "the model that make_model returned",
            "set its weights, by policy.set_weights(...) or policy.model.load_state_dict(...), or make the policy "
            "with another model: override make_model, or set the config key model.custom_model",
        )

    def _weight_shapes(self) -> dict[str, tuple[int, ...]]:
        with torch.device("meta"):
            return {name: tuple(tensor.shape) for name, tensor in self.algorithm.make_model().state_dict().items()}

    def _check_exploration(self) -> None:
        if self.exploration.overrides("acting_params"):
            raise PolicyError(
                "An exploration by perturbed parameters has no effect in PyTorch.",
                f"{self.algorithm.label}, make_exploration",
                type(self.exploration).__name__,
            ).expected(
                "an exploration by the outputs of the model",
                "return GaussianNoise or such, or give the model noisy layers",
            )

    def _check_model(self) -> bool:
        """Whether the model draws random numbers while it acts; PolicyError for wrong outputs or a missing critic."""
        if self.sees_all_agents and not hasattr(self.model, "critic"):
            raise PolicyError(
                "The model has no centralized critic.",
                f"{self.algorithm.label}, make_model",
                type(self.model).__name__,
            ).expected(
                "a model with a method critic(critic_obs) -> values [B]",
                "add the method, or leave centralized_critic out",
            )
        spaces, width = (self.observation_space, self.action_space), self.exploration.num_inputs
        needed, shape = self._needs_value(self.model), self.algorithm.value_shape
        return check_model(self.model, *spaces, width, self.device, needs_value=needed, value_shape=shape)

    @torch.inference_mode()
    def compute_actions(  # type: ignore[override]  the library passes what is accepted
        self,
        obs_batch: Any,
        state_batches: Sequence[Any] = (),
        prev_action_batch: Any = None,
        prev_reward_batch: Any = None,
        explore: bool = True,
    ) -> ActionsResult:
        _, columns, exploring = self._inputs_of(obs_batch, state_batches, prev_action_batch, prev_reward_batch)
        out = self._act(self.forward, to_tensors(columns, self.device), explore=explore)
        outputs = as_numpy(out.policy)
        if explore:
            noise = self.exploration.noise(self.acting_rng, len(outputs), self.timestep)
            noise, exploring = self.exploration.advance(noise, exploring)
            actions = self.exploration.sample(outputs, noise)
        else:
            actions = self.exploration.mode(outputs)
        actions = trees.tree_map(np.asarray, actions)
        fetches = self._fetches(outputs, actions, out.value)
        check_finite(fetches[self.checked_fetch], self.name, self.timestep)
        return actions, [*map(as_numpy, out.state), *exploring], fetches

    def _act(self, run: Callable[[Any, Columns], Result], columns: Columns, explore: bool = False) -> Result:
        """`run(model, columns)`, with random numbers of the policy's acting stream."""
        if not self._may_draw:
            return run(self.model, columns)
        generator = torch.Generator().manual_seed(int(self.acting_rng.integers(2**63)))
        with random_numbers_of(generator, self.device):
            if not (explore and self.noisy):
                return run(self.model, columns)
            with self.learner.exploring(), in_evaluation(with_running_statistics(self.model)):
                return run(self.model, columns)

    def behaviour(self, actions: Any, fetches: Mapping[str, Any], explore: bool) -> dict[str, Any]:
        # Probabilities given the model's random numbers are not the probabilities of the actions.
        return {} if self._draws else super().behaviour(actions, fetches, explore)

    def _fetches(self, outputs: np.ndarray, actions: Any, values: Tensor | None) -> dict[str, np.ndarray]:
        wanted, inputs = self._fetched_columns, SampleBatch.ACTION_DIST_INPUTS
        found = {name: np.asarray(column) for name, column in self.exploration.fetches(outputs, actions).items()}
        fetches = {
            name: column[:, 0] if column.shape[1] == 1 and name != inputs else column
            for name, column in found.items()
            if wanted is None or name in wanted or name == self.checked_fetch
        }
        if wanted is None or SampleBatch.VF_PREDS in wanted:
            # A copy, because the values may be a parameter; zeros if the model returns no values.
            none = np.zeros((len(outputs), *self.algorithm.value_shape), np.float32)
            fetches[SampleBatch.VF_PREDS] = none if values is None else to_numpy(values)
        return fetches

    @torch.inference_mode()
    def _model_outputs(self, columns: Columns) -> tuple[np.ndarray, Sequence[np.ndarray]]:
        out = self._act(self.forward, to_tensors(columns, self.device))
        return as_numpy(out.policy), [as_numpy(part) for part in out.state]

    @torch.inference_mode()
    def _logp(self, inputs: np.ndarray, actions: Any) -> Tensor:
        return self.distribution.logp(inputs, actions)

    @torch.inference_mode()
    def compute_values(self, obs_batch: Any, memory: Mapping[str, Any] = MappingProxyType({})) -> np.ndarray:
        columns = self._inputs_of_values(obs_batch, memory)
        if trees.length(obs_batch) == 0:
            return np.empty((0, *self.algorithm.value_shape), np.float32)
        return to_numpy(self._act(self._values, to_tensors(columns, self.device)))

    @torch.inference_mode()
    def run_method(self, method: str, *columns: Any) -> np.ndarray:
        def run(model: Any, parts: Any) -> Tensor:
            return getattr(self.algorithm, method)(model, *parts)

        return to_numpy(self._act(run, to_tensors(columns, self.device)))

    def _values(self, model: Any, columns: Columns) -> Tensor:
        return state_values(model, columns, self.forward, self.algorithm.value_shape).float()

    @naming_missing_columns
    @torch.no_grad()
    def td_errors(self, batch: SampleBatch) -> np.ndarray:
        """[N] the loss's statistic `td_error` for N transitions, with online parameters as target parameters."""
        columns = to_tensors(self._checked_columns(batch), self.device)
        parts, updates = self.learner.tensors.parts, self.learner.num_updates
        coefficients = {**self.coefficients(), "num_updates": updates, "parts": parts}
        mask = torch.ones(len(batch), device=self.device)
        with random_numbers_of(self.generator, self.device):
            columns |= self.algorithm.targets(self.model, self.model, columns, mask, coefficients)
            _, stats = self.algorithm.loss(self.model, self.forward(self.model, columns), columns, mask, coefficients)
        where = f"{self.algorithm.label}, td_errors"
        return to_numpy(td_error_of(statistics_of(stats, self.device), len(batch), where))

    @naming_missing_columns
    def compute_gradients(self, batch: SampleBatch) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """`(name -> array, statistics)`: gradients over the whole batch, and new values of buffers.

        The policy's own weights do not change.
        """
        columns, _, plan = self._planned(batch, None, 1)
        gradients, stats = self.learner.gradients(columns, plan, self.coefficients(), where=f"policy {self.name!r}")
        return dict(gradients), {**stats, "cur_lr": self.reported_lr()}

    def apply_gradients(self, gradients: Mapping[str, Any]) -> None:
        """One optimizer step with the arrays of `compute_gradients`, from this or another process.

        Raises NonFiniteError, without a change, if an array, the gradient's norm or a new weight is not finite.
        """
        self.learner.apply(gradients, self.learning_rates(), where=f"policy {self.name!r}")

    def _count_rows(self, batch: Columns, mask: Tensor) -> Tensor:
        return self._as_rows(batch, mask)[1].sum()

    def _as_rows(self, batch: Columns, mask: Tensor) -> tuple[Columns, Tensor]:
        """Sequences as rows, for a policy that learns from sequences."""
        if not self._in_sequences:
            return batch, mask
        return as_rows(batch, mask, partial(torch.arange, device=self.device))

    def _loss_of_batch(self, batch: Columns, mask: Tensor, coefficients: Columns) -> tuple[Tensor, dict[str, Tensor]]:
        batch, mask = self._as_rows(batch, mask)
        if self.learner.tensors.target_model is not None:
            self.model.eval()
            with torch.no_grad():
                model, target = self.model, self.learner.tensors.target_model
                targets = self.algorithm.targets(model, target, batch, mask, coefficients)
            self.model.train()
            batch = {**batch, **targets}
        with in_evaluation(self._batch_norms if len(mask) == 1 else ()):
            out = self.forward(self.model, batch)
            loss, stats = checked_loss(self.algorithm, Tensor, self.model, out, batch, mask, coefficients)
        return loss, {**stats, "total_loss": loss}

    @property
    def params(self) -> dict[str, Tensor]:
        """Name -> trained tensor, changed in place; after an assignment, it shares storage with the assigned tensor."""
        return self.learner.tensors.params  # type: ignore[return-value]  parameters are tensors

    @params.setter
    def params(self, params: Mapping[str, Tensor]) -> None:
        _share_storage(self.learner.tensors.params, params)
        if self.learner.num_updates == 0:
            self.learner.tensors.set_targets()

    @property
    def extra(self) -> dict[str, Tensor]:
        """Name -> tensor of the model's other state, such as buffers; assigned as `params`."""
        return self.learner.tensors.extra

    @extra.setter
    def extra(self, extra: Mapping[str, Tensor]) -> None:
        _share_storage(self.learner.tensors.extra, extra)

    def get_weights(self) -> dict[str, np.ndarray]:
        self.learner.tensors.check_complete(f"policy {self.name!r}")
        # Copies, which the caller may change.
        return {name: to_numpy(tensor) for name, tensor in {**self.params, **self.extra}.items()}

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Sets weights that `get_weights` of an equal policy returned, and copies them to the target parameters."""
        tensors = {**self.params, **self.extra}
        check_weights(weights, {name: tuple(t.shape) for name, t in tensors.items()}, f"policy {self.name!r}")
        self.learner.tensors.keep_buffers()
        assign(tensors, weights)
        self.learner.tensors.set_targets()

    @property
    def targets(self) -> dict[str, Tensor]:
        """Name -> target parameter; empty if there are none."""
        return self.learner.tensors.targets

    def set_state(self, state: Mapping[str, Any]) -> None:
        where = f"policy {self.name!r}"
        num_updates, optimizer = read_count(state, "num_updates", where), read_dict(state, "optimizer", where)
        targets, random = read_dict(state, "targets", where), own_state.generator_state(state, where)
        expected = {name: tuple(target.shape) for name, target in self.targets.items()}
        if targets:
            check_weights(targets, expected, f"{where}, target parameters")
        # Before anything changes.
        check_optimizer_arrays(self.learner.optimizer, self.params, optimizer, state.get("optimizer_class"), where)
        super().set_state(state)
        self.learner.set_state(optimizer, num_updates, targets, where)
        self.generator.set_state(random)

    def _own_arrays(self) -> dict[str, dict[str, np.ndarray]]:
        return own_state.own_arrays(self)

    def _set_own_arrays(self, arrays: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        own_state.set_own_arrays(self, arrays)


def _share_storage(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    for name, tensor in own.items():
        if given[name] is not tensor:
            tensor.data = given[name].data
