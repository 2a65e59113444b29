"""Find releases: read the indexes of a source, select a release, and describe its files."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from msgspec import Struct, structs

from gitboot.artifacts.availability import Fetcher
from gitboot.artifacts.oci import OciReference, Registries, resolve
from gitboot.artifacts.signatures import ImageSigner, SignatureKind, VendorKeys
from gitboot.errors import (
    ArtifactMissing,
    HostUnreachable,
    IncompleteRelease,
    MalformedIndex,
    NotInRegistry,
    SourceUnavailable,
    UntrustedIndex,
    UsageError,
)
from gitboot.fleet.yaml import parse
from gitboot.git.signatures import UnlistedKey, UntrustedSignature
from gitboot.image_sources.index_formats import (
    MAX_BYTES,
    MAX_LIST_BYTES,
    FileRole,
    ImageSettings,
    IndexedFile,
    IndexEntry,
    IndexQuery,
    ListedDigest,
    Release,
    ReleaseFile,
    ReleaseFiles,
    find_listed_digest,
    match_version,
    parse_digest_list,
    parse_files,
    parse_index,
)
from gitboot.jsonio import Digest
from gitboot.model.boot_image import Checksums, Signature, SignedList
from gitboot.model.fields import read
from gitboot.model.image_source import (
    BUILT_IN_SOURCES,
    ChecksumsTemplate,
    ImageSource,
    IndexFormat,
    SignatureTemplate,
    SourceFile,
    fill_template,
)
from gitboot.model.scalars import ArtifactUrl, Malformed, parse_artifact_url
from gitboot.model.server import Architecture
from gitboot.text import format_names, format_suggestion, is_prerelease, printable, version_key

_LONGEST_READ_S: Final = 180.0  # the total time for one index or list, in addition to the timeouts of the HTTP client
_LARGEST_SIGNATURE: Final = 1 << 20


def read_document(fetcher: Fetcher, url: str, max_bytes: int) -> bytes:
    """Return the content at a URL.

    Raises `SourceUnavailable` if the server does not respond, `ArtifactMissing` if it responds with 404, and
    `MalformedIndex` if the content is too large.
    """
    content = bytearray()
    ends_s = time.monotonic() + _LONGEST_READ_S
    try:
        with fetcher.read(url) as answer:
            for chunk in answer.chunks:
                content += chunk
                if len(content) > max_bytes:
                    raise MalformedIndex(
                        url,
                        f"the file is larger than {max_bytes:,} bytes",
                        "check the URL; gitboot does not read indexes or lists that are this large",
                    )
                if time.monotonic() > ends_s:
                    raise SourceUnavailable(url, f"the download took more than {_LONGEST_READ_S:g} s")
    except HostUnreachable as error:
        raise SourceUnavailable(url, str(error), "check the network and the URL, or try again later") from error
    return bytes(content)


class VerifiedIndex(Struct, frozen=True, kw_only=True):
    """The content of an index. If the vendor signs the index, gitboot has verified the signature."""

    url: str
    content: bytes
    signer: str | None  # the key that signed the index; None: the vendor does not sign the index


class SourceReader:
    """Reads the indexes and digest lists of one source and one channel. The reader downloads each URL only once."""

    def __init__(self, source: ImageSource, channel: str | None, fetcher: Fetcher, keys: VendorKeys) -> None:
        self._spec, self._name, self._channel = source.spec, source.metadata.name, channel
        self._fetcher, self._keys = fetcher, keys
        self._indexes: dict[str, VerifiedIndex] = {}
        self._lists: dict[str, Mapping[str, ListedDigest]] = {}
        if self._spec.keys and not any(map(keys.compute_key_digest, self._spec.keys)):
            raise UntrustedIndex(
                f"the ImageSource {self._name}",
                f"gitboot does not have any of this source's public keys: {format_names(self._spec.keys)}",
                "put the vendor's public key into the --image-keys directory (in CI, the variable GITBOOT_IMAGE_KEYS "
                "contains its path)",
            )

    # Indexes

    def list_entries(self, architecture: Architecture) -> tuple[VerifiedIndex, tuple[IndexEntry, ...]]:
        """Return the index for an architecture, and all releases in the index in ascending order.

        The releases include prereleases.
        """
        index = self._spec.releases
        values = self._build_values(architecture)
        url = self._fill_url(index.url, values)
        if url not in self._indexes:
            self._indexes[url] = self._fetch_index(url)
        query = IndexQuery(
            url=url,
            match=fill_template(index.match or "{version}", values),
            channel=self._channel or "",
            architecture=values["arch"],
        )
        return self._indexes[url], parse_index(index.format, self._indexes[url].content, query)

    def is_in_channel(self, version: str, architecture: Architecture) -> bool:
        """Return whether a version begins with the prefix that the source requires for this channel."""
        prefix = self._spec.releases.starts_with
        return prefix is None or version.startswith(fill_template(prefix, self._build_values(architecture)))

    def _fetch_index(self, url: str) -> VerifiedIndex:
        index = self._spec.releases
        content = self._read(url, MAX_BYTES[index.format])
        signer: ImageSigner | None = None
        try:
            if index.signature is not None:
                signature = self._read_signature(self._fill_url(index.signature, {"url": url}), url)
                signer = self._find_index_signer(content, signature)
            elif index.clear_signed:
                content, signer = self._keys.read_clear_signed(content, only=self._spec.keys)
        except UntrustedSignature as error:
            raise self._build_untrusted_error(
                url, f"the index is {error}", is_other_key=isinstance(error, UnlistedKey)
            ) from error
        return VerifiedIndex(url=url, content=content, signer=signer.key if signer is not None else None)

    def _find_index_signer(self, content: bytes, signature: bytes) -> ImageSigner:
        digest = Digest(sha256(content).hexdigest())
        with TemporaryDirectory(prefix="gitboot-") as folder:
            file = Path(folder, "index")
            file.write_bytes(content)
            return self._keys.find_signer(SignatureKind.OPENPGP, signature, file, digest, only=self._spec.keys)

    def _read(self, url: str, max_bytes: int) -> bytes:
        try:
            return read_document(self._fetcher, url, max_bytes)
        except ArtifactMissing as error:
            raise SourceUnavailable(
                url, str(error), f"check the URLs of the ImageSource {self._name}, or try again later"
            ) from error

    def _read_signature(self, url: str, signed_url: str) -> bytes:
        try:
            return read_document(self._fetcher, url, _LARGEST_SIGNATURE)
        except ArtifactMissing as error:
            raise self._build_untrusted_error(signed_url, f"the index is not signed ({url}: {error})") from error

    def _build_untrusted_error(self, url: str, cause: str, *, is_other_key: bool = False) -> UntrustedIndex:
        hint = "try again later, and contact the vendor if the problem persists"
        if is_other_key:
            hint = (
                "if the vendor has a new key, verify the key's fingerprint, and add it to `keys` in the "
                f"ImageSource {self._name}"
            )
        return UntrustedIndex(url, cause, hint)

    # Files

    def describe_files(self, release: Release, architecture: Architecture) -> Iterator[ReleaseFile]:
        """Yield the files of a release for an architecture. Raises `IncompleteRelease` if a file is missing."""
        values = self._build_values(architecture, release.version)
        index_url, indexed = self._find_indexed_files(release, architecture, values)
        for path, file in self._spec.files.list_files():
            yield self._describe_file(file, FileRole(str(path[0])), architecture, values, index_url, indexed)

    def _find_indexed_files(
        self, release: Release, architecture: Architecture, values: Mapping[str, str]
    ) -> tuple[str, Mapping[str, IndexedFile]]:
        """Return the URL of the index that describes the files of a release, and these files by name.

        Both are empty if the source specifies all of its files by URL.
        """
        spec = self._spec
        if spec.described_by is not None:
            url = self._fill_url(spec.described_by.url, values)
            return url, parse_files(spec.described_by.format, self._read(url, MAX_BYTES[spec.described_by.format]), url)
        if all(file.name is None for _, file in spec.files.list_files()):
            return "", {}
        index, entries = self.list_entries(architecture)
        entry = next((each for each in entries if each.version == release.version), None)
        if entry is None:
            raise IncompleteRelease(
                index.url,
                f"the index has no release {printable(release.version)} for {architecture}",
                "choose a release that the index lists, or another architecture",
            )
        return index.url, entry.files

    def _describe_file(
        self,
        file: SourceFile,
        role: FileRole,
        architecture: Architecture,
        values: Mapping[str, str],
        index_url: str,
        indexed: Mapping[str, IndexedFile],
    ) -> ReleaseFile:
        found, digest_url = self._find_file(file, values, index_url, indexed)
        if (template := self._spec.checksums) is not None:
            list_url = self._fill_url(template.url, values)
            listed = find_listed_digest(self._read_digest_list(template, list_url), found.url)
            if listed is not None:
                found = self._add_digests(found, listed, list_url)
                digest_url = list_url
        member = f"#{fill_template(file.member, values)}" if file.member is not None else ""
        url = self._check_url(f"{found.url}{member}")
        signature = self._find_signature(file, found)
        if file.member is not None:  # the size, the digests and the signature belong to the archive
            return ReleaseFile(
                architecture=architecture,
                role=role,
                url=url,
                signature=signature,
                digest_url=digest_url,
                archive_sha256=found.sha256,
                archive_sha512=found.sha512,
                is_unsigned=not file.signed,
            )
        return ReleaseFile(
            architecture=architecture,
            role=role,
            url=url,
            sha256=found.sha256,
            sha512=found.sha512,
            size=found.size,
            signature=signature,
            digest_url=digest_url,
            is_unsigned=not file.signed,
        )

    def _find_file(
        self, file: SourceFile, values: Mapping[str, str], index_url: str, indexed: Mapping[str, IndexedFile]
    ) -> tuple[IndexedFile, str | None]:
        """Return the description of a file, and the URL of the index if the index contains its digest."""
        if file.name is None:
            return IndexedFile(url=self._fill_url(file.url or "", values)), None
        name = fill_template(file.name, values)
        if (found := indexed.get(name)) is None:
            raise IncompleteRelease(
                index_url,
                f"the release has no file {printable(name)}",
                "choose another release, or correct the name in the ImageSource",
            )
        if file.url is not None:
            found = structs.replace(found, url=self._fill_url(file.url, values))
        return found, index_url if found.sha256 is not None else None

    def _find_signature(self, file: SourceFile, indexed_file: IndexedFile) -> Signature | None:
        if file.signature is not None:
            return self._fill_signature(file.signature, indexed_file.url)
        if indexed_file.signature is not None and self._spec.keys:
            return Signature(openpgp=self._check_url(indexed_file.signature))
        return None

    # Lists of digests

    def describe_checksums(self, version: str, architecture: Architecture) -> Checksums | None:
        """Return the signed digest list for an architecture, in the form that documents use.

        Return None if there is no signed digest list.
        """
        template = self._spec.checksums
        if template is None or not template.is_signed:
            return self._describe_signed_index(architecture)
        values = self._build_values(architecture, version)
        url = self._fill_url(template.url, values)
        listed_in: SignedList | None = None
        if (outer := template.listed_in) is not None:
            outer_url = self._fill_url(outer.url, values)
            listed_in = SignedList(url=outer_url, signature=self._fill_signature(outer.signature, outer_url))
        return Checksums(
            url=url,
            signature=self._fill_signature(template.signature, url),
            clear_signed=template.clear_signed,
            listed_in=listed_in,
        )

    def _describe_signed_index(self, architecture: Architecture) -> Checksums | None:
        """Return a signed index that contains file digests, in the same form as a signed digest list.

        Return None if the source has no such index.
        """
        index = self._spec.releases
        has_digests = self._spec.described_by is None and any(file.name for _, file in self._spec.files.list_files())
        if not has_digests or not (index.clear_signed or index.signature):
            return None
        url = self._fill_url(index.url, self._build_values(architecture))
        signed_url = self._fill_url(index.signature, {"url": url}) if index.signature is not None else None
        return Checksums(
            url=ArtifactUrl(url),
            signature=Signature(openpgp=signed_url) if signed_url is not None else None,
            clear_signed=index.clear_signed,
        )

    def _read_digest_list(self, template: ChecksumsTemplate, url: str) -> Mapping[str, ListedDigest]:
        if url not in self._lists:
            content = self._read(url, MAX_LIST_BYTES)
            if template.clear_signed:
                try:
                    content, _ = self._keys.read_clear_signed(content, only=self._spec.keys)
                except UntrustedSignature as error:
                    raise self._build_untrusted_error(
                        url, f"the list is {error}", is_other_key=isinstance(error, UnlistedKey)
                    ) from error
            self._lists[url] = parse_digest_list(content, url)
        return self._lists[url]

    def _add_digests(self, file: IndexedFile, listed_digest: ListedDigest, list_url: str) -> IndexedFile:
        if None not in (file.sha256, listed_digest.sha256) and file.sha256 != listed_digest.sha256:
            raise MalformedIndex(
                list_url,
                f"the list and the index have different digests for {printable(file.url)}",
                "try again later; the vendor may be publishing a release now",
            )
        return structs.replace(file, sha256=file.sha256 or listed_digest.sha256, sha512=listed_digest.sha512)

    # Templates

    def _build_values(self, architecture: Architecture, version: str | None = None) -> dict[str, str]:
        """Return the values of the placeholders in templates.

        If ``version`` is None, the result contains no values for version placeholders.
        """
        values = {"arch": self._spec.architectures[architecture]}
        if self._channel is not None:
            values["channel"] = self._channel
        if version is not None:
            values |= build_version_values(version)
        if (base := self._spec.base_urls.get(architecture)) is not None:
            values["base"] = fill_template(base, values)
        return values

    def _fill_signature(self, template: SignatureTemplate | None, url: str) -> Signature | None:
        if template is None:
            return None
        return Signature(
            openpgp=self._fill_url(template.openpgp, {"url": url}) if template.openpgp is not None else None,
            minisign=self._fill_url(template.minisign, {"url": url}) if template.minisign is not None else None,
        )

    def _fill_url(self, template: str, values: Mapping[str, str]) -> ArtifactUrl:
        return self._check_url(fill_template(template, values))

    def _check_url(self, url: str) -> ArtifactUrl:
        try:
            return parse_artifact_url(url)
        except Malformed as error:
            raise MalformedIndex(
                printable(url[:300]), error.message, f"correct the URL templates in the ImageSource {self._name}"
            ) from error


def build_version_values(version: str) -> dict[str, str]:
    """Return the values of the placeholders {version}, {major} and {minor} for a version such as 3.14.2."""
    major, _, rest = version.partition(".")
    return {"version": version, "major": major, "minor": rest.partition(".")[0]}


def find_source(name: str, fleet_sources: Mapping[str, ImageSource]) -> ImageSource:
    """Return the fleet's ImageSource with this name, or else the built-in one.

    Raises `UsageError` if neither exists. The message suggests a similar name.
    """
    if (found := fleet_sources.get(name)) is not None:
        return found
    if name in BUILT_IN_SOURCES:
        return load_vendor_source(name)
    names = sorted({*fleet_sources, *BUILT_IN_SOURCES})
    hint = format_suggestion(name, names, f"use one of {', '.join(names)}, or add an ImageSource document")
    raise UsageError(f"there is no image source {printable(name)!r}; {hint}")


def choose_channel(source: ImageSource, channel: str | None) -> str | None:
    """Return a channel of a source, or the first one by default.

    Raises `UsageError` if the source has no such channel.
    """
    channels = source.spec.channels
    if channel is None:
        return channels[0] if channels else None
    if channel in channels:
        return channel
    known = f"use one of {', '.join(channels)}" if channels else "the source has no channels"
    hint = format_suggestion(channel, channels, known)
    raise UsageError(f"the image source {source.metadata.name} has no channel {printable(channel)!r}; {hint}")


class ReleaseFinder(NamedTuple):
    """Finds the releases of image sources, and verifies signatures with the given keys."""

    fetcher: Fetcher
    keys: VendorKeys
    registries: Registries

    def list_releases(self, source: ImageSource, channel: str | None) -> tuple[Release, ...]:
        """Return the releases of a channel in ascending order, without prereleases.

        If ``channel`` is None, the function uses the default channel.

        Raises:

        - `UsageError` if the channel is unknown.
        - `SourceUnavailable` if the server does not respond.
        - `MalformedIndex` if gitboot cannot parse the index.
        - `UntrustedIndex` if no trusted key signed the index.
        """
        channel = choose_channel(source, channel)
        first = next(iter(source.spec.architectures))
        reader = SourceReader(source, channel, self.fetcher, self.keys)
        signer: str | None = None
        dates: dict[str, datetime | None]  # by version
        if source.spec.releases.format is IndexFormat.OCI_TAGS:
            url, tags = _list_tags(source, channel, self.registries)
            dates = dict.fromkeys(tags)
        else:
            index, entries = reader.list_entries(first)
            url, signer = index.url, index.signer
            dates = {entry.version: entry.published for entry in entries}
        versions = [each for each in dates if not is_prerelease(each) and reader.is_in_channel(each, first)]
        if not versions:
            raise MalformedIndex(
                url,
                f"the index lists no releases{f' in the channel {channel}' if channel is not None else ''}",
                f"check the channel, and the field `match` in the ImageSource {source.metadata.name}",
            )
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
        self, source: ImageSource, release: Release, architectures: Collection[Architecture]
    ) -> ReleaseFiles:
        """Return the files of a release for these architectures, or for all architectures if the list is empty.

        Raises the same errors as `list_releases`. Raises `IncompleteRelease` if a file is missing.
        """
        wanted = sorted(set(architectures) or source.spec.architectures)
        if missing := [each for each in wanted if each not in source.spec.architectures]:
            hint = f"use {' or '.join(source.spec.architectures)}"
            raise UsageError(f"the image source {source.metadata.name} has no images for {missing[0]}; {hint}")
        files = list[ReleaseFile]()
        checksums: dict[Architecture, Checksums] = {}
        if source.spec.releases.format is IndexFormat.OCI_TAGS:
            tagged = _describe_tag(source, release, self.registries).files
            for architecture in wanted:
                found = [file for file in tagged if file.architecture == architecture]
                if not found:
                    raise IncompleteRelease(
                        release.index_url,
                        f"the image has no files for {architecture}",
                        "choose another architecture or another release",
                    )
                files += found
        else:
            reader = SourceReader(source, release.channel, self.fetcher, self.keys)
            for architecture in wanted:
                files += reader.describe_files(release, architecture)
            for architecture in wanted:
                listed = reader.describe_checksums(release.version, architecture)
                if listed is not None:
                    checksums[architecture] = listed
        return ReleaseFiles(
            release=release,
            files=_sort_files(files),
            checksums=checksums,
            settings=describe_settings(source, release.version, release.channel),
            keys=source.spec.keys,
        )


def describe_settings(source: ImageSource, version: str, channel: str | None) -> ImageSettings:
    """Return the fields that a source sets in the BootImage for a version, such as the kernel arguments."""
    image, values = source.spec.image, build_version_values(version)
    if channel is not None:
        values["channel"] = channel
    return ImageSettings(
        user_data=image.user_data,
        config_from=image.config_from,
        writes_disk=image.writes_disk,
        boots=image.boots,
        kernel_arguments=tuple(fill_template(each, values) for each in image.kernel_arguments),
    )


def _sort_files(files: Iterable[ReleaseFile]) -> tuple[ReleaseFile, ...]:
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
        raise IncompleteRelease(place, str(error), "check the image's name and tag") from error


def _list_tags(source: ImageSource, channel: str | None, registries: Registries) -> tuple[str, list[str]]:
    reference, template = _find_repository(source, channel)
    with _translate_registry_errors(str(reference)):
        tags = registries.list_tags(reference)
    versions = {version for tag in tags if (version := match_version(tag, template)) is not None}
    return str(reference), sorted(versions, key=lambda each: (version_key(each), each))


def _find_repository(source: ImageSource, channel: str | None) -> tuple[OciReference, str]:
    index = source.spec.releases
    values = {"channel": channel} if channel is not None else {}
    reference = OciReference.parse(f"{fill_template(index.url, values)}:latest")
    return structs.replace(reference, tag=None), fill_template(index.match or "{version}", values)


def _describe_tag(source: ImageSource, release: Release, registries: Registries) -> ReleaseFiles:
    reference, template = _find_repository(source, release.channel)
    reference = structs.replace(reference, tag=fill_template(template, {"version": release.version}))
    described = describe_oci_image(reference, registries)
    roles = {FileRole(str(path[0])) for path, _ in source.spec.files.list_files()}
    return structs.replace(described, files=tuple(each for each in described.files if each.role in roles))


def describe_oci_image(
    reference: OciReference, registries: Registries, architecture: Architecture | None = None
) -> ReleaseFiles:
    """Return the files of the image that a registry tag currently resolves to. The URLs of the files contain digests.

    If the tag names a single manifest without an architecture, the files are for ``architecture``.

    Raises:

    - `SourceUnavailable` if the registry does not respond.
    - `IncompleteRelease` if the tag does not exist.
    - `RegistryRefused` if the registry rejects the request, or if the image contains no bootable files.
    """
    with _translate_registry_errors(str(reference)):
        resolved = resolve(reference, registries, architecture=architecture)
    files = [
        ReleaseFile(
            architecture=Architecture(name),
            role=FileRole(role),
            url=file["url"],
            sha256=file["sha256"],
            size=file["size"],
            digest_url=str(resolved.image),  # the manifest contains the digest of the file
        )
        for name, artifacts in resolved.architectures.items()
        for role, value in artifacts.items()
        for file in (value if isinstance(value, list) else [value])
    ]
    digest = resolved.image.version.removeprefix("sha256:")
    return _describe_files(files, reference.tag or f"sha256-{digest[:12]}", str(resolved.image))


def _describe_files(files: Iterable[ReleaseFile], version: str, index_url: str) -> ReleaseFiles:
    release = Release(source="", channel=None, version=version, published=None, index_url=index_url, index_signer=None)
    return ReleaseFiles(release=release, files=_sort_files(files), checksums={}, settings=ImageSettings(), keys=())


# URLs and local files

_CHECKSUM_NAMES: Final = (
    "SHA256SUMS",
    "sha256sum.txt",
    "SHA256SUM",
    "sha256sums.txt",
    "CHECKSUM",
    "checksums.txt",
    "SHA512SUMS",
)


def describe_urls(urls: Sequence[tuple[Architecture, FileRole, str]], version: str, fetcher: Fetcher) -> ReleaseFiles:
    """Describe the files at these URLs, with digests from checksum files in the same folders.

    A checksum file has a name such as FILE.sha256 or SHA256SUMS. If there is no checksum file for a file, the result
    contains no digest for the file. Raises `SourceUnavailable` if a server does not respond.
    """
    lists: dict[str, Mapping[str, ListedDigest]] = {}
    files = []
    for architecture, role, url in urls:
        file_url, _, member = url.partition("#")
        list_url, listed = _find_digest_list(file_url, fetcher, lists)
        files.append(
            ReleaseFile(
                architecture=architecture,
                role=role,
                url=url,
                sha256=None if member else listed.sha256,
                sha512=None if member else listed.sha512,
                digest_url=list_url,
                archive_sha256=listed.sha256 if member else None,
                archive_sha512=listed.sha512 if member else None,
            )
        )
    return _describe_files(files, version, urls[0][2])


def _find_digest_list(
    url: str, fetcher: Fetcher, lists: dict[str, Mapping[str, ListedDigest]]
) -> tuple[str | None, ListedDigest]:
    """Return the URL of a checksum file for a file, and the digests in it. Store each checksum file in ``lists``."""
    folder, _, name = url.rpartition("/")
    name = unquote(urlsplit(name).path)
    sidecar_urls = (f"{url}{suffix}" for suffix in (".sha256", ".sha256sum", ".sha512"))
    for list_url in (*sidecar_urls, *(f"{folder}/{list_name}" for list_name in _CHECKSUM_NAMES)):
        if list_url not in lists:
            try:
                content = read_document(fetcher, list_url, MAX_LIST_BYTES)
                lists[list_url] = parse_digest_list(content, list_url, name if list_url.startswith(url) else "")
            except (ArtifactMissing, MalformedIndex):  # some servers return a web page instead of 404
                lists[list_url] = {}
        if (listed := find_listed_digest(lists[list_url], url)) is not None:
            return list_url, listed
    return None, ListedDigest()


def describe_local_files(files: Sequence[tuple[Architecture, FileRole, Path, str]], version: str) -> ReleaseFiles:
    """Describe files on this host with their digests and sizes, and with the URLs that the BootImage will contain.

    Raises `IncompleteRelease` if a file cannot be read.
    """
    described = []
    for architecture, role, path, url in files:
        digest, size = sha256(), 0
        try:
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):  # a pipe has no size
                    digest.update(chunk)
                    size += len(chunk)
        except OSError as error:
            raise IncompleteRelease(str(path), error.strerror or str(error), "check the file's path") from error
        described.append(
            ReleaseFile(architecture=architecture, role=role, url=url, sha256=Digest(digest.hexdigest()), size=size)
        )
    return _describe_files(described, version, files[0][3])


# Built-in sources


def read_vendor_document(name: str) -> bytes:
    """Return the text of a built-in ImageSource document, including the comments."""
    return (files("gitboot.image_sources") / "vendors" / f"{name}.yaml").read_bytes()


@cache
def load_vendor_source(name: str) -> ImageSource:
    """Return the built-in ImageSource with this name."""
    (document,) = parse(read_vendor_document(name), f"{name}.yaml").documents
    return read(ImageSource, document.value)


def list_vendor_sources() -> tuple[ImageSource, ...]:
    """Return all built-in ImageSources, sorted by name."""
    return tuple(load_vendor_source(name) for name in BUILT_IN_SOURCES)
