"""`gitboot bmc enroll`: from addresses and credentials to documents, an access file and a ledger that begins with adopt."""

from __future__ import annotations

import threading
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from ssl import PEM_cert_to_DER_cert
from typing import Self

import pytest
from werkzeug.serving import make_server

from gitboot.cli.main import Exit
from tests.helpers.fleets import fleet, give_credentials, mac_of, uuid_of
from tests.helpers.fleets import server as server_document
from tests.helpers.running_instance import Repository
from tests.helpers.http_peers import Authority
from tests.helpers.instance_with_bmcs import PASSWORD, USER, Done, typed
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.server import RedfishServer, Service

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
        give_credentials(self.credentials, user=USER, password=PASSWORD)
        (self.credentials / "access.toml").unlink(missing_ok=True)
        self.work.mkdir()
        (self.work / "fleet.yaml").write_text(fleet("baseURL: 'http://boot.test'"))
        for name in NAMES:
            self.machines[name] = Machine(name, uuid=uuid_of(name))
            self.machines[name].nics = {"NIC.1": mac_of(name)}
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, port: int = 0) -> None:
        """Start a BMC with a new certificate."""
        issued = self.authority.issue()
        self.fingerprints[name] = sha256(PEM_cert_to_DER_cert(issued.certificate.read_text())).hexdigest()
        service = Service(self.machines[name], credentials={USER: PASSWORD})
        self.bmcs[name] = self._stack.enter_context(RedfishServer(service, tls=issued.context, port=port))

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

    def enroll(self, *more: object) -> Done:
        places = ("--credentials", self.credentials, "--as", "rack", "--path", self.work)
        return typed("bmc", "enroll", *(more or (self.list,)), *places)

    def requests(self) -> int:
        return sum(len(each.service.requests) for each in self.bmcs.values())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def site(tmp_path: Path, authority: Authority) -> Iterator[Site]:
    with Site(tmp_path, authority) as site:
        yield site


def _one_line(text: str) -> str:
    return " ".join(text.split())


def test_one_command_enrols_three_bmcs_and_the_instance_accepts_and_adopts_them(site: Site) -> None:
    done = site.enroll(site.list, "--state", site.state, "--yes")
    assert (done.code, done.err) == (Exit.FINE, ""), done
    for name in NAMES:
        document = (site.work / "servers" / f"{name}.yaml").read_text()
        assert f"uuid: {uuid_of(name)}" in document
        assert "provision: 0  #" in document and "lifecycle: Parked  #" in document
        assert f"{site.bmcs[name].url} {site.fingerprints[name]}  # new" in done.out.splitlines()
    ports = {name: site.bmcs[name].address[1] for name in NAMES}
    assert tomllib.loads(site.access) == {
        "networks": ["127.0.0.1/32"],
        "certificates": {f"127.0.0.1:{ports[name]}": site.fingerprints[name] for name in NAMES},
    }
    assert all(machine.writes == [] for machine in site.machines.values())

    repository = Repository.create(site.folder / "git")
    repository.push({str(each.relative_to(site.work)): each.read_text() for each in site.work.rglob("*.yaml")}, "Enrol")
    places = ("--out", site.folder / "out", "--state", site.state, "--credentials", site.credentials)
    ran = typed("run", repository.bare, *places, "--once", "--spool", site.folder / "spool")
    assert ran.code == Exit.FINE, ran
    records = typed("records", "show", "--state", site.state, "-o", "json").json["items"]
    assert [(each["server"], each["record"]["provision"]) for each in records] == [(name, 0) for name in NAMES]
    got = typed("bmc", "get", "--state", site.state, "--credentials", site.credentials, "-o", "json")
    assert [each["responded"] for each in got.json["items"]] == [True, True, True], got
