"""Git source of an instance: remote, credentials, branch and trusted keys from the settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from gitboot.bmc.credentials import read_credentials
from gitboot.controller.commit_acceptance import Authority
from gitboot.controller.instance import state_directory as state
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


def check_repository(settings: Settings) -> None:
    """Check the settings of the repository at a first start. Raises `UsageError`.

    The repository on this host must exist, the Git credentials must be readable, and a detached HEAD needs a branch. A
    later start continues with the accepted commit, and the condition SourceReady reports problems.
    """
    remote = build_remote(settings.git)
    with suppress(PermissionError):  # the code that reads STATE reports the error
        if (settings.state / CLONE).exists():
            return
        read_git_credentials(settings.git)
        local = remote.local
        if local is None:
            return
        if not has_repository(local):
            raise UsageError(f"no Git repository at {local}; check the path")
        has_ledger = settings.ledger is not None or state.has_ledger(settings.state)
        if remote.reference is not None or has_ledger:
            return
        head = None
        with suppress(SourceError, UsageError):  # the fetch reports the error
            head = Upstream(remote, settings.state).read_head()
        if head is not None and head.branch is None:
            raise BranchNotNamed(explain_detached_head(remote))


@contextmanager
def open_source(settings: Settings, state: Path, record: BranchRecord) -> Iterator[Source]:
    """Yield the Git source of the settings. A fetch process runs until the end of the block."""
    fetcher = FetchProcess(settings.git.fetch_mebibytes)
    try:
        yield build_source(settings, state, fetcher, record)
    finally:
        fetcher.close()


class BranchInLedger:
    """Reads and writes the branch that an instance follows, in its ledger."""

    def __init__(self, store: Store, tell: Tell, clock: Clock) -> None:
        self._store, self._tell, self._clock = store, tell, clock

    def read(self) -> FollowedBranch | None:
        about = instance_tables.read_facts(self._store)
        return FollowedBranch(about.branch, about.is_default_branch) if about.branch is not None else None

    def accepted(self) -> str | None:
        about = instance_tables.read_facts(self._store)
        return about.accepted or about.lapsed

    def write(self, branch: FollowedBranch) -> None:
        message = f"the instance follows {branch.reference} from now on; change this with --rev"
        event = Event(at=self._clock(), type="BranchChosen", message=message, facts={"branch": branch.reference})
        with self._store.writing() as tx:
            instance_tables.write_facts(tx, branch=branch.reference, is_default_branch=branch.is_default)
            instance_tables.write_events(tx, [event])
        self._tell(event)


def build_source(
    settings: Settings, state: Path, fetcher: FetchProcess | None = None, record: BranchRecord | None = None
) -> Source:
    """Return the Git source of the settings, which fetches into the state directory ``state``."""
    has_credentials = settings.git.ssh is not None or settings.git.credentials is not None
    read = partial(read_git_credentials, settings.git) if has_credentials else None
    return Source(build_remote(settings.git), state, fetcher, read_credentials=read, record=record)


def read_git_credentials(settings: GitSettings) -> Password | SshKey | None:
    """Read the credentials of the fleet's repository. Raises `UsageError`."""
    if settings.ssh is not None:
        key, known_hosts = settings.ssh
        return SshKey(private_key=key, known_hosts=known_hosts)  # the fetch reads these files
    if settings.credentials is None:
        return None
    try:
        found = read_credentials(settings.credentials.parent, settings.credentials.name)
    except UsageError as error:
        raise UsageError(f"--git-credentials: {error}") from None
    return Password(user=found.username, password=found.password)


def build_remote(settings: GitSettings) -> Remote:
    """Return the remote of the settings. Raises `UsageError` if its URL does not match the kind of credentials.

    The credentials lack the password, because each fetch reads the password again.
    """
    has_password = settings.ssh is None and settings.credentials is not None
    credentials = Password(password="") if has_password else read_git_credentials(settings)
    return Remote(
        url=settings.repository,
        reference=settings.reference,
        subpath=settings.subpath,
        credentials=credentials,
        ca_bundle=settings.ca_bundle,
        timeout_s=settings.timeout_s,
        max_bytes=settings.max_bytes,
    )


def build_authority(settings: TrustSettings, source: Source, folder: Path) -> Authority:
    """Return the settings that decide which people may acknowledge changes.

    Raises `UsageError` if the trusted keys cannot be read.
    """
    signatures = None
    if settings.keys.has_keys:
        keys = SignatureKeys(settings.keys, folder)
        keys.fingerprint()
        signatures = SignatureChecker(source.clone, keys, settings.verify, source.read_tag_on)
    return Authority(signatures=signatures, reinstalls_need=settings.reinstalls_need)


KEYS: Final = "keys"  # in STATE: files for gpg, which each start creates again
