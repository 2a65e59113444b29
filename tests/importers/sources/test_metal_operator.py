"""The import of metal-operator and boot-operator: which boot configuration is the policy of a server."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gitboot.importers.inventory import ImportedInventory, ImportedMachine
from gitboot.importers.sources.metal_operator import read_inventory
from tests.helpers.artifact_servers import artifact_server
from tests.helpers.instance_with_bmcs import run_command
from tests.importers.test_fleet_files import INITRD, KERNEL, MAC, UUID, make_known_options, write_files

VECTORS: Final = json.loads((Path(__file__).parents[2] / "data/vectors/boot_operator_selection.json").read_text())
# The policy of server-1 where it is not the configuration that boot-operator serves. A workload is a policy in each
# state, because an imported server is Parked. A maintenance and an orphan never are.
POLICIES: Final = {
    **dict.fromkeys(("BOS-002", "BOS-037"), "workload"),  # in Maintenance
    **dict.fromkeys(("BOS-005", "BOS-015", "BOS-018", "BOS-020", "BOS-033"), "workload"),
    **dict.fromkeys(("BOS-017", "BOS-019", "BOS-023"), None),
    "BOS-021": None,  # two configurations of one owner
    "BOS-027": "workload",  # another version of the API, the same owner
    "BOS-035": "workload",  # the export has no ServerBootConfiguration at all
    "BOS-036": None,  # its ServerBootConfiguration is gone
    "BOS-024": "workload",
}


def build(given: dict[str, Any]) -> str:
    """Return the objects of a vector as YAML."""
    objects: list[dict[str, Any]] = []
    for each in given["servers"]:
        spec: dict[str, Any] = {"systemUUID": UUID}
        for field in ("bootConfigurationRef", "maintenanceBootConfigurationRef"):
            if each[field]:
                namespace, name = each[field].split("/")
                spec[field] = {"namespace": namespace, "name": name}
        objects.append(_object("Server", each["name"], spec, status={"state": each["state"]}))
    for each in given["serverBootConfigurations"]:
        spec = {"serverRef": {"name": each["server"]}, "image": "ghcr.io/example/os:1"}
        objects.append(_object("ServerBootConfiguration", each["name"], spec, namespace=each["namespace"]))
    for each in given["configs"]:
        files = {
            "IPXEBootConfig": {"kernelURL": KERNEL, "initrdURL": INITRD},
            "HTTPBootConfig": {"ukiURL": f"{KERNEL}.efi"},
        }
        found = _object(
            each["kind"], each["name"], {"systemUUID": UUID, **files[each["kind"]]}, namespace=each["namespace"]
        )
        found["metadata"]["ownerReferences"] = each["owners"]
        objects.append(found)
    return yaml.safe_dump_all(objects)


def _object(kind: str, name: str, spec: dict[str, Any], **more: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": more.pop("namespace")} if "namespace" in more else {})}
    return {"apiVersion": "example/v1", "kind": kind, "metadata": metadata, "spec": spec, **more}


def find_owner(given: dict[str, Any], boot: str | None) -> str | None:
    """Return workload, maintenance or another word for the owner of a configuration."""
    for each in given["configs"]:
        if boot in (each["name"], f"{each['namespace']}-{each['name']}"):
            owners = [one["name"] for one in each["owners"] if one["kind"] == "ServerBootConfiguration"]
            return owners[0].removesuffix("-sbc") if owners else "none"
    return None


def machine_of(inventory: ImportedInventory, name: str = "server-1") -> ImportedMachine:
    (found,) = (machine for machine in inventory.machines if machine.name == name)
    return found


SELECTED: Final = [
    each
    for each in VECTORS
    if each["given"]["configs"] and len(each["given"]["servers"]) == 1 and "apiErrors" not in each["given"]
]


@pytest.mark.parametrize("vector", SELECTED, ids=lambda vector: vector["id"])
def test_finding_i1_the_workload_is_the_policy_and_never_a_maintenance_or_an_orphan(vector: dict[str, Any]) -> None:
    given = vector["given"]
    expected = POLICIES.get(vector["id"], find_owner(given, vector["expect"].get("selected")))
    for configs in permutations(given["configs"]):
        machine = machine_of(read_inventory({"o.yaml": build({**given, "configs": list(configs)})}))
        assert find_owner(given, machine.boot) == expected
        assert machine.boot or any("the boot" in each.text for each in machine.remarks)
        for each in configs:  # each configuration that is not the policy is in the report
            assert machine.boot == each["name"] or any(each["name"] in remark.text for remark in machine.remarks)


def test_finding_i1_a_server_with_both_kinds_keeps_both_boots_apart() -> None:
    owner = {"apiVersion": "metal.ironcore.dev/v1alpha1", "kind": "ServerBootConfiguration", "name": "workload-sbc"}
    same = {"name": "workload-sbc", "namespace": "default", "owners": [owner]}
    given: dict[str, Any] = {
        "servers": [
            {
                "name": "server-1",
                "state": "Reserved",
                "bootConfigurationRef": "default/workload-sbc",
                "maintenanceBootConfigurationRef": None,
            }
        ],
        "serverBootConfigurations": [{"namespace": "default", "name": "workload-sbc", "server": "server-1"}],
        "configs": [{**same, "kind": kind} for kind in ("HTTPBootConfig", "IPXEBootConfig")],
    }
    inventory = read_inventory({"o.yaml": build(given)})
    assert {each.name: (each.kernel, each.uki) for each in inventory.boots} == {
        "workload-sbc": (KERNEL, None),
        "workload-sbc-http": (None, f"{KERNEL}.efi"),
    }
    assert machine_of(inventory).boot == "workload-sbc"
    given["configs"] = given["configs"][:1]
    assert machine_of(read_inventory({"o.yaml": build(given)})).boot == "workload-sbc"


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [(("IPXEBootConfig",), None), (("HTTPBootConfig",), "c0"), ((), "c0")],
)
def test_without_references_a_server_boots_its_only_configuration(kinds: tuple[str, ...], expected: str | None) -> None:
    """boot-operator serves no boot if several configurations match and the Server refers to neither."""
    server = dict.fromkeys(("bootConfigurationRef", "maintenanceBootConfigurationRef"))
    owner = {"apiVersion": "metal.ironcore.dev/v1alpha1", "kind": "ServerBootConfiguration", "name": "gone-sbc"}
    configs = [
        {"kind": kind, "name": f"c{number}", "namespace": "default", "owners": [owner] if number else []}
        for number, kind in enumerate(("IPXEBootConfig", *kinds))
    ]
    given = {
        "servers": [{"name": "server-1", "state": "Available", **server}],
        "serverBootConfigurations": [],
        "configs": configs,
    }
    assert machine_of(read_inventory({"o.yaml": build(given)})).boot == expected


def test_finding_i1_objects_without_namespaces_and_owners_are_found_by_name() -> None:
    text = f"""\
kind: Server
metadata: {{name: web01}}
spec: {{systemUUID: {UUID}, bootConfigurationRef: {{namespace: default, name: web}}}}
---
kind: IPXEBootConfig
metadata: {{name: web%s}}
spec: {{systemUUID: {UUID}, kernelURL: "{KERNEL}", initrdURL: "{INITRD}"}}
"""
    owner = ", ownerReferences: [{apiVersion: metal.ironcore.dev/v1alpha1, kind: ServerBootConfiguration, name: web}]"
    for more, boot in (("", "web"), (owner, "web"), ("-2", None)):
        assert machine_of(read_inventory({"o.yaml": text % more}), "web01").boot == boot


OBJECTS: Final = f"""\
kind: Server
metadata: {{name: web01}}
spec:
  systemUUID: {UUID.upper()}
  serverClaimRef: {{namespace: prod, name: web}}
  serverMaintenanceRef: {{namespace: ops, name: bios}}
status:
  state: Maintenance
  processors: [{{id: CPU1, architecture: x86, instructionSet: x86-64}}]
  networkInterfaces:
    - {{name: eno1, macAddress: "{MAC}", ip: 10.0.0.13, ips: [10.0.0.13, "fe80::1", "2001:DB8::13"]}}
    - {{name: eno2, macAddress: "01:00:5e:00:00:01", ips: [10.0.0.14]}}
---
kind: ServerMaintenanceList
items:
  - metadata: {{name: bios, namespace: ops}}
    spec: {{serverRef: {{name: web01}}, policy: Enforced, priority: 100}}
    status: {{state: InMaintenance}}
---
kind: ServerClaim
metadata: {{name: web, namespace: prod}}
spec: {{power: "On", image: "ghcr.io/example/os:1"}}
---
kind: ServerClaim
metadata: {{name: waits, namespace: prod}}
spec: {{power: "On", image: "ghcr.io/example/os:1", serverSelector: {{matchLabels: {{a: b}}}}}}
---
kind: BIOSSettings
metadata: {{name: bios-1}}
spec: {{}}
"""


def test_finding_i1_addresses_arrive_and_each_object_is_named() -> None:
    inventory = read_inventory({"o.yaml": OBJECTS})
    machine = machine_of(inventory, "web01")
    assert (machine.uuid, machine.architecture) == (UUID, "x86_64")
    assert [(nic.name, set(nic.addresses)) for nic in machine.nics] == [
        ("eno1", {"10.0.0.13", "fe80::1", "2001:db8::13"}),
    ]
    texts = [each.text for each in (*machine.remarks, *inventory.remarks)]
    for word in (
        "interface eno2: MAC address 01:00:5e:00:00:01 was left out, because the value is a multicast address",
        "ServerMaintenance ops/bios (policy Enforced, priority 100, state InMaintenance)",
        "ServerClaim prod/web with image ghcr.io/example/os:1",
        "ServerClaim prod/waits was left out, because it does not belong to a Server",
        "the import does not read objects of kind BIOSSettings: bios-1",
        "because the Server does not refer to a workload",
    ):
        assert any(word in text for text in texts), (word, texts)


@pytest.mark.parametrize(
    ("protocol", "address"),
    [
        ("{name: Redfish, port: 8000, scheme: http}", "http://10.9.0.13:8000"),
        ("{name: RedfishLocal, port: 8443}", "https://10.9.0.13:8443"),
        ("{name: IPMI, port: 623}", "ipmi://10.9.0.13:623"),
        ("{name: SSH, port: 22}", None),
    ],
)
def test_the_protocol_of_a_bmc_is_kept_or_in_the_report(protocol: str, address: str | None) -> None:
    text = f"kind: Server\nmetadata: {{name: a}}\nspec: {{bmc: {{address: 10.9.0.13, protocol: {protocol}}}}}\n"
    machine = machine_of(read_inventory({"o.yaml": text}), "a")
    assert (machine.bmc.address if machine.bmc else None) == address
    assert (address is None) is any("has the unsupported scheme ssh" in each.text for each in machine.remarks)


def test_finding_i1_of_two_configurations_without_a_server_neither_becomes_the_policy() -> None:
    text = "".join(
        f"---\nkind: IPXEBootConfig\nmetadata:\n  name: {name}\n  ownerReferences:\n"
        f"    - {{apiVersion: metal.ironcore.dev/v1alpha1, kind: ServerBootConfiguration, name: {name}}}\n"
        f"spec: {{systemUUID: {UUID}, systemIPs: [10.0.0.13], kernelURL: '{KERNEL}', initrdURL: '{INITRD}'}}\n"
        for name in ("a-maintenance", "web")
    )
    (machine,) = read_inventory({"o.yaml": text}).machines
    assert machine.boot is None
    assert any("only its Server shows which of them is for the workload" in each.text for each in machine.remarks)


def test_finding_i1_http_boot_is_compared(tmp_path: Path) -> None:
    uki = "http://old.example.net/os/web.efi"
    text = f"""\
kind: Server
metadata: {{name: web01}}
spec: {{systemUUID: {UUID}, bootConfigurationRef: {{namespace: default, name: web}}}}
status: {{networkInterfaces: [{{name: eno1, macAddress: "{MAC}", ips: [10.0.0.13]}}]}}
---
kind: HTTPBootConfig
metadata:
  name: web
  namespace: default
  ownerReferences: [{{apiVersion: metal.ironcore.dev/v1alpha1, kind: ServerBootConfiguration, name: web}}]
spec: {{systemUUID: {UUID}, networkIdentifiers: [10.0.0.13, "{MAC}"], ukiURL: "{uki}"}}
"""
    make_known_options(tmp_path)
    (tmp_path / "sums").write_text(f"{'feed' * 16}  web.efi\n")
    source = write_files(tmp_path / "source", {"o.yaml": text})
    done = run_command("import", "boot-operator", source, "--out", tmp_path / "fleet", "--sums", tmp_path / "sums")
    assert done.code == 0 and "pending" not in done.err, done
    asks = ("compare-old-system", tmp_path / "fleet", "--as", "boot-operator", "-o", "json", "--old")
    with artifact_server() as old:
        for found, code, verdict in (
            ({"ClientIPs": "10.0.0.13", "UKIURL": uki, "SystemUUID": UUID.upper()}, 0, "equal"),
            ({"ClientIPs": "10.0.0.13", "UKIURL": f"{uki}2", "SystemUUID": UUID}, 2, "differs"),
            ({"ClientIPs": "10.0.0.13", "UKIURL": uki}, 2, "missing"),  # the default uki, of every unknown machine
        ):
            old.put("/httpboot", json.dumps(found).encode())
            done = run_command(*asks, old.url)
            assert (done.code, done.json["items"][0]["verdict"]) == (code, verdict), done
        assert set(old.forwarded) == {f"10.0.0.13, {MAC}"}
        # iPXE is disabled, and the machine is asked for by HTTP boot alone.
        old.statuses[f"/ipxe/{UUID}"] = 503
        old.put("/httpboot", json.dumps({"UKIURL": uki, "SystemUUID": UUID}).encode())
        assert run_command(*asks, old.url).code == 0
        # Without a default uki, boot-operator answers 500 for a machine that it does not know.
        old.statuses["/httpboot"] = 500
        assert run_command(*asks, old.url).json["items"][0]["verdict"] == "unknown"
        del old.statuses[f"/ipxe/{UUID}"]
        assert run_command(*asks, old.url).json["items"][0]["verdict"] == "missing"
        del old.statuses["/httpboot"]
        old.put(f"/ignition/{UUID}", b'{"ignition": {"version": "3.4.0"}}')
        done = run_command(*asks, old.url)
        assert [each["field"] for each in done.json["items"][0]["differences"]] == ["user data"]


@pytest.mark.parametrize("mac", [None, "", "01:00:5e:00:00:01"])
def test_an_interface_without_a_valid_mac_address_reports_its_ip_addresses(mac: str | None) -> None:
    nics = [{"name": "eno1", "macAddress": mac, "ip": "192.0.2.1", "ips": ["192.0.2.1", "2001:db8::1"]}]
    server = {"kind": "Server", "metadata": {"name": "a"}, "spec": {}, "status": {"networkInterfaces": nics}}
    (machine,) = read_inventory({"s.yaml": yaml.safe_dump(server)}).machines
    assert any("192.0.2.1, 2001:db8::1 was left out" in each.text for each in machine.remarks), machine.remarks


@pytest.mark.parametrize(
    ("spec", "texts"),
    [
        ({"taints": [{"key": "a", "effect": "NoClaim"}], "unclaimable": True}, ["`taints`", "`unclaimable`"]),
        ({"taints": [], "unclaimable": False}, []),
    ],
)
def test_what_keeps_claims_from_a_server_is_in_the_report(spec: dict[str, Any], texts: list[str]) -> None:
    server = {"kind": "Server", "metadata": {"name": "a"}, "spec": spec}
    (machine,) = read_inventory({"s.yaml": yaml.safe_dump(server)}).machines
    assert [each.text.split()[0] for each in machine.remarks if "does not support claims" in each.text] == texts
