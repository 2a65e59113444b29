from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from gitboot.cli.main import Exit
from gitboot.cli.options import operator
from tests.helpers.instance_with_bmcs import typed

UNNAMED: Final = 4_000_000_000  # a user that no machine has


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container: `gitboot records begin` ended with a traceback there."""
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: UNNAMED)
    assert operator() == f"uid {UNNAMED}"


def test_a_user_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert operator() == "ada"


@pytest.mark.parametrize(
    "typed_line",
    [
        "stop-installs",
        "suspend --until 2030-01-01T00:00:00Z",
        "approve 0123 --guard maxReinstalls",
        "records set web01 provisioned",
        "bmc resolve web01 --not-set",
    ],
)
@pytest.mark.parametrize("reason", ["", "  "])
def test_a_reason_that_says_nothing_is_none(tmp_path: Path, typed_line: str, reason: str) -> None:
    done = typed(*typed_line.split(), "--state", tmp_path, "--reason", reason)
    assert done.code == Exit.USAGE
    assert "Invalid value for '--reason': say why: who finds it later has nothing else to go by" in " ".join(
        done.err.split()
    )
