"""This instance: where it reads, writes and listens; from flags and GITBOOT_… variables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from gitboot.bmc.worker_pool import MAX_PARALLEL, MAX_PER_SITE
from gitboot.controller.instance.state_directory import SPOOL
from gitboot.evaluator.protocol import EvaluationLimits
from gitboot.fleet.revision import ReinstallsNeed, Verify
from gitboot.git.signatures import TrustedKeys
from gitboot.ledger.leader_lease import LEASE_SECONDS
from gitboot.ledger.location import PostgresAddress
from gitboot.publish.targets.follower import TargetAddress
from gitboot.review.guards import Limits
from gitboot.status.conditions import Event

DISK_MEBIBYTES: Final = 4096  # a history of three million objects, with large files


class GitSettings(Struct, frozen=True, kw_only=True):
    """Where commits come from."""

    repository: str  # a path or a URL
    reference: str | None = None  # branch, tag, semver range or commit; None: what the remote's HEAD names
    subpath: str = ""  # the fleet's folder in it
    credentials: Path | None = None  # a directory with username and password
    ssh: tuple[Path, Path] | None = None  # the private key and known_hosts
    ca_bundle: Path | None = None
    timeout_s: float = 60
    fetch_mebibytes: int | None = None  # of memory that a fetch may take; None: the fetcher's default
    disk_mebibytes: int | None = None  # that a clone may take on disk; None: `DISK_MEBIBYTES`

    @property
    def max_bytes(self) -> int:
        return (self.disk_mebibytes or DISK_MEBIBYTES) << 20


class TrustSettings(Struct, frozen=True, kw_only=True):
    """Whose commits count; nothing in a repository or a user's Git configuration says so."""

    verify: Verify | None = None  # None: a commit counts whoever has made it
    keys: TrustedKeys = field(default_factory=TrustedKeys)
    reinstalls_need: ReinstallsNeed | None = None  # None: a line in any commit acknowledges them


class BmcSettings(Struct, frozen=True, kw_only=True):
    """How BMCs are asked."""

    credentials: Path | None = None  # a directory with NAME/username and NAME/password
    parallel: int = MAX_PARALLEL  # how many are asked at a time, at most
    per_site: int = MAX_PER_SITE  # of one site
    failures: int = 20  # in a row, until nothing more is set for a while
    jitter: float = 0.2  # by how much less than planned is waited at most


class ForgeSettings(Struct, frozen=True, kw_only=True):
    """Who is told what becomes of commits."""

    project: str  # KIND=URL
    token: Path  # the file with it
    name: str = "gitboot"  # of the commit status
    link: str | None = None  # where that leads; None: to the commit's page
    api: str | None = None  # URL, where it is not at its place by kind
    allow_token_over_http: bool = False


class CheckAssets(StrEnum):
    """How artifacts are looked at."""

    OFF = "off"
    HEAD = "head"  # their servers' word is taken; what lies in a directory that is served here is read once
    READ = "read"  # each is read once


class ArtifactSettings(Struct, frozen=True, kw_only=True):
    """Whether what machines are to fetch is looked at, and how often."""

    check: CheckAssets = CheckAssets.HEAD
    every_s: float = 300


class Settings(Struct, frozen=True, kw_only=True):
    """What differs from one running instance to the next, and so is no part of a fleet."""

    output: Path
    state: Path
    git: GitSettings
    trust: TrustSettings = TrustSettings()
    bmc: BmcSettings = BmcSettings()
    allowance: EvaluationLimits = field(default_factory=EvaluationLimits)  # what evaluating one commit may take
    limits: Limits = field(default_factory=Limits)
    output_group: str | None = None  # who may read OUTPUT besides this user; None: this process's own group
    site: str | None = None  # whose servers alone it acts for; None: all
    listen: str | None = None  # HOST:PORT; None: nothing is served
    workers: int = 1  # processes that serve
    assets: Path | None = None  # what is served under /assets/
    artifacts: ArtifactSettings = ArtifactSettings()
    secret_keys: Path | None = None  # the file with what opens the fleet's secrets
    spool: Path | None = None  # where endpoints leave what was fetched from them
    poll_s: float = 60
    accepted_filesystems: tuple[str, ...] = ()  # on which state may lie although it may be lost there
    forge: ForgeSettings | None = None
    push_secret: Path | None = None  # the file with what webhooks of forges are signed by
    ledger: PostgresAddress | None = None  # where the ledger is; None: in STATE, or where it was said before
    lease_s: float = LEASE_SECONDS  # how long that is this instance's without its saying so again
    notify: Path | None = None  # the file that names receivers of notices
    targets: tuple[TargetAddress, ...] = ()  # that follow what is published
    list_keys: Path | None = None  # the folder of the keys that sign the list; None: it is unsigned
    step_minutes: float = 30  # how long a step of an installation may last, until somebody should look

    @property
    def spool_folder(self) -> Path | None:
        """Where what was fetched is recorded, in STATE where it is served here; None: nothing can be fetched."""
        return self.spool or (self.state / SPOOL if self.listen is not None else None)


Tell = Callable[[Event], None]
Clock = Callable[[], datetime]
