"""Each code of docs/reference/exits.md, by a command that a person types."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from gitboot.cli.main import Exit
from tests.helpers.fleets import document, profile
from tests.helpers.instance_with_bmcs import POOL, Rack, typed

UNGUARDED = ("--max-small-group", "9", "--max-reinstalls", "9")
REASON = ("--reason", "INC-4711")
STREAM = document("ImageStream", "stable", "current: flatcar-1, rollout: {image: flatcar-2, percent: 99}")


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path, pool=(*POOL[:2], STREAM, profile("web", "stream: stable"), POOL[3])) as made:
        made.add("web01", provision=1)
        made.add("web02", provision=1)
        made.push()
        assert made.once(records="adopt").code == Exit.FINE
        yield made


def refused_by_a_person(*command: object) -> int:
    """The code of a command that asks on a terminal, and is told no."""
    screen, typing = os.openpty()
    os.write(screen, b"n\n")
    with open(typing) as stdin, open(screen, "rb"), patch.object(sys, "stdin", stdin):
        return typed(*command).code


def test_each_code_is_what_a_command_ends_with(rack: Rack) -> None:
    work, folder = rack.repository.work, rack.folder
    broken = folder / "broken"
    broken.mkdir()
    (broken / "fleet.yaml").write_text("kind: Nothing\n")
    found = {
        Exit.FINE: typed("validate", work).code,
        Exit.INVALID: typed("validate", broken).code,
        Exit.USAGE: typed("plan", work, "--server", "nobody").code,
        Exit.PARTIAL: rack.typed("bmc", "get", "--credentials", broken).code,
        Exit.INTERRUPTED: refused_by_a_person(
            "records", "set", "web01", "web02", "pending", "--state", rack.state, *REASON
        ),
        Exit.STALE: rack.typed("approve", "0" * 64, "--guard", "maxReinstalls", *REASON).code,
    }
    rack.said("records", "set", "web01", "web02", "pending", "--yes", *REASON)
    rack.once(*rack.spooling)
    rollout = (
        "rollout",
        "advance",
        "stable",
        "--path",
        work,
        "--records",
        rack.output,
        "--steps",
        "99,100",
        "--accept-fetched",
    )
    found[Exit.WAITS] = typed(*rollout).code
    rack.blades["web01"].provision += 1
    rack.push("Reinstall web01")
    found[Exit.CHANGES] = typed("diff", "HEAD~1", "--path", work, "--detailed-exitcode", *UNGUARDED).code
    found[Exit.HELD] = rack.once().code
    rack.said("suspend", "--until", "2099-01-01T00:00:00Z", *REASON)
    found[Exit.SUSPENDED] = rack.once().code
    rack.said("resume")
    rack.repository.bare.rename(folder / "away")
    found[Exit.SOURCE] = rack.once().code
    (rack.state / "ledger.sqlite").write_bytes(b"this is no ledger" * 100)
    found[Exit.FAULT] = rack.typed("events").code
    assert found == {code: code for code in Exit}
