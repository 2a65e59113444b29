"""OCI registries on this machine: Debian's docker-registry, anonymous, with passwords and with tokens, and faulty ones.

What lies in them is pushed by the API, as the OCI distribution specification has it.
"""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.helpers.git_servers import free_port, listening, program
from tests.helpers.repositories import ENVIRONMENT

USER, PASSWORD = "boot", "correct horse"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
_BCRYPT = "$2a$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e"  # of PASSWORD, by crypt(3)

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IRONCORE = "application/vnd.ironcore.image."
GARDENLINUX = "application/io.gardenlinux."


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


@dataclass(frozen=True)
class Registry:
    """A registry that answers: what it is called in references, and by which URL it is asked."""

    host: str
    scheme: str = "http"

    @property
    def allowed(self) -> str:
        """As --registries names it."""
        return f"{self.scheme}://{self.host}"

    def push_blob(self, name: str, content: bytes) -> str:
        url = f"{self.allowed}/v2/{name}/blobs/uploads/"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as begun:
            at = begun.headers["Location"]
        at += f"{'&' if '?' in at else '?'}digest=sha256:{digest(content)}"
        self._put(at, content, "application/octet-stream")
        return digest(content)

    def push_image(
        self, name: str, tag: str, layers: Sequence[tuple[str, bytes]], annotations: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """An image with these layers, each a media type and its content; return what an index says of it."""
        config = self.push_blob(name, b"{}")
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": f"{IRONCORE}config.v1+json", "digest": f"sha256:{config}", "size": 2},
            "layers": [
                {"mediaType": kind, "digest": f"sha256:{self.push_blob(name, content)}", "size": len(content)}
                for kind, content in layers
            ],
            **({"annotations": dict(annotations)} if annotations else {}),
        }
        return self.push_manifest(name, tag, manifest)

    def push_index(self, name: str, tag: str, manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self.push_manifest(name, tag, {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(manifests)})

    def push_manifest(self, name: str, tag: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        content = json.dumps(manifest).encode()
        kind = manifest["mediaType"]
        self._put(f"{self.allowed}/v2/{name}/manifests/{tag}", content, kind)
        return {"mediaType": kind, "digest": f"sha256:{digest(content)}", "size": len(content)}

    def _put(self, url: str, content: bytes, kind: str) -> None:
        request = urllib.request.Request(url, content, {"Content-Type": kind}, method="PUT")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 201


@contextmanager
def registry(
    folder: Path, *, storage: Path, more: Mapping[str, Any] | None = None, tls: Certificate | None = None
) -> Iterator[Registry]:
    """docker-registry over what lies in ``storage``, which several may have; ``folder`` is its own."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    http: dict[str, Any] = {"addr": f"127.0.0.1:{port}", "secret": "x"}
    if tls is not None:
        http["tls"] = {"certificate": str(tls.certificate), "key": str(tls.key)}
    settings = {
        "version": 0.1,
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(storage)}},
        "http": http,
        **(more or {}),
    }
    (folder / "config.yml").write_text(json.dumps(settings))
    command = [program("docker-registry", "docker-registry"), "serve", str(folder / "config.yml")]
    with listening(command, port, ENVIRONMENT):
        yield Registry(f"127.0.0.1:{port}", "http" if tls is None else "https")


def with_password(folder: Path) -> dict[str, Any]:
    """Settings of a registry that asks for a name and a password."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "htpasswd").write_text(f"{USER}:{_BCRYPT}\n")
    return {"auth": {"htpasswd": {"realm": "boot", "path": str(folder / "htpasswd")}}}


@dataclass(frozen=True)
class Certificate:
    """A certificate for 127.0.0.1, with its key."""

    certificate: Path
    key: Path

    @classmethod
    def made(cls, folder: Path) -> Certificate:
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        command = [program("openssl", "openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt"]
        command += ["ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=registry"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True)
        return cls(certificate, key)

    @property
    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


@dataclass
class Scripted:
    """A web server that answers what it was told to: (status, headers, body), by path, and keeps what it was asked."""

    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def answer(self, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((target, dict(headers)))
        return self.answers.get(urlsplit(target).path, (404, {}, b""))


@dataclass
class TokenServer(Scripted):
    """Who gives tokens that docker-registry takes, to the anonymous for what is below ``open/`` alone."""

    certificate: Certificate | None = None

    def settings(self) -> dict[str, Any]:
        """Of a registry that wants its tokens."""
        assert self.certificate is not None
        token = {"realm": f"{self.url}/token", "service": "registry", "issuer": "issuer"}
        return {"auth": {"token": {**token, "rootcertbundle": str(self.certificate.certificate)}}}

    def answer(self, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((target, dict(headers)))
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        kind, name, actions = query["scope"].split(":")
        if headers.get("Authorization") not in (None, BASIC):
            return 401, {}, b"{}"
        may = name.startswith("open/") or headers.get("Authorization") == BASIC
        access = [{"type": kind, "name": name, "actions": actions.split(",")}] if may else []
        return 200, {}, json.dumps({"token": self._token(query["service"], access)}).encode()

    def _token(self, service: str, access: list[dict[str, Any]]) -> str:
        assert self.certificate is not None
        lines = self.certificate.certificate.read_text().splitlines()
        header = {"typ": "JWT", "alg": "ES256", "x5c": ["".join(lines[1:-1])]}
        at = int(time.time())
        payload: dict[str, Any] = {"iss": "issuer", "sub": "", "aud": service, "jti": "1", "access": access}
        payload |= {"exp": at + 600, "nbf": at - 600, "iat": at}
        signed = b".".join(_base64(json.dumps(each).encode()) for each in (header, payload))
        command = ["openssl", "dgst", "-sha256", "-sign", str(self.certificate.key)]
        der = subprocess.run(command, input=signed, check=True, capture_output=True).stdout
        return (signed + b"." + _base64(_raw(der))).decode()


def _base64(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def _raw(der: bytes) -> bytes:
    """An ECDSA signature's two numbers, as JOSE has them: RFC 7518, 3.4."""
    length = der[3]
    numbers = der[4 : 4 + length], der[6 + length :]
    return b"".join(number.lstrip(b"\0").rjust(32, b"\0") for number in numbers)


@contextmanager
def serving(server: Scripted, tls: Certificate | None = None) -> Iterator[None]:
    """Let it answer on a port of its own; its ``url`` is known inside."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.0"

        def do_GET(self) -> None:
            status, headers, body = server.answer(self.path, self.headers)  # type: ignore[arg-type]
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - http.server looks for it

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        http.socket = tls.context.wrap_socket(http.socket, server_side=True)
    server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
