"""Fetch log entries: observations, denials and endpoint reports, and functions that recognize boot loaders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from operator import index
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from msgspec import Struct

from gitboot.files import write_atomically
from gitboot.jsonio import Digest, encode_canonical, format_instant, parse_json, to_json_value
from gitboot.model.scalars import Malformed, parse_uuid
from gitboot.render.paths import CHECK, FAILED, PROVISIONED, Role, find_non_script_kind
from gitboot.system_clock import Uptime
from gitboot.text import format_count, format_omitted, printable

_T = TypeVar("_T")
_Reported = TypeVar("_Reported", "Denial", "UntrustedProxy")


# Observations

MAX_LOG_BYTES: Final = 4096  # the maximum size of an installer's log
_MAX_LINES: Final = 20
_CLOCK_CHANGE_TOLERANCE: Final = timedelta(seconds=30)
_MAX_MODIFIED_S: Final = 2**40  # in seconds since 1970; ledgers cannot contain a larger number


def parse_log_instant(text: str) -> datetime:
    """Parse an ISO 8601 time with an offset and return it in UTC.

    Raises ValueError for any other text, and for years before 1970 or after 9998, so that date arithmetic cannot
    overflow.
    """
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        raise ValueError(f"{text!r} has no UTC offset")
    if not 1970 <= at.year < 9999:
        raise ValueError(f"{text!r} is not in the years 1970 to 9998")
    return at.astimezone(UTC)


def format_log_end(log: bytes) -> str:
    """Return the end of an installer's log as `printable` text, with at most 20 lines and 4,096 characters."""
    lines = log[-MAX_LOG_BYTES:].decode(errors="replace").replace("\t", " ").splitlines()[-_MAX_LINES:]
    return "\n".join(map(printable, lines))[-MAX_LOG_BYTES:]


class Outcome(StrEnum):
    """The outcome of an intent to serve a boot."""

    SERVED = "served"  # the client's system acknowledged the whole response
    WITHHELD = "withheld"  # the endpoint did not send a byte of the boot


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """A GET request for a boot script, user data or a secret, or an installer's report.

    An endpoint or a mirror's access log recorded the request.

    The endpoint writes an observation with an `intent` but without an `outcome` before it sends its response.
    """

    server: str  # the server name; "" if the log contains only the path
    path: str  # the path below the output directory
    client: str  # the address of the client
    at: datetime
    # These fields identify the version of the file. An endpoint logs the plan, and a mirror logs the date of the file.
    digest: Digest | None = None  # the digest of the plan whose boot script was sent
    modified: int | None = None  # the time at which gitboot published the file, in seconds since 1970
    offer: Digest | None = None  # the digest of the offer of a one-time boot
    log: str | None = None  # the last lines of an installer's log, sent with its report
    times: int = 1  # the number of fetches of a secret by clients of one network
    is_evidence: bool = True  # whether the client counts as a machine; otherwise the fetch counts only for secrets
    intent: str | None = None  # the ID that connects an intent with its outcome; None: one line contains both
    outcome: Outcome | None = None
    up: Uptime | None = field(default=None, compare=False)  # the uptime of the kernel whose clock set `at`

    def __post_init__(self) -> None:
        if (self.digest is None) == (self.modified is None):
            raise ValueError("an observation must have either a plan digest or a file date")
        if self.modified is not None and not 0 <= self.modified < _MAX_MODIFIED_S:
            raise ValueError(f"the file date {self.modified} is out of range")
        if self.outcome is not None and self.intent is None:
            raise ValueError("an observation with an outcome must name its intent")
        for text in (self.server, self.path, self.client, self.log or "", self.intent or ""):
            text.encode()  # JSON can contain half of a surrogate pair, which Python cannot encode

    def adjust_clock(self, now: datetime, up: Uptime) -> Observation:
        """Return the observation with its time converted to the current setting of the clock, which now shows ``now``.

        The time changes only if the clock was set forward or back by more than 30 s after the observation.
        """
        if self.up is None or not up.boot or self.up.boot != up.boot:
            return self
        at = now - timedelta(seconds=up.seconds - self.up.seconds)
        return replace(self, at=at) if abs(at - self.at) > _CLOCK_CHANGE_TOLERANCE else self

    @property
    def is_open_intent(self) -> bool:
        return self.intent is not None and self.outcome is None

    @property
    def may_serve_unrecorded(self) -> bool:
        """Whether an endpoint may respond even if it cannot record the fetch.

        This is False for secrets and one-time boots.
        """
        kind = find_non_script_kind(self.path)
        return self.offer is None and (kind is None or kind.role is not Role.SEALED)

    @property
    def reports_success(self) -> bool:
        """Whether this is an installer's report that the installation has finished."""
        return find_non_script_kind(self.path) is PROVISIONED

    @property
    def reports_failure(self) -> bool:
        """Whether this is an installer's report that the installation has failed."""
        return find_non_script_kind(self.path) is FAILED

    @property
    def is_from_system(self) -> bool:
        """Whether the request came from the booted system rather than from the boot loader."""
        kind = find_non_script_kind(self.path)
        return kind is not None and kind.role in (Role.DATA, Role.SEALED)


def drop_concluded_intents(items: Iterable[_T], get_observation: Callable[[_T], Observation]) -> list[_T]:
    """Return the items in order, without the intents whose outcome is also among the items.

    One item remains for each intent. The outcome `served` counts as a fetch, and takes precedence over `withheld`,
    which means that the endpoint sent no byte. An intent without an outcome uses up the boot but does not count as
    evidence.
    """
    pairs = [(item, get_observation(item)) for item in items]
    served = {observation.intent for _, observation in pairs if observation.outcome is Outcome.SERVED}
    withheld = {observation.intent for _, observation in pairs if observation.outcome is Outcome.WITHHELD}

    def is_concluded(observation: Observation) -> bool:
        """Return whether an observation that takes precedence has the same intent."""
        if observation.outcome is Outcome.SERVED:
            return False
        return observation.intent in served or (observation.outcome is None and observation.intent in withheld)

    return [item for item, observation in pairs if not is_concluded(observation)]


def select_consuming_fetches(observations: Iterable[Observation]) -> list[Observation]:
    """Return the fetches that use up a boot, in order. A boot that the endpoint withheld is not used up."""
    concluded = drop_concluded_intents(observations, lambda observation: observation)
    return [observation for observation in concluded if observation.outcome is not Outcome.WITHHELD]


# Reports of endpoints

REPORT_SUFFIX: Final = ".report"
REPORT_LIFETIME: Final = timedelta(hours=1)  # how long an endpoint's report is valid
_REASONS_BY_OLD_NAME: Final = {
    "AnotherGiver": "AnotherFetchLog",
    "Given": "AlreadyServed",
    "Missing": "ArtifactMissing",
    "NotCounted": "ClientNotCounted",
    "NotOpened": "SecretNotDecrypted",
}


class EndpointReport(NamedTuple):
    """The denials and untrusted proxies that endpoints recorded in the last hour, sorted."""

    denials: tuple[Denial, ...] = ()
    proxies: tuple[UntrustedProxy, ...] = ()


def write_report(folder: Path, name: str, report: EndpointReport) -> None:
    """Write an endpoint's report into a spool. Raises OSError."""
    content = {"refused": [_build_denial_value(denial) for denial in report.denials], "proxies": report.proxies}
    write_atomically(folder / f"{name}{REPORT_SUFFIX}", encode_canonical(to_json_value(content)) + b"\n", mode=0o640)


def remove_report(folder: Path, name: str) -> None:
    """Remove an endpoint's report from a spool. Ignore disk errors, because the report soon expires."""
    with suppress(OSError):
        (folder / f"{name}{REPORT_SUFFIX}").unlink()


def read_reports(folder: Path, at: datetime) -> EndpointReport:
    """Return the merged reports of all endpoints that write to a spool. Skip values that gitboot cannot read."""
    denials: list[Denial] = []
    proxies: dict[str, UntrustedProxy] = {}
    for path in folder.glob(f"*{REPORT_SUFFIX}"):
        content = _read_report(path)
        denials += _parse_items(content.get("refused"), _parse_denial, at - REPORT_LIFETIME)
        for proxy in _parse_items(content.get("proxies"), _parse_proxy, at - REPORT_LIFETIME):
            proxies[proxy.address] = max(proxy, proxies.get(proxy.address, proxy))  # the latest
    denials.sort(key=lambda denial: (denial.reason, denial.server, denial.at))
    return EndpointReport(tuple(denials), tuple(sorted(proxies.values())))


def _read_report(path: Path) -> Mapping[str, Any]:
    content = None
    with suppress(OSError, ValueError):
        content = parse_json(path.read_bytes())
    return content if isinstance(content, dict) else {"refused": content}  # the version 2fefe59 wrote a list of denials


def _parse_items(values: Any, parse: Callable[[Mapping[str, Any]], _Reported], after: datetime) -> Iterator[_Reported]:
    """Yield the values of a list that are later than ``after``. Skip values from another version of gitboot."""
    for value in values if isinstance(values, list) else ():
        with suppress(KeyError, TypeError, ValueError):
            item = parse(value)
            if item.at > after:
                yield item


def _parse_proxy(value: Mapping[str, Any]) -> UntrustedProxy:
    return UntrustedProxy(address=str(ip_address(str(value["address"]))), at=parse_log_instant(value["at"]))


def _build_denial_value(denial: Denial) -> dict[str, Any]:
    return {
        "reason": denial.reason,
        "server": denial.server,
        "words": denial.detail,
        "client": denial.client,
        "at": denial.at,
        "times": denial.request_count,
    }


def _parse_denial(value: Mapping[str, Any]) -> Denial:
    return Denial(
        reason=DenialReason(_REASONS_BY_OLD_NAME.get(value["reason"], value["reason"])),
        server=_check_encodable(value["server"]),
        detail=_check_encodable(value["words"]),
        client=_check_encodable(value["client"]),
        at=parse_log_instant(value["at"]),
        request_count=index(value["times"]),
    )


def _check_encodable(value: Any) -> str:
    """Return a text. Raises ValueError for another type, and for half of a surrogate pair, which JSON can contain."""
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {type(value).__name__}")
    value.encode()
    return value


# Denials


class DenialReason(StrEnum):
    """The reason why an endpoint withheld an install boot or a secret."""

    STOPPED = "Stopped"
    CLOCK_OFF = "ClockOff"
    CLIENT_NOT_COUNTED = "ClientNotCounted"
    ANOTHER_MACHINE = "AnotherMachine"
    ARTIFACT_MISSING = "ArtifactMissing"
    ANOTHER_FETCH_LOG = "AnotherFetchLog"
    OLDER_TREE = "OlderTree"
    NOT_RECORDED = "NotRecorded"
    SECRET_NOT_DECRYPTED = "SecretNotDecrypted"  # noqa: S105 - not a password
    ALREADY_SERVED = "AlreadyServed"


class Denial(Struct, frozen=True, kw_only=True):
    """The last boot or secret that an endpoint withheld from a server for one reason."""

    reason: DenialReason
    server: str
    detail: str  # what exactly was wrong
    client: str  # the client of the last request
    at: datetime  # the time of the last request
    request_count: int


class UntrustedProxy(Struct, frozen=True, kw_only=True, order=True):
    """An address that sends X-Forwarded-For or Forwarded headers but is not listed in trusted-proxies."""

    address: str
    at: datetime  # the time of a request, rounded to ten minutes


# The fewest requests of clients other than boot loaders that gitboot reports. An operator may have sent fewer requests.
MIN_UNCOUNTED: Final = 5
_REASON_TEXTS: Final = {  # a summary begins with the first of these reasons
    DenialReason.CLOCK_OFF: "an endpoint's clock differs from the instance's clock",
    DenialReason.ANOTHER_MACHINE: "the client is not the machine in the Server document",
    DenialReason.ARTIFACT_MISSING: "a file that the boot would fetch next is missing",
    DenialReason.ANOTHER_FETCH_LOG: "the instance does not read the endpoint's spool",
    DenialReason.OLDER_TREE: "an endpoint has an older copy of the output tree",
    DenialReason.NOT_RECORDED: "an endpoint could not record the fetch",
    DenialReason.SECRET_NOT_DECRYPTED: "an endpoint has no key to decrypt a secret",
    DenialReason.CLIENT_NOT_COUNTED: "the client is not a boot loader",
    DenialReason.STOPPED: "an operator has stopped boots that write to disk",
    DenialReason.ALREADY_SERVED: "an endpoint has already served the boot",
}


def describe_denial(reason: DenialReason) -> str:
    """Return a description of a denial that gitboot may publish.

    The description contains no names, addresses, paths or text from operators.
    """
    return _REASON_TEXTS[reason]


def select_reportable_denials(denials: Iterable[Denial]) -> list[Denial]:
    """Return the denials that an operator should see.

    The result omits boots that were already served, boots that an operator stopped, and small numbers of requests from
    clients that are not machines.
    """
    omitted_reasons = [DenialReason.ALREADY_SERVED, DenialReason.STOPPED]
    denials = list(denials)
    uncounted = sum(denial.request_count for denial in denials if denial.reason is DenialReason.CLIENT_NOT_COUNTED)
    if uncounted < MIN_UNCOUNTED:
        omitted_reasons.append(DenialReason.CLIENT_NOT_COUNTED)
    return [denial for denial in denials if denial.reason not in omitted_reasons]


def summarise_denials(denials: Iterable[Denial]) -> tuple[DenialReason, str] | None:
    """Return the main reason for the denials, and a summary that names one server for each reason.

    Return None if there are no denials.
    """
    by_reason: dict[DenialReason, list[Denial]] = {}
    for denial in select_reportable_denials(denials):
        by_reason.setdefault(denial.reason, []).append(denial)
    reasons = [reason for reason in _REASON_TEXTS if reason in by_reason]
    if not reasons:
        return None
    return reasons[0], "; ".join(_summarise_reason(reason, by_reason[reason]) for reason in reasons)


def _summarise_reason(reason: DenialReason, denials: Collection[Denial]) -> str:
    last = max(denials, key=lambda denial: denial.at)
    servers = {denial.server for denial in denials}
    return (
        f"{_REASON_TEXTS[reason]}: gitboot withheld {last.server}'s boot ({last.detail}; requested by "
        f"{last.client} at {format_instant(last.at)}, {format_count(last.request_count, 'time')}) "
        f"{format_omitted(len(servers) - 1, 'server')}"
    ).rstrip()


def list_proxies_to_trust(proxies: Iterable[UntrustedProxy]) -> list[str]:
    """Return the addresses that an operator may have to add to trusted-proxies.

    If some of these addresses are loopback addresses, return only the loopback addresses.
    """
    addresses = [proxy.address for proxy in proxies]
    return [address for address in addresses if ip_address(address).is_loopback] or addresses


def build_untrusted_proxy_message(proxies: Iterable[UntrustedProxy]) -> str:
    """Return a message that names the addresses, and says how to trust them."""
    addresses = list_proxies_to_trust(proxies)
    return (
        f"trusted-proxies does not list {', '.join(addresses)}, which sent requests with an X-Forwarded-For or "
        "Forwarded header. gitboot ignores such headers, so all clients behind the proxy count as one client with the "
        "proxy's address. "
        f"If this is your proxy, add trusted-proxies = {json.dumps(addresses)} to the --config file. "
        "Otherwise, the client is pretending to have a different address"
    )


# Clients and their queries

_MAX_FIELDS: Final = 100  # the maximum number of fields in a query
_IPV6_NETWORK: Final = 64  # bits
# These patterns match the beginning of a User-Agent.
_LOADERS: Final = re.compile(r"(?:iPXE|gPXE|GRUB|UefiHttpBoot|Syslinux|PXELINUX|U-Boot|petitboot)\b", re.IGNORECASE)
_SYSTEMS: Final = re.compile("Ignition/|Cloud-Init/|Go-http-client/")  # the last alternative matches Talos
_TOOLS: Final = re.compile(
    r"(?:curl|Wget|aria2|HTTPie|xh|Mozilla|Opera|Lynx|Links|w3m|ELinks|Safari|python-|Python|aiohttp|okhttp|Java|"
    r"Go-http-client|libwww|lwp-|Ruby|Faraday|axios|node|undici|PostmanRuntime|insomnia|ApacheBench|hey|k6|wrk|"
    r"Prometheus|Blackbox|kube-probe|check_http|Nagios|Icinga|Zabbix|Datadog|UptimeRobot|Pingdom|StatusCake|"
    r"HAProxy|ELB-HealthChecker|GoogleHC|Consul|Telegraf|Monit|Amazon|Googlebot|bingbot|\S*(?:bot|crawler|spider))",
    re.IGNORECASE,
)


def is_gitboot_check(agent: str, query: Mapping[str, str]) -> bool:
    """Return whether gitboot itself sent the request as a check.

    A check is marked in the User-Agent and in the query, because a cache may remove one of the marks.
    """
    return CHECK in query or agent.startswith("gitboot")


def is_boot_loader_agent(agent: str) -> bool:
    """Return whether a boot loader or firmware sent the request."""
    return _LOADERS.match(agent) is not None


def is_system_agent(agent: str) -> bool:
    """Return whether an installed system or an installer sent the request.

    People and monitors use other User-Agents.
    """
    return _SYSTEMS.match(agent) is not None


def is_tool_agent(agent: str) -> bool:
    """Return whether a browser, a monitor or another tool of people sent the request."""
    return _TOOLS.match(agent) is not None


def may_be_system_agent(agent: str) -> bool:
    """Return whether a system may have sent the request.

    The result is True for the User-Agent of a known system, and for an unknown User-Agent that does not belong to a
    tool.
    """
    return is_system_agent(agent) or (agent != "" and not is_tool_agent(agent))


def has_identity(query: Mapping[str, str]) -> bool:
    """Return whether a query contains a UUID and a serial number, as requests by gitboot's first boot script do.

    The serial number may be empty.
    """
    try:
        return "serial" in query and bool(parse_uuid(query.get("uuid", "")))
    except Malformed:
        return False


def is_from_machine(agent: str, query: Mapping[str, str]) -> bool:
    """Return whether a machine sent a request for a boot script.

    A request without the identity of a machine may come from a monitor.
    """
    return is_boot_loader_agent(agent) or (has_identity(query) and not is_tool_agent(agent))


@lru_cache(maxsize=4096)
def get_client_network(client: str | None) -> str:
    """Return the network that gitboot counts as one client: the IPv4 address or the IPv6 /64 network of the client.

    A host chooses the remaining bits of an IPv6 address itself (RFC 4291). If ``client`` is not an address, return
    ``client`` unchanged.
    """
    try:
        address = ip_address((client or "").partition("%")[0])  # remove the zone from addresses such as fe80::1%eth0
    except ValueError:
        return client or ""
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or ip_network((address, _IPV6_NETWORK), strict=False))
    return str(address)


def parse_query(text: str) -> dict[str, str]:
    """Return the values in a query by key, including empty values. If a key is repeated, return its last value."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError:
        return {}
