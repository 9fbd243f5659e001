"""Algorithms by name."""

import importlib.util

import pytest

from rollax import DQNConfig, RainbowConfig, TD3Config, TrainerConfig
from rollax.algorithms import registry
from rollax.config import resolve_config
from rollax.config.synonyms import SYNONYMS, counterpart, counterparts
from rollax.errors import ConfigError
from rollax.models.config import CriticConfig, ModelConfig


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'PPO'?"):
        registry.get_trainer_class("PPOO")
    with pytest.raises(ConfigError, match="--run=module:Class"):
        registry.get_trainer_class("zzzzzzz")


@pytest.mark.parametrize("name", registry.ALGORITHMS)
def test_every_name_belongs_to_its_classes(name):
    trainer_class = registry.get_trainer_class(name)
    assert trainer_class.name == name
    assert registry.get_trainer_class(name.lower()) is trainer_class
    assert trainer_class.policy_class.config_class is trainer_class.config_class  # for a policy without a trainer


def test_modules_are_found_without_being_imported():
    for path in registry.ALGORITHMS.values():
        assert importlib.util.find_spec(path.partition(":")[0]) is not None


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("DQN", RainbowConfig(), r"got: +RainbowConfig\n +expected: a DQNConfig(.*\n)+.*use RainbowTrainer"),
        ("DDPG", TD3Config(), "use TD3Trainer"),
        ("Rainbow", DQNConfig(), "use DQNTrainer"),
        ("PPO", TrainerConfig(), "a trainer whose config_class is TrainerConfig"),
    ],
)
@pytest.mark.parametrize("where", ["beside the env", "with the env in it"])
def test_the_config_of_another_algorithm(name, config, message, where):
    given = {"env": "CartPole-v1", "config": config}
    if where == "with the env in it":
        given = {"config": config.changed(env="CartPole-v1")}
    with pytest.raises(ConfigError, match=message):
        registry.get_trainer_class(name)(**given)


def test_names_of_other_libraries_map_to_existing_keys():
    configs = [registry.get_trainer_class(name).config_class for name in registry.ALGORITHMS]
    keys = {"lambda" if key == "lambda_" else key for config in configs for key in config.model_fields}
    keys |= {f"model.{key}" for key in ModelConfig.model_fields}
    keys |= {f"critic_model.{key}" for key in CriticConfig.model_fields} | {"multiagent.policies"}
    needed = {key for name in SYNONYMS for _, group in counterparts(name) for key in group}
    assert needed <= keys


HINTS = [
    # Stable-Baselines3 and CleanRL
    ("APPO", "target_kl", "in rollax it is 'use_kl_loss' and 'kl_target': "),
    ("DQN", "target_kl", "only PPO's updates stop early"),
    ("DQN", "normalize_rewards", "gymnasium.wrappers.NormalizeReward"),
    ("PPO", "norm_reward", "in rollax it is 'normalize_rewards'"),
    ("PPO", "reward_scale", "in rollax it is 'normalize_rewards'"),
    ("PPO", "int_coef", "in rollax it is 'bonus_coeff': the weight of bonuses"),
    ("PPO", "int_gamma", "in rollax it is 'bonus_gamma'"),
    ("DQN", "int_gamma", "in rollax it is 'gamma': bonuses have"),
    ("DQN", "update_proportion", "in rollax it is 'predictor_share'"),
    ("PPO", "use_rnd", "in rollax it is 'exploration_bonus': 'rnd'"),
    ("PPO", "norm_obs", "in rollax it is 'observation_filter'"),
    ("PPO", "normalize_advantage", "PPO standardizes advantages"),
    ("PPO", "ent_coef", "in rollax it is 'entropy_coeff'"),
    ("SAC", "ent_coef", "in rollax it is 'initial_alpha' and 'alpha_lr': the temperature begins"),
    ("TD3", "ent_coef", "no entropy term"),
    ("DQN", "exploration_fraction", "in rollax it is 'epsilon_timesteps': a number of steps"),
    ("PPO", "exploration_fraction", "by drawing actions from its policy"),
    ("ARS", "n_eval_episodes", "in rollax it is 'episodes_per_candidate': episodes of each candidate in training; ev"),
    ("PPO", "n_eval_episodes", "in rollax it is 'evaluation_num_episodes'"),
    ("ARS", "zero_policy", "linear policy begin at 0"),
    ("PPO", "n_steps", "in rollax it is 'train_batch_size'"),
    ("DQN", "n_steps", "in rollax it is 'n_step'"),
    ("PPO", "batch_size", "in rollax it is 'sgd_minibatch_size'"),
    ("FlashSAC", "critic_num_bins", "in rollax it is 'num_atoms'"),
    ("PPO", "normalize_reward", "in rollax it is 'normalize_rewards'"),
    ("FlashSAC", "normalize_reward", "in rollax it is 'v_max': rewards are always scaled"),
    ("FlashSAC", "actor_hidden_dim", "in rollax it is 'actor_hiddens': the width of each residual block"),
    ("FlashSAC", "critic_hidden_dim", "in rollax it is 'model.fcnet_hiddens'"),
    ("SAC", "actor_block_type", "in rollax it is 'model.residual_blocks'"),
    ("FlashSAC", "block_type", "in rollax it is 'residual_blocks'"),
    ("SAC", "dropout_rate", "in rollax it is 'critic_model.dropout'"),
    ("TQC", "n_quantiles", "in rollax it is 'num_quantiles'"),
    ("TQC", "n_critics", "in rollax it is 'num_critics'"),
    ("TQC", "quantiles_to_drop", "in rollax it is 'top_quantiles_to_drop_per_net'"),
    ("SAC", "subset_size", "in rollax it is 'target_critics'"),
    ("TD3", "n_critics", "in rollax it is 'twin_q'"),
    ("SAC", "normalize_reward", "does not normalize rewards"),
    ("SAC", "batch_size", "in rollax it is 'train_batch_size'"),
    ("SAC", "target_update_interval", "in rollax it is 'tau'"),
    ("DQN", "tau", "in rollax it is 'target_network_update_freq'"),
    ("APPO", "tau", "in rollax it is 'target_update_frequency'"),
    ("TD3", "policy_frequency", "in rollax it is 'policy_delay'"),
    ("PPO", "device", "JAX_PLATFORMS"),
    ("PPO", "tensorboard_log", "fit(out=...)"),
    ("PQN", "q_lambda", "in rollax it is 'lambda'"),
    ("PQN", "rew_scale", "in rollax it is 'reward_scale'"),
    ("PQN", "num_minibatches", "in rollax it is 'sgd_minibatch_size'"),
    ("PPO", "total_timesteps", "fit(stop={'timesteps_total': ...})"),
    ("SAC", "replay_buffer_class", "in rollax it is 'hindsight_goals': for hindsight replay (HER)"),
    ("QMIX", "replay_buffer_kwargs", "in rollax it is 'prioritized_replay'"),
    ("TD3", "n_sampled_goal", "in rollax it is 'hindsight_goals'"),
    ("DQN", "goal_selection_strategy", "in rollax it is 'hindsight_strategy'"),
    ("PPO", "replay_buffer_kwargs", "this algorithm has no replay buffer"),
    ("PPO", "log_std_init", "it is a key of 'model'"),
    ("TD3", "use_sde", "no state-dependent exploration"),
    ("PPO", "full_std", "each hidden feature and action element"),
    ("A2C", "use_rms_prop", "unless make_optimizer of a policy of your own returns another; 'opt_type' is a key of"),
    ("IMPALA", "use_rms_prop", "in rollax it is 'opt_type'"),
    ("PPO", "model.optimizer_kwargs", "the optimizer is Adam"),
    ("PPO", "wrapper_class", "in rollax it is 'env_wrappers'"),
    # RLlib
    ("DQN", "exploration_config", "'exploration' and 'initial_epsilon' and 'final_epsilon' and 'epsilon_timesteps'"),
    ("QMIX", "exploration_config", "in rollax it is 'initial_epsilon' and 'final_epsilon' and 'epsilon_timesteps'"),
    ("SAC", "exploration_config", "in rollax it is 'exploration' and 'noise_scale'"),
    ("PPO", "exploration_config", "by drawing actions from its policy"),
    ("PPO", "train_batch_size_per_learner", "in rollax it is 'train_batch_size'"),
    ("PPO", "num_env_runners", "in rollax it is 'num_workers'"),
    ("CQL", "input_evaluation", "in rollax it is 'off_policy_estimation_methods'"),
    ("PPO", "input_evaluation", "estimate_policy"),
    ("MARWIL", "shuffle_buffer_size", "rows are drawn from all"),
    ("PPO", "input_config", "env=PolicyServerEnv"),
    ("PPO", "env_task_fn", "rollax docs callbacks"),
    ("PPO", "evaluation_num_env_runners", "in rollax it is 'evaluation_num_workers'"),
    ("PPO", "replay_buffer_config", "this algorithm has no replay buffer"),
    ("DQN", "replay_buffer_config", "in rollax it is 'buffer_size' and 'prioritized_replay'"),
    ("A2C", "min_sample_timesteps_per_reporting", "in rollax it is 'timesteps_per_iteration'"),
    # Spinning Up
    ("SAC", "polyak", "in rollax it is 'tau': 1 - polyak"),
    ("PPO", "pi_lr", "in rollax it is 'lr'"),
    ("DDPG", "pi_lr", "in rollax it is 'actor_lr'"),
    ("PPO", "steps_per_epoch", "in rollax it is 'train_batch_size'"),
    ("SAC", "steps_per_epoch", "in rollax it is 'timesteps_per_iteration'"),
    # Tianshou and Acme
    ("PPO", "repeat_per_collect", "in rollax it is 'num_sgd_iter'"),
    ("DQN", "estimation_step", "in rollax it is 'n_step'"),
    ("DQN", "samples_per_insert", "in rollax it is 'training_intensity'"),
    ("IMPALA", "entropy_cost", "in rollax it is 'entropy_coeff'"),
    # Parts of the config, typing errors, and what is neither
    ("PPO", "net_arch", "in rollax it is 'model.fcnet_hiddens'"),
    ("PPO", "model.hidden_sizes", "in rollax it is 'fcnet_hiddens'"),
    ("PPO", "target_kll", "did you mean 'target_kl'?"),
    ("PPO", "nmu_workers", "did you mean 'num_workers'?"),
    ("PPO", "evaluation_steps", "similar keys: evaluation_interval, evaluation_num_episodes, evaluation_num_workers, "),
    # Keys of other algorithms
    ("PPO", "policy_delay", "leave it out; it is a key of CQL, SAC, TD3, TD7, TQC, "),
    ("PPO", "buffer_size", "has no replay buffer; it is a key of BC, CQL, DQN, IQL, SAC, TD3, "),
    ("SAC", "clip_param", "leave it out; it is a key of PPO, APPO"),
    ("DQN", "sgd_minibatch_size", "in rollax it is 'train_batch_size'"),
    ("DQN", "gae_lambda", "leave it out; 'lambda' is a key of A2C, A3C, PPO, PQN, APPO, IMPALA"),
]


@pytest.mark.short(every=5)
@pytest.mark.parametrize(("algorithm", "name", "hint"), HINTS)
def test_a_hint_names_the_intended_key(algorithm, name, hint):
    config_class = registry.get_trainer_class(algorithm).config_class
    part, _, key = name.rpartition(".")
    with pytest.raises(ConfigError, match="Unknown config key") as error:
        resolve_config(config_class, {part: {key: 1}} if part else {name: 1})
    assert hint in f"{error.value}\n"


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=() if name == "SAC" else pytest.mark.long) for name in registry.ALGORITHMS]
)
def test_names_of_other_libraries_are_no_typing_errors(algorithm):
    config_class = registry.get_trainer_class(algorithm).config_class
    keys = {str(field.validation_alias or key) for key, field in config_class.model_fields.items()}
    for name in SYNONYMS.keys() - keys:
        with pytest.raises(ConfigError) as error:
            config_class(**{name: 1})
        found = counterpart(name, keys | {f"model.{key}" for key in ModelConfig.model_fields})
        assert "did you mean" not in str(error.value)
        assert found is None or f"in rollax it is '{found.keys[0]}'" in str(error.value)
