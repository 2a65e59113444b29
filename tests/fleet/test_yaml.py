"""YAML reader: source text and places of values, problems, and hostile input."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path as File
from typing import Any, Final

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from yaml._yaml import get_version

from gitboot.fleet import yaml as document
from gitboot.fleet.yaml import Place, Quoted, Value, insert_field, locate, parse, replace_scalar
from gitboot.model.scalars import Path
from gitboot.problems import Code
from tests.helpers.cases import for_each
from tests.helpers.hypothesis_strategies import AWKWARD

MIB = 1024 * 1024


def parse_values(text: str | bytes) -> list[dict[str, Value]]:
    documents, problems, *_ = parse(text.encode() if isinstance(text, str) else text, "a.yaml")
    assert problems == ()
    return [each.value for each in documents]


def list_faults(text: str | bytes) -> str:
    names: dict[str, str] = {code: code.name for code in Code}
    _, problems, *_ = parse(text.encode() if isinstance(text, str) else text, "a.yaml")
    return ", ".join(f"{names[each.code]} {each.line}:{each.column}" for each in problems)


@for_each(
    "scalar",
    [
        "52:54:00:12:34:56",
        "no",
        "12:30",
        "0755",
        "1234E56",
        "1_000",
        ".inf",
        "2027-01-31",
        "true",
        "Null",
        "=",
    ],
)
def test_a_plain_scalar_keeps_its_text(scalar: str) -> None:
    value = parse_values(f"a: {scalar}")[0]["a"]
    assert (value, type(value)) == (scalar, str)


@for_each(
    ("written", "text"),
    [
        ("''", ""),
        ("'null'", "null"),
        ('"~"', "~"),
        ('"tr\\x75e"', "true"),
        ("|\n x\n", "x\n"),
        (">-\n x", "x"),
    ],
)
def test_a_quoted_or_block_scalar_is_marked_as_quoted(written: str, text: str) -> None:
    value = parse_values(f"a: {written}")[0]["a"]
    assert (value, type(value)) == (text, Quoted)


@for_each("text", ["a:", "a: null", "a: ~", "{a: }", "{a}", "? a", "a: # a comment", "a:\n...\n"])
def test_an_empty_value_and_null_are_none(text: str) -> None:
    assert parse_values(text) == [{"a": None}]


def test_keys_are_text_in_their_written_order() -> None:
    assert [*parse_values("no: 1\n'<<': 2\nnull: 3\n\"a: b\": 4\n1: 5")[0]] == ["no", "<<", "null", "a: b", "1"]


@for_each(
    ("case", "text", "places"),
    [
        ("none", "", []),
        ("only a comment", "# nothing\n", []),
        ("a comment above the first", "# licence\n\n---\na: b", [(0, 4, 1)]),
        ("no line for the first", "a: b\n---\nc: d\n", [(0, 1, 1), (1, 3, 1)]),
        ("empty ones do not count", "---\n---\n#\n---\na: b\n---\n---\nc: d\n---\n", [(0, 5, 1), (1, 8, 1)]),
        ("faulty ones count", "- a\n---\na: b\n---\na: [\n---\nc: d\n---\ne: &f g", [(1, 3, 1), (3, 7, 1)]),
        ("in braces", "--- {a: b}\n---\n  {}", [(0, 1, 5), (1, 3, 3)]),
        ("with an end line", "a: b\n...\n---\nc: d\n...\n", [(0, 1, 1), (1, 4, 1)]),
        ("--- with more behind it is text", "a: 'b\n---c'", [(0, 1, 1)]),
        ("--- further right is text", "a: |\n  ---\n  --- b\nc: --- d\n---\t\ne: f", [(0, 1, 1), (1, 6, 1)]),
        ("CRLF", "a: b\r\n---\r\n\r\n  c: d\r\n", [(0, 1, 1), (1, 4, 3)]),
        ("a byte order mark", "\ufeff---\na: b", [(0, 2, 1)]),
        ("a line separator in a value", "a: 'b\u2028c'\n---\nd: e", [(0, 1, 1), (1, 3, 1)]),
    ],
)
def test_each_document_of_a_file_is_located(case: str, text: str, places: list[tuple[int, int, int]]) -> None:
    documents = parse(text.encode(), "a.yaml").documents
    assert [(each.index, *locate(text.encode(), each.index, ())) for each in documents] == places, case


@for_each(
    ("case", "text", "expected"),
    [
        ("alias", "a: *b", "ALIAS 1:4"),
        ("alias as a key", "*a : b", "ALIAS 1:1"),
        ("anchors", "a: &b c\nd: &e\n  f: g\nh: [&i j]", "ANCHOR 1:4, ANCHOR 2:4, ANCHOR 4:5"),
        ("anchor on the first key", "&a b: c", "ANCHOR 1:1"),
        ("tags", "a: !!str b\nc: !d e\nf: !<g> h", "TAG 1:4, TAG 2:4, TAG 3:4"),
        ("tags on collections", "a: !!map {b: c}\nd: !e\n- f", "TAG 1:4, TAG 2:4"),
        ("tags without a value", "a: !!str\nb: !", "TAG 1:4, TAG 2:4"),
        ("the tag !", "a: ! b\nc: ! 'd'\ne: ! [f]", "TAG 1:4, TAG 2:4, TAG 3:4"),
        ("tag with a handle of its own", "a: !b!c d", "TAG 1:4"),
        ("tags that are broken", "a: !<> b\n---\nc: !d{e", "TAG 1:6, TAG 3:6"),
        ("tag that is not UTF-8", "x: y\n---\na: !b%ED%A0%80 c", "TAG 2:1"),
        ("anchor and tag", "a: &b !c d", "ANCHOR 1:4, TAG 1:4"),
        ("merge keys", "<<: {a: b}\nc:\n  <<: {d: e}", "MERGE_KEY 1:1, MERGE_KEY 3:3"),
        ("merge of an alias", "a: &b {c: d}\ne: {<<: *b}", "ANCHOR 1:4, MERGE_KEY 2:5, ALIAS 2:9"),
        ("duplicate keys", "a: b\na: c\nd: {e: f, e: g}", "DUPLICATE_KEY 2:1, DUPLICATE_KEY 3:11"),
        ("duplicate key in quotes", "a: b\n'a': c", "DUPLICATE_KEY 2:1"),
        ("duplicate key with an anchor", "a: b\n&c a: d", "ANCHOR 2:1, DUPLICATE_KEY 2:1"),
        ("empty keys", "? \n: a\n'': b", "INVALID_KEY 1:2, INVALID_KEY 3:1"),
        ("a value without a key", ": a", "NOT_YAML 1:1"),
        ("keys that are collections", "? [a]\n: b\n? {c: d}\n: e", "INVALID_KEY 1:3, INVALID_KEY 3:3"),
        ("template without quotes", "a: {{ b }}", "INVALID_KEY 1:5"),
        ("faults within a key", "? {a: b, a: c}\n: d", "INVALID_KEY 1:3, DUPLICATE_KEY 1:10"),
        ("root is a list", "- a: b\n  a: c", "ROOT_NOT_MAPPING 1:1, DUPLICATE_KEY 2:3"),
        ("root is text", "# a\n\nhello", "ROOT_NOT_MAPPING 3:1"),
        ("root is null", "--- null", "ROOT_NOT_MAPPING 1:5"),
        ("root is an empty text", "--- ''", "ROOT_NOT_MAPPING 1:5"),
        ("%YAML", "%YAML 1.2\n---\na: b", "DIRECTIVE 1:1"),
        ("%TAG between documents", "a: b\n...\n# c\n%TAG ! d\n---\na: b", "DIRECTIVE 4:1"),
        ("unknown directive after a byte order mark", "\ufeff%A\n---\na: b", "DIRECTIVE 1:1"),
        ("directive after a line separator", "a: b\u2028%YAML 1.2", "DIRECTIVE 1:6"),
        ("% elsewhere", "a: 10%\nb: '%c'\nd: |\n %packages\n", ""),
        ("NUL", "a: b\nä: ö\0", "CONTROL_CHARACTER 2:5"),
        ("BEL and ESC", "a: \x07\n---\nb: \x1b[m", "CONTROL_CHARACTER 1:4, CONTROL_CHARACTER 3:4"),
        ("DEL and C1", "a: \x7f\n---\nb: \x80", "CONTROL_CHARACTER 1:4, CONTROL_CHARACTER 3:4"),
        ("U+FFFE", "a: \ufffe", "CONTROL_CHARACTER 1:4"),
        ("control character after a byte order mark", "\ufeffa: \b", "CONTROL_CHARACTER 1:4"),
        ("control characters as escapes", 'a: "\\0\\e"', ""),
        ("a byte that begins no character", b"a: b\n\xc3\xa4: \xc3\xb6\xff", "NOT_UTF8 2:5"),
        ("a character broken off", b"a: \xe2\x82(", "NOT_UTF8 1:4"),
        ("a character cut off by the end", b"a: \xe2\x82", "NOT_UTF8 1:4"),
        ("a lone surrogate", b"a: \xed\xa0\x80", "NOT_UTF8 1:4"),
        ("an overlong NUL", b"a: \xc0\x80", "NOT_UTF8 1:4"),
        ("Latin-1", "a: grün".encode("latin-1"), "NOT_UTF8 1:6"),
        ("UTF-16", "a: b".encode("utf-16"), "NOT_UTF8 1:1"),
        ("UTF-16, big end first", b"\xfe\xff\0a", "NOT_UTF8 1:1"),
        ("UTF-16 without a mark", "a: b".encode("utf-16-le"), "CONTROL_CHARACTER 1:2"),
        ("UTF-32", "a: b".encode("utf-32"), "NOT_UTF8 1:1"),
        ("UTF-32, big end first", b"\0\0\xfe\xff\0\0\0a", "NOT_UTF8 1:1"),
        ("a surrogate pair as escapes", 'a: "\\ud83d\\ude00"', "NOT_YAML 1:7"),
        ("depth 64", "a: " + "[" * 63 + "]" * 63, ""),
        ("depth 65", "a: " + "[" * 64 + "]" * 64, "TOO_DEEP 1:67"),
        ("depth 65 in block lists", "a:\n  " + "- " * 64 + "b", "TOO_DEEP 2:129"),
        ("depth 65 in a key", "? " + "[" * 64 + "]" * 64 + "\n: c", "INVALID_KEY 1:3, TOO_DEEP 1:66"),
        ("a document of 1 MiB", b"c: " + b"d" * (MIB - 3), ""),
        ("a document of more", b"a: b\n---\nc: " + b"d" * (MIB - 6), "DOCUMENT_TOO_LARGE 2:1"),
        ("a file of 16 MiB", (b"#" * (MIB - 5) + b"\n---\n") * 16, ""),
        ("a file of more", b"#" * (16 * MIB + 1), "FILE_TOO_LARGE 1:1"),
        ("a file of more documents", b"\n---" * 32_769, "FILE_TOO_LARGE 1:1"),
        ("another document after a lone CR", "a: b\r---\rc: d", "NOT_YAML 1:10"),
        ("columns are characters", "ä: [ö, '€', 😀, *x]", "ALIAS 1:16"),
        ("columns after a byte order mark", "\ufeffä: *x", "ALIAS 1:4"),
        ("columns with CRLF", "a: b\r\nc: *x\r\n", "ALIAS 2:4"),
        ("lines end at LF alone", "a: 'b\u2028\x85\rc'\nd: *x", "ALIAS 2:4"),
        ("a field after a line separator in a comment", "a: b\n# c:\u2028d: e\n", "CONTROL_CHARACTER 2:5"),
        ("a field after NEL in a comment at the end", "ä: b\nc: d # e\x85f: g", "CONTROL_CHARACTER 2:9"),
        ("a field after a paragraph separator", "\ufeff# a\u2029b: c\n", "CONTROL_CHARACTER 1:4"),
        ("a field after a lone CR in a comment", "a: b\r\n# c\rd: e\r\n", "CONTROL_CHARACTER 2:4"),
        ("a comment that begins after a separator", "a: b\u2028# c\u2028d: e\n", "CONTROL_CHARACTER 1:9"),
        ("a comment directly after a quote", 'a: "b"#c\u2028d: e\n', "CONTROL_CHARACTER 1:9"),
        ("a comment directly after a list", "a: b\nc: [d]#e\rf: g\n", "CONTROL_CHARACTER 2:9"),
        ("a comment directly after a block header", "a: >-#b\x85c: d\n", "CONTROL_CHARACTER 1:8"),
        ("comments with CRLF", "# a\r\nb: c # d\r\r\ne: 'f\u2028g#'\r\n", ""),
        ("only white space after the comment", "a: b # c\u2028 \u2028\nd: e\n", ""),
        ("errors in each document", "a: [\n---\nb: *c\n---\n@\n", "NOT_YAML 2:1, ALIAS 3:4, NOT_YAML 5:1"),
    ],
)
def test_each_fault_is_found_at_its_place(case: str, text: str | bytes, expected: str) -> None:
    assert list_faults(text) == expected, case


TAB = "GB1001: YAML does not allow a tab here (indent with spaces)"
MESSAGES = [
    ("a:\n\tb: c", f"2:1: {TAB}"),
    ("a: b\n\tc: d", f"2:1: {TAB}"),
    ("a: |\n\tb", f"2:1: {TAB}"),
    (
        "a: - b",
        "1:4: GB1001: not YAML: block sequence entries are not allowed in this context"
        " (begin the list on a separate line)",
    ),
    (
        "a: b\nc\nd: e",
        "2:1: GB1001: not YAML: could not find expected ':' (write `key: value`, or put the text in quotes)",
    ),
    (
        "a:\n- b\nc: d\n- e",
        "4:1: GB1001: not YAML: did not find expected key"
        " (while parsing a block mapping that begins on line 1)"
        " (indent all keys of a mapping equally, and close all quotes)",
    ),
    (
        "- a\nb: c",
        "2:1: GB1001: not YAML: did not find expected '-' indicator"
        " (while parsing a block collection that begins on line 1) (indent all items of a list equally)",
    ),
    (
        "x: y\n---\na: [b,\nc\n",
        "5:1: GB1001: not YAML: did not find expected ',' or ']'"
        " (while parsing a flow sequence that begins on line 3) (close the quotes, and close the list with ']')",
    ),
    (
        "a: {b: c d: e}",
        "1:11: GB1001: not YAML: did not find expected ',' or '}' (close the quotes, and close the mapping with '}')",
    ),
    (
        "{a: b} c",
        "1:8: GB1001: not YAML: did not find expected <document start>"
        " (move the text into the document, or add a '---' line before the text)",
    ),
    (
        "a: *.iso",
        "1:5: GB1001: not YAML: did not find expected alphabetic or numeric character"
        " (put text that begins with '*' or '&' in quotes)",
    ),
    (
        "a: ]",
        "1:4: GB1001: not YAML: did not find expected node content (put text that begins with one of ,[]{} in quotes)",
    ),
    (
        "a: @b",
        "1:4: GB1001: not YAML: found '@', a character that cannot start any token (put the text in quotes)",
    ),
    (
        "\ufeffa: `b`",
        "1:4: GB1001: not YAML: found '`', a character that cannot start any token (put the text in quotes)",
    ),
    ("a: 'b\n\nc", "1:4: GB1001: not YAML: found unexpected end of stream (close the quotes)"),
    ("a: 'b\r---\rc", "1:4: GB1001: not YAML: found unexpected document indicator (close the quotes)"),
    (
        'a: "C:\\dir"',
        "1:7: GB1001: not YAML: found unknown escape character"
        " (use single quotes, in which a backslash has no special meaning)",
    ),
    (
        "a: b: c",
        "1:5: GB1001: not YAML: mapping values are not allowed in this context"
        " (put text that contains ': ' in quotes, or indent keys equally)",
    ),
    (
        "a: |x",
        "1:5: GB1001: not YAML: did not find expected comment or line break"
        " (begin the text of a block on the next line)",
    ),
    (
        "a: |00",
        "1:5: GB1001: not YAML: found an indentation indicator equal to 0"
        " (correct the indentation, close all brackets and quotes, and replace tabs with spaces)",
    ),
    ("a: \0", "1:4: GB1003: the control character U+0000 is not allowed in YAML (remove the character)"),
    (
        "a: b\n\n---\nc: d\ne:\n  f: g\n  f: h",
        "7:3: GB1011: the key 'f' is already on line 6 (remove one of the two keys)",
    ),
]


@for_each(("text", "expected"), MESSAGES)
def test_messages_state_what_was_found_and_how_to_fix_it(text: str, expected: str) -> None:
    _, problems, *_ = parse(text.encode(), "a.yaml")
    assert [str(each) for each in problems] == [f"a.yaml:{expected}"]


RESOLVE = "resolve the conflict, and remove the lines that begin with <<<<<<<, |||||||, ======= or >>>>>>>"


@for_each(
    ("case", "text", "expected"),
    [
        ("in a mapping", "a: b\n<<<<<<< HEAD\nc: d\n=======\nc: e\n>>>>>>> topic\n", ["2:1 <<<<<<<"]),
        ("in a block", "a: |\n  b\n<<<<<<< HEAD\n  c\n=======\n  d\n>>>>>>> topic\n", ["3:1 <<<<<<<"]),
        ("with the base", "||||||| 0123abc\na: b\n", ["1:1 |||||||"]),
        ("over two documents", "<<<<<<< HEAD\na: b\n---\nc: d\n=======\n", ["1:1 <<<<<<<", "5:1 ======="]),
        ("with CRLF", "a: b\r\n=======\r\nc: d\r\n", ["2:1 ======="]),
        ("in a document behind another", "a: b\n---\nc: d\n>>>>>>> topic\n", ["4:1 >>>>>>>"]),
        ("behind a fault", "a: [\n>>>>>>> topic\n", ["2:1 >>>>>>>"]),
    ],
)
def test_finding_r11_a_conflict_marker_is_reported_as_one(case: str, text: str, expected: list[str]) -> None:
    _, problems, *_ = parse(text.encode(), "a.yaml")
    wanted = [
        f"a.yaml:{where}: GB1001: the file contains a Git conflict marker: {marker} ({RESOLVE})"
        for where, marker in map(str.split, expected)
    ]
    assert [str(each) for each in problems] == wanted, case


def test_finding_r11_text_that_only_looks_like_a_conflict_marker_is_valid() -> None:
    assert parse_values("a: |\n  <<<<<<< HEAD\n  =======\n# =======\nb: '======='\n")
    assert "conflict" not in str(parse(b"a: b\n======= c\n", "a.yaml").problems)


def test_every_hint_of_a_syntax_error_belongs_to_a_message_of_libyaml() -> None:
    shown = [expected for _, expected in MESSAGES]
    for problem, hint in document._HINTS.items():
        words = problem.replace("found character", "a character")
        assert any(words in each and f"({hint})" in each for each in shown), problem


def test_the_third_of_equal_keys_names_the_line_of_the_first() -> None:
    _, problems, *_ = parse(b"a: b\na: c\na: d", "a.yaml")
    assert ["line 1" in each.message for each in problems] == [True, True]


@pytest.mark.parametrize("separator", ["", "---\n"])
def test_the_first_of_too_many_problems_are_shown(separator: str) -> None:
    _, problems, more, _ = parse("".join(f"{separator}a{n}: *b\n" for n in range(300)).encode(), "a.yaml")
    assert [(each.code, each.line) for each in problems] == [
        (Code.ALIAS, number * (1 + bool(separator))) for number in range(1, 102)
    ]
    assert more == 300 - 101


def test_the_first_problems_of_too_many_are_sorted() -> None:
    text = "- *a\n" * 99 + "---\n*b\n"  # the reader notices only at the end that a list is not a document
    assert list_faults(text).startswith("ROOT_NOT_MAPPING 1:1, ALIAS 1:3, ALIAS 2:3,")


def test_a_message_does_not_repeat_a_long_key() -> None:
    _, [problem], *_ = parse(f"? {'a' * 5000}\n: b\n".encode() * 2, "a.yaml")
    assert len(problem.message) < 200


def test_a_file_may_have_100_problems() -> None:
    assert list_faults("".join(f"a{n}: *b\n" for n in range(100))).count("ALIAS") == 100
    assert "TOO_MANY" not in list_faults("".join(f"a{n}: *b\n" for n in range(100)))


SERVER = """\
# größer als eine Zeile
kind: Server
metadata:
  'name': ä
  labels: {ö: "1", ü: [x, {y: z}], empty, none: }
spec:
  absent:
  list:
  - first
  - a: b
    c: |
      text
  -
  nested:
    - - deep
      - [1, 2]
"""


@for_each(
    ("path", "value", "key"),
    [
        ((), (2, 1), (2, 1)),
        (("kind",), (2, 7), (2, 1)),
        (("metadata",), (4, 3), (3, 1)),
        (("metadata", "name"), (4, 11), (4, 3)),
        (("metadata", "labels"), (5, 11), (5, 3)),
        (("metadata", "labels", "ö"), (5, 15), (5, 12)),
        (("metadata", "labels", "ü", 0), (5, 24), (5, 24)),
        (("metadata", "labels", "ü", 1, "y"), (5, 31), (5, 28)),
        (("metadata", "labels", "empty"), (5, 36), (5, 36)),
        (("metadata", "labels", "none"), (5, 43), (5, 43)),
        (("spec", "absent"), (7, 3), (7, 3)),
        (("spec", "list"), (9, 3), (8, 3)),
        (("spec", "list", 0), (9, 5), (9, 5)),
        (("spec", "list", 1), (10, 5), (10, 5)),
        (("spec", "list", 1, "c"), (11, 8), (11, 5)),
        (("spec", "list", 2), (13, 4), (13, 4)),
        (("spec", "nested", 0, 1, 1), (16, 13), (16, 13)),
        (("missing",), (2, 1), (2, 1)),
        (("spec", "missing", 0), (7, 3), (7, 3)),
        (("spec", "absent", "missing"), (7, 3), (7, 3)),
        (("spec", "list", 3), (9, 3), (9, 3)),
        (("spec", "list", "first"), (9, 3), (9, 3)),
        (("spec", "list", 0, "missing"), (9, 5), (9, 5)),
        (("kind", "missing"), (2, 7), (2, 7)),
    ],
)
@for_each(
    ("before", "index", "lines"),
    [("", 0, 0), ("\ufeff", 0, 0), ("---\n---\nä: [\n---\n- b\n---\n", 2, 6)],
    ids=["alone", "after a byte order mark", "after faulty documents"],
)
@for_each("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_paths_are_located_in_any_layout(
    newline: str,
    before: str,
    index: int,
    lines: int,
    path: Path,
    value: tuple[int, int],
    key: tuple[int, int],
) -> None:
    data = (before + SERVER).replace("\n", newline).encode()
    assert index in [each.index for each in parse(data, "a.yaml").documents]
    assert locate(data, index, path) == Place(value[0] + lines, value[1])
    assert locate(data, index, path, key=True) == Place(key[0] + lines, key[1])


def test_a_missing_document_has_no_location() -> None:
    with pytest.raises(IndexError):
        locate(b"a: b\n---\n", 1, ())


class Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


characters = st.characters(exclude_categories=["Cs"])
texts = st.sampled_from(AWKWARD) | st.text(characters, max_size=12)
layouts = st.fixed_dictionaries(
    {
        "default_flow_style": st.sampled_from([True, False, None]),
        "default_style": st.sampled_from([None, '"', "'"]),
        "width": st.integers(5, 100),
        "indent": st.integers(2, 6),
        "allow_unicode": st.booleans(),
        "line_break": st.sampled_from(["\n", "\r\n"]),
    }
)


@st.composite
def written_documents(draw: st.DrawFn) -> tuple[dict[str, Value], str]:
    """A document's value and one of the ways to write it."""
    layout: dict[str, Any] = draw(layouts)
    scalars = texts if layout["default_style"] else texts | st.none()  # with a style, None would need a tag
    keys = texts.filter(bool)
    nested = st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=6,
    )
    value = draw(st.dictionaries(keys, nested, min_size=1, max_size=3))
    text = yaml.dump(value, Dumper=Dumper, sort_keys=False, **layout)
    assume(yaml.load(text, yaml.CSafeLoader) == value)  # PyYAML cannot write everything in narrow lines
    return value, text


@given(written_documents())
def test_a_value_is_read_back_from_any_layout(case: tuple[dict[str, Value], str]) -> None:
    value, text = case
    assert parse_values(text) == [value]


def walk(value: Value, path: Path = ()) -> Iterator[tuple[Path, Value]]:
    yield path, value
    if isinstance(value, dict):
        for key, each in value.items():
            yield from walk(each, (*path, key))
    elif isinstance(value, list):
        for position, each in enumerate(value):
            yield from walk(each, (*path, position))


def is_start_of_value(text: str, value: Value) -> bool:
    match value:
        case Quoted():
            return text[0] in "'\"|>"
        case str():
            return text.startswith(re.split(r"[ \t\n]", value, maxsplit=1)[0])  # split() would drop a no-break space
        case None:
            return text.startswith("null")
        case list():
            return text[0] in "[-"
        case dict():
            return text[0] in "{?'\"" or is_start_of_value(text, next(iter(value)))


@given(written_documents(), st.booleans())
def test_each_location_is_the_start_of_the_text_of_its_value(case: tuple[dict[str, Value], str], marked: bool) -> None:
    text = "\ufeff" * marked + "x: y\n---\n" + case[1]
    lines = text.removeprefix("\ufeff").split("\n")
    for path, value in walk(parse(text.encode(), "a.yaml").documents[1].value):
        line, column = locate(text.encode(), 1, path)
        assert is_start_of_value(lines[line - 1][column - 1 :], value), (path, value)
        assert locate(text.encode(), 1, ()) <= locate(text.encode(), 1, path, key=True) <= (line, column)


def test_text_that_could_not_be_read_is_kept_unchanged() -> None:
    unread = parse(b"a: b\n---\n- web01\n---\nc: [\n", "a.yaml").unread
    assert unread is not None and [each.strip() for each in unread] == [b"---\n- web01", b"---\nc: ["]
    assert parse(b"\xff\xfea", "a.yaml").unread is None


@given(st.lists(written_documents(), min_size=1, max_size=2), st.data())
def test_a_faulty_document_does_not_hide_another(
    cases: list[tuple[dict[str, Value], str]], data: st.DataObject
) -> None:
    faulty = data.draw(
        st.sampled_from(["a: [", "a: *b", "'", "]", "a: b: c", "*a", "a: \0", "a: \t- b", "- " * 70, "@", "%A"])
    )
    at = data.draw(st.integers(0, len(cases)))
    texts = [text for _, text in cases]
    texts.insert(at, f"{faulty}\n")
    documents, problems, *_ = parse("".join(f"---\n{text}" for text in texts).encode(), "a.yaml")
    assert [each.value for each in documents] == [value for value, _ in cases]
    assert [each.index for each in documents] == [index for index in range(len(texts)) if index != at]
    line = sum(text.count("\n") + 1 for text in texts[:at]) + 2
    assert {each.line for each in problems} <= {line, line + 1}
    assert problems


pieces = [
    "a",
    "b: ",
    "- ",
    "? ",
    ": ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "&a ",
    "*a ",
    "!t ",
    "!",
    "!%ED%A0%80 ",
    "<<: ",
    "#",
    "'",
    '"',
    "|",
    ">",
    "%",
    "\\",
    "\n",
    "\n  ",
    "\n---\n",
    "\n...\n",
    "\t",
    "\r",
    "\0",
    "\ufeff",
    "\u2028",
    "é",
]
likely = st.lists(st.sampled_from(pieces), max_size=40).map("".join)


@given(st.binary() | (st.text(characters) | likely).map(str.encode))
def test_any_bytes_give_documents_or_problems(data: bytes) -> None:
    documents, problems, *_ = parse(data, "a.yaml")
    assert list(problems) == sorted(set(problems))
    lines = data.count(b"\n") + 1
    assert all(1 <= each.line <= lines and each.column >= 1 for each in problems)
    for each in documents:
        assert (1, 1) <= locate(data, each.index, ()) < (lines + 1, 1)
        assert len(list(walk(each.value))) > 0


# Each file in a process of its own: its name, what was found, and how the process ended.
BOUNDED = """
import os, resource, sys, time
from gitboot.fleet.yaml import parse

def look(path):
    with open(path, "rb") as file:
        data = file.read()
    limit = len(data) + 256 * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    began = time.process_time()
    _, problems, *_ = parse(data, "a.yaml")
    took = time.process_time() - began
    assert took < 60, took
    print(*sorted({each.code for each in problems}), end=" ", flush=True)

for path in sys.argv[1:]:
    print(os.path.basename(path), end=" ", flush=True)
    if (child := os.fork()) == 0:
        look(path)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{('*' + a + ', ') * 8}]\n" for a, b in pairwise("abcdefghi"))


# libyaml rejects braces itself from 0.2.6 on, before it names the key.
DEEP_BRACES: Final = "INVALID_KEY TOO_DEEP" if get_version() < (0, 2, 6) else "TOO_DEEP"
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "100 MiB": (lambda: b"a: b\n" * (20 * MIB), "FILE_TOO_LARGE"),
    "15 MiB in one document": (lambda: b"a: b\n" * (3 * MIB), "DOCUMENT_TOO_LARGE"),
    "one key 200,000 times": (lambda: b"a: b\n" * 200_000, "DUPLICATE_KEY"),
    "100,000 keys": (lambda: b"".join(b"%d: b\n" % n for n in range(100_000)), ""),
    "340,000 lists": (lambda: b"a: [" + b"[]," * 340_000 + b"]", ""),
    "brackets": (lambda: b"[" * 100_000, "TOO_DEEP"),
    "closed brackets": (lambda: b"[" * 100_000 + b"]" * 100_000, "TOO_DEEP"),
    "braces": (lambda: b"{a: " * 100_000, "TOO_DEEP"),
    "braces as keys": (lambda: b"{" * 100_000, DEEP_BRACES),
    "block lists": (lambda: b"- " * 100_000, "TOO_DEEP"),
    "block keys": (lambda: b"? " * 100_000, "INVALID_KEY TOO_DEEP"),
    "a few braces as keys": (lambda: b"{" * 500, "INVALID_KEY TOO_DEEP"),
    "block mappings": (lambda: b"".join(b" " * n + b"a:\n" for n in range(1_400)), "TOO_DEEP"),
    "alias bomb": (lambda: BOMB.encode(), "ALIAS ANCHOR"),
    "a long line": (lambda: b"a: " + b"b " * 500_000, ""),
    "a long key": (lambda: b"a" * 1_000_000 + b": b", "NOT_YAML"),
    "quotes": (lambda: b"a: " + b"'" * 1_000_001, "NOT_YAML"),
    "NUL bytes": (lambda: b"\0" * MIB, "CONTROL_CHARACTER"),
    "lone surrogates": (lambda: b"a: '" + b"\xed\xa0\x80" * 300_000, "NOT_UTF8"),
    "30,000 faulty documents": (lambda: b"\xff\n---\n" * 30_000, "NOT_UTF8"),
    "32,768 empty documents": (lambda: b"\n---" * 32_768, ""),
    "directives": (lambda: b"".join(b"%%TAG !%d! a\n" % n for n in range(60_000)), "DIRECTIVE"),
    "tabs": (lambda: b"a:\n" + b"\t" * 1_000_000, "NOT_YAML"),
}


def test_hostile_files_cost_little_time_and_memory(tmp_path: File) -> None:
    for name, (data, _) in HOSTILE.items():
        (tmp_path / name).write_bytes(data())
    command = [sys.executable, "-c", BOUNDED, *sorted(str(tmp_path / name) for name in HOSTILE)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (child.returncode, child.stderr) == (0, "")
    expected = {
        name: f"{name} {' '.join(sorted(Code[each] for each in codes.split()))} 0".split()
        for name, (_, codes) in HOSTILE.items()
    }
    found = (line.split() for line in child.stdout.splitlines())  # killed by a signal: it ends with a negative number
    assert sorted(found) == sorted(expected.values())


def test_without_libyaml_the_import_fails() -> None:
    script = "import sys; sys.modules['yaml._yaml'] = None; import gitboot.fleet.yaml"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert "yaml._yaml" in child.stderr.splitlines()[-1]


@for_each(
    ("before", "path", "after"),
    [
        ("a: 1  # one\nb: 2\n", ("a",), "a: X  # one\nb: 2\n"),
        ("{a: {b: [0, 1]}, c: 2}\n", ("a", "b", 1), "{a: {b: [0, X]}, c: 2}\n"),
        ("a: 'ä' # é\r\nb: \"2\"\r\n", ("b",), "a: 'ä' # é\r\nb: X\r\n"),
        ("\ufeffa: 1\n", ("a",), "\ufeffa: X\n"),
        ("a: 1", ("a",), "a: X"),
        ("a: >-\n  1\nb: 2\n", ("a",), "a: X\nb: 2\n"),
        ("a: |+\r\n  1\r\n\r\n", ("a",), "a: X\r\n\r\n"),
    ],
)
def test_a_scalar_is_replaced_in_place(before: str, path: Path, after: str) -> None:
    assert replace_scalar(before.encode(), 0, path, "X").decode() == after
    other = b"z: 'ae'\n---\n"
    if not before.startswith("\ufeff"):
        assert replace_scalar(other + before.encode(), 1, path, "X") == other + after.encode()


@pytest.mark.parametrize("path", [("b",), ("a",), ("c", 0)])
def test_a_value_that_is_not_a_written_scalar_is_not_replaced(path: Path) -> None:
    with pytest.raises(KeyError):
        replace_scalar(b"a:\nc: []\n", 0, path, "X")


@for_each(
    ("before", "after"),
    [
        ("s:\n  c: 1  # one\n  d: 2\n", "s:\n  c: 1  # one\n  r:\n    i: x\n    p: 5\n  d: 2\n"),
        ("s:\n    c: 'ä' # é\r\n", "s:\n    c: 'ä' # é\r\n    r:\r\n        i: x\r\n        p: 5\r\n"),
        ("s:\n  c: >-\n    1\n  d: 2\n", "s:\n  c: >-\n    1\n  r:\n    i: x\n    p: 5\n  d: 2\n"),
        ("s:\n  d: 2\n  c: 1", "s:\n  d: 2\n  c: 1\n  r:\n    i: x\n    p: 5\n"),
        ("s: {c: 1, d: 2} # s\n", "s: {c: 1, r: {i: x, p: 5}, d: 2} # s\n"),
        ("{s: {d: 2, c: 1}}\n", "{s: {d: 2, c: 1, r: {i: x, p: 5}}}\n"),
        ('{"s":{"c":"1"}}', '{"s":{"c":"1", r: {i: x, p: 5}}}'),
        ("\ufeffs:\n c: 1\n", "\ufeffs:\n c: 1\n r:\n  i: x\n  p: 5\n"),
    ],
)
def test_a_field_is_inserted_and_all_other_bytes_stay(before: str, after: str) -> None:
    fields = {"i": "x", "p": "5"}
    assert insert_field(before.encode(), 0, ("s", "c"), "r", fields).decode() == after
    was, now = (parse(each.encode(), "").documents[0].value["s"] for each in (before, after))
    assert isinstance(was, dict) and now == {**was, "r": fields}
    if not before.startswith("\ufeff"):
        some = b"z: 'ae'\n---\n"
        assert insert_field(some + before.encode(), 1, ("s", "c"), "r", fields) == some + after.encode()


@pytest.mark.parametrize("text", ["s: {c: 1, r: }", "s: {c: 1, r: null}", "s: {c: 1, r: {}}", "s: {d: 1}", "s: [1]"])
def test_a_field_that_exists_or_has_no_place_is_not_inserted(text: str) -> None:
    with pytest.raises(KeyError):
        insert_field(text.encode(), 0, ("s", "c"), "r", {"i": "x"})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("spec:\n  ? current\n  : x\n", "spec:\n  ? current\n  : x\n  r:\n    i: y\n"),
        ("? spec\n:  ? current\n   : x\n", "? spec\n:  ? current\n   : x\n   r:\n    i: y\n"),
        ("?    spec\n: current: x\n", "?    spec\n: current: x\n  r:\n    i: y\n"),
    ],
)
def test_a_field_is_inserted_after_an_explicit_key(before: str, after: str) -> None:
    changed = insert_field(before.encode(), 0, ("spec", "current"), "r", {"i": "y"}).decode()
    assert changed == after
    assert parse_values(changed) == [{"spec": {"current": "x", "r": {"i": "y"}}}]
