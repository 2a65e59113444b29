"""Templates: render the fleet's Jinja2 files in the sandbox."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from jinja2 import Template
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from jinja2.utils import missing

from gitboot.problems import Code
from gitboot.quoting import Unquotable
from gitboot.resolve.template_sandbox import (
    ENVIRONMENT,
    FILTERS,
    FUNCTIONS,
    MAX_BYTES,
    MAX_STEPS,
    BudgetedContext,
    NotDefined,
    TemplateFault,
    failed,
    key_of,
    kind_of,
    out_of_bounds,
    suggested,
)

__all__ = ["MAX_BYTES", "MAX_STEPS", "TemplateFault", "TemplateSet"]


class TemplateSet:
    """Template files by path, and the templates in YAML."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._sources: dict[bytes, str] = {}  # by content

    def of(self, files: Mapping[str, bytes]) -> TemplateSet:
        """Return the templates of other files. Both sets decode equal files once."""
        other = TemplateSet.__new__(TemplateSet)
        other._files = files
        other._sources = self._sources
        return other

    def render_file(self, path: str, context: Mapping[str, object]) -> str:
        try:
            return self.render_text(self._source(path), context)
        except TemplateFault as fault:
            fault.path = path
            raise

    def render_text(self, source: str, context: Mapping[str, object]) -> str:
        """Return the rendered text of a template. Text without markup stays as it is."""
        template = compiled(source)
        if isinstance(template, TemplateFault):
            raise TemplateFault(template.code, template.message, template.line)
        return template if isinstance(template, str) else rendered(template, context)

    def names(self, path: str) -> frozenset[str]:
        """Return the names that the template of a file takes from its context."""
        try:
            return names_in(self._source(path))
        except TemplateFault as fault:
            fault.path = path
            raise

    def _source(self, path: str) -> str:
        data = self._files[path]
        if data not in self._sources:
            self._sources[data] = decoded(data)
        return self._sources[data]


def decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")  # a byte order mark would be published in front of "#!ipxe"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TemplateFault(Code.TEMPLATE_SYNTAX, "it is not UTF-8", line) from error


_COMPILED: Final = 1024  # sources that stay compiled: more than a fleet has


@lru_cache(maxsize=_COMPILED)
def compiled(source: str) -> Template | str | TemplateFault:
    if len(source.encode()) > MAX_BYTES:
        return out_of_bounds(f"it has more than {MAX_BYTES:,} bytes")
    if not re.search(r"\{[{%#]", source):
        return source
    try:
        with _faults_of_syntax(), warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # Python's compiler, of {{ 1[1:] }}: rendering says it
            return ENVIRONMENT.from_string(source)
    except TemplateFault as fault:
        return fault


@lru_cache(maxsize=_COMPILED)
def names_in(source: str) -> frozenset[str]:
    """Return the names that a template takes from its context."""
    with _faults_of_syntax():
        return frozenset(find_undeclared_variables(ENVIRONMENT.parse(source)))


def rendered(template: Template, context: Mapping[str, object]) -> str:
    names = {**FUNCTIONS, **context}
    try:
        text = "".join(template.root_render_func(BudgetedContext(ENVIRONMENT, names, None, template.blocks)))
        if len(text.encode()) > MAX_BYTES:
            raise out_of_bounds(f"it renders more than {MAX_BYTES:,} bytes")
    except FAILURES as failure:
        fault = fault_of(failure, names)
        fault.line = fault.line or line_of(failure, template)
        raise fault from failure
    return text


@contextmanager
def _faults_of_syntax() -> Iterator[None]:
    try:
        yield
    except TemplateSyntaxError as error:
        raise TemplateFault(Code.TEMPLATE_SYNTAX, str(error.message), error.lineno) from error
    except (RecursionError, SyntaxError, MemoryError) as error:  # of Jinja2's parser, of Python's
        raise out_of_bounds("it is nested too deeply") from error
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise out_of_bounds("a number is too large") from error


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
    """Return the line of a template in which an exception was raised."""
    line = None
    traceback = failure.__traceback__
    while traceback:
        if traceback.tb_frame.f_globals.get("__jinja_template__") is template:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def _not_defined(failure: NotDefined, names: Mapping[str, object]) -> str:
    """Return what is missing where, and what may have been meant."""
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
    """Return how a template writes a value of its context, such as server.labels; None: it cannot."""
    if value is wanted:
        return path.removeprefix(".")
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return next(filter(None, (_path(wanted, each, path + key_of(key)) for key, each in items)), None)
