"""A separate Debian below a folder: its programs see nothing else except the network of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.helpers.git_repositories import program

RELEASE: Final = "bookworm"
# All of it runs in a namespace: no mount is left.
_ENTER: Final = """
set -eu
root=$1 mode=$2; shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
while [ "$1" != -- ]; do mount --bind "$1" "$root$2"; shift 2; done
shift
[ "$mode" = rw ] || mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
exec chroot "$root" "$@"
"""
_NO_RIGHTS: Final = ("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all")


@dataclass(frozen=True)
class Debian:
    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, *command: str, user: str | None = None, volumes: Mapping[str, Path] | None = None) -> list[str]:
        """Return the command that runs a command in the Debian, as root or as a user without capabilities.

        A user is a name, ``UID:GID``, or ``UID:GID:GROUP`` with another group. With ``volumes``, a map from folders
        there to folders of this machine, only these and /tmp can be written.
        """
        mode = "rw" if volumes is None else "ro"
        binds = [str(path) for inside, outside in (volumes or {}).items() for path in (outside, inside)]
        enter = [program("unshare", "util-linux"), "--mount", "bash", "-c", _ENTER, "-", str(self.root), mode, *binds]
        return [*enter, "--", *_list_setpriv_arguments(user), *command]

    def run(
        self, *command: str, user: str | None = None, volumes: Mapping[str, Path] | None = None, ends: int = 0
    ) -> str:
        """Run a command, check its exit code, and return its output."""
        started = self.command(*command, user=user, volumes=volumes)
        done = subprocess.run(started, capture_output=True, text=True, check=False, env=self._environment())
        assert done.returncode == ends, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def run_in_background(self, *command: str, user: str, volumes: Mapping[str, Path]) -> Iterator[None]:
        with subprocess.Popen(self.command(*command, user=user, volumes=volumes), env=self._environment()) as process:
            try:
                yield
            finally:
                process.terminate()

    def _environment(self) -> dict[str, str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", **self.environment}


def _list_setpriv_arguments(user: str | None) -> list[str]:
    if user is None:
        return []
    uid, gid, group = (*user.split(":"), "", "")[:3]
    groups = f"--groups={group}" if group else "--clear-groups" if gid else "--init-groups"
    return ["setpriv", f"--reuid={uid}", f"--regid={gid or uid}", groups, *_NO_RIGHTS]


def build_archive(archive: Path) -> None:
    """Write a minimal Debian with only what `apt` needs, as an archive."""
    make = [program("mmdebstrap", "mmdebstrap"), "--quiet", "--variant=apt", RELEASE, str(archive)]
    done = subprocess.run(make, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def unpack(archive: Path, root: Path) -> Debian:
    root.mkdir()
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", root, "--numeric-owner"], check=True)
    (root / "etc" / "resolv.conf").write_bytes(Path("/etc/resolv.conf").read_bytes())
    return Debian(root)
