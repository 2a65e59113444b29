"""The scheduled workflows for new images: a job that reads files of vendors, and a job that opens pull requests."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from gitboot.cli.commands.init import CI, build_seed_file
from gitboot.cli.main import cli
from gitboot.resolve.provisioning_record import encode_records
from tests.helpers.artifact_servers import ArtifactServer, artifact_server, compute_digest
from tests.helpers.forges import HARMLESS, INVALID, PIPELINE, Fleet, recreate_folder, run_step
from tests.helpers.git_repositories import ENVIRONMENT, Person, find_fingerprint, gpg_people, sign_with_gpg
from tests.helpers.http_peers import WebRequest, WebResponse, web_server

ROOT: Final = Path(__file__).parents[3]
GITHUB, GITLAB, GITEA_REVIEW, GITEA, GITEA_ROLLOUT = CI[4], CI[1], CI[5], CI[6], CI[7]
BRANCH: Final = "gitboot/update-stable-flatcar-9999.2.0"
TITLE: Final = "Begin the rollout of $(touch evil) `id` \"flatcar\" 'x' to 1 % of stable ☃"
BODY: Final = "| file | `$(touch evil)` |\n\n\\*signed\\* by \"F88C…\"\n\n${HOME} \\n %s @x 'y'\n"
TOKEN: Final = "secret"
IMAGE: Final = {"images/flatcar-9999.2.0.yaml": "kind: BootImage\n", "streams/stable.yaml": "kind: ImageStream\n"}


class Forge(StrEnum):
    GITHUB = "GitHub"
    GITLAB = "GitLab"
    GITEA = "Gitea"


every_forge = pytest.mark.parametrize("forge", Forge)


@dataclass
class PullRequest:
    branch: str
    target: str
    title: str
    body: str
    commit: str
    is_open: bool = True
    is_fork: bool = False


@dataclass
class PullRequestHost:
    """The part of GitLab's and Gitea's API for pull requests, and the state of the program gh."""

    folder: Path  # where the program gh stores pull requests
    remote: Path = Path()  # the repository
    url: str = ""
    requests: list[PullRequest] = field(default_factory=list)
    faults: int = 0  # that the next lookups get

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any]:
        parts = urlsplit(target)
        token = headers.get("Private-Token") or headers.get("Authorization", "").removeprefix("token ")
        if token != TOKEN:
            return 401, {"message": "401 Unauthorized"}
        if self.faults:
            self.faults -= 1
            return 502, {"message": "Bad Gateway"}
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match method, parts.path:
            case "GET", "/projects/3/merge_requests":
                assert query == {"state": "all", "per_page": "100", "source_branch": query["source_branch"]}
                return 200, [
                    {
                        "source_project_id": 4 if each.is_fork else 3,
                        "state": "opened" if each.is_open else "closed",
                        "sha": each.commit,
                    }
                    for each in self.requests
                    if each.branch == query["source_branch"]
                ]
            case "POST", "/projects/3/merge_requests":
                posted = {name: values[0] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
                return self._open(posted, "source_branch", "target_branch", "title", "description")
            case "POST", "/repos/acme/fleet/pulls":
                return self._open(json.loads(body), "head", "base", "title", "body")
        return 404, {}

    def _open(self, posted: dict[str, str], *names: str) -> tuple[int, Any]:
        branch, target, title, text = (posted.pop(name) for name in names)
        assert posted == {}
        if any((each.branch, each.is_open, each.is_fork) == (branch, True, False) for each in self.requests):
            return 409, {"message": "pull request already exists for these targets"}
        commit = self._git("rev-parse", f"refs/heads/{branch}")
        self.requests.append(PullRequest(branch, target, title, text, commit))
        self._git("update-ref", f"refs/pull/{len(self.requests)}/head", commit)
        return 201, {}

    def _git(self, *arguments: str) -> str:
        command = ["git", "--git-dir", str(self.remote), *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=ENVIRONMENT)
        return ran.stdout.strip()

    def read(self) -> list[PullRequest]:
        """Return all pull requests, also those of the program gh."""
        stored = self.folder / "gh.json"
        by_gh = [PullRequest(**each) for each in json.loads(stored.read_text())] if stored.exists() else []
        return [*self.requests, *by_gh]

    def change(self, changes: Mapping[str, bool]) -> None:
        """Change all pull requests."""
        changed = [PullRequest(**{**vars(each), **changes}) for each in self.read()]
        if (self.folder / "gh.json").exists():
            (self.folder / "gh.json").write_text(json.dumps([vars(each) for each in changed]))
        else:
            self.requests = changed


# A program with the subcommands and options of gh that the workflow uses.
_GH: Final = """\
#!{python}
import argparse, json, os, subprocess, sys
from pathlib import Path
store = Path({store!r})
requests = json.loads(store.read_text()) if store.exists() else []
assert os.environ["GH_TOKEN"] == "secret"
parser = argparse.ArgumentParser()
for name in ("--head", "--state", "--json", "--jq", "--base", "--title", "--body-file"):
    parser.add_argument(name)
assert sys.argv[1] == "pr"
options = parser.parse_args(sys.argv[3:])
if sys.argv[2] == "list":
    state = ("CLOSED", "OPEN")
    found = [
        {{"isCrossRepository": each["is_fork"], "state": state[each["is_open"]], "headRefOid": each["commit"]}}
        for each in requests if each["branch"] == options.head
    ]
    assert (options.state, options.json) == ("all", "isCrossRepository,state,headRefOid")
    print(subprocess.run(["jq", options.jq], input=json.dumps(found), text=True, capture_output=True).stdout, end="")
else:
    assert sys.argv[2] == "create"
    body = Path(options.body_file).read_text()
    tip = ["git", "ls-remote", "origin", f"refs/heads/{{options.head}}"]
    commit = subprocess.run(tip, text=True, capture_output=True, check=True).stdout.split()[0]
    made = dict(branch=options.head, target=options.base, title=options.title, body=body, commit=commit)
    made |= dict(is_open=True, is_fork=False)
    store.write_text(json.dumps([*requests, made]))
"""


@contextmanager
def pull_request_host(folder: Path) -> Iterator[PullRequestHost]:
    host = PullRequestHost(folder)

    def answer(request: WebRequest) -> WebResponse:
        status, found = host.answer(*request)
        return WebResponse(status, json.dumps(found).encode())

    with web_server(answer) as host.url:
        yield host


@dataclass
class Repository:
    """A fleet at a forge, and the files that the first job left for the second job."""

    forge: Forge
    fleet: Fleet
    host: PullRequestHost
    folder: Path
    programs: Path
    subpath: str = ""
    streams: list[dict[str, Any]] = field(default_factory=list)  # of the report

    @property
    def updates(self) -> Path:
        return self.folder / "updates"

    @property
    def bundle(self) -> Path:
        return self.updates / ("updates.bundle" if self.forge is not Forge.GITLAB else f"{PIPELINE}.bundle")

    @property
    def base(self) -> str:
        return self.fleet.work.git("rev-parse", "main")

    def propose_commit(
        self,
        files: Mapping[str, str | None] = IMAGE,
        *,
        branch: str = BRANCH,
        base: str = "main",
        message: str | None = None,
        prepare: Callable[[Path], None] = lambda _: None,
        **report: Any,
    ) -> str:
        """Commit on a branch and add it to the report."""
        work = self.fleet.work
        work.git("checkout", "--quiet", "-B", "proposal", base)
        prepare(work.path)
        commit = work.commit(files, message or f"Begin the rollout of {branch}")
        work.git("checkout", "--quiet", "main")
        work.git("update-ref", f"refs/heads/{branch}", commit)
        work.git("branch", "--quiet", "--delete", "--force", "proposal")
        self.streams.append(
            {"branch": branch, "commit": str(commit), "title": TITLE, "body": BODY, "ready": True, **report}
        )
        return str(commit)

    def write_updates(self, branches: list[str] | None = None) -> None:
        """Write the report, and a bundle with the branches of the report."""
        recreate_folder(self.updates)
        Path(f"{self.bundle}.json").write_text(json.dumps({"streams": self.streams}))
        branches = branches if branches is not None else [each["branch"] for each in self.streams]
        if branches:
            heads = [f"refs/heads/{each}" for each in branches]
            self.fleet.work.git("bundle", "create", "--quiet", str(self.bundle), *heads, "^main")

    def run_second_job(self) -> tuple[int, str]:
        self.fleet.work.git("push", "--quiet", "--force", "origin", "refs/heads/main")
        recreate_folder(self.fleet.job)
        temporary = recreate_folder(self.folder / "temporary")
        environment = {"PATH": f"{self.programs}:{os.environ['PATH']}", "GITBOOT_SUBPATH": self.subpath}
        match self.forge:
            case Forge.GITHUB:
                self.fleet.work.git("clone", "--quiet", str(self.fleet.remote), str(self.fleet.job))
                self.updates.rename(temporary / "gitboot")
                environment |= {"RUNNER_TEMP": str(temporary), "BASE": self.base, "GH_TOKEN": TOKEN, "TARGET": "main"}
                script = find_step(GITHUB, "propose", "Propose")
            case Forge.GITLAB:
                self.updates.rename(self.fleet.job / "updates")
                environment |= self.describe_gitlab() | {"GITBOOT_TOKEN": TOKEN}
                script = "\n".join(yaml.safe_load(build_seed_file(GITLAB))["gitboot:propose-images"]["script"])
            case Forge.GITEA:
                report, bundle = Path(f"{self.bundle}.json"), self.bundle
                environment |= self.describe_gitea() | {
                    "TOKEN": TOKEN,
                    "REPORT": base64.b64encode(report.read_bytes()).decode(),
                    "BUNDLE": base64.b64encode(bundle.read_bytes()).decode() if bundle.exists() else "",
                }
                script = find_step(GITEA, "propose", "Propose")
        return run_step(self.fleet.job, script, {"TMPDIR": str(temporary), **environment})

    def describe_gitlab(self) -> dict[str, str]:
        return {
            "CI_API_V4_URL": self.host.url,
            "CI_COMMIT_SHA": self.base,
            "CI_DEFAULT_BRANCH": "main",
            "CI_PIPELINE_ID": PIPELINE,
            "CI_PROJECT_ID": "3",
            "CI_PROJECT_PATH": "acme/fleet",
            "CI_PROJECT_URL": "https://x.test/acme/fleet",
            "CI_REPOSITORY_URL": str(self.fleet.remote),
            "CI_SERVER_HOST": "x.test",
            "CI_SERVER_PORT": "443",
            "CI_SERVER_PROTOCOL": "https",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{self.fleet.remote}.insteadOf",
            "GIT_CONFIG_VALUE_0": f"https://gitboot:{TOKEN}@x.test:443/acme/fleet.git",
        }

    def describe_gitea(self) -> dict[str, str]:
        return {
            "GITHUB_API_URL": self.host.url,
            "GITHUB_REF": "refs/heads/main",
            "GITHUB_REF_NAME": "main",
            "GITHUB_REPOSITORY": "acme/fleet",
            "GITHUB_SERVER_URL": f"file://{self.folder}/gitea",
            "GITHUB_SHA": self.base,
        }

    def list_branches(self) -> dict[str, str]:
        """Return the branches of gitboot at the forge."""
        listed = self.fleet.work.git("ls-remote", str(self.fleet.remote), "refs/heads/gitboot/*").split("\n")
        return {each.split("\t")[1].removeprefix("refs/heads/"): each.split("\t")[0] for each in listed if each}


def find_step(path: str, job: str, name: str) -> str:
    (step,) = (each for each in yaml.safe_load(build_seed_file(path))["jobs"][job]["steps"] if each.get("name") == name)
    script: str = step["run"]
    return script


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[Forge], Repository]]:
    with pull_request_host(tmp_path) as host:

        def build(forge: Forge, subpath: str = "") -> Repository:
            fleet = Fleet(tmp_path, subpath)
            fleet.work.git("switch", "--quiet", "main")
            (tmp_path / "gitea" / "acme").mkdir(parents=True)
            (tmp_path / "gitea" / "acme" / "fleet.git").symlink_to(fleet.remote)
            programs = recreate_folder(tmp_path / "programs")
            (programs / "gh").write_text(_GH.format(python=sys.executable, store=str(tmp_path / "gh.json")))
            (programs / "gh").chmod(0o755)
            host.remote = fleet.remote
            return Repository(forge, fleet, host, tmp_path, programs, subpath)

        yield build


@every_forge
def test_the_second_job_pushes_proposals_and_opens_one_pull_request_for_each_once_it_is_ready(
    forge: Forge, make: Callable[[Forge], Repository]
) -> None:
    """A closed pull request stays closed until its branch is deleted."""
    repository, edge = make(forge), "gitboot/update-edge-talos-1.9.9"

    def run(branches: list[str] | None = None) -> list[PullRequest]:
        repository.write_updates(branches)
        code, out = repository.run_second_job()
        assert code == 0, out
        return repository.host.read()

    repository.streams.append({"stream": "stable", "outcome": "Failed", "branch": None, "commit": None})
    assert (run([]), repository.list_branches()) == ([], {})
    repository.streams.clear()
    ready, waiting = repository.propose_commit(), repository.propose_commit(branch=edge, title="Talos", ready=False)
    assert run() == [PullRequest(BRANCH, "main", TITLE, BODY, ready)]
    assert repository.list_branches() == {BRANCH: ready, edge: waiting}
    assert list(repository.folder.rglob("evil")) == []
    assert len(run()) == 1
    repository.host.change({"is_open": False})
    assert len(run()) == 1
    repository.streams[1]["ready"] = True
    repository.fleet.work.git("commit", "--quiet", "--allow-empty", "--message=Meanwhile")  # the base has moved
    assert [each.branch for each in run([])] == [BRANCH, edge]  # the branches are at the forge
    assert repository.list_branches()[edge] == waiting
    repository.fleet.work.git("push", "--quiet", "--delete", "origin", BRANCH)
    repository.streams.clear()
    again = repository.propose_commit(message="Begin the rollout again")
    found = {each.commit: (each.branch, each.is_open) for each in run()}
    assert found == {ready: (BRANCH, False), waiting: (edge, True), again: (BRANCH, True)}


@pytest.mark.parametrize("forge", [Forge.GITHUB, Forge.GITLAB])
def test_a_pull_request_of_a_fork_does_not_count(forge: Forge, make: Callable[[Forge], Repository]) -> None:
    repository = make(forge)
    repository.propose_commit()
    repository.write_updates()
    assert repository.run_second_job()[0] == 0
    repository.host.change({"is_fork": True})
    repository.write_updates()
    assert repository.run_second_job()[0] == 0
    assert [each.is_fork for each in repository.host.read()] == [True, False]


@every_forge
def test_a_branch_that_a_person_changed_stays_as_it_is(forge: Forge, make: Callable[[Forge], Repository]) -> None:
    repository = make(forge)
    repository.propose_commit()
    own = repository.fleet.work.git("commit-tree", "-p", "main", "-m", "Mine", "main^{tree}")
    repository.fleet.work.git("push", "--quiet", "origin", f"{own}:refs/heads/{BRANCH}")
    repository.write_updates()
    code, out = repository.run_second_job()
    assert (code, f"{BRANCH} has other commits now" in out) == (0, True), out
    assert repository.list_branches() == {BRANCH: own}
    assert repository.host.read() == []


@pytest.mark.parametrize("forge", [Forge.GITLAB, Forge.GITEA])
def test_a_run_after_a_failure_of_the_forge_opens_the_pull_request(
    forge: Forge, make: Callable[[Forge], Repository]
) -> None:
    repository = make(forge)
    repository.propose_commit()
    repository.write_updates()
    repository.host.faults = 1
    code, out = repository.run_second_job()
    assert (code != 0, "502" in out) == (True, True), out
    repository.write_updates()
    assert repository.run_second_job()[0] == 0
    assert len(repository.host.read()) == 1


# A first job that a vendor has taken over


def make_link(path: Path) -> None:
    (path / "images" / "x.yaml").symlink_to("/etc/passwd")


def make_executable(path: Path) -> None:
    (path / "images" / "x.yaml").write_text("kind: BootImage\n")
    (path / "images" / "x.yaml").chmod(0o755)


# By name: the reason that the job prints, and the arguments of `propose_commit`.
HOSTILE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "the default branch": ("is not a branch", {"branch": "main2", "as_branch": "main"}),
    "a rollout": ("is not a branch", {"branch": "gitboot/rollout-stable-1"}),
    "a parent folder": ("is not a branch", {"as_branch": "gitboot/update-../../main"}),
    "an option": ("is not a branch", {"as_branch": "--upload-pack=touch evil"}),
    "a command": ("is not a branch", {"as_branch": "gitboot/update-$(touch evil)"}),
    "a second line": ("is not a branch", {"as_branch": f"{BRANCH}\nmain"}),
    "no text": ("without texts", {"as_branch": {"a": 1}}),
    "another commit": ("is not a commit", {"commit": "HEAD"}),
    "a title with a line break": ("is not a title", {"title": "a\n::error::b"}),
    "a long title": ("is not a title", {"title": "a" * 256}),
    "an empty title": ("is not a title", {"title": ""}),
    "a title that turns off checks": ("turns off checks", {"title": "Update [skip ci]"}),
    "a long body": ("more than 60000", {"body": "a" * 60_001}),
    "a command of GitLab": ("has a command", {"body": "text\n  /merge\n"}),
    "a command with a carriage return": ("cannot be shown", {"body": "text\n/\rmerge\n"}),  # GitLab removes it
    "a body that controls a terminal": ("cannot be shown", {"body": "text\n\x1b[31m"}),
    "a body that hides text": ("cannot be shown", {"body": "text \u202e"}),
    "a message that turns off checks": ("a commit message that", {"message": "Update\n\n[ci skip]"}),
    "a long message that turns off checks": (
        "a commit message that",
        {"message": "Update [no ci]\n\n" + "a" * 200_000},
    ),
    "a trailer that turns off checks": ("a commit message that", {"message": "Update\n\n\nskip-checks: true"}),
    "an acknowledgement": ("a commit message that", {"message": f"Update\n\nGitboot-Ack: {'0' * 64} maxReinstalls"}),
    "a workflow": ("not part of the fleet", {"files": {".github/workflows/evil.yml": "on: push"}}),
    "a workflow and an image": (
        "more than an image and a stream",
        {"files": {**IMAGE, ".gitea/workflows/evil.yml": "on: push"}},
    ),
    "a name that Git quotes": ("not part of the fleet", {"files": {".github/workflows/é.yml": "on: push"}}),
    "three files": ("more than an image and a stream", {"files": {**IMAGE, "policies/new.yaml": "kind: BootPolicy\n"}}),
    "no file": ("more than an image and a stream", {"files": {}}),
    "a template": ("not a document", {"files": {"userdata/x.ign.j2": "{}"}}),
    "an ignored folder": ("not part of the fleet", {"files": {".gitbootignore": "servers/"}}),
    "a removed file": (
        "removes a file",
        {"files": {"images/memtest86plus-7.20.yaml": None, "images/new.yaml": "kind: BootImage\n"}},
    ),
    "a symlink": ("special file", {"files": {}, "prepare": make_link}),
    "an executable file": ("special file", {"files": {}, "prepare": make_executable}),
}


@every_forge
def test_the_second_job_refuses_results_of_a_hostile_first_job(
    forge: Forge, make: Callable[[Forge], Repository]
) -> None:
    """One wrong result, and the job pushes nothing. Each forge gets a third, because its checks are the same."""
    repository = make(forge)
    before = repository.base
    for attack in [*HOSTILE][[*Forge].index(forge) :: len(Forge)]:
        repository.streams.clear()
        repository.propose_commit(branch="gitboot/update-a-good-1")
        reason, arguments = HOSTILE[attack][0], dict(HOSTILE[attack][1])
        name = arguments.pop("as_branch", None)
        repository.propose_commit(**arguments)
        branches = [each["branch"] for each in repository.streams]
        if name is not None:
            repository.streams[1]["branch"] = name
        repository.write_updates(branches)
        code, out = repository.run_second_job()
        assert code == 1 and re.search(rf"^refused: .*{re.escape(reason)}", out, re.MULTILINE), (attack, out)
        assert (repository.list_branches(), repository.host.read()) == ({}, []), attack
        main = repository.fleet.work.git("ls-remote", str(repository.fleet.remote), "refs/heads/main")
        assert main.startswith(before), attack
        assert list(repository.folder.rglob("evil")) == [], attack


@pytest.mark.parametrize(("history", "forge"), [*zip(("two commits", "an older base", "a merge"), Forge, strict=True)])
def test_a_proposal_is_one_commit_on_the_commit_of_the_job(
    history: str, forge: Forge, make: Callable[[Forge], Repository]
) -> None:
    repository = make(forge)
    work = repository.fleet.work
    older = work.head
    work.commit({"a.yaml": "1"}, "Meanwhile")
    match history:
        case "an older base":
            repository.propose_commit(base=older)
        case "two commits":
            hidden = repository.propose_commit({"images/x.yaml": "kind: BootImage\n"}, branch="gitboot/update-hidden")
            repository.streams.clear()
            repository.propose_commit(base=hidden)
        case _:
            repository.propose_commit()
            commit = work.git("commit-tree", "-p", "main", "-p", older, "-m", "Merge", f"{BRANCH}^{{tree}}")
            work.git("update-ref", f"refs/heads/{BRANCH}", commit)
            repository.streams[0]["commit"] = commit
    recreate_folder(repository.updates)
    Path(f"{repository.bundle}.json").write_text(json.dumps({"streams": repository.streams}))
    work.git("bundle", "create", "--quiet", str(repository.bundle), f"refs/heads/{BRANCH}", f"^{older}")
    code, out = repository.run_second_job()
    assert (code, f"refused: the parent of {BRANCH} is not {repository.base}" in out) == (1, True), out
    assert repository.list_branches() == {}


def test_a_proposal_changes_only_the_folder_of_the_fleet(make: Callable[..., Repository]) -> None:
    repository = make(Forge.GITLAB, "infra/boot")
    repository.propose_commit({f"infra/boot/{name}": text for name, text in IMAGE.items()})
    repository.write_updates()
    code, out = repository.run_second_job()
    assert code == 0, out
    repository.propose_commit({"infra/images/x.yaml": "kind: BootImage\n"}, branch="gitboot/update-other")
    repository.write_updates()
    code, out = repository.run_second_job()
    assert (code, "changes a file outside the fleet" in out) == (1, True), out
    assert repository.list_branches().keys() == {BRANCH}


@pytest.mark.parametrize("forge", [Forge.GITHUB, Forge.GITLAB])
def test_the_second_job_reads_only_regular_files_of_a_limited_size(
    forge: Forge, make: Callable[[Forge], Repository]
) -> None:
    repository = make(forge)
    repository.propose_commit()
    report, bundle, elsewhere = Path(f"{repository.bundle}.json"), repository.bundle, repository.folder / "elsewhere"
    each = ("report", "bundle", "large report", "large bundle", "no JSON", "no bundle")
    for which in each[forge is Forge.GITLAB :: 2]:
        repository.write_updates()
        match which:
            case "report":
                report.rename(elsewhere)
                report.symlink_to(elsewhere)
            case "bundle":
                bundle.rename(elsewhere)
                bundle.symlink_to(elsewhere)
            case "large report":
                report.write_text(json.dumps({"streams": repository.streams, "more": "x" * 1_000_000}))
            case "large bundle":
                os.truncate(bundle, 10_000_001)
            case "no JSON":
                report.write_text("[" * 100_000)
            case _:
                bundle.write_text("#!/bin/sh\n")
        code, out = repository.run_second_job()
        assert code != 0, (which, out)
        assert (repository.list_branches(), repository.host.read()) == ({}, []), which


def test_a_title_with_the_token_of_the_job_is_not_expanded(make: Callable[[Forge], Repository]) -> None:
    repository = make(Forge.GITLAB)
    repository.propose_commit(title="$GITBOOT_TOKEN ${GITBOOT_TOKEN}", body="@/proc/self/environ")
    repository.write_updates()
    assert repository.run_second_job()[0] == 0
    (request,) = repository.host.read()
    assert (request.title, request.body) == ("$GITBOOT_TOKEN ${GITBOOT_TOKEN}", "@/proc/self/environ")


# The first job

_GITBOOT: Final = """\
#!/bin/sh
env > {folder}/environment
cat "$(git rev-parse --git-dir)/config" >> {folder}/environment
printf '%s\\n' "$*" > {folder}/arguments
while [ "$1" != --bundle ]; do shift; done
if [ -f {folder}/bundle ]; then cp {folder}/bundle "$2"; cp {folder}/bundle.json "$2.json"; fi
exit "$(cat {folder}/code)"
"""
_INSTALLED: Final = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -P -m gitboot "$@"\n'


def run_first_job(repository: Repository, exit_code: int | None, keys: str = "") -> tuple[int, str, dict[str, str]]:
    """Run the first job, and return its outputs, too.

    With an exit code, the program gitboot only copies the updates. With None, it is the real one.
    """
    folder = repository.folder
    (folder / "code").write_text(str(exit_code))
    (repository.programs / "gitboot").write_text(
        _GITBOOT.format(folder=folder) if exit_code is not None else _INSTALLED
    )
    (repository.programs / "gitboot").chmod(0o755)
    recreate_folder(repository.fleet.job)
    temporary, outputs = recreate_folder(folder / "temporary"), folder / "outputs"
    outputs.write_text("")
    environment = {
        "PATH": f"{repository.programs}:{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(outputs),
        "RUNNER_TEMP": str(temporary),
        "KEYS": keys,
        "GITBOOT_IMAGE_KEYS": keys,
    }
    match repository.forge:
        case Forge.GITHUB:
            repository.fleet.work.git("clone", "--quiet", str(repository.fleet.remote), str(repository.fleet.job))
            (temporary / "gitboot").mkdir()
            scripts = [find_step(GITHUB, "update", "Update")]
        case Forge.GITLAB:
            job = yaml.safe_load(build_seed_file(GITLAB))["gitboot:update-images"]
            scripts = ["\n".join([job["before_script"][0], *job["script"]])]
            environment |= repository.describe_gitlab() | {
                "CI_JOB_TOKEN": "job-secret",
                "CI_REGISTRY_PASSWORD": "job-secret",
                "GITBOOT_TOKEN": TOKEN,
            }
        case Forge.GITEA:
            scripts = [find_step(GITEA, "update", name) for name in ("Clone", "Update")]
            scripts = [each.replace("/tmp/", f"{temporary}/") for each in scripts]
            environment |= repository.describe_gitea() | {
                "GITHUB_TOKEN": "job-secret",
                "ACTIONS_RUNTIME_TOKEN": "job-secret",
            }
    told = ""
    for number, script in enumerate(scripts):
        more = {"TOKEN": "job-secret"} if repository.forge is Forge.GITEA and number == 0 else {}
        code, out = run_step(repository.fleet.job, script, environment | more)
        told += out
        if code:
            break
    return code, told, dict(line.split("=", 1) for line in outputs.read_text().splitlines())


@every_forge
def test_no_token_is_in_the_environment_or_in_the_clone_of_the_first_job(
    forge: Forge, make: Callable[[Forge], Repository]
) -> None:
    repository = make(forge)
    code, out, _ = run_first_job(repository, 0)
    assert code == 0, out
    environment = (repository.folder / "environment").read_text()
    assert "secret" not in environment.replace(f"url.{repository.fleet.remote}.insteadOf", "").replace(
        f"GIT_CONFIG_VALUE_0=https://gitboot:{TOKEN}@x.test",
        "",  # the test's own
    )
    assert "PATH=" in environment and "[core]" in environment


@every_forge
def test_the_first_job_keeps_the_proposals_of_the_other_sources_if_one_source_fails(
    forge: Forge, make: Callable[[Forge], Repository]
) -> None:
    repository = make(forge)
    commit = repository.propose_commit()
    repository.write_updates()
    repository.bundle.rename(repository.folder / "bundle")
    Path(f"{repository.bundle}.json").rename(repository.folder / "bundle.json")
    for exit_code in (0, 6):
        code, out, outputs = run_first_job(repository, exit_code, "/keys of ours")
        assert code == exit_code, out
        assert (repository.folder / "arguments").read_text().endswith(" --image-keys /keys of ours\n")
        match forge:
            case Forge.GITHUB:
                assert outputs == {"proposals": "true"}
                kept = repository.folder / "temporary" / "gitboot"
                found = (kept / "updates.bundle").read_bytes(), (kept / "updates.bundle.json").read_bytes()
            case Forge.GITLAB:
                kept = repository.fleet.job / "updates"
                found = (kept / f"{PIPELINE}.bundle").read_bytes(), (kept / f"{PIPELINE}.bundle.json").read_bytes()
            case Forge.GITEA:
                assert set(outputs) == {"bundle", "report"}
                found = base64.b64decode(outputs["bundle"]), base64.b64decode(outputs["report"])
        assert found[0] == (repository.folder / "bundle").read_bytes()
        assert json.loads(found[1]) == {"streams": [{**each, "commit": commit} for each in repository.streams]}


def test_gitea_refuses_more_than_a_variable_can_carry(make: Callable[[Forge], Repository]) -> None:
    repository = make(Forge.GITEA)
    (repository.folder / "bundle").write_bytes(os.urandom(90_001))
    (repository.folder / "bundle.json").write_text('{"streams": []}')
    code, out, outputs = run_first_job(repository, 0)
    assert (code, "updates.bundle has more than 90000 bytes" in out, outputs) == (1, True, {})


def test_on_gitea_only_the_default_branch_gets_proposals(make: Callable[[Forge], Repository]) -> None:
    repository = make(Forge.GITEA)
    script = find_step(GITEA, "update", "Clone").replace("/tmp/", f"{repository.folder}/")
    recreate_folder(repository.fleet.job)
    environment = {**repository.describe_gitea(), "GITHUB_REF_NAME": "change", "TOKEN": TOKEN}
    code, out = run_step(repository.fleet.job, script, environment)
    assert (code, "change is not the default branch" in out) == (1, True)


# The whole way, from a release of a vendor to a pull request

SOURCE: Final = """\
apiVersion: gitboot.dev/v1alpha1
kind: ImageSource
metadata: {{name: metalos}}
spec:
  architectures: {{x86_64: amd64}}
  releases: {{format: DirectoryListing, url: "{url}/metalos/", match: "{{version}}"}}
  files:
    kernel: {{url: "{url}/metalos/{{version}}/vmlinuz-{{arch}}"}}
  checksums: {{url: "{url}/metalos/{{version}}/SHA256SUMS", signature: {{openpgp: "{{url}}.asc"}}}}
  keys: [{key}]
"""
STREAM: Final = """\
apiVersion: gitboot.dev/v1alpha1
kind: ImageStream
metadata: {name: stable}
spec:
  current: metalos-1.4.0  # moved by hand
  follow: {source: metalos, percent: 5}
"""


def publish(server: ArtifactServer, person: Person, version: str, folder_of_lists: Path) -> None:
    """Serve a release, with a signed list of digests, and the page of its folder."""
    folder = f"/metalos/{version}"
    content = f"kernel of {version}".encode()
    server.put(f"{folder}/vmlinuz-amd64", content)
    listed = f"{compute_digest(content)}  vmlinuz-amd64\n".encode()
    server.put(f"{folder}/SHA256SUMS", listed)
    file = folder_of_lists / f"SHA256SUMS-{version}"
    file.write_bytes(listed)
    server.put(f"{folder}/SHA256SUMS.asc", sign_with_gpg(person, file, "--armor", "--detach-sign"))
    versions = sorted({path.split("/")[2] for path in server.files if path.startswith("/metalos/1")})
    page = "".join(f'<a href="{each}/">{each}/</a>\n' for each in versions)
    server.put("/metalos/", f"<html>{page}</html>".encode(), "text/html")


@every_forge
def test_a_release_of_a_vendor_becomes_a_pull_request_once_it_has_the_right_signature(
    forge: Forge, make: Callable[[Forge], Repository], tmp_path: Path
) -> None:
    repository = make(forge)
    work, keys = repository.fleet.work, tmp_path / "keys"
    keys.mkdir()
    with artifact_server() as server, gpg_people("vendor", "stranger") as people:
        person = people["vendor"]
        (keys / "vendor.asc").write_bytes(person.public.read_bytes())
        publish(server, person, "1.4.0", tmp_path)
        work.commit({"sources/metalos.yaml": SOURCE.format(url=server.url, key=find_fingerprint(person))})
        run_gitboot("new", "image", "metalos", "--path", work.path, "--image-keys", keys)
        work.commit({"streams/stable.yaml": STREAM}, "Follow metalos")
        work.git("push", "--quiet", "origin", "main")
        base, fingerprint = repository.base, find_fingerprint(person)
        publish(server, people["stranger"], "1.5.0", tmp_path)
        code, out, outputs = run_first_job(repository, None, str(keys))
        assert (code, "stable: failed: " in out) == (6, True), out
        take_updates(repository, outputs)
        assert repository.run_second_job()[0] == 0
        assert (repository.list_branches(), repository.host.read()) == ({}, [])
        publish(server, person, "1.5.0", tmp_path)
        code, out, outputs = run_first_job(repository, None, str(keys))
    assert code == 0, out
    take_updates(repository, outputs)
    code, out = repository.run_second_job()
    assert code == 0, out
    (request,) = repository.host.read()
    assert request.branch == "gitboot/update-stable-metalos-1.5.0"
    assert request.title == "Begin the rollout of metalos-1.5.0 to 5 % of stable"
    assert f"x86_64.kernel: signed by {fingerprint}" in request.body
    work.git("fetch", "--quiet", "origin", f"refs/heads/{request.branch}:refs/heads/review")
    assert work.git("log", "--format=%P", "-1", "review") == base
    assert work.git("diff", "--name-status", "main", "review").split() == [
        *("A", "images/metalos-1.5.0.yaml", "M", "streams/stable.yaml"),
    ]
    changed = yaml.safe_load(work.git("show", "review:streams/stable.yaml"))
    assert changed["spec"] == {
        "current": "metalos-1.4.0",
        "rollout": {"image": "metalos-1.5.0", "percent": 5},
        "follow": {"source": "metalos", "percent": 5},
    }
    run_gitboot("validate", work.path, "--rev", "review")


def run_gitboot(*arguments: str | Path) -> None:
    cli.main([str(each) for each in arguments], prog_name="gitboot", standalone_mode=False)


def take_updates(repository: Repository, outputs: Mapping[str, str]) -> None:
    """Move what the first job kept to the place from which the second job takes it."""
    recreate_folder(repository.updates)
    match repository.forge:
        case Forge.GITHUB:
            for path in (repository.folder / "temporary" / "gitboot").iterdir():
                path.rename(repository.updates / path.name)
        case Forge.GITLAB:
            for path in (repository.fleet.job / "updates").iterdir():
                path.rename(repository.updates / path.name)
        case Forge.GITEA:
            repository.bundle.write_bytes(base64.b64decode(outputs["bundle"]))
            Path(f"{repository.bundle}.json").write_bytes(base64.b64decode(outputs["report"]))
            if not repository.bundle.stat().st_size:
                repository.bundle.unlink()


# Permissions


def test_only_the_job_that_does_not_read_vendors_may_write() -> None:
    github, gitea = (yaml.safe_load(build_seed_file(path)) for path in (GITHUB, GITEA))
    update, propose_commit = (github["jobs"][name] for name in ("update", "propose"))
    assert (github["permissions"], update["permissions"]) == ({}, {"contents": "read"})
    assert propose_commit["permissions"] == {"contents": "write", "pull-requests": "write"}
    (checkout,) = (each for each in update["steps"] if "actions/checkout" in str(each.get("uses")))
    assert checkout["with"]["persist-credentials"] is False
    assert "token" not in str(update).lower() and "secrets." not in str(update)
    assert gitea["permissions"] == {"contents": "read"}
    assert "GITBOOT_TOKEN" not in str(gitea["jobs"]["update"])
    gitlab = yaml.safe_load(build_seed_file(GITLAB))
    assert gitlab["gitboot:update-images"]["before_script"][0] == "unset GITBOOT_TOKEN"
    assert gitlab["gitboot:propose-images"]["environment"]["name"] == "gitboot-update-images"
    assert "environment" not in gitlab["gitboot:update-images"]
    for text in (str(propose_commit), str(gitea["jobs"]["propose"]), str(gitlab["gitboot:propose-images"])):
        assert "pip" not in text and "gitboot update-images" not in text and "pre-commit" not in text


def test_the_checks_are_the_same_at_each_forge() -> None:
    scripts = [
        find_step(GITHUB, "propose", "Propose"),
        yaml.safe_load(build_seed_file(GITLAB))["gitboot:propose-images"]["script"][-1],
        find_step(GITEA, "propose", "Propose"),
    ]
    begin = "# The first job read files of vendors"
    first, *others = (script[script.index(begin) :].strip() for script in scripts)
    assert others == [first, first]
    assert "--force" not in first and "eval" not in first and "push --quiet" in first


# Rollouts and reviews at Gitea


def test_gitea_proposes_the_next_step_of_a_rollout(make: Callable[[Forge], Repository], tmp_path: Path) -> None:
    repository = make(Forge.GITEA)
    stream = "rollout: {image: flatcar-4459.2.4, percent: 0}  # by the bot"
    text = STREAM.replace("metalos-1.4.0", "flatcar-4459.2.4").replace("follow: {source: metalos, percent: 5}", stream)
    applied = repository.fleet.work.commit({"streams/stable.yaml": text}, "Roll out")
    repository.fleet.work.git("push", "--quiet", "origin", "main")
    ops = tmp_path / "output" / "ops"
    (ops / "records").mkdir(parents=True)
    (ops / "records" / "00.json").write_bytes(encode_records({}))
    status = {"applied": {"commit": applied}, "at": datetime.now(UTC).isoformat(), "conditions": []}
    (ops / "status.json").write_text(json.dumps(status))
    (repository.programs / "gitboot").write_text(_INSTALLED)
    (repository.programs / "gitboot").chmod(0o755)
    recreate_folder(repository.fleet.job)
    temporary, outputs = recreate_folder(tmp_path / "temporary"), tmp_path / "outputs"
    environment = {
        **repository.describe_gitea(),
        "PATH": f"{repository.programs}:{os.environ['PATH']}",
        "TMPDIR": str(temporary),
        "GITHUB_OUTPUT": str(outputs),
        "STREAM": "stable",
        "RECORDS": str(tmp_path / "output"),
        "STEPS": "1,100",
        "AFTER": "95%",
        "TOKEN": TOKEN,
    }
    for name in ("Clone", "Advance"):
        script = find_step(GITEA_ROLLOUT, "advance", name).replace("/tmp/", f"{temporary}/")
        code, out = run_step(repository.fleet.job, script, environment)
        assert code == 0, out
    environment["BUNDLE"] = outputs.read_text().strip().removeprefix("bundle=")
    code, out = run_step(repository.fleet.job, find_step(GITEA_ROLLOUT, "propose", "Propose"), environment)
    assert code == 0, out
    (request,) = repository.host.read()
    branch, title = "gitboot/rollout-stable-1", "Roll flatcar-4459.2.4 out to 1 % of stable"
    assert (request.branch, request.target, request.title) == (branch, "main", title)
    assert repository.list_branches() == {branch: request.commit}


def run_review(fleet: Fleet, programs: Path, event: str = "pull_request", **more: str) -> tuple[int, str]:
    fleet.work.git("push", "--quiet", "--force", "origin", "refs/heads/main", "refs/heads/change")
    fleet.work.git("push", "--quiet", "--force", "origin", "refs/heads/change:refs/pull/7/head")
    folder = fleet.job.parent
    (folder / "acme").mkdir(exist_ok=True)
    (folder / "acme" / "fleet.git").unlink(missing_ok=True)
    (folder / "acme" / "fleet.git").symlink_to(fleet.remote)
    temporary = recreate_folder(folder / "gitea-temporary")
    recreate_folder(fleet.job)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "GITBOOT_SUBPATH": fleet.subpath,
        "GITHUB_SERVER_URL": f"file://{folder}",
        "GITHUB_REPOSITORY": "acme/fleet",
        "GITHUB_REF": "refs/pull/7/head" if event == "pull_request" else "refs/heads/main",
        "GITHUB_BASE_REF": "main" if event == "pull_request" else "",
        "TOKEN": "job-secret",
        **more,
    }
    scripts = [
        find_step(GITEA_REVIEW, "review", name).replace("/tmp/", f"{temporary}/") for name in ("Fetch", "Review")
    ]
    code, out = run_step(fleet.job, scripts[0], environment)
    if code == 0:
        code, out = run_step(fleet.job, scripts[1], environment)
    return code, out


def test_gitea_reviews_a_pull_request_in_its_log(fleet: Fleet, programs: Path) -> None:
    fleet.change(HARMLESS)
    code, out = run_review(fleet, programs)
    assert (code, "1 server" in out, "debug" in out) == (0, True, True), out
    fleet.change({"servers/web01.yaml": ("provision: 1", "provision: 2")})
    code, out = run_review(fleet, programs)
    assert (code, "Gitboot-Ack: " in out) == (4, True), out
    fleet.change(INVALID)
    code, out = run_review(fleet, programs)
    assert (code, "GB1022" in out) == (3, True), out
    assert run_review(fleet, programs, "push")[0] == 0


def test_gitea_reviews_a_fleet_in_a_folder(tmp_path: Path, programs: Path) -> None:
    fleet = Fleet(tmp_path, "infra/boot")
    fleet.change(INVALID)
    code, out = run_review(fleet, programs)
    assert (code, "infra/boot/servers/web01.yaml" in out) == (3, True), out


def test_git_reads_what_the_workflows_check(make: Callable[[Forge], Repository]) -> None:
    """The checks depend on the form of `git diff-tree --raw`."""
    repository = make(Forge.GITHUB)
    commit = repository.propose_commit()
    command = ["git", "diff-tree", "-r", "--no-renames", "--raw", "main", commit]
    ran = subprocess.run(
        command, cwd=repository.fleet.work.path, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert [line.split()[-2:] for line in ran.stdout.splitlines()] == [["A", name] for name in IMAGE]
