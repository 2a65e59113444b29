"""Boot responses: the prepared answer of each path."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Final, NamedTuple

from msgspec import Struct, structs

from gitboot.endpoint.boot_gate import Guarded
from gitboot.endpoint.connections import HEARD, NOT_FOUND, UNCACHED, Reply, file_reply, in_parts, unchanged
from gitboot.endpoint.served_files import Located, PublishedTree, Read, Signature, signature
from gitboot.fetchlog.log_entries import parse_query
from gitboot.jsonio import canonical, digest
from gitboot.render.emulated_apis import (
    ALIASES,
    EC2,
    EC2_VERSIONS,
    FOR_UNKNOWN,
    METADATA,
    Alias,
    alias_of,
    meant,
    named,
    parse,
)
from gitboot.render.endpoint_files import PublishedServer, Turn, turn_of
from gitboot.render.paths import (
    ASKED,
    BOOT,
    BUNDLED,
    CHAIN,
    DATA,
    FIRST_SCRIPT,
    HTTP_BOOT,
    IMMUTABLE,
    NOCLOUD,
    REPORTS,
    UNKNOWN,
    UNKNOWN_HTTP_BOOT,
    Asked,
    ContentType,
    Delivery,
    Kind,
    Role,
    artifact_type,
    asked_for,
    content_type_of,
    delivery_of,
    identity_of,
    token_in,
)

_MOST_HELD: Final = 4096
_DIGEST: Final = re.compile("[0-9a-f]{64}")
MOST_BYTES: Final = 1024 * 1024  # what is larger is an artifact, which is read from the disk each time


class Answered(StrEnum):
    """What a request was for."""

    ENTRY = "boot_script"  # what boots a machine for a key, or reports, and so is recorded
    FILE = "file"  # another file of boot/
    PAGE = "page"  # API, metrics, health
    ARTIFACT = "artifact"  # a file read from the disk
    INVENTORY = "inventory"  # what an image found in a machine, and sends
    NOTHING = "not_found"  # no file, no page


class Entry(NamedTuple):
    """By what somebody boots."""

    path: str
    who: str
    local_disk: str | None = None  # how its loaders hand over to its disk


class Answer(Struct, frozen=True, kw_only=True):
    """What a path is answered, for as long as a file stands and the clock is between two instants."""

    counts_as: Answered
    reply: Reply
    etag: bytes | None = None
    unchanged: Reply | None = None  # to who has it already
    in_parts: bool = False  # whether who asks for a part of it is given that: a BMC reads a disc as it is read
    guarded: Guarded | None = None  # None: anybody is given it, and nothing is written down
    instead: bytes | None = None  # where it is not given; None: 404
    hop: bytes | None = None  # what sends on to who gives it
    content_type: str = ContentType.TEXT
    entry: Entry | None = None  # None: nobody boots by it
    file: str  # that says so
    signature: Signature
    since: datetime | None = None  # None: from before all turns
    until: datetime | None = None  # None: never by the clock
    in_window: bool = False  # whether a maintenance says so: its end comes, whatever a clock says that was set back

    def stands(self, at: datetime) -> bool:
        return (
            (self.since is None or self.since <= at)
            and (self.until is None or at < self.until)
            and signature(self.file) == self.signature
        )


class Answers:
    """The answers of one tree; those that were asked for last are held."""

    def __init__(self, tree: PublishedTree) -> None:
        self._tree = tree
        self._held: OrderedDict[str, Answer] = OrderedDict()  # by what is asked for, in any spelling
        self._latest: datetime | None = None  # that was answered for

    def held(self, path: str, at: datetime) -> Answer | None:
        """The answer to ``path`` if it was asked for before, and still stands."""
        clock = self._tree.clock
        if clock.doubt is None and (self._latest is None or self._latest < at):
            self._latest = at
        at = clock.trusted(at)
        if (answer := self._held.get(path)) is None:
            return None
        if not answer.stands(at) or (answer.in_window and _past(answer.until, self._latest, clock.reached)):
            del self._held[path]
            return None
        self._held.move_to_end(path)
        return answer

    def find(self, path: str, client: Callable[[], str | None], at: datetime) -> Answer | None:
        """What ``path``, as it is asked for, is answered; None: nothing is there.

        Raises `Moving` where that is decided in a moment, and ValueError for what is damaged.
        """
        if (answer := self.held(path, at)) is not None:
            return answer
        at = self._tree.clock.trusted(at)
        if path == "/httpboot":
            return self._by_address(client(), at)
        answer = self._prepare(path.removeprefix("/"), at) if path.startswith("/") else None
        if answer is not None:
            self._held[path] = answer
            if len(self._held) > _MOST_HELD:
                self._held.popitem(last=False)
        return answer

    def _prepare(self, path: str, at: datetime) -> Answer | None:
        if (BOOT + path).startswith(IMMUTABLE):
            return self._immutable(BOOT + path)
        path = path.removeprefix(ASKED)
        located: dict[str, Located | None] = {}
        for asked in asked_for(path):
            if asked.identity not in located:
                located[asked.identity] = self._tree.find(asked.identity)
            if (server := located[asked.identity]) is None:
                continue
            if asked.path in server.state.paths and (answer := self._of_server(server, asked, at)) is not None:
                return answer
            if asked.kind in (DATA, *REPORTS):
                return self._overtaken(server, asked)
            if asked.path in server.state.paths:
                return None
        return self._shared(CHAIN if path == "ipxe/" else BOOT + path)

    # One server's

    def _of_server(self, located: Located, asked: Asked, at: datetime) -> Answer | None:
        version, until = self._turn(located.state.paths[asked.path], at)
        if version is None or version.content is None:
            return None
        content, writes = self._content(located, version.content), version.writes
        guarded = None
        if writes is not None or (version.digest is not None and version.role is not Role.OFFER):
            guarded = Guarded(
                server=located.state.server,
                path=asked.path,
                role=version.role,
                digest=version.digest,
                shows=located.state.shows,
                writes=writes,
            )
        delivery = asked.kind.delivery
        etag = f'"{version.content}"'.encode() if delivery.has_etag and guarded is None else None
        reply = file_reply(content, version.content_type, UNCACHED, etag)
        fallback = writes.fallback if writes is not None else None
        is_entry, local_disk = version.role in (Role.ENTRY, Role.OFFER), located.state.plan["decision"].get("localDisk")
        return Answer(
            counts_as=Answered.ENTRY if guarded is not None else Answered.FILE,
            reply=HEARD if version.role is Role.REPORT else in_parts(reply) if delivery.in_parts else reply,
            in_parts=delivery.in_parts,
            etag=etag,
            unchanged=unchanged(etag, UNCACHED) if etag is not None else None,
            guarded=guarded,
            instead=self._content(located, fallback) if fallback is not None else None,
            hop=self._content(located, writes.hop) if writes is not None and writes.hop is not None else None,
            content_type=version.content_type,
            entry=Entry(asked.path, located.state.server, local_disk) if is_entry else None,
            file=located.file,
            signature=located.signature,
            since=version.since,
            until=until,
            in_window=version.in_window,
        )

    def _overtaken(self, located: Located, asked: Asked) -> Answer | None:
        """What an installation asks for, or says last, that a commit or a window has overtaken: it goes on.

        It is heard for as long as its data is there, by which its token is known.
        """
        if asked.kind is DATA:
            if (found := self._tree.read(asked.path, MOST_BYTES)) is None:
                return None
            reply = file_reply(found.content, artifact_type(asked.path.rpartition("/")[2]), UNCACHED)
            return _unplanned(located, asked, reply, found.file, found.signature)
        if (token := token_in(asked.path)) is None:
            return None
        folder = f"{self._tree.root}/{DATA.of(asked.identity.rpartition('/')[2], token)}".rstrip("/")
        stands = signature(folder)
        return _unplanned(located, asked, HEARD, folder, stands) if stands is not None else None

    def _turn(self, versions: tuple[Turn, ...], at: datetime) -> tuple[Turn | None, datetime | None]:
        """Return the version at ``at``, and when the next one comes.

        A clock that is set back opens no window that was left. A clock in doubt opens no window at all.
        """
        version, until = turn_of(versions, at)
        latest = _past(until, self._latest, self._tree.clock.reached)
        if version is None or not version.in_window or latest is None:
            return version, until
        if self._tree.clock.doubt is None:
            return turn_of(versions, latest)
        while version is not None and version.in_window and until is not None:
            version, until = turn_of(versions, until)
        return version, until

    def _content(self, located: Located, sha: str) -> bytes:
        if (text := located.state.contents.get(sha)) is not None:
            return text.encode()
        path = located.state.stored.get(sha)
        if path is None or (found := self._tree.read(path)) is None or _sha256(found.content) != sha:
            raise ValueError(f"{located.file} names content {sha}, which is not there")
        return found.content

    def _by_address(self, client: str | None, at: datetime) -> Answer | None:
        """What boot-operator answers the server with this address: what its firmware boots."""
        if client is None:
            return None
        answer = None
        if (located := self._tree.find(identity_of(Kind.ADDRESS, client))) is not None:
            asked = Asked(HTTP_BOOT, "", HTTP_BOOT.of(located.state.summary["uuid"]))
            answer = self._of_server(located, asked, at) if asked.path in located.state.paths else None
        elif (unknown := self._shared(UNKNOWN_HTTP_BOOT)) is not None:
            answer = structs.replace(unknown, entry=Entry(UNKNOWN_HTTP_BOOT, "unknown machine"))
        if answer is None:
            return None

        def addressed(found: bytes) -> bytes:
            return canonical({"ClientIPs": client, **json.loads(found)}) + b"\n"

        return structs.replace(
            answer,
            reply=file_reply(addressed(bytes(answer.reply.body)), ContentType.JSON, UNCACHED),
            etag=None,
            unchanged=None,
            instead=addressed(answer.instead) if answer.instead is not None else None,
        )

    # All others

    def _shared(self, path: str) -> Answer | None:
        """A file that is no server's; what is published anew is served before the manifest lists it so."""
        if path not in self._tree.shared() or (found := self._tree.read(path)) is None:
            return None
        answer = self._file(found, content_type_of(path), delivery_of(path))
        return structs.replace(answer, entry=Entry(path, "unknown machine")) if path in UNKNOWN else answer

    def _immutable(self, path: str) -> Answer | None:
        """Content, if it is what its path says; None where it is none, or too large to be held."""
        parts = path.split("/")
        if len(parts) != 4 or not all(parts) or any(part.startswith(".") for part in parts):
            return None
        try:
            found = self._tree.read(path, MOST_BYTES)
        except OSError:  # whoever reads it from the disk, in ranges if need be, finds out why
            return None
        if found is None:
            return None
        if _DIGEST.fullmatch(parts[2]) and not self._is_named_by(parts[2], parts[3], found.content):
            return Answer(counts_as=Answered.NOTHING, reply=NOT_FOUND, file=found.file, signature=found.signature)
        return self._file(found, content_type_of(path), delivery_of(path))

    def _is_named_by(self, folder: str, name: str, content: bytes) -> bool:
        """Whether a file's folder is its digest, or that of the bundle that it is part of."""
        if _sha256(content) == folder:
            return True
        bundle = {name: _sha256(content)}
        for other in BUNDLED:
            if other != name and (found := self._tree.read(f"{IMMUTABLE}{folder}/{other}")) is not None:
                bundle[other] = _sha256(found.content)
        return digest(bundle) == folder

    def _file(self, found: Read, content_type: str, delivery: Delivery) -> Answer:
        etag, cache_control = f'"{_sha256(found.content)}"'.encode(), delivery.cache_control.encode()
        reply = file_reply(found.content, content_type, cache_control, etag)
        return Answer(
            counts_as=Answered.FILE,
            reply=in_parts(reply) if delivery.in_parts else reply,
            in_parts=delivery.in_parts,
            etag=etag,
            unchanged=unchanged(etag, cache_control),
            file=found.file,
            signature=found.signature,
        )


def _unplanned(located: Located, asked: Asked, reply: Reply, file: str, found: Signature) -> Answer:
    """What is answered an installation whose plan has been replaced, and written down."""
    return Answer(
        counts_as=Answered.ENTRY,
        reply=reply,
        guarded=Guarded(
            server=located.state.server,
            path=asked.path,
            role=asked.kind.role,
            digest=token_in(asked.path),
            shows=located.state.shows,
        ),
        file=file,
        signature=found,
    )


def _past(until: datetime | None, *shown: datetime | None) -> datetime | None:
    """The latest of the instants that a clock has shown, if it is past ``until``."""
    latest = max(filter(None, shown), default=None)
    return latest if until is not None and latest is not None and latest >= until else None


def _sha256(content: bytes) -> str:
    return sha256(content).hexdigest()


_WITHOUT_SLASH: Final = "/ipxe"  # boot-operator's users have iPXE ask for it, without a query


class NamedAnswers:
    """What `Answers` has, also for those who ask by the paths of other systems that the Fleet's outputs name."""

    def __init__(self, tree: PublishedTree, answers: Answers) -> None:
        self._tree, self._answers = tree, answers
        self._known: tuple[Signature | None, frozenset[str]] = (None, frozenset())  # as they were read last

    def find(self, path: str, query: bytes, client: Callable[[], str | None], at: datetime) -> Answer | None:
        """As `Answers.find`; an alias is answered by what it means, and as that."""
        below, outputs = path.removeprefix("/"), self.outputs()
        said = {key: value for key, value in parse_query(query.decode("latin-1")).items() if value}
        alias = alias_of(below, outputs) if outputs else None
        if alias is not None and not said.keys().isdisjoint(alias.keys):
            return self._by_query(alias, said, query, client, at)
        own = FOR_UNKNOWN.get(below)
        if own is not None and (answer := self._by_query(own, said, query, client, at)) is not None:
            return answer
        version, _, rest = below.partition("/")
        if EC2 in outputs and version in EC2_VERSIONS:
            return self._of_ec2(rest, client, at)
        return self._answers.find(f"/{FIRST_SCRIPT.removeprefix(BOOT)}" if path == _WITHOUT_SLASH else path, client, at)

    def outputs(self) -> frozenset[str]:
        """Whose paths are answered; none where what says so is missing or damaged."""
        stands = signature(f"{self._tree.root}/{ALIASES}")
        if stands != self._known[0]:
            found = self._tree.read(ALIASES)
            outputs = frozenset[str]()
            with suppress(ValueError):
                outputs = parse(found.content) if found is not None else outputs
            self._known = (found.signature if found is not None else None), outputs
        return self._known[1]

    def _by_query(
        self, alias: Alias, said: Mapping[str, str], query: bytes, client: Callable[[], str | None], at: datetime
    ) -> Answer | None:
        for by in named(alias, said):
            located = self._tree.find(identity_of(by.kind, by.value))
            if located is None and by.kind is Kind.TOKEN:  # an installer whose plan has been replaced
                located = self._by_address(client)
            if located is None:
                continue
            if alias is METADATA:
                return _made(located, _variables(located.state, said, query))
            for path in meant(alias, by, located.state.summary["uuid"], located.state.summary["macs"]):
                if (answer := self._answers.find(f"/{path}", client, at)) is not None:
                    return answer
        return None

    def _by_address(self, client: Callable[[], str | None]) -> Located | None:
        address = client()
        return self._tree.find(identity_of(Kind.ADDRESS, address)) if address is not None else None

    def _of_ec2(self, rest: str, client: Callable[[], str | None], at: datetime) -> Answer | None:
        # EC2's metadata service has what is said of the machine itself, and its user data.
        if (located := self._by_address(client)) is None:
            return None
        if rest == "user-data":
            path = NOCLOUD.of(located.state.summary["uuid"], name=rest).removeprefix(BOOT)
            return self._answers.find(f"/{path}", client, at)
        says = {
            "hostname": located.state.server,
            "instance-id": located.state.summary["uuid"],
            "local-hostname": located.state.server,
        }
        found = {"": "meta-data/\nuser-data", "meta-data": "\n".join(says), "meta-data/": "\n".join(says)}
        text = found.get(rest, says.get(rest.removeprefix("meta-data/")) if rest.startswith("meta-data/") else None)
        return _made(located, text) if text is not None else None


def _made(located: Located, text: str) -> Answer:
    """What is made for who asks, and says nothing by being fetched."""
    reply = file_reply(text.encode(), ContentType.TEXT, UNCACHED)
    return Answer(counts_as=Answered.FILE, reply=reply, file=located.file, signature=located.signature)


def _variables(state: PublishedServer, said: Mapping[str, str], query: bytes) -> str:
    """Labels and what was asked, as matchbox has them: a line for each, which a shell can read (docs/api-http.md)."""
    asked = ((f"REQUEST_QUERY_{key}", value) for key, value in sorted(said.items()))
    found = (*sorted(state.summary["labels"].items()), *asked)
    variables = {re.sub(r"[^A-Z0-9_]", "_", name.upper(), flags=re.ASCII): value for name, value in found}
    variables["REQUEST_RAW_QUERY"] = query.decode("latin-1")
    return "".join(f"{name}={value}\n" for name, value in variables.items() if value.isprintable())
