"""Who is due when: an agenda against a plain dictionary."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gitboot.controller.current_plans import Agenda
from tests.helpers.fleets import at

NOON = at("20T12:00")
MOVES = st.lists(
    st.dictionaries(
        st.sampled_from("abcdef"), st.none() | st.integers(0, 9).map(lambda s: NOON + timedelta(seconds=s)), max_size=4
    ),
    max_size=40,
)


@given(MOVES, st.integers(-1, 9))
def test_whoever_is_due_is_found_however_often_all_were_moved(
    moves: list[dict[str, datetime | None]], second: int
) -> None:
    agenda: Agenda[str] = Agenda()
    plain: dict[str, datetime] = {}
    for each in moves:
        agenda = agenda.moved(each)
        plain = {key: instant for key, instant in {**plain, **each}.items() if instant is not None}
    now = NOON + timedelta(seconds=second)
    assert agenda.due(now) == {key for key, instant in plain.items() if instant <= now}
    assert agenda.next == min(plain.values(), default=None)
    assert agenda.instants == plain


def test_moving_somebody_leaves_the_agenda_before_as_it_was() -> None:
    empty: Agenda[str] = Agenda()
    before = empty.moved({"a": NOON})
    after = before.moved({"a": None, "b": NOON})
    assert before.due(NOON) == {"a"}
    assert after.due(NOON) == {"b"}
    assert before.moved({"a": NOON}) is before
