"""Page shards: the data of all servers, in parts."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from gitboot.fleet.layered_dict import differing
from gitboot.jsonio import canonical, format_instant
from gitboot.render.page import DATA, FORMAT, MADE_OF, SCRIPT, changes, script_of, shard_of, static
from gitboot.render.paths import File
from gitboot.render.plan_and_record_files import PAGE, PartFiles
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
    members = _members(servers)
    wanted = members.keys() if changed is None else {shard_of(name) for name in changed}
    moved = wanted
    if changed is not None and published is not None:
        moved = {shard_of(name) for name in differing(published.servers, locations.servers)}
    shards = {
        **{_path(each): _shard_file(each, servers, members[each]) for each in sorted(wanted) if each in members},
        **{_location_path(each): _location_file(each, locations, members[each]) for each in moved if each in members},
    }
    if changed is None or published is None or published.shared != locations.shared:
        shards[_location_path("shared")] = _shared_file(locations)
    facts = {
        "format": FORMAT,
        "commit": revision,
        "servers": len(servers),
        "shards": sorted(members),
        **(json.loads(shown) if shown is not None else {}),
    }
    made_of = {f"{PAGE}{name}": File(static(name), content_type) for name, content_type in MADE_OF.items()}
    return PartFiles(
        files={**made_of, f"{DATA}fleet.js": File(script_of("fleet", canonical(facts)), SCRIPT), **shards},
        gone=frozenset(
            (
                *(_path(each) for each in wanted if each not in members),
                *(_location_path(each) for each in moved if each not in members),
            )
        ),
        is_whole=changed is None,
    )


def _members(names: Iterable[str]) -> dict[str, list[str]]:
    """Which servers are in which shard, in their order."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(shard_of(name), []).append(name)
    return found


def _path(shard: str) -> str:
    return f"{DATA}shard/{shard}.js"


def _location_path(shard: str) -> str:
    return f"{DATA}location/{shard}.js"


def _location_file(shard: str, locations: SourceLocations, names: Iterable[str]) -> File:
    """The place of each server's document: its file, and how many lines the file has above the document."""
    found = {name: list(locations.servers[name]) for name in names}
    return File(script_of(f"location/{shard}", canonical(found)), SCRIPT)


def _shared_file(locations: SourceLocations) -> File:
    """The place of each other document: its file, and the line of each value."""
    found = {name: {"file": each.file, "lines": each.lines} for name, each in locations.shared.items()}
    return File(script_of("location/shared", canonical(found)), SCRIPT)


def _shard_file(shard: str, servers: Mapping[str, ServerState], names: Iterable[str]) -> File:
    rows = [list(_row(servers[name])) for name in names]
    return File(script_of(f"shard/{shard}", canonical({"columns": COLUMNS, "rows": rows})), SCRIPT)


def _row(state: ServerState) -> Iterator[Any]:
    """One server, as `COLUMNS` says."""
    decision, plan, about, written = state.decision, state.plan, state.about, state.about.written
    boot, policy, record = plan.boot if plan else None, decision.policy, state.record
    yield from (decision.server, decision.uuid, list(decision.macs), about.site, dict(about.labels))
    yield from (plan.phase if plan else None, boot.image if boot else None, boot.version if boot else None)
    yield from (policy.policy if policy else None, plan.maintenance if plan else None)
    yield next((format_instant(since) for since, _ in changes(plan, state.later)), None)
    yield step_of(decision, record)
    yield from (written.stream, written.joins, written.kept) if written else (None, None, None)
    yield policy.boot.image if policy and policy.boot else None
    yield record.image if record else None
    yield [each.name for each in decision.maintenances]
    yield _installs(state)
    yield progress.facts() if (progress := state.progress) is not None else None


def _installs(state: ServerState) -> str | None:
    """From when on a boot is offered that may write its disk; None: from no instant that was planned."""
    since = state.installs_at
    return "now" if since == state.at else format_instant(since) if since is not None else None
