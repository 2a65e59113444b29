"""Another user of this machine: what they can read, lock, and plant in a state directory."""

from __future__ import annotations

import grp
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from gitboot.cli.main import Exit
from gitboot.controller.instance.state_directory import check_spool_rights, make_private
from gitboot.errors import UsageError
from tests.helpers import http_peers
from tests.helpers.fleets import SEED
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.mirrors import nginx
from tests.helpers.running_instance import Repository, eventually, running
from tests.scenarios.test_run import fleet_files

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody on this machine can come to."""
    made = Path(tempfile.mkdtemp(prefix="gitboot-rights-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def repository(folder: Path) -> Repository:
    made = Repository.create(folder / "git")
    made.push(fleet_files(*SEED))
    return made


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def run_as_nobody(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A program of another user."""

    def become() -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)

    command = ["/usr/bin/python3", "-I", "-c", program, *map(str, arguments)]
    if not Path(command[0]).exists():
        command[0] = sys.executable
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=become, cwd="/", check=False)


LOCK = """
import fcntl, os, sys
for path in sys.argv[1:]:
    try:
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        print(type(error).__name__)
    else:
        print("locked", path)
"""


def test_t7_files_of_an_instance_are_private_with_any_umask(folder: Path, repository: Repository, umask: int) -> None:
    with running(repository.bare, folder, records="fresh"):
        found = [folder / "state", *(folder / "state").rglob("*")]
        names = {path.name for path in found}
        kept = {"ledger.sqlite", "ledger.sqlite-wal", "ledger.mark", "lock", "status.json", "token-keys"}
        assert kept | {"repository.git"} <= names
        spool = folder / "state" / "spool"
        for path in found:
            if path != spool and spool not in path.parents:
                with suppress(FileNotFoundError):  # the temporary file has replaced the file by now
                    assert not mode(path) & 0o077, path
        assert mode(folder / "output") == 0o750, "what is published is for the group"


@needs_root
def test_t7_another_user_cannot_lock_an_instance(folder: Path, repository: Repository) -> None:
    with running(repository.bare, folder, records="fresh"):
        locks = [folder / "state" / "lock", folder / "state" / "ledger.sqlite", *(folder / "output").rglob("lock")]
        assert len(locks) == 3
        done = run_as_nobody(LOCK, *locks)
    assert done.stdout.splitlines() == ["PermissionError"] * 3, done


@needs_root
def test_t7_files_that_an_older_gitboot_left_open_are_closed(folder: Path) -> None:
    state = folder / "state"
    state.mkdir(mode=0o755)
    for name in ("ledger.sqlite", "lock", "status.json"):
        (state / name).touch(mode=0o644)
    (state / "repository.git").mkdir(mode=0o755)
    with make_private(state):
        assert mode(state) == 0o700
        assert {mode(path) for path in state.iterdir() if path.is_file()} == {0o600}
        assert mode(state / "repository.git") == 0o700


def test_a_directory_of_other_programs_is_rejected_as_state_and_stays_accessible(folder: Path) -> None:
    state = folder / "lib"
    (state / "postgresql").mkdir(parents=True)
    state.chmod(0o755)
    with (
        pytest.raises(UsageError, match="contains postgresql, which gitboot did not create") as caught,
        make_private(state),
    ):
        pass
    assert mode(state) == 0o755 and f"run chmod 700 {state}" in str(caught.value)
    for name in ("spool", "ledger.sqlite"):
        (state / name).mkdir()
        with make_private(state):
            assert mode(state) == 0o700
        (state / name).rmdir()
        state.chmod(0o755)


@needs_root
@pytest.mark.parametrize(
    ("owner", "group", "rights", "refused"),
    [
        (NOBODY, NOBODY, 0o777, "every user can write to"),
        (NOBODY, NOBODY, 0o1777, "every user can write to"),
        (NOBODY, 12345, 0o770, "group 12345, to which this process does not belong, can write to"),
        (NOBODY, 0, 0o2770, None),  # as OpenShift: another user at each start, the group is ours
        (NOBODY, 0, 0o770, None),
        (NOBODY, NOBODY, 0o755, None),
        (0, 0, 0o777, None),  # what is ours is put right
        (0, 0, 0o2770, None),  # as Kubernetes with fsGroup
    ],
)
def test_t7_a_state_directory_that_others_may_write_is_rejected(
    folder: Path, owner: int, group: int, rights: int, refused: str | None
) -> None:
    state = folder / "state"
    state.mkdir()
    os.chown(state, owner, group)
    state.chmod(rights)
    if refused is None:
        with make_private(state):
            (state / "made").touch()
            assert mode(state / "made") == (0o660 if rights & stat.S_ISGID else 0o600)
        if owner == 0:
            assert mode(state) == (0o2770 if rights & stat.S_ISGID else 0o700)
        return
    with pytest.raises(UsageError, match=refused) as caught, make_private(state):
        pass
    assert f"-w {state}" in str(caught.value), "one line says what to run"


@pytest.mark.parametrize(
    "name", ["ledger.sqlite", "ledger.mark", "lock", "status.json", "token-keys", "repository.git"]
)
def test_t7_a_symlink_in_a_state_directory_is_rejected(folder: Path, name: str) -> None:
    (folder / "state").mkdir()
    (folder / "elsewhere").write_text("precious")
    (folder / "state" / name).symlink_to(folder / "elsewhere")
    with pytest.raises(UsageError, match=f"{name} is a symlink"), make_private(folder / "state"):
        pass
    assert (folder / "elsewhere").read_text() == "precious"


@needs_root
def test_t7_a_fetch_log_that_everybody_may_write_is_rejected(folder: Path) -> None:
    (folder / "spool").mkdir()
    check_spool_rights(folder / "missing")
    (folder / "spool").chmod(0o770)
    check_spool_rights(folder / "spool")
    (folder / "spool").chmod(0o777)
    check_spool_rights(folder / "spool")
    assert mode(folder / "spool") == 0o775, "what is ours is put right"
    (folder / "spool").chmod(0o777)
    os.chown(folder / "spool", NOBODY, NOBODY)
    with pytest.raises(UsageError, match="mark servers as installed: run chmod o-w"):
        check_spool_rights(folder / "spool")


def test_a_folder_of_all_users_and_a_device_are_rejected_as_fetch_log_and_keep_their_rights(folder: Path) -> None:
    shared, device = folder / "tmp", folder / "null"
    shared.mkdir()
    shared.chmod(0o1777)
    device.touch()
    device.chmod(0o666)
    for path, reason in ((shared, "use a directory of its own for the fetch log"), (device, "is not a directory")):
        before = mode(path)
        with pytest.raises(UsageError, match=reason):
            check_spool_rights(path)
        assert mode(path) == before


def test_t7_nothing_is_unpickled() -> None:
    """Files that are read back are JSON, SQLite or Git. None of them can run code, even if an attacker wrote it."""
    root = Path(__file__).parents[3] / "gitboot"
    for path in root.rglob("*.py"):
        lines = {line.strip() for line in path.read_text().splitlines()}
        assert not {"import pickle", "import marshal", "import shelve"} & lines, path


# OUTPUT


READ = """
import os, sys
for folder, _, files in os.walk(sys.argv[1]):
    for name in files:
        try:
            open(os.path.join(folder, name)).close()
        except PermissionError:
            continue
        print(os.path.join(folder, name))
"""
WEB_SERVER = "www-data"  # of Debian


def is_output_private(folder: Path) -> bool:
    """Return whether the instance reports that others cannot read OUTPUT."""
    found = json.loads((folder / "state/status.json").read_bytes())["conditions"]
    return all(each["status"] for each in found if each["type"] == "OutputPrivate")


@needs_root
@pytest.mark.parametrize("group", [None, WEB_SERVER])
def test_finding_s6_another_user_of_the_host_cannot_read_the_output(
    folder: Path, repository: Repository, group: str | None
) -> None:
    (folder / "output").mkdir(mode=0o755)  # as an operator makes it
    option = ("--output-group", group) if group is not None else ()
    with running(repository.bare, folder, *option, records="fresh"):
        repository.push(fleet_files(*SEED) | {"README.md": "A later commit."})
        eventually((folder / "output/ops/status.json").exists)
        done = run_as_nobody(READ, folder / "output")
        assert done.stdout == "" and done.returncode == 0, done
        every = [path for path in (folder / "output").rglob("*") if path.name != "lock"]
        gid = grp.getgrnam(group).gr_gid if group is not None else os.getegid()

        def is_for_group(path: Path) -> bool:
            """Return whether a path is for the group. Nobody uses a new file before it is, and temporary files go."""
            try:
                found = path.stat()
            except FileNotFoundError:
                return True
            wanted = 0o750 if stat.S_ISDIR(found.st_mode) else 0o640
            return (stat.S_IMODE(found.st_mode), found.st_gid) == (wanted, gid)

        for path in [folder / "output", *every]:
            eventually(partial(is_for_group, path), 60)
        assert is_output_private(folder)


@needs_root
def test_finding_s6_nginx_serves_output_as_another_user_by_its_group(folder: Path, repository: Repository) -> None:
    answered = {}
    for group in (None, WEB_SERVER):
        option = ("--output-group", group) if group is not None else ()
        with running(repository.bare, folder, *option, records="fresh" if group is None else None):
            published, made = folder / "output", folder / f"nginx-{group}"
            made.mkdir()
            with nginx(published / "boot", published / "ops/serve", made, user=WEB_SERVER) as mirror:
                answered[group] = http_peers.get(f"{mirror.url}/boot.ipxe").status_code
    assert answered == {None: 503, WEB_SERVER: 200}


@needs_root
def test_finding_s6_an_unknown_group_stops_the_start(folder: Path, repository: Repository) -> None:
    places = ("--out", folder / "output", "--state", folder / "state")
    done = run_command("run", repository.bare, *places, "--output-group", "no-such-group", "--once")
    assert done.code == Exit.USAGE
    assert "--output-group no-such-group: this host has no group no-such-group" in done.err
