"""Records of provisioning: the first records, evidence, and the effect of each on the next plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.controller.records.ledger_snapshot import LedgerUpdate
from gitboot.controller.records.provisioning import record_override_consumed
from gitboot.errors import LedgerError
from gitboot.ledger import server_tables as book
from gitboot.ledger.store import Transaction
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import InstallAttempt, Record, Run, StepEvidence, make_record_fields
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from tests.helpers.cases import require_value
from tests.helpers.fleets import SEED, at, fleet, image, maintenance, make_mac, make_uuid, policy, profile, server
from tests.helpers.instance_in_process import NOON, Bench, InitialRecords, Unsynced, build_begin_request, summarize_plan


def fleet_of(provision: int = 1, often: str = "Once", *more: str, boots: str = "flatcar-1") -> tuple[str, ...]:
    """The seed, with its server's provision number, how often it boots from the network, and what."""
    wanted = server("web01", "role: web", f"provision: {provision}")
    images = () if boots == "flatcar-1" else (image(boots),)
    return (SEED[0], wanted, *SEED[2:4], *images, profile("web", boots), SEED[5], policy("web", often=often), *more)


def boot_once(bench: Bench, plan: BootPlan | None, made_at: datetime | None = None) -> None:
    """Fetch the boot script of a plan, and let the instance read the fetch."""
    bench.fetch(plan, at=made_at)
    bench.plan()


def lose_evidence(bench: Bench) -> None:
    """The override of web01 was consumed, as an operator reports, and no evidence followed."""
    record = replace(bench.record or Record(), consumed_at=bench.now, consumed_key="provision/1")
    item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(record)}
    bench.request("records", items=[item], reason="as seen")


TO_INSTALL = (Phase.NETWORK, Cause.PENDING)
INSTALLED = (Phase.DISK, Cause.PROVISIONED)
UNKNOWN = (Phase.DISK, Cause.UNKNOWN)


# The beginning of a ledger


def test_a_new_ledger_that_was_not_begun_has_no_verified_records_and_reports_it(tmp_path: Path) -> None:
    with Bench(tmp_path, initial=None) as bench:
        assert summarize_plan(bench.decide(*fleet_of(provision=1)).plan()) == UNKNOWN
        status, reason, message = bench.condition("RecordsVerified") or (None, "", "")
        assert (status, reason) == (False, "NewLedger")
        assert message.startswith("the ledger is new, so gitboot does not know which servers are already installed. ")
        assert "Git requires gitboot to install 1 server. " in message
        assert "gitboot records begin" in message
        bench.plan()
        assert bench.told() == ["RecordsUnverified"]  # once, not at each reconcile
        assert bench.snapshot.facts.initialised is None


@pytest.mark.parametrize(
    ("initial", "provision", "expected"),
    [
        ("fresh", 1, TO_INSTALL),
        ("fresh", 0, INSTALLED),  # a running fleet is adopted as it is
        ("adopt", 1, INSTALLED),
        ("adopt", 0, INSTALLED),
        (None, 0, INSTALLED),  # no server needs an answer
    ],
)
def test_the_value_with_which_a_new_ledger_begins_decides_what_is_installed(
    tmp_path: Path, initial: str | None, provision: int, expected: tuple[Phase, Cause]
) -> None:
    with Bench(tmp_path, initial=initial) as bench:
        assert summarize_plan(bench.decide(*fleet_of(provision)).plan()) == expected
        assert bench.condition("RecordsVerified") == (True, "Verified", "the ledger has a record for each server")


def test_a_server_that_is_new_in_an_existing_ledger_is_installed_if_its_provision_says_so(bench: Bench) -> None:
    bench.decide(*SEED).plan()
    bench.decide(*fleet_of(provision=0), server("web02", "role: web", "provision: 1")).plan()
    assert summarize_plan(bench.servers["web02"].plan) == TO_INSTALL
    assert summarize_plan(bench.servers["web01"].plan) == INSTALLED


# A ledger in doubt


def open_unverified(folder: Path, doubt: str, initial: InitialRecords | None) -> Bench:
    """An instance whose ledger had web01 as provisioned, and is not to be believed any more."""
    with Bench(folder) as bench:
        boot_once(bench, bench.decide(*fleet_of()).plan())
    foreign = doubt == "ForeignLedger"
    bench = Bench(folder, initial=initial, owner="theirs" if foreign else None, doubt=None if foreign else doubt)
    bench.wait(days=1)
    return bench


DONE = Record(provision=2, image="flatcar-1", evidence="Fetched", provisioned_at=NOON)


INITIAL_RECORDS: dict[str, tuple[InitialRecords | None, tuple[Phase, Cause]]] = {
    "nothing": (None, UNKNOWN),
    "fresh": ("fresh", UNKNOWN),  # allowed for a new ledger only
    "adopt": ("adopt", INSTALLED),
    "a file that has it": ({SystemUuid(make_uuid("web01")): DONE}, INSTALLED),
    "a file that has it pending": ({SystemUuid(make_uuid("web01")): Record()}, TO_INSTALL),
    "a file that has it not": ({}, UNKNOWN),
}


@pytest.mark.parametrize(
    ("doubt", "case"),
    [
        *(("RestoredLedger", case) for case in INITIAL_RECORDS),
        *(
            (doubt, case)
            for doubt in ("ForeignLedger", "DamagedLedger")
            for case in ("nothing", "fresh", "adopt", "a file that has it not")
        ),
    ],
)
def test_an_unverified_ledger_accepts_the_beginning_that_an_operator_names(
    tmp_path: Path, doubt: str, case: str
) -> None:
    initial, expected = INITIAL_RECORDS[case]
    with open_unverified(tmp_path, doubt, initial) as bench:
        bench.decide(*fleet_of(provision=2))
        for _ in range(2):
            assert summarize_plan(bench.plan()) == expected, case
        answered = initial not in (None, "fresh")
        status, reason, message = bench.condition("RecordsVerified") or (None, "", "")
        if not answered:
            told = bench.told("RecordsUnverified", "RecordsBegun")
            assert (status, reason, told) == (False, doubt, ["RecordsUnverified"])
            assert "gitboot records begin" in message
        else:
            assert bench.told("RecordsBegun") == ["RecordsBegun"]
            assert (status, reason) == ((False, "UnverifiedServers") if expected == UNKNOWN else (True, "Verified"))
    with Bench(tmp_path, initial=None) as bench:  # and it is remembered
        again = summarize_plan(bench.decide(*fleet_of(provision=2)).plan())
        assert again == expected or (doubt == "ForeignLedger" and not answered)  # it is found again at each start


@pytest.mark.parametrize(
    ("initial", "web02"),
    [("fresh", TO_INSTALL), ("adopt", INSTALLED), ({SystemUuid(make_uuid("web01")): DONE}, UNKNOWN)],
)
def test_the_beginning_of_a_new_ledger_stays_the_same_for_each_server_over_restarts(
    tmp_path: Path, initial: InitialRecords, web02: tuple[Phase, Cause]
) -> None:
    for start in (initial, None, "fresh", "adopt"):
        with Bench(tmp_path, initial=start) as bench:
            bench.decide(*fleet_of(provision=1), server("web02", "role: web", "provision: 1")).plan()
            assert summarize_plan(bench.servers["web02"].plan) == web02, start
            bench.decide(*fleet_of(provision=1), server("web02", "role: web", "provision: 2")).plan()
            expected = TO_INSTALL if web02 == INSTALLED else web02
            assert summarize_plan(bench.servers["web02"].plan) == expected, start


def test_a_server_in_the_records_file_that_comes_back_later_is_verified(tmp_path: Path) -> None:
    with Bench(tmp_path, initial={SystemUuid(make_uuid(name)): DONE for name in ("web01", "web02")}) as bench:
        bench.decide(*fleet_of(provision=1)).plan()
        bench.decide(*fleet_of(provision=1), server("web02", "role: web", "provision: 1")).plan()
        assert summarize_plan(bench.servers["web02"].plan) == INSTALLED


class FullLedger(Unsynced):
    """On a disk that is full."""

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        raise LedgerError("the disk is full")
        yield  # never, but as a generator


def test_no_record_is_verified_before_the_first_check_even_if_the_ledger_is_not_writable(tmp_path: Path) -> None:
    """An older copy on a full disk: its records are never planned from."""
    open_unverified(tmp_path, "RestoredLedger", None).close()
    with Bench(tmp_path, initial=None, store=FullLedger) as bench:
        assert bench.decide(*fleet_of(provision=2)).plan() is None
        status, reason, message = bench.condition("LedgerWritable") or (True, "", "")
        assert (status, reason, "cannot write to the ledger: the disk is full. " in message) == (False, "Failed", True)
        assert bench.record is None and bench.snapshot.records


def test_an_operator_cannot_set_a_single_record_while_the_ledger_is_unverified(tmp_path: Path) -> None:
    with open_unverified(tmp_path, "RestoredLedger", None) as bench:
        bench.decide(*fleet_of(provision=2)).plan()
        item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(Record())}
        number = bench.request("records", items=[item], reason="as seen")
        assert summarize_plan(bench.plan()) == UNKNOWN
        assert bench.outcome(number).startswith("refused: ") and "gitboot records begin" in bench.outcome(number)


@pytest.mark.parametrize(
    ("case", "window", "expected"),
    [
        ("begun", "20T11:00 20T14:00", (Phase.DISK, Cause.MAINTENANCE_DONE)),
        ("without a beginning", "- 20T14:00", (Phase.DISK, Cause.MAINTENANCE_DONE)),
        ("still to come", "20T12:01 20T14:00", (Phase.MAINTENANCE, Cause.MAINTENANCE)),
    ],
)
def test_after_adopt_the_maintenances_that_have_begun_are_done(
    tmp_path: Path, case: str, window: str, expected: tuple[Phase, Cause]
) -> None:
    with Bench(tmp_path, initial="adopt") as bench:
        bench.decide(*fleet_of(1, "Once", maintenance("repair", window, "networkBoot: Once, run: 2"))).plan()
        assert summarize_plan(bench.wait(minutes=2).plan()) == expected, case


def test_a_fetch_before_all_servers_were_adopted_proves_nothing(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        earlier = bench.decide(*fleet_of(1, "OnImageChange")).plan()
    with Bench(tmp_path, initial="adopt", doubt="RestoredLedger") as bench:
        assert (
            summarize_plan(bench.wait(hours=1).decide(*fleet_of(1, "OnImageChange", boots="flatcar-2")).plan())
            == INSTALLED
        )
        boot_once(bench, earlier, made_at=NOON)
        assert summarize_plan(bench.plan()) == INSTALLED


# Identities


@pytest.mark.parametrize(
    ("case", "spec"),
    [
        ("another name", server("web09", "role: web", "provision: 1").replace(make_uuid("web09"), make_uuid("web01"))),
        ("new NICs", server("web01", "role: web", "provision: 1").replace(make_mac("web01"), make_mac("new"))),
        ("a new serial", server("web01", "role: web", "provision: 1, serial: S2B")),
        ("a new BMC", server("web01", "role: web", "provision: 1, bmc: {address: 'https://10.0.0.9', credentials: c}")),
    ],
)
def test_a_server_with_the_same_uuid_keeps_its_record(bench: Bench, case: str, spec: str) -> None:
    boot_once(bench, bench.decide(*fleet_of()).plan())
    bench.wait(hours=1).decide(SEED[0], spec, *fleet_of()[2:]).plan()
    (state,) = bench.servers.values()
    assert summarize_plan(state.plan) == INSTALLED, case


IDENTITY = "serial: S1A, bmc: {address: 'https://10.0.0.9', credentials: c}"


@pytest.mark.parametrize(
    ("case", "name", "mac", "spec", "expected"),
    [
        ("its name", "web01", "other", "", UNKNOWN),
        ("its MAC", "web09", "web01", "", UNKNOWN),
        ("its serial", "web09", "other", ", serial: S1A", UNKNOWN),
        ("its BMC", "web09", "other", ", bmc: {address: 'https://10.0.0.9', credentials: c}", UNKNOWN),
        ("without a declaration of it", "web09", "other", "", TO_INSTALL),
    ],
)
@pytest.mark.parametrize("gap", [False, True], ids=["at once", "removed before"])
def test_a_new_motherboard_is_unverified_until_an_operator_confirms_it(
    tmp_path: Path, case: str, name: str, mac: str, spec: str, expected: tuple[Phase, Cause], gap: bool
) -> None:
    board = server(name, "role: web", f"provision: 1{spec}")
    board = board.replace(make_uuid(name), make_uuid("a new board")).replace(make_mac(name), make_mac(mac))
    with Bench(tmp_path) as bench:
        bench.decide(SEED[0], server("web01", "role: web", f"provision: 1, {IDENTITY}"), *fleet_of()[2:]).plan()
        if gap:
            bench.decide(SEED[0], *fleet_of()[2:]).plan()
        bench.decide(SEED[0], board, *fleet_of()[2:]).plan()
        assert summarize_plan(bench.servers[name].plan) == expected, case
        assert bench.told("ServerUnknown") == (["ServerUnknown"] if expected == UNKNOWN else [])
    with Bench(tmp_path) as bench:
        bench.decide(SEED[0], board, *fleet_of()[2:]).plan()
        assert summarize_plan(bench.servers[name].plan) == expected
        if expected == UNKNOWN:
            item = {"uuid": make_uuid("a new board"), "server": name, **make_record_fields(Record())}
            bench.request("records", items=[item], reason="it is empty")
            bench.plan()
            assert summarize_plan(bench.servers[name].plan) == TO_INSTALL


def test_a_new_motherboard_of_an_unverified_server_is_unverified_too(tmp_path: Path) -> None:
    with Bench(tmp_path, initial={}) as bench:
        assert summarize_plan(bench.decide(*fleet_of()).plan()) == UNKNOWN
        for board in ("second", "third"):
            bench.decide(*(text.replace(make_uuid("web01"), make_uuid(board)) for text in fleet_of()))
            assert summarize_plan(bench.plan()) == UNKNOWN, board


def test_a_server_that_was_adopted_before_it_had_a_policy_keeps_its_provision_number(tmp_path: Path) -> None:
    with Bench(tmp_path, initial="adopt") as bench:
        alone = fleet_of(provision=2)[:6]
        bench.decide(fleet("baseURL: 'http://boot.test', requirePolicy: false"), *alone[1:]).plan()
        for provision in (1, 2):  # lowered, and raised again
            bench.decide(*fleet_of(provision))
            plans = [bench.plan() for _ in range(3)]  # it is accepted once all fetches before it are read
            assert summarize_plan(plans[-1]) == INSTALLED


# Lowered


@pytest.mark.parametrize("often", ["Once", "OnImageChange"])
@pytest.mark.parametrize(("first", "lowered"), [(1, 0), (3, 1)])
def test_a_lower_number_withdraws_the_installation_of_a_server_that_was_never_installed(
    bench: Bench, often: str, first: int, lowered: int
) -> None:
    assert summarize_plan(bench.decide(*fleet_of(first, often)).plan()) == TO_INSTALL
    bench.wait(minutes=5).decide(*fleet_of(lowered, often))
    assert [summarize_plan(bench.plan()) for _ in range(2)] == [INSTALLED] * 2
    bench.wait(minutes=5).decide(*fleet_of(lowered + 1, often))
    assert [summarize_plan(bench.plan()) for _ in range(3)][-1] == TO_INSTALL


@pytest.mark.parametrize("often", ["Once", "OnImageChange"])
@pytest.mark.parametrize("lowered", [0, 1])
def test_an_event_names_a_server_that_is_not_installed_because_a_revert_lowers_its_number(
    bench: Bench, often: str, lowered: int
) -> None:
    bench.decide(*fleet_of(lowered or 1, often)).plan()
    bench.decide(*fleet_of(2, often)).plan()
    for _ in range(2):
        bench.decide(*fleet_of(lowered, often))
        assert [summarize_plan(bench.plan()) for _ in range(3)][-1] == INSTALLED
        (event,) = (each for each in bench.events if each.type == "InstallWithdrawn")
        assert event.facts["server"] == "web01"
        assert event.message == (
            f"web01: was never installed, and a commit lowered `provision` to {lowered}, so gitboot does not install "
            f"the server. To install it, raise `provision` above {lowered}"
        )
    bench.decide(*fleet_of(2, often))
    assert [summarize_plan(bench.plan()) for _ in range(3)][-1] == TO_INSTALL


def test_no_event_names_a_server_that_a_lower_number_does_not_affect(bench: Bench) -> None:
    for number in (1, 2, 1):
        bench.decide(*fleet_of(number, "Always")).plan()
        bench.plan()
    assert not [each for each in bench.events if each.type == "InstallWithdrawn"]


def test_a_boot_that_was_fetched_before_the_lower_number_was_accepted_counts(bench: Bench) -> None:
    plan = bench.decide(*fleet_of(1)).plan()
    bench.wait(minutes=5).decide(*fleet_of(0)).plan()
    boot_once(bench, plan, made_at=NOON)
    for provision in (0, 1):
        bench.decide(*fleet_of(provision))
        assert [summarize_plan(bench.plan()) for _ in range(3)][-1] == INSTALLED
    bench.decide(*fleet_of(2))
    assert [summarize_plan(bench.plan()) for _ in range(3)][-1] == TO_INSTALL


def test_a_server_that_returns_with_number_0_is_not_installed(bench: Bench) -> None:
    assert summarize_plan(bench.decide(*fleet_of(1)).plan()) == TO_INSTALL
    bench.decide(SEED[0], *fleet_of()[2:]).plan()
    bench.decide(*fleet_of(0))
    assert [summarize_plan(bench.plan()) for _ in range(3)][-1] == INSTALLED


def test_a_lower_number_does_not_undo_what_an_operator_decides_after_it(bench: Bench) -> None:
    bench.decide(*fleet_of(1)).plan()
    bench.decide(*fleet_of(0)).plan()
    for _ in range(2):
        item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(Record())}
        bench.request("records", items=[item], reason="install it")
        assert summarize_plan(bench.plan()) == TO_INSTALL
        bench.decide(*fleet_of(0), server("web02", "role: web", "provision: 0"))  # another server changes
        assert [summarize_plan(bench.plan()) for _ in range(3)][-1] == TO_INSTALL


@pytest.mark.parametrize("together", [True, False])
def test_a_number_that_was_lowered_before_the_ledger_begins_is_installed(tmp_path: Path, together: bool) -> None:
    """With fresh, no server is installed: the lower number is the first one that the ledger knows."""
    with Bench(tmp_path, initial=None) as bench:
        assert summarize_plan(bench.decide(*fleet_of(3)).plan()) == UNKNOWN
        bench.decide(*fleet_of(1))
        if not together:
            assert summarize_plan(bench.plan()) == UNKNOWN
        bench.request(BeginWithRecords.kind, **build_begin_request("fresh"))
        assert [summarize_plan(bench.plan()) for _ in range(3)][-1] == TO_INSTALL
        bench.decide(*fleet_of(1), server("web02", "role: web", "provision: 0"))
        assert summarize_plan(bench.plan()) == TO_INSTALL


def test_a_number_that_was_lowered_while_the_ledger_was_unverified_withdraws_the_installation(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        assert summarize_plan(bench.decide(*fleet_of(3)).plan()) == TO_INSTALL
    with Bench(tmp_path, initial=None, doubt="RestoredLedger") as bench:
        bench.decide(*fleet_of(3)).plan()
        assert summarize_plan(bench.decide(*fleet_of(1)).plan()) == UNKNOWN
        bench.request(BeginWithRecords.kind, how="as-recorded")
        assert [summarize_plan(bench.plan()) for _ in range(3)][-1] == INSTALLED


@pytest.mark.parametrize(
    ("case", "first", "commits", "expected"),
    [
        ("after the lower number", 3, [("web01", 1), ("board", 1)], UNKNOWN),
        ("with the lower number", 3, [("board", 1)], UNKNOWN),
        ("with number 0", 1, [("board", 0)], UNKNOWN),
        ("after number 0", 1, [("web01", 0), ("board", 0)], UNKNOWN),
        ("with the same number", 3, [("board", 3)], TO_INSTALL),
        ("with a higher number than the lower one", 3, [("web01", 1), ("board", 2)], TO_INSTALL),
    ],
)
def test_a_new_motherboard_is_installed_only_with_a_number_that_was_not_lowered(
    bench: Bench, case: str, first: int, commits: list[tuple[str, int]], expected: tuple[Phase, Cause]
) -> None:
    bench.decide(*fleet_of(first)).plan()
    for machine, number in commits:
        replaces = f", replaces: {make_uuid('web01')}" if machine == "board" else ""
        spec = server("web01", "role: web", f"provision: {number}{replaces}")
        spec = spec.replace(f"uuid: {make_uuid('web01')}", f"uuid: {make_uuid(machine)}")
        bench.decide(SEED[0], spec, *fleet_of()[2:]).plan()
        bench.plan()
    assert summarize_plan(bench.plan()) == expected, case


@pytest.mark.parametrize(
    ("case", "commits", "expected"),
    [
        ("after a removal, a lower number", [("first", 4), None, ("second", 1)], UNKNOWN),
        ("after a removal, the same number", [("first", 4), None, ("second", 3)], UNKNOWN),
        ("after a removal, a higher number", [("first", 4), None, ("second", 4)], TO_INSTALL),
        ("after a lower number, the same number", [("first", 4), ("first", 2), ("second", 3)], UNKNOWN),
        ("after a lower number, without another board", [("first", 4), ("first", 2), ("first", 3)], INSTALLED),
        ("after a lower number, a higher number", [("first", 4), ("first", 2), ("first", 4)], TO_INSTALL),
    ],
)
def test_a_new_motherboard_is_installed_only_with_a_higher_number_than_any_board_before_it(
    bench: Bench, case: str, commits: list[tuple[str, int] | None], expected: tuple[Phase, Cause]
) -> None:
    """The disks were installed with number 3."""
    boot_once(bench, bench.decide(*fleet_of(3)).plan())
    bench.wait(minutes=5).plan()
    replaced = {"first": "web01", "second": "first"}
    for each in commits:
        servers: tuple[str, ...] = ()
        if each is not None:
            machine, number = each
            spec = server("web01", "role: web", f"provision: {number}, replaces: {make_uuid(replaced[machine])}")
            servers = (spec.replace(f"uuid: {make_uuid('web01')}", f"uuid: {make_uuid(machine)}", 1),)
        bench.decide(SEED[0], *servers, *fleet_of()[2:]).plan()
        bench.plan()
    assert summarize_plan(bench.plan()) == expected, case


@pytest.mark.parametrize("is_late", [False, True], ids=["with the commit", "after the commit"])
@pytest.mark.parametrize(("number", "expected"), [(1, UNKNOWN), (2, TO_INSTALL)])
def test_a_new_motherboard_is_not_installed_again_if_the_fetch_of_the_old_one_is_read_late(
    bench: Bench, number: int, expected: tuple[Phase, Cause], is_late: bool
) -> None:
    fetched = bench.decide(*fleet_of(1)).plan()
    spec = server("web01", "role: web", f"provision: {number}, replaces: {make_uuid('web01')}")
    bench.decide(
        SEED[0], spec.replace(f"uuid: {make_uuid('web01')}", f"uuid: {make_uuid('board')}", 1), *fleet_of()[2:]
    )
    if is_late:
        bench.plan()
    boot_once(bench, fetched)
    assert summarize_plan(bench.plan()) == expected
    assert bench.told("ServerUnknown") == (["ServerUnknown"] if expected == UNKNOWN else [])


@pytest.mark.parametrize(("provision", "expected"), [(2, UNKNOWN), (3, TO_INSTALL)])
@pytest.mark.parametrize("restarts", [False, True])
def test_only_a_higher_number_installs_a_new_motherboard_that_exported_records_lack(
    tmp_path: Path, restarts: bool, provision: int, expected: tuple[Phase, Cause]
) -> None:
    """The records were exported before the board was replaced and installed."""

    def replace_board(number: int, role: str = "web") -> tuple[str, ...]:
        spec = server("web01", f"role: {role}", f"provision: {number}, replaces: {make_uuid('web01')}")
        return SEED[0], spec.replace(f"uuid: {make_uuid('web01')}", f"uuid: {make_uuid('board')}", 1), *fleet_of()[2:]

    with Bench(tmp_path) as bench:
        boot_once(bench, bench.decide(*fleet_of()).plan())
        bench.wait(minutes=5).plan()
        exported = {"uuid": make_uuid("web01"), **make_record_fields(require_value(bench.record))}
        boot_once(bench, bench.decide(*replace_board(2)).plan())
        assert summarize_plan(bench.wait(minutes=5).plan()) == INSTALLED
    with Bench(tmp_path, initial=None, doubt="RestoredLedger") as bench:
        bench.decide(*replace_board(2)).plan()
        bench.request("begin", how="records", items=[exported])
        assert summarize_plan(bench.plan()) == UNKNOWN
        if not restarts:
            bench.decide(*replace_board(provision, "web, rack: a")).plan()
            assert summarize_plan(bench.plan()) == expected
    if restarts:
        with Bench(tmp_path) as bench:
            assert summarize_plan(bench.decide(*replace_board(2)).plan()) == UNKNOWN
            bench.decide(*replace_board(provision, "web, rack: a")).plan()
            assert summarize_plan(bench.plan()) == expected


@pytest.mark.parametrize("restarts", [False, True])
def test_a_server_that_was_added_while_the_ledger_was_unverified_stays_unknown_after_records_begin(
    tmp_path: Path, restarts: bool
) -> None:
    added = (*fleet_of(), server("web09", "role: web", "provision: 1"))
    with Bench(tmp_path) as bench:
        bench.decide(*fleet_of()).plan()
    with Bench(tmp_path, initial=None, doubt="RestoredLedger") as bench:
        bench.decide(*fleet_of()).plan()
        bench.decide(*added).plan()
        if not restarts:
            bench.request("begin", how="as-recorded")
            bench.plan()
        assert summarize_plan(bench.servers["web09"].plan) == UNKNOWN
    if restarts:
        with Bench(tmp_path, initial=None) as bench:
            bench.decide(*added).plan()
            bench.request("begin", how="as-recorded")
            bench.plan()
            assert summarize_plan(bench.servers["web09"].plan) == UNKNOWN


@pytest.mark.parametrize("is_declared_before", [False, True])
def test_a_board_that_was_declared_while_the_ledger_was_unverified_stays_unknown_after_records_begin(
    tmp_path: Path, is_declared_before: bool
) -> None:
    plain = server("web01", "role: web", "provision: 2").replace(make_uuid("web01"), make_uuid("board"), 1)
    declared = server("web01", "role: web", f"provision: 2, replaces: {make_uuid('web01')}")
    declared = declared.replace(f"uuid: {make_uuid('web01')}", f"uuid: {make_uuid('board')}", 1)
    with Bench(tmp_path) as bench:
        boot_once(bench, bench.decide(*fleet_of()).plan())
        bench.wait(minutes=5).plan()
        assert summarize_plan(bench.decide(SEED[0], plain, *fleet_of()[2:]).plan()) == UNKNOWN
    with Bench(tmp_path, initial=None, doubt="RestoredLedger") as bench:
        bench.decide(SEED[0], plain, *fleet_of()[2:]).plan()
        if is_declared_before:
            bench.decide(SEED[0], declared, *fleet_of()[2:]).plan()
        bench.request("begin", how="as-recorded")
        assert summarize_plan(bench.plan()) == UNKNOWN
        if not is_declared_before:
            assert summarize_plan(bench.decide(SEED[0], declared, *fleet_of()[2:]).plan()) == TO_INSTALL


def test_a_new_motherboard_of_unknown_state_stays_unknown_if_its_server_is_removed_and_added_again(
    tmp_path: Path,
) -> None:
    spec = server("web01", "role: web", f"provision: 2, replaces: {make_uuid('web01')}")
    board = spec.replace(f"uuid: {make_uuid('web01')}", f"uuid: {make_uuid('board')}", 1)
    replaced = {"uuid": make_uuid("web01"), **make_record_fields(Record(provision=1))}
    with Bench(tmp_path, initial=None) as bench:
        bench.decide(SEED[0], board, *fleet_of()[2:]).plan()
        bench.request("begin", how="records", items=[replaced])
        assert summarize_plan(bench.plan()) == UNKNOWN
        bench.decide(SEED[0], *fleet_of()[2:]).plan()
        bench.decide(SEED[0], board, *fleet_of()[2:]).plan()
        assert summarize_plan(bench.plan()) == UNKNOWN


# Declared


DECLARED = fleet("baseURL: 'http://boot.test', provisioning: {evidence: Declared}")


def declare_server(
    number: int | None, provision: int = 1, often: str = "Once", boots: str = "flatcar-1"
) -> tuple[str, ...]:
    documents = fleet_of(provision, often, boots=boots)
    web01 = documents[1]
    if number is not None:
        web01 = web01.replace("labels:", f"annotations: {{gitboot.dev/provisioned: '{number}'}}, labels:")
        assert web01 != documents[1]
    return (DECLARED, web01, *documents[2:])


@pytest.mark.parametrize(
    ("case", "commits", "expected"),
    [
        ("no declaration", [(None, 1)], TO_INSTALL),
        ("the number that is wanted", [(None, 1), (1, 1)], INSTALLED),
        ("an earlier number", [(None, 1), (1, 2)], TO_INSTALL),
        ("a later number", [(None, 1), (3, 2)], INSTALLED),
        ("declared, then raised", [(1, 1), (1, 2)], TO_INSTALL),
        ("declared ahead, then raised up to it", [(3, 1), (3, 3)], INSTALLED),
        ("declared, lowered, raised again", [(2, 2), (2, 1), (1, 1), (1, 2)], INSTALLED),
    ],
)
def test_an_installation_that_git_declares_is_trusted(
    bench: Bench, case: str, commits: list[tuple[int | None, int]], expected: tuple[Phase, Cause]
) -> None:
    for number, provision in commits:
        plan = bench.decide(*declare_server(number, provision)).plan()
        bench.fetch(plan)  # which is no evidence here
        bench.reconcile()
    assert summarize_plan(bench.plan()) == expected, case


def test_git_can_declare_an_installation_of_an_unverified_server(tmp_path: Path) -> None:
    with Bench(tmp_path, initial={}) as bench:
        assert summarize_plan(bench.decide(*declare_server(None)).plan()) == UNKNOWN
        assert summarize_plan(bench.decide(*declare_server(1)).plan()) == INSTALLED
        assert bench.record is not None and bench.record.evidence == "Declared"


def test_one_provision_number_declares_only_one_image(bench: Bench) -> None:
    assert summarize_plan(bench.decide(*declare_server(1, often="OnImageChange")).plan()) == INSTALLED
    assert (
        summarize_plan(bench.decide(*declare_server(1, often="OnImageChange", boots="flatcar-2")).plan()) == TO_INSTALL
    )
    assert (
        summarize_plan(bench.decide(*declare_server(2, often="OnImageChange", boots="flatcar-2")).plan()) == INSTALLED
    )


# Boots that this instance cannot observe


@pytest.mark.parametrize(
    ("evidence", "observes", "bmc", "override", "boot", "known"),
    [
        ("Fetched", True, False, "Once", "loader", True),
        ("Fetched", False, False, "Once", "loader", False),
        ("Fetched", False, True, "Once", "loader", False),
        ("Fetched", False, True, "Once", "direct", True),  # its override is seen to be consumed
        ("Fetched", False, True, "None", "direct", False),
        ("Fetched", True, True, "None", "direct", True),  # a loader fetches its boot script
        ("Fetched", True, False, "Once", "direct", True),
        ("Fetched", True, False, "Once", "direct iso", False),  # which no loader boots
        ("Fetched", True, True, "None", "direct iso", False),
        ("Fetched", False, True, "Once", "direct iso", True),
        ("Fetched", True, False, "Once", "direct with its UUID", True),
        ("Reported", True, False, "Once", "loader", True),
        ("Reported", False, True, "Once", "loader", False),
        ("Progress", False, True, "Once", "loader", True),
        ("Progress", True, False, "Once", "loader", False),
        ("Progress", True, True, "None", "loader", True),
        ("Progress", False, True, "None", "loader", False),
        ("Progress", True, True, "None", "direct", True),
        ("Progress", True, True, "None", "direct iso", False),
        ("Declared", False, False, "None", "loader", True),
    ],
)
def test_a_boot_that_this_instance_could_not_observe_is_not_offered(
    tmp_path: Path, evidence: str, observes: bool, bmc: bool, override: str, boot: str, known: bool
) -> None:
    direct, kind = boot != "loader", "iso" if "iso" in boot else "uki"
    config = f"configFrom: {'SystemUUID' if 'UUID' in boot else 'None'}" if direct else ""
    with Bench(tmp_path, observes=observes) as bench:
        access = ", bmc: {address: 'https://10.0.0.9', credentials: c}" if bmc else ""
        bench.decide(
            fleet(f"baseURL: 'http://boot.test', provisioning: {{evidence: {evidence}}}"),
            server("web01", "role: web", f"provision: 1{access}"),
            image("flatcar-1", config, kind if direct else "kernel, initrd"),
            profile("web", "flatcar-1", f"httpBoot: {kind}" if direct else "", method="UefiHttp" if direct else "Pxe"),
            policy("web", often="Once", spec=f"override: {override}"),
        )
        assert summarize_plan(bench.plan()) == (TO_INSTALL if known else UNKNOWN)
        assert (bench.condition("EvidenceAvailable") or (None,))[:2] == (
            (True, "Available") if known else (False, "NoEvidence")
        )


# Evidence


def test_a_mirror_with_a_fast_clock_does_not_keep_a_boot_offered(bench: Bench) -> None:
    plan = bench.decide(*fleet_of()).plan()
    boot_once(bench, plan, made_at=NOON + timedelta(days=1))
    assert summarize_plan(bench.wait(seconds=60).plan()) == INSTALLED


def test_evidence_meets_the_provision_key_and_is_reported_once(bench: Bench) -> None:
    plan = bench.decide(*fleet_of(provision=3)).plan()
    boot_once(bench, plan)
    assert plan is not None and plan.boot is not None
    assert bench.record == Record(
        provision=3,
        image="flatcar-1",
        pool="web",
        decision=bench.decisions.servers["web01"].digest,
        evidence="Fetched",
        provisioned_at=NOON,
        grace_until=NOON + timedelta(seconds=60),
        answered=2,
        attempts=(
            InstallAttempt(
                key="provision/3",
                image="flatcar-1",
                boots=(StepEvidence(NOON, "boot/v1/boot/m/boot.ipxe", "10.0.0.7"),),
            ),
        ),
    )
    boot_once(bench, plan)
    given, event = (event for event in bench.events if event.type not in ("Accepted", "Published", "RecordsBegun"))
    assert (given.type, given.message) == (
        "Attempted",
        "web01: attempt 1 at provision/3 was served: 10.0.0.7 fetched boot/v1/boot/m/boot.ipxe at 2026-11-20T12:00:00Z",
    )
    assert (event.type, event.message) == (
        "Provisioned",
        "web01: installed provision 3 with BootImage/flatcar-1, according to its fetches (Fetched)",
    )
    assert event.facts == {
        "server": "web01",
        "uuid": make_uuid("web01"),
        "evidence": "Fetched",
        "image": "flatcar-1",
        "plan": plan.digest,
    }


@pytest.mark.parametrize(("seconds", "expected"), [(0, TO_INSTALL), (59, TO_INSTALL), (60, INSTALLED)])
def test_a_loader_that_tries_again_within_a_minute_still_finds_the_boot(
    bench: Bench, seconds: int, expected: tuple[Phase, Cause]
) -> None:
    boot_once(bench, bench.decide(*fleet_of()).plan())
    plan = bench.wait(seconds=seconds).plan()
    assert summarize_plan(plan) == expected
    assert plan is not None and plan.override is None  # but no override is set


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
def test_a_commit_after_the_installation_installs_again_only_if_it_should(
    bench: Bench, case: str, before: tuple[str, ...], after: tuple[str, ...], expected: tuple[Phase, Cause]
) -> None:
    boot_once(bench, bench.decide(*before).plan())
    assert summarize_plan(bench.wait(minutes=5).decide(*after).plan()) == expected


def test_a_provision_number_that_was_lowered_and_raised_again_installs_nothing_new(bench: Bench) -> None:
    for provision in (2, 1, 2):
        bench.decide(*fleet_of(provision))
        if bench.plan() and summarize_plan(bench.plan()) == TO_INSTALL:
            boot_once(bench, bench.plan())
            bench.wait(minutes=5)
    assert summarize_plan(bench.plan()) == INSTALLED
    assert bench.told("Provisioned") == ["Provisioned"]


def test_a_boot_for_every_time_is_recorded_as_no_installation(bench: Bench) -> None:
    boot_once(bench, bench.decide(*fleet_of(often="Always")).plan())
    assert (bench.record, bench.told()) == (Record(), [])


def test_a_boot_that_was_published_before_a_restart_is_still_evidence(bench: Bench, tmp_path: Path) -> None:
    plan = require_value(bench.decide(*fleet_of(provision=1)).plan())
    bench.close()
    with Bench(tmp_path) as other:
        offer = book.find_offer(other.ledger, plan.digest)
        assert offer is not None and (offer.key, offer.image) == ("provision/1", "flatcar-1")
        other.decide(*fleet_of(provision=2))
        boot_once(other, plan)
        assert other.record is not None and other.record.provision == 1, "it meets the key that it had"
        assert summarize_plan(other.plan()) == TO_INSTALL


def test_the_next_boot_is_offered_ahead_of_its_time(bench: Bench) -> None:
    window = maintenance("repair", "20T13:00 20T14:00", "networkBoot: Once")
    bench.decide(*fleet_of(0, "Once", window)).plan()
    ((_, later), *_) = bench.servers["web01"].later
    bench.wait(hours=1)
    boot_once(bench, later)
    assert bench.record is not None and list(bench.record.runs) == ["repair"]


def test_a_boot_that_was_served_before_the_ledger_was_unverified_counts_after_it_is_verified(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        plan = bench.decide(*fleet_of(1, "OnImageChange")).plan()
    with Bench(tmp_path, initial=None, doubt="RestoredLedger") as bench:
        bench.decide(*fleet_of(1, "OnImageChange"))
        boot_once(bench, plan)
        assert (bench.record, bench.told("Provisioned")) == (None, [])  # the server has no record
        bench.request("begin", how="as-recorded")
        bench.plan()
        assert summarize_plan(bench.plan()) == TO_INSTALL  # for one more minute: its loader may fetch again
        bench.wait(minutes=2)
        assert (summarize_plan(bench.plan()), bench.told("Provisioned")) == (INSTALLED, ["Provisioned"])


# Maintenances


def repair(run: int = 1, often: str = "Once") -> str:
    return maintenance("repair", "20T11:00 20T14:00", f"networkBoot: {often}, run: {run}")


@pytest.mark.parametrize("restarts", [False, True])
def test_an_operator_request_for_a_server_returns_no_boot_of_a_maintenance(tmp_path: Path, restarts: bool) -> None:
    """The operator may have looked before that boot was used, and the instance may be down at that time."""
    item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(Record())}
    with ExitStack() as stack:
        bench = stack.enter_context(Bench(tmp_path))
        boot_once(bench, bench.decide(*fleet_of(1, "Once", repair())).plan())
        if restarts:
            bench = stack.enter_context(Bench(tmp_path, initial=None))
            bench.decide(*fleet_of(1, "Once", repair()))
        bench.request("records", items=[item], reason="once more")
        assert summarize_plan(bench.wait(seconds=120).plan()) != (Phase.MAINTENANCE, Cause.MAINTENANCE)
        assert bench.record is not None and bench.record.runs["repair"].run == 1


def test_a_maintenance_of_an_adopted_ledger_gets_no_minute_of_grace(tmp_path: Path) -> None:
    with Bench(tmp_path, initial=None) as bench:
        bench.decide(*fleet_of(1, "Once", repair())).plan()
        bench.request(BeginWithRecords.kind, **build_begin_request("adopt"))
        assert summarize_plan(bench.plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)


def test_a_one_time_maintenance_is_done_a_minute_after_its_fetch(bench: Bench) -> None:
    plan = bench.decide(*fleet_of(0, "Once", repair())).plan()
    assert summarize_plan(plan) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    boot_once(bench, plan)
    assert bench.record is not None and bench.record.runs == {
        "repair": Run(1, NOON, at("20T14:00"), given=StepEvidence(NOON, "boot/v1/boot/m/boot.ipxe", "10.0.0.7"))
    }
    assert bench.record.evidence == "Adopted"  # a maintenance proves nothing about provisioning
    (event,) = [event for event in bench.events if event.type not in ("Accepted", "Published", "RecordsBegun")]
    assert (event.type, event.message) == (
        "MaintenanceBooted",
        "web01: booted run 1 of Maintenance/repair (Fetched)",
    )
    assert summarize_plan(bench.wait(seconds=59).plan()) == (Phase.MAINTENANCE, Cause.MAINTENANCE)
    assert summarize_plan(bench.wait(seconds=1).plan()) == (Phase.DISK, Cause.MAINTENANCE_DONE)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (2, (Phase.MAINTENANCE, Cause.MAINTENANCE)),  # another run is another boot
        (1, (Phase.DISK, Cause.MAINTENANCE_DONE)),
        (0, (Phase.DISK, Cause.MAINTENANCE_DONE)),  # a run that was withdrawn does not count
    ],
)
def test_a_maintenance_boots_once_for_each_run(bench: Bench, run: int, expected: tuple[Phase, Cause]) -> None:
    boot_once(bench, bench.decide(*fleet_of(0, "Once", repair(1))).plan())
    assert summarize_plan(bench.wait(minutes=2).decide(*fleet_of(0, "Once", repair(run))).plan()) == expected


def test_a_maintenance_that_always_boots_is_never_done(bench: Bench) -> None:
    boot_once(bench, bench.decide(*fleet_of(0, "Once", repair(often="Always"))).plan())
    assert bench.record is not None and bench.record.runs == {}
    assert bench.told() == []


def test_a_fetch_during_a_maintenance_installs_nothing_and_ends_no_installation(bench: Bench) -> None:
    boot_once(bench, bench.decide(*fleet_of(1, "Once", repair())).plan())
    assert summarize_plan(bench.wait(hours=2).plan()) == TO_INSTALL


# Consumed without evidence


def test_an_override_consumed_without_evidence_waits_half_an_hour_and_then_needs_an_operator(bench: Bench) -> None:
    bench.decide(*fleet_of()).plan()
    lose_evidence(bench)
    plan = bench.plan()
    assert summarize_plan(plan) == TO_INSTALL
    assert plan is not None and plan.override is None  # no override is set between its consumption and evidence
    assert plan.next_transition == NOON + timedelta(minutes=30)
    assert summarize_plan(bench.wait(minutes=30).plan()) == (Phase.DISK, Cause.CONSUMED)


def test_the_wait_for_evidence_begins_once(bench: Bench) -> None:
    bench.decide(*fleet_of()).plan()
    uuid = bench.decisions.servers["web01"].uuid
    learning = LedgerUpdate(bench.snapshot, NOON)
    for minutes in (0, 10):
        record_override_consumed(learning, uuid, "web01", "provision/1", NOON + timedelta(minutes=minutes))
    record = learning.record(uuid)
    assert record is not None and record.consumed_at == NOON


def test_late_evidence_ends_the_wait(bench: Bench) -> None:
    bench.decide(*fleet_of()).plan()
    lose_evidence(bench)
    boot_once(bench, bench.wait(minutes=5).plan())
    assert bench.record is not None and (bench.record.provision, bench.record.consumed_at) == (1, None)


# Together with the ledger


def test_a_reconcile_without_new_facts_writes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = bench.decide(*fleet_of()).plan()
    boot_once(bench, plan)
    bench.plan()

    def refuse(*_: object) -> None:
        raise AssertionError("written")

    monkeypatch.setattr(Unsynced, "writing", refuse)
    bench.plan()
    assert bench.record is not None and bench.record.provision == 1
