"""Entry point of ``python -m gitboot``."""

import os
import sys

# With -m, Python imports from the current directory first. A checkout can contain a malicious click.py.
if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]

from gitboot.cli.main import program

program()
