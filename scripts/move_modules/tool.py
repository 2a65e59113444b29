"""Move and merge modules of a package by script: git mv, text of bodies, imports everywhere."""
from __future__ import annotations
import ast, os, re, subprocess, sys, symtable, builtins
from pathlib import Path

PY_DIRS = ("gitboot", "tests", "benchmarks", "scripts", "example-repo", "packaging")
TEXT_GLOBS = ("pyproject.toml", "Makefile", ".ci/*", "*.md", "docs/**/*.md", "scripts/*", "packaging/**/*", "tests/**/*.yaml", "tests/**/*.toml", "benchmarks/**/*.py", ".github/**/*")
SKIP_TEXT = ("CHANGELOG.md", "docs/adr/")


def mod_path(mod: str) -> Path:
    p = Path(mod.replace(".", "/"))
    return p / "__init__.py" if p.is_dir() and (p / "__init__.py").exists() and not p.with_suffix(".py").exists() else p.with_suffix(".py")


def is_module(mod: str) -> bool:
    return Path(mod.replace(".", "/")).with_suffix(".py").exists() or (Path(mod.replace(".", "/")) / "__init__.py").exists()


def py_files() -> list[Path]:
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"], capture_output=True, text=True, check=True).stdout.split("\n")
    return [Path(p) for p in out if p and os.path.exists(p)]


def text_files() -> list[Path]:
    out = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
    found = []
    for p in out:
        if not p or p.endswith(".py") or any(p.startswith(s) for s in SKIP_TEXT) or p.startswith("benchmarks/flows/"):
            continue
        if p.endswith((".toml", ".md", ".yaml", ".yml", ".sh", ".txt", ".cfg", ".service", ".run")) or p in ("Makefile", ".ci/run", "Dockerfile") or p.startswith((".ci/", "scripts/", "packaging/", ".github/")):
            if os.path.exists(p) and os.path.getsize(p) < 2_000_000:
                found.append(Path(p))
    return found


class Edits:
    """Edits of a text by (line, column) in UTF-8 bytes, as ast counts."""

    def __init__(self, text: str) -> None:
        self.data = text.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.edits: list[tuple[int, int, bytes]] = []

    def at(self, line: int, col: int) -> int:
        return self.starts[line - 1] + col

    def span(self, node: ast.AST) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def replace(self, node: ast.AST, new: str) -> None:
        a, b = self.span(node)
        self.edits.append((a, b, new.encode()))

    def done(self) -> str:
        data = self.data
        for a, b, new in sorted(self.edits, reverse=True):
            data = data[:a] + new + data[b:]
        return data.decode()


def render_import(node: ast.ImportFrom, indent: str) -> str:
    names = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in node.names)
    line = f"from {node.module} import {names}"
    if len(indent) + len(line) > 120:
        line = f"from {node.module} import (\n" + "".join(f"{indent}    {a.name}{f' as {a.asname}' if a.asname else ''},\n" for a in node.names) + f"{indent})"
    return line


def bound_names(tree: ast.AST) -> set[str]:
    found = set()
    for n in ast.walk(tree):
        if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
            found.add(n.id)
        elif isinstance(n, ast.arg):
            found.add(n.arg)
        elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(n.name)
        elif isinstance(n, ast.alias):
            found.add((n.asname or n.name).split(".")[0])
        elif isinstance(n, ast.ExceptHandler) and n.name:
            found.add(n.name)
        elif isinstance(n, (ast.MatchAs, ast.MatchStar)) and n.name:
            found.add(n.name)
        elif isinstance(n, ast.MatchMapping) and n.rest:
            found.add(n.rest)
    return found


def rewrite_importers(old: str, new: str, *, moved: set[str] | None = None, inside: Path | None = None) -> None:
    """Rewrite every import of module ``old`` to ``new``; only of the names ``moved`` if given."""
    old_pkg, _, old_name = old.rpartition(".")
    new_pkg, _, new_name = new.rpartition(".")
    pattern = re.compile(rf"(?<![\w.]){re.escape(old)}(?![\w])")
    path_pattern = re.compile(rf"(?<![\w/]){re.escape(old.replace('.', '/'))}\.py(?!\w)")
    for path in py_files():
        text = path.read_text()
        if old_name not in text:
            continue
        tree = ast.parse(text)
        edits = Edits(text)
        changed = False
        renames: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                indent = " " * node.col_offset
                if node.module == old:
                    if moved is None:
                        node.module = new
                        edits.replace(node, render_import(node, indent)); changed = True
                    else:
                        go = [a for a in node.names if a.name in moved]
                        stay = [a for a in node.names if a.name not in moved]
                        if go:
                            lines = []
                            if stay:
                                lines.append(render_import(ast.ImportFrom(old, stay, 0), indent))
                            lines.append(render_import(ast.ImportFrom(new, go, 0), indent))
                            edits.replace(node, f"\n{indent}".join(lines)); changed = True
                elif node.module == old_pkg and moved is None and any(a.name == old_name for a in node.names):
                    stay = [a for a in node.names if a.name != old_name]
                    (one,) = [a for a in node.names if a.name == old_name]
                    asname = one.asname
                    if asname is None and new_name != old_name:
                        others = bound_names(tree) - {old_name}
                        if new_name in others:
                            asname = old_name
                        else:
                            renames[old_name] = new_name
                    if asname == new_name:
                        asname = None
                    lines = []
                    if stay:
                        lines.append(render_import(ast.ImportFrom(old_pkg, stay, 0), indent))
                    lines.append(render_import(ast.ImportFrom(new_pkg, [ast.alias(new_name, asname)], 0), indent))
                    edits.replace(node, f"\n{indent}".join(lines)); changed = True
            elif isinstance(node, ast.Import):
                for a in node.names:
                    if a.name == old and moved is None:
                        indent = " " * node.col_offset
                        if len(node.names) > 1:
                            print("MANUAL import", path, node.lineno)
                        elif a.asname:
                            edits.replace(node, f"import {new} as {a.asname}"); changed = True
                        else:
                            edits.replace(node, f"import {new}"); changed = True
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and moved is None:
                if pattern.search(node.value) or path_pattern.search(node.value):
                    a, b = edits.span(node)
                    raw = edits.data[a:b].decode()
                    fresh = path_pattern.sub(new.replace(".", "/") + ".py", pattern.sub(new, raw))
                    if fresh != raw and not isinstance(getattr(node, "_joined", None), bool):
                        edits.edits.append((a, b, fresh.encode())); changed = True
            elif isinstance(node, ast.Attribute) and moved is None:  # import gitboot.a.b; gitboot.a.b.x
                if ast.unparse(node) == old:
                    edits.replace(node, new); changed = True
        if renames:
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and node.id in renames:
                    edits.replace(node, renames[node.id])
        if changed:
            # overlapping edits of constants inside f-strings: keep the outermost only
            edits.edits = outermost(edits.edits)
            result = edits.done()
            ast.parse(result)
            path.write_text(result)
        elif moved is None and (pattern.search(text) or path_pattern.search(text)):
            result = path_pattern.sub(new.replace(".", "/") + ".py", pattern.sub(new, text))
            ast.parse(result)
            path.write_text(result)
    if moved is None:
        for path in text_files():
            try:
                text = path.read_text()
            except UnicodeDecodeError:
                continue
            if pattern.search(text) or path_pattern.search(text):
                path.write_text(path_pattern.sub(new.replace(".", "/") + ".py", pattern.sub(new, text)))


def outermost(edits):
    found = []
    for a, b, new in sorted(set(edits), key=lambda e: (e[0], -e[1])):
        if found and a < found[-1][1]:
            continue
        found.append((a, b, new))
    return found


def move(old: str, new: str) -> None:
    src, dst = mod_path(old), Path(new.replace(".", "/")).with_suffix(".py")
    ensure_packages(new)
    subprocess.run(["git", "mv", str(src), str(dst)], check=True)
    rewrite_importers(old, new)


def ensure_packages(mod: str) -> None:
    parts = mod.split(".")[:-1]
    for i in range(1, len(parts) + 1):
        folder = Path(*parts[:i])
        folder.mkdir(exist_ok=True)
        init = folder / "__init__.py"
        if not init.exists():
            init.write_text('"""TODO."""\n')
            subprocess.run(["git", "add", str(init)], check=True)


class Parsed:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        self.doc = ast.get_docstring(self.tree, clean=False)
        self.runtime: list[ast.stmt] = []
        self.checking: list[ast.stmt] = []
        lines = self.text.splitlines(keepends=True)
        self.lines = lines
        drop: list[tuple[int, int]] = []  # lines, 1-based inclusive
        body = self.tree.body
        for i, node in enumerate(body):
            if i == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                self.doc_text = "".join(lines[node.lineno - 1:node.end_lineno]); drop.append((node.lineno, node.end_lineno)); continue
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                seg = "".join(lines[node.lineno - 1:node.end_lineno])
                if "#" in seg:
                    print("COMMENT on import", path, seg.strip())
                if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                    self.runtime.append(node)
                drop.append((node.lineno, node.end_lineno)); continue
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                if node.orelse or not all(isinstance(n, (ast.Import, ast.ImportFrom)) for n in node.body):
                    print("MANUAL type checking", path)
                else:
                    self.checking += node.body
                    drop.append((node.lineno, node.end_lineno)); continue
        dropped = {n for a, b in drop for n in range(a, b + 1)}
        self.body = "".join(line for n, line in enumerate(lines, 1) if n not in dropped).strip("\n") + "\n"

    def defined(self) -> dict[str, ast.stmt]:
        found = {}
        for node in self.tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
                found[node.name] = node
            elif isinstance(node, ast.Assign):
                for t in node.targets:
                    for n in ast.walk(t):
                        if isinstance(n, ast.Name): found[n.id] = node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found[node.target.id] = node
        return found

    def imported(self) -> dict[str, tuple[str, str]]:
        found = {}
        for node in self.runtime + self.checking:
            for a in node.names:
                if isinstance(node, ast.ImportFrom):
                    found[a.asname or a.name] = (node.module, a.name)
                else:
                    found[a.asname or a.name.split(".")[0]] = (a.name, "")
        return found


def early_names(tree: ast.Module) -> set[str]:
    """Names that are read while the module is imported."""
    found: set[str] = set()

    def visit(node: ast.AST, deep: bool) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for d in node.decorator_list + node.args.defaults + [k for k in node.args.kw_defaults if k]:
                visit(d, deep)
            return
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.AnnAssign):
            if node.value is not None: visit(node.value, deep)
            return
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        for child in ast.iter_child_nodes(node):
            visit(child, deep)

    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)): continue
        visit(node, True)
    return found


def rename_in(text: str, renames: dict[str, str], path: str) -> str:
    tree = ast.parse(text)
    edits = Edits(text)
    local = {}
    for fn in ast.walk(tree):
        if isinstance(fn, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            b = set()
            for n in ast.walk(fn):
                if isinstance(n, ast.arg): b.add(n.arg)
                elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store): b.add(n.id)
            for r in renames:
                if r in b: print("LOCAL shadows", path, r)
    for n in ast.walk(tree):
        if isinstance(n, ast.Name) and n.id in renames:
            edits.replace(n, renames[n.id])
        elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and n.name in renames:
            line = n.lineno
            start = edits.at(line, n.col_offset)
            at = edits.data.index(n.name.encode(), start)
            edits.edits.append((at, at + len(n.name), renames[n.name].encode()))
        elif isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value in renames:
            pass
    return edits.done()


def merge(src_mod: str, dst_mod: str) -> None:
    """Put the contents of a module into another one, and delete it."""
    src_path, dst_path = mod_path(src_mod), mod_path(dst_mod)
    src, dst = Parsed(src_path), Parsed(dst_path)
    src_name, dst_name = src_mod.rpartition(".")[2], dst_mod.rpartition(".")[2]
    src_defs, dst_defs = src.defined(), dst.defined()
    src_imp, dst_imp = src.imported(), dst.imported()
    # module objects: srcmod.x in dst, dstmod.x in src
    for one, other_mod in ((src, dst_mod), (dst, src_mod)):
        pkg, _, name = other_mod.rpartition(".")
        local = [k for k, v in one.imported().items() if v == (pkg, name)]
        if local:
            body = ast.parse(one.body); edits = Edits(one.body)
            for n in ast.walk(body):
                if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in local:
                    edits.replace(n, n.attr)
            one.body = edits.done()
    # collisions
    renames = {}
    taken = set(dst_defs) | set(dst_imp)
    for name, node in src_defs.items():
        if name in dst_defs:
            if ast.dump(node) == ast.dump(dst_defs[name]):
                print("SAME", src_mod, dst_mod, name)
                # drop the definition from src
                seg = ast.get_source_segment(src.text, node)
                src.body = src.body.replace(seg + "\n", "", 1)
                continue
            renames[name] = ("_" if name.startswith("_") else "") + f"{src_name}_{name.lstrip('_')}" if not name.isupper() and not name.lstrip("_").isupper() else ("_" if name.startswith("_") else "") + f"{src_name.upper()}_{name.lstrip('_')}"
        elif name in dst_imp and dst_imp[name] != (src_mod, name):
            print("COLLISION with import", src_mod, dst_mod, name, dst_imp[name])
    for name in dst_defs:
        if name in src_imp and src_imp[name] != (dst_mod, name):
            print("COLLISION import of src with def of dst", src_mod, dst_mod, name, src_imp[name])
    for name, origin in src_imp.items():
        if name in dst_imp and dst_imp[name] != origin:
            print("COLLISION imports", src_mod, dst_mod, name, origin, dst_imp[name])
    if renames:
        print("RENAME", src_mod, "->", dst_mod, renames)
        src.body = rename_in(src.body, renames, str(src_path))
    # imports
    runtime: dict[tuple[str, str, str | None], None] = {}
    checking: dict[tuple[str, str, str | None], None] = {}
    for parsed in (dst, src):
        for where, nodes in ((runtime, parsed.runtime), (checking, parsed.checking)):
            for node in nodes:
                for a in node.names:
                    if isinstance(node, ast.ImportFrom):
                        if node.module in (src_mod, dst_mod):
                            if a.asname: print("MANUAL alias", src_mod, dst_mod, a.name, a.asname)
                            continue
                        if (node.module, a.name) in (tuple(src_mod.rpartition(".")[::2]), tuple(dst_mod.rpartition(".")[::2])):
                            continue
                        where[(node.module, a.name, a.asname)] = None
                    else:
                        where[(a.name, "", a.asname)] = None
    if runtime.keys() & checking.keys():
        for k in list(checking):
            if k in runtime: del checking[k]
    dst_early = early_names(dst.tree) & set(src_defs)
    src_early = early_names(src.tree) & set(dst_defs)
    dst_early -= set(dst_defs); src_early -= set(src_defs)
    if dst_early and src_early:
        print("MANUAL order", src_mod, dst_mod, dst_early, src_early)
    first, second = (src, dst) if dst_early else (dst, src)
    text = dst.doc_text if hasattr(dst, "doc_text") else ""
    text += "\nfrom __future__ import annotations\n\n"
    def line(k):
        m, n, a = k
        return (f"from {m} import {n}" if n else f"import {m}") + (f" as {a}" if a else "") + "\n"
    text += "".join(line(k) for k in runtime)
    if checking:
        text += "\nif TYPE_CHECKING:\n" + "".join("    " + line(k) for k in checking)
    text += "\n" + first.body + "\n\n" + second.body
    # local imports of one in the other, within functions
    tree = ast.parse(text); edits = Edits(text)
    for n in ast.walk(tree):
        for fieldname in ("body", "orelse", "finalbody"):
            stmts = getattr(n, fieldname, None)
            if not isinstance(stmts, list): continue
            for s in stmts:
                if isinstance(s, ast.ImportFrom) and s.module in (src_mod, dst_mod):
                    if any(a.asname for a in s.names): print("MANUAL local alias", src_mod, dst_mod)
                    a, b = edits.at(s.lineno, 0), edits.at(s.end_lineno + 1, 0)
                    edits.edits.append((a, b, b"" if len(stmts) > 1 else b"    pass\n"))
    text = edits.done()
    ast.parse(text)
    dst_path.write_text(text)
    subprocess.run(["git", "rm", "-q", "-f", str(src_path)], check=True)
    public = {old: new for old, new in renames.items()}
    rewrite_importers(src_mod, dst_mod)
    if public:
        rename_imports(dst_mod, public, src_mod)
    subprocess.run(["git", "add", "-A", str(dst_path)], check=True)


def rename_imports(mod: str, renames: dict[str, str], src_mod: str) -> None:
    print("CHECK importers of renamed", mod, renames)


# Names of packages

def expand(pkg: str) -> None:
    """Import each name of a package from the module that defines it; the package keeps its docstring."""
    init = Path(pkg.replace(".", "/")) / "__init__.py"
    tree = ast.parse(init.read_text())
    where: dict[str, str] = {}
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith(pkg + "."):
            for a in n.names:
                where[a.asname or a.name] = n.module
        if isinstance(n, ast.Dict):
            for k, v in zip(n.keys, n.values):
                if isinstance(k, ast.Constant) and isinstance(v, ast.Constant) and str(v.value).startswith(pkg + "."):
                    where[k.value] = v.value
    for path in py_files():
        if path == init: continue
        text = path.read_text()
        if pkg not in text: continue
        tree2 = ast.parse(text); edits = Edits(text)
        for n in ast.walk(tree2):
            if isinstance(n, ast.ImportFrom) and n.module == pkg:
                groups: dict[str, list[ast.alias]] = {}
                for a in n.names:
                    groups.setdefault(where.get(a.name, pkg), []).append(a)
                if set(groups) == {pkg}: continue
                indent = " " * n.col_offset
                edits.replace(n, f"\n{indent}".join(render_import(ast.ImportFrom(m, names, 0), indent) for m, names in sorted(groups.items())))
        if edits.edits:
            path.write_text(edits.done())
    return where


# Some definitions of a module

def segments(parsed: Parsed) -> list[tuple[set[str], int, int, ast.stmt]]:
    """Top-level statements with the comments above them: names, first and last line."""
    out = []
    lines = parsed.lines
    prev_end = 0
    for node in parsed.tree.body:
        start = min([node.lineno] + [d.lineno for d in getattr(node, "decorator_list", [])])
        s = start
        while s - 1 > prev_end and lines[s - 2].lstrip().startswith("#") and not lines[s - 2].startswith(" "):
            s -= 1
        names = set()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)): names = {node.name}
        elif isinstance(node, ast.Assign):
            names = {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name): names = {node.target.id}
        out.append((names, s, node.end_lineno, node))
        prev_end = node.end_lineno
    return out


def used_names(nodes) -> set[str]:
    found = set()
    for node in nodes:
        for n in ast.walk(node):
            if isinstance(n, ast.Name): found.add(n.id)
            elif isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.isidentifier(): found.add(n.value)
    return found


def take(src_mod: str, names: set[str], dst_mod: str, doc: str = "TODO.") -> None:
    """Move some definitions of a module, with private ones that only they use, to another module."""
    src_path = mod_path(src_mod); src = Parsed(src_path)
    segs = segments(src)
    unknown = names - set().union(*(s[0] for s in segs))
    if unknown: print("UNKNOWN names", src_mod, unknown)
    go = [s for s in segs if s[0] & names]
    # private definitions that only moved code uses
    while True:
        stay = [s for s in segs if s not in go]
        used_go = used_names([s[3] for s in go])
        more = []
        for s in stay:
            if len(s[0]) == 1 and (n := next(iter(s[0]))).startswith("_") and n in used_go:
                others = used_names([t[3] for t in stay if t is not s])
                if n not in others: more.append(s)
        if not more: break
        go += more
    go.sort(key=lambda s: s[1])
    moved = set().union(*(s[0] for s in go))
    code = "\n\n\n".join("".join(src.lines[a - 1:b]).rstrip("\n") for _, a, b, _ in go) + "\n"
    used = used_names([s[3] for s in go])
    runtime, checking = [], []
    for where, nodes in ((runtime, src.runtime), (checking, src.checking)):
        for node in nodes:
            for a in node.names:
                if (a.asname or a.name.split(".")[0]) in used:
                    where.append((f"from {node.module} import {a.name}" if isinstance(node, ast.ImportFrom) else f"import {a.name}") + (f" as {a.asname}" if a.asname else ""))
    stay_defs = set().union(*(s[0] for s in segs if s not in go)) if segs else set()
    back = sorted(used & stay_defs)
    if back: runtime.append(f"from {src_mod} import {', '.join(back)}"); print("BACK", src_mod, "<-", dst_mod, back)
    drop = {n for _, a, b, _ in go for n in range(a, b + 1)}
    rest = "".join(line for n, line in enumerate(src.lines, 1) if n not in drop)
    rest_used = used_names([s[3] for s in segs if s not in go])
    need = sorted(rest_used & moved)
    if need:
        at = rest.index("from __future__ import annotations\n") + len("from __future__ import annotations\n")
        rest = rest[:at] + f"\nfrom {dst_mod} import {', '.join(need)}\n" + rest[at:]
    src_path.write_text(rest)
    dst_path = Path(dst_mod.replace(".", "/")).with_suffix(".py")
    if dst_path.exists():
        dst = Parsed(dst_path)
        both = moved & set(dst.defined())
        if both: print("COLLISION take", src_mod, dst_mod, both)
        text = dst.text
        at = text.index("from __future__ import annotations\n") + len("from __future__ import annotations\n")
        runtime = [r for r in runtime if not r.startswith(f"from {dst_mod} import")]
        text = text[:at] + "\n" + "\n".join(runtime) + "\n" + text[at:]
        if checking: text = add_checking(text, checking)
        dst_path.write_text(text.rstrip("\n") + "\n\n\n" + code)
        # names that dst imported from src
        drop_import(dst_path, src_mod, moved)
    else:
        ensure_packages(dst_mod)
        text = f'"""{doc}"""\n\nfrom __future__ import annotations\n\n' + "\n".join(runtime) + "\n"
        if checking: text += "\nif TYPE_CHECKING:\n" + "".join(f"    {c}\n" for c in checking)
        if checking and "TYPE_CHECKING" not in " ".join(runtime): text = text.replace("annotations\n\n", "annotations\n\nfrom typing import TYPE_CHECKING\n", 1)
        dst_path.write_text(text + "\n\n" + code)
        subprocess.run(["git", "add", str(dst_path)], check=True)
    rewrite_importers(src_mod, dst_mod, moved=moved)
    drop_import(dst_path, dst_mod, None)


def drop_import(path: Path, mod: str, names: set[str] | None) -> None:
    text = path.read_text(); tree = ast.parse(text); edits = Edits(text)
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and n.module == mod:
            stay = [a for a in n.names if names is not None and a.name not in names]
            if stay: edits.replace(n, render_import(ast.ImportFrom(mod, stay, 0), " " * n.col_offset))
            else:
                a, b = edits.span(n); edits.edits.append((a, b, b"pass" if n.col_offset else b""))
    if edits.edits: path.write_text(edits.done())


def add_checking(text: str, checking: list[str]) -> str:
    tree = ast.parse(text)
    for n in tree.body:
        if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING":
            lines = text.splitlines(keepends=True)
            lines.insert(n.end_lineno, "".join(f"    {c}\n" for c in checking))
            return "".join(lines)
    at = text.index("from __future__ import annotations\n") + len("from __future__ import annotations\n")
    return text[:at] + "\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n" + "".join(f"    {c}\n" for c in checking) + text[at:]
