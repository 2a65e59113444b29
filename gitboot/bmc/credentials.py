"""BMC credentials: read credential files, run password commands, and check which hosts may receive credentials."""

from __future__ import annotations

import hashlib
import json
import re
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

from msgspec import Struct, structs

from gitboot.bmc.override_state import MediaShare
from gitboot.child_processes import run_for_output
from gitboot.errors import BmcNotTrusted, UsageError
from gitboot.files import convert_os_errors, read_text
from gitboot.fleet.identities import BmcAccess, normalize_bmc_address
from gitboot.model.scalars import parse_fingerprint
from gitboot.text import format_names, format_suggestion

# the access file of one set of credentials, or the default file in the directory of all credentials
FILE: Final = "access.toml"
_SHARE_USERNAME, _SHARE_PASSWORD = "media-username", "media-password"  # the login for file shares with images
AUTHORITY: Final = "ca.crt"  # the certificate of an authority, in the same folders as `FILE`
Address = IPv4Address | IPv6Address
Place = IPv4Network | IPv6Network | str  # a network, a host, or *.NAME, which means every host name below NAME
CredentialUse = tuple[str, str]  # the normalized origin of a BMC, and the name of the credentials for this BMC


def get_credential_use(bmc: BmcAccess) -> CredentialUse:
    """Return the origin of a BMC's address, and the name of the credentials that gitboot sends to this BMC."""
    return normalize_origin(bmc.address), bmc.credentials


def normalize_origin(address: str) -> str:
    """Return the normalized scheme, host and port of an address, without the path."""
    parts = urlsplit(address)
    return normalize_bmc_address(f"{parts.scheme}://{parts.netloc}", None)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    username: str
    password: str = field(repr=False)
    name: str = ""  # the name of the credentials in documents


# Addresses whose meaning depends on the machine, such as those of a cloud's metadata service or of the machine itself.
_SPECIAL_ADDRESS_PROPERTIES: Final = ("is_link_local", "is_loopback", "is_multicast", "is_unspecified")


class Trust(Struct, frozen=True, kw_only=True):
    """The content of `FILE`: hosts to which gitboot may send credentials, and the kinds of connection it may use."""

    file: Path  # the path of the access file, which need not exist
    networks: tuple[IPv4Network | IPv6Network, ...] = ()  # networks of BMCs that may receive the credentials
    hosts: tuple[str, ...] = ()  # hosts that may receive the credentials; *.NAME means every host name below NAME
    http: bool = False  # whether unencrypted connections are allowed
    # whether IPMI is allowed; a BMC with IPMI sends a hash of the password to any client that requests it
    ipmi: bool = False
    unverified: bool = False  # whether BMCs with tls: {verify: false} in their documents are allowed
    # whether BMCs are allowed whose certificate authority is in the fleet repository
    repository_authorities: bool = False
    # The fingerprints of certificates by host, or by host and port. gitboot does not check the issuers of these
    # certificates.
    certificates: tuple[tuple[str, str], ...] = ()
    # shares from which the BMCs fetch images; a share with a longer prefix comes first
    media: tuple[MediaShare, ...] = ()
    password_command: tuple[str, ...] = ()  # a command that prints the password, if there is no password file
    # An authority in PEM. Without networks and hosts, gitboot sends the credentials to each BMC with a certificate by
    # this authority.
    authority: str | None = None
    authorities: tuple[tuple[Place, str], ...] = ()  # authorities for single sites or BMCs; the first match applies

    @property
    def lists_hosts(self) -> bool:
        return bool(self.networks or self.hosts)

    def allows_bmc(self, bmc: BmcAccess, ip: Address | None = None) -> bool:
        """Return whether gitboot may send the credentials to a BMC, regardless of the ledger.

        ``ip`` is the IP address of the BMC. If ``ip`` is None, gitboot has not resolved the host name of the BMC, and
        checks the host's IP addresses when it connects.
        """
        try:
            allows = self.build_address_filter(bmc, is_in_ledger=False)
        except BmcNotTrusted:
            return False
        return ip is None or allows(ip)

    def build_address_filter(self, bmc: BmcAccess, *, is_in_ledger: bool) -> Callable[[Address], bool]:
        """Return a function that checks whether gitboot may send a BMC's credentials to an IP address.

        ``is_in_ledger`` states whether the ledger already allows gitboot to send these credentials to this BMC. Raises
        `BmcNotTrusted` if no address is allowed.
        """
        is_unpinned = self.find_certificate(bmc) is None
        for channel in _WEAK_CHANNELS:
            if not channel.applies_to(bmc) or getattr(self, channel.key.replace("-", "_")):
                continue
            if is_unpinned or not channel.fixed_by_certificate:
                raise BmcNotTrusted(
                    f"gitboot will not send the credentials {bmc.credentials} to {bmc.address}, because "
                    f"{channel.problem}; to allow this, set `{channel.key} = true` in {self.file} (`gitboot bmc "
                    "access-files` prints the lines to add)"
                )
        host, literal = _get_host(bmc), _get_literal_address(bmc)
        if any(_matches_host(host, name) for name in self.hosts):
            return self._is_allowed_by_name
        if self._is_in_networks(literal) if literal is not None else self.networks:
            return self._is_in_networks
        # a person approved this BMC, so gitboot treats the BMC as if networks contained its address
        if not self.lists_hosts and is_in_ledger:
            return self._is_allowed_by_name if literal is None else literal.__eq__
        if not self.lists_hosts and self._must_prove_identity(bmc):
            return self._is_allowed_by_name
        why = (
            f"{self.file} does not list this host"
            if self.lists_hosts
            else f"{self.file} does not list any networks, and the ledger does not contain this BMC"
        )
        raise BmcNotTrusted(
            f"gitboot will not send the credentials {bmc.credentials} to {bmc.address}, because {why} "
            "(`gitboot bmc access-files` prints the lines to add)"
        )

    def find_certificate(self, bmc: BmcAccess) -> str | None:
        """Return the fingerprint of a BMC's certificate in `FILE`, or None if there is no fingerprint.

        A line for a host and a port takes precedence over a line for the host.
        """
        known = dict(self.certificates)
        return known.get(get_certificate_key(bmc.address)) or known.get(_get_host(bmc))

    def find_authority(self, bmc: BmcAccess) -> str | None:
        """Return the PEM certificate of the authority that must have issued a BMC's certificate.

        Return None if the certificate may come from any authority that this machine trusts.
        """
        return bmc.ca or self._find_own_authority(bmc)

    def _find_own_authority(self, bmc: BmcAccess) -> str | None:
        host, literal = _get_host(bmc), _get_literal_address(bmc)
        matching = (
            authority
            for place, authority in self.authorities
            if (
                _matches_host(host, place)
                if isinstance(place, str)
                else literal is not None and _unmap_ipv4(literal) in place
            )
        )
        return next(matching, self.authority)

    def _must_prove_identity(self, bmc: BmcAccess) -> bool:
        """Return whether the access files specify the fingerprint or the authority of a BMC's certificate."""
        if not _is_https(bmc):
            return False
        if self.find_certificate(bmc) is not None:
            return True
        return bmc.verify and bmc.ca is None and self._find_own_authority(bmc) is not None

    def _is_in_networks(self, address: Address) -> bool:
        plain = _unmap_ipv4(address)
        special = [each for each in _SPECIAL_ADDRESS_PROPERTIES if getattr(plain, each)]
        return any(plain in each and all(getattr(each, name) for name in special) for each in self.networks)

    def _is_allowed_by_name(self, address: Address) -> bool:
        plain = _unmap_ipv4(address)
        return self._is_in_networks(plain) or not any(getattr(plain, each) for each in _SPECIAL_ADDRESS_PROPERTIES)


class _WeakChannel(NamedTuple):
    """An insecure kind of connection to BMCs, which gitboot uses only if the access file allows it."""

    key: str  # the key in `FILE` that allows this kind of connection
    applies_to: Callable[[BmcAccess], bool]
    problem: str  # the description in messages
    comment: str  # the comment that gitboot writes after the key
    fixed_by_certificate: bool = False  # whether a fingerprint in `FILE` makes the connection secure


def _is_https(bmc: BmcAccess) -> bool:
    return urlsplit(bmc.address).scheme.lower() == "https"


_WEAK_CHANNELS: Final = (
    _WeakChannel(
        "http",
        lambda bmc: urlsplit(bmc.address).scheme.lower() == "http",
        "the connection to this BMC is not encrypted",
        "unencrypted",
    ),
    _WeakChannel(
        "ipmi",
        lambda bmc: bmc.uses_ipmi,
        "IPMI sends a hash of the password to any client",
        "any client can get a hash of the password",
    ),
    _WeakChannel(
        "unverified",
        lambda bmc: _is_https(bmc) and not bmc.verify,
        "gitboot does not verify this BMC's certificate",
        "verify: false",
        fixed_by_certificate=True,
    ),
    _WeakChannel(
        "repository-authorities",
        lambda bmc: _is_https(bmc) and bmc.verify and bmc.ca is not None,
        "this BMC's certificate authority comes from the repository",
        f"safer: store the authority as {AUTHORITY}",
        fixed_by_certificate=True,
    ),
)


def read_trust(directory: Path, name: str) -> Trust:
    """Read the access file for one set of credentials, and the certificates of its authorities.

    Raises `UsageError` if a file is invalid.
    """
    own, shared = directory / name / FILE, directory / FILE
    with convert_os_errors(directory / name, "read"):  # gitboot may not enter the folder
        file = shared if shared.exists() and not own.exists() else own
        has_file = file.exists()
        authority = next((each for each in (own.parent / AUTHORITY, directory / AUTHORITY) if each.exists()), None)
    settings = _parse_settings(read_text(file), file) if has_file else {}
    places = [(place, read_text(file.parent / path, "ascii")) for place, path in settings.pop("authorities", ())]
    pem = read_text(authority, "ascii") if authority is not None else None
    return Trust(**settings, file=file, authority=pem, authorities=tuple(places))


def render_access_file(bmcs: Iterable[BmcAccess], trust: Trust | None = None) -> str:
    """Return the content of an access file that allows gitboot to send the credentials only to these BMCs.

    The content includes the fingerprints that ``trust`` contains for these BMCs.
    """
    found = sorted(bmcs, key=lambda each: each.address)
    networks: list[IPv4Network | IPv6Network] = []
    hosts = []
    for host in sorted({_get_host(each) for each in found}):
        try:
            networks.append(ip_network(host))
        except ValueError:
            hosts.append(host)
    ipv4_networks = collapse_addresses(each for each in networks if isinstance(each, IPv4Network))
    ipv6_networks = collapse_addresses(each for each in networks if isinstance(each, IPv6Network))
    lines = [f"networks = {json.dumps([*map(str, ipv4_networks), *map(str, ipv6_networks)])}"] if networks else []
    lines += [f"hosts = {json.dumps(hosts)}"] if hosts else []
    for channel in _WEAK_CHANNELS:
        if addresses := [each.address for each in found if channel.applies_to(each)]:
            lines.append(f"{channel.key} = true  # {channel.comment}: {format_names(addresses)}")
    known = {get_certificate_key(each.address): trust.find_certificate(each) for each in found} if trust else {}
    if certificate_lines := [f"{json.dumps(key)} = {json.dumps(each)}" for key, each in sorted(known.items()) if each]:
        lines += ["", "[certificates]", *certificate_lines]
    return "".join(f"{line}\n" for line in lines)


class EnrolledBmc(NamedTuple):
    """A BMC to which an operator allows gitboot to send credentials."""

    bmc: BmcAccess
    ip: Address  # the address to which gitboot connected
    # the fingerprint of the certificate that the BMC presented; None: the connection has no TLS
    certificate: str | None


def extend_access_file(
    directory: Path, name: str, enrolled_bmcs: Iterable[EnrolledBmc], other_bmcs: Iterable[BmcAccess] = ()
) -> tuple[Path, str | None]:
    """Return the path of an access file, and a new text that allows these BMCs.

    The new text contains the fingerprints of the BMCs. It is None if the file needs no change. All other settings and
    the comments stay as they are. gitboot adds a network or a host only if a fingerprint alone does not allow the BMC.
    ``other_bmcs`` are the BMCs in existing documents.

    Raises `UsageError` if the new text would exclude one of the BMCs in ``other_bmcs``, or if gitboot cannot change the
    file. The message contains the lines that an operator must add.
    """
    trust, found = read_trust(directory, name), sorted(enrolled_bmcs, key=lambda each: each.bmc.address)
    before = trust.file.read_text() if trust.file.exists() else ""
    text, added = before, list[str]()

    def parse_trust(text: str) -> Trust:
        return structs.replace(trust, **_parse_settings(text, trust.file) | {"authorities": trust.authorities})

    def add_line(edit: Callable[[str, str], str], line: str) -> None:
        nonlocal text
        text = edit(text, line)
        added.append(line)

    try:
        # reversed, because gitboot inserts each new line before the previous one
        for bmc, _, certificate in reversed(found):
            if certificate is not None and parse_trust(text).find_certificate(bmc) != certificate:
                key = get_certificate_key(bmc.address)
                text = re.sub(rf"(?mi)^\"?{re.escape(key)}\"? *= *\"[0-9a-f:]+\" *(?:#.*)?\n?", "", text)
                add_line(_add_certificate, f"{json.dumps(key)} = {json.dumps(certificate)}")
        for channel in _WEAK_CHANNELS:
            is_needed = any(channel.applies_to(each.bmc) for each in found if each.certificate is None)
            if is_needed and not getattr(parse_trust(text), channel.key.replace("-", "_")):
                text = re.sub(rf"(?m)^{channel.key} *= *false *(?:#.*)?\n?", "", text)
                add_line(_prepend_line, f"{channel.key} = true  # {channel.comment}")
        # the first network or host in the file excludes BMCs that were allowed by their certificate alone
        for bmc, ip, _ in (*found, *found):
            if not parse_trust(text).allows_bmc(bmc, ip):
                literal = _get_literal_address(bmc)
                place = ip_network(literal) if literal is not None else _get_host(bmc)
                add_line(_add_to_list, f"{'hosts' if literal is None else 'networks'} = [{json.dumps(str(place))}]")
        after = parse_trust(text)
        is_done = all(
            after.allows_bmc(bmc, ip) and certificate in (None, after.find_certificate(bmc))
            for bmc, ip, certificate in found
        )
    except UsageError:
        if text == before:
            raise  # the existing file is not valid
        after, is_done = trust, False
    if not is_done:
        raise UsageError(
            f"gitboot cannot edit {trust.file} without changing other lines. Add these lines: {'; '.join(added)}"
        )
    if after.lists_hosts and not trust.lists_hosts:
        excluded = sorted(each.address for each in other_bmcs if not after.allows_bmc(each, _get_literal_address(each)))
        if excluded:
            raise UsageError(
                f"{trust.file} does not list networks or hosts yet, so this change would exclude "
                f"{format_names(excluded)}. First add the fleet's BMCs (`gitboot bmc access-files` "
                "prints the lines to add)"
            )
    return trust.file, None if text == before else text


def _prepend_line(text: str, line: str) -> str:
    """Insert a line before the first line that is not a comment, because keys must precede the first table."""
    head = re.match(r"(?:#.*\n)*", text)
    position = head.end() if head is not None else 0
    return f"{text[:position]}{line}\n{chr(10) if text[position:].startswith('[') else ''}{text[position:]}"


def _add_to_list(text: str, line: str) -> str:
    key, item = line.partition(" = ")[0], line.partition("[")[2].removesuffix("]")
    if (start := re.search(rf"(?m)^{key} *= *\[", text)) is None:
        return _prepend_line(text, line)
    rest = text[start.end() :]
    return f"{text[: start.end()]}{item}{'' if rest.lstrip().startswith(']') else ', '}{rest}"


def _add_certificate(text: str, line: str) -> str:
    if (start := re.search(r"(?m)^\[certificates\].*\n", f"{text}\n")) is None:
        separator = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{separator}[certificates]\n{line}\n"
    return f"{text[: start.end()].removesuffix(chr(10))}\n{line}\n{text[start.end() :]}"


def _parse_settings(text: str, file: Path) -> dict[str, Any]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    for key in sorted(content.keys() - _PARSERS.keys()):
        raise UsageError(f"{file}: unknown key {key!r}; {format_suggestion(key, _PARSERS, f'valid keys are {_KEYS}')}")
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
            raise ValueError(f"{name!r} is not a host name; for all names below NAME, write '*.NAME'")
        if name.replace(".", "").isdigit():
            raise ValueError(f"{name!r} is an IP address: list it in `networks`")
    return names


def _parse_text_list(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("expected a list of strings")
    return value


def _parse_boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _parse_command(value: object) -> tuple[str, ...]:
    found = _parse_text_list(value)
    if not found or not found[0]:
        raise ValueError("expected a list with a program and its arguments")
    return tuple(found)


def _parse_authorities(value: object) -> tuple[tuple[Place, str], ...]:
    """Return each host or network with the file that contains the certificate of its authority.

    Narrow networks come first, and *.NAME patterns last.
    """
    if not isinstance(value, dict) or not all(isinstance(each, str) and each for each in value.values()):
        raise ValueError("expected a table of networks or hosts, each with the path to its certificate authority file")
    found: list[tuple[Place, str]] = []
    for text, file in value.items():
        try:
            found.append((ip_network(text.strip("[]")), file))
        except ValueError:
            found.append((_parse_hosts([text])[0], file))

    def sort_key(pair: tuple[Place, str]) -> tuple[bool, int, str]:
        place = pair[0]
        narrowness = len(place) if isinstance(place, str) else place.prefixlen
        return str(place).startswith("*."), -narrowness, str(place)

    return tuple(sorted(found, key=sort_key))


def _parse_certificates(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise ValueError("expected a table of hosts, each with the SHA-256 fingerprint of its certificate")
    return tuple(sorted((_normalize_certificate_key(host), parse_fingerprint(each)) for host, each in value.items()))


def get_certificate_key(address: str) -> str:
    """Return the key under which `FILE` stores the fingerprint of a BMC's certificate.

    The key is the host, followed by the port if the port is not 443.
    """
    parts = urlsplit(address)
    host = (parts.hostname or "").removesuffix(".")
    return host if parts.port in (None, 443) else f"[{host}]:{parts.port}" if ":" in host else f"{host}:{parts.port}"


def _normalize_certificate_key(key: str) -> str:
    text = key.strip()
    try:  # an IPv6 address without a port, with or without brackets
        return str(IPv6Address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if not re.fullmatch(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:]+)(?::[0-9]{1,5})?", text):
        raise ValueError(f"{key!r} is neither a host nor HOST:PORT: write 10.112.0.13 or 10.112.0.13:8443")
    return get_certificate_key(f"https://{text.lower()}")


_PROTOCOLS: Final = ("CIFS", "HTTP", "HTTPS", "NFS")  # TransferProtocolType of VirtualMedia.InsertMedia, DSP0268


def _parse_media(value: object) -> tuple[MediaShare, ...]:
    if not isinstance(value, dict):
        raise ValueError("expected a table of URL prefixes, each with `place` and `protocol`")
    found = []
    for prefix, share in value.items():
        if not prefix.startswith(("http://", "https://")):
            raise ValueError(f"{prefix!r} is not a URL prefix: write a prefix such as http://boot.example.net/assets/")
        if not isinstance(share, dict) or share.keys() != {"place", "protocol"}:
            raise ValueError(f'{prefix}: expected {{place = "//10.112.0.2/images/", protocol = "CIFS"}}')
        if share["protocol"] not in _PROTOCOLS:
            raise ValueError(f"{prefix}: `protocol` must be one of {', '.join(_PROTOCOLS)}")
        if not isinstance(share["place"], str) or not share["place"]:
            raise ValueError(f"{prefix}: `place` must be a non-empty string")
        found.append(MediaShare(prefix=prefix, place=share["place"], protocol=share["protocol"]))
    return tuple(sorted(found, key=lambda each: (-len(each.prefix), each.prefix)))


_PARSERS: Final[dict[str, Callable[[object], Any]]] = {
    "networks": _parse_networks,
    "hosts": _parse_hosts,
    "http": _parse_boolean,
    "ipmi": _parse_boolean,
    "unverified": _parse_boolean,
    "repository-authorities": _parse_boolean,
    "certificates": _parse_certificates,
    "authorities": _parse_authorities,
    "media": _parse_media,
    "password-command": _parse_command,
}
_KEYS: Final = ", ".join(_PARSERS)


def _get_host(bmc: BmcAccess) -> str:
    return (urlsplit(bmc.address).hostname or "").lower().removesuffix(".")


def _get_literal_address(bmc: BmcAccess) -> Address | None:
    """Return the IP address in a BMC's URL, or None if the URL contains a host name."""
    try:
        return ip_address(_get_host(bmc))
    except ValueError:
        return None


def _matches_host(host: str, name: str) -> bool:
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _unmap_ipv4(address: Address) -> Address:
    """Convert an IPv4-mapped IPv6 address to an IPv4 address. Return all other addresses unchanged."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


# random for each process, so that nobody can use a fingerprint to guess a password
_FINGERPRINT_KEY: Final = secrets.token_bytes(32)
# in seconds: gitboot reads files again after this time, because a changed file can keep its coarse modification time
_CACHE_S: Final = 1.0
_RETRY_AFTER_FAILURE_S: Final = 60.0  # the pause after a command failed, or after a BMC rejected its password
_FileVersion = tuple[int, int, int, int] | None


def read_credentials(directory: Path, name: str) -> Credentials:
    """Read the files ``username`` and ``password`` in ``directory/name``.

    gitboot returns the same version of both files, even if another program replaces them meanwhile.
    """
    username, password = _read_files(directory / name, name, ("username", "password"))
    return Credentials(username=username, password=password, name=name)


def is_covered(directory: Path | None, bmc: BmcAccess) -> bool:
    """Return whether gitboot may send the credentials that a BMC's document names.

    If the credentials do not exist, return True.
    """
    if directory is None:
        return True
    folder = directory / bmc.credentials
    try:
        with convert_os_errors(folder, "read"):
            exists = folder.is_dir()
        return not exists or read_trust(directory, bmc.credentials).allows_bmc(bmc)
    except UsageError:
        return False


class TrustedCredentials(Struct, frozen=True, kw_only=True):
    """Credentials with their `Trust`, and a fingerprint of both that does not reveal the password."""

    credentials: Credentials
    trust: Trust
    fingerprint: str
    share_login: Credentials | None = None  # the login for the shares in `Trust.media`


class _CachedCredentials(Struct):
    credentials: TrustedCredentials
    versions: dict[Path, _FileVersion]
    read_s: float


class _CommandResult(Struct):
    command: tuple[str, ...]
    password: str | None
    error: str
    valid_until_s: float


class CredentialDirectory:
    """All credentials of an instance. Several threads may use the same object."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._cached: dict[str, _CachedCredentials] = {}
        self._command_results: dict[str, _CommandResult] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def read(self, name: str) -> TrustedCredentials:
        """Return the current credentials with this name. Raises `UsageError` if these credentials do not exist."""
        if self._root is None:
            raise UsageError(f"gitboot needs the credentials {name}: pass their directory with --credentials")
        with self._locks[name]:  # run a password command only once, even if several threads need the password
            return self._read_current_credentials(self._root, name, may_run_command=True)

    def fingerprint(self, name: str) -> str | None:
        """Return a string that changes whenever credentials or their `Trust` change.

        Return None if the credentials do not exist. This method does not run password commands. If a password command
        starts to print a new password, the fingerprint changes only after a task has used the new password.
        """
        if self._root is None:
            return None
        try:
            return self._read_current_credentials(self._root, name, may_run_command=False).fingerprint
        except UsageError:
            return None

    def report_failure(self, name: str) -> None:
        """Record that a BMC rejected the credentials. gitboot uses a command's password for at most one more minute."""
        if (result := self._command_results.get(name)) is not None:
            result.valid_until_s = min(result.valid_until_s, time.monotonic() + _RETRY_AFTER_FAILURE_S)

    def _read_current_credentials(self, root: Path, name: str, *, may_run_command: bool) -> TrustedCredentials:
        folder = root / name
        own_files = ("username", "password", FILE, AUTHORITY, _SHARE_USERNAME, _SHARE_PASSWORD)
        files = (*(folder / file for file in own_files), root / FILE, root / AUTHORITY)
        versions, cached = {file: _read_file_version(file) for file in files}, self._cached.get(name)
        if cached is not None and cached.versions == versions and time.monotonic() - cached.read_s < _CACHE_S:
            return cached.credentials
        trust = read_trust(root, name)
        if trust.password_command and versions[folder / "password"] is None:
            (username,) = _read_files(folder, name, ("username",))
            password = self._get_command_password(name, trust, may_run_command=may_run_command)
        else:
            username, password = _read_files(folder, name, ("username", "password"))
        credentials = Credentials(username=username, password=password, name=name)
        share_login: list[str] = []
        if trust.media and {versions[folder / _SHARE_USERNAME], versions[folder / _SHARE_PASSWORD]} != {None}:
            share_login = _read_files(folder, name, (_SHARE_USERNAME, _SHARE_PASSWORD))
        text = "\0".join((username, password, repr(trust), *share_login)).encode()
        found = TrustedCredentials(
            credentials=credentials,
            trust=trust,
            fingerprint=hashlib.blake2b(text, key=_FINGERPRINT_KEY, digest_size=16).hexdigest(),
            share_login=Credentials(username=share_login[0], password=share_login[1], name=name)
            if share_login
            else None,
        )
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
            reason = result.error if result is not None else "gitboot has not run the command yet"
            raise UsageError(
                f"gitboot cannot get the password for the credentials {name} from password-command in {trust.file}: "
                f"{reason}"
            )
        return result.password


_PASSWORD_CACHE_S: Final = 300.0  # how long gitboot uses a password that a command printed
_COMMAND_TIMEOUT_S: Final = 10.0
_MAX_OUTPUT_BYTES: Final = 4096  # the maximum size of a password command's output


def _run_password_command(command: tuple[str, ...]) -> _CommandResult:
    """Run a command that prints a password on one line. No error message contains the output."""
    password, error = None, ""
    try:
        status, output = run_for_output(command, patience_s=_COMMAND_TIMEOUT_S, max_bytes=_MAX_OUTPUT_BYTES)
        lines = output.decode().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        error = "the command's output is not text" if isinstance(problem, UnicodeDecodeError) else str(problem)
    else:
        if status != 0:
            error = f"{command[0]} ended with status {status}"
        elif lines == [""] or len(lines) > 1:
            printed = "nothing" if lines == [""] else "several lines"
            error = f"{command[0]} printed {printed}, but gitboot expects the password on one line"
        else:
            password = lines[0]
    return _CommandResult(
        command, password, error, time.monotonic() + (_RETRY_AFTER_FAILURE_S if error else _PASSWORD_CACHE_S)
    )


_MAX_READS: Final = 10


def _read_files(folder: Path, name: str, parts: tuple[str, ...]) -> list[str]:
    """Read several files in a folder, so that all contents are from the same version of the folder.

    Kubernetes replaces a mounted secret by moving a symlink.
    """
    files = [folder / part for part in parts]
    try:
        for _ in range(_MAX_READS):
            before = list(map(_read_file_version, files))
            contents = [file.read_bytes() for file in files]
            if before == list(map(_read_file_version, files)):
                return [_decode_line(file, content) for file, content in zip(files, contents, strict=True)]
    except OSError as error:
        raise UsageError(
            f"gitboot cannot read the credentials {name}: {folder} must contain the files {' and '.join(parts)} "
            f"({error})"
        ) from None
    raise UsageError(f"the files in {folder} kept changing while gitboot was reading them ({_MAX_READS} attempts)")


def _decode_line(file: Path, content: bytes) -> str:
    """Return the only line of a file. Raises `UsageError` if the file has more than one line.

    The message does not quote the content.
    """
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text: write only the value, on one line") from None
    if not text:
        raise UsageError(f"{file} is empty: write only the value, on one line")
    if any(character in text for character in "\r\n\0"):
        raise UsageError(f"{file} has several lines: write only the value, on one line")
    return text


def _read_file_version(file: Path) -> _FileVersion:
    """Return a value that changes if the file changes or is replaced, or if a symlink in its path changes."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
