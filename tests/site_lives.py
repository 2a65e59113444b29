"""A site over its whole life: repository, instance, endpoint, one machine, and a clock that may be wrong.

Git, ledger, tree, spool and endpoint are the real ones. Judged by what the machine was really given, never by what
gitboot has written down.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from gitboot.errors import GitbootError
from gitboot.ledger import requests
from gitboot.model.scalars import format_instant
from gitboot.observe.observation import Observation
from gitboot.observe.spool import Spool
from gitboot.plan import Record
from gitboot.resolve.records import record_facts
from gitboot.serve.app import DEADLINE_S, Endpoint
from gitboot.serve.clocks import ComparedClock
from gitboot.serve.recording import Recording
from gitboot.serve.tree import PublishedTree
from tests.fleets import fleet, image, mac_of, maintenance, policy, profile, server, uuid_of
from tests.inprocess import Parts, in_process
from tests.instance import Repository

MAC: Final = mac_of("web01").replace(":", "-")
LOOKUPS: Final = (f"/v1/boot/{MAC}/boot.ipxe", f"/ipxe/{uuid_of('web01')}", f"/v1/boot/{MAC}/grub.cfg")
ITSELF: Final = "10.0.0.7"
IPXE: Final = "iPXE/1.21.1+ (g988d2)"
GRACE: Final = timedelta(seconds=60)
FLEET: Final = "baseURL: 'http://boot.test', outputs: [ipxe, grub, uuid], provisioning: {monitors: [10.9.0.0/24]}"


class Killed(BaseException):
    """The end of the endpoint's process, at this very instruction."""


class Given(NamedTuple):
    """What a client was answered."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def image(self) -> str:
        """The image that it boots; disk: none."""
        found = re.search(r"/assets/([^/]+)/kernel", self.body) if self.status == 200 else None
        return found[1] if found else "disk"


class MortalRecording(Recording):
    """Recording in a process that dies before it writes, or once it has written and before it answers."""

    dies: str | None = None

    async def record(self, observation: Observation) -> bool:
        how, self.dies = self.dies, None
        if how == "before":
            raise Killed
        stands = await super().record(observation)
        if how == "after":
            raise Killed
        return stands


@dataclass
class Site:
    """Everything, and what the machine was given."""

    folder: Path
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    # What is true
    now: datetime = datetime(2026, 11, 20, 12, tzinfo=UTC)
    skew: timedelta = timedelta(0)  # of the host's clock, which instance and endpoint go by
    skewed_at: datetime | None = None  # when it was moved last

    # What Git says
    provision: int = 1
    window: tuple[datetime, datetime] | None = None
    pushed: int = 0

    # Who lives
    instance: Parts | None = None
    endpoint: Endpoint | None = None
    tree: PublishedTree | None = None
    recording: MortalRecording | None = None

    # What was given
    epoch: int = 0  # an operator's words open everything anew
    given: dict[tuple[int, int], datetime] = field(default_factory=dict)  # (provision, epoch): when first
    started: set[tuple[int, int]] = field(default_factory=set)  # of which data was fetched
    cached: dict[str, Given] = field(default_factory=dict)  # by a proxy, by path
    backups: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._instance, self._endpoint = ExitStack(), ExitStack()
        self.repository = Repository.create(self.folder / "git")
        self.push()
        self.start_instance("fresh")
        self.start_endpoint()
        self.reconcile()

    @property
    def clock(self) -> datetime:
        """What the host takes for now."""
        return self.now + self.skew

    # Git

    def push(self, **changed: Any) -> None:
        for name, value in changed.items():
            setattr(self, name, value)
        window = (
            self.window
            and f"window: {{start: '{format_instant(self.window[0])}', end: '{format_instant(self.window[1])}'}}"
        )
        documents = [
            fleet(FLEET),
            server("web01", "role: web", f"provision: {self.provision}"),
            image("flatcar-1", "userData: Ignition/3.4"),
            image("memtest-7", "writesDisk: false"),
            profile("web", "flatcar-1", "userData: {format: Ignition/3.4, template: t}"),
            profile("repair", "memtest-7"),
            policy("web", "{matchLabels: {role: web}}", often="Once"),
            maintenance(f"repair-{self.pushed}", "", window) if window else "",
        ]
        self.pushed += 1
        files = {f"{number:02}.yaml": text for number, text in enumerate(documents)}
        self.repository.push({**files, "t": '{"ignition": {"version": "3.4.0"}}'})

    # Processes

    def start_instance(self, initial: str | None = None) -> None:
        stack = ExitStack()
        made = in_process(self.folder, self.repository.bare, clock=lambda: self.clock, initial=initial)
        self.instance = stack.enter_context(made)
        self._instance = stack

    def stop_instance(self) -> None:
        self._instance.close()
        self.instance = None

    def reconcile(self) -> None:
        if self.instance is None:
            return
        try:
            self.instance.source.fetch()
        except GitbootError:  # a restored clone is made anew by the next reconcile
            self.counts["fetches failed"] += 1
        self.instance.reconciler.reconcile(self.clock, wait=True)
        self.counts["reconciled"] += 1

    def start_endpoint(self) -> None:
        self.stop_endpoint()
        stack = ExitStack()
        folder = self.folder / "spool"
        folder.mkdir(exist_ok=True)
        spool = Spool(folder)
        stack.callback(spool.close)
        self.recording = MortalRecording(spool, DEADLINE_S)
        compared = ComparedClock(lambda: self.clock, elapsed_s=lambda: self.clock.timestamp())
        self.tree = PublishedTree(self.folder / "output", lambda: self.clock, compared=compared)
        self.endpoint = Endpoint(self.folder / "output", self.tree, lambda: self.clock, self.recording)
        self._endpoint = stack

    def stop_endpoint(self) -> None:
        self._endpoint.close()
        self.endpoint = self.recording = self.tree = None

    # Fetches

    def fetch(self, path: str, client: str = ITSELF, agent: str = IPXE, **more: str) -> Given | None:
        """What an endpoint answers; None where none lives, or it died of it."""
        if self.endpoint is None or self.tree is None:
            return None
        self.tree.look()
        headers = {"host": "boot.test", "user-agent": agent, **more}
        method = headers.pop("method", "GET")
        try:
            return asyncio.run(_asked(self.endpoint, method, path, client, headers.items()))
        except Killed:
            self.counts["endpoint killed"] += 1
            self.stop_endpoint()
            return None

    def boot(self, path: str, *, goes_on: bool) -> None:
        """The machine fetches its entry; where it ``goes_on``, what the entry names as well."""
        self._boots(self.fetch(path), goes_on=goes_on)

    def boot_through_proxy(self, path: str, *, goes_on: bool) -> None:
        """The same, through a cache that asks whether what it has is still right."""
        held = self.cached.get(path)
        asked = {}
        if held is not None and "etag" in held.headers:
            asked["if-none-match"] = held.headers["etag"]
        if held is not None and "last-modified" in held.headers:
            asked["if-modified-since"] = held.headers["last-modified"]
        if (answer := self.fetch(path, "10.0.0.3", **asked)) is None:
            return
        if answer.status == 304:
            answer = held
        elif answer.status == 200 and "no-store" not in answer.headers.get("cache-control", ""):
            self.cached[path] = answer
        self._boots(answer, goes_on=goes_on)

    def _boots(self, answer: Given | None, *, goes_on: bool) -> None:
        if answer is None:
            return
        self.counts[answer.image] += 1
        if answer.image == "memtest-7":
            self._in_a_maintenance()
        if answer.image != "flatcar-1":
            return
        made = (self.provision, self.epoch)
        first = self.given.setdefault(made, self.now)
        if self.now >= first + GRACE or made in self.started:
            self.violations.append(f"{self.now}: {made} was given at {first}, and is given again")
        if goes_on:
            for path in re.findall(r"http://boot\.test(/[^\s'\"]+)", answer.body):
                if "/assets/" not in path and (data := self.fetch(path)) is not None and data.status == 200:
                    self.started.add(made)

    def _in_a_maintenance(self) -> None:
        if self.window is None:
            return  # it is removed, and that is not reconciled yet
        if self.clock >= self.window[1] + GRACE:
            self.violations.append(f"{self.now}: a maintenance is booted that ended at {self.window[1]}")

    # Disasters

    def back_up(self) -> None:
        """Copy STATE and OUTPUT while nobody writes."""
        alive = self.instance is not None
        self.stop_instance()
        backup = self.folder / f"backup-{len(self.backups)}"
        for name in ("state", "output"):
            shutil.copytree(self.folder / name, backup / name, symlinks=True)
        self.backups.append(backup)
        if alive:
            self.start_instance()

    def restore(self, backup: Path, names: Iterable[str]) -> None:
        """Put back what was copied."""
        self.stop_instance()
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(backup / name, self.folder / name, symlinks=True)

    def lose_output(self) -> None:
        self.stop_instance()
        self.stop_endpoint()
        shutil.rmtree(self.folder / "output")

    # Operators

    def is_pending(self) -> None:
        """An operator wants it installed once more."""
        if self.instance is None:
            return
        item = {"uuid": uuid_of("web01"), "server": "web01", **record_facts(Record())}
        requests.give(self.instance.ledger, self.clock, "ada", "records", {"items": [item], "reason": "again"})
        self.epoch += 1

    # The end

    def calm_down(self) -> None:
        """All live, the clock is right, and a while passes."""
        if self.instance is None:
            self.start_instance()
        self.skew = timedelta(0)
        self.start_endpoint()
        for path in LOOKUPS:
            self.now += timedelta(seconds=61)
            self.reconcile()
            self.boot(path, goes_on=False)
        over = self.window is None or self.window[1] <= self.now
        for path in LOOKUPS:
            if over and (answer := self.fetch(path, "10.9.0.5", "monitor")) is not None and answer.image == "memtest-7":
                self.violations.append(f"{self.now}: {path} offers a maintenance that is over")

    def close(self) -> None:
        self.stop_instance()
        self.stop_endpoint()


async def _asked(endpoint: Endpoint, method: str, path: str, client: str, headers: Iterable[tuple[str, str]]) -> Given:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": (client, 40000),
        "server": ("boot.test", 80),
        "scheme": "http",
    }
    await endpoint(scope, receive, send)
    answered = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Given(sent[0]["status"], answered, b"".join(each.get("body", b"") for each in sent[1:]).decode())
