"""Evaluations for tests: changes of a fleet as reviewers see them, stored results, and evaluators that never end."""

from __future__ import annotations

import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import structs

from gitboot.child_processes import write_frame
from gitboot.disk_cache import DiskCache
from gitboot.evaluator.cache import encode_result
from gitboot.evaluator.evaluation import Evaluation
from gitboot.evaluator.protocol import EVALUATION_KINDS, EvaluationStart, ResultKind
from gitboot.fleet.revision import Message, Revision
from gitboot.resolve.fleet_decisions import decide
from gitboot.review.decision_changes import Changes, compare_decisions
from gitboot.review.guards import Limits
from gitboot.review.review import Review, review_commits
from tests.helpers.fleets import at, document, fleet, image, policy, profile, repository, server, snapshot

# A fleet that tests of diff and guard change, and what a reviewer sees of the change.

Files = Mapping[str, str | None]  # by path; None removes one

USER_DATA = """\
#cloud-config
hostname: {{ server.name }}
write_files:
  - path: /etc/motd
    content: {{ image.name }} in {{ policy.name }}
"""

FLEET: Files = {
    "fleet.yaml": fleet(),
    **{
        f"servers/{name}.yaml": server(name, f"site: {site}, role: {role}", "provision: 1")
        for site, role, count in (("fra1", "web", 12), ("fra1", "db", 4), ("ams2", "web", 6))
        for name in (f"{site}-{role}{number:02}" for number in range(1, count + 1))
    },
    "images/1.yaml": image("flatcar-1", "userData: CloudInit"),
    "images/2.yaml": image("flatcar-2", "userData: CloudInit"),
    "images/memtest.yaml": image("memtest-7", "writesDisk: false"),
    "images/bios.yaml": image("bios-2"),
    "stream.yaml": document("ImageStream", "stable", "current: flatcar-1"),
    "profiles/web.yaml": profile(
        "web", "stream: stable", "kernelArguments: [quiet], userData: {format: CloudInit, template: userdata/web.j2}"
    ),
    "profiles/db.yaml": profile("db", "flatcar-1"),
    "profiles/repair.yaml": profile("repair", "memtest-7"),
    "profiles/bios.yaml": profile("bios", "bios-2"),
    "policies/web.yaml": policy("web", "{matchLabels: {role: web}}", often="Once"),
    "policies/db.yaml": policy("db", "{matchLabels: {role: db}}", boots="db", often="OnImageChange"),
    "userdata/web.j2": USER_DATA,
}
SERVERS = tuple(path for path in FLEET if path.startswith("servers/"))


def merge_files(files: Files, base: Files = FLEET) -> dict[str, str]:
    return {path: text for path, text in {**base, **files}.items() if text is not None}


def compare_files(new: Files, old: Files = FLEET) -> Changes:
    before, after = (repository(files=files) for files in (merge_files({}, old), merge_files(new, old)))
    return compare_decisions(decide(before), decide(after), before, after)


def review_files(new: Files, old: Files = FLEET, *, messages: tuple[Message, ...] = ()) -> Review:
    from gitboot.cli.evaluated_fleet import FleetEvaluator, evaluate_side

    evaluator = FleetEvaluator(at("20T12:00"))
    sides = (
        evaluate_side(named, structs.replace(snapshot(files=files), revision=Revision(digit * 40)), evaluator)[0]
        for named, digit, files in (("main", "a", merge_files({}, old)), ("topic", "b", merge_files(new, old)))
    )
    return review_commits(*sides, limits=Limits(), messages=messages, command="gitboot diff main..topic")


# A cache of results in memory, in place of the one on disk.


class StoredResults(DiskCache):
    def __init__(self) -> None:
        super().__init__(None, lambda _: None)
        self.rows: defaultdict[ResultKind, dict[bytes, bytes]] = defaultdict(dict)
        self.inserted: list[dict[ResultKind, dict[bytes, bytes]]] = []  # by each call

    def add(self, evaluation: Evaluation) -> None:
        for kind in EVALUATION_KINDS:
            self.rows[kind].update((key, encode_result(each)) for key, each in evaluation.results(kind).items())

    def get_many(self, kind: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        known = self.rows.get(ResultKind(kind), {})
        return {key: known[key] for key in keys if key in known}

    def insert_many(self, kind: str, rows: Mapping[bytes, bytes]) -> None:
        self.inserted.append({ResultKind(kind): dict(rows)})
        self.rows[ResultKind(kind)] = {**rows, **self.rows[ResultKind(kind)]}


def main() -> None:
    """Run as an evaluator that reads nothing; with `begin`, one that begins commits and finishes none."""
    if sys.argv[1] == "begin":
        for _ in range(3):
            write_frame(sys.stdout.buffer, EvaluationStart(None))
    signal.pause()


if __name__ == "__main__":
    main()
