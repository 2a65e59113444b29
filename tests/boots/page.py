"""boots.md: the matrix and the console of each boot, written by the tests that made it (`--write-boots`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

PROPERTY: Final = "boot"  # of a test: its seconds and its console
PAGE: Final = Path(__file__).parent / "boots.md"
ROWS_MARKER: Final = "<!-- What follows is written by the tests: make test-boot BOOTS=--write-boots -->\n"

_ROW: Final = re.compile(
    r"^### (?P<file>test_\w+\.py) · (?P<words>.+?)(?: · (?P<by>[\w-]+))?\n\n(?P<rest>.*?)(?=^### |\Z)",
    re.MULTILINE | re.DOTALL,
)
_SECONDS: Final = re.compile(r"^(\d+) s\n\n```\n(.*?)\n```", re.DOTALL)
_SHOWN_LINES: Final = re.compile(
    r"gitboot: |BOOTED |inventory: |Start (?:PXE|HTTP)|Welcome to GRUB|^iPXE \d|PXELINUX|No more network"
    r"|bad shim signature|Access Denied|Could not retrieve NBP"
)
_URL_BEFORE_REASON: Final = re.compile(r" from \S+(?=: Access Denied)")  # a long URL before the reason
_WIDEST: Final = 118
_MOST_LINES: Final = 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One boot: the test in words, the program that served its machine, and the text on its console."""

    file: str
    words: str
    by: str  # "": the test has one boot only
    seconds: int
    excerpt: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.words, self.by

    @classmethod
    def of(cls, nodeid: str, seconds: float, console_text: str) -> Row:
        file, words, by = parse_key(nodeid)
        return cls(file=file, words=words, by=by, seconds=round(seconds), excerpt=_excerpt(console_text))


def parse_key(nodeid: str) -> tuple[str, str, str]:
    """A test's key from its id: ``tests/boots/test_x.py::test_a_b[c]``."""
    path, _, name = nodeid.partition("::")
    words, _, parameters = name.removesuffix("]").partition("[")
    return Path(path).name, words.removeprefix("test_").replace("_", " "), parameters


def _excerpt(console_text: str) -> str:
    lines = [
        _URL_BEFORE_REASON.sub("", line.strip()) for line in console_text.splitlines() if _SHOWN_LINES.search(line)
    ]
    shown = [line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…" for line in dict.fromkeys(lines)]
    return "\n".join(shown[:_MOST_LINES])


def read_rows() -> list[Row]:
    """Return the rows of the page."""
    found = []
    for row in _ROW.finditer(PAGE.read_text().partition(ROWS_MARKER)[2]):
        told = _SECONDS.match(row["rest"])
        assert told, f"{row['words']}: no seconds and console"
        found.append(
            Row(file=row["file"], words=row["words"], by=row["by"] or "", seconds=int(told[1]), excerpt=told[2])
        )
    return found


def write(reports: Iterable[pytest.TestReport]) -> None:
    """Replace the rows of the tests that passed with their results."""
    by_key = {row.key: row for row in read_rows()}  # tests that are no more are found by tests/docs/test_boots.py
    for report in reports:
        told: dict[str, Any] = dict(report.user_properties)
        if PROPERTY in told:
            row = Row.of(report.nodeid, *told[PROPERTY])
            by_key[row.key] = row
    prose = PAGE.read_text().partition(ROWS_MARKER)[0]
    PAGE.write_text(prose + ROWS_MARKER + _table(by_key) + "".join(_section(row) for _, row in sorted(by_key.items())))


def _table(by_key: dict[tuple[str, str, str], Row]) -> str:
    lines = [f"| {row.file} | {row.words} | {row.by or '–'} | {row.seconds} |" for _, row in sorted(by_key.items())]
    return "\n".join(["", "| test | boot | answered by | s |", "|---|---|---|---|", *lines, "", ""])


def _section(row: Row) -> str:
    title = " · ".join(each for each in row.key if each)
    return f"### {title}\n\n{row.seconds} s\n\n```\n{row.excerpt}\n```\n\n"
