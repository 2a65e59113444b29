"""``python -m gitboot.evaluator``: the process that evaluates commits."""

from __future__ import annotations

import sys

from gitboot.evaluator.process import main

if __name__ == "__main__":
    main(*sys.argv[1:])
