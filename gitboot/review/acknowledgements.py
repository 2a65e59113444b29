"""Acknowledgements: lines of the form `Gitboot-Ack: DIGEST GUARD…` in commit messages."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import ClassVar, Final

from msgspec import Struct

from gitboot.fleet.revision import Message, ReinstallsNeed
from gitboot.jsonio import Digest
from gitboot.review.guards import ONLY_APPROVED, Acknowledgements, Guard, Verdict
from gitboot.text import format_suggestion

# Lines that a person may add, and the command that a person may run instead


def format_ack_lines(verdict: Verdict, reinstalls_need: ReinstallsNeed | None) -> tuple[str, ...]:
    """Return a line that acknowledges the guards that hold a commit, or () if no line can acknowledge them."""
    guards = list_ack_guards(verdict, reinstalls_need)
    return (format_ack_line(verdict.digest, *guards),) if guards else ()


def list_ack_guards(verdict: Verdict, reinstalls_need: ReinstallsNeed | None) -> tuple[Guard, ...]:
    """Return the guards that hold a commit and can be acknowledged by a line in a commit message."""
    excluded = set(ONLY_APPROVED)
    if reinstalls_need is ReinstallsNeed.APPROVE:
        excluded.add(Guard.MAX_REINSTALLS)
    return tuple(guard for guard in verdict.holding_guards if guard not in excluded)


def format_ack_line(digest: Digest, *guards: Guard) -> str:
    """Return the commit message line that acknowledges the given guards."""
    return " ".join(["Gitboot-Ack:", digest, *guards])


SHOWN_DIGITS: Final = 16  # the number of digits of a digest in commands; `gitboot approve` needs at least 8


def format_approval(digest: Digest) -> str:
    """Return the command that approves a held commit, with placeholders that a person must replace."""
    return f"gitboot approve {digest[:SHOWN_DIGITS]} --all-guards --reason '…' --state DIRECTORY"


# Lines in the messages of commits


class AckLine(Struct, frozen=True, kw_only=True):
    """The acknowledgement of one guard in a well-formed line of a commit message."""

    STALE: ClassVar[str] = (
        "the line acknowledges other changes. The commits changed afterwards, or a different version of gitboot "
        "computed the digest. Review the commits again"
    )
    USED: ClassVar[str] = (
        "a signed acknowledgement counts only once, and a commit with the same signed content was already accepted "
        "(--reinstalls-need signed). Sign a new commit"
    )

    commit: str
    text: str
    digest: str
    guard: str
    by: str  # the author of the commit message
    content: str = ""  # SHA-256 of the signed content, if the line is valid because of the commit's signature

    @property
    def id(self) -> str:
        """The key that ensures that a line counts only once if it is valid because of a signature."""
        return f"{self.content} {self.digest} {self.guard}"


class IgnoredLine(Struct, frozen=True, kw_only=True):
    """An acknowledgement line that gitboot ignores, and the reason."""

    commit: str
    line: str
    why: str


class AckRules(Struct, frozen=True, kw_only=True):
    """The rules for acknowledgements of reinstallations, and the lines that these rules used up."""

    reinstalls_need: ReinstallsNeed | None = None  # the only way to acknowledge reinstallations; None: any way
    # A line that is valid because of a signature counts only once. This collection contains the signed content of the
    # commits that led to an accepted commit, and the `AckLine.id` of each line that was already used.
    used_ids: Container[str] = frozenset()


ANY_LINE: Final = AckRules()


def find_acknowledgements(
    messages: Iterable[Message], digest: Digest, rules: AckRules = ANY_LINE
) -> tuple[Acknowledgements, tuple[IgnoredLine, ...]]:
    """Return the acknowledgements that contain this digest, and the acknowledgement lines that gitboot ignores."""
    acknowledgements: dict[tuple[str, str], str] = {}
    ignored = []
    for line in parse_ack_lines(messages, rules):
        match line:
            case AckLine() if line.digest == digest:
                acknowledgements.setdefault((line.digest, line.guard), line.by)
            case AckLine():
                ignored.append(IgnoredLine(commit=line.commit, line=line.text, why=AckLine.STALE))
            case IgnoredLine():
                ignored.append(line)
    return acknowledgements, tuple(dict.fromkeys(ignored))  # report a line with several guards only once


_LINE: Final = re.compile(r"^[ \t]*gitboot-ack\b.*$", re.IGNORECASE | re.MULTILINE)
_WORDS: Final = re.compile(r"\s*Gitboot-Ack:[ \t]+(\S+)((?:[ \t]+\S+)+)[ \t\r]*")


def parse_ack_lines(messages: Iterable[Message], rules: AckRules = ANY_LINE) -> Iterator[AckLine | IgnoredLine]:
    """Yield the acknowledgements in commit messages, one for each guard in a line.

    An acknowledgement line may be anywhere in a message, and may be indented, for example after a squash. gitboot
    ignores malformed lines, lines with an unknown word, and acknowledgements of reinstallations that the rules do not
    permit.
    """
    for message in messages:
        for line in _LINE.findall(message.text):
            text = line.strip()
            if (why := _find_line_fault(line)) is not None:
                yield IgnoredLine(commit=message.commit, line=text, why=why)
                continue
            _, digest, *guards = line.split()
            for guard in dict.fromkeys(guards):
                needs_signature = guard == Guard.MAX_REINSTALLS and rules.reinstalls_need is ReinstallsNeed.SIGNED
                ack = AckLine(
                    commit=message.commit,
                    text=text,
                    digest=digest,
                    guard=guard,
                    by=message.by,
                    content=message.content if needs_signature else "",
                )
                why = _find_guard_fault(ack, message, rules)
                yield ack if why is None else IgnoredLine(commit=message.commit, line=text, why=why)


def _find_line_fault(line: str) -> str | None:
    """Return why gitboot ignores a whole line, or None."""
    words = _WORDS.fullmatch(line)
    if words is None:
        return "the line does not have the form Gitboot-Ack: DIGEST GUARD"
    digest, guards = words.groups()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        return "the digest must have 64 lower-case hexadecimal digits: copy the whole line"
    for guard in guards.split():
        if guard not in list(Guard):
            return f"there is no guard {guard}; {format_suggestion(guard, Guard, 'copy the whole line')}"
    return None


def _find_guard_fault(line: AckLine, message: Message, rules: AckRules) -> str | None:
    """Return why gitboot ignores a line for one of its guards, or None."""
    if line.guard in ONLY_APPROVED:
        return f"only gitboot approve can acknowledge {line.guard}, not a line in a commit message"
    if line.guard != Guard.MAX_REINSTALLS or rules.reinstalls_need is None:
        return None
    if rules.reinstalls_need is ReinstallsNeed.APPROVE:
        return "only gitboot approve can acknowledge reinstallations (--reinstalls-need approve)"
    if message.signer is None:
        return "reinstallations need a commit that is signed with a listed key (--reinstalls-need signed)"
    if message.signer.is_forge:
        return "a forge signed the commit, but a person must sign it (--reinstalls-need signed)"
    if line.content and (line.content in rules.used_ids or line.id in rules.used_ids):
        return AckLine.USED
    return None


def has_ack_line(message: Message) -> bool:
    """Return whether a message contains an acknowledgement line, even a malformed one."""
    return _LINE.search(message.text) is not None
