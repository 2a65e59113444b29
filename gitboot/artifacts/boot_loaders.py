"""Boot loaders from the distribution's packages, placed where DHCP names them."""

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
from gitboot.render.grub import NICS
from gitboot.render.paths import PXELINUX_CORE

MANIFEST: Final = "loaders/manifest.json"
_ASSETS: Final = "assets"  # below the folder that machines see by HTTP


class Packaged(Struct, frozen=True, kw_only=True):
    """A loader that a package brings as it is."""

    path: str  # below the TFTP root, and below assets/; gitboot.render.dhcp has those that DHCP names
    sources: tuple[str, ...]  # the first that is there
    package: str  # Debian's


class Built(Struct, frozen=True, kw_only=True):
    """A GRUB image that is made of a package's modules, with a configuration in its memory disk."""

    path: str
    target: str  # as grub-mkimage calls it
    package: str


LOADERS: Final[tuple[Packaged | Built, ...]] = (
    Packaged(
        path="loaders/undionly.kpxe",
        sources=("usr/lib/ipxe/undionly.kpxe", "usr/share/ipxe/undionly.kpxe"),
        package="ipxe",
    ),
    Packaged(
        path="loaders/ipxe-x86_64.efi",
        sources=("usr/lib/ipxe/ipxe-amd64.efi", "usr/lib/ipxe/ipxe.efi", "usr/share/ipxe/ipxe-x86_64.efi"),
        package="ipxe",
    ),
    Packaged(
        path="loaders/snponly-x86_64.efi",
        sources=("usr/lib/ipxe/snponly.efi", "usr/share/ipxe/ipxe-snponly-x86_64.efi"),
        package="ipxe",
    ),
    Packaged(
        path="loaders/ipxe-aarch64.efi",
        sources=("usr/lib/ipxe/ipxe-arm64.efi", "usr/share/ipxe/arm64-efi/ipxe.efi"),
        package="ipxe of Debian 13 or newer",
    ),
    Packaged(
        path="loaders/snponly-aarch64.efi",
        sources=("usr/lib/ipxe/snponly-arm64.efi", "usr/share/ipxe/arm64-efi/snponly.efi"),
        package="ipxe-bootimgs-aarch64, which Fedora has and Debian does not",
    ),
    Built(path="loaders/grub-x86_64.efi", target="x86_64-efi", package="grub-efi-amd64-bin"),
    Built(path="loaders/grub-aarch64.efi", target="arm64-efi", package="grub-efi-arm64-bin:arm64"),
    # A shim starts the GRUB that lies beside it under the name that was built into it.
    Packaged(path="loaders/shimx64.efi", sources=("usr/lib/shim/shimx64.efi.signed",), package="shim-signed"),
    Packaged(
        path="loaders/grubx64.efi",
        sources=("usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed",),
        package="grub-efi-amd64-signed",
    ),
    Packaged(path="loaders/shimaa64.efi", sources=("usr/lib/shim/shimaa64.efi.signed",), package="shim-signed:arm64"),
    Packaged(
        path="loaders/grubaa64.efi",
        sources=("usr/lib/grub/arm64-efi-signed/grubnetaa64.efi.signed",),
        package="grub-efi-arm64-signed:arm64",
    ),
    Packaged(
        path="loaders/lpxelinux.0",
        sources=("usr/lib/PXELINUX/lpxelinux.0", "usr/share/syslinux/lpxelinux.0"),
        package="pxelinux",
    ),
    Packaged(
        path=f"loaders/{PXELINUX_CORE}",
        sources=("usr/lib/syslinux/modules/bios/ldlinux.c32", "usr/share/syslinux/ldlinux.c32"),
        package="syslinux-common",
    ),
)


class Placement(StrEnum):
    PLACED = "placed"
    UNCHANGED = "unchanged"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """What became of one loader."""

    path: str
    sha256: str | None = None  # None: it is missing
    message: str = field(
        metadata=json_key("from")
    )  # where it came from; or what is missing, and the package that has it
    outcome: Placement = field(metadata=OMITTED)


def place(
    out: Path,
    tftp: Path | None,
    base_url: str,
    report: Callable[[Placed], None],
    *,
    systems: Sequence[Path] = (Path("/"),),
) -> tuple[Placed, ...]:
    """Bring every loader that there is to ``out`` and ``tftp``; report each when it is done.

    ``out`` is what machines see under ``base_url``. Each is taken from the first of ``systems`` that has its package.
    Doing it twice writes nothing. The manifest lists what was placed; a loader whose package is gone stays as it lies.
    Raises `AssetError` where a folder cannot be written, or GRUB cannot be built.
    """
    placed = []
    for loader in LOADERS:
        found = (
            _read_packaged(loader, systems)
            if isinstance(loader, Packaged)
            else _build_loader(loader, base_url, systems)
        )
        if isinstance(found, str):
            outcome = Placed(path=loader.path, outcome=Placement.MISSING, message=found)
        else:
            content, source = found
            is_new = _write_file(loader.path, out, tftp, content)
            outcome = Placed(
                path=loader.path,
                outcome=Placement.PLACED if is_new else Placement.UNCHANGED,
                message=source,
                sha256=sha256(content).hexdigest(),
            )
        report(outcome)
        placed.append(outcome)
    files = to_json_value([each for each in placed if each.sha256 is not None])
    document = {"apiVersion": "gitboot.dev/v1alpha1", "version": __version__, "items": files}
    _write_file(MANIFEST, out, tftp, (json.dumps(document, indent=2) + "\n").encode())
    return tuple(placed)


def _read_packaged(loader: Packaged, systems: Sequence[Path]) -> tuple[bytes, str] | str:
    for file in (system / source for system in systems for source in loader.sources):
        if file.is_file():
            return file.read_bytes(), str(file)
    return f"install the package {loader.package}"


def _write_file(path: str, out: Path, tftp: Path | None, content: bytes) -> bool:
    targets = [out / _ASSETS / path, *([tftp / path] if tftp is not None else [])]
    targets += [out / PXELINUX_CORE] if path.endswith(PXELINUX_CORE) else []
    try:
        differing = [target for target in targets if read_output_file(target) != content]
        for target in differing:
            write_output_file(target, [content], mode=0o644, make_folders=True, sync=True)
    except UsageError as error:
        raise AssetError(f"{path} cannot be placed: {error}") from error
    return bool(differing)


# GRUB


# What finds and boots an entry by HTTP; the rest can be fetched from nowhere.
_MODULES: Final = (
    *("all_video", "boot", "chain", "configfile", "echo", "efinet", "eval", "ext2", "fat", "gcry_sha256", "gzio"),
    *("halt", "http", "iso9660", "linux", "loopback", "ls", "memdisk", "minicmd", "net", "normal", "part_gpt"),
    *("part_msdos", "reboot", "regexp", "search", "serial", "sleep", "smbios", "tar", "terminal", "test", "tftp"),
    *("true", "xfs"),
)
_OPTIONAL: Final = ("linuxefi",)  # Debian's, for Secure Boot


def first_grub_configuration(base_url: str) -> str:
    """What the image carries: an address for each NIC, then the shared ``grub.cfg`` below ``base_url``.

    A GRUB that firmware loaded by PXE has an interface from the start. Else ``net_bootp`` makes one for each NIC that
    gets an answer, ``efinet0:dhcp``, whose variables begin with ``net_efinet0_dhcp``; it fails if any NIC got none.
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


def _build_loader(loader: Built, base_url: str, systems: Sequence[Path]) -> tuple[bytes, str] | str:
    if urlsplit(base_url).scheme != "http":
        return f"GRUB fetches by http only, not from {base_url}: give --base-url for the same tree by http"
    folders = (system / "usr/lib/grub" / loader.target for system in systems)
    if (modules := next((folder for folder in folders if (folder / "http.mod").is_file()), None)) is None:
        return f"install the package {loader.package}"
    if (program := shutil.which("grub-mkimage") or shutil.which("grub2-mkimage")) is None:
        return "install the package grub-common, which has grub-mkimage"
    optional = [name for name in _OPTIONAL if (modules / f"{name}.mod").is_file()]
    with tempfile.TemporaryDirectory(prefix="gitboot-") as folder:
        memory_disk, image = Path(folder, "memdisk.tar"), Path(folder, "grub.efi")
        # grub-mkstandalone's memory disk holds the instant, and every module once more.
        configuration, entry = first_grub_configuration(base_url).encode(), tarfile.TarInfo("boot/grub/grub.cfg")
        entry.size = len(configuration)
        with tarfile.open(memory_disk, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            tar.addfile(entry, BytesIO(configuration))
        command = [
            *(program, f"--format={loader.target}", f"--directory={modules}", f"--output={image}"),
            *(f"--memdisk={memory_disk}", "--prefix=(memdisk)/boot/grub", *_MODULES, *optional),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = done.stderr.strip().rpartition("\n")[2]
            raise AssetError(f"{loader.path} cannot be built: {last} (is {loader.package} whole?)")
        return image.read_bytes(), f"grub-mkimage of {modules}"


HEAD: Final = 4096  # bytes of a file that hold its headers, with room to spare
_PE32_PLUS: Final = 0x20B
_CERTIFICATES: Final = 4  # which of the data directories is the certificate table


def is_signed(head: bytes) -> bool | None:
    """Tell by the beginning of a file; None: it is no EFI program, and its signature is elsewhere, if it has one.

    Whose signature it is, and whether a machine's firmware trusts them, is not looked at. The offsets are those of
    the PE format (Microsoft, "PE Format": Optional Header Data Directories).
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
    except struct.error:  # it ends before
        return None
    return bool(offset and size)
