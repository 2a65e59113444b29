from __future__ import annotations

import os
from typing import Final

import pytest

from gitboot.cli.operator import operator

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
