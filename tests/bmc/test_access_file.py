"""Protection of credentials from authors of pull requests and from servers that pretend to be a BMC."""

from __future__ import annotations

import socket
import sqlite3
import threading
import tomllib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from gitboot.bmc.access_file import Trust, is_covered, read_trust, render_access_file
from gitboot.bmc.credentials import CredentialDirectory, Credentials, normalize_origin
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.bmc.redfish.transport import ConnectionPolicy
from gitboot.bmc.worker_pool import ConnectionCache
from gitboot.cli.main import Exit
from gitboot.errors import BmcNotTrusted, BmcRejected, UsageError
from gitboot.fleet.identities import BmcAccess
from gitboot.model.scalars import SystemUuid
from tests.cli.test_main import drop_root
from tests.helpers.fleets import make_uuid, store_credentials, write_configuration
from tests.helpers.http_peers import Authority
from tests.helpers.instance_with_bmcs import PASSWORD, USER, Rack, condition, run_command, wait_for_condition
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import eventually

LOOSE_LIMITS = {"max_small_group": 100, "max_update_percent": 100}


class Collector:
    """A listener that records what it receives and the number of connections."""

    def __init__(self, family: socket.AddressFamily, host: str) -> None:
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind((host, 0))
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(60)
                try:
                    self.received.append(connection.recv(65536))
                except OSError:
                    self.received.append(b"")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@contextmanager
def run_collector(family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.2") -> Iterator[Collector]:
    listening = Collector(family, host)
    try:
        yield listening
    finally:
        listening.close()


@pytest.fixture
def stranger() -> Iterator[Collector]:
    with run_collector() as listening:
        yield listening


def write_access_file(rack: Rack, trust: str) -> None:
    """The access file of the credentials; "": no file."""
    file = rack.credentials / "access.toml"
    file.write_text(trust)
    if not trust:
        file.unlink()


def merge_change(rack: Rack, old: str, new: str) -> str:
    """Merge a pull request that changes a text in the fleet."""
    path = rack.repository.work / "fleet.yaml"
    text = path.read_text()
    assert old in text
    return rack.repository.push({"fleet.yaml": text.replace(old, new)})


ELSEWHERE = {
    "another address": "http://127.0.0.2:PORT",
    "in one number": "http://2130706434:PORT",
    "in hexadecimal": "http://0x7f000002:PORT",
    "in short": "http://127.2:PORT",
    "as IPv6": "http://[::ffff:127.0.0.2]:PORT",
    "encrypted": "https://127.0.0.2:PORT",
}


def test_t2_a_pull_request_cannot_send_credentials_outside_their_networks(tmp_path: Path, stranger: Collector) -> None:
    with Rack(tmp_path) as rack:
        blades = [rack.add(f"web{number}", provision=1) for number in range(len(ELSEWHERE))]
        write_access_file(rack, 'networks = ["127.0.0.1"]\nhttp = true\nunverified = true\n')
        rack.push()
        rack.once(*rack.spool_options, records="fresh")
        assert all(blade.stands for blade in blades), "BMCs in the network are asked"
        for number, where in enumerate(ELSEWHERE.values()):
            # One listener is enough for ten machines: each has its own system.
            merge_change(
                rack, f"{blades[number].bmc.url}', ", f"{where.replace('PORT', str(stranger.port))}/{number}', "
            )
        rack.once(*write_configuration(max_bmc_changes=9, **LOOSE_LIMITS), *rack.spool_options)
        found = rack.bmc_get()
    assert stranger.received == []
    for number, case in enumerate(ELSEWHERE):
        assert (found[f"web{number}"]["seen"], found[f"web{number}"]["next"]) == (None, "no access"), case
        assert "access.toml" in found[f"web{number}"]["why"], case


def test_a_backup_of_the_ledger_contains_no_bmc_password_and_no_token_key(tmp_path: Path) -> None:
    with Rack(tmp_path) as rack:
        blade = rack.add("web01", provision=1)
        write_access_file(rack, 'networks = ["127.0.0.1"]\nhttp = true\n')
        rack.push()
        rack.once(*rack.spool_options, records="fresh")
        assert blade.stands
        token_key = (rack.state / "token-keys").read_text().split()[-1]
        keys = [token_key.encode(), bytes.fromhex(token_key)]
        passwords = [PASSWORD.encode(), b64encode(f"{USER}:{PASSWORD}".encode())]
        files = list(rack.state.glob("ledger.sqlite*"))
        assert files and len(token_key) == 64
        content = b"".join(file.read_bytes() for file in files)
    assert blade.name.encode() in content
    assert [each for each in (*keys, *passwords) if each in content] == []


def test_t2_a_new_bmc_is_held_until_somebody_with_a_shell_allows_it(tmp_path: Path, stranger: Collector) -> None:
    """Without an access file, only BMCs in the ledger get credentials, even if a pull request adds others."""
    with Rack(tmp_path) as rack:
        rack.add("web01", provision=1)
        write_access_file(rack, "http = true\n")
        rack.push()
        with rack.running(*rack.spool_options, ready=False) as instance:
            first = eventually(lambda: instance.status()["attempted"].get("held"))
            assert first["guards"] == ["maxBmcChanges"]
            rack.said("approve", first["digest"], "--guard", "maxBmcChanges", "--reason", "the first rack")
            eventually(lambda: not instance.status()["attempted"].get("held"))
            rack.said("records", "begin", "fresh", "--yes")
            eventually(lambda: rack.blades["web01"].stands)
            # The pull request, with the acknowledgement that its author writes.
            mine, other = rack.blades["web01"].bmc.url, f"http://127.0.0.2:{stranger.port}"
            merge_change(rack, mine, other)
            instance.process.send_signal(1)
            held = eventually(lambda: instance.status()["attempted"].get("held"))
            acknowledged = f"Change\n\nGitboot-Ack: {held['digest']} maxBmcChanges"
            newest = rack.repository.push({}, acknowledged)
            instance.process.send_signal(1)
            eventually(lambda: instance.status()["attempted"]["commit"] == newest)
            found = instance.status()["attempted"]["held"]
            assert "maxBmcChanges" in found["guards"]
            assert "only gitboot approve can acknowledge" in condition(instance, "CommitAccepted")["message"]
            assert stranger.received == []
            # A person with a shell approves it, and gitboot uses it then.
            rack.said("approve", found["digest"], "--guard", "maxBmcChanges", "--reason", "it is ours")
            eventually(lambda: stranger.received)


def test_t2_bmcs_in_the_ledger_of_an_earlier_version_still_get_credentials(tmp_path: Path, stranger: Collector) -> None:
    """Without an access file, an upgraded instance sends credentials only to the BMCs in its ledger."""
    with Rack(tmp_path) as rack:
        web01 = rack.add("web01", provision=1)
        rack.push()
        rack.once(*rack.spool_options, records="fresh")
        write_access_file(rack, "http = true\n")
        assert rack.bmc_get()["web01"]["next"] == "no access", "it was asked by the word, and that is gone"
        with closing(sqlite3.connect(rack.state / "ledger.sqlite", isolation_level=None)) as ledger:
            ledger.execute(  # as the ledger's upgrade does
                "INSERT INTO known_bmcs SELECT json_extract(bmc, '$.address'), json_extract(bmc, '$.credentials')"
                " FROM machines WHERE bmc IS NOT NULL"
            )
        assert rack.bmc_get()["web01"]["seen"]["enabled"] == "Once"
        merge_change(rack, web01.bmc.url, f"http://127.0.0.2:{stranger.port}")
        assert rack.once(*write_configuration(**LOOSE_LIMITS), *rack.spool_options).code == Exit.HELD
        # A server that leaves is a stranger when it comes back.
        merge_change(rack, f"http://127.0.0.2:{stranger.port}", web01.bmc.url)
        assert rack.once(*write_configuration(**LOOSE_LIMITS), *rack.spool_options).code == Exit.FINE
    assert stranger.received == []


def test_t2_the_access_file_that_an_upgrade_needs_is_printed(tmp_path: Path) -> None:
    with Rack(tmp_path) as rack:
        rack.add("web01", provision=1)
        rack.add("web02")
        rack.push()
        rack.once(*rack.spool_options, records="fresh")
        write_access_file(rack, "")
        assert rack.bmc_get()["web01"]["next"] == "no access"
        printed = rack.said("bmc", "access-files", "--credentials", rack.credentials)
        assert printed.startswith(f"# {rack.credentials / 'rack' / 'access.toml'}: 2 BMCs\n")
        assert "First check the addresses of these new BMCs: web01, web02" in printed
        write_access_file(rack, printed)
        assert rack.bmc_get()["web01"]["seen"]["enabled"] == "Once"


def test_t2_diff_shows_where_credentials_are_sent(tmp_path: Path) -> None:
    with Rack(tmp_path) as rack:
        web01 = rack.add("web01")
        rack.push()
        merge_change(rack, web01.bmc.url, "http://attacker.test")
        done = run_command("diff", "HEAD~1..HEAD", rack.repository.work)
    assert "Unchanged" not in done.out
    assert f"web01: rack at {web01.bmc.url}, unencrypted → rack at http://attacker.test, unencrypted" in done.out


# The access file


def bmc(address: str = "https://10.0.0.1", **more: Any) -> BmcAccess:
    return BmcAccess(**{"address": address, "system": None, "credentials": "rack", "verify": True, "ca": None, **more})


def test_a_certificate_for_a_host_and_a_port_takes_precedence_over_one_for_the_host(tmp_path: Path) -> None:
    a, b, c = (digit * 64 for digit in "abc")
    trust = make_trust(
        tmp_path,
        f'[certificates]\n"10.0.0.1" = "{a}"\n"10.0.0.1:8443" = "{b}"\n'
        f'"[FD00::1]:8443" = "{c}"\n"[fd00:0::2]" = "{a}"\n',
    )
    addresses = ("https://10.0.0.1", "https://10.0.0.1:8443", "https://[fd00::1]:8443", "https://[fd00::2]")
    assert [trust.find_certificate(bmc(each)) for each in addresses] == [a, b, c, a]
    assert trust.find_certificate(bmc("https://10.0.0.1:444")) == a
    assert trust.find_certificate(bmc("https://[fd00::1]")) is None
    printed = render_access_file([bmc(each) for each in addresses], trust)
    assert tomllib.loads(printed)["certificates"] == {
        "10.0.0.1": a,
        "10.0.0.1:8443": b,
        "[fd00::1]:8443": c,
        "fd00::2": a,
    }


def make_trust(folder: Path, text: str, *, authority: str | None = None) -> Trust:
    store_credentials(folder, password=PASSWORD, trust=text)
    if authority is not None:
        (folder / "rack" / "ca.crt").write_text(authority)
    return read_trust(folder, "rack")


@pytest.mark.parametrize(
    ("case", "text", "access", "refused"),
    [
        ("without settings", "", bmc(), "does not list any networks, and the ledger does not contain this BMC"),
        ("in another", 'networks = ["10.0.1.0/24"]', bmc(), "does not list this host"),
        ("in a network", 'networks = ["10.0.0.0/24"]', bmc(), None),
        ("by its name", 'hosts = ["bmc1.test"]', bmc("https://bmc1.test"), None),
        ("in other letters", 'hosts = ["bmc1.test"]', bmc("https://BMC1.test."), None),
        ("below a name", 'hosts = ["*.bmc.test"]', bmc("https://a.b.bmc.test"), None),
        (
            "the name itself is not below it",
            'hosts = ["*.bmc.test"]',
            bmc("https://bmc.test"),
            "does not list this host",
        ),
        ("a name that ends alike", 'hosts = ["*.bmc.test"]', bmc("https://xbmc.test"), "does not list this host"),
        ("another name", 'hosts = ["bmc1.test"]', bmc("https://bmc2.test"), "does not list this host"),
        ("unencrypted", 'networks = ["10.0.0.0/24"]', bmc("http://10.0.0.1"), "http = true"),
        ("unencrypted, as configured", 'networks = ["10.0.0.0/24"]\nhttp = true', bmc("http://10.0.0.1"), None),
        ("unverified", 'networks = ["10.0.0.0/24"]', bmc(verify=False), "unverified = true"),
        ("unverified, as configured", 'networks = ["10.0.0.0/24"]\nunverified = true', bmc(verify=False), None),
        ("an authority of Git", 'networks = ["10.0.0.0/24"]', bmc(ca="PEM"), "repository-authorities = true"),
        ("as configured", 'networks = ["10.0.0.0/24"]\nrepository-authorities = true', bmc(ca="PEM"), None),
    ],
)
def test_t2_the_access_file_states_which_bmcs_get_the_credentials(
    tmp_path: Path, case: str, text: str, access: BmcAccess, refused: str | None
) -> None:
    trust = make_trust(tmp_path, text)
    assert trust.allows_bmc(access) is (refused is None), case
    if refused is not None:
        with pytest.raises(BmcNotTrusted, match=refused):
            trust.build_address_filter(access, is_in_ledger=False)


@pytest.mark.parametrize(
    ("networks", "address", "is_allowed"),
    [
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("10.0.0.0/8", "::ffff:10.0.0.1", True),
        ("0.0.0.0/0", "169.254.169.254", False),
        ("0.0.0.0/0", "::ffff:169.254.169.254", False),
        ("169.254.0.0/16", "169.254.0.17", True),
        ("169.254.0.17", "169.254.0.18", False),
        ("0.0.0.0/0", "127.0.0.1", False),
        ("0.0.0.0/0", "0.0.0.0", False),
        ("::/0", "fe80::1", False),
        ("fe80::/10", "fe80::1", True),
        ("::/0", "::1", False),
        ("::/0", "2001:db8::1", True),
    ],
)
def test_t2_link_local_and_loopback_addresses_are_allowed_only_if_named(
    tmp_path: Path, networks: str, address: str, is_allowed: bool
) -> None:
    trust = make_trust(tmp_path, f'networks = ["{networks}"]')
    allowed = trust.build_address_filter(bmc("https://name.test"), is_in_ledger=False)
    assert allowed(ip_address(address)) is is_allowed


@pytest.mark.parametrize("text", ["", 'hosts = ["name.test"]'])
def test_t2_a_bmc_in_the_ledger_is_not_followed_to_the_metadata_address_of_a_cloud(tmp_path: Path, text: str) -> None:
    allowed = make_trust(tmp_path, text).build_address_filter(bmc("https://name.test"), is_in_ledger=True)
    assert allowed(ip_address("10.0.0.1"))
    assert not allowed(ip_address("169.254.169.254"))


def test_t2_with_an_authority_in_the_access_folder_only_bmcs_with_its_certificates_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "other").mkdir()
    own, other = Authority(tmp_path / "own"), Authority(tmp_path / "other")
    trust = make_trust(tmp_path, "", authority=own.pem)
    assert trust.allows_bmc(bmc())
    assert not trust.allows_bmc(bmc("http://10.0.0.1"))
    assert not trust.allows_bmc(bmc(verify=False))
    assert not trust.allows_bmc(bmc(ca="PEM"))
    # Addresses of this machine are allowed only if a network names them, in addition to the authority.
    store_credentials(tmp_path, password=PASSWORD, trust='networks = ["127.0.0.1"]')
    assert [gets_credentials(tmp_path, each, "DNS:localhost") for each in (own, other)] == [True, False]


def gets_credentials(folder: Path, authority: Authority, name: str, host: str = "127.0.0.1") -> bool:
    """Return whether a BMC with a certificate of this authority gets the credentials."""
    machine, tls = Machine("web01"), authority.server_context(name)
    with RedfishServer(Service(machine, credentials={USER: PASSWORD}), tls=tls, host=host) as server:
        url = server.url.replace(host, "localhost") if name == "DNS:localhost" else server.url
        with closing(ConnectionCache(CredentialDirectory(folder))) as kept:
            try:
                return kept.connect(SystemUuid("1"), "web01", bmc(url)).observe().power == "On"
            except BmcRejected as error:
                if "certificate not trusted" not in str(error) or machine.requests:
                    raise
                return False


SITES = """[authorities]
"10.112.0.0/16" = "ams.crt"
"10.112.7.0/24" = "lab.crt"
"10.112.7.9" = "one.crt"
"2001:db8::/32" = "six.crt"
"*.bmc.test" = "names.crt"
"*.ams.bmc.test" = "ams.crt"
"web01.bmc.test" = "one.crt"
"""


@pytest.mark.parametrize(
    ("address", "authority"),
    [
        ("https://10.112.1.1", "ams"),
        ("https://10.112.7.8", "lab"),
        ("https://10.112.7.9", "one"),
        ("https://[2001:db8::1]", "six"),
        ("https://[::ffff:10.112.1.1]", "ams"),
        ("https://db1.bmc.test", "names"),
        ("https://db1.ams.bmc.test", "ams"),
        ("https://web01.bmc.test", "one"),
        ("https://10.113.0.1", "shared"),
        ("https://bmc.test", "shared"),
    ],
)
@pytest.mark.parametrize("is_shared", [False, True])
def test_the_most_specific_place_selects_the_certificate_authority(
    tmp_path: Path, address: str, authority: str, is_shared: bool
) -> None:
    for name in ("ams", "lab", "one", "six", "names"):
        (tmp_path / f"{name}.crt").write_text(name)
    trust = make_trust(tmp_path, SITES, authority="shared" if is_shared else None)
    found = authority if is_shared or authority != "shared" else None
    assert trust.find_authority(bmc(address)) == found
    assert trust.allows_bmc(bmc(address)) is (found is not None)


def test_each_site_can_have_its_own_certificate_authority(tmp_path: Path) -> None:
    authorities = {}
    for site in ("ams", "lab"):
        (tmp_path / site).mkdir()
        authorities[site] = Authority(tmp_path / site)
        (tmp_path / f"{site}.crt").write_text(authorities[site].pem)
    places = '[authorities]\n"127.0.0.1" = "ams.crt"\n"127.0.0.2" = "lab.crt"\n'
    store_credentials(tmp_path, password=PASSWORD, trust=f'networks = ["127.0.0.0/8"]\n{places}')
    for host, site, is_its_own in (("127.0.0.1", "ams", True), ("127.0.0.2", "lab", True), ("127.0.0.2", "ams", False)):
        assert gets_credentials(tmp_path, authorities[site], f"IP:{host}", host) is is_its_own


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network = []", "unknown key 'network'; did you mean networks"),
        ('networks = ["10.0.0.1/8"]', "networks: 10.0.0.1/8 has host bits set"),
        ('networks = "10.0.0.0/8"', "networks: expected a list of strings"),
        ("http = 1", "http: expected true or false"),
        ('hosts = ["10.0.0.1"]', "hosts: '10.0.0.1' is an IP address: list it in `networks`"),
        ('hosts = ["*"]', "is not a host name"),
        ('hosts = ["a*.test"]', "is not a host name"),
        ("hosts = [", "cannot be read"),
        (f"http = {'9' * 5000}", "cannot be read"),
        (f"hosts = {'[' * 5000}{']' * 5000}", "cannot be read"),
        (r'authorities = {"10.0.0.1" = "\u0000"}', "authorities: the path to a file contains a NUL character"),
        (
            'authorities = "ams.crt"',
            "expected a table of networks or hosts, each with the path to its certificate authority file",
        ),
        ('authorities = {"10.0.0.1/8" = "ams.crt"}', "is not a host name"),
        ('authorities = {"10.0.0.1" = "ams.crt"}', "ams.crt cannot be read"),
        ("password-command = []", "password-command: expected a list with a program and its arguments"),
        ('password-command = "pass bmc"', "password-command: expected a list of strings"),
        ('media = ["ab"]', "media: expected a table of URL prefixes"),
        ('media = {"ftp://a/" = {place = "b", protocol = "NFS"}}', "is not a URL prefix"),
        ('media = {"http://a/" = "//b/"}', "http://a/: expected {place = "),
        (
            'media = {"http://a/" = {place = "//b/", protocol = "SMB"}}',
            "must be one of CIFS, HTTP, HTTPS, NFS",
        ),
        ('media = {"http://a/" = {place = "", protocol = "NFS"}}', "`place` must be a non-empty string"),
        ('certificates = {"10.0.0.1:x" = "ab"}', "is neither a host nor HOST:PORT"),
        (
            'certificates = ["ab"]',
            "certificates: expected a table of hosts, each with the SHA-256 fingerprint of its certificate",
        ),
        (
            'certificates = {"10.0.0.1" = "ab"}',
            "certificates: expected a certificate's SHA-256 fingerprint, found .ab.",
        ),
    ],
)
def test_t2_an_access_file_that_cannot_be_parsed_allows_no_bmc(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("*", "[*]")):
        make_trust(tmp_path, text)
    with pytest.raises(UsageError):
        ConnectionCache(CredentialDirectory(tmp_path)).connect(SystemUuid("1"), "web01", bmc())


def test_a_folder_that_gitboot_may_not_enter_is_named_and_allows_no_bmc(tmp_path: Path) -> None:
    store_credentials(tmp_path, password=PASSWORD)
    folder = tmp_path / "rack"
    folder.chmod(0)
    with drop_root():
        with pytest.raises(UsageError, match=f"{folder} cannot be read: Permission denied"):
            CredentialDirectory(tmp_path).read("rack")
        assert CredentialDirectory(tmp_path).fingerprint("rack") is None
        assert not is_covered(tmp_path, bmc())
    folder.chmod(0o700)


def test_a_printed_access_file_can_be_read_back(tmp_path: Path) -> None:
    bmcs = [
        *(bmc(f"https://10.0.0.{last}") for last in range(8)),
        bmc("https://[2001:db8::1]", verify=False),
        bmc("http://bmc.test"),
        bmc("https://other.test", ca="PEM"),
    ]
    text = render_access_file(bmcs)
    assert 'networks = ["10.0.0.0/29", "2001:db8::1/128"]' in text
    trust = make_trust(tmp_path, text)
    assert all(trust.allows_bmc(each) for each in bmcs)
    assert not trust.allows_bmc(bmc("https://10.0.0.9"))


def test_two_spellings_of_one_address_are_one_bmc() -> None:
    assert (
        normalize_origin("https://BMC1.test:443/redfish/")
        == normalize_origin("https://bmc1.test")
        != normalize_origin("http://bmc1.test")
    )


# Rotated


def test_a_new_password_is_tried_as_soon_as_it_is_written_and_a_wrong_one_only_once(tmp_path: Path) -> None:
    """The instance polls once an hour, so only the new password can wake it."""
    with Rack(tmp_path) as rack:
        web01 = rack.add("web01", provision=1)
        rack.push()
        store_credentials(rack.credentials, password="wrong")
        with rack.running(records="fresh") as instance:
            wait_for_condition(instance, "Bmc/web01", status=False, reason="Stalled")
            assert len(web01.machine.requests) == 1
            store_credentials(rack.credentials, password=PASSWORD)
            eventually(lambda: web01.override == ("Once", "Pxe"))


# Resolved once


def test_t2_a_host_name_is_resolved_once_and_the_checked_address_is_used(
    monkeypatch: pytest.MonkeyPatch, stranger: Collector
) -> None:
    """The name server returns the allowed address first and another address from then on."""
    answers = iter(["127.0.0.1"])
    resolved: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, port: Any, *more: Any, **given: Any) -> Any:
        if host == "bmc.test":
            resolved.append(host)
            host = next(answers, "127.0.0.2")
        return real(host, port, *more, **given)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    credentials = Credentials(username=USER, password=PASSWORD)
    machine = Machine()
    with RedfishServer(Service(machine, credentials={USER: PASSWORD})) as server:
        port = server.url.rpartition(":")[2]
        policy = ConnectionPolicy(is_address_allowed=lambda address: str(address) == "127.0.0.1")
        with BmcConnection(f"http://bmc.test:{port}", credentials, policy=policy) as connection:
            assert connection.observe().power == "On"
        assert len(resolved) == server.connections == 1
        with (
            BmcConnection(f"http://bmc.test:{stranger.port}", credentials, policy=policy) as connection,
            pytest.raises(BmcNotTrusted, match=r"to send these credentials to bmc.test \(127.0.0.2\)"),
        ):
            connection.observe()
    assert stranger.received == []


# The first certificate


def test_t2_the_first_certificate_is_pinned_until_an_operator_changes_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    machine = Machine("web01", uuid=make_uuid("web01"))
    service = Service(machine, credentials={USER: PASSWORD})
    with Rack(tmp_path / "rack") as rack:
        with RedfishServer(service, tls=authority.server_context()) as first:
            port = int(first.url.rpartition(":")[2])
            blade = rack.add("web01", provision=1)
            blade.bmc, blade.machine = first, machine
            blade.more = ""
            rack.push()
            merge_change(rack, "credentials: rack", "credentials: rack, tls: {verify: false}")
            rack.once(*rack.spool_options, records="fresh")
            assert blade.override == ("Once", "Pxe"), rack.bmc_get()
        machine.requests.clear()
        # Another server responds there now, with its own certificate.
        with RedfishServer(service, tls=authority.server_context(), port=port):
            seen = rack.bmc_get()["web01"]
            assert "the certificate changed: its fingerprint was" in seen["why"]
            assert machine.requests == [], "nothing was sent, not even a password"
            rack.once(*rack.spool_options)
            assert machine.requests == []
            shown = seen["why"].rpartition("and is now ")[2].split()[0]
            wrong = rack.run_command("bmc", "resolve", "web01", "--certificate", "abc", "--reason", "it is new")
            assert wrong.code == Exit.USAGE
            rack.said("bmc", "resolve", "web01", "--certificate", shown.upper(), "--reason", "it is new")
            assert rack.bmc_get()["web01"]["seen"]["enabled"] == "Once"


def test_t2_bmcs_that_are_not_allowed_do_not_delay_other_bmcs(tmp_path: Path) -> None:
    """Twenty servers at addresses that are not allowed do not count as a network failure."""
    with Rack(tmp_path) as rack:
        web01 = rack.add("web01")
        rack.push()
        with rack.running(
            *write_configuration(bmc_failures=3, max_bmc_changes=50, **LOOSE_LIMITS), records="fresh"
        ) as instance:
            for number in range(6):
                rack.add(f"new{number}", provision=1)
            rack.push()
            text = (rack.repository.work / "fleet.yaml").read_text()
            for number in range(6):
                text = text.replace(rack.blades[f"new{number}"].bmc.url, f"http://127.0.0.{number + 10}:1")
            write_access_file(rack, 'networks = ["127.0.0.1"]\nhttp = true\n')
            rack.repository.push({"fleet.yaml": text})
            instance.process.send_signal(1)
            wait_for_condition(instance, "Bmc/new0", status=False, reason="Stalled")
            assert condition(instance, "BmcsReachable").get("status") is not False
            web01.provision = 1
            rack.repository.push(
                {"fleet.yaml": text.replace("provision: 0", "provision: 1", 1)},
                "Install",
            )
            instance.process.send_signal(1)
            held = eventually(lambda: instance.status()["attempted"].get("held"))
            guards = [part for guard in held["guards"] for part in ("--guard", guard)]
            rack.said("approve", held["digest"], *guards, "--reason", "a test")
            eventually(lambda: web01.override == ("Once", "Pxe"))
