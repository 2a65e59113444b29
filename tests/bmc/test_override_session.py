"""One override session and many at once: the order of steps, their outcomes, and secrets that no message contains."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec import structs

from gitboot.bmc.credentials import Credentials, read_credentials
from gitboot.bmc.override_session import BmcTask, OverrideSession, TaskOutcome, TaskResult
from gitboot.bmc.override_state import Override, OverrideRecord, OverrideState, WantedOverride
from gitboot.bmc.power_steps import PowerRecord
from gitboot.bmc.worker_pool import BmcPool
from gitboot.errors import LedgerError, UsageError
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import (
    ALWAYS,
    ONCE,
    PASSWORD,
    SECRETS,
    SET_AT_BMC,
    USER,
    MakeRack,
    Rack,
    racks,
    write_credentials,
)
from tests.helpers.cases import for_each
from tests.helpers.fleets import make_uuid
from tests.helpers.http_peers import Authority
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import GENERIC, ILO6, Profile
from tests.helpers.redfish_double.server import Body, Drop, Fault, Intrusion, Redirect, Reverted, Status

# One BMC


def test_an_override_is_recorded_before_it_is_set_and_set_before_it_is_confirmed(rack: Rack) -> None:
    result = rack.run_task()
    assert rack.written == [("web01", OverrideState.RECORDED, 0), ("web01", OverrideState.CONFIRMED, 1)]
    assert (result.outcome, result.message) == (TaskOutcome.APPLIED, "the BMC shows Once Pxe")
    assert [record.state for record in result.written_records] == [OverrideState.RECORDED, OverrideState.CONFIRMED]
    assert result.observed is not None and result.observed.override.enabled is OverrideEnabled.ONCE
    assert rack.machine.writes == [{"Boot": SET_AT_BMC}]


def test_an_override_that_is_as_wanted_is_read_once_and_not_changed(rack: Rack) -> None:
    rack.run_task()
    before = len(rack.machine.requests)
    result = rack.run_task()
    assert (result.outcome, result.written_records) == (TaskOutcome.UNCHANGED, ())
    assert len(rack.machine.requests) == before + 1


def test_a_clearing_is_recorded_before_it_is_done(rack: Rack) -> None:
    rack.run_task()
    del rack.written[:]
    result = rack.run_task(None)
    assert rack.written == [("web01", OverrideState.CLEARING, 1), ("web01", OverrideState.CLEARED, 2)]
    assert (result.outcome, result.message) == (TaskOutcome.APPLIED, "the BMC shows Disabled Pxe")


@pytest.mark.parametrize(
    ("case", "fault", "outcome", "left", "said"),
    [
        ("at work on something else", Status(status=409), TaskOutcome.WAITING, OverrideState.CLEARED, "409"),
        ("not now", Status(status=503), TaskOutcome.WAITING, OverrideState.CLEARED, "503"),
        ("each form of its ETag", Status(status=412), TaskOutcome.WAITING, OverrideState.UNSENT, "412"),
        (
            "someone set the same meanwhile",
            Intrusion(boot=SET_AT_BMC),
            TaskOutcome.WAITING,
            OverrideState.SET_BY_ANOTHER,
            "412",
        ),
        (
            "somebody set another override meanwhile",
            Intrusion(boot={"BootSourceOverrideTarget": "Hdd"}),
            TaskOutcome.WAITING,
            OverrideState.UNSENT,
            "412",
        ),
        ("not a value it takes", Status(status=400), TaskOutcome.STALLED, OverrideState.CLEARED, "400"),
        ("not allowed", Status(status=403), TaskOutcome.STALLED, OverrideState.CLEARED, "403"),
        ("no response, and not applied", Drop(applied=False), TaskOutcome.WAITING, OverrideState.RECORDED, "PATCH"),
        ("no response, but applied", Drop(applied=True), TaskOutcome.WAITING, OverrideState.RECORDED, "PATCH"),
        ("undone right after", Reverted(), TaskOutcome.WAITING, OverrideState.RECORDED, "a moment ago"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_rejected_or_lost_patch_has_an_outcome_and_a_recorded_state(
    rack: Rack, case: str, fault: Fault, outcome: TaskOutcome, left: OverrideState, said: str
) -> None:
    times = 4 if isinstance(fault, Status) and fault.status == 412 else 1  # "x", x, *, and without If-Match
    rack.server.fault(fault, on="PATCH", times=times)
    result = rack.run_task()
    assert (result.outcome, rack.records["web01"]["provision/1"].state) == (outcome, left), case
    assert said in result.message
    assert result.written_records[0].state is OverrideState.RECORDED
    assert len(rack.machine.writes) == times


@pytest.mark.parametrize(("applied", "patches"), [(True, 1), (False, 2)])
def test_a_lost_response_is_followed_by_a_read_and_at_most_by_the_missing_write(
    rack: Rack, applied: bool, patches: int
) -> None:
    rack.observe_resets()
    rack.server.fault(Drop(applied=applied), on="PATCH")
    rack.run_task()
    rack.wait(120)
    assert rack.run_task().outcome is TaskOutcome.APPLIED
    assert rack.records["web01"]["provision/1"].state is OverrideState.CONFIRMED
    assert len(rack.machine.writes) == patches


@pytest.mark.parametrize("status", [409, 503])
def test_a_bmc_that_is_too_busy_to_be_read_waits_with_nothing_recorded(rack: Rack, status: int) -> None:
    rack.server.fault(Status(status=status), times=2)
    result = rack.run_task()
    assert (result.outcome, result.observed, rack.written) == (TaskOutcome.WAITING, None, [])


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_the_retry_time_of_a_busy_bmc_is_part_of_the_result(rack: Rack, method: str) -> None:
    rack.server.fault(Status(status=503, headers={"Retry-After": "120"}), on=method, times=2)
    assert rack.run_task().retry_after_s == 120


@pytest.mark.parametrize(
    "fault", [Body(body=b"{"), Body(body=b"[]"), Redirect(location="http://192.0.2.1/"), Status(status=500)], ids=repr
)
def test_invalid_responses_are_an_outcome_and_never_an_exception(rack: Rack, fault: Fault) -> None:
    rack.server.fault(fault, times=2)
    result = rack.run_task()
    assert result.outcome in (TaskOutcome.WAITING, TaskOutcome.STALLED)
    assert rack.server.url in result.message
    assert rack.written == []


def test_gitboot_waits_for_a_machine_in_post(make_rack: MakeRack) -> None:
    rack = make_rack(profile=ILO6)
    rack.machine.reset()
    rack.machine.advance(30)
    rack.now = rack.machine.now
    result = rack.run_task()
    assert (result.outcome, result.message) == (TaskOutcome.WAITING, "the machine is in POST")
    assert rack.machine.writes == []


def test_an_override_that_someone_keeps_undoing_is_left_to_the_operator(rack: Rack) -> None:
    rack.server.fault(Reverted(), on="PATCH", times=20)
    outcomes = []
    for _ in range(6):
        outcomes.append(rack.run_task(ALWAYS))
        rack.now += timedelta(minutes=2)
    assert [result.outcome for result in outcomes] == [TaskOutcome.WAITING] * 4 + [TaskOutcome.STALLED] * 2
    assert outcomes[-1].message.startswith("Contended: gitboot set Continuous Pxe 4 times")
    assert len(rack.machine.writes) == 4


def test_corrections_without_end_are_given_up_for_now(rack: Rack) -> None:
    rack.server.fault(Reverted(), on="PATCH", times=20)
    job = rack.job(structs.replace(ALWAYS, set_again=True))
    ticks = iter(range(100))

    def clock() -> datetime:
        return rack.now + timedelta(minutes=20) * next(ticks)  # no more than three corrections an hour

    with rack.connect() as bmc:
        result = OverrideSession(bmc, job, lambda record: rack.write(job.uuid, record), clock).run()
    assert (result.outcome, result.message) == (
        TaskOutcome.WAITING,
        "the override has not reached the desired state after 16 steps",
    )


def test_wrong_credentials_stall_after_one_request(rack: Rack) -> None:
    result = rack.run_task(password="wrong")
    assert result.outcome is TaskOutcome.STALLED
    assert "401" in result.message
    assert ([request.method for request in rack.server.service.requests], rack.written) == (["GET"], [])


@pytest.mark.parametrize(
    ("case", "times_set", "wanted", "said"),
    [
        ("to be set", False, ONCE, "Once"),
        ("to be cleared", True, None, '{"BootSourceOverrideEnabled": "Disabled"}'),
        ("as it should be", True, ONCE, "the BMC shows Once Pxe"),
    ],
)
def test_a_dry_run_shows_the_patch_and_writes_nothing(
    rack: Rack, case: str, times_set: bool, wanted: WantedOverride | None, said: str
) -> None:
    if times_set:
        rack.run_task()
    written, patches = list(rack.written), list(rack.machine.writes)
    result = rack.run_task(wanted, dry_run=True)
    assert (result.outcome, rack.written, rack.machine.writes) == (TaskOutcome.UNCHANGED, written, patches), case
    assert said in result.message
    assert result.message.startswith("the BMC" if case == "as it should be" else "would PATCH /redfish/v1/Systems/1: {")


# Credentials


def test_credentials_are_two_files_without_their_last_newline(tmp_path: Path) -> None:
    write_credentials(tmp_path, "rack", " spaces stay ")
    assert read_credentials(tmp_path, "rack") == Credentials(username=USER, password=" spaces stay ", name="rack")


@pytest.mark.parametrize("missing", ["directory", "username", "password"])
def test_missing_credentials_are_named_with_the_files_they_need(tmp_path: Path, missing: str) -> None:
    if missing != "directory":
        write_credentials(tmp_path, "rack")
        (tmp_path / "rack" / missing).unlink()
    with pytest.raises(
        UsageError,
        match=r"gitboot cannot read the credentials rack: .*/rack must contain the files username and password",
    ):
        read_credentials(tmp_path, "rack")


def test_a_password_that_is_not_text_is_named_with_its_file(tmp_path: Path) -> None:
    write_credentials(tmp_path, "rack")
    (tmp_path / "rack" / "password").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="rack/password is not UTF-8 text"):
        read_credentials(tmp_path, "rack")


def run_task(fleet: BmcPool, job: BmcTask) -> TaskResult:
    assert fleet.submit([job]) == {job.uuid}
    return fleet.take_results(wait_all=True)[job.uuid]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (True, "gitboot cannot read the credentials other: "),
        (False, "gitboot needs the credentials other: pass their directory with --credentials"),
    ],
)
def test_without_credentials_a_bmc_is_stalled_and_gets_no_request(rack: Rack, given: bool, said: str) -> None:
    with rack.fleet(credentials=rack.folder if given else None) as fleet:
        result = run_task(fleet, rack.job(credentials="other"))
    assert result.outcome is TaskOutcome.STALLED
    assert said in result.message
    assert rack.server.connections == 0


def test_credentials_are_read_again_and_a_change_opens_a_new_connection(rack: Rack) -> None:
    with rack.fleet() as fleet:
        write_credentials(rack.folder, password="wrong")
        assert run_task(fleet, rack.job()).outcome is TaskOutcome.STALLED
        write_credentials(rack.folder)
        assert run_task(fleet, rack.job()).outcome is TaskOutcome.APPLIED
    assert rack.server.connections == 2


# Many BMCs


def make_three_machines() -> list[Machine]:
    names = ("web01", "web02", "web03")
    return [Machine(name, uuid=make_uuid(name), system=name) for name in names]


@pytest.mark.parametrize(
    ("hosts", "connections"), [(("127.0.0.1",) * 3, 1), (("127.0.0.1", "localhost", "localhost"), 2)]
)
def test_a_connection_is_reused_between_tasks_at_one_address(
    rack: Rack, hosts: tuple[str, ...], connections: int
) -> None:
    with rack.fleet() as fleet:
        for host, wanted in zip(hosts, (ONCE, None, ONCE), strict=True):
            job = rack.job(wanted, address=rack.server.url.replace("127.0.0.1", host))
            assert run_task(fleet, job).outcome is TaskOutcome.APPLIED
    assert rack.server.connections == connections


def test_each_result_is_collected_once_with_its_server(make_rack: MakeRack) -> None:
    rack = make_rack(*make_three_machines())
    ended = threading.Semaphore(0)
    results: dict[SystemUuid, TaskResult] = {}
    with rack.fleet(on_finished=ended.release) as fleet:
        begun = fleet.submit([rack.job(machine=machine) for machine in reversed(rack.machines)])
        while len(results) < len(rack.machines):
            assert ended.acquire(timeout=60)
            results |= fleet.take_results()
        assert fleet.take_results() == {}
    assert begun == {make_uuid(name) for name in ("web01", "web02", "web03")}
    assert [result.server for result in results.values()] == ["web01", "web02", "web03"]
    assert {result.outcome for result in results.values()} == {TaskOutcome.APPLIED}
    assert {(result.server, result.uuid) for result in results.values()} == {
        (machine.name, machine.uuid) for machine in rack.machines
    }


@dataclass
class Gate:
    """Stops the task of one server right before it changes the BMC."""

    rack: Rack
    held: str
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def write(self, uuid: SystemUuid, record: OverrideRecord) -> None:
        self.rack.write(uuid, record)
        if uuid == make_uuid(self.held) and record.state is OverrideState.RECORDED:
            self.reached.set()
            assert self.opened.wait(60)


def test_closing_lets_the_running_task_end_and_starts_no_other(make_rack: MakeRack) -> None:
    rack = make_rack(*make_three_machines())
    gate = Gate(rack, "web01")
    with rack.fleet(write=gate.write, max_parallel=1) as fleet:
        fleet.submit([rack.job(machine=machine) for machine in rack.machines])
        assert gate.reached.wait(60)
        closing = threading.Thread(target=fleet.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        gate.opened.set()
        closing.join(60)
        assert not closing.is_alive()
    assert rack.records["web01"]["provision/1"].state is OverrideState.CONFIRMED
    assert [len(machine.requests) for machine in rack.machines[1:]] == [0, 0]


def test_a_dry_run_applies_to_every_task(rack: Rack) -> None:
    with rack.fleet(dry_run=True) as fleet:
        assert run_task(fleet, rack.job()).message.startswith("would PATCH")
    assert (rack.written, rack.machine.writes) == ([], [])


def test_an_unreachable_bmc_and_a_record_that_cannot_be_written_do_not_affect_other_tasks(
    make_rack: MakeRack,
) -> None:
    rack = make_rack(*make_three_machines())
    web01, web02, web03 = rack.machines

    def write(uuid: SystemUuid, record: OverrideRecord) -> None:
        if uuid == web02.uuid:
            raise LedgerError("the disk is full")
        rack.write(uuid, record)

    with rack.fleet(write=write) as fleet:
        dead = rack.job(machine=web03, address="http://127.0.0.1:1")
        fleet.submit([rack.job(machine=web01), rack.job(machine=web02), dead])
        results = fleet.take_results(wait_all=True)
    assert {result.server: (result.outcome, result.is_reachable) for result in results.values()} == {
        "web01": (TaskOutcome.APPLIED, True),
        "web02": (TaskOutcome.WAITING, True),
        "web03": (TaskOutcome.WAITING, False),
    }
    assert results[SystemUuid(web02.uuid)].message == "the disk is full"
    assert [len(machine.writes) for machine in rack.machines] == [1, 0, 0], "what cannot be written down is not done"


def test_an_unexpected_error_at_one_bmc_is_its_result_and_does_not_affect_other_tasks(
    make_rack: MakeRack, caplog: pytest.LogCaptureFixture
) -> None:
    rack = make_rack(*make_three_machines())
    web01, web02, _ = rack.machines

    def write(uuid: SystemUuid, record: OverrideRecord) -> None:
        if uuid == web02.uuid:
            raise ZeroDivisionError(PASSWORD)
        rack.write(uuid, record)

    with rack.fleet(write=write) as fleet:
        fleet.submit([rack.job(machine=web01), rack.job(machine=web02)])
        results = {result.server: result for result in fleet.take_results(wait_all=True).values()}
        failed, credentials = results["web02"], fleet.get_credentials_fingerprint(rack.job().bmc)
    assert results["web01"].outcome is TaskOutcome.APPLIED
    assert (failed.outcome, failed.credentials_fingerprint) == (TaskOutcome.STALLED, credentials)
    assert failed.message == (
        "gitboot failed because of a defect (ZeroDivisionError); report it with the traceback from the log of `gitboot "
        "run`"
    )
    assert [(each.message, bool(each.exc_info)) for each in caplog.records] == [
        (f"a task at the BMC of web02 ({rack.job(machine=web02).bmc.address}) failed", True)
    ]


def test_a_task_that_has_not_started_is_replaced_by_the_newest_one(make_rack: MakeRack) -> None:
    rack = make_rack(*make_three_machines())
    gate = Gate(rack, "web01")
    web01, web02, web03 = rack.machines
    with rack.fleet(write=gate.write, max_parallel=1) as fleet:
        fleet.submit([rack.job(machine=web01), rack.job(machine=web02), rack.job(machine=web03)])
        assert gate.reached.wait(60)
        assert fleet.submit([rack.job(ALWAYS, machine=web02)]) == {web02.uuid}
        fleet.drop_pending_tasks([SystemUuid(web03.uuid)])
        gate.opened.set()
        fleet.take_results(wait_all=True)
    assert [each["Boot"]["BootSourceOverrideEnabled"] for each in web02.writes] == ["Continuous"]
    assert web03.requests == []


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        (ALWAYS, ["GET system", "PATCH system", "GET system"]),
        (ONCE, ["GET system", "GET manager", "PATCH system", "GET system"]),  # its clock
        (None, ["GET system"]),
    ],
    ids=["Continuous", "Once", "nothing"],
)
def test_no_more_requests_are_sent_than_needed(rack: Rack, wanted: WantedOverride | None, asked: list[str]) -> None:
    rack.run_task(wanted)
    names = {rack.machine.path: "system", rack.machine.manager_path: "manager"}
    assert [f"{each.method} {names[each.path]}" for each in rack.server.service.requests] == asked
    rack.server.service.requests.clear()
    rack.run_task(wanted)
    assert [each.method for each in rack.server.service.requests] == ["GET"]


# Trust and secrets


@pytest.mark.parametrize(
    ("case", "outcome", "said"),
    [
        ("its authority", TaskOutcome.APPLIED, "Once Pxe"),
        ("no authority, and no check", TaskOutcome.APPLIED, "Once Pxe"),
        ("the machine's own authorities", TaskOutcome.STALLED, "certificate not trusted"),
        ("garbage", TaskOutcome.STALLED, "bmc.tls.ca of web01 is not a PEM certificate"),
        ("an empty file", TaskOutcome.STALLED, "bmc.tls.ca of web01 is not a PEM certificate"),
    ],
)
def test_a_bmc_is_trusted_by_the_authority_of_its_document(
    make_rack: MakeRack, authority: Authority, case: str, outcome: TaskOutcome, said: str
) -> None:
    rack = make_rack(tls=authority.server_context())
    ca = {"its authority": authority.pem, "garbage": "-----BEGIN CERTIFICATE-----", "an empty file": ""}.get(case)
    with rack.fleet() as fleet:
        result = run_task(fleet, rack.job(ca=ca, verify="no check" not in case))
    assert (result.outcome, said in result.message) == (outcome, True), result.message


@pytest.mark.parametrize(
    "fault",
    [
        Status(status=401),
        Status(status=403),
        Status(status=500),
        Drop(applied=False),
        Body(body=b"garbage"),
        Redirect(location="http://192.0.2.1/"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_no_message_contains_a_secret(rack: Rack, fault: Fault, method: str) -> None:
    rack.server.fault(fault, on=method, times=3)
    result = rack.run_task()
    assert not [secret for secret in SECRETS if secret in repr(result)]


def test_the_repr_of_credentials_hides_their_password() -> None:
    assert PASSWORD not in repr(Credentials(username=USER, password=PASSWORD))


INSTALL = structs.replace(
    ONCE,
    override=Override(
        enabled=OverrideEnabled.ONCE,
        target=OverrideTarget.UEFI_HTTP,
        mode="UEFI",
        http_boot_uri="http://boot.test/1.efi",
    ),
    is_first_install=True,
)
WITHOUT_ETAGS = replace(GENERIC, etag_header="", etag_body="")
# For one task: what is read and recorded; without ETags, one more read; the request; and the read after it.
PARTS = {GENERIC: 3, WITHOUT_ETAGS: 4}


@dataclass
class ControlledInstance:
    """An instance with a ledger of its own, whose job at the BMC goes on by one request at a time."""

    rack: Rack
    records: dict[str, OverrideRecord] = field(default_factory=dict)
    is_done: bool = True
    _may_continue: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _paused: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def state(self) -> OverrideState:
        (record,) = self.records.values()
        return record.state

    def begin(self) -> None:
        self.is_done = False
        threading.Thread(target=self._run, daemon=True).start()

    def continue_one_step(self) -> None:
        """Run until the next request that reads or changes the override, or until the end."""
        if not self.is_done:
            self._may_continue.release()
            assert self._paused.acquire(timeout=60)

    def job(self) -> None:
        """One from its beginning to its end, or the one that is under way to its end."""
        if self.is_done:
            self.begin()
        while not self.is_done:
            self.continue_one_step()

    def _run(self) -> None:
        self._may_continue.acquire()
        job = structs.replace(self.rack.job(INSTALL), records=tuple(self.records.values()))
        with self.rack.connect() as bmc:
            read, send, is_first = bmc.observe, bmc._connector.patch, iter([True])

            def reading() -> object:
                if not next(is_first, False):
                    self._pause()
                return read()

            def sending(*request: object, **more: object) -> object:
                self._pause()
                return send(*request, **more)

            bmc.observe, bmc._connector.patch = reading, sending  # type: ignore[assignment,method-assign]
            OverrideSession(bmc, job, self._write, lambda: self.rack.now).run()
        self.is_done = True
        self._paused.release()

    def _pause(self) -> None:
        self._paused.release()
        self._may_continue.acquire()

    def _write(self, record: OverrideRecord | PowerRecord) -> None:
        assert isinstance(record, OverrideRecord)
        self.records[record.reason] = record


@dataclass
class InterleavedRun:
    """Both at the BMC of a machine, which boots at some time in between."""

    rack: Rack

    def play(self, order: str) -> tuple[ControlledInstance, ControlledInstance]:
        """Each letter lets ``a`` or ``b`` go on, or the machine boot, or go off (``O``).

        Then both look again and again, and it boots.
        """
        both = {"a": ControlledInstance(self.rack), "b": ControlledInstance(self.rack)}
        for each in both.values():
            each.begin()
        for step in order:
            if step in both:
                both[step].continue_one_step()
            elif step == "O":
                self.rack.machine.power = "Off"
            else:
                self.rack.boot()
        for _ in range(2):
            for each in both.values():
                each.job()
            self.rack.wait(120)
            self.rack.boot()
        for each in both.values():
            each.job()
        return both["a"], both["b"]

    @property
    def installed(self) -> int:
        return sum(boot.target == "UefiHttp" for boot in self.rack.machine.boots)


def run_interleaved(folder: Path, profile: Profile, order: str) -> tuple[int, OverrideState, OverrideState]:
    """Return how often the machine was installed, and the final record of each instance."""
    with racks(folder) as make:
        played = InterleavedRun(make(profile=profile))
        one, two = played.play(order)
        return played.installed, one.state, two.state


@for_each(
    ("profile", "order", "expected"),
    [
        (GENERIC, "bObbbaaa", (1, OverrideState.CONSUMED, OverrideState.SET_BY_ANOTHER)),  # the first sends nothing
        (GENERIC, "abaabb", (1, OverrideState.CONSUMED, OverrideState.SET_BY_ANOTHER)),
        (GENERIC, "abaabBb", (1, OverrideState.CONSUMED, OverrideState.SET_BY_ANOTHER)),
        (GENERIC, "abaaBbb", (1, OverrideState.CONSUMED, OverrideState.SET_BY_ANOTHER)),
        (WITHOUT_ETAGS, "abaaaBbb", (1, OverrideState.CONSUMED, OverrideState.SET_BY_ANOTHER)),
        (WITHOUT_ETAGS, "abaaabb", (1, OverrideState.CONSUMED, OverrideState.SET_BY_ANOTHER)),
        (
            WITHOUT_ETAGS,
            "bObbaaaa",
            (1, OverrideState.CONSUMED, OverrideState.SET_BY_ANOTHER),
        ),  # the first sends nothing
        (
            WITHOUT_ETAGS,
            "abababab",
            (1, OverrideState.CONSUMED, OverrideState.CONSUMED),
        ),  # neither sees the other, and it boots once
        (
            WITHOUT_ETAGS,
            "aabbaaBbb",
            (2, OverrideState.CONSUMED, OverrideState.CONSUMED),
        ),  # the second sees no sign of the first
    ],
)
def test_the_second_of_two_instances_sees_the_change_of_the_first(
    tmp_path: Path, profile: Profile, order: str, expected: tuple[int, OverrideState, OverrideState]
) -> None:
    assert run_interleaved(tmp_path, profile, order) == expected


def generate_orders(parts: int, chance: random.Random) -> Iterator[str]:
    """Orders in which both may go on, with a boot of the machine somewhere among them."""
    while True:
        steps = list("ab" * parts)
        chance.shuffle(steps)
        steps.insert(chance.randint(1, len(steps)), "B")
        yield "".join(steps)


def boots_before_a_request(order: str) -> bool:
    """True if the machine boots between the last reading of an instance and its request."""
    before = order.partition("B")[0]
    return any(before.count(each) == PARTS[WITHOUT_ETAGS] - 2 for each in "ab")


@pytest.mark.parametrize("profile", PARTS, ids=["ETags", "no ETags"])
def test_a_machine_is_installed_once_in_any_order_of_two_instances(
    tmp_path: Path, profile: Profile, lives: int
) -> None:
    drawn = generate_orders(PARTS[profile], random.Random(2028))
    for number in range(12 * lives):
        order = next(drawn)
        while profile is WITHOUT_ETAGS and boots_before_a_request(order):
            order = next(drawn)
        installed, *states = run_interleaved(tmp_path / str(number), profile, order)
        assert installed == 1, (order, states)
