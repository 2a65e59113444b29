"""Text from outside as gitboot prints it, what CI systems make of it, and phrases that messages have in common."""

from __future__ import annotations

import json
import shlex

from hypothesis import example, given
from hypothesis import strategies as st

from gitboot.text import (
    find_similar,
    format_count,
    format_names,
    format_omitted,
    format_suggestion,
    is_prerelease,
    one_line,
    printable,
    printable_lines,
    quote_words,
    redact_url,
    version_key,
)
from tests.helpers.cases import for_each

# Text of a stranger: beginnings of commands, white space of every kind, and characters without a glyph.
HOSTILE = st.text() | st.lists(
    st.sampled_from(
        [
            *("::", ":", "error", "##", "#", "[", "vso[", "teamcity[", "add-mask", "]"),
            *(" ", "\t", "\n", "\r", "\v", "\f", "\x1c", "\x85", "\xa0", "\u2028", "\u2029", "\u3000", "\ufeff"),
            *("\x1b[31m", "\x9b", "\u200b", "\u202e", "\u2066", "\ufe0f", "\u034f", "\U000e0041", "\ud800", "é", "☀"),
        ]
    )
).map("".join)


@for_each(
    ("kind", "found", "expected"),
    [
        ("plain", "größer 机架 😀 \\x", "größer 机架 😀 \\x"),
        ("the ends of lines", "a\nb\r\n\v\f", r"a\nb\r\n\u000b\u000c"),
        ("a tab", "a\tb", r"a\tb"),
        ("C0", "\x1b[31m\x07\x00", r"\u001b[31m\u0007\u0000"),
        ("DEL", "a\x7f", r"a\u007f"),
        ("C1", "\x9b31m\x85", r"\u009b31m\u0085"),
        ("overrides and isolates", "\u202ea\u2066b\u2069", r"\u202ea\u2066b\u2069"),
        ("marks of direction", "\u200e\u200f\u061c", r"\u200e\u200f\u061c"),
        ("separators", "\u2028\u2029", r"\u2028\u2029"),
        ("without width", "a\u200b\u200d\ufeff\u2060b", r"a\u200b\u200d\ufeff\u2060b"),
        ("without a glyph", "\u00ad\u034f\u3164\u115f\U000e0100", r"\u00ad\u034f\u3164\u115f\udb40\udd00"),
        ("tags", "\U000e0041", r"\udb40\udc41"),
        ("half of a pair", "\udcff", r"\udcff"),
        ("spaces that look like another", "a\xa0b\u3000", r"a\u00a0b\u3000"),
        ("a coloured symbol", "♻️ ⚠️", "♻️ ⚠️"),
        ("its selector elsewhere", ":\ufe0f:", r":\ufe0f:"),
        ("a command of GitHub anywhere", "x ##[add-mask]y", r"x \u0023#[add-mask]y"),
        ("a command of Azure Pipelines", "##VSO[task.setvariable]", r"\u0023#VSO[task.setvariable]"),
        ("a command of TeamCity", "##teamcity[buildStop]", r"\u0023#teamcity[buildStop]"),
        ("a heading", "## Guards #[1]", "## Guards #[1]"),
    ],
)
def test_control_and_misleading_characters_are_escaped(kind: str, found: str, expected: str) -> None:
    assert (printable(found), printable(printable(found))) == (expected, expected)


@for_each(
    ("kind", "found", "expected"),
    [
        ("at the start", "::error::x", r"\u003a:error::x"),
        ("after white space", "a\n \t::error::x", "a\n \t" + r"\u003a:error::x"),
        ("after what a runner takes for white space", "a\n\u3000::error::x", "a\n" + r"\u3000::error::x"),
        ("after what a runner does not see", "\u200b::error::x", r"\u200b::error::x"),
        ("within a line", "a ::error::x", "a ::error::x"),
        ("tabs and ends of lines stay", "a\tb\n\nc\n", "a\tb\n\nc\n"),
        ("a section of GitLab", "section_start:1:x\r\x1b[0K", r"section_start:1:x\r\u001b[0K"),
    ],
)
def test_no_line_begins_with_a_ci_command(kind: str, found: str, expected: str) -> None:
    assert (printable_lines(found), printable_lines(printable_lines(found))) == (expected, expected)


def commands(line: str) -> list[str]:
    """Return the commands that a CI system finds in a line.

    The line is parsed as actions/runner (ActionCommand.cs) and azure-pipelines-agent (Command.cs) do; characters that a
    comparison of .NET may ignore are removed first.
    """
    seen = "".join(char for char in line if char.isprintable() or char.isspace())
    seen = seen.translate(dict.fromkeys(map(ord, "\ufe0f\u034f")))
    begins = ["::"] if seen.lstrip().startswith("::") else []
    return begins + [each for each in ("##[", "##vso[", "##teamcity[") if each in seen.lower()]


@given(HOSTILE)
@example("\u2028::error::x")
@example("a\x85 ::error::x")
@example("#\u200b#[add-mask]x")
def test_no_text_controls_a_ci_system_or_a_terminal(found: str) -> None:
    lines = printable_lines(found).split("\n")
    assert [commands(line) for line in lines if commands(line)] == []
    assert all(line.replace("\t", "").isprintable() for line in lines)
    assert printable(found).isprintable() and one_line(found).isprintable()
    assert len(lines) == found.count("\n") + 1


@given(HOSTILE)
@example("\u2000\ufe0f")
@example("\u2072\ufe0f\ufe0f")
def test_escaping_twice_changes_nothing(found: str) -> None:
    assert printable(printable(found)) == printable(found)
    assert printable_lines(printable_lines(found)) == printable_lines(found)


@given(HOSTILE, st.booleans(), st.sampled_from([None, 2]))
def test_json_keeps_its_value(found: str, ensure_ascii: bool, indent: int | None) -> None:
    value = {found: [found, 1]}
    assert json.loads(printable_lines(json.dumps(value, ensure_ascii=ensure_ascii, indent=indent))) == value


@for_each(
    ("words", "expected"),
    [
        (["http://fleet/boot.ipxe"], "http://fleet/boot.ipxe"),
        (["http://x/$(id);&'"], """'http://x/$(id);&'"'"''"""),
        (["web01", "web 02", ""], "web01 'web 02' ''"),
    ],
)
def test_words_to_copy_are_shell_words(words: list[str], expected: str) -> None:
    assert quote_words(*words) == expected
    assert shlex.split(expected) == words


# Phrases


@for_each(("number", "said"), [(0, "0 servers"), (1, "1 server"), (2, "2 servers"), (12_345, "12,345 servers")])
def test_a_noun_is_plural_unless_the_number_is_one(number: int, said: str) -> None:
    assert format_count(number, "server") == said


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
def test_the_omitted_rest_is_counted(number: int, noun: str, said: str) -> None:
    assert format_omitted(number, noun) == said


@for_each(
    ("names", "said"),
    [
        ([], ""),
        (["a"], "a"),
        (["a", "b"], "a, b"),
        (["a", "b", "c"], "a, b and 1 more"),
    ],
)
def test_the_first_names_are_shown_and_the_rest_is_counted(names: list[str], said: str) -> None:
    assert format_names(names, 2) == said


@for_each(
    ("found", "word"),
    [
        ("web1", "web01"),
        ("WEB01", "web01"),
        ("matchlabels", "matchLabels"),  # as the known word is spelt
        ("zzz", None),
        ("", None),
    ],
)
def test_the_nearest_word_is_suggested(found: str, word: str | None) -> None:
    assert find_similar(found, ["db01", "matchLabels", "web01"]) == word


def test_of_equally_near_words_the_same_is_suggested_in_any_order() -> None:
    assert find_similar("web0", ["web02", "web01"]) == find_similar("web0", ["web01", "web02"])


def test_without_a_near_word_the_other_text_is_shown() -> None:
    assert format_suggestion("web1", ["web01"], "gitboot plan lists them") == "did you mean web01?"
    assert format_suggestion("zzz", ["web01"], "gitboot plan lists them") == "gitboot plan lists them"
    assert format_suggestion("zzz", ["web01"]) == ""


@for_each(
    ("url", "shown"),
    [
        ("https://git.example.net/x", "https://git.example.net/x"),
        ("https://me:s3cret@git.example.net/x", "https://git.example.net/x"),
        ("https://s3cret@git.example.net/x", "https://git.example.net/x"),
        ("https://me:s3c@ret@git.example.net/x", "https://git.example.net/x"),
        ("https://me:s3c/ret@git.example.net/x", "https://…"),
        ("https://me:12/s3cret@git.example.net/x", "https://…"),
        ("https://me:s3c#ret@git.example.net/x", "https://…"),
        ("https://me:s3c?ret@git.example.net/x", "https://…"),
        ("https://me:s3c\nret@git.example.net/x", "https://git.example.net/x"),
        ("git+ssh://me:s3cret@git.example.net/x", "git+ssh://git.example.net/x"),
        ("//me:s3cret@git.example.net/x", "//git.example.net/x"),
        ("me:s3cret://more@git.example.net/x", "…"),
        (" https://me:s3cret@git.example.net/x", "…"),
        ("me:s3cret@git.example.net:x", "…"),
        ("git@git.example.net:x", "git.example.net:x"),
        ("git@[2001:db8::1]:x", "[2001:db8::1]:x"),
        ("git.example.net:x", "git.example.net:x"),
        ("https://git.example.net/boots@site1.git", "https://git.example.net/boots@site1.git"),
        ("ssh://me@git.example.net/srv/boot@rack1", "ssh://git.example.net/srv/boot@rack1"),
        ("ftp://git.example.net/x?next=http://boot.test&user=me@x", "ftp://git.example.net/x"),
        ("https://CORP/me:s3cret@git.example.net/x", "https://…"),
        ("https://me@example.net:1/s3cret@git.example.net/x", "https://…"),
        ("https://me:s3cret", "https://…"),
        ("/srv/a@b:c", "/srv/a@b:c"),
        ("./a@b:c", "./a@b:c"),
    ],
)
def test_a_redacted_url_has_no_login_and_no_query(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@for_each(
    ("url", "shown"),
    [
        ("http://10.0.0.1:8080/a?sig=abc@def", "http://10.0.0.1:8080/a"),
        ("http://10.0.0.1:8080/a#sig=abc@def", "http://10.0.0.1:8080/a"),
        ("/a?sig=abc@def", "/a"),
        ("s3cret@github.com/acme/fleet", "github.com/acme/fleet"),
        ("https://s3c/ret@github.com/acme/fleet", "https://…"),
        ("https://me:s3cret", "https://…"),
        ("https://me:s3cret/acme/fleet", "https://…"),
        ("https://me@example.net:s3cret", "https://…"),
        ("//me:s3cret", "//…"),
        ("me:s3cret", "…"),
        ("https://[s3cret", "https://…"),
        ("boot.test:8080/x", "boot.test:8080/x"),
        ("ftp://boot.test:99999/a:b", "ftp://boot.test:99999/a:b"),
        ("ftp://[2001:db8::1]:21/x", "ftp://[2001:db8::1]:21/x"),
        ("http://", "http://"),
        ("", ""),
    ],
)
def test_a_redacted_url_that_is_not_a_path_has_no_part_of_a_login(url: str, shown: str) -> None:
    assert redact_url(url, may_be_path=False) == shown


@for_each(
    "versions",
    [
        ["3602.2.3", "3815.0", "3815.2.0", "10000"],
        ["1", "1.0", "1.0.0"],
        ["1.9", "1.10", "1.10.1"],
        ["1.0-beta", "1.0-rc", "1.0.0"],
        ["2026.10.2", "2026.11.0"],
        ["alpha", "beta", "0"],
        ["1.9", "1.010", "1.11"],
        ["9", "1" * 5000, "2" * 5000],
        # cases of the tests of other projects
        ["2.3pre1", "2.3pre3", "2.3pre12", "2.3", "2.3a", "2.3c", "2.3.1"],  # Nix, compareVersions
        ["2.4.beta", "2.4", "2.4.0"],  # Renovate, deb and rpm
        ["a~", "a0", "a1"],
        ["1.0~~", "1.0~", "1.0", "1.0+git1"],
        ["20230607~bpo11+1", "20230607", "20230607+deb12u4", "20230607+deb12u12"],
        ["1.10.0-alpha.3", "1.10.0-beta.0", "1.10.0-rc.0", "1.10.0", "1.10.1-alpha.0"],  # Talos
        ["v1.8.3", "1.9", "v1.9.0-beta.0", "v1.9.0", "V1.10", "v2"],  # tags of Talos, and semver.NewVersion
        ["v", "version", "0"],
        ["1.0-Alpha.1", "1.0-beta.1", "1.0-RC1", "1.0-rc2", "1.0"],
        [
            "4.9.0-0.nightly-2021-09-02-201920",
            "4.9.0-rc.0",
            "4.9.0",
            "4.22.0-rc.0",
            "4.22.0",
            "9.6.20260210-0",
            "48.84.202208021106-0",
            "418.94.202511191518-0",
        ],  # OpenShift
    ],
)
def test_versions_are_ordered_by_their_numbers(versions: list[str]) -> None:
    assert sorted(set(versions), key=version_key) == versions


@for_each(
    ("version", "is_one"),
    [
        ("1.12.0-beta.0", True),
        ("3.25.0_rc1", True),
        ("9.8-beta", True),
        ("2.0.0-alpha.1", True),
        ("1.9.0-canary.2", True),  # Renovate, loose and npm
        ("1.0-milestone-1", True),  # Renovate, gradle
        ("4.9.0-0.nightly-2021-08-01-000000", True),  # openshift/cluster-version-operator
        ("4.9.0-ec.1", True),
        ("4.20.0-okd-scos.ec.3", True),
        ("4.12.0-0.okd-2023-03-18-084815", False),  # a stable release of OKD
        ("6.8.5-301.fc40", False),
        ("20250803+deb13u1", False),
        ("9.8.20260428-0", False),
        ("44.20261101.3.0", False),
        ("1.2.3-lts", False),
    ],
)
def test_a_prerelease_names_itself(version: str, is_one: bool) -> None:
    assert is_prerelease(version) is is_one


def test_candidates_and_nightly_builds_of_openshift_sort_before_the_release() -> None:
    ascending = [
        "4.8.9",
        "4.9.0-0.nightly-2021-08-01-000000",
        "4.9.0-ec.1",
        "4.9.0-ec.10",
        "4.9.0-fc.0",
        "4.9.0-rc.0",
        "4.9.0",
        "4.9.0-1.el9",
        "4.9.0-ec2",
        "4.9.1",
    ]
    assert sorted(set(ascending), key=version_key) == ascending
