"""A Git branch that follows a published directory, over real servers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pygit2
import pytest

from gitboot.errors import ForeignTree, PublishError, SourceError, SourceRefused, UsageError
from gitboot.git.branch_writer import Authorship, OwnedBranch
from gitboot.git.fetch import Fetcher
from gitboot.git.remote import Password, Remote, SshKey
from gitboot.publish.manifest import compute_digest
from gitboot.publish.targets.git_branch import BranchTarget
from gitboot.publish.targets.sync_steps import HEAD
from gitboot.render.paths import File
from tests.helpers.documentation import build_checkout_script, clone_for_checkouts
from tests.helpers.git_repositories import ENVIRONMENT, HttpsServer, Relay, SshServer, git_daemon
from tests.publish.targets.test_s3 import COMMIT, ENTRY, FollowedSite, assert_holds, fleet

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)
ADA = Authorship("Ada", "ada@example.net", 1_700_000_000, 60)
REF = "refs/heads/boot"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    path = tmp_path / "served" / "boots.git"
    pygit2.init_repository(str(path), bare=True, initial_head="main").free()
    return path


def git(bare: Path, *arguments: str) -> str:
    command = ["git", "-C", str(bare), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout.strip()


class Site(FollowedSite):
    def __init__(self, folder: Path, remote: Remote, *, ledger: str = "ours", heir_of: str | None = None) -> None:
        self._folder, self._remote = folder, remote
        self.follows_default = False
        self.fetcher: Fetcher | None = None  # in this process
        super().__init__(folder / "out", ledger=ledger, heir_of=heir_of)

    def open_target(self, clone: str = "clone.git") -> None:
        """Open a target as a new process does, with only a clone from before."""
        branch = OwnedBranch(lambda: self._remote, REF, self._folder / clone, fetcher=self.fetcher)
        self.target = BranchTarget(
            "git+test#boot",
            branch,
            ledger=self.ledger,
            heir_of=lambda: self.heir_of,
            follows_default=self.follows_default,
            find_author=lambda revision: ADA if revision == COMMIT else None,
            clock=lambda: AT,
        )


@pytest.fixture
def site(tmp_path: Path, bare: Path) -> Site:
    return Site(tmp_path, Remote(url=str(bare)))


def read_served(bare: Path, commit: str = "boot") -> dict[str, bytes]:
    """Return the files that a checkout of a commit serves."""
    names = git(bare, "ls-tree", "-r", "--name-only", commit, "boot/").splitlines()
    return {name: subprocess.check_output(["git", "-C", str(bare), "show", f"{commit}:{name}"]) for name in names}


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with SshServer(tmp_path_factory.mktemp("ssh")).running() as server:
        yield server


def test_a_branch_is_pushed_over_ssh(ssh: SshServer, bare: Path, tmp_path: Path) -> None:
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{ssh.port} {ssh.public('ed25519')}\n")
    key = SshKey(private_key=ssh.key("client"), passphrase=SshServer.PASSPHRASE, known_hosts=known_hosts)
    site = Site(tmp_path, Remote(url=f"ssh://{ssh.host}{bare}", credentials=key))
    site.deliver(fleet(1))
    assert_holds(read_served(bare), fleet(1))


def test_a_branch_is_pushed_over_https_with_a_password(bare: Path, tmp_path: Path) -> None:
    git(bare, "config", "http.receivepack", "true")
    with HttpsServer(bare.parent, tmp_path) as server:
        remote = Remote(
            url=f"{server.url}/private/boots.git",
            credentials=Password(password=HttpsServer.PASSWORD),
            ca_bundle=server.certificate,
        )
        site = Site(tmp_path, remote)
        site.deliver(fleet(1))
    assert_holds(read_served(bare), fleet(1))


def test_a_branch_is_pushed_to_a_daemon_and_an_interrupted_push_is_completed(bare: Path, tmp_path: Path) -> None:
    git(bare, "config", "daemon.receivepack", "true")
    with git_daemon(bare.parent) as url:
        site = Site(tmp_path, Remote(url=f"{url}/boots.git"))
        site.deliver(fleet(1))
        site.publish(fleet(2), AT + DAY)
        for passes in (1, 300, 600):  # bytes of the response; at last the push is accepted, and the response is lost
            with Relay(url, passes=passes, then="hangs up") as relay:
                cut = Site(tmp_path, Remote(url=f"{relay.url}/boots.git", timeout_s=5))
                with suppress(SourceError):
                    cut.follow()
            assert read_served(bare) and not git(bare, "fsck", "--strict")
        site.open_target()
        site.follow()
    assert_holds(read_served(bare), fleet(2))
    assert git(bare, "rev-list", "--count", "boot") == "2"


def test_each_change_is_one_commit_by_the_author_of_its_source(site: Site, bare: Path) -> None:
    site.deliver(fleet(1))
    site.deliver(fleet(2), AT + DAY, commit="b" * 40)
    assert git(bare, "log", "--format=%an <%ae> %ad %cn", "--date=raw", "boot").splitlines() == [
        f"gitboot <gitboot@localhost> {int(AT.timestamp())} +0000 gitboot",
        "Ada <ada@example.net> 1700000000 +0100 gitboot",
    ]
    trailers = git(bare, "log", "--format=%(trailers:only,unfold)", "boot").split()
    assert trailers[1::4] == ["b" * 40, COMMIT]
    assert trailers[0::2] == ["Gitboot-Source:", "Gitboot-Plan:"] * 2
    assert_holds(read_served(bare), fleet(2))


def test_a_commit_that_changes_no_file_makes_no_commit(site: Site, bare: Path) -> None:
    site.deliver(fleet(1))
    site.deliver({**fleet(1), "ops/serve/nginx.conf": File(b"another")}, AT + DAY, commit="b" * 40)
    site.open_target()
    site.follow()
    assert git(bare, "rev-list", "--count", "boot") == "1"
    site.deliver(fleet(1, (0, 1)), AT + DAY, commit="c" * 40)
    assert ENTRY.format(2) not in read_served(bare)
    assert git(bare, "rev-list", "--count", "boot") == "2"


def test_each_commit_has_complete_chains_also_for_a_client_that_read_the_one_before(site: Site, bare: Path) -> None:
    for version in range(1, 5):
        site.deliver(fleet(version, (0, 1 + version % 2)), AT + version * DAY, commit=str(version) * 40)
    commits = git(bare, "rev-list", "--reverse", "boot").splitlines()
    trees = [read_served(bare, commit) for commit in commits]
    assert len(trees) == 4
    for before, tree in zip(trees, [*trees[1:], trees[-1]], strict=True):
        for path, content in before.items():
            if path.startswith("boot/v1/"):
                named = content.decode().split()[1]
                assert named in before
                assert named in tree  # a client that has read the boot script, and then the next checkout


def test_content_leaves_the_branch_when_it_leaves_the_tree(site: Site, bare: Path) -> None:
    site.deliver(fleet(1))
    site.deliver(fleet(2), AT + DAY)
    old = {path for path in fleet(1) if "/o/" in path}
    assert old <= read_served(bare).keys()
    site.publish(fleet(2), AT + 9 * DAY)
    site.open_target()
    site.follow()
    assert not old & read_served(bare).keys()


def test_no_commit_is_added_to_a_branch_that_gitboot_did_not_make(site: Site, bare: Path, tmp_path: Path) -> None:
    tree = git(bare, "hash-object", "-t", "tree", "-w", "/dev/null")
    theirs = git(bare, "commit-tree", tree, "-m", "theirs")
    git(bare, "update-ref", REF, theirs)
    site.publish(fleet(1))
    with pytest.raises(PublishError, match="gitboot did not write this branch's content"):
        site.follow()
    assert git(bare, "rev-parse", "boot") == theirs


def test_a_branch_of_another_ledger_is_left_alone_until_it_is_taken_over(
    site: Site, bare: Path, tmp_path: Path
) -> None:
    site.deliver(fleet(1))
    before = git(bare, "rev-parse", "boot")
    other = Site(tmp_path, Remote(url=str(bare)), ledger="theirs")
    with pytest.raises(ForeignTree, match="belongs to the ledger ours, not to theirs"):
        other.follow()
    assert git(bare, "rev-parse", "boot") == before
    other.heir_of = "ours"
    other.open_target("another.git")
    other.deliver(fleet(2), AT + DAY)
    assert_holds(read_served(bare), fleet(2))
    site.open_target()
    with pytest.raises(ForeignTree, match="belongs to the ledger theirs, not to ours"):
        site.follow()


def test_a_shard_that_gitboot_cannot_parse_is_named(site: Site, bare: Path, tmp_path: Path) -> None:
    """The head contains the digest of the shard, so the same person or version of gitboot wrote both."""
    site.deliver(fleet(1))
    checkout = tmp_path / "checkout"
    git(bare, "worktree", "add", str(checkout), "boot")
    head = json.loads((checkout / HEAD).read_bytes())
    number = min(head["shards"])
    shard = b'{"web1":{"state":"x","files":{"/etc/passwd":"%s"}}}' % (b"a" * 64)
    (checkout / f"ops/shards/{number}.json").write_bytes(shard)
    head["shards"][number] = compute_digest(shard)
    (checkout / HEAD).write_text(json.dumps(head))
    git(checkout, "commit", "--all", "--message", "Another format")
    site.open_target()
    with pytest.raises(PublishError, match=rf"ops/shards/{number}\.json is damaged \(delete the branch"):
        site.follow()


def test_the_followed_branch_is_never_pushed_to(site: Site, bare: Path) -> None:
    git(bare, "symbolic-ref", "HEAD", REF)
    site.deliver(fleet(1))
    before = git(bare, "rev-parse", "boot")
    site.follows_default = True
    site.open_target()
    site.publish(fleet(2), AT + DAY)
    with pytest.raises(UsageError, match="is the branch that this instance follows"):
        site.follow()
    assert git(bare, "rev-parse", "boot") == before


@pytest.mark.parametrize("moves", ["ahead", "back", "away"])
def test_a_push_is_rejected_if_somebody_else_has_moved_the_branch(
    site: Site, bare: Path, moves: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the glance and the push: ahead, back to an older commit, or deleted."""
    site.deliver(fleet(1))
    first = git(bare, "rev-parse", "boot")
    site.deliver(fleet(2), AT + DAY)
    second = git(bare, "rev-parse", "boot")
    theirs = git(bare, "commit-tree", f"{second}^{{tree}}", "-p", second, "-m", "theirs")
    site.publish(fleet(3), AT + 2 * DAY)
    made = OwnedBranch.commit

    def commit(*given: object) -> str:
        if moves == "away":
            git(bare, "update-ref", "-d", REF)
        else:
            git(bare, "update-ref", REF, theirs if moves == "ahead" else first)
        return made(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(OwnedBranch, "commit", commit)
    with pytest.raises(SourceError, match="moved from"):
        site.follow()
    there = git(bare, "for-each-ref", "--format=%(objectname)", REF)
    assert there == {"ahead": theirs, "back": first, "away": ""}[moves]
    monkeypatch.setattr(OwnedBranch, "commit", made)
    site.follow()
    assert_holds(read_served(bare), fleet(3))


def test_a_rejected_push_is_an_error_with_the_reason(site: Site, bare: Path, tmp_path: Path) -> None:
    """libgit2 does not report the rejection by itself."""
    git(bare, "config", "daemon.receivepack", "true")
    hook = bare / "hooks" / "update"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with git_daemon(bare.parent) as url:
        site = Site(tmp_path, Remote(url=f"{url}/boots.git"))
        site.publish(fleet(1))
        with pytest.raises(SourceRefused, match=r"rejected .*hook declined"):
            site.follow()
    assert git(bare, "for-each-ref") == ""


# A checkout

KILLED = """#!/bin/sh
left=$(cat {counter})
echo $((left - 1)) > {counter}
if test "$left" = 0; then
    {act}
    kill -9 0
fi
exec {program} "$@"
"""
TOOLS = ("git", "rm", "mkdir", "tar", "mv", "ln")
STOPS = {  # a tool that is killed before it does anything, or when it has done a part
    "before": "true",
    "in the middle": 'case {tool} in tar) {program} "$@"; rm -f {boots}/next/boot/v1/boot/*/boot.ipxe;; esac',
}


@pytest.mark.parametrize("stop", STOPS)
def test_finding_m4_a_checkout_by_the_documented_script_serves_one_commit_whenever_it_is_killed(
    site: Site, bare: Path, tmp_path: Path, stop: str
) -> None:
    boots, tools, counter = tmp_path / "boots", tmp_path / "tools", tmp_path / "counter"
    boots.mkdir()
    tools.mkdir()
    site.deliver(fleet(1))
    clone = clone_for_checkouts(bare, tmp_path)
    for tool in TOOLS:
        places = {"counter": counter, "program": shutil.which(tool), "boots": boots, "tool": tool}
        places["act"] = STOPS[stop].format(**places)
        (tools / tool).write_text(KILLED.format(**places))
        (tools / tool).chmod(0o700)

    def run(steps: int) -> int:
        """Run the script, and kill it at this command; return its exit code."""
        counter.write_text(f"{steps}\n")
        environment = {**ENVIRONMENT, "PATH": f"{tools}:{ENVIRONMENT['PATH']}"}
        command = ["sh", "-c", build_checkout_script(boots)]
        return subprocess.run(command, cwd=clone, env=environment, check=False, start_new_session=True).returncode

    def lies() -> dict[str, bytes]:
        folder = boots / "current/boot"
        return {f"boot/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert run(-1) == 0
    whole = [read_served(bare)]
    assert lies() == whole[0]
    for number in count():
        site.deliver(fleet(2 + number), AT + number * DAY)
        whole.append(read_served(bare))
        code = run(number)
        assert lies() in whole[-2:]
        assert run(-1) == 0
        assert lies() == whole[-1]
        if code == 0:
            break
    assert number > len(TOOLS)
