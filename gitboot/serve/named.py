"""Who asks by a path of another system's, and names its machine by a query or is known by its address."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

from gitboot.endpoint.boot_responses import Answer, Answered, Answers
from gitboot.endpoint.served_files import Located, PublishedTree, Signature, signature
from gitboot.observe.agents import parse_query
from gitboot.render.emulated_apis import (
    ALIASES,
    EC2,
    EC2_VERSIONS,
    FOR_UNKNOWN,
    METADATA,
    Alias,
    QueriedBy,
    alias_of,
    meant,
    named,
    parse,
)
from gitboot.render.endpoint_files import PublishedServer
from gitboot.render.paths import BOOT, FIRST_SCRIPT, NOCLOUD, ContentType, Kind, identity_of
from gitboot.serve.reply import UNCACHED, file_reply

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
        if (alias := alias_of(below, outputs)) is not None and not said.keys().isdisjoint(alias.keys):
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
            for located in self._located(by, client):
                if alias is METADATA:
                    return _made(located, _variables(located.state, said, query))
                for path in meant(alias, by, located.state.summary["uuid"], located.state.summary["macs"]):
                    if (answer := self._answers.find(f"/{path}", client, at)) is not None:
                        return answer
        return None

    def _located(self, by: QueriedBy, client: Callable[[], str | None]) -> Iterator[Located]:
        """Who is named so. An installer whose plan has been replaced is known by its address alone."""
        located = self._tree.find(identity_of(by.kind, by.value))
        if located is None and by.kind is Kind.TOKEN:
            located = self._by_address(client)
        if located is not None:
            yield located

    def _by_address(self, client: Callable[[], str | None]) -> Located | None:
        address = client()
        return self._tree.find(identity_of(Kind.ADDRESS, address)) if address is not None else None

    def _of_ec2(self, rest: str, client: Callable[[], str | None], at: datetime) -> Answer | None:
        """What EC2's metadata service has: what is said of the machine itself, and its user data."""
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
    labels = {_variable(name): value for name, value in sorted(state.summary["labels"].items())}
    asked = {f"REQUEST_QUERY_{_variable(key)}": value for key, value in sorted(said.items())}
    variables = {**labels, **asked, "REQUEST_RAW_QUERY": query.decode("latin-1")}
    return "".join(f"{name}={value}\n" for name, value in variables.items() if value.isprintable())


def _variable(name: str) -> str:
    return re.sub(r"[^A-Z0-9_]", "_", name.upper(), flags=re.ASCII)
