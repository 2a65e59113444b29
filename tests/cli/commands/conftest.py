"""Fixtures of the tests that run the CI jobs of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.forges import CommentHost, Fleet, comment_host, write_programs
from tests.helpers.forked_commands import build_shell_program


@pytest.fixture
def host() -> Iterator[CommentHost]:
    with comment_host() as host:
        yield host


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_programs(tmp_path_factory.mktemp("bin"), build_shell_program())


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)
