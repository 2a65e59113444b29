"""What a template may take: the bounds, and the `Budget` that one rendering spends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jinja2 import pass_context, runtime
from jinja2.runtime import Undefined

from gitboot.template.faults import failed, out_of_bounds
from gitboot.template.values import kind_of

MAX_BYTES: Final = 1024 * 1024  # of a template, and of what it renders
MAX_STEPS: Final = 100_000  # of all its loops together
MAX_WORK: Final = 1_000_000  # expressions evaluated, elements looked at, and each 16 characters of text
MAX_TOKENS: Final = 10_000  # of a template; the text between two expressions is one
MAX_NESTING: Final = 50  # of expressions and blocks, of lists in lists, of macros that call each other
MAX_BRACKETS: Final = 25  # in each other
MAX_INTEGER: Final = 2**63 - 1

CALL: Final = 4  # of the work: a filter, test, macro or function takes longer than other expressions


class Budget:
    """What a rendering may still do."""

    __slots__ = ("calls", "steps", "work")

    def __init__(self) -> None:
        self.calls, self.steps, self.work = MAX_NESTING, MAX_STEPS, MAX_WORK

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            raise out_of_bounds("it does more than any boot file can need")

    def step(self, work: int) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise out_of_bounds(f"its loops take more than {MAX_STEPS:,} steps")
        self.spend(work)

    def weigh(self, value: object, depth: int = 0) -> None:
        """Spend what it takes to look at all of a value, each part as often as it stands there."""
        if isinstance(value, str):
            self.spend(1 + len(value) // 16)
        elif type(value) in _NUMBERS or value is None:
            pass
        elif isinstance(value, (list, tuple)):
            self.spend(1 + len(value))
            if depth == MAX_NESTING:
                raise out_of_bounds("its lists are nested too deeply")
            for element in value:
                self.weigh(element, depth + 1)
        elif isinstance(value, dict):
            self.weigh(list(value), depth)
            self.weigh(list(value.values()), depth)
        elif isinstance(value, range):
            self.spend(1 + len(value))
        elif isinstance(value, Undefined):
            str(value)
        else:
            raise failed(f"{kind_of(value)} is not a value")


_NUMBERS: Final = frozenset({bool, int, float})


class BudgetedContext(runtime.Context):
    """The names that a rendering sees, and its budget."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = Budget()


def priced(function: Any) -> Callable[..., Any]:
    """A filter or test that spends what its values weigh; ``function`` is linear in them."""
    return priced_in_context(lambda _, *args, **kwargs: function(*args, **kwargs))


def priced_in_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a function that wants the context first."""

    @pass_context
    def spending(context: BudgetedContext, *args: Any, **kwargs: Any) -> Any:
        context.budget.spend(CALL)
        for value in (*args, *kwargs.values()):
            context.budget.weigh(value)
        return function(context, *args, **kwargs)

    return spending
