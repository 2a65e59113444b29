"""docs/first-server.md as a script: its blocks in their order, below a folder instead of below /."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.helpers.git_servers import program
from tests.helpers.instance_process import eventually

PAGE: Final = Path(__file__).parents[2] / "docs" / "first-server.md"
DONE: Final = "echo the page is done"

_SECTION: Final = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FOLDERS: Final = re.compile(r"/(?:srv|var/lib)/")
_INSTALLER: Final = re.compile(r"(?<=^INSTALLER=).*", re.MULTILINE)


def script(folder: Path, installer: Path, *, without: Container[str] = ()) -> str:
    """All blocks but those of some sections, with what lies below / in ``folder``, and another installer."""
    sections = _SECTION.findall(PAGE.read_text())
    text = "".join(block for title, section in sections if title not in without for block in _BLOCK.findall(section))
    text = _INSTALLER.sub(f"file://{installer}", text)
    return f"set -eu\n{_FOLDERS.sub(lambda found: f'{folder}{found[0]}', text)}\n{DONE}\nwait\n"


@contextmanager
def followed(folder: Path, text: str, gitboot: str) -> Iterator[None]:
    """Run it to its last word, with a program as `gitboot`; what it started goes on until the end."""
    commands, log = folder / "bin", folder / "page.log"
    commands.mkdir()
    (commands / "gitboot").write_text(gitboot)
    (commands / "gitboot").chmod(0o755)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}:/usr/sbin"}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [program("bash", "bash"), "-c", text], env=environment, stdout=output, stderr=output, start_new_session=True
        ) as shell,
    ):
        try:
            eventually(lambda: shell.poll() is not None or "the page is done" in log.read_text(), within_s=300)
            assert shell.poll() is None, log.read_text()
            yield
        finally:
            os.killpg(shell.pid, signal.SIGTERM)
