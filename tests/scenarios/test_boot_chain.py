"""A boot is a chain of fetches: a client that follows one gets one version, through commit after commit."""

from __future__ import annotations

import random
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from gitboot.endpoint.app import Endpoint
from gitboot.endpoint.checked_clock import CheckedClock
from gitboot.endpoint.served_files import PublishedTree
from gitboot.endpoint.server import EndpointServer, build_url, open_listening_socket
from gitboot.ledger import instance_tables
from gitboot.render.endpoint_files import PathVersion, find_version, parse_state, state_path
from gitboot.system_clock import ClockState
from tests.helpers import http_peers
from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import at, fleet, image, maintenance, make_mac, make_uuid, policy, profile, server
from tests.helpers.instance_in_process import Parts, run_in_process
from tests.helpers.running_instance import Repository, eventually, git
from tests.scenarios.test_kill import documents

ENTRY = f"v1/boot/{make_mac('web0').replace(':', '-')}/boot.ipxe"


def history(repository: Path, commits: int) -> list[str]:
    stream = []
    for number in range(commits):
        stream.append(
            f"commit refs/heads/next\nmark :{number + 1}\ncommitter A <a@example.net> {1763600000 + number} +0000\n"
        )
        stream.append(f"data 1\nx\nfrom :{number}\n" if number else "data 1\nx\n")
        for path, text in documents(f"flatcar-{number}").items():
            stream.append(f"M 644 inline {path}\ndata {len(text.encode())}\n{text}\n")
    marks = repository / "marks"
    subprocess.run(
        ["git", "fast-import", "--quiet", f"--export-marks={marks}"],
        cwd=repository,
        input="".join(stream),
        text=True,
        check=True,
    )
    found = dict(line.split() for line in marks.read_text().splitlines())
    return [found[f":{number + 1}"] for number in range(commits)]


def follow(fetch: Callable[[str], str | None]) -> str | None:
    """Follow the chain of a boot script; return the image of the whole chain, or its fault."""
    entry = fetch(ENTRY)
    if entry is None:
        return None  # a boot script is missing only before the first publication
    (named,) = re.findall(r"/assets/([^/]+)/kernel", entry)
    (folder,) = re.findall(r"/(o/[0-9a-f]{64})/", entry)
    user_data = fetch(f"{folder}/user-data")
    if user_data is None or fetch(f"{folder}/meta-data") is None:
        return f"missing: what the entry of {named} names"
    return str(named) if f"web0 {named}\n" in user_data else f"mixed: {named} with {user_data!r}"


def test_a_chain_is_never_mixed_and_never_broken(tmp_path: Path, lives: int) -> None:
    repository = Repository.create(tmp_path / "git")
    commits = history(repository.bare, 10 * lives)
    done, seen = threading.Event(), {"endpoint": Counter[str | None](), "tree": Counter[str | None]()}
    at = datetime.now(UTC)  # all along: an endpoint doubts its clock where a busy machine takes long for a commit

    def read(kind: str, fetch: Callable[[str], str | None]) -> None:
        while not done.is_set():
            seen[kind][follow(fetch)] += 1
            time.sleep(0.005)  # the reconciles need some of this process, too

    with run_in_process(tmp_path, repository.bare) as parts:
        reconciler = parts.reconciler
        output, listening = tmp_path / "output", open_listening_socket("127.0.0.1:0")
        tree = PublishedTree(output, lambda: at)
        endpoint = Endpoint(tree, lambda: at)
        url = build_url("127.0.0.1:0", listening)
        with EndpointServer(endpoint, listening), http_peers.Client(base_url=url, headers=LOADER) as client:

            def over_http(path: str) -> str | None:
                response = client.get(f"/{path}")
                return response.text if response.status_code == 200 else None

            def from_the_tree(path: str) -> str | None:
                try:
                    return (tmp_path / "output" / "boot" / path).read_text()
                except FileNotFoundError:
                    return None

            readers = [
                threading.Thread(target=read, args=("endpoint", over_http)),
                threading.Thread(target=read, args=("tree", from_the_tree)),
            ]
            for number, commit in enumerate(commits):
                git(repository.bare, "update-ref", "refs/heads/main", commit)
                parts.source.fetch()
                reconciler.reconcile(at)
                if number == 0:
                    for reader in readers:
                        reader.start()
                if number % 4 == 0:  # each has followed it by now
                    before = {kind: chains.total() for kind, chains in seen.items()}
                    eventually(lambda: all(seen[kind].total() > before[kind] + 1 for kind in seen))  # noqa: B023
            done.set()
            for reader in readers:
                reader.join()
        assert reconciler.status.applied == commits[-1]
    for kind, chains in seen.items():
        wrong = [found for found in chains if found is None or not found.startswith("flatcar-")]
        assert not wrong, f"{kind}: {wrong}"
        assert len(chains) > 2 * lives, f"{kind} saw only {len(chains)} versions"


# The seed problem at every lookup: at one time there is one response, whenever reconciles run


USER_DATA = "userData: {format: Ignition/3.4, template: t.j2}"
DOCUMENTS = (
    fleet(),
    server("web01", spec="addresses").replace(", addresses", "").replace('"}]', '", addresses: [127.0.0.1]}]'),
    image("flatcar-1", "userData: Ignition/3.4", "kernel, initrd, loader"),
    image("repair-7", "writesDisk: false, userData: Ignition/3.4, configFrom: SystemUUID", "uki"),
    profile("web", "flatcar-1", f"httpBoot: loader, {USER_DATA}", method="UefiHttp"),
    profile("repair", "repair-7", f"httpBoot: uki, {USER_DATA}", method="UefiHttp"),
    policy("web"),
    maintenance("repair", "20T22:00 21T04:00"),
)
TEMPLATE = '{"ignition": {"version": "3.4.0"}, "image": {{ image.name | tojson }}}\n'
START, END = at("20T22:00"), at("21T04:00")
MAC = make_mac("web01")
LOOKUPS = (
    f"/v1/boot/{MAC}/boot.ipxe",
    f"/v1/boot/{MAC.replace(':', '')}/boot.ipxe",
    f"/ipxe/{make_uuid('web01')}",
    f"/ignition/{make_uuid('web01').upper()}",
    "/httpboot",
)


class Clock:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


@contextmanager
def serve_tree(folder: Path, clock: Clock) -> Iterator[str]:
    output, listening = folder / "output", open_listening_socket("127.0.0.1:0")
    compared = CheckedClock(clock, clock_state=lambda: ClockState.SYNCHRONISED)  # it is set forward, and is right
    tree = PublishedTree(output, clock, checked_clock=compared)
    with EndpointServer(Endpoint(tree, clock), listening):
        yield build_url("127.0.0.1:0", listening)


@contextmanager
def run_parts(folder: Path, clock: Clock) -> Iterator[Parts]:
    repository = Repository.create(folder / "git")
    repository.push({"fleet.yaml": "---\n".join(DOCUMENTS), "t.j2": TEMPLATE})
    with run_in_process(folder, repository.bare, clock=clock) as parts:
        parts.source.fetch()
        yield parts


def list_instants() -> list[datetime]:
    """Around both ends of the window, to the microsecond, and well away from them; shuffled."""
    offsets = [timedelta(microseconds=us) for us in (-1_000_000, -1, 0, 1, 999_999)] + [timedelta(hours=2)]
    found = [end + offset for end in (START, END) for offset in offsets] + [START - timedelta(days=1)]
    return sorted(found)


def fetch_images(client: httpx.Client) -> set[str]:
    found = set()
    for path in LOOKUPS:
        body = client.get(path).text
        found.add("repair-7" if "repair-7" in body else "flatcar-1" if "flatcar-1" in body else f"{path}: {body!r}")
    return found


def expect_images(now: datetime) -> set[str]:
    return {"repair-7"} if START <= now < END else {"flatcar-1"}


def test_all_lookups_change_together_at_the_transition_whenever_reconciles_run(tmp_path: Path, lives: int) -> None:
    clock, order, asked = Clock(START - timedelta(days=2)), random.Random(7), 0
    with run_parts(tmp_path, clock) as parts:
        instance = parts.reconciler
        instance.reconcile(clock.now)
        for _ in range(5 * lives):
            clock.now = START - timedelta(days=2)  # it is set back, and an operator confirms it
            instance_tables.add_request(parts.ledger, clock.now, "ada", "clock", {"reason": "it was ahead"})
            instance.reconcile(clock.now)
            with serve_tree(tmp_path, clock) as url, http_peers.Client(base_url=url, headers=LOADER) as client:
                for now in list_instants():
                    clock.now = now
                    if order.random() < 0.3:  # a reconcile may come at any time, or not at all
                        instance.reconcile(now)
                    asked += len(LOOKUPS)
                    assert fetch_images(client) == expect_images(now), now
    assert asked > 250 * lives


def test_a_tree_that_is_only_served_changes_at_the_transition_too(tmp_path: Path) -> None:
    clock = Clock(START - timedelta(hours=1))
    with run_parts(tmp_path, clock) as parts:
        parts.reconciler.reconcile(START - timedelta(hours=1))
    with serve_tree(tmp_path, clock) as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        for now in (clock.now, START - timedelta(microseconds=1), START, END - timedelta(seconds=1), END):
            clock.now = now
            entries = {path: client.get(path).text for path in LOOKUPS[:4]}
            found = {"repair-7" if "repair-7" in body else "flatcar-1" for body in entries.values()}
            assert found == expect_images(now)


def read_versions(folder: Path) -> dict[str, tuple[PathVersion, ...]]:
    """The versions of all paths, as they are published."""
    return dict(parse_state((folder / "output" / state_path("web01")).read_bytes()).paths)


def test_the_next_boot_is_published_before_its_transition(tmp_path: Path) -> None:
    with run_parts(tmp_path, Clock(START)) as parts:
        instance = parts.reconciler
        instance.reconcile(START - timedelta(hours=1))
        state = parse_state((tmp_path / "output" / state_path("web01")).read_bytes())
        versions = [version for each in state.paths.values() for version in each]
        assert {version.since for version in versions} == {None, START, END}
        held = {*state.contents, *(each.sha256 for each in state.files.values())}
        assert {version.content for version in versions} <= {None, *held}
        assert all((tmp_path / "output" / path).is_file() for path in state.files)


def test_planning_at_the_transition_gives_the_announced_boot(tmp_path: Path) -> None:
    with run_parts(tmp_path, Clock(START)) as parts:
        instance = parts.reconciler
        instance.reconcile(START - timedelta(hours=1))
        before = read_versions(tmp_path)
        instance.reconcile(START)
        after = read_versions(tmp_path)
    for path in {*before, *after}:
        announced, now = (find_version(found.get(path, ()), START)[0] for found in (before, after))
        assert (announced and announced.content) == (now and now.content), path
        assert (announced and announced.digest) == (now and now.digest), path
