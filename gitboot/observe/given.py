"""What a spool says was given: a boot that is made once is given again for a moment, and then never."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from gitboot.fetchlog.log_entries import Observation, that_use_up
from gitboot.fetchlog.spool import files, parse, whole_lines
from gitboot.jsonio import format_instant
from gitboot.model.graces import FETCH_GRACE
from gitboot.observe.batches import writer_of
from gitboot.render.paths import Role, kind_of
from gitboot.system_clock import Uptime


class Given(NamedTuple):
    """A boot that was given."""

    first: Observation  # or what its installer reported, where that is all that is known
    is_over: bool  # whether the system that was booted has asked for its data since, or its installer reported

    def __str__(self) -> str:
        if _role(self.first) is Role.REPORT:
            return f"its installer has reported, at {format_instant(self.first.at)}"
        was = "perhaps served" if self.first.is_open_intent else "given once,"
        return f"{was} at {format_instant(self.first.at)} to {self.first.client}"

    def again(self, at: datetime, up: Uptime) -> bool:
        """Whether it is given once more: to another NIC, after a failure, to GRUB after iPXE; it is the same boot."""
        first = self.first.by(at, up)
        return not self.is_over and first.at <= at < first.at + FETCH_GRACE


@dataclass(slots=True)
class _File:
    """A file of the spool, as far as it was read."""

    base: int = 0  # where it begins in its writer's own
    offset: int = 0
    observations: dict[str, dict[int, Observation]] = field(default_factory=dict)  # by server and by offer, by place

    def read(self, path: Path) -> None:
        """Take in what was added since the last time."""
        for offset, line in whole_lines(path, self.offset):
            self.offset = offset + len(line)
            match parse(line):
                case Observation() as found if found.digest is not None and found.is_evidence:
                    for name in {found.server, found.offer or found.server}:
                        self.observations.setdefault(name, {})[self.base + offset] = found
                case int(taken_back):
                    for each in self.observations.values():
                        each.pop(taken_back, None)


def how_given(observations: Iterable[Observation], offer: str, report: str | None) -> Given | None:
    """How a boot was given, by what is known of its server and its offer; None: it was not.

    Of an attempt whose installer has reported, by the token ``report``, no further boot is left to be given.
    """
    known = sorted(that_use_up(observations), key=lambda each: each.at)
    ended = next((each for each in known if report == each.digest and _role(each) is Role.REPORT), None)
    first = next((each for each in known if each.offer == offer and _role(each) is not Role.REPORT), ended)
    if first is None:
        return None
    is_over = any(each.at >= first.at and _role(each) in (Role.DATA, Role.SEALED, Role.REPORT) for each in known)
    return Given(first, is_over)


def joined(one: Given | None, other: Given | None) -> Given | None:
    """Return how a boot was given by what two logs know of it: since the first time, and over if either knows that."""
    if one is None or other is None:
        return one or other
    return Given(min(one.first, other.first, key=lambda each: each.at), one.is_over or other.is_over)


def has_reported(known: Collection[Observation], token: str) -> bool:
    """Whether an installer has reported since its server's boot was given last."""
    known = that_use_up(known)
    reports = [each.at for each in known if each.digest == token and _role(each) is Role.REPORT]
    return bool(reports) and max(reports) >= max(
        (each.at for each in known if _role(each) is Role.ENTRY), default=max(reports)
    )


class GivenBoots:
    """The boots that a spool knows of, whoever wrote them there; what the instance has deleted is known no more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}

    def find(self, server: str, offer: str, report: str | None = None) -> Given | None:
        """How a boot was given; None: it was not. Raises OSError where the spool cannot be read.

        It is told by its offer: what a commit changes of it meanwhile, its server's name as well, makes it no other.
        """
        self._look()
        return how_given({*self._of(server), *self._of(offer)}, offer, report)

    def reported(self, server: str, token: str) -> bool:
        """Whether an installer has reported since its boot was given last. Raises OSError like `find`."""
        self._look()
        return has_reported([*self._of(server)], token)

    def _of(self, name: str) -> Iterator[Observation]:
        for file in self._files.values():
            yield from file.observations.get(name, {}).values()

    def _look(self) -> None:
        there = {path.name: path for path in files(self._folder)}
        for name in self._files.keys() - there.keys():
            del self._files[name]
        for name, path in there.items():
            with suppress(FileNotFoundError):  # the instance has deleted it just now
                file, size = self._files.setdefault(name, _File(writer_of(name)[1])), path.stat().st_size
                if size < file.offset:  # what could not be synced was taken back
                    file = self._files[name] = _File(writer_of(name)[1])
                if size > file.offset:
                    file.read(path)


def _role(observation: Observation) -> Role | None:
    kind = kind_of(observation.path)
    return kind.role if kind is not None else None
