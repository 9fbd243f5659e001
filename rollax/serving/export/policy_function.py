"""`PolicyFunction`: a policy as one function of named arrays, from raw observations to environment actions."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
from gymnasium import spaces
from jax.extend import core

from rollax.batch import SampleBatch
from rollax.core.importing import path_of
from rollax.core.introspection import overrides
from rollax.core.space_json import key_to_json
from rollax.core.spaces import Path, leaves, walk, zeros
from rollax.errors import PolicyError, text_of
from rollax.models.images import plain_convolutions
from rollax.policy.jax_policy import JaxPolicy
from rollax.rollout.actions import BoxMap
from rollax.rollout.policy_runner import PolicyRunner

OBS, ACTION, PREV_ACTION, PREV_REWARD = "obs", "action", "prev_action", "prev_reward"
STATE_IN, STATE_OUT = "state_in", "state_out"
_ONE_TRACE = threading.Lock()  # around a setting of the whole process
_MODULE: Any = jax.errors  # jax.core before JAX 0.10.1
if not hasattr(_MODULE, "InconclusiveDimensionOperation"):
    _MODULE = importlib.import_module("jax.core")
_InconclusiveDimension: type[Exception] = _MODULE.InconclusiveDimensionOperation


@dataclass(frozen=True)
class Tensor:
    """An input or output: `[rows, *shape]`.

    Args:
        path: keys and positions in the space.
        initial: the value of a memory input at the start of an episode.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype
    initial: np.ndarray | None = None

    def to_json(self) -> dict[str, Any]:
        path, shape, dtype = key_to_json(self.path), list(self.shape), str(self.dtype)
        described = {"name": self.name, "path": path, "shape": shape, "dtype": dtype}
        return described if self.initial is None else {**described, "initial": self.initial.tolist()}


class PolicyFunction:
    """The greedy actions of a policy, with its observation filter, action masks, memory and action scaling inside.

    Args:
        runner: the policy.
        wide: whether arrays have the types of the spaces; if false, 32-bit types replace 64-bit types.

    Raises:
        PolicyError: the policy is not a `JaxPolicy`, or overrides `compute_actions`.
    """

    def __init__(self, runner: PolicyRunner, *, wide: bool = True) -> None:
        policy = runner.policy
        if not isinstance(policy, JaxPolicy):
            what = "The policy is not in JAX, so it cannot be exported."
            fix = "serve the policy with rollax; for one in PyTorch, torch.export exports the module policy.model"
            raise PolicyError(what, policy.label, path_of(policy.made_by), expected="a subclass of JaxPolicy", fix=fix)
        if overrides(type(policy), JaxPolicy, "compute_actions"):
            raise PolicyError(
                "The policy chooses its actions in Python, so it cannot be exported.",
                policy.label,
                "compute_actions of its own",
                expected="a JaxPolicy that inherits compute_actions, with any model",
            ).fix("move the computation into the model or the exploration, or serve the policy with rollax")
        self.policy: JaxPolicy = policy
        self._wide = wide
        self._clip = runner.filter.clip
        self._scales = {path: (leaf.mean, leaf.deviation) for path, leaf in runner.filter.leaves.items()}
        self._boxes, self._reward_map = runner.action_map.boxes, runner.reward_map
        self.obs = self._tensors(OBS, policy.observation_space)
        self.inputs: list[Tensor] = [*self.obs.values(), *self._memory_inputs()]
        states = policy.memory.initial_state
        self.outputs: list[Tensor] = [
            *self._tensors(ACTION, policy.action_space, of_policy=True).values(),
            *(Tensor(f"{STATE_OUT}_{i}", (), part.shape, part.dtype) for i, part in enumerate(states)),
        ]

    def _tensors(self, prefix: str, space: spaces.Space, *, of_policy: bool = False) -> dict[Path, Tensor]:
        tensors: dict[Path, Tensor] = {}
        taken: set[str] = set()
        for path, leaf in leaves(space):
            name = ".".join([prefix, *map(str, path)])
            while name in taken:  # keys with dots: "a.b", and "b" inside "a"
                name += "_"
            taken.add(name)
            dtype = np.dtype(leaf.dtype)
            if of_policy and not isinstance(leaf, spaces.Box):
                dtype = np.dtype(np.int8 if isinstance(leaf, spaces.MultiBinary) else np.int32)
            tensors[path] = Tensor(name, path, tuple(leaf.shape or ()), self._typed(dtype))
        return tensors

    def _typed(self, dtype: Any) -> np.dtype:
        return np.dtype(dtype) if self._wide else np.dtype(jax.dtypes.canonicalize_dtype(dtype))

    def _memory_inputs(self) -> list[Tensor]:
        memory, found = self.policy.memory, []
        for number, part in enumerate(memory.initial_state):
            found.append(Tensor(f"{STATE_IN}_{number}", (), part.shape, part.dtype, initial=part))
        if SampleBatch.PREV_ACTIONS in memory.columns:
            for path, tensor in self._tensors(PREV_ACTION, self.policy.action_space, of_policy=True).items():
                # The environment's action for zeros in the policy's scale, as in the first step of sampling.
                initial = np.zeros(tensor.shape, tensor.dtype)
                if path in self._boxes:
                    box = self._boxes[path]
                    initial = np.where(box.scaled, box.centre, 0.0).astype(tensor.dtype)
                found.append(Tensor(tensor.name, path, tensor.shape, tensor.dtype, initial=initial))
        if SampleBatch.PREV_REWARDS in memory.columns:
            found.append(Tensor(PREV_REWARD, (), (), np.dtype(np.float32), initial=np.zeros((), np.float32)))
        return found

    def arguments(self, rows: Any) -> list[jax.ShapeDtypeStruct]:
        """The shapes and types of the inputs for a number of rows, which may be symbolic."""
        return [jax.ShapeDtypeStruct((rows, *tensor.shape), tensor.dtype) for tensor in self.inputs]

    def traced(self, rows: Any) -> tuple[Any, list[str], list[np.ndarray]]:
        """`(jaxpr, names, weights)`: the closed jaxpr takes the weights, then the inputs, and returns the outputs.

        Raises PolicyError for a model that requires a fixed number of rows.
        """
        params, extra = dict(self.policy.params), dict(self.policy.extra)
        actions = self._traced_actions(params, extra, rows)
        names = [*sorted(params), *sorted(extra)]  # as JAX flattens them
        weights = [np.asarray({**params, **extra}[name]) for name in names]
        with jax.enable_x64(self._wide):
            given = [jax.ShapeDtypeStruct(weight.shape, weight.dtype) for weight in weights]
            count = len(weights)

            def whole(*given: Any) -> Sequence[Any]:
                return self._outputs(core.jaxpr_as_fun(actions)(*given[:count], *self._columns(given[count:])))

            return jax.make_jaxpr(whole)(*given, *self.arguments(rows)), names, weights

    def _traced_actions(self, params: Mapping[str, Any], extra: Mapping[str, Any], rows: Any) -> Any:
        """The closed jaxpr of the policy's own computation, in JAX's 32-bit types."""
        policy, memory = self.policy, self.policy.memory

        def shaped(space: spaces.Space, changed: Mapping[Path, Any]) -> Any:
            one = zeros(space, 1)

            def leaf(part: Any, path: Path, column: np.ndarray) -> jax.ShapeDtypeStruct:
                dtype = np.float32 if path in changed else jax.dtypes.canonicalize_dtype(column.dtype)
                return jax.ShapeDtypeStruct((rows, *column.shape[1:]), dtype)

            return walk(leaf, space, one)

        columns = {SampleBatch.OBS: shaped(policy.observation_space, self._scales)}
        if memory.present:
            states = [jax.ShapeDtypeStruct((rows, *part.shape), part.dtype) for part in memory.initial_state]
            columns[SampleBatch.STATE_IN] = tuple(states)
        if SampleBatch.PREV_ACTIONS in memory.columns:
            columns[SampleBatch.PREV_ACTIONS] = shaped(policy.action_space, self._boxes)
        if SampleBatch.PREV_REWARDS in memory.columns:
            columns[SampleBatch.PREV_REWARDS] = jax.ShapeDtypeStruct((rows,), np.float32)
        # The order in which JAX flattens the columns, which `_columns` requires.
        paths, _ = jax.tree_util.tree_flatten_with_path(columns)
        self._order = [tuple(getattr(key, "key", getattr(key, "idx", None)) for key in path) for path, _ in paths]

        def acted(params: Any, extra: Any, columns: Any) -> tuple[list[Any], list[Any]]:
            actions, state = policy.greedy_actions(params, extra, columns)
            found: list[Any] = []
            walk(lambda leaf, path, column: found.append(column), policy.action_space, actions)
            return found, list(state)

        try:
            with plain_convolutions(), _unchecked_shapes():
                return jax.make_jaxpr(acted)(params, extra, columns)
        except (TypeError, jax.errors.JAXTypeError, _InconclusiveDimension) as error:
            raise _fixed_rows(policy, error) from error

    def _columns(self, given: Sequence[Any]) -> list[Any]:
        """The policy's columns from the inputs, in the order of its jaxpr."""
        arrays: dict[Path, Any] = {}
        for tensor, array in zip(self.inputs, given, strict=True):
            if tensor.name.startswith(STATE_IN):
                arrays[SampleBatch.STATE_IN, int(tensor.name.removeprefix(f"{STATE_IN}_"))] = array
            elif tensor.name == PREV_REWARD:
                arrays[SampleBatch.PREV_REWARDS,] = self._reward_map(array)
            elif tensor.initial is not None:
                box = self._boxes.get(tensor.path)
                column = _narrow(array) if box is None else _to_policy(box, array)
                arrays[SampleBatch.PREV_ACTIONS, *tensor.path] = column
            else:
                scale = self._scales.get(tensor.path)
                column = _narrow(array) if scale is None else _standardized(array, *scale, self._clip)
                arrays[SampleBatch.OBS, *tensor.path] = column
        return [arrays[path] for path in self._order]

    def _outputs(self, results: Sequence[Any]) -> list[Any]:
        """The outputs from the results of the policy's jaxpr."""
        outputs = []
        for tensor, array in zip(self.outputs, results, strict=True):
            box = None if tensor.name.startswith(STATE_OUT) else self._boxes.get(tensor.path)
            outputs.append(array if box is None else _to_env(box, array, tensor.dtype))
        return outputs


@contextlib.contextmanager
def _unchecked_shapes() -> Iterator[None]:
    """Inside the block, jaxtyping is disabled, because it cannot compare symbolic dimensions."""
    with _ONE_TRACE:
        before = jaxtyping.config.jaxtyping_disable
        jaxtyping.config.update("jaxtyping_disable", True)
        try:
            yield
        finally:
            jaxtyping.config.update("jaxtyping_disable", before)


def _narrow(array: Any) -> Any:
    """The array in the 32-bit types that the policy was traced with."""
    with jax.enable_x64(False):
        dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return array.astype(dtype)


def _computed_in(dtype: Any) -> Any:
    """The type for arithmetic: float32, which every runtime supports, or float64 for 64-bit numbers."""
    return np.float64 if np.dtype(dtype) in (np.float64, np.int64) else np.float32


def _standardized(array: Any, mean: np.ndarray, divisor: np.ndarray, clip: float) -> Any:
    """Like `MeanStdFilter`. A mean in two parts keeps the difference accurate in float32."""
    kind = _computed_in(array.dtype)
    high = mean.astype(kind)
    low = (mean - high).astype(kind)
    apart = array.astype(kind) - high[None]
    if low.any():
        apart = apart - low[None]
    return jnp.clip(apart / divisor.astype(kind)[None], kind(-clip), kind(clip)).astype(np.float32)


def _to_env(box: BoxMap, actions: Any, dtype: np.dtype) -> Any:
    """Like `BoxMap.to_env`."""
    kind = _computed_in(dtype)
    actions = actions.astype(kind)
    if box.scaled.any():
        actions = box.centre.astype(kind)[None] + box.half_width.astype(kind)[None] * actions
    if box.integer:
        actions = jnp.round(actions)
    if box.cuts:
        actions = jnp.minimum(jnp.maximum(actions, box.low.astype(kind)[None]), box.high.astype(kind)[None])
    return actions.astype(dtype)


def _to_policy(box: BoxMap, actions: Any) -> Any:
    """Like `BoxMap.to_policy`."""
    kind = _computed_in(actions.dtype)
    actions = actions.astype(kind)
    if box.scaled.any():
        width = np.where(box.half_width == 0, np.inf, box.half_width).astype(kind)
        actions = (actions - box.centre.astype(kind)[None]) / width[None]
    return actions.astype(np.float32)


def _fixed_rows(policy: JaxPolicy, error: Exception) -> PolicyError:
    return PolicyError(
        "The model cannot be traced with a variable number of observations.",
        f"policy {policy.name!r}, while its model is traced",
        f"{type(error).__name__}: {text_of(error)}",
        expected="a model whose shapes follow from the shapes of its inputs",
    ).fix("replace len(x) by x.shape[0], and use no Python numbers or branches that depend on the number of rows")
