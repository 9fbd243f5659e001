"""Checkpoints that earlier versions saved are opened, act as they did, and go on training."""

import json

import numpy as np
import pytest

from rollax import Trainer, __version__
from tests.saved.cases import CASES, FOLDER, answers

CHECKPOINTS = {
    f"{path.parent.parent.name}/{path.parent.name}": path.parent for path in FOLDER.glob("*/*/manifest.json")
}


def recorded_with(path):
    return json.loads(path.with_suffix(".json").read_text())


def test_this_version_has_all_checkpoints():
    assert {name for name in CHECKPOINTS if name.startswith(f"{__version__}/")} == {
        f"{__version__}/{name}" for name in CASES
    }


@pytest.mark.parametrize("name", sorted(CHECKPOINTS))
def test_a_checkpoint_holds_no_path_of_the_machine_that_saved_it(name):
    assert not {"/", "\\"} & set((CHECKPOINTS[name] / "about.json").read_text())


@pytest.mark.short(
    "0.1.0/ars",
    "0.1.0/dqn",
    "0.1.0/impala",
    "0.1.0/marwil",
    "0.1.0/ppo",
    "0.1.0/ppo_bonuses",
    "0.1.0/ppo_lstm",
    "0.1.0/ppo_two_policies",
    "0.1.0/pqn",
    "0.1.0/sac",
    "0.1.0/td3",
    "0.1.0/tqc",
)
@pytest.mark.parametrize("name", sorted(CHECKPOINTS))
def test_policies_act_as_recorded(name):
    recorded = recorded_with(CHECKPOINTS[name])["policies"]
    observations = {policy_id: parts["observations"] for policy_id, parts in recorded.items()}
    for policy_id, now in answers(CHECKPOINTS[name], observations).items():
        then = recorded[policy_id]
        # A later version may fetch more.
        fetches = {key: now["fetches"][key] for key in then["fetches"]}
        for part, value in {"actions": now["actions"], "states": now["states"], **fetches}.items():
            expected = {**then, **then["fetches"]}[part]
            assert np.shape(value) == np.shape(expected)
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=f"{policy_id}: {part}")


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(CHECKPOINTS))
def test_training_continues(name):
    recorded = recorded_with(CHECKPOINTS[name])
    with Trainer.from_checkpoint(CHECKPOINTS[name], trust_code=True) as trainer:
        assert (trainer.iteration, trainer.optimizer.steps) == (recorded["iteration"], recorded["timesteps_total"])
        before = trainer.get_weights()
        result = trainer.train()
        assert result["training_iteration"] == recorded["iteration"] + 1
        assert result["timesteps_total"] > recorded["timesteps_total"]
        for policy_id, weights in trainer.get_weights().items():
            assert any((value != before[policy_id][key]).any() for key, value in weights.items())
