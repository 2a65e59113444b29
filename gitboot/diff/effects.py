"""When a change takes effect, as far as a commit can say it: without a clock and without records."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from gitboot.model.boot_policy import NetworkBoot
from gitboot.resolve.server_decision import Decision, PolicyDecision
from gitboot.review.reinstalls import Reinstall, asks_at_once
from gitboot.review.risks import Risk


class When(StrEnum):
    """From when on a change counts."""

    NOW = "now"  # with its publication: entries come and go, overrides are set and withdrawn
    NEXT_BOOT = "at the next boot"
    NEXT_INSTALL = "at the next installation"  # a server that is provisioned boots its disk until then
    WINDOW = "in a window"  # [start, end)
    DORMANT = "not while networkBoot is Never"


class Effect(NamedTuple):
    """When some of a change takes effect."""

    when: When
    start: datetime | None = None  # of a window; None: it is open
    end: datetime | None = None
    maintenance: str | None = None


def effects(
    old: Decision | None, new: Decision | None, risks: frozenset[Risk], asked: tuple[Reinstall, ...]
) -> tuple[Effect, ...]:
    """When a server's change takes effect, the soonest first; each once."""
    order = list(When)
    found = set(_effects(old, new, risks, asked)) or {Effect(When.NOW)}
    return tuple(sorted(found, key=lambda each: (order.index(each.when), each.maintenance or "")))


def _effects(
    old: Decision | None, new: Decision | None, risks: frozenset[Risk], asked: tuple[Reinstall, ...]
) -> Iterator[Effect]:
    if new is None or Risk.WITHDRAWN in risks:
        yield Effect(When.NOW)
    if risks & {Risk.IDENTITY, Risk.OVERRIDE_ONLY, Risk.OUTPUTS, Risk.BMC}:
        yield Effect(When.NOW)
    if new is None:
        return
    if old is not None and (old.restrict, old.local_disk) != (new.restrict, new.local_disk):
        yield Effect(When.NOW)
    everything = old is None or _general(old) != _general(new)
    if new.policy is not None and (everything or old is None or old.policy != new.policy):
        yield from _of_policy(old.policy if old else None, new.policy, risks, asked)
    before = {each.name: each for each in old.maintenances} if old else {}
    for maintenance in new.maintenances:
        was = before.pop(maintenance.name, None)
        if was != maintenance or everything:
            yield Effect(When.WINDOW, maintenance.start, maintenance.end, maintenance.name)
    for gone in before.values():
        yield Effect(When.WINDOW, gone.start, gone.end, gone.name)


def _general(decision: Decision) -> tuple[object, ...]:
    """What counts for each boot of a server, whatever it boots by."""
    how = decision.architecture, decision.firmware
    return decision.base_url, decision.restrict, decision.local_disk, decision.stopped, decision.lifecycle, how


def _of_policy(
    old: PolicyDecision | None, new: PolicyDecision, risks: frozenset[Risk], asked: tuple[Reinstall, ...]
) -> Iterator[Effect]:
    if risks <= {Risk.OVERRIDE_ONLY, Risk.IDENTITY, Risk.OUTPUTS, Risk.LESS}:
        return
    changes_how = old is not None and _how(old) != _how(new)
    installs = Risk.INSTALL in risks or asks_at_once(asked)
    if changes_how or installs or new.network_boot is NetworkBoot.ALWAYS or new.boot is None:
        yield Effect(When.NEXT_BOOT)
    elif new.network_boot is NetworkBoot.NEVER:
        yield Effect(When.DORMANT)
    else:
        yield Effect(When.NEXT_INSTALL)


def _how(policy: PolicyDecision) -> tuple[object, ...]:
    """How often a policy boots from the network, if at all."""
    return policy.network_boot, policy.boot is None
