"""Tables for people."""

from __future__ import annotations

import re

import click
import pytest
from rich.cells import cell_len

from gitboot.cli.terminal import growing, progress, table
from gitboot.standard_streams import style
from tests.helpers.disks_and_terminals import terminal

HEADER = ("SERVER", "SEEN", "RECORDED")


def lines(*rows: tuple[str, str, str]) -> list[str]:
    return click.unstyle(table(HEADER, rows, shortened=(2, 1))).splitlines()


def test_a_table_that_fits_is_shown_whole() -> None:
    assert lines(("web01", "x" * 40, "y" * 50))[1] == f"web01   {'x' * 40}  {'y' * 50}"


def test_what_may_be_shortened_is_until_it_fits_the_first_first() -> None:
    assert lines(("web01", "x" * 60, "y" * 50))[1] == f"web01   {'x' * 60}  {'y' * 29}…"


def test_what_is_cut_keeps_its_colour() -> None:
    shown = table(HEADER, [("web01", style("x" * 99, fg="red"), "y")], shortened=(1,))
    assert style(f"{'x' * 81}…", fg="red") in shown
    assert max(map(len, click.unstyle(shown).splitlines())) == 100


def test_what_may_not_be_shortened_goes_on_in_the_next_lines_names_at_last() -> None:
    rows = [("web01", "a long reason " * 8, "y"), ("web02", "none", "z")]
    shown = click.unstyle(table(HEADER, rows)).splitlines()
    assert max(map(len, shown)) <= 100
    assert [line.split()[0] for line in shown] == ["SERVER", "web01", "reason", "web02"]
    assert shown[2].startswith(" " * 8 + "reason") and "a long reason a long" in shown[1]
    header, first, second = lines(("n" * 120, "x" * 20, "y" * 30))
    assert (first, second) == (f"{'n' * 84}  xxx…  yyyyyyy…", "n" * 36)
    assert header.split() == list(HEADER)


def test_a_kind_and_its_name_are_folded_between_the_two() -> None:
    rows = [("web01", f"one {'x' * 30} two", f"BootPolicy/{'control-plane' * 4}")]
    shown = click.unstyle(table(HEADER, rows)).splitlines()
    assert max(map(len, shown)) <= 100
    assert shown[1].endswith(" two  BootPolicy/") and shown[2].strip() == "control-plane" * 4


def test_what_is_folded_keeps_its_colour() -> None:
    shown = table(HEADER, [("web01", style("red " * 40, fg="red"), "y")])
    assert shown.count(style("red " * 19 + "red", fg="red")) == 2


def test_wide_letters_count_as_two_and_are_folded_whole() -> None:
    rows = [("机架" * 5, "日本語" * 20, "e\u0301" * 10), ("web02", "b", "c")]
    shown = click.unstyle(table(HEADER, rows)).splitlines()
    assert max(map(cell_len, shown)) <= 100
    assert (
        "".join(line[10:].split()[0] if at else line.split()[1] for at, line in enumerate(shown[1:3])) == "日本語" * 20
    )
    assert [line.rindex("c") for line in shown[-1:]] == [cell_len(shown[1][: shown[1].index("e\u0301")])]


@pytest.mark.parametrize("columns", [80, 40])
def test_a_narrow_terminal_has_narrower_tables(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    long = table(["SOMETHING"] * 6, [["w" * 63, "两" * 30, "a b c " * 9, "d/e" * 20, "-", "x"]], below=["    where"])
    assert max(map(cell_len, click.unstyle(long).splitlines())) == columns
    assert long.endswith("\n    where")


def test_what_nobody_gave_a_header_has_none_and_what_is_indented_fits_too() -> None:
    shown = table(("", ""), [("field", "value " * 40)], indent=4).splitlines()
    assert shown[0].startswith("    field  value") and 90 < max(map(len, shown)) <= 100


def test_a_bar_is_for_who_looks_and_gone_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("BMCs", 3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")
    with terminal() as sent, growing("BMCs") as (of, advance):
        of(3)
        advance(2)
    assert re.search(r"BMCs.* 2/3 ", click.unstyle(sent[0]))
    assert sent[0].endswith("\x1b[2K")  # what a terminal takes as: nothing is on this line
