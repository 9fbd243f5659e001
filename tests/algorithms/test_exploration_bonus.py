"""Bonuses by random network distillation, against numbers derived by hand, and in runs of every algorithm with them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from examples.rnd import DeepSea
from rollax import APPO, DQN, IMPALA, PPO, PQN, ConfigError, DQNTrainer, PPOTrainer
from rollax.algorithms.a3c import A3C
from rollax.algorithms.pg import PG
from rollax.algorithms.registry import algorithms_with, get_trainer_class
from rollax.batch import Fragment
from rollax.policy.add_advantages import add_advantages
from rollax.policy.base_algorithm import Values
from tests.algorithms.contract import cases
from tests.algorithms.replayed import DATA_ALGORITHMS
from tests.algorithms.running_sums import check_restored_run, fragment, moments, postprocessed, train_until
from tests.algorithms.tables import f32, one_gradient, two_rows
from tests.marks import long_except

STATES, ACTIONS = spaces.Discrete(4), spaces.Discrete(2)
NAMES = [name for name in algorithms_with("exploration_bonus") if name not in DATA_ALGORITHMS]
CONFIG: dict[str, Any] = {"exploration_bonus": "rnd", "bonus_hiddens": (3, 4), "gamma": 0.9, "seed": 0}
ERROR = 0.5**2 / 4


def known_policy(algorithm: Any, **config: Any) -> Any:
    """All of its weights are 0, except for one of the predictor's four outputs, which is 0.5 too high."""
    policy = algorithm.make_policy(STATES, ACTIONS, {**CONFIG, **config})
    weights = {name: np.zeros_like(value) for name, value in policy.get_weights().items()}
    weights["distillation.predictor.output.bias"][0] = 0.5
    policy.set_weights(weights)
    return policy


@pytest.mark.short("PG")
@pytest.mark.parametrize("algorithm", [PG, PQN])
def test_without_a_critic_bonuses_are_added_to_rewards(algorithm):
    # γ = ½, and each error is b = 1/16. Sums R ← ½ R + b of slot 0, in units of b: 1, 1.5, 1.75, across the end of its
    # first trajectory; of slot 1: 1. Then of slot 0: 1.875.
    policy = known_policy(algorithm, gamma=0.5, bonus_coeff=3.0)
    rows = postprocessed(policy, fragment([1, 2, 3, 4], [0, 0, 1, 0], [1, 2, 3], terminated=[1]))
    bonus = 1 / np.std([1, 1.5, 1.75, 1])
    np.testing.assert_allclose(rows["rewards"], np.array([1, 2, 3, 4]) + 3 * bonus, rtol=1e-6)
    rows = postprocessed(policy, fragment([5], [0], [0]))
    np.testing.assert_allclose(rows["rewards"], 5 + 3 / np.std([1, 1.5, 1.75, 1, 1.875]), rtol=1e-6)


@pytest.mark.short("PPO-options0")
@pytest.mark.parametrize(("algorithm", "options"), [(PPO, {}), (A3C, {}), (APPO, {"vtrace": False})])
def test_advantages_of_both_heads(algorithm, options):
    # Values of 0 and λ = 1: advantages are sums of rewards with γ = 0.1, which end with the episode after row 1, plus
    # twice the sums of the bonuses β with γ_b = ½, which do not.
    policy = known_policy(algorithm, gamma=0.1, lambda_=1.0, bonus_gamma=0.5, bonus_coeff=2.0, **options)
    rows = postprocessed(policy, fragment([1, 2, 3, 4], [0, 0, 0, 0], [1, 3], terminated=[1], heads=(2,)))
    bonus = 1 / np.std([1, 1.5, 1.75, 1.875])
    rewards, bonuses = np.array([1.2, 2, 3.4, 4]), bonus * np.array([1.875, 1.75, 1.5, 1])
    np.testing.assert_allclose(rows["value_targets"], np.stack([rewards, bonuses], axis=1), rtol=1e-5)
    np.testing.assert_allclose(rows["advantages"], rewards + 2 * bonuses, rtol=1e-5)


@pytest.mark.long
def test_vtrace_of_actions_of_the_policy_itself_is_generalized_advantage_estimation():
    # Two slots, whose segments alternate. The episodes of rows 1 and 5 terminate; slot 1 has a further segment.
    config = {"gamma": 0.7, "lambda_": 0.8, "bonus_gamma": 0.9, "bonus_coeff": 2.0}
    policy, expected = known_policy(IMPALA, **config), known_policy(PPO, **config)
    rng = np.random.default_rng(0)

    def rows() -> Fragment:
        slots = [0, 0, 1, 1, 1, 1, 0, 0, 0, 1]
        found = fragment(rng.normal(size=10), slots, [1, 5, 8, 9], terminated=[1, 5], heads=(2,))
        found["obs"] = np.arange(10) % 4
        found.after["obs"] = np.array([3, 2, 1, 0])
        return found

    table = rng.normal(size=(4, 2)).astype(np.float32)
    rng = np.random.default_rng(1)
    batch = postprocessed(policy, rows())
    rng = np.random.default_rng(1)
    reference = rows()
    reference["vf_preds"] = table[reference["obs"]]
    expected.prepare_rows(reference)
    both = np.stack([reference["rewards"], reference["bonuses"]], axis=1)
    values = Values(lambda obs, _: table[obs], lambda *_: np.empty(0), {})
    add_advantages(reference, values, gamma=(0.7, 0.9), lambda_=0.8, rewards=both, episodic=(True, False))
    columns = {name: jnp.asarray(column) for name, column in policy.algorithm.loss_columns(batch, rng).items()}
    logp, mask = columns["action_logp"], jnp.ones(len(batch), jnp.float32)
    targets, advantages = policy.algorithm.vtrace(logp, jnp.asarray(table[batch["obs"]]), columns, mask)
    learned = ~batch["bootstrap"]
    order = np.argsort(reference["slot"], kind="stable")
    np.testing.assert_allclose(targets[learned], reference["value_targets"][order], rtol=1e-4, atol=1e-5)
    summed = reference["advantages"] @ [1, 2]
    np.testing.assert_allclose(advantages[learned], summed[order], rtol=1e-4, atol=1e-5)


def test_vtrace_of_a_slot_whose_last_episode_terminated():
    # No row of the slot follows in the fragment, so that there is nothing to bootstrap from.
    policy = known_policy(IMPALA, bonus_gamma=0.5)
    batch = postprocessed(policy, fragment([1, 2, 3], [0, 1, 1], [0, 2], terminated=[0]))
    np.testing.assert_allclose(batch["bonus_discounts"], [0, 0.5, 0.5, 0])
    np.testing.assert_array_equal(batch["bootstrap"], [False, False, False, True])


class TestReplayedBonuses:
    def test_targets_have_the_bonus_of_the_drawn_row(self):
        # The error is 1/16, and the sums so far are 1 and 3, whose deviation is 1. All values are 0, so that the target
        # of row 0 is 1 + 2/16. A buffer has no observation after row 1, which terminates: its target is 2.
        policy = known_policy(DQN, bonus_coeff=2.0, predictor_share=1.0)
        policy.running_statistics["bonus_returns"].update([1.0, 3.0])
        _, stats = policy.compute_gradients(two_rows(actions=np.array([0, 1])))
        assert stats["mean_target"] == pytest.approx(1.5625)
        assert stats["predictor_loss"] == pytest.approx(ERROR)

    def test_stored_rewards_have_none(self):
        policy = known_policy(DQN)
        rows = postprocessed(policy, fragment([1, 2, 3], [0, 0, 1], [1, 2]))
        np.testing.assert_array_equal(rows["rewards"], [1, 2, 3])
        sums = ERROR * np.array([1, 1.9, 1])
        assert policy.running_statistics["bonus_returns"].deviation == pytest.approx(np.std(sums))

    @pytest.mark.parametrize(("key", "value"), [("n_step", 3), ("gamma", 0.0)])
    def test_steps_without_one_discount_each_are_refused(self, key, value):
        with pytest.raises(ConfigError, match=f"'{key}'"):
            DQN.config_class(**{**CONFIG, key: value})
        with pytest.raises(ConfigError, match=f"'{key}'"):
            DQN.config_class(**CONFIG).changed(**{key: value})

    @pytest.mark.parametrize("settings", [{}, {"then_online": True}])
    def test_recorded_data_alone_is_refused(self, settings, tmp_path):
        with pytest.raises(ConfigError, match="exploration_bonus"):
            DQN.make_policy(STATES, ACTIONS, {**CONFIG, "input": tmp_path, **settings})


@pytest.mark.parametrize(("share", "expected"), [(1.0, 1.0), (0.25, 0.25)])
def test_share_of_rows_of_the_predictor(share, expected):
    rows = two_rows(actions=np.array([0, 1]))
    many = rows.concat_samples([rows] * 2000)
    policy = known_policy(DQN, predictor_share=share)
    drawn = policy.algorithm.loss_columns(many, np.random.default_rng(0))
    assert drawn["predicted"].mean() == pytest.approx(expected, abs=0.03)


def test_rows_that_the_predictor_does_not_learn_from():
    policy = known_policy(DQN, predictor_share=1.0)
    columns = {**two_rows(actions=np.array([0, 1])), "predicted": f32(0, 0)}
    gradients, stats = one_gradient(policy, columns, [0, 1])
    assert stats["predictor_loss"] == 0
    assert not gradients["distillation.predictor.output.bias"].any()


def test_observations_are_scaled_by_their_running_statistics():
    # The predictor's first layer sees x = clip((s' - μ) / σ, -5, 5) of next observations 4 and 0: μ = 2, σ = 2.
    space = spaces.Box(-9, 9, (1,), np.float32)
    policy: Any = PQN.make_policy(space, ACTIONS, {**CONFIG, "bonus_hiddens": (1,)})
    weights = {name: np.zeros_like(value) for name, value in policy.get_weights().items()}
    weights["distillation.target.output.kernel"][:] = 3
    policy.set_weights(weights)
    rows = fragment([0, 0], [0, 0], [1])
    rows["obs"], rows.after["obs"] = f32(9, 4)[:, None], f32(0)[:, None]
    postprocessed(policy, rows)
    # Errors (3 x)² of x = 1 and -1 are 9, and the sums 9 and 9 · 1.9 have this mean.
    assert policy.running_statistics["bonus_returns"].mean == pytest.approx(9 * 2.9 / 2)


def run_of(name: str, **changes: Any) -> Any:
    config = {**cases.settings(name), **small(name), "num_envs_per_worker": 2, **changes}
    return get_trainer_class(name)(config={"env": "CartPole-v1", **config})


def small(name: str) -> dict[str, Any]:
    return {**CONFIG, **({"n_step": 1} if cases.has_replay(name) else {})}


VARIANTS = {**{name: (name, {}) for name in NAMES}, "APPO without V-trace": ("APPO", {"vtrace": False})}


@pytest.mark.short("DQN")
@pytest.mark.parametrize("variant", long_except({"PPO", "DQN"}, VARIANTS))
def test_results_have_the_rewards_of_the_environment_and_a_restored_run_continues_exactly(variant, tmp_path):
    name, options = variant
    options = {**options, **({"store_buffer_in_checkpoints": True} if cases.has_replay(name) else {})}
    with run_of(name, **options) as trainer:
        fixed = trainer.get_policy().get_weights()["distillation.target.output.kernel"]
        result = train_until(trainer, "learner")
        assert np.isfinite(result["info"]["learner"]["default_policy"]["predictor_loss"])
        found = moments(trainer)
        assert found["~/bonus_observations/count"] == found["~/bonus_returns/count"] > 0
        statistics = ("bonus_observations", "bonus_returns")
        check_restored_run(trainer, lambda: run_of(name, **options), tmp_path, statistics)
        weights = trainer.get_policy().get_weights()
        np.testing.assert_array_equal(weights["distillation.target.output.kernel"], fixed)


KINDS = ("multi-agent", "recurrent", "pictures", "compiled", "masked", "centralized critic", "nested actions")
SHORT = [("PPO", "pictures"), ("DQN", "recurrent")]


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), cases.in_short(SHORT, cases.cells(KINDS, NAMES)))
def test_every_kind_of_observation_and_model(name, kind, tmp_path):
    with cases.make(name, kind, tmp_path, **small(name)) as trainer:
        result = trainer.train()
        while not result["info"]["learner"]:
            result = trainer.train()
        assert all(np.isfinite(one["predictor_loss"]) for one in result["info"]["learner"].values())


def test_none_by_default():
    policy: Any = PPO.make_policy(STATES, ACTIONS, {})
    assert not policy.running_statistics
    assert policy.algorithm.value_shape == ()
    assert not any("distillation" in name for name in policy.get_weights())
    with pytest.raises(ConfigError, match="exploration_bonus"):
        PPO.make_policy(STATES, ACTIONS, {"bonus_coeff": 1.0})


@pytest.mark.parametrize(("algorithm", "key"), [(PPO, "bonus_gamma"), (PG, "gamma"), (PQN, "gamma"), (DQN, "gamma")])
def test_sums_of_bonuses_without_a_discount_are_refused(algorithm, key):
    config = algorithm.config_class(exploration_bonus="rnd", gamma=0.9)
    with pytest.raises(ConfigError, match=f"'{key}'"):
        config.changed(**{key: 1.0})
    config.changed(exploration_bonus=None, gamma=1.0)
    PPO.config_class(exploration_bonus="rnd", gamma=1.0)


class DeepSea20(DeepSea):
    """Random actions find the treasure in one of a million episodes."""

    def __init__(self):
        super().__init__(20)


STEPS = 51_200
DEEP_SEA = {"num_envs_per_worker": 8, "train_batch_size": 640, "sgd_minibatch_size": 80, "num_sgd_iter": 4, "lr": 1e-3}


@pytest.mark.learning
def test_ppo_with_bonuses_deep_sea_20(learning_run):
    learned = learning_run(PPOTrainer, DeepSea20, 0.9, STEPS, {**DEEP_SEA, "exploration_bonus": "rnd"})
    assert all(max(score for _, score in curve) >= 0.9 for curve in learned.curves)


@pytest.mark.learning
def test_ppo_alone_does_not_solve_deep_sea_20(learning_run):
    assert learning_run(PPOTrainer, DeepSea20, 0.0, STEPS, DEEP_SEA).best <= 0.1


@pytest.mark.learning
def test_dqn_with_bonuses_deep_sea(learning_run):
    learned = learning_run(DQNTrainer, DeepSea, 0.9, 40_000, {"exploration_bonus": "rnd"})
    assert all(max(score for _, score in curve) >= 0.9 for curve in learned.curves)
