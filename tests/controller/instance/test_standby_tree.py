"""The tree that a standby prepares before it becomes active."""

from __future__ import annotations

import json
import os
import random
import re
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gitboot.controller.instance import standby
from gitboot.controller.instance.settings import GitSettings, Settings
from gitboot.controller.instance.standby import PreparedTree, prepare
from gitboot.controller.instance.state_directory import CACHE, PREPARING
from gitboot.endpoint.recorder import find_unready_reason
from gitboot.endpoint.served_files import PublishedTree
from gitboot.errors import NotYetDone
from gitboot.ledger import postgresql
from gitboot.ledger.store import PostgresAddress
from gitboot.publish.durable_files import DurableDirectory
from gitboot.publish.manifest import MANIFEST, STATUS
from gitboot.publish.tree_reader import LOCK, PENDING, PRIVATE_FOLDER
from gitboot.render.endpoint_files import TERMS
from tests.helpers.endpoints import AFTER, ALWAYS, ENTRY, REPAIR, Site, plan_fleet
from tests.helpers.fleets import at, make_mac, policy
from tests.helpers.fleets import server as described
from tests.helpers.instance_with_bmcs import (
    LARGE,
    Blade,
    Host,
    Pair,
    Rack,
    find_boot_at_host,
    pair,
)
from tests.helpers.postgresql import PostgresServer
from tests.helpers.published_trees import verify_tree
from tests.helpers.running_instance import begin_records, eventually

pytestmark = pytest.mark.usefixtures("large_fleets")


MANY = [f"web{number:04}" for number in range(LARGE)]


def start_both(rack: Rack, hosts: Pair) -> Blade:
    """One instance is active, has published the fleet, and waits for an installation; the other is a standby."""
    web = rack.add("web01", provision=1)
    rack.repository.push({f"{name}.yaml": described(name, "role: web") for name in MANY})
    rack.push()
    hosts.one.start()
    eventually(lambda: hosts.one.url)
    begin_records(hosts.one.state, "fresh")
    eventually(lambda: web.stands)
    hosts.two.start()
    return web


def clock() -> datetime:
    return datetime.now(UTC)


def make_settings(host: Host) -> Settings:
    git = GitSettings(repository="")
    return Settings(output=host.folder / "output", state=host.state, git=git, spool=host.state / "spool")


def prepare_standby(host: Host) -> PreparedTree:
    """Return what the standby prepares now."""
    return prepare(make_settings(host), clock=clock, warn=pytest.fail)


def try_prepare(host: Host) -> PreparedTree | None:
    """The same; None: it has not fetched yet what the other one has accepted."""
    with suppress(NotYetDone):
        return prepare_standby(host)
    return None


# The signed list has the time of one publication: a host writes it when it is active.
_LIST_METADATA = re.compile(r"boot/signed/(shared|timestamp|[0-9]+\..+)\.json")


def read_tree(host: Host) -> dict[str, bytes]:
    """Return the content of the tree without the identity and the progress of its publisher."""
    root = host.folder / "output"
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    others = (PRIVATE_FOLDER, STATUS, MANIFEST, TERMS, "ops/manifest")
    return {
        name: path.read_bytes()
        for name, path in sorted(files.items())
        if not name.startswith(others) and not _LIST_METADATA.fullmatch(name)
    }


def find_differences(hosts: Pair) -> list[str]:
    one, two = map(read_tree, hosts.hosts)
    return [path for path in sorted(one.keys() | two.keys()) if one.get(path) != two.get(path)]


def name_pattern(web: Blade) -> re.Pattern[str]:
    """Return the names of the files in the own part of the tree."""
    mac, uuid = make_mac(web.machine.name).replace(":", "-"), web.uuid[18:]
    return re.compile(f"{web.name}|{mac}|{uuid}")


def find_events(host: Host, type: str) -> list[dict[str, Any]]:
    return [event for event in host.events if event["type"] == type]


def count_steps(host: Host) -> dict[str, int]:
    """Return the number of servers in each step, as the instance reports it."""
    assert host.instance is not None
    found: dict[str, int] = host.instance.status()["records"]
    return found


def locate_boot_file(host: Host, path: str) -> Path:
    """The file of its tree that an endpoint would answer from."""
    return host.folder / "output/boot" / path.removeprefix("/")


def find_unready(host: Host) -> str | None:
    return find_unready_reason(PublishedTree(host.folder / "output", clock), None)


def test_a_new_active_instance_has_its_updated_output_tree_ready_and_serves_nothing_from_it_before(
    rack: Rack, server: PostgresServer
) -> None:
    """Report paths are not published again: they have the token of the attempt, which the ledger knows."""
    rack.settings += ", provisioning: {evidence: Reported}"
    with pair(rack, server, server.address()) as hosts:
        web = start_both(rack, hosts)
        event, *_ = eventually(lambda: find_events(hosts.two, "Prepared"))
        assert (event["servers"], event["halted"]) == (LARGE + 1, 1)
        prepared_at = r"is active with the ledger .*; this standby's output tree has the state of 20"
        eventually(lambda: re.search(prepared_at, hosts.two.condition["message"]))
        apart = find_differences(hosts)
        assert f"boot{web.entry}" in apart
        assert [path for path in apart if not name_pattern(web).search(path)] == []
        assert "flatcar" not in locate_boot_file(hosts.two, web.entry).read_text()
        assert find_unready(hosts.two) == "the output tree was prepared for a host that is not active yet"
        assert verify_tree(hosts.two.folder / "output") == ()
        assert not (hosts.two.state / PREPARING).exists()
        assert "flatcar-1" in find_boot_at_host(web, hosts.one)
        eventually(lambda: count_steps(hosts.one) == {"Attempted": 1, "Provisioned": LARGE})
        again = rack.add("web02", provision=1)
        web.provision = 2
        rack.push("Install one more, and one once more")
        eventually(lambda: again.stands)
        done = eventually(lambda: try_prepare(hosts.two))
        assert (done.servers, done.halted) == (LARGE + 2, 2)
        assert [
            path
            for path in find_differences(hosts)
            if not (name_pattern(web).search(path) or name_pattern(again).search(path))
        ] == []
        before = read_stamps(hosts.two)
        assert structs.replace(prepare_standby(hosts.two), at=done.at) == done
        assert {path for path, stamp in read_stamps(hosts.two).items() if before[path] != stamp} <= {LOCK}
        hosts.one.kill()
        assert hosts.wait_for_takeover(1) is hosts.two
        event, *_ = eventually(lambda: find_events(hosts.two, "Published"))
        assert (event["written"] < 20, event["unchanged"] < LARGE // 2) == (True, True), hosts.two.events
        assert hosts.two.instance is not None
        assert hosts.two.instance.get("/readyz").status_code == 200
        assert find_differences(hosts) == []
        for each in (web, again):
            assert "flatcar-1" in find_boot_at_host(each, hosts.two)
        eventually(lambda: count_steps(hosts.two) == {"Attempted": 2, "Provisioned": LARGE})
        assert (web.times_set, again.times_set) == (2, 1)


def test_an_instance_that_becomes_active_after_its_first_preparation_writes_only_the_rest(
    rack: Rack, server: PostgresServer
) -> None:
    rack.settings += ", provisioning: {evidence: Reported}"
    with pair(rack, server, server.address()) as hosts:
        web = start_both(rack, hosts)
        eventually(lambda: find_events(hosts.two, "Prepared"))
        hosts.one.kill()
        assert hosts.wait_for_takeover(1) is hosts.two
        event, *_ = eventually(lambda: find_events(hosts.two, "Published"))
        assert (event["written"] < 10, event["unchanged"] < LARGE // 2) == (True, True), hosts.two.events
        assert find_differences(hosts) == []
        assert "flatcar-1" in find_boot_at_host(web, hosts.two)
        assert web.times_set == 1


def test_an_instance_that_becomes_active_while_it_updates_its_tree_publishes_only_the_rest(
    rack: Rack, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(rack, server, server.address()) as hosts:
        web = start_both(rack, hosts)
        eventually(lambda: find_events(hosts.two, "Prepared"))
        assert "flatcar-1" in find_boot_at_host(web, hosts.one)
        eventually(lambda: count_steps(hosts.one) == {"Provisioned": LARGE + 1})
        eventually(lambda: try_prepare(hosts.two))
        web.provision = 2
        rack.push("Install it once more")
        eventually(lambda: web.stands)
        with monkeypatch.context() as patch:
            patch.setattr(DurableDirectory, "place", kill_after(DurableDirectory.place, 3))
            with pytest.raises(KeyboardInterrupt):
                eventually(lambda: try_prepare(hosts.two))
        assert (hosts.two.folder / "output" / PENDING).exists()
        hosts.one.kill()
        assert hosts.wait_for_takeover(1) is hosts.two
        event, *_ = eventually(lambda: find_events(hosts.two, "Published"))
        assert event["written"] + event["unchanged"] < LARGE
        assert not (hosts.two.folder / "output" / PENDING).exists()
        assert verify_tree(hosts.two.folder / "output") == ()
        assert find_differences(hosts) == []
        assert "flatcar-1" in find_boot_at_host(web, hosts.two)


def kill_after(act: Callable[[DurableDirectory, str], None], after: int) -> Callable[[DurableDirectory, str], None]:
    """It ends as a process that is killed, at what it does after so many times."""
    left = count(after, -1)

    def call(disk: DurableDirectory, path: str) -> None:
        if next(left) <= 0:
            raise KeyboardInterrupt
        act(disk, path)

    return call


def read_stamps(host: Host) -> dict[str, tuple[int, int]]:
    """Return the attributes that change when a file of the tree is written."""
    root = host.folder / "output"
    found = {path.relative_to(root).as_posix(): path.stat() for path in root.rglob("*") if path.is_file()}
    return {path: (each.st_ino, each.st_mtime_ns) for path, each in found.items()}


def test_the_prepared_tree_boots_installable_servers_from_disk_and_has_no_date_of_an_offer(
    rack: Rack, server: PostgresServer
) -> None:
    """This holds for boots at every start too, and for a host whose clock is behind that of the active instance.

    Nothing is prepared without an active instance, from a commit that is not fetched, or in the tree of the active
    instance.
    """
    always = policy("always", "{matchLabels: {role: ephemeral}}", "priority: 10", often="Always")
    rack.pool = (*rack.pool, always)
    with pair(rack, server, server.address()) as hosts:
        rack.repository.push({"cache.yaml": described("cache01", "role: ephemeral")})
        web = start_both(rack, hosts)
        event, *_ = eventually(lambda: find_events(hosts.two, "Prepared"))
        assert event["halted"] == 2
        offered = {web.entry, f"/v1/boot/{make_mac('cache01').replace(':', '-')}/boot.ipxe"}
        hosts.two.stop()
        shutil.rmtree(hosts.two.folder / "output")
        (hosts.two.state / CACHE).unlink()
        behind = datetime.now(UTC) - timedelta(minutes=2)
        prepare(make_settings(hosts.two), clock=lambda: behind, warn=pytest.fail)
        for path in offered:
            assert "flatcar" in locate_boot_file(hosts.one, path).read_text()
            assert "flatcar" not in locate_boot_file(hosts.two, path).read_text()
        (date,) = {int(file.stat().st_mtime) for file in make_settings(hosts.two).output.rglob("boot.ipxe")}
        dates = {int(date) for date in server.sql(f"SELECT modified FROM {hosts.schema}.versions").split()}
        assert dates
        assert date not in dates
        alive = json.loads(server.sql(f"SELECT value FROM {hosts.schema}.facts WHERE name = 'heartbeat'"))["at"]
        assert date < int(datetime.fromisoformat(alive).timestamp())
        assert_not_prepared(hosts)
        rack.repository.push({"web0000.yaml": described("web0000", "role: other")})
        eventually(lambda: "has not fetched the accepted commit" in find_refusal(hosts.two))
        hosts.one.kill()
        eventually(lambda: find_refusal(hosts.two) == "no instance is active")


def assert_not_prepared(hosts: Pair) -> None:
    shared = structs.replace(make_settings(hosts.two), output=hosts.one.folder / "output")
    before = read_tree(hosts.one)
    with pytest.raises(NotYetDone, match=r"\S+one/state, already publishes to \S+one/output"):
        prepare(shared, clock=clock, warn=pytest.fail)
    assert read_tree(hosts.one) == before


def test_a_standby_killed_while_it_prepares_leaves_nothing_in_the_way(
    rack: Rack, server: PostgresServer, lives: int
) -> None:
    """At any instant: of a first tree, and of one that is brought up to date."""
    chance = random.Random(2028)
    with pair(rack, server, server.address()) as hosts:
        web = start_both(rack, hosts)
        eventually(lambda: find_events(hosts.two, "Prepared"))
        settings = make_settings(hosts.two)
        began = time.monotonic()
        assert not kill_during_prepare(settings, after_s=60)
        longest_s, killed = time.monotonic() - began, 0
        for number in count():
            if killed >= 4 + lives // 4:
                break
            if number % 2:
                shutil.rmtree(settings.output, ignore_errors=True)
            web.provision += 1
            rack.push(f"Install it once more: {number}")
            killed += kill_during_prepare(settings, after_s=chance.uniform(0, 1) * longest_s)
            longest_s *= 1 if killed else 0.9  # the first one was slower than they are now
        hosts.one.kill()
        assert hosts.wait_for_takeover(1) is hosts.two
        eventually(lambda: find_events(hosts.two, "Published"))
        eventually(lambda: "flatcar-1" in locate_boot_file(hosts.two, web.entry).read_text())
        eventually(lambda: verify_tree(hosts.two.folder / "output") == ())  # once the last change is published
        assert not (hosts.two.state / PREPARING).exists()
        assert "flatcar-1" in find_boot_at_host(web, hosts.two)


def kill_during_prepare(settings: Settings, after_s: float) -> bool:
    """Have a process of its own prepare a tree, and kill it after a while; return whether it had not ended by then."""
    child = os.fork()
    if child == 0:  # pragma: no cover - it is killed
        try:
            with suppress(NotYetDone):
                prepare(settings, clock=clock, warn=lambda _: None)
        finally:
            os._exit(0)
    ending = os.pidfd_open(child)
    try:
        select.select([ending], [], [], after_s)
    finally:
        os.close(ending)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def find_refusal(host: Host) -> str:
    """Return why nothing is prepared, or an empty text."""
    try:
        prepare_standby(host)
    except NotYetDone as error:
        return str(error)
    return ""


# Windows that end while a standby prepares its tree

HOLD_TREE = """
import sys, time
from pathlib import Path
from gitboot.publish.durable_files import DurableDirectory
from gitboot.publish.tree_reader import LOCK
disk = DurableDirectory(Path(sys.argv[1]))
if not disk.lock(LOCK):
    Path(sys.argv[2]).touch()
time.sleep(600)
"""


def test_a_window_ends_in_the_tree_of_a_standby_although_a_preparation_is_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, now, is_held = Site(tmp_path / "output"), AFTER, tmp_path / "held"
    site.publish(plan_fleet(*ALWAYS, REPAIR, now=AFTER), at=AFTER)
    script = site.root / "boot" / ENTRY.removeprefix("/")

    class ActiveElsewhere:
        name = "postgresql"

        def __init__(self, *_: object) -> None: ...

        def close(self) -> None: ...

        def find_other_holder(self, _: object) -> str:
            return "other:/state"

        def read_followed_facts(self) -> dict[str, str]:
            return {}

    class EndAfterTwoChecks:
        checks = 0

        def wait(self, timeout_s: float) -> bool:
            """End the window while the preparation holds the tree, and end the process after the next check."""
            nonlocal now
            if timeout_s:
                eventually(is_held.exists, 60)
                now, self.checks = at("21T04:00"), self.checks + 1
            return self.checks == 2

    monkeypatch.setattr(postgresql, "LeaseConnection", ActiveElsewhere)
    monkeypatch.setattr(standby, "_follow_active", lambda *_: nullcontext(lambda: True))
    state = tmp_path / "state"
    git_settings = GitSettings(repository="https://git.test/fleet", reference="main")
    address = PostgresAddress(url="postgresql://db.test/gitboot")
    settings = Settings(output=site.root, state=state, git=git_settings, ledger=address)
    command = (sys.executable, "-c", HOLD_TREE, str(site.root), str(is_held))
    waiting = standby.Standby(settings, lambda _: None, lambda: now, command)
    assert not waiting.wait(lambda: nullcontext(EndAfterTwoChecks()))
    assert "memtest-7" not in script.read_text()


# What a standby fetches and evaluates meanwhile


def test_a_standby_that_ends_between_two_fetches_does_not_wait_for_the_next(tmp_path: Path) -> None:
    is_clearing, may_clear, waits = threading.Event(), threading.Event(), list[float | None]()

    class SlowEvent(threading.Event):
        def clear(self) -> None:
            is_clearing.set()
            may_clear.wait(60)
            super().clear()

        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return super().wait(0)

    wake_event = SlowEvent()

    def finish_clearing() -> None:
        """Let the thread clear the event that the end of the standby has set."""
        eventually(wake_event.is_set, 60)
        may_clear.set()

    git_settings = GitSettings(repository=str(tmp_path / "missing"), reference="main")
    settings = Settings(output=tmp_path, state=tmp_path, git=git_settings, listen="", poll_s=3600)
    with standby._follow_active(
        settings, lambda _: None, lambda: datetime.now(UTC), wake_event, lambda: ("main", None)
    ):
        assert is_clearing.wait(60)
        threading.Thread(target=finish_clearing, daemon=True).start()
    assert waits == []
