"""`gitboot status`, `events`, `reconcile`, `approve` and others: show and control a running instance."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

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
    read_own_lease,
    read_status,
    require_active,
    require_ledger,
)
from gitboot.errors import HeldByAnother, LedgerError, LedgerLeft, NotYetDone, OperatorError, UsageError
from gitboot.jsonio import format_instant
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.open_ledger import open_for_reading
from gitboot.resolve.provisioning_record import StopOrder
from gitboot.standard_streams import has_reader, style
from gitboot.status.conditions import FIRST_REVIEW, OR_WRITE, REASON_SEPARATOR, THEN_APPROVE, fill_state
from gitboot.status.instance_status import add_age, parse_written_at
from gitboot.text import format_age, format_count, format_names, format_omitted, format_suggestion, one_line, printable

# The functions below import the other modules that they need, because `gitboot events --follow` needs none of them.
if TYPE_CHECKING:
    from gitboot.fetchlog.unknown_machines import UnknownMachines


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot status --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "all conditions are true, or the instance is a standby",
        Exit.INVALID: "the instance rejected the newest commit",
        Exit.HELD: "a guard holds the newest commit",
        Exit.SUSPENDED: "the instance is suspended",
        Exit.PARTIAL: "another condition is false, for example because installs are stopped",
        Exit.USAGE: "no instance has run with this state directory",
    },
)
@state_option
@output_option("text", "json")
def command(state: Path, outputs: tuple[OutputOption, ...]) -> None:
    """Show conditions, commits and counts.

    gitboot shows the commits that the instance has accepted and applied, the number of servers by state, installations
    in progress, and the conditions of the instance. A condition has a type, a status, a reason, a message and the time
    of its last change. A condition that is false also has a remedy.

    The exit code is 0 only if all conditions are true. If several other codes apply, gitboot returns the first of 7, 4,
    3 and 8.
    """
    from gitboot.cli.instance_client import find_output_tree, list_endpoint_folders
    from gitboot.publish.tree_reader import StopReader, add_stop_condition

    status = read_status(state)
    process = find_running_process(state)
    if process and (published := find_output_tree(state)) is not None:
        status = merge_published_status(status, published)
    status["process"] = process
    status["lease"] = None
    with suppress(LedgerError):  # without the database, it is unknown which instance has the lease
        if process and (lease := read_own_lease(state)) is not None:
            status["lease"] = {"number": lease.number, "until": lease.until}
    written = parse_written_at(status)
    age_s = max((current_time() - written).total_seconds(), 0) if written is not None else None
    status = add_age(status, age_s, written)
    status["conditions"] = add_stop_condition(status["conditions"], StopReader(*list_endpoint_folders(state)).current)
    as_json = partial(json.dumps, status, indent=2, sort_keys=True)
    write_outputs(outputs, text=partial(_format_text, status, state), json=as_json)
    sys.exit(find_status_exit_code(status))


def find_status_exit_code(status: Mapping[str, Any]) -> Exit:
    """Return the exit code for a status. The code is `Exit.FINE` only if all conditions are true.

    The condition Active may be false for a waiting standby, because waiting is not a fault.
    """
    false_reasons = {each["type"]: each["reason"] for each in status["conditions"] if not each["status"]}
    if false_reasons.pop("Active", None) is not None:
        false_reasons.pop("LedgerNamed", None)  # the Fleet document names the ledger of the active instance
    if "AcceptingCommits" in false_reasons:
        return Exit.SUSPENDED
    if "CommitAccepted" in false_reasons:
        return Exit.HELD if false_reasons["CommitAccepted"] == "GuardTripped" else Exit.INVALID
    return Exit.PARTIAL if false_reasons else Exit.FINE


def merge_published_status(status: dict[str, Any], output: Path) -> dict[str, Any]:
    """Return ``status``, updated with newer values from the output tree, if there are any.

    The status in STATE may be outdated, for example if the disk is full.
    """
    from gitboot.publish.manifest import STATUS

    is_active = all(each["status"] for each in status["conditions"] if each["type"] == "Active")
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads((output / STATUS).read_bytes())
        if is_active and found["ledger"] == status["ledger"] and found["clock"] > status["clock"]:
            return {**status, **found}
    return status


_TERMS: Final = 'The documentation pages "Glossary" and "Every condition" explain these terms.'


# Labels and values for the counts in a status.
_COUNT_LABELS: Final = {
    "records": "records",
    "installs": "install boots",
    "runs": "one-time runs",
    "installing": "installing",
    "drift": "drift",
    "bmcs": "BMCs",
}
_COUNT_TEXTS: Final = {
    "Attempted": "Served",
    "Installing/Attempted": "Installing/Served",
    "Made": "Booted",
    "Served/Attempted": "Served",
}
_MAX_PROBLEMS: Final = 10
_MAX_INSTALLATIONS: Final = 10
_MAX_SERVERS: Final = 20


def _format_text(status: dict[str, Any], state: Path) -> str:
    process = status["process"]
    process_text = style(f"running, process {process}", fg="green") if process else style("not running", fg="red")
    age_seconds = status["ageSeconds"]
    age = [_format_fact("written", f"{format_age(age_seconds)} ago")] if age_seconds is not None else []
    # The status of the active instance shows the rest.
    if any(each["type"] == "Active" and not each["status"] for each in status["conditions"]):
        return "\n".join(
            [
                _format_fact("gitboot", f"{process_text}{', standby' if process else ''}"),
                *age,
                "",
                *_format_conditions(status["conditions"], state),
                "",
                wrap_text(_TERMS),
            ]
        )
    lease, problems = status["lease"], status["attempted"]["problems"]
    newest = str(status["attempted"]["commit"] or "-")
    if problems:
        newest += f", {format_count(len(problems), 'problem')}"
    accepted, signer = status["accepted"], status["accepted"].get("signer")
    numbers = {
        name: ", ".join(f"{number} {_COUNT_TEXTS.get(what, what)}" for what, number in status[name].items())
        for name in ("phases", *_COUNT_LABELS)
        if status.get(name)
    }
    phases = numbers.pop("phases", "")
    lines = [
        _format_fact("gitboot", process_text),
        *age,
        *([_format_fact("lease", f"{lease['number']}, until {lease['until']}")] if lease else []),
        *(_format_fact(name, status[name]) for name in ("ledger", "site", "branch") if status.get(name)),
        _format_fact("applied", status["applied"]["commit"] or "-"),
        *([_format_fact("signed by", f"{signer['person']} ({signer['key']})")] if signer is not None else []),
        *_format_acknowledgements(accepted.get("acknowledged", ())),
        _format_fact("newest commit", newest),
        _format_fact("servers", f"{sum(status['phases'].values())}{': ' if phases else ''}{phases}"),
        *(_format_fact(_COUNT_LABELS[name], text) for name, text in numbers.items()),
        *([_format_fact("progress", status["progress"]["message"])] if process and status.get("progress") else []),
        _format_fact("planned at", f"{status['plannedAt'][:19]}Z" if status["plannedAt"] else "not since startup"),
        _format_fact("next change", status["nextTransition"] or "none planned until a new commit arrives"),
    ]
    installations = status.get("installations", [])
    shown = installations[:_MAX_INSTALLATIONS]
    lines += [wrap_text(f"{each['server']}: {each['message']}", "    ", continuation="      ") for each in shown]
    if left := format_omitted(sum(status.get("installing", {}).values()) - min(len(installations), _MAX_INSTALLATIONS)):
        lines.append(f"    {left}; `gitboot records` shows all records")
    if held := status["attempted"].get("held"):
        lines.append(_format_fact("held by", ", ".join(held["guards"])))
        if reinstalled := held.get("reinstalls", ()):
            lines.append(wrap_text(f"may be reinstalled: {format_names(reinstalled, _MAX_SERVERS)}", "    "))
    withheld = [
        f"{each['server']} boots {each['boots'] or 'from its disk'}, because its install boot is missing from the "
        f"newer {'commit' if len(each['by']) == 1 else 'commits'} {', '.join(commit[:12] for commit in each['by'])}"
        for each in status["attempted"].get("withheld", ())
    ]
    lines += _limit_lines([wrap_text(_format_fact("withheld", text)) for text in withheld])
    lines += [
        f"    {each['path']}:{each['line']}: {each['code']}: {each['message']}" for each in problems[:_MAX_PROBLEMS]
    ]
    if left := format_omitted(len(problems) - _MAX_PROBLEMS):
        lines.append(f"    {left}; `gitboot validate` shows them all")
    return "\n".join([*lines, "", *_format_conditions(status["conditions"], state, held), "", wrap_text(_TERMS)])


def _format_acknowledgements(acknowledgements: Sequence[Mapping[str, str]]) -> Iterator[str]:
    guards: dict[tuple[str, str], list[str]] = {}
    for each in acknowledgements:
        guards.setdefault((each["commit"], each["by"]), []).append(each["guard"])
    for (commit, by), names in guards.items():
        text = _format_fact("acknowledged", f"{', '.join(names)} in {commit[:12]}: {by}")
        yield wrap_text(text, continuation=" " * 15)


def _format_fact(label: str, text: str) -> str:
    return f"{label:<13}  {text}"


def _limit_lines(lines: list[str]) -> list[str]:
    left = format_omitted(len(lines) - _MAX_SERVERS, "server")
    return [*lines[:_MAX_SERVERS], *([f"    {left}; `gitboot status -o json` lists them all"] if left else [])]


def _format_conditions(
    conditions: list[dict[str, Any]], state: Path, held: Mapping[str, Any] | None = None
) -> Iterator[str]:
    found = sorted(conditions, key=lambda each: (each["status"], each["type"]))
    rows = [
        (
            style(each["type"], fg=None if each["status"] else "red"),
            "true" if each["status"] else "false",
            each["reason"],
            each["lastTransitionTime"][:16].replace("T", " "),
            each["message"] if each["status"] else "",
        )
        for each in found
    ]
    below = []
    for each in found:
        sentences = [] if each["status"] else [wrap_text(each["message"], "    ")]
        remedy = fill_state(each["remedy"], str(state)) if sentences and each.get("remedy") else None
        if remedy is not None and each["reason"] == "GuardTripped" and held is not None:
            sentences = [*_format_held_commit(each["message"], held), *_format_approval(remedy, held)]
        elif remedy is not None:
            sentences.append(f"    {remedy}")
        below.append("\n".join(sentences))
    yield format_table(("CONDITION", "STATUS", "REASON", "SINCE (UTC)", "MESSAGE"), rows, below=below)


def _format_held_commit(message: str, held: Mapping[str, Any]) -> Iterator[str]:
    """Yield the message about a held commit, with one line for each limit that the commit exceeds."""
    reasons = held.get("reasons", ())
    joined = REASON_SEPARATOR.join(reasons)
    before, found, after = message.partition(joined) if joined else (message, "", "")
    yield wrap_text(before.rstrip(), "    ")
    if found:
        yield from (wrap_text(f"- {each}", "    ", continuation="      ") for each in reasons)
    if rest := after.removeprefix(". "):
        yield wrap_text(rest, "    ")


def _format_approval(remedy: str, held: Mapping[str, Any]) -> Iterator[str]:
    """Yield the steps to approve a held commit, with each command and each acknowledgement on a separate line."""
    approve, _, rest = remedy.partition(FIRST_REVIEW)
    review, _, rest = rest.partition(THEN_APPROVE)
    yield "    1. Review the changes:"
    yield f"       {review}"
    yield "    2. Approve them:"
    yield f"       {approve}"
    if lines := held.get("lines", ()):
        yield f"    Or write this into {rest.partition(OR_WRITE)[2]}:"
        yield from (f"       {line}" for line in lines)


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
            (at, each)
            for at, each in instance_tables.read_numbered_events(ledger)
            if _matches_filters(each, server, None)
        ]
        names = {machine.name for machine in server_tables.read_machines(ledger).values()} if server is not None else ()
        if server is not None and server not in names and not events:
            hint = format_suggestion(server, names, "`gitboot records show` lists the servers")
            raise UsageError(f"the ledger has no events for server {server!r}; {hint}")
        last = max((at for at, _ in events), default=0)
        chosen = [each for _, each in events if _matches_filters(each, server, since)]
        if tail is not None:
            chosen = chosen[max(len(chosen) - tail, 0) :]
        for output in outputs:
            output.write_lines(_format_event(event, output.format) for event in chosen)
        while follow and has_reader():
            time.sleep(_POLL_S)
            for at, event in instance_tables.read_numbered_events(ledger, last):
                last = at
                if _matches_filters(event, server, since):
                    outputs[0].write_lines([_format_event(event, outputs[0].format)])


def _matches_filters(event: Mapping[str, Any], server: str | None, since: datetime | None) -> bool:
    if server is not None and event.get("server") != server and server not in event.get("servers", ()):
        return False
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
    found = load_unknown_machines(state)
    as_json = partial(json.dumps, format_unknown_machines(found), indent=2, sort_keys=True)
    write_outputs(outputs, json=as_json, text=partial(_format_unknown_machines, found))


def _format_unknown_machines(unknown_machines: UnknownMachines) -> str:
    if not unknown_machines.machines and not unknown_machines.dropped_count:
        return "every machine that requested a boot has a document"
    header = ["MAC", "UUID", "SERIAL", "FROM", "LAST (UTC)", "TIMES", "SERVER"]
    rows: list[list[str]] = []
    for each in unknown_machines.machines:
        mac = each.macs[0].replace("-", ":") if each.macs else "-"
        macs_text = f"{mac} +{len(each.macs) - 1}" if len(each.macs) > 1 else mac
        words = (each.uuid or "-", each.serial or "-", each.client)
        rows.append([macs_text, *words, f"{each.last:%Y-%m-%d %H:%M}", str(each.times), each.server or "-"])
    # Unknown machines are rarely similar to a document.
    if not any(each.server for each in unknown_machines.machines):
        header, rows = header[:-1], [row[:-1] for row in rows]
    inventories = [
        wrap_text(str(each.inventory), "    ") if each.inventory else "" for each in unknown_machines.machines
    ]
    text = format_table(header, rows, shrinkable=(2,), below=inventories) if rows else ""
    if rows:
        text += "\n\nWrite a document for a machine:\n    gitboot new server NAME --seen MAC --state STATE"
    if unknown_machines.dropped_count:
        requests = format_count(unknown_machines.dropped_count, "request")
        text += "\n" + wrap_text(
            f"The list was full, so {requests} could not be added. To clear the list, run "
            "`gitboot unknown-machines --forget`."
        )
    return text.strip("\n")


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
    triggered, until = current_time(), time.monotonic() + timeout_s
    try:
        os.kill(process, signal.SIGHUP)
    except OSError as error:
        raise UsageError(f"cannot signal process {process}: {error.strerror}") from None
    if timeout_s == 0:
        click.echo(f"Triggered process {process}. Run `gitboot status` for the result.", err=True)
        return
    found: Mapping[str, Any] = {}
    while time.monotonic() < until:
        found = _read_newest_status(state)
        if (outcome := find_reconcile_outcome(found, triggered)) is not None:
            code, message = outcome
            click.echo(message, err=True)
            sys.exit(code)
        if find_running_process(state) != process:
            raise NotYetDone(
                f"{state}: process {process} ended before the reconcile was complete; run `gitboot status`"
            )
        time.sleep(_OUTCOME_POLL_S)
    source = _list_conditions(found).get("SourceReady")
    why = f": {source['message']}" if source is not None and not source["status"] else ""
    raise NotYetDone(
        f"{state}: process {process} did not finish reconciling within {timeout_s} s{why}; run `gitboot status` "
        "for the result"
    )


def find_reconcile_outcome(status: Mapping[str, Any], triggered_at: datetime) -> tuple[Exit, str] | None:
    """Return the outcome of the first fetch after ``triggered_at`` and of the reconcile that follows the fetch.

    Return None until both the fetch and the reconcile have ended.
    """
    fetched, conditions = status.get("fetched") or {}, _list_conditions(status)
    if fetched.get("began") is None or datetime.fromisoformat(fetched["began"]) < triggered_at:
        return None
    if (source := conditions.get("SourceReady")) is None:
        return None
    if not source["status"]:
        return Exit.SOURCE, f"The fetch failed ({source['reason']}): {source['message']}"
    commit = str(fetched["commit"])
    if (accepting := conditions.get("AcceptingCommits")) is not None and not accepting["status"]:
        return Exit.SUSPENDED, f"Fetched {commit[:12]}. The instance has not accepted it: {accepting['message']}"
    if status["attempted"]["commit"] != commit:
        return None  # the instance is still evaluating the commit
    accepted = conditions.get("CommitAccepted")
    if accepted is not None and not accepted["status"]:
        return (
            Exit.HELD if status["attempted"]["held"] is not None else Exit.INVALID,
            f"Fetched {commit[:12]}. The instance has not accepted it ({accepted['reason']}): {accepted['message']}",
        )
    if status["accepted"]["commit"] != commit:
        return None  # not final: the instance reads all earlier fetches before it decides about the commit
    for type in ("LedgerWritable", "Published"):
        if (found := conditions.get(type)) is not None and not found["status"]:
            return Exit.PARTIAL, f"Accepted {commit[:12]}. {type} is false ({found['reason']}): {found['message']}"
    return Exit.FINE, f"Fetched {commit[:12]}. The commit is accepted, and the instance has reconciled."


def _read_newest_status(state: Path) -> Mapping[str, Any]:
    from gitboot.cli.instance_client import find_output_tree

    with suppress(UsageError):
        status = read_status(state)
        return merge_published_status(status, output) if (output := find_output_tree(state)) is not None else status
    return {}


def _list_conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["type"]: each for each in status.get("conditions", ())}


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
    from gitboot.controller.operator_requests import APPROVE, check_approval, find_held_commit

    if bool(guards) is all_guards:
        raise UsageError("specify either --all-guards or at least one --guard GUARD")
    read_status(state)  # this raises an error if no instance has ever run here
    require_active(state)
    held = find_held_commit(read_held_change(state), digest)
    named = sorted(held.guards if all_guards else set(guards))
    check_approval(held, held.digest, named)
    echo_wrapped(request_change(state, APPROVE, {"digest": held.digest, "guards": named, "reason": reason}))


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

    gitboot serves install boots again, and prints the servers that boot from the network from now on.
    """
    from gitboot.cli.instance_client import (
        apply_to_folders,
        list_endpoint_folders,
        open_offline,
        request_change,
        resolve_active_state,
    )
    from gitboot.controller.operator_requests import START, find_released_servers, find_stop_scope
    from gitboot.controller.records.install_boots import remove_withheld_boots
    from gitboot.publish.tree_reader import remove_stop_file

    found = list_endpoint_folders(state := resolve_active_state(state))
    try:
        at = current_time()
        with open_offline(state, at) as instance:
            snapshot = instance.snapshot
            commit = remove_withheld_boots(instance.commit, snapshot.facts.withheld)
            without_stop = structs.replace(snapshot, facts=structs.replace(snapshot.facts, stoppage=None))
            before, after = (find_stop_scope(each, commit, snapshot.facts.orders) for each in (snapshot, without_stop))
            names = find_released_servers(commit, snapshot, at, before, after)
    except (HeldByAnother, LedgerLeft) as error:  # this removes the stop of the endpoints on this host
        unchanged = f"the endpoints on this host serve boots again, but the ledger still records the stop: {error}"
        for each in (*apply_to_folders(found, remove_stop_file), unchanged):
            click.echo(f"gitboot: {each}", err=True)
        sys.exit(Exit.PARTIAL)
    # Remove the stop files first. Otherwise the instance would adopt the stop again.
    missed = list(apply_to_folders(found, remove_stop_file))
    echo_wrapped(request_change(state, START, {}))
    if names:
        click.echo(f"{format_count(len(names), 'server')} may boot from the network now: {format_names(names)}")
    for each in missed:
        click.echo(f"gitboot: {each}; the stop is still in effect for this folder and for the instance", err=True)
    if missed:
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
    from gitboot.controller.operator_requests import RESUME

    echo_wrapped(request_change(state, RESUME, {}))


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
    """Immediately withhold all boots that write a disk.

    Endpoints stop at the next request, even if no instance runs. A machine then gets the boot that its policy always
    serves, if that boot writes no disk. Otherwise the machine boots its local disk. Maintenance windows still start and
    end. gitboot clears overrides. The stop stays in effect after a restart, until `gitboot allow-installs` ends it.

    If no instance runs, boot files on other web servers and overrides at BMCs stay as they are.
    """
    from gitboot.cli.instance_client import (
        apply_to_folders,
        list_endpoint_folders,
        request_change,
        resolve_active_state,
    )
    from gitboot.controller.operator_requests import STOP
    from gitboot.publish.tree_reader import write_stop_file

    at, stoppage = current_time(), StopOrder(read_operator_name(), reason, everything)
    found = list_endpoint_folders(state := resolve_active_state(state))
    missed = list(apply_to_folders(found, lambda folder: write_stop_file(folder, stoppage, at)))
    try:
        echo_wrapped(request_change(state, STOP, {"reason": reason, "everything": everything}))
    except OperatorError as error:  # the instance adopts the endpoints' stop when the ledger is available again
        if len(missed) == len(found):
            raise
        click.echo(stoppage)
        reached = ", ".join(map(str, found))
        missed.append(
            f"only the endpoints that use {reached} have stopped serving install boots, because gitboot could not "
            f"record the stop in the ledger: {error}"
        )
    if find_running_process(state) is None:
        missed.append(_NOT_RUNNING)
    for each in missed:
        click.echo(f"gitboot: {each}", err=True)
    if missed:
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
    from gitboot.controller.operator_requests import SUSPEND

    if until <= current_time():
        raise UsageError(f"--until {format_instant(until)} is in the past: use a future time, or a duration such as 2h")
    echo_wrapped(request_change(state, SUSPEND, {"reason": reason, "until": format_instant(until)}))
