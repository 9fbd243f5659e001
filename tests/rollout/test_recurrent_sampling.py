"""Recurrent state follows each trajectory through sampling, in every kind of environment."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import JaxPolicy, Policy, RolloutWorker, SampleBatch
from rollax.algorithms.ppo import PPO, PPOConfig
from rollax.core import trees
from rollax.errors import PolicyError
from tests.env.kinds import EXTERNAL, KINDS
from tests.env.refused import refused
from tests.env.worlds import Clock, Counting, Party, action_for
from tests.rollout.compiled import LSTM

ALL_KINDS = {**KINDS, **EXTERNAL}
ENDS_UNSEEN = {"multi-agent", "dict view", "restarting dict view", "old multi-agent"}
"""Kinds in which a trajectory may end without a last observation."""


def digest(table: np.ndarray, obs: np.ndarray) -> np.ndarray:
    """[N, 2] the state after `table` [N, 2] and `obs`; it depends on the order of all observations."""
    return (3 * table + np.rint(1000 * obs[:, 1:])) % 65537


FIVES = {"num_envs_per_worker": 3, "rollout_fragment_length": 5, "seed": 1}


class StepCounter(Policy):
    """Its state has its number of steps and a digest of its observations.

    The states are lists, as users may return them.
    """

    batch_columns = frozenset(
        {"obs", "new_obs", "actions", "rewards", "trajectory_id", "state_out", "prev_actions", "prev_rewards"}
    )
    fragment: Any = None

    def get_initial_state(self):
        return [0, [0.0, 0.0]]

    def compute_actions(self, obs_batch, state_batches, prev_action_batch, prev_reward_batch):  # type: ignore[override]
        steps, table = state_batches
        assert len(prev_action_batch) == len(prev_reward_batch) == len(obs_batch)
        return [action_for(obs) for obs in obs_batch], [(steps + 1).tolist(), digest(table, obs_batch).tolist()], {}

    def postprocess_rows(self, fragment):
        self.fragment = fragment
        return fragment


class Stateless(Policy):
    """A policy without state."""

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return [action_for(obs) for obs in obs_batch], [], {}


class StateChecker:
    """Compares every row with the previous one of its trajectory, across fragments."""

    def __init__(self) -> None:
        self.before: dict[int, tuple] = {}
        self.over: set[int] = set()
        self.carried = self.unseen = 0

    def check(self, batch: SampleBatch, fragment: Any) -> None:
        for number, (start, end) in enumerate(zip(fragment.starts, fragment.ends, strict=True)):
            trajectory = int(batch["trajectory_id"][start])
            assert trajectory not in self.over
            self.carried += trajectory in self.before
            for row in range(start, end + 1):
                assert batch["trajectory_id"][row] == trajectory
                self._check_row(batch, row, trajectory)
            self._check_next(batch, end, trees.index(fragment.after, np.array([number])), trajectory)
            if batch["terminateds"][end] or batch["truncateds"][end]:
                self.over.add(trajectory)

    def _check_row(self, batch: SampleBatch, row: int, trajectory: int) -> None:
        steps, table = batch["state_in"]
        begins = (batch["eps_id"][row], 0, [0.0, 0.0], 0, 0.0)
        came = (batch["eps_id"][row], steps[row], table[row].tolist(), batch["prev_actions"][row])
        assert (*came, batch["prev_rewards"][row]) == self.before.get(trajectory, begins)
        ended = batch["terminateds"][row] or batch["truncateds"][row]
        # After an end without a last observation, the state before its last action is kept.
        if not (ended and (batch["obs"][row] == batch["new_obs"][row]).all()):
            after = digest(table[row : row + 1], batch["obs"][row : row + 1])[0].tolist()
            outcome = (batch["actions"][row], batch["rewards"][row])
            self.before[trajectory] = (batch["eps_id"][row], steps[row] + 1, after, *outcome)
        else:
            self.unseen += 1
            self.before[trajectory] = (*came, batch["prev_rewards"][row])
        steps_out, table_out = batch["state_out"]
        assert (steps_out[row], table_out[row].tolist()) == self.before[trajectory][1:3]

    def _check_next(self, batch: SampleBatch, end: int, memory: dict, trajectory: int) -> None:
        (steps,), (table,) = memory["state_in"]
        inputs = (batch["eps_id"][end], steps, table.tolist(), memory["prev_actions"][0], memory["prev_rewards"][0])
        assert inputs == self.before[trajectory]


def follow(worker: RolloutWorker, policy_id: str = "default_policy", fragments: int = 25) -> StateChecker:
    follower, policy = StateChecker(), worker.get_policy(policy_id)
    for _ in range(fragments):
        samples = worker.sample()
        batch = samples if isinstance(samples, SampleBatch) else samples.policy_batches.get(policy_id)
        if batch is not None:
            follower.check(batch, policy.fragment)  # type: ignore[attr-defined]
    assert len(follower.over) > 10
    return follower


@pytest.mark.short(every=5)
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_every_kind(kind, num_envs):
    env = ALL_KINDS[kind].make(num_envs)
    worker = RolloutWorker(lambda _: env, StepCounter, config={"rollout_fragment_length": 5, "seed": 1})
    try:
        follower = follow(worker, fragments=25 if num_envs == 1 else 9)
        assert follower.carried > 5
        assert (follower.unseen > 0) == (kind in ENDS_UNSEEN)
    finally:
        worker.stop()


@pytest.mark.parametrize("kind", ["native NEXT_STEP", "multi-agent", "restarting dict view"])
def test_whole_episodes(kind):
    config = {"rollout_fragment_length": 5, "seed": 1, "batch_mode": "complete_episodes"}
    env = ALL_KINDS[kind].make(3)
    assert follow(RolloutWorker(lambda _: env, StepCounter, config=config)).carried == 0


def test_the_state_counts_the_steps_of_the_episode():
    worker = RolloutWorker(Clock, StepCounter, config={"num_envs_per_worker": 3, "rollout_fragment_length": 50})
    batch = worker.sample()
    np.testing.assert_array_equal(batch["state_in"][0], batch["obs"][:, 0])
    assert set(batch["state_in"][0].tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("clip", [True, 2.5])
def test_the_previous_reward_is_clipped_as_in_training(clip):
    config = {"num_envs_per_worker": 2, "rollout_fragment_length": 7, "clip_rewards": clip}
    worker = RolloutWorker(Party, StepCounter, config=config)
    follow(worker)
    assert worker.sample()["prev_rewards"].max() == (1 if clip is True else clip)


def test_together_with_a_policy_without_state():
    worker = RolloutWorker(
        Party,
        {"counts": StepCounter, "forgets": Stateless},
        policy_mapping_fn=lambda agent: "counts" if agent in "ac" else "forgets",
        config=FIVES,
    )
    assert follow(worker, "counts").carried > 5
    samples = worker.sample()
    assert not isinstance(samples, SampleBatch)
    assert not {"state_in", "state_out", "prev_actions"} & samples["forgets"].keys()


def test_what_is_stored_for_a_policy_without_batch_columns():
    """Its states, and the previous actions and rewards that it takes."""

    class WithoutColumns(StepCounter):
        batch_columns = None

    class OnlyRewards(Stateless):
        def compute_actions(self, obs_batch, prev_reward_batch):  # type: ignore[override]
            return super().compute_actions(obs_batch)

    batches = [RolloutWorker(Clock, kind).sample() for kind in (WithoutColumns, OnlyRewards, Stateless)]
    stored = [{"prev_actions", "prev_rewards"} & batch.keys() for batch in batches]
    assert stored == [{"prev_actions", "prev_rewards"}, {"prev_rewards"}, set()]
    np.testing.assert_array_equal(batches[0]["state_out"][0], batches[0]["state_in"][0] + 1)


@pytest.mark.parametrize("states", [[], [[1]], [[1], [1.0, 2.0]], [[1], [[1.0]]]], ids=str)
def test_states_that_differ_from_the_initial_ones_are_refused(states):
    class Wrong(StepCounter):
        def compute_actions(self, obs_batch):  # type: ignore[override]
            return [0] * len(obs_batch), states, {}

    worker = RolloutWorker(Clock, Wrong)
    says = "do not have the shapes of the initial state...[(1,), (1, 2)]...initial_state"
    refused(PolicyError, worker.sample, says=says)


def test_fractions_are_not_stored_in_an_initial_state_of_integers():
    class Average(StepCounter):
        first: Any = 0

        def get_initial_state(self):
            return [self.first]

        def compute_actions(self, obs_batch, state_batches):  # type: ignore[override]
            return [0] * len(obs_batch), [(state_batches[0] + 1.0) / 2], {}

    class OfFloats(Average):
        first = 0.0

    refused(PolicyError, RolloutWorker(Clock, Average).sample)
    (averages,) = RolloutWorker(Clock, OfFloats).sample()["state_in"]
    assert set(averages.tolist()) == {0.0, 0.5, 0.75, 0.875}  # episodes have up to four steps


MEMORY = {**LSTM, "max_seq_len": 3}
SETTINGS = {"num_envs_per_worker": 3, "rollout_fragment_length": 20, "seed": 4, "clip_rewards": True}


class KeepsFragmentPolicy(JaxPolicy):
    """Keeps its last fragment."""

    fragment: Any = None

    def postprocess_rows(self, fragment):
        self.fragment = fragment
        return super().postprocess_rows(fragment)


class KeepsFragment(PPO):
    policy_class = KeepsFragmentPolicy


class ByTrajectoryPolicy(JaxPolicy):
    """PPO that is called once per segment."""

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        return super().postprocess_trajectory(sample_batch)


class ByTrajectory(PPO):
    policy_class = ByTrajectoryPolicy


def sample(policy_class: Any, env: Any = Party, **settings: Any) -> tuple[RolloutWorker, SampleBatch]:
    worker = RolloutWorker(env, policy_class, config=PPOConfig(**{**SETTINGS, "model": MEMORY, **settings}))
    worker.sample()  # so that trajectories continue in the next fragment
    batch = worker.sample()
    assert isinstance(batch, SampleBatch)
    return worker, batch


@pytest.mark.short("restarting dict view")
@pytest.mark.parametrize("kind", ["native NEXT_STEP", "restarting dict view"])
def test_jax_policies_store_the_inputs_they_acted_on(kind):
    env = ALL_KINDS[kind].make(3)
    worker, batch = sample(KeepsFragment, lambda _: env)
    policy: Any = worker.get_policy()
    memory = batch["state_in"], batch["prev_actions"], batch["prev_rewards"]
    _, (after,), fetches = policy.compute_actions(batch["obs"], *memory)
    logp = policy.fetches_of(batch["actions"], fetches)["action_logp"]
    np.testing.assert_allclose(logp, batch["action_logp"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(fetches["vf_preds"], batch["vf_preds"], rtol=1e-4, atol=1e-5)
    inner = np.flatnonzero(~policy.fragment.last)
    np.testing.assert_allclose(after[inner], batch["state_in"][0][inner + 1], rtol=1e-4, atol=1e-5)
    ends = policy.fragment.ends
    seen = (batch["obs"][ends] != policy.fragment.after["obs"]).any(axis=1)
    following = policy.fragment.after["state_in"][0]
    np.testing.assert_allclose(after[ends[seen]], following[seen], rtol=1e-4, atol=1e-5)
    _, (unmoved,), _ = policy.compute_actions(batch["obs"])
    assert np.abs(unmoved - after)[batch["state_in"][0].any(axis=1)].max(axis=1).min() > 1e-3


@pytest.mark.long
def test_inputs_are_stored_for_a_policy_without_batch_columns():
    class WithoutColumns(PPO):
        samples = property(lambda self: None)

    (_, ours), (worker, theirs) = sample(PPO), sample(WithoutColumns)
    assert not ours.keys() - theirs.keys()
    np.testing.assert_array_equal(ours["prev_actions"], theirs["prev_actions"])
    worker.get_policy().learn_on_batch(theirs)


@pytest.mark.long
def test_bootstrapping_by_trajectory_and_by_fragment_agree():
    (_, together), (_, one_by_one) = sample(PPO), sample(ByTrajectory)
    for name in together:
        for ours, theirs in zip(trees.leaves(together[name]), trees.leaves(one_by_one[name]), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=name)
    last = np.append(np.diff(together["trajectory_id"]) != 0, True)
    cut, still = last & ~together["terminateds"], (one_by_one["obs"] == one_by_one.following("obs")).all(axis=1)
    assert (cut & ~together["truncateds"]).any()
    assert (cut & still).any()  # truncated without a last observation
    assert one_by_one.ends.tolist() == together.ends.tolist() == np.flatnonzero(last).tolist()


@pytest.mark.long
def test_a_recurrent_and_a_stateless_policy_learn_together():
    worker = RolloutWorker(
        Party,
        {"remembers": (PPO, None, None, {"model": MEMORY}), "forgets": PPO},
        policy_mapping_fn=lambda agent: "remembers" if agent in "ac" else "forgets",
        config=PPOConfig(**{**SETTINGS, "model": {"fcnet_hiddens": (4,)}, "num_sgd_iter": 1}),
    )
    samples = worker.sample()
    assert not isinstance(samples, SampleBatch)
    for policy_id, batch in samples.items():
        assert ("state_in" in batch) == (policy_id == "remembers")
        gradients, _ = worker.get_policy(policy_id).compute_gradients(batch)
        assert any("memory" in name for name in gradients) == (policy_id == "remembers")
        assert all(np.isfinite(gradient).all() for gradient in gradients.values())


class NarrowBounds(Counting):
    """Actions up to 0.1, so that most of a policy's actions are clipped."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Box(-0.1, 0.1, (2,), np.float32)
    length, paid = 7, 0.5

    def obs(self) -> np.ndarray:
        return np.array([self.count / 7], np.float32)


@pytest.mark.short("normalize_actions")
@pytest.mark.parametrize("scale", ["clip_actions", "normalize_actions"])
def test_previous_actions_are_what_the_environment_received(scale):
    # As users pass them to `compute_single_action`.
    worker, batch = sample(PPO, NarrowBounds, num_envs_per_worker=1, **{"clip_actions": False, scale: True})
    runner = worker.runners["default_policy"]
    received = runner.action_map.received(batch["actions"])
    assert (np.abs(received - batch["actions"]).max(axis=1) > 0).sum() > 3
    first = int(np.flatnonzero(np.diff(batch["trajectory_id"]))[0]) + 1
    state, action, reward = None, None, None
    for row in range(first, first + 7):
        given = {"prev_action": action, "prev_reward": reward}
        _, state, fetches = runner.compute_single_action(batch["obs"][row], state, True, **given)
        inputs = batch["action_dist_inputs"][row]
        np.testing.assert_allclose(fetches["action_dist_inputs"], inputs, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(batch["prev_actions"][row], 0 if row == first else received[row - 1])
        action, reward = runner.action_map(batch["actions"][row][None])[0], batch["rewards"][row]
