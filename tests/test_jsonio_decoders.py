"""Decoders of msgpack and JSON that several threads make at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gitboot

SOURCES = Path(gitboot.__file__).parent
OWN_CLASS = "render/endpoint_files.py"  # its decoder is of a class that no other decoder has
MAKERS = {"Decoder", "msgspec.convert", "msgspec.json.Decoder", "msgspec.msgpack.Decoder"}
DECODERS = {"decode", "msgspec.json.decode", "msgspec.msgpack.decode"}  # with a type

# `Middle` names a type by an expression, which msgspec evaluates while `Outer` is half known: then another thread makes
# a decoder of `Outer`, too.
AT_ONCE = """
import threading
from dataclasses import dataclass
from gitboot.jsonio import decoder
import msgspec

half_known, is_done = threading.Event(), threading.Event()

def pause():
    half_known.set()
    is_done.wait(1)  # comes to nothing if decoders are made one after the other
    return int

@dataclass
class Middle:
    number: "pause()"

@dataclass
class Outer:
    middle: Middle
    name: str

DATA = msgspec.msgpack.encode({"middle": {"number": 1}, "name": "a"})

def other():
    half_known.wait()
    decoder(Outer)(DATA)
    is_done.set()

thread = threading.Thread(target=other)
thread.start()
print(decoder(Outer)(DATA))
thread.join()
"""


def test_a_decoder_that_another_thread_makes_at_the_same_time_does_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Outer(middle=Middle(number=1), name='a')\n"), done


def test_every_decoder_is_made_by_the_module_that_makes_one_after_the_other() -> None:
    found = {str(path.relative_to(SOURCES)): list(makers(path)) for path in sorted(SOURCES.rglob("*.py"))}
    assert {path for path, calls in found.items() if calls} == {"jsonio.py", OWN_CLASS}


def makers(path: Path) -> Iterator[str]:
    """Yield the calls by which a module makes a decoder of msgspec."""
    text = path.read_text()
    if "msgspec" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in MAKERS or (name in DECODERS and any(each.arg == "type" for each in node.keywords)):
                yield f"{name} in line {node.lineno}"
