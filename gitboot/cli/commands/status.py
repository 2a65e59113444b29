"""`gitboot status`: show the conditions, the commits and the counts of an instance."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from gitboot.cli.main import Command, Exit
from gitboot.cli.options import VARIABLES, OutputOption, current_time, output_option, state_option, write_outputs
from gitboot.cli.terminal import format_table, wrap_text
from gitboot.controller.instance.state_directory import find_running_process, read_own_lease, read_status
from gitboot.errors import LedgerError
from gitboot.jsonio import parse_json
from gitboot.standard_streams import style
from gitboot.status.conditions import FIRST_REVIEW, OR_WRITE, REASON_SEPARATOR, THEN_APPROVE, fill_state
from gitboot.status.instance_status import add_age, parse_written_at
from gitboot.text import format_age, format_count, format_names, format_omitted


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
    output = find_output_tree(state) if process else None
    if output is not None:
        status = merge_published_status(status, output)
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
    false_reasons = {
        condition["type"]: condition["reason"] for condition in status["conditions"] if not condition["status"]
    }
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

    with suppress(OSError, ValueError, TypeError, KeyError):
        published = parse_json((output / STATUS).read_bytes())
        is_newer = published["ledger"] == status["ledger"] and published["clock"] > status["clock"]
        if is_newer and not _is_standby(status):
            return {**status, **published}
    return status


def _is_standby(status: Mapping[str, Any]) -> bool:
    return any(condition["type"] == "Active" and not condition["status"] for condition in status["conditions"])


_TERMS: Final = 'The documentation pages "Glossary" and "Every condition" explain these terms.'
# Labels and values for the counts in a status.
_COUNT_LABELS: Final = {
    "records": "records",
    "installs": "install boots",
    "stopped": "held back",
    "runs": "one-time runs",
    "installing": "installing",
    "drift": "drift",
    "bmcs": "BMCs",
}
_COUNT_TEXTS: Final = {
    "All": "because all boots from the network are stopped",
    "Attempted": "Served",
    "Installing/Attempted": "Installing/Served",
    "Installs": "because install boots are stopped",
    "Made": "Booted",
    "Served/Attempted": "Served",
}
_MAX_PROBLEMS: Final = 10
_MAX_INSTALLATIONS: Final = 10
_MAX_SERVERS: Final = 20


def _format_text(status: dict[str, Any], state: Path) -> str:
    process = status["process"]
    process_text = style(f"running, process {process}", fg="green") if process else style("not running", fg="red")
    is_standby = _is_standby(status)
    lines = [_format_fact("gitboot", f"{process_text}, standby" if process and is_standby else process_text)]
    if status["ageSeconds"] is not None:
        lines.append(_format_fact("written", f"{format_age(status['ageSeconds'])} ago"))
    held = None
    if not is_standby:  # for a standby, the status of the active instance shows these facts
        lines += _format_facts(status)
        lines += _format_installations(status)
        lines += _format_attempted_commit(status["attempted"])
        held = status["attempted"].get("held")
    return "\n".join([*lines, "", _format_conditions(status["conditions"], state, held), "", wrap_text(_TERMS)])


def _format_facts(status: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lease, the commits, the counts of servers by state, and the next change of an active instance."""
    lease, problems, signer = status["lease"], status["attempted"]["problems"], status["accepted"].get("signer")
    if lease:
        yield _format_fact("lease", f"{lease['number']}, until {lease['until']}")
    for name in ("ledger", "site", "branch"):
        if status.get(name):
            yield _format_fact(name, status[name])
    yield _format_fact("applied", status["applied"]["commit"] or "-")
    if signer is not None:
        yield _format_fact("signed by", f"{signer['person']} ({signer['key']})")
    yield from _format_acknowledgements(status["accepted"].get("acknowledged", ()))
    problem_count = f", {format_count(len(problems), 'problem')}" if problems else ""
    yield _format_fact("newest commit", f"{status['attempted']['commit'] or '-'}{problem_count}")
    phases = _format_counts(status["phases"])
    yield _format_fact("servers", f"{sum(status['phases'].values())}{': ' if phases else ''}{phases}")
    for name, label in _COUNT_LABELS.items():
        if status.get(name):
            yield _format_fact(label, _format_counts(status[name]))
    if status["process"] and status.get("progress"):
        yield _format_fact("progress", status["progress"]["message"])
    yield _format_fact("planned at", f"{status['plannedAt'][:19]}Z" if status["plannedAt"] else "not since startup")
    yield _format_fact("next change", status["nextTransition"] or "none planned until a new commit arrives")


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {_COUNT_TEXTS.get(name, name)}" for name, number in counts.items())


def _format_acknowledgements(acknowledgements: Sequence[Mapping[str, str]]) -> Iterator[str]:
    guards: dict[tuple[str, str], list[str]] = {}
    for acknowledgement in acknowledgements:
        key = acknowledgement["commit"], acknowledgement["by"]
        guards.setdefault(key, []).append(acknowledgement["guard"])
    for (commit, by), names in guards.items():
        text = _format_fact("acknowledged", f"{', '.join(names)} in {commit[:12]}: {by}")
        yield wrap_text(text, continuation=" " * 15)


def _format_installations(status: Mapping[str, Any]) -> Iterator[str]:
    shown = status.get("installations", [])[:_MAX_INSTALLATIONS]
    for installation in shown:
        yield wrap_text(f"{installation['server']}: {installation['message']}", "    ", continuation="      ")
    if left := format_omitted(sum(status.get("installing", {}).values()) - len(shown)):
        yield f"    {left}; `gitboot records` shows all records"


def _format_attempted_commit(attempted: Mapping[str, Any]) -> Iterator[str]:
    """Yield the guards that hold the newest commit, the boots that gitboot withholds, and the problems."""
    held, problems = attempted.get("held"), attempted["problems"]
    if held:
        yield _format_fact("held by", ", ".join(held["guards"]))
        if reinstalled := held.get("reinstalls", ()):
            yield wrap_text(f"may be reinstalled: {format_names(reinstalled, _MAX_SERVERS)}", "    ")
    withheld = attempted.get("withheld", ())
    for boot in withheld[:_MAX_SERVERS]:
        commits = f"{'commit' if len(boot['by']) == 1 else 'commits'} {', '.join(commit[:12] for commit in boot['by'])}"
        text = (
            f"{boot['server']} boots {boot['boots'] or 'from its disk'}, because its install boot is missing from the "
            f"newer {commits}"
        )
        yield wrap_text(_format_fact("withheld", text))
    if left := format_omitted(len(withheld) - _MAX_SERVERS, "server"):
        yield f"    {left}; `gitboot status -o json` lists them all"
    for problem in problems[:_MAX_PROBLEMS]:
        yield f"    {problem['path']}:{problem['line']}: {problem['code']}: {problem['message']}"
    if left := format_omitted(len(problems) - _MAX_PROBLEMS):
        yield f"    {left}; `gitboot validate` shows them all"


def _format_fact(label: str, text: str) -> str:
    return f"{label:<13}  {text}"


def _format_conditions(conditions: list[dict[str, Any]], state: Path, held: Mapping[str, Any] | None) -> str:
    """Format a table of conditions, with the false conditions and their remedies first.

    ``held`` contains the facts about the commit that a guard holds.
    """
    conditions = sorted(conditions, key=lambda condition: (condition["status"], condition["type"]))
    rows: list[tuple[str, ...]] = []
    remedies: list[str] = []
    for condition in conditions:
        is_true, since = condition["status"], condition["lastTransitionTime"][:16].replace("T", " ")
        name = style(condition["type"], fg=None if is_true else "red")
        message = condition["message"] if is_true else ""
        rows.append((name, "true" if is_true else "false", condition["reason"], since, message))
        remedies.append("" if is_true else "\n".join(_format_remedy(condition, state, held)))
    return format_table(("CONDITION", "STATUS", "REASON", "SINCE (UTC)", "MESSAGE"), rows, below=remedies)


def _format_remedy(condition: Mapping[str, Any], state: Path, held: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the message of a false condition, and what to do."""
    remedy = fill_state(condition["remedy"], str(state)) if condition.get("remedy") else None
    if remedy is not None and condition["reason"] == "GuardTripped" and held is not None:
        yield from _format_held_commit(condition["message"], held)
        yield from _format_approval(remedy, held)
        return
    yield wrap_text(condition["message"], "    ")
    if remedy is not None:
        yield f"    {remedy}"


def _format_held_commit(message: str, held: Mapping[str, Any]) -> Iterator[str]:
    """Yield the message about a held commit, with one line for each limit that the commit exceeds."""
    reasons = held.get("reasons", ())
    joined = REASON_SEPARATOR.join(reasons)
    before, matched, after = message.partition(joined) if joined else (message, "", "")
    yield wrap_text(before.rstrip(), "    ")
    if matched:
        yield from (wrap_text(f"- {reason}", "    ", continuation="      ") for reason in reasons)
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
