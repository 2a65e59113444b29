"""The modules of gitboot, their definitions and imports, and the map to new modules."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

HERE = Path(__file__).parent


def name_of(path: str) -> str:
    """Return the module name of a path below gitboot/."""
    return "gitboot." + path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def read_map() -> dict[str, str]:
    """Return the target of each module by path; later files replace entries of modules.tsv."""
    found = {}
    for name in ("modules.tsv", "map.tsv"):
        for line in (HERE / name).read_text().splitlines():
            parts = line.split("\t")
            if len(parts) >= 2 and not line.startswith("#") and parts[0] != "today":
                found[parts[0]] = parts[1]
    return found


def parts_of(target: str) -> tuple[list[tuple[set[str], str]], str]:
    """Return the names that leave a split module with their targets, and the target of the rest ("" if none)."""
    pieces, rest = [], ""
    for part in target.removeprefix("split:").split(";"):
        names, _, to = (each.strip() for each in part.partition(" -> "))
        if names == "rest":
            rest = to
        else:
            pieces.append(({each.strip() for each in names.split(",")}, to))
    return pieces, rest


@dataclass
class Segment:
    names: set[str]
    first: int
    last: int
    node: ast.stmt


@lru_cache(maxsize=4000)
def parse(text: str) -> ast.Module:
    return ast.parse(text)


def is_checking(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def stmt_names(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {
            n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    if isinstance(node, (ast.If, ast.Try, ast.With, ast.For)):
        found = {"__main__"} if "__main__" in ast.unparse(node)[:40] else set()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                found |= stmt_names(child)
            elif isinstance(child, ast.ExceptHandler):
                for each in child.body:
                    found |= stmt_names(each)
        return found
    return set()


def segments(text: str) -> list[Segment]:
    """Return the top-level statements but imports, each with the comments above it."""
    lines = text.splitlines()
    found = []
    prev = 0
    for i, node in enumerate(parse(text).body):
        start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        if (
            isinstance(node, (ast.Import, ast.ImportFrom))
            or is_checking(node)
            or (i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        ):
            prev = node.end_lineno
            continue
        s = start
        while s - 1 > prev and lines[s - 2].startswith("#"):
            s -= 1
        # a trailing comment line block that ends a region stays with the statement above; fine
        found.append(Segment(stmt_names(node), s, node.end_lineno, node))
        prev = node.end_lineno
    return found


def used(node: ast.AST) -> set[str]:
    found, local = set(), set()
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        local = {n.arg for n in ast.walk(node) if isinstance(n, ast.arg)}
        local |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for n in ast.walk(node):
        if isinstance(n, ast.Name):
            if n.id not in local:
                found.add(n.id)
        elif isinstance(n, ast.Constant) and isinstance(n.value, str) and re.fullmatch(r"[\w.\[\], |]+", n.value):
            found.update(re.findall(r"[A-Za-z_]\w*", n.value))
    return found


def imports(text: str):
    """Yield (node, is type checking only) of the top-level imports."""
    for node in parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, False
        elif is_checking(node):
            for each in node.body:
                yield each, True


def choose(segs: list[Segment], names: set[str]) -> list[Segment]:
    """Return the segments of these names and of private ones that only they use."""
    go = [s for s in segs if s.names & names]
    while True:
        stay = [s for s in segs if s not in go]
        used_go = set().union(*(used(s.node) for s in go)) if go else set()
        more = []
        for s in stay:
            if len(s.names) == 1 and (n := next(iter(s.names))).startswith("_") and n in used_go:
                if not any(n in used(t.node) for t in stay if t is not s):
                    more.append(s)
        if not more:
            return sorted(go, key=lambda s: s.first)
        go += more
