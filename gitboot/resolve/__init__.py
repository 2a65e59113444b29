"""Who boots what: fleet -> decisions (`decide`), a decision at an instant -> its plan (`plan`).

`affected` says whose decisions a commit can change: of the next one only those are made anew.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gitboot.resolve.decisions import Decisions
    from gitboot.resolve.instant import plan, transition

__all__ = ["Decisions", "plan", "transition"]

_WHERE: Final = {
    "Decisions": "gitboot.resolve.decisions",
    "plan": "gitboot.resolve.instant",
    "transition": "gitboot.resolve.instant",
}


def __getattr__(name: str) -> Any:
    """What is imported from here, with its module: who plans what was decided needs no templates."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return found
