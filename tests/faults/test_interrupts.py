"""Ctrl-C and exceptions at any moment of `train()`: the trainer can still save, evaluate and train."""

import copy
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from rollax import EnvError
from rollax.algorithms.registry import get_trainer_class
from rollax.policy.learner import Learner
from tests.interrupting import Interrupts

pytestmark = pytest.mark.long

SMALL = {"model": {"fcnet_hiddens": (8,)}, "seed": 0, "num_envs_per_worker": 2, "observation_filter": "MeanStdFilter"}
REPLAYING = {**SMALL, "learning_starts": 30, "train_batch_size": 8, "rollout_fragment_length": 4}
REPLAYING |= {"timesteps_per_iteration": 48, "buffer_size": 200, "store_buffer_in_checkpoints": True}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("CartPole-v1", {**SMALL, "train_batch_size": 64, "sgd_minibatch_size": 32, "num_sgd_iter": 2}),
    "DQN": ("CartPole-v1", {**REPLAYING, "prioritized_replay": True, "n_step": 2, "training_intensity": 0.25}),
    "SAC": ("Pendulum-v1", {**REPLAYING, "training_intensity": 0.25}),
    "IMPALA": (
        "CartPole-v1",
        {**SMALL, "rollout_fragment_length": 8, "train_batch_size": 64, "timesteps_per_iteration": 64},
    ),
}


class Fails(gym.Wrapper):
    """Raises in a call of `step` or `reset` after a countdown."""

    countdown = -1

    def _count(self) -> None:
        Fails.countdown -= 1
        if Fails.countdown == 0:
            raise ZeroDivisionError("it fails")

    def step(self, action: Any) -> Any:
        self._count()
        return self.env.step(action)

    def reset(self, **kwargs: Any) -> Any:
        self._count()
        return self.env.reset(**kwargs)


class Attacked:
    """A trainer that is interrupted repeatedly, and one that restores its checkpoints."""

    def __init__(self, algorithm: str, folder: Path) -> None:
        env_id, config = RUNS[algorithm]
        self.trainer, self.spare = (
            get_trainer_class(algorithm)(lambda _: Fails(gym.make(env_id)), config) for _ in range(2)
        )
        self.folder, self.saved = folder, 0
        self.whole: set[int] = set()  # fingerprints after complete updates
        self.interrupts = Interrupts()
        for _ in range(3):
            self.trainer.train()
        self.trainer.evaluate(1)
        self.lines = self.interrupts.lines_of(self.trainer.train)
        started = time.perf_counter()
        self.trainer.train()
        self.train_s = time.perf_counter() - started

    def stop(self) -> None:
        self.trainer.stop()
        self.spare.stop()

    def at_line(self, rng: np.random.Generator) -> str:
        self.interrupts.at(int(rng.integers(self.lines)), self.trainer.train)
        return self.interrupts.place

    def at_signal(self, rng: np.random.Generator) -> str:
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(rng.uniform(0, self.train_s), signal.pthread_kill, (main, signal.SIGINT))
        # The processes of pytest-xdist ignore the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                self.train_until(timer)
        finally:
            signal.signal(signal.SIGINT, before)
        return "a signal"

    def train_until(self, timer: threading.Timer) -> None:
        timer.start()
        self.trainer.train()
        time.sleep(60)  # until the signal arrives

    def in_the_environment(self, rng: np.random.Generator) -> str:
        Fails.countdown = int(rng.integers(1, 40))
        with pytest.raises(EnvError, match="it fails"):
            self.trainer.train()
        return "the environment"

    def survives(self, attack: Callable[[np.random.Generator], str], rng: np.random.Generator) -> None:
        """Interrupts a call of `train()`, and checks that the trainer can still be used."""
        trainer, policy = self.trainer, self.trainer.get_policy()
        before, steps = fingerprint(policy), trainer.optimizer.steps
        self.whole = {before}
        place = attack(rng)
        assert fingerprint(policy) in self.whole, place
        weights = trainer.get_weights()["default_policy"]
        assert all(np.isfinite(value).all() for value in weights.values()), place
        assert trainer.optimizer.steps >= steps, place
        self.saved += 1
        path = trainer.save(self.folder / str(self.saved))
        self.spare.restore(path)
        assert fingerprint(self.spare.get_policy()) == fingerprint(policy), place
        assert trainer.evaluate(1)["episodes"] == 1
        updates = policy.learner.num_updates
        for one in (trainer, self.spare):
            statistics = one.train()["info"]["learner"]["default_policy"]
            assert all(value is None or np.isfinite(value) for value in statistics.values()), place
        assert policy.learner.num_updates > updates, place
        assert trainer.optimizer.steps > steps, place


def fingerprint(policy: Any) -> int:
    """A hash of all values that an update changes."""
    return of_variables(policy.learner.variables._replace(targets=policy.targets))


def of_variables(variables: Any) -> int:
    return hash(tuple(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(variables)))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Attacked]]:
    made: dict[str, Attacked] = {}
    take_over = Learner.assign

    def recording(self: Learner, after: Any, num_updates: int) -> None:
        number = of_variables(after._replace(num_updates=num_updates))
        for one in made.values():
            one.whole.add(number)
        take_over(self, after, num_updates)

    def make(algorithm: str) -> Attacked:
        if algorithm not in made:
            made[algorithm] = Attacked(algorithm, tmp_path_factory.mktemp(algorithm))
        return made[algorithm]

    Learner.assign = recording
    yield make
    Learner.assign = take_over
    for one in made.values():
        one.stop()


def interrupt_repeatedly(one: Attacked, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    attacks = [one.at_line, one.at_line, one.at_signal, one.at_line, one.in_the_environment, one.at_signal]
    for number in range(count):
        one.survives(attacks[number % len(attacks)], rng)


@pytest.mark.parametrize("algorithm", ["PPO", "DQN"])
def test_interrupts_at_some_moments(attacked, algorithm):
    interrupt_repeatedly(attacked(algorithm), 6, seed=0)


@pytest.mark.parametrize("algorithm", [*RUNS])
def test_interrupts_at_many_moments(attacked, algorithm):
    interrupt_repeatedly(attacked(algorithm), 40, seed=int.from_bytes(np.random.default_rng().bytes(4)))


def test_deepcopy_of_a_trained_policy(attacked):
    policy = attacked("PPO").trainer.get_policy()
    other = copy.deepcopy(policy)
    assert fingerprint(other) == fingerprint(policy)
    seen = np.ones((3, 4), np.float32)
    actions = [one.compute_actions(seen, explore=False)[0] for one in (policy, other)]
    np.testing.assert_array_equal(*actions)
    before = fingerprint(other)
    attacked("PPO").trainer.train()
    assert fingerprint(other) == before != fingerprint(policy)
