"""The signed list of a running instance: renewed without a commit, by keys that change, and carried to copies."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pygit2
import pytest
from tuf.api.exceptions import ExpiredMetadataError

from gitboot.child_processes import Child
from gitboot.cli.main import Exit
from gitboot.controller import checkpoint, current_plans
from gitboot.controller.instance.state_directory import CACHE
from gitboot.controller.instance_state import LastFetch
from gitboot.controller.loop import Loop
from gitboot.endpoint.boot_responses import BootResponses
from gitboot.endpoint.served_files import PublishedTree
from gitboot.errors import InvalidRepository, NotEvaluated, PublishError, SourceError
from gitboot.evaluator.protocol import Commit, EvaluationResult, build_limit_problem
from gitboot.fleet.revision import Revision
from gitboot.jsonio import format_instant
from gitboot.publish.durable_files import DurableDirectory
from gitboot.publish.list_root import replace_list_keys
from gitboot.publish.publisher import OutputDirectory, PublicationResult
from gitboot.publish.signed_list import VALID
from gitboot.publish.tree_reader import find_damage
from gitboot.status.conditions import Condition
from gitboot.status.work_progress import ReportProgress, iterate_with_progress
from tests.helpers.disks_and_terminals import fill, small_disk
from tests.helpers.fleets import (
    SEED,
    at,
    fleet,
    image,
    maintenance,
    make_mac,
    policy,
    profile,
    server,
    write_configuration,
)
from tests.helpers.forked_commands import run_forked
from tests.helpers.instance_in_process import InProcessEvaluator, Parts, run_in_process
from tests.helpers.instance_with_bmcs import wait_for_condition
from tests.helpers.mirrors import nginx
from tests.helpers.published_trees import verify_tree
from tests.helpers.running_instance import Repository, eventually, git, running
from tests.helpers.signed_lists import list_current_digests, make_client, make_keys, target

NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)
ENTRY = f"v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push({f"{number:02}.yaml": text for number, text in enumerate(SEED)})
    return made


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return make_keys(tmp_path / "keys", NOW)


@contextmanager
def run_reconciles(
    tmp_path: Path, repository: Repository, keys: Path | None
) -> Iterator[tuple[Parts, Callable[[datetime], Condition]]]:
    with run_in_process(tmp_path, repository.bare, initial="fresh", list_keys=keys) as parts:

        def reconcile(now: datetime) -> Condition:
            parts.source.fetch()
            for _ in range(2):  # earlier requests come first
                parts.reconciler.reconcile(now)
            return next(each for each in parts.reconciler.status.conditions if each.type == "SignedListCurrent")

        yield parts, reconcile


def timestamp(tmp_path: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((tmp_path / "output/boot/signed/timestamp.json").read_bytes())["signed"]
    return found


def test_a_list_is_renewed_without_a_commit(tmp_path: Path, repository: Repository, keys: Path) -> None:
    with run_reconciles(tmp_path, repository, keys) as (_, reconcile):
        assert reconcile(NOW).reason == "Signed"
        first, manifest = timestamp(tmp_path), (tmp_path / "output/ops/manifest.json").read_bytes()
        reconcile(NOW + 11 * HOUR)
        assert timestamp(tmp_path) == first
        assert reconcile(NOW + 13 * HOUR).status
        assert datetime.fromisoformat(timestamp(tmp_path)["expires"]) == NOW + 13 * HOUR + VALID
        assert (tmp_path / "output/ops/manifest.json").read_bytes() == manifest


def test_an_expired_list_is_rejected_by_readers_and_the_next_instance_renews_it(
    tmp_path: Path, repository: Repository, keys: Path
) -> None:
    with run_reconciles(tmp_path, repository, keys) as (_, reconcile):
        reconcile(NOW - VALID - HOUR)
    root, signed = (keys / "1.root.json").read_bytes(), tmp_path / "output/boot/signed"
    with pytest.raises(ExpiredMetadataError):
        make_client(signed, root, tmp_path / "cache").refresh()
    with run_reconciles(tmp_path, repository, keys) as (_, reconcile):
        assert reconcile(NOW).status
    make_client(signed, root, tmp_path / "cache").refresh()


def test_without_keys_the_list_is_unsigned_and_that_is_not_an_error(tmp_path: Path, repository: Repository) -> None:
    with run_reconciles(tmp_path, repository, None) as (_, reconcile):
        found = reconcile(NOW)
    assert (found.status, found.reason) == (True, "Unsigned")


def test_while_keys_are_missing_the_earlier_list_stays_and_a_condition_shows_it(
    tmp_path: Path, repository: Repository, keys: Path
) -> None:
    with run_reconciles(tmp_path, repository, keys) as (parts, reconcile):
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
    reader = make_client(tmp_path / "output/boot/signed", (keys / "1.root.json").read_bytes(), tmp_path / "cache")
    assert target(reader, "servers/web02.json") is not None
    told = [event for event in parts.events if event.type == "SignedListNotCurrent"]
    assert len(told) == 1


def test_after_a_replacement_of_the_publication_key_the_running_instance_signs_with_the_new_one(
    tmp_path: Path, repository: Repository, keys: Path
) -> None:
    root = (keys / "1.root.json").read_bytes()
    with run_reconciles(tmp_path, repository, keys) as (_, reconcile):
        reconcile(NOW)
        replace_list_keys(keys, None, None, NOW)
        assert reconcile(NOW + HOUR).reason == "Signed"
    reader = make_client(tmp_path / "output/boot/signed", root, tmp_path / "cache")
    assert target(reader, "servers/web01.json") is not None
    assert json.loads((tmp_path / "cache/root.json").read_bytes())["signed"]["version"] == 2


def test_a_root_that_expires_soon_is_a_condition(tmp_path: Path, repository: Repository, keys: Path) -> None:
    with run_reconciles(tmp_path, repository, keys) as (_, reconcile):
        found = reconcile(NOW + timedelta(days=3 * 365 - 59))
    assert (found.status, found.reason) == (False, "RootExpires")


def test_the_end_of_a_window_changes_the_list_at_once(tmp_path: Path, repository: Repository, keys: Path) -> None:
    repository.push(
        {
            "08.yaml": maintenance(
                "repair", spec=f"window: {{start: '{format_time(NOW)}', end: '{format_time(NOW + HOUR)}'}}"
            )
        }
    )
    with run_reconciles(tmp_path, repository, keys) as (_, reconcile):
        reconcile(NOW + timedelta(minutes=1))
    reader = make_client(tmp_path / "output/boot/signed", (keys / "1.root.json").read_bytes(), tmp_path / "cache")
    listing = target(reader, "servers/web01.json")
    assert listing is not None
    inside, after = (list_current_digests(listing, NOW + delta)[ENTRY] for delta in (timedelta(minutes=59), HOUR))
    assert inside != after
    assert listing["ends"]["since"] == format_time(NOW + HOUR)
    assert listing["ends"]["files"][ENTRY][0] == after
    assert "memtest-7" in (tmp_path / "output/boot" / ENTRY).read_text()
    assert "memtest-7" not in listing["contents"][after]


def format_time(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


# Real processes


def verify_mirror(url: str, *arguments: object) -> tuple[int, dict[str, str]]:
    """The exit code of `verify-mirror`, and the faults that it finds, by path."""
    done = run_forked("verify-mirror", url, *arguments, "-o", "json")
    return done.returncode, {each["path"]: each["fault"] for each in json.loads(done.stdout)["items"]}


def test_finding_m6_a_mirror_is_verified_with_its_url_and_the_public_root_key_alone(
    tmp_path: Path, repository: Repository
) -> None:
    keys = tmp_path / "keys"
    public = run_forked("secret", "keygen", keys, "--signed-list").stdout
    assert public == (keys / "root.pub").read_text()
    boots = tmp_path / "boots.git"
    pygit2.init_repository(str(boots), bare=True).free()
    options = (*write_configuration(list_keys=str(keys)), "--target", f"git+file://{boots}#boot")
    with running(repository.bare, tmp_path, *options, records="fresh") as instance:
        wait_for_condition(instance, "SignedListCurrent", status=True, reason="Signed")
        wait_for_condition(instance, "TargetsCurrent", status=True, reason="Current")
        assert instance.get("/signed/timestamp.json").status_code == 404  # the endpoint does not list machines
        eventually(lambda: git(boots, "for-each-ref", "refs/heads/boot"))  # the condition is true while it is pushed

        def is_carried() -> bool:
            listed = {path.name for path in (tmp_path / "output/boot/signed").iterdir() if path.is_file()}
            carried = git(boots, "ls-tree", "--name-only", "boot", "boot/signed/").split()
            return "timestamp.json" in listed and {path.rpartition("/")[2] for path in carried} == {*listed, "servers"}

        eventually(is_carried)
    copy, (key, root) = tmp_path / "copy", (keys / "root.pub", (keys / "1.root.json").read_bytes())
    shutil.copytree(tmp_path / "output/boot", copy)
    (tmp_path / "nginx").mkdir()
    with nginx(copy, tmp_path / "output/ops/serve", tmp_path / "nginx") as mirror:
        reader = make_client(f"{mirror.url}/signed", root, tmp_path / "cache")
        listing = target(reader, "servers/web01.json")
        content = httpx.get(f"{mirror.url}/{ENTRY}").content
        assert listing is not None
        assert listing["files"][ENTRY] == [[None, sha256(content).hexdigest(), len(content)]]
        assert verify_mirror(mirror.url, "--key", key, "--read-entries") == (Exit.FINE, {})
        edited, found = copy / ENTRY, (copy / ENTRY).stat()
        edited.write_bytes(content.replace(b"flatcar", b"rootkit"))
        os.utime(edited, ns=(found.st_atime_ns, found.st_mtime_ns))
        assert edited.stat().st_size == found.st_size
        assert verify_mirror(mirror.url, "--key", key, "--read-entries") == (Exit.PARTIAL, {ENTRY: "Wrong"})
    other = make_keys(tmp_path / "other", NOW)
    assert "BadSignature" in verify_mirror(str(copy), "--key", other / "root.pub")[1].values()


@pytest.mark.parametrize("changed", ["nothing", "the scripts of a window"])
def test_a_copy_without_its_publisher_reports_a_window_that_has_ended(
    tmp_path: Path, repository: Repository, keys: Path, changed: str
) -> None:
    start, end = NOW - 2 * HOUR, NOW - HOUR
    repository.push(
        {"08.yaml": maintenance("repair", spec=f"window: {{start: '{format_time(start)}', end: '{format_time(end)}'}}")}
    )
    with run_reconciles(tmp_path, repository, keys) as (_, reconcile):
        reconcile(start + timedelta(minutes=1))  # and then it dies
    copy = shutil.copytree(tmp_path / "output/boot", tmp_path / "copy")
    key = keys / "root.pub"
    stale = {path: fault for path, fault in verify_mirror(str(copy), "--key", key)[1].items() if fault == "Stale"}
    assert ENTRY in stale
    if changed == "the scripts of a window":
        listing = json.loads((copy / "signed/servers/web01.json").read_bytes())
        for path, (digest, _) in listing["ends"]["files"].items():
            (copy / path).write_text(listing["contents"][digest])
        assert "Stale" not in verify_mirror(str(copy), "--key", key)[1].values()


# Windows end in OUTPUT while a started instance has published no plan yet, for any reason


OPEN, OVER = at("20T23:00"), at("21T04:00")
WHILE, UNTIL = maintenance("repair", "20T22:00 21T04:00"), maintenance("repair", "20T22:00 21T08:00")
NAMES = ("web01", "web02")
ENTRIES = tuple(f"v1/boot/{make_mac(name).replace(':', '-')}/boot.ipxe" for name in NAMES)


def documents(*more: str) -> dict[str, str]:
    seed = (
        fleet(),
        *(server(name, "role: web") for name in NAMES),
        *(image("flatcar-1"), image("memtest-7", "writesDisk: false")),
        *(profile("web", "flatcar-1"), profile("repair", "memtest-7"), policy("web", often="Always")),
    )
    return {"all.yaml": "---\n".join((*seed, *more))}


@pytest.fixture
def repair_repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push(documents(WHILE))
    return made


def publish(folder: Path, repair_repository: Repository, now: datetime) -> None:
    """Let an instance publish the fleet, and end. Its cache and checkpoint are gone, as those of another version."""
    with run_in_process(folder, repair_repository.bare, initial="fresh", clock=lambda: now) as parts:
        parts.source.fetch()
        parts.reconciler.reconcile(now, fetched=LastFetch(), wait=True)
        assert count_maintenance(folder) == len(NAMES)
    (folder / "state" / CACHE).unlink(missing_ok=True)


def publish_two_commits(folder: Path, repair_repository: Repository) -> None:
    """Let an instance publish two commits, and end. Its checkpoint has the first one."""
    with run_in_process(folder, repair_repository.bare, initial="fresh", clock=lambda: OPEN) as parts:
        for text in (None, "one"):
            if text is not None:
                repair_repository.push({"README.md": text})
            parts.source.fetch()
            parts.reconciler.reconcile(OPEN, fetched=LastFetch(), wait=True)


@pytest.fixture
def left(tmp_path: Path, repair_repository: Repository) -> Path:
    """The folder of an instance that has published an open window, and has ended."""
    publish(tmp_path, repair_repository, OPEN)
    return tmp_path


def count_maintenance(folder: Path) -> int:
    """Return how many servers boot the maintenance, by the files that a web server without gitboot serves."""
    return sum("memtest-7" in (folder / "output" / "boot" / entry).read_text() for entry in ENTRIES)


def count_served(folder: Path, now: datetime) -> int:
    answers = BootResponses(PublishedTree(folder / "output", lambda: now))
    found = [answers.find(f"/{entry}", lambda: None, now) for entry in ENTRIES]
    return sum(each is not None and b"memtest-7" in bytes(each.reply.body) for each in found)


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the published files without the status of the instance."""
    root = folder / "output"
    files = ((path.relative_to(root).as_posix(), path) for path in sorted(root.rglob("*")) if path.is_file())
    return {name: path.read_bytes() for name, path in files if not name.startswith(("ops/.gitboot/", "ops/status"))}


def reconcile_until(parts: Parts, now: datetime, end: datetime, fetched: LastFetch | None = None) -> list[datetime]:
    found: list[datetime] = []
    while now <= end:
        found.append(now)
        due = parts.reconciler.reconcile(now, fetched=fetched)
        if due is None:
            break
        assert due > now
        now = due
    return found


def find_facts(parts: Parts, type: str) -> list[dict[str, object]]:
    return [dict(each.facts) for each in parts.events if each.type == type]


def never_evaluate(self: InProcessEvaluator, revision: Revision, base: Commit | None) -> EvaluationResult | None:
    """It takes for ever."""
    return None


def fail_timeout(self: InProcessEvaluator, revision: Revision, base: Commit | None) -> EvaluationResult | None:
    """It is ended again and again."""
    raise NotEvaluated([build_limit_problem("the evaluation did not end within 20 s")])


def reject_commit(self: InProcessEvaluator, revision: Revision, base: Commit | None) -> EvaluationResult | None:
    """A check that the version before did not have rejects it."""
    raise InvalidRepository([build_limit_problem("a new check")])


def fail_read(self: InProcessEvaluator, revision: Revision, base: Commit | None) -> EvaluationResult | None:
    raise SourceError("the clone cannot be read")


@pytest.mark.parametrize("evaluate", [never_evaluate, fail_timeout, reject_commit, fail_read])
@pytest.mark.parametrize("is_gone", [False, True], ids=["", "without the remote"])
def test_windows_end_on_time_with_any_result_of_the_evaluation(
    left: Path,
    repair_repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    evaluate: Callable[[InProcessEvaluator, Revision, Commit | None], EvaluationResult | None],
    is_gone: bool,
) -> None:
    monkeypatch.setattr(InProcessEvaluator, "evaluate", evaluate)
    before = read_tree(left)
    with run_in_process(left, repair_repository.bare, clock=lambda: OPEN) as parts:
        if is_gone:
            shutil.move(repair_repository.bare, left / "elsewhere")
            fetched = LastFetch(failed=True, reason="HostUnreachable", message="gone")
        else:
            parts.source.fetch()
            fetched = LastFetch()
        reconcile_until(parts, OPEN, OVER - timedelta(seconds=1), fetched)
        assert read_tree(left) == before
        assert OVER in reconcile_until(parts, OVER - timedelta(seconds=1), OVER, fetched), "it wakes at the end"
        assert count_maintenance(left) == count_served(left, OVER) == 0
        assert find_facts(parts, "WindowsEnded") == [{"servers": list(NAMES)}]
        assert parts.reconciler.status.applied is None
    after = read_tree(left)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed and all(b"memtest-7" in before[name] for name in changed)
    assert all(name.startswith("boot/") for name in changed), "nothing else has changed"


@pytest.mark.parametrize("now", [OVER, OPEN], ids=["the window is over", "the new commit prolongs the window"])
def test_the_first_publication_finds_the_tree_as_its_manifest_states(
    left: Path, repair_repository: Repository, monkeypatch: pytest.MonkeyPatch, now: datetime
) -> None:
    more = WHILE
    with monkeypatch.context() as patch:
        patch.setattr(InProcessEvaluator, "evaluate", never_evaluate)
        with run_in_process(left, repair_repository.bare, clock=lambda: OVER) as parts:
            reconcile_until(parts, OVER, OVER + timedelta(seconds=2))
            assert count_maintenance(left) == 0
            if now == OPEN:
                repair_repository.push(documents(UNTIL))
                more = UNTIL
            patch.undo()
            for _ in range(3):
                parts.source.fetch()
                parts.reconciler.reconcile(OVER, fetched=LastFetch(), wait=True)
    assert count_maintenance(left) == (len(NAMES) if more is UNTIL else 0)
    assert verify_tree(left / "output") == ()
    assert set(find_damage(left / "output")) == {None}


def test_an_instance_that_resumes_a_checkpoint_publishes_servers_whose_windows_it_ended(
    tmp_path: Path, repair_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accepted commit is newer than the checkpoint, and its evaluation is held back."""
    monkeypatch.setattr(checkpoint, "MIN_SERVERS", 0)
    publish_two_commits(tmp_path, repair_repository)
    with monkeypatch.context() as patch:
        patch.setattr(InProcessEvaluator, "evaluate", never_evaluate)
        with run_in_process(tmp_path, repair_repository.bare, clock=lambda: OPEN) as parts:
            assert parts.reconciler.state.publication.complete, "it goes on"
            reconcile_until(parts, OPEN, OVER)
            assert count_maintenance(tmp_path) == 0
            assert parts.reconciler.state.publication.outdated_servers == set(NAMES)
            patch.undo()
            parts.reconciler.reconcile(OVER, wait=True)
            assert parts.reconciler.state.publication.outdated_servers == set()
    assert count_maintenance(tmp_path) == 0
    assert verify_tree(tmp_path / "output") == ()


@pytest.mark.parametrize("is_prolonged", [False, True], ids=["", "the new commit prolongs the window"])
@pytest.mark.parametrize("has_waited", [False, True], ids=["in the first reconcile", "in a later reconcile"])
def test_a_window_that_ends_while_the_first_plans_are_made_is_ended_meanwhile(
    left: Path, repair_repository: Repository, monkeypatch: pytest.MonkeyPatch, has_waited: bool, is_prolonged: bool
) -> None:
    now, seen = OPEN, list[tuple[str, int]]()
    publish_tree = OutputDirectory.publish

    def planned_slowly(items: Collection[str], told: ReportProgress) -> Iterator[str]:
        """Make plans until the window is over."""
        nonlocal now
        for item in iterate_with_progress(items, told):
            yield item
            now = OVER
        seen.append(("planned", count_maintenance(left)))

    def publish_noted(self: OutputDirectory, *args: Any, **kwargs: Any) -> PublicationResult:
        seen.append(("publishes", count_maintenance(left)))
        done = publish_tree(self, *args, **kwargs)
        seen.append(("published", count_maintenance(left)))
        return done

    if is_prolonged:
        repair_repository.push(documents(UNTIL))
    with run_in_process(left, repair_repository.bare, clock=lambda: now) as parts:
        parts.source.fetch()
        if has_waited:
            with monkeypatch.context() as patch:
                patch.setattr(InProcessEvaluator, "evaluate", never_evaluate)
                for now in (OPEN, OPEN + timedelta(seconds=2)):
                    parts.reconciler.reconcile(now, fetched=LastFetch())
        monkeypatch.setattr(current_plans, "iterate_with_progress", planned_slowly)
        monkeypatch.setattr(OutputDirectory, "publish", publish_noted)
        parts.reconciler.reconcile(now, fetched=LastFetch())
        assert find_facts(parts, "WindowsEnded") == [{"servers": list(NAMES)}]
        after = len(NAMES) if is_prolonged else 0
        assert [each for each in seen if each[0] != "planned"] == [("publishes", 0), ("published", after)]
        assert seen[0] == ("planned", 0)
        assert parts.reconciler.state.publication.outdated_servers == set()
        parts.reconciler.reconcile(OVER, fetched=LastFetch())
    assert count_maintenance(left) == after
    assert verify_tree(left / "output") == ()
    assert set(find_damage(left / "output")) == {None}


def test_a_start_that_publishes_at_once_does_not_read_the_state_to_end_windows(
    left: Path, repair_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OutputDirectory, "end_windows", None)
    with run_in_process(left, repair_repository.bare, clock=lambda: OVER) as parts:
        with monkeypatch.context() as patch:
            patch.setattr(InProcessEvaluator, "evaluate", never_evaluate)
            parts.reconciler.reconcile(OVER)
        parts.reconciler.reconcile(OVER + timedelta(seconds=1))
        assert count_maintenance(left) == 0
        assert not find_facts(parts, "WindowsEnded")


def test_windows_end_even_if_the_first_publication_fails(
    left: Path, repair_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish_nothing(*_: object, **__: object) -> None:
        raise PublishError("no space left on device")

    monkeypatch.setattr(OutputDirectory, "publish", publish_nothing)
    with run_in_process(left, repair_repository.bare, clock=lambda: OPEN) as parts:
        reconcile_until(parts, OPEN, OVER)
        assert count_maintenance(left) == 0


def test_windows_end_in_a_running_instance_while_the_disk_of_output_is_full(
    tmp_path: Path, repair_repository: Repository
) -> None:
    with small_disk(tmp_path, size="4m", name="output") as output:
        publish_two_commits(tmp_path, repair_repository)
        with run_in_process(tmp_path, repair_repository.bare, clock=lambda: OPEN) as parts:
            reconcile_until(parts, OPEN, OPEN + timedelta(seconds=5))
            assert count_maintenance(tmp_path) == len(NAMES)
            fill(output / "filler")
            reconcile_until(parts, OVER, OVER + timedelta(seconds=5))
            assert not parts.reconciler.status.condition("Published")
            assert count_maintenance(tmp_path) == 0
            (output / "filler").unlink()
            reconcile_until(parts, OVER + timedelta(seconds=6), OVER + timedelta(minutes=1))
            assert parts.reconciler.status.condition("Published")
        assert count_maintenance(tmp_path) == 0
        assert verify_tree(output) == ()


def test_a_window_that_cannot_be_ended_is_reported_once_and_tried_again(
    left: Path, repair_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InProcessEvaluator, "evaluate", never_evaluate)
    with run_in_process(left, repair_repository.bare, clock=lambda: OVER) as parts:
        with monkeypatch.context() as patch:
            stage = DurableDirectory.stage

            def full(self: DurableDirectory, path: str, *args: object, **kwargs: object) -> None:
                if path.startswith("boot/"):
                    raise PublishError("no space left on device")
                stage(self, path, *args, **kwargs)  # type: ignore[arg-type]

            patch.setattr(DurableDirectory, "stage", full)
            times = reconcile_until(parts, OVER, OVER + timedelta(minutes=1))
        assert len(times) > 5
        assert len([each for each in parts.events if each.type == "WindowsNotEnded" and each.warning]) == 1
        assert count_maintenance(left) == len(NAMES)
        reconcile_until(parts, times[-1], times[-1] + timedelta(seconds=5))
        assert count_maintenance(left) == 0


def test_servers_with_replaced_files_are_published_even_if_a_later_file_failed(
    tmp_path: Path, repair_repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance goes on from a checkpoint, and publishes before it tries again to end the windows."""
    monkeypatch.setattr(checkpoint, "MIN_SERVERS", 0)
    publish_two_commits(tmp_path, repair_repository)
    place = DurableDirectory.place

    def full(self: DurableDirectory, path: str) -> None:
        if path == f"boot/{ENTRIES[1]}":
            raise PublishError("no space left on device")
        place(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(InProcessEvaluator, "evaluate", never_evaluate)
        patch.setattr(DurableDirectory, "place", full)
        with run_in_process(tmp_path, repair_repository.bare, clock=lambda: OPEN) as parts:
            reconcile_until(parts, OPEN, OVER)
            assert count_maintenance(tmp_path) == 1
            assert parts.reconciler.state.publication.outdated_servers == set(NAMES)
            assert not find_facts(parts, "WindowsEnded")
            patch.undo()
            repair_repository.push(documents(UNTIL))
            parts.source.fetch()
            parts.reconciler.reconcile(OVER, fetched=LastFetch(), wait=True)
            parts.reconciler.reconcile(OVER, wait=True)
    assert count_maintenance(tmp_path) == len(NAMES), "the new commit prolongs the window"
    assert verify_tree(tmp_path / "output") == ()


class StoppedChild(Child):
    def __init__(self, module: str, *arguments: str) -> None:
        super().__init__(module, *arguments)
        os.kill(self._process.pid, signal.SIGSTOP)


@contextmanager
def run_loop(parts: Parts) -> Iterator[None]:
    """A loop that polls once an hour, in a thread of its own."""
    loop = Loop(parts.reconciler, parts.source, poll_s=3600, clock=lambda: datetime.now(UTC), tell=parts.events.append)
    thread = Thread(target=loop.run)
    thread.start()
    try:
        yield
    finally:
        loop.stop()
        thread.join()


def test_the_loop_ends_a_window_on_time_while_its_evaluator_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of this machine. Only the end of the window wakes the loop, unless the window is over before."""
    monkeypatch.setattr("gitboot.controller.loop.WRITTEN_EVERY_S", 3600.0)
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)
    repair = maintenance("repair").replace("profile:", f"window: {{end: '{format_instant(end)}'}}, profile:")
    repair_repository = Repository.create(tmp_path / "git")
    repair_repository.push(documents(repair))
    publish(tmp_path, repair_repository, end - timedelta(hours=1))
    monkeypatch.setattr("gitboot.evaluator.client.Child", StoppedChild)
    with run_in_process(tmp_path, repair_repository.bare, apart=True) as parts, run_loop(parts):
        eventually(lambda: count_maintenance(tmp_path) == 0)
        assert parts.reconciler.status.applied is None, "its evaluator answers nothing"
        assert datetime.now(UTC) >= end
        eventually(lambda: find_facts(parts, "WindowsEnded") == [{"servers": list(NAMES)}])
