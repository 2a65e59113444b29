"""ImageSource: the place where a vendor lists releases, and the files that belong to a release."""

import re
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from gitboot.model.boot_image import ConfigFrom, ImageFormatField
from gitboot.model.fields import (
    Boolean,
    Document,
    Field,
    Positive,
    Scalar,
    Text,
    check,
    structure,
)
from gitboot.model.scalars import (
    Malformed,
    Path,
    parse_artifact_url,
    parse_kernel_argument,
    parse_nonempty,
    quote_value,
    require,
    require_match,
    text,
)
from gitboot.model.server import Architecture
from gitboot.problems import Code
from gitboot.text import format_suggestion

# The sources that gitboot ships (gitboot/image_sources/vendors). A fleet may replace a built-in source with a source of
# the same name.
BUILT_IN_SOURCES: Final = (
    "almalinux",
    "alpine",
    "centos-stream",
    "debian",
    "fedora-coreos",
    "flatcar",
    "opensuse-leap",
    "rhcos",
    "rocky",
    "talos",
    "talos-factory",
    "ubuntu",
    "ubuntu-maas",
)

# Templates

# the placeholders with examples, with which a template becomes a text that gitboot can check
_PLACEHOLDERS: Final = {
    "version": "1.2.3",
    "channel": "stable",
    "arch": "amd64",
    "base": "https://host.example",
    "major": "1",
    "minor": "2",
    "url": "https://host.example/file",
    "name": "file",
}
_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_URL_PLACEHOLDERS: Final = ("version", "channel", "arch", "base", "major", "minor")
_ARGUMENT_PLACEHOLDERS: Final = ("version", "channel", "major", "minor")  # all architectures have the same arguments
_KEY: Final = re.compile(r"[0-9A-Fa-f]{40}|[0-9A-Fa-f]{64}|RW[A-Za-z0-9+/]{54}")


def _check_placeholders(value: object, allowed: Collection[str]) -> str:
    """Return a template. Raises `Malformed` if it contains a placeholder that is not allowed."""
    template = parse_nonempty(value)
    for match in _PLACEHOLDER.finditer(template):
        if match[1] not in allowed:
            words = ", ".join(f"{{{name}}}" for name in allowed)
            raise Malformed(
                Code.SOURCE_TEMPLATE,
                f"the placeholder {quote_value(match[0])} is not allowed here",
                format_suggestion(match[1], allowed, f"use {words}"),
            )
    return template


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Replace each placeholder in a template with its value. Keep all other text in braces."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)


def parse_url_template(value: object) -> str:
    """Read a URL with placeholders. The URL must be valid after gitboot has replaced the placeholders."""
    return _parse_url_template(value, _URL_PLACEHOLDERS)


def parse_index_url_template(value: object) -> str:
    return _parse_url_template(value, ("channel", "arch", "base"))


def parse_base_url_template(value: object) -> str:
    return _parse_url_template(value, ("version", "channel", "arch", "major", "minor")).rstrip("/")


def parse_derived_url_template(value: object) -> str:
    return _parse_url_template(value, (*_URL_PLACEHOLDERS, "url"))


def _parse_url_template(value: object, allowed: Collection[str]) -> str:
    template = _check_placeholders(value, allowed)
    url = fill_template(template, _PLACEHOLDERS)
    if re.fullmatch(r"oci://[a-z0-9.:/_-]+", url):
        return template
    require(not url.startswith("assets:"), template, Code.URL, "an http, https or oci URL", "write https://…")
    parse_artifact_url(url)
    return template


def parse_name_template(value: object) -> str:
    return _check_placeholders(value, ("version", "channel", "arch", "major", "minor"))


def parse_match_template(value: object) -> str:
    template = _check_placeholders(value, ("version", "channel", "arch"))
    return require(
        template.count("{version}") == 1,
        template,
        Code.SOURCE_TEMPLATE,
        "a template with {version}",
        "write `{version}` exactly once, in place of the version number",
    )


def parse_key_fingerprint(value: object) -> str:
    key = require_match(
        value,
        _KEY,
        Code.SOURCE_KEY,
        "an OpenPGP key fingerprint (40 or 64 hexadecimal digits) or a minisign public key (RW…)",
        "copy the second line of the minisign public key file, or the full fingerprint that `gpg --show-keys FILE` "
        "prints, without spaces",
    )
    return key if key.startswith("RW") else key.upper()


def parse_argument_template(value: object) -> str:
    """Read a kernel argument of new images.

    The new images keep Jinja2 expressions such as {{ image.artifacts.iso.url }}.
    """
    argument = text(value)
    _check_placeholders(re.sub(r"\{\{.{0,200}?\}\}", "", argument) or "x", _ARGUMENT_PLACEHOLDERS)
    return parse_kernel_argument(argument)


_SCHEMA: Final = {"type": "string", "minLength": 1}
UrlTemplate = Annotated[str, Scalar(parse_url_template, _SCHEMA)]
IndexUrl = Annotated[str, Scalar(parse_index_url_template, _SCHEMA)]
BaseTemplate = Annotated[str, Scalar(parse_base_url_template, _SCHEMA)]
DerivedUrl = Annotated[str, Scalar(parse_derived_url_template, _SCHEMA)]
NameTemplate = Annotated[str, Scalar(parse_name_template, _SCHEMA)]
MatchTemplate = Annotated[str, Scalar(parse_match_template, _SCHEMA)]
KeyFingerprint = Annotated[str, Scalar(parse_key_fingerprint, {"type": "string", "pattern": f"^(?:{_KEY.pattern})$"})]
ArgumentTemplate = Annotated[str, Scalar(parse_argument_template, {"type": ["string", "number"], "minLength": 1})]


class IndexFormat(StrEnum):
    """The formats in which vendors list their releases."""

    COREOS_STREAM = "CoreOSStream"  # stream metadata of Fedora CoreOS: one release, with its files
    FLATCAR_RELEASES = "FlatcarReleases"  # releases-CHANNEL.json of www.flatcar.org
    GITHUB_RELEASES = "GitHubReleases"  # GitHub's API: a list of releases, with their files
    SIMPLESTREAMS = "Simplestreams"  # simplestreams products:1.0, with the files of each version
    ALPINE_RELEASES = "AlpineReleases"  # latest-releases.yaml
    OPENSUSE_DISTRIBUTIONS = "OpenSUSEDistributions"  # distributions.json of get.opensuse.org
    JSON_LIST = "JSONList"  # a JSON list of versions, or of objects with a field version
    CHECKSUM_LIST = "ChecksumList"  # a list of digests; the file names in the list contain the version
    DIRECTORY_LISTING = "DirectoryListing"  # a page of a web server with a link for each entry of a folder
    TEXT = "Text"  # a text with the version on a line of its own
    OCI_TAGS = "OCITags"  # the tags of a repository in a registry


class FilesFormat(StrEnum):
    """The formats of documents that describe the files of one release."""

    TREEINFO = "TreeInfo"  # .treeinfo files, with the names and the digests of the boot files


_FORMATS_WITH_MATCH: Final = frozenset({IndexFormat.CHECKSUM_LIST, IndexFormat.DIRECTORY_LISTING, IndexFormat.TEXT})
_FORMATS_WITH_FILES: Final = frozenset(
    {
        IndexFormat.COREOS_STREAM,
        IndexFormat.GITHUB_RELEASES,
        IndexFormat.SIMPLESTREAMS,
        IndexFormat.ALPINE_RELEASES,
        IndexFormat.OCI_TAGS,
    }
)


@structure
class SignatureTemplate:
    """The URL of a detached signature. The field shows the type of the signature."""

    openpgp: DerivedUrl | None = Field(default=None, description="An OpenPGP signature. Default: none.")
    minisign: DerivedUrl | None = Field(default=None, description="A minisign signature. Default: none.")

    @check
    def _check_kind(self) -> None:
        if (self.openpgp is None) == (self.minisign is None):
            raise Malformed(
                Code.COMBINATION, "expected exactly one of `openpgp` or `minisign`", "set exactly one of these fields"
            )


@structure
class ReleaseIndex:
    """The index in which the vendor lists releases."""

    format: IndexFormat = Field(description="The format of the index.")
    url: IndexUrl = Field(
        description="The URL of the index: https://…, or oci://HOST/NAME for OCITags. {channel}, {arch} and {base} "
        "stand for the channel, the vendor's name of the architecture, and its base URL."
    )
    match: MatchTemplate | None = Field(
        default=None,
        description="The name of an entry, with {version} in place of the version, such as v{version} or "
        "image-{version}-{arch}.iso. ChecksumList, DirectoryListing and Text need it. Default: {version}.",
    )
    starts_with: NameTemplate | None = Field(
        default=None,
        description="gitboot ignores versions that do not begin with this text, such as {channel}. Default: gitboot "
        "uses all versions.",
    )
    signature: DerivedUrl | None = Field(
        default=None,
        description="The URL of the detached OpenPGP signature of the index, such as {url}.gpg. {url} is the URL of "
        "the index. Default: none.",
    )
    clear_signed: Boolean = Field(
        default=False,
        description="Whether the index is clear-signed with OpenPGP. gitboot then reads only the signed part of "
        "the index. Default: false.",
    )

    @check
    def _check_format(self) -> None:
        if self.signature is not None and self.clear_signed:
            raise Malformed(
                Code.COMBINATION, "expected `signature` or `clearSigned`, found both", "remove one of the two fields"
            )
        if self.format in _FORMATS_WITH_MATCH and self.match is None:
            raise Malformed(
                Code.COMBINATION,
                f"an index with `format: {self.format}` requires `match`",
                "add a `match` that contains {version}",
            )
        if (self.format is IndexFormat.OCI_TAGS) != self.url.startswith("oci://"):
            raise Malformed(
                Code.COMBINATION,
                "`format: OCITags` requires an oci://HOST/NAME URL, and such a URL requires `format: OCITags`",
                "correct the format or the URL",
            )
        if self.format is IndexFormat.OCI_TAGS and (self.signature is not None or self.clear_signed):
            raise Malformed(
                Code.COMBINATION, "gitboot cannot verify signatures on registry tags", "remove the signature"
            )


@structure
class FilesIndex:
    """A document that describes the files of one release and one architecture."""

    format: FilesFormat = Field(description="The format of the document.")
    url: UrlTemplate = Field(description="The URL of the document, with placeholders such as {version} and {arch}.")


@structure
class SourceFile:
    """One file of a release. Set its URL, its name in the index, or both."""

    url: UrlTemplate | None = Field(
        default=None,
        description="The URL of the file, with placeholders: {version}, {major}, {minor}, {channel}, {arch}, {base}. "
        "Default: the URL in the index.",
    )
    name: NameTemplate | None = Field(
        default=None,
        description="The name of the file in the index, such as images/pxeboot/vmlinuz. The index contains the digest "
        "of the file, and its URL unless url is set. Default: the index does not describe the file.",
    )
    member: NameTemplate | None = Field(
        default=None,
        description="The path of the file in the archive at url, such as amd64/linux. Default: url is not an archive.",
    )
    signature: SignatureTemplate | None = Field(
        default=None,
        description="The signature of the file or of its archive. {url} is the URL of the file or of "
        "the archive. Default: none.",
    )
    signed: Boolean = Field(
        default=True,
        description="Use false if the vendor signs other files, but not this file. gitboot then accepts the file "
        "without a signature. Default: true.",
    )

    @check
    def _check_location(self) -> None:
        if self.url is None and self.name is None:
            raise Malformed(Code.COMBINATION, "the file has neither `url` nor `name`", "add `url` or `name`")
        if self.signature is not None and not self.signed:
            raise Malformed(
                Code.COMBINATION, "the file has a signature, but sets `signed: false`", "remove `signed: false`"
            )


@structure
class SourceFiles:
    """The files of a release, for each architecture."""

    kernel: SourceFile | None = Field(default=None, description="A Linux kernel. Default: none.")
    initrds: tuple[SourceFile, ...] = Field(default=(), description="The initial ramdisks, in order. Default: none.")
    rootfs: SourceFile | None = Field(default=None, description="A root file system (squashfs). Default: none.")
    uki: SourceFile | None = Field(default=None, description="A unified kernel image. Default: none.")
    iso: SourceFile | None = Field(default=None, description="A bootable ISO image. Default: none.")

    @check
    def _check_boot_files(self) -> None:
        if not (self.kernel or self.uki or self.iso):
            raise Malformed(
                Code.COMBINATION, "the source has no file that a machine can boot", "add a kernel, a uki or an iso"
            )
        if not self.kernel and (self.initrds or self.rootfs):
            raise Malformed(Code.COMBINATION, "`initrds` and `rootfs` require a `kernel`", "add a kernel")

    def list_files(self) -> Iterator[tuple[Path, SourceFile]]:
        """Yield each file, and the path of the field that contains the file."""
        for name in ("kernel", "rootfs", "uki", "iso"):
            if (file := getattr(self, name)) is not None:
                yield (name,), file
        for number, initrd in enumerate(self.initrds):
            yield ("initrds", number), initrd


@structure
class SignedListTemplate:
    """A signed list that contains the digest of another list, such as InRelease of a Debian archive."""

    url: UrlTemplate = Field(description="The URL of the signed list.")
    signature: SignatureTemplate | None = Field(
        default=None,
        description="The detached signature of the list. {url} is the URL of the list. Default: the list is "
        "clear-signed.",
    )


@structure
class ChecksumsTemplate:
    """A list of digests of a release's files, such as SHA256SUMS."""

    url: UrlTemplate = Field(description="The URL of the list, with placeholders such as {version} and {arch}.")
    signature: SignatureTemplate | None = Field(
        default=None, description="The detached signature of the list. {url} is the URL of the list. Default: none."
    )
    clear_signed: Boolean = Field(
        default=False,
        description="Whether the list is clear-signed with OpenPGP. gitboot then reads only the signed part of the "
        "list. Default: false.",
    )
    listed_in: SignedListTemplate | None = Field(
        default=None, description="A signed list that contains the digest of this list. Default: none."
    )

    @check
    def _check_signature(self) -> None:
        if (self.signature is not None) + self.clear_signed + (self.listed_in is not None) > 1:
            raise Malformed(
                Code.COMBINATION,
                "expected at most one of `signature`, `clearSigned` or `listedIn`",
                "set at most one of these fields",
            )

    @property
    def is_signed(self) -> bool:
        return self.signature is not None or self.clear_signed or self.listed_in is not None


@structure
class SourceImage:
    """The fields of new BootImages, without their files."""

    user_data: ImageFormatField = Field(
        default="None",
        description="The format of user data that the image reads at its first boot. Default: None.",
    )
    config_from: ConfigFrom = Field(
        default=ConfigFrom.KERNEL_ARGUMENTS, description="How the image finds its user data. Default: KernelArguments."
    )
    writes_disk: Boolean = Field(
        default=True, description="Whether a boot of the image writes to disks. Default: true."
    )
    boots: Positive = Field(
        default=1,
        description="How often the installer boots from the network until the installation is complete. Default: 1.",
    )
    kernel_arguments: tuple[ArgumentTemplate, ...] = Field(
        default=(),
        description="Kernel arguments. gitboot replaces {version}, {major}, {minor} and {channel}, and keeps "
        "expressions such as {{ image.artifacts.rootfs.url }}. Default: none.",
    )


@structure
class ImageSourceSpec:
    """The place where a vendor lists releases, and the files of a release."""

    description: Text | None = Field(default=None, description="The name of the product, for people. Default: none.")
    channels: tuple[Text, ...] = Field(
        default=(), description="The channels of the vendor. The first one is the default. Default: no channels."
    )
    architectures: dict[Architecture, Text] = Field(
        min_length=1, description="The vendor's name of each architecture. {arch} stands for this name."
    )
    base_urls: dict[Architecture, BaseTemplate] = Field(
        default_factory=dict,
        alias="baseURLs",
        description="A base URL for each architecture. {base} stands for this URL, which may contain {version}, "
        "{channel} and {arch}. Default: none.",
    )
    releases: ReleaseIndex = Field(description="The index that lists releases.")
    described_by: FilesIndex | None = Field(
        default=None,
        description="A document that describes the files of one release. Default: the index describes the files, or "
        "the field files has their URLs.",
    )
    files: SourceFiles = Field(description="The files of a release, by their role.")
    checksums: ChecksumsTemplate | None = Field(
        default=None, description="A list of the digests of the files. Default: none."
    )
    keys: tuple[KeyFingerprint, ...] = Field(
        default=(),
        description="The keys whose signatures gitboot accepts: full fingerprints of OpenPGP keys, or public keys "
        "of minisign. gitboot ships the keys of the built-in sources. Other keys come from --image-keys, never from "
        "the fleet. Default: the vendor does not sign files.",
    )
    image: SourceImage = Field(
        default_factory=SourceImage,
        description="The fields of new BootImages, besides their files. Default: the default values of these fields.",
    )

    @check
    def _check_templates(self) -> None:
        has_names = self.releases.format in _FORMATS_WITH_FILES or self.described_by is not None
        for at, file in self.files.list_files():
            if file.name is not None and not has_names:
                raise Malformed(
                    Code.COMBINATION,
                    f"an index with `format: {self.releases.format}` does not list files by name",
                    "set `url` instead of `name`, or add `describedBy`",
                    ("files", *at, "name"),
                )
            if file.url is not None and self.releases.format is IndexFormat.OCI_TAGS:
                raise Malformed(
                    Code.COMBINATION,
                    "for an image in a registry, each file requires `name` instead of `url`",
                    "set `name` to the role of the layer, such as kernel",
                    ("files", *at, "url"),
                )
        templates = list(_list_templates(self))
        for placeholder, field, given in (
            ("{channel}", "channels", self.channels),
            ("{base}", "baseURLs", self.base_urls),
        ):
            if not given and any(placeholder in template for template in templates):
                raise Malformed(
                    Code.COMBINATION, f"{placeholder} needs {field}", f"add {field}, or remove {placeholder}"
                )
        if "{base}" in self.releases.url and any("{version}" in each for each in self.base_urls.values()):
            raise Malformed(
                Code.COMBINATION,
                "{base} contains {version}, which is unknown until gitboot has read the index",
                "write the index URL without {base}",
                ("releases", "url"),
            )
        if self.base_urls and (missing := sorted(self.architectures.keys() - self.base_urls.keys())):
            raise Malformed(
                Code.COMBINATION, f"baseURLs has no URL for {missing[0]}", f"add {missing[0]}", ("baseURLs",)
            )

    @check
    def _check_keys(self) -> None:
        is_signed = (
            self.releases.clear_signed
            or self.releases.signature is not None
            or (self.checksums is not None and self.checksums.is_signed)
            or any(file.signature is not None for _, file in self.files.list_files())
        )
        # the checksums have signatures
        if self.keys and not is_signed and self.releases.format is not IndexFormat.COREOS_STREAM:
            raise Malformed(
                Code.COMBINATION,
                "`keys` has no effect, because the source has no signature to verify",
                "add `signature` to the files, checksums or releases, or use `clearSigned` or `listedIn`",
                ("keys",),
            )
        if is_signed and not self.keys:
            raise Malformed(
                Code.COMBINATION,
                "a signature requires `keys`",
                "add the vendor's keys to `keys`",
            )


def _list_templates(value: Any) -> Iterator[str]:
    """Yield all texts in a structure."""
    if isinstance(value, str):
        yield str(value)
    elif isinstance(value, tuple):
        for item in value:
            yield from _list_templates(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _list_templates(getattr(value, name))


@structure
class ImageSource(Document):
    """The releases of a vendor, from which gitboot creates BootImages.

    An ImageSource does not change what servers boot.
    """

    kind: Literal["ImageSource"] = Field(description="The kind of this document.")
    spec: ImageSourceSpec = Field(
        description="The index in which the vendor lists releases, and the files of a release."
    )
