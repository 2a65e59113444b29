"""One server's plan and files, as they are answered now and from its next transition on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from gitboot.model.scalars import Digest, byte_orders
from gitboot.plan import BootPlan, Decision, Record
from gitboot.render import state
from gitboot.render.formats import server_files
from gitboot.render.paths import BOOT, ContentType, Kind, Role, identity_of, is_immutable, kind_of, token_in
from gitboot.render.plans import document, summary
from gitboot.render.state import Listed, PublishedServer, Turn, state_path
from gitboot.render.tree import File
from gitboot.resolve import Decisions, plan, transition
from gitboot.resolve.instant import fallback
from gitboot.resolve.records import drift, record_facts


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a commit says of a server that decides nothing: operators and the network find it by this."""

    site: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerState:
    """One server as it was planned and rendered last."""

    decision: Decision
    record: Record | None
    about: About
    plan: BootPlan | None
    later: tuple[tuple[datetime, BootPlan | None], ...]  # the next transitions, and the plans from them on
    files: Mapping[str, File]  # all of the server's: its state, and what comes next, included
    published: PublishedServer  # what its state says

    @property
    def transition(self) -> datetime | None:
        """The next instant at which the plan changes by itself."""
        return self.later[0][0] if self.later else None

    @property
    def entries(self) -> dict[str, Digest]:
        """Of which plan, or which report, a completed GET of a file is evidence: by the file's path."""
        found = {path: versions[0] for path, versions in self.published.paths.items()}
        return {
            path: Digest(version.digest)
            for path, version in found.items()
            if version.since is None and version.digest is not None
        }

    def holds(self, decision: Decision, record: Record | None, at: datetime, about: About = About()) -> bool:
        """Whether planning anew at ``at``, not before this state was planned, gives the same."""
        return (
            self.decision.digest == decision.digest
            and self.record == record
            and self.about == about
            and (self.transition is None or at < self.transition)
        )


# How many transitions are known ahead. An endpoint whose instance is held up, or gone, still opens the next windows
# and, what matters more, ends them.
AHEAD: Final = 4


def server_state(
    decisions: Decisions, decision: Decision, record: Record | None, at: datetime, about: About = About()
) -> ServerState:
    """Plan and render one server for ``at`` and for the transitions after it.

    What they will name is among the files already, so that nothing is missing when they come.
    """
    now = plan(decision, at, record)
    later = tuple(_later(decision, at, record))
    renderings = [_rendered(decisions, decision, instant, planned) for instant, planned in ((None, now), *later)]
    announced = {path: file for each in renderings for path, file in each.files.items() if is_immutable(path)}
    files = {**announced, **renderings[0].files}
    published = PublishedServer(
        server=decision.server,
        identities=tuple(sorted(_identities(decision, about))),
        summary={
            **{name: value for name, value in summary(decision, now, {}).items() if name != "files"},
            "site": about.site,
            "role": about.labels.get("role"),
            "labels": dict(about.labels),
            "provisioned": record_facts(record) if record is not None else None,
            "drift": drift(decision, record),
        },
        plan=document(decision, now),
        files={path: Listed(file.sha256, len(file.content)) for path, file in sorted(files.items())},
        contents=_contents(renderings, announced),
        paths=_turns(renderings),
    )
    return ServerState(
        decision=decision,
        record=record,
        about=about,
        plan=now,
        later=later,
        files={**files, state_path(decision.server): File(state.render(published), ContentType.JSON)},
        published=published,
    )


def _later(decision: Decision, at: datetime, record: Record | None) -> Iterator[tuple[datetime, BootPlan | None]]:
    for _ in range(AHEAD):
        if (instant := transition(decision, at, record)) is None:
            return
        yield instant, plan(decision, instant, record)
        at = instant


class _Rendering(NamedTuple):
    """The files of one plan."""

    since: datetime | None  # None: of the plan at hand
    files: Mapping[str, File]
    instead: Mapping[str, File]  # where the boot is made once: what is answered where that cannot be recorded
    plan: BootPlan | None


def _rendered(decisions: Decisions, decision: Decision, since: datetime | None, planned: BootPlan | None) -> _Rendering:
    instead: Mapping[str, File] = {}
    if planned is not None and planned.is_made_once:
        instead = server_files(decisions, decision, fallback(decision, planned))
    return _Rendering(since, server_files(decisions, decision, planned), instead, planned)


def _turns(renderings: list[_Rendering]) -> dict[str, tuple[Turn, ...]]:
    """What each path that changes in place answers, and from when on."""
    turns: dict[str, tuple[Turn, ...]] = {}
    for path in sorted({path for each in renderings for path in each.files if not is_immutable(path)}):
        versions: list[Turn] = []
        for each in renderings:
            version = _version(path, each)
            before = versions[-1]._replace(since=version.since) if versions else None
            if version != before and (versions or version.content is not None):
                versions.append(version)
        turns[path] = tuple(versions)
    return turns


def _version(path: str, rendering: _Rendering) -> Turn:
    kind = kind_of(path)
    assert kind is not None, path  # noqa: S101 - what is of one server stands in the table
    file, instead = rendering.files.get(path), rendering.instead.get(path)
    digest = (token_in(path) or _evidence(kind.role, rendering.plan)) if file is not None else None
    once = digest is not None and kind.role is Role.ENTRY and bool(rendering.plan and rendering.plan.is_made_once)
    return Turn(
        since=rendering.since,
        content=file.sha256 if file is not None else None,
        content_type=str(file.content_type if file is not None else kind.content_type),
        role=kind.role,
        digest=digest,
        once=once,
        fallback=instead.sha256 if once and instead is not None else None,
    )


def _evidence(role: Role, planned: BootPlan | None) -> Digest | None:
    """Of which plan a completed GET is evidence, where the path names no installation by itself.

    A boot that is made as often as it is asked for meets nothing by it, but for a maintenance's that writes disks.
    """
    if planned is None or planned.boot is None or not planned.is_evidence:
        return None
    by_uuid = planned.boot.asks_by_uuid
    if planned.boot.direct and planned.boot.direct_uki is None and not by_uuid:
        return None  # no loader can boot an iso: its entry goes on to the disk
    return planned.digest if role is (Role.DATA if by_uuid else Role.ENTRY) else None


def _contents(renderings: list[_Rendering], stored: Mapping[str, File]) -> dict[str, str]:
    """What is answered in place, by its sha256, but for what lies in o/ anyway."""
    lies_there = {file.sha256 for file in stored.values()}
    in_place = [
        file
        for each in renderings
        for files in (each.files, each.instead)
        for path, file in files.items()
        if path.startswith(BOOT) and not is_immutable(path)
    ]
    return {file.sha256: file.content.decode() for file in in_place if file.sha256 not in lies_there}


def _identities(decision: Decision, about: About) -> Iterator[str]:
    yield from (identity_of(Kind.MAC, mac) for mac in decision.macs)
    yield from (identity_of(Kind.UUID, uuid) for uuid in byte_orders(decision.uuid))
    yield from (identity_of(Kind.ADDRESS, address) for address in about.addresses)
    if decision.serial is not None:
        yield identity_of(Kind.SERIAL, decision.serial)
