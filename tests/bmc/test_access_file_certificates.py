"""Certificates of BMCs that an access file or a document names."""

from __future__ import annotations

from hashlib import sha256
from ssl import PEM_cert_to_DER_cert
from typing import Any

import pytest
from msgspec import structs

from gitboot.bmc.access_file import read_trust
from gitboot.bmc.override_session import TaskOutcome, TaskResult
from gitboot.fleet.identities import list_machines
from gitboot.fleet.validation import load
from gitboot.model.scalars import parse_fingerprint
from tests.helpers.bmcs import MakeRack, Rack
from tests.helpers.fleets import HERE, SEED, server, snapshot
from tests.helpers.http_peers import Authority, IssuedCertificate


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
