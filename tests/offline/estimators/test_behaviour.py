"""Models of the behaviour policy: estimates from logs without log-probabilities."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from rollax import PG
from rollax.errors import DatasetError
from rollax.offline.estimators import behaviour
from rollax.offline.estimators.episodes import LoggedEpisodes
from rollax.offline.estimators.estimate import estimate
from rollax.offline.estimators.target_policy import TargetPolicy
from tests.offline.estimators.worlds import logged_episodes, runner_of

FEATURES, ACTIONS, STEPS = 20, 3, 10


@pytest.fixture(scope="module")
def target() -> TargetPolicy:
    obs, actions = spaces.Box(-np.inf, np.inf, (FEATURES,), np.float32), spaces.Discrete(ACTIONS)
    policy = PG.make_policy(obs, actions, {"seed": 0, "gamma": 1.0, "model": {"fcnet_hiddens": [8]}})
    return TargetPolicy(runner_of(policy))


def sample_episodes(target: TargetPolicy, episodes: int) -> LoggedEpisodes:
    """Episodes of the target policy itself in random states; action 1 earns 1."""
    rng = np.random.default_rng(0)
    rows = episodes * STEPS
    obs = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    probabilities = target.probabilities(obs)
    actions = (probabilities.cumsum(axis=1) > rng.random(rows)[:, None]).argmax(axis=1)
    return logged_episodes(obs, actions, (actions == 1).astype(float), lengths=np.full(episodes, STEPS))


@pytest.mark.long
def test_few_rows_are_not_memorized(target) -> None:
    """Equal policies have weights of 1, and the estimate is the mean return."""
    found = estimate(target, sample_episodes(target, 60), ["is", "pdis", "wis"], behaviour="fitted", resamples=50)
    for method in ("is", "pdis", "wis"):
        assert found[method].v_target == pytest.approx(found.v_behavior, rel=0.05)
    assert found.effective_sample_size > 50
    assert not found.warnings


def test_models_that_do_not_describe_the_data_give_a_warning(target, monkeypatch) -> None:
    """Probabilities that are e^0.1 times too large: ten steps have weights of 1/e."""
    monkeypatch.setattr(behaviour, "fitted_logp", lambda episodes, target, seed: target.logp(episodes) + 0.1)
    found = estimate(target, sample_episodes(target, 60), ["is", "wis"], behaviour="fitted", resamples=50)
    assert found["is"].v_target == pytest.approx(found.v_behavior / np.e)
    assert found.effective_sample_size == pytest.approx(60)
    assert "mean importance weight is 0.368 instead of 1" in found.warnings[0]


def test_clipped_actions_give_a_warning(monkeypatch) -> None:
    obs, actions = spaces.Box(-1, 1, (1,), np.float32), spaces.Box(-1, 1, (1,), np.float32)
    policy = PG.make_policy(obs, actions, {"seed": 0, "gamma": 1.0, "model": {"fcnet_hiddens": [4]}})
    target = TargetPolicy(runner_of(policy, mapped=True))
    drawn = np.random.default_rng(0).normal(size=(100, 1)).astype(np.float32)
    logged = logged_episodes(np.zeros((100, 1), np.float32), drawn)
    monkeypatch.setattr(behaviour, "fitted_logp", lambda episodes, target, seed: target.logp(episodes))
    assert not estimate(target, logged, ["wis"], behaviour="fitted", resamples=50).warnings
    clipped = replace(logged, actions=np.clip(drawn, -1, 1))
    (warning,) = estimate(target, clipped, ["wis"], behaviour="fitted", resamples=50).warnings
    assert f"{np.mean(np.abs(drawn) > 1):.0%} of the actions lie on a bound" in warning


def test_models_are_fitted_to_other_episodes(target, monkeypatch) -> None:
    """Agents of an episode may act together: the actions of one would be known from those of another."""
    used: list[np.ndarray] = []

    class Fitting:
        def __init__(self, *_) -> None:
            pass

        def logp_of(self, fitted, held_out, _):
            used.append(np.concatenate([fitted, held_out]))
            return np.full(20 * STEPS, len(used) - 1)

    monkeypatch.setattr(behaviour, "_Fitting", Fitting)
    groups = np.arange(20) % 10
    logged = replace(sample_episodes(target, 20), episode_numbers=groups)
    model_of, group_of_row = behaviour.fitted_logp(logged, target), np.repeat(groups, STEPS)
    assert len(used) == 5
    for model, rows in enumerate(used):
        assert set(group_of_row[rows]) == set(range(10)) - set(group_of_row[model_of == model])
    with pytest.raises(DatasetError, match=r"Too few episodes(.|\n)*got: +2(.|\n)*'dm'"):
        behaviour.fitted_logp(replace(logged, episode_numbers=groups % 2), target)


@pytest.mark.long
def test_masked_actions_have_no_probability() -> None:
    """With a single valid action, its probability is 1."""
    space = spaces.Dict({"action_mask": spaces.MultiBinary(ACTIONS), "x": spaces.Box(-9, 9, (2,), np.float32)})
    policy = PG.make_policy(space, spaces.Discrete(ACTIONS), {"seed": 0, "model": {"fcnet_hiddens": [8]}})
    rng, episodes = np.random.default_rng(0), 12
    rows = episodes * STEPS
    only = rng.integers(ACTIONS, size=rows)

    def observed(mask: np.ndarray) -> dict:
        return {"action_mask": mask.astype(np.int8), "x": rng.normal(size=(len(mask), 2)).astype(np.float32)}

    logged = logged_episodes(observed(np.eye(ACTIONS)[only]), only, lengths=np.full(episodes, STEPS))
    logp = behaviour.fitted_logp(logged, TargetPolicy(runner_of(policy)))
    np.testing.assert_allclose(logp, 0.0, atol=1e-6)
