"""`gitboot import` and `gitboot compare-old-system`: migrate from another system to a fleet."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from copy import copy
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Struct, structs

from gitboot.cli.commands.init import CI, SCHEMAS, build_seed_file
from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import FiniteRange, OutputOption, current_second, fleet_argument, output_option, write_outputs
from gitboot.cli.terminal import format_table, show_progress, wrap_text
from gitboot.errors import HostUnreachable, UsageError
from gitboot.files import convert_os_errors, is_file, read_output_file, remove_output_file, write_output_file
from gitboot.http_client import SLOWEST_DOWNLOAD, HttpClient, RedirectRefused, format_host
from gitboot.importers.boot_comparison import (
    HTTP_BOOT_PATHS,
    OTHER_SCRIPT_PATHS,
    SCRIPT_PATHS,
    BootComparison,
    ComparedMachine,
    OldBoot,
    Verdict,
    compare_boots,
    list_moved_files,
    parse_boot_script,
    parse_http_boot,
)
from gitboot.importers.inventory import (
    ExtraData,
    ImportedInventory,
    Texts,
    parse_digest_list,
    parse_uuid_list,
    split_url_or_none,
)
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
from gitboot.jsonio import build_json_decoder, format_document
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.scalars import NAME, Malformed, parse_base_url
from gitboot.model.server import Lifecycle, Server
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.text import format_count

if TYPE_CHECKING:
    from gitboot.fleet.documents import FleetRepository


@click.command(
    cls=Command,
    example="gitboot compare-old-system fleet --old http://10.0.0.5:8080 --as matchbox",
    exit_codes={
        Exit.FINE: "both systems boot every server the same way",
        Exit.CHANGES: "a server boots differently, or is missing from one system",
        Exit.INVALID: "the fleet has errors",
        Exit.SOURCE: "the old system did not respond",
    },
)
@fleet_argument
@click.option("--old", required=True, metavar="URL", help="The URL at which the old system serves machines.")
@click.option(
    "--as",
    "shape",
    required=True,
    type=click.Choice(list(SCRIPT_PATHS)),
    help="The type of the old system.",
)
@click.option(
    "--server",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_servers,
    help="Compare only this server. Repeat the option for several servers.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 256),
    default=32,
    metavar="NUMBER",
    help="The number of servers to compare at the same time. Default: 32.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(min=0, min_open=True, max=300),
    default=10.0,
    metavar="SECONDS",
    help="Seconds to wait for each response. Default: 10.",
)
@click.option(
    "--contents",
    is_flag=True,
    help="Also fetch files whose paths differ between the two systems, and compare their content. Ironic, for "
    "example, has copies "
    "for each node.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A PEM file with the certificate authority of the old system. Default: the authorities that this machine "
    "trusts.",
)
@output_option("text", "markdown", "json")
@evaluator_command
def command(
    path: Path,
    rev: str | None,
    old: str,
    shape: str,
    names: tuple[str, ...],
    parallel: int,
    timeout_s: float,
    contents: bool,
    ca_bundle: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Compare the fleet's boots with another system's.

    gitboot fetches the boot of each server from the old system, as the machine would. It compares the kernel, the
    initrds, the arguments and the user data with the boot that the policy gives the server. It also compares Parked
    servers.

    Two files are equal if they have the same path below both systems. The location of user data may differ, but not its
    content. gitboot does not print values that look like secrets. It only reads from --old, and sends requests to no
    other host. Some systems, such as Ironic and Tinkerbell, log these requests as if the
    machine had sent them.
    """
    from gitboot.cli.evaluated_fleet import plan_fleet

    format_host(old)
    old_system = _OldSystem(old, shape, HttpClient(ca_bundle=ca_bundle, connections_per_host=parallel), timeout_s)
    now = current_second()
    fleet = plan_fleet(path, rev, now, None)
    fleet.require_servers(names)
    decisions = [
        each
        for name, each in _evaluate_parked_as_active(fleet.repository, now).servers.items()
        if not names or name in names
    ]

    pool = ThreadPoolExecutor(parallel, thread_name_prefix="compare")
    compare, found = partial(_compare_server, old_system, contents=contents), []
    try:
        jobs = [pool.submit(compare, each, fleet.repository.servers[each.server]) for each in decisions]
        with show_progress("servers", len(jobs)) as advance:
            for job in as_completed(jobs):
                advance(1)
                found.append(job.result())
    finally:
        pool.shutdown(cancel_futures=True)
    found.sort(key=lambda each: each.server)
    items = [
        {
            "server": each.server,
            "verdict": str(each.verdict),
            "message": each.message,
            "differences": [{"field": what, "old": old, "gitboot": new} for what, old, new in each.differences],
        }
        for each in found
    ]
    as_json = partial(format_document, items=items)
    write_outputs(outputs, text=partial(_format_text, found), markdown=partial(_format_markdown, found), json=as_json)
    verdicts = {each.verdict for each in found}
    if verdicts & {Verdict.DIFFERS, Verdict.MISSING, Verdict.NOTHING}:
        sys.exit(Exit.CHANGES)
    if Verdict.UNKNOWN in verdicts:
        sys.exit(Exit.SOURCE)


def _evaluate_parked_as_active(repository: FleetRepository, now: datetime) -> Decisions:
    """Evaluate the fleet as if Parked servers were Active, because the old system still manages them."""
    from gitboot.resolve.fleet_decisions import decide

    fleet, servers = copy(repository.fleet), {}
    object.__setattr__(fleet, "spec", copy(fleet.spec))
    # Do not require a policy: a server without a policy boots its disk, and gitboot compares this boot too.
    object.__setattr__(fleet.spec, "require_policy", False)
    for name, server in repository.servers.items():
        servers[name] = active = copy(server)
        # Change a copy of the document, because gitboot validates a document only once, as text.
        if server.spec.lifecycle is Lifecycle.PARKED:
            spec = copy(server.spec)
            object.__setattr__(spec, "lifecycle", Lifecycle.ACTIVE)
            object.__setattr__(active, "spec", spec)
    return decide(structs.replace(repository, fleet=fleet, servers=servers), now)


def _compare_server(old_system: _OldSystem, decision: Decision, server: Server, *, contents: bool) -> BootComparison:
    machine = ComparedMachine(
        name=decision.server,
        uuid=str(decision.uuid),
        macs=tuple(mac.replace("-", ":") for mac in server.boot_macs),
        serial=server.spec.serial or "",
        addresses=tuple(each.partition("/")[0] for nic in server.spec.interfaces for each in nic.addresses),
    )
    policy = decision.policy
    boot = policy.boot if policy is not None else None
    build_result = partial(BootComparison, server=machine.name)
    try:
        is_uki = boot is not None and boot.direct_uki is not None
        answer = old_system.fetch_boot(machine, is_uki=is_uki)
        if answer is None:
            return build_result(verdict=Verdict.MISSING, message="the old system has no boot for this server")
        if boot is None and answer.kernel is None:
            return build_result(verdict=Verdict.EQUAL, message="both systems boot the server from its disk")
        if boot is None:
            return build_result(verdict=Verdict.NOTHING, message="no policy boots the server from the network")
        # Whether gitboot would boot the server from the network if the server were not Parked.
        installs = decision.provision > 0 or (policy is not None and policy.network_boot is NetworkBoot.ALWAYS)
        if answer.kernel is None and answer.chain is None and not installs:
            message = "both systems boot the server from its disk, because it is installed"
            return build_result(verdict=Verdict.EQUAL, message=message)
        data, url = None, answer.user_data_url
        if url is not None and old_system.serves(url):
            data = old_system.fetch_text(f"{url}user-data" if url.endswith("/") else url)
        moved = list_moved_files(answer, boot, old_url=old_system.url, base_url=decision.base_url) if contents else ()
        digests = {
            url: digest for url in moved if old_system.serves(url) and (digest := old_system.hash_file(url)) is not None
        }
    except HostUnreachable as error:
        return build_result(verdict=Verdict.UNKNOWN, message=str(error))
    return compare_boots(
        machine.name,
        answer,
        data,
        boot,
        digests,
        old_url=old_system.url,
        base_url=decision.base_url,
        macs=machine.macs,
    )


_MAX_SCRIPT_BYTES: Final = 1 << 20  # maximum size of one response
_MAX_FILE_BYTES: Final = 1 << 32  # maximum size of one file that machines boot
_CHUNK_BYTES: Final = 1 << 20
_MAX_REDIRECTS: Final = 3  # the maximum number of redirects from one script to the next
_ANY_TYPE: Final = {"Accept": "*/*"}


class _OldSystem(Struct, frozen=True):
    """The web server from which machines boot in the old system. Each method raises `HostUnreachable`."""

    url: str
    shape: str  # the type of the system, such as matchbox
    client: HttpClient
    timeout_s: float  # for each response

    def fetch_boot(self, machine: ComparedMachine, *, is_uki: bool) -> OldBoot | None:
        """Return what a machine boots, or None if the system has no boot for the machine.

        If the system supports UEFI HTTP boot, first request the kind of boot that the fleet uses.
        """
        ways = [self._fetch_script]
        if self.shape in HTTP_BOOT_PATHS:
            ways.insert(0 if is_uki else 1, self._fetch_http_boot)
        failures = []
        for way in ways:
            try:
                if (boot := way(machine)) is not None:
                    return boot
            except RedirectRefused:
                raise
            except HostUnreachable as error:  # boot-operator: 503 if iPXE is disabled, and 500 without a default uki
                failures.append(error)
        if len(failures) == len(ways):
            raise failures[0]
        return None

    def _fetch_script(self, machine: ComparedMachine) -> OldBoot | None:
        urls = [
            each
            for paths in (SCRIPT_PATHS, OTHER_SCRIPT_PATHS)
            for each in enumerate(machine.list_script_urls(self.url, self.shape, paths))
        ]
        for number, script_url in urls:
            mac = machine.macs[min(number, len(machine.macs) - 1)] if machine.macs else ""
            url, variables = script_url, machine.list_variables(mac)
            for _ in range(_MAX_REDIRECTS + 1):
                # Cobbler sends an empty response to an unknown machine.
                if not (script := self.fetch_text(url) or "").strip():
                    break
                boot = parse_boot_script(script, url, variables)
                if boot.fails:
                    break
                if boot.chain is None or not self.serves(boot.chain) or "${" in boot.chain:
                    return boot
                url = boot.chain
            else:
                host = urlsplit(url).netloc
                raise RedirectRefused(
                    f"the boot script of {host} loads another script more than {_MAX_REDIRECTS} times"
                )
        return None

    def _fetch_http_boot(self, machine: ComparedMachine) -> OldBoot | None:
        root = self.url.rstrip("/")
        headers = {"X-Forwarded-For": ", ".join((*machine.addresses, *machine.macs))}
        answer = self.fetch_text(f"{root}/{HTTP_BOOT_PATHS[self.shape]}", headers)
        return parse_http_boot(answer, machine.uuid, f"{root}/ignition/{machine.uuid}") if answer else None

    def serves(self, url: str) -> bool:
        """Return whether a URL belongs to this system."""
        own, other = urlsplit(self.url), split_url_or_none(url)
        return other is not None and (own.scheme, own.netloc) == (other.scheme, other.netloc)

    def fetch_text(self, url: str, headers: Mapping[str, str] = MappingProxyType({})) -> str | None:
        """Return the text at a URL, or None if the status is 404 or 410."""
        with self.client.stream("GET", url, headers={**_ANY_TYPE, **headers}, deadline_s=self.timeout_s) as answer:
            if answer.status in (404, 410):
                return None
            if answer.status != 200:
                raise HostUnreachable(f"{urlsplit(url).netloc} answers {answer.status}")
            return answer.read_whole(_MAX_SCRIPT_BYTES).decode(errors="replace")

    def hash_file(self, url: str) -> str | None:
        """Return the SHA-256 of the file at a URL, or None if the status is not 200."""
        found, size = sha256(), 0
        with self.client.stream(
            "GET", url, headers=_ANY_TYPE, deadline_s=self.timeout_s, rate=SLOWEST_DOWNLOAD
        ) as answer:
            if answer.status != 200:
                return None
            while piece := answer.read(_CHUNK_BYTES):
                found.update(piece)
                if (size := size + len(piece)) > _MAX_FILE_BYTES:
                    raise HostUnreachable(
                        f"a file from {urlsplit(url).netloc} is larger than {_MAX_FILE_BYTES:,} bytes"
                    )
        return found.hexdigest()


# Output


def _format_text(comparisons: list[BootComparison]) -> str:
    rows, lines = [], []
    for each in comparisons:
        if each.verdict is not Verdict.EQUAL:
            name = each.server if len(each.server) <= 40 else f"{each.server[:39]}…"
            what = each.message or ", ".join(what for what, _, _ in each.differences)
            rows.append((name, str(each.verdict), what if len(what) <= 45 else f"{what[:44]}…"))
            for what, old, new in each.differences:
                lines += ["", wrap_text(f"{each.server}: {what}")]
                lines += [wrap_text(f"old:     {old}", "  "), wrap_text(f"gitboot: {new}", "  ")]
    if rows:
        lines = [format_table(("SERVER", "RESULT", "DIFFERENCE"), rows), *lines, ""]
    return "\n".join((*lines, _format_summary(comparisons)))


def _format_summary(comparisons: list[BootComparison]) -> str:
    counts = Counter(str(each.verdict) for each in comparisons)
    numbers = ", ".join(f"{number:,} {word}" for word, number in sorted(counts.items()))
    return f"{format_count(len(comparisons), 'server')}: {numbers}" if comparisons else "the fleet has no servers"


def _format_markdown(comparisons: list[BootComparison]) -> str:
    from gitboot.review.formats.markdown import format_code

    lines = []
    for each in comparisons:
        if each.verdict is not Verdict.EQUAL:
            for what, old, new in each.differences or ((each.message, "-", "-"),):
                server, *cells = (format_code(text, in_table=True) for text in (each.server, what, old, new))
                lines.append(f"| {' | '.join((server, str(each.verdict), *cells))} |")
    if lines:
        lines = ["", "| server | result | difference | old | gitboot |", "|---|---|---|---|---|", *lines]
    return "\n".join((_format_summary(comparisons), *lines))


REPORT: Final = "import-report.md"
_MAX_REASONS: Final = 10  # maximum number of reasons in the error for a source without machines
_HELP: Final = """Generate a fleet from another system's data.

SOURCE is a file or a directory with the data of SYSTEM. gitboot keeps the names of the machines. Every server is Parked
and has no provision, so gitboot does not install servers. A comment marks each value that gitboot guessed.
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
def import_command(system: str, source: Path, out: Path, uuids: Path | None, sums: Path | None, base_url: str) -> None:
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
    with convert_os_errors(out):
        target = _ImportTarget(out)
        target.write(fleet.files)
        target.write_missing(
            {"fleet.yaml": fleet_yaml, ".gitbootignore": IGNORE, **{name: build_seed_file(name) for name in CI}}
        )
        below = {f"{SCHEMAS}/{name}": text for name, text in build_schemas().items()}
        target.finish({**below, REPORT: render_report(system, fleet, target.skipped)})
    skipped = f"; gitboot kept {format_count(len(target.skipped), 'file')} that you changed" if target.skipped else ""
    click.echo(f"{out}: {summarize_import(fleet)}{skipped}; see {out / REPORT}", err=True)


_MAX_BYTES: Final = 16 << 20  # the limit for each file, because a directory may also contain kernels and images
_MAX_DATA_BYTES: Final = 256 << 20  # the limit for a file that is the source or has one of these suffixes
_DATA_SUFFIXES: Final = (".json", ".yaml", ".yml", ".tfstate", ".conf")
_MAX_FILES: Final = 50_000  # files


def _read_texts(source: Path) -> Iterator[tuple[str, str]]:
    paths = [source] if source.is_file() else sorted(_list_files(source))
    if len(paths) > _MAX_FILES:
        raise UsageError(f"{source} contains {len(paths):,} files: pass only the directory that describes machines")
    for path in paths:
        with convert_os_errors(path, "read"):
            is_data, size = path == source or path.suffix in _DATA_SUFFIXES, path.stat().st_size
            if is_data and size > _MAX_DATA_BYTES:
                raise UsageError(
                    f"{path} is larger than {_MAX_DATA_BYTES:,} bytes ({size:,} bytes): split the file, or leave it out"
                )
            if (is_data or size <= _MAX_BYTES) and b"\0" not in (content := path.read_bytes()):
                name = path.name if path == source else path.relative_to(source.parent).as_posix()
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


_DIGESTS_FILE: Final = ".gitboot/import.json"  # the file with the digests of all files that the last import wrote


class _ImportTarget:
    """A directory into which an operator can import repeatedly. Later imports keep manual edits."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self.skipped: list[str] = []  # files that were not written
        self._new_digests: dict[str, str] = {}
        self._old_digests: Mapping[str, str] = {}
        if (written := read_output_file(out / _DIGESTS_FILE)) is not None:
            self._old_digests = _parse_digests(written, out / _DIGESTS_FILE)
        elif out.exists() and any(path.name not in (".git", ".gitboot") for path in out.iterdir()):
            raise UsageError(f"{out} is not empty, and gitboot import did not create it: choose an empty directory")

    def write(self, files: Mapping[str, str]) -> None:
        self._new_digests = {name: _hash_text(text) for name, text in files.items()}
        if not self._old_digests:  # If this first import is interrupted, the next import needs the digests.
            self._write_digests()
        for name, text in sorted(files.items()):
            edited = [each for each in (name, name.removeprefix("pending/")) if self._is_edited(each)]
            self.skipped += edited[:1]
            if not edited:
                self._write_file(name, text)
        for name in sorted(self._old_digests.keys() - files.keys()):
            if self._is_edited(name):
                self.skipped.append(name)
                self._new_digests[name] = self._old_digests[name]
            else:
                remove_output_file(self._out / name)

    def write_missing(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            if not (self._out / name).exists():
                self._write_file(name, text)

    def finish(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            self._write_file(name, text)
        self._write_digests()

    def _write_digests(self) -> None:
        self._write_file(_DIGESTS_FILE, json.dumps(self._new_digests, indent=2, sort_keys=True) + "\n")

    def _is_edited(self, name: str) -> bool:
        """Return whether the file exists and differs from what the last import wrote and from what this import writes.

        An interrupted import leaves files that already have the new content.
        """
        found = self._read(name)
        return found is not None and _hash_text(found) not in (self._old_digests.get(name), self._new_digests.get(name))

    def _read(self, name: str) -> str | None:
        content = read_output_file(self._out / name)
        return content.decode(errors="replace") if content is not None else None

    def _write_file(self, name: str, text: str) -> None:
        found = self._read(name)
        if found is None or _hash_text(found) != _hash_text(text):
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
        found = _decode_digests(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"{file} is damaged: {error}; restore the file from Git") from None
    for path in found:
        if not _IMPORTED_PATH.fullmatch(path):
            raise UsageError(
                f"{file} contains the path {path!r:.100}, but gitboot import does not write a file at this path: "
                "restore the file from Git"
            )
    return found


def _hash_text(text: str) -> str:
    """Return the SHA-256 of the text with LF line endings, because Git can convert line endings."""
    return sha256(text.replace("\r\n", "\n").encode()).hexdigest()
