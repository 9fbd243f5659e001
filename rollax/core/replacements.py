"""Attributes, arguments and public names of RLlib and Stable-Baselines3, and what replaces them in rollax.

Config keys are in `rollax/config/synonyms.py`. The tables are loaded when a name is unknown; see `other_names.py`.
"""

from __future__ import annotations


def each(names: str, value: str) -> dict[str, str]:
    """A table in which all of these names, separated by spaces, have one value."""
    return dict.fromkeys(names.split(), value)


_SETTINGS = "settings are keys: {cls}(env=..., lr=...), or config.changed(lr=...) for a config with other values"
_BUILT = "pass the config to its trainer, as in PPOTrainer(config=config)"
_BUFFER = "config key 'store_buffer_in_checkpoints' stores it with save()"
_COPIES = "config keys 'num_envs_per_worker' (in one process) and 'num_workers' (in several)"
_MODELS = "config key 'model', or a class of your own as 'model.custom_model'"
_FIT = "fit(stop, out) writes results, a TensorBoard log and checkpoints"

TRAINER: dict[str, str] = {
    # Stable-Baselines3
    "learn": "fit(stop={'timesteps_total': n}), or train() in a loop",
    **each("predict compute_action", "compute_single_action(obs), or compute_actions([...]) for many observations"),
    "load": "load_policy(path) to act, or {cls}.from_checkpoint(path) to continue training",
    "policy": "get_policy()",
    **each("env get_env", "worker.foreach_env(function)"),
    "set_env": "{cls}.from_checkpoint(path, env=...)",
    "get_parameters": "get_weights()",
    "set_parameters": "set_weights(weights)",
    **each("num_timesteps timesteps_total", "optimizer.steps, and 'timesteps_total' of the results"),
    **each("replay_buffer local_replay_buffer", "optimizer.buffers[policy_id]"),
    **each("save_replay_buffer load_replay_buffer", _BUFFER),
    **each("observation_space action_space", "get_policy().observation_space and action_space"),
    **each("logger set_logger", _FIT),
    "set_random_seed": "config key 'seed'",
    # RLlib
    **each("build build_algo", "a trainer is ready as it is: call train() or fit()"),
    **each("save_checkpoint save_to_path", "save(directory)"),
    **each("load_checkpoint restore_from_path", "restore(path), or {cls}.from_checkpoint(path)"),
    **each("export_policy_model export_model", "export_policy(checkpoint, to='onnx', out=...)"),
    "export_policy_checkpoint": "save(directory), and load_policy(path, policy_id)",
    "get_module": "get_policy()",
    "get_config": "the attribute config",
    **each("get_default_config default_config", "{cls}.config_class()"),
    "training_iteration": "iteration",
    "env_runner": "worker",
    "env_runner_group": "workers",
    # Gymnasium
    "close": "stop(), or a block `with {cls}(...) as trainer`",
}
"""Attribute of another library's trainer -> its replacement; "{cls}" stands for the name of the trainer class."""

CONFIG: dict[str, str] = {
    **each("environment training rollouts env_runners learners framework resources multi_agent debugging", _SETTINGS),
    **each("reporting evaluation checkpointing fault_tolerance offline_data rl_module api_stack", _SETTINGS),
    **each("experimental python_environment update_from_dict", _SETTINGS),
    **each("build build_algo algo_class", _BUILT),
    "to_dict": "to_json()",
}
"""Attribute of RLlib's config -> its replacement; "{cls}" stands for the name of the config class."""

RUNNER: dict[str, str] = {
    **{name: TRAINER[name] for name in ("predict", "compute_action")},
    **each("learn train fit", "the trainer's, which Trainer.from_checkpoint(path) opens"),
    **each("get_weights set_weights get_parameters", "policy.get_weights() and policy.set_weights(weights)"),
    **each("observation_space action_space", "policy.observation_space and policy.action_space"),
}
"""Attribute of another library's loaded policy -> its replacement."""

_ROWS = "the columns of the samples in on_sample_end"

EPISODE: dict[str, str] = {
    **each("hist_data media", "results have means of custom_metrics; a callback can collect all values"),
    **each("last_info_for _last_infos", "last_infos[agent_id]"),
    **each("agent_rewards get_rewards", f"total_reward, 'policy_reward_mean' of the results, or {_ROWS}"),
    **each("get_return", "total_reward"),
    **each("last_observation_for last_raw_obs_for last_action_for prev_action_for last_reward_for", _ROWS),
    **each("prev_reward_for last_extra_action_outs_for rnn_state_for get_observations get_actions", _ROWS),
    **each("total_env_steps active_env_steps env_steps total_agent_steps agent_steps", "length, in environment steps"),
    **each("get_agents agent_ids", "policies, a dict by agent id, if there are several policies"),
    **each("id_ env_id", "episode_id and env_index"),
    **each("batch_builder add_extra_batch", "on_sample_end, which may change the samples in place"),
    "policy_mapping_fn": "policy_for(agent_id)",
    "worker": "the argument worker of the callback",
}
"""Attribute of RLlib's episode -> its replacement."""

PUBLIC: dict[str, str] = {
    # Stable-Baselines3
    "RecurrentPPO": "PPOTrainer with {'model': {'use_lstm': True}}",
    "MaskablePPO": "PPOTrainer, with the mask as 'action_mask' of the observation",
    **each("BaseAlgorithm OnPolicyAlgorithm OffPolicyAlgorithm", "Trainer"),
    "BasePolicy": "Policy",
    "evaluate_policy": "the method evaluate(num_episodes) of a trainer",
    **each("make_vec_env DummyVecEnv SubprocVecEnv", _COPIES),
    "VecNormalize": "config keys 'observation_filter': 'MeanStdFilter' and 'normalize_rewards': True",
    **each("VecFrameStack FrameStackObservation", "config key 'frame_stack'"),
    "MaxAndSkipEnv": "config key 'action_repeat'",
    "Monitor": "leave it out: results have the rewards and lengths of episodes",
    "EvalCallback": "config key 'evaluation_interval'; fit(stop, out) keeps the best model",
    "CheckpointCallback": "the argument checkpoint_frequency of fit",
    "BaseCallback": "Callbacks",
    **each("WandbCallback WandbLoggerCallback", "loggers=['wandb'], an argument of fit"),
    **each("MLflowLoggerCallback MLflowOutputFormat", "loggers=['mlflow'], an argument of fit"),
    **each("TBXLoggerCallback TensorboardLogger SummaryWriter", "loggers=['tensorboard'], an argument of fit"),
    **each("CSVLoggerCallback CSVOutputFormat", "loggers=['csv'], an argument of fit"),
    **each("JsonLoggerCallback JSONOutputFormat", "loggers=['jsonl'], an argument of fit"),
    # RLlib
    "AlgorithmConfig": "TrainerConfig",
    **each("DefaultCallbacks RLlibCallback", "Callbacks"),
    "EnvRunner": "RolloutWorker",
    "TorchPolicyV2": "TorchPolicy",
    **each("ModelCatalog ModelV2 TorchModelV2 TFModelV2 RLModule RLModuleSpec TorchRLModule", _MODELS),
    "PrioritizedReplayBuffer": "PrioritizedReplay",
    **each("JsonReader InputReader", "open_dataset"),
    "JsonWriter": "DatasetWriter",
    "PolicyServerInput": "PolicyServerEnv, as the env",
    **each("PettingZooEnv ParallelPettingZooEnv", "leave it out: env is a PettingZoo environment's class or creator"),
}
"""Public name of another library -> its replacement."""


_STEPS, _ITERATIONS = "stop={'timesteps_total': n}", "stop={'training_iteration': n}"
_EVALUATIONS = "config keys 'evaluation_interval', 'evaluation_num_episodes' and 'evaluation_config'"
_OTHER_ENV = "{cls}.from_checkpoint(path, learn=False, {name}=...).evaluate()"
_OF_EVALUATION = "config key 'evaluation_config', as in {'explore': True}; evaluations are greedy by default"

FIT: dict[str, str] = {
    **each("total_timesteps n_timesteps num_timesteps timesteps max_steps num_steps steps", _STEPS),
    **each("n_iterations num_iterations iterations max_iterations epochs n_epochs", _ITERATIONS),
    **{name: f"stop={{{name!r}: ...}}" for name in ("timesteps_total", "training_iteration", "time_total_s")},
    **{name: f"stop={{{name!r}: ...}}" for name in ("episode_reward_mean", "evaluation_reward_mean")},
    **each("callback callbacks", "config key 'callbacks'"),
    **each("eval_env eval_freq n_eval_episodes evaluation_interval", _EVALUATIONS),
    **each("progress_bar verbose log_interval", "progress='auto', 'lines' or 'none'"),
    **each("tb_log_name eval_log_path log_dir local_dir storage_path output path", "out, the run folder"),
    **each("checkpoint_freq save_freq", "checkpoint_frequency, in iterations"),
    **each("logger logger_config logger_kwargs tensorboard_log wandb track", "loggers, a list of names"),
    "reset_num_timesteps": "limits are totals of the run: stop={'timesteps_total': trainer.optimizer.steps + n}",
}
"""Argument of another library's `learn` or `fit` -> its replacement in `fit`."""

EVALUATE: dict[str, str] = {
    **each("n_eval_episodes n_episodes num_eval_episodes nr_episodes episodes n", "num_episodes"),
    **each("deterministic explore", _OF_EVALUATION),
    **each("render video_folder record_video", "record_dir, a folder for videos"),
    **each("env seed", _OTHER_ENV),
    **each("return_episode_rewards reward_threshold", "'episode_rewards' of the result"),
    **each("callback callbacks", "config key 'callbacks'"),
}
"""Argument of another library's `evaluate` or `evaluate_policy` -> its replacement in `evaluate`."""

ACT: dict[str, str] = {
    **each("observation observations obs", "the first argument"),
    "deterministic": "explore=not deterministic; actions are greedy by default",
    "episode_start": "state=None at the start of an episode",
    "action_masks": "'action_mask' of the observation",
    **each("full_fetch clip_actions unsquash_action unsquash_actions", "leave it out"),
}
"""Argument of another library's `predict` or `compute_single_action` -> its replacement in `compute_...`."""
