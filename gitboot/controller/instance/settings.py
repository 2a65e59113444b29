"""Settings of one instance, from options, GITBOOT_… variables and the configuration file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
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
from gitboot.ledger.store import PostgresAddress
from gitboot.publish.targets.follower import TargetAddress
from gitboot.review.guards import Limits
from gitboot.status.conditions import Event

DISK_MEBIBYTES: Final = 4096  # enough for a history of three million objects that contains large files


class GitSettings(Struct, frozen=True, kw_only=True):
    """Settings for the fleet's Git repository."""

    repository: str  # path or URL
    reference: str | None = None  # branch, tag, semver range or commit; None: the branch of the remote's HEAD
    subpath: str = ""  # the folder that contains the fleet within the repository
    credentials: Path | None = None  # directory with the files username and password
    ssh: tuple[Path, Path] | None = None  # private key file and known_hosts file
    ca_bundle: Path | None = None
    timeout_s: float = 60
    fetch_mebibytes: int | None = None  # memory that a fetch may use; None: the default of the fetch process
    disk_mebibytes: int | None = None  # disk space that a clone may use; None: `DISK_MEBIBYTES`

    @property
    def max_bytes(self) -> int:
        return (self.disk_mebibytes or DISK_MEBIBYTES) << 20


class TrustSettings(Struct, frozen=True, kw_only=True):
    """Settings that determine whose commits gitboot trusts.

    Neither a repository nor a user's Git configuration can change these settings.
    """

    verify: Verify | None = None  # None: gitboot does not verify signatures
    keys: TrustedKeys = field(default_factory=TrustedKeys)
    reinstalls_need: ReinstallsNeed | None = None  # None: a line in any commit acknowledges reinstallations


class BmcSettings(Struct, frozen=True, kw_only=True):
    """Settings for BMC tasks."""

    credentials: Path | None = None  # directory with the files NAME/username and NAME/password
    parallel: int = MAX_PARALLEL  # maximum number of parallel BMC tasks
    per_site: int = MAX_PER_SITE  # maximum number of parallel BMC tasks per site
    failures: int = 20  # consecutive failures after which gitboot pauses BMC tasks
    jitter: float = 0.2  # fraction by which a wait before a retry may be shortened


class ForgeSettings(Struct, frozen=True, kw_only=True):
    """Settings for the forge to which gitboot reports commit statuses."""

    project: str  # KIND=URL
    token: Path  # file that contains the token
    name: str = "gitboot"  # name of the commit status
    link: str | None = None  # URL to which the commit status links; None: the page of the commit
    api: str | None = None  # the URL of the API; None: the usual URL of this kind of forge
    allow_token_over_http: bool = False


class CheckAssets(StrEnum):
    """The method by which gitboot checks artifacts."""

    OFF = "off"
    HEAD = "head"  # trust HTTP responses to HEAD requests, and read local files once
    READ = "read"  # read each artifact once


class ArtifactSettings(Struct, frozen=True, kw_only=True):
    """The method and the interval of artifact checks."""

    check: CheckAssets = CheckAssets.HEAD
    every_s: float = 300
    image_keys: Path | None = None  # directory with keys of images beside those that gitboot ships


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of one instance.

    Settings are not part of the fleet, because instances of the same fleet may have different settings.
    """

    output: Path
    state: Path
    git: GitSettings
    trust: TrustSettings = TrustSettings()
    bmc: BmcSettings = BmcSettings()
    allowance: EvaluationLimits = field(default_factory=EvaluationLimits)  # resource limits for each evaluation
    limits: Limits = field(default_factory=Limits)
    output_group: str | None = None  # group that may read OUTPUT; None: the group of this process
    site: str | None = None  # the site whose servers the instance manages; None: all servers
    listen: str | None = None  # HOST:PORT; None: the instance starts no endpoints
    workers: int = 1  # number of endpoint processes
    assets: Path | None = None  # folder that endpoints serve under /assets/
    artifacts: ArtifactSettings = ArtifactSettings()
    secret_keys: Path | None = None  # file with the age keys that decrypt the fleet's secrets
    spool: Path | None = None  # folder of the fetch log
    poll_s: float = 60
    accepted_filesystems: tuple[str, ...] = ()  # types of file systems that are allowed even though they may lose data
    forge: ForgeSettings | None = None
    push_secret: Path | None = None  # file with the secret with which forges sign webhooks
    # PostgreSQL database of the ledger; None: the address stored in STATE, or SQLite.
    ledger: PostgresAddress | None = None
    lease_s: float = LEASE_SECONDS  # how long the lease is valid without a renewal
    notify: Path | None = None  # file that configures the receivers of notices
    targets: tuple[TargetAddress, ...] = ()  # targets that follow OUTPUT
    list_keys: Path | None = None  # folder with the keys that sign the signed list; None: the list is unsigned
    maintenance_hosts: tuple[str, ...] = ()  # hosts of URLs before maintenances, each URL or URL=FILE
    step_minutes: float = 30  # minutes that a step of an installation may take before gitboot reports it

    @property
    def spool_folder(self) -> Path | None:
        """The folder of the fetch log, or None if no endpoint records fetches for this instance."""
        return self.spool or (self.state / SPOOL if self.listen is not None else None)

    @property
    def spool_mark(self) -> Path | None:
        """The mark file beside the fetch log, or None if no fetch log folder is configured.

        The mark file shows whether STATE and OUTPUT are both older copies.
        """
        return self.spool / "ledger.mark" if self.spool is not None else None

    def find_separate_mark(self) -> Path | None:
        """Return the mark file beside the fetch log, or None if it is on the same disk as STATE or OUTPUT.

        A file on another disk is not part of a snapshot of the disk that contains STATE and OUTPUT.
        """
        with suppress(OSError):
            if self.spool is not None:
                disks = {path.stat().st_dev for path in (self.state, self.output) if path.exists()}
                if self.spool.stat().st_dev not in disks:
                    return self.spool_mark
        return None


Tell = Callable[[Event], None]
Clock = Callable[[], datetime]
