"""Commits: who made one, when and why."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from gitboot.fleet.revision import Revision
from gitboot.source.commit_objects import CommitObject, Person
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


def describe(commit: CommitObject) -> CommitSummary:
    """Return who made a commit, when and why, each on one line."""
    return CommitSummary(
        revision=commit.revision,
        author=named(commit.author),
        date=date_of(commit.author),
        subject=one_line(_text(commit.message).lstrip().partition("\n")[0]),
    )


def date_of(who: Person) -> datetime:
    """Return when an author or a committer signed. A date outside 1970 to 9999 becomes the nearest date inside."""
    return _EPOCH + timedelta(seconds=min(max(who.time, 0), _YEAR_9999))


def named(who: Person) -> str:
    """Name <address>, on one line."""
    return one_line(f"{_text(who.name)} <{_text(who.email)}>")


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
