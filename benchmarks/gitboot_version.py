"""A gitboot that is measured: its Python, its commit, and the commands and documents that differ between versions."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Spelling:
    """The commands and documents of a version that differ from other versions."""

    version: str  # the command that prints the version
    settings_in_file: bool  # else the limits of guards are options of `gitboot run`
    fleet_spec: str  # lines of the Fleet document that let machines of a benchmark boot without an endpoint


NOW: Final = Spelling(
    version="--version", settings_in_file=True, fleet_spec="  serving: {oneTimeBoots: Copies, lateEnds: Accept}\n"
)
BEFORE_SETTINGS: Final = Spelling(version="version", settings_in_file=False, fleet_spec="")

# The guards accept every commit of a benchmark, and its files may be in memory.
_SETTINGS: Final = {"max-update-percent": "100", "max-reinstalls": "1000000000", "accept-filesystem": "tmpfs"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Gitboot:
    """One version of gitboot."""

    name: str  # in tables: "now", or a commit
    python: str
    commit: str
    python_version: str
    spelling: Spelling = NOW

    def command(self, *arguments: str) -> tuple[str, ...]:
        # -P: else Python imports the gitboot of the directory from which the benchmarks run.
        return (self.python, "-P", "-m", "gitboot", *arguments)

    def run_options(self, config: Path, more: str = "") -> tuple[str, ...]:
        """Return the options of `gitboot run` with the settings of a benchmark. ``more`` are lines of TOML."""
        if not self.spelling.settings_in_file:
            return tuple(word for name, value in _SETTINGS.items() for word in (f"--{name}", value))
        lines = (
            f"max-update-percent = {_SETTINGS['max-update-percent']}",
            f"max-reinstalls = {_SETTINGS['max-reinstalls']}",
            f'accept-filesystem = ["{_SETTINGS["accept-filesystem"]}"]',
        )
        config.write_text("".join(f"{line}\n" for line in lines) + more)
        return "--config", str(config)


_DESCRIBE: Final = (
    "import gitboot, platform; print(gitboot.__file__, gitboot.__version__, platform.python_version(), sep='\\n')"
)


def find_gitboot(python: str = sys.executable, name: str = "") -> Gitboot:
    """Return the gitboot that a Python imports. Without a name, its commit is its name."""
    imported, version, python_version = _output(python, "-P", "-c", _DESCRIBE).splitlines()
    describe = ["git", "-C", str(Path(imported).parent), "rev-parse", "--short=7", "HEAD"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip() or version
    help_text = _output(python, "-P", "-m", "gitboot", "run", "--help")
    spelling = BEFORE_SETTINGS if "--max-update-percent" in help_text else NOW
    return Gitboot(name=name or commit, python=python, commit=commit, python_version=python_version, spelling=spelling)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
