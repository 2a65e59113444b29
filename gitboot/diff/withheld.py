"""Install boots that one decision offers to a machine and a newer decision does not: gitboot withholds them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from gitboot.resolve.server_decision import Boot, Decision, WithheldBoot
from gitboot.review.harmless_changes import Demand, EachTime, NotProvisioned, NotRun, When, instants, spans

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)  # the first of `instants`


def withheld_boots(accepted: Decision, newer: Decision | None, by: str) -> tuple[WithheldBoot, ...]:
    """Return the install boots of ``accepted`` that ``newer`` does not offer, the earliest first.

    ``newer`` is the decision of the commit ``by`` for the same machine; None: the commit does not describe the machine.
    """
    found: list[WithheldBoot] = []
    for each in _spans_withheld(accepted, newer, by):
        last = found[-1] if found else None
        if (
            last is not None
            and last.end == each.start
            and last._replace(start=None, end=None) == each._replace(start=None, end=None)
        ):
            found[-1] = last._replace(end=each.end)
        else:
            found.append(each)
    return tuple(found)


def _spans_withheld(accepted: Decision, newer: Decision | None, by: str) -> Iterator[WithheldBoot]:
    times = instants(accepted) if newer is None else instants(accepted, newer)
    offered = [span.ask for span in spans(accepted, times)]
    others: list[Demand | None] = [None for _ in times]
    if newer is not None:
        others = [span.ask for span in spans(newer, times)]
    windows = pairwise((*(None if time == _BEGINNING else time for time in times), None))
    for (start, end), ask, other in zip(windows, offered, others, strict=True):
        if ask.boot is not None and ask.boot.writes_disk and not _is_same_offer(ask, other):
            is_back = other is None or other.image != ask.image
            yield WithheldBoot(ask.maintenance, start, end, takes_image_back=is_back, by=by)


def _is_same_offer(ask: Demand, other: Demand | None) -> bool:
    """Return whether the other demand offers the same install boot to the same machine, as soon as the first."""
    if other is None or ask.boot is None or other.boot is None or ask.maintenance != other.maintenance:
        return False
    return (
        _key(ask.when) == _key(other.when) and _content(ask.boot) == _content(other.boot) and ask.waits == other.waits
    )


def _key(when: When) -> tuple[object, ...]:
    """Return the provision key or the run of a boot: how often it may be attempted is no part of it."""
    match when:
        case NotProvisioned():
            return "provision", when.number, when.image
        case NotRun():
            return "run", when.maintenance, when.run
        case EachTime():
            return ("always",)


def _content(boot: Boot) -> tuple[object, ...]:
    """Return what of a boot decides what the machine installs."""
    texts = boot.kernel_arguments, dict(boot.entries), boot.user_data
    return boot.image, boot.files, boot.method, boot.http_boot, boot.writes_disk, texts
