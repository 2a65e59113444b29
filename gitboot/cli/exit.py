"""Exit codes: what a script learns from a command."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Self

from gitboot.errors import (
    AssetError,
    ForgeRefused,
    GitbootError,
    HostUnreachable,
    InvalidRepository,
    LedgerLeft,
    LockedByAnother,
    NotYetDone,
    PublishError,
    RegistryRefused,
    SourceError,
    SourceRefused,
    SourceTooLarge,
    StaleDigest,
    UsageError,
)


class Exit(IntEnum):
    """What a command ends with; ``meaning`` says it in words, and who is to act."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    FINE = 0, "all that was asked for is done, or shown"
    FAULT = 1, "a ledger that cannot be read; or a fault of gitboot's own: please report it, with the traceback"
    CHANGES = 2, "something differs, where that was asked for (`--detailed-exitcode`, `compare-old-system`)"
    INVALID = (
        3,
        "the repository has errors: correct them at the places that are named; or no trusted key signed the commit "
        "(`--verify`); or the evaluation of the commit did not end",
    )
    HELD = (
        4,
        "a guard holds a commit until it is acknowledged; a rollout is stopped by a machine on which installing failed",
    )
    STALE = 5, "the digest that was given is not that of the commit that is held: look at it again"
    SOURCE = 6, "a repository, a registry, a forge or another host did not answer, or refused; or a signature is wrong"
    SUSPENDED = 7, "the instance is suspended: no commit is accepted"
    PARTIAL = (
        8,
        "only in part: some BMC, file, artifact or copy is not as it is to be, and the output says which; or the "
        "instance has not taken up yet what it was asked for",
    )
    WAITS = 9, "a rollout's next step waits for machines"
    USAGE = (
        64,
        "what was typed: an option, a name or labels that nothing has, a path, settings, a directory in use",
    )
    INTERRUPTED = 130, "somebody has ended it with Ctrl-C, or said no"


_EXITS: Final[tuple[tuple[type[GitbootError], Exit], ...]] = (
    (InvalidRepository, Exit.INVALID),
    (SourceError, Exit.SOURCE),
    (SourceRefused, Exit.SOURCE),
    (SourceTooLarge, Exit.SOURCE),
    (HostUnreachable, Exit.SOURCE),
    (RegistryRefused, Exit.SOURCE),
    (ForgeRefused, Exit.SOURCE),
    (StaleDigest, Exit.STALE),
    (PublishError, Exit.PARTIAL),
    (NotYetDone, Exit.PARTIAL),
    (AssetError, Exit.PARTIAL),
    (UsageError, Exit.USAGE),
    (LockedByAnother, Exit.USAGE),
    (LedgerLeft, Exit.USAGE),
)


def exit_of(error: GitbootError) -> Exit:
    """The code that an error ends the command with."""
    return next((code for kind, code in _EXITS if isinstance(error, kind)), Exit.FAULT)
