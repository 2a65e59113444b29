"""Credentials for BMCs, as an instance finds them: and its word that BMCs of this machine may be sent them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HERE: Final = """\
networks = ["127.0.0.0/8", "::1"]
http = true
unverified = true
repository-authorities = true
"""


def give_credentials(
    directory: Path, name: str = "rack", *, user: str = "root", password: str, trust: str = HERE
) -> None:
    """Leave user and password under ``name``, and what all credentials there may be used for."""
    (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / name / "username").write_text(f"{user}\n")
    (directory / name / "password").write_text(f"{password}\n")
    (directory / "access.toml").write_text(trust)
