"""Whether a boot that is made once could be noticed, with the endpoints and the BMCs that there are."""

from __future__ import annotations

from functools import partial

from gitboot.controller.learn.install_boots import fetches
from gitboot.load.machines import Machine
from gitboot.model.boot_policy import NetworkBoot, OverrideMode
from gitboot.model.fleet import Evidence
from gitboot.resolve.install_attempts import is_provisioned
from gitboot.resolve.plan_at_time import has_run
from gitboot.resolve.provisioning_record_from_plan import Record
from gitboot.resolve.server_decision_from_plan import Boot, Decision


def goes_unseen(
    decision: Decision, machine: Machine, record: Record | None, evidence: Evidence, *, observes: bool, sets: bool
) -> bool:
    """Whether a boot that is still to be made once could be made without the instance noticing.

    ``evidence`` is what the Fleet takes for proof; ``observes``: fetches reach the instance at all; ``sets``: it sets
    overrides at BMCs.
    """
    if record is None:
        return False
    policy, has_bmc = decision.policy, machine.bmc is not None
    sees = partial(_sees, has_bmc=has_bmc, observes=observes, sets=has_bmc and sets)
    if (
        policy is not None
        and policy.boot is not None
        and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
        and not is_provisioned(policy, record)
        and not sees(policy.boot, policy.override, evidence)
    ):
        return True
    return any(
        each.boot is not None
        and each.network_boot is NetworkBoot.ONCE
        and not has_run(each, record)
        and not sees(each.boot, each.override, Evidence.FETCHED)
        for each in decision.maintenances
    )


def rests_on_bmcs(evidence: Evidence, *, observes: bool) -> bool:
    """Whether there may be boots of which nothing but an override that was set could show that they were made."""
    return not observes or evidence is Evidence.PROGRESS


def _sees(boot: Boot, override: OverrideMode, evidence: Evidence, *, has_bmc: bool, observes: bool, sets: bool) -> bool:
    match evidence:
        case Evidence.DECLARED:
            return True
        case Evidence.REPORTED:
            return observes
    sets = sets and override is not OverrideMode.NONE  # it is seen when its override is consumed
    # A loader fetches the entry of whatever it boots, a uki too.
    notices = observes and (fetches(boot) or boot.direct_uki is not None)
    if evidence is Evidence.PROGRESS:
        return has_bmc and (sets or notices)
    return notices or (sets and not fetches(boot))
