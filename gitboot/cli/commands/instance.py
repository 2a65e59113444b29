"""`gitboot events`, `reconcile`, `approve`, `stop-installs` and others: observe and control an instance."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from msgspec import structs

from gitboot.cli.commands.status import merge_published_status
from gitboot.cli.completion import complete_held_digest, complete_servers
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    MAX_SECONDS,
    VARIABLES,
    InstantType,
    OutputOption,
    current_time,
    output_option,
    read_operator_name,
    reason_option,
    state_option,
    write_outputs,
)
from gitboot.cli.terminal import echo_wrapped, format_table, wrap_on_terminal, wrap_text
from gitboot.controller.instance.state_directory import (
    LEDGER,
    find_running_process,
    read_status,
    require_active,
    require_ledger,
)
from gitboot.errors import HeldByAnother, LedgerError, LedgerLeft, NotYetDone, OperatorError, UsageError
from gitboot.jsonio import format_instant
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.open_ledger import open_for_reading
from gitboot.resolve.provisioning_record import StopOrder
from gitboot.standard_streams import has_reader
from gitboot.text import format_count, format_names, format_suggestion, one_line, printable

# The functions below import the other modules that they need, because `gitboot events --follow` needs none of them.
if TYPE_CHECKING:
    from gitboot.fetchlog.unknown_machines import UnknownMachine, UnknownMachines


_POLL_S: Final = 0.5  # seconds between checks for new events


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot events --state /var/lib/gitboot --server web01 --since 2h",
    exit_codes={
        Exit.FINE: "gitboot printed the events",
        Exit.FAULT: "gitboot cannot read the ledger",
        Exit.USAGE: "the server is unknown, or no instance has run with this state directory",
        Exit.INTERRUPTED: "you pressed Ctrl-C to end --follow",
    },
)
@state_option
@click.option("--server", metavar="NAME", help="Only events of this server.", shell_complete=complete_servers)
@click.option("-n", "--tail", metavar="N", type=click.IntRange(min=0), help="Only the last N events. Default: all.")
@click.option(
    "--since",
    type=InstantType(is_past=True),
    metavar="TIME",
    help="Only events since this time: a duration before now, for example 2h, 30m or 1d12h, or a time with a UTC "
    "offset, for example 2026-12-24T08:00:00Z. Default: all.",
)
@click.option("-f", "--follow", is_flag=True, help="Continue to print new events until you press Ctrl-C.")
@output_option("text", "json")
def events_command(
    state: Path,
    server: str | None,
    tail: int | None,
    since: datetime | None,
    follow: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Print what the instance did.

    Each event is one line: accepted commits, publications, evidence, overrides, requests of operators and so on. The
    oldest event is first.
    """
    require_ledger(state)
    if follow and (len(outputs) > 1 or outputs[0].file is not None):
        raise UsageError("--follow prints events to standard output: use only one -o, without a file")
    with open_for_reading(state / LEDGER) as ledger:
        events = [
            (number, event)
            for number, event in instance_tables.read_numbered_events(ledger)
            if _concerns_server(event, server)
        ]
        if server is not None and not events:
            names = {machine.name for machine in server_tables.read_machines(ledger).values()}
            if server not in names:
                hint = format_suggestion(server, names, "`gitboot records show` lists the servers")
                raise UsageError(f"the ledger has no events for server {server!r}; {hint}")
        shown = [event for _, event in events if _is_since(event, since)]
        if tail is not None:
            shown = shown[max(len(shown) - tail, 0) :]
        for output in outputs:
            output.write_lines(_format_event(event, output.format) for event in shown)
        last_number = max((number for number, _ in events), default=0)
        while follow and has_reader():
            time.sleep(_POLL_S)
            for number, event in instance_tables.read_numbered_events(ledger, last_number):
                last_number = number
                if _concerns_server(event, server) and _is_since(event, since):
                    outputs[0].write_lines([_format_event(event, outputs[0].format)])


def _concerns_server(event: Mapping[str, Any], server: str | None) -> bool:
    return server is None or event.get("server") == server or server in event.get("servers", ())


def _is_since(event: Mapping[str, Any], since: datetime | None) -> bool:
    return since is None or datetime.fromisoformat(event["at"]) >= since


def _format_event(event: Mapping[str, Any], format: str) -> str:
    if format == "json":
        return json.dumps(event, sort_keys=True)
    at = format_instant(datetime.fromisoformat(event["at"]).replace(microsecond=0))
    text = printable(f"{at} {event['type']:<18} {one_line(str(event['message']))}")
    return wrap_on_terminal(text, sys.stdout, hanging_indent="    ")


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot unknown-machines --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot printed the unknown machines",
        Exit.USAGE: "no instance has run with this state directory",
    },
)
@state_option
@click.option("--forget", is_flag=True, help="Clear the list first, for example after a flood of requests.")
@output_option("text", "json")
def unknown_machines_command(state: Path, forget: bool, outputs: tuple[OutputOption, ...]) -> None:
    """Show machines that no document describes.

    gitboot lists the machines that requested a boot although no document describes them, the newest request first. The
    facts come from the machines themselves, and gitboot bases no decision on them. If a machine booted an inventory
    image, the list also shows what the image found.

    gitboot removes a machine from the list when a document describes it, or 30 days after its last request. The list
    holds up to 1,000 machines, and up to 64 from one network address. New machines never replace machines in the list.
    To write a document for a machine, use `gitboot new server --seen`.
    """
    from gitboot.endpoint.api import format_unknown_machines
    from gitboot.fetchlog.unknown_machines import delete_unknown_machines, load_unknown_machines

    require_ledger(state)
    if forget:
        delete_unknown_machines(state)
    unknown_machines = load_unknown_machines(state)
    as_json = partial(json.dumps, format_unknown_machines(unknown_machines), indent=2, sort_keys=True)
    write_outputs(outputs, json=as_json, text=partial(_format_unknown_machines, unknown_machines))


def _format_unknown_machines(unknown_machines: UnknownMachines) -> str:
    machines, dropped_count = unknown_machines.machines, unknown_machines.dropped_count
    if not machines and not dropped_count:
        return "every machine that requested a boot has a document"
    lines = []
    if machines:
        header = ["MAC", "UUID", "SERIAL", "FROM", "LAST (UTC)", "TIMES"]
        has_servers = any(machine.server for machine in machines)  # a machine is rarely similar to a document
        if has_servers:
            header.append("SERVER")
        rows = [_format_unknown_machine(machine, has_server=has_servers) for machine in machines]
        inventories = [wrap_text(str(machine.inventory), "    ") if machine.inventory else "" for machine in machines]
        lines = [
            format_table(header, rows, shrinkable=(2,), below=inventories),
            "",
            "Write a document for a machine:",
            "    gitboot new server NAME --seen MAC --state STATE",
        ]
    if dropped_count:
        text = (
            f"The list was full, so {format_count(dropped_count, 'request')} could not be added. To clear the list, "
            "run `gitboot unknown-machines --forget`."
        )
        lines.append(wrap_text(text))
    return "\n".join(lines)


def _format_unknown_machine(machine: UnknownMachine, *, has_server: bool) -> list[str]:
    mac = machine.macs[0].replace("-", ":") if machine.macs else "-"
    if len(machine.macs) > 1:
        mac += f" +{len(machine.macs) - 1}"
    last = f"{machine.last:%Y-%m-%d %H:%M}"
    row = [mac, machine.uuid or "-", machine.serial or "-", machine.client, last, str(machine.times)]
    if has_server:
        row.append(machine.server or "-")
    return row


_TIMEOUT_S: Final = 180  # a fetch that hangs fails after `git-timeout`, and the next fetch may hang too
_OUTCOME_POLL_S: Final = 0.1


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot reconcile --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "the instance accepted the newest commit and reconciled",
        Exit.INVALID: (
            "the instance rejected the commit: the commit has errors, no trusted key signed it, or its evaluation "
            "exceeded a limit"
        ),
        Exit.HELD: "a guard holds the commit",
        Exit.SOURCE: "the fetch failed",
        Exit.SUSPENDED: "the instance is suspended",
        Exit.PARTIAL: "the instance could not write the ledger, could not publish, or did not finish in time",
        Exit.USAGE: "no instance is running with this state directory, or an option is wrong",
    },
)
@state_option
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    envvar="GITBOOT_TIMEOUT",
    type=click.IntRange(min=0, max=MAX_SECONDS),
    default=_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait for the result. With 0, the command starts the fetch and does not wait.",
)
def reconcile_command(state: Path, timeout_s: int) -> None:
    """Fetch and reconcile now.

    The running instance fetches the repository and reconciles. The command waits for the result and prints it.
    """
    from gitboot.cli.instance_client import resolve_active_state

    state = resolve_active_state(state)
    process = find_running_process(state)
    if process is None:
        raise UsageError(f"no instance is running with the state directory {state}: start `gitboot run` first")
    with suppress(LedgerError):  # continue, because an unavailable database must not block commits
        require_active(state)
    triggered_at = current_time()
    until = time.monotonic() + timeout_s
    try:
        os.kill(process, signal.SIGHUP)
    except OSError as error:
        raise UsageError(f"cannot signal process {process}: {error.strerror}") from None
    if timeout_s == 0:
        click.echo(f"Triggered process {process}. Run `gitboot status` for the result.", err=True)
        return
    status: Mapping[str, Any] = {}
    while time.monotonic() < until:
        status = _read_newest_status(state)
        outcome = find_reconcile_outcome(status, triggered_at)
        if outcome is not None:
            exit_code, message = outcome
            click.echo(message, err=True)
            sys.exit(exit_code)
        if find_running_process(state) != process:
            raise NotYetDone(
                f"{state}: process {process} ended before the reconcile was complete; run `gitboot status`"
            )
        time.sleep(_OUTCOME_POLL_S)
    source = _map_conditions(status).get("SourceReady")
    why = f": {source['message']}" if source is not None and not source["status"] else ""
    raise NotYetDone(
        f"{state}: process {process} did not finish reconciling within {timeout_s} s{why}; run `gitboot status` "
        "for the result"
    )


def find_reconcile_outcome(status: Mapping[str, Any], triggered_at: datetime) -> tuple[Exit, str] | None:
    """Return the exit code and the message for the first fetch after ``triggered_at`` and the reconcile that follows.

    Return None until both the fetch and the reconcile have ended.
    """
    fetched = status.get("fetched") or {}
    conditions = _map_conditions(status)
    if fetched.get("began") is None or datetime.fromisoformat(fetched["began"]) < triggered_at:
        return None
    source = conditions.get("SourceReady")
    if source is None:
        return None
    if not source["status"]:
        return Exit.SOURCE, f"The fetch failed ({source['reason']}): {source['message']}"
    commit = str(fetched["commit"])
    accepting = conditions.get("AcceptingCommits")
    if accepting is not None and not accepting["status"]:
        return Exit.SUSPENDED, f"Fetched {commit[:12]}. The instance has not accepted it: {accepting['message']}"
    if status["attempted"]["commit"] != commit:
        return None  # the instance is still evaluating the commit
    accepted = conditions.get("CommitAccepted")
    if accepted is not None and not accepted["status"]:
        exit_code = Exit.HELD if status["attempted"]["held"] is not None else Exit.INVALID
        message = (
            f"Fetched {commit[:12]}. The instance has not accepted it ({accepted['reason']}): {accepted['message']}"
        )
        return exit_code, message
    if status["accepted"]["commit"] != commit:
        return None  # not final: the instance reads all earlier fetches before it decides about the commit
    for type in ("LedgerWritable", "Published"):
        condition = conditions.get(type)
        if condition is not None and not condition["status"]:
            message = f"Accepted {commit[:12]}. {type} is false ({condition['reason']}): {condition['message']}"
            return Exit.PARTIAL, message
    return Exit.FINE, f"Fetched {commit[:12]}. The commit is accepted, and the instance has reconciled."


def _read_newest_status(state: Path) -> Mapping[str, Any]:
    """Return the status in the state directory or in the output tree, or no facts if there is no status."""
    from gitboot.cli.instance_client import find_output_tree

    with suppress(UsageError):
        status = read_status(state)
        output = find_output_tree(state)
        return merge_published_status(status, output) if output is not None else status
    return {}


def _map_conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the conditions in a status by type."""
    return {condition["type"]: condition for condition in status.get("conditions", ())}


class GuardType(click.ParamType[str]):
    """The name of a guard. Only the commands that use this type import the guards."""

    name = "guard"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> str:
        return self._build_choice().convert(value, param, context)

    def shell_complete(
        self, context: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return self._build_choice().shell_complete(context, param, incomplete)

    def _build_choice(self) -> click.Choice[str]:
        from gitboot.review.guards import Guard

        return click.Choice([str(guard) for guard in Guard])


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example=("gitboot approve 7c1e4f0a92bd --all-guards \\\n    --reason 'planned reinstall' --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "gitboot recorded the approval",
        Exit.STALE: "no commit is held, DIGEST does not match the held commit, or a different guard holds this commit",
        Exit.PARTIAL: "the instance has not processed the request yet",
        Exit.USAGE: "an option or an argument is wrong, or the reason is a placeholder",
    },
)
@click.argument("digest", shell_complete=complete_held_digest)
@state_option
@click.option(
    "--guard",
    "guards",
    multiple=True,
    type=GuardType(),
    metavar="GUARD",
    help="A guard that holds the commit, such as maxReinstalls or maxUpdatePercent. `gitboot status` names it. "
    "Repeat the option for several guards.",
)
@click.option("--all-guards", is_flag=True, help="Approve for all guards that hold the commit now, without --guard.")
@reason_option
def approve_command(digest: str, state: Path, guards: tuple[str, ...], all_guards: bool, reason: str) -> None:
    """Approve a commit that a guard holds.

    DIGEST identifies all changes of the newest commit. Pass at least its first 8 hexadecimal digits. `gitboot status`
    and `gitboot diff` show the digest and the guards. If another commit arrives, the digest changes, and you must
    review the commits again.

    The line `Gitboot-Ack: DIGEST GUARD` in a commit message has the same effect, and reviewers see it. Write all 64
    digits of the digest. The line may contain several guards.
    """
    from gitboot.cli.instance_client import read_held_change, request_change
    from gitboot.controller.operator_requests import ApproveCommit, check_approval, find_held_commit

    if bool(guards) is all_guards:
        raise UsageError("specify either --all-guards or at least one --guard GUARD")
    read_status(state)  # this raises an error if no instance has ever run here
    require_active(state)
    held = find_held_commit(read_held_change(state), digest)
    approved_guards = tuple(sorted(held.guards if all_guards else set(guards)))
    check_approval(held, held.digest, approved_guards)
    request = ApproveCommit(digest=held.digest, guards=approved_guards, reason=reason)
    echo_wrapped(request_change(state, request))


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot allow-installs --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot serves install boots again",
        Exit.PARTIAL: "some places still withhold install boots; the output lists these places",
    },
)
@state_option
@evaluator_command
def allow_installs_command(state: Path) -> None:
    """Serve install boots again after gitboot stop-installs.

    gitboot also prints the servers that boot from the network from now on.
    """
    from gitboot.cli.instance_client import (
        apply_to_folders,
        list_endpoint_folders,
        open_offline,
        request_change,
        resolve_active_state,
    )
    from gitboot.controller.current_plans import find_released_servers, find_stop_scope
    from gitboot.controller.operator_requests import AllowInstalls
    from gitboot.controller.records.install_boots import remove_withheld_boots
    from gitboot.publish.tree_reader import remove_stop_file

    state = resolve_active_state(state)
    folders = list_endpoint_folders(state)
    try:
        at = current_time()
        with open_offline(state, at) as instance:
            snapshot = instance.snapshot
            commit = remove_withheld_boots(instance.commit, snapshot.facts.withheld)
            without_stop = structs.replace(snapshot, facts=structs.replace(snapshot.facts, stop_order=None))
            scope_before = find_stop_scope(snapshot, commit, snapshot.facts.orders)
            scope_after = find_stop_scope(without_stop, commit, snapshot.facts.orders)
            names = find_released_servers(commit, snapshot, at, scope_before, scope_after)
    except (HeldByAnother, LedgerLeft) as error:  # gitboot still removes the stop of the endpoints on this host
        _exit_with_stopped_ledger(list(apply_to_folders(folders, remove_stop_file)), error)
    # Remove the stop files first. Otherwise the instance would adopt the stop again.
    messages = list(apply_to_folders(folders, remove_stop_file))
    try:
        echo_wrapped(request_change(state, AllowInstalls()))
    except LedgerError as error:
        if len(messages) == len(folders):
            raise
        _exit_with_stopped_ledger(messages, error)
    if names:
        click.echo(f"{format_count(len(names), 'server')} may boot from the network now: {format_names(names)}")
    for message in messages:
        click.echo(f"gitboot: {message}; the stop is still in effect for this folder and for the instance", err=True)
    if messages:
        sys.exit(Exit.PARTIAL)


def _exit_with_stopped_ledger(messages: list[str], error: OperatorError) -> NoReturn:
    """Report that only endpoints serve boots again, after the failures to remove stop files in ``messages``."""
    for message in messages:
        click.echo(f"gitboot: {message}", err=True)
    text = "the endpoints on this host serve boots again, but gitboot could not remove the stop from the ledger"
    click.echo(f"gitboot: {text}: {error}", err=True)
    sys.exit(Exit.PARTIAL)


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot resume --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "the instance is not suspended",
        Exit.PARTIAL: "the instance has not processed the request yet",
    },
)
@state_option
def resume_command(state: Path) -> None:
    """End a suspension.

    The instance accepts commits and sets overrides again.
    """
    from gitboot.cli.instance_client import request_change
    from gitboot.controller.operator_requests import ResumeAcceptance

    echo_wrapped(request_change(state, ResumeAcceptance()))


_NOT_RUNNING: Final = (
    "no instance is running with this state directory. The endpoints (gitboot serve) obey the stop, but the boot files "
    "on other web servers and the overrides on BMCs remain unchanged. Start the instance, or stop those web servers"
)


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot stop-installs --reason 'wrong image' --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "no endpoint serves an install boot",
        Exit.PARTIAL: "some places still offer install boots; the output lists these places",
    },
)
@state_option
@reason_option
@click.option("--all-boots", "everything", is_flag=True, help="Also withhold all other network boots.")
def stop_installs_command(state: Path, reason: str, everything: bool) -> None:
    """Immediately withhold all boots that write to disk.

    Endpoints stop at the next request, even if no instance runs. A machine then gets the `Always` boot of its policy,
    if that boot does not write to a disk. Otherwise the machine boots from its local disk. Maintenance windows still
    start and end. gitboot clears overrides. The stop stays in effect after a restart, until `gitboot allow-installs`
    ends it.

    If no instance runs, boot files on other web servers and overrides at BMCs stay as they are.
    """
    from gitboot.cli.instance_client import (
        apply_to_folders,
        list_endpoint_folders,
        request_change,
        resolve_active_state,
    )
    from gitboot.controller.operator_requests import StopInstalls
    from gitboot.publish.tree_reader import write_stop_file

    at = current_time()
    stop_order = StopOrder(read_operator_name(), reason, everything)
    state = resolve_active_state(state)
    folders = list_endpoint_folders(state)
    warnings = list(apply_to_folders(folders, lambda folder: write_stop_file(folder, stop_order, at)))
    try:
        echo_wrapped(request_change(state, StopInstalls(reason=reason, everything=everything)))
    except OperatorError as error:  # the instance adopts the endpoints' stop when the ledger is available again
        if len(warnings) == len(folders):
            raise
        click.echo(stop_order)
        warnings.append(
            f"only the endpoints that use {', '.join(map(str, folders))} have stopped serving install boots, because "
            f"gitboot could not record the stop in the ledger: {error}"
        )
    if find_running_process(state) is None:
        warnings.append(_NOT_RUNNING)
    for warning in warnings:
        click.echo(f"gitboot: {warning}", err=True)
    if warnings:
        sys.exit(Exit.PARTIAL)


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example=("gitboot suspend --until 2h --reason 'network upgrade' \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "the instance is suspended",
        Exit.PARTIAL: "the instance has not processed the request yet",
        Exit.USAGE: "the time is in the past, or an option is wrong",
    },
)
@state_option
@reason_option
@click.option(
    "--until",
    required=True,
    type=InstantType(),
    metavar="TIME",
    help="The time at which the suspension ends: a duration from now, for example 2h, 30m or 1d12h, or a time with a "
    "UTC offset, for example 2026-12-24T08:00:00Z.",
)
def suspend_command(state: Path, reason: str, until: datetime) -> None:
    """Stop accepting commits and setting overrides.

    The instance continues to reconcile: maintenance windows start and end, boot scripts change to the local disk after
    an installation, and gitboot clears overrides. The suspension ends at --until, or with `gitboot resume`.
    """
    from gitboot.cli.instance_client import request_change
    from gitboot.controller.operator_requests import SuspendAcceptance

    if until <= current_time():
        raise UsageError(f"--until {format_instant(until)} is in the past: use a future time, or a duration such as 2h")
    echo_wrapped(request_change(state, SuspendAcceptance(reason=reason, until=until)))
