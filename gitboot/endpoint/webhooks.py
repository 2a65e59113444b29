"""Webhooks of forges: a request triggers a fetch if it proves that its sender has the secret."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.types import Scope

from gitboot.endpoint.connections import FORBIDDEN, NO_CONTENT, RETRY_LATER, ReadBody, Reply
from gitboot.errors import UsageError

WEBHOOK_PATH: Final = "/hooks/push"

_MAX_BYTES: Final = 5 << 20
_PAUSE_S: Final = 2.0  # between two fetches
_MIN_SECRET_LENGTH: Final = 16  # characters
_PREFIX: Final = b"sha256="

# GitHub and Bitbucket sign the body with a prefix, Gitea, Forgejo and Gogs without one. GitLab sends the secret itself.
_SIGNATURE_HEADERS: Final = (b"x-hub-signature-256", b"x-gitea-signature", b"x-forgejo-signature", b"x-gogs-signature")
_BITBUCKET_HEADER: Final = b"x-hub-signature"  # other forges send a SHA-1 in this header, which gitboot ignores
_TOKEN_HEADER: Final = b"x-gitlab-token"


class PushSecret:
    """The file with the webhook secret. gitboot reads it for each request."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> bytes:
        """Return the secret.

        Raises `UsageError` if the file cannot be read, or if the secret is short enough to be guessed.
        """
        try:
            secret = self._file.read_bytes().strip()
        except OSError as error:
            raise UsageError(f"--push-secret: {self._file} cannot be read: {error.strerror}") from None
        if len(secret) < _MIN_SECRET_LENGTH:
            raise UsageError(f"--push-secret: {self._file} needs at least {_MIN_SECRET_LENGTH} characters")
        return secret


class Webhooks:
    """Handles webhooks. The first webhook triggers a fetch immediately, later webhooks at most every two seconds."""

    def __init__(self, secret: PushSecret, wake: Callable[[], None]) -> None:
        self._secret, self._wake = secret, wake
        self._woken_s = -_PAUSE_S
        self._later: asyncio.TimerHandle | None = None

    async def handle(self, scope: Scope, read: ReadBody) -> Reply:
        """Check a webhook, trigger a fetch, and return the response. gitboot keeps only the HMAC of the body."""
        try:
            secret = self._secret.read()
        except UsageError:
            return RETRY_LATER
        digest = hmac.new(secret, digestmod=sha256)
        if (refusal := await read(_MAX_BYTES, digest.update)) is not None:
            return refusal
        # At least one header must prove that the sender has the secret. All such headers must match, and are compared
        # in constant time.
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        signature = digest.hexdigest().encode()
        found = [
            *(
                hmac.compare_digest(value.removeprefix(_PREFIX), signature)
                for name, value in headers
                if name in _SIGNATURE_HEADERS or (name == _BITBUCKET_HEADER and value.startswith(_PREFIX))
            ),
            *(hmac.compare_digest(value, secret) for name, value in headers if name == _TOKEN_HEADER),
        ]
        if not found or not all(found):
            return FORBIDDEN
        if self._later is None:
            wait_s = max(self._woken_s + _PAUSE_S - time.monotonic(), 0)
            self._later = asyncio.get_running_loop().call_later(wait_s, self._wake_now)
        return NO_CONTENT

    def _wake_now(self) -> None:
        self._later, self._woken_s = None, time.monotonic()
        self._wake()
