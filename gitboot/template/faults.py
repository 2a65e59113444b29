"""What is wrong with a template, and what may have been meant."""

from __future__ import annotations

from collections.abc import Mapping

from gitboot.problems.codes import Code
from gitboot.text import near


class TemplateFault(Exception):
    """A template that cannot be read, or not be rendered with these values."""

    def __init__(self, code: Code, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.path: str | None = None  # None where the template stands in the YAML itself
        self.line = line  # 1-based, in the template


def failed(message: str, line: int | None = None) -> TemplateFault:
    return TemplateFault(Code.TEMPLATE_FAILED, message, line)


def out_of_bounds(message: str, line: int | None = None) -> TemplateFault:
    return TemplateFault(Code.TEMPLATE_BOUNDS, message, line)


def unknown(what: str, name: str, known: Mapping[str, object]) -> str:
    return f"there is no {what} {name:.60}{suggested(name, known)}"


def suggested(name: object, known: object, path: str = "") -> str:
    if not isinstance(known, dict) or not isinstance(name, str) or len(name) > 60:
        return ""
    meant = near(name, (key for key in known if isinstance(key, str)))
    return f": did you mean {(path + key_of(meant)).removeprefix('.')}?" if meant is not None else ""


def key_of(key: object) -> str:
    return f".{key:.60}" if isinstance(key, str) and key.isidentifier() else f"[{key!r:.60}]"
