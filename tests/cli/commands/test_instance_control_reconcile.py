"""What `gitboot reconcile` makes of the status of an instance."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from gitboot.cli.commands.instance_control import outcome_of
from gitboot.cli.main import Exit
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import Held, Status

TRIGGERED = datetime(2026, 11, 20, 12, 0, 0, 500, tzinfo=UTC)
BEFORE, AFTER = TRIGGERED.replace(microsecond=499), TRIGGERED.replace(microsecond=501)
OLD, NEW = "1" * 40, "2" * 40
HELD = Held(commit=NEW, digest="a" * 64, guards=("maxReinstalls",))  # type: ignore[arg-type]


def status(
    *false: str,
    attempted: str = NEW,
    accepted: str = NEW,
    began: datetime | None = AFTER,
    held: Held | None = None,
) -> Mapping[str, Any]:
    """Return the status of an instance of which these conditions are false."""
    types = ("Accepting", "BmcsReachable", "CommitAccepted", "LedgerWritable", "Published", "SourceReady")
    conditions = (
        Condition(type=type, status=type not in false, reason="Reason", message=f"about {type}", since=TRIGGERED)
        for type in types
    )
    return Status(
        conditions=tuple(conditions),
        attempted=attempted,
        accepted=accepted,
        held=held,
        fetched=NEW,
        fetch_began=began,
    ).facts()


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        (status(), Exit.FINE, "Fetched 222222222222. The commit is accepted"),
        (status("BmcsReachable"), Exit.FINE, "The commit is accepted"),
        (status("SourceReady"), Exit.SOURCE, "The fetch failed (Reason): about SourceReady"),
        (status("SourceReady", attempted=OLD), Exit.SOURCE, "about SourceReady"),
        (status("CommitAccepted"), Exit.INVALID, "is not accepted (Reason): about CommitAccepted"),
        (status("CommitAccepted", held=HELD), Exit.HELD, "is not accepted (Reason): about CommitAccepted"),
        (status("Accepting", attempted=OLD), Exit.SUSPENDED, "is not accepted: about Accepting"),
        (status("LedgerWritable"), Exit.PARTIAL, "LedgerWritable is false (Reason): about LedgerWritable"),
        (status("Published"), Exit.PARTIAL, "Published is false"),
    ],
)
def test_the_outcome_is_the_worst_of_the_fetch_the_commit_and_the_publication(
    found: Mapping[str, Any], code: Exit, words: str
) -> None:
    outcome = outcome_of(found, TRIGGERED)
    assert outcome is not None
    assert (outcome[0], words in outcome[1]) == (code, True), outcome


@pytest.mark.parametrize(
    "found",
    [
        {},
        Status().facts(),
        status(began=None),
        status(accepted=OLD),
        status(began=BEFORE),
        status("SourceReady", began=BEFORE),
        status(attempted=OLD),
        status("CommitAccepted", attempted=OLD),
    ],
    ids=[
        *("nothing yet", "at the start", "no fetch", "a revert that is not judged", "an earlier fetch"),
        *("failed before", "evaluating", "held before"),
    ],
)
def test_there_is_no_outcome_before_the_commit_of_a_new_fetch_was_evaluated(found: Mapping[str, Any]) -> None:
    assert outcome_of(found, TRIGGERED) is None
