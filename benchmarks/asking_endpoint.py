"""The delay of a boot script that first asks the endpoint, by loader: `python -m benchmarks.asking_endpoint`.

Each row is one boot in QEMU from a copy of a server in a maintenance window. The delay is the time between the requests
of the boot script and of the kernel. The benchmark needs the programs of tests/boots/packages.txt.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.boots.asking import CASES, IN_WINDOW, LOADERS, boot


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.asking_endpoint", description=__doc__)
    parser.add_argument("--loader", choices=sorted(LOADERS), action="append", help="several times; default: all")
    parser.add_argument("--case", choices=CASES, action="append", help="several times; default: all")
    parser.add_argument("--patience", type=float, default=180, metavar="SECONDS", help="for a boot: %(default)s")
    chosen = parser.parse_args()
    print(f"{'loader':9} {'the endpoint':16} {'boots':12} {'requests':8} delay")
    for loader in chosen.loader or LOADERS:
        for case in chosen.case or CASES:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = boot(loader, case, Path(folder), chosen.patience)
                except AssertionError as error:
                    print(f"{loader:9} {case:16} nothing within {chosen.patience:g} s: {error}"[:1000], flush=True)
                    continue
            boots = "maintenance" if found.kernel == IN_WINDOW else "without it"
            print(f"{loader:9} {case:16} {boots:12} {found.requests:8} {found.delay_s:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
