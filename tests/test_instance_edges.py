"""Sequences in which an instance once installed a machine twice, stranded one, or kept a window open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gitboot.plan import BootPlan, Cause, Phase
from tests.bench import Bench
from tests.fleets import SEED, at, image, maintenance, policy, profile, server

INSTALLS = (Phase.NETWORK, Cause.PENDING)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path) as bench:
        yield bench


def seed(spec: str = "provision: 1", *more: str, often: str = "Once") -> tuple[str, ...]:
    """web01, which is installed once, and profiles for maintenances: repair writes no disk, bios does."""
    return (
        SEED[0],
        server("web01", "role: web", spec),
        *(image("flatcar-1"), image("bios-2"), image("memtest-7", "writesDisk: false")),
        *(profile("web", "flatcar-1"), profile("bios", "bios-2"), profile("repair", "memtest-7")),
        policy("web", "{matchLabels: {role: web}}", often=often),
        *more,
    )


def boot(bench: Bench, *documents: str) -> None:
    """The machine boots what these documents make of it, and a minute passes."""
    bench.decide(*documents)
    bench.fetch(bench.plan())
    bench.plan()
    bench.wait(minutes=2)


def shown(plan: BootPlan | None) -> tuple[Phase, Cause]:
    assert plan is not None
    return plan.phase, plan.cause


# What a maintenance leaves


@pytest.mark.parametrize("often", ["networkBoot: Once", "networkBoot: Always"])
def test_e12_a_wipe_leaves_unknown_what_is_installed(bench: Bench, often: str) -> None:
    wipe = maintenance("wipe", "20T12:10 20T14:00", often, boots="bios")
    boot(bench, *seed())
    bench.now = at("20T12:10")
    boot(bench, *seed("provision: 1", wipe))
    assert bench.record is not None
    assert (bench.record.overwritten_by, bench.record.provision) == ("wipe", 1)
    bench.now = at("20T14:00")
    assert shown(bench.plan()) == (Phase.DISK, Cause.OVERWRITTEN)
    assert (bench.condition("RecordsKnown") or (None,))[:2] == (False, "UnknownServers")
    assert bench.instance.reconciler.status.records == {"Unknown": 1}
    bench.decide(*seed("provision: 2", wipe))
    assert shown(bench.plan()) == INSTALLS
    bench.fetch(bench.plan())
    bench.plan()
    assert bench.record is not None
    assert (bench.record.overwritten_by, bench.record.provision) == (None, 2)


def test_e12_what_a_wipe_leaves_is_known_after_a_restart(tmp_path: Path) -> None:
    documents = seed("provision: 1", maintenance("wipe", "20T12:10 20T14:00", "networkBoot: Once", boots="bios"))
    with Bench(tmp_path) as bench:
        boot(bench, *seed())
        bench.now = at("20T12:10")
        boot(bench, *documents)
        before = bench.record
    with Bench(tmp_path) as bench:
        bench.now = at("20T14:00")
        bench.decide(*documents)
        assert shown(bench.plan()) == (Phase.DISK, Cause.OVERWRITTEN)
        assert bench.record == before


def test_e12_what_was_installed_after_a_wipe_stands_when_the_wipe_is_heard_of_later(bench: Bench) -> None:
    wipe = maintenance("wipe", "20T12:10 20T14:00", "networkBoot: Once", boots="bios")
    boot(bench, *seed())
    bench.now = at("20T12:10")
    bench.decide(*seed("provision: 1", wipe))
    wiping = bench.plan()
    bench.now = at("20T14:00")
    boot(bench, *seed("provision: 2", wipe))
    bench.fetch(wiping, at=at("20T12:10"))
    bench.plan()
    assert bench.record is not None
    assert (bench.record.overwritten_by, sorted(bench.record.runs)) == (None, ["wipe"])


# When a maintenance is made again


def test_e17_a_maintenance_whose_name_is_used_again_next_quarter_runs(bench: Bench) -> None:
    boot(bench, *seed())
    bench.now = at("20T22:00")
    boot(bench, *seed("provision: 1", maintenance("repair", "20T22:00 21T04:00", "networkBoot: Once")))
    assert shown(bench.plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)
    bench.now = at("28T22:00")
    boot(bench, *seed("provision: 1", maintenance("repair", "28T22:00 29T04:00", "networkBoot: Once")))
    assert bench.told("MaintenanceBooted") == ["MaintenanceBooted"] * 2
    assert shown(bench.plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)
    bench.now = at("29T04:00")
    assert shown(bench.plan()) == (Phase.DISK, Cause.PROVISIONED)


@pytest.mark.parametrize(
    ("windows", "again"),
    [
        (("20T23:30 21T04:00",), False),  # it begins later, before the one in which it ran is over
        (("20T22:00 21T08:00", "21T04:00 21T08:00"), False),  # lengthened, then shortened from the front
        (("20T22:00 20T23:00", "20T23:00 21T04:00"), False),  # shortened, then moved to where it lay before
    ],
)
def test_e17_a_window_that_is_moved_asks_for_no_second_run(bench: Bench, windows: tuple[str, ...], again: bool) -> None:
    bench.now = at("20T22:00")
    boot(bench, *seed("provision: 0", maintenance("repair", "20T22:00 21T04:00", "networkBoot: Once")))
    for window in windows:
        bench.decide(*seed("provision: 0", maintenance("repair", window, "networkBoot: Once")))
        bench.plan()
    bench.now = at("21T07:00") if "08:00" in windows[-1] else at("20T23:30")
    assert (shown(bench.plan())[0] is Phase.MAINTENANCE) == again


def test_e17_a_run_counts_for_the_window_that_stood_when_it_was_made(bench: Bench) -> None:
    """The plan is the same in both windows, and so is its digest."""
    bench.decide(*seed("provision: 0", maintenance("repair", "20T13:00 20T14:00", "networkBoot: Once")))
    bench.plan()
    bench.now = at("20T13:30")
    boot(bench, *seed("provision: 0", maintenance("repair", "20T13:30 20T18:00", "networkBoot: Once")))
    bench.now = at("20T17:00")
    assert shown(bench.plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)
    assert bench.record is not None
    assert bench.record.runs["repair"].end == at("20T18:00")
