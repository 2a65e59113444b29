"""Inventories that images send: only where the Fleet asks for them, within bounds, and never of any consequence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest

from gitboot.endpoint.app import INVENTORY_PATH, MOST_OF_ONE, Clients, Endpoint
from gitboot.endpoint.served_files import PublishedTree
from gitboot.endpoint.server import EndpointServer, listen_at, url_of
from gitboot.fetchlog.unknown_machines import MOST_BYTES, UnknownAsked, UnknownMachine, unknown_left
from tests.fetchlog.test_unknown_machines import SENT
from tests.helpers import http_peers
from tests.helpers.endpoints import BEFORE, ENTRY, LOADER, MAC, ONCE, UUID, Site, connect, planned, read_all
from tests.helpers.endpoints import site as new_site
from tests.helpers.fleets import fleet

CHOSEN = fleet("baseURL: 'http://boot.test', outputs: [ipxe, inventory]")
FLEET = planned(CHOSEN, *ONCE[1:])


@pytest.fixture
def site() -> Iterator[Site]:
    with new_site(FLEET) as made:
        yield made


def left(site: Site) -> list[UnknownMachine]:
    """What an instance is to take in."""
    return [machine for each in unknown_left(site.spool) for machine in each.table.machines]


def send(site: Site, *contents: object, **headers: str) -> list[httpx.Response]:
    asked = UnknownAsked(site.spool)
    with site.serve(asked=asked) as url, http_peers.Client(base_url=url, headers=headers) as client:
        answers = [
            client.post(INVENTORY_PATH, content=each if isinstance(each, bytes) else json.dumps(each).encode())
            for each in contents
        ]
    asked.leave()
    return answers


def codes(answers: list[httpx.Response]) -> list[int]:
    return [each.status_code for each in answers]


def test_what_is_sent_of_an_unknown_machine_is_left_for_the_instance(site: Site) -> None:
    [answer] = send(site, SENT)
    assert (answer.status_code, answer.content) == (204, b"")
    [machine] = left(site)
    assert (machine.macs, machine.serial) == (("52-54-00-99-99-99", "52-54-00-99-99-9a"), "4J8VM72")
    assert machine.inventory is not None and machine.inventory.product == "PowerEdge R650"


def test_nothing_is_taken_unless_the_fleet_asks_for_it(site: Site) -> None:
    site.publish(planned(*ONCE), commit="c0ffe2")
    assert codes(send(site, SENT)) == [405]
    assert left(site) == []


def test_of_a_machine_that_a_document_has_it_says_and_decides_nothing(site: Site) -> None:
    """A boot that is made once is neither given, nor spent, nor reported by it."""
    own = {"uuid": UUID, "interfaces": [{"mac": MAC}], "provision": 7}
    assert codes(send(site, own)) == [204]
    assert (left(site), site.observed()) == ([], [])
    with site.serve() as url:
        assert "boots flatcar-1" in http_peers.get(f"{url}{ENTRY}", headers=LOADER).text
    assert [each.server for each in site.observed()] == ["web01"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"x" * (MOST_BYTES + 1), 413),
        (b"[" * MOST_BYTES, 400),
        (b"\x00\xff", 400),
        (b"", 400),
        ({"interfaces": []}, 400),
        ({"interfaces": [{"mac": "../../ops"}]}, 400),
    ],
)
def test_what_is_no_inventory_is_refused_and_leaves_nothing(site: Site, content: object, status: int) -> None:
    [answer] = send(site, content)
    assert answer.status_code == status
    assert (status == 400) == ("send" in answer.text) and left(site) == []


def test_who_says_it_is_larger_than_it_is_leaves_nothing(site: Site) -> None:
    asked = UnknownAsked(site.spool)
    with site.serve(asked=asked) as url, connect(url) as client:
        client.sendall(b"POST /v1/inventory HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n" + b'{"interfaces":')
        client.shutdown(1)
        read_all(client)
    asked.leave()
    assert left(site) == []


def test_one_address_may_send_so_many_a_minute(site: Site) -> None:
    many = [{"interfaces": [{"mac": f"52:54:01:00:00:{number:02x}"}]} for number in range(MOST_OF_ONE + 5)]
    answers = send(site, *many)
    assert codes(answers) == [204] * MOST_OF_ONE + [429] * 5
    assert answers[-1].headers["retry-after"] == "60"
    assert len(left(site)) == MOST_OF_ONE
    site.now += timedelta(minutes=1)
    assert codes(send(site, SENT)) == [204]


def test_who_is_a_monitor_or_cannot_be_kept_is_not_heard(site: Site) -> None:
    with site.serve() as url:
        assert http_peers.post(f"{url}{INVENTORY_PATH}", json=SENT).status_code == 503, "there is no spool for it"
    monitored = fleet(
        "baseURL: 'http://boot.test', outputs: [inventory, ipxe], provisioning: {monitors: ['127.0.0.0/8']}"
    )
    site.publish(planned(monitored, *ONCE[1:]), commit="c0ffe2")
    assert codes(send(site, SENT)) == [404]
    assert left(site) == []


def test_it_is_only_sent_and_not_to_the_operators_address(site: Site) -> None:
    asked = UnknownAsked(site.spool)
    with site.serve(asked=asked) as url:
        assert http_peers.get(f"{url}{INVENTORY_PATH}").status_code == 404
        assert http_peers.post(f"{url}{INVENTORY_PATH}/", json=SENT).status_code == 405
    listening = listen_at("127.0.0.1:0")
    clients = Clients(operators_at=listening.getsockname(), asked=asked)
    endpoint = Endpoint(site.root, PublishedTree(site.root, lambda: BEFORE), lambda: BEFORE, clients=clients)
    with EndpointServer(endpoint, listening):
        url = url_of("127.0.0.1:0", listening)
        assert http_peers.post(f"{url}{INVENTORY_PATH}", json=SENT).status_code == 405
    asked.leave()
    assert left(site) == []
