"""Risk classes of a change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.server import Lifecycle
from gitboot.resolve.server_decision import Boot, Decision, MaintenanceDecision, PolicyDecision
from gitboot.review.reinstalls import Reinstall, Why, asks_at_once, resets, wants_install


class Risk(StrEnum):
    """What a change can do, the worst first."""

    REINSTALL = "reinstall"  # it can ask for a boot that writes disks, and could not before
    UNKNOWN_SERVERS = "unknown servers"  # what unknown machines boot
    ACCESS = "who may fetch"  # which clients may fetch boots, which secrets a server may fetch, and from which host
    MUTATED_IMAGE = "mutated image"  # a BootImage in use was edited
    WITHDRAWN = "withdrawn"  # removed, parked, retired, or selected by nothing any more
    BECOMES_UNKNOWN = "becomes unknown"  # whether it is provisioned: it boots its disk until somebody says
    INSTALL = "install"  # a new server that wants a first boot
    RESET = "reset"  # a maintenance can reset its machine while it runs, and could not before
    KERNEL_ARGUMENTS = "kernel arguments"
    IMAGE = "image"
    USER_DATA = "user data"
    POOL_MOVE = "pool move"  # another policy, node label or taint
    BOOT = "way of booting"  # method, profile, networkBoot, power, URLs, entries of one's own
    MAINTENANCE = "maintenance"  # which, when, in which order, which run
    IDENTITY = "identity"  # name, UUID, MAC addresses, serial number, architecture, firmware
    OUTPUTS = "outputs"  # which files are published for every server
    ADDED = "added"  # a new server
    BMC = "BMC"  # where overrides are written; no file changes
    OVERRIDE_ONLY = "override only"  # nothing but how the BMC is set
    LESS = "less"  # nothing is offered that was not before: no guard holds it


DANGEROUS: Final = frozenset(list(Risk)[: list(Risk).index(Risk.KERNEL_ARGUMENTS) + 1])
Look = Callable[[Any], object]


def _artifacts(boot: Boot) -> object:
    return [(name, each) for name, each in _sources(boot, "sha256")]


def _addresses(boot: Boot) -> object:
    return [(name, each) for name, each in _sources(boot, "url")]


def _sources(boot: Boot, fact: str) -> Iterator[tuple[str, object]]:
    for name, found in boot.files.facts().items():
        yield name, [each[fact] for each in found] if isinstance(found, list) else found[fact]


def own_arguments(boot: Boot) -> tuple[str, ...]:
    """The kernel arguments, without where the user data lies: that changes with its content."""
    if boot.user_data is None:
        return boot.kernel_arguments
    return tuple(argument.replace(boot.user_data.url, "") for argument in boot.kernel_arguments)


# What each class looks at. Together they see all that a decision's digest is made of.
_OF_SERVER: Final[tuple[tuple[Risk, Look], ...]] = (
    (Risk.IDENTITY, lambda its: (its.server, its.uuid, its.replaces, its.macs, its.serial)),
    (Risk.IDENTITY, lambda its: (its.architecture, its.firmware)),
    (
        Risk.BOOT,
        lambda its: (its.base_url, its.restrict, its.stopped, its.lifecycle is Lifecycle.ACTIVE),
    ),
    (Risk.BOOT, lambda its: its.local_disk),
    (Risk.ACCESS, lambda its: its.endpoint),  # machines send it the tokens that fetch their secrets
    (Risk.ACCESS, lambda its: its.copies.one_time_boots),
    (Risk.MAINTENANCE, lambda its: (its.copies.late_ends, its.copies.ipxe_https)),
    (Risk.WITHDRAWN, lambda its: its.lifecycle),
)
_OF_POLICY: Final[tuple[tuple[Risk, Look], ...]] = (
    (Risk.POOL_MOVE, lambda its: its.policy),
    (Risk.BOOT, lambda its: (its.network_boot, its.power, its.wait_for, its.attempts, its.boot is None)),
    (Risk.OVERRIDE_ONLY, lambda its: (its.override, its.disk_boot)),
)
_OF_MAINTENANCE: Final[tuple[tuple[Risk, Look], ...]] = (
    (
        Risk.MAINTENANCE,
        lambda its: (its.start, its.end, its.priority, its.network_boot, its.run),
    ),
    (Risk.MAINTENANCE, lambda its: (its.power, its.max_unavailable, its.max_unavailable_per)),
    (Risk.BOOT, lambda its: its.boot is None),
    (Risk.OVERRIDE_ONLY, lambda its: its.override),
)
_OF_BOOT: Final[tuple[tuple[Risk, Look], ...]] = (
    (Risk.IMAGE, lambda its: (its.image, its.version, _artifacts(its))),
    (Risk.KERNEL_ARGUMENTS, own_arguments),
    (Risk.USER_DATA, lambda its: (its.user_data.content_facts() if its.user_data else None, its.templates)),
    (Risk.ACCESS, lambda its: dict(its.user_data.secrets) if its.user_data else {}),
    (Risk.POOL_MOVE, lambda its: (its.node_labels, its.node_taints)),
    (Risk.BOOT, lambda its: (its.profile, its.method, its.http_boot, its.writes_disk, its.config_from)),
    (Risk.BOOT, lambda its: (its.entries, its.boots)),
)


def risks(old: Decision | None, new: Decision | None, asked: tuple[Reinstall, ...]) -> frozenset[Risk]:
    """What a server's change can do; ``asked`` are the boots that write disks which it newly asks for."""
    if old is None:
        assert new is not None  # noqa: S101 - one of the two is there
        added = {Risk.ADDED, Risk.INSTALL} if wants_install(new) else {Risk.ADDED}
        added |= {Risk.RESET} if resets(old, new) else set()
        return frozenset(added | {Risk.REINSTALL} if asked else added)
    if new is None:
        return frozenset({Risk.WITHDRAWN})
    found = {Risk.REINSTALL} if asked else set()
    found |= {Risk.RESET} if resets(old, new) else set()
    found |= set(_differing(_OF_SERVER, old, new))
    if old.provision != new.provision and not any(each.why is Why.PROVISION for each in asked):
        found.add(Risk.BOOT)
    if new.lifecycle is Lifecycle.ACTIVE:
        found.discard(Risk.WITHDRAWN)  # it came back
    found |= set(_of_policies(old.policy, new.policy))
    found |= set(_of_maintenances(old, new))
    if found - {Risk.REINSTALL} == {Risk.OVERRIDE_ONLY} and all(each.why is Why.OVERRIDE for each in asked):
        return frozenset(found)
    return frozenset(found - {Risk.OVERRIDE_ONLY})


def _differing(table: tuple[tuple[Risk, Look], ...], old: object, new: object) -> Iterator[Risk]:
    return (risk for risk, look in table if look(old) != look(new))


def _of_policies(old: PolicyDecision | None, new: PolicyDecision | None) -> Iterator[Risk]:
    if old == new:
        return
    if old is None or new is None:
        yield Risk.POOL_MOVE if old is None else Risk.WITHDRAWN
        return
    yield from _differing(_OF_POLICY, old, new)
    yield from _of_boots(old.boot, new.boot)


def _of_maintenances(old: Decision, new: Decision) -> Iterator[Risk]:
    before, after = (_by_name(each) for each in (old, new))
    for name in before.keys() | after.keys():
        was, is_now = before.get(name), after.get(name)
        if was is None or is_now is None:
            yield Risk.MAINTENANCE
        elif was != is_now:
            yield from _differing(_OF_MAINTENANCE, was, is_now)
            yield from _of_boots(was.boot, is_now.boot)


def _by_name(decision: Decision) -> dict[str, MaintenanceDecision]:
    return {maintenance.name: maintenance for maintenance in decision.maintenances}


def _of_boots(old: Boot | None, new: Boot | None) -> Iterator[Risk]:
    if old is None or new is None or old == new:
        return
    found = set(_differing(_OF_BOOT, old, new))
    if Risk.IMAGE not in found and _addresses(old) != _addresses(new):  # another image lies elsewhere anyway
        found.add(Risk.BOOT)
    yield from found


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
