"""`gitboot bmc scan`: find Redfish services, compare them with the fleet, and write documents for new machines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from gitboot.bmc.credentials import CredentialDirectory
from gitboot.bmc.scan import (
    FoundServer,
    ProbeResult,
    ScanComparison,
    choose_name,
    compare_servers,
    list_addresses,
    render_document,
    scan,
)
from gitboot.bmc.worker_pool import open_connections
from gitboot.cli.evaluated_fleet import load_fleet
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    combine_options,
    credentials_option,
    output_option,
    rev_option,
    write_outputs,
)
from gitboot.cli.terminal import format_table, show_progress, wrap_text
from gitboot.errors import UsageError
from gitboot.files import create_output_file, is_file, read_text
from gitboot.fleet.identities import BmcAccess, Machine, list_machines
from gitboot.jsonio import format_document, to_json_value
from gitboot.model.scalars import SystemUuid
from gitboot.text import format_count

# Options of the commands that connect to BMCs at addresses from the command line.
places_options = combine_options(
    click.argument("places", nargs=-1, required=True, metavar="NETWORK|ADDRESS|FILE..."),
    credentials_option,
    click.option(
        "--as", "name", required=True, metavar="NAME", help="The name of the credentials, as in spec.bmc.credentials."
    ),
)
port_option = click.option(
    "--port",
    "ports",
    metavar="PORT",
    multiple=True,
    default=[443],
    type=click.IntRange(1, 65535),
    help="A port to connect to. Repeat the option for several ports. Default: 443.",
)
parallel_option = click.option(
    "--parallel",
    metavar="NUMBER",
    default=64,
    type=click.IntRange(1, 256),
    help="The number of addresses to connect to at the same time. Default: 64.",
)


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example=("gitboot bmc scan 10.20.0.0/24 --credentials /etc/gitboot/bmc --as site1 \\\n    --path fleet"),
    exit_codes={
        Exit.FINE: "gitboot compared all services that responded",
        Exit.CHANGES: (
            "with --detailed-exitcode: a machine is swapped, moved, missing or unknown, or its network cards differ "
            "from its document"
        ),
        Exit.INVALID: "the fleet has errors",
        Exit.PARTIAL: "a service responded, but gitboot could not read the response",
    },
)
@places_options
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="The fleet to compare with: a directory, a Git work tree or a bare repository. Without this option, every "
    "machine is unknown.",
)
@rev_option
@port_option
@click.option(
    "--no-verify",
    is_flag=True,
    help="Accept any certificate, and write this into new documents. An access.toml must allow it.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write new documents to DIRECTORY/servers. Default: write none.",
)
@parallel_option
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if a machine differs from its document.")
@output_option("text", "json")
@evaluator_command
def scan_network(
    places: tuple[str, ...],
    credentials: Path | None,
    name: str,
    path: Path | None,
    rev: str | None,
    ports: tuple[int, ...],
    no_verify: bool,
    out: Path | None,
    parallel: int,
    detailed_exitcode: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Find Redfish services and compare them with the fleet.

    gitboot connects to each address of NETWORK, ADDRESS or FILE. Each FILE contains one network, address or URL per
    line. If a Redfish service responds, gitboot reads it with the credentials in DIR/NAME. If DIR/NAME has an
    access.toml, the file must allow the address. gitboot does not change the BMCs.

    With --out, gitboot writes a document for each machine that no document describes, for a pull request. These servers
    are Parked, so gitboot does not boot them or set overrides at their BMCs until you change the documents.
    """
    machines: list[Machine] = []
    if path is not None:
        machines = list(list_machines(load_fleet(path, rev)).values())
    addresses = list_addresses([" ".join(words) for _, words in read_place_lines(places)], ports)
    probes = scan_places(addresses, credentials, name, verify=not no_verify, parallel=parallel)
    found_servers = [server for probe in probes for server in probe.servers]
    failed_probes = [probe for probe in probes if probe.error is not None]
    comparison = compare_servers(found_servers, machines, addresses, [probe.address for probe in failed_probes])
    render = partial(render_document, credentials=name, verify=not no_verify)
    documents = build_documents(found_servers, comparison, {}, {machine.name for machine in machines}, render)
    written: dict[FoundServer, str] = {}
    if out is not None:
        written = {server: str(out / file) for server, (file, _) in documents.items()}
        with create_documents(out, documents.values(), "move the file, or pass the fleet that contains it as --path"):
            pass
    items = [
        {**to_json_value(server), "server": comparison.servers.get(server), "document": written.get(server)}
        for server in found_servers
    ]
    unread = [{"address": probe.address, "why": probe.error} for probe in failed_probes]
    write_outputs(
        outputs,
        text=partial(_format_scan, probes, comparison, written, len(addresses)),
        json=partial(format_document, items=items, unread=unread, differences=comparison.differences),
    )
    if failed_probes:
        sys.exit(Exit.PARTIAL)
    if comparison.differences and detailed_exitcode:
        sys.exit(Exit.CHANGES)


def read_place_lines(places: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the source and the words of each place on the command line.

    If a place is a file, yield the source and the words of each line in this file, without comments.
    """
    for place in places:
        if not is_file(Path(place)):
            yield place, [place]
            continue
        for number, line in enumerate(read_text(Path(place)).splitlines(), start=1):
            if words := line.partition("#")[0].split():
                yield f"{place}:{number}", words


def require_credentials(directory: Path | None) -> Path:
    """Return the directory with credentials. Raises `UsageError` if the option is missing."""
    if directory is None:
        raise UsageError("missing --credentials: pass the directory that contains NAME/username and NAME/password")
    return directory


def scan_places(
    places: Sequence[str], credentials: Path | None, name: str, *, verify: bool, parallel: int
) -> list[ProbeResult]:
    """Return the responses of the Redfish services at ``places``, in the same order."""
    from gitboot.bmc.redfish.client import BmcConnection

    credentials = require_credentials(credentials)
    CredentialDirectory(credentials).read(name)  # raises one error here instead of an error for each address
    order = {address: number for number, address in enumerate(places)}
    with open_connections(credentials) as connections:

        def connect(address: str) -> BmcConnection:
            access = BmcAccess(address=address, system=None, credentials=name, verify=verify, ca=None)
            # the operator named the address on the command line
            driver = connections.connect(SystemUuid(address), address, access, is_in_ledger=True)
            assert isinstance(driver, BmcConnection)  # noqa: S101 - `addresses` makes no other
            return driver

        with show_progress("addresses", len(places)) as advance:
            probes = list(scan(places, connect, parallel=parallel, on_result=lambda: advance(1)))
    responses = [probe for probe in probes if probe.servers or probe.error]
    return sorted(responses, key=lambda probe: order[probe.address])


def build_documents(
    found_servers: Sequence[FoundServer],
    comparison: ScanComparison,
    chosen_names: Mapping[str, str],
    used_names: Collection[str],
    render: Callable[[FoundServer, str], str],
) -> dict[FoundServer, tuple[str, str]]:
    """Return the path and the text of the document for each new machine.

    ``chosen_names`` contains names that the operator chose, by the address of the BMC. They are for BMCs with one
    machine.
    """
    documents: dict[FoundServer, tuple[str, str]] = {}
    names = {*used_names, *chosen_names.values()}
    for server in found_servers:
        if server in comparison.servers or server.missing_identity is not None:
            continue
        name = chosen_names.get(server.address) if server.is_only_system else None
        if name is not None and name in used_names:
            raise UsageError(f"Server/{name} already exists: give the BMC at {server.address} a different name")
        if name is None:
            name = choose_name(server, names)
        names.add(name)
        documents[server] = f"servers/{name}.yaml", render(server, name)
    return documents


@contextmanager
def create_documents(folder: Path, documents: Iterable[tuple[str, str]], hint: str) -> Iterator[None]:
    """Create documents. If one of the files exists or the block fails, remove the documents again."""
    created: list[Path] = []
    try:
        for name, content in documents:
            file = folder / name
            if not create_output_file(file, content.encode(), make_folders=True):
                raise UsageError(f"{file} already exists: {hint}")
            created.append(file)
        yield
    except BaseException:
        for file in created:
            file.unlink(missing_ok=True)
        raise


def _format_scan(
    probes: Sequence[ProbeResult], comparison: ScanComparison, written: Mapping[FoundServer, str], place_count: int
) -> str:
    found_servers = [server for probe in probes for server in probe.servers]
    failed_probes = [probe for probe in probes if probe.error is not None]
    rows = [
        (
            server.address.removeprefix("https://"),
            comparison.servers.get(server, "-")[:20],
            (f"{server.maker} {server.model}".strip() or "-")[:26],
            (server.serial or "-")[:16],
            (server.bmc or "-")[:12],
            str(len(server.nics)),
        )
        for server in found_servers
    ]
    lines = [format_table(("ADDRESS", "SERVER", "MODEL", "SERIAL", "BMC", "NICS"), rows), ""] if rows else []
    for difference in comparison.differences:
        machine = f"{difference.server} at {difference.address}" if difference.server else difference.address
        lines.append(wrap_text(f"{difference.kind}: {machine}: {difference.message}"))
    for probe in failed_probes:
        lines.append(wrap_text(f"could not read {probe.address}: {probe.error}"))
    for path in written.values():
        lines.append(f"wrote {path}")
    for server in found_servers:
        if server not in comparison.servers and server.missing_identity is not None:
            lines.append(wrap_text(f"no document for {server.address}: {server.missing_identity}"))
    if lines and lines[-1]:
        lines.append("")
    addresses = f"{place_count:,} {'address' if place_count == 1 else 'addresses'}"
    counts = [format_count(len(found_servers), "machine"), format_count(len(comparison.differences), "difference")]
    if failed_probes:
        counts.append(f"{len(failed_probes)} not read")
    return "\n".join([*lines, f"{addresses} scanned: {', '.join(counts)}"])
