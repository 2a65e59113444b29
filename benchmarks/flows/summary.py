"""The calls of a flow in several rounds, as JSON, as text, and as a comparison with an earlier record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.flows.tracing import Function, Window

Json = dict[str, Any]
Tree = dict[str, dict[str, list[str]]]  # process, module, functions


def summarise(title: str, rounds: Sequence[Window]) -> Json:
    """Return one flow as JSON.

    ``always`` has the functions that every round called, in the order of their first calls in the last round, and
    ``sometimes`` all others. ``modules`` and ``functions`` count ``always``; ``calls`` is the median of all calls.
    """
    *earlier, last = rounds
    always = [each for each in last if all(each in one for one in earlier)]
    others = dict.fromkeys(each for one in reversed(rounds) for each in one)
    sometimes = [each for each in others if each not in set(always)]
    return {
        "title": title,
        **_count_functions(always),
        "calls": round(median(sum(each.number for each in one.values()) for one in rounds)),
        "always": _tree(always),
        "sometimes": _tree(sometimes),
    }


def _count_functions(functions: Iterable[Function]) -> Json:
    """Count modules, and functions of modules; a function that two processes call counts once."""
    named = {(each.module, each.name) for each in functions}
    return {"modules": len({module for module, _ in named}), "functions": len(named)}


def _tree(functions: Iterable[Function]) -> Tree:
    tree: Tree = {}
    for each in functions:
        tree.setdefault(each.process, {}).setdefault(each.module, []).append(each.name)
    return dict(sorted(tree.items()))


def format_text(recorded: Json) -> Iterator[str]:
    """Yield the lines that show what was recorded."""
    yield f"gitboot {recorded['gitboot']}, Python {recorded['python']}, rounds: {recorded['rounds']}"
    for name, flow in recorded["flows"].items():
        yield ""
        yield f"{name}: {flow['title']}"
        yield f"{flow['modules']} modules, {flow['functions']} functions, {flow['calls']} calls"
        yield from _format_tree(flow["always"])
        if flow["sometimes"]:
            yield "  Not in every round:"
            yield from _format_tree(flow["sometimes"])


def _format_tree(tree: Tree) -> Iterator[str]:
    for process, modules in tree.items():
        yield f"  {process}"
        for module, functions in modules.items():
            yield f"    {module}: {', '.join(functions)}"


def differences(before: Json, after: Json) -> Iterator[str]:
    """Yield a line for each module and function that a flow calls now and did not call before, or the reverse.

    A function that only some rounds call is no difference. Flows that one of the two does not have are left out.
    """
    for name in (name for name in before["flows"] if name in after["flows"]):
        old, new = before["flows"][name], after["flows"][name]
        yield (
            f"{name}: {old['modules']} → {new['modules']} modules, {old['functions']} → {new['functions']} functions, "
            f"{old['calls']} → {new['calls']} calls"
        )
        appeared, went = _missing(old, new), _missing(new, old)
        yield from _lines("+", appeared, _modules(old["always"]) | _modules(old["sometimes"]))
        yield from _lines("-", went, _modules(new["always"]) | _modules(new["sometimes"]))


def _missing(there: Json, here: Json) -> dict[str, list[str]]:
    """Return the functions that ``here`` always calls and ``there`` never does, by module."""
    known = {each for which in ("always", "sometimes") for each in _list_functions(there[which])}
    found: dict[str, list[str]] = {}
    for module, function in dict.fromkeys(_list_functions(here["always"])):
        if (module, function) not in known:
            found.setdefault(module, []).append(function)
    return found


def _list_functions(tree: Mapping[str, Mapping[str, list[str]]]) -> list[tuple[str, str]]:
    return [(module, name) for modules in tree.values() for module, functions in modules.items() for name in functions]


def _modules(tree: Tree) -> set[str]:
    return {module for modules in tree.values() for module in modules}


def _lines(sign: str, found: Mapping[str, list[str]], known: set[str]) -> Iterator[str]:
    for module, functions in found.items():
        if module not in known:
            yield f"  {sign} {module} (module)"
        yield from (f"  {sign} {module}: {function}" for function in functions)
