"""Who types a command: what the ledger notes beside a reason."""

from __future__ import annotations

import getpass
import os


def operator() -> str:
    """The user's name; in a container, a user that has none is a number: ``uid 65532``."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an OSError since Python 3.13
        return f"uid {os.getuid()}"
