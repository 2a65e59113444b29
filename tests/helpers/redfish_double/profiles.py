"""Behaviour of the BMCs of each vendor, as data: payloads, virtual drives, and profiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import sushy

# Payloads as real BMCs send them: the samples that sushy's own tests read.

Json: TypeAlias = dict[str, Any]

_FOLDER = Path(sushy.__file__).parent / "tests" / "unit" / "json_samples"
_SYSTEM = "/redfish/v1/Systems/437XR1138R2"  # as the samples have it


@cache
def _text(name: str) -> str:
    return (_FOLDER / f"{name}.json").read_text()


def sample(name: str, system: str = _SYSTEM) -> Json:
    """Return one sample with its paths below ``system``."""
    document: Json = json.loads(_text(name).replace(_SYSTEM, system.rstrip("/")))
    document.pop("@Redfish.Copyright", None)
    return document


# The virtual drives of a BMC, by the payloads that sushy's tests read.


class Drives(Enum):
    """The place of the virtual drives of a BMC, and the way to insert an image."""

    SYSTEM = "of the system, by actions"
    MANAGER = "of the Manager, by actions"
    PATCHED = "of the Manager, by PATCH"  # Lenovo SD530, by sushy's VirtualMedia.insert_media
    ABSENT = "none"


@dataclass
class Drive:
    """A virtual drive."""

    path: str
    kind: Drives
    types: tuple[str, ...] = ("CD", "DVD")
    protocols: tuple[str, ...] = ()  # the parameter that its action lists, which is then required
    image: str | None = None
    shows_late: bool = False  # it accepts an image, and shows it when the test says so
    ejected: list[str] = field(default_factory=list)
    fetches: Callable[[str], str | None] = lambda _: None  # for an image; returns why it is not available
    needs_protocol: bool = False  # its action needs the parameter that it does not list
    keeps_image: bool = False  # Image stays after an eject, with ConnectedVia NotConnected
    stale: str | None = None  # shown as inserted, and not connected; it must be ejected first
    lacks_actions: bool = False  # it has no action, and takes no PATCH

    @property
    def shown(self) -> str | None:
        return None if self.shows_late else self.image or self.stale

    def resource(self) -> Json:
        body = sample("virtual_media") | {
            "@odata.id": self.path,
            "Id": self.path.rpartition("/")[2],
            "MediaTypes": list(self.types),
            "Image": self.shown or (self.ejected[-1] if self.keeps_image and self.ejected else None),
            "ImageName": None,
            "Inserted": self.shown is not None,
            "ConnectedVia": "URI" if self.shown else "NotConnected",
        }
        if self.kind is Drives.PATCHED or self.lacks_actions:
            del body["Actions"]
            return body
        insert: Json = {"target": self.action("Insert")}
        if self.protocols:
            insert["TransferProtocolType@Redfish.AllowableValues"] = list(self.protocols)
        body["Actions"] = {
            "#VirtualMedia.InsertMedia": insert,
            "#VirtualMedia.EjectMedia": {"target": self.action("Eject")},
        }
        return body

    def action(self, name: str) -> str:
        return f"{self.path}/Actions/VirtualMedia.{name}Media"

    def apply_request(self, method: str, path: str, content: Any) -> str | None:
        """Execute an action; return why not, if it fails."""
        content = content or {}
        if self.lacks_actions:
            return "no image from the network"
        if self.kind is Drives.PATCHED:
            if method != "PATCH" or set(content) - {"Image", "Inserted", "WriteProtected"} or "Inserted" not in content:
                return "PATCH Image and Inserted"
            return self._insert(content["Image"]) if content["Inserted"] else self._eject()
        if method != "POST":
            return "POST to an action"
        if path == self.action("Eject"):
            return self._eject()
        if {"Inserted", "WriteProtected"} & content.keys():  # as Supermicro's X11
            return "Image alone"
        if self.protocols and content.get("TransferProtocolType") not in self.protocols:
            return "TransferProtocolType is missing"
        if self.needs_protocol and "TransferProtocolType" not in content:
            return "TransferProtocolType is missing"
        return self._insert(content.get("Image"))

    def _insert(self, image: str | None) -> str | None:
        if self.image is not None or self.stale is not None:
            return "a medium is inserted already"
        if image is not None and (why := self.fetches(image)) is not None:
            return why
        self.image = image
        return None

    def _eject(self) -> str | None:
        if (image := self.image or self.stale) is None:
            return "nothing is inserted"
        self.ejected.append(image)
        self.image = self.stale = None
        return None


# The behaviour of the BMCs of each vendor, as data. `gitboot.bmc.redfish.quirks` has the source of each fact.

ENABLED = "BootSourceOverrideEnabled"
TARGET = "BootSourceOverrideTarget"
MODE = "BootSourceOverrideMode"
HTTP_BOOT_URI = "HttpBootUri"

_ENABLED = ("Disabled", "Once", "Continuous")
_TARGETS = ("None", "Pxe", "Floppy", "Cd", "Usb", "Hdd", "BiosSetup", "Utilities", "Diags")


class InPost(Enum):
    """The effect of a PATCH while the machine is in POST."""

    TAKEN = "taken"
    REFUSED = "400, UnableToModifyDuringSystemPOST"
    BUSY = "503, Retry-After"
    LOST = "200, and nothing happens"


class Property(Enum):
    WRITABLE = "writable"
    READ_ONLY = "shown; a PATCH that has it is refused whole"
    ABSENT = "not shown; a PATCH that has it is refused whole"


class Overrides(Enum):
    """The resource that accepts overrides, if there is a Settings resource."""

    SYSTEM = "the system; Settings has none"
    SETTINGS = "Settings alone; the system shows none"
    FUTURE = "Settings; the system shows what the last boot found"


RESET_TYPES = (
    "On",
    "ForceOff",
    "GracefulShutdown",
    "GracefulRestart",
    "ForceRestart",
    "PowerCycle",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    name: str
    manufacturer: str
    model: str
    system: str = "1"  # Id of the ComputerSystem, as long as there is only one
    slash: bool = False  # its path ends in one
    targets: tuple[str, ...] = (*_TARGETS, "UefiHttp")
    enabled: tuple[str, ...] = _ENABLED
    mode: Property = Property.WRITABLE
    http_boot_uri: Property = Property.ABSENT
    sample: str = "systemv1_20"  # the sample of its system, except for the values here
    settings: str | None = None  # name of the Settings resource below the system
    settings_sample: str = ""
    overrides: Overrides = Overrides.SYSTEM
    required: frozenset[str] = frozenset()  # of ENABLED, TARGET, MODE: what every PATCH must have
    off_without_none: bool = False  # refuses the target None
    etag_header: str = '"{}"'  # how the header ETag is written; "": not sent
    etag_body: str = '"{}"'  # how @odata.etag is written; "": not shown
    if_match: str = '"{}" W/"{}" *'  # the forms of If-Match that it takes; 412 for all others
    if_match_required: bool = False  # 428 without one
    in_post: InPost = InPost.TAKEN
    last_reset_time: bool = True
    reboot_is_a_reset: bool = True  # moves LastResetTime; switching on and off always does
    boot_progress: bool = True
    last_state_time: bool = True
    last_progress: str = "OSRunning"  # the LastState that it shows from then on, whatever follows
    marks_move: bool = True  # or stay for ever at their first value
    manager: bool = True  # its role may read it
    manager_shows_restarts: bool = True  # the Manager's LastResetTime
    hpe_post_state: bool = False
    redundant_mode_is_a_job: bool = False  # that costs another reboot
    continuous_http_changes_boot_order: bool = False
    boots_cd_as: str = "Cd"
    drives: Drives = Drives.MANAGER
    drives_keep_images: bool = False
    drives_are_stale: bool = False  # a test may find the image of an earlier insertion in them
    drives_need_protocol: bool = False
    bios: tuple[tuple[str, str], ...] = ()  # attributes of its firmware; a URI among them is what UefiHttp boots
    bios_uri: str = ""  # which one that is
    bios_switch: str = ""  # the one that has to be Enabled for it
    bios_change_is_a_job: bool = False  # that costs another reboot
    reset_types: tuple[str, ...] = RESET_TYPES
    reset_info: bool = False  # they are in an ActionInfo

    @property
    def shows_resets(self) -> bool:
        """Return whether the profile shows a mark that could prove a simple reboot."""
        instants = (self.last_reset_time and self.reboot_is_a_reset) or (self.boot_progress and self.last_state_time)
        return instants or self.hpe_post_state


GENERIC = Profile(
    name="generic",
    manufacturer="Contoso",
    model="3500",
    http_boot_uri=Property.WRITABLE,
    settings=None,
    drives=Drives.SYSTEM,
)

# dell/iDRAC-Redfish-Scripting and NVIDIA/libredfish, mockup dell: the values without changes.
DELL_BIOS = (
    ("HttpDev1EnDis", "Disabled"),
    ("HttpDev1Interface", "NIC.Embedded.1-1-1"),
    ("HttpDev1Protocol", "IPv4"),
    ("HttpDev1DhcpEnDis", "Enabled"),
    ("HttpDev1TlsMode", "None"),
    ("HttpDev1Uri", ""),
)

IDRAC9 = Profile(
    name="idrac9",
    manufacturer="Dell Inc.",
    model="PowerEdge R660",
    system="System.Embedded.1",
    settings="Settings",
    settings_sample="settings-body-bootsourceoverridemode-only",
    in_post=InPost.LOST,
    last_state_time=False,
    redundant_mode_is_a_job=True,
    continuous_http_changes_boot_order=True,
    drives=Drives.SYSTEM,
    bios=DELL_BIOS,
    bios_uri="HttpDev1Uri",
    bios_switch="HttpDev1EnDis",
    bios_change_is_a_job=True,
    drives_are_stale=True,
)

IDRAC10 = Profile(
    name="idrac10",
    manufacturer="Dell Inc.",
    model="PowerEdge R670",
    system="System.Embedded.1",
    settings="Settings",
    settings_sample="settings-body-bootsourceoverridemode-only",
    overrides=Overrides.SETTINGS,
    redundant_mode_is_a_job=True,
    continuous_http_changes_boot_order=True,
    drives=Drives.SYSTEM,
    bios=DELL_BIOS,
    bios_uri="HttpDev1Uri",
    bios_switch="HttpDev1EnDis",
    bios_change_is_a_job=True,
    drives_are_stale=True,
)

ILO6 = Profile(
    name="ilo6",
    manufacturer="HPE",
    model="ProLiant DL380 Gen11",
    slash=True,
    mode=Property.READ_ONLY,
    http_boot_uri=Property.READ_ONLY,
    off_without_none=True,
    etag_header="",
    etag_body='W/"{}"',
    in_post=InPost.REFUSED,
    last_reset_time=False,
    boot_progress=False,
    hpe_post_state=True,
    manager_shows_restarts=False,
    bios=(("PreBootNetwork", "Auto"), ("UrlBootFile", "")),
    bios_uri="UrlBootFile",
)

SUPERMICRO_X10 = Profile(
    name="supermicro-x10",
    sample="system",
    manufacturer="Supermicro",
    model="SYS-6018U-TR4T+",
    targets=("None", "Pxe", "Cd", "Usb", "Hdd", "BiosSetup", "UsbCd"),
    mode=Property.ABSENT,
    required=frozenset({ENABLED}),
    last_reset_time=False,
    boot_progress=False,
    boots_cd_as="UsbCd",
)

SUPERMICRO_X11 = Profile(
    name="supermicro-x11",
    manufacturer="Supermicro",
    model="AS -1015CS-TNR-EU",
    targets=("None", "Pxe", "Floppy", "Cd", "Usb", "Hdd", "BiosSetup", "UsbCd", "Diags", "UefiHttp"),
    required=frozenset({ENABLED, MODE}),
    last_reset_time=False,
    boots_cd_as="UsbCd",
    drives_keep_images=True,
)

# bmclib, x12.bootComplete, and the payload supermicro-x13: its operating system runs, and it does not show since when.
SUPERMICRO_X12 = replace(
    SUPERMICRO_X11,
    name="supermicro-x12",
    model="X12STH-SYS",
    last_state_time=False,
    last_progress="SystemHardwareInitializationComplete",
)

# sushy, System.set_system_boot_options: it lists UsbCd as the others do, but boots its virtual media as Cd.
SUPERMICRO_GRACE = replace(SUPERMICRO_X12, name="supermicro-grace", model="ARS-111GL-NHR", boots_cd_as="Cd")

AMI = Profile(
    name="ami",
    manufacturer="ASRockRack",
    model="W680D4U-2L2T/G5",
    system="Self",
    http_boot_uri=Property.WRITABLE,
    settings="SD",
    settings_sample="settings-body-nokia",
    overrides=Overrides.FUTURE,
    required=frozenset({ENABLED, TARGET, MODE}),
    etag_header='W/"{}"',
    etag_body='W/"{}"',
    if_match_required=True,
    if_match='"{}" *',
    in_post=InPost.BUSY,
    last_reset_time=False,
)

XCC = Profile(
    name="xcc",
    manufacturer="Lenovo",
    model="ThinkSystem SR650 V3",
    settings="Pending",
    settings_sample="settings-body-lenovo-se450",
    enabled=("Once", "Disabled"),
    if_match_required=True,
    last_reset_time=False,
    drives=Drives.PATCHED,
)

OPENBMC = Profile(
    name="openbmc",
    manufacturer="Quanta Cloud Technology",
    model="S6Q",
    system="system",
    targets=("None", "Pxe", "Hdd", "Cd", "Diags", "BiosSetup", "Usb"),
    reboot_is_a_reset=False,
)

# As before bmcweb showed when BootProgress.LastState began.
OPENBMC_2021 = replace(OPENBMC, name="openbmc-2021", last_state_time=False)

# NVIDIA's GB200, which does not name its manufacturer.
GB200 = Profile(
    name="gb200",
    manufacturer="",
    model="",
    system="System_0",
    targets=("None", "Pxe", "Hdd", "Cd", "Diags", "BiosSetup", "Usb"),
    mode=Property.ABSENT,
    reboot_is_a_reset=False,
)

DGX = Profile(
    name="dgx",
    manufacturer="NVIDIA",
    model="DGXH100",
    system="DGX",
    http_boot_uri=Property.WRITABLE,
    settings="SD",
    settings_sample="settings-body-nokia",
    overrides=Overrides.FUTURE,
    required=frozenset({ENABLED, TARGET, MODE}),
    last_reset_time=False,
    boot_progress=False,
)

# akaliwod/iserver, doc: what a UCSC-C225-M6 shows.
CIMC = Profile(
    name="cimc",
    manufacturer="Cisco Systems Inc",
    model="UCSC-C225-M6S",
    system="WZP262207W0",
    targets=("None", "Pxe", "Floppy", "Cd", "Hdd", "BiosSetup", "Diags"),
    mode=Property.ABSENT,
    last_reset_time=False,
    boot_progress=False,
    drives_need_protocol=True,
)

# fujitsu/terraform-provider-irmc-redfish: If-Match, and no word for off.
IRMC = Profile(
    name="irmc",
    manufacturer="FUJITSU",
    model="PRIMERGY TX1320 M3",
    system="0",
    targets=("None", "Pxe", "Floppy", "Cd", "Hdd", "BiosSetup"),
    enabled=("Once", "Continuous"),
    if_match_required=True,
    last_reset_time=False,
    boot_progress=False,
)

# Huawei's own ibmc_client reads an ETag before each PATCH.
IBMC = Profile(
    name="ibmc",
    manufacturer="Huawei",
    model="2288H V5",
    targets=("None", "Pxe", "Floppy", "Cd", "Hdd", "BiosSetup"),
    if_match_required=True,
    last_reset_time=False,
    boot_progress=False,
)

# E27 of the edges: a LastResetTime that is shown, and that no reset moves.
STUCK = Profile(
    name="stuck",
    manufacturer="Fabrikam",
    model="F1",
    http_boot_uri=Property.WRITABLE,
    last_state_time=False,
    marks_move=False,
    drives=Drives.ABSENT,
)

PROFILES = {
    profile.name: profile
    for profile in (
        GENERIC,
        IDRAC9,
        IDRAC10,
        ILO6,
        SUPERMICRO_X10,
        SUPERMICRO_X11,
        SUPERMICRO_X12,
        SUPERMICRO_GRACE,
        AMI,
        XCC,
        OPENBMC,
        OPENBMC_2021,
        GB200,
        DGX,
        CIMC,
        IRMC,
        IBMC,
        STUCK,
    )
}
