"""The script of docs/mirrors.md that copies a tree: it can be killed or halted before each of its commands."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.helpers.git_servers import program

RSYNC: Final = (
    (Path(__file__).parent.parent / "docs/mirrors.md").read_text().partition("\n## rsync\n")[2].partition("\n## ")[0]
)
SCRIPT: Final = textwrap.dedent("".join(re.findall(r"^    #!/bin/sh\n(?:    .+\n)+", RSYNC, re.MULTILINE)))
COMMANDS: Final = ("flock", "readlink", "rm", "rsync", "sync", "ln", "mv")
CALLS: Final = 8  # of one run: two of rsync


def page_script(folder: Path) -> Path:
    """Write the script of the page for a mirror in a new folder, and return its path."""
    folder.mkdir(parents=True)
    script = folder / "copy-boot"
    script.write_text(SCRIPT.replace("/srv/gitboot", str(folder)).replace(":www-data", f":{os.getegid()}"))
    script.chmod(0o755)
    return script


class CopyScript:
    """The script for a mirror in ``folder``, and the commands that it calls: each of them is counted."""

    def __init__(self, folder: Path, commands: Path) -> None:
        self.current, self._commands, self._script = folder / "current", commands, page_script(folder)
        commands.mkdir()
        for name in COMMANDS:
            path = commands / name
            path.write_text(
                f"#!/bin/sh\necho {name} >> {commands}/calls\nnumber=$(wc -l < {commands}/calls)\n"
                f"if [ -e {commands}/kill-$number ]; then kill -9 $PPID; exit 1; fi\n"
                f"if [ -p {commands}/wait-$number ]; then read line < {commands}/wait-$number; fi\n"
                f'exec {program(name, name)} "$@"\n'
            )
            path.chmod(0o755)

    def run(self, source: Path) -> int:
        """Copy ``source``, and return the exit status."""
        return self._start(source).wait(600)

    def run_killed(self, source: Path, call: int) -> int:
        """Kill the script before a call, from 1 on, and return the exit status."""
        (self._commands / f"kill-{call}").touch()
        try:
            return self.run(source)
        finally:
            (self._commands / f"kill-{call}").unlink()

    def run_halted(self, source: Path, call: int, meanwhile: Callable[[], None]) -> int:
        """Do something ``meanwhile``, before a call, from 1 to `CALLS`, and return the exit status."""
        os.mkfifo(gate := self._commands / f"wait-{call}")
        try:
            running = self._start(source)
            with gate.open("w"):  # opened when the command waits
                meanwhile()
            return running.wait(600)
        finally:
            gate.unlink()

    def files(self) -> dict[str, bytes]:
        """Return what the mirror serves, by path below OUTPUT, if the source was OUTPUT/boot."""
        found = (path for path in self.current.rglob("*") if path.is_file())
        return {f"boot/{path.relative_to(self.current)}": path.read_bytes() for path in found}

    def _start(self, source: Path) -> subprocess.Popen[bytes]:
        (self._commands / "calls").unlink(missing_ok=True)
        environment = {**os.environ, "PATH": f"{self._commands}:{os.environ['PATH']}"}
        return subprocess.Popen([self._script, source], env=environment, stderr=subprocess.DEVNULL)
