"""Files and folders that a user names for output: replaced, and not written through a symlink of a commit."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from gitboot.cli.main import Exit
from gitboot.errors import UsageError
from gitboot.files import (
    check_output_folder,
    create_output_file,
    output_folder,
    read_output_file,
    remove_output_file,
    write_output_file,
)
from tests.helpers.fleets import SEED
from tests.helpers.forked_commands import captured
from tests.helpers.git_repositories import Work

FLEET = {"fleet.yaml": "---\n".join(SEED)}


@pytest.fixture
def work(tmp_path: Path) -> Work:
    made = Work(tmp_path / "checkout")
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


# What a branch can plant


PLANTED = {
    "the file": ("gitboot.xml", "zz.pth", "gitboot.xml"),
    "a file that does not exist yet": ("gitboot.xml", "new.pth", "gitboot.xml"),
    "a folder": ("reports", "", "reports/zz.pth"),
    "a folder above": ("reports", "..", "reports/site-packages/zz.pth"),
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("is_absolute", [False, True], ids=["relative", "absolute"])
@pytest.mark.parametrize("has_git", [True, False], ids=["clone", "archive"])
@pytest.mark.parametrize("command", [("validate", "-o", "junit={}"), ("explain", "Server", "-o", "json={}")])
def test_finding_s1_an_output_file_is_not_written_through_a_symlink_of_the_branch(
    work: Work,
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
    done = captured(*(each.format(work.path / file if is_absolute else file) for each in command))
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
def test_finding_s1_no_command_writes_through_a_symlink_of_the_branch(work: Work, outside: Path, what: str) -> None:
    link, command = OUTPUTS[what]
    (work.path / link).parent.mkdir(parents=True, exist_ok=True)
    (work.path / link).symlink_to(outside / "empty")
    work.commit()
    done = captured(*command(work.path))
    assert files_of(outside) == {"zz.pth": "theirs"}
    assert (done.returncode != Exit.FINE, "Traceback" in done.stderr) == (True, False)


@pytest.mark.parametrize("name", ["../site-packages/zz.pth", "{outside}/zz.pth", "servers/zz.pth"])
def test_finding_s1_an_import_deletes_nothing_outside_of_its_folder(
    work: Work, outside: Path, tmp_path: Path, name: str
) -> None:
    """A commit can change which files the last import wrote, and those that the source no longer has are deleted."""
    digest = sha256(b"theirs").hexdigest()
    named = name.format(outside=outside)
    (work.path / "servers").symlink_to(outside)
    work.commit({".gitboot/import.json": f'{{"{named}": "{digest}"}}\n'})
    source = tmp_path / "dnsmasq.conf"
    source.write_text("dhcp-host=52:54:00:00:00:01,web01,10.0.0.1\n")
    done = captured("import", "dnsmasq", source, "--out", work.path)
    assert files_of(outside) == {"zz.pth": "theirs"}
    assert (done.returncode, "Traceback" in done.stderr) == (Exit.USAGE, False)


def test_finding_s1_no_module_of_the_branch_is_imported(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ran := tmp_path / "ran").mkdir()
    modules = ("click", "sitecustomize", "usercustomize", "json")
    work.commit({f"{module}.py": f"open({str(ran / module)!r}, 'w')\n" for module in modules})
    monkeypatch.chdir(work.path)
    done = subprocess.run([sys.executable, "-m", "gitboot", "validate"], capture_output=True, text=True, check=False)
    assert (done.returncode, list(ran.iterdir())) == (Exit.FINE, []), done.stderr


# What the caller of gitboot opened


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
def test_what_the_caller_opened_can_be_written_to(
    shell: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path, script: str
) -> None:
    done = shell(script)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == captured("explain", "Server", "-o", "json").stdout


def test_a_descriptor_that_the_caller_did_not_open_is_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "ours", os.O_WRONLY | os.O_CREAT)  # Python's are closed when another program starts
    try:
        with pytest.raises(UsageError, match="without this descriptor"):
            write_output_file(Path(f"/dev/fd/{fd}"), [b"x"])
    finally:
        os.close(fd)
    with pytest.raises(UsageError, match="without this descriptor"):
        write_output_file(Path(f"/dev/fd/{fd}"), [b"x"])
    assert (tmp_path / "ours").read_bytes() == b""


# What is replaced, and how


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_mode_that_the_umask_leaves_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
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


def test_another_name_of_the_file_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "other").hardlink_to(tmp_path / "old")
    write_output_file(tmp_path / "old", [b"new"])
    assert ((tmp_path / "old").read_bytes(), (tmp_path / "other").read_bytes()) == (b"new", b"old")


def test_a_file_whose_content_fails_stays_as_it_was(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"half"
        raise UsageError("no more")

    (tmp_path / "old").write_bytes(b"old")
    with pytest.raises(UsageError, match="no more"):
        write_output_file(tmp_path / "old", failing())
    assert files_of(tmp_path) == {"old": "old"}


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "socket", "symlink"])
@pytest.mark.parametrize("act", [lambda path: write_output_file(path, [b"x"]), read_output_file], ids=["write", "read"])
def test_nothing_but_a_regular_file_is_replaced_or_read(
    tmp_path: Path, kind: str, act: Callable[[Path], object]
) -> None:
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
def test_a_name_that_can_only_be_a_directorys_is_refused(name: str) -> None:
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


def test_a_file_is_created_only_where_nothing_is(tmp_path: Path) -> None:
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
    with output_folder(tmp_path / "a" / ".." / "b", make=True):
        pass
    with pytest.raises(UsageError):
        write_output_file(tmp_path / "missing" / "file", [b"x"])
    assert len(os.listdir("/proc/self/fd")) == before
