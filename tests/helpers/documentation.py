"""The pages of the documentation: their blocks of code, and the scripts that tests run from them."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent
from typing import Final

from tests.helpers.git_repositories import ENVIRONMENT, program

# The pages of the documentation: their blocks of code, and their scripts that copy or check out a tree.

ROOT: Final = Path(__file__).parents[2]
GENERATED_PAGES: Final = ("docs/reference/commands.md",)  # output of the commands themselves

_FENCED: Final = re.compile(
    r"(?:^ *<!-- of (?P<of>[^\n]+?) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)
_INDENTED: Final = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
_NESTED: Final = re.compile(r"(?:^ {8}.*\n)+", re.MULTILINE)  # in an item of a list
_INLINE: Final = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    page: str  # below the repository
    line: int  # 1-based, of its first line
    language: str  # "" if it has none
    text: str
    of: str | None = None  # what it is a part of, by a comment above it that no forge shows

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    fenced: tuple[Block, ...]
    indented: tuple[Block, ...]
    inline: tuple[Block, ...]

    @property
    def shown(self) -> tuple[Block, ...]:
        return self.fenced + self.indented


def list_pages() -> Iterator[str]:
    for path in (ROOT, ROOT / "gitboot" / "cli" / "commands" / "seed", *(ROOT / "docs", *(ROOT / "docs").glob("*/"))):
        for page in sorted(path.glob("*.md")):
            if (
                page.name != "CHANGELOG.md"
                and path.name != "adr"
                and (name := str(page.relative_to(ROOT))) not in GENERATED_PAGES
            ):
                yield name


def read_page(page: str) -> Page:
    text = (ROOT / page).read_text()
    fenced = tuple(
        Block(
            page=page,
            line=text.count("\n", 0, found.start("language")) + 2,
            language=found["language"],
            text=re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            of=found["of"],
        )
        for found in _FENCED.finditer(text)
    )
    text = _FENCED.sub(_blank_lines, text)
    codes = [
        code
        for found in _INDENTED.finditer(text)
        for code in (
            _NESTED.finditer(text, found.start(), found.end()) if _is_list_item(text[: found.start()]) else (found,)
        )
        if text[: code.start()].endswith("\n\n")
    ]
    indented = tuple(
        replace(_make_block(page, text, found, 0), text=re.sub("^ {8}", " " * 4, found[0], flags=re.MULTILINE))
        if found.re is _NESTED
        else _make_block(page, text, found, 0)
        for found in codes
    )
    for code in reversed(codes):  # the earlier places stay valid
        text = f"{text[: code.start()]}{_blank_lines(code)}{text[code.end() :]}"
    return Page(
        fenced=fenced,
        indented=indented,
        inline=tuple(_make_block(page, text, each, 1) for each in _INLINE.finditer(text)),
    )


def _is_list_item(text: str) -> bool:
    """Return whether indented lines after a text continue an item of a list, and so are no code."""
    outer = [line for line in text.splitlines() if line[:1].strip()]
    return bool(outer) and re.match(r"(?:[-*] |\d+\. )", outer[-1]) is not None


def _blank_lines(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _make_block(page: str, text: str, found: re.Match[str], group: int) -> Block:
    return Block(page=page, line=text.count("\n", 0, found.start()) + 1, language="", text=found[group])


def list_commands(block: Block) -> Iterator[tuple[str, ...]]:
    """Return the words of each command in a block: the parts of a shell line between `|`, `&&` and the like."""
    for line in re.sub(r"\\\n", " ", block.text).splitlines():
        lexer = shlex.shlex(re.sub(r"^\s*[$#] ", "", line), posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # prose, or half of a quoted text
            continue
        command: list[str] = []
        for word in (*words, ";"):
            if re.fullmatch(r"[|&;<>()]+", word):
                if command:
                    yield tuple(command)
                command = []
            else:
                command.append(word)


def find_code_block(page: str, start: str) -> str:
    """Return the only block of code on a page that begins with ``start``, without its indentation."""
    (found,) = (text for each in read_page(page).shown if (text := dedent(each.text)).startswith(start))
    return found


def require_inline_code(page: str, text: str) -> str:
    """Return a text that a page has as inline code."""
    assert text in {each.text for each in read_page(page).inline}, f"{page} does not contain `{text}`"
    return text


MIRROR_PAGE: Final = "docs/how-to/publish-to-a-mirror.md"


def find_mirror_file(start: str) -> str:
    """Return the block of code that begins with these lines, on the page about mirrors."""
    (found,) = (block.text for block in read_page(MIRROR_PAGE).fenced if block.text.startswith(start))
    return found


def build_checkout_script(boots: Path) -> str:
    """Return the page's script that unpacks a branch, with this folder in the place of /srv/boots."""
    return find_mirror_file("#!/bin/sh\nset -eu\ngit fetch").replace("/srv/boots", str(boots))


def clone_for_checkouts(remote: Path, folder: Path) -> Path:
    """Return a bare clone in which the page's script runs."""
    clone = folder / "boots.git"
    subprocess.run(["git", "clone", "--bare", "--quiet", remote, clone], env=ENVIRONMENT, check=True)
    return clone


SCRIPT: Final = find_mirror_file("#!/bin/sh\n# copy-boot")
COMMANDS: Final = ("flock", "readlink", "rm", "rsync", "sync", "ln", "mv")
CALLS: Final = 8  # of one run: two of rsync


def write_mirror_script(folder: Path) -> Path:
    """Write the script of the page for a mirror in a new folder, and return its path."""
    folder.mkdir(parents=True)
    path = folder / "copy-boot"
    path.write_text(SCRIPT.replace("/srv/gitboot", str(folder)).replace(":www-data", f":{os.getegid()}"))
    path.chmod(0o755)
    return path


class CopyScript:
    """The script for a mirror in ``folder``, and the commands that it calls: each of them is counted."""

    def __init__(self, folder: Path, commands_folder: Path) -> None:
        self.current, self._commands, self._script = folder / "current", commands_folder, write_mirror_script(folder)
        commands_folder.mkdir()
        for name in COMMANDS:
            path = commands_folder / name
            path.write_text(
                f"#!/bin/sh\necho {name} >> {commands_folder}/calls\nnumber=$(wc -l < {commands_folder}/calls)\n"
                f"if [ -e {commands_folder}/kill-$number ]; then kill -9 $PPID; exit 1; fi\n"
                f"if [ -p {commands_folder}/wait-$number ]; then read line < {commands_folder}/wait-$number; fi\n"
                f'exec {program(name, name)} "$@"\n'
            )
            path.chmod(0o755)

    def run(self, source: Path) -> int:
        return self._start(source).wait(600)

    def run_killed(self, source: Path, call: int) -> int:
        """Kill the script before a call, from 1 on, and return the exit status."""
        (self._commands / f"kill-{call}").touch()
        try:
            return self.run(source)
        finally:
            (self._commands / f"kill-{call}").unlink()

    def run_halted(self, source: Path, call: int, meanwhile: Callable[[], None]) -> int:
        """Do something ``meanwhile``, before a call, from 1 to `CALLS`, and return the exit status."""
        os.mkfifo(gate := self._commands / f"wait-{call}")
        try:
            running = self._start(source)
            gate_fd = _open_gate(gate, running)
            try:
                meanwhile()
            finally:
                os.close(gate_fd)
            return running.wait(600)
        finally:
            gate.unlink()

    def files(self) -> dict[str, bytes]:
        """Return what the mirror serves, by path below OUTPUT, if the source was OUTPUT/boot."""
        found = (path for path in self.current.rglob("*") if path.is_file())
        return {f"boot/{path.relative_to(self.current)}": path.read_bytes() for path in found}

    def _start(self, source: Path) -> subprocess.Popen[bytes]:
        (self._commands / "calls").unlink(missing_ok=True)
        environment = {**os.environ, "PATH": f"{self._commands}:{os.environ['PATH']}"}
        return subprocess.Popen([self._script, source], env=environment, stderr=subprocess.DEVNULL)


def _open_gate(gate: Path, running: subprocess.Popen[bytes]) -> int:
    """Open a FIFO as soon as a command of a script waits for it."""
    until_s = time.monotonic() + 600
    while running.poll() is None and time.monotonic() < until_s:
        try:
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no command waits yet
                raise
        time.sleep(0.01)
    raise AssertionError(f"the script did not come to {gate.name}; its exit status is {running.returncode}")


# docs/tutorials/first-server.md as a script: its blocks in their order, below a folder instead of below /.

PAGE: Final = Path(__file__).parents[2] / "docs" / "tutorials" / "first-server.md"
DONE: Final = "echo the page is done"

_SECTION: Final = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FOLDERS: Final = re.compile(r"/(?:srv|var/lib)/")
_INSTALLER: Final = re.compile(r"(?<=^INSTALLER=).*", re.MULTILINE)


def build_tutorial(folder: Path, installer: Path, *, without: Container[str] = ()) -> str:
    """Return all blocks except those of some sections, with paths moved to ``folder``, and another installer."""
    sections = _SECTION.findall(PAGE.read_text())
    text = "".join(block for title, section in sections if title not in without for block in _BLOCK.findall(section))
    text = _INSTALLER.sub(f"file://{installer}", text)
    return f"set -eu\n{_FOLDERS.sub(lambda found: f'{folder}{found[0]}', text)}\n{DONE}\nwait\n"


@contextmanager
def run_tutorial(folder: Path, text: str, gitboot: str) -> Iterator[None]:
    """Run it to its last word, with a program as `gitboot`; what it started goes on until the end."""
    from tests.helpers.running_instance import eventually

    bin_folder, log = folder / "bin", folder / "page.log"
    bin_folder.mkdir()
    (bin_folder / "gitboot").write_text(gitboot)
    (bin_folder / "gitboot").chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}:/usr/sbin"}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [program("bash", "bash"), "-c", text], env=environment, stdout=output, stderr=output, start_new_session=True
        ) as shell,
    ):
        try:
            eventually(lambda: shell.poll() is not None or "the page is done" in log.read_text(), within_s=300)
            assert shell.poll() is None, log.read_text()
            yield
        finally:
            os.killpg(shell.pid, signal.SIGTERM)
