"""Entry point of the command ``gitboot`` and of ``python -m gitboot``."""

import os
import sys

# With -m, Python imports from the current directory first. A checkout can contain a malicious click.py.
if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]

import signal

# Until `program` can handle Ctrl-C, Ctrl-C ends the process without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from gitboot.cli.main import program

if __name__ == "__main__":
    program()
