"""A publisher that stops at any step: killed, with an error of the system, or after a power cut."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from gitboot import files as files_module
from gitboot.errors import PublishError
from gitboot.publish import durable_files as disk_module
from gitboot.publish import first_publication
from gitboot.publish import publisher as directory_module
from gitboot.publish.durable_files import OPEN_MODES, DurableDirectory, StagedFile, TreeModes, staging_path
from gitboot.publish.first_publication import FRESH, READY
from gitboot.publish.manifest import MANIFEST, SHARED, parse_digests, parse_head, parse_listing
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.tree_reader import ALL, PENDING, Inventory, read_manifest
from gitboot.render.endpoint_files import build_index, parse_shard, parse_state, parse_state_path, shard_path
from gitboot.render.paths import (
    CHAIN,
    FIRST_SCRIPT,
    GRUB_LOOKUP,
    IPXE_BY_MAC,
    NETBOOT_XYZ,
    PXELINUX,
    UNKNOWN,
    File,
    Files,
    Stage,
    is_immutable,
    publication_stage,
)
from tests.helpers.cases import get_interval
from tests.helpers.published_trees import complete_tree, owner, publish_files, server_files, split, verify_tree

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


def make_tree(version: int, servers: int = 1) -> dict[str, File]:
    """Return a tree whose boot scripts name content of their version; each version adds and removes a server."""
    files = {"boot/boot.ipxe": File(f"#!ipxe\n# {version:04}\n".encode())}
    for server in (*range(servers), servers + version % 2):
        data = f"user data {version} of {server}\n".encode()
        content = f"boot/o/{sha256(data).hexdigest()}/user-data"
        files[content] = File(data)
        entry = f"boot/v1/boot/52-54-00-00-00-{server:02x}/boot.ipxe"
        same = next(path for path in (f"boot/ipxe/{server}-{n}" for n in count()) if owner(path) == owner(entry))
        files |= dict.fromkeys((entry, same), File(f"{version:04} {content}\n".encode()))  # one file, of two names
    return files


OTHERS = (
    r"boot/o/\w{64}/user-data|ops/manifest(/\w\w)*(/shared)?\.json|ops/index/\w{3}\.json"
    r"|ops/\.gitboot/(lock|reserve-\d|retired/[\w:-]+\.json)"
)


def publish(directory: OutputDirectory, version: int, servers: int = 1) -> None:
    publish_files(directory, make_tree(version, servers), commit=str(version), at=AT + version * timedelta(days=3))


def read_tree(root: Path) -> dict[str, bytes]:
    found = {}
    for folder, folders, names in os.walk(root):
        below = folder[len(str(root)) + 1 :]
        for name in names:
            with open(f"{folder}/{name}", "rb") as file:
                found[f"{below}/{name}"] = file.read()
        if not folders and not names:
            found[f"{below}/"] = b""
    return found


PARSERS: dict[str, Callable[[bytes], object]] = {
    re.escape(MANIFEST): parse_head,
    re.escape(SHARED): parse_listing,
    r"ops/manifest/.*json": parse_digests,
    r"ops/index/.*json": parse_shard,
    r"ops/servers/.*\.json": parse_state,
    r"ops/\.gitboot/.*\.json": json.loads,
}


def find_faults(stands: Mapping[str, bytes], old: Files, new: Files) -> list[str]:
    """Return the faults that a tree must not have between two versions."""
    found = []
    old, new = complete_tree(old), complete_tree(new)
    for path in old.keys() | new.keys():
        either = {file.content if (file := version.get(path)) else None for version in (old, new)}
        if not is_immutable(path) and stands.get(path) not in either:
            found.append(f"{path} is neither version: {stands.get(path)!r}")
    for path, content in stands.items():
        if path.endswith("/user-data") and sha256(content).hexdigest() not in path:
            found.append(f"{path} is torn: {content!r}")
        if path.endswith("/boot.ipxe") and path.startswith("boot/v1/"):
            named = content.decode().split()[1]
            if sha256(stands.get(named, b"")).hexdigest() not in named:
                found.append(f"{path} names {named}, which is {stands.get(named)!r}")
        parse_file = next((each for pattern, each in PARSERS.items() if re.fullmatch(pattern, path)), None)
        try:
            if parse_file is not None:
                parse_file(content)
        except ValueError as error:
            found.append(f"{path} does not parse: {error}")
    return found


def assert_complete(root: Path, version: int, servers: int = 1) -> None:
    """Assert that a publication is complete, and that only content is left of the previous one."""
    assert verify_tree(root) == ()
    manifest = read_manifest(root)
    assert manifest is not None
    assert manifest.origin.commit == str(version)
    assert set(manifest.files) == set(complete_tree(make_tree(version, servers)))
    assert_indexed(root)
    others = read_tree(root).keys() - manifest.files.keys()
    assert [path for path in others if not re.fullmatch(OTHERS, path)] == []


def assert_indexed(root: Path) -> None:
    """Assert that the index finds each server by the identities in its state, and by no other."""
    stands = read_tree(root)
    states = {
        server: parse_state(content)
        for path, content in stands.items()
        if (server := parse_state_path(path)) is not None
    }
    index = build_index({server: state.identities for server, state in states.items()})
    found = {path: parse_shard(content) for path, content in stands.items() if path.startswith("ops/index/")}
    assert found == index


# Killed


class PublisherProcess:
    """A process from which publishers are forked, so that each begins within a few milliseconds."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(root)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, **how: int) -> int:
        """Return how a publisher ended: the signal, negative, or its exit code."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(how) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def root() -> Iterator[Path]:
    memory = Path("/dev/shm")  # a disk would only be slower
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder) / "out"


@pytest.fixture
def publishers(root: Path) -> Iterator[PublisherProcess]:
    publishers = PublisherProcess(root)
    yield publishers
    publishers.close()


def test_killed_at_every_change_the_next_publication_completes_it(root: Path, publishers: PublisherProcess) -> None:
    for version, at in enumerate(count(1, get_interval(1)), 1):
        with OutputDirectory.open(root, ledger="ours") as directory:
            publish(directory, version - 1)
        status = publishers.run(version=version, killed_at=at)
        assert find_faults(read_tree(root), make_tree(version - 1), make_tree(version)) == []
        if status == 0:
            break
        assert status == -signal.SIGKILL
        assert read_manifest(root) is not None
        planned = version if version % 3 else version + 1  # sometimes it never becomes what was under way
        with OutputDirectory.open(root, ledger="ours") as directory:
            publish(directory, planned)
        assert_complete(root, planned)
    assert at > 50


# The first scripts, which unknown machines boot by, too


def fleet_of(script: bytes, servers: Iterable[int]) -> dict[str, File]:
    macs = [f"52-54-00-00-00-{number:02x}" for number in servers]
    kinds = (IPXE_BY_MAC, GRUB_LOOKUP, NETBOOT_XYZ, PXELINUX)
    entries = {kind.build_path(mac): File(mac.encode()) for kind in kinds for mac in macs}
    return {**entries, **dict.fromkeys((FIRST_SCRIPT, CHAIN, *UNKNOWN), File(script))}


def publish_fleet(directory: OutputDirectory, files: Files, commit: str) -> None:
    paths = {path for path in files if publication_stage(path) is Stage.BOOT_SCRIPTS}
    servers = {"all": server_files("all", {path: files[path] for path in paths})}
    shared = {path: file for path, file in files.items() if path not in paths}
    directory.publish(servers, shared, complete=True, commit=commit, at=AT)


def find_early_scripts(stands: Mapping[str, bytes], files: Files) -> list[str]:
    """Return the boot scripts of a loader that are absent while it has a first script of the same version."""
    found = []
    for loader in ("ipxe", "grub.cfg", "pxelinux"):
        own = {path: file.content for path, file in files.items() if loader in path}
        first = [path for path in own if publication_stage(path) is Stage.FIRST_SCRIPTS]
        if any(stands.get(path) == own[path] for path in first):
            found += [path for path in own if path not in stands and path not in first]
    return found


@pytest.mark.parametrize("stands", ["", "boot", "boot/v1/boot", "boot/pxelinux.cfg", "a mount point"])
def test_finding_m5_a_first_fill_that_is_killed_has_no_first_script_before_the_boot_scripts(
    root: Path, monkeypatch: pytest.MonkeyPatch, stands: str
) -> None:
    files = fleet_of(b"#!ipxe\n", range(2))
    if stands == "a mount point":
        monkeypatch.setattr(first_publication, "_can_move_folders", lambda *_: False)
    for at in count(1, get_interval(1)):
        shutil.rmtree(root, ignore_errors=True)
        (root / stands).mkdir(parents=True)
        with (
            hook_calls(kill_at(at)) as calls,
            suppress(KeyboardInterrupt),
            OutputDirectory.open(root, ledger="ours") as directory,
        ):
            publish_fleet(directory, files, "1")
        assert find_early_scripts(read_tree(root), files) == []
        if calls.calls < at:
            break
    assert find_early_scripts({}, files) == [] and find_early_scripts({FIRST_SCRIPT: b"#!ipxe\n"}, files) != []


def test_finding_m5_after_a_power_cut_a_tree_has_no_first_script_before_the_boot_scripts(root: Path) -> None:
    files = fleet_of(b"#!ipxe\n# another\n", range(5))
    with hook_calls(do_nothing):
        with OutputDirectory.open(root, ledger="ours") as directory:
            publish_fleet(directory, fleet_of(b"#!ipxe\n", range(2)), "1")
        states = states_after_cuts(root, lambda directory: publish_fleet(directory, files, "2"))
    assert [absent for stands in states if (absent := find_early_scripts(stands, files))] == []
    assert any(stands.get(FIRST_SCRIPT) == files[FIRST_SCRIPT].content for stands in states)


# Refused by the system


CHANGING = {"mkdir", "chmod", "rmdir", "write", "fchmod", "utime", "rename", "link", "unlink", "pwrite", "ftruncate"}
CHANGING |= {"fchown"}
CALLS = {*CHANGING, "open", "stat", "lstat", "fstat", "fsync", "listdir", "pread"}


class Os:
    """The os module, with a hook at the n-th system call."""

    def __init__(self, happen: Callable[[int, str, tuple[Any, ...]], None]) -> None:
        self._happen = happen
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        act = getattr(os, name)
        if name not in CALLS:
            return act

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self._happen(self.calls, name, args)
            return None if name == "fsync" else act(*args, **kwargs)

        self.__dict__[name] = call  # which is found without asking here again
        return call

    def syncfs(self, fd: int) -> None:
        self.calls += 1
        self._happen(self.calls, "syncfs", (fd,))


@contextmanager
def hook_calls(happen: Callable[[int, str, tuple[Any, ...]], None]) -> Iterator[Os]:
    """Let something happen at calls of the publisher; it waits for no disk."""
    with pytest.MonkeyPatch.context() as patch:
        os_ = Os(happen)
        for module in (files_module, disk_module, first_publication):
            patch.setattr(module, "os", os_)
        patch.setattr(disk_module, "syncfs", os_.syncfs)
        yield os_


def do_nothing(number: int, name: str, args: tuple[Any, ...]) -> None: ...


def kill_at(at: int) -> Callable[[int, str, tuple[Any, ...]], None]:
    def kill(number: int, name: str, args: tuple[Any, ...]) -> None:
        if number == at:
            raise KeyboardInterrupt

    return kill


def refuse_at(at: int, code: int, *, on: bool = False) -> Callable[[int, str, tuple[Any, ...]], None]:
    def refuse(number: int, name: str, args: tuple[Any, ...]) -> None:
        if number == at or (on and number > at and name not in ("stat", "lstat", "fstat", "pread")):
            raise OSError(code, os.strerror(code))

    return refuse


def kill_at_change(at: int) -> Callable[[int, str, tuple[Any, ...]], None]:
    """It ends before that change: to be killed at a call that only reads leaves what the change before it has left."""
    changes = count(1)

    def kill(number: int, name: str, args: tuple[Any, ...]) -> None:
        if is_change(name, args) and next(changes) == at:
            raise KeyboardInterrupt

    return kill


def is_change(name: str, args: tuple[Any, ...]) -> bool:
    return name in CHANGING or (name == "open" and bool(args[1] & os.O_CREAT))


@pytest.mark.parametrize(
    ("code", "on", "few", "restarted"),
    [
        pytest.param(errno.ENOSPC, False, True, True, id="a full disk, once"),
        pytest.param(errno.EIO, False, False, False, id="a fault, once, with many files"),
        pytest.param(errno.EROFS, True, True, False, id="read-only from then on"),
    ],
)
def test_with_an_error_at_every_call_the_next_publication_completes_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int, on: bool, few: bool, restarted: bool
) -> None:
    monkeypatch.setattr(disk_module, "MAX_FSYNCS", 1000 if few else 0)
    with hook_calls(do_nothing), OutputDirectory.open(root, ledger="ours") as directory:
        publish(directory, 0)
    for version, at in enumerate(count(1, get_interval(1)), 1):
        with publish_with_errors(root, version, refuse_at(at, code, on=on), restarted=restarted) as calls:
            assert find_faults(read_tree(root), make_tree(version - 1), make_tree(version)) == []
        if calls.calls < at:
            break
    assert at > 100


@contextmanager
def publish_with_errors(
    root: Path, version: int, refuse: Callable[[int, str, tuple[Any, ...]], None], *, restarted: bool
) -> Iterator[Os]:
    """Publish while something is refused, and after the block again, in the same process or in the next."""
    directory: OutputDirectory | None = None
    with hook_calls(refuse) as calls, suppress(PublishError):
        directory = OutputDirectory.open(root, ledger="ours")
        publish(directory, version)
    yield calls
    with hook_calls(do_nothing):
        if directory is not None and restarted:
            directory.close()
        if directory is None or restarted:
            directory = OutputDirectory.open(root, ledger="ours")
        publish(directory, version)
        directory.close()
    assert_complete(root, version)


# Cut off from power


class Recorder(DurableDirectory):
    """A disk that records its content after a power cut: what was synced, and any part of the rest."""

    def __init__(self, root: Path, modes: TreeModes = OPEN_MODES) -> None:
        super().__init__(root, modes)
        self.synced = read_tree(root)
        self.unsynced: list[tuple[str, str]] = []
        self.cuts: list[tuple[dict[str, bytes], list[tuple[str, str]]]] = []
        recorders[:] = [self]

    def stage(
        self, path: str, content: bytes, at: datetime, link_to: StagedFile | None = None, *, exact: bool = False
    ) -> StagedFile:
        self.unsynced.append(("stage", path))
        return super().stage(path, content, at, link_to, exact=exact)

    def place(self, path: str) -> None:
        super().place(path)
        self.unsynced.append(("place", path))

    def remove(self, path: str) -> None:
        if (self.root / path).exists():
            self.unsynced.append(("remove", path))
        super().remove(path)

    def sync(self) -> None:
        super().sync()
        self.cuts.append((self.synced, self.unsynced))
        self.synced, self.unsynced = read_tree(self.root), []

    def close(self) -> None:
        super().close()
        self.cuts.append((self.synced, self.unsynced))


recorders: list[Recorder] = []


def after_cut(synced: Mapping[str, bytes], done: list[tuple[str, str]]) -> dict[str, bytes]:
    """Return the files after a power cut with these changes since the last sync; unsynced content is lost."""
    stands = dict(synced)
    for act, path in done:
        if act == "stage":
            stands[staging_path(path)] = b""
        elif act == "place":
            stands[path] = synced.get(staging_path(path), b"")
            stands.pop(staging_path(path), None)
        else:
            stands.pop(path, None)
    return stands


def write_tree(root: Path, stands: Mapping[str, bytes]) -> None:
    for path, content in stands.items():
        if not path.endswith("/"):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)


def states_after_cuts(root: Path, act: Callable[[OutputDirectory], object]) -> list[dict[str, bytes]]:
    """Return the possible states of a tree if the power is cut while a process runs."""
    dice = random.Random(20261120)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory_module, "DurableDirectory", Recorder)
        with OutputDirectory.open(root, ledger="ours") as directory:
            act(directory)
    found = []
    for synced, done in recorders[0].cuts:
        some = [[each for each in done if dice.random() < 0.5] for _ in done]
        found += [after_cut(synced, part) for part in ([], done, *([each] for each in done), *some)]
    return found


def test_after_a_power_cut_at_any_point_the_next_publication_completes_it(root: Path) -> None:
    version = 5
    with hook_calls(do_nothing):
        with OutputDirectory.open(root, ledger="ours") as directory:
            for number in range(version):
                publish(directory, number)
            before = directory.inventory()
        states = states_after_cuts(root, lambda directory: publish(directory, version))
        for number, stands in enumerate(states):
            assert find_faults(stands, make_tree(version - 1), make_tree(version)) == []
            again = root.parent / str(number)
            write_tree(again, stands)
            shutil.copytree(again, gone_on := root.parent / f"{number}-gone-on")
            with OutputDirectory.open(again, ledger="ours") as directory:
                publish(directory, version - number % 2)  # sometimes it never becomes what was under way
            assert_complete(again, version - number % 2)
            continue_publication(gone_on, before, version - 1, version - number % 2)
            assert_complete(gone_on, version - number % 2)
    assert len(states) > 50


def continue_publication(root: Path, before: Inventory, held: int, planned: int) -> None:
    """Publish the servers whose files changed or are pending, and no others."""
    (old, _), (new, shared) = split(make_tree(held)), split(make_tree(planned))
    with OutputDirectory.open(root, ledger="ours") as directory:
        owed = directory.resume(before)
        assert owed is not None
        names = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)} | owed - {ALL}
        directory.publish(
            {name: new.get(name) for name in sorted(names)},
            shared if ALL in owed or held != planned else None,
            complete=False,
            commit=str(planned),
            at=AT + planned * timedelta(days=3),
        )


@pytest.mark.parametrize("lost", [*sorted(make_tree(1))])
def test_after_a_power_cut_during_a_repair_the_next_start_completes_it(root: Path, lost: str) -> None:
    def put_right(directory: OutputDirectory) -> None:
        assert directory.resume(before) == frozenset()
        publish_files(directory, make_tree(1), changed=[lost], commit="1", at=AT)

    with hook_calls(do_nothing):
        with OutputDirectory.open(root, ledger="ours") as directory:
            publish(directory, 1)
            before = directory.inventory()
            (root / lost).unlink()
        for number, stands in enumerate(states_after_cuts(root, put_right)):
            again = root.parent / str(number)
            write_tree(again, stands)
            if PENDING in stands:
                continue_publication(again, before, 1, 1)
                assert_complete(again, 1)


MACS = ("52-54-00-00-00-01", "52-54-00-00-00-02", "52-54-00-00-00-03")


def make_servers(*macs: str) -> dict[str, Files]:
    entries = {name: f"boot/v1/boot/{mac}/boot.ipxe" for name, mac in zip("abc", macs, strict=False) if mac}
    return {name: server_files(name, {path: File(f"{name} {path}".encode())}) for name, path in entries.items()}


moving = pytest.mark.parametrize(
    ("old", "new"),
    [
        (make_servers(*MACS[:2]), make_servers(MACS[1], MACS[0])),
        (make_servers(*MACS[:2]), make_servers(MACS[2], MACS[1])),
        (make_servers(*MACS[:2]), make_servers("", MACS[1], MACS[0])),
    ],
)


def publish_names(directory: OutputDirectory, wanted: Mapping[str, Files], names: Iterable[str], commit: str) -> None:
    some = {name: wanted.get(name) for name in sorted(names)}
    directory.publish(some, None, complete=False, commit=commit, at=AT)


def kill_at_each_change(
    root: Path, old: Mapping[str, Files], act: Callable[[OutputDirectory], object], *, damage: str | None = None
) -> Iterator[tuple[int, Inventory]]:
    """Publish servers, kill the process at each change that it makes, and yield the number of the change.

    The process continues from the previous inventory, or from none if a file is damaged meanwhile.
    """
    for at in count(1):
        shutil.rmtree(root, ignore_errors=True)
        with hook_calls(do_nothing), OutputDirectory.open(root, ledger="ours") as directory:
            directory.publish(old, {}, complete=True, commit="old", at=AT)
            before = directory.inventory()
        if damage is not None:
            (root / damage).write_bytes(b"{")
        with hook_calls(do_nothing), OutputDirectory.open(root, ledger="ours") as directory:
            assert damage is not None or directory.resume(before) == frozenset()
            ended = False
            with suppress(KeyboardInterrupt), hook_calls(kill_at_change(at)):
                act(directory)
                ended = True
        yield at, before
        if ended:
            break
    assert at > 15


@moving
def test_killed_while_mac_addresses_change_the_next_publication_finds_every_server_by_its_own(
    root: Path, old: Mapping[str, Files], new: Mapping[str, Files]
) -> None:
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    for at, before in kill_at_each_change(root, old, lambda directory: publish_names(directory, new, changed, "new")):
        planned = new if at % 2 else old
        with hook_calls(do_nothing), OutputDirectory.open(root, ledger="ours") as directory:
            owed = directory.resume(before)
            assert owed is not None
            publish_names(directory, planned, owed.union(changed if at % 2 else ()), "last")
        assert_indexed(root)
        assert verify_tree(root) == ()
        assert {name for path in read_tree(root) if (name := parse_state_path(path)) is not None} == planned.keys()


@moving
def test_after_an_error_while_mac_addresses_change_a_rollback_finds_every_server_by_its_own(
    root: Path, old: Mapping[str, Files], new: Mapping[str, Files]
) -> None:
    changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    for at in count(1):
        with hook_calls(do_nothing), OutputDirectory.open(root, ledger="ours") as directory:
            directory.publish(old, {}, complete=True, commit="old", at=AT)
            with suppress(PublishError), hook_calls(refuse_at(at, errno.ENOSPC)) as calls:
                publish_names(directory, new, changed, "new")
            if directory.is_unchanged:
                publish_names(directory, old, changed, "last")
            else:  # the head was replaced already
                directory.publish(old, {}, complete=True, commit="last", at=AT)
        assert_indexed(root)
        assert verify_tree(root) == ()
        if calls.calls < at:
            break
    assert at > 50


def test_killed_during_the_repair_of_a_shard_the_next_start_completes_the_repair(root: Path) -> None:
    servers = make_servers(*MACS[:2])

    def act(directory: OutputDirectory) -> None:
        directory.publish(servers, {}, complete=True, commit="new", at=AT)

    under_way = 0
    for _, before in kill_at_each_change(root, servers, act, damage=shard_path(f"mac/{MACS[0]}")):
        if not (root / PENDING).exists():
            continue
        under_way += 1
        with hook_calls(do_nothing), OutputDirectory.open(root, ledger="ours") as directory:
            owed = directory.resume(before)
            directory.publish(servers, {}, complete=owed is None, commit="new", at=AT)
        assert_indexed(root)
    assert under_way > 10


def make_named(content: str) -> dict[str, File]:
    path = f"boot/o/{sha256(content.encode()).hexdigest()}/user-data"
    return {path: File(content.encode())}


def test_killed_while_content_moves_to_another_server_it_expires_when_unused(root: Path) -> None:
    given, (path,) = make_named("data"), make_named("data")
    none, first, then = (
        {name: server_files(name, files) for name, files in zip("ab", both, strict=True)}
        for both in ((make_named("1"), make_named("2")), (given, make_named("2")), (make_named("1"), given))
    )

    def act(directory: OutputDirectory) -> None:
        directory.publish(then, None, complete=False, commit="then", at=AT)

    for at, before in kill_at_each_change(root, first, act):
        with hook_calls(do_nothing), OutputDirectory.open(root, ledger="ours") as directory:
            assert directory.resume(before) is not None
            for days in (1, 8):
                directory.publish(none, None, complete=False, commit=str(days), at=AT + timedelta(days=days))
        assert not (root / path).exists(), at
        assert verify_tree(root) == ()


class ForgetfulDisk(Recorder):
    """A disk that fails one sync: earlier changes are lost, but are still shown."""

    fails_at = 0
    stands: dict[str, bytes]

    def sync(self) -> None:
        self.syncs = getattr(self, "syncs", 0) + 1
        lost, self.unsynced = self.unsynced, []
        if self.syncs == self.fails_at:
            raise PublishError(os.strerror(errno.EIO))
        for act, path in lost:
            if act == "place":
                self.stands[path] = (self.root / path).read_bytes()
            elif act == "remove":
                self.stands.pop(path, None)


@pytest.mark.parametrize("restarted", [False, True])
def test_e37_files_of_a_failed_sync_are_written_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    for number in count(1):
        with OutputDirectory.open(root, ledger="ours") as directory:
            publish(directory, number)
            before = directory.inventory()
        ForgetfulDisk.fails_at, ForgetfulDisk.stands = number, read_tree(root)
        with monkeypatch.context() as patch:
            patch.setattr(directory_module, "DurableDirectory", ForgetfulDisk)
            with OutputDirectory.open(root, ledger="ours") as directory:
                try:
                    publish(directory, number + 1)
                    break
                except PublishError:
                    if not restarted:
                        publish(directory, number + 1)
            if restarted:
                ForgetfulDisk.fails_at = 0
                continue_publication(root, before, number, number + 1)
        found = read_tree(root)
        assert {path: found[path] for path in found if ForgetfulDisk.stands.get(path) != found[path]} == {}, number
    assert number > 5


@pytest.mark.parametrize("few", [True, False])
def test_a_sync_covers_all_changes_since_the_last_one(root: Path, monkeypatch: pytest.MonkeyPatch, few: bool) -> None:
    monkeypatch.setattr(disk_module, "MAX_FSYNCS", 1000 if few else 0)
    synced: set[str] = set()
    filesystems: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda fd: synced.add(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(disk_module, "syncfs", lambda fd: filesystems.add(os.fstat(fd).st_dev))
    missed: list[str] = []

    class Watched(Recorder):
        def __init__(self, root: Path, modes: TreeModes = OPEN_MODES) -> None:
            super().__init__(root, modes)
            self.known = {*root.rglob("*/")}

        def sync(self) -> None:
            synced.clear()
            filesystems.clear()
            touched = {staging_path(path) if act == "stage" else path.rpartition("/")[0] for act, path in self.unsynced}
            folders = {*self.root.rglob("*/")}
            touched |= {str(each.parent.relative_to(self.root)) for each in folders ^ self.known}
            self.known = folders
            super().sync()
            for path in touched:
                is_synced = str(self.root / path) in synced or self.root.stat().st_dev in filesystems
                if (self.root / path).exists() and not is_synced:
                    missed.append(path)

    with OutputDirectory.open(root, ledger="ours") as directory:
        publish(directory, 0)
    monkeypatch.setattr(directory_module, "DurableDirectory", Watched)
    with OutputDirectory.open(root, ledger="ours") as directory:
        for version in range(1, 4):
            publish(directory, version)
    assert missed == []


# A new tree


def assert_absent_or_complete(root: Path, version: int) -> None:
    """Assert that there is no tree, or a complete one with its manifest."""
    stands = {path: content for path, content in read_tree(root).items() if not path.startswith(f"{FRESH}/")}
    assert find_faults(stands, {}, make_tree(version)) == []
    if MANIFEST in stands:
        assert verify_tree(root) == ()
    if any(path.startswith("boot/") for path in stands.keys() - {"boot/"}):
        assert {path for path in complete_tree(make_tree(version)) if path.startswith("boot/")} <= stands.keys()


def test_killed_at_every_change_a_new_tree_appears_complete_or_not_at_all(
    root: Path, publishers: PublisherProcess
) -> None:
    ready = moving = 0
    for at in count(1):  # at one of them alone the tree is ready and has not begun to move
        shutil.rmtree(root, ignore_errors=True)
        status = publishers.run(version=1, killed_at=at)
        assert_absent_or_complete(root, 1)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        ready += (was_ready := (root / READY).exists())
        moving += was_ready and (root / "boot").exists()
        with OutputDirectory.open(root, ledger="ours") as directory:
            assert (directory.origin is not None) == (was_ready or (root / MANIFEST).exists())
            publish(directory, 1 + at % 2)  # sometimes it never becomes what was under way
        assert_complete(root, 1 + at % 2)
    assert at > 30
    assert ready > moving > 1


@pytest.mark.parametrize(
    ("code", "on"), [pytest.param(errno.ENOSPC, False, id="once"), pytest.param(errno.EROFS, True, id="from then on")]
)
@pytest.mark.parametrize("restarted", [False, True])
def test_with_an_error_at_every_call_a_new_tree_appears_complete_or_not_at_all(
    root: Path, code: int, on: bool, restarted: bool
) -> None:
    for at in count(1, get_interval(1)):
        shutil.rmtree(root, ignore_errors=True)
        with publish_with_errors(root, 1, refuse_at(at, code, on=on), restarted=restarted) as calls:
            assert_absent_or_complete(root, 1)
        if calls.calls < at:
            break
    assert at > 40


def test_after_a_power_cut_a_new_tree_appears_complete_or_not_at_all(root: Path) -> None:
    """Content since the last sync is lost; any part of the renames is done."""
    synced: list[Path] = []
    last = root.parent / "last"

    def keep(number: int, name: str, args: tuple[Any, ...]) -> None:
        if name == "syncfs":  # what is there is what this makes last
            synced.append(Path(shutil.copytree(root, root.parent / f"synced{len(synced)}")))
        if name == "rename" and args[0] == "manifest.json":
            shutil.copytree(root, last)

    with hook_calls(keep), OutputDirectory.open(root, ledger="ours") as directory:
        publish(directory, 1)
    written, named, placed = synced
    assert (written / FRESH / MANIFEST).exists()
    assert (named / READY / MANIFEST).exists()
    assert not (placed / READY / "boot").exists()
    assert verify_tree(placed) == ()
    for number, (stands, is_placed) in enumerate([(written, False), (named, True), (last, True), (placed, True)]):
        with hook_calls(do_nothing), OutputDirectory.open(stands, ledger="ours") as directory:
            assert (directory.origin is not None) == is_placed
            assert not (stands / FRESH).exists()
            publish(directory, 1 + number % 2)
        assert_complete(stands, 1 + number % 2)


@pytest.mark.parametrize(
    ("is_placed", "renamed"),
    [
        (False, ["boot", "fresh", "boot", "index", "manifest", "servers", "manifest.json"]),
        (True, ["o", "fresh", "o", "v1", "ipxe", "boot.ipxe", "index", "manifest", "servers", "manifest.json"]),
    ],
    ids=["in an empty folder", "beside files of operators"],
)
def test_a_new_tree_has_no_temporary_name(root: Path, is_placed: bool, renamed: list[str]) -> None:
    found: list[str] = []

    def note(number: int, name: str, args: tuple[Any, ...]) -> None:
        if name == "rename":
            found.append(args[0])

    if is_placed:
        place_kernel(root / "boot" / "assets")
        (root / "boot").chmod(0o2775)
    with hook_calls(note), OutputDirectory.open(root, ledger="ours") as directory:
        publish(directory, 1, servers=50)
    assert found == renamed
    assert verify_tree(root) == ()
    if is_placed:
        assert (root / "boot" / "assets" / "kernel").read_bytes() == b"kernel"
        assert (root / "boot").stat().st_mode & 0o7777 == 0o2775


def place_kernel(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "kernel").write_bytes(b"kernel")


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EBUSY])
def test_with_a_mount_point_in_the_tree_files_are_placed_one_by_one(root: Path, code: int) -> None:
    def refuse(number: int, name: str, args: tuple[Any, ...]) -> None:
        if name == "rename" and args[0] == "boot":
            raise OSError(code, os.strerror(code))

    with hook_calls(refuse), OutputDirectory.open(root, ledger="ours") as directory:
        publish(directory, 1)
    assert_complete(root, 1)
    assert not (root / FRESH).exists()


def test_in_a_nonempty_tree_files_are_placed_one_by_one(root: Path) -> None:
    place_kernel(root / "boot" / "ipxe")
    with OutputDirectory.open(root, ledger="ours") as directory:
        publish(directory, 1)
    assert verify_tree(root) == ()
    assert (root / "boot" / "ipxe" / "kernel").read_bytes() == b"kernel"


def test_files_that_appear_meanwhile_are_kept(root: Path) -> None:
    def crash(number: int, name: str, args: tuple[Any, ...]) -> None:
        if name == "rename" and args[0] == "boot" and (root / READY).exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with hook_calls(crash), pytest.raises(PublishError), OutputDirectory.open(root, ledger="ours") as directory:
        publish(directory, 1)
    place_kernel(root / "boot" / "v1" / "mine")
    with OutputDirectory.open(root, ledger="ours") as directory:
        assert directory.origin is not None
        assert verify_tree(root) == ()
        publish(directory, 2)
    assert verify_tree(root) == ()
    assert (root / "boot" / "v1" / "mine" / "kernel").read_bytes() == b"kernel"


def run(root: Path, *, version: int, killed_at: int) -> None:
    changes = count(1)

    def kill(number: int, name: str, args: tuple[Any, ...]) -> None:
        if is_change(name, args) and next(changes) == killed_at:
            if name == "write":
                os.write(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    with hook_calls(kill), OutputDirectory.open(root, ledger="ours") as directory:
        publish(directory, version)


if __name__ == "__main__":
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            run(Path(sys.argv[1]), **json.loads(line))
            os._exit(0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()
