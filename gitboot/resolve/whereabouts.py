"""The explanation of what a commit decides, as the page shows it: of each server, and of streams and windows."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.jsonio import canonical, format_instant
from gitboot.model.fleet import Fleet
from gitboot.model.selectors import selects
from gitboot.model.server import Server
from gitboot.resolve.explanation import Places, Reason, SourceTexts, Step, explained_by_commit, moved_documents, pointer
from gitboot.resolve.optouts import OptOut
from gitboot.resolve.policy_selection import choose_image, joins_at
from gitboot.resolve.server_decision_from_plan import Decision
from gitboot.resolve.written import Written


class Explanations:
    """The explanations of the servers of one commit."""

    def __init__(self, repository: FleetRepository, decisions: Mapping[str, Decision]) -> None:
        self._repository, self._decisions = repository, decisions
        self._texts = SourceTexts(repository)
        self._shared: dict[tuple[object, ...], frozenset[Id]] = {}

    @cached_property
    def _places(self) -> Places:
        return Places(self._repository, lines=False)

    def of(self, name: str) -> Written:
        """Return the explanation of a server."""
        return written(self._places, self._texts, self._decisions[name])

    def differing(self, before: Explanations, decided: Collection[str]) -> Collection[str]:
        """Return the servers that another commit may explain otherwise, and those that only this commit has.

        ``decided`` are the servers whose decisions may differ. The decisions of the others are the same.
        """
        servers, old = self._repository.servers, before._repository
        if _of_fleet(self._repository.fleet) != _of_fleet(old.fleet):
            return servers.keys()
        found = {name for name in decided if name in servers and not self._decides_as(before, name)}
        for document in moved_documents(old, self._repository):
            if document.kind == "Server" and document.name in servers and not self._is_written_as(before, document):
                found.add(document.name)
        if changed := _changed(old, self._repository):
            found.update(name for name in servers if not changed.isdisjoint(self._documents(self._decisions[name])))
        return found

    def _decides_as(self, before: Explanations, name: str) -> bool:
        old, new = before._decisions.get(name), self._decisions[name]
        return old is not None and (old is new or old.digest == new.digest)

    def _is_written_as(self, before: Explanations, document: Id) -> bool:
        return document in before._repository.origins and before._texts.text(document) == self._texts.text(document)

    def _documents(self, decision: Decision) -> frozenset[Id]:
        """Return the documents besides the server's own by which a decision is explained."""
        policy = decision.policy
        boots = [(Id("Maintenance", each.name), each.boot) for each in decision.maintenances]
        if policy is not None:
            boots.append((Id("BootPolicy", policy.policy), policy.boot))
        key = tuple((chosen, boot.image if boot is not None else None) for chosen, boot in boots)
        if (found := self._shared.get(key)) is None:
            found = self._shared[key] = frozenset(chain.from_iterable(self._used(*each) for each in key))
        return found

    def _used(self, chosen: Id, image: str | None) -> Iterator[Id]:
        """Yield the documents of the boot of a policy or a maintenance."""
        repository = self._repository
        if chosen.kind == "BootPolicy":
            pool = self._places.view.pools[chosen.name]
            profile = pool.profile
            yield from (Id("BootPolicy", name) for name in pool.chain)
        else:
            profile = repository.maintenances[chosen.name].spec.profile
            yield chosen
        yield Id("BootProfile", profile)
        if (stream := repository.profiles[profile].spec.stream) is not None:
            yield Id("ImageStream", stream)
        if image is not None:
            yield Id("BootImage", image)


def _of_fleet(fleet: Fleet) -> tuple[object, ...]:
    """Return what explanations have of the Fleet: its name, and the URLs that templates of kernel arguments read."""
    return fleet.metadata.name, fleet.spec.base_url, fleet.spec.endpoint, fleet.spec.sites


def _changed(before: FleetRepository, now: FleetRepository) -> set[Id]:
    """Return the documents that servers share and that do not say the same in both commits."""
    kinds: tuple[tuple[str, Mapping[str, object], Mapping[str, object]], ...] = (
        ("BootImage", before.images, now.images),
        ("BootPolicy", before.policies, now.policies),
        ("BootProfile", before.profiles, now.profiles),
        ("ImageStream", before.streams, now.streams),
        ("Maintenance", before.maintenances, now.maintenances),
    )
    return {
        Id(kind, name)
        for kind, old, new in kinds
        if old is not new
        for name in old.keys() | new.keys()
        if old.get(name) is not new.get(name) and old.get(name) != new.get(name)
    }


def written(places: Places, texts: SourceTexts, decision: Decision) -> Written:
    """Return the explanation of what a commit decides for a server. ``places`` need not have lines."""
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
    lines = [_line(texts, decision.server, each) for each in explained_by_commit(places, decision)]
    return Written(
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


def _line(texts: SourceTexts, server: str, reason: Reason) -> list[Any]:
    own, at = Id("Server", server), None
    if reason.resource is not None:
        is_own = reason.resource == str(own)
        at = texts.line_within(own, reason.steps) if is_own else pointer(reason.steps)
    return [reason.field, reason.value, reason.rule, reason.why, reason.under, reason.resource, at]
