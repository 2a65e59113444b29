"""BootImage and ImageStream: what can be booted, and which version is current for whom."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from gitboot.model.fields import (
    Boolean,
    Document,
    Field,
    Instant,
    Integer,
    KernelArgument,
    NameField,
    Percent,
    Positive,
    Scalar,
    Sha256,
    Text,
    Url,
    check,
    structure,
)
from gitboot.model.scalars import Malformed, Path, quote_value, text
from gitboot.model.selectors import Select
from gitboot.model.server import Architecture
from gitboot.problems import Code


class UserDataFormat(StrEnum):
    """The families of user data; Ignition comes with the version of its specification."""

    IGNITION = "Ignition"
    CLOUD_INIT = "CloudInit"
    KICKSTART = "Kickstart"
    PRESEED = "Preseed"
    AUTOINSTALL = "Autoinstall"
    TALOS = "Talos"
    AUTOYAST = "AutoYaST"
    COMBUSTION = "Combustion"
    GENERIC = "Generic"  # any text, to which no argument leads by itself


class ConfigFrom(StrEnum):
    KERNEL_ARGUMENTS = "KernelArguments"  # the system learns its user data's URL from its command line
    SYSTEM_UUID = "SystemUUID"  # it asks for /ignition/<uuid>
    MEDIUM = "Medium"  # it looks for a volume of its format's label, which its BMC inserts beside its ISO
    NONE = "None"


_IGNITION_MINORS = range(7)  # specifications 3.0 to 3.6
_FORMATS = (
    *(f"Ignition/3.{minor}" for minor in _IGNITION_MINORS),
    *(member.value for member in UserDataFormat if member is not UserDataFormat.IGNITION),
)


def parse_user_data_format(value: object) -> str:
    """Read ``Ignition/3.x`` with its minor version, or the name of a family."""
    found = text(value)
    if found not in _FORMATS:
        hint = f"write one of {', '.join(_FORMATS)}"
        if found.startswith("Ignition"):
            hint = "gitboot knows Ignition/3.0 to Ignition/3.6; convert an older document with ign-converter"
        raise Malformed(Code.CHOICE, f"expected a format of user data, found {quote_value(found)}", hint)
    return found


FormatField = Annotated[str, Scalar(parse_user_data_format, {"type": "string", "enum": list(_FORMATS)})]
ImageFormatField = Annotated[
    str,
    Scalar(
        lambda value: "None" if value == "None" else parse_user_data_format(value),
        {"type": "string", "enum": [*_FORMATS, "None"]},
    ),
]


@structure
class Signature:
    """Where a detached signature of a file is, of one kind; whose key counts is not for documents to say."""

    openpgp: Url | None = Field(default=None, description="An OpenPGP signature: .sig, .asc, .gpg. Default: none.")
    minisign: Url | None = Field(default=None, description="A minisign signature: .minisig. Default: none.")
    sigstore: Url | None = Field(default=None, description="A sigstore bundle: .sigstore.json. Default: none.")

    @check
    def _one_kind(self) -> None:
        if sum(each is not None for each in (self.openpgp, self.minisign, self.sigstore)) != 1:
            raise Malformed(Code.COMBINATION, "expected one of openpgp, minisign, sigstore", "name one of them")


@structure
class Checksums:
    """A list of digests that somebody has signed: SHA256SUMS."""

    url: Url = Field(description="Where the list is, as sha256sum prints it.")
    signature: Signature = Field(description="Its signature.")


@structure
class Artifact:
    """One file that a machine fetches to boot."""

    url: Url = Field(
        description="assets:PATH below the site's base, http(s)://…, or oci://HOST/NAME@sha256:… of a registry's blob."
    )
    sha256: Sha256 = Field(description="The sha256 of its content, as sha256sum prints it.")
    size: Integer | None = Field(default=None, description="Its size in bytes. Default: not checked.")
    signature: Signature | None = Field(default=None, description="A signature of the file itself. Default: none.")

    @check
    def _one_digest(self) -> None:
        if self.url.startswith("oci:") and not self.url.endswith(f"@sha256:{self.sha256}"):
            raise Malformed(
                Code.COMBINATION,
                f"the URL's digest is not {self.sha256}: it has to be the file's own, not that of a manifest",
                "write what `gitboot artifacts resolve` prints for the image",
                ("sha256",),
            )


@structure
class Artifacts:
    """An image's files for one architecture; what is there says by which methods it can boot."""

    kernel: Artifact | None = Field(default=None, description="A Linux kernel. Default: none.")
    initrds: tuple[Artifact, ...] = Field(default=(), description="Its initial ramdisks, in order. Default: none.")
    rootfs: Artifact | None = Field(default=None, description="A root file system (squashfs). Default: none.")
    uki: Artifact | None = Field(default=None, description="A unified kernel image. Default: none.")
    iso: Artifact | None = Field(default=None, description="A bootable ISO image. Default: none.")
    loader: Artifact | None = Field(
        default=None,
        description="An EFI program of one's own that asks for the entry: iPXE, GRUB. Default: none.",
    )
    checksums: Checksums | None = Field(
        default=None,
        description="A signed list of digests, for the files that have no signature of their own. Default: none.",
    )

    @check
    def _boots(self) -> None:
        if not (self.kernel or self.uki or self.iso):
            raise Malformed(Code.COMBINATION, "nothing here can be booted", "name a kernel, a uki or an iso")
        if not self.kernel and (self.initrds or self.rootfs or self.loader):
            raise Malformed(Code.COMBINATION, "initrds, rootfs and loader need a kernel beside them", "name the kernel")

    def files(self) -> Iterator[tuple[Path, Artifact]]:
        """Yield each file with the path of its field."""
        for name in ("kernel", "rootfs", "uki", "iso", "loader"):
            if (artifact := getattr(self, name)) is not None:
                yield (name,), artifact
        for number, initrd in enumerate(self.initrds):
            yield ("initrds", number), initrd


@structure
class BootImageSpec:
    """What an image is made of, and what it understands."""

    version: Text = Field(description="Free text, compared by its dotted numbers.")
    user_data: ImageFormatField = Field(
        default="None", description="What its first boot understands, at most. Default: None."
    )
    config_from: ConfigFrom = Field(
        default=ConfigFrom.KERNEL_ARGUMENTS,
        description="How it finds its user data: by kernel arguments; SystemUUID: booted directly (uki, iso), it "
        "fetches /ignition/<uuid>; Medium: booted as virtual media, it reads a second medium; None: not at all. "
        "Default: KernelArguments.",
    )
    writes_disk: Boolean = Field(
        default=True,
        description="Whether booting it writes disks: false for discovery, memory tests, firmware updates, "
        "diskless images. Default: true.",
    )
    boots: Positive = Field(
        default=1, description="How many times its installer boots from the network before it is done. Default: 1."
    )
    kernel_arguments: tuple[KernelArgument, ...] = Field(
        default=(), description="Arguments that come first. Default: none."
    )
    architectures: dict[Architecture, Artifacts] = Field(
        min_length=1, description="Its files, by architecture; at least one."
    )


@structure
class BootImage(Document):
    """One immutable version of an operating system's image."""

    kind: Literal["BootImage"] = Field(description="The kind of this document.")
    spec: BootImageSpec = Field(description="What the image is.")


@structure
class Rollout:
    """The image that comes next, and who has it already."""

    image: NameField = Field(description="The BootImage that is being rolled out.")
    percent: Percent = Field(
        default=100,
        description="How many of those selected, placed by a hash of stream and UUID: raising it only adds. "
        "Default: 100.",
    )
    selector: Select = Field(default="All", description="Among whom. Default: All.")


@structure
class Hold:
    """A group that stays where it is: opted out, visibly."""

    select: Select = Field(description="Which servers stay.")
    image: NameField = Field(description="The BootImage they boot.")
    reason: Text = Field(description="Why, for those who find it later.")
    until: Instant | None = Field(
        default=None,
        description="A deadline for people: once past, it is reported; nothing changes by itself. Default: none.",
    )


class SkewMode(StrEnum):
    ENFORCE = "Enforce"
    WARN = "Warn"
    NONE = "None"


@structure
class Skew:
    """How old the image that a server of this stream boots may be."""

    mode: SkewMode = Field(
        default=SkewMode.ENFORCE,
        description="Enforce: an error. Warn: a warning. None: nothing. Default: Enforce.",
    )
    minimum_version: Text = Field(description="The lowest version, compared by its dotted numbers.")


@structure
class ImageStreamSpec:
    """Which image is current, which is next, who is held back."""

    current: NameField = Field(description="The BootImage that servers of this stream boot.")
    rollout: Rollout | None = Field(default=None, description="What is being rolled out. Default: nothing.")
    holds: tuple[Hold, ...] = Field(default=(), description="Who stays; the first that selects wins. Default: none.")
    skew: Skew | None = Field(default=None, description="How old a server's image may be. Default: any age.")


@structure
class ImageStream(Document):
    """The golden pointer: one name for the image that is current."""

    kind: Literal["ImageStream"] = Field(description="The kind of this document.")
    spec: ImageStreamSpec = Field(description="What the stream points to.")
