"""Targets of an instance: OUTPUT with its signed list, and the targets that follow OUTPUT."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from gitboot.bmc.credentials import read_credentials
from gitboot.controller.instance.settings import GitSettings, Settings
from gitboot.controller.offered_files import Target
from gitboot.errors import PublishError, UsageError
from gitboot.git.branch_writer import OwnedBranch, read_authorship
from gitboot.git.clone import Source
from gitboot.git.remote import HEAD, Password, Remote, SshKey, parse_git_url
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store
from gitboot.publish.manifest import compute_digest
from gitboot.publish.publisher import PublicationResult
from gitboot.publish.signed_list import ListKeys, read_list_keys
from gitboot.publish.targets import folder as folder_target
from gitboot.publish.targets.folder import folder_opener
from gitboot.publish.targets.follower import (
    BranchAddress,
    FolderAddress,
    Follower,
    Followers,
    RsyncAddress,
    TargetAddress,
    TargetStore,
)
from gitboot.publish.targets.git_branch import BranchTarget
from gitboot.publish.targets.sync_steps import FollowedTree, StoreTarget
from gitboot.publish.tree_changes import EndedWindows
from gitboot.render.paths import File, Files
from gitboot.render.plan_and_record_files import FileUpdates
from gitboot.status.instance_status import SignedListState, TargetStatus

TARGET_WAIT_S: Final = 60.0  # how long `gitboot run --once` waits for the targets


class ListedTarget(Target, Protocol):
    """A target that has a signed list of its files, and that can end windows without plans."""

    @property
    def is_unchanged(self) -> bool:
        """Return whether the tree in the target is still the one that gitboot published last."""

    def end_windows(self, at: datetime) -> EndedWindows:
        """End the windows that are over in files published by an earlier process. Raises `PublishError`."""

    def update_list(self, keys: ListKeys | None, at: datetime) -> datetime | None:
        """Update the signed list if the published files changed or if its renewal is due. Return when the list expires.

        The result is None if there is no list yet. Raises `PublishError`.
        """


class FollowedTarget:
    """A target that other targets follow. `publish` starts to update the other targets, and does not wait for them."""

    def __init__(self, target: ListedTarget, followers: Followers, list_keys: Path | None = None) -> None:
        """``list_keys`` is the folder with the keys that sign the list. If it is None, the list is unsigned."""
        self.followers = followers
        self._target, self._list_keys = target, list_keys
        self._signed_list = SignedListState()
        self._has_published = False  # whether this process has published

    @property
    def is_unchanged(self) -> bool:
        return self._target.is_unchanged

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,
        at: datetime,
        parts: FileUpdates,
    ) -> PublicationResult:
        """Publish like `Target.publish`, write the signed list, then start to update the targets that follow."""
        done = self._target.publish(servers, shared, complete=complete, commit=commit, at=at, parts=parts)
        self._update_list(at)
        self._has_published = True
        self.followers.publish()
        return done

    def renew_list(self, at: datetime) -> SignedListState:
        """Renew the signed list if it is due or if its keys changed, and return the state of the list.

        Other targets are not updated before this process has published, because OUTPUT may be older than they are.
        """
        before = self._signed_list.expires
        self._update_list(at)
        if self._signed_list.expires != before and self._has_published:
            self.followers.publish()
        return self._signed_list

    def _update_list(self, at: datetime) -> None:
        before, keys = self._signed_list, None
        try:
            keys = read_list_keys(self._list_keys) if self._list_keys is not None else None
            expires, failure = self._target.update_list(keys, at), None
        except (PublishError, UsageError) as error:  # the previous list stays in place
            expires, failure = before.expires, (type(error).__name__, str(error))
        self._signed_list = SignedListState(
            signed=self._list_keys is not None,
            expires=expires,
            root_expires=keys.root_expires if keys is not None else before.root_expires,
            failure=failure,
            key_folder=str(self._list_keys) if self._list_keys is not None else None,
        )

    def predict_mtime(self, path: str, file: File, at: datetime) -> int:
        return self._target.predict_mtime(path, file, at)

    def has_files(self, files: Files) -> bool:
        return self._target.has_files(files)

    def end_windows(self, at: datetime) -> EndedWindows:
        """End the windows that are over.

        The targets that follow are not updated, because they may be newer than this target.
        """
        return self._target.end_windows(at)


def build_followers(
    settings: Settings, store: Store, source: Source, clock: Callable[[], datetime], wake: Callable[[], None]
) -> Followers:
    """Build the targets that follow OUTPUT according to the settings. Raises `UsageError`."""
    names = [each.name for each in settings.targets]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"--target {min(doubled)} appears twice; remove one")
    return Followers(
        [
            Follower(
                _build_target(each, settings, store, source, clock),
                FollowedTree(settings.output),
                following=TargetStatus(name=each.name, base_url=each.serves, behind_since=clock()),
                clock=clock,
                wake=wake,
            )
            for each in settings.targets
        ]
    )


def _build_target(
    target_address: TargetAddress,
    settings: Settings,
    store: Store,
    source: Source,
    clock: Callable[[], datetime],
) -> TargetStore:
    if isinstance(target_address, BranchAddress):
        return _build_branch_target(target_address, settings, store, source, clock)
    target = partial(
        StoreTarget,
        target_address.name,
        ledger=instance_tables.read_facts(store).identity,
        heir_of=lambda: instance_tables.read_facts(store).heir_of,
        writer=secrets.token_hex(8),
    )
    if isinstance(target_address, FolderAddress):
        folder = target_address.folder.resolve()
        for name, other in (("OUTPUT", settings.output.resolve()), ("STATE", settings.state.resolve())):
            if folder.is_relative_to(other) or other.is_relative_to(folder):
                raise UsageError(
                    f"--target {target_address.name}: the folder overlaps {name} ({other}); choose a separate folder"
                )
        return target(folder_opener(target_address.folder))
    if isinstance(target_address, RsyncAddress):
        folder = settings.state / "targets" / compute_digest(target_address.name.encode())[:16]
        return target(folder_target.rsync_opener(target_address, folder, _read_keys), most=folder_target.MOST)
    from gitboot.publish.targets.s3 import bucket_opener  # imported here, because obstore is an optional dependency

    return target(bucket_opener(target_address, _read_keys))


def _build_branch_target(
    target_address: BranchAddress, settings: Settings, store: Store, source: Source, clock: Callable[[], datetime]
) -> BranchTarget:
    is_followed_there = _repository_place(target_address.url) == _repository_place(settings.git.repository)
    reference = source.reference
    if is_followed_there and reference in (target_address.branch, target_address.ref):
        raise UsageError(
            f"--target {target_address.name} is the branch that this instance follows; choose another branch"
        )
    remote_of = partial(_build_remote, target_address, settings.git)
    # Check the settings at startup, but not the credentials, because an unreadable file only delays the target.
    remote_of(read=lambda _: ("", ""))
    return BranchTarget(
        target_address.name,
        OwnedBranch(
            remote_of,
            target_address.ref,
            settings.state / "targets" / f"{compute_digest(target_address.name.encode())[:16]}.git",
            fetching=source.fetching,
        ),
        ledger=instance_tables.read_facts(store).identity,
        heir_of=lambda: instance_tables.read_facts(store).heir_of,
        follows_default=is_followed_there and reference in (None, HEAD),
        author_of=partial(read_authorship, source.clone),
        clock=clock,
    )


def _repository_place(url: str) -> tuple[str | None, str]:
    """Return the host and path of a repository, which are the same for all URLs of that repository."""
    parts = parse_git_url(url)
    if parts.scheme in ("", "file"):
        return None, str(Path(parts.path).resolve()).removesuffix("/.git")
    return parts.hostname, parts.path.strip("/").removesuffix(".git")


def _build_remote(
    target_address: BranchAddress, git: GitSettings, *, read: Callable[[Path], tuple[str, str]] | None = None
) -> Remote:
    credentials: Password | SshKey | None = None
    if target_address.ssh_key is not None:
        if target_address.known_hosts is None:
            raise UsageError(
                f"--target {target_address.name}: ssh-key also needs known-hosts, so that gitboot can verify the host"
            )
        credentials = SshKey(private_key=target_address.ssh_key, known_hosts=target_address.known_hosts)
    elif target_address.credentials is not None:
        user, password = (read or _read_keys)(target_address.credentials)
        credentials = Password(user=user, password=password)
    return Remote(
        url=target_address.url,
        credentials=credentials,
        ca_bundle=target_address.ca_bundle,
        timeout_s=git.timeout_s,
        max_bytes=git.max_bytes,
    )


def _read_keys(folder: Path) -> tuple[str, str]:
    found = read_credentials(folder.parent, folder.name)
    return found.username, found.password
