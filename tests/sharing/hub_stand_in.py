"""A local stand-in of the Hugging Face Hub: the part of its HTTP interface that huggingface_hub uses for sharing."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_of_the_tests"


@dataclass
class Repository:
    """The files of one model repository; each commit is a new `sha`."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that the listing states instead of the real ones."""
    commits: int = 0

    @property
    def sha(self) -> str:
        return hashlib.sha1(str(self.commits).encode(), usedforsecurity=False).hexdigest()


class HubStandIn:
    """The server: `url`, and `repositories` by name."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.cards: list[dict[str, Any]] = []
        """The metadata of the model cards that were sent for validation."""
        hub = self

        class Handler(_Handler):
            stand_in = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def running() -> Iterator[HubStandIn]:
    hub = HubStandIn()
    thread = Thread(target=hub.server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.server.shutdown()
        hub.server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    stand_in: HubStandIn
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts == ["api", "validate-yaml"]:
            _, front, _ = json.loads(body)["content"].split("---\n", 2)
            self.stand_in.cards.append(yaml.safe_load(front))
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._json({"error": "Invalid username or password."}, 401)
        if parts == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        if parts[4] == "preupload":
            regular = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return self._json({"files": [{"path": file["path"], **regular} for file in json.loads(body)["files"]]})
        assert parts[4] == "commit", self.path
        return self._commit(f"{parts[2]}/{parts[3]}", [json.loads(line) for line in body.splitlines()])

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[:2] == ["api", "models"]:
            repository = self._repository(f"{parts[2]}/{parts[3]}")
            if repository is None:
                return None
            files = repository.files.items()
            if parts[4:5] == ["tree"]:
                sized = [(name, len(content), _oid(content)) for name, content in files]
                return self._json([{"type": "file", "path": a, "size": b, "oid": c} for a, b, c in sized])
            siblings = [
                {"rfilename": name, "size": repository.sizes.get(name, len(content)), "blobId": _oid(content)}
                for name, content in files
            ]
            about = {"id": f"{parts[2]}/{parts[3]}", "sha": repository.sha, "private": repository.private}
            return self._json({**about, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})
        repository = self._repository(f"{parts[0]}/{parts[1]}")
        if repository is None:
            return None
        assert parts[2:4] == ["resolve", repository.sha], self.path
        content = repository.files["/".join(parts[4:])]
        return self._send(200, content, {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": repository.sha})

    do_HEAD = do_GET  # noqa: N815

    def _repository(self, name: str) -> Repository | None:
        found = self.stand_in.repositories.get(name)
        if found is None or (found.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            self._send(401, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            return None
        return found

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        there = name in self.stand_in.repositories
        private = asked.get("private") or asked.get("visibility") == "private"
        self.stand_in.repositories.setdefault(name, Repository(private))
        self._json({"url": f"{self.stand_in.url}/{name}", "name": name}, 409 if there else 200)

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        repository = self.stand_in.repositories[name]
        assert lines[0]["key"] == "header"
        for line in lines[1:]:
            if line["key"] == "deletedFile":
                del repository.files[line["value"]["path"]]
            else:
                assert line["key"] == "file", line
                repository.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        repository.commits += 1
        url = f"{self.stand_in.url}/{name}/commit/{repository.sha}"
        self._json({"commitOid": repository.sha, "commitUrl": url, "hookOutput": ""})

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, text in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def _oid(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
