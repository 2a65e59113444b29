"""Commits: who made one, when and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pygit2

from gitboot.load import Revision
from gitboot.text import one_line

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_9999: Final = 253_370_764_800  # s; Git has room for later dates, datetime has not


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitSummary:
    """Who made a commit, when and why."""

    revision: Revision
    author: str  # Name <address>
    date: datetime  # when it was written
    subject: str


def describe(commit: pygit2.Commit) -> CommitSummary:
    """What a commit says of itself, each on one line."""
    return CommitSummary(
        revision=Revision(str(commit.id)),
        author=named(commit.author),
        date=date_of(commit.author),
        subject=one_line(_text(commit.raw_message).lstrip().partition("\n")[0]),
    )


def date_of(signature: pygit2.Signature) -> datetime:
    """Return when an author or a committer signed. A date outside 1970 to 9999 becomes the nearest date inside."""
    return _EPOCH + timedelta(seconds=min(max(signature.time, 0), _YEAR_9999))


def named(who: pygit2.Signature) -> str:
    """Name <address>, on one line."""
    return one_line(f"{_text(who.raw_name)} <{_text(who.raw_email)}>")


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
