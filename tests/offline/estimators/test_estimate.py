"""Estimates on the cliff, against the solution of its linear equations."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from rollax import Policy
from rollax.errors import ConfigError, DatasetError, PolicyError
from rollax.offline.estimators.estimate import METHODS, estimate, estimate_policy
from rollax.offline.estimators.fitted_q import FittedQ, FQEConfig
from rollax.offline.estimators.target_policy import action_probabilities
from tests.env.refused import refused
from tests.offline.estimators.worlds import GAMMA, START, TableValues, epsilon_greedy, exact_q, play_episodes, target_of
from tests.offline.recorded import ListReader

TARGET, BEHAVIOUR = epsilon_greedy(0.1), epsilon_greedy(0.2)
Q = exact_q(TARGET)
TRUE_VALUE = float((Q * TARGET).sum(axis=1)[START])
VALUES = TableValues(Q, TARGET)


@pytest.fixture(scope="module")
def episodes():
    return play_episodes(BEHAVIOUR, 4000, np.random.default_rng(0))


@pytest.mark.parametrize("method", METHODS)
def test_estimates_are_within_five_percent_of_the_solution(episodes, method: str) -> None:
    found = estimate(target_of(TARGET), episodes, [method], values=VALUES, resamples=200)
    assert found.gamma == GAMMA
    assert found[method].v_target == pytest.approx(TRUE_VALUE, rel=0.05)
    assert found[method].low <= found[method].v_target <= found[method].high
    assert found[method].v_gain == pytest.approx(found[method].v_target - found.v_behavior)


def test_exact_values_and_deterministic_dynamics_have_no_variance(episodes) -> None:
    # Every DR_t is V(s_t), for any action.
    found = estimate(target_of(TARGET), episodes, ["dr"], values=VALUES, resamples=50)["dr"]
    assert found.v_target == pytest.approx(TRUE_VALUE, rel=1e-9)
    assert found.v_std == pytest.approx(0.0, abs=1e-9)


@pytest.mark.long
def test_fitted_values_equal_the_solution(episodes) -> None:
    # Without hidden layers the values of one-hot observations are a table.
    config = FQEConfig(hiddens=(), updates=3000, lr=0.3, tau=0.05)
    fitted = FittedQ(target_of(TARGET), GAMMA, config).fit(episodes)
    found = estimate(target_of(TARGET), episodes, ["dm", "dr"], values=fitted, resamples=50)
    assert found["dm"].v_target == pytest.approx(TRUE_VALUE, rel=0.05)
    assert found["dr"].v_target == pytest.approx(TRUE_VALUE, rel=0.05)


@pytest.mark.long
def test_intervals_cover_the_solution() -> None:
    covered = dict.fromkeys(("pdis", "wis", "wpdis"), 0)
    for repetition in range(100):
        data = play_episodes(BEHAVIOUR, 300, np.random.default_rng(repetition))
        found = estimate(target_of(TARGET), data, list(covered), resamples=1000, seed=repetition)
        for method in covered:
            covered[method] += found[method].low <= TRUE_VALUE <= found[method].high
    assert min(covered.values()) >= 90, covered


def test_policies_that_differ_too_much_give_a_warning() -> None:
    found = estimate(target_of(TARGET), play_episodes(epsilon_greedy(0.9), 50, np.random.default_rng(1)), ["wis"])
    assert "effective sample size" in found.warnings[0]


def test_a_policy_that_never_takes_the_logged_actions_has_no_weighted_estimate() -> None:
    data = play_episodes(BEHAVIOUR, 20, np.random.default_rng(2))
    upwards = np.eye(4)[np.zeros(48, int)]  # every logged episode ends with a step down, to the goal
    found = estimate(target_of(upwards), data, ["is", "wis", "wpdis"], resamples=20)
    assert found.effective_sample_size == 0
    assert "never takes" in found.warnings[0]
    assert found["is"].v_target == 0
    for method in ("wis", "wpdis"):
        assert np.isnan([found[method].v_target, found[method].v_gain, found[method].low, found[method].v_std]).all()


@pytest.mark.long
def test_a_log_without_probabilities_can_be_fitted(episodes) -> None:
    without = replace(episodes, behaviour_logp=None)
    found = estimate(target_of(TARGET), without, ["wpdis"], behaviour="fitted", resamples=50)
    assert found["wpdis"].v_target == pytest.approx(TRUE_VALUE, rel=0.1)


def constant_values(monkeypatch, value):
    """Replaces fitted values by `value(rewards)`; returns a list of the rewards of the episodes of each fit."""
    fitted_to: list[list[float]] = []

    class Constant:
        def __init__(self, *_) -> None:
            pass

        def fit(self, episodes):
            self.value = value(episodes.rewards)
            fitted_to.append(sorted(episodes.rewards.tolist()))
            return self

        def q(self, obs, actions):
            return np.full(len(actions), self.value)

        def v(self, obs):
            return np.full(len(obs), self.value)

    monkeypatch.setattr("rollax.offline.estimators.fitted_q.FittedQ", Constant)
    return fitted_to


def test_values_of_an_episode_are_fitted_to_others_for_dr(monkeypatch) -> None:
    """Each half gets values that are fitted to the other one; here values are the mean reward of these episodes."""
    fitted_to = constant_values(monkeypatch, np.mean)
    four = play_episodes(TARGET, 4, np.random.default_rng(0))
    lengths = np.array([1, 1, 2, 1])
    rows = four.chosen([0, 1, 2, 3])
    some = replace(
        rows,
        **{name: getattr(rows, name)[:5] for name in ("obs", "actions", "behaviour_logp")},
        rewards=np.array([1.0, 2, 3, 4, 5]),
        lengths=lengths,
        terminated=np.ones(4, bool),
    )
    some = replace(some, behaviour_logp=target_of(TARGET).logp(some))  # ratios of 1
    found = estimate(target_of(TARGET), some, ["dm", "dr"], gamma=1.0)
    assert found["dm"].v_target == 3  # the mean of all rewards
    whole, *halves = fitted_to
    assert whole == sorted(halves[0] + halves[1]) == [1, 2, 3, 4, 5]
    # With ratios of 1 the values cancel: the estimate is the mean return, (1 + 2 + 7 + 5) / 4.
    assert found["dr"].v_target == pytest.approx(3.75)


def test_agents_of_an_episode_are_not_independent(monkeypatch) -> None:
    fitted_to = constant_values(monkeypatch, lambda rewards: 0.0)
    one = replace(play_episodes(TARGET, 1, np.random.default_rng(0)), lengths=np.ones(1, np.int64))
    one = replace(one, **{name: getattr(one, name)[:1] for name in ("obs", "actions", "behaviour_logp")})
    some = replace(one.chosen([0] * 20), rewards=np.arange(20.0), episode_numbers=np.arange(20))
    twice = replace(some.chosen(np.repeat(np.arange(20), 2)), episode_numbers=np.repeat(np.arange(20), 2))
    agents, alone = (estimate(target_of(TARGET), each, ["wis", "dr"], gamma=1.0) for each in (twice, some))
    assert (agents.behavior_low, agents.behavior_high) == pytest.approx((alone.behavior_low, alone.behavior_high))
    for method in ("wis", "dr"):
        assert agents[method].v_std == pytest.approx(alone[method].v_std)
    first, second = map(set, fitted_to[:2])
    assert len(first) == len(second) == 10  # both agents of an episode have its reward
    assert not first & second


def test_doubtful_values_give_a_warning(episodes) -> None:
    cut = replace(episodes, terminated=np.arange(len(episodes)) > 2)
    found = estimate(target_of(TARGET), cut, ["dm"], values=VALUES, resamples=20)
    assert ["3 of 4000 episodes were truncated" in warning for warning in found.warnings] == [True]
    assert not estimate(target_of(TARGET), cut, ["wis"], resamples=20).warnings
    without = replace(episodes, rewards=np.zeros_like(episodes.rewards))  # rewards without a scale
    assert not estimate(target_of(TARGET), without, ["dm"], values=TableValues(Q * 1e-4, TARGET), resamples=20).warnings
    far = TableValues(Q - 1e6, TARGET)
    found = estimate(target_of(TARGET), episodes, ["dm"], values=far, resamples=20)
    assert ["100% of the fitted values are outside -1e+04 to -1," in warning for warning in found.warnings] == [True]


def test_random_state_of_the_policy_is_restored(episodes) -> None:
    target = target_of(TARGET)
    states = iter("ab")
    target.runner.policy.get_acting_state = lambda: {"state": next(states)}  # pyright: ignore[reportAttributeAccessIssue]
    restored: list = []
    target.runner.policy.set_acting_state = restored.append  # pyright: ignore[reportAttributeAccessIssue]
    estimate(target, episodes, "wis", resamples=20)
    assert restored == [{"state": "a"}]


def test_a_reader_that_it_opens_is_closed(monkeypatch) -> None:
    monkeypatch.setattr(ListReader, "close", lambda self: closed.append(self))
    closed, reader, runner = [], ListReader([]), target_of(TARGET).runner
    for data in (reader, lambda: reader):
        refused(DatasetError, estimate_policy, runner, data, ["wis"], says="no whole trajectory")
    assert closed == [reader]


class Plain(Policy):
    """A policy without probabilities."""

    def compute_actions(self, obs_batch):
        return np.zeros(len(obs_batch), int), [], {}


@pytest.mark.long
def test_refused_settings(episodes) -> None:
    with pytest.raises(ConfigError, match=r"(?s)is not an FQEConfig.*'updates': 1"):
        estimate(target_of(TARGET), episodes, ["dm"], fqe={"updates": 1})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"(?s)not a policy that can be estimated.*str 'runs/policy'.*load_policy"):
        estimate_policy("runs/policy", "log")  # pyright: ignore[reportArgumentType]
    refused(ConfigError, estimate, target_of(TARGET), episodes, ["wiss"], says="wis")
    refused(ConfigError, estimate, target_of(TARGET), episodes, ["wis"], says="fitted", behaviour="Fitted")
    with pytest.raises(DatasetError, match=r"log\(p\)"):
        estimate(target_of(TARGET), replace(episodes, behaviour_logp=np.exp(episodes.behaviour_logp)), ["wis"])
    with pytest.raises(ConfigError, match=r"(?s)`resamples` is out of range.*1 or more"):
        estimate(target_of(TARGET), episodes, ["wis"], resamples=0)
    for wrong in ({"resamples": 10.5}, {"level": "0.9"}, {"seed": -1}, {"gamma": 1.5}, {"gamma": "1"}):
        (name,) = wrong
        refused(ConfigError, estimate, target_of(TARGET), episodes, ["wis"], says=f"`{name}` is out of range", **wrong)
    with pytest.raises(PolicyError, match="probabilities"):
        action_probabilities(Plain(target_of(TARGET).runner.policy.observation_space, spaces.Discrete(2)), np.zeros(1))
