"""Page shards: the data of all servers, in parts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from gitboot.fleet.layered_dict import differing
from gitboot.jsonio import canonical, format_instant
from gitboot.render.page import (
    FORMAT,
    MADE_OF,
    SCRIPT,
    changes,
    script_of,
    shard_of,
    static,
)
from gitboot.render.paths import PAGE, PAGE_DATA, File
from gitboot.render.plan_and_record_files import PartFiles
from gitboot.render.server_files import ServerState
from gitboot.resolve.explanation import SourceLocations
from gitboot.resolve.install_attempts import step_of

COLUMNS: Final = (
    *("name", "uuid", "macs", "site", "labels", "phase", "image", "version", "policy", "maintenance"),
    *("nextTransition", "step", "stream", "joins", "kept", "decided", "provisioned", "windows", "installs"),
    "installing",
)


def page_files(
    servers: Mapping[str, ServerState],
    revision: str,
    shown: bytes | None,
    locations: SourceLocations,
    changed: Collection[str] | None = None,
    published: SourceLocations | None = None,
) -> PartFiles:
    """Return the files of the page that differ if these servers are ``changed``. None: all files.

    ``shown`` is what the commit says of streams and windows, as JSON. ``published`` are the source locations that the
    page has; None: it has none.
    """
    members: dict[str, list[str]] = {}  # by shard, in the order of the servers
    for name in servers:
        members.setdefault(shard_of(name), []).append(name)
    wanted = members.keys() if changed is None else {shard_of(name) for name in changed}
    moved = wanted
    if changed is not None and published is not None:
        moved = {shard_of(name) for name in differing(published.servers, locations.servers)}
    files = {f"{PAGE}{name}": File(static(name), content_type) for name, content_type in MADE_OF.items()}
    facts = {
        "format": FORMAT,
        "commit": revision,
        "servers": len(servers),
        "shards": sorted(members),
        **(json.loads(shown) if shown is not None else {}),
    }
    parts: dict[str, object] = {"fleet": facts}
    for shard in sorted(wanted & members.keys()):
        rows = [list(_row(servers[name])) for name in members[shard]]
        parts[f"shard/{shard}"] = {"columns": COLUMNS, "rows": rows}
    for shard in sorted(moved & members.keys()):  # of each document its file, and how many lines the file has above it
        parts[f"location/{shard}"] = {name: list(locations.servers[name]) for name in members[shard]}
    if changed is None or published is None or published.shared != locations.shared:
        shared = {name: {"file": each.file, "lines": each.lines} for name, each in locations.shared.items()}
        parts["location/shared"] = shared
    files |= {f"{PAGE_DATA}{name}.js": File(script_of(name, canonical(value)), SCRIPT) for name, value in parts.items()}
    gone = [f"shard/{each}" for each in wanted if each not in members]
    gone += [f"location/{each}" for each in moved if each not in members]
    return PartFiles(files=files, gone=frozenset(f"{PAGE_DATA}{each}.js" for each in gone), is_whole=changed is None)


def _row(state: ServerState) -> Iterator[Any]:
    """Yield the columns of one server, as `COLUMNS` names them."""
    decision, plan, about, written = state.decision, state.plan, state.about, state.about.written
    boot, policy, record = plan.boot if plan else None, decision.policy, state.record
    installs_at = state.installs_at
    yield from (decision.server, decision.uuid, list(decision.macs), about.site, dict(about.labels))
    yield from (plan.phase if plan else None, boot.image if boot else None, boot.version if boot else None)
    yield from (policy.policy if policy else None, plan.maintenance if plan else None)
    yield next((format_instant(since) for since, _ in changes(plan, state.later)), None)
    yield step_of(decision, record)
    yield from (written.stream, written.joins, written.kept) if written else (None, None, None)
    yield policy.boot.image if policy and policy.boot else None
    yield record.image if record else None
    yield [each.name for each in decision.maintenances]
    yield "now" if installs_at == state.at else format_instant(installs_at) if installs_at is not None else None
    yield progress.facts() if (progress := state.progress) is not None else None
