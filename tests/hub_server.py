"""A stand-in for the Hugging Face hub: its HTTP API as ``huggingface_hub`` uses it, for one dataset owner.

Create a repository, look up how files are sent, send large ones through the Git LFS batch API (in one part or in
several), commit, list, download. Large files are kept by their SHA-256 as the hub keeps them, whether or not a commit
names them yet: that is what makes an interrupted upload resumable. The server can be set to hang up on uploads.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

TOKEN = "hf_invented"
LARGE = re.compile(r".*\.(arrow|safetensors)")
"""The patterns of large files in the hub's own .gitattributes."""
PART_BYTES = 40_000
"""Larger files are sent in parts of this size; the hub's parts have megabytes."""
ATTRIBUTES = b"*.arrow filter=lfs diff=lfs merge=lfs -text\n*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


class Refused(Exception):
    """An answer that is an error: its status, a message, and the hub's code for it."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Commit:
    """One commit: all files of the repository after it, and which of them it changed or removed."""

    oid: str
    summary: str
    files: dict[str, bytes]
    changed: frozenset[str]
    removed: frozenset[str]


@dataclass
class Repository:
    private: bool
    commits: list[Commit] = field(default_factory=list)

    @property
    def head(self) -> Commit:
        return self.commits[-1]

    def add(self, summary: str, changes: dict[str, bytes], removed: set[str]) -> Commit:
        before = self.head.files if self.commits else {}
        files = {path: data for path, data in before.items() if path not in removed} | changes
        oid = hashlib.sha1(f"{len(self.commits)} {summary}".encode()).hexdigest()
        self.commits.append(Commit(oid, summary, files, frozenset(changes), frozenset(removed)))
        return self.head

    def at(self, revision: str) -> Commit:
        for commit in self.commits:
            if commit.oid == revision:
                return commit
        if revision != "main":
            raise Refused(404, f"no revision {revision}", "RevisionNotFound")
        return self.head


class Hub(ThreadingHTTPServer):
    """The state behind the API. ``uploads`` has the hash of every large file that arrived, in order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.uploads: list[str] = []
        self.requests: list[str] = []
        self.hang_up_after: int | None = None
        """How many large files may arrive, in one part or in several; every upload of another is hung up on."""
        self.admitted: set[str] = set()
        self.before_commit: Callable[[Repository], object] = lambda repository: None
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def admits(self, oid: str) -> bool:
        """Whether this large file may arrive. The client sends several at a time, so the first part decides."""
        with self.lock:
            if self.hang_up_after is None or len(self.admitted) < self.hang_up_after:
                self.admitted.add(oid)
            return oid in self.admitted

    def store(self, oid: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != oid:
            raise Refused(422, "the content is not the one that was announced")
        with self.lock:
            self.large[oid] = data
            self.uploads.append(oid)


class Handler(BaseHTTPRequestHandler):
    """Answers one request; ``routes`` lists the methods."""

    protocol_version = "HTTP/1.1"
    server: Hub  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        path, self.query = unquote(parts.path), parse_qs(parts.query)
        self.body = self.read_body()
        self.server.requests.append(f"{self.command} {path}")
        try:
            for method, pattern, answer in ROUTES:
                if self.command in method.split("|") and (match := re.fullmatch(pattern, path)):
                    answer(self, **match.groupdict())
                    return
            raise Refused(404, f"no such route: {self.command} {path}")
        except Refused as error:
            headers = {"X-Error-Code": error.code, "X-Error-Message": str(error)}
            self.reply({"error": str(error)}, error.status, headers)

    do_GET = do_HEAD = do_POST = do_PUT = handle_any

    def read_body(self) -> bytes:
        """The whole body, whether its length is announced or it comes in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def reply(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def repository(self, name: str, *, write: bool = False) -> Repository:
        """A private repository is not there for strangers, as on the hub."""
        found = self.server.repositories.get(name)
        if found is None or (found.private and not self.authorized):
            raise Refused(401, "Invalid username or password.", "RepoNotFound")
        if write and not self.authorized:
            raise Refused(401, "Invalid username or password.")
        return found

    # the answers, in the order of a push's requests

    def create(self) -> None:
        if not self.authorized:
            raise Refused(401, "Invalid username or password.")
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        assert asked["type"] == "dataset"
        url = {"url": f"{self.server.url}/datasets/{name}"}
        if name in self.server.repositories:
            self.reply(url | {"error": "You already created this dataset repo"}, 409)
            return
        private = asked.get("visibility") == "private" or asked.get("private", False)
        self.server.repositories[name] = Repository(private)
        self.server.repositories[name].add("initial commit", {".gitattributes": ATTRIBUTES}, set())
        self.reply(url)

    def info(self, name: str, revision: str | None = None) -> None:
        repository = self.repository(name)
        commit = repository.at(revision or "main")
        siblings = [{"rfilename": path} for path in commit.files]
        self.reply({"id": name, "sha": commit.oid, "private": repository.private, "siblings": siblings, "tags": []})

    def validate_yaml(self) -> None:
        """The card's header must be YAML, as the viewer needs it."""
        header = re.match(r"---\n(.*?)\n---\n", json.loads(self.body)["content"], re.DOTALL)
        try:
            content = yaml.safe_load(header[1]) if header else None
        except yaml.YAMLError as error:
            self.reply({"errors": [{"message": str(error)}], "warnings": []}, 400)
            return
        warnings = [] if isinstance(content, dict) else [{"message": "empty or missing yaml metadata"}]
        self.reply({"errors": [], "warnings": warnings})

    def preupload(self, name: str, revision: str) -> None:
        files = self.repository(name, write=True).at(revision).files
        answers = []
        for asked in json.loads(self.body)["files"]:
            path = asked["path"]
            large = LARGE.fullmatch(path) is not None
            oid = None
            if path in files:
                oid = hashlib.sha256(files[path]).hexdigest() if large else git_oid(files[path])
            answer = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            answers.append(answer | ({} if oid is None else {"oid": oid}))
        self.reply({"files": answers})

    def batch(self, name: str) -> None:
        """The address for each large file; none if its content is already stored."""
        self.repository(name, write=True)
        asked = json.loads(self.body)
        assert (asked["operation"], asked["hash_algo"]) == ("upload", "sha256")
        assert "application/vnd.git-lfs+json" in self.headers["Accept"]
        self.reply({"transfer": "multipart", "objects": [self.actions(each) for each in asked["objects"]]})

    def actions(self, wanted: dict[str, Any]) -> dict[str, Any]:
        oid, size = wanted["oid"], wanted["size"]
        if oid in self.server.large:
            return {"oid": oid, "size": size}
        base = f"{self.server.url}/lfs/{oid}"
        upload: dict[str, Any] = {"href": base}
        if size > PART_BYTES:
            count = -(-size // PART_BYTES)
            header = {str(part): f"{base}/{part}" for part in range(1, count + 1)}
            upload = {"href": f"{base}/complete", "header": {"chunk_size": str(PART_BYTES)} | header}
        return {"oid": oid, "size": size, "actions": {"upload": upload, "verify": {"href": f"{base}/verify"}}}

    def receive(self, oid: str, part: str | None = None) -> None:
        """A large file or a part of one."""
        if not self.server.admits(oid):
            self.close_connection = True
            return
        if part is None:
            self.server.store(oid, self.body)
        else:
            self.server.parts[oid, int(part)] = self.body
        self.reply(b"", headers={"ETag": hashlib.md5(self.body).hexdigest()})

    def complete(self, oid: str) -> None:
        parts = json.loads(self.body)["parts"]
        sent = [self.server.parts.pop((oid, each["partNumber"])) for each in parts]
        assert [each["etag"] for each in parts] == [hashlib.md5(data).hexdigest() for data in sent]
        self.server.store(oid, b"".join(sent))
        self.reply({})

    def verify(self, oid: str) -> None:
        if len(self.server.large.get(oid, b"")) != json.loads(self.body)["size"]:
            raise Refused(404, "the file did not arrive")
        self.reply({})

    def commit(self, name: str, revision: str) -> None:
        repository = self.repository(name, write=True)
        assert revision == "main"
        self.server.before_commit(repository)
        lines = [json.loads(line) for line in self.body.splitlines()]
        header, changes, removed = {}, {}, set()
        for key, value in ((line["key"], line["value"]) for line in lines):
            if key == "header":
                header = value
            elif key == "file":
                changes[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                if value["oid"] not in self.server.large:
                    raise Refused(400, f"{value['path']} was not uploaded")
                changes[value["path"]] = self.server.large[value["oid"]]
            else:
                assert key == "deletedFile"
                removed.add(value["path"])
        if header.get("parentCommit", repository.head.oid) != repository.head.oid:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        commit = repository.add(header["summary"], changes, removed)
        url = f"{self.server.url}/datasets/{name}/commit/{commit.oid}"
        self.reply({"success": True, "commitOid": commit.oid, "commitUrl": url, "hookOutput": ""})

    # and those of a download

    def tree(self, name: str, revision: str, folder: str | None = None) -> None:
        """All files below a folder; without ``recursive``, also its folders and not what is in them."""
        files = self.repository(name).at(revision).files
        prefix = f"{folder}/" if folder else ""
        below = {path: data for path, data in files.items() if path.startswith(prefix)}
        if self.query.get("recursive", ["false"])[0].lower() in ("true", "1"):
            self.reply([tree_entry(path, data) for path, data in below.items()])
            return
        here = [tree_entry(path, data) for path, data in below.items() if "/" not in path.removeprefix(prefix)]
        names = {path.removeprefix(prefix).split("/")[0] for path in below if "/" in path.removeprefix(prefix)}
        self.reply(here + [folder_entry(prefix + each) for each in sorted(names)])

    def paths_info(self, name: str, revision: str) -> None:
        files = self.repository(name).at(revision).files
        if self.headers.get("Content-Type", "").startswith("application/json"):
            asked = json.loads(self.body)["paths"]
        else:
            asked = parse_qs(self.body.decode())["paths"]
        folders = [path for path in asked if any(each.startswith(f"{path}/") for each in files)]
        entries = [tree_entry(path, files[path]) for path in asked if path in files]
        self.reply(
            [*entries, *({"type": "directory", "path": path, "oid": git_oid(path.encode())} for path in folders)]
        )

    def resolve(self, name: str, revision: str, path: str) -> None:
        commit = self.repository(name).at(revision)
        if path not in commit.files:
            raise Refused(404, f"no {path}", "EntryNotFound")
        data = commit.files[path]
        etag = hashlib.sha256(data).hexdigest() if LARGE.fullmatch(path) else git_oid(data)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit.oid, "Accept-Ranges": "bytes"}
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(wanted[1]), int(wanted[2] or len(data) - 1)
            part = data[first : last + 1]
            self.reply(part, 206, headers | {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"})
            return
        self.reply(data, headers=headers)


def tree_entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": git_oid(data)}
    if LARGE.fullmatch(path):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


def folder_entry(path: str) -> dict[str, Any]:
    return {"type": "directory", "path": path, "oid": git_oid(path.encode())}


def git_oid(data: bytes) -> str:
    """The name that git gives to this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("POST", "/api/repos/create", Handler.create),
    ("POST", "/api/validate-yaml", Handler.validate_yaml),
    ("GET", f"/api/datasets/{NAME}", Handler.info),
    ("GET", f"/api/datasets/{NAME}/revision/(?P<revision>\\w+)", Handler.info),
    ("POST", f"/api/datasets/{NAME}/preupload/(?P<revision>\\w+)", Handler.preupload),
    ("POST", f"/api/datasets/{NAME}/commit/(?P<revision>\\w+)", Handler.commit),
    ("GET", f"/api/datasets/{NAME}/tree/(?P<revision>\\w+)(/(?P<folder>.+))?", Handler.tree),
    ("POST", f"/api/datasets/{NAME}/paths-info/(?P<revision>\\w+)", Handler.paths_info),
    ("POST", f"/datasets/{NAME}.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", r"/lfs/(?P<oid>\w+)(/(?P<part>\d+))?", Handler.receive),
    ("POST", r"/lfs/(?P<oid>\w+)/complete", Handler.complete),
    ("POST", r"/lfs/(?P<oid>\w+)/verify", Handler.verify),
    ("GET|HEAD", f"/datasets/{NAME}/resolve/(?P<revision>\\w+)/(?P<path>.+)", Handler.resolve),
]


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub on a port of this machine, until the ``with`` ends."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
