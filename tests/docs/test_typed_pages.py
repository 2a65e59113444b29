"""Tests type everything that the pages about loaders, DHCP and TLS tell a reader to type.

A test types a block of code if it reads the block from the page with `find_code_block`. A call names a page and the
beginning of a block, so this module finds the blocks without a call.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Final, NamedTuple

from gitboot.problems import Code
from tests.docs.test_documentation import PAGES, problems
from tests.helpers.cases import for_each
from tests.helpers.documentation import ROOT, Block, find_code_block, read_page, require_inline_code

TYPED: Final = (
    "docs/how-to/dhcp.md",
    "docs/how-to/https-for-machines.md",
    "docs/how-to/secure-boot.md",
    "docs/how-to/verify-files-with-ipxe.md",
    "docs/reference/loaders.md",
)
READERS: Final = (find_code_block.__name__, require_inline_code.__name__)

# Blocks for programs that cannot run in a test. The page says so.
NOT_TESTED: Final = (
    ("docs/how-to/dhcp.md", '$scope = "192.0.2.0"'),  # Windows
    ("docs/how-to/dhcp.md", "/ip dhcp-server network set"),  # MikroTik RouterOS
)
# Inline code that is no command and no setting, or that a block of the same page contains.
NAMES: Final = frozenset(
    {
        *("52:54:00", "DNS:", "IP:", "localboot -1", "localboot 0", "grub-efi-arm64-bin:arm64"),
        *("http://192.0.2.1:8080", "http://192.0.2.1:8080/boot.ipxe", "port=0"),
        # Output of other programs, which the boot tests read from the consoles
        *("Access Denied", "Operation not supported", "bad shim signature", "this iPXE has no imgverify"),
        # Names of commands, which test_documentation.py checks
        *("gitboot doctor", "gitboot run", "gitboot validate"),
        # Build options of iPXE, which a person used once (tests/boots/boots.md)
        *("CERT=ca.pem", "TRUST=ca.pem"),
    }
)


class Call(NamedTuple):
    """A call that reads something from a page."""

    reader: str
    page: str
    text: str


def _list_constants(module: ast.Module) -> dict[str, str]:
    """Return the texts that a module assigns to names at its top level."""
    found: dict[str, str] = {}
    for each in module.body:
        targets = (
            [each.target] if isinstance(each, ast.AnnAssign) else each.targets if isinstance(each, ast.Assign) else []
        )
        value = each.value if isinstance(each, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}
    return found


def _list_calls(path: Path, constants: dict[Path, dict[str, str]]) -> Iterator[Call]:
    """Yield the calls of a module with constant arguments, in functions that something uses."""
    text = path.read_text()
    if not any(f"{reader}(" in text for reader in READERS):
        return
    module = ast.parse(text)
    names = _find_names(module, constants)
    used = Counter(each.id for each in ast.walk(module) if isinstance(each, ast.Name))
    for part in module.body:
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and not (
            part.name.startswith("test_") or used[part.name] or _is_imported(part.name, path)
        ):
            continue
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS:
                page, start = (_evaluate(each, names) for each in node.args)
                if page is not None and start is not None:
                    yield Call(node.func.id, page, start)


def _find_names(module: ast.Module, constants: dict[Path, dict[str, str]]) -> dict[str, str]:
    """Return the texts of a module's names, also of imported ones."""
    found = _list_constants(module)
    for each in module.body:
        if isinstance(each, ast.ImportFrom) and each.module is not None:
            path = ROOT / f"{each.module.replace('.', '/')}.py"
            if path.is_relative_to(ROOT / "tests") and path.exists():
                if path not in constants:
                    constants[path] = _list_constants(ast.parse(path.read_text()))
                known = constants[path]
                found |= {name.asname or name.name: known[name.name] for name in each.names if name.name in known}
    return found


def _evaluate(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return names.get(node.id) if isinstance(node, ast.Name) else None


def _is_imported(name: str, path: Path) -> bool:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    imports = re.compile(rf"^from {re.escape(module)} import [^\n]*\b{name}\b", re.MULTILINE)
    return any(imports.search(each.read_text()) for each in (ROOT / "tests").rglob("test_*.py"))


def list_calls() -> set[Call]:
    constants: dict[Path, dict[str, str]] = {}
    return {call for path in sorted((ROOT / "tests").rglob("*.py")) for call in _list_calls(path, constants)}


def find_untyped(blocks: Iterator[Block] | tuple[Block, ...], starts: set[str]) -> list[str]:
    """Return the places of blocks that begin with none of these texts."""
    return [str(each) for each in blocks if not dedent(each.text).startswith(tuple(starts))]


def test_a_test_types_each_block_of_code() -> None:
    calls = list_calls()
    untyped = []
    for page in TYPED:
        blocks = tuple(each for each in PAGES[page].shown if each.language != "yaml")  # these have a check of their own
        starts = {call.text for call in calls if call.reader == find_code_block.__name__ and call.page == page}
        starts |= {start for of, start in NOT_TESTED if of == page}
        assert blocks and starts
        untyped += find_untyped(blocks, starts)
    assert untyped == []


def test_a_test_types_each_command_and_setting_in_a_sentence() -> None:
    calls = list_calls()
    untyped = []
    for page in TYPED:
        known = {call.text for call in calls if call.reader == require_inline_code.__name__ and call.page == page}
        inline = {each.text for each in PAGES[page].inline if re.search(r"[ =:]", each.text)}
        untyped += sorted(f"{page}: {each}" for each in inline - known - NAMES)
    assert untyped == []
    shown = {each.text for page in TYPED for each in PAGES[page].inline}
    assert NAMES - shown == set(), "these are on no page"


SECURE_BOOT: Final = "docs/how-to/secure-boot.md"


@for_each(
    ("of", "setting"),
    [
        ("Server spec", require_inline_code(SECURE_BOOT, "secureBoot: true")),
        ("Server spec", require_inline_code(SECURE_BOOT, "loader: iPXE")),
        ("Server spec", require_inline_code("docs/reference/loaders.md", "loader: GRUB")),
        ("BootProfile spec", require_inline_code(SECURE_BOOT, "method: UefiHttp")),
        ("BootProfile spec", require_inline_code(SECURE_BOOT, "httpBoot: uki")),
    ],
)
def test_a_setting_in_a_sentence_is_accepted_in_its_document(of: str, setting: str) -> None:
    def is_accepted(text: str) -> bool:
        found = problems(Block(page="x.md", line=1, language="yaml", text=f"{text}\n", of=of))
        return all(each.code is Code.COMBINATION for each in found)  # other fields are missing

    assert is_accepted(setting)
    assert not is_accepted(f"{setting}x")


def test_each_block_that_a_test_types_is_on_its_page_once() -> None:
    calls = {call for call in list_calls() if call.page in TYPED}
    assert len(calls) > 25
    for call in calls:
        (find_code_block if call.reader == find_code_block.__name__ else require_inline_code)(call.page, call.text)
    for page, start in NOT_TESTED:
        find_code_block(page, start)


def test_a_block_without_a_test_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Type:\n\n    gitboot a\n\n1. Then:\n\n        gitboot b\n\n    More:\n\n    ```\n    gitboot c\n    ```\n"
    )
    blocks = read_page(str(page)).shown
    assert len(blocks) == 3
    assert find_untyped(blocks, {"gitboot b", "gitboot c"}) == [f"{page}:3"]
    assert find_untyped(blocks, {"gitboot a", "gitboot c"}) == [f"{page}:7"]
    assert find_untyped(blocks, {"gitboot a", "gitboot b"}) == [f"{page}:12"]
