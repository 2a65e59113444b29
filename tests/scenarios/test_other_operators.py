"""Test cases of boot-operator and metal-operator, translated to gitboot.

A case has its initial state, an operation and the expected result. For each operation a function builds the equivalent
state in gitboot, and compares its result. If a case has a better behaviour under ``gitboot``, that is the expected
result.

The boot configuration of a workload becomes a BootPolicy, that of a maintenance a Maintenance whose window is open
while the server is in state Maintenance. A configuration that its server does not name becomes a policy that selects no
server, and a deleted configuration is not in the commit. A claim becomes a provision number, and the annotation of a
provisioned server a record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import pytest
from msgspec import structs

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.override_session import BmcTask, OverrideSession, TaskResult
from gitboot.bmc.override_state import BmcObservation, Override, OverrideRecord, OverrideState, WantedOverride
from gitboot.bmc.override_steps import adapt_override
from gitboot.bmc.power_steps import PowerOperation, PowerRecord, WantedPowerChange
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.bmc.redfish.quirks import build_boot_patch
from gitboot.bmc.redfish.resources import Resource, build_observation
from gitboot.controller.commit_judgement import CommitJudgement
from gitboot.controller.instance_state import AcceptanceState
from gitboot.controller.records.evidence import Fetch
from gitboot.controller.records.install_boots import build_offer
from gitboot.controller.records.ledger_changes import Batch, apply_batch
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.errors import BmcRejected, InvalidRepository
from gitboot.evaluator.protocol import Commit, build_commit
from gitboot.fetchlog.log_entries import Observation
from gitboot.fleet.identities import BmcAccess
from gitboot.fleet.revision import Revision
from gitboot.ledger.instance_tables import Facts
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Lifecycle
from gitboot.problems import Code, Severity
from gitboot.render.boot_files import render_fleet_files, render_server_files
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.provisioning_record import Record, Run, encode_records, parse_exported_records
from gitboot.resolve.server_decision import Decision, Decisions, OverrideEnabled, OverrideTarget
from gitboot.resolve.server_plan import BootPlan, Phase
from tests.helpers.cases import for_each
from tests.helpers.fleets import (
    at,
    decided,
    decision,
    document,
    fleet,
    image,
    maintenance,
    make_uuid,
    policy,
    profile,
    repository,
    server,
)
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import GENERIC, ILO6, PROFILES, Profile, Property
from tests.helpers.redfish_double.server import RedfishServer, Service

Case: TypeAlias = dict[str, Any]

VECTORS: Final = Path(__file__).parents[1] / "data" / "vectors"
CASES: Final[dict[str, Case]] = {
    case["id"]: case for path in sorted(VECTORS.glob("*.json")) for case in json.loads(path.read_text())
}

_BY_IDENTITY = "A machine is found by the identity in its own Server document, not through owners that may be gone."
_NO_LOOKUPS = "Deciding reads one commit and asks no API, so no lookup can fail half-way."
_NO_BOOT_ORDER = "The format declares no boot order, and gitboot writes none."

NOT_APPLICABLE: Final = {
    "BOS-011": _BY_IDENTITY,
    "BOS-012": _BY_IDENTITY,
    "BOS-013": _BY_IDENTITY,
    "BOS-028": _NO_LOOKUPS,
    "BOS-029": _NO_LOOKUPS,
    "MOB-023": "There is no pending boot configuration: a plan exists as soon as its commit is accepted.",
    "MOB-035": _NO_BOOT_ORDER,
    "MOB-036": _NO_BOOT_ORDER,
    "MOB-037": _NO_BOOT_ORDER,
    "MOB-042": "It tells why code of metal-operator was taken back, which says nothing of a behaviour.",
    "MOB-043": "It tells what a whole redesign was asked for; its parts are cases of their own.",
    "MOB-050": "There is no state of discovery that parking would have to wait for.",
}

NOON: Final = at("20T12:00")
OPEN: Final = "20T10:00 20T14:00"  # a window at noon
OVER: Final = "20T08:00 20T10:00"
LAST_WEEK: Final = at("13T12:00")


# select: which of several configurations that match one machine it boots

REQUESTED: Final = make_uuid("the machine that asks")
TEMPLATE: Final = {"node.ign": '{"ignition": {"version": "3.4.0"}, "boots": "{{ image.name }}"}'}
LOCAL_DISK: Final = "the local disk, as an unknown machine"

# Better behaviour from the notes of cases.
BETTER: Final = {
    "BOS-001": LOCAL_DISK,
    "BOS-003": LOCAL_DISK,
    "BOS-017": Code.NO_POLICY,
    "BOS-018": Code.UNKNOWN_REFERENCE,
    "BOS-019": Code.NO_POLICY,
    "BOS-020": Code.MISSING_FIELD,
    "BOS-021": Code.POLICY_TIE,
    "BOS-023": f"{Code.NO_POLICY} {Code.MAINTENANCE_TIE}",
    "BOS-027": "c0",
    "BOS-031": Code.DUPLICATE_IDENTITY,
    "BOS-036": Code.NO_POLICY,
}
ERRORS: Final = {
    "all_orphaned": Code.NO_POLICY,
    "no_items": Code.NO_POLICY,
    "no_resolvable_owner": Code.NO_POLICY,
    "unexpected_state": f"{Code.NO_POLICY} {Code.MAINTENANCE_TIE}",
}


def select(case: Case) -> None:
    given, expected = case["given"], case["expect"].get("selected") or ERRORS[case["expect"]["error"]]
    if "gitboot" in case:
        expected = BETTER[case["id"]]
    elif not given["servers"]:
        expected = LOCAL_DISK
    for configs in permutations(given["configs"]):  # also where boot-operator's answer depends on their order
        assert _find_selected(given | {"configs": list(configs)}) == expected


def _find_selected(given: Case) -> str:
    """The configuration that the machine boots, or the codes of what is wrong with the commit."""
    documents = [fleet(), *_convert_configs(given), *_convert_servers(given)]
    try:
        decisions = decided(*documents, files=TEMPLATE)
    except InvalidRepository as error:
        _check_ties_name_all(given, error)
        codes = {problem.code for problem in error.problems if problem.severity is Severity.ERROR}
        if codes == {Code.NO_POLICY}:
            _check_nothing_is_served(given, documents)
        return " ".join(sorted(codes))
    if not decisions.servers:
        assert not _find_names(given, (file.content for file in render_fleet_files(decisions).values()))
        return LOCAL_DISK
    (found,) = decisions.servers.values()
    planned = make_plan(found, NOON, None)
    assert planned is not None
    assert planned.boot is not None
    served = boot_files(decisions, found, planned)
    assert {path.split("/")[1] for path in served} >= {"v1", "ipxe", "ignition"}
    for path, content in served.items():  # for each identity of a machine, it is the same configuration
        assert _find_names(given, [content]) == {planned.boot.profile}, path
    return planned.boot.profile


def boot_files(decisions: Decisions, found: Decision, planned: BootPlan | None) -> dict[str, bytes]:
    """Return the files that the machine can fetch, by path."""
    files = render_server_files(decisions, found, planned)
    return {path: file.content for path, file in files.items() if path.startswith("boot/")}


def _find_names(given: Case, contents: Iterable[bytes]) -> set[str]:
    """The configurations whose image or user data is named in files."""
    told = b"".join(contents).decode()
    named = set(re.findall(r"/assets/([^/]+)/", told)) | set(re.findall(r'"boots": "([^"]+)"', told))
    return named & {config["name"] for config in given["configs"]}


def _check_ties_name_all(given: Case, error: InvalidRepository) -> None:
    for problem in error.problems:
        if problem.code in (Code.POLICY_TIE, Code.MAINTENANCE_TIE):
            assert all(config["name"] in problem.message for config in given["configs"])


def _check_nothing_is_served(given: Case, documents: list[str]) -> None:
    """If a fleet allows servers without a policy, such a server has no plan."""
    lenient = fleet("baseURL: 'http://boot.test', requirePolicy: false")
    decisions = decided(lenient, *documents[1:], files=TEMPLATE)
    for found in decisions.servers.values():
        assert make_plan(found, NOON, None) is None
        assert not _find_names(given, boot_files(decisions, found, None).values())


def _convert_configs(given: Case) -> Iterator[str]:
    methods = {"IPXEBootConfig": ("Pxe", ""), "HTTPBootConfig": ("UefiHttp", "httpBoot: uki, ")}
    for config in given["configs"]:
        name, (method, boots) = config["name"], methods[config["kind"]]
        yield image(name, "userData: Ignition/3.4, configFrom: SystemUUID", "kernel, initrd, uki")
        user_data = "userData: {format: Ignition/3.4, template: node.ign}"
        yield profile(name, name, f"{boots}{user_data}", method=method)
    for owner in map(_key, given["serverBootConfigurations"]):
        named_by = [each["name"] for each in given["servers"] if each["bootConfigurationRef"] == owner]
        kept_for_maintenance = any(each["maintenanceBootConfigurationRef"] == owner for each in given["servers"])
        for config in _list_owned(given, owner):
            if named_by or not kept_for_maintenance:
                select = f"{{servers: {json.dumps(named_by)}}}" if named_by else "None"
                yield policy(config, select, boots=config)


def _convert_servers(given: Case) -> Iterator[str]:
    standing = {_key(each) for each in given["serverBootConfigurations"]}
    for each in given["servers"]:
        name, ref, active = each["name"], each["maintenanceBootConfigurationRef"], each["state"] == "Maintenance"
        yield server(name).replace(make_uuid(name), REQUESTED)
        select, window = f"{{servers: [{name}]}}", OPEN if active else OVER
        if active and ref is None:
            yield document("Maintenance", "nothing", f"select: {select}")
        if ref in standing:
            for config in _list_owned(given, ref) or ["not-yet-there"]:
                yield maintenance(config, window, select=select, boots=config)


def _key(reference: Mapping[str, str]) -> str:
    return f"{reference['namespace']}/{reference['name']}"


def _list_owned(given: Case, owner: str) -> list[str]:
    """Return the configurations of an owner, for any version of its API."""
    return [
        config["name"]
        for config in given["configs"]
        for each in config["owners"]
        if each["kind"] == "ServerBootConfiguration"
        and each["apiVersion"].partition("/")[0] == "metal.ironcore.dev"
        and f"{config['namespace']}/{each['name']}" == owner
    ]


# boot_method: the first boot from the network, later ones as the policy states

DEFAULT_POLICY: Final = CASES["MOB-001"]["expect"]["effectivePolicy"]
BOOTS: Final = {"Pxe": "", "UefiHttp": "httpBoot: uki"}


def make_workload(
    boot_policy: Mapping[str, str] | None = None, *, provision: int = 1, repairs: str = "Pxe"
) -> list[str]:
    """A fleet of one server under metal-operator's boot policy."""
    boots = boot_policy or DEFAULT_POLICY
    every_time = boots["boot"] == boots["firstBoot"]
    return [
        fleet(),
        server("web01", spec=f"provision: {provision}"),
        image("flatcar-1", artifacts="kernel, uki"),
        image("bios-2", "writesDisk: false", "kernel, uki"),
        profile("web", "flatcar-1", BOOTS[boots["firstBoot"]], method=boots["firstBoot"]),
        profile("repair", "bios-2", BOOTS[repairs], method=repairs),
        policy("web", spec="diskBoot: Hdd", often="Always" if every_time else "Once"),
    ]


def is_provisioned(configuration: Case) -> bool:
    return configuration["provisioned"] in (True, "true")


INSTALLED: Final = Record(provision=1, image="flatcar-1", provisioned_at=LAST_WEEK)
PENDING: Final = Record()


def get_method(planned: BootPlan | None) -> str:
    assert planned is not None
    assert planned.override is not None
    return planned.override.target


def boot_method(case: Case) -> None:
    given, expected = case["given"], case["expect"]
    configuration, boot_policy = given["sbc"], given["bootPolicy"]
    if configuration["purpose"] == "claim":
        found = decision("web01", *make_workload(boot_policy))
        assert (
            get_method(make_plan(found, NOON, INSTALLED if is_provisioned(configuration) else PENDING))
            == expected["method"]
        )
    else:  # a maintenance or a discovery: one boot of its own, whatever happened to the workload's
        once = maintenance("repair", OPEN, "networkBoot: Once")
        found = decision("web01", *make_workload(boot_policy, repairs=boot_policy["firstBoot"]), once)
        for known in (INSTALLED, PENDING):
            during = make_plan(found, NOON, known)
            assert during is not None
            assert during.phase is Phase.MAINTENANCE
            assert get_method(during) == expected["method"]
        assert (
            get_method(make_plan(found, at("20T14:00"), Record(runs={"repair": Run(1, NOON)})))
            == boot_policy["firstBoot"]
        )
    if "effectivePolicy" in expected:
        boots = {
            when: get_method(make_plan(found, NOON, known))
            for when, known in (("firstBoot", PENDING), ("boot", INSTALLED))
        }
        assert boots == expected["effectivePolicy"]


# lifecycle: what becomes of a record as claims, maintenances and ledgers come and go


class Lifetime:
    """One server through the events of a case, with its record."""

    def __init__(self, *, repairs: str) -> None:
        self._repairs, self._commits = repairs, 0
        self.provision = 0
        self.now = at("20T08:00")
        self.in_maintenance: list[str] = []
        self.states: list[str] = ["Reserved"]
        self.methods: dict[str, str] = {}  # by state, the last
        self.snapshot = LedgerSnapshot(facts=Facts(identity="vectors", initialised="fresh"))

    def decision(self) -> Decision:
        commit = self.commit()
        servers = commit.decisions.servers
        came = {each.uuid: each.provision for each in servers.values()}  # by the first of these commits
        self.learn(
            Batch(
                commit=commit,
                changed_servers=tuple(servers),
                acceptance=AcceptanceState(steps=CommitJudgement(introduced=came)),
            )
        )
        return servers["web01"]

    def commit(self) -> Commit:
        fleet = repository(*make_workload(provision=self.provision, repairs=self._repairs), *self.in_maintenance)
        self._commits += 1
        fleet = structs.replace(fleet, revision=Revision(f"{self._commits:040}"))
        return build_commit(fleet, decide(fleet))

    def learn(self, batch: Batch) -> None:
        self.snapshot = apply_batch(self.snapshot, batch, self.now).snapshot

    @property
    def record(self) -> Record | None:
        return self.snapshot.record(SystemUuid(make_uuid("web01")))

    def look(self) -> BootPlan:
        found = self.decision()
        planned = make_plan(found, self.now, self.record)
        assert planned is not None
        state = "Maintenance" if planned.maintenance else "Reserved"
        if state != self.states[-1]:
            self.states.append(state)
        self.methods[state] = get_method(planned)
        return planned

    def claim(self) -> None:
        self.provision += 1

    def boot(self) -> None:
        """Fetch the boot script completely, which is the evidence of a first boot, and let time pass."""
        planned = self.look()
        assert planned.phase is Phase.NETWORK
        offer = build_offer(self.decision(), planned, self.record)
        assert offer is not None
        observation = Observation(server="web01", path="", digest=offer.plan, client="10.0.0.7", at=self.now)
        fetch = Fetch(observation=observation, offer=offer, was_recorded=False)
        self.learn(Batch(commit=self.commit(), changed_servers=("web01",), fetches=(fetch,)))
        self.now += timedelta(hours=1)

    def start_maintenance(self) -> None:
        self.in_maintenance = [maintenance("repair", OPEN, "networkBoot: Once")]
        self.now = NOON

    def end_maintenance(self) -> None:
        """Its window is over; the document may stay in Git."""
        self.now = at("20T14:00")

    @property
    def is_provisioned(self) -> bool:
        return self.record is not None and (self.record.provision or 0) >= self.provision


def _do_nothing(lifetime: Lifetime) -> None:
    """Do nothing: gitboot has nothing to wait for, because an accepted commit is valid."""


def _move_ledger(lifetime: Lifetime) -> None:
    """Records leave one ledger and enter another as they were."""
    known = lifetime.snapshot.records
    assert parse_exported_records(encode_records(known), "records.json") == known


EVENTS: Final[dict[str, Callable[[Lifetime], None]]] = {
    "claim created": Lifetime.claim,
    "SBC Ready": _do_nothing,
    "first boot succeeded": Lifetime.boot,
    "provisioned claim deleted": _do_nothing,  # the record of the machine stays
    "new claim on the same server": Lifetime.claim,
    "CAPI pivot moves the SBC with annotations": _move_ledger,
    "existing SBC from before the feature, no annotation": _do_nothing,  # a server without `provision`
    "operator upgraded": _do_nothing,
    "next power-on": _do_nothing,
    "maintenance starts": Lifetime.start_maintenance,
    "maintenance SBC created": _do_nothing,
    "boot-operator validates UKI and writes httpBootURI": _do_nothing,
    "network override UefiHttp": _do_nothing,
    "maintenance completes, SBC deleted": Lifetime.end_maintenance,
}
BEGINS_UNPROVISIONED: Final = ("claim created", "existing SBC from before the feature, no annotation")


def lifecycle(case: Case, folder: Path) -> None:
    given, expected = case["given"], dict(case["expect"])
    repairs = given["maintenance"]["bootPolicy"]["firstBoot"] if "maintenance" in given else "Pxe"
    lifetime = Lifetime(repairs=repairs)
    if given["events"][0] not in BEGINS_UNPROVISIONED:
        lifetime.claim()
        lifetime.boot()
    for event in given["events"]:
        EVENTS[event](lifetime)
        lifetime.look()
    if "gitboot" in case:  # a machine that was there before is imported as provisioned
        expected = {"method": expected["thereafter"], "provisioned": True}
    if expected.get("method") in DEFAULT_POLICY:  # firstBoot or boot
        expected["method"] = DEFAULT_POLICY[expected["method"]]
    told = {
        "annotation": {"metal.ironcore.dev/provisioned": json.dumps(lifetime.is_provisioned)},
        "provisioned": lifetime.is_provisioned,
        "claimSbcStillProvisioned": lifetime.is_provisioned,
        "method": lifetime.methods["Reserved"],
        "methodAfter": lifetime.methods["Reserved"],
        "methodInMaintenance": lifetime.methods.get("Maintenance"),
        "states": lifetime.states,
    }
    for key in expected.keys() - {"on", "setBy"}:  # a claim's annotation is a record in gitboot's own ledger
        assert told[key] == expected[key], key


# validation_gate: image and method must match, or the commit is rejected and nothing is planned

ARTIFACTS: Final = {"UKI": "uki", "UKI only": "uki", "kernel+initramfs only": "kernel, initrd"}


def validation_gate(case: Case) -> None:
    given, method = case["given"], case["given"]["policyMethod"]
    # Under UEFI gitboot's boot scripts boot a UKI by Pxe, too; metal-operator's Pxe is one of kernels.
    documents = (
        fleet(),
        server("web01", firmware="BIOS" if method == "Pxe" else "UEFI"),
        image("a-1", artifacts=ARTIFACTS[given["image"]]),
        profile("web", "a-1", BOOTS[method], method=method),
        policy("web"),
    )
    if case["expect"]["state"] == "Error":
        with pytest.raises(InvalidRepository) as refused:
            decided(*documents)
        assert {problem.code for problem in refused.value.problems} <= {Code.NO_ARTIFACT, Code.FIRMWARE}
        return
    decisions = decided(*documents)
    found = decisions.servers["web01"]
    planned = make_plan(found, NOON, None)
    answer = json.loads(boot_files(decisions, found, planned)[f"boot/httpboot/{make_uuid('web01')}.json"])
    assert planned is not None
    assert planned.override is not None
    assert planned.override.http_boot_uri == answer["UKIURL"] == "http://boot.test/assets/a-1/uki"


# Requests to a BMC


def build_wanted(planned: BootPlan | None) -> WantedOverride | None:
    if planned is None or planned.override is None:
        return None
    override = planned.override
    return WantedOverride(
        reason=override.reason,
        plan_digest=planned.digest,
        override=Override(
            enabled=override.enabled,
            target=override.target,
            mode="UEFI",
            http_boot_uri=override.http_boot_uri,
        ),
        set_again=override.set_again,
    )


class Rack:
    """One machine, its BMC over HTTP, and what gitboot has recorded of its overrides."""

    def __init__(self, profile: Profile = GENERIC) -> None:
        self.machine = Machine("web01", uuid=make_uuid("web01"), profile=profile)
        self.records: dict[str, OverrideRecord] = {}
        self._server = RedfishServer(Service(self.machine))

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._bmc = BmcConnection(self._server.url, Credentials(username="gitboot", password="secret"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bmc.close()
        self._server.__exit__(kind, error, trace)

    def write_override(self, wanted: WantedOverride | None, switching: WantedPowerChange | None = None) -> TaskResult:
        job = BmcTask(
            server="web01",
            uuid=SystemUuid(make_uuid("web01")),
            bmc=BmcAccess(address=self._server.url, system=None, credentials="", verify=True, ca=None),
            wanted=wanted,
            records=tuple(self.records.values()),
            wanted_power=switching,
        )
        return OverrideSession(self._bmc, job, self._write, lambda: self.machine.now).run()

    def _write(self, record: OverrideRecord | PowerRecord) -> None:
        if isinstance(record, OverrideRecord):
            self.records[record.reason] = record

    def boots(self, order: Iterable[str] = ("disk",)) -> str:
        """Return what the machine boots after a reset: the target of its override, or the first in its boot order."""
        self.machine.run_through()
        target = self.machine.boots[-1].target
        return {"None": next(iter(order)), "Hdd": "HDD"}.get(target, target)

    @property
    def override(self) -> dict[str, str] | None:
        """Return the current override in the words of the cases."""
        seen = self.machine.override
        if seen["BootSourceOverrideEnabled"] == "Disabled":
            return None
        return {
            "enabled": str(seen["BootSourceOverrideEnabled"]),
            "target": str(seen["BootSourceOverrideTarget"]),
        }


# override: UefiHttp without a URI


def override(case: Case) -> None:
    given = case["given"]
    wanted = Override(
        enabled=OverrideEnabled.ONCE, target=OverrideTarget(given["policyMethod"]), http_boot_uri=given["httpBootURI"]
    )
    for each in PROFILES.values():
        seen = observe_machine(Machine(profile=each))
        fitted = adapt_override(wanted, seen)
        assert fitted is not None
        assert ("HttpBootUri" not in build_boot_patch(fitted, seen)) == (case["expect"]["HttpBootUri"] == "absent")


def observe_machine(machine: Machine) -> BmcObservation:
    """Return the reading of a machine from the resource that accepts overrides."""
    system = Resource(url=f"http://bmc{machine.path}", body=machine.system())
    settings = None
    if machine.settings_path and "BootSourceOverrideTarget" in machine.settings()["Boot"]:
        settings = Resource(url=f"http://bmc{machine.settings_path}", body=machine.settings())
    return build_observation(system, settings)


# power_on: the boot of a machine whose firmware stops without a setting


def power_on(case: Case) -> None:
    given, expected = case["given"], case["expect"]
    if "biosOrder" not in given:
        _check_reboots_in_maintenance(given["override"])
    elif "operatorOverride" not in given:
        _check_resting_order(given["biosOrder"], expected["boots"])
    else:
        order, told = given["biosOrder"], given["operatorOverride"]
        once = told and Override(enabled=OverrideEnabled(told["enabled"]), target=OverrideTarget(told["target"]))
        with Rack() as rack:
            rack.write_override(WantedOverride(reason="operator", plan_digest="", override=once) if once else None)
            assert [rack.boots(order), rack.boots(order)] == [expected["boots"], order[0]]


def _check_resting_order(order: list[str], safe_stop: str) -> None:
    """Provisioned and with ``diskBoot: Hdd`` a machine rests on its disk, otherwise where its firmware stops."""
    reserved = make_workload()
    parked = [*reserved, server("web01", spec="lifecycle: Parked")]
    parked.remove(reserved[1])
    with Rack() as rack:
        for documents, boots in ((parked, safe_stop), (reserved, "HDD"), (parked, safe_stop)):
            rack.write_override(build_wanted(make_plan(decision("web01", *documents), NOON, INSTALLED)))
            assert [rack.boots(order), rack.boots(order)] == [boots, boots]


def _check_reboots_in_maintenance(mode: str) -> None:
    """A maintenance's Once covers one reboot, its Always each one inside the window."""
    for often, expected in ((mode, ["Pxe", "disk"]), ("Always", ["Pxe", "Pxe"])):
        window = maintenance("repair", OPEN, f"networkBoot: {often}")
        wanted = build_wanted(make_plan(decision("web01", *make_workload(), window), NOON, INSTALLED))
        with Rack() as rack:
            boots = []
            for _ in expected:
                rack.write_override(wanted)
                boots.append(rack.boots())
            assert boots == expected


# reconcile: a reserved machine, switched off or on


def reconcile(case: Case) -> None:
    given, expected = case["given"], case["expect"]
    # A reserved machine that runs has had its first boot.
    known = INSTALLED if given["power"] == "On" else PENDING
    artifacts = "kernel" if given["sbcState"] == "Ready" else "iso"
    documents = (
        fleet(),
        server("web01", spec="provision: 1"),
        image("flatcar-1", artifacts=artifacts),
        profile("web", "flatcar-1"),
        policy("web", often="Once"),
    )
    with Rack() as rack:
        if given["power"] == "Off":
            rack.machine.reset("ForceOff")
        try:
            planned = make_plan(decision("web01", *documents), NOON, known)
        except InvalidRepository:  # no commit is accepted; each later reconcile tries again
            planned = None
        rack.write_override(build_wanted(planned))
        assert rack.override == expected.get("override")
        assert rack.machine.power == given["power"]
        if expected.get("poweredOn"):
            _check_is_installed_once(rack, documents)


def _check_is_installed_once(rack: Rack, documents: tuple[str, ...]) -> None:
    """The machine is switched on if its policy says so, and installed once."""
    powered = decision("web01", *documents[:-1], policy("web", spec="power: On", often="Once"))
    planned = make_plan(powered, NOON, PENDING)
    assert planned is not None and planned.key is not None and planned.override is not None
    on = WantedPowerChange(
        reason=planned.key, operation=PowerOperation.ON, override_reason=planned.override.reason, may_start_now=True
    )
    rack.write_override(build_wanted(planned), on)
    assert rack.machine.power == "On"
    assert rack.boots() == "Pxe"
    rack.write_override(build_wanted(make_plan(decision("web01", *documents), NOON, INSTALLED)))
    assert rack.boots() == "disk"


# override_payload: when BootSourceOverrideMode is sent


def override_payload(case: Case) -> None:
    given = case["given"]
    vendors = re.findall(r"\w+", given["vendor"].partition("(")[2]) or [given["vendor"]]
    for vendor in vendors:
        machine = Machine(profile=_profile(vendor, given["reportedMode"]))
        machine.write(BootSourceOverrideMode=given["reportedMode"])
        seen = observe_machine(machine)
        fitted = adapt_override(Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.PXE, mode="UEFI"), seen)
        if seen.mode_is_fixed and given["reportedMode"] == "Legacy":
            assert fitted is None, vendor  # HPE's mode is read-only, so an operator must act
            continue
        assert fitted is not None
        patch = build_boot_patch(fitted, seen)
        assert patch == case["expect"]["boot"], vendor
        assert machine.patch(seen.settings_path, {"Boot": patch}, machine.system()["@odata.etag"]).status == 200, vendor


def _profile(vendor: str, mode: str | None) -> Profile:
    """Return a BMC of this vendor with this mode or none; a BMC without the mode rejects it."""
    found = next(each for each in PROFILES.values() if each.manufacturer.startswith(vendor))
    mine = [each for each in PROFILES.values() if each.manufacturer == found.manufacturer]
    fitting = [each for each in mine if (each.mode is Property.ABSENT) == (mode is None)]
    return fitting[0] if fitting else replace(found, mode=Property.ABSENT)


# list_systems: gitboot cannot use a system without overrides


def list_systems(case: Case) -> None:
    usable = []
    for system in case["given"]["systems"]:
        target = system["overrideTarget"]  # metal-operator's library reads a property that is absent as ""
        body = {"Boot": {"BootSourceOverrideTarget": target} if target else {}}
        try:
            build_observation(Resource(url=f"http://bmc{system['uri']}", body=body), None)
        except BmcRejected:
            continue
        usable.append(system["uri"])
    assert usable == case["expect"]["systems"]


# boot_order_payload: an override never comes with a boot order, nor a boot order with an override


def boot_order_payload(case: Case) -> None:
    harmful = case["expect"]["boot"]
    assert harmful.pop("BootOrder") == case["given"]["bootOrder"]
    for each in PROFILES.values():
        with Rack(each) as rack:
            once = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.PXE, mode="UEFI")
            rack.write_override(WantedOverride(reason="provision/1", plan_digest="", override=once))
            rack.write_override(None)
            assert rack.machine.writes
            for write in rack.machine.writes:
                assert "BootOrder" not in write["Boot"]
                assert not harmful.items() <= write["Boot"].items()


# history: what went wrong in metal-operator, and must not here


def _check_maintenance_reboots(case: Case) -> None:
    """The override lasts for the whole maintenance: after a reboot by the BMC it is still set."""
    for artifacts, boots in (("kernel", ""), ("uki", "httpBoot: uki")):
        method = "UefiHttp" if boots else "Pxe"
        tool = image("tool-1", "writesDisk: false", artifacts), profile("tool", "tool-1", boots, method=method)
        found = decision("web01", *make_workload(), *tool, maintenance("repair", OPEN, boots="tool"))
        with Rack() as rack:
            for _ in range(3):
                rack.write_override(build_wanted(make_plan(found, NOON, INSTALLED)))
                assert rack.boots() == method
            rack.write_override(build_wanted(make_plan(found, at("20T14:00"), INSTALLED)))
            assert rack.boots() == "HDD"


def _check_no_write_in_post(case: Case) -> None:
    """iLO refuses it; gitboot waits until POST is over."""
    assert "UnableToModifyDuringSystemPOST" in case["expect"]["result"]
    with Rack(ILO6) as rack:
        rack.machine.reset()
        assert rack.machine.in_post
        install = build_wanted(make_plan(decision("web01", *make_workload()), NOON, PENDING))
        assert rack.write_override(install).message == "the machine is in POST"
        assert rack.machine.writes == []
        rack.machine.advance(rack.machine.post_s * 2)
        rack.write_override(install)
        assert rack.override == {"enabled": "Once", "target": "Pxe"}


def _check_vendor_clear(case: Case) -> None:
    assert "None" in case["expect"]["result"]
    for each in PROFILES.values():
        with Rack(each) as rack:
            rack.write_override(build_wanted(make_plan(decision("web01", *make_workload()), NOON, PENDING)))
            assert rack.override is not None
            rack.write_override(None)
            assert rack.override is None, each.name
            if each.off_without_none:
                assert rack.machine.writes[-1]["Boot"].get("BootSourceOverrideTarget") != "None"


def _check_consumed_by_boot(case: Case) -> None:
    """During POST the override is still set: it is neither cleared nor taken for consumed."""
    install = build_wanted(make_plan(decision("web01", *make_workload()), NOON, PENDING))
    assert install is not None
    with Rack() as rack:
        rack.write_override(install)
        rack.machine.reset()
        rack.machine.advance(rack.machine.post_s / 2)
        rack.write_override(install)
        assert rack.records[install.reason].state is OverrideState.CONFIRMED
        assert len(rack.machine.writes) == 1
        rack.machine.advance(rack.machine.post_s * 2)
        rack.write_override(install)
        assert rack.machine.boots[-1].target == "Pxe"
        assert rack.records[install.reason].state is OverrideState.CONSUMED
        assert len(rack.machine.writes) == 1


HISTORY: Final[dict[str, Callable[[Case], None]]] = {
    "MOB-038": _check_maintenance_reboots,
    "MOB-039": _check_no_write_in_post,
    "MOB-040": _check_vendor_clear,
    "MOB-041": _check_consumed_by_boot,
}


def history(case: Case) -> None:
    HISTORY[case["id"]](case)


# park: someone else works on the machine


def park(case: Case) -> None:
    given, expected = case["given"], case["expect"]
    operation = given.get("op", "")
    if operation == "<unknown>":  # the operation is the field `lifecycle`, and an unknown value is an error
        with pytest.raises(InvalidRepository) as refused:
            decided(*_make_reserved("<unknown>"))
        assert [problem.code for problem in refused.value.problems] == [Code.CHOICE]
        return
    claimed = given["state"] != "Available"
    before = decided(*_make_reserved("Active", claimed=claimed))
    _check_is_left_alone(before.servers["web01"], given, expected)
    if operation in ("park", "unpark"):
        claim_left = claimed and not given.get("claimRemovedWhileParked", False)
        after = decided(*_make_reserved("Active", claimed=claim_left))
        assert _get_state(after) == expected["afterUnpark" if operation == "park" else "state"]
        assert (after.servers == before.servers) == (claimed == claim_left)
    if expected.get("deleted"):
        fleet_document, _, *others = _make_reserved("Parked")
        assert not decided(fleet_document, *others).servers


def _check_is_left_alone(before: Decision, given: Case, expected: Case) -> None:
    """Parking clears gitboot's own override, once; later changes of the machine stay."""
    window = maintenance("repair", OPEN, boots="web")  # possible causes of a reset
    parked = decided(*_make_reserved("Parked"), window)
    planned = make_plan(parked.servers["web01"], NOON, PENDING)
    assert (_get_state(parked), planned) == ("Parked", None)
    with Rack() as rack:
        rack.write_override(build_wanted(make_plan(before, NOON, PENDING)))
        rack.write_override(build_wanted(planned))
        assert rack.override is None
        writes = len(rack.machine.writes)
        for reset in ("ForceOff", "On") if given.get("externalPowerOn") else ("ForceOff",):
            rack.machine.reset(reset)
            rack.write_override(build_wanted(planned))
        assert rack.machine.power == expected.get("power", "Off")
        assert len(rack.machine.writes) == writes
        assert all(request.method != "POST" for request in rack.machine.requests)


def _make_reserved(lifecycle: str, *, claimed: bool = True) -> list[str]:
    """Return a server that a policy selects for a claim, or that no policy selects."""
    return [
        fleet("baseURL: 'http://boot.test', requirePolicy: false"),
        server("web01", spec=f"provision: 1, lifecycle: '{lifecycle}'"),
        image("flatcar-1"),
        profile("web", "flatcar-1"),
        policy("web", "All" if claimed else "None", often="Once"),
    ]


def _get_state(decisions: Decisions) -> str:
    found = decisions.servers["web01"]
    if found.lifecycle is Lifecycle.PARKED:
        return "Parked"
    return "Reserved" if found.policy is not None else "Available"


# Every case

OPERATIONS: Final[dict[str, Callable[[Case], None]]] = {
    each.__name__: each
    for each in (
        boot_method,
        boot_order_payload,
        history,
        list_systems,
        override,
        override_payload,
        park,
        power_on,
        reconcile,
        select,
        validation_gate,
    )
}
LIFECYCLES: Final = [id for id, case in CASES.items() if case["when"]["op"] == "lifecycle"]
APPLICABLE: Final = [id for id, case in CASES.items() if case["when"]["op"] in OPERATIONS and id not in NOT_APPLICABLE]


@for_each("id", APPLICABLE)
def test_a_case_of_earlier_operators_has_its_expected_result(id: str) -> None:
    OPERATIONS[CASES[id]["when"]["op"]](CASES[id])


@pytest.mark.parametrize("id", LIFECYCLES)
def test_a_lifecycle_of_earlier_operators_has_its_expected_result(id: str, tmp_path: Path) -> None:
    lifecycle(CASES[id], tmp_path)


def test_every_case_is_tested_or_has_a_reason_why_not() -> None:
    told = {*APPLICABLE, *LIFECYCLES}
    assert told | NOT_APPLICABLE.keys() == CASES.keys()
    assert told.isdisjoint(NOT_APPLICABLE)
    assert all(reason.endswith(".") for reason in NOT_APPLICABLE.values())


def test_every_note_about_gitboot_is_tested() -> None:
    noted = {id for id in APPLICABLE if "gitboot" in CASES[id] and CASES[id]["when"]["op"] == "select"}
    assert noted == BETTER.keys()
