"""A small Hub on the loopback interface: what `huggingface_hub` asks of the real one, kept in memory.

    with HubServer() as hub:
        hub.add_user("me", token="hf_me")
        ...                                           # a client in another process, HF_ENDPOINT=hub.url
        hub.fail("POST", "/commit/", 500, times=2)    # None: the connection is cut in the middle
        hub.repository("me/x").pushed()               # the commits, each with the whole set of its files

Weights, parquet files and pickles go through LFS, as on the real Hub; there is no Xet.
"""

import base64
import hashlib
import json
import re
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

_LFS = (".safetensors", ".parquet", ".bin", ".pt", ".pth", ".onnx")
_DATE = "2026-01-01T00:00:00.000Z"
_NAME = r"(?P<name>[^/]+/[^/]+?)"
_KIND = r"/api/(?P<kind>models|datasets)/"


@dataclass
class File:
    content: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass
class Commit:
    oid: str
    branch: str
    message: str
    files: dict[str, File]


@dataclass
class Repository:
    private: bool
    commits: list[Commit] = field(default_factory=list)  # of all branches, in the order they came in
    refs: dict[str, str] = field(default_factory=dict)  # branch, tag or refs/pr/N -> commit

    def add(self, branch: str, message: str, files: dict[str, File]) -> Commit:
        listed = "".join(f"{path} {file.etag}\n" for path, file in sorted(files.items()))
        oid = hashlib.sha1(f"{len(self.commits)} {message}\n{listed}".encode()).hexdigest()
        self.commits.append(Commit(oid, branch, message, files))
        self.refs[branch] = oid
        return self.commits[-1]

    def at(self, revision: str) -> Commit | None:
        oid = self.refs.get(revision, revision)
        return next((commit for commit in self.commits if commit.oid == oid), None)

    def pushed(self, branch: str | None = None) -> list[Commit]:
        """The commits that somebody made, of one branch or of all."""
        return [commit for commit in self.commits[1:] if branch in (None, commit.branch)]


@dataclass
class Fault:
    method: str
    path: str  # a regular expression
    status: int | None  # None: the connection is cut in the middle
    times: int
    late: bool  # what was asked for is done, and the answer is lost
    headers: dict[str, str]


class Refusal(Exception):
    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.code = status, code


class HubServer:
    def __init__(self):
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.users: dict[str, dict] = {}  # token -> what whoami says
        self.objects: dict[str, bytes] = {}  # LFS
        self.known: set[str] = set()  # those that are not to be sent again
        self.requests: list[tuple[str, str, int | None]] = []
        self.faults: list[Fault] = []
        self.leaks: list[str] = []  # what was asked of the storage with the token of the Hub
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.server.handle_error = lambda *arguments: None  # a client that hung up
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.storage = self.url.replace("127.0.0.1", "localhost")  # another host, which is no business of the token's

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()

    def add_user(self, name: str, *, token: str, role: str = "write", organisations=(), scopes=()):
        """`organisations`: (name, role) each; `scopes`: (entity type, entity name, permissions), of a fine-grained
        token."""
        access = {"displayName": "test", "role": role}
        if role == "fineGrained":
            entries = [{"entity": {"type": kind, "name": who}, "permissions": list(may)} for kind, who, may in scopes]
            access["fineGrained"] = {"global": [], "scoped": entries}
        self.users[token] = {
            "type": "user",
            "name": name,
            "orgs": [{"name": each, "roleInOrg": right} for each, right in organisations],
            "auth": {"type": "access_token", "accessToken": access},
        }

    def fail(self, method: str, path: str, status: int | None, *, times: int = 1, late: bool = False, **headers):
        named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        self.faults.append(Fault(method, path, status, times, late, named))

    def repository(self, name: str, kind: str = "models") -> Repository:
        return self.repositories[kind, name]

    def count(self, method: str, path: str) -> int:
        return sum(each[0] == method and re.search(path, each[1]) is not None for each in self.requests)

    def next_fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer
    cut = False

    def log_message(self, *arguments):
        pass

    # --- Requests and answers -------------------------------------------------------------------------------------

    def _serve(self):
        self.target = unquote(urlsplit(self.path).path)
        self.query = parse_qs(urlsplit(self.path).query)
        fault = self.hub.next_fault(self.command, self.target)
        self.cut = fault is not None and fault.status is None
        if self.cut and self.command != "GET" and not fault.late:
            self._note(None)
            return self._hang_up()
        body = self._body()
        if self.headers["Host"].startswith("localhost") and self.headers.get("Authorization"):
            self.hub.leaks.append(self.target)
        try:
            if fault is not None and not self.cut:
                return self._answer({"error": "as the test wants"}, fault.status, **fault.headers)
            for method, pattern, answer in _ROUTES:
                found = re.fullmatch(pattern, self.target)
                if found is not None and self.command in method.split():
                    with self.hub.lock:
                        return answer(self, body, **found.groupdict())
            raise Refusal(404, f"no such page: {self.target}")
        except Refusal as refusal:
            headers = {"X-Error-Message": str(refusal), "X-Error-Code": refusal.code}
            self._answer({"error": str(refusal)}, refusal.status, **headers)

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _note(self, status: int | None):
        self.hub.requests.append((self.command, self.target, status))

    def _hang_up(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, content=None, status: int = 200, **headers):
        """JSON, or bytes as they are; half of them where the connection is to be cut."""
        self._note(None if self.cut else status)
        if self.cut and self.command != "GET":
            return self._hang_up()
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header(
            "Content-Type", "application/octet-stream" if isinstance(content, bytes) else "application/json"
        )
        for name, value in {"Content-Length": len(data), **headers}.items():
            if value is not None:
                self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if self.cut else data)
        if self.cut:
            self._hang_up()

    # --- Who may do what ------------------------------------------------------------------------------------------

    def _user(self) -> dict | None:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.users:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.hub.users.get(token)

    def _may(self, right: str, name: str, kind: str) -> bool:
        user = self._user()
        if user is None:
            return False
        namespace, token = name.split("/")[0], user["auth"]["accessToken"]
        roles = {user["name"]: "admin", **{org["name"]: org["roleInOrg"] for org in user["orgs"]}}
        if namespace not in roles:
            return False
        if right == "read":
            return True
        if token["role"] == "fineGrained":
            return any(
                entry["entity"]["name"] in (namespace, name) and "repo.write" in entry["permissions"]
                for entry in token["fineGrained"]["scoped"]
            )
        return token["role"] == "write" and roles[namespace] != "read"

    def _repository(self, kind: str, name: str) -> Repository:
        found = self.hub.repositories.get((kind, name))
        if found is None or (found.private and not self._may("read", name, kind)):
            raise Refusal(404 if self._user() else 401, "Repository not found", "RepoNotFound")
        return found

    def _writable(self, kind: str, name: str) -> Repository:
        found = self._repository(kind, name)
        if not self._may("write", name, kind):
            raise Refusal(403, f"You don't have the rights to write to {name}")
        return found

    def _commit_at(self, kind: str, name: str, revision: str) -> Commit:
        commit = self._repository(kind, name).at(revision)
        if commit is None:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    # --- The pages ------------------------------------------------------------------------------------------------

    def whoami(self, body):
        user = self._user()
        if user is None:
            raise Refusal(401, "Invalid username or password.")
        self._answer(user)

    def create(self, body):
        wanted = json.loads(body)
        kind = {"model": "models", "dataset": "datasets"}[wanted.get("type") or "model"]
        user = self._user()
        if user is None:
            raise Refusal(401, "Invalid username or password.")
        name = f"{wanted.get('organization') or user['name']}/{wanted['name']}"
        url = f"{self.hub.url}/{'' if kind == 'models' else 'datasets/'}{name}"
        if (kind, name) in self.hub.repositories:
            return self._answer({"url": url, "error": "You already created this repo"}, 409)
        if not self._may("write", name, kind):
            raise Refusal(403, f"You don't have the rights to create a {kind[:-1]} under the namespace of {name}")
        private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        repository = self.hub.repositories[kind, name] = Repository(private)
        repository.add("main", "initial commit", {".gitattributes": File(b"*.safetensors filter=lfs\n", False)})
        self._answer({"url": url, "name": name})

    def info(self, body, kind, name, revision="main"):
        commit = self._commit_at(kind, name, revision)
        siblings = [{"rfilename": path} for path in sorted(commit.files)]
        private = self._repository(kind, name).private
        said = {"_id": name, "id": name, "sha": commit.oid, "private": private, "gated": False, "disabled": False}
        self._answer({**said, "modelId": name, "tags": [], "siblings": siblings, "lastModified": _DATE})

    def refs(self, body, kind, name):
        refs = self._repository(kind, name).refs
        listed = [{"name": ref, "ref": f"refs/heads/{ref}", "targetCommit": oid} for ref, oid in refs.items()]
        self._answer({"branches": [each for each in listed if "/pr/" not in each["ref"]], "tags": [], "converts": []})

    def commits(self, body, kind, name, revision):
        self._commit_at(kind, name, revision)
        listed = [
            {"id": each.oid, "title": each.message, "message": "", "date": _DATE, "authors": []}
            for each in reversed(self._repository(kind, name).commits)
            if each.branch == revision
        ]
        self._answer(listed)

    def tree(self, body, kind, name, revision, folder=""):
        commit = self._commit_at(kind, name, revision)
        inside = f"{folder.strip('/')}/" if folder.strip("/") else ""
        recursive = self.query.get("recursive", [""])[0].lower() in ("true", "1")
        entries = {}
        for path, file in sorted(commit.files.items()):
            if not path.startswith(inside):
                continue
            parts = path.removeprefix(inside).split("/")
            for depth in range(1, len(parts)) if recursive else range(1, min(len(parts), 2)):
                parent = inside + "/".join(parts[:depth])
                entries[parent] = {"type": "directory", "path": parent, "size": 0, "oid": _tree_oid(parent)}
            if recursive or len(parts) == 1:
                entries[path] = _entry(path, file)
        if inside and not entries:
            raise Refusal(404, f"{folder} does not exist", "EntryNotFound")
        self._answer(list(entries.values()))

    def paths_info(self, body, kind, name, revision):
        commit = self._commit_at(kind, name, revision)
        asked = parse_qs(body.decode()).get("paths", [])
        found = [_entry(path, commit.files[path]) for path in asked if path in commit.files]
        for path in asked:
            if path not in commit.files and any(each.startswith(f"{path}/") for each in commit.files):
                found.append({"type": "directory", "path": path, "size": 0, "oid": _tree_oid(path)})
        self._answer(found)

    def validate_yaml(self, body):
        content = json.loads(body)["content"]
        found = re.match(r"---\n(.*?)\n---", content, re.S)
        data = yaml.safe_load(found[1]) if found else {}
        wrong = [name for name, value in data.items() if value is None or value == [None]]
        if wrong:
            return self._answer({"errors": [{"message": f'"{name}" is empty'} for name in wrong]}, 400)
        self._answer({"errors": [], "warnings": []})

    def branch(self, body, kind, name, branch):
        repository = self._writable(kind, name)
        if branch in repository.refs:
            raise Refusal(409, f"Reference {branch} already exists")
        start = repository.at(json.loads(body or b"{}").get("startingPoint") or "main")
        repository.refs[branch] = start.oid
        self._answer({})

    def tag(self, body, kind, name, revision):
        self._writable(kind, name).refs[json.loads(body)["tag"]] = self._commit_at(kind, name, revision).oid
        self._answer({})

    def preupload(self, body, kind, name, revision):
        self._committable(kind, name)
        commit = self._commit_at(kind, name, revision)
        files = []
        for asked in json.loads(body)["files"]:
            path, there = asked["path"], commit.files.get(asked["path"])
            mode = "lfs" if path.endswith(_LFS) else "regular"
            oid = there.etag if there else None
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._answer({"files": files})

    def lfs_batch(self, body, name, kind="models"):
        self._committable(kind.strip("/") or "models", name)
        objects = []
        for asked in json.loads(body)["objects"]:
            actions = {
                "upload": {"href": f"{self.hub.storage}/lfs-upload/{asked['oid']}"},
                "verify": {"href": f"{self.hub.url}/lfs-verify"},
            }
            there = asked["oid"] in self.hub.known
            objects.append({**asked, **({} if there else {"authenticated": True, "actions": actions})})
        self._answer({"transfer": "basic", "objects": objects})

    def lfs_upload(self, body, oid):
        if hashlib.sha256(body).hexdigest() != oid:
            raise Refusal(400, "the content has another hash")
        self.hub.objects[oid] = body
        self.hub.known.add(oid)
        self._answer({})

    def lfs_verify(self, body):
        asked = json.loads(body)
        if len(self.hub.objects.get(asked["oid"], b"")) != asked["size"]:
            raise Refusal(404, "the object is not there")
        self._answer({})

    def _committable(self, kind: str, name: str) -> Repository:
        """With `create_pr` anybody who is logged in may propose."""
        proposed = "create_pr" in self.query or self.target.endswith("/lfs/objects/batch")
        if proposed and self._user() is not None:
            return self._repository(kind, name)
        return self._writable(kind, name)

    def commit(self, body, kind, name, revision):
        repository = self._committable(kind, name)
        files = dict(self._commit_at(kind, name, revision).files)
        message = ""
        for line in body.splitlines():
            key, value = json.loads(line).values()
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]), False)
            elif key == "lfsFile":
                if value["oid"] not in self.hub.known:
                    raise Refusal(400, f"LFS object of {value['path']} is not there")
                files[value["path"]] = File(self.hub.objects[value["oid"]], True)
            elif key == "deletedFile":
                del files[value["path"]]
            else:
                files = {path: file for path, file in files.items() if not path.startswith(value["path"])}
        proposal = None
        if "create_pr" in self.query:
            number = 1 + sum(ref.startswith("refs/pr/") for ref in repository.refs)
            revision, proposal = f"refs/pr/{number}", f"{self.hub.url}/{name}/discussions/{number}"
        made = repository.add(revision, message, files)
        url = f"{self.hub.url}/{'' if kind == 'models' else 'datasets/'}{name}/commit/{made.oid}"
        self._answer({"success": True, "commitOid": made.oid, "commitUrl": url, "pullRequestUrl": proposal})

    def resolve(self, body, name, revision, path, kind="models"):
        commit = self._commit_at(kind.strip("/") or "models", name, revision)
        file = commit.files.get(path)
        if file is None:
            raise Refusal(404, f"{path} does not exist", "EntryNotFound")
        headers = {"X-Repo-Commit": commit.oid, "ETag": f'"{file.etag}"', "Accept-Ranges": "bytes"}
        if file.lfs:
            linked = {"X-Linked-ETag": f'"{file.etag}"', "X-Linked-Size": len(file.content)}
            return self._answer(b"", 302, Location=f"{self.hub.storage}/lfs-download/{file.etag}", **headers, **linked)
        self._send(file.content, headers)

    def lfs_download(self, body, oid):
        self._send(self.hub.objects[oid], {"ETag": f'"{oid}"', "Accept-Ranges": "bytes"})

    def _send(self, content: bytes, headers: dict):
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self._answer(content, **headers)
        begin, end = int(asked[1]), min(int(asked[2] or len(content) - 1), len(content) - 1)
        headers["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
        self._answer(content[begin : end + 1], 206, **headers)


def _tree_oid(path: str) -> str:
    return hashlib.sha1(path.encode()).hexdigest()


def _entry(path: str, file: File) -> dict:
    entry = {"type": "file", "path": path, "size": len(file.content), "oid": file.oid}
    if file.lfs:
        entry["lfs"] = {"oid": file.sha256, "size": len(file.content), "pointerSize": 130}
    return entry


_REVISION = r"(?P<revision>refs/pr/\d+|[^/]+)"
_ROUTES = [
    ("GET", "/api/whoami-v2", _Handler.whoami),
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate_yaml),
    ("GET", f"{_KIND}{_NAME}", _Handler.info),
    ("GET", f"{_KIND}{_NAME}/revision/{_REVISION}", _Handler.info),
    ("GET", f"{_KIND}{_NAME}/refs", _Handler.refs),
    ("GET", f"{_KIND}{_NAME}/commits/{_REVISION}", _Handler.commits),
    (
        "GET",
        f"{_KIND}{_NAME}/tree/{_REVISION}(?P<folder>/.*)?",
        lambda s, b, folder, **g: s.tree(b, folder=folder or "", **g),
    ),
    ("POST", f"{_KIND}{_NAME}/paths-info/{_REVISION}", _Handler.paths_info),
    ("POST", f"{_KIND}{_NAME}/preupload/{_REVISION}", _Handler.preupload),
    ("POST", f"{_KIND}{_NAME}/commit/{_REVISION}", _Handler.commit),
    ("POST", f"{_KIND}{_NAME}/branch/(?P<branch>.+)", _Handler.branch),
    ("POST", f"{_KIND}{_NAME}/tag/{_REVISION}", _Handler.tag),
    (
        "POST",
        rf"/(?P<kind>datasets/)?{_NAME}\.git/info/lfs/objects/batch",
        lambda s, b, kind, name: s.lfs_batch(b, name, kind or ""),
    ),
    ("PUT", "/lfs-upload/(?P<oid>[0-9a-f]{64})", _Handler.lfs_upload),
    ("POST", "/lfs-verify", _Handler.lfs_verify),
    ("GET HEAD", "/lfs-download/(?P<oid>[0-9a-f]{64})", _Handler.lfs_download),
    (
        "GET HEAD",
        rf"/(?P<kind>datasets/)?{_NAME}/resolve/{_REVISION}/(?P<path>.+)",
        lambda s, b, kind, **found: s.resolve(b, kind=kind or "", **found),
    ),
]
