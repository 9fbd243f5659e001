"""QMIX, VDN and independent Q-learning: losses against numbers derived by hand, and refused settings."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, SampleBatch, SpaceError
from rollax.algorithms.qmix import QMIX, QMIXConfig, VDNConfig
from rollax.batch import Fragment
from rollax.core import trees
from tests.algorithms.group_tables import KERNEL, LINE, SMALL, TABLE, TARGET_TABLE, TWO, rows, with_table
from tests.algorithms.tables import f32
from tests.algorithms.test_dqn_memory import Running
from tests.env.refused import raised, refused
from tests.replay.reference import DrawsAll

RNG = np.random.default_rng(0)


def policy_with(mixer, **options):
    return with_table(QMIX.make_policy(LINE, TWO, {**SMALL, "mixer": mixer, **options}), TABLE, TARGET_TABLE)


class TestLossOfRows:
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("mixer", "double_q", "errors", "loss"),
        [
            # row 0: Q(0, 1) + Q(1, 0) = 4.5. The target's best are 8 and 7: 1 + 15 / 2 = 8.5, error -4
            # row 1: Q(2, 0) + Q(0, 0) = 0, terminated: 2, error -2; it weighs half: (16 + 4 / 2) / 2
            ("vdn", False, [4.0, 2.0], 9.0),
            # the model's own best at state 1 is action 0, worth 2 to the target: 1 + 9 / 2 = 5.5, error -1
            ("vdn", True, [1.0, 2.0], 1.5),
            # each by itself: Q(0, 1) = 0.5 against 1 + 8 / 2 = 5 and Q(1, 0) = 4 against 1 + 7 / 2 = 4.5: -4.5 and
            # -0.5; row 1: -2 and -2. Means over the members: (20.5 / 2 + 4 / 2) / 2
            (None, False, [2.5, 2.0], 6.125),
            # 0.5 against 1 + 2 / 2 = 2: -1.5, and -0.5 as before: (2.5 / 2 + 4 / 2) / 2
            (None, True, [1.0, 2.0], 1.625),
        ],
    )
    def test_errors_and_loss(self, mixer, double_q, errors, loss):
        policy = policy_with(mixer, double_q=double_q, lr=0.0)
        stats = policy.learn_on_batch(rows())
        np.testing.assert_allclose(stats["td_error"], errors, rtol=1e-5)
        np.testing.assert_allclose(stats["q_loss"], loss, rtol=1e-5)
        np.testing.assert_allclose(stats["mean_td_error"], np.mean(errors), rtol=1e-5)

    def test_gradient(self):
        # The gradient of the mean of w e² over two rows is w e: -4 at (0, 1) and (1, 0), -2 / 2 at (2, 0) and (0, 0).
        gradients, _ = policy_with("vdn", double_q=False, grad_clip=None).compute_gradients(rows())
        np.testing.assert_allclose(gradients[KERNEL], [[-1, -4], [-4, 0], [-1, 0]], atol=1e-5)

    def test_independent_gradient(self):
        # Means over members halve it: -4.5 / 2 at (0, 1), -0.5 / 2 at (1, 0), and -2 / 2 / 2 at (2, 0) and (0, 0).
        gradients, _ = policy_with(None, double_q=False, grad_clip=None).compute_gradients(rows())
        np.testing.assert_allclose(gradients[KERNEL], [[-0.5, -2.25], [-0.25, 0], [-0.5, 0]], atol=1e-5)

    @pytest.mark.long
    def test_mixed_values_on_both_sides(self):
        policy = policy_with("qmix", lr=0.0)
        model = policy.split.merge(policy.params, policy.extra)
        other = policy.split.merge(policy.targets, policy.extra)

        def mixed(model, values, states):
            features = np.concatenate([np.eye(3)[list(state)] for state in states], axis=1)
            return np.asarray(model.mixer(jnp.array(values, jnp.float32), jnp.array(features, jnp.float32)))

        batch = rows()
        values = mixed(model, [[0.5, 4.0], [0.0, 0.0]], batch["obs"])
        # as for VDN: the model's own best actions at states 1 and 2, worth 2 and 7 to the target
        (following, _) = mixed(other, [[2.0, 7.0], [0.0, 0.0]], batch["new_obs"])
        expected = np.abs(values - [1 + following / 2, 2])
        np.testing.assert_allclose(policy.learn_on_batch(batch)["td_error"], expected, rtol=1e-5)

    def test_the_mixer_learns(self):
        policy = policy_with("qmix")
        before = policy.get_weights()
        policy.learn_on_batch(rows())
        changed = {name for name, value in policy.get_weights().items() if not np.array_equal(value, before[name])}
        assert {name.split(".")[1] for name in changed if name.startswith("mixer.")} == {
            "hidden_weights",
            "hidden_bias",
            "output_weights",
            "output_bias",
        }

    def test_target_network_is_copied_at_the_set_frequency(self):
        policy = policy_with("vdn", target_network_update_freq=2)
        for update in range(1, 4):
            policy.learn_on_batch(rows())
            assert np.array_equal(policy.targets[KERNEL], policy.params[KERNEL]) == (update == 2)

    def test_members_with_agent_ids_may_differ(self):
        policy = QMIX.make_policy(LINE, TWO, {**SMALL, "agent_ids": True})
        # state one-hot, then the number: member 1 prefers action 1
        policy = with_table(policy, [[0, 0.5], [0, 0.5], [0, 0.5], [1, 0], [0, 1]])
        actions, _, _ = policy.compute_actions((np.array([0, 1]), np.array([0, 1])), explore=False)
        assert [column.tolist() for column in actions] == [[0, 0], [1, 1]]


class RunningOfMembers(Running):
    """`Running` for the observations of members."""

    def __call__(self, obs, state):
        (seen,) = obs
        return super().__call__(seen, state)


def trajectory(first_state=(0.0, 0.0), end="terminated"):
    """Three steps of a pair in states 0, 1, 2 and 1, 2, 2, with rewards 1, 2, 3.

    `end`: terminated, truncated, or continued by the next fragment. In the latter two cases both observe state 1 last.
    """
    lefts, rights = np.array([0, 1, 2, 1]), np.array([1, 2, 2, 1])
    before = np.stack([np.cumsum(lefts) - lefts, np.cumsum(rights) - rights], axis=1) + np.array(first_state)
    columns = {
        "obs": (lefts, rights),
        "actions": (np.zeros(4, int), np.zeros(4, int)),
        "rewards": f32(1, 2, 3, 0),
        "terminateds": np.array([False, False, end == "terminated", False]),
        "truncateds": np.array([False, False, end == "truncated", False]),
        "trajectory_id": np.zeros(4, int),
        "state_in": (before[..., None].astype(np.float32),),
    }
    after = {name: trees.index(columns[name], slice(3, 4)) for name in ("obs", "state_in")}
    return Fragment(SampleBatch(columns)[:3].to_dict(), [2], after)


class AtOnce(QMIX):
    """Learns from a whole batch in one step."""

    def make_plan(self):
        return replace(super().make_plan(), minibatch_size=None)


class TestLossOfSequences:
    table = [[0.0, 0.5], [1.0, 0.0], [0.0, 2.0]]

    def drawn(self, batch, acted=TWO, **options):
        """The statistics of an update with all sequences."""
        model = {"custom_model": RunningOfMembers, "max_seq_len": 4, **options.pop("model", {})}
        policy = AtOnce.make_policy(LINE, acted, {**SMALL, "mixer": "vdn", "lr": 0.0, **options, "model": model})
        weights = {name: np.zeros(value.shape, np.float32) for name, value in policy.get_weights().items()}
        policy.set_weights({**weights, "network.table": np.asarray(self.table, np.float32)})
        replayed = policy.replayed
        buffer = DrawsAll(100, gamma=policy.config.gamma, n_step=policy.config.n_step, columns=replayed.columns)
        buffer.add(batch)
        sequences = buffer.sample(0, RNG, draw=replayed)
        return policy.learn_on_batch(sequences)

    # The sums of the states are 0, 1, 3 for `left` and 1, 3, 5 for `right`. All actions are 0:
    #   t  Q of both       Q_tot  best of both            joint best
    #   0  0 + 0, 1 + 1      2    0 + 0.5, 1 + 1             2.5
    #   1  1 + 1, 0 + 3      5    1 + 1, 2 + 3               7
    #   2  0 + 3, 0 + 5      8    2 + 3, 2 + 5              12
    #   3  (last obs)             1 + 4, 1 + 6              12
    @pytest.mark.long
    @pytest.mark.parametrize(
        ("end", "n_step", "errors"),
        [
            # targets 1 + 7 / 2 = 4.5, 2 + 12 / 2 = 8, 3
            ("terminated", 1, [-2.5, -3.0, 5.0]),
            # 1 + 2 / 2 + 12 / 4 = 5, 2 + 3 / 2 = 3.5, 3
            ("terminated", 2, [-3.0, 1.5, 5.0]),
            # the last: 3 + 12 / 2 = 9
            ("truncated", 1, [-2.5, -3.0, -1.0]),
            ("truncated", 2, [-3.0, -1.5, -1.0]),
            ("goes on", 1, [-2.5, -3.0, -1.0]),
            # 1 + 2 / 2 + 3 / 4 + 12 / 8 = 4.25, 2 + 3 / 2 + 12 / 4 = 6.5
            ("goes on", 3, [-2.25, -1.5, -1.0]),
        ],
    )
    def test_whole_trajectories(self, end, n_step, errors):
        stats = self.drawn(trajectory(end=end), n_step=n_step)
        np.testing.assert_allclose(stats["q_loss"], np.mean(np.square(errors)), rtol=1e-5)
        # each transition with n stored steps draws its sequence, which is the same for all
        expected = 0.9 * np.abs(errors).max() + 0.1 * np.abs(errors).mean()
        np.testing.assert_allclose(stats["td_error"], expected, rtol=1e-5)

    @pytest.mark.long
    @pytest.mark.parametrize("burn_in", [0, 1])
    def test_parts_of_trajectories_begin_with_the_recorded_state(self, burn_in):
        stats = self.drawn(trajectory(), burn_in=burn_in, model={"max_seq_len": 2})
        # rows 0 and 1 are in the first sequence, drawn by two transitions; row 2 is in the second.
        # The errors of the first are -2.5 and -3: 0.9 · 3 + 0.1 · 2.75 = 2.975.
        np.testing.assert_allclose(stats["td_error"], [2.975, 2.975, 5.0], rtol=1e-5)

    def test_parts_of_trajectories_begin_with_zeros_if_set(self):
        # Row 2 then has the sums 2 and 2: Q_tot = 4, with the same target 3. Rows 0 and 1 do not change.
        stats = self.drawn(trajectory(), zero_init_states=True, model={"max_seq_len": 2})
        np.testing.assert_allclose(stats["td_error"], [2.975, 2.975, 1.0], rtol=1e-5)

    def test_burn_in_makes_up_for_a_state_of_zeros(self):
        stats = self.drawn(trajectory(), zero_init_states=True, burn_in=2, model={"max_seq_len": 2})
        np.testing.assert_allclose(stats["td_error"], [2.975, 2.975, 5.0], rtol=1e-5)

    def test_trajectory_with_a_given_first_state(self):
        # Both sums are 10 more: Q_tot and the joint best rise by 20.
        # Errors: 22 - (1 + 27 / 2), 25 - (2 + 32 / 2), 28 - 3
        stats = self.drawn(trajectory(first_state=(10.0, 10.0)))
        np.testing.assert_allclose(stats["q_loss"], np.mean(np.square([7.5, 7.0, 25.0])), rtol=1e-5)

    def test_numbers_of_actions_may_begin_anywhere(self):
        # All weights are 0, so Q_tot is 0, and the targets are the rewards. The last observation has the "action" 0.
        batch = trajectory(end="truncated")
        batch["actions"] = tuple(column + 9 for column in batch["actions"])
        stats = self.drawn(batch, spaces.Tuple([spaces.Discrete(2, start=9)] * 2), mixer="qmix")
        np.testing.assert_allclose(stats["q_loss"], (1 + 4 + 9) / 3, rtol=1e-5)


class TestRefuses:
    @pytest.mark.parametrize(
        ("observed", "acted", "message"),
        [
            (spaces.Discrete(3), TWO, "with_agent_groups"),
            (LINE, spaces.Discrete(2), "with_agent_groups"),
            (spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4)]), TWO, "observation_space[1]...pad"),
            (LINE, spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), "action_space[1]...group each kind"),
            (LINE, spaces.Tuple([spaces.Box(-1, 1, (2,))] * 2), "one discrete choice"),
            (LINE, spaces.Tuple([spaces.Discrete(2)] * 3), "3 actions, 2 observations"),
            (
                spaces.Tuple([spaces.Dict({"state": spaces.Discrete(2)})] * 2),
                TWO,
                "The members of a group have nothing to observe",
            ),
            (
                spaces.Tuple([spaces.Dict({"x": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3)})] * 2),
                TWO,
                "wrong width...MultiBinary(2)",
            ),
        ],
    )
    def test_spaces(self, observed, acted, message):
        refused(SpaceError, QMIX.make_policy, observed, acted, SMALL, says=message)

    @pytest.mark.parametrize("key", ["burn_in", "zero_init_states"])
    def test_settings_of_sequences_for_a_model_without_memory(self, key):
        raised(ConfigError, QMIX.make_policy, LINE, TWO, {**SMALL, key: 1}, says=f"{key} has no effect")

    def test_an_unknown_key_of_the_global_state(self):
        # With an existing key the members could act on the state.
        member = spaces.Dict({"seen": spaces.Discrete(2), "state": spaces.Discrete(9)})
        group = spaces.Tuple([member] * 2)
        with pytest.raises(ConfigError, match=r"got: +global_state\n +expected: one of \['seen', 'state'\]"):
            QMIX.make_policy(group, TWO, {**SMALL, "state_key": "global_state"})
        with pytest.raises(ConfigError, match="members that observe a Dict, not Discrete"):
            QMIX.make_policy(LINE, TWO, {**SMALL, "state_key": "global_state"})


class TestConfig:
    def test_epsilon_follows_its_settings(self):
        epsilon = QMIXConfig(initial_epsilon=1.0, final_epsilon=0.2, epsilon_timesteps=100).epsilon()
        assert [epsilon(t) for t in (0, 50, 100, 200)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
        epsilon = QMIXConfig(epsilon_schedule=[[10, 0.5], [20, 0.1]]).epsilon()
        assert [epsilon(t) for t in (0, 15, 30)] == pytest.approx([0.5, 0.3, 0.1])

    def test_vdn_is_qmix_with_a_sum(self):
        ours, theirs = QMIXConfig(), VDNConfig()
        differing = {name for name in QMIXConfig.model_fields if getattr(ours, name) != getattr(theirs, name)}
        assert differing == {"mixer"}
        assert VDNConfig().mixer == "vdn"
        refused(ConfigError, VDNConfig, says="expected: 'vdn'", mixer="qmix")
