"""What is kept to be faster counts only where it is whole, this program's, and nobody else's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gitboot import caches
from gitboot.caches import MOST, Unusable, key_at, read_cache, write_cache

KEY = b"k" * 32
CONTENT = b"what was found out" * 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "one.snapshot"


@pytest.fixture
def written(path: Path) -> Path:
    write_cache(path, KEY, CONTENT)
    return path


def test_what_was_written_is_read_and_private(written: Path) -> None:
    assert read_cache(written, KEY) == CONTENT
    assert (written.stat().st_mode & 0o777, written.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_what_was_not_written_is_absent(path: Path) -> None:
    assert read_cache(path, KEY) is Unusable.ABSENT


def test_no_damage_goes_unnoticed(written: Path) -> None:
    whole = written.read_bytes()
    for position in range(32, len(whole)):
        written.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert read_cache(written, KEY) is Unusable.DAMAGED
    for length in range(len(whole)):
        written.write_bytes(whole[:length])
        assert read_cache(written, KEY) is Unusable.DAMAGED
    written.write_bytes(whole + b"\0")
    assert read_cache(written, KEY) is Unusable.DAMAGED


def test_what_was_written_with_another_key_does_not_count(written: Path) -> None:
    assert read_cache(written, b"a stranger's") is Unusable.DAMAGED


def test_what_another_program_wrote_does_not_count(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "this_program", lambda: b"p" * 32)
    assert read_cache(written, KEY) is Unusable.FOREIGN


def test_what_others_may_write_does_not_count(written: Path) -> None:
    written.chmod(0o620)
    assert read_cache(written, KEY) is Unusable.OPEN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_is_another_users_does_not_count(written: Path) -> None:
    os.chown(written, 12345, 12345)
    assert read_cache(written, KEY) is Unusable.OPEN


def test_neither_a_link_nor_a_pipe_is_followed(written: Path) -> None:
    link, pipe = written.with_name("link"), written.with_name("pipe")
    link.symlink_to(written)
    os.mkfifo(pipe)
    assert read_cache(link, KEY) is Unusable.DAMAGED
    assert read_cache(pipe, KEY) is Unusable.OPEN
    assert read_cache(written.parent, KEY) is Unusable.DAMAGED


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    write_cache(tmp_path / "cache" / "one.snapshot", KEY, CONTENT)
    assert (tmp_path / "cache").read_bytes() == b""


def test_only_so_many_files_are_kept_and_those_are_the_newest(tmp_path: Path) -> None:
    for number in range(MOST + 2):
        path = tmp_path / f"{number}.snapshot"
        path.touch()
        os.utime(path, (number, number))
    write_cache(tmp_path / "new.snapshot", KEY, CONTENT)
    newest = [f"{number}.snapshot" for number in range(3, MOST + 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*newest, "new.snapshot"])


def test_a_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "key"
    key = key_at(path)
    assert key is not None
    assert (key_at(path), len(key), path.stat().st_mode & 0o777) == (key, 32, 0o600)


def test_a_key_that_others_know_is_none(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key_at(path)
    path.chmod(0o640)
    assert key_at(path) is None
    path.chmod(0o600)
    path.write_bytes(b"short")
    assert key_at(path) is None
    assert key_at(path / "below a file") is None


def digest_of(program: Path, libraries: Path) -> str:
    """What a process with that gitboot calls itself."""
    script = "from gitboot.caches import this_program; print(this_program().hex())"
    environment = {**os.environ, "PYTHONPATH": f"{program}:{libraries}"}
    command = [sys.executable, "-P", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_program_is_told_by_its_files_and_by_the_versions_of_its_libraries(tmp_path: Path) -> None:
    program, libraries = tmp_path / "program", tmp_path / "libraries"
    shutil.copytree(Path(caches.__file__).parent, program / "gitboot")
    (libraries / "yaml").mkdir(parents=True)
    (libraries / "yaml" / "__init__.py").touch()
    (libraries / "pyyaml-6.0.1.dist-info").mkdir()
    found = [digest_of(program, libraries)]
    assert digest_of(program, libraries) == found[0]
    (libraries / "pyyaml-6.0.1.dist-info").rename(libraries / "pyyaml-6.0.2.dist-info")
    found.append(digest_of(program, libraries))
    with (program / "gitboot" / "phrases.py").open("a") as file:
        file.write("# another\n")
    found.append(digest_of(program, libraries))
    (program / "gitboot" / "phrases.py").rename(program / "gitboot" / "sentences.py")
    found.append(digest_of(program, libraries))
    (program / "gitboot" / "serve" / "openapi.yaml").write_text("")
    found.append(digest_of(program, libraries))
    assert len(set(found)) == 5
