"""`gitboot bmc power`: show which machines are on, and switch or reset them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from gitboot.bmc.power_steps import PowerAction
from gitboot.bmc.worker_pool import open_connections
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import (
    confirm_or_abort,
    open_offline,
    request_change,
    select_servers,
    server_options,
    yes_option,
)
from gitboot.cli.main import Exit, Group
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    credentials_option,
    current_time,
    output_option,
    reason_option,
    write_outputs,
)
from gitboot.cli.terminal import format_table, show_progress
from gitboot.controller.bmcs.manual_tasks import (
    Inspection,
    ManualTask,
    PowerResult,
    inspect_bmcs,
    list_manual_tasks,
    switch_power,
)
from gitboot.controller.operator_requests import PowerSwitched, RecordPowerResults, SwitchPower
from gitboot.errors import UsageError
from gitboot.jsonio import convert, format_document
from gitboot.standard_streams import style
from gitboot.text import format_count, format_names, printable

_dry_run_option = click.option("--dry-run", is_flag=True, help="Print what gitboot would send. Send nothing.")
_force_option = click.option("--force", is_flag=True, help="Act at once, without a shutdown of the operating system.")


@click.group(
    context_settings=VARIABLES,
    cls=Group,
    example=("gitboot bmc power reset web01 --reason 'kernel hang' \\\n    --state /var/lib/gitboot"),
)
def power_command() -> None:
    """Show which machines are on; switch or reset them.

    A machine that starts boots what its plan specifies. A command that changes power shows the plans first. gitboot
    does not change the power of a machine during POST, or if the BMC belongs to a different machine than the document
    names. These commands also work while the instance is suspended.
    """


@power_command.command(
    "get",
    context_settings=VARIABLES,
    example=("gitboot bmc power get --state /var/lib/gitboot \\\n    --credentials /etc/gitboot/bmc"),
    exit_codes={
        Exit.FINE: "all BMCs responded",
        Exit.PARTIAL: "a BMC did not respond",
    },
)
@server_options
@credentials_option
@output_option("text", "json")
@evaluator_command
def power_get(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    credentials: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show which machines are on, and how far they have booted.

    gitboot reads the BMCs of SERVERS, or of all servers.
    """
    at = current_time()
    tasks, _ = _select_manual_tasks(servers, selector, state)
    with open_connections(credentials) as connections, show_progress("BMCs", len(tasks)) as advance:
        inspections = inspect_bmcs(tasks, connections, at, on_read=advance)
    inspections = sorted(inspections, key=lambda inspection: inspection.task.server)
    write_outputs(
        outputs,
        text=partial(_format_power_states, inspections),
        json=partial(format_document, items=[_build_power_item(inspection) for inspection in inspections]),
    )
    if any(inspection.observed is None for inspection in inspections):
        sys.exit(Exit.PARTIAL)


def _build_power_item(inspection: Inspection) -> dict[str, object]:
    """Return the power state of a machine as an item of the JSON document."""
    task, observed = inspection.task, inspection.observed
    return {
        "server": task.server,
        "uuid": task.uuid,
        "bmc": task.bmc.address,
        "responded": observed is not None,
        "power": observed.power if observed is not None else None,
        "inPost": observed.in_post if observed is not None else None,
        "runsOs": observed.runs_os if observed is not None else None,
        "resetTypes": sorted(observed.reset_types) if observed is not None else [],
        "why": inspection.why if observed is None else None,
    }


@power_command.command(
    "on",
    context_settings=VARIABLES,
    example="gitboot bmc power on web01 --reason 'repair done' --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "each machine is on, or its BMC accepted the request",
        Exit.PARTIAL: "a BMC rejected the request, or gitboot did not send it; the output shows why",
        Exit.INTERRUPTED: "you did not confirm",
    },
)
@server_options
@credentials_option
@reason_option
@_dry_run_option
@yes_option
@output_option("text", "json")
@evaluator_command
def power_on(servers: tuple[str, ...], **options: Any) -> None:
    """Switch machines on.

    gitboot skips machines that are on already.
    """
    _change_power("on", servers, force=False, **options)


@power_command.command(
    "off",
    context_settings=VARIABLES,
    example="gitboot bmc power off web01 --reason 'repair' --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "each machine is off, or its BMC accepted the request",
        Exit.PARTIAL: "a BMC rejected the request, or gitboot did not send it; the output shows why",
        Exit.INTERRUPTED: "you did not confirm",
    },
)
@server_options
@credentials_option
@reason_option
@_force_option
@_dry_run_option
@yes_option
@output_option("text", "json")
@evaluator_command
def power_off(servers: tuple[str, ...], **options: Any) -> None:
    """Shut machines down, or switch them off with --force.

    gitboot shuts SERVERS down through their operating systems.
    """
    _change_power("off", servers, **options)


@power_command.command(
    "reset",
    context_settings=VARIABLES,
    example=("gitboot bmc power reset web01 --reason 'kernel hang' \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "each BMC accepted the request",
        Exit.PARTIAL: "a BMC rejected the request, or gitboot did not send it; the output shows why",
        Exit.INTERRUPTED: "you did not confirm",
    },
)
@server_options
@credentials_option
@reason_option
@_force_option
@_dry_run_option
@yes_option
@output_option("text", "json")
@evaluator_command
def power_reset(servers: tuple[str, ...], **options: Any) -> None:
    """Restart machines, or reset them at once with --force.

    gitboot restarts SERVERS through their operating systems.
    """
    _change_power("reset", servers, **options)


def _change_power(
    action_name: str,
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
    """Read the BMCs, ask for confirmation, and record the request. Then read each BMC again and change the power."""
    if not servers and selector is None:
        raise UsageError("pass server names, or select servers by label: -l role=web")
    action = PowerAction(action_name)
    tasks, without_bmc = _select_manual_tasks(servers, selector, state)
    with open_connections(credentials) as bmc_connections:
        switch = partial(switch_power, action=action, connections=bmc_connections, force=force)
        with show_progress("BMCs", len(tasks)) as advance:
            results = switch(tasks, send=False, on_done=advance)
        targets = [result.task for result in results if result.would_send]
        if targets and not dry_run:
            if len(tasks) > 1 or selector is not None:
                click.echo(_format_power_results(results), err=True)
                click.echo(f"{_describe_power_change(action, targets)}: {reason}", err=True)
                confirm_or_abort(yes=yes)
            names = [task.server for task in targets]
            request_change(state, SwitchPower(action=action_name, servers=tuple(names), reason=reason))
            with show_progress("BMCs", len(targets)) as advance:
                sent = {result.task.uuid: result for result in switch(targets, send=True, on_done=advance)}
            items = tuple(convert(result.facts(), PowerSwitched) for result in sent.values())
            request_change(state, RecordPowerResults(action=action_name, items=items, reason=reason))
            results = [sent.get(result.task.uuid, result) for result in results]
    as_json = partial(format_document, items=[result.facts() for result in results])
    write_outputs(outputs, text=partial(_format_power_results, results), json=as_json)
    if without_bmc or any(result.is_failed for result in results):
        sys.exit(Exit.PARTIAL)


def _describe_power_change(action: PowerAction, tasks: Sequence[ManualTask]) -> str:
    text = f"{action} for {format_count(len(tasks), 'server')}"
    installs = sum(task.plan is not None and task.plan.writes_disk for task in tasks)
    if installs and action is not PowerAction.OFF:
        text += f" ({installs} of them would run an install boot)"
    return text


def _select_manual_tasks(
    servers: tuple[str, ...], selector: str | None, state: Path
) -> tuple[list[ManualTask], list[str]]:
    """Return the tasks for these servers, or for all servers with a BMC in the accepted commit.

    Also return the servers without a BMC that only the selector selects, after a warning about them. Raises
    `UsageError` if one of ``servers`` or each of the selected servers has no BMC.
    """
    at = current_time()
    with open_offline(state, at) as instance:
        all_tasks = list_manual_tasks(instance.commit, instance.snapshot, instance.keys, at)
        described_tasks = [task for task in all_tasks if task.decision is not None]
        if not servers and selector is None:
            return described_tasks, []
        selected = select_servers(instance, servers, selector)
    selected_tasks = [task for task in described_tasks if task.server in selected]
    require_bmcs(servers if selected_tasks else selected, selected_tasks)
    without_bmc = sorted({*selected} - {task.server for task in selected_tasks})
    if without_bmc:
        click.echo(f"gitboot: no BMC is configured for {', '.join(without_bmc)}; skipped", err=True)
    return selected_tasks, without_bmc


def require_bmcs(servers: Iterable[str], tasks: Iterable[ManualTask]) -> None:
    """Raise `UsageError` if one of these servers has no task, because it has no BMC."""
    if without_bmc := sorted({*servers} - {task.server for task in tasks}):
        raise UsageError(f"no BMC is configured for {format_names(without_bmc)}; add `spec.bmc` to the Server document")


def _format_power_states(inspections: list[Inspection]) -> str:
    rows = []
    counts: Counter[str] = Counter()
    for inspection in inspections:
        observed = inspection.observed
        if observed is None:
            rows.append((inspection.task.server, style(inspection.next_action, fg="red"), inspection.why))
        else:
            state = "in POST" if observed.in_post else "the operating system is running" if observed.runs_os else "-"
            rows.append((inspection.task.server, observed.power or "not shown", state))
        counts[observed.power or "not shown" if observed is not None else "not read"] += 1
    numbers = ", ".join(f"{number} {printable(power).lower()}" for power, number in sorted(counts.items()))
    table = format_table(("SERVER", "POWER", "STATE"), rows, shrinkable=(2,))
    return f"{table}\n\n{format_count(len(inspections), 'BMC')}: {numbers}"


def _format_power_results(results: list[PowerResult]) -> str:
    rows = []
    for result in results:
        plan, observed = result.task.plan, result.observed
        boots = "no plan" if plan is None else f"{plan.phase}, writes disks" if plan.writes_disk else str(plan.phase)
        rows.append(
            (
                result.task.server,
                observed.power or "not shown" if observed is not None else "not read",
                boots,
                f"{'sent ' if result.sent else ''}{result.text}",
            )
        )
    return format_table(("SERVER", "POWER", "PLAN", "REQUEST"), rows, shrinkable=(3,))
