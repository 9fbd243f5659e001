"""Runs that train at the same time in one process: the same numbers as alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rollax import ConfigError, DQNTrainer, FlashSACTrainer, NonFiniteError, PPOTrainer
from rollax.many.together import is_compiled, train_together
from tests.env.refused import raised
from tests.marks import long_except
from tests.optimizers.test_compiled_replay import DQN_KEYS, FLASH_SAC_KEYS, Walk

PPO_KEYS = {
    "num_envs_per_worker": 4,
    "train_batch_size": 64,
    "sgd_minibatch_size": 32,
    "num_sgd_iter": 2,
    "timesteps_per_iteration": 128,
    "model": {"fcnet_hiddens": [8]},
}
REPLAY_KEYS = {**DQN_KEYS, "learning_starts": 16, "lr_schedule": None}
CASES = {
    "PPO": (PPOTrainer, "jax:CartPole-v1", PPO_KEYS),
    "PPO, host": (PPOTrainer, "jax:CartPole-v1", {**PPO_KEYS, "observation_filter": "MeanStdFilter"}),
    "DQN": (DQNTrainer, "jax:CartPole-v1", REPLAY_KEYS),
    # Stacks of 512 bytes, of which the frames are stored.
    "DQN, frames": (DQNTrainer, "jax:CartPole-v1", {**REPLAY_KEYS, "frame_stack": 32}),
    "FlashSAC": (FlashSACTrainer, "jax:Pendulum-v1", {**FLASH_SAC_KEYS, "learning_starts": 16, "lr_schedule": None}),
}
WAYS = pytest.mark.parametrize("mapped", long_except({"threads"}, {"threads": False, "mapped": True}))


def trained(trainer):
    """Result, evaluation and weights after three iterations."""
    return [trainer.train() for _ in range(3)][-1], trainer.evaluate(3), trainer.get_policy().get_weights()


@WAYS
@pytest.mark.parametrize("case", long_except({"PPO"}, list(CASES)))
def test_each_run_equals_the_run_alone(case, mapped):
    trainer_class, env, keys = CASES[case]

    def make(number):
        # `lr` is an argument of compiled functions.
        return trainer_class(env, {**keys, "seed": number, "lr": 1e-3 * (number + 1)})

    found = train_together(make, 3, lambda number, trainer: trained(trainer), mapped=mapped)
    for number, (result, evaluation, weights) in enumerate(found):
        with make(number) as trainer:
            assert is_compiled(trainer)
            alone, other, expected = trained(trainer)
        assert result["timesteps_total"] == alone["timesteps_total"]
        assert result["episode_reward_mean"] == pytest.approx(alone["episode_reward_mean"], rel=1e-3)
        rewards = other["episode_rewards"]
        assert evaluation["episode_rewards"] == (pytest.approx(rewards, rel=1e-3) if mapped else rewards)
        for name, value in weights.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.long
@WAYS
def test_a_run_that_fails_leaves_the_others_alone(mapped):
    """The second run's weights become infinite in its second iteration."""

    def make(number):
        rate = 1e38 if number == 1 else 1e-3
        keys = {**PPO_KEYS, "lr_schedule": [[0, 1e-3], [191, 1e-3], [192, rate], [10**6, rate]], "seed": number}
        return PPOTrainer(lambda _: Walk(), keys)

    found = train_together(make, 3, lambda number, trainer: trained(trainer)[0]["timesteps_total"], mapped=mapped)
    assert found[0] == found[2] == 384
    assert isinstance(found[1], NonFiniteError)


@pytest.mark.parametrize(
    ("env", "keys"), [("CartPole-v1", {}), ("jax:CartPole-v1", {"batch_mode": "complete_episodes"})]
)
def test_runs_that_are_not_compiled_are_refused(env, keys):
    raised(ConfigError, train_together, lambda number: PPOTrainer(env, {**PPO_KEYS, **keys}), 2, trained)


class MakingError(Exception):
    pass


@pytest.mark.parametrize(
    ("env", "error"), [("jax:CartPole-v1", MakingError), ("CartPole-v1", ConfigError)], ids=["not made", "not compiled"]
)
def test_trainers_that_were_made_are_stopped_if_the_runs_cannot_begin(env, error):
    made = []

    def make(number):
        if number == 2:
            raise MakingError
        made.append(PPOTrainer(env, PPO_KEYS))
        return made[-1]

    with pytest.raises(error):
        train_together(make, 3, trained, mapped=True)
    assert len(made) == (2 if error is MakingError else 1)
    assert not any(trainer.can_evaluate for trainer in made)  # they are stopped


@pytest.mark.long
@WAYS
@pytest.mark.parametrize("key", [{"gamma": 0.5}, {"env_config": {"gravity": 90.0}}])
def test_runs_with_other_settings_are_refused(key, mapped):
    """The functions of the first run are not made for them."""

    def make(number):
        return PPOTrainer("jax:CartPole-v1", {**PPO_KEYS, **(key if number else {})})

    found = train_together(make, 2, lambda number, trainer: trainer.train()["timesteps_total"], mapped=mapped)
    assert found[0] == 128
    assert isinstance(found[1], ConfigError)


def capturing(number):
    return lambda _: Walk(after=1000 + number)


def with_a_default(number):
    return lambda _, *, after=1000 + number: Walk(after=after)


def capturing_an_array(number):
    limits = np.array([1000 + number, 0])
    return lambda _: Walk(after=int(limits[0]))


@dataclass(frozen=True)
class Limit:
    steps: int
    weights: Any


def capturing_an_equal_object(number):
    limit = Limit(1000, [number // 9])
    return lambda _: Walk(after=limit.steps)


def capturing_an_equal_array(number):
    limits = np.array([1000, number // 9])
    return lambda _: Walk(after=int(limits[0]))


@pytest.mark.parametrize("env_of", [capturing_an_equal_object, capturing_an_equal_array])
def test_functions_that_make_equal_environments_are_shared(env_of):
    keys = {**PPO_KEYS, "seed": 0}
    found = train_together(
        lambda number: PPOTrainer(env_of(number), keys), 2, lambda number, trainer: trainer.train()["timesteps_total"]
    )
    assert found == [128, 128]


@pytest.mark.short("with_a_default")
@pytest.mark.parametrize("env_of", [capturing, with_a_default, capturing_an_array])
def test_functions_that_make_other_environments_are_refused(env_of):
    """The code of both functions is the same, and what they capture or have as defaults differs."""

    def make(number):
        return PPOTrainer(env_of(number), PPO_KEYS)

    found = train_together(make, 2, lambda number, trainer: trainer.train()["timesteps_total"])
    assert found[0] == 128
    assert isinstance(found[1], ConfigError)


@pytest.mark.long
@WAYS
def test_runs_of_different_lengths(mapped):
    def run(number, trainer):
        for _ in range(number + 1):
            trainer.train()
        return trainer.optimizer.steps

    found = train_together(lambda number: PPOTrainer("jax:CartPole-v1", PPO_KEYS), 3, run, mapped=mapped)
    assert found == [128, 256, 384]


@pytest.mark.long
@WAYS
def test_an_exception_of_the_caller_ends_all_runs(mapped):
    class StopError(Exception):
        pass

    def run(number, trainer):
        while True:
            trainer.train()
            started.append(number)

    def watch():
        if started:
            raise StopError

    started = []
    with pytest.raises(StopError):
        train_together(lambda number: PPOTrainer("jax:CartPole-v1", PPO_KEYS), 2, run, watch=watch, mapped=mapped)
