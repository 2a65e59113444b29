"""Power switched by hand, one BMC after it was looked at: what would be sent, sending it, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from gitboot.bmc.identity import Described, identify, known_at
from gitboot.bmc.override_state import Observed
from gitboot.bmc.power_steps import NotSwitched, PowerAction, PowerStep, Send, next_power
from gitboot.bmc.redfish.transport import NO_SIGN, Sign
from gitboot.bmc.worker_pool import Connections, Crew, Task
from gitboot.controller.bmcs.manual_tasks import Subject
from gitboot.errors import BmcBusy, BmcRejected, BmcUnreachable, UsageError
from gitboot.model.scalars.machines import SystemUuid


@dataclass(frozen=True, kw_only=True, slots=True)
class Powered:
    """What is to be done to one machine's power, or was."""

    subject: Subject
    seen: Observed | None  # before; None: it could not be read
    step: PowerStep
    sent: bool | None = False  # None: its answer was lost, and it may have been taken

    @property
    def would_send(self) -> bool:
        return isinstance(self.step, Send)

    @property
    def failed(self) -> bool:
        return isinstance(self.step, NotSwitched)

    @property
    def words(self) -> str:
        """What is done, or why it is not."""
        return str(self.step.type) if isinstance(self.step, Send) else self.step.why

    def facts(self) -> dict[str, Any]:
        plan = self.subject.plan
        return {
            "server": self.subject.name,
            "uuid": self.subject.uuid,
            "bmc": self.subject.bmc.address,
            "power": self.seen.power if self.seen is not None else None,
            "phase": plan.phase if plan is not None else None,
            "writesDisk": plan.writes_disk if plan is not None else None,
            "resetType": self.step.type if isinstance(self.step, Send) else None,
            "why": None if isinstance(self.step, Send) else self.step.why,
            "sent": self.sent,
        }


def switch(
    chosen: Iterable[Subject],
    action: PowerAction,
    connections: Connections,
    *,
    force: bool,
    send: bool,
    each: Callable[[int], None] = lambda _: None,
) -> list[Powered]:
    """Read each BMC, and where ``send`` says so, ask it for what `next_power` finds: once, whatever comes of it.

    By name. ``each`` is called with how many more are done.
    """
    found: list[Powered] = []
    work = partial(_switched, action=action, connections=connections, force=force, send=send)
    with closing(Crew[SystemUuid, Powered]()) as crew:
        crew.add(Task(subject.uuid, subject.site, partial(work, subject)) for subject in chosen)
        while ended := crew.next_ended():
            found += ended.values()
            each(len(ended))
    return sorted(found, key=lambda one: one.subject.name)


def _switched(
    subject: Subject, *, action: PowerAction, connections: Connections, force: bool, send: bool
) -> tuple[Powered, Sign]:
    pinned = known_at(subject.pinned, subject.bmc.place)
    certificate = pinned.certificate if pinned is not None else None
    try:
        bmc = connections.to(subject.uuid, subject.name, subject.bmc, known=subject.known, certificate=certificate)
    except UsageError as error:
        return Powered(subject=subject, seen=None, step=NotSwitched(why=str(error))), NO_SIGN
    if bmc.login is not None:
        bmc.login.keeps = False  # it is asked twice at the most: no session is worth its while
    seen: Observed | None = None
    step: PowerStep
    with bmc.reach.watched() as sign:
        try:
            seen = bmc.with_reset_types(bmc.observe())
            described = Described.by(subject.uuid, subject.serial, subject.bmc)
            identified = identify(described, seen.shown, pinned=pinned, shared=subject.shared)
            step = next_power(action, seen, identified, force=force)
        except (UsageError, BmcUnreachable, BmcBusy, BmcRejected) as error:
            step = NotSwitched(why=str(error))
        if not send or not isinstance(step, Send) or seen is None:
            return Powered(subject=subject, seen=seen, step=step), sign()
        sent: bool | None = True
        try:
            bmc.reset(step.type, seen)
        except (BmcBusy, BmcRejected) as error:
            sent, step = False, NotSwitched(why=str(error))
        except BmcUnreachable as error:
            why = f"{error}: whether it has taken {step.type} is not known; look before you ask again"
            sent, step = None, NotSwitched(why=why)
        return Powered(subject=subject, seen=seen, step=step, sent=sent), sign()
