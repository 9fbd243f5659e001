"""Each rule about played episodes, on episodes that show its illness, and on some that are well."""

import numpy as np
import pytest
from gymnasium import spaces

from rollax.doctor.played import Played
from rollax.doctor.played_rules import PLAYED_RULES
from rollax.runs.rules.finding import name_of
from tests.runs.rules.runs import each_case, made

BY_NAME = {name_of(rule): rule for rule in PLAYED_RULES}
RANDOM = np.random.default_rng(0)
ROWS = 120


def played(**changes):
    """Three episodes of 30, 40 and 50 steps, which terminate."""
    actions = RANDOM.uniform(-0.5, 0.5, (ROWS, 2)).astype(np.float32)
    rows = {
        "obs": RANDOM.standard_normal((ROWS, 3)).astype(np.float32),
        "actions": actions,
        "env_actions": changes.get("actions", actions),
        "returns": np.full(ROWS, 10.0),
        "weight_of_end": np.zeros(ROWS),
        "values": np.full(ROWS, 9.0),
        "lengths": np.array([30, 40, 50]),
        "truncated": np.zeros(3, bool),
        "activations": {"hidden layer 1": RANDOM.standard_normal((ROWS, 8))},
    }
    return Played(**{**rows, **changes})


def run(**others):
    """A run whose score has not risen."""
    spaces_of = {"default_policy": spaces.Box(-1, 1, (2,))}
    return made(10, {}, **{"score": 20.0, "action_spaces": spaces_of, **others})


def dead(count):
    """Outputs of 8 units, some of which are always 0."""
    return {"hidden layer 1": RANDOM.standard_normal((ROWS, 8)) * (np.arange(8) >= count)}


OBS = RANDOM.standard_normal((ROWS, 3)).astype(np.float32)
ENDS = np.where(RANDOM.uniform(size=(ROWS, 2)) < 0.5, -1.0, 1.0)
TRUNCATED, HIGH = np.ones(3, bool), np.full(ROWS, 16.0)
TINY = {"default_policy": spaces.Box(-1e-4, 1e-4, (2,))}
MODEL = {"model": {"normalization": None}}

CASES = {
    "observation-scale": [
        (run(), played(obs=OBS * [1, 100, 1]), "warning", "observation_filter"),
        (run(), played(obs={"a": OBS, "b": 100 * OBS}), "warning", "observation_filter"),
        (run(), played(obs=OBS * 1e-3), "warning", "observation_filter"),
        (run(), played(obs=OBS * [1, 10, 0])),
        (run(), played(obs=(200 * np.abs(OBS)).astype(np.uint8))),  # scaled by the model
        (run(), played(obs=np.full((ROWS, 5, 6, 1), 200.0, np.float32))),  # an image, scaled by the model too
        (run(), played(obs=np.full((ROWS, 4, 6, 1), 200.0, np.float32)), "warning", "observation_filter"),
        (run(config={"model": {"normalize_observations": True}}), played(obs=OBS * 100)),
    ],
    "saturated-actions": [
        (run(), played(actions=ENDS), "warning", "lr"),
        (run(config={"actor_lr": 1e-3}), played(actions=ENDS), "warning", "actor_lr"),
        (run(), played(actions=0.9 * ENDS)),
        (run(score=lambda i: 20.0 + 5 * i), played(actions=ENDS)),  # the best there is, perhaps
        (run(action_spaces={"default_policy": spaces.Discrete(2)}), played(actions=np.ones(ROWS, np.int64))),
    ],
    "same-action": [
        (run(), played(actions=np.full((ROWS, 2), 0.3)), "warning", "lr"),
        (run(), played(actions=np.ones(ROWS, np.int64)), "warning", "lr"),
        (run(), played(actions=np.arange(ROWS) % 2)),
        (run(score=lambda i: 20.0 + 5 * i), played(actions=np.ones(ROWS, np.int64))),
        (run(action_spaces=TINY), played(actions=1e-4 * ENDS)),
    ],
    "dead-units": [
        (run(config=MODEL), played(activations=dead(5)), "warning", "model.normalization"),
        (run(score=lambda i: 20.0 + 5 * i, config=MODEL), played(activations=dead(5)), "note", "model.normalization"),
        (run(), played(activations={"hidden layer 1": np.ones((ROWS, 8))}), "warning", "lr"),
        (run(), played(activations=dead(4))),
        (run(score=480.0, env="CartPole-v1"), played(activations=dead(5))),  # above Gymnasium's threshold of 475
        (run(), played(activations={})),
    ],
    "value-bias": [
        (run(config={"double_q": False}, replay={"num_updates": 9}), played(values=HIGH), "warning", "double_q"),
        (run(config={"twin_q": False}, replay={"num_updates": 9}), played(values=HIGH), "warning", "twin_q"),
        (run(), played(values=HIGH), "warning", "vf_loss_coeff"),
        (run(), played(values=np.full(ROWS, 4.0)), "note", "lr"),
        (run(), played(values=np.full(ROWS, 14.0))),
        (run(), played(values=None)),
        (run(), played(values=HIGH, weight_of_end=np.full(ROWS, 0.5))),  # returns are not known
    ],
    "time-limit-as-end": [
        (run(), played(lengths=np.array([40, 40, 40])), "warning", None),
        (run(), played(lengths=np.array([40, 40, 40]), truncated=TRUNCATED)),
        (run(), played(lengths=np.array([40, 40]), truncated=TRUNCATED[:2])),
        (run(), played(lengths=np.ones(120, np.int64), truncated=np.zeros(120, bool))),  # a bandit
        (run(), played()),
    ],
    "truncated-share": [
        (run(), played(truncated=TRUNCATED), "note", None),  # γ looks 100 steps ahead, episodes have 40
        (run(config={"gamma": 0.9}), played(truncated=TRUNCATED)),
        (run(), played(truncated=np.array([True, True, False]))),
    ],
}


def test_every_rule_has_cases():
    assert set(CASES) == set(BY_NAME)


@pytest.mark.parametrize(("name", "statistics", "rows", "severity", "key"), each_case(CASES, 4))
def test_a_rule_finds_what_it_is_about(name, statistics, rows, severity, key):
    (finding,) = BY_NAME[name](statistics, "default_policy", rows)
    assert (finding.severity, finding.key) == (severity, key)


@pytest.mark.parametrize(("name", "statistics", "rows"), each_case(CASES, 2))
def test_a_rule_is_quiet_on_episodes_that_are_well(name, statistics, rows):
    assert list(BY_NAME[name](statistics, "default_policy", rows)) == []


@pytest.mark.parametrize("rule", PLAYED_RULES, ids=name_of)
def test_every_rule_names_the_source_of_its_limit(rule):
    assert "\n    Source: " in rule.__doc__
