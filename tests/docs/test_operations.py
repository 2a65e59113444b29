"""The incidents of docs/how-to/something-is-wrong.md and of the pages beside it, with BMCs over HTTP."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import pytest

from gitboot.cli.main import Exit
from tests.helpers.fleets import make_uuid, write_configuration
from tests.helpers.instance_in_process import read_published_records
from tests.helpers.instance_with_bmcs import BASE_URL, PASSWORD, Blade, Rack, boots, condition, wait_for_condition
from tests.helpers.redfish_double.server import Status
from tests.helpers.running_instance import Instance, copy_live_folder, eventually, read_size, running

ONCE = ("Once", "Pxe")
REASON = ("--reason", "INC-4711")


def find_events(instance: Instance, type: str) -> list[str]:
    return [event["message"] for event in instance.events if event["type"] == type]


def until_applied(instance: Instance, commit: str) -> None:
    eventually(lambda: instance.status()["applied"]["commit"] == commit)


def until_confirmed(instance: Instance, blade: Blade) -> None:
    eventually(lambda: blade.override == ONCE and find_events(instance, "OverrideConfirmed"))


def install(instance: Instance, blade: Blade) -> None:
    """Reset a machine whose override is set, and let it fetch its boot."""
    until_confirmed(instance, blade)
    blade.machine.run_through()
    assert blade.machine.boots[-1].target == "Pxe"
    assert boots(instance, blade) == "flatcar-1"
    eventually(lambda: find_events(instance, "Provisioned"))


def _find_attempted(instance: Instance, name: str) -> dict[str, Any] | None:
    """Return the API entry of a server once an attempt to install it is shown."""
    shown: dict[str, Any] = instance.get(f"/api/v1/servers/{name}").json()
    return shown if shown["provisioned"]["attempts"] else None


def read_record(rack: Rack, blade: Blade) -> tuple[int | None, str | None] | None:
    """Return the number and the evidence of a server in `gitboot records show`, or None if it is unverified."""
    (item,) = json.loads(rack.said("records", "show", blade.name, "-o", "json"))["items"]
    return (item["record"]["provision"], item["record"]["evidence"]) if item["known"] else None


def is_consumed(rack: Rack) -> bool:
    (item,) = json.loads(rack.said("records", "show", "-o", "json"))["items"]
    return item["record"]["consumedAt"] is not None


def read_tree(rack: Rack) -> dict[str, bytes]:
    files = (path for path in sorted(rack.output.rglob("*")) if path.is_file() and ".gitboot" not in path.parts)
    return {str(path): path.read_bytes() for path in files}


# A machine is to be reinstalled


def test_a_machine_is_reinstalled_once_on_purpose_with_an_acknowledgement(rack: Rack) -> None:
    web, db = rack.add("web01", provision=1), rack.add("db01", provision=1)
    rack.push()
    with rack.running(records="adopt") as instance:
        assert (boots(instance, web), web.times_set) == ("disk", 0)
        web.provision = 2
        commit = rack.push("Reinstall web01")
        wait_for_condition(instance, "CommitAccepted", status=False, reason="GuardTripped")
        assert (boots(instance, web), web.times_set) == ("disk", 0)
        digest = instance.status()["attempted"]["held"]["digest"]
        rack.said("approve", digest, "--guard", "maxReinstalls", *REASON)
        until_applied(instance, commit)
        install(instance, web)
        shown = eventually(lambda: _find_attempted(instance, "web01"))  # once the record is published, too
        given = datetime.fromisoformat(shown["provisioned"]["attempts"][0]["boots"][0]["at"])
        assert shown["phase"] == "Network"
        assert datetime.fromisoformat(shown["nextTransition"]) == given + timedelta(minutes=1)
        rack.said("bmc", "apply")
        eventually(lambda: rack.bmc_get()["web01"]["next"] == "Leave")
        assert (web.times_set, db.times_set, web.stands) == (1, 0, False)


def test_an_interrupted_installation_is_repeated_at_the_request_of_an_operator(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    with rack.running(records="fresh") as instance:
        install(instance, web)
        rack.said("records", "set", "web01", "pending", "--yes", *REASON)
        eventually(lambda: web.override == ONCE)
        assert (web.times_set, boots(instance, web)) == (2, "flatcar-1")


def test_a_machine_that_was_installed_by_hand_is_not_installed(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    with rack.running(records="fresh") as instance:
        until_confirmed(instance, web)
        rack.said("records", "set", "web01", "provisioned", *REASON)
        eventually(lambda: not web.stands)
        assert (web.times_set, boots(instance, web)) == (1, "disk")
        web.machine.run_through()
        assert [boot.target for boot in web.machine.boots] == ["None"]
        assert read_record(rack, web) == (1, "Operator")


# The condition has the reason NeedsOperator


@pytest.mark.parametrize(("word", "times_set"), [("--not-set", 1), ("--consumed", 0)])
def test_an_operator_is_asked_what_happened_to_an_override(rack: Rack, word: str, times_set: int) -> None:
    web = rack.add_unverified("web01")
    with rack.running() as instance:
        wait_for_condition(instance, "Bmc/web01", status=False, reason="NeedsOperator")
        shown = rack.bmc_get()["web01"]
        assert (shown["next"], shown["why"].partition(":")[0]) == ("AskOperator", "NeedsOperator")
        rack.said("bmc", "resolve", "web01", word, *REASON)
        eventually(lambda: condition(instance, "Bmc/web01") == {})
        assert (web.times_set, web.stands) == (times_set, bool(times_set))
        assert rack.bmc_get()["web01"]["next"] == "Leave"
        assert boots(instance, web) == "flatcar-1"  # in both cases it may continue what it began


@pytest.mark.parametrize(("word", "entry"), [("provisioned", "disk"), ("pending", "flatcar-1")])
def test_an_override_that_was_consumed_without_evidence_waits_for_an_operator(
    rack: Rack, word: str, entry: str
) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    with rack.running(records="fresh") as instance:
        until_confirmed(instance, web)
        web.machine.run_through()  # and its loader fetches nothing
        rack.said("bmc", "apply")
        eventually(lambda: is_consumed(rack))
    rack.age("UPDATE records SET consumed_at = '2026-11-01T00:00:00Z'")
    with rack.running() as instance:
        found = wait_for_condition(instance, "InstallsCompleted", status=False, reason="NeedsOperator")
        assert "web01" in found["message"]
        assert (web.times_set, boots(instance, web)) == (1, "disk")
        rack.said("records", "set", "web01", word, *REASON)
        wait_for_condition(
            instance, "InstallsCompleted", status=True, reason="Completed"
        )  # before a fetch begins an installation
        eventually(lambda: boots(instance, web) == entry)
        if word == "pending":
            eventually(lambda: web.times_set == 2)
        assert web.times_set == (1 if word == "provisioned" else 2)


# A BMC or a motherboard was replaced


def replace_bmc(rack: Rack, blade: Blade) -> Blade:
    """Push another BMC of the same machine; return what the old one is from now on."""
    old = Blade(name=blade.name, machine=blade.machine, bmc=blade.bmc, uuid=blade.uuid)
    blade.machine, blade.bmc = rack.bmc(blade.name)
    rack.push("Replace the BMC of web01")
    return old


def test_no_override_is_set_on_a_new_bmc_before_the_old_one_is_cleared(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    with rack.running(records="fresh") as instance:
        until_confirmed(instance, web)
        web.bmc.fault(Status(status=503), times=1000)
        old = replace_bmc(rack, web)
        wait_for_condition(instance, "Bmc/web01", status=False, reason="Waiting")
        assert (web.machine.requests, old.override) == ([], ONCE)
        old.bmc.heal()
        rack.said("bmc", "apply")
        eventually(lambda: web.override == ONCE)
        assert (old.stands, old.times_set, web.times_set) == (False, 1, 1)


@pytest.mark.parametrize(("word", "times_set"), [("--not-set", 1), ("--consumed", 0)])
def test_an_operator_resolves_the_override_on_an_old_bmc_that_is_gone(rack: Rack, word: str, times_set: int) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    with rack.running(records="fresh") as instance:
        until_confirmed(instance, web)
        web.bmc.die()
        old = replace_bmc(rack, web)
        wait_for_condition(instance, "Bmc/web01", status=False, reason="Waiting")
        assert web.machine.requests == []
        rack.said("bmc", "resolve", "web01", word, *REASON)
        eventually(lambda: condition(instance, "Bmc/web01") == {})
        rack.said("bmc", "apply")
        eventually(lambda: web.machine.requests)
        eventually(lambda: rack.bmc_get()["web01"]["next"] == "Leave")
        assert (web.times_set, old.times_set, boots(instance, web)) == (times_set, 1, "flatcar-1")


@pytest.mark.parametrize(("word", "times_set", "entry"), [("provisioned", 0, "disk"), ("pending", 1, "flatcar-1")])
def test_a_new_motherboard_makes_its_server_unverified_until_an_operator_confirms_it(
    rack: Rack, word: str, times_set: int, entry: str
) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    with rack.running(records="adopt") as instance:
        web.uuid = web.machine.uuid = make_uuid("another board")
        until_applied(instance, rack.push("Replace the motherboard of web01"))
        found = wait_for_condition(instance, "RecordsVerified", status=False, reason="UnverifiedServers")
        assert "web01" in found["message"] and found["remedy"].startswith("gitboot records set web01 provisioned ")
        assert (read_record(rack, web), web.times_set, boots(instance, web)) == (None, 0, "disk")
        assert "new motherboard" in eventually(lambda: find_events(instance, "ServerUnknown"))[0]
        rack.said("records", "set", "web01", word, *REASON)
        wait_for_condition(instance, "RecordsVerified", status=True, reason="Verified")
        eventually(lambda: (web.times_set, boots(instance, web)) == (times_set, entry))


# A machine is renamed


def read_script_lines(instance: Instance, blade: Blade) -> list[str]:
    """Return a boot script without its comments, which name the server and its plan."""
    return [line for line in instance.get(blade.entry).text.splitlines() if not line.startswith("# ")]


def test_a_renamed_machine_keeps_its_record_and_boot_script_and_no_override_is_set(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    with rack.running(records="adopt") as instance:
        before, entry = read_record(rack, web), read_script_lines(instance, web)
        rack.blades = {"shop01": web}
        web.name = "shop01"
        until_applied(instance, rack.push("Rename web01"))
        renamed = [line.replace("web01", "shop01") for line in entry]  # on the screen
        assert (boots(instance, web), read_script_lines(instance, web)) == ("disk", renamed)
        assert (read_record(rack, web), web.machine.writes) == (before, [])
        assert condition(instance, "RecordsVerified")["status"]


# The ledger is lost, older, or damaged


def install_servers(rack: Rack) -> tuple[Blade, Blade]:
    """One installed server and one adopted server, by an instance that has ended."""
    rack.named = False
    web, db = rack.add("web01", provision=1), rack.add("db01")
    rack.push()
    rack.once(records="fresh")
    rack.said("records", "set", "web01", "provisioned", *REASON)
    assert rack.once().code == Exit.FINE
    return web, db


def test_a_lost_ledger_leaves_the_output_tree_unchanged_until_it_is_begun(rack: Rack) -> None:
    web, db = install_servers(rack)
    before = read_tree(rack)
    shutil.rmtree(rack.state)
    for _ in range(2):
        with rack.running() as instance:
            wait_for_condition(instance, "Published", status=False, reason="ForeignTree")
            wait_for_condition(instance, "RecordsVerified", status=False, reason="ForeignLedger")
            assert (boots(instance, web), read_tree(rack)) == ("disk", before)
            refused = rack.run_command("records", "set", "web01", "pending", *REASON)
            assert (refused.code, "gitboot records begin" in refused.err) == (Exit.USAGE, True)
            refused = rack.run_command("records", "begin", "fresh", "--yes")
            assert (refused.code, "`fresh` is allowed only for a new ledger" in refused.err) == (Exit.USAGE, True)
    with rack.running(records=rack.output / "ops" / "records") as instance:
        wait_for_condition(instance, "RecordsVerified", status=True, reason="Verified")
        wait_for_condition(instance, "Published", status=True, reason="Published")
        assert read_record(rack, web) == (1, "Operator")
    assert (web.machine.writes, db.machine.writes) == ([], [])


def test_a_lost_ledger_may_begin_with_all_servers_adopted(rack: Rack) -> None:
    web, db = install_servers(rack)
    shutil.rmtree(rack.state)
    with rack.running(records="adopt") as instance:
        wait_for_condition(instance, "RecordsVerified", status=True, reason="Verified")
        assert [boots(instance, blade) for blade in (web, db)] == ["disk", "disk"]
        assert read_published_records(rack.output).count(b"Adopted") == 2
    assert (web.machine.writes, db.machine.writes) == ([], [])


def test_e10_records_of_last_week_are_rejected_if_the_output_tree_has_newer_ones(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    rack.once(*rack.spool_options, records="fresh")
    last_week = shutil.copytree(rack.output / "ops" / "records", rack.folder / "last-week")
    rack.said("records", "set", "web01", "provisioned", *REASON)
    rack.once(*rack.spool_options)
    shutil.rmtree(rack.state)
    assert rack.once(*rack.spool_options).code == Exit.PARTIAL
    refused = rack.run_command("records", "begin", last_week, "--yes")
    assert (refused.code, "so the instance is not active. Set this instance's ledger" in refused.err) == (
        Exit.USAGE,
        True,
    )
    rack.push("Name the new one")
    assert rack.once(*rack.spool_options).code == Exit.HELD
    assert rack.once(*rack.spool_options, "--allow-takeover").code == Exit.PARTIAL
    refused = rack.run_command("records", "begin", last_week, "--yes")
    assert refused.code == Exit.USAGE
    assert "the published tree has newer records for 1 server: web01" in refused.err
    rack.said("records", "begin", rack.output / "ops" / "records")
    assert rack.once(*rack.spool_options).code == Exit.FINE
    assert (read_record(rack, web), web.times_set) == (
        (1, "Operator"),
        1,
    )  # by the first instance, before the beginning


def test_e33_begin_fresh_lists_the_servers_that_it_installs_and_asks_for_confirmation(rack: Rack) -> None:
    web, _ = rack.add("web01", provision=1), rack.add("db01")
    rack.named = False
    rack.push()
    assert rack.once(*rack.spool_options).code == Exit.PARTIAL
    asked = rack.run_command("records", "begin", "fresh")  # there is no terminal
    assert (asked.code, "1 server would be installed: web01" in asked.out) == (Exit.USAGE, True)
    line = f"provisioning: {{ledger: {rack.ledger()}}}"
    assert f"add this to the Fleet's spec: {line}\n" in asked.out
    assert "--yes" in asked.err
    assert rack.once(*rack.spool_options).code == Exit.PARTIAL
    assert (read_record(rack, web), web.times_set) == (None, 0)
    assert "NewLedger: the ledger begins with" in rack.said("records", "begin", "fresh", "--yes")
    assert "is verified already" in rack.said("records", "begin", "adopt")  # one event
    rack.named = True
    rack.push()
    rack.once(*rack.spool_options)
    assert (read_record(rack, web), web.times_set) == ((None, None), 1)


@pytest.mark.parametrize("mark", ["stands beside it", "went too"])
def test_a_ledger_from_an_older_backup_is_detected_and_sets_nothing(rack: Rack, mark: str) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    backup = rack.folder / "backup.sqlite"
    with rack.running(records="fresh") as instance:
        with (
            closing(sqlite3.connect(rack.state / "ledger.sqlite")) as ledger,
            closing(sqlite3.connect(backup)) as copy,
        ):
            ledger.backup(copy)
        install(instance, web)
        eventually(lambda: b"Fetched" in read_published_records(rack.output))
    for left in rack.state.glob("ledger.sqlite*"):
        left.unlink()
    shutil.copy(backup, rack.state / "ledger.sqlite")
    if mark == "went too":
        (rack.state / "ledger.mark").unlink()
    kept = shutil.copytree(rack.output / "ops" / "records", rack.folder / "kept")
    with rack.running() as instance:
        wait_for_condition(instance, "RecordsVerified", status=False, reason="RestoredLedger")
        assert (boots(instance, web), web.times_set) == ("disk", 1)
    with rack.running(records=kept) as instance:
        wait_for_condition(instance, "RecordsVerified", status=True, reason="Verified")
        assert read_record(rack, web) == (1, "Fetched")
    assert web.times_set == 1


@pytest.mark.parametrize("is_host_lost", [False, True])
@pytest.mark.parametrize("number", [0, 1])
def test_a_number_that_was_lowered_since_the_backup_withdraws_the_installation(
    rack: Rack, number: int, is_host_lost: bool
) -> None:
    web, backup = rack.add("web01", provision=2), rack.folder / "backup.sqlite"
    rack.push()
    rack.once(*rack.spool_options, records="fresh")
    with closing(sqlite3.connect(rack.state / "ledger.sqlite")) as ledger, closing(sqlite3.connect(backup)) as copy:
        ledger.backup(copy)
    before = shutil.copytree(rack.output / "ops" / "records", rack.folder / "before")
    web.provision = number
    rack.push("Do not install it")
    for _ in range(2):  # the fetches of the offered boot come first
        rack.once(*rack.spool_options)
    assert read_record(rack, web) == (number, "Adopted")
    if is_host_lost:
        shutil.rmtree(rack.output)
        for path in rack.state.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for left in rack.state.glob("ledger.sqlite*"):
        left.unlink()
    shutil.copy(backup, rack.state / "ledger.sqlite")
    assert rack.once(*rack.spool_options).code == Exit.PARTIAL
    if is_host_lost:
        rack.said("records", "begin", before)
    else:
        for older in ("as-recorded", before):
            refused = rack.run_command("records", "begin", older, "--yes")
            assert "the published tree has newer records for 1 server: web01" in refused.err
        rack.said("records", "begin", rack.output / "ops" / "records")
    assert rack.once(*rack.spool_options).code == Exit.FINE
    assert (read_record(rack, web), web.times_set) == ((number, "Adopted"), 1)


@pytest.mark.parametrize("said", ["what the tree knew", "what it knew before"])
def test_an_older_ledger_begins_once_even_if_later_fetches_are_still_in_the_fetch_log(rack: Rack, said: str) -> None:
    """A server with a served boot and no report becomes unverified; all others get the record that was named."""
    web, other = rack.add("web01"), rack.add("web02")
    rack.push()
    ledger, spool, backup = rack.state / "ledger.sqlite", rack.state / "spool", rack.folder / "backup.sqlite"
    with rack.running(*write_configuration(max_reinstalls=1), records="fresh") as instance:
        with closing(sqlite3.connect(ledger)) as theirs, closing(sqlite3.connect(backup)) as copy:
            theirs.backup(copy)
        before = copy_live_folder(rack.output / "ops" / "records", rack.folder / "before")
        web.provision = 1
        rack.push("Install it")
        install(instance, web)
        given = {path.name: path.read_bytes() for path in spool.glob("*.jsonl")}
        assert any(given.values())
        eventually(lambda: b"Fetched" in read_published_records(rack.output))
    for left in rack.state.glob("ledger.sqlite*"):
        left.unlink()
    shutil.copy(backup, ledger)
    for name, lines in given.items():
        (spool / name).write_bytes(lines)
    known = shutil.copytree(rack.output / "ops" / "records", rack.folder / "known")
    is_told = said == "what the tree knew"
    if not is_told:
        shutil.rmtree(rack.output / "ops" / "records")
    with rack.running(records=known if is_told else before) as instance:
        wait_for_condition(
            instance, "RecordsVerified", status=is_told, reason="Verified" if is_told else "UnverifiedServers"
        )
        eventually(lambda: not any(read_size(path) for path in spool.glob("*.jsonl") if path.name in given))
        assert condition(instance, "RecordsVerified")["status"] is is_told
        assert read_record(rack, other) == (0, "Adopted")
        assert read_record(rack, web) == ((1, "Fetched") if is_told else None)
        if is_told:
            assert not find_events(instance, "ServerUnknown")
        else:
            eventually(lambda: find_events(instance, "ServerUnknown"))
    assert web.times_set == 1


def test_a_damaged_ledger_is_set_aside_and_the_records_stay_unverified_until_it_is_begun(rack: Rack) -> None:
    web, _ = install_servers(rack)
    (rack.state / "ledger.sqlite").write_bytes(b"this is no ledger" * 100)
    kept = shutil.copytree(rack.output / "ops" / "records", rack.folder / "kept")
    with rack.running() as instance:
        assert (rack.state / "ledger.sqlite.damaged-1").exists()
        wait_for_condition(instance, "RecordsVerified", status=False, reason="DamagedLedger")
        refused = rack.run_command("records", "begin", "fresh", "--yes")
        assert (refused.code, "`fresh` is allowed only for a new ledger" in refused.err) == (Exit.USAGE, True)
        assert (boots(instance, web), web.times_set) == ("disk", 0)
    with rack.running(records=kept) as instance:
        wait_for_condition(instance, "RecordsVerified", status=True, reason="Verified")
        assert read_record(rack, web) == (1, "Operator")
    assert web.machine.writes == []


# Many BMCs fail at once


def test_after_many_bmcs_failed_the_others_are_left_alone_until_the_cause_is_fixed(rack: Rack) -> None:
    blades = [rack.add(f"web{number:02}", provision=1) for number in range(6)]
    rack.push()
    rack.give_password("wrong")
    with rack.running(*write_configuration(bmc_failures=3, bmc_parallel=1), records="fresh") as instance:
        found = wait_for_condition(instance, "BmcsReachable", status=False, reason="FailuresInARow")
        assert "gitboot does not set boot overrides until a BMC responds" in found["message"]
        eventually(lambda: "the last 6 BMC tasks failed" in condition(instance, "BmcsReachable")["message"])
        asked = [len(blade.machine.requests) for blade in blades]
        rack.said("reconcile")
        assert [len(blade.machine.requests) for blade in blades] == asked  # asking on would lock accounts
        rack.give_password(PASSWORD)
        rack.said("bmc", "apply")
        eventually(lambda: all(blade.override == ONCE for blade in blades))
        wait_for_condition(instance, "BmcsReachable", status=True, reason="Reachable")
        assert [blade.times_set for blade in blades] == [1] * 6


# An instance must become a standby


def test_an_instance_that_the_fleet_does_not_name_serves_and_publishes_but_sets_nothing(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    with rack.running(records="adopt") as first:
        identity = json.loads(rack.said("status", "-o", "json"))["ledger"]
        rack.settings = f"{BASE_URL}, provisioning: {{ledger: {identity}}}"
        until_applied(first, rack.push("Name the ledger that acts"))
        other, given = rack.folder / "other", ("--credentials", str(rack.credentials))
        with running(rack.repository.bare, other, *given, ready=False) as second:
            found = wait_for_condition(second, "LedgerNamed", status=False, reason="AnotherLedger")
            assert identity in found["message"]
            assert [second.get(path).status_code for path in (web.entry, "/readyz")] == [503, 503]
            assert not list((other / "output").rglob("boot.ipxe"))
            assert boots(first, web) == "disk"
        assert web.machine.requests == []
