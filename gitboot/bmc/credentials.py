"""Where credentials may be used: what the instance says beside them, and whom its ledger knows already.

What a repository says of a BMC was written by whoever may push, and is no reason to send it a password.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_address, ip_network
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gitboot.errors import BmcNotTrusted, UsageError
from gitboot.fleet.identities import place_of
from gitboot.load.machines import BmcAccess
from gitboot.model.scalars.artifacts import parse_fingerprint
from gitboot.text import did_you_mean, some

FILE: Final = "access.toml"  # beside username and password; or beside all credentials, for those without their own
AUTHORITY: Final = "ca.crt"  # likewise

Address = IPv4Address | IPv6Address
Place = IPv4Network | IPv6Network | str  # a network, a host, *.NAME: every name below it
Allowed = Callable[[Address], bool]
Pair = tuple[str, str]  # where a BMC answers, in one spelling, and the name of credentials

# What lies behind such an address depends on who asks: metadata of a cloud, this machine itself.
_ONLY_BY_NAME: Final = ("is_link_local", "is_loopback", "is_multicast", "is_unspecified")


def pair_of(bmc: BmcAccess) -> Pair:
    """Who is sent which credentials."""
    return origin_of(bmc.address), bmc.credentials


def origin_of(address: str) -> str:
    """Scheme, host and port, in one spelling: who answers, whatever the path."""
    parts = urlsplit(address)
    return place_of(f"{parts.scheme}://{parts.netloc}", None)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    username: str
    password: str = field(repr=False)
    name: str = ""  # by which documents name them


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """What the instance says of credentials."""

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
        """Whether it says enough of a BMC; which address a name has is looked at when it is resolved."""
        try:
            self.allowed(bmc, known=False)
        except BmcNotTrusted:
            return False
        return True

    def allowed(self, bmc: BmcAccess, *, known: bool) -> Allowed:
        """The addresses at which a BMC may be sent the credentials.

        ``known``: the pair of the two stands in the ledger. Raises `BmcNotTrusted` where there is none.
        """
        self._check_channel(bmc)
        host, literal = _host(bmc), _literal(bmc)
        if any(_is_called(host, name) for name in self.hosts):
            return self._unless_special
        if literal is not None and self._within(literal):
            return self._within
        if literal is None and self.networks:
            return self._within
        if not self.names_places and known:  # an address that a person has let in is named by that
            return self._unless_special if literal is None else literal.__eq__
        if not self.names_places and self._proves(bmc):
            return self._unless_special
        where = "names others" if self.names_places else "names no networks, and this BMC is new here"
        raise BmcNotTrusted(
            f"{bmc.address} is sent no credentials {bmc.credentials}: {self.file} {where}; gitboot bmc access-files "
            "prints what that file may say"
        )

    def certificate(self, bmc: BmcAccess) -> str | None:
        """The fingerprint by which alone a BMC is known, where the instance names it."""
        return dict(self.certificates).get(_host(bmc))

    def trusted_authority(self, bmc: BmcAccess) -> str | None:
        """Whose certificate a BMC has to show, as PEM; None: the machine's own authorities."""
        return bmc.ca or self._own_authority(bmc)

    def _own_authority(self, bmc: BmcAccess) -> str | None:
        """The authority that the instance itself names for a BMC."""
        host, literal = _host(bmc), _literal(bmc)
        for place, authority in self.authorities:
            if _is_called(host, place) if isinstance(place, str) else literal is not None and _plain(literal) in place:
                return authority
        return self.authority

    def _check_channel(self, bmc: BmcAccess) -> None:
        """How a BMC is reached may be less safe than it could be only where the instance says so."""
        by_authority = _is_https(bmc) and self.certificate(bmc) is None
        for is_so, is_allowed, what, key in (
            (_is_http(bmc), self.http, "it is reached unencrypted", "http"),
            (bmc.by_ipmi, self.ipmi, "IPMI hands a hash of the password to whoever asks", "ipmi"),
            (by_authority and not bmc.verify, self.unverified, "nobody verifies its certificate", "unverified"),
            (
                by_authority and bmc.verify and bmc.ca is not None,
                self.repository_authorities,
                "its authority is out of the repository",
                "repository-authorities",
            ),
        ):
            if is_so and not is_allowed:
                raise BmcNotTrusted(
                    f"{bmc.address} is sent no credentials {bmc.credentials}: {what}, and {self.file} does not say "
                    f"{key} = true; gitboot bmc access-files prints what that file may say"
                )

    def _proves(self, bmc: BmcAccess) -> bool:
        """Whether whoever answers has to prove by the instance's own authority, or word, that it is one of its BMCs."""
        if _is_https(bmc) and self.certificate(bmc) is not None:
            return True
        return self._own_authority(bmc) is not None and _is_https(bmc) and bmc.verify and bmc.ca is None

    def _within(self, address: Address) -> bool:
        plain = _plain(address)
        special = [each for each in _ONLY_BY_NAME if getattr(plain, each)]
        return any(plain in each and all(getattr(each, what) for what in special) for each in self.networks)

    def _unless_special(self, address: Address) -> bool:
        plain = _plain(address)
        return self._within(plain) or not any(getattr(plain, each) for each in _ONLY_BY_NAME)


def read_trust(directory: Path, name: str) -> Trust:
    """What is said of credentials; raises `UsageError` where it cannot be understood."""
    own, shared = directory / name / FILE, directory / FILE
    file = shared if shared.exists() and not own.exists() else own
    said = _parsed(file) if file.exists() else {}
    authority = next((path for path in (directory / name / AUTHORITY, directory / AUTHORITY) if path.exists()), None)
    places = [(place, _pem(file.parent / path)) for place, path in said.pop("authorities", ())]
    pem = _pem(authority) if authority is not None else None
    return Trust(**said, file=file, authority=pem, authorities=tuple(places))


def _pem(file: Path) -> str:
    try:
        return file.read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{file} cannot be read: {why}") from None


def as_file(bmcs: Iterable[BmcAccess]) -> str:
    """The file that lets one name's credentials be used for these BMCs, and for no others."""
    found = sorted(bmcs, key=lambda each: each.address)
    networks: list[IPv4Network | IPv6Network] = []
    hosts = set()
    for host in sorted({_host(each) for each in found}):
        try:
            networks.append(ip_network(host))
        except ValueError:
            hosts.add(host)
    lines = [f"networks = {_listed(_collapsed(networks))}"] if networks else []
    lines += [f"hosts = {_listed(sorted(hosts))}"] if hosts else []
    for key, why, needing in (
        ("http", "unencrypted", [each for each in found if _is_http(each)]),
        ("ipmi", "a hash of the password goes to whoever asks", [each for each in found if each.by_ipmi]),
        ("unverified", "verify: false", [each for each in found if _is_https(each) and not each.verify]),
        (
            "repository-authorities",
            f"better: the authority as {AUTHORITY}",
            [each for each in found if _is_https(each) and each.verify and each.ca is not None],
        ),
    ):
        if needing:
            lines.append(f"{key} = true  # {why}: {some([each.address for each in needing])}")
    return "".join(f"{line}\n" for line in lines)


def _collapsed(networks: Iterable[IPv4Network | IPv6Network]) -> list[str]:
    four = collapse_addresses(each for each in networks if isinstance(each, IPv4Network))
    six = collapse_addresses(each for each in networks if isinstance(each, IPv6Network))
    return [*map(str, four), *map(str, six)]


def _listed(texts: Iterable[str]) -> str:
    return json.dumps(list(texts))


def _parsed(file: Path) -> dict[str, Any]:
    try:
        given = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{file} cannot be read: {why}") from None
    for key in sorted(given.keys() - _PARSERS.keys()):
        raise UsageError(f"{file}: there is no {key!r}; {did_you_mean(key, _PARSERS, f'it may have {_KEYS}')}")
    found = {}
    for key, value in given.items():
        try:
            found[key.replace("-", "_")] = _PARSERS[key](value)
        except ValueError as error:
            raise UsageError(f"{file}: {key}: {error}") from None
    return found


def _networks(value: object) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(each) for each in _texts(value))


def _hosts(value: object) -> tuple[str, ...]:
    names = tuple(each.lower().removesuffix(".") for each in _texts(value))
    for name in names:
        if not all(part and part.replace("-", "").isalnum() for part in name.removeprefix("*.").split(".")):
            raise ValueError(f"{name!r} is no host name; *.NAME means every name below it")
        if name.replace(".", "").isdigit():
            raise ValueError(f"{name!r} is an address: it belongs to networks")
    return names


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError("expected a list of texts")
    return value


def _word(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _command(value: object) -> tuple[str, ...]:
    found = _texts(value)
    if not found or not found[0]:
        raise ValueError("expected a program and its arguments")
    return tuple(found)


def _authorities(value: object) -> tuple[tuple[Place, str], ...]:
    """The narrowest place first: a host before the names below it, a network before the one around it."""
    if not isinstance(value, dict) or not all(isinstance(each, str) and each for each in value.values()):
        raise ValueError("expected networks and hosts, each with the file of its authority")
    return tuple(sorted(((_place(each), file) for each, file in value.items()), key=lambda pair: _breadth(pair[0])))


def _place(text: str) -> Place:
    try:
        return ip_network(text.strip("[]"))
    except ValueError:
        return _hosts([text])[0]


def _breadth(place: Place) -> tuple[bool, int, str]:
    narrowness = len(place) if isinstance(place, str) else place.prefixlen
    return str(place).startswith("*."), -narrowness, str(place)


def _certificates(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict):
        raise ValueError("expected hosts, each with the sha256 of its certificate")
    return tuple(
        sorted((host.lower().strip("[]").removesuffix("."), parse_fingerprint(each)) for host, each in value.items())
    )


_PARSERS: Final[dict[str, Callable[[object], Any]]] = {
    "networks": _networks,
    "hosts": _hosts,
    "http": _word,
    "ipmi": _word,
    "unverified": _word,
    "repository-authorities": _word,
    "certificates": _certificates,
    "authorities": _authorities,
    "password-command": _command,
}
_KEYS: Final = ", ".join(_PARSERS)


def _is_http(bmc: BmcAccess) -> bool:
    return urlsplit(bmc.address).scheme.lower() == "http"


def _is_https(bmc: BmcAccess) -> bool:
    return urlsplit(bmc.address).scheme.lower() == "https"


def _host(bmc: BmcAccess) -> str:
    return (urlsplit(bmc.address).hostname or "").lower().removesuffix(".")


def _literal(bmc: BmcAccess) -> Address | None:
    """The address itself, where that stands in the document, and no name."""
    try:
        return ip_address(_host(bmc))
    except ValueError:
        return None


def _is_called(host: str, name: str) -> bool:
    return host.endswith(name[1:]) if name.startswith("*.") else host == name


def _plain(address: Address) -> Address:
    """An address of IPv4 that is written as one of IPv6, as what it is."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
