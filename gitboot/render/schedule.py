"""One server's plan and files, as they are answered now and from its next transition on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gitboot.canonical import canonical
from gitboot.model.scalars import Digest, format_instant
from gitboot.plan import BootPlan, Decision, Record
from gitboot.render.answers import EntryOf, Turn
from gitboot.render.formats import server_files
from gitboot.render.paths import ContentType, Role, is_immutable, is_report, kind_of
from gitboot.render.plans import summary
from gitboot.render.tree import File
from gitboot.resolve import Decisions, plan, transition
from gitboot.resolve.records import drift, record_facts


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """One server as it was planned and rendered last."""

    decision: Decision
    record: Record | None
    plan: BootPlan | None
    later: tuple[tuple[datetime, BootPlan | None], ...]  # the next transitions, and the plans from them on
    files: Mapping[str, File]  # all of the server's, ops/ and what comes next included
    turns: Mapping[str, tuple[Turn, ...]]  # by path
    entries: Mapping[str, EntryOf]  # by path
    summary: Mapping[str, Any]

    @property
    def transition(self) -> datetime | None:
        """The next instant at which the plan changes by itself."""
        return self.later[0][0] if self.later else None

    def holds(self, decision: Decision, record: Record | None, at: datetime) -> bool:
        """Whether planning anew at ``at``, not before this state was planned, gives the same."""
        return (
            self.decision.digest == decision.digest
            and self.record == record
            and (self.transition is None or at < self.transition)
        )


# How many transitions are known ahead. An endpoint whose instance is held up, or gone, still opens the next windows
# and, what matters more, ends them.
AHEAD: Final = 4


def server_state(decisions: Decisions, decision: Decision, record: Record | None, at: datetime) -> ServerState:
    """Plan and render one server for ``at`` and for the transitions after it.

    What they will name is among the files already, so that nothing is missing when they come.
    """
    now = plan(decision, at, record)
    files = server_files(decisions, decision, now)
    entries = _entries(decision, now, files)
    later = tuple(_later(decision, at, record))
    announced: dict[str, File] = {}
    turns: dict[str, tuple[Turn, ...]] = {}
    before = {path: (files[path], entries.get(path)) for path in _in_place(files)}
    for instant, planned in later:
        rendered = server_files(decisions, decision, planned)
        announced |= {path: file for path, file in rendered.items() if is_immutable(path)}
        after = {
            path: (rendered[path], _entries(decision, planned, rendered).get(path)) for path in _in_place(rendered)
        }
        for path in sorted(before.keys() | after.keys()):
            if before.get(path) != after.get(path):
                file, entry = after.get(path, (None, None))
                turns[path] = (*turns.get(path, ()), Turn(instant, file, entry))
        before = after
    if later:
        announced |= _announcement(decision, turns)
    return ServerState(
        decision=decision,
        record=record,
        plan=now,
        later=later,
        files={**announced, **files},
        turns=turns,
        entries=entries,
        summary={
            **summary(decision, now, _digests(files)),
            "provisioned": record_facts(record) if record is not None else None,
            "drift": drift(decision, record),
        },
    )


def _later(decision: Decision, at: datetime, record: Record | None) -> Iterator[tuple[datetime, BootPlan | None]]:
    for _ in range(AHEAD):
        if (instant := transition(decision, at, record)) is None:
            return
        yield instant, plan(decision, instant, record)
        at = instant


def _digests(files: Mapping[str, File]) -> dict[str, Digest]:
    return {path: file.sha256 for path, file in files.items() if path.startswith("boot/")}


def _entries(decision: Decision, planned: BootPlan | None, files: Mapping[str, File]) -> dict[str, EntryOf]:
    """The paths whose completed GET is evidence: that the machine boots from the network, or has been provisioned.

    A report is of no plan but of the boot that it names: its digest is its token.
    """
    reports = {path: EntryOf(decision.server, Digest(path.rpartition("/")[2])) for path in files if is_report(path)}
    if planned is None or planned.boot is None:
        return reports
    by_uuid = planned.boot.asks_by_uuid
    if planned.boot.direct and planned.boot.direct_uki is None and not by_uuid:
        return reports  # no loader can boot an iso: its entry goes on to the disk
    role = Role.DATA if by_uuid else Role.ENTRY
    entry = EntryOf(planned.server, planned.digest)
    return {path: entry for path in files if (kind := kind_of(path)) is not None and kind.role is role} | reports


def _in_place(files: Mapping[str, File]) -> set[str]:
    return {path for path in files if path.startswith("boot/") and not is_immutable(path)}


def _announcement(decision: Decision, turns: Mapping[str, tuple[Turn, ...]]) -> dict[str, File]:
    """``ops/next/<server>.json``, and the content that it names, which is published ahead of its instant.

    By instant: what each path answers from then on (content in ``o/``, or null for 404), and the digest of the
    plan whose boot it is, where a completed GET is evidence of that.
    """
    files: dict[str, File] = {}
    instants: dict[str, dict[str, Any]] = {}
    for path, each in sorted(turns.items()):
        for instant, file, entry in each:
            stored = None
            if file is not None:
                stored = f"o/{file.sha256}/{path.rpartition('/')[2]}"
                files[f"boot/{stored}"] = file
            turn = {"content": stored, "digest": entry.digest if entry is not None else None}
            instants.setdefault(format_instant(instant), {})[path.removeprefix("boot/")] = turn
    document = {
        "apiVersion": "gitboot.dev/v1alpha1",
        "server": decision.server,
        "items": [{"at": instant, "files": instants[instant]} for instant in sorted(instants)],
    }
    files[f"ops/next/{decision.server}.json"] = File(canonical(document) + b"\n", ContentType.JSON)
    return files
