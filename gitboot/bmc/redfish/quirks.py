"""A table of BMC differences: choices that the Redfish standard permits, and deviations from the standard.

gitboot first uses the capabilities that a BMC reports, such as allowable targets, HttpBootUri and @Redfish.Settings. A
row contains only facts that a BMC does not report, or reports wrongly. docs/how-to/bmcs.md lists the reported
capabilities and the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from gitboot.bmc.override_state import BmcObservation, Override
from gitboot.bmc.override_steps import supports_enabled_value
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

ENABLED = "BootSourceOverrideEnabled"
TARGET = "BootSourceOverrideTarget"
MODE = "BootSourceOverrideMode"
HTTP_BOOT_URI = "HttpBootUri"


class ModePolicy(Enum):
    """When gitboot sends ``BootSourceOverrideMode``."""

    DIFFERENT = "gitboot sends the mode only to change it"
    ALWAYS = "gitboot sends the mode with every change, if the BMC shows a mode"
    NEVER = "gitboot does not send the mode, because it is read-only"


class FirmwareUri(Struct, frozen=True, kw_only=True):
    """The BIOS attribute for the URI from which firmware boots over HTTP without asking a DHCP server.

    A change to the attribute takes effect at the next reset.
    """

    attribute: str
    related_attributes: Mapping[str, str]  # attributes to write together with the URI
    # The related attribute without whose value in `related_attributes` firmware ignores the URI.
    enabling_attribute: str | None = None

    def read(self, attributes: Mapping[str, Any]) -> str | None:
        """Return the URI from which firmware would boot, "" if no URI is set, or None if there is no such setting."""
        uri = attributes.get(self.attribute)
        if not isinstance(uri, str):
            return None
        is_off = (
            self.enabling_attribute is not None
            and attributes.get(self.enabling_attribute) != self.related_attributes[self.enabling_attribute]
        )
        return "" if is_off else uri


class Quirks(Struct, frozen=True, kw_only=True):
    """One row of the table.

    A row specifies to which BMCs the row applies, how these BMCs differ, and the sources of these facts.
    """

    name: str
    source: str
    manufacturers: tuple[str, ...] = ()  # prefixes of ComputerSystem.Manufacturer, in lower case
    systems: tuple[str, ...] = ()  # alternatively, paths of the ComputerSystem
    oem: str | None = None  # alternatively, the name of an object in ComputerSystem.Oem
    mode: ModePolicy = ModePolicy.DIFFERENT
    resent_properties: frozenset[str] = frozenset()  # properties to send with every change, even if they are unchanged
    disabled_target: OverrideTarget | None = None  # the target to send with Disabled; None: send no target
    takes_http_boot_uri: bool = True  # whether the BMC accepts HttpBootUri if it shows this property
    continuous_http: bool = True
    cd_target: OverrideTarget = OverrideTarget.CD
    cd_models: tuple[str, ...] = ()  # the models, in lower case, that boot virtual media with Cd instead of `cd_target`
    firmware_uri: FirmwareUri | None = None  # if set, UefiHttp boots from this URI instead of using DHCP
    # the path of the system's property with the time of its last reset; (): there is no such property
    reset_time: tuple[str, ...] = ("LastResetTime",)
    # The BootProgress.LastState that the BMC also shows, without a LastStateTime, while an operating system runs.
    last_progress: str | None = None
    # The beginnings of the names of the drives that take an image from the network; (): all drives.
    network_drives: tuple[str, ...] = ()
    # Whether the BMC still shows an ejected image in virtual media, with ConnectedVia NotConnected.
    shows_ejected_media: bool = False
    # Whether the BMC may show an image of an earlier installation as Inserted although it is no longer connected.
    shows_stale_media: bool = False
    sends_media_protocol: bool = False  # whether InsertMedia needs TransferProtocolType without listing its values

    @property
    def differences(self) -> tuple[str, ...]:
        """Phrases for the documentation, one for each field that differs from `STANDARD`."""
        phrases = {
            "mode": self.mode.value,
            "resent_properties": f"gitboot sends {' and '.join(sorted(self.resent_properties))} with every change",
            "disabled_target": f"to disable an override, gitboot also sends the target {self.disabled_target}",
            "takes_http_boot_uri": "the BMC shows HttpBootUri but rejects it, so DHCP must send the name of the boot "
            "loader",
            "continuous_http": "Continuous UefiHttp changes the boot order permanently, so gitboot uses Continuous Pxe",
            "cd_target": f"gitboot boots virtual media with the target {self.cd_target}, if the BMC lists it",
            "cd_models": f"gitboot boots virtual media of the model {' and '.join(self.cd_models)} with the target Cd",
            "firmware_uri": f"UefiHttp boots from the URI in the BIOS attribute {self.firmware_uri.attribute}"
            if self.firmware_uri
            else "",
            "reset_time": f"a reset changes {'/'.join(self.reset_time)}"
            if self.reset_time
            else "a reset does not change LastResetTime",
            "last_progress": f"{self.last_progress} without a time does not count as POST, because the BMC also shows "
            "it while an operating system runs",
            "network_drives": f"gitboot uses only the drives whose names begin with {' or '.join(self.network_drives)}",
            "shows_ejected_media": "a drive is empty if ConnectedVia is NotConnected, regardless of Image and Inserted",
            "shows_stale_media": "gitboot ejects and reinserts an image that it did not insert for this boot, "
            "even if the drive shows the right URL",
            "sends_media_protocol": "gitboot sends TransferProtocolType with each medium",
        }
        return tuple(phrase for name, phrase in phrases.items() if getattr(self, name) != getattr(STANDARD, name))


STANDARD = Quirks(name="Redfish", source="DMTF DSP0268, ComputerSystem")

QUIRKS = (
    Quirks(
        name="Dell iDRAC",
        # If gitboot sent an unchanged mode, the BMC would queue a BIOS job and reboot a second time.
        source="ironcore-dev/metal-operator issue 81; dell/iDRAC-Redfish-Scripting issues 306 and 319;"
        " dsx-ai-factory/libredfish pull request 75; redhat-performance/jetlag issue 657;"
        " microsoft/lisa pull request 4168",
        manufacturers=("dell",),
        systems=("/redfish/v1/Systems/System.Embedded.1",),  # the manufacturer may be missing
        firmware_uri=FirmwareUri(
            attribute="HttpDev1Uri",
            related_attributes={
                # The other attributes must be written together with this attribute, not before.
                "HttpDev1EnDis": "Enabled",
                "HttpDev1DhcpEnDis": "Enabled",
                "HttpDev1TlsMode": "None",  # with any other value, the BMC rejects http URIs
            },
            enabling_attribute="HttpDev1EnDis",
        ),
        # The image of an earlier installation may stay in the drive, and InsertMedia then fails with VRM0021.
        shows_stale_media=True,
        continuous_http=False,  # a Continuous override moves the HTTP device to the top of the boot order permanently
    ),
    Quirks(
        name="HPE iLO",
        source="ansible-collections/community.general issue 3509; stmcginnis/gofish issue 507;"
        " ironcore-dev/metal-operator pull request 998; HpeComputerSystemExt;"
        " dsx-ai-factory/libredfish pull request 76; openstack/proliantutils, set_http_boot_url",
        manufacturers=("hpe", "hewlett packard enterprise"),
        mode=ModePolicy.NEVER,
        firmware_uri=FirmwareUri(attribute="UrlBootFile", related_attributes={"PreBootNetwork": "Auto"}),
        disabled_target=OverrideTarget.PXE,  # the BMC rejects None
        takes_http_boot_uri=False,  # iLO 6 shows HttpBootUri, but responds with PropertyNotWritableOrUnknown
        reset_time=("Oem", "Hpe", "PostDiscoveryCompleteTimeStamp"),
    ),
    Quirks(
        # also for ASRock Rack, Gigabyte, Lenovo TSM and NVIDIA DGX H100, whose firmware is based on MegaRAC
        name="AMI MegaRAC",
        source="ansible-collections/community.general issue 11542; pubs.lenovo.com/tsm, Systems Instance SD;"
        " DMTF/Redfish-Tacklebox issues 111 and 144; NVIDIA/libredfish, mockup nvidia_viking;"
        " stmcginnis/gofish, oem/ami",
        manufacturers=("ami", "asrock", "giga"),
        systems=("/redfish/v1/Systems/Self", "/redfish/v1/Systems/DGX"),
        oem="Ami",  # for QuantaGrid S74G, whose path is that of OpenBMC
        mode=ModePolicy.ALWAYS,
        resent_properties=frozenset({ENABLED, TARGET}),
        disabled_target=OverrideTarget.NONE,
    ),
    Quirks(
        name="Lenovo XCC",
        # The drives RDOC and Remote are for images in the BMC and on the client, but their resources look like other CD
        # drives.
        source="lenovo/python-redfish-lenovo issue 21",
        manufacturers=("lenovo",),
        network_drives=("EXT",),
    ),
    Quirks(
        name="Cisco CIMC",
        # C845A M8: InsertMedia rejects a request without TransferProtocolType.
        source="sushy, VirtualMedia.is_transfer_protocol_required",
        manufacturers=("cisco",),
        sends_media_protocol=True,
    ),
    Quirks(
        name="OpenBMC",  # also for NVIDIA's GB200, GH200 and BlueField, whose firmware is based on OpenBMC
        source="openbmc/bmcweb, redfish-core/lib/systems.hpp; NVIDIA/libredfish, mockups nvidia_gb200 and nvidia_dpu",
        systems=(
            "/redfish/v1/Systems/system",
            "/redfish/v1/Systems/System_0",
            "/redfish/v1/Systems/Bluefield",
        ),
        # LastResetTime is the time of the last change of the chassis power, so a reboot does not change it.
        reset_time=(),
    ),
    Quirks(
        # after OpenBMC, on which the firmware of the GB NVL is based (spyroot/redfish_ctl, supermicro_fixtures)
        name="Supermicro",
        # X10 and older show no mode, and reject a PATCH with a mode, so gitboot sends a mode only if the BMC shows one.
        source="DMTF/Redfishtool pull request 106; storyboard.openstack.org story 2008547; sushy, System;"
        " ansible-collections/community.general issue 6969 and pull request 12537;"
        " bmc-toolbox/bmclib, x12.bootComplete",
        manufacturers=("supermicro", "super micro"),
        mode=ModePolicy.ALWAYS,
        resent_properties=frozenset({ENABLED}),
        last_progress="SystemHardwareInitializationComplete",  # X12 and X13
        cd_target=OverrideTarget.USB_CD,  # X11 and later also list Cd, which does not boot
        cd_models=("ars-111gl-nhr",),
        shows_ejected_media=True,  # X12 and H13 keep the image after an eject
    ),
)

# The suffixes of the message IDs with which BMCs reject a request temporarily.
TEMPORARY_REFUSALS = (
    "UnableToModifyDuringSystemPOST",  # from the HPE iLO message registry
    "InvalidOperationForSystemState",  # from the HPE iLO message registry
    "SYS518",  # Dell: the iDRAC is not ready after the previous operation
    "ResourceInUse",  # DMTF Base registry
    "ServiceTemporarilyUnavailable",  # DMTF Base registry
)


def find_quirks(path: str, system: Mapping[str, Any]) -> Quirks:
    """Return the first row that matches a ComputerSystem. A trailing slash in the path is ignored."""
    path = path.rstrip("/")
    manufacturer = str(system.get("Manufacturer") or "").lower()
    oem = system.get("Oem")
    vendors = oem if isinstance(oem, dict) else {}
    rows = (
        row for row in QUIRKS if manufacturer.startswith(row.manufacturers) or path in row.systems or row.oem in vendors
    )
    return next(rows, STANDARD)


def find_cd_target(quirks: Quirks, system: Mapping[str, Any], targets: Collection[str]) -> OverrideTarget:
    """Return the target with which a ComputerSystem boots virtual media. ``targets`` are the targets that it lists."""
    model = str(system.get("Model") or "").lower()
    return quirks.cd_target if quirks.cd_target in targets and model not in quirks.cd_models else OverrideTarget.CD


def get_quirks(observed: BmcObservation) -> Quirks:
    """Return the row that applies to an observed BMC."""
    return next((row for row in QUIRKS if row.name == observed.quirks_name), STANDARD)


def build_boot_patch(override: Override, observed: BmcObservation) -> dict[str, str | None]:
    """Return the ``Boot`` properties to send for an override, or {} if the BMC already shows the override.

    These are the properties that differ from the observed ones, and those that this BMC needs with every change.
    """
    quirks = get_quirks(observed)
    if override.enabled is not OverrideEnabled.DISABLED:
        complete = _build_properties(override) | {MODE: override.mode or observed.override.mode}
        if observed.override.mode is None or quirks.mode is ModePolicy.NEVER:
            del complete[MODE]
        if override.target != OverrideTarget.UEFI_HTTP or not observed.supports_http_boot_uri:
            del complete[HTTP_BOOT_URI]
    elif observed.override.enabled is OverrideEnabled.DISABLED:
        return {}
    elif not supports_enabled_value(OverrideEnabled.DISABLED, observed):
        complete = {TARGET: OverrideTarget.NONE}
    else:
        complete = {ENABLED: OverrideEnabled.DISABLED}
        if quirks.disabled_target is not None:
            complete[TARGET] = quirks.disabled_target
        if quirks.mode is ModePolicy.ALWAYS and observed.override.mode is not None:
            complete[MODE] = observed.override.mode
    shown = _build_properties(observed.override)
    different = {name for name, value in complete.items() if value != shown[name]}
    if not different:
        return {}
    always_sent = quirks.resent_properties | ({MODE} if quirks.mode is ModePolicy.ALWAYS else frozenset())
    return {name: value for name, value in complete.items() if name in different | always_sent}


def _build_properties(override: Override) -> dict[str, str | None]:
    return {
        ENABLED: override.enabled,
        TARGET: override.target,
        MODE: override.mode,
        HTTP_BOOT_URI: override.http_boot_uri,
    }
