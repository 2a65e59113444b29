"""`gitboot new server`: a document of an unknown machine, and of no machine that has a document already."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gitboot.cli.main import Exit
from gitboot.fetchlog.unknown_machines import (
    UNKNOWN,
    UnknownMachines,
    build_from_inventory,
    parse_unknown_machine,
    render_unknown_machines,
)
from gitboot.files import write_atomically
from tests.fetchlog.test_unknown_machines import SENT
from tests.helpers.fleets import fleet, image, make_mac, make_uuid, policy, profile, server
from tests.helpers.instance_with_bmcs import CommandResult, run_command
from tests.helpers.running_instance import Repository

AT = datetime(2026, 11, 20, 22, tzinfo=UTC)
UUID = make_uuid("new")
MAC = "52:54:00:99:99:99"
INTERFACES = [{"mac": "52:54:00:99:99:96"}, {"mac": "52:54:00:99:99:97", "name": "eno1"}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fleet, and the state of an instance that has seen a machine."""
    documents = (
        fleet(),
        server("web01", "role: web", "policy: web, vars: {console: ttyS1}, localDisk: Exit, serial: 4J8VM71"),
        image("flatcar-1"),
        profile("web", "flatcar-1"),
        policy("web"),
    )
    (tmp_path / "fleet").mkdir()
    (tmp_path / "fleet" / "fleet.yaml").write_text("---\n".join(documents))
    seen = parse_unknown_machine(f"v1/boot/{MAC}/boot.ipxe", {"uuid": UUID, "serial": "4J8VM72"}, "10.0.0.7", AT)
    other = parse_unknown_machine("v1/boot/52:54:00:99:99:98/boot.ipxe", {}, "10.0.0.8", AT)
    assert seen is not None and other is not None
    sent = build_from_inventory({**SENT, "interfaces": INTERFACES, "serial": "4J8VM73"}, "v1/inventory", "10.0.0.9", AT)
    write_atomically(tmp_path / UNKNOWN, render_unknown_machines(UnknownMachines([seen, other, sent])))
    return tmp_path / "fleet"


def run_new(path: Path, *arguments: object, name: str = "web02") -> CommandResult:
    return run_command("new", "server", name, "--path", path, "--state", path.parent, *arguments)


def test_a_bare_repository_gets_no_document(tmp_path: Path) -> None:
    """`gitboot new` wrote the document among Git's own files, and reported success."""
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": fleet()})
    before = sorted(repository.bare.rglob("*"))
    for words in (("server", "web02", "--mac", MAC), ("image", "flatcar")):
        done = run_command("new", *words, "--path", repository.bare)
        assert (done.code, "pass a directory or a Git work tree" in " ".join(done.err.split())) == (Exit.USAGE, True)
    assert sorted(repository.bare.rglob("*")) == before


def test_the_printed_commands_can_be_typed(path: Path) -> None:
    path = path.rename(path.with_name("my fleet"))
    done = run_command("new", "server", "web02", "--path", path, "--mac", "52:54:00:99:99:97", "--uuid", UUID)
    assert done.out.endswith(f"next step: gitboot validate '{path}'\n")


def test_an_unknown_machine_becomes_a_document_that_is_valid_and_boots_nothing(path: Path) -> None:
    done = run_new(path, "--seen", MAC, "--like", "web01")
    assert done.code == Exit.FINE, done
    assert (path / "servers" / "web02.yaml").read_text() == (
        "# The machine with the address 10.0.0.7 requested a boot at 2026-11-20 22:00 UTC and sent these facts.\n"
        "# yaml-language-server: $schema=../.gitboot/schemas/Server.json\n"
        "# The server is Parked until you decide what it is for. Then remove `lifecycle`. To allow its installation, "
        "set `provision: 1`.\n"
        "apiVersion: gitboot.dev/v1alpha1\n"
        "kind: Server\n"
        "metadata:\n"
        "  name: web02\n"
        "  labels:\n"
        "    role: web\n"
        "spec:\n"
        f"  uuid: {UUID}\n"
        "  serial: 4J8VM72\n"
        "  architecture: x86_64\n"
        "  firmware: UEFI\n"
        "  interfaces:\n"
        f"  - mac: {MAC}\n"
        "  lifecycle: Parked\n"
        "  policy: web\n"
        "  localDisk: Exit\n"
        "  vars:\n"
        "    console: ttyS1\n"
    )
    validated = run_command("validate", path)
    assert (validated.code, validated.out.count("error")) == (Exit.FINE, 0), validated
    [plan] = [each for each in run_command("plan", path, "-o", "json").json["items"] if each["server"] == "web02"]
    assert plan["digest"] is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ["--seen", "52:54:00:00:00:77"],
            "no unknown machine with the MAC address 52:54:00:00:00:77 has requested a boot",
        ),
        (["--seen", "nonsense"], "expected a MAC address"),
        (["--uuid", UUID], "the server needs a MAC address: add --seen, --bmc or --mac"),
        (["--mac", make_mac("web01"), "--uuid", UUID], "Server/web01 already has"),
        (["--mac", MAC, "--uuid", make_uuid("web01").upper()], "Server/web01 already has"),
        (["--mac", MAC, "--uuid", UUID, "--like", "web09"], "there is no Server/web09"),
        (["--bmc", "https://127.0.0.1:1"], "--bmc needs --as"),
    ],
)
def test_an_invalid_document_is_not_written(path: Path, arguments: list[str], why: str) -> None:
    done = run_new(path, *arguments)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert why in done.err
    assert not (path / "servers").exists()


def test_a_machine_without_a_known_uuid_gets_a_document_without_one(path: Path) -> None:
    assert run_new(path, "--seen", "52:54:00:99:99:98", "--like", "web01").code == Exit.FINE
    text = (path / "servers" / "web02.yaml").read_text()
    assert "uuid:" not in text and "# The UUID is missing" in text
    assert run_command("validate", path).code == Exit.FINE
    (path / "servers" / "web02.yaml").write_text(text.replace("lifecycle: Parked", "provision: 1"))
    refused = run_command("validate", path)
    assert refused.code == Exit.INVALID and "GB2021" in refused.out


def test_the_inventory_of_an_image_is_in_the_document(path: Path) -> None:
    assert run_new(path, "--seen", "52:54:00:99:99:97").code == Exit.FINE
    text = (path / "servers" / "web02.yaml").read_text()
    assert text.startswith(
        "# The machine with the address 10.0.0.9 requested a boot at 2026-11-20 22:00 UTC and sent these facts. "
        "Its inventory: Dell Inc. PowerEdge R650, x86_64 UEFI, 64 CPUs, 256 GiB, 2 interfaces, nvme0n1 480 GB, "
        "sda 7.68 TB.\n"
    )
    assert "  - mac: 52:54:00:99:99:96\n  - name: eno1\n    mac: 52:54:00:99:99:97\n" in text
    assert "  uuid: 4c4c4544" in text and "lifecycle: Parked" in text
    assert run_command("validate", path).code == Exit.FINE


def test_no_file_is_overwritten(path: Path) -> None:
    (path / "servers").mkdir()
    (path / "servers" / "web02.yaml").write_text("# somebody's\n")
    done = run_new(path, "--mac", MAC, "--uuid", UUID)
    assert done.code == Exit.USAGE and "already exists" in done.err
    assert (path / "servers" / "web02.yaml").read_text() == "# somebody's\n"
    assert "already exists" in run_new(path, "--mac", MAC, "--uuid", UUID, name="web01").err
