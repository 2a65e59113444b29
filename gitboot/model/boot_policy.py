"""BootProfile, BootPolicy, Maintenance: how to boot something, who does, and when something else."""

from enum import StrEnum
from typing import Literal

from gitboot.model.boot_image import FormatField
from gitboot.model.fields import (
    CountOrPercent,
    Document,
    Field,
    FilePath,
    Instant,
    Integer,
    KernelArgument,
    LabelKey,
    LabelValue,
    NameField,
    SecretPath,
    SignedInteger,
    Text,
    Variable,
    VariableName,
    check,
    structure,
)
from gitboot.model.scalars import Malformed
from gitboot.model.selectors import Select
from gitboot.problems import Code


class Method(StrEnum):
    """Redfish's own targets; Disk is whatever the firmware's order says."""

    UEFI_HTTP = "UefiHttp"
    PXE = "Pxe"
    VIRTUAL_MEDIA = "VirtualMedia"
    DISK = "Disk"


class HttpBoot(StrEnum):
    UKI = "uki"
    ISO = "iso"
    LOADER = "loader"


class NetworkBoot(StrEnum):
    ALWAYS = "Always"
    ONCE = "Once"
    ON_IMAGE_CHANGE = "OnImageChange"
    NEVER = "Never"


class ReinstallMode(StrEnum):
    """The word that networkBoot Always needs with an image that writes disks."""

    NEVER = "Never"
    EVERY_BOOT = "EveryBoot"


class OverrideMode(StrEnum):
    """Redfish BootSourceOverrideEnabled, but that None leaves the firmware's own order alone."""

    ONCE = "Once"
    CONTINUOUS = "Continuous"
    NONE = "None"


class DiskBoot(StrEnum):
    FIRMWARE_ORDER = "FirmwareOrder"
    HDD = "Hdd"


class PolicyPower(StrEnum):
    NONE = "None"
    ON = "On"


class PolicyWait(StrEnum):
    NONE = "None"
    POWER_OFF = "PowerOff"


class MaintenancePower(StrEnum):
    NONE = "None"
    ON = "On"
    RESTART = "Restart"
    GRACEFUL_RESTART = "GracefulRestart"


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@structure
class UserData:
    """What the system configures itself by on its first boot."""

    format: FormatField = Field(description="What the template renders to; the image must understand it.")
    template: FilePath = Field(description="A Jinja2 template in this repository, relative to the fleet's root.")
    vendor_data: FilePath | None = Field(
        default=None, description="A template of NoCloud's vendor-data: CloudInit, Autoinstall. Default: none."
    )
    network_config: FilePath | None = Field(
        default=None, description="A template of NoCloud's network-config: CloudInit, Autoinstall. Default: none."
    )
    secrets: dict[VariableName, SecretPath] = Field(
        default_factory=dict,
        description="Files that age encrypted, by name: the machine fetches them at urls.secrets.NAME. Default: none.",
    )

    @property
    def extra_templates(self) -> dict[str, tuple[str, str]]:
        """Return the templates of the other files in a bundle of user data: field and path, by the name of the file."""
        named = {
            "vendor-data": ("vendorData", self.vendor_data),
            "network-config": ("networkConfig", self.network_config),
        }
        return {name: (field, path) for name, (field, path) in named.items() if path is not None}

    @property
    def templates(self) -> tuple[str, ...]:
        return (self.template, *(path for _, path in self.extra_templates.values()))


@structure
class Templates:
    """Entries of one's own, instead of the built-in ones."""

    ipxe: FilePath | None = Field(default=None, description="A Jinja2 template of an iPXE script. Default: built in.")
    grub: FilePath | None = Field(
        default=None, description="A Jinja2 template of a GRUB configuration. Default: built in."
    )


@structure
class BootProfileSpec:
    """How to boot something."""

    image: NameField | None = Field(
        default=None, description="A BootImage by name, instead of a stream. Default: the stream's."
    )
    stream: NameField | None = Field(
        default=None, description="An ImageStream: its current image. Default: none, image says it."
    )
    method: Method = Field(description="UefiHttp, Pxe, VirtualMedia; Disk: whatever the firmware's own order says.")
    http_boot: HttpBoot | None = Field(
        default=None,
        description="What UefiHttp fetches: uki, iso, or loader. Required for UefiHttp. Default: none.",
    )
    kernel_arguments: tuple[KernelArgument, ...] = Field(
        default=(), description="Arguments, each possibly a template; -name removes one. Default: none."
    )
    user_data: UserData | None = Field(default=None, description="User data of the first boot. Default: none.")
    templates: Templates = Field(default_factory=Templates, description="Entries of one's own. Default: built in.")
    vars: dict[VariableName, Variable] = Field(
        default_factory=dict, description="Variables for templates. Default: none."
    )

    @check
    def _names_what_it_boots(self) -> None:
        images = [field for field in ("image", "stream") if getattr(self, field) is not None]
        if self.method is Method.DISK:
            if images:
                raise Malformed(Code.COMBINATION, "method Disk boots no image", f"leave out {images[0]}", (images[0],))
        elif len(images) != 1:
            found = "both" if images else "neither"
            raise Malformed(
                Code.COMBINATION,
                f"expected exactly one of image and stream, found {found}",
                "name a stream to follow it, or an image to stay",
                ("stream",) if images else ("method",),
            )
        if (self.method is Method.UEFI_HTTP) != (self.http_boot is not None):
            raise Malformed(
                Code.COMBINATION,
                "httpBoot goes with method UefiHttp, and with no other",
                "say what UefiHttp fetches: httpBoot: uki, iso or loader"
                if self.http_boot is None
                else "leave out httpBoot",
                ("method",) if self.http_boot is None else ("httpBoot",),
            )


@structure
class BootProfile(Document):
    """How to boot something: image or stream, method, arguments, user data."""

    kind: Literal["BootProfile"] = Field(description="The kind of this document.")
    spec: BootProfileSpec = Field(description="What the profile boots, and how.")


@structure
class Taint:
    """A Kubernetes node taint."""

    key: LabelKey = Field(description="The taint's key.")
    value: LabelValue = Field(default="", description="The taint's value. Default: empty.")
    effect: TaintEffect = Field(description="What happens to pods that do not tolerate it.")

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


@structure
class BootPolicySpec:
    """Which servers boot which profile, how often, and which pool they are."""

    select: Select = Field(description="All, None, matchLabels and matchExpressions, or servers. Never inherited.")
    priority: SignedInteger | None = Field(default=None, description="The higher wins. Default: the parent's, else 0.")
    inherits: NameField | None = Field(
        default=None,
        description="The parent policy, whose fields it takes and which it beats. Default: none.",
    )
    profile: NameField | None = Field(default=None, description="The BootProfile. Default: the parent's.")
    network_boot: NetworkBoot | None = Field(
        default=None,
        description="Always; Once per provision number; OnImageChange; Never. Default: the parent's.",
    )
    reinstall: ReinstallMode | None = Field(
        default=None,
        description="EveryBoot: networkBoot Always may boot an image that writes disks, each time. Default: the "
        "parent's, else Never, and such an image is an error.",
    )
    override: OverrideMode | None = Field(
        default=None,
        description="Once, Continuous, or None for the firmware's own order. Default: the parent's, else Once; "
        "with networkBoot Always by Pxe or a loader Continuous.",
    )
    disk_boot: DiskBoot | None = Field(
        default=None,
        description="Hdd: an override towards the disk, for firmware whose order ends elsewhere. "
        "Default: the parent's, else FirmwareOrder.",
    )
    power: PolicyPower | None = Field(
        default=None,
        description="On: a machine that is off and wants its first boot is switched on. Default: the parent's, "
        "else None.",
    )
    wait_for: PolicyWait | None = Field(
        default=None,
        description="PowerOff: a boot that is made once is offered only when the BMC has shown the machine off since "
        "it was asked for, so that no machine that runs is installed. Default: the parent's, else None.",
    )
    kernel_arguments: tuple[KernelArgument, ...] = Field(
        default=(), description="Arguments, after the parent's; -name removes one. Default: none."
    )
    node_labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Kubernetes node labels, over the parent's. Default: none."
    )
    node_taints: tuple[Taint, ...] = Field(
        default=(), description="Kubernetes node taints, after the parent's. Default: none."
    )
    vars: dict[VariableName, Variable] = Field(
        default_factory=dict, description="Variables for templates, over the parent's. Default: none."
    )


@structure
class BootPolicy(Document):
    """A pool: which servers boot which profile, and how often from the network."""

    kind: Literal["BootPolicy"] = Field(description="The kind of this document.")
    spec: BootPolicySpec = Field(description="Who boots what.")


@structure
class Window:
    """A half-open span of time: [start, end)."""

    start: Instant | None = Field(default=None, description="When it opens, with offset. Default: it is open.")
    end: Instant | None = Field(
        default=None, description="When it ends, exclusive, with offset. Default: it does not end by itself."
    )

    @check
    def _opens_before_it_ends(self) -> None:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise Malformed(
                Code.WINDOW,
                "the window ends before it opens, or at once",
                "let end lie after start",
                ("end",),
            )


@structure
class MaintenanceSpec:
    """Which servers boot which profile instead, and when."""

    select: Select = Field(description="All, None, matchLabels and matchExpressions, or servers.")
    window: Window = Field(
        default_factory=Window,
        description="When it is active; one that writes disks needs an end. Default: as long as it stands in Git.",
    )
    profile: NameField = Field(description="The BootProfile of the maintenance.")
    network_boot: Literal[NetworkBoot.ALWAYS, NetworkBoot.ONCE] = Field(
        default=NetworkBoot.ALWAYS,
        description="Always: at each boot in the window. Once: one boot, then the disk. Default: Always.",
    )
    reinstall: ReinstallMode = Field(
        default=ReinstallMode.NEVER,
        description="EveryBoot: networkBoot Always may boot an image that writes disks, each time. Default: Never, "
        "and such an image is an error.",
    )
    override: OverrideMode | None = Field(
        default=None,
        description="Once, Continuous, None. Default: Once for networkBoot Once; for Always Continuous with Pxe "
        "or a loader, else Once, set anew after each reset that consumed it.",
    )
    run: Integer = Field(
        default=1,
        description="Raise it to run a Once again; a window that starts after the one in which it ran does so, too. "
        "Default: 1.",
    )
    power: MaintenancePower = Field(
        default=MaintenancePower.NONE,
        description="What is done to the machines' power inside the window, in waves, once each run: On, where it "
        "is off; Restart and GracefulRestart, where it is on. Default: None.",
    )
    max_unavailable: CountOrPercent = Field(
        default="1",
        description="Servers that may be down at a time: a number or a percentage, of which at least one. Default: 1.",
    )
    max_unavailable_per: LabelKey | None = Field(
        default=None,
        description="Site, or a label's key, as rack: so many of each site's servers, or of those with the same value "
        "of that label. Default: none, of all servers of the maintenance.",
    )
    reason: Text | None = Field(default=None, description="Why, and which change asked for it. Default: none.")
    priority: SignedInteger = Field(default=0, description="Of several that are active the higher wins. Default: 0.")


@structure
class Maintenance(Document):
    """Another profile for a while: it beats every policy inside its window, and never outside."""

    kind: Literal["Maintenance"] = Field(description="The kind of this document.")
    spec: MaintenanceSpec = Field(description="Who boots what instead, and when.")
