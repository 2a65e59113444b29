"""BMC identity: compare the system that a BMC shows with the machine's document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct, field, structs

from gitboot.fleet.identities import BmcAccess, Machine
from gitboot.fleet.layered_dict import differing, replaced
from gitboot.model.scalars import SystemUuid, byte_orders, is_placeholder_serial, is_placeholder_uuid


class Shown(Struct, frozen=True, kw_only=True):
    """The identity that a ComputerSystem shows. None: it shows no such value."""

    uuid: SystemUuid | None = None
    serial: str | None = None  # SerialNumber
    sku: str | None = None  # SKU: Dell's service tag, elsewhere the number of a product

    def __str__(self) -> str:
        return _named(self.uuid, self.serial, self.sku)


def _named(uuid: SystemUuid | None, *serials: str | None) -> str:
    named = [f"UUID {uuid}"] if uuid is not None else []
    names = ("serial", "SKU")
    named += [f'{name} "{value}"' for name, value in zip(names, serials, strict=False) if value is not None]
    return ", ".join(named) or "neither UUID nor serial number"


NOTHING: Final = Shown()


class Described(Struct, frozen=True, kw_only=True):
    """The identity that a document gives to its machine."""

    uuid: SystemUuid
    serial: str | None = None
    reports_uuid: SystemUuid | None = None  # what its BMC shows instead
    reports_serial: str | None = None

    @classmethod
    def by(cls, uuid: SystemUuid, serial: str | None, bmc: BmcAccess | None) -> Described:
        reported = (bmc.reports_uuid, bmc.reports_serial) if bmc is not None else (None, None)
        return cls(uuid=uuid, serial=serial, reports_uuid=reported[0], reports_serial=reported[1])

    @property
    def uuids(self) -> tuple[SystemUuid, ...]:
        return tuple(each for each in (self.uuid, self.reports_uuid) if each is not None)

    @property
    def serials(self) -> tuple[str, ...]:
        return tuple(each for each in (self.serial, self.reports_serial) if each is not None)


class Pinned(Struct, frozen=True, kw_only=True):
    """What the BMC of a machine showed at first contact, or what a person has accepted since."""

    uuid: SystemUuid | None
    serial: str | None
    at: datetime
    place: tuple[str, str | None]  # of the BMC
    accepted: bool = False  # by a person: it is the machine, whatever its document says
    changed: Shown | None = None  # what it shows instead, and what holds until a person accepts it
    certificate: str | None = None  # the fingerprint of its certificate, where no authority verifies that

    @property
    def seen(self) -> Shown:
        return self.changed or Shown(uuid=self.uuid, serial=self.serial)


class Same(Struct, frozen=True, kw_only=True):
    """It is the machine of the document."""

    accepted: bool = False  # by a person


class CannotTell(Struct, frozen=True, kw_only=True):
    """Nothing that could be compared is set on both sides; allowed, and worth a warning."""

    message: str


class Another(Struct, frozen=True, kw_only=True):
    """It is another machine than the document's."""

    message: str


class IdentityChanged(Struct, frozen=True, kw_only=True):
    """It shows something else than at first contact, which the document does not name."""

    message: str


Identified = Same | CannotTell | Another | IdentityChanged


def identify(
    described: Described, shown: Shown, *, pinned: Pinned | None = None, shared: frozenset[str] = frozenset()
) -> Identified:
    """Compare what a BMC shows with its document, and with what it has shown before.

    ``pinned`` is what was seen at the same place before; ``shared`` is `Sharing.values` of all pins.
    """
    if pinned is not None and (changes := _changes(described, pinned, shown)):
        changed = ", ".join(changes)
        return IdentityChanged(message=f"what the BMC shows has changed: {changed}{_line_to_add(described, shown)}")
    if pinned is not None and pinned.accepted:
        return Same(accepted=True)
    is_same, named = (
        _is_same(described.uuids, described.serials, shown, shared),
        _named(described.uuid, described.serial),
    )
    if is_same:
        return Same()
    if is_same is None:
        return CannotTell(message=f"the BMC shows {shown}, so nothing tells whether it is {named}")
    message = f"the BMC shows {shown}, and the document says {named}{_line_to_add(described, shown)}"
    return Another(message=message)


def is_another_system(before: Shown, now: Shown) -> bool:
    """Return whether two readings are of two systems, as far as they show who they are."""
    uuids = (before.uuid,) if before.uuid is not None else ()
    serials = (before.serial,) if before.serial is not None else ()
    return _is_same(uuids, serials, structs.replace(now, sku=None), frozenset()) is False


def pin(
    shown: Shown,
    identified: Identified,
    *,
    pinned: Pinned | None,
    place: tuple[str, str | None],
    at: datetime,
) -> Pinned:
    """Return the pin after a reading: ``pinned`` itself if the reading shows nothing new."""
    if pinned is None or pinned.place != place:
        return Pinned(uuid=shown.uuid, serial=shown.serial, at=at, place=place)
    if isinstance(identified, IdentityChanged):
        return structs.replace(pinned, changed=structs.replace(shown, sku=None))
    return structs.replace(pinned, uuid=shown.uuid or pinned.uuid, serial=shown.serial or pinned.serial, changed=None)


def accept(pinned: Pinned, *, at: datetime) -> Pinned:
    """Take a person's word that what the BMC shows now is the machine."""
    return structs.replace(pinned, uuid=pinned.seen.uuid, serial=pinned.seen.serial, at=at, accepted=True, changed=None)


def with_certificate(
    pinned: Pinned | None, certificate: str | None, *, place: tuple[str, str | None], at: datetime
) -> Pinned | None:
    """Return what is to be kept once a certificate was seen that no authority verifies."""
    if certificate is None or (pinned is not None and pinned.certificate == certificate):
        return pinned
    return structs.replace(pinned or Pinned(uuid=None, serial=None, at=at, place=place), certificate=certificate)


def known_at(pinned: Pinned | None, place: tuple[str, str | None]) -> Pinned | None:
    """Return what is pinned, if it was seen at this place: at another one is another first contact."""
    return pinned if pinned is not None and pinned.place == place else None


def values_of(pinned: Pinned) -> frozenset[str]:
    """Return what a BMC has shown that may tell its machine from others."""
    shown = (Shown(uuid=pinned.uuid, serial=pinned.serial), *((pinned.changed,) if pinned.changed is not None else ()))
    return frozenset(value for each in shown for value in (each.uuid, _upper(each.serial)) if value is not None)


def claimed_by(described: Mapping[SystemUuid, str | None]) -> frozenset[str]:
    """Return the values that documents give to their machines, by UUID and serial number."""
    serials = (serial.upper() for serial in described.values() if serial is not None)
    return frozenset((*(order for uuid in described for order in byte_orders(uuid)), *serials))


def _is_same(uuids: Iterable[SystemUuid], serials: Iterable[str], shown: Shown, shared: frozenset[str]) -> bool | None:
    """Compare identities with what is shown; None: nothing tells. Placeholders count for nothing, on either side."""
    known_uuids = {each for uuid in uuids if _is_real_uuid(uuid, shared) for each in byte_orders(uuid)}
    known_serials = {serial.upper() for serial in serials if _is_real_serial(serial, shared)}
    uuid = shown.uuid if shown.uuid is not None and _is_real_uuid(shown.uuid, shared) else None
    serial, sku = (
        each.upper() if each is not None and _is_real_serial(each, shared) else None
        for each in (shown.serial, shown.sku)
    )
    if uuid in known_uuids or {serial, sku} & known_serials:
        return True
    # A SKU can agree, as Dell's service tag does; what others call so is of a product, and contradicts nothing.
    differs = (known_uuids and uuid is not None) or (known_serials and serial is not None)
    return False if differs else None


def _is_real_uuid(uuid: SystemUuid, shared: frozenset[str]) -> bool:
    return uuid not in shared and not is_placeholder_uuid(uuid)


def _is_real_serial(serial: str, shared: frozenset[str]) -> bool:
    return serial.upper() not in shared and not is_placeholder_serial(serial)


def _changes(described: Described, pinned: Pinned, shown: Shown) -> list[str]:
    """Return what is not as it was at first contact, and not as the document says either.

    What is no longer shown is a change only where the other is not as it was: BMCs show less while they start.
    """
    uuid_is_same = shown.uuid is not None and pinned.uuid is not None and shown.uuid in byte_orders(pinned.uuid)
    serial_is_same = shown.serial is not None and shown.serial.upper() == _upper(pinned.serial)
    changes = []
    if pinned.uuid is not None and not uuid_is_same:
        is_described = any(shown.uuid in byte_orders(each) for each in described.uuids)
        if not is_described and (shown.uuid is not None or not serial_is_same):
            changes.append(f"UUID {pinned.uuid} to {shown.uuid or 'none'}")
    if pinned.serial is not None and not serial_is_same:
        is_described = _upper(shown.serial) in map(_upper, described.serials)
        if not is_described and (shown.serial is not None or not uuid_is_same):
            now = f'"{shown.serial}"' if shown.serial is not None else "none"
            changes.append(f'serial "{pinned.serial}" to {now}')
    return changes


def _upper(serial: str | None) -> str | None:
    return serial.upper() if serial is not None else None


def _line_to_add(described: Described, shown: Shown) -> str:
    fields = []
    if shown.uuid is not None and not is_placeholder_uuid(shown.uuid) and shown.uuid not in described.uuids:
        fields.append(f"uuid: {shown.uuid}")
    if shown.serial is not None and not is_placeholder_serial(shown.serial) and shown.serial not in described.serials:
        fields.append(f'serial: "{shown.serial}"')
    if not fields:
        return ""
    return f"; correct bmc.address, or add to bmc, where it is this machine: reports: {{{', '.join(fields)}}}"


class Sharing(Struct, frozen=True, kw_only=True):
    """The values that the BMCs of two machines show, at two places, and that no document claims: nobody set them.

    It is kept with its pins and machines: after a reading, only what that changes is looked at.
    """

    values: frozenset[str] = frozenset()  # what tells no machine from another
    pins: Mapping[SystemUuid, Pinned] = field(default_factory=dict)
    machines: Mapping[SystemUuid, Machine] = field(default_factory=dict)
    _places: Mapping[str, tuple[tuple[str, str | None], ...]] = field(
        default_factory=dict
    )  # who shows a value, one for each pin
    _several: frozenset[str] = frozenset()  # values that are shown at two places
    _claimed: frozenset[str] | None = None  # what documents say of their machines; None: nobody had to know

    def after(self, pins: Mapping[SystemUuid, Pinned], machines: Mapping[SystemUuid, Machine]) -> Sharing:
        if pins is self.pins and machines is self.machines:
            return self
        found: dict[str, list[tuple[str, str | None]]] = {}
        for uuid in differing(self.pins, pins):
            if (before := self.pins.get(uuid)) is not None:
                for value in values_of(before):
                    self._at(found, value).remove(before.place)
            if (now := pins.get(uuid)) is not None:
                for value in values_of(now):
                    self._at(found, value).append(now.place)
        several = self._several - found.keys() | {value for value, places in found.items() if len(set(places)) > 1}
        claimed = self._claimed if machines is self.machines else None
        if several and claimed is None:
            claimed = claimed_by({uuid: machine.serial for uuid, machine in machines.items()})
        shown = {value: tuple(places) for value, places in found.items() if places}
        return Sharing(
            values=several - (claimed or frozenset()),
            pins=pins,
            machines=machines,
            _places=replaced(self._places, shown, found.keys() - shown.keys()) if found else self._places,
            _several=several,
            _claimed=claimed,
        )

    def _at(self, found: dict[str, list[tuple[str, str | None]]], value: str) -> list[tuple[str, str | None]]:
        if value not in found:
            found[value] = list(self._places.get(value, ()))
        return found[value]
