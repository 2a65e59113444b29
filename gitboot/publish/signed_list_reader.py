"""Signed list reader: verify the signed list of a mirror, and return its listings.

`gitboot verify-mirror` and the mirror program use these functions. The mirror program is one file that contains the
source of this module and must run on Python 3.6, so this module imports only the standard library.

The list is metadata of The Update Framework (TUF, https://theupdateframework.github.io/specification/latest/) in the
folder `signed/` of `boot/`: `<n>.root.json`, `timestamp.json`, `<n>.snapshot.json`, `<n>.targets.json`, and one file
for each of the 256 bins of target names (succinct roles, TAP 15). Each target is a listing, `servers/<name>.json` or
`shared.json`. A listing contains the digests of one server's boot files, and the times from which they are valid.
"""

import base64
import hashlib
import json
import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Tuple

SIGNED = "signed/"  # the folder of the list, below boot/
TIMESTAMP = "timestamp.json"
SHARED = "shared.json"  # the listing of the files that belong to no server

# The maximum sizes of files: the defaults of python-tuf (tuf.ngclient.UpdaterConfig).
MAX_ROOT_BYTES = 512000
MAX_TIMESTAMP_BYTES = 16384
MAX_SNAPSHOT_BYTES = 2000000
MAX_TARGETS_BYTES = 5000000
_MAX_ROOTS = 1024
_TRIES = 3  # the number of attempts if the tree changes during the reading

# A mirror changes a file according to its own clock, or when a copy arrives. Within this time before and after a
# transition, both versions are acceptable.
TOLERANCE = timedelta(seconds=120)

# A function that returns a file below signed/, or only its first ``max_bytes + 1`` bytes. It returns None if the file
# is absent.
Fetch = Callable[[str, int], Optional[bytes]]

# Faults of a list

MISSING = "Missing"
UNSIGNED = "Unsigned"
BAD_SIGNATURE = "BadSignature"
DAMAGED = "Damaged"
OLDER = "Older"


class ListProblem(Exception):
    """A file of the list cannot be trusted. The exception contains the fault, the path below boot/, and the reason."""

    def __init__(self, fault: str, name: str, message: str) -> None:
        super().__init__(f"{SIGNED}{name}: {message}")
        self.fault, self.path, self.message = fault, SIGNED + name, message


# Ed25519 signatures: RFC 8032, 5.1. The inputs are public, so this code need not run in constant time.

_FIELD = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _FIELD - 2, _FIELD) % _FIELD
_ROOT_OF_MINUS_1 = pow(2, (_FIELD - 1) // 4, _FIELD)

_Point = Tuple[int, int, int, int]  # a point in extended homogeneous coordinates: RFC 8032, 5.1.4


def _add_points(a: _Point, b: _Point) -> _Point:
    """Return the sum of two points (RFC 8032, 5.1.4)."""
    difference = (a[1] - a[0]) * (b[1] - b[0]) % _FIELD
    total = (a[1] + a[0]) * (b[1] + b[0]) % _FIELD
    c, d = 2 * a[3] * b[3] * _D % _FIELD, 2 * a[2] * b[2] % _FIELD
    e, f, g, h = total - difference, d - c, d + c, total + difference
    return e * f % _FIELD, g * h % _FIELD, f * g % _FIELD, e * h % _FIELD


def _decode_point(encoded: bytes) -> Optional[_Point]:
    """Return the point that 32 bytes encode, or None if they do not encode a point (RFC 8032, 5.1.3)."""
    number = int.from_bytes(encoded, "little")
    y, sign = number & (1 << 255) - 1, number >> 255
    if y >= _FIELD:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, _FIELD - 2, _FIELD) % _FIELD
    x = pow(square, (_FIELD + 3) // 8, _FIELD)
    if (x * x - square) % _FIELD:
        x = x * _ROOT_OF_MINUS_1 % _FIELD
    if (x * x - square) % _FIELD or (x == 0 and sign):
        return None
    if x & 1 != sign:
        x = _FIELD - x
    return x, y, 1, x * y % _FIELD


def _encode_point(point: _Point) -> bytes:
    """Encode a point as 32 bytes (RFC 8032, 5.1.2)."""
    inverse = pow(point[2], _FIELD - 2, _FIELD)
    x, y = point[0] * inverse % _FIELD, point[1] * inverse % _FIELD
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _is_small_order(point: _Point) -> bool:
    for _ in range(3):
        point = _add_points(point, point)
    return point[0] % _FIELD == 0 and (point[1] - point[2]) % _FIELD == 0


def _compute_base_point() -> _Point:
    point = _decode_point((4 * pow(5, _FIELD - 2, _FIELD) % _FIELD).to_bytes(32, "little"))
    assert point is not None  # noqa: S101 - a constant
    return point


_BASE = _compute_base_point()


@lru_cache(maxsize=1024)  # cached, because most parts of a list are the same when the list is read again
def verify_ed25519(key: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether a key's signature of a message is valid (RFC 8032, 5.1.7, without the cofactor).

    Keys of small order are rejected.
    """
    if len(key) != 32 or len(signature) != 64:
        return False
    point, s = _decode_point(key), int.from_bytes(signature[32:], "little")
    if point is None or s >= _ORDER or _is_small_order(point):
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % _ORDER
    negative = (_FIELD - point[0], point[1], point[2], _FIELD - point[3])
    terms = (None, _BASE, negative, _add_points(_BASE, negative))
    total = (0, 1, 1, 0)  # from the neutral point, compute s * base - k * key, bit by bit
    for bit in range(_ORDER.bit_length() - 1, -1, -1):
        total = _add_points(total, total)
        term = terms[(s >> bit & 1) + 2 * (k >> bit & 1)]
        if term is not None:
            total = _add_points(total, term)
    return _encode_point(total) == signature[:32]


# Metadata

_Keys = Dict[str, bytes]  # public keys by key ID


class _Role(NamedTuple):
    keys: _Keys
    threshold: int


class _Root(NamedTuple):
    version: int
    expires: datetime
    roles: Dict[str, _Role]


class _Metadata(NamedTuple):
    """A metadata file: its `signed` part, the signed bytes, and the signatures by key ID."""

    name: str
    signed: Dict[str, Any]
    payload: bytes
    signatures: Dict[str, bytes]


class AcceptedList(NamedTuple):
    """The newest list that a reader has accepted. The reader rejects older lists signed by the same keys."""

    root: int
    timestamp: int
    snapshot: int
    keys: FrozenSet[str]  # the keys that sign timestamps, in hexadecimal digits


def _check_unique_names(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    values_by_name = dict(pairs)
    if len(values_by_name) != len(pairs):
        raise ValueError("a JSON object contains the same name twice")
    return values_by_name


def _parse_integer(text: str) -> int:
    if len(text) > 18:
        raise ValueError("a number is too large")
    return int(text)


def _reject_number(text: str) -> Any:
    raise ValueError(f"expected an integer, found {text[:20]}")


def _parse_json(data: bytes) -> Any:
    """Parse JSON, rejecting floats and repeated names. Raises ValueError."""
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_check_unique_names,
            parse_int=_parse_integer,
            parse_float=_reject_number,
            parse_constant=_reject_number,
        )
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def canonical_json(value: Any) -> bytes:
    """Return the bytes that TUF signs: the canonical JSON of http://wiki.laptop.org/go/Canonical_JSON.

    Raises ValueError for a text with control characters, because Python's encoder writes them differently.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if "\\" in re.sub(r'\\["\\]', "", text):
        raise ValueError("a string contains control characters")
    return text.encode("utf-8")


def _parse_hexadecimal(value: Any, size_bytes: int) -> bytes:
    if not isinstance(value, str) or not re.match(r"[0-9a-f]*\Z", value) or len(value) != 2 * size_bytes:
        raise ValueError(f"expected {2 * size_bytes} hexadecimal digits")
    return bytes.fromhex(value)


def check_count(value: Any, minimum: int) -> int:
    if type(value) is not int or value < minimum:
        raise ValueError(f"expected a whole number of at least {minimum}")
    return value


_INSTANT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,6}))?Z\Z")


def parse_list_instant(value: Any) -> datetime:
    """Parse a UTC time such as 2026-11-27T21:00:00Z. Raises ValueError."""
    found = _INSTANT.match(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("expected a time such as 2026-11-27T21:00:00Z")
    at = datetime.strptime(found.group(1), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return at.replace(microsecond=int((found.group(2) or "0").ljust(6, "0")))


def _parse_metadata(name: str, data: bytes, kind: str) -> _Metadata:
    """Parse the metadata file of a role. Raises `ListProblem` if the file is malformed or not of type ``kind``."""
    try:
        document = _parse_json(data)
        signed, signatures = document["signed"], document["signatures"]
        if signed["_type"] != kind or str(signed["spec_version"]).split(".")[0] != "1":
            raise ValueError(f"expected TUF version 1 metadata for the role {kind}")
        check_count(signed["version"], 1)
        parse_list_instant(signed["expires"])
        by_key = {str(each["keyid"]): _parse_hexadecimal(each["sig"], 64) for each in signatures}
        if len(by_key) != len(signatures):
            raise ValueError("the same key signed the file twice")
        return _Metadata(name, signed, canonical_json(signed), by_key)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _build_damage_problem(name, error) from error


def _build_damage_problem(name: str, error: Exception) -> ListProblem:
    reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return ListProblem(DAMAGED, name, f"the file is not part of a signed list: {reason}")


def _parse_ed25519_keys(keys: Dict[str, Any]) -> _Keys:
    """Return the Ed25519 public keys of a root or of a delegation. Keys of other schemes are ignored."""
    return {
        keyid: _parse_hexadecimal(key["keyval"]["public"], 32)
        for keyid, key in keys.items()
        if (key["keytype"], key["scheme"]) == ("ed25519", "ed25519")
    }


def _parse_role(value: Dict[str, Any], keys: _Keys) -> _Role:
    keyids = [str(keyid) for keyid in value["keyids"]]
    return _Role({keyid: keys[keyid] for keyid in keyids if keyid in keys}, check_count(value["threshold"], 1))


def _find_signers(metadata: _Metadata, keys: _Keys) -> FrozenSet[bytes]:
    """Return the public keys whose signature of the metadata is valid.

    If a key has several IDs, the function returns the key only once.
    """
    return frozenset(
        keys[keyid]
        for keyid, signature in metadata.signatures.items()
        if keyid in keys and verify_ed25519(keys[keyid], metadata.payload, signature)
    )


def _check_signatures(metadata: _Metadata, role: _Role, previous_role: Optional[_Role] = None) -> None:
    """Raise `ListProblem` unless enough keys of a role have signed the metadata.

    ``previous_role`` contains the keys that were valid before the last key change.
    """
    signature_count = len(_find_signers(metadata, role.keys))
    if signature_count >= role.threshold:
        return
    message = f"expected at least {role.threshold} valid signatures, found {signature_count}"
    if previous_role is not None and len(_find_signers(metadata, previous_role.keys)) >= previous_role.threshold:
        message = (
            "a replaced key signed the file. gitboot has not signed the file again yet, or somebody is using the old "
            "key"
        )
    raise ListProblem(BAD_SIGNATURE, metadata.name, message)


def _parse_root(metadata: _Metadata) -> _Root:
    try:
        signed = metadata.signed
        keys = _parse_ed25519_keys(signed["keys"])
        return _Root(
            signed["version"],
            parse_list_instant(signed["expires"]),
            {name: _parse_role(signed["roles"][name], keys) for name in ("root", "timestamp", "snapshot", "targets")},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _build_damage_problem(metadata.name, error) from error


class _MetadataReader:
    """Reads the metadata files of one list."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self.previous_root = None  # type: Optional[_Root]  # the root before the newest one

    def find(self, name: str, max_bytes: int) -> Optional[bytes]:
        data = self._fetch(name, max_bytes)
        if data is not None and len(data) > max_bytes:
            raise ListProblem(DAMAGED, name, f"the file is larger than {max_bytes} bytes")
        return data

    def get(self, name: str, max_bytes: int) -> bytes:
        data = self.find(name, max_bytes)
        if data is None:
            raise ListProblem(MISSING, name, "the file does not exist")
        return data

    def find_root(self, keys: FrozenSet[bytes]) -> Optional[_Root]:
        """Return the newest root in the chain that begins with a root that all ``keys`` signed.

        Return None if there is no root metadata. Each root needs signatures by enough of its own keys and by enough
        keys of the previous root (TUF, 5.3).
        """
        trusted = None  # type: Optional[_Root]
        for version in range(1, _MAX_ROOTS):
            name = f"{version}.root.json"
            data = self.find(name, MAX_ROOT_BYTES)
            if data is None:
                if trusted is None and version > 1:
                    raise ListProblem(
                        BAD_SIGNATURE,
                        f"{version - 1}.root.json",
                        "the root metadata is not signed by the specified public key",
                    )
                return trusted
            metadata = _parse_metadata(name, data, "root")
            root = _parse_root(metadata)
            if root.version != version:
                raise ListProblem(DAMAGED, name, f"expected version {version}, found version {root.version}")
            if trusted is not None:
                _check_signatures(metadata, trusted.roles["root"])
            elif not keys <= _find_signers(metadata, root.roles["root"].keys):
                continue  # skip root metadata that is older than these keys
            _check_signatures(metadata, root.roles["root"])
            trusted, self.previous_root = root, trusted
        raise ListProblem(DAMAGED, name, f"there are more than {_MAX_ROOTS} root metadata files")

    def get_metadata(self, name: str, kind: str, version: int, max_bytes: int, meta: Dict[str, Any]) -> _Metadata:
        """Read a metadata file that other metadata refers to.

        Check the version of the file, and also the digest and the length if the other metadata contains them.
        """
        file_name = f"{version}.{name}"
        data = self.get(file_name, max_bytes)
        digest = (meta.get("hashes") or {}).get("sha256")
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            raise ListProblem(DAMAGED, file_name, "the file's digest differs from the one in the list")
        if "length" in meta and len(data) != meta["length"]:
            raise ListProblem(DAMAGED, file_name, "the file's length differs from the one in the list")
        metadata = _parse_metadata(file_name, data, kind)
        signed_version = metadata.signed["version"]
        if signed_version != version:
            raise ListProblem(DAMAGED, file_name, f"expected version {version}, found version {signed_version}")
        return metadata


# Listings


class FileVersion(NamedTuple):
    """The content that a path has from a given time on."""

    since: Optional[datetime]  # None: from the publication of the tree
    sha256: Optional[str]  # None: the path is absent
    size_bytes: int


class WindowEnd(NamedTuple):
    """The end of the open maintenance window, with the files that a copy of the tree serves from then on.

    A newer copy of the tree replaces these files.
    """

    since: datetime
    files: Dict[str, FileVersion]  # by path below boot/


class Listing(NamedTuple):
    """A listing of the files of one server, or of the files that belong to no server."""

    server: Optional[str]
    # versions by path below boot/, or by the digest of the path if the path contains a token
    files: Dict[str, Tuple[FileVersion, ...]]
    end: Optional[WindowEnd]
    contents: Dict[str, str]  # the texts of the files at the end of the window, by sha256


class Target(NamedTuple):
    """A bin's reference to a listing."""

    sha256: str
    size_bytes: int


class SignedList(NamedTuple):
    """A signed list, whose metadata was verified if the caller named keys."""

    is_signed: bool
    is_verified: bool  # whether gitboot checked the signatures
    commit: str
    made: datetime  # when the tree was published
    manifest: str  # the digest of ops/manifest.json
    gitboot: str  # the version of gitboot that published the tree
    expires: datetime  # when the part of the list that expires first expires
    expiring: str  # the file name of the part that expires first
    version: int  # the version of the timestamp
    accepted: AcceptedList
    targets: Dict[str, Target]  # files by name below signed/


def hash_path(path: str) -> str:
    """Return the digest of a path that contains a token. Listings contain the digest instead of the path.

    The path may be the name of a file that is not UTF-8.
    """
    return "sha256:" + hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()


def find_version(versions: Sequence[FileVersion], now: datetime) -> Optional[FileVersion]:
    """Return the version that is valid at ``now``, or None if there is no file at ``now``.

    Each version is valid from its time until just before the time of the next version.
    """
    current = None
    for version in versions:
        if version.since is not None and now < version.since:
            break
        current = version
    return current if current is not None and current.sha256 is not None else None


def find_versions_around(
    versions: Sequence[FileVersion], now: datetime, tolerance: timedelta = TOLERANCE
) -> Tuple[Optional[FileVersion], ...]:
    """Return the versions that a mirror may have at ``now``, starting with the current one.

    None means that the file is absent. A mirror may have the version before or after a transition if the mirror's clock
    differs or if a copy is in progress.
    """
    transitions = [version.since for version in versions if version.since is not None]
    around = [find_version(versions, now)]
    for at in transitions:
        if now - tolerance < at <= now + tolerance:
            for version in (find_version(versions, at - timedelta(microseconds=1)), find_version(versions, at)):
                if version not in around:
                    around.append(version)
    return tuple(around)


_HASHED = re.compile(r"sha256:[0-9a-f]{64}\Z")


def is_path_digest(path: str) -> bool:
    """Return whether a path in a listing is only the digest of a path."""
    return _HASHED.match(path) is not None


def check_path(path: str) -> str:
    """Return ``path`` if a listing may contain this path. Raises ValueError for any other path."""
    parts = path.split("/")
    if any(part[:1] in ("", ".") for part in parts) or re.search(r"[\x00-\x1f\x7f\\]", path):
        raise ValueError(f"a listing must not contain the path {path!r}")
    if parts[0] == SIGNED.rstrip("/"):
        raise ValueError(f"a listing must not contain {path!r}, which is part of the signed list itself")
    return path


def _parse_file_versions(value: Any) -> Tuple[FileVersion, ...]:
    versions = []  # type: List[FileVersion]
    for since, sha256, size in value:
        at = parse_list_instant(since) if since is not None else None
        if versions and (at is None or (versions[-1].since is not None and at <= versions[-1].since)):
            raise ValueError("the start times of a file's versions are not in ascending order")
        if sha256 is not None:
            _parse_hexadecimal(sha256, 32)
        versions.append(FileVersion(at, sha256, check_count(size, 0)))
    return tuple(versions)


def _parse_window_end(value: Any, contents: Dict[str, str]) -> Optional[WindowEnd]:
    if value is None:
        return None
    since = parse_list_instant(value["since"])
    files = {}
    for path, (sha256, size) in value["files"].items():
        if sha256 is not None and sha256 not in contents:
            raise ValueError(f"the list does not contain the content that {path!r} has after the end of the window")
        files[check_path(path)] = FileVersion(since, sha256, check_count(size, 0))
    return WindowEnd(since, files)


def parse_listing(name: str, data: bytes, target: Target) -> Listing:
    """Parse a listing, and check its digest. Raises `ListProblem`."""
    if hashlib.sha256(data).hexdigest() != target.sha256:
        raise ListProblem(DAMAGED, name, "the file's digest differs from the one in the list")
    try:
        document = _parse_json(data)
        contents = dict(document["contents"])
        for sha256, text in contents.items():
            if hashlib.sha256(text.encode("utf-8")).hexdigest() != sha256:
                raise ValueError("a string in the listing does not match its digest")
        files = {check_path(path): _parse_file_versions(versions) for path, versions in document["files"].items()}
        return Listing(document["server"], files, _parse_window_end(document["ends"], contents), contents)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _build_damage_problem(name, error) from error


# The list


_TARGET = re.compile(r"shared\.json\Z|servers/[A-Za-z0-9][A-Za-z0-9._-]*\.json\Z")
# In a SubjectPublicKeyInfo, these bytes come before an Ed25519 key: RFC 8410, 4.
_SPKI = bytes.fromhex("302a300506032b6570032100")
_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----")


def parse_keys(text: str) -> List[bytes]:
    """Parse public keys: PEM, or one key of 64 hexadecimal digits per line. Raises ValueError."""
    keys = []
    for encoded in _PEM.findall(text):
        data = base64.b64decode(encoded)
        if not data.startswith(_SPKI) or len(data) != len(_SPKI) + 32:
            raise ValueError("one of the public keys is not an Ed25519 key")
        keys.append(data[len(_SPKI) :])
    lines = (line.partition("#")[0].strip() for line in _PEM.sub("", text).splitlines())
    keys += [_parse_hexadecimal(line.lower(), 32) for line in lines if line]
    if not keys:
        raise ValueError("expected a public key as PEM or as 64 hexadecimal digits")
    return keys


def read_list(
    fetch: Fetch,
    keys: Iterable[bytes],
    accepted: Optional[AcceptedList] = None,
    mapper: Callable[..., Iterable[Any]] = map,
) -> SignedList:
    """Read a signed list with ``fetch``, and verify the list.

    ``keys`` are public root keys, and all of them must have signed the first trusted root. If there are no keys, the
    function does not verify signatures. ``mapper`` works like `map`, and may read several bins at a time. The function
    also returns an expired list, because an expired list still ends maintenance windows. If another process replaces
    the list in the meantime, the function reads the new list. Raises `ListProblem` if the list cannot be trusted.
    Errors that ``fetch`` raises are passed on.
    """
    root_keys, reader = frozenset(keys), _MetadataReader(fetch)
    for tries_left in reversed(range(_TRIES)):
        data = reader.find(TIMESTAMP, MAX_TIMESTAMP_BYTES)
        try:
            if data is None:
                raise ListProblem(
                    MISSING, TIMESTAMP, "there is no signed list (gitboot endpoints do not serve signed lists)"
                )
            return _read_verified_list(reader, data, root_keys, accepted, mapper)
        except ListProblem:
            if not tries_left or reader.find(TIMESTAMP, MAX_TIMESTAMP_BYTES) == data:
                raise
    raise AssertionError("unreachable")


def _read_verified_list(
    reader: _MetadataReader,
    data: bytes,
    keys: FrozenSet[bytes],
    accepted: Optional[AcceptedList],
    mapper: Callable[..., Iterable[Any]],
) -> SignedList:
    root = reader.find_root(keys) if keys else None
    timestamp = _parse_metadata(TIMESTAMP, data, "timestamp")
    if keys and root is None:
        raise ListProblem(UNSIGNED, TIMESTAMP, "the list is not signed, so gitboot cannot verify who published it")
    try:
        if root is not None:
            previous_role = reader.previous_root.roles["timestamp"] if reader.previous_root is not None else None
            _check_signatures(timestamp, root.roles["timestamp"], previous_role)
        snapshot_meta = timestamp.signed["meta"]["snapshot.json"]
        signer_keys = root.roles["timestamp"].keys.values() if root is not None else ()
        newest = AcceptedList(
            root=root.version if root is not None else 0,
            timestamp=timestamp.signed["version"],
            snapshot=check_count(snapshot_meta["version"], 1),
            keys=frozenset(key.hex() for key in signer_keys),
        )
        _check_not_older(newest, accepted)
        snapshot = reader.get_metadata("snapshot.json", "snapshot", newest.snapshot, MAX_SNAPSHOT_BYTES, snapshot_meta)
        if root is not None:
            _check_signatures(snapshot, root.roles["snapshot"])
        meta, publication = snapshot.signed["meta"], timestamp.signed["gitboot"]
        parts = [timestamp, snapshot]
        bin_role = None
        if root is not None:
            version = check_count(meta["targets.json"]["version"], 1)
            delegating = reader.get_metadata(
                "targets.json", "targets", version, MAX_TARGETS_BYTES, meta["targets.json"]
            )
            _check_signatures(delegating, root.roles["targets"])
            parts.append(delegating)
            bin_role = _parse_bin_role(delegating.signed["delegations"])
        targets = {}  # type: Dict[str, Target]
        bins = sorted(name for name in meta if name != "targets.json")
        for metadata, bin_targets in mapper(lambda name: _read_bin(reader, name, meta[name], bin_role), bins):
            targets.update(bin_targets)
            parts.append(metadata)
        expires, expiring = _find_first_expiry(parts, root)
        return SignedList(
            is_signed=bool(timestamp.signatures),
            is_verified=root is not None,
            commit=str(publication["commit"]),
            made=parse_list_instant(publication["made"]),
            manifest=str(publication["manifest"]),
            gitboot=str(publication["version"]),
            expires=expires,
            expiring=expiring,
            version=newest.timestamp,
            accepted=newest,
            targets=targets,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _build_damage_problem(TIMESTAMP, error) from error


def _find_first_expiry(parts: Iterable[_Metadata], root: Optional[_Root]) -> Tuple[datetime, str]:
    """Return the first time at which a part of the list expires, and the file name of that part."""
    expiry_times = [(parse_list_instant(part.signed["expires"]), part.name) for part in parts]
    if root is not None:
        expiry_times.append((root.expires, f"{root.version}.root.json"))
    return min(expiry_times)


def _check_not_older(newest: AcceptedList, accepted: Optional[AcceptedList]) -> None:
    """Raise `ListProblem` if a list is older than the accepted list (TUF, 5.4.3 and 5.5.5).

    If other keys sign the timestamp, for example after a key was stolen, the version numbers may start again (TUF,
    5.3.11).
    """
    if accepted is None:
        return
    if newest.root < accepted.root:
        message = f"the newest root has version {newest.root}, but the program has already read version {accepted.root}"
        raise ListProblem(OLDER, f"{newest.root}.root.json", message)
    if newest.keys == accepted.keys and (newest.timestamp < accepted.timestamp or newest.snapshot < accepted.snapshot):
        message = (
            f"the list has version {newest.timestamp}, but the program has already read version {accepted.timestamp}"
        )
        raise ListProblem(OLDER, TIMESTAMP, message)


def _parse_bin_role(delegations: Dict[str, Any]) -> _Role:
    """Return the role whose keys sign the bins (TAP 15, with 8 bits)."""
    roles = delegations["succinct_roles"]
    if (roles["bit_length"], roles["name_prefix"]) != (8, "servers"):
        raise ValueError("the list's bin layout differs from the layout that gitboot writes")
    return _parse_role(roles, _parse_ed25519_keys(delegations["keys"]))


def _read_bin(
    reader: _MetadataReader, name: str, meta: Dict[str, Any], role: Optional[_Role]
) -> Tuple[_Metadata, Dict[str, Target]]:
    """Return the metadata of a bin, and its targets by name.

    If ``role`` is None, the function does not check signatures.

    The first byte of the sha256 of a target's name determines the bin of the target (TAP 15).
    """
    number = re.match(r"servers-([0-9a-f]{2})\.json\Z", name)
    if number is None:
        raise ValueError(f"expected a name such as servers-0a.json, found {name!r}")
    metadata = reader.get_metadata(name, "targets", check_count(meta["version"], 1), MAX_TARGETS_BYTES, meta)
    if role is not None:
        _check_signatures(metadata, role)
    targets = {}
    for target, target_meta in metadata.signed["targets"].items():
        digest = target_meta["hashes"]["sha256"]
        _parse_hexadecimal(digest, 32)
        if not _TARGET.match(target):
            raise ValueError(f"{target!r} is not the name of a listing")
        if hashlib.sha256(target.encode("utf-8")).hexdigest()[:2] != number.group(1):
            raise ListProblem(DAMAGED, metadata.name, f"{target!r} is in the wrong hash bin")
        targets[target] = Target(digest, check_count(target_meta["length"], 0))
    return metadata, targets
