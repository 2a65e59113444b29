"""A server's own values in what it boots, replaced by their names, so that two servers can be compared exactly.

Two texts that are equal after this are the same text with the name, the UUID, the addresses, the tokens and the site's
base URL of one server in place of those of the other. A value that a commit changes is not replaced: a change of a MAC
address to that of a stranger's machine must not look like the change of the next server. A serial number is free text
that an author can fill with anything, so it is not replaced either; nor are variables and labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from gitboot.resolve.server_decision import Decision, Decisions, provisioned_token

_OPEN: Final = "\N{MATHEMATICAL LEFT ANGLE BRACKET}"
_CLOSE: Final = "\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
_NAME: Final = "name"  # the one value that can be part of another word
_DIGEST: Final = "digest"  # of the user data, which is shown itself


class OwnValues:
    """Replaces one server's values; ``named`` has the name of each value."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self._named = named

    def replaced(self, text: str) -> str:
        """Return the text with each value as ⟨its name⟩; a bracket that the text has itself becomes ⟨⟨⟩.

        Of values that overlap, the first in the text is replaced, and of those the longest.
        """
        parts, end = [], 0
        for start, negative_length, name in sorted(self._found(text)):
            if start >= end:
                parts += [text[end:start], _OPEN, name, _CLOSE]
                end = start - negative_length
        return "".join((*parts, text[end:]))

    def _found(self, text: str) -> Iterator[tuple[int, int, str]]:
        # A search for each value: to compile a pattern for each server takes twice as long as all else here.
        for value, name in (*self._named.items(), (_OPEN, _OPEN)):
            start = text.find(value)
            while start >= 0:
                end = start + len(value)
                if value == _OPEN or not (
                    _continues(text[start - 1 : start], name) or _continues(text[end : end + 1], name)
                ):
                    yield start, -len(value), name
                start = text.find(value, start + 1)


def _continues(beside: str, name: str) -> bool:
    """Whether a character beside a value makes it a part of a longer word; at an end of the text there is none."""
    return (beside.isascii() and beside.isalnum()) or (name == _NAME and (beside.isalnum() or beside in ("_", "-")))


def names_in(text: str) -> list[str]:
    """Return what was replaced in a text, for people: name, UUID, MAC, address, base URL, token."""
    found = re.findall(f"{_OPEN}([a-zA-Z]+(?: URL)?)[^{_OPEN}{_CLOSE}]*{_CLOSE}", text)
    return [name for name in found if name != _DIGEST]


def own_values(
    old: Decision | None, new: Decision | None, old_decisions: Decisions | None, new_decisions: Decisions
) -> tuple[OwnValues, OwnValues]:
    """Return what replaces a server's values in the texts of the old and of the new commit."""
    sides = [
        dict(_given(decision, decisions)) if decision is not None and decisions is not None else {}
        for decision, decisions in ((old, old_decisions), (new, new_decisions))
    ]
    before, after = sides
    if old is not None and new is not None:
        kept = before.items() & after.items()
        before, after = ({value: name for value, name in side.items() if (value, name) in kept} for side in sides)
    return OwnValues({**before, **dict(_derived(old))}), OwnValues({**after, **dict(_derived(new))})


def _given(decision: Decision, decisions: Decisions) -> Iterator[tuple[str, str]]:
    """What a document says of its server alone, and its site of all its servers; the later of two equal values wins."""
    network = decisions.networks.get(decision.server)
    for number, address in enumerate(address for nic in (network.nics if network else ()) for address in nic.addresses):
        yield address, f"address {number}"
    for number, mac in enumerate(decision.macs):
        yield mac, f"MAC {number}"
        yield mac.replace("-", ":"), f"MAC {number}:"
    if decision.base_url != decisions.base_url:  # else it is every server's
        yield decision.base_url, "base URL"
    yield decision.uuid, "UUID"
    yield decision.server, _NAME


def _derived(decision: Decision | None) -> Iterator[tuple[str, str]]:
    """Digests of a server's values and of its user data, which is compared itself."""
    for boot in decision.boots if decision is not None else ():
        assert decision is not None  # noqa: S101 - it has a boot
        yield provisioned_token(decision.uuid, decision.provision, boot.image), f"token of {boot.image}"
        if boot.user_data is not None:
            yield boot.user_data.digest, _DIGEST
