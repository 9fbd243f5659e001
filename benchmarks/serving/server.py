"""A policy server in a separate process: prints its address, and ends with its standard input.

`--service policy` answers with a 64×64 policy for CartPole, `learn` with one that PPO trains meanwhile, `echo` with the
sent observations. `pickled` is the same policy behind `benchmarks.serving.pickled`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.serving.echo import EchoService
from benchmarks.serving.pickled import PickledServer
from rollax.serving.limits import Limits
from rollax.serving.server import PolicyServer
from rollax.serving.service import Service


def main() -> None:
    """Serves until standard input is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--service", choices=("policy", "echo", "learn", "pickled"), required=True)
    parser.add_argument("--core", type=int)
    parser.add_argument("--token")
    parser.add_argument("--idle-timeout-s", type=float, default=300.0)
    parser.add_argument("--max-episodes", type=int, default=10_000)
    args = parser.parse_args()
    keep_to_core(args.core)
    limits = Limits(
        max_episodes=args.max_episodes, max_episodes_per_client=args.max_episodes, idle_timeout_s=args.idle_timeout_s
    )
    if args.service == "learn":
        learn(args.token, limits)
        return
    if args.service == "pickled":
        serve_pickled()
        return
    service: Any = EchoService(limits) if args.service == "echo" else Service(policy_backend(), limits)
    with PolicyServer(service, token=args.token) as server:
        print(server.address, flush=True)
        sys.stdin.read()


def serve_pickled() -> None:
    """Serves pickled commands until standard input is closed."""
    (actor,) = policy_backend().actors.values()
    with PickledServer(actor) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        sys.stdin.read()
        server.shutdown()


def learn(token: str | None, limits: Limits) -> None:
    """Trains PPO with its defaults on the episodes of the clients, until standard input is closed."""
    from rollax import PPOTrainer
    from rollax.serving.policy_server_env import PolicyServerEnv

    with tempfile.TemporaryDirectory() as folder:
        token_file = Path(folder) / "token"
        token_file.write_text(token or "")
        env_config = {
            "spaces_of": "CartPole-v1",
            "port": 0,
            "token_file": str(token_file) if token else None,
            "limits": asdict(limits),
        }
        config = {"env_config": env_config, "model": {"fcnet_hiddens": [64, 64]}, "seed": 0, "train_batch_size": 1000}
        with PPOTrainer(env=PolicyServerEnv, config=config) as trainer:
            (env,) = trainer.worker.env.get_sub_environments()
            print(env.address, flush=True)
            threading.Thread(target=_interrupt_at_the_end, daemon=True).start()
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    trainer.train()


def _interrupt_at_the_end() -> None:
    """Interrupts the main thread when standard input is closed, because an iteration would wait for clients."""
    sys.stdin.read()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


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
    """Keeps this process on one core, if the system supports it, so that server and clients do not share one."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})


if __name__ == "__main__":
    main()
