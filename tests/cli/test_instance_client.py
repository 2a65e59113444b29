"""Commands that read an instance: its accepted commit, with the results in the cache of the instance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gitboot.cli.evaluator_child import open_cache
from gitboot.controller.instance.assembly import open_offline
from gitboot.controller.instance.state_directory import CACHE
from gitboot.disk_cache import DiskCache
from gitboot.evaluator.evaluation import Evaluator
from gitboot.evaluator.protocol import Commit
from gitboot.git.clone import load_accepted_snapshot
from tests.helpers.evaluations import StoredResults
from tests.helpers.fleets import SEED, at, server
from tests.helpers.instance_in_process import run_in_process
from tests.helpers.running_instance import Repository
from tests.scenarios.test_installations import World

NOON = at("20T12:00")
# In a decision, as msgpack: the value of the commit, and a value that no evaluation gives.
FIRMWARE_PATCH = b"\xa8firmware\xa4UEFI", b"\xa8firmware\xa4BIOS"


@dataclass(frozen=True)
class Site:
    world: World
    state: Path

    def look(self) -> Commit:
        with open_cache(self.state) as results, open_offline(self.state, NOON, results=results) as look:
            return look.commit

    def firmware(self) -> dict[str, str]:
        return {name: each.firmware for name, each in self.look().decisions.servers.items()}

    def store(self, old: bytes = b"", new: bytes = b"") -> Path:
        """Store what its evaluator finds, with other bytes in each decision, in the cache of the instance."""
        revision = self.look().revision
        found = Evaluator(lambda *_: load_accepted_snapshot(self.state)).evaluate(revision, None)
        results = StoredResults()
        results.add(found.head)
        with DiskCache(self.state / CACHE, pytest.fail) as cache:
            for kind, rows in results.rows.items():
                cache.insert_many(kind, {key: value.replace(old, new) for key, value in rows.items()})
        return self.state / CACHE


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    repository = Repository.create(tmp_path / "git")
    repository.push({f"{number:02}.yaml": text for number, text in enumerate(SEED)})
    with run_in_process(tmp_path, repository.bare, initial="fresh") as parts:
        world = World(parts, repository, NOON)
        world.advance()
        yield Site(world, tmp_path / "state")


def read_stat(path: Path) -> tuple[int, int, int]:
    """Return the file with its bytes and modification time; reading changes none of these."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def test_a_read_only_command_uses_the_cache_of_the_instance_and_changes_nothing(site: Site) -> None:
    kept = site.store(*FIRMWARE_PATCH)  # no evaluation comes to this, so it shows that the cache was used
    before = read_stat(kept)
    assert site.firmware() == {"web01": "BIOS"}
    site.world.repository.push({"web02.yaml": server("web02", "role: web")})
    site.world.advance()
    assert site.firmware() == {"web01": "BIOS", "web02": "UEFI"}  # by the difference from the cache
    assert read_stat(kept) == before


@pytest.mark.parametrize("spoil", [lambda kept: kept.unlink(), lambda kept: kept.write_bytes(kept.read_bytes()[:-1])])
def test_without_a_usable_cache_everything_is_evaluated(
    site: Site, spoil: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    kept = site.store()
    whole = site.look()
    spoil(kept)
    assert site.look() == whole and site.firmware() == {"web01": "UEFI"}
    assert capfd.readouterr().err == ""  # the instance itself reports the fault
