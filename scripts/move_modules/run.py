"""Move, merge and split the modules of gitboot by modules.tsv and map.tsv; run it in the root of a clean checkout.

    .venv/bin/python scripts/move_modules/run.py

Every step is a commit. A step that fails is reset and printed at the end.
"""

from __future__ import annotations

import pickle
import shutil
import sys

from engine import *
from engine import Driver, Files
from project import parts_of, read_map

PACKAGES = {  # packages that become others; a bare name or a folder in texts
    "assets": "artifacts", "audit": "review", "diff": "review", "instance": "controller", "load": "fleet",
    "migration": "importers", "notices": "controller", "observe": "fetchlog", "oci": "artifacts", "serve": "endpoint",
    "source": "git", "targets": "publish.targets", "template": "resolve",
}  # fmt: skip


def read_table(name: str) -> dict[str, str]:
    lines = (Path(__file__).parent / name).read_text().splitlines()
    return dict(line.split("\t", 1) for line in lines if line and not line.startswith("#"))


def expand(files: Files) -> None:
    """Import each name from the module that defines it; packages keep their docstrings only."""
    origin: dict[tuple[str, str], tuple[str, str]] = {}
    modules = {module_name(p): p for p in files.python() if p.startswith("gitboot/")}
    defined = {}
    for module, path in modules.items():
        tree = parse(files.texts[path])
        defined[module] = set().union(*(stmt_names(n) for n in tree.body)) if tree.body else set()
        for node in tree.body:
            for each in node.body if is_checking(node) else [node]:
                if (
                    isinstance(each, ast.ImportFrom)
                    and each.module
                    and (each.module.startswith("gitboot") or path.endswith("__init__.py"))
                ):
                    for a in each.names:
                        origin[module, a.asname or a.name] = each.module, a.name

    def resolve(module: str, name: str) -> tuple[str, str]:
        for _ in range(8):
            if (
                module not in modules
                or name in defined[module]
                or f"{module}.{name}" in modules
                or (module, name) not in origin
            ):
                break
            module, name = origin[module, name]
        return module, name

    for path in files.python():
        text = files.texts[path]
        if "from gitboot" not in text:
            continue
        edits = Edits(text)
        own = module_name(path)
        for node in ast.walk(parse(text)):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").startswith("gitboot")
                and node.module in modules
            ):
                found = defaultdict(list)
                for a in node.names:
                    module, name = resolve(node.module, a.name)
                    if module == own:
                        module, name = node.module, a.name
                    found[module].append((name, a.asname or (a.name if name != a.name else None)))
                if set(found) != {node.module}:
                    indent = " " * node.col_offset
                    edits.replace(node, f"\n{indent}".join(import_line(m, n, indent) for m, n in found.items()))
        fresh = edits.done()
        for match in re.finditer(r"from (gitboot[.\w]*) import ([\w, ]+);", fresh):  # in strings
            found = defaultdict(list)
            for name in match[2].split(","):
                module, defined_as = resolve(match[1], name.strip())
                found[module].append((defined_as, None))
            fresh = fresh.replace(match[0], "".join(import_line(m, n) + "; " for m, n in found.items()).strip())
        if fresh != text:
            files.write(path, fresh)
    for package in ("load", "source", "resolve", "diff", "model/scalars"):
        path = f"gitboot/{package}/__init__.py"
        text = files.texts[path]
        files.write(path, "".join(text.splitlines(keepends=True)[: parse(text).body[0].end_lineno]))
    files.remove("gitboot/lazy.py")


def main() -> int:
    preload()
    tsv = read_map()
    files = Files()
    driver = Driver(files)
    if "--resume" in sys.argv:  # after a run that was interrupted, or that failed
        driver.done = set(git("log", "--format=%s", "-700").splitlines())
    here = lambda path: f"gitboot/{path}" in files.texts

    driver.step("Import names from the modules that define them", lambda: expand(files))

    # Where each module goes. Modules are known by their present paths, which `now` follows.
    members: dict[str, list[str]] = defaultdict(list)  # by target: paths of today
    pieces: dict[str, list[tuple[set[str], str]]] = {}
    for path in sorted(
        p.removeprefix("gitboot/") for p in files.python() if p.startswith("gitboot/") and "/seed/" not in p
    ):
        target = tsv.get(path)
        if target is None or target == "gone":
            if not path.endswith(("__init__.py", "__main__.py")) and target != "gone" and not driver.done:
                print("UNMAPPED", path)
            continue
        if target.startswith("split:"):
            pieces[path], rest = parts_of(target)
            target = rest or path
        members[target].append(path)
    now = {p: p for ps in members.values() for p in ps}
    size = {p: files.texts[f"gitboot/{p}"].count("\n") for p in now}

    def base_of(target: str) -> str:
        paths = members[target]
        if found := [p for p in paths if p.endswith("__init__.py")]:
            return found[0]
        for wanted in (lambda p: p == target, lambda p: os.path.basename(p) == os.path.basename(target)):
            if found := sorted((p for p in paths if wanted(p)), key=lambda p: -size[p]):
                return found[0]
        return max((p for p in paths if not p.endswith("__init__.py")), key=lambda p: size[p], default=paths[0])

    base = {t: base_of(t) for t in members}
    state = Path(git("rev-parse", "--git-path", "move_modules.pickle").strip())
    if "--resume" in sys.argv:
        now, members, base, size = pickle.loads(state.read_bytes())
        for path in [p for p, current in now.items() if not here(current)]:
            del now[path]
            for each in members.values():
                if path in each:
                    each.remove(path)
        for path in now:  # the map may have changed
            target = tsv.get(path, "split:")
            if not target.startswith("split:") and path not in members[target]:
                for each in members.values():
                    if path in each:
                        each.remove(path)
                members[target].append(path)
                base.setdefault(target, path)

    def step(message: str, work, *, imports: bool = True) -> bool:
        """Make a commit, or nothing."""
        before = dict(now)
        if driver.step(message, work, imports=imports):
            state.write_bytes(pickle.dumps((now, members, base, size)))
            return True
        now.clear()
        now.update(before)
        return False

    def go(path: str, to: str) -> None:
        """Move a module of today."""
        move(files, f"gitboot/{now[path]}", f"gitboot/{to}")
        now[path] = to

    # 1. the module that has the name of a new package
    step("Move status to status/instance_status", lambda: go("status.py", "status/instance_status.py"))

    # 2. splits
    for path, parts in sorted(pieces.items()):
        if f"Split {path.removesuffix('.py')}" in driver.done or path == "status.py" and driver.done:
            continue
        made = []
        for names, target in parts:
            if target in members:  # put beside the base, and merge later
                piece = target.removesuffix(".py") + "_from_" + path.removesuffix(".py").replace("/", "_") + ".py"
                if target == "model/scalars.py" or target == "problems.py":
                    piece = piece.replace("model/scalars_", "model/scalar_")
            else:
                piece = target
            made.append((names, piece, target))
        if step(
            f"Split {now[path].removesuffix('.py')}",
            lambda: split(files, f"gitboot/{now[path]}", [(n, f"gitboot/{p}") for n, p, _ in made]),
        ):
            for _, piece, target in made:
                if piece in now or piece in members[target]:
                    continue
                now[piece] = piece
                size[piece] = 0
                members[target].append(piece)
                base.setdefault(target, piece)

    # 3. commands, whose modules are imported by name
    def move_commands() -> None:
        path = "gitboot/cli/__init__.py"
        text = files.texts[path]
        names = re.findall(r'^        "([a-z-]+)": "', text, re.M) + ["prepare"]
        homes = {}
        for target, paths in sorted(members.items()):
            if not target.startswith("cli/commands/"):
                continue
            stem = target.split("/")[-1].removesuffix(".py")
            for each in paths:
                name = each.split("/")[-1].removesuffix(".py")
                if not each.startswith("cli/") or each.count("/") != 1:
                    continue
                command = name.replace("_", "-")
                if command in names and name != stem:
                    attribute = "command"
                    if stem != "import_":
                        attribute = f"{name}_command"
                        if attribute in files.texts[f"gitboot/{each}"]:
                            attribute = f"{name}_subcommand"
                        rename_symbols(files, f"gitboot/{each}", {"command": attribute})
                    homes[command] = f"{stem}:{attribute}"
                    # until modules are merged
                    if base[target] != each:
                        homes[command] = f"{name}:{attribute}"
        for target, paths in sorted(members.items()):
            if target.startswith("cli/commands/"):
                for each in paths:
                    if now[each].startswith("cli/") and not now[each].startswith("cli/commands/"):
                        go(each, target if each == base[target] else f"cli/commands/{os.path.basename(each)}")
        text = files.texts[path]
        text = text.replace(
            "command: click.Command = import_module(f\"gitboot.cli.{name.replace('-', '_')}\").command\n",
            "module, _, attribute = _HOMES.get(name, f\"{name.replace('-', '_')}:command\").partition(\":\")\n"
            '        command: click.Command = getattr(import_module(f"gitboot.cli.commands.{module}"), attribute)\n',
        )
        table = "_HOMES: Final = {  # commands that share a module, or whose module has another name\n"
        table += "".join(f'    "{k}": "{v}",\n' for k, v in sorted(homes.items())) + "}\n"
        text = text.replace("_REPLACED: Final = {  # what earlier", table + "_REPLACED: Final = {  # what earlier")
        text = text.replace(
            "The module of a command has the\n# command's name, with underscores for dashes, and is imported when the command runs.",
            "The module of a command has the\n# command's name, with underscores for dashes, if `_HOMES` has no other; it is imported when the command runs.",
        )
        files.write(path, text)
        git("mv", "gitboot/cli/seed", "gitboot/cli/commands/seed")
        git("mv", "gitboot/cli/requirements.txt", "gitboot/cli/commands/requirements.txt")
        files.load_again = True
        for each, text in list(files.texts.items()):
            fresh = (
                text.replace('f"gitboot.cli.{other}"', 'f"gitboot.cli.commands.{other}"')
                .replace("gitboot/cli/seed", "gitboot/cli/commands/seed")
                .replace("gitboot/cli/requirements.txt", "gitboot/cli/commands/requirements.txt")
            )
            if fresh != text and os.path.exists(each):
                files.write(each, fresh)

    step("Move commands to cli/commands", move_commands)
    files.load()

    def move_main() -> None:
        go("cli/__init__.py", "cli/main.py")
        files.write("gitboot/cli/__init__.py", '"""The command line."""\n')
        for each, text in list(files.texts.items()):
            fresh = text.replace("gitboot.cli:program", "gitboot.cli.main:program").replace(
                "gitboot.cli:cli", "gitboot.cli.main:cli"
            )
            if fresh != text:
                files.write(each, fresh)

    step("Move cli to cli/main", move_main)
    step("Move template to resolve/templates", lambda: go("template/__init__.py", "resolve/templates.py"))

    # 4. moves of bases, by package
    def late(target: str) -> bool:
        return os.path.isdir(f"gitboot/{target.removesuffix('.py')}") and target != "status.py"

    def temporary(target: str, path: str) -> str:
        """A base whose target has the name of a package that is still there stays in it."""
        return now[path]

    moves = defaultdict(list)
    for target, path in sorted(base.items()):
        if now[path] != target and not late(target):
            moves[os.path.dirname(now[path]), os.path.dirname(target)].append((path, target))

    def move_all(pairs) -> None:
        pairs = list(pairs)
        while pairs:
            ready = [(p, t) for p, t in pairs if not os.path.exists(f"gitboot/{t}")]
            if not ready:
                raise ValueError(f"targets exist: {pairs}")
            for each in ready:
                go(*each)
                pairs.remove(each)

    for (a, z), pairs in sorted(moves.items()):
        if not step(f"Move modules of {a or 'the top'} to {z or 'the top'}", lambda: move_all(pairs)):
            for pair in pairs:
                step(
                    f"Move {now[pair[0]].removesuffix('.py')} to {pair[1].removesuffix('.py')}",
                    lambda: move_all([pair]),
                )

    # 5. merges: from the base on in both directions of an order in which modules import one another
    def ranks() -> dict[str, int]:
        edges = {}
        own = {module_name(f"gitboot/{now[p]}"): p for p in now}
        for path, current in now.items():
            text = files.texts[f"gitboot/{current}"]
            found = set()
            for node in parse(text).body:
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gitboot"):
                    for a in node.names:
                        found.add(own.get(node.module) or own.get(f"{node.module}.{a.name}"))
                        if f"{node.module}.{a.name}" in own:
                            found.add(own[f"{node.module}.{a.name}"])
            edges[path] = found - {None, path}
        out, seen = [], set()

        def visit(path):
            if path in seen:
                return
            seen.add(path)
            for each in sorted(edges.get(path, ())):
                visit(each)
            out.append(path)

        sys.setrecursionlimit(5000)
        for path in sorted(now):
            visit(path)
        return {p: i for i, p in enumerate(out)}

    def merge_into(target: str, rank: dict[str, int], *, imports: bool) -> None:
        b = base[target]
        line = sorted((p for p in members[target] if p in now), key=rank.__getitem__)
        if b not in now or len(line) < 2:
            return
        at = line.index(b)
        for path in line[:at][::-1] + line[at + 1 :]:
            here_now, there = now[path], now[b]

            def work() -> None:
                merge(files, f"gitboot/{here_now}", f"gitboot/{there}")
                if here_now.startswith("cli/commands/"):
                    stem, other = (os.path.basename(each).removesuffix(".py") for each in (here_now, there))
                    text = files.texts["gitboot/cli/main.py"]
                    fresh = text.replace(f'": "{stem}:', f'": "{other}:')
                    if fresh != text:
                        files.write("gitboot/cli/main.py", fresh)
                del now[path]

            step(f"Merge {here_now.removesuffix('.py')} into {there.removesuffix('.py')}", work, imports=imports)

    # Import once a package; if that fails, then once a merge, to find out which merge fails.
    packages = defaultdict(list)
    for target in sorted(members):
        packages[target.split("/")[0] if "/" in target else ""].append(target)
    for package, targets in packages.items():
        if all(sum(p in now for p in members[t]) < 2 for t in targets):
            continue
        before, commit, failed, rank = dict(now), git("rev-parse", "HEAD").strip(), len(driver.failed), ranks()
        for target in targets:
            merge_into(target, rank, imports=False)
        if found := import_all():
            print(f"AGAIN {package}\n    " + found[:600].replace("\n", "\n    "), flush=True)
            git("reset", "-q", "--hard", commit)
            files.load()
            now.clear()
            now.update(before)
            del driver.failed[failed:]
            for target in targets:
                merge_into(target, rank, imports=True)

    # 6. modules that have the names of packages of today
    def move_late(target: str) -> None:
        path = base[target]
        folder = f"gitboot/{target.removesuffix('.py')}"
        old = now[path]
        others = [
            p
            for p in files.python()
            if p.startswith(folder + "/") and p not in (f"gitboot/{old}", f"{folder}/__init__.py")
        ]
        if others:
            raise ValueError(f"{others} are still in {folder}")
        if old.endswith("__init__.py"):
            files.rename(f"gitboot/{old}", f"gitboot/{target}")
            now[path] = target
            shutil.rmtree(folder, ignore_errors=True) if not os.path.isdir(folder) or not git(
                "ls-files", folder
            ) else None
        else:
            old_module, module = module_name(f"gitboot/{old}"), module_name(f"gitboot/{target}")
            files.rename(f"gitboot/{old}", f"gitboot/{target}")
            if f"{folder}/__init__.py" in files.texts:
                files.remove(f"{folder}/__init__.py")
            now[path] = target
            rewrite_whole(files, old_module, module, f"gitboot/{old}", f"gitboot/{target}")
            shutil.rmtree(folder, ignore_errors=True)

    def move_page() -> None:
        os.makedirs("gitboot/render/page_files", exist_ok=True)
        for name in ("page.js", "index.html", "rows.js", "page.css", "draw.js", "data.js"):
            git("mv", f"gitboot/render/page/{name}", f"gitboot/render/page_files/{name}")
        files.load()
        move_late("render/page.py")
        shutil.rmtree("gitboot/render/page", ignore_errors=True)
        text = files.texts["gitboot/render/page.py"]
        files.write(
            "gitboot/render/page.py",
            text.replace("Path(__file__).with_name(name)", '(Path(__file__).with_name("page_files") / name)'),
        )
        for each, text in list(files.texts.items()):
            fresh = re.sub(
                r"gitboot/render/page/(?=[\w*]+\.(?:js|html|css)|\*|\"|$)", "gitboot/render/page_files/", text
            )
            if fresh != text:
                files.write(each, fresh)

    for target in sorted(base):
        if now.get(base[target]) not in (target, None):
            work = move_page if target == "render/page.py" else lambda: move_late(target)
            step(f"Move {now[base[target]].removesuffix('.py')} to {target.removesuffix('.py')}", work)
            files.load()

    step("Move the description of the API and remove empty packages", lambda: tidy(files))
    files.load()
    step("State the job of each package and module", lambda: docstrings(files))
    report(driver)
    for arguments in (["--help"], ["validate", "example-repo"]):
        done = subprocess.run([".venv/bin/python", "-m", "gitboot", *arguments], capture_output=True, text=True)
        print("gitboot", *arguments, "ends with", done.returncode, done.stderr[-500:])
    return 1 if driver.failed else 0


def tidy(files: Files) -> None:
    if os.path.exists("gitboot/serve/openapi.yaml"):
        git("mv", "gitboot/serve/openapi.yaml", "gitboot/endpoint/openapi.yaml")
    for path in [
        p
        for p in files.python()
        if p.startswith("gitboot/") and p.endswith("/__init__.py") and p != "gitboot/__init__.py"
    ]:
        folder = os.path.dirname(path)
        left = [p for p in git("ls-files", folder).splitlines() if p != path]
        if not left and not parse(files.texts[path]).body[1:]:
            files.remove(path)
            shutil.rmtree(folder, ignore_errors=True)
    bare = re.compile(rf"(?<![\w.])gitboot\.({'|'.join(PACKAGES)})(?![\w])(?!\.[a-z])")
    folders = re.compile(rf"(?<![\w/])gitboot/({'|'.join(PACKAGES)})/")
    for path, text in list(files.texts.items()):
        fresh = bare.sub(lambda m: f"gitboot.{PACKAGES[m[1]]}", text)
        fresh = folders.sub(lambda m: f"gitboot/{PACKAGES[m[1]].replace('.', '/')}/", fresh)
        if fresh != text:
            files.write(path, fresh)
    files.write("pyproject.toml", without_repeated(files.texts["pyproject.toml"]))


def without_repeated(text: str) -> str:
    """Return the project file without repeated entries in lists of modules."""
    out, seen = [], set()
    for line in text.splitlines(keepends=True):
        if re.fullmatch(r'\s+"gitboot\.[\w.]+",\s*', line):
            if line in seen:
                continue
            seen.add(line)
        elif line.strip() in ("]", "[") or line.startswith("["):
            seen = set()
        out.append(line)
    return "".join(out)


def docstrings(files: Files) -> None:
    for path, sentence in read_table("docs.tsv").items():
        full = f"gitboot/{path}"
        if full not in files.texts:
            print("NO MODULE", path)
            continue
        text = files.texts[full]
        body = parse(text).body
        rest = text
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            rest = "".join(text.splitlines(keepends=True)[body[0].end_lineno :])
        files.write(full, f'"""{sentence}"""\n' + rest)


def report(driver: Driver) -> None:
    modules = sorted(
        p
        for p in git("ls-files", "gitboot").splitlines()
        if p.endswith(".py") and "/seed/" not in p and not p.endswith(("__init__.py", "__main__.py"))
    )
    sizes = sorted(((Path(p).read_text().count("\n"), p) for p in modules), reverse=True)
    print(
        len(modules),
        "modules in",
        len({p.split("/")[1] for p in modules if p.count("/") > 1}),
        "packages,",
        sum(p.count("/") == 1 for p in modules),
        "at the top",
    )
    print("longest", sizes[:8], "median", sizes[len(sizes) // 2][0])
    print(
        driver.count,
        "commits in",
        round(time.monotonic() - driver.start),
        "s; failed:",
        *driver.failed or ["nothing"],
        sep="\n  ",
    )


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of libraries may not end
