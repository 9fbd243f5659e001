"""The kind of machine and the versions that stand in an entry."""

import os
from importlib.metadata import version

from rollax.zoo.conditions import differences, machine, versions


def test_flags_are_compared_but_not_shown(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    without = machine()
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/home/somebody")
    with_flags = machine()
    assert "somebody" not in str(with_flags)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/home/other")
    assert machine() != with_flags
    assert [text.partition(":")[0] for text in differences(without, with_flags)] == ["XLA_FLAGS"]


def test_the_machine_is_a_kind_of_machine():
    assert os.uname().nodename not in str(machine())
    assert machine()["architecture"] == os.uname().machine


def test_versions_of_the_environment_follow_its_tags():
    assert versions(("classic",))["numpy"] == version("numpy")
    assert set(versions(("atari",))) - set(versions(("classic",))) == {"ale-py"}


def test_each_difference_is_named():
    assert differences({"cores": 1, "device": "cpu"}, {"cores": 1, "device": "cpu"}) == []
    found = differences({"cores": 1}, {"cores": 2, "flags": "x"})
    assert found == ["cores: measured with 1, here 2", "flags: measured with none, here x"]
