"""Train batches on the device: sampling and learning in one compiled call."""

import copy

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from rollax import A2CTrainer, Callbacks, EnvError, NonFiniteError, PPOTrainer, PQNTrainer, TimeLimit
from rollax.algorithms.ppo import PPO
from rollax.optimizers import device_batches
from rollax.policy.running_returns import RunningReturns
from tests.env.jax.worlds import Meeting
from tests.env.refused import refused
from tests.optimizers.compared import assert_same_weights, trainer_of, weights_of
from tests.optimizers.test_compiled_replay import Walk

KEYS = {"num_envs_per_worker": 4, "train_batch_size": 64, "sgd_minibatch_size": 24, "num_sgd_iter": 2}
KEYS |= {"model": {"fcnet_hiddens": [8]}, "seed": 3}


class _Scaled(PPO):
    """The loss is divided by deviations of discounted rewards, which do not change the rows."""

    statistics = (*PPO.statistics, "returns", "endless")

    def make_running_statistics(self):
        return {
            "returns": RunningReturns(0.9, column="rewards"),
            "endless": RunningReturns(0.5, episodic=False, column="rewards"),
        }

    def loss(self, model, out, batch, mask, coefficients):
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        deviations = {name: one["deviation"] for name, one in coefficients["running_statistics"].items()}
        return loss / deviations["returns"] / deviations["endless"], {**statistics, **deviations}


class _Counting(PPO):
    """A number that begins at 0 and grows after each batch; the loss depends on it."""

    def first_numbers(self):
        return {**super().first_numbers(), "batches": 0.0}

    def after_update(self, numbers, statistics):
        found, statistics = super().after_update(numbers, statistics)
        return {**found, "batches": numbers["batches"] + 1}, statistics

    def loss(self, model, out, batch, mask, coefficients):
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        return loss * (1 + coefficients["batches"]), statistics


class _WithRewards(PPO):
    """Its loss reads rewards, and ends of episodes."""

    reads = (*PPO.reads, "rewards", "terminateds", "new_obs")

    def loss(self, model, out, batch, mask, coefficients):
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        read = {"seen_rewards": batch["rewards"].mean(), "seen_ends": batch["terminateds"].mean()}
        return loss, {**statistics, **read, "seen_obs": batch["new_obs"].mean()}


class _Same(PPO):
    """Changes no row, and says so."""

    def prepare(self, fragment, values):
        super().prepare(fragment, values)

    def changes_rows(self):
        return False


class _WithTime(PPO):
    reads = (*PPO.reads, "t")


class _ByRow(PPO):
    def loss(self, model, out, batch, mask, coefficients):
        loss, statistics = super().loss(model, out, batch, mask, coefficients)
        return loss, {**statistics, "of_rows": batch["advantages"]}


CASES = {
    "PPO": (PPOTrainer, "jax:CartPole-v1", {"kl_coeff": 0.2, "target_kl": 0.01, "clip_rewards": True}),
    "PPO, truncated": (PPOTrainer, lambda _: Walk(), {"lr_schedule": [[0, 1e-2], [300, 0.0]]}),
    "PPO, fragments": (PPOTrainer, "jax:Pendulum-v1", {"rollout_fragment_length": 5, "train_batch_size": 70}),
    "PPO, sde": (PPOTrainer, "jax:Pendulum-v1", {"use_sde": True, "sde_sample_freq": 4}),
    "PPO, agents": (PPOTrainer, lambda _: TimeLimit(Meeting(), 9), {"count_steps_by": "agent_steps"}),
    "PPO, returns": (trainer_of(_Scaled, PPOTrainer), "jax:Pendulum-v1", {"env_config": {"max_episode_steps": 7}}),
    "PPO, adapted": (PPOTrainer, "jax:CartPole-v1", {"timesteps_per_iteration": 256, "kl_coeff": 0.2}),
    "PPO, own number": (trainer_of(_Counting, PPOTrainer), "jax:CartPole-v1", {"timesteps_per_iteration": 256}),
    "PPO, rewards": (trainer_of(_WithRewards, PPOTrainer), "jax:CartPole-v1", {}),
    "PPO, same rows": (trainer_of(_Same, PPOTrainer), "jax:CartPole-v1", {}),
    "PPO, time": (trainer_of(_WithTime, PPOTrainer), "jax:CartPole-v1", {}),
    "PPO, by row": (trainer_of(_ByRow, PPOTrainer), "jax:CartPole-v1", {}),
    "PPO, masks": (PPOTrainer, "jax:pgx/2048", {"env_config": {"max_episode_steps": 7}}),
    "A2C": (A2CTrainer, "jax:CartPole-v1", {"rollout_fragment_length": 8, "microbatch_size": 24}),
    "PQN": (PQNTrainer, "jax:CartPole-v1", {"reward_scale": 0.1, "epsilon_timesteps": 200}),
}


GIVE_UP = "PPO, time", "PPO, by row"
"""Their losses read or return what is not on the device, which the first batch shows."""


def config_of(trainer_class, keys):
    known = trainer_class.config_class.model_fields
    return {name: value for name, value in {**KEYS, **keys}.items() if name in known}


def trained(case, monkeypatch, *, on_device, calls=4, **keys):
    """A trainer after some iterations, and its last result."""
    trainer_class, env, own = CASES[case]
    if not on_device:
        monkeypatch.setattr(device_batches, "why_not", lambda worker: "a test")
    with trainer_class(env, config_of(trainer_class, {**own, **keys})) as trainer:
        assert (trainer.optimizer.rounds is not None) == on_device
        result = [trainer.train() for _ in range(calls)][-1]
    monkeypatch.undo()
    return trainer, result


@pytest.mark.short("PPO", "PPO, returns")
@pytest.mark.parametrize("case", list(CASES))
def test_the_same_numbers_as_on_the_host(case, monkeypatch):
    trainer, result = trained(case, monkeypatch, on_device=True)
    other, last = trained(case, monkeypatch, on_device=False)
    assert (trainer.optimizer.rounds is None) == (case in GIVE_UP)
    assert_same_weights(trainer, other, rtol=1e-4, atol=1e-5)
    assert trainer.get_policy().numbers == pytest.approx(other.get_policy().numbers, rel=1e-3)
    for key in ("timesteps_total", "num_episodes_total", "training_iteration", "agent_timesteps_total"):
        assert result.get(key) == last.get(key)
    mean = last["episode_reward_mean"]
    assert result["episode_reward_mean"] == (None if mean is None else pytest.approx(mean, rel=1e-3))
    learner, others = (one["info"]["learner"]["default_policy"] for one in (result, last))
    assert learner.keys() == others.keys()
    for name, value in learner.items():
        assert value == pytest.approx(others[name], rel=1e-2, abs=1e-4), name


@pytest.mark.long
def test_batches_of_an_iteration_in_one_call(monkeypatch):
    trainer, result = trained("PPO, truncated", monkeypatch, on_device=True, timesteps_per_iteration=128, calls=3)
    other, last = trained("PPO, truncated", monkeypatch, on_device=True, calls=6)
    assert trainer.optimizer.rounds.at_once == 2
    assert_same_weights(trainer, other, rtol=1e-5, atol=1e-6)
    assert result["timesteps_total"] == last["timesteps_total"] == 384
    assert trainer.optimizer.version == other.optimizer.version


@pytest.mark.long
def test_a_limit_of_steps_ends_an_iteration_in_between():
    with PPOTrainer("jax:CartPole-v1", config_of(PPOTrainer, {"timesteps_per_iteration": 256})) as trainer:
        fitted = trainer.fit({"timesteps_total": 320}, evaluate=False)
        assert fitted.last["timesteps_total"] == 320


@pytest.mark.long
def test_an_iteration_of_several_calls_makes_no_round_too_many(monkeypatch):
    monkeypatch.setattr(device_batches, "_MOST_ROUNDS", 2)
    with PPOTrainer("jax:CartPole-v1", config_of(PPOTrainer, {"timesteps_per_iteration": 320})) as trainer:
        assert trainer.train()["timesteps_total"] == 320


@pytest.mark.long
def test_exact_resume(tmp_path):
    with PPOTrainer("jax:CartPole-v1", config_of(PPOTrainer, {})) as trainer:
        trainer.train()
        path = trainer.save(tmp_path, exact=True)
        trainer.train()
    with PPOTrainer("jax:CartPole-v1", config_of(PPOTrainer, {})) as other:
        other.restore(path)
        other.train()
    assert_same_weights(trainer, other)


class _Own(PPO):
    def postprocess(self, fragment, values):
        return super().postprocess(fragment, values)


class _Doubling(PPO):
    def traced_columns(self, steps):
        return {name: 2 * column for name, column in super().traced_columns(steps).items()}


class _OwnAdvantages(PPO):
    def add_advantages(self, fragment, values):
        return super().add_advantages(fragment, values)


class _AtSamples(Callbacks):
    def on_sample_end(self, **_):
        pass


@pytest.mark.short("_OwnTrainer-keys0", "PPOTrainer-keys3")
@pytest.mark.parametrize(
    ("trainer_class", "keys"),
    [
        *[(trainer_of(algorithm, PPOTrainer), {}) for algorithm in (_Own, _OwnAdvantages)],
        (PPOTrainer, {"normalize_rewards": True}),
        (PPOTrainer, {"exploration_bonus": "rnd"}),
        (PPOTrainer, {"observation_filter": "MeanStdFilter"}),
        (PPOTrainer, {"model": {"use_lstm": True}}),
        (PPOTrainer, {"callbacks": _AtSamples}),
    ],
)
def test_what_changes_rows_on_the_host_learns_on_the_host(trainer_class, keys):
    with trainer_class("jax:CartPole-v1", config_of(PPOTrainer, keys)) as trainer:
        assert trainer.optimizer.rounds is None


@pytest.mark.long
def test_an_algorithm_may_change_the_traced_columns():
    with trainer_of(_Doubling, PPOTrainer)("jax:CartPole-v1", config_of(PPOTrainer, {})) as trainer:
        assert trainer.optimizer.rounds is not None
        trainer.train()
        doubled = weights_of(trainer)
    with PPOTrainer("jax:CartPole-v1", config_of(PPOTrainer, {})) as other:
        other.train()
    assert any(np.abs(value - weights_of(other)[name]).max() > 1e-4 for name, value in doubled.items())


@pytest.mark.long
@pytest.mark.parametrize("broken", ["obs", "reward"])
def test_an_environment_with_nan_is_named(broken):
    with PPOTrainer(lambda _: Walk(broken, after=5), config_of(PPOTrainer, {"env_config": {}})) as trainer:
        assert trainer.optimizer.rounds is not None
        refused(EnvError, trainer.train)
        assert trainer.optimizer.steps == 0
        assert all(np.isfinite(value).all() for value in weights_of(trainer).values())


class Masked(Walk):
    """The mask allows no action at the fourth step."""

    observation_space = spaces.Dict({"place": Walk.observation_space, "action_mask": spaces.MultiBinary(2)})

    def _seen(self, obs, steps):
        return {"place": obs, "action_mask": jnp.full(2, steps != 4, jnp.int8)}

    def reset(self, key):
        state, obs = super().reset(key)
        return state, self._seen(obs, 0)

    def step(self, state, action, key):
        outcome = super().step(state, action, key)
        return outcome._replace(obs=self._seen(outcome.obs, outcome.state[1]))


@pytest.mark.long
def test_a_mask_without_an_action_is_an_error():
    with PPOTrainer(lambda _: Masked(), config_of(PPOTrainer, {})) as trainer:
        assert trainer.optimizer.rounds is not None
        refused(EnvError, trainer.train)
        assert trainer.optimizer.steps == 0


class Infinite(Walk):
    def step(self, state, action, key):
        outcome = super().step(state, action, key)
        return outcome._replace(reward=jnp.where(outcome.state[1] == 5, jnp.inf, 1.0))


@pytest.mark.long
def test_an_infinite_reward_that_is_clipped_is_an_error():
    with PPOTrainer(lambda _: Infinite(), config_of(PPOTrainer, {"clip_rewards": True})) as trainer:
        before = weights_of(trainer)
        refused(EnvError, trainer.train)
        assert_same_weights(trainer, before)


@pytest.mark.long
def test_batches_before_an_update_that_is_not_finite_are_kept():
    """The third batch of four in a call makes weights that are not finite."""
    keys = {"lr_schedule": [[0, 1e-3], [127, 1e-3], [128, 1e38], [10**6, 1e38]], "timesteps_per_iteration": 256}
    with PPOTrainer(lambda _: Walk(), config_of(PPOTrainer, keys)) as trainer:
        refused(NonFiniteError, trainer.train)
        assert trainer.optimizer.steps == 128
        kept = copy.deepcopy(weights_of(trainer))
    with PPOTrainer(lambda _: Walk(), config_of(PPOTrainer, keys)) as other:
        other.optimizer.stop_at = 128
        other.train()
        assert_same_weights(kept, other, rtol=1e-5, atol=1e-6)
    assert all(jnp.isfinite(value).all() for value in kept.values())


@pytest.mark.long
def test_an_interrupt_keeps_the_weights_and_training_goes_on():
    with PPOTrainer("jax:CartPole-v1", config_of(PPOTrainer, {})) as trainer:
        trainer.train()
        rounds, before = trainer.optimizer.rounds, weights_of(trainer)
        call = rounds.call
        rounds.call = lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert_same_weights(trainer, before)
        rounds.call = call
        assert trainer.train()["timesteps_total"] == 128
