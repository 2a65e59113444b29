"""`gitboot doctor`: the surroundings of an instance, with and without missing parts."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pytest

from gitboot.cli.commands import doctor
from gitboot.cli.commands.doctor import (
    Health,
    check_clock,
    check_git,
    check_output,
    check_proxy_urls,
    check_state,
    make_success,
)
from gitboot.cli.main import Exit
from gitboot.endpoint.tls import CipherSuites
from gitboot.system_clock import ClockState
from tests.helpers.artifact_servers import efi_program
from tests.helpers.disks_and_terminals import small_disk
from tests.helpers.fleets import decided, fleet, image, make_uuid, policy, profile, server
from tests.helpers.http_peers import Authority, IssuedCertificate, QuietFileHandler, file_server
from tests.helpers.instance_with_bmcs import POOL, Rack, run_command


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """A rack whose tree is served under its base URL, with the loaders that DHCP names."""
    folder = tmp_path_factory.mktemp("doctor")
    with file_server(folder / "output/boot") as url, Rack(folder, settings=f"baseURL: '{url}'") as made:
        made.add("web01")
        made.add("web02")
        made.push()
        made.once(*made.spool_options, records="fresh")
        loaders = made.output / "boot/assets/loaders"
        loaders.mkdir(parents=True)
        for name in ("undionly.kpxe", "snponly-x86_64.efi", "ipxe-aarch64.efi", "grub-x86_64.efi"):
            (loaders / name).write_bytes(b"a loader")
        (made.folder / "run.toml").write_text(
            f"out = '{made.output}'\nstate = '{made.state}'\ncredentials = '{made.credentials}'\npoll = 5\n"
        )
        yield made


@pytest.fixture(autouse=True)
def synchronised_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "read_clock_state", lambda: ClockState.SYNCHRONISED)


def run_doctor(*arguments: object) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    done = run_command("doctor", *arguments, "-o", "json")
    items = defaultdict(list)
    for each in done.json["items"]:
        items[each["subject"]].append(each)
    return done.code, items


def test_every_check_runs_with_the_settings_of_run(rack: Rack) -> None:
    code, items = run_doctor("--config", rack.folder / "run.toml")
    wrong = {name: each for name, them in items.items() for each in them if each["health"] == "failed"}
    assert (code, wrong) == (Exit.FINE, {})
    assert items.keys() >= {"git", "clock", "state", "disk", "ledger", "output", "credentials", "DHCP", "loaders"}
    assert "has 2 machines; no gitboot process is using the ledger" in items["ledger"][0]["message"]
    assert items["credentials"][0]["message"] == "rack, for 2 BMCs"


def test_a_missing_file_is_named_with_a_hint(rack: Rack, tmp_path: Path) -> None:
    moved = shutil.move(rack.output / "boot/assets/loaders/snponly-x86_64.efi", tmp_path)
    code, items = run_doctor("--state", rack.state, "--credentials", tmp_path)
    shutil.move(moved, rack.output / "boot/assets/loaders")
    (loaders,), (credentials,) = items["loaders"], items["credentials"]
    assert code == Exit.PARTIAL
    assert loaders["message"].startswith("boot loaders that DHCP offers are missing from ")
    assert loaders["message"].endswith("/assets/: loaders/snponly-x86_64.efi")
    accepted = f"{rack.state}/repository.git --rev refs/gitboot/accepted"
    assert loaders["hint"] == f"gitboot artifacts loaders --out {rack.output}/boot --path {accepted}"
    assert "2 servers (web01, web02)" in credentials["message"]
    assert credentials["hint"].startswith(f"create {tmp_path}/rack/username")
    (rack.output / "boot/boot.ipxe").rename(tmp_path / "boot.ipxe")
    said = run_command("doctor", "--state", rack.state, "--credentials", rack.credentials).out
    (tmp_path / "boot.ipxe").rename(rack.output / "boot/boot.ipxe")
    assert "failed   DHCP" in said and "    curl -I http://127.0.0.1:" in said


def test_a_url_that_does_not_fit_in_the_answer_of_a_proxy_is_named() -> None:
    seed = (image("web-1"), profile("web", "web-1"), policy("web", "All"), server("web01"))
    base_url = f"http://boot.test/{'a' * 100}"
    for outputs in ("ipxe, dhcp-proxy", "ipxe, dhcp-kea"):
        decisions = decided(fleet(f"baseURL: '{base_url}', outputs: [{outputs}]"), *seed)
        named = [(each.health, each.message.rpartition("/")[2]) for each in check_proxy_urls(decisions)]
        files = ("ipxe-aarch64.efi", "snponly-x86_64.efi", "undionly.kpxe")
        assert named == [("failed", file) for file in files if "proxy" in outputs]
    short = decided(fleet("baseURL: 'http://boot.test', outputs: [ipxe, dhcp-proxy]"), *seed)
    assert [each.health for each in check_proxy_urls(short)] == ["ok"]


def test_credentials_that_may_not_be_sent_to_a_bmc_of_a_document_are_named(rack: Rack, tmp_path: Path) -> None:
    credentials = Path(shutil.copytree(rack.credentials, tmp_path / "credentials"))
    (credentials / "rack" / "access.toml").write_text('networks = ["192.0.2.0/24"]\n')
    _, items = run_doctor("--state", rack.state, "--credentials", credentials)
    (networks,) = items["networks"]
    assert networks["message"] == (
        "access.toml does not allow gitboot to send the credentials rack to the BMCs of 2 servers (web01, web02)"
    )
    assert networks["hint"].startswith(f"gitboot bmc access-files --state {rack.state} ")


def test_doctor_changes_nothing(rack: Rack) -> None:
    def everything() -> dict[Path, float]:
        return {each: each.stat().st_mtime for each in rack.folder.rglob("*") if each.is_file()}

    before = everything()
    run_doctor("--config", rack.folder / "run.toml")
    assert everything() == before
    # Without --out, OUTPUT in a hint comes from the ledger.
    loader = rack.output / "boot/assets/loaders/snponly-x86_64.efi"
    loader.rename(rack.folder / "moved")
    try:
        before = everything()
        _, found = run_doctor("--state", rack.state, "--credentials", rack.credentials)
        assert everything() == before
    finally:
        (rack.folder / "moved").rename(loader)
    [loaders] = found["loaders"]
    assert f"--out {rack.output}/boot " in loaders["hint"]


def test_an_unknown_setting_of_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("outt = '/srv'\n")
    done = run_command("doctor", "--config", tmp_path / "run.toml")
    assert (done.code, "there is no setting 'outt'; did you mean out?" in done.err) == (Exit.USAGE, True)


def test_an_unsynchronised_clock_and_a_library_without_ssh_are_failures(tmp_path: Path) -> None:
    assert [each.health for each in check_clock(ClockState.UNSYNCHRONISED)] == [Health.FAILED]
    assert [each.health for each in check_clock(ClockState.UNKNOWN)] == [Health.WARNING]
    assert [each.health for each in check_clock(ClockState.NEVER_SET)] == [Health.WARNING]
    (lacks,) = check_git({"https": True, "ssh": False}, "1.9")
    assert (lacks.health, lacks.message) == (Health.FAILED, "libgit2 1.9 was built without ssh")
    (absent,) = check_state(tmp_path / "none")
    assert absent.hint == f"install -d -m 0700 {tmp_path}/none  # for gitboot's user"
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops" / "manifest.json").write_bytes(os.urandom(64))
    found = [each.message for each in check_output(tmp_path, tmp_path, servers=10**15) if each.health is Health.FAILED]
    unreadable, small = found
    assert "cannot be read" in unreadable
    assert small.endswith("but the fleet's output tree needs about 6,000,000,000,000,000")


@pytest.mark.parametrize(("room", "unit"), [("4m", "MiB"), ("100m,nr_inodes=40", "inodes")])
def test_a_disk_that_is_almost_full_is_reported_with_its_free_space_or_inodes(
    tmp_path: Path, room: str, unit: str
) -> None:
    with small_disk(tmp_path, room) as disk:
        if unit == "inodes":
            for number in range(37):
                (disk / str(number)).touch()
        else:
            (disk / "file").write_bytes(bytes(3_900_000))
        (found,) = (each for each in check_output(disk, tmp_path, servers=0) if each.subject == "disk")
    amount = "2 inodes" if unit == "inodes" else "0.0 GiB"
    assert (found.health, found.message) == (Health.WARNING, f"{disk} has {amount} free, which is less than 10 %")


def test_the_ledger_that_the_fleet_names_is_checked(tmp_path: Path) -> None:
    with Rack(tmp_path, named=False) as rack:
        rack.add("web01", provision=1)
        rack.push()
        rack.once()
        said = run_command("doctor", "--state", rack.state, "--credentials", rack.credentials).out
        found = "failed ledger the Fleet does not name a ledger, so gitboot does not set boot overrides for 1 server"
        assert found in " ".join(said.split())
        assert f"provisioning: {{ledger: {rack.ledger()}}}  # make sure that no other instance" in said
        rack.settings += f", provisioning: {{ledger: {make_uuid('another')}}}"
        rack.push()
        assert rack.once("--allow-takeover").code == Exit.PARTIAL
        said = " ".join(run_command("doctor", "--state", rack.state, "--credentials", rack.credentials).out.split())
        assert f"the Fleet names a ledger other than {rack.ledger()}, so this instance is a standby" in said
        assert f" gitboot status --state {rack.state} # only if this instance must become active" in said


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_finding_r13_a_check_is_printed_once_and_fits_the_terminal(
    rack: Rack, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    result = make_success("DHCP", "a mirror of several sites can be fetched " * 3)
    monkeypatch.setattr(doctor, "_run_checks", lambda *_: iter([result, result, result]))
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = rack.said("doctor").splitlines()
    assert sum("DHCP" in line for line in printed) == 1
    assert max(map(len, printed)) <= columns


@pytest.mark.parametrize("kernel", ["signed", "unsigned", "compressed", "missing"])
def test_p4_a_program_without_a_signature_is_a_warning_if_secure_boot_is_on(tmp_path: Path, kernel: str) -> None:
    assets = tmp_path / "output/boot/assets"
    contents = {
        "signed": efi_program(signed=True),
        "unsigned": efi_program(signed=False),
        "compressed": b"\x1f\x8b a compressed kernel",
    }
    with file_server(tmp_path / "output/boot") as url, Rack(tmp_path, settings=_SECURE.format(url)) as rack:
        rack.add("web01")
        rack.push()
        rack.once(*rack.spool_options, records="fresh")
        place_signed_loaders(assets)
        if kernel == "missing":
            shutil.rmtree(rack.output / "boot/grub")
        else:
            (assets / "flatcar-1").mkdir()
            (assets / "flatcar-1/kernel").write_bytes(contents[kernel])
        _, items = run_doctor("--state", rack.state, "--credentials", rack.credentials)
        hints = [each["hint"] for each in items["Secure Boot"]]
        if kernel == "unsigned":  # type the hint: the user has no copy of the file
            done = subprocess.run(["sh", "-euc", hints[0]], cwd=tmp_path, capture_output=True, text=True, check=False)
            assert (tmp_path / "program.efi").read_bytes() == contents[kernel], done
            assert hints[0].endswith(" && sbverify --list program.efi")
    found = {each["message"].replace(url, "URL"): each["health"] for each in items["Secure Boot"]}
    absent = f"cannot be read: {url.removeprefix('http://')} returned 404; "
    kernel_url, of_server = "URL/assets/flatcar-1/kernel", "the firmware on 1 server (web01) rejects it"
    assert (
        found
        == {
            "signed": {"signatures found in 3 programs for servers with Secure Boot": "ok"},
            "unsigned": {f"{kernel_url} has no signature, so {of_server}": "warning"},
            "compressed": {f"{kernel_url} is not an EFI program, so {of_server}": "warning"},
            "missing": {
                f"{kernel_url} {absent}Secure Boot on 1 server (web01) requires this file": "warning",
                f"URL/grub/grub.cfg {absent}GRUB needs this file if 1 server (web01) loads shim over HTTP": "warning",
            },
        }[kernel]
    )


def place_signed_loaders(assets: Path, request: bytes = b" HTTP/1.1\r\nHost: ") -> None:
    """Write signed programs as shim and GRUB. ``request`` is what the module http of GRUB sends."""
    (assets / "loaders").mkdir(parents=True, exist_ok=True)
    for name, more in (("shimx64.efi", b""), ("grubx64.efi", request)):
        (assets / "loaders" / name).write_bytes(efi_program(signed=True) + more)


def publish_signed_boot(rack: Rack, **loaders: bytes) -> None:
    """Publish the boot of one server, with programs that firmware with Secure Boot accepts."""
    rack.add("web01")
    rack.push()
    rack.once(*rack.spool_options, records="fresh")
    assets = rack.output / "boot/assets"
    place_signed_loaders(assets, **loaders)
    (assets / "flatcar-1").mkdir()
    (assets / "flatcar-1/kernel").write_bytes(efi_program(signed=True))


def find_secure_boot(rack: Rack) -> list[tuple[str, str]]:
    _, items = run_doctor("--state", rack.state, "--credentials", rack.credentials)
    return [(each["health"], each["message"]) for each in items["Secure Boot"]]


def test_a_base_url_with_a_path_needs_no_script_at_the_root_if_shim_comes_by_tftp(tmp_path: Path) -> None:
    web = tmp_path / "web"
    web.mkdir()
    (web / "boot").symlink_to(tmp_path / "output/boot")
    with file_server(web) as url, Rack(tmp_path, settings=_SECURE.format(f"{url}/boot")) as rack:
        publish_signed_boot(rack)
        signed = ("ok", "signatures found in 3 programs for servers with Secure Boot")
        reason = "add the file if 1 server (web01) loads shim over HTTP instead of TFTP"
        missing = f"{url}/grub/grub.cfg is missing; {reason}"
        assert find_secure_boot(rack) == [signed, ("ok", missing)]
        shutil.copytree(rack.output / "boot/grub", web / "grub")
        assert find_secure_boot(rack) == [signed]


class _BrokenHandler(QuietFileHandler):
    """Fails for GRUB's first script and for one loader."""

    def send_head(self) -> BytesIO | BinaryIO | None:
        if self.path.endswith(("/grub/grub.cfg", "/snponly-x86_64.efi")):
            self.fail()
            return None
        return super().send_head()

    def fail(self) -> None:
        self.send_error(500)


class _ClosingHandler(_BrokenHandler):
    def fail(self) -> None:
        self.close_connection = True


@pytest.mark.parametrize("handler", [_BrokenHandler, _ClosingHandler])
@pytest.mark.parametrize("path", ["", "/boot"])
def test_a_file_that_cannot_be_read_is_not_reported_as_missing(
    tmp_path: Path, path: str, handler: type[QuietFileHandler]
) -> None:
    web = tmp_path / "web"
    (web / "boot").parent.mkdir()
    (web / "boot").symlink_to(tmp_path / "output/boot")
    with (
        file_server(web if path else tmp_path / "output/boot", handler=handler) as url,
        Rack(tmp_path, settings=_SECURE.format(f"{url}{path}")) as rack,
    ):
        rack.add("web01")
        rack.push()
        rack.once(*rack.spool_options, records="fresh")
        place_signed_loaders(rack.output / "boot/assets")
        _, items = run_doctor("--state", rack.state, "--credentials", rack.credentials)
    host = url.removeprefix("http://")
    cause = f"{host} returned 500" if handler is _BrokenHandler else f"{host}: Remote end closed connection"
    [script] = [each for each in items["Secure Boot"] if "grub.cfg" in each["message"]]
    assert script["message"].startswith(f"{url}/grub/grub.cfg cannot be read: {cause}")
    assert script["health"] == "warning"
    loader, missing = [each["message"] for each in items["loaders"]]
    assert loader.startswith(f"{url}{path}/assets/loaders/snponly-x86_64.efi cannot be read: {cause}")
    assert "boot loaders that DHCP offers are missing from " in missing
    assert "snponly-x86_64" not in missing


def test_a_signed_grub_without_http_is_a_warning(tmp_path: Path) -> None:
    with file_server(tmp_path / "output/boot") as url, Rack(tmp_path, settings=_SECURE.format(url)) as rack:
        publish_signed_boot(rack, request=b"tftp")
        message = f"the GRUB at {url}/assets/loaders/grubx64.efi has no HTTP module, so it cannot boot 1 server (web01)"
        assert find_secure_boot(rack) == [("warning", message)]


_SECURE = "baseURL: '{}', hardware: [{{select: All, secureBoot: true}}]"


def test_without_secure_boot_no_signature_is_checked(rack: Rack) -> None:
    _, items = run_doctor("--config", rack.folder / "run.toml")
    assert "Secure Boot" not in items


# Certificates for machines


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


class Https(NamedTuple):
    """A rack with an https base URL, and the TLS context of the server at that URL."""

    rack: Rack
    context: ssl.SSLContext
    options: tuple[object, ...]  # for `gitboot doctor`


@pytest.fixture(scope="module")
def https(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Https]:
    with serve_https(tmp_path_factory.mktemp("https"), authority) as made:
        yield made


@contextmanager
def serve_https(folder: Path, authority: Authority, pool: tuple[str, ...] = POOL, more: str = "") -> Iterator[Https]:
    """Serve the tree of a rack. ``more`` is added to the spec of the Fleet."""
    issued = authority.issue(rsa_bits=2048)
    context = issued.context
    (folder / "ca.pem").write_text(authority.pem)
    with (
        file_server(folder / "output/boot", context) as url,
        Rack(folder, settings=f"baseURL: '{url}'{more}", pool=pool) as made,
    ):
        made.add("web01")
        made.push()
        made.once(*made.spool_options, records="fresh")
        options = ("--state", made.state, "--credentials", made.credentials)
        yield Https(made, context, (*options, "--machines-ca", folder / "ca.pem"))


def find_certificates(*options: object) -> list[tuple[str, str]]:
    return [(each["health"], each["message"]) for each in run_doctor(*options)[1].get("certificate", [])]


def tls_options(issued: IssuedCertificate) -> tuple[object, ...]:
    return ("--machines-tls", "0.0.0.0:8443", *issued)


def test_a_certificate_that_firmware_can_use_is_reported(https: Https, authority: Authority) -> None:
    issued = authority.issue(rsa_bits=2048)
    https.context.set_ciphers(CipherSuites.FIRMWARE)
    code, items = run_doctor(*https.options, *tls_options(issued))
    (certificate,) = items["certificate"]
    assert certificate["message"] == f"machines can use {issued.certificate} for 127.0.0.1"
    assert items["DHCP"][0]["health"] == "ok", "the authority of machines is trusted"
    assert code == Exit.PARTIAL  # there are no loaders


def test_a_server_without_suites_of_firmware_is_no_warning_without_uefi_http_boot(https: Https) -> None:
    https.context.set_ciphers(CipherSuites.MACHINES)
    assert find_certificates(*https.options) == []


def test_a_server_without_suites_of_firmware_is_a_warning_with_uefi_http_boot(
    tmp_path: Path, authority: Authority
) -> None:
    http_boot = profile("web", "flatcar-1", "httpBoot: loader", method="UefiHttp")
    pool = (image("flatcar-1", "", "kernel, initrd, loader"), http_boot, POOL[-1])
    with serve_https(tmp_path, authority, pool) as https:
        https.context.set_ciphers(CipherSuites.MACHINES)
        [(health, message)] = find_certificates(*https.options)
    assert (health, "offers no cipher suite that common UEFI firmware supports" in message) == ("warning", True)


@pytest.mark.parametrize("dhcp", ["dhcp-dnsmasq", "dhcp-kea", "dhcp-proxy"])
def test_a_server_without_suites_of_firmware_is_a_warning_if_dhcp_sends_its_loaders_to_uefi_http_boot(
    tmp_path: Path, authority: Authority, dhcp: str
) -> None:
    with serve_https(tmp_path, authority, more=f", outputs: [ipxe, {dhcp}]") as https:
        https.context.set_ciphers(CipherSuites.MACHINES)
        [(health, message)] = find_certificates(*https.options)
        https.context.set_ciphers(CipherSuites.FIRMWARE)
        assert find_certificates(*https.options) == []
    assert (health, "offers no cipher suite that common UEFI firmware supports" in message) == ("warning", True)


def test_without_the_authority_of_machines_the_chain_is_not_verified(https: Https, authority: Authority) -> None:
    found = find_certificates(*https.options[:-2], *tls_options(authority.issue(rsa_bits=2048)))
    assert [health for health, _ in found] == ["ok", "warning"]
    assert "gitboot did not check the certificate chain" in found[1][1]


def test_a_fleet_without_https_does_not_use_the_certificate(rack: Rack, authority: Authority) -> None:
    options = ("--state", rack.state, "--credentials", rack.credentials)
    [(health, message)] = find_certificates(*options, *tls_options(authority.issue(rsa_bits=2048)))
    assert (health, message.startswith("no base URL in the fleet begins with https")) == ("warning", True)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("an EC key", "is not an RSA key, so firmware cannot use"),
        ("a short RSA key", "ee key too small"),
        ("expired", ": certificate has expired"),
        ("another authority", ": unable to get local issuer certificate"),
        ("no intermediate", ": unable to get local issuer certificate"),
        ("another address", "is not valid for 127.0.0.1, which the base URL uses"),
        ("a name for an address", "is not valid for 127.0.0.1, which the base URL uses"),
    ],
)
def test_a_certificate_that_firmware_cannot_use_fails_the_check(
    https: Https, authority: Authority, tmp_path: Path, how: str, why: str
) -> None:
    match how:
        case "an EC key":
            issued = authority.issue()
        case "a short RSA key":
            issued = authority.issue(rsa_bits=1024)
        case "expired":
            issued = authority.issue(rsa_bits=2048, days=-1)
        case "another authority":
            issued = Authority(tmp_path).issue(rsa_bits=2048)
        case "no intermediate":
            issued = authority.build_intermediate(tmp_path).issue(rsa_bits=2048)
        case "another address":
            issued = authority.issue("IP:192.0.2.7", rsa_bits=2048)
        case _:
            issued = authority.issue("DNS:127.0.0.1", rsa_bits=2048)
    https.context.set_ciphers(CipherSuites.FIRMWARE)
    [(health, message)] = find_certificates(*https.options, *tls_options(issued))
    assert (health, why in message) == ("failed", True), message


def test_a_chain_with_its_intermediate_is_accepted(https: Https, authority: Authority, tmp_path: Path) -> None:
    intermediate = authority.build_intermediate(tmp_path)
    issued = intermediate.issue(rsa_bits=2048)
    issued.certificate.write_text(issued.certificate.read_text() + intermediate.pem)
    https.context.set_ciphers(CipherSuites.FIRMWARE)
    assert [health for health, _ in find_certificates(*https.options, *tls_options(issued))] == ["ok"]


def test_without_an_instance_the_certificate_itself_is_checked(authority: Authority, tmp_path: Path) -> None:
    [(health, message)] = find_certificates(*tls_options(authority.issue(rsa_bits=2048)))
    assert (health, message.endswith("if it is valid for the host in the base URL")) == ("ok", True)
    [(health, message)] = find_certificates(*tls_options(authority.issue(rsa_bits=2048, days=-1)))
    assert (health, "certificate has expired" in message) == ("failed", True)
    done = run_command("doctor", *tls_options(authority.issue(rsa_bits=2048)), "--machines-ca", tmp_path / "none.pem")
    assert done.code == Exit.USAGE
