"""The source locations of what a commit decides for a server, and the stream that it follows: for the page."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """The documents that set the fields of a server. They follow from the commit alone, and decide nothing."""

    stream: str | None  # whose images its policy follows
    joins: int | None  # at which percentage the stream's rollout reaches it; None: it is there, or there is none
    kept: str | None  # the pin or hold that keeps it where it is
    packed: bytes  # its lines, compressed: a fleet has many that are alike

    @property
    def lines(self) -> list[list[Any]]:
        """Each: field, value, rule, reason, the maintenance under which it holds, document, place in the document.

        The place is the line within the server's own document, and a JSON pointer in other documents. Document and
        place are None if a rule adds the field.
        """
        found: list[list[Any]] = json.loads(zlib.decompress(self.packed))
        return found
