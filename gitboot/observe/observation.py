"""One request that was seen: for a boot, for what the system then asks for, or by which an installer reports."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from gitboot.jsonio import Digest
from gitboot.render.paths import FAILED, PROVISIONED, Role, means
from gitboot.system_clock import Uptime
from gitboot.text import printable

MOST_LOG_BYTES: Final = 4096  # of an installer's log
_MOST_LINES: Final = 20
_MOST_OFF: Final = timedelta(seconds=30)
_FAR_AHEAD_S: Final = 2**40  # since 1970: what is more is no date, and more than a ledger holds


def instant_of(text: str) -> datetime:
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

    def by(self, now: datetime, up: Uptime) -> Observation:
        """With its instant by the clock that says ``now``, where that was set by more than 30 s since it was seen."""
        if self.up is None or not up.boot or self.up.boot != up.boot:
            return self
        at = now - timedelta(seconds=up.seconds - self.up.seconds)
        return replace(self, at=at) if abs(at - self.at) > _MOST_OFF else self

    @property
    def is_open_intent(self) -> bool:
        """Whether it is the line of an intent, which leaves the outcome open."""
        return self.intent is not None and self.outcome is None

    @property
    def is_answered_anyway(self) -> bool:
        """Whether an endpoint answers it even if it cannot record it: it is no secret, and uses no boot up."""
        kind = means(self.path)
        return self.offer is None and (kind is None or kind.role is not Role.SEALED)

    @property
    def is_report(self) -> bool:
        """Whether an installer says by it that it is done."""
        return means(self.path) is PROVISIONED

    @property
    def is_failure(self) -> bool:
        """Whether an installer says by it that it has failed."""
        return means(self.path) is FAILED

    @property
    def is_start(self) -> bool:
        """Whether it is by the system that was booted, not by the loader that boots it."""
        kind = means(self.path)
        return kind is not None and kind.role in (Role.DATA, Role.SEALED)
