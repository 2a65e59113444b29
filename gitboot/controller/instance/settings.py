"""Settings of one instance, from options, variables GITBOOT_… and the configuration file."""

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
    """Settings of the fleet's Git repository."""

    repository: str  # a path or a URL
    reference: str | None = None  # branch, tag, semver range or commit; None: the branch of the remote's HEAD
    subpath: str = ""  # the folder of the fleet in the repository
    credentials: Path | None = None  # a directory with username and password
    ssh: tuple[Path, Path] | None = None  # the private key and known_hosts
    ca_bundle: Path | None = None
    timeout_s: float = 60
    fetch_mebibytes: int | None = None  # memory that a fetch may use; None: the default of the fetch process
    disk_mebibytes: int | None = None  # disk space that a clone may use; None: `DISK_MEBIBYTES`

    @property
    def max_bytes(self) -> int:
        return (self.disk_mebibytes or DISK_MEBIBYTES) << 20


class TrustSettings(Struct, frozen=True, kw_only=True):
    """The people whose commits gitboot trusts. Repositories and a user's Git configuration cannot change this."""

    verify: Verify | None = None  # None: gitboot does not verify signatures
    keys: TrustedKeys = field(default_factory=TrustedKeys)
    reinstalls_need: ReinstallsNeed | None = None  # None: a line in any commit acknowledges reinstallations


class BmcSettings(Struct, frozen=True, kw_only=True):
    """Settings of BMC tasks."""

    credentials: Path | None = None  # a directory with NAME/username and NAME/password
    parallel: int = MAX_PARALLEL  # BMC tasks at the same time, at most
    per_site: int = MAX_PER_SITE  # BMC tasks at the same time at one site, at most
    failures: int = 20  # failures in a row after which gitboot pauses BMC tasks
    jitter: float = 0.2  # the part of a planned wait by which the wait may be shorter


class ForgeSettings(Struct, frozen=True, kw_only=True):
    """Settings of the forge to which gitboot reports commit statuses."""

    project: str  # KIND=URL
    token: Path  # the file with the token
    name: str = "gitboot"  # the name of the commit status
    link: str | None = None  # the link of the commit status; None: the page of the commit
    api: str | None = None  # the URL of the API; None: the usual URL of this kind of forge
    allow_token_over_http: bool = False


class CheckAssets(StrEnum):
    """The way in which gitboot checks artifacts."""

    OFF = "off"
    HEAD = "head"  # gitboot trusts the answers of servers, and reads local files once
    READ = "read"  # gitboot reads each artifact once


class ArtifactSettings(Struct, frozen=True, kw_only=True):
    """The way and the interval of artifact checks."""

    check: CheckAssets = CheckAssets.HEAD
    every_s: float = 300


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of one instance.

    They are not a part of the fleet, because instances of one fleet have different settings.
    """

    output: Path
    state: Path
    git: GitSettings
    trust: TrustSettings = TrustSettings()
    bmc: BmcSettings = BmcSettings()
    allowance: EvaluationLimits = field(default_factory=EvaluationLimits)  # limits of one evaluation
    limits: Limits = field(default_factory=Limits)
    output_group: str | None = None  # the group that may read OUTPUT; None: the group of this process
    site: str | None = None  # the site whose servers the instance manages; None: all servers
    listen: str | None = None  # HOST:PORT; None: the instance starts no endpoints
    workers: int = 1  # endpoint processes
    assets: Path | None = None  # the folder that endpoints serve under /assets/
    artifacts: ArtifactSettings = ArtifactSettings()
    secret_keys: Path | None = None  # the file with the age keys that decrypt the fleet's secrets
    spool: Path | None = None  # the folder of the fetch log
    poll_s: float = 60
    accepted_filesystems: tuple[str, ...] = ()  # types of file systems that are allowed although they may lose data
    forge: ForgeSettings | None = None
    push_secret: Path | None = None  # the file with the secret that signs the webhooks of forges
    ledger: PostgresAddress | None = None  # a PostgreSQL ledger; None: SQLite in STATE, or the address stored there
    lease_s: float = LEASE_SECONDS  # how long the lease is valid without a renewal
    notify: Path | None = None  # the file with the receivers of notices
    targets: tuple[TargetAddress, ...] = ()  # targets that follow OUTPUT
    list_keys: Path | None = None  # the folder with the keys that sign the list; None: the list is unsigned
    step_minutes: float = 30  # how long a step of an installation may take before gitboot reports it

    @property
    def spool_folder(self) -> Path | None:
        """The folder of the fetch log, or None if no endpoint records fetches for this instance."""
        return self.spool or (self.state / SPOOL if self.listen is not None else None)


Tell = Callable[[Event], None]
Clock = Callable[[], datetime]
