"""The endpoint over real HTTP: what it answers from, a clock that tests set, clients that misbehave."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from gitboot.observe.observation import Observation
from gitboot.plan import Record
from gitboot.render.answers import Answers
from gitboot.render.formats import shared_files
from gitboot.render.paths import ContentType
from gitboot.render.schedule import server_state
from gitboot.render.tree import File, Files
from gitboot.serve.app import Endpoint
from gitboot.serve.server import Server
from gitboot.status import Status
from tests.fleets import SEED, at, decided, mac_of, maintenance, uuid_of

T = TypeVar("T")

START = at("20T22:00")  # of the maintenance
BEFORE, AFTER = at("20T21:00"), at("20T23:00")

MAC = mac_of("web01").replace(":", "-")
UUID = uuid_of("web01")
ENTRY = f"/v1/boot/{MAC}/boot.ipxe"
GRUB = f"/v1/boot/{MAC}/grub.cfg"
BY_UUID = f"/ipxe/{UUID}"
LOOKUPS = (ENTRY, GRUB, BY_UUID)

USER_DATA = "/o/" + "c" * 64 + "/user-data"
EXTRAS: Files = {  # what the seed's boots have none of
    f"boot{USER_DATA}": File(b"#cloud-config\n", ContentType.CLOUD_CONFIG),
    f"boot/ignition/{UUID}": File(b'{"ignition": {"version": "3.4.0"}}', ContentType.IGNITION),
    f"boot/httpboot/{UUID}.json": File(
        b'{"SystemUUID":"%b","UKIURL":"http://boot.test/x.efi"}' % UUID.encode(), ContentType.JSON
    ),
}


def answers(
    *documents: str,
    now: datetime = BEFORE,
    templates: Mapping[str, str] | None = None,
    seed: Iterable[str] = SEED,
    **more: Any,
) -> Answers:
    """What is answered for the seed's server, which a maintenance repairs from 22:00 on, and for other documents."""
    decisions = decided(*seed, maintenance("repair", "20T22:00 21T04:00"), *documents, files=templates)
    states = {name: server_state(decisions, decision, Record(), now) for name, decision in decisions.servers.items()}
    return Answers(
        files={**EXTRAS, **shared_files(decisions), **_merged(state.files for state in states.values())},
        turns=_merged(state.turns for state in states.values()),
        entries=_merged(state.entries for state in states.values()),
        servers={name: state.summary for name, state in states.items()},
        **more,
    )


def _merged(mappings: Iterable[Mapping[str, T]]) -> dict[str, T]:
    return {key: value for mapping in mappings for key, value in mapping.items()}


_ANSWERS: Final = answers()


@dataclass
class Site:
    """What an endpoint reads, for a test to change, and what it has observed."""

    answers: Answers | None = _ANSWERS
    status: Status = field(default_factory=lambda: Status(applied="c0ffee", planned_at=BEFORE))
    now: datetime = BEFORE
    observed: list[Observation] = field(default_factory=list)

    def reset(self) -> None:
        """Be as new, for the endpoint that answers from this site goes on."""
        vars(self).update(vars(Site()), observed=self.observed)
        self.observed.clear()

    @contextmanager
    def serve(self, listen: str = "127.0.0.1:0", **more: Any) -> Iterator[str]:
        """The base URL of an endpoint."""
        endpoint = Endpoint(
            answers=lambda: self.answers,
            status=lambda: self.status,
            clock=lambda: self.now,
            observe=self.observed.append,
            **more,
        )
        with Server(endpoint, listen) as server:
            yield server.url


def connect(url: str, *, receive_buffer: int | None = None) -> socket.socket:
    parts = urlsplit(url)
    client = socket.socket(socket.AF_INET6 if ":" in str(parts.hostname) else socket.AF_INET)
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(10)
    try:
        client.connect((str(parts.hostname), parts.port))
    except OSError:
        client.close()
        raise
    return client


def exchange(url: str, request: bytes) -> bytes:
    """All that comes back for these bytes, until the server closes."""
    with connect(url) as client:
        client.sendall(request)
        return read_all(client)


def read_all(client: socket.socket) -> bytes:
    received = bytearray()
    with suppress(ConnectionResetError):
        while data := client.recv(65536):
            received += data
    return bytes(received)


def undated(response: bytes) -> bytes:
    """A response without its Date."""
    return b"\r\n".join(line for line in response.split(b"\r\n") if not line.lower().startswith(b"date:"))


def eventually(look: Callable[[], bool], within_s: float = 5) -> bool:
    until = time.monotonic() + within_s
    while not look():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
