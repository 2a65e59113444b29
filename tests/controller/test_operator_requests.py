"""Operator requests: executed once by the next reconcile, or rejected with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from gitboot.bmc.identity import ReportedIdentity
from gitboot.bmc.override_state import OverrideState
from gitboot.errors import LedgerError
from gitboot.ledger import instance_tables, server_tables
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import Record, get_provisioning_fields, make_record_fields
from gitboot.resolve.server_plan import Cause, Phase
from tests.controller.bmcs.test_schedule import INSTALLED, TO_INSTALL, MakeSite, Site, make_site, site, summarize_plan
from tests.helpers.cases import for_each
from tests.helpers.fleets import make_uuid
from tests.helpers.redfish_double.profiles import SUPERMICRO_X10
from tests.helpers.redfish_double.server import Drop

__all__ = ["make_site", "site"]  # fixtures

WEB01 = SystemUuid(make_uuid("web01"))
LAST = "9999-12-31T23:59:59Z"


def records(site: Site, record: Record, *, server: str = "web01", **more: Any) -> int:
    item = {"uuid": WEB01, "server": server, **make_record_fields(record)}
    return site.bench.request("records", items=[item], reason="INC-1", **more)


def request_pending(site: Site, seen: Record | None = None) -> int:
    """Request pending for web01; ``seen`` is the record that the operator saw, by default the current one."""
    known = get_provisioning_fields(seen or site.bench.snapshot.records.get(WEB01, Record()))
    item = {"uuid": WEB01, "server": "web01", **make_record_fields(Record(provisioned_at=site.bench.now))}
    return site.bench.request("records", items=[{**item, "seen": known}], reason="INC-1")


def begin(site: Site) -> None:
    """web01 is to be installed, and its override is set."""
    site.decide()
    site.bench.reconcile()


def outcome(site: Site, number: int) -> str:
    site.bench.reconcile()
    return site.bench.outcome(number)


def install(site: Site) -> None:
    site.decide()
    plan = site.bench.reconcile()
    site.boot()
    site.bench.fetch(plan)
    for _ in range(2):
        site.bench.reconcile()
    site.wait(3600)
    assert summarize_plan(site.bench.reconcile()) == INSTALLED


# Records


def test_a_record_that_is_set_pending_installs_the_server_once_more(site: Site) -> None:
    install(site)
    number = request_pending(site)
    assert summarize_plan(site.bench.reconcile()) == TO_INSTALL
    assert (
        site.bench.outcome(number)
        == "recorded web01 as pending: gitboot installs the server when its plan allows (INC-1)"
    )
    assert (site.shown, site.patches) == ("Once Pxe", 2)
    site.boot()
    site.bench.fetch(site.bench.plan())
    for _ in range(2):
        site.bench.reconcile()
    site.wait(3600)
    assert summarize_plan(site.bench.reconcile()) == INSTALLED
    assert site.patches == 2
    assert site.bench.told("Requested") == ["Requested"]


def test_a_record_that_is_set_provisioned_clears_the_override(site: Site) -> None:
    begin(site)
    number = records(site, Record(provision=1, image="flatcar-1", evidence="Operator", provisioned_at=site.bench.now))
    assert summarize_plan(site.bench.reconcile()) == INSTALLED
    assert site.shown == "Disabled Pxe"
    assert site.bench.outcome(number) == "recorded web01 as provisioned: provision 1 with BootImage/flatcar-1 (INC-1)"


def test_a_fetch_from_before_a_record_was_set_pending_proves_nothing(site: Site) -> None:
    site.decide(bmc=False)
    plan = site.bench.reconcile()
    fetched_at = site.bench.now
    site.wait(600)
    request_pending(site)
    site.bench.reconcile()
    site.bench.fetch(plan, at=fetched_at)  # its news comes late
    site.bench.reconcile()
    assert summarize_plan(site.bench.reconcile()) == TO_INSTALL


def test_a_request_from_before_a_newer_boot_is_rejected(site: Site) -> None:
    """It waited for an instance, and the machine was installed meanwhile."""
    site.decide(bmc=False)
    plan = site.bench.reconcile()
    site.wait(600)
    site.bench.fetch(plan)
    site.bench.reconcile()
    number = request_pending(site, seen=Record())
    assert outcome(site, number).startswith("refused: web01 was installed after you made this request")
    site.wait(60)
    assert summarize_plan(site.bench.reconcile()) == INSTALLED


def test_while_the_ledger_is_unverified_that_is_the_reason_of_a_rejected_request(site: Site) -> None:
    """A new request would be rejected in the same way."""
    install(site)
    site.restart(doubt="RestoredLedger")
    number = request_pending(site, seen=Record())
    assert outcome(site, number).startswith("refused: the ledger is unverified")


def test_a_request_is_executed_completely_or_not_at_all(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site)
    site.decide(bmc=False)
    number = request_pending(site)

    def refuse(*_: object) -> None:
        raise LedgerError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(instance_tables, "write_outcomes", refuse)
        assert summarize_plan(site.bench.reconcile()) == INSTALLED
        status, reason, message = site.bench.condition("LedgerWritable") or (True, "", "")
        assert (status, reason, "cannot write to the ledger: the disk is full. " in message) == (False, "Failed", True)
        assert (site.bench.told("Requested"), site.bench.outcome(number)) == ([], "")
    assert summarize_plan(site.bench.reconcile()) == TO_INSTALL
    assert site.bench.outcome(number).startswith("recorded web01 as pending")
    assert site.bench.told("Requested") == ["Requested"]


def test_a_restart_executes_waiting_requests_and_none_twice(site: Site) -> None:
    install(site)
    numbers = [request_pending(site)]
    site.restart()
    assert summarize_plan(site.bench.reconcile()) == TO_INSTALL
    numbers.append(site.bench.request("retry", uuids=[WEB01]))
    site.restart()
    site.bench.reconcile()
    assert [site.bench.outcome(number) for number in numbers][1] == "gitboot contacts 1 BMC now"
    assert site.bench.told("Requested") == ["Requested"]
    assert site.patches == 2


def test_either_all_records_of_a_request_are_set_or_none(site: Site) -> None:
    site.decide(bmc=False)
    good = {"uuid": WEB01, "server": "web01", **make_record_fields(Record(provision=1))}
    bad = {"uuid": make_uuid("web02"), "server": "web02", **make_record_fields(Record(provision=1)), "provision": "1"}
    number = site.bench.request("records", items=[good, bad])
    assert summarize_plan(site.bench.reconcile()) == TO_INSTALL
    assert site.bench.outcome(number).startswith("refused: ")


# Resolve


def lose_response(site: Site) -> None:
    """A PATCH was lost, and the BMC has no marks that could show its result."""
    site.bmc.fault(Drop(applied=False), on="PATCH")
    begin(site)
    site.wait(120)
    site.bench.reconcile()
    condition = site.bench.condition("Bmc/web01")
    assert condition is not None and condition[1] == "NeedsOperator"
    assert "Cause: gitboot tried to set Once Pxe for provision/1, but the BMC does not show it" in condition[2]
    assert (site.patches, site.states) == (1, {"provision/1": OverrideState.RECORDED})


def resolve(site: Site, *, consumed: bool) -> int:
    place = [site.bmc.url, site.machine.path]
    return site.bench.request(
        "resolve", uuid=WEB01, server="web01", consumed=consumed, key="provision/1", bmc=place, reason="INC-1"
    )


def test_an_override_that_the_operator_reports_as_not_set_is_set_after_a_restart(make_site: MakeSite) -> None:
    site = make_site(profile=SUPERMICRO_X10)
    lose_response(site)
    number = resolve(site, consumed=False)
    site.restart()
    site.bench.reconcile()
    assert (site.shown, site.patches, site.states) == ("Once Pxe", 2, {"provision/1": OverrideState.CONFIRMED})
    assert "recorded the override as not set" in site.bench.outcome(number)


def test_an_override_that_the_operator_reports_as_consumed_is_never_set_again(make_site: MakeSite) -> None:
    site = make_site(profile=SUPERMICRO_X10)
    lose_response(site)
    resolve(site, consumed=True)
    for _ in range(5):
        site.bench.reconcile()
        site.wait(600)
    plan = site.bench.reconcile()
    assert plan is not None and (plan.phase, plan.cause) == (Phase.DISK, Cause.CONSUMED)
    assert (site.patches, site.states) == (1, {"provision/1": OverrideState.LOST})
    resolve(site, consumed=False)  # and then it had not been, after all
    assert summarize_plan(site.bench.reconcile()) == TO_INSTALL
    assert (site.shown, site.patches) == ("Once Pxe", 2)


def test_an_identity_that_an_operator_has_seen_and_accepts_stays_accepted(site: Site) -> None:
    site.machine.uuid, site.machine.serial = make_uuid("another"), "CZ29200XYZ"
    begin(site)
    number = site.bench.request("accept", uuid=WEB01, server="web01", shown=[WEB01, "X6DCP93"], reason="INC-1")
    assert outcome(site, number).startswith("refused: web01's BMC now shows UUID")
    assert site.patches == 0
    shown = [make_uuid("another"), "CZ29200XYZ"]
    number = site.bench.request("accept", uuid=WEB01, server="web01", shown=shown, reason="INC-1")
    assert outcome(site, number) == (
        f'web01: accepted the machine that its BMC shows, UUID {make_uuid("another")}, serial "CZ29200XYZ" (INC-1)'
    )
    assert site.shown == "Once Pxe"
    site.restart()
    site.decide(spec="provision: 1, lifecycle: Parked")
    site.bench.reconcile()
    assert site.shown == "Disabled Pxe"


def test_the_identity_of_the_machine_in_the_document_needs_no_acceptance(site: Site) -> None:
    begin(site)
    before = site.bench.snapshot.pins
    identity = before[WEB01].latest_identity
    shown = [identity.uuid, identity.serial]
    number = site.bench.request("accept", uuid=WEB01, server="web01", shown=shown, reason="INC-1")
    assert outcome(site, number) == "web01: its BMC shows this server already, so there is no identity to accept"
    assert site.bench.snapshot.pins == before


def test_the_identity_of_the_document_can_be_accepted_if_an_override_was_set_on_another_machine(site: Site) -> None:
    begin(site)
    (record,) = site.bench.snapshot.list_overrides(WEB01)
    elsewhere = ReportedIdentity(uuid=SystemUuid(make_uuid("another")), serial="CZ29200XYZ")
    with site.bench.ledger.writing() as tx:
        server_tables.write_overrides(tx, [(WEB01, structs.replace(record, shown=elsewhere))])
    site.restart()
    site.bench.reconcile()
    condition = site.bench.condition("Bmc/web01")
    assert condition is not None and condition[1] == "AnotherMachine"
    identity = site.bench.snapshot.pins[WEB01].latest_identity
    number = site.bench.request(
        "accept", uuid=WEB01, server="web01", shown=[identity.uuid, identity.serial], reason="INC-1"
    )
    assert outcome(site, number).startswith("web01: accepted the machine that its BMC shows")
    site.bench.reconcile()
    assert site.bench.condition("Bmc/web01") is None


def test_the_operator_can_resolve_an_override_on_a_machine_that_is_gone(site: Site) -> None:
    begin(site)
    site.machine.uuid, site.machine.serial = make_uuid("another"), "CZ29200XYZ"
    site.wait(60)
    site.bench.reconcile()
    number = resolve(site, consumed=True)
    assert "recorded the override as used; gitboot does not set it again" in outcome(site, number)
    assert site.states == {"provision/1": OverrideState.LOST}


def test_a_foreign_override_is_replaced_at_the_request_of_an_operator(site: Site) -> None:
    site.machine.write(BootSourceOverrideEnabled="Continuous", BootSourceOverrideTarget="Hdd")
    begin(site)
    assert site.shown == "Continuous Hdd"
    number = site.bench.request("replace", uuid=WEB01, server="web01", key="provision/1", reason="old installer")
    assert (
        outcome(site, number)
        == "web01: gitboot will replace the override on its BMC with the override for provision/1 (old installer)"
    )
    assert (site.shown, site.states) == ("Once Pxe", {"provision/1": OverrideState.CONFIRMED})


def test_without_an_open_question_there_is_nothing_to_resolve(site: Site) -> None:
    begin(site)
    for consumed in (True, False):
        number = resolve(site, consumed=consumed)
        assert outcome(site, number) == "web01: no override or power request is unresolved"
    number = site.bench.request("replace", uuid=WEB01, server="web01", key="provision/1", reason="x")
    assert outcome(site, number) == "web01: there is no override to replace"
    assert (site.shown, site.patches) == ("Once Pxe", 1)


# Retry


def test_a_retry_contacts_the_named_bmcs_at_once(site: Site) -> None:
    site.bmc.fault(Drop(applied=False), times=5)
    site.decide()
    for _ in range(5):
        site.bench.reconcile()
        site.wait(site.due_in_s or 0)
    requests = len(site.machine.requests)
    site.wait(-1)
    site.bench.request("retry", uuids=[make_uuid("web02")])
    site.bench.reconcile()
    assert len(site.machine.requests) == requests
    site.bench.request("retry", uuids=[WEB01.upper()])
    site.bench.reconcile()
    assert site.shown == "Once Pxe"


# Invalid requests


@for_each(
    ("what", "facts"),
    [
        ("dance", {}),
        ("records", {}),
        ("records", {"items": None}),
        ("records", {"items": ["web01"]}),
        ("records", {"items": [{"uuid": "web01", "server": "web01", **make_record_fields(Record())}]}),
        ("records", {"items": [{"uuid": 7, "server": "web01", **make_record_fields(Record())}]}),
        ("records", {"items": [{"uuid": WEB01, "server": "web01", **make_record_fields(Record()), "runs": []}]}),
        (
            "records",
            {"items": [{"uuid": WEB01, "server": "web01", **make_record_fields(Record()), "provision": 2**70}]},
        ),
        ("records", {"items": [{"uuid": WEB01, "server": "web01", **make_record_fields(Record()), "consumedKey": 7}]}),
        ("resolve", {"uuid": WEB01}),
        ("resolve", {"uuid": None, "server": "web01", "consumed": True, "key": None, "bmc": None, "reason": ""}),
        ("retry", {"uuids": 7}),
        ("retry", {"uuids": [7]}),
        ("suspend", {"reason": "d\udce9faut", "until": "2099-01-01T00:00:00Z"}),
        ("retry", {"uuids": [WEB01], "servers": ["d\udce9faut"]}),
        ("secret-fetches", {"items": [{"uuid": WEB01, "server": "web01", "seen": {}}], "reason": ""}),
        ("suspend", {"reason": "", "until": "2099-01-01T00:00:00"}),
        ("suspend", {"reason": "", "until": "9999-12-31T23:59:59-01:00"}),
        ("records", {"items": [{"uuid": WEB01, "server": ["web01"], **make_record_fields(Record())}]}),
        (
            "records",
            {"items": [{"uuid": WEB01, "server": "web01", **make_record_fields(Record()), "provisionedAt": LAST}]},
        ),
        (
            "records",
            {"items": [{"uuid": WEB01, "server": "web01", **make_record_fields(Record()), "consumedAt": LAST}]},
        ),
        ("begin", {"how": "somehow"}),
    ],
)
def test_an_invalid_request_is_rejected_and_does_not_block_others(site: Site, what: str, facts: Any) -> None:
    site.decide(bmc=False)
    numbers = [site.bench.request(what, **facts), site.bench.request("retry", uuids=[WEB01])]
    site.bench.reconcile()
    refused, done = (site.bench.outcome(number) for number in numbers)
    assert (refused or "").startswith("refused: ")
    assert done == "gitboot contacts 1 BMC now"
    assert instance_tables.read_requests(site.bench.ledger) == ()
    assert site.bench.record == Record()


@for_each(
    "text",
    [
        f'{{"reason": "INC-1", "more": {"9" * 5000}}}',
        f'{{"reason": "INC-1", "more": {"[" * 100_000}{"]" * 100_000}}}',
    ],
)
def test_a_request_that_python_cannot_decode_is_rejected_and_does_not_damage_the_ledger(site: Site, text: str) -> None:
    begin(site)
    number = site.bench.request("clock", reason="INC-1")
    with site.bench.ledger.writing() as tx:
        tx.execute("UPDATE requests SET facts = ? WHERE id = ?", (text, number))
    assert outcome(site, number).startswith("refused: this version of gitboot cannot read the request 'clock'")
    site.restart()
    assert summarize_plan(site.bench.reconcile()) == TO_INSTALL


def test_a_key_with_a_number_that_is_too_long_is_the_key_of_no_installation(site: Site) -> None:
    begin(site)
    long_key = f"provision/{'9' * 5000}"
    number = records(site, Record(consumed_key=long_key, consumed_at=site.bench.now))
    assert outcome(site, number).startswith("recorded web01 as pending")
    assert summarize_plan(site.bench.reconcile()) == TO_INSTALL


@for_each(
    ("item", "problem"),
    [
        ({}, "the key uuid is missing"),
        (
            {"uuid": WEB01, "decisionDigest": "c0ffee"},
            'expected a SHA-256 digest of 64 lower-case hexadecimal digits, found "c0ffee"; copy the digest that '
            "`sha256sum` prints for the file",
        ),
    ],
)
def test_the_outcome_names_the_item_that_cannot_be_read_and_its_server(
    site: Site, item: dict[str, Any], problem: str
) -> None:
    fields = make_record_fields(Record(provision=1))
    first, second = {"uuid": WEB01, "server": "web01", **fields}, {"server": "web02", **fields, **item}
    begin(site)
    before = site.bench.record
    number = site.bench.request("records", items=[first, second])
    assert outcome(site, number) == f"refused: gitboot cannot read item 2 (web02) of the request: {problem}"
    assert site.bench.record == before


def test_a_record_of_an_override_that_the_ledger_lacks_can_be_resolved(site: Site) -> None:
    begin(site)
    fields = make_record_fields(Record()) | {"consumedAt": "2026-11-01T00:00:00+00:00", "consumedKey": "provision/1"}
    site.bench.request("records", items=[{"uuid": WEB01, "server": "web01", **fields}])
    site.bench.reconcile()
    number = site.bench.request(
        "resolve", uuid=WEB01, server="web01", key="provision/1", consumed=False, bmc=None, reason="x"
    )
    assert "unresolved" not in outcome(site, number)
    assert site.bench.record is not None and site.bench.record.consumed_key is None


def test_a_rejected_request_to_begin_is_no_beginning_of_records(site: Site) -> None:
    site.decide(bmc=False)
    number = site.bench.request("begin", how="somehow")
    assert outcome(site, number).startswith("refused: ")
    assert {event.type for event in site.bench.events if "refused" in event.message} == {"Requested"}


def test_the_outcome_of_a_request_with_half_of_a_surrogate_pair_tells_what_to_remove(site: Site) -> None:
    begin(site)
    number = site.bench.request("clock", reason="d\udce9faut")
    assert outcome(site, number) == ("refused: the request contains half of a surrogate pair; remove this character")


def test_a_request_that_lacks_a_field_changes_nothing(site: Site) -> None:
    site.decide(bmc=False)
    site.bench.reconcile()
    before = site.bench.snapshot.facts
    numbers = [site.bench.request(action) for action in ("clock", "stop", "suspend")]
    site.bench.reconcile()
    assert site.bench.snapshot.facts == before
    for number in numbers:
        assert "missing required field" in site.bench.outcome(number), "the reason"
        assert "use the same version of gitboot as the instance" in site.bench.outcome(number)


def test_a_request_for_another_commit_is_rejected(site: Site) -> None:
    site.decide(bmc=False)
    site.bench.reconcile()
    number = records(site, Record(provision=1), commit="f" * 40)
    assert outcome(site, number).startswith("refused: gitboot accepted another commit")
    number = records(site, Record(provision=1), commit=site.bench.snapshot.facts.accepted)
    assert outcome(site, number).startswith("recorded web01 as provisioned")
