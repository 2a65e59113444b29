"""gitboot.cli.endpoint_options_from_cli_serve."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gitboot.cli.endpoint_options import AccessSettings
from gitboot.cli.telling import tell
from gitboot.errors import UsageError
from gitboot.status.events_from_status import Event

if TYPE_CHECKING:
    from gitboot.endpoint.age_encryption import Keys


def keys_in(file: Path | None, *, may_be_wrong: bool = False) -> Keys | None:
    """The keys of a file that is given; raises UsageError where it has none, unless that was looked at before."""
    if file is None:
        return None
    from gitboot.endpoint.age_encryption import Keys  # few give one

    keys = Keys(file)
    if not may_be_wrong:
        keys.check()
    return keys


def operators_socket(access: AccessSettings) -> socket.socket | None:
    """What listens for operators alone, where that is wanted."""
    from gitboot.endpoint.server import listen_at, url_of

    if access.operators_listen is None:
        return None
    operators = listen_at(access.operators_listen)
    url = url_of(access.operators_listen, operators, "https" if access.operators_tls is not None else "http")
    tell(Event(at=_clock(), type="ListeningForOperators", message=url, facts={"url": url}))
    return operators


def make_spool(spool: Path) -> None:
    """Make a spool where it is missing."""
    try:
        spool.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{spool} cannot be made: {error.strerror}") from error


def _clock() -> datetime:
    return datetime.now(UTC)
