"""The cache: stored values are found again, and any fault of the file only costs time."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot import disk_cache
from gitboot.disk_cache import DiskCache
from tests.helpers.cases import count_examples
from tests.helpers.disks_and_terminals import fill, small_disk

ROOT = Path(__file__).parent.parent
# of 2 KiB: several to a page, and some
ROWS = {b"key %d" % number: b"value %d " % number * 200 for number in range(40)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "gitboot" / "cache.sqlite"


@pytest.fixture
def filled(path: Path) -> Path:
    with DiskCache(path, pytest.fail) as cache:
        cache.insert_many("kind", ROWS)
    return path


def read_values(path: Path, *, kind: str = "kind") -> dict[bytes, bytes]:
    """Return the values that a new process finds."""
    with DiskCache(path, pytest.fail) as cache:
        return cache.get_many(kind, ROWS)


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# Values


def test_values_are_found_by_kind_and_key_and_the_file_is_private(filled: Path) -> None:
    assert read_values(filled) == ROWS
    assert read_values(filled, kind="other") == {}
    assert (filled.stat().st_mode & 0o777, filled.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert list(filled.parent.iterdir()) == [filled]


def test_an_existing_value_is_never_replaced(filled: Path) -> None:
    with DiskCache(filled, pytest.fail) as cache:
        cache.insert_many("kind", {b"key 0": b"another", b"new": b"value"})
        assert cache.get_many("kind", [b"key 0", b"new"]) == {b"key 0": ROWS[b"key 0"], b"new": b"value"}


def test_keys_are_found_by_kind_without_their_values(filled: Path) -> None:
    with DiskCache(filled, pytest.fail) as cache:
        assert cache.find_keys("kind", [b"key 0", b"key 39", b"none"]) == {b"key 0", b"key 39"}
        assert cache.find_keys("other", ROWS) == frozenset()
        assert cache.find_keys("kind", (b"key %d" % number for number in range(5000))) == ROWS.keys()


def test_the_name_of_a_kind_may_be_long(path: Path) -> None:
    kinds = ["checkpoint-chunk", "checkpoint-chunk of a site", "checkpoint-chunk of another site"]
    with DiskCache(path, pytest.fail) as cache:
        for kind in kinds:
            cache.insert_many(kind, {b"key": kind.encode()})
        assert [cache.get_many(kind, [b"key"])[b"key"].decode() for kind in kinds] == kinds


def test_values_of_another_gitboot_are_a_miss_and_stay(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(disk_cache, "compute_program_digest", lambda: b"another" * 4)
        assert read_values(filled) == {}
        with DiskCache(filled, pytest.fail) as cache:
            cache.insert_many("kind", {b"key 0": b"of another"})
            assert cache.get_many("kind", ROWS) == {b"key 0": b"of another"}
    assert read_values(filled) == ROWS


def test_the_program_is_identified_once_at_its_start(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DiskCache(filled, pytest.fail) as cache:
        monkeypatch.setattr(disk_cache, "compute_program_digest", lambda: b"upgraded" * 4)
        assert cache.get_many("kind", ROWS) == ROWS


def test_without_a_path_each_lookup_is_a_miss() -> None:
    with DiskCache(None, pytest.fail) as cache:
        cache.insert_many("kind", ROWS)
        assert cache.get_many("kind", ROWS) == {}


# Room


def test_the_file_stays_small_and_used_values_stay_in_it(path: Path) -> None:
    most = 2**18
    with DiskCache(path, pytest.fail, max_bytes=most) as cache:
        cache.insert_many("kind", {b"used": b"u" * 2000, b"unused": b"n" * 2000})
        for number in range(400):
            cache.insert_many("kind", {b"%d" % number: b"x" * 5000})
            assert cache.get_many("kind", [b"used"]) == {b"used": b"u" * 2000}, number
            assert path.stat().st_size <= most + 16384, number
        assert cache.get_many("kind", [b"unused", b"0", b"399"]) == {b"399": b"x" * 5000}


def test_if_there_is_not_enough_room_a_part_is_stored(path: Path) -> None:
    rows = {b"%d" % number: b"x" * 1000 for number in range(1000)}
    with DiskCache(path, pytest.fail, max_bytes=2**18) as cache:
        cache.insert_many("kind", rows)
        found = cache.get_many("kind", rows)
    assert 50 < len(found) < 200
    assert path.stat().st_size <= 2**18
    assert found.items() <= rows.items()


def test_a_value_that_is_too_large_is_not_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "MAX_VALUE_BYTES", 1000)
    with DiskCache(path, pytest.fail) as cache:
        cache.insert_many("kind", {b"large": b"x" * 1001, b"small": b"x" * 1000})
        assert cache.get_many("kind", [b"large", b"small"]) == {b"small": b"x" * 1000}


def test_a_file_that_exceeds_the_limit_is_created_again(filled: Path) -> None:
    with filled.open("r+b") as file:
        file.truncate(2**30)
    said: list[str] = []
    with DiskCache(filled, said.append, max_bytes=2**20) as cache:
        assert cache.get_many("kind", ROWS) == {}
    assert said == [f"the cache {filled} is rebuilt: the file is too large"]
    assert filled.stat().st_size < 2**20


# Damage of rows


@pytest.mark.parametrize(
    "change",
    [
        "value = zeroblob(length(value))",
        "value = substr(value, 2)",
        "value = CAST(value AS TEXT) || 'x'",
        "value = 7",
        "checksum = zeroblob(16)",
        "checksum = 'text'",
        "value = (SELECT value FROM entry WHERE rowid = 2), checksum = (SELECT checksum FROM entry WHERE rowid = 2)",
    ],
)
def test_a_damaged_entry_is_a_miss_and_can_be_stored_again(filled: Path, change: str) -> None:
    sql(filled, f"UPDATE entry SET {change} WHERE rowid = 1")
    assert len(read_values(filled)) == len(ROWS) - 1
    assert read_values(filled).items() <= ROWS.items()
    with DiskCache(filled, pytest.fail) as cache:
        cache.insert_many("kind", ROWS)
    assert read_values(filled) == ROWS


def test_an_entry_counts_only_with_its_own_id(filled: Path) -> None:
    sql(
        filled,
        "UPDATE entry SET id = zeroblob(32) WHERE rowid = 1",
        "CREATE TEMP TABLE second AS SELECT id FROM entry WHERE rowid = 2",
        "DELETE FROM entry WHERE rowid = 2",
        "UPDATE entry SET id = (SELECT id FROM second) WHERE rowid = 3",
    )
    found = read_values(filled)
    assert len(found) == len(ROWS) - 3
    assert found.items() <= ROWS.items()


def test_an_index_that_leads_to_another_entry_counts_as_damage(filled: Path) -> None:
    """This state exists after pages of two states of the file were mixed."""
    sql(
        filled,
        "PRAGMA writable_schema = ON",
        "CREATE TABLE other AS SELECT * FROM entry",
        "UPDATE other SET value = zeroblob(9), id = zeroblob(32), checksum = zeroblob(16)",
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'other') "
        "WHERE name = 'entry'",
        "DELETE FROM sqlite_master WHERE name = 'other'",
    )
    said: list[str] = []
    with DiskCache(filled, said.append) as cache:
        assert cache.get_many("kind", ROWS) == {}
        cache.insert_many("kind", ROWS)
        assert cache.get_many("kind", ROWS) == ROWS


# Damage of the file


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def make_another_database(path: Path) -> None:
    path.unlink()
    sql(path, "CREATE TABLE recipes (name)")


def put_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").touch()


def put_a_symlink(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def put_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, 12345)


def open_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def give_folder_away(path: Path) -> None:
    give_away(path.parent)


Damage = Callable[[Path], object]
REPAIRED: dict[str, Damage] = {
    "deleted": Path.unlink,
    "its folder deleted": lambda path: rmtree(path.parent),
    "empty": lambda path: os.truncate(path, 0),
    "cut in its header": lambda path: os.truncate(path, 50),
    "cut in its journal version": lambda path: os.truncate(path, 19),
    "cut in a page": lambda path: os.truncate(path, 10_000),
    "garbage": lambda path: path.write_bytes(b"\0garbage" * 999),
    "garbage that is longer": lambda path: path.write_bytes(b"\xff" * 999_999),
    "garbage behind its first page": lambda path: overwrite(path, 4096, b"\xa5" * (path.stat().st_size - 4096)),
    "an unknown format": lambda path: overwrite(path, 44, b"\0\0\0\x09"),
    "another database": make_another_database,
    "another database in the same file": lambda path: sql(path, "DROP TABLE entry", "CREATE TABLE entry (id)"),
    "a WAL": lambda path: sql(path, "PRAGMA journal_mode = WAL"),
    "an entry from the future": lambda path: sql(path, f"UPDATE entry SET used = {2**63 - 1}"),
    "uses that are no numbers": lambda path: sql(path, "UPDATE entry SET used = 'x'"),
    "readable by others": lambda path: path.chmod(0o640),
    "another user's": give_away,
}


def stat_file(path: Path) -> tuple[int, ...]:
    """Return attributes of a file that change with a write, without the access time."""
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns


NOT_OURS = "the file's folder belongs to another user, or every user can write to the folder"
NOT_USED: dict[str, tuple[Damage, str]] = {
    "a directory": (put_a_directory, "Is a directory"),
    "a symlink": (put_a_symlink, "the file is a symlink; remove the symlink"),
    "a pipe": (put_a_pipe, "the path is not a regular file; remove it"),
    "a folder that everybody may write": (open_folder, NOT_OURS),
    "another user's folder": (give_folder_away, NOT_OURS),
}


@pytest.mark.parametrize("while_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("first", ["insert", "look up"])
@pytest.mark.parametrize("damage", REPAIRED)
def test_an_unusable_file_is_created_again(filled: Path, damage: str, while_open: bool, first: str) -> None:
    said: list[str] = []
    with DiskCache(filled, said.append) as cache:
        if while_open:
            assert cache.get_many("kind", ROWS) == ROWS
        REPAIRED[damage](filled)
        for later in (False, True):  # what SQLite has read already, it may find damaged only when it is opened again
            if later:
                cache.close()
            if first == "insert":
                cache.insert_many("kind", {b"first": b"value"})
                assert cache.get_many("kind", [b"first"]) == {b"first": b"value"}
            assert cache.get_many("kind", ROWS).items() <= ROWS.items()
            cache.insert_many("kind", ROWS)
            assert cache.get_many("kind", ROWS) == ROWS
    assert len(said) <= 1
    assert read_values(filled) == ROWS
    assert (filled.stat().st_mode & 0o777, filled.stat().st_uid) == (0o600, os.geteuid())
    assert filled.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("while_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("damage", REPAIRED)
def test_a_reader_leaves_an_unusable_file_to_its_writer(filled: Path, damage: str, while_open: bool) -> None:
    with DiskCache(filled, lambda _: None, writes=False) as cache:
        if while_open:
            assert cache.get_many("kind", ROWS) == ROWS
        REPAIRED[damage](filled)
        folder = {each: each.read_bytes() for each in filled.parent.glob("*")}
        for _ in range(2):
            assert cache.get_many("kind", ROWS).items() <= ROWS.items()
            cache.close()
    assert {each: each.read_bytes() for each in filled.parent.glob("*")} == folder


@pytest.mark.parametrize("while_open", [False, True], ids=["closed", "open"])
@pytest.mark.parametrize("damage", NOT_USED)
def test_foreign_content_is_left_alone_with_one_warning(filled: Path, damage: str, while_open: bool) -> None:
    said: list[str] = []
    spoil, reason = NOT_USED[damage]
    with DiskCache(filled, said.append) as cache:
        if while_open:
            cache.get_many("kind", ROWS)
        spoil(filled)
        before = stat_file(filled)
        for _ in range(3):
            assert cache.get_many("kind", ROWS) == {}
            cache.insert_many("kind", {b"new": b"value"})
    assert said == [f"the cache {filled} is not used: {reason}"]
    assert stat_file(filled) == before


def test_a_trigger_counts_as_damage_when_the_file_is_opened(filled: Path) -> None:
    empty = "DELETE FROM entry"
    sql(filled, empty, f"CREATE TRIGGER never AFTER INSERT ON entry BEGIN {empty}; END")
    said: list[str] = []
    with DiskCache(filled, said.append) as cache:
        cache.insert_many("kind", ROWS)
        assert cache.get_many("kind", ROWS) == ROWS
    assert said == [f"the cache {filled} is rebuilt: the file does not have the expected schema"]


def test_a_garbage_journal_does_no_harm(filled: Path) -> None:
    filled.with_name("cache.sqlite-journal").write_bytes(os.urandom(9999))
    assert read_values(filled) == ROWS


@pytest.mark.parametrize("place", ["file/cache.sqlite", "file"])
def test_without_a_place_for_the_file_there_is_one_warning(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "file").chmod(0o400)
    said: list[str] = []
    with DiskCache(tmp_path / "file" / place, said.append) as cache:
        for _ in range(2):
            cache.insert_many("kind", ROWS)
            assert cache.get_many("kind", ROWS) == {}
    assert len(said) == 1


@dataclass(frozen=True)
class Written:
    offset: int
    data: bytes


DAMAGES = st.one_of(
    st.builds(Written, st.integers(0, 120_000), st.binary(min_size=1, max_size=40)),
    st.builds(Written, st.integers(0, 110), st.binary(min_size=1, max_size=8)),  # the header
    st.builds(
        Written, st.sampled_from([4096 * n for n in range(1, 30)]), st.binary(min_size=1, max_size=24)
    ),  # of pages
    st.integers(0, 120_000),  # a length
)


@settings(max_examples=count_examples(150), deadline=None)
@given(st.lists(st.tuples(DAMAGES, st.booleans()), min_size=1, max_size=6))
def test_no_damage_gives_a_wrong_value_or_an_error(damages: list[tuple[Written | int, bool]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "gitboot", "cache.sqlite")
        with DiskCache(path, lambda _: None, max_bytes=2**18) as cache:
            for damage, is_open in damages:
                cache.insert_many("kind", ROWS)
                if not is_open:
                    cache.close()
                if isinstance(damage, Written):
                    overwrite(path, damage.offset, damage.data)
                else:
                    os.truncate(path, damage)
                assert cache.find_keys("kind", ROWS) <= ROWS.keys()
                assert cache.get_many("kind", ROWS).items() <= ROWS.items()
                cache.insert_many("more", {key: value[:900] for key, value in ROWS.items()})
                assert cache.get_many("more", ROWS).items() <= {k: value[:900] for k, value in ROWS.items()}.items()


# Disks


def test_a_full_disk_keeps_existing_values(tmp_path: Path) -> None:
    said: list[str] = []
    with small_disk(tmp_path) as disk, DiskCache(disk / "cache.sqlite", said.append) as cache:
        disk.chmod(0o700)
        cache.insert_many("kind", ROWS)
        fill(disk / "filler")
        cache.insert_many("kind", {b"new %d" % number: b"x" * 4000 for number in range(200)})
        assert cache.get_many("kind", [*ROWS, b"new 0", b"new 199"]) == ROWS
        cache.insert_many("kind", {b"more": b"x" * 400_000})
        assert said == [f"the cache {disk / 'cache.sqlite'} is not used: database or disk is full"]
        (disk / "filler").unlink()
        cache.insert_many("kind", {b"new 0": b"x"})
        assert cache.get_many("kind", [b"new 0"]) == {b"new 0": b"x"}


def test_a_full_disk_has_no_room_for_a_new_file(tmp_path: Path) -> None:
    said: list[str] = []
    with small_disk(tmp_path) as disk, DiskCache(disk / "gitboot" / "cache.sqlite", said.append) as cache:
        disk.chmod(0o700)
        fill(disk / "filler")
        cache.insert_many("kind", ROWS)
        assert cache.get_many("kind", ROWS) == {}
        assert len(said) == 1


def test_a_read_only_disk_is_read(tmp_path: Path) -> None:
    said: list[str] = []
    with small_disk(tmp_path) as disk:
        disk.chmod(0o700)
        path = disk / "cache.sqlite"
        with DiskCache(path, pytest.fail) as cache:
            for number in range(20):  # so that the rows that are read are old, and would be marked as used
                cache.insert_many("kind", ROWS if number == 0 else {b"later %d" % number: b"x"})
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with DiskCache(path, said.append) as cache:
            for _ in range(2):
                assert cache.get_many("kind", ROWS) == ROWS
                cache.insert_many("kind", {b"new": b"value"})
        assert said == [f"the cache {path} is not used: attempt to write a readonly database"]


# Threads and processes


def test_several_threads_use_one_object(path: Path) -> None:
    def work(number: int) -> bool:
        rows = {b"%s of %d" % (key, number): value for key, value in ROWS.items()}
        cache.insert_many("kind", rows)
        if number % 5 == 0:
            cache.close()
        return cache.get_many("kind", rows) == rows

    with DiskCache(path, pytest.fail) as cache, ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(60)))


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of its own with a cache at its first argument, and the rows of these tests."""
    begin = "import os, sys; from pathlib import Path; from gitboot.disk_cache import DiskCache\n"
    begin += f"ROWS = {ROWS!r}\ncache = DiskCache(Path(sys.argv[1]), lambda text: print(text, file=sys.stderr))\n"
    command = [sys.executable, "-c", begin + script, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_several_processes_write_at_once(path: Path) -> None:
    script = """
input()  # until all have begun
for number in range(60):
    rows = {b"%s of %d" % (key, number): value for key, value in ROWS.items()}
    cache.insert_many("kind", rows)
    assert cache.get_many("kind", rows).items() <= rows.items()
"""
    processes = [run(script, path) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
    assert [process.returncode for process in processes] == [0, 0, 0]
    rows = {b"%s of %d" % (key, number): value for number in range(60) for key, value in ROWS.items()}
    with DiskCache(path, pytest.fail) as cache:
        found = cache.get_many("kind", rows)
    assert found and found.items() <= rows.items()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_process_that_is_killed_while_it_writes_leaves_complete_entries(filled: Path) -> None:
    script = """
for number in range(1_000_000):
    rows = {b"%d of %d" % (each, number): b"x" * 3000 for each in range(400)}
    cache.insert_many("kind", rows)
"""
    journal = filled.with_name("cache.sqlite-journal")
    torn = 0
    while torn < 5:
        process = run(script, filled)
        while not journal.exists():
            assert process.poll() is None
        process.kill()
        process.communicate()
        torn += journal.exists()
        assert read_values(filled) == ROWS
        with DiskCache(filled, pytest.fail) as cache:
            cache.insert_many("kind", {b"after %d" % process.pid: b"it"})
            assert cache.get_many("kind", [b"after %d" % process.pid]) == {b"after %d" % process.pid: b"it"}
        assert not journal.exists()


def test_a_file_that_another_process_has_locked_is_not_used(filled: Path) -> None:
    with DiskCache(filled, pytest.fail) as cache, DiskCache(filled, pytest.fail) as late:
        assert cache.get_many("kind", ROWS) == ROWS
        locked = run("c = cache._open_connection(); c.execute('BEGIN EXCLUSIVE'); print(flush=True); input()", filled)
        assert locked.stdout is not None
        locked.stdout.readline()
        for each in (cache, late):
            assert each.get_many("kind", ROWS) == {}
            each.insert_many("kind", {b"new": b"value"})
        assert cache._connection is not None
        assert cache._connection.execute("PRAGMA busy_timeout").fetchone() == (0,), "it has waited once"
        locked.communicate("\n")
        for each in (cache, late):
            assert each.get_many("kind", [*ROWS, b"new"]) == ROWS
        assert cache._busy_ms > 0, "the next transaction waits again"


@pytest.mark.parametrize("how", ["by another process", "by its file"])
def test_a_wal_with_a_truncated_index_kills_no_process(filled: Path, how: str) -> None:
    """SQLite maps the -shm file of a WAL, and a process that reads a mapped file behind its end gets SIGBUS."""
    wal, index = (filled.with_name(f"cache.sqlite-{each}") for each in ("wal", "shm"))
    with (
        run("while input(): print(len(cache.get_many('kind', ROWS)), flush=True)", filled) as reader,
        ExitStack() as stack,
    ):
        assert answer(reader) == f"{len(ROWS)}\n"
        if how == "by its file":
            wal.write_bytes(b"garbage" * 100)
        else:
            asked = "PRAGMA journal_mode = WAL; UPDATE entry SET used = used + 1"
            script = f"import sqlite3; other = sqlite3.connect(sys.argv[1]); other.executescript({asked!r})\n"
            script += "print(input(), flush=True); input()"
            other = stack.enter_context(run(script, filled))
            stack.callback(other.kill)
            answer(other)
        answer(reader)
        if index.exists():
            os.truncate(index, 0)
        assert answer(reader), "it has died"
        reader.communicate("\n")
    assert reader.returncode == 0
    with DiskCache(filled, pytest.fail) as cache:
        cache.insert_many("kind", ROWS)
    assert (read_values(filled), wal.exists(), index.exists()) == (ROWS, False, False)


def answer(process: subprocess.Popen[str]) -> str:
    """Let another process go on, and return the line that it prints; empty if it has ended."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go on\n")
    process.stdin.flush()
    return process.stdout.readline()


# The digest of the program


def digest_of(program: Path, libraries: Path) -> str:
    script = "from gitboot.disk_cache import compute_program_digest; print(compute_program_digest().hex())"
    environment = {**os.environ, "PYTHONPATH": f"{program}:{libraries}"}
    command = [sys.executable, "-P", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_digest_of_a_program_depends_on_its_files_and_on_the_versions_of_its_libraries(tmp_path: Path) -> None:
    program, libraries = tmp_path / "program", tmp_path / "libraries"
    shutil.copytree(Path(disk_cache.__file__).parent, program / "gitboot")
    (libraries / "yaml").mkdir(parents=True)
    (libraries / "yaml" / "__init__.py").touch()
    (libraries / "pyyaml-6.0.1.dist-info").mkdir()
    found = [digest_of(program, libraries)]
    assert digest_of(program, libraries) == found[0]
    (libraries / "pyyaml-6.0.1.dist-info").rename(libraries / "pyyaml-6.0.2.dist-info")
    found.append(digest_of(program, libraries))
    with (program / "gitboot" / "text.py").open("a") as file:
        file.write("# another\n")
    found.append(digest_of(program, libraries))
    # Emacs creates such a symlink while a person edits a file
    (program / "gitboot" / ".#text.py").symlink_to("user@host.1234:1700000000")
    assert digest_of(program, libraries) == found[-1]
    (program / "gitboot" / "text.py").rename(program / "gitboot" / "sentences.py")
    found.append(digest_of(program, libraries))
    (program / "gitboot" / "endpoint" / "openapi.yaml").write_text("")
    found.append(digest_of(program, libraries))
    assert len(set(found)) == 5
