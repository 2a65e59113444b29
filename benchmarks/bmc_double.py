"""Thousands of BMCs in one process that answer as the Redfish double of the tests does.

    python -m benchmarks.bmc_double COUNT --certificate PEM --key PEM [--latency SECONDS]

The program prints its port when it serves. System N is `/redfish/v1/Systems/N`, with the UUID of `uuid_of`. The program
serves only what gitboot and sushy use: GET and PATCH of a system, GET of its Manager, sessions. `GET /counted` returns
the number of requests by method, of connections, and of systems that were read after they were set.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import ssl
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import uvloop

from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import sample

SYSTEMS: Final = "/redfish/v1/Systems/"
MANAGERS: Final = "/redfish/v1/Managers/"
SESSIONS: Final = "/redfish/v1/SessionService/Sessions"
_BOOT: Final = ("BootSourceOverrideEnabled", "BootSourceOverrideTarget", "BootSourceOverrideMode", "HttpBootUri")
_ROOT: Final = json.dumps(sample("root"))
_SPLIT: Final = "\0boot\0"


def uuid_of(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


class Site:
    """The state of all systems, and the number of requests."""

    def __init__(self, count: int, latency_s: float) -> None:
        self.count, self.latency_s = count, latency_s
        self.counted: Counter[str] = Counter()
        self._set: dict[int, dict[str, Any]] = {}
        self._confirmed: set[int] = set()  # systems that were read after they were set
        machine = Machine("bmc", uuid=uuid_of(0xABCDEF), serial="SERIAL", system="NUMBER")
        shown = machine.system()
        self._boot = shown.pop("Boot")
        shown.pop("@odata.etag", None)
        manager = {"@odata.id": f"{MANAGERS}NUMBER"}
        shown["Links"] = shown.get("Links", {}) | {"ManagedBy": [manager]}
        self._shown = json.dumps(shown | {"Boot": _SPLIT})
        self._manager = json.dumps(machine.manager() | manager)

    def answer(self, method: str, path: str, body: bytes) -> tuple[str, str, str]:
        """Return the status line, more headers, and the body."""
        self.counted[method] += 1
        if path.rstrip("/") == "/redfish/v1":
            return "200 OK", "", _ROOT
        if path == "/counted":
            return "200 OK", "", json.dumps({**self.counted, "confirmed": len(self._confirmed)})
        if path.startswith(SESSIONS):
            return self._session(method)
        folder, _, name = path.rpartition("/")
        if not name.isdecimal() or int(name) >= self.count:
            return "404 Not Found", "", "{}"
        if f"{folder}/" == MANAGERS:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            return "200 OK", "", json.dumps(json.loads(self._manager) | {"DateTime": now})
        number = int(name)
        if method == "PATCH":
            self._set[number] = self._set.get(number, {}) | json.loads(body)["Boot"]
            self._confirmed.discard(number)
            return "204 No Content", "", ""
        if number in self._set:
            self._confirmed.add(number)
        boot = self._boot | self._set.get(number, {})
        etag = f'ETag: "{hash(tuple(boot[each] for each in _BOOT)) & 0xFFFFFFFF:x}"\r\n'
        shown = self._shown.replace("NUMBER", name).replace("SERIAL", f"SN{number:06}")
        return (
            "200 OK",
            etag,
            shown.replace(uuid_of(0xABCDEF), uuid_of(number)).replace(json.dumps(_SPLIT), json.dumps(boot)),
        )

    def _session(self, method: str) -> tuple[str, str, str]:
        if method == "DELETE":
            return "204 No Content", "", ""
        self.counted["sessions"] += 1
        where = f"{SESSIONS}/{self.counted['sessions']}"
        return "201 Created", f"X-Auth-Token: token\r\nLocation: {where}\r\n", json.dumps({"@odata.id": where})


class Connection(asyncio.Protocol):
    """A connection of a client that waits for each answer before its next request."""

    def __init__(self, site: Site) -> None:
        self._site, self._received = site, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._site.counted["connections"] += 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self._received = rest[length:]
        method, path, _ = lines[0].split(" ")
        closes = headers.get("connection") == "close"
        asyncio.get_running_loop().call_later(self._site.latency_s, self._answer, method, path, rest[:length], closes)

    def _answer(self, method: str, path: str, body: bytes, closes: bool) -> None:
        status, more, text = self._site.answer(method, path, body)
        if self._transport.is_closing():
            return
        length = "" if status.startswith("204") else f"Content-Length: {len(text)}\r\n"
        kind = "Content-Type: application/json\r\n" if text else ""
        self._transport.write(f"HTTP/1.1 {status}\r\n{kind}{length}{more}\r\n{text}".encode())
        if closes:
            self._transport.close()


async def _serve(count: int, latency_s: float, certificate: Path, key: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    site = Site(count, latency_s)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(site), "127.0.0.1", 0, ssl=tls, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--latency", type=float, default=0.3)
    parser.add_argument("--certificate", type=Path, required=True)
    parser.add_argument("--key", type=Path, required=True)
    asked = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection for each BMC
    uvloop.run(_serve(asked.count, asked.latency, asked.certificate, asked.key))


if __name__ == "__main__":
    main()
