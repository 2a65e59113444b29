"""Who boots what: fleet -> decisions (`decide`), a decision at an instant -> its plan (`plan`).

`affected` says whose decisions a commit can change: of the next one only those are made anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gitboot.lazy import names_of

if TYPE_CHECKING:
    from gitboot.resolve.decisions import Decisions
    from gitboot.resolve.instant import plan, transition

__all__ = ["Decisions", "plan", "transition"]

_WHERE: Final = {
    "Decisions": "gitboot.resolve.decisions",
    "plan": "gitboot.resolve.instant",
    "transition": "gitboot.resolve.instant",
}
__getattr__ = names_of(__name__, _WHERE)  # who plans what was decided needs no templates
