"""Templates: render the Jinja2 templates of a fleet in a sandbox that limits how many resources they use."""

from __future__ import annotations

import json
import re
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from traceback import walk_tb
from typing import Any, Final, NoReturn

from jinja2 import Template, nodes, pass_context, runtime
from jinja2.exceptions import TemplateError, TemplateSyntaxError, UndefinedError
from jinja2.ext import Extension
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.lexer import Token, TokenStream
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import LoopContext, Macro, StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import missing
from msgspec import Struct

from gitboot.problems import Code
from gitboot.quoting import (
    BOOT_NIC_BOOTIF,
    BOOT_NIC_MAC,
    QuotingError,
    build_command_line,
    quote_grub_arguments,
    quote_grub_word,
    quote_ipxe_arguments,
    quote_ipxe_word,
    quote_kernel_argument,
)
from gitboot.text import find_similar


class TemplateFault(Exception):
    """Raised if a template cannot be read, or cannot be rendered with the given values."""

    def __init__(self, code: Code, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.code, self.message = code, message
        self.line = line  # the 1-based line of the template


class LoaderValue(Struct, frozen=True):
    """A value that the boot loader fills in. A template can output the value, but cannot compute with it."""

    name: str
    placeholder: str | None  # None: no boot loader processes the text, so the value cannot be used


_BOOT_NIC_PLACEHOLDERS: Final = {"bootif": BOOT_NIC_BOOTIF, "mac": BOOT_NIC_MAC}
BOOT_NIC: Final = {key: LoaderValue(f"boot_nic.{key}", text) for key, text in _BOOT_NIC_PLACEHOLDERS.items()}
BOOT_NIC_OF_USER_DATA: Final = {key: LoaderValue(f"boot_nic.{key}", None) for key in _BOOT_NIC_PLACEHOLDERS}
MAX_BYTES: Final = 1024 * 1024  # for a template, and for its output


def render_template(source: str, context: Mapping[str, object]) -> str:
    """Render a template. Text without markup is returned unchanged. Raises `TemplateFault`."""
    template = compile_template(source)
    if isinstance(template, TemplateFault):
        raise TemplateFault(template.code, template.message, template.line)
    return template if isinstance(template, str) else render_compiled(template, context)


_CACHE_SIZE: Final = 1024  # templates, which is more than any fleet has


@lru_cache(maxsize=_CACHE_SIZE)
def decode_template(data: bytes) -> str:
    """Decode the content of a template file. Raises `TemplateFault` if the content is not UTF-8."""
    try:
        return data.decode("utf-8-sig")  # a byte order mark must not precede "#!ipxe"
    except UnicodeDecodeError as error:
        raise TemplateFault(
            Code.TEMPLATE_SYNTAX, "the template is not UTF-8", data.count(b"\n", 0, error.start) + 1
        ) from error


@lru_cache(maxsize=_CACHE_SIZE)
def compile_template(source: str) -> Template | str | TemplateFault:
    if len(source.encode()) > MAX_BYTES:
        return make_limit_fault(f"the template is larger than {MAX_BYTES:,} bytes")
    if not re.search(r"\{[{%#]", source):
        return source
    try:
        with _convert_syntax_errors(), warnings.catch_warnings():
            # Ignore warnings of Python's compiler, such as for {{ 1[1:] }}. Rendering reports the error.
            warnings.simplefilter("ignore", SyntaxWarning)
            return ENVIRONMENT.from_string(source)
    except TemplateFault as fault:
        return fault


@lru_cache(maxsize=_CACHE_SIZE)
def find_names(source: str) -> frozenset[str]:
    """Return the names of the context variables that a template uses."""
    with _convert_syntax_errors():
        return frozenset(find_undeclared_variables(ENVIRONMENT.parse(source)))


@contextmanager
def _convert_syntax_errors() -> Iterator[None]:
    try:
        yield
    except TemplateSyntaxError as error:
        raise TemplateFault(Code.TEMPLATE_SYNTAX, str(error.message), error.lineno) from error
    except (RecursionError, SyntaxError, MemoryError) as error:  # from the parsers of Jinja2 and Python
        raise make_limit_fault("the template is nested too deeply") from error
    except ValueError as error:  # Python rejects integers with more than 4,300 digits
        raise make_limit_fault("a number is too large") from error


FAILURES: Final = (
    *(TemplateFault, TemplateError, QuotingError),
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError),
)


def render_compiled(template: Template, context: Mapping[str, object]) -> str:
    names = {**FUNCTIONS, **context}
    try:
        text = "".join(template.root_render_func(BudgetedContext(ENVIRONMENT, names, None, template.blocks)))
        if len(text.encode()) > MAX_BYTES:
            raise make_limit_fault(f"the rendered text is larger than {MAX_BYTES:,} bytes")
    except FAILURES as failure:
        fault = convert_to_fault(failure, names)
        fault.line = fault.line or find_line(failure, template)
        raise fault from failure
    return text


_MARK: Final = re.compile("\ue000([0-9]+)\ue001")  # private-use characters, which user data does not contain


def find_source_line(source: str, context: Mapping[str, object], text: str, line: int) -> int:
    """Return the line of a template that produced a line of the rendered text, or 1 if the line cannot be found."""
    if isinstance(compile_template(source), str):
        return line
    try:
        marked = render_compiled(_LINE_MARKING.from_string(source), context)
    except FAILURES:  # for example, the marks make the output longer than the limit
        return 1
    lines = marked.split("\n")
    # A filter changed a mark, or the parser of the format also ends lines at a lone CR.
    if _MARK.sub("", marked) != text or line > len(lines):
        return 1
    leading = re.match(r"\s*(?:\ue000[0-9]+\ue001\s*)*", lines[line - 1])
    before = "".join(lines[: line - 1]) + (leading[0] if leading else "")
    return int((_MARK.findall(before) or [1])[-1])


# Faults


def make_fault(message: str, line: int | None = None) -> TemplateFault:
    return TemplateFault(Code.TEMPLATE_FAILED, message, line)


def make_limit_fault(message: str, line: int | None = None) -> TemplateFault:
    return TemplateFault(Code.TEMPLATE_BOUNDS, message, line)


def convert_to_fault(failure: Exception, names: Mapping[str, object]) -> TemplateFault:
    match failure:
        case TemplateFault():
            return failure
        case NotDefined():
            return make_fault(_describe_undefined(failure, names))
        case QuotingError():
            return TemplateFault(Code.UNQUOTABLE, failure.message)
        case UnicodeEncodeError():
            return make_fault("the text contains half of a surrogate pair, which is not a character")
        case _:
            too_large = isinstance(failure, RecursionError | MemoryError | OverflowError)
            message = re.sub(r"^(?:_|\w*do_|test_|len|[\w.]*<)\S*\(\)", "this filter, test or method", str(failure))
            return make_limit_fault("a value is too large") if too_large else make_fault(message)


def find_line(failure: BaseException, template: Template) -> int | None:
    """Return the line of a template that raised an exception, or None if the template did not raise the exception."""
    line = None
    for frame, number in walk_tb(failure.__traceback__):
        if frame.f_globals.get("__jinja_template__") is template:
            line = template.get_corresponding_lineno(number)
    return line


def _describe_undefined(failure: NotDefined, names: Mapping[str, object]) -> str:
    value, name = failure.value, failure.name
    if name is None:
        return str(failure)
    if value is missing:
        variables = names.get("vars")
        suggestion = suggest_name(name, names) or suggest_name(name, variables, "vars")
        return f"{name!s:.60} is not defined{suggestion}"
    if isinstance(value, dict | list) and (path := _find_path(value, names)):
        return f"{path}{format_key(name)} is not defined{suggest_name(name, value, path)}"
    as_filter = f": use the filter, | {name}" if name in FILTERS else ""
    return f"{describe_kind(value)} has no {name!s:.60}{as_filter}"


def _find_path(target: object, value: object, path: str = "") -> str | None:
    """Return the path to ``target`` in the context, such as server.labels, or None if there is no such path."""
    if value is target:
        return path.removeprefix(".")
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return next(filter(None, (_find_path(target, each, path + format_key(key)) for key, each in items)), None)


def describe_unknown(kind: str, name: str, known_names: Mapping[str, object]) -> str:
    return f"there is no {kind} {name:.60}{suggest_name(name, known_names)}"


def suggest_name(name: object, known_names: object, path: str = "") -> str:
    if not isinstance(known_names, dict) or not isinstance(name, str) or len(name) > 60:
        return ""
    meant = find_similar(name, (key for key in known_names if isinstance(key, str)))
    return f": did you mean {(path + format_key(meant)).removeprefix('.')}?" if meant is not None else ""


def format_key(key: object) -> str:
    return f".{key:.60}" if isinstance(key, str) and key.isidentifier() else f"[{key!r:.60}]"


# The sandbox


def _reject_secret(_: str) -> NoReturn:
    raise TemplateFault(
        Code.SECRET,
        "gitboot would publish the result of `secret()`; list the secret's file in `userData.secrets`, and let the "
        "machine fetch the URL `urls.secrets.NAME`",
    )


FUNCTIONS: Final[dict[str, Any]] = {"range": range, "secret": _reject_secret}
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
    str: (slice,),  # only slices, because an index into a text is usually a mistake
}
_LOOP_ATTRIBUTES: Final = frozenset(
    {"first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0"}
)


class BudgetedContext(runtime.Context):
    """The variables and the budget of one rendering."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = Budget()


CALL_COST: Final = 4  # additional work, because calls take longer than other expressions
MAX_INTEGER: Final = 2**63 - 1


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})
    context_class = BudgetedContext

    def __init__(self) -> None:
        super().__init__(
            undefined=MissingName,
            extensions=[TokenCount],
            finalize=finalize_value,
            keep_trailing_newline=True,
            optimized=False,  # the optimizer would evaluate constants without charging the budget
        )
        self.globals = dict(FUNCTIONS)
        self.filters = FILTERS | BUDGET_FILTERS
        self.tests = dict(TESTS)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        self.prepare(template)
        template.set_environment(self)
        return template

    def prepare(self, template: nodes.Template) -> None:
        """Change a parsed template before it is compiled."""
        add_budget_checks(template)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Return the value of an attribute. A key takes precedence over a method with the same name."""
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        if method := _METHODS.get(type(obj), {}).get(attribute):
            return partial(method, obj)
        if isinstance(obj, LoopContext) and attribute in _LOOP_ATTRIBUTES:
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
            raise make_fault(f"{describe_kind(argument)} cannot be used as a key for {describe_kind(obj)}")
        name: Any = argument
        return self.undefined(obj=obj, name=name)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(function, Undefined):
            function._fail_with_undefined_error()
        if not isinstance(function, Macro | partial) and function not in FUNCTIONS.values():
            raise make_fault(f"{describe_kind(function)} cannot be called")
        budget: Budget = context.budget
        budget.spend(CALL_COST)
        budget.calls -= 1
        if budget.calls < 0:
            raise make_limit_fault("the template's macros call each other too deeply")
        text_or_mapping = function.args if isinstance(function, partial) else ()
        budget.spend_on_value([*text_or_mapping, *args])
        result = super().call(context, function, *args, **kwargs)
        budget.calls += 1
        return result

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget: Budget = context.budget
        budget.spend_on_value([left, right])
        if operator == "+" and (_both_have_type(str, left, right) or _both_have_type(list, left, right)):
            return left + right
        if operator == "**" or not _both_have_type(int | float, left, right):
            raise make_fault(f"{operator} does not accept {describe_kind(left)} and {describe_kind(right)}")
        result = self.binop_table[operator](left, right)
        if abs(result) > MAX_INTEGER:
            raise make_limit_fault("a number is too large")
        return result

    def call_filter(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name not in FILTERS:
            raise make_fault(describe_unknown("filter", name, FILTERS))
        return super().call_filter(name, *args, **kwargs)


def _both_have_type(kind: Any, left: object, right: object) -> bool:
    """Return whether both values are of the type ``kind``. Booleans do not count as numbers."""
    return not {bool} & {type(left), type(right)} and isinstance(left, kind) and isinstance(right, kind)


_BRACKETS: Final = {"lparen": 1, "lbracket": 1, "lbrace": 1, "rparen": -1, "rbracket": -1, "rbrace": -1}
MAX_TOKENS: Final = 10_000  # per template; the text between two expressions is one token
MAX_BRACKETS: Final = 25  # nesting depth


class TokenCount(Extension):
    """A Jinja2 extension that limits the number of tokens and nested brackets before Jinja2 parses a template."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        open_brackets = 0
        for count, token in enumerate(stream):
            open_brackets += _BRACKETS.get(token.type, 0)
            if count == MAX_TOKENS or open_brackets > MAX_BRACKETS:
                raise make_limit_fault("the template is too long or nested too deeply", token.lineno)
            yield token


MAX_STEPS: Final = 100_000  # the total number of loop iterations
MAX_WORK: Final = 1_000_000  # 1 for each expression, visited element, and 16 characters of text
MAX_NESTING: Final = 50  # depth of expressions and blocks, of lists, and of macro calls


def add_budget_checks(node: nodes.Node, depth: int = 0) -> nodes.Node:
    """Insert budget checks into a node wherever values or work can grow. Return the node or its replacement."""
    if depth > MAX_NESTING:
        raise make_limit_fault("the template is nested too deeply", node.lineno)
    for field, value in node.iter_fields():
        if isinstance(value, nodes.Node):
            setattr(node, field, add_budget_checks(value, depth + 1))
        elif isinstance(value, list):
            value[:] = [add_budget_checks(each, depth + 1) if isinstance(each, nodes.Node) else each for each in value]
    return _add_budget_check(node)


_STATEMENTS: Final = (
    *(nodes.Assign, nodes.AssignBlock, nodes.CallBlock, nodes.ExprStmt, nodes.FilterBlock),
    *(nodes.If, nodes.Macro, nodes.Output, nodes.With),
)
_TAGS: Final = {
    nodes.For: "a recursive for",
    nodes.FromImport: "import",
    nodes.ScopedEvalContextModifier: "autoescape",
}


def _add_budget_check(node: nodes.Node) -> nodes.Node:
    match node:
        case nodes.For(recursive=False):
            node.iter = _apply_hidden_filter("-steps", node.iter, _count_work([*node.body, *filter(None, [node.test])]))
        case nodes.Macro() | nodes.CallBlock():
            work = _count_work([*node.body, *node.defaults])
            spend_filter = _apply_hidden_filter("-spent", nodes.Const(None, lineno=node.lineno), work)
            node.body.insert(0, nodes.ExprStmt(spend_filter, lineno=node.lineno))
        case nodes.Concat():
            return _apply_hidden_filter("-joined", nodes.List(node.nodes, lineno=node.lineno))
        case nodes.Compare(expr=expr) | nodes.Operand(expr=expr) if not isinstance(expr, nodes.Const):
            node.expr = _apply_hidden_filter("-weighed", expr)
        case nodes.Dict() | nodes.Tuple(ctx="load") | nodes.Getitem(arg=nodes.Slice()):
            return _apply_hidden_filter("-weighed", node)
        case nodes.Const(value=int(value) | float(value)) if value > MAX_INTEGER:
            raise make_limit_fault("a number is too large", node.lineno)
        case nodes.Filter(name=name) if name not in FILTERS:
            raise make_fault(describe_unknown("filter", name, FILTERS), node.lineno)
        case nodes.Test(name=name) if name not in TESTS:
            raise make_fault(describe_unknown("test", name, TESTS), node.lineno)
        case nodes.Stmt() if not isinstance(node, _STATEMENTS):
            tag = _TAGS.get(type(node), type(node).__name__.lower())
            raise make_fault(f"{tag} is not supported, because a template cannot use other templates", node.lineno)
    return node


def _apply_hidden_filter(hidden_filter: str, node: Any, *arguments: int) -> nodes.Filter:
    constants = [nodes.Const(argument, lineno=node.lineno) for argument in arguments]
    return nodes.Filter(node, hidden_filter, constants, [], None, None, lineno=node.lineno)


def _count_work(body: Iterable[nodes.Node]) -> int:
    """Return the work of one loop iteration or macro call, excluding inner loops and macros."""
    work = 0
    for node in body:
        work += 1
        match node:
            case nodes.TemplateData(data=text) | nodes.Const(value=str(text)):
                work += len(text) // 16
            case nodes.For():
                work += _count_work([node.iter, *node.else_])
            case nodes.Macro():
                pass
            case nodes.CallBlock():
                work += _count_work([node.call])
            case _:
                work += _count_work(node.iter_child_nodes())
    return work


@pass_context
def _count_steps(context: BudgetedContext, value: object, work: int) -> Iterator[object]:
    for element in get_elements(value):
        context.budget.step(work)
        yield element


@pass_context
def _spend_work(context: BudgetedContext, _: None, work: int) -> None:
    context.budget.spend(work)


@pass_context
def _weigh_value(context: BudgetedContext, value: object) -> object:
    context.budget.spend_on_value(value)
    return value


@pass_context
def join_texts(context: BudgetedContext, values: Sequence[object], separator: str = "") -> str:
    """Join values as text, and charge the budget for the length of the result."""
    texts = [as_text(value) for value in values]
    context.budget.spend((sum(map(len, texts)) + len(separator) * len(texts)) // 16)
    return separator.join(texts)


_NUMBERS: Final = frozenset({bool, int, float})


class Budget:
    """The loop steps and the work that a rendering may still use."""

    __slots__ = ("calls", "steps", "work")

    def __init__(self) -> None:
        self.calls, self.steps, self.work = MAX_NESTING, MAX_STEPS, MAX_WORK

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            raise make_limit_fault("the template needs more computation than the limit allows")

    def step(self, work: int) -> None:
        self.steps -= 1
        if self.steps < 0:
            raise make_limit_fault(f"the template's loops take more than {MAX_STEPS:,} steps")
        self.spend(work)

    def spend_on_value(self, value: object, depth: int = 0) -> None:
        """Charge the budget for a value with all its elements. An element counts each time that it occurs."""
        if isinstance(value, str):
            self.spend(1 + len(value) // 16)
        elif type(value) in _NUMBERS or value is None:
            pass
        elif isinstance(value, LoaderValue):
            raise _make_loader_fault(value)
        elif isinstance(value, (list, tuple)):
            self.spend(1 + len(value))
            if depth == MAX_NESTING:
                raise make_limit_fault("the template's lists are nested too deeply")
            for element in value:
                self.spend_on_value(element, depth + 1)
        elif isinstance(value, dict):
            self.spend_on_value(list(value), depth)
            self.spend_on_value(list(value.values()), depth)
        elif isinstance(value, range):
            self.spend(1 + len(value))
        elif isinstance(value, Undefined):
            str(value)
        else:
            raise make_fault(f"{describe_kind(value)} is not a value")


def as_text(value: object) -> str:
    """Convert a value to text. Booleans are written as in YAML."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, LoaderValue):
        raise _make_loader_fault(value)
    if isinstance(value, int | float | Undefined):
        return str(value)
    raise make_fault(f"{describe_kind(value)} cannot be part of text; use join, tojson or default")


def _make_loader_fault(value: LoaderValue) -> TemplateFault:
    if value.placeholder is None:
        reason = f"user data is the same for every NIC, so it cannot contain {value.name}"
    else:
        reason = f"the boot loader fills in {value.name}, so a template can output it, but cannot change or compare it"
    return make_fault(f"{reason}; write {{{{ {value.name} }}}} in a kernel argument")


def _get_placeholder(value: object) -> object:
    """Return the placeholder of a `LoaderValue` that has a placeholder. Return all other values unchanged."""
    return value.placeholder if isinstance(value, LoaderValue) and value.placeholder is not None else value


def get_elements(value: object) -> Sequence[object]:
    """Return the elements of a list, or the keys of a mapping. Raises `TemplateFault` for other values."""
    match value:
        case LoaderValue():
            raise _make_loader_fault(value)
        case list() | tuple() | range():
            return value
        case dict():
            return list(value)
        case Undefined():
            str(value)
    raise make_fault(f"{describe_kind(value)} has no elements")


_KINDS: Final[dict[type, str]] = {
    str: "a string",
    bool: "a boolean",  # must precede int, because bool is a subclass of int
    int: "a number",
    float: "a number",
    list: "a list",
    tuple: "a list",
    range: "a list",
    dict: "a mapping",
    type(None): "null",
    slice: "a slice",
    LoaderValue: "a value that the boot loader fills in",
    Macro: "a macro",
    LoopContext: "a loop",
}


def describe_kind(value: object) -> str:
    if isinstance(value, Undefined):
        return str(value) or "nothing"
    return next((name for kind, name in _KINDS.items() if isinstance(value, kind)), "a function")


class NotDefined(UndefinedError):
    """Raised if a template uses an undefined name. ``value`` is the object that lacks the name."""

    def __init__(self, message: str | None, value: object, name: object) -> None:
        super().__init__(message)
        self.value, self.name = value, name


class MissingName(StrictUndefined):
    """The value of an undefined name. Every use is an error, except in a test or with a default."""

    __slots__ = ()

    def __init__(self, hint: str | None = None, obj: Any = missing, name: Any = None, exc: Any = None) -> None:
        not_defined: Any = partial(NotDefined, value=obj, name=name)
        super().__init__(hint, obj, name, exc or not_defined)


# Filters and tests

# Templates cannot call these filters, because the names contain a character that is invalid in templates.
BUDGET_FILTERS: Final[dict[str, Any]] = {
    "-steps": _count_steps,
    "-spent": _spend_work,
    "-weighed": _weigh_value,
    "-joined": join_texts,
}


@pass_context
def finalize_value(context: BudgetedContext, value: object) -> str:
    """Convert the value of an expression to text for the output, and charge the budget."""
    text = as_text(_get_placeholder(value))
    context.budget.spend(len(text) // 16)
    return text


def _make_list_filter(name: str, *, environment: bool = False) -> Callable[..., Any]:
    """Wrap a Jinja2 list filter whose first argument is the context or the environment."""
    function = JINJA_FILTERS[name]

    def apply_filter(context: BudgetedContext, value: object, *args: Any, **kwargs: Any) -> list[Any]:
        return list(function(context.environment if environment else context, get_elements(value), *args, **kwargs))

    return add_cost_with_context(apply_filter)


def _default(value: object, default: object = "", boolean: bool = False) -> object:
    return default if value is None or isinstance(value, Undefined) or (boolean and not value) else value


def _get_end(value: object, index: int, name: str) -> object:
    elements = get_elements(value)
    return elements[index] if elements else MissingName(f"the list is empty, so it has no {name} element")


def _indent(context: BudgetedContext, text: str, width: int = 4, first: bool = False) -> str:
    context.budget.spend((text.count("\n") + 1) * abs(width) // 16)
    indented = re.sub(r"(?<=\n)(?=[^\n])", " " * width, text)
    return " " * width + indented if first else indented


def _integer(value: object) -> int:
    if isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value)):
        return int(value)
    raise make_fault(f"{value!r:.60} is not a whole number")


def _join(context: BudgetedContext, value: object, separator: str = "") -> str:
    return join_texts(context, get_elements(value), separator)


def _replace(context: BudgetedContext, text: str, old: str, new: str) -> str:
    context.budget.spend(text.count(old) * len(new) // 16)
    return text.replace(old, new)


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _data_url(text: str) -> str:
    """Encode the content of a file as a data URL (RFC 2397), as Ignition requires."""
    return f"data:;base64,{_base64(text)}"


def _kubelet_labels(labels: Mapping[str, str]) -> str:
    """Return the labels in the format of kubelet's ``--node-labels``."""
    return ",".join(f"{key}={as_text(value)}" for key, value in sorted(labels.items()))


def _kubelet_taints(taints: Iterable[Mapping[str, str]]) -> str:
    """Return the taints in the format of kubelet's ``--register-with-taints``."""
    return ",".join(f"{taint['key']}={taint.get('value') or ''}:{taint['effect']}" for taint in taints)


def _make_quoting_filter(word: Callable[[str], str], arguments: Callable[[Sequence[str]], str]) -> Callable[..., Any]:
    """Return a filter that quotes a single value as one word, or a list of kernel arguments as several words."""
    quote = add_cost(lambda value: arguments(value) if isinstance(value, list | tuple) else word(as_text(value)))

    @pass_context
    def quote_value(context: BudgetedContext, value: object) -> str:
        return str(quote(context, _get_placeholder(value)))

    return quote_value


def add_cost(function: Any) -> Callable[..., Any]:
    """Wrap a filter or a test so that it charges the budget for its arguments. ``function`` must run in linear time."""
    return add_cost_with_context(lambda _, *args, **kwargs: function(*args, **kwargs))


def add_cost_with_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter or a test as `add_cost` does. ``function`` takes the context as its first argument."""

    @pass_context
    def call_with_cost(context: BudgetedContext, *args: Any, **kwargs: Any) -> Any:
        context.budget.spend(CALL_COST)
        for value in (*args, *kwargs.values()):
            context.budget.spend_on_value(value)
        return function(context, *args, **kwargs)

    return call_with_cost


FILTERS: Final[dict[str, Any]] = {
    "b64encode": add_cost(_base64),
    "count": add_cost(len),
    "d": _default,
    "data_url": add_cost(_data_url),
    "default": _default,
    "dictsort": add_cost(JINJA_FILTERS["dictsort"]),
    "first": add_cost(lambda value: _get_end(value, 0, "first")),
    "grub": _make_quoting_filter(quote_grub_word, quote_grub_arguments),
    "indent": add_cost_with_context(_indent),
    "int": add_cost(_integer),
    "ipxe": _make_quoting_filter(quote_ipxe_word, quote_ipxe_arguments),
    "items": add_cost(lambda mapping: list(mapping.items())),
    "join": add_cost_with_context(_join),
    "kernel": _make_quoting_filter(quote_kernel_argument, build_command_line),
    "kubelet_labels": add_cost(_kubelet_labels),
    "kubelet_taints": add_cost(_kubelet_taints),
    "last": add_cost(lambda value: _get_end(value, -1, "last")),
    "length": add_cost(len),
    "list": add_cost(lambda value: list(get_elements(value))),
    "lower": add_cost(lambda value: as_text(value).lower()),
    "map": _make_list_filter("map"),
    "reject": _make_list_filter("reject"),
    "rejectattr": _make_list_filter("rejectattr"),
    "replace": add_cost_with_context(_replace),
    "select": _make_list_filter("select"),
    "selectattr": _make_list_filter("selectattr"),
    "sort": _make_list_filter("sort", environment=True),
    "string": add_cost(lambda value: as_text(value)),
    # Without the argument indent, which could be any number.
    "tojson": add_cost(lambda value: json.dumps(value, sort_keys=True)),
    "trim": add_cost(lambda value: as_text(value).strip()),
    "unique": _make_list_filter("unique", environment=True),
    "upper": add_cost(lambda value: as_text(value).upper()),
}
_TESTS_WITH_COST: Final = (
    "== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in "
    "boolean false integer mapping none number sequence string true"
)
TESTS: Final[dict[str, Any]] = {
    **{name: JINJA_TESTS[name] for name in ("defined", "undefined")},
    **{name: add_cost(JINJA_TESTS[name]) for name in _TESTS_WITH_COST.split()},
}


ENVIRONMENT: Final = _Environment()


class _LineMarkingEnvironment(_Environment):
    """A Jinja2 environment that marks each output line with the number of the template line that produced it."""

    def prepare(self, template: nodes.Template) -> None:
        for output in template.find_all(nodes.Output):
            output.nodes = [each for node in output.nodes for each in _mark_lines(node)]
        super().prepare(template)


def _mark_lines(node: nodes.Expr) -> Iterator[nodes.Expr]:
    lines = node.data.split("\n") if isinstance(node, nodes.TemplateData) else [""]
    yield nodes.TemplateData(
        "\n".join(f"\ue000{node.lineno + number}\ue001{line}" for number, line in enumerate(lines)), lineno=node.lineno
    )
    if not isinstance(node, nodes.TemplateData):
        yield node


_LINE_MARKING: Final = _LineMarkingEnvironment()
