"""Permissions and groups of a published tree: of new files and of existing ones."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gitboot.errors import PublishError, UsageError
from gitboot.publish import durable_files
from gitboot.publish.durable_files import (
    OPEN_MODES,
    TreeModes,
    build_restricted_modes,
    find_group_id,
    is_readable_by_others,
)
from gitboot.publish.publisher import OutputDirectory
from tests.helpers.endpoints import ALWAYS, FLEET, Fleet, plan_fleet

AT = datetime(2026, 11, 20, 22, tzinfo=UTC)
GROUP = 54321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to any group")
CLOSED = {0o750, 0o640}


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "output"


def publish(root: Path, modes: TreeModes, fleet: Fleet = FLEET, commit: str = "c0ffee") -> None:
    with OutputDirectory.open(root, ledger="test", modes=modes) as directory:
        files = {name: state.files for name, state in fleet.servers.items()}
        directory.publish(files, fleet.shared, complete=True, commit=commit, at=AT, parts=fleet.parts)
        directory.write_status(b"{}", AT)


def list_modes(root: Path) -> dict[str, tuple[int, int]]:
    every = [root, *sorted(root.rglob("*"))]
    looked = {path.relative_to(root).as_posix(): path.lstat() for path in every if path.name != "lock"}
    return {path: (stat.S_IMODE(each.st_mode), each.st_gid) for path, each in looked.items()}


def have_modes(root: Path, modes: TreeModes) -> bool:
    folders = {path: each[0] == modes.folder for path, each in list_modes(root).items() if (root / path).is_dir()}
    files = {path: each[0] == modes.file for path, each in list_modes(root).items() if not (root / path).is_dir()}
    assert folders and files
    return all((folders | files).values())


@pytest.mark.parametrize("given", [OPEN_MODES, build_restricted_modes()], ids=["open", "closed"])
def test_a_new_tree_and_its_changes_have_the_configured_permissions(root: Path, umask: int, given: TreeModes) -> None:
    publish(root, given)
    assert have_modes(root, given)
    publish(root, given, plan_fleet(*ALWAYS), commit="other")
    assert have_modes(root, given)


@needs_root
def test_every_file_and_folder_has_the_group(root: Path) -> None:
    publish(root, build_restricted_modes(GROUP))
    publish(root, build_restricted_modes(GROUP), plan_fleet(*ALWAYS), commit="other")
    assert {group for _, group in list_modes(root).values()} == {GROUP}


@pytest.mark.parametrize(
    "given",
    [build_restricted_modes(), pytest.param(build_restricted_modes(GROUP), marks=needs_root)],
    ids=["own", "another"],
)
def test_an_existing_open_tree_is_restricted_except_for_files_of_operators(root: Path, given: TreeModes) -> None:
    publish(root, OPEN_MODES)
    assets = root / "boot/assets"
    assets.mkdir()
    (assets / "linux").write_text("a kernel")
    before = list_modes(assets)
    publish(root, given)
    assert list_modes(assets) == before
    ours = {path: each for path, each in list_modes(root).items() if not path.startswith("boot/assets")}
    assert {mode for mode, _ in ours.values()} == CLOSED
    assert {group for _, group in ours.values()} == {given.group if given.group is not None else os.getegid()}
    assert (root / "ops/.gitboot/lock").stat().st_mode & 0o777 == 0o600


def test_interrupted_changes_of_permissions_continue(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topmost folders come last, because they show that all below them are done."""
    publish(root, OPEN_MODES)
    left, give = 5, TreeModes.apply_to

    def fail(self: TreeModes, fd: int, mode: int) -> None:
        nonlocal left
        if (left := left - 1) < 0:
            raise OSError(5, "the power goes")
        give(self, fd, mode)

    with monkeypatch.context() as patched:
        patched.setattr(TreeModes, "apply_to", fail)
        with pytest.raises(PublishError, match="the power goes"):
            publish(root, build_restricted_modes())
    assert not have_modes(root, build_restricted_modes())
    durable_files.apply_modes(root, build_restricted_modes())
    assert have_modes(root, build_restricted_modes())


def test_open_modes_do_not_change_existing_files(root: Path) -> None:
    publish(root, build_restricted_modes())
    before = list_modes(root)
    publish(root, OPEN_MODES)
    after = list_modes(root)
    assert {path: after[path] for path in before if (root / path).is_dir()} == {
        path: each for path, each in before.items() if (root / path).is_dir()
    }


def test_a_folder_that_holds_other_files_stays_as_it_is(root: Path) -> None:
    root.mkdir(mode=0o755)
    root.chmod(0o755)
    (root / "index.html").write_text("another site's")
    publish(root, build_restricted_modes())
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert {stat.S_IMODE((root / name).stat().st_mode) for name in ("boot", "ops")} == {0o750}
    assert not is_readable_by_others(root)


def test_a_symlink_in_the_tree_is_not_followed(root: Path, tmp_path: Path) -> None:
    publish(root, OPEN_MODES)
    (tmp_path / "others").mkdir(mode=0o755)
    (tmp_path / "others").chmod(0o755)
    (tmp_path / "others/file").write_text("")
    (tmp_path / "others/file").chmod(0o644)
    (root / "boot/folder").symlink_to(tmp_path / "others")
    (root / "boot/file").symlink_to(tmp_path / "others/file")
    durable_files.apply_modes(root, build_restricted_modes())
    assert stat.S_IMODE((tmp_path / "others").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "others/file").stat().st_mode) == 0o644


def test_is_readable_by_others_checks_the_published_files(root: Path) -> None:
    assert not is_readable_by_others(root), "nothing is there"
    publish(root, OPEN_MODES)
    assert is_readable_by_others(root)
    root.chmod(0o750)
    assert not is_readable_by_others(root), "nobody comes to what lies below"


# Groups


def test_a_group_is_named_or_numbered() -> None:
    own = os.getegid()
    assert find_group_id(str(own)) == find_group_id(grp.getgrgid(own).gr_name) == own


@pytest.mark.parametrize("name", ["no-such-group", str(2**32 - 1), str(2**32), "1" * 5000])
def test_an_unknown_group_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match=f"no group {name}; run `getent group`"):
        find_group_id(name)


@needs_root
def test_a_group_that_the_process_is_not_in_is_an_error_with_a_remedy() -> None:
    assert run_as_user("44") == "44"
    assert run_as_user("54321").startswith("UsageError: --output-group 54321: the user 65534 is not in that group")
    assert "usermod --append --groups 54321 USER" in run_as_user("54321")


def run_as_user(group: str) -> str:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setgroups([44])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            os.write(write, str(find_group_id(group)).encode())
        except (OSError, UsageError) as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said
