"""TLS for machines: suites for firmware, the machines' own key, and the same endpoint as without TLS."""

from __future__ import annotations

import re
import ssl
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest

from gitboot.endpoint.tls import Certificate, CipherSuites, HandshakeFailure, classify_failure
from tests.endpoint.test_boot_responses_secrets import PLAIN, SealedFleet, documents, find_secrets, get_path
from tests.endpoint.test_tls import START, STATUS, find_events, made, put, served
from tests.helpers.endpoints import ENTRY, LOADER, ONCE, Site, connect, plan_fleet, site
from tests.helpers.fleets import SEED, fleet, write_configuration
from tests.helpers.forked_commands import run_forked
from tests.helpers.http_peers import Authority, IssuedCertificate
from tests.helpers.running_instance import Instance, Repository, eventually, running

__all__ = ["made"]
OVMF = "AES128-GCM-SHA256:AES256-GCM-SHA384"  # what OVMF of Debian 12 and the endpoint have in common


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def rsa_certificate(authority: Authority) -> IssuedCertificate:
    return authority.issue(rsa_bits=2048)


def tls_options(issued: IssuedCertificate, *more: str) -> tuple[str, ...]:
    return ("--machines-tls", "127.0.0.1:0", *map(str, issued), *more)


def get_url(found: Instance) -> str:
    return str(eventually(lambda: [each["url"] for each in found.events if each["type"] == "ListeningByTls"])[0])


def client(authority: Authority, ciphers: str = OVMF) -> ssl.SSLContext:
    """Return a context with the suites of firmware."""
    context = ssl.create_default_context(cadata=authority.pem)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(ciphers)
    return context


def cipher(url: str, context: ssl.SSLContext) -> str:
    with context.wrap_socket(connect(url), server_hostname="127.0.0.1") as found:
        name, _, _ = found.cipher() or ("", "", 0)
        return name


@pytest.mark.parametrize("workers", ["1", "2"])
def test_machines_get_the_same_boots_by_tls_as_without(
    made: Site, authority: Authority, rsa_certificate: IssuedCertificate, workers: str
) -> None:
    with served(made, *tls_options(rsa_certificate), "--workers", workers) as (found, _):
        machines = get_url(found)
        assert machines.startswith("https://127.0.0.1:")
        tls_certificate = httpx.get(machines + ENTRY, verify=client(authority), timeout=60)
        plain = httpx.get(found.url + ENTRY, timeout=60)
        assert (tls_certificate.status_code, tls_certificate.content) == (200, plain.content)


def test_the_socket_of_machines_offers_suites_of_firmware_after_those_with_forward_secrecy(
    made: Site, authority: Authority, rsa_certificate: IssuedCertificate
) -> None:
    with served(made, *tls_options(rsa_certificate)) as (found, _):
        machines = get_url(found)
        assert cipher(machines, client(authority)).startswith("AES")
        assert cipher(machines, client(authority, f"{OVMF}:ECDHE+AESGCM")).startswith("ECDHE-RSA-AES")
        modern = ssl.create_default_context(cadata=authority.pem)
        with modern.wrap_socket(connect(machines), server_hostname="127.0.0.1") as connected:
            assert connected.version() == "TLSv1.3"


def test_without_firmware_ciphers_a_client_with_only_these_is_counted(
    made: Site, authority: Authority, rsa_certificate: IssuedCertificate
) -> None:
    with served(made, *tls_options(rsa_certificate, *write_configuration(firmware_ciphers=False))) as (
        found,
        operators,
    ):
        machines = get_url(found)
        with pytest.raises(ssl.SSLError):
            cipher(machines, client(authority))
        with pytest.raises(ssl.SSLCertVerificationError):
            cipher(machines, ssl.create_default_context())
        assert cipher(machines, client(authority, "ECDHE+AESGCM")).startswith("ECDHE-RSA-AES")

        def failed(reason: str) -> bool:
            text = httpx.get(f"{operators}/metrics", timeout=60).text
            return f'gitboot_machine_handshakes_failed_total{{reason="{reason}"}} 1.0' in text

        eventually(lambda: failed("NoSharedCipher"))
        eventually(lambda: failed("CertificateRejected"))


def test_the_socket_of_operators_never_offers_suites_of_firmware(
    made: Site, authority: Authority, rsa_certificate: IssuedCertificate
) -> None:
    own = authority.issue(rsa_bits=2048)
    with served(made, *tls_options(rsa_certificate), "--operators-tls", *map(str, own)) as (found, operators):
        with pytest.raises(ssl.SSLError):
            cipher(operators, client(authority))
        assert cipher(get_url(found), client(authority)).startswith("AES")


def test_each_suite_of_operators_has_forward_secrecy_whatever_python_offers_by_default(
    rsa_certificate: IssuedCertificate,
) -> None:
    """Debian's Python offers OpenSSL's default list, which has AES128-GCM-SHA256."""
    context = Certificate(*rsa_certificate).context
    default = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    default.set_ciphers("DEFAULT")
    prefixes = ("ECDHE-", "DHE-", "TLS_")
    assert not all(each["name"].startswith(prefixes) for each in default.get_ciphers())
    assert [each["name"] for each in context.get_ciphers() if not each["name"].startswith(prefixes)] == []


@pytest.mark.parametrize("path", [STATUS, "/metrics", "/page/"])
def test_the_socket_of_machines_serves_nothing_for_operators(
    made: Site, authority: Authority, rsa_certificate: IssuedCertificate, path: str, tmp_path: Path
) -> None:
    """A token or a status must not travel over suites without forward secrecy, even if operators have no own socket."""
    (tmp_path / "tokens").write_text("a-token-of-prometheus\n")
    tokens = ("--operators-tokens", str(tmp_path / "tokens"))
    shown = {"authorization": "Bearer a-token-of-prometheus"}
    with served(made, *tls_options(rsa_certificate), *tokens) as (found, _):
        assert httpx.get(get_url(found) + path, headers=shown, verify=client(authority), timeout=60).status_code == 404


def test_a_new_certificate_of_machines_is_used_without_a_restart(
    made: Site, authority: Authority, tmp_path: Path
) -> None:
    first, second = authority.issue(rsa_bits=2048), authority.issue(rsa_bits=2048)
    own = IssuedCertificate(tmp_path / "machines.pem", tmp_path / "machines.key")
    for file, target in zip(first, own, strict=True):
        put(target, file.read_bytes())

    def shown(url: str) -> bytes | None:
        with client(authority).wrap_socket(connect(url), server_hostname="127.0.0.1") as connected:
            return connected.getpeercert(binary_form=True)

    with served(made, *tls_options(own)) as (found, operators):
        machines = get_url(found)
        assert shown(machines) == ssl.PEM_cert_to_DER_cert(first.certificate.read_text())
        for file, target in zip(authority.issue(), own, strict=True):  # an EC key
            put(target, file.read_bytes())
        reason = "is not an RSA key, so firmware cannot use"  # of both files; between them, there is another one
        eventually(lambda: any(reason in each for each in find_events(found, "CertificateUnreadable")))
        assert shown(machines) == ssl.PEM_cert_to_DER_cert(first.certificate.read_text())
        assert "gitboot_machines_certificate_readable 0.0" in httpx.get(f"{operators}/metrics", timeout=60).text
        for file, target in zip(second, own, strict=True):
            put(target, file.read_bytes())
        eventually(lambda: shown(machines) == ssl.PEM_cert_to_DER_cert(second.certificate.read_text()))
        text = httpx.get(f"{operators}/metrics", timeout=60).text
        assert "gitboot_machines_certificate_readable 1.0" in text
        assert re.search(r"^gitboot_machines_certificate_expiration_timestamp_seconds 1\.\d+e\+09$", text, re.MULTILINE)


def test_a_one_time_boot_is_recorded_by_tls_as_without_and_served_once(
    authority: Authority, rsa_certificate: IssuedCertificate
) -> None:
    certificate = Certificate(*rsa_certificate, CipherSuites.FIRMWARE)
    certificate.load()
    found = {}
    for tls_certificate in (None, certificate):
        with site(plan_fleet(*ONCE)) as made, made.serve(tls_certificate=tls_certificate) as url:
            ask = partial(httpx.get, url + ENTRY, headers=LOADER, verify=client(authority), timeout=60)
            first = ask()
            assert "kernel " in first.text
            [seen] = made.observed()
            made.now += timedelta(hours=1)
            again = ask()
            assert "kernel " not in again.text
            found[url[:5]] = (first.content, seen.path, seen.client)
    assert found["https"] == found["http:"]
    assert found["https"][-1] == "127.0.0.1"


def test_a_secret_is_served_and_recorded_by_tls(
    authority: Authority, rsa_certificate: IssuedCertificate, tmp_path: Path
) -> None:
    certificate, sealed = Certificate(*rsa_certificate, CipherSuites.FIRMWARE), SealedFleet(tmp_path)
    certificate.load()
    made_of = plan_fleet(*documents(), templates=sealed.files)
    path = get_path(find_secrets(made_of)["join"])
    with site(made_of) as made, made.serve(tls_certificate=certificate, keys=sealed.keys) as url:
        assert httpx.get(url + path, headers=LOADER, verify=client(authority), timeout=60).text == PLAIN
        [seen] = made.observed()
    assert (seen.path, seen.client) == (f"boot{path}", "127.0.0.1")


def test_a_network_whose_fetches_count_is_compared_with_the_address_of_a_tls_client(
    authority: Authority, rsa_certificate: IssuedCertificate
) -> None:
    certificate = Certificate(*rsa_certificate, CipherSuites.FIRMWARE)
    certificate.load()
    for network, boots in (("127.0.0.0/8", True), ("192.0.2.0/24", False)):
        fleet_of = (fleet(f"baseURL: 'http://boot.test', provisioning: {{clients: [{network}]}}"), *ONCE[1:])
        with site(plan_fleet(*fleet_of)) as made, made.serve(tls_certificate=certificate) as url:
            answer = httpx.get(url + ENTRY, headers=LOADER, verify=client(authority), timeout=60)
            assert ("kernel " in answer.text) is boots
            assert len(made.observed()) == boots


@pytest.mark.parametrize("command", ["serve", "run"])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("an EC key", "is not an RSA key, so firmware cannot use"),
        ("a short key", "cannot be used: ee key too small"),
        ("the key of operators", "has the same key as"),
        ("the same key in another file", "has the same key as"),
        ("no certificate", "Option '--machines-tls' requires 3 arguments."),
    ],
)
def test_options_that_machines_cannot_use_are_rejected_at_the_start(
    authority: Authority, rsa_certificate: IssuedCertificate, tmp_path: Path, command: str, how: str, why: str
) -> None:
    match how:
        case "an EC key":
            given = tls_options(authority.issue())
        case "a short key":
            given = tls_options(authority.issue(rsa_bits=1024))
        case "the key of operators" | "the same key in another file":
            copy = IssuedCertificate(tmp_path / "copy.pem", tmp_path / "copy.key")
            for file, target in zip(rsa_certificate, copy, strict=True):
                target.write_bytes(file.read_bytes())
            same = rsa_certificate if how == "the key of operators" else copy
            given = (
                *tls_options(rsa_certificate),
                "--operators-listen",
                "127.0.0.1:0",
                "--operators-tls",
                *map(str, same),
            )
        case _:
            given = tls_options(rsa_certificate)[:2]
    (tmp_path / "output").mkdir()
    places = ["--out", str(tmp_path / "output"), "--listen", "127.0.0.1:0"]
    if command == "run":
        places += ["--state", str(tmp_path / "state"), str(tmp_path / "repository")]
    done = run_forked(command, *places, *given)
    assert done.returncode == 64, done.stderr
    assert why in done.stderr


def test_machines_that_use_only_tls_still_need_a_plain_address(
    rsa_certificate: IssuedCertificate, tmp_path: Path
) -> None:
    places = ("--out", str(tmp_path / "output"), "--state", str(tmp_path / "state"), str(tmp_path / "repository"))
    done = run_forked("run", *places, *tls_options(rsa_certificate))
    assert done.returncode == 64
    assert "--machines-tls needs --listen; use --listen 127.0.0.1:8080" in done.stderr


def test_without_firmware_ciphers_machines_may_have_any_key(
    authority: Authority, rsa_certificate: IssuedCertificate
) -> None:
    for issued in (authority.issue(), rsa_certificate):
        operators = Certificate(*issued)
        operators.load()
        Certificate(*issued, CipherSuites.MACHINES, operators).load()


def test_operators_may_not_take_the_key_of_machines_later(
    authority: Authority, rsa_certificate: IssuedCertificate, tmp_path: Path
) -> None:
    own = IssuedCertificate(tmp_path / "operators.pem", tmp_path / "operators.key")
    for file, target in zip(authority.issue(), own, strict=True):
        put(target, file.read_bytes())
    operators = Certificate(*own)
    machines = Certificate(*rsa_certificate, CipherSuites.FIRMWARE, operators)
    assert operators.reload_if_changed(START) is None
    assert machines.reload_if_changed(START) is None
    for file, target in zip(rsa_certificate, own, strict=True):
        put(target, file.read_bytes())
    event = operators.reload_if_changed(START)
    assert event is not None
    assert "has the same key as" in event.message
    assert event.message.endswith("the endpoint keeps the previous certificate")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("NO_SHARED_CIPHER", HandshakeFailure.NO_SHARED_CIPHER),
        ("TLSV1_ALERT_UNKNOWN_CA", HandshakeFailure.CERTIFICATE),
        ("SSLV3_ALERT_BAD_CERTIFICATE", HandshakeFailure.CERTIFICATE),
        ("SSLV3_ALERT_CERTIFICATE_UNKNOWN", HandshakeFailure.CERTIFICATE),
        ("HTTP_REQUEST", HandshakeFailure.OTHER),
        ("WRONG_VERSION_NUMBER", HandshakeFailure.OTHER),
        (None, HandshakeFailure.OTHER),
    ],
)
def test_a_failed_handshake_has_a_kind(reason: str | None, kind: HandshakeFailure) -> None:
    error = ssl.SSLError(1, "handshake")
    error.reason = reason  # type: ignore[assignment]
    assert classify_failure(error) is kind
    assert classify_failure(TimeoutError()) is HandshakeFailure.OTHER
    assert classify_failure(ConnectionResetError()) is HandshakeFailure.CLOSED


def test_an_instance_reports_that_the_certificate_of_machines_cannot_be_used(
    authority: Authority, rsa_certificate: IssuedCertificate, tmp_path: Path
) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})
    own = IssuedCertificate(tmp_path / "machines.pem", tmp_path / "machines.key")
    for file, target in zip(rsa_certificate, own, strict=True):
        put(target, file.read_bytes())
    with running(repository.bare, tmp_path, *tls_options(own), "--poll", "1") as instance:

        def condition() -> dict[str, object]:
            found = instance.status()["conditions"]
            return next((each for each in found if each["type"] == "CertificateReadable"), {})

        assert condition() == {}
        put(own.key, authority.issue(rsa_bits=2048).key.read_bytes())
        found = eventually(condition)
        assert found["reason"] == "Unusable"
        assert "machines.key does not match" in str(found["message"])
        put(own.key, rsa_certificate.key.read_bytes())
        eventually(lambda: condition() == {})
