"""Saved folders are complete or absent, even if a save is killed or fails, and damaged folders are refused."""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollax.core import storage
from rollax.errors import CheckpointError
from tests.env.refused import raised, refused
from tests.python_process import output_of

FILES = {"state.json": b'{"steps": 3}\n', "weights.safetensors": bytes(range(256)) * 40, "empty": b""}


def save(path: Path, files: dict[str, bytes] = FILES, *, format_version: int = 2) -> Path:
    return storage.write_directory(path, files, kind="policy", format_version=format_version)


def load(path: Path) -> dict[str, bytes]:
    return storage.read_directory(path, kind="policy", format_version=2)


def test_written_files_are_read_again(tmp_path: Path):
    path = save(tmp_path / "runs" / "new" / "policy_1")
    assert path == tmp_path / "runs" / "new" / "policy_1"
    assert load(path) == FILES
    assert sorted(os.listdir(path)) == sorted([*FILES, "manifest.json"])
    assert os.listdir(path.parent) == ["policy_1"]
    files = {name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)} for name, data in FILES.items()}
    manifest = json.loads((path / "manifest.json").read_bytes())
    assert manifest == {"format_version": 2, "kind": "policy", "files": files}


def test_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert save(Path("policy_1")) == tmp_path / "policy_1"
    assert load(Path("policy_1")) == FILES


def test_older_formats_are_read_and_their_version_is_known(tmp_path: Path):
    path = save(tmp_path / "p", format_version=1)
    assert load(path) == FILES
    assert storage.read_manifest(path)["format_version"] == 1


@pytest.mark.parametrize("in_the_way", ["folder", "empty folder", "file", "dangling link"])
def test_existing_folders_are_not_overwritten(tmp_path: Path, in_the_way: str):
    path = tmp_path / "p"
    if in_the_way == "folder":
        save(path)
    elif in_the_way == "empty folder":
        path.mkdir()
    elif in_the_way == "file":
        path.write_bytes(b"mine")
    else:
        path.symlink_to(tmp_path / "gone")
    raised(CheckpointError, save, path, {"other": b""}, says="exists")
    assert os.listdir(tmp_path) == ["p"]
    assert in_the_way != "folder" or load(path) == FILES


WEIGHTS, MANIFEST = "weights.safetensors", "manifest.json"
SECRET = {"sha256": hashlib.sha256(b"secret").hexdigest(), "size": 6}


def rewritten(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    """Damage to the content of a file."""
    return lambda path: (path / name).write_bytes(change((path / name).read_bytes()))


def with_entries(**entries: Any) -> Callable[[Path], Any]:
    """A manifest with other entries."""
    return rewritten(MANIFEST, lambda content: json.dumps({**json.loads(content), **entries}).encode())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rewritten(WEIGHTS, lambda old: old[:77] + bytes([old[77] ^ 1]) + old[78:]), "weights.safetensors...SHA-256"),
        (rewritten(WEIGHTS, lambda old: old[:-1]), "weights.safetensors...10239 bytes...10240 bytes"),
        (rewritten(WEIGHTS, lambda old: old + b"\0"), "weights.safetensors...10241 bytes"),
        (lambda path: (path / WEIGHTS).unlink(), "weights.safetensors...no such file"),
        (rewritten(MANIFEST, lambda old: old[:50]), "manifest.json"),
        (rewritten(MANIFEST, lambda old: b"[1, 2]"), "manifest.json"),
        (with_entries(files=[WEIGHTS]), "manifest.json"),
        (with_entries(format_version=None), "manifest.json"),
        (with_entries(files={"../secret": SECRET}), "manifest.json"),
    ],
    ids=["bit", "truncated", "longer", "missing", "half", "list", "no files", "no version", "a way out"],
)
def test_damage_is_refused(tmp_path: Path, damage: Callable[[Path], Any], message: str):
    (tmp_path / "secret").write_bytes(b"secret")
    path = save(tmp_path / "p")
    damage(path)
    refused(CheckpointError, load, path, says=f"damaged...{message}")


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path):
    path = save(tmp_path / "p")
    (path / MANIFEST).unlink()
    refused(CheckpointError, load, path, says="never completed...no manifest.json")


def test_other_kinds_newer_formats_and_missing_folders_are_refused(tmp_path: Path):
    path = save(tmp_path / "p", format_version=3)
    refused(CheckpointError, load, path, says="newer format...format 3...format 2 or older")
    says = "different kind...policy...checkpoint"
    refused(CheckpointError, storage.read_directory, path, kind="checkpoint", format_version=3, says=says)
    refused(CheckpointError, load, tmp_path / "gone", says="no such folder")


class Disk:
    """Records the calls that change the disk, and fails at one of them."""

    CALLS = ("mkdir", "open", "write", "fsync", "rename")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.fail_at: int | None = None
        self.error: BaseException = OSError(errno.ENOSPC, "No space left on device")
        self._names: dict[int, str] = {}
        for call in self.CALLS:
            monkeypatch.setattr(storage.os, call, self._wrapped(call, getattr(os, call)))

    def _wrapped(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if call == "open" and not args[1] & os.O_CREAT:
                return self._opened(args[0], real(*args, **kwargs))
            name = self._names[args[0]] if call in ("write", "fsync") else Path(args[0]).name
            self.log.append(f"{call} {'tmp' if name.endswith('.tmp') else name}")
            if self.fail_at == len(self.log) - 1:
                raise self.error
            result = real(*args, **kwargs)
            return self._opened(args[0], result) if call == "open" else result

        return wrapped

    def _opened(self, path: Any, descriptor: int) -> int:
        self._names[descriptor] = Path(path).name
        return descriptor


def test_every_file_is_synced_before_the_folder_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "runs").mkdir()
    disk = Disk(monkeypatch)
    save(tmp_path / "runs" / "p", {"a": b"1", "b": b"2"})
    files = [f"{call} {name}" for name in ("a", "b", "manifest.json") for call in ("open", "write", "fsync")]
    assert disk.log == ["mkdir tmp", *files, "fsync tmp", "rename tmp", "fsync runs"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write = os.write
    monkeypatch.setattr(storage.os, "write", lambda descriptor, data: write(descriptor, data[:1000]))
    assert load(save(tmp_path / "p")) == FILES


@pytest.mark.parametrize(
    ("error", "raised", "fix"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), CheckpointError, "free some space"),
        (OSError(errno.EROFS, "Read-only file system"), CheckpointError, "can be written"),
        (PermissionError(errno.EACCES, "Permission denied"), CheckpointError, "may write to"),
        (OSError(errno.EIO, "Input/output error"), CheckpointError, "Input/output"),
        (KeyboardInterrupt(), KeyboardInterrupt, None),
    ],
)
def test_an_error_at_any_call_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, raised: type[BaseException], fix: str | None
):
    older = save(tmp_path / "p_1")
    disk = Disk(monkeypatch)
    save(tmp_path / "p_2")
    calls = len(disk.log)
    assert calls == 15  # mkdir; open, write and sync of 4 files, one of them empty; sync, rename, sync
    for call in range(calls):
        disk.log, disk.fail_at, disk.error = [], call, error
        with pytest.raises(raised, match=fix) as caught:
            save(tmp_path / "p_3")
        assert raised is KeyboardInterrupt or caught.value.__cause__ is error
        assert sorted(os.listdir(tmp_path)) == ["p_1", "p_2"], disk.log
    disk.fail_at = None
    assert load(save(tmp_path / "p_3")) == load(older) == FILES


def test_a_file_where_a_folder_should_be_is_refused(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file" / "p", tmp_path / "file" / "sub" / "p"):
        raised(CheckpointError, save, path, says="could not be saved")
    raised(CheckpointError, storage.newest, tmp_path / "file", "p_", says="cannot be read")


def test_a_file_system_that_cannot_sync_folders_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fsync = os.fsync

    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(storage.os, "fsync", only_files)
    assert load(save(tmp_path / "p")) == FILES


def test_the_error_for_a_folder_with_checkpoints_names_the_newest(tmp_path: Path):
    for name in ("p_000002", "p_000010", "p_000009"):
        save(tmp_path / "run" / "checkpoints" / name)
    (tmp_path / "run" / "checkpoints" / "p_000011").mkdir()  # no manifest
    (tmp_path / "run" / "checkpoints" / ".p_000012.0123abcd.tmp").mkdir()
    (tmp_path / "run" / "checkpoints" / ".p_000012.0123abcd.tmp" / "manifest.json").write_bytes(b"{}")
    for path in (tmp_path / "run" / "checkpoints", tmp_path / "run"):
        with pytest.raises(CheckpointError, match="a saved folder inside it: .*p_000010$"):
            load(path)
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="check the path$"):
            load(path)


def test_newest_uses_the_number_in_the_name(tmp_path: Path):
    assert storage.newest(tmp_path / "gone", "p_") is None
    assert storage.newest(tmp_path, "p_") is None
    for name in ("p_9", "p_10", "p_000002", "q_99", "p_100x", "xp_100", "p_", "p_-300", "p_1.tmp"):
        save(tmp_path / name)
    (tmp_path / "p_11").mkdir()  # no manifest
    (tmp_path / "p_12").write_bytes(b"")
    (tmp_path / ".p_13.0123abcd.tmp").mkdir()
    (tmp_path / ".p_13.0123abcd.tmp" / "manifest.json").write_bytes(b"{}")
    os.utime(tmp_path / "p_9")
    assert storage.newest(tmp_path, "p_") == tmp_path / "p_10"
    assert storage.newest(str(tmp_path), "q_") == tmp_path / "q_99"
    assert storage.newest(tmp_path, "p.") is None


def test_a_save_removes_the_remains_of_a_killed_save_of_its_name(tmp_path: Path):
    mine, others = tmp_path / ".p_3.0123abcd.tmp", [".p_4.0123abcd.tmp", ".p_3.notes.tmp", "p_3.0123abcd.tmp"]
    for name in (mine, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(b"half")
    save(tmp_path / "p_3")
    assert sorted(os.listdir(tmp_path)) == sorted(["p_3", *others])


def test_a_save_that_fails_leaves_that_of_another_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = Disk(monkeypatch)
    (tmp_path / ".p_3.0123abcd.tmp").mkdir()
    disk.log.clear()
    disk.fail_at = 2
    raised(CheckpointError, save, tmp_path / "p_3", says="No space left")
    assert os.listdir(tmp_path) == [".p_3.0123abcd.tmp"]


# Runs in its own process, because forking a process with threads is not safe. Every child continues the saves of the
# last one. The first children are killed at each call that changes the disk, the others at random moments.
KILLS = """
import os, random, signal, sys, time
from rollax.core import storage

folder, rng = sys.argv[1], random.Random(5)

def save_on(die_at):
    calls = 0
    def counted(real):
        def call(*args, **kwargs):
            nonlocal calls
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return real(*args, **kwargs)
        return call
    if die_at is not None:
        for name in ("mkdir", "open", "write", "fsync", "rename", "close"):
            setattr(os, name, counted(getattr(os, name)))
    last = storage.newest(folder, "c_")
    for number in range(int(last.name[2:]) + 1 if last else 1, 1000000):
        files = {f"file{i}": number.to_bytes(4, "little") * 5000 for i in range(3)}
        storage.write_directory(os.path.join(folder, f"c_{number}"), files, kind="c", format_version=1)

reached, halves, seen = 0, 0, 0
for die_at in [*range(50), *[None] * 20]:
    child = os.fork()
    if not child:
        save_on(die_at)
        os._exit(3)
    if die_at is None:
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    halves += die_at is not None and any(name.endswith(".tmp") for name in os.listdir(folder))
    last = storage.newest(folder, "c_")
    if last is not None:
        number = int(last.name[2:])
        assert number >= reached, (number, reached)
        reached, seen = number, seen + 1
        for name in [last.name] if die_at is not None else [n for n in os.listdir(folder) if n.startswith("c_")]:
            files = storage.read_directory(os.path.join(folder, name), kind="c", format_version=1)
            assert set(files.values()) == {int(name[2:]).to_bytes(4, "little") * 5000}, name
print(reached, halves, seen)
"""


def test_the_newest_folder_loads_whenever_a_save_is_killed(tmp_path: Path):
    reached, halves, seen = map(int, output_of("-c", KILLS, tmp_path).split())
    # Otherwise no kill came during a save, or none after one, and the test would show nothing.
    assert reached > 10
    assert halves > 20
    assert seen > 30
    # Killed saves leave temporary folders with the number of the next save, which removes them once it is complete.
    save(tmp_path / f"c_{reached + 1}")
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch):
    """Fails as soon as a large file is read."""

    def read_bytes(file: Path) -> bytes:
        assert file.stat().st_size < 1 << 20
        with open(file, "rb") as opened:
            return opened.read()

    monkeypatch.setattr(Path, "read_bytes", read_bytes)


def with_size(path: Path, name: str, size: int) -> None:
    """Makes a file of a saved folder sparse, with a manifest that matches its size."""
    os.truncate(path / name, size)
    manifest = json.loads((path / "manifest.json").read_bytes())
    manifest["files"][name]["size"] = size
    (path / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.usefixtures("no_reading")
@pytest.mark.parametrize("name", ["state.json", "weights.safetensors", "manifest.json"])
@pytest.mark.parametrize("size", [100 << 30, 1 << 30])
def test_files_of_nothing_are_refused_before_they_are_read(tmp_path: Path, name: str, size: int):
    path = save(tmp_path / "a")
    if name == "manifest.json":
        os.truncate(path / name, size)
    else:
        with_size(path, name, size)
    refused(CheckpointError, load, path)


@pytest.mark.usefixtures("no_reading")
def test_files_beyond_the_memory_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = save(tmp_path / "a")
    monkeypatch.setattr(storage, "available_memory_bytes", lambda: 5000)
    refused(CheckpointError, load, path, says="memory")


def test_json_that_would_not_be_read_again_is_not_written():
    storage.to_json_bytes("x" * (63 << 20))
    raised(CheckpointError, storage.to_json_bytes, "x" * (65 << 20), says="bytes")


def test_half_of_a_surrogate_pair_is_no_text():
    """It could be neither stored again nor printed."""
    read = storage.from_json_bytes
    assert read(b'["\\ud83d\\ude00"]') == ["\N{GRINNING FACE}"]
    for text in (b'["\\ud83d"]', b'{"\\uDE00": 1}', '"\ud800"'.encode("utf-8", "surrogatepass")):
        raised(CheckpointError, read, text)
