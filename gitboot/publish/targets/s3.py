"""S3 targets: objects below a prefix of a bucket."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from gitboot import __version__
from gitboot.errors import HostUnreachable, PublishError, UsageError
from gitboot.jsonio import format_instant
from gitboot.publish.manifest import compute_digest
from gitboot.publish.targets.follower import BucketAddress, ReadCredentials
from gitboot.publish.targets.sync_steps import MAX_RECORD_BYTES, FileCallback, FileConflict, ReadFile, StoredFile
from gitboot.render.endpoint_files import ListedFile
from gitboot.render.paths import BOOT, REVALIDATED, ContentType, find_content_type, find_delivery

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config


try:
    import obstore
    from obstore import exceptions
    from obstore.store import S3Store
except ImportError as _error:
    raise UsageError("an s3:// target needs obstore: run `pip install 'gitboot[s3]'`") from _error


_PARALLEL: Final = 16
_RETRIES: Final = 2  # the time limit of one request; the follower tries again later
_LONGEST_DETAIL: Final = 200
_PIECE_BYTES: Final = 1 << 20  # the part of an object that gitboot reads at a time
_MOST_NAMES: Final = 100_000  # the maximum number of objects below a folder that gitboot lists
_LISTING: Final = 5  # the timeout of a whole listing, as a multiple of the timeout of a request
# AWS, "Error responses" of Amazon S3: the time of the request and of the server differ by more than 15 minutes.
_SKEWED: Final = "RequestTimeTooSkewed"
_REQUEST_TIME: Final = re.compile(r"<RequestTime>([^<]+)</RequestTime>")
_SERVER_TIME: Final = re.compile(r"<ServerTime>([^<]+)</ServerTime>")
_NO_BUCKET: Final = "NoSuchBucket"
# from the same page: errors with status 400
_TOKEN_CODES: Final = ("ExpiredToken", "InvalidToken", "TokenRefreshRequired")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
# The format of obstore's errors. The text after the source contains the headers of the request, which must not be
# shown.
_SOURCE: Final = "\n\nDebug source"
_REQUEST: Final = re.compile(r"Error performing (\w+ \S+) in ")
_STATUS: Final = re.compile(r"status code: (\d{3}[^:\n]*)")


class Bucket:
    """A target in an S3 bucket.

    gitboot writes each object with a single request, so an object is never incomplete. It signs requests with ``key``,
    which is an ID and a secret. If there is no key, it uses the credentials in the environment.
    """

    def __init__(self, address: BucketAddress, key: tuple[str, str] | None, *, timeout_s: float = 60) -> None:
        self._name, self._timeout_s = address.name, timeout_s
        config: S3Config = {
            "region": address.region,
            "virtual_hosted_style_request": not address.path_style,
            "checksum_algorithm": "SHA256",
            "disable_tagging": True,
        }
        # The timeout applies to a whole request. A retry can start within the retry timeout (docs/reference/limits.md).
        client: ClientConfig = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(seconds=timeout_s)}
        retry: RetryConfig = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=60)}
        if address.endpoint is not None:
            config["endpoint"] = address.endpoint
            client["allow_http"] = address.endpoint.startswith("http:")
        if key is not None:
            config["access_key_id"], config["secret_access_key"] = key
        if address.ca_bundle is not None:
            try:
                client["root_certificate"] = address.ca_bundle.read_bytes()
            except OSError as error:
                raise UsageError(f"the certificates in {address.ca_bundle} cannot be read: {error.strerror}") from error
        # so that access logs show that gitboot read the object, and not a machine
        client["user_agent"] = f"gitboot/{__version__}"
        with self._translate_errors():
            self._store = S3Store(
                address.bucket, prefix=address.prefix or None, config=config, client_options=client, retry_config=retry
            )

    def get(self, path: str, max_bytes: int = MAX_RECORD_BYTES) -> StoredFile | None:
        """Return the first ``max_bytes + 1`` bytes of an object, or None if the object does not exist."""
        content = bytearray()
        with self._translate_errors():
            try:
                response = obstore.get(self._store, path)
                for piece in response.stream(min_chunk_size=_PIECE_BYTES):
                    content += piece
                    if len(content) > max_bytes:
                        break
                return StoredFile(bytes(content[: max_bytes + 1]), response.meta["e_tag"])
            except FileNotFoundError as error:
                if _NO_BUCKET in str(error):
                    raise
        return None

    def get_each(self, paths: Collection[str], on_file: FileCallback) -> None:
        run_in_parallel(lambda path: on_file(path, self.get(path)), paths)

    def create(self, path: str, content: bytes) -> None:
        with self._translate_errors():
            obstore.put(self._store, path, content, attributes=_build_headers(path), mode="create", use_multipart=False)

    def replace(self, path: str, content: bytes, version: str | None = None) -> None:
        """Write an object. If ``version`` is set, replace only the object with this ETag.

        Raises `FileConflict` if the object has a different ETag.
        """
        with self._translate_errors():
            obstore.put(
                self._store,
                path,
                content,
                attributes=_build_headers(path),
                mode={"e_tag": version} if version is not None else "overwrite",
                use_multipart=False,
            )

    def place(self, paths: Collection[str], read_file: ReadFile, new_paths: Collection[str]) -> frozenset[str]:
        """Write objects in parallel.

        If a path in ``new_paths`` already has other content, keep that content, and include the path in the result. The
        modification time of an object is the time at which the store received it.
        """
        conflicts: set[str] = set()

        def place(path: str) -> None:
            content = read_file(path).content
            if path not in new_paths:
                self.replace(path, content)
                return
            try:
                self.create(path, content)
            except FileConflict:
                existing = self.get(path, len(content))
                if existing is None or existing.content != content:
                    conflicts.add(path)

        run_in_parallel(place, paths)
        return frozenset(conflicts)

    def find_differing_paths(self, expected_files: Mapping[str, ListedFile]) -> list[str]:
        """Read each object, and return the sorted paths of those whose content differs."""
        differing_paths: list[str] = []

        def compare(path: str) -> None:
            file = self.get(path, expected_files[path].size)
            if file is None or compute_digest(file.content) != expected_files[path].sha256:
                differing_paths.append(path)

        run_in_parallel(compare, expected_files)
        return sorted(differing_paths)

    def remove(self, paths: Iterable[str]) -> None:
        def remove(path: str) -> None:
            with self._translate_errors():
                try:
                    obstore.delete(self._store, path)
                except FileNotFoundError as error:
                    if _NO_BUCKET in str(error):
                        raise

        run_in_parallel(remove, paths)

    def names(self, folder: str) -> list[str]:
        """Return the sorted paths of all objects below a folder.

        obstore reads page after page until it has enough names, and the request timeout applies to each page
        separately. Therefore gitboot lists the folder in a thread, and stops waiting for the thread at the deadline.
        """
        results: SimpleQueue[list[str] | Exception] = SimpleQueue()

        def put_names() -> None:
            try:
                names: list[str] = []
                with self._translate_errors():
                    for page in obstore.list(self._store, folder):
                        names += (each["path"] for each in page)
                        if len(names) > _MOST_NAMES:
                            raise HostUnreachable(
                                f"{self._name}: there are more than {_MOST_NAMES:,} objects below {folder}"
                            )
                results.put(sorted(names))
            except Exception as error:  # noqa: BLE001 - `names` raises it
                results.put(error)

        threading.Thread(target=put_names, name="list", daemon=True).start()
        listing_s = _LISTING * self._timeout_s
        try:
            names = results.get(timeout=listing_s)
        except Empty:
            raise HostUnreachable(f"{self._name}: listing {folder} did not finish within {listing_s:g} s") from None
        if isinstance(names, Exception):
            raise names
        return names

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            if _NO_BUCKET in str(error):  # obstore reports a 404 response to If-Match as a conflict
                raise self._build_error(str(error)) from None
            raise FileConflict(str(error)) from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise self._build_error(str(error)) from None

    def _build_error(self, text: str) -> PublishError | HostUnreachable:
        """Convert the text of an obstore error to an exception whose message starts with the cause."""
        message, _, source = text.partition(_SOURCE)
        code = _find_first(_CODE, message)
        status = _find_first(_STATUS, message)
        request = _find_first(_REQUEST, message)
        location = f", at {request}" if request else ""
        if code == _SKEWED:
            return PublishError(f"{self._name}: {_describe_clock_fault(message)}")
        if status[:3] in ("401", "403") or code in _TOKEN_CODES:
            return PublishError(
                f"{self._name}: the store rejects the credentials, or the credentials lack a permission: "
                f"{code or status}{location}"
            )
        if status.startswith("404"):
            return PublishError(f"{self._name}: the bucket does not exist{location}")
        cause = f"the store returned {status} {code}".rstrip() if status else _find_cause(source)
        return HostUnreachable(f"{self._name}: {cause or _shorten(message)}{location}")


def build_bucket_opener(address: BucketAddress, read_credentials: ReadCredentials) -> Callable[[], Bucket]:
    """Return a function that opens the bucket with the current credentials."""
    opened: list[tuple[tuple[str, str] | None, Bucket]] = []

    def open_bucket() -> Bucket:
        key = read_credentials(address.credentials) if address.credentials is not None else None
        if not opened or opened[0][0] != key:
            opened[:] = [(key, Bucket(address, key))]
        return opened[0][1]

    return open_bucket


def run_in_parallel(do: Callable[[str], None], paths: Iterable[str]) -> None:
    """Call ``do`` for all paths in parallel. When all calls have ended, raise the first exception if there was one."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        list(pool.map(do, paths))


def _shorten(message: str) -> str:
    """Return the end of the first line of a message, without XML."""
    words = " ".join(message.partition("<?xml")[0].partition("\n")[0].split())
    return words if len(words) <= _LONGEST_DETAIL else f"…{words[-_LONGEST_DETAIL:]}"


def _describe_clock_fault(text: str) -> str:
    """Describe how far this host's clock is off, based on the text of a `_SKEWED` error."""
    fault = "this host's clock differs from the store's clock"
    with suppress(ValueError):
        ours = datetime.fromisoformat(_find_first(_REQUEST_TIME, text))
        theirs = datetime.fromisoformat(_find_first(_SERVER_TIME, text))
        seconds = round((ours - theirs).total_seconds())
        relation = "ahead of" if seconds > 0 else "behind"
        fault = f"this host's clock is {abs(seconds):,} s {relation} the store's clock"
    return f"{fault}, so the store rejects requests from this host (correct the clock)"


def _find_cause(source: str) -> str:
    """Return the reason why a request got no response, based on the debug text of an obstore error.

    Return "" if the text does not contain the reason.
    """
    for expression, describe in _CAUSES:
        match = expression.search(source)
        if match is not None:
            return describe(match)
    return ""


def _describe_certificate_times(match: re.Match[str]) -> str:
    clock_time, certificate_time = (
        format_instant(datetime.fromtimestamp(int(match[group]), UTC)) for group in ("here", "there")
    )
    fault = f"the store's certificate is not valid before {certificate_time}"
    if match["which"] == "Expired":
        fault = f"the store's certificate expired at {certificate_time}"
    return f"{fault}, and this host's clock shows {clock_time} (renew the certificate, or correct the clock)"


# Patterns for the debug text of errors from rustls, Rust's standard library and reqwest.
_CAUSES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]] = (
    (
        re.compile(
            r"(?P<which>Expired|NotValidYet)Context \{\s*time: UnixTime\(\s*(?P<here>\d+),\s*\),\s*"
            r"not_\w+: UnixTime\(\s*(?P<there>\d+)"
        ),
        _describe_certificate_times,
    ),
    (
        re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)"),
        lambda match: f"the store's certificate is not trusted: {match[1]}",
    ),
    (re.compile(r'(?:message|error): "([^"]+)"'), lambda match: match[1]),
    (re.compile(r"\bTimedOut\b"), lambda _: "the store did not respond in time"),
)


def _find_first(expression: re.Pattern[str], text: str) -> str:
    match = expression.search(text)
    return match[1] if match is not None else ""


def _build_headers(path: str) -> dict[str, str]:
    """Return the HTTP headers that a store must send with a file.

    Only gitboot reads the files below ops/, so all of them have the same headers.
    """
    if not path.startswith(BOOT):
        return {"Content-Type": ContentType.JSON.value, "Cache-Control": REVALIDATED}
    return {"Content-Type": find_content_type(path), "Cache-Control": find_delivery(path).cache_control}
