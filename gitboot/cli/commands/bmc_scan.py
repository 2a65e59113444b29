"""`gitboot bmc scan`: which machines are behind the BMCs of a network, and whether documents say so."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from gitboot.bmc.scan import Comparison, FoundServer, Probe, addresses, compare, document_for, name_for, scan
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Exit
from gitboot.cli.options import OutputOption, credentials_option, output_option, rev_option, write_outputs
from gitboot.cli.terminal import progress, table, wrapped
from gitboot.errors import UsageError
from gitboot.files import write_output_file
from gitboot.fleet.identities import BmcAccess, Machine
from gitboot.fleet.identities import machines as machines_of
from gitboot.jsonio import document, facts
from gitboot.model.scalars import SystemUuid
from gitboot.text import count


@click.command("scan", context_settings={"auto_envvar_prefix": "GITBOOT"})
@click.argument("places", nargs=-1, required=True, metavar="NETWORK|ADDRESS|FILE...")
@credentials_option
@click.option(
    "--as", "name", required=True, metavar="NAME", help="The credentials to ask with, as documents name them."
)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="The fleet to compare with: a directory, a Git work tree or a bare repository. Default: none, and every "
    "machine is unknown.",
)
@rev_option
@click.option("--port", "ports", multiple=True, default=[443], type=click.IntRange(1, 65535), help="Default: 443.")
@click.option(
    "--no-verify", is_flag=True, help="Trust any certificate, and say so in documents; access.toml must allow it."
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Write documents to OUT/servers. Default: none."
)
@click.option("--parallel", default=64, type=click.IntRange(1, 256), help="Addresses at a time. Default: 64.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 where anything is not as documents say.")
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
    """Find Redfish services, and compare them with the fleet.

    A FILE has a network, an address or a URL on each line. Who answers as Redfish is asked with the credentials in
    DIR/NAME, where access.toml there lets them go, and is only read. With --out each machine that no document describes
    gets one, for a pull request: it is Parked, so nothing boots or is set by it.

    Exit codes: 0; 8 where something answered and could not be read; with --detailed-exitcode 2 where a machine is
    swapped, moved, missing, unknown, or has other network cards than its document says.
    """
    machines: list[Machine] = []
    if path is not None:
        from gitboot.cli.evaluated_fleet import load_fleet

        machines = list(machines_of(load_fleet(path, rev)).values())
    asked = addresses(list(_listed(places)), ports)
    answers = scanned(asked, credentials, name, verify=not no_verify, parallel=parallel)
    found = [each for answer in answers for each in answer.found]
    failed = [each for each in answers if each.why_not is not None]
    compared = compare(found, machines, asked, [each.address for each in failed])
    written = _write(out, found, compared, {each.name for each in machines}, name, verify=not no_verify)
    files = {each: str(file) for each, file in written.items()}
    items = [{**facts(each), "server": compared.servers.get(each), "document": files.get(each)} for each in found]
    unread = [{"address": each.address, "why": each.why_not} for each in failed]
    write_outputs(
        outputs,
        text=partial(_as_text, answers, compared, written, len(asked)),
        json=partial(document, items=items, unread=unread, differences=compared.differences),
    )
    if failed:
        sys.exit(Exit.PARTIAL)
    if compared.differences and detailed_exitcode:
        sys.exit(Exit.CHANGES)


def _listed(places: Sequence[str]) -> Iterator[str]:
    for place in places:
        if not Path(place).is_file():
            yield place
            continue
        try:
            lines = Path(place).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{place} cannot be read: {error}") from None
        yield from filter(None, (line.partition("#")[0].strip() for line in lines))


def scanned(asked: Sequence[str], credentials: Path | None, name: str, *, verify: bool, parallel: int) -> list[Probe]:
    """What answers, in the order of addresses."""
    from gitboot.bmc.credentials import CredentialDirectory
    from gitboot.bmc.redfish.client import BmcConnection
    from gitboot.bmc.worker_pool import connections

    if credentials is None:
        raise UsageError("--credentials is needed: the directory that has NAME/username and NAME/password")
    CredentialDirectory(credentials).of(name)  # says at once, and not of each address, what is missing
    order = {address: number for number, address in enumerate(asked)}
    with connections(credentials) as kept:

        def connect(address: str) -> BmcConnection:
            access = BmcAccess(address=address, system=None, credentials=name, verify=verify, ca=None)
            driver = kept.to(SystemUuid(address), address, access, known=True)  # named by whoever typed the command
            assert isinstance(driver, BmcConnection)  # noqa: S101 - `addresses` makes no other
            return driver

        with progress("addresses", len(asked)) as advance:
            answers = list(scan(asked, connect, parallel=parallel, each=lambda: advance(1)))
    return sorted((each for each in answers if each.found or each.why_not), key=lambda each: order[each.address])


def _write(
    out: Path | None,
    found: Sequence[FoundServer],
    compared: Comparison,
    taken: Collection[str],
    credentials: str,
    *,
    verify: bool,
) -> dict[FoundServer, Path]:
    written: dict[FoundServer, Path] = {}
    names = set(taken)
    for each in found:
        if out is None or each in compared.servers or each.lacks is not None:
            continue
        name = name_for(each, names)
        names.add(name)
        written[each] = out / "servers" / f"{name}.yaml"
        text = document_for(each, name, credentials, verify=verify)
        write_output_file(written[each], [text.encode()], make_folders=True)
    return written


def _as_text(answers: Sequence[Probe], compared: Comparison, written: dict[FoundServer, Path], asked: int) -> str:
    found = [each for answer in answers for each in answer.found]
    rows = [
        (
            each.address.removeprefix("https://"),
            compared.servers.get(each, "-")[:20],
            (f"{each.maker} {each.model}".strip() or "-")[:26],
            (each.serial or "-")[:16],
            (each.bmc or "-")[:12],
            str(len(each.nics)),
        )
        for each in found
    ]
    lines = [table(("ADDRESS", "SERVER", "MODEL", "SERIAL", "BMC", "NICS"), rows), ""] if rows else []
    for difference in compared.differences:
        who = f"{difference.server} at {difference.address}" if difference.server else difference.address
        lines.append(wrapped(f"{difference.what}: {who}: {difference.message}"))
    lines += [wrapped(f"not read: {each.address}: {each.why_not}") for each in answers if each.why_not is not None]
    lines += [f"wrote {path}" for path in written.values()]
    lacking = [each for each in found if each not in compared.servers and each.lacks is not None]
    lines += [wrapped(f"no document for {each.address}: {each.lacks}") for each in lacking]
    if lines and lines[-1]:
        lines.append("")
    unread = sum(each.why_not is not None for each in answers)
    ends = [count(len(found), "machine"), count(len(compared.differences), "difference")]
    if unread:
        ends.append(f"{unread} not read")
    return "\n".join([*lines, f"{asked:,} {'address' if asked == 1 else 'addresses'} asked: {', '.join(ends)}"])
