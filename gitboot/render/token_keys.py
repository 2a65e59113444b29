"""Published names of tokens.

The name of a token depends on a secret key of the instance, so nobody can compute the name from the Git repository
alone.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple

from gitboot.jsonio import Digest
from gitboot.render.paths import File, Files, is_immutable
from gitboot.resolve.server_decision import TOKEN_LAYERS

_END: Final = 2  # the published name of a token keeps this number of characters at each end


class EarlierKey(NamedTuple):
    """An earlier key, and the interval in which gitboot still publishes and accepts names made with this key."""

    key: bytes | None
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """The keys of an instance.

    If there is no key, gitboot publishes the tokens from decisions, which are not secret.
    """

    key: bytes | None = field(default=None, repr=False)
    earlier: tuple[EarlierKey, ...] = field(default=(), repr=False)

    def find_next_change(self, at: datetime) -> datetime | None:
        """Return the next instant at which the interval of an earlier key begins or ends."""
        changes = (change for earlier_key in self.earlier for change in (earlier_key.since, earlier_key.until))
        return min((change for change in changes if change > at), default=None)

    def is_token_name(self, token: Digest, name: str, at: datetime) -> bool:
        earlier = (each.key for each in self.earlier if at < each.until)
        return any(_build_name(token, key) == name for key in (self.key, *earlier))

    def build_name(self, token: Digest) -> Digest:
        return _build_name(token, self.key)

    def build_names(self, tokens: Iterable[Digest], at: datetime) -> PublishedNames:
        known = sorted(set(tokens))
        earlier = (each.key for each in self.earlier if each.since <= at < each.until)
        return PublishedNames(_TokenRenamer(known, self.key), tuple(_TokenRenamer(known, key) for key in earlier))


NO_KEYS: Final = TokenKeys()


def _build_name(token: Digest, key: bytes | None) -> Digest:
    """Return the published name of a token.

    The name keeps the length and the first and last characters of the token, so that it can also replace the token
    inside base64 text.
    """
    if key is None:
        return token
    return Digest(token[:_END] + hmac.digest(key, token.encode(), "sha256").hex()[_END:-_END] + token[-_END:])


class _TokenRenamer:
    def __init__(self, tokens: Iterable[Digest], key: bytes | None) -> None:
        self.names = {token: _build_name(token, key) for token in tokens}
        self._replacements = [
            pair
            for token, name in self.names.items()
            if token != name
            for pair in _encode_pairs(token.encode(), name.encode(), TOKEN_LAYERS)
        ]
        self._renamed: dict[tuple[bytes, str], File] = {}

    def rename_tokens(self, file: File) -> File:
        if (renamed := self._renamed.get((file.content, file.content_type))) is None:
            text = file.content
            for token, name in self._replacements:
                text = text.replace(token, name)
            renamed = self._renamed[file.content, file.content_type] = File(text, file.content_type)
        return renamed


class PublishedNames:
    """The tokens of one server, and their published names in the files for its machine."""

    def __init__(self, current: _TokenRenamer, earlier: tuple[_TokenRenamer, ...]) -> None:
        self._current, self._earlier = current, earlier
        self._tokens = {name: token for renamer in (*earlier, current) for token, name in renamer.names.items()}

    def find_token(self, name: str) -> Digest:
        return self._tokens.get(Digest(name), Digest(name))

    def rename_files(self, files: Files, kept_paths: Collection[str] = ()) -> dict[str, File]:
        """Replace tokens with their published names in the paths and contents of files.

        Immutable files and ``kept_paths`` keep their tokens. If the path of a file contains a name from an earlier key,
        the file contains only names from that key, so that a client with the earlier name cannot read a newer name.
        """
        renamed: dict[str, File] = {}
        for path, file in files.items():
            token = next((token for token in self._current.names if token in path), None)
            if is_immutable(path) or path in kept_paths:
                renamed[path] = file
            elif token is None:
                renamed[path] = self._current.rename_tokens(file)
            else:
                for renamer in (*self._earlier, self._current):
                    renamed[path.replace(token, renamer.names[token])] = renamer.rename_tokens(file)
        return renamed


def _encode_pairs(token: bytes, name: bytes, depth: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield pairs of a token and its published name: unencoded, and in each form that they can have in base64 text.

    base64 encodes three bytes as four characters, so a token has three encodings, depending on its offset. The
    characters at both ends also depend on neighbouring bytes, but are the same for the token and its name.
    """
    yield token, name
    if depth:
        for encoded_token, encoded_name in zip(_encode_at_offsets(token), _encode_at_offsets(name), strict=True):
            yield from _encode_pairs(encoded_token, encoded_name, depth - 1)


def _encode_at_offsets(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the base64 of ``text`` at offsets 0, 1 and 2, without the characters that depend on neighbouring bytes."""
    bits = 8 * len(text)
    return (
        b2a_base64(text, newline=False)[: bits // 6],
        b2a_base64(b"\0" + text, newline=False)[2 : (bits + 8) // 6],
        b2a_base64(b"\0\0" + text, newline=False)[3 : (bits + 16) // 6],
    )
