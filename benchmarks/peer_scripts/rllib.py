"""RLlib on its new API stack, with its env runner or learner in this process."""

from collections.abc import Callable

import numpy as np
import ray
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy.sample_batch import SampleBatch
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.prioritized_replay_buffer import PrioritizedReplayBuffer

from benchmarks.data import ALPHA, BATCH, BETA, CAPACITY, STEPS, errors, segments
from benchmarks.environments import FreeAgents
from benchmarks.protocol import Link, run, versions

_CONFIGS = {"IMPALA": IMPALAConfig, "APPO": APPOConfig}
_ITERATION_S = 1.0  # shorter than its default of 10, so that a round has several


def sampling(link: Link, env: str, num_envs: int, fragment: int) -> None:
    """`SingleAgentEnvRunner` with a 64x64 tanh network."""
    config = _ppo(env).env_runners(
        num_env_runners=0, num_envs_per_env_runner=num_envs, rollout_fragment_length=fragment
    )
    runner = SingleAgentEnvRunner(config=config)

    def collect() -> int:
        steps = sum(len(episode) for episode in runner.sample())
        # The algorithm reads the metrics once per iteration; unread metrics would accumulate.
        runner.get_metrics()
        return steps

    link.serve_rates(collect, **_facts())


class FreeEnv(FreeAgents, MultiAgentEnv):
    """`FreeAgents` as a multi-agent env of RLlib."""

    def __init__(self, config=None):
        MultiAgentEnv.__init__(self)
        FreeAgents.__init__(self, **(config or {}))


def free_agents(link: Link, num_agents: int, fragment: int) -> None:
    """`MultiAgentEnvRunner`: many agents of a free env, one shared policy."""
    config = (
        _ppo(FreeEnv, env_config={"num_agents": num_agents})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1, rollout_fragment_length=fragment)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent_id, *_, **__: "shared")
    )
    runner = MultiAgentEnvRunner(config=config)

    def collect() -> int:
        steps = sum(episode.agent_steps() for episode in runner.sample())
        # The algorithm reads the metrics once per iteration; unread metrics would accumulate.
        runner.get_metrics()
        return steps

    link.serve_rates(collect, **_facts())


def ppo_iteration(
    link: Link, env: str, num_envs: int, train_batch: int, minibatch: int, epochs: int, width: int
) -> None:
    """One training iteration of PPO."""
    config = (
        _ppo(env, width=width)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
        .learners(num_learners=0)
        .training(train_batch_size=train_batch, minibatch_size=minibatch, num_epochs=epochs)
    )
    algorithm = config.build_algo()
    link.serve_durations(algorithm.train, warm_up=1, **_facts())
    algorithm.stop()


def asynchronous(link: Link, algorithm: str, env: str, num_workers: int, num_envs: int) -> None:
    """Env steps per second that IMPALA or APPO trains on."""
    ray.init(address="local", num_cpus=num_workers + 2, include_dashboard=False)
    config = (
        _CONFIGS[algorithm]()
        .environment(env)
        .env_runners(num_env_runners=num_workers, num_envs_per_env_runner=num_envs)
        .learners(num_learners=0)
        .rl_module(model_config=_model())
        .reporting(min_time_s_per_iteration=_ITERATION_S)
        .debugging(seed=0)
    )
    trainer = config.build_algo()
    counted = 0

    def collect() -> int:
        nonlocal counted
        result = trainer.train()
        learned = result.get("learners", {}).get("__all_modules__", {})
        if not learned:
            return 0
        # RLlib also counts the row that it adds to each segment, and APPO can train on a step more than once.
        once = min(learned["num_env_steps_trained_lifetime"], result["num_env_steps_sampled_lifetime"])
        fresh, counted = int(once) - counted, int(once)
        return fresh

    while not collect():
        pass  # its actors are still starting

    link.serve_rates(collect, lead_in=collect, **_facts())
    trainer.stop()
    ray.shutdown()


def dqn(
    link: Link,
    env: str,
    num_workers: int,
    num_envs: int,
    fragment: int,
    batch: int,
    updates_per_step: float,
    buffer_size: int,
    n_step: int,
) -> None:
    """Env steps per second of DQN with remote env runners.

    Args:
        fragment: steps of each sub-environment.
        batch: rows of an update.
    """
    ray.init(address="local", num_cpus=num_workers + 2, include_dashboard=False)
    # RLlib counts its driver as one more env runner when it turns this into updates for each round of sampling.
    of_rounds = num_workers / (num_workers + 1)
    config = (
        DQNConfig()
        .environment(env)
        .env_runners(num_env_runners=num_workers, num_envs_per_env_runner=num_envs, rollout_fragment_length=fragment)
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=batch,
            training_intensity=updates_per_step * batch * of_rounds,
            n_step=n_step,
            num_steps_sampled_before_learning_starts=1000,
            target_network_update_freq=2000,
            replay_buffer_config={
                "type": "PrioritizedEpisodeReplayBuffer",
                "capacity": buffer_size,
                "alpha": 0.6,
                "beta": 0.4,
            },
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh"))
        .reporting(min_time_s_per_iteration=_ITERATION_S, min_sample_timesteps_per_iteration=0)
        .debugging(seed=0)
    )
    trainer = config.build_algo()
    counted = 0

    def collect() -> int:
        nonlocal counted
        sampled = int(trainer.train()["env_runners"]["num_env_steps_sampled_lifetime"])
        fresh, counted = sampled - counted, sampled
        return fresh

    while counted < 2000:  # it learns by then
        collect()
    link.serve_rates(collect, lead_in=collect, **_facts())
    trainer.stop()
    ray.shutdown()


def replay(link: Link, buffer: str, adds: bool) -> None:
    """Prioritized buffers, full with a million transitions: sample and update the priorities of 512 rows.

    Args:
        buffer: "episodes", the buffer of the new API stack, or "timesteps", of the old one.
        adds: 512 rows are added before.
    """
    add, sample = (_of_episodes if buffer == "episodes" else _of_timesteps)(errors())

    def work() -> int:
        if adds:
            add()
        sample()
        return BATCH

    for _ in range(CAPACITY // BATCH + 1):
        add()
    link.serve_rates(work, versions=versions("ray", "numpy"))


def _of_episodes(next_errors: Callable[[], np.ndarray]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns the functions that add, and that sample and update, for the buffer of the new API stack."""
    buffer = PrioritizedEpisodeReplayBuffer(CAPACITY, alpha=ALPHA)
    episodes = segments()

    def add() -> None:
        buffer.add(
            [
                SingleAgentEpisode(
                    observations=list(segment["obs"]),
                    actions=list(segment["actions"]),
                    rewards=list(segment["rewards"]),
                    terminated=True,
                    len_lookback_buffer=0,
                )
                for segment in episodes
            ]
        )

    def sample() -> None:
        buffer.sample(num_items=BATCH, n_step=1, beta=BETA)
        buffer.update_priorities(next_errors())

    return add, sample


def _of_timesteps(next_errors: Callable[[], np.ndarray]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns the same functions for the buffer of the old API stack."""
    buffer = PrioritizedReplayBuffer(CAPACITY, storage_unit="timesteps", alpha=ALPHA)
    episodes = segments()
    columns = {name: np.concatenate([segment[name][:STEPS] for segment in episodes]) for name in episodes[0]}
    columns["new_obs"] = np.concatenate([segment["obs"][1:] for segment in episodes])

    def add() -> None:
        buffer.add(SampleBatch(columns))

    def sample() -> None:
        batch = buffer.sample(BATCH, beta=BETA)
        buffer.update_priorities(batch["batch_indexes"], next_errors())

    return add, sample


def _ppo(env: str | type, width: int = 64, **settings: object) -> PPOConfig:
    return PPOConfig().environment(env, **settings).rl_module(model_config=_model(width)).debugging(seed=0)


def _model(width: int = 64) -> DefaultModelConfig:
    return DefaultModelConfig(fcnet_hiddens=[width, width], fcnet_activation="tanh", vf_share_layers=False)


def _facts() -> dict:
    installed = versions("ray", "torch", "gymnasium", "numpy")
    return {"threads": torch.get_num_threads(), "versions": installed}


if __name__ == "__main__":
    run(sampling, free_agents, ppo_iteration, asynchronous, dqn, replay)
