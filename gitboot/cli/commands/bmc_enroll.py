"""`gitboot bmc enroll`: add BMCs and their servers to a fleet, with everything that an instance needs for them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final, NoReturn

import click
from msgspec import Struct, structs

from gitboot.bmc.access_file import EnrolledBmc, Trust, extend_access_file, get_certificate_key
from gitboot.bmc.credentials import CredentialDirectory, Credentials
from gitboot.bmc.scan import (
    Discrepancy,
    DiscrepancyKind,
    FirstContact,
    FoundNic,
    FoundServer,
    ProbeResult,
    ScanComparison,
    compare_servers,
    list_addresses,
    open_pinned_connection,
    read_certificates,
    read_ipmi_server,
    render_document,
    scan,
)
from gitboot.cli.commands.bmc_scan import (
    build_documents,
    create_documents,
    parallel_option,
    places_options,
    port_option,
    read_place_lines,
    require_credentials,
)
from gitboot.cli.evaluated_fleet import find_fleet_file, load_fleet
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import confirm_or_abort
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import VARIABLES, OutputOption, current_time, output_option, path_option, read_operator_name
from gitboot.cli.terminal import format_table, show_progress, wrap_text
from gitboot.controller.instance.state_directory import LEDGER, has_ledger, lock, make_private, require_active
from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.controller.records.ledger_trust import InitMode
from gitboot.errors import OperatorError, TemporaryError, UsageError
from gitboot.files import read_text, write_output_file
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.identities import BmcAccess, Machine, list_machines
from gitboot.fleet.yaml import insert_field
from gitboot.jsonio import format_document, to_json_value
from gitboot.ledger import instance_tables
from gitboot.ledger.open_ledger import open_for_reading, open_ledger
from gitboot.model.scalars import MacAddress, Malformed, parse_fingerprint, parse_mac, parse_name
from gitboot.text import format_count, format_suggestion, printable, quote_words

_SCHEMES: Final = ("https", "http", "ipmi")
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
    report = _EnrollOutput(outputs)
    fleet = load_fleet(path, None)
    credentials = require_credentials(credentials)
    trusted = CredentialDirectory(credentials).read(name)
    find_fleet_file(path, fleet)  # raises if gitboot cannot write documents there
    if policy is not None and policy not in fleet.policies:
        hint = format_suggestion(policy, fleet.policies, f"the fleet's policies are in {path / 'policies'}")
        raise UsageError(f"there is no BootPolicy {policy!r}; {hint}")
    machines = list(list_machines(fleet).values())
    lines = _map_addresses_to_lines(_read_lines(places), ports)
    _check_schemes(lines, allow_http=allow_http, allow_ipmi=allow_ipmi)

    # Show the certificates, and ask before gitboot sends credentials.
    contacts = read_certificates(list(lines), parallel=parallel)
    expected = _read_fingerprints(fingerprints) if fingerprints is not None else None
    refused = _find_refused_contacts(contacts, trusted.trust, name, expected)
    usable_contacts = [contact for contact in contacts if contact.error is None and contact.address not in refused]
    report.facts["contacts"] = _build_contact_items(contacts, trusted.trust, name, refused)
    report.print_text(_format_contacts(contacts, trusted.trust, name, refused))
    if not usable_contacts:
        report.print_text("there are no BMCs to enrol, so gitboot did not send credentials")
        report.write_and_exit(Exit.PARTIAL)
    if dry_run:
        report.write_and_exit(Exit.PARTIAL if refused else Exit.FINE)
    if expected is None or any(contact.certificate is None for contact in usable_contacts):
        report.confirm(
            f"gitboot has not sent credentials yet. Send the user name and password in {name} to these BMCs?",
            yes=yes,
        )

    # Read the BMCs, and compare the machines with the fleet.
    render = partial(render_document, credentials=name, policy=policy)
    with show_progress("BMCs", len(usable_contacts)) as advance:
        probes = _probe_bmcs(usable_contacts, trusted.credentials, parallel, lambda: advance(1))
    found = _compare_machines(probes, lines, machines, render)
    described_addresses = found.described_addresses
    enrolled = [
        EnrolledBmc(bmc=_build_access(contact.address, name), ip=contact.ip, certificate=contact.certificate)
        for contact in usable_contacts
        if contact.address in described_addresses and contact.ip is not None
    ]
    own = [machine.bmc for machine in machines if machine.bmc is not None and machine.bmc.credentials == name]
    extend_access = partial(extend_access_file, credentials, name, enrolled, own)
    access_file, access_text = extend_access()  # the text is None if the file does not change
    report.facts |= _build_found_facts(found, path)
    report.print_text(_format_found(found))

    # Show the changes, and ask before gitboot writes them.
    documents = found.documents.values()
    changes = [(path / file, "a new document") for file, _ in documents]
    if access_text is not None:
        changes.append((access_file, f"lets in {format_count(len(enrolled), 'BMC')}"))
    ledger_plan = None
    if state is not None and described_addresses:
        ledger_plan = _plan_ledger_changes(state, path, fleet)
    if ledger_plan is not None:
        changes += ledger_plan.changes
    is_complete = (
        not refused
        and not found.unread_probes
        and not any(contact.error is not None and "/" not in lines[contact.address].place for contact in contacts)
        and described_addresses == {server.address for server in found.servers}
    )
    if not changes:
        report.print_text("there is nothing to add, so gitboot did not write any files")
        report.write_and_exit(Exit.FINE if is_complete else Exit.PARTIAL)
    report.print_text("\n".join(["gitboot would write:", *(f"    {file}: {change}" for file, change in changes)]))
    report.confirm("Write this?", yes=yes)
    if extend_access() != (access_file, access_text):
        raise UsageError(f"{access_file} changed in the meantime; repeat the command")
    with create_documents(path, documents, "move the file and repeat the command"):
        load_fleet(path, None)  # raises if a new document contradicts another one
        with _restore_on_error(access_file) if access_text is not None else nullcontext():
            if access_text is not None:
                write_output_file(access_file, [access_text.encode()])
            if state is not None and ledger_plan is not None:
                _write_ledger(state, path, fleet, ledger_plan)
    report.facts["written"] = [str(file) for file, _ in changes]
    report.print_text(
        _NEXT.format(path=quote_words(path), state=quote_words(state or "STATE"), credentials=quote_words(credentials))
    )
    report.write_and_exit(Exit.FINE if is_complete else Exit.PARTIAL)


def _check_schemes(addresses: Iterable[str], *, allow_http: bool, allow_ipmi: bool) -> None:
    """Raise `UsageError` if an address has a scheme without certificates that the operator did not allow."""
    for scheme, is_allowed in (("http", allow_http), ("ipmi", allow_ipmi)):
        for address in addresses:
            if address.startswith(f"{scheme}:") and not is_allowed:
                raise UsageError(f"{address}: {_WEAKNESSES[scheme]}. Use https://, or add --allow-{scheme}")


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
        """Print a text now, and add it to the text outputs that are files."""
        self._texts.append(text)
        click.echo(text, err=self._is_text_on_stderr)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for confirmation, unless ``yes`` is set. Raises `click.Abort` if the user declines."""
        self.print_text(question)
        confirm_or_abort(yes=yes, err=self._is_text_on_stderr)

    def write_and_exit(self, exit_code: Exit) -> NoReturn:
        """Write the JSON outputs and the text outputs that are files, and exit."""
        for output in self._outputs:
            if output.format == "json":
                output.write(format_document(**self.facts))
            elif output.file is not None:
                output.write("\n".join(self._texts))
        sys.exit(exit_code)


class _BmcLine(Struct, frozen=True, kw_only=True):
    """One BMC, network or host to enrol, and what the operator states about it."""

    place: str
    name: str | None = None  # the name of the server; None: gitboot chooses a name
    macs: tuple[MacAddress, ...] = ()  # for a machine whose BMC shows no network interfaces


def _read_lines(places: Sequence[str]) -> list[_BmcLine]:
    """Return the places on the command line and in files: a place, then optionally a name and MAC addresses."""
    lines = []
    for source, words in read_place_lines(places):
        try:
            has_name = len(words) > 1 and not _is_mac(words[1])
            macs = tuple(parse_mac(word) for word in words[2 if has_name else 1 :])
            name = parse_name(words[1]) if has_name else None
            lines.append(_BmcLine(place=words[0], name=name, macs=macs))
        except Malformed as error:
            raise UsageError(f"{source}: {error.message}; {error.hint}") from None
    return lines


def _is_mac(text: str) -> bool:
    try:
        return bool(parse_mac(text))
    except Malformed:
        return False


def _map_addresses_to_lines(lines: Sequence[_BmcLine], ports: Sequence[int]) -> dict[str, _BmcLine]:
    """Return the line for each BMC, by the address of the BMC.

    Raises `UsageError` if several BMCs have the same name, or if there are too many addresses.
    """
    lines_by_address: dict[str, _BmcLine] = {}
    for line in lines:
        addresses = list_addresses([line.place], ports, schemes=_SCHEMES)
        if len(addresses) > 1 and (line.name is not None or line.macs):
            raise UsageError(f"{line.place} has {len(addresses)} addresses; only one can have this name or MAC address")
        lines_by_address |= dict.fromkeys(addresses, line)
    list_addresses(list(lines_by_address), ports, schemes=_SCHEMES)  # raises if there are too many
    names = Counter(line.name for line in lines_by_address.values() if line.name is not None)
    if duplicates := [name for name, count in names.items() if count > 1]:
        raise UsageError(f"two BMCs are named {min(duplicates)}; give each server a unique name")
    return lines_by_address


def _read_fingerprints(file: Path) -> dict[str, str]:
    """Return the fingerprints in a file, by the key that an access file uses for each BMC."""
    fingerprints: dict[str, str] = {}
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            if len(words) != 2:
                raise UsageError("expected an address and its certificate's SHA-256 digest")
            address = list_addresses([words[0]], [443], schemes=_SCHEMES)[0]
            fingerprints[get_certificate_key(address)] = parse_fingerprint(words[1])
        except Malformed as error:
            raise UsageError(f"{file}:{number}: {error.message}; {error.hint}") from None
        except UsageError as error:
            raise UsageError(f"{file}:{number}: {error}") from None
    return fingerprints


def _build_access(address: str, credentials: str) -> BmcAccess:
    return BmcAccess(address=address, system=None, credentials=credentials, verify=True, ca=None)


def _find_refused_contacts(
    contacts: Iterable[FirstContact], trust: Trust, name: str, expected_certificates: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the BMCs to which gitboot must not send credentials: the reason, by address."""
    refused = {}
    for contact in contacts:
        fault = _find_certificate_fault(contact, trust, name, expected_certificates)
        if fault is not None:
            refused[contact.address] = fault
    return refused


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


def _build_contact_items(
    contacts: Sequence[FirstContact], trust: Trust, name: str, refused: Mapping[str, str]
) -> list[dict[str, object]]:
    """Return the contacts as items of the JSON document."""
    return [
        {
            "address": contact.address,
            "certificate": contact.certificate,
            "isKnown": _has_known_certificate(contact, trust, name),
            "refused": refused.get(contact.address),
            "error": contact.error,
        }
        for contact in contacts
    ]


_MAX_UNREACHABLE: Final = 10  # maximum number of BMCs without a TLS service in the output


def _format_contacts(contacts: Sequence[FirstContact], trust: Trust, name: str, refused: Mapping[str, str]) -> str:
    """Return the certificates as lines for a --fingerprints file. Refused and missing certificates become comments."""
    lines = []
    for contact in contacts:
        address, certificate = contact.address, contact.certificate
        if address in refused:
            lines.append(f"# {address} {certificate} refused: {printable(refused[address])}")
        elif certificate is not None:
            new = "" if _has_known_certificate(contact, trust, name) else "  # new"
            lines.append(f"{address} {certificate}{new}")
        elif contact.error is None:
            lines.append(f"# {address}: {_WEAKNESSES[address.partition(':')[0]]}")
    unreachable = [contact for contact in contacts if contact.error is not None]
    for contact in unreachable[:_MAX_UNREACHABLE]:
        lines.append(f"# {contact.address}: no TLS service: {printable(contact.error or '')}")
    if len(unreachable) > _MAX_UNREACHABLE:
        lines.append(f"# {len(unreachable) - _MAX_UNREACHABLE:,} more addresses without a TLS service")
    return "\n".join(lines)


def _probe_bmcs(
    contacts: Sequence[FirstContact], credentials: Credentials, parallel: int, on_result: Callable[[], None]
) -> list[ProbeResult]:
    """Read the machines, in the order of the contacts.

    This is the first time that gitboot sends credentials to the BMCs.
    """
    contacts_by_address = {contact.address: contact for contact in contacts}
    probes = list(
        scan(
            [address for address in contacts_by_address if not address.startswith("ipmi:")],
            lambda address: open_pinned_connection(contacts_by_address[address], credentials),
            parallel=parallel,
            on_result=on_result,
        )
    )
    for contact in contacts:
        if contact.address.startswith("ipmi:"):
            try:
                server = read_ipmi_server(contact, credentials)
                probes.append(ProbeResult(address=contact.address, servers=(server,)))
            except (OperatorError, TemporaryError) as error:
                probes.append(ProbeResult(address=contact.address, error=str(error)))
            on_result()
    order = {address: number for number, address in enumerate(contacts_by_address)}
    return sorted(probes, key=lambda probe: order[probe.address])


class _FoundMachines(Struct, frozen=True, kw_only=True):
    """The machines that the BMCs show, compared with the fleet."""

    servers: list[FoundServer]
    unread_probes: list[ProbeResult]  # BMCs that show no machine
    comparison: ScanComparison
    documents: dict[FoundServer, tuple[str, str]]  # the path and the text of the document for each new machine

    @property
    def described_addresses(self) -> set[str]:
        """The addresses of BMCs with a machine that has a document or will get one."""
        return {
            server.address for server in self.servers if server in self.comparison.servers or server in self.documents
        }

    @property
    def differences(self) -> tuple[Discrepancy, ...]:
        """The differences from the fleet that an enrolment does not resolve."""
        expected_kinds = (DiscrepancyKind.UNKNOWN, DiscrepancyKind.MISSING)
        return tuple(each for each in self.comparison.differences if each.kind not in expected_kinds)


def _compare_machines(
    probes: Sequence[ProbeResult],
    lines: Mapping[str, _BmcLine],
    machines: Sequence[Machine],
    render: Callable[[FoundServer, str], str],
) -> _FoundMachines:
    """Compare the machines in the responses of BMCs with the machines of the fleet."""
    servers = [_add_macs(server, lines[server.address]) for probe in probes for server in probe.servers]
    failed_addresses = [probe.address for probe in probes if probe.error]
    comparison = compare_servers(servers, machines, list(lines), failed_addresses)
    chosen_names = {address: line.name for address, line in lines.items() if line.name is not None}
    used_names = {machine.name for machine in machines}
    return _FoundMachines(
        servers=servers,
        unread_probes=[probe for probe in probes if probe.error is not None or not probe.servers],
        comparison=comparison,
        documents=build_documents(servers, comparison, chosen_names, used_names, render),
    )


def _build_found_facts(found: _FoundMachines, path: Path) -> dict[str, object]:
    """Return the machines for the JSON document, as in `gitboot bmc scan -o json`.

    A new server has the name that it gets.
    """
    items = []
    for server in found.servers:
        name, file = found.comparison.servers.get(server), None
        if server in found.documents:
            file = found.documents[server][0]
            name = PurePath(file).stem
        document = str(path / file) if file is not None else None
        items.append({**to_json_value(server), "server": name, "document": document})
    unread = [{"address": probe.address, "why": probe.error or _SILENT} for probe in found.unread_probes]
    return {"items": items, "unread": unread, "differences": found.differences}


def _add_macs(found_server: FoundServer, line: _BmcLine) -> FoundServer:
    """Add the MAC addresses that the operator specified, if the BMC does not report MAC addresses."""
    if found_server.nics or not found_server.is_only_system:
        return found_server
    return structs.replace(found_server, nics=tuple(FoundNic(name="", mac=mac) for mac in line.macs))


_HINT: Final = (
    "gitboot cannot write a document for this machine. If the MAC address is missing, add it after the BMC's address "
    "in FILE, for example: 10.112.0.13 web01 52:54:00:12:34:56"
)


def _format_found(found: _FoundMachines) -> str:
    names, documents = found.comparison.servers, found.documents
    rows = [
        (
            server.address,
            names.get(server) or (documents[server][0] if server in documents else "-"),
            f"{server.maker} {server.model}".strip() or "-",
            server.identity.uuid or "-",
        )
        for server in found.servers
    ]
    lines = [format_table(("ADDRESS", "SERVER", "MODEL", "UUID"), rows, shrinkable=(2,))] if rows else []
    for server in found.servers:
        if server not in names and server.missing_identity is not None:
            lines.append(wrap_text(f"{server.address}: {server.missing_identity}. {_HINT}"))
    for probe in found.unread_probes:
        lines.append(wrap_text(f"{probe.address}: {probe.error or _SILENT}"))
    for difference in found.differences:
        lines.append(wrap_text(f"{difference.kind}: {difference.server} at {difference.address}: {difference.message}"))
    return "\n".join(lines)


class _LedgerPlan(Struct, frozen=True, kw_only=True):
    """The changes that gitboot will write so that the Fleet document names the ledger of an instance."""

    identity: str | None  # the ledger to write into the Fleet; None: there is no ledger yet
    changes: tuple[tuple[Path, str], ...]  # what gitboot will write, and how it describes the change


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
    changes = [(file, "the line provisioning.ledger")]
    if identity is None:
        new = "a new ledger, and a request to run `gitboot records begin adopt` with the first accepted commit"
        changes.insert(0, (state, new))
    return _LedgerPlan(identity=identity, changes=tuple(changes))


def _add_ledger_field(file: Path, fleet: FleetRepository, identity: str) -> bytes:
    """Return the Fleet file with provisioning.ledger added. Raises `UsageError` if gitboot cannot edit the file."""
    index = fleet.origins[Id("Fleet", fleet.fleet.metadata.name)].document
    data = file.read_bytes()
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
    """Create the ledger if there is none, and write its identity into the Fleet document."""
    identity = plan.identity
    if identity is None:
        with make_private(state), lock(state):
            if has_ledger(state):
                raise UsageError(f"an instance started using {state} in the meantime; repeat the command")
            with open_ledger(state / LEDGER) as store:
                # An instance carries out this request with the first commit that it accepts.
                request = BeginWithRecords(how=InitMode.ADOPT)
                instance_tables.add_request(
                    store, current_time(), read_operator_name(), request.kind, to_json_value(request)
                )
                identity = store.progress[0]
    file = find_fleet_file(path, fleet)
    write_output_file(file, [_add_ledger_field(file, fleet, identity)])
