"""Credentials in files that are swapped at any moment, and from commands; certificates that are named."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from typing import Any

import pytest
from msgspec import structs

from gitboot.bmc import credentials
from gitboot.bmc.credentials import CredentialDirectory, read_credentials, read_trust
from gitboot.bmc.override_session import TaskOutcome, TaskResult
from gitboot.errors import UsageError
from gitboot.fleet.identities import list_machines
from gitboot.fleet.validation import load
from gitboot.model.scalars import parse_fingerprint
from tests.helpers.bmcs import PASSWORD, USER, MakeRack, Rack, write_credentials
from tests.helpers.fleets import HERE, SEED, server, snapshot
from tests.helpers.http_peers import Authority, IssuedCertificate

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
            == fleet.fingerprint(job.bmc)
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


# Certificates that are named


@pytest.mark.parametrize("text", ["AB" * 32, "ab" * 32, ":".join(["aB"] * 32)])
def test_all_spellings_of_a_fingerprint_are_equal(text: str) -> None:
    assert parse_fingerprint(text) == "ab" * 32


def test_a_document_names_the_certificate_fingerprint_of_its_bmc() -> None:
    tls = f"{{verify: false, fingerprint: '{':'.join(['AB'] * 32)}'}}"
    text = server("web02", spec=f"bmc: {{address: 'https://10.0.0.1', credentials: rack, tls: {tls}}}")
    repository = load(snapshot(text, *SEED), {})
    (machine,) = list_machines(repository, ["web02"]).values()
    assert machine.bmc is not None and machine.bmc.fingerprint == "ab" * 32


def format_fingerprint(issued: IssuedCertificate) -> str:
    """Return the fingerprint of a certificate as openssl prints it."""
    pem = issued.certificate.read_text()
    hexadecimal = sha256(PEM_cert_to_DER_cert(pem[: pem.index("-----END") + 25])).hexdigest().upper()
    return ":".join(hexadecimal[at : at + 2] for at in range(0, 64, 2))


def write_access_file(rack: Rack, fingerprint: str, more: str = 'networks = ["127.0.0.1"]') -> None:
    (rack.folder / "access.toml").write_text(f'{more}\n[certificates]\n"127.0.0.1" = "{fingerprint}"\n')


def run_task(rack: Rack, **changed: Any) -> TaskResult:
    with rack.fleet() as fleet:
        job = structs.replace(rack.job(), bmc=structs.replace(rack.job().bmc, **changed))
        fleet.submit([job])
        return fleet.take_results(wait_all=True)[job.uuid]


def test_a_certificate_that_the_access_file_names_is_enough_without_a_trusted_signer(
    make_rack: MakeRack, authority: Authority
) -> None:
    issued = authority.issue("DNS:another.test", days=-1)
    rack = make_rack(tls=issued.context)
    write_access_file(rack, format_fingerprint(issued))
    for how in ({}, {"verify": False}, {"ca": "garbage"}):
        assert run_task(rack, **how).outcome in (TaskOutcome.APPLIED, TaskOutcome.UNCHANGED), how


def test_a_certificate_other_than_the_named_one_gets_no_password_even_if_it_verifies(
    make_rack: MakeRack, authority: Authority
) -> None:
    rack = make_rack(tls=authority.server_context())
    write_access_file(rack, format_fingerprint(authority.issue()))
    (rack.folder / "ca.crt").write_text(authority.pem)
    result = run_task(rack)
    assert (result.outcome, result.is_reachable) == (TaskOutcome.STALLED, False)
    assert "the certificate changed: " in result.message
    assert rack.machine.requests == []


def test_a_bmc_named_by_a_certificate_is_allowed_and_networks_still_apply(
    make_rack: MakeRack, authority: Authority
) -> None:
    issued = authority.issue()
    rack = make_rack(tls=issued.context)
    write_access_file(rack, format_fingerprint(issued), 'networks = ["10.0.0.0/8"]')
    assert "does not list this host" in run_task(rack).message
    trust = read_trust(rack.folder, "rack")
    assert not trust.allows_bmc(rack.job().bmc)
    bmc = structs.replace(rack.job().bmc, address="https://10.0.0.9")
    (rack.folder / "access.toml").write_text(f'[certificates]\n"10.0.0.9" = "{format_fingerprint(issued)}"\n')
    trust = read_trust(rack.folder, "rack")
    assert trust.allows_bmc(bmc) and trust.allows_bmc(structs.replace(bmc, verify=False))
    assert not trust.allows_bmc(structs.replace(bmc, address="http://10.0.0.9"))
    assert not trust.allows_bmc(structs.replace(bmc, address="https://10.0.0.10"))


@pytest.mark.parametrize("verify", [True, False])
def test_a_certificate_that_a_document_names_is_required_in_addition_to_the_other_checks(
    make_rack: MakeRack, authority: Authority, verify: bool
) -> None:
    issued = authority.issue()
    rack = make_rack(tls=issued.context)
    (rack.folder / "access.toml").write_text(f"{HERE}")
    right = parse_fingerprint(format_fingerprint(issued))
    assert run_task(rack, verify=verify, ca=authority.pem, fingerprint="0" * 64).outcome is TaskOutcome.STALLED
    assert rack.machine.requests == []
    assert run_task(rack, verify=verify, ca=authority.pem, fingerprint=right).outcome is TaskOutcome.APPLIED


def test_t2_a_certificate_in_a_document_allows_no_bmc_that_the_access_file_does_not(
    make_rack: MakeRack, authority: Authority
) -> None:
    """A pull request that brings its own address brings its own certificate, too."""
    issued = authority.issue()
    rack = make_rack(tls=issued.context)
    right = parse_fingerprint(format_fingerprint(issued))
    for text, verify in (('networks = ["10.0.0.0/8"]', True), ('networks = ["127.0.0.1"]', False), ("", True)):
        (rack.folder / "access.toml").write_text(text)
        assert run_task(rack, verify=verify, fingerprint=right).outcome is TaskOutcome.STALLED
    (rack.folder / "access.toml").write_text('networks = ["127.0.0.1"]')
    assert "certificate not trusted" in run_task(rack, fingerprint=right).message, "nobody has verified it"
    assert rack.machine.requests == []
