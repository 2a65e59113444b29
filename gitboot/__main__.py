"""``python -m gitboot`` is ``gitboot``."""

from gitboot.cli import program

program()
