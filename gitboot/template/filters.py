"""What a template can do with a value: behind a bar the `FILTERS`, behind ``is`` the `TESTS`, and nothing else."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from jinja2 import pass_context
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Undefined
from jinja2.tests import TESTS as JINJA_TESTS

from gitboot.quoting import command_line, grub_arguments, grub_word, ipxe_arguments, ipxe_word, kernel_argument
from gitboot.template.budget import BudgetedContext, priced, priced_in_context
from gitboot.template.faults import failed
from gitboot.template.values import Missing, as_text, elements_of


def _of_elements(name: str, *, environment: bool = False) -> Callable[..., Any]:
    """Jinja2's own filter of lists; it wants the context or the environment first."""
    function = JINJA_FILTERS[name]

    def of_elements(context: BudgetedContext, value: object, *args: Any, **kwargs: Any) -> list[Any]:
        given = context.environment if environment else context
        return list(function(given, elements_of(value), *args, **kwargs))

    return priced_in_context(of_elements)


def _default(value: object, default: object = "", boolean: bool = False) -> object:
    return default if value is None or isinstance(value, Undefined) or (boolean and not value) else value


def _first(value: object) -> object:
    elements = elements_of(value)
    return elements[0] if elements else Missing("the list is empty, so it has no first element")


def _last(value: object) -> object:
    elements = elements_of(value)
    return elements[-1] if elements else Missing("the list is empty, so it has no last element")


def _indent(context: BudgetedContext, text: str, width: int = 4, first: bool = False) -> str:
    context.budget.spend((text.count("\n") + 1) * abs(width) // 16)
    indented = re.sub(r"(?<=\n)(?=[^\n])", " " * width, text)
    return " " * width + indented if first else indented


def _integer(value: object) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    raise failed(f"{value!r:.60} is not a whole number")


@pass_context
def joined(context: BudgetedContext, values: Sequence[object], separator: str = "") -> str:
    """The values' texts in one, which costs what it is long."""
    texts = [as_text(value) for value in values]
    context.budget.spend((sum(map(len, texts)) + len(separator) * len(texts)) // 16)
    return separator.join(texts)


def _join(context: BudgetedContext, value: object, separator: str = "") -> str:
    return joined(context, elements_of(value), separator)


def _replace(context: BudgetedContext, text: str, old: str, new: str) -> str:
    context.budget.spend(text.count(old) * len(new) // 16)
    return text.replace(old, new)


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _data_url(text: str) -> str:
    """A file's contents for Ignition: RFC 2397, as its specification asks for it."""
    return f"data:;base64,{_base64(text)}"


def _kubelet_labels(labels: Mapping[str, str]) -> str:
    """The value of kubelet's ``--node-labels``."""
    return ",".join(f"{key}={as_text(value)}" for key, value in sorted(labels.items()))


def _kubelet_taints(taints: Iterable[Mapping[str, str]]) -> str:
    """The value of kubelet's ``--register-with-taints``."""
    return ",".join(f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}" for taint in taints)


def _quoted(word: Callable[[str], str], arguments: Callable[[Sequence[str]], str]) -> Callable[..., Any]:
    """One value as a word, a list of kernel arguments as the rest of a line."""
    return priced(lambda value: arguments(value) if isinstance(value, list | tuple) else word(as_text(value)))


FILTERS: Final[dict[str, Any]] = {
    "b64encode": priced(_base64),
    "count": priced(len),
    "d": _default,
    "data_url": priced(_data_url),
    "default": _default,
    "dictsort": priced(JINJA_FILTERS["dictsort"]),
    "first": priced(_first),
    "grub": _quoted(grub_word, grub_arguments),
    "indent": priced_in_context(_indent),
    "int": priced(_integer),
    "ipxe": _quoted(ipxe_word, ipxe_arguments),
    "items": priced(lambda mapping: list(mapping.items())),
    "join": priced_in_context(_join),
    "kernel": _quoted(kernel_argument, command_line),
    "kubelet_labels": priced(_kubelet_labels),
    "kubelet_taints": priced(_kubelet_taints),
    "last": priced(_last),
    "length": priced(len),
    "list": priced(lambda value: list(elements_of(value))),
    "lower": priced(lambda value: as_text(value).lower()),
    "map": _of_elements("map"),
    "reject": _of_elements("reject"),
    "rejectattr": _of_elements("rejectattr"),
    "replace": priced_in_context(_replace),
    "select": _of_elements("select"),
    "selectattr": _of_elements("selectattr"),
    "sort": _of_elements("sort", environment=True),
    "string": priced(lambda value: as_text(value)),
    "tojson": priced(lambda value: json.dumps(value, sort_keys=True)),  # without a width, which could be any number
    "trim": priced(lambda value: as_text(value).strip()),
    "unique": _of_elements("unique", environment=True),
    "upper": priced(lambda value: as_text(value).upper()),
}

_PRICED_TESTS: Final = (
    "== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in "
    "boolean false integer mapping none number sequence string true"
)

TESTS: Final[dict[str, Any]] = {
    **{name: JINJA_TESTS[name] for name in ("defined", "undefined")},
    **{name: priced(JINJA_TESTS[name]) for name in _PRICED_TESTS.split()},
}
