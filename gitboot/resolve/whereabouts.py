"""Where each field of a server is written that a commit decides, found for `Written`."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from gitboot.canonical import canonical
from gitboot.load import FleetRepository, Id
from gitboot.model.scalars import format_instant
from gitboot.model.selectors import selects
from gitboot.model.server import Server
from gitboot.plan import Decision
from gitboot.resolve.choice import choose_image, joins_at
from gitboot.resolve.explain import Reason, explained_by_commit
from gitboot.resolve.optouts import OptOut
from gitboot.resolve.places import Places, Step
from gitboot.resolve.written import Written


def written(places: Places, decision: Decision) -> Written:
    """Where a commit says what is decided for a server."""
    stream = joins = kept = None
    repository, server = places.repository, places.repository.servers[decision.server]
    if (policy := decision.policy) is not None and policy.boot is not None:
        profile = repository.profiles[policy.boot.profile]
        stream = profile.spec.stream
        named = choose_image(server, profile, repository.streams).winner
        if named.path == ("spec", "current") and stream is not None:
            joins = _joins(repository, stream, server)
        elif named.path[1] in ("pin", "holds"):
            kept = ".".join((str(named.said_by), *map(str, named.path[:-1])))
    lines = [_line(each) for each in explained_by_commit(places, decision)]
    return Written(
        revision=repository.revision,
        stream=stream,
        joins=joins,
        kept=kept,
        packed=zlib.compress(canonical(lines), 6),
    )


def fleet_facts(places: Places, opt_outs: Iterable[OptOut]) -> dict[str, Any]:
    """What a commit says of streams, images and windows, and where."""
    repository = places.repository
    return {
        "images": {name: image.spec.version for name, image in repository.images.items()},
        "streams": [
            {
                "name": name,
                "current": stream.spec.current,
                "rollout": stream.spec.rollout.image if stream.spec.rollout else None,
                "percent": stream.spec.rollout.percent if stream.spec.rollout else None,
                **_place(places, Id("ImageStream", name), "spec", "rollout" if stream.spec.rollout else "current"),
            }
            for name, stream in repository.streams.items()
        ],
        "maintenances": [
            {
                "name": name,
                "start": format_instant(window.start) if (window := each.spec.window).start else None,
                "end": format_instant(window.end) if window.end else None,
                "priority": each.spec.priority,
                "profile": each.spec.profile,
                **_place(places, Id("Maintenance", name), "spec", "window"),
            }
            for name, each in repository.maintenances.items()
        ],
        "optOuts": [
            {
                "id": keeps(each),
                "what": each.what,
                "image": each.image,
                "reason": each.reason,
                "until": format_instant(each.until) if each.until else None,
            }
            for each in opt_outs
        ],
    }


def _place(places: Places, resource: Id, *path: Step) -> dict[str, Any]:
    file, place = places.of(resource, *path)
    return {"path": file, "line": place.line}


def keeps(opt_out: OptOut) -> str:
    """What `Written.kept` is of whoever is kept where it is by this."""
    return ".".join((str(opt_out.resource), *map(str, opt_out.path)))


def _joins(repository: FleetRepository, stream: str, server: Server) -> int | None:
    rollout, metadata = repository.streams[stream].spec.rollout, server.metadata
    if rollout is None or not selects(rollout.selector, metadata.name, metadata.labels):
        return None
    return joins_at(stream, server.uuid)


def _line(reason: Reason) -> list[Any]:
    where = (reason.resource, reason.path, reason.line)
    return [reason.field, reason.value, reason.rule, reason.why, reason.under, *where]
