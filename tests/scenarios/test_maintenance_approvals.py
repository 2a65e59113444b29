"""Approval and drain before a maintenance, with real processes: no reset and no boot before, both after."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.helpers.fleets import configured, document, image, policy, profile
from tests.helpers.http_peers import hook_system, write_private
from tests.helpers.instance_with_bmcs import Rack, boots, until_condition
from tests.helpers.running_instance import Instance, eventually

FILE = "approvals.txt"
ORDER = ["DrainStarted", "Drained", "OverrideConfirmed", "PowerAsked"]


def reflash(drain: str) -> str:
    now = datetime.now(UTC).replace(microsecond=0, tzinfo=None)
    start, end = (f"'{each.isoformat()}Z'" for each in (now - timedelta(hours=1), now + timedelta(hours=8)))
    return document(
        "Maintenance",
        "reflash",
        f"select: All, profile: repair, networkBoot: Once, power: Restart, window: {{start: {start}, end: {end}}}, "
        f"before: {{approval: {{file: {FILE}}}, drain: {{url: '{drain}/drain'}}}}",
    )


def test_a_maintenance_resets_and_boots_a_server_only_after_its_approval_and_drain(tmp_path: Path) -> None:
    with hook_system(status=200) as system, Rack(tmp_path) as rack:
        blade, seen = rack.add("web01"), []
        rack.pool = (
            *(image("flatcar-1"), image("memtest-7", "writesDisk: false")),
            *(profile("web", "flatcar-1"), profile("repair", "memtest-7")),
            policy("web", often="Never"),
            reflash(system.origin),
        )
        rack.repository.push({FILE: "# nobody has approved anything\n"})
        rack.push()
        token = write_private(tmp_path / "drain.token", "very-secret\n")
        hosts = configured(maintenance_hosts=[f"{system.origin}={token}"])
        with rack.running(*hosts, records="adopt") as instance:

            def state() -> tuple[int, bool, bool]:
                """Return how often the machine was reset, if it has an override, and if its boot is offered."""
                return blade.machine.resets, blade.stands, "memtest-7" in instance.get(blade.entry).text

            def drain(_: dict[str, Any]) -> object:
                seen.append(state())
                return {}

            system.answers = drain
            found = until_condition(instance, "MaintenancesCleared", status=False, reason="WaitingForApproval")
            assert "Maintenance/reflash waits for its approval: web01" in found["message"]
            digest = digest_of(rack)
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
            assert waits(instance) == []
            eventually(lambda: len(events(instance)) == len(ORDER))
            assert events(instance) == ORDER
            eventually(lambda: boots(instance, blade) == "memtest-7")
        assert len(system.calls) == 1


def digest_of(rack: Rack) -> str:
    (item,) = rack.typed("plan", "-o", "json").json["items"]
    (found,) = item["preconditions"]
    assert (found["maintenance"], found["approved"], found["approvalFile"]) == ("reflash", False, FILE)
    return str(found["digest"])


def waits(instance: Instance) -> list[str]:
    return [each["type"] for each in instance.status()["conditions"] if each["type"] == "MaintenancesCleared"]


def events(instance: Instance) -> list[str]:
    return [each["type"] for each in instance.events if each["type"] in ORDER]
