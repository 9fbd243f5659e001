"""Recorded trajectories become the fragments that sampling would return, or are refused."""

import random
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from rollax import DatasetError, NonFiniteError, PolicyError, ShapeError, SpaceError
from rollax.batch import Fragment
from rollax.core import trees
from rollax.offline.recorded_fragments import RecordedFragments
from rollax.offline.value_rules import RecordedChecks
from rollax.policy.policy import Policy
from rollax.rollout.actions import ActionMap
from rollax.rollout.filters import make_filter
from rollax.rollout.policy_mapping import PolicyMapping
from rollax.rollout.policy_runner import PolicyRunner
from tests.env.refused import refused
from tests.offline.recorded import ACTIONS, OBSERVATIONS, ListReader, trajectory

MASKED = Dict({"action_mask": Box(0, 1, (3,), np.int8), "x": Box(-9, 9, (1,), np.float32)})


class Stateful(Policy):
    """Always takes action 0, and has an initial state of two numbers."""

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return np.zeros(len(obs_batch), np.int64), [], {}

    def get_initial_state(self):
        return [np.array([7.0, 8.0], np.float32)]


def runner(observation_space=OBSERVATIONS, action_space=ACTIONS, name="default_policy", **settings):
    policy = Stateful(observation_space, action_space)
    policy.name = name
    maps = {"clip_actions": True, "normalize_actions": True}
    return PolicyRunner(policy, make_filter("NoFilter", observation_space), ActionMap(action_space, **maps), **settings)


def fragments(reader, runners=None, **settings):
    runners = {"default_policy": runner()} if runners is None else runners
    return list(RecordedFragments(reader, runners, settings.pop("learning", runners.keys()), **settings))


def with_column(name: str, values: Any, **changes: Any):
    """A reader with one trajectory of three steps, of which one column is replaced."""
    one = trajectory(4, 3)
    one.columns[name] = values
    return ListReader([one], **changes)


def test_segments_rows_and_next_observations():
    ends = ("terminated", "truncated", "cut")
    reader = ListReader([trajectory(number, 2 + number, end) for number, end in enumerate(ends)])
    ((policy_id, fragment),) = fragments(reader, first_trajectory=5)
    assert policy_id == "default_policy"
    assert fragment.ends.tolist() == [1, 4, 8]
    assert fragment["obs"][:, 0].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert fragment["obs"][:, 1].tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3]
    assert fragment.after["obs"].tolist() == [[0, 2], [1, 3], [2, 4]]
    assert fragment["rewards"].tolist() == [1, 2, 1, 2, 3, 1, 2, 3, 4]
    assert fragment["trajectory_id"].tolist() == [5, 5, 6, 6, 6, 7, 7, 7, 7]
    # The value after a cut is bootstrapped, as after a truncation.
    assert np.flatnonzero(fragment["terminateds"]).tolist() == [1]
    assert np.flatnonzero(fragment["truncateds"]).tolist() == [4, 8]


def test_types_of_the_spaces_and_clipped_rewards():
    one = trajectory(0, 3)
    one.columns = {name: column.astype(np.float64) for name, column in one.columns.items()}
    ((_, fragment),) = fragments(ListReader([one]), {"default_policy": runner(clip_rewards=2.0)})
    assert fragment["obs"].dtype == fragment.after["obs"].dtype == fragment["rewards"].dtype == np.float32
    assert fragment["actions"].dtype == np.int64
    assert fragment["rewards"].tolist() == [1, 2, 2]


class TestActions:
    space = Box(np.array([0, -4], np.float32), np.array([2, 4], np.float32))

    def actions(self, recorded, **changes):
        reader = with_column("actions", np.array(recorded, np.float32), action_space=self.space, **changes)
        ((_, fragment),) = fragments(reader, {"default_policy": runner(action_space=self.space)})
        return fragment["actions"].tolist()

    def test_environment_actions_are_scaled(self):
        assert self.actions([[0, -4], [1, 0], [2, 2]]) == [[-1, -1], [0, 0], [1, 0.5]]

    def test_policy_actions_are_mapped_as_for_the_environment(self):
        recorded = [[-1, -3], [0, 0], [2, 0.5]]
        assert self.actions(recorded, actions_of="policy") == [[-1, -1], [0, 0], [1, 0.5]]
        # The actions of a policy in the environment's scale are only clipped to the bounds.
        unscaled = self.actions(recorded, actions_of="policy", normalize_actions=False, clip_actions=True)
        assert unscaled == [[-1, -0.75], [-1, 0], [1, 0.125]]

    def test_files_of_several_scales_are_refused(self):
        with pytest.raises(DatasetError, match=r"(?s)The files differ in normalize_actions\..*a source of their own"):
            self.actions([[0, 0]] * 3, actions_of="policy", normalize_actions=None, clip_actions=True)


def test_state_and_previous_columns():
    columns = {"default_policy": ("obs", "prev_actions", "prev_rewards", "state_in", "t")}
    reader = ListReader([trajectory(0, 3), trajectory(1, 1, "truncated")])
    for each in reader._trajectories:
        each.columns["t"] = np.arange(len(each)) + 10
    ((_, fragment),) = fragments(reader, columns=columns)
    assert fragment["prev_actions"].tolist() == [0, 0, 1, 0]
    assert fragment["prev_rewards"].tolist() == [0, 1, 2, 0]
    assert fragment["t"].tolist() == [10, 11, 12, 10]
    assert fragment.after["prev_actions"].tolist() == [2, 0]
    assert fragment.after["prev_rewards"].tolist() == [3, 1]
    (state,) = fragment["state_in"]
    assert state.tolist() == [[7, 8]] * 4


def test_rows_are_those_that_postprocessing_returns():
    def doubled(fragment):
        return Fragment({**fragment.to_dict(), "doubled": 2 * fragment["rewards"]}, fragment.ends, fragment.after)

    runners, columns = {"default_policy": runner()}, {"default_policy": ("obs", "doubled")}
    vars(runners["default_policy"].policy)["postprocess_rows"] = doubled
    ((_, fragment),) = fragments(ListReader([trajectory(0, 3)]), runners, columns=columns)
    assert fragment["doubled"].tolist() == [2, 4, 6]

    def scaled(fragment):  # no further column
        fragment["rewards"] = 10 * fragment["rewards"]
        return fragment

    vars(runners["default_policy"].policy)["postprocess_rows"] = scaled
    ((_, fragment),) = fragments(ListReader([trajectory(0, 3)]), runners)
    assert fragment["rewards"].tolist() == [10, 20, 30]
    vars(runners["default_policy"].policy)["postprocess_rows"] = lambda fragment: None
    with pytest.raises(PolicyError, match="postprocess_rows did not return a fragment"):
        fragments(ListReader([trajectory(0, 3)]), runners, columns=columns)


class TestSeveralPolicies:
    runners = {name: runner(name=name) for name in ("a", "b")}

    def test_the_mapping_of_agents_is_used(self):
        reader = ListReader([trajectory(0, 2, agent_id="left"), trajectory(1, 1, agent_id="right")])
        mapping = PolicyMapping({"left": "b", "right": "a"}.__getitem__, ["a", "b"])
        found = fragments(reader, self.runners, policy_of=mapping)
        assert {policy_id: len(fragment) for policy_id, fragment in found} == {"a": 1, "b": 2}
        found = fragments(reader, self.runners, learning=["a"], policy_of=mapping)
        assert [policy_id for policy_id, _ in found] == ["a"]

    def test_the_recorded_policy_is_used_where_the_mapping_reads_the_episode(self):
        policy_of = PolicyMapping(lambda agent, episode: "ab"[episode.episode_id % 2], ["a", "b"])
        found = fragments(ListReader([trajectory(0, 2, policy_id="b")]), self.runners, policy_of=policy_of)
        assert [policy_id for policy_id, _ in found] == ["b"]
        with pytest.raises(PolicyError, match="episode_id"):
            fragments(ListReader([trajectory(0, 2, policy_id="c")]), self.runners, policy_of=policy_of)

    def test_the_recorded_policy_is_used_where_the_mapping_is_random(self):
        drawn = random.Random(0)
        policy_of = PolicyMapping(lambda agent: drawn.choice("ab"), ["a", "b"])
        reader = ListReader([trajectory(number, 1, policy_id="ab"[number > 5]) for number in range(9)])
        found = fragments(reader, self.runners, policy_of=policy_of)
        assert {policy_id: len(fragment) for policy_id, fragment in found} == {"a": 6, "b": 3}
        fragments(ListReader([trajectory(0, 2, policy_id="c")]), self.runners, policy_of=policy_of)  # of other policies

    def test_one_policy_gets_all_trajectories(self):
        reader = ListReader([trajectory(0, 2, policy_id="x"), trajectory(1, 3, policy_id="y", agent_id="other")])
        ((_, fragment),) = fragments(reader)
        assert len(fragment) == 5


def test_many_rows_are_several_fragments():
    found = fragments(ListReader([trajectory(number, 3000) for number in range(5)]))
    assert [len(fragment) for _, fragment in found] == [9000, 6000]
    assert found[1][1]["trajectory_id"][0] == 3


@pytest.mark.parametrize(
    ("reader", "error", "message"),
    [
        (with_column("obs", np.zeros((4, 2)), observation_space=Box(-1, 1, (2,))), SpaceError, "observation spaces"),
        (with_column("obs", np.zeros((4, 2)), action_space=Discrete(4)), SpaceError, "Discrete\\(4\\)"),
        (with_column("obs", np.zeros((4, 5))), ShapeError, "line 5, column 'obs'(.|\n)*\\(4, 2\\)"),
        (with_column("actions", np.zeros(2)), ShapeError, "column 'actions'(.|\n)*\\(3,\\)"),
        (with_column("actions", np.array([0, 3, 1])), PolicyError, "outside the action space(.|\n)*line 5, step 1"),
        (with_column("rewards", np.array([0, 1, np.inf])), NonFiniteError, "line 5, step 2, column 'rewards'"),
        (with_column("obs", np.full((4, 2), np.nan)), NonFiniteError, "line 5, step 0, column 'obs'"),
    ],
)
def test_refused(reader, error, message):
    with pytest.raises(error, match=message):
        fragments(reader)


BOUNDED, HALF = Box(-1, 1, (1,), np.float32), Box(np.float32(0), np.float32(np.inf), (1,), np.float32)


@pytest.mark.parametrize(
    ("space", "values", "error", "got"),
    [
        (Discrete(4), [0, 1, 7, 2], DatasetError, "step 2, column 'obs'(.|\n)*7"),
        (Discrete(4), [0, -1, 3, 2], DatasetError, "step 1, column 'obs'(.|\n)*-1"),
        (Discrete(4), [0, 1.5, 3, 2], DatasetError, "step 1, column 'obs'(.|\n)*1.5"),
        (Discrete(4), [0, np.nan, 3, 2], NonFiniteError, "step 1, column 'obs'(.|\n)*nan"),
        (MultiBinary(1), [[0], [1], [1], [2]], DatasetError, "step 3, column 'obs'(.|\n)*2"),
        (MultiDiscrete([2]), [[0], [1], [1], [2]], DatasetError, "step 3, column 'obs'(.|\n)*2"),
        (Box(0, 255, (1,), np.uint8), [[0], [300], [1], [2]], DatasetError, "step 1, column 'obs'(.|\n)*300"),
        (Box(-9, 9, (1,), np.int64), [[0], [2.0**63], [1], [2]], DatasetError, "step 1, column 'obs'(.|\n)*e\\+18"),
        (BOUNDED, [[0], [1], [1], [np.inf]], NonFiniteError, "step 3, column 'obs'(.|\n)*inf"),
        (BOUNDED, [[0], [1], [1], [1e300]], DatasetError, "step 3, column 'obs'(.|\n)*e\\+300"),
        (HALF, [[0], [-np.inf], [1], [np.inf]], NonFiniteError, "step 1, column 'obs'(.|\n)*-inf"),
        (Dict({"x": Discrete(2)}), {"x": [0, 1, 2, 0]}, DatasetError, "step 2, column 'obs', key 'x'"),
    ],
)
def test_observations_outside_their_space(space, values, error, got):
    values = trees.tree_map(np.array, values) if isinstance(values, dict) else np.array(values)
    reader = with_column("obs", values, observation_space=space)
    with pytest.raises(error, match=f"line 5, {got}"):
        fragments(reader, {"default_policy": runner(space)})


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (Discrete(4), [0.0, 1, 2, 3]),
        (Box(0, 255, (1,), np.uint8), [[0.0], [255], [1], [2]]),
        (BOUNDED, [[0], [1.001], [-1.001], [1]]),
        (HALF, [[0], [np.inf], [1], [2]]),
        (MultiBinary(1), [[False], [True], [True], [False]]),
    ],
)
def test_observations_that_can_be_cast(space, values):
    reader = with_column("obs", np.array(values), observation_space=space)
    ((_, fragment),) = fragments(reader, {"default_policy": runner(space)})
    assert fragment["obs"].dtype == space.dtype
    np.testing.assert_array_equal(fragment["obs"], np.array(values)[:3].astype(space.dtype))


@pytest.mark.parametrize("actions", [[0, 0.7, 1], [0, 2.6, 1], [0, np.nan, 1]])
def test_actions_that_a_cast_would_change(actions):
    reader = with_column("actions", np.array(actions))
    refused(PolicyError, fragments, reader, says="line 5, step 1, column 'actions'")
    checks = RecordedChecks(runner().policy)  # as off-policy estimation calls it
    refused(PolicyError, checks.shapes, reader._trajectories[0], says="line 5, step 1, column 'actions'")


def test_integer_boxes_accept_fractions_in_the_policys_scale():
    space = Box(0, 10, (1,), np.int32)
    reader = with_column("actions", np.array([[0.0], [0.5], [1.0]], np.float32), action_space=space)
    runners = {"default_policy": runner(action_space=space)}
    refused(PolicyError, fragments, reader, runners, says="step 1, column 'actions'")
    reader.actions_of = "policy"
    ((_, fragment),) = fragments(reader, runners)
    # 5 + 5 a is 5, 7.5 and 10, rounded to 5, 8 and 10 for the environment.
    np.testing.assert_allclose(fragment["actions"].ravel(), [0, 0.6, 1], rtol=1e-6)
    reader._trajectories[0].columns["actions"][1] = np.nan
    refused(NonFiniteError, fragments, reader, runners, says="step 1, column 'actions'")


def test_an_action_that_its_mask_forbids():
    one = trajectory(3, 2)
    mask = np.array([[1, 0, 0], [1, 0, 1], [0, 0, 0]], np.int8)
    one.columns["obs"] = {"action_mask": mask, "x": np.zeros((3, 1), np.float32)}
    runners = {"default_policy": runner(MASKED)}
    with pytest.raises(PolicyError, match=r"not allowed by the action mask(.|\n)*line 4, step 1"):
        fragments(ListReader([one], MASKED), runners)
    one.columns["actions"] = np.array([0, 2])
    ((_, fragment),) = fragments(ListReader([one], MASKED), runners)
    assert fragment["obs"]["action_mask"].tolist() == mask[:2].tolist()
