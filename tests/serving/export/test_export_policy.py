"""`export_policy` and `rollax export`."""

import json

import jax
import numpy as np
import onnxruntime
import pytest
from flax import nnx
from gymnasium import spaces

import rollax
from rollax.errors import CheckpointError, ConfigError, PolicyError, RollaxError
from rollax.rollout.actions import ActionMap
from rollax.rollout.filters import NoFilter
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.export.onnx_model import policy_to_onnx
from tests.cli.command_line import invoke
from tests.env.refused import refused
from tests.serving.export.policies import check_without_memory, onnx_session, runner_of

VECTOR = spaces.Box(-2.0, 2.0, (3,), np.float32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    trainer = rollax.PGTrainer(env="CartPole-v1", config={"model": {"fcnet_hiddens": [4]}, "seed": 0})
    path = trainer.save(str(tmp_path_factory.mktemp("checkpoints") / "one"))
    trainer.stop()
    return path


def test_a_checkpoint_as_onnx_with_its_description(checkpoint, tmp_path):
    path = rollax.export_policy(checkpoint, out=tmp_path / "new" / "policy.onnx")
    session = onnxruntime.InferenceSession(str(path))
    obs = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    expected = rollax.load_policy(checkpoint).compute_actions(obs)[0]
    np.testing.assert_array_equal(session.run(["action"], {"obs": obs})[0], expected)
    properties = session.get_modelmeta().custom_metadata_map
    assert properties["policy_id"] == "default_policy"
    assert properties["policy_class"] == "PG"
    assert json.loads(properties["action_space"])["type"] == "Discrete"
    assert json.loads(properties["inputs"]) == [{"name": "obs", "path": [], "shape": [4], "dtype": "float32"}]
    assert [child.name for child in path.parent.iterdir()] == ["policy.onnx"]


def test_keys_of_a_space_may_be_integers_of_numpy():
    key = np.int64(3)
    runner = runner_of(rollax.PG, spaces.Dict({key: VECTOR}), spaces.Dict({key: spaces.Discrete(2)}))
    properties = onnx_session(runner).get_modelmeta().custom_metadata_map
    for part, name in (("inputs", "obs.3"), ("outputs", "action.3")):
        (described,) = json.loads(properties[part])
        assert (described["name"], described["path"]) == (name, [3])


def test_export_command(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "policy.bin" in invoke("export", checkpoint, "--to=stablehlo", "--out=policy.bin").output
    policy = jax.export.deserialize(bytearray((tmp_path / "policy.bin").read_bytes()))
    obs = np.ones((2, 4), np.float32)
    expected = rollax.load_policy(checkpoint).compute_actions(obs)[0]
    np.testing.assert_array_equal(policy.call({"obs": obs})["action"], expected)


def test_refusals(checkpoint, tmp_path):
    refused(ConfigError, rollax.export_policy, checkpoint, says="did you mean 'onnx'", to="onxx", out=tmp_path / "x")
    with pytest.raises(CheckpointError, match="The checkpoint does not contain this policy"):
        rollax.export_policy(checkpoint, out=tmp_path / "x", policy_id="other")
    (tmp_path / "file").write_bytes(b"")
    refused(RollaxError, rollax.export_policy, checkpoint, says="was not written", out=tmp_path / "file" / "x")
    assert [child.name for child in tmp_path.iterdir()] == ["file"]


class Own(nnx.Module):
    """A custom model; `by_length` uses the number of rows as a Python number."""

    def __init__(self, observation_space, num_outputs, *, rngs, by_length=False):
        self.layer = nnx.Linear(3, num_outputs + 1, rngs=rngs)
        self.norm = nnx.LayerNorm(3, rngs=rngs)
        self.by_length = by_length

    def __call__(self, obs):
        out = self.layer(self.norm(obs))
        if self.by_length:
            out = out.reshape(len(obs), -1)
        return rollax.Outputs(policy=out[:, 1:], value=out[:, 0])


def test_custom_models():
    check_without_memory(runner_of(rollax.PPO, VECTOR, spaces.Discrete(3), model={"custom_model": Own}))
    sized = {"custom_model": Own, "custom_model_config": {"by_length": True}}
    with pytest.raises(PolicyError, match=r"replace len\(x\) by x\.shape\[0\]"):
        policy_to_onnx(runner_of(rollax.PPO, VECTOR, spaces.Discrete(3), model=sized))


def test_only_what_actions_require_is_exported(monkeypatch):
    runner = runner_of(rollax.PPO, spaces.Box(-1, 1, (3,)), spaces.Discrete(4))
    expected = policy_to_onnx(runner)

    def not_traceable(*arguments):
        raise TypeError

    monkeypatch.setattr(type(runner.policy.distribution), "_logp", not_traceable)
    assert policy_to_onnx(runner) == expected


class InPython(rollax.Policy):
    def compute_actions(self, obs_batch, **_):
        return np.zeros(len(obs_batch), np.int64), [], {}


class InPythonToo(rollax.JaxPolicy):
    def compute_actions(self, obs_batch, **_):  # type: ignore[override]
        return np.zeros(len(obs_batch), np.int64), [], {}


class Overridden(rollax.PPO):
    """Does not act by its model."""

    policy_class = InPythonToo


@pytest.mark.parametrize(("kind", "message"), [(InPython, "not in JAX"), (Overridden, "chooses its actions in Python")])
def test_a_policy_in_python_is_refused(kind, message):
    actions = ActionMap(spaces.Discrete(2), clip_actions=True, normalize_actions=False)
    runner = PolicyRunner(kind.make_policy(VECTOR, spaces.Discrete(2)), NoFilter(VECTOR), actions)
    refused(PolicyError, policy_to_onnx, runner, says=message)
