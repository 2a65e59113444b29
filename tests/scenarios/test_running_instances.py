"""Running instances at their limits: a ledger that takes no write, and a Fleet that names another one; with BMCs."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from socket import gethostname

import pytest

from gitboot.cli.main import Exit, find_exit_code
from gitboot.errors import LockedByAnother
from gitboot.fetchlog.spool import list_files
from tests.helpers.fleets import make_uuid
from tests.helpers.forked_commands import RUN_FIRST, SHORT_LOCK_TIMEOUT
from tests.helpers.instance_with_bmcs import BASE_URL, Rack, boots, condition, run_command, wait_for_condition
from tests.helpers.postgresql import PostgresServer, postgresql
from tests.helpers.running_instance import Instance, eventually, locked_ledger, running


@contextmanager
def server_stopped(server: PostgresServer) -> Iterator[None]:
    server.stop(signal.SIGQUIT)
    yield
    server.start()


def wait_for_reconciles(instance: Instance) -> None:
    """Wait for two more reconciles that find the ledger as it is."""
    before = len(list_failures(instance))
    eventually(lambda: len(list_failures(instance)) >= before + 2)


def list_failures(instance: Instance) -> list[str]:
    return [event["message"] for event in instance.events if event["type"] == "LedgerFailed"]


def test_e3_while_the_ledger_cannot_be_written_nothing_is_set_and_nothing_is_lost(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_FIRST, SHORT_LOCK_TIMEOUT)
    check_no_intake(rack, lambda: locked_ledger(rack.state), "locked")


def test_e3_while_its_postgresql_is_down_nothing_is_set_and_nothing_is_lost(rack: Rack) -> None:
    with postgresql() as server:
        rack.address = server.address()
        ledger = ("--ledger", rack.address.url)
        check_no_intake(rack, lambda: server_stopped(server), "the ledger cannot be (read|written)", *ledger)
        with rack.running(*ledger) as first:
            eventually(lambda: first.status()["records"] == {"Pending": 1, "Provisioned": 1})
            places = ("--out", rack.folder / "other", "--state", rack.folder / "elsewhere")
            done = run_command("run", rack.repository.bare, *places, *ledger, "--once")
            assert done.code == find_exit_code(LockedByAnother(""))
            assert f"is in use by the instance {gethostname()}:{rack.state}" in done.err


def test_finding_r18_status_api_and_metrics_agree_on_a_ledger_that_cannot_be_written(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_FIRST, SHORT_LOCK_TIMEOUT)
    rack.add("web01", provision=1)
    rack.push()
    with rack.running("--accept-filesystem", "tmpfs", records="fresh") as instance:
        for failure, expected in ((locked_ledger(rack.state), False), (nullcontext(), True)):
            with failure:
                if not expected:
                    rack.add("web02", provision=1)
                    rack.push("One more server")
                reason = "Writable" if expected else "Failed"
                wait_for_condition(instance, "LedgerWritable", status=expected, reason=reason)
                shown = run_command("status", "--state", rack.state, "-o", "json").json["conditions"]
                api = instance.get("/api/v1/status").json()["conditions"]
                for conditions in (shown, api):
                    assert [each["status"] for each in conditions if each["type"] == "LedgerWritable"] == [expected]
                sample = f'gitboot_condition{{status="{str(expected).lower()}",type="LedgerWritable"}} 1.0'
                eventually(lambda sample=sample: sample in instance.get("/metrics").text)  # type: ignore[misc]


def check_no_intake(rack: Rack, failure: Callable[[], AbstractContextManager[None]], why: str, *ledger: str) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    spool = rack.folder / "spool"
    with rack.running("--spool", spool, "--accept-filesystem", "tmpfs", *ledger, records="fresh") as instance:
        eventually(lambda: web.stands)
        with failure():
            web.machine.run_through()
            is_given = "flatcar-1" in instance.get(web.entry).text
            assert is_given is not bool(ledger), "where hosts share a ledger, it is recorded there what is given"
            assert bool([path for path in list_files(spool) if path.read_bytes()]) is is_given
            new = rack.add("web02", provision=1)
            rack.push("One more server")
            wait_for_condition(instance, "LedgerWritable", status=False, reason="Failed")
            wait_for_reconciles(instance)
            assert (web.times_set, new.times_set) == (1, 0), "no intent stands recorded"
            assert instance.status()["records"] == {"Pending": 1}
            kept = [path for path in list_files(spool) if web.entry.encode() in path.read_bytes()]
            assert bool(kept) is is_given, "nothing is forgotten"
            assert re.search(why, list_failures(instance)[-1])
        wait_for_condition(instance, "LedgerWritable", status=True, reason="Writable")
        eventually(lambda: new.stands)
        if not is_given:
            eventually(lambda: "flatcar-1" in instance.get(web.entry).text)
        eventually(lambda: instance.status()["records"] == {"Pending": 1, "Provisioned": 1})
        assert (web.times_set, new.times_set) == (1, 1)


def test_e15_of_two_instances_the_named_one_is_active_and_after_a_typo_neither_is(
    rack: Rack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    theirs = ("--credentials", str(rack.credentials), "--poll", "3600")
    with rack.running(records="fresh") as one:
        eventually(lambda: web.stands)
        ours = one.status()["ledger"]
        rack.settings = f"{BASE_URL}, provisioning: {{ledger: {ours}}}"
        rack.push("Name this one")
        wait_for_condition(one, "CommitAccepted", status=True, reason="Valid")
        with running(rack.repository.bare, tmp_path / "two", *theirs, ready=False) as two:
            eventually(lambda: (tmp_path / "two/state/status.json").exists())
            wait_for_condition(two, "LedgerNamed", status=False, reason="AnotherLedger")
            refused = run_command("records", "begin", "fresh", "--yes", "--state", tmp_path / "two/state")
            assert (refused.code, f"the Fleet names the ledger {ours}, but this instance has" in refused.err) == (
                Exit.USAGE,
                True,
            )
            rack.settings = f"{BASE_URL}, provisioning: {{ledger: {make_uuid('typo')}}}"
            rack.push("Name nobody")
            wait_for_condition(one, "LedgerNamed", status=False, reason="BecameStandby")
            eventually(lambda: not web.stands), "what it has set is withdrawn while it stands back"
            assert (boots(one, web), web.times_set) == ("disk", 1)
            assert one.get("/readyz").status_code == 200, "machines are answered as before, but for installers"
            assert two.get(web.entry).status_code == 503
            rack.settings = f"{BASE_URL}, provisioning: {{ledger: {two.status()['ledger']}}}"
            named = rack.push("Name the other")
            for instance, state in ((one, rack.state), (two, tmp_path / "two/state")):
                approve(instance, state, named)
            wait_for_condition(two, "RecordsVerified", status=False, reason="NewLedger")
            assert web.times_set == 1, "a new ledger knows nothing"
            assert run_command("records", "begin", "fresh", "--yes", "--state", tmp_path / "two/state").code == 0
            eventually(lambda: web.stands)
            eventually(lambda: boots(two, web) == "flatcar-1")
            assert web.times_set == 2
            assert (condition(one, "LedgerNamed")["reason"], boots(one, web)) == ("BecameStandby", "disk")


def approve(instance: Instance, state: Path, commit: str) -> None:
    """Let an instance see a commit that names another active instance; earlier commits may be held, too."""

    def held() -> str | None:
        attempted = instance.status()["attempted"]
        found = attempted["held"] if attempted["commit"] == commit else None
        return found["digest"] if found is not None and "allowTakeover" in found["guards"] else None

    digest = eventually(held)
    done = run_command("approve", digest, "--guard", "allowTakeover", "--reason", "handed over", "--state", state)
    assert done.code == 0, done
    eventually(lambda: instance.status()["attempted"]["held"] is None)
