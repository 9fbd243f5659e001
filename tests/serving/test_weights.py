"""Policies as bytes, for clients with local inference: they act as the original, and bring no code."""

import json
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given

from rollax import DQN, PPO, CheckpointError
from rollax.errors import PolicyError, RollaxError
from rollax.rollout.policy_runner import PolicyRunner
from rollax.serving.weights import policy_from_bytes, policy_to_bytes, read_description, update_policy
from tests.env.refused import raised
from tests.serving.served_policies import SingleEpisode, observations, runner
from tests.serving.service_session import refused


def forged(policy: PolicyRunner, changes: Mapping[str, Any]) -> bytes:
    """The bytes of a policy with a changed description."""
    data = policy_to_bytes(policy, 3)
    description = {**read_description(data), **changes}
    return safetensors.numpy.save(safetensors.numpy.load(data), {"rollax": json.dumps(description)})


@pytest.mark.parametrize("kind", ["plain", "recurrent"])
def test_a_loaded_policy_acts_as_the_original(request, kind):
    policy = request.getfixturevalue(kind)
    loaded = policy_from_bytes(policy_to_bytes(policy, 3))
    assert loaded.policy.name == "default_policy"
    there, here = SingleEpisode(loaded), SingleEpisode(policy)
    for obs in observations(4):
        np.testing.assert_allclose(there.act(obs), here.act(obs), rtol=1e-6)


@pytest.mark.long
def test_clients_explore_with_different_random_numbers(plain):
    data = policy_to_bytes(plain, 3)
    seen = [np.zeros(2, np.float32)] * 64
    policies = [policy_from_bytes(data, seed=seed) for seed in (None, None, 1, 1)]
    one, two, three, four = (policy.compute_actions(seen, explore=True)[0] for policy in policies)
    assert (one != two).any()
    np.testing.assert_array_equal(three, four)


def test_newer_weights_are_adopted(plain):
    newer = runner(seed=2)
    loaded = policy_from_bytes(policy_to_bytes(plain, 3))
    newer.policy.timestep = 77
    assert update_policy(loaded, policy_to_bytes(newer, 4)) == 4
    assert loaded.policy.timestep == 77
    seen = list(observations(16))
    np.testing.assert_array_equal(loaded.compute_actions(seen)[0], newer.compute_actions(seen)[0])
    with pytest.raises(CheckpointError, match="different policy"):
        update_policy(loaded, policy_to_bytes(runner(policy_id="other"), 5))


@pytest.mark.parametrize("wrong", ["weights/", "filter/"])
def test_refused_bytes_change_neither_weights_nor_filter(wrong):
    loaded, newer = (runner(seed=seed) for seed in (1, 2))
    newer.filter(observations(16), True)
    data = policy_to_bytes(newer, 4)
    arrays = safetensors.numpy.load(data)
    arrays |= {name: np.zeros((3, 3, 3)) for name in arrays if name.startswith(wrong)}
    seen = list(observations(16))
    before = loaded.compute_actions(seen, explore=False)[0], loaded.filter.state()["count"]
    with pytest.raises(RollaxError):
        update_policy(loaded, safetensors.numpy.save(arrays, {"rollax": json.dumps(read_description(data))}))
    np.testing.assert_array_equal(loaded.compute_actions(seen, explore=False)[0], before[0])
    assert loaded.filter.state()["count"] == before[1]
    update_policy(loaded, data)
    assert loaded.filter.state()["count"] == before[1] + 16


def test_a_header_that_is_too_large_is_not_parsed(plain):
    data = policy_to_bytes(plain, 3)
    length = int.from_bytes(data[:8], "little")
    spaces = b" " * (8 << 20)
    with pytest.raises(CheckpointError, match="not in the safetensors format"):
        read_description((length + len(spaces)).to_bytes(8, "little") + data[8 : 8 + length] + spaces)


def test_settings_of_the_environment_are_not_sent(plain):
    description = read_description(policy_to_bytes(runner(env_config={"password": "secret"}), 3))
    assert "secret" not in json.dumps(description)
    assert description["config"].keys().isdisjoint({"env", "env_config", "multiagent", "callbacks"})


def test_paths_of_data_are_not_sent():
    of_data = {"output": "secret/out", "input": {"sampler": 1, "secret/in": 1}, "input_folder": "secret/columns"}
    estimates = {"off_policy_estimation_input": "secret/data", "off_policy_estimation_methods": ["dm"]}
    data = policy_to_bytes(runner(DQN, **of_data, **estimates), 3)
    assert "secret" not in json.dumps(read_description(data))
    assert policy_from_bytes(data).policy.config.off_policy_estimation_methods == ("dm",)  # its condition was left out


def test_foreign_classes_are_neither_sent_nor_imported(plain, tmp_path, monkeypatch):
    class Own(PPO):
        pass

    refused(409, policy_to_bytes, runner(Own), 3, says="Clients do not have the code of this policy")
    (tmp_path / "bomb.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    good = read_description(policy_to_bytes(plain, 3))
    model = {**good["config"]["model"], "custom_model": "bomb:Model"}
    for changes in (
        {"class": "bomb:Policy"},
        {"class": "os:system"},
        {"class": "rollax.algorithms.ppo:PPOTrainer"},
        {"class": "rollax.policy.policy:Policy"},
        {"config": {**good["config"], "model": model}},
    ):
        raised(CheckpointError, policy_from_bytes, forged(plain, changes))


def test_a_model_that_is_larger_than_the_weights_is_not_built(plain, monkeypatch):
    config = read_description(policy_to_bytes(plain, 3))["config"]
    large = forged(plain, {"config": {**config, "model": {**config["model"], "fcnet_hiddens": [12_000, 12_000]}}})
    monkeypatch.setattr(PPO, "check_model", lambda *_: pytest.fail("the model is built"))
    raised(PolicyError, policy_from_bytes, large, says="larger than the stored weights")


def test_damaged_bytes_are_refused(plain):
    data = policy_to_bytes(plain, 3)
    for damaged in (b"", b"12345678", data[:100], data[:-1], b"\xff" * 8 + data[8:], safetensors.numpy.save({})):
        raised(CheckpointError, policy_from_bytes, damaged)
    for changes in (
        *({"format": "rollax-policy-9"}, {"version": -1}, {"timestep": 1.5}, {"policy_id": 3}, {"config": {}}),
        *({"config": {"lr": "high"}}, {"observation_space": {"type": "Box"}}),
        *({"observation_space": {"type": "Dict", "spaces": ["a"]}}, {"observation_space": None}),
        {"observation_filter": "Other"},
    ):
        raised(RollaxError, policy_from_bytes, forged(plain, changes))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    raised(CheckpointError, read_description, data)
