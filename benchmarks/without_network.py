"""The benchmarks of a GPU on a machine that has JAX and PyTorch and no network, such as one that is rented for minutes.

Collect wheels where there is a network; then copy the repository with them to the machine, and run there:

    python -m benchmarks.without_network collect .bench-wheels --python 3.12
    python3 -m benchmarks.without_network run .bench-wheels --gpu --minutes 9

`run` makes a virtual environment for rollax and for each other library, from the wheels and the packages of the Python
that runs it, and passes further options to `benchmarks.run_all`. Only the standard library is imported.
"""

from __future__ import annotations

import argparse
import os
import site
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from benchmarks.peers import OWN_FOLDER, ROOT

# Without what a machine for JAX and PyTorch usually has: Flax, Optax, chex, pandas, Matplotlib, psutil, OpenCV.
_GYMNASIUM = ("gymnasium", "Farama-Notifications", "cloudpickle")
PACKAGES = {
    "rollax": (
        *(*_GYMNASIUM, "ale-py", "pydantic", "pydantic_core", "annotated-types", "typing-inspection", "tensorboardX"),
        *("jaxtyping", "wadler_lindig", "safetensors", "typer"),
    ),
    "rejax": (*_GYMNASIUM, "rejax", "gymnax", "distrax", "tfp-nightly", "dm-tree", "decorator", "gast"),
    "sb3": (*_GYMNASIUM, "stable_baselines3"),
}
_REMOVAL_S = 15.0  # for removing the virtual environments at the end
_GLIBC = ("2_28", "2_27", "2_17", "2014", "1")  # pip takes only wheels of exactly these


def main() -> int:
    """Collects wheels, or runs the benchmarks with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(dest="action", required=True)
    collecting = actions.add_parser("collect", help="download wheels into a folder")
    collecting.add_argument("wheels", type=Path)
    collecting.add_argument("--python", default="3.12", help="the version of Python of the other machine")
    running = actions.add_parser("run", help="install the wheels and run the benchmarks")
    running.add_argument("wheels", type=Path)
    args, options = parser.parse_known_args()
    if args.action == "collect":
        if options:
            parser.error(f"unknown options: {options}")
        for name in PACKAGES:
            collect(name, args.wheels / name, args.python)
        return 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        venvs = Path(folder)
        for wheels in sorted(args.wheels.iterdir()):
            try:
                install(wheels, venvs / wheels.name)
            except subprocess.CalledProcessError as error:
                if wheels.name == "rollax":
                    raise
                print(f"{wheels.name} cannot be installed: {error}", file=sys.stderr)
        command = [str(venvs / "rollax" / "bin" / "python"), "-m", "benchmarks.run_all"]
        options = with_less_time(options, time.monotonic() - begin + _REMOVAL_S)
        return subprocess.run([*command, *options], cwd=ROOT, env={**os.environ, OWN_FOLDER: folder}).returncode


def collect(name: str, folder: Path, python: str) -> None:
    """Downloads the wheels of one virtual environment, at the versions that the benchmarks are measured with."""
    constraints = ROOT / "constraints.txt"
    if name != "rollax":
        constraints = Path(__file__).parent / "constraints" / f"{name}.txt"
    pins = dict(line.split("==") for line in constraints.read_text().splitlines() if "==" in line)
    versions = {_normalized(package): version for package, version in pins.items()}
    wanted = []
    for package in PACKAGES[name]:
        version = versions.get(_normalized(package))
        wanted.append(package if version is None else f"{package}=={version}")
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command += ["--implementation", "cp", "--python-version", python]
    command += [word for glibc in _GLIBC for word in ("--platform", f"manylinux{'_' * ('_' in glibc)}{glibc}_x86_64")]
    subprocess.run([*command, *wanted], check=True)


def _normalized(package: str) -> str:
    return package.lower().replace("_", "-")


def install(wheels: Path, venv: Path) -> None:
    """Makes a virtual environment with the packages of this Python, of which those in `wheels` are replaced."""
    # pip need not be there for virtual environments.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    paths = {"base": str(venv), "platbase": str(venv)}
    packages = Path(sysconfig.get_path("purelib", "venv", paths))
    here = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()))
    packages.joinpath("of_this_python.pth").write_text(
        "".join(f"import site; site.addsitedir({folder!r})\n" for folder in here)
    )
    found = sorted(map(str, wheels.glob("*.whl")))
    command = [sys.executable, "-m", "pip", "install", "-qq", "--no-index", "--no-deps", "--no-cache-dir"]
    subprocess.run([*command, "--disable-pip-version-check", "--target", str(packages), *found], check=True)


def with_less_time(options: list[str], seconds: float) -> list[str]:
    """Returns the options of `run_all` with `--minutes` reduced by what has passed."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--minutes", type=float)
    args, others = parser.parse_known_args(options)
    return others if args.minutes is None else [*others, "--minutes", f"{max(args.minutes - seconds / 60, 0):.3f}"]


if __name__ == "__main__":
    raise SystemExit(main())
