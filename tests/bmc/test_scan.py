"""`gitboot bmc scan`: the servers that it finds, their comparison with documents, and new documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import structs

from gitboot.bmc.identity import ReportedIdentity
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.bmc.redfish.resources import Resource, find_manager_path
from gitboot.bmc.scan import (
    MAX_ADDRESSES,
    FoundNic,
    FoundServer,
    build_found_server,
    choose_name,
    compare_servers,
    list_addresses,
    render_document,
)
from gitboot.cli.main import Exit
from gitboot.errors import UsageError
from gitboot.fleet.identities import BmcAccess, Machine
from gitboot.model.scalars import MacAddress, SystemUuid
from gitboot.model.server import Architecture
from tests.helpers.cases import for_each
from tests.helpers.fleets import make_mac, make_uuid
from tests.helpers.http_peers import WebRequest, WebResponse, web_server
from tests.helpers.instance_with_bmcs import CommandResult, Rack, run_command
from tests.helpers.redfish_double.server import Redirect

# Addresses


@for_each(
    ("places", "ports", "meant"),
    [
        (["10.0.0.0/30"], [443], ["https://10.0.0.1", "https://10.0.0.2"]),
        (["10.0.0.7/32"], [443], ["https://10.0.0.7"]),
        (["10.0.0.7"], [443, 8443], ["https://10.0.0.7", "https://10.0.0.7:8443"]),
        (["fd00::4/127"], [8443], ["https://[fd00::4]:8443", "https://[fd00::5]:8443"]),
        (["bmc7.example.net", "bmc7.example.net"], [443], ["https://bmc7.example.net"]),
        (["10.0.0.7:8443", "[fd00::4]:8443"], [443], ["https://10.0.0.7:8443", "https://[fd00::4]:8443"]),
        (["http://10.0.0.7:8000/", "10.0.0.7"], [443], ["http://10.0.0.7:8000", "https://10.0.0.7"]),
    ],
    ids=["network", "one address of it", "ports", "IPv6", "twice", "host and port", "URL"],
)
def test_places_and_ports_are_expanded_to_addresses(places: list[str], ports: list[int], meant: list[str]) -> None:
    assert list_addresses(places, ports) == tuple(meant)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (
            "10.0.0.0/8",
            "10.0.0.0/8: a scan of 16,777,216 addresses exceeds the limit of 4,096; specify smaller networks",
        ),
        ("10.0.0.0/19", "10.0.0.0/19: a scan of 8,190 addresses exceeds the limit of 4,096; specify smaller networks"),
        ("fd00::/64", "addresses exceeds the limit of 4,096"),
        ("10.0.0.0/33", "is not a network, an address or a host name"),
        ("ftp://10.0.0.7", "is not a BMC address"),
        ("https://root:secret@10.0.0.7", "'https://10.0.0.7' is not a BMC address"),
        ("https://root:secret/more@10.0.0.7", "'https://…' is not a BMC address"),
        ("10.0.0.7:99999", "'https://10.0.0.7:99999' is not a BMC address"),
        ("https://10.0.0.7:0", "is not a BMC address"),
        ("https://[fd00::4", "is not a BMC address"),
    ],
)
def test_a_place_with_too_many_addresses_or_none_is_rejected(place: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        list_addresses([place], [443])
    assert len(list_addresses(["10.0.0.0/20"], [443])) == MAX_ADDRESSES - 2


# Differences from documents

A, B, C = "https://10.0.0.1", "https://10.0.0.2", "https://10.0.0.3"


def _machine(name: str, address: str | None) -> Machine:
    bmc = None
    if address is not None:
        bmc = BmcAccess(address=address, system=None, credentials="rack", verify=True, ca=None)
    mac = MacAddress(make_mac(name).replace(":", "-"))
    return Machine(uuid=SystemUuid(make_uuid(name)), name=name, macs=(mac,), serial=None, bmc=bmc)


def _make_found_server(name: str, address: str) -> FoundServer:
    nic = FoundNic(name="eno1", mac=MacAddress(make_mac(name).replace(":", "-")))
    shown = ReportedIdentity(uuid=SystemUuid(make_uuid(name)), serial="7M2XKQ3")
    return FoundServer(address=address, system="/redfish/v1/Systems/1", identity=shown, nics=(nic,))


WEB01, WEB02 = _machine("web01", A), _machine("web02", B)


@for_each(
    ("found", "described", "unread", "expected"),
    [
        pytest.param([_make_found_server("web01", A)], [WEB01], [], [], id="as described"),
        pytest.param(
            [_make_found_server("web01", B), _make_found_server("web02", A)],
            [WEB01, WEB02],
            [],
            [("Swapped", "web01", B), ("Swapped", "web02", A)],
            id="swapped",
        ),
        pytest.param([_make_found_server("web01", C)], [WEB01], [], [("Moved", "web01", C)], id="moved"),
        pytest.param(
            [_make_found_server("web01", B)],
            [WEB01, WEB02],
            [],
            [("Missing", "web02", B), ("Moved", "web01", B)],
            id="in its place",
        ),
        pytest.param(
            [_make_found_server("web01", A)], [_machine("web01", None)], [], [("Moved", "web01", A)], id="no BMC"
        ),
        pytest.param([], [WEB01], [], [("Missing", "web01", A)], id="missing"),
        pytest.param([], [WEB01], [A], [], id="not read"),
        pytest.param([], [_machine("web01", "https://10.9.9.9")], [], [], id="no request"),
        pytest.param([_make_found_server("new", C)], [WEB01], [A], [("Unknown", None, C)], id="unknown"),
        pytest.param(
            [_make_found_server("new", A)],
            [WEB01],
            [],
            [("Missing", "web01", A), ("Unknown", None, A)],
            id="unknown in its place",
        ),
        pytest.param(
            [structs.replace(_make_found_server("web01", A), nics=_make_found_server("new", A).nics)],
            [WEB01],
            [],
            [("Interfaces", "web01", A)],
            id="another card",
        ),
        pytest.param([structs.replace(_make_found_server("web01", A), nics=())], [WEB01], [], [], id="shows no card"),
    ],
)
def test_differences_between_machines_and_documents_are_listed(
    found: list[FoundServer], described: list[Machine], unread: list[str], expected: list[tuple[str, str | None, str]]
) -> None:
    compared = compare_servers(found, described, (A, B, C), unread)
    assert [(each.kind, each.server, each.address) for each in compared.differences] == expected


def test_a_chosen_name_belongs_to_no_other_document() -> None:
    found = structs.replace(
        _make_found_server("new", A), identity=ReportedIdentity(uuid=SystemUuid(make_uuid("new")), serial="7M2 XKQ3")
    )
    assert (choose_name(found, ()), choose_name(found, {"7m2-xkq3", "7m2-xkq3-2"})) == ("7m2-xkq3", "7m2-xkq3-3")
    nameless = structs.replace(found, identity=structs.replace(found.identity, serial="To be filled"))
    assert choose_name(nameless, ()) == f"server-{make_uuid('new')[:8]}"
    dell = structs.replace(found, maker="Dell Inc.", identity=structs.replace(found.identity, sku="F54P1G3"))
    assert (dell.serial, found.serial) == ("F54P1G3", "7M2 XKQ3")


def test_values_that_a_bmc_reports_cannot_inject_yaml() -> None:
    nic = FoundNic(name='x"\nlifecycle: Active', mac=MacAddress("52-54-00-00-00-01"))
    text = render_document(structs.replace(_make_found_server("new", A), nics=(nic,)), "new", "rack", verify=True)
    assert [line for line in text.splitlines() if line.lstrip().startswith("lifecycle")] == [
        "  lifecycle: Parked  # remove this line to let gitboot manage the machine"
    ]


# The command, over real HTTP


class Website(NamedTuple):
    """A server without Redfish, which must not get a password."""

    url: str
    authorizations: list[str | None]


@pytest.fixture(scope="module")
def website() -> Iterator[Website]:
    authorizations: list[str | None] = []

    def answer(request: WebRequest) -> WebResponse:
        authorizations.append(request.headers.get("Authorization"))
        return WebResponse(content=b"<html>hello</html>")

    with web_server(answer) as url:
        yield Website(url, authorizations)


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """web01 as documented, web02 with another network card, web03 missing, and new01 without a document."""
    with Rack(tmp_path_factory.mktemp("rack")) as rack:
        for name in ("web01", "web02", "web03"):
            rack.add(name).machine.nics = {"NIC.1": make_mac(name)}
        rack.blades["web02"].machine.nics = {"NIC.1": "52:54:00:99:99:99"}
        rack.push()
        rack.blades["web03"].bmc.die()
        yield rack


def _scan(rack: Rack, *more: object) -> CommandResult:
    return run_command(
        "bmc", "scan", *more, "--credentials", rack.credentials, "--as", "rack", "--path", rack.repository.work
    )


def test_a_rack_is_scanned_and_compared(rack: Rack, website: Website, tmp_path: Path) -> None:
    new, bmc = rack.bmc("new01")
    new.nics = {"NIC.1": "52:54:00:aa:00:01", "NIC.2": "52:54:00:aa:00:02", "NIC.3": "00:00:00:00:00:00"}
    urls = [*(blade.bmc.url for blade in rack.blades.values()), bmc.url, website.url]
    (tmp_path / "bmcs").write_text("# the rack\n" + "\n".join(urls) + "\n")

    done = _scan(rack, tmp_path / "bmcs", "--out", tmp_path / "out", "--detailed-exitcode")
    assert (done.code, done.err) == (Exit.CHANGES, "")
    web02, web03 = (rack.blades[name].bmc.url for name in ("web02", "web03"))
    name = new.serial.lower()
    told = " ".join(done.out.split())  # the line breaks depend on the length of the port number
    assert told.endswith(
        f"Interfaces: web02 at {web02}: the BMC does not show {make_mac('web02')}, but shows 52:54:00:99:99:99"
        f" Missing: web03 at {web03}: no BMC responds at this address"
        f' Unknown: {bmc.url}: no document matches UUID {new.uuid}, serial "{new.serial}", SKU "{new.sku}"'
        f" wrote {tmp_path / 'out' / 'servers' / name}.yaml"
        " 5 addresses scanned: 3 machines, 3 differences"
    )
    assert [line for line in done.out.splitlines() if len(line) > 100 and "wrote" not in line] == []
    assert set(website.authorizations) == {None}

    written = (tmp_path / "out" / "servers" / f"{name}.yaml").read_text()
    assert '- {name: "NIC.1", mac: "52:54:00:aa:00:01"}' in written
    assert "00:00:00:00:00:00" not in written
    assert new.writes == []


def test_a_document_of_a_found_machine_boots_nothing_after_its_merge(rack: Rack, tmp_path: Path) -> None:
    new, bmc = rack.bmc("new02")
    new.nics = {"NIC.1": "52:54:00:aa:00:09"}
    assert _scan(rack, bmc.url, "--out", rack.repository.work).code == Exit.FINE
    try:
        validated = run_command("validate", rack.repository.work)
        assert (validated.code, validated.out.count("error")) == (Exit.FINE, 0), validated
        planned = run_command("plan", rack.repository.work, "-o", "json").json
        (plan,) = [each for each in planned["items"] if each["server"] == new.serial.lower()]
        assert (plan["digest"], plan["override"]) == (None, None)
        again = _scan(rack, bmc.url, "-o", "json").json
        assert ([item["server"] for item in again["items"]], again["differences"]) == ([new.serial.lower()], [])
    finally:
        (rack.repository.work / "servers" / f"{new.serial.lower()}.yaml").unlink()


def test_an_unexpected_error_at_one_bmc_does_not_end_the_scan(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read, broken, sound = BmcConnection.read, rack.blades["web01"], rack.blades["web02"]

    def fail_at_one(bmc: BmcConnection, path: str) -> Resource:
        found = read(bmc, path)
        if found.body.get("UUID") == broken.uuid:
            raise ZeroDivisionError
        return found

    monkeypatch.setattr(BmcConnection, "read", fail_at_one)
    done = _scan(rack, broken.bmc.url, sound.bmc.url, "-o", "json")
    assert (done.code, [item["address"] for item in done.json["items"]]) == (Exit.PARTIAL, [sound.bmc.url])
    assert [each["address"] for each in done.json["unread"]] == [broken.bmc.url]
    assert [(each.message, bool(each.exc_info)) for each in caplog.records] == [
        (f"the scan of {broken.bmc.url} failed", True)
    ]


def test_an_unreadable_bmc_is_named_and_counts_as_neither_present_nor_missing(rack: Rack, tmp_path: Path) -> None:
    web01 = rack.blades["web01"]
    rack.give_password("wrong")
    try:
        done = _scan(rack, web01.bmc.url)
    finally:
        rack.give_password("correct-horse-staple")
    assert done.code == Exit.PARTIAL
    assert "rejects the user name or password" in " ".join(done.out.split())
    assert "0 machines, 0 differences, 1 not read" in done.out


def test_a_scan_does_not_overwrite_a_document(rack: Rack, tmp_path: Path) -> None:
    machines, urls = zip(*((each, bmc.url) for each, bmc in map(rack.bmc, ("new07", "new08"))), strict=True)
    for number, machine in enumerate(machines):
        machine.nics = {"NIC.1": f"52:54:00:aa:00:1{number}"}
    first, second = (tmp_path / "servers" / f"{each.serial.lower()}.yaml" for each in machines)
    arguments = ("--credentials", rack.credentials, "--as", "rack", "--out", tmp_path)
    assert run_command("bmc", "scan", urls[1], *arguments).code == Exit.FINE
    second.write_text("# edited\n")
    done = run_command("bmc", "scan", *urls, *arguments)
    assert done.code == Exit.USAGE and f"{second} already exists: move the file" in " ".join(done.err.split()), done
    assert (done.out, second.read_text(), first.exists()) == ("", "# edited\n", False)


def test_without_a_fleet_every_machine_counts_as_unknown(rack: Rack) -> None:
    done = run_command("bmc", "scan", rack.blades["web01"].bmc.url, "--credentials", rack.credentials, "--as", "rack")
    assert (done.code, done.out.splitlines()[-1]) == (Exit.FINE, "1 address scanned: 1 machine, 1 difference")


def test_without_credentials_no_bmc_gets_a_request(rack: Rack) -> None:
    done = run_command("bmc", "scan", "127.0.0.1", "--credentials", rack.credentials, "--as", "other")
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert "gitboot cannot read the credentials other" in done.err


def test_a_bmc_that_the_access_file_excludes_gets_no_request(rack: Rack) -> None:
    web01 = rack.blades["web01"]
    before = len(web01.machine.requests)
    trust = rack.credentials / "access.toml"
    said = trust.read_text()
    trust.write_text('networks = ["10.0.0.0/8"]\nhttp = true\n')
    try:
        done = _scan(rack, web01.bmc.url)
    finally:
        trust.write_text(said)
    assert done.code == Exit.PARTIAL
    assert "does not list this host" in " ".join(done.out.split())
    assert len(web01.machine.requests) == before


def test_a_scan_does_not_follow_a_redirect_with_a_password(rack: Rack, website: Website) -> None:
    web01 = rack.blades["web01"]
    web01.bmc.fault(Redirect(location=f"{website.url}/redfish/v1/"))
    seen = len(website.authorizations)
    done = _scan(rack, web01.bmc.url)
    assert done.code == Exit.PARTIAL
    assert "the BMC redirects to" in " ".join(done.out.split())
    assert len(website.authorizations) == seen


def test_values_of_a_wrong_type_count_as_not_shown() -> None:
    nics: list[dict[str, object]] = [
        {"PermanentMACAddress": 7, "MACAddress": "52:54:00:aa:00:01"},
        {"MACAddress": ["52:54:00:aa:00:02"]},
    ]
    found = build_found_server(
        "https://bmc.test",
        Resource(url="https://bmc.test/redfish/v1/Systems/1", body={"UUID": 7, "Links": [], "Manufacturer": {}}),
        is_only_system=True,
        nics=[Resource(url=f"https://bmc.test/nic/{n}", body=body) for n, body in enumerate(nics)],
        processor=Resource(url="https://bmc.test/cpu", body={"InstructionSet": ["x86-64"]}),
    )
    assert ([nic.mac for nic in found.nics], found.architecture) == (["52-54-00-aa-00-01"], None)
    strange: list[object] = [[], {"ManagedBy": {}}, {"ManagedBy": ["a"]}, None]
    assert {find_manager_path({"Links": each}) for each in strange} == {None}


def test_an_architecture_that_is_not_reported_is_marked_for_a_check() -> None:
    found = _make_found_server("new", A)
    assert "architecture: x86_64  # not reported by its BMC: check it" in render_document(
        found, "new", "rack", verify=True
    )
    shown = structs.replace(found, architecture=Architecture.AARCH64)
    assert "architecture: aarch64\n" in render_document(shown, "new", "rack", verify=False)
    assert "tls: {verify: false}" in render_document(shown, "new", "rack", verify=False)


def test_a_new_server_document_has_the_values_of_its_bmc_and_of_a_similar_server(rack: Rack) -> None:
    new, bmc = rack.bmc("new03")
    new.nics = {"NIC.1": "52:54:00:aa:00:19"}
    options = ("--path", rack.repository.work, "--credentials", rack.credentials, "--as", "rack")
    command = ("new", "server", "new03", "--bmc", bmc.url, *options)
    try:
        done = run_command(*command, "--like", "web01")
        assert done.code == Exit.FINE, done
        text = (rack.repository.work / "servers" / "new03.yaml").read_text()
        assert f"uuid: {new.uuid}" in text and f"address: {bmc.url}" in text and "lifecycle: Parked" in text
        assert run_command("validate", rack.repository.work).code == Exit.FINE
        assert "Server/new03 already exists" in run_command(*command).err
        assert new.writes == []
    finally:
        (rack.repository.work / "servers" / "new03.yaml").unlink()
