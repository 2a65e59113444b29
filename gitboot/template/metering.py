"""A template's syntax, changed to ask the budget wherever a loop turns, texts are joined or values compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from gitboot.template.budget import MAX_BRACKETS, MAX_INTEGER, MAX_NESTING, MAX_TOKENS, BudgetedContext
from gitboot.template.faults import failed, out_of_bounds, unknown
from gitboot.template.filters import FILTERS, TESTS, joined
from gitboot.template.values import as_text, elements_of


class TokenCount(Extension):
    """Counts a template's tokens before they are parsed."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        open_brackets = 0
        for count, token in enumerate(stream):
            open_brackets += _BRACKETS.get(token.type, 0)
            if count == MAX_TOKENS or open_brackets > MAX_BRACKETS:
                raise out_of_bounds("it is too long or nested too deeply", token.lineno)
            yield token


_BRACKETS: Final = {"lparen": 1, "lbracket": 1, "lbrace": 1, "rparen": -1, "rbracket": -1, "rbrace": -1}


def metered(node: nodes.Node, depth: int = 0) -> nodes.Node:
    """The same node, with the budget asked wherever something can grow."""
    if depth > MAX_NESTING:
        raise out_of_bounds("it is nested too deeply", node.lineno)
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            setattr(node, field, metered(value, depth + 1))
        elif isinstance(value, list):
            value[:] = [metered(each, depth + 1) if isinstance(each, nodes.Node) else each for each in value]
    return _meter(node)


def _meter(node: nodes.Node) -> nodes.Node:
    match node:
        case nodes.For(recursive=False):
            node.iter = _asking("-steps", node.iter, _work([*node.body, *filter(None, [node.test])]))
        case nodes.Macro() | nodes.CallBlock():
            work = _work([*node.body, *node.defaults])
            spending = _asking("-spent", nodes.Const(None, lineno=node.lineno), work)
            node.body.insert(0, nodes.ExprStmt(spending, lineno=node.lineno))
        case nodes.Concat():
            return _asking("-joined", nodes.List(node.nodes, lineno=node.lineno))
        case nodes.Compare(expr=expr) | nodes.Operand(expr=expr) if not isinstance(expr, nodes.Const):
            node.expr = _asking("-weighed", expr)
        case nodes.Dict() | nodes.Tuple(ctx="load") | nodes.Getitem(arg=nodes.Slice()):
            return _asking("-weighed", node)
        case nodes.Const(value=int(value) | float(value)) if value > MAX_INTEGER:
            raise out_of_bounds("a number is too large", node.lineno)
        case nodes.Filter(name=name) if name not in FILTERS:
            raise failed(unknown("filter", name, FILTERS), node.lineno)
        case nodes.Test(name=name) if name not in TESTS:
            raise failed(unknown("test", name, TESTS), node.lineno)
        case nodes.Stmt() if not isinstance(node, _STATEMENTS):
            tag = _TAGS.get(type(node), type(node).__name__.lower())
            raise failed(f"{tag} is not available: a template stands alone", node.lineno)
    return node


_STATEMENTS: Final = (
    *(nodes.Assign, nodes.AssignBlock, nodes.CallBlock, nodes.ExprStmt, nodes.FilterBlock),
    *(nodes.If, nodes.Macro, nodes.Output, nodes.With),
)

_TAGS: Final = {
    nodes.For: "a recursive for",
    nodes.FromImport: "import",
    nodes.ScopedEvalContextModifier: "autoescape",
}


def _asking(hidden_filter: str, node: Any, *arguments: int) -> nodes.Filter:
    constants = [nodes.Const(argument, lineno=node.lineno) for argument in arguments]
    return nodes.Filter(node, hidden_filter, constants, [], None, None, lineno=node.lineno)


def _work(body: Iterable[nodes.Node]) -> int:
    """What one turn of a loop or one call of a macro takes, without what counts for itself inside it."""
    work = 0
    for node in body:
        work += 1
        match node:
            case nodes.TemplateData(data=text) | nodes.Const(value=str(text)):
                work += len(text) // 16
            case nodes.For():
                work += _work([node.iter, *node.else_])
            case nodes.Macro():
                pass
            case nodes.CallBlock():
                work += _work([node.call])
            case _:
                work += _work(node.iter_child_nodes())
    return work


@pass_context
def _steps(context: BudgetedContext, value: object, work: int) -> Iterator[object]:
    for element in elements_of(value):
        context.budget.step(work)
        yield element


@pass_context
def _spent(context: BudgetedContext, _: None, work: int) -> None:
    context.budget.spend(work)


@pass_context
def _weighed(context: BudgetedContext, value: object) -> object:
    context.budget.weigh(value)
    return value


# Under names that no template can write.
METERS: Final[dict[str, Any]] = {
    "-steps": _steps,
    "-spent": _spent,
    "-weighed": _weighed,
    "-joined": joined,
}


@pass_context
def written(context: BudgetedContext, value: object) -> str:
    """An expression's value as it stands in the output."""
    text = as_text(value)
    context.budget.spend(len(text) // 16)
    return text
