"""Index formats of vendors: parse lists of releases, files and digests.

gitboot does not trust the text of an index. Documents cannot supply regular expressions for this text, and each parser
raises only `MalformedIndex`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

import msgspec
import yaml
from msgspec import Struct

from gitboot.artifacts.signatures import read_checksum_list
from gitboot.errors import MalformedIndex
from gitboot.jsonio import Digest, build_json_decoder
from gitboot.model.boot_image import Checksums, Signature
from gitboot.model.image_source import FilesFormat, IndexFormat
from gitboot.model.scalars import Malformed, parse_artifact_url
from gitboot.model.server import Architecture
from gitboot.text import printable, version_key


class FileRole(StrEnum):
    """The role of a file in a boot, named after the field of Artifacts that contains the file."""

    KERNEL = "kernel"
    INITRD = "initrds"
    ROOTFS = "rootfs"
    UKI = "uki"
    ISO = "iso"


class Release(Struct, frozen=True, kw_only=True):
    """A version that the index of a source lists."""

    source: str  # the name of the ImageSource
    channel: str | None
    version: str
    published: datetime | None  # None: the index does not contain a date
    index_url: str
    index_signer: str | None  # the key that signed the index; None: the vendor does not sign the index


class ReleaseFile(Struct, frozen=True, kw_only=True):
    """One file of a release, as described in the vendor's metadata. gitboot has not verified these values."""

    architecture: Architecture
    role: FileRole
    url: str  # a URL that contains the version; https://…tar.gz#PATH for a file in an archive
    sha256: Digest | None = None
    sha512: str | None = None  # 128 lower-case hexadecimal digits
    size: int | None = None  # in bytes
    signature: Signature | None = None
    is_unsigned: bool = False  # the source states that no signature of the vendor covers this file
    digest_url: str | None = None  # the URL of the list or index that contains the digest; None: there is no digest
    # The digest of the archive that contains the file, from the same list. If it is set, sha256 and sha512 are None.
    archive_sha256: Digest | None = None
    archive_sha512: str | None = None


class ImageSettings(Struct, frozen=True, kw_only=True):
    """The fields that a source sets in a BootImage in addition to the files."""

    user_data: str = "None"
    config_from: str = "KernelArguments"
    writes_disk: bool = True
    boots: int = 1
    kernel_arguments: tuple[str, ...] = ()


class ReleaseFiles(Struct, frozen=True, kw_only=True):
    """All files of a release for one or more architectures."""

    release: Release
    files: tuple[ReleaseFile, ...]  # sorted by architecture and role; initrds keep their order
    checksums: Mapping[Architecture, Checksums]  # signed digest lists, for files that do not have their own signatures
    settings: ImageSettings
    keys: tuple[str, ...]  # fingerprints of the keys that may sign; empty: the vendor does not sign files


class IndexQuery(Struct, frozen=True, kw_only=True):
    """The criteria that select the index entries for one channel and one architecture."""

    url: str  # the URL of the index
    match: str = "{version}"  # the template for names of entries; the only placeholder in it is {version}
    channel: str = ""
    architecture: str = ""  # the vendor's name for the architecture


class IndexedFile(Struct, frozen=True, kw_only=True):
    """The description of a file in an index."""

    url: str
    sha256: Digest | None = None
    sha512: str | None = None
    size: int | None = None
    signature: str | None = None  # the URL of a detached OpenPGP signature


class IndexEntry(Struct, frozen=True, kw_only=True):
    """The entry of one release in an index."""

    version: str
    published: datetime | None = None
    # the files by their names in the index; empty if the format does not describe files
    files: Mapping[str, IndexedFile] = {}


class ListedDigest(Struct, frozen=True, kw_only=True):
    """The digests that a digest list contains for one file name."""

    sha256: Digest | None = None
    sha512: str | None = None


# Indexes


MAX_BYTES: Final[Mapping[IndexFormat | FilesFormat, int]] = {
    **dict.fromkeys(IndexFormat, 8 << 20),
    IndexFormat.ALPINE_RELEASES: 1 << 20,
    IndexFormat.DIRECTORY_LISTING: 2 << 20,
    IndexFormat.TEXT: 1 << 20,
    FilesFormat.TREEINFO: 1 << 20,
}
MAX_LIST_BYTES: Final = 8 << 20  # the maximum size of a digest list
_MOST_ENTRIES: Final = 10_000  # in an index
_MOST_LINES: Final = 200_000  # in a digest list
_MOST_LINKS: Final = 20_000  # in a directory listing


def parse_index(index_format: IndexFormat, content: bytes, query: IndexQuery) -> tuple[IndexEntry, ...]:
    """Return the releases in an index, in ascending order.

    Raises `MalformedIndex` if gitboot cannot parse the index.
    """
    entries: dict[str, IndexEntry] = {}  # by version
    for entry in _PARSERS[index_format](content, query):
        entries.setdefault(entry.version, entry)
        if len(entries) > _MOST_ENTRIES:
            raise _make_index_error(query.url, f"the index lists more than {_MOST_ENTRIES:,} releases")
    return tuple(sorted(entries.values(), key=lambda entry: (version_key(entry.version), entry.version)))


def parse_files(files_format: FilesFormat, content: bytes, url: str) -> Mapping[str, IndexedFile]:
    """Parse a metadata document about one release, and return the files of the release by name.

    Raises `MalformedIndex` if gitboot cannot parse the document.
    """
    match files_format:
        case FilesFormat.TREEINFO:
            return _parse_treeinfo(content, url)


_VERSION: Final = re.compile(r"[0-9][0-9A-Za-z.+~_-]{0,63}")


def match_version(name: str, template: str) -> str | None:
    """Return the version that a name contains, or None if the name does not match the template."""
    prefix, _, suffix = template.partition("{version}")
    if len(name) <= len(prefix) + len(suffix) or not name.startswith(prefix) or not name.endswith(suffix):
        return None
    version = name[len(prefix) : len(name) - len(suffix)]
    return version if _VERSION.fullmatch(version) else None


# Lists of digests


def parse_digest_list(content: bytes, url: str, bare_name: str = "") -> Mapping[str, ListedDigest]:
    """Return the digests in a digest list by file name. Lines in other formats are ignored.

    A leading ``./`` is removed from file names. A digest without a file name, or of standard input (``-``), belongs to
    the file ``bare_name``. Raises `MalformedIndex` if the list contains no digests, or two digests for one name.
    """
    if content.count(b"\n") > _MOST_LINES:
        raise _make_index_error(url, f"the list has more than {_MOST_LINES:,} lines")
    digests_by_name: dict[str, dict[str, str]] = {}  # the digests of each file by algorithm
    for file in read_checksum_list(content):
        name = file.name.strip()
        if name in ("", "-"):
            name = bare_name
        name = name.removeprefix("./")
        if not name:
            continue
        digests = digests_by_name.setdefault(name, {})
        if digests.setdefault(file.algorithm, file.digest) != file.digest:
            raise _make_index_error(url, f"the list has two different digests for {_quote_text(name)}")
    if not digests_by_name:
        raise _make_index_error(url, "the file is not a list of SHA-256 or SHA-512 digests")
    return {
        name: ListedDigest(
            sha256=Digest(digests["sha256"]) if "sha256" in digests else None, sha512=digests.get("sha512")
        )
        for name, digests in digests_by_name.items()
    }


def find_listed_digest(digests: Mapping[str, ListedDigest], file_url: str) -> ListedDigest | None:
    """Return the digests that a digest list contains for the file at a URL, or None if the file is not listed.

    If several listed names match the end of the URL, use the longest name.
    """
    names = unquote(urlsplit(file_url).path).split("/")
    endings = ("/".join(names[first:]) for first in range(len(names)))
    return next((digests[ending] for ending in endings if ending in digests), None)


# JSON

_decode_json: Final[Callable[[bytes], Any]] = build_json_decoder(Any)


def _read_json(content: bytes, url: str) -> Any:
    try:
        return _decode_json(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _make_index_error(url, f"the index is not JSON: {_quote_text(str(error))}") from None


T = TypeVar("T")


def _get_value(value: Any, kind: type[T], *steps: str) -> T | None:
    """Return the value at a path in nested mappings, or None if there is no value of the type ``kind``."""
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, kind) and not (kind is int and isinstance(value, bool)) else None


_TYPE_NAMES: Final[Mapping[type, str]] = {dict: "mapping", list: "list", str: "text", int: "number"}


def _require_value(value: Any, kind: type[T], url: str, *steps: str) -> T:
    found = _get_value(value, kind, *steps)
    if found is None:
        place = ".".join(printable(step[:60]) for step in steps) or "the top level"
        raise _make_index_error(url, f"the index has no {_TYPE_NAMES[kind]} at {place}")
    return found


def _parse_coreos_stream(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    """Parse stream metadata of Fedora CoreOS and RHCOS (coreos/stream-metadata-go).

    File names have the form PLATFORM/FORMAT/FILE.
    """
    stream = _require_value(_read_json(content, query.url), dict, query.url)
    platforms = _require_value(stream, dict, query.url, "architectures", query.architecture, "artifacts")
    release = _require_value(platforms, str, query.url, "metal", "release")
    if (version := match_version(release, query.match)) is None:
        raise _make_index_error(query.url, f"{_quote_text(release)} is not a version")
    files = {}
    for platform, artifact in platforms.items():
        if _get_value(artifact, str, "release") != release:
            continue  # the file belongs to a different build
        for format_name, described_files in (_get_value(artifact, dict, "formats") or {}).items():
            for file, described in described_files.items() if isinstance(described_files, dict) else ():
                signature = _get_value(described, str, "signature")
                files[f"{platform}/{format_name}/{file}"] = IndexedFile(
                    url=_read_url(_require_value(described, str, query.url, "location"), query.url),
                    sha256=_read_sha256(_require_value(described, str, query.url, "sha256"), query.url),
                    signature=_read_url(signature, query.url) if signature is not None else None,
                )
    published = parse_time(_get_value(stream, str, "metadata", "last-modified"))
    yield IndexEntry(version=version, published=published, files=files)


def _parse_flatcar_releases(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    """Parse releases-CHANNEL.json from www.flatcar.org. The keys of this mapping are versions, in any order."""
    for name, described in _require_value(_read_json(content, query.url), dict, query.url).items():
        version = match_version(name, query.match)
        architectures = _get_value(described, list, "architectures")
        has_architecture = architectures is None or not query.architecture or query.architecture in architectures
        is_in_channel = _get_value(described, str, "channel") in (None, query.channel)
        if version is None or not has_architecture or not is_in_channel:
            continue
        yield IndexEntry(version=version, published=parse_time(_get_value(described, str, "release_date")))


def _parse_github_releases(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    """Parse a page of GitHub's list of releases. Each file has the name of its release asset."""
    for release in _require_value(_read_json(content, query.url), list, query.url):
        version = match_version(_require_value(release, str, query.url, "tag_name"), query.match)
        if version is None or _get_value(release, bool, "draft") or _get_value(release, bool, "prerelease"):
            continue
        files = {}
        for asset in _get_value(release, list, "assets") or ():
            digest = (_get_value(asset, str, "digest") or "").removeprefix("sha256:")
            files[_require_value(asset, str, query.url, "name")] = IndexedFile(
                url=_read_url(_require_value(asset, str, query.url, "browser_download_url"), query.url),
                sha256=_read_sha256(digest, query.url) if digest else None,
                size=_read_size(_get_value(asset, int, "size")),
            )
        yield IndexEntry(version=version, published=parse_time(_get_value(release, str, "published_at")), files=files)


def _parse_simplestreams(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    """Parse a simplestreams index in the format products:1.0.

    Entry names have the form PRODUCT/VERSION. Each file has the name of its item in the index.
    """
    index = _require_value(_read_json(content, query.url), dict, query.url)
    if _get_value(index, str, "format") != "products:1.0":
        raise _make_index_error(query.url, "the index is not in the simplestreams format products:1.0")
    root = f"{query.url.partition('/streams/')[0]}/"
    for product, described in _require_value(index, dict, query.url, "products").items():
        for serial, release in (_get_value(described, dict, "versions") or {}).items():
            if (version := match_version(f"{product}/{serial}", query.match)) is None:
                continue
            files = {}
            for name, item in _require_value(release, dict, query.url, "items").items():
                path = _require_value(item, str, query.url, "path")
                digest = _get_value(item, str, "sha256")
                files[name] = IndexedFile(
                    url=_read_url(_join_url(root, path.lstrip("/")), query.url),
                    sha256=_read_sha256(digest, query.url) if digest is not None else None,
                    size=_read_size(_get_value(item, int, "size")),
                )
            yield IndexEntry(version=version, files=files)


def _parse_opensuse_distributions(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    """Parse distributions.json from get.opensuse.org, which contains a list of releases for each product.

    Entry names have the form PRODUCT/VERSION.
    """
    products = _require_value(_read_json(content, query.url), dict, query.url)
    names = []
    for product, releases in products.items():
        for release in releases if isinstance(releases, list) else ():
            if _get_value(release, str, "state") == "Stable":
                names.append(f"{product}/{_get_value(release, str, 'version')}")
    return _match_names(names, query)


def _parse_json_list(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    """Parse a JSON list of versions, or of objects that contain a version.

    An example is https://factory.talos.dev/versions.
    """
    for item in _require_value(_read_json(content, query.url), list, query.url):
        name = item if isinstance(item, str) else _require_value(item, str, query.url, "version")
        if (version := match_version(name, query.match)) is not None:
            yield IndexEntry(version=version, published=parse_time(_get_value(item, str, "date")))


# Other formats


def _parse_alpine_releases(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    """Parse Alpine's latest-releases.yaml, which is a list of files. The name of each entry is the file name."""
    for item in _read_flat_mappings(content, query.url):
        name, sha256, size = item.get("file", ""), item.get("sha256"), item.get("size", "")
        if (version := match_version(name, query.match)) is None:
            continue
        file = IndexedFile(
            url=_read_url(_join_url(query.url, name), query.url),
            sha256=_read_sha256(sha256, query.url) if sha256 is not None else None,
            size=int(size) if re.fullmatch("[0-9]{1,15}", size) else None,
        )
        published = parse_time(" ".join(filter(None, (item.get("date"), item.get("time")))))
        yield IndexEntry(version=version, published=published, files={name: file})


def _read_flat_mappings(content: bytes, url: str) -> Iterator[dict[str, str]]:
    """Yield the mappings in a YAML list, with scalars as text.

    The function reads parser events one by one, so deeply nested input does not cause recursion.
    """
    mapping: dict[str, str] = {}
    depth = 0
    key: str | None = None  # the key whose value comes next
    try:
        for event in yaml.parse(content, Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                if depth == 0 and not isinstance(event, yaml.SequenceStartEvent):
                    raise _make_index_error(url, "expected a list, found a mapping")
                depth += 1
                key = None
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
                key = None
                if depth == 1:
                    yield mapping
                    mapping = {}
            elif isinstance(event, yaml.ScalarEvent) and depth == 2:
                if key is None:
                    key = event.value
                else:
                    mapping[key] = event.value
                    key = None
            elif isinstance(event, yaml.AliasEvent):
                key = None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        message = " ".join(str(error).split())
        raise _make_index_error(url, f"the index is not YAML: {_quote_text(message)}") from None


def _match_names(names: Iterable[str], query: IndexQuery) -> Iterator[IndexEntry]:
    versions = (match_version(name, query.match) for name in names)
    return (IndexEntry(version=version) for version in versions if version is not None)


def _parse_checksum_list(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    return _match_names(parse_digest_list(content, query.url), query)


_LINK: Final = re.compile(rb"href=[\"']?([^\"'<>\s]{1,300})", re.IGNORECASE)


def _parse_directory_listing(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    """Parse the directory listing of a web server such as Apache or nginx.

    The name of each entry is the name of a file or a folder.
    """
    folder = query.url if query.url.endswith("/") else f"{query.url}/"
    links = _LINK.findall(content)
    if not 0 < len(links) <= _MOST_LINKS:
        raise _make_index_error(
            query.url, f"the page has {len(links):,} links, but gitboot expects 1 to {_MOST_LINKS:,}"
        )
    for link in links:
        target = _join_url(folder, html.unescape(link.decode(errors="replace")))
        if target.startswith(folder):
            name = unquote(target.removeprefix(folder).partition("/")[0])
            if (version := match_version(name, query.match.removesuffix("/"))) is not None:
                yield IndexEntry(version=version)


def _parse_text(content: bytes, query: IndexQuery) -> Iterator[IndexEntry]:
    return _match_names((line.strip() for line in content.decode(errors="replace").split("\n")), query)


def _parse_treeinfo(content: bytes, url: str) -> Mapping[str, IndexedFile]:
    """Parse a .treeinfo file (productmd, treeinfo-1.0).

    File names are paths relative to the folder that contains the .treeinfo file.
    """
    files: dict[str, IndexedFile] = {}
    section = ""
    is_treeinfo = False
    for line in map(str.strip, content.decode(errors="replace").split("\n")):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            is_treeinfo |= section == "checksums"
        elif section == "checksums" and not line.startswith((";", "#")):
            name, _, value = map(str.strip, line.partition("="))
            algorithm, _, digest = map(str.strip, value.partition(":"))
            if algorithm == "sha256":
                files[name] = IndexedFile(url=_read_url(_join_url(url, name), url), sha256=_read_sha256(digest, url))
    if not is_treeinfo:
        raise _make_index_error(url, "the file is not a .treeinfo file, because it has no [checksums] section")
    return files


def _join_url(base: str, name: str) -> str:
    """Resolve a name relative to the URL of a document. The result may be an invalid URL."""
    try:
        return urljoin(base, name)
    except ValueError:
        return name


_PARSERS: Final[Mapping[IndexFormat, Callable[[bytes, IndexQuery], Iterable[IndexEntry]]]] = {
    IndexFormat.COREOS_STREAM: _parse_coreos_stream,
    IndexFormat.FLATCAR_RELEASES: _parse_flatcar_releases,
    IndexFormat.GITHUB_RELEASES: _parse_github_releases,
    IndexFormat.SIMPLESTREAMS: _parse_simplestreams,
    IndexFormat.ALPINE_RELEASES: _parse_alpine_releases,
    IndexFormat.OPENSUSE_DISTRIBUTIONS: _parse_opensuse_distributions,
    IndexFormat.JSON_LIST: _parse_json_list,
    IndexFormat.CHECKSUM_LIST: _parse_checksum_list,
    IndexFormat.DIRECTORY_LISTING: _parse_directory_listing,
    IndexFormat.TEXT: _parse_text,
}


# Values


def parse_time(text: str | None) -> datetime | None:
    """Parse a time in an index and convert it to UTC, in whole seconds. Return None if the text is not a time.

    A time without a UTC offset counts as UTC.
    """
    if not text or len(text) > 40:
        return None
    try:
        time = datetime.fromisoformat(text.strip().replace(" +", "+").replace(" Z", "Z"))
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        return time.astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        return None


def _read_sha256(text: str, url: str) -> Digest:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise _make_index_error(url, f"{_quote_text(text)} is not a SHA-256 digest")
    return Digest(text)


def _read_size(size: int | None) -> int | None:
    return size if size is not None and 0 <= size < 1 << 50 else None


def _read_url(text: str, url: str) -> str:
    """Return a URL from an index.

    Raises `MalformedIndex` if documents may not contain the URL, if the URL has a fragment, or if an index at an https
    URL contains a URL that is not https.
    """
    try:
        found = parse_artifact_url(text)
    except Malformed as error:
        raise _make_index_error(
            url, f"the index contains a URL that gitboot does not accept: {error.message}"
        ) from None
    if not found.startswith(("https://", "http://")) or "#" in found:
        raise _make_index_error(url, f"the index contains a URL that gitboot does not accept: {_quote_text(found)}")
    if urlsplit(url).scheme == "https" and not found.startswith("https://"):
        raise _make_index_error(url, f"the index URL uses https, but the file URL {_quote_text(found)} does not")
    return found


def _quote_text(text: str) -> str:
    shown = text if len(text) <= 120 else f"{text[:120]}…"
    return f'"{printable(shown)}"'


def _make_index_error(url: str, cause: str) -> MalformedIndex:
    return MalformedIndex(url, cause, "open the URL in a browser, and adapt the ImageSource if the format has changed")
