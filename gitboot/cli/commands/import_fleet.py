"""`gitboot import`: generate a fleet from the data of another system."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final, NoReturn

import click
import msgspec
from msgspec import Struct

from gitboot.cli.commands.init import CI, SCHEMAS, build_seed_file
from gitboot.cli.main import Command, Exit
from gitboot.errors import UsageError
from gitboot.files import convert_os_errors, is_file, read_output_file, remove_output_file, write_output_file
from gitboot.importers.inventory import ExtraData, ImportedInventory, Texts, parse_digest_list, parse_uuid_list
from gitboot.importers.sources import (
    asset_databases,
    cobbler,
    dhcp_servers,
    hpc_clusters,
    ironic,
    kubernetes,
    matchbox,
    metal_operator,
)
from gitboot.jsonio import build_json_decoder
from gitboot.model.scalars import NAME, Malformed, parse_base_url
from gitboot.text import format_count

_REPORT: Final = "import-report.md"
_DIGESTS_FILE: Final = ".gitboot/import.json"  # the file with the digests of all files that the last import wrote
_DATA_SUFFIXES: Final = (".json", ".yaml", ".yml", ".tfstate", ".conf")
_MAX_DATA_BYTES: Final = 256 << 20  # the limit for a file that is the source or has one of these suffixes
_MAX_BYTES: Final = 16 << 20  # the limit for each other file, because a directory may also contain kernels and images
_MAX_FILES: Final = 50_000
_MAX_REASONS: Final = 10  # maximum number of reasons in the error for a source without machines
_HELP: Final = """Generate a fleet from another system's data.

SOURCE is a file or a directory with the data of SYSTEM. gitboot keeps the names of the machines. Every server is Parked
and has no provision number, so gitboot does not install servers. A comment marks each value that gitboot guessed.
import-report.md lists what gitboot kept, guessed, left out, rejected and could not find for each machine. Documents
that need a fact from you are in pending/, which the fleet ignores. gitboot does not write secrets. A document contains
only the name of BMC credentials.

You can import again. gitboot then updates the files that changed in SOURCE, and does not touch the files that you
changed.

The systems, and the data to pass as SOURCE:"""


class ImportSource(Struct, frozen=True):
    """A supported old system: the function that reads its data, and a description of the data."""

    read_inventory: Callable[[Texts], ImportedInventory]
    description: str


SYSTEMS: Final[Mapping[str, ImportSource]] = {
    "matchbox": ImportSource(matchbox.read_matchbox, "the data directory with groups/, profiles/ and ignition/"),
    "terraform": ImportSource(matchbox.read_terraform, "terraform.tfstate with matchbox_profile and matchbox_group"),
    "cobbler": ImportSource(cobbler.read_cobbler, "/var/lib/cobbler/collections from Cobbler 3.3 or 4"),
    "foreman": ImportSource(asset_databases.read_foreman, "hosts, media and operatingsystems as JSON (Foreman API)"),
    "maas": ImportSource(asset_databases.read_maas, "the output of maas PROFILE machines read and power-parameters"),
    "openchami": ImportSource(
        hpc_clusters.read_openchami, "BSS and SMD data, or boot-service nodes/bootconfigurations"
    ),
    "tinkerbell": ImportSource(kubernetes.read_inventory, "Hardware and Machine objects as YAML"),
    "metal3": ImportSource(kubernetes.read_inventory, "BareMetalHost and HardwareData objects as YAML"),
    "boot-operator": ImportSource(metal_operator.read_inventory, "metal-operator and boot-operator objects as YAML"),
    "ironic": ImportSource(ironic.read_ironic, "JSON from openstack baremetal node list --long and port list"),
    "netbox": ImportSource(asset_databases.read_netbox, "devices, interfaces, ip-addresses as JSON (NetBox, Nautobot)"),
    "xcat": ImportSource(hpc_clusters.read_xcat, "the output of lsdef -t node -z"),
    "warewulf": ImportSource(hpc_clusters.read_warewulf, "nodes.conf from Warewulf 4"),
    "dnsmasq": ImportSource(dhcp_servers.read_dnsmasq, "dhcp-host lines (only MAC, name and address)"),
    "isc": ImportSource(dhcp_servers.read_isc_dhcpd, "host blocks from dhcpd.conf (only MAC, name and address)"),
    "kea": ImportSource(dhcp_servers.read_kea, "reservations (only MAC, name and address)"),
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
    from gitboot.importers.fleet_files import IGNORE, render_fleet, render_report, summarize_import
    from gitboot.review.formats.json import build_schemas

    try:
        fleet_yaml = build_seed_file("fleet.yaml").replace("http://boot.example.net", parse_base_url(base_url))
    except Malformed as error:
        raise UsageError(f"--base-url: {error.message}; {error.hint}") from None
    inventory = SYSTEMS[system].read_inventory(dict(_read_texts(source)))
    extra_data = ExtraData(
        uuids=parse_uuid_list(_read_text(uuids), str(uuids)) if uuids else {},
        sums=parse_digest_list(_read_text(sums), str(sums)) if sums else {},
    )
    fleet = render_fleet(inventory, extra_data)
    if not fleet.items:
        reasons = "".join(f"\n- {each.text}" for each in fleet.remarks[:_MAX_REASONS])
        raise UsageError(
            f"{source} contains no machines in the {system} format; `gitboot import --help` lists the formats{reasons}"
        )
    starter_files = {name: build_seed_file(name) for name in CI}
    schemas = {f"{SCHEMAS}/{name}": text for name, text in build_schemas().items()}
    with convert_os_errors(out):
        target = _ImportTarget(out)
        target.write_documents(fleet.files)
        target.write_missing({"fleet.yaml": fleet_yaml, ".gitbootignore": IGNORE, **starter_files})
        target.overwrite({**schemas, _REPORT: render_report(system, fleet, target.kept_files)})
        target.write_digests()
    kept = ""
    if target.kept_files:
        kept = f"; gitboot kept {format_count(len(target.kept_files), 'file')} that you changed"
    click.echo(f"{out}: {summarize_import(fleet)}{kept}; see {out / _REPORT}", err=True)


def _read_texts(source: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file of a source, without binary files and large files of other formats.

    The name of a file in a directory begins with the name of the directory. Raises `UsageError` if the source has too
    many files, a file with data is too large, or a file cannot be read.
    """
    files = [source] if source.is_file() else sorted(_list_files(source))
    if len(files) > _MAX_FILES:
        raise UsageError(f"{source} contains {len(files):,} files: pass only the directory that describes machines")
    for file in files:
        with convert_os_errors(file, "read"):
            is_data = file == source or file.suffix in _DATA_SUFFIXES
            size = file.stat().st_size
            if is_data and size > _MAX_DATA_BYTES:
                raise UsageError(
                    f"{file} is larger than {_MAX_DATA_BYTES:,} bytes ({size:,} bytes): split the file, or leave it out"
                )
            if not is_data and size > _MAX_BYTES:
                continue
            content = file.read_bytes()
            if b"\0" not in content:
                name = file.name if file == source else file.relative_to(source.parent).as_posix()
                yield name, content.decode(errors="replace")


def _list_files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below. Raises `UsageError` if a folder cannot be read."""

    def fail(error: OSError) -> NoReturn:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}")

    for parent, _, names in os.walk(folder, onerror=fail):
        yield from filter(is_file, (Path(parent, name) for name in names))


def _read_text(path: Path) -> str:
    with convert_os_errors(path, "read"):
        return path.read_text(errors="replace")


class _ImportTarget:
    """A directory into which an operator can import repeatedly. Later imports keep manual edits.

    Raises `UsageError` if the directory contains other files than those of an earlier import.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self.kept_files: list[str] = []  # files that this import does not write, because the operator edited them
        # The digests of the documents and user data that this import writes and that the last import wrote, by path.
        self._new_digests: dict[str, str] = {}
        self._old_digests: Mapping[str, str] = {}
        digests_file = out / _DIGESTS_FILE
        written = read_output_file(digests_file)
        if written is not None:
            self._old_digests = _parse_digests(written, digests_file)
        elif out.exists() and any(path.name not in (".git", ".gitboot") for path in out.iterdir()):
            raise UsageError(f"{out} is not empty, and gitboot import did not create it: choose an empty directory")

    def write_documents(self, files: Mapping[str, str]) -> None:
        """Write documents and user data, and remove those that only the last import wrote. Keep edited files.

        A file in pending/ also counts as edited if the operator has moved it to its place outside of pending/.
        """
        self._new_digests = {name: _hash_text(text) for name, text in files.items()}
        if not self._old_digests:  # If this first import is interrupted, the next import needs the digests.
            self.write_digests()
        for name, text in sorted(files.items()):
            edited = [path for path in (name, name.removeprefix("pending/")) if self._is_edited(path)]
            if edited:
                self.kept_files.append(edited[0])
            else:
                self._write_file(name, text)
        for name in sorted(self._old_digests.keys() - files.keys()):
            if self._is_edited(name):
                self.kept_files.append(name)
                self._new_digests[name] = self._old_digests[name]
            else:
                remove_output_file(self._out / name)

    def write_missing(self, files: Mapping[str, str]) -> None:
        """Write the files that do not exist yet."""
        for name, text in files.items():
            if not (self._out / name).exists():
                self._write_file(name, text)

    def overwrite(self, files: Mapping[str, str]) -> None:
        """Write files, even if the operator edited them."""
        for name, text in files.items():
            self._write_file(name, text)

    def write_digests(self) -> None:
        """Record the digests of the documents for the next import."""
        self._write_file(_DIGESTS_FILE, json.dumps(self._new_digests, indent=2, sort_keys=True) + "\n")

    def _is_edited(self, name: str) -> bool:
        """Return whether the file exists and differs from what the last import wrote and from what this import writes.

        An interrupted import leaves files that already have the new content.
        """
        text = self._read_file(name)
        return text is not None and _hash_text(text) not in (self._old_digests.get(name), self._new_digests.get(name))

    def _read_file(self, name: str) -> str | None:
        content = read_output_file(self._out / name)
        return content.decode(errors="replace") if content is not None else None

    def _write_file(self, name: str, text: str) -> None:
        """Write a file, unless the existing file differs at most in its line endings."""
        existing = self._read_file(name)
        if existing is None or _hash_text(existing) != _hash_text(text):
            write_output_file(self._out / name, [text.encode()], make_folders=True)


# The paths of the documents and user data that an import writes. A file system accepts names of at most 255 bytes.
_IMPORTED_PATH: Final = re.compile(
    r"(?:pending/)?(?=[a-z]+/[^/]{1,255}\Z)"
    rf"(?:(?:images|policies|profiles|servers)/{NAME.pattern}\.yaml|userdata/{NAME.pattern}\.j2)"
)
_decode_digests: Final = build_json_decoder(dict[str, str])


def _parse_digests(data: bytes, file: Path) -> dict[str, str]:
    """Return the digests of the files that the last import wrote, by file path.

    Raises `UsageError` if an import does not write a file at one of the paths, because gitboot deletes and replaces
    files at the parsed paths, and a commit can change the paths.
    """
    try:
        digests = _decode_digests(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{file} is damaged: {error}; restore the file from Git") from None
    for path in digests:
        if not _IMPORTED_PATH.fullmatch(path):
            raise UsageError(
                f"{file} contains the path {path!r:.100}, but gitboot import does not write a file at this path: "
                "restore the file from Git"
            )
    return digests


def _hash_text(text: str) -> str:
    """Return the SHA-256 of the text with LF line endings, because Git can convert line endings."""
    return sha256(text.replace("\r\n", "\n").encode()).hexdigest()
