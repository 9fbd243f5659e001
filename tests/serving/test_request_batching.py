"""Requests that share forward passes."""

from __future__ import annotations

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
