"""Lines of .gitbootignore: which ones are patterns, and which can match nothing."""

from __future__ import annotations

import pytest

from gitboot.fleet.ignore import NoPattern, lines, parse_pattern
from tests.helpers.cases import for_each


@for_each(
    ("case", "data", "expected"),
    [
        ("empty lines and comments are passed over", b"\n#a\nb\n\n", [(3, b"b")]),
        ("a byte order mark is none of the text", b"\xef\xbb\xbfa\n", [(1, b"a")]),
        ("CR before LF ends a line, alone it does not", b"a\r\nb\rc\r\n", [(1, b"a"), (2, b"b\rc")]),
        ("only LF ends a line", b"a\x0bb\xe2\x80\xa8c", [(1, b"a\x0bb\xe2\x80\xa8c")]),
        ("spaces at the end do not count, others do", b" a b  \n   ", [(1, b" a b")]),
        ("a space behind a backslash counts", b"a\\   \nb\\\\  ", [(1, b"a\\ "), (2, b"b\\\\")]),
        ("a comment is written behind a backslash", b"\\#a", [(1, b"\\#a")]),
    ],
)
def test_lines_are_read_as_git_reads_them(case: str, data: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert list(lines(data)) == expected, case


@for_each(
    "text",
    ["!", "\\", "a\\", "a\\/", "!a\\", "[", "[a", "a/[b", "[!", "[]", "[a-", "[\\", "[z-a]", "[[:word:]]", "[[::]]"],
)
def test_what_can_match_nothing_is_no_pattern(text: str) -> None:
    with pytest.raises(NoPattern):
        parse_pattern(text.encode())


@for_each("text", ["/", "!/", "//", "]", "[]]", "[!]]", "[a-]", "[[:]", "[\\]]", "\\!", "!!", "a/[b/]"])
def test_what_git_takes_is_a_pattern(text: str) -> None:
    parse_pattern(text.encode())
