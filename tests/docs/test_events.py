"""The page of events: it has each event type that the code can write, with its facts, and no other type."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from gitboot.bmc.override_state import OverrideState
from gitboot.bmc.power_steps import PowerRecordState
from gitboot.errors import LedgerLeft, LedgerUnfinished
from gitboot.resolve.provisioning_record import InstallStep
from gitboot.status.conditions import CONDITIONS
from tests.helpers.documentation import ROOT

CODE: Final = ROOT / "gitboot"

# Functions and classes that take the type of an event: the name of the parameter, and its position if it has one.
_TYPE_PARAMETERS: Final[dict[str, tuple[str, int | None]]] = {
    "Event": ("type", None),
    "add_event": ("type", 0),
    "print_new_event": ("type", 0),
    "_send_result": ("type", 0),
    "ClearanceChange": ("event", -3),
}
# Parameters of functions that are not facts of the event.
_NO_FACTS: Final = {"at", "type", "message", "warning", "is_warning"}

# The types that an expression of a module can have, if it is no literal. A set is empty if another call has the type.
_COMPUTED_TYPES: Final[dict[tuple[str, str], set[str]]] = {
    ("cli/commands/prepare_tree.py", "type"): set(),
    ("cli/commands/serve.py", "event_type"): {"ListeningForOperators", "ListeningByTls"},
    ("cli/commands/serve.py", "type"): set(),
    ("controller/records/ledger_snapshot.py", "type"): set(),
    ("controller/records/ledger_changes.py", "change.event"): set(),
    ("cli/commands/run.py", "dry_run_types[event.type]"): {"WouldAccept", "WouldPublish", "WouldFollow"},
    ("cli/commands/serve.py", "failure[0]"): {"LedgerFailed", LedgerLeft.__name__},
    ("controller/instance/standby.py", "reason"): {
        "StandbyStarted",
        "LedgerFailed",
        LedgerLeft.__name__,
        LedgerUnfinished.__name__,
    },
    ("controller/maintenance_hooks.py", "event"): {"MaintenanceApproved", "DrainStarted", "Drained"},
    ("controller/operator_requests.py", "event_type"): {"Requested", "RecordsBegun"},
    ("controller/records/provisioning.py", "event_type"): {"Provisioned", "MaintenanceBooted", "MaintenanceStarted"},
    ("controller/records/provisioning.py", "str(attempt.step)"): {
        str(each) for each in (InstallStep.ATTEMPTED, InstallStep.STARTED, InstallStep.FAILED)
    },
    # The events of a medium replace `Inserted`. Only requests of operators write `Opened`, as `Requested`.
    ("controller/bmcs/schedule.py", "f'Override{record.state}'"): (
        overrides := {f"Override{each}" for each in {*OverrideState} - {OverrideState.INSERTED, OverrideState.OPENED}}
    ),
    ("controller/records/ledger_changes.py", "f'Override{record.state}'"): overrides,
    ("controller/bmcs/schedule.py", "f'Power{record.state}'"): {f"Power{each}" for each in PowerRecordState},
    ("controller/condition_rules.py", "type"): {
        type for each in CONDITIONS.values() for type in (each.event, *each.events.values()) if type is not None
    },
}


class Call(NamedTuple):
    """A call in the code that writes an event."""

    module: str
    type: ast.expr
    facts: frozenset[str]  # the facts that the call names in literals


@cache
def list_calls() -> tuple[Call, ...]:
    return tuple(_find_calls())


def _find_calls() -> Iterator[Call]:
    for path in sorted(CODE.rglob("*.py")):
        module, tree = path.relative_to(CODE).as_posix(), ast.parse(path.read_text())
        functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
        function_of = {id(node): each for each in functions for node in ast.walk(each)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = {each.arg: each.value for each in node.keywords if each.arg is not None}
            if name == "replace" and {"type", "message"} <= given.keys():  # a copy of an event
                yield Call(module, given["type"], frozenset())
            if name not in _TYPE_PARAMETERS or (name == "Event" and not given):  # threading.Event()
                continue
            parameter, position = _TYPE_PARAMETERS[name]
            type = given[parameter] if position is None or parameter in given else node.args[position]
            named = set() if name in ("Event", "ClearanceChange") else given.keys() - _NO_FACTS
            facts = given.get("facts", ast.Dict([], []))
            if isinstance(facts, ast.Name):
                facts = _find_assigned(facts, function_of[id(node)])
            yield Call(module, type, frozenset({*named, *_list_keys(facts)}))


def _find_assigned(variable: ast.Name, function: ast.FunctionDef) -> ast.expr:
    """Return what a function assigned last to a variable, above the place that reads it."""
    assigned = [
        (node.lineno, node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and node.lineno < variable.lineno
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == variable.id
    ]
    return max(assigned, key=lambda each: each[0])[1] if assigned else variable


def _list_keys(expression: ast.expr) -> Iterator[str]:
    """Yield the keys of a literal, and of a literal in it that is there only under a condition."""
    if isinstance(expression, ast.IfExp):
        yield from _list_keys(expression.body)
    if isinstance(expression, ast.Dict):
        for key, value in zip(expression.keys, expression.values, strict=True):
            yield from _list_keys(value) if key is None else [str(key.value)] if isinstance(key, ast.Constant) else []


def find_types(call: Call) -> set[str]:
    if isinstance(call.type, ast.Constant):
        return {str(call.type.value)}
    return _COMPUTED_TYPES[call.module, ast.unparse(call.type)]


def read_declared() -> dict[str, set[str]]:
    """Return the facts of each event type in scripts/events.toml."""
    declared = [
        (type, {*group.get("facts", []), *about.get("facts", [])})
        for group in tomllib.loads((ROOT / "scripts" / "events.toml").read_text()).values()
        for type, about in group.items()
        if type not in ("about", "facts")
    ]
    assert len(dict(declared)) == len(declared)  # each type is in one group
    return dict(declared)


def test_the_page_has_each_event_type_that_the_code_can_write_and_no_other() -> None:
    computed = {
        (each.module, ast.unparse(each.type)) for each in list_calls() if not isinstance(each.type, ast.Constant)
    }
    assert computed == _COMPUTED_TYPES.keys()
    written = {type for call in list_calls() for type in find_types(call)}
    declared = read_declared().keys()
    assert (written - declared, declared - written) == (set(), set())


def test_a_type_that_is_computed_from_literals_is_in_its_module() -> None:
    for (module, expression), types in _COMPUTED_TYPES.items():
        literals = {
            node.value
            for node in ast.walk(ast.parse((CODE / module).read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if expression == "type" and module != "controller/condition_rules.py":
            assert types - literals == set(), module


def test_the_page_has_each_fact_that_a_call_names() -> None:
    declared, named = read_declared(), defaultdict[str, set[str]](set)
    for call in list_calls():
        for type in find_types(call):
            named[type] |= call.facts
    assert {type: facts - declared[type] for type, facts in named.items() if facts - declared[type]} == {}
    assert sum(map(len, named.values())) > 50
