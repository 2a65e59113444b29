"""Deadlines: each request to a BMC ends, and so do all requests of a job, whatever the BMC sends and how slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gitboot.bmc.override_session import Outcome
from gitboot.bmc.override_state import Observed, Override, Wanted
from gitboot.bmc.power_steps import ResetType
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.bmc.redfish.transport import Reach
from gitboot.errors import BmcUnreachable
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import ONCE, Rack, racks
from tests.helpers.redfish_double.profiles import GENERIC, IDRAC9, XCC, Drive, Profile
from tests.helpers.redfish_double.server import Slow

ISO = "http://boot.test/assets/node/1.iso"
SHORT_S = 0.3
SENT_FOR_HOURS = Slow(every_s=60)  # an answer has some hundred bytes


@pytest.fixture
def rack(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rack]:
    profile: Profile = getattr(request, "param", GENERIC)
    with racks(tmp_path) as make:
        yield make(profile=profile)


Call = Callable[[BmcConnection, Observed], object]
CALLS: list[tuple[str, Profile, str, Call]] = [
    ("observe", GENERIC, "GET", lambda bmc, _: bmc.observe()),
    ("is_redfish", GENERIC, "GET", lambda bmc, _: bmc.is_redfish()),
    ("with_clock", GENERIC, "GET", lambda bmc, seen: bmc.with_clock(seen, lambda: datetime(2026, 11, 20, tzinfo=UTC))),
    ("set_override", GENERIC, "PATCH", lambda bmc, seen: bmc.set_override(ONCE.override, seen)),
    ("reset", GENERIC, "POST", lambda bmc, seen: bmc.reset(ResetType.FORCE_RESTART, seen)),
    ("with_slots", GENERIC, "GET", lambda bmc, seen: bmc.media.with_slots(seen)),
    ("insert", GENERIC, "POST", lambda bmc, seen: bmc.media.insert(seen.slots[1], ISO)),
    ("eject", GENERIC, "POST", lambda bmc, seen: bmc.media.eject(seen.slots[1])),
    ("insert by PATCH", XCC, "PATCH", lambda bmc, seen: bmc.media.insert(seen.slots[1], ISO)),
    ("eject by PATCH", XCC, "PATCH", lambda bmc, seen: bmc.media.eject(seen.slots[1])),
    ("with_secure_boot", GENERIC, "GET", lambda bmc, seen: bmc.firmware.with_secure_boot(seen)),
    ("with_uri", IDRAC9, "GET", lambda bmc, seen: bmc.firmware.with_uri(seen)),
    ("keep_uri", IDRAC9, "PATCH", lambda bmc, seen: bmc.firmware.keep_uri("http://boot.test/loader", seen)),
]


@pytest.mark.parametrize(
    ("rack", "method", "call"),
    [call[1:] for call in CALLS],
    ids=[name for name, *_ in CALLS],
    indirect=["rack"],
)
def test_each_call_to_a_bmc_that_drips_ends_at_its_deadline(rack: Rack, method: str, call: Call) -> None:
    with rack.connect(read_timeout_s=60) as patient:
        seen = patient.media.with_slots(patient.observe())
        seen = replace(seen, secure_boot_path=f"{rack.machine.path}/SecureBoot", firmware_uri="")
    rack.server.fault(SENT_FOR_HOURS, on=method, times=9)
    bmc = rack.connect(connect_timeout_s=SHORT_S, read_timeout_s=SHORT_S)
    with pytest.raises(BmcUnreachable):
        call(bmc, seen)
    bmc.close(log_out=False)


def test_a_logout_at_a_bmc_that_drips_ends(rack: Rack) -> None:
    bmc = rack.connect(read_timeout_s=60)
    bmc.observe()
    bmc.login.keeps = True
    bmc.observe()
    rack.server.fault(SENT_FOR_HOURS, on="DELETE")
    bmc.close()
    assert "DELETE" in [each.method for each in rack.server.service.requests]


def with_many_drives(rack: Rack) -> None:
    """Let a BMC name more drives than can be read in a second: each answer comes at once."""
    machine = rack.machine
    machine.drives = [Drive(f"{machine.media_path}/{n}", machine.profile.drives) for n in range(8000)]


def test_all_requests_of_a_job_end_though_each_one_is_answered(rack: Rack) -> None:
    with_many_drives(rack)
    reach = Reach(total_s=0.5)
    with rack.connect(reach=reach) as bmc:
        seen = bmc.observe()
        with reach.watched(), pytest.raises(BmcUnreachable, match=r"its answers to a job took more than 0\.5 s in all"):
            bmc.media.with_slots(seen)
        assert len(rack.server.service.requests) < 8000
        assert bmc.observe().power == "On", "the deadline is that of the job"


def test_a_job_at_a_bmc_without_end_waits_for_the_next_one(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    with_many_drives(rack)
    disc = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.CD, mode="UEFI", medium=ISO)
    job = rack.job(Wanted(reason="provision/1", plan_digest="d" * 64, override=disc))
    with rack.fleet() as fleet:
        monkeypatch.setattr(Reach, "left_s", limited_to(rack, 50))
        assert fleet.submit([job])
        result = fleet.finished(wait_all=True)[job.uuid]
    assert (result.outcome, result.answered) == (Outcome.WAITING, False)
    assert "its answers to a job took more than 300 s in all" in result.message


def limited_to(rack: Rack, requests: int) -> Callable[[Reach], float]:
    """Return a `Reach.left_s` for which the time of a job ends after so many requests."""
    left_s = Reach.left_s

    def left(reach: Reach) -> float:
        if len(rack.server.service.requests) >= requests:
            assert reach.ends_s is not None, "a job has a deadline"
            reach.ends_s = 0.0
        return left_s(reach)

    return left
