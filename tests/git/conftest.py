"""A repository, and a state directory beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.git_repositories import WorkTree


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    work = WorkTree(tmp_path / "served" / "fleet")
    work.commit({"fleet.yaml": "first"})
    return work


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"
