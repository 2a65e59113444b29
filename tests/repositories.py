"""Git repositories as people make them: with git itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from gitboot.load import Revision

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_AUTHOR_NAME": "Ada Lovelace",
    "GIT_AUTHOR_EMAIL": "ada@example.net",
    "GIT_AUTHOR_DATE": "2026-11-20T22:00:00+01:00",
    "GIT_COMMITTER_NAME": "Merge Bot",
    "GIT_COMMITTER_EMAIL": "bot@example.net",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",  # a commit starts no program that looks whether there is something to tidy up
    "GIT_CONFIG_KEY_0": "maintenance.auto",
    "GIT_CONFIG_VALUE_0": "false",
    "HOME": os.devnull,
}


class Work:
    """A work tree with its repository, on branch main."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, text: str = "") -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=ENVIRONMENT, input=text, capture_output=True, text=True, check=True
        ).stdout.strip()

    def write(self, files: Mapping[str, str | None]) -> None:
        """Write files; None removes one."""
        for name, text in files.items():
            path = self.path / name
            if text is None:
                path.unlink()
                if path.parent != self.path and not any(path.parent.iterdir()):
                    path.parent.rmdir()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def commit(self, files: Mapping[str, str | None] | None = None, message: str = "Change") -> Revision:
        self.write(files or {})
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", f"--message={message}")
        return self.head

    @property
    def head(self) -> Revision:
        return Revision(self.git("rev-parse", "HEAD"))

    def bare(self, path: Path) -> Path:
        """A bare repository with the same branches and tags, which ``git push`` goes to from now on."""
        self.git("clone", "--quiet", "--bare", str(self.path), str(path))
        self.git("remote", "add", "origin", str(path))
        return path
