"""Entry point of ``python -m gitboot.evaluator``, which starts the process that evaluates commits."""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # nearly all objects stay in memory for long; `main` collects garbage after each evaluation
    from gitboot.evaluator.process import main

    main(*sys.argv[1:])
