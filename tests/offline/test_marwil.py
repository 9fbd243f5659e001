"""MARWIL and BC: losses and gradients against numbers derived by hand; weights, memory, and refused settings."""

import logging
import math
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import ConfigError, SampleBatch
from rollax.errors import NonFiniteError
from rollax.offline.estimators.target_policy import action_logp
from rollax.offline.marwil import BC, MARWIL, BCConfig, MARWILConfig
from rollax.policy.replayed import SINGLE_ROWS
from rollax.policy.sequence_draw import SequenceDraw
from tests.algorithms.tables import Table, f32
from tests.env.refused import raised, refused
from tests.offline.recorded import rarely_rewarded

TABLE = {"model": {"custom_model": Table}, "seed": 0, "train_batch_size": 3}
LOGITS = np.log([[0.5, 0.5], [0.25, 0.75], [0.25, 0.75], [0.5, 0.5]])
CHOICE = spaces.Discrete(2)


def policy_of(policy_class=MARWIL, **config):
    policy = policy_class.make_policy(spaces.Discrete(4), CHOICE, {**TABLE, **config})
    policy.set_weights({**policy.get_weights(), "logits": LOGITS, "values": f32(1, 4, -2, 6)})
    return policy


def rows(**columns):
    steps = {"obs": np.arange(3), "actions": np.array([0, 0, 1]), "rewards": f32(3, 2, 7)}
    ends = {"new_obs": np.array([1, 2, 3]), "discounts": f32(0.5, 0.0, 0.0), "weights": f32(1, 1, 1)}
    return SampleBatch({**steps, **ends, **columns})


class TestLoss:
    """c² = 4 is constant, β = ½.

    row  p(a)   V    G = r + d V(s')    Â    β Â / c     w
     0   1/2    1    3 + 4/2 = 5        4       1        e
     1   1/4    4    2                 -2      -½      e^-½
     2   3/4   -2    7                  9      9/4    e^9/4, at most 5 with a limit
    """

    config = {"beta": 0.5, "moving_average_sqd_adv_norm_start": 4.0, "moving_average_sqd_adv_norm_update_rate": 0.0}
    advantages = np.array([4, -2, 9])

    @pytest.mark.parametrize(("limit", "last"), [(None, math.exp(9 / 4)), (5.0, 5.0)])
    def test_numbers_and_gradients(self, limit, last):
        weights = np.array([math.e, math.exp(-0.5), last])
        policy = policy_of(**self.config, max_weight=limit, vf_loss_coeff=0.3)
        gradients, stats = policy.compute_gradients(rows())
        policy_loss = -np.mean(weights * np.log([0.5, 0.25, 0.75]))
        vf_loss = 0.5 * np.mean(self.advantages**2)
        assert stats["policy_loss"] == pytest.approx(policy_loss, rel=1e-5)
        assert stats["vf_loss"] == pytest.approx(vf_loss, rel=1e-5)
        assert stats["total_loss"] == pytest.approx(policy_loss + 0.3 * vf_loss, rel=1e-5)
        assert stats["mean_weight"] == pytest.approx(weights.mean(), rel=1e-5)
        assert stats["mean_squared_advantage"] == pytest.approx(101 / 3, rel=1e-5)
        assert stats["moving_average_sqd_adv_norm"] == 4
        # ∂/∂z = -w (onehot - p) / 3, ∂/∂V = -c_v Â / 3: neither weights nor targets have a gradient.
        expected = -weights[:, None] * np.array([[0.5, -0.5], [0.75, -0.75], [-0.25, 0.25]]) / 3
        np.testing.assert_allclose(gradients["logits"], [*expected, [0, 0]], rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(gradients["values"], [*(-0.3 * self.advantages / 3), 0], rtol=1e-5)

    def test_scale_is_a_moving_average(self):
        # c² = 4 + ¼ (101/3 - 4), before the weights are computed. `get_weights` includes it.
        policy = policy_of(**{**self.config, "moving_average_sqd_adv_norm_update_rate": 0.25}, lr=0.0)
        square = 4 + 0.25 * (101 / 3 - 4)
        stats = policy.learn_on_batch(rows())
        assert stats["moving_average_sqd_adv_norm"] == pytest.approx(square, rel=1e-6)
        assert stats["mean_weight"] == pytest.approx(np.exp(0.5 * self.advantages / math.sqrt(square)).mean(), rel=1e-5)
        assert policy.get_weights()["mean_square"] == pytest.approx(square, rel=1e-6)
        other = policy_of(**self.config)
        other.set_state(policy.get_state())
        assert other.get_weights()["mean_square"] == policy.get_weights()["mean_square"]

    def test_rows_of_weight_0_are_left_out(self):
        gradients, _ = policy_of(**self.config).compute_gradients(rows(weights=f32(1, 0, 1)))
        two, _ = policy_of(**self.config).compute_gradients(rows()[0:3:2])
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, two[name], rtol=1e-6)

    def test_importance_weights_of_rows(self):
        # Gradients are linear in the losses of rows: twice the weight, twice the row's share of the mean.
        gradients, _ = policy_of(**self.config).compute_gradients(rows(weights=f32(1, 2, 0.5)))
        plain, _ = policy_of(**self.config).compute_gradients(rows())
        for name, gradient in gradients.items():
            factors = f32(1, 2, 0.5).reshape(-1, *[1] * (gradient.ndim - 1))
            np.testing.assert_allclose(gradient[:3], plain[name][:3] * factors, rtol=1e-5)

    def test_weights_too_large_for_float32_name_the_limit(self):
        # exp(½ · 9 / 0.01) is infinite.
        policy = policy_of(**{**self.config, "moving_average_sqd_adv_norm_start": 1e-4})
        before = policy.get_weights()
        refused(NonFiniteError, policy.learn_on_batch, rows(), says="set max_weight=100")
        assert all((before[name] == value).all() for name, value in policy.get_weights().items())
        policy_of(**{**self.config, "moving_average_sqd_adv_norm_start": 1e-4}, max_weight=100.0).learn_on_batch(rows())
        poisoned = rows(rewards=f32(3, np.inf, 7))
        for limit in (None, 100.0):
            with pytest.raises(NonFiniteError, match=r"batch's columns \['rewards'\](.|\n)*lower lr"):
                policy_of(**self.config, max_weight=limit).learn_on_batch(poisoned)

    @pytest.mark.long
    def test_large_advantages_are_logged_once(self, caplog):
        policy = policy_of(moving_average_sqd_adv_norm_start=1.0)
        with caplog.at_level(logging.WARNING, "rollax.offline"):
            policy.learn_on_batch(rows())
            policy.learn_on_batch(rows())
        (record,) = caplog.records
        assert "34 times its moving average" in record.getMessage()
        assert "max_weight=100" in record.getMessage()
        caplog.clear()
        policy_of(moving_average_sqd_adv_norm_start=1.0, max_weight=20.0).learn_on_batch(rows())
        policy_of(moving_average_sqd_adv_norm_start=2.0).learn_on_batch(rows())
        assert not caplog.records


class TestBC:
    def test_loss_and_gradient(self):
        # BC is MARWIL with β = 0. It reads neither rewards nor next observations.
        batch = SampleBatch({name: rows()[name] for name in ("obs", "actions", "weights")})
        gradients, stats = policy_of(BC).compute_gradients(batch)
        loss = -np.mean(np.log([0.5, 0.25, 0.75]))
        assert stats["policy_loss"] == stats["total_loss"] == pytest.approx(loss, rel=1e-6)
        expected = -np.array([[0.5, -0.5], [0.75, -0.75], [-0.25, 0.25], [0, 0]]) / 3
        np.testing.assert_allclose(gradients["logits"], expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(gradients["values"], 0)
        same, _ = policy_of(beta=0.0).compute_gradients(rows())
        np.testing.assert_array_equal(same["logits"], gradients["logits"])

    def test_continuous_actions(self):
        # At first the mean is near 0 and σ = 1. -log π = ½ (a - m)² + log σ + ½ log 2π: ∂/∂m = m - a, and
        # ∂/∂log σ = 1 - (a - m)²; the bonus adds -0.1 ∂H/∂log σ = -0.1.
        box, states = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
        config = {"model": {"fcnet_hiddens": (), "free_log_std": True}, "seed": 0, "bc_logstd_coeff": 0.1}
        policy = BC.make_policy(states, box, config)
        weights = policy.get_weights()
        zeros = {name: np.zeros_like(value) for name, value in weights.items()}
        policy.set_weights({**zeros, "policy_head.kernel": f32(0.5, 0).reshape(weights["policy_head.kernel"].shape)})
        batch = SampleBatch({"obs": np.array([0, 1]), "actions": f32(0.3, -0.6)[:, None], "weights": f32(1, 1)})
        gradients, stats = policy.compute_gradients(batch)
        np.testing.assert_allclose(gradients["policy_head.kernel"].ravel(), [0.2 / 2, 0.6 / 2], rtol=1e-5)
        np.testing.assert_allclose(gradients["log_std"], [1 - (0.04 + 0.36) / 2 - 0.1], rtol=1e-5)
        half_log = 0.5 * math.log(2 * math.pi)
        expected = half_log + (0.04 + 0.36) / 4 - 0.1 * (half_log + 0.5)
        assert stats["policy_loss"] == pytest.approx(expected, rel=1e-5)

    def test_masked_actions_are_excluded(self):
        space = spaces.Dict({"obs": spaces.Discrete(1), "action_mask": spaces.MultiBinary(3)})
        policy = BC.make_policy(space, spaces.Discrete(3), {"model": {"fcnet_hiddens": ()}, "seed": 0})
        weights = policy.get_weights()
        policy.set_weights({**weights, "policy_head.kernel": np.zeros_like(weights["policy_head.kernel"])})
        obs = {"obs": np.zeros(2, np.int64), "action_mask": np.array([[1, 0, 1]] * 2, np.int8)}
        batch = SampleBatch({"obs": obs, "actions": np.array([0, 2]), "weights": f32(1, 1)})
        _, stats = policy.compute_gradients(batch)
        assert stats["policy_loss"] == pytest.approx(math.log(2), rel=1e-5)

    def test_nested_actions(self):
        actions = spaces.Dict({"a": CHOICE, "b": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))])})
        policy = BC.make_policy(spaces.Discrete(1), actions, {"model": {"fcnet_hiddens": ()}, "seed": 0})
        policy.set_weights({name: np.zeros_like(value) for name, value in policy.get_weights().items()})
        taken = {"a": np.array([1, 0]), "b": (np.array([2, 1]), np.zeros((2, 2), np.float32))}
        batch = SampleBatch({"obs": np.zeros(2, np.int64), "actions": taken, "weights": f32(1, 1)})
        _, stats = policy.compute_gradients(batch)
        assert stats["policy_loss"] == pytest.approx(math.log(2) + math.log(3) + math.log(2 * math.pi), rel=1e-5)


class TestMemory:
    def sequences(self, **columns):
        """Two sequences of three rows: the first has a row of burn-in, both end with a bootstrap row."""
        return SampleBatch(
            {
                "obs": np.array([0, 1, 2, 1, 0, 0]),
                "actions": np.array([1, 0, 0, 1, 0, 0]),
                "rewards": f32(9, 3, 0, 2, 0, 0),
                "discounts": f32(9, 0.5, 0, 0.5, 0, 0),
                "target_steps": np.array([1, 2, 0, 1, 0, 0], np.int32),
                "weights": f32(0, 1, 0, 1, 0, 0),
                "seq_lens": np.array([3, 2], np.int32),
                **columns,
            }
        )

    def policy(self, policy_class=MARWIL, inputs=(), **config):
        model = {"fcnet_hiddens": (), "use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 2, **dict(inputs)}
        sizes = {"train_batch_size": 4, "burn_in": 1, "seed": 0}
        return policy_class.make_policy(spaces.Discrete(3), CHOICE, {"model": model, **sizes, **config})

    def test_settings_of_sequences(self):
        assert self.policy().replayed == SequenceDraw(2, 1, columns=())  # the state begins with zeros
        assert policy_of().replayed == SINGLE_ROWS

    @pytest.mark.long
    def test_only_rows_to_learn_from_count(self):
        policy = self.policy()
        gradients, stats = policy.compute_gradients(self.sequences())
        for columns in ({"actions": np.array([0, 0, 1, 1, 1, 1])}, {"rewards": f32(-5, 3, 7, 2, 7, 7)}):
            others, other_stats = policy.compute_gradients(self.sequences(**columns))
            assert other_stats == pytest.approx(stats, rel=1e-6)
            for name, gradient in gradients.items():
                np.testing.assert_allclose(gradient, others[name], rtol=1e-5, atol=1e-7)
        _, longer = policy.compute_gradients(self.sequences(obs=np.array([2, 1, 2, 1, 0, 0])))
        assert longer["policy_loss"] != stats["policy_loss"]  # rows of burn-in determine the state

    def test_values_after_a_sequence_use_its_memory(self):
        policy = self.policy()
        rows = {"obs": np.array([0, 1, 2]), "state_in": tuple(part[None] for part in policy.memory.initial_state)}
        first = np.asarray(policy.actor.values(policy.params, policy.extra, rows))
        rows = {"obs": np.array([1, 0, 0]), "state_in": rows["state_in"]}
        second = np.asarray(policy.actor.values(policy.params, policy.extra, rows))
        advantages = np.array([3 + 0.5 * first[2] - first[1], 2 + 0.5 * second[1] - second[0]])
        _, stats = policy.compute_gradients(self.sequences())
        assert stats["mean_squared_advantage"] == pytest.approx(np.mean(advantages**2), rel=1e-4)

    @pytest.mark.long
    @pytest.mark.parametrize("policy_class", [BC, MARWIL])
    def test_sequences_equal_single_steps(self, policy_class):
        # Actions and rewards of the step before are inputs too. Burn-in rows change the state and nothing else.
        policy = self.policy(policy_class, {"lstm_use_prev_action": True, "lstm_use_prev_reward": True})
        batch = self.sequences(prev_actions=np.array([0, 1, 0, 1, 1, 0]), prev_rewards=f32(0, 9, 3, 5, 2, 0))
        logps, values = np.zeros(6), np.zeros(6)
        for row in (0, 1, 2, 3, 4):
            if row in (0, 3):
                state: Any = [part[None] for part in policy.get_initial_state()]
            at = slice(row, row + 1)
            inputs = state, batch["prev_actions"][at], batch["prev_rewards"][at]
            memory = {"state_in": tuple(state), "prev_actions": inputs[1], "prev_rewards": inputs[2]}
            values[row] = policy.compute_values(batch["obs"][at], memory)[0]
            logps[row] = action_logp(policy, batch["actions"][at], batch["obs"][at], *inputs)[0][0]
            _, state, _ = policy.compute_actions(batch["obs"][at], *inputs, explore=False)
        assert len({round(logp, 4) for logp in logps}) > 4
        learned, following = [1, 3], [2, 4]
        targets = batch["rewards"][learned] + batch["discounts"][learned] * values[following]
        advantages = targets - values[learned]
        weights = 1.0 if policy_class is BC else np.exp(advantages / 10)  # c² = 100
        _, stats = policy.compute_gradients(batch)
        assert stats["policy_loss"] == pytest.approx(-np.mean(weights * logps[learned]), rel=1e-4)
        if policy_class is MARWIL:
            assert stats["mean_squared_advantage"] == pytest.approx(np.mean(advantages**2), rel=1e-4)


class TestRefused:
    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"beta": 0.0, "max_weight": 5.0}, "max_weight has no effect: beta is 0.0"),
            ({"burn_in": 4}, r"burn_in has no effect"),
            ({"prioritized_replay": True}, "rows are imitated with equal probability"),
            ({"max_weight": 0.0}, "max_weight"),
        ],
    )
    def test_keys(self, config, message):
        raised(ConfigError, MARWILConfig, says=message, **config)

    @pytest.mark.parametrize("config", [{"beta": 1.0}, {"vf_loss_coeff": 0.5}])
    def test_values_in_bc(self, config):
        raised(ConfigError, BCConfig, says="has no effect: BC", **config)

    def test_gamma_in_bc_without_estimates(self):
        raised(ConfigError, BCConfig, says="gamma has no effect: off_policy_estimation_methods", gamma=0.5)
        assert BCConfig(gamma=0.5, input="log", off_policy_estimation_methods=["wis"]).gamma == 0.5


def test_bc_learns_the_recorded_actions():
    """States 0 to 3 with the actions 0, 1, 1, 0; one in ten is wrong."""
    rng, right = np.random.default_rng(0), np.array([0, 1, 1, 0])
    obs = rng.integers(4, size=512)
    actions = np.where(rng.random(512) < 0.1, 1 - right[obs], right[obs])
    config = {"model": {"fcnet_hiddens": (8,)}, "lr": 0.02, "train_batch_size": 64, "seed": 0}
    policy = BC.make_policy(spaces.Discrete(4), CHOICE, config)
    batch = SampleBatch({"obs": obs, "actions": actions, "weights": np.ones(512, np.float32)})
    for _ in range(20):
        policy.learn_on_batch(batch)
    np.testing.assert_array_equal(policy.compute_actions(np.arange(4), explore=False)[0], right)


def test_marwil_learns_the_rewarded_action():
    """Every state has both actions; the rarer one is rewarded."""
    paying, sizes = np.array([0, 1, 1, 0]), {"model": {"fcnet_hiddens": (8,)}, "lr": 0.02, "train_batch_size": 64}
    weighted = {"moving_average_sqd_adv_norm_start": 0.1, "max_weight": 100.0}
    greedy = []
    for policy_class, config in ((MARWIL, weighted), (BC, {})):
        policy = policy_class.make_policy(spaces.Discrete(4), CHOICE, {**sizes, "seed": 0, **config})
        for _ in range(20):
            policy.learn_on_batch(rarely_rewarded(paying))
        greedy.append(policy.compute_actions(np.arange(4), explore=False)[0])
    np.testing.assert_array_equal(greedy, [paying, 1 - paying])
