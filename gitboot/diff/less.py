"""The one order on decisions that guards use: whether a new one offers anything that the old one did not.

New is *less* for a server if at every instant and for every record what it offers is

- what the old one offers there, or the disk in place of a boot that writes disks;
- or what the old one offers there once a window that is open has ended. A boot that writes disks is then that only
  where it is made once for a provision key, and the old one offers it for this key by itself, there or later: what a
  window uncovers besides is more.

Parked is the disk. Everything else that a decision says (whose it is, where files lie) has to be the same.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Final

from gitboot.model.boot_policy import DiskBoot, OverrideMode
from gitboot.model.server import Lifecycle
from gitboot.resolve.server_decision import Decision
from gitboot.review.harmless_changes import Demand, NotProvisioned, Span, covers, instants, spans


def is_less(old: Decision, new: Decision) -> bool:
    """Whether ``new`` offers nothing that ``old`` did not: such a change is held by no guard."""
    if not _is_comparable(old, new):
        return False
    times = instants(old, new)
    before, after = list(spans(old, times)), list(spans(new, times))
    return all(_is_no_more(is_now.ask, before[number:]) for number, is_now in enumerate(after))


def _is_comparable(old: Decision, new: Decision) -> bool:
    if old.lifecycle is not new.lifecycle and (old.lifecycle, new.lifecycle) != _PARKED:
        return False
    return new.provision <= old.provision and _same(new) == _same(old)


_PARKED: Final = (Lifecycle.ACTIVE, Lifecycle.PARKED)
_COMPARED: Final = frozenset({"lifecycle", "provision", "policy", "maintenances", "stopped", "withheld"})
_same: Final = attrgetter(*sorted({each.name for each in fields(Decision) if each.compare} - _COMPARED))


def _is_no_more(ask: Demand, spans: list[Span]) -> bool:
    """Whether ``ask`` offers nothing that the first of these spans does not, which the others follow."""
    here = spans[0]
    if _is_within(ask, here.ask):
        return True
    if ask.writes_disk and not _is_asked_later(ask, spans):
        return False
    return any(_is_within(ask, each) for each in here.beneath)


def _is_within(ask: Demand, other: Demand) -> bool:
    if ask.disk not in (other.disk, DiskBoot.FIRMWARE_ORDER) or ask.power not in (other.power, "None"):
        return False
    if ask.boot is None:
        return other.boot is None or other.writes_disk
    if ask.boot != other.boot or not covers(other.when, ask.when):
        return False
    if ask.waits is not other.waits and not (ask.waits and ask.writes_disk):
        return False  # without waiting it is offered sooner; what waits leaves the disk in place of what writes none
    if not ask.writes_disk and not covers(ask.when, other.when):
        return False  # for some record the disk would take the place of what writes none
    return _OVERRIDES.index(ask.override) <= _OVERRIDES.index(other.override)


_OVERRIDES: Final = (OverrideMode.NONE, OverrideMode.ONCE, OverrideMode.CONTINUOUS)  # each sets more than those before


def _is_asked_later(ask: Demand, spans: list[Span]) -> bool:
    """Whether a policy asks for a boot of this provision key by itself, in one of these spans."""
    if not isinstance(ask.when, NotProvisioned):
        return False
    return any(isinstance(span.ask.when, NotProvisioned) and span.ask.when.covers(ask.when) for span in spans)
