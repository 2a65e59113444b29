"""A unified kernel image, and an ISO that boots it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.boots.architectures import Architecture
from tests.boots.debian import unpacked
from tests.boots.disks import esp
from tests.boots.programs import program


def build(kernel: Path, initrd: Path, command_line: str, architecture: Architecture, made: Path) -> Path:
    """Build the stub with the kernel and its data as sections after its own (UAPI: Unified Kernel Image)."""
    package = unpacked("systemd-boot-efi", architecture.debian)
    stub = str(package / f"usr/lib/systemd/boot/efi/linux{architecture.efi}.efi.stub")
    objdump = program(architecture.tool("objdump"))
    words = made.with_suffix(".cmdline")
    words.write_bytes(command_line.encode() + b"\0")
    arguments, end = [], _end(objdump, stub)
    alignment = int(_find_in_output(r"SectionAlignment\s+([0-9a-f]+)", objdump, "-p", stub)[0], 16)
    # The kernel is last, for it is unpacked in place.
    for name, path in (("cmdline", words), ("initrd", initrd), ("linux", kernel)):
        start = -(-end // alignment) * alignment
        arguments += ["--add-section", f".{name}={path}", "--change-section-vma", f".{name}={start:#x}"]
        end = start + path.stat().st_size
    subprocess.run([program(architecture.tool("objcopy")), *arguments, stub, made], check=True)
    return made


def _end(objdump: str, image: str) -> int:
    sections = _find_in_output(r"^\s*\d+\s+\.\S+\s+([0-9a-f]+\s+[0-9a-f]+)", objdump, "-h", image)  # size and start
    return max(sum(int(number, 16) for number in section.split()) for section in sections)


def _find_in_output(pattern: str, *command: str) -> list[str]:
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(pattern, shown, re.MULTILINE)


def iso(loader: Path, architecture: Architecture, made: Path) -> Path:
    """A disc whose El Torito image holds ``loader`` as what removable media boot."""
    folder = made.with_suffix(".tree")
    folder.mkdir()
    esp(loader, architecture, folder / "efi.img")
    command = [program("xorriso"), "-as", "mkisofs", "-quiet", "-o", str(made), "-e", "efi.img", "-no-emul-boot"]
    subprocess.run([*command, str(folder)], check=True, capture_output=True)
    return made
