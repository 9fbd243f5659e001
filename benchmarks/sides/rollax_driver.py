"""The driver's time per fragment, with workers that return at once, and a policy without learning."""

import argparse
from collections.abc import Sequence
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.protocol import serve_costs, versions
from rollax import Policy, RolloutWorker, TrainerConfig
from rollax.optimizers.async_samples import AsyncSamplesOptimizer
from rollax.rollout.messages import Rollout
from rollax.rollout.remote_workers import RemoteWorkers

_UPDATES = 200  # fragments between two readings of the clock


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


def main() -> None:
    """Serves rounds of asynchronous steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-workers", type=int, required=True)
    parser.add_argument("--fragment", type=int, required=True, help="steps")
    parser.add_argument("--ray", action="store_true", help="the workers are Ray actors")
    args = parser.parse_args()

    config = TrainerConfig(env="CartPole-v1", rollout_fragment_length=args.fragment, seed=0)
    sampler = RolloutWorker("CartPole-v1", Coin, config=config, worker_index=1, num_workers=args.num_workers)
    fragment = sampler.sample_fragment()
    assert fragment is not None  # the driver steps its environments
    driver = RolloutWorker("CartPole-v1", Coin, config=config, num_workers=args.num_workers, samples=False)
    optimizer = AsyncSamplesOptimizer(
        driver,
        _actors(fragment, args.num_workers) if args.ray else RemoteWorkers(AtOnce(fragment), args.num_workers),
        {"train_batch_size": fragment.env_steps},
    )

    def collect() -> int:
        before = optimizer.env_steps
        for _ in range(_UPDATES):
            optimizer.step()
        optimizer.take_episodes()
        optimizer.timings.take()
        return (optimizer.env_steps - before) // fragment.env_steps

    collect()
    serve_costs(collect, versions=versions("rollax", *(["ray"] if args.ray else []), "gymnasium", "numpy"))
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
    main()
