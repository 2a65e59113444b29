"""Page shards: the files that contain the page's data about all servers, in parts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from gitboot.fleet.layered_dict import find_differing_keys
from gitboot.jsonio import encode_canonical, format_instant
from gitboot.render.page import (
    FORMAT,
    PAGE_CONTENT_TYPES,
    SCRIPT,
    list_plan_changes,
    page_shard,
    read_page_file,
    render_data_script,
)
from gitboot.render.paths import PAGE, PAGE_DATA, File
from gitboot.render.plan_and_record_files import FileUpdates
from gitboot.render.server_files import ServerState
from gitboot.resolve.explanation import SourceLocations
from gitboot.resolve.install_attempts import install_step

COLUMNS: Final = (
    *("name", "uuid", "macs", "site", "labels", "phase", "image", "version", "policy", "maintenance"),
    *("nextTransition", "step", "stream", "joins", "kept", "decided", "provisioned", "windows", "installs"),
    "installing",
)


def render_page_files(
    servers: Mapping[str, ServerState],
    revision: str,
    fleet_json: bytes | None,
    locations: SourceLocations,
    changed: Collection[str] | None = None,
    published_locations: SourceLocations | None = None,
) -> FileUpdates:
    """Return the page's files that depend on the servers in ``changed``, or all of its files if ``changed`` is None.

    ``fleet_json`` contains the streams and the windows of the commit. ``published_locations`` are the source locations
    that the page shows so far, or None if it shows none yet.
    """
    members: dict[str, list[str]] = {}  # server names by shard, in the order of the servers
    for name in servers:
        members.setdefault(page_shard(name), []).append(name)
    changed_shards = members.keys() if changed is None else {page_shard(name) for name in changed}
    moved_shards = changed_shards
    if changed is not None and published_locations is not None:
        moved_shards = {
            page_shard(name) for name in find_differing_keys(published_locations.servers, locations.servers)
        }
    files = {
        f"{PAGE}{name}": File(read_page_file(name), content_type) for name, content_type in PAGE_CONTENT_TYPES.items()
    }
    facts = {
        "format": FORMAT,
        "commit": revision,
        "servers": len(servers),
        "shards": sorted(members),
        **(json.loads(fleet_json) if fleet_json is not None else {}),
    }
    parts: dict[str, object] = {"fleet": facts}
    for shard in sorted(changed_shards & members.keys()):
        rows = [list(_build_row(servers[name])) for name in members[shard]]
        parts[f"shard/{shard}"] = {"columns": COLUMNS, "rows": rows}
    # For each server: the file of its document, and the number of lines above the document.
    for shard in sorted(moved_shards & members.keys()):
        parts[f"location/{shard}"] = {name: list(locations.servers[name]) for name in members[shard]}
    if changed is None or published_locations is None or published_locations.shared != locations.shared:
        shared = {name: {"file": each.file, "lines": each.lines} for name, each in locations.shared.items()}
        parts["location/shared"] = shared
    files |= {
        f"{PAGE_DATA}{name}.js": File(render_data_script(name, encode_canonical(value)), SCRIPT)
        for name, value in parts.items()
    }
    removed = [f"shard/{each}" for each in changed_shards if each not in members]
    removed += [f"location/{each}" for each in moved_shards if each not in members]
    return FileUpdates(
        files=files, removed=frozenset(f"{PAGE_DATA}{each}.js" for each in removed), is_whole=changed is None
    )


def _build_row(state: ServerState) -> Iterator[Any]:
    """Yield a server's values in the order of `COLUMNS`."""
    decision, plan, about, source = state.decision, state.plan, state.about, state.about.source
    boot, policy, record = plan.boot if plan else None, decision.policy, state.record
    installs_at = state.installs_at
    yield from (decision.server, decision.uuid, list(decision.macs), about.site, dict(about.labels))
    yield from (plan.phase if plan else None, boot.image if boot else None, boot.version if boot else None)
    yield from (policy.policy if policy else None, plan.maintenance if plan else None)
    yield next((format_instant(since) for since, _ in list_plan_changes(plan, state.later)), None)
    yield install_step(decision, record)
    yield from (source.stream, source.joins, source.kept) if source else (None, None, None)
    yield policy.boot.image if policy and policy.boot else None
    yield record.image if record else None
    yield [each.name for each in decision.maintenances]
    yield "now" if installs_at == state.at else format_instant(installs_at) if installs_at is not None else None
    yield progress.facts() if (progress := state.progress) is not None else None
