"""What `--target` says: a Git branch or an S3 bucket, how it is reached, and under which URL machines know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from gitboot.errors import UsageError

_GIT: Final = "git+"
_FOR_ALL: Final = frozenset({"ca-bundle", "credentials", "serves"})
_FOR_GIT: Final = _FOR_ALL | {"known-hosts", "ssh-key"}
_FOR_S3: Final = _FOR_ALL | {"endpoint", "region", "style"}


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


def parse_target(text: str) -> BranchAddress | BucketAddress:
    """``git+https://HOST/PATH#BRANCH`` or ``s3://BUCKET/PREFIX``, each with settings as its query.

    Raises `UsageError`; credentials in the URL itself are refused, for it is shown and logged.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
        given = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise UsageError(f"--target: {error}") from None
    is_git = parts.scheme.startswith(_GIT)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    if not is_git and parts.scheme != "s3":
        raise UsageError(f"--target {shown}: expected git+https://…#BRANCH, git+ssh://…#BRANCH or s3://BUCKET/PREFIX")
    if parts.password is not None or (parts.username is not None and parts.scheme != "git+ssh"):
        raise UsageError(f"--target {shown}: credentials do not belong into a URL; name a directory: ?credentials=DIR")
    if unknown := sorted(given.keys() - (_FOR_GIT if is_git else _FOR_S3)):
        known = ", ".join(sorted(_FOR_GIT if is_git else _FOR_S3))
        raise UsageError(f"--target {shown}: there is no setting {unknown[0]!r}; it may have {known}")
    if is_git:
        return _branch(shown, text, given)
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
