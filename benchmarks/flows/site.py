"""A small site whose gitboot is traced: twelve servers, a Redfish double for their BMCs, and `gitboot run`."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from benchmarks.cost import cost_so_far
from benchmarks.fleet import Fleet, name_of
from benchmarks.flows.tracing import Tracing
from benchmarks.repository import Repository

SERVERS: Final = 12
CHANGED: Final = 0  # the server whose document changes; it has no BMC
FETCHED: Final = range(1, 6)  # servers that each wait for one installation, and fetch their boot scripts
OVERRIDDEN: Final = range(6, 11)  # servers that always boot from the network, by one-time overrides, and lose these

FIRST: Final = "first"  # the word in the document of `CHANGED` before the first round

_ROOT: Final = Path(__file__).resolve().parents[2]
_GITBOOT: Final = (sys.executable, "-m", "gitboot")
_LOADER: Final = "iPXE/1.21.1+ (g988d2)"  # gitboot serves one-time boots to boot loaders only
_PATIENCE_S: Final = 120
_POLL_S: Final = 0.001
_LAST_EVENTS: Final = 5
_QUIET_S: Final = 0.5
_IDLE: Final = 0.05  # of a processor
_BMC: Final = """\
  bmc:
    address: {address}
    system: /redfish/v1/Systems/{name}
    credentials: flows
    tls: {{ca: certs/bmc-ca.pem}}
"""


def make_argument(word: str) -> str:
    """Return the kernel argument that has the word of a document.

    The image of the server `CHANGED` claims to write no disk. The guard maxReinstalls holds a commit that adds any
    other argument to such a boot, except one that only chooses what the kernel prints.
    """
    return f"loglevel={word}"


class FlowFailed(Exception):
    """A flow did not end as it must. The message contains the failed step and the output of gitboot."""


class Site:
    """The site, from `__enter__` to `__exit__`, in which every server that has a BMC has its override."""

    def __init__(self, folder: Path) -> None:
        self.tracing = Tracing(folder)
        self._folder = folder
        self._fleet = Fleet(servers=SERVERS, bmcs=False)
        self._repository = Repository(folder / "fleet.git")
        self._events: list[dict[str, Any]] = []
        self._port = _free_port()
        self._redfish = ""
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start_bmcs()
            documents = self._documents()
            self._repository.commit(sorted(documents.items()))
            self._start_gitboot()
            self._name_ledger(documents["fleet.yaml"])
            expected = {name_of(number) for number in (*FETCHED, *OVERRIDDEN)}
            self.wait_until(
                lambda: expected <= {each.get("server") for each in self.events("OverrideConfirmed")},
                "gitboot sets the override of every BMC",
            )
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    # The fleet

    def _documents(self) -> dict[str, bytes]:
        documents = dict(self._fleet.files())
        base = f"http://127.0.0.1:{self._port}".encode()
        documents["fleet.yaml"] = re.sub(rb"http://boot[.\w]*\.example\.net", base, documents["fleet.yaml"])
        documents["certs/bmc-ca.pem"] = (self._folder / "bmcs" / "ca.pem").read_bytes()
        # gitboot reads a BMC with a one-time override every 30 seconds, and one with a lasting override every
        # 5 minutes. It does not set the one-time override of an installation again: a person has to look first.
        documents["policies/batch.yaml"] += b"  override: Once\n"
        for number in range(SERVERS):
            documents[self._fleet.path(number)] = self._server(number, word=FIRST).encode()
        return documents

    def change(self, word: str) -> None:
        """Commit another word in the document of the server `CHANGED`."""
        self._repository.commit([(self._fleet.path(CHANGED), self._server(CHANGED, word).encode())])

    def _server(self, number: int, word: str) -> str:
        role = "batch" if number == CHANGED or number in OVERRIDDEN else "control-plane"
        text = re.sub(r"role: [\w-]+", f"role: {role}", self._fleet.server(number).decode())
        if number == CHANGED:
            text += f"  kernelArguments: [{make_argument(word)}]\n"
        if number in (*FETCHED, *OVERRIDDEN):
            text += _BMC.format(address=self._redfish, name=name_of(number))
        if number in FETCHED:
            text += "  provision: 1\n"
        return text

    def find_files(self, word: str) -> set[Path]:
        """Return the published boot files that have this word of the document of `CHANGED`."""
        return {
            path
            for path in (self._folder / "output" / "boot").rglob("*")
            if path.is_file() and make_argument(word).encode() in path.read_bytes()
        }

    def mac(self, number: int) -> str:
        """Return the address by which a server boots, as it is spelt in the path of a boot script."""
        return self._search_document(r'mac: "(\S+)"', number).replace(":", "-")

    def _search_document(self, pattern: str, number: int) -> str:
        found = re.search(pattern, self._fleet.server(number).decode())
        assert found is not None
        return found[1]

    # gitboot

    def _start_gitboot(self) -> None:
        command = (
            *(*_GITBOOT, "run", str(self._repository.path), "--listen", f"127.0.0.1:{self._port}"),
            *("--out", str(self._folder / "output"), "--state", str(self._folder / "state")),
            *("--credentials", str(self._folder / "credentials")),
            *("--check-assets", "off"),  # the fleet's images do not exist
            *("--accept-filesystem", "tmpfs", "--accept-filesystem", "overlay"),
        )
        self._gitboot = subprocess.Popen(
            command, cwd=_ROOT, env=self.tracing.environment, stderr=subprocess.PIPE, text=True
        )
        reader = threading.Thread(target=self._read_events)
        self._closing.callback(self._end, self._gitboot, reader)
        reader.start()
        self.wait_until(lambda: self._status("/readyz") == 200, "gitboot serves")

    def _read_events(self) -> None:
        assert self._gitboot.stderr is not None
        for line in self._gitboot.stderr:
            try:
                event = json.loads(line)
            except ValueError:
                event = {"message": line.rstrip()}
            self._events.append(event)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind that gitboot has printed so far."""
        return [each for each in list(self._events) if each.get("type") == kind]

    def _name_ledger(self, fleet: bytes) -> None:
        """Name the instance in the Fleet, so that it may set BMCs, and tell it that no server is installed."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/v1/status", timeout=_PATIENCE_S) as answer:
            ledger = json.load(answer)["ledger"]
        named = fleet.replace(b"provisioning: {", f"provisioning: {{ledger: {ledger}, ".encode())
        if named == fleet:
            raise FlowFailed("fleet.yaml has no line `provisioning: {` into which the ledger's name could be written")
        begin = (*_GITBOOT, "records", "begin", "fresh", "--yes", "--state", str(self._folder / "state"))
        done = subprocess.run(begin, cwd=_ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FlowFailed(f"gitboot records begin exited with {done.returncode}: {done.stderr.strip()}")
        # Committed last, because gitboot rejects a request to begin if it accepts another commit at the same time.
        self._repository.commit([("fleet.yaml", named)])

    def settle(self) -> None:
        """Wait until gitboot has finished what it is doing."""
        quiet, before = 0, self._cpu_s()
        while quiet < 2:
            time.sleep(_QUIET_S)
            now = self._cpu_s()
            quiet, before = (quiet + 1 if now - before < _QUIET_S * _IDLE else 0), now

    def _cpu_s(self) -> float:
        return cost_so_far(self._gitboot.pid).cpu_s

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, at most two minutes; ``what`` names the condition in the error."""
        until = time.monotonic() + _PATIENCE_S
        while not condition():
            if self._gitboot.poll() is not None:
                raise FlowFailed(f"gitboot exited with {self._gitboot.returncode} before: {what}.{self._last_events()}")
            if time.monotonic() > until:
                raise FlowFailed(f"not within {_PATIENCE_S} s: {what}.{self._last_events()}")
            time.sleep(_POLL_S)

    def _last_events(self) -> str:
        lines = [f"{each.get('type', '')} {each.get('message', '')}".strip() for each in self._events[-_LAST_EVENTS:]]
        return "".join(f"\n  gitboot: {line}" for line in lines)

    # The endpoint

    def fetch(self, mac: str) -> bytes:
        """Fetch a boot script as a boot loader does, over a connection of its own; return the body."""
        path = f"/v1/boot/{mac}/boot.ipxe"
        with self._request(path) as answer:
            body = answer.read()
        if answer.status != 200:
            raise FlowFailed(f"GET {path}: {answer.status} {answer.reason}. Does a server have this MAC address?")
        return body

    def _status(self, path: str) -> int:
        try:
            with self._request(path) as answer:
                return answer.status
        except OSError:
            return 0

    @contextmanager
    def _request(self, path: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", path, headers={"User-Agent": _LOADER})
            yield connection.getresponse()
        finally:
            connection.close()

    # The BMCs

    def _start_bmcs(self) -> None:
        credentials = self._folder / "credentials" / "flows"
        credentials.mkdir(parents=True)
        (credentials / "username").write_text("gitboot")
        (credentials / "password").write_text("secret")
        (credentials.parent / "access.toml").write_text('networks = ["127.0.0.0/8"]\nrepository-authorities = true\n')
        (self._folder / "bmcs").mkdir()
        systems = [
            f"{name_of(number)}={self._search_document('uuid: (.+)', number)},{self.mac(number)}"
            for number in (*FETCHED, *OVERRIDDEN)
        ]
        options = [option for system in systems for option in ("--system", system)]
        command = (
            *(sys.executable, "-m", "tests.helpers.redfish_double", "--port", "0", "--tls", str(self._folder / "bmcs")),
            *("--credentials", str(self._folder / "credentials"), *options),
        )
        process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
        self._closing.callback(self._end, process)
        assert process.stdout is not None
        if not (found := re.search(r"https://\S+:\d+", process.stdout.readline())):
            raise FlowFailed("the Redfish double did not start")
        self._redfish = found[0]

    def remove_override(self, number: int) -> None:
        """Remove the override of a server at its BMC, as another tool does."""
        if self.override(number) == "Disabled":
            raise FlowFailed(f"{name_of(number)} has no override that could be removed")
        self._bmc("PATCH", number, {"Boot": {"BootSourceOverrideEnabled": "Disabled"}})

    def override(self, number: int) -> str:
        """Return what the BMC shows as BootSourceOverrideEnabled."""
        enabled: str = json.loads(self._bmc("GET", number))["Boot"]["BootSourceOverrideEnabled"]
        return enabled

    def _bmc(self, method: str, number: int, body: object = None) -> bytes:
        request = urllib.request.Request(
            f"{self._redfish}/redfish/v1/Systems/{name_of(number)}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={
                "Authorization": f"Basic {base64.b64encode(b'gitboot:secret').decode()}",
                "Content-Type": "application/json",
            },
        )
        tls = ssl.create_default_context(cafile=str(self._folder / "bmcs" / "ca.pem"))
        with urllib.request.urlopen(request, context=tls, timeout=_PATIENCE_S) as answer:
            found: bytes = answer.read()
            return found

    @staticmethod
    def _end(process: subprocess.Popen[str], reader: threading.Thread | None = None) -> None:
        process.terminate()
        try:
            process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if reader is not None:
            reader.join()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
