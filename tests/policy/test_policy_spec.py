"""The entries of `multiagent.policies`."""

import pytest
from gymnasium import spaces

from rollax import PPO, PolicySpec, PPOConfig, PPOTrainer
from rollax.errors import PolicyError
from tests.env.refused import refused

BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, PolicySpec()),
        (PPO, PolicySpec(PPO)),
        ((None,), PolicySpec()),
        ((PPO, BOX), PolicySpec(PPO, BOX)),
        ((None, BOX, TWO, {"gamma": 0.5}), PolicySpec(None, BOX, TWO, {"gamma": 0.5})),
        ((None, None, None, None), PolicySpec()),
        (PolicySpec(PPO, config={"lr": 0.1}), PolicySpec(PPO, config={"lr": 0.1})),
    ],
)
def test_values_that_make_a_spec(given, expected):
    assert PolicySpec.of(given, "p") == expected


@pytest.mark.parametrize("given", ["PPO", 3, (), [None, BOX, TWO, {}], ("PPO",), (None, BOX, TWO, 1), (None,) * 5, int])
def test_other_values_are_refused_as_specs(given):
    refused(PolicyError, PolicySpec.of, given, "p", says="not a policy spec...policies['p']...got:...expected:...fix:")


def test_a_config_object_in_a_spec_is_named():
    with pytest.raises(PolicyError, match="the config is a dict of the keys that differ"):
        PolicySpec.of(PolicySpec(config=PPOConfig(gamma=0.5)), "p")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"gamma": 0.5}, "write PolicySpec(config={...}) ... or None for the algorithm's"),
        (PPOTrainer, "the policy of the trainer, PPO, or write None"),
    ],
)
def test_the_fix_follows_from_what_is_given(given, fix):
    refused(PolicyError, PolicySpec.of, given, "p", says=f"not a policy spec...fix: ...{fix}")
