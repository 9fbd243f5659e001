"""An entry is measured and run again: bits that are equal and different, scores inside and outside of the interval."""

import signal
from types import SimpleNamespace

import pytest

from rollax import Trainer
from rollax.errors import ConfigError
from rollax.runs.interrupts import Interrupted
from rollax.zoo import read_entry, verify, verify_first
from rollax.zoo.measuring import measure
from rollax.zoo.tables import description
from tests.env.refused import refused
from tests.zoo.small import TEXT, write_small


def silent(line):
    pass


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    return measure(read_entry(write_small(folder)), 2, folder / "runs", show=silent)


@pytest.fixture
def changed(measured, tmp_path):
    """Returns the entry, after changes of what was measured, in a file of its own."""

    def change(of_seeds=lambda result: result, **values):
        seeds = tuple(map(of_seeds, measured.figures.seeds))
        entry = read_entry(write_small(tmp_path, measured.path.read_text()))
        return entry.with_measured(measured.figures.model_copy(update={"seeds": seeds, **values}))

    return change


def with_first(**values):
    def change(result):
        return result.model_copy(update={"first": result.first.model_copy(update=values)})

    return change


@pytest.mark.long
def test_measuring_keeps_the_rest_of_the_file(measured):
    figures = measured.figures
    assert measured.path.read_text().startswith(TEXT)
    assert read_entry(measured.path) == measured
    assert [result.seed for result in figures.seeds] == [0, 1]
    assert [[steps for steps, _ in result.curve] for result in figures.seeds] == [[200, 400, 600]] * 2
    assert figures.seeds[0].weights != figures.seeds[1].weights
    assert figures.seeds[0].weights != figures.seeds[0].first.weights or figures.first_iterations == 3


def test_an_entry_with_one_seed_can_be_shown(measured, changed):
    one = changed(seeds=measured.figures.seeds[:1])
    assert "a further seed" in description(measured, "rollax zoo")
    assert f"rollax zoo train {measured.path}" in description(measured, "rollax zoo"), "not the installed entry"
    assert "a further seed" not in description(one, "rollax zoo")


def test_a_signal_ends_the_measurement_with_its_number(tmp_path, monkeypatch):
    stopped = SimpleNamespace(reached=None, signal=signal.SIGTERM)
    monkeypatch.setattr(Trainer, "fit", lambda self, *arguments, **options: stopped)
    with pytest.raises(Interrupted) as ended:
        measure(read_entry(write_small(tmp_path)), 2, tmp_path / "runs", show=silent)
    assert ended.value.number == signal.SIGTERM


@pytest.mark.long
def test_measured_seeds_are_not_measured_again(measured, changed, tmp_path):
    entry = changed(seeds=measured.figures.seeds[:1])
    interrupted = tmp_path / "runs" / "a2c_small-seed-1" / "result.jsonl"
    interrupted.parent.mkdir(parents=True)
    interrupted.touch()
    lines = []
    again = measure(entry, 2, tmp_path / "runs", show=lines.append)
    assert interrupted.read_bytes() == b""
    assert not (tmp_path / "runs" / "a2c_small-seed-0").exists()
    assert again.figures.seeds[0] == measured.figures.seeds[0]
    assert again.figures.seeds[1].weights == measured.figures.seeds[1].weights
    assert again.figures.seeds[1].score == measured.figures.seeds[1].score


@pytest.mark.long
def test_results_of_other_versions_are_not_mixed(changed, tmp_path):
    versions = {**changed().figures.versions, "jax": "0.0.1"}
    refused(ConfigError, measure, changed(versions=versions), 3, tmp_path / "runs", says="--again", show=silent)


def test_the_first_part_has_the_same_bits(measured):
    verified = verify_first(measured, show=silent)
    assert verified.reproduced
    assert verified.passed
    assert verified.seeds == [0, 1]


@pytest.mark.long
def test_other_bits_on_the_same_machine_do_not_pass(changed):
    verified = verify_first(changed(with_first(weights="0" * 32)), 1, show=silent)
    assert not verified.reproduced
    assert not verified.different
    assert verified.inside
    assert not verified.passed


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "passes"),
    [
        ({}, True),
        ({"steps": 1}, False),
        ({"reward": 400.0}, False),  # of each seed, so that the interval is around 400
    ],
)
def test_elsewhere_steps_and_rewards_are_compared(changed, first, passes):
    versions = {**changed().figures.versions, "jax": "0.0.1"}
    verified = verify_first(changed(with_first(weights="0" * 32, **first), versions=versions), show=silent)
    assert len(verified.different) == 1
    assert "jax" in verified.different[0]
    assert verified.passed == passes


@pytest.mark.long
def test_whole_training_reaches_the_score(measured):
    verified = verify(measured, show=silent)
    assert verified.reproduced
    assert verified.inside
    assert verified.value == pytest.approx(measured.figures.score)


@pytest.mark.long
@pytest.mark.parametrize(("score", "place"), [(300.0, "above"), (1.0, "below")])
def test_a_score_outside_of_the_interval_does_not_pass(changed, score, place):
    def with_score(result):
        first = result.first.model_copy(update={"reward": score})  # nothing was learned, so the interval is small
        return result.model_copy(update={"score": score + result.seed / 10, "first": first})

    verified = verify(changed(with_score), 1, show=silent)
    assert not verified.inside
    assert not verified.passed
    assert (verified.value < verified.interval.low) == (place == "above")


def test_an_entry_with_too_few_seeds_cannot_be_verified(changed, measured):
    for entry, seeds in ((changed(seeds=measured.figures.seeds[:1]), None), (measured, 3)):
        refused(ConfigError, verify_first, entry, seeds, says="rollax zoo measure", show=silent)
