"""gitboot.model.scalar_from_document."""

from __future__ import annotations

from typing import TypeAlias

Step: TypeAlias = str | int


Path: TypeAlias = tuple[Step, ...]  # ("spec", "interfaces", 0, "mac")
