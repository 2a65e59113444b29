"""What an instance and the process that fetches for it say to each other, a frame each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from gitboot.errors import (
    BranchMissing,
    CorruptClone,
    GitbootError,
    SourceError,
    SourceRefused,
    SourceTooLarge,
    SubpathMissing,
    UsageError,
)
from gitboot.git.remote import Head, Password, Remote, SshKey
from gitboot.jsonio import decoder
from gitboot.source.fetch_deadlines import Step

# Fetch into the clone; into a new one; into a new one, with the accepted commit; only read what HEAD names. Of a branch
# that gitboot owns, and the repository ``state``: read its commit, fetch it, or push to it.
Work = Literal["fetch", "anew", "restore", "head", "tip", "branch", "push"]


class SentPassword(msgspec.Struct, frozen=True, tag=True):
    user: str
    password: str

    def __repr__(self) -> str:
        return "SentPassword()"


class SentKey(msgspec.Struct, frozen=True, tag=True):
    private_key: str
    known_hosts: str
    passphrase: str

    def __repr__(self) -> str:
        return "SentKey()"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to fetch or push, from where to where, and how much memory that may take; the credentials are in it."""

    work: Work
    state: str
    accepted: str | None  # the accepted commit; of a push, the commit that the branch is at, if there is one
    memory: int | None  # bytes; None: no limit
    max_bytes: int | None  # that the clone may take on disk; None: no limit
    pushed: str = ""  # the commit to push
    url: str
    reference: str | None
    subpath: str
    credentials: SentPassword | SentKey | None
    ca_bundle: str | None
    connect_timeout_s: float
    timeout_s: float


class Arrived(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """It was fetched, or pushed."""

    revision: str = ""  # what the reference means; "": no commit
    head: Head | None = None  # what the remote's HEAD names; None: nobody looked
    found: bool = True  # the accepted commit, too, where it was to be


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It is not."""

    error: str  # a name of `ERRORS`
    message: str


Report = Arrived | Failed | Step

order: Final[Callable[[bytes], Order]] = decoder(Order)
report: Final[Callable[[bytes], Report]] = decoder(Report)

# What fetching raises on purpose.
_RAISED: Final = (SourceError, BranchMissing, CorruptClone, SourceRefused, SourceTooLarge, SubpathMissing, UsageError)
ERRORS: Final = {each.__name__: each for each in _RAISED}


def order_of(
    work: Work, remote: Remote, state: Path, accepted: str | None, memory: int | None, *, pushed: str = ""
) -> Order:
    sent: SentPassword | SentKey | None = None
    match remote.credentials:
        case Password(user=user, password=password):
            sent = SentPassword(user, password)
        case SshKey(private_key=key, known_hosts=known_hosts, passphrase=passphrase):
            sent = SentKey(str(key), str(known_hosts), passphrase)
    return Order(
        work=work,
        state=str(state),
        accepted=accepted,
        memory=memory,
        max_bytes=remote.max_bytes,
        pushed=pushed,
        url=remote.url,
        reference=remote.reference,
        subpath=remote.subpath,
        credentials=sent,
        ca_bundle=str(remote.ca_bundle) if remote.ca_bundle is not None else None,
        connect_timeout_s=remote.connect_timeout_s,
        timeout_s=remote.timeout_s,
    )


def remote_of(order: Order) -> Remote:
    """Where an order leads."""
    credentials: Password | SshKey | None = None
    match order.credentials:
        case SentPassword(user, password):
            credentials = Password(user=user, password=password)
        case SentKey(key, known_hosts, passphrase):
            credentials = SshKey(private_key=Path(key), known_hosts=Path(known_hosts), passphrase=passphrase)
    return Remote(
        url=order.url,
        reference=order.reference,
        subpath=order.subpath,
        credentials=credentials,
        ca_bundle=Path(order.ca_bundle) if order.ca_bundle is not None else None,
        connect_timeout_s=order.connect_timeout_s,
        timeout_s=order.timeout_s,
        max_bytes=order.max_bytes,
    )


def failed(error: GitbootError) -> Failed:
    return Failed(type(error).__name__, str(error))


def raised(failure: Failed) -> GitbootError:
    """An error, as it was before it was sent."""
    return ERRORS[failure.error](failure.message)
