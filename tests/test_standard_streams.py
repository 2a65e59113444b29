"""Standard output and standard error: no text of any origin controls the program that shows it."""

from __future__ import annotations

import os
import subprocess
import sys
import tty
from pathlib import Path

import click
import pytest

from gitboot.standard_streams import (
    build_control_sequence,
    build_escaping_stream,
    escape_line,
    open_verbatim,
    strip_style,
    style,
)
from tests.helpers.disks_and_terminals import read_to_end

HOSTILE = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\udcff\n::error::owned ##[add-mask]x"
SHOWN = r"\u001b]0;owned\u0007\u001b[31m\u009b2J\u202e\udcff" + "\n" + r"\u003a:error::owned \u0023#[add-mask]x"


def written(*texts: str, to_terminal: bool) -> str:
    """Return what a terminal or a pipe receives from a guarded stream."""
    if to_terminal:
        read, write = os.openpty()
        tty.setraw(write)
    else:
        read, write = os.pipe()
    with open(write, "w") as stream:
        output = build_escaping_stream(stream)
        output.writelines(texts)
        output.flush()
    return read_to_end(read).decode()


@pytest.mark.parametrize("to_terminal", [False, True], ids=["pipe", "terminal"])
def test_hostile_text_is_escaped(to_terminal: bool) -> None:
    assert written(HOSTILE, to_terminal=to_terminal) == SHOWN
    assert written("a", "::b\n", "\t::c", to_terminal=to_terminal) == "a" + r"\u003a:b" + "\n\t" + r"\u003a:c"


def test_a_terminal_gets_the_colours_of_gitboot_and_no_others() -> None:
    line = f"{style(HOSTILE, 'red', bold=True)} {style('fine', 'green')}{build_control_sequence('K')}"
    assert written(line, to_terminal=True) == f"\x1b[31m\x1b[1m{SHOWN}\x1b[0m \x1b[32mfine\x1b[0m\x1b[K"
    assert written(line, to_terminal=False) == f"{SHOWN} fine"


def test_colours_have_no_width_and_can_be_removed() -> None:
    cell = style("web01\n", "red")
    assert (strip_style(cell), click.unstyle(cell)) == ("web01\n", "web01\n")
    assert strip_style(escape_line(f"{cell}\x1b[0m")) == r"web01\n\u001b[0m"
    assert style("plain") == "plain"


def test_a_library_may_draw_and_the_stream_continues() -> None:
    read, write = os.pipe()
    with open(write, "w") as stream:
        output = build_escaping_stream(stream)
        with open_verbatim(output) as drawing:
            drawing.write("\x1b[2K")
        output.write("\x1b")
        output.flush()
    assert read_to_end(read) == b"\x1b[2K\\u001b"


@pytest.mark.parametrize(
    "raises",
    [
        "raise ValueError(HOSTILE)",
        "import warnings; warnings.warn(HOSTILE)",
        "import logging; logging.getLogger('library').error(HOSTILE)",
        "import click; click.echo(HOSTILE, err=True)",
        "print(HOSTILE, file=sys.stderr)",
        "import threading; threading.Thread(target=lambda: {}[HOSTILE]).start()",
        "sys.exit(HOSTILE)",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_no_text_of_python_or_a_library_is_executed(raises: str, encoding: str) -> None:
    guarding = "from gitboot.standard_streams import escape_output; escape_output()"
    script = f"import sys; {guarding}; HOSTILE = {HOSTILE!a}; {raises}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}
    )
    text = done.stderr.decode("latin-1" if encoding == "latin-1" else "utf-8")
    assert all(line.isprintable() and not line.lstrip().startswith("::") for line in text.splitlines())
    assert "owned" in text and "##[" not in text


def test_a_process_without_standard_input_reads_an_empty_input() -> None:
    """Python sets `sys.stdin` to None, so that commands that read it ended with a traceback."""
    guarding = "import sys; from gitboot.standard_streams import escape_output; escape_output()"
    script = f"{guarding}; print(sys.stdin.buffer.read(), sys.stdin.isatty())"
    command = ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, script]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "b'' False\n"


def test_a_character_that_an_encoding_lacks_is_escaped(tmp_path: Path) -> None:
    script = "from gitboot.standard_streams import escape_output; escape_output(); print('机架 ünlü')"
    with (tmp_path / "out").open("wb") as output:
        environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
        subprocess.run([sys.executable, "-c", script], stdout=output, env=environment, check=True)
    assert (tmp_path / "out").read_bytes() == b"\\u673a\\u67b6 \xfcnl\xfc\n"
