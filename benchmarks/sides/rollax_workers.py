"""rollax with several processes: sampling, broadcasts of weights, and the driver of asynchronous workers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.protocol import Link, run, versions
from rollax import Policy, RolloutWorker, SyncSamplesOptimizer, TrainerConfig
from rollax.algorithms.ppo import PPO, PPOConfig
from rollax.config import MultiAgentConfig
from rollax.models.config import ModelConfig
from rollax.optimizers.async_samples import AsyncSamplesOptimizer
from rollax.rollout.messages import Rollout, Update
from rollax.rollout.remote_workers import RemoteWorkers
from rollax.rollout.worker_set import WorkerSet, worker_arguments

_UPDATES = 200  # fragments between two readings of the clock
_WIDTH = 1120  # an actor and a critic of 2 x 1120 units: 2.5 million numbers, 10 MB


def gather(link: Link, env: str, num_workers: int, num_envs: int, fragment: int) -> None:
    """Rounds of broadcast and gather with PPO's policy, without learning; `num_envs` in each worker."""
    config = PPOConfig(
        env=env,
        num_workers=num_workers,
        num_envs_per_worker=num_envs,
        rollout_fragment_length=fragment,
        model=ModelConfig(fcnet_hiddens=(64, 64), fcnet_activation="tanh"),
        train_batch_size=num_workers * num_envs * fragment,
        sgd_minibatch_size=1,
        multiagent=MultiAgentConfig(policies_to_train=()),
        ray_address="local",
        seed=0,
    )
    workers = WorkerSet(worker_arguments(config, PPO))
    optimizer = SyncSamplesOptimizer(workers.local, workers.remote)

    def collect() -> int:
        before = optimizer.env_steps
        optimizer.step()
        optimizer.take_episodes()
        optimizer.timings.take()
        return optimizer.env_steps - before

    link.serve_rates(collect, versions=versions("rollax", "ray", "jax", "flax", "gymnasium", "numpy"))
    workers.stop()


class CountedWeights(dict[str, Any]):
    """Weights that count how often they are serialized: once per stored object."""

    stored = 0

    def __reduce__(self) -> tuple[Any, ...]:
        CountedWeights.stored += 1
        return dict, (dict(self),)


def broadcast(link: Link, num_workers: int, measure: str, one_by_one: bool = False) -> None:
    """Broadcasts the weights of a model of 10 MB to several workers.

    Args:
        measure: "duration" until all have replied, or "puts", the number of objects with the weights.
        one_by_one: the weights are an argument of each worker's call.
    """
    config = PPOConfig(
        env="CartPole-v1",
        num_workers=num_workers,
        num_cpus_per_worker=0,
        rollout_fragment_length=1,
        model=ModelConfig(fcnet_hiddens=(_WIDTH, _WIDTH)),
        ray_address="local",
        seed=0,
    )
    workers = WorkerSet(worker_arguments(config, PPO))
    remote, version = workers.remote, 0

    def hand_out() -> None:
        nonlocal version
        version += 1
        update = Update(version, 0, CountedWeights(workers.local.get_weights()), workers.local.get_filters())
        if one_by_one:
            remote.call_all("sample_fragment", update)
            return
        remote.publish(update)
        for index in remote.indices:
            remote.request(index, "sample_fragment")
        while remote.requests_in_flight:
            remote.collect()

    def puts(_: float) -> float:
        CountedWeights.stored = 0
        hand_out()
        return CountedWeights.stored

    numbers = sum(part.size for weights in workers.local.get_weights().values() for part in weights.values())
    facts = {"megabytes": round(numbers * 4 / 1e6, 1), "versions": versions("rollax", "ray", "jax", "flax", "numpy")}
    if measure == "duration":
        link.serve_durations(hand_out, warm_up=3, **facts)
    else:
        hand_out()
        link.serve(puts, **facts)
    workers.stop()


class Coin(Policy):
    """Random actions, the weights of a small network, and no learning."""

    def __init__(self, observation_space: gym.Space, action_space: gym.Space, config: Any = None) -> None:
        super().__init__(observation_space, action_space, config)
        self.rng = np.random.default_rng(0)
        self.weights = {f"layer_{place}": np.zeros((64, 64), np.float32) for place in range(4)}

    def compute_actions(self, obs_batch: Any, *_: Any, **__: Any) -> tuple[Any, list[Any], dict[str, Any]]:
        return self.rng.integers(2, size=len(obs_batch)), [], {}

    def learn_on_batch(self, batch: Any) -> dict[str, Any]:
        return {}

    def get_weights(self) -> dict[str, Any]:
        return self.weights

    def set_weights(self, weights: Any) -> None:
        self.weights = dict(weights)


class AtOnce:
    """`Actors` in this process, whose calls return the same fragment at once."""

    def __init__(self, fragment: Rollout) -> None:
        self._fragment = fragment
        self._numbers = count()

    def start(self, index: int, restarts: int) -> int:
        return index

    def call(self, handle: int, method: str, *arguments: Any) -> int:
        return next(self._numbers)

    def wait(self, references: Sequence[int], count: int, timeout_s: float) -> list[int]:
        return list(references)

    def outcomes(self, references: Sequence[int]) -> list[Rollout]:
        return [self._fragment] * len(references)

    def put(self, value: Any) -> Any:
        return value

    def stack_of(self, index: int) -> None:
        """Returns None: no process can crash."""

    def kill(self, handle: int) -> None:
        """Does nothing, as there is no process."""


def driver(link: Link, num_workers: int, fragment: int, ray: bool = False) -> None:
    """The driver's time per fragment, with a policy without learning and workers that return at once.

    Args:
        fragment: steps.
        ray: the workers are Ray actors.
    """
    config = TrainerConfig(env="CartPole-v1", rollout_fragment_length=fragment, seed=0)
    sampler = RolloutWorker("CartPole-v1", Coin, config=config, worker_index=1, num_workers=num_workers)
    rollout = sampler.sample_fragment()
    assert rollout is not None  # the driver steps its environments
    local = RolloutWorker("CartPole-v1", Coin, config=config, num_workers=num_workers, samples=False)
    optimizer = AsyncSamplesOptimizer(
        local,
        _actors(rollout, num_workers) if ray else RemoteWorkers(AtOnce(rollout), num_workers),
        {"train_batch_size": rollout.env_steps},
    )

    def collect() -> int:
        before = optimizer.env_steps
        for _ in range(_UPDATES):
            optimizer.step()
        optimizer.take_episodes()
        optimizer.timings.take()
        return (optimizer.env_steps - before) // rollout.env_steps

    collect()
    link.serve_costs(collect, versions=versions("rollax", *(["ray"] if ray else []), "gymnasium", "numpy"))
    optimizer.stop()


def _actors(fragment: Rollout, count: int) -> list[Any]:
    """Ray actors that return the fragment at once."""
    import ray

    ray.init(address="local", include_dashboard=False)

    class Actor:
        def __init__(self, answer: Rollout) -> None:
            self.answer = answer

        def sample_fragment(self, update: Any = None) -> Rollout:
            return self.answer

    return [ray.remote(num_cpus=0)(Actor).remote(fragment) for _ in range(count)]


if __name__ == "__main__":
    run(gather, broadcast, driver)
