"""Server: one machine, its identity, its interfaces, its BMC."""

import re
from enum import StrEnum
from typing import Final, Literal

from gitboot.model.fields import (
    BmcAddress,
    Boolean,
    Document,
    Field,
    FilePath,
    Fingerprint,
    Instant,
    Integer,
    InterfaceAddress,
    KernelArgument,
    LocalDisk,
    Mac,
    NameField,
    SecretPath,
    Text,
    Uuid,
    Variable,
    VariableName,
    check,
    structure,
)
from gitboot.model.scalars import (
    MacAddress,
    Malformed,
    SystemUuid,
    derive_uuid,
    is_placeholder_mac,
    is_placeholder_serial,
    quote_value,
)
from gitboot.problems import Code

PROVISIONED = "gitboot.dev/provisioned"  # an annotation: the number that is installed, as Git says


class Architecture(StrEnum):
    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class Firmware(StrEnum):
    UEFI = "UEFI"
    BIOS = "BIOS"


class Loader(StrEnum):
    """What DHCP names for a machine's firmware."""

    IPXE = "iPXE"
    GRUB = "GRUB"


class Lifecycle(StrEnum):
    ACTIVE = "Active"
    PARKED = "Parked"  # someone else works on the machine
    RETIRED = "Retired"  # for good


@structure
class Interface:
    """One network interface of a server."""

    name: Text | None = Field(default=None, description="The interface's name, for people. Default: none.")
    mac: Mac = Field(description="The MAC address: colons, hyphens, dots or none, in any case.")
    addresses: tuple[InterfaceAddress, ...] = Field(
        default=(), description="Its IP addresses, each with or without a prefix length. Default: none."
    )
    boot: Boolean = Field(
        default=True, description="Whether the machine may boot from it: it gets entries. Default: true."
    )


@structure
class BmcTls:
    """How a BMC's certificate is checked."""

    verify: Boolean = Field(default=True, description="Whether the certificate is verified. Default: true.")
    ca: FilePath | None = Field(
        default=None,
        description="A PEM file in this repository with the authority to trust. Default: the system's own.",
    )
    fingerprint: Fingerprint | None = Field(
        default=None,
        description="The sha256 of the one certificate that it may show, beside what else is checked. Default: any.",
    )


@structure
class BmcReports:
    """What a BMC shows of its machine where that is not what the document says: without it, nothing is set there."""

    uuid: Uuid | None = Field(
        default=None, description="The UUID that the BMC shows, in either byte order. Default: the server's."
    )
    serial: Text | None = Field(
        default=None, description="The serial number or SKU that the BMC shows. Default: the server's."
    )


@structure
class Bmc:
    """A server's management controller, reached through Redfish, or through IPMI where it has none."""

    address: BmcAddress = Field(
        description="The BMC's base URL: https://10.112.0.13; or ipmi://10.112.0.13 where it has no Redfish."
    )
    system: Text | None = Field(
        default=None,
        description="The Redfish path of the system: /redfish/v1/Systems/1. Default: the only one there is.",
    )
    credentials: NameField = Field(
        description="The name of user and password; the instance resolves it, the value never stands in Git."
    )
    tls: BmcTls = Field(default_factory=BmcTls, description="How its certificate is checked.")
    reports: BmcReports | None = Field(
        default=None,
        description="What it shows of its machine, where that is neither the UUID nor the serial number of the server."
        " Default: one of the two.",
    )

    @check
    def _ipmi_has_neither_paths_nor_certificates(self) -> None:
        if self.address.lower().startswith("ipmi:") and (self.system is not None or self.tls != BmcTls()):
            raise Malformed(
                Code.COMBINATION,
                "system and tls are Redfish's, and this BMC is reached by IPMI",
                "leave them out, or write https://HOST where the BMC has Redfish",
                ("address",),
            )

    @check
    def _system_is_a_path(self) -> None:
        if self.system is not None and not self.system.startswith("/"):
            raise Malformed(
                Code.URL,
                f"expected a Redfish path, found {quote_value(self.system)}",
                "write it from the root: /redfish/v1/Systems/1",
                ("system",),
            )


@structure
class Pin:
    """A server's own image, whatever streams say: opted out, visibly."""

    image: NameField = Field(description="The BootImage that this server boots.")
    reason: Text = Field(description="Why, for those who find it later.")
    until: Instant | None = Field(
        default=None,
        description="A deadline for people: once past, it is reported; nothing changes by itself. Default: none.",
    )


@structure
class ServerSpec:
    """What a server is."""

    uuid: Uuid | None = Field(
        default=None,
        description="SMBIOS system UUID, in any case: the key of all that is recorded. Default: it is not "
        "known yet; until it is, nothing is installed, and no BMC asked.",
    )
    replaces: Uuid | None = Field(
        default=None,
        description="The UUID that this machine had before its board was replaced: it is installed once provision is "
        "above what that one was installed with. Default: none.",
    )
    serial: Text | None = Field(
        default=None,
        description="The serial number, as SMBIOS has it: iPXE finds the server by it, too. Default: none.",
    )
    architecture: Architecture = Field(description="The processor's architecture.")
    firmware: Firmware = Field(description="How the machine's firmware boots.")
    interfaces: tuple[Interface, ...] = Field(min_length=1, description="The network interfaces; at least one.")
    bmc: Bmc | None = Field(default=None, description="The management controller. Default: none.")
    lifecycle: Lifecycle = Field(
        default=Lifecycle.ACTIVE,
        description="Parked: someone else works on it, gitboot keeps off. Retired: for good. Default: Active.",
    )
    policy: NameField | None = Field(
        default=None, description="Its BootPolicy by name, instead of by selection. Default: selection."
    )
    local_disk: LocalDisk | None = Field(
        default=None,
        description="How loaders hand over to its disk: Exit, Sanboot, NotFound, or the path of an EFI program on it. "
        "Default: as the Fleet says of its hardware, else what suits most machines.",
    )
    loader: Loader | None = Field(
        default=None, description="What DHCP names for it: iPXE or GRUB. Default: as the Fleet says of its hardware."
    )
    pin: Pin | None = Field(default=None, description="An image of its own. Default: none.")
    provision: Integer = Field(default=0, description='Raise it to provision the server again. Default: 0, "as found".')
    kernel_arguments: tuple[KernelArgument, ...] = Field(
        default=(), description="Arguments that come last; -name removes one. Default: none."
    )
    vars: dict[VariableName, Variable] = Field(
        default_factory=dict, description="Variables for templates; they win over all others. Default: none."
    )
    secrets: dict[VariableName, SecretPath] = Field(
        default_factory=dict,
        description="Its own files that age encrypted, by name; they win over the profile's. Default: none.",
    )

    @check
    def _is_known_where_it_has_to_be(self) -> None:
        needs = {"provision": self.provision, "replaces": self.replaces, "bmc": self.bmc, "secrets": self.secrets}
        if self.uuid is None and (needing := next((name for name, value in needs.items() if value), None)):
            raise Malformed(
                Code.UUID_NEEDED,
                f"{needing} needs the UUID of the server, and it has none",
                f"write its uuid, as `dmidecode -s system-uuid` there says it, or leave out {needing}",
                (needing,),
            )

    @check
    def _boots_from_something(self) -> None:
        if not any(interface.boot for interface in self.interfaces):
            raise Malformed(
                Code.COMBINATION,
                "no interface of this server may boot",
                "leave out boot: false on one of them",
                ("interfaces",),
            )


@structure
class Server(Document):
    """One machine: who it is, and how it is reached."""

    kind: Literal["Server"] = Field(description="The kind of this document.")
    spec: ServerSpec = Field(description="What the server is.")

    @property
    def uuid(self) -> SystemUuid:
        """Return the key of the server in all records: its UUID, or the UUID that stands for an unknown one."""
        return self.spec.uuid if self.spec.uuid is not None else derive_uuid(self.spec.interfaces[0].mac)

    @property
    def boot_macs(self) -> tuple[MacAddress, ...]:
        return tuple(interface.mac for interface in self.spec.interfaces if interface.boot)

    @property
    def lookup_macs(self) -> tuple[MacAddress, ...]:
        """Return the MAC addresses by which loaders find the server: of interfaces that may boot, no placeholders."""
        return tuple(mac for mac in self.boot_macs if not is_placeholder_mac(mac))

    @property
    def boot_serial(self) -> str | None:
        """Return the serial number by which loaders find the server. None: it is a placeholder, or unfit for a path."""
        serial = self.spec.serial
        if serial is None or not _SERIAL.fullmatch(serial) or is_placeholder_serial(serial):
            return None
        return serial


_SERIAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{3,63}")
