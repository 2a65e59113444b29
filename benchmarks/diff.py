"""What `gitboot diff` costs over a large fleet: time, memory, and how large the comment is.

    python benchmarks/diff.py [SERVERS]

Each change is a process of its own, as on a command line: its peak memory is its own too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).resolve().parent))
from validate import fleet

Files = dict[str, bytes]


def nothing(files: Files) -> Files:
    return files


def one_server(files: Files) -> Files:
    return edited(files, "servers/w000001.yaml", b"spec:", b"spec:\n  kernelArguments: [quiet]")


def image_bump(files: Files) -> Files:
    return edited(files, "streams/flatcar-stable.yaml", b"current: flatcar-4230.2.4", b"current: flatcar-4459.2.4")


def every_document(files: Files) -> Files:
    """Each server gets arguments of its own, so that no two change alike."""
    return {
        path: data.replace(b"spec:", b"spec:\n  kernelArguments: [note=%d]" % number)
        if path.startswith("servers/")
        else data
        for number, (path, data) in enumerate(files.items())
    }


def no_server(files: Files) -> Files:
    return {path: data for path, data in files.items() if not path.startswith("servers/")}


CHANGES: tuple[Callable[[Files], Files], ...] = (nothing, one_server, image_bump, every_document, no_server)


def edited(files: Files, path: str, old: bytes, new: bytes) -> Files:
    assert old in files[path]
    return files | {path: files[path].replace(old, new, 1)}


def git(folder: Path, *arguments: str) -> None:
    name = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@example.net")
    subprocess.run(["git", *name, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path, files: Files, before: Files) -> None:
    for path in before.keys() - files.keys():
        (folder / path).unlink()
    for path, data in files.items():
        if before.get(path) != data:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message=Change")


def measured(folder: Path) -> tuple[float, float, int, int]:
    """Seconds, peak MiB, and the bytes of the Markdown and of the JSON."""
    outputs = ("markdown=../comment.md", "json=../diff.json", "text=../diff.txt")
    command = [sys.executable, "-m", "gitboot", "diff", "HEAD^..HEAD", *(f"-o{output}" for output in outputs)]
    began = perf_counter()
    process = subprocess.Popen(command, cwd=folder)
    _, status, usage = os.wait4(process.pid, 0)  # the usage of this process, and of no other
    assert os.waitstatus_to_exitcode(status) in (0, 4)
    sizes = [(folder.parent / name).stat().st_size for name in ("comment.md", "diff.json")]
    return perf_counter() - began, usage.ru_maxrss / 1024, sizes[0], sizes[1]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(f"{count:,} servers")
    base = fleet(count)
    for change in CHANGES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "fleet"
            folder.mkdir()
            git(folder, "init", "--quiet")
            commit(folder, base, {})
            commit(folder, change(base), base)
            seconds, peak, markdown, size = measured(folder)
        name = change.__name__.replace("_", " ")
        print(f"{name:<16} {seconds:7.1f} s {peak:7,.0f} MiB   Markdown {markdown:7,} B   JSON {size:12,} B")


if __name__ == "__main__":
    main()
