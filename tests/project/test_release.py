"""`scripts/release` builds nothing unless the commit can be released. `tests/packages` builds a release."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.git_repositories import ENVIRONMENT, WorkTree, program

ROOT: Final = Path(__file__).parents[2]
VERSION: Final = 'Text.\n\n__version__ = "1.2.0"\n'
CHANGELOG: Final = "# Changelog\n\n## 1.2.0\n\nA line.\n\n## 1.1.0\n\nAn old line.\n"


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    """A repository that can be released, with the script of this one."""
    work = WorkTree(tmp_path / "work")
    for name in ("scripts/release", ".gitignore"):
        (work.path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, work.path / name)
    work.commit({"gitboot/__init__.py": VERSION, "CHANGELOG.md": CHANGELOG}, message="Begin")
    return work


def release(work: WorkTree) -> tuple[int, str]:
    """Return the exit code and the errors."""
    command = [work.path / "scripts" / "release"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert not list(work.path.glob("build/release*"))
    return done.returncode, done.stderr


def leave_a_file(work: WorkTree) -> None:
    work.write({"notes.txt": "To do.\n"})


def edit_a_file(work: WorkTree) -> None:
    work.write({"CHANGELOG.md": f"{CHANGELOG}\nAnother line.\n"})


def begin_the_next_section(work: WorkTree) -> None:
    work.commit({"CHANGELOG.md": CHANGELOG.replace("## 1.2.0", "## 1.3.0\n\nMore.\n\n## 1.2.0")})


def have_no_section(work: WorkTree) -> None:
    work.commit({"CHANGELOG.md": "# Changelog\n"})


def write_no_notes(work: WorkTree) -> None:
    work.commit({"CHANGELOG.md": CHANGELOG.replace("A line.\n", "")})


def tag_another_commit(work: WorkTree) -> None:
    work.git("tag", "--annotate", "--message=1.2.0", "v1.2.0")
    work.commit({"README.md": "More.\n"})


@pytest.mark.parametrize(
    ("prepare", "place", "cause", "hint"),
    [
        (leave_a_file, "notes.txt", "differs from the commit (1 in all", "commit, ignore or remove it"),
        (edit_a_file, "CHANGELOG.md", "differs from the commit (1 in all", "commit, ignore or remove it"),
        (
            begin_the_next_section,
            "CHANGELOG.md:3",
            "is 1.3.0, and gitboot/__init__.py:3 has version 1.2.0",
            "__version__",
        ),
        (have_no_section, "CHANGELOG.md:1", "is missing, and gitboot/__init__.py:3 has version 1.2.0", '"## 1.2.0"'),
        (write_no_notes, "CHANGELOG.md:3", "the section 1.2.0 is empty", "write what changed"),
        (tag_another_commit, "gitboot/__init__.py:3", "the tag v1.2.0 is commit", "check out v1.2.0"),
    ],
)
def test_a_commit_that_cannot_be_released_is_refused(
    work: WorkTree, prepare: Callable[[WorkTree], None], place: str, cause: str, hint: str
) -> None:
    prepare(work)
    code, errors = release(work)
    assert code == 1
    problem, remedy = errors.splitlines()
    assert problem.startswith(f"scripts/release: {place}: ") and cause in problem
    assert remedy.startswith("  hint: ") and hint in remedy


def test_a_commit_that_has_the_tag_of_its_version_is_released(work: WorkTree) -> None:
    program("dh", "debhelper")
    work.git("tag", "--annotate", "--message=1.2.0", "v1.2.0")
    code, errors = release(work)
    assert "Wheel and sdist" in errors and "hint" not in errors
    assert code == 127  # this repository has no scripts/build-python
