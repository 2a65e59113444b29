"""The places of output and state: replaced files, rejected and discouraged places, and disks that fail."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import cycle, product
from pathlib import Path

import pytest
from msgspec import structs

from gitboot.bmc.override_state import NO_MARKS, OverrideRecord, OverrideState
from gitboot.bmc.override_steps import NO_OVERRIDE
from gitboot.cli.main import Exit
from gitboot.controller.instance_state import LastFetch
from gitboot.controller.reconcile_inputs import Inbox
from gitboot.errors import LedgerError, PublishError, UsageError
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import SpoolFile, encode_line, read_new_lines
from gitboot.files import (
    _find_mount_type,
    check_fetch_log_folder,
    check_output_directory,
    check_output_folder,
    check_state_directory,
    create_output_file,
    find_filesystem,
    open_output_folder,
    read_output_file,
    remove_output_file,
    write_output_file,
)
from gitboot.jsonio import Digest
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.open_ledger import copy_ledger, open_ledger
from gitboot.model.scalars import SystemUuid
from gitboot.publish.publisher import OutputDirectory
from gitboot.resolve.provisioning_record import Record
from tests.controller.records.test_ledger_trust import documents, reconcile_at
from tests.helpers.cases import for_each
from tests.helpers.disks_and_terminals import FailingDisk, failing_disk
from tests.helpers.fleets import SEED, at, make_uuid
from tests.helpers.forked_commands import run_forked
from tests.helpers.git_repositories import WorkTree
from tests.helpers.instance_in_process import run_in_process
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.running_instance import Repository
from tests.publish.test_publisher_kill import assert_complete, publish

FLEET = {"fleet.yaml": "---\n".join(SEED)}


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    made = WorkTree(tmp_path / "checkout")
    made.commit(FLEET)
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of the runner, with a file that Python runs at each start, and a folder without files."""
    folder = tmp_path / "site-packages"
    (folder / "empty").mkdir(parents=True)
    (folder / "zz.pth").write_text("theirs")
    return folder


def files_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


# Attacks by a branch


PLANTED = {
    "the file": ("gitboot.xml", "zz.pth", "gitboot.xml"),
    "a file that does not exist yet": ("gitboot.xml", "new.pth", "gitboot.xml"),
    "a folder": ("reports", "", "reports/zz.pth"),
    "a folder above": ("reports", "..", "reports/site-packages/zz.pth"),
}


VALIDATE, EXPLAIN = ("validate", "-o", "junit={}"), ("explain", "Server", "-o", "json={}")
COMMANDS = cycle([VALIDATE, EXPLAIN, EXPLAIN, VALIDATE])


@pytest.mark.parametrize(
    ("planted", "is_absolute", "has_git", "command"),
    [(*each, next(COMMANDS)) for each in product(PLANTED, (False, True), (True, False))],
)
def test_finding_s1_an_output_file_is_not_written_through_a_symlink_of_the_branch(
    work: WorkTree,
    outside: Path,
    planted: str,
    is_absolute: bool,
    has_git: bool,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, target, file = PLANTED[planted]
    (work.path / link).symlink_to(os.path.relpath(outside / target, work.path))
    work.commit()
    if not has_git:  # as actions/checkout makes it on a runner without Git
        (work.path / ".git").rename(work.path.parent / "git")
    before = files_of(outside)
    monkeypatch.chdir(work.path)
    done = run_forked(*(each.format(work.path / file if is_absolute else file) for each in command))
    assert files_of(outside) == before
    assert (done.returncode, "is a symlink" in done.stderr, "Traceback" in done.stderr) == (Exit.USAGE, True, False)


OUTPUTS: dict[str, tuple[str, Callable[[Path], tuple[object, ...]]]] = {
    "a rendered tree": ("public", lambda co: ("render", co, "--out", co / "public")),
    "a folder of the rendered tree": ("public/boot", lambda co: ("render", co, "--out", co / "public")),
    "boot loaders": (
        "public/boot/assets",
        lambda co: ("artifacts", "loaders", co, "--out", co / "public/boot", "--base-url", "http://boot.test"),
    ),
    "schemas": ("schemas", lambda co: ("explain", "--schemas", co / "schemas")),
    "a secret": (
        "secrets",
        lambda co: ("secret", "encrypt", co / "fleet.yaml", "--to", KEY, "--file", co / "secrets/x.age"),
    ),
    "a key": ("keys", lambda co: ("secret", "keygen", co / "keys/key")),
    "a new fleet": ("other", lambda co: ("init", co / "other")),
    "CI of a new fleet": (".github", lambda co: ("init", co, "--subpath", "infra/boot")),
}
KEY = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"  # of age(1)


@pytest.mark.parametrize("what", OUTPUTS)
def test_finding_s1_no_command_writes_through_a_symlink_of_the_branch(work: WorkTree, outside: Path, what: str) -> None:
    link, command = OUTPUTS[what]
    (work.path / link).parent.mkdir(parents=True, exist_ok=True)
    (work.path / link).symlink_to(outside / "empty")
    work.commit()
    done = run_forked(*command(work.path))
    assert files_of(outside) == {"zz.pth": "theirs"}
    assert (done.returncode != Exit.FINE, "Traceback" in done.stderr) == (True, False)


@pytest.mark.parametrize("name", ["../site-packages/zz.pth", "{outside}/zz.pth", "servers/zz.yaml"])
def test_finding_s1_an_import_deletes_nothing_outside_its_folder(
    work: WorkTree, outside: Path, tmp_path: Path, name: str
) -> None:
    """A commit can change which files the last import wrote, and those that the source no longer has are deleted."""
    digest = sha256(b"theirs").hexdigest()
    named = name.format(outside=outside)
    (outside / "zz.yaml").write_text("theirs")
    (work.path / "servers").symlink_to(outside)
    work.commit({".gitboot/import.json": f'{{"{named}": "{digest}"}}\n'})
    source = tmp_path / "dnsmasq.conf"
    source.write_text("dhcp-host=52:54:00:00:00:01,web01,10.0.0.1\n")
    done = run_forked("import", "dnsmasq", source, "--out", work.path)
    assert files_of(outside) == {"zz.pth": "theirs", "zz.yaml": "theirs"}
    assert (done.returncode, "Traceback" in done.stderr) == (Exit.USAGE, False)


def test_finding_s1_no_module_of_the_branch_is_imported(
    work: WorkTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ran := tmp_path / "ran").mkdir()
    modules = ("click", "sitecustomize", "usercustomize", "json")
    work.commit({f"{module}.py": f"open({str(ran / module)!r}, 'w')\n" for module in modules})
    monkeypatch.chdir(work.path)
    done = subprocess.run([sys.executable, "-m", "gitboot", "validate"], capture_output=True, text=True, check=False)
    assert (done.returncode, list(ran.iterdir())) == (Exit.FINE, []), done.stderr


# Descriptors that the caller opened


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    (folder := tmp_path / "bin").mkdir()
    (folder / "gitboot").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m gitboot "$@"\n')  # with all descriptors
    (folder / "gitboot").chmod(0o755)

    def run(script: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
        command = ["bash", "-euc", script]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(
    "script",
    [
        "gitboot explain Server -o json=/dev/stdout > out",
        "gitboot explain Server -o json=/dev/stderr 2> out",
        "gitboot explain Server -o json=/dev/stdout | cat > out",
        "gitboot explain Server -o json=/dev/fd/5 5> out",
        "gitboot explain Server -o json=/proc/self/fd/1 > out",
        "mkfifo done; gitboot explain Server -o json=>(cat > out; echo > done); read < done",
    ],
)
def test_a_descriptor_that_the_caller_opened_can_be_written_to(
    shell: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path, script: str
) -> None:
    done = shell(script)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == run_forked("explain", "Server", "-o", "json").stdout


def test_a_descriptor_that_the_caller_did_not_open_is_rejected(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "ours", os.O_WRONLY | os.O_CREAT)  # Python's are closed when another program starts
    try:
        with pytest.raises(UsageError, match="this file descriptor was not open"):
            write_output_file(Path(f"/dev/fd/{fd}"), [b"x"])
    finally:
        os.close(fd)
    with pytest.raises(UsageError, match="this file descriptor was not open"):
        write_output_file(Path(f"/dev/fd/{fd}"), [b"x"])
    assert (tmp_path / "ours").read_bytes() == b""


# Replaced files


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_of_the_umask_and_an_existing_one_keeps_its_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_output_file(tmp_path / "new", [b"1"])
        (tmp_path / "old").write_bytes(b"0")
        (tmp_path / "old").chmod(0o604)
        write_output_file(tmp_path / "old", [b"1", b"2"])
        write_output_file(tmp_path / "exact", [b"1"], mode=0o644)
    finally:
        os.umask(before)
    assert [mode_of(tmp_path / name) for name in ("new", "old", "exact")] == [0o640, 0o604, 0o644]
    assert (tmp_path / "old").read_bytes() == b"12"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exact", "new", "old"]


def test_another_hard_link_of_the_file_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "other").hardlink_to(tmp_path / "old")
    write_output_file(tmp_path / "old", [b"new"])
    assert ((tmp_path / "old").read_bytes(), (tmp_path / "other").read_bytes()) == (b"new", b"old")


def test_a_file_whose_content_fails_stays_unchanged(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"half"
        raise UsageError("no more")

    (tmp_path / "old").write_bytes(b"old")
    with pytest.raises(UsageError, match="no more"):
        write_output_file(tmp_path / "old", failing())
    assert files_of(tmp_path) == {"old": "old"}


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "socket", "symlink"])
@pytest.mark.parametrize("act", [lambda path: write_output_file(path, [b"x"]), read_output_file], ids=["write", "read"])
def test_only_a_regular_file_is_replaced_or_read(tmp_path: Path, kind: str, act: Callable[[Path], object]) -> None:
    path = tmp_path / "file"
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/null")
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "symlink":
            path.symlink_to("elsewhere")
    with pytest.raises(UsageError, match=str(path)):
        act(path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("name", ["", "/", ".."])
def test_a_name_that_can_only_be_a_directory_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="is a directory"):
        write_output_file(Path(name), [b"x"])


def test_a_symlink_outside_of_checkouts_and_of_the_current_directory_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "boot").symlink_to("data")
    monkeypatch.chdir(tmp_path / "here")
    write_output_file(tmp_path / "boot" / "new" / "file", [b"x"], make_folders=True)
    write_output_file(Path("../boot/file"), [b"y"])
    assert files_of(tmp_path / "data") == {"new/file": "x", "file": "y"}
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")  # of a linked work tree
    for path in (tmp_path / "boot" / "file", Path("../boot/file")):
        with pytest.raises(UsageError, match=r"boot.* is a symlink to 'data'"):
            write_output_file(path, [b"z"])
    assert files_of(tmp_path / "data") == {"new/file": "x", "file": "y"}


def test_a_loop_of_symlinks_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError, match="symbolic links"):
        write_output_file(tmp_path / "loop" / "file", [b"x"])


def test_a_file_is_created_only_at_a_free_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    assert create_output_file(tmp_path / "folder" / "new", b"1", mode=0o600, make_folders=True)
    assert not create_output_file(tmp_path / "folder" / "new", b"2")
    assert not create_output_file(tmp_path / "link", b"2")
    assert mode_of(tmp_path / "folder" / "new") == 0o600
    assert files_of(tmp_path) == {"folder/new": "1"}


def test_a_file_is_read_and_removed_below_a_folder_that_may_be_missing(tmp_path: Path) -> None:
    write_output_file(tmp_path / "file", [b"x"])
    assert (read_output_file(tmp_path / "file"), read_output_file(tmp_path / "no" / "file")) == (b"x", None)
    for _ in range(2):
        remove_output_file(tmp_path / "file")
        remove_output_file(tmp_path / "no" / "file")
    check_output_folder(tmp_path / "no")
    assert [*tmp_path.iterdir()] == []


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with open_output_folder(tmp_path / "a" / ".." / "b", make=True):
        pass
    with pytest.raises(UsageError):
        write_output_file(tmp_path / "missing" / "file", [b"x"])
    assert len(os.listdir("/proc/self/fd")) == before


NOON = at("20T12:00")
WEB01 = SystemUuid(make_uuid("web01"))
INTENT = OverrideRecord(
    reason="provision/1",
    plan_digest="d" * 64,
    override=NO_OVERRIDE,
    marks=NO_MARKS,
    state=OverrideState.RECORDED,
    at=NOON,
)
MOUNTS = r"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /srv rw,relatime shared:7 - nfs4 server:/srv rw
24 23 0:22 / /srv/local\040disk rw,relatime - xfs /dev/vdb rw
25 22 0:23 / /run rw - tmpfs tmpfs rw
26 22 0:24 / /hidden rw - ext4 /dev/vdc rw
27 22 0:25 / /hidden rw - 9p share rw
28 22 0:26 / /mnt/far rw - fuse.sshfs me@far:/ rw
""".strip()


@for_each(
    ("path", "expected"),
    [
        ("/var/lib/gitboot", "ext4"),
        ("/srv/boot", "nfs4"),
        ("/srvother", "ext4"),
        ("/srv/local disk/boot", "xfs"),
        ("/run/gitboot", "tmpfs"),
        ("/hidden/state", "9p"),
        ("/mnt/far", "fuse.sshfs"),
    ],
)
def test_a_path_is_on_the_nearest_mount_above_it_that_was_made_last(path: str, expected: str) -> None:
    assert _find_mount_type(MOUNTS, Path(path)) == expected


def mounted(kind: str, folder: Path) -> Path:
    """Yield a directory on a file system of this type; skip the test if there is none."""
    folder.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "tmpfs", str(folder)]
    else:
        for name in ("lower", "upper", "work"):
            (folder.parent / name).mkdir()
        layers = ",".join(f"{name}dir={folder.parent / name}" for name in ("lower", "upper", "work"))
        command = ["mount", "-t", "overlay", "overlay", "-o", layers, str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip(f"no {kind} can be mounted here")
    return folder


@pytest.fixture(params=["tmpfs", "overlay"])
def volatile(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    folder = mounted(request.param, tmp_path / "mounted")
    yield request.param, folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_e37_a_fetch_log_on_volatile_storage_counts_as_none(volatile: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = volatile
    warned: list[str] = []
    assert find_filesystem(folder) == kind
    with pytest.raises(UsageError, match=rf"is on {kind}, which loses its data on restart.*--accept-filesystem {kind}"):
        check_fetch_log_folder(folder, (), warned.append, state=tmp_path)
    check_fetch_log_folder(folder, (kind,), warned.append, state=tmp_path)
    check_fetch_log_folder(
        folder, (), warned.append, state=folder
    )  # a fetch log that is lost together with the ledger does no harm
    assert warned == []
    check_state_directory(folder, (), warned.append)  # a ledger that is lost is a new one
    assert f"is on {kind}, which loses its data on restart" in warned[0]
    check_state_directory(tmp_path, ("tmpfs", "overlay"), warned.append)
    assert len(warned) == 1


def test_e37_an_endpoint_with_a_fetch_log_on_volatile_storage_does_not_start(
    volatile: tuple[str, Path], tmp_path: Path
) -> None:
    kind, folder = volatile
    command = [sys.executable, "-m", "gitboot", "serve", "--out", str(tmp_path), "--spool", str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "GITBOOT_ACCEPT_FILESYSTEM"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=300)
    assert (done.returncode, f"is on {kind}" in done.stderr) == (64, True)


def test_e37_a_volatile_output_tree_is_only_a_warning(volatile: tuple[str, Path], tmp_path: Path) -> None:
    kind, folder = volatile
    warned: list[str] = []
    check_output_directory(folder, (kind,), warned.append, state=tmp_path)
    check_output_directory(
        folder, (), warned.append, state=folder
    )  # a fetch log that is lost together with the ledger does no harm
    assert warned == []
    check_output_directory(folder, (), warned.append, state=tmp_path)
    assert f"is on {kind}, which loses its data on restart. The ledger is then unverified" in warned[0]


@pytest.mark.parametrize("kind", ["nfs4", "9p", "cifs", "fuse.sshfs"])
def test_e37_a_ledger_on_a_network_file_system_is_rejected_and_a_fetch_log_is_a_warning(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 0:21 / {tmp_path} rw - {kind} server:/ rw\n")
    monkeypatch.setattr("gitboot.files._MOUNTS", mounts)
    warned: list[str] = []
    with pytest.raises(UsageError, match=rf"is on {kind}, but a ledger needs a local disk.*--accept-filesystem {kind}"):
        check_state_directory(tmp_path, (), warned.append)
    assert warned == []
    check_state_directory(tmp_path, (kind,), warned.append)
    check_fetch_log_folder(tmp_path, (), warned.append)
    check_output_directory(tmp_path, (), warned.append, state=tmp_path)
    assert [f"is on {kind}" in each for each in warned] == [True, True, True]


def test_e37_locks_that_do_not_exclude_a_second_process_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system may accept every lock: the second process locks another file of that name."""
    check_state_directory(tmp_path, ("tmpfs", "overlay"), print)
    script = "import fcntl, sys\nfcntl.flock(open(sys.argv[1] + '.other', 'wb'), fcntl.LOCK_EX)\nsys.exit(3)"
    monkeypatch.setattr("gitboot.files._LOCK_PROBE", script)
    monkeypatch.setattr("gitboot.files._LOCKABLE_DEVICES", set())
    for check in (check_state_directory, check_fetch_log_folder, partial(check_output_directory, state=tmp_path)):
        with pytest.raises(UsageError, match="file locks between processes do not work"):
            check(tmp_path, ("tmpfs", "overlay"), print)


# A disk that fails


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FailingDisk]:
    with failing_disk(tmp_path) as made:
        yield made


def test_e37_after_a_failed_sync_a_ledger_counts_only_what_is_read_back(disk: FailingDisk) -> None:
    path = disk.path / "ledger.sqlite"

    def write(provision: int) -> None:
        with ledger.writing() as tx:
            server_tables.write_records(tx, [(WEB01, "web01", Record(provision=provision))])

    def write_until_it_fails() -> int:
        for provision in range(2, 100):
            try:
                write(provision)
            except LedgerError:
                return provision
        raise AssertionError("the disk does not fail")

    with open_ledger(path) as ledger:
        write(1)
        disk.fail()
        failed = write_until_it_fails()
        assert ledger.is_suspect
        disk.heal()
        ledger.read_back()
        assert not ledger.is_suspect
        found = server_tables.read_records(ledger)[WEB01].provision
        assert found in (failed - 1, failed)  # that one may exist, or not
        write(1000)
    with open_ledger(path) as ledger:
        assert server_tables.read_records(ledger)[WEB01].provision == 1000


def test_e37_a_ledger_whose_disk_lost_synced_data_is_not_used(tmp_path: Path) -> None:
    path, older = tmp_path / "ledger.sqlite", tmp_path / "older.sqlite"
    with open_ledger(path) as ledger:
        for provision in (1, 2):
            copy_ledger(path, older, in_use=True)
            with ledger.writing() as tx:
                server_tables.write_records(tx, [(WEB01, "web01", Record(provision=provision))])
        Path(f"{path}-wal").write_bytes(b"")
        shutil.copyfile(older, path)
        with pytest.raises(LedgerError, match="the disk lost synced changes"):
            ledger.read_back()


def test_e3_a_task_learns_that_its_record_was_not_written_and_no_other_code_uses_the_record(tmp_path: Path) -> None:
    """Therefore the task does not set an override that no record would have after a crash."""
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        inbox = Inbox(ledger)
        inbox.record(WEB01, INTENT)
        with closing(sqlite3.connect(ledger.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerError, match="locked"):
                inbox.record(WEB01, structs.replace(INTENT, state=OverrideState.CONFIRMED))
        assert inbox.take({}, NOON).written_records == ((WEB01, INTENT),)
        assert server_tables.read_overrides(ledger) == {WEB01: {INTENT.reason: INTENT}}


def test_the_end_of_an_override_is_stored_without_an_attempt_to_write(tmp_path: Path) -> None:
    """Each attempt could wait for a lock, and reads succeed meanwhile."""

    def ended(number: int) -> OverrideRecord:
        return structs.replace(
            INTENT, reason=f"maintenance/repair/{number}", state=OverrideState.CLEARED, clears_from=NOON
        )

    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        inbox = Inbox(ledger, clock=lambda: NOON)
        with closing(sqlite3.connect(ledger.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            inbox.record(WEB01, ended(1))
        assert not ledger.is_failing
        inbox.record(WEB01, INTENT)  # which needs the ledger
        inbox.record(WEB01, ended(2))
        assert server_tables.read_overrides(ledger) == {WEB01: {INTENT.reason: INTENT}}
        assert [each.record for each in inbox.clearings] == [ended(1), ended(2)]


def test_e37_a_fetch_whose_sync_failed_is_not_recorded(disk: FailingDisk) -> None:
    def observation(second: int) -> Observation:
        return Observation(
            server="web01", path="boot/x", digest=Digest("a" * 64), client="::1", at=NOON + timedelta(seconds=second)
        )

    spool = SpoolFile(disk.path)
    spool.append(encode_line(observation(0)))
    disk.fail()
    failed = 0
    for second in range(1, 2000):
        try:
            spool.append(encode_line(observation(second)) * 100)
        except OSError:
            failed = second
            break
    assert failed
    disk.heal()
    spool.append(encode_line(observation(5000)))
    spool.close()
    found = {each.at for each in read_new_lines(disk.path, {}).observations}
    assert observation(failed).at not in found
    assert {observation(0).at, observation(5000).at} <= found


def test_e37_one_failed_sync_fails_the_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports the error once: a second sync would succeed."""
    seen = Observation(server="web01", path="boot/x", digest=Digest("a" * 64), client="::1", at=NOON)
    spool, line = SpoolFile(tmp_path), encode_line(seen)
    spool.append(line)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", raising(errno.EIO))
        with pytest.raises(OSError, match="Input/output error"):
            spool.append(line)
    spool.append(line)
    spool.close()
    assert len(read_new_lines(tmp_path, {}).observations) == 2


def raising(number: int) -> Callable[[int], None]:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def test_e37_a_tree_on_a_failing_disk_is_not_reported_as_published(disk: FailingDisk) -> None:
    def stands(version: int) -> bool:
        try:
            publish(directory, version, servers=50)
        except PublishError:
            return False
        return True

    with OutputDirectory.open(disk.path / "output", ledger="ours") as directory:
        assert stands(0)
        disk.fail()
        version = next(each for each in range(1, 200) if not stands(each))
        disk.heal()
        assert any(stands(version) for _ in range(5))  # the kernel reports lost data once to each reader
    assert_complete(disk.path / "output", version, servers=50)


def test_e37_an_instance_continues_from_what_its_disk_has(disk: FailingDisk, tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push(documents())
    with run_in_process(disk.path, repository.bare, initial="adopt") as parts:
        reconcile_at(parts, NOON)
        assert dict(parts.reconciler.status.records) == {"Provisioned": 3}
        disk.fail()
        for second in range(1, 50):
            parts.reconciler.reconcile(NOON + timedelta(minutes=10 * second), fetched=LastFetch())
            if not parts.reconciler.status.condition("LedgerWritable"):
                break
        assert not parts.reconciler.status.condition("LedgerWritable")
        assert dict(parts.reconciler.status.records) == {"Provisioned": 3}  # known servers are planned
        disk.heal()
        for day in (1, 2):
            reconcile_at(parts, NOON + timedelta(days=day))
        assert parts.reconciler.status.condition("LedgerWritable")
        assert dict(parts.reconciler.status.records) == {"Provisioned": 3}
        assert instance_tables.read_facts(parts.ledger).doubt is None


@pytest.mark.parametrize(
    ("option", "below"),
    [("--state", ""), ("--state", "state"), ("--spool", "ops/spool"), ("--push-secret", "boot/secret")],
)
def test_private_files_are_rejected_inside_the_output_tree(tmp_path: Path, option: str, below: str) -> None:
    """A server of OUTPUT would publish the ledger and its keys; nothing is created in this case."""
    output = tmp_path / "output"
    (tmp_path / "beside").symlink_to(output)
    places = {"--state": tmp_path / "state", "--out": output, option: tmp_path / "beside" / below}
    options = [str(each) for pair in places.items() for each in pair]
    done = run_command("run", tmp_path / "fleet.git", *options, "--once")
    assert done.code == Exit.USAGE
    where = "is" if not below else "is in"
    assert done.err == (
        f"gitboot: {option} {places[option]} {where} --out {output}, which every client can read;"
        " choose another directory\n"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["beside"]


def test_secrets_of_operators_are_rejected_inside_the_output_tree(tmp_path: Path) -> None:
    (output := tmp_path / "output").mkdir()
    (tokens := output / "tokens").write_text("a token that nobody guesses\n")
    places = ("--state", tmp_path / "state", "--out", output, "--operators-tokens", tokens)
    done = run_command("run", tmp_path / "fleet.git", *places, "--once")
    assert done.code == Exit.USAGE and done.err.startswith(f"gitboot: --operators-tokens {tokens} is in --out {output}")


def test_a_repository_is_rejected_as_the_output_directory(tmp_path: Path) -> None:
    (repository := Repository.create(tmp_path / "git")).push(documents())
    for fleet, what in ((repository.work, "work tree"), (repository.bare, "repository")):
        before = sorted(each.name for each in fleet.iterdir())
        done = run_command("run", fleet, "--state", tmp_path / "state", "--out", fleet, "--once")
        assert done.code == Exit.USAGE
        assert done.err == f"gitboot: --out {fleet} is a Git {what}; choose a separate directory for published files\n"
        assert sorted(each.name for each in fleet.iterdir()) == before
