"""BMC credentials: where they come from, and at which hosts they may be used."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_address, ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from gitboot.child_processes import run_for_output
from gitboot.errors import BmcNotTrusted, UsageError
from gitboot.fleet.identities import BmcAccess, normalize_bmc_address
from gitboot.model.scalars import parse_fingerprint
from gitboot.text import did_you_mean, format_names

FILE: Final = "access.toml"  # beside username and password; or beside all credentials, for those without their own
AUTHORITY: Final = "ca.crt"  # likewise
Address = IPv4Address | IPv6Address
Place = IPv4Network | IPv6Network | str  # a network, a host, *.NAME: every name below it
AddressFilter = Callable[[Address], bool]
CredentialUse = tuple[str, str]  # where a BMC answers, in one spelling, and the name of credentials
# What lies behind such an address depends on who asks: metadata of a cloud, this machine itself.
_SPECIAL_ADDRESS_PROPERTIES: Final = ("is_link_local", "is_loopback", "is_multicast", "is_unspecified")


def credential_use(bmc: BmcAccess) -> CredentialUse:
    """Return where a BMC answers, and the name of the credentials that it is sent."""
    return normalize_origin(bmc.address), bmc.credentials


def normalize_origin(address: str) -> str:
    """Scheme, host and port, in one spelling: who answers, whatever the path."""
    parts = urlsplit(address)
    return normalize_bmc_address(f"{parts.scheme}://{parts.netloc}", None)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    username: str
    password: str = field(repr=False)
    name: str = ""  # by which documents name them


class Trust(Struct, frozen=True, kw_only=True):
    """The content of `FILE`: where credentials may be used, and how."""

    file: Path  # where it says so, or would
    networks: tuple[IPv4Network | IPv6Network, ...] = ()  # in which they may be used
    hosts: tuple[str, ...] = ()  # names that they may be used for; *.NAME: every name below it
    http: bool = False  # unencrypted
    ipmi: bool = False  # by IPMI, which hands a hash of the password to whoever asks for it
    unverified: bool = False  # for BMCs with verify: false
    repository_authorities: bool = False  # for BMCs with an authority out of the repository
    certificates: tuple[tuple[str, str], ...] = ()  # by host: the one that its BMC shows, whoever has signed it
    password_command: tuple[str, ...] = ()  # what says the password, where no file has it
    authority: str | None = None  # PEM; who has a certificate of it may be sent them, unless places are named
    authorities: tuple[tuple[Place, str], ...] = ()  # of single places: a site, a BMC; the first that fits counts

    @property
    def names_places(self) -> bool:
        return bool(self.networks or self.hosts)

    def covers(self, bmc: BmcAccess) -> bool:
        """Return whether a BMC may be sent the credentials. The addresses of a name are checked when it is resolved."""
        try:
            self.build_address_filter(bmc, is_in_ledger=False)
        except BmcNotTrusted:
            return False
        return True

    def build_address_filter(self, bmc: BmcAccess, *, is_in_ledger: bool) -> AddressFilter:
        """Return the addresses at which a BMC may be sent the credentials.

        ``known``: the ledger has the pair of both. Raises `BmcNotTrusted` if no address is allowed.
        """
        self._check_channel(bmc)
        host, literal = _get_host(bmc), _get_literal_address(bmc)
        if any(_matches_host(host, name) for name in self.hosts):
            return self._is_allowed_by_name
        if literal is not None and self._is_in_networks(literal):
            return self._is_in_networks
        if literal is None and self.networks:
            return self._is_in_networks
        if not self.names_places and is_in_ledger:  # an address that a person has let in is named by that
            return self._is_allowed_by_name if literal is None else literal.__eq__
        if not self.names_places and self._must_prove_identity(bmc):
            return self._is_allowed_by_name
        where = "names others" if self.names_places else "names no networks, and this BMC is new here"
        raise BmcNotTrusted(
            f"{bmc.address} is sent no credentials {bmc.credentials}: {self.file} {where}; gitboot bmc access-files "
            "prints what that file may say"
        )

    def find_certificate(self, bmc: BmcAccess) -> str | None:
        """Return the fingerprint of the certificate that the instance names for a BMC."""
        return dict(self.certificates).get(_get_host(bmc))

    def find_authority(self, bmc: BmcAccess) -> str | None:
        """Return whose certificate a BMC has to show, as PEM; None: the machine's own authorities."""
        return bmc.ca or self._find_own_authority(bmc)

    def _find_own_authority(self, bmc: BmcAccess) -> str | None:
        host, literal = _get_host(bmc), _get_literal_address(bmc)
        for place, authority in self.authorities:
            if (
                _matches_host(host, place)
                if isinstance(place, str)
                else literal is not None and _unmap_ipv4(literal) in place
            ):
                return authority
        return self.authority

    def _check_channel(self, bmc: BmcAccess) -> None:
        """How a BMC is reached may be less safe than it could be only where the instance says so."""
        by_authority = self.find_certificate(bmc) is None
        for channel in _WEAK_CHANNELS:
            if not channel.applies_to(bmc) or getattr(self, channel.key.replace("-", "_")):
                continue
            if by_authority or not channel.fixed_by_certificate:
                raise BmcNotTrusted(
                    f"{bmc.address} is sent no credentials {bmc.credentials}: {channel.problem}, and {self.file} does not "
                    f"say {channel.key} = true; gitboot bmc access-files prints what that file may say"
                )

    def _must_prove_identity(self, bmc: BmcAccess) -> bool:
        """Return whether a BMC has to prove who it is by an authority, or a certificate, that the instance names."""
        if _is_https(bmc) and self.find_certificate(bmc) is not None:
            return True
        return self._find_own_authority(bmc) is not None and _is_https(bmc) and bmc.verify and bmc.ca is None

    def _is_in_networks(self, address: Address) -> bool:
        plain = _unmap_ipv4(address)
        special = [each for each in _SPECIAL_ADDRESS_PROPERTIES if getattr(plain, each)]
        return any(plain in each and all(getattr(each, what) for what in special) for each in self.networks)

    def _is_allowed_by_name(self, address: Address) -> bool:
        plain = _unmap_ipv4(address)
        return self._is_in_networks(plain) or not any(getattr(plain, each) for each in _SPECIAL_ADDRESS_PROPERTIES)


class _WeakChannel(NamedTuple):
    """A way to reach BMCs that is less safe than another, and that the instance has to allow."""

    key: str  # in `FILE`
    applies_to: Callable[[BmcAccess], bool]
    problem: str  # is the matter with it
    comment: str  # the same, beside the key
    fixed_by_certificate: bool = False  # whether a certificate that the instance names makes up for it


def _is_http(bmc: BmcAccess) -> bool:
    return urlsplit(bmc.address).scheme.lower() == "http"


def _is_https(bmc: BmcAccess) -> bool:
    return urlsplit(bmc.address).scheme.lower() == "https"


_WEAK_CHANNELS: Final = (
    _WeakChannel("http", _is_http, "it is reached unencrypted", "unencrypted"),
    _WeakChannel(
        "ipmi",
        lambda bmc: bmc.uses_ipmi,
        "IPMI hands a hash of the password to whoever asks",
        "a hash of the password goes to whoever asks",
    ),
    _WeakChannel(
        "unverified",
        lambda bmc: _is_https(bmc) and not bmc.verify,
        "nobody verifies its certificate",
        "verify: false",
        fixed_by_certificate=True,
    ),
    _WeakChannel(
        "repository-authorities",
        lambda bmc: _is_https(bmc) and bmc.verify and bmc.ca is not None,
        "its authority is out of the repository",
        f"better: the authority as {AUTHORITY}",
        fixed_by_certificate=True,
    ),
)


def read_trust(directory: Path, name: str) -> Trust:
    """Read what the instance says of credentials. Raises `UsageError` for a file that cannot be understood."""
    own, shared = directory / name / FILE, directory / FILE
    file = shared if shared.exists() and not own.exists() else own
    settings = _parse_access_file(file) if file.exists() else {}
    authority = next((path for path in (directory / name / AUTHORITY, directory / AUTHORITY) if path.exists()), None)
    places = [(place, _read_pem(file.parent / path)) for place, path in settings.pop("authorities", ())]
    pem = _read_pem(authority) if authority is not None else None
    return Trust(**settings, file=file, authority=pem, authorities=tuple(places))


def _read_pem(file: Path) -> str:
    try:
        return file.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{file} cannot be read: {why}") from None


def render_access_file(bmcs: Iterable[BmcAccess]) -> str:
    """Return the file that lets one name's credentials be used for these BMCs, and for no others."""
    found = sorted(bmcs, key=lambda each: each.address)
    networks: list[IPv4Network | IPv6Network] = []
    hosts = []
    for host in sorted({_get_host(each) for each in found}):
        try:
            networks.append(ip_network(host))
        except ValueError:
            hosts.append(host)
    four = collapse_addresses(each for each in networks if isinstance(each, IPv4Network))
    six = collapse_addresses(each for each in networks if isinstance(each, IPv6Network))
    lines = [f"networks = {json.dumps([*map(str, four), *map(str, six)])}"] if networks else []
    lines += [f"hosts = {json.dumps(hosts)}"] if hosts else []
    for channel in _WEAK_CHANNELS:
        if needing := [each.address for each in found if channel.applies_to(each)]:
            lines.append(f"{channel.key} = true  # {channel.comment}: {format_names(needing)}")
    return "".join(f"{line}\n" for line in lines)


def _parse_access_file(file: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{file} cannot be read: {why}") from None
    for key in sorted(content.keys() - _PARSERS.keys()):
        raise UsageError(f"{file}: there is no {key!r}; {did_you_mean(key, _PARSERS, f'it may have {_KEYS}')}")
    found = {}
    for key, value in content.items():
        try:
            found[key.replace("-", "_")] = _PARSERS[key](value)
        except ValueError as error:
            raise UsageError(f"{file}: {key}: {error}") from None
    return found


def _parse_networks(value: object) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(each) for each in _parse_text_list(value))


def _parse_hosts(value: object) -> tuple[str, ...]:
    names = tuple(each.lower().removesuffix(".") for each in _parse_text_list(value))
    for name in names:
        if not all(part and part.replace("-", "").isalnum() for part in name.removeprefix("*.").split(".")):
            raise ValueError(f"{name!r} is no host name; *.NAME means every name below it")
        if name.replace(".", "").isdigit():
            raise ValueError(f"{name!r} is an address: it belongs to networks")
    return names


def _parse_text_list(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("expected a list of texts")
    return value


def _parse_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _parse_command(value: object) -> tuple[str, ...]:
    found = _parse_text_list(value)
    if not found or not found[0]:
        raise ValueError("expected a program and its arguments")
    return tuple(found)


def _parse_authorities(value: object) -> tuple[tuple[Place, str], ...]:
    """Return places with their files, the narrowest first: a host before the names below it."""
    if not isinstance(value, dict) or not all(isinstance(each, str) and each for each in value.values()):
        raise ValueError("expected networks and hosts, each with the file of its authority")
    found: list[tuple[Place, str]] = []
    for text, file in value.items():
        try:
            found.append((ip_network(text.strip("[]")), file))
        except ValueError:
            found.append((_parse_hosts([text])[0], file))

    def breadth(pair: tuple[Place, str]) -> tuple[bool, int, str]:
        place = pair[0]
        narrowness = len(place) if isinstance(place, str) else place.prefixlen
        return str(place).startswith("*."), -narrowness, str(place)

    return tuple(sorted(found, key=breadth))


def _parse_certificates(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise ValueError("expected hosts, each with the sha256 of its certificate")
    return tuple(
        sorted((host.lower().strip("[]").removesuffix("."), parse_fingerprint(each)) for host, each in value.items())
    )


_PARSERS: Final[dict[str, Callable[[object], Any]]] = {
    "networks": _parse_networks,
    "hosts": _parse_hosts,
    "http": _parse_boolean,
    "ipmi": _parse_boolean,
    "unverified": _parse_boolean,
    "repository-authorities": _parse_boolean,
    "certificates": _parse_certificates,
    "authorities": _parse_authorities,
    "password-command": _parse_command,
}
_KEYS: Final = ", ".join(_PARSERS)


def _get_host(bmc: BmcAccess) -> str:
    return (urlsplit(bmc.address).hostname or "").lower().removesuffix(".")


def _get_literal_address(bmc: BmcAccess) -> Address | None:
    """Return the IP address of a BMC if its document has one, and not a name."""
    try:
        return ip_address(_get_host(bmc))
    except ValueError:
        return None


def _matches_host(host: str, name: str) -> bool:
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _unmap_ipv4(address: Address) -> Address:
    """Return an address of IPv4 that is written as one of IPv6, as what it is."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


_FINGERPRINT_KEY: Final = secrets.token_bytes(32)  # this process's own: a fingerprint is of no use outside
_CACHE_S: Final = 1.0  # also where a file is another and does not show it: times of files are coarse
_PASSWORD_CACHE_S: Final = 300.0  # a command
_RETRY_AFTER_FAILURE_S: Final = 60.0  # one whose password was refused, or that has failed
_COMMAND_TIMEOUT_S: Final = 10.0
_MAX_OUTPUT_BYTES: Final = 4096  # bytes, of what a command says
_MAX_READS: Final = 10
_FileVersion = tuple[int, int, int, int] | None


def read_credentials(directory: Path, name: str) -> Credentials:
    """``directory/name/username`` and ``…/password``, of one moment, as Kubernetes mounts them; read anew each time."""
    username, password = _read_files(directory / name, name, ("username", "password"))
    return Credentials(username=username, password=password, name=name)


def is_covered(directory: Path | None, bmc: BmcAccess) -> bool:
    """Return whether the instance allows a BMC its credentials, or does not have them."""
    if directory is None or not (directory / bmc.credentials).is_dir():
        return True
    try:
        return read_trust(directory, bmc.credentials).covers(bmc)
    except UsageError:
        return False


class TrustedCredentials(Struct, frozen=True, kw_only=True):
    """Credentials, what the instance says of them, and what tells both from others without telling either."""

    credentials: Credentials
    trust: Trust
    fingerprint: str


class _CachedCredentials(Struct):
    entrusted: TrustedCredentials
    versions: tuple[_FileVersion, ...]
    read_s: float


class _CommandResult(Struct):
    command: tuple[str, ...]
    password: str | None
    error: str
    valid_until_s: float


class CredentialDirectory:
    """All credentials of an instance; for many threads at a time."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._cached: dict[str, _CachedCredentials] = {}
        self._command_results: dict[str, _CommandResult] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def read(self, name: str) -> TrustedCredentials:
        """Return credentials by their name, as they are now. Raises `UsageError` if there are none."""
        if self._root is None:
            raise UsageError(f"no directory of credentials is given, and {name} is needed (--credentials)")
        with self._locks[name]:  # a command is asked once, however many wait for it
            return self._read_current(self._root, name, may_run_command=True)

    def fingerprint(self, name: str) -> str | None:
        """Return a text that changes when credentials or their `Trust` change; None: no credentials are known.

        The method runs no command. A new password of a command changes the text when a task needs the password.
        """
        if self._root is None:
            return None
        try:
            return self._read_current(self._root, name, may_run_command=False).fingerprint
        except UsageError:
            return None

    def report_failure(self, name: str) -> None:
        """Say that a BMC has refused them: a command is asked again for the next, but not at once for each."""
        if (said := self._command_results.get(name)) is not None:
            said.valid_until_s = min(said.valid_until_s, time.monotonic() + _RETRY_AFTER_FAILURE_S)

    def _read_current(self, root: Path, name: str, *, may_run_command: bool) -> TrustedCredentials:
        folder = root / name
        files = (
            folder / "username",
            folder / "password",
            folder / FILE,
            root / FILE,
            folder / AUTHORITY,
            root / AUTHORITY,
        )
        versions, cached = tuple(map(_read_file_version, files)), self._cached.get(name)
        if cached is not None and cached.versions == versions and time.monotonic() - cached.read_s < _CACHE_S:
            return cached.entrusted
        trust = read_trust(root, name)
        if trust.password_command and versions[1] is None:
            (username,) = _read_files(folder, name, ("username",))
            password = self._get_command_password(name, trust, may_run_command=may_run_command)
        else:
            username, password = _read_files(folder, name, ("username", "password"))
        credentials = Credentials(username=username, password=password, name=name)
        text = f"{username}\0{password}\0{trust!r}".encode()
        fingerprint = hashlib.blake2b(text, key=_FINGERPRINT_KEY, digest_size=16).hexdigest()
        found = TrustedCredentials(credentials=credentials, trust=trust, fingerprint=fingerprint)
        self._cached[name] = _CachedCredentials(found, versions, time.monotonic())
        return found

    def _get_command_password(self, name: str, trust: Trust, *, may_run_command: bool) -> str:
        command = tuple(part.replace("{name}", name) for part in trust.password_command)
        result = self._command_results.get(name)
        if may_run_command and (
            result is None or result.command != command or time.monotonic() >= result.valid_until_s
        ):
            result = self._command_results[name] = _run_password_command(command)
        if result is None or result.password is None:
            why = result.error if result is not None else "it was not asked yet"
            raise UsageError(f"no password for credentials {name}: password-command of {trust.file}: {why}")
        return result.password


def _run_password_command(command: tuple[str, ...]) -> _CommandResult:
    """Run a command that prints the password in one line. Its output is never shown."""
    password, error = None, ""
    try:
        status, output = run_for_output(command, patience_s=_COMMAND_TIMEOUT_S, most_bytes=_MAX_OUTPUT_BYTES)
        lines = output.decode().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        error = "what it wrote is no text" if isinstance(problem, UnicodeDecodeError) else str(problem)
    else:
        if status != 0:
            error = f"{command[0]} ended with status {status}"
        elif lines == [""] or len(lines) > 1:
            error = f"{command[0]} wrote {'nothing' if lines == [''] else 'several lines'}, not the password alone"
        else:
            password = lines[0]
    return _CommandResult(
        command, password, error, time.monotonic() + (_RETRY_AFTER_FAILURE_S if error else _PASSWORD_CACHE_S)
    )


def _read_files(folder: Path, name: str, parts: tuple[str, ...]) -> list[str]:
    """Read files of a folder, all of the same moment: a link may be led to other files between two of them."""
    files = [folder / part for part in parts]
    try:
        for _ in range(_MAX_READS):
            before = list(map(_read_file_version, files))
            contents = [file.read_bytes() for file in files]
            if before == list(map(_read_file_version, files)):
                return [_decode_line(file, content) for file, content in zip(files, contents, strict=True)]
    except OSError as error:
        raise UsageError(
            f"no credentials named {name}: {folder} needs the files {' and '.join(parts)} ({error})"
        ) from None
    raise UsageError(f"the files of {folder} change all the time")


def _decode_line(file: Path, content: bytes) -> str:
    """Return the one line of a file. Raises `UsageError`, which shows nothing of the content."""
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not text in UTF-8: write the value alone, on one line") from None
    if not text:
        raise UsageError(f"{file} is empty: write the value alone, on one line")
    if any(character in text for character in "\r\n\0"):
        raise UsageError(f"{file} has several lines: write the value alone, on one line")
    return text


def _read_file_version(file: Path) -> _FileVersion:
    """Return what is another once a file was written or replaced, or a link on the way to it leads elsewhere."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


# How far a BMC is reached


class ResponseSample(Struct, frozen=True, kw_only=True):
    """What one BMC tells of the way to it."""

    latency_s: float | None = None  # until its last answer began; None: it gave none
    is_lost: bool = False  # it gave none, and did the time before


NO_SAMPLE: Final = ResponseSample()
