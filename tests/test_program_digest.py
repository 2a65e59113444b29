"""A program is named by a digest of its files and of the versions of its libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from gitboot import program_digest


def digest_of(program: Path, libraries: Path) -> str:
    """What a process with that gitboot calls itself."""
    script = "from gitboot.program_digest import this_program; print(this_program().hex())"
    environment = {**os.environ, "PYTHONPATH": f"{program}:{libraries}"}
    command = [sys.executable, "-P", "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_a_program_is_told_by_its_files_and_by_the_versions_of_its_libraries(tmp_path: Path) -> None:
    program, libraries = tmp_path / "program", tmp_path / "libraries"
    shutil.copytree(Path(program_digest.__file__).parent, program / "gitboot")
    (libraries / "yaml").mkdir(parents=True)
    (libraries / "yaml" / "__init__.py").touch()
    (libraries / "pyyaml-6.0.1.dist-info").mkdir()
    found = [digest_of(program, libraries)]
    assert digest_of(program, libraries) == found[0]
    (libraries / "pyyaml-6.0.1.dist-info").rename(libraries / "pyyaml-6.0.2.dist-info")
    found.append(digest_of(program, libraries))
    with (program / "gitboot" / "phrases.py").open("a") as file:
        file.write("# another\n")
    found.append(digest_of(program, libraries))
    (program / "gitboot" / "phrases.py").rename(program / "gitboot" / "sentences.py")
    found.append(digest_of(program, libraries))
    (program / "gitboot" / "serve" / "openapi.yaml").write_text("")
    found.append(digest_of(program, libraries))
    assert len(set(found)) == 5
