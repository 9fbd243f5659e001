"""Virtual environments of the other libraries, one each, because their pins conflict with each other and with rollax.

`python -m benchmarks.peers` creates all of them. ROLLAX_PEER_VENVS names a folder of existing ones.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Gymnasium's MuJoCo environments import packaging, which Gymnasium does not declare.
REQUIREMENTS = {
    "sb3": ("stable-baselines3", "sb3-contrib", "sbx-rl", "imageio", "mujoco", "packaging", "box2d", "pygame-ce"),
    "rllib": ("ray[rllib]", "torch"),
    "sample_factory": ("sample-factory", "torch"),
    "tianshou": ("tianshou",),
    # rejax fails with gymnax 1.0.
    "rejax": ("rejax", "gymnax<1"),
    "d3rlpy": ("d3rlpy", "h5py", "imageio", "mujoco", "packaging", "torch"),
}
OWN_FOLDER = "ROLLAX_PEER_VENVS"


def peer_python(peer: str) -> Path:
    """Returns the Python of `peer`'s virtual environment, creating it if it is missing or its pins have changed."""
    prepared = os.environ.get(OWN_FOLDER)
    if prepared:
        python = Path(prepared) / peer / "bin" / "python"
        if not python.exists():
            raise FileNotFoundError(f"{OWN_FOLDER} is set, but there is no {peer}/bin/python in that folder")
        return python
    folder = ROOT / ".bench-venvs" / peer
    constraints = Path(__file__).parent / "constraints" / f"{peer}.txt"
    stamp = folder / "installed"
    wanted = hashlib.sha256(constraints.read_bytes() + repr(REQUIREMENTS[peer]).encode()).hexdigest()
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {peer} into {folder.relative_to(ROOT)} (once)", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run([*install, "--constraint", str(constraints), *REQUIREMENTS[peer]], check=True)
        # Written last, so that an interrupted installation is repeated.
        stamp.write_text(wanted)
    return python


if __name__ == "__main__":
    for name in REQUIREMENTS:
        print(peer_python(name))
