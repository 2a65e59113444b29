"""Fetches of secrets: which paths have or need a secret, and which address fetched them how often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final, NamedTuple

from gitboot.jsonio import format_instant
from gitboot.render.paths import FAILED, Role, means

MOST_ADDRESSES: Final = 16  # that are told apart, of one secret and installation
MOST_FETCHES: Final = 10  # of one secret in one installation, until a person should look
OTHERS: Final = "others"  # stands for every address beyond MOST_ADDRESSES
_USER_DATA: Final = "user-data/"
_REPORT: Final = "reports/"
_ENCRYPTED: Final = "secrets/"
_IPV6_NETWORK: Final = 64  # RFC 4291: an interface chooses the other half itself


def secret_of(path: str) -> str | None:
    """Return the secret that a path below the output directory has: ``secrets/NAME`` or ``user-data/FILE``.

    User data counts as a secret: it has the tokens by which an installer reports and fetches its secrets. The paths of
    reports, ``reports/provisioned`` and ``reports/failed``, are such secrets themselves, and are counted likewise.
    """
    kind = means(path)
    if kind is None or kind.role not in (Role.DATA, Role.SEALED, Role.REPORT):
        return None
    if kind.role is Role.REPORT:
        return f"{_REPORT}{'failed' if kind is FAILED else 'provisioned'}"
    name = path.rpartition("/")[2] if "{name}" in kind.text else "config.ign"
    return f"{_ENCRYPTED if kind.role is Role.SEALED else _USER_DATA}{name}"


def is_report(secret: str) -> bool:
    """Return whether a secret is the path of a report: that is an event of its own, and no condition."""
    return secret.startswith(_REPORT)


def described(secret: str) -> str:
    """Return what messages call a secret."""
    group, _, name = secret.partition("/")
    return f"the secret {name}" if f"{group}/" == _ENCRYPTED else f"the user data {name}"


@lru_cache(maxsize=4096)
def network_of(client: str) -> str:
    """Return the address of a client; of an IPv6 address its /64 network, within which a host may have any address."""
    try:
        address = ip_address(client)
    except ValueError:  # a client whose address nobody knows
        return client
    return str(ip_network((address, _IPV6_NETWORK), strict=False)) if isinstance(address, IPv6Address) else client


class AddressFetches(NamedTuple):
    """The fetches of one secret by one address, or by several that are not told apart."""

    first: datetime
    last: datetime
    times: int

    def and_one(self, at: datetime, times: int) -> AddressFetches:
        """Return these fetches and more."""
        return AddressFetches(min(self.first, at), max(self.last, at), self.times + times)

    def facts(self) -> dict[str, Any]:
        return {"first": format_instant(self.first), "last": format_instant(self.last), "times": self.times}


@dataclass(frozen=True, kw_only=True, slots=True)
class SecretFetches:
    """Who fetched one secret in one installation."""

    addresses: Mapping[str, AddressFetches] = field(default_factory=dict)  # by `network_of`; at most MOST_ADDRESSES
    others: AddressFetches | None = None  # by all further addresses
    confirmed: tuple[int, int] = (1, 0)  # how many addresses, and fetches, a person has said to be right

    @property
    def seen(self) -> tuple[int, int]:
        """How many addresses have fetched it, and how many times. The addresses of ``others`` count as one."""
        every = (*self.addresses.values(), *((self.others,) if self.others is not None else ()))
        return len(every), sum(each.times for each in every)

    @property
    def is_unexpected(self) -> bool:
        """Whether a person should look: a second address, or more than ten fetches, since that was confirmed."""
        addresses, times = self.seen
        return addresses > self.confirmed[0] or times > self.confirmed[1] + MOST_FETCHES

    def fetched(self, address: str, at: datetime, times: int) -> SecretFetches:
        """Return these fetches and more, by one address."""
        if address in self.addresses or (len(self.addresses) < MOST_ADDRESSES and address != OTHERS):
            before = self.addresses.get(address, AddressFetches(at, at, 0))
            return replace(self, addresses={**self.addresses, address: before.and_one(at, times)})
        return replace(self, others=(self.others or AddressFetches(at, at, 0)).and_one(at, times))


@dataclass(frozen=True, kw_only=True, slots=True)
class InstallationFetches:
    """Who fetched the secrets of one server in its newest installation."""

    key: str  # the provision key
    attempt: int
    number: int  # in the ledger's sequence, when it was offered
    secrets: Mapping[str, SecretFetches] = field(default_factory=dict)  # by `secret_of`

    @property
    def fetched(self) -> dict[str, SecretFetches]:
        """The fetches of secrets and user data, without the reports."""
        return {name: each for name, each in self.secrets.items() if not is_report(name)}

    @property
    def is_unexpected(self) -> bool:
        return any(each.is_unexpected for name, each in self.secrets.items() if not is_report(name))

    @property
    def last(self) -> datetime:
        """When any of them was fetched last."""
        return max(each.last for secret in self.secrets.values() for each in _every(secret))

    def has_fetched(self, address: str, secret: str) -> bool:
        """Whether an address has fetched a secret, or for user data any file of that, in this installation."""

        def is_same(name: str) -> bool:
            return name == secret or (name.startswith(_USER_DATA) and secret.startswith(_USER_DATA))

        return any(address in each.addresses for name, each in self.secrets.items() if is_same(name))

    def facts(self) -> list[dict[str, Any]]:
        """Return an item for each secret, as the API and `gitboot secret fetches` show it."""
        return [
            {
                "installation": self.key,
                "attempt": self.attempt,
                "secret": name,
                "unexpected": each.is_unexpected,
                "times": each.seen[1],
                "addresses": [
                    {"address": address, **found.facts()} for address, found in sorted(each.addresses.items())
                ],
                "others": each.others.facts() if each.others is not None else None,
            }
            for name, each in sorted(self.fetched.items())
        ]


def _every(secret: SecretFetches) -> Iterator[AddressFetches]:
    yield from secret.addresses.values()
    if secret.others is not None:
        yield secret.others
