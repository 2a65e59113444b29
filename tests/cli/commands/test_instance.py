"""Commands that control an instance or show its state: records, approve, suspend, status, reconcile."""

from __future__ import annotations

import io
import json
import re
import select
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gitboot.cli.commands.instance import find_reconcile_outcome
from gitboot.cli.main import Exit
from gitboot.model.scalars import SystemUuid
from gitboot.publish.tree_reader import STOP_FILE, read_records
from gitboot.resolve.provisioning_record import (
    InstallAttempt,
    Record,
    StepEvidence,
    encode_records,
    make_record_fields,
)
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import HeldCommit, Status
from tests.endpoint.test_server import served
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.endpoints import get
from tests.helpers.fleets import make_uuid, write_configuration
from tests.helpers.instance_with_bmcs import (
    POOL,
    Blade,
    CommandResult,
    Rack,
    boots,
    condition,
    run_command,
    wait_for_condition,
)
from tests.helpers.running_instance import Instance, eventually
from tests.render.test_page import read_page_data, rows

REASON = ("--reason", "INC-4711")
REINSTALL = ("--guard", "maxReinstalls")


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    """Two installed servers and one pending; an instance has reconciled once and ended."""
    with Rack(tmp_path) as made:
        made.add("web01", provision=1)
        made.add("web02", provision=1)
        made.push()
        assert made.once(records="adopt").code == Exit.FINE
        yield made


def show_records(rack: Rack, *servers: str) -> dict[str, dict[str, Any]]:
    items = json.loads(rack.said("records", "show", *servers, "-o", "json"))["items"]
    return {item["server"]: item for item in items}


def hold(rack: Rack) -> str:
    """Push a commit that a guard holds; return the digest of what it changes."""
    rack.blades["web01"].provision += 1
    rack.push("Reinstall web01")
    assert rack.once().code == Exit.HELD
    digest: str = json.loads(rack.said("status", "-o", "json"))["attempted"]["held"]["digest"]
    return digest


def format_soon(**more: float) -> str:
    return f"{datetime.now(UTC) + timedelta(**more):%Y-%m-%dT%H:%M:%SZ}"


def push_invalid(rack: Rack) -> None:
    rack.repository.push({"bad.yaml": "kind: Server\n"})


# records


def test_records_are_shown_with_the_wanted_provision_and_unknown_ones_come_first(rack: Rack) -> None:
    rack.blades["web02"].uuid = make_uuid("another board")
    rack.push()
    rack.once(*write_configuration(max_small_group=100))
    since = show_records(rack)["web01"]["record"]["provisionedAt"]
    assert rack.said("records", "show").splitlines() == [
        "SERVER  WANTED  PROVISIONED  IMAGE      POOL  EVIDENCE  SINCE              DRIFT",
        "web02   1       unknown      -          -     -         -                  -",
        f"web01   1       1            flatcar-1  web   Adopted   {since[:16]}Z  -",
        "",
        "Check these servers' disks, then record each server as provisioned or pending:",
        "    gitboot records set web02 provisioned --state STATE --reason '…'",
        "",
        "2 servers: 1 unknown, 1 provisioned",
    ]
    assert list(show_records(rack)) == ["web02", "web01"]
    assert list(show_records(rack, "web01")) == ["web01"]


def test_the_summary_of_records_counts_what_the_rows_show(rack: Rack) -> None:
    digest = hold(rack)
    rack.said("approve", digest, *REINSTALL, *REASON)
    rack.add("web03", provision=1)
    rack.push()
    rack.once(*write_configuration(max_small_group=100), *rack.spool_options)
    lines = rack.said("records", "show").splitlines()
    assert [re.split(r"\s{2,}", line)[:7] for line in lines[1:3]] == [
        ["web01", "2", "1", "flatcar-1", "web", "pending", "-"],
        ["web03", "1", "pending", "-", "-", "pending", "-"],
    ]
    assert lines[-1] == "3 servers: 2 pending (1 of them to be reinstalled), 1 provisioned"


def test_a_record_set_without_an_instance_takes_effect_at_the_next_reconcile(rack: Rack) -> None:
    said = rack.said("records", "set", "web01", "pending", "--yes", *REASON)
    assert (
        said.splitlines()[-1]
        == "recorded web01 as pending: gitboot installs the server when its plan allows (INC-4711)"
    )
    assert show_records(rack)["web01"]["record"]["provision"] is None
    rack.once(*rack.spool_options)
    assert (rack.blades["web01"].times_set, rack.blades["web02"].times_set) == (1, 0)
    said = rack.said("records", "set", "web01", "provisioned", *REASON)
    assert said == "recorded web01 as provisioned: provision 1 with BootImage/flatcar-1 (INC-4711)\n"
    assert show_records(rack)["web01"]["record"]["evidence"] == "Operator"
    assert " Requested " in rack.said("events")


def test_many_records_are_set_by_one_request_that_lists_them_and_needs_yes(rack: Rack) -> None:
    before = show_records(rack)
    for more in ((), ("-l", "role=db", "--yes"), ("web01", "web03", "--yes")):
        done = rack.run_command("records", "set", "pending", *REASON, *more)
        assert (done.code, show_records(rack)) == (Exit.USAGE, before), done
    order = ("records", "set", "pending", "-l", "!role", *REASON)
    done = rack.run_command(*order)  # no terminal
    assert (done.code, show_records(rack)) == (Exit.USAGE, before) and "--yes" in done.err
    assert "web01   1       1            flatcar-1  web   Adopted" in done.out
    assert "gitboot would record 2 servers as pending: INC-4711" in done.out
    assert rack.said(*order, "--yes").endswith("set 2 records (INC-4711)\n")
    assert [item["step"] for item in show_records(rack).values()] == ["Pending", "Pending"]
    rack.once(*rack.spool_options)
    assert (rack.blades["web01"].times_set, rack.blades["web02"].times_set) == (1, 1)


def test_the_reinstallation_of_one_provisioned_server_needs_confirmation(rack: Rack) -> None:
    done = rack.run_command("records", "set", "web01", "pending", *REASON)
    assert done.code == Exit.USAGE and "--yes" in done.err
    assert "1 server would be installed again, and the installer erases the disks: web01" in done.out
    assert show_records(rack)["web01"]["step"] == "Provisioned"
    rack.said("records", "set", "web01", "pending", "--yes", *REASON)
    rack.said("records", "set", "web01", "pending", *REASON)  # the server is already pending
    assert show_records(rack)["web01"]["step"] == "Pending"


@pytest.mark.parametrize(("answer", "step"), [("y", "Pending"), ("n", "Provisioned")])
def test_a_person_at_a_terminal_must_confirm(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, answer: str, step: str
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    rack.run_command("records", "set", "web01", "web02", "pending", *REASON)
    assert [item["step"] for item in show_records(rack).values()] == [step, step]


def test_an_installation_by_another_tool_is_recorded_with_its_version_or_image(rack: Rack) -> None:
    """The record shows drift, and the server is not installed. Exported records keep the version."""
    said = rack.said("records", "set", "web01", "provisioned", "--version", "Ubuntu 22.04.5", *REASON)
    assert said == "recorded web01 as provisioned: provision 1 with version Ubuntu 22.04.5 (INC-4711)\n"
    item = show_records(rack)["web01"]
    assert (item["record"]["image"], item["record"]["version"], item["record"]["decisionDigest"]) == (
        None,
        "Ubuntu 22.04.5",
        None,
    )
    assert item["drift"] == {
        "ImageDrift": "another tool installed version Ubuntu 22.04.5, but the plan boots BootImage/flatcar-1 (1)"
    }
    row = rack.said("records", "show", "web01").splitlines()[1]
    assert "version Ubuntu 22.04.5" in row and row.endswith("ImageDrift")
    assert "VERSION FROM ANOTHER TOOL  INSTALLED\nUbuntu 22.04.5             1" in rack.said("images")
    assert json.loads(rack.said("images", "-o", "json"))["foreign"] == {"Ubuntu 22.04.5": 1}
    rack.settings += ", outputs: [ipxe, grub, pages]"
    rack.push()
    rack.once(*rack.spool_options)
    assert rack.blades["web01"].times_set == 0
    uuid = SystemUuid(rack.blades["web01"].uuid)
    published = read_records(rack.output / "ops" / "records")[uuid]
    assert published.version == "Ubuntu 22.04.5"
    assert read_page_data(rack.output, "server/web01")["provisioned"]["version"] == "Ubuntu 22.04.5"
    assert rows(rack.output)["web01"]["provisioned"] == "version Ubuntu 22.04.5"
    (rack.folder / "exported.json").write_bytes(encode_records({uuid: published}))
    rack.said("records", "set", "web01", "provisioned", "--image", "flatcar-2", *REASON)
    assert show_records(rack)["web01"]["record"]["image"] == "flatcar-2"
    assert "version" not in show_records(rack)["web01"]["record"]
    rack.said("records", "import", rack.folder / "exported.json", *REASON)
    assert show_records(rack)["web01"]["record"]["version"] == "Ubuntu 22.04.5"


@for_each(
    ("arguments", "expected"),
    [
        (("provisioned", "--image", "flatcar-3"), "did you mean"),
        (("provisioned", "--image", "flatcar-2", "--version", "7"), "either --image or --version"),
        (("pending", "--version", "7"), "either --image or --version"),
        (("provisioned", "--version", "two\nlines"), "one line of text"),
    ],
)
def test_a_wrong_statement_about_another_tool_changes_no_record(
    rack: Rack, arguments: tuple[str, ...], expected: str
) -> None:
    before = show_records(rack)
    done = rack.run_command("records", "set", "web01", *arguments, *REASON)
    assert (done.code, expected in done.err, show_records(rack)) == (Exit.USAGE, True, before)


def test_another_image_that_a_policy_would_replace_needs_confirmation(tmp_path: Path) -> None:
    """With OnImageChange, gitboot installs a server whose record names another image."""
    pool = tuple(each.replace("networkBoot: Once", "networkBoot: OnImageChange") for each in POOL)
    with Rack(tmp_path, pool=pool) as rack:
        rack.add("web01", provision=1)
        rack.push()
        rack.once(records="adopt")
        order = ("records", "set", "web01", "provisioned", "--version", "Ubuntu 22.04.5", *REASON)
        done = rack.run_command(*order)
        assert done.code == Exit.USAGE and "--yes" in done.err
        expected = "1 server would be installed, because their policies set networkBoot: OnImageChange: web01"
        assert expected in done.out
        assert show_records(rack)["web01"]["step"] == "Provisioned"
        rack.said(*order, "--yes")
        assert show_records(rack)["web01"]["step"] == "Pending"


def test_records_are_imported_completely_and_unknown_servers_are_counted(rack: Rack) -> None:
    document = json.loads(encode_records(read_records(rack.output / "ops" / "records")))
    document["items"][0]["image"] = "flatcar-2"
    document["items"].append({**document["items"][0], "uuid": make_uuid("a stray")})
    file = rack.folder / "told.json"
    file.write_text(json.dumps(document))
    done = rack.run_command("records", "import", file, *REASON)
    assert (done.code, done.out) == (Exit.FINE, "set 2 records (INC-4711)\n")
    assert done.err == "ignored 1 of 3 records: the accepted commit does not contain their servers\n"
    assert [list(item["drift"]) for item in show_records(rack).values()] == [["ImageDrift"], []]


@for_each(
    ("content", "said"),
    [
        ("garbage", "does not contain exported records"),
        ("[]", "does not contain exported records"),
        ('{"items": [{"uuid": "x"}]}', "use ops/records from an output tree"),
        ('{"items": []}', "does not contain any servers from the accepted commit"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_without_valid_records_changes_nothing(rack: Rack, content: str | None, said: str) -> None:
    file = rack.folder / "told.json"
    if content is None:
        file.unlink()
    else:
        file.write_text(content)
    before = show_records(rack)
    done = rack.run_command("records", "import", file, *REASON)
    assert (done.code, done.out, show_records(rack)) == (Exit.USAGE, "", before)
    assert str(file) in done.err and said in done.err and "Traceback" not in done.err


# approve


def test_an_approval_must_name_the_held_commit_and_the_guard_that_holds_it(rack: Rack) -> None:
    nothing = rack.run_command("approve", "0" * 64, *REINSTALL, *REASON)
    assert (nothing.code, nothing.err) == (
        Exit.STALE,
        "gitboot: no guard is holding a commit, so there is no commit to approve\n",
    )
    digest = hold(rack)
    for other_digest in ("0" * 64, "0" * 12):
        stale = rack.run_command("approve", other_digest, *REINSTALL, *REASON)
        assert (
            stale.code,
            f"the held commit's changes have the digest {digest}, not {other_digest}: review the changes again"
            in stale.err,
        ) == (Exit.STALE, True), stale
    other = rack.run_command("approve", digest, "--guard", "maxDeletes", *REASON)
    assert (other.code, other.err) == (
        Exit.STALE,
        "gitboot: the commit is held by maxReinstalls, not by maxDeletes\n",
    )
    assert rack.once().code == Exit.HELD
    assert rack.said("approve", digest, *REINSTALL, *REASON).startswith("approved maxReinstalls")
    assert rack.once(*rack.spool_options).code == Exit.FINE
    assert rack.blades["web01"].times_set == 1


def test_finding_r10_status_prints_one_command_that_approves_the_held_commit_on_one_line(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = hold(rack)
    lines = rack.said("status").splitlines()
    start = lines.index("    1. Review the changes:")
    assert re.fullmatch("    commit [0-9a-f]{12} is on hold until it is approved:", lines[start - 3])
    assert lines[start - 2 : start] == [
        "    - the commit could reinstall 1 server (maxReinstalls allows 0)",
        "    Servers to reinstall: web01",
    ]
    assert lines[start + 2 : start + 5 : 2] == [
        "    2. Approve them:",
        "    Or write this into the message of a new commit:",
    ]
    assert "    looked at" not in lines
    assert ["CommitAccepted", "false", "GuardTripped"] in [line.split()[:3] for line in lines]
    for columns in ("40", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = [line.strip() for line in rack.said("status").splitlines()]
        (command,) = (line for line in lines if "gitboot approve" in line or "--reason" in line)
        (review,) = (line for line in lines if "gitboot diff" in line or "--accepted" in line)
        assert command == f"gitboot approve {digest[:16]} --all-guards --state {rack.state} --reason '…'"
        assert "maxReinstalls" in run_command(*shlex.split(review)[1:]).out
        assert [line for line in lines if digest in line] == [f"Gitboot-Ack: {digest} maxReinstalls"]
    pasted = run_command(*shlex.split(command)[1:])
    assert (pasted.code, "is a placeholder from an example" in " ".join(pasted.err.split())) == (Exit.USAGE, True)


def test_status_prints_the_acknowledgements_of_one_person_on_one_line(rack: Rack) -> None:
    status = json.loads((rack.state / "status.json").read_text())
    guards = ("maxReinstalls", "maxDeletes", "maxInstalls")
    by = {guard: "root, with gitboot approve: CHG-1" if guard != "maxDeletes" else "Ada" for guard in guards}
    found = [{"guard": guard, "commit": "c" * 40, "by": by[guard]} for guard in guards]
    status["accepted"]["acknowledged"] = found
    (rack.state / "status.json").write_text(json.dumps(status))
    assert [line for line in rack.said("status").splitlines() if line.startswith("acknowledged")] == [
        "acknowledged   maxReinstalls, maxInstalls in cccccccccccc: root, with gitboot approve: CHG-1",
        "acknowledged   maxDeletes in cccccccccccc: Ada",
    ]


def test_finding_r10_a_prefix_of_the_digest_and_all_guards_approve(rack: Rack) -> None:
    digest = hold(rack)
    commit = rack.run_command("status", "-o", "json").json["attempted"]["commit"]
    for prefix, code, said in (
        (digest[:7], Exit.USAGE, "is not a digest: type at least 8 of the hexadecimal digits"),
        ("maxReinstalls", Exit.USAGE, "is not a digest"),
        (digest + "0", Exit.USAGE, "is not a digest"),
        ("0" * 8, Exit.STALE, f"have the digest {digest}, not 00000000"),
        (commit[:12], Exit.STALE, f"is the held commit itself: pass the digest of its changes, {digest}"),
    ):
        done = rack.run_command("approve", prefix, "--all-guards", *REASON)
        assert (done.code, said in done.err) == (code, True), done
    for guards in ((), ("--all-guards", *REINSTALL)):
        done = rack.run_command("approve", digest[:8], *guards, *REASON)
        assert (done.code, "--all-guards or at least one --guard GUARD" in done.err) == (Exit.USAGE, True), done
    said = rack.said("approve", digest[:8].upper(), "--all-guards", *REASON)
    assert said.startswith(f"approved maxReinstalls for the changes {digest[:12]}")
    assert rack.once(*rack.spool_options).code == Exit.FINE


def test_finding_r13_the_exit_code_of_status_shows_the_conditions(rack: Rack) -> None:
    assert rack.run_command("status").code == Exit.FINE
    rack.run_command("stop-installs", *REASON)
    assert rack.run_command("status", "-o", "json").code == Exit.PARTIAL
    rack.said("allow-installs")
    hold(rack)
    assert rack.run_command("status").code == Exit.HELD
    rack.said("suspend", *REASON, "--until", "1d12h")
    rack.once()
    assert rack.run_command("status").code == Exit.SUSPENDED


@for_each(
    ("arguments", "said"),
    [
        ("--until 2026-01-01T00:00:00Z --reason x", "--until 2026-01-01T00:00:00Z is in the past: use a future time"),
        ("--until -5m --reason x", "is in the past: use a future time"),
        ("--until tomorrow --reason x", "Invalid value for '--until'"),
        ("--until 2099-01-01T00:00:00Z", "Missing option '--reason'"),
        ("--reason x", "Missing option '--until'"),
    ],
)
def test_a_suspension_has_an_end_and_a_reason(rack: Rack, arguments: str, said: str) -> None:
    done = rack.run_command("suspend", *arguments.split())
    assert (done.code, said in done.err) == (Exit.USAGE, True), done
    assert rack.said("resume") == "commit acceptance was not suspended\n"


def test_finding_r13_a_suspension_ends_after_a_duration(rack: Rack) -> None:
    before = datetime.now(UTC)
    rack.said("suspend", *REASON, "--until", "1h30m")
    with closing(sqlite3.connect(rack.state / "ledger.sqlite")) as ledger:
        ((message,),) = ledger.execute("SELECT message FROM events ORDER BY id DESC LIMIT 1")
    until = datetime.fromisoformat(re.search(r"until (\S+Z)", message)[1])  # type: ignore[index]
    assert timedelta(minutes=89, seconds=58) < until - before < timedelta(minutes=90, seconds=30)


# stop and start


def test_e16_install_boots_stopped_from_a_shell_stay_stopped_until_they_are_allowed(rack: Rack) -> None:
    web = rack.add("web09", provision=1)
    rack.push()

    with rack.running() as instance:
        eventually(lambda: planned_phase(instance, web) == "Network")
        said = rack.said("stop-installs", *REASON)
        assert said.startswith("boots that write to disk are stopped by ") and said.endswith(": INC-4711\n")
        eventually(lambda: planned_phase(instance, web) == "Disk")
        assert boots(instance, web) == "disk"
        eventually(lambda: f"gitboot allow-installs --state {rack.state}" in rack.said("status"))
    told = rack.run_command("stop-installs", *REASON)
    assert (told.code, "no instance is running with this state directory" in told.err) == (Exit.PARTIAL, True), told
    with rack.running() as instance:
        assert planned_phase(instance, web) == "Disk"
        assert (
            rack.said("allow-installs") == "gitboot offers boots again\n1 server may boot from the network now: web09\n"
        )
        eventually(lambda: planned_phase(instance, web) == "Network")
    assert rack.said("allow-installs") == "no stop from gitboot stop-installs was in force\n"


@pytest.fixture
def left(rack: Rack) -> Blade:
    """A server that is to be installed, by a tree whose instance has ended."""
    web = rack.add("web09", provision=1)
    rack.push()
    with rack.running(*rack.spool_options) as instance:
        eventually(lambda: planned_phase(instance, web) == "Network")
    return web


def planned_phase(instance: Instance, blade: Blade) -> object:
    """Return the phase of the plan. A fetch of the boot script would consume the boot."""
    found = instance.get(f"/api/v1/servers/{blade.name}")
    return found.json()["phase"] if found.status_code == 200 else None


def has_phase(instance: Instance, blade: Blade, phase: str) -> bool:
    return planned_phase(instance, blade) == phase


def find_installs(url: str) -> dict[str, Any]:
    conditions = http_peers.get(f"{url}/api/v1/status").json()["conditions"]
    return next(each for each in conditions if each["type"] == "InstallsAllowed")


def test_e16_endpoints_stop_at_once_without_an_instance(rack: Rack, left: Blade) -> None:
    with served(rack.output, *map(str, rack.spool_options)) as (url, _):
        assert find_installs(url)["status"]
        told = rack.run_command("stop-installs", *REASON)
        assert (told.code, "no instance is running with this state directory" in told.err) == (Exit.PARTIAL, True), told
        script = get(url + left.entry).text
        assert "are stopped by" in script and "INC-4711 (Stopped)" in script and "kernel " not in script
        assert (find_installs(url)["status"], find_installs(url)["reason"]) == (False, "Stopped")
        ready = http_peers.get(f"{url}/readyz")
        assert (ready.status_code, ready.text.split("\n")[1].endswith("INC-4711")) == (200, True)
        assert f"gitboot allow-installs --state {rack.state}" in rack.said("status")
        assert "web09" in rack.said("allow-installs")
        assert find_installs(url)["status"]
        assert "kernel " in get(url + left.entry).text


def test_e16_a_stop_written_only_for_endpoints_reaches_the_ledger_later(rack: Rack, left: Blade) -> None:
    with closing(sqlite3.connect(rack.state / "ledger.sqlite", isolation_level=None)) as ledger:
        ledger.execute("BEGIN IMMEDIATE")
        told = rack.run_command("stop-installs", *REASON)
        assert (told.code, "gitboot could not record the stop in the ledger" in told.err) == (Exit.PARTIAL, True), told
    for _ in range(2):  # it outlives restarts
        with rack.running(*rack.spool_options) as instance:
            found = wait_for_condition(instance, "InstallsAllowed", status=False, reason="Stopped")
            assert found["message"].endswith(": INC-4711")
            eventually(partial(has_phase, instance, left, "Disk"))
            eventually(lambda: not left.stands)
            eventually(lambda: "\nheld back      1 because install boots are stopped\n" in rack.said("status"))
    with rack.running(*rack.spool_options) as instance:
        assert "web09" in rack.said("allow-installs")
        eventually(lambda: planned_phase(instance, left) == "Network")


def test_a_stop_that_ends_only_for_endpoints_is_reported(rack: Rack, left: Blade) -> None:
    with served(rack.output, *map(str, rack.spool_options)) as (url, _):
        rack.run_command("stop-installs", *REASON)
        with closing(sqlite3.connect(rack.state / "ledger.sqlite", isolation_level=None)) as ledger:
            ledger.execute("BEGIN IMMEDIATE")
            told = rack.run_command("allow-installs")
        assert told.code == Exit.PARTIAL, told
        assert "serve boots again, but gitboot could not remove the stop from the ledger: " in told.err
        assert "(Stopped)" not in get(url + left.entry).text


def test_e16_an_unwritable_directory_is_named_and_other_endpoints_still_stop(rack: Rack, left: Blade) -> None:
    """If OUTPUT is read-only, the stop reaches endpoints through the fetch log, and stays until it can be ended."""
    word = rack.output / "ops" / STOP_FILE
    (word / "in the way").mkdir(parents=True)
    with served(rack.output, *map(str, rack.spool_options)) as (url, _):
        told = rack.run_command("stop-installs", *REASON)
        assert (told.code, f"{word.parent} cannot be written" in told.err) == (Exit.PARTIAL, True), told
        assert "(Stopped)" in get(url + left.entry).text
        told = rack.run_command("allow-installs")
        assert (told.code, "the stop is still in effect for this folder" in told.err) == (Exit.PARTIAL, True), told
        assert "(Stopped)" in get(url + left.entry).text
        shutil.rmtree(word)
        assert "(Stopped)" not in get(url + left.entry).text


# suspend and resume


def test_a_suspended_instance_accepts_nothing_until_it_is_resumed(rack: Rack) -> None:
    until = format_soon(hours=1)
    assert rack.said("suspend", "--until", until, *REASON) == f"suspended commit acceptance until {until}: INC-4711\n"
    rack.add("web03")
    commit = rack.push()
    assert rack.once().code == Exit.SUSPENDED
    document = json.loads(rack.said("status", "-o", "json"))
    assert document["applied"]["commit"] != commit
    assert [each["type"] for each in document["conditions"] if not each["status"]] == ["AcceptingCommits"]
    assert rack.said("resume") == "resumed accepting commits\n"
    assert rack.said("resume") == "commit acceptance was not suspended\n"
    assert rack.once().code == Exit.FINE
    assert json.loads(rack.said("status", "-o", "json"))["applied"]["commit"] == commit


# Beside an instance that runs


def test_requests_reach_a_running_instance_at_once(rack: Rack) -> None:
    web = rack.blades["web01"]
    with rack.running() as instance:
        assert "recorded web01 as pending" in rack.said("records", "set", "web01", "pending", "--yes", *REASON)
        eventually(lambda: web.stands)
        assert boots(instance, web) == "flatcar-1"
        assert "recorded web01 as provisioned" in rack.said("records", "set", "web01", "provisioned", *REASON)
        eventually(lambda: not web.stands)
        rack.said("suspend", "--until", format_soon(hours=1), *REASON)
        found = wait_for_condition(instance, "AcceptingCommits", status=False, reason="Suspended")
        assert "INC-4711" in found["message"]
        rack.blades["web02"].provision = 2
        commit = rack.push("Reinstall web02")
        assert rack.run_command("reconcile").code == Exit.SUSPENDED
        assert (instance.status()["attempted"]["commit"], web.times_set) != (commit, 2)
        rack.said("resume")
        wait_for_condition(instance, "CommitAccepted", status=False, reason="GuardTripped")
        rack.said("approve", instance.status()["attempted"]["held"]["digest"], *REINSTALL, *REASON)
        eventually(lambda: rack.blades["web02"].stands)
        eventually(lambda: condition(instance, "CommitAccepted")["status"])
        assert f"running, process {instance.process.pid}" in rack.said("status")
    assert (web.times_set, rack.blades["web02"].times_set) == (1, 1)


# status


def test_status_counts_records_drift_and_bmcs(rack: Rack) -> None:
    rack.said("records", "set", "web01", "pending", "--yes", *REASON)
    rack.pool = tuple(text.replace("image: flatcar-1", "image: flatcar-2") for text in rack.pool)
    rack.push("Go on to flatcar-2")
    rack.once(*rack.spool_options)
    document = json.loads(rack.said("status", "-o", "json"))
    assert (document["records"], document["drift"]) == ({"Provisioned": 1, "Pending": 1}, {"ImageDrift": 1})
    assert document["bmcs"] == {"Applied": 1}
    lines = rack.said("status").splitlines()
    assert {
        "records        1 Pending, 1 Provisioned",
        "drift          1 ImageDrift",
        "BMCs           1 Applied",
    } <= set(lines)


# run --once


def test_run_once_ends_with_its_worst_result_and_status_shows_false_conditions_first(rack: Rack) -> None:
    codes = {"fine": rack.once().code}
    hold(rack)
    codes["held"] = rack.once().code
    push_invalid(rack)
    codes["invalid"] = rack.once().code
    lines = rack.said("status").splitlines()
    table = lines[lines.index("") + 1 : lines.index("", lines.index("") + 1)]
    assert table[1].split()[:3] == ["CommitAccepted", "false", "Invalid"]
    assert table[2].startswith("    ") and "bad.yaml" in table[2]
    assert all(" true " in line for line in table if not line.startswith(("CONDITION", "CommitAccepted", " ")))
    way_out = next(line for line in table if line.startswith("    gitboot "))  # in one line, however long, to be copied
    assert max(len(line) for line in lines if line != way_out) <= 100
    rack.said("suspend", "--until", format_soon(hours=1), *REASON)
    codes["suspended"] = rack.once().code
    shutil.move(rack.repository.bare, rack.folder / "away")
    codes["source"] = rack.once().code
    assert codes == {"fine": 0, "held": 4, "invalid": 3, "suspended": 7, "source": 6}


# Wrong state directories

COMMANDS = (
    "bmc get",
    "bmc diff",
    "bmc apply",
    "bmc resolve web01 --consumed --reason x",
    "records show",
    "records set web01 provisioned --reason x",
    "records import FILE --reason x",
    "approve 0 --guard maxReinstalls --reason x",
    "suspend --until 2099-01-01T00:00:00Z --reason x",
    "resume",
    "status",
    "events",
    "reconcile",
)
DATA = Path(__file__).parents[2] / "data"
RUNNING_ONLY = ("bmc apply", "reconcile")
STATUS_COMMANDS = ("status", "approve")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    with Rack(tmp_path_factory.mktemp("ended")) as made:
        made.add("web01")
        made.push()
        assert made.once().code == Exit.FINE
        yield made


def run_on_copy(state: Path, ended: Rack, command: str) -> CommandResult:
    words = [str(ended.output / "ops" / "records") if word == "FILE" else word for word in command.split()]
    done = run_command(*words, "--state", state)
    assert "Traceback" not in done.err
    return done


def list_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_state_directory_that_no_instance_used_is_named_and_not_changed(
    tmp_path: Path, ended: Rack, command: str
) -> None:
    for state in (tmp_path, tmp_path / "missing"):
        done = run_on_copy(state, ended, command)
        said = "no instance is running with" if command in RUNNING_ONLY else "no instance has run with"
        assert (done.code, done.out) == (Exit.USAGE, "")
        assert done.err.startswith(f"gitboot: {said} the state directory {state}")
        assert "gitboot run" in done.err  # the hint
    assert list_files(tmp_path) == []


def test_a_temporary_folder_that_is_not_usable_is_named(
    tmp_path: Path, ended: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for folder, said in (
        (str(tmp_path / "file"), "a part of this path is a file"),
        (None, "set TMPDIR to a directory"),
    ):
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "file")])
        done = run_on_copy(ended.state, ended, "records show")
        assert (done.code, str(tmp_path / "file") in done.err, said in done.err) == (Exit.USAGE, True, True), done


@pytest.mark.parametrize("command", ["events", "events --server web01", "history web01"])
def test_a_command_that_shows_events_does_not_migrate_the_ledger_of_an_earlier_version(
    tmp_path: Path, ended: Rack, command: str
) -> None:
    """An instance of the earlier version may still run, and could not read a ledger of a newer version."""
    state = Path(shutil.copytree(ended.state, tmp_path / "state"))
    ledger = state / "ledger.sqlite"
    ledger.unlink()
    with closing(sqlite3.connect(ledger)) as connection:
        connection.executescript((DATA / "ledgers" / "0.1.0.sql").read_text())
    before = ledger.read_bytes()
    done = run_on_copy(state, ended, command)
    assert done.code == Exit.FINE, done
    assert ledger.read_bytes() == before


@pytest.mark.parametrize("command", COMMANDS)
def test_a_state_directory_that_cannot_be_read_is_reported(tmp_path: Path, ended: Rack, command: str) -> None:
    (tmp_path / "file").touch()
    done = run_on_copy(tmp_path / "file" / "state", ended, command)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert "cannot be read: Not a directory" in done.err
    done = run_on_copy(tmp_path / "file", ended, command)
    assert (done.code, "is a file" in done.err) == (Exit.USAGE, True)


@pytest.mark.parametrize("command", [command for command in COMMANDS if command not in RUNNING_ONLY])
def test_a_damaged_file_is_named_by_its_path(tmp_path: Path, ended: Rack, command: str) -> None:
    state = tmp_path / "state"
    shutil.copytree(ended.state, state)
    (state / "ledger.sqlite").write_bytes(b"this is no ledger" * 99)
    (state / "status.json").write_text("[]")
    done = run_on_copy(state, ended, command)
    if command.startswith(STATUS_COMMANDS):
        assert done.code == Exit.USAGE
        problem = f"{state}/status.json is not a valid status file"
        assert done.err == f"gitboot: {problem}; `gitboot run` replaces the file at the next reconcile\n"
    else:
        assert done.code == Exit.FAULT
        assert done.err.startswith(f"gitboot: {state}/ledger.sqlite: the ledger cannot be read")
        assert "restore it from a backup" in done.err
    assert (state / "ledger.sqlite").read_bytes() == b"this is no ledger" * 99


TRIGGERED = datetime(2026, 11, 20, 12, 0, 0, 500, tzinfo=UTC)
BEFORE, AFTER = TRIGGERED.replace(microsecond=499), TRIGGERED.replace(microsecond=501)
OLD, NEW = "1" * 40, "2" * 40
HELD = HeldCommit(commit=NEW, digest="a" * 64, guards=("maxReinstalls",))  # type: ignore[arg-type]


def status(
    *false: str,
    attempted: str = NEW,
    accepted: str = NEW,
    began: datetime | None = AFTER,
    held: HeldCommit | None = None,
) -> Mapping[str, Any]:
    types = ("AcceptingCommits", "BmcsReachable", "CommitAccepted", "LedgerWritable", "Published", "SourceReady")
    conditions = (
        Condition(
            type=type,
            status=type not in false,
            reason="Reason",
            message=f"about {type}",
            last_transition_time=TRIGGERED,
        )
        for type in types
    )
    return Status(
        conditions=tuple(conditions),
        attempted=attempted,
        accepted=accepted,
        held=held,
        fetched=NEW,
        fetch_began=began,
    ).facts()


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        (status(), Exit.FINE, "Fetched 222222222222. The commit is accepted"),
        (status("BmcsReachable"), Exit.FINE, "The commit is accepted"),
        (status("SourceReady"), Exit.SOURCE, "The fetch failed (Reason): about SourceReady"),
        (status("SourceReady", attempted=OLD), Exit.SOURCE, "about SourceReady"),
        (status("CommitAccepted"), Exit.INVALID, "has not accepted it (Reason): about CommitAccepted"),
        (status("CommitAccepted", held=HELD), Exit.HELD, "has not accepted it (Reason): about CommitAccepted"),
        (status("AcceptingCommits", attempted=OLD), Exit.SUSPENDED, "has not accepted it: about Accepting"),
        (status("LedgerWritable"), Exit.PARTIAL, "LedgerWritable is false (Reason): about LedgerWritable"),
        (status("Published"), Exit.PARTIAL, "Published is false"),
    ],
)
def test_the_outcome_is_the_worst_of_the_fetch_the_commit_and_the_publication(
    found: Mapping[str, Any], code: Exit, words: str
) -> None:
    outcome = find_reconcile_outcome(found, TRIGGERED)
    assert outcome is not None
    assert (outcome[0], words in outcome[1]) == (code, True), outcome


@pytest.mark.parametrize(
    "found",
    [
        {},
        Status().facts(),
        status(began=None),
        status(accepted=OLD),
        status(began=BEFORE),
        status("SourceReady", began=BEFORE),
        status(attempted=OLD),
        status("CommitAccepted", attempted=OLD),
    ],
    ids=[
        *("nothing yet", "at the start", "no fetch", "a revert that is not judged", "an earlier fetch"),
        *("failed before", "evaluating", "held before"),
    ],
)
def test_there_is_no_outcome_until_the_commit_of_a_new_fetch_is_evaluated(found: Mapping[str, Any]) -> None:
    assert find_reconcile_outcome(found, TRIGGERED) is None


# events and records begin


def list_events(rack: Rack, *more: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in rack.said("events", "-o", "json", *more).splitlines()]


def test_finding_r13_events_are_chosen_by_number_and_time(rack: Rack) -> None:
    known = list_events(rack)
    assert len(known) > 3
    assert list_events(rack, "-n", "2") == known[-2:]
    assert list_events(rack, "--tail", "0") == []
    assert list_events(rack, "-n", "1000") == known
    rack.age(f"UPDATE events SET at = '{format_soon(hours=-3)}' WHERE id < (SELECT max(id) FROM events)")
    assert list_events(rack, "--since", "2h") == known[-1:]
    assert len(list_events(rack, "--since", "1d", "-n", "3")) == 3
    assert list_events(rack, "--since", format_soon(hours=1)) == []
    wrong = rack.run_command("events", "--since", "yesterday")
    assert (wrong.code, "a duration before now: 2h, 30m, 1d12h" in " ".join(wrong.err.split())) == (Exit.USAGE, True)


def test_events_of_a_server_include_the_requests_that_name_it(rack: Rack) -> None:
    rack.said("records", "set", "web01", "pending", "--yes", *REASON)
    rack.said("records", "set", "web01", "web02", "provisioned", *REASON, "--yes")
    rack.said("records", "confirm-clock", *REASON)
    requested = {
        name: [each["message"].partition(": ")[2] for each in list_events(rack, "--server", name) if "request" in each]
        for name in ("web01", "web02")
    }
    assert requested == {
        "web01": [
            "recorded web01 as pending: gitboot installs the server when its plan allows (INC-4711)",
            "set 2 records (INC-4711)",
        ],
        "web02": ["set 2 records (INC-4711)"],
    }


def test_finding_r13_events_are_followed(rack: Rack) -> None:
    command = [sys.executable, "-m", "gitboot", "events", "--state", str(rack.state), "-f", "-n", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        rack.said("records", "set", "web01", "pending", "--yes", *REASON)  # perhaps before the first look, so set again
        reader, lines = following.stdout, []
        eventually(lambda: rack.said("records", "confirm-clock", *REASON) and select.select([reader], [], [], 1)[0])
        lines.append(reader.readline())
        following.send_signal(signal.SIGINT)
        assert following.wait() == Exit.INTERRUPTED
    assert " Requested " in lines[0] and "INC-4711" in lines[0]


def test_events_are_followed_only_until_the_reader_closes_the_pipe(rack: Rack) -> None:
    """`gitboot events -f | head -1` did not end."""
    command = [sys.executable, "-m", "gitboot", "events", "--state", str(rack.state), "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as following:
        try:
            assert following.stdout is not None and following.stdout.readline()
            following.stdout.close()
            assert following.wait(60) == Exit.FINE
        finally:
            following.kill()


@pytest.fixture
def unverified(tmp_path: Path) -> Iterator[Rack]:
    """Two servers, and an instance with a new ledger."""
    with Rack(tmp_path) as made:
        made.named = False
        made.add("web01", provision=1)
        made.add("web02", provision=1)
        made.push()
        assert made.once(*made.spool_options).code == Exit.PARTIAL
        yield made


def begin_records(rack: Rack, records: Mapping[str, Record]) -> tuple[CommandResult, list[list[str]]]:
    """The outcome of `records begin FILE` without a terminal, and the rows of its table."""
    file = rack.folder / "records.json"
    file.write_text(
        json.dumps({"items": [{"uuid": uuid, **make_record_fields(each)} for uuid, each in records.items()]})
    )
    done = rack.run_command("records", "begin", file)
    return done, [re.split(r" {2,}", line) for line in done.out.splitlines() if "  " in line]


def test_finding_r17_begin_shows_what_happens_to_each_server_and_asks_only_to_install(unverified: Rack) -> None:
    installed, board = Record(provision=1, image="flatcar-1"), make_uuid("not yet described")
    known = unverified.blades["web01"].uuid
    asked, rows = begin_records(unverified, {known: Record()})
    assert (asked.code, "add --yes to confirm" in asked.err) == (Exit.USAGE, True)
    assert rows == [
        ["SERVER", "RECORD", "WHAT HAPPENS"],
        ["web01", "pending", "will be installed"],
        ["web02", "-", "stays unknown and is not installed"],
    ]
    assert "\n1 server would be installed: web01\n1 server would stay unknown" in asked.out
    done, rows = begin_records(unverified, {known: installed, board: installed})
    assert (done.code, done.err) == (Exit.FINE, "")
    assert rows == [
        ["SERVER", "RECORD", "WHAT HAPPENS"],
        ["web02", "-", "stays unknown and is not installed"],
        [board, "provision 1, flatcar-1", "no Server document yet"],
        ["web01", "provision 1, flatcar-1", "does not change"],
    ]
    steps = {name: item["step"] for name, item in show_records(unverified).items()}
    assert steps == {"web01": "Provisioned", "web02": "Unknown"}


def test_begin_does_not_announce_an_installation_that_has_begun_and_does_not_ask_about_it(unverified: Rack) -> None:
    boot = StepEvidence(datetime(2026, 1, 2, tzinfo=UTC), "v1/boot/52-54-00-1f-94-fe/boot.ipxe", "10.0.0.7")
    begun = Record(attempts=(InstallAttempt(key="provision/1", image="flatcar-1", boots=(boot,)),))
    done, rows = begin_records(unverified, {unverified.blades["web01"].uuid: begun})
    assert (done.code, done.err) == (Exit.FINE, "")
    assert rows == [
        ["SERVER", "RECORD", "WHAT HAPPENS"],
        ["web01", "pending", "was being installed, so check it"],
        ["web02", "-", "stays unknown and is not installed"],
    ]
    assert "\n0 servers would be installed\n1 server would stay unknown" in done.out
    assert show_records(unverified)["web01"]["step"] == "Attempted"
