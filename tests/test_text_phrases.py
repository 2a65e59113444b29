"""Phrases that messages have in common."""

from __future__ import annotations

import pytest

from gitboot.text import count, did_you_mean, more, near, some
from tests.helpers.cases import for_each


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 servers"), (1, "1 server"), (2, "2 servers"), (12_345, "12,345 servers")]
)
def test_a_noun_is_in_the_plural_unless_there_is_one(number: int, said: str) -> None:
    assert count(number, "server") == said


@for_each(
    ("number", "noun", "said"),
    [
        (-2, "", ""),
        (0, "server", ""),
        (1, "server", "and 1 more server"),
        (2, "server", "and 2 more servers"),
        (3, "", "and 3 more"),
        (1234, "", "and 1,234 more"),
    ],
)
def test_what_is_left_out_is_counted(number: int, noun: str, said: str) -> None:
    assert more(number, noun) == said


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a, b"),
        (["a", "b", "c"], "a, b and 1 more"),
    ],
)
def test_the_first_names_stand_for_many(names: list[str], said: str) -> None:
    assert some(names, 2) == said


@for_each(
    ("found", "word"),
    [
        pytest.param("web1", "web01", id="a letter is missing"),
        pytest.param("WEB01", "web01", id="in capitals"),
        pytest.param("matchlabels", "matchLabels", id="as the known word is spelt"),
        pytest.param("zzz", None, id="like none"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_the_nearest_word_is_meant(found: str, word: str | None) -> None:
    assert near(found, ["db01", "matchLabels", "web01"]) == word


def test_of_words_that_are_as_near_the_same_is_meant_in_any_order() -> None:
    assert near("web0", ["web02", "web01"]) == near("web0", ["web01", "web02"])


def test_where_no_word_is_near_something_else_is_said() -> None:
    assert did_you_mean("web1", ["web01"], "gitboot plan lists them") == "did you mean web01?"
    assert did_you_mean("zzz", ["web01"], "gitboot plan lists them") == "gitboot plan lists them"
    assert did_you_mean("zzz", ["web01"]) == ""
