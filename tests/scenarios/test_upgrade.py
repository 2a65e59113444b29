"""State of older versions of gitboot, and the present version on it.

`upgrades/0.1.0.tar.xz` is the state of `gitboot run` of that version (commit dec10da) for the fleet that its `init`
makes, with a second server. web01 had just fetched its boot script. web02 had not.

`upgrades/make.py` made the other archives and says what is in them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import stat
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pytest

from gitboot.cli.main import Exit
from tests.helpers.fleets import image, maintenance, profile, store_credentials, write_configuration
from tests.helpers.forked_commands import run_forked
from tests.helpers.instance_with_bmcs import CommandResult, run_command
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import ENABLED, TARGET
from tests.helpers.running_instance import Instance, close_after, eventually, git
from tests.upgrades import make

UPGRADES: Final = Path(make.__file__).parent
ENTRIES: Final = {name: f"boot/v1/boot/52-54-00-12-34-{mac}/boot.ipxe" for name, mac in (("web01", 56), ("web02", 57))}


def extract_state(version: str, folder: Path) -> Path:
    with tarfile.open(UPGRADES / f"{version}.tar.xz") as archive:
        archive.extractall(folder, filter=_with_permissions)
    return folder


def _with_permissions(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    """Give folders the permissions that they have in the archive, under any umask."""
    return tarfile.data_filter(member, folder).replace(mode=member.mode)


ENDED: Final = (0, 8)  # the latter as long as a condition names web02, whose install boot left OUTPUT


def read_spool(left: Path) -> str:
    """Return the fetch log."""
    return "".join(each.read_text() for each in (left / "spool").glob("*.jsonl"))


@contextmanager
def run_endpoint(left: Path) -> Iterator[Instance]:
    places = ("--out", str(left / "output"), "--spool", str(left / "spool"))
    found = Instance.start("serve", *places, "--listen", "127.0.0.1:0")
    reader = threading.Thread(target=found.read, daemon=True)
    reader.start()
    try:
        eventually(lambda: found.url)
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        close_after(reader, found.errors)


def boot_files(left: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted((left / "output" / "boot").rglob("*")) if path.is_file()}


# 0.1.0


@pytest.fixture
def left(tmp_path: Path) -> Path:
    return extract_state("0.1.0", tmp_path)


def run_once(left: Path, *arguments: object) -> CommandResult:
    places = ("--state", left / "state", "--out", left / "output", "--spool", left / "spool")
    return run_command("run", left / "fleet.git", *places, *arguments, "--once")


NAMING: Final = write_configuration(max_update_percent=100, max_small_group=99)  # a commit that changes each server


def name_endpoint(left: Path) -> None:
    """Commit a Fleet that names an endpoint."""
    work = left / "naming"
    git(left, "clone", "--quiet", str(left / "fleet.git"), str(work))
    (document,) = [path for path in work.rglob("*.yaml") if "kind: Fleet" in path.read_text()]
    text = document.read_text()
    inline = re.sub(r"^spec: \{(?=baseURL)", "spec: {endpoint: 'http://gitboot.test', ", text, flags=re.MULTILINE)
    block = re.sub(r"^spec:$", "spec:\n  endpoint: http://gitboot.test", text, count=1, flags=re.MULTILINE)
    document.write_text(inline if inline != text else block)
    git(work, "commit", "--quiet", "--all", "--message", "Name the endpoint")
    git(work, "push", "--quiet", "origin", "HEAD:main")


KERNEL: Final = "flatcar_production_pxe.vmlinuz"


def installs(left: Path, server: str) -> bool:
    return KERNEL in (left / "output" / ENTRIES[server]).read_text()


def test_an_installed_server_stays_a_pending_one_is_offered_and_a_second_run_changes_nothing(left: Path) -> None:
    assert (installs(left, "web01"), installs(left, "web02")) == (True, True)
    done = run_once(left)
    assert done.code == 8, done.err  # as long as a condition names web02
    shown = [run_command("boot-script", name, "--tree", left / "output").out for name in ENTRIES]
    assert [KERNEL in each for each in shown] == [False, True]
    assert (installs(left, "web01"), installs(left, "web02")) == (False, False), "OUTPUT is a copy"
    shown = run_command("records", "show", "--state", left / "state", "-o", "json").json["items"]
    assert {each["server"]: each["record"]["provision"] for each in shown} == {"web01": 1, "web02": None}
    before = boot_files(left)
    run_once(left)
    assert boot_files(left) == before


@pytest.mark.parametrize("version", ["0.1.0", "2fefe59"])
def test_finding_m2_an_upgrade_follows_the_default_branch_and_names_the_servers_whose_install_left_output(
    tmp_path: Path, version: str
) -> None:
    left = extract_state(version, tmp_path)

    def condition() -> dict[str, Any] | None:
        found = json.loads((left / "state/status.json").read_bytes())["conditions"]
        return next((each for each in found if each["type"] == "OneTimeBootsServed"), None)

    assert "the instance follows refs/heads/main from now on" in run_once(left).err
    for _ in range(2):  # a restart has it, too
        found = condition()
        assert found is not None
        assert (found["status"], found["reason"]) == (False, "OutputWithoutEndpoint")
        assert "web02: this server boots from disk until you set an endpoint in the Fleet" in found["message"]
        assert "endpoint:" in found["remedy"] and "oneTimeBoots: Copies" in found["remedy"]
        # A log in an older format does not show the clients.
        assert "the current nginx.conf or Caddyfile from " in found["remedy"] and "/ops/serve " in found["remedy"]
        assert "branch         refs/heads/main" in run_command("status", "--state", left / "state").out
        run_once(left)
    name_endpoint(left)
    run_once(left, *NAMING)
    assert condition() is None


def list_modes(output: Path) -> set[int]:
    """The permissions of a published tree, but for the publisher's lock."""
    found = [path for path in [output, *output.rglob("*")] if path.name != "lock"]
    return {stat.S_IMODE(path.stat().st_mode) for path in found}


def is_output_private(left: Path) -> bool:
    conditions = json.loads((left / "state/status.json").read_bytes())["conditions"]
    return all(each["status"] for each in conditions if each["type"] == "OutputPrivate")


def condition(left: Path, kind: str) -> tuple[bool, str, str]:
    """The status, the reason and the message of a condition."""
    conditions = json.loads((left / "state/status.json").read_bytes())["conditions"]
    (found,) = (each for each in conditions if each["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_output_stays_readable_by_everybody_until_a_group_is_named(left: Path) -> None:
    """A web server may read it, as another user."""
    assert run_once(left).code in ENDED
    assert (list_modes(left / "output"), is_output_private(left)) == ({0o755, 0o644}, False)
    shown = run_command("doctor", "--state", left / "state", "--out", left / "output")
    assert "every user on this host can read" in shown.out
    assert run_once(left, "--output-group", os.getegid()).code in ENDED
    assert (list_modes(left / "output"), is_output_private(left)) == ({0o750, 0o640}, True)
    assert run_once(left).code in ENDED
    assert (list_modes(left / "output"), is_output_private(left)) == ({0o750, 0o640}, True), (
        "the ledger keeps it closed"
    )


def test_output_that_is_created_again_for_an_earlier_ledger_stays_readable_by_everybody(left: Path) -> None:
    run_once(left)
    shutil.rmtree(left / "output")
    run_once(left)
    assert (list_modes(left / "output"), is_output_private(left)) == ({0o755, 0o644}, False)


@pytest.mark.parametrize("version", ["0.1.0", "2fefe59"])
def test_finding_r2_an_upgraded_instance_needs_a_rev_if_its_default_branch_lacks_the_accepted_one(
    tmp_path: Path, version: str
) -> None:
    left = extract_state(version, tmp_path)
    accepted = git(left / "fleet.git", "rev-parse", "main")
    other = git(left / "fleet.git", "commit-tree", "-m", "Unrelated", "main^{tree}")
    git(left / "fleet.git", "update-ref", "refs/heads/other", other)
    git(left / "fleet.git", "symbolic-ref", "HEAD", "refs/heads/other")
    assert run_once(left).code == Exit.SOURCE
    status = json.loads((left / "state/status.json").read_bytes())
    (found,) = [each for each in status["conditions"] if each["type"] == "SourceReady"]
    assert (found["status"], found["reason"]) == (False, "BranchNotNamed")
    assert "--rev" in found["message"] and "--rev" in found["remedy"]
    assert (status["applied"]["commit"], status["accepted"]["commit"]) == (accepted, accepted)
    assert run_once(left, "--rev", "main").code != Exit.SOURCE
    assert "branch         main" in run_command("status", "--state", left / "state").out


# Servers with BMCs


@dataclass
class Upgrade:
    """What an earlier version left, and its machines with their BMCs."""

    folder: Path
    machines: dict[str, Machine]
    version: str

    def run_once(self) -> CommandResult:
        return run_once(self.folder, "--credentials", self.folder / "credentials")

    def list_provisions(self) -> dict[str, int | None]:
        with closing(sqlite3.connect(self.folder / "state/ledger.sqlite")) as ledger:
            return dict(ledger.execute("SELECT server, provision FROM records"))

    def is_served(self) -> bool:
        """Return whether the endpoint has recorded that a client received a boot."""
        return '"outcome":"served"' in read_spool(self.folder)

    def end_grace(self) -> None:
        """Let the minute of grace pass in which a machine may fetch its boot script again."""
        with closing(sqlite3.connect(self.folder / "state/ledger.sqlite", isolation_level=None)) as ledger:
            ledger.execute("UPDATE records SET grace_until = provisioned_at")

    @property
    def writes(self) -> dict[str, list[Any]]:
        return {name: machine.writes for name, machine in self.machines.items()}

    def offers(self) -> dict[str, bool]:
        """Return whether an endpoint would serve each server its install boot."""
        found = {}
        for name in make.NAMES:
            shown = run_command("boot-script", name, "--tree", self.folder / "output")
            found[name] = make.installs(shown.out)
        return found

    def change(self, name: str, text: str) -> CommandResult:
        """Commit another document of a server, and reconcile once."""
        work = self.folder / "work"
        if not work.exists():
            git(self.folder, "clone", "--quiet", str(self.folder / "fleet.git"), str(work))
        (work / f"{name}.yaml").write_text(text)
        git(work, "commit", "--quiet", "--all", "--message", "Change")
        git(work, "push", "--quiet", "origin", "HEAD:main")
        return self.run_once()


INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


def record_fetch(left: Path) -> Path:
    """Date the fetches that the earlier version had not read five minutes back.

    Its heartbeat and offers get the same time, and its overrides an earlier time.
    After an hour, an installation would be overdue, and the ledger might be an older copy. The fetches come from
    another start of the machine, whose uptime says nothing of their dates.
    """
    at = datetime.now(UTC) - timedelta(minutes=5)
    now, before = (f"{each:%Y-%m-%dT%H:%M:%S.%fZ}" for each in (at, at - timedelta(seconds=1)))
    with closing(sqlite3.connect(left / "state/ledger.sqlite", isolation_level=None)) as ledger:
        # 0.1.0 has no such table: it deletes the lines that it has read.
        read = dict(ledger.execute("SELECT file, taken FROM spool")) if _has_table(ledger, "spool") else {}
        for name, value in ledger.execute("SELECT name, value FROM facts WHERE name = 'heartbeat'").fetchall():
            ledger.execute("UPDATE facts SET value = ? WHERE name = ?", (INSTANT.sub(now, value), name))
        ledger.execute("UPDATE offers SET at = ?", (now,))  # gitboot deletes old offers at the end of a day
        overrides = "overrides" if _has_table(ledger, "overrides") else "armed"  # 0.1.0 calls the table so
        ledger.execute(f"UPDATE {overrides} SET at = ?", (before,))  # gitboot set them before machines fetched
    for spool in (left / "spool").glob("*.jsonl"):
        text = spool.read_text()
        place = read.get(spool.name, 0)
        unread = re.sub(r'"up":\["[^"]+"', f'"up":["{uuid4()}"', INSTANT.sub(now, text[place:]))
        spool.write_text(text[:place] + unread)
    return left


def _has_table(ledger: sqlite3.Connection, name: str) -> bool:
    return bool(ledger.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchall())


BEFORE_FIRST_RUN: Final = {"0.1.0-bmcs": 503, "2fefe59": 200}  # what an endpoint answers over the tree


@contextmanager
def start_upgrade(version: str, folder: Path, overrides: Mapping[str, str]) -> Iterator[Upgrade]:
    """Extract an archive, and start BMCs with the overrides that the earlier version left them."""
    store_credentials(folder / "credentials", user=make.USER, password=make.PASSWORD)
    machines = make.machines(overrides)
    for name, machine in machines.items():
        machine.write(**{ENABLED: "Once", TARGET: "Pxe"})
        if overrides[name] == "Disabled":
            machine.run_through()
    with make.bmcs(machines):
        yield Upgrade(record_fetch(extract_state(version, folder)), machines, version)


@pytest.fixture(params=BEFORE_FIRST_RUN)
def upgrade(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Upgrade]:
    with start_upgrade(request.param, tmp_path, make.OVERRIDES) as upgrade:
        yield upgrade


def test_a_fetch_of_an_earlier_version_that_matches_no_offer_makes_the_ledger_unverified(tmp_path: Path) -> None:
    """0.1.0 did not log which offer it served, so only a fetch by 2fefe59 shows that the ledger is an older copy."""
    left = record_fetch(extract_state("2fefe59", tmp_path))
    with closing(sqlite3.connect(left / "state/ledger.sqlite", isolation_level=None)) as ledger:
        ledger.execute("DELETE FROM offers WHERE json_extract(facts, '$.server') = 'web01'")
    assert run_once(left).code in ENDED
    assert condition(left, "RecordsVerified")[:2] == (False, "RestoredLedger")
    offered = [
        name for name in make.NAMES if make.installs(run_command("boot-script", name, "--tree", left / "output").out)
    ]
    assert offered == []


def test_the_machines_of_the_earlier_version_are_installed_once_each_and_no_override_is_set_again(
    upgrade: Upgrade,
) -> None:
    """An endpoint withholds installs of the earlier tree until the instance has run and read all fetches."""

    def answers(serving: Instance, *names: str) -> dict[str, tuple[int, bool]]:
        found = {name: serving.get(make.format_script_path(name)) for name in names}
        return {name: (each.status_code, make.installs(each.text)) for name, each in found.items()}

    assert upgrade.list_provisions() == {"web01": None, "web02": None, "web03": 1}
    with run_endpoint(upgrade.folder) as serving:
        withheld = (BEFORE_FIRST_RUN[upgrade.version], False)
        assert answers(serving, *make.NAMES) == dict.fromkeys(make.NAMES, withheld)
    for _ in range(2):
        done = upgrade.run_once()
        assert done.code in ENDED, done.err
        others = [line for line in done.err.splitlines() if "web02" in line and "OneTimeBootsMissing" not in line]
        assert others == []  # not even as one that another instance set
        assert upgrade.list_provisions() == {"web01": 1, "web02": None, "web03": 1}
        assert upgrade.offers() == {"web01": False, "web02": True, "web03": False}
    assert {name: machine.override[ENABLED] for name, machine in upgrade.machines.items()} == make.OVERRIDES
    with run_endpoint(upgrade.folder) as serving:
        upgrade.machines["web02"].run_through()
        assert answers(serving, "web02") == {"web02": (200, True)}
        eventually(upgrade.is_served)
        assert answers(serving, "web01", "web03") == dict.fromkeys(("web01", "web03"), (200, False))
    assert upgrade.run_once().code in ENDED
    assert upgrade.list_provisions() == {"web01": 1, "web02": 1, "web03": 1}
    upgrade.end_grace()
    assert upgrade.run_once().code in ENDED
    assert upgrade.offers() == {"web01": False, "web02": False, "web03": False}
    assert upgrade.writes == {"web01": [], "web02": [], "web03": []}


MEMORY_TEST: Final = maintenance("memory", select="{servers: [web03]}")


def read_script_of_web03(upgrade: Upgrade) -> str:
    return (upgrade.folder / f"output/boot{make.format_script_path('web03')}").read_text()


def change_memory_test(upgrade: Upgrade) -> CommandResult:
    """Commit an image that the earlier version has not accepted, and that claims to write no disk."""
    image_8 = image("memtest-8", "writesDisk: false", "kernel")
    profile_8 = profile("repair-8", "memtest-8")
    after = MEMORY_TEST.replace("profile: repair", "profile: repair-8")
    return upgrade.change("web03", "---\n".join((make.server("web03"), image_8, profile_8, after)))


def test_a_new_image_that_writes_no_disk_is_held_in_the_first_commit_after_an_upgrade(upgrade: Upgrade) -> None:
    done = change_memory_test(upgrade)
    assert ("maxReinstalls" in done.err, "memtest-8" in read_script_of_web03(upgrade)) == (True, False), done.err


def test_commits_after_an_upgrade_clear_the_override_of_a_parked_server_and_hold_a_new_image_that_writes_no_disk(
    upgrade: Upgrade,
) -> None:
    """An image that the earlier version accepted may still claim to write no disk."""
    done = upgrade.change("web02", make.server("web02").replace("spec:", "spec:\n  lifecycle: Parked"))
    assert done.code in ENDED
    assert upgrade.list_provisions() == {"web01": 1, "web02": None, "web03": 1}
    assert upgrade.writes == {"web01": [], "web02": [{"Boot": {ENABLED: "Disabled"}}], "web03": []}
    done = upgrade.change("web03", f"{make.server('web03')}---\n{MEMORY_TEST}")
    assert (done.code in ENDED, "maxReinstalls" in done.err) == (True, False), done.err
    assert "memtest-7" in read_script_of_web03(upgrade)
    done = change_memory_test(upgrade)
    assert ("maxReinstalls" in done.err, "memtest-8" in read_script_of_web03(upgrade)) == (True, False), done.err


# Servers whose installers report, and commits that the earlier version had not read


@pytest.fixture(params=["0.1.0-reports", "2fefe59-reports"])
def reporting(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return record_fetch(extract_state(request.param, tmp_path))


def wrote_steps(left: Path) -> bool:
    """Return whether the version recorded fetches of user data and reports of failures. 0.1.0 did not."""
    return (left / "output/ops/servers").exists()


class Progress(NamedTuple):
    provision: int | None
    step: str | None
    is_offered: bool


def read_progress(left: Path) -> dict[str, Progress]:
    """Return the provision number, the last step and whether an endpoint would serve an install boot, by server."""
    found = {}
    for each in run_command("records", "show", "--state", left / "state", "-o", "json").json["items"]:
        name, record = each["server"], each["record"]
        step = record["attempts"][-1]["step"] if record["attempts"] else None
        shown = run_command("boot-script", name, "--tree", left / "output").out
        found[name] = Progress(record["provision"], step, make.installs(shown))
    return found


def user_data_path(left: Path, name: str) -> str:
    """Return the path of the user data, as the earlier version wrote it into the boot script of a server."""
    state = left / f"output/ops/servers/{name}.json"
    if state.exists():
        scripts = [str(each) for each in json.loads(state.read_bytes())["contents"].values()]
    else:
        scripts = [(left / f"output/boot{make.format_script_path(name)}").read_text()]
    (path,) = {path for each in scripts for path in re.findall(r"http://boot\.test(/\S+\.ign)", each)}
    return str(path)


def find_offers(left: Path) -> set[tuple[str, str]]:
    """Return the offer and the report token of new01, if the version wrote them."""
    if not wrote_steps(left):
        return set()
    paths = json.loads((left / "output/ops/servers/new01.json").read_bytes())["paths"]
    boots = (each["writes"] for versions in paths.values() for each in versions if "writes" in each)
    return {(each["offer"], each["report"]) for each in boots if each is not None}


def test_each_installation_goes_on_from_its_last_step_and_ends_after_the_upgrade(reporting: Path) -> None:
    """The unread commit is accepted by the line that the earlier version computed, and an offer keeps its identity.

    An endpoint looks up by the offer whether the boot was served, and an installer reports by its token.
    """
    has_steps, path, offers = wrote_steps(reporting), user_data_path(reporting, "boot01"), find_offers(reporting)
    assert len(offers) == has_steps
    expected = {
        "boot01": Progress(None, "Attempted", False),
        "done01": Progress(1, "Started" if has_steps else None, False),
        "fail01": Progress(None, "Failed", False) if has_steps else Progress(None, None, True),
        "new01": Progress(None, None, True),
        "old01": Progress(1, "Started" if has_steps else None, True),  # for the commit that installs it again
        "once01": Progress(0, None, False),
        "start01": Progress(None, "Started", False) if has_steps else Progress(None, None, True),
    }
    done, newest = run_once(reporting), git(reporting / "fleet.git", "rev-parse", "main")
    assert done.code in ENDED
    assert f"{newest[:12]}: maxReinstalls is acknowledged" in done.err
    accepted = json.loads((reporting / "state/status.json").read_bytes())["accepted"]
    assert (accepted["commit"], [each["guard"] for each in accepted["acknowledged"]]) == (newest, ["maxReinstalls"])
    assert read_progress(reporting) == expected
    shown = run_command("records", "show", "once01", "--state", reporting / "state", "-o", "json").json["items"]
    assert {name: each["run"] for name, each in shown[0]["record"]["runs"].items()} == {"memory": 1}
    assert not has_steps or find_offers(reporting) == offers
    with run_endpoint(reporting) as serving:
        data = serving.get(path)
        assert data.status_code == 200, path
        assert serving.get(data.json()["report"].removeprefix("http://boot.test")).is_success
        eventually(lambda: "/provisioned/" in read_spool(reporting))
    assert run_once(reporting).code in ENDED  # reads no earlier fetch again
    found = read_progress(reporting)
    assert found.pop("boot01")[::2] == (1, False)
    assert found == {name: each for name, each in expected.items() if name != "boot01"}


def test_a_line_whose_digest_the_upgrade_made_void_holds_its_commit_and_the_condition_names_it(reporting: Path) -> None:
    """The digest covers the change of `monitors`, which the digest of the earlier versions did not."""
    bare = reporting / "fleet.git"
    git(bare, "update-ref", "refs/heads/main", "void")
    line = git(bare, "log", "-1", "--format=%b", "void").strip()
    before = git(bare, "rev-parse", "main~1")
    assert run_once(reporting).code == Exit.HELD
    status, reason, message = condition(reporting, "CommitAccepted")
    assert (status, reason) == (False, "GuardTripped")
    assert f"{line!r} does not count: the line acknowledges other changes" in message
    assert "a different version of gitboot" in message
    found = json.loads((reporting / "state/status.json").read_bytes())
    assert found["accepted"]["commit"] == before
    assert not read_progress(reporting)["old01"].is_offered
    (valid,) = found["attempted"]["held"]["lines"]
    assert valid != line and valid in run_forked("status", "--state", reporting / "state").stdout
    work = reporting / "work"
    git(reporting, "clone", "--quiet", str(bare), str(work))
    git(work, "commit", "--quiet", "--amend", "--message", f"Install old01 again\n\n{valid}")
    git(work, "push", "--quiet", "--force", "origin", "HEAD:main")
    assert run_once(reporting).code in ENDED
    assert read_progress(reporting)["old01"].is_offered


# Servers with BMCs, whose installers report


@pytest.fixture(params=["0.1.0-installing", "2fefe59-installing"])
def installing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Upgrade]:
    with start_upgrade(request.param, tmp_path, make.INSTALLING) as upgrade:
        yield upgrade


def count_boots(left: Path) -> dict[str, list[int]]:
    """Return the number of fetches of the install boot that each attempt of a server counts."""
    items = run_command("records", "show", "--state", left / "state", "-o", "json").json["items"]
    return {each["server"]: [len(attempt["boots"]) for attempt in each["record"]["attempts"]] for each in items}


def count_observations(left: Path, server: str) -> int:
    """Return how many fetches and reports of a server the ledger has counted."""
    with closing(sqlite3.connect(left / "state/ledger.sqlite")) as ledger:
        (found,) = ledger.execute(
            "SELECT count(*) FROM observations WHERE json_extract(facts, '$.server') = ?", (server,)
        )
    return int(found[0])


def test_an_install_in_progress_is_not_started_again_and_each_unread_fetch_is_counted_once(installing: Upgrade) -> None:
    """The machine starts its loader again. Then its installer reports its completion.

    The BMC of kept01 still has its override, so gitboot ignores the fetch, and the boot is still offered.
    """
    has_steps, path = wrote_steps(installing.folder), user_data_path(installing.folder, "start01")
    assert count_observations(installing.folder, "start01") == 0
    before = count_boots(installing.folder)
    for _ in range(3):
        assert installing.run_once().code in ENDED
        expected = {"done01": before["done01"], "kept01": [], "set01": [], "start01": [1]}
        assert count_boots(installing.folder) == expected
        assert count_observations(installing.folder, "kept01") == 1
        assert count_observations(installing.folder, "start01") == (2 if has_steps else 1)  # with its user data
    assert installing.writes == {name: [] for name in make.INSTALLING}
    shown = {name: machine.override[ENABLED] for name, machine in installing.machines.items()}
    assert shown == make.INSTALLING
    with run_endpoint(installing.folder) as serving:
        installing.machines["start01"].run_through()
        again = serving.get(make.format_script_path("start01"))
        assert (again.status_code, make.installs(again.text)) == (200, False)
        report = serving.get(path).json()["report"].removeprefix("http://boot.test")
        assert serving.get(report).is_success
        eventually(lambda: "/provisioned/" in read_spool(installing.folder))
    for _ in range(2):
        assert installing.run_once().code in ENDED
    assert installing.list_provisions() == {"done01": 1, "kept01": None, "set01": None, "start01": 1}
    offered = {name: each.is_offered for name, each in read_progress(installing.folder).items()}
    assert offered == {"done01": False, "kept01": True, "set01": True, "start01": False}
    assert installing.writes["start01"] == []
    assert installing.machines["start01"].override[ENABLED] == "Disabled"
