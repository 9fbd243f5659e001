"""TD errors that workers send as initial priorities, by hand and against rows of a buffer."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax.algorithms.apex import ApexDDPG, ApexDQN, ApexPolicy
from rollax.batch import Fragment, SampleBatch
from rollax.replay.prioritized import PrioritizedReplay

F, T = False, True


def fragment():
    """Three segments: one terminates after two rows, one is truncated after three, one continues after one."""
    return Fragment(
        {
            "obs": np.array([0, 1, 10, 11, 12, 20]),
            "actions": np.zeros(6, np.int64),
            "rewards": np.array([1, 2, 3, 4, 5, 6], np.float32),
            "terminateds": np.array([F, T, F, F, F, F]),
            "truncateds": np.array([F, F, F, F, T, F]),
            "trajectory_id": np.array([5, 5, 6, 6, 6, 7]),
        },
        [1, 4, 5],
        {"obs": np.array([2, 13, 21])},
    )


class TestTransitions:
    @pytest.mark.parametrize("n_step", [1, 3])
    def test_transitions_equal_those_of_a_buffer(self, n_step):
        buffer = PrioritizedReplay(100, gamma=0.9, n_step=n_step)
        batch = fragment()
        buffer.add(batch)
        drawn = buffer.sample(500, np.random.default_rng(0))
        transitions = batch.transitions(n_step, 0.9)
        place = {number: place for place, number in enumerate(transitions["obs"].tolist())}
        same = [place[number] for number in drawn["obs"].tolist()]
        assert len(set(same)) == (6 if n_step == 1 else 5)  # the last row cannot be drawn before its next steps
        for name in ("rewards", "discounts"):
            np.testing.assert_allclose(drawn[name], transitions[name][same], rtol=1e-6)
        continues = drawn["discounts"] > 0
        np.testing.assert_array_equal(drawn["new_obs"][continues], transitions["new_obs"][same][continues])

    def test_priorities_are_magnitudes_of_the_errors_of_the_rows_that_postprocess_returns(self):
        class KnownPolicy(ApexPolicy):
            def td_errors(self, batch):
                return -batch["rewards"]

        class Doubled(ApexDQN):
            policy_class = KnownPolicy

            def postprocess(self, fragment, values):
                doubled = fragment.copy()
                doubled["rewards"] = 2 * doubled["rewards"]
                return doubled

        batch = Doubled.make_policy(spaces.Discrete(30), spaces.Discrete(2), {"n_step": 1}).postprocess_rows(fragment())
        assert batch["rewards"].tolist() == batch["priorities"].tolist() == [2, 4, 6, 8, 10, 12]


ATOMS = {"num_atoms": 7, "v_min": -2.0, "v_max": 2.0}


@pytest.mark.short("ApexDQN-{}")
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [(ApexDQN, {}), (ApexDQN, ATOMS), (ApexDQN, {"double_q": False}), (ApexDDPG, {})],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_priorities_equal_the_td_errors_of_the_learner(algorithm, options):
    config = {"n_step": 2, "gamma": 0.9, "train_batch_size": 64, "lr": 0.0, "seed": 4, **options}
    acts = spaces.Box(-1, 1, (2,), np.float32) if algorithm is ApexDDPG else spaces.Discrete(4)
    policy = algorithm.make_policy(spaces.Box(-1, 1, (3,), np.float32), acts, config)
    rng = np.random.default_rng(0)
    chosen = rng.integers(4, size=12) if algorithm is ApexDQN else rng.uniform(-1, 1, (12, 2)).astype(np.float32)
    obs = rng.uniform(-1, 1, (13, 3)).astype(np.float32)
    columns = {
        "obs": obs[:12],
        "actions": chosen,
        "rewards": rng.normal(size=12).astype(np.float32),
        "terminateds": np.arange(12) == 6,
        "truncateds": np.zeros(12, bool),
        "trajectory_id": (np.arange(12) > 6).astype(np.int64),
    }
    batch = policy.postprocess_rows(Fragment(columns, [6, 11], {"obs": obs[[7, 12]]}))
    buffer = PrioritizedReplay(100, gamma=0.9, n_step=2, columns=("priorities",))
    buffer.add(batch)
    drawn = buffer.sample(64, rng)
    initial = drawn["priorities"].copy()
    learned = policy.learn_on_batch(drawn)["td_error"]
    np.testing.assert_allclose(np.abs(learned), initial, rtol=1e-4, atol=1e-6)
    # The buffer draws rows by these priorities.
    slots = np.flatnonzero(buffer._drawable)
    expected = buffer._rows.read("priorities", slots)
    np.testing.assert_allclose(buffer._tree.get(slots), (expected + 1e-6) ** 0.6, rtol=1e-6)
    assert np.ptp(expected) > 0.1


def test_computing_priorities_changes_no_weights():
    policy = ApexDQN.make_policy(spaces.Discrete(30), spaces.Discrete(2), {"seed": 0})
    before, batch = policy.get_weights(), fragment()
    once = policy.postprocess_rows(batch.copy())["priorities"]
    again = policy.postprocess_rows(batch.copy())["priorities"]
    np.testing.assert_array_equal(once, again)
    assert policy.learner.num_updates == 0
    np.testing.assert_equal(policy.get_weights(), before)
    assert "priorities" not in batch


def test_padding_does_not_count_in_batch_statistics():
    model = {"fcnet_hiddens": (4,), "normalization": "batch"}
    policy = ApexDQN.make_policy(spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2), {"model": model, "seed": 0})

    def of_equal_rows(count):
        obs, ones = np.full((count, 2), 5, np.float32), np.ones(count, np.float32)
        columns = {"obs": obs, "new_obs": obs, "rewards": ones, "discounts": 0 * ones, "weights": ones}
        return policy.td_errors(SampleBatch({**columns, "actions": np.zeros(count, np.int32)}))

    # 8 rows need no padding, 9 rows do.
    np.testing.assert_allclose(of_equal_rows(9), np.repeat(of_equal_rows(8)[:1], 9), rtol=1e-5)
