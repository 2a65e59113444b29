"""This instance: where it reads, writes and listens; from flags, GITBOOT_… variables or gitboot.toml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What differs from one running instance to the next, and so is no part of a fleet."""

    repository: str  # a path or a URL
    reference: str | None  # branch, tag, semver range or commit; None: what the remote's HEAD names
    output: Path
    state: Path
    listen: str | None  # HOST:PORT; None: nothing is served
    records: str | None  # fresh or adopt: what a ledger that was never told is told
    credentials: Path | None
    assets: Path | None  # what is served under /assets/
    poll_s: float
