"""A policy server as a process of its own: prints its address, and ends with its standard input.

`--service policy` answers with a 64×64 policy for CartPole, `echo` with the observations it was sent.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

from benchmarks.echo import EchoService
from rollax.serving.limits import Limits
from rollax.serving.server import PolicyServer
from rollax.serving.service import Service


def main() -> None:
    """Serves until standard input is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--service", choices=("policy", "echo"), required=True)
    parser.add_argument("--core", type=int)
    parser.add_argument("--token")
    parser.add_argument("--idle-timeout-s", type=float, default=300.0)
    parser.add_argument("--max-episodes", type=int, default=10_000)
    args = parser.parse_args()
    keep_to_core(args.core)
    limits = Limits(
        max_episodes=args.max_episodes, max_episodes_per_client=args.max_episodes, idle_timeout_s=args.idle_timeout_s
    )
    service: Any = EchoService(limits) if args.service == "echo" else Service(policy_backend(), limits)
    with PolicyServer(service, token=args.token) as server:
        print(server.address, flush=True)
        sys.stdin.read()


def policy_backend() -> Any:
    """Returns the backend of an untrained PPO policy for CartPole."""
    from rollax import PPOTrainer
    from rollax.serving.policy_backend import PolicyBackend

    with tempfile.TemporaryDirectory() as folder:
        with PPOTrainer(env="CartPole-v1", config={"model": {"fcnet_hiddens": [64, 64]}, "seed": 0}) as trainer:
            checkpoint = trainer.save(folder)
        backend = PolicyBackend.from_checkpoint(checkpoint)
    backend.warm_up(64)
    return backend


def keep_to_core(core: int | None) -> None:
    """Keeps this process on one core, where the system can, so that server and clients do not share one."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


if __name__ == "__main__":
    main()
