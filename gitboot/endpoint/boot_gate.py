"""Boot gate: the checks that must succeed before gitboot serves an install boot, a one-time boot or a secret."""

from __future__ import annotations

import logging
import os
import socket
import threading
from base64 import b64decode
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from secrets import token_hex
from typing import Final, NamedTuple

from msgspec import Struct, field

from gitboot.endpoint.access_control import LOOPBACK, build_network_matcher
from gitboot.endpoint.age_encryption import AgeKeys, DecryptionError
from gitboot.endpoint.recorder import Recorder
from gitboot.endpoint.served_files import PublishedTree
from gitboot.fetchlog.log_entries import (
    REPORT_LIFETIME,
    Denial,
    DenialReason,
    EndpointReport,
    Observation,
    Outcome,
    UntrustedProxy,
    has_identity,
    is_boot_loader_agent,
    is_gitboot_check,
    is_system_agent,
    is_tool_agent,
    may_be_system_agent,
    remove_report,
    write_report,
)
from gitboot.fetchlog.one_time_boots import FetchLogUnavailable, ServedBoot
from gitboot.jsonio import Digest
from gitboot.model.scalars import Malformed, is_placeholder_serial, is_placeholder_uuid, parse_uuid
from gitboot.render.endpoint_files import DiskWrite, NeededFile, ServingTerms
from gitboot.render.paths import HOP, Role, find_token

_logger = logging.getLogger(__name__)

# Fetches that count as evidence: those by machines, but not those by people, monitors and this host


class FetchFilter:
    """Decides whether a fetch counts as a fetch by a machine.

    The rules are in the serving terms of the output tree.
    """

    def __init__(self, tree: PublishedTree) -> None:
        self._tree, self._terms = tree, ServingTerms()
        self._is_monitor = self._is_boot_client = build_network_matcher(())

    def is_from_own_system(self, client: str | None, agent: str, recipient: str | None) -> bool:
        """Return whether a fetch of user data by UUID comes from the machine's own system.

        Any client could send such a request. ``recipient`` is the client to which gitboot served the boot, or None if
        gitboot did not serve the boot. `find_reason_to_ignore` checks addresses and monitoring requests. If the Fleet
        lists clients, each fetch by one of these clients counts as evidence.
        """
        if self._tree.terms.clients or is_system_agent(agent):
            return True
        is_same_client = client is not None and client == recipient and not _is_own_address(client)
        return recipient is not None and (may_be_system_agent(agent) or is_same_client)

    def find_reason_to_ignore(self, client: str | None, agent: str, query: Mapping[str, str], role: Role) -> str | None:
        """Return why a fetch does not count as a fetch by a machine, or None if it does.

        If the Fleet lists clients, each fetch by one of these clients counts as evidence.
        """
        if is_gitboot_check(agent, query):
            return "the request is one of gitboot's own checks"
        if self._terms != (terms := self._tree.terms):
            self._terms, self._is_monitor = terms, build_network_matcher(terms.monitors)
            self._is_boot_client = build_network_matcher(terms.clients)
        if self._is_monitor(client):
            return f"{client} is in provisioning.monitors"
        if self._terms.clients and not self._is_boot_client(client):
            return f"{client} is not in provisioning.clients"
        if role is not Role.BOOT_SCRIPT or self._terms.clients or is_boot_loader_agent(agent):
            return None
        if is_tool_agent(agent):
            return f"{agent.split()[0][:40]} is not a boot loader"
        if client is None or _is_own_address(client):
            return "the request comes from this host, not from a boot loader"
        if has_identity(query):
            return None
        name = agent[:40] or "the client"
        return f"{name} does not identify itself as a boot loader, and sends no UUID or serial number"


_is_loopback: Final = build_network_matcher(LOOPBACK)


@lru_cache(maxsize=4096)
def _is_own_address(client: str) -> bool:
    """Return whether an address belongs to this host, by trying to bind a socket to the address."""
    if _is_loopback(client):
        return True
    address = ip_address(client)
    if address.is_unspecified:
        return False
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((client, 0))
        except OSError:
            return False
    return True


# Withheld boots

_MAX_DENIALS: Final = 500  # the maximum number of servers for each reason
_MAX_PROXIES: Final = 16
_PROXY_INTERVAL: Final = timedelta(minutes=10)


class GateDenial(NamedTuple):
    """The reason why gitboot withholds a boot."""

    reason: DenialReason
    detail: str


class DenialLog:
    """Stores the last denial for each server and each reason. Several threads may use the same object."""

    def __init__(self) -> None:
        self.counts: Counter[DenialReason] = Counter()
        self._lock = threading.Lock()
        self._last: dict[DenialReason, OrderedDict[str, Denial]] = {reason: OrderedDict() for reason in DenialReason}
        self._proxies: OrderedDict[str, UntrustedProxy] = OrderedDict()

    def add(self, server: str, denial: GateDenial, client: str, at: datetime) -> None:
        with self._lock:
            self.counts[denial.reason] += 1
            last = self._last[denial.reason]
            earlier_count = last.pop(server).request_count if server in last else 0
            last[server] = Denial(
                reason=denial.reason,
                server=server,
                detail=denial.detail,
                client=client,
                at=at,
                request_count=earlier_count + 1,
            )
            if len(last) > _MAX_DENIALS:
                last.popitem(last=False)

    def clear(self, server: str) -> None:
        """Remove the denials for a server, because gitboot has now served the server's boot."""
        with self._lock:
            for last in self._last.values():
                last.pop(server, None)

    def add_proxy(self, address: str, at: datetime) -> None:
        """Record a client that sends a forwarding header but is not a trusted proxy."""
        with self._lock:
            known = self._proxies.get(address)
            if known is not None and at - known.at < _PROXY_INTERVAL:
                return
            self._proxies[address] = UntrustedProxy(address=address, at=at)
            self._proxies.move_to_end(address)
            if len(self._proxies) > _MAX_PROXIES:
                self._proxies.popitem(last=False)

    def build_report(self, at: datetime) -> EndpointReport:
        """Return the sorted denials and untrusted proxies of the last hour."""
        with self._lock:
            denials = [denial for last in self._last.values() for denial in last.values()]
            proxies = list(self._proxies.values())
        recent_denials = [denial for denial in denials if denial.at > at - REPORT_LIFETIME]
        recent_denials.sort(key=lambda denial: (denial.reason, denial.server))
        recent_proxies = sorted(proxy for proxy in proxies if proxy.at > at - REPORT_LIFETIME)
        return EndpointReport(tuple(recent_denials), tuple(recent_proxies))


@contextmanager
def open_denial_reports(spool: Path | None, denials: DenialLog) -> Iterator[Callable[[datetime], None]]:
    """Yield a function that writes a report of recent denials to the spool, but only if the report has changed.

    If the function cannot write the report, the next call tries again. gitboot removes the report at the end of the
    block.
    """
    name = f"{os.getpid()}-{token_hex(8)}"
    written = EndpointReport()
    is_failing = False

    def report(at: datetime) -> None:
        nonlocal written, is_failing
        if spool is None or (current := denials.build_report(at)) == written:
            return
        try:
            write_report(spool, name, current)
            written, is_failing = current, False
        except OSError as error:
            if not is_failing:
                _logger.error("%s: the report of withheld boots cannot be written: %s", spool, error.strerror)
            is_failing = True

    yield report
    if spool is not None:
        remove_report(spool, name)


# Whether a boot is served

_OTHER_ENDPOINT: Final = GateDenial(
    DenialReason.ANOTHER_FETCH_LOG, "only an endpoint that uses the spool of the instance can serve this boot"
)
_NOT_RECORDED: Final = GateDenial(DenialReason.NOT_RECORDED, "the endpoint could not record the fetch")
_NO_SPOOL: Final = GateDenial(DenialReason.NOT_RECORDED, "the endpoint has no spool, so it could not record the fetch")
_OLDER_TREE: Final = GateDenial(
    DenialReason.OLDER_TREE, "the output tree is an old copy, and an endpoint may have served boots since it was made"
)
_UNKNOWN_CLIENT: Final = ""  # stands for a client whose address is not in the records


class GuardedPath(Struct, frozen=True, kw_only=True):
    """A path that the endpoint serves only if the boot gate allows it. The endpoint records fetches of such a path."""

    server: str
    path: str  # the path below the output directory
    role: Role
    digest: str | None  # the digest in the record of a fetch; None: the endpoint does not record fetches of this path
    identity_values: Mapping[str, tuple[str, ...]]  # the UUIDs and serial numbers that the machine may send
    disk_write: DiskWrite | None = None  # None: the boot does not write a disk


class ClientRequest(Struct, frozen=True, kw_only=True):
    """A request with its client and its time.

    Do not trust the User-Agent and the query, because a client can send any values.
    """

    client: str | None
    agent: str
    query: Mapping[str, str]
    at: datetime
    is_head: bool  # whether this is a HEAD request, which does not consume a boot
    # the ids of the request's intents whose outcome is not recorded yet
    intents: list[str] = field(default_factory=list)

    @property
    def is_gitboot_check(self) -> bool:
        """Whether gitboot itself sent the request to check the endpoint.

        Such a request does not consume a boot, and gitboot does not report its denials.
        """
        return is_gitboot_check(self.agent, self.query)


class BootGate:
    """Decides whether an endpoint serves a path, based on the serving terms, the existing files and the spool.

    The gate also logs denials.
    """

    def __init__(
        self,
        tree: PublishedTree,
        recorder: Recorder | None,
        find_missing_file: Callable[[NeededFile], str | None],
        denials: DenialLog,
        keys: AgeKeys | None = None,
    ) -> None:
        self._tree, self._recorder, self._keys = tree, recorder, keys
        self._find_missing_file, self._denials = find_missing_file, denials
        self._fetch_filter = FetchFilter(tree)

    async def find_denial(self, guarded_path: GuardedPath, request: ClientRequest) -> GateDenial | None:
        """Return why the endpoint must not serve a path, or None if the endpoint may serve it.

        If the fetch must be recorded, record the fetch.

        If a fetch could not be recorded, gitboot still serves a boot that does not write a disk. If an installer's
        report could not be recorded, gitboot rejects the report, so that the installer sends it again.
        """
        disk_write = guarded_path.disk_write
        if disk_write is None:
            return await self._check_path_without_disk_write(guarded_path, request)
        denial = self._check_conditions(guarded_path, request)
        if denial is None and disk_write.once:
            denial = await self._check_one_time_boot(guarded_path, request, disk_write)
        elif denial is None:
            await self.record_fetch(guarded_path, request)
        if denial is None or not is_redirected(denial, guarded_path, request):
            self._log_decision(guarded_path, request, denial)
        return denial

    async def _check_path_without_disk_write(
        self, guarded_path: GuardedPath, request: ClientRequest
    ) -> GateDenial | None:
        if guarded_path.digest is None:
            return None
        reason = self.find_reason_to_ignore(guarded_path, request) if guarded_path.role is not Role.DATA else None
        if reason is not None:
            is_refused = guarded_path.role is Role.REPORT and not request.is_gitboot_check
            return GateDenial(DenialReason.CLIENT_NOT_COUNTED, reason) if is_refused else None
        is_recorded = await self.record_fetch(guarded_path, request)
        if not self._is_from_own_system(guarded_path, request, _UNKNOWN_CLIENT):
            self.store_outcome(request, None)
        is_lost = guarded_path.role is Role.REPORT and not is_recorded and not request.is_head
        return _NOT_RECORDED if is_lost else None

    async def decrypt_secret(
        self, guarded_path: GuardedPath, request: ClientRequest, encrypted: bytes
    ) -> bytes | GateDenial:
        """Return the decrypted content of a secret, or the reason why gitboot does not serve the secret.

        gitboot serves a secret only to machines, only if the fetch is recorded, and only until the installer has sent
        its report.
        """
        result = await self._decrypt_if_allowed(guarded_path, request, encrypted)
        self._log_decision(guarded_path, request, result if isinstance(result, GateDenial) else None)
        return result

    async def _decrypt_if_allowed(
        self, guarded_path: GuardedPath, request: ClientRequest, encrypted: bytes
    ) -> bytes | GateDenial:
        denial = self._check_conditions(guarded_path, request)
        if denial is not None:
            return denial
        content = self._decrypt(guarded_path, encrypted)
        if isinstance(content, GateDenial):
            return content
        denial = await self._check_secret_fetch(guarded_path, request)
        return denial if denial is not None else content

    def _decrypt(self, guarded_path: GuardedPath, encrypted: bytes) -> bytes | GateDenial:
        name = guarded_path.path.rpartition("/")[2]
        if self._keys is None:
            why = f"the endpoint cannot decrypt the secret {name}, because it was started without --secret-keys"
            return GateDenial(DenialReason.SECRET_NOT_DECRYPTED, why)
        try:
            return self._keys.decrypt(b64decode(encrypted))
        except DecryptionError as error:
            return GateDenial(
                DenialReason.SECRET_NOT_DECRYPTED, f"the endpoint cannot decrypt the secret {name}: {error}"
            )

    async def _check_secret_fetch(self, guarded_path: GuardedPath, request: ClientRequest) -> GateDenial | None:
        recorder, token = self._recorder, guarded_path.digest
        if recorder is None or token is None:
            return _NO_SPOOL
        try:
            is_done = await recorder.has_installer_reported(guarded_path.server, token)
        except FetchLogUnavailable:
            return _build_unrecorded_denial(recorder)
        if self._is_served_elsewhere(recorder):
            return _OTHER_ENDPOINT
        if self._is_tree_outdated(recorder):
            return _OLDER_TREE
        if is_done:
            return GateDenial(DenialReason.ALREADY_SERVED, "the installer has already reported its result")
        return None if request.is_head or await self.record_fetch(guarded_path, request) else _NOT_RECORDED

    def _log_decision(self, guarded_path: GuardedPath, request: ClientRequest, denial: GateDenial | None) -> None:
        if request.is_head or request.is_gitboot_check:
            return
        if denial is None:
            self._denials.clear(guarded_path.server)
        else:
            self._denials.add(guarded_path.server, denial, request.client or "unknown", request.at)

    def _check_conditions(self, guarded_path: GuardedPath, request: ClientRequest) -> GateDenial | None:
        if guarded_path.role is Role.DATA:
            return None
        if (notice := self._tree.stop_orders.current) is not None:
            return GateDenial(DenialReason.STOPPED, str(notice.order))
        if self._recorder is not None and self._recorder.withheld_reason is not None:
            return GateDenial(DenialReason.STOPPED, self._recorder.withheld_reason)
        if (clock_problem := self._tree.clock.problem) is not None:
            return GateDenial(DenialReason.CLOCK_OFF, clock_problem)
        if guarded_path.role in (Role.BOOT_SCRIPT, Role.SEALED):
            if (reason := self.find_reason_to_ignore(guarded_path, request)) is not None:
                return GateDenial(DenialReason.CLIENT_NOT_COUNTED, reason)
            if (mismatch := _find_identity_mismatch(guarded_path.identity_values, request.query)) is not None:
                return GateDenial(DenialReason.ANOTHER_MACHINE, mismatch)
        needs = guarded_path.disk_write.needs if guarded_path.disk_write is not None else ()
        missing = next(filter(None, map(self._find_missing_file, needs)), None)
        return GateDenial(DenialReason.ARTIFACT_MISSING, missing) if missing is not None else None

    async def _check_one_time_boot(
        self, guarded_path: GuardedPath, request: ClientRequest, disk_write: DiskWrite
    ) -> GateDenial | None:
        recorder, offer = self._recorder, disk_write.offer
        if recorder is None or guarded_path.digest is None or offer is None:
            return _NO_SPOOL
        try:
            served = await recorder.find_served_boot(guarded_path.server, offer, disk_write.report)
        except FetchLogUnavailable:
            return _build_unrecorded_denial(recorder)
        if self._is_served_elsewhere(recorder):
            return _OTHER_ENDPOINT
        if guarded_path.role is Role.DATA:
            return await self._check_data_of_one_time_boot(guarded_path, request, served)
        if self._is_tree_outdated(recorder):
            return _OLDER_TREE
        if served is not None and not served.may_serve_again(request.at, self._tree.clock.up):
            return GateDenial(DenialReason.ALREADY_SERVED, str(served))
        may_serve = guarded_path.role is Role.OFFER or request.is_head or await self.record_fetch(guarded_path, request)
        return None if may_serve else _NOT_RECORDED

    async def _check_data_of_one_time_boot(
        self, guarded_path: GuardedPath, request: ClientRequest, served: ServedBoot | None
    ) -> GateDenial | None:
        """Check a fetch of user data. ``served`` is the record of the served boot to which the data belongs."""
        recipient = None if served is None or served.first.is_from_system else served.first.client
        is_from_own_system = self._is_from_own_system(guarded_path, request, recipient)
        # A boot that was served is consumed, regardless of the client that later requests its data.
        may_be_evidence = is_from_own_system or recipient is None
        is_recorded = request.is_head or await self.record_fetch(guarded_path, request, may_be_evidence=may_be_evidence)
        if not is_from_own_system:  # the outcome stays unknown, because the client may not be the machine
            self.store_outcome(request, None)
        may_serve = is_recorded or self.find_reason_to_ignore(guarded_path, request) is not None
        return None if may_serve else _NOT_RECORDED

    def _is_served_elsewhere(self, recorder: Recorder) -> bool:
        """Return whether only endpoints that use a different spool may serve one-time boots.

        The result is based on the spool identity that the last check of this endpoint's spool found.
        """
        return (
            self._tree.belongs_to_other_instance
            or recorder.serving_identity is None
            or recorder.serving_identity != self._tree.terms.fetch_log_id
        )

    def _is_tree_outdated(self, recorder: Recorder) -> bool:
        """Return whether the output tree is older than the latest deletion in the spool.

        The result is based on the last check of the spool.
        """
        return recorder.deletion_count > self._tree.terms.loss_count

    def find_reason_to_ignore(self, guarded_path: GuardedPath, request: ClientRequest) -> str | None:
        """Return why a request does not count as a request by a machine, or None if it does."""
        return self._fetch_filter.find_reason_to_ignore(request.client, request.agent, request.query, guarded_path.role)

    async def record_fetch(
        self, guarded_path: GuardedPath, request: ClientRequest, log: str | None = None, *, may_be_evidence: bool = True
    ) -> bool:
        """Record a fetch or an installer's report. Return whether the write succeeded.

        ``log`` is the end of the installer's log if the installer reports a failure.
        """
        recorder = self._recorder
        if recorder is None or guarded_path.digest is None or self._tree.belongs_to_other_instance or request.is_head:
            return False
        is_counted = guarded_path.role is not Role.DATA or self.find_reason_to_ignore(guarded_path, request) is None
        is_evidence = is_counted and may_be_evidence
        has_outcome = is_evidence and guarded_path.role is not Role.REPORT  # a report counts whatever the response is
        offer = guarded_path.disk_write.offer if guarded_path.disk_write is not None else None
        observation = Observation(
            server=guarded_path.server,
            path=guarded_path.path,
            digest=Digest(guarded_path.digest),
            offer=Digest(offer) if offer is not None else None,
            client=request.client or "unknown",
            at=request.at,
            log=log,
            up=self._tree.clock.up,
            is_evidence=is_evidence,
            intent=token_hex(16) if has_outcome else None,
        )
        if observation.intent is not None:
            request.intents.append(observation.intent)
        return await recorder.record(observation, self._tree.terms.fetch_log_id)

    def store_outcome(self, request: ClientRequest, outcome: Outcome | None) -> None:
        """Record the outcome for the intents of a request. If ``outcome`` is None, the outcome stays unknown."""
        while request.intents and self._recorder is not None:
            self._recorder.intents.store_outcome(request.intents.pop(), outcome)

    def _is_from_own_system(self, guarded_path: GuardedPath, request: ClientRequest, recipient: str | None) -> bool:
        """Return whether a request for user data comes from the machine's own system.

        A token in the path proves that it does.
        """
        return (
            guarded_path.role is not Role.DATA
            or find_token(guarded_path.path) is not None
            or self._fetch_filter.is_from_own_system(request.client, request.agent, recipient)
        )


def _build_unrecorded_denial(recorder: Recorder) -> GateDenial:
    reason = recorder.failure or "the spool did not respond in time"
    return GateDenial(DenialReason.NOT_RECORDED, f"the endpoint could not record the fetch: {reason}")


def is_redirected(denial: GateDenial, guarded_path: GuardedPath, request: ClientRequest) -> bool:
    """Return whether gitboot redirects the client to another endpoint.

    gitboot does not redirect a request that another endpoint has already redirected.
    """
    has_hop = guarded_path.disk_write is not None and guarded_path.disk_write.hop is not None
    may_be_served_there = denial.reason in (DenialReason.ANOTHER_FETCH_LOG, DenialReason.NOT_RECORDED)
    return has_hop and may_be_served_there and HOP not in request.query


def add_explanation(content: bytes, denial: GateDenial, server: str) -> bytes:
    """Add two comment lines to the script that explain a denial.

    All loaders accept comments that begin with #.
    """
    comment = (
        f"# gitboot withheld the boot of {server}: {escape_comment(denial.detail)} ({denial.reason})\n"
        f"# Print the boot with: gitboot boot-script {server} --tree OUTPUT\n"
    ).encode()
    first, newline, rest = content.partition(b"\n")
    return first + newline + comment + rest if first.startswith(b"#!") else comment + content


def escape_comment(text: str) -> str:
    """Replace each character that must not be in a comment with a question mark."""
    return "".join(char if char.isprintable() and char.isascii() else "?" for char in text)


def _find_identity_mismatch(expected: Mapping[str, tuple[str, ...]], query: Mapping[str, str]) -> str | None:
    """Return how the identity that a client sent differs from the expected identity, or None if they do not differ."""
    sent: dict[str, str] = {}
    with suppress(Malformed):
        if query.get("uuid") and not is_placeholder_uuid(uuid := parse_uuid(query["uuid"])):
            sent["uuid"] = uuid
    if (serial := _parse_serial(query.get("serial", ""))) is not None:
        sent["serial"] = serial
    expected_values = {
        "uuid": expected.get("uuid", ()),
        "serial": tuple(map(_parse_serial, expected.get("serial", ()))),
    }
    compared = {kind: value for kind, value in sent.items() if any(expected_values[kind])}
    if not compared or any(value in expected_values[kind] for kind, value in compared.items()):
        return None
    return ", ".join(
        f"the client's {kind} is {value}, not {expected_values[kind][0]}" for kind, value in sorted(compared.items())
    )


def _parse_serial(text: str) -> str | None:
    serial = text.strip()[:64].upper()
    return None if not serial or is_placeholder_serial(serial) else serial
