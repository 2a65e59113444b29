"""The files by which a host without gitboot runs the mirror program: the program, a systemd service and its timer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import gitboot.publish.mirror_program
from gitboot.errors import UsageError

PROGRAM: Final = "gitboot-mirror.py"
KEY: Final = "root.pub"
_NAME: Final = "gitboot-mirror"
_INSTALLED: Final = f"/usr/local/lib/{_NAME}"  # where the operator places the program and the key
_PLAIN: Final = re.compile(r"[A-Za-z0-9@:/._=+-]+")

_SERVICE: Final = """\
# Copies boot files to this mirror, verifies them, and ends maintenance windows on time. The timer starts it.
[Unit]
Description=gitboot mirror: copies and verifies boot files, and ends maintenance windows
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I {installed}/{program} \\
    --from {source} --to {folder} --key {installed}/{key} --state /var/lib/{name}/state
User={name}
StateDirectory={name}
StateDirectoryMode=0700
ReadWritePaths={written}
UMask=0027

CapabilityBoundingSet=
LockPersonality=yes
MemoryDenyWriteExecute=yes
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""

_TIMER: Final = """\
# Starts the copy again 30 seconds after the last one has ended. A window ends at most so much later than it should.
[Unit]
Description=gitboot mirror: every 30 seconds

[Timer]
OnBootSec=5s
OnUnitInactiveSec=30s
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def mirror_files(source: str, folder: str, keys: str) -> dict[str, bytes]:
    """Return what to place at a mirror, by file name. ``keys`` is the text of the public keys. Raises `UsageError`."""
    if not folder.startswith("/"):
        raise UsageError(f"{folder}: name the absolute path of the folder that the mirror's web server serves")
    service = _SERVICE.format(
        installed=_INSTALLED,
        program=PROGRAM,
        key=KEY,
        name=_NAME,
        source=_word(source.replace("$", "$$")),
        folder=_word(folder.replace("$", "$$")),
        written=_word(folder),
    )
    return {
        PROGRAM: Path(gitboot.publish.mirror_program.__file__).read_bytes(),
        KEY: keys.encode(),
        f"{_NAME}.service": service.encode(),
        f"{_NAME}.timer": _TIMER.encode(),
    }


def _word(text: str) -> str:
    """Return a word of a unit file: systemd.syntax(7), Quoting, and systemd.unit(5), Specifiers.

    In a command line, `$$` stands for `$`: systemd.service(5).
    """
    if _PLAIN.fullmatch(text):
        return text
    if not text.isprintable():
        raise UsageError(f"{text!r} has characters that a unit file cannot have")
    for special, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        text = text.replace(special, written)
    return f'"{text}"'
