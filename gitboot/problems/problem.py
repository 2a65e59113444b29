"""One thing that is wrong with a commit: where, what, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gitboot.text import printable


class Severity(StrEnum):
    ERROR = "error"  # the commit is refused
    WARNING = "warning"  # the commit is accepted; a person should look


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Problem:
    """One thing that is wrong with a commit: where, what, and how it is fixed."""

    path: str  # of the file in the repository, "/" between folders
    line: int  # 1-based
    column: int  # 1-based, in characters
    code: str  # "GB1004": stable, explained by `gitboot explain GB1004`
    message: str  # what was found and what was expected, without a full stop
    hint: str = ""  # what to do about it
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return printable(f"{self.path}:{self.line}:{self.column}: {self.code}: {self.message}{hint}")
