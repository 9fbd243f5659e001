"""Workers in other processes, and the algorithms that sample and learn at the same time."""

from __future__ import annotations

from typing import Any

from benchmarks.measure import Against, Bound, Row
from benchmarks.processes import Side
from benchmarks.rows.commands import own, peer

DRIVER_WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)
DRIVER_ACTORS = (1, 8)  # each side is a separate Ray cluster, and all run at the same time
DRIVER_FRAGMENT = 800  # steps, as in IMPALA: 50 of each of 16 sub-environments
GATHERED_FRAGMENT = 64 * 128  # steps per fragment in the gathering benchmarks
_MODEL = {"fcnet_hiddens": [64, 64]}


def worker_rows() -> tuple[Row, ...]:
    """Returns the benchmarks with several processes."""
    return (
        _asynchronous("IMPALA", 3.0),
        _asynchronous("APPO", None),
        _apex(),
        _two_workers(),
        _gather_cartpole(),
        _gather_pendulum(),
        _broadcast(),
        _broadcast_puts(),
        _driver(DRIVER_WORKERS, ray=False),
        _driver(DRIVER_ACTORS, ray=True),
    )


def _asynchronous(algorithm: str, ahead_of_sample_factory: float | None) -> Row:
    config = {"num_workers": 2, "num_envs_per_worker": 16, "model": _MODEL, "ray_address": "local"}
    shared = {"env": "CartPole-v1", "num_workers": 2, "num_envs": 16}
    return Row(
        name=f"{algorithm.lower()}_cartpole",
        work=f"{algorithm} on CartPole-v1, 2 workers of 16 sub-envs, 64×64 tanh actor and critic: steps trained on",
        unit="env steps/s",
        better="more",
        sides=(
            _training("rollax", "CartPole-v1", config, algorithm),
            peer("RLlib", "rllib.asynchronous", {**shared, "algorithm": algorithm}),
            peer("Sample Factory", "sample_factory.appo", shared),
        ),
        targets=(Against("RLlib", 4.0), Against("Sample Factory", ahead_of_sample_factory)),
        rounds=3,
        seconds=10.0,
        notes=f"RLlib's {algorithm} on its new API stack with a learner in the driver's process; fragments of 50 steps "
        "and train batches of 500, the default of both: each update learns from 800 steps. Sample Factory has APPO "
        "alone, here with its own fragments of 32 steps and batches of 1024. A step counts once, however often it is "
        "learned from.",
    )


def _apex() -> Row:
    fragment, batch, buffer_size, n_step, updates_per_step = 50, 64, 50_000, 3, 0.1
    config = {
        "num_workers": 2,
        "num_envs_per_worker": 8,
        "num_replay_shards": 2,
        "rollout_fragment_length": fragment,
        "train_batch_size": batch,
        "training_intensity": updates_per_step,
        "updates_per_draw": 16,
        "buffer_size": buffer_size,
        "n_step": n_step,
        "learning_starts": 1000,
        "target_network_update_freq": 200,
        "lr": 1e-3,
        "timesteps_per_iteration": 8000,
        "model": _MODEL,
        "ray_address": "local",
    }
    theirs = {
        "env": "CartPole-v1",
        "num_workers": 2,
        "num_envs": 8,
        "fragment": fragment,
        "batch": batch,
        "updates_per_step": updates_per_step,
        "buffer_size": buffer_size,
        "n_step": n_step,
    }
    return Row(
        name="apex_cartpole",
        work="Ape-X DQN on CartPole-v1, 2 workers of 8 sub-envs, 2 replay shards, 64×64 tanh, a prioritized update of "
        "64 rows for every 10 steps: steps sampled",
        unit="env steps/s",
        better="more",
        sides=(
            _training("rollax", "CartPole-v1", config, "APEX"),
            peer("RLlib", "rllib.dqn", theirs),
        ),
        targets=(Against("RLlib", 3.0),),
        rounds=3,
        seconds=10.0,
        notes="RLlib has no Ape-X any more: its DQN with 2 env runners, on its new API stack, with a learner and one "
        "prioritized buffer in the driver's process; as many updates for each step. rollax draws for 16 updates at "
        "once.",
    )


def _training(name: str, env: str, config: dict[str, Any], algorithm: str = "PPO") -> Side:
    settings = {"measure": "rate", "algorithm": algorithm, "env": env, "config": config}
    return own(name, "rollax_training.iterations", settings)


def _two_workers() -> Row:
    config = {
        "env_config": {"sleep_ms": 1},
        "num_envs_per_worker": 10,
        "rollout_fragment_length": 100,
        "train_batch_size": 2000,
        "num_sgd_iter": 10,
        "model": _MODEL,
    }

    def side(name: str, **further: object) -> Side:
        return _training(name, "benchmarks.environments:SleepingEnv", {**config, **further})

    return Row(
        name="ppo_two_workers",
        work="PPO on an env that sleeps 1 ms per step, train batch 2000, 10 epochs, 64×64 tanh: 2 workers",
        unit="env steps/s",
        better="more",
        sides=(side("2 workers", num_workers=2, ray_address="local"), side("no workers")),
        targets=(Against("no workers", 1.7),),
        rounds=3,
        seconds=10.0,
        notes="Both sides are rollax: no workers samples and learns in one process. 10 sub-envs in each process, which "
        "sleep one after another: it cannot sample more than 1000 steps/s.",
    )


def _gather_cartpole() -> Row:
    settings = {"env": "CartPole-v1", "num_envs": 64, "fragment": 128}
    return Row(
        name="gather_cartpole",
        work="sampling CartPole-v1 with 2 workers of 64 sub-envs, weights broadcast in every round, nothing learned",
        unit="env steps/s",
        better="more",
        sides=(
            own("rollax", "rollax_workers.gather", {**settings, "num_workers": 2}),
            own("raw loop", "raw.loop", settings),
        ),
        targets=(Against("raw loop", 1.0),),
        notes="64×64 tanh actor and critic. The raw loop is one process.",
    )


def _gather_pendulum() -> Row:
    settings = {"env": "Pendulum-v1", "num_envs": 64, "fragment": 128}

    def side(name: str, workers: int) -> Side:
        return own(name, "rollax_workers.gather", {**settings, "num_workers": workers})

    return Row(
        name="gather_pendulum",
        work="sampling Pendulum-v1 with workers of 64 sub-envs, weights broadcast in every round, nothing learned",
        unit="actions/s",
        better="more",
        sides=(side("2 workers", 2), side("1 worker", 1)),
        targets=(Against("1 worker"),),
        rounds=5,
        notes="64×64 tanh actor and critic.",
    )


def _broadcast() -> Row:
    return Row(
        name="weights_broadcast",
        work="broadcasting 10 MB of weights to 8 workers, until each has returned one step",
        unit="s",
        better="less",
        sides=_broadcasts("duration"),
        targets=(Against("an argument of each call"),),
        rounds=9,
        notes="8 workers on 2 cores: most of the time is spent in the workers, which copy the weights and run the "
        "network.",
    )


def _broadcast_puts() -> Row:
    return Row(
        name="weights_broadcast_puts",
        work="broadcasting 10 MB of weights to 8 workers: objects created in Ray's object store",
        unit="objects",
        better="less",
        sides=_broadcasts("puts"),
        targets=(Bound("rollax", "at most", 1.0),),
        rounds=3,
    )


def _broadcasts(measure: str) -> tuple[Side, Side]:
    settings = {"measure": measure, "num_workers": 8}
    return (
        own("rollax", "rollax_workers.broadcast", settings),
        own("an argument of each call", "rollax_workers.broadcast", {**settings, "one_by_one": True}),
    )


def _driver(workers: tuple[int, ...], *, ray: bool) -> Row:
    def side(count: int) -> Side:
        settings = {"num_workers": count, "fragment": DRIVER_FRAGMENT, "ray": ray}
        return own(_workers(count), "rollax_workers.driver", settings)

    first, last = workers[0], workers[-1]
    kind = "Ray actors" if ray else "workers in its process"
    return Row(
        name="driver_ray" if ray else "driver",
        work=f"time of the driver of `AsyncSamplesOptimizer` per fragment: {first} to {last} {kind} that return "
        "at once, a policy that learns nothing",
        unit="µs",
        better="less",
        sides=tuple(side(count) for count in reversed(workers)),
        targets=(Against(_workers(first)),),
        rounds=5,
        seconds=2.0,
        notes=f"Fragments of {DRIVER_FRAGMENT} steps of CartPole-v1, prepared once; an update and new weights (64 kB) "
        + ("after each. The actors share the 2 cores with the driver." if ray else "after each. Without Ray."),
    )


def _workers(count: int) -> str:
    return f"{count} workers" if count > 1 else "1 worker"
