"""Start the process that evaluates commits, by ``python -m gitboot.evaluator``."""

from __future__ import annotations

import sys

from gitboot.child_processes import pause_garbage_collection

if __name__ == "__main__":
    # garbage collection is useless here, because the objects that an import creates stay in memory
    with pause_garbage_collection():
        from gitboot.evaluator.process import main
    main(*sys.argv[1:])
