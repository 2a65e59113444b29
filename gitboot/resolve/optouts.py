"""Pins and holds: who stays where it is, until when, and which deadlines have passed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.jsonio import format_instant
from gitboot.model.server import Server
from gitboot.problems.codes import Code, Problem, Severity


@dataclass(frozen=True, kw_only=True, slots=True)
class OptOut:
    """A pin or a hold, and where it is written."""

    what: str  # the pin of web01, a hold of flatcar-stable
    image: str
    reason: str
    until: datetime | None  # a deadline for people: nothing changes by itself
    resource: Id
    path: tuple[str | int, ...]


def opt_outs(repository: FleetRepository, pinned: Iterable[str] | None = None) -> Iterator[OptOut]:
    """Every pin and hold of a fleet; ``pinned`` are the servers that have a pin, where that is known."""
    for name in repository.servers if pinned is None else pinned:
        if (pin := pin_of(repository.servers[name])) is not None:
            yield pin
    yield from holds(repository)


def pin_of(server: Server) -> OptOut | None:
    """The pin of a server, if it has one."""
    pin, name = server.spec.pin, server.metadata.name
    if pin is None:
        return None
    return OptOut(
        what=f"the pin of {name}",
        image=pin.image,
        reason=pin.reason,
        until=pin.until,
        resource=Id("Server", name),
        path=("spec", "pin"),
    )


def holds(repository: FleetRepository) -> Iterator[OptOut]:
    """Every hold of a fleet's streams."""
    for name, stream in repository.streams.items():
        for number, hold in enumerate(stream.spec.holds):
            yield OptOut(
                what=f"a hold of {name}",
                image=hold.image,
                reason=hold.reason,
                until=hold.until,
                resource=Id("ImageStream", name),
                path=("spec", "holds", number),
            )


def overdue(repository: FleetRepository, at: datetime, pinned: Iterable[str] | None = None) -> Iterator[Problem]:
    """A warning for each pin and hold whose deadline is past at ``at``; ``pinned`` as for `opt_outs`."""
    for opt_out in opt_outs(repository, pinned):
        if opt_out.until is not None and opt_out.until <= at:
            yield repository.problem(
                Code.OVERDUE,
                f"{opt_out.what} to BootImage/{opt_out.image} was to end at {format_instant(opt_out.until)} "
                f"({opt_out.reason})",
                opt_out.resource,
                *(*opt_out.path, "until"),
                hint=Code.OVERDUE.hint,
                severity=Severity.WARNING,
            )
