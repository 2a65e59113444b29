"""`gitboot bmc scan` and `gitboot bmc enroll`: find BMCs, and write what an instance needs to manage them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final, NoReturn

import click
from msgspec import Struct, structs

from gitboot.bmc.credentials import (
    CredentialDirectory,
    Credentials,
    EnrolledBmc,
    Trust,
    extend_access_file,
    get_certificate_key,
)
from gitboot.bmc.scan import (
    Discrepancy,
    DiscrepancyKind,
    FirstContact,
    FoundNic,
    FoundServer,
    ProbeResult,
    ScanComparison,
    choose_name,
    compare_servers,
    list_addresses,
    open_pinned_connection,
    read_certificates,
    read_ipmi_server,
    render_document,
    scan,
)
from gitboot.bmc.worker_pool import open_connections
from gitboot.cli.evaluated_fleet import find_fleet_file, load_fleet
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import confirm_or_abort
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    combine_options,
    credentials_option,
    current_time,
    output_option,
    path_option,
    read_operator_name,
    rev_option,
    write_outputs,
)
from gitboot.cli.terminal import format_table, show_progress, wrap_text
from gitboot.controller.instance.state_directory import LEDGER, has_ledger, lock, make_private, require_active
from gitboot.controller.operator_requests import BEGIN
from gitboot.controller.records.ledger_trust import InitMode
from gitboot.errors import OperatorError, TemporaryError, UsageError
from gitboot.files import create_output_file, is_file, read_text, write_output_file
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.identities import BmcAccess, Machine, list_machines
from gitboot.fleet.yaml import insert_field
from gitboot.jsonio import format_document, to_json_value
from gitboot.ledger import instance_tables
from gitboot.ledger.open_ledger import open_for_reading, open_ledger
from gitboot.model.scalars import MacAddress, Malformed, SystemUuid, parse_fingerprint, parse_mac, parse_name
from gitboot.text import format_count, format_suggestion, printable, quote_words

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
        machines = list(list_machines(load_fleet(path, rev)).values())
    addresses = list_addresses([" ".join(words) for _, words in read_place_lines(places)], ports)
    probes = scan_places(addresses, credentials, name, verify=not no_verify, parallel=parallel)
    found = [each for probe in probes for each in probe.servers]
    failed = [each for each in probes if each.error is not None]
    comparison = compare_servers(found, machines, addresses, [each.address for each in failed])
    render = partial(render_document, credentials=name, verify=not no_verify)
    documents = _build_documents(found, comparison, {}, {each.name for each in machines}, render)
    written = {each: str(out / file) for each, (file, _) in documents.items()} if out is not None else {}
    if out is not None:
        with _create_documents(out, documents.values(), "move the file, or pass the fleet that contains it as --path"):
            pass
    items = [
        {**to_json_value(each), "server": comparison.servers.get(each), "document": written.get(each)} for each in found
    ]
    unread = [{"address": each.address, "why": each.error} for each in failed]
    write_outputs(
        outputs,
        text=partial(_format_scan, probes, comparison, written, len(addresses)),
        json=partial(format_document, items=items, unread=unread, differences=comparison.differences),
    )
    if failed:
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
    return sorted((each for each in probes if each.servers or each.error), key=lambda each: order[each.address])


def _format_scan(
    probes: Sequence[ProbeResult], comparison: ScanComparison, written: Mapping[FoundServer, str], place_count: int
) -> str:
    found = [each for probe in probes for each in probe.servers]
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
    lines += [wrap_text(f"could not read {each.address}: {each.error}") for each in probes if each.error is not None]
    lines += [f"wrote {path}" for path in written.values()]
    incomplete = [each for each in found if each not in comparison.servers and each.missing_identity is not None]
    lines += [wrap_text(f"no document for {each.address}: {each.missing_identity}") for each in incomplete]
    if lines and lines[-1]:
        lines.append("")
    unread = sum(each.error is not None for each in probes)
    ends = [format_count(len(found), "machine"), format_count(len(comparison.differences), "difference")]
    ends += [f"{unread} not read"] if unread else []
    return "\n".join(
        [*lines, f"{place_count:,} {'address' if place_count == 1 else 'addresses'} scanned: {', '.join(ends)}"]
    )


class _BmcLine(Struct, frozen=True, kw_only=True):
    """One BMC, network or host to enrol, and what the operator states about it."""

    place: str
    name: str | None = None  # the name of the server; None: gitboot chooses a name
    macs: tuple[MacAddress, ...] = ()  # for a machine whose BMC shows no network interfaces


_WEAKNESSES: Final = {
    "http": "HTTP does not use certificates, and does not encrypt the password",
    "ipmi": "IPMI does not use certificates, and any client can get a hash of the password",
}


_NEXT: Final = """\
Done. Next steps:

  gitboot validate {path}
  git -C {path} add --all
  git -C {path} commit -m 'Enrol BMCs'
  gitboot run {path} --state {state} --credentials {credentials} --out OUTPUT   # if no instance runs yet"""
_SILENT: Final = "no Redfish service responded"


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example=("gitboot bmc enroll bmcs.txt --credentials creds --as rack \\\n    --path fleet --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "gitboot wrote the missing documents, or all documents exist already",
        Exit.INVALID: "the fleet has errors",
        Exit.PARTIAL: "gitboot could not enrol all BMCs; the output shows why",
        Exit.USAGE: "an option is wrong, or gitboot cannot change a file",
        Exit.INTERRUPTED: "you did not confirm",
    },
)
@places_options
@path_option
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of the instance that will manage the servers. gitboot writes its ledger into the Fleet. "
    "If there is no ledger yet, gitboot creates one that begins with `adopt`. Default: the variable GITBOOT_STATE. If "
    "neither is set, gitboot changes no ledger.",
)
@click.option(
    "--policy",
    metavar="NAME",
    help="The BootPolicy of the new servers. Default: the servers are Parked, so gitboot does not manage them yet.",
)
@port_option
@click.option(
    "--allow-http",
    is_flag=True,
    help="Also enrol BMCs with an http:// address. They receive the password unencrypted, and have no certificate.",
)
@click.option(
    "--allow-ipmi",
    is_flag=True,
    help="Also enrol BMCs with an ipmi:// address. IPMI sends a hash of the password to any client.",
)
@click.option(
    "--fingerprints",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A file with an address and the SHA-256 of its certificate on each line. gitboot enrols only BMCs with these "
    "certificates, even if access.toml has another certificate. You need not confirm the certificates.",
)
@parallel_option
@click.option("--dry-run", is_flag=True, help="Show the certificates, send no credentials, and write nothing.")
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation. Without a terminal, the command needs this option."
)
@output_option("text", "json")
@evaluator_command
def enroll(
    places: tuple[str, ...],
    credentials: Path | None,
    name: str,
    path: Path,
    state: Path | None,
    policy: str | None,
    ports: tuple[int, ...],
    allow_http: bool,
    allow_ipmi: bool,
    fingerprints: Path | None,
    parallel: int,
    dry_run: bool,
    yes: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Add BMCs and their servers to a fleet.

    gitboot connects to each NETWORK, ADDRESS or FILE. Each line of FILE contains a network, an address or a URL. A name
    for the server and its MAC addresses may follow. First, gitboot shows the SHA-256 of each certificate. It sends
    requests and passwords only after you confirm. Then gitboot reads the BMCs, shows the changes, and waits for a
    second confirmation.

    gitboot writes a document with provision 0 for each new machine, so it does not install the machine. Without
    --policy, the machine is Parked. gitboot adds the BMCs and their certificates to the access.toml of the credentials.
    With --state, it also writes the ledger into the Fleet. If this command creates the ledger, the ledger begins with
    `adopt`. gitboot does not change the BMCs.

    With -o json, gitboot prints what it read and wrote at the end, and asks its questions on standard error.
    """
    report, fleet = _EnrollOutput(outputs), load_fleet(path, None)
    credentials = require_credentials(credentials)
    trusted = CredentialDirectory(credentials).read(name)
    find_fleet_file(path, fleet)  # raises if gitboot cannot write documents there
    if policy is not None and policy not in fleet.policies:
        hint = format_suggestion(policy, fleet.policies, f"the fleet's policies are in {path / 'policies'}")
        raise UsageError(f"there is no BootPolicy {policy!r}; {hint}")
    machines = list(list_machines(fleet).values())
    lines = _map_addresses_to_lines(_read_lines(places), ports)
    for scheme, is_allowed, option in (("http", allow_http, "--allow-http"), ("ipmi", allow_ipmi, "--allow-ipmi")):
        if not is_allowed and (first := next((each for each in lines if each.startswith(f"{scheme}:")), None)):
            raise UsageError(f"{first}: {_WEAKNESSES[scheme]}. Use https://, or add {option}")
    contacts = read_certificates(list(lines), parallel=parallel)
    expected = _read_fingerprints(fingerprints) if fingerprints is not None else None
    faults = {each.address: _find_certificate_fault(each, trusted.trust, name, expected) for each in contacts}
    refused = {address: fault for address, fault in faults.items() if fault is not None}
    usable = [each for each in contacts if each.error is None and each.address not in refused]
    report.facts["contacts"] = [
        {
            "address": each.address,
            "certificate": each.certificate,
            "isKnown": _has_known_certificate(each, trusted.trust, name),
            "refused": refused.get(each.address),
            "error": each.error,
        }
        for each in contacts
    ]
    report.print_text(_format_contacts(contacts, trusted.trust, name, refused))
    if not usable:
        report.print_text("there are no BMCs to enrol, so gitboot did not send credentials")
        report.write_and_exit(Exit.PARTIAL)
    if dry_run:
        report.write_and_exit(Exit.PARTIAL if refused else Exit.FINE)
    if expected is None or any(each.certificate is None for each in usable):
        report.confirm(
            f"gitboot has not sent credentials yet. Send the user name and password in {name} to these BMCs?",
            yes=yes,
        )

    with show_progress("BMCs", len(usable)) as advance:
        probes = _probe_bmcs(usable, trusted.credentials, parallel, lambda: advance(1))
    found = [_add_macs(each, lines[each.address]) for probe in probes for each in probe.servers]
    comparison = compare_servers(found, machines, list(lines), [each.address for each in probes if each.error])
    render = partial(render_document, credentials=name, policy=policy)
    documents = _build_documents(found, comparison, lines, {each.name for each in machines}, render)
    good = {each.address for each in found if each in comparison.servers or each in documents}
    enrolled = [
        EnrolledBmc(bmc=_build_access(each.address, name), ip=each.ip, certificate=each.certificate)
        for each in usable
        if each.address in good and each.ip is not None
    ]
    own = [each.bmc for each in machines if each.bmc is not None and each.bmc.credentials == name]
    access, text = extend_access_file(credentials, name, enrolled, own)
    report.facts |= {
        "items": [_build_server_item(each, comparison, documents.get(each), path) for each in found],
        "unread": [{"address": each.address, "why": each.error or _SILENT} for each in probes if not _is_read(each)],
        "differences": _list_differences(comparison),
    }
    report.print_text(_format_found_servers(found, comparison, documents, probes))
    steps = [(path / file, "a new document") for file, _ in documents.values()]
    steps += [(access, f"lets in {format_count(len(enrolled), 'BMC')}")] if text is not None else []
    ledger = _plan_ledger_changes(state, path, fleet) if state is not None and good else None
    steps += ledger.steps if ledger is not None else ()
    is_complete = (
        not refused
        and not any(each.error is not None and "/" not in lines[each.address].place for each in contacts)
        and len(good) == len({each.address for each in found})
        and all(map(_is_read, probes))
    )
    if not steps:
        report.print_text("there is nothing to add, so gitboot did not write any files")
        report.write_and_exit(Exit.FINE if is_complete else Exit.PARTIAL)
    report.print_text("\n".join(["gitboot would write:", *(f"    {file}: {change}" for file, change in steps)]))
    report.confirm("Write this?", yes=yes)
    if extend_access_file(credentials, name, enrolled, own) != (access, text):
        raise UsageError(f"{access} changed in the meantime; repeat the command")
    with _create_documents(path, documents.values(), "move the file and repeat the command"):
        load_fleet(path, None)  # raises if a new document contradicts another one
        with _restore_on_error(access) if text is not None else nullcontext():
            if text is not None:
                write_output_file(access, [text.encode()])
            if state is not None and ledger is not None:
                _write_ledger(state, path, fleet, ledger)
    report.facts["written"] = [str(file) for file, _ in steps]
    report.print_text(
        _NEXT.format(path=quote_words(path), state=quote_words(state or "STATE"), credentials=quote_words(credentials))
    )
    report.write_and_exit(Exit.FINE if is_complete else Exit.PARTIAL)


@contextmanager
def _create_documents(folder: Path, documents: Iterable[tuple[str, str]], hint: str) -> Iterator[None]:
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


@contextmanager
def _restore_on_error(file: Path) -> Iterator[None]:
    """Restore a file if the block fails."""
    before = file.read_bytes() if file.exists() else None
    try:
        yield
    except BaseException:
        with suppress(OSError, UsageError):  # the first error names the cause
            if before is None:
                file.unlink(missing_ok=True)
            else:
                write_output_file(file, [before])
        raise


class _EnrollOutput:
    """The output of a run: text, which is printed immediately, and a JSON document, which is printed at the end."""

    def __init__(self, outputs: Sequence[OutputOption]) -> None:
        self._outputs = outputs
        self._is_text_on_stderr = all(each.format != "text" or each.file is not None for each in outputs)
        self._texts: list[str] = []
        self.facts: dict[str, Any] = {"contacts": [], "items": [], "unread": [], "differences": (), "written": []}

    def print_text(self, text: str) -> None:
        self._texts.append(text)
        click.echo(text, err=self._is_text_on_stderr)

    def confirm(self, question: str, *, yes: bool) -> None:
        self.print_text(question)
        confirm_or_abort(yes=yes, err=self._is_text_on_stderr)

    def write_and_exit(self, exit_code: Exit) -> NoReturn:
        for each in self._outputs:
            if each.format == "json":
                each.write(format_document(**self.facts))
            elif each.file is not None:
                each.write("\n".join(self._texts))
        sys.exit(exit_code)


def _read_lines(places: Sequence[str]) -> list[_BmcLine]:
    found = []
    for source, words in read_place_lines(places):
        try:
            has_name = len(words) > 1 and not _is_mac(words[1])
            macs = tuple(parse_mac(each) for each in words[1 + has_name :])
            found.append(_BmcLine(place=words[0], name=parse_name(words[1]) if has_name else None, macs=macs))
        except Malformed as error:
            raise UsageError(f"{source}: {error.message}; {error.hint}") from None
    return found


def _is_mac(text: str) -> bool:
    try:
        return bool(parse_mac(text))
    except Malformed:
        return False


_SCHEMES: Final = ("https", "http", "ipmi")


def _map_addresses_to_lines(lines: Sequence[_BmcLine], ports: Sequence[int]) -> dict[str, _BmcLine]:
    """Return the line for each BMC, by the address of the BMC."""
    found: dict[str, _BmcLine] = {}
    for line in lines:
        addresses = list_addresses([line.place], ports, schemes=_SCHEMES)
        if len(addresses) > 1 and (line.name is not None or line.macs):
            raise UsageError(f"{line.place} has {len(addresses)} addresses; only one can have this name or MAC address")
        found |= dict.fromkeys(addresses, line)
    list_addresses(list(found), ports, schemes=_SCHEMES)  # raises if there are too many
    names = [line.name for line in found.values() if line.name is not None]
    if duplicates := sorted({each for each in names if names.count(each) > 1}):
        raise UsageError(f"two BMCs are named {duplicates[0]}; give each server a unique name")
    return found


def _read_fingerprints(file: Path) -> dict[str, str]:
    """Return the fingerprints in a file, by the key that an access file uses for each BMC."""
    found: dict[str, str] = {}
    for number, text in enumerate(read_text(file).splitlines(), start=1):
        try:
            if len(words := text.partition("#")[0].split()) == 2:
                address = list_addresses([words[0]], [443], schemes=_SCHEMES)[0]
                found[get_certificate_key(address)] = parse_fingerprint(words[1])
            elif words:
                raise UsageError("expected an address and its certificate's SHA-256 digest")
        except Malformed as error:
            raise UsageError(f"{file}:{number}: {error.message}; {error.hint}") from None
        except UsageError as error:
            raise UsageError(f"{file}:{number}: {error}") from None
    return found


def _build_access(address: str, credentials: str) -> BmcAccess:
    return BmcAccess(address=address, system=None, credentials=credentials, verify=True, ca=None)


def _find_certificate_fault(
    contact: FirstContact, trust: Trust, name: str, expected_certificates: Mapping[str, str] | None
) -> str | None:
    """Return the reason if gitboot must not send credentials to a BMC, otherwise None."""
    if contact.certificate is None:
        return None
    if expected_certificates is not None:
        wanted = expected_certificates.get(get_certificate_key(contact.address))
        if wanted == contact.certificate:
            return None
        if wanted is None:
            return "the --fingerprints file does not list this BMC"
        return f"the --fingerprints file contains {wanted} for this BMC"
    pinned = trust.find_certificate(_build_access(contact.address, name))
    if pinned in (None, contact.certificate):
        return None
    return (
        f"the certificate changed: {trust.file} contains {pinned}. gitboot will not send requests to this BMC. If the "
        "BMC has a new certificate, compare the new certificate's SHA-256 digest with the digest that the BMC itself "
        "shows. If they match, write the address and the digest into FILE, and add --fingerprints FILE"
    )


def _has_known_certificate(contact: FirstContact, trust: Trust, name: str) -> bool:
    """Return whether an access file already contains the certificate of a BMC."""
    certificate = contact.certificate
    return certificate is not None and trust.find_certificate(_build_access(contact.address, name)) == certificate


_MAX_UNREACHABLE: Final = 10


def _format_contacts(contacts: Sequence[FirstContact], trust: Trust, name: str, refused: Mapping[str, str]) -> str:
    """Return the certificates as lines for a --fingerprints file. Refused and missing certificates become comments."""
    lines = []
    for each in contacts:
        if each.address in refused:
            lines.append(f"# {each.address} {each.certificate} refused: {printable(refused[each.address])}")
        elif each.certificate is not None:
            new = "" if _has_known_certificate(each, trust, name) else "  # new"
            lines.append(f"{each.address} {each.certificate}{new}")
        elif each.error is None:
            lines.append(f"# {each.address}: {_WEAKNESSES[each.address.partition(':')[0]]}")
    unreachable = [each for each in contacts if each.error is not None]
    shown, hidden = unreachable[:_MAX_UNREACHABLE], unreachable[_MAX_UNREACHABLE:]
    lines += [f"# {each.address}: no TLS service: {printable(each.error or '')}" for each in shown]
    lines += [f"# {len(hidden):,} more addresses without a TLS service"] if hidden else []
    return "\n".join(lines)


def _probe_bmcs(
    contacts: Sequence[FirstContact], credentials: Credentials, parallel: int, on_result: Callable[[], None]
) -> list[ProbeResult]:
    """Read the machines, in the order of the contacts.

    This is the first time that gitboot sends credentials to the BMCs.
    """
    by_address = {each.address: each for each in contacts}
    found = list(
        scan(
            [each.address for each in contacts if not each.address.startswith("ipmi:")],
            lambda address: open_pinned_connection(by_address[address], credentials),
            parallel=parallel,
            on_result=on_result,
        )
    )
    for each in contacts:
        if each.address.startswith("ipmi:"):
            try:
                found.append(ProbeResult(address=each.address, servers=(read_ipmi_server(each, credentials),)))
            except (OperatorError, TemporaryError) as error:
                found.append(ProbeResult(address=each.address, error=str(error)))
            on_result()
    order = {address: number for number, address in enumerate(by_address)}
    return sorted(found, key=lambda each: order[each.address])


def _is_read(probe: ProbeResult) -> bool:
    return probe.error is None and bool(probe.servers)


def _list_differences(comparison: ScanComparison) -> tuple[Discrepancy, ...]:
    kinds = (DiscrepancyKind.UNKNOWN, DiscrepancyKind.MISSING)
    return tuple(each for each in comparison.differences if each.kind not in kinds)


def _build_server_item(
    found_server: FoundServer, comparison: ScanComparison, document: tuple[str, str] | None, path: Path
) -> dict[str, object]:
    """Return a machine as in `gitboot bmc scan -o json`. For a new server, include the name that the server gets."""
    server = PurePath(document[0]).stem if document is not None else comparison.servers.get(found_server)
    return {
        **to_json_value(found_server),
        "server": server,
        "document": str(path / document[0]) if document is not None else None,
    }


def _add_macs(found_server: FoundServer, line: _BmcLine) -> FoundServer:
    """Add the MAC addresses that the operator specified, if the BMC does not report MAC addresses."""
    if found_server.nics or not found_server.is_only_system:
        return found_server
    return structs.replace(found_server, nics=tuple(FoundNic(name="", mac=mac) for mac in line.macs))


def _build_documents(
    found_servers: Sequence[FoundServer],
    comparison: ScanComparison,
    lines: Mapping[str, _BmcLine],
    used_names: Collection[str],
    render: Callable[[FoundServer, str], str],
) -> dict[FoundServer, tuple[str, str]]:
    """Return the path and text of the document for each new machine. ``lines`` may contain names for these machines."""
    documents: dict[FoundServer, tuple[str, str]] = {}
    names = {*used_names, *(line.name for line in lines.values() if line.name is not None)}
    for each in found_servers:
        if each in comparison.servers or each.missing_identity is not None:
            continue
        chosen = lines[each.address].name if each.address in lines and each.is_only_system else None
        if chosen is not None and chosen in used_names:
            raise UsageError(f"Server/{chosen} already exists: give the BMC at {each.address} a different name")
        name = chosen or choose_name(each, names)
        names.add(name)
        documents[each] = f"servers/{name}.yaml", render(each, name)
    return documents


_HINT: Final = (
    "gitboot cannot write a document for this machine. If the MAC address is missing, add it after the BMC's address "
    "in FILE, for example: 10.112.0.13 web01 52:54:00:12:34:56"
)


def _format_found_servers(
    found_servers: Sequence[FoundServer],
    comparison: ScanComparison,
    documents: Mapping[FoundServer, tuple[str, str]],
    probes: Sequence[ProbeResult],
) -> str:
    rows = [
        (
            each.address,
            comparison.servers.get(each) or (documents[each][0] if each in documents else "-"),
            f"{each.maker} {each.model}".strip() or "-",
            each.identity.uuid or "-",
        )
        for each in found_servers
    ]
    lines = [format_table(("ADDRESS", "SERVER", "MODEL", "UUID"), rows, shrinkable=(2,))] if rows else []
    lines += [
        wrap_text(f"{each.address}: {each.missing_identity}. {_HINT}")
        for each in found_servers
        if each not in comparison.servers and each.missing_identity is not None
    ]
    lines += [wrap_text(f"{each.address}: {each.error or _SILENT}") for each in probes if not _is_read(each)]
    lines += [
        wrap_text(f"{each.kind}: {each.server} at {each.address}: {each.message}")
        for each in _list_differences(comparison)
    ]
    return "\n".join(lines)


class _LedgerPlan(Struct, frozen=True, kw_only=True):
    """The changes that gitboot will write so that the Fleet document names the ledger of an instance."""

    identity: str | None  # the ledger to write into the Fleet; None: there is no ledger yet
    steps: tuple[tuple[Path, str], ...]  # what gitboot will write, and how it describes the change


_EXAMPLE_IDENTITY: Final = "0" * 32


def _plan_ledger_changes(state: Path, path: Path, fleet: FleetRepository) -> _LedgerPlan | None:
    """Return the changes that are needed for the Fleet document to name a ledger, or None if it already names one."""
    spec = fleet.fleet.spec
    named = spec.provisioning.ledger or next((each.ledger for each in spec.sites if each.ledger is not None), None)
    identity = None
    if has_ledger(state):
        require_active(state)
        with open_for_reading(state / LEDGER) as store:
            identity = store.progress[0]
    if named is not None:
        if identity != spec.provisioning.ledger:
            click.echo(
                f"the Fleet already names the ledger {named}, so gitboot does not change the Fleet or {state}", err=True
            )
        return None
    file = find_fleet_file(path, fleet)
    _add_ledger_field(file, fleet, identity or _EXAMPLE_IDENTITY)  # raises if gitboot cannot edit the file
    new = (state, "a new ledger, and a request to run `gitboot records begin adopt` with the first accepted commit")
    steps = (*((new,) if identity is None else ()), (file, "the line provisioning.ledger"))
    return _LedgerPlan(identity=identity, steps=steps)


def _add_ledger_field(file: Path, fleet: FleetRepository, identity: str) -> bytes:
    """Return the Fleet file with provisioning.ledger added. Raises `UsageError` if gitboot cannot edit the file."""
    index, data = fleet.origins[Id("Fleet", fleet.fleet.metadata.name)].document, file.read_bytes()
    for name in ("evidence", "attempts"):
        with suppress(KeyError):
            return insert_field(data, index, ("spec", "provisioning", name), "ledger", identity)
    for name in ("baseURL", "endpoint", "unknownServers"):
        with suppress(KeyError):
            return insert_field(data, index, ("spec", name), "provisioning", {"ledger": identity})
    raise UsageError(
        f"gitboot cannot add a line to {file}. Unset GITBOOT_STATE, then repeat the command without --state. After the "
        "first `gitboot run`, add the `provisioning.ledger` line that `gitboot status` prints"
    )


def _write_ledger(state: Path, path: Path, fleet: FleetRepository, plan: _LedgerPlan) -> None:
    identity = plan.identity
    if identity is None:
        with make_private(state), lock(state):
            if has_ledger(state):
                raise UsageError(f"an instance started using {state} in the meantime; repeat the command")
            with open_ledger(state / LEDGER) as store:
                # An instance carries out this request with the first commit that it accepts.
                instance_tables.add_request(store, current_time(), read_operator_name(), BEGIN, {"how": InitMode.ADOPT})
                identity = store.progress[0]
    file = find_fleet_file(path, fleet)
    write_output_file(file, [_add_ledger_field(file, fleet, identity)])
