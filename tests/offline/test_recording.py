"""`output` writes the environment's values and the policy's outputs exactly, for every kind of environment."""

import gc
import math
import subprocess
import sys
import weakref
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rollax import (
    DQN,
    PG,
    Callbacks,
    ConfigError,
    DatasetError,
    EnvError,
    MultiAgentEnv,
    PGTrainer,
    RolloutWorker,
    open_dataset,
)
from rollax.batch import Fragment
from rollax.core import trees
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.describe import describe
from rollax.rollout import worker_set
from tests.env.external.worlds import Scripted
from tests.env.kinds import EXTERNAL, KINDS, REMOTE
from tests.env.refused import refused
from tests.offline.worlds import ACTIONS, IMAGE, MASKED, NESTED, Acts, Random, Two
from tests.rollout.test_given_served_lost import Slots

CONFIG = {"num_envs_per_worker": 3, "rollout_fragment_length": 7, "seed": 1}
Written = dict[str, list[RecordedTrajectory]]


def played(env: Any, folder: Any, policies: Any = Acts, samples: int = 5, mapping: Any = None, **changes: Any):
    """The fragments of some samples and the written trajectories, both by policy, and the reader."""
    config = {**CONFIG, "output": str(folder), **changes}
    worker = RolloutWorker(env, policies, policy_mapping_fn=mapping, config=config)
    fragments: dict[str, list[Fragment]] = {}
    for _ in range(samples):
        for policy_id, fragment in worker.sampler.sample()[0].items():
            fragments.setdefault(policy_id, []).append(fragment)
    worker.stop()
    reader = open_dataset(folder)
    written: Written = {}
    for trajectory in reader.trajectories():
        written.setdefault(trajectory.policy_id, []).append(trajectory)
    assert len(reader) == sum(len(one) for group in written.values() for one in group)
    return fragments, written, reader


def sampled_trajectories(fragments: Iterable[Fragment]) -> list[dict[str, Any]]:
    """Each sampled trajectory, joined over fragments, ordered by its id."""
    parts: dict[int, list[Fragment]] = {}
    for fragment in fragments:
        for segment in fragment.segments():
            parts.setdefault(int(segment["trajectory_id"][0]), []).append(segment)
    joined = []
    for number in sorted(parts):
        segments = parts[number]
        columns = {name: trees.concat([part[name] for part in segments]) for name in segments[0]}
        joined.append({**columns, "obs": trees.concat((columns["obs"], segments[-1].after["obs"]))})
    return joined


def check(fragments: list[Fragment], written: list[RecordedTrajectory]) -> None:
    """Asserts that all sampled rows were written bit for bit; only the last rows of each slot can be additional."""
    expected = sampled_trajectories(fragments)
    assert expected
    by_first = {first(one): one for one in expected}
    assert len(by_first) == len(expected)
    found = 0
    for trajectory in written:
        learned = by_first.get(first(trajectory.columns))
        if learned is None:  # it begins after the last fragment
            assert len(trajectory) <= 2
            continue
        found += 1
        steps, columns = len(learned["rewards"]), trajectory.columns
        over = bool(learned["terminateds"][-1] or learned["truncateds"][-1])
        assert len(trajectory) == steps if over else steps <= len(trajectory) <= steps + 1
        if over:
            ends = trajectory.terminated, trajectory.truncated
            assert ends == (learned["terminateds"][-1], learned["truncateds"][-1])
        assert trajectory.agent_id == learned["agent_id"][0]
        for name in ("actions", "t", "action_logp", "action_dist_inputs"):
            trees.tree_map(same, trees.index(columns[name], slice(steps)), learned[name])
        trees.tree_map(same, trees.index(columns["obs"], slice(steps + 1)), learned["obs"])
        assert columns["rewards"].dtype == np.float64
        same(columns["rewards"][:steps].astype(np.float32), learned["rewards"])
    assert found == len(expected)


def first(columns: Any) -> bytes:
    """Identifies a trajectory by the outputs in its first row."""
    return columns["action_dist_inputs"][0].tobytes()


def same(a: Any, b: Any) -> None:
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


@pytest.mark.short(every=3)
@pytest.mark.parametrize("kind", [*KINDS, *EXTERNAL])
def test_every_kind_of_environment(kind, tmp_path):
    make = {**KINDS, **EXTERNAL}[kind].make
    fragments, written, reader = played(lambda context: make(3), tmp_path)
    check(fragments["default_policy"], written["default_policy"])
    assert reader.actions_of == "policy"
    by_episode = [trajectory.episode_id for trajectory in written["default_policy"]]
    changes = sum(a != b for a, b in pairwise(by_episode))
    assert changes + 1 == len(set(by_episode))  # trajectories of an episode are adjacent


@pytest.mark.long
@pytest.mark.parametrize("kind", REMOTE)
def test_environments_in_other_processes(kind, tmp_path):
    fragments, written, _ = played(lambda context: REMOTE[kind].make(3), tmp_path)
    check(fragments["default_policy"], written["default_policy"])


@pytest.mark.parametrize("space", [NESTED, IMAGE, MASKED], ids=["nested", "image", "masked"])
def test_every_shape_of_space(space, tmp_path):
    fragments, written, reader = played(lambda context: Random(space, ACTIONS), tmp_path, output_infos=True)
    check(fragments["default_policy"], written["default_policy"])
    for trajectory in written["default_policy"]:
        actions, sent = trajectory.columns["actions"], trajectory.columns["env_actions"]
        assert all(reader.action_spaces["default_policy"].contains(row) for row in trees.unstack(sent))
        same(sent[0], np.clip(2 + 4 * actions[0].astype(np.float64), -2, 6).astype(np.float32))
        infos = trajectory.columns["infos"]
        assert infos[0].keys() == {"left", "array"}
        assert infos[0]["array"] == [0, 1]
        assert [info["left"] for info in infos] == [infos[0]["left"] - i for i in range(len(infos))]
        assert infos[1].keys() == {"left", "tuple"}  # without the object, which JSON cannot store


def test_policies_with_different_spaces(tmp_path):
    specs = {"sees": (Acts, IMAGE, Two.action_spaces["eye"], {}), "moves": (Acts, NESTED, ACTIONS, {})}
    mapping = {"eye": "sees", 7: "moves"}
    fragments, written, _ = played(Two, tmp_path, specs, mapping=lambda agent: mapping[agent])
    assert written.keys() == fragments.keys() == {"sees", "moves"}
    for policy_id in written:
        check(fragments[policy_id], written[policy_id])
    ended = [one for one in written["moves"] if not one.cut]
    assert {(len(one), one.terminated, one.agent_id) for one in ended} == {(2, True, 7)}
    assert [one.columns["t"].tolist() for one in ended] == [[0, 2]] * len(ended)


class Wide(MultiAgentEnv):
    """Agents that observe so many zeros each; episodes of `length` steps, by default endless ones."""

    def __init__(self, sizes, length=math.inf):
        self.possible_agents, self.length = tuple(sizes), length
        self.observation_spaces = {agent: spaces.Box(-1, 1, (size,), np.float32) for agent, size in sizes.items()}
        self.action_spaces = dict.fromkeys(sizes, spaces.Discrete(2))
        self.obs = {agent: np.zeros(size, np.float32) for agent, size in sizes.items()}

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return self.obs, {}

    def step(self, actions):
        self.count += 1
        return self.obs, dict.fromkeys(self.obs, 0.0), {"__all__": self.count == self.length}, {"__all__": False}, {}


@pytest.mark.parametrize("order", [("much", "little"), ("little", "much")])
def test_the_rows_in_memory_of_all_policies_are_limited(tmp_path, monkeypatch, order):
    # 35 rows of each of three agents with 400 bytes are 42 KB; 210 rows of the others are at most 10 KB.
    monkeypatch.setattr("rollax.offline.recorder._MOST_BYTES", 20_000)
    env = Wide({"much": 100, "little": 1})
    specs = {agent: (Acts, env.observation_spaces[agent], env.action_spaces[agent], {}) for agent in order}
    _, written, _ = played(lambda _: Wide({"much": 100, "little": 1}), tmp_path, specs, mapping=lambda agent: agent)
    for agent in order:
        parts = [one for one in written[agent] if one.episode_id == written[agent][0].episode_id]
        assert len(parts) > 1  # running episodes are written before the end
        assert np.concatenate([one.columns["t"] for one in parts]).tolist() == list(range(sum(map(len, parts))))


class Describing(gym.Env):
    """Infos of 8 KB, and observations of 4 bytes; episodes do not end."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"map": np.zeros(1000)}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {"map": np.zeros(1000)}


def test_infos_in_memory_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("rollax.offline.recorder._MOST_BYTES", 10 * 8000)
    config = {"rollout_fragment_length": 50, "seed": 1, "output": str(tmp_path), "output_infos": True}
    worker = RolloutWorker(Describing, Acts, config=config)
    worker.sampler.sample()
    (rows,) = worker.sampler.recorder._trajectories.values()
    assert len(rows) <= 20  # of 50; the next write waits until there are twice as many rows as after the last one
    worker.stop()
    assert sum(map(len, open_dataset(tmp_path).trajectories())) == 50


@pytest.mark.parametrize(("name", "most"), [("_FINISHED_STEPS_AT_ONCE", 20), ("_MOST_BYTES", 60 * 450)])
def test_finished_episodes_are_written_without_cutting_others(tmp_path, monkeypatch, name, most):
    monkeypatch.setattr(f"rollax.offline.recorder.{name}", most)
    config = {"num_envs_per_worker": 2, "rollout_fragment_length": 200, "seed": 1, "output": str(tmp_path)}
    worker = RolloutWorker(lambda _: Wide(dict.fromkeys("abc", 100), 10), Acts, config=config)
    worker.sampler.sample()
    (rows,) = worker.sampler.recorder._trajectories.values()
    assert len(rows) <= 120  # of the 1200 that were sampled
    worker.sampler.restart()
    worker.stop()
    found = list(open_dataset(tmp_path).trajectories())
    assert sum(map(len, found)) == 1200
    assert not any(one.cut for one in found)


class Fives(gym.Env):
    """Episodes of five steps with the reward 1; the step `fails_at` raises."""

    observation_space, action_space = spaces.Box(0, 5, (1,), np.float32), spaces.Discrete(2)
    taken, fails_at = 0, 23

    def reset(self, *, seed=None, options=None):
        self.step_in_episode = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.taken, self.step_in_episode = self.taken + 1, self.step_in_episode + 1
        if self.taken == self.fails_at:
            raise ValueError("once")
        return np.full(1, self.step_in_episode, np.float32), 1.0, self.step_in_episode == 5, False, {}


class RaisesOnce(Callbacks):
    ended = 0

    def on_episode_end(self, *, worker, base_env, episode):
        self.ended += 1
        if self.ended == 4:
            raise ValueError("once")


def test_episodes_that_ended_before_an_error_are_written_when_sampling_goes_on(tmp_path):
    config = {"rollout_fragment_length": 50, "output": str(tmp_path)}
    worker = RolloutWorker(lambda _: Fives(), Acts, config=config)
    refused(EnvError, worker.sample, says="once")
    worker.sample()
    worker.stop()
    # Four episodes before the error, which drops three steps, and then 50 steps.
    assert [len(one) for one in open_dataset(tmp_path).trajectories() if not one.cut] == [5] * 14


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_episode_whose_end_is_interrupted_has_no_row_without_its_reward(tmp_path, goes_on):
    config = {"rollout_fragment_length": 50, "output": str(tmp_path), "callbacks": RaisesOnce}
    worker = RolloutWorker(lambda _: Fives(), Acts, config=config)
    worker.env.env.envs[0].fails_at = 0
    with pytest.raises(ValueError, match="once"):
        worker.sample()
    if goes_on:
        worker.sample()
    worker.stop()
    found = list(open_dataset(tmp_path).trajectories())
    assert [len(one) for one in found if not one.cut] == [5] * (13 if goes_on else 3)
    assert all((one.columns["rewards"] == 1).all() for one in found)


class Reusing(Random):
    """An environment that changes the arrays and lists of its info dict in place."""

    def __init__(self):
        super().__init__(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2))
        self.info = {"place": np.zeros(2), "inner": {"path": []}}

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        self.info["place"][:] = 0
        self.info["inner"]["path"].clear()
        return obs, self.info

    def step(self, action):
        obs, reward, terminated, truncated, _ = super().step(action)
        self.info["place"] += 1
        self.info["inner"]["path"].append(1)
        return obs, reward, terminated, truncated, self.info


def test_infos_are_those_of_their_step(tmp_path):
    _, written, _ = played(lambda context: Reusing(), tmp_path, output_infos=True)
    assert max(map(len, written["default_policy"])) > 2
    for trajectory in written["default_policy"]:
        infos = [{"place": [t, t], "inner": {"path": [1] * t}} for t in range(len(trajectory) + 1)]
        assert trajectory.columns["infos"].tolist() == infos


def test_observations_before_the_filter(tmp_path):
    env = KINDS["id"].make
    raw, _, _ = played(lambda context: env(3), tmp_path / "raw")
    _, written, reader = played(lambda context: env(3), tmp_path / "filtered", observation_filter="MeanStdFilter")
    seen = np.concatenate([one["obs"] for one in sampled_trajectories(raw["default_policy"])])
    observations = np.concatenate([one.columns["obs"] for one in written["default_policy"]])
    assert {row.tobytes() for row in observations} >= {row.tobytes() for row in seen if row[0] == 0}
    assert reader.header["filters"]["default_policy"]["count"] > 0


def shortened(env, steps=9):
    return gym.wrappers.TimeLimit(env, max_episode_steps=steps)


def test_the_header_names_the_wrappers(tmp_path):
    wrappers = [shortened, ("gymnasium.wrappers:TimeLimit", {"max_episode_steps": 7})]
    _, _, reader = played("CartPole-v1", tmp_path, env_wrappers=wrappers)
    path = f"{__name__}:shortened"
    named = [{"$code": path}, ["gymnasium.wrappers:TimeLimit", {"max_episode_steps": 7}]]
    assert reader.header["env_wrappers"] == named
    assert path in str(describe(reader)).splitlines()[1]


def test_another_sampler_is_refused(tmp_path):
    from examples.own_sampler import PlainSampler

    with pytest.raises(ConfigError, match="output"):
        RolloutWorker("CartPole-v1", Acts, config={**CONFIG, "output": str(tmp_path), "sampler": PlainSampler})


def test_evaluation_writes_nothing_and_cuts_running_trajectories(tmp_path):
    worker = RolloutWorker(lambda context: Random(MASKED, ACTIONS), Acts, config={**CONFIG, "output": str(tmp_path)})
    steps = worker.sample().count
    worker.evaluate(4)
    worker.stop()
    written = list(open_dataset(tmp_path).trajectories())
    assert steps <= sum(map(len, written)) <= steps + 3
    assert any(one.cut for one in written)


def test_logged_actions_served_and_lost_episodes(tmp_path):
    env = Slots(4, given={1: 7}, served=(2,), lost={6: (0,)})
    fragments, written, _ = played(lambda context: env, tmp_path, samples=3, accept_off_policy_actions=True)
    slots = {int(one.columns["obs"][0, 0]) - 1 for one in written["default_policy"]}
    assert slots == {0, 1, 3}  # slot 2 has training disabled
    for trajectory in written["default_policy"]:
        logged = trajectory.columns["obs"][0, 0] == 2
        assert np.isnan(trajectory.columns["action_logp"]).all() == logged
        assert np.isnan(trajectory.columns["action_logp"]).any() == logged
        assert not logged or set(trajectory.columns["actions"].tolist()) == {7}
    cut = [trajectory for trajectory in written["default_policy"] if trajectory.cut]
    assert len(cut) <= 3  # trajectories that ran at the end, without the lost one
    assert sum(map(len, written["default_policy"])) >= sum(map(len, fragments["default_policy"]))


@pytest.mark.parametrize("policy_class", [PG, DQN])
def test_known_log_probabilities_of_given_actions_are_written(policy_class, tmp_path):
    """Not those of the policy's own actions for the same observations."""

    def script(env):
        episodes = env._external_episodes
        episodes.start("one", True)
        for logp in (-9.5, None, -0.25):
            episodes.log("one", {"agent0": np.zeros(2)}, {"agent0": 1}, {"agent0": logp})
        episodes.end("one", {"agent0": np.zeros(2)}, False)

    env = Scripted(script, spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3))
    config = {"output": str(tmp_path), "accept_off_policy_actions": True} if policy_class is PG else {}
    worker = RolloutWorker(lambda _: env, policy_class, config={"output": str(tmp_path), "seed": 1, **config})
    for _ in range(3):
        worker.sampler.step()
    worker.stop()
    [written] = open_dataset(tmp_path).trajectories()
    np.testing.assert_array_equal(written.columns["action_logp"], np.array([-9.5, np.nan, -0.25], np.float32))


PROGRAM = """
import sys
from rollax import PGTrainer

trainer = PGTrainer("CartPole-v1", {"output": sys.argv[1], "seed": 0, "train_batch_size": 100})
trainer.train()
"""


@pytest.mark.long
def test_a_program_without_stop_writes_all_trajectories(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "out")], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(open_dataset(tmp_path / "out")) >= 100


def test_a_fork_leaves_the_file_to_its_parent(tmp_path, monkeypatch):
    config = {"output": str(tmp_path / "out"), "model": {"fcnet_hiddens": (4,)}, "train_batch_size": 50}
    with PGTrainer("CartPole-v1", config) as trainer:
        trainer.train()
        monkeypatch.setattr(worker_set.os, "getpid", lambda: 0)
        worker_set._stop_recording()
        assert list((tmp_path / "out").glob("*.parquet")) == []
        monkeypatch.undo()
        worker_set._stop_recording()
        (path,) = (tmp_path / "out").glob("*.parquet")
    assert list((tmp_path / "out").iterdir()) == [path]


@pytest.mark.long
def test_workers_dropped_without_stop_are_freed_and_warn(tmp_path, caplog):
    config = {"output": str(tmp_path / "out"), "model": {"fcnet_hiddens": (4,)}, "train_batch_size": 50}
    trainer = PGTrainer("CartPole-v1", config)
    trainer.train()
    workers = weakref.ref(trainer.workers)
    del trainer
    gc.collect()
    assert workers() is None
    assert "dropped without stop()" in caplog.text


def test_a_folder_without_write_permission_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match=r"The folder could not be written(.|\n)*file"):
        RolloutWorker("CartPole-v1", Acts, config={"output": str(tmp_path / "file" / "out")})
