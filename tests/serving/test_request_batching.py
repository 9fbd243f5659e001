"""Requests that share forward passes."""

import asyncio
from typing import Any, cast

import numpy as np
import pytest

from rollax.serving.acting import Actor
from rollax.serving.request_batching import Part, RequestBatcher


class Echo:
    """An actor whose actions are its observations."""

    def __init__(self, quick: bool) -> None:
        self.quick = quick

    def is_quick(self, rows: int) -> bool:
        return self.quick

    def act_on(self, columns: np.ndarray, *memory: Any) -> list[float]:
        return columns.tolist()


@pytest.mark.parametrize("quick", [True, False])
def test_a_request_that_cannot_be_answered_leaves_the_others_alone(quick, caplog):
    batcher, actor = RequestBatcher(remembers=False), cast(Actor, Echo(quick))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        batcher.attach(loop)
        for _ in range(2):
            part, answered = Part(actor, np.ones(1), 1), loop.create_future()
            batcher.add([Part(actor, np.zeros(1), 1)], lambda error: 1 // 0)
            batcher.add([part], lambda error, to=answered: loop.call_soon_threadsafe(to.set_result, error))
            assert await asyncio.wait_for(answered, 60) is None
            assert part.actions == [1.0]
        batcher.close()

    asyncio.run(main())
    assert caplog.text.count("ZeroDivisionError: ") == 2


class Picky(Echo):
    """Fails for an observation above 1."""

    def act_on(self, columns: np.ndarray, *memory: Any) -> list[float]:
        if columns.max() > 1:
            raise ValueError
        return super().act_on(columns)


@pytest.mark.parametrize("quick", [True, False])
def test_an_observation_that_fails_the_shared_pass_fails_only_its_request(quick):
    batcher, actors = RequestBatcher(remembers=False), [cast(Actor, Picky(quick)) for _ in range(2)]
    requests = [[(0, 1.0)], [(0, 2.0)], [(0, 0.5), (1, 1.0)], [(0, 1.0), (1, 3.0)], [(1, 0.0)]]

    async def main() -> None:
        loop, answered = asyncio.get_running_loop(), []
        batcher.attach(loop)
        for request in requests:
            parts, answer = [Part(actors[i], np.full(1, obs), 1) for i, obs in request], loop.create_future()
            batcher.add(parts, lambda error, to=answer: loop.call_soon_threadsafe(to.set_result, error))
            answered.append((parts, answer))
        errors = await asyncio.wait_for(asyncio.gather(*[answer for _, answer in answered]), 60)
        assert [type(error) for error in errors] == [type(None), ValueError, type(None), ValueError, type(None)]
        for request, (parts, _), error in zip(requests, answered, errors, strict=True):
            assert error or [part.actions for part in parts] == [[obs] for _, obs in request]
        batcher.close()

    asyncio.run(main())
