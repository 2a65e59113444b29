"""gitboot.endpoint.app_from_serve_access_control."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gitboot.endpoint.access_control import LOOPBACK, Network, Tokens
from gitboot.observe.asked import UnknownAsked
from gitboot.serve.limits import MOST_IDLE

if TYPE_CHECKING:
    from gitboot.endpoint.tls import Certificate
    from gitboot.endpoint.webhooks import Pushes


@dataclass(frozen=True, kw_only=True, slots=True)
class Clients:
    """Who may do what: proxies may say for whom they ask, operators may see what is planned."""

    trusted_proxies: Iterable[Network] = ()  # whose X-Forwarded-For states who asks
    operators: Iterable[Network] = LOOPBACK
    names: tuple[str, ...] = ()  # by which operators may ask, besides addresses
    tokens: Tokens | None = None  # that let read what operators may, from anywhere
    operators_at: tuple[str, int] | None = None  # the socket at which they ask, and machines do not
    certificate: Certificate | None = None  # what they are shown there; None: nothing is encrypted
    most_idle: int = MOST_IDLE  # connections of one address that wait for their client
    pushes: Pushes | None = None  # who hears webhooks of forges
    asked: UnknownAsked = field(default_factory=UnknownAsked)  # where it is noted who is found by nothing
