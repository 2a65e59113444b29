"""The digest of the gitboot that runs, for the keys of what it stores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

# Libraries whose results are cached: they read, check and encode documents and templates.
_LIBRARIES: Final = ("jinja2", "markupsafe", "msgspec", "pydantic", "pydantic_core", "pygit2", "yaml")


@cache
def this_program() -> bytes:
    """Return a digest of gitboot's own files, of Python's version and of the versions of the libraries beside it.

    The digest differs for two checkouts of one version of gitboot if a file differs. Call it early: after an upgrade
    it would describe the new files, while the process still runs the old ones.
    """
    program = sha256(repr(sys.version).encode())
    top = os.path.dirname(__file__)
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in sorted(names):
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
            program.update(repr((folder[len(top) :], name, len(content))).encode() + content)
    for name in sorted(_installed_beside(_LIBRARIES)):
        program.update(repr(name).encode())
    return program.digest()


def _installed_beside(libraries: Iterable[str]) -> set[str]:
    """Return the names of all distributions in the folders of these libraries, which end in a version."""
    specs = filter(None, map(find_spec, libraries))
    folders = {Path(spec.origin).parent.parent for spec in specs if spec.origin is not None}
    return {name for folder in folders for name in os.listdir(folder) if name.endswith(("-info", ".egg"))}
