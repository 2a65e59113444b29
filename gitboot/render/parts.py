"""Files that are no server's own, and of which a change of one server makes a few anew: the page's, and records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gitboot.render.paths import Files

PAGE: Final = "ops/pages/"
RECORDS: Final = "ops/records/"


@dataclass(frozen=True, kw_only=True, slots=True)
class PartFiles:
    """Such files, as far as they may have changed."""

    files: Files = field(default_factory=dict)
    gone: frozenset[str] = frozenset()  # paths that there were
    is_whole: bool = False  # whether there are no others

    @property
    def is_as_it_was(self) -> bool:
        return not (self.files or self.gone or self.is_whole)

    def then(self, later: PartFiles) -> PartFiles:
        """Both of them, the later one last."""
        if later.is_whole:
            return later
        return PartFiles(
            files={path: file for path, file in {**self.files, **later.files}.items() if path not in later.gone},
            gone=(self.gone - later.files.keys()) | later.gone,
            is_whole=self.is_whole,
        )


AS_IT_WAS: Final = PartFiles()


def is_of_part(path: str) -> bool:
    """Whether a file that is no server's is one of these."""
    return path.startswith((PAGE, RECORDS))
