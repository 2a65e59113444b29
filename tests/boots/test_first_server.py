"""The blocks of docs/tutorials/first-server.md are run one after another, and a machine boots from the result."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.boots.architectures import X86_64
from tests.boots.images import Images
from tests.boots.machine import Machine, RunningMachine
from tests.helpers.documentation import build_tutorial, run_tutorial


def test_a_spare_server_boots_as_the_page_describes(
    network: None, images: Images, tmp_path: Path, row: Callable[[RunningMachine, float], None]
) -> None:
    installer = tmp_path / "installer"
    installer.mkdir()
    for name, kind in (("linux", "kernel"), ("initrd.gz", "initrd")):
        shutil.copy(images.by_name["node-1"][X86_64][kind], installer / name)
    (tmp_path / "srv").mkdir()
    text = build_tutorial(tmp_path, installer)
    identity = re.search(r"MAC=(\S+) UUID=(\S+)", text)
    assert identity
    machine = Machine(folder=tmp_path, uuid=identity[2], macs=(identity[1],), pxe=True)
    with run_tutorial(tmp_path, text, f'#!/bin/sh\nexec {sys.executable} -m gitboot "$@"\n'), machine.on() as running:
        seconds = running.wait_for("gitboot: web01 boots debian-12 (Network)", "BOOTED by uefi: ", "BOOTED to the end")
        row(running, seconds)
