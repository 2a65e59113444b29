"""`gitboot bmc enroll`: from addresses and credentials to documents, an access file and a new ledger."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from typing import Any, Self

import httpx
import pytest
from msgspec import structs

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.scan import open_pinned_connection, read_certificates, scan
from gitboot.cli.commands import bmc_enroll
from gitboot.cli.main import Exit
from gitboot.model.scalars import SystemUuid, byte_orders
from tests.bmc.test_ipmi import ipmi_machine, needs_ipmitool
from tests.helpers.fleets import fleet, make_mac, make_uuid, name_ledger, store_credentials, write_configuration
from tests.helpers.fleets import server as server_document
from tests.helpers.git_repositories import free_port
from tests.helpers.http_peers import Authority
from tests.helpers.instance_with_bmcs import PASSWORD, POOL, USER, CommandResult, run_command
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import Repository, create_ledger, eventually

NAMES = ("web01", "web02", "web03")


@dataclass
class Site:
    """Three BMCs, each with its own certificate, credentials, and a fleet that describes none of them."""

    folder: Path
    authority: Authority
    fingerprints: dict[str, str] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    bmcs: dict[str, RedfishServer] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        store_credentials(self.credentials, user=USER, password=PASSWORD)
        (self.credentials / "access.toml").unlink(missing_ok=True)
        self.work.mkdir()
        (self.work / "fleet.yaml").write_text(fleet("baseURL: 'http://boot.test'"))
        for name in NAMES:
            self.machines[name] = Machine(name, uuid=make_uuid(name))
            self.machines[name].nics = {"NIC.1": make_mac(name)}
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, port: int = 0) -> None:
        """Start a BMC with a new certificate."""
        issued = self.authority.issue()
        self.fingerprints[name] = sha256(PEM_cert_to_DER_cert(issued.certificate.read_text())).hexdigest()
        service = Service(self.machines[name], credentials={USER: PASSWORD})
        self.bmcs[name] = self._stack.enter_context(
            RedfishServer(service, tls=issued.context, port=port or free_port())
        )

    def renew_certificate(self, name: str) -> None:
        port = self.bmcs[name].address[1]
        self.bmcs[name].__exit__(None, None, None)
        self.start(name, port)

    @property
    def credentials(self) -> Path:
        return self.folder / "credentials"

    @property
    def work(self) -> Path:
        return self.folder / "fleet"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def access(self) -> str:
        return (self.credentials / "rack" / "access.toml").read_text()

    @property
    def list(self) -> Path:
        file = self.folder / "bmcs.txt"
        file.write_text("# the rack\n" + "".join(f"{self.bmcs[name].url} {name}\n" for name in NAMES))
        return file

    def enroll(self, *more: object) -> CommandResult:
        places = ("--credentials", self.credentials, "--as", "rack", "--path", self.work)
        return run_command("bmc", "enroll", *(more or (self.list,)), *places)

    def requests(self) -> int:
        return sum(len(each.service.requests) for each in self.bmcs.values())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def site(tmp_path: Path, authority: Authority) -> Iterator[Site]:
    with Site(tmp_path, authority) as site:
        yield site


def _push(site: Site) -> Path:
    folder = site.folder / "git"
    repository = Repository(folder / "fleet.git", folder / "work") if folder.exists() else Repository.create(folder)
    repository.push({str(each.relative_to(site.work)): each.read_text() for each in site.work.rglob("*.yaml")}, "Enrol")
    return repository.bare


def _run_once(site: Site, repository: Path, *more: object) -> CommandResult:
    places = ("--out", site.folder / "out", "--state", site.state, "--credentials", site.credentials)
    return run_command("run", repository, *places, "--once", "--spool", site.folder / "spool", *more)


def _show_records(site: Site) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = run_command("records", "show", "--state", site.state, "-o", "json").json["items"]
    return sorted(items, key=lambda each: str(each["server"]))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def test_one_command_enrols_three_bmcs_and_the_instance_accepts_and_adopts_them(site: Site) -> None:
    done = site.enroll(site.list, "--state", site.state, "--yes")
    assert (done.code, done.err) == (Exit.FINE, ""), done
    for name in NAMES:
        document = (site.work / "servers" / f"{name}.yaml").read_text()
        assert f"uuid: {make_uuid(name)}" in document
        assert "provision: 0  #" in document and "lifecycle: Parked  #" in document
        assert f"{site.bmcs[name].url} {site.fingerprints[name]}  # new" in done.out.splitlines()
    ports = {name: site.bmcs[name].address[1] for name in NAMES}
    assert tomllib.loads(site.access) == {
        "networks": ["127.0.0.1/32"],
        "certificates": {f"127.0.0.1:{ports[name]}": site.fingerprints[name] for name in NAMES},
    }
    assert all(machine.writes == [] for machine in site.machines.values())

    ran = _run_once(site, _push(site))
    assert ran.code == Exit.FINE and "the ledger begins with every server installed as Git describes it" in ran.err, ran
    assert [(each["server"], each["record"]["provision"]) for each in _show_records(site)] == [
        (name, 0) for name in NAMES
    ]
    got = run_command("bmc", "get", "--state", site.state, "--credentials", site.credentials, "-o", "json")
    assert [each["responded"] for each in got.json["items"]] == [True, True, True], got
    shown = run_command("bmc", "get", "--state", site.state, "--credentials", site.credentials).out.splitlines()
    assert [line.split()[1:3] for line in shown[1:4]] == [["no", "plan"]] * 3
    assert shown[-1] == "3 BMCs: 3 with no plan"


def test_without_confirmation_nothing_is_sent_or_written_and_a_dry_run_prints_fingerprints_for_a_later_command(
    site: Site,
) -> None:
    done = site.enroll(site.list, "--state", site.state)
    assert done.code == Exit.USAGE and "add --yes to confirm" in done.err
    assert "gitboot has not sent credentials yet" in done.out
    for name in NAMES:
        assert f"{site.bmcs[name].url} {site.fingerprints[name]}  # new" in done.out.splitlines()
    eventually(lambda: [bmc.connections for bmc in site.bmcs.values()] == [1, 1, 1])  # the handshakes
    shown = site.enroll(site.list, "--dry-run")
    assert (shown.code, site.requests()) == (Exit.FINE, 0), shown
    assert not (site.credentials / "rack" / "access.toml").exists()
    assert not (site.work / "servers").exists() and not site.state.exists()
    (checked := site.folder / "fingerprints").write_text(shown.out)
    done = site.enroll(site.list, "--fingerprints", checked, "--yes")
    assert done.code == Exit.FINE and "Send the user name" not in done.out
    assert len(tomllib.loads(site.access)["certificates"]) == 3


def test_the_json_of_enroll_has_what_gitboot_read_and_wrote(site: Site, tmp_path: Path) -> None:
    nowhere = f"https://127.0.0.1:{free_port()}"
    preview = site.enroll(site.list, nowhere, "--dry-run", "-o", "json")
    urls = [site.bmcs[name].url for name in NAMES]
    contacts = [
        {
            "address": site.bmcs[name].url,
            "certificate": site.fingerprints[name],
            "isKnown": False,
            "refused": None,
            "error": None,
        }
        for name in NAMES
    ]
    assert preview.code == Exit.FINE
    assert preview.json["contacts"][:3] == contacts
    assert [(each["certificate"], bool(each["error"])) for each in preview.json["contacts"][3:]] == [(None, True)]
    assert (preview.json["items"], preview.json["written"]) == ([], [])

    site.renew_certificate("web03")
    (checked := tmp_path / "checked").write_text(
        "".join(f"{site.bmcs[name].url} {site.fingerprints[name]}\n" for name in ("web01", "web02"))
    )
    options = ("--fingerprints", checked, "--yes", "--state", site.state)
    done = site.enroll(site.list, *options, "-o", "json")
    assert done.code == Exit.PARTIAL and "gitboot would write:" in done.err
    refused = [each["refused"] for each in done.json["contacts"]]
    assert refused == [None, None, "the --fingerprints file does not list this BMC"]
    documents = [str(site.work / "servers" / f"{name}.yaml") for name in NAMES[:2]]
    assert [(each["server"], each["document"], each["address"]) for each in done.json["items"]] == [
        *zip(NAMES, documents, urls, strict=False)
    ]
    access, fleet_file = site.credentials / "rack" / "access.toml", site.work / "fleet.yaml"
    assert done.json["written"] == [*documents, str(access), str(site.state), str(fleet_file)]
    assert (done.json["unread"], done.json["differences"]) == ([], [])

    text_file = tmp_path / "text"
    again = site.enroll(site.list, *options, "-o", "json", "-o", f"text={text_file}")
    assert [each["isKnown"] for each in again.json["contacts"]] == [True, True, False]
    assert [(each["server"], each["document"]) for each in again.json["items"]] == [(name, None) for name in NAMES[:2]]
    assert (again.json["written"], text_file.read_text()) == ([], again.err)


def test_a_bmc_whose_certificate_is_not_in_the_file_of_fingerprints_is_not_read(site: Site) -> None:
    (checked := site.folder / "fingerprints").write_text(
        f"{site.bmcs['web01'].url} {site.fingerprints['web01']}\n{site.bmcs['web02'].url} {'0' * 64}\n"
    )
    done = site.enroll(site.list, "--fingerprints", checked, "--yes")
    assert done.code == Exit.PARTIAL
    assert f"refused: the --fingerprints file contains {'0' * 64} for this BMC" in done.out
    assert "refused: the --fingerprints file does not list this BMC" in done.out
    assert [len(site.bmcs[name].service.requests) > 0 for name in NAMES] == [True, False, False]
    assert [each.name for each in (site.work / "servers").iterdir()] == ["web01.yaml"]


def test_a_silent_bmc_stops_no_other_and_a_changed_certificate_is_refused_until_a_person_states_it(site: Site) -> None:
    silent = f"127.0.0.1:{free_port()}"
    done = site.enroll(site.list, silent, "--yes")  # the others are enrolled
    assert (done.code, f"# https://{silent}: no TLS service" in done.out) == (Exit.PARTIAL, True), done
    assert len(list((site.work / "servers").iterdir())) == 3
    before = site.fingerprints["web02"]
    site.renew_certificate("web02")
    refused = site.enroll(site.bmcs["web02"].url, "--yes")
    assert refused.code == Exit.PARTIAL
    assert f"refused: the certificate changed: {site.credentials}/rack/access.toml contains {before}" in refused.out
    assert (site.bmcs["web02"].service.requests, before in site.access) == ([], True)

    (checked := site.folder / "checked").write_text(f"{site.bmcs['web02'].url} {site.fingerprints['web02']}\n")
    done = site.enroll(site.list, "--fingerprints", checked, "--yes")
    assert done.code == Exit.PARTIAL  # the file names only web02
    assert before not in site.access and site.fingerprints["web02"] in site.access
    assert len(tomllib.loads(site.access)["certificates"]) == 3
    again = site.enroll(site.list, "--yes")
    said = "there is nothing to add, so gitboot did not write any files"
    assert (again.code, again.out.splitlines()[-1]) == (Exit.FINE, said)


def test_an_instance_sends_nothing_to_a_bmc_with_another_certificate_and_states_how_to_accept_it(site: Site) -> None:
    (site.work / "pool.yaml").write_text("---\n".join(POOL))
    site.enroll(site.list, "--yes", "--state", site.state, "--policy", "web")
    repository = _push(site)
    before = site.fingerprints["web02"]
    site.renew_certificate("web02")
    assert _run_once(site, repository).code == Exit.FINE
    document = site.work / "servers" / "web02.yaml"
    document.write_text(document.read_text().replace("provision: 0", "provision: 1"))
    _push(site)
    _run_once(site, repository, *write_configuration(max_reinstalls=1))
    stalled = _bmc_condition(site, "web02")
    assert stalled["reason"] == "Stalled"
    for part in (
        f"the certificate changed: the fingerprint in {site.credentials}/rack/access.toml is {before}",
        f"the BMC presents {site.fingerprints['web02']}",
        "accept the certificate with gitboot bmc enroll --fingerprints",
    ):
        assert part in stalled["message"]
    assert site.bmcs["web02"].service.requests == []


def test_unencrypted_bmcs_need_an_option_of_their_own(site: Site, tmp_path: Path) -> None:
    machine = Machine("plain", uuid=make_uuid("plain"))
    machine.nics = {"NIC.1": make_mac("plain")}
    with RedfishServer(Service(machine, credentials={USER: PASSWORD})) as bmc:
        refused = site.enroll(bmc.url, "--yes")
        assert refused.code == Exit.USAGE and "add --allow-http" in refused.err
        ipmi = site.enroll("ipmi://127.0.0.1", "--yes")
        assert ipmi.code == Exit.USAGE and "add --allow-ipmi" in ipmi.err
        assert bmc.connections == 0
        unconfirmed = site.enroll(bmc.url, "--allow-http")
        assert (unconfirmed.code, bmc.connections) == (Exit.USAGE, 0)
        assert f"# {bmc.url}: HTTP does not use certificates, and does not encrypt the password" in unconfirmed.out
        done = site.enroll(bmc.url, "--allow-http", "--yes")
        assert done.code == Exit.FINE
        assert tomllib.loads(site.access) == {"http": True, "networks": ["127.0.0.1/32"]}


def test_an_access_file_keeps_its_comments_and_settings(site: Site) -> None:
    file = site.credentials / "rack" / "access.toml"
    file.write_text(
        '# Ours\nnetworks = [\n  "10.1.0.0/16", # the old racks\n]\npassword-command = ["pass", "x"]\n\n'
        '[certificates]  # by host\n"10.1.0.7" = "' + "a" * 64 + '"\n'
    )
    assert site.enroll(site.list, "--yes").code == Exit.FINE
    text = site.access
    assert "# Ours\n" in text and "# the old racks\n" in text and "# by host\n" in text
    settings = tomllib.loads(text)
    assert settings["networks"] == ["127.0.0.1/32", "10.1.0.0/16"]
    assert (len(settings["certificates"]), settings["certificates"]["10.1.0.7"]) == (4, "a" * 64)
    assert settings["password-command"] == ["pass", "x"]


def test_a_change_of_the_access_file_during_the_last_question_is_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, changed = site.credentials / "rack" / "access.toml", 'networks = ["10.1.0.0/16"]\n'
    answers = iter([None, lambda: file.write_text(changed)])

    def confirm(**_: object) -> None:
        if (change := next(answers)) is not None:
            change()

    monkeypatch.setattr(bmc_enroll, "confirm_or_abort", confirm)
    done = site.enroll(site.list)
    assert done.code == Exit.USAGE and f"{file} changed in the meantime; repeat the command" in _one_line(done.err)
    assert (site.access, (site.work / "servers").exists()) == (changed, False)


def test_only_a_new_ledger_begins_and_its_servers_are_adopted(site: Site) -> None:
    """A server with provision 1 stands in the fleet: the new ledger records it as installed."""
    (site.work / "old.yaml").write_text(server_document("old01", spec="provision: 1, policy: web"))
    (site.work / "pool.yaml").write_text("---\n".join(POOL))
    site.enroll(site.list, "--yes", "--state", site.state, "--policy", "web")
    assert _run_once(site, _push(site)).code == Exit.FINE
    records = {each["server"]: each for each in _show_records(site)}
    assert {name: each["record"]["provision"] for name, each in records.items()} == {
        "old01": 1,
        **dict.fromkeys(NAMES, 0),
    }
    assert {each["step"] for each in records.values()} == {"Provisioned"}


def test_a_ledger_that_exists_is_named_and_not_begun(site: Site) -> None:
    ledger = create_ledger(site.state)
    (site.work / "old.yaml").write_text(server_document("old01", spec="provision: 1, policy: web"))
    (site.work / "pool.yaml").write_text("---\n".join(POOL))
    site.enroll(site.list, "--yes", "--state", site.state)
    assert f"ledger: {ledger}" in (site.work / "fleet.yaml").read_text()
    ran = _run_once(site, _push(site))
    assert (ran.code, "RecordsUnverified" in ran.err) == (Exit.PARTIAL, True)


def test_a_running_fleet_accepts_enrolled_bmcs_without_an_approval(site: Site) -> None:
    """Its access file lets the new BMCs in, so the guard maxBmcChanges does not hold the commit."""
    (site.work / "old.yaml").write_text(server_document("old01", spec="policy: web"))
    (site.work / "pool.yaml").write_text("---\n".join(POOL))
    (site.work / "fleet.yaml").write_text(
        name_ledger(create_ledger(site.state), (site.work / "fleet.yaml").read_text())
    )
    repository = _push(site)
    assert _run_once(site, repository).code == Exit.FINE
    done = site.enroll(site.list, "--yes", "--state", site.state, "--policy", "web")
    assert (done.code, "ledger" in done.out) == (Exit.FINE, False), done
    _push(site)
    ran = _run_once(site, repository, *write_configuration(max_small_group=100, max_update_percent=100))
    assert ran.code == Exit.FINE and "Held" not in ran.err, ran
    assert [each["server"] for each in _show_records(site)] == ["old01", *NAMES]


def test_a_fleet_in_a_folder_of_a_work_tree_gets_documents_there(site: Site) -> None:
    _push(site)
    folder = site.folder / "git" / "work" / "lab"
    folder.mkdir()
    (folder.parent / "fleet.yaml").rename(folder / "fleet.yaml")
    options = ("--credentials", site.credentials, "--as", "rack", "--path", folder, "--state", site.state, "--yes")
    done = run_command("bmc", "enroll", site.list, *options)
    assert done.code == Exit.FINE, done
    assert sorted(each.name for each in (folder / "servers").iterdir()) == [f"{name}.yaml" for name in NAMES]
    assert f"ledger: {create_ledger(site.state)}" in (folder / "fleet.yaml").read_text()


def test_nothing_is_written_with_wrong_files_or_a_wrong_password_or_if_the_fleet_contradicts(site: Site) -> None:
    (file := site.folder / "file").write_bytes(b"\xff\n")
    for given in ((file,), (site.list, "--fingerprints", file)):
        done = site.enroll(*given)
        assert done.code == Exit.USAGE and f"{file} cannot be read: 'utf-8' codec" in _one_line(done.err), done
    file.write_text(f"https://127.0.0.1:99999 {'a' * 64}\n")
    done = site.enroll(site.list, "--fingerprints", file)
    assert done.code == Exit.USAGE and "'https://127.0.0.1:99999' is not a BMC address" in _one_line(done.err), done
    places = ("--credentials", site.credentials, "--as", "rack", "--path", _push(site))
    done = run_command("bmc", "enroll", site.list, *places, "--yes")
    assert done.code == Exit.USAGE and "pass a directory or a Git work tree" in done.err
    assert site.requests() == 0

    password = site.credentials / "rack" / "password"
    right = password.read_text()
    password.write_text("wrong\n")
    done = site.enroll(site.list, "--yes", "--state", site.state)
    assert done.code == Exit.PARTIAL and "rejects the user name or password" in _one_line(done.out)
    password.write_text(right)
    bmc = "bmc: {address: 'https://10.9.0.1', credentials: rack}"
    (site.work / "old.yaml").write_text(server_document("old01", spec=f"lifecycle: Parked, {bmc}"))
    done = site.enroll(site.list, "--yes")
    assert done.code == Exit.USAGE and "would exclude https://10.9.0.1" in _one_line(done.err)
    assert not (site.work / "servers").exists()

    contradicts = server_document("old01", spec="lifecycle: Parked").replace(make_mac("old01"), make_mac("web03"))
    (site.work / "old.yaml").write_text(contradicts)
    done = site.enroll(site.list, "--yes", "--state", site.state)
    assert done.code == Exit.INVALID and make_mac("web03") in done.err
    assert list((site.work / "servers").iterdir()) == [] and not site.state.exists()
    assert not (site.credentials / "rack" / "access.toml").exists()


@pytest.mark.parametrize("before", ["", "# Ours\nnetworks = []\n"])
def test_a_ledger_that_cannot_be_created_leaves_no_file_behind(site: Site, before: str) -> None:
    file = site.credentials / "rack" / "access.toml"
    if before:
        file.write_text(before)
    site.state.mkdir()
    (site.state / "ledger.sqlite").symlink_to(site.folder / "elsewhere")  # an instance refuses symlinks
    fleet_file = (site.work / "fleet.yaml").read_text()
    done = site.enroll(site.list, "--yes", "--state", site.state)
    assert (done.code, "symlink" in done.err) == (Exit.USAGE, True), done
    assert list(site.work.rglob("web*.yaml")) == []
    assert (file.read_text() if file.exists() else "") == before
    assert (site.work / "fleet.yaml").read_text() == fleet_file


def test_a_fleet_that_names_another_ledger_is_left_alone(site: Site) -> None:
    (site.work / "fleet.yaml").write_text(name_ledger(make_uuid("ledger"), fleet("baseURL: 'http://boot.test'")))
    before = (site.work / "fleet.yaml").read_text()
    done = site.enroll(site.list, "--yes", "--state", site.state)
    assert done.code == Exit.FINE and "the Fleet already names the ledger" in done.err
    assert (site.work / "fleet.yaml").read_text() == before and not site.state.exists()


def test_a_certificate_that_changes_after_the_confirmation_gets_no_credentials(authority: Authority) -> None:
    machine = Machine("web09", uuid=make_uuid("web09"))
    with RedfishServer(Service(machine, credentials={USER: PASSWORD}), tls=authority.server_context()) as bmc:
        (contact,) = read_certificates([bmc.url], parallel=1)
        shown = structs.replace(contact, certificate="0" * 64)
        (probe,) = scan(
            [bmc.url],
            lambda _: open_pinned_connection(shown, Credentials(username=USER, password=PASSWORD)),
            parallel=1,
            on_result=lambda: None,
        )
        assert (probe.servers, bmc.service.requests) == ((), [])


# BMCs by others: sushy-tools' emulator with its fake driver, and IPMI

FAKE = ("4c4c4544-0034-4a10-8056-b9c04f4d3741", "4c4c4544-0034-4a10-8056-b9c04f4d3742")


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[str]:
    """sushy-tools' emulator as a program of its own, because other tests configure it in this process."""
    machines = [
        {
            "uuid": uuid,
            "name": f"fake{number}",
            "power_state": "On",
            "external_notifier": False,
            "nics": [{"mac": f"52:54:00:aa:bb:0{number}", "ip": "172.22.0.100"}],
        }
        for number, uuid in enumerate(FAKE)
    ]
    (settings := tmp_path / "emulator.conf").write_text(
        f"SUSHY_EMULATOR_FAKE_DRIVER = True\nSUSHY_EMULATOR_FAKE_SYSTEMS = {machines!r}\n"
        f"SUSHY_EMULATOR_STATE_DIR = {str(tmp_path)!r}\n"
    )
    url = f"http://127.0.0.1:{(port := free_port())}"
    program = (sys.executable, "-W", "ignore", "-c", "from sushy_tools.emulator.main import main; main()")
    given = ("--config", settings, "--interface", "127.0.0.1", "--port", str(port))
    with (tmp_path / "emulator.log").open("wb") as log, subprocess.Popen((*program, *given), stderr=log) as process:

        def responds() -> bool:
            assert process.poll() is None, (tmp_path / "emulator.log").read_text()
            with suppress(httpx.HTTPError):
                return httpx.get(f"{url}/redfish/v1/").is_success
            return False

        try:
            eventually(responds)
            yield url
        finally:
            process.kill()


def test_the_fake_driver_of_sushy_tools_is_enrolled_and_a_condition_states_that_it_lacks_once(
    site: Site, emulator: str
) -> None:
    (site.work / "pool.yaml").write_text("---\n".join(POOL))
    done = site.enroll(emulator, "--allow-http", "--yes", "--state", site.state, "--policy", "web")
    assert done.code == Exit.FINE, done
    documents = sorted((site.work / "servers").iterdir())
    assert [f'system: "/redfish/v1/Systems/{uuid}"' in documents[at].read_text() for at, uuid in enumerate(FAKE)]
    repository = _push(site)
    assert _run_once(site, repository).code == Exit.FINE
    documents[0].write_text(documents[0].read_text().replace("provision: 0", "provision: 1"))
    _push(site)
    _run_once(site, repository, *write_configuration(max_reinstalls=1))
    name = documents[0].stem
    assert _bmc_condition(site, name)["reason"] == "ForeignOverride"  # it begins with Continuous Hdd
    replaced = run_command("bmc", "resolve", name, "--replace", "--reason", "a test", "--state", site.state)
    assert replaced.code == Exit.FINE, replaced
    _run_once(site, repository, *write_configuration(max_reinstalls=1))
    with closing(sqlite3.connect(site.state / "ledger.sqlite", isolation_level=None)) as ledger:
        ledger.execute("UPDATE overrides SET at = '2026-11-01T00:00:00Z'")  # long ago: the BMC had time to show it
    _run_once(site, repository, *write_configuration(max_reinstalls=1))
    asked = _bmc_condition(site, name)
    assert (asked["reason"], "the BMC does not implement Once" in asked["message"]) == ("NeedsOperator", True), asked


def _bmc_condition(site: Site, server: str) -> dict[str, Any]:
    shown = run_command("status", "--state", site.state, "-o", "json").json["conditions"]
    (found,) = [each for each in shown if each["type"] == f"Bmc/{server}"]
    return dict(found)


@needs_ipmitool
def test_a_bmc_by_ipmi_is_enrolled_with_a_mac_address_that_the_operator_states(site: Site) -> None:
    with ipmi_machine(make_uuid("old01"), "correct-horse") as machine:
        (site.credentials / "rack" / "password").write_text("correct-horse\n")
        url = f"ipmi://127.0.0.1:{machine.port}"
        without = site.enroll(url, "--allow-ipmi", "--yes")
        assert without.code == Exit.PARTIAL and "the BMC does not report a MAC address" in _one_line(without.out)
        (listed := site.folder / "ipmi.txt").write_text(f"{url} old01 52:54:00:00:00:09\n")
        done = site.enroll(listed, "--allow-ipmi", "--yes")
        assert done.code == Exit.FINE, done
        document = (site.work / "servers" / "old01.yaml").read_text()
        assert any(f"uuid: {each}" in document for each in byte_orders(SystemUuid(make_uuid("old01"))))
        assert 'mac: "52:54:00:00:00:09"' in document
        assert tomllib.loads(site.access) == {"ipmi": True, "networks": ["127.0.0.1/32"]}
        assert run_command("validate", site.work).code == Exit.FINE
        assert machine.flags == bytearray(5)
