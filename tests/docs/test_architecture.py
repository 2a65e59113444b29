"""The pages about modules: each path and name exists, and the picture has the layers that import-linter enforces."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

from gitboot.status.work_progress import Stage
from tests.helpers.cases import for_each
from tests.helpers.documentation import ROOT

PAGES: Final = ("docs/explanation/architecture.md", "docs/reference/modules.md")
TEXT: Final = "\n".join((ROOT / page).read_text() for page in PAGES)
PICTURE: Final = re.search(r"^```\n(.*?)^```$", TEXT, re.M | re.S)
PROSE: Final = re.sub(r"^```\n.*?^```$", "", TEXT, flags=re.M | re.S)
# In backquotes, and neither a path nor a name in the code.
WORDS: Final = re.compile(r"gitboot( [a-z]+)?( --[a-z-]+)?|--[a-z-]+|make [a-z]+|Once|Pxe|Once Pxe|/v1/boot/.*|[|]")
PLACEHOLDER: Final = re.compile(r"\b(?:SYSTEM|TARGET|COMMAND)(?=\.py)|(?<=test_)(?:TARGET|COMMAND)")


def split_blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs, the items of lists with the lines that continue them, and the cells of tables."""
    block = ""
    for line in text.splitlines():
        if line.startswith("|"):
            yield from line.strip("|").split(" | ")
        elif not line.strip() or re.match(r" *(?:[-*]|\d+\.) ", line):
            yield block
            block = line
        else:
            block = f"{block}\n{line}"
    yield block


def find_path(word: str) -> Path | None:
    """Return the file or folder that a word of the page names, or None."""
    pattern = PLACEHOLDER.sub("*", word)
    for base in (ROOT / "gitboot", ROOT):
        if found := next(iter(sorted(base.glob(pattern))), None):
            return found
    return None


def is_path(word: str) -> bool:
    return "/" in word or word.endswith((".py", ".toml", ".md"))


@cache
def defined_names(path: Path) -> frozenset[str]:
    """Return the functions, classes, parameters, and variables that a module defines."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
    return frozenset(found)


def defines(modules: Sequence[Path], word: str) -> bool:
    """Return whether one of the modules defines a name. "…" stands for any part of the name."""
    pattern = word.replace("…", "*")
    return any(fnmatchcase(name, pattern) for module in modules for name in defined_names(module))


def find_faults(block: str) -> Iterator[str]:
    """Yield what is wrong with the words in backquotes of one block."""
    words = [word for word in re.findall(r"`([^`]+)`", block) if WORDS.fullmatch(word) is None]
    paths = {word: find_path(word) for word in words if is_path(word)}
    yield from (f"no file {word}" for word, path in paths.items() if path is None)
    modules = [path for path in paths.values() if path is not None and path.suffix == ".py"]
    for word in words:
        if not is_path(word) and not defines(modules, word):
            yield f"no {word} in {', '.join(str(each.relative_to(ROOT)) for each in modules) or 'any module'}"
    for module, names in re.findall(r"`([^`]+\.py)`\s+\(([^()]*)\)", block):  # the names of just this module
        path = find_path(module)
        for word in re.findall(r"`([^`]+)`", names):
            if path is not None and not is_path(word) and not defines([path], word):
                yield f"no {word} in {path.relative_to(ROOT)}"


def stage_items() -> list[str]:
    return re.findall(r"^   - `(\w+)` ", PROSE, re.MULTILINE)


def find_wrong_names(text: str, stages: Sequence[str]) -> list[str]:
    without = re.sub(rf"^   - `(?:{'|'.join(stages)})` ", "   - ", text, flags=re.MULTILINE)
    return [each for block in split_blocks(without) for each in find_faults(block)]


def test_each_path_and_each_name_on_the_pages_exists() -> None:
    assert len(re.findall(r"`[^`]+`", PROSE)) > 200
    assert find_wrong_names(PROSE, stage_items()) == []


@for_each(
    ("text", "said"),
    [
        ("`bmc/override_step.py` decides", ["no file bmc/override_step.py"]),
        ("`next_steps` (`bmc/override_steps.py`)", ["no next_steps in gitboot/bmc/override_steps.py"]),
        ("- `next_step` (`bmc/override_steps.py`)\n- `next_step`", ["no next_step in any module"]),
        ("| `model/fleet.py` (`Outputs`) | `docs/` |", 2 * ["no Outputs in gitboot/model/fleet.py"]),
        (
            "`render/boot_files.py` (`LOADERS`) and `render/dhcp.py` (`LOADERS`)",
            ["no LOADERS in gitboot/render/boot_files.py"],
        ),
        ("`importers/sources/SYSTEM.py` and `publish/SYSTEM.md`", ["no file publish/SYSTEM.md"]),
        ("`gitboot run`, `--once` and `make reference`", []),
    ],
)
def test_a_wrong_path_or_name_is_noticed(text: str, said: list[str]) -> None:
    assert find_wrong_names(text, ["plan"]) == said


def test_the_stages_are_those_of_a_reconcile_and_each_is_a_function_of_its_name() -> None:
    beside = {Stage.FETCH, Stage.EVALUATE, Stage.BMC, Stage.RECONCILE}
    assert stage_items() == [str(stage) for stage in Stage if stage not in beside]
    folder = ROOT / "gitboot" / "controller" / "stages"
    bodies = [node for path in sorted(folder.glob("*.py")) for node in ast.parse(path.read_text()).body]
    functions = [node.name for node in bodies if isinstance(node, ast.FunctionDef)]
    assert [name for name in stage_items() if functions.count(name) != 1] == []


def parse_layers(picture: str) -> list[set[str]]:
    """Return the packages and modules of each layer of a picture, the uppermost first."""
    found: list[set[str]] = []
    for line in filter(str.strip, picture.splitlines()):
        names = set(re.split(r"  ", line.removeprefix("| "))[0].split(" | "))
        if line.startswith("| "):
            found[-1] |= names
        else:
            found.append(names)
    return found


def test_the_picture_has_the_layers_of_import_linter() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (each for each in contracts if each["type"] == "layers")
    assert PICTURE is not None
    assert [{"__main__"}, *parse_layers(PICTURE[1])] == [set(each.split(" | ")) for each in contract["layers"]]


def test_a_picture_with_another_order_is_noticed() -> None:
    assert parse_layers("cli  a\ncontroller  b\n| importers  c\n\ngit | bmc  d\n") == [
        {"cli"},
        {"controller", "importers"},
        {"git", "bmc"},
    ]
