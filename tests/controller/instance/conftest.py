"""Fixtures of tests of a standby: the server of the ledger that both hosts share, and fleets that count as large."""

from __future__ import annotations

import pytest

from gitboot.controller import checkpoint
from gitboot.controller.instance import standby
from tests.helpers.forked_commands import RUN_FIRST
from tests.helpers.instance_with_bmcs import LARGE
from tests.helpers.postgresql import PostgresServer


@pytest.fixture
def server(postgres_server: PostgresServer) -> PostgresServer:
    return postgres_server


@pytest.fixture
def large_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a fleet of `LARGE` servers for a large one, here and in the instances of a test."""
    modules = checkpoint, standby
    names = ", ".join(module.__name__ for module in modules)
    monkeypatch.setenv(RUN_FIRST, f"import {names}\nfor module in ({names}): module.MIN_SERVERS = {LARGE}")
    for module in modules:
        monkeypatch.setattr(module, "MIN_SERVERS", LARGE)
