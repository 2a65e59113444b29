"""What another system knows of machines and of how they boot, in words that all sources share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gitboot.model.scalars.machines import MacAddress, SystemUuid
from gitboot.model.server import Architecture, Firmware


class ImportFate(StrEnum):
    """What became of something that the source says."""

    KEPT = "kept"
    GUESSED = "guessed"  # the source does not say it
    LOST = "lost"
    MISSING = "missing"  # a person has to supply it first


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class ImportRemark:
    """One line of the report."""

    fate: ImportFate
    text: str


def kept(text: str) -> ImportRemark:
    return ImportRemark(fate=ImportFate.KEPT, text=text)


def guessed(text: str) -> ImportRemark:
    return ImportRemark(fate=ImportFate.GUESSED, text=text)


def lost(text: str) -> ImportRemark:
    return ImportRemark(fate=ImportFate.LOST, text=text)


def missing(text: str) -> ImportRemark:
    return ImportRemark(fate=ImportFate.MISSING, text=text)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedNic:
    """A network interface."""

    mac: MacAddress
    name: str | None = None
    addresses: tuple[str, ...] = ()
    boot: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedBmc:
    """A BMC that speaks Redfish or IPMI; user and password are never taken."""

    address: str
    credentials: str  # a name
    system: str | None = None
    verify: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedData:
    """User data that needs no translation."""

    format: str  # as a BootProfile says it
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedMachine:
    """A machine, as far as the source knows it."""

    name: str  # as the source has it
    uuid: SystemUuid | None = None  # of SMBIOS; a number of the source's own is none
    serial: str | None = None
    architecture: Architecture | None = None
    firmware: Firmware | None = None
    nics: tuple[ImportedNic, ...] = ()
    bmc: ImportedBmc | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    boot: str | None = None  # the name of an `ImportedBoot`
    arguments: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # names of arguments that others have by the same boot
    vars: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[ImportRemark, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedBoot:
    """Something that the source boots machines by: a kernel, or a uki."""

    name: str
    kernel: str | None = None  # URLs, or assets:PATH
    initrds: tuple[str, ...] = ()
    rootfs: str | None = None
    uki: str | None = None
    arguments: tuple[str, ...] = ()
    architecture: Architecture | None = None
    data: ImportedData | None = None
    remarks: tuple[ImportRemark, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(url for url in (self.kernel, *self.initrds, self.rootfs, self.uki) if url)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estate:
    """All that a source says."""

    machines: tuple[ImportedMachine, ...] = ()
    boots: tuple[ImportedBoot, ...] = ()
    remarks: tuple[ImportRemark, ...] = ()  # about no machine and no boot
