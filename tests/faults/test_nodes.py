"""A cluster of several nodes, of which one is lost during a run."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parent / "lose_a_node.py"


@pytest.mark.long
def test_workers_of_a_lost_node_are_restarted_on_other_nodes():
    # Its own folder, so that no other Ray joins it; the path is short, as it contains sockets.
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
    printed = [line for line in done.stdout.splitlines() if line.startswith(">")]
    assert printed == ["> PPO continues True True", "> IMPALA trains True"]
