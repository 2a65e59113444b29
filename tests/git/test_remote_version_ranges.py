"""Version ranges: which texts are ranges, and which tag a range selects."""

from __future__ import annotations

import pytest

from gitboot.errors import UsageError
from gitboot.git.remote import find_highest_tag, is_range, parse_range
from tests.helpers.cases import for_each

TAGS = [
    *("v0.0.3", "v0.0.4", "v0.2.3", "v0.2.9", "v0.3.0"),
    *("1.0.0-rc.1", "1.0.0", "v1.2.0", "v1.2.9", "v1.3.0-rc.2", "v1.9.0", "v1.10.0"),
    *("v2.0.0-alpha", "v2.0.0-rc.2", "v2.0.0-rc.10", "v2.0.0", "v3.1.0+build"),
    *("nightly", "v01.2.3", "1.2", "v1.2.3.4"),
]


@for_each(
    ("written", "tag"),
    [
        ("*", "v3.1.0+build"),
        (">=1.0.0 <2.0.0", "v1.10.0"),
        (">=1.0.0,<2", "v1.10.0"),
        ("> 1 < 2", None),
        (">1.2 <2", "v1.10.0"),
        (">1.2.0 <1.3", "v1.2.9"),
        ("<1", "v0.3.0"),
        ("<=1.2", "v1.2.9"),
        ("<=1.2.0", "v1.2.0"),
        (">3", None),
        ("=1.2.0", "v1.2.0"),
        ("=1.2", "v1.2.9"),
        ("1.*", "v1.10.0"),
        ("1.x || 2.x", "v2.0.0"),
        ("1.x.*", "v1.10.0"),
        ("=1.0.0-x.1", None),
        ("^1.2", "v1.10.0"),
        ("^0.2.3", "v0.2.9"),
        ("^0.0.3", "v0.0.3"),
        ("^0.0", "v0.0.4"),
        ("~1.2", "v1.2.9"),
        ("~1.2.1", "v1.2.9"),
        ("~1", "v1.10.0"),
        ("~1.3", None),
        ("~1.3.0-0", "v1.3.0-rc.2"),
        ("<2.0.0-rc.11", "v2.0.0-rc.10"),
        (">=2.0.0-0 <2.0.0", "v2.0.0-rc.10"),
        (">=2.0.0 <3.0.0 || >=1.3.0-0 <1.4.0", "v2.0.0"),
        (">=2.0.0-0 <2.0.0-rc.3", "v2.0.0-rc.2"),
        ("^1.0.0-0", "v1.10.0"),
        ("=1.0.0-rc.1", "1.0.0-rc.1"),
        (">=1.2 <2 !=1.10.0", "v1.9.0"),
        (">= 1.2, < 2, != 1.10.x", "v1.9.0"),
        ("!=3.x", "v2.0.0"),
        ("!=3.1", "v2.0.0"),
        ("1.0.0 - 1.2", "v1.2.9"),
        ("1.0.0 - 1.2.5 || v0.2 - 0.2.5", "v1.2.0"),
        ("1.0.0 - 2.0.0 <2.0.0", "v1.10.0"),
    ],
)
def test_a_range_selects_the_highest_version_within_it(written: str, tag: str | None) -> None:
    assert (find_highest_tag(parse_range(written), TAGS), find_highest_tag(parse_range(written), reversed(TAGS))) == (
        tag,
        tag,
    )


@for_each(
    "written",
    [
        "",
        "main",
        "1.2.3.4",
        "!1.2",
        "!=",
        "1.2 -",
        "1.2 - - 3",
        "12.3.34~ 1.2.3",
        ">=",
        "1..2",
        "1.2 ||",
        "<>1",
        "^v",
        "1.2-",
        ">= 1 or so",
        "1.*.3",
        "<x.2",
        "v*.*.1",
    ],
)
def test_an_invalid_range_is_a_usage_error(written: str) -> None:
    with pytest.raises(UsageError, match="is not a version range"):
        parse_range(written)


@for_each(
    "name",
    [
        *("main", "1.x", "v1.2.3", "release/1.2", "feature-2"),
        *("feature=x", "a|b", "a||b", "a<b>c", "1.2|1.3", "refs/heads/=1.2", "refs/tags/>=1.2", "!fix"),
    ],
)
def test_the_name_of_a_branch_is_not_a_range(name: str) -> None:
    assert not is_range(name)


@for_each(
    "text",
    [
        "!=1.4",
        "1.2 - 1.4",
        ">=1.4",
        "<2",
        "=1.2",
        ">1",
        "1.4||2.0",
        "x||1",
        "1.2,<3",
        "v1.2||one",
        ">=one",
        "~1",
        "^0.1",
        "*",
        "1 2",
    ],
)
def test_a_text_that_begins_like_a_range_is_not_a_name(text: str) -> None:
    assert is_range(text)


@for_each(
    ("written", "version", "selects"),
    [
        (">0", "0.0.1-alpha", False),
        (">0.0.0-0", "0.0.0-alpha", True),
        (">=0-0", "0.0.1-alpha", True),
        ("<0-z", "0.0.0-alpha", True),
        ("<1.1.0", "1.1.0-alpha.1", False),
        ("<=11", "11.2.3", True),
        ("~0.2.3-beta.2", "0.2.3-beta.4", True),
        ("^1.2.0-alpha.0", "1.2.1-alpha.1", True),
        (">= 1.0.0  <= 2.0.0-beta", "1.0.1-beta", True),
        (">= 1.0.0  <= 2.0.0-beta || > 3", "3.0.1-beta", False),
        (">= 1.0.0-0  <= 2.0.0", "1.0.1-beta", True),
    ],
)
def test_ranges_select_the_prereleases_that_the_tests_of_masterminds_semver_select(
    written: str, version: str, selects: bool
) -> None:
    assert find_highest_tag(parse_range(written), [version]) == (version if selects else None)


@for_each("tag", ["1.2.3-beta.01", "1.0.0-alpha..1", "1.1.2+.123", "1.2.31----RC-SNAPSHOT.12.09.1--.12+788"])
def test_a_tag_that_semver_and_masterminds_reject_is_not_a_version(tag: str) -> None:
    assert find_highest_tag(parse_range(">=0-0"), [tag]) is None


def test_a_tag_with_many_digits_is_not_a_version() -> None:
    assert find_highest_tag(parse_range("*"), [f"v{'9' * 5000}.0.0", f"v1.0.0-{'9' * 5000}", "v0.1.0"]) == "v0.1.0"
