"""The commits of the one server of a life, and a repository in which commits cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pygit2

from gitboot.jsonio import format_instant
from tests.helpers import fleets
from tests.helpers.fleets import mac_of
from tests.helpers.site_lives.book import Ask, Window

_WHO: Final = pygit2.Signature("A", "a@example.net", 0, 0)
BASE: Final = "http://boot.test"


@dataclass(frozen=True, kw_only=True)
class Ways:
    """How a fleet provisions, all its life long."""

    often: str = "Once"
    evidence: str = "Fetched"
    attempts: int = 1
    boots: int = 1
    names_endpoint: bool = True  # who gives what is made once, where mirrors serve files too
    is_guarded: bool = False  # whether each reinstallation has to be acknowledged


@dataclass(frozen=True, kw_only=True)
class Job:
    """A maintenance: a repair, which writes no disk, or a wipe, which is made once a run."""

    label: str
    window: Window
    run: int | None = None  # None: a repair
    power: str | None = None  # what a wipe does to its machine

    def documents(self) -> list[str]:
        window = f"window: {{start: '{format_instant(self.window.start)}', end: '{format_instant(self.window.end)}'}}"
        arguments = f"kernelArguments: ['ask={self.label}']"
        if self.run is None:
            return [
                fleets.profile("repair", "memtest-7", arguments),
                fleets.maintenance("repair", "", window),
            ]
        once = f"{window}, networkBoot: Once, run: {self.run}"
        once += f", power: '{self.power}'" if self.power is not None else ""
        return [fleets.profile("wipe", "wiper-1", arguments), fleets.maintenance("wipe", "", once, boots="wipe")]


@dataclass(frozen=True, kw_only=True)
class Spare:
    """Another server in Git, spare01, which waits for its first installation."""

    label: str
    mac: str = mac_of("spare01")

    def documents(self) -> list[str]:
        server = fleets.server("spare01", "role: spare", "provision: 1").replace(mac_of("spare01"), self.mac)
        arguments = f"userData: {{format: Ignition/3.4, template: t}}, kernelArguments: ['ask={self.label}']"
        return [
            server,
            fleets.profile("spare", "flatcar-1", arguments),
            fleets.policy("spare", "{matchLabels: {role: spare}}", boots="spare", often="Once"),
        ]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """What Git says of the server."""

    label: str = "install-1"
    provision: int = 1
    image: int = 1
    lifecycle: str = "Active"
    stopped: bool = False
    bmc: str | None = None
    job: Job | None = None
    mac: str = mac_of("web01")  # of web01's only interface
    spare: Spare | None = None

    @property
    def own_labels(self) -> set[str]:
        """Return the labels of the boots that Git wants for web01."""
        return {self.label} | ({self.job.label} if self.job is not None else set())

    @property
    def labels(self) -> set[str]:
        """Return the labels of all boots that Git wants."""
        return self.own_labels | ({self.spare.label} if self.spare is not None else set())

    def files(self, ways: Ways, bmcs: Mapping[str, str], system: str, ledger: str) -> dict[str, str]:
        attempts = f", attempts: {ways.attempts}" if ways.evidence == "Reported" else ""
        spec = f"baseURL: '{BASE}', outputs: [ipxe, grub, uuid]"
        spec += f", provisioning: {{ledger: {ledger}, evidence: {ways.evidence}, monitors: [10.9.0.0/24]{attempts}}}"
        spec += f", endpoint: '{BASE}'" if ways.names_endpoint else ""
        spec += ", stopped: 'smoke in rack 4'" if self.stopped else ""
        bmc = self.bmc and f", bmc: {{address: '{bmcs[self.bmc]}', system: {system}, credentials: rack}}"
        server = f"provision: {self.provision}, lifecycle: {self.lifecycle}{bmc or ''}"
        documents = [
            fleets.fleet(spec),
            fleets.server("web01", "role: web", server).replace(mac_of("web01"), self.mac),
            *(fleets.image(f"flatcar-{each}", f"userData: Ignition/3.4, boots: {ways.boots}") for each in (1, 2)),
            fleets.image("wiper-1"),
            fleets.image("memtest-7", "writesDisk: false"),
            fleets.profile(
                "web",
                f"flatcar-{self.image}",
                f"userData: {{format: Ignition/3.4, template: t}}, kernelArguments: ['ask={self.label}']",
            ),
            fleets.policy("web", "{matchLabels: {role: web}}", often=ways.often),
            *(self.spare.documents() if self.spare is not None else ()),
            *(self.job.documents() if self.job is not None else ()),
        ]
        report = '"x": "{{ urls.provisioned }}"' if ways.evidence == "Reported" else '"x": ""'
        template = f'{{"ignition": {{"version": "3.4.0"}}, {report}}}'
        return {f"{number:02}.yaml": text for number, text in enumerate(documents)} | {"t": template}


class Origin:
    """A bare repository, written to without Git's own programs; commits stand in it as they would."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._repository = pygit2.init_repository(folder, bare=True, initial_head="main")
        self.line: list[str] = []  # of commits, that lead to the newest

    def push(self, files: Mapping[str, str], message: str = "Change") -> None:
        """One commit more on the branch."""
        builder = self._repository.TreeBuilder()
        for name, text in files.items():
            builder.insert(name, self._repository.create_blob(text.encode()), pygit2.enums.FileMode.BLOB)
        parents = [pygit2.Oid(hex=self.line[-1])] if self.line else []
        commit = self._repository.create_commit(None, _WHO, _WHO, message, builder.write(), parents)
        self._repository.references.create("refs/heads/main", commit, force=True)
        self.line.append(str(commit))

    def rewind(self) -> bool:
        """Go back by one commit, which nothing leads to any more; the next is made beside it."""
        if len(self.line) < 2:
            return False
        self.line.pop()
        return True


@dataclass
class Asked:
    """The labels of everything that is ever asked for: each is another."""

    installs: int = 1
    wipes: int = 0
    repairs: int = 0
    images: dict[str, int] = field(default_factory=dict)

    def install(self) -> str:
        self.installs += 1
        return f"install-{self.installs}"

    def wipe(self) -> str:
        self.wipes += 1
        return f"wipe-{self.wipes}"

    def repair(self) -> str:
        self.repairs += 1
        return f"repair-{self.repairs}"


def ask_of(ways: Ways) -> Ask:
    """What an installation by these ways may come to."""
    return Ask(boots=ways.boots, attempts=ways.attempts if ways.evidence == "Reported" else 1)
