"""Configuration files for the instances that tests start."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp


def configured(**settings: object) -> tuple[str, str]:
    """Write settings to a new configuration file; return the arguments that name the file."""
    file, path = mkstemp(suffix=".toml", dir=_folder().name)
    with open(file, "w") as writing:
        writing.writelines(f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in settings.items())
    return "--config", str(Path(path))


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="gitboot-configured-")  # removed when the tests end
