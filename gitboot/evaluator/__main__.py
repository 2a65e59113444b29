"""``python -m gitboot.evaluator``: the process that evaluates commits."""

from __future__ import annotations

import sys

from gitboot.child_processes import pause_garbage_collection

if __name__ == "__main__":
    with pause_garbage_collection():  # objects created at import stay in memory anyway
        from gitboot.evaluator.process import main
    main(*sys.argv[1:])
