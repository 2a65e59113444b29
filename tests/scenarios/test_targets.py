"""Targets as their users have them: a running instance, a Git remote, a bucket; and what waits for them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE

import pygit2
import pytest
from msgspec import structs

from gitboot.publish.targets.sync_steps import HEAD, parse_head, render_head
from tests.helpers.fleets import (
    SEED,
    document,
    image,
    make_mac,
    make_uuid,
    policy,
    profile,
    store_credentials,
    write_configuration,
)
from tests.helpers.forked_commands import RUN_FIRST, run_forked
from tests.helpers.instance_with_bmcs import BASE_URL, Rack, run_command, wait_for_condition
from tests.helpers.mirrors import KEY, Store, s3_server
from tests.helpers.running_instance import Instance, Repository, eventually, git, running
from tests.publish.test_mirror_repair import publish_signed

ENTRY = f"v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"
BY_UUID = f"ipxe/{make_uuid('web01')}"


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with s3_server() as found:
        for bucket in ("boots", "killed", "strange", "dies", "waits", "asked", "turns", "repaired"):
            found.make(bucket)
        yield found


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    store_credentials(tmp_path / "keys", "store", user=KEY["aws_access_key_id"], password=KEY["aws_secret_access_key"])
    return tmp_path / "keys" / "store"


def make_fleet_files(number: int) -> dict[str, str]:
    """Return a fleet whose one server boots an image of this number, with user data that contains it."""
    documents = (
        *SEED,
        image(f"next-{number}", "userData: CloudInit"),
        profile("next", f"next-{number}", "userData: {format: CloudInit, template: t.j2}"),
        policy("next", "All", "priority: 1", boots="next"),
    )
    return {"fleet.yaml": "---\n".join(documents), "t.j2": "#cloud-config\n# {{ image.name }}\n"}


def assert_no_chain_is_mixed(seen: dict[str, bytes]) -> None:
    """Assert that the boot script and the user data that it names are of one commit."""
    for path in (f"boot/{ENTRY}", f"boot/{BY_UUID}"):
        script = seen.get(path, b"").decode()
        images = set(re.findall(r"/assets/(next-\d)/", script))
        for digest, name in re.findall(r"/o/([0-9a-f]{64})/([\w-]+)?", script):
            found = {content for at, content in seen.items() if at.startswith(f"boot/o/{digest}/")}
            assert found, (path, digest, name)
            assert all(any(each.encode() in content for content in found) for each in images)


def read_files(root: Path) -> dict[str, tuple[bytes, int]]:
    """The content and the modification time, in seconds, of each file for machines, by path.

    A file that another process replaces or removes meanwhile is left out.
    """
    found: dict[str, tuple[bytes, int]] = {}
    for folder, _, names in os.walk(root / "boot"):
        for each in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):
                found[str(each.relative_to(root))] = each.read_bytes(), int(each.stat().st_mtime)
    return found


def contents(store: Store, bucket: str) -> dict[str, bytes]:
    return store.contents(bucket, "boot/")


def test_a_branch_a_bucket_and_a_folder_receive_every_publication(tmp_path: Path, store: Store, keys: Path) -> None:
    store.reset()
    repository = Repository.create(tmp_path / "git")
    repository.push(make_fleet_files(1))
    boots = tmp_path / "boots.git"
    pygit2.init_repository(str(boots), bare=True).free()
    (folder := tmp_path / "mirror").mkdir(0o750)
    targets = (
        *("--target", str(folder)),
        *("--target", f"git+file://{boots}#boot"),
        *("--target", f"s3://boots?endpoint={store.url}&credentials={keys}"),
    )
    with running(repository.bare, tmp_path, *write_configuration(max_reinstalls=9), *targets) as instance:
        wait_for_condition(instance, "TargetsCurrent", status=True, reason="Current")
        eventually(lambda: b"next-1" in contents(store, "boots").get(f"boot/{ENTRY}", b""))
        commit = repository.push(make_fleet_files(2))
        eventually(lambda: b"next-2" in contents(store, "boots")[f"boot/{ENTRY}"])
        eventually(lambda: commit in git(boots, "for-each-ref", "--format=%(contents)", "refs/heads/boot"))
        output = tmp_path / "output"
        published = {
            str(each.relative_to(output)): each.read_bytes() for each in output.glob("boot/**/*") if each.is_file()
        }
        eventually(lambda: contents(store, "boots") == published)  # a boot script is put before those that are equal
        eventually(lambda: read_files(folder) == read_files(output))
        assert {S_IMODE(each.stat().st_mode) for each in (folder / "boot").rglob("*")} == {0o750, 0o640}
        listed = git(boots, "ls-tree", "-r", "--name-only", "boot", "boot/").splitlines()
        assert {path: git(boots, "rev-parse", f"boot:{path}") for path in listed} == {
            path: str(pygit2.hash(content)) for path, content in published.items()
        }
        assert git(boots, "log", "-1", "--format=%an <%ae>", "boot") == "A <a@example.net>"
        said = f"{instance.status()} {instance.events}"
    assert KEY["aws_secret_access_key"] not in said


def test_finding_m6_a_target_is_repaired_while_its_instance_runs_and_by_no_other_ledger(
    tmp_path: Path, store: Store, keys: Path
) -> None:
    """The instance goes on as the target's writer, also if it publishes while the command repairs."""
    store.reset()
    repository = Repository.create(tmp_path / "git")
    repository.push(make_fleet_files(1))
    (folder := tmp_path / "mirror").mkdir()
    output, theirs = tmp_path / "output", publish_signed(tmp_path / "theirs").root
    bucket = f"s3://repaired?endpoint={store.url}&credentials={keys}"

    def repair(mirror: str | Path, tree: Path) -> subprocess.CompletedProcess[str]:
        return run_forked("verify-mirror", mirror, "--tree", tree, "--repair", "all")

    def holds_all(number: int) -> bool:
        published = read_files(output)
        if f"next-{number}".encode() not in published.get(f"boot/{ENTRY}", (b"", 0))[0]:
            return False
        in_bucket = contents(store, "repaired")
        return read_files(folder) == published and in_bucket == {path: each for path, (each, _) in published.items()}

    with running(
        repository.bare, tmp_path, *write_configuration(max_reinstalls=9), "--target", str(folder), "--target", bucket
    ) as instance:
        eventually(lambda: holds_all(1))
        for mirror in (folder / "boot", bucket):  # the head has it after the files exist
            eventually(lambda: repair(mirror, output).returncode == 0)  # noqa: B023 - it ends here
        right = (folder / "boot" / ENTRY).read_bytes()

        def spoil() -> None:
            (folder / "boot" / ENTRY).write_bytes(b"#!ipxe\nshell\n")
            store.put("repaired", f"boot/{ENTRY}", b"#!ipxe\nshell\n")

        spoil()
        for mirror in (folder / "boot", bucket):
            done = repair(mirror, theirs)
            assert (done.returncode, "belongs to the ledger" in done.stderr) == (8, True), done.stderr
        assert (folder / "boot" / ENTRY).read_bytes() == b"#!ipxe\nshell\n"
        for mirror in (folder / "boot", bucket):
            done = repair(mirror, output)
            assert done.returncode == 0, done.stderr
        assert (folder / "boot" / ENTRY).read_bytes() == right == contents(store, "repaired")[f"boot/{ENTRY}"]
        spoil()
        repository.push(make_fleet_files(2))
        for mirror in (folder / "boot", bucket):
            assert repair(mirror, output).returncode in (0, 8)
        eventually(lambda: holds_all(2))
        wait_for_condition(instance, "TargetsCurrent", status=True, reason="Current")


def test_an_instance_killed_at_any_write_leaves_complete_chains_that_the_next_one_completes(
    tmp_path: Path, store: Store, keys: Path
) -> None:
    store.reset()
    repository = Repository.create(tmp_path / "git")
    repository.push(make_fleet_files(1))
    target = (
        *write_configuration(max_reinstalls=9),
        "--target",
        f"s3://killed?endpoint={store.url}&credentials={keys}",
    )
    with running(repository.bare, tmp_path, *target):
        eventually(lambda: b"next-1" in contents(store, "killed").get(f"boot/{ENTRY}", b""))
    store.seen = lambda: assert_no_chain_is_mixed(contents(store, "killed"))
    for number, dies_at in enumerate((3, 6, 9), 2):
        store.writes.clear()
        with suppress(Killed), running(repository.bare, tmp_path, *target) as instance:
            store.fails = partial(_kill, instance, dies_at)
            repository.push(make_fleet_files(number))
            raise Killed(instance.process.wait(300))
        assert store.is_cut
        store.fails, store.is_cut = lambda *_: None, False
        assert_no_chain_is_mixed(contents(store, "killed"))
    with running(repository.bare, tmp_path, *target) as instance:
        wait_for_condition(instance, "TargetsCurrent", status=True, reason="Current")
        eventually(lambda: b"next-4" in contents(store, "killed")[f"boot/{ENTRY}"])
        assert b"/o/" in contents(store, "killed")[f"boot/{ENTRY}"]
    assert store.wrong == []


def _kill(instance: Instance, dies_at: int, number: int, *_: str) -> str | None:
    if number < dies_at:
        return None
    instance.process.send_signal(signal.SIGKILL)
    return "cut"


class Killed(Exception):
    """The end of an instance that does not end cleanly."""


def test_finding_s8_a_record_that_a_stranger_wrote_into_the_bucket_makes_the_target_not_current(
    tmp_path: Path, store: Store, keys: Path
) -> None:
    store.reset()
    repository = Repository.create(tmp_path / "git")
    repository.push(make_fleet_files(1))
    target = (
        *write_configuration(max_reinstalls=9),
        "--target",
        f"s3://strange?endpoint={store.url}&credentials={keys}",
    )
    with running(repository.bare, tmp_path, *target) as instance:
        wait_for_condition(instance, "TargetsCurrent", status=True, reason="Current")
        eventually(lambda: HEAD in store.paths("strange") and parse_head(store.get("strange", HEAD).content).shards)
    strange, head = b"[]\n", parse_head(store.get("strange", HEAD).content)
    digest = sha256(strange).hexdigest()
    store.put("strange", f"ops/shards/{digest}.json", strange)
    store.put("strange", HEAD, render_head(structs.replace(head, shards=dict.fromkeys(head.shards, digest))))
    with running(repository.bare, tmp_path, *target) as instance:
        found = wait_for_condition(instance, "TargetsCurrent", status=False, reason="PublishError")
        assert "is damaged" in found["message"]


# A fault of gitboot: reading a target raises MemoryError as long as there is a file.
_FAULTY = """
import os
from gitboot.publish.targets.sync_steps import StoreTarget
load = StoreTarget.load
def faulty(target):
    if os.path.exists({fault!r}):
        raise MemoryError("2.9 GB")
    return load(target)
StoreTarget.load = faulty
"""


def test_finding_s8_a_running_instance_reports_a_thread_that_died_and_starts_it_again(
    tmp_path: Path, store: Store, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.reset()
    fault = tmp_path / "fault"
    fault.touch()
    monkeypatch.setenv(RUN_FIRST, _FAULTY.format(fault=str(fault)))
    repository = Repository.create(tmp_path / "git")
    repository.push(make_fleet_files(1))
    target = ("--target", f"s3://dies?endpoint={store.url}&credentials={keys}")
    with (
        suppress(_Traceback),
        running(repository.bare, tmp_path, *write_configuration(max_reinstalls=9), *target) as instance,
    ):
        wait_for_condition(instance, "TargetsCurrent", status=False, reason="ThreadDied")
        found = wait_for_condition(instance, "ThreadsRunning", status=False, reason="Died")
        assert "s3://dies" in found["message"] and "MemoryError: 2.9 GB" in found["message"]
        fault.unlink()
        wait_for_condition(instance, "TargetsCurrent", status=True, reason="Current")
        assert f"boot/{ENTRY}" in contents(store, "dies")
        raise _Traceback


class _Traceback(Exception):
    """The end of an instance whose standard error has a traceback."""


# A target that has failed is tried again after an hour.
_PATIENT = """
from gitboot.publish.targets import follower
follower._LONGEST_RETRY_S = 3600.0
follower.Follower.__init__.__kwdefaults__["first_retry_s"] = 3600.0
"""


def test_finding_m8_a_store_that_is_back_is_tried_at_once_by_reconcile_and_at_the_next_transition(
    tmp_path: Path, store: Store, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows begin and end again and again once they are pushed, however long the instance takes to fetch them."""
    store.reset()
    monkeypatch.setenv(RUN_FIRST, _PATIENT)
    store.fails = lambda *_: 503
    repository = Repository.create(tmp_path / "git")
    repository.push(make_fleet_files(1))
    target = ("--target", f"s3://asked?endpoint={store.url}&credentials={keys}")
    with running(repository.bare, tmp_path, *write_configuration(max_reinstalls=9), *target) as instance:
        wait_for_condition(instance, "TargetsCurrent", status=False, reason="HostUnreachable")
        store.fails = lambda *_: None
        instance.process.send_signal(signal.SIGHUP)  # as `gitboot reconcile` does
        wait_for_condition(instance, "TargetsCurrent", status=True, reason="Current")
        store.fails = lambda *_: 503
        repository.push({"windows.yaml": "---\n".join(_make_windows())})
        wait_for_condition(instance, "TargetsCurrent", status=False, reason="HostUnreachable")
        store.fails = lambda *_: None
        wait_for_condition(instance, "TargetsCurrent", status=True, reason="Current")


def _make_windows() -> Iterator[str]:
    """Return maintenances of which one begins or ends every five seconds for a quarter of an hour."""
    begin = datetime.now(UTC).replace(microsecond=0)
    turns = [begin + timedelta(seconds=each) for each in range(5, 900, 5)]
    for number, (start, end) in enumerate(zip(turns[::2], turns[1::2], strict=False)):
        window = f"window: {{start: '{start:%FT%TZ}', end: '{end:%FT%TZ}'}}"
        spec = f"select: All, profile: repair, reinstall: EveryBoot, {window}"
        yield document("Maintenance", f"window-{number}", spec)


def test_an_override_waits_for_the_target_from_which_its_machine_boots(
    tmp_path: Path, store: Store, keys: Path
) -> None:
    """The machine would boot an outdated image and consume the override; machines of other targets do not wait."""
    store.reset()
    store.fails = lambda *_: 503
    with Rack(tmp_path, settings=f"baseURL: '{store.url}/waits/boot', endpoint: 'http://boot.test'") as rack:
        blade = rack.add("web01", provision=1)
        rack.push()
        query = f"endpoint={store.url}&credentials={keys}&serves={store.url}/waits/boot"
        given = ("--target", f"s3://waits?{query}", "--check-assets", "off")  # the kernels that it names are nowhere
        with rack.running(*given, records="fresh") as instance:
            wait_for_condition(instance, "TargetsCurrent", status=False, reason="HostUnreachable")
            assert "s3://waits: " in str(instance.status()["conditions"])
            eventually(lambda: (rack.output / "boot" / blade.entry[1:]).exists())
            assert not blade.stands
            assert blade.times_set == 0
            store.fails = lambda *_: None
            eventually(lambda: blade.stands)
            assert store.get("waits", f"boot{blade.entry}").content == (rack.output / f"boot{blade.entry}").read_bytes()


def test_a_one_time_boot_is_not_in_a_bucket_unless_an_endpoint_records_it(
    tmp_path: Path, store: Store, keys: Path
) -> None:
    store.reset()
    with Rack(tmp_path, settings=f"{BASE_URL}, serving: {{oneTimeBoots: EndpointOnly}}") as rack:
        blade = rack.add("web02", provision=1)
        rack.push()
        with rack.running(
            "--target", f"s3://waits/alone?endpoint={store.url}&credentials={keys}", records="fresh"
        ) as one:
            found = wait_for_condition(one, "OneTimeBootsServed", status=False, reason="NoEndpoint")
            assert "1 server cannot get its one-time boots" in found["message"]
            wait_for_condition(one, "TargetsCurrent", status=True, reason="Current")
            lies = (rack.output / f"boot{blade.entry}").read_text()
            there = store.get("waits", f"alone/boot{blade.entry}").content.decode()
            assert "kernel " not in lies
            assert there == lies


def test_a_report_in_the_log_of_a_store_counts(tmp_path: Path) -> None:
    """Hours late, and twice."""
    settings = "baseURL: 'http://cdn.test', endpoint: 'http://boot.test', provisioning: {evidence: Reported}"
    with Rack(tmp_path, settings=settings) as rack:
        blade = rack.add("web01", provision=1)
        rack.push()
        with rack.running(records="fresh"):
            (report,) = eventually(lambda: list((rack.output / "boot").glob("v1/boot/*/provisioned/*")))
            key = report.relative_to(rack.output)
            line = (
                f"0a boots [{datetime.now(UTC):%d/%b/%Y:%H:%M:%S} +0000] 10.12.0.13 - 3E57 REST.GET.OBJECT {key} "
                f'"GET /{key} HTTP/1.1" 200 - - - 7 6 "-" "curl/8" - h= - - - boots.test TLSv1.3 - -\n'
            )
            (tmp_path / "s3.log").write_text(line * 2)
            assert run_command("read-access-logs", tmp_path / "s3.log", "--spool", rack.state / "spool").code == 0
            eventually(lambda: "Reported" in rack.said("records", "show", blade.name))


def test_run_once_ends_when_a_target_has_the_publication_and_rejects_the_followed_branch(tmp_path: Path) -> None:
    with Rack(tmp_path) as rack:
        rack.add("web01")
        rack.push()
        bare = str(rack.repository.bare)
        for reference, path in (("main", bare), ("refs/heads/main", bare), ("main", bare.replace("e", "%65"))):
            done = rack.once("--rev", reference, "--target", f"git+file://{path}#main")
            assert "is the branch that this instance follows; choose another branch" in done.err, (reference, path)
        boots = tmp_path / "boots.git"
        pygit2.init_repository(str(boots), bare=True).free()
        done = rack.once("--target", f"git+file://{boots}#boot")
        assert "boot/boot.ipxe" in git(boots, "ls-tree", "-r", "--name-only", "boot")
        assert done.code in (0, 8)
