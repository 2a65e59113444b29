"""The endpoint over real HTTP and a published tree, its clock, its clients, its metrics and its OpenAPI document."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
from msgspec import structs

from gitboot.bmc.override_state import OperatorCondition
from gitboot.cli.evaluated_fleet import PlannedFleet, describe_servers
from gitboot.controller.instance_state import InstanceState
from gitboot.endpoint.api import build_openapi
from gitboot.endpoint.app import ClientRules, Endpoint
from gitboot.endpoint.checked_clock import CheckedClock
from gitboot.endpoint.recorder import SpoolRecorder
from gitboot.endpoint.served_files import PublishedTree
from gitboot.endpoint.server import EndpointServer, build_url, open_listening_socket
from gitboot.endpoint.tls import Certificate, CipherSuites, TlsSocket
from gitboot.fetchlog.log_entries import Observation, drop_concluded_intents, select_consuming_fetches
from gitboot.fetchlog.spool import (
    Spool,
    count_deletions_after,
    get_endpoint_folder,
    read_new_lines,
    read_or_create_identity,
)
from gitboot.model.fleet import Provisioning
from gitboot.problems import Code, Problem, Severity
from gitboot.publish.manifest import STATUS
from gitboot.publish.publisher import OutputDirectory, PublicationResult
from gitboot.publish.signed_list import read_list_keys
from gitboot.render import endpoint_files
from gitboot.render.boot_files import render_fleet_files
from gitboot.render.endpoint_files import build_serving_terms
from gitboot.render.page import NO_UPDATES, FileUpdates
from gitboot.render.paths import File, Files
from gitboot.render.server_files import RenderedState, build_server_state, render_server
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.provisioning_record import InstallStep, Record, StopScope
from gitboot.resolve.server_decision import WithheldBoot
from gitboot.resolve.server_plan import InstallProgress, InstallState
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import Status
from gitboot.status.work_progress import Stage, StageTimes
from gitboot.system_clock import ClockState, Uptime
from tests.helpers import http_peers
from tests.helpers.fleets import at, fleet, image, maintenance, make_mac, make_uuid, policy, profile, repository, server
from tests.helpers.http_peers import Authority

# The endpoint over real HTTP and a tree that is really published, a clock that tests set, clients that misbehave.

START = at("20T22:00")  # of the maintenance
BEFORE, AFTER = at("20T21:00"), at("20T23:00")

MAC = make_mac("web01").replace(":", "-")
UUID = make_uuid("web01")
ENTRY = f"/v1/boot/{MAC}/boot.ipxe"
GRUB = f"/v1/boot/{MAC}/grub.cfg"
BY_UUID = f"/ipxe/{UUID}"
LOOKUPS = (ENTRY, GRUB, BY_UUID)
ADDRESS = "10.12.0.13"

PROXY: Final = (ip_network("127.0.0.1/32"),)  # named as a trusted proxy, whose X-Forwarded-For tests write

# Like tests.helpers.fleets.SEED, with an address, user data, and a file that firmware fetches.
SEED: Final = (
    fleet(),
    server("web01", "role: web").replace('"}]', f'", addresses: [{ADDRESS}, "fd00:12::13"]}}]'),
    image("flatcar-1", "userData: Ignition/3.4", "kernel, initrd, loader"),
    image("memtest-7", "writesDisk: false"),
    profile("web", "flatcar-1", "httpBoot: loader, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
    profile("repair", "memtest-7"),
)
ALWAYS: Final = (*SEED, policy("web", "{matchLabels: {role: web}}"))
ONCE: Final = (*SEED, policy("web", "{matchLabels: {role: web}}", often="Once"))
REPAIR: Final = maintenance("repair", "20T22:00 21T04:00")
TEMPLATES: Final = {"t": '{"ignition": {"version": "3.4.0"}}'}


IPXE: Final = "iPXE/1.21.1+ (g988d2)"
LOADER: Final = {"user-agent": IPXE}  # as machines request them


def get(url: str, **more: Any) -> httpx.Response:
    return http_peers.get(url, **{"headers": LOADER, "timeout": 60, **more})


@dataclass(frozen=True, kw_only=True)
class Fleet:
    servers: dict[str, RenderedState]
    shared: Files
    provisioning: Provisioning = field(default_factory=Provisioning)
    endpoint: str | None = None
    parts: FileUpdates = NO_UPDATES

    @property
    def files(self) -> dict[str, File]:
        """All files of all servers, and those that are shared."""
        return {**self.shared, **{path: file for each in self.servers.values() for path, file in each.files.items()}}

    @property
    def boot_files(self) -> dict[str, File]:
        return {path.removeprefix("boot"): file for path, file in self.files.items() if path.startswith("boot/")}


def plan_fleet(
    *documents: str,
    now: datetime = BEFORE,
    records: Mapping[str, Record] | None = None,
    templates: Mapping[str, str] = TEMPLATES,
    keys: TokenKeys = NO_KEYS,
    revision: str = "test",
    stop: StopScope = StopScope.NONE,
    withheld: Mapping[str, WithheldBoot] | None = None,
) -> Fleet:
    """Plan the fleet of these documents at a time; a server without one of the ``records`` has an empty record.

    The boots in ``withheld`` are withheld, by server.
    """
    loaded = repository(*documents, files=templates, revision=revision)
    decisions = decide(loaded)
    withheld_servers = {
        name: replace(decisions.servers[name], withheld=(boot,)) for name, boot in (withheld or {}).items()
    }
    decisions = structs.replace(decisions, servers={**decisions.servers, **withheld_servers})
    descriptions = describe_servers(loaded, decisions)
    known = records or {}
    servers = {
        name: build_server_state(
            decisions, decision, known.get(name, Record()), now, descriptions[name], stop, keys=keys
        )
        for name, decision in decisions.servers.items()
    }
    spec = loaded.fleet.spec
    return Fleet(
        servers=servers,
        shared=render_fleet_files(decisions, spec.provisioning.monitors),
        provisioning=spec.provisioning,
        endpoint=spec.endpoint,
        parts=PlannedFleet(repository=loaded, decisions=decisions, at=now, records={}).render_pages(servers),
    )


FLEET: Final = plan_fleet(*ALWAYS, REPAIR)


class Site:
    """A published tree in a folder of its own, and endpoints over it with a clock that is set."""

    def __init__(self, root: Path) -> None:
        self.root, self.now = root, BEFORE
        self.ahead = timedelta(0)  # the clock, of what is true
        self.spool = root.parent / "spool"
        self.spool.mkdir(exist_ok=True)
        self._offsets: dict[str, int] = {}

    def publish(
        self,
        fleet: Fleet = FLEET,
        *,
        commit: str = "c0ffee",
        at: datetime = BEFORE,
        taken: Mapping[str, int] | None = None,
        giver: str | None = None,  # None: the fetch log of this site; "": none
        list_keys: Path | None = None,  # None: the list is unsigned
        listed: datetime | None = None,  # when the list is made; None: it is not
    ) -> PublicationResult:
        with OutputDirectory.open(self.root, ledger="test") as directory:
            files = {name: state.files for name, state in fleet.servers.items()}
            known = count_deletions_after(self.spool, taken or {})
            identity = read_or_create_identity(self.spool) if giver is None else giver or None
            terms = build_serving_terms(fleet.provisioning, identity, endpoint=fleet.endpoint, loss_count=known)
            shared = {**fleet.shared, **endpoint_files.render_terms(terms)}
            result = directory.publish(files, shared, complete=True, commit=commit, at=at, parts=fleet.parts)
            if listed is not None:
                directory.update_list(read_list_keys(list_keys) if list_keys is not None else None, listed)
            return result

    def say(self, status: Mapping[str, Any]) -> None:
        """Leave the instance's word on itself."""
        with OutputDirectory.open(self.root, ledger="test") as directory:
            directory.write_status(json.dumps(status).encode(), BEFORE)

    def forget_status(self) -> None:
        """Remove the status of the instance, as a new copy of the tree does."""
        (self.root / STATUS).unlink()

    def observed(self) -> list[Observation]:
        """Return what was recorded since the last call, but for what was withheld, once each intent has an outcome."""
        found: list[Observation] = []

        def has_outcomes() -> bool:
            taken = read_new_lines(self.spool, self._offsets)
            self._offsets = taken.offsets
            found[:] = drop_concluded_intents([*found, *taken.observations], lambda each: each)
            return not any(each.is_open_intent for each in found)

        assert eventually(has_outcomes), "an endpoint was killed before it had written what came of a boot"
        return select_consuming_fetches(found)

    def reset(self) -> None:
        """Reset the site, because the endpoint continues to serve from it."""
        self.now = BEFORE
        self.publish()
        self.observed()

    @contextmanager
    def serve(
        self,
        listen: str = "127.0.0.1:0",
        *,
        records: bool = True,
        deadline_s: float = 20,
        tls_certificate: Certificate | None = None,
        **more: Any,
    ) -> Iterator[str]:
        """The base URL of an endpoint; with ``tls_certificate``, it is the machines' TLS socket."""
        status, assets, keys, clock_state, keeps = (
            more.pop("status", None),
            more.pop("assets", None),
            more.pop("keys", None),
            more.pop("keeping", ClockState.UNKNOWN),
            more.pop("keeps", False),
        )
        with ExitStack() as stack:
            recorder = None
            if records:
                spool = Spool(self.spool)
                stack.callback(spool.close)
                recorder = SpoolRecorder(spool, deadline_s)
            checked_clock = CheckedClock(
                lambda: self.now,
                clock_state=lambda: clock_state,
                folder=get_endpoint_folder(self.spool) if keeps else None,
                uptime=lambda: Uptime("this", (self.now - self.ahead).timestamp()),
            )
            tree = PublishedTree(self.root, lambda: self.now, status=status, checked_clock=checked_clock)
            stack.callback(checked_clock.save)  # as it does each minute
            listening = open_listening_socket(listen)
            if tls_certificate is not None:
                more |= {"machines_tls_socket": listening.getsockname()[:2], "machines_certificate": tls_certificate}
            endpoint = Endpoint(tree, lambda: self.now, recorder, ClientRules(**more), assets, keys)
            if tls_certificate is None:
                stack.enter_context(EndpointServer(endpoint, listening))
            else:
                stack.enter_context(listening)
                encrypted = TlsSocket(listening, tls_certificate.context, endpoint.limits, lambda _: None)
                stack.enter_context(EndpointServer(endpoint, tls_sockets=[encrypted]))
            yield build_url(listen, listening, "http" if tls_certificate is None else "https")


@contextmanager
def site(fleet: Fleet | None = FLEET) -> Iterator[Site]:
    """A site in a temporary folder; without a fleet nothing is published."""
    with TemporaryDirectory() as folder:
        made = Site(Path(folder) / "output")
        made.root.mkdir()
        if fleet is not None:
            made.publish(fleet)
        yield made


def connect(url: str, *, receive_buffer: int | None = None) -> socket.socket:
    parts = urlsplit(url)
    client = socket.socket(socket.AF_INET6 if ":" in str(parts.hostname) else socket.AF_INET)
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(60)
    try:
        client.connect((str(parts.hostname), parts.port))
    except OSError:
        client.close()
        raise
    return client


def exchange(url: str, request: bytes) -> bytes:
    with connect(url) as client:
        client.sendall(request)
        return read_all(client)


def read_all(client: socket.socket) -> bytes:
    received = bytearray()
    with suppress(ConnectionResetError):
        while data := client.recv(65536):
            received += data
    return bytes(received)


def remove_date(response: bytes) -> bytes:
    return b"\r\n".join(line for line in response.split(b"\r\n") if not line.lower().startswith(b"date:"))


def eventually(condition: Callable[[], bool], within_s: float = 300) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def render_states(state: InstanceState) -> dict[str, RenderedState]:
    """Return the last plans of an instance, with their rendered files."""
    commit = state.commit
    if commit is None:
        return {}
    return {name: render_server(each, commit.decisions, state.keys) for name, each in state.plans.servers.items()}


# An endpoint with a value of every metric.


def _make_stage_times() -> StageTimes:
    times = StageTimes()
    for number, stage in enumerate(Stage):
        times.add(stage, 0.1 * number)
        times.add(stage, 1000)
    return times


_PROBLEM: Final = Problem(path="a.yaml", line=1, column=1, code=Code.SKEW, message="old", severity=Severity.WARNING)
COMMITTED: Final = BEFORE - timedelta(hours=2)
INSTALLING: Final = InstallProgress(
    InstallState.INSTALLING, BEFORE - timedelta(minutes=9), InstallStep.STARTED, BEFORE - timedelta(minutes=7)
)
FULL_STATUS: Final = Status(
    ledger="l",
    attempted="bad",
    problems=(
        _PROBLEM,
        structs.replace(_PROBLEM, line=2),
        structs.replace(_PROBLEM, code=Code.NOT_YET, severity=Severity.ERROR),
    ),
    accepted="acce97ed",
    committed_at=COMMITTED,
    applied="c0ffee",
    planned_at=BEFORE,
    next_transition=START,
    phases={"Network": 3, "Disk": 2},
    records={"Provisioned": 4, "Pending": 1},
    installs={"Now": 1},
    runs={"Made": 1},
    installing={"Installing/Started": 1},
    installations=({"server": "web01", **INSTALLING.facts()},),
    drift={"ImageDrift": 1},
    bmcs={"Unchanged": 4, "Stalled": 1},
    below_minimum_version={"web": 2, "db": 0},
    stages=_make_stage_times().facts(),
    conditions=(
        Condition(type="SourceReady", status=False, reason="SourceError", message="", last_transition_time=BEFORE),
        Condition(type="Published", status=True, reason="Published", message="", last_transition_time=BEFORE),
        Condition(type="Bmc/web01", status=False, reason="Stalled", message="", last_transition_time=BEFORE),
        Condition(type="Bmc/web02", status=False, reason="Stalled", message="", last_transition_time=BEFORE),
        Condition(
            type="Bmc/web03",
            status=False,
            reason=OperatorCondition.FOREIGN_OVERRIDE,
            message="",
            last_transition_time=BEFORE,
        ),
    ),
)


@contextmanager
def monitored_endpoint(folder: Path, status: Status = FULL_STATUS) -> Iterator[str]:
    """Yield the URL of an endpoint with a value of each metric and the status of its instance."""
    authority = Authority(folder)
    certificate = Certificate(*authority.issue())
    machines_certificate = Certificate(*authority.issue(rsa_bits=2048), CipherSuites.FIRMWARE, certificate)
    for each in (certificate, machines_certificate):
        each.reload_if_changed(BEFORE)
    with site() as made:
        made.say({**status.facts(), "at": "2026-11-20T20:59:00Z"})
        with made.serve(certificate=certificate, machines_certificate=machines_certificate) as url:
            yield url


# Responses of the operators' API and webhooks, compared with the OpenAPI document of the endpoint.


def _is_instant(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


@cache
def _build_format_checker() -> Any:
    from jsonschema import FormatChecker  # type: ignore[import-untyped]

    formats = FormatChecker(formats=())
    formats.checks("date-time", raises=ValueError)(_is_instant)
    return formats


@cache
def load_openapi() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(build_openapi())
    return found


def find_openapi_problems(schema: str, value: object) -> list[str]:
    """Return how a value of JSON differs from a schema of the document, which is named."""
    from jsonschema import Draft202012Validator

    wanted = {"$ref": f"#/components/schemas/{schema}", "components": load_openapi()["components"]}
    return sorted(
        each.message for each in Draft202012Validator(wanted, format_checker=_build_format_checker()).iter_errors(value)
    )
