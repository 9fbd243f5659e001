"""The peers' virtual environments: their pins conflict with each other and with rollax's, so each has one of its own.

`python -m benchmarks.peers` makes them all. ROLLAX_PEER_VENVS, where set, names a folder that holds them ready made.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
REQUIREMENTS = {
    "sb3": ("stable-baselines3", "sbx-rl"),
    "rllib": ("ray[rllib]", "torch"),
    "sf": ("sample-factory", "torch"),
    "tianshou": ("tianshou",),
}
_OWN_FOLDER = "ROLLAX_PEER_VENVS"


def peer_python(peer: str) -> Path:
    """Returns the Python of `peer`'s virtual environment, made first where it is missing or its pins have changed."""
    prepared = os.environ.get(_OWN_FOLDER)
    if prepared:
        python = Path(prepared) / peer / "bin" / "python"
        if not python.exists():
            raise FileNotFoundError(f"{_OWN_FOLDER} is set, but there is no {peer}/bin/python in that folder")
        return python
    folder = ROOT / ".bench-venvs" / peer
    constraints = Path(__file__).parent / f"constraints-{peer}.txt"
    stamp = folder / "installed"
    wanted = hashlib.sha256(constraints.read_bytes() + repr(REQUIREMENTS[peer]).encode()).hexdigest()
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {peer} into {folder.relative_to(ROOT)} (once)", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, "--constraint", str(constraints), *REQUIREMENTS[peer]], check=True)
        # Written last: an installation that was cut off is done again.
        stamp.write_text(wanted)
    return python


if __name__ == "__main__":
    for name in REQUIREMENTS:
        print(peer_python(name))
