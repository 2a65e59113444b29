"""The ledger: what it keeps, across restarts, crashes and threads, and what it refuses to read."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.errors import LedgerError
from gitboot.ledger import VERSION, Ledger, copy_ledger
from gitboot.model.scalars import Digest, SystemUuid
from gitboot.override import Armed, Enabled, Marks, Override, State, Target
from gitboot.plan import Record
from gitboot.report import Event
from tests.fleets import at, uuid_of

WEB01, WEB02 = SystemUuid(uuid_of("web01")), SystemUuid(uuid_of("web02"))
NOON = at("20T12:00")
ONCE = Override(enabled=Enabled.ONCE, target=Target.PXE, mode="UEFI")


def armed(reason: str = "provision/1", state: State = State.RECORDED) -> Armed:
    return Armed(reason=reason, plan_digest="d" * 64, override=ONCE, marks=Marks(), state=state, at=NOON)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def written(path: Path) -> None:
    """A ledger with something of everything in it."""
    with Ledger.open(path) as ledger:
        ledger.accept("c0ffee")
        ledger.tell("fresh")
        ledger.write_records([(WEB01, "web01", Record(provision=1, runs={"repair": (0, NOON)}))])
        ledger.write_armed(WEB01, armed())
        ledger.write_event(Event(at=NOON, type="Accepted", message="c0ffee"))


# Opening


def test_each_new_ledger_has_an_identity_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    identities = []
    for name in ("one", "other", "one"):
        with Ledger.open(tmp_path / name) as ledger:
            identities.append(ledger.identity)
    assert identities[0] == identities[2] != identities[1]
    assert len(identities[0]) == 36


@pytest.mark.parametrize(
    ("case", "data"),
    [
        ("it is text", b"this was never a database, only some text of some length\n" * 30),
        ("its header is overwritten", None),
        ("its schema is overwritten", None),
    ],
)
def test_a_damaged_file_is_refused_with_its_name_and_what_to_do(path: Path, case: str, data: bytes | None) -> None:
    written(path)
    found = bytearray(path.read_bytes())
    if case == "its header is overwritten":
        found[:16] = b"\xff" * 16
    elif case == "its schema is overwritten":
        found[100:4096] = b"\xff" * 3996
    path.write_bytes(data or found)
    with pytest.raises(LedgerError, match=r"ledger\.sqlite: the ledger cannot be read .*restore it from a backup"):
        Ledger.open(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE armed SET marks = '{'",
        "UPDATE armed SET state = 'Nonsense'",
        "UPDATE armed SET at = 'yesterday'",
        "UPDATE armed SET override = '{}'",
        "DROP TABLE armed",
    ],
)
def test_rows_that_gitboot_would_not_have_written_are_refused(path: Path, change: str) -> None:
    written(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(change)
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger.open(path)


def test_the_ledger_of_a_newer_gitboot_is_refused_and_left_alone(path: Path) -> None:
    written(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=f"is of version {VERSION + 1}, this gitboot knows {VERSION}; use a newer"):
        Ledger.open(path)
    assert path.read_bytes() == before


def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="unable to open"):
        Ledger.open(tmp_path / "missing" / "ledger.sqlite")


def test_what_the_disk_refuses_is_an_error_of_the_ledger_and_changes_nothing(path: Path) -> None:
    written(path)
    with Ledger.open(path) as ledger:
        ledger._store._connection.execute("PRAGMA query_only = ON")
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.accept("decade")
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.write_armed(WEB01, armed(state=State.CONFIRMED))
        assert ledger.accepted == "c0ffee"
        assert ledger.armed(WEB01) == (armed(),)
        ledger._store._connection.execute("PRAGMA query_only = OFF")
        ledger.accept("decade")
        assert ledger.accepted == "decade"


# What is kept

INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
RECORDS = st.builds(
    Record,
    provision=st.none() | st.integers(0, 10**18),
    image=st.none() | TEXTS,
    pool=st.none() | TEXTS,
    decision=st.none() | st.just(Digest("a" * 64)),
    evidence=st.none() | st.sampled_from(["Fetched", "Spent", "Adopted"]),
    met_at=st.none() | INSTANTS,
    grace_until=st.none() | INSTANTS,
    spent_at=st.none() | INSTANTS,
    runs=st.dictionaries(TEXTS, st.tuples(st.integers(0, 10**9), INSTANTS), max_size=3),
)
ARMED = st.builds(
    Armed,
    reason=st.sampled_from(["provision/1", "maintenance/repair/0", "disk"]),
    plan_digest=TEXTS,
    override=st.builds(
        Override,
        enabled=st.sampled_from(Enabled),
        target=st.sampled_from(Target) | TEXTS,
        mode=st.none() | st.sampled_from(["UEFI", "Legacy"]),
        http_boot_uri=st.none() | TEXTS,
    ),
    marks=st.builds(
        Marks, last_reset_time=st.none() | TEXTS, boot_progress_time=st.none() | TEXTS, settled=st.booleans()
    ),
    state=st.sampled_from(State),
    at=INSTANTS,
    corrections=st.lists(INSTANTS, max_size=3).map(tuple),
)


@contextmanager
def unsynced(path: Path) -> Iterator[Ledger]:
    """A ledger that does not wait for the disk at each write."""
    with Ledger.open(path) as ledger:
        ledger._store._connection.execute("PRAGMA synchronous = OFF")
        yield ledger


@contextmanager
def reopened() -> Iterator[tuple[Ledger, Path]]:
    """A ledger of a moment, and where it lies for whoever opens it once more."""
    with TemporaryDirectory() as folder, unsynced(Path(folder) / "ledger.sqlite") as ledger:
        yield ledger, Path(folder) / "ledger.sqlite"


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from([WEB01, WEB02]), RECORDS), max_size=4))
def test_records_come_back_as_they_were_written_last(given_records: list[tuple[SystemUuid, Record]]) -> None:
    with reopened() as (ledger, path):
        for uuid, record in given_records:
            ledger.write_records([(uuid, "a name", record)])
        with Ledger.open(path) as again:
            assert again.records() == ledger.records() == dict(given_records)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from([WEB01, WEB02]), ARMED), max_size=5))
def test_what_was_armed_comes_back_one_a_reason(given_armed: list[tuple[SystemUuid, Armed]]) -> None:
    with reopened() as (ledger, path):
        for uuid, each in given_armed:
            ledger.write_armed(uuid, each)
        last = {(uuid, each.reason): each for uuid, each in given_armed}
        with Ledger.open(path) as again:
            for uuid in (WEB01, WEB02):
                expected = tuple(each for (of, _), each in sorted(last.items()) if of == uuid)
                assert ledger.armed(uuid) == again.armed(uuid) == expected


def test_a_list_of_records_is_written_whole_or_not_at_all(path: Path) -> None:
    with Ledger.open(path) as ledger:
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.write_records([(WEB01, "web01", Record()), (WEB02, None, Record())])  # type: ignore[list-item]
        assert ledger.records() == {}
        ledger.write_records([(WEB01, "web01", Record())])
        assert ledger.records() == {WEB01: Record()}


def test_events_come_back_in_the_order_in_which_they_happened_whatever_the_clock_said(path: Path) -> None:
    with Ledger.open(path) as ledger:
        for hour, type in ((12, "Accepted"), (11, "Published"), (12, "Refused")):
            instant = NOON.replace(hour=hour)
            ledger.write_event(Event(at=instant, type=type, message="m", facts={"server": "web01", "count": 2}))
    with Ledger.open(path) as ledger:
        found = list(ledger.events())
    assert [event["type"] for event in found] == ["Accepted", "Published", "Refused"]
    assert found[1] == {
        "at": "2026-11-20T11:00:00Z",
        "type": "Published",
        "message": "m",
        "server": "web01",
        "count": 2,
    }


def test_what_a_ledger_was_told_ends_its_doubt_and_stays(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert not ledger.told
        ledger.doubt_it("DamagedLedger")
    with Ledger.open(path) as ledger:
        assert ledger.doubt == "DamagedLedger"
        ledger.tell("adopt")
    with Ledger.open(path) as ledger:
        assert (ledger.told, ledger.doubt) == (True, None)


def test_the_accepted_commit_is_the_last_one_until_it_is_forgotten(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert ledger.accepted is None
        ledger.accept("one")
        ledger.accept("two")
    with Ledger.open(path) as ledger:
        assert ledger.accepted == "two"
        ledger.forget_accepted()
        assert ledger.accepted is None


# Crashes, threads, copies

_CHILD = """
import os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from gitboot.ledger import Ledger
from gitboot.override import OFF, Armed, Marks, State
from gitboot.plan import Record
at = datetime(2026, 11, 20, 12, tzinfo=UTC)
ledger = Ledger.open(Path(sys.argv[1]))
ledger.accept("c0ffee")
ledger.write_records([(sys.argv[2], "web01", Record(provision=1))])
ledger.write_armed(
    sys.argv[2], Armed(reason="r", plan_digest="d", override=OFF, marks=Marks(), state=State.RECORDED, at=at)
)
ledger._store._connection.execute("BEGIN IMMEDIATE")
ledger._store._connection.execute("UPDATE records SET provision = 2")
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_writer(path: Path) -> None:
    """What a process leaves that is killed right after three writes, in the middle of a fourth."""
    child = subprocess.run([sys.executable, "-c", _CHILD, str(path), WEB01], check=False)
    assert child.returncode == -signal.SIGKILL


def test_a_process_that_is_killed_leaves_every_write_that_returned_and_no_half_of_another(path: Path) -> None:
    killed_writer(path)
    with Ledger.open(path) as ledger:
        assert ledger.accepted == "c0ffee"
        assert ledger.records() == {WEB01: Record(provision=1)}
        assert [each.state for each in ledger.armed(WEB01)] == [State.RECORDED]


def test_every_write_asks_the_disk_to_keep_it(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert ledger._store._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: each commit is synced


def test_two_threads_write_without_losing_anything(path: Path) -> None:
    with unsynced(path) as ledger:

        def write(uuid: SystemUuid) -> None:
            for number in range(40):
                ledger.write_armed(uuid, armed(f"maintenance/m/{number}"))
                ledger.write_event(Event(at=NOON, type="E", message=uuid))
                assert len(ledger.armed(uuid)) == number + 1

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(write, (WEB01, WEB02)))
        events = [event["message"] for event in ledger.events()]
        assert (events.count(WEB01), events.count(WEB02)) == (40, 40)
    with Ledger.open(path) as ledger:
        assert (len(ledger.armed(WEB01)), len(ledger.armed(WEB02))) == (40, 40)


@pytest.mark.parametrize("left", ["closed", "killed", "in use"])
def test_a_copy_has_everything_and_leaves_no_trace(tmp_path: Path, left: str) -> None:
    folder, copy = tmp_path / "state", tmp_path / "copy.sqlite"
    folder.mkdir()
    path = folder / "ledger.sqlite"
    if left == "killed":
        killed_writer(path)
    else:
        written(path)

    def look() -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in folder.iterdir() if not each.name.endswith("-shm")}

    if left == "in use":
        with Ledger.open(path) as ledger:
            ledger.accept("decade")
            before = look()
            copy_ledger(path, copy, in_use=True)
            assert look() == before
    else:
        before, names = look(), sorted(each.name for each in folder.iterdir())
        copy_ledger(path, copy, in_use=False)
        assert (look(), sorted(each.name for each in folder.iterdir())) == (before, names)
    with Ledger.open(copy) as copied:
        assert copied.accepted == ("decade" if left == "in use" else "c0ffee")
        assert set(copied.records()) == {WEB01}
