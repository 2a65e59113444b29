"""Checkouts of a branch that is a target, by the script in docs/mirrors.md."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path
from typing import Final

from tests.helpers.repositories import ENVIRONMENT

_PAGE: Final = Path(__file__).parents[1] / "docs" / "mirrors.md"


def checkout_script(boots: Path) -> str:
    """Return the page's script that unpacks a branch, with this folder in the place of /srv/boots."""
    (found,) = re.findall(
        r"^    #!/bin/sh\n(?:    .*\n)*?    mv -T /srv/boots/link .*\n", _PAGE.read_text(), re.MULTILINE
    )
    return textwrap.dedent(found).replace("/srv/boots", str(boots))


def clone_for_checkouts(remote: Path, folder: Path) -> Path:
    """Return a bare clone in which the page's script runs."""
    clone = folder / "boots.git"
    subprocess.run(["git", "clone", "--bare", "--quiet", remote, clone], env=ENVIRONMENT, check=True)
    return clone
