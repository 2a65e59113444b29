"""What is kept of history: found again, and made anew wherever it was damaged, foreign or could not be written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gitboot.audit import steps
from gitboot.audit.effects import Change, EffectKind, ServerEffect
from gitboot.audit.steps import Steps
from gitboot.model.scalars import SystemUuid

ONE, TWO = SystemUuid("one"), SystemUuid("two")
CHANGED = ServerEffect(server="web01", kind=EffectKind.CHANGED, changes=(Change(field="macs", old=["a"], new=None),))
REMOVED = ServerEffect(server="web01", kind=EffectKind.REMOVED, changes=())
EFFECTS = {ONE: CHANGED, TWO: ServerEffect(server="web02", kind=EffectKind.ADDED, changes=())}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "gitboot" / "history.sqlite"


def fill(path: Path) -> None:
    with Steps.open(path) as kept:
        kept.keep("a", "b", EFFECTS)
        kept.keep_problem("a", None)
        kept.keep_problem("bad", "a.yaml:1:1: GB1001: no")


def test_what_was_kept_is_found_again(path: Path) -> None:
    fill(path)
    with Steps.open(path) as kept:
        assert kept.effect("a", "b", ONE) == kept.effect("a", "b", "web01") == ((ONE, CHANGED),)
        assert kept.effect("a", "b", "web03") == (None,)
        assert kept.effect("b", "a", ONE) is None
        assert (kept.problem("a"), kept.problem("bad"), kept.problem("c")) == (
            *((None,), ("a.yaml:1:1: GB1001: no",)),
            None,
        )


def test_a_name_is_its_new_bearers_and_not_the_removed_ones(path: Path) -> None:
    with Steps.open(path) as kept:
        kept.keep("a", "b", {ONE: REMOVED, TWO: CHANGED})
        assert kept.effect("a", "b", "web01") == ((TWO, CHANGED),)
        kept.keep("b", "c", {ONE: REMOVED})
        assert kept.effect("b", "c", "web01") == ((ONE, REMOVED),)


def test_keeping_a_step_again_changes_nothing(path: Path) -> None:
    fill(path)
    fill(path)
    with Steps.open(path) as kept:
        assert kept.effect("a", "b", TWO) == ((TWO, EFFECTS[TWO]),)


def test_what_another_gitboot_wrote_is_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(steps, "this_program", lambda: b"another")
        fill(path)
    with Steps.open(path) as kept:
        assert kept.effect("a", "b", ONE) is None
        kept.keep("a", "b", EFFECTS)
    with Steps.open(path) as kept:
        assert kept.effect("a", "b", ONE) is not None


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


@pytest.mark.parametrize("case", ["no database", "empty", "torn", "another database", "values that are no JSON"])
def test_a_damaged_file_is_made_anew(path: Path, case: str) -> None:
    fill(path)
    match case:
        case "no database":
            path.write_bytes(b"\0garbage" * 999)
        case "empty":
            path.write_bytes(b"")
        case "torn":
            overwrite(path, 4096, b"\xff" * (path.stat().st_size - 4096))
        case "another database":
            path.unlink()
            with sqlite3.connect(path) as other:
                other.execute("CREATE TABLE recipes (name)")
            other.close()
        case _:
            with sqlite3.connect(path) as ours:
                ours.execute("UPDATE effect SET changes = '{'")
            ours.close()
    with Steps.open(path) as kept:
        assert kept.effect("a", "b", ONE) is None
        kept.keep("a", "b", EFFECTS)
        assert kept.effect("a", "b", ONE) == ((ONE, CHANGED),)
    with Steps.open(path) as kept:
        kept.keep("a", "b", EFFECTS)
    with Steps.open(path) as kept:
        assert kept.effect("a", "b", ONE) == ((ONE, CHANGED),)


@pytest.mark.parametrize("name", ["file/history.sqlite", None])
def test_without_a_place_to_write_it_is_kept_for_this_once(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "file").write_text("")
    with Steps.open(tmp_path / name if name else None) as kept:
        kept.keep("a", "b", EFFECTS)
        assert kept.effect("a", "b", ONE) == ((ONE, CHANGED),)


def test_a_disk_that_refuses_costs_nothing_but_time(path: Path) -> None:
    fill(path)
    with Steps.open(path) as kept, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")  # refuses whatever is written, as a full disk does
        kept.keep("b", "c", EFFECTS)
        assert kept.effect("b", "c", ONE) == ((ONE, CHANGED),)
    with Steps.open(path) as kept:
        assert kept.effect("a", "b", ONE) == ((ONE, CHANGED),)
