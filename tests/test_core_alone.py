"""The core trains, evaluates, saves and restores without the folders of its extensions."""

import ast
import shutil
from pathlib import Path

import pytest

import rollax
from tests.python_process import output_of

EXTENSIONS = ("many", "offline", "search", "selfplay", "serving", "torch")
SCRIPT = """
import numpy as np
import rollax
from rollax import *

assert "DQNTrainer" in globals()
assert not {{"BCTrainer", "ESTrainer", "League", "DatasetReader", "PolicyClient", "TorchPolicy"}} & set(globals())
assert rollax.__file__.startswith({folder!r}), rollax.__file__
small = {{"seed": 0, "model": {{"fcnet_hiddens": (8,)}}, "evaluation_num_episodes": 1, "evaluation_interval": 1}}
replayed = {{"learning_starts": 32, "train_batch_size": 16, "buffer_size": 500, "timesteps_per_iteration": 64}}
RUNS = {{
    "PPO": ("CartPole-v1", {{"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1}}),
    "DQN": ("CartPole-v1", {{**replayed, "initial_epsilon": 0.5}}),
    "SAC": ("Pendulum-v1", {{**replayed, "random_steps": 16}}),
    "IMPALA": ("CartPole-v1", {{"train_batch_size": 64, "rollout_fragment_length": 32}}),
}}
for name, (env, settings) in RUNS.items():
    with getattr(rollax, name + "Trainer")(env, {{**small, **settings}}) as trainer:
        before = trainer.get_weights()["default_policy"]
        result = trainer.train()
        after = trainer.get_weights()["default_policy"]
        assert any((after[key] != before[key]).any() for key in before)
        assert result["evaluation"]["episodes"] == 1
        assert trainer.evaluate(2)["episodes"] == 2
        path = trainer.save(name)
    with Trainer.from_checkpoint(path) as trainer:
        for key, value in trainer.get_weights()["default_policy"].items():
            np.testing.assert_array_equal(value, after[key])
        assert trainer.train()["training_iteration"] == 2
        space = trainer.get_policy().observation_space
        assert trainer.compute_single_action(space.sample()) is not None
    try:
        getattr(rollax, name + "Config")(output="data")
    except rollax.ConfigError as error:
        assert error.parts["where"].startswith("config key 'output'"), error
    else:
        raise AssertionError("a key of an extension that is not there")
print(sorted(rollax.algorithms.registry.ALGORITHMS))
"""


@pytest.fixture(scope="module")
def core_alone(tmp_path_factory) -> Path:
    """A folder with the package, without its extensions."""
    folder, package = tmp_path_factory.mktemp("core"), Path(rollax.__file__).parent

    def left_out(path: str, names: list[str]) -> set[str]:
        return {"__pycache__", *(EXTENSIONS if Path(path) == package else ())}.intersection(names)

    shutil.copytree(package, folder / "rollax", ignore=left_out)
    return folder


@pytest.mark.long
def test_algorithms_of_the_core(core_alone):
    script = SCRIPT.format(folder=str(core_alone))
    output = output_of("-c", script, cwd=core_alone, env={"PYTHONPATH": str(core_alone)})
    algorithms = set(ast.literal_eval(output.strip().splitlines()[-1]))
    assert {"PPO", "DQN", "SAC", "IMPALA"} <= algorithms
    assert not {"BC", "CQL", "ES", "ARS"} & algorithms
