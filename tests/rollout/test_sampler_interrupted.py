"""Sampling that is interrupted at any line: all later fragments agree with the environments' own logs."""

import logging
import random
from collections.abc import Callable

import pytest
from gymnasium.vector import AutoresetMode

from rollax import EnvError, RolloutWorker
from tests.interrupting import Interrupts
from tests.rollout.test_sampler import COMPLETE, SCRIPTS, TRUNCATE, audit, make_worker
from tests.rollout.worlds import Line, native_lines, scripted


def vector(mode: AutoresetMode, envs: int = 3) -> Callable[..., RolloutWorker]:
    return lambda **config: make_worker(native_lines(mode, envs), **config)


KINDS: dict[str, Callable[..., RolloutWorker]] = {
    "auto-vectorized": lambda **config: make_worker(Line, 3, **config),
    "one": lambda **config: make_worker(Line, 1, **config),
    "next step": vector(AutoresetMode.NEXT_STEP),
    "next step, one": vector(AutoresetMode.NEXT_STEP, 1),
    "same step": vector(AutoresetMode.SAME_STEP),
    "disabled": vector(AutoresetMode.DISABLED),
    "agents": lambda **config: make_worker(scripted(*SCRIPTS), 3, **config),
    "agents of two policies": lambda **config: make_worker(scripted(*SCRIPTS), 3, 2, **config),
}
BY_KIND = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())


def interrupted(make: Callable[..., RolloutWorker], first: int, stride: int, mode: str) -> None:
    """Interrupts the third fragments of fresh workers at line `first` and at every `stride` lines after it."""
    interrupts, line, ended = Interrupts(), first, False
    while not ended:
        worker = make(rollout_fragment_length=3, batch_mode=mode)
        for _ in range(2):
            worker.sampler.sample()
        ended = not interrupts.at(line, worker.sampler.sample)
        if not ended:
            if not worker.sampler._in_call:
                # The interrupt came before the first or after the last statement, so running episodes would continue.
                assert interrupts.place.rpartition(":")[0].endswith("sampler.py"), interrupts.place
                worker.sampler.restart()
            assert_sampling_continues(worker, mode, interrupts.place)
        worker.stop()
        line += stride
    assert line > 100


def assert_sampling_continues(worker: RolloutWorker, mode: str, place: str) -> None:
    for env in worker.env.get_sub_environments():
        env.log.clear()
        env.episode = -1
    worker.sampler.take_metrics()
    try:
        audit(worker, mode, fragments=3)
    except Exception as error:
        raise AssertionError(f"after an interrupt at {place}") from error
    for metrics in worker.sampler.take_metrics():
        assert sum(map(sum, metrics.policy_rewards.values())) == metrics.reward, place


@pytest.mark.short("one", "next step, one", "disabled")
@BY_KIND
def test_at_some_lines(make):
    interrupted(make, first=3, stride=149, mode=TRUNCATE)


@pytest.mark.long
@BY_KIND
@pytest.mark.parametrize("mode", [TRUNCATE, COMPLETE])
def test_at_many_lines(make, mode):
    interrupted(make, first=random.randrange(31), stride=31, mode=mode)  # other lines in each run


@BY_KIND
def test_after_an_exception_of_an_environment(make, caplog):
    worker = make(rollout_fragment_length=3)
    worker.sampler.sample()
    first, *_ = worker.env.get_sub_environments()
    step, left = first.step, [4]

    def fails(action):
        left[0] -= 1
        if left[0] == 0:
            raise ZeroDivisionError("once")
        return step(action)

    first.step = fails
    if hasattr(worker.env, "env") and hasattr(worker.env.env, "_steps"):
        worker.env.env._steps[0] = fails
    with caplog.at_level(logging.WARNING, logger="rollax.sampling"):
        with pytest.raises(EnvError, match="once"):
            [worker.sampler.sample() for _ in range(4)]
        assert not caplog.messages
        assert_sampling_continues(worker, TRUNCATE, "the environment")
    assert [message.startswith("Sampling was interrupted.") for message in caplog.messages] == [True]
    worker.stop()


@BY_KIND
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_at_the_end_of_an_evaluation(make, late):
    worker = make(rollout_fragment_length=3)
    worker.sampler.sample()
    restart, interrupts = worker.sampler.restart, iter([False, True])

    def interrupted():
        comes = next(interrupts, False)
        if not comes or late:
            restart()
        if comes:
            raise KeyboardInterrupt

    worker.sampler.restart = interrupted
    with pytest.raises(KeyboardInterrupt):
        worker.evaluate(4)
    assert_sampling_continues(worker, TRUNCATE, "the end of an evaluation")
    worker.stop()
