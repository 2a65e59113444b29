"""Machines that a ledger knows and a commit brings (back): whose disks it would write again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.install_attempts import is_provisioned
from gitboot.resolve.plan_at_time import has_run
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decision


def returning(
    come: Iterable[Decision],
    records: Mapping[SystemUuid, Record],
    seen: Collection[SystemUuid],
    unknown_claims: Collection[str] = (),
) -> tuple[str, ...]:
    """The servers among those that ``come`` with a commit that the guard maxReinstalls counts, by name.

    They are machines that the ledger ever saw. No two commits tell that: beside the one before they look like new ones.
    A server in ``unknown_claims`` boots an image that claims to write no disk, and nobody has acknowledged that claim.
    """
    known = (each for each in come if each.uuid in seen or each.uuid in records)
    return tuple(
        sorted(each.server for each in known if each.server in unknown_claims or _writes(each, records.get(each.uuid)))
    )


def _writes(decision: Decision, record: Record | None) -> bool:
    """Whether a disk-writing boot would be offered, now or in a window to come."""
    if decision.stopped:
        return False
    policy = decision.policy
    if policy is not None and policy.boot is not None and policy.boot.writes_disk:
        if policy.network_boot is NetworkBoot.ALWAYS:
            return True
        if policy.network_boot is not NetworkBoot.NEVER and record is not None and not is_provisioned(policy, record):
            return True
    return any(
        each.network_boot is NetworkBoot.ALWAYS or (record is not None and not has_run(each, record))
        for each in decision.maintenances
        if each.boot is not None and each.boot.writes_disk
    )
