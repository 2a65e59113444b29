"""`gitboot approve`, `reconcile`, `suspend`, `resume`, `stop-installs` and `allow-installs`: control of an instance."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click
from msgspec import structs

from gitboot.cli.completion import complete_held_digest
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
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    MAX_SECONDS,
    VARIABLES,
    InstantType,
    current_time,
    read_operator_name,
    reason_option,
    state_option,
)
from gitboot.cli.terminal import echo_wrapped
from gitboot.controller.instance.state_directory import check_acts, find_running_process, read_status
from gitboot.controller.operator_requests import (
    APPROVE,
    RESUME,
    START,
    STOP,
    SUSPEND,
    check_approval,
    decide_halt,
    find_held_change,
    find_released_servers,
)
from gitboot.controller.records.install_boots import remove_withheld_boots
from gitboot.errors import HeldByAnother, LedgerError, LedgerLeft, NotYetDone, OperatorError, UsageError
from gitboot.jsonio import format_instant
from gitboot.publish.tree_reader import remove_stop, write_stop
from gitboot.resolve.provisioning_record import StopOrder
from gitboot.review.guards import Guard
from gitboot.text import format_count, format_names

_TIMEOUT_S: Final = 180  # a fetch that hangs fails after `git-timeout`, and the next fetch may hang too
_POLL_S: Final = 0.1


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
        Exit.USAGE: "no instance runs with this state directory, or an option is wrong",
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
    state = resolve_active_state(state)
    process = find_running_process(state)
    if process is None:
        raise UsageError(f"no instance runs with the state directory {state}: start `gitboot run` first")
    with suppress(LedgerError):  # continue, because an unavailable database must not block commits
        check_acts(state)
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
        if (outcome := find_outcome(found, triggered)) is not None:
            code, message = outcome
            click.echo(message, err=True)
            sys.exit(code)
        if find_running_process(state) != process:
            raise NotYetDone(
                f"{state}: process {process} ended before the reconcile was complete; run `gitboot status`"
            )
        time.sleep(_POLL_S)
    source = _list_conditions(found).get("SourceReady")
    why = f": {source['message']}" if source is not None and not source["status"] else ""
    raise NotYetDone(
        f"{state}: process {process} did not finish the reconcile within {timeout_s} s{why}; run `gitboot status` "
        "for the result"
    )


def find_outcome(status: Mapping[str, Any], triggered_at: datetime) -> tuple[Exit, str] | None:
    """Return the outcome of the first fetch after ``triggered_at`` and of the reconcile after this fetch.

    Return None until both have ended.
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
    from gitboot.cli.commands.status import read_newest_status

    with suppress(UsageError):
        status = read_status(state)
        return read_newest_status(status, output) if (output := find_output(state)) is not None else status
    return {}


def _list_conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {each["type"]: each for each in status.get("conditions", ())}


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example=("gitboot approve 7c1e4f0a92bd --all-guards \\\n    --reason 'planned reinstall' --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "gitboot recorded the approval",
        Exit.STALE: "gitboot holds no commit, DIGEST is not of the held commit, or another guard holds the commit",
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
    type=click.Choice([str(guard) for guard in Guard]),
    metavar="GUARD",
    help="A guard that holds the commit, such as maxReinstalls or maxUpdatePercent. `gitboot status` names it. "
    "Repeat the option for several guards.",
)
@click.option(
    "--all-guards", is_flag=True, help="Approve for all guards that hold the commit now. You then need no --guard."
)
@reason_option
def approve_command(digest: str, state: Path, guards: tuple[str, ...], all_guards: bool, reason: str) -> None:
    """Approve a commit that a guard holds.

    DIGEST identifies all changes of the newest commit. Pass at least its first 8 hexadecimal digits. `gitboot status`
    and `gitboot diff` show the digest and the guards. If another commit arrives, the digest changes, and you must
    review the commits again.

    The line `Gitboot-Ack: DIGEST GUARD` in a commit message has the same effect, and reviewers see it. Write all 64
    digits of the digest. The line may contain several guards.
    """
    if bool(guards) is all_guards:
        raise UsageError("specify the guards with --all-guards, or with --guard GUARD for each guard (not both)")
    read_status(state)  # this raises an error if no instance has ever run here
    check_acts(state)
    held = find_held_change(read_held_change(state), digest)
    named = sorted(held.guards if all_guards else set(guards))
    check_approval(held, held.digest, named)
    echo_wrapped(request_change(state, APPROVE, {"digest": held.digest, "guards": named, "reason": reason}))


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot allow-installs --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "the stop has ended",
        Exit.PARTIAL: "the stop has not ended everywhere; the output shows where",
    },
)
@state_option
@evaluator_command
def allow_installs_command(state: Path) -> None:
    """End a stop that gitboot stop-installs started.

    gitboot serves install boots again, and prints the servers that boot from the network from now on.
    """
    found = list_endpoint_folders(state := resolve_active_state(state))
    try:
        at = current_time()
        with open_offline(state, at) as instance:
            knowledge = instance.knowledge
            commit = remove_withheld_boots(instance.commit, knowledge.facts.withheld)
            without = structs.replace(knowledge, facts=structs.replace(knowledge.facts, stoppage=None))
            before, after = (decide_halt(each, commit, knowledge.facts.orders) for each in (knowledge, without))
            names = find_released_servers(commit, knowledge, at, before, after)
    except (HeldByAnother, LedgerLeft) as error:  # this removes the stop of the endpoints on this host
        unchanged = f"the endpoints of this host serve boots again, but the ledger does not contain this yet: {error}"
        for each in (*apply_to_folders(found, remove_stop), unchanged):
            click.echo(f"gitboot: {each}", err=True)
        raise SystemExit(Exit.PARTIAL) from None
    # Remove the stop files first. Otherwise the instance would adopt the stop again.
    missed = list(apply_to_folders(found, remove_stop))
    echo_wrapped(request_change(state, START, {}))
    if names:
        click.echo(f"{format_count(len(names), 'server')} may boot from the network now: {format_names(names)}")
    for each in missed:
        click.echo(f"gitboot: {each}: the stop stays in force there and for the instance", err=True)
    if missed:
        raise SystemExit(Exit.PARTIAL)


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
    echo_wrapped(request_change(state, RESUME, {}))


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot stop-installs --reason 'wrong image' --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "no endpoint serves an install boot",
        Exit.PARTIAL: "the stop is not effective everywhere; the output shows where",
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
    at, stoppage = current_time(), StopOrder(read_operator_name(), reason, everything)
    found = list_endpoint_folders(state := resolve_active_state(state))
    missed = list(apply_to_folders(found, lambda folder: write_stop(folder, stoppage, at)))
    try:
        echo_wrapped(request_change(state, STOP, {"reason": reason, "everything": everything}))
    except OperatorError as error:  # the instance adopts the endpoints' stop when the ledger is available again
        if len(missed) == len(found):
            raise
        click.echo(stoppage)
        reached = ", ".join(map(str, found))
        missed.append(
            f"only the endpoints that use {reached} stopped serving install boots, and the ledger does not record "
            f"the stop: {error}"
        )
    if find_running_process(state) is None:
        missed.append(_NOT_RUNNING)
    for each in missed:
        click.echo(f"gitboot: {each}", err=True)
    if missed:
        raise SystemExit(Exit.PARTIAL)


_NOT_RUNNING: Final = (
    "no instance runs with this state directory. The endpoints (gitboot serve) obey the stop, but the boot files on "
    "other web servers and the overrides at BMCs stay as they are. Start the instance, or stop those web servers"
)


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
    if until <= current_time():
        raise UsageError(
            f"--until {format_instant(until)} is past: use a later time, or a duration from now such as 2h"
        )
    echo_wrapped(request_change(state, SUSPEND, {"reason": reason, "until": format_instant(until)}))
