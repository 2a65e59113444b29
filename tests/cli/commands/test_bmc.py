"""`gitboot bmc`: the state of BMCs, its resolution by an operator, and power commands."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gitboot.bmc.identity import AnotherMachine, IdentityChanged, SameMachine, UnprovenIdentity
from gitboot.bmc.override_state import BmcObservation, NoChange
from gitboot.bmc.override_steps import NO_OVERRIDE
from gitboot.bmc.power_steps import PowerAction, PowerChangeRefusal, ResetType, choose_power_step
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.cli.main import Exit
from tests.helpers.artifact_servers import efi_program
from tests.helpers.cases import for_each
from tests.helpers.documentation import require_inline_code
from tests.helpers.fleets import image, maintenance, make_uuid, policy, profile, server, write_configuration
from tests.helpers.instance_with_bmcs import PASSWORD, USER, CommandResult, Rack, run_command
from tests.helpers.redfish_double.profiles import ENABLED, GENERIC, IDRAC9, OPENBMC, TARGET
from tests.helpers.redfish_double.server import Drop, Status
from tests.helpers.running_instance import eventually

FINE = tuple(f"db{number:02}" for number in range(20))
LOOSE_LIMITS = write_configuration(max_small_group=100, max_update_percent=100)


@pytest.fixture(scope="module")
def mixed_rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """One server that needs a person, one whose BMC is dead, one whose BMC is busy, and twenty fine ones."""
    with Rack(tmp_path_factory.mktemp("night")) as rack:
        rack.add_unverified("web01")
        dead, busy = rack.add("web02", provision=1), rack.add("web03", provision=1)
        for name in FINE:
            rack.add(name)
        rack.push()
        dead.bmc.die()
        busy.bmc.fault(Status(status=503), on="PATCH", times=9)
        assert rack.once(*LOOSE_LIMITS, *rack.spool_options).code == Exit.PARTIAL
        busy.machine.requests.clear()
        yield rack


def get(rack: Rack, *more: object) -> CommandResult:
    return rack.run_command("bmc", "get", "--credentials", rack.credentials, *more)


def diff(rack: Rack, *more: object) -> CommandResult:
    return rack.run_command("bmc", "diff", "--credentials", rack.credentials, *more)


# Looking


def test_a_message_of_many_servers_is_printed_once(mixed_rack: Rack) -> None:
    done = mixed_rack.run_command("bmc", "diff")
    (line,) = [line for line in done.out.splitlines() if "pass their directory with --credentials" in line]
    assert re.match(r"\w+, \w+, \w+ and \d+ more: no access: ", line)


@pytest.mark.parametrize("command", [("bmc", "get"), ("bmc", "diff"), ("records", "show")])
def test_servers_are_selected_by_labels_too(mixed_rack: Rack, command: tuple[str, str]) -> None:
    more = () if command[0] == "records" else ("--credentials", mixed_rack.credentials)
    found = mixed_rack.run_command(*command, "web01", "web03", "-l", "!role", "-o", "json", *more).json["items"]
    assert sorted(item["server"] for item in found) == ["web01", "web03"]
    nobody = mixed_rack.run_command(*command, "-l", "role=db", *more)
    assert (nobody.code, "no server has the labels role=db" in nobody.err) == (Exit.USAGE, True), nobody


def test_the_worst_servers_come_first_and_the_hints_follow_the_table(mixed_rack: Rack) -> None:
    done = get(mixed_rack)
    dead = mixed_rack.blades["web02"].bmc.url
    assert (done.code, done.err) == (Exit.PARTIAL, "")
    assert done.out.splitlines() == [
        "SERVER  PHASE    WANTED    CURRENT      RECORD                 EVIDENCE  NEXT STEP",
        "web01   Network  Once Pxe  Disabled     Recorded provision/1   pending   see below",
        "web02   Network  Once Pxe  unreachable  -                      pending   -",
        "web03   Network  Once Pxe  Disabled     Withdrawn provision/1  pending   Set",
        *(f"{name}    Disk     -         Disabled     -                      Adopted   Leave" for name in FINE),
        "",
        "web01: NeedsOperator: gitboot tried to set Once Pxe for provision/1, but the BMC does not show it.",
        "    Either the override was never set, or the machine has booted from it",
        f"    gitboot bmc resolve web01 --consumed --state {mixed_rack.state} --reason '…'"
        "  # look at the console of web01. If web01 has started since gitboot set the override, run this. Otherwise "
        "use --not-set instead of --consumed. gitboot then sets the override again, and the next boot can erase the "
        "disks of web01",
        f"web02: GET {dead}/redfish/v1/Systems/1: Connection refused (credentials rack)",
        f"    curl -ksS {dead}/redfish/v1/",
        "web03: required for provision/1",
        "",
        "23 BMCs: 1 needs an operator, 1 not read, 1 differs from the plan, 20 as planned",
    ]


def test_a_server_that_waits_for_the_name_of_the_ledger_has_the_line_for_the_fleet(tmp_path: Path) -> None:
    """The hint is one command: first the one that begins the records, then the one that names the ledger."""
    with Rack(tmp_path, named=False) as rack:
        web = rack.add("web01", provision=1)
        rack.push()
        rack.once(*rack.spool_options)
        (item,) = get(rack, "-o", "json").json["items"]
        assert item["hint"].startswith(
            "gitboot records begin adopt --state STATE  # first check that STATE is the right folder"
        )
        rack.once(*rack.spool_options, records="fresh")
        (item,) = get(rack, "-o", "json").json["items"]
        assert (item["next"], item["patch"]) == ("Wait", None)
        assert item["why"] == "the Fleet does not name a ledger, so another instance may change the same BMC"
        assert item["hint"].startswith(f"provisioning: {{ledger: {rack.ledger()}}}  # ")
        assert rack.run_command("bmc", "diff", "--credentials", rack.credentials, "--detailed-exitcode").code == 2
        with rack.running():
            done = rack.run_command("bmc", "apply", "web01")
        assert done == (
            0,
            "gitboot contacts 1 BMC now\n",
            "gitboot does not set boot overrides until the Fleet names a ledger; "
            "run `gitboot status` to see the line to add\n",
        )
        web.machine.write(**{ENABLED: "Once", TARGET: "Pxe"})
        (item,) = get(rack, "-o", "json").json["items"]
        assert item["next"] == "Wait", "nor is it noted whose that is"
        rack.named = True
        rack.push()
        rack.once(*rack.spool_options)
        (item,) = get(rack, "-o", "json").json["items"]
        assert item["recorded"][0]["state"] == "SetByAnother"
        assert item["hint"].startswith("gitboot records set web01 provisioned --state STATE"), (
            "and it counts as consumed"
        )


def test_every_line_fits_into_100_columns_without_colours(mixed_rack: Rack) -> None:
    for shown in (get(mixed_rack), mixed_rack.run_command("records", "show"), mixed_rack.run_command("status")):
        assert shown.code in (Exit.FINE, Exit.PARTIAL)
        lines = [
            line for line in shown.out.splitlines() if f"--state {mixed_rack.state}" not in line
        ]  # to be copied whole
        assert [line for line in lines if len(line) > 100 or "\x1b" in line] == []


def test_the_same_facts_are_in_the_json(mixed_rack: Rack) -> None:
    items = get(mixed_rack, "-o", "json").json["items"]
    assert [item["server"] for item in items] == ["web01", "web02", "web03", *FINE]
    first, second, third, *_ = items
    assert (first["next"], first["needsOperator"], first["recorded"][0]["state"]) == ("AskOperator", True, "Recorded")
    assert "gitboot bmc resolve web01" in first["hint"]
    assert (second["next"], second["seen"], second["needsOperator"]) == ("unreachable", None, False)
    assert (third["next"], third["wanted"]["target"], third["wanted"]["reason"]) == ("Set", "Pxe", "provision/1")
    assert third["patch"].startswith('/redfish/v1/Systems/1: {"Boot": {')


def test_only_the_named_servers_are_read(mixed_rack: Rack) -> None:
    mixed_rack.blades["db07"].machine.requests.clear()
    assert [item["server"] for item in get(mixed_rack, "web02", "db03", "-o", "json").json["items"]] == [
        "web02",
        "db03",
    ]
    assert mixed_rack.blades["db07"].machine.requests == []


def test_diff_shows_each_patch_and_exits_with_2_on_request(mixed_rack: Rack) -> None:
    done = diff(mixed_rack)
    assert done.code == Exit.PARTIAL
    url = mixed_rack.blades["web03"].bmc.url
    body = '{"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe"}}'
    assert f"web03: Set: required for provision/1\n  PATCH {url}/redfish/v1/Systems/1: {body}\n" in done.out
    assert "db00" not in done.out and done.out.count("PATCH") == 1
    assert diff(mixed_rack, "web01", "web03", "--detailed-exitcode").code == Exit.CHANGES
    fine = diff(mixed_rack, "db00", "--detailed-exitcode")
    assert (fine.code, fine.out) == (Exit.FINE, "all BMCs match their plans\n")


def test_the_exit_code_shows_that_a_bmc_did_not_respond(mixed_rack: Rack) -> None:
    for look in (get, diff):
        assert look(mixed_rack, "web02").code == look(mixed_rack, "web02", "db00", "-o", "json").code == Exit.PARTIAL
        assert look(mixed_rack, "web03", "db00").code == Exit.FINE
    assert diff(mixed_rack, "web02", "--detailed-exitcode").code == Exit.PARTIAL


def test_an_error_names_the_bmc_its_credentials_the_cause_and_the_next_step(mixed_rack: Rack) -> None:
    dead = mixed_rack.blades["web02"].bmc.url
    (item,) = get(mixed_rack, "web02", "-o", "json").json["items"]
    assert (item["bmc"], item["credentials"], item["responded"]) == (dead, "rack", False)
    assert item["why"] == f"GET {dead}/redfish/v1/Systems/1: Connection refused (credentials rack)"
    assert item["hint"] == f"curl -ksS {dead}/redfish/v1/"
    assert f"web02: unreachable: {item['why']}\n  {item['hint']}\n" in diff(mixed_rack, "web02").out


def fail_at(rack: Rack, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of BMC connections that works and then fails, at one BMC."""
    uuid = rack.blades[name].uuid

    def work_and_fail(bmc: BmcConnection, *args: Any) -> Any:
        found = method(bmc, *args)
        if any(isinstance(each, BmcObservation) and each.identity.uuid == uuid for each in (found, *args)):
            raise ZeroDivisionError(PASSWORD)
        return found

    return work_and_fail


@pytest.mark.parametrize("command", ["get", "diff", "power get"])
def test_an_unexpected_error_at_one_bmc_is_its_result_and_the_others_are_read(
    mixed_rack: Rack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    monkeypatch.setattr(BmcConnection, "observe", fail_at(mixed_rack, "db03", BmcConnection.observe))
    words = ("bmc", *command.split(), "--credentials", mixed_rack.credentials, "-o", "json")
    done = mixed_rack.run_command(*words, "db03", "web03")
    items = {item["server"]: item for item in done.json["items"]}
    assert (done.code, items["web03"]["responded"], items["db03"]["responded"]) == (Exit.PARTIAL, True, False)
    assert items["db03"]["why"].startswith("gitboot failed because of a defect (ZeroDivisionError); report it")
    (entry,) = caplog.records
    assert (entry.message.startswith("a task at the BMC of db03 (http"), bool(entry.exc_info)) == (True, True)
    if command == "get":
        assert "internal error" in get(mixed_rack, "db03").out


def test_secure_boot_and_the_boot_order_are_shown_for_named_servers(mixed_rack: Rack) -> None:
    order = "boot order: Boot0001, Boot0002"
    command = (
        require_inline_code("docs/how-to/secure-boot.md", "gitboot bmc get SERVER")
        .replace("SERVER", "db00")
        .split()[1:]
    )
    shown = mixed_rack.run_command(*command, "--credentials", mixed_rack.credentials).out
    assert f"\n\ndb00: Secure Boot: off; {order}\n1 BMC: 1 as planned\n" in shown
    (seen,) = (item["seen"] for item in get(mixed_rack, "db00", "-o", "json").json["items"])
    assert (seen["bootOrder"], seen["secureBoot"]) == (["Boot0001", "Boot0002"], False)
    assert "Secure Boot" not in get(mixed_rack).out


def test_an_override_that_a_later_window_ends_is_as_planned(rack: Rack) -> None:
    for name in ("web01", "web02"):
        rack.add(name, provision=1)
    window = "2099-01-01T22:00:00 2099-01-02T04:00:00"
    rack.pool = (*rack.pool, maintenance("repair", window, select="All", boots="web"))
    rack.push()
    done = rack.once(*LOOSE_LIMITS, *rack.spool_options, records="fresh")
    assert done.code == Exit.FINE, done
    assert [item["next"] for item in rack.bmc_get().values()] == ["Leave", "Leave"]
    assert get(rack).out.endswith("\n2 BMCs: 2 as planned\n")
    assert diff(rack, "--detailed-exitcode").code == Exit.FINE
    for blade in rack.blades.values():
        blade.machine.write(**{ENABLED: "Disabled", TARGET: "None"})
    assert get(rack).out.endswith("\n2 BMCs: 2 differ from the plan\n")


def test_diff_warns_about_a_kernel_that_secure_boot_will_reject(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    rack.once(*rack.spool_options, records="fresh")
    assets = rack.folder / "assets"
    (assets / "flatcar-1").mkdir(parents=True)
    program = "http://boot.test/assets/flatcar-1/kernel"
    warning = f"warning: Secure Boot is on, but {program} {{}}, so the firmware will reject this file"
    for is_on, head, fault in (
        (True, efi_program(signed=False), "has no signature"),
        (True, b"\x1f\x8b a compressed kernel", "is not an EFI program"),
        (True, efi_program(signed=True), None),
        (False, efi_program(signed=False), None),
    ):
        web.machine.secure_boot = is_on
        (assets / "flatcar-1" / "kernel").write_bytes(head)
        done = diff(rack, "--assets", assets, "-o", "text", "-o", f"json={rack.folder / 'diff.json'}")
        assert done.out.count("warning") == int(fault is not None), done
        assert fault is None or warning.format(fault) in done.out, done
    web.machine.secure_boot = True
    assert "warning" not in diff(rack).out, "nobody says what it boots"


def test_diff_shows_when_dhcp_names_the_file_instead_of_the_wanted_uri(rack: Rack) -> None:
    rack.pool = (
        image("flatcar-1", "configFrom: None", "uki"),
        profile("web", "flatcar-1", "httpBoot: uki", method="UefiHttp"),
        policy("web", often="Once"),
    )
    for name, kind in (("web01", GENERIC), ("web02", IDRAC9), ("web03", OPENBMC)):
        rack.add(name, provision=1, profile=kind).bmc.fault(Status(status=503), on="PATCH", times=9)
    rack.push()
    assert rack.once(*LOOSE_LIMITS, *rack.spool_options, records="fresh").code == Exit.PARTIAL
    said = diff(rack).out
    assert "web01: Set: required for provision/1\n" in said
    assert (
        "web02: Set: required for provision/1; the BMC does not support HttpBootUri, so the DHCP server must name "
        "the boot loader\n" in said
    )
    assert (
        "web03: Set: required for provision/1; the BMC does not support UefiHttp, so the DHCP server must name "
        "the boot loader\n" in said
    )


def test_diff_shows_a_future_reset_and_what_it_waits_for(rack: Rack) -> None:
    rack.pool = (
        image("flatcar-1", artifacts="kernel, initrd, loader"),
        profile("web", "flatcar-1", "httpBoot: loader", method="UefiHttp"),
        policy("web", often="Once", spec="power: On"),
    )
    web, busy = rack.add("web01", provision=1), rack.add("web02", provision=1)
    dell = rack.add("web03", provision=1, profile=IDRAC9)
    busy.bmc.fault(Status(status=503), on="PATCH", times=9)
    rack.push()
    rack.once(*LOOSE_LIMITS, *rack.spool_options, records="fresh")
    assert "web01" not in diff(rack).out, "it is on"
    for blade in (web, busy, dell):
        blade.machine.reset("ForceOff")
    resets = web.machine.resets
    done = diff(rack, "--detailed-exitcode")
    assert (done.code, "web01: Power: On for provision/1, at once\n" in done.out) == (Exit.CHANGES, True), done
    uri = "http://boot.test/assets/flatcar-1/loader"
    told = f"On for provision/1, at once; before that, gitboot sets the firmware's HTTP boot URI to {uri}"
    assert f"web03: Power: {told}\n" in done.out
    patch = '{"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "UefiHttp", "HttpBootUri": '
    patch += f'"{uri}"}}}}'
    waits = "  then On for provision/1 is waiting: gitboot has not confirmed the override\n"
    assert (
        f"web02: Set: required for provision/1\n  PATCH {busy.bmc.url}{busy.machine.path}: {patch}\n{waits}" in done.out
    )
    (item,) = get(rack, "web01", "-o", "json").json["items"]
    assert (item["next"], item["power"]) == ("Power", "On for provision/1, at once")
    assert web.machine.resets == resets, "nothing was sent"


def test_an_account_that_may_not_read_secure_boot_reads_the_rest(mixed_rack: Rack) -> None:
    mixed_rack.blades["db01"].machine.secure_boot = None
    assert "db01: Secure Boot: not shown; " in get(mixed_rack, "db01").out


def test_get_and_diff_write_nothing(mixed_rack: Rack) -> None:
    before = {path: path.read_bytes() for path in mixed_rack.state.rglob("*") if path.is_file()}
    get(mixed_rack)
    diff(mixed_rack)
    assert {path: path.read_bytes() for path in mixed_rack.state.rglob("*") if path.is_file()} == before
    assert [blade.machine.writes for blade in mixed_rack.blades.values()] == [[]] * len(mixed_rack.blades)


def test_servers_whose_bmcs_fail_in_the_same_way_share_one_line(mixed_rack: Rack) -> None:
    done = mixed_rack.run_command("bmc", "get", *FINE)
    assert done.out.splitlines()[-4:] == [
        "db00, db01, db02, db03, db04 and 15 more: gitboot needs the credentials rack: pass their directory",
        "    with --credentials",
        "",
        "20 BMCs: 20 not read",
    ]


def test_a_consumed_override_without_evidence_needs_an_operator_here_too(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    rack.once(*rack.spool_options, records="fresh")
    web.machine.run_through()
    rack.once(*rack.spool_options)
    assert get(rack, "-o", "json").json["items"][0]["needsOperator"] is False  # it has half an hour
    rack.age("UPDATE records SET consumed_at = '2026-11-01T00:00:00Z'")
    lines = get(rack).out.splitlines()
    assert lines[1].split() == [
        "web01",
        "Disk",
        "-",
        "Disabled",
        "Consumed",
        "provision/1",
        "consumed",
        "see",
        "below",
    ]
    line = f"gitboot records set web01 provisioned --state {rack.state} --reason '…'"
    line += (
        "  # check web01. If the server is installed, run this. If it is not installed, use pending instead of "
        "provisioned. gitboot then erases the server's disks and installs the server"
    )
    assert lines[-3] == f"    {line}"
    assert lines[-1] == "1 BMC: 1 needs an operator"


# Saying


def test_resolve_works_without_an_instance_and_the_next_reconcile_sets_the_override(rack: Rack) -> None:
    rack.add_unverified("web01")
    said = rack.said("bmc", "resolve", "web01", "--not-set", "--reason", "console is empty")
    assert said == (
        "web01: recorded the override as not set; gitboot sets it if the plan requires it (console is empty)\n"
    )
    assert (
        rack.said("bmc", "resolve", "web01", "--not-set", "--reason", "x")
        == "web01: no override or power request is unresolved\n"
    )
    rack.once(*rack.spool_options)
    assert (rack.blades["web01"].times_set, rack.blades["web01"].stands) == (1, True)


def test_another_machine_is_accepted_and_a_foreign_override_replaced_by_the_commands_that_get_prints(
    rack: Rack,
) -> None:
    web, other = rack.add("web01", provision=1), rack.add("web02", provision=1)
    web.machine.uuid, web.machine.serial = make_uuid("another"), "CZ29200XYZ"
    other.machine.write(BootSourceOverrideEnabled="Continuous", BootSourceOverrideTarget="Hdd")
    rack.push()
    rack.once(*LOOSE_LIMITS, *rack.spool_options, records="fresh")
    another, foreign = get(rack, "-o", "json").json["items"]
    assert another["why"].startswith("AnotherMachine: the BMC reports UUID")
    assert "gitboot bmc resolve web01 --same" in another["hint"]
    assert foreign["why"].startswith("ForeignOverride: the BMC shows Continuous Hdd")
    assert "gitboot bmc resolve web02 --replace" in foreign["hint"]
    assert rack.said("bmc", "resolve", "web01", "--same", "--reason", "INC-1").startswith("web01: accepted the machine")
    rack.said("bmc", "resolve", "web02", "--replace", "--reason", "left by the old installer")
    rack.once(*LOOSE_LIMITS, *rack.spool_options)
    assert (web.times_set, web.stands, other.override) == (1, True, ("Once", "Pxe"))


def test_replace_does_not_allow_an_install_boot_that_the_instance_withholds(rack: Rack) -> None:
    rack.pool = (*rack.pool[:-1], policy("web", spec="diskBoot: Hdd", often="Once"))
    web = rack.add("web01", provision=1)
    rack.add("web02")
    web.machine.write(BootSourceOverrideEnabled="Continuous", BootSourceOverrideTarget="Usb")
    rack.push()
    assert rack.once(*rack.spool_options, records="fresh").code == Exit.PARTIAL
    web.provision = 2
    del rack.blades["web02"]
    rack.push()
    assert rack.once(*rack.spool_options).code == Exit.HELD
    shown = rack.bmc_get()["web01"]
    assert shown["phase"] == "Disk" and "gitboot bmc resolve web01 --replace" in shown["hint"], shown
    said = rack.said("bmc", "resolve", "web01", "--replace", "--reason", "left by the old installer")
    assert f"the override on its BMC with the override for {shown['wanted']['reason']} (" in said
    assert shown["wanted"]["reason"].startswith("disk"), shown


def test_replace_does_not_allow_an_install_boot_whose_files_are_missing(rack: Rack, tmp_path: Path) -> None:
    rack.pool = (*rack.pool[:-1], policy("web", spec="diskBoot: Hdd", often="Once"))
    web = rack.add("web01", provision=1)
    web.machine.write(BootSourceOverrideEnabled="Continuous", BootSourceOverrideTarget="Usb")
    rack.push()
    (assets := tmp_path / "assets").mkdir()
    assert rack.once(*rack.spool_options, "--assets", assets, records="fresh").code == Exit.PARTIAL
    assert rack.bmc_get()["web01"]["wanted"]["reason"] == "disk"
    assert "with the override for disk (x)" in rack.said("bmc", "resolve", "web01", "--replace", "--reason", "x")


def test_an_ended_window_stays_closed_after_the_clock_was_set_back(rack: Rack) -> None:
    web = rack.add("web01")
    web.machine.write(BootSourceOverrideEnabled="Continuous", BootSourceOverrideTarget="Usb")
    rack.pool = (
        *(*rack.pool[:-1], policy("web", spec="diskBoot: Hdd", often="Once")),
        maintenance("repair", "2026-11-01T22:00:00 2099-01-02T04:00:00", boots="web"),
    )
    rack.push()
    rack.once(*LOOSE_LIMITS, *rack.spool_options, records="adopt")
    assert rack.bmc_get()["web01"]["phase"] == "Maintenance"
    rack.age("UPDATE facts SET value = json_set(value, '$.at', '2099-01-03T00:00:00Z') WHERE name = 'heartbeat'")
    shown = rack.bmc_get()["web01"]
    assert (shown["phase"], shown["wanted"]["reason"]) == ("Disk", "disk")
    assert "with the override for disk (x)" in rack.said("bmc", "resolve", "web01", "--replace", "--reason", "x")


def test_an_identity_that_a_bmc_never_reported_cannot_be_accepted(rack: Rack) -> None:
    rack.add("web01")
    rack.push()
    rack.once()
    done = rack.run_command("bmc", "resolve", "web01", "--same", "--reason", "x")
    assert (done.code, "gitboot has not read web01's BMC yet" in done.err) == (Exit.USAGE, True)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bmc get wbe01", "the accepted commit has no server 'wbe01'; did you mean web01?"),
        ("bmc get xyzzy", "the accepted commit has no server 'xyzzy'; `gitboot plan` lists the servers"),
        ("bmc diff wbe01", "did you mean web01?"),
        ("bmc resolve wbe01 --consumed --reason x", "did you mean web01?"),
        ("bmc resolve web01 --reason x", "Missing option: pass '--consumed'"),
        ("bmc resolve web01 --consumed", "Missing option '--reason'"),
        ("bmc apply", "no instance is running with the state directory"),
        (
            "bmc get --credentials /does/not/exist",
            "the directory /does/not/exist does not exist; create it with NAME/username",
        ),
        ("bmc power on --reason x", "pass server names, or select servers by label"),
        ("bmc power reset wbe01 --reason x", "did you mean web01?"),
        ("bmc power reset web01", "Missing option '--reason'"),
        ("bmc power on web01 --force --reason x", "No such option"),
        ("bmc power reset -l role=nobody --reason x", "no server has the labels role=nobody"),
    ],
)
def test_a_command_that_cannot_be_done_fails_with_a_hint(mixed_rack: Rack, command: str, said: str) -> None:
    more = ("--credentials", mixed_rack.credentials) if "power" in command else ()
    done = mixed_rack.run_command(*command.split(), *more)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert said in done.err and "Traceback" not in done.err


def test_missing_credentials_are_named_for_each_server(mixed_rack: Rack, tmp_path: Path) -> None:
    done = mixed_rack.run_command("bmc", "get", "db00", "--credentials", tmp_path)
    assert (done.code, "no access" in done.out) == (Exit.PARTIAL, True), done
    assert f"gitboot cannot read the credentials rack: {tmp_path / 'rack'} must contain the files" in " ".join(
        done.out.split()
    )


def test_an_instance_does_not_start_if_its_credentials_directory_does_not_exist(rack: Rack) -> None:
    rack.named = False
    rack.add("web01")
    rack.push()
    places = ("--out", rack.output, "--state", rack.state)
    for more in (("--once",), ("--dry-run",), ()):
        done = run_command("run", rack.repository.bare, *places, "--credentials", rack.folder / "credentails", *more)
        assert done.code == Exit.USAGE
        assert f"the directory {rack.folder / 'credentails'} does not exist; create it" in done.err
    assert not rack.state.exists()


# Secrets


def test_the_password_is_in_no_output_event_metric_or_file(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.add("web02", provision=1).bmc.fault(Status(status=401), times=99)
    rack.push()
    with rack.running(records="fresh") as instance:
        eventually(lambda: any(event["type"] == "OverrideConfirmed" for event in instance.events))
        eventually(lambda: any(event["type"] == "OverrideStalled" for event in instance.events))
        paths = ("/metrics", "/api/v1/status", "/api/v1/servers", "/api/v1/servers/web01")
        shown = [instance.get(path).text for path in paths]
        for command in ("bmc get", "bmc diff", "bmc get -o json"):
            done = rack.run_command(*command.split(), "--credentials", rack.credentials)
            shown += [done.out, done.err]
        for command in ("status", "status -o json", "records show", "events", "bmc apply"):
            done = rack.run_command(*command.split())
            shown += [done.out, done.err]
        shown += map(str, instance.events)
    files = [path for path in rack.folder.rglob("*") if path.is_file() and rack.credentials not in path.parents]
    basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    for secret in (PASSWORD, basic):
        assert not any(secret in text for text in shown)
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert (web.times_set, any("web02" in text for text in shown)) == (1, True)


ALL_RESETS = frozenset(ResetType)


def make_observation(**more: Any) -> BmcObservation:
    return BmcObservation(**{"system": "/redfish/v1/Systems/1", "override": NO_OVERRIDE, "power": "On", **more})


@for_each(
    ("action", "force", "seen", "step"),
    [
        ("on", False, make_observation(power="Off"), ResetType.ON),
        ("on", False, make_observation(power="Off", reset_types=ALL_RESETS - {ResetType.ON}), ResetType.FORCE_ON),
        ("on", False, make_observation(), NoChange(why="the machine is already on")),
        ("on", False, make_observation(in_post=True), NoChange(why="the machine is already on")),
        ("off", False, make_observation(reset_types=ALL_RESETS), ResetType.GRACEFUL_SHUTDOWN),
        ("off", True, make_observation(reset_types=ALL_RESETS), ResetType.FORCE_OFF),
        ("off", False, make_observation(power="Off"), NoChange(why="the machine is already off")),
        ("reset", False, make_observation(reset_types=ALL_RESETS), ResetType.GRACEFUL_RESTART),
        ("reset", True, make_observation(reset_types=ALL_RESETS), ResetType.FORCE_RESTART),
        ("reset", True, make_observation(reset_types=frozenset({"PowerCycle"})), ResetType.POWER_CYCLE),
        ("reset", False, make_observation(power=None), ResetType.GRACEFUL_RESTART),
        (
            "reset",
            False,
            make_observation(power="Off"),
            PowerChangeRefusal(why="the machine is off: use gitboot bmc power on"),
        ),
        (
            "reset",
            True,
            make_observation(in_post=True),
            PowerChangeRefusal(why="the machine is in POST: try again later"),
        ),
        (
            "reset",
            False,
            make_observation(reset_types=frozenset({"On", "ForceRestart"})),
            PowerChangeRefusal(why="the BMC allows only ForceRestart, On; add --force to bypass the operating system"),
        ),
        (
            "off",
            True,
            make_observation(reset_types=frozenset({"On"})),
            PowerChangeRefusal(why="the BMC allows only On"),
        ),
    ],
)
def test_the_reset_type_is_one_that_the_bmc_allows(
    action: str, force: bool, seen: BmcObservation, step: object
) -> None:
    assert choose_power_step(PowerAction(action), seen, SameMachine(), force=force) == step


@for_each("action", list(PowerAction))
@for_each("force", [False, True])
def test_another_machine_is_not_reset_or_switched_on(action: PowerAction, force: bool) -> None:
    for identified in (AnotherMachine(message="it is web02"), IdentityChanged(message="it was web02")):
        step = choose_power_step(action, make_observation(power="Off"), identified, force=force)
        assert isinstance(step, PowerChangeRefusal) and step.why == f"AnotherMachine: {identified.message}"
    unknown = UnprovenIdentity(message="it shows nothing")
    assert isinstance(choose_power_step(PowerAction.ON, make_observation(power="Off"), unknown, force=force), ResetType)


@pytest.fixture
def pair(rack: Rack) -> Rack:
    rack.add("web01", provision=1)
    rack.add("web02")
    rack.push()
    rack.once(*rack.spool_options, records="fresh")
    return rack


def power(rack: Rack, *command: object) -> CommandResult:
    return rack.run_command("bmc", "power", *command, "--credentials", rack.credentials)


def resets(rack: Rack) -> list[int]:
    """Let each machine run, and return how often it was reset."""
    for blade in rack.blades.values():
        blade.machine.advance(blade.machine.post_s * 2)
    return [blade.machine.resets for blade in rack.blades.values()]


def test_machines_are_reset_and_switched_on_once_by_hand_and_several_need_yes_without_a_terminal(pair: Rack) -> None:
    before = resets(pair)
    command = ("reset", "-l", "role!=db", "--force", "--reason", "kernel")
    done = power(pair, *command)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert "add --yes to confirm" in done.err
    assert "reset for 2 servers (1 of them would run an install boot): kernel" in done.err
    assert resets(pair) == before
    dry = power(pair, *command, "--dry-run", "-o", "json")
    assert (dry.code, [item["sent"] for item in dry.json["items"]]) == (0, [False, False])
    assert resets(pair) == before and "by hand" not in pair.said("events")
    assert power(pair, *command, "--yes").code == 0
    assert resets(pair) == (before := [count + 1 for count in before])
    done = power(pair, "reset", "web01", "--force", "--reason", "INC-7 hangs")
    assert (done.code, "sent ForceRestart" in done.out) == (0, True), done
    assert resets(pair) == [before[0] + 1, before[1]]
    said = pair.said("events")
    asked, done_so = "power reset by hand: web01 (INC-7 hangs)", "web01 was sent ForceRestart (INC-7 hangs)"
    assert asked in said and done_so in said and said.index(asked) < said.index(done_so)
    pair.blades["web02"].machine.reset("ForceOff")
    before = resets(pair)
    shown = {item["server"]: item["power"] for item in power(pair, "get", "-o", "json").json["items"]}
    assert shown == {"web01": "On", "web02": "Off"}
    done = power(pair, "on", "web01", "web02", "--reason", "cold", "--yes", "-o", "json")
    assert [(item["server"], item["sent"], item["why"]) for item in done.json["items"]] == [
        ("web01", False, "the machine is already on"),
        ("web02", True, None),
    ]
    assert resets(pair) == [before[0], before[1] + 1]
    assert "power on by hand: web02 (cold)" in pair.said("events")


def test_another_machine_gets_no_reset_and_after_a_lost_response_or_an_error_nothing_is_sent_again(
    pair: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    web, bmc = pair.blades["web01"].machine, pair.blades["web01"].bmc
    own, before = (web.uuid, web.serial), resets(pair)
    web.uuid, web.serial = make_uuid("another"), "CZ29200XYZ"
    done = power(pair, "reset", "web01", "--force", "--reason", "x")
    assert (done.code, "AnotherMachine" in done.out) == (Exit.PARTIAL, True)
    assert resets(pair) == before and "by hand" not in pair.said("events")
    web.uuid, web.serial = own
    bmc.fault(Drop(applied=True), on="POST", times=1)
    done = power(pair, "reset", "web01", "--force", "--reason", "x", "-o", "json")
    (item,) = done.json["items"]
    assert (done.code, item["sent"]) == (Exit.PARTIAL, None)
    assert "The BMC may have executed ForceRestart. Check the machine before you try again" in item["why"]
    assert resets(pair) == (before := [before[0] + 1, before[1]])
    assert "the power state of web01 may have changed: " in pair.said("events")
    with monkeypatch.context() as patch:
        patch.setattr(BmcConnection, "reset", fail_at(pair, "web01", BmcConnection.reset))
        done = power(pair, "reset", "web01", "--force", "--reason", "x", "-o", "json")
    (item,) = done.json["items"]
    assert (done.code, item["sent"]) == (Exit.PARTIAL, None), "an unexpected error too"
    assert "The BMC may have executed ForceRestart. Check the machine before you try again" in item["why"]
    assert resets(pair) == (before := [before[0] + 1, before[1]])
    assert (
        "the power state of web01 may have changed: gitboot failed because of a defect (ZeroDivisionError)"
        in pair.said("events")
    )
    bmc.fault(Status(status=503), on="POST", times=9)
    done = power(pair, "reset", "web01", "web02", "--force", "--yes", "--reason", "x", "-o", "json")
    assert (done.code, [item["sent"] for item in done.json["items"]]) == (Exit.PARTIAL, [False, True])
    assert resets(pair) == [before[0], before[1] + 1], "the other machine is reset"
    bmc.fault(Drop(applied=False), on="GET", times=9)
    shown = power(pair, "get")
    assert (shown.code, "2 BMCs: 1 on, 1 not read" in shown.out) == (Exit.PARTIAL, True), shown.out
    assert max(map(len, shown.out.splitlines())) <= 100


def test_a_selected_server_without_a_bmc_is_named_and_the_others_are_switched(rack: Rack) -> None:
    rack.add("web01", provision=1)
    rack.pool = (*rack.pool, server("db01"))
    rack.push()
    rack.once(*rack.spool_options, records="fresh")
    (before,) = resets(rack)
    done = power(rack, "reset", "-l", "role!=none", "--force", "--reason", "fire", "--yes")
    assert (done.code, "no BMC is configured for db01; skipped" in done.err) == (Exit.PARTIAL, True), done
    assert resets(rack) == [before + 1]
    done = power(rack, "reset", "db01", "web01", "--force", "--reason", "fire", "--yes")
    assert (done.code, "no BMC is configured for db01; add `spec.bmc`" in done.err) == (Exit.USAGE, True), done
    assert power(rack, "get", "-l", "role!=none").code == Exit.FINE
    assert resets(rack) == [before + 1]
