"""A game in the browser whose policy learns while you watch: python examples/browser_game

The page draws the game and asks the policy server for each action. A person can take over with the arrow keys; DQN also
learns from these actions. It catches 9 apples out of 10 after about 16,000 steps.
"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import rollax
from rollax import DQNTrainer, PolicyServerEnv

PAGE = Path(__file__).with_name("index.html")
CLIENT = Path(rollax.__file__).parent / "serving" / "clients" / "rollax.js"

# Observation: the creature's position, the apple's relative position, height and speed. Actions: left, stay, right.
OBSERVATIONS = gym.spaces.Box(-2.0, 2.0, (5,), np.float32)
ACTIONS = gym.spaces.Discrete(3)

CONFIG: dict[str, Any] = {
    "model": {"fcnet_hiddens": [64, 64]},
    "lr": 1e-3,
    "gamma": 0.9,
    "n_step": 4,
    "train_batch_size": 64,
    "training_intensity": 1.0,
    "learning_starts": 500,
    "target_network_update_freq": 200,
    "epsilon_timesteps": 5_000,
    "final_epsilon": 0.02,
    "timesteps_per_iteration": 1_000,
}


@contextlib.contextmanager
def page(port: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Serves the game on this machine; yields its address, and the settings with the address of the policy server."""
    server_json: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files = {
                "/": ("text/html; charset=utf-8", PAGE.read_bytes),
                "/rollax.js": ("text/javascript; charset=utf-8", CLIENT.read_bytes),
                "/server.json": ("application/json", json.dumps(server_json).encode),
            }
            kind, read = files.get(self.path.partition("?")[0], ("text/plain", None))
            content = b"not found" if read is None else read()
            self.send_response(404 if read is None else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server_json
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def main(port: int = 8000, iterations: int | None = None) -> None:
    """Serves the game and learns until Ctrl-C, or for a number of iterations."""
    with page(port) as (address, server_json):
        env_config = {
            "observation_space": OBSERVATIONS,
            "action_space": ACTIONS,
            "port": 0,
            "allowed_origins": [address],
        }
        with DQNTrainer(env=PolicyServerEnv, config={**CONFIG, "env_config": env_config}) as trainer:
            (server,) = trainer.worker.env.get_sub_environments()
            server_json["address"] = server.address.replace("http", "ws")
            print(f"The game is at {address}, the page of its server at {server.address}. Ctrl-C ends it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                while iterations is None or trainer.iteration < iterations:
                    result = trainer.train()
                    reward = result["episode_reward_mean"]
                    caught = "" if reward is None else f"  {50 + 5 * reward:.0f} % caught"
                    print(f"{result['timesteps_total']:7,} steps{caught}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A game in the browser that learns while one watches.")
    parser.add_argument("--port", type=int, default=8000, help="of the page; 0 for a free one")
    parser.add_argument("--iterations", type=int, help="of 1,000 steps each; until Ctrl-C without it")
    given = parser.parse_args()
    main(given.port, given.iterations)
