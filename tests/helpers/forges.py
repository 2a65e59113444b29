"""Forges over real HTTP: the part of GitHub's, GitLab's and Gitea's API that commit statuses go through.

As they are documented: GitHub's "REST API endpoints for commit statuses", GitLab's "Commits API", Gitea's swagger.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "glpat-correct-horse"
PAGE = {"github": "/acme/fleet", "gitlab": "/acme/metal/fleet", "gitea": "/acme/fleet"}
_PREFIX = {"github": "/api/v3/repos/acme/fleet", "gitlab": "/api/v4/projects/acme%2Fmetal%2Ffleet"}
_PREFIX["gitea"] = "/api/v1/repos/acme/fleet"
_STATES = {
    "github": {"error", "failure", "pending", "success"},
    "gitlab": {"pending", "running", "success", "failed", "canceled", "skipped"},
    "gitea": {"pending", "success", "error", "failure", "warning"},
}
_LONGEST = {"github": 140, "gitlab": 255, "gitea": 255}


@dataclass
class ForgeHost:
    """One forge with one project."""

    kind: str
    url: str = ""
    statuses: list[dict[str, Any]] = field(default_factory=list)  # as they were posted, with sha
    commits: set[str] | None = None  # that it has; None: all
    faults: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # the next answers
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    @property
    def project(self) -> str:
        """As --forge names it."""
        return f"{self.kind}={self.url}{PAGE[self.kind]}"

    def answer(self, method: str, target: str, headers: dict[str, str], body: Any) -> tuple[int, dict[str, str], Any]:
        self.requests.append((method, target, headers))
        if self.faults:
            status, more = self.faults.pop(0)
            return status, more, {"message": "not now"}
        if self.kind == "github" and not headers.get("User-Agent"):
            return 403, {}, {"message": "Request forbidden by administrative rules"}
        if self._token(headers) != TOKEN:
            return 401, {}, {"message": "Bad credentials" if self.kind == "github" else "401 Unauthorized"}
        parts, prefix = urlsplit(target), _PREFIX[self.kind]
        if not parts.path.startswith(f"{prefix}/"):
            return 404, {}, {"message": "Not Found" if self.kind == "github" else "404 Project Not Found"}
        return self._of_project(method, parts.path.removeprefix(f"{prefix}/").split("/"), parse_qs(parts.query), body)

    def _token(self, headers: dict[str, str]) -> str:
        match self.kind:
            case "gitlab":
                return headers.get("Private-Token", "")
            case "github":
                return headers.get("Authorization", "").removeprefix("Bearer ")
        return headers.get("Authorization", "").removeprefix("token ")

    def _of_project(
        self, method: str, path: list[str], query: dict[str, list[str]], body: Any
    ) -> tuple[int, dict[str, str], Any]:
        match method, path:
            case "POST", ["statuses", sha]:
                return self._post(sha, body)
            case "GET", ["commits", sha, "statuses"] if self.kind != "gitlab":
                found = [each for each in self.statuses if each["sha"] == sha]
            case "GET", ["repository", "commits", sha, "statuses"] if self.kind == "gitlab":
                name = query.get("name", [""])[0]
                found = [each for each in self.statuses if each["sha"] == sha and name in ("", each["context"])]
            case _:
                return 404, {}, {"message": "Not Found"}
        most = int(query.get("per_page", query.get("limit", ["30"]))[0])
        return 200, {}, [self._shown(each) for each in reversed(found)][:most]

    def _post(self, sha: str, body: Any) -> tuple[int, dict[str, str], Any]:
        name = body.get("name", "default") if self.kind == "gitlab" else body.get("context", "default")
        unprocessable = 400 if self.kind == "gitlab" else 422
        if self.commits is not None and sha not in self.commits:
            return (404 if self.kind == "gitlab" else 422), {}, {"message": f"No commit found for SHA: {sha}"}
        if body.get("state") not in _STATES[self.kind]:
            return unprocessable, {}, {"message": "Validation Failed: state"}
        if len(body.get("description", "")) > _LONGEST[self.kind]:
            return unprocessable, {}, {"message": "description is too long"}
        self.statuses.append({**body, "context": name, "sha": sha, "id": len(self.statuses) + 1})
        return 201, {}, self._shown(self.statuses[-1])

    def _shown(self, posted: dict[str, Any]) -> dict[str, Any]:
        shown = {"id": posted["id"], "description": posted.get("description"), "target_url": posted.get("target_url")}
        match self.kind:
            case "github":
                return shown | {"state": posted["state"], "context": posted["context"]}
            case "gitlab":
                return shown | {"status": posted["state"], "name": posted["context"], "sha": posted["sha"]}
        return shown | {"status": posted["state"], "context": posted["context"]}


@contextmanager
def forge_host(kind: str) -> Iterator[ForgeHost]:
    host = ForgeHost(kind)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            headers = {name.title(): value for name, value in self.headers.items()}
            with lock:
                status, more, answer = host.answer(self.command, self.path, headers, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**more, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = handle_any  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Quietly."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        host.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield host
        server.shutdown()
