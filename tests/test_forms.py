"""gitboot.forms: what is read by a document's form is what a parser of YAML reads."""

from __future__ import annotations

import re
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gitboot import document
from gitboot.document import Parsed, parse
from gitboot.forms import Forms, Quoted, parts_of
from tests.documents import LAYOUTS, Document, documents, written

_WORD: Final = re.compile("[0-9A-Za-z]+")
_OTHER: Final = st.sampled_from(("a", "null", "true", "0", "x" * 70, "1" * 1100, "Web01", "e", "00"))


def _told(value: Any) -> Any:
    """A value with the kind of each text."""
    if isinstance(value, dict):
        return {key: _told(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_told(item) for item in value]
    return (type(value), value)


def _parse(text: str, forms: Forms) -> Parsed:
    with patch.object(document, "_FORMS", forms):
        return parse(text.encode(), "a.yaml")


def _same_by_form(text: str, other: str) -> None:
    """Parse ``text`` until it has a form, if it has any, and then ``other``."""
    forms = Forms()
    _parse(text, forms)
    _parse(text, forms)
    found, expected = _parse(other, forms), _parse(other, Forms())
    assert found == expected
    assert [_told(each.value) for each in found.documents] == [_told(each.value) for each in expected.documents]


def _with_other_words(text: str, data: st.DataObject) -> str:
    return _WORD.sub(lambda word: data.draw(_OTHER) if data.draw(st.booleans()) else word[0], text)


@given(documents(), LAYOUTS, st.data())
def test_documents_of_one_form_are_read_as_a_parser_reads_them(
    drawn: Document, layout: dict[str, Any], data: st.DataObject
) -> None:
    text = written(drawn, **layout)
    _same_by_form(text, _with_other_words(text, data))


@given(st.text("ab1 \n:-{}[],'\"#.?|>~/", max_size=40), st.data())
@example("a: b\nc: {d: [e, 'f', \"g\"], h: ~, i: }\n", None)
def test_any_text_is_read_as_a_parser_reads_it(text: str, data: st.DataObject | None) -> None:
    text = f"k: v\n{text}"
    _same_by_form(text, _with_other_words(text, data) if data is not None else text.replace("b", "null"))


@pytest.mark.parametrize(
    "text",
    [
        'a: "b\\tc"\n',
        "a: |\n  b\n",
        "a: b\n  c\n",
        "a: 'b''c'\n",
        "a: ''''\n",
        "a: é\n",
        "? a\n: b\n",
    ],
)
def test_what_stands_otherwise_in_the_text_has_no_form(text: str) -> None:
    forms = Forms()
    for _ in range(3):
        _parse(text, forms)
    parts = parts_of(text.encode())
    assert parts is None or forms.value(parts) is None


def test_keys_are_of_the_form() -> None:
    forms = Forms()
    for _ in range(2):
        _parse("a: {b: c}\n", forms)
    value = forms.value(parts_of(b"a: {b: d}\n") or [])
    assert value == {"a": {"b": "d"}}
    assert forms.value(parts_of(b"a: {c: d}\n") or []) is None
    quoted = forms.value(parts_of(b"a: {b: null}\n") or [])
    assert quoted == {"a": {"b": None}}


def test_quoted_words_are_text_whatever_they_are() -> None:
    forms = Forms()
    for _ in range(2):
        _parse("a: 'b'\n", forms)
    value = forms.value(parts_of(b"a: 'null'\n") or [])
    assert value == {"a": "null"} and isinstance(value["a"], Quoted)
