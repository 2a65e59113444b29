"""`gitboot bmc scan`: find BMCs in a network, compare them with the fleet, and write documents of new machines."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from gitboot.bmc.credentials import CredentialDirectory
from gitboot.bmc.scan import Comparison, FoundServer, Probe, choose_name, compare, list_addresses, render_document, scan
from gitboot.bmc.worker_pool import open_connections
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
from gitboot.files import read_text, write_output_file
from gitboot.fleet.identities import BmcAccess, Machine
from gitboot.fleet.identities import list_machines as described_machines
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
            "with --detailed-exitcode: a machine is swapped, moved, missing or unknown, or has other network "
            "cards than its document"
        ),
        Exit.INVALID: "the fleet has errors",
        Exit.PARTIAL: "a service responded, and gitboot could not read it",
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
    help="Write new documents to OUT/servers. Default: write none.",
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
        from gitboot.cli.evaluated_fleet import load_fleet

        machines = list(described_machines(load_fleet(path, rev)).values())
    asked = list_addresses([" ".join(words) for _, words in read_places(places)], ports)
    answers = scan_places(asked, credentials, name, verify=not no_verify, parallel=parallel)
    found = [each for answer in answers for each in answer.servers]
    failed = [each for each in answers if each.error is not None]
    compared = compare(found, machines, asked, [each.address for each in failed])
    written = _write_documents(out, found, compared, {each.name for each in machines}, name, verify=not no_verify)
    files = {each: str(file) for each, file in written.items()}
    items = [
        {**to_json_value(each), "server": compared.servers.get(each), "document": files.get(each)} for each in found
    ]
    unread = [{"address": each.address, "why": each.error} for each in failed]
    write_outputs(
        outputs,
        text=partial(_format_scan, answers, compared, written, len(asked)),
        json=partial(format_document, items=items, unread=unread, differences=compared.differences),
    )
    if failed:
        sys.exit(Exit.PARTIAL)
    if compared.differences and detailed_exitcode:
        sys.exit(Exit.CHANGES)


def read_places(places: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the source and the words of each place on the command line, and of each line of a file without comments."""
    for place in places:
        if not Path(place).is_file():
            yield place, [place]
            continue
        for number, line in enumerate(read_text(Path(place)).splitlines(), start=1):
            if words := line.partition("#")[0].split():
                yield f"{place}:{number}", words


def require_credentials(directory: Path | None) -> Path:
    if directory is None:
        raise UsageError("--credentials is needed: the directory that has NAME/username and NAME/password")
    return directory


def scan_places(
    places: Sequence[str], credentials: Path | None, name: str, *, verify: bool, parallel: int
) -> list[Probe]:
    """Return the responses of Redfish services, in the order of ``places``."""
    from gitboot.bmc.redfish.client import BmcConnection

    credentials = require_credentials(credentials)
    CredentialDirectory(credentials).read(name)  # raises one error here instead of an error for each address
    order = {address: number for number, address in enumerate(places)}
    with open_connections(credentials) as kept:

        def connect(address: str) -> BmcConnection:
            access = BmcAccess(address=address, system=None, credentials=name, verify=verify, ca=None)
            driver = kept.connect(
                SystemUuid(address), address, access, is_in_ledger=True
            )  # the operator named the address on the command line
            assert isinstance(driver, BmcConnection)  # noqa: S101 - `addresses` makes no other
            return driver

        with show_progress("addresses", len(places)) as advance:
            answers = list(scan(places, connect, parallel=parallel, on_result=lambda: advance(1)))
    return sorted((each for each in answers if each.servers or each.error), key=lambda each: order[each.address])


def _write_documents(
    out: Path | None,
    services: Sequence[FoundServer],
    comparison: Comparison,
    existing_names: Collection[str],
    credentials: str,
    *,
    verify: bool,
) -> dict[FoundServer, Path]:
    written: dict[FoundServer, Path] = {}
    names = set(existing_names)
    for each in services:
        if out is None or each in comparison.servers or each.missing_identity is not None:
            continue
        name = choose_name(each, names)
        names.add(name)
        written[each] = out / "servers" / f"{name}.yaml"
        text = render_document(each, name, credentials, verify=verify)
        write_output_file(written[each], [text.encode()], make_folders=True)
    return written


def _format_scan(
    answers: Sequence[Probe], comparison: Comparison, written: dict[FoundServer, Path], place_count: int
) -> str:
    found = [each for answer in answers for each in answer.servers]
    rows = [
        (
            each.address.removeprefix("https://"),
            comparison.servers.get(each, "-")[:20],
            (f"{each.maker} {each.model}".strip() or "-")[:26],
            (each.serial or "-")[:16],
            (each.bmc or "-")[:12],
            str(len(each.nics)),
        )
        for each in found
    ]
    lines = [format_table(("ADDRESS", "SERVER", "MODEL", "SERIAL", "BMC", "NICS"), rows), ""] if rows else []
    for difference in comparison.differences:
        who = f"{difference.server} at {difference.address}" if difference.server else difference.address
        lines.append(wrap_text(f"{difference.kind}: {who}: {difference.message}"))
    lines += [wrap_text(f"could not read {each.address}: {each.error}") for each in answers if each.error is not None]
    lines += [f"wrote {path}" for path in written.values()]
    lacking = [each for each in found if each not in comparison.servers and each.missing_identity is not None]
    lines += [wrap_text(f"no document for {each.address}: {each.missing_identity}") for each in lacking]
    if lines and lines[-1]:
        lines.append("")
    unread = sum(each.error is not None for each in answers)
    ends = [format_count(len(found), "machine"), format_count(len(comparison.differences), "difference")]
    if unread:
        ends.append(f"{unread} not read")
    return "\n".join(
        [*lines, f"{place_count:,} {'address' if place_count == 1 else 'addresses'} scanned: {', '.join(ends)}"]
    )
