"""Credentials in files that are swapped at any moment, and from commands."""

from __future__ import annotations

import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gitboot.bmc import credentials
from gitboot.bmc.credentials import CredentialDirectory, read_credentials
from gitboot.bmc.override_session import TaskOutcome
from gitboot.errors import UsageError
from tests.helpers.bmcs import PASSWORD, USER, MakeRack, write_credentials
from tests.helpers.fleets import HERE

# Files


def mount_secret(folder: Path, username: str, password: str) -> None:
    """A version of a Secret as the kubelet mounts it: links to a folder, which one link names."""
    folder.mkdir(parents=True, exist_ok=True)
    version = folder / f"..{username}"
    version.mkdir()
    for name, text in (("username", username), ("password", password)):
        (version / name).write_text(text)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").rename(folder / "..data")


def test_user_name_and_password_are_read_from_the_same_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the old name goes to the BMC with the new password, and the account is locked."""
    mount_secret(tmp_path / "rack", "before", "the password before")
    read_bytes, swaps = Path.read_bytes, iter(["after", "later"])

    def swapped(path: Path) -> bytes:
        found = read_bytes(path)
        if path.name == "username" and (name := next(swaps, None)) is not None:
            mount_secret(tmp_path / "rack", name, f"the password {name}")
        return found

    monkeypatch.setattr(Path, "read_bytes", swapped)
    found = read_credentials(tmp_path, "rack")
    assert (found.username, found.password) == ("later", "the password later")


def test_credential_files_that_keep_changing_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_credentials(tmp_path)
    versions = iter(range(1000))
    monkeypatch.setattr(credentials, "_read_file_version", lambda _: (next(versions), 0, 0, 0))
    with pytest.raises(UsageError, match="kept changing while gitboot was reading them"):
        read_credentials(tmp_path, "rack")


def test_a_new_secret_has_a_new_fingerprint_that_reveals_neither(tmp_path: Path) -> None:
    mount_secret(tmp_path / "rack", "one", "hidden-one")
    directory = CredentialDirectory(tmp_path)
    first = directory.read("rack")
    assert directory.fingerprint("rack") == first.fingerprint
    mount_secret(tmp_path / "rack", "two", "hidden-two")
    second = directory.read("rack")
    assert (first.credentials.password, second.credentials.password) == ("hidden-one", "hidden-two")
    assert second.fingerprint == directory.fingerprint("rack") != first.fingerprint
    assert "hidden" not in f"{first} {second} {first.fingerprint}"
    (tmp_path / "access.toml").write_text(HERE)
    assert directory.fingerprint("rack") != second.fingerprint
    assert directory.fingerprint("none") is None is CredentialDirectory(None).fingerprint("rack")


# Commands


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rack").mkdir()
    (tmp_path / "rack" / "username").write_text(USER)
    return tmp_path


def write_password_command(folder: Path, script: str, *arguments: str) -> None:
    program = folder / "say"
    program.write_text(f"#!/bin/sh\necho >> {folder}/runs\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    words = ", ".join(f'"{each}"' for each in (program, *arguments))
    (folder / "access.toml").write_text(f"{HERE}password-command = [{words}]\n")


def count_runs(folder: Path) -> int:
    return len((folder / "runs").read_text()) if (folder / "runs").exists() else 0


def test_a_command_prints_the_password_for_a_name_and_no_shell_runs(folder: Path) -> None:
    write_password_command(folder, 'printf "%s\\n" "$1"', "secret of {name}; $(id) *")
    assert CredentialDirectory(folder).read("rack").credentials.password == "secret of rack; $(id) *"


def test_a_command_runs_once_for_many_waiting_readers_and_not_to_detect_a_change(folder: Path) -> None:
    write_password_command(folder, "echo secret")
    directory = CredentialDirectory(folder)
    assert (directory.fingerprint("rack"), count_runs(folder)) == (None, 0)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: directory.read("rack").credentials.password, range(40)))
    assert (set(found), count_runs(folder)) == ({"secret"}, 1)
    assert directory.fingerprint("rack") == directory.read("rack").fingerprint


def test_a_command_runs_again_after_a_while_and_soon_after_a_rejected_password(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_password_command(folder, f"wc -l < {folder}/runs | tr -d ' '")
    monkeypatch.setattr(credentials, "_CACHE_S", 0)
    directory = CredentialDirectory(folder)
    assert [directory.read("rack").credentials.password for _ in range(2)] == ["1", "1"]
    directory.report_failure("rack")
    assert directory.read("rack").credentials.password == "1", "not at once for each BMC that refuses it"
    monkeypatch.setattr(credentials, "_RETRY_AFTER_FAILURE_S", 0)
    before = directory.fingerprint("rack")
    directory.report_failure("rack")
    assert directory.read("rack").credentials.password == "2"
    assert directory.fingerprint("rack") != before
    monkeypatch.setattr(credentials, "_PASSWORD_CACHE_S", 0)
    directory.report_failure("rack")
    assert [directory.read("rack").credentials.password for _ in range(2)] == ["3", "4"]


def test_a_line_of_a_command_may_end_with_a_carriage_return(folder: Path) -> None:
    write_password_command(folder, r"printf 'secret\r\n'")
    assert CredentialDirectory(folder).read("rack").credentials.password == "secret"


def test_a_task_uses_a_new_password_of_the_command_although_it_compares_the_credentials_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_password_command(folder, f"wc -l < {folder}/runs | tr -d ' '")
    directory = CredentialDirectory(folder)
    assert directory.read("rack").credentials.password == "1"
    now_s = time.monotonic() + 2 * credentials._PASSWORD_CACHE_S
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    directory.fingerprint("rack")
    assert directory.read("rack").credentials.password == "2"


def test_a_rejected_password_is_read_again_so_that_rotation_needs_no_restart(
    make_rack: MakeRack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_CACHE_S", 0)
    monkeypatch.setattr(credentials, "_RETRY_AFTER_FAILURE_S", 0)
    rack = make_rack()
    (rack.folder / "rack" / "password").unlink()
    said = rack.folder / "said"
    write_password_command(rack.folder, f"cat {said}")
    with rack.fleet() as fleet:
        found = []
        for text in ("wrong", PASSWORD, "not asked for again"):
            said.write_text(text)
            fleet.submit([job := rack.job()])
            found.append(fleet.take_results(wait_all=True)[job.uuid])
        assert [each.outcome for each in found] == [TaskOutcome.STALLED, TaskOutcome.APPLIED, TaskOutcome.UNCHANGED]
        assert (
            found[0].credentials_fingerprint
            != found[1].credentials_fingerprint
            == found[2].credentials_fingerprint
            == fleet.get_credentials_fingerprint(job.bmc)
        )
    assert count_runs(rack.folder) == 2


def test_a_password_file_takes_precedence_over_a_command(folder: Path) -> None:
    write_password_command(folder, "echo said")
    (folder / "rack" / "password").write_text("written\n")
    assert (CredentialDirectory(folder).read("rack").credentials.password, count_runs(folder)) == ("written", 0)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo secret; exit 3", "/say ended with status 3"),
        ("echo secret >&2; kill -9 $$", "/say ended with status -9"),
        ("echo", "/say printed nothing, but gitboot expects the password"),
        ("echo secret; echo login: root", "/say printed several lines, but gitboot expects the password"),
        ("echo secret; head -c 5000 /dev/zero | tr '\\0' x", "/say wrote more than 4096 bytes"),
        ("yes secret", "/say wrote more than 4096 bytes"),
        ("printf '\\377secret'", "the command's output is not text"),
        ("echo secret; sleep 600", "/say or a process that it started was still running after 0.4 s"),
        ("echo secret; exec >&-; sleep 600", "/say or a process that it started was still running after 0.4 s"),
        ("sleep 600 & echo secret; exit 4", "/say or a process that it started was still running after 0.4 s"),
    ],
)
def test_the_reason_of_a_failed_command_is_named_and_its_output_is_shown_nowhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(credentials, "_COMMAND_TIMEOUT_S", 0.4)
    write_password_command(folder, script)
    directory = CredentialDirectory(folder)
    for _ in range(3):
        with pytest.raises(UsageError) as raised:
            directory.read("rack")
        assert (
            f"gitboot cannot get the password for the credentials rack from password-command in {folder}/access.toml: "
            in str(raised.value)
        )
        assert why in str(raised.value)
        assert "secret" not in str(raised.value)
    assert count_runs(folder) <= 1, (
        "a command that fails is not asked for each BMC anew"
    )  # or it was killed before it printed


def test_a_missing_password_command_is_named(folder: Path) -> None:
    (folder / "access.toml").write_text('password-command = ["/nowhere/say"]')
    with pytest.raises(UsageError, match="No such file or directory: '/nowhere/say'"):
        CredentialDirectory(folder).read("rack")
