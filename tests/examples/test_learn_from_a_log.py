"""The log of the example: each worker reads its own part, and all written steps are read."""

import numpy as np
import pytest

from examples import learn_from_a_log
from examples.learn_from_a_log import Log, write_log
from rollax import EnvContext, RolloutWorker
from tests.rollout.worlds import Weighted


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(learn_from_a_log, "EPISODES", 5)
    write_log(tmp_path / "log.csv")
    return tmp_path / "log.csv"


def numbers_read(path, worker_index, num_workers):
    context = EnvContext({"path": str(path)}, worker_index=worker_index, num_workers=num_workers)
    return [int(lines[0]["episode"]) for lines in Log(context).episodes]


def test_each_worker_reads_its_part(path):
    assert numbers_read(path, 0, 0) == [0, 1, 2, 3, 4]
    assert numbers_read(path, 1, 2) == [0, 2, 4]
    assert numbers_read(path, 2, 2) == [1, 3]


def test_all_written_steps_are_read(path):
    lines = [line.split(",") for line in path.read_text().splitlines()[1:]]
    # (observation, action, reward) -> whether the trajectory terminates there, which is in the line after the last
    # step.
    written = {
        tuple(np.float32(line[1:7]).tolist()): after[7] == "1"
        for line, after in zip(lines, [*lines[1:], lines[0]], strict=True)
        if line[5]
    }
    config = {"rollout_fragment_length": len(written), "accept_off_policy_actions": True}
    worker = RolloutWorker(Log, Weighted, config={"env_config": {"path": str(path)}, **config})
    found = {}
    while len(found) < len(written):
        batch = worker.sample()
        assert batch["off_policy"].all()
        rows = np.column_stack([batch["obs"], batch["actions"], batch["rewards"]]).astype(np.float32)
        found |= dict(zip(map(tuple, rows.tolist()), batch["terminateds"].tolist(), strict=True))
        assert found.items() <= written.items()
    worker.stop()
    assert found == written
    assert 3 < sum(found.values()) <= 5  # some may be truncated
