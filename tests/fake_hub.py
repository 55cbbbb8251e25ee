"""A Hugging Face Hub on loopback: datasets, LFS, commits with a parent, tags; for the real `huggingface_hub`.

It follows what the client of that package asks for. Repositories are in memory; a commit has all its files.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_TOKEN = "Bearer hf_lab"
_API = re.compile(
    r"/api/datasets/(?P<name>[^/]+/[^/]+)(?:/(?P<what>preupload|commit|tag|revision|refs)(?:/(?P<at>[^/]+))?)?"
)
_TREE = re.compile(r"/api/datasets/(?P<name>[^/]+/[^/]+)/tree/(?P<at>[^/]+)(?:/(?P<path>.+))?")
_LFS = re.compile(r"/datasets/(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch")
_FILE = re.compile(r"/datasets/(?P<name>[^/]+/[^/]+)/resolve/(?P<at>[^/]+)/(?P<path>.+)")


@dataclass
class Dataset:
    """A repository: its commits, the last of which is `main`, and its tags.

    Attributes:
        gated: whether only users with `allowed` tokens may read its files.
    """

    name: str
    private: bool
    gated: bool = False
    allowed: set[str] = field(default_factory=set)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def head(self) -> str:
        """The newest commit."""
        return list(self.commits)[-1]

    def add(self, files: dict[str, bytes]) -> str:
        """Add a commit with exactly these files."""
        oid = sha1(f"{len(self.commits)} {sorted(files)}".encode()).hexdigest()
        self.commits[oid] = files
        return oid

    def find(self, revision: str) -> str | None:
        """The commit of a revision; None if there is none."""
        known = {"main": self.head, **self.tags, **{oid: oid for oid in self.commits}}
        return known.get(unquote(revision))


class FakeHub(ThreadingHTTPServer):
    """The server; `url` is its endpoint.

    Attributes:
        datasets: by name.
        blobs: contents of LFS, by SHA-256.
        requests: method and path of each request.
        tokens: that it knows, as headers; any other is refused.
        before: called with these before a request is answered; returns a status to answer it with, alone or
            with a message, or None. A negative status is answered after the request was done.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.datasets: dict[str, Dataset] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str], int | tuple[int, str] | None] = lambda method, path: None
        self.tokens = {_TOKEN}
        self.lock = threading.RLock()
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that died."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def close(self) -> None:
        """Stop."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, status: int, content: Any = b"", **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(getattr(self, "spoiled", None) or status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(data)),
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _error(self, status: int, code: str) -> None:
        self._answer(status, {"error": code}, X_Error_Code=code, X_Error_Message=code)

    def _handle(self) -> None:
        path = urlsplit(self.path).path
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        if len(body) < int(self.headers.get("Content-Length") or 0):
            self.close_connection = True  # the client died
            return None
        self.server.requests.append((self.command, path))
        status = self.server.before(self.command, path)
        if isinstance(status, tuple):
            return self._error(*status)
        if status is not None and status > 0:
            return self._answer(status, {"error": "on purpose"})
        self.spoiled = None if status is None else -status
        with self.server.lock:
            self._route(path, body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle

    def _route(self, path: str, body: bytes) -> None:
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        token = self.headers.get("Authorization")
        if token not in (None, *self.server.tokens):
            problem = "Invalid credentials in Authorization header"
            return self._answer(401, {"error": problem}, X_Error_Message=problem)
        if path == "/api/datasets":
            return self._list(parse_qs(urlsplit(self.path).query))
        if path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if path.startswith("/blobs/"):
            assert sha256(body).hexdigest() == path[7:]
            self.server.blobs[path[7:]] = body
            return self._answer(200)
        match = _API.fullmatch(path) or _TREE.fullmatch(path) or _LFS.fullmatch(path) or _FILE.fullmatch(path)
        dataset = self.server.datasets.get(match["name"]) if match else None
        if match is None or dataset is None:
            return self._error(404, "RepoNotFound")
        if not self._may_see(dataset):
            return self._error(401, "RepoNotFound") if token is None else self._error(404, "RepoNotFound")
        if dataset.gated and match.re is _FILE and token not in dataset.allowed:
            return self._error(403 if token else 401, "GatedRepo")
        if match.re is _API and match["what"] == "refs":
            return self._refs(dataset)
        if self.command == "DELETE" and match["what"] == "tag":
            found = dataset.tags.pop(unquote(match["at"]), None)
            return self._answer(200) if found else self._error(404, "RevisionNotFound")
        if match.re is _LFS:
            return self._batch(json.loads(body))
        commit = dataset.find(match["at"] or "main")
        if commit is None:
            return self._error(404, "RevisionNotFound")
        if match.re is _TREE:
            return self._tree(dataset.commits[commit], unquote(match["path"] or ""))
        if match.re is _FILE:
            return self._file(dataset, commit, unquote(match["path"]))
        work = {"preupload": self._preupload, "commit": self._commit, "tag": self._tag}.get(
            match["what"] or ""
        )
        if work is not None:
            return work(dataset, commit, body)
        return self._answer(200, self._about(dataset, commit))

    def _may_see(self, dataset: Dataset) -> bool:
        return not dataset.private or self.headers.get("Authorization") in (_TOKEN, *dataset.allowed)

    def _list(self, asked: dict[str, list[str]]) -> None:
        owner = f"{asked['author'][0]}/"
        seen = [each for each in self.server.datasets.values() if self._may_see(each)]
        self._answer(200, [self._about(each, each.head) for each in seen if each.name.startswith(owner)])

    def _about(self, dataset: Dataset, commit: str) -> dict[str, Any]:
        names = [{"rfilename": name} for name in sorted(dataset.commits[commit])]
        return {
            "id": dataset.name,
            "sha": commit,
            "private": dataset.private,
            "gated": "manual" if dataset.gated else False,
            "siblings": names,
        }

    def _refs(self, dataset: Dataset) -> None:
        def ref(kind: str, name: str, commit: str) -> dict[str, str]:
            return {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit}

        tags = [ref("tags", name, commit) for name, commit in dataset.tags.items()]
        self._answer(200, {"branches": [ref("heads", "main", dataset.head)], "converts": [], "tags": tags})

    def _tree(self, files: dict[str, bytes], folder: str) -> None:
        """Answer with what is in a folder, or with all below it."""
        deep = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() in ("true", "1")
        entries: dict[str, dict[str, Any]] = {}
        for name, data in files.items():
            if folder and not name.startswith(f"{folder}/"):
                continue
            parts = name.removeprefix(f"{folder}/" if folder else "").split("/")
            for depth in range(1, len(parts) if deep else 2):
                path = "/".join([*([folder] if folder else []), *parts[:depth]])
                if path != name:
                    entries[path] = {
                        "type": "directory",
                        "path": path,
                        "size": 0,
                        "oid": sha1(path.encode()).hexdigest(),
                    }
            if deep or len(parts) == 1:
                entries[name] = {
                    "type": "file",
                    "path": name,
                    "size": len(data),
                    "oid": sha1(data).hexdigest(),
                }
        if folder and not entries:
            return self._error(404, "EntryNotFound")
        return self._answer(200, list(entries.values()))

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        if name in self.server.datasets:
            return self._answer(409, {"error": "exists", "url": f"{self.server.url}/datasets/{name}"})
        dataset = self.server.datasets[name] = Dataset(
            name, asked.get("visibility") == "private" or bool(asked.get("private"))
        )
        dataset.add({".gitattributes": b"*.parquet filter=lfs\n"})
        return self._answer(200, {"url": f"{self.server.url}/datasets/{name}", "name": name})

    def _preupload(self, dataset: Dataset, commit: str, body: bytes) -> None:
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".parquet") else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self._answer(200, {"files": modes})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for each in asked["objects"]:
            href = {"href": f"{self.server.url}/blobs/{each['oid']}"}
            known = each["oid"] in self.server.blobs
            objects.append({**each, **({} if known else {"actions": {"upload": href}})})
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, dataset: Dataset, commit: str, body: bytes) -> None:
        files = dict(dataset.commits[dataset.head])
        for line in body.splitlines():
            entry = json.loads(line)
            key, value = entry["key"], entry["value"]
            if key == "header" and value.get("parentCommit") not in (None, dataset.head):
                return self._answer(
                    412, {"error": "A commit has happened since. Please refresh and try again."}
                )
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
        oid = dataset.add(files)
        url = f"{self.server.url}/datasets/{dataset.name}/commit/{oid}"
        self._answer(200, {"success": True, "commitOid": oid, "commitUrl": url})

    def _tag(self, dataset: Dataset, commit: str, body: bytes) -> None:
        name = json.loads(body)["tag"]
        if name in dataset.tags:
            return self._answer(409, {"error": "Tag reference exists already"})
        dataset.tags[name] = commit
        self._answer(200)

    def _file(self, dataset: Dataset, commit: str, path: str) -> None:
        data = dataset.commits[commit].get(path)
        if data is None:
            return self._error(404, "EntryNotFound")
        etag = f'"{sha256(data).hexdigest()}"'
        self._answer(
            200, data, X_Repo_Commit=commit, ETag=etag, X_Linked_Etag=etag, X_Linked_Size=str(len(data))
        )
