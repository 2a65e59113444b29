"""What can go wrong between a client and its BMC, on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """No answer for so long."""

    seconds: float = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Slow:
    """The answer, byte by byte, from the first of its status line on."""

    every_s: float = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """Another status than the right one; nothing is applied."""

    status: int
    body: bytes = b'{"error": {"code": "Base.1.18.GeneralError", "message": "no"}}'
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """Another body than the right one, with the right status."""

    body: bytes = b'{"Boot": {"BootSourceOverrideEnabled": '


@dataclass(frozen=True, kw_only=True, slots=True)
class Huge:
    """A body without end, as far as its reader has patience."""

    size: int = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncated:
    """Half of the answer, then the end of the connection."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Redirect:
    """To somewhere else."""

    location: str
    status: int = 302


@dataclass(frozen=True, kw_only=True, slots=True)
class Drop:
    """The connection ends instead of an answer, after the request was applied or before."""

    applied: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored:
    """A PATCH is answered as if it had been applied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reverted:
    """A PATCH is applied, and undone right after, or so much of the machine's time later."""

    after_s: float = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Intrusion:
    """Someone else writes right before the request is looked at."""

    boot: Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Presents:
    """Another certificate than the right one; it strikes a connection, not a request."""

    tls: SSLContext


Fault: TypeAlias = (
    Hang | Slow | Status | Body | Huge | Truncated | Redirect | Drop | Ignored | Reverted | Intrusion | Presents
)
