"""What operators read while an instance runs: on a terminal of its own, and in a file."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import pytest

from gitboot.child_processes import spawn
from gitboot.cli.main import Exit
from gitboot.cli.terminal import LogFormat, tell
from gitboot.status.conditions import Event
from tests.helpers.disks_and_terminals import COLUMNS, shown
from tests.helpers.instance_with_bmcs import typed

FORMAT: Final = "GITBOOT_LOG_FORMAT"
LONG: Final = "11 servers have no credentials here: ams2-w01, ams2-w02,\nams2-w03 and 8 more"
EVENT: Final = Event(
    at=datetime(2026, 12, 1, 22, 0, 7, 250_000, UTC), type="Accepted", message=LONG, facts={"commit": "c0ffee"}
)


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT, LogFormat.AUTO)


def test_a_terminal_shows_one_line_each_that_fits() -> None:
    (line,) = click.unstyle(shown(EVENT)).splitlines()
    assert line.startswith("22:00:07 Accepted           11 servers have no cred")
    assert len(line) == COLUMNS and line.endswith("…")


def test_a_terminal_is_told_json_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT, LogFormat.JSON)
    assert json.loads(click.unstyle(shown(EVENT)))["message"] == LONG


def test_a_file_has_json(capsys: pytest.CaptureFixture[str]) -> None:
    tell(EVENT)
    told = json.loads(capsys.readouterr().err)
    assert told == {
        "at": "2026-12-01T22:00:07.250000Z",
        "type": "Accepted",
        "message": LONG,
        "commit": "c0ffee",
        "level": "info",
    }


def test_a_file_has_whole_lines_of_text_where_that_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORMAT, LogFormat.TEXT)
    tell(EVENT)
    tell(Event(at=EVENT.at, type="Held", message="it waits", facts={}, warning=True))
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"2026-12-01T22:00:07.250000Z Accepted           {' '.join(LONG.split())}"
    assert second == "2026-12-01T22:00:07.250000Z Held               warning: it waits"


def test_the_option_reaches_whoever_tells(tmp_path: Path) -> None:
    done = typed("run", tmp_path / "nowhere.git", "--state", tmp_path / "s", "--out", tmp_path / "o",
                 "--once", "--log-format", "text")  # fmt: skip
    assert os.environ[FORMAT] == "text" and done.code == Exit.USAGE
    assert (
        done.err
        == f"gitboot: there is no Git repository at {tmp_path}/nowhere.git: nothing was made; look how it is spelt\n"
        and list(tmp_path.iterdir()) == []
    )
    typed("run", tmp_path / "nowhere.git", "--state", tmp_path / "s", "--out", tmp_path / "o")
    assert list(tmp_path.iterdir()) == [], "nor is anything made without --once"
    assert "Invalid value for '--log-format'" in typed("run", "x", "--log-format", "xml").err


def test_whoever_is_started_tells_in_the_same_way_and_knows_nothing_else_of_what_was_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FORMAT, LogFormat.TEXT)
    monkeypatch.setenv("GITBOOT_OUT", "/somewhere")
    process = spawn(["env"], stdout=subprocess.PIPE)
    output, _ = process.communicate()
    assert [line for line in output.decode().splitlines() if line.startswith("GITBOOT_")] == [f"{FORMAT}=text"]
