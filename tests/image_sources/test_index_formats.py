"""Formats of indexes: versions, times and lists of digests, and that no content makes a parser fail in another way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gitboot.artifacts.availability import ArtifactHead, Content
from gitboot.artifacts.oci import Registries
from gitboot.artifacts.signatures import VendorKeys
from gitboot.errors import MalformedIndex, SourceUnavailable, UnusableSource
from gitboot.http_client import HttpClient
from gitboot.image_sources.find_releases import ReleaseFinder, list_vendor_sources
from gitboot.image_sources.index_formats import (
    IndexQuery,
    Release,
    find_listed_digest,
    match_version,
    parse_digest_list,
    parse_files,
    parse_index,
    parse_time,
)
from gitboot.model.image_source import FilesFormat, ImageSource, IndexFormat
from gitboot.text import version_key
from tests.helpers.cases import count_examples

T = TypeVar("T")
URL = "https://vendor.test/index"
A, B, C = "a" * 64, "b" * 64, "c" * 128


@pytest.mark.parametrize(
    ("name", "template", "version"),
    [
        ("v1.10.0", "v{version}", "1.10.0"),
        ("1.10.0", "v{version}", None),
        ("ubuntu-24.04.3-live-server-amd64.iso", "ubuntu-{version}-live-server-amd64.iso", "24.04.3"),
        ("ubuntu--live-server-amd64.iso", "ubuntu-{version}-live-server-amd64.iso", None),
        ("20250803+deb13u1", "{version}", "20250803+deb13u1"),
        ("current", "{version}", None),  # a version begins with a digit
        ("../9.6", "{version}", None),
        ("9.6/../../x", "{version}", None),
        ("9.6 quiet", "{version}", None),
        ("9" * 64, "{version}", "9" * 64),
        ("9" * 65, "{version}", None),
        ("9.6\n", "{version}", None),
        ("٣.6", "{version}", None),
        ("aa", "a{version}a", None),  # prefix and suffix do not overlap
    ],
)
def test_a_version_is_what_a_template_leaves_open(name: str, template: str, version: str | None) -> None:
    assert match_version(name, template) == version


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-11-04T22:11:54Z", datetime(2026, 11, 4, 22, 11, 54, tzinfo=UTC)),
        ("2026-11-04 22:11:54 +0200", datetime(2026, 11, 4, 20, 11, 54, tzinfo=UTC)),
        ("2026-11-04 22:11:54.987654", datetime(2026, 11, 4, 22, 11, 54, tzinfo=UTC)),
        ("2026-11-04", datetime(2026, 11, 4, tzinfo=UTC)),
        ("0001-01-01T00:00:00+23:59", None),
        ("yesterday", None),
        ("", None),
        (None, None),
        ("2026-11-04T22:11:54Z" * 100, None),
    ],
)
def test_a_time_of_an_index_is_in_utc_or_unknown(text: str | None, instant: datetime | None) -> None:
    assert parse_time(text) == instant


def test_a_list_of_digests_is_read_by_name() -> None:
    content = (
        f"# boot.iso: 1063153664 bytes\nSHA256 (boot.iso) = {A}\n"
        f"{B}  ./netboot/amd64/linux\n{C} *netboot/amd64/linux\n{B}  other\nnot a digest\n"
    ).encode()
    found = parse_digest_list(content, URL)
    assert {name: (each.sha256, each.sha512) for name, each in found.items()} == {
        "boot.iso": (A, None),
        "netboot/amd64/linux": (B, C),
        "other": (B, None),
    }


@pytest.mark.parametrize("line", [A, f"{A}\r\n", f"{A}  -\n", f"{A}  ./kernel\n", f"{A} kernel\n"])
def test_a_digest_without_a_name_is_that_of_the_file_beside_the_list(line: str) -> None:
    assert parse_digest_list(line.encode(), URL, "kernel")["kernel"].sha256 == A


@pytest.mark.parametrize(
    ("url", "sha256"),
    [
        ("https://vendor.test/13/netboot/amd64/linux", A),  # the longest listed name
        ("https://vendor.test/13/gtk/amd64/linux", B),
        ("https://vendor.test/13/linux", None),
        ("https://vendor.test/netboot%2Famd64/linux", A),
        ("https://vendor.test/xnetboot/amd64/linux", B),
    ],
)
def test_a_file_is_listed_by_the_end_of_its_path(url: str, sha256: str | None) -> None:
    digests = parse_digest_list(f"{A}  netboot/amd64/linux\n{B}  amd64/linux\n".encode(), URL)
    found = find_listed_digest(digests, url)
    assert (found.sha256 if found else None) == sha256


def test_entries_are_unique_and_ascending() -> None:
    content = json.dumps(["v1.9.0", "v1.10.0", {"version": "v1.9.1", "date": "2026-11-04"}, "v1.9.0"]).encode()
    found = parse_index(IndexFormat.JSON_LIST, content, IndexQuery(url=URL, match="v{version}"))
    assert [(each.version, each.published) for each in found] == [
        ("1.9.0", None),
        ("1.9.1", datetime(2026, 11, 4, tzinfo=UTC)),
        ("1.10.0", None),
    ]


def test_an_index_with_too_many_releases_is_rejected() -> None:
    content = json.dumps([f"1.{number}" for number in range(10_001)]).encode()
    with pytest.raises(MalformedIndex, match="more than 10,000 releases"):
        parse_index(IndexFormat.JSON_LIST, content, IndexQuery(url=URL))


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("ftp://vendor.test/kernel", "a URL that gitboot does not accept"),
        ("https://user:password@vendor.test/kernel", "must not contain a user name or a password"),
        ("https://vendor.test/kernel#member", "a URL that gitboot does not accept"),
        ("http://vendor.test/kernel", "the index URL uses https, but the file URL"),
        ("https://vendor.test/a b", "a URL that gitboot does not accept"),
        ("https://vendor.test/`reboot`", "a URL that gitboot does not accept"),
        ("oci://vendor.test/a@sha256:" + A, "a URL that gitboot does not accept"),
        ("https://[::1", "a URL that gitboot does not accept"),
    ],
)
def test_a_url_in_an_index_is_one_that_a_document_may_have(location: str, says: str) -> None:
    file = {"location": location, "sha256": A}
    metal = {"release": "1.0", "formats": {"pxe": {"kernel": file}}}
    stream = {"architectures": {"x86_64": {"artifacts": {"metal": metal}}}}
    with pytest.raises(MalformedIndex, match=says):
        parse_index(IndexFormat.COREOS_STREAM, json.dumps(stream).encode(), IndexQuery(url=URL, architecture="x86_64"))


def test_a_path_in_simplestreams_stays_below_its_root() -> None:
    item = {"path": "../../../other/boot-kernel", "sha256": A}
    index = {"format": "products:1.0", "products": {"p": {"versions": {"1": {"items": {"boot-kernel": item}}}}}}
    query = IndexQuery(url="https://vendor.test/maas/streams/v1/index.json", match="p/{version}")
    (entry,) = parse_index(IndexFormat.SIMPLESTREAMS, json.dumps(index).encode(), query)
    assert entry.files["boot-kernel"].url.startswith("https://vendor.test/")


def test_text_of_a_vendor_is_escaped_in_messages() -> None:
    with pytest.raises(MalformedIndex) as caught:
        parse_files(FilesFormat.TREEINFO, b"[checksums]\nvmlinuz = sha256:\x1b[2J\n", URL)
    assert "\x1b" not in str(caught.value) and "\\u001b[2J" in str(caught.value)


# Every content


def parse_or_fault(parse: Callable[[], T]) -> T | MalformedIndex:
    try:
        return parse()
    except MalformedIndex as error:
        return error


_WORDS = st.sampled_from(
    [
        *("architectures", "x86_64", "artifacts", "metal", "release", "formats", "pxe", "kernel", "location", "sha256"),
        *(
            "products",
            "versions",
            "items",
            "path",
            "format",
            "products:1.0",
            "Leap",
            "state",
            "Stable",
            "version",
            "date",
        ),
        *("tag_name", "assets", "name", "browser_download_url", "digest", "size", "draft", "1.0", "v1.0", A, URL, ""),
        *("channel", "stable", "release_date", "2026-11-04", "https://["),
    ]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=20,
)
_LINES = st.lists(
    st.sampled_from(
        [
            *("- a", "-", "  file: alpine-netboot-1.0-x86_64.tar.gz", f"  sha256: {A}", "  size: 99999999999999999999"),
            *("  &a x: *a", "  ? [a, b]", "  - - -", "[checksums]", "[", "]", f"k = sha256:{A}", "k = sha256:", "= x"),
            *(f"{A}  1.0", f"{A} *2.0", f"SHA256 (1.0) = {B}", f" {A} 12 1.0", "<a href='1.0/'>", '<a href="//[x/">'),
            *('href="&#x2F;&#xD800;"', "%YAML 9", "!!python/object:os.system x", "a: b: c", "\t", "'"),
        ]
    ),
    max_size=8,
).map(lambda lines: "\n".join(lines).encode())
_CONTENTS = st.binary(max_size=60) | _JSON.map(lambda value: json.dumps(value).encode()) | _LINES


@settings(max_examples=count_examples(400), deadline=None)
@given(st.sampled_from(list(IndexFormat)), _CONTENTS, st.sampled_from(["{version}", "v{version}", "Leap/{version}"]))
@example(IndexFormat.JSON_LIST, b"[" * 100_000, "{version}")
@example(IndexFormat.ALPINE_RELEASES, b"[" * 100_000, "{version}")
@example(IndexFormat.ALPINE_RELEASES, b"- &a [*a, *a]\n- {file: 1.0, <<: *a}\n", "{version}")
def test_a_parser_raises_only_malformed_index(index_format: IndexFormat, content: bytes, match: str) -> None:
    if index_format is IndexFormat.OCI_TAGS:
        return  # a registry has no index
    query = IndexQuery(url=URL, match=match, channel="stable", architecture="x86_64")
    found = parse_or_fault(lambda: parse_index(index_format, content, query))
    if isinstance(found, MalformedIndex):
        assert found.place == URL and found.cause and found.hint and str(found).isprintable()
    else:
        versions = [each.version for each in found]
        assert versions == sorted(set(versions), key=lambda version: (version_key(version), version))


_FILE = {"location": f"{URL}/kernel", "signature": f"{URL}/kernel.sig", "sha256": A}
_METAL = {"release": "1.0", "formats": {"pxe": {"kernel": _FILE}}}
_ITEMS = {"boot-kernel": {"path": "a/boot-kernel", "sha256": A, "size": 3}}
_ASSET = {"name": "kernel", "browser_download_url": URL, "size": 3, "digest": f"sha256:{A}"}
_VALID: list[tuple[IndexFormat, Any]] = [
    (IndexFormat.COREOS_STREAM, {"architectures": {"x86_64": {"artifacts": {"metal": _METAL}}}, "metadata": {}}),
    (IndexFormat.FLATCAR_RELEASES, {"1.0": {"channel": "stable", "architectures": ["x86_64"], "release_date": "x"}}),
    (IndexFormat.GITHUB_RELEASES, [{"tag_name": "1.0", "assets": [_ASSET], "published_at": "2026-11-04"}]),
    (IndexFormat.SIMPLESTREAMS, {"format": "products:1.0", "products": {"": {"versions": {"1": {"items": _ITEMS}}}}}),
    (IndexFormat.OPENSUSE_DISTRIBUTIONS, {"": [{"version": "1.0", "state": "Stable"}]}),
    (IndexFormat.JSON_LIST, ["1.0", {"version": "2.0", "date": "2026-11-04"}]),
]


@st.composite
def _damaged(draw: st.DrawFn) -> tuple[IndexFormat, bytes]:
    """Draw an index in which one value is another one."""
    index_format, valid = draw(st.sampled_from(_VALID))
    index = deepcopy(valid)
    at = index
    while True:
        step = draw(st.sampled_from(list(at) if isinstance(at, dict) else list(range(len(at)))))
        if not at[step] or not isinstance(at[step], dict | list) or draw(st.booleans()):
            at[step] = draw(_JSON)
            return index_format, json.dumps(index).encode()
        at = at[step]


@settings(max_examples=count_examples(400), deadline=None)
@given(_damaged())
def test_a_damaged_value_is_malformed_or_ignored(damaged: tuple[IndexFormat, bytes]) -> None:
    index_format, content = damaged
    match = "/{version}" if index_format in (IndexFormat.SIMPLESTREAMS, IndexFormat.OPENSUSE_DISTRIBUTIONS) else None
    query = IndexQuery(url=URL, match=match or "{version}", channel="stable", architecture="x86_64")
    found = parse_or_fault(lambda: parse_index(index_format, content, query))
    assert not isinstance(found, MalformedIndex) or str(found).isprintable()


@settings(max_examples=count_examples(200), deadline=None)
@given(_CONTENTS)
def test_other_parsers_raise_only_malformed_index(content: bytes) -> None:
    parsers: list[Any] = [
        lambda: parse_files(FilesFormat.TREEINFO, content, URL),
        lambda: parse_digest_list(content, URL, "bare"),
    ]
    for parse in parsers:
        found = parse_or_fault(parse)
        assert not isinstance(found, MalformedIndex) or str(found).isprintable()


class FixedFetcher:
    """A fetcher whose server sends the same content for each URL."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def head(self, url: str) -> ArtifactHead:
        return ArtifactHead(size=len(self._content))

    @contextmanager
    def read(self, url: str, offset: int = 0) -> Iterator[Content]:
        yield Content(self.head(url), 0, iter([self._content]))


UNSIGNED_INDEX = [
    each for each in list_vendor_sources() if not (each.spec.releases.signature or each.spec.releases.clear_signed)
]


@settings(max_examples=count_examples(300), deadline=None)
@given(st.sampled_from(UNSIGNED_INDEX), _CONTENTS | _damaged().map(lambda damaged: damaged[1]))
def test_a_built_in_source_raises_only_errors_with_place_cause_and_hint(source: ImageSource, content: bytes) -> None:
    server, channel = FixedFetcher(content), next(iter(source.spec.channels), None)
    release = Release(
        source=source.metadata.name, channel=channel, version="1.0", published=None, index_url=URL, index_signer=None
    )
    with TemporaryDirectory() as folder:
        finder = ReleaseFinder(server, VendorKeys(None, Path(folder), shipped=None), Registries([], HttpClient()))
        tried: list[Callable[[], Any]] = [
            lambda: finder.list_releases(source, None),
            lambda: finder.describe_release(source, release, ()),
        ]
        for each in tried:
            try:
                each()
            except (UnusableSource, SourceUnavailable) as error:
                faults = [error.place, error.cause, error.hint]
            else:
                faults = []
            assert all(fault and fault.isprintable() for fault in faults)


@pytest.mark.parametrize(
    ("index_format", "content"),
    [
        (IndexFormat.DIRECTORY_LISTING, b"<a href='" * 200_000),
        (IndexFormat.DIRECTORY_LISTING, b"href=" + b"x" * (1 << 20)),
        (IndexFormat.CHECKSUM_LIST, A.encode() + b" " * (1 << 20)),
        (IndexFormat.CHECKSUM_LIST, (A.encode() + b" (" + b") = " * (1 << 18))),
        (IndexFormat.CHECKSUM_LIST, b"SHA256 (" + b") = " * (1 << 18)),
        (IndexFormat.TEXT, b" " * (1 << 20)),
        (IndexFormat.ALPINE_RELEASES, b"- a: " + b"x" * (1 << 20)),
        (IndexFormat.ALPINE_RELEASES, b"- a: b\n" * 100_000),
        (IndexFormat.JSON_LIST, b'["' + b"9" * (4 << 20) + b'"]'),
    ],
)
def test_hostile_content_takes_no_time(index_format: IndexFormat, content: bytes) -> None:
    began_s = time.process_time()
    with suppress(MalformedIndex):
        parse_index(index_format, content, IndexQuery(url=URL))
    assert time.process_time() - began_s < 60  # quadratic parsers need hours
