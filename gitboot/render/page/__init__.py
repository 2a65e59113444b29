"""The page for operators as static files: what it is made of, and the data of each server, which scripts bring to it.

A page that was opened from a disk may fetch nothing, but it may run scripts that lie beside it: so all data are scripts
that call one function with a name and a JSON value, and nothing of them is ever taken for markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from zlib import crc32

from gitboot.render.parts import PAGE

DATA: Final = f"{PAGE}data/"
INDEX: Final = f"{PAGE}index.html"
# What no manifest lists: the instance's word on itself, and the machines that no document describes.
SAID: Final[Mapping[str, tuple[str, str]]] = {
    "ops/status.json": ("status", f"{DATA}status.js"),
    "ops/unknown.json": ("seen", f"{DATA}seen.js"),
}
SCRIPT: Final = "text/javascript; charset=utf-8"
FORMAT: Final = 2
MADE_OF: Final[Mapping[str, str]] = {
    "index.html": "text/html; charset=utf-8",
    "data.js": SCRIPT,
    "draw.js": SCRIPT,
    "page.css": "text/css; charset=utf-8",
    "page.js": SCRIPT,
    "rows.js": SCRIPT,
}


def static(name: str) -> bytes:
    """One of the files that the page is made of."""
    return Path(__file__).with_name(name).read_bytes()


def shard_of(server: str) -> str:
    """Return the shard of a server: two hexadecimal digits."""
    return f"{crc32(server.encode()) & 0xFF:02x}"


def script_of(name: str, content: bytes) -> bytes:
    """A JSON value as the page is given it, under a name of ASCII letters."""
    return b'gitboot("%b",%b);\n' % (name.encode(), content.strip())
