"""BMC access files: which BMCs may receive which credentials, over which kinds of connection."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_address, ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct, structs

from gitboot.bmc.override_state import MediaShare
from gitboot.errors import BmcNotTrusted, UsageError
from gitboot.files import convert_os_errors, read_text
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import parse_fingerprint
from gitboot.text import format_names, format_suggestion

# the access file of one set of credentials, or the default file in the directory of all credentials
FILE: Final = "access.toml"
AUTHORITY: Final = "ca.crt"  # the certificate of an authority, in the same folders as `FILE`
Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address
Place = Network | str  # a network, a host, or *.NAME, which means every host name below NAME
# Addresses whose meaning depends on the machine, such as those of a cloud's metadata service or of the machine itself.
_SPECIAL_ADDRESS_PROPERTIES: Final = ("is_link_local", "is_loopback", "is_multicast", "is_unspecified")
_PROTOCOLS: Final = ("CIFS", "HTTP", "HTTPS", "NFS")  # TransferProtocolType of VirtualMedia.InsertMedia, DSP0268


# Hosts and addresses


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


def _is_https(bmc: BmcAccess) -> bool:
    return urlsplit(bmc.address).scheme.lower() == "https"


# Access files


class Trust(Struct, frozen=True, kw_only=True):
    """The content of `FILE`: hosts to which gitboot may send credentials, and the kinds of connection it may use."""

    file: Path  # the path of the access file, which need not exist
    networks: tuple[Network, ...] = ()  # networks of BMCs that may receive the credentials
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
        self._reject_weak_channels(bmc)
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
        problem = "does not list any networks, and the ledger does not contain this BMC"
        if self.lists_hosts:
            problem = "does not list this host"
        raise BmcNotTrusted(
            f"gitboot will not send the credentials {bmc.credentials} to {bmc.address}, because {self.file} {problem} "
            "(`gitboot bmc access-files` prints the lines to add)"
        )

    def _reject_weak_channels(self, bmc: BmcAccess) -> None:
        """Raise `BmcNotTrusted` if the connection to a BMC would be insecure and `FILE` does not allow that."""
        has_fingerprint = self.find_certificate(bmc) is not None
        for channel in _WEAK_CHANNELS:
            is_secure = not channel.applies_to(bmc) or (has_fingerprint and channel.fixed_by_certificate)
            if not is_secure and not channel.is_allowed_by(self):
                raise BmcNotTrusted(
                    f"gitboot will not send the credentials {bmc.credentials} to {bmc.address}, because "
                    f"{channel.problem}; to allow this, set `{channel.key} = true` in {self.file} (`gitboot bmc "
                    "access-files` prints the lines to add)"
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
        return bmc.ca if bmc.ca is not None else self._find_own_authority(bmc)

    def _find_own_authority(self, bmc: BmcAccess) -> str | None:
        host, literal = _get_host(bmc), _get_literal_address(bmc)
        for place, authority in self.authorities:
            if isinstance(place, str):
                matches = _matches_host(host, place)
            else:
                matches = literal is not None and _unmap_ipv4(literal) in place
            if matches:
                return authority
        return self.authority

    def _must_prove_identity(self, bmc: BmcAccess) -> bool:
        """Return whether the access files specify the fingerprint or the authority of a BMC's certificate."""
        if not _is_https(bmc):
            return False
        if self.find_certificate(bmc) is not None:
            return True
        return bmc.verify and bmc.ca is None and self._find_own_authority(bmc) is not None

    def _is_in_networks(self, address: Address) -> bool:
        """Return whether a network contains an address. For a special address, the whole network must be special."""
        plain = _unmap_ipv4(address)
        special = [name for name in _SPECIAL_ADDRESS_PROPERTIES if getattr(plain, name)]
        return any(plain in network and all(getattr(network, name) for name in special) for network in self.networks)

    def _is_allowed_by_name(self, address: Address) -> bool:
        plain = _unmap_ipv4(address)
        return self._is_in_networks(plain) or not any(getattr(plain, name) for name in _SPECIAL_ADDRESS_PROPERTIES)


class _WeakChannel(NamedTuple):
    """An insecure kind of connection to BMCs, which gitboot uses only if the access file allows it."""

    key: str  # the key in `FILE` that allows this kind of connection
    applies_to: Callable[[BmcAccess], bool]
    problem: str  # the description in messages
    comment: str  # the comment that gitboot writes after the key
    fixed_by_certificate: bool = False  # whether a fingerprint in `FILE` makes the connection secure

    def is_allowed_by(self, trust: Trust) -> bool:
        return bool(getattr(trust, self.key.replace("-", "_")))


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
        authority_files = [path for path in (own.parent / AUTHORITY, directory / AUTHORITY) if path.exists()]
    settings = _parse_settings(read_text(file), file) if has_file else {}
    authorities = [(place, read_text(file.parent / path, "ascii")) for place, path in settings.pop("authorities", ())]
    authority = read_text(authority_files[0], "ascii") if authority_files else None
    return Trust(**settings, file=file, authority=authority, authorities=tuple(authorities))


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


def render_access_file(bmcs: Iterable[BmcAccess], trust: Trust | None = None) -> str:
    """Return the content of an access file that allows gitboot to send the credentials only to these BMCs.

    The content includes the fingerprints that ``trust`` contains for these BMCs.
    """
    bmcs = sorted(bmcs, key=lambda bmc: bmc.address)
    networks: list[Network] = []
    hosts: list[str] = []
    for host in sorted({_get_host(bmc) for bmc in bmcs}):
        try:
            networks.append(ip_network(host))
        except ValueError:
            hosts.append(host)
    lines: list[str] = []
    if networks:
        ipv4_networks = collapse_addresses(network for network in networks if isinstance(network, IPv4Network))
        ipv6_networks = collapse_addresses(network for network in networks if isinstance(network, IPv6Network))
        lines.append(f"networks = {json.dumps([*map(str, ipv4_networks), *map(str, ipv6_networks)])}")
    if hosts:
        lines.append(f"hosts = {json.dumps(hosts)}")
    for channel in _WEAK_CHANNELS:
        addresses = [bmc.address for bmc in bmcs if channel.applies_to(bmc)]
        if addresses:
            lines.append(f"{channel.key} = true  # {channel.comment}: {format_names(addresses)}")
    fingerprints = {get_certificate_key(bmc.address): trust.find_certificate(bmc) for bmc in bmcs} if trust else {}
    known = [(key, fingerprint) for key, fingerprint in sorted(fingerprints.items()) if fingerprint]
    if known:
        lines += ["", "[certificates]"]
        lines += [f"{json.dumps(key)} = {json.dumps(fingerprint)}" for key, fingerprint in known]
    return "".join(f"{line}\n" for line in lines)


# The settings in an access file


def _parse_settings(text: str, file: Path) -> dict[str, Any]:
    """Parse an access file, and return the fields of `Trust`. Raises `UsageError`."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # Python limits the digits of an integer
        raise UsageError(f"{file} cannot be read: {error}") from None
    for key in sorted(content.keys() - _PARSERS.keys()):
        raise UsageError(f"{file}: unknown key {key!r}; {format_suggestion(key, _PARSERS, f'valid keys are {_KEYS}')}")
    settings = {}
    for key, value in content.items():
        try:
            settings[key.replace("-", "_")] = _PARSERS[key](value)
        except ValueError as error:
            raise UsageError(f"{file}: {key}: {error}") from None
    return settings


def _parse_networks(value: object) -> tuple[Network, ...]:
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
    words = _parse_text_list(value)
    if not words or not words[0]:
        raise ValueError("expected a list with a program and its arguments")
    return tuple(words)


def _parse_authorities(value: object) -> tuple[tuple[Place, str], ...]:
    """Return each host or network with the file that contains the certificate of its authority.

    Narrow networks come first, and *.NAME patterns last.
    """
    if not isinstance(value, dict) or not all(isinstance(each, str) and each for each in value.values()):
        raise ValueError("expected a table of networks or hosts, each with the path to its certificate authority file")
    authorities: list[tuple[Place, str]] = []
    for text, file in value.items():
        if "\0" in file:
            raise ValueError("the path to a file contains a NUL character")
        try:
            authorities.append((ip_network(text.strip("[]")), file))
        except ValueError:
            authorities.append((_parse_hosts([text])[0], file))

    def sort_key(pair: tuple[Place, str]) -> tuple[bool, int, str]:
        place = pair[0]
        narrowness = len(place) if isinstance(place, str) else place.prefixlen
        return str(place).startswith("*."), -narrowness, str(place)

    return tuple(sorted(authorities, key=sort_key))


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
    if parts.port in (None, 443):
        return host
    return f"[{host}]:{parts.port}" if ":" in host else f"{host}:{parts.port}"


def _normalize_certificate_key(key: str) -> str:
    text = key.strip()
    try:  # an IPv6 address without a port, with or without brackets
        return str(IPv6Address(text.removeprefix("[").removesuffix("]")))
    except ValueError:
        pass
    if not re.fullmatch(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\[\]:]+)(?::[0-9]{1,5})?", text):
        raise ValueError(f"{key!r} is neither a host nor HOST:PORT: write 10.112.0.13 or 10.112.0.13:8443")
    return get_certificate_key(f"https://{text.lower()}")


def _parse_media(value: object) -> tuple[MediaShare, ...]:
    if not isinstance(value, dict):
        raise ValueError("expected a table of URL prefixes, each with `place` and `protocol`")
    shares = []
    for prefix, share in value.items():
        if not prefix.startswith(("http://", "https://")):
            raise ValueError(f"{prefix!r} is not a URL prefix: write a prefix such as http://boot.example.net/assets/")
        if not isinstance(share, dict) or share.keys() != {"place", "protocol"}:
            raise ValueError(f'{prefix}: expected {{place = "//10.112.0.2/images/", protocol = "CIFS"}}')
        if share["protocol"] not in _PROTOCOLS:
            raise ValueError(f"{prefix}: `protocol` must be one of {', '.join(_PROTOCOLS)}")
        if not isinstance(share["place"], str) or not share["place"]:
            raise ValueError(f"{prefix}: `place` must be a non-empty string")
        shares.append(MediaShare(prefix=prefix, place=share["place"], protocol=share["protocol"]))
    return tuple(sorted(shares, key=lambda share: (-len(share.prefix), share.prefix)))


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


# Changes of an access file


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
    trust = read_trust(directory, name)
    old_text = trust.file.read_text() if trust.file.exists() else ""
    draft = _AccessFileDraft(trust, old_text)
    after = None
    try:
        after = draft.allow_bmcs(sorted(enrolled_bmcs, key=lambda enrolled: enrolled.bmc.address))
    except UsageError:
        if draft.text == old_text:
            raise  # the existing file is not valid
    if after is None:
        raise UsageError(
            f"gitboot cannot edit {trust.file} without changing other lines. Add these lines: "
            f"{'; '.join(draft.added_lines)}"
        )
    if after.lists_hosts and not trust.lists_hosts:
        excluded = sorted(bmc.address for bmc in other_bmcs if not after.allows_bmc(bmc, _get_literal_address(bmc)))
        if excluded:
            raise UsageError(
                f"{trust.file} does not list networks or hosts yet, so this change would exclude "
                f"{format_names(excluded)}. First add the fleet's BMCs (`gitboot bmc access-files` "
                "prints the lines to add)"
            )
    return trust.file, draft.text if draft.text != old_text else None


class _AccessFileDraft:
    """A new text for an access file. The lines that gitboot does not change stay as they are."""

    def __init__(self, trust: Trust, text: str) -> None:
        self._trust = trust  # the content of the existing file
        self.text = text
        self.added_lines: list[str] = []

    def allow_bmcs(self, enrolled_bmcs: Sequence[EnrolledBmc]) -> Trust | None:
        """Add the lines that allow these BMCs. Return the content of the new text, or None if it does not allow them.

        Raises `UsageError` if the new text is not valid.
        """
        # reversed, because gitboot inserts each new line before the previous one
        for enrolled in reversed(enrolled_bmcs):
            self._add_certificate(enrolled)
        for channel in _WEAK_CHANNELS:
            is_needed = any(channel.applies_to(each.bmc) for each in enrolled_bmcs if each.certificate is None)
            if is_needed and not channel.is_allowed_by(self._parse()):
                self.text = re.sub(rf"(?m)^{channel.key} *= *false *(?:#.*)?\n?", "", self.text)
                self._add_line(_prepend_line, f"{channel.key} = true  # {channel.comment}")
        # the first network or host in the file excludes BMCs that were allowed by their certificate alone
        for enrolled in (*enrolled_bmcs, *enrolled_bmcs):
            if not self._parse().allows_bmc(enrolled.bmc, enrolled.ip):
                self._add_place(enrolled.bmc)
        after = self._parse()
        for bmc, ip, certificate in enrolled_bmcs:
            if not after.allows_bmc(bmc, ip) or certificate not in (None, after.find_certificate(bmc)):
                return None
        return after

    def _add_certificate(self, enrolled: EnrolledBmc) -> None:
        bmc, certificate = enrolled.bmc, enrolled.certificate
        if certificate is not None and self._parse().find_certificate(bmc) != certificate:
            key = get_certificate_key(bmc.address)
            old_line = rf"(?mi)^\"?{re.escape(key)}\"? *= *\"[0-9a-f:]+\" *(?:#.*)?\n?"
            self.text = re.sub(old_line, "", self.text)
            self._add_line(_add_to_certificates, f"{json.dumps(key)} = {json.dumps(certificate)}")

    def _add_place(self, bmc: BmcAccess) -> None:
        literal = _get_literal_address(bmc)
        if literal is not None:
            self._add_line(_add_to_list, f"networks = [{json.dumps(str(ip_network(literal)))}]")
        else:
            self._add_line(_add_to_list, f"hosts = [{json.dumps(_get_host(bmc))}]")

    def _add_line(self, edit: Callable[[str, str], str], line: str) -> None:
        self.text = edit(self.text, line)
        self.added_lines.append(line)

    def _parse(self) -> Trust:
        settings = _parse_settings(self.text, self._trust.file)
        return structs.replace(self._trust, **settings | {"authorities": self._trust.authorities})


def _prepend_line(text: str, line: str) -> str:
    """Insert a line before the first line that is not a comment, because keys must precede the first table."""
    head = re.match(r"(?:#.*\n)*", text)
    position = head.end() if head is not None else 0
    rest = text[position:]
    separator = "\n" if rest.startswith("[") else ""
    return f"{text[:position]}{line}\n{separator}{rest}"


def _add_to_list(text: str, line: str) -> str:
    """Add the only item of ``line`` to the list with the same key, or add the line if there is no such list."""
    key, _, value = line.partition(" = ")
    item = value.removeprefix("[").removesuffix("]")
    start = re.search(rf"(?m)^{key} *= *\[", text)
    if start is None:
        return _prepend_line(text, line)
    rest = text[start.end() :]
    separator = "" if rest.lstrip().startswith("]") else ", "
    return f"{text[: start.end()]}{item}{separator}{rest}"


def _add_to_certificates(text: str, line: str) -> str:
    """Add a line to the table of certificates, or add the table if there is none."""
    heading = re.search(r"(?m)^\[certificates\].*\n", f"{text}\n")
    if heading is None:
        separator = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{separator}[certificates]\n{line}\n"
    before = text[: heading.end()].removesuffix("\n")
    return f"{before}\n{line}\n{text[heading.end() :]}"
