"""docs/first-hour.md, typed into a shell, line by line: what is printed is what stands there.

Where it is something else: ``pytest tests/docs/test_first_hour.py --write-first-hour``, then read the page.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.forked_commands import for_shells
from tests.helpers.git_repositories import ENVIRONMENT

PAGE: Final = Path(__file__).parents[2] / "docs" / "first-hour.md"

_BLOCK: Final = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_TYPED: Final = re.compile(r"^(\$ .*)\n(?:(?!\$ ).*\n)*", re.MULTILINE)
_END: Final = "\x1e"
# What is another each time, or changes with what is rendered: instants, commits, digests.
_OTHER: Final = re.compile(r"\d{4}-\d\d-\d\d(?:T[\d:.]+Z)?|\b(?:[0-9a-f]{9}|[0-9a-f]{12}|[0-9a-f]{40}|[0-9a-f]{64})\b")


def played(text: str, folder: Path) -> str:
    """The page with what its commands print here; a code other than 0 stands in a line of its own."""
    program = folder / "bin" / "gitboot"
    program.parent.mkdir()
    program.write_text(for_shells())
    program.chmod(0o755)
    (folder / "hour").mkdir()
    commands = [line[2:] for block in _BLOCK.findall(text) for line in block.splitlines() if line.startswith("$ ")]
    ended = f"code=$?; [ $code = 0 ] || echo \"(exit code $code)\"; printf '{_END}'"
    typed = "\n".join(f"{command}\n{ended}" for command in commands)
    environment = {
        **ENVIRONMENT,
        "PATH": f"{program.parent}:{ENVIRONMENT['PATH']}",
        "HOME": str(folder),
        "GITBOOT_ACCEPT_FILESYSTEM": "tmpfs ramfs overlay",
        "COLUMNS": "110",
    }
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{typed}"],
        cwd=folder / "hour",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    shown = iter(done.stdout.replace(str(folder / "hour"), "~").split(_END))
    return _BLOCK.sub(lambda block: _TYPED.sub(lambda line: f"{line[1]}\n{_tidy(next(shown))}", block[0]), text)


def _tidy(printed: str) -> str:
    printed, _, _ = printed.partition(
        "\nWarning: nothing says from where pip can install this gitboot"
    )  # in a checkout
    lines = "\n".join(line.rstrip() for line in printed.rstrip().splitlines())
    return f"{lines}\n" if lines else ""


def test_the_page_shows_what_is_printed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    now = played(text, tmp_path)
    if request.config.getoption("--write-first-hour"):
        PAGE.write_text(now)
        return
    assert _OTHER.sub("…", now) == _OTHER.sub("…", text)
