"""`gitboot records`: show and correct provisioning records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from gitboot.cli.completion import complete_record_arguments, complete_servers
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import (
    confirm_or_abort,
    find_decision,
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
    current_time,
    output_option,
    reason_option,
    selector_option,
    state_option,
    write_outputs,
)
from gitboot.cli.terminal import echo_wrapped, format_table, wrap_text
from gitboot.controller.instance.assembly import OfflineInstance, simulate_initialisation
from gitboot.controller.operator_requests import BeginWithRecords, ConfirmClock, SetRecords
from gitboot.controller.records.commit_effects import list_servers_to_install
from gitboot.controller.records.ledger_trust import InitMode, describe_unverified_ledger
from gitboot.errors import UsageError
from gitboot.fetchlog.spool import read_new_lines
from gitboot.jsonio import format_document, format_instant
from gitboot.model.scalars import Malformed, SystemUuid, parse_uuid
from gitboot.publish.tree_reader import read_records
from gitboot.render.endpoint_files import state_path
from gitboot.resolve.install_attempts import install_step, make_adopted_record
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.provisioning_record import (
    OPERATOR,
    RECORD_ERRORS,
    InstallStep,
    Record,
    find_drift,
    get_provisioning_fields,
    make_record_fields,
    parse_record,
)
from gitboot.resolve.server_plan import WAITING_CAUSES, Cause
from gitboot.text import format_count, format_omitted, format_suggestion, quote_words


@click.group(context_settings=VARIABLES, cls=Group, example="gitboot records show --state /var/lib/gitboot")
def records_command() -> None:
    """Show and correct the records of what is installed.

    The commands read the state directory of an instance. The instance does not have to run.
    """


@records_command.command(
    "show",
    context_settings=VARIABLES,
    example="gitboot records show web01 --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot printed the records",
    },
)
@click.argument("servers", nargs=-1, shell_complete=complete_servers)
@selector_option
@state_option
@output_option("text", "json")
@evaluator_command
def show(servers: tuple[str, ...], selector: str | None, state: Path, outputs: tuple[OutputOption, ...]) -> None:
    """Show the records of servers.

    gitboot shows the records of SERVERS, or of all servers, and what their plans require. Unknown servers are first.
    The evidence `consumed` means that a BMC consumed a boot override, and that gitboot has no evidence of the result
    yet.
    """
    with open_offline(state, current_time()) as instance:
        names = select_names(instance, servers, selector)
        items = [item for item in _build_record_items(instance) if names is None or item["server"] in names]
        trust_problem = describe_unverified_ledger(instance.snapshot.facts, instance.commit.decisions)
        site = instance.commit.site
    warning = trust_problem[1] if trust_problem is not None else None
    write_outputs(
        outputs,
        json=partial(format_document, items=items, site=site),
        text=partial(_format_text, items, warning, site),
    )


@records_command.command(
    "begin",
    context_settings=VARIABLES,
    example="gitboot records begin adopt --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot recorded what is installed",
        Exit.PARTIAL: "the instance has not processed the request yet",
        Exit.USAGE: "gitboot rejected the records, or an option is wrong",
        Exit.INTERRUPTED: "you pressed Ctrl-C, or answered no",
    },
)
@click.argument("source", metavar="fresh|adopt|as-recorded|FILE")
@state_option
@click.option(
    "--yes",
    is_flag=True,
    help="Do not ask for confirmation. Without a terminal, the command needs this option to install servers.",
)
@evaluator_command
def begin(source: str, state: Path, yes: bool) -> None:
    """Record once what is installed, for a new ledger.

    Also use this command if a ledger was restored, belongs to another output tree, or is damaged. If gitboot trusts the
    ledger, the command makes no changes. Before it writes, it shows the record of each server and what happens to the
    server. If gitboot would install a server, it asks for confirmation.

    Use fresh if servers with provision 1 or more are not installed yet. Only a new ledger accepts this. Use adopt if
    every server already has the installation that Git describes. Use as-recorded if the records in the ledger are
    correct, for example after OUTPUT moved. Use FILE for exported records, such as ops/records of an output tree.
    Servers that are not in FILE stay unknown. gitboot rejects a FILE that is older than the output tree.
    """
    with open_offline(state, current_time()) as instance:
        identity = instance.snapshot.facts.identity
        if not instance.commit.allows_ledger(identity):  # an instance that is not active must not record installations
            named = "does not name a ledger for this site"
            if instance.commit.ledger is not None:
                named = f"names the ledger {instance.commit.ledger}"
            raise UsageError(
                f"the Fleet {named}, but this instance has the ledger {identity}, so the instance is not active. "
                "Set this instance's ledger in the Fleet (`gitboot status` prints the line), then repeat this command"
            )
        records: Mapping[SystemUuid, Record] = {}
        if source in (InitMode.FRESH, InitMode.ADOPT, InitMode.AS_RECORDED):
            mode = InitMode(source)
        else:
            mode = InitMode.RECORDS
            hint = "; pass fresh, adopt, as-recorded, or a file with exported records"
            records = _read_exported_records(Path(source), hint)
        items = tuple({"uuid": uuid, **make_record_fields(record)} for uuid, record in records.items())
        request = BeginWithRecords(how=mode, items=items, commit=instance.commit.revision)
        if not instance.snapshot.is_trusted:
            _confirm_records(instance, request, records, yes=yes)
    echo_wrapped(request_change(state, request, instance.commit))


def _confirm_records(
    instance: OfflineInstance, request: BeginWithRecords, exported: Mapping[SystemUuid, Record], *, yes: bool
) -> None:
    """Show the first record of each server. Ask for confirmation if gitboot would install a server."""
    decisions = instance.commit.decisions
    at = current_time()
    after = simulate_initialisation(instance, request, at)
    records = {decision.server: after.stored_record(decision.uuid) for decision in decisions.servers.values()}
    unknown_count = sum(record is None for record in records.values())
    # gitboot never installs a server without a record, because the state of such a server is unknown.
    pending = [name for name in list_servers_to_install(after, decisions) if records[name] is not None]
    plans = {name: make_plan(decisions.servers[name], at, records[name]) for name in pending}
    begun = {name for name, plan in plans.items() if plan is not None and plan.cause in _BEGUN_CAUSES}
    installed = tuple(name for name in pending if name not in begun)
    described = {decision.uuid for decision in decisions.servers.values()}
    other_records = {str(uuid): record for uuid, record in exported.items() if uuid not in described}
    click.echo(_format_first_records(records, installed, begun, other_records))
    names = f": {', '.join(installed)}" if installed else ""
    click.echo(f"{format_count(len(installed), 'server')} would be installed{names}")
    if unknown_count:
        click.echo(
            f"{format_count(unknown_count, 'server')} would stay unknown, and gitboot does not install unknown servers"
        )
    machines = [instance.commit.machines[decisions.servers[name].uuid] for name in installed]
    if instance.commit.ledger is None and any(machine.bmc is not None for machine in machines):
        click.echo(
            "the Fleet does not name a ledger, so gitboot does not set boot overrides. To name this instance's ledger, "
            f"add this to the Fleet's spec: provisioning: {{ledger: {after.facts.identity}}}"
        )
    if installed:
        confirm_or_abort(yes=yes)


# With these causes, the installation in a record has begun, and gitboot does not begin it again.
_BEGUN_CAUSES: Final = WAITING_CAUSES | {Cause.FAILED}
_MAX_ROWS: Final = 200  # maximum number of rows for servers with the same result


def _format_first_records(
    records: Mapping[str, Record | None],
    servers_to_install: Collection[str],
    begun: Collection[str],
    other_records: Mapping[str, Record],
) -> str:
    """Format a table of servers that shows the new record of each server and what happens to the server.

    ``begun`` are the servers whose installation has begun, so that gitboot does not begin the installation again.
    ``other_records`` contains the records of machines without a Server document, by UUID.
    """
    groups: dict[str, list[tuple[str, str]]] = {  # servers and their records, by what happens
        "will be installed": [],
        "was being installed, so check it": [],
        "stays unknown and is not installed": [],
        "no Server document yet": [(uuid, _format_record(record)) for uuid, record in other_records.items()],
        "does not change": [],
    }
    for name, record in records.items():
        if record is None:
            groups["stays unknown and is not installed"].append((name, "-"))
        else:
            result = "will be installed" if name in servers_to_install else "does not change"
            result = "was being installed, so check it" if name in begun else result
            groups[result].append((name, _format_record(record)))
    rows: list[tuple[str, str, str]] = []
    for result, servers in groups.items():
        rows += [(name, text, result) for name, text in sorted(servers)[:_MAX_ROWS]]
        if left := format_omitted(len(servers) - _MAX_ROWS):
            rows.append((left, "", result))
    return format_table(("SERVER", "RECORD", "WHAT HAPPENS"), rows)


def _format_record(record: Record) -> str:
    if record.provision is None:
        return "pending"
    return f"provision {record.provision}" + (f", {record.installed}" if record.installed else "")


@records_command.command(
    "confirm-clock",
    context_settings=VARIABLES,
    example=("gitboot records confirm-clock --reason 'checked with ntpdate -q' \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "gitboot recorded the confirmation",
        Exit.PARTIAL: "the instance has not processed the request yet",
    },
)
@state_option
@reason_option
def confirm_clock(state: Path, reason: str) -> None:
    """Confirm that the clock of this host shows the correct time.

    Do this if the clock is behind the ledger, or if no time service controls it. If a time service controls the clock
    later and then stops, confirm the clock again.
    """
    echo_wrapped(request_change(state, ConfirmClock(reason=reason)))


_MAX_VERSION: Final = 200  # maximum length of a version that an operator can enter


@records_command.command(
    "set",
    context_settings=VARIABLES,
    example=("gitboot records set web01 web02 provisioned --reason 'checked by hand' \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "gitboot changed the records",
        Exit.PARTIAL: "the instance has not processed the request yet",
        Exit.USAGE: "a server does not exist, or a record changed in the meantime",
        Exit.INTERRUPTED: "you pressed Ctrl-C, or answered no",
    },
)
@click.argument("servers", nargs=-1, shell_complete=complete_record_arguments)
@click.argument("new_state", type=click.Choice(["provisioned", "pending"]))
@click.option(
    "--image",
    metavar="NAME",
    help="The BootImage that another tool installed on the SERVERS. Default: the image that their plans require.",
)
@click.option(
    "--version",
    metavar="TEXT",
    help="The version that another tool installed, if no BootImage describes the installation. Default: not known.",
)
@selector_option
@state_option
@reason_option
@yes_option
@evaluator_command
def set_record(
    servers: tuple[str, ...],
    new_state: str,
    image: str | None,
    version: str | None,
    selector: str | None,
    state: Path,
    reason: str,
    yes: bool,
) -> None:
    """Record that servers are provisioned or pending.

    With provisioned, the SERVERS are installed as their plans require. With pending, the SERVERS are not installed.
    gitboot installs a pending server as soon as its plan requires an installation, even if the server was installed
    before. gitboot then ignores earlier evidence.

    If another tool installed the SERVERS, state with --image or --version what it installed. gitboot then shows the
    installation as drift, if the plans require another image. A policy with networkBoot OnImageChange installs such
    servers.

    The command asks for confirmation if gitboot would install a provisioned server again, and if you select several
    servers. It changes all records in one step.
    """
    at = current_time()
    is_provisioned_now = new_state == "provisioned"
    is_foreign = image is not None or version is not None
    if is_foreign and (not is_provisioned_now or (image is not None and version is not None)):
        raise UsageError("to record what another tool installed, use `provisioned` with either --image or --version")
    if version is not None and not (version.isprintable() and version.strip() and len(version) <= _MAX_VERSION):
        raise UsageError(f"--version must be one line of text with at most {_MAX_VERSION} characters")
    with open_offline(state, at) as instance:
        selected = select_servers(instance, servers, selector)
        shown = [item for item in _build_record_items(instance) if item["server"] in selected]
        images = instance.repository.images
        if image is not None and image not in images:
            hint = format_suggestion(image, images, "use --version to state the version instead")
            raise UsageError(f"the accepted commit has no BootImage {image!r}; {hint}")
    items: list[dict[str, object]] = []
    installed: list[str] = []  # the servers that gitboot would install because of the new record
    for name, decision in selected.items():
        before = instance.snapshot.stored_record(decision.uuid) or Record()
        record = replace(
            make_adopted_record(decision) if is_provisioned_now else Record(),
            # This time must not decrease. A lower value would look like an older backup.
            provisioned_at=max(at, before.provisioned_at or at),
            runs=before.runs,  # keep the runs of maintenances
            evidence=OPERATOR if is_provisioned_now else None,
        )
        if is_foreign:
            is_planned = image == record.image
            record = replace(record, image=image, version=version, decision=record.decision if is_planned else None)
        is_pending = decision.installation is not None and install_step(decision, record) is InstallStep.PENDING
        if is_pending and (is_foreign or install_step(decision, before) is InstallStep.PROVISIONED):
            installed.append(name)
        item = {
            "uuid": decision.uuid,
            "server": name,
            "seen": get_provisioning_fields(before),
            **make_record_fields(record),
        }
        if is_foreign:
            item["isForeign"] = True
        items.append(item)
    if len(items) > 1 or not servers or installed:
        click.echo(_format_text(shown, None))
        installation = f" with {image or f'version {version}'}" if is_foreign else ""
        click.echo(f"gitboot would record {format_count(len(items), 'server')} as {new_state}{installation}: {reason}")
        if installed:
            cause = ", because their policies set networkBoot: OnImageChange"
            if not is_provisioned_now:
                cause = " again, and the installer erases the disks"
            count = format_count(len(installed), "server")
            click.echo(f"{count} would be installed{cause}: {', '.join(installed)}")
        confirm_or_abort(yes=yes)
    echo_wrapped(request_change(state, SetRecords(items=tuple(items), reason=reason)))


@records_command.command(
    "import",
    context_settings=VARIABLES,
    example=("gitboot records import records.json --reason 'restore' \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "gitboot replaced the records",
        Exit.PARTIAL: "the instance has not processed the request yet",
        Exit.USAGE: "FILE does not contain any servers from the accepted commit, or gitboot rejected the records",
    },
)
@click.argument("file", type=click.Path(path_type=Path))
@state_option
@reason_option
@evaluator_command
def import_records(file: Path, state: Path, reason: str) -> None:
    """Replace the records of servers with those in a file.

    FILE contains exported records. gitboot replaces the records of all servers in FILE in one step.
    """
    records = _read_exported_records(file)
    with open_offline(state, current_time()) as instance:
        names = {decision.uuid: name for name, decision in instance.commit.decisions.servers.items()}
    known = [(uuid, record) for uuid, record in records.items() if uuid in names]
    if not known:
        raise UsageError(f"{file} does not contain any servers from the accepted commit")
    items = [{"uuid": uuid, "server": names[uuid], **make_record_fields(record)} for uuid, record in known]
    if strays := len(records) - len(known):
        click.echo(
            f"ignored {strays} of {len(records)} records: the accepted commit does not contain their servers", err=True
        )
    echo_wrapped(request_change(state, SetRecords(items=tuple(items), reason=reason)))


@records_command.command(
    "hand-over",
    context_settings=VARIABLES,
    example="gitboot records hand-over web01 --state /var/lib/gitboot > web01.json",
    exit_codes={
        Exit.FINE: "gitboot printed the record",
        Exit.USAGE: "the instance has not released the server, or has no record of it",
    },
)
@click.argument("server", shell_complete=complete_servers)
@state_option
@evaluator_command
def hand_over(server: str, state: Path) -> None:
    """Print the record of a server that left this site.

    Pass the output to `gitboot records take-over` at the new site. SERVER is the most recent name of the server at this
    site, or its UUID.

    The instance must have released the server first: it has accepted the commit that moves the server, has cleared its
    override at the BMC, and publishes no files for it. The command does not change the ledger. You can repeat it.
    """
    at = current_time()
    with open_offline(state, at) as instance:
        exported = build_hand_over(server, instance, at)
    click.echo(format_document(**exported))


@records_command.command(
    "take-over",
    context_settings=VARIABLES,
    example=("gitboot records take-over web01.json --reason 'moved to lon1' \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "gitboot recorded the server's state",
        Exit.PARTIAL: "the instance has not processed the request yet",
        Exit.USAGE: "gitboot rejected FILE, or an option is wrong",
    },
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@state_option
@reason_option
@evaluator_command
def take_over(file: Path, state: Path, reason: str) -> None:
    """Take over the record of a server from another site.

    FILE contains the output of `gitboot records hand-over` from the old site. Both instances must have accepted the
    same commit. The server must be unknown at this site, so that it cannot have booted between the two commands.
    """
    exported = read_hand_over(file)
    with open_offline(state, current_time()) as instance:
        record = build_taken_record(exported, instance)
        server = _find_current_name(exported, instance)
    item = {"uuid": exported["uuid"], "server": server, **make_record_fields(record)}
    request = SetRecords(items=(item,), reason=reason, commit=exported["commit"], unknown=True)
    echo_wrapped(request_change(state, request))


def _read_exported_records(file: Path, hint: str = "") -> dict[SystemUuid, Record]:
    """Read exported records. Raises `UsageError` with the hint if the file cannot be read."""
    try:
        return read_records(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}{hint}") from None


# The states of records as in the table, with those that need an operator first.
_STATE_ORDER: Final = ("unknown", "consumed", "failed", "served", "started", "pending", "drifted", "provisioned")
_UNPROVEN_STATES: Final = ("unknown", "consumed", "failed")
_MAX_NAMES: Final = 20  # maximum number of names in a command that a person types


def _build_record_items(instance: OfflineInstance) -> list[dict[str, Any]]:
    """Return the records of all servers as items of the JSON document, in the order of their states."""
    items = []
    for name, decision in instance.commit.decisions.servers.items():
        record = instance.snapshot.stored_record(decision.uuid)
        policy = decision.policy
        items.append(
            {
                "server": name,
                "uuid": decision.uuid,
                "known": record is not None,
                "wanted": {
                    "provision": decision.provision,
                    "image": policy.boot.image if policy and policy.boot else None,
                    "pool": policy.policy if policy else None,
                },
                "step": install_step(decision, record),
                "record": make_record_fields(record) if record is not None else None,
                "drift": find_drift(decision, record),
            }
        )
    return sorted(items, key=lambda item: (_STATE_ORDER.index(_describe_state(item)), item["server"]))


def _describe_state(item: dict[str, Any]) -> str:
    step = InstallStep(item["step"]).label.lower()
    if step == "pending" and item["record"]["consumedAt"] is not None:
        return "consumed"
    if step == "provisioned":
        return "drifted" if item["drift"] else "provisioned"
    return step


def _format_text(items: list[dict[str, Any]], trust_problem: str | None, site: str | None = None) -> str:
    """Format a table of records, what to do about unproven records, and the number of servers by state.

    If gitboot does not trust the ledger, ``trust_problem`` states what to do instead.
    """
    header = ("SERVER", "WANTED", "PROVISIONED", "IMAGE", "POOL", "EVIDENCE", "SINCE", "DRIFT")
    lines = [format_table(header, map(_format_row, items), optional=4), ""]
    unproven = [item["server"] for item in items if _describe_state(item) in _UNPROVEN_STATES]
    if trust_problem:
        lines += [wrap_text(trust_problem), ""]
    elif unproven:
        lines += [
            "Check these servers' disks, then record each server as provisioned or pending:",
            f"    gitboot records set {quote_words(*unproven[:_MAX_NAMES])} provisioned --state STATE --reason '…'",
            "",
        ]
    counts = Counter(map(_describe_state, items))
    numbers = {state: f"{counts[state]} {state}" for state in _STATE_ORDER if counts[state]}
    reinstalls = sum(_describe_state(item) == "pending" and item["record"]["provision"] is not None for item in items)
    if reinstalls:
        numbers["pending"] += f" ({reinstalls} of them to be reinstalled)"
    place = f" at the site {site}" if site is not None else ""
    lines.append(f"{format_count(len(items), 'server')}{place}: {', '.join(numbers.values()) or 'none'}")
    return "\n".join(lines)


def _format_row(item: dict[str, Any]) -> tuple[str, ...]:
    record = item["record"] or {}
    state = _describe_state(item)
    provisioned = "unknown"
    if item["step"] != "Unknown":
        provisioned = str(record["provision"]) if record["provision"] is not None else "pending"
    # The step of an unfinished installation, or the evidence for the end of a finished installation.
    evidence = record.get("evidence") or "-"
    since = record.get("consumedAt") or record.get("provisionedAt")
    if state == "unknown" and record:
        evidence = f"overwritten by {record['overwrittenBy']}"
    elif state in ("consumed", "failed", "served", "started", "pending"):
        evidence = state
    if state in ("failed", "served", "started"):
        attempt = record["attempts"][-1]
        since = (attempt["failed"] or attempt["started"] or attempt["boots"][-1])["at"]
    elif state == "pending":
        since = None  # the time of the earlier installation
    return (
        item["server"],
        str(item["wanted"]["provision"]),
        provisioned,
        record.get("image") or (f"version {record['version']}" if record.get("version") else "-"),
        record.get("pool") or "-",
        evidence,
        f"{since[:16]}Z" if since else "-",
        ", ".join(item["drift"]) or "-",
    )


HAND_OVER_KIND: Final = "HandOver"


def build_hand_over(server: str, instance: OfflineInstance, at: datetime) -> dict[str, Any]:
    """Return the record of a server that the instance has released.

    Raises `UsageError` if the instance has not released the server yet.
    """
    snapshot = instance.snapshot
    server, uuid = _find_machine(server, instance)
    _require_released(server, uuid, instance)
    record = snapshot.stored_record(uuid)
    if record is None:
        raise UsageError(
            f"the ledger has no record of {server}; run `gitboot records set` at the server's new site to record what "
            "is installed"
        )
    since = record.provisioned_at
    is_open = any(since is None or since < attempt.last_seen.at for attempt in record.attempts)
    if is_open or record.consumed_at is not None or any(not serve.is_withheld for serve in record.unknown_serves):
        raise UsageError(
            f"an installation of {server} started here, but gitboot has no evidence that it finished. Check the "
            "server, then run `gitboot records set` at the server's new site to record what is installed"
        )
    return {
        "kind": HAND_OVER_KIND,
        "server": server,
        "uuid": uuid,
        "commit": instance.commit.revision,
        "ledger": snapshot.facts.identity,
        "site": snapshot.facts.site or None,
        "at": format_instant(at),
        # Mark the boot as consumed, because the new site must not serve a boot again that was served here.
        "record": make_record_fields(replace(record, grace_until=None)),
    }


def _require_released(server: str, uuid: SystemUuid, instance: OfflineInstance) -> None:
    """Raise `UsageError` if the instance still has something to do for a machine, and state what it waits for."""
    facts = instance.snapshot.facts
    if uuid in instance.commit.machines:
        is_named = facts.orders is None or facts.orders.ledger in (None, facts.identity)
        hint = "move the server in Git first" if is_named else "wait until the instance has accepted the newer commit"
        raise UsageError(
            f"{server} still belongs to this instance in the accepted commit {instance.commit.revision[:12]}: {hint}"
        )
    for override in instance.snapshot.list_overrides(uuid):
        if override.may_be_left_on_bmc:
            raise UsageError(
                f"gitboot has not yet cleared the override for {override.reason} on {server}'s BMC: try again later"
            )
    is_reassigned = server in instance.commit.decisions.servers  # another machine now has the name of the server
    if facts.output is not None and not is_reassigned and (Path(facts.output) / state_path(server)).exists():
        raise UsageError(f"{facts.output} still contains boot files for {server}: wait for the next reconcile")
    has_unread_requests = bool(instance.snapshot.pending.get(uuid))
    if facts.spool is not None and Path(facts.spool).is_dir():
        new_lines = read_new_lines(Path(facts.spool), instance.snapshot.spool_offsets)
        has_unread_requests |= any(observation.server == server for observation in new_lines.observations)
    if has_unread_requests:
        raise UsageError(f"the instance has not processed {server}'s latest requests yet: wait for the next reconcile")


def _find_machine(server: str, instance: OfflineInstance) -> tuple[str, SystemUuid]:
    """Return the machine with this name or UUID. Machines in the accepted commit take precedence."""
    machines = instance.snapshot.machines
    if (decision := instance.commit.decisions.servers.get(server)) is not None:
        return server, decision.uuid
    with suppress(Malformed):
        if (by_uuid := machines.get(parse_uuid(server))) is not None:
            return by_uuid.name, by_uuid.uuid
    uuids = sorted(uuid for uuid, machine in machines.items() if machine.name == server)
    if not uuids:
        raise UsageError(
            f"this instance has never managed a server named {server}: use the server's UUID, or its last name at this "
            "site"
        )
    if len(uuids) > 1:
        raise UsageError(
            f"this instance has managed {len(uuids)} machines named {server}: specify a UUID instead "
            f"({', '.join(uuids[:-1])} or {uuids[-1]})"
        )
    return server, uuids[0]


def read_hand_over(file: Path) -> dict[str, Any]:
    """Read a file with the output of `build_hand_over`. Raises `UsageError` if the file contains anything else."""
    try:
        hand_over = json.loads(file.read_bytes())
        if hand_over["kind"] != HAND_OVER_KIND:
            raise ValueError(f"the kind is {hand_over['kind']}")
        parse_uuid(hand_over["uuid"])
        parse_record(hand_over["record"])
        texts = [hand_over[name] for name in ("server", "commit", "ledger", "at")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("`server`, `commit`, `ledger` and `at` must be strings")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except RECORD_ERRORS as error:
        raise UsageError(f"{file} is not the output of `gitboot records hand-over`: {error}") from None
    return dict(hand_over)


def _find_current_name(hand_over: dict[str, Any], instance: OfflineInstance) -> str:
    """Return the name that the accepted commit gives to the machine.

    The commit that moved the machine to another site may have renamed it.
    """
    machine = instance.commit.machines.get(hand_over["uuid"])
    return str(hand_over["server"]) if machine is None else machine.name


def build_taken_record(hand_over: dict[str, Any], instance: OfflineInstance) -> Record:
    """Return the record for a server that another site handed over.

    Raises `UsageError` if the server may have booted since then.
    """
    server = _find_current_name(hand_over, instance)
    if hand_over["ledger"] == instance.snapshot.facts.identity:
        raise UsageError(f"{server} was handed over by this instance: run this command at the server's new site")
    decision = find_decision(instance, server)
    if decision.uuid != hand_over["uuid"]:
        raise UsageError(
            f"{server} has the UUID {decision.uuid} in this instance's accepted commit, but the file is for "
            f"the UUID {hand_over['uuid']}"
        )
    if hand_over["commit"] != instance.commit.revision:
        raise UsageError(
            f"{server} was handed over at commit {hand_over['commit'][:12]}, but this instance has accepted commit "
            f"{instance.commit.revision[:12]}. Another site may have installed the server in between. Hand the server "
            "over again when both instances have accepted the same commit"
        )
    has_override = any(each.may_be_left_on_bmc for each in instance.snapshot.list_overrides(decision.uuid))
    if has_override or instance.snapshot.stored_record(decision.uuid) is not None:
        raise UsageError(f"this instance already has a record of {server}: check it with `gitboot records show`")
    return parse_record(hand_over["record"])
