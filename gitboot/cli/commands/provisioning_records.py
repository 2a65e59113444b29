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
from gitboot.controller.operator_requests import BEGIN, CLOCK, RECORDS
from gitboot.controller.records.ledger_trust import InitMode, describe_unverified_ledger
from gitboot.controller.records.provisioning import list_servers_to_install
from gitboot.errors import UsageError
from gitboot.fetchlog.spool import read_new_lines
from gitboot.jsonio import format_document, format_instant
from gitboot.model.scalars import Malformed, SystemUuid, parse_uuid
from gitboot.publish.tree_reader import read_records
from gitboot.render.endpoint_files import state_path
from gitboot.resolve.install_attempts import install_step, is_provisioned, make_adopted_record
from gitboot.resolve.provisioning_record import (
    InstallStep,
    Record,
    find_drift,
    get_provisioning_fields,
    make_record_fields,
    parse_record,
)
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
    write_outputs(
        outputs,
        json=partial(format_document, items=items, site=site),
        text=partial(_format_text, items, trust_problem[1] if trust_problem is not None else None, site),
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
@click.argument("what", metavar="fresh|adopt|as-recorded|FILE")
@state_option
@click.option(
    "--yes",
    is_flag=True,
    help="Do not ask for confirmation. Without a terminal, the command needs this option to install servers.",
)
@evaluator_command
def begin(what: str, state: Path, yes: bool) -> None:
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
            named = (
                f"names the ledger {instance.commit.ledger}"
                if instance.commit.ledger is not None
                else "does not name a ledger for this site"
            )
            raise UsageError(
                f"the Fleet {named}, but this instance has the ledger {identity}, so the instance is not active. "
                "Set this instance's ledger in the Fleet (`gitboot status` prints the line), then repeat this command"
            )
        facts: dict[str, Any] = {"how": what, "commit": instance.commit.revision}
        if what not in (InitMode.FRESH, InitMode.ADOPT, InitMode.AS_RECORDED):
            hint = "; pass fresh, adopt, as-recorded, or a file with exported records"
            facts["how"] = InitMode.RECORDS
            facts["items"] = [
                {"uuid": uuid, **make_record_fields(record)}
                for uuid, record in _read_exported_records(Path(what), hint).items()
            ]
        _confirm_records(instance, facts, yes=yes)
    echo_wrapped(request_change(state, BEGIN, facts, instance.commit))


def _confirm_records(instance: OfflineInstance, facts: dict[str, Any], *, yes: bool) -> None:
    if instance.snapshot.is_trusted:
        return
    decisions, after = instance.commit.decisions, simulate_initialisation(instance, facts, current_time())
    records = {each.server: after.stored_record(each.uuid) for each in decisions.servers.values()}
    unknown = sum(record is None for record in records.values())
    # These servers are unknown, and gitboot never installs a server without a record.
    installed = tuple(name for name in list_servers_to_install(after, decisions) if records[name] is not None)
    described = {each.uuid for each in decisions.servers.values()}
    others = {str(each["uuid"]): parse_record(each) for each in facts.get("items", ()) if each["uuid"] not in described}
    click.echo(_format_first_records(records, installed, others))
    names = f": {', '.join(installed)}" if installed else ""
    click.echo(f"{format_count(len(installed), 'server')} would be installed{names}")
    if unknown:
        click.echo(
            f"{format_count(unknown, 'server')} would stay unknown, and gitboot does not install unknown servers"
        )
    machines = (instance.commit.machines[decisions.servers[name].uuid] for name in installed)
    if instance.commit.ledger is None and any(each.bmc is not None for each in machines):
        click.echo(
            "the Fleet does not name a ledger, so gitboot does not set boot overrides. To name this instance's ledger, "
            f"add this to the Fleet's spec: provisioning: {{ledger: {after.facts.identity}}}"
        )
    if installed:
        confirm_or_abort(yes=yes)


_MAX_ROWS: Final = 200  # maximum number of rows for servers with the same result


def _format_first_records(
    records: Mapping[str, Record | None], servers_to_install: Collection[str], other_records: Mapping[str, Record]
) -> str:
    """Format a table of servers that shows the new record of each server and what happens to the server.

    ``other_records`` contains the records of machines without a Server document, by UUID.
    """
    unknown = [(name, "-", "stays unknown and is not installed") for name, record in records.items() if record is None]
    known = [(name, record) for name, record in records.items() if record is not None]
    groups = [
        [(name, _format_record(record), "will be installed") for name, record in known if name in servers_to_install],
        unknown,
        [(uuid, _format_record(record), "no Server document yet") for uuid, record in other_records.items()],
        [(name, _format_record(record), "does not change") for name, record in known if name not in servers_to_install],
    ]
    rows: list[tuple[str, str, str]] = []
    for group in groups:
        rows += sorted(group)[:_MAX_ROWS]
        if left := format_omitted(len(group) - _MAX_ROWS):
            rows.append((left, "", group[0][2]))
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
    echo_wrapped(request_change(state, CLOCK, {"reason": reason}))


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
@click.argument("what", type=click.Choice(["provisioned", "pending"]))
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
    what: str,
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
    servers, so the command asks for confirmation first.

    For several servers, the command shows their records and asks for confirmation. It changes all of these records in
    one step.
    """
    at, foreign = current_time(), image is not None or version is not None
    if foreign and (what != "provisioned" or (image is not None and version is not None)):
        raise UsageError("to record what another tool installed, use `provisioned` with either --image or --version")
    if version is not None and not (version.isprintable() and version.strip() and len(version) <= _MAX_VERSION):
        raise UsageError(f"--version must be one line of text with at most {_MAX_VERSION} characters")
    with open_offline(state, at) as instance:
        selected = select_servers(instance, servers, selector)
        shown = [item for item in _build_record_items(instance) if item["server"] in selected]
        if image is not None and image not in (images := instance.repository.images):
            hint = format_suggestion(image, images, "use --version to state the version instead")
            raise UsageError(f"the accepted commit has no BootImage {image!r}; {hint}")
    items, installed = [], []
    for name, decision in selected.items():
        before = instance.snapshot.stored_record(decision.uuid) or Record()
        record = replace(
            make_adopted_record(decision) if what == "provisioned" else Record(),
            # This time must not decrease. A lower value would look like an older backup.
            provisioned_at=max(at, before.provisioned_at or at),
            runs=before.runs,  # keep the runs of maintenances
            evidence="Operator" if what == "provisioned" else None,
        )
        if foreign:
            is_planned = image == record.image
            record = replace(record, image=image, version=version, decision=record.decision if is_planned else None)
            if decision.installation is not None and decision.policy and not is_provisioned(decision.policy, record):
                installed.append(name)
        item = {
            "uuid": decision.uuid,
            "server": name,
            "seen": get_provisioning_fields(before),
            **make_record_fields(record),
        }
        items.append({**item, "isForeign": True} if foreign else item)
    if len(items) > 1 or not servers or installed:
        click.echo(_format_text(shown, None))
        stated = f" with {image or f'version {version}'}" if foreign else ""
        click.echo(f"gitboot would record {format_count(len(items), 'server')} as {what}{stated}: {reason}")
        if installed:
            click.echo(
                f"{format_count(len(installed), 'server')} would be installed ({', '.join(installed)}), because their "
                "policies set networkBoot: OnImageChange"
            )
        confirm_or_abort(yes=yes)
    echo_wrapped(request_change(state, RECORDS, {"items": items, "reason": reason}))


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
    echo_wrapped(request_change(state, RECORDS, {"items": items, "reason": reason}))


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
    """Record what `records hand-over` printed elsewhere.

    FILE contains the output of `gitboot records hand-over` from the old site. Both instances must have accepted the
    same commit. The server must be unknown at this site, so that it cannot have booted between the two commands.
    """
    exported = read_hand_over(file)
    with open_offline(state, current_time()) as instance:
        record, server = build_taken_record(exported, instance), _find_current_name(exported, instance)
    item = {"uuid": exported["uuid"], "server": server, **make_record_fields(record)}
    facts = {"items": [item], "reason": reason, "commit": exported["commit"], "unknown": True}
    echo_wrapped(request_change(state, RECORDS, facts))


def _read_exported_records(file: Path, hint: str = "") -> dict[SystemUuid, Record]:
    try:
        return read_records(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}{hint}") from None


_STATE_ORDER: Final = ("unknown", "consumed", "failed", "served", "started", "pending", "drifted", "provisioned")


def _build_record_items(instance: OfflineInstance) -> list[dict[str, Any]]:
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


_UNPROVEN_STATES: Final = _STATE_ORDER[:3]
_MAX_NAMES: Final = 20  # maximum number of names in a command that a person types


def _format_text(items: list[dict[str, Any]], trust_problem: str | None, site: str | None = None) -> str:
    header = ("SERVER", "WANTED", "PROVISIONED", "IMAGE", "POOL", "EVIDENCE", "SINCE", "DRIFT")
    unproven = [item["server"] for item in items if _describe_state(item) in _UNPROVEN_STATES]
    below = [wrap_text(trust_problem)] if trust_problem else []
    if unproven and not trust_problem:
        named = quote_words(*unproven[:_MAX_NAMES])
        below = [
            "Check these servers' disks, then record each server as provisioned or pending:",
            f"    gitboot records set {named} provisioned --state STATE --reason '…'",
        ]
    counts = Counter(map(_describe_state, items))
    reinstalls = sum(_describe_state(item) == "pending" and item["record"]["provision"] is not None for item in items)
    more = {"pending": f" ({reinstalls} of them to be reinstalled)"} if reinstalls else {}
    shown = ", ".join(f"{counts[what]} {what}{more.get(what, '')}" for what in _STATE_ORDER if counts[what])
    where = f" at the site {site}" if site is not None else ""
    total = f"{format_count(len(items), 'server')}{where}: {shown or 'none'}"
    return "\n".join(
        [format_table(header, map(_format_row, items), optional=4), *(["", *below] if below else []), "", total]
    )


def _format_row(item: dict[str, Any]) -> tuple[str, ...]:
    record, state = item["record"] or {}, _describe_state(item)
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
        last = record["attempts"][-1]
        since = (last["failed"] or last["started"] or last["boots"][-1])["at"]
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
    facts = instance.snapshot.facts
    server, uuid = _find_machine(server, instance)
    if uuid in instance.commit.machines:
        is_named = facts.orders is None or facts.orders.ledger in (None, facts.identity)
        hint = "move the server in Git first" if is_named else "wait until the instance has accepted the newer commit"
        raise UsageError(
            f"{server} still belongs to this instance in the accepted commit {instance.commit.revision[:12]}: {hint}"
        )
    leftover = [each for each in instance.snapshot.list_overrides(uuid) if each.may_be_left_on_bmc]
    if leftover:
        raise UsageError(
            f"gitboot has not yet cleared the override for {leftover[0].reason} on {server}'s BMC: try again later"
        )
    is_reassigned = server in instance.commit.decisions.servers  # another machine now has the name of the server
    if facts.output is not None and not is_reassigned and (Path(facts.output) / state_path(server)).exists():
        raise UsageError(f"{facts.output} still contains boot files for {server}: wait for the next reconcile")
    has_spool = facts.spool is not None and Path(facts.spool).is_dir()
    new = read_new_lines(Path(facts.spool or ""), instance.snapshot.spool_offsets).observations if has_spool else []
    if instance.snapshot.pending.get(uuid) or any(each.server == server for each in new):
        raise UsageError(f"the instance has not processed {server}'s latest requests yet: wait for the next reconcile")
    if (record := instance.snapshot.stored_record(uuid)) is None:
        raise UsageError(
            f"the ledger has no record of {server}; run `gitboot records set` at the server's new site to record what "
            "is installed"
        )
    since = record.provisioned_at
    is_open = any(since is None or since < each.last_seen.at for each in record.attempts)
    if is_open or record.consumed_at is not None or any(not each.is_withheld for each in record.unknown_serves):
        raise UsageError(
            f"an installation of {server} started here, but gitboot has no evidence that it finished. Check the "
            "server, then run `gitboot records set` at the server's new site to record what is installed"
        )
    return {
        "kind": HAND_OVER_KIND,
        "server": server,
        "uuid": uuid,
        "commit": instance.commit.revision,
        "ledger": facts.identity,
        "site": facts.site or None,
        "at": format_instant(at),
        # Mark the boot as consumed, because the new site must not serve a boot again that was served here.
        "record": make_record_fields(replace(record, grace_until=None)),
    }


def _find_machine(server: str, instance: OfflineInstance) -> tuple[str, SystemUuid]:
    """Return the machine with this name or UUID. Machines in the accepted commit take precedence."""
    machines = instance.snapshot.machines
    if (decision := instance.commit.decisions.servers.get(server)) is not None:
        return server, decision.uuid
    with suppress(Malformed):
        if (by_uuid := machines.get(parse_uuid(server))) is not None:
            return by_uuid.name, by_uuid.uuid
    found = sorted(uuid for uuid, machine in machines.items() if machine.name == server)
    if not found:
        raise UsageError(
            f"this instance has never managed a server named {server}: use the server's UUID, or its last name at this "
            "site"
        )
    if len(found) > 1:
        raise UsageError(
            f"this instance has managed {len(found)} machines named {server}: specify a UUID instead "
            f"({', '.join(found[:-1])} or {found[-1]})"
        )
    return server, found[0]


def read_hand_over(file: Path) -> dict[str, Any]:
    """Read a file with the output of `build_hand_over`. Raises `UsageError` if the file contains anything else."""
    try:
        found = json.loads(file.read_bytes())
        if found["kind"] != HAND_OVER_KIND:
            raise ValueError(f"the kind is {found['kind']}")
        parse_uuid(found["uuid"])
        parse_record(found["record"])
        texts = [found[each] for each in ("server", "commit", "ledger", "at")]
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("`server`, `commit`, `ledger` and `at` must be strings")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{file} is not the output of `gitboot records hand-over`: {error}") from None
    return dict(found)


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
