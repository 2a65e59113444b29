"""One server's plan and files, as they are answered now and from its next transition on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gitboot.model.image import ConfigFrom
from gitboot.model.scalars import format_instant
from gitboot.plan import BootPlan, Decision, Record, canonical
from gitboot.render import server_files
from gitboot.render.plans import summary
from gitboot.render.tree import ContentType, File, is_immutable
from gitboot.report import EntryOf, Upcoming
from gitboot.resolve import Decisions, plan, transition


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """One server as it was planned and rendered last."""

    decision: Decision
    record: Record | None
    plan: BootPlan | None
    transition: datetime | None
    next_plan: BootPlan | None  # from the transition on
    files: Mapping[str, File]  # all of the server's, ops/ and what comes next included
    upcoming: Mapping[str, Upcoming]
    entries: Mapping[str, EntryOf]
    summary: Mapping[str, Any]

    def holds(self, decision: Decision, record: Record | None, at: datetime) -> bool:
        """Whether planning anew at ``at``, not before this state was planned, gives the same."""
        return (
            self.decision.digest == decision.digest
            and self.record == record
            and (self.transition is None or at < self.transition)
        )


def server_state(decisions: Decisions, decision: Decision, record: Record | None, at: datetime) -> ServerState:
    """Plan and render one server for ``at`` and for the transition after it.

    What the transition will name is among the files already, so that nothing is missing when it comes.
    """
    now = plan(decision, at, record)
    files = server_files(decisions, decision, now)
    boot_files = {path: file.sha256 for path, file in files.items() if path.startswith("boot/")}
    entries, upcoming = _entries(now, files), {}
    later = None
    if (instant := transition(decision, at, record)) is not None:
        later = plan(decision, instant, record)
        later_files = server_files(decisions, decision, later)
        later_entries = _entries(later, later_files)
        upcoming = {
            path: Upcoming(instant, later_files.get(path), later_entries.get(path))
            for path in sorted(_in_place(files) | _in_place(later_files))
            if files.get(path) != later_files.get(path)
        }
        files = {**_immutable(later_files), **files, **_next_files(decision, instant, upcoming)}
    return ServerState(
        decision=decision,
        record=record,
        plan=now,
        transition=instant,
        next_plan=later,
        files=files,
        upcoming=upcoming,
        entries=entries,
        summary=summary(decision, now, boot_files),
    )


def _entries(planned: BootPlan | None, files: Mapping[str, File]) -> dict[str, EntryOf]:
    """The paths whose completed GET is evidence that the machine boots from the network."""
    if planned is None or planned.boot is None:
        return {}
    by_uuid = planned.boot.direct and planned.boot.config_from is ConfigFrom.SYSTEM_UUID
    prefixes = ("boot/ignition/",) if by_uuid else ("boot/v1/boot/", "boot/ipxe/")
    entry = EntryOf(planned.server, planned.digest)
    return {path: entry for path in files if path.startswith(prefixes)}


def _in_place(files: Mapping[str, File]) -> set[str]:
    return {path for path in files if path.startswith("boot/") and not is_immutable(path)}


def _immutable(files: Mapping[str, File]) -> dict[str, File]:
    return {path: file for path, file in files.items() if is_immutable(path)}


def _next_files(decision: Decision, at: datetime, upcoming: Mapping[str, Upcoming]) -> dict[str, File]:
    """``ops/next/<server>.json`` and the content that it names, published ahead of its instant."""
    files: dict[str, File] = {}
    names: dict[str, str | None] = {}
    for path, (_, file, _) in sorted(upcoming.items()):
        if file is None:
            names[path.removeprefix("boot/")] = None
        else:
            stored = f"o/{file.sha256}/{path.rpartition('/')[2]}"
            names[path.removeprefix("boot/")] = stored
            files[f"boot/{stored}"] = file
    document = canonical({"at": format_instant(at), "files": names, "server": decision.server}) + b"\n"
    files[f"ops/next/{decision.server}.json"] = File(document, ContentType.JSON)
    return files
