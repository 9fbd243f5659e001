"""DeepSea and RND against numbers derived by hand, statistics merged over workers, and the learning runs."""

import jax.numpy as jnp
import numpy as np
import pytest

from examples.rnd import CONFIG, RND, SIZE, DeepSea, RNDTrainer
from rollax import PPOConfig, PPOTrainer, RolloutWorker

STEPS = 25_600
SMALL = {**CONFIG, "num_envs_per_worker": 2, "rollout_fragment_length": 15, "model": {"fcnet_hiddens": (4,)}, "seed": 0}


def played(right_steps) -> tuple[list[float], list[np.ndarray]]:
    """The rewards and observations of an episode with steps to the right (1) and to the left (0)."""
    env, rewards = DeepSea(), []
    observations = [env.reset()[0]]
    for step, right in enumerate(right_steps):
        action = env.right_actions[env.row, env.column] if right else 1 - env.right_actions[env.row, env.column]
        obs, reward, terminated, truncated, _ = env.step(action)
        assert (terminated, truncated) == (step == SIZE - 1, False)
        rewards.append(reward)
        observations.append(obs)
    return rewards, observations


def test_only_ten_steps_to_the_right_find_the_treasure():
    rewards, observations = played([1] * 10)
    np.testing.assert_allclose(rewards, [-0.001] * 9 + [0.999])
    # The diagonal, and nothing below the last row.
    np.testing.assert_array_equal(observations, [*np.eye(SIZE * SIZE)[:: SIZE + 1], np.zeros(SIZE * SIZE)])
    for wrong in range(10):
        rewards, _ = played([step != wrong for step in range(10)])
        np.testing.assert_allclose(sum(rewards), -0.009)


def known_policy():
    """Its target network returns 0 everywhere, its predictor the bias 0.5, 0, 0, ...; all state values are 0."""
    policy = RND.make_policy((env := DeepSea()).observation_space, env.action_space, SMALL)
    weights = {name: np.zeros_like(value) for name, value in policy.get_weights().items()}
    (bias,) = (name for name in weights if name.startswith("predictor") and weights[name].shape == (32,))
    weights[bias][0] = 0.5
    policy.set_weights(weights)
    return policy


def test_bonuses_and_advantages():
    # Every bonus is 0.5² / 32 = 0.0078125 = b. Two slots with 15 steps each: the sums R ← 0.99 R + b go on after the
    # end of an episode.
    worker = RolloutWorker(DeepSea, RND, config=PPOConfig(**SMALL))
    worker.set_weights({"default_policy": known_policy().get_weights()})
    batch, bonus = worker.sample(), 0.5**2 / 32
    returns = worker.get_policy().running_statistics["bonuses"]
    sums = bonus * np.cumsum(0.99 ** np.arange(15))
    assert returns.count == 30
    np.testing.assert_allclose(returns.mean, sums.mean(), rtol=1e-5)
    np.testing.assert_allclose(returns.deviation, sums.std(), rtol=1e-5)
    # The values are 0, so each target is Σ_l (γλ)^l b / σ to the end of the fragment, here of the 15 steps of a slot.
    expected = bonus / sums.std() * np.cumsum((0.99 * 0.95) ** np.arange(15))[::-1]
    for slot in range(2):
        rows = batch["slot"] == slot
        np.testing.assert_allclose(batch["value_targets"][rows, 1], expected, rtol=1e-4)
        np.testing.assert_allclose(batch["advantages"][rows], batch["value_targets"][rows].sum(axis=1), rtol=1e-5)
    # The value head of the environment's rewards ends with the episode: after ten steps there is one more reward.
    first = np.flatnonzero(batch["slot"] == 0)[:10]
    discounted = batch["rewards"][first] @ (0.99 * 0.95) ** np.arange(10)
    np.testing.assert_allclose(batch["value_targets"][first[0], 0], discounted, rtol=1e-4, atol=1e-8)


@pytest.mark.long
def test_the_predictor_learns_and_the_target_does_not():
    policy = known_policy()
    np.testing.assert_allclose(policy.run_method("bonus", np.eye(SIZE * SIZE)[:3]), [0.5**2 / 32] * 3, rtol=1e-6)
    worker = RolloutWorker(DeepSea, RND, config=PPOConfig(**SMALL))
    trained = worker.get_policy()
    before = trained.get_weights()
    loss = trained.learn_on_batch(worker.sample())["predictor_loss"]
    after = trained.get_weights()
    changed = {name.partition(".")[0] for name in after if not np.array_equal(before[name], after[name])}
    assert {"predictor", "value_head", "policy_head"} <= changed
    assert "target" not in changed
    assert jnp.isfinite(loss)
    assert loss > 0


@pytest.mark.long
def test_bonuses_of_two_workers_are_merged():
    config = {**SMALL, "train_batch_size": 120, "sgd_minibatch_size": 60, "num_workers": 2}
    with RNDTrainer(env=DeepSea, config=config) as trainer:
        for iteration in range(1, 4):
            result = trainer.train()
            assert trainer.get_policy().running_statistics["bonuses"].count == 120 * iteration
        assert result["timesteps_total"] == 360


@pytest.mark.learning
def test_rnd_deep_sea(reaches):
    reaches(RNDTrainer, DeepSea, 0.9, STEPS, CONFIG)


@pytest.mark.learning
def test_ppo_alone_does_not_solve_deep_sea(learning_run):
    assert learning_run(PPOTrainer, DeepSea, 0.0, STEPS, CONFIG).best <= 0.1
