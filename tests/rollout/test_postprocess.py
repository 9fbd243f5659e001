"""Postprocessing of a fragment: `new_obs`, and policies that are called once per segment."""

import numpy as np
import pytest

from rollax import JaxPolicy, MultiAgentBatch, Policy, PolicyError, RolloutWorker
from rollax.algorithms.ppo import PPO
from rollax.batch import Fragment
from rollax.rollout.postprocess import postprocess
from tests.env.refused import refused
from tests.rollout.reference import expected_rows
from tests.rollout.worlds import ACTION_SPACE, ALL, OBS_SPACE, Encode, Line, Scripted, a_by_x, action_for

# a always acts, b joins late and acts at every second step, c ends and returns.
SCRIPT = [
    {"a": "o", "c": "o"},
    {"a": "or", "c": "orT", "b": "o"},
    {"a": "or", "c": "o"},
    {"a": "or", "b": "or", "c": "or"},
    {"a": "or", "c": "or"},
    {"a": "or", "b": "or", "c": "or", ALL: "T"},
]


class ByTrajectory(Encode):
    """Records its calls, and writes a column."""

    calls: list

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.calls = []

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        self.calls.append((sample_batch, other_agent_batches, episode))
        sample_batch["advantages"] = np.full(len(sample_batch), len(self.calls), np.float32)
        return sample_batch


class Plain(Policy):
    """Stores only the mandatory columns."""

    batch_columns = frozenset({"obs"})

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return action_for(obs_batch), [], {}


def make(specs=None, fragment=4, mapping=None, num_envs=2, **config) -> RolloutWorker:
    specs = {"x": ByTrajectory, "y": Plain} if specs is None else specs
    mapping = mapping or a_by_x
    config = {"num_envs_per_worker": num_envs, "rollout_fragment_length": fragment, **config}
    return RolloutWorker(
        lambda c: Scripted([SCRIPT], c.vector_index),
        specs,
        policy_mapping_fn=mapping if isinstance(specs, dict) else None,
        config=config,
    )


class TestNewObs:
    @pytest.mark.parametrize("columns", [None, frozenset({"new_obs"})])
    def test_is_the_next_observation(self, columns):
        class Reading(Plain):
            batch_columns = columns

        worker = make({"x": Reading, "y": Reading})
        for _ in range(4):
            batch = worker.sample()
            expected = expected_rows(worker.env.get_sub_environments())
            for rows in batch.values():
                for obs, new_obs in zip(rows["obs"], rows["new_obs"], strict=True):
                    np.testing.assert_array_equal(new_obs, expected[tuple(obs.tolist())].new_obs)

    def test_is_not_filled_if_no_policy_reads_it(self):
        batch = RolloutWorker(Line, Plain).sample()
        assert "new_obs" not in batch
        assert "agent_id" not in batch

    def test_by_hand(self):
        # Segments of 2, 1 and 2 rows.
        columns = {"obs": {"x": np.array([1, 2, 3, 4, 5])}, "eps_id": np.zeros(5, int)}
        fragment = Fragment(columns, [1, 2, 4], {"obs": {"x": np.array([20, 30, 50])}})
        done = postprocess({"p": fragment}, {"p": Encode(OBS_SPACE, ACTION_SPACE)})
        assert done["p"]["new_obs"]["x"].tolist() == [2, 20, 30, 5, 50]


class TestByTrajectory:
    @pytest.mark.parametrize("fragment", [1, 4, 9])
    def test_called_once_per_segment_with_the_other_agents_of_its_episode(self, fragment):
        worker = make(fragment=fragment)
        policy = worker.get_policy("x")
        for _ in range(4):
            policy.calls.clear()  # type: ignore[attr-defined]
            batch = worker.sample()
            self._check(policy.calls, batch, worker)  # type: ignore[attr-defined]

    @staticmethod
    def _check(calls: list, batch: MultiAgentBatch, worker: RolloutWorker) -> None:
        given = {tuple(obs.tolist()) for segment, _, _ in calls for obs in segment["obs"]}
        mine = batch["x"]
        assert {tuple(obs.tolist()) for obs in mine["obs"]} == given
        assert sum(len(segment) for segment, _, _ in calls) == len(mine)
        assert mine["advantages"].tolist() == [n + 1.0 for n, call in enumerate(calls) for _ in range(len(call[0]))]
        rows_of = worker_rows(batch)
        for segment, others, episode in calls:
            (episode_id,) = set(segment["eps_id"])
            assert set(segment["agent_id"]) == {"a"}
            assert np.all(np.diff(segment["t"]) == 1)
            assert episode.episode_id == episode_id
            assert "a" not in others
            for agent, (policy, rows) in others.items():
                assert policy is worker.get_policy("y")
                assert set(rows["eps_id"]) == {episode_id}
                assert set(rows["agent_id"]) == {agent}
                # Rows with the same t belong to the same step.
                assert rows["t"].tolist() == rows_of[episode_id, agent]
            assert {agent for i, agent in rows_of if i == episode_id} == {*others, "a"}

    def test_an_agent_that_returns_is_one_entry_with_both_trajectories(self):
        worker = make(fragment=5, num_envs=1)
        worker.sample()
        ((_, others, _),) = worker.get_policy("x").calls  # type: ignore[attr-defined]
        assert others["c"][1]["t"].tolist() == [0, 2, 3, 4]
        assert others["b"][1]["t"].tolist() == [1, 3]

    def test_episodes_are_running_and_finished_ones(self):
        worker = make(fragment=9, num_envs=1)
        worker.sample()
        finished, running = (episode for _, _, episode in worker.get_policy("x").calls)  # type: ignore[attr-defined]
        metrics = worker.get_metrics()[0]
        assert (finished.total_reward, finished.length) == (metrics.reward, metrics.length)
        assert finished.policy_for("b") == "y"
        assert running.length == 4
        assert not worker.sampler.episodes.past

    def test_one_policy_for_all_agents(self):
        worker = make(ByTrajectory, fragment=5, num_envs=1)
        batch = worker.sample()
        calls = worker.get_policy().calls  # type: ignore[attr-defined]
        assert [(set(segment["agent_id"]), set(others)) for segment, others, _ in calls] == [
            ({"a"}, {"b", "c"}),
            ({"c"}, {"a", "b"}),
            ({"b"}, {"a", "c"}),
            ({"c"}, {"a", "b"}),
        ]
        assert batch["advantages"].tolist() == [1] * 5 + [2] + [3] * 2 + [4] * 3

    def test_changes_in_place_are_not_visible_to_other_agents(self):
        class Shaping(ByTrajectory):
            def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
                for _, others in (other_agent_batches or {}).values():
                    assert (others["rewards"] != 100).all()
                sample_batch["rewards"][:] = 100
                return sample_batch

        assert set(make(Shaping).sample()["rewards"]) == {100}

    def test_accepted_signatures(self):
        class Short(Encode):
            def postprocess_trajectory(self, sample_batch):  # type: ignore[override]
                return sample_batch[:1]

        class Keywords(Encode):
            def postprocess_trajectory(self, sample_batch, **kwargs):
                assert set(kwargs) == {"other_agent_batches", "episode"}
                return sample_batch

        batch = make({"x": Short, "y": Keywords}, fragment=5, num_envs=1).sample()
        assert (len(batch["x"]), len(batch["y"])) == (1, 6)

    def test_agent_id_and_t_are_stored_only_if_a_policy_reads_them(self):
        batch = make().sample()
        assert {"agent_id", "t"} <= set(batch["y"].keys())
        batch = make({"x": Plain, "y": Plain}).sample()
        assert not {"agent_id", "t"} & set(batch["y"].keys())


def worker_rows(batch: MultiAgentBatch) -> dict[tuple, list[int]]:
    """(episode, agent) -> its steps, in order."""
    steps: dict[tuple, list[int]] = {}
    for rows in batch.values():
        for episode_id, agent, t in zip(rows["eps_id"], rows["agent_id"], rows["t"].tolist(), strict=True):
            steps.setdefault((episode_id, agent), []).append(t)
    return {key: sorted(ts) for key, ts in steps.items()}


def test_postprocess_rows_gets_the_whole_fragment():
    calls = []

    class AtOnce(Encode):
        def postprocess_rows(self, fragment):
            calls.append((len(fragment), len(fragment.ends), len(fragment.after["obs"])))
            fragment["advantages"] = fragment["rewards"] * 2
            return fragment

    batch = make(AtOnce, fragment=5, num_envs=1).sample()
    assert calls == [(11, 4, 4)]
    assert (batch["advantages"] == batch["rewards"] * 2).all()


def test_a_subclass_that_overrides_postprocess_trajectory_gets_the_algorithms_columns():
    class DoubledPolicy(JaxPolicy):
        def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
            return super().postprocess_trajectory(sample_batch, other_agent_batches, episode)

    class Doubled(PPO):
        policy_class = DoubledPolicy

    def batch_of(policy_class):
        config = {"num_envs_per_worker": 3, "rollout_fragment_length": 40, "seed": 5}
        return RolloutWorker("CartPole-v1", policy_class, config=config).sample()

    plain, overridden = batch_of(PPO), batch_of(Doubled)
    for name in ("advantages", "value_targets"):
        np.testing.assert_allclose(overridden[name], plain[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["postprocess_trajectory", "postprocess_rows"])
def test_a_policy_that_returns_no_batch_is_named(method):
    policy_class = type("OwnPolicy", (JaxPolicy,), {method: lambda self, batch: None})
    own = type("Own", (PPO,), {"policy_class": policy_class})
    worker = RolloutWorker("CartPole-v1", own, config={"rollout_fragment_length": 5})
    says = f"{method} ...'default_policy', algorithm Own: {method}\n...got: ... None...super"
    refused(PolicyError, worker.sample, says=says)
