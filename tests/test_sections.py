"""What is kept in sections is checked where it is read, and nowhere else; what is damaged never counts."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gitboot import sections
from gitboot.caches import Unusable
from gitboot.sections import Sections, Spoilt, keep_sections
from tests.kept import in_bytes, of_bytes

KEY = b"k" * 32
VALUES = {"few": b"what is said once", "none": b""}
TABLES = {
    "servers": {f"web{number:03}": bytes([number]) * 40 for number in range(100)},
    "empty": {},
    "one": {"": b"a name may be empty"},
}
Said = tuple[dict[str, bytes], dict[str, dict[str, bytes]]]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are many blocks, of few records each."""
    monkeypatch.setattr(sections, "BLOCK", 200)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "one.snapshot"


@pytest.fixture
def written(path: Path) -> Path:
    keep(path)
    return path


def keep(path: Path, key: bytes = KEY, extra: str = "") -> None:
    tables = {name: iter((each + extra, record) for each, record in table.items()) for name, table in TABLES.items()}
    keep_sections(path, key, VALUES, tables)


def opened(path: Path, warned: list[Unusable] | None = None) -> Sections | None:
    return Sections.open(path, KEY, (warned if warned is not None else []).append)


def said(found: Sections) -> Said:
    """All that it says."""
    return {name: found.value(name) for name in VALUES}, {name: dict(found.table(name)) for name in TABLES}


def test_what_was_written_is_read_and_private(written: Path) -> None:
    found = opened(written)
    assert found is not None and said(found) == (VALUES, TABLES)
    assert (written.stat().st_mode & 0o777, written.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert said(of_bytes(in_bytes(VALUES, {name: each.items() for name, each in TABLES.items()}))) == said(found)


def test_a_table_is_a_mapping_in_the_order_of_its_names(written: Path) -> None:
    found = opened(written)
    assert found is not None
    servers = found.table("servers")
    assert (len(servers), list(servers)) == (100, sorted(TABLES["servers"]))
    assert servers["web042"] == TABLES["servers"]["web042"]
    for name in ("", "a", "web", "web0420", "web099z", "zzz"):
        assert (servers.get(name), name in servers) == (None, False)
    assert ("web042" in servers, found.table("empty").get("web042"), found.table("one")[""]) == (
        True,
        None,
        TABLES["one"][""],
    )


def test_only_what_is_asked_for_is_read(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = opened(written)
    assert found is not None
    read: list[int] = []
    pread = os.pread

    def noted(fd: int, length: int, at: int) -> bytes:
        read.append(length)
        return pread(fd, length, at)

    monkeypatch.setattr(os, "pread", noted)
    servers = found.table("servers")
    assert (len(servers), read) == (100, [])
    assert [servers[f"web00{number}"] for number in (0, 1, 2)] == [bytes([number]) * 40 for number in (0, 1, 2)]
    assert len(read) == 1 and read[0] < 300


def test_damage_anywhere_is_noticed_by_whom_it_concerns_and_by_nobody_else(written: Path) -> None:
    whole = written.read_bytes()
    for position in range(32, len(whole), 7):
        written.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        warned: list[Unusable] = []
        found = opened(written, warned)
        if found is None:
            assert warned == [Unusable.DAMAGED]
            continue
        parts = [("value", name) for name in VALUES] + [("table", name) for name in TABLES]
        wrong = 0
        for kind, name in parts:
            try:
                read = found.value(name) if kind == "value" else dict(found.table(name))
            except Spoilt:
                wrong += 1
            else:
                assert read == {**VALUES, **TABLES}[name]
        assert (wrong, warned, written.exists()) == (1, [Unusable.DAMAGED], False)


def test_a_file_that_is_cut_short_or_goes_on_does_not_count(written: Path) -> None:
    whole = written.read_bytes()
    for length in (*range(100), *range(100, len(whole), 50), len(whole) - 1):
        written.write_bytes(whole[:length])
        assert opened(written) is None
    written.write_bytes(whole + b"\0")
    assert opened(written) is None
    written.write_bytes(whole)
    assert opened(written) is not None


def test_a_file_that_is_cut_short_while_it_is_read_is_damaged(written: Path) -> None:
    warned: list[Unusable] = []
    found = opened(written, warned)
    assert found is not None
    assert found.table("servers")["web000"] == bytes(40)
    os.truncate(written, 500)
    with pytest.raises(Spoilt):
        found.table("servers")["web099"]
    assert (warned, written.exists()) == ([Unusable.DAMAGED], False)


def test_who_has_it_open_reads_on_whatever_becomes_of_the_file(written: Path) -> None:
    first, second = opened(written), opened(written)
    assert first is not None and second is not None
    keep(written, extra="-new")
    assert said(first) == (VALUES, TABLES)
    third = opened(written)
    assert third is not None and "web001-new" in third.table("servers")
    written.unlink()
    assert said(second) == (VALUES, TABLES)


def test_a_damaged_file_that_was_replaced_is_not_deleted(written: Path) -> None:
    found = opened(written)
    assert found is not None
    with written.open("r+b") as file:
        file.seek(150)
        file.write(b"damage")
    keep(written, extra="-new")
    with pytest.raises(Spoilt):
        said(found)
    again = opened(written)
    assert again is not None and len(again.table("servers")) == 100


def test_all_of_it_can_be_checked(written: Path) -> None:
    found = opened(written)
    assert found is not None
    assert sum(1 for _ in found.check()) > 20
    with written.open("r+b") as file:
        file.seek(2000)
        file.write(b"damage")
    with pytest.raises(Spoilt):
        list(found.check())


def test_what_was_written_with_another_key_does_not_count(path: Path) -> None:
    keep(path, b"a stranger's")
    warned: list[Unusable] = []
    assert (opened(path, warned), warned) == (None, [Unusable.DAMAGED])


def test_what_another_program_wrote_does_not_count(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "this_program", lambda: b"p" * 32)
    warned: list[Unusable] = []
    assert (opened(written, warned), warned) == (None, [])


def test_what_others_may_write_does_not_count(written: Path) -> None:
    written.chmod(0o620)
    warned: list[Unusable] = []
    assert (opened(written, warned), warned) == (None, [Unusable.OPEN])


def test_those_who_write_at_once_leave_one_that_is_whole(path: Path) -> None:
    def one(number: int) -> None:
        draw = random.Random(number)
        for _ in range(10):
            keep(path, extra=f"-{draw.randint(0, 9)}")
            found = opened(path)
            assert found is not None
            names = list(found.table("servers"))
            assert len({name.partition("-")[2] for name in names}) == 1
            assert dict(found.table("servers")) == {
                f"{name}-{names[0].partition('-')[2]}": record for name, record in TABLES["servers"].items()
            }

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(4)))
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_where_it_cannot_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    keep(tmp_path / "cache" / "one.snapshot")
    assert (tmp_path / "cache").read_bytes() == b""
