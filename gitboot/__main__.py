"""``python -m gitboot`` is ``gitboot``."""

import os
import sys

# For -m, Python imports from the current directory first, which may be a checkout with a stranger's click.py.
if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]

from gitboot.cli.main import program

program()
