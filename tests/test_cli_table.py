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
    shown = table(HEADER, [("web01", click.style("red " * 40, fg="red"), "y")])
    assert shown.count(click.style("red " * 19 + "red", fg="red")) == 2
