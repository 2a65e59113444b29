"""Mirror host: the program, the key and the systemd units to install on a mirror's host."""

from __future__ import annotations

import re
from inspect import getsource
from typing import Final

from gitboot.errors import UsageError
from gitboot.publish import mirror_program, signed_list_reader

PROGRAM: Final = "gitboot-mirror.py"
KEY: Final = "root.pub"
_NAME: Final = "gitboot-mirror"
_INSTALLED: Final = f"/usr/local/lib/{_NAME}"  # the folder where the operator installs the program and the key
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


def render_mirror_files(source: str, folder: str, keys: str) -> dict[str, bytes]:
    """Return the files to install on a mirror's host, by name. ``keys`` is the text of the public keys.

    Raises `UsageError` if ``folder`` is not an absolute path, or if ``source`` or ``folder`` contains characters that a
    unit file cannot contain.
    """
    if not folder.startswith("/"):
        raise UsageError(
            f"{folder} is not an absolute path: give the absolute path of the folder that the "
            "mirror's web server serves"
        )
    service = _SERVICE.format(
        installed=_INSTALLED,
        program=PROGRAM,
        key=KEY,
        name=_NAME,
        source=_quote_word(source.replace("$", "$$")),
        folder=_quote_word(folder.replace("$", "$$")),
        written=_quote_word(folder),
    )
    return {
        PROGRAM: join_program(),
        KEY: keys.encode(),
        f"{_NAME}.service": service.encode(),
        f"{_NAME}.timer": _TIMER.encode(),
    }


def join_program() -> bytes:
    """Return the mirror program as one file that contains the source of the signed list reader instead of an import."""
    before, _, after = getsource(mirror_program).partition("from gitboot.publish.signed_list_reader import (")
    return (before + getsource(signed_list_reader) + after.partition(")\n")[2]).encode()


def _quote_word(text: str) -> str:
    """Quote a word for a unit file, as described in systemd.syntax(7), Quoting, and systemd.unit(5), Specifiers.

    In a command line, the caller must also replace `$` with `$$` (systemd.service(5)).
    """
    if re.fullmatch(r"[A-Za-z0-9@:/._=+-]+", text):
        return text
    if not text.isprintable():
        raise UsageError(f"{text!r} contains characters that are not allowed in a systemd unit file")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
