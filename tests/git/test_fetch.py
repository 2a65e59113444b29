"""Fetching in a process of its own: what it takes, its deadlines and limits, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.child_processes import Child, encode
from gitboot.cli.main import Exit
from gitboot.errors import CorruptClone, SourceError, SourceRefused, SourceTooLarge, UsageError
from gitboot.git.__main__ import run_fetch_order
from gitboot.git.branch_writer import Authorship, OwnedBranch
from gitboot.git.clone import Source
from gitboot.git.fetch import FetchOrder, FetchProcess, InProcessFetcher, parse_order
from gitboot.git.remote import Password, Remote, SshKey
from gitboot.git.repository import FetchStep, StepReporter, Transfer
from tests.helpers.fleets import SEED, at, server, write_configuration
from tests.helpers.forked_commands import nursery
from tests.helpers.git_repositories import HttpsServer, Relay, SshServer, WorkTree, git_daemon, push_differences
from tests.helpers.instance_with_bmcs import condition, run_command, wait_for_condition
from tests.helpers.running_instance import (
    Instance,
    Repository,
    close_after,
    eventually,
    git,
    is_alive,
    list_fetchers,
    read_peak_mib,
    running,
)

MEBIBYTES = 80  # of a file that comes as a difference: twice that is what to unpack it takes


@pytest.fixture
def fetch_process() -> Iterator[FetchProcess]:
    fetcher = FetchProcess()
    yield fetcher
    fetcher.close()
    assert list_fetchers(os.getpid()) == []


@pytest.fixture
def fetcher(nursery_process: None, fetch_process: FetchProcess) -> FetchProcess:
    return fetch_process


@pytest.fixture
def source(work: WorkTree, state: Path, fetcher: FetchProcess) -> Source:
    return Source(Remote(url=str(work.path)), state, fetcher)


@pytest.mark.parametrize("transport", ["file", "git"])
def test_finding_p13_a_repository_with_sha256_ids_is_refused_by_name(
    tmp_path: Path, fetcher: FetchProcess, transport: str
) -> None:
    folder = tmp_path / "fleets" / "fleet.git"
    subprocess.run(["git", "init", "--quiet", "--bare", "--object-format=sha256", str(folder)], check=True)
    tree = git(folder, "hash-object", "-w", "-t", "tree", os.devnull)
    git(folder, "update-ref", "HEAD", git(folder, "commit-tree", "-m", "one", tree))
    with git_daemon(folder.parent) as url:
        remote = Remote(url=f"{url}/fleet.git" if transport == "git" else str(folder))
        with pytest.raises(SourceError, match=r"SHA-256 object IDs .* use a repository with SHA-1"):
            Source(remote, tmp_path / "state", fetcher).fetch()


def test_finding_p13_a_repository_with_an_extension_that_libgit2_lacks_is_refused_by_name(
    work: WorkTree, tmp_path: Path, fetcher: FetchProcess
) -> None:
    git(work.path, "config", "core.repositoryFormatVersion", "1")
    git(work.path, "config", "extensions.refStorage", "reftable")
    with pytest.raises(SourceError, match="uses the Git extension refstorage, which gitboot does not support"):
        Source(Remote(url=str(work.path)), tmp_path / "state", fetcher).fetch()


@pytest.fixture
def nursery_process() -> Iterator[None]:
    with nursery():
        yield


# With an instance around it


@contextmanager
def run_and_kill(*arguments: str) -> Iterator[Instance]:
    """An instance that has no time for anything when it ends."""
    instance = Instance.start("run", *arguments)
    reader = threading.Thread(target=instance.read, daemon=True)
    reader.start()
    try:
        yield instance
    finally:
        instance.process.kill()
        instance.process.wait()
        close_after(reader, instance.errors)


def test_t4_the_pack_of_a_remote_is_unpacked_in_another_process_and_within_limits(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    first = repository.push({"fleet.yaml": "---\n".join(SEED)})
    with git_daemon(tmp_path / "git") as root:
        url = f"{root}/{repository.bare.name}"
        with running(url, tmp_path, "--poll", "0.3", *write_configuration(fetch_memory=MEBIBYTES)) as instance:
            eventually(lambda: instance.status()["applied"]["commit"] == first)
            before = read_peak_mib(instance.process.pid)
            hostile = push_differences(repository.bare, MEBIBYTES)
            (failed,) = eventually(lambda: [each for each in instance.events if each["type"] == "FetchFailed"])
            assert f"would exceed the memory limit of {MEBIBYTES} MiB" in failed["message"]
            found = wait_for_condition(instance, "SourceReady", status=False, reason="SourceTooLarge")
            assert "fetch-memory = MIB" in found["remedy"]
            assert (instance.get("/readyz").status_code, instance.status()["applied"]["commit"]) == (200, first)
            assert read_peak_mib(instance.process.pid) - before < MEBIBYTES // 2
        with running(url, tmp_path, "--poll", "0.3") as instance:
            eventually(lambda: instance.status()["attempted"]["commit"] == hostile)
            problems = instance.status()["attempted"]["problems"]
            assert [(each["path"], each["code"]) for each in problems] == [
                (f"big{number}.yaml", "GB1004") for number in range(2)
            ]
            (idle,) = list_fetchers(instance.process.pid)
            assert read_peak_mib(idle) > 2 * MEBIBYTES, "nothing was to be unpacked"
            assert read_peak_mib(instance.process.pid) - before < MEBIBYTES // 2
            git(repository.work, "fetch", "-q", "origin")
            git(repository.work, "reset", "-q", "--soft", "origin/main")
            later = repository.push({"more.yaml": server("web02", "role: web")})
            eventually(lambda: instance.status()["applied"]["commit"] == later)
            assert list_fetchers(instance.process.pid) == [idle], "one is enough"


def test_t4_an_instance_that_ends_or_is_killed_leaves_no_fetch_process(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    first = repository.push({"fleet.yaml": "---\n".join(SEED)})
    with git_daemon(tmp_path / "git") as root, Relay(root, passes=50_000, then="hangs") as relay:
        url = f"{relay.url}/{repository.bare.name}"
        places = ("--out", str(tmp_path / "output"), "--state", str(tmp_path / "state"))
        with running(url, tmp_path, "--poll", "0.3") as instance:
            eventually(lambda: instance.status()["applied"]["commit"] == first)
            repository.push({"noise": os.urandom(200_000).hex()})
            assert relay.stalled.wait(60)
            (hanging,) = list_fetchers(instance.process.pid)
        eventually(lambda: not is_alive(hanging))  # it was killed, and takes a moment
        assert [each["type"] for each in instance.events[-1:]] == ["Stopped"]
        relay.stalled.clear()
        with run_and_kill(url, *places) as instance:
            assert relay.stalled.wait(60)
            (hanging,) = list_fetchers(instance.process.pid)
        eventually(lambda: not is_alive(hanging))


# By itself


def test_t4_commits_by_others_on_the_branch_of_gitboot_are_unpacked_within_limits(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"boot/boot.ipxe": "#!ipxe"})
    pushed = push_differences(repository.bare, 24)
    with git_daemon(tmp_path / "git") as root, ExitStack() as stack:
        remote = Remote(url=f"{root}/{repository.bare.name}")

        def branch(mebibytes: int) -> OwnedBranch:
            fetcher = FetchProcess(mebibytes)
            stack.callback(fetcher.close)
            return OwnedBranch(lambda: remote, "refs/heads/main", tmp_path / "boot.git", fetcher=fetcher)

        with pytest.raises(SourceTooLarge):
            branch(24).fetch()
        enough = branch(100)
        assert (enough.fetch(), enough.read(pushed, "boot/boot.ipxe")) == (pushed, b"#!ipxe")


def test_credentials_are_passed_by_a_pipe_only(
    work: WorkTree, tmp_path: Path, state: Path, fetch_process: FetchProcess
) -> None:
    with HttpsServer(work.path.parent, tmp_path) as https:
        remote = Remote(
            url=f"{https.url}/private/fleet",
            credentials=Password(password=HttpsServer.PASSWORD),
            ca_bundle=https.certificate,
        )
        assert Source(remote, state, fetch_process).fetch() == work.head
    (child,) = list_fetchers(os.getpid())
    for file in ("cmdline", "environ"):
        assert HttpsServer.PASSWORD.encode() not in Path(f"/proc/{child}/{file}").read_bytes()
    assert Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[-3:-1] == [b"gitboot.git", b"%d" % os.getpid()]


def test_one_process_is_used_for_several_fetches(
    work: WorkTree, state: Path, fetcher: FetchProcess, source: Source
) -> None:
    source.fetch()
    (child,) = list_fetchers(os.getpid())
    second = work.commit({"fleet.yaml": "second"})
    assert source.fetch() == source.fetch() == second
    with pytest.raises(SourceError, match="has no branch or tag nowhere"):
        Source(Remote(url=str(work.path), reference="nowhere"), state, fetcher).fetch()
    assert list_fetchers(os.getpid()) == [child]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV], ids=str)
def test_a_fetch_process_that_dies_fails_the_fetch_and_the_next_fetch_works(
    work: WorkTree, state: Path, fetcher: FetchProcess, number: signal.Signals
) -> None:
    with git_daemon(work.path.parent) as url:
        first = Source(Remote(url=f"{url}/fleet"), state, fetcher).fetch()
        second = work.commit({"noise": os.urandom(300_000).hex()})
        with Relay(url, passes=100_000, then="hangs") as relay:
            source = Source(Remote(url=f"{relay.url}/fleet"), state, fetcher)

            def kill() -> None:
                relay.stalled.wait(60)
                eventually(lambda: list(state.rglob("pack_git2_*")))
                os.kill(list_fetchers(os.getpid())[0], number)

            killing = threading.Thread(target=kill)
            killing.start()
            with pytest.raises((SourceError, SourceTooLarge)) as caught:
                source.fetch()
            killing.join()
        assert type(caught.value) is (SourceTooLarge if number is signal.SIGABRT else SourceError)
        assert list(state.rglob("pack_git2_*")) == []
        source = Source(Remote(url=f"{url}/fleet"), state, fetcher)
        assert (source.has(first), source.fetch()) == (True, second)


def test_a_fetch_process_that_died_while_idle_is_replaced(
    work: WorkTree, state: Path, fetcher: FetchProcess, source: Source
) -> None:
    source.fetch()
    (child,) = list_fetchers(os.getpid())
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not is_alive(child))
    assert source.fetch() == work.head


def test_a_late_answer_is_not_taken_for_the_next_request(
    work: WorkTree, state: Path, fetcher: FetchProcess, monkeypatch: pytest.MonkeyPatch, source: Source
) -> None:
    first = source.fetch()
    with monkeypatch.context() as patch:
        patch.setattr(Child, "read_answers", interrupt)
        with pytest.raises(KeyboardInterrupt):
            source.fetch()
    second = work.commit({"fleet.yaml": "second"})
    assert (first != second, source.fetch()) == (True, second)


def interrupt(*_: object) -> Iterator[bytes]:
    raise KeyboardInterrupt


def test_a_clone_is_replaced_while_a_fetch_hangs(work: WorkTree, state: Path, fetcher: FetchProcess) -> None:
    with git_daemon(work.path.parent) as url:
        source = Source(Remote(url=f"{url}/fleet"), state, fetcher)
        accepted = source.fetch()
        source.accept(accepted)
        work.commit({"noise": os.urandom(300_000).hex()})
        with Relay(url, passes=100_000, then="hangs") as relay:
            hanging = Source(Remote(url=f"{relay.url}/fleet"), state, fetcher)
            errors: list[Exception] = []

            def fetch() -> None:
                try:
                    hanging.fetch()
                except SourceError as error:
                    errors.append(error)

            thread = threading.Thread(target=fetch)
            thread.start()
            assert relay.stalled.wait(60)
            (state / "repository.git/refs/gitboot/accepted").write_text("?")
            with pytest.raises(CorruptClone):
                source.accepted()
            source.restore(accepted)
            assert (source.accepted(), source.latest(), len(list_fetchers(os.getpid()))) == (accepted, work.head, 2)
            fetcher.close()
            thread.join(60)
        assert [str(error).rpartition(": ")[2] for error in errors] == [
            "the fetch was stopped, because this instance is stopping"
        ]
        with pytest.raises(SourceError, match="this instance is stopping"):
            source.fetch()


def test_a_process_whose_parent_is_gone_ends(tmp_path: Path) -> None:
    """It may be started when that is gone already."""
    done = subprocess.run([sys.executable, "-m", "gitboot.git", "1"], stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == (1 if os.getpid() != 1 else 0)


# Messages


PATHS = st.builds(Path, st.text(st.characters(exclude_characters="\0/", codec="utf-8"), min_size=1))
CREDENTIALS = st.one_of(
    st.none(),
    st.builds(Password, password=st.text(), user=st.text()),
    st.builds(SshKey, private_key=PATHS, known_hosts=PATHS, passphrase=st.text()),
)


@given(
    CREDENTIALS,
    st.sampled_from([None, "main", "^1.2"]),
    st.none() | PATHS,
    st.floats(0, 1e6),
    st.none() | st.integers(1, 1 << 50),
)
def test_a_remote_is_decoded_as_it_was_encoded(
    credentials: Password | SshKey | None,
    reference: str | None,
    bundle: Path | None,
    seconds: float,
    max_bytes: int | None,
) -> None:
    remote = Remote(
        url="ssh://git@git.example.net/x" if isinstance(credentials, SshKey) else "https://git.example.net/x",
        reference=reference,
        credentials=credentials,
        ca_bundle=bundle,
        connect_timeout_s=seconds,
        timeout_s=seconds + 1,
        max_bytes=max_bytes,
    )
    sent = FetchOrder(work="fetch", remote=remote, folder=Path("/state"))
    assert parse_order(encode(sent)) == sent


def test_credentials_are_not_shown() -> None:
    remote = Remote(url="https://git.example.net/x", credentials=Password(password="s3cret"))
    key = SshKey(private_key=Path("id"), known_hosts=Path("known_hosts"), passphrase="s3cret")
    for each in (remote, Remote(url="ssh://git@git.example.net/x", credentials=key)):
        assert "s3cret" not in repr(FetchOrder(work="fetch", remote=each, folder=Path("/state")))


@pytest.mark.parametrize("kind", [SourceError, SourceRefused, SourceTooLarge, UsageError, CorruptClone])
def test_an_error_is_raised_again_with_its_type(
    kind: type[SourceError], state: Path, fetcher: FetchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise kind("what is wrong")

    monkeypatch.setattr(InProcessFetcher, "carry_out", fail)
    report = run_fetch_order(FetchOrder(work="head", remote=Remote(url="/fleet"), folder=state))
    monkeypatch.setattr(Child, "read_answers", lambda *_: [encode(report)])
    with pytest.raises(kind, match=r"^what is wrong$") as caught:
        fetcher.read_head(Remote(url="/fleet"), state)
    assert type(caught.value) is kind


TIMEOUT_S = 2  # of the remotes that drip
SLOW = r"(not complete after [0-9]+ s|less than [0-9,]+ bytes in [0-9]+ s) \(see git-timeout|SSH session: Timed out"
NOISE = 300_000  # bytes of a commit, which is sent in one pack
ADA = Authorship("Ada Lovelace", "ada@example.net", 0, 0)


# A fetch


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with SshServer(tmp_path_factory.mktemp("ssh")).running() as server:
        yield server


@pytest.fixture(params=["git", "https", "ssh"])
def make_remote(request: pytest.FixtureRequest, work: WorkTree, tmp_path: Path) -> Iterator[Callable[..., Remote]]:
    """Return the remote for a protocol, optionally at another address of its server."""
    with ExitStack() as stack:
        if request.param == "ssh":
            ssh = request.getfixturevalue("ssh")

            def make_ssh_remote(authority: str = f"127.0.0.1:{ssh.port}", *, timeout_s: float = 60) -> Remote:
                hosts = tmp_path / "known_hosts"
                hosts.write_text(f"[127.0.0.1]:{authority.rpartition(':')[2]} {ssh.public('ed25519')}\n")
                key = SshKey(private_key=ssh.key("client"), passphrase=SshServer.PASSPHRASE, known_hosts=hosts)
                user = ssh.host.partition("@")[0]
                return Remote(url=f"ssh://{user}@{authority}{work.path}", credentials=key, timeout_s=timeout_s)

            yield make_ssh_remote
            return
        https = stack.enter_context(HttpsServer(work.path.parent, tmp_path)) if request.param == "https" else None
        root = https.url if https is not None else stack.enter_context(git_daemon(work.path.parent))

        def make_url_remote(authority: str = root.rpartition("/")[2], *, timeout_s: float = 60) -> Remote:
            if https is None:
                return Remote(url=f"git://{authority}/fleet", timeout_s=timeout_s)
            return Remote(
                url=f"https://{authority}/private/fleet",
                credentials=Password(password=HttpsServer.PASSWORD),
                ca_bundle=https.certificate,
                timeout_s=timeout_s,
            )

        yield make_url_remote


@pytest.mark.parametrize("passes", [10, 100_000], ids=["the first response comes slowly", "the pack drips"])
def test_finding_c3_a_server_that_sends_slowly_fails_the_fetch_and_another_process_runs_the_next(
    make_remote: Callable[..., Remote], work: WorkTree, state: Path, fetch_process: FetchProcess, passes: int
) -> None:
    url = make_remote().url
    authority = url.partition("://")[2].rpartition("@")[2].partition("/")[0]
    for timeout_s in (TIMEOUT_S, 30, 120):  # a machine under load may need longer until the server sends slowly
        Source(make_remote(), state, fetch_process).fetch()
        (before,) = list_fetchers(os.getpid())
        second = work.commit({"noise": os.urandom(NOISE).hex()})
        with Relay(f"tcp://{authority}", passes=passes, then="drips") as relay:
            dripping = Source(make_remote(relay.authority, timeout_s=timeout_s), state, fetch_process)
            with pytest.raises(SourceError, match=SLOW) as caught:
                dripping.fetch()
        if relay.stalled.is_set():
            break
    assert relay.stalled.is_set()
    assert is_alive(before) is ("SSH" in str(caught.value))  # libssh2 itself ended the wait, as for a banner that drips
    assert (list(state.rglob("pack_git2_*")), Source(make_remote(), state, fetch_process).fetch()) == ([], second)


def test_finding_c3_a_fetcher_that_hangs_is_killed_and_another_one_fetches(
    work: WorkTree, state: Path, fetch_process: FetchProcess
) -> None:
    with git_daemon(work.path.parent) as url:
        source = Source(Remote(url=f"{url}/fleet", timeout_s=TIMEOUT_S), state, fetch_process)
        eventually(lambda: fetch_or_none(source))
        (hanging,) = list_fetchers(os.getpid())
        os.kill(hanging, signal.SIGSTOP)
        with pytest.raises(SourceError, match="the fetch process did not start within 2 s"):
            source.fetch()
        assert not is_alive(hanging)
        second = work.commit({"fleet.yaml": "second"})
        eventually(lambda: fetch_or_none(source) == second)


def fetch_or_none(source: Source) -> str | None:
    """Return what a fetch brings; None if this machine is too slow for the remote's deadline."""
    try:
        return source.fetch()
    except SourceError:
        return None


def test_a_new_clone_has_a_minimum_rate_and_everything_else_has_a_deadline(
    work: WorkTree, state: Path, tmp_path: Path
) -> None:
    fetch_process = FetchProcess(deadline_s=0)
    try:
        source = Source(Remote(url=str(work.path)), state, fetch_process)
        assert source.fetch() == work.head
        with pytest.raises(SourceError, match="the fetch was not complete after 0 s"):
            source.fetch()
        branch = OwnedBranch(
            lambda: Remote(url=str(work.path)), "refs/heads/boot", tmp_path / "o", fetcher=fetch_process
        )
        with pytest.raises(SourceError, match="the fetch was not complete after 0 s"):
            branch.fetch()
    finally:
        fetch_process.close()


# Steps, as they are reported


def test_data_extends_the_time_by_each_period_of_the_slowest_rate() -> None:
    reported: list[FetchStep] = []
    transfer = Transfer(reported.append, 2, "sent")
    assert [each.timeout_s for each in reported] == [2]
    for received, reports in ((0, 1), (1, 1), (2047, 1), (2048, 2), (2049, 2), (4095, 2), (10_000, 3), (10_001, 3)):
        transfer.report_size(received)
        assert len(reported) == reports, received
    assert {(each.timeout_s, each.timeout_message) for each in reported} == {
        (2, "the remote sent less than 2048 bytes in 2 s (see git-timeout in the --config file)")
    }


def test_progress_is_reported_once_a_second_and_at_once_after_a_new_step() -> None:
    reported, now_s = list[FetchStep](), [0.0]
    steps = StepReporter(reported.append, lambda: now_s[0])
    for seconds in (0, 0.5, 0.9, 1, 1.5):
        now_s[0] = seconds
        steps.report_work()
    assert [each.timeout_s for each in reported] == [120, 120]
    steps.begin_answer(3)
    steps.report_work()
    assert [each.timeout_s for each in reported] == [120, 120, 3, 120]


def test_before_a_push_there_is_time_to_build_the_pack() -> None:
    reported = list[FetchStep]()
    StepReporter(reported.append).begin_upload(3).report_size(4096)
    assert [each.timeout_s for each in reported] == [123, 3]


# Disk


@pytest.mark.parametrize("is_first", [True, False], ids=["a new clone", "news"])
def test_finding_c3_a_pack_that_exceeds_the_disk_limit_is_rejected(
    work: WorkTree, state: Path, fetch_process: FetchProcess, is_first: bool
) -> None:
    with git_daemon(work.path.parent) as url:

        def source(mebibytes: int) -> Source:
            return Source(Remote(url=f"{url}/fleet", max_bytes=mebibytes << 20), state, fetch_process)

        if not is_first:
            source(1).fetch()
        work.write({"noise": os.urandom(3 << 20).hex()})  # 6 MiB, which zlib packs into 3
        large = work.commit({})
        with pytest.raises(SourceTooLarge, match="would exceed the limit of 1 MiB on disk; increase fetch-disk in "):
            source(1).fetch()
        assert sum(file.stat().st_size for file in state.rglob("*") if file.is_file()) < 1 << 20
        assert (source(8).fetch(), source(8).fetch()) == (large, large)


def test_a_clone_that_has_reached_its_limit_accepts_no_new_commits(
    work: WorkTree, state: Path, fetch_process: FetchProcess
) -> None:
    with git_daemon(work.path.parent) as url:

        def source(size_bytes: int) -> Source:
            return Source(Remote(url=f"{url}/fleet", max_bytes=size_bytes), state, fetch_process)

        first = source(1 << 20).fetch()
        assert source(1).fetch() == first  # there is no new commit
        work.commit({"one": os.urandom(NOISE).hex()})
        with pytest.raises(SourceTooLarge):
            source(1).fetch()
        source(2 * NOISE).fetch()  # zlib packs what is hexadecimal into half
        work.commit({"other": os.urandom(NOISE).hex()})
        with pytest.raises(SourceTooLarge):  # each pack is smaller than the limit, and both are not
            source(2 * NOISE).fetch()
        assert source(3 * NOISE).fetch() == work.head


def test_a_small_pack_that_is_completed_from_the_clone_is_limited_too(
    work: WorkTree, state: Path, fetch_process: FetchProcess
) -> None:
    files = {f"file{number}": os.urandom(NOISE // 10).hex() for number in range(20)}
    first = work.commit(dict(files))
    work.git("repack", "-q", "-a", "-d", "--depth=0")
    with git_daemon(work.path.parent) as url:
        limited = Source(Remote(url=f"{url}/fleet", max_bytes=3 * NOISE), state, fetch_process)
        assert limited.fetch() == first
        second = work.commit({name: f"{text}." for name, text in files.items()})
        work.git("repack", "-q", "-a", "-d")  # then each new file is a few bytes, as a difference from the one before
        with pytest.raises(SourceTooLarge, match="fetch-disk"):
            limited.fetch()
        assert (limited.latest(), Source(Remote(url=f"{url}/fleet"), state, fetch_process).fetch()) == (first, second)


def test_commits_by_others_on_the_branch_of_gitboot_do_not_exceed_the_disk_limit(
    work: WorkTree, tmp_path: Path, fetch_process: FetchProcess
) -> None:
    work.commit({"noise": os.urandom(3 << 20).hex()})
    with git_daemon(work.path.parent) as url:
        remote = Remote(url=f"{url}/fleet", max_bytes=1 << 20)
        branch = OwnedBranch(lambda: remote, "refs/heads/main", tmp_path / "boot.git", fetcher=fetch_process)
        with pytest.raises(SourceTooLarge):
            branch.fetch()


def test_a_process_with_a_file_size_limit_gets_an_error_from_the_write() -> None:
    program = (
        "import tempfile\n"
        "from gitboot.child_processes import limit_file_size\n"
        "with tempfile.TemporaryFile() as file:\n"
        "    file.write(bytes(2000))\n"
        "    try:\n"
        "        with limit_file_size(1000):\n"
        "            file.flush()\n"
        "    except OSError as error:\n"
        "        print(error.strerror)\n"
        "    with limit_file_size(None):\n"
        "        file.flush()\n"
        "    print(file.tell())\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split("\n") == ["File too large", "2000", ""]


# A push


@pytest.fixture
def bare(work: WorkTree) -> Path:
    bare = work.path.parent / "boots.git"
    work.git("init", "-q", "--bare", str(bare))
    git(bare, "config", "daemon.receivepack", "true")
    return bare


@pytest.mark.parametrize(
    ("passes", "takes"),
    [(b"\n0000", -1), (-1, 100_000)],
    ids=["the result drips", "the data is taken byte by byte"],
)
def test_finding_c3_a_push_to_a_slow_server_fails_and_the_next_one_succeeds(
    bare: Path, tmp_path: Path, fetch_process: FetchProcess, passes: int | bytes, takes: int
) -> None:
    with git_daemon(bare.parent) as url:

        def branch(url: str, timeout_s: float = 60) -> OwnedBranch:
            remote = Remote(url=f"{url}/boots.git", timeout_s=timeout_s)
            return OwnedBranch(lambda: remote, "refs/heads/boot", tmp_path / "o" / "boots.git", fetcher=fetch_process)

        files = {"boot.ipxe": lambda: os.urandom(NOISE).hex().encode()}
        first = branch(url).commit(None, dict(files), "first", ADA, at("20T12:00"))
        branch(url).push(None, first)
        second = branch(url).commit(first, dict(files), "second", ADA, at("20T13:00"))
        with Relay(url, passes=passes, then="drips", takes=takes) as relay:
            # on a machine under load, no byte may arrive in 2 s; then libgit2 itself ends the wait
            with pytest.raises(SourceError, match=r"less than 2048 bytes in 2 s \(see git-timeout|socket: timed out"):
                branch(relay.url, TIMEOUT_S).push(first, second)
            assert relay.stalled.is_set()
        tip = branch(url).fetch()
        assert tip in (first, second)  # the server may have taken all of it
        branch(url).push(tip, second)
        assert (branch(url).fetch(), git(bare, "rev-parse", "boot")) == (second, second)


def test_finding_c3_slowly_sent_refs_of_a_target_are_read_by_a_process_that_is_killed(
    bare: Path, tmp_path: Path, fetch_process: FetchProcess
) -> None:
    seeded = OwnedBranch(lambda: Remote(url=str(bare)), "refs/heads/boot", tmp_path / "seed.git")
    seeded.push(None, seeded.commit(None, {"a": lambda: b"a"}, "first", ADA, at("20T12:00")))
    with git_daemon(bare.parent) as url, Relay(url, passes=2, then="drips") as relay:
        remote = Remote(url=f"{relay.url}/boots.git", timeout_s=TIMEOUT_S)
        branch = OwnedBranch(lambda: remote, "refs/heads/boot", tmp_path / "boots.git", fetcher=fetch_process)
        for ask in (branch.fetch, branch.is_default):
            # on a machine under load, no byte may arrive in 2 s; then libgit2 itself ends the wait
            with pytest.raises(SourceError, match=r"the response was not complete after 2 s|socket: timed out"):
                ask()
    assert list_fetchers(os.getpid()) == []


def test_a_push_by_a_process_equals_one_without(
    bare: Path, work: WorkTree, tmp_path: Path, fetch_process: FetchProcess
) -> None:
    for fetcher, ref in ((InProcessFetcher(), "refs/heads/one"), (fetch_process, "refs/heads/other")):
        folder = tmp_path / ref.replace("/", "-")
        branch = OwnedBranch(lambda: Remote(url=str(bare)), ref, folder, fetcher=fetcher)
        assert branch.fetch() is None
        commit = branch.commit(None, {"a": lambda: b"a"}, "first", ADA, at("20T12:00"))
        branch.push(None, commit)
        assert (branch.fetch(), branch.is_default()) == (commit, False)
        with pytest.raises(SourceError, match="moved from None to"):
            branch.push(None, commit)


# A running instance


def test_a_malformed_tree_of_a_repository_on_this_machine_is_an_error_of_the_fetch(
    tmp_path: Path, work: WorkTree, fetcher: FetchProcess
) -> None:
    made = ["git", "hash-object", "-t", "tree", "-w", "--stdin", "--literally"]
    tree = subprocess.run(made, cwd=work.path, input=b"no tree", capture_output=True, check=True).stdout.decode()
    work.git("update-ref", "HEAD", work.git("commit-tree", tree.strip(), "-m", "malformed"))
    with pytest.raises(SourceError, match=r"tree [0-9a-f]{40} is malformed"):
        fetcher.fetch(Remote(url=str(work.path)), tmp_path / "clone", into_new_clone=True)


def test_finding_c3_a_slow_fetch_is_a_condition_and_reconcile_reports_it(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    first = repository.push({"fleet.yaml": "---\n".join(SEED)})
    state = tmp_path / "state"
    with git_daemon(tmp_path / "git") as root, Relay(root, passes=50_000, then="drips") as relay:
        url = f"{relay.url}/{repository.bare.name}"
        with running(url, tmp_path, "--poll", "0.5", *write_configuration(git_timeout=TIMEOUT_S)) as instance:
            eventually(lambda: instance.status()["applied"]["commit"] == first)
            second = repository.push({"noise": os.urandom(NOISE).hex()})

            def is_reported() -> bool:  # a busy machine may exceed the short timeout earlier, and tries again
                found = condition(instance, "SourceReady")
                return relay.stalled.is_set() and "bytes in 2 s (see git-timeout" in found.get("message", "")

            eventually(is_reported)
            done = run_command("reconcile", "--state", state)
            assert (done.code, done.out) == (Exit.SOURCE, ""), done
            assert "The fetch failed (SourceError): gitboot cannot fetch new commits: git://" in done.err
            assert instance.status()["applied"]["commit"] == first
            relay.passes = -1
            eventually(lambda: condition(instance, "SourceReady")["status"])
            done = eventually(lambda: (ran := run_command("reconcile", "--state", state)).code == Exit.FINE and ran)
            assert f"Fetched {second[:12]}. The commit is accepted" in done.err, done
            assert instance.status()["applied"]["commit"] == second


def test_finding_c3_a_fetcher_that_hangs_is_a_condition_until_another_one_has_fetched(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})
    with git_daemon(tmp_path / "git") as root:
        url = f"{root}/{repository.bare.name}"
        with running(url, tmp_path, "--poll", "3600", *write_configuration(git_timeout=TIMEOUT_S)) as instance:
            state = tmp_path / "state"
            eventually(lambda: run_command("reconcile", "--state", state).code == Exit.FINE)
            (hanging,) = list_fetchers(instance.process.pid)
            os.kill(hanging, signal.SIGSTOP)
            done = run_command("reconcile", "--state", state)
            assert (done.code, "did not start within 2 s" in done.err) == (Exit.SOURCE, True), done
            wait_for_condition(instance, "SourceReady", status=False, reason="SourceError")
            assert not is_alive(hanging)
            eventually(lambda: run_command("reconcile", "--state", state).code == Exit.FINE)
            assert list_fetchers(instance.process.pid) not in ([], [hanging])
