"""Configuration files and credentials for BMCs of the instances that tests start."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp
from typing import Final


def configured(**settings: object) -> tuple[str, str]:
    """Write settings to a new configuration file; return the arguments that name the file."""
    file, path = mkstemp(suffix=".toml", dir=_folder().name)
    with open(file, "w") as writing:
        writing.writelines(f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in settings.items())
    return "--config", str(Path(path))


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="gitboot-configured-")  # removed when the tests end


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
