"""Check the map before anything moves: cycles of modules, upward imports, sizes."""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict

from project import *

LAYERS = [
    "cli",
    "controller importers",
    "endpoint",
    "evaluator",
    "review",
    "ledger",
    "publish artifacts bmc fetchlog",
    "git",
    "status",
    "render",
    "resolve",
    "fleet",
    "model",
    "",
]
RANK = {p: i for i, ps in enumerate(LAYERS) for p in (ps.split() or [""])}


def load():
    texts = {}
    for root, _, files in os.walk("gitboot"):
        for f in files:
            if f.endswith(".py"):
                p = os.path.join(root, f)[8:]
                texts[p] = open("gitboot/" + p).read()
    return texts


def build(texts, tsv):
    where = {}  # (module, symbol) -> class
    mod_class = {}
    size = Counter()
    seg_class = {}
    unmapped = []
    for p, text in texts.items():
        if p.endswith("__main__.py") and p not in tsv:
            mod_class[name_of(p)] = p
            continue
        t = tsv.get(p)
        if p.endswith("__init__.py") and (t is None or t == "gone"):
            t = p
        if t is None or t == "gone":
            unmapped.append(p)
            continue
        segs = segments(text)
        lines = len(text.splitlines())
        if t.startswith("split:"):
            pieces, rest = parts_of(t)
            left = segs
            for names, to in pieces:
                unknown = names - set().union(*(s.names for s in segs))
                if unknown:
                    print("UNKNOWN", p, unknown)
                go = choose(left, names)
                left = [s for s in left if s not in go]
                for s in go:
                    seg_class[p, s.first] = to
                    size[to] += s.last - s.first + 3
                    lines -= s.last - s.first + 3
                    for n in s.names:
                        where[name_of(p), n] = to
            t = rest or p
        size[t] += lines
        mod_class[name_of(p)] = t
        for s in segs:
            if (p, s.first) not in seg_class:
                seg_class[p, s.first] = t
                for n in s.names:
                    where[name_of(p), n] = t
    # re-exports
    export = {}
    for p, text in texts.items():
        m = name_of(p)
        for node, _ in imports(text):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gitboot"):
                for a in node.names:
                    export[m, a.asname or a.name] = (node.module, a.name)

    def resolve(m, n, depth=0):
        if (m, n) in where:
            return where[m, n]
        if f"{m}.{n}" in mod_class:
            return mod_class[f"{m}.{n}"]
        if (m, n) in export and depth < 6 and export[m, n] != (m, n):
            return resolve(*export[m, n], depth + 1)
        return mod_class.get(m)

    edges = defaultdict(lambda: defaultdict(list))  # class -> class -> [(kind, why)]
    for p, text in texts.items():
        if p in unmapped or p.endswith("__init__.py") and tsv.get(p) in (None, "gone"):
            continue
        m = name_of(p)
        binding = {}
        for node, checking in imports(text):
            if isinstance(node, ast.ImportFrom):
                for a in node.names:
                    if node.module.startswith("gitboot"):
                        binding[a.asname or a.name] = (
                            resolve(node.module, a.name),
                            checking,
                            f"{node.module}.{a.name}",
                        )
            else:
                for a in node.names:
                    if a.name.startswith("gitboot."):
                        binding.setdefault("gitboot", []) if False else None
        for s in segments(text):
            c = seg_class.get((p, s.first))
            if c is None:
                continue
            for n in used(s.node):
                if n in binding:
                    to, checking, why = binding[n]
                    if to and to != c:
                        edges[c][to].append(
                            ("check" if checking else "run", f"{p}:{'/'.join(sorted(s.names))} uses {why}")
                        )
                elif (m, n) in where and where[m, n] != c:
                    # inside a split module
                    edges[c][where[m, n]].append(("run", f"{p}:{'/'.join(sorted(s.names))} uses own {n}"))
            for node in ast.walk(s.node):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gitboot"):
                    for a in node.names:
                        to = resolve(node.module, a.name)
                        if to and to != c:
                            edges[c][to].append(
                                ("lazy", f"{p}:{'/'.join(sorted(s.names))} imports {node.module}.{a.name}")
                            )
    return edges, size, unmapped, mod_class


def sccs(edges, kinds):
    g = {a: {b for b, whys in bs.items() if any(k in kinds for k, _ in whys)} for a, bs in edges.items()}
    index, low, stack, on, out = {}, {}, [], set(), []
    sys.setrecursionlimit(10000)

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        on.add(v)
        for w in sorted(g.get(v, ())):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            c = []
            while True:
                w = stack.pop()
                on.discard(w)
                c.append(w)
                if w == v:
                    break
            if len(c) > 1:
                out.append(c)

    for v in sorted(g):
        if v not in index:
            visit(v)
    return out, g


def feedback(comp, g, edges, kinds):
    """Return few edges whose removal makes a component acyclic: greedily the thinnest edge of a found cycle."""
    cs, removed = set(comp), []
    h = {a: {b for b in g.get(a, ()) if b in cs} for a in comp}
    weight = lambda a, b: sum(k in kinds for k, _ in edges[a][b])
    while True:
        # find a cycle by depth first search
        comps, _ = sccs({a: {b: [("run", "")] for b in bs} for a, bs in h.items()}, ("run",))
        if not comps:
            return removed
        for c in comps:
            inner = [(weight(a, b), a, b) for a in c for b in h[a] if b in set(c)]
            _, a, b = min(inner)
            h[a].discard(b)
            removed.append((a, b))


if __name__ == "__main__":
    texts, tsv = load(), read_map()
    edges, size, unmapped, mod_class = build(texts, tsv)
    print("UNMAPPED", unmapped)
    mods = {c for c in size if not c.endswith(("__init__.py", "__main__.py"))}
    print(
        "modules",
        len(mods),
        "packages",
        len({c.split("/")[0] for c in mods if "/" in c}),
        "top",
        sorted(c for c in mods if "/" not in c),
    )
    print("long", [(n, c) for c, n in size.most_common() if n > 700])
    for kinds in (("run",), ("run", "check")):
        comps, g = sccs(edges, kinds)
        print("CYCLES", kinds, [len(c) for c in comps])
        for comp in comps:
            print("  ---", len(comp), *sorted(comp))
            for a, b in feedback(comp, g, edges, kinds):
                whys = [w for k, w in edges[a][b] if k in kinds]
                print("   ", a, "->", b, len(whys), whys[:5])
    up = [
        (a, b, whys)
        for a, bs in edges.items()
        for b, whys in bs.items()
        if "/" in b and RANK.get(a.split("/")[0] if "/" in a else "", 99) > RANK.get(b.split("/")[0], -1)
    ]
    print("UPWARD", len(up))
    for a, b, whys in sorted(up):
        print("   ", a, "->", b, len(whys), whys[:2])
