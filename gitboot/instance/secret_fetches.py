"""What the fetches of secrets say: who fetched them in the newest installation, and what a person confirmed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from gitboot.controller.learn.ledger_snapshot import Learning
from gitboot.errors import UsageError
from gitboot.fetchlog.one_time_boots import (
    MOST_ADDRESSES,
    InstallationFetches,
    SecretFetches,
    described,
    is_report,
    network_of,
    secret_of,
)
from gitboot.model.scalars.machines import SystemUuid, parse_uuid
from gitboot.observe.observation import Observation
from gitboot.resolve.server_plan import Offer, Phase
from gitboot.status.events_from_status import Event


def note_fetch(learning: Learning, offer: Offer, observation: Observation, at: datetime) -> bool:
    """Count a fetch of a secret, or a report that changes nothing, in its installation; return whether it is new there.

    A fetch is new if its address is. All addresses beyond `MOST_ADDRESSES` are new once together. A secret that a new
    address fetched is an event. What was offered for an earlier installation counts in the newest one: its paths may
    lead to the same secrets.
    """
    if offer.phase is Phase.MAINTENANCE or (secret := secret_of(observation.path)) is None:
        return False
    before = learning.secret_fetches_of(offer.uuid)
    if before is None or _is_newer(offer, before):
        before = InstallationFetches(key=_key(offer), attempt=max(offer.attempt, 1), number=offer.number)
    fetches, address = before.secrets.get(secret, SecretFetches()), network_of(observation.client)
    is_new = fetches.others is None and not before.has_fetched(address, secret)
    if is_new and not is_report(secret):
        learning.events.append(_told(offer, secret, fetches, observation, at))
    now = fetches.fetched(address, observation.at, observation.times)
    number = max(before.number, offer.number) if _key(offer) == before.key else before.number
    learning.note_secret_fetches(offer.uuid, replace(before, number=number, secrets={**before.secrets, secret: now}))
    return is_new


def begin_installation(learning: Learning, offer: Offer) -> None:
    """Forget the fetches of earlier installations where the boot of a newer one was served."""
    before = learning.secret_fetches_of(offer.uuid)
    if before is not None and offer.phase is not Phase.MAINTENANCE and _is_newer(offer, before):
        learning.note_secret_fetches(offer.uuid, None)


def confirm_fetches(learning: Learning, items: Iterable[Mapping[str, Any]]) -> list[str]:
    """Take a person's word that the fetches that they saw were right; return the names of the servers.

    Raises `UsageError` for a server without fetches.
    """
    names = []
    for item in items:
        uuid = SystemUuid(parse_uuid(item["uuid"]))
        if (before := learning.secret_fetches_of(uuid)) is None:
            raise UsageError(f"no fetch of a secret of {item['server']} is recorded")
        secrets = {
            name: replace(each, confirmed=(max(1, seen[0]), seen[1])) if (seen := item["seen"].get(name)) else each
            for name, each in before.secrets.items()
        }
        learning.note_secret_fetches(uuid, replace(before, secrets=secrets))
        names.append(str(item["server"]))
    return names


def _key(offer: Offer) -> str:
    return offer.base or offer.key


def _is_newer(offer: Offer, before: InstallationFetches) -> bool:
    """Return whether an offer is of a newer installation. Attempt 0 is whichever was made last."""
    if _key(offer) == before.key:
        return offer.attempt > before.attempt
    return offer.number > before.number


def _told(offer: Offer, secret: str, fetches: SecretFetches, observation: Observation, at: datetime) -> Event:
    """Return the event for an address that is new."""
    number, client = len(fetches.addresses) + 1, observation.client
    which = (
        "" if number == 1 else f"; {number - 1} other {'address has' if number == 2 else 'addresses have'} fetched it"
    )
    if number > MOST_ADDRESSES:
        which += ". Fetches by further addresses are only counted"
    return Event(
        at=at,
        type="SecretFetched",
        message=f"{offer.server}: {client} fetched {described(secret)} for {_key(offer)}{which}",
        facts={"server": offer.server, "secret": secret, "client": client, "key": _key(offer), "addresses": number},
        warning=number > 1,
    )
