"""A small Hugging Face hub on 127.0.0.1: what huggingface_hub needs to list, download and upload repositories.

``with FakeHub() as hub: hub.add("org/tiny", {"config.json": b"{}"})``; a command under test runs with
``env=os.environ | hub.env(tmp_path)``, for huggingface_hub reads its variables when it is imported. The names of
dataset repositories begin with ``datasets/``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REPO = r"(?P<repo>[^/]+/[^/]+)"
REVISION = r"(?P<revision>[^/]+)"
"""One segment: huggingface_hub quotes the / of refs/pr/1."""
PAGE = 1000


@dataclass
class Repo:
    """A repository: the files of each commit, and branches and tags by name."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    """Reading needs the token; without one the answer is that the licence was not accepted."""
    private: bool = False
    """Reading needs the token; without one the repository does not exist."""

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """The hash of a new commit, whose parent is the branch's, with exactly these files."""
        seed = json.dumps([len(self.commits), self.branches.get(branch), sorted(files)])
        sha = hashlib.sha1(seed.encode() + b"".join(files[name] for name in sorted(files))).hexdigest()
        self.commits[sha] = dict(files)
        self.branches[branch] = sha
        return sha

    def resolve(self, revision: str) -> str | None:
        sha = self.branches.get(revision) or self.tags.get(revision, revision)
        return sha if sha in self.commits else None


def blob_id(content: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below the folder, for `FakeHub.add`."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class FakeHub:
    """The server, which runs in a thread while the ``with`` block does."""

    token = "hf_of_the_tests"

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.requests: list[str] = []
        """``METHOD PATH`` of each request."""
        self.read_only: set[str] = set()
        """Organisations that the token may not write to."""
        self.objects: dict[str, bytes] = {}
        """Large files by their SHA-256, of a commit or not yet."""
        self.before_object = threading.Event()
        self.may_store = threading.Event()
        """The first is set when a large file arrives, which is not stored before the second is."""
        self.may_store.set()
        self.broken = 0
        """A status that every request is answered with, while it is not 0."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def env(self, home: Path, *, token: bool = False) -> dict[str, str]:
        """Environment variables of a process that shall use this hub, and a cache below ``home``."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home / "hf"),
            "HF_TOKEN": self.token if token else "",
            "HF_HUB_CACHE": str(home / "hf" / "hub"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "MPRM_CACHE": str(home / "mprm"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def add(self, name: str, files: dict[str, bytes], **fields: Any) -> Repo:
        """A new repository with one commit on its branch main."""
        repo = self.repos[name] = Repo(**fields)
        repo.commit(files)
        return repo

    def __enter__(self) -> FakeHub:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Finds the route of a request and answers it."""

    hub: FakeHub
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    ROUTES = (
        ("GET", rf"/api/(?P<kind>models|datasets)/{REPO}(?:/revision/{REVISION})?", "info"),
        ("GET", rf"/api/(?P<kind>models|datasets)/{REPO}/refs", "refs"),
        ("GET", rf"/api/(?P<kind>models|datasets)/{REPO}/tree/{REVISION}(?:/(?P<path>.+))?", "tree"),
        ("POST", rf"/api/(?P<kind>models|datasets)/{REPO}/paths-info/{REVISION}", "paths_info"),
        ("GET", rf"/(?:(?P<kind>datasets)/)?{REPO}/resolve/{REVISION}/(?P<path>.+)", "resolve"),
        ("HEAD", rf"/(?:(?P<kind>datasets)/)?{REPO}/resolve/{REVISION}/(?P<path>.+)", "resolve"),
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate_yaml"),
        ("POST", rf"/api/(?P<kind>models|datasets)/{REPO}/branch/{REVISION}", "make_branch"),
        ("POST", rf"/api/(?P<kind>models|datasets)/{REPO}/preupload/{REVISION}", "preupload"),
        ("POST", rf"/(?:(?P<kind>datasets)/)?{REPO}\.git/info/lfs/objects/batch", "batch"),
        ("PUT", r"/objects/(?P<oid>[0-9a-f]{64})", "store"),
        ("POST", rf"/api/(?P<kind>models|datasets)/{REPO}/commit/{REVISION}", "commit"),
    )
    """Method, path and name of the method that answers; the first that fits does."""

    def log_message(self, *_: object) -> None:
        pass

    def route(self) -> None:
        self.body = self.read_body()
        url = urlsplit(self.path)
        self.query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        self.hub.requests.append(f"{self.command} {url.path}")
        if self.hub.broken:
            self.send(self.hub.broken, b"")
            return
        for method, pattern, name in self.ROUTES:
            if self.command == method and (match := re.fullmatch(pattern, url.path)):
                parts = {key: None if value is None else unquote(value) for key, value in match.groupdict().items()}
                getattr(self, name)(**parts)
                return
        self.error(404, "", f"no route for {self.command} {url.path}")

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = route

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value: Any) -> None:
        self.send(200, json.dumps(value).encode(), Content_Type="application/json")

    def error(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self.send(status, body, Content_Type="application/json", X_Error_Code=code, X_Error_Message=message)

    @property
    def has_token(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.hub.token}"

    def opened(self, kind: str | None, repo: str, revision: str | None) -> tuple[Repo, str] | None:
        """The repository and the commit, or None once an error is sent."""
        found = self.hub.repos.get(repo if kind in (None, "models") else f"{kind}/{repo}")
        if found is None or (found.private and not self.has_token):
            # as the hub does: it does not tell strangers which private repositories there are
            status = 404 if self.has_token else 401
            self.error(
                status, "RepoNotFound", "Repository not found" if self.has_token else "Invalid username or password."
            )
        elif found.gated and not self.has_token and "/api/" not in self.path:
            self.error(401, "GatedRepo", f"Access to {repo} is restricted. You must be authenticated to access it.")
        elif (sha := found.resolve(revision or "main")) is None:
            self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return found, sha
        return None

    def info(self, kind: str, repo: str, revision: str | None) -> None:
        if opened := self.opened(kind, repo, revision):
            found, sha = opened
            siblings = [{"rfilename": name} for name in sorted(found.commits[sha])]
            gated = "manual" if found.gated else False
            fields = {"id": repo, "sha": sha, "private": found.private, "gated": gated, "siblings": siblings}
            self.send_json(fields | ({"modelId": repo} if kind == "models" else {}) | {"tags": [], "downloads": 0})

    def refs(self, kind: str, repo: str) -> None:
        if opened := self.opened(kind, repo, None):
            lists = {"branches": ("heads", opened[0].branches), "tags": ("tags", opened[0].tags)}
            self.send_json(
                {
                    key: [
                        {"name": name, "ref": f"refs/{what}/{name}", "targetCommit": sha}
                        for name, sha in refs.items()
                    ]
                    for key, (what, refs) in lists.items()
                }
                | {"converts": []}
            )

    def entry(self, files: dict[str, bytes], path: str) -> dict[str, Any] | None:
        """A file or folder as the tree lists it."""
        if path in files:
            return {"type": "file", "path": path, "size": len(files[path]), "oid": blob_id(files[path])}
        if any(name.startswith(f"{path}/") for name in files):
            return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}
        return None

    def tree(self, kind: str, repo: str, revision: str, path: str | None) -> None:
        if opened := self.opened(kind, repo, revision):
            files, prefix = opened[0].commits[opened[1]], f"{path}/" if path else ""
            inside = [name for name in files if name.startswith(prefix)]
            if path and not inside:
                self.error(404, "EntryNotFound", f"{path} does not exist on {revision}")
                return
            is_recursive = self.query.get("recursive", "false").lower() == "true"
            paths = set(inside) if is_recursive else set()
            for name in inside:
                parts = name.removeprefix(prefix).split("/")
                depths = range(1, len(parts)) if is_recursive else (1,)
                paths.update(prefix + "/".join(parts[:depth]) for depth in depths)
            start = int(self.query.get("cursor", 0))
            page, left = sorted(paths)[start : start + PAGE], sorted(paths)[start + PAGE :]
            body = json.dumps([self.entry(files, name) for name in page]).encode()
            rest = {name: value for name, value in self.query.items() if name != "cursor"}
            query = "&".join(f"{key}={value}" for key, value in {**rest, "cursor": start + PAGE}.items())
            link = {"Link": f'<{self.hub.url}{urlsplit(self.path).path}?{query}>; rel="next"'} if left else {}
            self.send(200, body, Content_Type="application/json", **link)

    def paths_info(self, kind: str, repo: str, revision: str) -> None:
        if opened := self.opened(kind, repo, revision):
            files = opened[0].commits[opened[1]]
            if "json" in self.headers.get("Content-Type", ""):
                paths = json.loads(self.body)["paths"]
            else:
                paths = parse_qs(self.body.decode())["paths"]
            self.send_json([entry for path in paths if (entry := self.entry(files, path))])

    def resolve(self, kind: str | None, repo: str, revision: str, path: str) -> None:
        if opened := self.opened(kind, repo, revision):
            found, sha = opened
            if path not in found.commits[sha]:
                self.error(404, "EntryNotFound", f"{path} does not exist on {revision}")
                return
            content = found.commits[sha][path]
            headers = {"X_Repo_Commit": sha, "ETag": f'"{blob_id(content)}"', "Accept_Ranges": "bytes"}
            headers |= {"Last_Modified": formatdate(0, usegmt=True), "Content_Type": "application/octet-stream"}
            if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
                start, stop = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
                if start >= len(content):
                    self.send(416, b"", Content_Range=f"bytes */{len(content)}")
                    return
                headers["Content_Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
                self.send(206, content[start:stop], **headers)
                return
            self.send(200, content, **headers)

    # Uploads: small files are in the commit itself, large ones (LFS) come before it.

    def writable(self, kind: str | None, repo: str, revision: str | None) -> tuple[Repo, str] | None:
        """What `opened` gives, where the token may write; else None, once an error is sent."""
        if not self.has_token:
            self.error(401, "", "Invalid credentials in Authorization header")
        elif repo.split("/")[0] in self.hub.read_only:
            self.error(403, "", f"You don't have the rights to write to {repo}")
        else:
            return self.opened(kind, repo, revision)
        return None

    def create(self) -> None:
        wanted = json.loads(self.body)
        repo, kind = f"{wanted['organization']}/{wanted['name']}", "datasets/" * (wanted.get("type") == "dataset")
        if not self.has_token or repo.split("/")[0] in self.hub.read_only:
            self.writable(None, repo, None)
            return
        is_new = kind + repo not in self.hub.repos
        if is_new:
            self.hub.add(kind + repo, {}, private=wanted.get("visibility") == "private")
        answer = json.dumps({"url": f"{self.hub.url}/{kind}{repo}", "error": "You already created this repo"})
        self.send(200 if is_new else 409, answer.encode(), Content_Type="application/json")

    def make_branch(self, kind: str, repo: str, revision: str) -> None:
        if opened := self.writable(kind, repo, None):
            if revision in opened[0].branches:
                self.error(409, "", "Reference already exists")
                return
            opened[0].branches[revision] = opened[1]
            self.send_json({})

    def preupload(self, kind: str, repo: str, revision: str) -> None:
        if opened := self.writable(kind, repo, revision):
            answer = []
            for file in json.loads(self.body)["files"]:
                is_large = file["path"].endswith((".safetensors", ".parquet")) or file["size"] > 10_000_000
                before = opened[0].commits[opened[1]].get(file["path"])
                oid = None if before is None else hashlib.sha256(before).hexdigest() if is_large else blob_id(before)
                mode = "lfs" if is_large else "regular"
                answer.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
            self.send_json({"files": answer})

    def batch(self, kind: str | None, repo: str) -> None:
        if self.writable(kind, repo, None):
            answer = []
            for entry in json.loads(self.body)["objects"]:
                upload = {"actions": {"upload": {"href": f"{self.hub.url}/objects/{entry['oid']}"}}}
                answer.append({**entry, **({} if entry["oid"] in self.hub.objects else upload)})
            self.send_json({"transfer": "basic", "objects": answer})

    def store(self, oid: str) -> None:
        self.hub.before_object.set()
        self.hub.may_store.wait()
        if hashlib.sha256(self.body).hexdigest() != oid:
            self.error(400, "", "the object is not what its name says")
            return
        self.hub.objects[oid] = self.body
        self.send(200, b"")

    def commit(self, kind: str, repo: str, revision: str) -> None:
        if opened := self.writable(kind, repo, revision):
            found, sha = opened
            files = dict(found.commits[sha])
            for line in self.body.splitlines():
                match json.loads(line):
                    case {"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}}:
                        files[path] = base64.b64decode(content)
                    case {"key": "lfsFile", "value": {"path": path, "oid": oid, "size": size}}:
                        if len(self.hub.objects.get(oid, b"")) != size:
                            self.error(400, "", f"the object of {path} was never uploaded")
                            return
                        files[path] = self.hub.objects[oid]
                    case {"key": "deletedFile", "value": {"path": path}}:
                        del files[path]
            sha = found.commit(files, revision)
            url = f"{self.hub.url}/{repo}/commit/{sha}"
            self.send_json({"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""})

    def validate_yaml(self) -> None:
        body = json.loads(self.body)
        errors = card_errors(body["content"], body["repoType"])
        answer = json.dumps({"errors": [{"message": message} for message in errors], "warnings": []})
        if self.headers.get("Accept") == "text/plain":
            answer = "\n".join(errors)
        self.send(400 if errors else 200, answer.encode(), Content_Type="application/json")


LICENCES = ("apache-2.0", "mit", "cc-by-4.0", "other", "llama3", "qwen")


def card_errors(card: str, kind: str) -> list[str]:
    """What the hub finds wrong with the metadata of a card, by its documentation; some of its licences and tasks."""
    import yaml

    head = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    data = yaml.safe_load(head[1]) if head else None
    if not isinstance(data, dict):
        return ["the card has no metadata"]
    name = re.compile(r"(?:[\w-]+/)?[\w.-]+")
    types: dict[str, type] = {"library_name": str, "pipeline_tag": str, "license": str, "tags": list}
    errors = [
        f'"{key}" must be {types[key].__name__}'
        for key in types
        if not isinstance(data.get(key, types[key]()), types[key])
    ]
    errors += [f'"{key}" is empty' for key, value in data.items() if value in (None, "", [], {})]
    if data.get("license", "mit") not in LICENCES:
        errors.append(f'"license" must be one of {LICENCES}')
    if data.get("license") == "other" and "license_name" not in data:
        errors.append('"license_name" is required')
    if data.get("pipeline_tag", "other") not in ("other", "image-text-to-text", "text-classification"):
        errors.append('"pipeline_tag" is no task')
    if data.get("base_model_relation", "adapter") not in ("adapter", "finetune", "merge", "quantized"):
        errors.append('"base_model_relation" is none')
    names = [
        ("base_model", data.get("base_model", "a/b")),
        *(("datasets", name) for name in data.get("datasets", [])),
    ]
    for number, entry in enumerate(data.get("model-index", [])):
        where = f"model-index[{number}]"
        if not isinstance(entry.get("name"), str) or not isinstance(entry.get("results"), list):
            errors.append(f'"{where}" needs a name and results')
        for result in entry.get("results", []):
            names += [(f"{where}.dataset.type", result["dataset"]["type"])]
            texts = [result["task"]["type"], result["dataset"]["name"], *(m["type"] for m in result["metrics"])]
            if not all(isinstance(text, str) and text for text in texts) or not result["metrics"]:
                errors.append(f'"{where}" has a result without a type or name')
            if not all(isinstance(m["value"], float | int | str) for m in result["metrics"]):
                errors.append(f'"{where}" has a metric without a value')
    errors += [
        f'"{key}" with value {value!r} fails to match {name.pattern}'
        for key, value in names
        if not name.fullmatch(value)
    ]
    for entry in data.get("configs", []):
        if re.search(r"[<>:/\\|?*]", entry["config_name"]) or not entry["data_files"]:
            errors.append('"configs" has a name with a special letter, or no files')
    return errors if kind in ("model", "dataset") else [f"{kind} is no kind of repository"]
