"""Move the tests so that tests/ mirrors the packages of gitboot: `.venv/bin/python scripts/move_modules/move_tests.py`.

tests.tsv has the new path of each file below tests/. The script runs once, after the modules have moved, on a clean
work tree. It makes a commit for each target folder and for each merge of helpers, and compares the collected tests
before and after. `--check` compares the map with the files, and lists the paths of tests that name no module.
"""

# ruff: noqa: E501

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

BIN: Final = Path(".venv/bin")
MAP: Final = Path(__file__).with_name("tests.tsv")
TESTS: Final = PurePosixPath("tests")
# Folders of tests that mirror no package.
OTHER: Final = {
    "docs": "Tests that do what pages of docs/ say.",
    "project": "Tests of the repository: its architecture, packages, units, benchmarks, and the tests themselves.",
    "scenarios": "Tests of whole programs, and of several packages at once.",
}
HELPERS: Final = {
    "helpers": "What tests share: fleets, repositories, servers, BMCs, instances, and doubles of them.",
    "helpers/machine_lives": "One server through commits, boots, faults, crashes and restarts.",
    "helpers/site_lives": "A whole site through commits, faults, kills and hand-overs.",
}
# What a module of helpers contains once others are merged into it.
MERGED: Final = {
    "cases": """Cases of one test that run as one test, and a measure of whether work grows no faster than its input.

A test that needs anything set up for each case is parametrized: pytest and its workers spend more on each test than a
case takes.""",
    "configuration": "Configuration files and credentials for BMCs of the instances that tests start.",
    "documentation": "The pages of the documentation: their blocks of code, and their scripts that copy or check out a tree.",
    "file_servers": "nginx and Caddy as mirrors of a tree; nginx, Varnish and Squid as caches in front of a mirror.",
    "postgresql": "A PostgreSQL server with a schema for each ledger, and connections to it that tests can stop.",
    "repositories": "Git repositories as people make them, and commits and packs that no git program writes.",
    "signed_lists": "Signed lists of published trees: made with python-tuf, and read with the client of python-tuf.",
}
# Lines that are too long with the new names: file, line, and what to write.
REWORDED: Final = (
    (
        "docs/test_hardware.py",
        "Where `diff` says something else than the page: ``pytest tests/docs/test_hardware.py --write-hardware``, then read "
        "the page.",
        "If `diff` prints something else, run ``pytest tests/docs/test_hardware.py --write-hardware``, and read the page.",
    ),
    (
        "helpers/forked_children.py",
        "What a forked command starts of gitboot is forked too, as a child of that command: see "
        "tests/helpers/forked_commands.py.",
        "Fork the programs of gitboot that a forked command starts, as children of the command: see `forked_commands`.",
    ),
    (
        "helpers/forked_commands.py",
        r"""    passed = f"import sys\nsys.path.append({root!r})\nfrom tests.helpers.forked_commands_client import pass_on\n"""
        r'''pass_on({start()!r})\n"''',
        r'''    passed = f"import sys\nsys.path.append({root!r})\n"
    passed += f"from tests.helpers.forked_commands_client import pass_on\npass_on({start()!r})\n"''',
    ),
    (
        "helpers/page_pictures.py",
        "The pictures of the page in the documentation: `python -m tests.helpers.page_pictures [FOLDER]`, of a fleet at "
        "night.",
        "The pictures of the page for docs/, of a fleet at night: `python -m tests.helpers.page_pictures [FOLDER]`.",
    ),
    (
        "helpers/site_lives/commits.py",
        "What Git says of the one server of `tests.helpers.site_lives.lives`, and a repository in which commits cost "
        "nothing.",
        "The commits of the one server of a life, and a repository in which commits cost nothing.",
    ),
    (
        "helpers/site_lives/faults.py",
        """Each search draws its steps from one table. ``python -m tests.helpers.site_lives.faults recording --lives 1000 """
        """--seed 1`` searches
one table for long; the tables are ``recording``, ``windows``, ``identities``, ``mirrors`` and ``hosts``. The site of
``hosts`` has a PostgreSQL ledger and two hosts (`tests.helpers.site_lives.hosts`). To search another commit, copy """
        """``tests/site*.py``
and ``tests/scenarios/test_site_faults.py`` into a worktree of that commit, and start there.""",
        """Each search draws its steps from one table. To search one table for long, run
``python -m tests.helpers.site_lives.faults recording --lives 1000 --seed 1``. The tables are ``recording``,
``windows``, ``identities``, ``mirrors`` and ``hosts``. The site of ``hosts`` has a PostgreSQL ledger and two hosts
(`tests.helpers.site_lives.hosts`).""",
    ),
    (
        "resolve/test_fleet_decisions_properties.py",
        '"import sys, tests.resolve.test_fleet_decisions_properties as laws; '
        'sys.stdout.write(laws.made_of(sys.stdin.read()))"',
        '"import sys; from tests.resolve.test_fleet_decisions_properties import made_of; "\n'
        '"sys.stdout.write(made_of(sys.stdin.read()))"',
    ),
    (
        "scenarios/test_run.py",
        '    script = f"import sys; sys.path.append({str(ROOT)!r}); from tests.helpers.forked_commands_client import pass_on; '
        'pass_on({start()!r})"',
        '    script = f"import sys; sys.path.append({str(ROOT)!r}); "\n'
        '    script += f"from tests.helpers.forked_commands_client import pass_on; pass_on({start()!r})"',
    ),
    (
        "upgrades/make.py",
        """you run `tests/scenarios/test_upgrade.py`. Until then web01 may fetch its install
boot again. Two archives differ in identities and times only. All files in an archive have the same owner and time.""",
        """you run `tests/scenarios/test_upgrade.py`. Until then web01 may fetch
its install boot again. Two archives differ in identities and times only. All files in an archive have the same owner
and time.""",
    ),
)
# Files that name tests or modules as they were, and are left so.
LEFT_AS_WRITTEN: Final = re.compile(
    r"(CHANGELOG\.md|benchmarks/flows/.*\.json|fuzz/seeds/|scripts/move_modules/|tests/golden|tests/(data/)?axe/)"
)
WIDTH: Final = 120
OLD_RULE: Final = "test_each_test_file_is_named_for_its_room"
NEW_RULE: Final = "test_each_test_file_is_named_for_a_module_of_the_package_that_its_folder_mirrors"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--trial", action="store_true", help="go on although new paths name no module")
    asked = parser.parse_args()
    rows = _rows()
    problems = _problems(rows)
    if asked.trial:
        problems = [each for each in problems if "names no module" not in each]
    if asked.check or problems:
        print("\n".join(problems) or "The map fits.")
        return bool(problems)
    if _git("status", "--porcelain", "--untracked-files=no"):
        print("The work tree has changes: commit them first.")
        return 1
    before = collected()
    print(f"{sum(before.values())} tests before")
    before += Counter({NEW_RULE: before.pop(OLD_RULE, 0)})
    _prepare_conftest()
    moves = first_rows(rows)
    for folder, group in _by_folder(moves).items():
        move(group)
        _commit(f"tests: move to {TESTS / folder}")
    for old, new in [(old, new) for old, new in rows if old != new and moves.get(old) != new]:
        merge(TESTS / old, TESTS / new)
        _commit(f"tests: merge {old.removesuffix('.py')} into {new.removesuffix('.py')}")
    _change_rules()
    _commit("tests: name each file of tests for a module of its package")
    after = collected()
    print(f"{sum(after.values())} tests after")
    for name in sorted((before - after).keys() | (after - before).keys()):
        print(f"{name}: {before[name]} before, {after[name]} after")
    print(_run(BIN / "ruff", "check", "--output-format=concise", check=False))
    return int(before != after)


# The map


def _rows() -> list[tuple[str, str]]:
    lines = [line.split("\t") for line in MAP.read_text().splitlines() if line and not line.startswith("#")]
    return [(old, new) for old, new, *_ in lines]


def first_rows(rows: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the rows that are moves: later rows with the same new path are merges."""
    taken: set[str] = set()
    found = {}
    for old, new in rows:
        if new not in taken and old != new:
            found[old] = new
            taken.add(new)
    return found


def _by_folder(moves: Mapping[str, str]) -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for old, new in moves.items():
        groups[str(PurePosixPath(new).parent)][old] = new
    return dict(sorted(groups.items(), key=lambda group: (not group[0].startswith("helpers"), group[0])))


def _problems(rows: Sequence[tuple[str, str]]) -> list[str]:
    mapped = {old for old, _ in rows}
    found = [f"tests/{old}: there is no such file" for old in sorted(mapped) if not Path(TESTS / old).exists()]
    stay = {"__init__.py", "conftest.py", "mutations.py"}
    found += [
        f"{path}: the map has no row for it"
        for path in sorted(Path(TESTS).glob("*.py"))
        if path.name not in mapped | stay
    ]
    for old, new in rows:
        path = PurePosixPath(new)
        if path.name.startswith("test_") and path.parts[0] not in OTHER and not _names_a_module(path):
            found.append(f"tests/{old}: {new} names no module of gitboot/{path.parent}")
    return found


def _names_a_module(path: PurePosixPath) -> bool:
    modules = {each.stem for each in Path("gitboot", path.parent).glob("*.py")} - {"__init__", "__main__"}
    name = path.stem.removeprefix("test_")
    return any(name == module or name.startswith(f"{module}_") for module in modules)


# Moves


def move(group: Mapping[str, str]) -> None:
    """Move some files below tests/, and write what refers to them anew."""
    for new in group.values():
        _make_packages(TESTS / new)
    for old, new in group.items():
        _run("git", "mv", TESTS / old, TESTS / new)
    for folder in {(TESTS / old).parent for old in group} - {TESTS}:
        if [path.name for path in Path(folder).glob("*") if path.name != "__pycache__"] == ["__init__.py"]:
            _run("git", "rm", "-q", Path(folder) / "__init__.py")
    paths = {str(TESTS / old): str(TESTS / new) for old, new in group.items()}
    _rewrite(paths)
    for old, new in group.items():
        for path in [Path(TESTS / new)] if new.endswith(".py") else sorted(Path(TESTS / new).rglob("*.py")):
            was = PurePosixPath(str(path).replace(str(TESTS / new), str(TESTS / old), 1))
            _replace(path, _anchored(path.read_text(), was, PurePosixPath(path), {}))
    for path in Path(TESTS).rglob("*.py"):
        _replace(path, _anchored(path.read_text(), PurePosixPath(path), PurePosixPath(path), paths))
    _tidy()


def _make_packages(path: PurePosixPath) -> None:
    for folder in [each for each in reversed(path.parents) if each.is_relative_to(TESTS) and each != TESTS]:
        name = str(folder.relative_to(TESTS))
        Path(folder).mkdir(exist_ok=True)
        marker = Path(folder) / "__init__.py"
        if name.split("/")[0] == "data" or marker.exists():
            continue
        about = OTHER | HELPERS
        marker.write_text(f'"""{about.get(name) or "Tests of gitboot." + name.replace("/", ".") + "."}"""\n')
        _run("git", "add", marker)


def _rewrite(paths: Mapping[str, str]) -> None:
    """Write anew all that names files by their paths or modules by their dotted names."""
    modules = {_dotted(old): _dotted(new) for old, new in paths.items() if _is_python(old, new)}
    named = re.compile(rf"(?<![\w.])({_either(modules)})(?!\w)") if modules else None
    at = re.compile(rf"(?<![\w-])({_either(paths)})(?![\w.-]*\w)")
    for path in _texts():
        text = before = path.read_text()
        if "tests" not in text and path.name != "test_security.py":
            continue
        if path.suffix == ".py":
            text = _imports(text, modules)
        if named is not None:
            text = named.sub(lambda found: modules[found[1]], text)
        text = at.sub(lambda found: paths[found[1]], text)
        if "SHOWN_BY" in text:  # the tests of each promise, below tests/
            text = _shown(text, paths)
        if path == Path(TESTS / "conftest.py"):
            text = _ordered(text, paths)
        if text != before:
            path.write_text(text)


def _is_python(old: str, new: str) -> bool:
    return old.endswith(".py") or any(Path(new).rglob("*.py"))


def _either(words: Mapping[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _imports(text: str, modules: Mapping[str, str]) -> str:
    """Write `from package import module` anew, and the names of such modules in the text."""
    packages = _either({module.rpartition(".")[0]: "" for module in modules})
    if not modules or not re.search(rf"from ({packages}) import", text):
        return text
    tree = ast.parse(text)
    edits = Edits(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        moved = {alias: modules.get(f"{node.module}.{alias.name}") for alias in node.names}
        if not any(moved.values()):
            continue
        lines = []
        for alias, new in moved.items():
            if new is None:
                lines.append(f"from {node.module} import {_alias(alias.name, alias.asname)}")
                continue
            package, _, name = new.rpartition(".")
            known_as = alias.asname
            if known_as is None and name != alias.name:
                if alias.name in _bound(tree, node) or name in _bound(tree, node):
                    known_as = alias.name
                else:
                    for used in ast.walk(tree):
                        if isinstance(used, ast.Name) and used.id == alias.name:
                            edits.replace(used, name)
            lines.append(f"from {package} import {_alias(name, known_as)}")
        edits.replace(node, ("\n" + " " * node.col_offset).join(lines))
    return edits.done()


def _alias(name: str, known_as: str | None) -> str:
    return name if known_as in (None, name) else f"{name} as {known_as}"


def _bound(tree: ast.AST, but: ast.AST) -> set[str]:
    """Return each name that a module binds anywhere, but for one import."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names) if node is not but:
                found.update((alias.asname or alias.name).partition(".")[0] for alias in names)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.add(name)
    return found


def _anchored(text: str, was: PurePosixPath, now: PurePosixPath, moved: Mapping[str, str]) -> str:
    """Write `Path(__file__).parent / "x"` anew: for a file that moved, or for a target that did."""
    if "__file__" not in text:
        return text
    edits = Edits(text)
    for node in _outermost(ast.parse(text)):
        base, parts = _chain(node)
        folder = _base(base, was)
        if folder is None:
            continue
        target = folder.joinpath(*(part for each in parts for part in each.split("/")))
        new = target
        for old, to in moved.items():
            if target.is_relative_to(old):
                new = PurePosixPath(to) / target.relative_to(old)
        if was == now and new == target:
            continue
        edits.replace(node, _spelt(new, now, is_slashed=any("/" in part for part in parts)))
    return edits.done()


def _outermost(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the largest expressions that are a path from `__file__` with constant parts."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.expr) and _base(_chain(node)[0], PurePosixPath("a/b/c/d/e")) is not None:
            yield node
        else:
            todo.extend(ast.iter_child_nodes(node))


def _chain(node: ast.expr) -> tuple[ast.expr, list[str]]:
    parts: list[str] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        if not isinstance(node.right, ast.Constant):
            return node, []
        parts.insert(0, str(node.right.value))
        node = node.left
    return node, parts


def _base(node: ast.expr, file: PurePosixPath) -> PurePosixPath | None:
    """Return the folder of the repository that an expression like `Path(__file__).parent.parent` is."""
    match node:
        case ast.Attribute(value=ast.Call(args=[ast.Name(id="__file__")]), attr="parent"):
            return file.parent
        case ast.Attribute(value=value, attr="parent"):
            inner = _base(value, file)
            return None if inner is None else inner.parent
        case ast.Subscript(
            value=ast.Attribute(value=ast.Call(args=[ast.Name(id="__file__")]), attr="parents"),
            slice=ast.Constant(value=int(number)),
        ):
            return file.parents[number]
    return None


def _spelt(target: PurePosixPath, file: PurePosixPath, *, is_slashed: bool) -> str:
    ancestor = next(each for each in file.parents if target.is_relative_to(each))
    number = list(file.parents).index(ancestor)
    start = "Path(__file__).parent" + ("" if number == 0 else f"s[{number}]")
    rest = target.relative_to(ancestor)
    if rest == PurePosixPath("."):
        return start
    parts = [str(rest)] if is_slashed else rest.parts
    return " / ".join((start, *(f'"{part}"' for part in parts)))


def _shown(text: str, paths: Mapping[str, str]) -> str:
    """Write the table of the page on security anew, whose files are named below tests/."""
    names = {
        str(PurePosixPath(old).relative_to(TESTS)): str(PurePosixPath(new).relative_to(TESTS))
        for old, new in paths.items()
    }
    text = re.sub(r'(?<=")([\w/]+\.py)(?=::)', lambda found: names.get(found[1], found[1]), text)
    lines = []
    for line in text.split("\n"):
        if len(line) > WIDTH and (found := re.fullmatch(r'(.*)"([\w/]+\.py::)(\w+)"(.*)', line)):
            lines += [f'{found[1]}"{found[2]}"', f'{" " * (len(line) - len(line.lstrip()))}"{found[3]}"{found[4]}']
        else:
            lines.append(line)
    return "\n".join(lines)


def _ordered(text: str, paths: Mapping[str, str]) -> str:
    """Write the order of the files of tests anew, and the data that conftest.py names."""
    for old, new in paths.items():
        was, now = (Path(path).relative_to(TESTS) for path in (old, new))
        if was.name.startswith("test_"):
            text = text.replace(f'"{was.with_suffix("")}"', f'"{now.with_suffix("")}"')
        text = text.replace(f'_HERE / "{was}"', " / ".join(("_HERE", *(f'"{part}"' for part in now.parts))))
    return text


# Merges


def merge(old: PurePosixPath, new: PurePosixPath) -> None:
    """Put a module of helpers into another one, and write what imports it anew."""
    source, target = Module(old, new), Module(new, new)
    among = {_dotted(str(old)), _dotted(str(new))}
    here, there = (
        {name: origin for name, origin in each.imports.items() if origin[0] not in among} for each in (target, source)
    )
    taken = source.names() & (target.names() | here.keys())
    renamed = {name: f"_{old.stem}{name}" for name in taken if name.startswith("_")}
    collisions = {name for name in here.keys() & there.keys() if here[name] != there[name]}
    collisions |= (taken - renamed.keys()) | (there.keys() & target.names())
    if collisions:
        raise SystemExit(f"{old} and {new} have different {sorted(collisions)}")
    body = source.body
    for name, fresh in renamed.items():
        fresh = fresh.upper() if name.isupper() else fresh
        body = re.sub(rf"(?<![\w.]){name}(?!\w)", fresh, body)
        print(f"renamed {name} of {old} to {fresh}")
    lines = sorted({line for each in (target, source) for line, origin in each.lines if origin[0] not in among})
    checking = sorted(
        {line for each in (target, source) for line, origin in each.checking if origin[0] not in among} - set(lines)
    )
    text = f'"""{MERGED[new.stem]}"""\n\n' + "from __future__ import annotations\n\n" + "\n".join(lines) + "\n"
    if checking:
        text += "\nif TYPE_CHECKING:\n" + "".join(f"    {line}\n" for line in checking)
    Path(new).write_text(f"{text}\n\n{target.body}\n\n{body}\n")
    _run("git", "rm", "-q", "-f", old)
    _rewrite({str(old): str(new)})
    _tidy()


class Module:
    """A module in parts: imports, and the rest without its docstring."""

    def __init__(self, path: PurePosixPath, later: PurePosixPath) -> None:
        text = _anchored(Path(path).read_text(), path, later, {})
        tree = ast.parse(text)
        lines = text.splitlines(keepends=True)
        self.tree = tree
        self.lines: list[tuple[str, tuple[str, str]]] = []
        self.checking: list[tuple[str, tuple[str, str]]] = []
        self.imports: dict[str, tuple[str, str]] = {}
        left_out: set[int] = set()
        for number, node in enumerate(tree.body):
            match node:
                case ast.Expr(value=ast.Constant(value=str())) if number == 0:
                    pass
                case ast.ImportFrom(module="__future__"):
                    pass
                case ast.Import() | ast.ImportFrom():
                    self.lines += self._lines(node, lines)
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    self.checking += [each for inner in node.body for each in self._lines(inner, lines)]
                case _:
                    continue
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        self.body = "".join(line for number, line in enumerate(lines, 1) if number not in left_out).strip("\n")

    def _lines(self, node: ast.stmt, lines: Sequence[str]) -> Iterator[tuple[str, tuple[str, str]]]:
        comment = re.search(r"  #.*", lines[(node.end_lineno or node.lineno) - 1])
        assert isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names:
            words = _alias(alias.name, alias.asname)
            if isinstance(node, ast.ImportFrom):
                origin, line = (node.module or "", alias.name), f"from {node.module} import {words}"
            else:
                origin, line = (alias.name, ""), f"import {words}"
            self.imports[(alias.asname or alias.name).partition(".")[0]] = origin
            yield line + (comment[0] if comment else ""), origin

    def names(self) -> set[str]:
        found = set()
        for node in self.tree.body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Assign(targets=targets):
                    found.update(
                        each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
                    )
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(name)
        return found


# The rules of tests


_RULE: Final = """
# Folders of tests that mirror no package: what they show goes through several packages, or is beside them.
NOT_OF_A_PACKAGE = {"boots", "docs", "packages", "project", "scenarios"}


def _names_a_module(path: Path) -> bool:
    modules = {each.stem for each in (ROOT / "gitboot" / path.parent).glob("*.py")} - {"__init__", "__main__"}
    name = path.stem.removeprefix("test_")
    return any(name == module or name.startswith(f"{module}_") for module in modules)


def test_each_test_file_is_named_for_a_module_of_the_package_that_its_folder_mirrors() -> None:
    paths = [path.relative_to(ROOT / "tests") for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    mirrored = [path for path in paths if path.parts[0] not in NOT_OF_A_PACKAGE]
    assert len(mirrored) > 150
    assert [str(path) for path in mirrored if not _names_a_module(path)] == []
"""

_CONTRIBUTING: Final = """\
- `tests/` mirrors the packages: `tests/bmc/test_override_steps.py` is about `gitboot/bmc/override_steps.py`. If a
  module has several files of tests, their names begin with the module: `test_override_steps_virtual_media.py`. Tests of
  several packages are in `tests/scenarios/`, tests of pages in `tests/docs/`, tests of the repository in
  `tests/project/`. Helpers are in `tests/helpers/`, data in `tests/data/` and `tests/golden/`.
"""


def _prepare_conftest() -> None:
    """Let tests be in folders, before any of them is."""
    path = Path(TESTS / "conftest.py")
    text = path.read_text()
    start, end = text.index("_FIRST: Final = ("), text.index("_LEFT_OUT: Final = {")
    places = {each.stem: str(each.relative_to(TESTS).with_suffix("")) for each in Path(TESTS).rglob("test_*.py")}
    places |= {each.stem: each.stem for each in Path(TESTS).glob("test_*.py")}
    first = re.sub(r'"(test_\w+)"', lambda found: f'"{places[found[1]]}"', text[start:end])
    text = text[:start] + first + text[end:]
    for old, new in (
        (
            'modules = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))',
            'paths = (path for path in _HERE.rglob("test_*.py") if path.parent.name not in _LEFT_OUT)\n'
            "    modules = sorted(_name_of(path) for path in paths)",
        ),
        ('import_module(f"tests.{module}")', "import_module(f\"tests.{module.replace('/', '.')}\")"),
        (
            "def pytest_collection(session",
            'def _name_of(path: Path) -> str:\n    """Return the path of a file below tests/, without its suffix."""\n'
            '    return path.relative_to(_HERE).with_suffix("").as_posix()\n\n\ndef pytest_collection(session',
        ),
        ("place.get(path.stem, len(place))", "place.get(_name_of(path), len(place))"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text)
    _tidy()
    _commit("tests: order files of tests by their paths")


def _change_rules() -> None:
    path = Path(TESTS / "project/test_project.py")
    text = path.read_text()
    gone = ("_room", "ACROSS", OLD_RULE)
    nodes = [node for node in ast.parse(text).body if _name(node) in gone]
    if [_name(node) for node in nodes] != list(gone):
        print(f"{path}: has another rule for names of files than {gone}: look whether one is left")
    lines = text.splitlines(keepends=True)
    for node in reversed(nodes):
        start = node.lineno - 1
        while lines[start - 1].startswith("#"):
            start -= 1
        rule = _RULE if node is nodes[-1] else ""
        lines[start : node.end_lineno] = [rule]
    path.write_text("".join(lines))
    path = Path("CONTRIBUTING.md")
    old = re.compile(r"- `tests/test_<package>_<module>\.py`(?:.*\n)(?:  .*\n)*")
    text, number = old.subn(_CONTRIBUTING, path.read_text())
    if number != 1:
        print("CONTRIBUTING.md: write by hand how files of tests are named")
    path.write_text(text)
    for name, line, new in REWORDED:
        path = Path(TESTS / name)
        if line not in (text := path.read_text()):
            print(f"{path}: write by hand in place of {line!r}")
        path.write_text(text.replace(line, new))
    _replace(Path(TESTS / "__init__.py"), '"""The tests: folders mirror the packages of gitboot."""\n')
    _tidy()


def _name(node: ast.stmt) -> str:
    match node:
        case (
            ast.FunctionDef(name=name)
            | ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name))
        ):
            return name
    return ""


# Tools


class Edits:
    """Replacements in a text, by nodes of its syntax tree."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._edits: dict[tuple[int, int], str] = {}

    def replace(self, node: ast.expr | ast.stmt, new: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        span = (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )
        self._edits[span] = new

    def done(self) -> str:
        data = self._data
        for (start, end), new in sorted(self._edits.items(), reverse=True):
            data = data[:start] + new.encode() + data[end:]
        return data.decode()


def collected() -> Counter[str]:
    """Return how often pytest collects each function with its parameters, whatever file it is in."""
    lines = _run(BIN / "pytest", "--collect-only", "-q", check=False).splitlines()
    found = Counter(line.partition("::")[2] for line in lines if "::" in line)
    if not any(re.match(r"\d+ tests collected", line) for line in lines[-3:]):
        raise SystemExit("\n".join(lines[-30:]))
    return found


def _texts() -> list[Path]:
    """Return the files of the repository that may name files of tests."""
    names = _run("git", "ls-files", "--cached").splitlines()
    kinds = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".sh", ".json", ""}
    paths = (Path(name) for name in names if not LEFT_AS_WRITTEN.match(name))
    return [path for path in paths if path.suffix in kinds and path.is_file() and not path.is_symlink()]


def _replace(path: Path, text: str) -> None:
    if text != path.read_text():
        path.write_text(text)


def _tidy() -> None:
    _run(BIN / "ruff", "check", "-q", "--fix", "--select", "I", "benchmarks", "fuzz", "scripts", "tests", check=False)
    _run(BIN / "ruff", "format", "-q")


def _commit(message: str) -> None:
    _run("git", "add", "-A", ".")
    _run("git", "commit", "-q", "-m", message)


def _git(*words: str) -> str:
    return _run("git", *words)


def _run(*words: object, check: bool = True) -> str:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{words}: {done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
