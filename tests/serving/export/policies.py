"""Small policies with random weights and filters, and comparisons with other runtimes."""

from typing import Any

import jax
import numpy as np
import onnxruntime
from gymnasium import spaces

from rollax.core import trees
from rollax.core.spaces import leaves, stack
from rollax.rollout.actions import ActionMap
from rollax.rollout.filters import FILTERS
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.export.export_policy import policy_to_stablehlo
from rollax.serving.export.onnx_model import policy_to_onnx


def runner_of(
    policy_class: Any, observation_space: spaces.Space, action_space: spaces.Space, **config: Any
) -> PolicyRunner:
    """A policy with weights far from their small initial values, and a filter with statistics of some observations."""
    model = config.pop("model", {})
    if "custom_model" not in model:
        model = {"fcnet_hiddens": [8], **model}
    settings = {"normalize_actions": False, "clip_actions": True, "observation_filter": "NoFilter", "seed": 0, **config}
    policy = policy_class.make_policy(observation_space, action_space, {**settings, "model": model})
    random = np.random.default_rng(0)
    policy.set_weights({name: _far(name, array, random) for name, array in policy.get_weights().items()})
    observation_filter = FILTERS[settings["observation_filter"]](observation_space)
    observation_filter(columns_of(observation_space, 20))
    actions = ActionMap(action_space, **{name: settings[name] for name in ("clip_actions", "normalize_actions")})
    return PolicyRunner(policy, observation_filter, actions, clip_rewards=settings.get("clip_rewards"))


def _far(name: str, array: np.ndarray, random: np.random.Generator) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    numbers = random.uniform(0.5, 2, array.shape) if name.endswith(".var") else random.normal(0, 0.5, array.shape)
    return numbers.astype(array.dtype)


def columns_of(space: spaces.Space, rows: int, seed: int = 1) -> Any:
    """Columns of random observations; each mask allows an action."""
    space.seed(seed)
    columns = stack(space, [space.sample() for _ in range(rows)])
    if isinstance(columns, dict) and "action_mask" in columns:
        columns["action_mask"][:, ::2] = 1
    return columns


def named(prefix: str, space: spaces.Space, columns: Any) -> dict[str, np.ndarray]:
    """The columns by the names of the exported tensors."""
    names = [".".join([prefix, *map(str, path)]) for path, _ in leaves(space)]
    return dict(zip(names, map(np.asarray, trees.leaves(columns)), strict=True))


def onnx_session(runner: PolicyRunner) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(policy_to_onnx(runner), providers=["CPUExecutionProvider"])


def in_onnx(session: onnxruntime.InferenceSession, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))


def in_stablehlo(runner: PolicyRunner, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    exported = jax.export.deserialize(bytearray(policy_to_stablehlo(runner)))
    return {name: np.asarray(value) for name, value in exported.call(inputs).items()}


def check_without_memory(runner: PolicyRunner, *, rows: tuple[int, ...] = (1, 5), stablehlo: bool = False) -> None:
    """Compares actions for batches and for a single observation with those of the policy."""
    session = onnx_session(runner)
    policy = runner.policy
    for count in rows:
        columns = columns_of(policy.observation_space, count, seed=count)
        inputs = named("obs", policy.observation_space, columns)
        expected = named("action", policy.action_space, runner.compute_actions(columns)[0])
        compare(in_onnx(session, inputs), expected)
        if stablehlo:
            compare(in_stablehlo(runner, inputs), expected, types=False)
    one = trees.index(columns_of(policy.observation_space, 1, seed=9), 0)
    inputs = {name: part[None] for name, part in named("obs", policy.observation_space, one).items()}
    action = runner.compute_single_action(one)
    expected = {name: part[None] for name, part in named("action", policy.action_space, action).items()}
    compare(in_onnx(session, inputs), expected, types=False)


def compare(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], *, types: bool = True) -> None:
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert got[name].shape == array.shape, name
        assert not types or got[name].dtype == array.dtype, name
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
