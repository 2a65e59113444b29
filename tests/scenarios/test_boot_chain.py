"""A boot is a chain of fetches: whoever follows one sees one version, through commit after commit."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from gitboot.endpoint.app import Endpoint
from gitboot.endpoint.served_files import PublishedTree
from gitboot.endpoint.server import EndpointServer, listen_at, url_of
from tests.helpers import http_peers
from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import mac_of
from tests.helpers.instance_in_process import in_process
from tests.helpers.running_instance import Repository, eventually, git
from tests.scenarios.test_kill import documents

ENTRY = f"v1/boot/{mac_of('web0').replace(':', '-')}/boot.ipxe"


def history(repository: Path, commits: int) -> list[str]:
    stream = []
    for number in range(commits):
        stream.append(
            f"commit refs/heads/next\nmark :{number + 1}\ncommitter A <a@example.net> {1763600000 + number} +0000\n"
        )
        stream.append(f"data 1\nx\nfrom :{number}\n" if number else "data 1\nx\n")
        for path, text in documents(f"flatcar-{number}").items():
            stream.append(f"M 644 inline {path}\ndata {len(text.encode())}\n{text}\n")
    marks = repository / "marks"
    subprocess.run(
        ["git", "fast-import", "--quiet", f"--export-marks={marks}"],
        cwd=repository,
        input="".join(stream),
        text=True,
        check=True,
    )
    found = dict(line.split() for line in marks.read_text().splitlines())
    return [found[f":{number + 1}"] for number in range(commits)]


def follow(fetch: Callable[[str], str | None]) -> str | None:
    """Follow the chain of an entry; the image that all of it is of, or what is wrong with it."""
    entry = fetch(ENTRY)
    if entry is None:
        return None  # an entry is missing only before the first publication
    (named,) = re.findall(r"/assets/([^/]+)/kernel", entry)
    (folder,) = re.findall(r"/(o/[0-9a-f]{64})/", entry)
    user_data = fetch(f"{folder}/user-data")
    if user_data is None or fetch(f"{folder}/meta-data") is None:
        return f"missing: what the entry of {named} names"
    return str(named) if f"web0 {named}\n" in user_data else f"mixed: {named} with {user_data!r}"


def test_a_chain_is_never_mixed_and_never_broken(tmp_path: Path, lives: int) -> None:
    repository = Repository.create(tmp_path / "git")
    commits = history(repository.bare, 20 * lives)
    done, seen = threading.Event(), {"endpoint": Counter[str | None](), "tree": Counter[str | None]()}
    at = datetime.now(UTC)  # all along: an endpoint doubts its clock where a busy machine takes long for a commit

    def read(kind: str, fetch: Callable[[str], str | None]) -> None:
        while not done.is_set():
            seen[kind][follow(fetch)] += 1
            time.sleep(0.005)  # the passes want some of this process, too

    with in_process(tmp_path, repository.bare) as parts:
        reconciler = parts.reconciler
        output, listening = tmp_path / "output", listen_at("127.0.0.1:0")
        tree = PublishedTree(output, lambda: at)
        endpoint = Endpoint(output, tree, lambda: at)
        url = url_of("127.0.0.1:0", listening)
        with EndpointServer(endpoint, listening), http_peers.Client(base_url=url, headers=LOADER) as client:

            def over_http(path: str) -> str | None:
                response = client.get(f"/{path}")
                return response.text if response.status_code == 200 else None

            def from_the_tree(path: str) -> str | None:
                try:
                    return (tmp_path / "output" / "boot" / path).read_text()
                except FileNotFoundError:
                    return None

            readers = [
                threading.Thread(target=read, args=("endpoint", over_http)),
                threading.Thread(target=read, args=("tree", from_the_tree)),
            ]
            for number, commit in enumerate(commits):
                git(repository.bare, "update-ref", "refs/heads/main", commit)
                parts.source.fetch()
                reconciler.reconcile(at)
                if number == 0:
                    for reader in readers:
                        reader.start()
                if number % 4 == 0:  # each has followed it by now
                    before = {kind: chains.total() for kind, chains in seen.items()}
                    eventually(lambda: all(seen[kind].total() > before[kind] + 1 for kind in seen))  # noqa: B023
            done.set()
            for reader in readers:
                reader.join()
        assert reconciler.status.applied == commits[-1]
    for kind, chains in seen.items():
        wrong = [found for found in chains if found is None or not found.startswith("flatcar-")]
        assert not wrong, f"{kind}: {wrong}"
        assert len(chains) > 2 * lives, f"{kind} saw only {len(chains)} versions"
