"""Git source of an instance: the remote, credentials, branch and trusted keys that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from gitboot.bmc.credentials import read_credentials
from gitboot.controller.commit_acceptance import CommitTrust
from gitboot.controller.instance import state_directory
from gitboot.controller.instance.settings import Clock, GitSettings, Settings, Tell, TrustSettings
from gitboot.errors import BranchNotNamed, SourceError, UsageError
from gitboot.git.clone import BranchRecord, FollowedBranch, Source, explain_detached_head
from gitboot.git.fetch import CLONE, FetchProcess, Upstream
from gitboot.git.remote import Password, Remote, SshKey
from gitboot.git.repository import has_repository
from gitboot.git.signatures import SignatureChecker, SignatureKeys
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store
from gitboot.status.conditions import Event

KEYS: Final = "keys"  # folder in STATE with files for gpg, created anew at each start


def check_repository(settings: Settings) -> None:
    """Check the repository settings when an instance starts for the first time. Raises `UsageError`.

    A local repository must exist, the Git credentials must be readable, and a branch must be named if HEAD is detached.
    Later starts continue with the accepted commit instead, and the condition SourceReady reports such problems.
    """
    remote = build_remote(settings.git)
    with suppress(PermissionError):  # reported when STATE is read
        if (settings.state / CLONE).exists():
            return
        read_git_credentials(settings.git)
        if (local := remote.local_path) is None:
            return
        if not has_repository(local):
            raise UsageError(f"no Git repository at {local}; check the path")
        if remote.reference is not None or settings.ledger is not None or state_directory.has_ledger(settings.state):
            return
        head = None
        with suppress(SourceError, UsageError):  # reported by the fetch
            head = Upstream(remote, settings.state).read_head()
        if head is not None and head.branch is None:
            raise BranchNotNamed(explain_detached_head(remote))


@contextmanager
def open_source(settings: Settings, state: Path, record: BranchRecord) -> Iterator[Source]:
    """Yield the configured Git source. Its fetch process runs until the block ends."""
    with closing(FetchProcess(settings.git.fetch_mebibytes)) as fetcher:
        yield build_source(settings, state, fetcher, record)


class LedgerBranchStore:
    """A recorder that stores in the ledger which branch an instance follows."""

    def __init__(self, store: Store, tell: Tell, clock: Clock) -> None:
        self._store, self._tell, self._clock = store, tell, clock

    def read(self) -> FollowedBranch | None:
        """Return the branch that the instance follows, or None if it has not chosen a branch."""
        facts = instance_tables.read_facts(self._store)
        return FollowedBranch(facts.branch, facts.is_default_branch) if facts.branch is not None else None

    def accepted(self) -> str | None:
        """Return the last accepted commit, even if the clone has lost it."""
        facts = instance_tables.read_facts(self._store)
        return facts.accepted or facts.lapsed

    def write(self, branch: FollowedBranch) -> None:
        """Store and report the branch that the instance follows from now on."""
        event = Event(
            at=self._clock(),
            type="BranchChosen",
            message=f"the instance follows {branch.reference} from now on; change this with --rev",
            facts={"branch": branch.reference},
        )
        with self._store.writing() as tx:
            instance_tables.write_facts(tx, branch=branch.reference, is_default_branch=branch.is_default)
            instance_tables.write_events(tx, [event])
        self._tell(event)


def build_source(
    settings: Settings, state: Path, fetcher: FetchProcess | None = None, record: BranchRecord | None = None
) -> Source:
    """Return the configured Git source, which fetches into the state directory ``state``."""
    needs_credentials = settings.git.ssh is not None or settings.git.credentials is not None
    return Source(
        build_remote(settings.git),
        state,
        fetcher,
        read_credentials=partial(read_git_credentials, settings.git) if needs_credentials else None,
        record=record,
    )


def read_git_credentials(settings: GitSettings) -> Password | SshKey | None:
    """Read the credentials for the fleet's repository. Raises `UsageError`."""
    if settings.ssh is not None:
        key, known_hosts = settings.ssh
        return SshKey(private_key=key, known_hosts=known_hosts)  # these files are read by each fetch
    if settings.credentials is None:
        return None
    try:
        credentials = read_credentials(settings.credentials.parent, settings.credentials.name)
    except UsageError as error:
        raise UsageError(f"--git-credentials: {error}") from None
    return Password(user=credentials.username, password=credentials.password)


def build_remote(settings: GitSettings) -> Remote:
    """Return the configured remote. Raises `UsageError` if the URL requires another kind of credentials.

    The remote does not contain the password, because each fetch reads the password again.
    """
    uses_password = settings.ssh is None and settings.credentials is not None
    return Remote(
        url=settings.repository,
        reference=settings.reference,
        subpath=settings.subpath,
        credentials=Password(password="") if uses_password else read_git_credentials(settings),
        ca_bundle=settings.ca_bundle,
        timeout_s=settings.timeout_s,
        max_bytes=settings.max_bytes,
    )


def build_commit_trust(settings: TrustSettings, source: Source, folder: Path) -> CommitTrust:
    """Return the settings that determine who may acknowledge changes.

    Raises `UsageError` if the trusted keys cannot be read.
    """
    signatures = None
    if settings.keys.has_keys:
        keys = SignatureKeys(settings.keys, folder)
        keys.fingerprint()
        signatures = SignatureChecker(source.clone, keys, settings.verify, source.read_tag_on)
    return CommitTrust(signatures=signatures, reinstalls_need=settings.reinstalls_need)
