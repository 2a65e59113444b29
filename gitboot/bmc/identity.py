"""BMC identity: compare the identity that a BMC reports with the one in the machine's document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct, field, structs

from gitboot.fleet.identities import BmcAccess, BmcPlace, Machine
from gitboot.fleet.overlay import apply_changes, find_differing_keys
from gitboot.model.scalars import SystemUuid, byte_orders, is_placeholder_serial, is_placeholder_uuid


class ReportedIdentity(Struct, frozen=True, kw_only=True):
    """The identity that a ComputerSystem reports. A field is None if the system does not report it."""

    uuid: SystemUuid | None = None
    serial: str | None = None  # the property SerialNumber
    sku: str | None = None  # the property SKU: the service tag on Dell servers, a product number on other servers

    def __str__(self) -> str:
        return _format_identity(self.uuid, self.serial, self.sku)


def _format_identity(uuid: SystemUuid | None, serial: str | None, sku: str | None = None) -> str:
    parts = [f"UUID {uuid}"] if uuid is not None else []
    parts += [f'{name} "{value}"' for name, value in (("serial", serial), ("SKU", sku)) if value is not None]
    return ", ".join(parts) or "no UUID and no serial number"


NO_IDENTITY: Final = ReportedIdentity()


class DocumentIdentity(Struct, frozen=True, kw_only=True):
    """The identity that a machine's document states."""

    uuid: SystemUuid
    serial: str | None = None
    # the UUID that the BMC reports instead of `uuid`; None: the BMC reports `uuid`
    reports_uuid: SystemUuid | None = None
    reports_serial: str | None = None

    @classmethod
    def from_document(cls, uuid: SystemUuid, serial: str | None, bmc: BmcAccess | None) -> DocumentIdentity:
        """Return the identity in a document with this UUID, this serial number and this BMC."""
        if bmc is None:
            return cls(uuid=uuid, serial=serial)
        return cls(uuid=uuid, serial=serial, reports_uuid=bmc.reports_uuid, reports_serial=bmc.reports_serial)

    @property
    def uuids(self) -> tuple[SystemUuid, ...]:
        """The UUID of the machine, and the UUID that the BMC reports instead."""
        return tuple(each for each in (self.uuid, self.reports_uuid) if each is not None)

    @property
    def serials(self) -> tuple[str, ...]:
        """The serial number of the machine, and the serial number that the BMC reports instead."""
        return tuple(each for each in (self.serial, self.reports_serial) if each is not None)

    def has_uuid(self, uuid: SystemUuid | None) -> bool:
        """Return whether the document states this UUID, in either byte order."""
        return any(_is_same_uuid(uuid, each) for each in self.uuids)

    def has_serial(self, serial: str | None) -> bool:
        """Return whether the document states this serial number, in upper or lower case."""
        return any(_is_same_serial(serial, each) for each in self.serials)


class PinnedIdentity(Struct, frozen=True, kw_only=True):
    """The stored identity of a machine's BMC.

    The BMC reported this identity at the first contact, or a person accepted the identity later.
    """

    uuid: SystemUuid | None
    serial: str | None
    at: datetime
    place: BmcPlace
    accepted: bool = False  # a person confirmed that the BMC belongs to this machine, even if the document differs
    # the identity that the BMC reports now; `uuid` and `serial` stay until a person accepts the new identity
    changed: ReportedIdentity | None = None
    certificate: str | None = None  # the fingerprint of the certificate, if no authority verifies it

    @property
    def latest_identity(self) -> ReportedIdentity:
        """The identity that the BMC reports now: the changed identity, or otherwise the pinned one."""
        return self.changed or ReportedIdentity(uuid=self.uuid, serial=self.serial)


class SameMachine(Struct, frozen=True, kw_only=True):
    """The result that the BMC belongs to the machine in the document."""

    accepted: bool = False  # whether a person accepted the identity


class UnprovenIdentity(Struct, frozen=True, kw_only=True):
    """The result that the document and the BMC have no identity values in common that gitboot could compare.

    gitboot shows a warning, but uses the BMC.
    """

    message: str


class AnotherMachine(Struct, frozen=True, kw_only=True):
    """The result that the BMC belongs to a different machine from the one in the document."""

    message: str


class IdentityChanged(Struct, frozen=True, kw_only=True):
    """The result that the BMC's identity differs from the one at the first contact and from the one in the document."""

    message: str


IdentityResult = SameMachine | UnprovenIdentity | AnotherMachine | IdentityChanged


def compare_identity(
    document: DocumentIdentity,
    reported: ReportedIdentity,
    *,
    pinned: PinnedIdentity | None = None,
    shared_values: frozenset[str] = frozenset(),
) -> IdentityResult:
    """Compare the identity that a BMC reports now with the document and with the pinned identity.

    ``pinned`` is the identity that a BMC reported earlier at the same address. ``shared_values`` are values that
    several BMCs report (see `SharedIdentityValues.values`). gitboot ignores the shared values.
    """
    is_same = _is_same_machine(document.uuids, document.serials, reported, shared_values)
    changes = _list_changes(document, pinned, reported, is_same=is_same) if pinned is not None else []
    if changes:
        remedy = _format_remedy(document, reported)
        return IdentityChanged(
            message=f"the BMC reports a different identity than before: {', '.join(changes)}{remedy}"
        )
    if pinned is not None and pinned.accepted:
        return SameMachine(accepted=True)
    document_text = _format_identity(document.uuid, document.serial)
    if is_same:
        return SameMachine()
    if is_same is None:
        return UnprovenIdentity(
            message=f"the BMC reports {reported}, so gitboot cannot check whether the machine has {document_text}"
        )
    return AnotherMachine(
        message=f"the BMC reports {reported}, but the Server document has {document_text}"
        f"{_format_remedy(document, reported)}"
    )


def are_different_systems(before: ReportedIdentity, after: ReportedIdentity) -> bool:
    """Return whether two reported identities definitely belong to different systems."""
    uuids = (before.uuid,) if before.uuid is not None else ()
    serials = (before.serial,) if before.serial is not None else ()
    return _is_same_machine(uuids, serials, structs.replace(after, sku=None), frozenset()) is False


def update_pinned_identity(
    reported: ReportedIdentity,
    result: IdentityResult,
    *,
    pinned: PinnedIdentity | None,
    place: BmcPlace,
    at: datetime,
) -> PinnedIdentity:
    """Return the pinned identity, updated with a BMC's report. If no value is new, return ``pinned`` itself."""
    if pinned is None or pinned.place != place:
        return PinnedIdentity(uuid=reported.uuid, serial=reported.serial, at=at, place=place)
    if isinstance(result, IdentityChanged):
        updated = structs.replace(pinned, changed=structs.replace(reported, sku=None))
    else:
        updated = structs.replace(
            pinned, uuid=reported.uuid or pinned.uuid, serial=reported.serial or pinned.serial, changed=None
        )
    return updated if updated != pinned else pinned


def accept_identity(pinned: PinnedIdentity, *, at: datetime) -> PinnedIdentity:
    """Return the new pinned identity after a person accepted the identity that the BMC reports now."""
    return structs.replace(
        pinned,
        uuid=pinned.latest_identity.uuid,
        serial=pinned.latest_identity.serial,
        at=at,
        accepted=True,
        changed=None,
    )


def pin_certificate(
    pinned: PinnedIdentity | None, certificate: str | None, *, place: BmcPlace, at: datetime
) -> PinnedIdentity | None:
    """Return the pinned identity with the fingerprint of a BMC's certificate that no authority verifies.

    If ``certificate`` is None, return ``pinned`` itself.
    """
    if certificate is None or (pinned is not None and pinned.certificate == certificate):
        return pinned
    return structs.replace(
        pinned or PinnedIdentity(uuid=None, serial=None, at=at, place=place), certificate=certificate
    )


def find_pinned_identity(pinned: PinnedIdentity | None, place: BmcPlace) -> PinnedIdentity | None:
    """Return ``pinned`` if the identity was pinned at this address, and otherwise None.

    The next contact with a BMC at a new address is a first contact.
    """
    return pinned if pinned is not None and pinned.place == place else None


def list_pinned_values(pinned: PinnedIdentity) -> frozenset[str]:
    """Return the UUIDs and serial numbers that a pinned identity contains."""
    values = {pinned.uuid, _normalize_serial(pinned.serial)}
    if pinned.changed is not None:
        values |= {pinned.changed.uuid, _normalize_serial(pinned.changed.serial)}
    return frozenset(value for value in values if value is not None)


def list_document_values(serials_by_uuid: Mapping[SystemUuid, str | None]) -> frozenset[str]:
    """Return the serial numbers in documents, and the UUIDs in both byte orders."""
    serials = (serial.upper() for serial in serials_by_uuid.values() if serial is not None)
    return frozenset((*(order for uuid in serials_by_uuid for order in byte_orders(uuid)), *serials))


def _is_same_machine(
    uuids: Iterable[SystemUuid], serials: Iterable[str], reported: ReportedIdentity, shared_values: frozenset[str]
) -> bool | None:
    """Return whether the reported identity belongs to the same machine. Vendors' placeholder values are ignored.

    Return None if there are no values to compare.
    """
    known_uuids = {each for uuid in uuids if _is_real_uuid(uuid, shared_values) for each in byte_orders(uuid)}
    known_serials = {serial.upper() for serial in serials if _is_real_serial(serial, shared_values)}
    uuid = reported.uuid if reported.uuid is not None and _is_real_uuid(reported.uuid, shared_values) else None
    serial, sku = (
        each.upper() if each is not None and _is_real_serial(each, shared_values) else None
        for each in (reported.serial, reported.sku)
    )
    if uuid in known_uuids or {serial, sku} & known_serials:
        return True
    # A SKU can prove only that two machines are the same. It is the service tag on Dell servers, and a product number
    # on others.
    differs = (known_uuids and uuid is not None) or (known_serials and serial is not None)
    return False if differs else None


def _is_real_uuid(uuid: SystemUuid, shared_values: frozenset[str]) -> bool:
    return uuid not in shared_values and not is_placeholder_uuid(uuid)


def _is_real_serial(serial: str, shared_values: frozenset[str]) -> bool:
    return serial.upper() not in shared_values and not is_placeholder_serial(serial)


def _list_changes(
    document: DocumentIdentity, pinned: PinnedIdentity, reported: ReportedIdentity, *, is_same: bool | None
) -> list[str]:
    """Describe each reported value that differs from both the value at the first contact and the value in the document.

    BMCs report fewer values while they start. Therefore, a missing value does not count as a change in two cases:

    - The other value is the same as at the first contact.
    - The document contains the missing value, and the other values belong to the machine in the document.

    ``is_same`` is the result of `_is_same_machine` for the document and the reported identity. If a person accepted a
    BMC that reported no values, only an identity of another machine than the one in the document is a change. After a
    change, a BMC that reports no values may still be the BMC of the other machine, so that is a change, too.
    """
    if pinned.changed is not None and reported.uuid is None and reported.serial is None:
        return [f"{NO_IDENTITY} instead of {ReportedIdentity(uuid=pinned.uuid, serial=pinned.serial)}"]
    if pinned.accepted and pinned.uuid is None and pinned.serial is None:
        return [f"{reported} instead of {NO_IDENTITY}"] if is_same is False else []
    is_same_uuid = _is_same_uuid(reported.uuid, pinned.uuid)
    is_same_serial = _is_same_serial(reported.serial, pinned.serial)
    uuid_may_differ = is_same_uuid or document.has_uuid(reported.uuid)
    if reported.uuid is None:
        uuid_may_differ |= is_same_serial or (is_same is True and document.has_uuid(pinned.uuid))
    serial_may_differ = is_same_serial or document.has_serial(reported.serial)
    if reported.serial is None:
        serial_may_differ |= is_same_uuid or (is_same is True and document.has_serial(pinned.serial))
    changes = []
    if pinned.uuid is not None and not uuid_may_differ:
        changes.append(f"UUID {reported.uuid or 'none'} instead of {pinned.uuid}")
    if pinned.serial is not None and not serial_may_differ:
        current = f'"{reported.serial}"' if reported.serial is not None else "none"
        changes.append(f'serial {current} instead of "{pinned.serial}"')
    return changes


def _format_remedy(document: DocumentIdentity, reported: ReportedIdentity) -> str:
    uuid, serial = reported.uuid, reported.serial
    fields: list[str] = []
    if uuid is not None and not is_placeholder_uuid(uuid) and not document.has_uuid(uuid):
        fields.append(f"uuid: {uuid}")
    if serial is not None and not is_placeholder_serial(serial) and not document.has_serial(serial):
        fields.append(f'serial: "{serial}"')
    if not fields:
        return ""
    line = f"reports: {{{', '.join(fields)}}}"
    return f". If this BMC belongs to the server, you can add `{line}` to `bmc` in the Server document"


def _is_same_uuid(one: SystemUuid | None, other: SystemUuid | None) -> bool:
    return one == other or (one is not None and other is not None and one in byte_orders(other))


def _is_same_serial(one: str | None, other: str | None) -> bool:
    return _normalize_serial(one) == _normalize_serial(other)


def _normalize_serial(serial: str | None) -> str | None:
    return serial.upper() if serial is not None else None


class SharedIdentityValues(Struct, frozen=True, kw_only=True):
    """Identity values that BMCs at several addresses report and that no document contains, such as vendors' defaults.

    gitboot ignores such values, because they do not identify a machine. The object stores pinned identities and
    machines, so that `update` processes only the changed ones.
    """

    values: frozenset[str] = frozenset()  # values that do not identify a machine
    pins: Mapping[SystemUuid, PinnedIdentity] = field(default_factory=dict)
    machines: Mapping[SystemUuid, Machine] = field(default_factory=dict)
    # the addresses of the BMCs that report each value, one address for each pinned identity
    _places_by_value: Mapping[str, tuple[BmcPlace, ...]] = field(default_factory=dict)
    _repeated_values: frozenset[str] = frozenset()  # values that BMCs at two or more addresses report
    _document_values: frozenset[str] | None = None  # the values in documents; None: not computed yet

    def update(
        self, pins: Mapping[SystemUuid, PinnedIdentity], machines: Mapping[SystemUuid, Machine]
    ) -> SharedIdentityValues:
        """Return the shared values of these pinned identities and machines.

        The method reads only the pinned identities that differ from those of the last update.
        """
        if pins is self.pins and machines is self.machines:
            return self
        changed = self._find_changed_places(pins)
        repeated = frozenset(self._repeated_values - changed.keys()).union(
            value for value, places in changed.items() if len(set(places)) > 1
        )
        document_values = self._document_values if machines is self.machines else None
        if repeated and document_values is None:
            document_values = list_document_values({uuid: machine.serial for uuid, machine in machines.items()})
        return SharedIdentityValues(
            values=repeated - (document_values or frozenset()),
            pins=pins,
            machines=machines,
            _places_by_value=apply_changes(
                self._places_by_value,
                {value: places for value, places in changed.items() if places},
                [value for value, places in changed.items() if not places],
            ),
            _repeated_values=repeated,
            _document_values=document_values,
        )

    def _find_changed_places(self, pins: Mapping[SystemUuid, PinnedIdentity]) -> dict[str, tuple[BmcPlace, ...]]:
        """Return the values that a changed pinned identity contains or contained, and the new places of each value."""
        found: dict[str, list[BmcPlace]] = {}

        def find_places(value: str) -> list[BmcPlace]:
            return found.setdefault(value, list(self._places_by_value.get(value, ())))

        for uuid in find_differing_keys(self.pins, pins):
            if (before := self.pins.get(uuid)) is not None:
                for value in list_pinned_values(before):
                    find_places(value).remove(before.place)
            if (after := pins.get(uuid)) is not None:
                for value in list_pinned_values(after):
                    find_places(value).append(after.place)
        return {value: tuple(places) for value, places in found.items()}
