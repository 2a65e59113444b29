"""Server: a machine, with its identities, network interfaces and BMC."""

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

PROVISIONED = "gitboot.dev/provisioned"  # the annotation with the provision number that is installed


class Architecture(StrEnum):
    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class Firmware(StrEnum):
    UEFI = "UEFI"
    BIOS = "BIOS"


class Loader(StrEnum):
    """The loader that DHCP names for a machine's firmware."""

    IPXE = "iPXE"
    GRUB = "GRUB"  # the GRUB that `gitboot artifacts loaders` builds, which has no signature
    SHIM = "Shim"  # the distribution's shim, which starts the signed GRUB of the distribution


class Lifecycle(StrEnum):
    ACTIVE = "Active"
    PARKED = "Parked"  # other people work on the machine, so gitboot changes nothing
    RETIRED = "Retired"  # the machine is permanently out of service


@structure
class Interface:
    """One network interface of a server."""

    name: Text | None = Field(default=None, description="The name of the interface, for people. Default: none.")
    mac: Mac = Field(
        description="The MAC address, in upper or lower case, with colons, hyphens, dots or no separators."
    )
    addresses: tuple[InterfaceAddress, ...] = Field(
        default=(),
        description="The IP addresses, each with or without a prefix length. Interfaces of one server may share an "
        "address, as in a bond. Default: none.",
    )
    boot: Boolean = Field(
        default=True,
        description="Whether the machine may boot from this interface. If so, gitboot publishes boot scripts for the "
        "MAC address. Default: true.",
    )


@structure
class BmcTls:
    """How gitboot checks the certificate of a BMC."""

    verify: Boolean = Field(default=True, description="Whether gitboot verifies the certificate. Default: true.")
    ca: FilePath | None = Field(
        default=None,
        description="A PEM file in this repository with the trusted certificate authority. Default: the system's "
        "authorities.",
    )
    fingerprint: Fingerprint | None = Field(
        default=None,
        description="The sha256 of the only allowed certificate, in addition to the other checks. Default: any "
        "certificate.",
    )


@structure
class BmcReports:
    """The identity that a BMC shows if it differs from the Server document.

    If neither the UUID nor the serial number matches, gitboot does not set the BMC.
    """

    uuid: Uuid | None = Field(
        default=None, description="The UUID that the BMC shows, in either byte order. Default: the server's UUID."
    )
    serial: Text | None = Field(
        default=None, description="The serial number or SKU that the BMC shows. Default: the server's serial number."
    )


@structure
class Bmc:
    """The management controller (BMC) of a server. gitboot uses Redfish, or IPMI if the BMC has no Redfish."""

    address: BmcAddress = Field(
        description="The base URL of the BMC, such as https://10.112.0.13, or ipmi://10.112.0.13 if the BMC has no "
        "Redfish."
    )
    system: Text | None = Field(
        default=None,
        description="The Redfish path of the system: /redfish/v1/Systems/1. Default: the only system of the BMC.",
    )
    credentials: NameField = Field(
        description="The name of the credentials. The instance stores the user name and the password outside Git."
    )
    tls: BmcTls = Field(default_factory=BmcTls, description="How gitboot checks the certificate.")
    reports: BmcReports | None = Field(
        default=None,
        description="The identity that the BMC shows, if it shows neither the UUID nor the serial number of the "
        "server. Default: the UUID and the serial number of the server.",
    )

    @check
    def _check_ipmi(self) -> None:
        if self.address.lower().startswith("ipmi:") and (self.system is not None or self.tls != BmcTls()):
            raise Malformed(
                Code.COMBINATION,
                "`system` and `tls` apply only to Redfish, but this BMC has an IPMI address",
                "remove `system` and `tls`, or use https://HOST if the BMC supports Redfish",
                ("address",),
            )

    @check
    def _check_system(self) -> None:
        if self.system is not None and not self.system.startswith("/"):
            raise Malformed(
                Code.URL,
                f"expected a Redfish path, found {quote_value(self.system)}",
                "use an absolute path: /redfish/v1/Systems/1",
                ("system",),
            )


@structure
class Pin:
    """An image for one server. A pin wins over streams."""

    image: NameField = Field(description="The BootImage that this server boots.")
    reason: Text = Field(description="The reason for the pin, for other people.")
    until: Instant | None = Field(
        default=None,
        description="A deadline. gitboot reports when the deadline has passed, but does not remove the pin. "
        "Default: none.",
    )


@structure
class ServerSpec:
    """The identity, hardware and settings of a server."""

    uuid: Uuid | None = Field(
        default=None,
        description="The SMBIOS system UUID, in upper or lower case. It is the key of the server's record. Default: "
        "the UUID is not known yet. Without a UUID gitboot neither installs the server nor uses its BMC.",
    )
    replaces: Uuid | None = Field(
        default=None,
        description="The UUID that this machine had before its board was replaced. gitboot installs the server only if "
        "provision is higher than the number that was installed with the old UUID. Default: none.",
    )
    serial: Text | None = Field(
        default=None,
        description="The SMBIOS serial number. iPXE can also find the server by its serial number. Default: none.",
    )
    architecture: Architecture = Field(description="The architecture of the processor.")
    firmware: Firmware = Field(description="The firmware mode in which the machine boots.")
    interfaces: tuple[Interface, ...] = Field(
        min_length=1, description="The network interfaces. At least one is required."
    )
    bmc: Bmc | None = Field(default=None, description="The management controller. Default: none.")
    lifecycle: Lifecycle = Field(
        default=Lifecycle.ACTIVE,
        description="Active: gitboot manages the server. Parked: other people work on the machine, so gitboot changes "
        "nothing. Retired: the machine is out of service permanently. Default: Active.",
    )
    policy: NameField | None = Field(
        default=None,
        description="The name of the BootPolicy, instead of a policy that selects the server. Default: the policy that "
        "selects it.",
    )
    local_disk: LocalDisk | None = Field(
        default=None,
        description="How loaders boot the disk: Exit, Sanboot, NotFound, or the path of an EFI program on the disk. "
        "Default: the setting for its hardware in the Fleet, else the method that works on most machines.",
    )
    loader: Loader | None = Field(
        default=None,
        description="The loader that DHCP offers: iPXE, GRUB, or Shim, which starts the signed GRUB of a "
        "distribution. Default: the setting for its hardware in the Fleet, else Shim if secureBoot is true and grub "
        "is published.",
    )
    secure_boot: Boolean | None = Field(
        default=None,
        description="true: Secure Boot is on. DHCP offers Shim, and gitboot warns about boots that the firmware "
        "rejects. Default: the setting for its hardware in the Fleet, else false.",
    )
    pin: Pin | None = Field(default=None, description="An image for this server alone. Default: none.")
    provision: Integer = Field(
        default=0, description="Raise the number to provision the server again. Default: 0, the server stays as it is."
    )
    kernel_arguments: tuple[KernelArgument, ...] = Field(
        default=(),
        description="Kernel arguments, which follow all other arguments. Maintenances ignore them. An item -NAME "
        "removes an argument. Default: none.",
    )
    vars: dict[VariableName, Variable] = Field(
        default_factory=dict,
        description="Variables for templates. They take precedence over all other variables. Default: none.",
    )
    secrets: dict[VariableName, SecretPath] = Field(
        default_factory=dict,
        description="Files that are encrypted with age, by name. They take precedence over the secrets of the "
        "profile. Default: none.",
    )

    @check
    def _check_identity(self) -> None:
        needs = {"provision": self.provision, "replaces": self.replaces, "bmc": self.bmc, "secrets": self.secrets}
        if self.uuid is None and (needing := next((name for name, value in needs.items() if value), None)):
            raise Malformed(
                Code.UUID_NEEDED,
                f"the field `{needing}` requires the server's `uuid`, which is not set",
                f"add the uuid that `dmidecode -s system-uuid` prints on the server, or remove `{needing}`",
                (needing,),
            )

    @check
    def _check_boot_interfaces(self) -> None:
        if not any(interface.boot for interface in self.interfaces):
            raise Malformed(
                Code.COMBINATION,
                "every interface of this server sets `boot: false`",
                "remove `boot: false` from one interface",
                ("interfaces",),
            )


_SERIAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{3,63}")


@structure
class Server(Document):
    """One machine: its identity, its hardware and its settings."""

    kind: Literal["Server"] = Field(description="The kind of this document.")
    spec: ServerSpec = Field(description="The identity, hardware and settings of the server.")

    @property
    def uuid(self) -> SystemUuid:
        """The server's key in the ledger: its UUID, or a UUID derived from its first MAC address."""
        return self.spec.uuid if self.spec.uuid is not None else derive_uuid(self.spec.interfaces[0].mac)

    @property
    def boot_macs(self) -> tuple[MacAddress, ...]:
        return tuple(interface.mac for interface in self.spec.interfaces if interface.boot)

    @property
    def lookup_macs(self) -> tuple[MacAddress, ...]:
        """The MAC addresses by which loaders find the server.

        The result contains the addresses of the boot interfaces, except placeholders.
        """
        return tuple(mac for mac in self.boot_macs if not is_placeholder_mac(mac))

    @property
    def boot_serial(self) -> str | None:
        """The serial number by which loaders find the server.

        The result is None if the serial number is not set, is a placeholder, or is not valid in a path.
        """
        serial = self.spec.serial
        is_usable = serial is not None and _SERIAL.fullmatch(serial) and not is_placeholder_serial(serial)
        return serial if is_usable else None
