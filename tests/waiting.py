"""What tests wait for: a condition that other threads or processes make true."""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

LONG = 60.0
"""The longest wait in seconds."""

Result = TypeVar("Result")


def until(condition: Callable[[], Any], what: str = "it did not come", within_s: float = LONG) -> None:
    """Waits until a condition is true."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(1e-3)


def in_threads(count: int, play: Callable[[int], Any]) -> None:
    """Calls `play(0)`, `play(1)`, ... in a thread each, until all have returned."""
    threads = [threading.Thread(target=play, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def meanwhile(play: Callable[[], Any], call: Callable[[], Result]) -> Result:
    """The result of `call`, during which `play` runs in another thread, whose error is raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            play()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    result = call()
    thread.join(LONG)
    assert not thread.is_alive()
    if raised:
        raise raised[0]
    return result
