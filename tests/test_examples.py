"""Every example runs briefly in the tests, and reaches its stated result in the learning runs."""

import importlib.util
import math
import os
import re
import subprocess
import sys

import pytest
from ray import cloudpickle

from tests.marks import long_except
from tests.pages import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))

# Five iterations, which include a report of progress; fewer where they take minutes.
ONE = ("torch_sac", "crossq", "tqc", "r2d2", "her")
TWO = ("pettingzoo_aec", "remote_envs", "hierarchical_maze", "compare_two_policies", "learn_from_a_log")
ITERATIONS = {**dict.fromkeys(ONE, 1), **dict.fromkeys(TWO, 2)}

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
each_example_at_length = pytest.mark.parametrize(
    "example", long_except({"cartpole_ppo"}, {path.stem: path for path in EXAMPLES})
)


def test_the_readme_of_the_examples_lists_each():
    content = (REPOSITORY / "examples" / "README.md").read_text(encoding="utf-8")
    listed = {REPOSITORY / "examples" / target for target in re.findall(r"\]\(([^)]+)\)", content)}
    assert all(path.exists() for path in listed)
    assert set(EXAMPLES) <= listed


@each_example_at_length
def test_example_runs_briefly(example, monkeypatch):
    spec = importlib.util.spec_from_file_location(f"example_{example.stem}", example)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look up types there
    cloudpickle.register_pickle_by_value(module)  # worker processes cannot import it, as with a script's __main__
    spec.loader.exec_module(module)
    assert math.isfinite(module.main(iterations=ITERATIONS.get(example.stem, 5)))


@each_example
@pytest.mark.learning
def test_example_reaches_its_result(example, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run([sys.executable, str(example)], cwd=tmp_path, env=environment, check=True, timeout=1800)


@pytest.mark.learning
def test_64_seeds_balance_the_pole(tmp_path):
    """The table has the interquartile mean of the greedy rewards after the number of seeds."""
    command = ["train", f"--file={REPOSITORY / 'examples' / 'cartpole-64-seeds.yaml'}", "--seeds=64", "--out=set"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, "-m", "rollax", *command],
        cwd=tmp_path,
        env=environment,
        check=True,
        timeout=1800,
        capture_output=True,
        text=True,
    )
    assert "| PPO | jax:CartPole-v1 | 64 | 500 |" in done.stdout
    assert (tmp_path / "set" / "curves.png").exists()
