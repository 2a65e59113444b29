"""Risks: find the possible consequences of a change to a server, and when the change takes effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gitboot.jsonio import to_json_value
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.server import Lifecycle
from gitboot.resolve.server_decision import Boot, Decision, PolicyDecision
from gitboot.review.reinstalls import Reinstall, ReinstallReason, find_resets, wants_install


class Risk(StrEnum):
    """A possible consequence of a change. The members are sorted by severity, the worst risk first."""

    REINSTALL = "reinstall"  # the commit can reinstall the server
    UNKNOWN_SERVERS = "unknown servers"  # the boots of unknown machines change
    ACCESS = "who may fetch"  # which clients may fetch boots, or which secrets a server may fetch from which host
    MUTATED_IMAGE = "mutated image"  # a BootImage in use was edited
    PROVENANCE = "provenance"  # machines may boot images without the signature that a stream required
    WITHDRAWN = "withdrawn"  # the server is removed, parked, retired, or no longer selected by a policy
    BECOMES_UNKNOWN = "becomes unknown"  # gitboot cannot determine whether the server is provisioned
    INSTALL = "install"  # a new server that wants a first boot
    RESET = "reset"  # a maintenance can now reset the running machine
    KERNEL_ARGUMENTS = "kernel arguments"
    IMAGE = "image"
    USER_DATA = "user data"
    POOL_MOVE = "pool move"  # another policy, node label or taint
    # a change of the method, the profile, networkBoot, power, URLs, or boot scripts from templates
    BOOT = "boot settings"
    MAINTENANCE = "maintenance"  # a change of maintenances, windows, priorities or runs
    IDENTITY = "identity"  # a change of the name, UUID, MAC addresses, serial number, architecture or firmware
    OUTPUTS = "outputs"  # a change of the kinds of files that gitboot publishes for all servers
    ADDED = "added"  # a new server
    BMC = "BMC"  # another BMC gets the overrides, but files do not change
    OVERRIDE_ONLY = "override only"  # only the boot override changes
    HARMLESS = "harmless"  # gitboot does not offer the server a new boot, so guards ignore the change


DANGEROUS: Final = frozenset(list(Risk)[: list(Risk).index(Risk.KERNEL_ARGUMENTS) + 1])
GetFacts = Callable[[Any], object]


def _list_file_values(boot: Boot, field_name: str) -> list[tuple[str, object]]:
    """Return the value of the field ``field_name`` ("url" or "sha256") for each file in a boot."""
    return [
        (name, [file[field_name] for file in value] if isinstance(value, list) else value[field_name])
        for name, value in to_json_value(boot.files).items()
        if name != "loaderSignatures"
    ]


def list_own_arguments(boot: Boot) -> tuple[str, ...]:
    """Return the kernel arguments without the user data URL, because this URL changes with the user data."""
    if boot.user_data is None:
        return boot.kernel_arguments
    return tuple(argument.replace(boot.user_data.url, "") for argument in boot.kernel_arguments)


# The facts that determine each risk. Together, they include all facts that the digest of a decision includes.
_SERVER_RISKS: Final[tuple[tuple[Risk, GetFacts], ...]] = (
    (Risk.IDENTITY, lambda item: (item.server, item.uuid, item.replaces, item.macs, item.serial)),
    (Risk.IDENTITY, lambda item: (item.architecture, item.firmware)),
    (
        Risk.BOOT,
        lambda item: (item.base_url, item.restrict, item.stopped, item.lifecycle is Lifecycle.ACTIVE),
    ),
    (Risk.BOOT, lambda item: item.local_disk),
    (Risk.ACCESS, lambda item: item.endpoint),  # machines send the tokens for their secrets to this endpoint
    (Risk.ACCESS, lambda item: item.copies.one_time_boots),
    (Risk.MAINTENANCE, lambda item: (item.copies.late_ends, item.copies.ipxe_https)),
    (Risk.WITHDRAWN, lambda item: item.lifecycle),
)
_POLICY_RISKS: Final[tuple[tuple[Risk, GetFacts], ...]] = (
    (Risk.POOL_MOVE, lambda item: item.policy),
    (Risk.BOOT, lambda item: (item.network_boot, item.power, item.wait_for, item.attempts, item.boot is None)),
    (Risk.OVERRIDE_ONLY, lambda item: (item.override, item.disk_boot)),
)
_MAINTENANCE_RISKS: Final[tuple[tuple[Risk, GetFacts], ...]] = (
    (
        Risk.MAINTENANCE,
        lambda item: (item.start, item.end, item.priority, item.network_boot, item.run),
    ),
    (Risk.MAINTENANCE, lambda item: (item.power, item.max_unavailable, item.max_unavailable_per, item.before)),
    (Risk.BOOT, lambda item: item.boot is None),
    (Risk.OVERRIDE_ONLY, lambda item: item.override),
)
_BOOT_RISKS: Final[tuple[tuple[Risk, GetFacts], ...]] = (
    (Risk.IMAGE, lambda item: (item.image, item.version, _list_file_values(item, "sha256"))),
    (Risk.KERNEL_ARGUMENTS, list_own_arguments),
    (Risk.USER_DATA, lambda item: (item.user_data.make_content_fields() if item.user_data else None, item.templates)),
    (Risk.ACCESS, lambda item: dict(item.user_data.secrets) if item.user_data else {}),
    (Risk.POOL_MOVE, lambda item: (item.node_labels, item.node_taints)),
    (Risk.BOOT, lambda item: (item.profile, item.method, item.http_boot, item.writes_disk, item.config_from)),
    (Risk.BOOT, lambda item: (item.entries, item.boots, item.ignores_signatures)),
)


def find_risks(old: Decision | None, new: Decision | None, reinstalls: tuple[Reinstall, ...]) -> frozenset[Risk]:
    """Return the possible consequences of a change to a server.

    ``reinstalls`` are the ways in which the commit can reinstall the server.
    """
    if new is None:
        return frozenset({Risk.WITHDRAWN})
    risks = set[Risk]()
    if reinstalls:
        only_by_record = all(each.why is ReinstallReason.RECORD for each in reinstalls)
        risks.add(Risk.BECOMES_UNKNOWN if only_by_record else Risk.REINSTALL)
    if find_resets(old, new):
        risks.add(Risk.RESET)
    if old is None:
        risks.add(Risk.ADDED)
        if wants_install(new):
            risks.add(Risk.INSTALL)
        return frozenset(risks)
    risks.update(_find_differing_risks(_SERVER_RISKS, old, new))
    if old.provision != new.provision and not any(each.why is ReinstallReason.PROVISION for each in reinstalls):
        risks.add(Risk.BOOT)
    if new.lifecycle is Lifecycle.ACTIVE:
        risks.discard(Risk.WITHDRAWN)  # the server became active again
    risks.update(_find_policy_risks(old.policy, new.policy))
    risks.update(_find_maintenance_risks(old, new))
    only_override = risks - {Risk.REINSTALL} == {Risk.OVERRIDE_ONLY}
    if only_override and all(each.why is ReinstallReason.OVERRIDE for each in reinstalls):
        return frozenset(risks)
    return frozenset(risks - {Risk.OVERRIDE_ONLY})


def _find_policy_risks(old: PolicyDecision | None, new: PolicyDecision | None) -> Iterator[Risk]:
    if old is not None and new is not None:
        yield from _find_differing_risks(_POLICY_RISKS, old, new)
        yield from _find_boot_risks(old.boot, new.boot)
    elif old != new:
        yield Risk.POOL_MOVE if old is None else Risk.WITHDRAWN


def _find_maintenance_risks(old: Decision, new: Decision) -> Iterator[Risk]:
    before, after = ({each.name: each for each in decision.maintenances} for decision in (old, new))
    for name in before.keys() | after.keys():
        old_maintenance, new_maintenance = before.get(name), after.get(name)
        if old_maintenance is None or new_maintenance is None:
            yield Risk.MAINTENANCE
        else:
            yield from _find_differing_risks(_MAINTENANCE_RISKS, old_maintenance, new_maintenance)
            yield from _find_boot_risks(old_maintenance.boot, new_maintenance.boot)


def _find_differing_risks(table: tuple[tuple[Risk, GetFacts], ...], old: object, new: object) -> Iterator[Risk]:
    return (risk for risk, get_facts in table if get_facts(old) != get_facts(new))


def _find_boot_risks(old: Boot | None, new: Boot | None) -> Iterator[Risk]:
    if old is None or new is None or old == new:
        return
    risks = set(_find_differing_risks(_BOOT_RISKS, old, new))
    if Risk.IMAGE not in risks and _list_urls(old) != _list_urls(new):  # another image always has other URLs
        risks.add(Risk.BOOT)
    yield from risks


def _list_urls(boot: Boot) -> tuple[object, ...]:
    return _list_file_values(boot, "url"), dict(boot.files.loader_signatures)


class EffectTime(StrEnum):
    """The times at which a change can take effect."""

    NOW = "now"  # as soon as gitboot publishes the commit
    NEXT_BOOT = "at the next boot"
    NEXT_INSTALL = "at the next installation"  # a provisioned server boots its disk until then
    WINDOW = "in a window"  # during the window [start, end)
    DORMANT = "not while networkBoot is Never"


class Effect(NamedTuple):
    """The time at which one part of a change takes effect."""

    when: EffectTime
    start: datetime | None = None  # the start of the window; None: the window has no start
    end: datetime | None = None
    maintenance: str | None = None


# The fields of a decision on which every boot of the server depends.
_get_common_fields: Final = attrgetter(
    "base_url", "restrict", "local_disk", "stopped", "lifecycle", "architecture", "firmware"
)


def find_effects(
    old: Decision | None, new: Decision | None, risks: frozenset[Risk], reinstalls: tuple[Reinstall, ...]
) -> tuple[Effect, ...]:
    """Return the times at which a change to a server takes effect, sorted and without duplicates."""
    effects = set[Effect]()
    if new is None or risks & {Risk.WITHDRAWN, Risk.IDENTITY, Risk.OVERRIDE_ONLY, Risk.OUTPUTS, Risk.BMC}:
        effects.add(Effect(EffectTime.NOW))
    if new is not None:
        if old is not None and (old.restrict, old.local_disk) != (new.restrict, new.local_disk):
            effects.add(Effect(EffectTime.NOW))
        has_common_change = old is None or _get_common_fields(old) != _get_common_fields(new)
        if new.policy is not None and (has_common_change or old is None or old.policy != new.policy):
            effects.update(_find_policy_effects(old.policy if old else None, new.policy, risks, reinstalls))
        effects.update(_find_maintenance_effects(old, new, has_common_change=has_common_change))
    order = list(EffectTime)
    return tuple(
        sorted(
            effects or {Effect(EffectTime.NOW)},
            key=lambda effect: (order.index(effect.when), effect.maintenance or ""),
        )
    )


def _find_maintenance_effects(old: Decision | None, new: Decision, *, has_common_change: bool) -> Iterator[Effect]:
    before = {each.name: each for each in old.maintenances} if old is not None else {}
    after = {each.name: each for each in new.maintenances}
    changed = [each for name, each in after.items() if has_common_change or before.get(name) != each]
    removed = [each for name, each in before.items() if name not in after]
    for maintenance in (*changed, *removed):
        yield Effect(EffectTime.WINDOW, maintenance.start, maintenance.end, maintenance.name)


def _find_policy_effects(
    old: PolicyDecision | None, new: PolicyDecision, risks: frozenset[Risk], reinstalls: tuple[Reinstall, ...]
) -> Iterator[Effect]:
    if risks <= {Risk.OVERRIDE_ONLY, Risk.IDENTITY, Risk.OUTPUTS, Risk.HARMLESS}:
        return
    changes_boot_mode = old is not None and (old.network_boot, old.boot is None) != (new.network_boot, new.boot is None)
    installs = Risk.INSTALL in risks or any(each.maintenance is None for each in reinstalls)
    if changes_boot_mode or installs or new.network_boot is NetworkBoot.ALWAYS or new.boot is None:
        yield Effect(EffectTime.NEXT_BOOT)
    elif new.network_boot is NetworkBoot.NEVER:
        yield Effect(EffectTime.DORMANT)
    else:
        yield Effect(EffectTime.NEXT_INSTALL)
