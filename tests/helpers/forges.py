"""Forges over real HTTP that take commit statuses and comments, and a runner for the CI jobs of `gitboot init`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from gitboot.cli.commands.init import CI, PACKAGES, build_ci_file_path
from gitboot.cli.main import cli
from tests.helpers.git_repositories import ENVIRONMENT, WorkTree
from tests.helpers.http_peers import WebRequest, WebResponse, web_server

# Forges over real HTTP: the part of GitHub's, GitLab's and Gitea's API that commit statuses go through.
#
# As documented in GitHub's "REST API endpoints for commit statuses", GitLab's "Commits API", and Gitea's swagger.

TOKEN = "glpat-correct-horse"
PAGE = {"github": "/acme/fleet", "gitlab": "/acme/metal/fleet", "gitea": "/acme/fleet"}
_PREFIX = {"github": "/api/v3/repos/acme/fleet", "gitlab": "/api/v4/projects/acme%2Fmetal%2Ffleet"}
_PREFIX["gitea"] = "/api/v1/repos/acme/fleet"
_STATES = {
    "github": {"error", "failure", "pending", "success"},
    "gitlab": {"pending", "running", "success", "failed", "canceled", "skipped"},
    "gitea": {"pending", "success", "error", "failure", "warning"},
}
_MAX_DESCRIPTION = {"github": 140, "gitlab": 255, "gitea": 255}


@dataclass
class ForgeHost:
    kind: str
    url: str = ""
    statuses: list[dict[str, Any]] = field(default_factory=list)  # as they were posted, with sha
    commits: set[str] | None = None  # that it has; None: all
    faults: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # the next responses
    fault_message: str = "not now"
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    @property
    def project(self) -> str:
        return f"{self.kind}={self.url}{PAGE[self.kind]}"

    def answer(self, method: str, target: str, headers: dict[str, str], body: Any) -> tuple[int, dict[str, str], Any]:
        self.requests.append((method, target, headers))
        if self.faults:
            status, more = self.faults.pop(0)
            return status, more, {"message": self.fault_message}
        if self.kind == "github" and not headers.get("User-Agent"):
            return 403, {}, {"message": "Request forbidden by administrative rules"}
        if self._get_token(headers) != TOKEN:
            return 401, {}, {"message": "Bad credentials" if self.kind == "github" else "401 Unauthorized"}
        parts, prefix = urlsplit(target), _PREFIX[self.kind]
        if not parts.path.startswith(f"{prefix}/"):
            return 404, {}, {"message": "Not Found" if self.kind == "github" else "404 Project Not Found"}
        return self._answer_project(
            method, parts.path.removeprefix(f"{prefix}/").split("/"), parse_qs(parts.query), body
        )

    def _get_token(self, headers: dict[str, str]) -> str:
        match self.kind:
            case "gitlab":
                return headers.get("Private-Token", "")
            case "github":
                return headers.get("Authorization", "").removeprefix("Bearer ")
        return headers.get("Authorization", "").removeprefix("token ")

    def _answer_project(
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
        limit = int(query.get("per_page", query.get("limit", ["30"]))[0])
        return 200, {}, [self._format_status(each) for each in reversed(found)][:limit]

    def _post(self, sha: str, body: Any) -> tuple[int, dict[str, str], Any]:
        name = body.get("name", "default") if self.kind == "gitlab" else body.get("context", "default")
        unprocessable = 400 if self.kind == "gitlab" else 422
        if self.commits is not None and sha not in self.commits:
            return (404 if self.kind == "gitlab" else 422), {}, {"message": f"No commit found for SHA: {sha}"}
        if body.get("state") not in _STATES[self.kind]:
            return unprocessable, {}, {"message": "Validation Failed: state"}
        if len(body.get("description", "")) > _MAX_DESCRIPTION[self.kind]:
            return unprocessable, {}, {"message": "description is too long"}
        self.statuses.append({**body, "context": name, "sha": sha, "id": len(self.statuses) + 1})
        return 201, {}, self._format_status(self.statuses[-1])

    def _format_status(self, posted: dict[str, Any]) -> dict[str, Any]:
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

    def answer(request: WebRequest) -> WebResponse:
        body = json.loads(request.body) if request.body else None
        with lock:
            status, headers, found = host.answer(request.method, request.path, request.headers, body)
        return WebResponse(status, json.dumps(found).encode(), headers)

    with web_server(answer) as host.url:
        yield host


# A made-up runner for the CI jobs that `gitboot init` writes: real repository, fake forge, steps out of the YAML.

BOT: dict[str, Any] = {
    "user": {"login": "github-actions[bot]"},
    "author": {"id": 41},
}  # the owner of the token, on GitHub and GitLab
MALLORY: dict[str, Any] = {"user": {"login": "mallory"}, "author": {"id": 666}}
PIPELINE = "1234"


@dataclass
class CommentHost:
    """The part of GitHub's and GitLab's API that comments go through."""

    url: str = ""
    comments: list[dict[str, Any]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    head: str = ""  # the newest commit of the pull request
    frozen: set[int] = field(default_factory=set)  # comments that the token may not edit
    edited: list[int] = field(default_factory=list)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        parts = urlsplit(path)
        lists = ("/repos/acme/fleet/issues/7/comments", "/projects/3/merge_requests/7/notes")
        match method, parts.path:
            case "GET", "/repos/acme/fleet/pulls/7":
                return 200, {"head": {"sha": self.head}}
            case "GET", "/projects/3/merge_requests/7":
                return 200, {"sha": self.head}
            case "GET", "/user":  # the token of a GitHub job is that of an app
                return (
                    (200, {"id": BOT["author"]["id"]}) if self.tokens == {"secret"} else (403, {"message": "no user"})
                )
            case "POST", "/graphql":
                assert body == {"query": "{viewer{login}}"}
                return 200, {"data": {"viewer": {"login": BOT["user"]["login"]}}}
        if method == "GET" and parts.path in lists:
            query = parse_qs(parts.query)
            page, size = int(query["page"][0]), int(query["per_page"][0])
            return 200, self.comments[(page - 1) * size : page * size]
        if method == "POST" and parts.path in lists:
            self.comments.append({"id": len(self.comments), "body": body["body"], **BOT})
            return 201, self.comments[-1]
        folder, _, number = parts.path.rpartition("/")
        assert (method, folder) in (("PATCH", "/repos/acme/fleet/issues/comments"), ("PUT", lists[1]))
        if int(number) in self.frozen:
            return 403, {"message": "Forbidden"}
        self.edited.append(int(number))
        self.comments[int(number)]["body"] = body["body"]
        return 200, self.comments[int(number)]


@contextmanager
def comment_host() -> Iterator[CommentHost]:
    host = CommentHost()

    def answer(request: WebRequest) -> WebResponse:
        host.tokens.add(request.headers.get("Authorization") or request.headers.get("Private-Token"))
        status, found = host.answer(request.method, request.path, json.loads(request.body) if request.body else {})
        return WebResponse(status, json.dumps(found).encode())

    with web_server(answer) as host.url:
        yield host


def write_programs(folder: Path, gitboot: str) -> Path:
    """Return a folder for PATH: this Python, this gitboot, and a pip that installs nothing."""
    for name, text in (("gitboot", gitboot), ("pip", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    return folder


def fill_hashes(packages: Path) -> None:
    """Write a hash of gitboot into the file; the pip of the runner installs nothing."""
    packages.write_text(packages.read_text().replace("sha256:MISSING", f"sha256:{'0' * 64}"))


class Fleet:
    """The files of `gitboot init` on a remote with main and a branch, and the folder of a CI job."""

    def __init__(self, folder: Path, subpath: str = "") -> None:
        self.work, self.subpath = WorkTree(folder / "work"), subpath
        options = ["--subpath", subpath] if subpath else []
        cli.main(["init", str(self.work.path), *options], prog_name="gitboot", standalone_mode=False)
        fill_hashes(self.work.path / subpath / PACKAGES)
        self.work.commit(message="Begin")
        self.remote = self.work.bare(folder / "remote.git")
        self.work.git("switch", "--quiet", "--create", "change")
        self.job = folder / "job"

    def edit(self, edits: dict[str, tuple[str, str]]) -> None:
        for name, (old, new) in edits.items():
            path = self.work.path / self.subpath / name
            assert old in path.read_text()
            path.write_text(path.read_text().replace(old, new, 1))

    def change(self, edits: dict[str, tuple[str, str]], message: str = "Change") -> None:
        self.edit(edits)
        self.work.commit(message=message)

    def begin_job(self) -> None:
        self.work.git("push", "--quiet", "--force", "origin", "refs/heads/main", "refs/heads/change")
        shutil.rmtree(self.job, ignore_errors=True)
        self.job.mkdir()

    def checkout(self, *, merged: bool) -> None:
        """Clone as GitHub (``merged``) or GitLab do for a job."""
        self.work.git("clone", "--quiet", str(self.remote), str(self.job))
        if merged:
            self.git("merge", "--quiet", "--no-ff", "--message=Merge", "origin/change")
        else:
            self.git("checkout", "--quiet", "--detach", "origin/change")

    def git(self, *arguments: str) -> str:
        command = ["git", *arguments]
        result = subprocess.run(command, cwd=self.job, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        return result.stdout.strip()


@dataclass(frozen=True)
class PipelineResult:
    codes: dict[str, int]  # by step
    out: str
    artifacts: Path  # the folder of what the first job left for the second

    @property
    def failed(self) -> dict[str, int]:
        return {step: code for step, code in self.codes.items() if code}


def run_step(folder: Path, script: str, environment: dict[str, str]) -> tuple[int, str]:
    """Run a step as a runner does: bash that ends at the first command that fails."""
    result = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return result.returncode, result.stdout


def recreate_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def run_on_github(
    fleet: Fleet,
    host: CommentHost,
    programs: Path,
    accepted: str = "",
    keys: str = "",
    head: str = "",
    signatures: str = "",
) -> PipelineResult:
    """The workflow's steps on a pull request whose newest commit is ``head``, or the branch's."""
    workflow = yaml.safe_load((fleet.work.path / build_ci_file_path(CI[0], fleet.subpath)).read_text())
    host.head = head or fleet.work.head
    fleet.begin_job()
    artifacts = recreate_folder(fleet.job.parent / "kept")
    environment = {
        **workflow["env"],
        "PATH": f"{programs}:{os.environ['PATH']}",
        "GITHUB_BASE_REF": "main",
        "GITHUB_REF": "refs/pull/7/merge",
        "GITHUB_REPOSITORY": "acme/fleet",
        "GITHUB_RUN_ID": PIPELINE,
        "GITHUB_API_URL": host.url,
        "GITHUB_GRAPHQL_URL": f"{host.url}/graphql",
        "GITHUB_SERVER_URL": "https://github.test",
        "GITHUB_STEP_SUMMARY": str(fleet.job.parent / "summary.md"),
    }
    suffix = f"_{fleet.subpath.replace('/', '_').upper()}" if fleet.subpath else ""
    expressions = {
        "github.event.pull_request.head.sha": fleet.work.head,
        "github.run_id": PIPELINE,
        "github.token": "secret",
        f"vars.GITBOOT_ACCEPTED{suffix}": accepted,
        f"vars.GITBOOT_IMAGE_KEYS{suffix}": keys,
        f"vars.GITBOOT_SIGNATURES{suffix}": signatures,
    }
    codes: dict[str, int] = {}
    output = ""
    for job in ("review", "comment"):
        temporary = recreate_folder(fleet.job.parent / f"{job}-temporary")
        expressions["runner.temp"] = environment["RUNNER_TEMP"] = str(temporary)
        recreate_folder(fleet.job)
        failed = False
        for step in workflow["jobs"][job]["steps"]:
            condition = str(step.get("if", ""))
            if failed and not re.search(r"always\(\)|!cancelled\(\)", condition):
                continue
            needed = [expressions[name] for name in re.findall(r"\bvars\.\w+", condition)]
            if needed and not any(needed):  # conditions join variables by "or"
                continue
            if "run" not in step:
                _run_action(step, fleet, artifacts, expressions, is_review=job == "review")
                continue
            variables = {name: _expand(value, expressions) for name, value in step.get("env", {}).items()}
            working_folder = Path(_expand(step.get("working-directory", str(fleet.job)), expressions))
            code, out = run_step(working_folder, step["run"], environment | variables)
            codes[step["name"]] = codes.get(step["name"], 0) or code
            failed |= code != 0
            output += out
    return PipelineResult(codes, output, artifacts)


def _expand(text: str, expressions: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: expressions[match[1]], text)


def _run_action(
    step: dict[str, Any], fleet: Fleet, artifacts: Path, expressions: dict[str, str], *, is_review: bool
) -> None:
    """Do what an action of another author does, as far as the jobs depend on it."""
    inputs = {name: _expand(str(value), expressions) for name, value in step.get("with", {}).items() if name != "ref"}
    match step["uses"].partition("@")[0]:
        case "actions/checkout" if is_review:
            fleet.checkout(merged=True)
        case "actions/checkout":  # of the default branch, one file
            wanted = inputs["sparse-checkout"]
            (fleet.job / wanted).parent.mkdir(parents=True, exist_ok=True)
            (fleet.job / wanted).write_text(fleet.work.git("show", f"refs/heads/main:{wanted}") + "\n")
        case "actions/upload-artifact":  # which follows symlinks, and has globs
            for pattern in inputs["path"].split():
                root = Path(pattern).parent if os.path.isabs(pattern) else fleet.job
                for path in root.glob(Path(pattern).name):
                    if path.is_file():
                        shutil.copy(path, artifacts)
        case "actions/download-artifact":
            folder = Path(inputs["path"]) if "path" in inputs else fleet.job
            shutil.copytree(artifacts, folder, dirs_exist_ok=True)


def run_on_gitlab(
    fleet: Fleet,
    host: CommentHost,
    programs: Path,
    accepted: str = "",
    keys: str = "",
    head: str = "",
    signatures: str = "",
    **more: str,
) -> PipelineResult:
    """The jobs on a merge request whose newest commit is ``head``, or the branch's."""
    jobs = yaml.safe_load((fleet.work.path / build_ci_file_path(CI[1], fleet.subpath)).read_text())
    job = (
        build_ci_file_path(CI[1], fleet.subpath).removeprefix(".gitlab/").removesuffix(".yml")
        if fleet.subpath
        else "gitboot"
    )
    host.head = head or fleet.work.head
    fleet.begin_job()
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "GITLAB_CI": "true",
        "CI_API_V4_URL": host.url,
        "CI_DEFAULT_BRANCH": "main",
        "CI_PIPELINE_ID": PIPELINE,
        "CI_PIPELINE_URL": f"https://gitlab.test/acme/fleet/-/pipelines/{PIPELINE}",
        "CI_PROJECT_ID": "3",
        "CI_MERGE_REQUEST_IID": "7",
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "CI_COMMIT_SHA": fleet.work.head,
        "CI_REPOSITORY_URL": str(fleet.remote),
        "GITBOOT_TOKEN": "secret",
        "GITBOOT_ACCEPTED": accepted,
        "GITBOOT_IMAGE_KEYS": keys,
        "GITBOOT_SIGNATURES": signatures,
        **more,
    }
    codes: dict[str, int] = {}
    if jobs[job]["variables"].get("GIT_STRATEGY") != "empty":
        shutil.rmtree(fleet.job)
        fleet.checkout(merged=False)
    codes["script"], output = _run_job(fleet, jobs[job], environment)
    artifacts = fleet.job.parent / "kept"
    shutil.rmtree(artifacts, ignore_errors=True)
    artifacts.mkdir()
    for path in jobs[job]["artifacts"]["paths"]:
        if (left := fleet.job / path).is_dir():
            shutil.copytree(left, artifacts / path, symlinks=True)
        elif left.is_symlink() or left.exists():
            shutil.copy(left, artifacts, follow_symlinks=False)
    if environment["GITBOOT_TOKEN"] and environment["CI_MERGE_REQUEST_IID"]:  # by its rule
        recreate_folder(fleet.job)
        shutil.copytree(artifacts, fleet.job, symlinks=True, dirs_exist_ok=True)
        codes["note"], out = _run_job(fleet, jobs[f"{job}:note"], environment)
        output += out
    return PipelineResult(codes, output, artifacts / "review")


def _run_job(fleet: Fleet, job: dict[str, Any], environment: dict[str, str]) -> tuple[int, str]:
    lines = [*job.get("before_script", []), *job["script"]]
    return run_step(fleet.job, "\n".join(lines), environment | job.get("variables", {}))


JOBS: Final = [pytest.param(run_on_github, id="GitHub"), pytest.param(run_on_gitlab, id="GitLab")]
# Changes of a branch in the fleet that `gitboot init` writes: a path, the old text, and the new text.
HARMLESS: Final = {"servers/web01.yaml": ("spec:\n", "spec:\n  kernelArguments: [debug]\n")}
INVALID: Final = {"servers/web01.yaml": ("spec:\n", "spec:\n  kernelArgument: [debug]\n")}
