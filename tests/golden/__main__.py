"""Golden runs: `python -m tests.golden record FILE` before a change of structure, `compare FILE` after it.

The weights and results of each run are hashed with all bits. Hashes are valid for one machine and one set of package
versions, so the file is recorded again before each change and is not in the repository. `compare` exits with 1 and
prints the runs that differ, and the differences.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rollax.algorithms.registry import get_trainer_class
from tests.golden.cases import Case, make_cases

_SECONDS = ("_s", "_per_s", "_lag")
_NOT_COMPARED = {"timers", "queue", "workers"}


def main() -> int:
    """Records the runs, or compares them with those of a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["record", "compare"])
    parser.add_argument("file", type=Path, help="where the hashes are")
    parser.add_argument("--only", metavar="TEXT", default="", help="only runs whose name contains it")
    parser.add_argument("--workers", action="store_true", help="also runs with two Ray workers")
    args = parser.parse_args()
    before: dict[str, Any] = json.loads(args.file.read_text()) if args.verb == "compare" else {}
    found: dict[str, Any] = {}
    different = 0
    for name, case in make_cases(workers=args.workers).items():
        if args.only not in name:
            continue
        found[name] = outcome(case)
        if args.verb == "record":  # after each run, as a later one may raise
            args.file.write_text(json.dumps(found, indent=1) + "\n")
        line = name
        if before:
            parts = _differences(before.get(name), found[name])
            different += bool(parts)
            line += f": {', '.join(parts)}" if parts else ": equal"
        print(line, flush=True)
    if args.verb == "record":
        return 0
    print(f"{len(found)} runs, {different} different")
    return 1 if different else 0


def outcome(case: Case) -> dict[str, Any]:
    """Trains a case, and returns hashes of `weights` and `results`, and `shown`, the hashed numbers of the results."""
    trainer_class = get_trainer_class(case.algorithm)
    with trainer_class(config={"seed": 7, "evaluation_num_episodes": 2, **case.config}) as trainer:
        results = [_plain(trainer.train()) for _ in range(case.iterations)]
        results.append(_plain(trainer.evaluate()))
        weights = {
            f"{policy_id}/{name}": np.asarray(value)
            for policy_id, arrays in trainer.get_weights().items()
            for name, value in arrays.items()
        }
    return {
        "weights": _hash_of_arrays(weights),
        "results": hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest(),
        "shown": results,
    }


def _hash_of_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Results as JSON, without what depends on the clock."""
    if isinstance(value, Mapping):
        return {
            str(key): _plain(part)
            for key, part in value.items()
            if key not in _NOT_COMPARED and not str(key).endswith(_SECONDS)
        }
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return [hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()]
    if isinstance(value, np.generic):
        return value.item()
    return value


def _differences(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> list[str]:
    if before is None:
        return ["not in the file"]
    found = ["weights"] if before["weights"] != after["weights"] else []
    # As read from JSON, where tuples are lists.
    shown = json.loads(json.dumps(after["shown"]))
    return found + list(_paths(before["shown"], shown, "result"))[:5]


def _paths(before: Any, after: Any, path: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if key not in after or key not in before:
                yield f"{path}.{key} {'is new' if key in after else 'is gone'}"
            else:
                yield from _paths(before[key], after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _paths(old, new, f"{path}[{i}]")
    elif before != after and not (before != before and after != after):
        yield f"{path}: {before!r} became {after!r}"


if __name__ == "__main__":
    sys.exit(main())
