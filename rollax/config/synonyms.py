"""What other libraries call our config keys: RLlib, Stable-Baselines3, CleanRL and Spinning Up."""

from __future__ import annotations

from collections.abc import Container

SYNONYMS: dict[str, str] = {
    # Learning
    "learning_rate": "lr",
    "discount": "gamma",
    "discount_factor": "gamma",
    "max_grad_norm": "grad_clip",
    "batch_size": "sgd_minibatch_size train_batch_size",
    "minibatch_size": "sgd_minibatch_size",
    "num_minibatches": "sgd_minibatch_size",
    "n_epochs": "num_sgd_iter",
    "num_epochs": "num_sgd_iter",
    "update_epochs": "num_sgd_iter",
    "ent_coef": "entropy_coeff initial_alpha",
    "entropy_coef": "entropy_coeff initial_alpha",
    "vf_coef": "vf_loss_coeff",
    "clip_range": "clip_param",
    "clip_coef": "clip_param",
    "clip_range_vf": "vf_clip_param",
    "gae_lambda": "lambda",
    "target_kl": "kl_target",
    # Sampling
    "n_envs": "num_envs_per_worker",
    "num_envs": "num_envs_per_worker",
    "num_envs_per_env_runner": "num_envs_per_worker",
    "num_env_runners": "num_workers",
    "num_rollout_workers": "num_workers",
    "n_steps": "rollout_fragment_length n_step",
    "num_steps": "rollout_fragment_length",
    "evaluation_duration": "evaluation_num_episodes",
    "min_sample_timesteps_per_iteration": "timesteps_per_iteration",
    "min_train_timesteps_per_iteration": "timesteps_per_iteration",
    "min_iter_time_s": "min_time_s_per_iteration",
    # Replay
    "replay_buffer_config": "buffer_size prioritized_replay",
    "replay_buffer_class": "prioritized_replay",
    "replay_buffer_size": "buffer_size",
    "replay_size": "buffer_size",
    "num_replay_buffer_shards": "num_replay_shards",
    "num_steps_sampled_before_learning_starts": "learning_starts",
    "update_after": "learning_starts",
    "start_steps": "random_steps",
    "train_freq": "training_intensity rollout_fragment_length",
    "train_frequency": "training_intensity rollout_fragment_length",
    "update_every": "training_intensity rollout_fragment_length",
    "gradient_steps": "training_intensity",
    "utd_ratio": "training_intensity",
    "double_dqn": "double_q",
    # Targets
    "target_update_interval": "target_network_update_freq target_update_frequency tau",
    "target_network_frequency": "target_network_update_freq target_update_frequency tau",
    "target_network_update_freq": "target_update_frequency tau",
    "tau": "target_network_update_freq target_update_frequency",
    "polyak": "tau",
    # Exploration
    "exploration_config": "exploration",
    "exploration_fraction": "epsilon_timesteps",
    "exploration_initial_eps": "initial_epsilon",
    "exploration_final_eps": "final_epsilon",
    "start_e": "initial_epsilon",
    "end_e": "final_epsilon",
    "epsilon": "initial_epsilon final_epsilon epsilon_timesteps",
    "action_noise": "exploration noise_scale",
    "exploration_noise": "noise_scale",
    "act_noise": "noise_scale",
    # Actors and critics
    "policy_lr": "actor_lr",
    "pi_lr": "actor_lr",
    "q_lr": "critic_lr lr",
    "optimization": "actor_lr critic_lr alpha_lr",
    "alpha": "initial_alpha",
    "autotune": "alpha_lr",
    "initial_temperature": "initial_alpha",
    "policy_noise": "target_noise",
    "target_policy_noise": "target_noise",
    "noise_clip": "target_noise_clip",
    "policy_frequency": "policy_delay",
    # The network
    "policy_kwargs": "model",
    "net_arch": "model.fcnet_hiddens",
    "hidden_sizes": "model.fcnet_hiddens",
    "activation_fn": "model.fcnet_activation",
    "policy_model": "model",
    "policy_model_config": "model",
    "Q_model": "model",
    "q_model_config": "model",
}
_ADVICE: dict[str, str] = {
    "input": "this version does not have it yet: leave it out",
    "output": "this version does not have it yet: leave it out",
    "framework": "leave it out: all networks are JAX's",
    "record_env": "record with trainer.evaluate(record_dir=...), or give record_env(env, folder) as the env",
    "horizon": "give the environment a time limit, as gymnasium.make(..., max_episode_steps=...) does",
    "total_timesteps": "call train() until result['timesteps_total'] is there, or `rollax train --stop-timesteps`",
}


def our_keys(name: str, known: Container[str]) -> list[str]:
    """Our keys for what others call `name`, those of `model` with that before them.

    Args:
        name: the key that was written.
        known: the keys that the config has; others are left out.
    """
    return [key for key in SYNONYMS.get(name, "").split() if key.partition(".")[0] in known]


def advice(name: str) -> str | None:
    """What to do in the place of a key that other libraries have and this one does not; None if it is no such key."""
    return _ADVICE.get(name)
