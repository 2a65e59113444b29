"""Plans and provisioning records as JSON files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from gitboot.jsonio import format_instant, to_json_value
from gitboot.model.scalars import SystemUuid
from gitboot.render.paths import RECORDS, ContentType, File, Files
from gitboot.resolve.provisioning_record import Record, encode_records, shard_name
from gitboot.resolve.server_decision import Decision
from gitboot.resolve.server_plan import BootPlan, InstallProgress

Members = Mapping[str, frozenset[SystemUuid]]  # the machines with a record, by shard, without empty shards


def group_by_shard(machines: Iterable[SystemUuid]) -> Members:
    """Group machines by the shard that contains their records."""
    found: dict[str, set[SystemUuid]] = {}
    for uuid in machines:
        found.setdefault(shard_name(uuid), set()).add(uuid)
    return {shard: frozenset(each) for shard, each in sorted(found.items())}


def update_members(
    before: Members, changed: Collection[SystemUuid], has_record: Callable[[SystemUuid], bool]
) -> Members:
    """Return the new members of each shard. The machines in ``changed`` got or lost a record."""
    now = dict(before)
    for uuid in changed:
        shard = shard_name(uuid)
        others = now.pop(shard, frozenset()) - {uuid}
        if here := others | {uuid} if has_record(uuid) else others:
            now[shard] = here
    return now


def render_record_files(
    members: Members, record: Callable[[SystemUuid], Record | None], changed: Collection[SystemUuid] | None
) -> FileUpdates:
    """Return the files of all shards.

    With ``changed``, return only the files that contain or contained one of these machines.
    """
    shards = sorted(members if changed is None else {shard_name(uuid) for uuid in changed})
    return FileUpdates(
        files={_build_path(each): _render_file(members[each], record) for each in shards if each in members},
        removed=frozenset(_build_path(each) for each in shards if each not in members),
        is_whole=changed is None,
    )


def _render_file(machines: Iterable[SystemUuid], record: Callable[[SystemUuid], Record | None]) -> File:
    known = {uuid: found for uuid in machines if (found := record(uuid)) is not None}
    return File(encode_records(known), ContentType.JSON)


def _build_path(shard: str) -> str:
    return f"{RECORDS}{shard}.json"


def build_document(decision: Decision, plan: BootPlan | None) -> dict[str, Any]:
    """Return the decision, the plan and their digests as a JSON object."""
    return {
        "apiVersion": "gitboot.dev/v1alpha1",
        "decision": to_json_value(decision),
        "decisionDigest": decision.digest,
        "plan": to_json_value(plan),
        "digest": plan.digest if plan else None,
        "nextTransition": format_instant(plan.next_transition) if plan and plan.next_transition else None,
    }


def build_summary(
    decision: Decision, plan: BootPlan | None, files: Mapping[str, str], progress: InstallProgress | None
) -> dict[str, Any]:
    """Return the plan of a server in the form in which the command line and the API show it, with null for missing
    values.

    ``files`` maps the paths of the plan's boot files to their sha256. ``progress`` is the progress of a started
    installation.
    """
    boot = plan.boot if plan else None
    waiting = plan.waiting_maintenance if plan else None
    return {
        **({"waitingMaintenance": waiting} if waiting is not None else {}),
        "server": decision.server,
        "uuid": decision.uuid,
        "macs": list(decision.macs),
        "phase": plan.phase if plan else None,
        "cause": plan.cause if plan else None,
        "installing": progress.facts() if progress is not None else None,
        "policy": decision.policy.policy if decision.policy else None,
        "maintenance": plan.maintenance if plan else None,
        "profile": boot.profile if boot else None,
        "image": boot.image if boot else None,
        "version": boot.version if boot else None,
        "method": boot.method if boot else None,
        "kernelArguments": list(boot.kernel_arguments) if boot else [],
        "files": dict(sorted(files.items())),
        "override": to_json_value(plan.override) if plan else None,
        "digest": plan.digest if plan else None,
        "decisionDigest": decision.digest,
        "nextTransition": format_instant(plan.next_transition) if plan and plan.next_transition else None,
    }


class FileUpdates(Struct, frozen=True, kw_only=True):
    """Changes to the page's files or to the record files."""

    files: Files = field(default_factory=dict)
    removed: frozenset[str] = frozenset()  # paths of deleted files
    is_whole: bool = False  # whether ``files`` contains all files, and not only the changed ones

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.removed or self.is_whole)

    def merge(self, later: FileUpdates) -> FileUpdates:
        """Return updates that have the effect of these updates and the ``later`` updates together."""
        if later.is_whole:
            return later
        return FileUpdates(
            files={path: file for path, file in {**self.files, **later.files}.items() if path not in later.removed},
            removed=(self.removed - later.files.keys()) | later.removed,
            is_whole=self.is_whole,
        )


NO_UPDATES: Final = FileUpdates()
