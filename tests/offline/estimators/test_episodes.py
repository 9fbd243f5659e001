"""Logged episodes from recorded trajectories."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax.errors import ConfigError, DatasetError, NonFiniteError, PolicyError, ShapeError, SpaceError
from rollax.offline.dataset import RecordedTrajectory
from rollax.offline.estimators.episodes import LoggedEpisodes
from rollax.policy.policy import Policy
from rollax.rollout.actions import ActionMap
from rollax.rollout.filters import NoFilter
from rollax.rollout.policy_runner import PolicyRunner
from tests.env.refused import refused
from tests.offline.estimators.worlds import runner_of
from tests.offline.recorded import ListReader

OBS, BOX = spaces.Box(-9, 9, (1,), np.float32), spaces.Box(-2, 2, (1,), np.float32)


class Still(Policy):
    """Does nothing."""

    def compute_actions(self, obs_batch: Any) -> Any:
        return np.zeros((len(obs_batch), 1), np.float32), [], {}


def recorded(*trajectories: RecordedTrajectory, **header: Any) -> ListReader:
    return ListReader(trajectories, OBS, BOX, **header)


def runner(space: spaces.Space = OBS) -> PolicyRunner:
    return runner_of(Still(space, BOX), mapped=True)


def trajectory(length: int, *, terminated: bool = False, truncated: bool = False, **columns: Any) -> RecordedTrajectory:
    rows = {
        "obs": np.arange(length + 1, dtype=np.float32)[:, None],
        "actions": np.full((length, 1), 2.0, np.float32),
        "rewards": np.arange(length, dtype=np.float32),
        **columns,
    }
    return RecordedTrajectory(rows, terminated, truncated, f"e{length}", "a", "default_policy", f"file, row {length}")


def test_rows_and_next_observations() -> None:
    episodes = LoggedEpisodes.of(recorded(trajectory(2, terminated=True), trajectory(3, truncated=True)), runner())
    assert episodes.lengths.tolist() == [2, 3]
    assert episodes.rewards.tolist() == [0, 1, 0, 1, 2]
    assert episodes.obs[:, 0].tolist() == [0, 1, 0, 1, 2]
    assert episodes.following()[:, 0].tolist() == [1, 2, 1, 2, 3]
    assert episodes.discounts(0.5).tolist() == [0.5, 0.0, 0.5, 0.5, 0.5]
    assert episodes.behaviour_logp is None


def test_the_agents_of_an_episode_are_one_group() -> None:
    ids = ("b", "one"), ("a", "two"), ("c", "one"), ("a", "three")
    found = [replace(trajectory(2, terminated=True), agent_id=agent, episode_id=episode) for agent, episode in ids]
    episodes = LoggedEpisodes.of(recorded(*found), runner())
    assert episodes.groups.tolist() == [0, 1, 0, 2]
    assert episodes.chosen([3, 2, 0]).groups.tolist() == [1, 0, 0]


def test_actions_are_in_the_scale_of_the_policy() -> None:
    one = trajectory(1, terminated=True)
    assert LoggedEpisodes.of(recorded(one), runner()).actions.tolist() == [[1.0]]  # (-2, 2) is mapped to (-1, 1)
    assert LoggedEpisodes.of(recorded(one, actions_of="policy"), runner()).actions.tolist() == [[2.0]]


def test_recorded_actions_of_another_scale_are_refused() -> None:
    reader = recorded(trajectory(1, terminated=True), actions_of="policy")
    reader.header = {"normalize_actions": False}
    refused(DatasetError, LoggedEpisodes.of, reader, runner(), says="another scale")
    reader.header = {"normalize_actions": None}
    refused(DatasetError, LoggedEpisodes.of, reader, runner(), says="files that differ in normalize_actions")
    reader.actions_of = "environment"  # mapped to actions of the policy
    assert LoggedEpisodes.of(reader, runner()).actions.tolist() == [[1.0]]
    reader.actions_of, reader.header = "policy", {"normalize_actions": True}
    assert LoggedEpisodes.of(reader, runner()).actions.tolist() == [[2.0]]


def test_env_actions_show_the_scale_of_a_policy_whatever_the_setting_of_its_run() -> None:
    own = PolicyRunner(Still(OBS, BOX), NoFilter(OBS), ActionMap(BOX, clip_actions=False, normalize_actions=False))
    actions = np.array([[0.5], [3.0]], np.float32)
    for received, fits, other in (([[1.0], [2.0]], runner(), own), ([[0.5], [2.0]], own, runner())):
        one = trajectory(2, terminated=True, actions=actions, env_actions=np.array(received, np.float32))
        reader = recorded(one, actions_of="policy")
        for of_run in (True, False, None):
            reader.header = {"normalize_actions": of_run}
            assert LoggedEpisodes.of(reader, fits).actions.tolist() == actions.tolist()
            refused(DatasetError, LoggedEpisodes.of, reader, other, says="another scale")
    on_bound = np.array([[2.0], [-2.0]], np.float32)  # in both scales
    reader = recorded(trajectory(2, terminated=True, actions=on_bound, env_actions=on_bound), actions_of="policy")
    for normalized, fits, other in ((True, runner(), own), (False, own, runner())):
        reader.header = {"normalize_actions": normalized}
        LoggedEpisodes.of(reader, fits)
        refused(DatasetError, LoggedEpisodes.of, reader, other, says="another scale")


@pytest.mark.parametrize("received", [{}, {"env_actions": np.array([[0.5], [1.0]], np.float32)}])
def test_bounds_of_1_are_one_scale_whatever_the_settings(received: dict[str, Any]) -> None:
    unit = spaces.Box(-1, 1, (1,), np.float32)
    one = trajectory(2, terminated=True, actions=np.array([[0.5], [3.0]], np.float32), **received)
    reader = ListReader((one,), OBS, unit, actions_of="policy")
    for of_run, own in ((True, False), (False, True), (None, True)):
        reader.header = {"normalize_actions": of_run}
        scale = ActionMap(unit, clip_actions=True, normalize_actions=own)
        episodes = LoggedEpisodes.of(reader, PolicyRunner(Still(OBS, unit), NoFilter(OBS), scale))
        assert episodes.actions.tolist() == [[0.5], [3.0]]


def test_actions_of_rllib_are_in_the_scale_of_its_default() -> None:
    reader = recorded(trajectory(1, terminated=True), actions_of="policy")  # files without the scale of actions
    unscaled = ActionMap(BOX, clip_actions=True, normalize_actions=False)
    with pytest.raises(DatasetError, match=r"(?s)another scale.*normalize_actions=True.*normalize_actions=False"):
        LoggedEpisodes.of(reader, PolicyRunner(Still(OBS, BOX), NoFilter(OBS), unscaled))


def test_densities_in_different_scales_are_refused() -> None:
    reader = recorded(trajectory(1, terminated=True, action_logp=np.array([-1.0])))
    reader.header = {"logp_of": None}
    with pytest.raises(DatasetError, match=r"(?s)different scales.*file, row 1.*one source at a time"):
        LoggedEpisodes.of(reader, runner())


def test_log_probabilities_are_known_only_if_every_trajectory_has_them() -> None:
    known = trajectory(2, terminated=True, action_logp=np.array([-1.0, -2.0]))
    assert LoggedEpisodes.of(recorded(known, actions_of="policy"), runner()).require_logp().tolist() == [-1.0, -2.0]
    both = LoggedEpisodes.of(recorded(known, trajectory(1, terminated=True)), runner())
    refused(DatasetError, both.require_logp, says="log-probabilities")


def test_densities_are_in_the_scale_of_the_policy() -> None:
    # Uniform actions: a density of 1/4 on (-2, 2) is 1/2 on the policy's (-1, 1).
    uniform = trajectory(2, terminated=True, actions=np.ones((2, 1)), action_logp=np.log([0.25, 0.25]))
    reader = recorded(uniform)
    np.testing.assert_allclose(LoggedEpisodes.of(reader, runner()).require_logp(), np.log([0.5, 0.5]))
    reader.header = {"logp_of": "policy"}  # densities of the policy's actions, but actions of the environment
    np.testing.assert_allclose(LoggedEpisodes.of(reader, runner()).require_logp(), np.log([0.25, 0.25]))


def test_a_tenth_of_cut_trajectories_is_left_out() -> None:
    whole = [trajectory(2, terminated=True) for _ in range(9)]
    episodes = LoggedEpisodes.of(recorded(*whole, trajectory(3)), runner())
    assert (len(episodes), episodes.left_out) == (9, 1)
    with pytest.raises(DatasetError, match="2 of 11 trajectories"):
        LoggedEpisodes.of(recorded(*whole, trajectory(3), trajectory(3)), runner())


def test_cut_trajectories_are_refused_or_left_out() -> None:
    reader = recorded(trajectory(2, terminated=True), trajectory(3))
    with pytest.raises(DatasetError, match="file, row 3") as caught:
        LoggedEpisodes.of(reader, runner())
    assert "1 of 2 trajectories" in str(caught.value)
    assert LoggedEpisodes.of(reader, runner(), drop_cut=True).lengths.tolist() == [2]
    refused(DatasetError, LoggedEpisodes.of, recorded(trajectory(3)), runner(), says="all cut", drop_cut=True)


def test_the_rest_of_a_cut_trajectory_is_left_out() -> None:
    # An episode written in two parts: the second part terminates, and only has the rewards 0 and 1.
    cut, rest = trajectory(3), trajectory(2, terminated=True)
    rest.episode_id = cut.episode_id
    whole = [trajectory(4, terminated=True) for _ in range(2)]
    episodes = LoggedEpisodes.of(recorded(whole[0], cut, whole[1], rest), runner(), drop_cut=True)
    assert episodes.lengths.tolist() == [4, 4]
    assert episodes.left_out == 2
    with pytest.raises(DatasetError, match="2 of 4 trajectories"):
        LoggedEpisodes.of(recorded(whole[0], cut, whole[1], rest), runner())
    again = trajectory(2, terminated=True)  # the agent has returned in the same episode, with a new trajectory
    again.episode_id = cut.episode_id
    assert len(LoggedEpisodes.of(recorded(cut, rest, again), runner(), drop_cut=True)) == 1


@pytest.mark.parametrize(
    ("column", "step", "value", "error"),
    [
        ("obs", 2, np.nan, NonFiniteError),  # the observation after the last step
        ("actions", 1, np.inf, NonFiniteError),
        ("rewards", 1, np.nan, NonFiniteError),
    ],
)
def test_non_finite_numbers_are_refused(column: str, step: int, value: float, error: type) -> None:
    wrong = trajectory(2, truncated=True)
    wrong.columns[column][step] = value
    with pytest.raises(error, match=rf"(?s)file, row 2, step {step}, column '{column}'"):
        LoggedEpisodes.of(recorded(trajectory(3, terminated=True), wrong), runner())


def test_columns_of_other_lengths_are_refused() -> None:
    reader = recorded(trajectory(2, terminated=True, action_logp=np.array([-1.0])))
    refused(ShapeError, LoggedEpisodes.of, reader, runner(), says="file, row 2, column 'action_logp'...(1,)...(2,)")


def test_actions_outside_the_space_are_refused() -> None:
    two = spaces.Discrete(2)
    policy = runner_of(Still(OBS, two), mapped=True)
    reader = recorded(trajectory(2, terminated=True, actions=np.array([1, -1])))
    reader.action_spaces = {"default_policy": two}
    refused(PolicyError, LoggedEpisodes.of, reader, policy, says="outside the action space...file, row 2, step 1...-1")


def test_a_format_without_spaces_uses_those_of_the_policy() -> None:
    reader = recorded(trajectory(2, terminated=True))
    reader.observation_spaces, reader.action_spaces = {}, {}
    assert LoggedEpisodes.of(reader, runner()).lengths.tolist() == [2]
    with pytest.raises(DatasetError, match=r"(?s)Unknown policy.*other.*default_policy"):
        LoggedEpisodes.of(reader, runner(), policy_id="other")


def test_columns_that_estimates_do_not_read_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    # 3 observations, 2 actions and 2 rewards of 4 bytes are 28 bytes; infos do not count.
    one = trajectory(2, terminated=True, infos=np.zeros((3, 1000)))
    monkeypatch.setattr("rollax.offline.estimators.episodes.available_memory_bytes", lambda: 2 * 28)
    assert len(LoggedEpisodes.of(recorded(one), runner())) == 1
    monkeypatch.setattr("rollax.offline.estimators.episodes.available_memory_bytes", lambda: 2 * 27)
    refused(ConfigError, LoggedEpisodes.of, recorded(one), runner(), says="half of the memory")


def test_other_spaces_and_policies_are_refused() -> None:
    reader = recorded(trajectory(2, terminated=True))
    with pytest.raises(SpaceError, match="observation spaces"):
        LoggedEpisodes.of(reader, runner(spaces.Box(-9, 9, (2,), np.float32)))
    refused(DatasetError, LoggedEpisodes.of, reader, runner(), says="default_policy", policy_id="default_polcy")


def test_densities_of_clipped_actions_are_unknown() -> None:
    """The log has the density of the policy's action, and the action that the environment received."""
    actions = np.array([[2.0], [0.5], [-2.0]], np.float32)
    logp = np.array([-1.0, -2.0, -3.0])
    reader = recorded(trajectory(3, terminated=True, actions=actions, action_logp=logp))
    reader.header = {"logp_of": "policy"}
    found = LoggedEpisodes.of(reader, runner())
    assert found.behaviour_logp is not None
    np.testing.assert_array_equal(found.behaviour_logp, [np.nan, -2.0, np.nan])
    refused(DatasetError, found.require_logp, says="2 of 3 values...clipped to a bound")
    reader.actions_of = "policy"  # recorded before it was clipped
    assert LoggedEpisodes.of(reader, runner()).require_logp().tolist() == [-1.0, -2.0, -3.0]


def test_a_mask_of_zeros_after_the_last_step_allows_all_actions() -> None:
    """No action follows, but the values of all actions are still computed."""
    space = spaces.Dict({"action_mask": spaces.MultiBinary(2), "x": OBS})
    masks = np.array([[1, 0], [0, 1], [0, 0]], np.int8)
    obs = {"action_mask": masks, "x": np.zeros((3, 1), np.float32)}
    reader = recorded(trajectory(2, terminated=True, obs=obs))
    reader.observation_spaces = {"default_policy": space}
    found = LoggedEpisodes.of(reader, runner(space))
    assert found.obs["action_mask"].tolist() == [[1, 0], [0, 1]]
    assert found.last_obs["action_mask"].tolist() == [[1, 1]]
