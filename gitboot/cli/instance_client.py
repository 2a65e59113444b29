"""Instance client: read an instance's status and plans from its API or its state directory."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Protocol
from urllib.parse import quote

import click
from msgspec import Meta, Struct, ValidationError

from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluator_child import get_results_cache, limit_evaluation
from gitboot.cli.options import (
    combine_options,
    current_time,
    read_operator_name,
    selector_option,
    state_option,
)
from gitboot.controller.instance import assembly
from gitboot.controller.instance.assembly import OfflineInstance, carry_out_offline
from gitboot.controller.instance.state_directory import (
    LEDGER,
    SPOOL,
    find_active_directory,
    find_running_process,
    has_ledger,
    lock,
    read_status,
    require_active,
    require_ledger,
)
from gitboot.controller.operator_requests import REFUSED, OperatorRequest
from gitboot.errors import HostUnreachable, LedgerError, NotYetDone, UsageError
from gitboot.evaluator.protocol import Commit
from gitboot.files import convert_os_errors
from gitboot.fleet.revision import Revision
from gitboot.http_client import HttpClient
from gitboot.jsonio import convert, parse_json, to_json_value
from gitboot.ledger import instance_tables
from gitboot.ledger.leader_lease import Holder
from gitboot.ledger.open_ledger import open_ledger, read_places
from gitboot.model.scalars import Name, SystemUuid
from gitboot.publish.manifest import MANIFEST, STATUS
from gitboot.publish.tree_reader import list_stop_folders, read_records
from gitboot.render.paths import RECORDS
from gitboot.resolve.provisioning_record import RECORD_ERRORS, Record, parse_record
from gitboot.resolve.server_decision import Decision, suggest_server
from gitboot.review.images import AppliedRollout, InstanceReport
from gitboot.status.instance_status import HeldCommit
from gitboot.text import printable, quote_words

# If one of these conditions is false, the records are not reliable, or gitboot does not serve the planned boots.
_REQUIRED_CONDITIONS: Final = (
    "AcceptingCommits",
    "InstallsAllowed",
    "ClockTrusted",
    "LedgerNamed",
    "LedgerWritable",
    "RecordsVerified",
)
# A reason of RecordsVerified that concerns only some servers. Each server has its own state.
_SERVER_REASON: Final = "UnverifiedServers"
_REQUEST_TIMEOUT_S: Final = 30
_OUTCOME_POLL_S: Final = 0.05
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class _ReportedCommit(Struct, frozen=True):
    commit: Annotated[str, Meta(pattern=f"^{_COMMIT.pattern}$")] | None = None


class _ReportedCondition(Struct, frozen=True):
    type: str
    status: bool
    reason: str
    message: str


_ReportedTime = Annotated[datetime, Meta(tz=True)]


class _ReportedStatus(Struct, frozen=True):
    """The part of an instance's status that shows whether its records are reliable."""

    applied: _ReportedCommit = _ReportedCommit()
    at: _ReportedTime | None = None
    clock: _ReportedTime | None = None
    ledger: str | None = None  # None: an endpoint without a ledger wrote the status
    conditions: tuple[_ReportedCondition, ...] = ()

    def __post_init__(self) -> None:
        for at in filter(None, (self.at, self.clock)):
            if not 1970 <= at.year < 9999:  # other times cannot be formatted in UTC
                raise ValueError(f"the year {at.year} is not possible")


class InstanceReader(Protocol):
    """A source from which gitboot reads an instance's status and records."""

    def status(self) -> Mapping[str, Any]:
        """Return the status document of the instance."""

    def records(self, machines: Iterable[Decision]) -> Mapping[SystemUuid, Record]:
        """Return the records of these machines. Machines without a record are not in the result."""


def read_rollout_evidence(
    reader: InstanceReader, find_applied_commit: Callable[[Revision], AppliedRollout]
) -> tuple[AppliedRollout, InstanceReport]:
    """Return the rollout in the commit that an instance has applied, and the evidence for the machines in the rollout.

    If each site has its own instance, the evidence contains only the machines of the instance's site.

    Raises `HostUnreachable` if the instance applies another commit in the meantime. Also raises the errors that
    ``reader`` raises.
    """
    status = _read_status(reader)
    commit = _get_applied_commit(status)
    applied = find_applied_commit(commit)
    ledger = status.ledger
    machines = [each for each in applied.machines if ledger in (None, applied.ledgers.get(each.server, ledger))]
    records = reader.records(machines)
    if _get_applied_commit(_read_status(reader)) != commit:
        raise HostUnreachable(
            f"the instance replaced commit {commit[:12]} with a different commit during the query: run the command "
            "again"
        )
    at = status.at or status.clock
    report = InstanceReport(commit=commit, at=at, wait_reason=_find_wait_reason(status), records=records)
    return applied, report


def _read_status(reader: InstanceReader) -> _ReportedStatus:
    try:
        return convert(reader.status(), _ReportedStatus)
    except ValidationError as error:
        raise _build_version_error("the status", error) from None


def _build_version_error(what: str, error: Exception) -> HostUnreachable:
    return HostUnreachable(
        f"{what} from the instance is not valid ({printable(str(error))}): use the same version of gitboot as the "
        "instance"
    )


def _get_applied_commit(status: _ReportedStatus) -> Revision:
    if status.applied.commit is None:
        raise UsageError("the instance has not applied a commit yet: try again later")
    return Revision(status.applied.commit)


def _find_wait_reason(status: _ReportedStatus) -> str | None:
    """Return the first required condition that is false as a reason to wait, or None if all of them are true."""
    for each in status.conditions:
        if each.type in _REQUIRED_CONDITIONS and each.reason != _SERVER_REASON and not each.status:
            return f"the instance's condition {each.type} is false ({each.reason}): {each.message}"
    return None


class TreeReader(Struct, frozen=True):
    """A reader for an instance's output tree, or for a copy of the instance's records and status."""

    folder: Path

    def status(self) -> Mapping[str, Any]:
        file = self.folder / STATUS
        try:
            status = parse_json(_read_bytes(file))
        except ValueError as error:
            raise UsageError(f"{file} cannot be read: {error}") from None
        return status if isinstance(status, dict) else {}

    def records(self, machines: Iterable[Decision]) -> Mapping[SystemUuid, Record]:
        file = self.folder / RECORDS
        with convert_os_errors(file, "read"):
            records = read_records(file)
        return {machine.uuid: records[machine.uuid] for machine in machines if machine.uuid in records}


class StateReader(Struct, frozen=True):
    """A reader for the state directory of an instance, which contains the instance's status and ledger."""

    folder: Path
    at: datetime
    set_limits: Callable[[int], None]  # called with the number of files in the accepted commit

    def status(self) -> Mapping[str, Any]:
        return read_status(self.folder)

    def records(self, machines: Iterable[Decision]) -> Mapping[SystemUuid, Record]:
        with assembly.open_offline(
            self.folder, self.at, on_begin=self.set_limits, results=get_results_cache()
        ) as instance:
            records = {machine.uuid: instance.snapshot.record(machine.uuid) for machine in machines}
        return {uuid: record for uuid, record in records.items() if record is not None}


class ApiReader(Struct, frozen=True):
    """A reader for the API of an instance."""

    url: str
    client: HttpClient
    credentials: Mapping[str, str]  # headers

    def status(self) -> Mapping[str, Any]:
        status = self._fetch_json("status")
        if not isinstance(status, dict):
            raise HostUnreachable(f"{self.url} did not return a status: check that the URL is an instance's endpoint")
        return status

    def records(self, machines: Iterable[Decision]) -> Mapping[SystemUuid, Record]:
        records = {}
        for machine in machines:
            item = self._fetch_json(f"servers/{quote(machine.server, safe='')}")
            if isinstance(item, dict) and item.get("uuid") == machine.uuid and item.get("provisioned") is not None:
                try:
                    records[machine.uuid] = parse_record(item["provisioned"])
                except RECORD_ERRORS as error:
                    raise _build_version_error(f"the record of {machine.server}", error) from None
        return records

    def _fetch_json(self, path: str) -> Any:
        url = f"{self.url}/api/v1/{path}"
        response = self.client.request_json(url, credentials=self.credentials, deadline_s=_REQUEST_TIMEOUT_S)
        if response.status != 200:
            raise HostUnreachable(f"{url} returned {response.status} {response.detail}".rstrip())
        return response.json


def open_instance(
    place: str,
    token: Path | None,
    ca_bundle: Path | None,
    *,
    allow_token_over_http: bool = False,
) -> InstanceReader:
    """Return a reader for the URL of an API, an output tree, or the folder ``ops/records`` in an output tree.

    Raises `UsageError` if the token must not be sent to the URL or cannot be read.
    """
    if "://" not in place:
        path = Path(place)
        is_records_folder = path.parts[-2:] == Path(RECORDS).parts
        return TreeReader(path.parent.parent if is_records_folder else path)
    client = HttpClient(ca_bundle=ca_bundle, allow_token_over_http=allow_token_over_http)
    credentials = {}
    if token is not None:
        client.check_credentials(place, f"the token in {token}")
        credentials = {"Authorization": f"Bearer {_read_bytes(token).decode(errors='replace').strip()}"}
    return ApiReader(place.rstrip("/"), client, credentials)


def _read_bytes(file: Path) -> bytes:
    with convert_os_errors(file, "read"):
        return file.read_bytes()


@contextmanager
def open_offline(state: Path, at: datetime) -> Iterator[OfflineInstance]:
    """Open the state of the instance with this state directory. Limit the resources for reading the accepted commit."""
    with ExitStack() as stack:
        with limit_evaluation() as set_limits:
            instance = stack.enter_context(
                assembly.open_offline(state, at, on_begin=set_limits, results=get_results_cache())
            )
        yield instance


def find_decision(instance: OfflineInstance, server: str) -> Decision:
    """Return the decision for a server. Raises `UsageError` if the accepted commit does not contain the server."""
    servers = instance.commit.decisions.servers
    decision = servers.get(server)
    if decision is None:
        raise UsageError(f"the accepted commit has no server {server!r}; {suggest_server(server, servers)}")
    return decision


def find_machines(instance: OfflineInstance, server: str) -> tuple[SystemUuid, ...]:
    """Return the UUIDs of the machines that have a server's name.

    The result includes machines with this name that were removed from the fleet while their override was set. Raises
    `UsageError` if there is no such machine.
    """
    snapshot = instance.snapshot
    removed_uuids = snapshot.overrides.keys() & snapshot.machines.keys() - instance.commit.machines.keys()
    departed = tuple(
        uuid
        for uuid in sorted(removed_uuids)
        if snapshot.machines[uuid].name == server
        and any(override.state.is_open for override in snapshot.list_overrides(uuid))
    )
    if departed and server not in instance.commit.decisions.servers:
        return departed
    return (*departed, find_decision(instance, server).uuid)


def select_names(instance: OfflineInstance, servers: tuple[str, ...], selector: str | None) -> frozenset[str] | None:
    """Return the given server names. If no names are given, return None, which means all servers.

    Each server must be in the fleet or have a record.

    With a selector, return only the servers that also have these labels. Raises `UsageError` if a name is unknown or no
    server has these labels.
    """
    if selector is not None:
        return frozenset(select_servers(instance, servers, selector))
    names = frozenset(servers)
    names_with_record = {machine.name for machine in instance.snapshot.machines.values()}
    for name in sorted(names - names_with_record):
        find_decision(instance, name)  # this raises an error if there is no such server
    return names or None


def request_change(state: Path, request: OperatorRequest, commit: Commit | None = None) -> str:
    """Send a request to the instance with this state directory, and return the outcome.

    If no instance is running, this process carries out the request. Some requests need ``commit``, the accepted commit.
    Raises `UsageError` if the request is rejected. Raises `NotYetDone` if the instance has not processed the request in
    time. Raises `HeldByAnother` if an instance on another host is active.
    """
    require_ledger(state)
    require_active(state)
    process = find_running_process(state)
    with ExitStack() as stack:
        if process is None:
            stack.enter_context(lock(state))
        ledger = stack.enter_context(open_ledger(state / LEDGER))
        if process is None:
            ledger.database.take_lease(Holder.load(state))  # another instance could become active at the same time
        facts = to_json_value(request)
        number = instance_tables.add_request(ledger, current_time(), read_operator_name(), request.kind, facts)
        if process is None:
            carry_out_offline(ledger, commit, current_time(), read_held_change(state))
        else:
            try:
                os.kill(process, signal.SIGUSR1)
            except OSError as error:
                raise UsageError(f"cannot signal process {process}: {error.strerror}") from None
        until = time.monotonic() + _REQUEST_TIMEOUT_S
        outcome = instance_tables.read_outcome(ledger, number)
        while outcome is None and time.monotonic() < until:
            time.sleep(_OUTCOME_POLL_S)
            outcome = instance_tables.read_outcome(ledger, number)
    if outcome is None:
        raise NotYetDone(
            f"{state}: process {process} did not process the request within {_REQUEST_TIMEOUT_S} s, but will "
            f"process it later; run `gitboot status --state {quote_words(state)}`"
        )
    if outcome.startswith(REFUSED):
        raise UsageError(outcome.removeprefix(REFUSED))
    return outcome


def read_held_change(state: Path) -> HeldCommit | None:
    """Return the change that a guard holds according to the last status of the instance, or None."""
    with suppress(UsageError):
        attempted = read_status(state)["attempted"]
        held = attempted.get("held")
        if held is not None:
            return HeldCommit(commit=attempted["commit"], digest=held["digest"], guards=tuple(held["guards"]))
    return None


# The options that select servers of an instance.
server_options = combine_options(
    click.argument("servers", nargs=-1, shell_complete=complete_servers), selector_option, state_option
)
yes_option = click.option(
    "--yes",
    is_flag=True,
    help="Do not ask for confirmation. A command without a terminal needs this option to change several servers.",
)


def select_servers(instance: OfflineInstance, servers: tuple[str, ...], selector: str | None) -> dict[str, Decision]:
    """Return the servers with these names and labels.

    Raises `UsageError` if both are missing, so that no command changes all servers by mistake.
    """
    from gitboot.cli.evaluated_fleet import parse_selector

    if not servers and selector is None:
        raise UsageError("pass server names, or select servers by label, for example -l role=web")
    for name in servers:
        find_decision(instance, name)  # raises an error if there is no such server
    label_selector = parse_selector(selector)
    labels = instance.commit.labels
    selected = {
        name: decision
        for name, decision in sorted(instance.commit.decisions.servers.items())
        if (not servers or name in servers)
        and (label_selector is None or label_selector.matches(Name(name), labels[name]))
    }
    if not selected:
        raise UsageError(f"{'these servers do not have' if servers else 'no server has'} the labels {selector}")
    return selected


def confirm_or_abort(*, yes: bool, err: bool = False) -> None:
    """Ask for confirmation, unless ``yes`` is set.

    With ``err``, the question appears on standard error. Raises `click.Abort` if the user declines.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("gitboot cannot ask for confirmation without a terminal: add --yes to confirm")
    click.confirm("Continue?", abort=True, err=err)


def fetch_accepted_commit(place: str) -> str:
    """Return the newest commit that an instance has accepted. ``place`` is a URL or a directory.

    An endpoint provides the instance's status. A mirror provides only the output tree, whose manifest contains the
    commit. Raises `HostUnreachable` if the host does not respond, and `UsageError` if there is no such commit.
    """
    documents = _fetch_status_files(place.rstrip("/")) if "://" in place else _read_status_files(Path(place))
    for document in documents:
        commit = _find_newest_commit(document)
        if commit is not None:
            return commit
    raise UsageError(
        f"--accepted: {place} has no accepted commit; pass an endpoint's URL, or the OUTPUT of `gitboot run`. To "
        "find the cause, run `gitboot status` on the instance's host"
    )


def _find_newest_commit(document: Any) -> str | None:
    """Return the accepted commit in a status, or the commit in a manifest, or None if there is no such commit."""
    if not isinstance(document, dict):
        return None
    for place in (document.get("accepted"), document.get("applied"), document):
        commit = place.get("commit") if isinstance(place, dict) else None
        if isinstance(commit, str) and _COMMIT.fullmatch(commit):
            return commit
    return None


def _fetch_status_files(url: str) -> Iterator[Any]:
    """Yield the status of an endpoint, or the manifest of a mirror. Raises `HostUnreachable`."""
    client = HttpClient()
    for path in ("api/v1/status", MANIFEST):
        response = client.request_json(f"{url}/{path}", deadline_s=_REQUEST_TIMEOUT_S)
        if response.status == 200 and isinstance(response.json, dict):
            yield response.json
            return
        if response.status != 404:
            raise HostUnreachable(f"{url}/{path} returned {response.status} {response.detail}".rstrip())


def _read_status_files(directory: Path) -> Iterator[Any]:
    """Yield the status and the manifest in an output tree, if they exist. Raises `UsageError` if they are damaged."""
    for file in (directory / STATUS, directory / MANIFEST):
        try:
            yield parse_json(file.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise UsageError(f"--accepted: {file} cannot be read: {error}") from error


def list_endpoint_folders(state: Path) -> tuple[Path, ...]:
    """Return the existing folders in which an instance's endpoints look for the stop file.

    These are the folder beside the output tree, and the spools.

    If the ledger cannot be read, include only the default spool.
    """
    output, spool = _read_output_and_spool(state)
    candidates = {state / SPOOL, *(list_stop_folders(output, spool) if output is not None else ())}
    return tuple(folder for folder in sorted(candidates) if folder.is_dir())


def find_output_tree(state: Path) -> Path | None:
    """Return the output tree of the instance with this state directory, or None if gitboot cannot read the ledger."""
    return _read_output_and_spool(state)[0]


def _read_output_and_spool(state: Path) -> tuple[Path | None, Path | None]:
    with suppress(LedgerError):
        return read_places(state / LEDGER) if has_ledger(state) else (None, None)
    return None, None


def resolve_active_state(state: Path) -> Path:
    """Return ``state``.

    If ``state`` belongs to a standby on this host, return the state directory of the active instance instead.
    """
    active = find_active_directory(state)
    if active != state:
        click.echo(
            f"gitboot: {state}: this instance is a standby; the command uses the active instance (--state {active})",
            err=True,
        )
    return active


def apply_to_folders(folders: tuple[Path, ...], action: Callable[[Path], None]) -> Iterator[str]:
    """Call a function for each folder, and yield a message for each folder that is not writable."""
    for folder in folders:
        try:
            action(folder)
        except OSError as error:
            yield f"{folder} cannot be written: {error.strerror}"
