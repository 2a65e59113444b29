"""`gitboot bmc`: show and set boot overrides, and record what an operator confirms about BMCs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

import click

from gitboot.artifacts.boot_loaders import HEAD, find_program_fault
from gitboot.bmc.access_file import FILE, read_trust, render_access_file
from gitboot.bmc.credentials import get_credential_use
from gitboot.bmc.worker_pool import open_connections
from gitboot.child_processes import raise_open_file_limit
from gitboot.cli.commands.bmc_enroll import enroll
from gitboot.cli.commands.bmc_power import power_command, require_bmcs
from gitboot.cli.commands.bmc_scan import scan_network
from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import (
    find_machines,
    open_offline,
    request_change,
    select_names,
    select_servers,
    server_options,
)
from gitboot.cli.main import Exit, Group
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    credentials_option,
    current_time,
    output_option,
    reason_option,
    state_option,
    write_outputs,
)
from gitboot.cli.terminal import echo_wrapped, format_table, show_progress, wrap_text
from gitboot.controller.bmcs.manual_tasks import Inspection, format_override, inspect_bmcs, list_manual_tasks
from gitboot.controller.current_plans import find_stop_scope
from gitboot.controller.instance.assembly import OfflineInstance
from gitboot.controller.instance.state_directory import find_running_process
from gitboot.controller.operator_requests import (
    AcceptCertificate,
    AcceptIdentity,
    ContactBmcs,
    MarkInService,
    ReplaceOverride,
    ResolveOverride,
    ServerRequest,
)
from gitboot.controller.records.install_boots import remove_withheld_boots
from gitboot.errors import UsageError
from gitboot.files import find_file_below
from gitboot.fleet.identities import BmcAccess
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


@command.command(
    "get",
    context_settings=VARIABLES,
    example=("gitboot bmc get web01 --state /var/lib/gitboot \\\n    --credentials /etc/gitboot/bmc"),
    exit_codes={
        Exit.FINE: "all BMCs responded",
        Exit.PARTIAL: "a BMC did not respond",
    },
)
@server_options
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

    gitboot reads the BMCs of SERVERS, or of all servers. The table shows the override that the plan requires, the
    override at the BMC, the newest record, the evidence and the next step. Servers that need an operator are listed
    first. If you name SERVERS, gitboot also shows the boot order and Secure Boot. gitboot does not change the BMCs.
    """
    inspections = _inspect_bmcs(servers, selector, state, credentials)
    write_outputs(
        outputs,
        text=partial(_format_text, inspections, state, is_detailed=bool(servers)),
        json=partial(_format_json, inspections),
    )
    if any(inspection.observed is None for inspection in inspections):
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
@server_options
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
    inspections = [
        inspection
        for inspection in _inspect_bmcs(servers, selector, state, credentials, assets)
        if not inspection.is_settled or inspection.warnings
    ]
    write_outputs(outputs, text=partial(_format_diff, inspections, state), json=partial(_format_json, inspections))
    if any(inspection.observed is None for inspection in inspections):
        sys.exit(Exit.PARTIAL)
    if detailed_exitcode and not all(inspection.is_settled for inspection in inspections):
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
@server_options
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
        names = sorted(select_servers(instance, servers, selector)) if selector is not None else servers
        uuids = [uuid for name in names for uuid in find_machines(instance, name)]
        if not uuids:
            with_bmc = {uuid for uuid, machine in instance.commit.machines.items() if machine.bmc is not None}
            uuids = sorted(with_bmc | instance.snapshot.overrides.keys())
        is_ledger_named = instance.commit.ledger is not None
    echo_wrapped(request_change(state, ContactBmcs(uuids=tuple(uuids))))
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
        machines = sorted(instance.commit.machines.values(), key=lambda machine: machine.name)
        known_uses = instance.snapshot.known_pairs
    bmcs_by_credentials: dict[str, list[tuple[str, BmcAccess]]] = {}  # server names and BMCs
    for machine in machines:
        if machine.bmc is not None:
            bmcs_by_credentials.setdefault(machine.bmc.credentials, []).append((machine.name, machine.bmc))
    for name, bmcs in sorted(bmcs_by_credentials.items()):
        new = [server for server, bmc in bmcs if get_credential_use(bmc) not in known_uses]
        click.echo(f"# {(credentials or Path('DIR')) / name / FILE}: {format_count(len(bmcs), 'BMC')}")
        if new:
            click.echo(f"# First check the addresses of these new BMCs: {format_names(new)}")
        trust = read_trust(credentials, name) if credentials is not None else None
        click.echo(render_access_file((bmc for _, bmc in bmcs), trust))


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
    "resolution",
    flag_value="consumed",
    allow_from_autoenv=False,
    help="The machine booted from the override. gitboot does not set it again (condition NeedsOperator).",
)
@click.option(
    "--not-set",
    "resolution",
    flag_value="not-set",
    allow_from_autoenv=False,
    help="The override was never set. gitboot sets it if the plan still needs it (condition NeedsOperator).",
)
@click.option(
    "--same",
    "resolution",
    flag_value="same",
    allow_from_autoenv=False,
    help="The machine behind the BMC is SERVER, even though it shows another identity (condition AnotherMachine).",
)
@click.option(
    "--replace",
    "resolution",
    flag_value="replace",
    allow_from_autoenv=False,
    help="Let gitboot replace an override that someone else set (condition ForeignOverride).",
)
@click.option(
    "--back",
    "resolution",
    flag_value="back",
    allow_from_autoenv=False,
    help="SERVER is in service again, even though its BMC did not confirm this (condition PowerWavesRunning).",
)
@click.option(
    "--certificate",
    metavar="SHA256",
    help="The BMC's new certificate has this fingerprint. First compare it with the certificate on the BMC.",
)
@reason_option
@evaluator_command
def resolve(server: str, state: Path, resolution: str | None, certificate: str | None, reason: str) -> None:
    """Record facts about a BMC that only an operator can check.

    Look at the console or the boot log of SERVER first. After a wrong answer, gitboot may install the machine twice, or
    not at all. `gitboot status` names the option to use for each condition.
    """
    if resolution is None and certificate is None:
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
    requests: list[ServerRequest] = []
    with open_offline(state, at) as instance:
        for uuid in find_machines(instance, server):
            if fingerprint is not None:
                if uuid in instance.snapshot.pins:
                    requests.append(AcceptCertificate(uuid=uuid, server=server, reason=reason, certificate=fingerprint))
            elif resolution is not None:
                request = _build_request(instance, uuid, server, resolution, reason, at)
                if request is not None:
                    requests.append(request)
        is_ledger_named = instance.commit.ledger is not None
    if not requests:
        raise UsageError(f"gitboot has not read {server}'s BMC yet; run `gitboot bmc apply {quote_words(server)}`")
    for request in requests:
        echo_wrapped(request_change(state, request))
    if resolution in ("not-set", "replace"):
        _warn_without_ledger(is_ledger_named)


def _warn_without_ledger(is_ledger_named: bool) -> None:
    if not is_ledger_named:
        click.echo(
            "gitboot does not set boot overrides until the Fleet names a ledger; "
            "run `gitboot status` to see the line to add",
            err=True,
        )


def _build_request(
    instance: OfflineInstance, uuid: SystemUuid, server: str, resolution: str, reason: str, at: datetime
) -> ServerRequest | None:
    """Return the request for a resolution, or None if gitboot has not read the machine's BMC yet."""
    match resolution:
        case "same":
            pinned = instance.snapshot.pins.get(uuid)
            if pinned is None:
                return None
            shown = [pinned.latest_identity.uuid, pinned.latest_identity.serial]
            return AcceptIdentity(uuid=uuid, server=server, reason=reason, shown=shown)
        case "back":
            return MarkInService(uuid=uuid, server=server, reason=reason)
        case "replace":
            key = _find_plan_key(instance, uuid, server, at)
            return ReplaceOverride(uuid=uuid, server=server, reason=reason, key=key)
    machine = instance.commit.machines.get(uuid)
    address = list(machine.bmc.normalized_address) if machine is not None and machine.bmc is not None else None
    return ResolveOverride(
        uuid=uuid,
        server=server,
        reason=reason,
        consumed=resolution == "consumed",
        key=_find_plan_key(instance, uuid, server, at),
        bmc=address,
    )


def _find_plan_key(instance: OfflineInstance, uuid: SystemUuid, server: str, at: datetime) -> str | None:
    """Return the key of the override that the instance's plan wants, or of the plan, or None without a plan."""
    snapshot = instance.snapshot
    commit = remove_withheld_boots(instance.commit, snapshot.facts.withheld)
    if uuid not in commit.machines:
        return None
    # the plan of the instance, as `list_manual_tasks` makes it
    decision = commit.decisions.servers[server]
    stop = find_stop_scope(snapshot, commit, snapshot.facts.orders)
    absent = snapshot.find_missing_files(decision)
    remaining = drop_ended_windows(decision, snapshot.find_later_clock(at))
    plan = make_plan(remaining, at, snapshot.record(uuid), stop=stop, absent_files=absent)
    if plan is None:
        return None
    return plan.override.reason if plan.override is not None else plan.key


def _inspect_bmcs(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    credentials: Path | None,
    assets: Path | None = None,
) -> list[Inspection]:
    """Read the BMCs of these servers, or of all servers, and compare them with the plans.

    Raises `UsageError` if one of ``servers`` has no BMC.
    """
    raise_open_file_limit()  # only servers with a BMC, because gitboot connects to each BMC
    at = current_time()
    with open_offline(state, at) as instance, open_connections(credentials) as connections:
        names = select_names(instance, servers, selector)
        tasks = list_manual_tasks(instance.commit, instance.snapshot, instance.keys, at)
        selected = [task for task in tasks if names is None or task.server in names]
        require_bmcs(servers, selected)
        with show_progress("BMCs", len(selected)) as advance:
            find_fault = partial(_find_program_fault, assets)
            return inspect_bmcs(selected, connections, at, on_read=advance, find_fault=find_fault)


def _find_program_fault(assets: Path | None, url: str, base_url: str) -> str | None:
    """Return the reason why firmware with Secure Boot rejects the program at a URL, or None.

    The function does not check files outside ``assets``.
    """
    assets_url = f"{base_url}/assets/"
    if assets is None or not url.startswith(assets_url):
        return None
    with suppress(OSError):
        file = find_file_below(assets.resolve(), url.removeprefix(assets_url))
        if file is not None:
            with file.open("rb") as content:
                return find_program_fault(content.read(HEAD))
    return None


def _format_json(inspections: list[Inspection]) -> str:
    return format_document(items=[inspection.facts() for inspection in inspections])


class _Agreement(StrEnum):
    """How a BMC agrees with its plan, in the order of the summary."""

    NEEDS_OPERATOR = "needs an operator"
    UNREAD = "not read"
    DIFFERS = "differs from the plan"
    AS_PLANNED = "as planned"
    UNPLANNED = "with no plan"


_PLURALS: Final = {_Agreement.NEEDS_OPERATOR: "need an operator", _Agreement.DIFFERS: "differ from the plan"}
# the texts for people by state; the JSON output contains the keys
_EVIDENCE_TEXTS: Final = {"attempted": "served", "unseen": "unobservable"}


def _format_text(inspections: list[Inspection], state: Path, *, is_detailed: bool) -> str:
    header = ("SERVER", "PHASE", "WANTED", "CURRENT", "RECORD", "EVIDENCE", "NEXT STEP")
    lines = [
        format_table(header, map(_format_row, inspections), optional=5, shrinkable=(4,)),
        *_explain_inspections(inspections, state),
        "",
    ]
    if is_detailed:
        for inspection in inspections:
            if inspection.observed is not None:
                secure = {None: "not shown", True: "on", False: "off"}[inspection.observed.secure_boot]
                order = ", ".join(inspection.observed.boot_order) or "not shown"
                lines.append(wrap_text(f"{inspection.task.server}: Secure Boot: {secure}; boot order: {order}"))
    counts = Counter(map(_find_agreement, inspections))
    numbers = []
    for agreement in _Agreement:
        if number := counts[agreement]:
            numbers.append(f"{number} {agreement if number == 1 else _PLURALS.get(agreement, agreement)}")
    return "\n".join([*lines, f"{format_count(len(inspections), 'BMC')}: {', '.join(numbers) or 'none'}"])


def _find_agreement(inspection: Inspection) -> _Agreement:
    if inspection.needs_operator:
        return _Agreement.NEEDS_OPERATOR
    if inspection.observed is None:
        return _Agreement.UNREAD
    if not inspection.is_settled:
        return _Agreement.DIFFERS
    return _Agreement.AS_PLANNED if inspection.task.plan is not None else _Agreement.UNPLANNED


def _format_row(inspection: Inspection) -> tuple[str, ...]:
    task, observed = inspection.task, inspection.observed
    # The override that may still be set at the BMC. If there is none, the latest override.
    record = max(task.records, key=lambda record: (record.state.is_open, record.at), default=None)
    next_step, colour = inspection.next_action if observed is not None else "-", None
    if inspection.needs_operator:
        next_step, colour = "see below", "red"
    elif not inspection.is_settled:
        colour = "yellow"
    return (
        task.server,
        str(task.plan.phase) if task.plan is not None else "no plan",
        format_override(task.wanted.override if task.wanted is not None else None),
        format_override(observed.override) if observed is not None else style(inspection.next_action, fg="red"),
        f"{record.state} {record.reason.partition('/after/')[0]}" if record is not None else "-",
        _EVIDENCE_TEXTS.get(task.evidence, task.evidence),
        style(next_step, fg=colour),
    )


_MAX_NAMES: Final = 5  # maximum number of servers with the same reason in the output


def _explain_inspections(inspections: list[Inspection], state: Path) -> Iterator[str]:
    """Yield why BMCs differ from their plans, and the commands that help."""
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
        key = number if is_alone else (inspection.next_action, inspection.why, inspection.hint)
        groups.setdefault(key, []).append(inspection)
    lines: list[str] = []
    for group in groups.values():
        inspection = group[0]
        servers = format_names([member.task.server for member in group], 3)
        lines.append(f"{style(servers, bold=True)}: {inspection.next_action}: {printable(inspection.why)}")
        if inspection.request:
            address, target = inspection.task.bmc.address, inspection.request[-1]
            method = " ".join(inspection.request[:-1])
            lines.append(f"  {method} {address}{target}" if method else f"  {address}: {target}")
            if inspection.pending_reset is not None:
                lines.append(f"  then {printable(inspection.pending_reset)}")
        lines += [style(f"  warning: {printable(warning)}", fg="yellow") for warning in inspection.warnings]
        if inspection.hint is not None:
            lines.append(f"  {fill_state(inspection.hint, str(state))}")
    return "\n".join(lines or ["all BMCs match their plans"])


command.add_command(scan_network, "scan")
command.add_command(enroll, "enroll")
command.add_command(power_command, "power")
