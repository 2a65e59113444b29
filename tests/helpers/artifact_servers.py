"""Servers of artifacts: web servers and OCI registries, faulty ones too, and a sigstore that signs artifacts."""

from __future__ import annotations

import base64
import json
import ssl
import struct
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from gitboot.artifacts.boot_loaders import HEAD
from gitboot.jsonio import Digest
from gitboot.resolve.server_decision import BootFile
from tests.helpers.git_repositories import ENVIRONMENT, free_port, program, run_daemon
from tests.helpers.http_peers import WebRequest, WebResponse, run_server, web_server

# A web server of artifacts that can be made to do all that such servers do wrong.


def compute_digest(content: bytes) -> Digest:
    return Digest(sha256(content).hexdigest())


@dataclass
class ArtifactServer:
    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)  # instead of what is there
    redirects: dict[str, str] = field(default_factory=dict)  # redirects, by path: the target
    cut: dict[str, int] = field(default_factory=dict)  # after how many bytes a body ends too early
    no_head: bool = False
    refuses_head: int | None = None  # the status of each answer to HEAD
    no_ranges: bool = False
    no_length: bool = False
    no_version: bool = False
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)  # (method, path): times
    ranges: list[str] = field(default_factory=list)
    forwarded: list[str] = field(default_factory=list)  # the values of X-Forwarded-For

    def put(self, path: str, content: bytes, type: str = "application/octet-stream") -> BootFile:
        """Serve a file; return it as an image names it."""
        self.files[path], self.types[path] = content, type
        return BootFile(url=f"{self.url}{path}", sha256=compute_digest(content), size=len(content))

    def file(self, path: str, content: bytes = b"") -> BootFile:
        return BootFile(url=f"{self.url}{path}", sha256=compute_digest(content), size=len(content))


@contextmanager
def artifact_server(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[ArtifactServer]:
    served = ArtifactServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path
            served.asked[self.command, path] += 1
            served.forwarded += self.headers.get_all("X-Forwarded-For", [])
            if served.no_head and not body:
                return self._send(405, b"", {})
            if served.refuses_head is not None and not body:
                return self._send(served.refuses_head, b"", {})
            if (location := served.redirects.get(path)) is not None:
                return self._send(302, b"", {"Location": location})
            if path in served.statuses:
                return self._send(served.statuses[path], b"", {})
            if (content := served.files.get(path)) is None:
                return self._send(404, b"", {})
            headers = {"Content-Type": served.types[path]}
            if not served.no_version:
                headers["ETag"] = f'"{compute_digest(content)[:16]}"'
            byte_range = self.headers.get("Range")
            if byte_range is None or served.no_ranges:
                return self._send(200, content, headers, body=body, cut=served.cut.get(path))
            served.ranges.append(byte_range)
            first = int(byte_range.removeprefix("bytes=").rstrip("-"))
            if first >= len(content):
                return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            return self._send(206, content[first:], headers, body=body)

        def _send(
            self, status: int, content: bytes, headers: dict[str, str], *, body: bool = True, cut: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if served.no_length:
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                with suppress(ConnectionError):  # the client does not want the rest
                    self.wfile.write(content[:cut])
            if cut is not None or served.no_length:
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    with run_server(Handler, tls, host) as served.url:
        yield served


# OCI registries on this machine: Debian's docker-registry, anonymous, with passwords and with tokens, and faulty ones.
#
# Their content is pushed by the API, as the OCI distribution specification describes.

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
    host: str
    scheme: str = "http"

    @property
    def allowed(self) -> str:
        return f"{self.scheme}://{self.host}"

    def push_blob(self, name: str, content: bytes) -> str:
        url = f"{self.allowed}/v2/{name}/blobs/uploads/"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST")) as response:
            location = response.headers["Location"]
        location += f"{'&' if '?' in location else '?'}digest=sha256:{digest(content)}"
        self._put(location, content, "application/octet-stream")
        return digest(content)

    def push_image(
        self, name: str, tag: str, layers: Sequence[tuple[str, bytes]], annotations: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Push an image with these layers, each a media type and its content; return its entry in an index."""
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
    """Run docker-registry over ``storage``, which several registries may share; ``folder`` is its own."""
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
    with run_daemon(command, port, ENVIRONMENT):
        yield Registry(f"127.0.0.1:{port}", "http" if tls is None else "https")


def build_password_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a registry that requires a name and a password."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "htpasswd").write_text(f"{USER}:{_BCRYPT}\n")
    return {"auth": {"htpasswd": {"realm": "boot", "path": str(folder / "htpasswd")}}}


@dataclass(frozen=True)
class Certificate:
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
class ScriptedServer:
    """A web server with scripted responses (status, headers, body) by path, which records its requests."""

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
class TokenServer(ScriptedServer):
    """A server of tokens for docker-registry, which gives anonymous clients access below ``open/`` only."""

    certificate: Certificate | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings of a registry that requires these tokens."""
        assert self.certificate is not None
        token = {"realm": f"{self.url}/token", "service": "registry", "issuer": "issuer"}
        return {"auth": {"token": {**token, "rootcertbundle": str(self.certificate.certificate)}}}

    def answer(self, target: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        self.asked.append((target, dict(headers)))
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        kind, name, actions = query["scope"].split(":")
        if headers.get("Authorization") not in (None, BASIC):
            return 401, {}, b"{}"
        is_allowed = name.startswith("open/") or headers.get("Authorization") == BASIC
        access = [{"type": kind, "name": name, "actions": actions.split(",")}] if is_allowed else []
        return 200, {}, json.dumps({"token": self._token(query["service"], access)}).encode()

    def _token(self, service: str, access: list[dict[str, Any]]) -> str:
        assert self.certificate is not None
        lines = self.certificate.certificate.read_text().splitlines()
        header = {"typ": "JWT", "alg": "ES256", "x5c": ["".join(lines[1:-1])]}
        at = int(time.time())
        payload: dict[str, Any] = {"iss": "issuer", "sub": "", "aud": service, "jti": "1", "access": access}
        payload |= {"exp": at + 600, "nbf": at - 600, "iat": at}
        signed = b".".join(_to_base64url(json.dumps(each).encode()) for each in (header, payload))
        command = ["openssl", "dgst", "-sha256", "-sign", str(self.certificate.key)]
        der = subprocess.run(command, input=signed, check=True, capture_output=True).stdout
        return (signed + b"." + _to_base64url(_convert_signature(der))).decode()


def _to_base64url(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def _convert_signature(der: bytes) -> bytes:
    """An ECDSA signature's two numbers, as JOSE has them: RFC 7518, 3.4."""
    length = der[3]
    numbers = der[4 : 4 + length], der[6 + length :]
    return b"".join(number.lstrip(b"\0").rjust(32, b"\0") for number in numbers)


@contextmanager
def run_scripted_server(server: ScriptedServer, tls: Certificate | None = None) -> Iterator[None]:
    """Serve it on its own port; ``url`` is set inside the block."""

    def answer(request: WebRequest) -> WebResponse:
        status, headers, body = server.answer(request.path, request.headers)
        return WebResponse(status, body, headers)

    with web_server(answer, tls.context if tls is not None else None) as server.url:
        yield


# A private sigstore: an authority that certifies signers, its log of certificates, and its log of signatures.
#
# Each bundle has what Fulcio and Rekor put into one, signed by keys of this authority; its trusted root names those
# keys. After sigstore's "Bundle format" and "Client spec", RFC 6962 and C2SP's signed notes.

WHEN = datetime(2026, 11, 20, tzinfo=UTC)
ISSUER = "https://accounts.test"
_OIDC_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_SCTS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_SHA256 = ec.ECDSA(hashes.SHA256())


def _generate_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _encode_public_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _hash_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return sha256(_encode_public_key(key)).digest()


def _to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _encode_canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _build_key_usage(**used: bool) -> x509.KeyUsage:
    every = [
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    ]
    return x509.KeyUsage(**{name: used.get(name, False) for name in every})


@dataclass
class Sigstore:
    authority: ec.EllipticCurvePrivateKey = field(default_factory=_generate_key)
    certificates: ec.EllipticCurvePrivateKey = field(default_factory=_generate_key)  # of the log of certificates
    log: ec.EllipticCurvePrivateKey = field(default_factory=_generate_key)  # of signatures

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sigstore")])
        self.root = (
            self._begin_certificate(name, name, self.authority.public_key(), timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_build_key_usage(key_cert_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key()), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    @property
    def trusted_root(self) -> bytes:
        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            public = {
                "rawBytes": _to_base64(_encode_public_key(key)),
                "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                "validFor": since,
            }
            return {
                "baseUrl": "https://log.test",
                "hashAlgorithm": "SHA2_256",
                "publicKey": public,
                "logId": {"keyId": _to_base64(_hash_key(key))},
            }

        since = {"start": "2020-01-01T00:00:00Z"}
        chain = {"certificates": [{"rawBytes": _to_base64(self.root.public_bytes(Encoding.DER))}]}
        authority = {"subject": {"organization": "", "commonName": "sigstore"}, "uri": "https://ca.test"}
        return _encode_canonical(
            {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [log(self.log)],
                "ctlogs": [log(self.certificates)],
                "certificateAuthorities": [{**authority, "certChain": chain, "validFor": since}],
                "timestampAuthorities": [],
            }
        )

    def bundle(self, content: bytes, identity: str, issuer: str = ISSUER) -> bytes:
        """Return a bundle signed by the holder of this mail address at the authority."""
        key = _generate_key()
        certificate = self._issue_certificate(key, identity, issuer)
        digest = sha256(content).digest()
        signature = key.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))
        entry = self._build_log_entry(certificate, digest, signature)
        return _encode_canonical(
            {
                "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
                "verificationMaterial": {
                    "certificate": {"rawBytes": _to_base64(certificate.public_bytes(Encoding.DER))},
                    "tlogEntries": [entry],
                },
                "messageSignature": {
                    "messageDigest": {"algorithm": "SHA2_256", "digest": _to_base64(digest)},
                    "signature": _to_base64(signature),
                },
            }
        )

    def _begin_certificate(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lasts: timedelta
    ) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key).serial_number(7)
        return builder.not_valid_before(WHEN - timedelta(minutes=5)).not_valid_after(WHEN + lasts)

    def _issue_certificate(self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str) -> x509.Certificate:
        oidc = x509.UnrecognizedExtension(_OIDC_ISSUER, issuer.encode())
        builder = (
            self._begin_certificate(x509.Name([]), self.root.subject, key.public_key(), timedelta(minutes=5))
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(identity)]), critical=True)
            .add_extension(_build_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), critical=False
            )
            .add_extension(oidc, critical=False)
        )
        precertificate = builder.sign(self.authority, hashes.SHA256())
        timestamps = x509.UnrecognizedExtension(_SCTS, self._sign_timestamp(precertificate.tbs_certificate_bytes))
        return builder.add_extension(timestamps, critical=False).sign(self.authority, hashes.SHA256())

    def _sign_timestamp(self, certificate: bytes) -> bytes:
        """Return the signed timestamp of the certificate log for a certificate: RFC 6962, 3.2 and 3.3."""
        at = int(WHEN.timestamp() * 1000)
        entry = _hash_key(self.authority) + len(certificate).to_bytes(3, "big") + certificate
        signature = self.certificates.sign(struct.pack("!BBQH", 0, 0, at, 1) + entry + b"\0\0", _SHA256)
        promise = struct.pack("!B32sQH", 0, _hash_key(self.certificates), at, 0) + b"\4\3"
        promise += struct.pack("!H", len(signature)) + signature
        listed = struct.pack("!HH", len(promise) + 2, len(promise)) + promise
        return bytes((0x04, 0x81, len(listed)) if len(listed) > 127 else (0x04, len(listed))) + listed

    def _build_log_entry(self, certificate: x509.Certificate, digest: bytes, signature: bytes) -> dict[str, Any]:
        """Return the only entry of the log: a tree of one leaf."""
        public = _to_base64(certificate.public_bytes(Encoding.PEM))
        body = _encode_canonical(
            {
                "apiVersion": "0.0.1",
                "kind": "hashedrekord",
                "spec": {
                    "data": {"hash": {"algorithm": "sha256", "value": digest.hex()}},
                    "signature": {"content": _to_base64(signature), "publicKey": {"content": public}},
                },
            }
        )
        at, root = int(WHEN.timestamp()), sha256(b"\0" + body).digest()
        promise = {"body": _to_base64(body), "integratedTime": at, "logID": _hash_key(self.log).hex(), "logIndex": 0}
        note = f"log.test - 1\n1\n{_to_base64(root)}\n"
        note_signature = _to_base64(_hash_key(self.log)[:4] + self.log.sign(note.encode(), _SHA256))
        return {
            "logIndex": "0",
            "logId": {"keyId": _to_base64(_hash_key(self.log))},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": str(at),
            "inclusionPromise": {
                "signedEntryTimestamp": _to_base64(self.log.sign(_encode_canonical(promise), _SHA256))
            },
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _to_base64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\N{EM DASH} log.test {note_signature}\n"},
            },
            "canonicalizedBody": _to_base64(body),
        }


# EFI programs

PE32, PE32_PLUS = 0x10B, 0x20B


def efi_program(*, signed: bool, magic: int = PE32_PLUS, directories: int = 16, start: int = 0x80) -> bytes:
    """Return the head of an EFI program, with or without an entry in its table of certificates."""
    optional = struct.pack("<H", magic).ljust(108 if magic == PE32_PLUS else 92, b"\0")
    tables = [(0x1000 * (number + 1), 64) for number in range(directories)]
    if not signed and directories > 4:
        tables[4] = (0, 0)
    listed = struct.pack("<I", directories) + b"".join(struct.pack("<II", *each) for each in tables)
    stub = (b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", start)).ljust(start, b"\0")
    return (stub + b"PE\0\0" + b"\0" * 20 + optional + listed).ljust(HEAD, b"\0")
