"""Scores of shared runs, with numbers derived by hand."""

import pytest

from rollax.core.storage import to_json_bytes
from rollax.errors import CheckpointError
from rollax.sharing.score import Score, read_score, write_score


def score(*rewards: float) -> Score:
    return Score("CartPole-v1", 0, rewards, 100, {"python": "3.11"}, "2026-01-01")


def test_mean_and_deviation():
    assert (score(1.0, 3.0).mean, score(1.0, 3.0).deviation) == (2.0, 1.0)
    assert str(score(1.0, 3.0)) == "2.00 +/- 1.00"


@pytest.mark.parametrize(
    ("other", "agreement"),
    [
        ((1.0, 3.0), "equal"),
        ((3.0, 1.0), "close"),
        # Deviations 1 and 1 over two episodes each: standard error sqrt(1/2 + 1/2) = 1, so means up to 2 + 3 are close.
        ((4.0, 6.0), "close"),
        ((4.2, 6.2), "different"),
        # Deviation 0: standard error sqrt(1/2), three of which are 2.12.
        ((4.1,), "close"),
        ((4.2,), "different"),
    ],
)
def test_agreement(other, agreement):
    assert score(1.0, 3.0).agreement(score(*other)) == agreement


def test_constant_rewards_agree_only_if_equal():
    assert score(500.0, 500.0).agreement(score(500.0)) == "close"
    assert score(500.0, 500.0).agreement(score(499.0, 499.0)) == "different"


def test_a_score_is_read_as_it_was_written(tmp_path):
    assert read_score(tmp_path) is None
    write_score(score(1.5, 2.5), tmp_path)
    assert read_score(tmp_path) == score(1.5, 2.5)


WITHOUT_EPISODES = {"env": "a", "seed": 0, "rewards": [], "timesteps": 1, "versions": {}, "date": "2026-01-01"}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"rewards": []}', b"\xff", b" " * (2 << 20), to_json_bytes(WITHOUT_EPISODES)]
)
def test_a_damaged_score_is_refused(tmp_path, content):
    (tmp_path / "score.json").write_bytes(content)
    with pytest.raises(CheckpointError):
        read_score(tmp_path)
