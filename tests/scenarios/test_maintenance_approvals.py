"""Approval and drain before a maintenance, with real processes: no reset and no boot before, both after."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cases import require_value
from tests.helpers.fleets import document, image, policy, profile, write_configuration
from tests.helpers.forked_commands import RUN_FIRST
from tests.helpers.http_peers import hook_system, write_private
from tests.helpers.instance_with_bmcs import Rack, boots, pair, wait_for_condition
from tests.helpers.postgresql import PostgresServer
from tests.helpers.running_instance import Instance, begin_records, eventually

FILE = "approvals.txt"
ORDER = ["DrainStarted", "Drained", "OverrideConfirmed", "PowerAsked"]


def make_reflash(drain: str, approval: str = f"approval: {{file: {FILE}}}, ", spec: str = "") -> str:
    now = datetime.now(UTC).replace(microsecond=0, tzinfo=None)
    start, end = (f"'{each.isoformat()}Z'" for each in (now - timedelta(hours=1), now + timedelta(hours=8)))
    return document(
        "Maintenance",
        "reflash",
        f"select: All, profile: repair, networkBoot: Once, power: Restart, window: {{start: {start}, end: {end}}}, "
        f"before: {{{approval}drain: {{url: '{drain}/drain'}}}}{spec}",
    )


def test_a_maintenance_resets_and_boots_a_server_only_after_its_approval_and_drain(tmp_path: Path) -> None:
    with hook_system(status=200) as system, Rack(tmp_path) as rack:
        blade, seen = rack.add("web01"), []
        rack.pool = (
            *(image("flatcar-1"), image("memtest-7", "writesDisk: false")),
            *(profile("web", "flatcar-1"), profile("repair", "memtest-7")),
            policy("web", often="Never"),
            make_reflash(system.origin),
        )
        rack.repository.push({FILE: "# nobody has approved anything\n"})
        rack.push()
        token = write_private(tmp_path / "drain.token", "very-secret\n")
        hosts = write_configuration(maintenance_hosts=[f"{system.origin}={token}"])
        with rack.running(*hosts, records="adopt") as instance:

            def state() -> tuple[int, bool, bool]:
                """Return how often the machine was reset, if it has an override, and if its boot is offered."""
                return blade.machine.resets, blade.stands, "memtest-7" in instance.get(blade.entry).text

            def drain(_: dict[str, Any]) -> object:
                seen.append(state())
                return {}

            system.answers = drain
            found = wait_for_condition(instance, "MaintenancesCleared", status=False, reason="WaitingForApproval")
            assert "Maintenance/reflash is waiting for approval: web01" in found["message"]
            digest = get_digest(rack)
            assert f"reflash {digest}" in rack.said("plan")
            assert "waits for an approval" in rack.said("explain", "web01")
            assert state() == (0, False, False)

            rack.repository.push({FILE: f"reflash {digest}  # CHG-4711\n"})
            eventually(lambda: system.calls)
            assert seen == [(0, False, False)]
            (call,) = system.calls
            assert (call.authorization, call.body["server"], call.body["digest"]) == (
                "Bearer very-secret",
                "web01",
                digest,
            )
            eventually(lambda: blade.machine.resets == 1)
            eventually(lambda: find_waits(instance) == [])  # the reset may be earlier than the status
            eventually(lambda: len(events(instance)) == len(ORDER))
            assert events(instance) == ORDER
            eventually(lambda: boots(instance, blade) == "memtest-7")
        assert len(system.calls) == 1


def test_a_standby_that_takes_over_continues_a_drain_and_begins_no_other(
    tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most one server is out of service, although the active instance is killed in the middle of a drain."""
    often = "from gitboot.controller.maintenance_hooks import HookClient as its; its.__init__.__kwdefaults__['every_s']"
    monkeypatch.setenv(RUN_FIRST, f"{often} = 0.2")
    with hook_system() as system, Rack(tmp_path) as rack:
        web01, *others = (rack.add(f"web0{number}") for number in (1, 2, 3))
        rack.pool = (
            *(image("flatcar-1"), image("memtest-7", "writesDisk: false")),
            *(profile("web", "flatcar-1"), profile("repair", "memtest-7")),
            policy("web", often="Never"),
            make_reflash(system.origin, "", ", maxUnavailable: 1"),
        )

        def asked() -> list[str]:
            """Return the servers that gitboot has drained, in order."""
            return [name for name, _ in groupby(each.body["server"] for each in system.calls)]

        with pair(rack, postgres_server, postgres_server.address()) as hosts:
            for host in hosts.hosts:
                host.settings = {"maintenance_hosts": [system.origin]}
            rack.push()
            hosts.one.start()
            eventually(lambda: hosts.one.url)
            begin_records(hosts.one.state, "adopt")
            hosts.two.start()
            eventually(lambda: hosts.two.reason == "StandbyStarted")
            eventually(lambda: system.calls)
            epoch = hosts.last_epoch
            hosts.one.kill()
            assert hosts.wait_for_takeover(epoch) is hosts.two
            system.wait_for_calls(3)
            assert (asked(), web01.machine.resets) == (["web01"], 0)

            system.drained.add("web01")
            eventually(lambda: web01.machine.resets == 1)
            commit = rack.repository.push({"README.md": "While web01 boots.\n"})
            instance = require_value(hosts.two.instance)
            eventually(lambda: instance.status()["applied"]["commit"] == commit)
            assert asked() == ["web01"]  # it is in POST until its clock moves

            web01.machine.advance(web01.machine.post_s * 2)
            assert "memtest-7" in instance.get(web01.entry).text  # the fetch lets gitboot read the BMC at once
            eventually(lambda: len(asked()) > 1)
            system.wait_for_calls(2)
            assert asked() == ["web01", "web02"]
            assert [each.machine.resets for each in (web01, *others)] == [1, 0, 0]

            def begun() -> list[str]:
                told = (*hosts.one.told, *hosts.two.events)
                return [each["server"] for each in told if each["type"] == "DrainStarted"]

            eventually(lambda: begun() == ["web01", "web02"])


def get_digest(rack: Rack) -> str:
    (item,) = rack.run_command("plan", "-o", "json").json["items"]
    (found,) = item["preconditions"]
    assert (found["maintenance"], found["approved"], found["approvalFile"]) == ("reflash", False, FILE)
    return str(found["digest"])


def find_waits(instance: Instance) -> list[str]:
    return [each["type"] for each in instance.status()["conditions"] if each["type"] == "MaintenancesCleared"]


def events(instance: Instance) -> list[str]:
    return [each["type"] for each in instance.events if each["type"] in ORDER]
