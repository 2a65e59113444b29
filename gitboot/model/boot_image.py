"""BootImage and ImageStream: the files of operating system images, and the current version for each server."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from gitboot.model.fields import (
    Boolean,
    Document,
    Duration,
    Field,
    Instant,
    Integer,
    KernelArgument,
    NameField,
    Percent,
    Positive,
    Scalar,
    Select,
    Sha256,
    Text,
    Url,
    check,
    structure,
)
from gitboot.model.scalars import Malformed, Path, quote_value, text
from gitboot.model.server import Architecture
from gitboot.problems import Code


class UserDataFormat(StrEnum):
    """The formats of user data. For Ignition, documents also state the version of the Ignition specification."""

    IGNITION = "Ignition"
    CLOUD_INIT = "CloudInit"
    KICKSTART = "Kickstart"
    PRESEED = "Preseed"
    AUTOINSTALL = "Autoinstall"
    TALOS = "Talos"
    AUTOYAST = "AutoYaST"
    COMBUSTION = "Combustion"
    GENERIC = "Generic"  # any text; gitboot adds no kernel argument for this format


class ConfigFrom(StrEnum):
    KERNEL_ARGUMENTS = "KernelArguments"  # the kernel command line contains the URL of the user data
    SYSTEM_UUID = "SystemUUID"  # the system fetches /ignition/<uuid>
    MEDIUM = "Medium"  # the system reads a second virtual medium, which the BMC inserts
    NONE = "None"


_FORMATS = (
    *(f"Ignition/3.{minor}" for minor in range(7)),  # specifications 3.0 to 3.6
    *(member.value for member in UserDataFormat if member is not UserDataFormat.IGNITION),
)


def parse_user_data_format(value: object) -> str:
    """Parse the name of a user data format, such as CloudInit.

    ``Ignition/3.x`` includes the minor version of the specification.
    """
    format = text(value)
    if format not in _FORMATS:
        hint = f"write one of {', '.join(_FORMATS)}"
        if format.startswith("Ignition"):
            hint = "gitboot supports Ignition/3.0 to Ignition/3.6; convert an older document with ign-converter"
        raise Malformed(Code.CHOICE, f"expected a user data format, found {quote_value(format)}", hint)
    return format


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
    """The URL of a detached signature.

    The field shows the type of the signature. The trusted keys are settings of the instance.
    """

    openpgp: Url | None = Field(
        default=None, description="An OpenPGP signature, usually with the suffix .sig, .asc or .gpg. Default: none."
    )
    minisign: Url | None = Field(
        default=None, description="A minisign signature, usually with the suffix .minisig. Default: none."
    )
    sigstore: Url | None = Field(
        default=None, description="A sigstore bundle, usually with the suffix .sigstore.json. Default: none."
    )

    @check
    def _check_kind(self) -> None:
        if sum(signature is not None for signature in (self.openpgp, self.minisign, self.sigstore)) != 1:
            raise Malformed(
                Code.COMBINATION,
                "expected exactly one of `openpgp`, `minisign` or `sigstore`",
                "set exactly one of these fields",
            )


@structure
class SignedList:
    """A signed list that contains the digest of another list, such as InRelease of a Debian archive."""

    url: Url = Field(description="The URL of the signed list.")
    signature: Signature | None = Field(
        default=None, description="The detached signature of the list. Default: the list is clear-signed."
    )


@structure
class Checksums:
    """A list of digests of files, such as SHA256SUMS, and the signature that covers it."""

    url: Url = Field(description="The URL of the list, in the format of sha256sum or sha512sum, with or without --tag.")
    signature: Signature | None = Field(default=None, description="The detached signature of the list. Default: none.")
    clear_signed: Boolean = Field(
        default=False,
        description="Whether the list is clear-signed with OpenPGP. gitboot then reads only the signed part of the "
        "list. Default: false.",
    )
    listed_in: SignedList | None = Field(
        default=None, description="A signed list that contains the digest of this list. Default: none."
    )

    @check
    def _check_signature(self) -> None:
        if (self.signature is not None) + self.clear_signed + (self.listed_in is not None) != 1:
            raise Malformed(
                Code.COMBINATION,
                "expected exactly one of `signature`, `clearSigned` or `listedIn`",
                "set exactly one of these fields",
            )


class DigestOrigin(StrEnum):
    """The origins of the digest of a file, from the strongest evidence to the weakest."""

    SIGNED = "signed"  # the vendor's signature covers the digest or the file
    PUBLISHED = "published"  # the vendor published the digest without a signature
    FIRST_SEEN = "firstSeen"  # gitboot computed the digest when it first downloaded the file


@structure
class Provenance:
    """The origin of the digest of a file. This is a claim of the document until gitboot has verified the claim."""

    digest: DigestOrigin = Field(
        description="signed: the vendor's signature covers the digest or the file. published: the vendor published "
        "the digest without a signature. firstSeen: gitboot computed the digest when it first downloaded the file."
    )
    key: Text | None = Field(
        default=None,
        description="The fingerprint or the identity of the key that signed the digest or the file. Default: none.",
    )
    url: Url | None = Field(
        default=None, description="The URL of the list, index or signature that contains the digest. Default: none."
    )

    @check
    def _check_key(self) -> None:
        if (self.digest is DigestOrigin.SIGNED) != (self.key is not None):
            is_signed = self.digest is DigestOrigin.SIGNED
            raise Malformed(
                Code.COMBINATION,
                "`digest: signed` requires `key`" if is_signed else f"`digest: {self.digest}` cannot have a `key`",
                "set `key` to the signing key's fingerprint" if is_signed else "remove `key`, or set `digest: signed`",
                ("digest",) if is_signed else ("key",),
            )


@structure
class Artifact:
    """One file that a machine fetches to boot."""

    url: Url = Field(
        description="assets:PATH below the base URL of the site, http(s)://…, or oci://HOST/NAME@sha256:… for a blob "
        "in a registry. https://…/NAME.tar.gz#PATH names a file in an archive."
    )
    sha256: Sha256 = Field(description="The sha256 of the file, as sha256sum prints it.")
    size: Integer | None = Field(default=None, description="The size in bytes. Default: not checked.")
    signature: Signature | None = Field(
        default=None,
        description="A signature of the file itself, or of the archive that contains the file. Default: none.",
    )
    provenance: Provenance | None = Field(
        default=None, description="The origin of the digest. Default: the document does not state the origin."
    )
    loader_signature: Url | None = Field(
        default=None,
        description="The URL of a CMS signature (DER) of the file: assets:PATH or http(s)://…. If iPXE has the "
        "command imgverify, it verifies the file before the boot. Only for a kernel, an initrd and a uki. Default: "
        "iPXE does not verify the file.",
    )

    @check
    def _check_loader_signature(self) -> None:
        if self.loader_signature is not None and (
            self.loader_signature.startswith("oci:") or "#" in self.loader_signature
        ):
            raise Malformed(
                Code.URL,
                f"iPXE cannot fetch the signature {self.loader_signature}",
                "write `assets:PATH` or `http(s)://HOST/PATH`; iPXE does not support `#PATH`",
                ("loaderSignature",),
            )

    @check
    def _check_digest(self) -> None:
        if self.url.startswith("oci:") and not self.url.endswith(f"@sha256:{self.sha256}"):
            raise Malformed(
                Code.COMBINATION,
                f"the digest in the URL is not the file's sha256 ({self.sha256}). It may be a manifest's digest",
                "copy the output of `gitboot artifacts resolve` for the image",
                ("sha256",),
            )


@structure
class Artifacts:
    """The files of an image for one architecture. They determine the methods with which the image can boot."""

    kernel: Artifact | None = Field(default=None, description="A Linux kernel. Default: none.")
    initrds: tuple[Artifact, ...] = Field(default=(), description="The initial ramdisks, in order. Default: none.")
    rootfs: Artifact | None = Field(default=None, description="A root file system (squashfs). Default: none.")
    uki: Artifact | None = Field(default=None, description="A unified kernel image. Default: none.")
    iso: Artifact | None = Field(default=None, description="A bootable ISO image. Default: none.")
    loader: Artifact | None = Field(
        default=None,
        description="Your own EFI program that fetches the boot script: iPXE or GRUB. Default: none.",
    )
    checksums: Checksums | None = Field(
        default=None,
        description="A signed list of digests, for files without a signature of their own. Default: none.",
    )

    @check
    def _check_boot_files(self) -> None:
        if not (self.kernel or self.uki or self.iso):
            raise Malformed(
                Code.COMBINATION, "the image has no file that a machine can boot", "add a kernel, a uki or an iso"
            )
        if not self.kernel and (self.initrds or self.rootfs or self.loader):
            raise Malformed(Code.COMBINATION, "`initrds`, `rootfs` and `loader` require a `kernel`", "add a kernel")

    @check
    def _check_loader_signatures(self) -> None:
        signed: list[Path] = []
        unsigned: list[Path] = []
        for path, artifact in self.files():
            if path[0] in ("kernel", "uki", "initrds"):
                (signed if artifact.loader_signature is not None else unsigned).append(path)
            elif artifact.loader_signature is not None:
                raise Malformed(
                    Code.COMBINATION,
                    f"the {path[0]} has a loaderSignature, but iPXE does not verify this file",
                    "remove this loaderSignature; only a kernel, an initrd or a uki can have one",
                    (*path, "loaderSignature"),
                )
        if signed and unsigned:
            raise Malformed(
                Code.COMBINATION,
                "only some of the files have a loaderSignature, so iPXE would boot the other files without "
                "verifying them",
                "sign the kernel, each initrd and the uki, or remove loaderSignature from all of them",
                unsigned[0],
            )

    def files(self) -> Iterator[tuple[Path, Artifact]]:
        """Yield each file of the image, and the path of the field that contains the file."""
        for name in ("kernel", "rootfs", "uki", "iso", "loader"):
            if (artifact := getattr(self, name)) is not None:
                yield (name,), artifact
        for number, initrd in enumerate(self.initrds):
            yield ("initrds", number), initrd


@structure
class BootImageSpec:
    """The files of an image, and how it boots."""

    version: Text = Field(
        description="The version as free text. gitboot compares the numbers between the dots of two versions."
    )
    user_data: ImageFormatField = Field(
        default="None",
        description="The format of user data that the image reads at its first boot. For Ignition, state the newest "
        "version that the image reads. Default: None.",
    )
    config_from: ConfigFrom = Field(
        default=ConfigFrom.KERNEL_ARGUMENTS,
        description="How the image finds its user data. KernelArguments: by a URL in its kernel arguments. SystemUUID: "
        "the image fetches /ignition/<uuid> (for uki and iso). Medium: the image reads a second virtual medium. None: "
        "the image reads no user data. Default: KernelArguments.",
    )
    writes_disk: Boolean = Field(
        default=True,
        description="Whether a boot of the image writes to disks. Use false for discovery, memory tests, firmware "
        "updates and diskless images. Default: true.",
    )
    boots: Positive = Field(
        default=1,
        description="How often the installer boots from the network until the installation is complete. Default: 1.",
    )
    kernel_arguments: tuple[KernelArgument, ...] = Field(
        default=(), description="Kernel arguments, which come before those of profiles and policies. Default: none."
    )
    architectures: dict[Architecture, Artifacts] = Field(
        min_length=1, description="The files for each architecture. At least one architecture is required."
    )


@structure
class BootImage(Document):
    """One immutable version of an operating system image."""

    kind: Literal["BootImage"] = Field(description="The kind of this document.")
    spec: BootImageSpec = Field(description="The files of the image, and how it boots.")


@structure
class Rollout:
    """The next image of a stream, and the servers that already get this image."""

    image: NameField = Field(description="The BootImage that is being rolled out.")
    percent: Percent = Field(
        default=100,
        description="The percentage of the selected servers that get the image. A hash of the stream and the UUID "
        "selects these servers, so a higher percentage only adds servers. Default: 100.",
    )
    selector: Select = Field(
        default="All", description="The servers from which gitboot chooses the percentage. Default: All."
    )


@structure
class Hold:
    """A group of servers that keeps one image and ignores the current image and the rollout."""

    select: Select = Field(description="The servers that keep the image.")
    image: NameField = Field(description="The BootImage that these servers boot.")
    reason: Text = Field(description="The reason for the hold, for other people.")
    until: Instant | None = Field(
        default=None,
        description="A deadline. gitboot reports when the deadline has passed, but does not end the hold. Default: "
        "none.",
    )


class RequiredProvenance(StrEnum):
    ANY = "any"
    SIGNED = "signed"


class SkewMode(StrEnum):
    ENFORCE = "Enforce"
    WARN = "Warn"
    NONE = "None"


@structure
class Skew:
    """The lowest version that servers of a stream may boot."""

    mode: SkewMode = Field(
        default=SkewMode.ENFORCE,
        description="Enforce: an older version is an error. Warn: an older version is a warning. None: gitboot does "
        "not check the version. Default: Enforce.",
    )
    minimum_version: Text = Field(
        description="The lowest allowed version. gitboot compares the numbers between the dots of two versions."
    )


@structure
class Follow:
    """A source of images, and the rules by which `gitboot update-images` adds its releases to the stream."""

    source: NameField = Field(description="The name of an ImageSource, which is built in or a document of this fleet.")
    channel: Text | None = Field(
        default=None, description="The channel of the source, such as stable. Default: the first channel of the source."
    )
    architectures: tuple[Architecture, ...] = Field(
        default=(), description="The architectures of new images. Default: those of the stream's current image."
    )
    minimum_version: Text | None = Field(
        default=None, description="gitboot ignores releases below this version. Default: no bound."
    )
    below_version: Text | None = Field(
        default=None, description="gitboot ignores this version and all later ones. Default: no bound."
    )
    minimum_age: Duration = Field(
        default="0s",
        description="How long a release must be public before gitboot proposes it, for example 3d or 12h. Default: 0s.",
    )
    percent: Percent = Field(
        default=1, description="The percentage with which the rollout of a new image begins. Default: 1."
    )


@structure
class ImageStreamSpec:
    """The current image, the rollout of the next image, and the servers that keep an image."""

    current: NameField = Field(description="The BootImage that servers of this stream boot.")
    rollout: Rollout | None = Field(default=None, description="The rollout of the next image. Default: none.")
    holds: tuple[Hold, ...] = Field(
        default=(), description="Servers that keep an image. The first hold that selects a server wins. Default: none."
    )
    skew: Skew | None = Field(
        default=None, description="The lowest version that servers of this stream may boot. Default: any version."
    )
    follow: Follow | None = Field(
        default=None, description="The source of new images, for `gitboot update-images`. Default: none."
    )
    require_provenance: RequiredProvenance = Field(
        default=RequiredProvenance.ANY,
        description="signed: machines may boot an image of this stream only after a trusted key has verified each of "
        "its files. Trusted keys are the keys that gitboot ships and the keys in the settings, never a key in the "
        "fleet. any: signatures are optional. Default: any.",
    )


@structure
class ImageStream(Document):
    """A name for the current image of a group of servers."""

    kind: Literal["ImageStream"] = Field(description="The kind of this document.")
    spec: ImageStreamSpec = Field(description="The images of the stream.")
