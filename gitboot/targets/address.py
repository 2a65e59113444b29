"""The value of `--target`: a folder here or on another host, a Git branch, an S3 bucket, and the URL of machines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from gitboot.errors import UsageError

_GIT: Final = "git+"
_FOR_ALL: Final = frozenset({"ca-bundle", "credentials", "serves"})
_FOR_GIT: Final = _FOR_ALL | {"known-hosts", "ssh-key"}
_FOR_S3: Final = _FOR_ALL | {"endpoint", "region", "style"}
_FOR_FOLDER: Final = frozenset({"serves"})
_FOR_SSH: Final = frozenset({"known-hosts", "serves", "ssh-key"})
_FOR_RSYNC: Final = frozenset({"credentials", "serves"})
_SETTINGS: Final = {"rsync": _FOR_RSYNC, "s3": _FOR_S3, "ssh": _FOR_SSH}
_HOST: Final = re.compile(r"[0-9A-Za-z_\[:][0-9A-Za-z_.:%-]*")  # never an option of ssh
_USER: Final = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]*")
_EXPECTED: Final = (
    "a folder /DIR, ssh://USER@HOST/DIR, rsync://HOST/MODULE, git+https://…#BRANCH, git+ssh://…#BRANCH or "
    "s3://BUCKET/PREFIX"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchAddress:
    """A branch of a Git repository that belongs to one instance."""

    url: str
    branch: str
    credentials: Path | None = None  # a directory with username and password
    ssh_key: Path | None = None
    known_hosts: Path | None = None
    ca_bundle: Path | None = None
    serves: str | None = None  # the base URL under which machines find it; None: nobody says

    @property
    def name(self) -> str:
        """What people are told it is."""
        return f"{_GIT}{self.url}#{self.branch}"

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketAddress:
    """A bucket of an S3-compatible store, and the prefix in it that belongs to one instance."""

    bucket: str
    prefix: str = ""  # without slashes around it
    endpoint: str | None = None  # None: AWS's own, by region
    region: str = "us-east-1"
    path_style: bool = False  # the bucket in the path of URLs, not in the host's name
    credentials: Path | None = None  # a directory with username and password: key id and key; None: the environment's
    ca_bundle: Path | None = None
    serves: str | None = None

    @property
    def name(self) -> str:
        """What people are told it is."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderAddress:
    """A folder of this machine that belongs to one instance."""

    folder: Path  # absolute
    serves: str | None = None  # the base URL that machines use for it; None: unknown

    @property
    def name(self) -> str:
        """The name of the target in messages."""
        return str(self.folder)


@dataclass(frozen=True, kw_only=True, slots=True)
class RsyncAddress:
    """A folder of another host that belongs to one instance, and that rsync reaches by ssh or by its daemon."""

    host: str
    path: str  # absolute, without a slash at its end; of a daemon: the module, and a folder in it
    user: str | None = None
    port: int | None = None  # None: the protocol's own
    is_daemon: bool = False  # rsync://; else by ssh
    credentials: Path | None = None  # for a daemon: a directory with username and password
    ssh_key: Path | None = None
    known_hosts: Path | None = None
    serves: str | None = None

    @property
    def name(self) -> str:
        """The name of the target in messages."""
        user = f"{self.user}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = f":{self.port}" if self.port is not None else ""
        return f"{'rsync' if self.is_daemon else 'ssh'}://{user}{host}{port}{self.path}"


TargetAddress = BranchAddress | BucketAddress | FolderAddress | RsyncAddress


def parse_target(text: str) -> TargetAddress:
    """Return the target that a URL names: ``/DIR``, ``git+https://HOST/PATH#BRANCH`` or ``s3://BUCKET/PREFIX``.

    The query of the URL holds settings. Raises `UsageError`, also for credentials in the URL itself: gitboot shows and
    logs it.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise UsageError(f"--target: {error}") from None
    is_git = parts.scheme.startswith(_GIT)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    is_folder = parts.scheme == "file" or (not parts.scheme and not parts.netloc and text.startswith("/"))
    shown = parts.path if is_folder and not parts.netloc else shown
    if not is_git and not is_folder and parts.scheme not in ("rsync", "s3", "ssh"):
        raise UsageError(f"--target {shown}: expected {_EXPECTED}")
    if parts.password is not None or (parts.username is not None and parts.scheme not in ("git+ssh", "ssh")):
        raise UsageError(f"--target {shown}: credentials do not belong into a URL; name a directory: ?credentials=DIR")
    known_settings = _FOR_GIT if is_git else _FOR_FOLDER if is_folder else _SETTINGS[parts.scheme]
    if unknown := sorted(given.keys() - known_settings):
        known = ", ".join(sorted(known_settings))
        raise UsageError(f"--target {shown}: there is no setting {unknown[0]!r}; it may have {known}")
    if is_git:
        return _branch(shown, text, given)
    if is_folder:
        if parts.netloc or parts.fragment or not parts.path.startswith("/"):
            raise UsageError(f"--target {shown}: expected the absolute path of a folder")
        path = unquote(parts.path) if parts.scheme else parts.path
        return FolderAddress(folder=Path(path), serves=_base(given))
    if parts.scheme in ("rsync", "ssh"):
        return _other_host(shown, parts, given)
    return _bucket(shown, parts.netloc, parts.path, given)


def _branch(shown: str, text: str, given: Mapping[str, str]) -> BranchAddress:
    address, _, branch = text.partition("#")
    branch = unquote(branch).removeprefix("refs/heads/")
    if not branch or branch.startswith("refs/"):
        raise UsageError(f"--target {shown}: name the branch that gitboot may have: {shown}#BRANCH")
    return BranchAddress(
        url=address.partition("?")[0].removeprefix(_GIT),
        branch=branch,
        credentials=_path(given, "credentials"),
        ssh_key=_path(given, "ssh-key"),
        known_hosts=_path(given, "known-hosts"),
        ca_bundle=_path(given, "ca-bundle"),
        serves=_base(given),
    )


def _other_host(shown: str, parts: SplitResult, given: Mapping[str, str]) -> RsyncAddress:
    is_daemon = parts.scheme == "rsync"
    host, path, user = parts.hostname or "", unquote(parts.path).rstrip("/"), parts.username
    if (
        _HOST.fullmatch(host) is None
        or (user is not None and _USER.fullmatch(user) is None)
        or parts.fragment
        or {"", ".", ".."}.intersection(path.split("/")[1:] or [""])
    ):
        raise UsageError(
            f"--target {shown}: expected {'rsync://HOST/MODULE' if is_daemon else 'ssh://USER@HOST/DIR'}, with the "
            "path of a folder"
        )
    address = RsyncAddress(
        host=host,
        path=path,
        user=user,
        port=parts.port,
        is_daemon=is_daemon,
        credentials=_path(given, "credentials"),
        ssh_key=_path(given, "ssh-key"),
        known_hosts=_path(given, "known-hosts"),
        serves=_base(given),
    )
    if not is_daemon and (address.ssh_key is None or address.known_hosts is None):
        raise UsageError(f"--target {shown}: name the private key and the file of host keys: ?ssh-key=…&known-hosts=…")
    return address


def _bucket(shown: str, bucket: str, path: str, given: Mapping[str, str]) -> BucketAddress:
    endpoint, style = given.get("endpoint"), given.get("style")
    prefix = unquote(path).strip("/")
    if not bucket or {"", ".", ".."}.intersection(prefix.split("/") if prefix else ()):
        raise UsageError(f"--target {shown}: expected s3://BUCKET/PREFIX")
    if style not in (None, "path", "virtual"):
        raise UsageError(f"--target {shown}: style is path or virtual, not {style!r}")
    if endpoint is not None and (urlsplit(endpoint).scheme not in ("http", "https") or "@" in endpoint):
        raise UsageError(f"--target {shown}: endpoint is a URL, https://HOST, without credentials")
    return BucketAddress(
        bucket=bucket,
        prefix=prefix,
        endpoint=endpoint,
        region=given.get("region", "us-east-1"),
        path_style=style == "path" or (style is None and endpoint is not None),
        credentials=_path(given, "credentials"),
        ca_bundle=_path(given, "ca-bundle"),
        serves=_base(given),
    )


def _path(given: Mapping[str, str], name: str) -> Path | None:
    return Path(given[name]) if name in given else None


def _base(given: Mapping[str, str]) -> str | None:
    return given["serves"].rstrip("/") if "serves" in given else None
