"""Whether a rollout may take its next step, by what is known of its machines and of the instance that says so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from gitboot.fleet.revision import Revision
from gitboot.model.boot_image import Rollout
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.install_attempts import adopted
from gitboot.resolve.policy_selection import joins_at
from gitboot.resolve.provisioning_record import Failure, InstallAttempt, Record, Seen
from gitboot.review.rollout_progress import AppliedRollout, Headway, Proof, StepOutcome, advance, applied_in
from tests.helpers.cases import for_each
from tests.helpers.fleets import at, document, fleet, image, policy, profile, repository, server, uuid_of


def identity(name: str) -> SystemUuid:
    return SystemUuid(uuid_of(name))


NOON = at("20T12:00")
NAMES = sorted((f"web{number:02}" for number in range(12)), key=lambda name: joins_at("stable", identity(name)))
FIRST = sorted(NAMES[:4])  # whom the present step reaches
PERCENT = joins_at("stable", identity(NAMES[3]))


def decided_at(percent: int = PERCENT, new: str = "flatcar-2") -> tuple[Rollout, AppliedRollout]:
    """The rollout at a percentage, and whom it reaches."""
    rollout = f"rollout: {{image: {new}, percent: {percent}}}"
    found = repository(
        fleet("baseURL: 'http://boot.test'"),
        *(image(f"flatcar-{number}") for number in (1, 2)),
        *(server(name, spec="provision: 1") for name in NAMES),
        document("ImageStream", "stable", f"current: flatcar-1, {rollout}"),
        profile("web", "stream: stable"),
        policy("web", often="Once"),
    )
    applied = applied_in("stable", found, decide(found))
    assert applied.rollout is not None
    return applied.rollout, applied


HERE, APPLIED = decided_at()
GIVEN = Seen(NOON, "/v1/boot/x", "10.0.0.1")
HAS_IT = Record(provision=1, image="flatcar-2", evidence="Reported")
ATTEMPT = InstallAttempt(key="provision/1", number=1, boots=(GIVEN,))
FAILED = Record(attempts=(replace(ATTEMPT, failed=Failure(NOON, "10.0.0.1", "no disk")),))
OVERTAKEN = replace(HAS_IT, attempts=(replace(ATTEMPT, key="provision/2"),))
OVERTAKEN_FAILED = replace(HAS_IT, attempts=(replace(FAILED.attempts[0], key="provision/2"),))


def judged(
    records: dict[str, Record | None],
    *,
    after: int = 75,
    here: Any = HERE,
    accept_fetched: bool = False,
    **of_proof: Any,
) -> Headway:
    known = dict.fromkeys(FIRST, HAS_IT) | records
    told = {identity(name): record for name, record in known.items() if record is not None}
    proof = Proof(**{"commit": Revision("c" * 40), "at": NOON, "doubt": None, "records": told, **of_proof})
    steps = (1, 10, PERCENT, 60, 100)
    return advance("stable", here, APPLIED, proof, steps=steps, after=after, at=NOON, accept_fetched=accept_fetched)


@for_each(
    ("evidence", "counts", "counts_if_accepted"),
    [
        ("Reported", True, True),
        ("Progress", True, True),
        ("Declared", True, True),
        ("Operator", True, True),
        ("Fetched", False, True),
        ("Consumed", False, True),
        ("Adopted", False, False),
        (None, False, False),
    ],
)
def test_only_evidence_of_completion_counts(evidence: str | None, counts: bool, counts_if_accepted: bool) -> None:
    records: dict[str, Record | None] = {name: replace(HAS_IT, evidence=evidence) for name in FIRST}
    assert (judged(records).outcome == "Next") is counts
    accepted = judged(records, accept_fetched=True)
    assert (accepted.outcome == "Next") is counts_if_accepted
    is_begun = counts_if_accepted and not counts
    assert accepted.begun == (tuple(FIRST) if is_begun else ())
    assert ("no completion was reported" in accepted.why) is is_begun


def test_it_is_about_whom_the_step_reaches() -> None:
    assert [each.server for each in APPLIED.machines] == FIRST


@for_each(
    ("case", "records", "of_proof", "outcome", "why"),
    [
        ("all have it", {}, {}, "Next", "4 of 4 servers have flatcar-2"),
        ("just enough have it", {FIRST[0]: Record()}, {}, "Next", "3 of 4 servers have flatcar-2"),
        ("too few have it", {FIRST[0]: Record(), FIRST[1]: Record()}, {}, "Waits", f"not yet {FIRST[0]}, {FIRST[1]}"),
        ("one is under way", {FIRST[0]: Record(attempts=(ATTEMPT,))}, {"after": 100}, "Waits", f"not yet {FIRST[0]}"),
        ("one has another image", {FIRST[0]: replace(HAS_IT, image="flatcar-1")}, {"after": 100}, "Waits", FIRST[0]),
        ("one was adopted", {FIRST[0]: adopted(APPLIED.machines[0])}, {"after": 100}, "Waits", FIRST[0]),
        ("a person says so", {FIRST[0]: replace(HAS_IT, evidence="Operator")}, {"after": 100}, "Next", "4 of 4"),
        ("one is unknown", {FIRST[0]: None}, {}, "Waits", f"not known what is on the disks of {FIRST[0]}"),
        ("one was to have another", {FIRST[0]: OVERTAKEN}, {"after": 100}, "Waits", f"not yet {FIRST[0]}"),
        ("one has failed to", {FIRST[0]: OVERTAKEN_FAILED}, {}, "Stopped", f"installing has failed on {FIRST[0]}"),
        ("one was overwritten", {FIRST[0]: replace(HAS_IT, overwritten_by="m")}, {}, "Waits", "not known"),
        ("one has failed", {FIRST[3]: FAILED}, {}, "Stopped", f"installing has failed on {FIRST[3]}"),
        ("one has failed, one is unknown", {FIRST[0]: None, FIRST[3]: FAILED}, {}, "Stopped", "failed"),
        ("whom it does not reach has failed", {NAMES[-1]: FAILED}, {}, "Next", "4 of 4"),
        ("the instance is in doubt", {}, {"doubt": "RecordsKnown: NewLedger"}, "Waits", "NewLedger"),
        ("it spoke an hour ago", {}, {"at": NOON - timedelta(hours=1)}, "Next", "4 of 4"),
        ("it spoke longer ago", {}, {"at": NOON - timedelta(hours=1, seconds=1)}, "Waits", "that is not now"),
        ("it speaks of tomorrow", {}, {"at": NOON + timedelta(days=1)}, "Waits", "that is not now"),
        ("it says no time", {}, {"at": None}, "Waits", "that is not now"),
        ("it is not where Git is", {}, {"here": decided_at(60)[0]}, "Waits", "cccccccccccc, in which"),
        ("it rolls out another image", {}, {"here": decided_at(new="flatcar-1")[0]}, "Waits", "cccccccccccc"),
    ],
)
def test_it_goes_on_once_its_machines_have_proven_it(
    case: str, records: dict[str, Record | None], of_proof: dict[str, Any], outcome: str, why: str
) -> None:
    found = judged(records, **of_proof)
    assert (found.outcome, why in found.why) == (outcome, True), (case, found)
    assert found.next == (60 if outcome == "Next" else None)


def test_the_last_step_is_complete_once_it_is_proven() -> None:
    here, applied = decided_at(100)
    assert len(applied.machines) == len(NAMES)
    told = {identity(name): HAS_IT for name in NAMES[:-1]}
    proof = Proof(commit=Revision("c"), at=NOON, doubt=None, records=told)
    found = advance("stable", here, applied, proof, steps=(50, 100), after=90, at=NOON)
    assert found.outcome is StepOutcome.WAITS
    proof = replace(proof, records={**told, identity(NAMES[-1]): HAS_IT})
    found = advance("stable", here, applied, proof, steps=(50, 100), after=90, at=NOON)
    assert (found.outcome, found.next) == (StepOutcome.COMPLETE, None)
    assert found.why.endswith("make flatcar-2 the stream's current image")


def test_a_step_that_reaches_nobody_waits_for_nobody() -> None:
    here, applied = decided_at(0)
    proof = Proof(commit=Revision("c"), at=NOON, doubt=None, records={})
    found = advance("stable", here, applied, proof, steps=(1, 100), after=100, at=NOON)
    assert (found.outcome, found.next, found.reached) == (StepOutcome.NEXT, 1, 0)
    found = advance("stable", here, applied, proof, steps=(0,), after=100, at=NOON)
    assert (found.outcome, found.why) == (
        StepOutcome.WAITS,
        "0 of 0 servers have flatcar-2 at 0 %: it reaches nobody, and no step follows that does",
    )
