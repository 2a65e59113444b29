"""Program digest: identify the running program by its sources and its libraries."""

from __future__ import annotations

import os
import sys
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

# Libraries that read, check and encode documents and templates. Cached results depend on these libraries.
_LIBRARIES: Final = ("jinja2", "markupsafe", "msgspec", "pygit2", "yaml")


@cache
def compute_program_digest() -> bytes:
    """Return a digest of gitboot's source files, Python's version and the versions of installed libraries.

    Two checkouts of the same version have different digests if a file differs. Call this function at the start of a
    process. After an upgrade, it would return the digest of the new files although the process still runs the old
    files.
    """
    digest = sha256(repr(sys.version).encode())
    top = os.path.dirname(__file__)
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not os.path.isfile(path):  # for example the dangling symlink that Emacs creates to lock a file
                continue
            with open(path, "rb") as file:
                content = file.read()
            digest.update(repr((folder[len(top) :], name, len(content))).encode() + content)
    # Include the names of all distributions in the libraries' folders. The names contain the versions.
    specs = filter(None, map(find_spec, _LIBRARIES))
    library_folders = {Path(spec.origin).parent.parent for spec in specs if spec.origin is not None}
    for name in sorted({entry for folder in library_folders for entry in os.listdir(folder)}):
        if name.endswith(("-info", ".egg")):
            digest.update(repr(name).encode())
    return digest.digest()
