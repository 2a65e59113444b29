"""The documentation: what it types and writes is what gitboot takes, and its site has all pages and no dead link."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent, indent
from types import ModuleType
from typing import Any, Final

import click
import pytest
import yaml

from gitboot.cli.main import cli
from gitboot.cli.options import Setting
from gitboot.fleet.documents import parse_blob
from gitboot.problems import Code, Problem
from tests.helpers.cases import for_each
from tests.helpers.documentation import ROOT, Block, list_commands, list_pages, read_page
from tests.helpers.forked_commands import run_forked
from tests.helpers.git_repositories import WorkTree, program

PAGES: Final = {name: read_page(name) for name in list_pages()}
# All pages but the list of names of earlier versions.
CURRENT: Final = {name: page for name, page in PAGES.items() if name != "docs/reference/renames.md"}

# Commands


def find_command_fault(arguments: Sequence[str], *, whole: bool = True) -> str | None:
    """Return the error of click about the words of a command, or None; "…" may replace words."""
    command: click.Command = cli
    context = click.Context(cli, info_name="gitboot")
    words = [word for last, word in zip(("", *arguments), arguments, strict=False) if word != "…" or last == "--reason"]
    whole = whole and len(words) == len(arguments)
    while isinstance(command, click.Group):
        if not words:
            return "no command" if whole and not command.invoke_without_command else None
        found = command.get_command(context, words[0])
        if found is None and words[0] not in ("--help", "--version"):
            return f"no command {words[0]}"
        if found is None:
            return None
        context, command = click.Context(found, info_name=words.pop(0), parent=context), found
    try:
        values, more, _ = command.make_parser(context).parse_args(words)
        for parameter in command.params:
            given = values.get(parameter.name)
            if isinstance(parameter, Setting) and given is not None:
                return f"{parameter.opts[0]} is a setting in the configuration file"
            for each in given if isinstance(given, list | tuple) else [given]:
                if isinstance(each, str) and isinstance(parameter.type, click.Choice) and not each.isupper():  # KIND
                    parameter.type.convert(each, parameter, context)
            if whole and parameter.required and not isinstance(given, str | tuple | list):
                return f"without {parameter.human_readable_name}"
    except click.BadOptionUsage as error:
        return error.format_message() if whole else None
    except click.UsageError as error:
        return error.format_message()
    return f"more than it takes: {more[0]}" if more else None


def find_gitboot_arguments(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the arguments of gitboot in a shell command, if the command is one of gitboot."""
    if words[0] == "gitboot":
        return words[1:]
    if words[0] == "runuser" and "--" in words:  # the name of the user before it is gitboot, too
        return find_gitboot_arguments(words[words.index("--") + 1 :])
    if words[0] in ("runuser", "sudo", "podman") and "gitboot" in words and "build" not in words:
        last = len(words) - words[::-1].index("gitboot")
        return (*words[last:], "…") if words[0] == "podman" else words[last:]  # the image's environment has options
    return None


@for_each(
    ("line", "said"),
    [
        ("gitboot status --state STATE", None),
        ("gitboot records begin fresh --state STATE && rm -r x", None),
        ("sudo -u gitboot gitboot stop-installs --reason x --state STATE", None),
        ("runuser -u gitboot -- gitboot statu", "no command statu"),
        ("gitboot run … --once", None),
        ("gitboot run … --bmc-parallel 5", "--bmc-parallel is a setting in the configuration file"),
        ("gitboot statu", "no command statu"),
        ("gitboot status --state STATE --nope", "No such option '--nope'"),
        ("gitboot bmc power", "no command"),
        ("gitboot bmc power wink web01", "no command wink"),
        ("gitboot records set web01 perhaps --reason x", "'perhaps' is not one of"),
        ("gitboot plan", None),
        ("gitboot boot-script", "without"),
        ("gitboot validate . more", "more than it takes: more"),
    ],
)
def test_a_command_that_gitboot_does_not_accept_is_found(line: str, said: str | None) -> None:
    (arguments,) = filter(
        None, map(find_gitboot_arguments, list_commands(Block(page="x.md", line=1, language="sh", text=line)))
    )
    found = find_command_fault(arguments)
    assert found == said if found is None or said is None else said in found


def test_each_command_on_a_page_is_accepted_by_gitboot() -> None:
    asked = [
        (block, arguments)
        for page in PAGES.values()
        for block in page.shown
        for words in list_commands(block)
        if (arguments := find_gitboot_arguments(words)) is not None
    ]
    assert len(asked) > 90
    assert [
        f"{block}: {said}: {arguments}" for block, arguments in asked if (said := find_command_fault(arguments))
    ] == []


def test_each_command_that_a_page_names_exists() -> None:
    named = [
        (block, words)
        for page in CURRENT.values()
        for block in page.inline
        if re.match("gitboot [a-z]", block.text)
        for words in list_commands(block)
        if words[0] == "gitboot"
    ]
    assert len(named) > 200
    assert [
        f"{block}: {said}: {words}" for block, words in named if (said := find_command_fault(words[1:], whole=False))
    ] == []


def test_each_command_that_the_code_names_exists() -> None:
    """In messages, help texts, comments and examples: `gitboot COMMAND` in backquotes."""
    folders = ("gitboot", "packaging", "example-repo", "scripts", "benchmarks", "docs/monitoring")
    files = [path for each in folders for path in sorted((ROOT / each).rglob("*")) if path.is_file()]
    named = [
        (path.relative_to(ROOT), words)
        for path in files
        if path.suffix in {"", ".py", ".js", ".md", ".yml", ".yaml", ".service"}
        for words in re.findall(r"`gitboot ([a-z][\w-]*(?: +[a-z][\w-]*)?)", path.read_text(errors="replace"))
    ]
    assert len(named) > 100
    wrong = [(str(path), words) for path, words in named if find_command_fault(words.split(), whole=False)]
    assert wrong == []


FOREIGN_OPTIONS: Final = {
    "--delete",
    "--inplace",
    "--keep",
    "--lives",
    "--network",
}  # of other programs
OF_2FEFE59: Final = {"--forward-to", "--sole-for"}  # named where the page describes how to leave them


def test_each_option_that_a_page_names_alone_exists() -> None:
    known = set(options(cli, click.Context(cli))) | FOREIGN_OPTIONS | OF_2FEFE59
    named = [
        (block, option)
        for page in CURRENT.values()
        for block in page.inline
        if block.text.startswith("--")
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*(?![\w…-])", block.text)
    ]
    assert len(named) > 50 and {"--records", "--target", "--rev"} <= {option for _, option in named}
    assert [f"{block}: {option}" for block, option in named if option not in known] == []


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, Setting):
            continue
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found
            yield from options(found, click.Context(found, parent=context))


def test_the_commands_to_try_in_the_readme_succeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run as typed, beside the example, on a branch that changes something."""
    shutil.copytree(ROOT / "example-repo", tmp_path / "example-repo")
    work = WorkTree(tmp_path)
    work.commit(message="Begin")
    work.git("switch", "--quiet", "--create", "my-branch")
    work.commit({"example-repo/README.md": "What our servers boot"})
    monkeypatch.chdir(tmp_path)
    (block,) = (each for each in PAGES["README.md"].fenced if "gitboot validate" in each.text)
    asked = [words for line in list_commands(block) if (words := find_gitboot_arguments(line))]
    assert [words[0] for words in asked] == ["validate", "plan", "plan", "explain", "diff", "images", "render"]
    for words in asked:
        done = run_forked(*(word.replace("/tmp/", f"{tmp_path}/") for word in words))
        assert done.returncode == 0 and done.stdout + done.stderr, (words, done)
    assert (tmp_path / "tree" / "boot" / "boot.ipxe").is_file()


def test_the_page_about_audits_shows_the_output_of_images_for_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = next(each for each in PAGES["docs/how-to/trace-a-decision.md"].fenced if "gitboot images" in each.text)
    command, *lines = dedent(shown.text).strip().splitlines()
    printed = run_forked(*shlex.split(command)[2:]).stdout
    assert [line for line in lines if line.rstrip("…") not in printed] == []


# YAML


_MOST_COLUMNS: Final = 100  # of a block at 1280 px, without a scroll bar
# The page of the first hour has the real output of its commands, with URLs and digests. gitboot does not wrap them.
_PRINTED: Final = "docs/tutorials/first-hour.md"


def test_each_line_of_a_block_fits_on_the_site() -> None:
    lines = [
        (f"{name}:{block.line + number}", line, name == _PRINTED and not is_typed)
        for name, page in PAGES.items()
        for block in page.shown
        for number, (line, is_typed) in enumerate(_list_lines(block))
    ]
    assert [(place, line) for place, line, is_printed in lines if len(line) > _MOST_COLUMNS and not is_printed] == []
    assert [line for _, line, is_printed in lines if len(line) > _MOST_COLUMNS and is_printed]  # else it needs no rule


def _list_lines(block: Block) -> Iterator[tuple[str, bool]]:
    """Yield each line of a block, and whether it is of a command. A backslash continues a command."""
    continues = False
    for line in block.text.splitlines():
        is_typed = continues or line.startswith("$ ")
        yield line, is_typed
        continues = is_typed and line.endswith("\\")


def format_fragment(of: str, text: str) -> str:
    """A part of a document: ``of`` is its kind and the field below which it belongs."""
    kind, _, path = of.partition(" ")
    keys = path.split(".") if path else []
    nested = "".join(f"{'  ' * depth}{key}:\n" for depth, key in enumerate(keys))
    return f"kind: {kind}\nmetadata: {{name: a}}\n{nested}{indent(dedent(text), '  ' * len(keys))}"


def problems(block: Block) -> list[Problem]:
    """Return the problems of a document or of a part of one, which may lack required fields."""
    text = format_fragment(block.of, block.text) if block.of else block.text
    text = re.sub(r"\b([0-9a-f]{4})…", lambda found: found[1].ljust(64, "0"), text)  # a digest
    documents = [
        each if each.startswith("apiVersion:") else f"apiVersion: gitboot.dev/v1alpha1\n{each}"
        for each in text.split("---\n")
    ]
    return [
        problem
        for each in documents
        for problem in parse_blob(each.encode(), block.page).problems
        if not (block.of and problem.code is Code.MISSING_FIELD)
    ]


def check_workflow(steps: Any, folder: Path) -> str:
    """Return the errors of some steps by GitHub's schema of workflows."""
    return check_schema({"on": "push", "jobs": {"a": {"runs-on": "a", "steps": steps}}}, "github-workflows", folder)


def check_schema(content: Any, schema: str, folder: Path) -> str:
    (folder / "ci.json").write_text(json.dumps(content))
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}")
    done = subprocess.run((*check, folder / "ci.json"), capture_output=True, text=True, check=False)
    return done.stdout if done.returncode else ""


def check_prometheus(text: str, folder: Path) -> str:
    for name in ("gitboot.token", "gitboot-ca.crt"):
        (folder / name).write_text("x")
    (folder / "prometheus.yml").write_text(text.replace("/etc/prometheus/", ""))
    command = (program("promtool", "prometheus"), "check", "config", "--syntax-only", folder / "prometheus.yml")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr if done.returncode else ""


def check_kustomize(text: str, folder: Path) -> str:
    """Return the errors of kustomize about the manifests in this folder."""
    shutil.copytree(ROOT / "packaging" / "kubernetes", folder / "base")
    for name in ("run.toml", "tokens"):
        (folder / name).write_text("")
    (folder / "kustomization.yaml").write_text(re.sub(r'resources: \[".*"\]', "resources: [base]", text))
    command = (program("kubectl", "kubernetes-client"), "kustomize", folder)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def check_yaml(block: Block, folder: Path) -> str:
    """Return why the reader of a block of YAML would reject it; the block or a comment above it names the reader."""
    folder.mkdir()
    if block.of == "a workflow":
        return check_workflow(yaml.safe_load(dedent(block.text)), folder)
    if block.of:
        return "; ".join(f"{each.code}: {each.message}" for each in problems(block))
    content = next(yaml.safe_load_all(block.text))
    if "scrape_configs" in content:
        return check_prometheus(block.text, folder)
    if "jobs" in content or True in content:  # YAML reads the key `on` as true
        return check_schema(
            {"on" if key is True else key: each for key, each in content.items()}, "github-workflows", folder
        )
    if any(isinstance(each, dict) and "script" in each for each in content.values()):
        return check_schema(content, "gitlab-ci", folder)
    if "repos" in content:  # of pre-commit
        hooks = [each["id"] for each in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())]
        return "" if [each["id"] for each in content["repos"][0]["hooks"]] == hooks else "no such hook"
    if "kind" not in content:
        return "of which kind? A comment above it says so: <!-- of Fleet spec -->"
    if content["kind"] == "Kustomization":
        return check_kustomize(block.text, folder)
    return "; ".join(f"{each.code}: {each.message}" for each in problems(block))


def test_each_block_of_yaml_is_accepted_by_its_reader(tmp_path: Path) -> None:
    blocks = [each for page in PAGES.values() for each in page.fenced if each.language == "yaml"]
    assert len(blocks) > 12
    assert all(each.language == "yaml" for page in PAGES.values() for each in page.fenced if each.of)
    found = [(each, check_yaml(each, tmp_path / str(number))) for number, each in enumerate(blocks)]
    assert [f"{block}: {refused}" for block, refused in found if refused] == []


@pytest.mark.parametrize(
    ("of", "text", "said"),
    [
        pytest.param("Server spec", "provisoin: 1\n", "GB1022", id="a field misspelt in a part"),
        pytest.param("BootImage spec.architectures.x86_64", "kernel: {url: 1, sha256: 7}\n", "GB10", id="a value"),
        pytest.param(None, "kind: BootPolicy\nmetadata: {name: a}\nspec: {profiles: a}\n", "GB1022", id="a document"),
        pytest.param(None, "kind: BootPolicy\nmetadata: {name: a}\n", "GB1023", id="a document that is not whole"),
        pytest.param("a workflow", "- {name: a, runs: b}\n", "runs", id="a step"),
        pytest.param(
            None, "on: push\njobs: {a: {runs-on: a, steps: [{runs: b}]}}\n", "runs", id="a workflow of its own"
        ),
        pytest.param(None, "a: {script: b, imagine: c}\n", "imagine", id="GitLab"),
        pytest.param(None, "scrape_configs:\n- {job_names: a}\n", "job_names", id="Prometheus"),
        pytest.param(None, "repos: [{hooks: [{id: gitboot}]}]\n", "no such hook", id="pre-commit"),
        pytest.param(None, 'kind: Kustomization\nresources: ["x"]\nimage: a\n', "image", id="kustomize"),
    ],
)
def test_a_block_that_its_reader_rejects_is_found(tmp_path: Path, of: str | None, text: str, said: str) -> None:
    block = Block(page="x.md", line=1, language="yaml", text=text, of=of)
    assert said in check_yaml(block, tmp_path / "x")


# The site


def _list_pages(navigation: list[Any]) -> Iterator[str]:
    for each in navigation:
        if isinstance(each, str):
            yield each
        else:
            for inner in each.values():
                yield from _list_pages([inner] if isinstance(inner, str) else inner)


def test_each_page_is_in_the_navigation_except_decisions_which_have_a_list() -> None:
    named = list(_list_pages(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    paths = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr"}
    assert len(named) == len(set(named))
    assert all((ROOT / name).is_file() for name in named)
    assert paths - set(named) == set()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/site.py, with a site of one page."""
    spec = importlib.util.spec_from_file_location("site_script", ROOT / "scripts" / "site.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SITE", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a page.html").write_text("")
    return module


@pytest.mark.parametrize(
    ("markup", "said"),
    [
        pytest.param('<a href="docs/a%20page.html#x">', [], id="a page"),
        pytest.param('<a href="docs/">', [], id="a folder"),
        pytest.param('<a href="https://example.net/"><a href="#x">', [], id="elsewhere, and here"),
        pytest.param('<a href="docs/b.html">', ["x.html: links to docs/b.html, which is not there"], id="no page"),
        pytest.param('<img src="a.png">', ["x.html: links to a.png, which is not there"], id="no image"),
        pytest.param('<script src="//cdn.example/x.js">', ["x.html: fetches //cdn.example/x.js"], id="a CDN's script"),
        pytest.param('<link href="https://f.example/">', ["x.html: fetches https://f.example/"], id="a CDN's font"),
    ],
)
def test_a_link_of_the_site_leads_to_a_file_and_the_site_loads_nothing_from_elsewhere(
    site: ModuleType, markup: str, said: list[str]
) -> None:
    (site.SITE / "x.html").write_text(markup)
    assert list(site.find_faults()) == said


def test_a_folder_without_a_page_lists_its_files(site: ModuleType) -> None:
    site.list_folders()
    assert '<a href="docs/">' in (site.SITE / "index.html").read_text()
    assert '<a href="a page.html">' in (site.SITE / "docs" / "index.html").read_text()
    assert list(site.find_faults()) == []


@for_each(("text", "missing"), [("It is Stuck.", 0), ("unstuck", 1), ("", 1)])
def test_the_search_of_the_site_finds_the_page_for_a_symptom(
    site: ModuleType, text: str, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "SEARCHES", {"stuck": "docs/help.html"})
    items = [
        {"location": "docs/help.html#first", "title": "First", "text": text},
        {"location": "docs/other.html", "title": "Stuck", "text": ""},
    ]
    (site.SITE / "search.json").write_text(json.dumps({"items": items}))
    assert len(list(site.find_missing_words())) == missing


# Reference pages


_SECTION: Final = re.compile(r"^#{2,3} (?P<title>.+?)\n(?P<text>.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)
_WORD: Final = re.compile(r"(?<![\w-])--?[a-z][\w-]*")
SHARED: Final = ("Shared options", "Registries", "Limits")  # sections that describe options of many commands


def _read_sections(page: str) -> dict[str, str]:
    return {found["title"]: found["text"] for found in _SECTION.finditer((ROOT / page).read_text())}


def _list_commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found
            yield from _list_commands(found, click.Context(found, info_name=name, parent=context))


def test_the_page_of_commands_describes_each_option_of_each_command_once() -> None:
    """In the command's section, in a section that its list of shared options names, or on the page of its keys."""
    sections = _read_sections("docs/reference/commands.md")
    keys = set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/reference/configuration.md").read_text(), re.MULTILINE))
    described = {title: re.findall(r"^- `(.+?)` \S", text, re.MULTILINE) for title, text in sections.items()}
    missing, count = [], 0
    for command, context in _list_commands(cli, click.Context(cli, info_name="gitboot")):
        if command is cli:
            continue
        count += 1
        text = sections.pop(context.command_path)
        own = [name for line in described[context.command_path] for name in _WORD.findall(line)]
        shared = [title for title in SHARED if f"(#{title.lower()})" in text]
        listed = {name for line in text.splitlines() if not line.startswith("- ") for name in _WORD.findall(line)}
        for option in (each for each in command.params if isinstance(each, click.Option) and not each.hidden):
            names = {*option.opts, *option.secondary_opts}
            places = [line for title in shared for line in described[title]]
            if names & listed:
                places += [line for title in SHARED for line in described[title]]
            in_shared = any(names <= {*_WORD.findall(line)} for line in places)
            in_keys = bool(names & listed) and "configuration.md#" in text
            in_keys = in_keys and {max(names, key=len).removeprefix("--")} <= {*keys, "config"}
            if not (names <= set(own) or in_shared or in_keys):
                missing.append(f"{context.command_path} {option.opts}")
            if names <= set(own) and names & listed:
                missing.append(f"{context.command_path} {option.opts} twice")
    assert missing == []
    assert count > 60
    assert sections.keys() == {*SHARED}


def test_the_page_of_commands_has_at_most_26_kilobytes() -> None:
    assert (ROOT / "docs/reference/commands.md").stat().st_size <= 26_250
