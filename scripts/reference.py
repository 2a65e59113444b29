"""Write docs/reference/: every field of every kind, every problem code, every command, from the code itself.

`scripts/reference.py --check` says which page differs from what the code says.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gitboot.cli import cli
from gitboot.codes import Code
from gitboot.model.schema import KINDS, schema

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"


def fields_page() -> str:
    lines = [
        "# Every field of every kind",
        "",
        "Made from the models by `scripts/reference.py`. A field without *required* may be left out; its default is",
        "in its description. `[]` is a list, `{}` a mapping whose keys are free.",
        "",
    ]
    for kind in KINDS:
        document = schema(kind)
        lines += [f"## {kind.__name__}", "", str(document["description"]), ""]
        lines += ["| field | type | |", "|---|---|---|"]
        spec = document["properties"]["spec"]
        lines += list(_rows(document, spec, "spec", required=True))
        lines.append("")
    return "\n".join(lines)


def _rows(root: dict[str, Any], node: dict[str, Any], path: str, *, required: bool) -> Iterator[str]:
    found = _resolved(root, node)
    text = str(node.get("description") or found.get("description") or "").replace("|", "\\|")
    need = "*required.* " if required else ""
    yield f"| `{path}` | {_type(root, node)} | {need}{text} |"
    for shape in _shapes(root, node):
        needed = shape.get("required", [])
        for name, each in shape.get("properties", {}).items():
            yield from _rows(root, each, f"{path}.{name}", required=name in needed)
        if "items" in shape and "properties" in _resolved(root, shape["items"]):
            inner = _resolved(root, shape["items"])
            for name, each in inner["properties"].items():
                yield from _rows(root, each, f"{path}[].{name}", required=name in inner.get("required", []))
        values = shape.get("additionalProperties")
        if isinstance(values, dict) and "properties" in (inner := _resolved(root, values)):
            for name, each in inner["properties"].items():
                yield from _rows(root, each, f"{path}{{}}.{name}", required=name in inner.get("required", []))


def _resolved(root: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref")
    return root["$defs"][reference.rpartition("/")[2]] if reference else node


def _shapes(root: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    branches = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    return [_resolved(root, each) for each in branches or [node]]


def _type(root: dict[str, Any], node: dict[str, Any]) -> str:
    names = []
    for shape in _shapes(root, node):
        if "enum" in shape:
            names.append(" · ".join(f"`{word}`" for word in shape["enum"]))
        elif "items" in shape:
            names.append("[]")
        elif "properties" in shape:
            names.append("mapping")
        elif "additionalProperties" in shape:
            names.append("{}")
        elif shape.get("type") != "null":
            kind = shape.get("type", "text")
            names.append("text" if isinstance(kind, list) or kind == "string" else kind)
    return " or ".join(dict.fromkeys(names))


def codes_page() -> str:
    lines = ["# Every problem code", "", "Also from `gitboot explain CODE`. Codes are stable.", ""]
    for code in sorted(Code, key=lambda each: each.value):
        lines += [f"## {code.value}: {code.headline}", "", f"{code.why} **Mend:** {code.mend}", ""]
    return "\n".join(lines)


def commands_page() -> str:
    lines = ["# Every command", ""]
    context = click.Context(cli, info_name="gitboot", max_content_width=100, terminal_width=100)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        shown = click.Context(command, info_name=name, parent=context, max_content_width=100, terminal_width=100)
        lines += [f"## gitboot {name}", "", "```", command.get_help(shown), "```", ""]
    return "\n".join(lines)


PAGES = {"fields.md": fields_page, "problems.md": codes_page, "commands.md": commands_page}


def main() -> int:
    if "--check" in sys.argv[1:]:
        differ = [name for name, page in PAGES.items() if not _is(FOLDER / name, page())]
        for name in differ:
            print(f"docs/reference/{name} is not what the code says: scripts/reference.py")
        return 1 if differ else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
