"""Why a rendering failed, in the words of the template: the fault, its line, and what was missing where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.utils import missing

from gitboot.problems.codes import Code
from gitboot.quoting import Unquotable
from gitboot.resolve.template_sandbox import (
    FILTERS,
    NotDefined,
    TemplateFault,
    failed,
    key_of,
    kind_of,
    out_of_bounds,
    suggested,
)

FAILURES: Final = (
    *(TemplateFault, TemplateError, Unquotable),
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
)


def fault_of(failure: Exception, names: Mapping[str, object]) -> TemplateFault:
    match failure:
        case TemplateFault():
            return failure
        case NotDefined():
            return failed(_not_defined(failure, names))
        case Unquotable():
            return TemplateFault(Code.UNQUOTABLE, failure.message)
        case UnicodeEncodeError():
            return failed("half of a surrogate pair is no character")
        case _:
            too_large = isinstance(failure, RecursionError | MemoryError | OverflowError)
            return out_of_bounds("a value is too large") if too_large else failed(str(failure))


def line_of(failure: BaseException, template: Template) -> int | None:
    """The line of a template that an exception came from."""
    line = None
    traceback = failure.__traceback__
    while traceback:
        if traceback.tb_frame.f_globals.get("__jinja_template__") is template:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def _not_defined(failure: NotDefined, names: Mapping[str, object]) -> str:
    """What is missing where, and what may have been meant."""
    value, name = failure.value, failure.name
    if name is None:
        return str(failure)
    if value is missing:
        variables = names.get("vars")
        suggestion = suggested(name, names) or suggested(name, variables, "vars")
        return f"{name!s:.60} is not defined{suggestion}"
    if isinstance(value, dict | list) and (path := _path(value, names)):
        return f"{path}{key_of(name)} is not defined{suggested(name, value, path)}"
    as_filter = f": use the filter, | {name}" if name in FILTERS else ""
    return f"{kind_of(value)} has no {name!s:.60}{as_filter}"


def _path(wanted: object, value: object, path: str = "") -> str | None:
    """How a template comes to a value of its context."""
    if value is wanted:
        return path.removeprefix(".")
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return next(filter(None, (_path(wanted, each, path + key_of(key)) for key, each in items)), None)
