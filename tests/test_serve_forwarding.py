"""Endpoints on several hosts: what each records reaches the instance once, and what is made once is given by one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from gitboot.model.scalars import parse_mac
from gitboot.observe import batches
from gitboot.observe.asked import UnknownAsked, unknown_left
from gitboot.observe.batches import ForwardedBatch, Writer
from gitboot.observe.refused import NotGiven, WhyNot
from gitboot.observe.reports import read_reports, remove_report, write_report
from gitboot.observe.spool import Spool, aside, files, forget, identity, take
from gitboot.observe.undescribed import UnknownMachine
from gitboot.serve import alone as alone_module
from gitboot.serve.admission import Clients
from gitboot.serve.alone import Alone, Grant
from gitboot.serve.app import Endpoint
from gitboot.serve.clocks import ComparedClock
from gitboot.serve.forwarding import ForwardedRecording, Forwarder, InstanceGrants, InstanceSpool
from gitboot.serve.operators import Tokens
from gitboot.serve.recording import Recording
from gitboot.serve.server import EndpointServer, listen_at, url_of
from gitboot.serve.tree import PublishedTree
from gitboot.timekeeping import Keeping, Uptime
from tests import plain
from tests.fleets import fleet
from tests.git_servers import free_port
from tests.instance import eventually
from tests.serving import BEFORE, ENTRY, LOOKUPS, ONCE, Fleet, Site, get, planned, site
from tests.test_serve_supervise import served

GIVEN, DISK = "(Network)", "boots its local disk"
TOKEN = "a-token-of-endpoints-1"
FLEET = planned(*ONCE)
REPORTED = planned(fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}"), *ONCE[1:])
SITED = planned(
    fleet(
        "baseURL: 'http://boot.test', sites: [{name: ams1, select: {matchLabels: {role: web}}, baseURL: 'http://ams1.test'}]"
    ),
    *ONCE[1:],
)
WRITER = Writer("ab" * 16, "17-0123456789abcdef")


@dataclass
class Hosts:
    """The instance's host, and others; all have the same tree."""

    here: Site
    tokens: Path
    url: str = ""

    @contextmanager
    def instance(self, listen: str = "127.0.0.1:0") -> Iterator[str]:
        with self.here.serve(listen, spool_tokens=Tokens(self.tokens)) as url:
            self.url = url
            yield url

    @contextmanager
    def other(
        self, name: str = "other", token: str = TOKEN, deadline_s: float = 5, sole_for: str | None = None
    ) -> Iterator[Other]:
        """An endpoint on another host that forwards to where the instance was last."""
        folder = self.here.root.parent / name
        folder.mkdir(exist_ok=True)
        (file := folder.with_suffix(".token")).write_text(token)
        with ExitStack() as stack:
            spool = Spool(folder)
            stack.callback(spool.close)
            instance = InstanceSpool(self.url, file, None)
            alone = Alone(folder, InstanceGrants(instance), sole_for)
            recording = ForwardedRecording(Recording(spool, 20), instance, deadline_s, alone)
            clock = ComparedClock(
                lambda: self.here.now,
                keeping=lambda: Keeping.UNKNOWN,
                uptime=lambda: Uptime(name, self.here.now.timestamp()),
            )
            tree = PublishedTree(self.here.root, lambda: self.here.now, compared=clock)
            endpoint = Endpoint(self.here.root, tree, lambda: self.here.now, recording, Clients())
            listening = listen_at("127.0.0.1:0")
            stack.enter_context(EndpointServer(endpoint, listening))
            url = url_of("127.0.0.1:0", listening)
            yield Other(url, folder, instance, recording, Forwarder(folder, instance, deadline_s, alone), alone)


@dataclass
class Other:
    url: str
    spool: Path
    instance: InstanceSpool
    recording: ForwardedRecording
    forwarder: Forwarder
    alone: Alone


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    (tokens := tmp_path / "tokens").write_text(f"# endpoints\n{TOKEN}\n")
    with site(FLEET) as here:
        yield Hosts(here, tokens)


# Given once


def test_what_is_made_once_is_given_by_one_of_several_hosts(hosts: Hosts) -> None:
    with hosts.instance() as url, hosts.other("east") as east, hosts.other("west") as west:
        assert GIVEN in get(east.url + ENTRY).text
        [seen] = hosts.here.observed()
        assert seen.offer is not None, "it stands in the instance's spool before it is given"
        hosts.here.now += timedelta(seconds=59)
        assert all(GIVEN in get(each + ENTRY).text for each in (url, east.url, west.url)), "the same boot"
        hosts.here.now += timedelta(seconds=2)
        for each in (url, east.url, west.url):
            assert [path for path in LOOKUPS if DISK not in get(each + path).text] == [], each


def test_an_instance_that_does_not_answer_leaves_what_is_made_once_ungiven(hosts: Hosts) -> None:
    with hosts.instance() as url:
        pass
    with hosts.other() as other:
        text = get(other.url + ENTRY).text
        assert DISK in text
        assert f"not given: its fetch could not be recorded: the instance at {url} does not take it" in text
        ready = plain.get(other.url + "/readyz")
        assert ready.status_code == 503
        assert f"the instance at {url} does not take it" in ready.text
        with hosts.instance(url.removeprefix("http://")):
            assert GIVEN in get(other.url + ENTRY).text
            assert plain.get(other.url + "/readyz").status_code == 200


def test_an_instance_that_hangs_costs_a_deadline_and_nothing_more(hosts: Hosts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        hosts.url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        with hosts.other(deadline_s=0.3) as other:
            began = time.monotonic()
            assert DISK in get(other.url + ENTRY).text
            assert time.monotonic() - began < 5
            assert "it does not answer in time" in plain.get(other.url + "/readyz").text


@pytest.mark.parametrize(
    ("token", "why"),
    [("another-token-than-those", "401"), ("", "does not hold one token"), (f"# ours\n{TOKEN}", "not hold one token")],
)
def test_a_stranger_forwards_nothing(hosts: Hosts, token: str, why: str) -> None:
    with hosts.instance() as url, hosts.other(token=token) as other:
        assert DISK in get(other.url + ENTRY).text
        assert why in plain.get(other.url + "/readyz").text
        for verb in ("given", "record", f"batch/{WRITER}?begin=0", "left/x/y"):
            assert plain.post(f"{url}/v1/spool/{verb}", content=b"{}").status_code == 401
    assert hosts.here.observed() == []


def test_nothing_is_taken_in_where_that_was_not_asked_for(hosts: Hosts) -> None:
    with hosts.here.serve() as hosts.url, hosts.other() as other:
        assert DISK in get(other.url + ENTRY).text
        assert "not started with --spool-tokens" in plain.get(other.url + "/readyz").text


# Forwarded


def report(fleet: Fleet) -> str:
    """Where the installer of a fleet's server reports."""
    return f"{ENTRY.rpartition('/')[0]}/provisioned/{fleet.servers['web01'].decision.token}"


def test_what_gives_nothing_once_is_recorded_here_and_forwarded_once(hosts: Hosts) -> None:
    hosts.here.publish(REPORTED)
    with hosts.instance() as url:
        pass
    with hosts.other() as other:
        for _ in range(3):  # while the instance is away
            assert get(other.url + report(REPORTED)).status_code in (200, 204)
        with hosts.instance(url.removeprefix("http://")):
            other.forwarder.send()
            assert [each.is_report for each in hosts.here.observed()] == [True] * 3
            get(other.url + report(REPORTED))
            Forwarder(other.spool, other.instance, 5).send()  # one that knows of nothing that was sent
            other.forwarder.send()
            assert len(hosts.here.observed()) == 1
    assert files(other.spool) != [], "its writer was still there"
    with hosts.instance(), hosts.other() as other:
        other.forwarder.send()
        assert files(other.spool) == []
    assert hosts.here.observed() == []


def test_a_report_to_one_host_ends_the_boot_at_all_even_before_it_is_forwarded(hosts: Hosts) -> None:
    hosts.here.publish(REPORTED)
    with hosts.instance() as url, hosts.other() as other:
        assert GIVEN in get(other.url + ENTRY).text
        get(other.url + report(REPORTED))
        assert DISK in get(other.url + ENTRY).text
        other.forwarder.send()
        assert DISK in get(url + ENTRY).text


def test_it_is_sent_by_itself_and_by_one_process_of_several(hosts: Hosts) -> None:
    hosts.here.publish(REPORTED)
    with hosts.instance(), hosts.other() as other:
        second = Forwarder(other.spool, other.instance, 5)
        with other.forwarder, second:
            get(other.url + report(REPORTED))
            assert len(eventually(hosts.here.observed)) == 1
    assert hosts.here.observed() == []


@pytest.mark.parametrize("killed", ["far", "near"])
def test_a_process_that_is_killed_loses_nothing_and_doubles_nothing(hosts: Hosts, killed: str) -> None:
    """Each of two commands is killed while the other goes on; what came in meanwhile arrives once."""
    hosts.here.publish(REPORTED)
    far_spool = hosts.here.root.parent / "far"
    (token := far_spool.with_suffix(".token")).write_text(TOKEN)
    port = free_port()
    near = ("--spool", str(hosts.here.spool), "--spool-tokens", str(hosts.tokens), "--listen", f"127.0.0.1:{port}")
    far = ("--spool", str(far_spool), "--forward-to", f"http://127.0.0.1:{port}", "--forward-token", str(token))
    told = 0
    with ExitStack() as stack:
        up = {}
        for name, arguments in (("near", near), ("far", far)):
            up[name] = stack.enter_context(ExitStack())
            url, _ = up[name].enter_context(served(hosts.here.root, *arguments))
        for _ in range(3):
            for _ in range(5):
                told += get(url + report(REPORTED)).status_code in (200, 204)
            up[killed].close()  # by SIGKILL
            again = up[killed].enter_context(served(hosts.here.root, *(far if killed == "far" else near)))
            url = again[0] if killed == "far" else url
        assert told == 15
        eventually(lambda: len(take(hosts.here.spool, {}).observations) >= told)
    assert len(take(hosts.here.spool, {}).observations) == told


def test_what_endpoints_leave_besides_is_brought_along(hosts: Hosts) -> None:
    machine = UnknownMachine(
        macs=(parse_mac("52:54:00:00:00:01"),), client="10.0.0.9", path="x", first=BEFORE, last=BEFORE
    )
    with hosts.instance(), hosts.other() as other:
        asked = UnknownAsked(other.spool)
        asked.note(machine)
        asked.leave()
        refused = NotGiven(reason=WhyNot.GIVEN, server="web01", words="w", client="c", at=BEFORE, times=1)
        write_report(other.spool, "17-0123456789abcdef", [refused])
        other.forwarder.send()
        assert [list(each.table.machines) for each in unknown_left(hosts.here.spool)] == [[machine]]
        assert read_reports(hosts.here.spool, BEFORE) == (refused,)
        asked.note(machine)
        asked.leave()
        other.forwarder.send()
        assert len(list(unknown_left(other.spool))) == 1, "the instance has not taken the last yet"
        remove_report(other.spool, "17-0123456789abcdef")
        other.forwarder.send()
        assert read_reports(hosts.here.spool, BEFORE) == ()


# Batches


def line(number: int) -> bytes:
    return b'{"not":%d}\n' % (1000 + number)


def test_a_batch_is_taken_once_whatever_was_forgotten(tmp_path: Path) -> None:
    first, second = line(1) * 3, line(2)
    assert batches.accept(tmp_path, ForwardedBatch(WRITER, 0, first)) == len(first)
    assert batches.accept(tmp_path, ForwardedBatch(WRITER, 0, first)) == len(first), "its acknowledgement was lost"
    assert batches.accept(tmp_path, ForwardedBatch(WRITER, 5, second)) == len(first), "something is left out"
    taken = take(tmp_path, {})
    forget(tmp_path, taken.offsets, 1)
    assert files(tmp_path) == []
    assert batches.accept(tmp_path, ForwardedBatch(WRITER, 0, first)) == len(first), "it was taken, and is gone"
    assert batches.accept(tmp_path, ForwardedBatch(WRITER, len(first), second)) == len(first + second)
    assert len(files(tmp_path)) == 1


def test_of_files_that_are_no_more_nothing_is_kept(tmp_path: Path) -> None:
    for number in range(20):
        writer = Writer(WRITER.spool, f"17-{number:016x}")
        batches.accept(tmp_path, ForwardedBatch(writer, 0, line(number)))
        forget(tmp_path, take(tmp_path, {}).offsets, number + 1)
    noted = tmp_path / ".forwarded" / WRITER.spool
    assert len(noted.read_bytes()) < 100


def test_many_at_once_leave_each_line_once(tmp_path: Path) -> None:
    lines = [line(number) for number in range(40)]

    def send() -> None:
        place = 0
        while place < sum(map(len, lines)):
            index = sum(place >= sum(map(len, lines[: each + 1])) for each in range(40))
            place = batches.accept(tmp_path, ForwardedBatch(WRITER, place, lines[index]))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"".join(path.read_bytes() for path in files(tmp_path)) == b"".join(lines)


@pytest.mark.parametrize("writer", ["x/y", f"{'ab' * 16}/../../etc", f"{'ab' * 16}/17-0123456789abcdef/x"])
def test_a_writer_is_named_as_spools_name_them(hosts: Hosts, writer: str) -> None:
    with hosts.instance() as url:
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = plain.post(f"{url}/v1/spool/batch/{writer}?begin=0", content=line(1), headers=headers)
    assert answer.status_code in (400, 404)
    assert [path.name for path in files(hosts.here.spool)] == []


def test_the_instance_knows_a_spool_by_its_identity(hosts: Hosts) -> None:
    with hosts.instance(), hosts.other() as other:
        assert get(other.url + ENTRY).status_code == 200
        assert other.recording.giver == identity(hosts.here.spool) != identity(other.spool)


# Alone


@pytest.fixture
def soon() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alone_module, "SETTLED_S", 0.1)
        patch.setattr(alone_module, "_ASKED_EVERY_S", 0.0)
        yield


def claimed(other: Other) -> None:
    """Claim the site, and once more a moment later: then it counts."""
    for _ in range(2):
        other.forwarder.send()
        other.alone.ask()
        time.sleep(0.15)


@pytest.mark.usefixtures("soon")
def test_a_sites_boots_are_given_by_one_host_alone_whether_it_reaches_the_instance_or_not(hosts: Hosts) -> None:
    hosts.here.publish(SITED)
    with hosts.instance() as url, hosts.other("east", sole_for="ams1") as east, hosts.other("west") as west:
        east.alone.ask()
        assert east.alone.grant is None, "others may be at it"
        claimed(east)
        assert east.alone.grant == Grant("ams1", identity(hosts.here.spool), 0)
        for each in (url, west.url):
            text = get(each + ENTRY).text
            assert DISK in text
            assert "AnotherGiver" in text
        with hosts.other("north", sole_for="ams1") as north:
            claimed(north)
            assert north.alone.grant is None, "who came first has it"
            assert DISK in get(north.url + ENTRY).text
    with hosts.other("east", sole_for="ams1") as east:  # started anew, and the instance is away
        assert plain.get(east.url + "/readyz").status_code == 200
        assert GIVEN in get(east.url + ENTRY).text
        hosts.here.now += timedelta(seconds=61)
        assert DISK in get(east.url + ENTRY).text
        with hosts.instance(url.removeprefix("http://")):
            east.forwarder.send()
            assert [each.offer is not None for each in hosts.here.observed()] == [True], "it arrives all the same"
            east.forwarder.send()
        assert DISK in get(east.url + ENTRY).text, "and is not forgotten here"


@pytest.mark.usefixtures("soon")
def test_what_another_gave_before_is_not_given_alone_once_more(hosts: Hosts) -> None:
    hosts.here.publish(SITED)
    with hosts.instance() as url, hosts.other("east", sole_for="ams1") as east:
        assert GIVEN in get(url + ENTRY).text
        claimed(east)
        hosts.here.now += timedelta(seconds=61)
    with hosts.other("east", sole_for="ams1") as east:
        assert DISK in get(east.url + ENTRY).text


@pytest.mark.usefixtures("soon")
def test_others_give_again_once_it_has_let_go_and_sent_what_it_gave(hosts: Hosts) -> None:
    hosts.here.publish(SITED)
    with hosts.instance() as url, hosts.other("east", sole_for="ams1") as east:
        claimed(east)
        assert GIVEN in get(east.url + ENTRY).text
    with hosts.instance() as url, hosts.other("east") as east:
        east.forwarder.send()
        east.alone.ask()
        assert east.alone.grant is None
        hosts.here.now += timedelta(seconds=59)
        assert DISK in get(url + ENTRY).text, "not before it has settled"
        time.sleep(0.15)
        east.forwarder.send()
        east.alone.ask()
        assert GIVEN in get(url + ENTRY).text, "the same boot, within its grace"
        hosts.here.now += timedelta(seconds=2)
        assert DISK in get(url + ENTRY).text


@pytest.mark.usefixtures("soon")
def test_a_grant_of_another_instance_counts_for_its_trees_alone(hosts: Hosts) -> None:
    hosts.here.publish(SITED)
    with hosts.instance(), hosts.other("east", sole_for="ams1") as east:
        claimed(east)
        grant = aside(east.spool) / "sole"
        grant.write_bytes(grant.read_bytes().replace(identity(hosts.here.spool).encode(), b"0" * 32))
    with hosts.other("east", sole_for="ams1") as east:
        assert DISK in get(east.url + ENTRY).text
