""".gitbootignore ignores the same files as Git, also in linear time for hostile patterns."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gitboot.fleet.ignore import IgnorePatterns, InvalidPattern, list_lines, parse_ignore_file, parse_pattern
from tests.helpers.cases import MAX_GROWTH, count_examples, for_each, measure_growth


def matches_ignore(patterns: str, path: str) -> bool:
    ignore, malformed = parse_ignore_file(patterns.encode())
    assert not malformed
    return ignore.is_ignored(path)


@for_each(
    ("patterns", "left_out", "taken_in"),
    [
        ("a", ["a", "a/b", "b/a", "b/a/c"], ["ab", "b"]),
        ("/a", ["a", "a/b"], ["b/a"]),
        ("a/", ["a/b", "b/a/c", "a/"], ["a", "b/a"]),
        ("a/b", ["a/b", "a/b/c"], ["c/a/b", "a"]),
        ("*.yaml", ["a.yaml", "b/a.yaml", ".yaml"], ["a.yml", "yaml"]),
        ("a/*.yaml", ["a/b.yaml"], ["a/b/c.yaml", "a.yaml"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ba/c"]),
        ("**/a", ["a", "b/a", "b/c/a"], ["ba", "b/ca"]),
        ("a/**/b", ["a/b", "a/c/b", "a/c/d/b"], ["ab", "a/cb", "c/a/b"]),
        ("a**b", ["ab", "acb"], ["a/b"]),
        ("?", ["a", "b/c"], ["ab", "ü"]),  # a byte, as to Git
        ("[a-c]x\n[!a]y", ["bx", "by"], ["dx", "ay"]),
        ("*\n!a.yaml", ["b.yaml", "b/a.yaml"], ["a.yaml"]),
        ("b/*\n!b/a.yaml", ["b/c.yaml"], ["b/a.yaml"]),
        ("b/\n!b/a.yaml", ["b/a.yaml"], []),  # files below an ignored folder cannot be re-included
        ("!a\na", ["a"], []),
        ("", [], ["a"]),
    ],
)
def test_patterns_have_the_meaning_that_they_have_in_gitignore(
    patterns: str, left_out: list[str], taken_in: list[str]
) -> None:
    assert [path for path in left_out + taken_in if matches_ignore(patterns, path)] == left_out


_PIECES = [*"ab/*?! #-.", "**", "**/", "/**", "/**/", "***", "ü", "\\", "\\*", "\\ ", "ab", "\\/"]
_PIECES += ["[ab]", "[!a]", "[^b-c]", "[[:alpha:]]", "[]a]", "[a-]", "[/a]", "[a-c-e]", "[\\]a]", "[a\\-c]", "[!/]"]
_NAMES = ["a", "b", "ab", "ba", "aab", "abc", "*", "ü", "!a", " a", "a ", "#", "]", "-", "[", "a.b", "a\\b", "x"]

patterns = st.lists(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6).map("".join), min_size=1, max_size=4)
paths = st.sets(st.lists(st.sampled_from(_NAMES), min_size=1, max_size=4).map("/".join), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def work_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ignoring")
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


def _ignored_by_git(work_tree: Path, data: bytes, paths: set[str]) -> set[str]:
    (work_tree / ".gitignore").write_bytes(data)
    given = "\0".join(sorted(paths)).encode()
    nothing_of_the_user = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(work_tree), "-c", f"core.excludesFile={os.devnull}", "check-ignore"]
    child = subprocess.run(
        [*command, "--no-index", "--stdin", "-z"],
        input=given,
        capture_output=True,
        env=nothing_of_the_user,
        check=False,
    )
    assert child.returncode in (0, 1), child.stderr  # 1: none of them
    return set(child.stdout.decode().split("\0")) - {""}


@settings(max_examples=count_examples(200))
@given(patterns, paths)
@example(["**/****/[^b-c]**/b"], {"ab/b", "b"})
@example(["a**/b"], {"ab", "a/b", "ac/d/b"})  # the literal beginning is compared apart: "**/" may follow it
@example(["a\\/**\\/b"], {"a/b", "a/c/b"})
def test_the_same_paths_are_ignored_as_by_git(work_tree: Path, patterns: list[str], paths: set[str]) -> None:
    data = "\n".join(patterns).encode()
    ignore, malformed = parse_ignore_file(data)
    assume(not malformed)
    assert {path for path in paths if ignore.is_ignored(path)} == _ignored_by_git(work_tree, data, paths)


def _make_name(size: int) -> str:
    return "a" * size


def _make_deep_path(size: int) -> str:
    return "a/" + "b/" * size + "d"


@pytest.mark.parametrize(
    ("case", "patterns", "path"),
    [
        ("stars and a long name", "*a" * 17 + "b", _make_name),
        ("as many stars as letters", "*a" * 1000 + "b", _make_name),
        ("folders and a deep path", "a/" + "**/b/" * 17 + "c", _make_deep_path),
        ("a thousand patterns", "*a*b\n" * 1000, _make_name),
    ],
)
def test_the_time_for_a_path_grows_linearly_with_its_length(
    case: str, patterns: str, path: Callable[[int], str]
) -> None:
    ignore = IgnorePatterns(parse_pattern(line.text) for line in list_lines(patterns.encode()))
    calls = count()  # cached results

    def ask(size: int) -> None:
        assert not ignore.is_ignored(path(size) + str(next(calls))), case

    assert measure_growth(ask, 10_000) < MAX_GROWTH


def test_the_time_for_a_file_of_patterns_grows_linearly_with_its_size() -> None:
    def read(size: int) -> None:
        IgnorePatterns(parse_pattern(line.text) for line in list_lines(b"[[:alpha:]]**[!a]?a/**/*\n" * size))

    assert measure_growth(read, 100) < MAX_GROWTH


@for_each(
    ("case", "data", "expected"),
    [
        ("empty lines and comments are passed over", b"\n#a\nb\n\n", [(3, b"b")]),
        ("a byte order mark is not part of the text", b"\xef\xbb\xbfa\n", [(1, b"a")]),
        ("CR before LF ends a line, alone it does not", b"a\r\nb\rc\r\n", [(1, b"a"), (2, b"b\rc")]),
        ("only LF ends a line", b"a\x0bb\xe2\x80\xa8c", [(1, b"a\x0bb\xe2\x80\xa8c")]),
        ("spaces at the end do not count, others do", b" a b  \n   ", [(1, b" a b")]),
        ("a space behind a backslash counts", b"a\\   \nb\\\\  ", [(1, b"a\\ "), (2, b"b\\\\")]),
        ("a comment is written behind a backslash", b"\\#a", [(1, b"\\#a")]),
    ],
)
def test_lines_are_split_as_git_splits_them(case: str, data: bytes, expected: list[tuple[int, bytes]]) -> None:
    assert list(list_lines(data)) == expected, case


@for_each(
    "text",
    ["!", "\\", "a\\", "a\\/", "!a\\", "[", "[a", "a/[b", "[!", "[]", "[a-", "[\\", "[z-a]", "[[:word:]]", "[[::]]"],
)
def test_a_pattern_that_can_match_nothing_is_invalid(text: str) -> None:
    with pytest.raises(InvalidPattern):
        parse_pattern(text.encode())


@for_each("text", ["/", "!/", "//", "]", "[]]", "[!]]", "[a-]", "[[:]", "[\\]]", "\\!", "!!", "a/[b/]"])
def test_a_pattern_that_git_accepts_is_valid(text: str) -> None:
    parse_pattern(text.encode())
