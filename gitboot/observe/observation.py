"""One fetch that was seen: of a boot, or of the path by which an installer reports."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from gitboot.model.scalars import Digest
from gitboot.render.paths import is_report


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One completed GET of an entry or of a report's path, seen by an endpoint or in a mirror's access log."""

    server: str  # "" where only the path is known
    path: str  # below the output directory
    client: str  # the address it was sent to
    at: datetime
    # Which version of the path was sent; an endpoint knows the plan, a mirror the file's own date:
    digest: Digest | None = None  # of the plan whose entry was sent
    modified: int | None = None  # when the file that was sent was published, in seconds since 1970

    def __post_init__(self) -> None:
        if (self.digest is None) == (self.modified is None):
            raise ValueError("an observation has either a plan's digest or a file's date")

    @property
    def is_report(self) -> bool:
        """Whether it is an installer's last word, as its path says, not the fetch of a boot."""
        return is_report(self.path)
