"""A Git repository that is written as fast as Git can: objects go into one pack, and no file is checked out."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

_WHO: Final = b"Bench <bench@example.net>"
_BRANCH: Final = "refs/heads/main"


class Repository:
    """A bare repository at ``path``, to which commits are streamed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._commits = 0
        subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(path)], check=True)

    def commit(self, files: Iterable[tuple[str, bytes | None]]) -> str:
        """Commit changes of these files, and return the name of the commit. None deletes a file."""
        command = ["git", "-C", str(self.path), "fast-import", "--quiet", "--done"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            self._write(process.stdin, files)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        self._commits += 1
        shown = subprocess.run(["git", "-C", str(self.path), "rev-parse", _BRANCH], check=True, capture_output=True)
        return shown.stdout.decode().strip()

    def _write(self, out: IO[bytes], files: Iterable[tuple[str, bytes | None]]) -> None:
        when = 1_790_000_000 + self._commits
        out.write(b"commit %s\ncommitter %s %d +0000\ndata 6\nChange\n" % (_BRANCH.encode(), _WHO, when))
        if self._commits:
            out.write(b"from %s^0\n" % _BRANCH.encode())
        for path, data in files:
            if data is None:
                out.write(b"D %s\n" % path.encode())
            else:
                out.write(b"M 100644 inline %s\ndata %d\n%s\n" % (path.encode(), len(data), data))
        out.write(b"done\n")
