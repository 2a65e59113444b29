"""Identities that servers get from machines that were installed before: the guard counts them over several commits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.ledger import instance_tables, server_tables
from gitboot.model.scalars import SystemUuid, swap_byte_order
from gitboot.resolve.fleet_decisions import decide
from gitboot.review.decision_changes import compare_decisions
from gitboot.status.instance_status import HeldCommit
from tests.helpers.cases import require_value
from tests.helpers.fleets import at, document, fleet, image, make_mac, make_uuid, policy, profile
from tests.helpers.fleets import repository as repository_of
from tests.helpers.instance_in_process import UNLIMITED, Parts, run_in_process
from tests.helpers.running_instance import Repository

NOON = at("20T12:00")
OLD = "web01"  # installed; its machine keeps what its document loses
NEW = "web02"  # waits for its first installation, if a commit has it
MAC, ADDRESS, SERIAL = make_mac("shared"), "10.0.0.7", "CZ1234"
LIMITS = structs.replace(UNLIMITED, max_reinstalls=0)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The document of one server."""

    name: str = OLD
    uuid: str = ""
    provision: int = 0
    mac: str = ""
    boots: bool = True  # whether it may boot from the interface with this MAC address
    address: str = ""
    serial: str = ""
    replaces: str = ""
    reports: str = ""
    labels: str = ""
    lifecycle: str = "Active"

    def document(self) -> str:
        own = f'{{mac: "{make_mac(self.name)}"{f", addresses: [{self.address}/24]" if self.address else ""}}}'
        nics = [own, *([f'{{mac: "{self.mac}", boot: {str(self.boots).lower()}}}'] if self.mac else [])]
        spec = f"uuid: {self.uuid or make_uuid(self.name)}, provision: {self.provision}, lifecycle: {self.lifecycle}, "
        spec += f"architecture: x86_64, firmware: UEFI, interfaces: [{', '.join(nics)}]"
        spec += f", serial: {self.serial}" if self.serial else ""
        spec += f", replaces: {self.replaces}" if self.replaces else ""
        if self.reports:
            spec += (
                f", bmc: {{address: 'https://{self.name}.bmc', credentials: rack, reports: {{uuid: {self.reports}}}}}"
            )
        return document("Server", self.name, spec, self.labels)


def old_machine(**facts: Any) -> Machine:
    return Machine(**facts)


def new_machine(**facts: Any) -> Machine:
    return Machine(**{"name": NEW, "provision": 1, **facts})


Story = list[list[Machine]]  # the servers of each commit


def files(machines: list[Machine], *, often: str = "Once", method: str = "Pxe", writes: bool = True) -> dict[str, str]:
    texts = [
        fleet("baseURL: 'http://boot.test', outputs: [ipxe, grub, uuid, serial, bss]"),
        image("flatcar-1", "" if writes else "writesDisk: false", "kernel, initrd, uki"),
        profile("web", "flatcar-1", "httpBoot: uki" if method == "UefiHttp" else "", method=method),
        policy("web", often=often),
    ]
    paths = {name: f"{name}.yaml" for name in (OLD, NEW, "web03", "web07", *(each.name for each in machines))}
    servers = {paths[each.name]: each.document() for each in machines}  # a commit touches only servers that it changes
    return {"fleet.yaml": "---\n".join(texts), **dict.fromkeys(paths.values(), ""), **servers}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository.create(tmp_path / "git")


Start = Callable[[], AbstractContextManager[Parts]]


@pytest.fixture
def start(tmp_path: Path, repository: Repository) -> Start:
    return lambda: run_in_process(tmp_path, repository.bare, limits=LIMITS)


def reconcile_twice(parts: Parts, seconds: float = 0) -> None:
    parts.source.fetch()
    for each in range(2):
        parts.reconciler.reconcile(NOON + timedelta(seconds=seconds + each))


def push_story(
    repository: Repository, start: Start, story: Story, *, looks: bool = True, **fleet: Any
) -> tuple[str, ...]:
    """Push the commits of a story; return the guards that hold the last, each with the message that it shows.

    The instance looks at each commit by itself, or it ``looks`` at the first and at the last only.
    """
    with start() as parts:
        for number, machines in enumerate(story):
            repository.push(files(machines, **fleet), f"Commit {number}")
            if number == 0:
                instance_tables.add_request(parts.ledger, NOON, "ada", BeginWithRecords.kind, {"how": "fresh"})
            if looks or number in (0, len(story) - 1):
                reconcile_twice(parts, number * 60)
                if number < len(story) - 1:
                    is_held = parts.reconciler.status.held is not None
                    assert is_held is (number > 0 and machines == story[-1]), f"commit {number}"
        held = parts.reconciler.status.held
        return held.guards if held is not None else ()


U_OLD, U_NEXT = make_uuid(OLD), make_uuid("next")
HELD: dict[str, Story] = {
    "a MAC address": [
        [old_machine(mac=MAC), new_machine()],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(mac=MAC)],
    ],
    "a MAC address that the server was not to boot from at first": [
        [old_machine(mac=MAC), new_machine()],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(mac=MAC, boots=False)],
        [old_machine(), new_machine(mac=MAC)],
    ],
    "a MAC address of an interface that the machine did not boot from": [
        [old_machine(mac=MAC, boots=False), new_machine()],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(mac=MAC)],
    ],
    "a serial number": [
        [old_machine(serial=SERIAL), new_machine()],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(serial=SERIAL.lower())],
    ],
    "a UUID in the other byte order": [
        [old_machine(), new_machine()],
        [old_machine(uuid=U_NEXT, replaces=U_OLD), new_machine()],
        [old_machine(uuid=U_NEXT), new_machine(uuid=swap_byte_order(SystemUuid(U_OLD)))],
    ],
    "the UUID that its BMC shows": [
        [old_machine(), new_machine()],
        [old_machine(uuid=U_NEXT, replaces=U_OLD), new_machine()],
        [old_machine(uuid=U_NEXT), new_machine(reports=U_OLD)],
    ],
    "the UUID that its BMC showed": [
        [old_machine(reports=U_NEXT), new_machine()],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(reports=U_NEXT)],
    ],
    "a name": [
        [old_machine(), new_machine()],
        [old_machine(name="web07", uuid=U_OLD), new_machine()],
        [old_machine(name="web07", uuid=U_OLD), new_machine(name=OLD, uuid=make_uuid(NEW))],
    ],
    "an xname": [
        [old_machine(labels="xname: x1000c0s0b0n0"), new_machine()],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(labels="xname: x1000c0s0b0n0")],
    ],
    "a node number": [
        [old_machine(labels="nid: '7'"), new_machine()],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(labels="nid: '7'")],
    ],
    "an xname that its machine keeps": [
        [old_machine(labels="xname: x1000c0s0b0n0"), new_machine()],
        [old_machine(labels="xname: x1000c0s0b0n0"), new_machine(labels="xname: x1000c0s0b0n0")],
    ],
    "an xname that is the name of another server": [
        [old_machine(), new_machine()],
        [old_machine(), new_machine(labels=f"xname: {OLD}")],
    ],
    "a node number that its machine keeps": [
        [old_machine(labels="nid: '7'"), new_machine()],
        [old_machine(labels="nid: '7'"), new_machine(labels="nid: '7'")],
    ],
    "a MAC address that a new server has": [
        [old_machine(mac=MAC)],
        [old_machine()],
        [old_machine(), new_machine(mac=MAC)],
    ],
    "a MAC address of a machine that has left the fleet": [
        [old_machine(mac=MAC), new_machine()],
        [new_machine()],
        [new_machine(mac=MAC)],
    ],
    "a MAC address that a held commit gave to the server, and the next took back": [
        [old_machine(mac=MAC), new_machine()],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(mac=MAC)],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(mac=MAC)],
    ],
    "a MAC address that a parked server had first": [
        [old_machine(mac=MAC), new_machine(lifecycle="Parked")],
        [old_machine(), new_machine(lifecycle="Parked")],
        [old_machine(), new_machine(lifecycle="Parked", mac=MAC)],
        [old_machine(), new_machine(mac=MAC)],
    ],
    "a MAC address that a parked server had in between": [
        [old_machine(mac=MAC), new_machine(), old_machine(name="web03", lifecycle="Parked", provision=1)],
        [old_machine(), new_machine(), old_machine(name="web03", lifecycle="Parked", provision=1)],
        [old_machine(), new_machine(), old_machine(name="web03", lifecycle="Parked", provision=1, mac=MAC)],
        [old_machine(), new_machine(), old_machine(name="web03", lifecycle="Parked", provision=1)],
        [old_machine(), new_machine(mac=MAC), old_machine(name="web03", lifecycle="Parked", provision=1)],
    ],
}


@pytest.mark.parametrize("looks", [True, False], ids=["a fetch for each commit", "one fetch"])
@pytest.mark.parametrize("identity", HELD)
def test_finding_c4_a_server_gets_no_identity_of_an_installed_machine_by_several_commits(
    repository: Repository, start: Start, identity: str, looks: bool
) -> None:
    assert "maxReinstalls" in push_story(repository, start, HELD[identity], looks=looks)


ADDRESSES: dict[str, Story] = {
    "a swap in one commit": [
        [old_machine(address=ADDRESS), new_machine(address="10.0.0.8")],
        [old_machine(address="10.0.0.8"), new_machine(address=ADDRESS)],
    ],
    "two commits": [
        [old_machine(address=ADDRESS), new_machine()],
        [old_machine(), new_machine()],
        [old_machine(), new_machine(address=ADDRESS)],
    ],
    "a new server": [
        [old_machine(address=ADDRESS)],
        [old_machine()],
        [old_machine(), new_machine(address=ADDRESS)],
    ],
    "a machine that has left the fleet": [
        [old_machine(address=ADDRESS), new_machine()],
        [new_machine()],
        [new_machine(address=ADDRESS)],
    ],
}


@pytest.mark.parametrize(
    ("way", "looks"),
    [*((each, True) for each in ADDRESSES), ("two commits", False), ("a machine that has left the fleet", False)],
)
def test_finding_c4_a_server_gets_no_address_of_an_installed_machine_if_firmware_uses_it(
    repository: Repository, start: Start, way: str, looks: bool
) -> None:
    assert "maxReinstalls" in push_story(repository, start, ADDRESSES[way], looks=looks, method="UefiHttp")


@pytest.mark.parametrize("way", ADDRESSES)
def test_an_address_alone_reinstalls_nothing_if_loaders_use_other_identities(
    repository: Repository, start: Start, way: str
) -> None:
    assert push_story(repository, start, ADDRESSES[way]) == ()


ACCEPTED: dict[str, tuple[Story, Mapping[str, Any]]] = {
    "a machine that was never installed": (
        [
            [old_machine(mac=MAC, provision=1), new_machine()],
            [old_machine(provision=1), new_machine()],
            [old_machine(provision=1), new_machine(mac=MAC)],
        ],
        {},
    ),
    "the same machine": ([[old_machine(mac=MAC)], [old_machine()], [old_machine(mac=MAC)]], {}),
    "its next motherboard": (
        [[old_machine(mac=MAC)], [old_machine()], [old_machine(uuid=U_NEXT, replaces=U_OLD, mac=MAC)]],
        {},
    ),
    "a server that boots its disk": (
        [[old_machine(mac=MAC), new_machine()], [old_machine(), new_machine()], [old_machine(), new_machine(mac=MAC)]],
        {"often": "Never"},
    ),
    "a boot that writes no disk": (
        [[old_machine(mac=MAC), new_machine()], [old_machine(), new_machine()], [old_machine(), new_machine(mac=MAC)]],
        {"often": "Always", "writes": False},
    ),
}


@pytest.mark.parametrize(
    ("what", "looks"),
    [*((each, True) for each in ACCEPTED), ("a machine that was never installed", False), ("the same machine", False)],
)
def test_an_identity_may_move_if_no_installed_machine_can_be_installed_by_it(
    repository: Repository, start: Start, what: str, looks: bool
) -> None:
    story, fleet = ACCEPTED[what]
    assert push_story(repository, start, story, looks=looks, **fleet) == ()


TWO_COMMITS = HELD["a MAC address"]


def push(parts: Parts, repository: Repository, story: Story) -> None:
    for number, machines in enumerate(story):
        repository.push(files(machines), f"Commit {number}")
        if number == 0:
            instance_tables.add_request(parts.ledger, NOON, "ada", BeginWithRecords.kind, {"how": "fresh"})
        reconcile_twice(parts, number * 60)


def accept_story(parts: Parts, repository: Repository, story: Story) -> HeldCommit:
    """Let the instance accept all commits of a story but the last, which it then holds."""
    push(parts, repository, story)
    return require_value(parts.reconciler.status.held)


def approve(parts: Parts, digest: str) -> None:
    facts = {"digest": digest, "guards": ["maxReinstalls"], "reason": "planned"}
    instance_tables.add_request(parts.ledger, NOON, "op", "approve", facts)


def test_the_message_names_the_identity_and_the_machine_that_had_it(repository: Repository, start: Start) -> None:
    with start() as parts:
        accept_story(parts, repository, TWO_COMMITS)
        message = [each.message for each in parts.events if each.type == "Held"][-1]
        assert "the commit could reinstall 1 server (maxReinstalls allows 0)" in message
        assert f"Moved identities: web02 gets {MAC.replace(':', '-')}, the MAC address of web01" in message


def test_a_commit_is_held_for_an_identity_that_a_machine_lost_in_an_earlier_held_commit(
    repository: Repository, start: Start
) -> None:
    """gitboot lists each commit that needs an acknowledgement, as if it had accepted the earlier held commits."""
    db, reinstalled = (old_machine(name="db01", provision=each) for each in (1, 2))
    with start() as parts:
        push(parts, repository, [[old_machine(mac=MAC), new_machine(), db]])
        loses = repository.push(
            files([old_machine(), new_machine(), reinstalled]), "web01 loses the address, and db01 is reinstalled"
        )
        unrelated = repository.push(
            files([old_machine(), new_machine(), reinstalled]) | {"README": "more"}, "Change the README"
        )
        gains = repository.push(
            files([old_machine(), new_machine(mac=MAC), reinstalled]), "web02 gets the address of web01"
        )
        newest = repository.push({"README": "even more"}, "Change the README again")
        reconcile_twice(parts, 60)
        assert require_value(parts.reconciler.status.held).commit == newest
        assert [(each.commit, each.says) for each in parts.reconciler.status.passed_commits] == [
            (loses, "held by maxReinstalls"),
            (unrelated, f"held behind {loses[:12]}"),
            (gains, "held by maxReinstalls"),
        ]
        message = [each.message for each in parts.events if each.type == "Held"][-1]
        assert f"You can also approve each merge on its own: {loses[:12]}, {gains[:12]}" in message


def test_a_restart_between_the_commits_changes_nothing(repository: Repository, start: Start) -> None:
    with start() as parts:
        repository.push(files(TWO_COMMITS[0]))
        instance_tables.add_request(parts.ledger, NOON, "ada", BeginWithRecords.kind, {"how": "fresh"})
        reconcile_twice(parts)
    with start() as parts:
        repository.push(files(TWO_COMMITS[1]))
        reconcile_twice(parts, 60)
        assert parts.reconciler.status.held is None
    with start() as parts:
        repository.push(files(TWO_COMMITS[2]))
        reconcile_twice(parts, 120)
        assert parts.reconciler.status.held is not None


def test_an_acknowledgement_of_two_commits_does_not_acknowledge_facts_in_the_ledger(
    repository: Repository, start: Start
) -> None:
    """The author of the commit can compute the digest of the two commits without looking at any record."""
    with start() as parts:
        held = accept_story(parts, repository, TWO_COMMITS)
        before, after = (repository_of(*files(each).values()) for each in TWO_COMMITS[1:])
        digest = compare_decisions(decide(before), decide(after), before, after).digest
        assert digest != held.digest
        line = f"Gitboot-Ack: {digest} maxReinstalls"
        repository.push(files(TWO_COMMITS[2]) | {"README": "more"}, f"Change\n\n{line}")
        reconcile_twice(parts, 300)
        assert parts.reconciler.status.held is not None


def test_an_identity_moves_with_an_approval_and_then_belongs_to_its_new_machine(
    repository: Repository, start: Start
) -> None:
    with start() as parts:
        held = accept_story(parts, repository, TWO_COMMITS)
        lost = server_tables.read_lost_identities(parts.ledger)
        assert [(each.key, each.uuid) for each in lost] == [(("MAC", MAC.replace(":", "-")), U_OLD)]
        approve(parts, held.digest)
        reconcile_twice(parts, 300)
        assert parts.reconciler.status.held is None
        assert server_tables.read_lost_identities(parts.ledger) == frozenset()
        repository.push(files([old_machine(), new_machine()]))
        reconcile_twice(parts, 360)
        assert [(each.key, each.uuid) for each in server_tables.read_lost_identities(parts.ledger)] == [
            (("MAC", MAC.replace(":", "-")), make_uuid(NEW))
        ]


def test_a_server_counts_once_for_all_its_reasons(tmp_path: Path, repository: Repository) -> None:
    limits = structs.replace(UNLIMITED, max_reinstalls=1)
    with run_in_process(tmp_path, repository.bare, limits=limits) as parts:
        push(parts, repository, [*TWO_COMMITS[:2], [old_machine(), new_machine(mac=MAC, serial=SERIAL, provision=2)]])
        assert parts.reconciler.status.held is None


def test_an_instance_whose_clone_is_lost_compares_with_the_machines_in_the_ledger(
    tmp_path: Path, repository: Repository
) -> None:
    limits = structs.replace(LIMITS, allow_rewind=True)
    with run_in_process(tmp_path, repository.bare, limits=limits) as parts:
        repository.push(files([old_machine(mac=MAC), new_machine()]))
        instance_tables.add_request(parts.ledger, NOON, "ada", BeginWithRecords.kind, {"how": "fresh"})
        reconcile_twice(parts)
    shutil.rmtree(tmp_path / "git")
    shutil.rmtree(tmp_path / "state" / "repository.git")
    repository = Repository.create(tmp_path / "git")
    repository.push(files([old_machine(), new_machine(mac=MAC)]))
    with run_in_process(tmp_path, repository.bare, limits=limits) as parts:
        reconcile_twice(parts, 60)
        held = parts.reconciler.status.held
        assert held is not None and "maxReinstalls" in held.guards
        approve(parts, held.digest)
        reconcile_twice(parts, 120)
        assert parts.reconciler.status.held is None


SITES = ("ams2", "fra1")


def make_site_files(machines: list[Machine], ledgers: Mapping[str, str]) -> dict[str, str]:
    sites = (
        f"{{name: {site}, select: {{matchLabels: {{site: {site}}}}}, baseURL: 'http://{site}.test', "
        f"ledger: {ledgers[site]}}}"
        for site in SITES
    )
    spec = f"baseURL: 'http://boot.test', outputs: [ipxe, bss], sites: [{', '.join(sites)}]"
    texts = [fleet(spec), image("flatcar-1"), profile("web", "flatcar-1"), policy("web", often="Once")]
    servers = {f"{each.name}.yaml": each.document() for each in machines}
    gone = dict.fromkeys((f"{name}.yaml" for name in (OLD, NEW, "web03")), "")
    return {"fleet.yaml": "---\n".join(texts), **gone, **servers}


AT_AMS2, AT_FRA1 = "site: ams2", "site: fra1"
MOVES: dict[str, Story] = {
    "of a machine that stays at the other site": [
        [old_machine(mac=MAC, labels=AT_FRA1), new_machine(labels=AT_AMS2)],
        [old_machine(labels=AT_FRA1), new_machine(labels=AT_AMS2)],
        [old_machine(labels=AT_FRA1), new_machine(labels=AT_AMS2, mac=MAC)],
    ],
    "of a machine that came from the other site": [
        [old_machine(mac=MAC, labels=AT_FRA1), new_machine(labels=AT_AMS2)],
        [old_machine(mac=MAC, labels=AT_AMS2), new_machine(labels=AT_AMS2)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AT_AMS2)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AT_AMS2, mac=MAC)],
    ],
    "of a machine that left for the other site": [
        [old_machine(mac=MAC, labels=AT_AMS2), new_machine(labels=AT_AMS2)],
        [old_machine(mac=MAC, labels=AT_FRA1), new_machine(labels=AT_AMS2)],
        [old_machine(labels=AT_FRA1), new_machine(labels=AT_AMS2)],
        [old_machine(labels=AT_FRA1), new_machine(labels=AT_AMS2, mac=MAC)],
    ],
    "of a server that came from the other site itself": [
        [old_machine(mac=MAC, labels=AT_AMS2), new_machine(labels=AT_FRA1)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AT_FRA1)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AT_AMS2)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AT_AMS2, mac=MAC)],
    ],
}
AMS2_NODE, FRA1_NODE = (f"site: {site}, nid: '7', xname: x1000c0s0b0n0" for site in SITES)
SHARED_NODES: dict[str, Story] = {
    "and of a machine at the other site": [
        [old_machine(labels=AMS2_NODE), Machine(name="web03", labels=FRA1_NODE)],
        [old_machine(labels=AMS2_NODE), Machine(name="web03", labels=FRA1_NODE), new_machine(labels=AMS2_NODE)],
    ],
    "that it has lost, and of a machine at the other site": [
        [old_machine(labels=AMS2_NODE), new_machine(labels=AT_AMS2), Machine(name="web03", labels=FRA1_NODE)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AT_AMS2), Machine(name="web03", labels=FRA1_NODE)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AMS2_NODE), Machine(name="web03", labels=FRA1_NODE)],
    ],
    "that it took to the other site": [
        [old_machine(labels=AMS2_NODE), new_machine(labels=AT_AMS2)],
        [old_machine(labels=FRA1_NODE), new_machine(labels=AT_AMS2)],
        [old_machine(labels=FRA1_NODE), new_machine(labels=AMS2_NODE)],
    ],
    "that it lost before a machine at the other site got it": [
        [old_machine(labels=AMS2_NODE), new_machine(labels=AT_AMS2)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AT_AMS2)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AT_AMS2), new_machine(name="web03", labels=FRA1_NODE)],
        [old_machine(labels=AT_AMS2), new_machine(labels=AMS2_NODE), new_machine(name="web03", labels=FRA1_NODE)],
    ],
}


@pytest.mark.parametrize("looks", [True, False], ids=["a fetch for each commit", "one fetch"])
@pytest.mark.parametrize("identity", MOVES | SHARED_NODES)
def test_finding_c4_an_instance_of_one_site_counts_identities_of_the_machines_of_other_sites(
    tmp_path: Path, repository: Repository, identity: str, looks: bool
) -> None:
    with ExitStack() as stack:
        each_site = {
            site: stack.enter_context(
                run_in_process(tmp_path / site, repository.bare, limits=LIMITS, initial="fresh", site=site)
            )
            for site in SITES
        }
        ledgers = {site: parts.reconciler.state.snapshot.facts.identity for site, parts in each_site.items()}
        here, story = each_site["ams2"], (MOVES | SHARED_NODES)[identity]
        for number, machines in enumerate(story):
            repository.push(make_site_files(machines, ledgers), f"Commit {number}")
            if looks or number in (0, len(story) - 1):
                reconcile_twice(here, number * 60)
                if number < len(story) - 1:
                    assert here.reconciler.status.held is None, f"commit {number} is held"
        held = here.reconciler.status.held
        assert held is not None and held.guards == ("maxReinstalls",)


NODES_AT_OTHER_SITE: dict[str, Story] = {
    "that a machine at the other site keeps": [
        [old_machine(labels=FRA1_NODE)],
        [old_machine(labels=FRA1_NODE), new_machine(labels=AMS2_NODE)],
    ],
    "that a machine at the other site loses": [
        [old_machine(labels=FRA1_NODE)],
        [old_machine(labels=AT_FRA1), new_machine(labels=AMS2_NODE)],
    ],
    "that a machine at the other site has lost": [
        [old_machine(labels=FRA1_NODE), new_machine(labels=AT_AMS2)],
        [new_machine(labels=AT_AMS2)],
        [new_machine(labels=AMS2_NODE)],
    ],
}


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("story", NODES_AT_OTHER_SITE)
def test_each_site_with_an_instance_numbers_its_nodes_from_1(
    tmp_path: Path, repository: Repository, site: str, story: str
) -> None:
    with run_in_process(tmp_path, repository.bare, limits=LIMITS, initial="fresh", site=site) as parts:
        own = parts.reconciler.state.snapshot.facts.identity
        ledgers = {each: own if each == site else make_uuid(each) for each in SITES}
        for number, machines in enumerate(NODES_AT_OTHER_SITE[story]):
            repository.push(make_site_files(machines, ledgers), f"Commit {number}")
            reconcile_twice(parts, number * 60)
            assert parts.reconciler.status.held is None, f"commit {number} is held"
