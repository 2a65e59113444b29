"""The key in STATE that makes tokens: strangers cannot report, restarts change nothing, a lost key installs nothing."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from pyrage.x25519 import Identity

from gitboot.cli.main import Exit
from gitboot.controller.instance.state_directory import EARLIER_KEY_LIFETIME, read_or_create_token_keys
from gitboot.endpoint.age_encryption import encrypt
from gitboot.errors import UsageError
from gitboot.fetchlog.log_entries import Observation
from gitboot.jsonio import Digest
from gitboot.model.scalars import SystemUuid
from gitboot.render.paths import DATA, FAILED, PROVISIONED, SECRET, File, find_token
from gitboot.render.token_keys import EarlierKey, TokenKeys
from gitboot.resolve.install_attempts import install_step
from gitboot.resolve.server_decision import report_token
from gitboot.resolve.server_plan import Cause, Phase
from tests.endpoint.test_server import served
from tests.helpers import http_peers
from tests.helpers.cases import require_value
from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import at, fleet, image, make_mac, make_uuid, policy, profile, server
from tests.helpers.instance_in_process import Bench, Parts, run_in_process
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.running_instance import Instance, Repository, eventually, running
from tests.scenarios.test_boot_chain import Clock
from tests.scenarios.test_ordinary_days import Client, steps

MAC: Final = make_mac("web01").replace(":", "-")
ENTRY: Final = f"boot/v1/boot/{MAC}/boot.ipxe"
PUBLIC: Final = Digest(report_token(SystemUuid(make_uuid("web01")), 1, "flatcar-1"))
NOON: Final = at("20T12:00")
REPORTING_DATA: Final = "#cloud-config\ndone: {{ urls.provisioned }}\n"


def documents(evidence: str = "Reported", profile_spec: str = "") -> tuple[str, ...]:
    return (
        fleet(f"baseURL: 'http://boot.test', provisioning: {{evidence: {evidence}}}"),
        server("web01", "role: web", "provision: 1"),
        image("flatcar-1", "userData: CloudInit"),
        profile("web", "flatcar-1", f"userData: {{format: CloudInit, template: t.j2{profile_spec}}}"),
        policy("web", often="Once"),
    )


def files(text: str = REPORTING_DATA) -> dict[str, str]:
    return {"fleet.yaml": "---\n".join(documents()), "t.j2": text}


# The file


def test_t6_a_token_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    first = read_or_create_token_keys(tmp_path, NOON, was_keyless=False)
    assert read_or_create_token_keys(tmp_path, NOON + timedelta(days=1), was_keyless=True) == first
    assert first.key is not None and len(first.key) == 32 and first.earlier == ()
    file = tmp_path / "token-keys"
    assert file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    assert read_or_create_token_keys(tmp_path, NOON, was_keyless=False).key != first.key


def test_t6_only_users_of_the_shared_group_can_read_the_key(tmp_path: Path) -> None:
    """On OpenShift, an instance runs as another user at each start."""
    tmp_path.chmod(0o2770)
    made = read_or_create_token_keys(tmp_path, NOON, was_keyless=False)
    assert (tmp_path / "token-keys").stat().st_mode & 0o777 == 0o640
    assert read_or_create_token_keys(tmp_path, NOON, was_keyless=False) == made


def test_t6_an_earlier_token_key_counts_for_a_day(tmp_path: Path) -> None:
    """A person appends a line."""
    first = read_or_create_token_keys(tmp_path, NOON, was_keyless=True)
    with (tmp_path / "token-keys").open("a") as file:
        file.write(f"2026-11-25T12:00:00Z {'ab' * 32}\n")
    keys = read_or_create_token_keys(tmp_path, NOON, was_keyless=False)
    assert keys.key == bytes.fromhex("ab" * 32)
    assert [each.key for each in keys.earlier] == [None, first.key]
    assert (
        [each.until - each.since for each in keys.earlier]
        == [EARLIER_KEY_LIFETIME, EARLIER_KEY_LIFETIME]
        == [timedelta(hours=24)] * 2
    )
    assert [each.since for each in keys.earlier] == [NOON, at("25T12:00")]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "the last line does not contain a key"),
        (f"2026-11-20T12:00:00Z {'ab' * 32}\n2026-11-20T12:00:00Z none\n", "the last line does not contain a key"),
        (f"2026-11-20T12:00:00Z {'ab' * 31}\n", "token-keys:1: expected a time and a key"),
        (f"2026-11-20T12:00:00 {'ab' * 32}\n", "token-keys:1: expected"),
        (f"today {'ab' * 32}\n", "token-keys:1: expected"),
        (f"2026-11-20T12:00:00Z {'ab' * 32}\n\n", "token-keys:2: expected"),
        ("\xff\n", "token-keys:1: expected"),
    ],
    ids=["empty", "none at the end", "short", "no zone", "no instant", "a blank line", "no text"],
)
def test_t6_another_file_is_rejected_and_not_shown(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "token-keys").write_text(text, "latin-1")
    with pytest.raises(UsageError, match=re.escape(word)) as refused:
        read_or_create_token_keys(tmp_path, NOON, was_keyless=False)
    assert "abab" not in str(refused.value)
    assert (tmp_path / "token-keys").read_text("latin-1") == text


# Observations

KEYS: Final = TokenKeys(bytes(range(32)))


class TokenBench(Bench):
    def fetch_boot(self) -> None:
        plan = self.reconcile()
        self.fetch(plan, path=ENTRY)
        self.reconcile()

    @property
    def name(self) -> str:
        (found,) = KEYS.build_names([PUBLIC], self.now).rename_files({PROVISIONED.build_path(MAC, PUBLIC): File(b"")})
        return find_token(found) or ""

    @property
    def step(self) -> str:
        return install_step(self.decisions.servers["web01"], self.record)

    def record_fetch(self, path: str, name: Digest) -> None:
        """Let an endpoint record a request for a path and the token in it."""
        self.observe(Observation(server="web01", path=path, digest=name, client="10.0.0.7", at=self.now))
        self.reconcile()

    def send_mirror_log(self, path: str, later_s: int = 0) -> None:
        modified = int(self.now.timestamp()) + later_s
        self.observe(Observation(server="", path=path, modified=modified, client="10.0.0.7", at=self.now))
        self.reconcile()


@pytest.fixture
def web01(tmp_path: Path) -> Iterator[TokenBench]:
    with TokenBench(tmp_path, keys=KEYS) as bench:
        bench.decide(*documents(), files={"t.j2": REPORTING_DATA})
        yield bench


def test_t6_paths_that_a_mirror_sent_belong_to_its_offer_and_others_to_none(web01: TokenBench) -> None:
    web01.fetch_boot()
    for path in (
        PROVISIONED.build_path(MAC, PUBLIC),
        FAILED.build_path(MAC, PUBLIC),
        DATA.build_path(MAC, PUBLIC, "user-data"),
    ):
        web01.send_mirror_log(path)
        assert web01.step == "Attempted", path
    web01.send_mirror_log(DATA.build_path(MAC, web01.name, "user-data"))
    assert web01.step == "Started"
    web01.send_mirror_log(PROVISIONED.build_path(MAC, web01.name))
    assert web01.step == "Provisioned"


def test_t6_a_report_belongs_to_its_offer_even_for_a_file_of_another_date(web01: TokenBench) -> None:
    """In a tree that a standby prepared, a report path names its offer, and a boot script does not."""
    web01.send_mirror_log(ENTRY, later_s=7)
    assert web01.step == "Pending"
    web01.fetch_boot()
    web01.send_mirror_log(PROVISIONED.build_path(MAC, PUBLIC), later_s=7)
    assert web01.step == "Attempted"
    web01.send_mirror_log(PROVISIONED.build_path(MAC, web01.name), later_s=7)
    assert web01.step == "Provisioned"


def test_t6_leftover_data_belongs_to_its_offer(web01: TokenBench) -> None:
    """An endpoint that has only the path records the token in it."""
    web01.fetch_boot()
    name = Digest(web01.name)
    web01.record_fetch(DATA.build_path(MAC, name, "user-data"), name)
    assert web01.step == "Started"


@pytest.mark.parametrize("key", [bytes(32), None], ids=["another key", "none yet"])
@pytest.mark.parametrize(("hours", "step"), [(23, "Provisioned"), (24, "Attempted")])
def test_t6_reports_of_an_installer_with_an_earlier_key_count_for_a_day(
    tmp_path: Path, key: bytes | None, hours: int, step: str
) -> None:
    """The data of the installer stays for longer, and an endpoint records reports for as long."""
    with TokenBench(tmp_path, keys=TokenKeys(KEYS.key, (EarlierKey(key, NOON, NOON + EARLIER_KEY_LIFETIME),))) as web01:
        web01.decide(*documents(), files={"t.j2": REPORTING_DATA}).fetch_boot()
        (before,) = {find_token(path) for path in web01.rendered["web01"].files} - {None, web01.name}
        web01.wait(hours=hours).reconcile()
        web01.record_fetch(PROVISIONED.build_path(MAC, before or ""), Digest(before or ""))
        assert web01.step == step


def test_t6_a_token_that_no_key_gives_proves_nothing(web01: TokenBench) -> None:
    web01.fetch_boot()
    for name in (PUBLIC, Digest("0" * 64)):
        for kind in (PROVISIONED, FAILED):
            path = kind.build_path(MAC, name)
            web01.record_fetch(path, name)
            assert web01.step == "Attempted", path


def test_t6_records_and_events_contain_no_published_token(web01: TokenBench) -> None:
    """Nor has an event: it is read by more people than the tree."""
    web01.fetch_boot()
    name, path = web01.name, DATA.build_path(MAC, web01.name, "user-data")
    for each in (path, PROVISIONED.build_path(MAC, name)):
        web01.record_fetch(each, PUBLIC)
    assert web01.record is not None and web01.record.provision == 1
    started = web01.record.attempts[-1].started
    assert started is not None and started.path == path.replace(name, PUBLIC)
    assert name not in f"{web01.events!r}{web01.record!r}{web01.instance.reconciler.status!r}"


# With real processes


def read_values(folder: Path, *instances: Instance) -> Iterator[tuple[object, bytes]]:
    for part in ("output", "spool", "state"):
        for file in (folder / part).rglob("*"):
            if file.is_file() and file.name != "token-keys":
                yield file, file.read_bytes()
    for instance in instances:
        yield "events", json.dumps(instance.events).encode()


def read_published(folder: Path) -> dict[str, bytes]:
    root = folder / "output" / "boot"
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


def list_guesses(token: str) -> list[str]:
    """Return every path that a client who knows the fleet could use to report or fetch."""
    paths = [each.build_path(MAC, token) for each in (PROVISIONED, FAILED)]
    paths += [DATA.build_path(MAC, token, name) for name in ("user-data", "meta-data")] + [
        SECRET.build_path(MAC, token, "join")
    ]
    return [path.removeprefix("boot") for path in paths]


def find_urls(text: str) -> dict[str, str]:
    """The paths that user data has, by their words."""
    return {word.rstrip(":"): url for word, url in re.findall(r"(\w+): http://boot\.test(\S+)", text)}


def test_t6_a_stranger_who_knows_all_of_git_can_report_nothing_and_gets_no_secret(tmp_path: Path) -> None:
    repository, keys = Repository.create(tmp_path / "git"), tmp_path / "keys"
    identity = Identity.generate()
    keys.write_text(f"{identity}\n")
    keys.chmod(0o600)
    text = "#cloud-config\ndone: {{ urls.provisioned }}\njoin: {{ urls.secrets.join }}\n"
    given = {"fleet.yaml": "---\n".join(documents(profile_spec=", secrets: {join: join.age}")), "t.j2": text}
    repository.push({**given, "join.age": encrypt(b"hunter2\n", [str(identity.to_public())]).decode()})
    arguments = ("--spool", str(tmp_path / "spool"), "--secret-keys", str(keys))
    with running(repository.bare, tmp_path, *arguments, records="fresh") as instance:
        web01 = Client("web01", instance.url)
        eventually(lambda: steps(instance) == {"Pending": 1})
        script = web01.load_script()
        web01.start_installer(script)
        eventually(lambda: steps(instance) == {"Started": 1})
        with served(tmp_path / "output", "--spool", str(tmp_path / "spool"), "--secret-keys", str(keys)) as (other, _):
            for url in (instance.url, other):
                for path in list_guesses(PUBLIC):
                    assert http_peers.get(url + path, headers=LOADER).status_code == 404, path
            counted = re.findall(
                r'gitboot_http_requests_total\{.*"not_found".*"404".*\} (\d+)', http_peers.get(f"{other}/metrics").text
            )
            assert sum(map(int, counted)) == len(list_guesses(PUBLIC)), http_peers.get(f"{other}/metrics").text
            data = re.findall(r"s=http://boot\.test(\S+?)['\"\s]", script)[0]
            urls = find_urls(web01.get(f"{data}user-data").text)
            assert [http_peers.get(url + urls["join"], headers=LOADER).text for url in (instance.url, other)] == [
                "hunter2\n"
            ] * 2
            assert steps(instance) == {"Started": 1}
            assert http_peers.get(other + urls["done"]).status_code == 204
        eventually(lambda: steps(instance) == {"Provisioned": 1})
        assert instance.get(urls["join"]).status_code == 404
        pages = [instance.get(f"/api/v1/{page}").content for page in ("status", "servers", "servers/web01/plan")]
    key = require_value(read_or_create_token_keys(tmp_path / "state", NOON, was_keyless=False).key)
    for where, content in (*read_values(tmp_path, instance), *(("a page", page) for page in pages)):
        assert key not in content and key.hex().encode() not in content, where


def test_t6_with_a_lost_key_no_server_is_installed_twice(tmp_path: Path) -> None:
    """Tokens of a lost key do not count any more. The operator is informed and sets the record."""
    repository = Repository.create(tmp_path / "git")
    repository.push(files())
    with running(repository.bare, tmp_path, records="fresh") as instance:
        web01 = Client("web01", instance.url)
        eventually(lambda: steps(instance) == {"Pending": 1})
        script = web01.load_script()
        web01.start_installer(script)
        eventually(lambda: steps(instance) == {"Started": 1})
        data = re.findall(r"s=http://boot\.test(\S+?)['\"\s]", script)[0]
        report = find_urls(web01.get(f"{data}user-data").text)["done"]
        earlier = instance.status()["plannedAt"]
    (tmp_path / "state" / "token-keys").unlink()
    with running(repository.bare, tmp_path) as instance:
        (lost,) = eventually(lambda: [each for each in instance.events if each["type"] == "TokenKeysLost"])
        assert "gitboot records set" in lost["message"]
        web01 = Client("web01", instance.url)
        # The endpoint first shows the status that the earlier process wrote.
        eventually(lambda: instance.status()["plannedAt"] not in (None, earlier))
        assert steps(instance) == {"Started": 1}
        assert instance.get(report).status_code == 204  # its data is there still, so it is written down
        for path in list_guesses(PUBLIC):
            assert instance.get(path).status_code == 404, path
        assert not web01.is_boot_served()
        assert steps(instance) == {"Started": 1}
        said = ("web01", "provisioned", "--reason", "seen", "--yes")
        assert run_command("records", "set", *said, "--state", tmp_path / "state").code == 0
        eventually(lambda: steps(instance) == {"Provisioned": 1})


# Restarts, and an upgrade


def reconcile_at(parts: Parts, clock: Clock, instant: datetime) -> datetime | None:
    clock.now = instant
    parts.source.fetch()
    return parts.reconciler.reconcile(instant)


def test_t6_a_restart_changes_no_byte_for_machines(tmp_path: Path) -> None:
    repository, clock = Repository.create(tmp_path / "git"), Clock(NOON)
    repository.push(files())
    found = []
    for initial in ("fresh", None):
        with run_in_process(tmp_path, repository.bare, initial=initial, clock=clock) as parts:
            reconcile_at(parts, clock, clock.now + timedelta(minutes=1))
        found.append(read_published(tmp_path))
    assert found[0] == found[1] and len(find_tokens(tmp_path)) == 1 and PUBLIC not in find_tokens(tmp_path)


def test_t6_a_dry_run_uses_the_token_key(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push(files())
    folders = ("--out", tmp_path / "output", "--state", tmp_path / "state", "--listen", "127.0.0.1:0")
    with running(repository.bare, tmp_path, records="fresh") as instance:
        eventually(lambda: steps(instance) == {"Pending": 1})
    tried = run_command("run", repository.bare, *folders, "--dry-run")
    assert (tried.code, tried.out) == (0, ""), tried
    (tmp_path / "state" / "token-keys").write_text("other\n")
    refused = run_command("run", repository.bare, *folders, "--dry-run")
    assert (refused.code, f"{tmp_path}/state/token-keys:1: expected" in refused.err) == (Exit.USAGE, True), refused
    (tmp_path / "state" / "token-keys").unlink()
    assert "/provisioned/" in run_command("run", repository.bare, *folders, "--dry-run").out
    assert not (tmp_path / "state" / "token-keys").exists()


def remove_keys(folder: Path) -> None:
    """Leave the state as a gitboot without a key has it."""
    (folder / "state" / "token-keys").unlink()
    with closing(sqlite3.connect(folder / "state" / "ledger.sqlite")) as ledger, ledger:
        assert ledger.execute("UPDATE facts SET value = 'yes' WHERE name = 'published'").rowcount == 1


def find_tokens(folder: Path) -> set[str]:
    return {path.rpartition("/")[2] for path in read_published(folder) if "/provisioned/" in path}


def test_t6_installers_from_before_the_upgrade_can_report_for_a_day(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push(files())
    clock = Clock(NOON)
    with run_in_process(tmp_path, repository.bare, initial="fresh", clock=clock) as parts:
        reconcile_at(parts, clock, NOON)
        assert PUBLIC not in find_tokens(tmp_path)
    remove_keys(tmp_path)
    with run_in_process(tmp_path, repository.bare, clock=clock) as parts:
        reconcile_at(parts, clock, NOON)
        assert PUBLIC in find_tokens(tmp_path) and len(find_tokens(tmp_path)) == 2
        plan = parts.reconciler.state.plans.servers["web01"].plan
        assert plan is not None and (plan.phase, plan.cause) == (Phase.NETWORK, Cause.PENDING)
    with run_in_process(tmp_path, repository.bare, clock=clock) as parts:
        due = reconcile_at(parts, clock, NOON + EARLIER_KEY_LIFETIME - timedelta(minutes=1))
        assert PUBLIC in find_tokens(tmp_path), "also after a restart"
        assert due is not None and due <= NOON + EARLIER_KEY_LIFETIME
        reconcile_at(parts, clock, NOON + EARLIER_KEY_LIFETIME)
        assert PUBLIC not in find_tokens(tmp_path) and len(find_tokens(tmp_path)) == 1
