"""Find releases: read the index of a source, and select a release and its files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec import structs

from gitboot.artifacts.availability import Fetcher
from gitboot.artifacts.image_keys import VendorKeys
from gitboot.artifacts.oci import OciReference, Registries, resolve
from gitboot.errors import (
    ArtifactMissing,
    HostUnreachable,
    IncompleteRelease,
    MalformedIndex,
    NotInRegistry,
    SourceUnavailable,
    UsageError,
)
from gitboot.fleet.yaml import parse
from gitboot.image_sources.index_formats import (
    MAX_LIST_BYTES,
    ListedDigest,
    find_listed,
    is_prerelease,
    match_version,
    parse_digest_list,
)
from gitboot.image_sources.index_readers import SourceReader, read_document, version_values
from gitboot.image_sources.releases import FileRole, ImageSettings, Release, ReleaseFile, ReleaseFiles
from gitboot.jsonio import Digest
from gitboot.model.boot_image import Checksums
from gitboot.model.fields import read
from gitboot.model.image_source import BUILT_IN_SOURCES, ImageSource, IndexFormat, fill_template
from gitboot.model.scalars import version_key
from gitboot.model.server import Architecture
from gitboot.text import did_you_mean, printable


def find_source(name: str, fleet_sources: Mapping[str, ImageSource]) -> ImageSource:
    """Return an ImageSource of the fleet, or else a built-in one. Raises `UsageError` with the nearest name."""
    if (found := fleet_sources.get(name)) is not None:
        return found
    if name in BUILT_IN_SOURCES:
        return load_vendor_source(name)
    names = sorted({*fleet_sources, *BUILT_IN_SOURCES})
    hint = did_you_mean(name, names, f"use one of {', '.join(names)}, or add a document of the kind ImageSource")
    raise UsageError(f"there is no image source {printable(name)!r}; {hint}")


def choose_channel(source: ImageSource, channel: str | None) -> str | None:
    """Return a channel of a source, by default the first one. Raises `UsageError` with the nearest name."""
    channels = source.spec.channels
    if channel is None:
        return channels[0] if channels else None
    if channel in channels:
        return channel
    known = f"use one of {', '.join(channels)}" if channels else "the source has no channels"
    hint = did_you_mean(channel, channels, known)
    raise UsageError(f"the image source {source.metadata.name} has no channel {printable(channel)!r}; {hint}")


def list_releases(
    source: ImageSource,
    channel: str | None,
    reader: Fetcher,
    trust: VendorKeys,
    *,
    registries: Registries | None = None,
) -> tuple[Release, ...]:
    """Return the releases of a channel in ascending order, without prereleases. None is the default channel.

    ``registries`` is needed for sources with the format OCITags. Raises `UsageError` for an unknown channel,
    `SourceUnavailable`, `MalformedIndex` and `UntrustedIndex`.
    """
    channel = choose_channel(source, channel)
    first = next(iter(source.spec.architectures))
    indexes = SourceReader(source, channel, reader, trust)
    signer: str | None = None
    dates: dict[str, datetime | None]
    if source.spec.releases.format is IndexFormat.OCI_TAGS:
        url, tagged = _list_tags(source, channel, registries)
        dates = dict.fromkeys(tagged)
    else:
        index, entries = indexes.list_entries(first)
        url, signer, dates = index.url, index.signer, {entry.version: entry.published for entry in entries}
    versions = [each for each in dates if not is_prerelease(each) and indexes.is_of_channel(each, first)]
    if not versions:
        of = f" of {channel}" if channel is not None else ""
        hint = f"check the channel, and match in the ImageSource {source.metadata.name}"
        raise MalformedIndex(url, f"the index lists no release{of}", hint)
    return tuple(
        Release(
            source=source.metadata.name,
            channel=channel,
            version=version,
            published=dates[version],
            index_url=url,
            index_signer=signer,
        )
        for version in versions
    )


def describe_release(
    source: ImageSource,
    release: Release,
    architectures: Collection[Architecture],
    reader: Fetcher,
    trust: VendorKeys,
    *,
    registries: Registries | None = None,
) -> ReleaseFiles:
    """Return the files of a release for these architectures, or for all architectures of the source if empty.

    Raises the errors of `list_releases`, and `IncompleteRelease`.
    """
    wanted = sorted(architectures) or sorted(source.spec.architectures)
    if missing := [each for each in wanted if each not in source.spec.architectures]:
        hint = f"use {' or '.join(source.spec.architectures)}"
        raise UsageError(f"the image source {source.metadata.name} has no images for {missing[0]}; {hint}")
    if source.spec.releases.format is IndexFormat.OCI_TAGS:
        described = _describe_tag(source, release, registries)
        files = tuple(each for each in described.files if each.architecture in wanted)
        for architecture in wanted:
            if not any(each.architecture == architecture for each in files):
                cause = f"the image has no files for {architecture}"
                raise IncompleteRelease(release.index_url, cause, "choose another architecture or another release")
        return _build(source, release, files, {})
    indexes = SourceReader(source, release.channel, reader, trust)
    found = [file for each in wanted for file in indexes.describe_files(release, each)]
    lists = {each: indexes.describe_checksums(release.version, each) for each in wanted}
    return _build(source, release, found, {each: found for each, found in lists.items() if found is not None})


def _build(
    source: ImageSource,
    release: Release,
    files: Iterable[ReleaseFile],
    checksums: Mapping[Architecture, Checksums],
) -> ReleaseFiles:
    settings = describe_settings(source, release.version, release.channel)
    return ReleaseFiles(
        release=release, files=_sort(files), checksums=checksums, settings=settings, keys=source.spec.keys
    )


def describe_settings(source: ImageSource, version: str, channel: str | None) -> ImageSettings:
    """Return the settings that a source gives to the BootImage of a version."""
    image, values = source.spec.image, version_values(version)
    if channel is not None:
        values["channel"] = channel
    return ImageSettings(
        user_data=image.user_data,
        config_from=image.config_from,
        writes_disk=image.writes_disk,
        boots=image.boots,
        kernel_arguments=tuple(fill_template(each, values) for each in image.kernel_arguments),
    )


def _sort(files: Iterable[ReleaseFile]) -> tuple[ReleaseFile, ...]:
    order = list(FileRole)
    return tuple(sorted(files, key=lambda each: (each.architecture, order.index(each.role))))


# Registries


@contextmanager
def _translate_registry_errors(place: str) -> Iterator[None]:
    try:
        yield
    except HostUnreachable as error:
        raise SourceUnavailable(place, str(error), "check the network, or try again later") from error
    except NotInRegistry as error:
        raise IncompleteRelease(place, str(error), "check the name and the tag of the image") from error


def _list_tags(source: ImageSource, channel: str | None, registries: Registries | None) -> tuple[str, list[str]]:
    reference, template = _find_repository(source, channel)
    with _translate_registry_errors(str(reference)):
        tags = _require_registries(registries, reference).list_tags(reference)
    versions = {version for tag in tags if (version := match_version(tag, template)) is not None}
    return str(reference), sorted(versions, key=lambda each: (version_key(each), each))


def _find_repository(source: ImageSource, channel: str | None) -> tuple[OciReference, str]:
    """Return the repository of a source, and the template of its tags."""
    index = source.spec.releases
    values = {"channel": channel} if channel is not None else {}
    reference = OciReference.parse(f"{fill_template(index.url, values)}:latest")
    return structs.replace(reference, tag=None), fill_template(index.match or "{version}", values)


def _describe_tag(source: ImageSource, release: Release, registries: Registries | None) -> ReleaseFiles:
    reference, template = _find_repository(source, release.channel)
    reference = structs.replace(reference, tag=fill_template(template, {"version": release.version}))
    described = describe_oci_image(reference, _require_registries(registries, reference))
    roles = {FileRole(str(path[0])) for path, _ in source.spec.files.list_files()}
    return structs.replace(described, files=tuple(each for each in described.files if each.role in roles))


def _require_registries(registries: Registries | None, reference: OciReference) -> Registries:
    if registries is None:
        raise UsageError(f"gitboot may not contact {reference.host}: add --registries {reference.host}")
    return registries


def describe_oci_image(
    reference: OciReference, registries: Registries, architecture: Architecture | None = None
) -> ReleaseFiles:
    """Return the files to which a tag of a registry refers now. Their URLs have digests.

    A single manifest without an architecture is for ``architecture``. Raises `SourceUnavailable`, `IncompleteRelease`,
    and `RegistryRefused` if the registry rejects the request or the image has no files that boot.
    """
    with _translate_registry_errors(str(reference)):
        resolved = resolve(reference, registries, architecture=architecture)
    files = [
        ReleaseFile(
            architecture=Architecture(each),
            role=FileRole(role),
            url=file["url"],
            sha256=file["sha256"],
            size=file["size"],
            digest_url=str(resolved.image),  # the manifest has the digest
        )
        for each, artifacts in resolved.architectures.items()
        for role, found in artifacts.items()
        for file in (found if isinstance(found, list) else [found])
    ]
    version = reference.tag or f"sha256-{resolved.image.version.removeprefix('sha256:')[:12]}"
    return _describe_files(files, version, str(resolved.image))


def _describe_files(files: Iterable[ReleaseFile], version: str, index_url: str) -> ReleaseFiles:
    release = Release(source="", channel=None, version=version, published=None, index_url=index_url, index_signer=None)
    return ReleaseFiles(release=release, files=_sort(files), checksums={}, settings=ImageSettings(), keys=())


# URLs and local files

_BESIDE: Final = (".sha256", ".sha256sum", ".sha512")
_IN_FOLDER: Final = (
    "SHA256SUMS",
    "sha256sum.txt",
    "SHA256SUM",
    "sha256sums.txt",
    "CHECKSUM",
    "checksums.txt",
    "SHA512SUMS",
)


def describe_urls(urls: Sequence[tuple[Architecture, FileRole, str]], version: str, reader: Fetcher) -> ReleaseFiles:
    """Return files with the digests in the checksum files beside them, such as FILE.sha256 or SHA256SUMS.

    A file without a checksum file has no digest in the result. Raises `SourceUnavailable` if a server does not answer.
    """
    lists: dict[str, Mapping[str, ListedDigest]] = {}
    files = []
    for architecture, role, url in urls:
        plain, _, member = url.partition("#")
        at, listed = _find_list(plain, reader, lists)
        files.append(
            ReleaseFile(
                architecture=architecture,
                role=role,
                url=url,
                sha256=None if member else listed.sha256,
                sha512=None if member else listed.sha512,
                digest_url=at,
                archive_sha256=listed.sha256 if member else None,
                archive_sha512=listed.sha512 if member else None,
            )
        )
    return _describe_files(files, version, urls[0][2])


def _find_list(
    url: str, reader: Fetcher, lists: dict[str, Mapping[str, ListedDigest]]
) -> tuple[str | None, ListedDigest]:
    folder, _, name = url.rpartition("/")
    name = unquote(urlsplit(name).path)
    for at in (*(f"{url}{suffix}" for suffix in _BESIDE), *(f"{folder}/{each}" for each in _IN_FOLDER)):
        if at not in lists:
            try:
                content = read_document(reader, at, MAX_LIST_BYTES)
                lists[at] = parse_digest_list(content, at, name if at.startswith(url) else "")
            except (ArtifactMissing, MalformedIndex):  # some servers answer with a page instead of 404
                lists[at] = {}
        if (found := find_listed(lists[at], url)) is not None:
            return at, found
    return None, ListedDigest()


def describe_local_files(files: Sequence[tuple[Architecture, FileRole, Path, str]], version: str) -> ReleaseFiles:
    """Return files of this host with their digests and sizes. Each file has the URL that the document will name.

    Raises `IncompleteRelease` if a file cannot be read.
    """
    found = []
    for architecture, role, path, url in files:
        digest, size = sha256(), 0
        try:
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
                    size += len(chunk)
        except OSError as error:
            raise IncompleteRelease(str(path), error.strerror or str(error), "check the path of the file") from error
        found.append(
            ReleaseFile(architecture=architecture, role=role, url=url, sha256=Digest(digest.hexdigest()), size=size)
        )
    return _describe_files(found, version, files[0][3])


def read_vendor_document(name: str) -> bytes:
    """Return the document of a built-in source, with its comments."""
    return (files("gitboot.image_sources") / "vendors" / f"{name}.yaml").read_bytes()


@cache
def load_vendor_source(name: str) -> ImageSource:
    """Return a built-in source."""
    (document,) = parse(read_vendor_document(name), f"{name}.yaml").documents
    return read(ImageSource, document.value)


def list_vendor_sources() -> tuple[ImageSource, ...]:
    """Return all built-in sources, sorted by name."""
    return tuple(load_vendor_source(name) for name in BUILT_IN_SOURCES)
