"""State-dependent exploration: which steps have the same noise, and runs of every algorithm with it."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import PPO, SAC, ConfigError, PPOTrainer, SACTrainer
from rollax.algorithms.registry import algorithms_with, get_trainer_class
from tests.algorithms.contract import cases
from tests.algorithms.replayed import DATA_ALGORITHMS
from tests.algorithms.running_sums import check_restored_run
from tests.env.refused import raised
from tests.learning_curves import settings_of
from tests.marks import long_except

NAMES = [name for name in algorithms_with("use_sde") if name not in {*DATA_ALGORITHMS, "FlashSAC"}]
VECTOR, BOX = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.short(every=5)
@pytest.mark.parametrize("algorithm", [PPO, SAC])
@pytest.mark.parametrize(("frequency", "changes"), [(None, []), (2, [2, 4]), (1, [1, 2, 3, 4])])
def test_steps_with_the_same_noise(algorithm, frequency, changes):
    config = {"use_sde": True, "sde_sample_freq": frequency, "random_steps": 0} if algorithm is SAC else None
    config = config or {"use_sde": True, "sde_sample_freq": frequency}
    policy: Any = algorithm.make_policy(VECTOR, BOX, {**config, "model": {"fcnet_hiddens": (4,)}, "seed": 0})
    obs = np.repeat(np.array([[0.1, -0.5, 0.9]], np.float32), 2, axis=0)
    state = [np.repeat(part[None], 2, axis=0) for part in policy.get_initial_state()]
    actions = []
    for _ in range(5):
        found, state, _ = policy.compute_actions(obs, state)
        actions.append(found)
    assert not np.allclose(actions[0][0], actions[0][1])  # each row has noise of its own
    differs = [step for step in range(1, 5) if not np.allclose(actions[step], actions[step - 1])]
    assert differs == changes
    greedy = policy.compute_actions(obs, explore=False)[0]
    np.testing.assert_allclose(greedy[0], greedy[1])


def test_discrete_actions_and_other_models_are_refused():
    raised(ConfigError, PPO.make_policy, VECTOR, spaces.Discrete(2), {"use_sde": True}, says="continuous actions")
    for model in ({"free_log_std": True}, {"custom_model": "module:Class"}):
        raised(ConfigError, PPO.make_policy, VECTOR, BOX, {"use_sde": True, "model": model}, says="use_sde")


@pytest.mark.short("A2C")
@pytest.mark.parametrize("name", long_except({"A2C", "SAC"}, NAMES))
def test_a_restored_run_continues_exactly(name, tmp_path):
    def run() -> Any:
        config = {**cases.settings(name), "use_sde": True, "sde_sample_freq": 4, "num_envs_per_worker": 2}
        options = {"store_buffer_in_checkpoints": True} if cases.has_replay(name) else {}
        return get_trainer_class(name)(env="Pendulum-v1", config={**config, **options})

    with run() as trainer:
        while not trainer.train()["info"]["learner"]:
            pass
        check_restored_run(trainer, run, tmp_path, ())


KINDS = ("multi-agent", "recurrent", "pictures", "compiled", "continuous", "centralized critic")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind"), cases.in_short([("PPO", "recurrent"), ("SAC", "pictures")], cases.cells(KINDS, NAMES))
)
def test_every_kind_of_observation_and_model(name, kind, tmp_path):
    keys = cases.kind_of(kind, name)
    if kind in ("multi-agent", "recurrent", "pictures", "centralized critic"):
        keys["env_config"] = {"space": cases.BOX}
    elif kind == "compiled":
        keys["env"] = "jax:Pendulum-v1"
    with get_trainer_class(name)(config={**cases.settings(name), **keys, "use_sde": True}) as trainer:
        entropies: list[Any] = [None]
        while None in entropies or not entropies:  # the actor of CrossQ makes every third update only
            entropies = [one["entropy"] for one in trainer.train()["info"]["learner"].values()]
        assert np.isfinite(entropies).all()


# rl-baselines3-zoo, hyperparams/ppo.yml: -172 ± 104 after 100,000 steps.
PPO_PENDULUM = {**settings_of("Pendulum-v1", "PPO"), "model": {}, "use_sde": True, "sde_sample_freq": 4}


@pytest.mark.learning
def test_ppo_pendulum_sde(reaches):
    reaches(PPOTrainer, "Pendulum-v1", -250, 100_000, PPO_PENDULUM)


@pytest.mark.learning
def test_sac_pendulum_sde(reaches):
    config = {"use_sde": True, "lr": 1e-3, "timesteps_per_iteration": 1000}
    reaches(SACTrainer, "Pendulum-v1", -250, 20_000, config)
