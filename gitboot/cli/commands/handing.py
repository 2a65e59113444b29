"""A server that changes its site: what its first instance knows of it, as a document that the next one takes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gitboot.cli.instance import decision_of
from gitboot.errors import UsageError
from gitboot.fetchlog.spool import take
from gitboot.jsonio import format_instant
from gitboot.model.scalars.machines import parse_uuid
from gitboot.model.scalars.texts import Malformed
from gitboot.render.endpoint_files import state_path
from gitboot.resolve.provisioning_record import record_facts, record_of
from gitboot.resolve.provisioning_record_from_plan import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from gitboot.controller.instance.assembly import Look
    from gitboot.model.scalars.machines import SystemUuid

KIND: Final = "HandOver"


def released(server: str, look: Look, at: datetime) -> dict[str, Any]:
    """What is known of a server that an instance has let go; raises `UsageError` where it has not, or not yet."""
    about = look.knowledge.facts
    server, uuid = _machine_of(server, look)
    if uuid in look.commit.machines:
        is_named = about.orders is None or about.orders.ledger in (None, about.identity)
        raise UsageError(
            f"{server} is still this instance's by the commit {look.commit.revision[:12]} that it has accepted: "
            + ("move the server in Git first" if is_named else "let it accept the one by which it stands back first")
        )
    standing = [each for each in look.knowledge.overrides_of(uuid) if each.stays_behind]
    if standing:
        raise UsageError(f"{server}: what was set at its BMC for {standing[0].reason} is not known to be withdrawn yet")
    is_given_away = server in look.commit.decisions.servers  # its name, to another machine
    if about.output is not None and not is_given_away and (Path(about.output) / state_path(server)).exists():
        raise UsageError(f"{server} is still published in {about.output}: wait for the next reconcile")
    if _is_heard_of(server, uuid, look):
        raise UsageError(f"what {server} fetched last is not taken in yet: wait for the next reconcile")
    if (record := look.knowledge.recorded(uuid)) is None:
        raise UsageError(f"nothing is known of {server} here either: say at its new site what it has")
    if _is_underway(record):
        raise UsageError(
            f"an installation of {server} has begun here, and nothing has shown its end: look what became of it, "
            "and say that at its new site"
        )
    return {
        "kind": KIND,
        "server": server,
        "uuid": uuid,
        "commit": look.commit.revision,
        "ledger": about.identity,
        "site": about.site or None,
        "at": format_instant(at),
        # Nothing that was given here is given there once more.
        "record": record_facts(replace(record, grace_until=None)),
    }


def _is_underway(record: Record) -> bool:
    since = record.provisioned_at
    is_open = any(since is None or since < each.last_seen.at for each in record.attempts)
    return is_open or record.consumed_at is not None or any(not each.is_withheld for each in record.unknown_serves)


def _is_heard_of(server: str, uuid: SystemUuid, look: Look) -> bool:
    """Whether something was fetched of which its record says nothing yet; nothing more is given by now."""
    spool = look.knowledge.facts.spool
    new = take(Path(spool), look.knowledge.taken).observations if spool is not None and Path(spool).is_dir() else []
    return bool(look.knowledge.pending.get(uuid)) or any(each.server == server for each in new)


def _machine_of(server: str, look: Look) -> tuple[str, SystemUuid]:
    """The machine of a name that it has or had here, or of a UUID: one that stands here before those that have left."""
    machines = look.knowledge.machines
    if (decision := look.commit.decisions.servers.get(server)) is not None:
        return server, decision.uuid
    with suppress(Malformed):
        if (by_uuid := machines.get(parse_uuid(server))) is not None:
            return by_uuid.name, by_uuid.uuid
    found = sorted(uuid for uuid, machine in machines.items() if machine.name == server)
    if not found:
        raise UsageError(
            f"this instance has known no machine as {server}: name it as it was called here, or by its UUID"
        )
    if len(found) > 1:
        raise UsageError(
            f"this instance has known {len(found)} machines as {server}: name one by its UUID, {_or(found)}"
        )
    return server, found[0]


def _or(found: Sequence[str]) -> str:
    return f"{', '.join(found[:-1])} or {found[-1]}"


def read_hand_over(file: Path) -> dict[str, Any]:
    """What `released` made; raises `UsageError` for anything else."""
    try:
        found = json.loads(file.read_bytes())
        if found["kind"] != KIND:
            raise ValueError(f"its kind is {found['kind']}")
        parse_uuid(found["uuid"])
        record_of(found["record"])
        texts = [found[each] for each in ("server", "commit", "ledger", "at")]
        if not all(isinstance(each, str) for each in texts):
            raise ValueError("a text is missing")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"{file} is nothing that `gitboot records hand-over` printed: {error}") from None
    return dict(found)


def called_here(given: dict[str, Any], look: Look) -> str:
    """The name of a machine that was handed over: the commit that moved it may have renamed it."""
    machine = look.commit.machines.get(given["uuid"])
    return str(given["server"]) if machine is None else machine.name


def taken(given: dict[str, Any], look: Look) -> Record:
    """What a server is taken with; raises `UsageError` where anything may have happened since it was let go."""
    server = called_here(given, look)
    if given["ledger"] == look.knowledge.facts.identity:
        raise UsageError(f"{server} was handed over by this very instance")
    decision = decision_of(look, server)
    if decision.uuid != given["uuid"]:
        raise UsageError(f"{server} is another machine here, {decision.uuid}, and {given['uuid']} was handed over")
    if given["commit"] != look.commit.revision:
        raise UsageError(
            f"{server} was handed over by the commit {given['commit'][:12]}, and this instance has accepted "
            f"{look.commit.revision[:12]}: it may have been elsewhere between; hand it over again once both have "
            "accepted the same"
        )
    standing = any(each.stays_behind for each in look.knowledge.overrides_of(decision.uuid))
    if standing or look.knowledge.recorded(decision.uuid) is not None:
        raise UsageError(f"{server} is not unknown here: something is recorded of it; look at gitboot records show")
    return record_of(given["record"])
