"""Machines that know what gitboot has really made their BMCs boot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from tests.helpers.redfish_double.double import Answer, Machine
from tests.helpers.redfish_double.media import Drive
from tests.helpers.redfish_double.profiles import ENABLED, TARGET
from tests.helpers.redfish_double.service import Service

DISCS = ("Cd", "UsbCd")
NETWORK = ("Pxe", "UefiHttp", *DISCS)
RESCUE = "http://rescue.test/somebody.iso"  # what somebody else inserts


class Key(NamedTuple):
    """What is set at most once, in words of Git."""

    uuid: str
    reason: str


@dataclass
class OverrideRecord:
    """An override as gitboot has really set it."""

    key: Key | None  # None: for a boot that is made as often as it is asked for
    once: bool
    epoch: int  # an operator's requests open everything anew


class Mortal(Protocol):
    """What can die."""

    dead: bool


class Witness(Protocol):
    """Who is told what is written to a BMC, and by whom."""

    @property
    def fate(self) -> Mortal:
        """Gitboot's."""

    def written(
        self, machine: Watched, before: Mapping[str, str | None], after: Mapping[str, str | None], *, overwrote: bool
    ) -> None:
        """Gitboot has changed the override; ``overwrote``: what it had not seen."""

    def switched(self, machine: Watched, kind: str) -> None:
        """Gitboot switches a machine; it has not been yet."""

    def intruded(self, at: datetime) -> None:
        """Somebody else has."""

    def ejected(self, machine: Watched, image: str) -> None:
        """Gitboot has ejected what lay in a drive."""


@dataclass
class WatchedDrive(Drive):
    """A drive whose machine is told of what gitboot does with it."""

    machine: Watched = field(kw_only=True)

    def refuses(self, method: str, path: str, content: Any) -> str | None:
        after, before = self.machine.dies_now(), self.image
        why = super().refuses(method, path, content)
        if before is not None and self.image is None:
            self.machine.witness.ejected(self.machine, before)
        after()
        return why


class Watched(Machine):
    """A machine that tells a witness of what is written to its BMC."""

    witness: Witness
    at_patch: str | None = None  # "before", "after": gitboot dies when a PATCH is about to be applied, or was
    standing: OverrideRecord | None = None  # what of gitboot's stands
    changed_unseen: bool = False  # by somebody else, since gitboot read it last

    def __init__(self, *arguments: Any, **facts: Any) -> None:
        super().__init__(*arguments, **facts)
        self.drives = [
            WatchedDrive(path=each.path, kind=each.kind, types=each.types, machine=self) for each in self.drives
        ]

    @property
    def media(self) -> tuple[str, ...]:
        """What lies in its drives."""
        return tuple(drive.image for drive in self.drives if drive.image is not None)

    def dies_now(self) -> Callable[[], None]:
        """Let gitboot die before something is written, if that was asked for; afterwards: call what is returned."""
        when, self.at_patch = self.at_patch, None
        if when == "before":
            self._kill()
        return self._kill if when == "after" else lambda: None

    def patch(self, path: str, body: Any, if_match: str | None) -> Answer:
        after = self.dies_now()
        before, unseen = dict(self.override), self.changed_unseen
        answer = super().patch(path, body, if_match)
        if answer.status == 200:
            self.witness.written(self, before, before | body["Boot"], overwrote=unseen)
        after()
        return answer

    def asked(self, kind: str) -> None:
        after = self.dies_now()
        self.witness.switched(self, kind)
        super().asked(kind)
        after()

    def _kill(self) -> None:
        self.witness.fate.dead = True
        raise ConnectionAbortedError

    def write(self, **boot: str | None) -> None:
        if boot.get(ENABLED) not in (None, "Disabled", *self.profile.enabled):
            return  # nobody can have this BMC show what it does not know
        before = dict(self.override)
        super().write(**boot)
        if self.override != before:
            self.standing, self.changed_unseen = None, True
            self.witness.intruded(self.now)

    def shows(self) -> str:
        return f"{self.override[ENABLED]} {self.override[TARGET]}"


class Reading(Service):
    """A service that notes that its machine's override was read."""

    def answer(self, request: Any, headers: Any, body: Any) -> Answer:
        answer = super().answer(request, headers, body)
        for machine in self.machines:
            if isinstance(machine, Watched) and request.method == "GET" and answer.status == 200:
                machine.changed_unseen = False
        return answer
