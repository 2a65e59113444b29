"""Credentials for registries, in the file that `podman login --authfile` and Kubernetes' pull secrets have."""

from __future__ import annotations

import base64
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gitboot.errors import UsageError
from gitboot.jsonio import json_decoder
from gitboot.text import shell_words


class _Auth(msgspec.Struct):
    auth: str = ""  # base64 of USER:PASSWORD
    username: str = ""
    password: str = ""


class _AuthFile(msgspec.Struct):
    auths: dict[str, _Auth] = {}


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """A file of credentials, read anew at each use: they change."""

    file: Path

    def authorization(self, host: str) -> str | None:
        """What is sent to a registry as ``Authorization``; None: nothing is known for it. Raises `UsageError`."""
        auth = self._read().auths.get(host)
        if auth is None:
            return None
        pair = auth.auth or base64.b64encode(f"{auth.username}:{auth.password}".encode()).decode()
        try:
            user, colon, _ = base64.b64decode(pair, validate=True).partition(b":")
        except ValueError:
            user, colon = b"", b""
        if not user or not colon:
            raise UsageError(f"{self.file}: the entry for {host} holds no USER:PASSWORD as base64 under auth")
        return f"Basic {pair}"

    def check(self) -> None:
        """Raise `UsageError` where it cannot be read, or others can read it."""
        self._read()

    def _read(self) -> _AuthFile:
        try:
            with self.file.open("rb") as file:
                mode, content = os.fstat(file.fileno()).st_mode, file.read()
        except OSError as error:
            raise UsageError(f"{self.file} cannot be read: {error.strerror}") from None
        if mode & stat.S_IRWXO:
            raise UsageError(
                f"{self.file} holds passwords, and everybody can read it: chmod 600 {shell_words(self.file)}"
            )
        try:
            return _auth_file(content)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise UsageError(
                f'{self.file} is not a file of registries\' credentials: {{"auths": {{"HOST": …}}}}'
            ) from None


_auth_file: Final = json_decoder(_AuthFile)
