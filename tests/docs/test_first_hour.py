"""docs/tutorials/first-hour.md, typed into a shell line by line: the output is the text on the page.

If the output has changed, run ``pytest tests/docs/test_first_hour.py --write-first-hour`` and read the page.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.helpers import http_peers
from tests.helpers.documentation import build_tutorial, run_tutorial
from tests.helpers.endpoints import IPXE
from tests.helpers.forked_commands import build_shell_program, run_forked
from tests.helpers.git_repositories import ENVIRONMENT, WorkTree, free_port
from tests.helpers.running_instance import eventually

PAGE: Final = Path(__file__).parents[2] / "docs" / "tutorials" / "first-hour.md"

_BLOCK: Final = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
_TYPED: Final = re.compile(r"^\$ ((?:.*\\\n)*.*)\n(?:(?!\$ ).*\n)*", re.MULTILINE)
_END: Final = "\x1e"
# Text that differs each time, or with the rendered files: times, commits, digests.
_OTHER: Final = re.compile(r"\d{4}-\d\d-\d\d(?:T[\d:.]+Z)?|\b(?:[0-9a-f]{9}|[0-9a-f]{12}|[0-9a-f]{40}|[0-9a-f]{64})\b")


def run_page(text: str, folder: Path) -> str:
    """Return the page with the output of its commands; an exit code other than 0 is on its own line."""
    program = folder / "bin" / "gitboot"
    program.parent.mkdir()
    program.write_text(build_shell_program())
    program.chmod(0o755)
    (folder / "hour").mkdir()
    commands = [found[1] for block in _BLOCK.findall(text) for found in _TYPED.finditer(block)]
    ended = f"code=$?; [ $code = 0 ] || echo \"(exit code $code)\"; printf '{_END}'"
    typed = "\n".join(f"{command}\n{ended}" for command in commands)
    environment = {
        **ENVIRONMENT,
        "PATH": f"{program.parent}:{ENVIRONMENT['PATH']}",
        "HOME": str(folder),
        "GITBOOT_ACCEPT_FILESYSTEM": "tmpfs ramfs overlay",
        "COLUMNS": "110",
    }
    done = subprocess.run(
        ["bash", "-c", f"exec 2>&1\n{typed}"],
        cwd=folder / "hour",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    shown = iter(done.stdout.replace(str(folder / "hour"), "~").split(_END))
    return _BLOCK.sub(
        lambda block: _TYPED.sub(lambda line: f"$ {line[1]}\n{_trim_output(next(shown))}", block[0]), text
    )


def _trim_output(printed: str) -> str:
    printed, _, _ = printed.partition("\nWarning: CI may have no source for this version of gitboot")  # in a checkout
    lines = "\n".join(line.rstrip() for line in printed.rstrip().splitlines())
    return f"{lines}\n" if lines else ""


def test_the_page_shows_the_printed_output(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    now = run_page(text, tmp_path)
    if request.config.getoption("--write-first-hour"):
        PAGE.write_text(now)
        return
    assert _OTHER.sub("…", now) == _OTHER.sub("…", text)


# docs/tutorials/first-server.md, followed to a machine that boots late: a fetch by a person does not consume its boot


ROOT: Final = Path(__file__).parents[2]
ENTRY: Final = "v1/boot/52-54-00-12-34-56/boot.ipxe"
USER_AGENTS: Final = ("curl/7.88.1", "Wget/1.21.3", "Mozilla/5.0 (X11; Linux x86_64) Chrome/142.0.0.0")


def test_a_fetch_by_a_person_consumes_nothing_and_the_machine_boots_later(tmp_path: Path) -> None:
    installer = tmp_path / "installer"
    installer.mkdir()
    for name in ("linux", "initrd.gz"):
        (installer / name).write_text(name)
    (tmp_path / "srv").mkdir()
    url = f"127.0.0.1:{free_port()}"
    text = build_tutorial(
        tmp_path, installer, without={"Loaders", "DHCP and TFTP"}
    )  # they are for root, and boot in tests/boots
    text = text.replace("ADDRESS=192.0.2.1", "ADDRESS=127.0.0.1").replace("$ADDRESS:8080", url)
    state = ("--state", tmp_path / "var" / "lib" / "gitboot")

    def asked_by(agent: str) -> str:
        return http_peers.get(f"http://{url}/{ENTRY}", headers={"User-Agent": agent}).text

    with run_tutorial(tmp_path, text, build_shell_program()):
        for agent in USER_AGENTS:
            assert "withheld the boot" in asked_by(agent) and "debian-12" not in asked_by(agent)
        assert "echo gitboot: web01 boots debian-12 (Network)" in asked_by(IPXE)
        eventually(lambda: '"type": "Provisioned"' in run_forked("events", "-o", "json", *state).stdout)
        reason = ("--reason", "the power went")
        assert run_forked("records", "set", "web01", "pending", "--yes", *state, *reason).returncode == 0
        eventually(lambda: "boots debian-12" in asked_by(IPXE))


def test_the_maintenance_of_the_example_is_removed_by_the_line_on_the_page(tmp_path: Path) -> None:
    (line,) = (
        each
        for each in (ROOT / "docs" / "tutorials" / "first-server.md").read_text().split("`")
        if each.startswith("git rm")
    )
    run_forked("init", tmp_path / "fleet")
    work = WorkTree(tmp_path / "fleet")
    work.commit(message="Begin")
    work.git(*shlex.split(line)[1:])
    done = run_forked("validate", tmp_path / "fleet")
    warning, *_, summary = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 0 and "GB2029" in warning  # the image of `init` has no digests of its own
    assert summary == f"{tmp_path}/fleet: 1 server, 1 image, 1 warning in 1 file"
