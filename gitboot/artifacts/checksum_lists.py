"""Checksum lists: read the digests in SHA256SUMS, SHA512SUMS, .DIGESTS and Debian's Release."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class ListedFile(NamedTuple):
    """A file in a checksum list."""

    algorithm: str  # sha256 or sha512
    digest: str  # lower-case hexadecimal digits
    name: str  # as the list has it; "" if the list is one digest without a name
    size: int | None = None  # bytes; None: the list does not state it


def read_checksum_list(content: bytes) -> tuple[ListedFile, ...]:
    """Return the files in a list, in its order. Lines and digests of other forms are ignored.

    gitboot reads the output of sha256sum and sha512sum, with and without --tag, Flatcar's .DIGESTS, of which a line
    such as ``# SHA512 HASH`` begins each section, the fields SHA256 and SHA512 of a Debian Release file, and the values
    of sha256 and sha512 in JSON, such as simplestreams.
    """
    if content.lstrip().startswith(b"{"):
        listed = (ListedFile(found[1], found[2], "") for found in _IN_JSON.finditer(content.decode(errors="replace")))
        return tuple(each for each in listed if _ALGORITHMS.get(len(each.digest)) == each.algorithm)
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


_ALGORITHMS: Final = {64: "sha256", 128: "sha512"}  # by the length of their digests
_SECTION: Final = re.compile(r"# ([A-Za-z0-9-]{1,20}) HASH")
_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,40}): ?.*")  # of a Release file, deb822(5)
_DIGEST: Final = "[0-9A-Fa-f]{32,128}"
_TAGGED: Final = re.compile(rf"\\?(SHA256|SHA512) \((.+)\) = ({_DIGEST})")
_PLAIN: Final = re.compile(rf"\\?({_DIGEST})(?: [ *](.+))?\s*")
_IN_JSON: Final = re.compile(r'"(sha256|sha512)"\s{0,9}:\s{0,9}"([0-9a-f]{64,128})"')
_RELEASED: Final = re.compile(rf" ({_DIGEST}) +([0-9]{{1,18}}) (\S+)")
