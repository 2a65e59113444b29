"""`gitboot import`: write a fleet from another system's data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Final

import click
from msgspec import Struct

from gitboot.cli.commands.init import CI, SCHEMAS, build_seed_file
from gitboot.cli.main import Command, Exit
from gitboot.errors import UsageError
from gitboot.files import convert_os_errors, read_output_file, remove_output_file, write_output_file
from gitboot.importers.inventory import ImportedInventory, Supplement, Texts, parse_digest_list, parse_uuid_list
from gitboot.importers.sources import (
    asset_databases,
    boot_servers,
    dhcp_servers,
    hpc_clusters,
    kubernetes,
    metal_operator,
)
from gitboot.model.scalars import Malformed, parse_base_url
from gitboot.text import format_count

REPORT: Final = "import-report.md"
_DIGESTS_FILE: Final = ".gitboot/import.json"  # the file with the digests of all files that the last import wrote
_MAX_BYTES: Final = 16 << 20  # the limit for each file, because a directory may also contain kernels and images
_MAX_DATA_BYTES: Final = 256 << 20  # the limit for a file that is the source or has one of these suffixes
_DATA_SUFFIXES: Final = (".json", ".yaml", ".yml", ".tfstate", ".conf")
_MAX_FILES: Final = 50_000  # files
_MAX_REASONS: Final = 10  # maximum number of reasons in the error for a source without machines
_HELP: Final = """Generate a fleet from the data of another system.

SOURCE is a file or a directory with the data of SYSTEM. gitboot keeps the names of the machines. Every server is Parked
and has no provision, so gitboot does not install servers. A comment marks each value that gitboot guessed.
import-report.md lists what gitboot kept, guessed, left out, rejected and could not find for each machine. Documents
that need a fact from you are in pending/, which the fleet ignores. gitboot does not write secrets. A document contains
only the name of BMC credentials.

You can import again. gitboot then updates the files that changed in SOURCE, and does not touch the files that you
changed.

The systems, and the data to pass as SOURCE:"""


class OldSystem(Struct, frozen=True):
    """A supported system, with the function that reads its data and a description of these data."""

    read: Callable[[Texts], ImportedInventory]
    description: str


SYSTEMS: Final[Mapping[str, OldSystem]] = {
    "matchbox": OldSystem(boot_servers.read_matchbox, "the data directory: groups/, profiles/, ignition/"),
    "terraform": OldSystem(boot_servers.read_terraform, "terraform.tfstate with matchbox_profile and matchbox_group"),
    "cobbler": OldSystem(boot_servers.read_cobbler, "/var/lib/cobbler/collections of Cobbler 3.3 or 4"),
    "foreman": OldSystem(asset_databases.read_foreman, "hosts, media and operatingsystems of its API as JSON"),
    "maas": OldSystem(asset_databases.read_maas, "maas PROFILE machines read, and machines power-parameters"),
    "openchami": OldSystem(hpc_clusters.read_openchami, "BSS and SMD, or nodes and bootconfigurations of boot-service"),
    "tinkerbell": OldSystem(kubernetes.read, "Hardware and Machine objects as YAML"),
    "metal3": OldSystem(kubernetes.read, "BareMetalHost and HardwareData objects as YAML"),
    "boot-operator": OldSystem(metal_operator.read, "objects of metal-operator and boot-operator as YAML"),
    "ironic": OldSystem(boot_servers.read_ironic, "openstack baremetal node list --long -f json, and port list"),
    "netbox": OldSystem(asset_databases.read_netbox, "devices, interfaces, ip-addresses of NetBox or Nautobot as JSON"),
    "xcat": OldSystem(hpc_clusters.read_xcat, "the output of lsdef -t node -z"),
    "warewulf": OldSystem(hpc_clusters.read_warewulf, "nodes.conf of Warewulf 4"),
    "dnsmasq": OldSystem(dhcp_servers.read_dnsmasq, "dhcp-host lines (only MAC, name and address)"),
    "isc": OldSystem(dhcp_servers.read_isc_dhcpd, "host blocks of dhcpd.conf (only MAC, name and address)"),
    "kea": OldSystem(dhcp_servers.read_kea, "reservations (only MAC, name and address)"),
}


@click.command(
    help="\n".join([_HELP, "", "\b", *(f"{name:13}  {system.description}" for name, system in SYSTEMS.items())]),
    cls=Command,
    example="gitboot import matchbox /var/lib/matchbox --out fleet",
    exit_codes={
        Exit.FINE: "gitboot wrote the fleet",
        Exit.USAGE: "SOURCE describes no machines, or an option is wrong",
    },
)
@click.argument("system", metavar="SYSTEM", type=click.Choice(list(SYSTEMS)))
@click.argument("source", metavar="SOURCE", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory for the fleet. It must be new, empty, or the result of an earlier import.",
)
@click.option(
    "--uuids",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A file with the UUIDs that are not in SOURCE. Each line contains the MAC address or the name of a machine, "
    "a space, and the UUID. FILE can also be the JSON output of `gitboot bmc scan` or `gitboot unknown-machines`. "
    "Without this option, gitboot writes machines without a UUID to pending/.",
)
@click.option(
    "--sums",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The output of sha256sum for the files that machines boot. Without this option, gitboot writes the "
    "documents that name these files to pending/.",
)
@click.option(
    "--base-url",
    default="http://boot.example.net",
    metavar="URL",
    help="The baseURL of the Fleet. Default: http://boot.example.net, which you must change.",
)
def command(system: str, source: Path, out: Path, uuids: Path | None, sums: Path | None, base_url: str) -> None:
    from gitboot.importers.fleet_files import IGNORE, render_fleet, render_report, summarize
    from gitboot.review.formats.json import build_schemas

    try:
        fleet_yaml = build_seed_file("fleet.yaml").replace("http://boot.example.net", parse_base_url(base_url))
    except Malformed as error:
        raise UsageError(f"--base-url: {error.message}; {error.hint}") from None
    inventory = SYSTEMS[system].read(dict(_read_texts(source)))
    supplement = Supplement(
        uuids=parse_uuid_list(_read_text(uuids), str(uuids)) if uuids else {},
        sums=parse_digest_list(_read_text(sums), str(sums)) if sums else {},
    )
    fleet = render_fleet(inventory, supplement)
    if not fleet.items:
        reasons = "".join(f"\n- {each.text}" for each in fleet.remarks[:_MAX_REASONS])
        raise UsageError(
            f"{source} has no machines in the format of {system}; `gitboot import --help` lists the formats{reasons}"
        )
    with convert_os_errors(out):
        target = _ImportTarget(out)
        target.begin(
            {"fleet.yaml": fleet_yaml, ".gitbootignore": IGNORE, **{name: build_seed_file(name) for name in CI}}
        )
        target.write(fleet.files)
        below = {f"{SCHEMAS}/{name}": text for name, text in build_schemas().items()}
        target.end({**below, REPORT: render_report(system, fleet, target.left)})
    left = f", {format_count(len(target.left), 'file')} not written, because you changed them" if target.left else ""
    click.echo(f"{out}: {summarize(fleet)}{left}; see {out / REPORT}", err=True)


def _read_texts(source: Path) -> Iterator[tuple[str, str]]:
    paths = [source] if source.is_file() else sorted(path for path in source.rglob("*") if path.is_file())
    if len(paths) > _MAX_FILES:
        raise UsageError(f"{source} contains {len(paths):,} files: pass the directory that describes machines")
    for path in paths:
        with convert_os_errors(path, "read"):
            is_data, size = path == source or path.suffix in _DATA_SUFFIXES, path.stat().st_size
            if is_data and size > _MAX_DATA_BYTES:
                raise UsageError(f"{path} has {size:,} bytes, more than {_MAX_DATA_BYTES:,}: split it, or leave it out")
            if (is_data or size <= _MAX_BYTES) and b"\0" not in (content := path.read_bytes()):
                name = path.name if path == source else path.relative_to(source.parent).as_posix()
                yield name, content.decode(errors="replace")


def _read_text(path: Path) -> str:
    with convert_os_errors(path, "read"):
        return path.read_text(errors="replace")


class _ImportTarget:
    """A directory into which an operator can import several times. Later imports keep the edits of people."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.left: list[str] = []  # files that were not written
        self._now: dict[str, str] = {}
        self._before: Mapping[str, str] = {}
        if (written := read_output_file(out / _DIGESTS_FILE)) is not None:
            self._before = _parse_digests(written, out)
        elif out.exists() and any(path.name != ".git" for path in out.iterdir()):
            raise UsageError(f"{out} is not empty, and gitboot import did not create it: choose an empty directory")

    def begin(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            if not (self._out / name).exists():
                self._write_file(name, text)

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in sorted(files.items()):
            theirs = [each for each in (name, name.removeprefix("pending/")) if self._is_edited(each)]
            self.left += theirs[:1]
            if not theirs:
                self._write_file(name, text)
            self._now[name] = _hash_text(text)
        for name in sorted(self._before.keys() - files.keys()):
            if self._is_edited(name):
                self.left.append(name)
                self._now[name] = self._before[name]
            else:
                remove_output_file(self._out / name)

    def end(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            self._write_file(name, text)
        self._write_file(_DIGESTS_FILE, json.dumps(self._now, indent=2, sort_keys=True) + "\n")

    def _is_edited(self, name: str) -> bool:
        """Return whether the file differs from the file that the last import wrote."""
        found = self._read(name)
        return found is not None and _hash_text(found) != self._before.get(name)

    def _read(self, name: str) -> str | None:
        content = read_output_file(self._out / name)
        return content.decode(errors="replace").replace("\r\n", "\n") if content is not None else None

    def _write_file(self, name: str, text: str) -> None:
        if self._read(name) != text:
            write_output_file(self._out / name, [text.encode()], make_folders=True)


def _parse_digests(data: bytes, out: Path) -> dict[str, str]:
    """Return the digests of the files that the last import wrote, by path.

    Raises `UsageError` if a path is not below ``out``, because gitboot deletes files at these paths, and a commit can
    change the paths.
    """
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{out / _DIGESTS_FILE} is damaged: restore it from Git")
    for path in map(PurePosixPath, found):
        if path.is_absolute() or ".." in path.parts:
            raise UsageError(
                f"{out / _DIGESTS_FILE} contains {str(path)!r}, which is not below {out}: restore the file from Git"
            )
    return found


def _hash_text(text: str) -> str:
    return sha256(text.encode()).hexdigest()
