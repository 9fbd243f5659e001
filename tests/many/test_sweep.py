"""Sweeps: texts of ranges and lists, their values, and what is refused."""

import pytest

from rollax.errors import ConfigError
from rollax.many.sweep import Setting, parse_sweep
from tests.env.refused import refused


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=1e-3,3e-3", (0.001, 0.003)),
        ("lr=0.5", (0.5,)),
        ("n=2,-3", (2, -3)),
        ("gamma=0.9..0.98:5", (0.9, 0.92, 0.94, 0.96, 0.98)),
        ("gamma=0..1:3", (0, 0.5, 1)),
        ("n=1..10:4", (1, 4, 7, 10)),
        ("x=-1..-0.5:3", (-1, -0.75, -0.5)),
        # Ratios of 10 and of 2.
        ("lr=1e-4..1e-2:log:3", (0.0001, 0.001, 0.01)),
        ("n=64..512:log:4", (64, 128, 256, 512)),
        # 1e-4 · 100^(k/3): 100^(1/3) = 4.641589, 100^(2/3) = 21.54435; five digits.
        ("lr=1e-4..1e-2:log:4", (0.0001, 0.00046416, 0.0021544, 0.01)),
    ],
)
def test_values_of_a_text(text, values):
    key, _, _ = text.partition("=")
    found = parse_sweep([text]).axes
    assert found == {key: values}
    assert [type(value) for value in found[key]] == [type(value) for value in values]


def test_several_texts_make_a_grid_whose_last_key_changes_fastest():
    settings = parse_sweep(["lr=1e-3,1e-5", "model.width=8,16"]).settings
    names = [f"lr={lr},model.width={width}" for lr in ("0.001", "1e-05") for width in (8, 16)]
    assert [setting.name for setting in settings] == names
    assert settings[3].texts == ("lr=1e-05", "model.width=16")


def test_without_texts_there_is_one_setting_without_keys():
    assert parse_sweep([]).settings == [Setting()]
    assert Setting().name == ""


@pytest.mark.parametrize(
    "texts",
    [
        *(["lr"], ["=1,2"], ["../lr=1,2"], ["lr="], ["lr=1,"], ["lr=a,b"], ["lr=True,False"], ["lr=nan,1"]),
        *(["lr=1e-4..1e-2"], ["lr=1e-4..1e-2:log"], ["lr=1e-4..1e-2:16:log"], ["lr=1e-4..1e-2:exp:16"]),
        *(["lr=1e-4..1e-2:1"], ["lr=1e-4..1e-2:2.5"], ["lr=1e-2..1e-4:3"], ["lr=1..1:3"], ["lr=1..inf:3"]),
        *(["lr=0..1:log:3"], ["lr=1,1.0"], ["lr=0,-0.0"], ["lr=1,2", "lr=3"]),
        ["lr=1.0000001..1.0000002:4"],  # equal after rounding
    ],
    ids=" ".join,
)
def test_texts_that_are_refused(texts):
    refused(ConfigError, parse_sweep, texts)
