"""Stream updates: choose a new release for an ImageStream, and propose a commit that begins the rollout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from msgspec import Struct, structs

from gitboot.errors import GitbootError, MalformedIndex, StaleIndex, UntrustedRelease, UsageError
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.revision import Snapshot
from gitboot.fleet.yaml import insert_field
from gitboot.git.branch_writer import build_branch_prefix, find_proposal, propose_commit
from gitboot.image_sources.find_releases import ReleaseFinder, describe_settings
from gitboot.image_sources.image_builder import (
    CHANNEL,
    SOURCE,
    BuiltFile,
    BuiltImage,
    DownloadProgress,
    build_image,
    find_image_name,
    format_origin,
)
from gitboot.image_sources.index_formats import ImageSettings, Release
from gitboot.model.boot_image import BootImage, DigestOrigin, Follow, ImageStream, RequiredProvenance, Rollout
from gitboot.model.image_source import ImageSource
from gitboot.model.scalars import Name
from gitboot.model.server import Architecture
from gitboot.text import (
    format_age,
    format_names,
    format_suggestion,
    one_line,
    parse_duration,
    printable,
    printable_lines,
    version_key,
)


class UpdateOutcome(StrEnum):
    PROPOSED = "Proposed"  # a branch contains a commit that begins the rollout
    WAITS = "Waits"  # the stream has an unfinished rollout, or the release is too young
    CURRENT = "Current"  # no newer release matches the limits in spec.follow
    FAILED = "Failed"  # the source, the release or the fleet has an error, so gitboot made no changes


class StreamUpdate(Struct, frozen=True, kw_only=True):
    """The result of `gitboot update-images` for one stream."""

    stream: str
    outcome: UpdateOutcome
    why: str
    source: str
    channel: str | None = None
    version: str | None = None
    image: str | None = None
    branch: str | None = None  # the branch with the proposed commit; None: there is no proposal
    commit: str | None = None  # the proposed commit; None: this was a dry run
    new: bool = False  # whether this run created the commit
    ready: bool = False  # whether the user may open a pull request now
    supersedes: tuple[str, ...] = ()  # branches that propose older releases for the stream
    title: str = ""  # the title of the commit and of the pull request
    message: str = ""  # the rest of the commit message
    files: tuple[BuiltFile, ...] = ()  # empty if the image already exists, or if an earlier run created the commit
    document: str = ""  # the text of the new BootImage; "" if `files` is empty


class FollowedStream(Struct, frozen=True, kw_only=True):
    """A stream with spec.follow, together with the source that the stream follows and the images of the fleet."""

    name: str
    stream: ImageStream
    follow: Follow
    source: ImageSource
    channel: str | None
    current: BootImage
    images: Mapping[str, BootImage]  # all images of the fleet
    used: frozenset[str]  # names of the images that other streams boot or roll out

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        return self.follow.architectures or tuple(sorted(self.current.spec.architectures))

    @property
    def minimum_age(self) -> timedelta:
        return parse_duration(self.follow.minimum_age) or timedelta()

    def find_fleet_images(self) -> dict[str, BootImage]:
        """Return the images of the fleet that belong to the followed source and channel, by name."""
        images = {
            name: image
            for name, image in self.images.items()
            if is_from_source(image, self.follow.source, self.channel)
        }
        if SOURCE not in self.current.metadata.annotations:  # a person wrote the document, not gitboot
            images[self.current.metadata.name] = self.current
        return images

    def is_within_bounds(self, version: str) -> bool:
        minimum, below = self.follow.minimum_version, self.follow.below_version
        if minimum is not None and version_key(version) < version_key(minimum):
            return False
        return below is None or version_key(version) < version_key(below)


def is_from_source(image: BootImage, source: str, channel: str | None) -> bool:
    """Return whether an image belongs to a source and a channel.

    gitboot writes the names of the source and the channel into the annotations of each image that it creates. An image
    without these annotations belongs to a source if its name has the form SOURCE-VERSION.
    """
    annotations = image.metadata.annotations
    if (source_name := annotations.get(SOURCE)) is not None:
        return source_name == source and annotations.get(CHANNEL, channel) == channel
    return image.metadata.name == find_image_name(source, image.spec.version)


def list_followed_streams(
    repository: FleetRepository, names: Sequence[str], find_source: Callable[[str], ImageSource]
) -> tuple[FollowedStream, ...]:
    """Return the streams with these names, or all streams with spec.follow if ``names`` is empty.

    Raises `UsageError` if a stream does not exist or has no spec.follow.
    """
    following = {name: stream for name, stream in repository.streams.items() if stream.spec.follow is not None}
    for name in names:
        if name not in repository.streams:
            hint = format_suggestion(name, repository.streams, "`gitboot images` lists the streams")
            raise UsageError(f"there is no ImageStream {name!r}; {hint}")
        if name not in following:
            path = repository.origins[Id("ImageStream", name)].path
            raise UsageError(
                f"{path}: ImageStream {name} has no spec.follow; add spec.follow with the name of a source"
            )
    followed = []
    for name in sorted({*names} or following):
        stream = following[name]
        follow = stream.spec.follow
        assert follow is not None  # noqa: S101 - `following` has only such streams
        source = find_source(follow.source)
        used = set[str]()
        for other in repository.streams.values():
            if other is not stream:
                used.add(other.spec.current)
                if other.spec.rollout is not None:
                    used.add(other.spec.rollout.image)
        followed.append(
            FollowedStream(
                name=name,
                stream=stream,
                follow=follow,
                source=source,
                channel=follow.channel or next(iter(source.spec.channels), None),
                current=repository.images[stream.spec.current],
                images=repository.images,
                used=frozenset(used),
            )
        )
    return tuple(followed)


# The choice of a release


class ReleaseChoice(Struct, frozen=True, kw_only=True):
    """The release to propose for a stream, or the reason why gitboot does not propose a release."""

    outcome: UpdateOutcome
    why: str
    release: Release | None = None
    older: tuple[Release, ...] = ()  # older releases that an earlier run may have proposed


def find_unfinished_rollout(followed: FollowedStream) -> ReleaseChoice | None:
    """Return a `ReleaseChoice` to wait if the stream has an unfinished rollout, or None otherwise."""
    rollout = followed.stream.spec.rollout
    if rollout is None:
        return None
    return ReleaseChoice(
        outcome=UpdateOutcome.WAITS,
        why=f"the rollout of {rollout.image} is still at {rollout.percent} %; at 100 %, set `current` to this "
        "image, and remove `rollout`",
    )


def choose_release(followed: FollowedStream, releases: Sequence[Release], now: datetime) -> ReleaseChoice:
    """Choose the newest release that matches spec.follow, is old enough, and is newer than the stream's images.

    ``releases`` must be in ascending order. A release without a date counts as old enough here, because gitboot later
    checks the age of the proposed commit instead. Raises `MalformedIndex` if there are no releases. Raises `StaleIndex`
    if the fleet already has an image of the channel that is newer than the newest release.
    """
    if not releases:
        raise MalformedIndex(
            followed.follow.source, "the index lists no releases", "check spec.follow.channel, or try again later"
        )
    _check_index_is_current(followed, releases[-1])
    own_newest = _find_own_newest(followed)
    matching = [release for release in releases if followed.is_within_bounds(release.version)]
    newer = [
        release for release in matching if own_newest is None or version_key(release.version) > version_key(own_newest)
    ]
    if not newer:
        if not matching:
            newest = printable(releases[-1].version)
            why = f"no release is within the limits in spec.follow; the newest release is {newest}"
        elif own_newest is not None and own_newest != followed.current.spec.version:
            why = f"the fleet has an image with version {own_newest}, but the stream does not use it: start a rollout"
        else:
            why = f"no release that matches spec.follow is newer than {followed.current.metadata.name}"
        return ReleaseChoice(outcome=UpdateOutcome.CURRENT, why=why)
    old_enough = [
        release for release in newer if release.published is None or now - release.published >= followed.minimum_age
    ]
    if not old_enough:
        return ReleaseChoice(
            outcome=UpdateOutcome.WAITS,
            why=f"{_describe_release_age(newer[0], now)}, but minimumAge is {followed.follow.minimum_age}",
        )
    chosen = old_enough[-1]
    older = tuple(release for release in newer if version_key(release.version) < version_key(chosen.version))
    return ReleaseChoice(outcome=UpdateOutcome.PROPOSED, why="", release=chosen, older=older)


def _check_index_is_current(followed: FollowedStream, newest: Release) -> None:
    """Raise `StaleIndex` if the fleet has an image of the channel that is newer than the newest release."""
    images = followed.find_fleet_images().values()
    latest = max(images, key=lambda image: version_key(image.spec.version), default=None)
    if latest is not None and version_key(newest.version) < version_key(latest.spec.version):
        raise StaleIndex(
            newest.index_url,
            f"the newest release in the index is {printable(newest.version)}, but BootImage/{latest.metadata.name} "
            f"already has the newer version {latest.spec.version}",
            f"try again later; if that image belongs to another channel, set its annotation {CHANNEL}",
        )


def _find_own_newest(followed: FollowedStream) -> str | None:
    """Return the newest version of a stream's own images, or None.

    An image that another stream with the same source uses does not block this stream from using the image too.
    """
    versions = [
        image.spec.version
        for image in followed.find_fleet_images().values()
        if followed.is_within_bounds(image.spec.version) and image.metadata.name not in followed.used
    ]
    if followed.current.metadata.annotations.get(SOURCE, followed.follow.source) == followed.follow.source:
        # the current image of the stream counts even if it belongs to another channel
        versions.append(followed.current.spec.version)
    return max(versions, key=version_key, default=None)


def _describe_release_age(release: Release, now: datetime) -> str:
    assert release.published is not None  # noqa: S101 - releases without a date are old enough
    version = printable(release.version)
    if release.published > now:
        return f"the release {version} has a date in the future"
    return f"the release {version} was published {format_age((now - release.published).total_seconds())} ago"


# The change


def choose_settings(followed: FollowedStream, source_settings: ImageSettings) -> ImageSettings:
    """Return the settings of the new image, either from the stream's current image or from the source.

    gitboot keeps the settings of the current image if a person changed them. gitboot uses the settings of the source if
    the current image comes from another source, or if its settings are exactly those of the source for the current
    version.
    """
    current, spec = followed.current, followed.current.spec
    current_settings = ImageSettings(
        user_data=spec.user_data,
        config_from=str(spec.config_from),
        writes_disk=spec.writes_disk,
        boots=spec.boots,
        kernel_arguments=spec.kernel_arguments,
    )
    channel = current.metadata.annotations.get(CHANNEL, followed.channel)
    is_customized = is_from_source(current, followed.follow.source, channel) and current_settings != describe_settings(
        followed.source, spec.version, channel
    )
    return current_settings if is_customized else source_settings


def check_provenance(followed: FollowedStream, image: BootImage) -> None:
    """Raise `UntrustedRelease` if the stream requires signed files, but a file of the new image has no signature."""
    if followed.stream.spec.require_provenance is not RequiredProvenance.SIGNED:
        return
    weak = [
        ".".join(map(str, (architecture, *at)))
        for architecture, artifacts in sorted(image.spec.architectures.items())
        for at, file in artifacts.files()
        if file.provenance is None or file.provenance.digest is not DigestOrigin.SIGNED
    ]
    if weak:
        raise UntrustedRelease(
            image.metadata.name,
            f"ImageStream/{followed.name} requires signed files, but these files are not signed: {format_names(weak)}",
            "use a source whose vendor signs its files",
        )


def build_files(
    followed: FollowedStream, repository: FleetRepository, image: str, built: BuiltImage | None
) -> dict[str, bytes]:
    """Return the changed file of the stream and, if the image is new, the file of the new image, by path.

    gitboot changes only spec.rollout in the stream's file. Raises `UsageError` if gitboot cannot add spec.rollout to
    the stream.
    """
    origin = repository.origins[Id("ImageStream", followed.name)]
    fields = {"image": image, "percent": str(followed.follow.percent)}
    try:
        # gitboot writes spec.rollout after spec.current
        changed = insert_field(repository.read(origin.blob), origin.document, ("spec", "current"), "rollout", fields)
    except KeyError:
        raise UsageError(
            f"{origin.path}: gitboot cannot add spec.rollout to ImageStream {followed.name}: "
            "remove the empty spec.rollout"
        ) from None
    files = {origin.path: changed}
    if built is not None:
        files[f"images/{built.name}.yaml"] = built.text.encode()
    return files


def format_message(followed: FollowedStream, release: Release, built: BuiltImage | None) -> tuple[str, str]:
    """Return the subject and the body of the commit message.

    Text from the vendor is escaped, and never appears at the beginning of a line.
    """
    image = built.name if built is not None else find_image_name(release.source, release.version)
    title = f"Begin the rollout of {image} to {followed.follow.percent} % of {followed.name}"
    channel = f", channel {release.channel}" if release.channel is not None else ""
    date_text = f"{release.published:%Y-%m-%d %H:%M} UTC" if release.published is not None else "the index has no date"
    lines = [
        f"Source: {release.source}{channel}",
        f"Version: {release.version}, current: {followed.current.spec.version}",
        f"Published: {date_text}",
        f"Index: {release.index_url}",
        f"Index signed by: {release.index_signer or 'the vendor does not sign it'}",
    ]
    if built is None:
        lines.append(f"BootImage/{image} is already in the fleet.")
    for file in built.files if built is not None else ():
        lines += ["", f"{'.'.join(map(str, file.at))}: {format_origin(file)}", f"  {file.url}"]
        lines += [f"  sha256 {file.sha256}, {file.size:,} bytes"]
    return printable(title), "".join(f"{printable(line)}\n" for line in lines)


# Proposals


class UpdatedFleet(Protocol):
    """The fleet whose streams gitboot updates."""

    path: Path
    snapshot: Snapshot  # the parent of the new commits
    repository: FleetRepository

    def validate(self, changed: Snapshot) -> FleetRepository:
        """Apply changes to the fleet, and return the changed fleet.

        Raises `InvalidRepository` if the changed fleet has errors.
        """


class StreamUpdater:
    """Proposes releases for the streams of a fleet. gitboot downloads a release only once, even for several streams."""

    def __init__(
        self,
        fleet: UpdatedFleet,
        sources: ReleaseFinder,
        progress: DownloadProgress,
        *,
        branch_prefix: str,
        now: datetime,
        dry_run: bool = False,
    ) -> None:
        self._fleet, self._sources, self._progress = fleet, sources, progress
        self._now, self._dry_run = now, dry_run
        self._prefix = build_branch_prefix(branch_prefix, fleet.path)
        # images that this run built, by name, each with the data from which it was built
        self._built: dict[str, tuple[object, BuiltImage]] = {}

    def update(self, followed: FollowedStream) -> tuple[StreamUpdate, GitbootError | None]:
        """Propose the newest release for a stream. Return the result, and the error if the update failed."""
        start = StreamUpdate(
            stream=followed.name,
            outcome=UpdateOutcome.FAILED,
            why="",
            source=followed.follow.source,
            channel=followed.channel,
        )
        try:
            return self._update_stream(followed, start), None
        except GitbootError as error:
            return structs.replace(start, why=one_line(str(error))), error

    def _update_stream(self, followed: FollowedStream, start: StreamUpdate) -> StreamUpdate:
        choice = find_unfinished_rollout(followed)
        if choice is None:
            choice = choose_release(followed, self._sources.list_releases(followed.source, followed.channel), self._now)
        if (release := choice.release) is None:
            return structs.replace(start, outcome=choice.outcome, why=choice.why)
        image = find_image_name(release.source, release.version)
        branch = self._build_branch_name(followed, release)
        is_in_fleet = image in self._fleet.repository.images
        start = structs.replace(start, version=release.version, image=image, branch=branch)
        proposal = find_proposal(self._fleet.path, branch, None if is_in_fleet else f"images/{image}.yaml")
        if proposal is None:
            update = self._propose_release(followed, start, release, is_in_fleet=is_in_fleet)
            committed = self._now
        else:
            title, _, message = proposal.message.partition("\n")
            update = structs.replace(
                start,
                commit=proposal.commit,
                title=printable(title),
                message=printable_lines(message.strip("\n")),
            )
            committed = proposal.committed
        older_branches = (self._build_branch_name(followed, older) for older in choice.older)
        superseded = (name for name in older_branches if find_proposal(self._fleet.path, name, None) is not None)
        update = structs.replace(update, supersedes=tuple(superseded))
        if release.published is None and self._now - committed < followed.minimum_age:
            return structs.replace(
                update,
                outcome=UpdateOutcome.WAITS,
                why=f"the index has no date for {image}, so minimumAge ({followed.follow.minimum_age}) starts with the "
                f"proposed commit ({committed:%Y-%m-%d %H:%M} UTC)",
            )
        return structs.replace(
            update,
            outcome=UpdateOutcome.PROPOSED,
            why=f"{image} is the newest release that matches spec.follow",
            ready=not self._dry_run,
        )

    def _build_branch_name(self, followed: FollowedStream, release: Release) -> str:
        return f"{self._prefix}{followed.name}-{find_image_name(release.source, release.version)}"

    def _propose_release(
        self, followed: FollowedStream, start: StreamUpdate, release: Release, *, is_in_fleet: bool
    ) -> StreamUpdate:
        built = None if is_in_fleet else self._build_image(followed, release)
        if is_in_fleet:
            self._check_existing_image(followed, release)
        image = find_image_name(release.source, release.version)
        files = build_files(followed, self._fleet.repository, image, built)
        if built is not None and f"images/{image}.yaml" in self._fleet.snapshot.blobs:
            raise UsageError(
                f"images/{image}.yaml already exists, but does not contain BootImage/{image}: move the file away"
            )
        changed = self._fleet.validate(self._fleet.snapshot.replace_files(files, f"update of {followed.name}"))
        before, after = followed.stream, changed.streams[followed.name]
        rollout = Rollout(image=Name(image), percent=followed.follow.percent)
        if after != replace(before, spec=replace(before.spec, rollout=rollout)):
            raise UsageError(f"gitboot cannot add spec.rollout to ImageStream {followed.name}: add this field by hand")
        title, message = format_message(followed, release, built)
        commit = None
        if not self._dry_run:
            parent, branch = self._fleet.snapshot.revision, self._build_branch_name(followed, release)
            commit = propose_commit(self._fleet.path, parent, branch, files, f"{title}\n\n{message}", self._now)
        return structs.replace(
            start,
            commit=commit,
            new=commit is not None,
            title=title,
            message=message.rstrip("\n"),
            files=built.files if built is not None else (),
            document=built.text if built is not None else "",
        )

    def _check_existing_image(self, followed: FollowedStream, release: Release) -> None:
        """Raise `UsageError` unless the existing BootImage contains the release for all architectures of a stream."""
        image = self._fleet.repository.images[find_image_name(release.source, release.version)]
        if image.spec.version != release.version:
            raise UsageError(f"BootImage/{image.metadata.name} already exists with version {image.spec.version}")
        # two channels of a source may contain the same version
        if not is_from_source(image, release.source, release.channel):
            owner = f"the channel {release.channel} in {release.source}" if release.channel else release.source
            raise UsageError(
                f"BootImage/{image.metadata.name} already exists, but it does not belong to {owner}: add the release "
                "under another name with `gitboot new image --name`"
            )
        if missing := sorted({*followed.architectures} - image.spec.architectures.keys()):
            raise UsageError(
                f"BootImage/{image.metadata.name} has no files for {missing[0]}, and gitboot does not change "
                "existing images: in each stream that follows this source, list all architectures in spec.follow"
            )
        check_provenance(followed, image)

    def _build_image(self, followed: FollowedStream, release: Release) -> BuiltImage:
        files = self._sources.describe_release(followed.source, release, followed.architectures)
        settings = choose_settings(followed, files.settings)
        labels = followed.current.metadata.labels
        name = find_image_name(release.source, release.version)
        if name not in self._built:
            image = build_image(
                files, self._sources.fetcher, self._sources.keys, self._progress, settings=settings, labels=labels
            )
            self._built[name] = ((files, settings, labels), image)
        built_from, built = self._built[name]
        if built_from != (files, settings, labels):
            raise UsageError(
                f"gitboot already proposes BootImage/{name} for another stream, with different settings or "
                "architectures; merge that proposal first"
            )
        check_provenance(followed, built.image)
        return built
