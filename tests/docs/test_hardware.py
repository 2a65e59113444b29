"""docs/how-to/change-hardware.md: each commit applied, the output of `diff` compared, and an instance with a BMC.

The page shows the first lines of each review, and tests/hardware/reviews has the rest. If `diff` prints something else,
run ``pytest tests/docs/test_hardware.py --write-hardware``, and read the page.
"""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitboot.cli.main import Exit
from gitboot.controller.instance_state import LastFetch
from gitboot.fetchlog.log_entries import Observation
from gitboot.model.scalars import SystemUuid
from gitboot.render.endpoint_files import find_version, parse_state
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_plan import BootPlan
from gitboot.review.guards import Limits
from gitboot.status.conditions import Condition, fill_state
from tests.helpers.fleets import at, store_credentials
from tests.helpers.git_repositories import WorkTree
from tests.helpers.instance_in_process import Parts, record_fetch, run_in_process
from tests.helpers.instance_with_bmcs import CommandResult, run_command
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import ENABLED, TARGET
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import create_ledger
from tests.scenarios.test_run import images_in

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "change-hardware.md"
HARDWARE = Path(__file__).parents[1] / "hardware"
FLEET = HARDWARE / "fleet"
OLD, NEW = SystemUuid("4c4c4544-0034-4a10-8056-b9c04f4d3732"), SystemUuid("4c4c4544-0034-4a10-8056-b9c04f4d3733")
MAC, NEW_MAC = "52-54-00-12-34-56", "52-54-00-12-34-99"
OPEN, END = at("2026-12-01T14:00"), at("2026-12-01T18:00")
SHORT = (
    "Update the BIOS",
    "Replace a BMC",
)  # whose reviews the page does not show, because another section shows the same
SHOWN = ("GUARDS", "LOOK AT THIS FIRST", "CAUSE AND EFFECT", "PRESENTATION ONLY")


@dataclass(frozen=True)
class Section:
    title: str
    language: str  # of the change, or ""
    change: str  # lines of web01.yaml (diff), a new document (yaml), a command (console), or nothing
    shown: str  # of the review, or nothing

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z]+", "-", self.title.lower())

    @property
    def review(self) -> Path:
        return HARDWARE / "reviews" / f"{self.slug}.txt"

    @property
    def more(self) -> Path:
        """The documents of the commit that the page only mentions."""
        return HARDWARE / "commits" / self.slug


def read_sections() -> dict[str, Section]:
    found = {}
    for title, text in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE.read_text(), re.M):
        blocks = dict(re.findall(r"^```(diff|yaml|console|text)\n(.*?)^```$", text, re.M | re.S))
        shown = blocks.pop("text", "").removesuffix("\n")
        ((language, change),) = blocks.items() or {"": ""}.items()
        found[title] = Section(title, language, change, shown)
    return found


SECTIONS = read_sections()


def apply_change(work: WorkTree, section: Section, replace_addresses: Callable[[str], str] = str) -> None:
    """Make the change of a section in the work tree; ``replace_addresses`` replaces addresses of BMCs."""
    change = replace_addresses(section.change)
    match section.language:
        case "diff":
            web01 = work.path / "servers" / "web01.yaml"
            web01.write_text(apply_diff(web01.read_text(), change))
        case "yaml":
            content = yaml.safe_load(change)
            path = work.path / f"{content['kind'].lower()}s" / f"{content['metadata']['name']}.yaml"
            path.parent.mkdir(exist_ok=True)
            path.write_text(change)
        case "console":
            words = shlex.split(change.removeprefix("$ "))
            assert words[0] == "git"
            work.git(*words[1:])
        case _:
            assert section.more.is_dir(), f"no change in section {section.title}"
    if section.more.is_dir():
        shutil.copytree(section.more, work.path, dirs_exist_ok=True)
    work.git("add", "--all")


def apply_diff(document: str, change: str) -> str:
    """Replace lines of a document, as a diff without positions shows them; each old text occurs once."""
    for old, new in re.findall(r"((?:^[ -].*\n)+)((?:^[+].*\n)+)", change, re.M):
        kept = "".join(line[1:] for line in old.splitlines(keepends=True) if line[0] == " ")
        before = "".join(line[1:] for line in old.splitlines(keepends=True))
        assert document.count(before) == 1, before
        document = document.replace(before, kept + re.sub(r"^[+]", "", new, flags=re.M))
    return document


def excerpt(output: str) -> str:
    """Return what tests/hardware/reviews has: headline, counts, dangers, cause and effect; each commit has one id."""
    head, *blocks = output.split("\n\n")
    first, *lines = head.splitlines()
    counts = next(line for line in lines if " added · " in line)
    parts = (each.partition("\n  diff for ")[0] for each in blocks if each.startswith(SHOWN))
    return re.sub(
        r"(?<= in )[0-9a-f]{12}(?=\)?$)", "7dbb16ded10f", "\n\n".join(("\n".join((first, counts)), *parts)), flags=re.M
    )


def shown_lines(review: str) -> str:
    """Return what the page shows of a review: headline, dangers, and new places of credentials."""
    head, *blocks = review.split("\n\n")
    dangers = [each for each in blocks if each.startswith("LOOK AT THIS FIRST")]
    credentials = re.findall(r"^BMC: .*(?:\n.*)*", review, re.M)
    return "\n\n".join((head.splitlines()[0], *dangers, *credentials))


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    """The page's fleet on main, and a topic branch."""
    shutil.copytree(FLEET, tmp_path / "fleet")
    work = WorkTree(tmp_path / "fleet")
    work.commit(message="Begin")
    work.git("switch", "--quiet", "--create", "topic")
    return work


# The page


def test_the_page_shows_the_machine_of_the_fleet() -> None:
    assert (FLEET / "servers" / "web01.yaml").read_text() in PAGE.read_text()


def test_every_section_of_the_page_is_tested() -> None:
    assert list(SECTIONS) == re.findall(r"^## (.+)$", PAGE.read_text(), re.M)
    assert list(PROCEDURES) == list(SECTIONS)


@pytest.mark.parametrize("title", SECTIONS)
def test_diff_prints_for_the_commit_what_the_page_shows(
    title: str, work: WorkTree, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    section = SECTIONS[title]
    apply_change(work, section)
    work.commit(message=title)
    monkeypatch.chdir(work.path)
    done = run_command("diff", "main..topic")
    assert done.code in (0, 4), done
    review = excerpt(done.out)
    if request.config.getoption("--write-hardware"):
        section.review.write_text(f"{review}\n")
        heading = rf"(^## {re.escape(title)}$(?:(?!^## ).)*?^```text$).*?(?=^```$)"
        PAGE.write_text(
            re.sub(heading, lambda found: f"{found[1]}\n{shown_lines(review)}\n", PAGE.read_text(), flags=re.M | re.S)
        )
        return
    assert f"{review}\n" == section.review.read_text()
    if title in SHORT:
        assert section.shown == ""
    else:
        assert shown_lines(review) == section.shown


def test_no_review_or_document_is_left_of_a_section_that_is_gone() -> None:
    assert {each.name for each in HARDWARE.glob("reviews/*")} == {each.review.name for each in SECTIONS.values()}
    assert {each.name for each in HARDWARE.glob("commits/*")} <= {each.slug for each in SECTIONS.values()}


# The instance


class Hall:
    """The instance that follows the page's fleet, and the machine web01 with its BMC."""

    def __init__(self, folder: Path, opened: ExitStack) -> None:
        self.folder, self._opened = folder, opened
        self.addresses: dict[str, str] = {}  # of BMCs: on the page, and here
        self.machines: list[Machine] = []
        self.machine = self.bmc("https://10.112.0.13")
        store_credentials(folder / "credentials", password="root")
        shutil.copytree(FLEET, folder / "work")
        self.work = WorkTree(folder / "work")
        web01 = self.work.path / "servers" / "web01.yaml"
        web01.write_text(self.replace_addresses(web01.read_text()))
        named = f"  provisioning: {{ledger: {create_ledger(folder / 'state')}}}\n"
        (self.work.path / "fleet.yaml").write_text((FLEET / "fleet.yaml").read_text() + named)
        self.work.commit(message="Begin")
        credentials, bare = folder / "credentials", self.work.bare(folder / "fleet.git")
        self.parts: Parts = opened.enter_context(
            run_in_process(
                folder,
                bare,
                limits=Limits(),
                initial="adopt",
                credentials=credentials,
                clock=lambda: self.now,
            )
        )
        self.reconcile()

    @property
    def now(self) -> datetime:
        return self.machine.now

    def bmc(self, address: str, **machine: Any) -> Machine:
        """A machine behind a BMC at an address of the page."""
        made = Machine("web01", **{"uuid": OLD, "serial": "7M2XKQ3", "sku": "", **machine})
        made.now = self.machines[0].now if self.machines else made.now
        self._server = self._opened.enter_context(RedfishServer(Service(made, credentials={"root": "root"})))
        self.addresses[address] = self._server.url
        self.machines.append(made)
        return made

    def replace_addresses(self, text: str) -> str:
        return re.sub(r"(?<=address: )\S+", lambda found: self.addresses.get(found[0], found[0]), text)

    def unplug(self) -> None:
        """Take web01's BMC away."""
        self._server.die()

    def merge(self, title: str) -> None:
        """Merge the commit of a section, with an acknowledgement from `diff` if a guard holds it."""
        apply_change(self.work, SECTIONS[title], self.replace_addresses)
        self.work.commit(message=title)
        held = run_command("diff", "HEAD^..HEAD", self.work.path)
        if held.code == 4:
            lines = "\n".join(re.findall(r"Gitboot-Ack: \S+ \w+", held.out))
            self.work.git("commit", "--quiet", "--amend", f"--message={title}\n\n{lines}")
        self.work.git("push", "--quiet", "origin", "main")
        self.reconcile()
        status = self.parts.reconciler.status
        assert status.applied == self.work.head, status.conditions

    def wait(self, until: datetime) -> None:
        """Let time pass, and let the instance do what is due."""
        for machine in self.machines:
            machine.advance((until - machine.now).total_seconds())
        self.reconcile()

    def reconcile(self) -> None:
        """Reconcile until nothing is left to do now."""
        for _ in range(3):
            self.parts.source.fetch()
            self.parts.reconciler.reconcile(self.now, fetched=LastFetch(), wait=True)

    def boot(self, mac: str = MAC) -> str:
        """Reset web01, let it fetch its boot script if its override leads to the network, and return what it booted."""
        self.machine.run_through()
        if self.machine.boots[-1].target == "None":
            return "disk"
        image, plan = self.entry(mac), self.plan()
        assert plan is not None
        path = f"boot/v1/boot/{mac}/boot.ipxe"
        fetched = Observation(server="web01", path=path, digest=plan.digest, client="10.0.0.7", at=self.now)
        record_fetch(self.parts.spool, fetched)
        self.wait(self.now + timedelta(seconds=90))
        return image

    # State

    def entry(self, mac: str = MAC) -> str:
        """Return the image that the boot script of an address boots now, "disk", or "nothing" without one."""
        for file in sorted((self.folder / "output" / "ops" / "servers").glob("*.json")):
            state = parse_state(file.read_bytes())
            if (turns := state.paths.get(f"boot/v1/boot/{mac}/boot.ipxe")) is None:
                continue
            turn, _ = find_version(turns, self.now)
            if turn is None or turn.content is None:
                return "nothing"
            stored = state.stored_paths.get(turn.content)
            script = (self.folder / "output" / stored).read_text() if stored else state.contents[turn.content]
            return images_in(script)
        return "nothing"

    def plan(self, name: str = "web01") -> BootPlan | None:
        state = self.parts.reconciler.state.plans.servers.get(name)
        return state.plan if state is not None else None

    def record(self, uuid: SystemUuid = OLD) -> Record | None:
        return self.parts.reconciler.state.snapshot.record(uuid)

    @property
    def override(self) -> str:
        enabled = self.machine.override[ENABLED]
        return "Disabled" if enabled == "Disabled" else f"{enabled} {self.machine.override[TARGET]}"

    def condition(self, type: str) -> Condition | None:
        return next((each for each in self.parts.reconciler.status.conditions if each.type == type), None)

    @property
    def unknown(self) -> str:
        found = self.condition("RecordsVerified")
        assert found is not None
        return "" if found.status else f"{found.message}\n{found.remedy}"


REQUEST_WAITS = Exit.PARTIAL  # the request waits: this process executes it at its next reconcile


@pytest.fixture
def hall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hall]:
    monkeypatch.setattr(
        "gitboot.cli.instance_client._REQUEST_TIMEOUT_S", 0
    )  # it is this process that would take a request up
    with ExitStack() as opened:
        handler = signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by which commands wake the instance: this process
        opened.callback(signal.signal, signal.SIGUSR1, handler)
        made = Hall(tmp_path, opened)
        assert (made.entry(), made.override, made.unknown) == ("disk", "Disabled", "")
        assert made.record() is not None
        yield made


def test_e12_a_server_with_a_new_board_and_an_empty_disk_is_installed(hall: Hall) -> None:
    hall.machine.uuid = NEW
    hall.merge("Replace the motherboard and install the server")
    assert (hall.override, hall.entry(NEW_MAC), hall.entry()) == ("Once Pxe", "flatcar", "nothing")
    assert (hall.unknown, hall.condition("Bmc/web01")) == ("", None)
    assert hall.boot(NEW_MAC) == "flatcar"
    record = hall.record(NEW)
    assert record is not None and (record.provision, record.evidence) == (2, "Fetched")
    assert (hall.entry(NEW_MAC), hall.override, len(hall.machine.writes)) == ("disk", "Disabled", 1)


def test_e12_a_server_with_a_new_board_and_its_old_disks_is_not_installed(hall: Hall) -> None:
    hall.machine.uuid = NEW
    hall.merge("Replace the motherboard and keep the disks")
    assert (hall.record(NEW), hall.entry(NEW_MAC), hall.override) == (None, "disk", "Disabled")
    assert "gitboot records set web01 provisioned" in hall.unknown
    done = run_command("records", "set", "web01", "provisioned", "--state", hall.folder / "state", "--reason", "looked")
    assert done.code == REQUEST_WAITS, done
    hall.reconcile()
    assert (hall.unknown, hall.entry(NEW_MAC), hall.machine.writes) == ("", "disk", [])


def test_a_server_with_another_network_card_boots_as_before(hall: Hall) -> None:
    before = hall.record()
    hall.merge("Replace a network card")
    assert (hall.entry(NEW_MAC), hall.entry()) == ("disk", "nothing")
    assert (hall.record(), hall.machine.writes, hall.unknown) == (before, [], "")


def test_a_server_in_another_rack_boots_as_before(hall: Hall) -> None:
    before, old = hall.record(), hall.machine
    hall.machine = hall.bmc("https://10.112.2.13")
    hall.merge("Move a server to another rack")
    assert (hall.record(), hall.entry(), hall.unknown) == (before, "disk", "")
    assert (old.writes, hall.machine.writes) == ([], [])


def test_a_renamed_server_boots_as_before(hall: Hall) -> None:
    before = hall.record()
    hall.merge("Rename a server")
    assert (hall.record(), hall.entry(), hall.machine.writes, hall.unknown) == (before, "disk", [], "")
    assert [hall.plan("web01"), hall.plan("shop01") is None] == [None, False]


def test_a_retired_server_boots_its_disk(hall: Hall) -> None:
    hall.merge("Boot a rescue system")
    hall.wait(OPEN)
    assert hall.override == "Continuous Pxe"
    hall.merge("Retire a server")
    assert (hall.plan(), hall.entry(), hall.override) == (None, "disk", "Disabled")


def test_a_server_that_left_the_fleet_is_an_unknown_machine(hall: Hall) -> None:
    before = hall.record()
    hall.merge("Boot a rescue system")
    hall.wait(OPEN)
    (hall.work.path / "maintenances" / "rescue-web01.yaml").unlink()
    hall.merge("Delete a server")
    assert (hall.plan(), hall.entry(), hall.override) == (None, "nothing", "Disabled")
    hall.work.git("checkout", "--quiet", "HEAD^", "servers/web01.yaml")
    hall.work.commit(message="Bring it back")
    hall.work.git("push", "--quiet", "origin", "main")
    hall.reconcile()
    assert (hall.record(), hall.entry(), hall.override) == (before, "disk", "Disabled")


def test_e12_a_server_is_wiped_as_the_page_shows(hall: Hall) -> None:
    hall.merge("Wipe the disks")
    assert (hall.entry(), hall.override) == ("disk", "Disabled")
    hall.wait(OPEN)
    assert (hall.entry(), hall.override) == ("nwipe-0.36", "Once Pxe")
    assert hall.boot() == "nwipe-0.36"
    for _ in range(2):
        assert (hall.entry(), hall.override, hall.boot()) == ("disk", "Disabled", "disk")
    hall.wait(END + timedelta(days=1))
    record = hall.record()
    assert record is not None and record.overwritten_by == "wipe-web01"
    assert (hall.entry(), hall.override, len(hall.machine.writes)) == ("disk", "Disabled", 1)
    assert "web01" in hall.unknown


def test_a_server_is_rescued_as_the_page_shows(hall: Hall) -> None:
    before = hall.record()
    hall.merge("Boot a rescue system")
    hall.wait(OPEN)
    for _ in range(2):
        assert (hall.override, hall.entry()) == ("Continuous Pxe", "rescue-11.02")
        hall.boot()
    assert hall.now < END
    hall.wait(END)
    assert (hall.override, hall.entry(), hall.record()) == ("Disabled", "disk", before)


def test_a_server_gets_a_bios_update_as_the_page_shows(hall: Hall) -> None:
    hall.merge("Update the BIOS")
    hall.wait(OPEN)
    assert (hall.override, hall.entry()) == ("Once Pxe", "bios-2.19")
    assert hall.boot() == "bios-2.19"
    assert [hall.boot(), hall.boot()] == ["disk", "disk"]
    assert (hall.override, hall.entry(), hall.unknown) == ("Disabled", "disk", "")
    assert len(hall.machine.writes) == 1


def test_a_server_from_another_repository_boots_its_disk_until_its_record_is_set(hall: Hall) -> None:
    hall.merge("Add a server from another fleet")
    assert hall.entry("52-54-00-12-35-0d") == "disk"
    assert "gitboot records set web13 provisioned" in hall.unknown


def test_a_server_with_another_bmc_has_its_override_there(hall: Hall) -> None:
    hall.merge("Boot a rescue system")
    hall.wait(OPEN)
    old = hall.machine
    assert hall.override == "Continuous Pxe"
    hall.machine = hall.bmc("https://10.112.0.113", uuid="8d1f0c5e-7a42-4b7e-9a55-0c6f5e2b9d10", serial="")
    hall.merge("Replace a BMC")
    assert (old.override[ENABLED], hall.override, hall.condition("Bmc/web01")) == ("Disabled", "Continuous Pxe", None)


def test_a_new_bmc_with_another_uuid_that_the_document_does_not_name_is_another_machine(hall: Hall) -> None:
    hall.merge("Boot a rescue system")
    hall.wait(OPEN)
    hall.machine = hall.bmc("https://10.112.0.113", uuid="8d1f0c5e-7a42-4b7e-9a55-0c6f5e2b9d10", serial="")
    apply_change(hall.work, SECTIONS["Replace a BMC"], hall.replace_addresses)
    document = hall.work.path / "servers" / "web01.yaml"
    (line,) = re.findall(r"^    (reports: .*)$", document.read_text(), re.MULTILINE)
    document.write_text(document.read_text().replace(f"    {line}\n", ""))
    hall.work.commit(message="Replace a BMC")
    hall.work.git("push", "--quiet", "origin", "main")
    hall.reconcile()
    found = hall.condition("Bmc/web01")
    assert found is not None and found.reason == "AnotherMachine"
    assert line in found.message
    assert hall.machine.writes == []


# Leftovers


def run_remedy(hall: Hall, reason: str) -> CommandResult:
    """The way out that status prints for web01's BMC, typed."""
    found = hall.condition("Bmc/web01")
    assert found is not None and (found.status, found.reason) == (False, reason), found
    assert found.remedy is not None
    words = shlex.split(fill_state(found.remedy, str(hall.folder / "state")), comments=True)
    return run_command(*words[1:])


def test_an_override_on_a_machine_that_was_removed_with_its_bmc_can_be_forgotten(hall: Hall) -> None:
    hall.merge("Boot a rescue system")
    hall.wait(OPEN)
    hall.unplug()
    (hall.work.path / "maintenances" / "rescue-web01.yaml").unlink()
    hall.merge("Delete a server")
    hall.wait(hall.now + timedelta(minutes=10))
    asked = run_remedy(hall, "Overdue")
    assert asked.code == REQUEST_WAITS, asked
    done = run_command(
        "bmc", "resolve", "web01", "--consumed", "--state", hall.folder / "state", "--reason", "scrapped"
    )
    assert done.code == REQUEST_WAITS, done
    hall.reconcile()
    assert hall.condition("Bmc/web01") is None
    gone = run_command("bmc", "resolve", "web01", "--consumed", "--state", hall.folder / "state", "--reason", "again")
    assert (gone.code, "no server 'web01'" in gone.err) == (64, True)


@pytest.mark.parametrize("word", ["--same", "--consumed", "--not-set"])
def test_a_board_that_was_removed_with_its_override_does_not_delay_the_new_board(hall: Hall, word: str) -> None:
    hall.merge("Boot a rescue system")
    hall.wait(OPEN)
    hall.machine.uuid, hall.machine.serial = NEW, "9ZZ1QQ7"  # and the old board has no document
    hall.machine.write(**{ENABLED: "Disabled", TARGET: "None"})
    hall.merge("Replace the motherboard and install the server")
    found = hall.condition("Bmc/web01")
    assert found is not None and found.reason == "AnotherMachine"
    assert hall.override == "Disabled"
    done = run_command("bmc", "resolve", "web01", word, "--state", hall.folder / "state", "--reason", "scrapped")
    assert done.code == REQUEST_WAITS, done
    hall.reconcile()
    assert (hall.override, hall.condition("Bmc/web01")) == ("Continuous Pxe", None)


PROCEDURES: dict[str, Callable[[Hall], None]] = {
    "Replace the motherboard and install the server": test_e12_a_server_with_a_new_board_and_an_empty_disk_is_installed,
    "Replace the motherboard and keep the disks": test_e12_a_server_with_a_new_board_and_its_old_disks_is_not_installed,
    "Replace a network card": test_a_server_with_another_network_card_boots_as_before,
    "Move a server to another rack": test_a_server_in_another_rack_boots_as_before,
    "Rename a server": test_a_renamed_server_boots_as_before,
    "Retire a server": test_a_retired_server_boots_its_disk,
    "Delete a server": test_a_server_that_left_the_fleet_is_an_unknown_machine,
    "Wipe the disks": test_e12_a_server_is_wiped_as_the_page_shows,
    "Boot a rescue system": test_a_server_is_rescued_as_the_page_shows,
    "Update the BIOS": test_a_server_gets_a_bios_update_as_the_page_shows,
    "Add a server from another fleet": test_a_server_from_another_repository_boots_its_disk_until_its_record_is_set,
    "Replace a BMC": test_a_server_with_another_bmc_has_its_override_there,
}
