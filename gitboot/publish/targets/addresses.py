"""Target addresses: parse the URL of a target."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct

from gitboot.errors import UsageError
from gitboot.text import redact_url

_GIT: Final = "git+"
_SETTINGS: Final = {  # by the kind of target
    _GIT: {"ca-bundle", "credentials", "known-hosts", "serves", "ssh-key"},
    "file": {"serves"},
    "rsync": {"credentials", "serves"},
    "s3": {"ca-bundle", "credentials", "endpoint", "region", "serves", "style"},
    "ssh": {"known-hosts", "serves", "ssh-key"},
}
# the settings whose values are files or folders
_PATH_SETTINGS: Final = ("ca-bundle", "credentials", "known-hosts", "ssh-key")

# a function that reads the credentials in a folder: a user and a password, or a key's ID and secret
ReadCredentials = Callable[[Path], tuple[str, str]]


class _Address(Struct, frozen=True, kw_only=True):
    """The settings in the URL of a target. Each kind of target uses only some of them."""

    # a directory with files username and password; for a bucket, they contain a key's ID and secret
    credentials: Path | None = None
    ssh_key: Path | None = None
    known_hosts: Path | None = None
    ca_bundle: Path | None = None
    base_url: str | None = None  # the base URL under which machines fetch from the target; None: unknown


class BranchAddress(_Address, frozen=True, kw_only=True):
    """A branch of a Git repository."""

    url: str
    branch: str

    @property
    def name(self) -> str:
        return f"{_GIT}{self.url}#{self.branch}"

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"


class BucketAddress(_Address, frozen=True, kw_only=True):
    """A bucket of an S3-compatible store, and a prefix in the bucket.

    Without credentials, gitboot uses the key in the environment.
    """

    bucket: str
    prefix: str = ""  # without enclosing slashes
    endpoint: str | None = None  # None: the endpoint of AWS for the region
    region: str = "us-east-1"
    path_style: bool = False  # whether the bucket is in the path of URLs instead of the host name

    @property
    def name(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


class FolderAddress(_Address, frozen=True, kw_only=True):
    """A folder on this host."""

    folder: Path  # absolute

    @property
    def name(self) -> str:
        return str(self.folder)


class RsyncAddress(_Address, frozen=True, kw_only=True):
    """A folder on another host, which rsync reaches through ssh or an rsync daemon."""

    host: str
    path: str  # absolute, without a trailing slash; for a daemon, the module and a folder in it
    user: str | None = None
    port: int | None = None  # None: use the default port of the protocol
    is_daemon: bool = False  # True for rsync:// URLs, False for ssh:// URLs

    @property
    def destination(self) -> str:
        """The user and the host in the URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" if self.user else host

    @property
    def name(self) -> str:
        port = f":{self.port}" if self.port is not None else ""
        return f"{'rsync' if self.is_daemon else 'ssh'}://{self.destination}{port}{self.path}"


TargetAddress = BranchAddress | BucketAddress | FolderAddress | RsyncAddress


def parse_target(text: str) -> TargetAddress:
    """Parse the URL of a target, such as ``/DIR``, ``git+https://HOST/PATH#BRANCH`` or ``s3://BUCKET/PREFIX``.

    The query of the URL contains settings. Raises `UsageError` if the URL is invalid, or if it contains credentials,
    because gitboot shows and logs the URL.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
        settings = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:  # the text of this error may contain a part of a password
        raise UsageError(f"--target {redact_url(text)}: the host, the port or a setting is not valid") from None
    is_folder = parts.scheme == "file" or (not parts.scheme and not parts.netloc and text.startswith("/"))
    if is_folder and not parts.netloc:
        display_url = parts.path
    else:
        display_url = redact_url(f"{parts.scheme}://{parts.netloc}{parts.path}")
    kind = "file" if is_folder else _GIT if parts.scheme.startswith(_GIT) else parts.scheme
    _check_settings(display_url, kind, parts, settings)
    paths = {name.replace("-", "_"): Path(settings[name]) for name in _PATH_SETTINGS if name in settings}
    base_url = settings["serves"].rstrip("/") if "serves" in settings else None
    if kind == "file":
        return _parse_folder_address(display_url, parts, base_url)
    if kind == _GIT:
        return _parse_branch_address(display_url, text, paths, base_url)
    if kind in ("rsync", "ssh"):
        return _parse_rsync_address(display_url, parts, paths, base_url)
    return _parse_bucket_address(display_url, parts, settings, paths, base_url)


def _check_settings(display_url: str, kind: str, parts: SplitResult, settings: Mapping[str, str]) -> None:
    """Raise `UsageError` if there is no such kind of target or setting, or if the URL contains credentials."""
    if kind not in _SETTINGS:
        raise UsageError(
            f"--target {display_url}: expected a folder /DIR, ssh://USER@HOST/DIR, rsync://HOST/MODULE, "
            "git+https://…#BRANCH, git+ssh://…#BRANCH or s3://BUCKET/PREFIX"
        )
    if parts.password is not None or (parts.username is not None and parts.scheme not in ("git+ssh", "ssh")):
        raise UsageError(
            f"--target {display_url}: remove the credentials from the URL; pass their directory with "
            "?credentials=DIR instead"
        )
    unknown = sorted(settings.keys() - _SETTINGS[kind])
    if unknown:
        known = ", ".join(sorted(_SETTINGS[kind]))
        raise UsageError(f"--target {display_url}: there is no setting {unknown[0]!r}; the settings are {known}")


def _parse_folder_address(display_url: str, parts: SplitResult, base_url: str | None) -> FolderAddress:
    if parts.netloc or parts.fragment or not parts.path.startswith("/"):
        raise UsageError(f"--target {display_url}: expected the absolute path of a folder")
    path = unquote(parts.path) if parts.scheme else parts.path
    return FolderAddress(folder=Path(path), base_url=base_url)


def _parse_branch_address(
    display_url: str, text: str, paths: Mapping[str, Path], base_url: str | None
) -> BranchAddress:
    address, _, fragment = text.partition("#")
    branch = unquote(fragment).removeprefix("refs/heads/")
    if not branch or branch.startswith("refs/"):
        raise UsageError(f"--target {display_url}: add a branch that gitboot may overwrite: …#BRANCH")
    return BranchAddress(url=address.partition("?")[0].removeprefix(_GIT), branch=branch, base_url=base_url, **paths)


def _parse_rsync_address(
    display_url: str, parts: SplitResult, paths: Mapping[str, Path], base_url: str | None
) -> RsyncAddress:
    is_daemon = parts.scheme == "rsync"
    host, path, user = parts.hostname or "", unquote(parts.path).rstrip("/"), parts.username
    # the host and the user must not begin like an option of ssh
    if (
        re.fullmatch(r"[0-9A-Za-z_\[:][0-9A-Za-z_.:%-]*", host) is None
        or (user is not None and re.fullmatch(r"[0-9A-Za-z_][0-9A-Za-z_.-]*", user) is None)
        or parts.fragment
        or {"", ".", ".."}.intersection(path.split("/")[1:] or [""])
    ):
        raise UsageError(
            f"--target {display_url}: expected the URL of a folder, such as "
            f"{'rsync://HOST/MODULE' if is_daemon else 'ssh://USER@HOST/DIR'}"
        )
    if not is_daemon and not paths.keys() >= {"ssh_key", "known_hosts"}:
        raise UsageError(
            f"--target {display_url}: add the private key and the known-hosts file: ?ssh-key=…&known-hosts=…"
        )
    return RsyncAddress(
        host=host, path=path, user=user, port=parts.port, is_daemon=is_daemon, base_url=base_url, **paths
    )


def _parse_bucket_address(
    display_url: str, parts: SplitResult, settings: Mapping[str, str], paths: Mapping[str, Path], base_url: str | None
) -> BucketAddress:
    endpoint, style = settings.get("endpoint"), settings.get("style")
    prefix = unquote(parts.path).strip("/")
    if not parts.netloc or {"", ".", ".."}.intersection(prefix.split("/") if prefix else ()):
        raise UsageError(f"--target {display_url}: expected s3://BUCKET/PREFIX")
    if style not in (None, "path", "virtual"):
        raise UsageError(f"--target {display_url}: expected style=path or style=virtual, found {style!r}")
    if endpoint is not None and (urlsplit(endpoint).scheme not in ("http", "https") or "@" in endpoint):
        raise UsageError(f"--target {display_url}: expected endpoint=https://HOST without credentials")
    return BucketAddress(
        bucket=parts.netloc,
        prefix=prefix,
        endpoint=endpoint,
        region=settings.get("region", "us-east-1"),
        path_style=style == "path" or (style is None and endpoint is not None),
        base_url=base_url,
        **paths,
    )
