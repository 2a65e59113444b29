"""Sites whose one-time boots another host served alone (`gitboot serve --sole-for`, as 2fefe59 had it).

That host may have served boots that this spool's instance never learned of. Until a person has brought its fetches here
and deleted the files that state the claim, no install boot is offered.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from gitboot.observe.spool import aside
from gitboot.stoppage import SoleClaim

_INSTANCE_FILE: Final = Path(".forwarded", "soles")  # in the instance's spool: the host's spool, by site
_HOST_FILES: Final = ("sole", "sole.left")  # in the spool of that host itself


def claims_in(folder: Path) -> tuple[SoleClaim, ...]:
    """Return the claims that the files of a spool state, by file. A claim without a site has ended."""
    found = []
    if (sites := _sites_in(folder / _INSTANCE_FILE)) is not None:
        found.append(SoleClaim(str(folder / _INSTANCE_FILE), sites))
    for name in _HOST_FILES:
        if (sites := _sites_in(aside(folder) / name)) is not None:
            found.append(SoleClaim(str(aside(folder) / name), sites))
    return tuple(found)


def _sites_in(file: Path) -> tuple[str, ...] | None:
    """Return the sites that a file claims; None if there is no file, or if its claims have ended."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        return ()
    with suppress(ValueError):
        match json.loads(content):
            case {"site": str(site)}:
                return (site,)
            case dict(claimed):
                return tuple(sorted(map(str, claimed))) or None
    return ()
