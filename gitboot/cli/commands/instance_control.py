"""Control of an instance: `gitboot approve`, `reconcile`, `suspend`, `resume`, `stop-installs` and `allow-installs`."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from msgspec import structs

from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import (
    apply_to_folders,
    find_output,
    list_endpoint_folders,
    open_offline,
    read_held_change,
    request_change,
    resolve_active_state,
)
from gitboot.cli.main import Exit
from gitboot.cli.options import (
    MAX_SECONDS,
    VARIABLES,
    InstantType,
    current_time,
    read_operator_name,
    reason_option,
    state_option,
)
from gitboot.controller.instance.state_directory import check_acts, find_running_process, read_status
from gitboot.controller.operator_requests import (
    APPROVE,
    RESUME,
    START,
    STOP,
    SUSPEND,
    check_approval,
    decide_halt,
    find_released_servers,
)
from gitboot.errors import HeldByAnother, LedgerError, LedgerLeft, NotYetDone, OperatorError, UsageError
from gitboot.jsonio import format_instant
from gitboot.publish.tree_reader import remove_stop, write_stop
from gitboot.resolve.boot_limits import StopOrder
from gitboot.review.guards import Guard
from gitboot.text import format_count, format_names

_TIMEOUT_S: Final = 180  # a fetch that hangs fails after `git-timeout`, and then the next one may hang, too
_POLL_S: Final = 0.1


@click.command(context_settings=VARIABLES)
@state_option
@click.option(
    "--timeout",
    "timeout_s",
    envvar="GITBOOT_TIMEOUT",
    type=click.IntRange(min=0, max=MAX_SECONDS),
    default=_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait for the outcome. With 0, the command only triggers the fetch.",
)
def reconcile_command(state: Path, timeout_s: int) -> None:
    """Let the instance on STATE fetch and reconcile now, and report the outcome.

    The exit code is 6 if the fetch failed, and 3 if the newest commit is rejected: it is invalid, no trusted key signed
    it (--verify), or its evaluation did not end. The exit code is 4 if the commit is held, 7 if the instance is
    suspended, and 8 if the instance could not write the ledger, could not publish, or has not finished in time.
    """
    state = resolve_active_state(state)
    process = find_running_process(state)
    if process is None:
        raise UsageError(f"no gitboot runs with the state directory {state}: begin with `gitboot run`")
    with suppress(LedgerError):  # a database that is down keeps no commit away
        check_acts(state)
    triggered, until = datetime.now(UTC), time.monotonic() + timeout_s
    try:
        os.kill(process, signal.SIGHUP)
    except OSError as error:
        raise UsageError(f"process {process} cannot be triggered: {error.strerror}") from None
    if timeout_s == 0:
        click.echo(f"Triggered process {process}. Run `gitboot status` for the result.", err=True)
        return
    found: Mapping[str, Any] = {}
    while time.monotonic() < until:
        found = _read_newest_status(state)
        if (outcome := find_outcome(found, triggered)) is not None:
            code, message = outcome
            click.echo(message, err=True)
            sys.exit(code)
        if find_running_process(state) != process:
            raise NotYetDone(f"{state}: process {process} ended before it had finished; run `gitboot status`")
        time.sleep(_POLL_S)
    source = _list_conditions(found).get("SourceReady")
    why = f": {source['message']}" if source is not None and not source["status"] else ""
    raise NotYetDone(
        f"{state}: process {process} has not finished within {timeout_s} s{why}; run `gitboot status` for the result"
    )


def find_outcome(status: Mapping[str, Any], triggered_at: datetime) -> tuple[Exit, str] | None:
    """Return the outcome of a fetch that began after ``triggered``, and of the reconcile after it; None: not yet."""
    fetched, conditions = status.get("fetched") or {}, _list_conditions(status)
    if fetched.get("began") is None or datetime.fromisoformat(fetched["began"]) < triggered_at:
        return None
    if (source := conditions.get("SourceReady")) is None:
        return None
    if not source["status"]:
        return Exit.SOURCE, f"The fetch failed ({source['reason']}): {source['message']}"
    commit = str(fetched["commit"])
    if (accepting := conditions.get("AcceptingCommits")) is not None and not accepting["status"]:
        return Exit.SUSPENDED, f"Fetched {commit[:12]}, which is not accepted: {accepting['message']}"
    if status["attempted"]["commit"] != commit:
        return None  # the instance still evaluates the commit
    accepted = conditions.get("CommitAccepted")
    if accepted is not None and not accepted["status"]:
        code = Exit.HELD if status["attempted"]["held"] is not None else Exit.INVALID
        return code, f"Fetched {commit[:12]}, which is not accepted ({accepted['reason']}): {accepted['message']}"
    if status["accepted"]["commit"] != commit:
        return None  # the instance reads what was fetched until now before it judges the commit
    for type in ("LedgerWritable", "Published"):
        if (found := conditions.get(type)) is not None and not found["status"]:
            return Exit.PARTIAL, f"Accepted {commit[:12]}. {type} is false ({found['reason']}): {found['message']}"
    return Exit.FINE, f"Fetched {commit[:12]}. The commit is accepted, and the instance has reconciled."


def _read_newest_status(state: Path) -> Mapping[str, Any]:
    """Return the newest status of the instance; empty if it has not written one yet."""
    from gitboot.cli.commands.status import read_newest_status

    with suppress(UsageError):
        status = read_status(state)
        return read_newest_status(status, output) if (output := find_output(state)) is not None else status
    return {}


def _list_conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["type"]: each for each in status.get("conditions", ())}


@click.command(context_settings=VARIABLES)
@click.argument("digest")
@state_option
@click.option(
    "--guard",
    "guards",
    required=True,
    multiple=True,
    type=click.Choice([str(guard) for guard in Guard]),
    metavar="GUARD",
    help="What is acknowledged: maxReinstalls, maxUpdatePercent, … as `gitboot status` names it; may be given "
    "several times.",
)
@reason_option
def approve_command(digest: str, state: Path, guards: tuple[str, ...], reason: str) -> None:
    """Acknowledge what holds the newest commit; DIGEST is of all that it changes, as
    `gitboot status` shows it.

    It counts for exactly these changes: one more commit, and they are to be looked at again. The line
    `Gitboot-Ack: DIGEST GUARD` in a commit's message says the same, and is reviewed with it.
    """
    read_status(state)  # raises an error if no instance has run here
    check_acts(state)
    check_approval(read_held_change(state), digest, guards)
    click.echo(request_change(state, APPROVE, {"digest": digest, "guards": sorted(set(guards)), "reason": reason}))


@click.command(context_settings=VARIABLES)
@state_option
@evaluator_command
def allow_installs_command(state: Path) -> None:
    """Serve install boots again, after `gitboot stop-installs`, and print which servers boot from the network."""
    found = list_endpoint_folders(state := resolve_active_state(state))
    try:
        at = current_time()
        with open_offline(state, at) as instance:
            commit, knowledge = instance.commit, instance.knowledge
            without = structs.replace(knowledge, facts=structs.replace(knowledge.facts, stoppage=None))
            before, after = (decide_halt(each, commit, knowledge.facts.orders) for each in (knowledge, without))
            names = find_released_servers(commit, knowledge, at, before, after)
    except (HeldByAnother, LedgerLeft) as error:  # what endpoints here were told is taken back here
        for each in (*apply_to_folders(found, remove_stop), f"the instance was not told, only endpoints here: {error}"):
            click.echo(f"gitboot: {each}", err=True)
        raise SystemExit(Exit.PARTIAL) from None
    missed = list(apply_to_folders(found, remove_stop))  # first: the instance would take it over once more
    click.echo(request_change(state, START, {}))
    if names:
        click.echo(f"{format_count(len(names), 'server')} to boot from the network now: {format_names(names)}")
    for each in missed:
        click.echo(f"gitboot: {each}: boots stay stopped there, and at the instance", err=True)
    if missed:
        raise SystemExit(Exit.PARTIAL)


@click.command(context_settings=VARIABLES)
@state_option
def resume_command(state: Path) -> None:
    """Let the instance on STATE accept commits and set overrides again."""
    click.echo(request_change(state, RESUME, {}))


@click.command(context_settings=VARIABLES)
@state_option
@reason_option
@click.option("--all-boots", "everything", is_flag=True, help="Stop all other boots from the network as well.")
def stop_installs_command(state: Path, reason: str, everything: bool) -> None:
    """Withhold install boots at once, until `gitboot allow-installs`.

    An install boot writes a disk. A machine boots what its policy always boots if that writes no disk, else its disk.
    Windows still open and end, and gitboot clears overrides. Restarts do not end the stop. Endpoints obey at their next
    request, also if no instance runs on STATE. Without a running instance, files on other web servers and overrides
    stay as they are, and the exit code is 8.
    """
    at, stoppage = current_time(), StopOrder(read_operator_name(), reason, everything)
    found = list_endpoint_folders(state := resolve_active_state(state))
    missed = list(apply_to_folders(found, lambda folder: write_stop(folder, stoppage, at)))
    try:
        click.echo(request_change(state, STOP, {"reason": reason, "everything": everything}))
    except OperatorError as error:  # the instance takes over what endpoints were told as soon as it can
        if len(missed) == len(found):
            raise
        click.echo(stoppage)
        told = ", ".join(map(str, found))
        missed.append(f"the ledger was not told, only endpoints that look into {told}: {error}")
    if find_running_process(state) is None:
        missed.append(_NOT_RUNNING)
    for each in missed:
        click.echo(f"gitboot: {each}", err=True)
    if missed:
        raise SystemExit(Exit.PARTIAL)


_NOT_RUNNING: Final = (
    "no instance runs here: endpoints (gitboot serve) obey, but what other servers give out as files stays as it is, "
    "and so does what is set at BMCs; start the instance, or end those servers"
)


@click.command(context_settings=VARIABLES)
@state_option
@reason_option
@click.option("--until", required=True, type=InstantType(), metavar="INSTANT", help="When it ends by itself.")
def suspend_command(state: Path, reason: str, until: datetime) -> None:
    """Let the instance on STATE accept no new commit and set nothing, until an instant or `gitboot resume`.

    Windows still open and end, entries still turn to the disk, overrides are still withdrawn.
    """
    if until <= current_time():
        raise UsageError(f"--until {format_instant(until)} is past; name an instant to come")
    click.echo(request_change(state, SUSPEND, {"reason": reason, "until": format_instant(until)}))
