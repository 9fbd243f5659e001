"""Env steps per second that Sample Factory's APPO trains on; its processes pause between rounds."""

import os
import shutil
import tempfile
import threading
import time

import gymnasium as gym
import psutil
import torch
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from benchmarks.protocol import Link, run, versions

_WARM_UP_STEPS = 30_000
_LEAD_IN_S = 1.0  # the queues are full when the processes resume, and empty shortly after


def make_env(full_env_name, cfg=None, env_config=None, render_mode=None):
    return gym.make(full_env_name, render_mode=render_mode)


def _serve(link: Link, runner, folder: str) -> None:
    """Serves the harness from a thread beside Sample Factory's event loop; stops all processes after the last round."""

    def steps() -> int:
        return sum(runner.env_steps.values())

    while steps() < _WARM_UP_STEPS:
        time.sleep(0.2)
    processes = psutil.Process().children(recursive=True)
    for process in processes:
        process.suspend()

    def rate(seconds: float) -> float:
        for process in processes:
            process.resume()
        time.sleep(_LEAD_IN_S)
        before, start = steps(), time.perf_counter()
        time.sleep(seconds)
        while (after := steps()) == before:
            time.sleep(0.01)
        took = time.perf_counter() - start
        for process in processes:
            process.suspend()
        return (after - before) / took

    link.serve(
        rate,
        threads=torch.get_num_threads(),
        versions=versions("sample-factory", "torch", "gymnasium", "numpy"),
    )
    for process in processes:
        process.kill()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def appo(link: Link, env: str, num_workers: int, num_envs: int) -> None:
    """Trains on an environment with so many workers, each with so many copies."""
    register_env(env, make_env)
    folder = tempfile.mkdtemp()
    settings = [
        "--algo=APPO",
        f"--env={env}",
        f"--num_workers={num_workers}",
        f"--num_envs_per_worker={num_envs}",
        "--device=cpu",
        "--use_rnn=False",
        *("--encoder_mlp_layers", "64", "64"),
        "--nonlinearity=tanh",
        "--actor_critic_share_weights=False",
        "--seed=0",
        f"--train_dir={folder}",
        # The processes are idle during the rounds of the other sides.
        "--heartbeat_reporting_interval=100000",
    ]
    argument_parser, _ = parse_sf_args(settings)
    _, runner = make_runner(parse_full_cfg(argument_parser, settings))
    runner.init()
    threading.Thread(target=_serve, args=(link, runner, folder), daemon=True).start()
    runner.run()


if __name__ == "__main__":
    run(appo)
