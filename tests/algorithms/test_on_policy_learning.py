"""PPO, PG, A2C, A3C, PQN, IMPALA and APPO reach published scores within published budgets; `make learning` runs these.

The fixture `reaches` checks the scores. What is in the zoo, such as PPO on CartPole, is verified in `tests/zoo`.
"""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from examples import multi_agent_cartpole, repeat_after_me, rock_paper_scissors, stateless_cartpole, tic_tac_toe
from examples.multi_agent_cartpole import MultiAgentCartPole
from examples.repeat_after_me import RepeatAfterMe
from examples.rock_paper_scissors import RockPaperScissors
from examples.stateless_cartpole import StatelessCartPole
from rollax import A2CTrainer, A3CTrainer, APPOTrainer, EvaluationResult, IMPALATrainer, PGTrainer, PPOTrainer
from tests.algorithms.envs import MaskedCartPole, MultiAgentPendulum, RepeatInitialObs
from tests.learning_curves import Run, each_run, settings_of

pytestmark = pytest.mark.learning

ITERATION = {"timesteps_per_iteration": 2000}
# With workers the acting policy lags behind the learned one, which V-trace corrects.
WORKERS = {"num_workers": 2, "num_envs_per_worker": 10}

CARTPOLE, PENDULUM = settings_of("CartPole-v1", "PPO"), settings_of("Pendulum-v1", "PPO")
# As in rl-baselines3-zoo, but with Adam, and without normalized rewards.
A2C_ACROBOT = {
    "num_envs_per_worker": 16,
    "rollout_fragment_length": 5,
    "train_batch_size": 80,
    "lr": 7e-4,
    "entropy_coeff": 0.0,
    "observation_filter": "MeanStdFilter",
}
STREAM_PENDULUM = {
    "num_sgd_iter": 10,
    "lr": 1e-3,
    "gamma": 0.9,
    "lambda": 0.95,
    "entropy_coeff": 0.0,
    "model": {"free_log_std": True},
    **ITERATION,
}
IMPALA_PENDULUM = {
    **STREAM_PENDULUM,
    "num_envs_per_worker": 8,
    "rollout_fragment_length": 128,
    "train_batch_size": 1024,
    "observation_filter": "MeanStdFilter",
}
APPO_PENDULUM = {
    **STREAM_PENDULUM,
    "num_envs_per_worker": 16,
    "rollout_fragment_length": 100,
    "train_batch_size": 1600,
    "clip_param": 0.2,
    "grad_clip": 0.5,
}
PQN_CARTPOLE = settings_of("CartPole-v1", "PQN")
A3C_WORKERS = {"num_workers": 2, "num_envs_per_worker": 4, "timesteps_per_iteration": 10_000}
OLD_SAMPLES = {"replay_proportion": 1.0, "replay_buffer_num_slots": 100, "broadcast_interval": 5}

PARAMETRIC = {"train_batch_size": 512, "sgd_minibatch_size": 256, "lr": 1e-3, "gamma": 0.98, "lambda": 0.9}
PARAMETRIC |= {"num_envs_per_worker": 8}
PARAMETRIC_PG = {"train_batch_size": 1000, "lr": 4e-3, "num_envs_per_worker": 8}
LSTM = {"model": {"use_lstm": True}}

STATELESS, REPEAT = stateless_cartpole.CONFIG, repeat_after_me.CONFIG
STACKED = {"frame_stack": 4, "model": {"fcnet_hiddens": (64, 64)}}
IMPALA_STATELESS = {
    "num_envs_per_worker": 16,
    "train_batch_size": 800,
    "timesteps_per_iteration": 8000,
    "lr": 1e-3,
    "observation_filter": "MeanStdFilter",
    "model": {**STATELESS["model"], "max_seq_len": 25},
}
GRU = {"model": {**REPEAT["model"], "use_lstm": False, "use_gru": True}}
ATTENTION = {
    "use_attention": True,
    "attention_dim": 32,
    "attention_num_heads": 2,
    "attention_head_dim": 16,
    "attention_memory": 10,
    "max_seq_len": 16,
    "fcnet_hiddens": (32,),
}
# A trajectory has five sequences: the gradient ends at each of them, the recurrent state does not.
FIRST_OBS = {
    "num_envs_per_worker": 20,
    "train_batch_size": 4000,
    "sgd_minibatch_size": 500,
    "num_sgd_iter": 5,
    "lr": 1e-3,
    "gamma": 0.9,
    "model": {"use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 20, "fcnet_hiddens": ()},
}
REPEAT_PG = {name: REPEAT[name] for name in ("num_envs_per_worker", "train_batch_size", "gamma", "model")}

SEVERAL_AGENTS = {
    name: multi_agent_cartpole.CONFIG[name]
    for name in ("env_config", "multiagent", "num_envs_per_worker", "count_steps_by")
}
SEVERAL_AGENTS |= {"train_batch_size": 800, "timesteps_per_iteration": 8000}
TWO_PENDULUMS = {"policies": {"even": None, "odd": None}, "policy_mapping_fn": multi_agent_cartpole.even_or_odd}
# Most of the reward depends on the random opponent: with 20 episodes this alone would change the mean by 0.7.
ROCK = {**rock_paper_scissors.CONFIG, "multiagent": rock_paper_scissors.against_either()}
ROCK |= {"evaluation_num_episodes": 200}
SELF_PLAY = {**tic_tac_toe.SELF_PLAY, "evaluation_num_episodes": 100}

SLOTS = 10
EMBEDDINGS = np.random.default_rng(7).uniform(-1, 1, (2, 4)).astype(np.float32)


class ParametricCartPole(gym.Env):
    """CartPole with 10 actions, 2 of them valid, in new places at each step; an invalid action raises."""

    action_space = spaces.Discrete(SLOTS)
    observation_space = spaces.Dict(
        {
            "cart": spaces.Box(-np.inf, np.inf, (4,), np.float32),
            "avail_actions": spaces.Box(-1, 1, (SLOTS, 4), np.float32),
            "action_mask": spaces.MultiBinary(SLOTS),
        }
    )

    def __init__(self, env_config: dict) -> None:
        self.cartpole = gym.make("CartPole-v1")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(self.cartpole.reset(seed=seed)[0]), {}

    def step(self, action):
        assert action in self.places, "an invalid action"
        cart, reward, terminated, truncated, _ = self.cartpole.step(self.places.index(action))
        return self._seen(cart), reward, terminated, truncated, {}

    def _seen(self, cart):
        self.places = self.np_random.choice(SLOTS, 2, replace=False).tolist()
        embeddings, mask = np.zeros((SLOTS, 4), np.float32), np.zeros(SLOTS, np.int8)
        embeddings[self.places], mask[self.places] = EMBEDDINGS, 1
        return {"cart": cart, "avail_actions": embeddings, "action_mask": mask}


def pendulum_in_tenths(context):
    """Pendulum-v1 with a tenth of its rewards: values of -60 are far from the network's first ones."""
    return gym.wrappers.TransformReward(gym.make("Pendulum-v1"), lambda reward: reward / 10)


def of_tenths(evaluation: EvaluationResult) -> float:
    return 10 * evaluation["episode_reward_mean"]


def weaker_policys_reward(evaluation: EvaluationResult) -> float:
    return min(evaluation["policy_reward_mean"].values())


def learners_reward(evaluation: EvaluationResult) -> float:
    return evaluation["policy_reward_mean"]["learner"]


STREAM = "multi_agent_cartpole_from_a_stream_of_samples"
RUNS = {
    "ppo_masked_cartpole": Run(PPOTrainer, MaskedCartPole, 150, 100_000, CARTPOLE),
    "ppo_pendulum": Run(PPOTrainer, "Pendulum-v1", -250, 300_000, PENDULUM),
    "pg_cartpole": Run(PGTrainer, "CartPole-v1", 195, 100_000, {"num_envs_per_worker": 8}),
    "a2c_cartpole": Run(A2CTrainer, "CartPole-v1", 450, 200_000, {"num_envs_per_worker": 8}),
    "a2c_acrobot": Run(A2CTrainer, "Acrobot-v1", -83, 500_000, A2C_ACROBOT),
    "a3c_cartpole": Run(A3CTrainer, "CartPole-v1", 450, 200_000, {"num_envs_per_worker": 4, **ITERATION}),
    "a3c_cartpole_with_workers": Run(A3CTrainer, "CartPole-v1", 400, 500_000, A3C_WORKERS),
    "impala_cartpole": Run(IMPALATrainer, "CartPole-v1", 450, 300_000, {"num_envs_per_worker": 10, **ITERATION}),
    "impala_cartpole_with_workers": Run(IMPALATrainer, "CartPole-v1", 450, 1_000_000, WORKERS),
    "impala_cartpole_with_workers_and_old_samples": Run(
        IMPALATrainer, "CartPole-v1", 450, 1_000_000, {**WORKERS, **OLD_SAMPLES}
    ),
    "impala_pendulum": Run(IMPALATrainer, pendulum_in_tenths, -700, 500_000, IMPALA_PENDULUM, of_tenths),
    "appo_cartpole": Run(
        APPOTrainer, "CartPole-v1", 475, 200_000, {"num_envs_per_worker": 10, "num_sgd_iter": 6, **ITERATION}
    ),
    "appo_cartpole_with_workers": Run(APPOTrainer, "CartPole-v1", 475, 500_000, {**WORKERS, "num_sgd_iter": 6}),
    "appo_pendulum": Run(APPOTrainer, "Pendulum-v1", -300, 500_000, APPO_PENDULUM),
    "parametric_cartpole[ppo-mlp]": Run(PPOTrainer, ParametricCartPole, 150, 100_000, PARAMETRIC),
    "parametric_cartpole[ppo-lstm]": Run(PPOTrainer, ParametricCartPole, 150, 100_000, {**PARAMETRIC, **LSTM}),
    "parametric_cartpole[pg-mlp]": Run(PGTrainer, ParametricCartPole, 150, 100_000, PARAMETRIC_PG),
    "parametric_cartpole[pg-lstm]": Run(PGTrainer, ParametricCartPole, 150, 100_000, {**PARAMETRIC_PG, **LSTM}),
    "ppo_stateless_cartpole": Run(PPOTrainer, StatelessCartPole, 350, 120_000, STATELESS),
    "ppo_stateless_cartpole_with_stacked_observations": Run(
        PPOTrainer, StatelessCartPole, 475, 120_000, {**STATELESS, **STACKED}
    ),
    "impala_stateless_cartpole": Run(IMPALATrainer, StatelessCartPole, 350, 600_000, IMPALA_STATELESS),
    "ppo_repeat_after_me": Run(PPOTrainer, RepeatAfterMe, 90, 40_000, REPEAT),
    "ppo_repeat_after_me_with_gru": Run(PPOTrainer, RepeatAfterMe, 90, 40_000, {**REPEAT, **GRU}),
    "ppo_repeat_after_me_with_attention": Run(PPOTrainer, RepeatAfterMe, 90, 40_000, {**REPEAT, "model": ATTENTION}),
    "pg_repeat_after_me": Run(PGTrainer, RepeatAfterMe, 40, 100_000, {**REPEAT_PG, "lr": 1e-2}),
    "ppo_repeat_initial_obs": Run(PPOTrainer, RepeatInitialObs, 90, 100_000, FIRST_OBS),
    "ppo_multi_agent_cartpole": Run(PPOTrainer, MultiAgentCartPole, 800, 100_000, multi_agent_cartpole.CONFIG),
    f"{STREAM}[impala]": Run(IMPALATrainer, MultiAgentCartPole, 300, 600_000, SEVERAL_AGENTS, weaker_policys_reward),
    f"{STREAM}[appo]": Run(
        APPOTrainer, MultiAgentCartPole, 300, 400_000, {**SEVERAL_AGENTS, "num_sgd_iter": 6}, weaker_policys_reward
    ),
    # As for one pendulum; the returns of both agents are summed. A step is one of the environment.
    "ppo_multi_agent_pendulum": Run(
        PPOTrainer, MultiAgentPendulum, -600, 150_000, {**PENDULUM, "multiagent": TWO_PENDULUMS}
    ),
    "rock_paper_scissors_without_a_memory": Run(PPOTrainer, RockPaperScissors, 5, 100_000, ROCK, learners_reward),
    "rock_paper_scissors_with_a_memory": Run(
        PPOTrainer, RockPaperScissors, 7, 60_000, {**ROCK, "model": rock_paper_scissors.LSTM}, learners_reward
    ),
    "ppo_tic_tac_toe_by_self_play": Run(PPOTrainer, tic_tac_toe.make_game, 0.9, 300_000, SELF_PLAY, tic_tac_toe.score),
}


@each_run(RUNS)
def test_reaches_its_score(reaches, run):
    reaches(*run)


def test_ppo_with_single_observations_does_not_balance_the_pole(learning_run):
    config = {**STATELESS, **STACKED, "frame_stack": 1}
    assert learning_run(PPOTrainer, StatelessCartPole, 0, 120_000, config).best < 100


def test_ppo_without_memory_does_not_repeat(learning_run):
    config = {**REPEAT, "model": {"fcnet_hiddens": (64, 64)}}
    assert learning_run(PPOTrainer, RepeatAfterMe, 0, 20_000, config).best < 20
