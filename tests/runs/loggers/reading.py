"""What the loggers recorded in a run folder, read back."""

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 1 << 15
Numbers = dict[str, list[tuple[int, float]]]
"""Name -> (step, number), in the order of the steps."""


def tensorboard(run: Path) -> Numbers:
    found: Numbers = {}
    for event in events(run):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def events(run: Path) -> list[Any]:
    """The events of all TensorBoard files; a record is: length, its checksum, event, its checksum."""
    from tensorboardX.proto import event_pb2

    found = []
    for file in sorted(run.glob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            found.append(event_pb2.Event.FromString(data[12 : 12 + length]))  # pyright: ignore[reportAttributeAccessIssue]
            data = data[16 + length :]
    return found


def csv_rows(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def from_csv(run: Path) -> Numbers:
    found: Numbers = {}
    for row in csv_rows(run):
        for name, text in row.items():
            if text and name != "step":
                found.setdefault(name, []).append((int(row["step"]), float(text)))
    return found


def json_lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def from_json_lines(run: Path) -> Numbers:
    found: Numbers = {}
    for line in json_lines(run):
        for name, value in line.items():
            if name != "step" and not isinstance(value, str):
                found.setdefault(name, []).append((line["step"], value))
    return found


def wandb_records(run: Path) -> list[Any]:
    """The records of the offline runs in a run folder, oldest first."""
    from wandb.proto import wandb_internal_pb2

    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    parse = wandb_internal_pb2.Record.FromString  # pyright: ignore[reportAttributeAccessIssue]
    return [parse(data) for file in files for data in _leveldb_log(file.read_bytes())]


def _leveldb_log(content: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, in which a record may be in parts, and none crosses a block."""
    at, parts = 7, b""  # after the header of W&B
    while at < len(content):
        left = _BLOCK - at % _BLOCK
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)  # after the checksum
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield parts
            parts = b""


def wandb(*runs: Path) -> Numbers:
    found: Numbers = {}
    for record in (record for run in runs for record in wandb_records(run)):
        items = record.history.item
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for name, value in row.items():
            if isinstance(value, int | float) and not name.startswith("_"):
                found.setdefault(name, []).append((row["timesteps_total"], value))
    return found


def mlflow(store: str, run_id: str) -> Numbers:
    from mlflow import MlflowClient

    client = MlflowClient(store)
    names = client.get_run(run_id).data.metrics
    histories = {name: client.get_metric_history(run_id, name) for name in names}
    return {name: [(metric.step, metric.value) for metric in found] for name, found in histories.items()}
