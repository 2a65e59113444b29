"""Files for operators: the web page, and the plans and provisioning records of servers as JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from msgspec import Struct, field

from gitboot.jsonio import encode_canonical, format_instant, to_json_value
from gitboot.model.scalars import SystemUuid
from gitboot.render.paths import PAGE_DATA, RECORDS, ContentType, File, Files
from gitboot.resolve.provisioning_record import Record, encode_records, shard_name

if TYPE_CHECKING:
    from gitboot.fleet.identities import Machine
    from gitboot.fleet.revision import FileChanges
    from gitboot.resolve.server_decision import Decision, FieldSources
    from gitboot.resolve.server_plan import BootPlan, InstallProgress

SCRIPT: Final = "text/javascript; charset=utf-8"
FORMAT: Final = 2
PAGE_CONTENT_TYPES: Final[Mapping[str, str]] = {
    "index.html": "text/html; charset=utf-8",
    "data.js": SCRIPT,
    "draw.js": SCRIPT,
    "help.html": "text/html; charset=utf-8",
    "help.js": SCRIPT,
    "page.css": "text/css; charset=utf-8",
    "page.js": SCRIPT,
    "rows.js": SCRIPT,
    "words.js": SCRIPT,
}


def read_page_file(name: str) -> bytes:
    """Return the content of one of the page's static files."""
    return (Path(__file__).with_name("page_files") / name).read_bytes()


def page_shard(server: str) -> str:
    """Return the page shard that contains a server, as two hexadecimal digits."""
    return f"{crc32(server.encode()) & 0xFF:02x}"


def render_data_script(name: str, content: bytes) -> bytes:
    """Return a script that stores a JSON value for the page under ``name``. The name must consist of ASCII letters."""
    return b'gitboot("%b",%b);\n' % (name.encode(), content.strip())


def render_server_data(
    summary: Mapping[str, Any],
    document: Mapping[str, Any],
    current_plan: BootPlan | None,
    later_plans: Iterable[tuple[datetime, BootPlan | None]],
    machine: Machine | None,
    source: FieldSources | None,
) -> tuple[str, File]:
    """Return the path and the content of the file with the page's data about one server."""
    bmc = machine.bmc if machine is not None else None
    name = f"server/{summary['server']}"
    facts = {
        **{key: value for key, value in summary.items() if key != "server"},
        "name": summary["server"],
        "bmc": {"address": bmc.address, "system": bmc.system} if bmc is not None else None,
        "later": [
            {
                "from": format_instant(since),
                "phase": plan.phase if plan else None,
                "image": plan.boot.image if plan and plan.boot else None,
                "by": (plan.maintenance or plan.policy) if plan else None,
                "cause": plan.cause if plan else None,
            }
            for since, plan in list_plan_changes(current_plan, later_plans)
        ],
        "shard": page_shard(summary["server"]),
        "lines": source.lines if source is not None else None,
        "document": document,
    }
    return f"{PAGE_DATA}{name}.js", File(render_data_script(name, encode_canonical(facts)), SCRIPT)


MAX_HISTORY_PATHS: Final = 5000  # the maximum number of paths in the page's history, from the newest commit on
_MAX_TEXT: Final = 120  # the maximum number of characters of a subject or an author's name


def render_history(changes: Iterable[FileChanges]) -> bytes:
    """Return the page's history: the latest commits, newest first, and the files that each commit changed.

    To limit the size, the history contains only the number of changed files for a commit that changed too many files.
    """
    commits: list[dict[str, Any]] = []
    files: dict[str, list[int]] = {}
    remaining = MAX_HISTORY_PATHS
    for change in changes:
        if not change.files:
            continue
        is_listed = len(change.files) <= remaining
        if is_listed:
            remaining -= len(change.files)
            for path in change.files:
                files.setdefault(path, []).append(len(commits))
        commit = change.commit
        commits.append(
            {
                "commit": commit.revision,
                "at": format_instant(commit.date),
                "author": commit.author.rpartition(" <")[0][:_MAX_TEXT],
                "subject": commit.subject[:_MAX_TEXT],
                "files": len(change.files),
                "listed": is_listed,
            }
        )
    return encode_canonical({"commits": commits, "files": files})


def list_plan_changes(
    current_plan: BootPlan | None, later_plans: Iterable[tuple[datetime, BootPlan | None]]
) -> Iterator[tuple[datetime, BootPlan | None]]:
    """Yield the transitions that change what the server boots, its phase, or the maintenance that selects the boot.

    The result does not include plans that take effect only if no instance renders the server again in time.
    """
    from gitboot.resolve.server_plan import Cause  # imported here, because endpoints start without the model

    before = _comparable_boot(current_plan)
    for since, plan in later_plans:
        if _comparable_boot(plan) != before and (plan is None or plan.cause is not Cause.INSTANCE_SILENT):
            before = _comparable_boot(plan)
            yield since, plan


def _comparable_boot(plan: BootPlan | None) -> tuple[object, ...]:
    return (plan.phase, plan.maintenance, plan.boot) if plan is not None else ()


Members = Mapping[str, frozenset[SystemUuid]]  # the machines with a record, by shard, without empty shards


def group_by_shard(machines: Iterable[SystemUuid]) -> Members:
    """Group machines by the shard that contains their records."""
    members: dict[str, set[SystemUuid]] = {}
    for uuid in machines:
        members.setdefault(shard_name(uuid), set()).add(uuid)
    return {shard: frozenset(uuids) for shard, uuids in sorted(members.items())}


def update_members(
    members: Members, changed_uuids: Collection[SystemUuid], has_record: Callable[[SystemUuid], bool]
) -> Members:
    """Return the new members of each shard. ``changed_uuids`` contains the machines that gained or lost a record."""
    after = dict(members)
    for uuid in changed_uuids:
        shard = shard_name(uuid)
        shard_members = after.pop(shard, frozenset()) - {uuid}
        if has_record(uuid):
            shard_members |= {uuid}
        if shard_members:
            after[shard] = shard_members
    return after


def render_record_files(
    members: Members, find_record: Callable[[SystemUuid], Record | None], changed_uuids: Collection[SystemUuid] | None
) -> FileUpdates:
    """Return the files of all shards.

    With ``changed_uuids``, return only the files that contain or contained one of these machines.
    """
    shards = sorted(members if changed_uuids is None else {shard_name(uuid) for uuid in changed_uuids})
    files: dict[str, File] = {}
    for shard in shards:
        if shard in members:
            found_records = {uuid: find_record(uuid) for uuid in members[shard]}
            records = {uuid: record for uuid, record in found_records.items() if record is not None}
            files[_build_record_path(shard)] = File(encode_records(records), ContentType.JSON)
    return FileUpdates(
        files=files,
        removed=frozenset(_build_record_path(shard) for shard in shards if shard not in members),
        is_whole=changed_uuids is None,
    )


def _build_record_path(shard: str) -> str:
    return f"{RECORDS}{shard}.json"


def build_plan_document(decision: Decision, plan: BootPlan | None) -> dict[str, Any]:
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
    """Return the plan of a server as the command line and the API show it, with null for missing values.

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
        """Return updates that have the combined effect of these updates and the ``later`` updates."""
        if later.is_whole:
            return later
        return FileUpdates(
            files={path: file for path, file in {**self.files, **later.files}.items() if path not in later.removed},
            removed=(self.removed - later.files.keys()) | later.removed,
            is_whole=self.is_whole,
        )


NO_UPDATES: Final = FileUpdates()
