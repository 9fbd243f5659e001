"""Result dicts are written to and read from disk."""

import json
import math
import os
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from rollax.errors import RollaxError
from rollax.runs.results import draw_curves, flat_scalars, number_in, read_results, to_json


class Thing:
    def __str__(self):
        return "a thing"


def test_to_json_is_strict():
    arrays_of_jax = [jnp.float32(0.25), jnp.bfloat16(jnp.inf), jnp.arange(2)]
    pairs = [
        *((math.nan, None), (np.float32(-math.inf), None), (np.int64(3), 3), (np.float32(0.5), 0.5)),
        *((np.bool_(True), True), (np.array([[1.0, math.nan]]), [[1.0, None]]), (arrays_of_jax, [0.25, None, [0, 1]])),
        *(((1, {2: None}), [1, {"2": None}]), (Thing, f"{__name__}:Thing"), (Thing(), "a thing")),
        *(("λ", "λ"), (b"x", "b'x'")),
    ]
    assert json.loads(to_json([value for value, _ in pairs])) == [expected for _, expected in pairs]
    assert "\n" not in to_json({"a": "b\nc"})


def test_flat_scalars():
    nested = {"a": 1, "b": {"c": np.float32(2), "d": {"e": None, "f": "x", "g": True}}, "h": [1], "i": math.nan}
    assert dict(flat_scalars(nested)) == {"a": 1.0, "b/c": 2.0}
    of_jax = {"a": jnp.array(3), "b": jnp.bfloat16(0.5), "h": jnp.zeros(1), "g": jnp.array(True)}
    assert dict(flat_scalars(of_jax)) == {"a": 3.0, "b": 0.5}
    assert dict(flat_scalars({"of another library": SimpleNamespace(ndim=0)})) == {}


def test_number_in():
    assert number_in({"a": {"b": np.array(3)}}, "a", "b") == number_in({"a": {"b": jnp.array(3)}}, "a", "b") == 3.0
    for result in ({}, {"a": None}, {"a": 3}, {"a": {"b": math.inf}}, {"a": {"b": "3"}}):
        assert number_in(result, "a", "b") is None


def test_damaged_lines_are_counted_and_left_out(tmp_path):
    (tmp_path / "result.jsonl").write_text('{"a": 1}\n\n[1]\n{"a": 2}\n{"a": ')
    assert read_results(tmp_path) == ([{"a": 1}, {"a": 2}], 2)
    assert read_results(tmp_path / "result.jsonl") == ([{"a": 1}, {"a": 2}], 2)


def test_no_results(tmp_path):
    with pytest.raises(RollaxError, match=r"cannot be read[\s\S]*result.jsonl"):
        read_results(tmp_path)
    (tmp_path / "result.jsonl").write_text("{")
    with pytest.raises(RollaxError, match="1 unreadable"):
        read_results(tmp_path)


def test_all_readers_find_the_same_lines(tmp_path):
    odd = "a\u2028b\u2029c\x85d\x1ce\ud800"
    line = to_json({"name": odd})
    assert line.splitlines() == [line]
    deep = '{"x":' * 5000 + "1" + "}" * 5000
    # From another program: unescaped separators, and lines that are nested too deeply.
    written = ['{"name": "a\u2028b"}', deep, '{"x":' * 101 + "1" + "}" * 101, '{"huge": 1' + "0" * 400 + "}", ""]
    (tmp_path / "result.jsonl").write_text("\n".join([line, *written]), encoding="utf-8")
    results, unread = read_results(tmp_path)
    assert ([result.get("name") for result in results], unread) == ([odd, "a\u2028b", None], 2)
    assert number_in(results[2], "huge") is None
    assert list(map(to_json, results))


def test_names_of_folders_that_are_not_utf_8_are_drawn(tmp_path):
    results = [{"timesteps_total": 1, "episode_reward_mean": 2.0}] * 2
    name = os.fsdecode(b"run-\xff")
    draw_curves({name: results, "b": results}, tmp_path / "curve.png", name)
    assert (tmp_path / "curve.png").read_bytes().endswith(b"IEND\xaeB`\x82")
