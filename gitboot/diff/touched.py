"""What of two commits can differ, as far as that is known before they are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gitboot.diff.extent import Label
from gitboot.fleet.resources import Id

GROUPING: Final = ("site", "role")  # the labels whose values are groups of their own


@dataclass(frozen=True, kw_only=True, slots=True)
class Touched:
    """What of two commits can differ: all else is the same in both, and need not be compared."""

    servers: frozenset[str]  # of either commit
    documents: frozenset[Id]  # and files, of kind "file"
    sizes: Mapping[Label, int]  # how many servers of the old commit have a label of `GROUPING`
