"""OpenPGP keys in a ring of gitboot's own, and what gpg says of signatures made with them.

The program gets what it needs as arguments and files: no configuration, keyring or agent of a user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gitboot.child_processes import Ended, ask
from gitboot.errors import SourceError, UsageError
from gitboot.fleet.revision import Signer


class Distrusted(Exception):
    """A signature that proves nothing: why, in words that follow "it is"."""


class Unlisted(Distrusted):
    """It may be as good as any, but its key is not among these."""


class Keyring:
    """OpenPGP keys, in a home of gpg's that nobody else uses."""

    def __init__(self, home: Path) -> None:
        self._home = home

    @classmethod
    def made(cls, files: Sequence[Path], home: Path) -> Keyring:
        """A keyring of the public keys in these files."""
        home.mkdir(mode=0o700)
        keyring = cls(home)
        for path in files:
            if "IMPORT_OK" not in keyring._gpg("--import", str(path.absolute())).output:
                raise UsageError(f"{path} has no OpenPGP public key that gpg can read")
        return keyring

    def signer(self, signature: bytes, payload: bytes | Path, *, takes_text: bool = True) -> Signer:
        """Whose key has signed these bytes, or this file; raises `Distrusted`. The name is as the key has it.

        A signature of a text covers every text that differs only in the ends of its lines: RFC 4880, 5.2.1.
        """
        of, given = (str(payload.absolute()), b"") if isinstance(payload, Path) else ("-", payload)
        with TemporaryDirectory(dir=self._home) as folder:
            detached = Path(folder, "signature")
            detached.write_bytes(self._only_signatures(signature, Path(folder)))
            return _judged(self._gpg("--verify", str(detached), of, given=given), takes_text=takes_text)

    def _only_signatures(self, signature: bytes, scratch: Path) -> bytes:
        """Return the packets of a signature without armour; raise `Distrusted` if other packets are among them.

        gpg decompresses a compressed packet in a signature: 810 bytes become a gigabyte.
        """
        if signature[:1] < b"\x80":  # no packet: each begins with this bit (RFC 4880, 4.2)
            armoured, binary = scratch / "armoured", scratch / "binary"
            armoured.write_bytes(signature)
            ended = self._gpg("--output", str(binary), "--dearmor", str(armoured))
            signature = binary.read_bytes() if ended.status == 0 and binary.exists() else b""
        if not set(_packet_tags(signature)) <= _TAGS_OF_SIGNATURES:
            raise Distrusted("signed in a way that is not read: it is cut off, or holds other OpenPGP packets")
        return signature

    def _gpg(self, *arguments: str, given: bytes = b"") -> Ended:
        return ask_alone(["gpg", "--homedir", str(self._home), *_OF_ITS_OWN, *arguments], given, self._home)


_TAGS_OF_SIGNATURES: Final = frozenset({2, 10})  # a signature, and a marker, which gpg ignores (RFC 4880, 4.3)
_OTHER: Final = -1


def _packet_tags(data: bytes) -> Iterator[int]:
    """Yield the tags of OpenPGP packets (RFC 4880, 4.2); `_OTHER` for a packet without its whole length, then end."""
    at = 0
    while at < len(data):
        first, more = data[at], data[at + 1 : at + 6]
        if first & 0xC0 == 0xC0:
            tag, kind = first & 0x3F, more[0] if more else 0xE0
            if kind < 0xC0:
                header, size = 2, kind
            elif kind < 0xE0:
                header, size = 3, ((kind - 0xC0) << 8) + int.from_bytes(more[1:2]) + 0xC0
            elif kind == 0xFF:
                header, size = 6, int.from_bytes(more[1:5])
            else:  # a length in parts, which only data may have
                tag, header, size = _OTHER, 1, 0
        else:
            tag, kind = (first >> 2) & 0xF, 1 << (first & 3)
            header, size = 1 + kind, int.from_bytes(more[:kind])
            if not first & 0x80 or kind == 8:  # no packet, or one that ends with the file
                tag = _OTHER
        at += header + size
        yield tag if at <= len(data) else _OTHER
        if tag == _OTHER:
            return


# Of gpg(1): nothing is asked, fetched or started; each key that is there is trusted, for that is why it is there.
_OF_ITS_OWN: Final = (
    *("--no-options", "--batch", "--no-tty", "--quiet", "--status-fd=1", "--no-autostart", "--disable-dirmngr"),
    *("--no-auto-key-retrieve", "--no-auto-key-locate", "--no-auto-check-trustdb", "--trust-model=always"),
)


def _judged(found: Ended, *, takes_text: bool) -> Signer:
    """What gpg says by its status lines: DETAILS in GnuPG's doc, "Format of the --status-fd output"."""
    said = [line.removeprefix("[GNUPG:] ").split(" ") for line in found.output.splitlines()]
    verdicts = [words for words in said if words[0] in _VERDICTS]
    if len(verdicts) != 1:
        raise Distrusted("signed in a way that gpg cannot read")
    (verdict,) = verdicts
    key = verdict[1] if len(verdict) > 1 else "?"
    if verdict[0] == "ERRSIG" and verdict[6:7] == ["9"]:
        raise Unlisted(f"signed by the key {key}, which is not listed")
    if verdict[0] != "GOODSIG":
        raise Distrusted(_VERDICTS[verdict[0]].format(key=key))
    valid = [words for words in said if words[0] == "VALIDSIG"]
    if found.status != 0 or len(valid) != 1:
        raise Distrusted("signed in a way that gpg does not take as valid")
    if not takes_text and valid[0][_CLASS] != _BINARY:
        raise Distrusted("signed as a text, and its signature is of other texts, too: sign without gpg's textmode")
    return Signer(" ".join(verdict[2:]), valid[0][-1])


_CLASS: Final = 9  # the word of VALIDSIG that is the class of the signature, in hexadecimal digits
_BINARY: Final = "00"

_VERDICTS: Final = {
    "GOODSIG": "",
    "EXPSIG": "signed by the key {key}, and the signature has expired",
    "EXPKEYSIG": "signed by the key {key}, which has expired",
    "REVKEYSIG": "signed by the key {key}, which was revoked",
    "BADSIG": "not what its signature is of: it was changed after it was signed",
    "ERRSIG": "signed by the key {key} in a way that gpg cannot check",
}


def ask_alone(command: Sequence[str], given: bytes, home: Path) -> Ended:
    """What a program that checks signatures says, in a world of its own; raises `UsageError` and `SourceError`."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(home), "LC_ALL": "C", "TZ": "UTC"}
    try:
        return ask(command, given=given, environment=environment, patience_s=_PATIENCE_S)
    except FileNotFoundError:
        package = {"ssh-keygen": "OpenSSH", "gpg": "GnuPG", "minisign": "minisign"}[command[0]]
        raise UsageError(f"{command[0]} is not installed: signatures are checked by {package}") from None
    except (OSError, TimeoutError) as error:
        raise SourceError(f"{command[0]} could not check a signature: {error}") from error


_PATIENCE_S: Final = 600  # an image of gigabytes on a slow disk
