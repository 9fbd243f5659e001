import pytest
from gymnasium import spaces

from rollax import Policy, PolicySpec
from rollax.errors import PolicyError

BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)


class Own(Policy):
    def compute_actions(self, obs_batch):
        return [0] * len(obs_batch), [], {}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, PolicySpec()),
        (Own, PolicySpec(Own)),
        ((None,), PolicySpec()),
        ((Own, BOX), PolicySpec(Own, BOX)),
        ((None, BOX, TWO, {"gamma": 0.5}), PolicySpec(None, BOX, TWO, {"gamma": 0.5})),
        ((None, None, None, None), PolicySpec()),
        (PolicySpec(Own, config={"lr": 0.1}), PolicySpec(Own, config={"lr": 0.1})),
    ],
)
def test_accepts(given, expected):
    assert PolicySpec.of(given, "p") == expected


@pytest.mark.parametrize("given", ["PPO", 3, (), [None, BOX, TWO, {}], ("PPO",), (None, BOX, TWO, 1), (None,) * 5, int])
def test_13_refuses_what_is_no_spec(given):
    with pytest.raises(
        PolicyError, match=r"No policy spec(.|\n)*policies\['p'\](.|\n)*got:(.|\n)*expected:(.|\n)*fix:"
    ):
        PolicySpec.of(given, "p")
