"""The tree of a host that stands by, made before it acts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gitboot.errors import NotYetDone
from gitboot.evaluate.limits import Allowance
from gitboot.instance.bookmark import WORTH
from gitboot.instance.directory import PREPARING
from gitboot.instance.preparing import Place, Prepared, prepare
from gitboot.publish.manifest import MANIFEST, STATUS
from gitboot.publish.tree import OWN, verify
from gitboot.render.terms import TERMS
from tests.fleets import mac_of
from tests.fleets import server as described
from tests.instance import begin, eventually
from tests.postgresqls import PostgresServer, postgresql
from tests.rack import Blade, Rack
from tests.standbys import Host, Pair, boots, pair


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgresql() as server:
        yield server


MANY = [f"web{number:04}" for number in range(WORTH)]


def begun(rack: Rack, hosts: Pair) -> Blade:
    """One acts, has published the fleet, and waits for a server to be installed; the other one stands by."""
    web = rack.add("web01", provision=1)
    rack.repository.push({f"{name}.yaml": described(name, "role: web") for name in MANY})
    rack.push()
    hosts.one.start()
    eventually(lambda: hosts.one.url)
    begin(hosts.one.state, "fresh")
    eventually(lambda: web.stands)
    hosts.two.start()
    return web


def clock() -> datetime:
    return datetime.now(UTC)


def place_of(host: Host) -> Place:
    return Place(output=host.folder / "output", state=host.state, spool=host.state / "spool")


def prepared(host: Host) -> Prepared:
    """What it makes of its tree now, while it stands by."""
    return prepare(place_of(host), allowance=Allowance(), clock=clock, warn=pytest.fail)


def tree(host: Host) -> dict[str, bytes]:
    """What its tree has of the fleet: not who publishes there, and how that fares."""
    root = host.folder / "output"
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    others = (OWN, STATUS, MANIFEST, TERMS, "ops/manifest")
    return {name: path.read_bytes() for name, path in sorted(files.items()) if not name.startswith(others)}


def differing(hosts: Pair) -> list[str]:
    """Where the trees of both hosts differ."""
    one, two = map(tree, hosts.hosts)
    return [path for path in sorted(one.keys() | two.keys()) if one.get(path) != two.get(path)]


def names(web: Blade) -> re.Pattern[str]:
    """What files of its own are called after."""
    mac, uuid = mac_of(web.machine.name).replace(":", "-"), web.uuid[18:]
    return re.compile(f"{web.name}|{mac}|{uuid}")


def told(host: Host, type: str) -> list[dict[str, Any]]:
    return [event for event in host.events if event["type"] == type]


def records(host: Host) -> dict[str, int]:
    """How many servers it has of which step, as it says itself."""
    assert host.instance is not None
    found: dict[str, int] = host.instance.status()["records"]
    return found


def test_who_takes_over_has_its_tree_before_without_what_is_not_noted(rack: Rack, server: PostgresServer) -> None:
    with pair(rack, server, server.address()) as hosts:
        web = begun(rack, hosts)
        (event,) = eventually(lambda: told(hosts.two, "Prepared"))
        assert (event["servers"], event["halted"]) == (WORTH + 1, 1)
        eventually(lambda: re.search(r"acts by .*; its tree is as of 20", hosts.two.condition["message"]))
        apart = differing(hosts)
        assert f"boot{web.entry}" in apart
        assert [path for path in apart if not names(web).search(path)] == []
        lies = (hosts.two.folder / "output/boot" / web.entry[1:]).read_text()
        assert "flatcar" not in lies
        assert verify(hosts.two.folder / "output") == ()
        assert not (hosts.two.state / PREPARING).exists()
        hosts.one.kill()
        assert hosts.taken_over(1) is hosts.two
        (event,) = eventually(lambda: told(hosts.two, "Published"))
        assert event["written"] < 10
        assert event["unchanged"] < 50
        assert differing(hosts) == []
        assert "flatcar-1" in boots(web, hosts.two)
        eventually(lambda: records(hosts.two) == {"Provisioned": WORTH + 1})
        assert web.times_set == 1


def test_it_is_brought_up_to_what_has_changed_since(rack: Rack, server: PostgresServer) -> None:
    with pair(rack, server, server.address()) as hosts:
        web = begun(rack, hosts)
        eventually(lambda: told(hosts.two, "Prepared"))
        assert "flatcar-1" in boots(web, hosts.one)  # what was halted is another by now
        eventually(lambda: records(hosts.one) == {"Provisioned": WORTH + 1})
        again = rack.add("web02", provision=1)
        web.provision = 2
        rack.push("Install one more, and one once more")
        eventually(lambda: again.stands)
        done = eventually(lambda: prepared(hosts.two))
        assert (done.servers, done.halted) == (WORTH + 2, 2)
        assert [path for path in differing(hosts) if not (names(web).search(path) or names(again).search(path))] == []
        assert prepared(hosts.two) == done
        hosts.one.kill()
        assert hosts.taken_over(1) is hosts.two
        (event,) = eventually(lambda: told(hosts.two, "Published"))
        assert event["written"] < 20
        assert differing(hosts) == []
        for each in (web, again):
            assert "flatcar-1" in boots(each, hosts.two)


def test_who_is_killed_while_it_prepares_leaves_nothing_that_is_in_the_way(rack: Rack, server: PostgresServer) -> None:
    with pair(rack, server, server.address()) as hosts:
        web = begun(rack, hosts)
        eventually(lambda: (hosts.two.state / PREPARING).exists())
        hosts.one.kill()
        assert hosts.taken_over(1) is hosts.two
        eventually(lambda: told(hosts.two, "Published"))
        assert differing(hosts) == []
        assert "flatcar-1" in boots(web, hosts.two)
        assert not (hosts.two.state / PREPARING).exists()


def test_nothing_is_prepared_where_nobody_acts_or_where_who_acts_publishes(rack: Rack, server: PostgresServer) -> None:
    with pair(rack, server, server.address()) as hosts:
        begun(rack, hosts)
        eventually(lambda: told(hosts.two, "Prepared"))
        shared = replace(place_of(hosts.two), output=hosts.one.folder / "output")
        before = tree(hosts.one)
        with pytest.raises(NotYetDone, match=r"one/output is where \S+one/state publishes"):
            prepare(shared, allowance=Allowance(), clock=clock, warn=pytest.fail)
        assert tree(hosts.one) == before
        hosts.two.kill()
        hosts.one.kill()
        eventually(lambda: hosts.lease() is None)
        with pytest.raises(NotYetDone, match="no instance acts"):
            prepared(hosts.two)
