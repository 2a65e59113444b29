"""Sites whose one-time boots another host served alone (`gitboot serve --sole-for`, as 2fefe59 had it).

That host may have served boots that the instance never learned of. Until a person has brought its fetches to the
instance and deleted the files that state the claim, no install boot is offered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gitboot.fetchlog.spool import aside
from gitboot.stoppage import SoleClaim

_INSTANCE_FILE: Final = Path(".forwarded", "soles")  # in the instance's spool: the host's spool, by site
_HOST_FILES: Final = ("sole", "sole.left")  # in the spool of that host itself


def claims_in(folders: Iterable[Path], fetch_log: Path) -> tuple[SoleClaim, ...]:
    """Return the claims that the files in some spools state, by file. A claim without a site has ended.

    ``fetch_log`` is where the fetches of the other host belong: the spool that is read today.
    """
    files = [file for folder in folders for file in (folder / _INSTANCE_FILE, *_host_files(folder))]
    found = ((file, _sites_in(file)) for file in dict.fromkeys(files))
    return tuple(SoleClaim(str(file), sites, str(fetch_log)) for file, sites in found if sites is not None)


def _host_files(folder: Path) -> list[Path]:
    return [aside(folder) / name for name in _HOST_FILES]


def _sites_in(file: Path) -> tuple[str, ...] | None:
    """Return the sites that a file claims; None if there is no file, or if its claims have ended."""
    try:
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
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
