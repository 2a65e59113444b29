"""Durable files: locks, and errors that name what blocks a file."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gitboot.errors import PublishError
from gitboot.publish.durable_files import DurableDirectory

AT = datetime(2026, 11, 20, 22, tzinfo=UTC)


def test_locks_that_another_process_holds_leave_no_open_files(tmp_path: Path) -> None:
    with closing(DurableDirectory(tmp_path)) as holder, closing(DurableDirectory(tmp_path)) as directory:
        assert holder.lock("lock") is None
        before = len(os.listdir("/proc/self/fd"))
        assert all(directory.lock("lock") is not None for _ in range(3))
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_at_the_path_of_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "boot.ipxe").mkdir()
    with closing(DurableDirectory(tmp_path)) as directory:
        directory.stage("boot.ipxe", b"#!ipxe\n", AT)
        with pytest.raises(PublishError, match=r"boot\.ipxe: Is a directory \(the path is a folder, but .* move"):
            directory.place("boot.ipxe")
