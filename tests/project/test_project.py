"""Rules for the repository as a whole: its architecture, its first pages, the files in Git."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gitboot import __version__
from gitboot.resolve.betterleaks_patterns import TOKENS
from tests.helpers.cases import for_each

ROOT = Path(__file__).parents[2]
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "gitboot").rglob("*.py"))

# Folders of home directories and CI checkouts. Paths that are the same everywhere, like /var/lib, are fine.
BUILD_MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:home|Users|root|work|workspace|builds)/\w")


def _lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [lint_imports, "--no-logo", "--no-cache"], cwd=root, capture_output=True, text=True, check=False
    )


STRAY = {
    "no stage": ("utils.py", "", "gitboot.utils"),
    "a clock in a pure module": (
        "resolve/kernel_arguments.py",
        "import time",
        "gitboot.resolve.kernel_arguments -> time",
    ),
    "upwards": ("errors.py", "import gitboot.fleet", "gitboot.errors -> gitboot.fleet"),
    "sushy outside bmc": ("status/instance_status.py", "import sushy", "gitboot.status.instance_status -> sushy"),
    "starlette outside endpoint": ("ledger/schema.py", "import starlette", "gitboot.ledger.schema -> starlette"),
    "pygit2 for S3": ("publish/bucket.py", "import pygit2", "gitboot.publish.bucket -> pygit2"),
}


def test_a_stray_import_breaks_a_contract(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    package = tmp_path / "gitboot"
    shutil.copytree(ROOT / "gitboot", package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, source, _ in STRAY.values():
        (package / path).write_text(source)

    result = _lint_imports(tmp_path)

    assert result.returncode == 1
    assert {case for case, (_, _, complaint) in STRAY.items() if complaint not in result.stdout} == set()


def _is_one_sentence(docstring: str) -> bool:
    first = docstring.partition("\n")[0]
    return first.endswith(".") and not re.search(r"[.!?] ", first)


def test_each_module_has_a_docstring_of_one_sentence() -> None:
    found = {str(path): re.match(r'(?:#.*\n|\s)*r?"""(.*)', (ROOT / path).read_text()) for path in MODULES}
    said = {path: match[1].removesuffix('"""') if match is not None else "" for path, match in found.items()}
    assert {path: text for path, text in said.items() if not _is_one_sentence(text)} == {}


def test_no_module_has_more_than_800_lines() -> None:
    lengths = {str(path): len((ROOT / path).read_text().splitlines()) for path in MODULES}
    assert {path: length for path, length in lengths.items() if length > 800} == {}


@pytest.mark.parametrize(
    ("modules", "without"),
    [
        pytest.param(
            ("cli.commands.serve", "endpoint.app", "endpoint.recorder", "endpoint.server"),
            {
                "gitboot.model.fields",
                "gitboot.resolve.server_decision",
                "gitboot.status.instance_status",
                "jinja2",
                "pydantic",
                "pygit2",
                "sushy",
                "yaml",
            },
            id="an endpoint",
        ),
        pytest.param(
            ("cli.commands.run", "controller.instance.assembly", "controller.loop"),
            {"requests", "starlette", "sushy", "uvicorn"},
            id="an instance",
        ),
        pytest.param(
            ("cli.commands.instance",),
            {"gitboot.cli.instance_client", "gitboot.controller.operator_requests", "gitboot.review.guards"},
            id="the events of an instance",
        ),
        pytest.param(
            ("cli.commands.read_access_logs",),
            {"gitboot.publish.mirror_comparison", "gitboot.publish.mirror_repair", "gitboot.publish.targets.follower"},
            id="the reader of access logs",
        ),
        pytest.param(
            ("cli.commands.prepare_tree",),
            {"gitboot.controller.instance.settings", "gitboot.evaluator.protocol"},
            id="the preparation of a standby, before it has the lowest priority",
        ),
    ],
)
def test_a_program_starts_without_modules_that_it_may_never_need(modules: tuple[str, ...], without: set[str]) -> None:
    """Each of them takes a good part of a start."""
    script = f"import sys; {'; '.join(f'import gitboot.{each}' for each in modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not without & set(done.stdout.split())


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


# Faults that were found, each with a test whose name begins with it. Add a row here when you fix one, and drop none.
FAULTS = {
    "e": ("", set(range(1, 39))),  # what 0.1.0 did to machines, or would have done
    "t": ("", set(range(1, 14))),  # what a stranger could have done to 0.1.0
    # What an examination of 2fefe59 found. A rule of resolution is an R, too, so these tests are named test_finding_….
    "c": ("finding_", {1, 2, 3, 4, 5, 6}),  # correctness under faults
    "i": ("finding_", {1, 2, 3, 4}),  # imports from other systems
    "m": ("finding_", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}),  # mirrors and CDNs
    "p": ("finding_", {1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}),  # what public reports of other tools led to
    "r": ("finding_", set(range(1, 19))),  # rollback, rollout, daily operation
    "s": ("finding_", set(range(1, 18))),  # security
}


@pytest.mark.parametrize("letter", FAULTS)
def test_each_fault_that_was_found_and_fixed_has_a_test_of_its_own(letter: str) -> None:
    prefix, rows = FAULTS[letter]
    found = {
        int(number)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(rf"^ *(?:async )?def test_{prefix}((?:{letter}\d+_)+)", path.read_text(), re.MULTILINE)
        for number in re.findall(r"\d+", name)
    }
    assert found == rows


def test_the_licence_of_the_copied_rules_is_shipped_with_them() -> None:
    """In the wheel, and so in the Debian package, and in the image that is made of that."""
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    notice = (ROOT / "NOTICE").read_text()
    assert "NOTICE" in shipped and "Permission is hereby granted, free of charge" in notice
    (owner,) = re.findall(
        r"betterleaks: (Copyright \(c\) .+), MIT License",
        (ROOT / "gitboot/resolve/betterleaks_patterns.py").read_text(),
    )
    assert f"\n{owner}\n" in notice


def test_the_module_of_copied_rules_is_as_its_script_writes_it() -> None:
    """Except the patterns, which the script reads from a package that the tests do not install."""
    script = runpy.run_path(str(ROOT / "scripts/leak_rules.py"))
    text = (ROOT / "gitboot/resolve/betterleaks_patterns.py").read_text()
    (version,) = re.findall(r"kingfisher-secret-scanner (\d\S*)\. ", text)
    assert text[: text.index("    # ")] == script["HEAD"].format(version=version)
    names = re.findall(r"^    # (\S+)$", text, re.MULTILINE)
    rules = [(name, (rule.kind, rule.words)) for name, rule in zip(names, TOKENS, strict=True)]
    assert rules == sorted(script["WANTED"].items())


def test_changelog_has_a_section_for_this_version() -> None:
    assert f"\n## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_readme_opens_with_the_two_commands_to_try() -> None:
    opening = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert re.search(r"^ *make run\b[\s\S]*^ *make test\b", opening, re.MULTILINE), opening


def test_no_file_in_git_names_a_path_of_a_build_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    naming = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in files
        if path.is_file() and (match := BUILD_MACHINE_PATH.search(path.read_text(errors="replace")))
    ]
    assert files
    assert naming == []


@for_each("path", sorted((ROOT / "docs" / "adr").glob("0*.md")), ids=lambda path: path.stem)
def test_a_decision_has_a_number_a_title_a_status_a_date_and_a_line_in_the_list(path: Path) -> None:
    number, _, _ = path.stem.partition("-")
    text = path.read_text()
    assert re.match(
        rf"# {number}: [A-Z].*[^.]\n\nStatus: (accepted|superseded by \d{{4}})\nDate: \d{{4}}-\d\d-\d\d\n\n## ", text
    )
    assert f"| [{number}]({path.name}) | " in (path.parent / "README.md").read_text()
    assert len(text.splitlines()) <= 75, "more than a page"


AUDITED = {"name": "jinja2", "version": "3.1.6", "vulns": []}
KNOWN = {"name": "pyyaml", "version": "6.0.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["6.0.3"]}]}
SKIPPED = {"name": "click", "version": "8.5.1", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "required_code", "word"),
    [
        ([AUDITED], 0, 0, "1 of 1 packages were audited"),
        ([AUDITED, SKIPPED], 0, 1, "1 of 2 packages were audited"),
        ([AUDITED, KNOWN], 1, 1, "pyyaml 6.0.1: PYSEC-1, fixed by 6.0.3"),
        ([SKIPPED], 0, 1, "nothing was audited"),
        ([], 0, 1, "nothing was audited"),
    ],
)
def test_an_audit_fails_for_known_vulnerabilities_and_for_packages_that_were_not_checked(
    tmp_path: Path, packages: list[object], code: int, required_code: int, word: str
) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"dependencies": packages}))
    for more, expected in (((), code), (("--required",), required_code)):
        command = [sys.executable, ROOT / "scripts" / "audit.py", "--report", report, *more]
        found = subprocess.run(command, capture_output=True, text=True)
        assert (found.returncode, word in found.stdout + found.stderr) == (expected, True)
