"""Sharing by the Hugging Face Hub, against a local stand-in of its HTTP interface."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rollax import load_policy
from rollax.errors import CheckpointError, ConfigError, RollaxError
from rollax.sharing.share import fetch_run, share_run
from tests.env.refused import refused
from tests.sharing.hub_stand_in import TOKEN, HubStandIn, running

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStandIn]:
    with running() as stand_in:
        # What HF_ENDPOINT and HF_HOME set when huggingface_hub is imported.
        monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
        address = f"{stand_in.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield stand_in


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.long
def test_a_run_goes_to_the_hub_and_comes_back(hub, run, tmp_path):
    address, score = share_run(run, "hub:me/cartpole", episodes=3, video=False)
    assert address == f"{hub.url}/me/cartpole"
    files = hub.repositories["me/cartpole"].files
    checkpoint = fetch_run("hub:me/cartpole", tmp_path / "run")
    assert contents(tmp_path / "run") == files
    assert load_policy(checkpoint).compute_single_action([0.0] * 4) in (0, 1)
    (card,) = hub.cards
    (result,) = card["model-index"][0]["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"]["type"] == "CartPole-v1"
    assert [(metric["type"], metric["value"]) for metric in result["metrics"]] == [("mean_reward", str(score))]


def test_a_later_version_replaces_the_earlier_one(hub, run):
    share_run(run / "checkpoints" / "checkpoint_000001", "hub:me/cartpole", episodes=1, video=False)
    share_run(run / "checkpoints" / "checkpoint_000002", "hub:me/cartpole", episodes=1, video=False)
    files = hub.repositories["me/cartpole"].files
    assert {name.split("/")[1] for name in files if "/" in name} == {"checkpoint_000002"}


@pytest.mark.long
def test_a_private_repository_needs_the_token(hub, run, tmp_path, monkeypatch):
    share_run(run, "hub:me/secret", episodes=1, video=False, private=True)
    fetch_run("hub:me/secret", tmp_path / "mine")
    monkeypatch.setenv("HF_TOKEN", "hf_of_another_user")
    refused(RollaxError, fetch_run, "hub:me/secret", tmp_path / "theirs")
    refused(RollaxError, share_run, run, "hub:me/secret", episodes=1, video=False)
    assert not (tmp_path / "theirs").exists()


@pytest.mark.long
def test_files_that_are_no_part_of_a_run_are_not_fetched(hub, run, tmp_path):
    share_run(run, "hub:me/cartpole", episodes=1, video=False)
    files = hub.repositories["me/cartpole"].files
    own = set(files)
    files |= {"setup.py": b"raise SystemExit", "../outside": b"", "checkpoints/../../outside": b"", "a/model.pkl": b""}
    fetch_run("hub:me/cartpole", tmp_path / "run")
    assert set(contents(tmp_path / "run")) == own


@pytest.mark.short("False")
@pytest.mark.parametrize("states_its_size", [True, False])
def test_a_file_that_is_too_large_is_refused(hub, run, tmp_path, states_its_size):
    share_run(run, "hub:me/cartpole", episodes=1, video=False)
    repository = hub.repositories["me/cartpole"]
    repository.files["score.json"] = b" " * (2 << 20)
    if not states_its_size:
        repository.sizes["score.json"] = 1
    refused(CheckpointError, fetch_run, "hub:me/cartpole", tmp_path / "run", says="score.json")
    assert not (tmp_path / "run").exists()


def test_what_is_no_shared_run_is_refused(hub, run, tmp_path):
    share_run(run, "hub:me/cartpole", episodes=1, video=False)
    repository = hub.repositories["me/cartpole"]
    repository.files = {"README.md": repository.files["README.md"]}
    for place in ("hub:me/cartpole", "hub:me/unknown"):
        refused(RollaxError, fetch_run, place, tmp_path / "run")


@pytest.mark.parametrize(
    "place", ["hub:", "hub:cartpole", "hub:me/", "hub:me/../you", "hub:../you", "hub:me/..", "hub:a/b/c", "hub:me/a b"]
)
def test_a_name_that_is_no_repository_is_refused(run, tmp_path, place):
    refused(ConfigError, share_run, run, place)
    refused(ConfigError, fetch_run, place, tmp_path / "run")
