"""Where what a commit says of a server is written, and by which stream: for people, who look for the line to edit."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from typing import Any, Final

_MOST: Final = 20  # commits that are remembered of a server


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """Where one server's fields are written. It decides nothing: the same fields may be written elsewhere."""

    revision: str  # in which the files and lines are these; later ones may have moved them
    stream: str | None  # whose images its policy follows
    joins: int | None  # at which percentage the stream's rollout reaches it; None: it is there, or there is none
    kept: str | None  # the pin or hold that keeps it where it is
    packed: bytes  # its lines, compressed: a fleet has many that are alike
    earlier: tuple[str, ...] = ()  # the commits by which it was told before, the newest first, as far as is known

    def after(self, before: Written | None) -> Written:
        """The same, once another was told before it."""
        return replace(self, earlier=(before.revision, *before.earlier)[:_MOST]) if before is not None else self

    @property
    def lines(self) -> list[list[Any]]:
        """Each: field, value, rule, why, the maintenance under which it holds, document, file, line."""
        found: list[list[Any]] = json.loads(zlib.decompress(self.packed))
        return found
