"""Fetching in a process of its own: what it takes, how it ends, and that nobody notices it otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.child_processes import Child, encode
from gitboot.errors import CorruptClone, SourceError, SourceRefused, SourceTooLarge, UsageError
from gitboot.git.__main__ import carry_out
from gitboot.git.branch_writer import OwnedBranch
from gitboot.git.clone import Source
from gitboot.git.fetch import FetchProcess, InThisProcess, Order, order
from gitboot.git.remote import Password, Remote, SshKey
from tests.helpers.fleets import SEED, configured, server
from tests.helpers.forked_commands import nursery
from tests.helpers.git_repositories import HttpsServer, Relay, Work, git_daemon, push_differences
from tests.helpers.instance_with_bmcs import until_condition
from tests.helpers.running_instance import Instance, Repository, alive, eventually, fetchers, git, peak_mib, running

MEBIBYTES = 80  # of a file that comes as a difference: twice that is what to unpack it takes


@pytest.fixture
def work(tmp_path: Path) -> Work:
    work = Work(tmp_path / "served" / "fleet")
    work.commit({"fleet.yaml": "first"})
    return work


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def started() -> Iterator[FetchProcess]:
    """A fetcher as gitboot starts it."""
    fetcher = FetchProcess()
    yield fetcher
    fetcher.close()
    assert fetchers(os.getpid()) == []


@pytest.fixture
def fetcher(forking: None, started: FetchProcess) -> FetchProcess:
    """A fetcher that is forked."""
    return started


@pytest.fixture
def source(work: Work, state: Path, fetcher: FetchProcess) -> Source:
    return Source(Remote(url=str(work.path)), state, fetcher)


@pytest.fixture
def forking() -> Iterator[None]:
    with nursery():
        yield


# With an instance around it


@contextmanager
def killed_at_the_end(*arguments: str) -> Iterator[Instance]:
    """An instance that has no time for anything when it ends."""
    instance = Instance.start("run", *arguments)
    reader = threading.Thread(target=instance.read, daemon=True)
    reader.start()
    try:
        yield instance
    finally:
        instance.process.kill()
        instance.process.wait()
        reader.join(60)
        instance.errors.close()


def test_t4_what_a_remote_sends_is_unpacked_beside_the_instance_and_within_limits(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    first = repository.push({"fleet.yaml": "---\n".join(SEED)})
    with git_daemon(tmp_path / "git") as root:
        url = f"{root}/{repository.bare.name}"
        with running(url, tmp_path, "--poll", "0.3", *configured(fetch_memory=MEBIBYTES)) as instance:
            eventually(lambda: instance.status()["applied"]["commit"] == first)
            before = peak_mib(instance.process.pid)
            hostile = push_differences(repository.bare, MEBIBYTES)
            (failed,) = eventually(lambda: [each for each in instance.events if each["type"] == "FetchFailed"])
            assert f"more memory than the {MEBIBYTES} MiB that it may" in failed["message"]
            found = until_condition(instance, "SourceReady", status=False, reason="SourceTooLarge")
            assert "fetch-memory = MIB" in found["remedy"]
            assert instance.get("/readyz").status_code == 200
            assert instance.status()["applied"]["commit"] == first
            assert peak_mib(instance.process.pid) - before < MEBIBYTES // 2
        with running(url, tmp_path, "--poll", "0.3") as instance:
            eventually(lambda: instance.status()["attempted"]["commit"] == hostile)
            problems = instance.status()["attempted"]["problems"]
            assert [(each["path"], each["code"]) for each in problems] == [
                (f"big{number}.yaml", "GB1004") for number in range(2)
            ]
            (idle,) = fetchers(instance.process.pid)
            assert peak_mib(idle) > 2 * MEBIBYTES, "nothing was to be unpacked"
            assert peak_mib(instance.process.pid) - before < MEBIBYTES // 2
            git(repository.work, "fetch", "-q", "origin")
            git(repository.work, "reset", "-q", "--soft", "origin/main")
            later = repository.push({"more.yaml": server("web02", "role: web")})
            eventually(lambda: instance.status()["applied"]["commit"] == later)
            assert fetchers(instance.process.pid) == [idle], "one is enough"


def test_t4_an_instance_that_ends_or_is_killed_leaves_no_fetch_behind(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    first = repository.push({"fleet.yaml": "---\n".join(SEED)})
    with git_daemon(tmp_path / "git") as root, Relay(root, passes=50_000, then="hangs") as relay:
        url = f"{relay.url}/{repository.bare.name}"
        places = ("--out", str(tmp_path / "output"), "--state", str(tmp_path / "state"))
        with running(url, tmp_path, "--poll", "0.3") as instance:
            eventually(lambda: instance.status()["applied"]["commit"] == first)
            repository.push({"noise": os.urandom(200_000).hex()})
            assert relay.stalled.wait(60)
            (hanging,) = fetchers(instance.process.pid)
        eventually(lambda: not alive(hanging))  # it was killed, and takes a moment
        assert [each["type"] for each in instance.events[-1:]] == ["Stopped"]
        relay.stalled.clear()
        with killed_at_the_end(url, *places) as instance:
            assert relay.stalled.wait(60)
            (hanging,) = fetchers(instance.process.pid)
        eventually(lambda: not alive(hanging))


# By itself


def test_t4_what_others_push_to_a_branch_of_gitboots_own_is_unpacked_within_limits(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"boot/boot.ipxe": "#!ipxe"})
    pushed = push_differences(repository.bare, 24)
    with git_daemon(tmp_path / "git") as root, ExitStack() as stack:
        remote = Remote(url=f"{root}/{repository.bare.name}")

        def branch(mebibytes: int) -> OwnedBranch:
            fetcher = FetchProcess(mebibytes)
            stack.callback(fetcher.close)
            return OwnedBranch(lambda: remote, "refs/heads/main", tmp_path / "boot.git", fetching=fetcher)

        with pytest.raises(SourceTooLarge):
            branch(24).fetch()
        enough = branch(100)
        assert (enough.fetch(), enough.read(pushed, "boot/boot.ipxe")) == (pushed, b"#!ipxe")


def test_credentials_come_by_a_pipe_alone(work: Work, tmp_path: Path, state: Path, started: FetchProcess) -> None:
    with HttpsServer(work.path.parent, tmp_path) as https:
        remote = Remote(
            url=f"{https.url}/private/fleet",
            credentials=Password(password=HttpsServer.PASSWORD),
            ca_bundle=https.certificate,
        )
        assert Source(remote, state, started).fetch() == work.head
    (child,) = fetchers(os.getpid())
    for file in ("cmdline", "environ"):
        assert HttpsServer.PASSWORD.encode() not in Path(f"/proc/{child}/{file}").read_bytes()
    assert Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[-3:-1] == [b"gitboot.git", b"%d" % os.getpid()]


def test_one_process_fetches_again_and_again(work: Work, state: Path, fetcher: FetchProcess, source: Source) -> None:
    source.fetch()
    (child,) = fetchers(os.getpid())
    second = work.commit({"fleet.yaml": "second"})
    assert source.fetch() == source.fetch() == second
    with pytest.raises(SourceError, match="has no branch or tag nowhere"):
        Source(Remote(url=str(work.path), reference="nowhere"), state, fetcher).fetch()
    assert fetchers(os.getpid()) == [child]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV], ids=str)
def test_a_fetch_that_dies_has_failed_leaves_nothing_and_the_next_one_goes_on(
    work: Work, state: Path, fetcher: FetchProcess, number: signal.Signals
) -> None:
    with git_daemon(work.path.parent) as url:
        first = Source(Remote(url=f"{url}/fleet"), state, fetcher).fetch()
        second = work.commit({"noise": os.urandom(300_000).hex()})
        with Relay(url, passes=100_000, then="hangs") as relay:
            source = Source(Remote(url=f"{relay.url}/fleet"), state, fetcher)

            def kill() -> None:
                relay.stalled.wait(60)
                eventually(lambda: list(state.rglob("pack_git2_*")))
                os.kill(fetchers(os.getpid())[0], number)

            killing = threading.Thread(target=kill)
            killing.start()
            with pytest.raises((SourceError, SourceTooLarge)) as caught:
                source.fetch()
            killing.join()
        assert type(caught.value) is (SourceTooLarge if number is signal.SIGABRT else SourceError)
        assert list(state.rglob("pack_git2_*")) == []
        source = Source(Remote(url=f"{url}/fleet"), state, fetcher)
        assert (source.has(first), source.fetch()) == (True, second)


def test_one_that_died_while_nobody_asked_is_not_missed(
    work: Work, state: Path, fetcher: FetchProcess, source: Source
) -> None:
    source.fetch()
    (child,) = fetchers(os.getpid())
    os.kill(child, signal.SIGKILL)
    eventually(lambda: not alive(child))
    assert source.fetch() == work.head


def test_an_answer_that_was_not_waited_for_is_nobody_elses(
    work: Work, state: Path, fetcher: FetchProcess, monkeypatch: pytest.MonkeyPatch, source: Source
) -> None:
    first = source.fetch()
    with monkeypatch.context() as patch:
        patch.setattr(Child, "answers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            source.fetch()
    second = work.commit({"fleet.yaml": "second"})
    assert (first != second, source.fetch()) == (True, second)


def interrupted(*_: object) -> Iterator[bytes]:
    raise KeyboardInterrupt


def test_a_clone_is_made_anew_beside_a_fetch_that_hangs(work: Work, state: Path, fetcher: FetchProcess) -> None:
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
            assert (source.accepted(), source.latest()) == (accepted, work.head)
            assert len(fetchers(os.getpid())) == 2
            fetcher.close()
            thread.join(60)
        assert [str(error).rpartition(": ")[2] for error in errors] == [
            "the fetch was killed, as where a machine has no memory left"
        ]
        with pytest.raises(SourceError, match="this instance ends"):
            source.fetch()


def test_a_process_whose_parent_is_gone_ends(tmp_path: Path) -> None:
    """It may be started when that is gone already."""
    done = subprocess.run([sys.executable, "-m", "gitboot.git", "1"], stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == (1 if os.getpid() != 1 else 0)


# What is said


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
def test_a_remote_comes_as_it_was_sent(
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
    sent = Order(work="fetch", remote=remote, folder=Path("/state"))
    assert order(encode(sent)) == sent


def test_credentials_are_not_shown() -> None:
    remote = Remote(url="https://git.example.net/x", credentials=Password(password="s3cret"))
    key = SshKey(private_key=Path("id"), known_hosts=Path("known_hosts"), passphrase="s3cret")
    for each in (remote, Remote(url="ssh://git@git.example.net/x", credentials=key)):
        assert "s3cret" not in repr(Order(work="fetch", remote=each, folder=Path("/state")))


@pytest.mark.parametrize("kind", [SourceError, SourceRefused, SourceTooLarge, UsageError, CorruptClone])
def test_an_error_comes_as_it_was_raised(
    kind: type[SourceError], state: Path, fetcher: FetchProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise kind("what is wrong")

    monkeypatch.setattr(InThisProcess, "carry_out", fail)
    report = carry_out(Order(work="head", remote=Remote(url="/fleet"), folder=state))
    monkeypatch.setattr(Child, "answers", lambda *_: [encode(report)])
    with pytest.raises(kind, match=r"^what is wrong$") as caught:
        fetcher.read_head(Remote(url="/fleet"), state)
    assert type(caught.value) is kind
