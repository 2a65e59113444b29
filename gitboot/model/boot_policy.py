"""BootProfile, BootPolicy and Maintenance: what servers boot, with which settings, and when."""

from enum import StrEnum
from typing import Final, Literal

from gitboot.model.boot_image import FormatField
from gitboot.model.fields import (
    CountOrPercent,
    Document,
    Field,
    FilePath,
    HookUrl,
    Instant,
    Integer,
    KernelArgument,
    LabelKey,
    LabelValue,
    NameField,
    SecretPath,
    Select,
    SignedInteger,
    Text,
    Variable,
    VariableName,
    check,
    structure,
)
from gitboot.model.scalars import Malformed
from gitboot.problems import Code


class Method(StrEnum):
    """The boot targets of Redfish. Disk means the firmware's own boot order."""

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
    """Whether an image that writes disks is allowed with networkBoot Always."""

    NEVER = "Never"
    EVERY_BOOT = "EveryBoot"


class OverrideMode(StrEnum):
    """The values of Redfish BootSourceOverrideEnabled.

    In addition, None does not change the boot order of the firmware.
    """

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


RESETS: Final = (MaintenancePower.RESTART, MaintenancePower.GRACEFUL_RESTART)


class TaintEffect(StrEnum):
    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@structure
class UserData:
    """The configuration that the system reads at its first boot."""

    format: FormatField = Field(description="The format of the rendered template. The image must support it.")
    template: FilePath = Field(description="A Jinja2 template in this repository, relative to the fleet's root.")
    vendor_data: FilePath | None = Field(
        default=None,
        description="A template of the vendor-data for NoCloud, for the formats CloudInit and "
        "Autoinstall. Default: none.",
    )
    network_config: FilePath | None = Field(
        default=None,
        description="A template of the network-config for NoCloud, for the formats CloudInit and "
        "Autoinstall. Default: none.",
    )
    secrets: dict[VariableName, SecretPath] = Field(
        default_factory=dict,
        description="Files that are encrypted with age, by name. Templates read the URLs of these files as "
        "urls.secrets.NAME. Default: none.",
    )

    @property
    def extra_templates(self) -> dict[str, tuple[str, str]]:
        """Return the templates for vendor-data and network-config.

        Each key is a file name, and each value is a pair of the field's name and the template's path.
        """
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
    """Your own boot scripts, instead of the built-in ones."""

    ipxe: FilePath | None = Field(default=None, description="A Jinja2 template of an iPXE script. Default: built in.")
    grub: FilePath | None = Field(
        default=None, description="A Jinja2 template of a GRUB configuration. Default: built in."
    )


@structure
class BootProfileSpec:
    """The image that a server boots, the boot method and the user data."""

    image: NameField | None = Field(
        default=None, description="The name of a BootImage, instead of a stream. Default: the image of the stream."
    )
    stream: NameField | None = Field(
        default=None,
        description="The name of an ImageStream, which determines the image. Default: none, and image is required.",
    )
    method: Method = Field(
        description="The boot method: UefiHttp, Pxe, VirtualMedia, or Disk for the firmware's own boot order."
    )
    http_boot: HttpBoot | None = Field(
        default=None,
        description="The file that UefiHttp fetches: uki, iso, or loader. Required for UefiHttp. Default: none.",
    )
    kernel_arguments: tuple[KernelArgument, ...] = Field(
        default=(),
        description="Kernel arguments, or templates of kernel arguments. An item -NAME removes an "
        "argument. Default: none.",
    )
    user_data: UserData | None = Field(default=None, description="User data for the first boot. Default: none.")
    templates: Templates = Field(default_factory=Templates, description="Your own boot scripts. Default: built in.")
    vars: dict[VariableName, Variable] = Field(
        default_factory=dict, description="Variables for templates. Default: none."
    )

    @check
    def _check_image(self) -> None:
        images = [field for field in ("image", "stream") if getattr(self, field) is not None]
        if self.method is Method.DISK:
            if images:
                raise Malformed(
                    Code.COMBINATION, "`method: Disk` does not boot an image", f"remove {images[0]}", (images[0],)
                )
        elif len(images) != 1:
            found = "both" if images else "neither"
            raise Malformed(
                Code.COMBINATION,
                f"expected exactly one of `image` or `stream`, found {found}",
                "set `stream` to follow a stream, or set `image` to keep one image",
                ("stream",) if images else ("method",),
            )
        if (self.method is Method.UEFI_HTTP) != (self.http_boot is not None):
            raise Malformed(
                Code.COMBINATION,
                "`method: UefiHttp` requires `httpBoot`"
                if self.http_boot is None
                else "`httpBoot` requires `method: UefiHttp`",
                "set `httpBoot` to uki, iso or loader"
                if self.http_boot is None
                else "remove `httpBoot`, or set `method: UefiHttp`",
                ("method",) if self.http_boot is None else ("httpBoot",),
            )


@structure
class BootProfile(Document):
    """The image or stream that servers boot, the boot method, the kernel arguments and the user data."""

    kind: Literal["BootProfile"] = Field(description="The kind of this document.")
    spec: BootProfileSpec = Field(description="The image, the boot method and the user data.")


@structure
class Taint:
    """A Kubernetes node taint."""

    key: LabelKey = Field(description="The taint's key.")
    value: LabelValue = Field(default="", description="The taint's value. Default: empty.")
    effect: TaintEffect = Field(description="The effect on pods that do not tolerate the taint.")

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}"


@structure
class BootPolicySpec:
    """The servers of a pool, their profile, and how often they boot from the network."""

    select: Select = Field(
        description="The servers of the policy: All, None, matchLabels and matchExpressions, or servers. A policy "
        "never inherits this field."
    )
    priority: SignedInteger | None = Field(
        default=None,
        description="The policy with the highest priority wins. Default: the priority of the parent, else 0.",
    )
    inherits: NameField | None = Field(
        default=None,
        description="The parent policy. This policy inherits the fields of its parent, and can override them. "
        "Default: none.",
    )
    profile: NameField | None = Field(
        default=None, description="The name of the BootProfile. Default: the profile of the parent."
    )
    network_boot: NetworkBoot | None = Field(
        default=None,
        description="How often the servers boot from the network. Always: at each boot. Once: once for each "
        "provision number. OnImageChange: once for each new image. Never: not at all. Default: the value of the "
        "parent.",
    )
    reinstall: ReinstallMode | None = Field(
        default=None,
        description="EveryBoot: with networkBoot Always, servers may boot an image that writes to disks at each boot. "
        "Never: such an image is an error. Default: the value of the parent, else Never.",
    )
    override: OverrideMode | None = Field(
        default=None,
        description="The boot override of the BMC: Once, Continuous, or None for the firmware's own boot order. "
        "Default: the value of the parent. Without that, Continuous for networkBoot Always with Pxe or a loader, else "
        "Once.",
    )
    disk_boot: DiskBoot | None = Field(
        default=None,
        description="Hdd: gitboot sets an override to the disk, for firmware that does not boot from the disk by "
        "itself. Default: the value of the parent, else FirmwareOrder.",
    )
    power: PolicyPower | None = Field(
        default=None,
        description="On: gitboot switches on a machine that is off and waits for its first boot. Default: the value of "
        "the parent, else None.",
    )
    wait_for: PolicyWait | None = Field(
        default=None,
        description="PowerOff: gitboot offers a one-time boot only after the BMC has shown that the machine is off. So "
        "gitboot never installs a machine that is in use. Default: the value of the parent, else None.",
    )
    kernel_arguments: tuple[KernelArgument, ...] = Field(
        default=(),
        description="Kernel arguments, which come after the kernel arguments of the parent. An item "
        "-NAME removes an argument. Default: none.",
    )
    node_labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        description="Kubernetes node labels. They take precedence over the node labels of the parent. Default: none.",
    )
    node_taints: tuple[Taint, ...] = Field(
        default=(), description="Kubernetes node taints, in addition to the taints of the parent. Default: none."
    )
    vars: dict[VariableName, Variable] = Field(
        default_factory=dict,
        description="Variables for templates. They take precedence over the variables of the parent. Default: none.",
    )


@structure
class BootPolicy(Document):
    """A pool of servers, with their profile and how often they boot from the network."""

    kind: Literal["BootPolicy"] = Field(description="The kind of this document.")
    spec: BootPolicySpec = Field(description="The servers of the pool, and what they boot.")


@structure
class Window:
    """A half-open interval of time: [start, end)."""

    start: Instant | None = Field(
        default=None, description="The start, with the offset of its time zone. Default: the window has no start."
    )
    end: Instant | None = Field(
        default=None,
        description="The end, exclusive, with the offset of its time zone. Default: the window has no end.",
    )

    @check
    def _check_order(self) -> None:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise Malformed(
                Code.WINDOW,
                "the window must end after it starts",
                "set `end` to a time after `start`",
                ("end",),
            )


@structure
class Approval:
    """The location of the approvals of a maintenance: a file in the fleet, or a URL."""

    file: FilePath | None = Field(
        default=None,
        description="A file in this repository with one approval in each line: the name of the Maintenance and the "
        "digest that `gitboot plan` shows. Required if url is not set. Default: none.",
    )
    url: HookUrl | None = Field(
        default=None,
        description="A URL that gitboot requests within the window, until the response approves the digest. The "
        "setting maintenance-hosts must list its host. Required if file is not set. Default: none.",
    )

    @check
    def _check_location(self) -> None:
        places = [field for field in ("file", "url") if getattr(self, field) is not None]
        if len(places) != 1:
            found = "both" if places else "neither"
            raise Malformed(
                Code.COMBINATION,
                f"expected exactly one of `file` or `url`, found {found}",
                "set `file` to approve in Git, or set `url` to let another system approve",
                tuple(places[-1:]),
            )


@structure
class Drain:
    """The system that takes a server out of service before gitboot resets it."""

    url: HookUrl = Field(
        description="A URL that gitboot requests within the window, until the response has status 200. The setting "
        "maintenance-hosts must list its host."
    )


@structure
class Before:
    """The approval and the drain that a maintenance needs before gitboot resets a server or offers it the boot."""

    approval: Approval | None = Field(
        default=None, description="The approval that the maintenance needs. Default: none."
    )
    drain: Drain | None = Field(
        default=None,
        description="The system that must take each server out of service first. Needs power Restart or "
        "GracefulRestart. Default: none.",
    )

    @check
    def _check_requirements(self) -> None:
        if self.approval is None and self.drain is None:
            raise Malformed(
                Code.COMBINATION,
                "`before` requires `approval` or `drain`",
                "add `approval` or `drain`, or remove `before`",
            )


@structure
class MaintenanceSpec:
    """The servers of a maintenance, the profile that they boot, and the window."""

    select: Select = Field(
        description="The servers of the maintenance: All, None, matchLabels and matchExpressions, or servers."
    )
    window: Window = Field(
        default_factory=Window,
        description="When the maintenance is active. If the image writes to disks, the window needs an end. Default: "
        "as long as this document is in Git.",
    )
    profile: NameField = Field(description="The BootProfile of the maintenance.")
    network_boot: Literal[NetworkBoot.ALWAYS, NetworkBoot.ONCE] = Field(
        default=NetworkBoot.ALWAYS,
        description="Always: each boot in the window. Once: one boot, then the disk. Default: Always.",
    )
    reinstall: ReinstallMode = Field(
        default=ReinstallMode.NEVER,
        description="EveryBoot: with networkBoot Always, servers may boot an image that writes to disks at each boot. "
        "Never: such an image is an error. Default: Never.",
    )
    override: OverrideMode | None = Field(
        default=None,
        description="The boot override of the BMC: Once, Continuous or None. Default for networkBoot Once: Once. "
        "Default for networkBoot Always: Continuous with Pxe or a loader, else Once, which gitboot sets again after "
        "each reset.",
    )
    run: Integer = Field(
        default=1,
        description="The run number. Raise the number to repeat a maintenance with networkBoot Once. A new, later "
        "window also starts a new run. Default: 1.",
    )
    power: MaintenancePower = Field(
        default=MaintenancePower.NONE,
        description="How gitboot changes the power of the machines, in waves and once in each run. On: gitboot "
        "switches on machines that are off. Restart and GracefulRestart: gitboot restarts machines that are on. "
        "Default: None.",
    )
    max_unavailable: CountOrPercent = Field(
        default="1",
        description="How many servers may be down at a time: a number, or a percentage, which always allows at least "
        "one server. Default: 1.",
    )
    max_unavailable_per: LabelKey | None = Field(
        default=None,
        description="Site, or the key of a label such as rack. maxUnavailable then applies to the servers of each "
        "site, or to the servers with the same value of the label. Default: maxUnavailable applies to all servers of "
        "the maintenance.",
    )
    before: Before | None = Field(
        default=None,
        description="An approval and a drain, for which each server waits. Until then, gitboot neither resets the "
        "server nor offers it the boot of the maintenance. Default: none.",
    )
    reason: Text | None = Field(
        default=None, description="The reason for the maintenance, for other people. Default: none."
    )
    priority: SignedInteger = Field(
        default=0, description="If several maintenances are active, the highest priority wins. Default: 0."
    )

    @check
    def _check_preconditions(self) -> None:
        if self.before is None:
            return
        if self.window.end is None:
            raise Malformed(
                Code.COMBINATION,
                "`before` requires a window with an end, because servers wait only until the window ends",
                "set window.end",
                ("window",),
            )
        if self.before.drain is not None and self.power not in RESETS:
            raise Malformed(
                Code.COMBINATION,
                f"`drain` requires a server reset, but the maintenance sets `power: {self.power}`",
                "set power: Restart or power: GracefulRestart, or remove `drain`",
                ("before", "drain"),
            )


@structure
class Maintenance(Document):
    """A profile that servers boot for a limited time. Within the window, a maintenance overrides all policies."""

    kind: Literal["Maintenance"] = Field(description="The kind of this document.")
    spec: MaintenanceSpec = Field(description="The servers, the profile and the window of the maintenance.")
