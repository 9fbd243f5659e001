"""Distributions in words."""

import pytest

from rollax import ConfigError
from rollax.core.plain_yaml import parse_yaml
from rollax.tune.distributions import Choice, Range, parse_distribution, parse_space
from tests.env.refused import refused


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("{log: [1e-5, 1e-2]}", Range(1e-5, 1e-2, log=True)),
        ("{uniform: [0, 1]}", Range(0.0, 1.0)),
        ("{uniform: [0, 1], step: 0.25}", Range(0.0, 1.0, step=0.25)),
        ("{int: [8, 64]}", Range(8, 64, whole=True)),
        ("{int: [8, 64], log: true}", Range(8, 64, whole=True, log=True)),
        ("{log: true, int: [8, 64]}", Range(8, 64, whole=True, log=True)),
        ("{int: [8, 64], step: 8}", Range(8, 64, whole=True, step=8)),
        ("{choice: [0.9, [64, 64], null, a]}", Choice((0.9, [64, 64], None, "a"))),
    ],
)
def test_words(words, expected):
    found = parse_distribution(parse_yaml(words), "here")
    assert found == expected
    assert parse_distribution(found.in_words(), "here") == expected


@pytest.mark.parametrize(
    "words",
    [
        *("0.1", "[0.9, 0.99]", "{}", "{loguniform: [1e-5, 1e-2]}", "{log: [1e-5]}", "{log: [0, 1]}"),
        *("{log: [2, 1]}", "{log: [.nan, 1]}", "{log: [1, 2], step: 1}", "{log: [1, 2], high: 3}"),
        *("{uniform: [a, b]}", "{uniform: [0, 1], step: 2}", "{uniform: [0, 1], step: 0}"),
        *("{uniform: [0, 1], log: true}", "{int: [1.5, 3]}", "{int: [true, 3]}", "{int: [1, 8], step: 0.5}"),
        *("{int: [1, 8], step: 2, log: true}", "{int: [1, 8], log: 1}", "{int: [0, 8], log: true}", "{choice: 3}"),
        *("{choice: [3]}", "{choice: [1, 1.0]}", "{choice: [true, 1]}", "{choice: [[1], [1]]}"),
    ],
)
def test_mistakes_are_refused_where_they_are(words):
    refused(ConfigError, parse_space, {"lr": parse_yaml(words)}, "search", says="search: lr")


@pytest.mark.parametrize("words", [None, [], {}, "lr"])
def test_a_search_has_keys(words):
    refused(ConfigError, parse_space, words, "my_search", says="my_search")


def test_values_have_few_digits_and_stay_inside():
    assert Range(1e-5, 1e-2, log=True).value_of(0.000628982274213) == 0.00062898
    assert Range(0.0, 1.0, step=0.1).value_of(0.30000000000000004) == 0.3
    # 1.000004 would be rounded to 1, below the range.
    assert Range(1.000004, 2.0).value_of(1.000004) == 1.000004
    assert Range(1, 9, whole=True).value_of(3) == 3


def test_choices_are_drawn_by_labels_that_a_file_can_hold():
    choice = Choice(([64, 64], {"a": 1}, None, 0.5))
    assert choice.labels == ("[64, 64]", '{"a": 1}', None, 0.5)
    assert [choice.value_of(label) for label in choice.labels] == list(choice.values)
