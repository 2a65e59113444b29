"""How BMCs differ, as data: what Redfish leaves open, and what firmware makes of it.

What a BMC advertises comes first: allowable targets, HttpBootUri, @Redfish.Settings. A row stands here only
for what it does not say of itself, or says wrongly: docs/bmcs.md has both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from msgspec import Struct

from gitboot.bmc.override_state import BmcObservation, Override
from gitboot.bmc.override_steps import allows_enabled
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

ENABLED = "BootSourceOverrideEnabled"
TARGET = "BootSourceOverrideTarget"
MODE = "BootSourceOverrideMode"
HTTP_BOOT_URI = "HttpBootUri"


class ModePolicy(Enum):
    """When ``BootSourceOverrideMode`` is sent."""

    DIFFERENT = "when it differs"
    ALWAYS = "with every change, where the BMC shows one"
    NEVER = "never: it is read-only"


class FirmwareUri(Struct, frozen=True, kw_only=True):
    """A BIOS attribute with what firmware boots by HTTP, whatever DHCP says; it changes at a reset, and stays."""

    attribute: str
    related_attributes: Mapping[str, str]  # what is written with it
    enabling_attribute: str | None = None  # that of them without whose value it counts for nothing

    def read(self, attributes: Mapping[str, Any]) -> str | None:
        """Return what firmware would boot, "" for nothing; None: it has no such setting."""
        uri = attributes.get(self.attribute)
        if not isinstance(uri, str):
            return None
        is_off = (
            self.enabling_attribute is not None
            and attributes.get(self.enabling_attribute) != self.related_attributes[self.enabling_attribute]
        )
        return "" if is_off else uri


class Quirks(Struct, frozen=True, kw_only=True):
    """One row: whom it is about, what is different, who says so."""

    name: str
    source: str
    manufacturers: tuple[str, ...] = ()  # how ComputerSystem.Manufacturer may begin, in lower case
    systems: tuple[str, ...] = ()  # or the path of the ComputerSystem
    mode: ModePolicy = ModePolicy.DIFFERENT
    always: frozenset[str] = frozenset()  # sent with every change, whether they differ or not
    off_target: OverrideTarget | None = None  # the target that is sent with Disabled; None: left as it is
    takes_http_boot_uri: bool = True  # if it shows one
    continuous_http: bool = True
    boots_cd_as: OverrideTarget = OverrideTarget.CD
    firmware_uri: FirmwareUri | None = None  # what UefiHttp boots before it asks DHCP
    reset_time: tuple[str, ...] = ("LastResetTime",)  # where the system says when it last reset; (): nowhere

    @property
    def differences(self) -> tuple[str, ...]:
        """What is different, in words: one phrase for each field that is."""
        phrases = {
            "mode": f"mode is sent {self.mode.value}",
            "always": f"{' and '.join(sorted(self.always))} sent with every change",
            "off_target": f"switched off with target {self.off_target}",
            "takes_http_boot_uri": "shows HttpBootUri and does not take it: DHCP names the loader",
            "continuous_http": "Continuous UefiHttp would change the boot order for good: Continuous Pxe instead",
            "boots_cd_as": f"virtual media boot as {self.boots_cd_as}, where that is listed",
            "firmware_uri": f"UefiHttp boots what stands in the BIOS attribute {self.firmware_uri.attribute}"
            if self.firmware_uri
            else "",
            "reset_time": f"a reset is seen at {'/'.join(self.reset_time)}"
            if self.reset_time
            else "LastResetTime proves nothing",
        }
        return tuple(phrase for name, phrase in phrases.items() if getattr(self, name) != getattr(STANDARD, name))


STANDARD = Quirks(name="Redfish", source="DMTF DSP0268, ComputerSystem")

QUIRKS = (
    Quirks(
        name="Dell iDRAC",
        # A mode that does not differ queues a BIOS job all the same, and a second reboot: never sent here.
        source="ironcore-dev/metal-operator issue 81; dell/iDRAC-Redfish-Scripting issues 306 and 319;"
        " dsx-ai-factory/libredfish pull request 75",
        manufacturers=("dell",),
        firmware_uri=FirmwareUri(
            attribute="HttpDev1Uri",
            related_attributes={
                "HttpDev1EnDis": "Enabled",  # what is below it can be written with it, not before
                "HttpDev1DhcpEnDis": "Enabled",
                "HttpDev1TlsMode": "None",  # or it refuses http
            },
            enabling_attribute="HttpDev1EnDis",
        ),
        continuous_http=False,  # it puts the HTTP device first in the boot order, for good
    ),
    Quirks(
        name="HPE iLO",
        source="ansible-collections/community.general issue 3509; stmcginnis/gofish issue 507;"
        " ironcore-dev/metal-operator pull request 998; HpeComputerSystemExt;"
        " dsx-ai-factory/libredfish pull request 76; openstack/proliantutils, set_http_boot_url",
        manufacturers=("hpe", "hewlett packard enterprise"),
        mode=ModePolicy.NEVER,
        firmware_uri=FirmwareUri(attribute="UrlBootFile", related_attributes={"PreBootNetwork": "Auto"}),
        off_target=OverrideTarget.PXE,  # it refuses None
        takes_http_boot_uri=False,  # iLO 6 shows it and answers PropertyNotWritableOrUnknown
        reset_time=("Oem", "Hpe", "PostDiscoveryCompleteTimeStamp"),
    ),
    Quirks(
        name="Supermicro",
        # X10 and older show no mode and refuse the whole PATCH for one: so only where it shows one.
        source="DMTF/Redfishtool pull request 106; storyboard.openstack.org story 2008547; sushy, System",
        manufacturers=("supermicro", "super micro"),
        mode=ModePolicy.ALWAYS,
        always=frozenset({ENABLED}),
        boots_cd_as=OverrideTarget.USB_CD,  # X11 and later list Cd too, which boots nothing
    ),
    Quirks(
        name="AMI MegaRAC",  # and ASRock Rack, Gigabyte, Lenovo TSM, NVIDIA DGX H100, which are built on it
        source="ansible-collections/community.general issue 11542; pubs.lenovo.com/tsm, Systems Instance SD;"
        " DMTF/Redfish-Tacklebox issues 111 and 144; NVIDIA/libredfish, mockup nvidia_viking",
        manufacturers=("ami", "asrock", "giga"),
        systems=("/redfish/v1/Systems/Self", "/redfish/v1/Systems/DGX"),
        mode=ModePolicy.ALWAYS,
        always=frozenset({ENABLED, TARGET}),
        off_target=OverrideTarget.NONE,
    ),
    Quirks(
        name="OpenBMC",  # and NVIDIA's GB200, GH200 and BlueField, which are built on it
        source="openbmc/bmcweb, redfish-core/lib/systems.hpp; NVIDIA/libredfish, mockups nvidia_gb200 and nvidia_dpu",
        systems=(
            "/redfish/v1/Systems/system",
            "/redfish/v1/Systems/System_0",
            "/redfish/v1/Systems/Bluefield",
        ),
        reset_time=(),  # LastResetTime is when the chassis was last switched on or off: no reboot moves it
    ),
)

# Message ids of refusals that pass by themselves, as they end.
TEMPORARY_REFUSALS = (
    "UnableToModifyDuringSystemPOST",  # HPE iLO message registry
    "InvalidOperationForSystemState",  # HPE iLO message registry
    "SYS518",  # Dell: the iDRAC is not ready after the operation before
    "ResourceInUse",  # DMTF Base registry
    "ServiceTemporarilyUnavailable",  # DMTF Base registry
)


def find_quirks(path: str, system: Mapping[str, Any]) -> Quirks:
    """Return the first row that fits a ComputerSystem, whether its path ends in a slash or not."""
    path = path.rstrip("/")
    manufacturer = str(system.get("Manufacturer") or "").lower()
    for row in QUIRKS:
        if manufacturer.startswith(row.manufacturers) or path in row.systems:
            return row
    return STANDARD


def get_quirks(observed: BmcObservation) -> Quirks:
    """Return the row that applies to what was seen."""
    return next((row for row in QUIRKS if row.name == observed.quirks_name), STANDARD)


def build_boot_patch(override: Override, observed: BmcObservation) -> dict[str, str | None]:
    """Return the ``Boot`` properties that bring a BMC from what was seen to what is wanted: empty if it is there.

    What differs, and beside it what this BMC wants to be sent anyway.
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
    elif not allows_enabled(OverrideEnabled.DISABLED, observed):
        complete = {TARGET: OverrideTarget.NONE}
    else:
        complete = {ENABLED: OverrideEnabled.DISABLED}
        if quirks.off_target is not None:
            complete[TARGET] = quirks.off_target
        if quirks.mode is ModePolicy.ALWAYS and observed.override.mode is not None:
            complete[MODE] = observed.override.mode
    shown = _build_properties(observed.override)
    different = {name for name, value in complete.items() if value != shown[name]}
    if not different:
        return {}
    always_sent = quirks.always | ({MODE} if quirks.mode is ModePolicy.ALWAYS else frozenset())
    return {name: value for name, value in complete.items() if name in different | always_sent}


def _build_properties(override: Override) -> dict[str, str | None]:
    return {
        ENABLED: override.enabled,
        TARGET: override.target,
        MODE: override.mode,
        HTTP_BOOT_URI: override.http_boot_uri,
    }
