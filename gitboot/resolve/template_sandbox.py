"""The sandbox: what a template finds behind a dot and in brackets, and what it can call and reckon with."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NoReturn

from jinja2 import nodes
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gitboot.problems.codes import Code
from gitboot.template.budget import CALL, MAX_INTEGER, Budget, BudgetedContext
from gitboot.template.faults import TemplateFault, failed, out_of_bounds, unknown
from gitboot.template.filters import FILTERS, TESTS
from gitboot.template.metering import METERS, TokenCount, metered, written
from gitboot.template.values import Missing, kind_of


def _secret(_: str) -> NoReturn:
    raise TemplateFault(
        Code.SECRET,
        "secret() would be published with the rest; name its file in userData.secrets, and let the machine fetch "
        "urls.secrets.NAME",
    )


FUNCTIONS: Final[dict[str, Any]] = {"range": range, "secret": _secret}

_METHODS: Final[dict[type, dict[str, Any]]] = {
    dict: {
        "get": dict.get,
        "items": lambda mapping: list(mapping.items()),
        "keys": lambda mapping: list(mapping),
        "values": lambda mapping: list(mapping.values()),
    },
    str: {
        "endswith": str.endswith,
        "lower": str.lower,
        "removeprefix": str.removeprefix,
        "removesuffix": str.removesuffix,
        "split": str.split,
        "startswith": str.startswith,
        "strip": str.strip,
        "upper": str.upper,
    },
}

_SUBSCRIPTS: Final[dict[type, tuple[type, ...]]] = {
    dict: (str, int),
    list: (int, slice),
    tuple: (int, slice),
    range: (int, slice),
    str: (slice,),  # a single letter of a text is a mistake more often than not
}

_LOOP: Final = frozenset(
    {"first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0"}
)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    context_class = BudgetedContext

    def __init__(self) -> None:
        super().__init__(
            undefined=Missing,
            extensions=[TokenCount],
            finalize=written,
            keep_trailing_newline=True,
            optimized=False,  # nothing is computed while there is no budget
        )
        self.globals = dict(FUNCTIONS)
        self.filters = FILTERS | METERS
        self.tests = dict(TESTS)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        metered(template)
        template.set_environment(self)
        return template

    def getattr(self, obj: Any, attribute: str) -> Any:
        """What stands behind a dot: a key's value before a method of the same name."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        if method := _METHODS.get(type(obj), {}).get(attribute):
            return partial(method, obj)
        if isinstance(obj, LoopContext) and attribute in _LOOP:
            return getattr(obj, attribute)
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Undefined):
            obj._fail_with_undefined_error()
        try:
            if isinstance(argument, _SUBSCRIPTS.get(type(obj), ())):
                return obj[argument]
        except LookupError:
            pass
        if not isinstance(argument, str | int):
            raise failed(f"{kind_of(argument)} is no key of {kind_of(obj)}")
        name: Any = argument
        return self.undefined(obj=obj, name=name)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(function, Undefined):
            function._fail_with_undefined_error()
        if not isinstance(function, Macro | partial) and function not in FUNCTIONS.values():
            raise failed(f"{kind_of(function)} cannot be called")
        budget: Budget = context.budget
        budget.spend(CALL)
        budget.calls -= 1
        if budget.calls < 0:
            raise out_of_bounds("its macros call each other too deeply")
        text_or_mapping = function.args if isinstance(function, partial) else ()
        budget.weigh([*text_or_mapping, *args])
        result = super().call(context, function, *args, **kwargs)
        budget.calls += 1
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget: Budget = context.budget
        budget.weigh([left, right])
        if operator == "+" and (_are(str, left, right) or _are(list, left, right)):
            return left + right
        if operator == "**" or not _are(int | float, left, right):
            raise failed(f"{operator} does not take {kind_of(left)} and {kind_of(right)}")
        result = self.binop_table[operator](left, right)
        if abs(result) > MAX_INTEGER:
            raise out_of_bounds("a number is too large")
        return result

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name not in FILTERS:
            raise failed(unknown("filter", name, FILTERS))
        return super().call_filter(name, *args, **kwargs)


def _are(kind: Any, left: object, right: object) -> bool:
    """Whether both are of this kind; a boolean is no number here."""
    return not {bool} & {type(left), type(right)} and isinstance(left, kind) and isinstance(right, kind)


ENVIRONMENT: Final = _Environment()
