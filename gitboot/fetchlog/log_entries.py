"""Entries of the fetch log: fetches, denials and reports, and user agents of boot loaders."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

from msgspec import Struct

from gitboot.files import write_atomically
from gitboot.jsonio import Digest, encode_canonical, format_instant, to_json_value
from gitboot.model.scalars import Malformed, parse_uuid
from gitboot.render.paths import CHECK, FAILED, PROVISIONED, Role, find_non_script_kind
from gitboot.system_clock import Uptime
from gitboot.text import format_count, format_rest, printable

REPORT_LIFETIME: Final = timedelta(hours=1)  # how long a report of an endpoint counts
MIN_UNCOUNTED: Final = 5  # fetches that do not count: a person who looks is none


class DenialReason(StrEnum):
    """Why a boot that writes a disk, or a secret of it, was not given."""

    STOPPED = "Stopped"
    CLOCK = "ClockOff"
    NOT_COUNTED = "ClientNotCounted"
    ANOTHER_MACHINE = "AnotherMachine"
    MISSING = "ArtifactMissing"
    ANOTHER_SPOOL = "AnotherFetchLog"
    OLDER_TREE = "OlderTree"
    NOT_RECORDED = "NotRecorded"
    NO_KEY = "SecretNotDecrypted"
    SERVED_BEFORE = "AlreadyServed"


class Denial(Struct, frozen=True, kw_only=True):
    reason: DenialReason
    server: str
    words: str  # why
    client: str  # the last that asked
    at: datetime  # when it did
    times: int


class UnnamedProxy(Struct, frozen=True, kw_only=True, order=True):
    """An address that states for whom it asks, and that no setting names as a proxy."""

    address: str
    at: datetime  # when a request of it came, to ten minutes


_REASON_TEXTS: Final = {
    DenialReason.CLOCK: "the clock of an endpoint is not the instance's",
    DenialReason.ANOTHER_MACHINE: "who asked is another machine than the document's",
    DenialReason.MISSING: "what the boot would fetch next is not there",
    DenialReason.ANOTHER_SPOOL: "an endpoint was asked whose spool is not the instance's",
    DenialReason.OLDER_TREE: "the tree of an endpoint is an older copy",
    DenialReason.NOT_RECORDED: "the fetch could not be recorded",
    DenialReason.NO_KEY: "an endpoint has no key for a secret",
    DenialReason.NOT_COUNTED: "who asked does not count as a machine that boots",
    DenialReason.STOPPED: "boots that write disks are stopped",
    DenialReason.SERVED_BEFORE: "the boot was served before",
}


def describe_denial(reason: DenialReason) -> str:
    """Return what anybody may read about a boot that was not given: no names, addresses, paths or reasons of people."""
    return _REASON_TEXTS[reason]


def select_reportable(denials: Iterable[Denial]) -> list[Denial]:
    """What a person should know of: of fetches that do not count only many, of what is known anyway nothing."""
    found = [each for each in denials if each.reason not in (DenialReason.SERVED_BEFORE, DenialReason.STOPPED)]
    uncounted = sum(each.times for each in found if each.reason is DenialReason.NOT_COUNTED)
    return [each for each in found if each.reason is not DenialReason.NOT_COUNTED or uncounted >= MIN_UNCOUNTED]


def summarise_denials(denials: Iterable[Denial]) -> tuple[DenialReason, str] | None:
    """Why boots were not given, in a word and in words, each reason with its last server; None: all were."""
    by_reason: dict[DenialReason, list[Denial]] = {}
    for each in select_reportable(denials):
        by_reason.setdefault(each.reason, []).append(each)
    words = []
    for reason in (each for each in _REASON_TEXTS if each in by_reason):
        found = by_reason[reason]
        last = max(found, key=lambda each: each.at)
        others = f" {format_rest(len({each.server for each in found}) - 1, 'server')}"
        words.append(
            f"{_REASON_TEXTS[reason]}: {last.server} was not given its boot ({last.words}; asked by {last.client} at "
            f"{format_instant(last.at)}, {format_count(last.times, 'time')}){others}".rstrip()
        )
    return (next(reason for reason in _REASON_TEXTS if reason in by_reason), "; ".join(words)) if words else None


def list_proxies_to_name(proxies: Iterable[UnnamedProxy]) -> list[str]:
    """Return the addresses to add to trusted-proxies, if they are proxies: those of this host, or else all."""
    found = [each.address for each in proxies]
    return [each for each in found if ip_address(each).is_loopback] or found


def build_unnamed_proxy_message(proxies: Iterable[UnnamedProxy]) -> str:
    named = list_proxies_to_name(proxies)
    return (
        f"requests with X-Forwarded-For or Forwarded come from {', '.join(named)}, which the setting trusted-proxies "
        "does not name. gitboot ignores these headers: all clients of the proxy count as one client, with the address "
        f"of the proxy. If it is your proxy, add trusted-proxies = {json.dumps(named)} to the file of --config. "
        "If it is not, a client claims to be another"
    )


_T = TypeVar("_T")


def drop_settled_intents(items: Iterable[_T], observation_of: Callable[[_T], Observation]) -> list[_T]:
    """Return the items without the intents whose outcome is among them, in their order.

    `served` outweighs `withheld`. What remains of an intent is `served`, which is a fetch; or `withheld`, which means
    that nothing was served; or the intent, which uses the boot up and proves nothing.
    """
    found = [(each, observation_of(each)) for each in items]
    served = {each.intent for _, each in found if each.outcome is Outcome.SERVED}
    known = served | {each.intent for _, each in found if each.outcome is Outcome.WITHHELD}
    overtaken = {None: known, Outcome.SERVED: set(), Outcome.WITHHELD: served}  # by the outcome of a line
    return [item for item, each in found if each.intent is None or each.intent not in overtaken[each.outcome]]


def select_consuming(observations: Iterable[Observation]) -> list[Observation]:
    return [
        each for each in drop_settled_intents(observations, lambda each: each) if each.outcome is not Outcome.WITHHELD
    ]


MOST_LOG_BYTES: Final = 4096  # of an installer's log
_MOST_LINES: Final = 20
_MOST_OFF: Final = timedelta(seconds=30)
_FAR_AHEAD_S: Final = 2**40  # since 1970: what is more is no date, and more than a ledger holds


def parse_instant(text: str) -> datetime:
    """In UTC, of which others can be reckoned; raises ValueError for what is none, or at the ends of time."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None or not 1970 <= at.year < 9999:
        raise ValueError("no instant of a request")
    return at.astimezone(UTC)


def last_lines(log: bytes) -> str:
    """Return the end of what an installer sent: at most 20 lines and 4,096 characters, each line `printable`."""
    text = log[-MOST_LOG_BYTES:].decode(errors="replace")
    lines = text.replace("\t", " ").splitlines()[-_MOST_LINES:]
    return "\n".join(map(printable, lines))[-MOST_LOG_BYTES:]


class Outcome(StrEnum):
    """What became of an intent to serve a boot."""

    SERVED = "served"  # the client has received the whole answer, as far as its system has acknowledged that
    WITHHELD = "withheld"  # the endpoint sent no byte of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One GET of an entry, of data or of a report's path, seen by an endpoint or in a mirror's access log.

    With an `intent` and without an `outcome`, an endpoint has written it before the answer.
    """

    server: str  # "" where only the path is known
    path: str  # below the output directory
    client: str  # the address it was sent to
    at: datetime
    # Which version of the path was sent; an endpoint knows the plan, a mirror the file's own date:
    digest: Digest | None = None  # of the plan whose entry was sent
    modified: int | None = None  # when the file that was sent was published, in seconds since 1970
    offer: Digest | None = None  # what was given by it, where that is given once
    log: str | None = None  # the last lines that an installer sent with its report
    times: int = 1  # how many fetches of a secret, by clients of one network, it stands for
    is_evidence: bool = True  # whether the client counts as a machine; if not, only who fetched a secret is noted
    intent: str | None = None  # by which an intent and its outcome are known; None: one line has both
    outcome: Outcome | None = None
    up: Uptime | None = field(default=None, compare=False)  # how long the kernel ran by whose clock it was seen

    def __post_init__(self) -> None:
        if (self.digest is None) == (self.modified is None):
            raise ValueError("an observation has either a plan's digest or a file's date")
        if self.modified is not None and not 0 <= self.modified < _FAR_AHEAD_S:
            raise ValueError("a file's date is one of this age")
        if self.outcome is not None and self.intent is None:
            raise ValueError("an outcome names its intent")
        for text in (self.server, self.path, self.client, self.log or "", self.intent or ""):
            text.encode()  # half of a surrogate pair, which JSON can say, could be written nowhere

    def adjust_clock(self, now: datetime, up: Uptime) -> Observation:
        """With its instant by the clock that says ``now``, where that was set by more than 30 s since it was seen."""
        if self.up is None or not up.boot or self.up.boot != up.boot:
            return self
        at = now - timedelta(seconds=up.seconds - self.up.seconds)
        return replace(self, at=at) if abs(at - self.at) > _MOST_OFF else self

    @property
    def is_open_intent(self) -> bool:
        return self.intent is not None and self.outcome is None

    @property
    def may_serve_unrecorded(self) -> bool:
        """Whether an endpoint answers it even if it cannot record it: it is no secret, and uses no boot up."""
        kind = find_non_script_kind(self.path)
        return self.offer is None and (kind is None or kind.role is not Role.SEALED)

    @property
    def is_report(self) -> bool:
        """Whether an installer says by it that it is done."""
        return find_non_script_kind(self.path) is PROVISIONED

    @property
    def is_failure(self) -> bool:
        """Whether an installer says by it that it has failed."""
        return find_non_script_kind(self.path) is FAILED

    @property
    def is_start(self) -> bool:
        """Whether it is by the system that was booted, not by the loader that boots it."""
        kind = find_non_script_kind(self.path)
        return kind is not None and kind.role in (Role.DATA, Role.SEALED)


SUFFIX: Final = ".report"
_REASONS_OF_2FEFE59: Final = {
    "AnotherGiver": "AnotherFetchLog",
    "Given": "AlreadyServed",
    "Missing": "ArtifactMissing",
    "NotCounted": "ClientNotCounted",
    "NotOpened": "SecretNotDecrypted",
}


class EndpointReport(NamedTuple):
    """What endpoints met within the last hour, sorted."""

    refused: tuple[Denial, ...] = ()
    proxies: tuple[UnnamedProxy, ...] = ()


def write_report(folder: Path, name: str, report: EndpointReport) -> None:
    """Leave the report of one endpoint in a spool; a disk that refuses it loses only that."""
    with suppress(OSError):
        write_atomically(folder / f"{name}{SUFFIX}", encode_canonical(to_json_value(report)) + b"\n", mode=0o640)


def remove_report(folder: Path, name: str) -> None:
    with suppress(OSError):
        (folder / f"{name}{SUFFIX}").unlink()


def read_reports(folder: Path, at: datetime) -> EndpointReport:
    """Return what the endpoints that write to a spool have left there."""
    found = [
        each for path in folder.glob(f"*{SUFFIX}") for each in _read_report(path) if each.at > at - REPORT_LIFETIME
    ]
    refused = [each for each in found if isinstance(each, Denial)]
    proxies = {each.address: each for each in found if isinstance(each, UnnamedProxy)}
    return EndpointReport(
        tuple(sorted(refused, key=lambda each: (each.reason, each.server, each.at))), tuple(sorted(proxies.values()))
    )


def _read_report(path: Path) -> Iterator[Denial | UnnamedProxy]:
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_bytes())
        lists = content if isinstance(content, dict) else {"refused": content}  # 2fefe59 writes a list
        for each in _list(lists.get("proxies")):
            match each:
                case {"address": str(address), "at": str(at)}:
                    yield UnnamedProxy(address=str(ip_address(address)), at=parse_instant(at))
        for each in _list(lists.get("refused")):
            match each:
                case {
                    "reason": str(reason),
                    "server": str(server),
                    "words": str(words),
                    "client": str(client),
                    "at": str(at),
                    "times": int(times),
                }:
                    for text in (server, words, client):
                        text.encode()
                    yield Denial(
                        reason=DenialReason(_REASONS_OF_2FEFE59.get(reason, reason)),
                        server=server,
                        words=words,
                        client=client,
                        at=parse_instant(at),
                        times=times,
                    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


_MOST_FIELDS: Final = 100  # of a query
_IPV6_NETWORK: Final = 64  # bits
# User-Agents, from the beginning.
_LOADERS: Final = re.compile(r"(?:iPXE|gPXE|GRUB|UefiHttpBoot|Syslinux|PXELINUX|U-Boot|petitboot)\b", re.IGNORECASE)
_SYSTEMS: Final = re.compile("Ignition/|Cloud-Init/|Go-http-client/")  # the last is Talos
_TOOLS: Final = re.compile(
    r"(?:curl|Wget|aria2|HTTPie|xh|Mozilla|Opera|Lynx|Links|w3m|ELinks|Safari|python-|Python|aiohttp|okhttp|Java|"
    r"Go-http-client|libwww|lwp-|Ruby|Faraday|axios|node|undici|PostmanRuntime|insomnia|ApacheBench|hey|k6|wrk|"
    r"Prometheus|Blackbox|kube-probe|check_http|Nagios|Icinga|Zabbix|Datadog|UptimeRobot|Pingdom|StatusCake|"
    r"HAProxy|ELB-HealthChecker|GoogleHC|Consul|Telegraf|Monit|Amazon|Googlebot|bingbot|\S*(?:bot|crawler|spider))",
    re.IGNORECASE,
)


def is_check(agent: str, query: Mapping[str, str]) -> bool:
    """Return whether gitboot itself asks. A check has both marks, because a cache may drop one of them."""
    return CHECK in query or agent.startswith("gitboot")


def is_loader(agent: str) -> bool:
    return _LOADERS.match(agent) is not None


def is_system(agent: str) -> bool:
    """Return whether an installed or an installing system asks, as no person and no monitor does."""
    return _SYSTEMS.match(agent) is not None


def is_tool(agent: str) -> bool:
    return _TOOLS.match(agent) is not None


def may_be_system(agent: str) -> bool:
    """Return whether a system asks: a known one, or a client with a name of its own that is no tool."""
    return is_system(agent) or (agent != "" and not is_tool(agent))


def has_identity(query: Mapping[str, str]) -> bool:
    """Return whether a query has what gitboot's first script sends of a machine: its UUID and its serial number.

    The serial number may be empty.
    """
    try:
        return "serial" in query and bool(parse_uuid(query.get("uuid", "")))
    except Malformed:
        return False


def is_machine(agent: str, query: Mapping[str, str]) -> bool:
    """Return whether a request for a boot script has what a machine sends. A bare GET may be a monitor's."""
    return is_loader(agent) or (has_identity(query) and not is_tool(agent))


@lru_cache(maxsize=4096)
def client_network(client: str | None) -> str:
    """Return what counts as one client: its address, or for IPv6 its /64 network, as a host chooses the rest itself.

    RFC 4291. A client whose address is not known is named as it was recorded.
    """
    try:
        address = ip_address((client or "").partition("%")[0])  # fe80::1%eth0: which interface it came by
    except ValueError:
        return client or ""
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or ip_network((address, _IPV6_NETWORK), strict=False))
    return str(address)


def parse_query(text: str) -> dict[str, str]:
    """Return a query by its keys, also by those without a value; of several values for one key the last."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        return {}
