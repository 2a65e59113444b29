"""Image builder: download and verify the files of a release, and write its BootImage document."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from hashlib import sha256, sha512
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

from msgspec import Struct

from gitboot.artifacts.archives import ArchiveFetcher
from gitboot.artifacts.availability import CHUNK, LARGEST_ARTIFACT, ArtifactHead, Content, Fetcher
from gitboot.artifacts.signatures import ImageSigner, SignatureCheck, VendorKeys
from gitboot.errors import (
    ArtifactMissing,
    AssetError,
    HostUnreachable,
    IncompleteRelease,
    MalformedIndex,
    SourceUnavailable,
    UntrustedRelease,
)
from gitboot.fleet.documents import read_resource, render_document
from gitboot.fleet.yaml import parse
from gitboot.image_sources.index_formats import FileRole, ImageSettings, Release, ReleaseFile, ReleaseFiles
from gitboot.jsonio import Digest
from gitboot.model.boot_image import BootImage, DigestOrigin, Provenance
from gitboot.model.fields import InvalidDocument, to_yaml_value
from gitboot.model.scalars import (
    NAME,
    ArtifactUrl,
    Malformed,
    build_document_name,
    parse_artifact_url,
    quote_value,
    split_member_url,
)
from gitboot.model.scalars import Path as FieldPath
from gitboot.model.server import Architecture

SOURCE: Final = "gitboot.dev/source"  # the annotations that gitboot writes into BootImages
CHANNEL: Final = "gitboot.dev/channel"


class DownloadProgress(Protocol):
    """Shows the user the progress of downloads, one file at a time."""

    def begin(self, name: str, size: int | None) -> None:
        """Show that the download of a file begins.

        ``size`` is the size in bytes, or None if the server does not report the size.
        """

    def advance(self, size: int) -> None:
        """Add ``size`` downloaded bytes to the progress of the current file."""


class BuiltFile(Struct, frozen=True, kw_only=True):
    """A file that gitboot has downloaded and verified for a new BootImage."""

    at: FieldPath  # the path of the field below spec.architectures, such as ("x86_64", "initrds", 0)
    url: str
    sha256: Digest
    size: int
    provenance: Provenance


class BuiltImage(Struct, frozen=True, kw_only=True):
    """A new BootImage, both as an object and as the text of its YAML file."""

    image: BootImage
    text: str
    files: tuple[BuiltFile, ...]

    @property
    def name(self) -> str:
        return self.image.metadata.name


def find_image_name(source: str, version: str) -> str:
    """Return the name of the BootImage for a release. The name has the form SOURCE-VERSION."""
    return build_document_name(f"{source}-{version}")


def build_image(
    release_files: ReleaseFiles,
    fetcher: Fetcher,
    keys: VendorKeys,
    progress: DownloadProgress,
    *,
    name: str | None = None,
    settings: ImageSettings | None = None,
    labels: Mapping[str, str] | None = None,
) -> BuiltImage:
    """Download and verify all files of a release, and return its BootImage.

    The same files always produce the same text.

    A signature takes precedence over a published digest. If the vendor has signing keys, one of these keys must have
    signed each file. If ``settings`` is given, it replaces the settings of the source.

    Raises:

    - `SourceUnavailable` if a server does not respond.
    - `IncompleteRelease` if a file is missing.
    - `UntrustedRelease` if a signature or a digest is wrong.
    - `MalformedIndex` if the BootImage would be invalid.
    - `AssetError` if gitboot cannot store a download.
    """
    release = release_files.release
    _check_version(release)
    for file in release_files.files:
        _check_url(release_files, file)
    for file in release_files.files:
        _check_exists(fetcher, file)
    with TemporaryDirectory(prefix="gitboot-") as folder:
        downloads = _Downloads(fetcher, Path(folder), progress)
        draft = _Document(
            release_files,
            settings=settings or release_files.settings,
            name=name or find_image_name(release.source, release.version),
            labels=labels or {},
            measured=[(file, _measure_file(downloads, file)) for file in release_files.files],
        )
        progress.begin("signatures", None)
        check = SignatureCheck(downloads, keys, "", only=release_files.keys or None)
        with closing(check), _convert_errors(draft.title):
            signers = _find_signers(draft, check, release_files)
    origins = {at: _find_origin(release_files, file, signers.get(at)) for at, file, _ in draft.list_files()}
    return BuiltImage(
        image=draft.read(origins),  # this also validates the document
        text=draft.render(origins),
        files=tuple(
            BuiltFile(at=at, url=file.url, sha256=facts.sha256, size=facts.size, provenance=origins[at])
            for at, file, facts in draft.list_files()
        ),
    )


def _check_version(release: Release) -> None:
    if not re.fullmatch("[A-Za-z0-9][A-Za-z0-9._+~:-]{0,99}", release.version):
        raise MalformedIndex(
            release.index_url,
            f"the version {quote_value(release.version)} contains characters that gitboot does not accept",
            "a version may contain only letters, digits, and the characters . _ + ~ : -",
        )


# Downloads


class _MeasuredFile(Struct, frozen=True, kw_only=True):
    sha256: Digest
    sha512: str
    size: int


_REPORT: Final = "the vendor's files do not match the index: try again later, and report the mismatch to the vendor"


class _Downloads:
    """A fetcher that stores downloaded files in a folder, so that gitboot does not download the same file twice.

    Only `measure` stores files. Digest lists and signatures are not stored.
    """

    def __init__(self, fetcher: Fetcher, folder: Path, progress: DownloadProgress) -> None:
        self._fetcher, self._folder, self._progress = fetcher, folder, progress
        self._known: dict[str, tuple[Path, ArtifactHead, _MeasuredFile]] = {}

    def head(self, url: str) -> ArtifactHead:
        return self._known[url][1] if url in self._known else self._fetcher.head(url)

    @contextmanager
    def read(self, url: str, offset: int = 0) -> Iterator[Content]:
        if url not in self._known:
            with self._fetcher.read(url, offset) as content:
                yield content
            return
        path, head, _ = self._known[url]
        with path.open("rb") as stored:
            stored.seek(offset)
            yield Content(head, offset, iter(lambda: stored.read(CHUNK), b""))

    def measure(self, url: str, max_bytes: int) -> _MeasuredFile:
        """Download and store a file, and return the digests and the size of the file."""
        if url not in self._known:
            path = self._folder / str(len(self._known))
            digest_256, digest_512 = sha256(), sha512()
            size = 0
            source = ArchiveFetcher(self) if split_member_url(url) is not None else self._fetcher
            with source.read(url) as content, path.open("wb") as stored:
                self._progress.begin(url.rpartition("/")[2], content.head.size)
                for chunk in content.chunks:
                    size += len(chunk)
                    if size > max_bytes:
                        raise IncompleteRelease(url, f"the file is larger than {max_bytes:,} bytes", _REPORT)
                    digest_256.update(chunk)
                    digest_512.update(chunk)
                    stored.write(chunk)
                    self._progress.advance(len(chunk))
            facts = _MeasuredFile(sha256=Digest(digest_256.hexdigest()), sha512=digest_512.hexdigest(), size=size)
            self._known[url] = path, content.head, facts
        return self._known[url][2]


def _check_url(release_files: ReleaseFiles, file: ReleaseFile) -> None:
    try:
        parse_artifact_url(file.url)
    except Malformed as error:
        raise MalformedIndex(release_files.release.index_url, error.message, error.hint) from None


def _check_exists(fetcher: Fetcher, file: ReleaseFile) -> None:
    """Raise an error if the server does not have a file.

    gitboot calls this function for all files before it downloads gigabytes of data.
    """
    if _is_local(file):
        return
    try:
        with _convert_errors(file.url):
            head = fetcher.head(file.url)
    except SourceUnavailable:  # some servers reject HEAD requests, so only the download shows whether the file exists
        return
    if None not in (file.size, head.size) and file.size != head.size:
        raise IncompleteRelease(
            file.url, f"the index lists a size of {file.size} bytes, but the server reports {head.size} bytes", _REPORT
        )


def _measure_file(downloads: _Downloads, file: ReleaseFile) -> _MeasuredFile:
    if _is_local(file) and file.sha256 is not None and file.size is not None:
        return _MeasuredFile(sha256=file.sha256, sha512=file.sha512 or "", size=file.size)
    max_bytes = file.size if file.size is not None else LARGEST_ARTIFACT
    with _convert_errors(file.url):
        if (member := split_member_url(file.url)) is not None:
            archive = downloads.measure(member[0], LARGEST_ARTIFACT)
            _check_digests(member[0], archive, file.archive_sha256, file.archive_sha512, file.digest_url)
        facts = downloads.measure(file.url, max_bytes)
    _check_digests(file.url, facts, file.sha256, file.sha512, file.digest_url)
    if file.size is not None and file.size != facts.size:
        raise IncompleteRelease(
            file.url, f"the file is {facts.size} bytes long, but the index lists {file.size} bytes", _REPORT
        )
    return facts


def _check_digests(
    url: str, facts: _MeasuredFile, sha256: str | None, sha512: str | None, digest_url: str | None
) -> None:
    for algorithm, expected, found in (("sha256", sha256, facts.sha256), ("sha512", sha512, facts.sha512)):
        if expected not in (None, found):
            raise UntrustedRelease(
                url,
                f"the file's {algorithm} digest is {found}, but {digest_url or 'the index'} states {expected}",
                _REPORT,
            )


def _is_local(file: ReleaseFile) -> bool:
    """Return whether a file is on this host. gitboot has already read such files."""
    return file.url.startswith("assets:")


@contextmanager
def _convert_errors(place: str) -> Iterator[None]:
    try:
        yield
    except ArtifactMissing as error:
        raise IncompleteRelease(
            place, str(error), "the release may be incomplete: try again later, or choose another version"
        ) from error
    except HostUnreachable as error:
        raise SourceUnavailable(place, str(error)) from error
    except OSError as error:
        raise AssetError(
            f"{place}: gitboot cannot store the download ({error.strerror}); set TMPDIR to a folder with more space"
        ) from error


# Provenance


def _find_signers(draft: _Document, check: SignatureCheck, release_files: ReleaseFiles) -> dict[FieldPath, ImageSigner]:
    """Return the signers of the files, by the path of the file below spec.architectures.

    Raises `UntrustedRelease` if a signature is not valid, or if the source requires a signature that is missing.
    """
    signers: dict[FieldPath, ImageSigner] = {}
    declared_unsigned = {at for at, file, _ in draft.list_files() if file.is_unsigned}
    for file_check in check.files(draft.read()):
        at = file_check.at[2:]
        place = f"{draft.title}, {'.'.join(map(str, at))}"
        if file_check.signer is not None:
            signers[at] = file_check.signer
        elif file_check.fault is not None and at not in declared_unsigned:
            raise UntrustedRelease(
                place,
                f"the file is {file_check.fault}",
                "do not boot the file; try again later, or, if the vendor's key is missing, add it with --image-keys",
            )
        elif release_files.keys and at not in declared_unsigned:
            raise UntrustedRelease(
                place,
                "the file has no signature",
                "this source requires a signature for each file: check the index, or ask the vendor for the signature",
            )
    return signers


def _find_origin(release_files: ReleaseFiles, file: ReleaseFile, signer: ImageSigner | None) -> Provenance:
    if signer is not None:
        checksums = release_files.checksums.get(file.architecture)
        signature = to_yaml_value(file.signature).values() if file.signature is not None else ()
        at = next(iter(signature), checksums.url if checksums is not None else None)
        return Provenance(digest=DigestOrigin.SIGNED, key=signer.key, url=ArtifactUrl(at) if at else None)
    if file.digest_url is not None:
        return Provenance(digest=DigestOrigin.PUBLISHED, url=ArtifactUrl(file.digest_url))
    return Provenance(digest=DigestOrigin.FIRST_SEEN)


def format_origin(file: BuiltFile) -> str:
    """Return a phrase that states where a file's digest comes from, such as a signature."""
    origin = file.provenance
    match origin.digest:
        case DigestOrigin.SIGNED:
            return f"signed by {origin.key} ({origin.url})"
        case DigestOrigin.PUBLISHED:
            return f"published without a signature ({origin.url})"
        case DigestOrigin.FIRST_SEEN:
            return "the vendor does not publish a digest, so gitboot computed one on the first download"


# Document


class _Document:
    """The BootImage document for a release, with or without the provenance of the files."""

    def __init__(
        self,
        release_files: ReleaseFiles,
        *,
        settings: ImageSettings,
        name: str,
        labels: Mapping[str, str],
        measured: list[tuple[ReleaseFile, _MeasuredFile]],
    ) -> None:
        self._files, self._measured = release_files, measured
        self._settings, self._name, self._labels = settings, name, labels

    @property
    def title(self) -> str:
        """The title for messages: the source and the version, or the name of the image if there is no source."""
        release = self._files.release
        return f"{release.source} {release.version}" if release.source else self._name

    def list_files(self) -> Iterator[tuple[FieldPath, ReleaseFile, _MeasuredFile]]:
        """Yield each file with the path of its field in the document, and with its measured digests and size.

        The path is relative to spec.architectures.
        """
        initrds: dict[Architecture, int] = {}
        for file, facts in self._measured:
            at: FieldPath = (str(file.architecture), str(file.role))
            if file.role is FileRole.INITRD:
                number = initrds.get(file.architecture, 0)
                initrds[file.architecture] = number + 1
                at = (*at, number)
            yield at, file, facts

    def read(self, origins: Mapping[FieldPath, Provenance] | None = None) -> BootImage:
        """Parse the rendered document, and return the BootImage. Raises `MalformedIndex` if the document is invalid."""
        place = self._files.release.index_url
        parsed = parse(self.render(origins or {}).encode(), self._name)
        try:
            if parsed.problems:
                raise MalformedIndex(place, parsed.problems[0].message, _REPORT)
            image = read_resource(parsed.documents[0].value)
        except InvalidDocument as error:
            fault = error.faults[0]
            message, hint = fault.error.describe(".".join(map(str, fault.path)))
            raise MalformedIndex(place, message, hint) from None
        assert isinstance(image, BootImage)  # noqa: S101 - `render` writes this kind
        return image

    def render(self, origins: Mapping[FieldPath, Provenance]) -> str:
        """Return the text of the document. The files without a path in ``origins`` get no provenance."""
        release = self._files.release
        channel = f", channel {release.channel}" if release.channel is not None else ""
        date_text = f", published {release.published:%Y-%m-%d}" if release.published is not None else ""
        comments = [f"{self.title}{channel}{date_text}. Written by gitboot from {release.index_url}"]
        unsigned = [
            ".".join(map(str, at))
            for at, _, _ in self.list_files()
            if at in origins and origins[at].digest is DigestOrigin.FIRST_SEEN
        ]
        if unsigned:
            comments.append(
                f"The vendor does not publish digests for these files, so gitboot computed them: {', '.join(unsigned)}"
            )
        comments.append("yaml-language-server: $schema=../.gitboot/schemas/BootImage.json")
        annotations = {SOURCE: release.source}
        if release.channel is not None:
            annotations[CHANNEL] = release.channel
        spec = {
            "version": release.version,
            **self._render_settings(),
            "architectures": self._render_architectures(origins),
        }
        return render_document(
            comments,
            "BootImage",
            self._name,
            spec,
            labels=self._labels,
            annotations=annotations if NAME.fullmatch(release.source) else None,
        )

    def _render_architectures(self, origins: Mapping[FieldPath, Provenance]) -> dict[str, dict[str, Any]]:
        architectures: dict[str, dict[str, Any]] = {}
        for at, file, facts in self.list_files():
            artifact = {"url": file.url, "sha256": facts.sha256, "size": facts.size}
            if file.signature is not None:
                artifact["signature"] = to_yaml_value(file.signature)
            if at in origins:
                artifact["provenance"] = to_yaml_value(origins[at])
            fields = architectures.setdefault(str(file.architecture), {})
            if file.role is FileRole.INITRD:
                fields.setdefault(str(file.role), []).append(artifact)
            else:
                fields[str(file.role)] = artifact
        for architecture, checksums in self._files.checksums.items():
            architectures.setdefault(str(architecture), {})["checksums"] = {
                field: value for field, value in to_yaml_value(checksums).items() if value is not False
            }
        return dict(sorted(architectures.items()))

    def _render_settings(self) -> dict[str, Any]:
        """Return the settings that differ from the default values."""
        settings = self._settings
        default = ImageSettings()
        values = {
            "userData": (settings.user_data, default.user_data),
            "configFrom": (settings.config_from, default.config_from),
            "writesDisk": (settings.writes_disk, default.writes_disk),
            "boots": (settings.boots, default.boots),
            "kernelArguments": (list(settings.kernel_arguments), []),
        }
        return {field: value for field, (value, usual) in values.items() if value != usual}
