"""Stream updates: choose the release that an ImageStream follows, and the change that begins its rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from msgspec import Struct

from gitboot.errors import UsageError
from gitboot.fleet.resources import FleetRepository, Id
from gitboot.fleet.yaml import insert_mapping
from gitboot.image_sources.image_builder import CHANNEL, SOURCE, BuiltFile, BuiltImage, find_image_name
from gitboot.image_sources.releases import ImageSettings, Release
from gitboot.model.boot_image import BootImage, DigestOrigin, Follow, ImageStream, RequiredProvenance
from gitboot.model.image_source import ImageSource
from gitboot.model.scalars import version_key
from gitboot.model.server import Architecture
from gitboot.text import did_you_mean, format_age, format_names, parse_duration, printable

_CURRENT: Final = ("spec", "current")  # the field behind which spec.rollout is written


class UpdateOutcome(StrEnum):
    PROPOSED = "Proposed"  # a branch has the commit that begins the rollout
    WAITS = "Waits"  # the stream has an unfinished rollout, or the release is too young
    CURRENT = "Current"  # there is no newer release within the bounds
    FAILED = "Failed"  # the source, the release or the fleet has an error; nothing changed


class StreamUpdate(Struct, frozen=True, kw_only=True):
    """What `gitboot update-images` found and did for one stream."""

    stream: str
    outcome: UpdateOutcome
    why: str
    source: str
    channel: str | None = None
    version: str | None = None
    image: str | None = None
    branch: str | None = None  # None: gitboot proposes nothing
    commit: str | None = None  # None: a dry run
    is_new: bool = False  # whether this run made the commit
    is_ready: bool = False  # whether a pull request may be opened now
    supersedes: tuple[str, ...] = ()  # branches that propose older releases for the stream
    title: str = ""  # of the commit and of its pull request
    message: str = ""  # the rest of the commit message
    files: tuple[BuiltFile, ...] = ()  # empty: the image exists already, or an earlier run made the commit


class FollowedStream(Struct, frozen=True, kw_only=True):
    """A stream with spec.follow, its source, and the images in the fleet with which releases are compared."""

    name: str
    stream: ImageStream
    follow: Follow
    source: ImageSource
    channel: str | None
    current: BootImage
    images: Mapping[str, BootImage]  # all images of the fleet
    used: frozenset[str]  # images that other streams of this source and channel boot or roll out

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        return self.follow.architectures or tuple(sorted(self.current.spec.architectures))

    @property
    def minimum_age(self) -> timedelta:
        return parse_duration(self.follow.minimum_age) or timedelta()

    def find_fleet_images(self) -> dict[str, BootImage]:
        """Return the images of the source and the channel that the fleet has, by name."""
        found = {
            name: image
            for name, image in self.images.items()
            if is_from_source(image, self.follow.source, self.channel)
        }
        if SOURCE not in self.current.metadata.annotations:  # a person wrote the document
            found[self.current.metadata.name] = self.current
        return found

    def is_within_bounds(self, version: str) -> bool:
        key, low, high = version_key(version), self.follow.minimum_version, self.follow.below_version
        return (low is None or key >= version_key(low)) and (high is None or key < version_key(high))


def is_from_source(image: BootImage, source: str, channel: str | None) -> bool:
    """Return whether an image is a release of a source and a channel.

    Images that gitboot wrote name their source in annotations. Other images count if their name is SOURCE-VERSION.
    """
    notes = image.metadata.annotations
    if (named := notes.get(SOURCE)) is not None:
        return named == source and notes.get(CHANNEL, channel) == channel
    return image.metadata.name == find_image_name(source, image.spec.version)


def list_followed_streams(
    repository: FleetRepository, names: Sequence[str], find_source: Callable[[str], ImageSource]
) -> tuple[FollowedStream, ...]:
    """Return the streams with these names, or all streams with spec.follow. Raises `UsageError`."""
    following = {name: each for name, each in repository.streams.items() if each.spec.follow is not None}
    for name in names:
        if name not in repository.streams:
            hint = did_you_mean(name, repository.streams, "`gitboot images` lists the streams")
            raise UsageError(f"there is no ImageStream {name!r}; {hint}")
        if name not in following:
            path = repository.origins[Id("ImageStream", name)].path
            raise UsageError(f"{path}: ImageStream {name} has no spec.follow: add it, with the name of a source")
    found = []
    for name in sorted({*names} or following):
        stream, follow = following[name], following[name].spec.follow
        assert follow is not None  # noqa: S101 - `following` has only such streams
        source = find_source(follow.source)
        channel = _find_channel(source, follow)
        others = (
            other
            for other in following.values()
            if other is not stream
            and other.spec.follow is not None
            and (other.spec.follow.source, _find_channel(source, other.spec.follow)) == (follow.source, channel)
        )
        used = frozenset(image for each in others for image in _list_images(each))
        found.append(
            FollowedStream(
                name=name,
                stream=stream,
                follow=follow,
                source=source,
                channel=channel,
                current=repository.images[stream.spec.current],
                images=repository.images,
                used=used,
            )
        )
    return tuple(found)


def _find_channel(source: ImageSource, follow: Follow) -> str | None:
    return follow.channel or next(iter(source.spec.channels), None)


def _list_images(stream: ImageStream) -> Iterable[str]:
    yield stream.spec.current
    if stream.spec.rollout is not None:
        yield stream.spec.rollout.image


# The choice of a release


class Choice(Struct, frozen=True, kw_only=True):
    """The release to propose for a stream, or why gitboot proposes none."""

    outcome: UpdateOutcome
    why: str
    release: Release | None = None  # the newest release within the bounds, if it is newer than the stream's images
    older: tuple[Release, ...] = ()  # older releases that an earlier run may have proposed


def find_unfinished_rollout(followed: FollowedStream) -> Choice | None:
    """Return why the stream waits for its rollout, or None if it has no rollout."""
    rollout = followed.stream.spec.rollout
    if rollout is None:
        return None
    why = f"the rollout of {rollout.image} at {rollout.percent} % is not finished: move current, and remove rollout"
    return Choice(outcome=UpdateOutcome.WAITS, why=why)


def choose_release(followed: FollowedStream, releases: Sequence[Release], now: datetime) -> Choice:
    """Return the newest release that is within the bounds, old enough, and newer than the images of the stream.

    ``releases`` are in ascending order. A release without a date counts as old enough. The age of its commit decides
    later.
    """
    if not releases:
        return Choice(outcome=UpdateOutcome.FAILED, why=f"{followed.follow.source} lists no releases")
    newest, in_fleet = releases[-1], followed.find_fleet_images()
    latest = max(in_fleet.values(), key=lambda image: version_key(image.spec.version), default=None)
    if latest is not None and version_key(newest.version) < version_key(latest.spec.version):
        why = (
            f"{newest.index_url} is behind the fleet: its newest release is {printable(newest.version)}, and "
            f"BootImage/{latest.metadata.name} has version {latest.spec.version}"
        )
        return Choice(outcome=UpdateOutcome.FAILED, why=why)
    own = (followed.current, *(each for each in in_fleet.values() if _blocks(followed, each)))
    own_newest = max(
        (image.spec.version for image in own if image.metadata.name in in_fleet), key=version_key, default=None
    )
    newer = [
        each
        for each in releases
        if followed.is_within_bounds(each.version)
        and (own_newest is None or version_key(each.version) > version_key(own_newest))
    ]
    if not newer:
        within = [each.version for each in releases if followed.is_within_bounds(each.version)]
        if not within:
            why = f"no release is within the bounds of spec.follow; the newest release is {printable(newest.version)}"
        elif own_newest is not None and own_newest != followed.current.spec.version:
            why = f"the fleet has {own_newest} already, and the stream does not use it: begin its rollout yourself"
        else:
            why = f"{followed.current.metadata.name} is the newest release within the bounds"
        return Choice(outcome=UpdateOutcome.CURRENT, why=why)
    old_enough = [each for each in newer if each.published is None or each.published + followed.minimum_age <= now]
    if not old_enough:
        youngest = newer[0]
        why = (
            f"{printable(youngest.version)} is {_format_public_age(youngest, now)}, and minimumAge is "
            f"{followed.follow.minimum_age}"
        )
        return Choice(outcome=UpdateOutcome.WAITS, why=why)
    chosen = old_enough[-1]
    older = tuple(each for each in newer if version_key(each.version) < version_key(chosen.version))
    return Choice(outcome=UpdateOutcome.PROPOSED, why="", release=chosen, older=older)


def _blocks(followed: FollowedStream, image: BootImage) -> bool:
    """Return whether a release must be newer than an image of the fleet.

    An image that another stream with the same source uses does not block this stream: it may follow.
    """
    return followed.is_within_bounds(image.spec.version) and image.metadata.name not in followed.used


def _format_public_age(release: Release, now: datetime) -> str:
    assert release.published is not None  # noqa: S101 - releases without a date are old enough
    if release.published > now:
        return "dated in the future"
    return f"public for {format_age((now - release.published).total_seconds())}"


# The change


def choose_settings(followed: FollowedStream, from_source: ImageSettings) -> ImageSettings:
    """Return the settings of the stream's current image if it has the same source, or else those of the source."""
    current = followed.current
    if not is_from_source(current, followed.follow.source, current.metadata.annotations.get(CHANNEL)):
        return from_source
    spec = current.spec
    return ImageSettings(
        user_data=spec.user_data,
        config_from=str(spec.config_from),
        writes_disk=spec.writes_disk,
        boots=spec.boots,
        kernel_arguments=spec.kernel_arguments,
    )


def find_weak_file(followed: FollowedStream, built: BuiltImage) -> str | None:
    """Return why the stream's requireProvenance does not allow the image, or None if it does."""
    if followed.stream.spec.require_provenance is not RequiredProvenance.SIGNED:
        return None
    weak = [".".join(map(str, each.at)) for each in built.files if each.provenance.digest is not DigestOrigin.SIGNED]
    return f"requireProvenance is signed, and {format_names(weak)} of {built.name} has no signature" if weak else None


def build_files(
    followed: FollowedStream, repository: FleetRepository, image: str, built: BuiltImage | None
) -> dict[str, bytes]:
    """Return the changed file of the stream, and the file of the new image, if there is one. Raises `UsageError`.

    All other bytes of the stream's file stay the same.
    """
    origin = repository.origins[Id("ImageStream", followed.name)]
    fields = {"image": image, "percent": str(followed.follow.percent)}
    try:
        changed = insert_mapping(repository.read(origin.blob), origin.document, _CURRENT, "rollout", fields)
    except KeyError:
        raise UsageError(
            f"{origin.path}: gitboot cannot add spec.rollout to ImageStream {followed.name}: remove an empty rollout"
        ) from None
    files = {origin.path: changed}
    if built is not None:
        files[f"images/{built.name}.yaml"] = built.text.encode()
    return files


def format_message(followed: FollowedStream, release: Release, built: BuiltImage | None) -> tuple[str, str]:
    """Return the subject and the body of the commit. Text of the vendor is escaped, and never begins a line."""
    image = built.name if built is not None else find_image_name(release.source, release.version)
    title = f"Begin the rollout of {image} to {followed.follow.percent} % of {followed.name}"
    channel = f", channel {release.channel}" if release.channel is not None else ""
    dated = f"{release.published:%Y-%m-%d %H:%M} UTC" if release.published is not None else "the index has no date"
    lines = [
        f"Source: {release.source}{channel}",
        f"Version: {release.version}, current: {followed.current.spec.version}",
        f"Published: {dated}",
        f"Index: {release.index_url}",
        f"Index signed by: {release.index_signer or 'the vendor does not sign it'}",
    ]
    if built is None:
        lines.append(f"BootImage/{image} is in the fleet already.")
    for file in built.files if built is not None else ():
        lines += ["", f"{'.'.join(map(str, file.at))}: {format_origin(file)}", f"  {file.url}"]
        lines += [f"  sha256 {file.sha256}, {file.size:,} bytes"]
    return printable(title), "".join(f"{printable(line)}\n" for line in lines)


def format_origin(file: BuiltFile) -> str:
    """Return where the digest of a file comes from, in words."""
    origin = file.provenance
    match origin.digest:
        case DigestOrigin.SIGNED:
            return f"signed by {origin.key} ({origin.url})"
        case DigestOrigin.PUBLISHED:
            return f"published without a signature ({origin.url})"
        case DigestOrigin.FIRST_SEEN:
            return "no digest is published; gitboot computed it at the first download"
