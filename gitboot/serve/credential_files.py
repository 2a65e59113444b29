"""Credential files of an endpoint: which of them cannot be read now, and the event if that changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from gitboot.errors import UsageError
from gitboot.status.events_from_status import Event


class CredentialFiles:
    """The files that an endpoint reads for each request. ``checks`` has what raises `UsageError`, by option."""

    def __init__(self, checks: Mapping[str, Callable[[], object]]) -> None:
        self._checks = checks
        self._failures: tuple[str, ...] = ()  # at the last look

    def failures(self) -> tuple[str, ...]:
        """Return why files cannot be used now, each with its option, file and cause."""
        found = []
        for option, check in sorted(self._checks.items()):
            try:
                check()
            except UsageError as error:
                found.append(f"{option}: {str(error).removeprefix(f'{option}: ')}")
        return tuple(found)

    def look(self, at: datetime) -> Event | None:
        """Return the event if other files than at the last look cannot be used. A second call returns None."""
        before, self._failures = self._failures, self.failures()
        if self._failures == before:
            return None
        if self._failures:
            message = f"{'; '.join(self._failures)}: what needs them is refused until they can be read"
            return Event(at=at, type="CredentialsUnread", message=message, warning=True)
        return Event(at=at, type="CredentialsRead", message="all credential files can be read again")
