"""Whether a boot that is made once could be noticed, with the endpoints and the BMCs that there are."""

from __future__ import annotations

from gitboot.instance.offers import fetches
from gitboot.load.machines import Machine
from gitboot.model.fleet import Evidence
from gitboot.model.policy import NetworkBoot, OverrideMode
from gitboot.plan import Boot, Decision, Record
from gitboot.resolve.attempts import is_provisioned
from gitboot.resolve.instant import has_run


def goes_unseen(
    decision: Decision, machine: Machine, record: Record | None, evidence: Evidence, *, observes: bool
) -> bool:
    """Whether a boot that is still to be made once could be made without the instance noticing.

    ``evidence`` is what the Fleet takes for proof; ``observes``: fetches reach the instance at all.
    """
    if record is None:
        return False
    policy, has_bmc = decision.policy, machine.bmc is not None
    if (
        policy is not None
        and policy.boot is not None
        and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        and not is_provisioned(policy, record)
        and not _sees(policy.boot, policy.override, evidence, has_bmc=has_bmc, observes=observes)
    ):
        return True
    return any(
        each.boot is not None
        and each.network_boot is NetworkBoot.ONCE
        and not has_run(each, record)
        and not _sees(each.boot, each.override, Evidence.FETCHED, has_bmc=has_bmc, observes=observes)
        for each in decision.maintenances
    )


def _sees(boot: Boot, override: OverrideMode, evidence: Evidence, *, has_bmc: bool, observes: bool) -> bool:
    match evidence:
        case Evidence.DECLARED:
            return True
        case Evidence.REPORTED:
            return observes
    sets = has_bmc and override is not OverrideMode.NONE  # it is seen when its override is consumed
    # A loader fetches the entry of whatever it boots, a uki too.
    notices = observes and (fetches(boot) or boot.direct_uki is not None)
    if evidence is Evidence.PROGRESS:
        return has_bmc and (sets or notices)
    return notices or (sets and not fetches(boot))
