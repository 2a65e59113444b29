"""Boot loaders: copy them from distribution packages to the paths that the DHCP configuration contains."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from gitboot import __version__
from gitboot.errors import AssetError, UsageError
from gitboot.files import read_output_file, write_output_file
from gitboot.jsonio import OMITTED, json_key, to_json_value
from gitboot.quoting import quote_grub_word, sanitize_grub_text
from gitboot.render.grub import NICS, SIGNED_GRUB_CHAIN
from gitboot.render.paths import BOOT, PXELINUX_CORE, SIGNED_GRUB


class PackagedLoader(Struct, frozen=True, kw_only=True):
    """A boot loader that a distribution package contains."""

    path: str  # the path below the TFTP root and below assets/; `gitboot.render.dhcp` uses the same paths
    sources: tuple[str, ...]  # possible paths of the file in the package; gitboot copies the first one that exists
    package: str  # the name of the package in Debian


class BuiltLoader(Struct, frozen=True, kw_only=True):
    """A GRUB image that gitboot builds from the modules in a package, with an embedded configuration."""

    path: str
    target: str  # the value of `grub-mkimage --format`
    package: str


LOADERS: Final[tuple[PackagedLoader | BuiltLoader, ...]] = (
    PackagedLoader(
        path="loaders/undionly.kpxe",
        sources=("usr/lib/ipxe/undionly.kpxe", "usr/share/ipxe/undionly.kpxe"),
        package="ipxe",
    ),
    PackagedLoader(
        path="loaders/ipxe-x86_64.efi",
        sources=("usr/lib/ipxe/ipxe-amd64.efi", "usr/lib/ipxe/ipxe.efi", "usr/share/ipxe/ipxe-x86_64.efi"),
        package="ipxe",
    ),
    PackagedLoader(
        path="loaders/snponly-x86_64.efi",
        sources=("usr/lib/ipxe/snponly.efi", "usr/share/ipxe/ipxe-snponly-x86_64.efi"),
        package="ipxe",
    ),
    PackagedLoader(
        path="loaders/ipxe-aarch64.efi",
        sources=("usr/lib/ipxe/ipxe-arm64.efi", "usr/share/ipxe/arm64-efi/ipxe.efi"),
        package="ipxe from Debian 13 or newer",
    ),
    PackagedLoader(
        path="loaders/snponly-aarch64.efi",
        sources=("usr/lib/ipxe/snponly-arm64.efi", "usr/share/ipxe/arm64-efi/snponly.efi"),
        package="ipxe-bootimgs-aarch64, which exists in Fedora but not in Debian",
    ),
    BuiltLoader(path="loaders/grub-x86_64.efi", target="x86_64-efi", package="grub-efi-amd64-bin"),
    BuiltLoader(path="loaders/grub-aarch64.efi", target="arm64-efi", package="grub-efi-arm64-bin:arm64"),
    # A shim starts GRUB from the folder of the shim. The file name of GRUB is compiled into the shim.
    PackagedLoader(path="loaders/shimx64.efi", sources=("usr/lib/shim/shimx64.efi.signed",), package="shim-signed"),
    PackagedLoader(
        path="loaders/grubx64.efi",
        sources=("usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed",),
        package="grub-efi-amd64-signed",
    ),
    PackagedLoader(
        path="loaders/shimaa64.efi", sources=("usr/lib/shim/shimaa64.efi.signed",), package="shim-signed:arm64"
    ),
    PackagedLoader(
        path="loaders/grubaa64.efi",
        sources=("usr/lib/grub/arm64-efi-signed/grubnetaa64.efi.signed",),
        package="grub-efi-arm64-signed:arm64",
    ),
    PackagedLoader(
        path="loaders/lpxelinux.0",
        sources=("usr/lib/PXELINUX/lpxelinux.0", "usr/share/syslinux/lpxelinux.0"),
        package="pxelinux",
    ),
    PackagedLoader(
        path=f"loaders/{PXELINUX_CORE}",
        sources=("usr/lib/syslinux/modules/bios/ldlinux.c32", "usr/share/syslinux/ldlinux.c32"),
        package="syslinux-common",
    ),
)


SIGNED_GRUBS: Final = ("loaders/grubx64.efi", "loaders/grubaa64.efi")  # the signed GRUB images that a shim starts
_SIGNED_GRUB: Final = SIGNED_GRUB.removeprefix(BOOT)
_OWN_COMMENT: Final = b"# gitboot: "


class PlacementOutcome(StrEnum):
    PLACED = "placed"
    UNCHANGED = "unchanged"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedLoader:
    """The result of placing one boot loader."""

    path: str
    sha256: str | None = None  # None: the boot loader is missing
    # the source of the boot loader, or the package to install if the boot loader is missing
    message: str = field(metadata=json_key("from"))
    outcome: PlacementOutcome = field(metadata=OMITTED)


MANIFEST: Final = "loaders/manifest.json"


def place_loaders(
    out: Path,
    tftp: Path | None,
    base_url: str,
    report: Callable[[PlacedLoader], None],
    *,
    systems: Sequence[Path] = (Path("/"),),
) -> tuple[PlacedLoader, ...]:
    """Copy every available boot loader to ``out`` and ``tftp``, and call ``report`` for each boot loader.

    Machines download the files in ``out`` from ``base_url``. gitboot searches for each boot loader in the root folders
    ``systems``, in order, and writes a manifest of the boot loaders that it copied. A second call with the same
    packages writes nothing. If a package is uninstalled later, the boot loaders that gitboot copied from the package
    remain.

    Raises `AssetError` if a folder is not writable or GRUB cannot be built.
    """
    placed = []
    for loader in LOADERS:
        placed.append(_place_loader(loader, out, tftp, base_url, systems))
        report(placed[-1])
    # if the TFTP root has a grub.cfg, it is a copy of boot/ and contains grub/grub.cfg already
    if tftp is not None and not (tftp / "grub.cfg").exists():
        placed.append(_write_signed_grub_configuration(tftp, base_url))
        report(placed[-1])
    files = to_json_value([each for each in placed if each.sha256 is not None])
    document = {"apiVersion": "gitboot.dev/v1alpha1", "version": __version__, "items": files}
    _write_file(MANIFEST, out, tftp, (json.dumps(document, indent=2) + "\n").encode())
    return tuple(placed)


class _LoaderMissing(Exception):
    """Raised if a boot loader is not available. The message states what to install."""


def _place_loader(
    loader: PackagedLoader | BuiltLoader, out: Path, tftp: Path | None, base_url: str, systems: Sequence[Path]
) -> PlacedLoader:
    try:
        if isinstance(loader, PackagedLoader):
            content, source = _read_packaged_loader(loader, systems)
        else:
            content, source = _build_loader(loader, base_url, systems)
    except _LoaderMissing as error:
        return PlacedLoader(path=loader.path, outcome=PlacementOutcome.MISSING, message=str(error))
    is_new = _write_file(loader.path, out, tftp, content)
    return PlacedLoader(
        path=loader.path,
        outcome=PlacementOutcome.PLACED if is_new else PlacementOutcome.UNCHANGED,
        message=source,
        sha256=sha256(content).hexdigest(),
    )


def _write_signed_grub_configuration(tftp: Path, base_url: str) -> PlacedLoader:
    """Write ``grub/grub.cfg`` to the TFTP root, unless another program wrote the existing file."""
    target = tftp / _SIGNED_GRUB
    existing = read_output_file(target)
    if existing is not None and not existing.startswith(_OWN_COMMENT):
        return PlacedLoader(
            path=_SIGNED_GRUB,
            outcome=PlacementOutcome.UNCHANGED,
            message=(
                f"the signed GRUB loads {target}, but gitboot does not replace this file, because another program "
                "wrote it"
            ),
        )
    is_new = _write_targets(_SIGNED_GRUB, [target], render_signed_grub_configuration(base_url).encode())
    return PlacedLoader(
        path=_SIGNED_GRUB,
        outcome=PlacementOutcome.PLACED if is_new else PlacementOutcome.UNCHANGED,
        message="written by gitboot",
    )


def _read_packaged_loader(loader: PackagedLoader, systems: Sequence[Path]) -> tuple[bytes, str]:
    """Return the content of a boot loader, and the path of the file. Raises `_LoaderMissing`."""
    without_http: Path | None = None  # the first GRUB that cannot download over HTTP
    for file in (system / source for system in systems for source in loader.sources):
        if file.is_file():
            content = file.read_bytes()
            if loader.path not in SIGNED_GRUBS or supports_http(content):
                return content, str(file)
            without_http = without_http or file
    if without_http is not None:
        raise _LoaderMissing(
            f"{without_http} cannot download over HTTP: unpack {loader.package} from Debian 13 or newer, and pass the "
            "folder with --system"
        )
    raise _LoaderMissing(f"install the package {loader.package}")


def supports_http(grub: bytes) -> bool:
    """Return whether a GRUB image contains the module http. The signed GRUB of Debian 12 does not contain it.

    gitboot searches the image for a text that this module sends in HTTP requests (GRUB: grub-core/net/http.c).
    """
    return b" HTTP/1.1\r\nHost: " in grub


def _write_file(path: str, out: Path, tftp: Path | None, content: bytes) -> bool:
    """Write a file to the folders for HTTP and TFTP.

    Return whether any of the copies was missing or had different content.
    """
    targets = [out / "assets" / path]
    if tftp is not None:
        targets.append(tftp / path)
    if path.endswith(PXELINUX_CORE):
        targets.append(out / PXELINUX_CORE)
    # By TFTP, shim requests GRUB from the root unless the DHCP server sends the path of shim in the header field `file`
    # (shim: netboot.c).
    if tftp is not None and path in SIGNED_GRUBS:
        root_copy = tftp / Path(path).name
        # If the file differs from all of gitboot's copies, another program wrote the file, so gitboot does not replace
        # it. gitboot writes the file between two copies, so that after an interruption it equals one of them.
        if read_output_file(root_copy) in (None, content, *map(read_output_file, targets)):
            targets.insert(1, root_copy)
    return _write_targets(path, targets, content)


def _write_targets(path: str, targets: Sequence[Path], content: bytes) -> bool:
    try:
        changed = [target for target in targets if read_output_file(target) != content]
        for target in changed:
            write_output_file(target, [content], mode=0o644, make_folders=True, sync=True)
    except UsageError as error:
        raise AssetError(f"cannot write {path}: {error}") from error
    return bool(changed)


# GRUB


# All modules that GRUB needs to download and run a boot script. The image cannot load other modules.
_MODULES: Final = (
    *("all_video", "boot", "chain", "configfile", "echo", "efinet", "eval", "ext2", "fat", "gcry_sha256", "gzio"),
    *("halt", "http", "iso9660", "linux", "loopback", "ls", "memdisk", "minicmd", "net", "normal", "part_gpt"),
    *("part_msdos", "reboot", "regexp", "search", "serial", "sleep", "smbios", "tar", "terminal", "test", "tftp"),
    *("true", "xfs"),
)


def render_embedded_grub_configuration(base_url: str) -> str:
    """Return the embedded GRUB configuration, which configures a NIC and then loads ``grub.cfg`` from ``base_url``.

    If firmware loaded GRUB by PXE, GRUB has a network interface from the start. Otherwise, ``net_bootp`` creates an
    interface such as ``efinet0:dhcp`` for each NIC that gets a DHCP response, and sets variables that start with
    ``net_efinet0_dhcp``. ``net_bootp`` fails if any NIC gets no response.
    """
    parts = urlsplit(base_url)
    device = f"http,{parts.netloc}"
    shared = quote_grub_word(f"({device}){parts.path}/grub.cfg")
    macs = "".join(f"$net_efinet{nic}_dhcp_mac" for nic in range(NICS))
    return f"""\
if [ -z "$net_default_mac" ]; then
  net_bootp
  if [ -z "{macs}" ]; then
    net_bootp6
  fi
fi
set root={quote_grub_word(device)}
set prefix=""
for attempt in 1 2 3 4 5; do
  configfile {shared}
  echo {sanitize_grub_text(f"gitboot: {base_url}/grub.cfg is unavailable, trying again in 5 s")}
  sleep 5
done
exit
"""


def render_signed_grub_configuration(base_url: str) -> str:
    """Return the content of ``grub/grub.cfg`` in the TFTP root.

    Debian's signed GRUB runs this script, which loads ``grub.cfg`` by HTTP or TFTP. `place_loaders` does not copy a
    signed GRUB without the module http, such as the one in Debian 12. If another program placed such a GRUB, or if
    ``base_url`` is an https URL, the script loads ``grub.cfg`` from the TFTP root.
    """
    parts = urlsplit(base_url)
    http_script = ""
    if parts.scheme == "http":
        shared = quote_grub_word(f"(http,{parts.netloc}){parts.path}/grub.cfg")
        http_script = f"""\
if insmod http; then
  for attempt in 1 2 3 4 5; do
    configfile {shared}
    echo {sanitize_grub_text(f"gitboot: {base_url}/grub.cfg is unavailable, trying again in 5 s")}
    sleep 5
  done
fi
"""
    return f"# gitboot: the signed GRUB from Debian loads this script over TFTP\n{http_script}{SIGNED_GRUB_CHAIN}"


def _build_loader(loader: BuiltLoader, base_url: str, systems: Sequence[Path]) -> tuple[bytes, str]:
    """Build a GRUB image. Return its content, and the folder of its modules. Raises `_LoaderMissing`."""
    if urlsplit(base_url).scheme != "http":
        raise _LoaderMissing(
            f"GRUB can download only over http, not from {base_url}: set --base-url to an http URL for the same files"
        )
    folders = (system / "usr/lib/grub" / loader.target for system in systems)
    modules = next((folder for folder in folders if (folder / "http.mod").is_file()), None)
    if modules is None:
        raise _LoaderMissing(f"install the package {loader.package}")
    program = shutil.which("grub-mkimage") or shutil.which("grub2-mkimage")
    if program is None:
        raise _LoaderMissing("install the package grub-common, which contains grub-mkimage")
    optional_modules = ["linuxefi"] if (modules / "linuxefi.mod").is_file() else []  # Debian's module for Secure Boot
    with tempfile.TemporaryDirectory(prefix="gitboot-") as folder:
        memory_disk, image = Path(folder, "memdisk.tar"), Path(folder, "grub.efi")
        # gitboot does not use grub-mkstandalone, because its images contain the current time and each module twice.
        configuration = render_embedded_grub_configuration(base_url).encode()
        entry = tarfile.TarInfo("boot/grub/grub.cfg")
        entry.size = len(configuration)
        with tarfile.open(memory_disk, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            tar.addfile(entry, BytesIO(configuration))
        command = [
            *(program, f"--format={loader.target}", f"--directory={modules}", f"--output={image}"),
            *(f"--memdisk={memory_disk}", "--prefix=(memdisk)/boot/grub", *_MODULES, *optional_modules),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            last_line = result.stderr.strip().rpartition("\n")[2]
            raise AssetError(f"cannot build {loader.path}: {last_line} (reinstall {loader.package})")
        return image.read_bytes(), f"grub-mkimage of {modules}"


# Signatures of EFI programs


HEAD: Final = 4096  # in bytes: the first part of an EFI program, which contains all headers
_PE32_PLUS: Final = 0x20B
_CERTIFICATES: Final = 4  # the index of the certificate table in the data directories


def is_signed(head: bytes) -> bool | None:
    """Return whether an EFI program contains a signature, or None if ``head`` is not the start of an EFI program.

    The function does not verify the signature. The PE format defines the offsets (Microsoft, "PE Format": Optional
    Header Data Directories).
    """
    try:
        if head[:2] != b"MZ":
            return None
        (start,) = struct.unpack_from("<I", head, 0x3C)
        if head[start : start + 4] != b"PE\0\0":
            return None
        optional = start + 24
        (magic,) = struct.unpack_from("<H", head, optional)
        directories = optional + (112 if magic == _PE32_PLUS else 96)
        (count,) = struct.unpack_from("<I", head, directories - 4)
        if count <= _CERTIFICATES:
            return False
        offset, size = struct.unpack_from("<II", head, directories + 8 * _CERTIFICATES)
    except struct.error:  # the file is too short
        return None
    return bool(offset and size)


def find_program_fault(head: bytes) -> str | None:
    """Return why firmware with Secure Boot rejects a program, or None if the program contains a signature."""
    return {True: None, False: "has no signature", None: "is not an EFI program"}[is_signed(head)]
