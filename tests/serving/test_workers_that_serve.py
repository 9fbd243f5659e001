"""Two worker processes that serve on their own ports: clients play on both, and the driver learns from both."""

import socket
import threading

import gymnasium as gym
import numpy as np
import pytest

from rollax import PPOTrainer
from rollax.serving.client import PolicyClient
from rollax.serving.learning_run import addresses_of
from rollax.serving.policy_server_env import PolicyServerEnv
from tests.serving.learning_runs import TINY, play_episode
from tests.waiting import LONG, until

pytestmark = pytest.mark.long
WORKERS = {"num_workers": 2, "num_cpus_per_worker": 0.5, "rollout_fragment_length": 16}
CONFIG = {**WORKERS, "env_config": {"spaces_of": "CartPole-v1", "port": 0}, "model": TINY, "seed": 0}
CONFIG |= {"train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 1}


def play_until(stop, address, raised):
    """A client that plays one episode after another."""
    env = gym.make("CartPole-v1")
    try:
        with PolicyClient(address) as client:
            while not stop.is_set():
                play_episode(client, env)
    except BaseException as error:
        if not stop.is_set():  # the server stops in the middle of an episode
            raised.append(error)
    finally:
        env.close()


def test_clients_play_on_both_and_it_learns(small_ray):
    stop, raised = threading.Event(), []
    with PPOTrainer(env=PolicyServerEnv, config=CONFIG) as trainer:
        addresses = addresses_of(trainer)
        assert len(set(addresses)) == 2
        threads = [threading.Thread(target=play_until, args=(stop, address, raised)) for address in addresses]
        for thread in threads:
            thread.start()
        try:
            results = [trainer.train(), trainer.train()]
            played = []
            for address in addresses:
                with PolicyClient(address) as client:
                    hello = client.hello()
                    assert hello["addresses"] == addresses
                    played.append(hello["version"])
        finally:
            stop.set()
            for thread in threads:
                thread.join(LONG)
    assert raised == []
    assert not any(thread.is_alive() for thread in threads)
    assert results[-1]["timesteps_total"] >= 128
    assert all(np.isfinite(result["info"]["learner"]["default_policy"]["total_loss"]) for result in results)
    assert min(played) >= 1
    for address in addresses:
        until(lambda address=address: is_closed(int(address.rpartition(":")[2])))


def is_closed(port):
    """Whether the port is closed; the processes end a little later than the trainer."""
    try:
        socket.create_connection(("127.0.0.1", port), LONG).close()
    except OSError:
        return True
    return False
