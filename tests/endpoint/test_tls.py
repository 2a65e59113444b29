"""TLS for operators: the certificate, changed and damaged files, and refused connections."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from gitboot.endpoint import tls
from gitboot.endpoint.app import ClientRules, Endpoint
from gitboot.endpoint.connections import ConnectionLimits
from gitboot.endpoint.served_files import PublishedTree
from gitboot.endpoint.server import EndpointServer, open_listening_socket
from gitboot.endpoint.tls import Certificate, TlsSocket
from tests.endpoint.test_server import list_workers
from tests.helpers.endpoints import BEFORE, ENTRY, Site, connect, get, site
from tests.helpers.fleets import SEED
from tests.helpers.forked_commands import run_forked
from tests.helpers.http_peers import Authority, IssuedCertificate
from tests.helpers.running_instance import Instance, Repository, eventually, running

STATUS = "/api/v1/status"
START = datetime(2026, 10, 1, tzinfo=UTC)


@pytest.fixture
def made() -> Iterator[Site]:
    with site() as found:
        yield found


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "authority").mkdir()
    return Authority(tmp_path / "authority")


class Pair:
    """The certificate and key files of an endpoint."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.certificate, self.key = folder / "operators.pem", folder / "operators.key"
        self._authority = authority
        self.trusted = ssl.create_default_context(cadata=authority.pem)
        self.renew()

    @property
    def options(self) -> tuple[str, ...]:
        return ("--operators-tls", str(self.certificate), str(self.key))

    def renew(self) -> bytes:
        """Replace the certificate as certbot does, one file after the other. Return the new certificate."""
        issued = self._authority.issue()
        self.put(issued)
        return ssl.PEM_cert_to_DER_cert(issued.certificate.read_text())

    def put(self, issued: IssuedCertificate) -> None:
        for file, target in zip(issued, (self.certificate, self.key), strict=True):
            put(target, file.read_bytes())

    def connect(self, url: str) -> ssl.SSLSocket:
        return self.trusted.wrap_socket(connect(url), server_hostname="127.0.0.1")

    def shown(self, url: str) -> bytes | None:
        with self.connect(url) as client:
            return client.getpeercert(binary_form=True)

    def get(self, url: str) -> httpx.Response:
        return httpx.get(url, verify=self.trusted, timeout=60)


def put(target: Path, content: bytes) -> None:
    target.with_suffix(".new").write_bytes(content)
    target.with_suffix(".new").replace(target)


@pytest.fixture
def pair(tmp_path: Path, authority: Authority) -> Pair:
    return Pair(tmp_path, authority)


@contextmanager
def served(made: Site, *arguments: str) -> Iterator[tuple[Instance, str]]:
    """Run ``gitboot serve``, and yield its events and the operators' URL. It must end cleanly."""
    places = ("--out", str(made.root), "--listen", "127.0.0.1:0", "--operators-listen", "127.0.0.1:0")
    found = Instance.start("serve", *places, *arguments)
    process = found.process
    reader = threading.Thread(target=found.read, daemon=True)
    reader.start()
    try:
        eventually(lambda: found.url and get(f"{found.url}/healthz").status_code == 200)
        yield found, get_operators_url(found)
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        reader.join(60)
        assert [event for event in found.events if event["type"] in ("NotJson", "Logged")] == []
    finally:
        process.kill()
        process.wait()
        reader.join(60)
        found.errors.close()


def get_operators_url(found: Instance) -> str:
    return str(eventually(lambda: [each["url"] for each in found.events if each["type"] == "ListeningForOperators"])[0])


def find_events(found: Instance, type: str) -> list[str]:
    return [each["message"] for each in found.events if each["type"] == type]


def ask(client: socket.socket, path: str = STATUS) -> bytes:
    """Return the first line of the response on a connection that stays open."""
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    with client.makefile("rb") as answer:
        first, length = answer.readline(), 0
        while line := answer.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line[15:])
        answer.read(length)
    return first


# The certificate


@pytest.mark.parametrize("workers", ["1", "2"])
def test_operators_use_tls_and_machines_use_http_as_before(made: Site, pair: Pair, workers: str) -> None:
    with served(made, *pair.options, "--workers", workers) as (found, operators):
        assert operators.startswith("https://127.0.0.1:")
        for _ in range(6):  # to any worker
            assert pair.get(operators + STATUS).status_code == 200
        assert pair.get(operators + ENTRY).status_code == 404
        assert get(found.url + ENTRY).status_code == 200
        assert get(found.url + STATUS).status_code == 404
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(operators + STATUS, timeout=60)


def test_a_token_is_accepted_by_tls_too(made: Site, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("a-token-of-prometheus\n")
    tokens = ("--operators", "192.0.2.1/32", "--operators-tokens", str(tmp_path / "tokens"))
    with served(made, *pair.options, *tokens) as (_, operators):
        assert pair.get(f"{operators}/metrics").status_code == 404
        shown = {"authorization": "Bearer a-token-of-prometheus"}
        answer = httpx.get(f"{operators}/metrics", headers=shown, verify=pair.trusted, timeout=60)
        assert "gitboot_operators_certificate_readable 1.0" in answer.text


def test_new_connections_get_a_new_certificate_and_no_connection_is_closed(made: Site, pair: Pair) -> None:
    with served(made, *pair.options) as (found, operators):
        with pair.connect(operators) as client:
            assert ask(client).startswith(b"HTTP/1.1 200")
            before = client.getpeercert(binary_form=True)
            new = pair.renew()
            assert new != before
            eventually(lambda: pair.shown(operators) == new)
            assert ask(client).startswith(b"HTTP/1.1 200"), "who is connected notices nothing"
        assert eventually(lambda: find_events(found, "CertificateReadable"))


def break_pair(how: str, pair: Pair, authority: Authority) -> None:
    match how:
        case "another key":
            put(pair.key, authority.issue().key.read_bytes())
        case "half a certificate":
            put(pair.certificate, pair.certificate.read_bytes()[:200])
        case "no key":
            pair.key.unlink()
        case "a locked key":
            subprocess.run(
                [
                    "openssl",
                    "pkey",
                    "-in",
                    pair.key,
                    "-aes128",
                    "-passout",
                    "pass:secret",
                    "-out",
                    f"{pair.key}.locked",
                ],
                check=True,
            )
            Path(f"{pair.key}.locked").replace(pair.key)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("another key", "operators.key does not match "),
        ("half a certificate", "operators.pem does not contain a PEM certificate"),
        ("no key", "operators.key cannot be read: No such file or directory"),
        ("a locked key", "operators.key has a passphrase"),
    ],
)
def test_with_a_broken_pair_the_previous_one_stays_and_one_event_reports_it(
    made: Site, pair: Pair, authority: Authority, how: str, why: str
) -> None:
    with served(made, *pair.options) as (found, operators):
        before = pair.shown(operators)
        break_pair(how, pair, authority)
        eventually(lambda: find_events(found, "CertificateUnreadable"))
        assert pair.shown(operators) == before
        assert "gitboot_operators_certificate_readable 0.0" in pair.get(f"{operators}/metrics").text
        (message,) = find_events(found, "CertificateUnreadable")
        assert why in message
        assert message.endswith("the endpoint keeps the previous certificate")
        new = pair.renew()
        eventually(lambda: pair.shown(operators) == new)
        assert "gitboot_operators_certificate_readable 1.0" in pair.get(f"{operators}/metrics").text
    assert len(find_events(found, "CertificateReadable")) == 1


@pytest.mark.parametrize("gone", ["operators.pem", "operators.key"])
def test_a_file_that_is_deleted_while_it_is_read_does_not_end_a_worker(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    certificate = Certificate(pair.certificate, pair.key)
    assert certificate.reload_if_changed(START) is None

    def read_bytes(file: Path) -> bytes:
        with file.open("rb") as opened:
            if file.name == gone:
                file.unlink()
            return opened.read()

    pair.renew()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", read_bytes)
        event = certificate.reload_if_changed(START)
    assert event is not None
    assert event.type == "CertificateUnreadable"
    assert gone in event.message
    assert event.message.endswith(
        "cannot be read: No such file or directory: the endpoint keeps the previous certificate"
    )
    pair.renew()
    found = certificate.reload_if_changed(START)
    assert found is not None
    assert found.type == "CertificateReadable"


def test_a_worker_that_starts_with_broken_files_still_serves_machines(made: Site, pair: Pair, tmp_path: Path) -> None:
    """There is no previous certificate. Machines need neither a certificate nor tokens."""
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-prometheus\n")
    with served(made, *pair.options, "--operators-tokens", str(tokens), "--workers", "2") as (found, operators):
        first = eventually(lambda: len(pids := list_workers(found.process.pid)) == 2 and pids)
        pair.key.unlink()
        tokens.unlink()
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        again = eventually(
            lambda: len(pids := list_workers(found.process.pid)) == 2 and not set(pids) & set(first) and pids
        )
        eventually(lambda: get(found.url + ENTRY).status_code == 200)
        eventually(
            lambda: any(
                "the endpoint rejects connections" in each for each in find_events(found, "CertificateUnreadable")
            )
        )
        with pytest.raises(httpx.TransportError):
            pair.get(operators + STATUS)
        pair.renew()
        eventually(lambda: pair.get(operators + STATUS).status_code == 200)
        assert list_workers(found.process.pid) == again, "none of them has ended for it"


def test_an_instance_reports_that_the_certificate_cannot_be_read_with_a_remedy(
    pair: Pair, authority: Authority, tmp_path: Path
) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})
    options = ("--operators-listen", "127.0.0.1:0", *pair.options, "--workers", "2", "--poll", "1")
    with running(repository.bare, tmp_path, *options) as instance:
        operators = get_operators_url(instance)

        def condition() -> dict[str, object]:
            found = pair.get(operators + STATUS).json()["conditions"]
            return next((each for each in found if each["type"] == "CertificateReadable"), {})

        eventually(lambda: pair.get(operators + STATUS).json()["applied"]["commit"])
        assert condition() == {}
        break_pair("another key", pair, authority)
        found = eventually(condition)
        assert found["status"] is False
        assert found["reason"] == "Unusable"
        assert "does not match" in str(found["message"])
        assert "openssl" in str(found["remedy"])
        pair.renew()
        eventually(lambda: condition() == {})


# At the start


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("a certificate alone", "Option '--operators-tls' requires 2 arguments."),
        ("without a socket", "--operators-tls needs --operators-listen"),
        ("another key", "operators.key does not match {folder}/operators.pem; the server's own"),
        ("half a certificate", "{folder}/operators.pem does not contain a PEM certificate"),
        ("no key", "{folder}/operators.key cannot be read: No such file or directory"),
        ("a locked key", "has a passphrase; remove the passphrase with `openssl pkey`"),
    ],
)
def test_an_unusable_certificate_is_rejected_at_the_start(
    pair: Pair, authority: Authority, tmp_path: Path, how: str, why: str
) -> None:
    options = ["--operators-listen", "127.0.0.1:0", *pair.options]
    if how == "a certificate alone":
        options = options[:-1]
    elif how == "without a socket":
        options = options[2:]
    else:
        break_pair(how, pair, authority)
    (tmp_path / "output").mkdir()
    places = ["--out", str(tmp_path / "output"), "--listen", "127.0.0.1:0"]
    for command in (["serve"], ["run", "--state", str(tmp_path / "state"), str(tmp_path / "repository")]):
        done = run_forked(*command, *places, *options)
        assert (done.returncode, why.format(folder=tmp_path) in done.stderr) == (64, True), done


# Refused connections


def test_t12_failed_tls_handshakes_are_counted(made: Site, pair: Pair, authority: Authority) -> None:
    with served(made, *pair.options) as (_, operators):
        with pytest.raises(httpx.TransportError):
            httpx.get(operators.replace("https:", "http:") + STATUS, timeout=60)  # no TLS
        with pytest.raises(httpx.ConnectError):
            httpx.get(operators + STATUS, timeout=60)  # does not trust the certificate
        with connect(operators) as client:  # aborts the handshake
            client.sendall(b"\x16\x03\x01")

        def counted() -> bool:
            return (
                'gitboot_operator_requests_rejected_total{reason="Handshake"} 3.0'
                in pair.get(f"{operators}/metrics").text
            )

        eventually(counted)


@contextmanager
def serve_crowded(
    made: Site, issued: IssuedCertificate, refused: list[int], most: int = 32
) -> Iterator[tuple[str, str, ConnectionLimits]]:
    with ExitStack() as stack:
        machines, operators = (stack.enter_context(open_listening_socket("127.0.0.1:0")) for _ in range(2))
        tree = PublishedTree(made.root, lambda: BEFORE)
        endpoint = Endpoint(tree, lambda: BEFORE, clients=ClientRules(operators_socket=operators.getsockname()))
        endpoint.limits = ConnectionLimits(most)
        socket_of_operators = TlsSocket(operators, issued.context, endpoint.limits, lambda _: refused.append(1))
        stack.enter_context(EndpointServer(endpoint, machines, tls_sockets=[socket_of_operators]))
        ports = [each.getsockname()[1] for each in (machines, operators)]
        yield f"http://127.0.0.1:{ports[0]}", f"https://127.0.0.1:{ports[1]}", endpoint.limits


def test_t5_a_connection_before_its_tls_handshake_counts_as_idle(
    made: Site, pair: Pair, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HEAD_TIMEOUT_S", 3600)
    refused: list[int] = []
    with serve_crowded(made, authority.issue(), refused) as (machines, operators, limits), ExitStack() as stack:
        held = [stack.enter_context(connect(operators)) for _ in range(80)]
        eventually(lambda: limits.closed_count == 48)
        for each in held[:48]:
            assert each.recv(1) == b"", "the oldest go"
        assert get(machines + ENTRY).status_code == 200
        assert pair.get(operators + STATUS).status_code == 200
        held[-1].setblocking(False)
        with pytest.raises(BlockingIOError):  # it is open
            held[-1].recv(1)
        assert refused == [], "they had to go for others"


def test_t5_an_idle_connection_after_its_tls_handshake_is_closed_like_any_other(
    made: Site, pair: Pair, authority: Authority
) -> None:
    with serve_crowded(made, authority.issue(), []) as (_, operators, limits), ExitStack() as stack:
        held = [stack.enter_context(pair.connect(operators)) for _ in range(40)]
        for each in held[:8]:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b"", "the oldest go"
        for each in held[8:]:
            assert ask(each).startswith(b"HTTP/1.1 200")
        assert limits.closed_count == 8


def test_t5_a_tls_handshake_has_the_deadline_of_a_request_head(
    made: Site, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HEAD_TIMEOUT_S", 0.5)
    refused: list[int] = []
    with serve_crowded(made, authority.issue(), refused) as (_, operators, _), connect(operators) as silent:
        silent.settimeout(50)  # without gitboot's limit it would be 60
        assert silent.recv(1) == b""
        eventually(lambda: refused == [1])


def test_t5_with_few_open_files_a_connection_before_its_tls_handshake_is_closed_for_a_machine(
    made: Site, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitboot.endpoint.connections.get_max_connections", lambda: 10)
    with serve_crowded(made, authority.issue(), [], most=1000) as (machines, operators, _), ExitStack() as stack:
        held = [stack.enter_context(connect(operators)) for _ in range(30)]
        for each in held[:20]:
            assert each.recv(1) == b"", "ten have room; the endpoint knows all of them by now"
        assert get(machines + ENTRY).status_code == 200
        assert held[20].recv(1) == b""


def test_a_shutdown_does_not_wait_for_tls_handshakes(made: Site, pair: Pair) -> None:
    with served(made, *pair.options) as (found, operators), connect(operators) as silent:
        assert pair.get(operators + STATUS).status_code == 200
        found.process.send_signal(signal.SIGTERM)
        assert silent.recv(1) == b""
        assert found.process.wait(120) == 0
