"""Tables for people."""

from __future__ import annotations

import click

from gitboot.cli.table import table

HEADER = ("SERVER", "SEEN", "RECORDED")


def lines(*rows: tuple[str, str, str]) -> list[str]:
    return click.unstyle(table(HEADER, rows, shortened=(2, 1))).splitlines()


def test_a_table_that_fits_is_shown_whole() -> None:
    assert lines(("web01", "x" * 40, "y" * 50))[1] == f"web01   {'x' * 40}  {'y' * 50}"


def test_what_may_be_shortened_is_until_it_fits_the_first_first() -> None:
    assert lines(("web01", "x" * 60, "y" * 50))[1] == f"web01   {'x' * 60}  {'y' * 29}…"


def test_what_is_cut_keeps_its_colour() -> None:
    shown = table(HEADER, [("web01", click.style("x" * 99, fg="red"), "y")], shortened=(1,))
    assert click.style(f"{'x' * 81}…", fg="red") in shown
    assert max(map(len, click.unstyle(shown).splitlines())) == 100


def test_a_name_is_whole_whatever_it_takes_and_no_column_ends_within_its_header() -> None:
    header, row = lines(("n" * 120, "x" * 20, "y" * 30))
    assert row == f"{'n' * 120}  xxx…  yyyyyyy…"
    assert header.split() == list(HEADER)
