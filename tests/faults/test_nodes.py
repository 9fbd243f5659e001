"""A cluster of several nodes, of which one is lost while a run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parent / "lose_a_node.py"


@pytest.mark.long
def test_33_workers_of_a_lost_node_are_started_anew_on_those_that_are_left():
    # A folder of its own, so that no other Ray joins it; the path is short, for sockets.
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", str(PROGRAM)],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "JAX_PLATFORMS": "cpu", "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    told = [line for line in done.stdout.splitlines() if line.startswith(">")]
    assert told == ["> PPO goes on True True", "> IMPALA begins True"]
