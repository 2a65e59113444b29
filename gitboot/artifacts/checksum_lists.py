"""Checksum lists: read the digests in SHA256SUMS, SHA512SUMS, .DIGESTS, Debian's Release and simplestreams."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from gitboot.jsonio import build_json_decoder


class ListedFile(NamedTuple):
    """A file in a checksum list."""

    algorithm: str  # sha256 or sha512
    digest: str  # lower-case hexadecimal digits
    name: str  # as the list has it; "" if the list is one digest without a name
    size: int | None = None  # bytes; None: the list does not state it


def read_checksum_list(content: bytes) -> tuple[ListedFile, ...]:
    """Return the files in a list, in its order. Lines and digests of other forms are ignored.

    gitboot reads the output of sha256sum and sha512sum, with and without --tag, Flatcar's .DIGESTS, of which a line
    such as ``# SHA512 HASH`` begins each section, the fields SHA256 and SHA512 of a Debian Release file, and an index
    of simplestreams in the format products:1.0.
    """
    if content.lstrip().startswith(b"{"):
        return tuple(_read_simplestreams(content))
    found: list[ListedFile] = []
    section = field = ""
    for line in content.decode(errors="replace").splitlines():
        if begun := _SECTION.fullmatch(line):
            section = begun[1].lower()
        elif begun := _FIELD.fullmatch(line):
            field = begun[1].lower()
        elif tagged := _TAGGED.fullmatch(line):
            found.append(ListedFile(tagged[1].lower(), tagged[3].lower(), tagged[2]))
        elif plain := _PLAIN.fullmatch(line):
            algorithm = section or _ALGORITHMS.get(len(plain[1]), "")
            found.append(ListedFile(algorithm, plain[1].lower(), plain[2] or ""))
        elif released := _RELEASED.fullmatch(line):
            found.append(ListedFile(field, released[1].lower(), released[3], int(released[2])))
    return tuple(each for each in found if _ALGORITHMS.get(len(each.digest)) == each.algorithm)


def _read_simplestreams(content: bytes) -> Iterator[ListedFile]:
    try:
        index = _decode_index(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    for product in index.products.values() if index.format == "products:1.0" else ():
        for release in product.versions.values():
            for item in release.items.values():
                if _SHA256.fullmatch(item.sha256):
                    yield ListedFile("sha256", item.sha256, item.path, item.size)


class _Item(msgspec.Struct):
    path: str = ""
    sha256: str = ""
    size: int | None = None


class _Release(msgspec.Struct):
    items: dict[str, _Item] = {}


class _Product(msgspec.Struct):
    versions: dict[str, _Release] = {}


class _Index(msgspec.Struct):
    format: str = ""
    products: dict[str, _Product] = {}


_decode_index: Final = build_json_decoder(_Index)
_SHA256: Final = re.compile("[0-9a-f]{64}")
_ALGORITHMS: Final = {64: "sha256", 128: "sha512"}  # by the length of their digests
_SECTION: Final = re.compile(r"# ([A-Za-z0-9-]{1,20}) HASH")
_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,40}): ?.*")  # of a Release file, deb822(5)
_DIGEST: Final = "[0-9A-Fa-f]{32,128}"
_TAGGED: Final = re.compile(rf"\\?(SHA256|SHA512) \((.+)\) = ({_DIGEST})")
_PLAIN: Final = re.compile(rf"\\?({_DIGEST})(?: [ *](.+))?\s*")
_RELEASED: Final = re.compile(rf" ({_DIGEST}) +([0-9]{{1,18}}) (\S+)")
