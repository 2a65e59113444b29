"""Git repositories as people make them: with git itself, but for the plainest commits, which libgit2 makes faster."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import pygit2

from gitboot.fleet.revision import Revision

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
_ADA = pygit2.Signature(
    ENVIRONMENT["GIT_AUTHOR_NAME"],
    ENVIRONMENT["GIT_AUTHOR_EMAIL"],
    int(datetime.fromisoformat(ENVIRONMENT["GIT_AUTHOR_DATE"]).timestamp()),
    60,  # minutes: its zone
)


class Work:
    """A work tree with its repository, on branch main."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if not (path / ".git").exists():  # that is of a linked work tree
            pygit2.init_repository(str(path), initial_head="main")

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
        repository = pygit2.Repository(str(self.path))  # in this process: git would be started three times
        repository.index.add_all()
        repository.index.write()
        parents = [] if repository.head_is_unborn else [repository.head.target]
        bot = pygit2.Signature(ENVIRONMENT["GIT_COMMITTER_NAME"], ENVIRONMENT["GIT_COMMITTER_EMAIL"])
        tree = repository.index.write_tree()
        return Revision(str(repository.create_commit("HEAD", _ADA, bot, f"{message.strip()}\n", tree, parents)))

    @property
    def head(self) -> Revision:
        return Revision(str(pygit2.Repository(str(self.path)).head.target))

    def bare(self, path: Path) -> Path:
        """A bare repository with the same branches and tags, which ``git push`` goes to from now on."""
        self.git("clone", "--quiet", "--bare", str(self.path), str(path))
        self.git("remote", "add", "origin", str(path))
        return path
