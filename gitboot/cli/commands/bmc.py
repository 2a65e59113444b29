"""`gitboot bmc`: show and change boot overrides and power, and answer questions about BMCs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from gitboot.artifacts.boot_loaders import HEAD, find_program_fault
from gitboot.bmc.credentials import FILE, get_credential_use, read_trust, render_access_file
from gitboot.bmc.power_steps import PowerAction
from gitboot.bmc.worker_pool import open_connections
from gitboot.child_processes import raise_open_file_limit
from gitboot.cli.commands.bmc_enroll import enroll, scan_network
from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import (
    confirm_or_abort,
    find_machines,
    open_offline,
    request_change,
    select_names,
    select_servers,
    yes_option,
)
from gitboot.cli.main import Exit, Group
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    combine_options,
    credentials_option,
    current_time,
    output_option,
    reason_option,
    selector_option,
    state_option,
    write_outputs,
)
from gitboot.cli.terminal import echo_wrapped, format_table, show_progress, wrap_text
from gitboot.controller.bmcs.manual_tasks import (
    Inspection,
    ManualTask,
    PowerResult,
    format_override,
    inspect_bmcs,
    list_manual_tasks,
    switch_power,
)
from gitboot.controller.instance.assembly import OfflineInstance
from gitboot.controller.instance.state_directory import find_running_process
from gitboot.controller.operator_requests import (
    ACCEPT,
    BACK,
    CERTIFICATE,
    POWER,
    POWERED,
    REPLACE,
    RESOLVE,
    RETRY,
    find_stop_scope,
)
from gitboot.controller.records.install_boots import remove_withheld_boots
from gitboot.errors import UsageError
from gitboot.files import find_file_below
from gitboot.fleet.identities import Machine
from gitboot.jsonio import format_document
from gitboot.model.scalars import Malformed, SystemUuid, parse_fingerprint
from gitboot.resolve.plan_at_time import drop_ended_windows, make_plan
from gitboot.standard_streams import style
from gitboot.status.conditions import fill_state
from gitboot.text import format_count, format_names, printable, quote_words


@click.group(context_settings=VARIABLES, cls=Group, example="gitboot bmc get --state /var/lib/gitboot")
def command() -> None:
    """Find and read BMCs, set overrides, switch power.

    The commands read the state directory of an instance: the accepted commit and the ledger. The instance may be
    running or not.
    """


# The options that select servers of an instance.
_server_options = combine_options(
    click.argument("servers", nargs=-1, shell_complete=complete_servers), selector_option, state_option
)


@command.command(
    "get",
    context_settings=VARIABLES,
    example=("gitboot bmc get web01 --state /var/lib/gitboot \\\n    --credentials /etc/gitboot/bmc"),
    exit_codes={
        Exit.FINE: "all BMCs responded",
        Exit.PARTIAL: "a BMC did not respond",
    },
)
@_server_options
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
    """Read BMCs and show the state of their overrides.

    gitboot reads the BMCs of SERVERS, or of all servers. The table shows the override that the plan wants, the override
    at the BMC, the newest record, the evidence and the next step. Servers that need an operator are listed first. If
    you name SERVERS, gitboot also shows the boot order and Secure Boot. gitboot does not change the BMCs.
    """
    found = _inspect_bmcs(servers, selector, state, credentials)
    write_outputs(
        outputs,
        text=partial(_format_text, found, state, is_detailed=bool(servers)),
        json=partial(_format_json, found),
    )
    if any(each.observed is None for each in found):
        sys.exit(Exit.PARTIAL)


@command.command(
    "diff",
    context_settings=VARIABLES,
    example="gitboot bmc diff --state /var/lib/gitboot --credentials /etc/gitboot/bmc",
    exit_codes={
        Exit.FINE: "all BMCs responded",
        Exit.CHANGES: "with --detailed-exitcode: a BMC differs from its plan",
        Exit.PARTIAL: "a BMC did not respond",
    },
)
@_server_options
@credentials_option
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The directory that is served at baseURL/assets/. gitboot checks the signatures of programs there. "
    "Default: none.",
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 if a BMC differs from its plan.")
@output_option("text", "json")
@evaluator_command
def diff(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    credentials: Path | None,
    assets: Path | None,
    detailed_exitcode: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show what gitboot would send to BMCs now.

    gitboot reads the BMCs of SERVERS, or of all servers, and does not change them. It prints each PATCH and POST
    request that it would send, and why. It also prints the resets that a policy or a maintenance with `power` requires,
    and what they wait for.

    With --assets, gitboot warns if Secure Boot is on and the program in the plan has no signature. gitboot cannot check
    which signatures the firmware trusts, and does not read ISO files.
    """
    found = [
        each
        for each in _inspect_bmcs(servers, selector, state, credentials, assets)
        if not each.is_settled or each.warnings
    ]
    write_outputs(outputs, text=partial(_format_diff, found, state), json=partial(_format_json, found))
    if any(each.observed is None for each in found):
        sys.exit(Exit.PARTIAL)
    if detailed_exitcode and not all(each.is_settled for each in found):
        sys.exit(Exit.CHANGES)


@command.command(
    "apply",
    context_settings=VARIABLES,
    example="gitboot bmc apply web01 --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "the instance started contacting the BMCs",
        Exit.PARTIAL: "the instance has not processed the request yet",
        Exit.USAGE: "no instance is running with this state directory, or a server does not exist",
    },
)
@_server_options
@evaluator_command
def apply(servers: tuple[str, ...], selector: str | None, state: Path) -> None:
    """Let the instance set boot overrides now.

    The running instance connects to the BMCs of SERVERS, or of all servers, immediately and not when they are due. It
    does not wait after an earlier failure, or after too many consecutive failures. It sets only the overrides that the
    plans require.
    """
    if find_running_process(state) is None:
        raise UsageError(
            f"no instance is running with the state directory {state}: start `gitboot run`, or use `gitboot run --once`"
        )
    with open_offline(state, current_time()) as instance:
        with_bmc = {uuid for uuid, machine in instance.commit.machines.items() if machine.bmc is not None}
        all_uuids = with_bmc | instance.snapshot.overrides.keys()
        names = sorted(select_servers(instance, servers, selector)) if selector is not None else servers
        uuids = [uuid for name in names for uuid in find_machines(instance, name)] or sorted(all_uuids)
        is_ledger_named = instance.commit.ledger is not None
    echo_wrapped(request_change(state, RETRY, {"uuids": uuids}))
    _warn_without_ledger(is_ledger_named)


@command.command(
    "access-files",
    context_settings=VARIABLES,
    example="gitboot bmc access-files --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot printed the access files",
    },
)
@state_option
@credentials_option
@evaluator_command
def access_files(state: Path, credentials: Path | None) -> None:
    """Print the access files that allow credentials for BMCs.

    gitboot prints an access.toml for each name of BMC credentials, with the BMCs of the accepted commit. Without
    DIR/NAME/access.toml, gitboot sends the credentials in DIR/NAME only to BMCs that it has accepted before. With
    --credentials, the output keeps the certificates of your existing files. The addresses come from the repository, so
    read them before you copy the file.
    """
    with open_offline(state, current_time()) as instance:
        machines = sorted(instance.commit.machines.values(), key=lambda each: each.name)
        known = instance.snapshot.known_pairs
    machines_by_name: dict[str, list[Machine]] = {}
    for machine in machines:
        if machine.bmc is not None:
            machines_by_name.setdefault(machine.bmc.credentials, []).append(machine)
    for name, group in sorted(machines_by_name.items()):
        new = [each.name for each in group if each.bmc is not None and get_credential_use(each.bmc) not in known]
        click.echo(f"# {(credentials or Path('DIR')) / name / FILE}: {format_count(len(group), 'BMC')}")
        if new:
            click.echo(f"# First check the addresses of these new BMCs: {format_names(new)}")
        trust = read_trust(credentials, name) if credentials is not None else None
        click.echo(render_access_file((each.bmc for each in group if each.bmc is not None), trust))


@command.command(
    "resolve",
    context_settings=VARIABLES,
    example=("gitboot bmc resolve web01 --consumed --reason 'saw the installer' \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "gitboot recorded your confirmation",
        Exit.PARTIAL: "the instance has not processed the request yet",
        Exit.USAGE: "gitboot has not read the BMC yet, or an option is wrong",
    },
)
@click.argument("server", shell_complete=complete_servers)
@state_option
@click.option(
    "--consumed",
    "word",
    flag_value="consumed",
    help="The machine booted from the override. gitboot does not set it again (condition NeedsOperator).",
)
@click.option(
    "--not-set",
    "word",
    flag_value="not-set",
    help="The override was never set. gitboot sets it if the plan still wants it (condition NeedsOperator).",
)
@click.option(
    "--same",
    "word",
    flag_value="same",
    help="The machine at the BMC is SERVER, although it shows another identity (condition AnotherMachine).",
)
@click.option(
    "--replace",
    "word",
    flag_value="replace",
    help="gitboot may replace an override that someone else set (condition ForeignOverride).",
)
@click.option(
    "--back",
    "word",
    flag_value="back",
    help="SERVER is in service again, although its BMC did not confirm it (condition PowerWavesRunning).",
)
@click.option(
    "--certificate",
    metavar="SHA256",
    help="The new certificate of the BMC has this fingerprint. First compare it with the certificate on the BMC.",
)
@reason_option
@evaluator_command
def resolve(server: str, state: Path, word: str | None, certificate: str | None, reason: str) -> None:
    """Record facts about a BMC that only an operator can check.

    Look at the console or the boot log of SERVER first. After a wrong answer, gitboot may install the machine twice, or
    not at all. `gitboot status` names the option to use for each condition.
    """
    if word is None and certificate is None:
        raise click.UsageError(
            "Missing option: pass '--consumed', '--not-set', '--same', '--replace', '--back' or '--certificate'."
        )
    fingerprint = None
    if certificate is not None:
        try:
            fingerprint = parse_fingerprint(certificate)
        except Malformed:
            raise click.UsageError(
                "--certificate: expected a SHA-256 digest (64 hexadecimal digits), as shown by `gitboot bmc get`"
            ) from None
    at = current_time()
    requests: list[tuple[str, dict[str, object]]] = []
    with open_offline(state, at) as instance:
        if fingerprint is not None:
            pinned = [uuid for uuid in find_machines(instance, server) if uuid in instance.snapshot.pins]
            requests = [(CERTIFICATE, {"uuid": uuid, "certificate": fingerprint}) for uuid in pinned]
        elif word is not None:
            resolutions = (_build_request(instance, uuid, server, word, at) for uuid in find_machines(instance, server))
            requests = [each for each in resolutions if each is not None]
        is_ledger_named = instance.commit.ledger is not None
    if not requests:
        raise UsageError(f"gitboot has not read {server}'s BMC yet; run `gitboot bmc apply {quote_words(server)}`")
    for kind, details in requests:
        echo_wrapped(request_change(state, kind, details | {"server": server, "reason": reason}))
    if word in ("not-set", "replace"):
        _warn_without_ledger(is_ledger_named)


def _warn_without_ledger(is_ledger_named: bool) -> None:
    if not is_ledger_named:
        click.echo(
            "gitboot does not set boot overrides until the Fleet names a ledger; "
            "run `gitboot status` to see the line to add",
            err=True,
        )


def _build_request(
    instance: OfflineInstance, uuid: SystemUuid, server: str, resolution: str, at: datetime
) -> tuple[str, dict[str, object]] | None:
    """Return the type and content of a request for a machine, or None if gitboot has not read its BMC yet."""
    snapshot, plan = instance.snapshot, None
    commit = remove_withheld_boots(instance.commit, snapshot.facts.withheld)
    machine, pinned = commit.machines.get(uuid), snapshot.pins.get(uuid)
    if machine is not None:  # the plan of the instance, as `list_manual_tasks` makes it
        decision = commit.decisions.servers[server]
        stop, absent = find_stop_scope(snapshot, commit, snapshot.facts.orders), snapshot.find_missing_files(decision)
        decision = drop_ended_windows(decision, snapshot.find_later_clock(at))
        plan = make_plan(decision, at, snapshot.record(uuid), stop=stop, absent=absent)
    override = plan.override if plan is not None else None
    key = override.reason if override is not None else plan.key if plan is not None else None
    match resolution:
        case "same":
            if pinned is None:
                return None
            return ACCEPT, {"uuid": uuid, "shown": [pinned.latest_identity.uuid, pinned.latest_identity.serial]}
        case "back":
            return BACK, {"uuid": uuid}
        case "replace":
            return REPLACE, {"uuid": uuid, "key": key}
    address = list(machine.bmc.normalized_address) if machine is not None and machine.bmc is not None else None
    return RESOLVE, {"uuid": uuid, "consumed": resolution == "consumed", "key": key, "bmc": address}


def _inspect_bmcs(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    credentials: Path | None,
    assets: Path | None = None,
) -> list[Inspection]:
    def find_fault(url: str, base_url: str) -> str | None:
        """Return the reason why firmware with Secure Boot rejects the program at a URL, or None.

        Files outside ``assets`` are not checked.
        """
        served = f"{base_url}/assets/"
        if assets is None or not url.startswith(served):
            return None
        with suppress(OSError):
            if (file := find_file_below(assets.resolve(), url.removeprefix(served))) is not None:
                with file.open("rb") as content:
                    return find_program_fault(content.read(HEAD))
        return None

    raise_open_file_limit()  # only servers with a BMC, because gitboot connects to each BMC
    at = current_time()
    with open_offline(state, at) as instance, open_connections(credentials) as connections:
        names = select_names(instance, servers, selector)
        found = list_manual_tasks(instance.commit, instance.snapshot, instance.keys, at)
        selected = [task for task in found if names is None or task.server in names]
        if without_bmc := sorted(frozenset(servers) - {task.server for task in selected}):
            raise UsageError(
                f"no BMC is configured for {format_names(without_bmc)}; add `spec.bmc` to the Server document"
            )
        with show_progress("BMCs", len(selected)) as advance:
            return inspect_bmcs(selected, connections, at, on_read=advance, find_fault=find_fault)


def _format_json(inspections: list[Inspection]) -> str:
    return format_document(items=[each.facts() for each in inspections])


_STATE_ORDER: Final = ("needs an operator", "not read", "differs from the plan", "as planned", "with no plan")
_PLURALS: Final = {"needs an operator": "need an operator", "differs from the plan": "differ from the plan"}
# the texts for people by state; the JSON output contains the keys
_EVIDENCE_TEXTS: Final = {"attempted": "served", "unseen": "unobservable"}


def _format_text(inspections: list[Inspection], state: Path, *, is_detailed: bool) -> str:
    rows = []
    counts: Counter[str] = Counter()
    for inspection in inspections:
        task = inspection.task
        colour = "red" if inspection.needs_operator else None if inspection.is_settled else "yellow"
        person, unread, pending, fine, unplanned = _STATE_ORDER
        settled = fine if task.plan is not None else unplanned
        state_name = unread if inspection.observed is None else settled if inspection.is_settled else pending
        counts[person if inspection.needs_operator else state_name] += 1
        # The override that may still be set at the BMC. If there is none, the latest override.
        last = max(task.records, key=lambda each: (each.state.is_open, each.at), default=None)
        rows.append(
            (
                task.server,
                str(task.plan.phase) if task.plan else "no plan",
                format_override(task.wanted.override if task.wanted else None),
                format_override(inspection.observed.override)
                if inspection.observed
                else style(inspection.next_action, fg="red"),
                f"{last.state} {last.reason.partition('/after/')[0]}" if last is not None else "-",
                _EVIDENCE_TEXTS.get(task.evidence, task.evidence),
                style(
                    "see below"
                    if inspection.needs_operator
                    else inspection.next_action
                    if inspection.observed
                    else "-",
                    fg=colour,
                ),
            )
        )
    header = ("SERVER", "PHASE", "WANTED", "CURRENT", "RECORD", "EVIDENCE", "NEXT STEP")
    lines = [format_table(header, rows, optional=5, shrinkable=(4,)), *_explain_inspections(inspections, state), ""]
    for inspection in inspections if is_detailed else ():
        if inspection.observed is not None:
            secure = {None: "not shown", True: "on", False: "off"}[inspection.observed.secure_boot]
            order = ", ".join(inspection.observed.boot_order) or "not shown"
            lines.append(wrap_text(f"{inspection.task.server}: Secure Boot: {secure}; boot order: {order}"))
    summary = ", ".join(
        f"{number} {what if number == 1 else _PLURALS.get(what, what)}"
        for what in _STATE_ORDER
        if (number := counts[what])
    )
    return "\n".join([*lines, f"{format_count(len(inspections), 'BMC')}: {summary or 'none'}"])


_MAX_NAMES: Final = 5


def _explain_inspections(inspections: list[Inspection], state: Path) -> Iterator[str]:
    names_by_reason: dict[tuple[str, str | None], list[str]] = {}
    for inspection in inspections:
        if inspection.needs_operator or not inspection.is_settled:
            names_by_reason.setdefault((inspection.why, inspection.hint), []).append(inspection.task.server)
    if names_by_reason:
        yield ""
    for (why, hint), names in names_by_reason.items():
        yield wrap_text(f"{format_names(names, _MAX_NAMES)}: {why}")
        if hint is not None:
            yield f"    {fill_state(hint, str(state))}"


def _format_diff(inspections: list[Inspection], state: Path) -> str:
    # Show inspections together if they have the same text and no request.
    groups: dict[object, list[Inspection]] = {}
    for number, inspection in enumerate(inspections):
        is_alone = inspection.request or inspection.warnings or inspection.task.server in (inspection.hint or "")
        groups.setdefault(number if is_alone else (inspection.next_action, inspection.why, inspection.hint), []).append(
            inspection
        )
    lines: list[str] = []
    for group in groups.values():
        inspection = group[0]
        who = format_names([each.task.server for each in group], 3)
        lines.append(f"{style(who, bold=True)}: {inspection.next_action}: {printable(inspection.why)}")
        if inspection.request:
            address, method = inspection.task.bmc.address, " ".join(inspection.request[:-1])
            lines.append(
                f"  {method} {address}{inspection.request[-1]}" if method else f"  {address}: {inspection.request[-1]}"
            )
            if inspection.pending_reset is not None:
                lines.append(f"  then {printable(inspection.pending_reset)}")
        lines += [style(f"  warning: {printable(each)}", fg="yellow") for each in inspection.warnings]
        if inspection.hint is not None:
            lines.append(f"  {fill_state(inspection.hint, str(state))}")
    return "\n".join(lines or ["all BMCs match their plans"])


_dry_run_option = click.option("--dry-run", is_flag=True, help="Print what gitboot would send. Send nothing.")
_force_option = click.option("--force", is_flag=True, help="Act at once, without a shutdown of the operating system.")


@command.group(
    "power",
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
@_server_options
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
    tasks = _select_manual_tasks(servers, selector, state)
    with open_connections(credentials) as connections, show_progress("BMCs", len(tasks)) as read:
        found = sorted(inspect_bmcs(tasks, connections, at, on_read=read), key=lambda each: each.task.server)
    items = [
        {
            "server": each.task.server,
            "uuid": each.task.uuid,
            "bmc": each.task.bmc.address,
            "responded": each.observed is not None,
            "power": each.observed.power if each.observed is not None else None,
            "inPost": each.observed.in_post if each.observed is not None else None,
            "runsOs": each.observed.runs_os if each.observed is not None else None,
            "resetTypes": sorted(each.observed.reset_types) if each.observed is not None else [],
            "why": each.why if each.observed is None else None,
        }
        for each in found
    ]
    write_outputs(outputs, text=partial(_format_power_states, found), json=partial(format_document, items=items))
    if any(each.observed is None for each in found):
        sys.exit(Exit.PARTIAL)


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
@_server_options
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
@_server_options
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
@_server_options
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
    tasks = _select_manual_tasks(servers, selector, state)
    with open_connections(credentials) as bmc_connections:
        switch = partial(switch_power, action=action, connections=bmc_connections, force=force)
        with show_progress("BMCs", len(tasks)) as read:
            results = switch(tasks, send=False, on_done=read)
        targets = [result.task for result in results if result.would_send]
        if targets and not dry_run:
            if len(tasks) > 1 or selector is not None:
                click.echo(_format_power_results(results), err=True)
                installs = sum(each.plan is not None and each.plan.writes_disk for each in targets)
                installing = (
                    f" ({installs} of them would run an install boot)" if installs and action_name != "off" else ""
                )
                click.echo(f"{action_name} for {format_count(len(targets), 'server')}{installing}: {reason}", err=True)
                confirm_or_abort(yes=yes)
            request_change(
                state, POWER, {"action": action_name, "servers": [each.server for each in targets], "reason": reason}
            )
            with show_progress("BMCs", len(targets)) as read:
                sent = {result.task.uuid: result for result in switch(targets, send=True, on_done=read)}
            recorded = ("server", "resetType", "sent", "why")
            items = [{name: result.facts()[name] for name in recorded} for result in sent.values()]
            request_change(state, POWERED, {"action": action_name, "items": items, "reason": reason})
            results = [sent.get(result.task.uuid, result) for result in results]
    as_json = partial(format_document, items=[result.facts() for result in results])
    write_outputs(outputs, text=partial(_format_power_results, results), json=as_json)
    if any(result.is_failed for result in results):
        sys.exit(Exit.PARTIAL)


def _select_manual_tasks(servers: tuple[str, ...], selector: str | None, state: Path) -> list[ManualTask]:
    at = current_time()
    with open_offline(state, at) as instance:
        all_tasks = list_manual_tasks(instance.commit, instance.snapshot, instance.keys, at)
        described = (each for each in all_tasks if each.decision is not None)
        if not servers and selector is None:
            return list(described)
        selected = select_servers(instance, servers, selector)
        found = [each for each in described if each.server in selected]
    if without_bmc := sorted(selected.keys() - {each.server for each in found}):
        raise UsageError(f"no BMC is configured for {format_names(without_bmc)}; add `spec.bmc` to the Server document")
    return found


def _format_power_states(results: list[Inspection]) -> str:
    rows = []
    counts: Counter[str] = Counter()
    for inspection in results:
        observed = inspection.observed
        if observed is None:
            rows.append((inspection.task.server, style(inspection.next_action, fg="red"), inspection.why))
        else:
            state = "in POST" if observed.in_post else "the operating system is running" if observed.runs_os else "-"
            rows.append((inspection.task.server, observed.power or "not shown", state))
        counts[observed.power or "not shown" if observed is not None else "not read"] += 1
    numbers = ", ".join(f"{number} {printable(what).lower()}" for what, number in sorted(counts.items()))
    table = format_table(("SERVER", "POWER", "STATE"), rows, shrinkable=(2,))
    return f"{table}\n\n{format_count(len(results), 'BMC')}: {numbers}"


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


command.add_command(scan_network, "scan")
command.add_command(enroll, "enroll")
