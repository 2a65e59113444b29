"""`gitboot status`, `events` and `unknown-machines`: show a running instance."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gitboot.cli.completion import complete_servers
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    VARIABLES,
    InstantType,
    OutputOption,
    current_time,
    output_option,
    state_option,
    write_outputs,
)
from gitboot.cli.terminal import format_table, wrap_on_terminal, wrap_text
from gitboot.controller.instance.state_directory import (
    LEDGER,
    find_running_process,
    has_ledger,
    no_instance_error,
    read_own_lease,
    read_status,
)
from gitboot.errors import LedgerError, UsageError
from gitboot.jsonio import format_instant
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.open_ledger import open_ledger
from gitboot.standard_streams import style
from gitboot.status.conditions import FIRST_REVIEW, OR_WRITE, REASON_SEPARATOR, THEN_APPROVE, fill_state
from gitboot.status.instance_status import add_age, parse_written_at
from gitboot.text import did_you_mean, format_age, format_count, format_names, format_rest, one_line, printable

if TYPE_CHECKING:
    from gitboot.fetchlog.unknown_machines import UnknownMachines


_MAX_PROBLEMS: Final = 10
_POLL_S: Final = 0.5  # seconds between checks for new events
_MAX_INSTALLATIONS: Final = 10
_MAX_SERVERS: Final = 20


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
    from gitboot.cli.instance_client import find_output, list_endpoint_folders
    from gitboot.publish.tree_reader import StopReader, add_stop_condition

    status = read_status(state)
    process = find_running_process(state)
    if process and (published := find_output(state)) is not None:
        status = read_newest_status(status, published)
    status["process"] = process
    status["lease"] = None
    with suppress(LedgerError):  # without the database, it is unknown which instance has the lease
        if process and (lease := read_own_lease(state)) is not None:
            status["lease"] = {"number": lease.number, "until": lease.until}
    written = parse_written_at(status)
    age_s = max((current_time() - written).total_seconds(), 0) if written is not None else None
    status = add_age(status, age_s, written)
    status["conditions"] = add_stop_condition(status["conditions"], StopReader(*list_endpoint_folders(state)).current)
    listed = partial(json.dumps, status, indent=2, sort_keys=True)
    write_outputs(outputs, text=partial(_format_text, status, state), json=listed)
    sys.exit(find_status_code(status))


def find_status_code(status: Mapping[str, Any]) -> Exit:
    """Return the exit code for a status. It is `Exit.FINE` only if all conditions are true.

    A waiting standby is not a fault, so its condition Active may be false.
    """
    false = {each["type"]: each["reason"] for each in status["conditions"] if not each["status"]}
    if false.pop("Active", None) is not None:
        false.pop("LedgerNamed", None)  # the Fleet document names the ledger of the active instance
    if "AcceptingCommits" in false:
        return Exit.SUSPENDED
    if "CommitAccepted" in false:
        return Exit.HELD if false["CommitAccepted"] == "GuardTripped" else Exit.INVALID
    return Exit.PARTIAL if false else Exit.FINE


def read_newest_status(status: dict[str, Any], output: Path) -> dict[str, Any]:
    """Return ``status`` with newer values from the output tree, if any, because STATE may be on a full disk."""
    from gitboot.publish.manifest import STATUS

    acts = all(each["status"] for each in status["conditions"] if each["type"] == "Active")
    with suppress(OSError, ValueError, TypeError, KeyError):
        found = json.loads((output / STATUS).read_bytes())
        if acts and found["ledger"] == status["ledger"] and found["clock"] > status["clock"]:
            return {**status, **found}
    return status


def _format_text(status: dict[str, Any], state: Path) -> str:
    process = status["process"]
    runs = style(f"running, process {process}", fg="green") if process else style("not running", fg="red")
    age_seconds = status["ageSeconds"]
    age = [_format_fact("written", f"{format_age(age_seconds)} ago")] if age_seconds is not None else []
    # The status of the active instance shows the rest.
    if any(each["type"] == "Active" and not each["status"] for each in status["conditions"]):
        return "\n".join(
            [
                _format_fact("gitboot", f"{runs}{', standby' if process else ''}"),
                *age,
                "",
                *_format_conditions(status["conditions"], state),
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
    planned = f"{status['plannedAt'][:19]}Z" if status["plannedAt"] else "not since the start"
    lines = [
        _format_fact("gitboot", runs),
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
        _format_fact("planned at", planned),
        _format_fact("next change", status["nextTransition"] or "no change without a commit"),
    ]
    installations = status.get("installations", [])
    shown = installations[:_MAX_INSTALLATIONS]
    lines += [wrap_text(f"{each['server']}: {each['message']}", "    ", continuation="      ") for each in shown]
    if left := format_rest(sum(status.get("installing", {}).values()) - min(len(installations), _MAX_INSTALLATIONS)):
        lines.append(f"    {left}; `gitboot records` shows all records")
    if held := status["attempted"].get("held"):
        lines.append(_format_fact("held by", ", ".join(held["guards"])))
        if reinstalled := held.get("reinstalls", ()):
            lines.append(wrap_text(f"may be reinstalled: {format_names(reinstalled, _MAX_SERVERS)}", "    "))
    withheld = []
    for each in status["attempted"].get("withheld", ()):
        by = ", ".join(commit[:12] for commit in each["by"])
        boots = each["boots"] or "its disk"
        text = f"{each['server']} boots {boots}; {by} does not contain its install boot"
        withheld.append(wrap_text(_format_fact("withheld", text)))
    lines += _limit_lines(withheld)
    lines += [
        f"    {each['path']}:{each['line']}: {each['code']}: {each['message']}" for each in problems[:_MAX_PROBLEMS]
    ]
    if left := format_rest(len(problems) - _MAX_PROBLEMS):
        lines.append(f"    {left}; `gitboot validate` shows them all")
    return "\n".join([*lines, "", *_format_conditions(status["conditions"], state, held)])


def _format_acknowledgements(acknowledgements: Sequence[Mapping[str, str]]) -> Iterator[str]:
    guards: dict[tuple[str, str], list[str]] = {}
    for each in acknowledgements:
        guards.setdefault((each["commit"], each["by"]), []).append(each["guard"])
    for (commit, by), names in guards.items():
        text = _format_fact("acknowledged", f"{', '.join(names)} in {commit[:12]}: {by}")
        yield wrap_text(text, continuation=" " * 15)


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


def _format_fact(label: str, text: str) -> str:
    return f"{label:<13}  {text}"


def _limit_lines(lines: list[str]) -> list[str]:
    left = format_rest(len(lines) - _MAX_SERVERS, "server")
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
            sentences = [*_format_held(each["message"], held), *_format_approval(remedy, held)]
        elif remedy is not None:
            sentences.append(f"    {remedy}")
        below.append("\n".join(sentences))
    yield format_table(("CONDITION", "STATUS", "REASON", "SINCE (UTC)", "MESSAGE"), rows, below=below)


def _format_held(message: str, held: Mapping[str, Any]) -> Iterator[str]:
    """Yield the message of a held commit with one line for each limit that it exceeds."""
    reasons = held.get("reasons", ())
    joined = REASON_SEPARATOR.join(reasons)
    before, found, after = message.partition(joined) if joined else (message, "", "")
    yield wrap_text(before.rstrip(), "    ")
    if found:
        yield from (wrap_text(f"- {each}", "    ", continuation="      ") for each in reasons)
    if rest := after.removeprefix(". "):
        yield wrap_text(rest, "    ")


def _format_approval(remedy: str, held: Mapping[str, Any]) -> Iterator[str]:
    """Yield the steps that let a held commit through, with each command and acknowledgement alone on its line."""
    approve, _, rest = remedy.partition(FIRST_REVIEW)
    review, _, rest = rest.partition(THEN_APPROVE)
    yield "    1. Review the changes:"
    yield f"       {review}"
    yield "    2. Approve them:"
    yield f"       {approve}"
    if lines := held.get("lines", ()):
        yield f"    Or write this into {rest.partition(OR_WRITE)[2]}:"
        yield from (f"       {line}" for line in lines)


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
    if not has_ledger(state):
        raise no_instance_error(state)
    if follow and (len(outputs) > 1 or outputs[0].file is not None):
        raise UsageError("--follow prints events to standard output: use one -o without a file")
    with open_ledger(state / LEDGER) as ledger:
        events = [
            (at, each) for at, each in instance_tables.read_numbered_events(ledger) if _is_chosen(each, server, None)
        ]
        names = {machine.name for machine in server_tables.read_machines(ledger).values()} if server is not None else ()
        if server is not None and server not in names and not events:
            hint = did_you_mean(server, names, "`gitboot records show` lists the servers")
            raise UsageError(f"the ledger has no events of a server {server!r}; {hint}")
        last = max((at for at, _ in events), default=0)
        chosen = [each for _, each in events if _is_chosen(each, server, since)]
        if tail is not None:
            chosen = chosen[max(len(chosen) - tail, 0) :]
        for output in outputs:
            output.write_lines(_format_event(event, output.format) for event in chosen)
        while follow:
            time.sleep(_POLL_S)
            for at, event in instance_tables.read_numbered_events(ledger, last):
                last = at
                if _is_chosen(event, server, since):
                    outputs[0].write_lines([_format_event(event, outputs[0].format)])


def _is_chosen(event: Mapping[str, Any], server: str | None, since: datetime | None) -> bool:
    if server is not None and event.get("server") != server and server not in event.get("servers", ()):
        return False
    return since is None or datetime.fromisoformat(event["at"]) >= since


def _format_event(event: Mapping[str, Any], format: str) -> str:
    if format == "json":
        return json.dumps(event, sort_keys=True)
    at = format_instant(datetime.fromisoformat(event["at"]).replace(microsecond=0))
    text = printable(f"{at} {event['type']:<18} {one_line(str(event['message']))}")
    return wrap_on_terminal(text, sys.stdout, hanging="    ")


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot unknown-machines --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot printed the machines",
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
    from gitboot.fetchlog.unknown_machines import forget_unknown, read_unknown

    if not has_ledger(state):
        raise no_instance_error(state)
    if forget:
        forget_unknown(state)
    found = read_unknown(state)
    listed = partial(json.dumps, format_unknown_machines(found), indent=2, sort_keys=True)
    write_outputs(outputs, json=listed, text=partial(_format_unknown_machines, found))


def _format_unknown_machines(unknown_machines: UnknownMachines) -> str:
    if not unknown_machines.machines and not unknown_machines.unkept:
        return "every machine that requested a boot has a document"
    header = ["MAC", "UUID", "SERIAL", "FROM", "LAST (UTC)", "TIMES", "SERVER"]
    rows: list[list[str]] = []
    for each in unknown_machines.machines:
        mac = each.macs[0].replace("-", ":") if each.macs else "-"
        who = f"{mac} +{len(each.macs) - 1}" if len(each.macs) > 1 else mac
        words = (each.uuid or "-", each.serial or "-", each.client)
        rows.append([who, *words, f"{each.last:%Y-%m-%d %H:%M}", str(each.times), each.server or "-"])
    # Unknown machines are rarely similar to a document.
    if not any(each.server for each in unknown_machines.machines):
        header, rows = header[:-1], [row[:-1] for row in rows]
    found_in = [wrap_text(str(each.inventory), "    ") if each.inventory else "" for each in unknown_machines.machines]
    text = format_table(header, rows, shrinkable=(2,), below=found_in) if rows else ""
    if rows:
        text += "\n\nWrite a document for a machine:\n    gitboot new server NAME --seen MAC --state STATE"
    if unknown_machines.unkept:
        requests = format_count(unknown_machines.unkept, "request")
        notice = (
            f"gitboot did not list {requests}, because the list was full. gitboot unknown-machines --forget clears it."
        )
        text += "\n" + wrap_text(notice)
    return text.strip("\n")
