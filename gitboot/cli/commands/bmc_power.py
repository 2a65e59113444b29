"""`gitboot bmc power`: machines looked at, or switched on, off and over by hand."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import click

from gitboot.bmc.power_steps import PowerAction
from gitboot.bmc.worker_pool import connections
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import go_on, looked_at, meant_by, request, yes_option
from gitboot.cli.main import Exit
from gitboot.cli.options import (
    OutputOption,
    credentials_option,
    now,
    output_option,
    reason_option,
    selector_option,
    state_option,
    write_outputs,
)
from gitboot.cli.terminal import progress, table
from gitboot.controller.bmcs.manual_tasks import Inspection, Powered, Subject, inspect, subjects, switch
from gitboot.controller.operator_requests import POWER, POWERED
from gitboot.errors import UsageError
from gitboot.jsonio import document
from gitboot.standard_streams import style
from gitboot.text import count, printable, some

_SETTINGS = {"auto_envvar_prefix": "GITBOOT"}

_dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
_force_option = click.option("--force", is_flag=True, help="At once, without asking the operating system.")


@click.group("power", context_settings=_SETTINGS)
def power() -> None:
    """Show which machines are on; switch or reset them.

    What a machine boots then is what its plan says: the table shows it before anything is sent. Nothing is switched
    during POST, where the BMC shows that, nor where it shows another machine than the document's. A suspended instance
    does not keep a person from it.
    """


@power.command("get", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@output_option("text", "json")
@evaluator_command
def get(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    credentials: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show whether SERVERS, or all, are on, and how far they booted.

    Exit codes: 0 where all have answered, else 8.
    """
    at = now()
    subjects = _subjects(servers, selector, state)
    with connections(credentials) as kept, progress("BMCs", len(subjects)) as read:
        found = sorted(inspect(subjects, kept, at, read=read), key=lambda one: one.subject.server)
    write_outputs(outputs, text=partial(_as_text, found), json=partial(_as_json, found))
    if any(one.seen is None for one in found):
        sys.exit(Exit.PARTIAL)


@power.command("on", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@reason_option
@_dry_run_option
@yes_option
@output_option("text", "json")
@evaluator_command
def on(servers: tuple[str, ...], **options: Any) -> None:
    """Switch SERVERS on. One that is on stays as it is.

    Exit codes: 0 where each is on or was told so, else 8.
    """
    _switch("on", servers, force=False, **options)


@power.command("off", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@reason_option
@_force_option
@_dry_run_option
@yes_option
@output_option("text", "json")
@evaluator_command
def off(servers: tuple[str, ...], **options: Any) -> None:
    """Shut SERVERS down; with --force, switch them off at once.

    Exit codes: 0 where each is off or was told so, else 8.
    """
    _switch("off", servers, **options)


@power.command("reset", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@reason_option
@_force_option
@_dry_run_option
@yes_option
@output_option("text", "json")
@evaluator_command
def reset(servers: tuple[str, ...], **options: Any) -> None:
    """Restart SERVERS; with --force, reset them at once.

    Exit codes: 0 where each was told so, else 8.
    """
    _switch("reset", servers, **options)


def _switch(
    what: str,
    servers: tuple[str, ...],
    *,
    selector: str | None,
    state: Path,
    credentials: Path | None,
    reason: str,
    force: bool,
    dry_run: bool,
    yes: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Look, show, ask, leave word in the ledger, and only then send; each machine is looked at once more before."""
    if not servers and selector is None:
        raise UsageError("name servers, or select them by their labels: -l role=web")
    action = PowerAction(what)
    subjects = _subjects(servers, selector, state)
    with connections(credentials) as kept:
        switching = partial(switch, action=action, connections=kept, force=force)
        with progress("BMCs", len(subjects)) as read:
            found = switching(subjects, send=False, each=read)
        meant = [one.subject for one in found if one.would_send]
        if meant and not dry_run:
            if len(subjects) > 1 or selector is not None:
                click.echo(_as_table(found), err=True)
                installs = sum(each.plan is not None and each.plan.writes_disk for each in meant)
                installing = f", of which {installs} would boot what writes disks" if installs and what != "off" else ""
                click.echo(f"{what} for {count(len(meant), 'server')}{installing}: {reason}", err=True)
                go_on(yes=yes)
            request(state, POWER, {"action": what, "servers": [each.server for each in meant], "reason": reason})
            with progress("BMCs", len(meant)) as read:
                sent = {one.subject.uuid: one for one in switching(meant, send=True, each=read)}
            recorded = ("server", "resetType", "sent", "why")
            items = [{name: one.facts()[name] for name in recorded} for one in sent.values()]
            request(state, POWERED, {"action": what, "items": items, "reason": reason})
            found = [sent.get(one.subject.uuid, one) for one in found]
    listed = partial(document, items=[one.facts() for one in found])
    write_outputs(outputs, text=partial(_as_table, found), json=listed)
    if any(one.failed for one in found):
        sys.exit(Exit.PARTIAL)


def _subjects(servers: tuple[str, ...], selector: str | None, state: Path) -> list[Subject]:
    at = now()
    with looked_at(state, at) as instance:
        found_there = subjects(instance.commit, instance.knowledge, instance.keys, at)
        described = (each for each in found_there if each.decision is not None)
        if not servers and selector is None:
            return list(described)
        meant = meant_by(instance, servers, selector)
        found = [each for each in described if each.server in meant]
    if without := sorted(meant.keys() - {each.server for each in found}):
        raise UsageError(f"{some(without)}: no BMC is known; a Server document names it in spec.bmc")
    return found


def _as_json(found: list[Inspection]) -> str:
    return document(
        items=[
            {
                "server": one.subject.server,
                "uuid": one.subject.uuid,
                "bmc": one.subject.bmc.address,
                "answered": one.seen is not None,
                "power": one.seen.power if one.seen is not None else None,
                "inPost": one.seen.in_post if one.seen is not None else None,
                "runsOs": one.seen.runs_os if one.seen is not None else None,
                "resetTypes": sorted(one.seen.reset_types) if one.seen is not None else [],
                "why": one.why if one.seen is None else None,
            }
            for one in found
        ]
    )


def _as_text(found: list[Inspection]) -> str:
    rows = []
    counts: Counter[str] = Counter()
    for one in found:
        seen = one.seen
        if seen is None:
            rows.append((one.subject.server, style(one.next, fg="red"), one.why))
        else:
            at = "in POST" if seen.in_post else "its operating system runs" if seen.runs_os else "-"
            rows.append((one.subject.server, seen.power or "not shown", at))
        counts[seen.power or "not shown" if seen is not None else "not read"] += 1
    numbers = ", ".join(f"{number} {printable(what).lower()}" for what, number in sorted(counts.items()))
    return f"{table(('SERVER', 'POWER', 'STATE'), rows, shortened=(2,))}\n\n{count(len(found), 'BMC')}: {numbers}"


def _as_table(found: list[Powered]) -> str:
    rows = []
    for one in found:
        plan, seen = one.subject.plan, one.seen
        boots = "no plan" if plan is None else f"{plan.phase}, writes disks" if plan.writes_disk else str(plan.phase)
        rows.append(
            (
                one.subject.server,
                seen.power or "not shown" if seen is not None else "not read",
                boots,
                f"{'sent ' if one.sent else ''}{one.words}",
            )
        )
    return table(("SERVER", "POWER", "BOOTS", "WHAT IS SENT"), rows, shortened=(3,))
