"""What is known of provisioning: first records, evidence, and what each comes to at the next plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gitboot.ledger import Ledger
from gitboot.model.scalars import Digest
from gitboot.plan import BootPlan, Cause, Phase, Record
from gitboot.provisioning import offer_of
from tests.bench import NOON, Bench
from tests.fleets import SEED, image, maintenance, policy, profile, server, uuid_of


def fleet_of(provision: int = 1, often: str = "Once", *more: str, boots: str = "flatcar-1") -> tuple[str, ...]:
    """The seed, with its server's provision number, how often it boots from the network, and what."""
    wanted = server("web01", "role: web", f"provision: {provision}")
    images = () if boots == "flatcar-1" else (image(boots),)
    return (SEED[0], wanted, *SEED[2:4], *images, profile("web", boots), SEED[5], policy("web", often=often), *more)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        yield bench


def meet(bench: Bench, plan: BootPlan | None, evidence: str = "Fetched") -> None:
    assert plan is not None
    if (offer := bench.provisioning.offered(plan.digest)) is None:
        return
    bench.provisioning.meet(offer, bench.now, evidence, bench.now)


def spend(bench: Bench) -> None:
    """The BMC shows that web01's override was consumed."""
    bench.provisioning.spent(bench.servers["web01"].decision.uuid, "web01", "provision/1", bench.now)


def shown(plan: BootPlan | None) -> tuple[Phase, Cause]:
    assert plan is not None
    return plan.phase, plan.cause


TO_INSTALL = (Phase.NETWORK, Cause.NOT_MET)
INSTALLED = (Phase.DISK, Cause.MET)
UNKNOWN = (Phase.DISK, Cause.UNKNOWN)


# What a ledger is told


def test_a_new_ledger_that_was_never_told_knows_nothing_and_says_so(tmp_path: Path) -> None:
    with Bench(tmp_path, told=None) as bench:
        bench.decide(*fleet_of(provision=1))
        assert shown(bench.plan()) == UNKNOWN
        status, reason, message = bench.condition("RecordsKnown") or (None, "", "")
        assert (status, reason) == (False, "NewLedger")
        assert message.startswith("1 server wants provision 1 or more") and "--records fresh" in message
        bench.plan()
        assert bench.told() == ["RecordsUnknown"]  # once, not at every pass
        assert not bench.ledger.told


@pytest.mark.parametrize(
    ("told", "provision", "expected"),
    [
        ("fresh", 1, TO_INSTALL),
        ("fresh", 0, INSTALLED),  # a running fleet is adopted as it stands
        ("adopt", 1, INSTALLED),
        ("adopt", 0, INSTALLED),
        (None, 0, INSTALLED),  # nothing in the fleet asks the question
    ],
)
def test_what_a_new_ledger_is_told_decides_what_is_installed(
    tmp_path: Path, told: str | None, provision: int, expected: tuple[Phase, Cause]
) -> None:
    with Bench(tmp_path, told=told) as bench:
        bench.decide(*fleet_of(provision))
        assert shown(bench.plan()) == expected
        assert bench.condition("RecordsKnown") == (True, "Known", "the ledger knows every server")


def test_a_ledger_that_was_told_is_not_told_again(tmp_path: Path) -> None:
    with Bench(tmp_path, told="adopt") as bench:
        bench.decide(*fleet_of(provision=1))
        bench.plan()
    with Bench(tmp_path, told="fresh") as bench:
        bench.decide(*fleet_of(provision=1))
        assert shown(bench.plan()) == INSTALLED


def test_a_server_that_a_continuing_ledger_sees_for_the_first_time_is_installed_if_it_asks(bench: Bench) -> None:
    bench.decide(*SEED)
    bench.plan()
    bench.decide(*fleet_of(provision=0), server("web02", "role: web", "provision: 1"))
    bench.plan()
    assert shown(bench.servers["web02"].plan) == TO_INSTALL
    assert shown(bench.servers["web01"].plan) == INSTALLED


def test_records_last_from_one_process_to_the_next(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        bench.decide(*fleet_of())
        meet(bench, bench.plan())
        record = bench.record
    with Bench(tmp_path) as bench:
        bench.decide(*fleet_of())
        assert bench.record == record
        assert record is not None and record.provision == 1


# Evidence


def test_evidence_meets_the_key_and_is_told_once(bench: Bench) -> None:
    bench.decide(*fleet_of(provision=3))
    plan = bench.plan()
    meet(bench, plan)
    assert plan is not None and plan.boot is not None
    assert bench.record == Record(
        provision=3,
        image="flatcar-1",
        pool="web",
        decision=bench.decisions.servers["web01"].digest,
        evidence="Fetched",
        met_at=NOON,
        grace_until=NOON + timedelta(seconds=60),
    )
    meet(bench, plan)
    (event,) = bench.events
    assert (event.type, event.message) == (
        "Provisioned",
        "web01: provision 3 is met with BootImage/flatcar-1 (Fetched)",
    )
    assert event.facts == {"server": "web01", "evidence": "Fetched", "image": "flatcar-1", "plan": plan.digest}


@pytest.mark.parametrize(("seconds", "expected"), [(0, TO_INSTALL), (59, TO_INSTALL), (60, INSTALLED)])
def test_a_loader_that_tries_again_within_a_minute_still_finds_the_boot(
    bench: Bench, seconds: int, expected: tuple[Phase, Cause]
) -> None:
    bench.decide(*fleet_of())
    meet(bench, bench.plan())
    bench.wait(seconds=seconds)
    plan = bench.plan()
    assert shown(plan) == expected
    assert plan is not None and plan.override is None  # but nothing is armed


def test_a_second_fetch_does_not_lengthen_the_minute(bench: Bench) -> None:
    bench.decide(*fleet_of())
    meet(bench, bench.plan())
    bench.wait(seconds=30)
    meet(bench, bench.plan())
    bench.wait(seconds=30)
    assert shown(bench.plan()) == INSTALLED


@pytest.mark.parametrize(
    ("case", "before", "after", "expected"),
    [
        ("raised", fleet_of(1), fleet_of(2), TO_INSTALL),
        ("lowered", fleet_of(2), fleet_of(1), INSTALLED),
        ("another image", fleet_of(1), fleet_of(1, boots="flatcar-2"), INSTALLED),
        (
            "another image, which counts",
            fleet_of(1, "OnImageChange"),
            fleet_of(1, "OnImageChange", boots="flatcar-2"),
            TO_INSTALL,
        ),
        (
            "lowered, and another image where it no longer counts",
            fleet_of(2, "OnImageChange"),
            fleet_of(1, boots="flatcar-2"),
            INSTALLED,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_commit_after_the_installation(
    bench: Bench, case: str, before: tuple[str, ...], after: tuple[str, ...], expected: tuple[Phase, Cause]
) -> None:
    bench.decide(*before)
    meet(bench, bench.plan())
    bench.wait(minutes=5)
    bench.decide(*after)
    assert shown(bench.plan()) == expected


def test_a_number_that_was_lowered_and_raised_again_asks_for_nothing_new(bench: Bench) -> None:
    for provision in (2, 1, 2):
        bench.decide(*fleet_of(provision))
        if bench.plan() and shown(bench.plan()) == TO_INSTALL:
            meet(bench, bench.plan())
            bench.wait(minutes=5)
    assert shown(bench.plan()) == INSTALLED
    assert bench.told("Provisioned") == ["Provisioned"]


def test_a_late_fetch_of_an_earlier_plan_meets_the_key_that_it_had(bench: Bench) -> None:
    bench.decide(*fleet_of(provision=1))
    earlier = bench.plan()
    bench.decide(*fleet_of(provision=2))
    bench.plan()
    meet(bench, earlier)
    assert bench.record is not None and bench.record.provision == 1
    assert shown(bench.plan()) == TO_INSTALL


def test_a_boot_that_is_made_each_time_meets_nothing(bench: Bench) -> None:
    bench.decide(*fleet_of(often="Always"))
    meet(bench, bench.plan())
    assert (bench.record, bench.events) == (Record(), [])


def test_what_was_published_before_a_restart_is_evidence_still(bench: Bench, tmp_path: Path) -> None:
    bench.decide(*fleet_of(provision=1))
    plan = bench.plan()
    assert plan is not None
    bench.close()
    with Bench(tmp_path) as other:
        offer = other.provisioning.offered(plan.digest)
        assert offer is not None and (offer.key, offer.image) == ("provision/1", "flatcar-1")


def test_what_was_never_published_is_offered_to_no_one(bench: Bench) -> None:
    bench.decide(*fleet_of(provision=1))
    bench.plan()
    assert bench.provisioning.offered(Digest("0" * 64)) is None


def test_the_boot_that_comes_next_is_offered_ahead(bench: Bench) -> None:
    window = maintenance("repair", "20T13:00 20T14:00", "networkBoot: Once")
    bench.decide(*fleet_of(0, "Once", window))
    bench.plan()
    ((_, later), *_) = bench.servers["web01"].later
    bench.wait(hours=1)
    meet(bench, later)
    assert bench.record is not None and list(bench.record.runs) == ["repair"]


def test_evidence_for_a_server_of_which_nothing_is_known_stays_unheard(tmp_path: Path) -> None:
    with Bench(tmp_path, told=None) as bench:
        bench.decide(*fleet_of(1, "OnImageChange"))
        bench.plan()
        decision = bench.decisions.servers["web01"]
        plan = bench.servers["web01"].plan
        assert plan is not None and decision.policy is not None
        offer = offer_of(decision, replace(plan, boot=decision.policy.boot, phase=Phase.NETWORK, key="provision/1"))
        assert offer is not None
        bench.provisioning.meet(offer, NOON, "Fetched", NOON)
        assert (bench.record, bench.told("Provisioned")) == (None, [])


# Maintenances


def repair(run: int = 1, often: str = "Once") -> str:
    return maintenance("repair", "20T11:00 20T14:00", f"networkBoot: {often}, run: {run}")


def test_a_maintenance_that_boots_once_is_done_a_minute_after_its_fetch(bench: Bench) -> None:
    bench.decide(*fleet_of(0, "Once", repair()))
    plan = bench.plan()
    assert shown(plan) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    meet(bench, plan)
    assert bench.record is not None and bench.record.runs == {"repair": (1, NOON)}
    assert bench.record.evidence == "Adopted"  # a maintenance says nothing about provisioning
    (event,) = bench.events
    assert (event.type, event.message) == (
        "MaintenanceBooted",
        "web01: run 1 of Maintenance/repair was booted (Fetched)",
    )
    bench.wait(seconds=59)
    assert shown(bench.plan()) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    bench.wait(seconds=1)
    assert shown(bench.plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (2, (Phase.MAINTENANCE, Cause.MAINTENANCE)),  # another run is another boot
        (1, (Phase.DISK, Cause.MAINTENANCE_DONE)),
        (0, (Phase.DISK, Cause.MAINTENANCE_DONE)),  # a run that was taken back is none
    ],
)
def test_a_maintenance_boots_once_a_run(bench: Bench, run: int, expected: tuple[Phase, Cause]) -> None:
    bench.decide(*fleet_of(0, "Once", repair(1)))
    meet(bench, bench.plan())
    bench.wait(minutes=2)
    bench.decide(*fleet_of(0, "Once", repair(run)))
    assert shown(bench.plan()) == expected


def test_a_maintenance_that_boots_always_is_never_done(bench: Bench) -> None:
    bench.decide(*fleet_of(0, "Once", repair(often="Always")))
    meet(bench, bench.plan())
    assert bench.record is not None and bench.record.runs == {}
    assert bench.events == []


def test_a_fetch_under_a_maintenance_installs_nothing_and_ends_no_installation(bench: Bench) -> None:
    bench.decide(*fleet_of(1, "Once", repair()))
    meet(bench, bench.plan())
    bench.wait(hours=2)
    assert shown(bench.plan()) == TO_INSTALL


# Spent without evidence


def test_an_override_that_was_spent_without_evidence_waits_half_an_hour_and_then_asks_a_person(bench: Bench) -> None:
    bench.decide(*fleet_of())
    bench.plan()
    spend(bench)
    plan = bench.plan()
    assert shown(plan) == TO_INSTALL
    assert plan is not None and plan.override is None  # nothing is armed from spent to evidence
    assert plan.next_transition == NOON + timedelta(minutes=30)
    bench.wait(minutes=10)
    spend(bench)
    bench.wait(minutes=20)
    assert shown(bench.plan()) == (Phase.DISK, Cause.SPENT)


def test_evidence_after_all_ends_the_waiting(bench: Bench) -> None:
    bench.decide(*fleet_of())
    plan = bench.plan()
    spend(bench)
    bench.wait(minutes=5)
    meet(bench, plan)
    assert bench.record is not None and (bench.record.provision, bench.record.spent_at) == (1, None)


# Together with the ledger


def test_a_pass_in_which_nothing_is_learnt_writes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.decide(*fleet_of())
    meet(bench, bench.plan())
    records = bench.provisioning.records

    def refuse(*_: object) -> None:
        raise AssertionError("written")

    monkeypatch.setattr(Ledger, "write_records", refuse)
    meet(bench, bench.plan())
    assert bench.provisioning.records is records


def test_a_new_uuid_under_a_known_name_is_unknown(bench: Bench) -> None:
    """A new motherboard, or a mended UUID: the machine may be installed, so it is not installed by itself."""
    bench.decide(*fleet_of())
    bench.plan()
    replaced = [text.replace(uuid_of("web01"), uuid_of("another board")) for text in fleet_of()]
    bench.decide(*replaced)
    plan = bench.plan()
    assert shown(plan) == (Phase.DISK, Cause.UNKNOWN)
