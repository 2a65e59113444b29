"""`gitboot records`: what an instance knows of provisioning, and what a person says of it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gitboot.cli.inputs import OutputOption, document, now, output_option, state_option
from gitboot.phrases import count

if TYPE_CHECKING:
    from gitboot.cli.instance import Look
    from gitboot.plan import Record

_SETTINGS = {"auto_envvar_prefix": "GITBOOT"}
_STANDINGS: Final = ("unknown", "consumed", "pending", "drifted", "as wanted")
_reason_option = click.option("--reason", required=True, help="Why, for those who find it later.")


@click.group(context_settings=_SETTINGS)
def command() -> None:
    """Show what is known of provisioning, or say it for single servers.

    All of it goes by the state directory of an instance, running or not.
    """


@command.command("show", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@state_option
@output_option("text", "json")
def show(servers: tuple[str, ...], state: Path, outputs: tuple[OutputOption, ...]) -> None:
    """Show what is known of SERVERS, or of all, beside what is planned; the unknown ones first.

    Consumed is where a boot override was consumed, and nothing has shown yet what became of it.
    """
    from gitboot.cli.instance import chosen, looked_at
    from gitboot.instance.conditions import why_in_doubt

    with looked_at(state, now()) as instance:
        names = chosen(servers, instance)
        items = [item for item in _items(instance) if names is None or item["server"] in names]
        doubt = why_in_doubt(instance.knowledge, instance.commit.decisions)
    for output in outputs:
        if output.format == "json":
            output.write(document(items=items))
        else:
            output.write(_as_text(items, doubt[1] if doubt is not None else None))


@command.command("set", context_settings=_SETTINGS)
@click.argument("server")
@click.argument("what", type=click.Choice(["provisioned", "pending"]))
@state_option
@_reason_option
def set_record(server: str, what: str, state: Path, reason: str) -> None:
    """Say that SERVER is provisioned as its plan wants it (provisioned), or that it is not (pending).

    pending installs it as soon as its plan wants it, even where it was installed before: what was set or fetched
    until now counts no more.
    """
    from gitboot.cli.instance import decision_of, looked_at, request
    from gitboot.instance.requests import RECORDS
    from gitboot.plan import Record
    from gitboot.resolve.records import adopted, record_facts

    at = datetime.now(UTC)  # to the microsecond: what was fetched a moment before it counts no more
    with looked_at(state, at) as instance:
        decision = decision_of(instance, server)
        before = instance.knowledge.recorded(decision.uuid) or Record()
        record = _replaced(adopted(decision) if what == "provisioned" else Record(), before, at)
    item = {"uuid": decision.uuid, "server": server, **record_facts(record)}
    click.echo(request(state, RECORDS, {"items": [item], "reason": reason}))


@command.command("import", context_settings=_SETTINGS)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@state_option
@_reason_option
def import_records(file: Path, state: Path, reason: str) -> None:
    """Replace what is known of the servers in FILE, an ops/records.json, all or none of them."""
    from gitboot.cli.instance import looked_at, request
    from gitboot.errors import UsageError
    from gitboot.instance.requests import RECORDS
    from gitboot.resolve.records import imported, record_facts

    try:
        records = imported(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    with looked_at(state, now()) as instance:
        names = {decision.uuid: name for name, decision in instance.commit.decisions.servers.items()}
    known = [(uuid, record) for uuid, record in records.items() if uuid in names]
    if not known:
        raise UsageError(f"{file} has no server of the accepted commit")
    items = [{"uuid": uuid, "server": names[uuid], **record_facts(record)} for uuid, record in known]
    if strays := len(records) - len(known):
        click.echo(
            f"{strays} of {len(records)} records are of servers that the accepted commit does not have", err=True
        )
    click.echo(request(state, RECORDS, {"items": items, "reason": reason}))


def _replaced(record: Record, before: Record, at: datetime) -> Record:
    """What an operator says, from now on; what maintenances have booted stays as it was."""
    from dataclasses import replace

    since = max(at, before.provisioned_at or at)  # of what only grows: going back would look like an older backup
    return replace(
        record, provisioned_at=since, runs=before.runs, evidence="Operator" if record.provision is not None else None
    )


def _items(instance: Look) -> list[dict[str, Any]]:
    from gitboot.resolve.records import drift, record_facts

    items = []
    for name, decision in instance.commit.decisions.servers.items():
        record = instance.knowledge.recorded(decision.uuid)
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
                "record": record_facts(record) if record is not None else None,
                "drift": drift(decision, record),
            }
        )
    return sorted(items, key=lambda item: (_STANDINGS.index(_standing(item)), item["server"]))


def _standing(item: dict[str, Any]) -> str:
    """The heading under which a server is counted, the worst that fits."""
    record = item["record"]
    if record is None or _is_overwritten(item):
        return "unknown"
    if record["consumedAt"] is not None:
        return "consumed"
    if record["provision"] is None or record["provision"] < item["wanted"]["provision"]:
        return "pending"
    return "drifted" if item["drift"] else "as wanted"


def _is_overwritten(item: dict[str, Any]) -> bool:
    from gitboot.resolve.instant import is_overwritten
    from gitboot.resolve.records import record_of

    return item["record"] is not None and is_overwritten(record_of(item["record"]), item["wanted"]["provision"])


def _as_text(items: list[dict[str, Any]], doubt: str | None) -> str:
    from gitboot.cli.table import table, wrapped

    rows = []
    for item in items:
        wanted, record = item["wanted"], item["record"]
        rows.append(
            (
                item["server"],
                str(wanted["provision"]),
                _provisioned(item),
                (record or {}).get("image") or "-",
                (record or {}).get("pool") or "-",
                _evidence(item),
                _to_the_minute((record or {}).get("consumedAt") or (record or {}).get("provisionedAt")),
                ", ".join(item["drift"]) or "-",
            )
        )
    header = ("SERVER", "WANTED", "PROVISIONED", "IMAGE", "POOL", "EVIDENCE", "SINCE", "DRIFT")
    unsaid = [item["server"] for item in items if _standing(item) in ("unknown", "consumed")]
    say = (
        f"say what is on their disks: gitboot records set {unsaid[0]} provisioned, or pending"
        if unsaid and not doubt
        else None
    )
    below = [wrapped(line) for line in (doubt, say) if line]
    return "\n".join([table(header, rows), *(["", *below] if below else []), "", _summed_up(items)])


def _provisioned(item: dict[str, Any]) -> str:
    if item["record"] is None or _is_overwritten(item):
        return "unknown"
    number = item["record"]["provision"]
    return "pending" if number is None else str(number)


def _evidence(item: dict[str, Any]) -> str:
    record = item["record"] or {}
    if _is_overwritten(item):
        return f"overwritten by {record['overwrittenBy']}"
    return "consumed" if _standing(item) == "consumed" else record.get("evidence") or "-"


def _summed_up(items: list[dict[str, Any]]) -> str:
    counts = Counter(map(_standing, items))
    shown = ", ".join(f"{counts[what]} {what}" for what in _STANDINGS if counts[what])
    return f"{count(len(items), 'server')}: {shown or 'none'}"


def _to_the_minute(instant: str | None) -> str:
    return f"{instant[:16]}Z" if instant else "-"
