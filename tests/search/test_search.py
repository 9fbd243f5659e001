"""ARS and ES: the same numbers with any number of workers, steps by hand, and checkpoints."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from examples.multi_agent_cartpole import MultiAgentCartPole
from rollax import ARSTrainer, ESTrainer, PGTrainer, Trainer
from rollax.ops.evolution import ars_weights, direction, episode_seed, es_weights
from rollax.rollout import remote_workers
from rollax.search.ars import ARS
from rollax.search.es import ES
from tests.algorithms.envs import MaskedCartPole
from tests.rollout.test_worker_set import workers_here
from tests.search.search_worlds import Drift
from tests.search.searches import SMALL, after, assert_same, state_after

each_trainer = pytest.mark.parametrize("trainer_class", [ARSTrainer, ESTrainer])


class TestSameNumbers:
    @pytest.mark.long
    @pytest.mark.usefixtures("small_ray")
    @each_trainer
    def test_in_other_processes(self, trainer_class):
        model = {"fcnet_hiddens": (64, 64)}
        expected = after(trainer_class, env="Pendulum-v1", iterations=2, model=model)
        for num_workers in (1, 2):
            found = after(trainer_class, env="Pendulum-v1", iterations=2, model=model, num_workers=num_workers)
            assert_same(found, expected)

    @pytest.mark.long
    @pytest.mark.parametrize("kind", ["images", "masked"])
    def test_with_other_networks(self, kind):
        env = Images if kind == "images" else MaskedCartPole
        expected = after(ESTrainer, env=env, num_envs_per_worker=8)
        assert_same(after(ESTrainer, env=env, num_envs_per_worker=64), expected)

    @pytest.mark.long
    @each_trainer
    def test_after_a_restore_into_a_trained_trainer(self, trainer_class, monkeypatch, tmp_path):
        settings = {**SMALL, "lr": 1.0, "noise_stdev": 0.5}
        with trainer_class(Drift, {**settings, "seed": 7}) as trainer:
            state_after(trainer, 2)
            path = trainer.save(tmp_path)
        monkeypatch.setattr(remote_workers, "ray_workers", workers_here)
        found = []
        for num_workers in (0, 2):
            with trainer_class(Drift, {**settings, "num_workers": num_workers}) as trainer:
                state_after(trainer, 3)  # workers have weights of version 3, like the next update
                trainer.restore(path)
                found.append(state_after(trainer, 1)[1:])
        assert_same(*found)

    @pytest.mark.long
    def test_another_seed_after_a_restore_gives_another_run(self, tmp_path):
        paths = {}
        for seed in (0, None):
            with ARSTrainer(Drift, {**SMALL, "seed": seed}) as trainer:
                trainer.train()
                paths[seed] = trainer.save(tmp_path / str(seed))
        for path in paths.values():
            with Trainer.from_checkpoint(path, trust_code=True) as trainer:
                expected = state_after(trainer, 1)[1]
            runs = []
            for _ in range(2):
                with Trainer.from_checkpoint(path, trust_code=True, seed=5) as trainer:
                    assert trainer.optimizer.request(np.arange(1)).seed == 5
                    runs.append(state_after(trainer, 1)[1])
            assert_same(*runs)
            assert not np.array_equal(*(run["default_policy"]["head.kernel"] for run in (runs[0], expected)))

    def test_without_a_seed_runs_differ(self):
        kernels = [after(ARSTrainer, 1, seed=None)[1]["default_policy"]["head.kernel"] for _ in range(2)]
        assert not np.array_equal(*kernels)


class Images(gym.Env):
    """The right action is the number of the brighter half of an image."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._obs(), {}

    def _obs(self):
        self.bright = int(self.np_random.integers(2))
        obs = np.zeros((8, 8, 1), np.uint8)
        obs[:, 4 * self.bright : 4 * self.bright + 4] = 255
        return obs

    def step(self, action):
        reward, self.steps = float(action == self.bright), self.steps + 1
        return self._obs(), reward, False, self.steps == 8, {}


class Constant(gym.Env):
    """Episodes of one step; the reward is minus the squared distance of the action from 0.5."""

    observation_space = spaces.Box(1, 1, (1,), np.float32)
    action_space = spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), -float((action[0] - 0.5) ** 2), True, False, {}


RAW = {"observation_filter": "NoFilter", "normalize_actions": False, "num_directions": 4, "seed": 3}


class TestSteps:
    def test_ars_by_hand(self):
        with ARSTrainer(Constant, {**RAW, "lr": 0.1, "noise_stdev": 0.2, "directions_used": 2}) as trainer:
            theta = 0.0
            for generation in range(2):
                epsilon = np.array([float(direction(3, generation, k, 1)[0]) for k in range(4)])
                returns = -(((theta + 0.2 * np.stack([epsilon, -epsilon], axis=1)) - 0.5) ** 2)
                theta += 0.1 * float(ars_weights(returns, 2) @ epsilon)
                statistics = trainer.train()["info"]["learner"]["default_policy"]
                assert trainer.get_weights()["default_policy"]["head.kernel"].item() == pytest.approx(theta, rel=1e-4)
                assert statistics["return_mean"] == pytest.approx(returns.mean(), rel=1e-4)
                assert statistics["weight_norm"] == pytest.approx(abs(theta), rel=1e-4)

    def test_ars_with_a_filter_equals_a_loop_over_one_environment(self):
        env, theta = Drift({}), np.zeros((3, 2), np.float32)
        seen = acted_on = np.zeros((0, 3))
        with ARSTrainer(Drift, {**SMALL, "lr": 0.1, "noise_stdev": 0.2, "directions_used": 3}) as trainer:
            for generation in range(4):
                mean, deviation = (seen.mean(axis=0), seen.std(axis=0)) if len(seen) else (np.zeros(3), np.ones(3))
                directions = [direction(0, generation, k, 6).reshape(3, 2) for k in range(5)]
                returns = np.zeros((5, 2))
                for k, side in np.ndindex(5, 2):
                    candidate = theta + (0.2, -0.2)[side] * directions[k]
                    obs, over = env.reset(seed=episode_seed(0, generation, k, 0))[0], False
                    while not over:
                        acted_on = np.vstack([acted_on, obs])
                        action = np.clip((obs - mean) / deviation @ candidate, -1, 1).astype(np.float32)
                        obs, reward, over, _, _ = env.step(action)
                        returns[k, side] += reward
                seen = acted_on
                theta = theta + 0.1 * np.tensordot(ars_weights(returns, 3), directions, axes=1)
                statistics = trainer.train()["info"]["learner"]["default_policy"]
                assert statistics["return_mean"] == pytest.approx(returns.mean(), rel=1e-5)
                np.testing.assert_allclose(trainer.get_weights()["default_policy"]["head.kernel"], theta, rtol=1e-4)

    def test_es_by_hand(self):
        # Adam's first step is lr along the sign of -g + c θ; θ = 0. The second step also has weight decay.
        config = {**RAW, "model": {"fcnet_hiddens": ()}, "lr": 0.05, "noise_stdev": 0.2, "action_noise_std": 0.0}
        with ESTrainer(Constant, {**config, "l2_coeff": 0.5}) as trainer:
            theta = m = v = 0.0
            for step in range(3):
                epsilon = np.array([float(direction(3, step, k, 1)[0]) for k in range(4)])
                returns = -(((theta + 0.2 * np.stack([epsilon, -epsilon], axis=1)) - 0.5) ** 2)
                loss = 0.5 * theta - float(es_weights(returns) @ epsilon)
                m, v = 0.9 * m + 0.1 * loss, 0.999 * v + 0.001 * loss**2
                theta -= 0.05 * (m / (1 - 0.9 ** (step + 1))) / (np.sqrt(v / (1 - 0.999 ** (step + 1))) + 1e-8)
                trainer.train()
                assert trainer.get_weights()["default_policy"]["head.kernel"].item() == pytest.approx(theta, rel=1e-4)

    @each_trainer
    def test_finds_the_best_action(self, trainer_class):
        with trainer_class(Constant, {**RAW, "model": {"fcnet_hiddens": ()}, "lr": 0.05}) as trainer:
            for _ in range(30):
                trainer.train()
            assert trainer.compute_single_action(np.ones(1, np.float32)) == pytest.approx(0.5, abs=0.15)

    @pytest.mark.long
    def test_finds_the_right_action_for_images(self):
        config = {"num_directions": 10, "noise_stdev": 0.05, "lr": 0.03, "num_envs_per_worker": 16, "seed": 0}
        with ESTrainer(Images, config) as trainer:
            for _ in range(12):
                trainer.train()
            assert trainer.evaluate(4)["episode_reward_mean"] >= 7.5

    def test_reward_offset_changes_the_learned_return_only(self):
        plain = after(ARSTrainer, 1)
        other = after(ARSTrainer, 1, reward_offset=-1.0)
        (reward, steps, statistics), (other_reward, other_steps, other_statistics) = plain[0][0], other[0][0]
        assert (reward, steps) == (other_reward, other_steps)
        apart = statistics["default_policy"]["return_mean"] - other_statistics["default_policy"]["return_mean"]
        assert apart == pytest.approx(steps / 10)  # one for each step, over 10 candidates

    def test_several_steps_of_an_iteration(self):
        with ARSTrainer(Drift, {**SMALL, "timesteps_per_iteration": 500}) as trainer:
            result = trainer.train()
            assert result["timesteps_total"] >= 500
            assert result["info"]["generation"] > 3


class TestResults:
    @each_trainer
    def test_counts(self, trainer_class):
        with trainer_class(Drift, SMALL) as trainer:
            first, second = trainer.train(), trainer.train()
        assert first["episodes_this_iter"] == 10
        assert first["timesteps_this_iter"] == first["timesteps_total"] == 10 * first["episode_len_mean"]
        assert second["timesteps_total"] == first["timesteps_total"] + second["timesteps_this_iter"]
        assert second["info"]["generation"] == 2
        assert second["timers"]["sample_s"] > 0

    def test_filters_count_each_observation_once(self, tmp_path):
        with ARSTrainer(Drift, SMALL) as trainer:
            steps = [trainer.train()["timesteps_total"] for _ in range(2)][-1]
            assert trainer.worker.get_filters()["default_policy"]["count"] == steps
            path = trainer.save(tmp_path)
        with Trainer.from_checkpoint(path, trust_code=True) as trainer:
            trainer.restore(path)
            steps = [trainer.train()["timesteps_total"] for _ in range(2)][-1]
            assert trainer.worker.get_filters()["default_policy"]["count"] == steps

    def test_evaluations_are_greedy_and_separate(self):
        config = {**SMALL, "evaluation_interval": 2, "evaluation_num_episodes": 3, "action_noise_std": 0.5}
        with ESTrainer(Constant, config) as trainer:
            assert trainer.train()["evaluation"] is None
            found = trainer.train()["evaluation"]
            action = trainer.compute_single_action(np.ones(1, np.float32))
            assert found["episode_rewards"] == [pytest.approx(-float((action[0] - 0.5) ** 2))] * 3

    @pytest.mark.parametrize("explore", [True, False])
    def test_no_noise_is_added_to_actions_without_exploration(self, explore):
        with ESTrainer(Constant, {**SMALL, "explore": explore, "action_noise_std": 0.5}) as trainer:
            assert trainer.optimizer.request(np.arange(2)).action_noise == (0.5 if explore else 0.0)


@pytest.mark.long
@pytest.mark.parametrize("policy_class", [ARS, ES])
def test_its_policy_as_a_fixed_one_in_another_trainer(policy_class):
    policies = {"learner": None, "fixed": (policy_class, None, None, {})}
    who = {"policies": policies, "policy_mapping_fn": lambda agent: "learner" if agent else "fixed"}
    config = {"train_batch_size": 40, "env_config": {"num_agents": 2}, "seed": 0}
    with PGTrainer(MultiAgentCartPole, {**config, "multiagent": {**who, "policies_to_train": ["learner"]}}) as trainer:
        before = trainer.get_weights()
        trainer.train()
        after = trainer.get_weights()
    assert_same(after["fixed"], before["fixed"])
    assert not np.array_equal(after["learner"]["policy_head.bias"], before["learner"]["policy_head.bias"])


@pytest.mark.long
@each_trainer
def test_evaluations_and_recordings_are_greedy(trainer_class, tmp_path):
    with trainer_class(Drift, SMALL) as trainer:
        trainer.train()
        obs = np.full((3, *trainer.get_policy().observation_space.shape), 0.5, np.float32)
        actions = [trainer.compute_actions(obs, explore=explore)[0] for explore in (True, False)]
        np.testing.assert_array_equal(*actions)
        assert trainer.evaluate(2)["episodes"] == 2
        for explore in (True, False):
            assert trainer.record(2, tmp_path / str(explore), explore=explore)["episodes"] == 2


def test_a_checkpoint_with_explore_from_before_its_refusal_is_restored(tmp_path):
    with ARSTrainer(Drift, SMALL) as trainer:
        trainer._config = trainer.config.model_copy(update={"explore": False})
        path = trainer.save(tmp_path)
    with Trainer.from_checkpoint(path, trust_code=True) as restored:
        assert not restored.config.explore
        assert restored.train()["training_iteration"] == 1
