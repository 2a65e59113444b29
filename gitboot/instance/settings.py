"""This instance: where it reads, writes and listens; from flags and GITBOOT_… variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What differs from one running instance to the next, and so is no part of a fleet."""

    repository: str  # a path or a URL
    reference: str | None  # branch, tag, semver range or commit; None: what the remote's HEAD names
    git_credentials: Path | None  # a directory with username and password
    ssh_key: Path | None
    known_hosts: Path | None
    ca_bundle: Path | None
    git_timeout_s: float
    output: Path
    state: Path
    listen: str | None  # HOST:PORT; None: nothing is served
    workers: int  # processes that serve
    records: str | None  # fresh, adopt, or a file of exported records: what a ledger in doubt is told
    credentials: Path | None  # of BMCs: a directory with NAME/username and NAME/password
    assets: Path | None  # what is served under /assets/
    spool: Path | None  # where endpoints leave what was fetched from them
    poll_s: float
    bmc_parallel: int  # how many BMCs are asked at a time
    bmc_per_site: int  # of one site
    bmc_failures: int  # in a row, until nothing more is set for a while
    limits: Mapping[str, int | None]  # guards, by name; None: the default
    commit_seconds: float | None  # of the processor, for evaluating one commit; None: what grows with its files
    commit_memory: int | None  # MiB, likewise
    allow_empty: bool
    allow_rewind: bool
    once: bool
    dry_run: bool
