"""docs/first-server.md, as it stands: its blocks are run, one after the other, and a machine boots from it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.boots.architectures import X86_64
from tests.boots.images import Images
from tests.boots.machine import Machine, Running
from tests.boots.programs import program
from tests.instance import eventually

PAGE: Final = Path(__file__).parents[2] / "docs" / "first-server.md"
DONE: Final = "echo the page is done"

_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FOLDERS: Final = re.compile(r"/(?:srv|var/lib)/")
_INSTALLER: Final = re.compile(r"(?<=^INSTALLER=).*", re.MULTILINE)


def script(folder: Path, installer: Path) -> str:
    """All blocks, with what lies below / in ``folder`` and Debian's installer from there."""
    text = "".join(_BLOCK.findall(PAGE.read_text()))
    text = _INSTALLER.sub(f"file://{installer}", text)
    return f"set -eu\n{_FOLDERS.sub(lambda found: f'{folder}{found[0]}', text)}\n{DONE}\nwait\n"


@contextmanager
def followed(folder: Path, text: str) -> Iterator[None]:
    """Run it to its last word; what it started goes on until the end."""
    commands, log = folder / "bin", folder / "page.log"
    commands.mkdir()
    (commands / "gitboot").write_text(f'#!/bin/sh\nexec {sys.executable} -m gitboot "$@"\n')
    (commands / "gitboot").chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}:/usr/sbin"}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [program("bash"), "-c", text], env=environment, stdout=output, stderr=output, start_new_session=True
        ) as shell,
    ):
        try:
            eventually(lambda: shell.poll() is not None or "the page is done" in log.read_text(), within_s=120)
            assert shell.poll() is None, log.read_text()
            yield
        finally:
            os.killpg(shell.pid, signal.SIGTERM)


def test_a_spare_server_boots_by_the_page(
    network: None, images: Images, tmp_path: Path, row: Callable[[Running, float], None]
) -> None:
    installer = tmp_path / "installer"
    installer.mkdir()
    for name, kind in (("linux", "kernel"), ("initrd.gz", "initrd")):
        shutil.copy(images.by_name["node-1"][X86_64][kind], installer / name)
    (tmp_path / "srv").mkdir()
    text = script(tmp_path, installer)
    identity = re.search(r"MAC=(\S+) UUID=(\S+)", text)
    assert identity
    machine = Machine(folder=tmp_path, uuid=identity[2], macs=(identity[1],), pxe=True)
    with followed(tmp_path, text), machine.on() as running:
        seconds = running.says("gitboot: web01 boots debian-12 (Network)", "BOOTED by uefi: ", "BOOTED to the end")
        row(running, seconds)
