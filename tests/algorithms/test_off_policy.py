"""Learning from the actions of others: logged actions, and rows of other policies."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

from rollax import DQN, DQNTrainer, ExternalEnv, JaxPolicy, Policy, PolicyError, PolicySpec, PPOTrainer, SampleBatch
from rollax.algorithms.registry import ALGORITHMS, get_trainer_class
from rollax.env.external.external_env import ExternalMultiAgentEnv
from rollax.env.multi_agent.multi_agent_env import MultiAgentEnv
from tests.algorithms import replayed
from tests.algorithms.replayed import CONTINUOUS, DATA_ALGORITHMS, GROUP_ALGORITHMS, REPLAYED, SMALL, each_algorithm
from tests.env.refused import refused

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
CHOICE = gym.spaces.Discrete(4)
REPLAYING = {trainer_class.name for trainer_class in REPLAYED}


class Logs(ExternalEnv):
    """Episodes of five steps. Every `asks`-th step, if that is above 0, gets its action from the policy. All other
    actions are random and logged. Each observation is unique; `did` holds the action that follows it."""

    did: ClassVar[dict[tuple, np.ndarray]] = {}

    def __init__(self, context):
        super().__init__(OBS, context["actions"])
        self.asks, self.trains = context.get("asks", 0), context.get("trains", True)

    def run(self):
        random = np.random.default_rng(0)
        self.action_space.seed(0)
        step = 0
        while True:
            episode = self.start_episode(training_enabled=self.trains)
            for _ in range(5):
                obs = random.uniform(-1, 1, 3).astype(np.float32)
                step += 1
                if self.asks and step % self.asks == 0:
                    action = self.get_action(episode, obs)
                else:
                    action = self.action_space.sample()
                    self.log_action(episode, obs, action)
                self.did[tuple(obs.tolist())] = np.array(action)
                self.log_returns(episode, float(np.sum(action)))
            self.end_episode(episode, obs)


def space_for(trainer_class):
    return BOX if trainer_class.name in CONTINUOUS else CHOICE


@pytest.fixture(autouse=True)
def _clear_log():
    Logs.did.clear()


class TestLoggedActions:
    @pytest.mark.short("3-DQN")
    @each_algorithm
    @pytest.mark.parametrize("asks", [pytest.param(0, marks=pytest.mark.long), 3])
    def test_buffer_holds_the_logged_actions(self, trainer_class, asks):
        config = {**SMALL, "env_config": {"actions": space_for(trainer_class), "asks": asks}}
        # Many episodes run at the same time: one poll returns a row of each.
        config |= {"buffer_size": 8000, "timesteps_per_iteration": 400, "training_intensity": 0.02, "n_step": 1}
        config["observation_filter"] = "NoFilter"  # observations identify rows
        with trainer_class(Logs, config) as trainer:
            trainer.train()
            stats = trainer.train()["info"]["learner"]["default_policy"]
            drawn = replayed.sample_from_buffers(trainer, 300)
            done = np.asarray(trainer.worker.runners["default_policy"].action_map(drawn["actions"]))
        expected = np.array([Logs.did[tuple(obs.tolist())] for obs in drawn["obs"]])
        assert len(np.unique(drawn["obs"], axis=0)) > 40
        np.testing.assert_allclose(done, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(drawn["rewards"], expected.reshape(300, -1).sum(axis=1), rtol=1e-5, atol=1e-5)
        assert np.isfinite([value for value in stats.values() if value is not None]).all()

    @pytest.mark.long
    def test_dqn_learns_a_better_policy_from_random_actions(self):
        # The reward of an action is its number: five random ones earn 7.5, the best 15.
        config = {**SMALL, "gamma": 0.0, "lr": 1e-2, "timesteps_per_iteration": 2000, "train_batch_size": 32}
        config |= {"buffer_size": 5000, "env_config": {"actions": CHOICE}}
        config["evaluation_config"] = {"env_config": {"actions": CHOICE, "asks": 1}}
        with DQNTrainer(Logs, config) as trainer:
            assert 6 < trainer.train()["episode_reward_mean"] < 9
            assert trainer.evaluate()["episode_reward_mean"] > 14.5

    @pytest.mark.short("IMPALA", "PPO")
    @pytest.mark.parametrize(
        "name",
        [
            name
            for name in ALGORITHMS
            if name not in REPLAYING | GROUP_ALGORITHMS | DATA_ALGORITHMS | replayed.SEARCH_ALGORITHMS
        ],
    )
    def test_on_policy_algorithms_refuse_them(self, name):
        config = {"env_config": {"actions": CHOICE}, "train_batch_size": 200, "seed": 0}
        with get_trainer_class(name)(Logs, config) as trainer:
            refused(PolicyError, trainer.train, says="learns only from its own...log_action...use an off-policy")

    @pytest.mark.short("True")
    @pytest.mark.parametrize("trains", [False, True])
    def test_episodes_without_training_may_log_any_actions(self, trains):
        with PPOTrainer(Logs, {"env_config": {"actions": CHOICE, "trains": trains}}) as trainer:
            if trains:
                refused(PolicyError, trainer.worker.sampler.step, says="training_enabled=False")
                return
            for _ in range(12):
                trainer.worker.sampler.step()
            assert trainer.worker.get_metrics()[0].length == 5


class Duet(ExternalMultiAgentEnv):
    """`player` gets its actions from the policy; those of `teacher` are logged and always 3. An action's number is its
    reward."""

    def __init__(self, context):
        super().__init__(OBS, CHOICE)

    def run(self):
        random = np.random.default_rng(0)
        while True:
            episode = self.start_episode()
            for _ in range(5):
                obs = random.uniform(-1, 1, 3).astype(np.float32)
                action = int(self.get_action(episode, {"player": obs})["player"])
                self.log_action(episode, {"teacher": obs}, {"teacher": 3})
                self.log_returns(episode, {"player": float(action), "teacher": 3.0})
            self.end_episode(episode, {"player": obs, "teacher": obs})


class TestLoggedActionsOfOneAgent:
    policies = {"policies": {"player": None, "teacher": None}, "policy_mapping_fn": lambda agent: agent}

    def test_dqn_stores_them_beside_its_own_actions(self):
        with DQNTrainer(Duet, {**SMALL, "multiagent": self.policies}) as trainer:
            trainer.train()
            drawn = {
                policy_id: buffer.sample(100, np.random.default_rng(0))
                for policy_id, buffer in trainer.optimizer.buffers.items()
            }
        assert set(drawn["teacher"]["actions"]) == {3}
        assert set(drawn["player"]["actions"]) == {0, 1, 2, 3}
        for batch in drawn.values():
            assert (batch["rewards"] == batch["actions"]).all()

    @pytest.mark.long
    @pytest.mark.parametrize("trained", ["player", "teacher"])
    def test_ppo_ignores_those_of_policies_that_it_does_not_train(self, trained):
        multiagent = {**self.policies, "policies_to_train": [trained]}
        config = {"train_batch_size": 40, "sgd_minibatch_size": 20, "num_sgd_iter": 1, "multiagent": multiagent}
        with PPOTrainer(Duet, config) as trainer:
            if trained == "player":
                assert trainer.train()["policy_reward_mean"]["teacher"] == 15
                return
            refused(PolicyError, trainer.train, says="policy 'teacher'")


class Lesson(MultiAgentEnv):
    """Episodes of six steps; the observation is [1 for the teacher or 0 for the student, episode, step]. The teacher
    earns 10 plus its action per step. Its trajectory is truncated after three steps; one step later another begins."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = CHOICE
    possible_agents = ("student", "teacher")

    def __init__(self, env_config=None):
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.count = self.episode + 1, 0
        return self._obs(), {}

    def step(self, actions):
        assert ("teacher" in actions) == (self.count != 3)
        self.count += 1
        rewards = {agent: 10.0 + float(action) if agent == "teacher" else 0.0 for agent, action in actions.items()}
        truncateds = {"teacher": True} if self.count == 3 else {}
        return self._obs(), rewards, {"__all__": self.count == 6}, {**truncateds, "__all__": False}, {}

    def _obs(self):
        return {agent: np.array([agent == "teacher", self.episode, self.count], np.float32) for agent in LESSON}


LESSON = ("student", "teacher")


class Teacher(Policy):
    """Takes the actions 0, 1, 2, 3, 0, ... in turn; learns nothing."""

    def compute_actions(self, obs_batch):  # type: ignore[override]
        return (obs_batch[:, 2].astype(np.int64) % 4).tolist(), [], {}


class WatchingPolicy(JaxPolicy):
    """Learns from its own rows and from those of all other agents in its episodes."""

    read = ("obs", "rewards", "terminateds", "truncateds", "trajectory_id")

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        seen = []
        for rows in (sample_batch, *(rows for _, rows in (other_agent_batches or {}).values())):
            seen.append(rows.select(*self.read))
            seen[-1]["actions"] = rows["actions"].astype(np.int32)
        return SampleBatch.concat_samples(map(super().postprocess_trajectory, seen))


class Watching(DQN):
    policy_class = WatchingPolicy


class TestRowsOfOthers:
    @pytest.mark.short("DQN-1", "DQN-4", "DQN-60")
    @pytest.mark.parametrize("fragment", [1, 4, 60])
    @pytest.mark.parametrize("teacher", [Teacher, DQN])
    def test_are_stored_like_its_own(self, fragment, teacher):
        multiagent = {
            "policies": {"student": PolicySpec(Watching, config={"gamma": 0.5}), "teacher": PolicySpec(teacher)},
            "policy_mapping_fn": lambda agent: agent,
            "policies_to_train": ["student"],
        }
        config = {**SMALL, "rollout_fragment_length": fragment, "timesteps_per_iteration": 60, "multiagent": multiagent}
        with DQNTrainer(Lesson, config) as trainer:
            trainer.train()
            buffer = trainer.optimizer.buffers["student"]
            drawn = buffer.sample(2000, np.random.default_rng(0))
            # 60 steps are ten episodes, with six rows of the student and five of the teacher in each.
            assert len(buffer) == 110
        watched = drawn.rows(drawn["obs"][:, 0] == 1)
        step = watched["obs"][:, 2]
        assert set(step) == {0, 1, 2, 4, 5}
        assert set(watched["obs"][:, 1]) == set(range(10))
        np.testing.assert_array_equal(watched["new_obs"][step < 5], watched["obs"][step < 5] + [0, 0, 1])
        np.testing.assert_array_equal(watched["discounts"], np.where(step == 5, 0.0, 0.5))
        np.testing.assert_array_equal(watched["rewards"], 10 + watched["actions"])
        if teacher is Teacher:
            np.testing.assert_array_equal(watched["actions"], step % 4)
