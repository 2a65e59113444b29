"""What `gitboot validate` costs in CPU, against the least that reading the same YAML can cost.

    python benchmarks/validate.py [SERVERS]

The floor is libyaml alone: the events of every file, thrown away. A ratio to it says the same on any machine.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import process_time

from yaml._yaml import CParser

from gitboot.document import parse
from gitboot.errors import InvalidRepository
from gitboot.load import BlobId, ParseCache, Revision, Snapshot, load
from gitboot.resolve import decide

EXAMPLE = Path(__file__).resolve().parent.parent / "example-repo"
ROUNDS = 5  # of which the quickest counts: the others were disturbed

SERVER = """\
apiVersion: gitboot.dev/v1alpha1
kind: Server
metadata:
  name: w{number:06}
  labels: {{site: {site}, rack: r{rack:02}, role: worker, ring: {ring}}}
spec:
  uuid: 4c4c4544-0034-5210-8044-{number:012x}
  serial: {number:07}
  architecture: x86_64
  firmware: UEFI
  interfaces:
    - {{name: eno1, mac: "24:6e:96:{mac}", addresses: [10.{ip}/8, "2001:db8::{number:x}/64"]}}
  bmc:
    address: https://bmc-{number:06}.example.net
    system: /redfish/v1/Systems/System.Embedded.1
    credentials: bmc-{site}
    tls: {{ca: certs/bmc-ca.pem}}
"""


def servers(count: int) -> dict[str, bytes]:
    """Workers of the example's two sites, a file each."""
    return {f"servers/w{number:06}.yaml": _server(number).encode() for number in range(1, count + 1)}


def _server(number: int) -> str:
    high, middle, low = number >> 16, number >> 8 & 255, number & 255
    return SERVER.format(
        number=number,
        site=("fra1", "ams2")[number % 2],
        ring="canary" if number % 10 == 0 else "stable",
        rack=number // 40 % 100,
        mac=f"{high:02x}:{middle:02x}:{low:02x}",
        ip=f"{100 + high}.{middle}.{low}",
    )


def fleet(count: int) -> dict[str, bytes]:
    """The example without its servers and what names them, and as many others."""
    files = {
        path.relative_to(EXAMPLE).as_posix(): path.read_bytes()
        for path in sorted(EXAMPLE.rglob("*"))
        if path.is_file() and not {"maintenances", "servers"} & set(path.parts)
    }
    return files | servers(count)


def snapshot(files: dict[str, bytes]) -> Snapshot:
    blobs = {path: BlobId(sha256(data).hexdigest()) for path, data in files.items()}
    contents = {blobs[path]: data for path, data in files.items()}
    return Snapshot(revision=Revision("benchmark"), blobs=blobs, read=contents.__getitem__)


def cost(work: Callable[[], object]) -> float:
    """The CPU time in seconds of the quickest round."""

    def once() -> float:
        began = process_time()
        work()
        return process_time() - began

    return min(once() for _ in range(ROUNDS))


def events(files: dict[str, bytes]) -> None:
    for data in files.values():
        parser = CParser(data)
        while parser.get_event():
            pass


def rows(count: int) -> Iterator[tuple[str, float]]:
    files = fleet(count)
    documents = {path: data for path, data in files.items() if path.endswith(".yaml")}
    given = snapshot(files)
    known: ParseCache = {}
    repository = load(given, known)
    one_file = b"---\n".join(documents.values()).replace(b"credentials: bmc-", b"credentials: BMC-")
    faulty = snapshot(files | dict.fromkeys(documents, b"") | {"all.yaml": one_file})
    yield "libyaml's events (the floor)", cost(lambda: events(documents))
    yield "documents", cost(lambda: [parse(data, path) for path, data in documents.items()])
    yield "load", cost(lambda: load(given))
    yield "decide", cost(lambda: decide(repository))
    yield "validate: load and decide", cost(lambda: decide(load(given)))
    yield "load, with every blob known", cost(lambda: load(given, known))
    yield "load, with a fault in every server, all in one file", cost(lambda: _refused(faulty))


def _refused(faulty: Snapshot) -> None:
    with suppress(InvalidRepository):
        load(faulty)
        raise AssertionError("not refused")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{count:,} servers, CPU seconds of the quickest of {ROUNDS} rounds")
    floor = 0.0
    for name, seconds in rows(count):
        floor = floor or seconds
        print(f"{name:<52} {seconds:7.3f} s {seconds / floor:6.1f} x")


if __name__ == "__main__":
    gc.disable()  # as `gitboot validate` does
    main()
