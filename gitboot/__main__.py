"""``python -m gitboot`` is ``gitboot``."""

from gitboot.cli import main

main()
