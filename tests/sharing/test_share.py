"""Shared runs: what is in them, how they are played and go on, and what is refused."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from rollax import PPOTrainer, load_policy
from rollax.errors import CheckpointError, ConfigError, RollaxError
from rollax.runs.results import RESULTS_NAME
from rollax.sharing.archive import write_zip
from rollax.sharing.card import commands_for
from rollax.sharing.needs import NeededCode
from rollax.sharing.score import read_score
from rollax.sharing.share import fetch_run, fetched, share_run
from tests.cli.command_line import invoke
from tests.env.refused import raised, refused
from tests.sharing.conftest import CONFIG
from tests.sharing.own_env import to_second


def changed_checkpoint(shared: Path, folder: Path, old: str, new: str) -> Path:
    """A copy of a shared run whose checkpoint has another text in `about.json`, with the right hash in its manifest."""
    shutil.copytree(shared, folder)
    checkpoint = next((folder / "checkpoints").iterdir())
    about, manifest = checkpoint / "about.json", checkpoint / "manifest.json"
    content = about.read_text().replace(old, new).encode()
    assert content != about.read_bytes()
    about.write_bytes(content)
    listed = json.loads(manifest.read_text())
    listed["files"]["about.json"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    manifest.write_text(json.dumps(listed))
    return folder


def needs_code(shared: Path) -> bool:
    """Whether the card says that the policy needs code of its author: it names the option that gives it."""
    return "--import" in (shared / "README.md").read_text()


def card_lines(shared: Path) -> list[str]:
    return (shared / "README.md").read_text().splitlines()


def test_the_best_checkpoint_is_shared_with_all_that_training_has_written(run, shared):
    (best,) = (run / "best").iterdir()
    (checkpoint,) = (shared / "checkpoints").iterdir()
    assert checkpoint.name == best.name
    theirs, ours = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in (best, checkpoint))
    assert ours == theirs
    for name in ("config.json", RESULTS_NAME):
        assert (shared / name).read_bytes() == (run / name).read_bytes()
    assert {file.name for file in shared.iterdir()} == {
        *("README.md", "checkpoints", "config.json", "curve.png", RESULTS_NAME, "score.json")
    }


def test_a_named_checkpoint_is_shared_itself(run, tmp_path):
    share_run(run / "checkpoints" / "checkpoint_000001", tmp_path / "out", episodes=1, video=False)
    assert [path.name for path in (tmp_path / "out" / "checkpoints").iterdir()] == ["checkpoint_000001"]


@pytest.mark.long
def test_a_checkpoint_without_a_run_is_shared(tmp_path):
    with PPOTrainer("CartPole-v1", CONFIG) as trainer:
        saved = Path(trainer.save(tmp_path / "saved")).rename(tmp_path / "renamed")
    place, _ = share_run(saved, tmp_path / "out.zip", episodes=1, video=False)
    assert load_policy(fetch_run(place, tmp_path / "fetched")).compute_single_action([0.0] * 4) in (0, 1)


@pytest.mark.long
def test_the_score_is_measured_again(shared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("play", shared, "--verify")
    shutil.copytree(shared, tmp_path / "boasting")
    score = json.loads((shared / "score.json").read_text())
    (tmp_path / "boasting" / "score.json").write_text(json.dumps({**score, "rewards": [500.0] * 3}))
    invoke("play", "boasting", "--verify", code=1)
    (tmp_path / "boasting" / "score.json").unlink()
    invoke("play", "boasting", "--verify", code=2)
    for option in ("--seed=3", "--episodes=2", "--video=videos"):
        assert f"got:      {option.partition('=')[2]}" in invoke("play", shared, "--verify", option, code=2).output


@pytest.mark.long
def test_commands_share_fetch_and_play(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    invoke("share", run, "--to=run.zip", "--episodes=2", "--no-video")
    assert len(read_score(Path(invoke("fetch", "run.zip", "--out=run").stdout.strip()).parents[1]).rewards) == 2
    assert invoke("play", "run.zip", "--episodes=2").stdout == invoke("play", "run", "--episodes=2").stdout
    invoke("evaluate", "run", "--episodes=1")
    invoke("play", "missing.zip", code=2)


@pytest.mark.long
def test_a_video_shows_an_episode(run, tmp_path):
    share_run(run, tmp_path / "out", episodes=1)
    assert (tmp_path / "out" / "replay.mp4").stat().st_size > 1000


@pytest.mark.parametrize("env", ["evil_module:CartPole-v1", "evil_module:Env"])
def test_an_environment_with_a_module_is_refused(shared, tmp_path, monkeypatch, env):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    hostile = changed_checkpoint(shared, tmp_path / "hostile", '"CartPole-v1"', f'"{env}"')
    monkeypatch.chdir(tmp_path)
    invoke("play", "hostile", code=2)
    refused(CheckpointError, share_run, hostile, tmp_path / "again", episodes=1)
    load_policy(fetch_run(hostile, tmp_path / "fetched"))  # which needs no environment
    assert "evil_module" not in sys.modules


@pytest.mark.long
def test_an_environment_of_ones_own_needs_trust_to_share_and_is_never_imported(shared, tmp_path, monkeypatch):
    own = "tests.sharing.own_env:OwnCartPole"
    monkeypatch.chdir(tmp_path)
    invoke("train", "--run=PPO", f"--env={own}", "--set", "train_batch_size=64", "--stop-iterations=1", "--out=run")
    invoke("share", "run", "--to=out", "--episodes=1", "--no-video", code=2)
    assert not (tmp_path / "out").exists()
    invoke("share", "run", "--to=out", "--episodes=1", "--no-video", "--trust-code")
    assert needs_code(tmp_path / "out")
    assert not needs_code(shared)
    refusal = invoke("play", "out", "--episodes=1", code=2).stderr
    assert f"--env={own}" in refusal
    assert "--trust-code" not in refusal
    commands = [line.split() for line in card_lines(tmp_path / "out") if line.startswith("rollax")]
    (verify,) = (words for words in commands if "--verify" in words)
    assert verify[:2] == ["rollax", "play"]
    invoke(*verify[1:])
    assert f"--env={own}" in next(words for words in commands if words[1] == "train")


def test_a_card_of_code_that_play_has_no_option_for():
    code = NeededCode({"model.custom_model": "my_models:Net"})
    pip, *commands = commands_for("run.zip", code, code.options, ["rollax[video]"]).splitlines()
    assert pip == "pip install 'rollax[video]'"
    assert [line.split()[1] for line in commands] == ["fetch", "evaluate", "train"]
    assert ["--trust-code" in line for line in commands] == [False, True, True]


@pytest.mark.long
def test_the_card_loads_a_policy_that_learns_and_trusts_no_code_that_it_does_not_need(tmp_path):
    policies = {"policies": ["first", "second"], "policies_to_train": ["second"], "policy_mapping_fn": to_second}
    with PPOTrainer("CartPole-v1", {**CONFIG, "multiagent": policies}) as trainer:
        trainer.fit({"training_iteration": 1}, tmp_path / "own", progress="none", evaluate=False)
    share_run(tmp_path / "own", tmp_path / "run", episodes=1, video=False, trust_code=True)
    lines = card_lines(tmp_path / "run")
    python = lines[lines.index("```python") + 1 : lines.index("```", lines.index("```python"))]
    names = {"obs": [0.0] * 4}
    exec("\n".join(python).replace("run/", f"{tmp_path}/run/"), names)  # noqa: S102 - written above
    assert names["policy"].policy.name == "second"
    assert names["action"] in (0, 1)
    assert not any("trust_code" in line for line in python)


def test_another_environment_of_the_score_is_in_the_commands_of_the_card(run, tmp_path):
    with pytest.warns(DeprecationWarning, match="CartPole-v0"):
        share_run(run, tmp_path / "out", episodes=1, video=False, env="CartPole-v0")
    assert not needs_code(tmp_path / "out")
    played = [line for line in card_lines(tmp_path / "out") if line.startswith("rollax play")]
    assert played
    assert all("--env=CartPole-v0" in line for line in played)


def test_a_video_that_the_missing_extra_prevents_is_named(run, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    share_run(run, tmp_path / "out", episodes=1)
    assert "rollax[video]" in caplog.text
    assert not (tmp_path / "out" / "replay.mp4").exists()


def test_errors_about_the_files_of_a_zip_name_the_zip(run, shared, tmp_path):
    shutil.copytree(shared, tmp_path / "run")
    (about,) = (tmp_path / "run").glob("checkpoints/*/about.json")
    about.write_bytes(about.read_bytes() + b" ")
    write_zip(tmp_path / "run", tmp_path / "run.zip")
    assert f"{tmp_path / 'run.zip'}/checkpoints" in invoke("play", tmp_path / "run.zip", code=2).stderr


def test_what_exists_is_not_replaced(run, shared, tmp_path):
    for name in ("folder", "file.zip"):
        (tmp_path / name).touch()
        refused(ConfigError, share_run, run, tmp_path / name)
        refused(ConfigError, fetch_run, shared, tmp_path / name)
        assert (tmp_path / name).read_bytes() == b""


@pytest.mark.parametrize("name", ["README.md", "checkpoints", "checkpoints/*", "checkpoints/*/state.json"])
def test_links_in_a_folder_are_refused(shared, tmp_path, name):
    shutil.copytree(shared, tmp_path / "run")
    (path,) = (tmp_path / "run").glob(name)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    raised(CheckpointError, fetch_run, tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["", "checkpoints/*", "checkpoints"])
def test_what_is_no_run_folder_is_refused(shared, tmp_path, name):
    (path,) = [tmp_path] if not name else shared.glob(name)
    raised(RollaxError, fetch_run, path, tmp_path / "out")


def test_a_fetched_copy_ends_with_its_block(shared):
    with fetched(shared) as folder:
        files = {path.relative_to(shared): path.read_bytes() for path in shared.rglob("*") if path.is_file()}
        assert {name: (folder / name).read_bytes() for name in files} == files
    assert not folder.exists()
