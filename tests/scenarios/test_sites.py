"""Instances for one site each, from one repository: each acts for its own servers, and no server is installed twice."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Final

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from gitboot.cli.commands.provisioning_records import build_taken_record, read_hand_over
from gitboot.cli.main import Exit, cli
from gitboot.controller.instance.assembly import open_offline
from gitboot.controller.instance_state import LastFetch
from gitboot.controller.operator_requests import SetRecords
from gitboot.errors import InvalidRepository, SourceError, UsageError
from gitboot.evaluator.client import assemble_commit
from gitboot.evaluator.evaluation import CommitPair, Evaluator
from gitboot.evaluator.process import build_report
from gitboot.evaluator.protocol import Commit
from gitboot.fetchlog.log_entries import Observation
from gitboot.fleet.validation import load
from gitboot.jsonio import Digest
from gitboot.ledger import instance_tables, server_tables
from gitboot.problems import Severity
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.provisioning_record import make_record_fields
from gitboot.resolve.server_plan import Cause, Phase
from tests.evaluator.test_evaluation_properties import (
    EDITS,
    LAWS,
    History,
    Tree,
    evaluate_or_problems,
    list_commit_values,
    list_page_values,
    round_trip,
    tree_of,
)
from tests.helpers.cases import for_each
from tests.helpers.fleets import (
    at,
    fleet,
    image,
    maintenance,
    make_uuid,
    policy,
    profile,
    server,
    snapshot,
    store_credentials,
)
from tests.helpers.hypothesis_strategies import GeneratedFleet, fleets
from tests.helpers.instance_in_process import record_fetch, run_in_process, summarize_plan
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import GENERIC
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import Repository
from tests.scenarios.test_installations import INSTALLS, World, get_held_digest

SITES: Final = ("ams2", "fra1")
UNKNOWN: Final = (Phase.DISK, Cause.UNKNOWN)
BOOTS: Final = (image("flatcar-1"), profile("web", "flatcar-1"), policy("web", "All", often="Once"))


def make_servers(**where: str) -> tuple[str, ...]:
    return tuple(server(name, f"site: {site}", "provision: 1") for name, site in sorted(where.items()))


def make_fleet(ledgers: Mapping[str, str], evidence: str = "Fetched", sites: Collection[str] = SITES) -> str:
    """A Fleet of both sites, of which these name ledgers."""
    said = (
        f"{{name: {site}, select: {{matchLabels: {{site: {site}}}}}, baseURL: 'http://{site}.test'"
        f"{f', ledger: {ledgers[site]}' if site in ledgers else ''}}}"
        for site in sites
    )
    provisioning = f"provisioning: {{evidence: {evidence}}}"
    return fleet(f"baseURL: 'http://boot.test', {provisioning}, sites: [{', '.join(said)}]")


@dataclass
class TwoSites:
    repository: Repository
    instances: Mapping[str, World]

    def push(self, *servers: str, ledgers: Mapping[str, str] | None = None, message: str = "Change") -> None:
        documents = make_fleet(self.ledgers if ledgers is None else ledgers), *BOOTS, *servers
        self.repository.push({"fleet.yaml": "---\n".join(documents)}, message)
        self.advance()

    def advance(self) -> None:
        for each in self.instances.values():
            each.advance()

    @property
    def ledgers(self) -> dict[str, str]:
        instances = self.instances.items()
        return {site: each.parts.reconciler.state.snapshot.facts.identity for site, each in instances}

    def planned(self, site: str) -> dict[str, tuple[Phase, Cause]]:
        servers = self.instances[site].parts.reconciler.state.plans.servers
        return {name: summarize_plan(each.plan) for name, each in servers.items()}


@pytest.fixture
def two_sites(tmp_path: Path) -> Iterator[TwoSites]:
    repository = Repository.create(tmp_path / "git")
    with ExitStack() as stack:
        parts = {
            site: stack.enter_context(run_in_process(tmp_path / site, repository.bare, initial="fresh", site=site))
            for site in SITES
        }
        instances = {site: World(each, repository, at("20T12:00")) for site, each in parts.items()}
        yield TwoSites(repository, instances)


def list_published(folder: Path) -> set[str]:
    return {path.stem for path in (folder / "output/ops/servers").glob("*.json")}


def test_each_instance_acts_only_for_the_servers_of_its_site(two_sites: TwoSites, tmp_path: Path) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    assert [two_sites.planned(site) for site in SITES] == [{"web01": INSTALLS}, {"web02": INSTALLS}]
    assert [list_published(tmp_path / site) for site in SITES] == [{"web01"}, {"web02"}]
    two_sites.push(*make_servers(web01="ams2", web02="fra1", web03="fra1"))
    assert [list_published(tmp_path / site) for site in SITES] == [{"web01"}, {"web02", "web03"}]
    assert two_sites.planned("fra1")["web03"] == INSTALLS, "one that is new at all is new there"


def test_a_server_that_moves_to_another_site_is_unverified_there_until_an_operator_sets_its_record(
    two_sites: TwoSites,
) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    two_sites.instances["ams2"].install("web01")
    two_sites.push(*make_servers(web01="fra1", web02="fra1"))
    assert two_sites.planned("ams2") == {}
    assert two_sites.planned("fra1")["web01"] == UNKNOWN
    (event,) = two_sites.instances["fra1"].told("ServerUnknown")
    assert event.facts["servers"] == ["web01"]
    assert "If another site managed the server before, run gitboot records take-over" in event.message
    (known,) = [
        each
        for each in two_sites.instances["fra1"].parts.reconciler.status.conditions
        if each.reason == "UnverifiedServers"
    ]
    assert known.remedy is not None and known.remedy.endswith(
        "If another site managed it before, run gitboot records hand-over at that site, then run gitboot records "
        "take-over here with the output"
    )
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    assert two_sites.planned("ams2")["web01"] == UNKNOWN, (
        "its first ledger does not know what the other one has made of it"
    )
    (event,) = two_sites.instances["ams2"].told("ServerUnknown")
    assert "the machine is in the ledger, but has no provisioning record" in event.message


def test_a_server_that_leaves_and_returns_at_another_site_is_not_new_there(two_sites: TwoSites) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    two_sites.instances["ams2"].install("web01")
    two_sites.push(*make_servers(web02="fra1"))
    two_sites.push(*make_servers(web02="fra1"), message="Something else")
    two_sites.push(*make_servers(web01="fra1", web02="fra1"))
    assert two_sites.planned("fra1")["web01"] == UNKNOWN
    assert [each.facts["servers"] for each in two_sites.instances["fra1"].told("ServerUnknown")] == [["web01"]]


def test_a_server_that_was_at_another_site_before_the_next_poll_is_unverified_there(two_sites: TwoSites) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    world = two_sites.instances["ams2"]
    world.install("web01")
    for site in ("fra1", "ams2"):
        text = "---\n".join((make_fleet(two_sites.ledgers), *BOOTS, *make_servers(web01=site, web02="fra1")))
        two_sites.repository.push({"fleet.yaml": text}, "Change")
    world.advance()
    assert two_sites.planned("ams2")["web01"] == UNKNOWN
    assert [each.facts["servers"] for each in world.told("ServerUnknown")] == [["web01"]]
    assert server_tables.read_current_machines(world.parts.ledger) == {make_uuid("web01")}


def test_a_board_with_an_identity_of_another_site_is_not_new(two_sites: TwoSites) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    board = server("web01", "site: fra1", "provision: 1").replace(make_uuid("web01"), make_uuid("its new board"))
    two_sites.push(board, *make_servers(web02="fra1"))
    assert two_sites.planned("fra1")["web01"] == UNKNOWN
    assert "if the server has a new motherboard" in two_sites.instances["fra1"].told("ServerUnknown")[0].message


def test_a_new_motherboard_that_comes_back_from_another_site_is_unverified(two_sites: TwoSites) -> None:
    """The other site may have installed it."""
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    two_sites.instances["ams2"].install("web01")
    for site in ("fra1", "ams2"):
        spec = server("web01", f"site: {site}", "provision: 2").replace(make_uuid("web01"), make_uuid("board"))
        board = spec.replace("provision: 2", f"provision: 2, replaces: {make_uuid('web01')}")
        two_sites.push(board, *make_servers(web02="fra1"))
        assert two_sites.planned(site)["web01"] == UNKNOWN, site


def test_for_any_moves_each_provision_number_is_installed_once(two_sites: TwoSites, lives: int) -> None:
    """Each site polls at its own times; an unverified server stays so, because no operator sets its record."""
    draw = random.Random(2411)
    where, provision = dict[str, str](), dict[str, int]()
    installed: list[tuple[str, int]] = []
    for step in range(30 * lives):
        for name in sorted({f"web{step // 3 + draw.randint(0, 2):03}" for _ in range(2)}):
            provision[name] = provision.get(name, 1) + (draw.random() < 0.15)
            where[name] = draw.choice((*SITES, *SITES, "nowhere"))
        here = {name: site for name, site in where.items() if site in SITES}
        servers = (server(name, f"site: {site}", f"provision: {provision[name]}") for name, site in here.items())
        said = "---\n".join((make_fleet(two_sites.ledgers), *BOOTS, *servers, server("other", "site: fra1")))
        two_sites.repository.push({"fleet.yaml": said}, "Change")
        for site in draw.sample(SITES, draw.randint(0, 2)):
            world = two_sites.instances[site]
            world.advance()
            due = [name for name, each in two_sites.planned(site).items() if each == INSTALLS and where[name] == site]
            world.install(*due)
            installed += [(name, provision[name]) for name in due]
    assert len(installed) == len(set(installed)) > 5


def test_a_server_that_is_added_and_moved_before_a_poll_is_installed_by_neither_site(two_sites: TwoSites) -> None:
    two_sites.push(*make_servers(web02="fra1"))
    texts = [
        "---\n".join((make_fleet(two_sites.ledgers), *BOOTS, *make_servers(web01=site, web02="fra1"))) for site in SITES
    ]
    for text in texts:
        two_sites.repository.push({"fleet.yaml": text}, "Change")
    two_sites.advance()
    assert two_sites.planned("fra1")["web01"] == UNKNOWN


def test_no_instance_acts_for_a_site_without_a_ledger_and_of_two_only_the_named_one_acts(
    two_sites: TwoSites, tmp_path: Path
) -> None:
    servers = make_servers(web01="ams2", web02="fra1")
    two_sites.push(*servers, ledgers={})
    assert [two_sites.instances[site].condition("LedgerNamed") for site in SITES] == [(False, "AnotherLedger")] * 2
    assert [list_published(tmp_path / site) for site in SITES] == [set(), set()]
    with run_in_process(tmp_path / "two", two_sites.repository.bare, initial="fresh", site="ams2") as parts:
        second = World(parts, two_sites.repository, at("20T12:00"))
        with run_in_process(tmp_path / "all", two_sites.repository.bare, initial="fresh") as others:
            for_all = World(others, two_sites.repository, at("20T12:00"))
            two_sites.push(*servers)
            for each in (second, for_all):
                each.advance()
                assert each.condition("LedgerNamed") == (False, "AnotherLedger")
                assert each.parts.reconciler.state.plans.servers == {}
    assert [each for each in two_sites.instances.values() if each.held is not None] == [], "they take over from nobody"
    assert two_sites.planned("ams2") == {"web01": INSTALLS}


def test_an_instance_for_all_sites_must_acknowledge_that_others_take_over(two_sites: TwoSites, tmp_path: Path) -> None:
    servers = make_servers(web01="ams2", web02="fra1")
    two_sites.push(*servers, ledgers={})
    with run_in_process(tmp_path / "all", two_sites.repository.bare, initial="fresh") as parts:
        for_all = World(parts, two_sites.repository, at("20T12:00"))
        for_all.advance()
        assert summarize_plan(for_all.plan("web01")) == INSTALLS
        two_sites.push(*servers)
        for_all.advance()
        assert for_all.held is not None and for_all.held.guards == ("allowTakeover",)
        assert for_all.condition("LedgerNamed") == (False, "BecameStandby")
        assert summarize_plan(for_all.plan("web01")) == (Phase.DISK, Cause.STOPPED)


def run_records(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["records", *map(str, arguments)])


def test_the_record_of_a_server_can_be_handed_over_once_its_site_has_released_it(
    two_sites: TwoSites, tmp_path: Path
) -> None:
    old, new, file = tmp_path / "ams2/state", tmp_path / "fra1/state", tmp_path / "web01.json"
    take = ("take-over", file, "--state", new, "--reason", "moved")
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    two_sites.instances["ams2"].install("web01")
    assert "still belongs to this instance" in str(run_records("hand-over", "web01", "--state", old).exception)
    two_sites.push(*make_servers(web01="fra1", web02="fra1"))
    assert two_sites.planned("fra1")["web01"] == UNKNOWN
    file.write_text(printed := run_records("hand-over", "web01", "--state", old).stdout)
    assert run_records("hand-over", "web01", "--state", old).stdout.splitlines()[:1] == printed.splitlines()[:1], (
        "and again"
    )
    assert "was handed over by this instance" in str(
        run_records("take-over", file, "--state", old, "--reason", "moved").exception
    )
    two_sites.push(*make_servers(web01="fra1", web02="fra1"), message="Something else")
    two_sites.repository.push({"more": "x"}, "Something else")
    two_sites.instances["fra1"].advance()
    assert "Another site may have installed the server in between" in str(run_records(*take).exception)
    two_sites.advance()
    file.write_text(run_records("hand-over", "web01", "--state", old).stdout)
    given = run_while_instance_runs(run_records, take, two_sites)
    assert "recorded web01 as provisioned: provision 1" in given
    assert two_sites.planned("fra1")["web01"] == (Phase.DISK, Cause.PROVISIONED)
    assert "this instance already has a record of web01" in str(run_records(*take).exception), (
        "a second time it is refused"
    )
    two_sites.instances["fra1"].advance()
    assert two_sites.planned("fra1")["web01"] == (Phase.DISK, Cause.PROVISIONED)


def test_a_server_that_changes_its_site_and_its_name_is_handed_over(two_sites: TwoSites, tmp_path: Path) -> None:
    """And where another machine has its name here by then, it is named by its UUID."""
    old, new, file = tmp_path / "ams2/state", tmp_path / "fra1/state", tmp_path / "web01.json"
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    two_sites.instances["ams2"].install("web01")
    (moved,) = (each.replace("name: web01", "name: shop01") for each in make_servers(web01="fra1"))
    two_sites.push(moved, *make_servers(web02="fra1"))
    assert json.loads(run_records("hand-over", "web01", "--state", old).stdout)["uuid"] == make_uuid("web01")
    assert str(run_records("hand-over", "shop01", "--state", old).exception).endswith(
        "use the server's UUID, or its last name at this site"
    )
    (follower,) = (each.replace("name: web03", "name: web01") for each in make_servers(web03="ams2"))
    two_sites.push(moved, follower, *make_servers(web02="fra1"))
    assert "web01 still belongs to this instance" in str(run_records("hand-over", "web01", "--state", old).exception)
    file.write_text(run_records("hand-over", make_uuid("web01"), "--state", old).stdout)
    given = run_while_instance_runs(run_records, ("take-over", file, "--state", new, "--reason", "moved"), two_sites)
    assert "recorded shop01 as provisioned: provision 1" in given
    assert two_sites.planned("fra1")["shop01"] == (Phase.DISK, Cause.PROVISIONED)


def test_a_server_with_an_installation_in_progress_or_unread_evidence_is_not_handed_over(
    two_sites: TwoSites, tmp_path: Path
) -> None:
    old, world = tmp_path / "ams2/state", two_sites.instances["ams2"]
    reported = make_fleet(two_sites.ledgers, "Reported")

    def push(site: str) -> None:
        text = "---\n".join((reported, *BOOTS, *make_servers(web01=site, web02="fra1")))
        two_sites.repository.push({"fleet.yaml": text}, "Change")
        two_sites.advance()

    push("ams2")
    world.install("web01")
    push("fra1")
    assert "an installation of web01 started here" in str(run_records("hand-over", "web01", "--state", old).exception)
    fetched = Observation(
        server="web01", path="boot/v1/boot/web01/boot.ipxe", digest=Digest("0" * 64), client="10.0.0.7", at=world.now
    )
    record_fetch(world.parts.spool, fetched)
    assert "the instance has not processed web01's latest requests yet" in str(
        run_records("hand-over", "web01", "--state", old).exception
    )
    world.advance()
    assert "an installation of web01 started here" in str(run_records("hand-over", "web01", "--state", old).exception)


def test_a_site_before_the_previous_one_has_nothing_to_hand_over(two_sites: TwoSites, tmp_path: Path) -> None:
    """Its record is older than the last site, which may have installed the machine."""
    lon1 = (
        f"{{name: lon1, select: {{matchLabels: {{site: lon1}}}}, baseURL: 'http://lon1', ledger: {make_uuid('lon1')}}}"
    )
    old = tmp_path / "ams2/state"

    def push(site: str) -> None:
        text = make_fleet(two_sites.ledgers).replace("sites: [", f"sites: [{lon1}, ")
        documents = (text, *BOOTS, *make_servers(web01=site, web02="fra1", web03="ams2"))
        two_sites.repository.push({"fleet.yaml": "---\n".join(documents)}, "Change")

    push("ams2")
    two_sites.advance()
    push("fra1")
    two_sites.advance()
    assert json.loads(run_records("hand-over", "web01", "--state", old).stdout)["server"] == "web01"
    push("lon1")
    two_sites.advance()
    assert "the ledger has no record of web01" in str(run_records("hand-over", "web01", "--state", old).exception)
    for site in ("ams2", "fra1", "lon1"):  # and where it looks once for all
        push(site)
    two_sites.advance()
    assert "the ledger has no record of web01" in str(run_records("hand-over", "web01", "--state", old).exception)


def test_a_request_to_take_over_a_server_is_carried_out_once_the_instance_runs(
    two_sites: TwoSites, tmp_path: Path
) -> None:
    """A server that comes back is taken over by its first ledger, whatever record it had there before."""
    file, world = tmp_path / "web01.json", two_sites.instances["ams2"]
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    world.install("web01")
    for old, new in (SITES, SITES[::-1]):
        two_sites.push(*make_servers(web01=new, web02="fra1"))
        file.write_text(run_records("hand-over", "web01", "--state", tmp_path / old / "state").stdout)
        with open_offline(tmp_path / new / "state", at("20T12:00")) as look:
            record = build_taken_record(read_hand_over(file), look)
        item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(record)}
        given = {"items": [item], "reason": "moved", "commit": look.commit.revision, "unknown": True}
        world = two_sites.instances[new]
        instance_tables.add_request(
            world.parts.ledger, world.now, "ada", SetRecords.kind, given
        )  # and the process that gave it is killed
        copy = tmp_path / f"{new} again"
        for folder in ("state", "output"):
            shutil.copytree(tmp_path / new / folder, copy / folder, symlinks=True)
        with run_in_process(copy, two_sites.repository.bare, site=new) as parts:
            again = World(parts, two_sites.repository, world.now)
            again.advance()
            assert summarize_plan(again.plan("web01")) == (Phase.DISK, Cause.PROVISIONED)
        assert two_sites.planned(new)["web01"] == UNKNOWN
        world.advance()
        assert two_sites.planned(new)["web01"] == (Phase.DISK, Cause.PROVISIONED)


def run_while_instance_runs(say: Callable[..., Result], take: tuple[str | Path, ...], two_sites: TwoSites) -> str:
    """Return the result of a request that a running instance executes."""
    found: list[Result] = []
    handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # the command wakes the process that runs the instance
    try:
        thread = Thread(target=lambda: found.append(say(*take)))
        thread.start()
        while thread.is_alive():
            two_sites.advance()
            thread.join(0.2)
    finally:
        signal.signal(signal.SIGUSR1, handler)
    return found[0].output or str(found[0].exception)


def test_a_state_directory_belongs_to_one_site_and_requests_name_it(two_sites: TwoSites, tmp_path: Path) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    with open_offline(tmp_path / "ams2/state", at("20T12:00")) as look:
        assert (look.commit.site, [*look.commit.decisions.servers]) == ("ams2", ["web01"])
        assert {each.name for each in look.commit.machines.values()} == {"web01"}
    shown = CliRunner().invoke(cli, ["records", "show", "--state", str(tmp_path / "ams2/state")])
    assert "1 server at the site ams2: 1 pending" in shown.output


@pytest.mark.parametrize("other", ["fra1", None])
def test_another_site_with_the_same_state_directory_is_rejected_at_once(
    tmp_path: Path, two_sites: TwoSites, other: str | None
) -> None:
    folder = tmp_path / "lon1"
    with run_in_process(folder, two_sites.repository.bare, initial="fresh", site="lon1"):
        pass
    with pytest.raises(UsageError) as refused, run_in_process(folder, two_sites.repository.bare, site=other):
        pass
    assert "was used for --site lon1, but gitboot now starts for" in str(refused.value)
    assert "use another --state and --out" in str(refused.value)
    with run_in_process(folder, two_sites.repository.bare, site="lon1"):
        pass


GONE: Final = (
    ("its servers move to another site", {"web01": "ams2", "web02": "ams2"}),
    ("its servers go with it", {"web01": "ams2"}),
)


@pytest.mark.parametrize(("what", "where"), GONE, ids=[what for what, _ in GONE])
def test_the_instance_of_a_removed_site_becomes_standby_at_once_and_releases_its_servers(
    two_sites: TwoSites, tmp_path: Path, what: str, where: dict[str, str]
) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    stays, goes = (two_sites.instances[site] for site in SITES)
    before = goes.applied
    text = "---\n".join((make_fleet(two_sites.ledgers, sites=("ams2",)), *BOOTS, *make_servers(**where)))
    two_sites.repository.push({"fleet.yaml": text}, "Close fra1")
    two_sites.advance()
    for each in (stays, goes):
        assert each.held is not None and each.held.guards == ("allowTakeover",), "as in CI"
    digest = get_held_digest(goes)
    assert get_held_digest(stays) == digest
    assert goes.parts.reconciler.status.problems == ()
    assert (goes.applied, goes.condition("LedgerNamed")) == (before, (False, "BecameStandby"))
    assert two_sites.planned("fra1") == {"web02": (Phase.DISK, Cause.STOPPED)}
    assert goes.parts.reconciler.state.schedule.may_set is False
    refused = str(run_records("hand-over", "web02", "--state", tmp_path / "fra1/state").exception)
    assert refused.endswith("wait until the instance has accepted the newer commit")
    two_sites.repository.push({"bad.yaml": "kind: Nothing\n"}, "Break something else")
    two_sites.advance()
    assert two_sites.planned("fra1") == {"web02": (Phase.DISK, Cause.STOPPED)}, "a broken commit gives nothing back"
    two_sites.repository.push({"bad.yaml": "# nothing\n"}, f"Mend it\n\nGitboot-Ack: {digest} allowTakeover")
    two_sites.advance()
    assert [each for each in (stays, goes) if each.held is not None] == []
    assert goes.condition("LedgerNamed") == (False, "BecameStandby")
    assert (two_sites.planned("fra1"), list_published(tmp_path / "fra1")) == ({}, set())
    places = ("--out", tmp_path / "fra1/output", "--state", tmp_path / "fra1/state", "--site", "fra1")
    tried = run_command("run", two_sites.repository.bare, *places, "--dry-run")
    assert (tried.code, "GB2023" in tried.err) == (Exit.PARTIAL, False)
    assert "the Fleet does not name a ledger for fra1 (this instance's ledger is" in tried.err
    assert "It still ends maintenance windows" in tried.err
    with goes.run_copy(tmp_path / "fra1", site="fra1") as again:
        again.advance()
        assert again.condition("LedgerNamed") == (False, "BecameStandby")
        assert again.parts.reconciler.status.problems == ()
    if "web02" in where:
        assert two_sites.planned("ams2")["web02"] == UNKNOWN
        assert (
            json.loads(run_records("hand-over", "web02", "--state", tmp_path / "fra1/state").stdout)["site"] == "fra1"
        )


def test_a_closed_site_that_is_restored_reports_what_it_waits_for(two_sites: TwoSites) -> None:
    goes, documents = two_sites.instances["fra1"], (*BOOTS, *make_servers(web01="ams2", web02="ams2"))
    opened, closed = (
        "---\n".join((make_fleet(two_sites.ledgers, sites=sites), *documents)) for sites in (SITES, ("ams2",))
    )
    for text in (opened, closed):
        two_sites.repository.push({"fleet.yaml": text}, "Change")
        two_sites.advance()
    two_sites.repository.push({}, f"Close fra1\n\nGitboot-Ack: {get_held_digest(goes)} allowTakeover")
    two_sites.advance()
    two_sites.repository.push({"fleet.yaml": opened, "bad.yaml": "kind: Nothing\n"}, "Put it back, and break something")
    two_sites.advance()
    (found,) = (each for each in goes.parts.reconciler.status.conditions if each.type == "LedgerNamed")
    assert "because the Fleet does not name a ledger for fra1 (this instance's ledger is" in found.message
    assert found.message.endswith(
        "The Fleet in the newest commit names this instance's ledger, so this instance becomes active again when "
        "gitboot accepts that commit"
    )


def test_a_renamed_site_is_a_new_site_to_which_its_servers_move(two_sites: TwoSites, tmp_path: Path) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    two_sites.instances["fra1"].install("web02")
    file, new = tmp_path / "web02.json", tmp_path / "par1/state"
    with run_in_process(tmp_path / "par1", two_sites.repository.bare, site="par1") as parts:
        world = World(parts, two_sites.repository, at("20T12:00"))
        two_sites = TwoSites(two_sites.repository, {**two_sites.instances, "par1": world})
        every = ("ams2", "fra1", "par1")
        for sites, where in ((every, "fra1"), (("ams2", "par1"), "par1")):
            documents = make_fleet(two_sites.ledgers, sites=sites), *BOOTS, *make_servers(web01="ams2", web02=where)
            two_sites.repository.push({"fleet.yaml": "---\n".join(documents)}, "Change")
            two_sites.advance()
        digest = get_held_digest(world)
        two_sites.repository.push({}, f"Rename it\n\nGitboot-Ack: {digest} allowTakeover")
        two_sites.advance()
        assert (two_sites.planned("fra1"), two_sites.planned("par1")) == ({}, {"web02": UNKNOWN})
        file.write_text(run_records("hand-over", "web02", "--state", tmp_path / "fra1/state").stdout)
        given = run_while_instance_runs(
            run_records, ("take-over", file, "--state", new, "--reason", "renamed"), two_sites
        )
        assert "recorded web02 as provisioned: provision 1" in given
        assert two_sites.planned("par1") == {"web02": (Phase.DISK, Cause.PROVISIONED)}


def test_an_instance_becomes_standby_if_a_broken_commit_names_another_ledger_for_its_site(
    two_sites: TwoSites,
) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    text = "---\n".join((make_fleet({**two_sites.ledgers, "fra1": make_uuid("another")}), *BOOTS, "kind: Nothing\n"))
    two_sites.repository.push({"fleet.yaml": text}, "Name another, and break something")
    two_sites.advance()
    found = [each.condition("LedgerNamed") for each in two_sites.instances.values()]
    assert found == [None, (False, "BecameStandby")]


def test_an_instance_for_an_unknown_site_accepts_nothing(two_sites: TwoSites, tmp_path: Path) -> None:
    two_sites.push(*make_servers(web01="ams2", web02="fra1"))
    with run_in_process(tmp_path / "fra2", two_sites.repository.bare, initial="fresh", site="fra2") as parts:
        world = World(parts, two_sites.repository, at("20T12:00"))
        world.advance()
        (problem,) = parts.reconciler.status.problems
        assert (problem.code, problem.line, problem.hint) == ("GB2023", 4, "did you mean fra1?")
        assert parts.reconciler.state.acceptance.accepted is None


@for_each(
    ("ledgers", "labels", "found"),
    [
        (SITES, "site: ams2", []),
        (SITES, "role: web", ["GB2022 each server must belong to exactly one site, but no site selects the server"]),
        ((), "role: web", []),
    ],
)
def test_each_server_is_at_one_site_if_sites_have_instances(
    ledgers: tuple[str, ...], labels: str, found: list[str]
) -> None:
    said = make_fleet({site: make_uuid(site) for site in ledgers})
    assert problems(said, *BOOTS, server("web01", labels)) == found


def test_a_server_of_two_sites_is_an_error() -> None:
    said = make_fleet({site: make_uuid(site) for site in SITES}).replace("{matchLabels: {site: fra1}}", "All")
    expected = ["GB2022 each server must belong to exactly one site, but the sites ams2, fra1 select the server"]
    assert problems(said, *BOOTS, server("web01", "site: ams2")) == expected


def problems(*documents: str) -> list[str]:
    try:
        decide(load(snapshot(*documents)))
    except InvalidRepository as error:
        return [f"{each.code} {each.message}" for each in error.problems if each.severity is Severity.ERROR]
    return []


# Properties of every commit


@LAWS
@given(first=fleets(), others=st.lists(fleets(), min_size=2, max_size=4), seed=st.integers(0, 2**32))
def test_sites_together_equal_the_fleet_in_any_order_of_commits(
    first: GeneratedFleet, others: list[GeneratedFleet], seed: int
) -> None:
    draw, history = random.Random(seed), History({})
    evaluator, tree = Evaluator(history.snapshot), move_sites(tree_of(first), draw)
    known: dict[str | None, Commit] = {}
    for other in (first, *others):
        edited = draw.choice(EDITS)(tree, other, draw) if known else tree
        edited = move_sites(edited, draw)
        revision = history.commit(edited)
        found = evaluate_or_problems(evaluator, revision, known[None].revision if known else None)
        if not isinstance(found, CommitPair):
            continue
        cold = evaluate_or_problems(Evaluator(history.snapshot), revision, None)
        assert isinstance(cold, CommitPair)
        before, tree = known.get(None), edited
        for site in (None, *SITES, "rest"):
            now = assemble_commit(known.get(site), revision, map(round_trip, build_report(found, site)))
            alone = assemble_commit(None, revision, map(round_trip, build_report(cold, site)))
            assert list_commit_values(now.commit) == list_commit_values(alone.commit)
            assert list_page_values(now.commit) == list_page_values(alone.commit)
            if before is not None:
                elsewhere = before.machines.keys() - known[site].machines.keys()
                assert not {each.uuid for each in now.new_decisions} & elsewhere, "what was at another site is not new"
                anywhere = {each.uuid for each in found.head.decided.repository.servers.values()}
                assert {*now.moves.arrived} == elsewhere & now.commit.machines.keys()
                if site is not None:
                    was, is_at = list_sites(before), list_sites(known[None])
                    moved = {uuid for uuid in was.keys() & is_at.keys() if was[uuid] != is_at[uuid]}
                    assert {*now.moves.passed_on} == {uuid for uuid in moved if site not in (was[uuid], is_at[uuid])}
                assert {each.uuid: each for each in now.moves.departed} == {
                    uuid: before.machines[uuid] for uuid in elsewhere - anywhere
                }
            known[site] = now.commit
        whole, parts = known[None], [known[site] for site in (*SITES, "rest")]
        for of in ("decisions.servers", "decisions.networks", "machines", "labels", "written", "locations.servers"):
            together = [item for part in parts for item in items(part, of)]
            assert sorted(together, key=lambda item: item[0]) == sorted(items(whole, of), key=lambda item: item[0])


def list_sites(commit: Commit) -> dict[str, str | None]:
    return {uuid: commit.sites.get(each.name) for uuid, each in commit.machines.items()}


def items(commit: Commit, of: str) -> list[tuple[str, object]]:
    found: object = commit
    for name in of.split("."):
        found = getattr(found, name)
    assert isinstance(found, Mapping)
    return list(found.items())


def move_sites(tree: Tree, draw: random.Random) -> Tree:
    """The tree with three sites that share all servers among them, and some of these moved."""

    def edited(text: str) -> str:
        try:
            document = json.loads(text)
        except ValueError:
            return text
        if not isinstance(document, dict) or "spec" not in document:
            return text
        if document.get("kind") == "Fleet":
            select = [{"matchLabels": {"site": site}} for site in SITES] + ["All"]
            document["spec"]["sites"] = [
                {"name": name, "select": each, "baseURL": f"http://{name}.test"}
                for name, each in zip((*SITES, "rest"), select, strict=True)
            ]
        elif document.get("kind") == "Server" and draw.random() < 0.3:
            document["metadata"].setdefault("labels", {})["site"] = draw.choice((*SITES, "nowhere"))
        return json.dumps(document)

    return {path: edited(text) if path.endswith(".yaml") else text for path, text in tree.items()}


# Without the others


def test_a_site_sets_only_its_own_bmcs_and_clears_overrides_at_a_windows_end_without_a_network(
    tmp_path: Path,
) -> None:
    store_credentials(tmp_path / "credentials", password="correct horse")
    names = dict(zip(("web01", "web02"), SITES, strict=True))
    machines = {name: Machine(name, uuid=make_uuid(name), profile=GENERIC) for name in names}
    repository, now = Repository.create(tmp_path / "git"), [at("20T12:00")]
    with ExitStack() as stack:
        bmcs = {
            name: stack.enter_context(RedfishServer(Service(each, credentials={"root": "correct horse"})))
            for name, each in machines.items()
        }
        parts = stack.enter_context(
            run_in_process(
                *(tmp_path / "ams2", repository.bare),
                initial="fresh",
                credentials=tmp_path / "credentials",
                clock=lambda: now[0],
                site="ams2",
            )
        )
        ledger = parts.reconciler.state.snapshot.facts.identity
        described = (
            server(
                name,
                f"site: {site}",
                f"bmc: {{address: '{bmcs[name].url}', system: {machines[name].path}, credentials: rack}}",
            )
            for name, site in names.items()
        )
        documents = (
            *(make_fleet({"ams2": ledger, "fra1": make_uuid("fra1")}), *BOOTS, *described),
            *(image("memtest-7", "writesDisk: false"), profile("repair", "memtest-7")),
            maintenance("check", "20T11:00 20T14:00"),
        )
        commit = repository.push({"fleet.yaml": "---\n".join(documents)}, "Begin")

        def advance(fetched: LastFetch | None = None, **passed: float) -> None:
            now[0] += timedelta(seconds=1, **passed)
            for each in machines.values():
                each.advance((now[0] - each.now).total_seconds())
            parts.reconciler.reconcile(now[0], fetched=fetched, wait=True)

        parts.source.fetch()
        advance()
        advance()
        assert machines["web01"].writes and get_boot(machines["web01"]) != "Disabled"
        assert machines["web02"].requests == [], "another site's BMC is not even read"
        shutil.rmtree(repository.bare)
        with pytest.raises(SourceError):
            parts.source.fetch()
        gone = LastFetch(reason="SourceError", message="no route to host", failed=True)
        advance(gone, hours=1)
        standing = parts.reconciler.state
        assert (standing.publication.applied, get_boot(machines["web01"]) != "Disabled") == (commit, True)
        advance(gone, hours=2)
        advance(gone, minutes=1)
        standing = parts.reconciler.state
        assert get_boot(machines["web01"]) == "Disabled" and standing.publication.applied == commit
        plan = standing.plans.servers["web01"].plan
        assert plan is not None and plan.phase is Phase.DISK
        assert [each.status for each in standing.conditions if each.type == "SourceReady"] == [False]


@pytest.mark.parametrize("stays", [True, False], ids=["its servers move to another site", "its servers go with it"])
def test_overrides_of_the_instance_of_a_removed_site_are_cleared_before_the_first_look(
    tmp_path: Path, stays: bool
) -> None:
    store_credentials(tmp_path / "credentials", password="correct horse")
    machine = Machine("web01", uuid=make_uuid("web01"), profile=GENERIC)
    repository, now = Repository.create(tmp_path / "git"), [at("20T12:00")]
    with ExitStack() as stack:
        bmc = stack.enter_context(RedfishServer(Service(machine, credentials={"root": "correct horse"})))
        parts = stack.enter_context(
            run_in_process(
                *(tmp_path / "ams2", repository.bare),
                initial="fresh",
                credentials=tmp_path / "credentials",
                clock=lambda: now[0],
                site="ams2",
            )
        )
        ledgers = {"ams2": parts.reconciler.state.snapshot.facts.identity, "fra1": make_uuid("fra1")}
        access = f"bmc: {{address: '{bmc.url}', system: {machine.path}, credentials: rack}}"

        def advance(documents: tuple[str, ...], message: str = "Change") -> None:
            now[0] += timedelta(minutes=1)
            machine.advance((now[0] - machine.now).total_seconds())
            repository.push({"fleet.yaml": "---\n".join(documents)}, message)
            parts.source.fetch()
            parts.reconciler.reconcile(now[0], wait=True)

        before = *BOOTS, server("web01", "site: ams2", f"provision: 1, {access}")
        for _ in range(3):
            advance((make_fleet(ledgers), *before))
        assert get_boot(machine) == "Once"
        at_fra1 = server("web01", "site: fra1", f"provision: 1, {access}") if stays else server("other", "site: fra1")
        for _ in range(3):
            advance((make_fleet(ledgers, sites=("fra1",)), *BOOTS, at_fra1))
        assert parts.reconciler.status.held is not None
        assert get_boot(machine) == "Disabled"
        writes = len(machine.writes)
        given = {"server": "web01", "consumed": False, "key": None, "bmc": None, "reason": "looked"}
        instance_tables.add_request(parts.ledger, now[0], "ada", "resolve", {"uuid": make_uuid("web01"), **given})
        for _ in range(2):
            advance((make_fleet(ledgers, sites=("fra1",)), *BOOTS, at_fra1))
        assert (get_boot(machine), len(machine.writes)) == ("Disabled", writes)


def get_boot(machine: Machine) -> str:
    return str(machine.system()["Boot"]["BootSourceOverrideEnabled"])
