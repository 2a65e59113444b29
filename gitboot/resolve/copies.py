"""What the boot files in OUTPUT and in its copies cannot do for a server: findings for `validate` and `diff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from gitboot.fleet.resources import Id
from gitboot.model.boot_policy import NetworkBoot
from gitboot.problems.codes import Code, Severity
from gitboot.resolve.decision_inputs import FleetTerms
from gitboot.resolve.decision_inputs_from_resolve_copies import _OF_IPXE, _WITHOUT_HTTPS
from gitboot.resolve.found import DecisionFinding, Field
from gitboot.resolve.plan_at_time import harmless_boot
from gitboot.resolve.server_decision_from_plan import Boot, Decision, MaintenanceDecision


def check_copies(fleet: FleetTerms, decision: Decision) -> Iterator[DecisionFinding]:
    """Yield a warning for each thing that copies of the boot files cannot do for a server, as its commit has it."""
    if decision.endpoint is None and not decision.copies.one_time_boots and any(_one_time_boots(decision)):
        message = "no copy of the boot files serves a one-time boot or records a fetch, and no endpoint is named"
        place = (Id("Fleet", fleet.name), ("spec", "endpoint"))
        yield _warning(Code.NO_ENDPOINT, message, place)
    if fleet.serving.late_ends is not None:
        return
    for maintenance in decision.maintenances:
        if (why := _late_end(fleet, decision, maintenance)) is not None:
            message = f"Maintenance/{maintenance.name}: {why}"
            place = (Id("Maintenance", maintenance.name), ("spec", "window"))
            yield _warning(Code.LATE_END, message, place)


def _warning(code: Code, message: str, place: tuple[Id, Field]) -> DecisionFinding:
    return DecisionFinding(code, message, code.hint, place, Severity.WARNING, most_named=_MOST_NAMED)


_MOST_NAMED: Final = 20  # servers in one line


def _one_time_boots(decision: Decision) -> Iterator[Boot]:
    """Yield the boots of a server that write its disk and are served once."""
    for each in (decision.policy, *decision.maintenances):
        if each is not None and (boot := each.boot) is not None and boot.writes_disk and each.network_boot in _ONCE:
            yield boot


_ONCE: Final = (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)


def _late_end(fleet: FleetTerms, decision: Decision, maintenance: MaintenanceDecision) -> str | None:
    """Return why copies cannot end a maintenance on time; None: they can, or have nothing to end."""
    boot, alone = maintenance.boot, harmless_boot(decision.policy)
    if boot is None and alone is None:
        return None  # the disk, before and after the end
    is_once = boot is not None and boot.writes_disk and maintenance.network_boot in _ONCE
    if is_once and not decision.copies.one_time_boots:
        return None  # no copy has the boot
    if decision.endpoint is None:
        return "no endpoint is named, so a copy of the boot files ends it only with the next copy"
    unable = sorted(_unable(fleet, decision, boot, alone))
    if not unable:
        return None
    return f"{' and '.join(unable)} cannot ask {decision.endpoint} for its end, so copies do not have it for them"


def _unable(fleet: FleetTerms, decision: Decision, boot: Boot | None, alone: Boot | None) -> Iterator[str]:
    """Yield the loaders, and other ways to boot, that cannot ask the endpoint whether a maintenance has ended."""
    outputs = frozenset(fleet.outputs)
    if boot is None and decision.restrict:
        yield "boot loaders that find no boot script for the disk (serving.restrict or localDisk: NotFound)"
        return
    if urlsplit(decision.endpoint or "").scheme == "https":
        if not decision.copies.ipxe_https and outputs & _OF_IPXE:
            yield "iPXE"
        yield from (name for name, its in _WITHOUT_HTTPS if outputs & its)
    if any(each is not None and each.direct and each.http_boot is not None for each in (boot, alone)):
        yield "UEFI HTTP boot"
    if boot is not None and alone is not None and boot.asks_by_uuid and alone.asks_by_uuid:
        yield "a system that asks for its user data by UUID"
