"""Training with rollax: iterations of any algorithm, a whole run of PPO, and learning from recorded data.

rollax is imported by the functions, because the time of the whole run begins with the start of the process.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.protocol import Link, run, versions

_BATCH, _UPDATES = 256, 100  # rows of an update from recorded data; updates of one call


def iterations(
    link: Link,
    measure: str,
    env: str,
    config: Mapping[str, Any],
    algorithm: str = "PPO",
    native_envs: int = 0,
    warm_up: int = 1,
    count: int = 300,
) -> None:
    """Trains with one algorithm.

    Args:
        measure: "duration" and "rate" of iterations, or the growth of "memory".
        native_envs: this many copies in one native vector env.
        warm_up: iterations before the first duration, or before memory is compared.
        count: iterations between which memory is compared.
    """
    from benchmarks.environments import make_native
    from rollax.algorithms.registry import get_trainer_class

    source = (lambda _context: make_native(env, native_envs)) if native_envs else env
    trainer = get_trainer_class(algorithm)(env=source, config={**config, "seed": 0})
    workers = config.get("num_workers", 0)
    installed = versions("rollax", *(["ray"] if workers else []), "jax", "flax", "gymnasium", "ale-py", "numpy")
    if measure == "duration":
        link.serve_durations(trainer.train, warm_up=warm_up, versions=installed)
    elif measure == "rate":
        lead_in = {"lead_in": trainer.train} if workers else {}
        link.serve_rates(lambda: trainer.train()["timesteps_this_iter"], **lead_in, versions=installed)
    else:
        _serve_memory(link, trainer, warm_up, count, installed)
    trainer.stop()


def _serve_memory(link: Link, trainer: Any, warm_up: int, count: int, installed: dict[str, str]) -> None:
    """Reports the growth of resident memory in percent, between the maxima of ten iterations at start and end."""
    import psutil

    process = psutil.Process()

    def largest_of_ten() -> int:
        largest = 0
        for _ in range(10):
            trainer.train()
            largest = max(largest, process.memory_info().rss)
        return largest

    for _ in range(warm_up):
        trainer.train()
    before = largest_of_ten()

    def growth_percent(_: float) -> float:
        for _ in range(count - 10):
            trainer.train()
        return 100 * (largest_of_ten() / before - 1)

    link.serve(growth_percent, versions=installed, megabytes_before=round(before / 2**20, 1))


def ppo_run(link: Link, env: str, steps: int, seed: int = 0) -> None:
    """A whole run at RL Zoo's CartPole settings, from the start of the process to the end of training.

    It reports the end, then evaluates and reports the reward.
    """
    from rollax import PPOTrainer

    config = {
        "num_envs_per_worker": 8,
        "rollout_fragment_length": 32,
        "train_batch_size": 256,
        "sgd_minibatch_size": 256,
        "num_sgd_iter": 20,
        "gamma": 0.98,
        "lambda": 0.8,
        "lr_schedule": [[0, 1e-3], [steps, 0.0]],
        "clip_param_schedule": [[0, 0.2], [steps, 0.0]],
        "entropy_coeff": 0.0,
        "vf_loss_coeff": 0.5,
        "grad_clip": 0.5,
        "kl_coeff": 0.0,
        "model": {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh"},
        "seed": seed,
    }
    trainer = PPOTrainer(env=env, config=config)
    while trainer.train()["timesteps_total"] < steps:
        pass
    link.send(event="finished")
    reward = trainer.evaluate(num_episodes=24)["episode_reward_mean"]
    trainer.stop()
    installed = versions("rollax", "jax", "flax", "gymnasium", "numpy")
    link.send(event="facts", facts={"greedy_reward": reward, "versions": installed})


def first_iteration(link: Link, algorithm: str, env: str, config: Mapping[str, Any]) -> None:
    """The first iteration, from the start of the process to its end."""
    from rollax.algorithms.registry import get_trainer_class

    with get_trainer_class(algorithm)(env, {**config, "seed": 0}) as trainer:
        trainer.train()
        link.send(event="finished")
        link.send(event="facts", facts={"versions": versions("rollax", "jax", "flax", "numpy")})


def seeds_together(link: Link, algorithm: str, env: str, config: Mapping[str, Any], seeds: int) -> None:
    """Trains several seeds, one iteration of each at a time, with compiled calls that make the steps of all of them."""
    from rollax.algorithms.registry import get_trainer_class
    from rollax.many.together import train_together

    begin, end = threading.Barrier(seeds + 1), threading.Barrier(seeds + 1)
    steps, closed = [0] * seeds, threading.Event()

    def run(number: int, trainer: Any) -> None:
        try:
            begin.wait()
            while not closed.is_set():
                steps[number] = trainer.train()["timesteps_this_iter"]
                end.wait()
                begin.wait()
        except BaseException:
            begin.abort()
            end.abort()
            raise

    def make(number: int) -> Any:
        return get_trainer_class(algorithm)(env, {**config, "seed": number})

    def iteration() -> int:
        begin.wait()
        end.wait()
        return sum(steps)

    def serve() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # the main thread raises what a run raised
            link.serve_rates(iteration, versions=versions("rollax", "jax", "flax", "numpy"))
            closed.set()
            begin.wait()

    threading.Thread(target=serve, daemon=True).start()
    for result in train_together(make, seeds, run, mapped=True):
        if isinstance(result, BaseException) and not isinstance(result, threading.BrokenBarrierError):
            raise result


def greedy_curve(
    link: Link,
    algorithm: str,
    env: str,
    config: Mapping[str, Any],
    budget: int,
    evaluations: int,
    episodes: int,
    seed: int,
    folder: str,
) -> None:
    """Greedy evaluations at equal intervals of a run, as a list of (steps, score).

    The run is saved at each of them, in `folder`, and continues there exactly if it was interrupted.
    """
    from rollax.algorithms.registry import get_trainer_class

    trainer_class, points = get_trainer_class(algorithm), Path(folder) / "curve.json"
    if "store_buffer_in_checkpoints" in trainer_class.config_class.model_fields:
        config = {**config, "store_buffer_in_checkpoints": True}
    with trainer_class(env, {**config, "evaluation_num_episodes": episodes, "seed": seed}) as trainer:
        earlier = sorted(Path(folder).glob("checkpoint_*"))
        curve = json.loads(points.read_text()) if earlier else []
        if earlier:
            trainer.restore(earlier[-1])
            curve = [point for point in curve if point[0] <= trainer.optimizer.steps]
        while len(curve) < evaluations:
            steps = 0
            while steps < budget * (len(curve) + 1) // evaluations:
                steps = trainer.train()["timesteps_total"]
            curve.append([steps, trainer.evaluate()["episode_reward_mean"]])
            print(f"{algorithm}, {env}, seed {seed}: {curve[-1]}", file=sys.stderr, flush=True)
            points.parent.mkdir(parents=True, exist_ok=True)
            points.write_text(json.dumps(curve))
            newest = trainer.save(folder, exact=True)
            for saved in Path(folder).glob("checkpoint_*"):
                if saved.name != newest.name:  # `newest` is absolute
                    shutil.rmtree(saved)
        link.send(answer={"curve": curve, "seconds": trainer.time_total_s})
    shutil.rmtree(folder)


def recorded_updates(link: Link, algorithm: str, rows: int, config: Mapping[str, Any]) -> None:
    """Updates from a D4RL file."""
    from benchmarks.data import d4rl_file
    from rollax.algorithms.registry import get_trainer_class

    common = {"input": str(d4rl_file(rows)), "updates_per_step": _UPDATES, "train_batch_size": _BATCH, "seed": 0}
    with get_trainer_class(algorithm)(env="Pendulum-v1", config={**common, **config}) as trainer:
        link.serve_rates(
            lambda: trainer.train()["timesteps_this_iter"] / _BATCH,
            versions=versions("rollax", "jax", "flax", "numpy", "h5py"),
        )


def reading(link: Link, rows: int) -> None:
    """Reads a D4RL file."""
    from benchmarks.data import d4rl_file
    from rollax import open_dataset

    path = d4rl_file(rows)
    link.serve_rates(
        lambda: sum(map(len, open_dataset(path).trajectories())), versions=versions("rollax", "numpy", "h5py")
    )


if __name__ == "__main__":
    run(iterations, ppo_run, first_iteration, seeds_together, greedy_curve, recorded_updates, reading)
