"""One template: read, compiled and rendered."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jinja2 import Template
from jinja2.exceptions import TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from gitboot.problems.codes import Code
from gitboot.resolve.template_sandbox import (
    ENVIRONMENT,
    FUNCTIONS,
    MAX_BYTES,
    BudgetedContext,
    TemplateFault,
    out_of_bounds,
)
from gitboot.template.diagnosis import FAILURES, fault_of, line_of


def decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")  # a byte order mark would be published in front of "#!ipxe"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TemplateFault(Code.TEMPLATE_SYNTAX, "it is not UTF-8", line) from error


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


def names_in(source: str) -> frozenset[str]:
    """The names that a template takes from its context."""
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
