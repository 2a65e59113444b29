"""Exit codes: what a script learns from a command."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from gitboot.errors import (
    AssetError,
    GitbootError,
    HostUnreachable,
    InvalidRepository,
    LockedByAnother,
    PublishError,
    RegistryRefused,
    SourceError,
    SourceRefused,
    SourceTooLarge,
    StaleDigest,
    UsageError,
)


class Exit(IntEnum):
    FINE = 0
    FAULT = 1  # gitboot's own
    CHANGES = 2  # only where asked for
    INVALID = 3  # the repository
    HELD = 4  # by a guard; a rollout, by a machine on which installing failed
    STALE = 5  # a digest is stale or unknown
    SOURCE = 6  # source, authentication, signature
    SUSPENDED = 7
    PARTIAL = 8  # published or overridden only in part
    WAITS = 9  # a rollout's next step, for machines
    USAGE = 64


_EXITS: Final[tuple[tuple[type[GitbootError], Exit], ...]] = (
    (InvalidRepository, Exit.INVALID),
    (SourceError, Exit.SOURCE),
    (SourceRefused, Exit.SOURCE),
    (SourceTooLarge, Exit.SOURCE),
    (HostUnreachable, Exit.SOURCE),
    (RegistryRefused, Exit.SOURCE),
    (StaleDigest, Exit.STALE),
    (PublishError, Exit.PARTIAL),
    (AssetError, Exit.PARTIAL),
    (UsageError, Exit.USAGE),
    (LockedByAnother, Exit.USAGE),
)


def exit_of(error: GitbootError) -> Exit:
    """The code that an error ends the command with."""
    return next((code for kind, code in _EXITS if isinstance(error, kind)), Exit.FAULT)
