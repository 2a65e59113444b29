"""Git remotes: connect with credentials and host keys, select the reference to follow, fetch and push."""

from __future__ import annotations

import base64
import errno
import hmac
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec
import pygit2
from msgspec import Struct
from pygit2.enums import CredentialType

from gitboot.child_processes import limit_file_size
from gitboot.errors import BranchMissing, SourceError, SourceRefused, SourceTooLarge, UsageError
from gitboot.files import write_atomically
from gitboot.git.repository import Transfer, format_error, get_objects_directory, get_step_reporter, report_work
from gitboot.text import one_line, redact_url


class Password(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Credentials for HTTP basic authentication over TLS."""

    password: str  # the password, or a token
    user: str = "git"  # any user name, because forges accept any name with a token

    def __repr__(self) -> str:
        return f"Password(user={self.user!r})"


class SshKey(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Credentials for SSH: a private key, and the host keys that gitboot accepts."""

    private_key: Path
    known_hosts: Path  # a known_hosts file in the format of ssh
    passphrase: str = ""

    def __repr__(self) -> str:
        return f"SshKey(private_key={self.private_key!r})"


class Remote(Struct, frozen=True, kw_only=True):
    """The fleet's remote repository, and the reference to follow in it.

    Raises `UsageError` if the fields contradict each other.
    """

    url: str  # https, http, ssh, git and file URLs, user@host:path, or a local path
    # a branch, a tag, refs/…, a version range or a commit; None or HEAD: the remote's HEAD
    reference: str | None = None
    subpath: str = ""  # the folder of the fleet in the repository, or below `local`; "": the top folder
    credentials: Password | SshKey | None = None
    ca_bundle: Path | None = None  # certificate authorities in addition to those of this machine
    connect_timeout_s: float = 10
    timeout_s: float = 60  # the time limit for a response, and for each ``timeout_s`` KiB of data
    max_bytes: int | None = None  # the maximum size of the clone on disk; None: no limit

    def __post_init__(self) -> None:
        try:
            parts = parse_git_url(self.url)
            _ = parts.port
        except ValueError:  # the text of this error may contain a part of a password
            raise UsageError(f"{redact_url(self.url)}: the host or the port is not valid") from None
        match parts.scheme, self.credentials:
            case ("ssh", SshKey()) | ("https", Password() | None) | ("http" | "git" | "file" | "", None):
                pass
            case "ssh", _:
                raise UsageError(
                    f"{redact_url(self.url)} requires a private key and a known_hosts file: specify them with --git-ssh"
                )
            case "http", Password():
                raise UsageError(f"{redact_url(self.url)}: gitboot would send the password unencrypted; use https")
            case "https" | "http" | "git" | "file" | "", _:
                raise UsageError(
                    f"{redact_url(self.url)} does not support {type(self.credentials).__name__} credentials"
                )
            case scheme, _:
                raise UsageError(f"{redact_url(self.url)}: unknown scheme {scheme}; use https, http, ssh, git or file")
        if parts.password is not None or (parts.username is not None and parts.scheme != "ssh"):
            raise UsageError(
                f"{redact_url(self.url)}: remove the credentials from the URL, because gitboot shows and logs the URL"
            )
        if self.reference is not None and is_range(self.reference):
            parse_range(self.reference)

    @property
    def local_path(self) -> Path | None:
        """The path of a local repository or of a folder in a work tree, or None if the repository is not local."""
        return get_local_path(self.url)

    @property
    def commit(self) -> str | None:
        """The commit ID that the reference consists of, or None if the reference is not a commit ID."""
        return self.reference if re.fullmatch(r"[0-9a-f]{40}", self.reference or "") else None


def parse_git_url(url: str) -> SplitResult:
    """Split a Git URL into its parts.

    As in git-fetch(1), user@host:path is an SSH URL, and any other text without a scheme is a path.
    """
    if "://" in url:
        return urlsplit(url)
    if match := re.fullmatch(r"(?P<authority>(?:[^@/:]+@)?(?:\[[^\]/]+\]|[^/:]+)):(?!//)(?P<path>.*)", url, re.DOTALL):
        return urlsplit(f"ssh://{match['authority']}/{match['path']}")
    return SplitResult("", "", url, "", "")


def get_local_path(url: str) -> Path | None:
    """Return the path in the URL of a local repository, or None if the repository is not local."""
    scheme = parse_git_url(url).scheme
    if scheme == "file":  # a file URL of Git has no query and no fragment
        return Path(unquote(urlsplit(url.replace("?", "%3F").replace("#", "%23")).path)).absolute()
    return Path(url).absolute() if not scheme else None


HEAD: Final = "HEAD"  # an instance with this reference follows the checked-out commit
# maps ref names to object IDs. A name with "^{}" maps to the ID of the object to which an annotated tag points
RefIds = Mapping[str, str]


class Head(NamedTuple):
    """The HEAD of a repository and what it refers to."""

    # the branch, for example refs/heads/main; None: HEAD is detached, or the remote does not report the branch
    branch: str | None
    is_checked_out: bool = False  # whether the repository has a work tree


def read_head(repository: pygit2.Repository) -> Head:
    """Return the HEAD of a local repository."""
    branch = None
    with suppress(KeyError):
        target = repository.lookup_reference(HEAD).target
        branch = target if isinstance(target, str) else None  # if the target is not a text, it is a commit ID
    return Head(branch, not repository.is_bare)


def find_reference(remote: Remote, ref_ids: RefIds) -> str:
    """Return the full name of the ref to follow. A branch takes precedence over a tag with the same name.

    If a tag took precedence, a person who may push only tags could replace a protected branch.
    """
    reference = remote.reference
    if reference in (None, HEAD):
        names = [HEAD]
    elif is_range(reference):
        tags = [name.removeprefix("refs/tags/") for name in ref_ids if name.startswith("refs/tags/")]
        tag = find_highest_tag(parse_range(reference), tags)
        names = [f"refs/tags/{tag}"] if tag is not None else []
    elif reference.startswith("refs/"):
        names = [reference]
    else:
        names = [f"refs/heads/{reference}", f"refs/tags/{reference}"]
    reference_name = next((name for name in names if name in ref_ids), None)
    if reference_name is None:
        if not ref_ids:
            raise SourceError(f"{remote.url} has no commits yet")
        raise BranchMissing(_explain_missing_reference(remote.url, reference, ref_ids))
    return reference_name


def _explain_missing_reference(url: str, reference: str | None, ref_ids: RefIds) -> str:
    if reference in (None, HEAD):
        return f"{url} has no commit at HEAD; use --rev to name the branch to follow"
    if is_range(reference):
        return f"{url} has no tag with a version in the range {reference}"
    branches = sorted(name.removeprefix("refs/heads/") for name in ref_ids if name.startswith("refs/heads/"))
    others = f"the branches are {', '.join(branches[:10])}" if branches else "the repository has no branches"
    return f"{url} has no branch or tag {reference}; {others}. Use --rev to name the branch to follow"


# libgit2 has no error codes for these cases.
_REFUSED: Final = re.compile("failed to authenticate SSH session|unexpected http status code: 403")
_FILE_TOO_LARGE: Final = os.strerror(errno.EFBIG)  # the message of the error that `limit_file_size` causes


class RemoteConnection:
    """A connection that fetches from one remote into one repository.

    Creating a connection configures libgit2 for the remote.
    """

    def __init__(
        self, remote: Remote, local_repository: pygit2.Repository | None, clone: pygit2.Repository, home: Path
    ) -> None:
        """Connect ``clone`` to the remote, or to ``local_repository`` if the remote is a local repository.

        ``home`` is a directory for the known_hosts file of libgit2. Raises `UsageError` if the settings are not usable.
        """
        self._remote, self._local_repository, self._clone = remote, local_repository, clone
        self._callbacks = _Callbacks(remote)
        with self._translate_errors():
            pygit2.settings.server_connect_timeout = round(remote.connect_timeout_s * 1000)
            pygit2.settings.server_timeout = round(remote.timeout_s * 1000)
            if remote.ca_bundle is not None:
                try:
                    pygit2.settings.set_ssl_cert_locations(str(remote.ca_bundle), None)
                except pygit2.GitError as error:
                    raise UsageError(f"{remote.ca_bundle} contains no certificates: {format_error(error)}") from error
            if isinstance(remote.credentials, SshKey):
                _check_private_key(remote.credentials.private_key)
                _register_host_keys(remote, remote.credentials.known_hosts, home)
            # gitboot uses an anonymous remote, which does not fetch tags, and does not store configuration and
            # credentials.
            url = remote.url if local_repository is None else str(local_repository.path)
            self._libgit2_remote = clone.remotes.create_anonymous(url)

    def list_references(self) -> tuple[RefIds, Head]:
        """Return the refs of the remote, and its HEAD."""
        if self._local_repository is not None:
            return self._list_local_references(self._local_repository)
        with self._translate_errors():
            self._callbacks.begin()
            get_step_reporter().begin_answer(self._remote.timeout_s)
            remote_heads = self._libgit2_remote.list_heads(self._callbacks)
            report_work()
            branch = next((head.symref_target for head in remote_heads if head.name == HEAD), None)
            return {str(head.name): str(head.oid) for head in remote_heads}, Head(branch)

    def _list_local_references(self, repository: pygit2.Repository) -> tuple[RefIds, Head]:
        """List the refs of a local repository without libgit2's transport, which would parse commits, and may fail."""
        ref_ids: dict[str, str] = {}
        with self._translate_errors():
            for name in (HEAD, *repository.references):
                with suppress(KeyError):  # the ref does not point to a commit
                    ref_ids[name] = str(repository.lookup_reference(name).resolve().target)
            report_work()
            return ref_ids, read_head(repository)

    def fetch(self, *refspecs: str) -> None:
        """Fetch refs into the repository. Raises `SourceTooLarge` if the clone would exceed its maximum size."""
        remaining_bytes = None  # the number of bytes that the clone may still use; None: no limit
        if self._remote.max_bytes is not None:
            sizes = (file.stat().st_size for file in get_objects_directory(self._clone).rglob("*") if file.is_file())
            remaining_bytes = self._remote.max_bytes - sum(sizes)
            if remaining_bytes <= 0:
                raise _build_too_large_error(self._remote)
        # libgit2 completes a received pack with objects from the clone, which do not count as received bytes.
        with self._translate_errors(), limit_file_size(remaining_bytes):
            transfer = get_step_reporter().begin_download(self._remote.timeout_s)
            self._callbacks.begin(transfer=transfer, remaining_bytes=remaining_bytes)
            self._libgit2_remote.fetch(list(refspecs), callbacks=self._callbacks)
            report_work()

    def push(self, refspec: str, expected: str | None) -> None:
        """Push one ref. ``expected`` is the remote ref's current commit, or None if the remote must not have the ref.

        Raises `SourceRefused` if the remote rejects the push. Raises `SourceError` if the ref points to another commit.
        """
        with self._translate_errors():
            self._callbacks.begin(expected_commit=expected)
            get_step_reporter().begin_answer(self._remote.timeout_s)
            self._libgit2_remote.push([refspec], callbacks=self._callbacks)
        if self._callbacks.rejection is not None:
            raise SourceRefused(f"{self._remote.url} rejected {refspec}: {self._callbacks.rejection}")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (pygit2.AuthError, pygit2.CertificateError) as error:
            raise SourceRefused(f"{self._remote.url}: {format_error(error)}") from error
        except pygit2.GitError as error:
            if self._callbacks.remaining_bytes is not None and _FILE_TOO_LARGE in str(error):
                raise _build_too_large_error(self._remote) from error
            error_type = SourceRefused if _REFUSED.search(str(error)) else SourceError
            raise error_type(f"{self._remote.url}: {format_error(error)}") from error


def _build_too_large_error(remote: Remote) -> SourceTooLarge:
    mebibytes = (remote.max_bytes or 0) >> 20
    return SourceTooLarge(
        f"{remote.url}: the clone would exceed the limit of {mebibytes} MiB on disk; increase fetch-disk in "
        "the --config file, or remove large files from the history"
    )


class _Callbacks(pygit2.RemoteCallbacks):
    """libgit2's callbacks: check progress, send credentials, and reject unknown host keys and moved refs."""

    # pygit2 decodes a remote's messages as UTF-8 in pieces, and a piece may end within a character.
    sideband_progress = None  # type: ignore[assignment]

    def __init__(self, remote: Remote) -> None:
        super().__init__()
        self._remote = remote
        self.rejection: str | None = None  # why the remote rejected the push
        self.begin()

    def begin(
        self,
        *,
        transfer: Transfer | None = None,
        remaining_bytes: int | None = None,
        expected_commit: str | None = None,
    ) -> None:
        """Begin an operation, and forget the results of the previous one."""
        self._has_sent_credentials = False
        self.rejection = None
        self._transfer = transfer  # the transfer that is in progress
        self.remaining_bytes = remaining_bytes  # the bytes that a fetch may receive; None: no limit
        self._expected_commit = expected_commit  # the commit to which the ref must point at the remote before a push

    def transfer_progress(self, stats: pygit2.remotes.TransferProgress) -> None:
        if self.remaining_bytes is not None and stats.received_bytes > self.remaining_bytes:
            raise _build_too_large_error(self._remote)
        if stats.received_objects < stats.total_objects and self._transfer is not None:
            self._transfer.report_size(stats.received_bytes)
        else:  # all data has arrived, and libgit2 unpacks the data
            report_work()

    def push_transfer_progress(self, _objects: int, _total: int, bytes_pushed: int) -> None:
        if self._transfer is not None:
            self._transfer.report_size(bytes_pushed)

    def push_negotiation(self, updates: list[pygit2.remotes.PushUpdate]) -> None:
        for update in updates:
            commit = str(update.src) if any(update.src.raw) else None
            if commit != self._expected_commit:
                raise SourceError(
                    f"{self._remote.url}: {update.dst_refname} moved from {self._expected_commit} to {commit} in the "
                    "meantime"
                )
        self._transfer = get_step_reporter().begin_upload(self._remote.timeout_s)

    def push_update_reference(self, _refname: str, message: str | None) -> None:
        if message is not None:
            self.rejection = one_line(message)

    def credentials(
        self, url: str, username_from_url: str | None, allowed_types: CredentialType
    ) -> pygit2.UserPass | pygit2.Keypair | pygit2.Username:
        if _parse_origin(url) != _parse_origin(self._remote.url):  # the remote has redirected libgit2 to another server
            raise SourceRefused(
                f"{self._remote.url} redirects to {one_line(redact_url(url))}, but gitboot will not send the "
                "credentials there; if this redirect is correct, use the new URL as the repository"
            )
        match self._remote.credentials:
            case SshKey() if allowed_types & CredentialType.USERNAME:
                return pygit2.Username("git")
            case _ if self._has_sent_credentials:  # libgit2 calls this function again if the credentials were wrong
                raise SourceRefused(f"{self._remote.url} refuses the credentials")
            case SshKey(private_key=key, passphrase=passphrase) if allowed_types & CredentialType.SSH_KEY:
                self._has_sent_credentials = True
                return pygit2.Keypair(username_from_url or "git", None, str(key), passphrase)
            case Password(user=user, password=password) if allowed_types & CredentialType.USERPASS_PLAINTEXT:
                self._has_sent_credentials = True
                return pygit2.UserPass(user, password)
            case None:
                raise SourceRefused(f"{self._remote.url} requires credentials; configure them for this repository")
        raise SourceRefused(f"{self._remote.url} does not accept the kind of credentials that you configured")

    def certificate_check(self, _certificate: None, valid: bool, host: bytes) -> bool:
        if valid:
            return True
        name = host.decode(errors="replace")
        if isinstance(self._remote.credentials, SshKey):
            known = self._remote.credentials.known_hosts
            raise SourceRefused(f"{name} uses a host key that is not in {known}")
        raise SourceRefused(
            f"{name}'s certificate is not trusted, has expired, or is not yet valid (check this machine's clock too)"
        )


_SSH_PORT: Final = 22
_PORTS: Final = {"https": 443, "ssh": _SSH_PORT}


def _parse_origin(url: str) -> tuple[str, str | None, int | None]:
    parts = parse_git_url(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _check_private_key(file: Path) -> None:
    """Raise `UsageError` if a file does not contain a private key. An error from libssh2 would not name the file."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: the private key cannot be read ({error.strerror})") from error
    if b"PRIVATE KEY-----" not in content:  # this text is part of the formats in RFC 7468 and in OpenSSH's PROTOCOL.key
        raise UsageError(f"{file} contains no private key in PEM or OpenSSH format; create a key with ssh-keygen")


# libssh2 reads one known_hosts file for all threads, so this file contains the keys of all remotes.
_host_keys_lock: Final = Lock()
_host_keys: Final[dict[tuple[str, int], tuple[str, ...]]] = {}


def _register_host_keys(remote: Remote, known_hosts: Path, home: Path) -> None:
    parts = parse_git_url(remote.url)
    host, port = parts.hostname or "", parts.port or _SSH_PORT
    try:
        host_keys = parse_known_hosts(known_hosts.read_text(errors="replace"), host, port)
    except OSError as error:
        raise UsageError(f"{known_hosts}: {error.strerror}") from error
    if not host_keys.trusted:
        raise SourceRefused(host_keys.explain_missing_key(known_hosts, host, port))
    with _host_keys_lock:
        _host_keys[host, port] = host_keys.trusted
        file = home / ".ssh" / "known_hosts"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"[{host}]:{port} {key}\n" for (host, port), keys in _host_keys.items() for key in keys)
        write_atomically(file, "".join(lines).encode())
        pygit2.settings.homedir = str(home)


class HostKeys(NamedTuple):
    """The keys for one host in a known_hosts file, sorted, each formatted as ``TYPE BASE64``."""

    trusted: tuple[str, ...]
    revoked: tuple[str, ...]
    authorities: tuple[str, ...]  # the keys that sign host certificates; libssh2 does not support host certificates

    def explain_missing_key(self, file: Path, host: str, port: int) -> str:
        """Return why the known_hosts file ``file`` has no trusted key for a host, and what to do."""
        remedy = "get the current key from the host's operator"
        if self.revoked:
            return f"{file} revokes every host key for {host} port {port} (@revoked); {remedy}"
        if self.authorities:
            return (
                f"{file} contains only a certificate authority for {host} port {port} (@cert-authority), but "
                f"gitboot does not support host certificates; {remedy}"
            )
        return f"{file} does not contain a host key for {host} port {port}; {remedy}"


def parse_known_hosts(text: str, host: str, port: int) -> HostKeys:
    """Return the keys for ``host`` and ``port`` in a known_hosts file.

    Revoked keys do not appear among the trusted keys in the result.
    """
    names = (host.lower(), f"[{host.lower()}]:{port}") if port != _SSH_PORT else (host.lower(),)
    keys: defaultdict[str, set[str]] = defaultdict(set)  # the keys by marker; "" for keys without a marker
    for line in text.split("\n"):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        if len(fields) >= 3 and any(_matches_host(fields[0], name) for name in names):
            keys[marker].add(f"{fields[1]} {fields[2]}")
    trusted, revoked, authorities = keys[""], keys["@revoked"], keys["@cert-authority"]
    return HostKeys(tuple(sorted(trusted - revoked)), tuple(sorted(revoked)), tuple(sorted(authorities)))


def _matches_host(patterns: str, name: str) -> bool:
    """Return whether the first field of a known_hosts line matches ``name``.

    The field is either a hash or a list of patterns. A pattern that begins with "!" excludes names.
    """
    if patterns.startswith("|1|"):
        with suppress(ValueError):
            salt, digest = (base64.b64decode(part, validate=True) for part in patterns.split("|")[2:])
            return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
        return False
    matching = []
    for pattern in patterns.split(","):
        wild = re.escape(pattern.removeprefix("!").lower()).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(wild, name) is not None:
            matching.append(pattern)
    return bool(matching) and not any(pattern.startswith("!") for pattern in matching)


# Version ranges, such as `>=1.4 <2`, as the reference to follow


Release = tuple[int, int, int]


class Version(NamedTuple):
    """A version, ordered by precedence (semver.org §11). Build metadata is ignored."""

    release: Release
    is_final: bool  # False sorts before True, because 1.0.0-rc.1 is lower than 1.0.0
    prerelease: tuple[tuple[int, int, str], ...]  # numbers sort before words


class VersionInterval(NamedTuple):
    """A half-open interval of versions, from ``start`` up to but not including ``stop``, or all versions outside it."""

    start: Version
    stop: Version
    names_prerelease: bool
    is_excluded: bool  # the range contains only the versions outside the interval


# a list of alternatives; in one alternative, all intervals must contain the version
VersionRange = tuple[tuple[VersionInterval, ...], ...]


_NUMBER: Final = r"(0|[1-9][0-9]{0,17})"
_PART: Final = r"(0|[1-9][0-9]{0,17}|[xX*])"
_IDENTIFIER: Final = r"(?:0|[1-9][0-9]{0,17}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_BUILD: Final = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_SUFFIX: Final = rf"(?:-(?P<prerelease>{_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+{_BUILD})?"
_VERSION: Final = re.compile(rf"v?{_NUMBER}\.{_NUMBER}\.{_NUMBER}{_SUFFIX}")
_GAP: Final = r"[0-9xX*.]*[xX*]\.[0-9]"  # a number after a wildcard, as in 1.*.3
_TERM: Final = re.compile(
    rf"\s*([<>]=?|!=|[=^~])?\s*v?(?!{_GAP}){_PART}(?:\.{_PART})?(?:\.{_PART})?{_SUFFIX}(?:\s+|,|$)"
)
_HYPHEN: Final = re.compile(r"(?<![^\s,|])(v?[0-9]\S*)\s+-\s+(?=v?[0-9])")  # 1.2 - 1.4 means >=1.2 <=1.4


def is_range(text: str) -> bool:
    """Return whether a reference is a version range, and not the name of a branch or a tag.

    Git does not allow ``^``, ``~``, ``*`` and spaces in a name, but allows the other characters of ranges
    (git-check-ref-format(1)). A text with only those characters is a range if it begins like a range. A full name, such
    as ``refs/heads/=1``, is never a range.
    """
    if text.startswith("refs/"):
        return False
    if re.search(r"[\^~*\s]", text) or text.startswith(("<", "=", ">")):
        return True
    return re.search(r"[<=>]|\|\|", text) is not None and _TERM.match(text.partition("||")[0]) is not None


def parse_range(text: str) -> VersionRange:
    """Parse a version range such as ``>=1.4 <2``, ``^1.2`` or ``1.* || 3.*``. Raises `UsageError` for other texts.

    As in Flux and Helm, an alternative matches pre-releases only if one of its terms names a pre-release. For example,
    ``>=1.0.0-0 <2`` matches pre-releases too.
    """
    alternatives = []
    for alternative in map(str.strip, _HYPHEN.sub(r">=\1 <=", text).split("||")):
        terms, position = list[VersionInterval](), 0
        while position < len(alternative) or not position:
            match = _TERM.match(alternative, position)
            if match is None:
                raise UsageError(
                    f"{text!r} is not a version range; write, for example, `>=1.4 <2`, `^1.2`, `~1.2.3` or `1.* || 3.*`"
                )
            terms.append(_parse_term(match))
            position = match.end()
        alternatives.append(tuple(terms))
    return tuple(alternatives)


_LOWEST: Final = Version((0, 0, 0), False, ())
_HIGHEST: Final = Version((1 << 63, 0, 0), False, ())


def _parse_term(match: re.Match[str]) -> VersionInterval:
    operator, *written_parts = match.group(1, 2, 3, 4)
    parts = [int(part) for part in written_parts if part and part.isdigit()]
    low = _build_version([*parts, 0, 0, 0], match["prerelease"])
    if len(parts) == 3 and operator not in ("^", "~"):
        # this value is the next higher one, because no version lies between the two values
        next_higher = low._replace(prerelease=(*low.prerelease, (-1, 0, "")))
    else:
        next_higher = _find_next_version(parts, operator)
    ranges = {
        "<": (_LOWEST, low),
        "<=": (_LOWEST, next_higher),
        ">=": (low, _HIGHEST),
        ">": (next_higher, _HIGHEST),
    }
    start, stop = ranges.get(operator, (low, next_higher))
    return VersionInterval(start, stop, match["prerelease"] is not None, operator == "!=")


def _find_next_version(parts: list[int], operator: str | None) -> Version:
    """Return the exclusive upper end of the interval that a term in a version range describes.

    This end is lower than any pre-release of the next release.
    """
    if not parts:
        return _HIGHEST
    raised = len(parts) - 1
    if operator == "^":  # with ^, the first part that is not 0 must stay the same
        raised = next((index for index, part in enumerate(parts) if part), raised)
    elif operator == "~":
        raised = min(raised, 1)
    return _build_version([*parts[:raised], parts[raised] + 1, 0, 0], None)._replace(is_final=False)


def find_highest_tag(version_range: VersionRange, tags: Iterable[str]) -> str | None:
    """Return the tag with the highest version in the range.

    The choice between equal versions such as ``v1.0.0`` and ``1.0.0`` does not depend on the order of the tags.
    """
    versions = ((version, tag) for tag in tags if (version := _parse_version(tag)))
    within = [(version, tag) for version, tag in versions if any(_contains(terms, version) for terms in version_range)]
    return max(within)[1] if within else None


def _contains(terms: tuple[VersionInterval, ...], version: Version) -> bool:
    is_eligible = version.is_final or any(term.names_prerelease for term in terms)
    return is_eligible and all((term.start <= version < term.stop) != term.is_excluded for term in terms)


def _parse_version(text: str) -> Version | None:
    match = _VERSION.fullmatch(text)
    return _build_version([int(part) for part in match.group(1, 2, 3)], match["prerelease"]) if match else None


def _build_version(parts: list[int], prerelease: str | None) -> Version:
    identifiers = prerelease.split(".") if prerelease else ()
    return Version(
        (parts[0], parts[1], parts[2]),
        prerelease is None,
        tuple((0, int(word), "") if word.isdigit() else (1, 0, word) for word in identifiers),
    )
