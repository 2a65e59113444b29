"""Boot gate: decide whether a client gets a one-time boot."""

from __future__ import annotations

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

from gitboot.endpoint.access_control import LOOPBACK, membership
from gitboot.endpoint.age_encryption import Keys, Unopened
from gitboot.endpoint.recorder import Recorder
from gitboot.endpoint.served_files import PublishedTree
from gitboot.fetchlog.log_entries import (
    KEPT,
    NotGiven,
    Observation,
    Outcome,
    Report,
    UnnamedProxy,
    WhyNot,
    has_identity,
    is_check,
    is_loader,
    is_system,
    is_tool,
    may_be_system,
    remove_report,
    write_report,
)
from gitboot.fetchlog.one_time_boots import Unrecordable
from gitboot.jsonio import Digest
from gitboot.model.scalars import Malformed, is_placeholder_serial, is_placeholder_uuid, parse_uuid
from gitboot.render.endpoint_files import DiskWrite, Need, Terms
from gitboot.render.paths import HOP, Role, token_in

# Whose fetches count: a machine's, not a person's, a monitor's or this host's own


class Census:
    """Tells by the terms of a tree, as they are published at present, whose fetches count."""

    def __init__(self, tree: PublishedTree) -> None:
        self._tree, self._terms = tree, Terms()
        self._is_monitor = self._boots = membership(())

    def is_own_system(self, client: str | None, agent: str, served_to: str | None) -> bool:
        """Return whether the machine's own system asks for user data by a UUID, which every client can do.

        ``served_to`` is the client to which the boot was served; None: it was not served. ``why_not`` decides about
        addresses and checks. If the Fleet names clients, each of them counts.
        """
        if self._tree.terms.clients or is_system(agent):
            return True
        is_same = client is not None and client == served_to and not _is_own(client)
        return served_to is not None and (may_be_system(agent) or is_same)

    def why_not(self, client: str | None, agent: str, query: Mapping[str, str], role: Role) -> str | None:
        """Return why a fetch does not count; None: it counts. Each client counts if the Fleet names clients."""
        if is_check(agent, query):
            return "it is a check by gitboot"
        if self._terms != (terms := self._tree.terms):
            self._terms, self._is_monitor, self._boots = terms, membership(terms.monitors), membership(terms.clients)
        if self._is_monitor(client):
            return f"{client} lies in provisioning.monitors"
        if self._terms.clients and not self._boots(client):
            return f"{client} does not lie in provisioning.clients"
        if role is not Role.ENTRY or self._terms.clients or is_loader(agent):
            return None
        if is_tool(agent):
            return f"{agent.split()[0][:40]} is no boot loader"
        if client is None or _is_own(client):
            return f"{client or 'who asks'} is this host itself, and no boot loader"
        if has_identity(query):
            return None
        return f"{agent[:40] or 'who asks'} does not say that it is a boot loader, and sends no UUID and serial number"


_is_loopback: Final = membership(LOOPBACK)


@lru_cache(maxsize=4096)
def _is_own(client: str) -> bool:
    """Whether an address is one of this host's: only those can be bound to."""
    if _is_loopback(client):
        return True
    address = ip_address(client)
    if address.is_unspecified:
        return False
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind((client, 0))
        except OSError:
            return False
    return True


# What was withheld

_MOST_REFUSALS: Final = 500  # servers, of each reason
_MOST_PROXIES: Final = 16
_PROXY_NOTED_EVERY: Final = timedelta(minutes=10)


class Refusal(NamedTuple):
    """Why a boot is not given."""

    reason: WhyNot
    words: str


class Refusals:
    """What was refused lately: the last of each server and reason; from any thread."""

    def __init__(self) -> None:
        self.counted: Counter[WhyNot] = Counter()
        self._lock = threading.Lock()
        self._last: dict[WhyNot, OrderedDict[str, NotGiven]] = {reason: OrderedDict() for reason in WhyNot}
        self._proxies: OrderedDict[str, UnnamedProxy] = OrderedDict()

    def note(self, server: str, refusal: Refusal, client: str, at: datetime) -> None:
        with self._lock:
            self.counted[refusal.reason] += 1
            last = self._last[refusal.reason]
            times = last.pop(server).times + 1 if server in last else 1
            last[server] = NotGiven(
                reason=refusal.reason, server=server, words=refusal.words, client=client, at=at, times=times
            )
            if len(last) > _MOST_REFUSALS:
                last.popitem(last=False)

    def settle(self, server: str) -> None:
        """Take note that a server's boot was given: what was in its way is no more."""
        with self._lock:
            for last in self._last.values():
                last.pop(server, None)

    def note_proxy(self, address: str, at: datetime) -> None:
        """Take note of an address that states for whom it asks, and that no setting names as a proxy."""
        with self._lock:
            known = self._proxies.get(address)
            if known is not None and at - known.at < _PROXY_NOTED_EVERY:
                return
            self._proxies[address] = UnnamedProxy(address=address, at=at)
            self._proxies.move_to_end(address)
            if len(self._proxies) > _MOST_PROXIES:
                self._proxies.popitem(last=False)

    def since(self, at: datetime) -> Report:
        """Return what was noted within the last hour, sorted."""
        with self._lock:
            found = [each for last in self._last.values() for each in last.values() if each.at > at - KEPT]
            proxies = sorted(each for each in self._proxies.values() if each.at > at - KEPT)
        return Report(tuple(sorted(found, key=lambda each: (each.reason, each.server))), tuple(proxies))


@contextmanager
def reporting_to(spool: Path | None, refusals: Refusals) -> Iterator[Callable[[datetime], None]]:
    """What leaves a report in the spool, where another one is due at an instant; it goes with the endpoint."""
    name = f"{os.getpid()}-{token_hex(8)}"
    left = Report()

    def report(at: datetime) -> None:
        nonlocal left
        if spool is not None and (now := refusals.since(at)) != left:
            left = now
            write_report(spool, name, now)

    yield report
    if spool is not None:
        remove_report(spool, name)


# Whether a boot is served

_HEADER_LINES: Final = b"#!"
_ANOTHER_GIVER: Final = Refusal(WhyNot.ANOTHER_GIVER, "another endpoint gives it, by the instance's own spool")
_NOT_RECORDED: Final = Refusal(WhyNot.NOT_RECORDED, "its fetch could not be recorded")
_NO_SPOOL: Final = Refusal(WhyNot.NOT_RECORDED, "its fetch could not be recorded: this endpoint has no spool")


def _unrecorded(recorder: Recorder) -> Refusal:
    why = recorder.failure or "the spool does not answer in time"
    return Refusal(WhyNot.NOT_RECORDED, f"its fetch could not be recorded: {why}")


_OLDER_TREE: Final = Refusal(WhyNot.OLDER_TREE, "the tree is an older copy, and may not know what was given since")
_SOMEBODY: Final = ""  # to whom a boot was perhaps served
_SENT_ON: Final = (WhyNot.ANOTHER_GIVER, WhyNot.NOT_RECORDED)  # by which another endpoint may give it


class Guarded(Struct, frozen=True, kw_only=True):
    """What is looked at before a path is answered, and written down."""

    server: str
    path: str  # below the output directory
    role: Role
    digest: str | None  # what is written down of a fetch; None: nothing is
    shows: Mapping[str, tuple[str, ...]]  # what the machine may show of who it is
    writes: DiskWrite | None = None  # None: what it boots writes no disk


class Asking(Struct, frozen=True, kw_only=True):
    """Who asks, as far as it says so."""

    client: str | None
    agent: str
    query: Mapping[str, str]
    at: datetime
    only_looks: bool  # HEAD: it spends nothing
    intents: list[str] = field(default_factory=list)  # whose outcomes are to be recorded

    @property
    def is_check(self) -> bool:
        """Whether gitboot itself asks, which spends nothing, and is no machine that is refused."""
        return is_check(self.agent, self.query)


class Giving:
    """Decides by the terms of a tree, by what is there, and by the spool; takes note of what is refused."""

    def __init__(
        self,
        tree: PublishedTree,
        recorder: Recorder | None,
        lacks: Callable[[Need], str | None],
        refusals: Refusals,
        keys: Keys | None = None,
    ) -> None:
        self._tree, self._recorder, self._lacks, self._refusals, self._keys = tree, recorder, lacks, refusals, keys
        self._census = Census(tree)

    async def refusal(self, asked: Guarded, asking: Asking) -> Refusal | None:
        """Why a path is not answered with what it has; None: it is, and stands recorded where that means something.

        What writes no disk is answered whether it could be recorded or not. An exception is a report: its sender has to
        repeat a report that is not recorded.
        """
        if (writes := asked.writes) is None:
            if asked.digest is None:
                return None
            if asked.role is not Role.DATA and (why := self._why_not_counted(asked, asking)) is not None:
                is_refused = asked.role is Role.REPORT and not asking.is_check
                return Refusal(WhyNot.NOT_COUNTED, why) if is_refused else None
            is_recorded = await self.record(asked, asking)
            if not self._is_own_system(asked, asking, _SOMEBODY):
                self.conclude(asking, None)
            is_lost = asked.role is Role.REPORT and not is_recorded and not asking.only_looks
            return _NOT_RECORDED if is_lost else None
        refusal = self._at_once(asked, asking) or (
            await self._made_once(asked, asking, writes) if writes.once else None
        )
        if refusal is None and not writes.once:
            await self.record(asked, asking)
        if asking.only_looks or asking.is_check or (refusal is not None and is_sent_on(refusal, asked, asking)):
            return refusal
        self._note(asked, asking, refusal)
        return refusal

    async def secret(self, asked: Guarded, asking: Asking, sealed: bytes) -> bytes | Refusal:
        """What a secret holds, or why it is not given: to machines alone, on record, until their installer is done."""
        found = self._at_once(asked, asking) or self._opened(asked, sealed)
        if isinstance(found, bytes) and (why := await self._not_on_record(asked, asking)) is not None:
            found = why
        if not asking.only_looks and not asking.is_check:
            self._note(asked, asking, found if isinstance(found, Refusal) else None)
        return found

    def _opened(self, asked: Guarded, sealed: bytes) -> bytes | Refusal:
        name = asked.path.rpartition("/")[2]
        if self._keys is None:
            return Refusal(WhyNot.NOT_OPENED, f"the secret {name}: this endpoint was started without --secret-keys")
        try:
            return self._keys.open(b64decode(sealed))
        except Unopened as error:
            return Refusal(WhyNot.NOT_OPENED, f"the secret {name}: {error}")

    async def _not_on_record(self, asked: Guarded, asking: Asking) -> Refusal | None:
        recorder, token = self._recorder, asked.digest
        if recorder is None or token is None:
            return _NO_SPOOL
        try:
            is_done = await recorder.reported(asked.server, token)
        except Unrecordable:
            return _unrecorded(recorder)
        if self._is_another_giver(recorder):
            return _ANOTHER_GIVER
        if self._is_older(recorder):
            return _OLDER_TREE
        if is_done:
            return Refusal(WhyNot.GIVEN, "its installer has reported since")
        return None if asking.only_looks or await self.record(asked, asking) else _NOT_RECORDED

    def _note(self, asked: Guarded, asking: Asking, refusal: Refusal | None) -> None:
        if refusal is None:
            self._refusals.settle(asked.server)
        else:
            self._refusals.note(asked.server, refusal, asking.client or "unknown", asking.at)

    def _at_once(self, asked: Guarded, asking: Asking) -> Refusal | None:
        if asked.role is Role.DATA:
            return None
        if (stopped := self._tree.words.now) is not None:
            return Refusal(WhyNot.STOPPED, str(stopped.stoppage))
        if self._recorder is not None and self._recorder.withheld is not None:
            return Refusal(WhyNot.STOPPED, self._recorder.withheld)
        if (doubt := self._tree.clock.doubt) is not None:
            return Refusal(WhyNot.CLOCK, doubt)
        if asked.role in (Role.ENTRY, Role.SEALED):
            if (why := self._why_not_counted(asked, asking)) is not None:
                return Refusal(WhyNot.NOT_COUNTED, why)
            if (other := _another_machine(asked.shows, asking.query)) is not None:
                return Refusal(WhyNot.ANOTHER_MACHINE, other)
        needs = asked.writes.needs if asked.writes is not None else ()
        missing = next(filter(None, map(self._lacks, needs)), None)
        return Refusal(WhyNot.MISSING, missing) if missing is not None else None

    async def _made_once(self, asked: Guarded, asking: Asking, writes: DiskWrite) -> Refusal | None:
        recorder, offer = self._recorder, writes.offer
        if recorder is None or asked.digest is None or offer is None:
            return _NO_SPOOL
        try:
            given = await recorder.given(asked.server, offer, writes.report)
        except Unrecordable:
            return _unrecorded(recorder)
        if self._is_another_giver(recorder):
            return _ANOTHER_GIVER
        if asked.role is Role.DATA:
            served_to = None if given is None or given.first.is_start else given.first.client
            is_own = self._is_own_system(asked, asking, served_to)
            is_shown = is_own or served_to is None  # a boot that was served is used up, whoever asks for its data
            is_recorded = asking.only_looks or await self.record(asked, asking, may_be_evidence=is_shown)
            if not is_own:
                self.conclude(asking, None)  # perhaps it is not the machine
            return None if is_recorded or self._why_not_counted(asked, asking) is not None else _NOT_RECORDED
        if self._is_older(recorder):
            return _OLDER_TREE
        if given is not None and not given.again(asking.at, self._tree.clock.up):
            return Refusal(WhyNot.GIVEN, str(given))
        is_fine = asked.role is Role.OFFER or asking.only_looks or await self.record(asked, asking)
        return None if is_fine else _NOT_RECORDED

    def _is_another_giver(self, recorder: Recorder) -> bool:
        """Whether only another endpoint may give what is made once; by the spool's identity at the last look."""
        return self._tree.is_foreign or recorder.giver is None or recorder.giver != self._tree.terms.giver

    def _is_older(self, recorder: Recorder) -> bool:
        """Whether the tree does not know all that the spool has forgotten, as it was at the last look."""
        return recorder.forgotten > self._tree.terms.forgotten

    async def record(
        self, asked: Guarded, asking: Asking, log: str | None = None, *, may_be_evidence: bool = True
    ) -> bool:
        """Return whether a fetch is recorded, or what an installer reports, with the end of its log if it failed."""
        recorder = self._recorder
        if recorder is None or asked.digest is None or self._tree.is_foreign or asking.only_looks:
            return False
        is_counted = asked.role is not Role.DATA or self._why_not_counted(asked, asking) is None
        is_evidence = is_counted and may_be_evidence
        has_outcome = is_evidence and asked.role is not Role.REPORT  # a report is its request, whatever it is answered
        offer = asked.writes.offer if asked.writes is not None else None
        observation = Observation(
            server=asked.server,
            path=asked.path,
            digest=Digest(asked.digest),
            offer=Digest(offer) if offer is not None else None,
            client=asking.client or "unknown",
            at=asking.at,
            log=log,
            up=self._tree.clock.up,
            is_evidence=is_evidence,
            intent=token_hex(16) if has_outcome else None,
        )
        if observation.intent is not None:
            asking.intents.append(observation.intent)
        return await recorder.record(observation, self._tree.terms.giver)

    def conclude(self, asking: Asking, outcome: Outcome | None) -> None:
        """Record what became of the intents of a request; None: that stays unknown."""
        while asking.intents and self._recorder is not None:
            self._recorder.intents.conclude(asking.intents.pop(), outcome)

    def _is_own_system(self, asked: Guarded, asking: Asking, served_to: str | None) -> bool:
        """Return whether the machine's own system asks, if it is for user data. Only the machine has a token."""
        if asked.role is not Role.DATA or token_in(asked.path) is not None:
            return True
        return self._census.is_own_system(asking.client, asking.agent, served_to)

    def _why_not_counted(self, asked: Guarded, asking: Asking) -> str | None:
        return self._census.why_not(asking.client, asking.agent, asking.query, asked.role)


def is_sent_on(refusal: Refusal, asked: Guarded, asking: Asking) -> bool:
    """Whether who is not given a boot here is sent to who may give it; nobody is sent on twice."""
    has_hop = asked.writes is not None and asked.writes.hop is not None
    return has_hop and refusal.reason in _SENT_ON and HOP not in asking.query


def explained(content: bytes, refusal: Refusal, server: str) -> bytes:
    """A script with a comment that says why it is answered in place of another; all loaders' begin with #."""
    told = f"{in_comment(refusal.words)} ({refusal.reason}); look with: gitboot boot-script {server} --tree OUTPUT"
    comment = f"# gitboot: not given: {told}\n".encode()
    first, newline, rest = content.partition(b"\n")
    return first + newline + comment + rest if first.startswith(_HEADER_LINES) else comment + content


def in_comment(words: str) -> str:
    """Words as a script's comment can have them, whoever has written them."""
    return "".join(each if each.isprintable() and each.isascii() else "?" for each in words)


def _another_machine(known: Mapping[str, tuple[str, ...]], said: Mapping[str, str]) -> str | None:
    """What who asks says of itself, where it is not the machine; what nobody has set tells nothing."""
    told: dict[str, str] = {}
    with suppress(Malformed):
        if said.get("uuid") and not is_placeholder_uuid(uuid := parse_uuid(said["uuid"])):
            told["uuid"] = uuid
    if (serial := _serial(said.get("serial", ""))) is not None:
        told["serial"] = serial
    names = {"uuid": known.get("uuid", ()), "serial": tuple(map(_serial, known.get("serial", ())))}
    compared = {what: value for what, value in told.items() if any(names[what])}
    if not compared or any(value in names[what] for what, value in compared.items()):
        return None
    return ", ".join(f"its {what} is {value}, not {names[what][0]}" for what, value in sorted(compared.items()))


def _serial(text: str) -> str | None:
    found = text.strip()[:64].upper()
    return None if not found or is_placeholder_serial(found) else found
