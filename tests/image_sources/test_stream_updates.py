"""Stream updates: which release a stream follows, and why it follows none."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.errors import MalformedIndex, StaleIndex
from gitboot.image_sources.index_formats import Release
from gitboot.image_sources.stream_updates import FollowedStream, ReleaseChoice, choose_release, list_followed_streams
from gitboot.text import version_key
from tests.helpers.cases import for_each
from tests.helpers.fleets import document, fleet, image, repository

NOW = datetime(2026, 11, 20, 22, tzinfo=UTC)
SOURCE = """\
apiVersion: gitboot.dev/v1alpha1
kind: ImageSource
metadata: {name: os}
spec:
  channels: [stable, beta]
  architectures: {x86_64: amd64}
  releases: {format: JSONList, url: "https://os.test/{channel}"}
  files: {iso: {url: "https://os.test/{version}.iso"}}
"""


def release(version: str, day: int | None = 1) -> Release:
    published = datetime(2026, 11, day, tzinfo=UTC) if day is not None else None
    return Release(
        source="os",
        channel="stable",
        version=version,
        published=published,
        index_url="https://os.test",
        index_signer=None,
    )


def stream(name: str, current: str, follow: str = "", rollout: str = "") -> str:
    more = f", rollout: {{{rollout}}}" if rollout else ""
    return document("ImageStream", name, f"current: {current}, follow: {{source: os{follow}}}{more}")


def make_written_image(name: str, channel: str, version: str | None = None) -> str:
    """An image that gitboot wrote."""
    text = image(name).replace("labels: {}", f"annotations: {{gitboot.dev/source: os, gitboot.dev/channel: {channel}}}")
    return text.replace(f"version: '{name.rpartition('-')[2]}'", f"version: '{version}'") if version else text


def load_stream(*documents: str, name: str = "s") -> FollowedStream:
    loaded = repository(fleet(), SOURCE, *documents)
    (found,) = list_followed_streams(loaded, [name], loaded.image_sources.__getitem__)
    return found


def choose(found: FollowedStream, *releases: Release | str) -> ReleaseChoice:
    listed = [each if isinstance(each, Release) else release(each) for each in releases]
    return choose_release(found, listed, NOW)


@for_each(
    ("documents", "releases", "version"),
    [
        ((image("os-1.0"), stream("s", "os-1.0")), ["1.0", "1.1", "1.2"], "1.2"),
        ((image("os-1.9"), stream("s", "os-1.9")), ["1.9", "1.10"], "1.10"),
        ((image("os-1.0"), stream("s", "os-1.0")), ["0.9", "1.0"], None),
        # a prerelease is older than its release
        ((make_written_image("mine-1", "stable", "1.1-rc.1"), stream("s", "mine-1")), ["1.0", "1.1"], "1.1"),
        (
            (image("os-1.0"), make_written_image("mine-1", "stable", "1.1_beta2"), stream("s", "os-1.0")),
            ["1.0", "1.1"],
            "1.1",
        ),
        ((make_written_image("mine-1", "stable", "1.1-1"), stream("s", "mine-1")), ["1.1", "1.1-1", "1.1-2"], "1.1-2"),
        ((image("os-1.0"), stream("s", "os-1.0", ", belowVersion: '2'")), ["1.1", "2.0"], "1.1"),
        ((image("os-1.0"), stream("s", "os-1.0", ", minimumVersion: '2'")), ["1.1", "2.0"], "2.0"),
        # a release that the fleet has already, by its name or by its annotations
        ((image("os-1.0"), image("os-1.1"), stream("s", "os-1.0")), ["1.0", "1.1"], None),
        ((image("os-1.0"), make_written_image("mine-1", "stable", "1.1"), stream("s", "os-1.0")), ["1.0", "1.1"], None),
        ((image("os-1.0"), image("os-1.1"), stream("s", "os-1.0")), ["1.0", "1.1", "1.2"], "1.2"),
        # images of another channel or of another source do not count
        ((image("os-1.0"), make_written_image("os-2.0", "beta"), stream("s", "os-1.0")), ["1.0", "1.1"], "1.1"),
        ((image("os-1.0"), image("other-9.9"), stream("s", "os-1.0")), ["1.0", "1.1"], "1.1"),
        # the current image counts although a person wrote it, under any name
        ((image("mine-1.5"), stream("s", "mine-1.5")), ["1.4", "1.5"], None),
        ((image("mine-1.5"), stream("s", "mine-1.5")), ["1.5", "1.6"], "1.6"),
        # a stream that changes its channel does not go back
        ((make_written_image("os-2.0", "beta"), stream("s", "os-2.0")), ["1.0", "1.1"], None),
        ((make_written_image("os-2.0", "beta"), stream("s", "os-2.0")), ["1.0", "2.1"], "2.1"),
        # a stream may change its source
        (
            (
                image("other-9.9").replace("labels: {}", "annotations: {gitboot.dev/source: x}"),
                stream("s", "other-9.9"),
            ),
            ["1"],
            "1",
        ),
        # streams for two minor versions
        (
            (
                *(image(f"os-{each}") for each in ("1.0", "2.0")),
                stream("s", "os-1.0", ", belowVersion: '2'"),
                stream("t", "os-2.0", ", minimumVersion: '2'"),
            ),
            ["1.0", "1.1", "2.0"],
            "1.1",
        ),
        # another stream already rolls the release out
        (
            (
                *(image(f"os-{each}") for each in ("1.0", "1.1")),
                stream("s", "os-1.0"),
                stream("t", "os-1.0", rollout="image: os-1.1"),
            ),
            ["1.0", "1.1"],
            "1.1",
        ),
        # minimum age
        ((image("os-1"), stream("s", "os-1", ", minimumAge: 5d")), [release("2", 15), release("3", 16)], "2"),
        ((image("os-1"), stream("s", "os-1", ", minimumAge: 5d")), [release("2", 16)], None),
        ((image("os-1"), stream("s", "os-1")), [release("2", 30)], None),  # dated in the future
        ((image("os-1"), stream("s", "os-1", ", minimumAge: 5d")), [release("2", 1), release("3", None)], "3"),
    ],
)
def test_a_stream_follows_the_newest_release_that_is_newer_than_its_images(
    documents: Sequence[str], releases: Sequence[Release | str], version: str | None
) -> None:
    choice = choose(load_stream(*documents), *releases)
    assert (choice.release.version if choice.release is not None else None) == version, choice
    assert (choice.release is None) == bool(choice.why)


def test_older_releases_that_may_have_proposals_are_listed() -> None:
    choice = choose(load_stream(image("os-1"), stream("s", "os-1")), "1", "2", "3", "4")
    assert [each.version for each in choice.older] == ["2", "3"]


@for_each(
    ("documents", "error", "text"),
    [
        ((image("os-1.0"), image("os-2.0"), stream("s", "os-1.0")), StaleIndex, "BootImage/os-2.0 already has"),
        ((image("mine-3"), stream("s", "mine-3")), StaleIndex, "BootImage/mine-3 already has"),
        (
            (image("os-1"), make_written_image("x-5", "stable"), stream("s", "os-1")),
            StaleIndex,
            "BootImage/x-5 already has",
        ),
    ],
)
def test_an_index_that_is_behind_the_fleet_is_an_error(
    documents: Sequence[str], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        choose(load_stream(*documents), "0.5", "1.1")


def test_an_index_without_releases_is_an_error() -> None:
    with pytest.raises(MalformedIndex):
        choose(load_stream(image("os-1"), stream("s", "os-1")))


VERSION = st.lists(st.integers(0, 12), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))


@given(st.lists(VERSION, min_size=1, max_size=6), VERSION, st.none() | VERSION, st.none() | VERSION, st.data())
def test_no_index_leads_a_stream_back_or_out_of_its_bounds(
    versions: list[str], current: str, low: str | None, high: str | None, data: st.DataObject
) -> None:
    bounds = (f", minimumVersion: '{low}'" if low else "") + (f", belowVersion: '{high}'" if high else "")
    found = load_stream(image(f"os-{current}"), stream("s", f"os-{current}", bounds))
    listed = [
        release(each, data.draw(st.sampled_from([1, 19, 30, None]))) for each in sorted(versions, key=version_key)
    ]
    try:
        choice = choose_release(found, listed, NOW)
    except StaleIndex:
        assert version_key(listed[-1].version) < version_key(current)
        return
    if (chosen := choice.release) is not None:
        key = version_key(chosen.version)
        assert key > version_key(current)
        assert low is None or key >= version_key(low)
        assert high is None or key < version_key(high)
        assert chosen.published is None or chosen.published <= NOW
