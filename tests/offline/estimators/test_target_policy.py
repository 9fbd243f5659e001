"""Probabilities of logged actions under policies of the library."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rollax import DQN, PPO, SAC, DQNConfig, PPOConfig, SACConfig
from rollax.algorithms.registry import get_trainer_class
from rollax.config import resolve_config
from rollax.core import trees
from rollax.errors import ConfigError, PolicyError
from rollax.offline.estimators.episodes import LoggedEpisodes
from rollax.offline.estimators.fitted_q import FittedQ, FQEConfig
from rollax.offline.estimators.target_policy import TargetPolicy, acting_state_kept, action_probabilities
from tests.env.refused import raised, refused
from tests.offline.estimators.worlds import logged_episodes, runner_of

OBS = spaces.Box(-1, 1, (3,), np.float32)
BOX = spaces.Box(-2, 2, (2,), np.float32)
LENGTHS = np.array([4, 2, 3])
MODEL = {"fcnet_hiddens": (4,)}


def logged(policy: Any) -> tuple[LoggedEpisodes, np.ndarray]:
    """Episodes of a policy in random observations, and the log-probabilities that it reported."""
    rng, rows = np.random.default_rng(0), int(LENGTHS.sum())
    obs, rewards = rng.uniform(-1, 1, (rows, 3)).astype(np.float32), rng.normal(size=rows)
    actions, logp = [], []
    for start, length in zip(np.cumsum([0, *LENGTHS[:-1]]), LENGTHS, strict=True):
        context = policy.memory_of(1, None, None, None)
        for row in range(start, start + length):
            some = {name: value for name, value in context.items() if name in policy.arguments}
            action, states, fetches = policy.compute_actions(obs[row : row + 1], **some)
            actions.append(action)
            logp.append(fetches.get("action_logp"))
            context = policy.memory_of(1, states, action, rewards[row : row + 1].astype(np.float32))
    ends = np.array([True, False, True])
    episodes = logged_episodes(obs, trees.concat(actions), rewards, lengths=LENGTHS, terminated=ends)
    return episodes, np.zeros(rows) if logp[0] is None else np.concatenate(logp)


MEMORY = {"model": {**MODEL, "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("action_space", "config"),
    [(spaces.Discrete(3, start=2), {}), (BOX, {}), (spaces.MultiDiscrete([2, 3]), {}), (spaces.Discrete(3), MEMORY)],
    ids=["discrete", "box", "multi-discrete", "memory"],
)
def test_log_probabilities_equal_those_of_acting(action_space: spaces.Space, config: dict) -> None:
    policy = PPO.make_policy(OBS, action_space, PPOConfig(**{"model": MODEL, "seed": 1, **config}))
    episodes, reported = logged(policy)
    np.testing.assert_allclose(TargetPolicy(runner_of(policy)).logp(episodes), reported, atol=1e-5)


# Most policies fetch log-probabilities only if their actions are written (`output`).
@pytest.mark.short("A2C-action_space0-config0", "SAC-action_space7-config7")
@pytest.mark.parametrize(
    ("algorithm", "action_space", "config"),
    [
        ("A2C", BOX, {}),
        pytest.param("PG", BOX, {}, marks=pytest.mark.long),
        pytest.param("BC", BOX, {}, marks=pytest.mark.long),
        ("BC", spaces.Discrete(3), MEMORY),
        pytest.param("MARWIL", BOX, MEMORY, marks=pytest.mark.long),
        pytest.param("IMPALA", BOX, {}, marks=pytest.mark.long),
        pytest.param("IQL", BOX, {}, marks=pytest.mark.long),
        ("SAC", BOX, {"random_steps": 0}),
        pytest.param("CQL", BOX, {"random_steps": 5}, marks=pytest.mark.long),
    ],
)
def test_log_probabilities_of_every_algorithm(algorithm: str, action_space: spaces.Space, config: dict) -> None:
    cls = get_trainer_class(algorithm)
    settings = [{"model": MODEL, "seed": 1, **config, **output} for output in ({}, {"output": "there"})]
    configs = [resolve_config(cls.config_class, each) for each in settings]
    policy, writing = (cls.policy_class.make_policy(OBS, action_space, each) for each in configs)
    writing.timestep = policy.timestep = 10  # after the random steps
    episodes, reported = logged(writing)
    assert reported.any()
    np.testing.assert_allclose(TargetPolicy(runner_of(policy)).logp(episodes), reported, atol=1e-5)


@pytest.mark.parametrize("action_space", [BOX, spaces.Discrete(4)], ids=["box", "discrete"])
def test_the_first_actions_are_uniformly_random(action_space: spaces.Space) -> None:
    policy = SAC.make_policy(OBS, action_space, SACConfig(model=MODEL, seed=1, random_steps=5))
    episodes, _ = logged(policy)
    target = TargetPolicy(runner_of(policy))
    # Two numbers in [-1, 1] have the density 1/4; one of four actions has the probability 1/4.
    np.testing.assert_allclose(target.logp(episodes), -np.log(4), rtol=1e-6)
    policy.timestep = 5
    assert np.ptp(target.logp(episodes)) > 0


@pytest.mark.parametrize("algorithm", ["TD3", "SAC", "ARS"])
def test_policies_that_add_noise_have_no_probabilities(algorithm: str) -> None:
    cls = get_trainer_class(algorithm)
    noise = {"exploration": "GaussianNoise"} if algorithm == "SAC" else {}
    config = resolve_config(cls.config_class, {"model": MODEL, "seed": 1, **noise})
    policy = cls.policy_class.make_policy(OBS, BOX, config)
    episodes, _ = logged(policy)
    refused(PolicyError, TargetPolicy(runner_of(policy)).logp, episodes, says="no probabilities")


def test_epsilon_greedy_probabilities() -> None:
    config = DQNConfig(model=MODEL, seed=0, epsilon_schedule=[[0, 0.2], [10, 0.2]])
    policy = DQN.make_policy(OBS, spaces.Discrete(4), config)
    episodes, _ = logged(policy)
    target = TargetPolicy(runner_of(policy))
    probabilities = target.probabilities(episodes.obs)
    best = TargetPolicy(runner_of(policy), explore=False).probabilities(episodes.obs)
    # 0.2 / 4 for each action, and 0.8 more for the best one.
    np.testing.assert_allclose(probabilities, 0.05 + 0.8 * best)
    assert (best.sum(axis=1) == 1).all()
    np.testing.assert_allclose(target.logp(episodes), np.log(probabilities[np.arange(9), episodes.actions]))


def test_probabilities_of_a_noisy_model_require_greedy_actions() -> None:
    policy = DQN.make_policy(OBS, spaces.Discrete(4), {"noisy": True, "seed": 0})
    assert action_probabilities(policy, np.zeros((3, 3), np.float32), explore=False).sum() == 3
    refused(PolicyError, action_probabilities, policy, np.zeros((3, 3), np.float32), says="noise of its weights")


def test_soft_q_probabilities() -> None:
    config = DQNConfig(model=MODEL, seed=0, exploration="SoftQ", temperature=0.5)
    policy = DQN.make_policy(OBS, spaces.Discrete(4), config)
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    values = policy._model_outputs({"obs": obs})[0].astype(np.float64)
    expected = np.exp(values / 0.5) / np.exp(values / 0.5).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(action_probabilities(policy, obs), expected, rtol=1e-6)


def test_greedy_actions_of_a_box_have_no_density() -> None:
    policy = PPO.make_policy(OBS, BOX, PPOConfig(model=MODEL, seed=1))
    episodes, _ = logged(policy)
    refused(PolicyError, TargetPolicy(runner_of(policy), explore=False).logp, episodes, says="no probabilities")


def test_greedy_actions_of_a_dict_are_compared_by_key() -> None:
    # JAX returns them in alphabetical order; recorded ones have the order of the space.
    space = spaces.Dict([("turn", spaces.Discrete(3)), ("go", spaces.Discrete(3))])
    policy = PPO.make_policy(OBS, space, PPOConfig(model=MODEL, seed=1))
    episodes, _ = logged(policy)
    greedy = policy.compute_actions(episodes.obs, explore=False)[0]
    actions = {key: np.array(greedy[key]) for key in space.spaces}
    actions["turn"][4] = (actions["turn"][4] + 1) % 3
    logp = TargetPolicy(runner_of(policy), explore=False).logp(dataclasses.replace(episodes, actions=actions))
    assert not np.array_equal(greedy["turn"], greedy["go"])
    np.testing.assert_array_equal(logp, np.where(np.arange(9) == 4, -np.inf, 0))


@pytest.mark.long
def test_values_of_box_actions_are_means_over_samples(caplog) -> None:
    caplog.set_level("INFO", "rollax.offline.estimators")
    policy = PPO.make_policy(OBS, BOX, PPOConfig(model=MODEL, seed=1))
    episodes, _ = logged(policy)
    fitted = FittedQ(TargetPolicy(runner_of(policy)), 0.9, FQEConfig(hiddens=(8,), updates=5, batch_size=4, samples=3))
    values = fitted.fit(episodes)
    assert caplog.messages == ["Fitted Q evaluation: 5 of 5 updates"]
    assert values.q(episodes.obs, episodes.actions).shape == (9,)
    assert np.isfinite(values.v(episodes.obs)).all()


@pytest.mark.parametrize("name", ["hiddens", "batch_size", "samples"])
@pytest.mark.parametrize("size", [2**40, 10**400])
def test_sizes_of_fitted_q_beyond_the_memory_are_refused(name: str, size: int) -> None:
    policy = PPO.make_policy(OBS, BOX, PPOConfig(model=MODEL, seed=1))
    config = FQEConfig(**{name: (size,) if name == "hiddens" else size})
    with pytest.raises(ConfigError, match="needs more memory than this machine has"):
        FittedQ(TargetPolicy(runner_of(policy)), 0.9, config).fit(logged(policy)[0])


def test_values_of_clipped_actions_are_those_at_the_bound() -> None:
    # The environment cannot distinguish them, and logs of its actions have none beyond the bounds.
    policy = PPO.make_policy(OBS, BOX, PPOConfig(model=MODEL, seed=1))
    target = TargetPolicy(runner_of(policy, mapped=True))
    values, obs = FittedQ(target, 0.9, FQEConfig(hiddens=(4,), samples=3)), np.zeros((5, 3), np.float32)
    far = np.array([[3, -0.5], [0.25, -7], [2, 2], [0, 1], [-1.5, 0]], np.float32)
    np.testing.assert_array_equal(values.q(obs, far), values.q(obs, np.clip(far, -1, 1)))
    with acting_state_kept(policy):
        drawn = target.sampled(obs, 3)
    assert (np.abs(drawn) > 1).any()
    of_drawn = values.q(np.repeat(obs, 3, axis=0), np.clip(drawn, -1, 1)).reshape(5, 3)
    np.testing.assert_allclose(values.v(obs), of_drawn.mean(axis=1), atol=1e-6)


@pytest.mark.parametrize("space", [BOX, spaces.Dict({"b": BOX, "a": spaces.Discrete(2)})])
def test_actions_on_a_bound(space: spaces.Space) -> None:
    target = TargetPolicy(runner_of(PPO.make_policy(OBS, space, PPOConfig(model=MODEL)), mapped=True))
    some: Any = np.array([[1, 0], [0.5, -1], [0.5, -0.9], [1.5, 0], [0, -3]], np.float32)
    if space is not BOX:
        some = {"b": some, "a": np.zeros(5, np.int64)}
    assert target.on_bound(some).tolist() == [True, True, False, False, False]


def test_a_policy_with_memory_has_no_fitted_values() -> None:
    model = {**MODEL, "use_lstm": True, "lstm_cell_size": 4}
    policy = PPO.make_policy(OBS, spaces.Discrete(3), PPOConfig(model=model, seed=1))
    refused(PolicyError, FittedQ, TargetPolicy(runner_of(policy)), 0.9, says="memory")


@pytest.mark.long
def test_values_learn_rewards_and_bootstraps() -> None:
    # One state, one action, reward 1, γ = 0.5, truncated: Q = 1 / (1 - 0.5) = 2; termination would give 1.
    policy = DQN.make_policy(spaces.Discrete(1), spaces.Discrete(1), DQNConfig(model=MODEL, seed=0))
    for terminated, value in ((False, 2.0), (True, 1.0)):
        episodes = logged_episodes(np.zeros(1, np.int64), np.zeros(1, np.int64), terminated=terminated)
        config = FQEConfig(hiddens=(), updates=2000, batch_size=4, lr=0.02, tau=0.1)
        fitted = FittedQ(TargetPolicy(runner_of(policy)), 0.5, config).fit(episodes)
        assert fitted.v(episodes.obs) == pytest.approx([value], abs=0.02)


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99, 0.995])
def test_fitted_q_makes_enough_steps_for_the_horizon(gamma: float) -> None:
    config = FQEConfig()
    # Values begin at 0. After training this share of a value of many equal rewards is missing.
    assert (1 - config.target_rate(gamma) * (1 - gamma)) ** config.updates < 0.01
    assert FQEConfig(tau=0.3).target_rate(gamma) == 0.3


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            *({"hiddens": 64}, {"hiddens": "64"}, {"hiddens": (0,)}, {"hiddens": [1] * 1001}, {"updates": 0}),
            *({"updates": 10.5}, {"batch_size": -1}),
        ),
        *({"samples": 0}, {"lr": 0}, {"lr": float("nan")}, {"lr": "1"}, {"tau": 0}, {"tau": 1.5}, {"seed": -1}),
    ],
)
def test_invalid_settings_of_fitted_q_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    raised(ConfigError, FQEConfig, says=f"setting 'FQEConfig.{name}'", **wrong)
