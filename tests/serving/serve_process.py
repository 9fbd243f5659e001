"""`rollax serve` as a process."""

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.python_process import started


@contextmanager
def serving(*arguments: Any) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A process of `rollax serve`, its first address, and the line that it has printed."""
    arguments = ("-m", "rollax", "serve", *arguments, "--port=0")
    process = started(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    killer = threading.Timer(300, process.kill)  # a server that prints nothing would hang the test
    killer.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"https?://127\.0\.0\.1:\d+", line)
        assert found is not None, line or process.communicate()[1]
        yield process, found[0], line
    finally:
        killer.cancel()
        if process.poll() is None:
            process.kill()
        process.communicate()
