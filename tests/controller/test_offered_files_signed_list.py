"""The signed list of a running instance: renewed without a commit, by keys that change, and carried to copies."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import httpx
import pygit2
import pytest
from tuf.api.exceptions import ExpiredMetadataError

from gitboot.cli.main import Exit
from gitboot.publish.list_root import replace_list_keys
from gitboot.publish.signed_list import VALID
from gitboot.status.conditions import Condition
from tests.helpers.fleets import SEED, configured, mac_of, maintenance, server
from tests.helpers.forked_commands import captured
from tests.helpers.instance_in_process import Parts, in_process
from tests.helpers.instance_with_bmcs import until_condition
from tests.helpers.mirrors import nginx
from tests.helpers.running_instance import Repository, eventually, git, running
from tests.helpers.signed_lists import client, lies, made_keys, target

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
ENTRY = f"v1/boot/{mac_of('web01').replace(':', '-')}/boot.ipxe"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push({f"{number:02}.yaml": text for number, text in enumerate(SEED)})
    return made


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return made_keys(tmp_path / "keys", NOW)


Reconcile = Callable[[datetime], Condition]  # at an instant; what the condition of the list is then


@contextmanager
def reconciled(
    tmp_path: Path, repository: Repository, keys: Path | None
) -> Iterator[tuple[Parts, Callable[[datetime], Condition]]]:
    with in_process(tmp_path, repository.bare, initial="fresh", list_keys=keys) as parts:

        def reconcile(now: datetime) -> Condition:
            parts.source.fetch()
            for _ in range(2):  # what was asked for is heard first
                parts.reconciler.reconcile(now)
            return next(each for each in parts.reconciler.status.conditions if each.type == "ListCurrent")

        yield parts, reconcile


def timestamp(tmp_path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((tmp_path / "output/boot/signed/timestamp.json").read_bytes())["signed"]
    return found


def test_a_list_is_renewed_without_a_commit(tmp_path: Path, repository: Repository, keys: Path) -> None:
    with reconciled(tmp_path, repository, keys) as (_, reconcile):
        assert reconcile(NOW).reason == "Signed"
        first, manifest = timestamp(tmp_path), (tmp_path / "output/ops/manifest.json").read_bytes()
        reconcile(NOW + 11 * HOUR)
        assert timestamp(tmp_path) == first
        assert reconcile(NOW + 13 * HOUR).status
        assert datetime.fromisoformat(timestamp(tmp_path)["expires"]) == NOW + 13 * HOUR + VALID
        assert (tmp_path / "output/ops/manifest.json").read_bytes() == manifest


def test_a_list_that_nobody_renewed_is_expired_for_readers_and_the_next_instance_renews_it(
    tmp_path: Path, repository: Repository, keys: Path
) -> None:
    with reconciled(tmp_path, repository, keys) as (_, reconcile):
        reconcile(NOW - VALID - HOUR)
    root, signed = (keys / "1.root.json").read_bytes(), tmp_path / "output/boot/signed"
    with pytest.raises(ExpiredMetadataError):
        client(signed, root, tmp_path / "cache").refresh()
    with reconciled(tmp_path, repository, keys) as (_, reconcile):
        assert reconcile(NOW).status
    client(signed, root, tmp_path / "cache").refresh()


def test_without_keys_the_list_is_unsigned_and_that_is_no_failure(tmp_path: Path, repository: Repository) -> None:
    with reconciled(tmp_path, repository, None) as (_, reconcile):
        found = reconcile(NOW)
    assert (found.status, found.reason) == (True, "Unsigned")


def test_keys_that_are_lost_for_a_while_leave_the_earlier_list_and_say_so(
    tmp_path: Path, repository: Repository, keys: Path
) -> None:
    with reconciled(tmp_path, repository, keys) as (parts, reconcile):
        reconcile(NOW)
        first = timestamp(tmp_path)
        keys.rename(tmp_path / "away")
        repository.push({"web02.yaml": server("web02", "role: web")})
        found = reconcile(NOW + HOUR)
        assert (found.status, found.reason) == (False, "KeyUnreadable") and str(keys) in found.message
        assert timestamp(tmp_path) == first
        assert parts.reconciler.status.applied == git(repository.work, "rev-parse", "HEAD")  # published all the same
        (tmp_path / "away").rename(keys)
        assert reconcile(NOW + 2 * HOUR).status
    reader = client(tmp_path / "output/boot/signed", (keys / "1.root.json").read_bytes(), tmp_path / "cache")
    assert target(reader, "servers/web02.json") is not None
    told = [event for event in parts.events if event.type == "ListNotCurrent"]
    assert len(told) == 1


def test_a_publication_key_that_is_replaced_while_an_instance_runs_signs_the_next_list(
    tmp_path: Path, repository: Repository, keys: Path
) -> None:
    root = (keys / "1.root.json").read_bytes()
    with reconciled(tmp_path, repository, keys) as (_, reconcile):
        reconcile(NOW)
        replace_list_keys(keys, None, None, NOW)
        assert reconcile(NOW + HOUR).reason == "Signed"
    reader = client(tmp_path / "output/boot/signed", root, tmp_path / "cache")
    assert target(reader, "servers/web01.json") is not None
    assert json.loads((tmp_path / "cache/root.json").read_bytes())["signed"]["version"] == 2


def test_a_root_that_expires_soon_is_a_condition(tmp_path: Path, repository: Repository, keys: Path) -> None:
    with reconciled(tmp_path, repository, keys) as (_, reconcile):
        found = reconcile(NOW + timedelta(days=3 * 365 - 59))
    assert (found.status, found.reason) == (False, "RootExpires")


def test_a_window_ends_in_the_list_at_its_instant(tmp_path: Path, repository: Repository, keys: Path) -> None:
    repository.push(
        {"08.yaml": maintenance("repair", spec=f"window: {{start: '{iso(NOW)}', end: '{iso(NOW + HOUR)}'}}")}
    )
    with reconciled(tmp_path, repository, keys) as (_, reconcile):
        reconcile(NOW + timedelta(minutes=1))
    reader = client(tmp_path / "output/boot/signed", (keys / "1.root.json").read_bytes(), tmp_path / "cache")
    listing = target(reader, "servers/web01.json")
    assert listing is not None
    inside, after = (lies(listing, NOW + delta)[ENTRY] for delta in (timedelta(minutes=59), HOUR))
    assert inside != after
    assert listing["ends"]["since"] == iso(NOW + HOUR)
    assert listing["ends"]["files"][ENTRY][0] == after
    assert "memtest-7" in (tmp_path / "output/boot" / ENTRY).read_text()
    assert "memtest-7" not in listing["contents"][after]


def iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


# Real processes


def verified(url: str, *arguments: object) -> tuple[int, dict[str, str]]:
    """The exit code of `verify-mirror`, and the faults that it finds, by path."""
    done = captured("verify-mirror", url, *arguments, "-o", "json")
    return done.returncode, {each["path"]: each["fault"] for each in json.loads(done.stdout)["items"]}


def test_finding_m6_a_mirror_is_proven_by_its_url_and_the_public_root_key_alone(
    tmp_path: Path, repository: Repository
) -> None:
    keys = tmp_path / "keys"
    public = captured("secret", "keygen", keys, "--signed-list").stdout
    assert public == (keys / "root.pub").read_text()
    boots = tmp_path / "boots.git"
    pygit2.init_repository(str(boots), bare=True).free()
    options = (*configured(list_keys=str(keys)), "--target", f"git+file://{boots}#boot")
    with running(repository.bare, tmp_path, *options, records="fresh") as instance:
        until_condition(instance, "ListCurrent", status=True, reason="Signed")
        until_condition(instance, "TargetsCurrent", status=True, reason="Current")
        assert instance.get("/signed/timestamp.json").status_code == 404  # the endpoint lets nobody list machines
        eventually(lambda: git(boots, "for-each-ref", "refs/heads/boot"))  # the condition is true while it is pushed
        eventually(lambda: git(boots, "ls-tree", "-r", "--name-only", "boot", "boot/signed/timestamp.json"))
        listed = {path.name for path in (tmp_path / "output/boot/signed").iterdir() if path.is_file()}
        carried = git(boots, "ls-tree", "--name-only", "boot", "boot/signed/").split()
        assert {path.rpartition("/")[2] for path in carried} == {*listed, "servers"}
    copy, (key, root) = tmp_path / "copy", (keys / "root.pub", (keys / "1.root.json").read_bytes())
    shutil.copytree(tmp_path / "output/boot", copy)
    (tmp_path / "nginx").mkdir()
    with nginx(copy, tmp_path / "output/ops/serve", tmp_path / "nginx") as mirror:
        reader = client(f"{mirror.url}/signed", root, tmp_path / "cache")
        listing = target(reader, "servers/web01.json")
        content = httpx.get(f"{mirror.url}/{ENTRY}").content
        assert listing is not None
        assert listing["files"][ENTRY] == [[None, sha256(content).hexdigest(), len(content)]]
        assert verified(mirror.url, "--key", key, "--read-entries") == (Exit.FINE, {})
        edited, found = copy / ENTRY, (copy / ENTRY).stat()
        edited.write_bytes(content.replace(b"flatcar", b"rootkit"))
        os.utime(edited, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert edited.stat().st_size == found.st_size
        assert verified(mirror.url, "--key", key, "--read-entries") == (Exit.PARTIAL, {ENTRY: "Wrong"})
    other = made_keys(tmp_path / "other", NOW)
    assert "BadSignature" in verified(str(copy), "--key", other / "root.pub")[1].values()


@pytest.mark.parametrize("changed", ["nothing", "the scripts of a window"])
def test_a_copy_without_its_publisher_reports_a_window_that_is_over(
    tmp_path: Path, repository: Repository, keys: Path, changed: str
) -> None:
    start, end = NOW - 2 * HOUR, NOW - HOUR
    repository.push({"08.yaml": maintenance("repair", spec=f"window: {{start: '{iso(start)}', end: '{iso(end)}'}}")})
    with reconciled(tmp_path, repository, keys) as (_, reconcile):
        reconcile(start + timedelta(minutes=1))  # and then it dies
    copy = shutil.copytree(tmp_path / "output/boot", tmp_path / "copy")
    key = keys / "root.pub"
    stale = {path: fault for path, fault in verified(str(copy), "--key", key)[1].items() if fault == "Stale"}
    assert ENTRY in stale
    if changed == "the scripts of a window":
        listing = json.loads((copy / "signed/servers/web01.json").read_bytes())
        for path, (digest, _) in listing["ends"]["files"].items():
            (copy / path).write_text(listing["contents"][digest])
        assert "Stale" not in verified(str(copy), "--key", key)[1].values()
