"""Names of config keys in other libraries: RLlib, Stable-Baselines3, CleanRL, Spinning Up, Tianshou, Acme and others.

An entry of `SYNONYMS` lists groups of keys, separated by "|": the hint is the first group of which the config has all
keys. A key with a question mark must be in the config too, but the hint does not name it. A note on the difference may
follow after a colon. `ADVICE` is for keys without a counterpart.
"""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from rollax.core.replacements import each
from rollax.errors import page

_TEMPERATURE = "initial_alpha alpha_lr: the temperature begins at initial_alpha and adapts; alpha_lr=0 keeps it there"
_TARGETS = (
    "target_network_update_freq: it counts updates | target_update_frequency: it counts updates "
    "| tau: the Polyak coefficient of each update"
)
_COPIED = (
    "target_network_update_freq: the number of updates between copies | target_update_frequency: the number of updates "
    "between copies"
)
_EXPLORATION = (
    "exploration initial_epsilon final_epsilon epsilon_timesteps | initial_epsilon final_epsilon epsilon_timesteps "
    "| exploration noise_scale"
)
_ONE_STEP_SIZE = "lr: the step size of both actor and critic"
_INTENSITY = "training_intensity: updates for each step sampled, gradient steps / steps between them"
_ITERATION = "buffer_size? timesteps_per_iteration | train_batch_size"
_BATCH = "sgd_minibatch_size | train_batch_size"
_VALUE_CLIP = "vf_clip_param: a bound on each row's squared value error, not on how far the value moves"
_BONUS_WEIGHT = "bonus_coeff: the weight of bonuses against rewards, such as int_coef / ext_coef"
_BLOCKS = ": the width of each residual block, such as (256, 256)"
_LAYERS, _ACTIVATION = "model.fcnet_hiddens", "model.fcnet_activation"


SYNONYMS: dict[str, str] = {
    # Learning
    **each("learning_rate learning_rates", "lr"),
    **each("anneal_lr lr_decay lr_scheduler", "lr_schedule: [[timestep, lr], ...], linear in between"),
    **each("discount discount_factor", "gamma"),
    **each("max_grad_norm max_gradient_norm clip_grad_norm grad_norm_clip", "grad_clip"),
    "grad_clip_by": "grad_clip: the bound is on the global norm",
    "batch_size": _BATCH,
    "sgd_minibatch_size": "buffer_size? train_batch_size",
    **each("minibatch_size mini_batch_size sgd_batch_size", "sgd_minibatch_size"),
    **each("num_minibatches num_mini_batch n_minibatches", "sgd_minibatch_size: rows, train_batch_size / minibatches"),
    "train_batch_size_per_learner": "train_batch_size",
    **each("n_epochs num_epochs update_epochs ppo_epochs ppo_epoch repeat_per_collect", "num_sgd_iter"),
    **each("train_pi_iters train_v_iters", "num_sgd_iter: the same number for actor and critic"),
    **each("ent_coef entropy_coef ent_coeff entropy_cost entropy_coefficient", f"entropy_coeff | {_TEMPERATURE}"),
    **each("vf_coef vf_coeff value_coef value_cost value_loss_coef baseline_cost", "vf_loss_coeff"),
    **each("clip_range clip_coef clip_ratio eps_clip clip_epsilon ppo_clipping_epsilon", "clip_param"),
    **each("clip_range_vf clip_vloss value_clip value_clipping_epsilon", _VALUE_CLIP),
    **each("gae_lambda lam q_lambda", "lambda"),
    "target_kl": "use_kl_loss kl_target: a penalty that adapts to kl_target; updates do not stop early",
    **each("use_rms_prop optimizer optimizer_class", "opt_type"),
    **each("rms_prop_eps", "opt_type? epsilon"),
    **each("adam_eps optimizer_epsilon", "adam_epsilon"),
    # Sampling
    **each("env_id env_name environment", "env"),
    **each("env_kwargs environment_kwargs", "env_config"),
    **each("n_envs num_envs num_envs_per_env_runner training_num num_train_envs", "num_envs_per_worker"),
    **each("num_env_runners num_rollout_workers num_actors", "num_workers"),
    **each("num_cpus_per_env_runner", "num_cpus_per_worker"),
    **each("num_gpus_per_env_runner", "num_gpus_per_worker"),
    "num_gpus_per_learner": "num_gpus",
    **each("n_steps num_steps", "n_step | train_batch_size: the steps of all sub-environments, n_steps × n_envs"),
    **each("unroll_length sequence_length t_max", "rollout_fragment_length"),
    "step_per_collect": "sgd_minibatch_size? train_batch_size | rollout_fragment_length",
    **each("steps_per_epoch step_per_epoch", _ITERATION),
    **each("nstep estimation_step n_step_returns", "n_step"),
    **each("evaluation_duration num_test_episodes episode_per_test", "evaluation_num_episodes"),
    "evaluation_num_env_runners": "evaluation_num_workers",
    "n_eval_episodes": "episodes_per_candidate: episodes of each candidate in training; evaluation_num_episodes counts "
    "those of an evaluation | evaluation_num_episodes",
    "eval_freq": "evaluation_interval: it counts training iterations",
    **each(
        "min_sample_timesteps_per_iteration min_train_timesteps_per_iteration min_sample_timesteps_per_reporting "
        "min_train_timesteps_per_reporting",
        "timesteps_per_iteration",
    ),
    **each("min_iter_time_s min_time_s_per_reporting", "min_time_s_per_iteration"),
    "num_cpus_for_local_worker": "num_cpus_for_driver",
    **each(
        "norm_obs normalize_obs obs_norm normalize_observation",
        'observation_filter: "MeanStdFilter" standardizes observations; model.normalize_observations does so in the '
        "network",
    ),
    **each("clip_reward max_abs_reward", "clip_rewards"),
    **each(
        "n_stack num_stack framestack num_framestacks stack_size",
        "frame_stack: the number of observations; of an Atari game, stack in env_config",
    ),
    **each("wrapper wrappers wrapper_class env_wrapper", "env_wrappers"),
    **each("frame_skip frameskip num_repeats", "action_repeat: of an Atari game, frame_skip in env_config"),
    **each("restart_failed_env_runners recreate_failed_env_runners", "recreate_failed_workers"),
    "ignore_env_runner_failures": "ignore_worker_failures",
    "callbacks_class": "callbacks",
    "output_compress_columns": "output output_compress: it names a compression, for all columns",
    "output_max_rows_per_file": "output output_max_file_size: it counts bytes",
    **each("stats_window_size metrics_smoothing_episodes", "metrics_num_episodes_for_smoothing"),
    # Replay
    "replay_buffer_config": "buffer_size prioritized_replay: keys of the config itself",
    **each(
        "replay_buffer_class replay_buffer_kwargs",
        "hindsight_goals: for hindsight replay (HER); 4 by default in other libraries | prioritized_replay",
    ),
    **each("n_sampled_goal her_k future_k replay_k k_future num_hindsight_goals", "hindsight_goals"),
    **each("goal_selection_strategy replay_strategy her_strategy", "hindsight_strategy"),
    **each("replay_buffer_size replay_size max_replay_size replay_capacity memory_size", "buffer_size"),
    "num_replay_buffer_shards": "num_replay_shards",
    "optimize_memory_usage": "frame_stack_axis: observations are stored once; with this key also each image of a stack",
    **each(
        "num_steps_sampled_before_learning_starts update_after min_replay_size warmup_steps learning_start",
        "learning_starts",
    ),
    **each("start_steps start_timesteps num_random_timesteps", "random_steps"),
    **each("train_freq train_frequency update_every gradient_steps utd_ratio update_per_step", _INTENSITY),
    "samples_per_insert": "training_intensity: updates for each step sampled, samples_per_insert / train_batch_size",
    **each("double_dqn is_double", "double_q"),
    "dueling_dqn": "dueling",
    "n_atoms": "num_atoms",
    "priority_exponent": "prioritized_replay_alpha",
    **each("replay_burn_in burn_in_length", "burn_in"),
    "sequence_period": "overlap: max_seq_len - sequence_period",
    "max_priority_weight": "priority_eta",
    **each("value_rescaling tx_pair", "use_h_function"),
    **each("beta importance_sampling_exponent", "prioritized_replay_beta"),
    # Rewards
    **each("norm_reward reward_normalization rew_norm reward_scale", "normalize_rewards"),
    **each("rew_scale reward_scaling", "reward_scale | normalize_rewards"),
    # Bonuses
    **each("curiosity intrinsic_reward use_rnd use_icm", "exploration_bonus: 'rnd' is random network distillation"),
    **each("int_coef int_coeff ext_coef intrinsic_coef intrinsic_reward_coeff", _BONUS_WEIGHT),
    **each("int_gamma gamma_int intrinsic_gamma", "bonus_gamma | gamma: bonuses have the γ of the rewards"),
    "update_proportion": "predictor_share",
    # Recorded data
    **each("input_ offline_data dataset dataset_path", "input"),
    "input_read_method_kwargs": "input_config",
    "input_evaluation": "off_policy_estimation_methods: names of estimators",
    # Random search
    "n_delta": "num_directions",
    "num_rollouts": "num_directions: half of the episodes, with one episode for each candidate",
    "episodes_per_batch": "num_directions: half of the episodes, with one episode for each candidate",
    "n_top": "directions_used",
    "rollouts_used": "directions_used: half of it, with one episode for each candidate",
    "delta_std": "noise_stdev",
    **each("stepsize sgd_stepsize", "lr"),
    "return_proc_mode": "shaping",
    "alive_bonus_offset": "reward_offset",
    "offset": "reward_offset: it is added to each reward; pass the negative of an offset that is subtracted",
    **each("popsize population_size", "num_directions: half of the candidates"),
    "weight_decay": "l2_coeff",
    "eval_prob": "evaluation_interval: greedy evaluation after every so many iterations",
    "report_length": "metrics_num_episodes_for_smoothing",
    # Targets
    **each("target_update_interval target_network_frequency target_update_freq target_update_period", _TARGETS),
    "target_network_update_freq": _TARGETS,
    "tau": _COPIED,
    "polyak": f"tau: 1 - polyak | {_COPIED}",
    # Exploration
    "exploration_config": _EXPLORATION,
    "exploration_fraction": "epsilon_timesteps: a number of steps, not a fraction of the run",
    **each("epsilon_decay eps_decay", "epsilon_timesteps: steps over which ε falls, linearly"),
    **each("exploration_initial_eps start_e eps_start epsilon_start", "initial_epsilon"),
    **each("exploration_final_eps end_e eps_end eps_finish epsilon_end", "final_epsilon"),
    **each("epsilon eps_train", "initial_epsilon final_epsilon epsilon_timesteps"),
    **each("action_noise exploration_noise act_noise", "exploration noise_scale"),
    # Actors and critics
    **each("policy_lr pi_lr policy_learning_rate actor_learning_rate", f"actor_lr | {_ONE_STEP_SIZE}"),
    **each("vf_lr critic_learning_rate", f"critic_lr | {_ONE_STEP_SIZE}"),
    "q_lr": "critic_lr | lr",
    "optimization": "actor_lr critic_lr alpha_lr | actor_lr critic_lr",
    "alpha": f"{_TEMPERATURE} | prioritized_replay_alpha",
    **each("autotune auto_alpha", "alpha_lr: 0 keeps the temperature as it is"),
    "initial_temperature": "initial_alpha",
    **each("n_critics num_q ensemble_size num_qvalue_nets num_qs", "num_critics | twin_q"),
    **each("subset_size num_min num_min_qs sub_sample_len", "target_critics"),
    **each("n_quantiles", "num_quantiles"),
    **each("dropout_rate critic_dropout_rate", "critic_model.dropout"),
    **each("critic_hiddens qf_hidden_sizes critic_hidden_dims", "critic_model.fcnet_hiddens"),
    **each("renorm_warmup batch_norm_warmup", "renorm_warmup_steps"),
    **each("quantiles_to_drop n_target_quantiles_to_drop", "top_quantiles_to_drop_per_net: of each critic"),
    **each("policy_noise target_policy_noise", "target_noise"),
    "noise_clip": "target_noise_clip",
    **each("policy_frequency update_actor_freq policy_update_delay actor_delay", "policy_delay"),
    # Distributions of returns, blocks and scales of FlashSAC and SimBaV2
    **each("num_bins critic_num_bins n_bins", "num_atoms"),
    **each("max_v critic_max_v", "v_max"),
    **each("min_v critic_min_v", "v_min | v_max: the atoms are from -v_max to v_max"),
    "normalized_G_max": "v_max: rewards are scaled so that discounted sums of them stay within ±v_max",
    **each(
        "normalize_reward normalize_rewards",
        "normalize_rewards | target_std? v_max: rewards are always scaled, to sums within ±v_max",
    ),
    "temp_initial_value": "initial_alpha",
    **each("target_sigma temp_target_sigma", "target_std"),
    **each("actor_hidden_dim actor_num_blocks", f"actor_hiddens{_BLOCKS}"),
    **each("critic_hidden_dim critic_num_blocks", f"actor_hiddens? {_LAYERS}{_BLOCKS}"),
    # The network
    "policy": "model: the network; policies of several agents are in 'multiagent' | multiagent.policies",
    **each(
        "policy_kwargs ac_kwargs network model_config model_config_dict policy_model policy_model_config Q_model "
        "q_model_config",
        "model",
    ),
    **each("net_arch hidden_sizes hidden_layers hidden_layer_sizes hidden_dims layer_sizes hiddens", _LAYERS),
    **each("activation_fn activation", _ACTIVATION),
    **each("features_extractor_class features_extractor", "model.custom_model"),
    "share_features_extractor": "model.vf_share_layers",
    "lstm_hidden_size": "model.lstm_cell_size",
    **each("norm_type layer_norm use_layer_norm", "model.normalization"),
    **each("actor_block_type critic_block_type block_type", "residual_blocks | model.residual_blocks"),
    **each("use_transformer use_gtrxl", "model.use_attention"),
    **each("attention_memory_inference attention_memory_training memory_length", "model.attention_memory"),
    **each("attention_use_n_prev_actions", "model.lstm_use_prev_action"),
    **each("attention_use_n_prev_rewards", "model.lstm_use_prev_reward"),
}
_UNNORMALIZED = (
    "this algorithm does not normalize rewards: clip_rewards bounds them, and gymnasium.wrappers.NormalizeReward "
    "around the environment normalizes them"
)
_STANDARDIZED = "leave it out: PPO standardizes advantages over the train batch, PG returns; the others do not"
_ITERATIONS = "use fit(stop={'timesteps_total': ...}) or `rollax train --stop-timesteps`, or call train() in a loop"
_DRAWN = "leave it out: this algorithm explores by drawing actions from its policy; explore=False acts greedily"
_CHECKPOINTS = "use fit(checkpoint_frequency=...) or `rollax train --checkpoint-frequency`, in iterations"
_TIME_LIMIT = "give the environment a time limit, such as with gymnasium.make(..., max_episode_steps=...)"
_RESULTS = "leave it out: fit(out=...) and `rollax train` write a TensorBoard log and all results, and show progress"
_LOGGERS = "use fit(loggers=[...]) or `rollax train --logger`; in an experiment file it is a key beside config"
_NO_REPLAY = "leave it out: this algorithm has no replay buffer"
_VIDEOS = "record with trainer.evaluate(record_dir=...), or give record_env(env, folder) as the env"
_INPUT = (
    "leave it out: this algorithm learns from its own experience; DQN, SAC or TD3 learn from recorded data; a policy "
    "server is env=PolicyServerEnv"
)
_NO_SDE = "leave it out: this algorithm has no state-dependent exploration; PPO, A2C, A3C and SAC have it"
_OPTIMIZER = (
    "leave it out: the optimizer is Adam (RAdam in PQN), unless make_optimizer of a policy of your own returns another"
)
ADVICE: dict[str, str] = {
    **each("input input_config", _INPUT),
    "input_evaluation": "leave it out: this algorithm does not learn from recorded data; see estimate_policy",
    "shuffle_buffer_size": "leave it out: rows are drawn from all of the recorded data",
    "postprocess_inputs": "leave it out: each algorithm computes its returns itself",
    "actions_in_input_normalized": 'leave it out: the format defines it; input_config={"actions_of": ...} overrides it',
    "framework": f"leave it out: the algorithms are in JAX; for a policy in PyTorch see {page('torch')}",
    "device": "leave it out: JAX chooses; the environment variable JAX_PLATFORMS=cpu keeps it on the CPU",
    **each("record_env render_env monitor capture_video video_folder", _VIDEOS),
    **each("horizon max_ep_len max_episode_steps", _TIME_LIMIT),
    **each("soft_horizon no_done_at_end", "leave it out: truncated episodes are bootstrapped, terminated ones are not"),
    "preprocessor_pref": f"leave it out: models take every space; for Atari see {page('atari-and-video')}",
    **each("framestack num_framestacks", "leave it out here: the config key frame_stack stacks observations"),
    "use_critic": "leave it out: PG has no critic; A2C, PPO and the other actor-critics have one",
    "shuffle_sequences": "leave it out: minibatches are drawn at random in every epoch",
    "simple_optimizer": "leave it out: each algorithm has one optimizer",
    "evaluation_duration_unit": "leave it out: evaluation_num_episodes counts episodes",
    **each(
        "custom_eval_function custom_evaluation_function",
        "leave it out: evaluations have the custom_metrics of the callbacks; or evaluate in your own loop",
    ),
    "keep_per_episode_custom_metrics": "leave it out: results have means; a callback can collect the values",
    "env_task_fn": f"leave it out: a callback sets attributes of the environments, see {page('callbacks')}",
    "create_env_on_driver": "leave it out: with workers, the driver only reads the spaces of an environment",
    **each("_disable_preprocessor_api enable_connectors", "leave it out: models take the observations as they are"),
    "synchronize_filters": "leave it out: the filters of all workers are merged",
    "worker_side_prioritization": "leave it out: the workers of Ape-X compute initial priorities",
    **each("replay_buffer_config replay_buffer_class replay_buffer_kwargs buffer_size learning_starts", _NO_REPLAY),
    **each("total_timesteps total_steps num_iterations max_epoch epochs", _ITERATIONS),
    **each("norm_reward normalize_reward normalize_rewards reward_normalization rew_norm", _UNNORMALIZED),
    "num_iterations_obs_norm_init": "leave it out: the first fragment's observations are added before its bonuses",
    **each("reward_scale reward_scaling", _UNNORMALIZED),
    **each("norm_adv normalize_advantage normalize_advantages advantage_normalization", _STANDARDIZED),
    "standardize_advantages": _STANDARDIZED,
    "use_gae": "leave it out: lambda=1 is the same as use_gae=False",
    **each("checkpoint_frequency checkpoint_freq checkpoint_interval save_freq", _CHECKPOINTS),
    **each("tensorboard_log verbose", _RESULTS),
    **each("loggers logger logger_type logger_config logger_kwargs logger_creator", _LOGGERS),
    **each("wandb use_wandb wandb_project wandb_project_name wandb_entity wandb_group wandb_mode track", _LOGGERS),
    **each("tensorboard use_tensorboard mlflow csv_log neptune", _LOGGERS),
    **each("render render_mode", "put render_mode into env_config, or record with trainer.evaluate(record_dir=...)"),
    "stop": "use fit(stop=...) or `rollax train --stop-timesteps`; in an experiment file it is a key beside config",
    "log_level": "leave it out: use logging.getLogger('rollax').setLevel(...)",
    "disable_env_checking": "leave it out: the values of environments are always checked, at little cost",
    **each("use_sde sde_sample_freq", _NO_SDE),
    "use_sde_at_warmup": "leave it out: the first random_steps actions are uniformly random",
    "full_std": "leave it out: with use_sde each hidden feature and action element has a deviation",
    "use_expln": "leave it out: the deviations of use_sde are exp(log σ)",
    **each("optimizer_class optimizer_kwargs use_rms_prop", _OPTIMIZER),
    "ortho_init": "leave it out: the layers of the built-in models begin orthogonal",
    "zero_policy": "leave it out: the weights of ARS's linear policy begin at 0, those of other networks do not",
    "target_kl": "leave it out: only PPO's updates stop early",
    **each(
        "ent_coef entropy_coef ent_coeff entropy_cost entropy_coefficient",
        "leave it out: this algorithm has no entropy term",
    ),
    **each("exploration_config exploration_fraction exploration_initial_eps exploration_final_eps", _DRAWN),
    **each("start_e end_e eps_start eps_end epsilon_start epsilon_end epsilon_decay eps_decay eps_train", _DRAWN),
    **each("action_noise exploration_noise act_noise", "leave it out: this algorithm adds no noise to actions"),
}


class Counterpart(NamedTuple):
    """The keys of rollax for a key of another library, as `part.key` if they are in a part, and how they differ."""

    keys: tuple[str, ...]
    note: str


def counterparts(name: str) -> list[tuple[Counterpart, tuple[str, ...]]]:
    """All counterparts of a key in order of preference, and the keys that each requires."""
    found = []
    for group in SYNONYMS[name].split(" | ") if name in SYNONYMS else ():
        keys, _, note = group.partition(":")
        named = tuple(key for key in keys.split() if not key.endswith("?"))
        found.append((Counterpart(named, note.strip()), tuple(key.rstrip("?") for key in keys.split())))
    return found


def counterpart(name: str, known: Container[str], part: str = "") -> Counterpart | None:
    """Returns the first counterpart of `name` whose keys are all in `known`, the keys of a config or of its `part`."""
    for found, needed in counterparts(name):
        if all(key.removeprefix(f"{part}.") in known for key in needed):
            return Counterpart(tuple(key.removeprefix(f"{part}.") for key in found.keys), found.note)
    return None
