"""Followers of an instance: the targets that follow OUTPUT, built from the settings."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

from gitboot.bmc.credentials import read_credentials
from gitboot.controller.instance.settings import GitSettings, Settings
from gitboot.errors import UsageError
from gitboot.git.branch_writer import OwnedBranch, read_authorship
from gitboot.git.clone import Source
from gitboot.git.remote import HEAD, Password, Remote, SshKey, get_local_path, parse_git_url
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store
from gitboot.publish.manifest import compute_digest
from gitboot.publish.targets import rsync
from gitboot.publish.targets.addresses import BranchAddress, FolderAddress, RsyncAddress, TargetAddress
from gitboot.publish.targets.folder import build_folder_opener
from gitboot.publish.targets.followed_tree import FollowedTree
from gitboot.publish.targets.follower import Follower, Followers, TargetStore
from gitboot.publish.targets.git_branch import BranchTarget
from gitboot.publish.targets.store_target import StoreTarget
from gitboot.status.instance_status import TargetStatus


def build_followers(
    settings: Settings, store: Store, source: Source, clock: Callable[[], datetime], wake: Callable[[], None]
) -> Followers:
    """Build the targets that follow OUTPUT, as configured in the settings. Raises `UsageError`."""
    names = [address.name for address in settings.targets]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"--target {min(duplicates)} appears twice; remove one")
    followers = []
    for address in settings.targets:
        follower = Follower(
            _build_target(address, settings, store, source, clock),
            FollowedTree(settings.output),
            target_status=TargetStatus(name=address.name, base_url=address.base_url, behind_since=clock()),
            clock=clock,
            wake=wake,
        )
        followers.append(follower)
    return Followers(followers)


def _build_target(
    target_address: TargetAddress,
    settings: Settings,
    store: Store,
    source: Source,
    clock: Callable[[], datetime],
) -> TargetStore:
    """Build one target. Raises `UsageError` if its settings are unusable."""
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
        return target(build_folder_opener(target_address.folder))
    if isinstance(target_address, RsyncAddress):
        folder = settings.state / "targets" / compute_digest(target_address.name.encode())[:16]
        return target(rsync.build_rsync_opener(target_address, folder, _read_keys), max_servers=rsync.MAX_SERVERS)
    # Imported here, because obstore is an optional dependency.
    from gitboot.publish.targets.s3 import build_bucket_opener

    return target(build_bucket_opener(target_address, _read_keys))


def _build_branch_target(
    target_address: BranchAddress, settings: Settings, store: Store, source: Source, clock: Callable[[], datetime]
) -> BranchTarget:
    """Build a target that is a branch of a Git repository. Raises `UsageError`."""
    is_same_repository = _parse_location(target_address.url) == _parse_location(settings.git.repository)
    reference = source.reference
    if is_same_repository and reference in (target_address.branch, target_address.ref):
        raise UsageError(
            f"--target {target_address.name} is the branch that this instance follows; choose another branch"
        )
    make_remote = partial(_build_remote, target_address, settings.git)
    # Check the settings at startup, but not the credentials, because an unreadable file only delays the target.
    make_remote(read=lambda _: ("", ""))
    return BranchTarget(
        target_address.name,
        OwnedBranch(
            make_remote,
            target_address.ref,
            settings.state / "targets" / f"{compute_digest(target_address.name.encode())[:16]}.git",
            fetcher=source.fetcher,
        ),
        ledger=instance_tables.read_facts(store).identity,
        heir_of=lambda: instance_tables.read_facts(store).heir_of,
        follows_default=is_same_repository and reference in (None, HEAD),
        find_author=partial(read_authorship, source.clone),
        clock=clock,
    )


def _parse_location(url: str) -> tuple[str | None, str]:
    """Return the host and path of a repository, which are the same in all URLs of the repository."""
    if (path := get_local_path(url)) is not None:
        return None, str(path.resolve()).removesuffix("/.git")
    parts = parse_git_url(url)
    return parts.hostname, parts.path.strip("/").removesuffix(".git")


def _build_remote(
    target_address: BranchAddress, git: GitSettings, *, read: Callable[[Path], tuple[str, str]] | None = None
) -> Remote:
    """Return the remote of a branch target, with the credentials that ``read`` returns. Raises `UsageError`."""
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
    """Return the user name and the password in a folder. Raises `UsageError`."""
    credentials = read_credentials(folder.parent, folder.name)
    return credentials.username, credentials.password
