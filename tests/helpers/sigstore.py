"""A sigstore of one's own: an authority that certifies who signs, its log of certificates, and its log of signatures.

Each bundle has what Fulcio and Rekor put into one, signed by keys of this authority; its trusted root names those keys.
After sigstore's "Bundle format" and "Client spec", RFC 6962 and C2SP's signed notes.
"""

from __future__ import annotations

import base64
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

WHEN = datetime(2026, 11, 20, tzinfo=UTC)
ISSUER = "https://accounts.test"
_OIDC_ISSUER = ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_SCTS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_SHA256 = ec.ECDSA(hashes.SHA256())


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return sha256(_spki(key)).digest()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _usage(**used: bool) -> x509.KeyUsage:
    every = [
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    ]
    return x509.KeyUsage(**{name: used.get(name, False) for name in every})


@dataclass
class Sigstore:
    """Who certifies and logs."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    certificates: ec.EllipticCurvePrivateKey = field(default_factory=_key)  # of the log of certificates
    log: ec.EllipticCurvePrivateKey = field(default_factory=_key)  # of signatures

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sigstore")])
        self.root = (
            self._builder(name, name, self.authority.public_key(), timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key()), critical=False)
            .sign(self.authority, hashes.SHA256())
        )

    @property
    def trusted_root(self) -> bytes:
        """As `trusted_root.json` has it."""

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            public = {"rawBytes": _text(_spki(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": since}
            return {
                "baseUrl": "https://log.test",
                "hashAlgorithm": "SHA2_256",
                "publicKey": public,
                "logId": {"keyId": _text(_id(key))},
            }

        since = {"start": "2020-01-01T00:00:00Z"}
        chain = {"certificates": [{"rawBytes": _text(self.root.public_bytes(Encoding.DER))}]}
        authority = {"subject": {"organization": "", "commonName": "sigstore"}, "uri": "https://ca.test"}
        return _canonical(
            {
                "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
                "tlogs": [log(self.log)],
                "ctlogs": [log(self.certificates)],
                "certificateAuthorities": [{**authority, "certChain": chain, "validFor": since}],
                "timestampAuthorities": [],
            }
        )

    def bundle(self, content: bytes, identity: str, issuer: str = ISSUER) -> bytes:
        """What somebody has signed whom this authority knows by that mail address."""
        key = _key()
        certificate = self._certified(key, identity, issuer)
        digest = sha256(content).digest()
        signature = key.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))
        entry = self._entry(certificate, digest, signature)
        return _canonical(
            {
                "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
                "verificationMaterial": {
                    "certificate": {"rawBytes": _text(certificate.public_bytes(Encoding.DER))},
                    "tlogEntries": [entry],
                },
                "messageSignature": {
                    "messageDigest": {"algorithm": "SHA2_256", "digest": _text(digest)},
                    "signature": _text(signature),
                },
            }
        )

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lasts: timedelta
    ) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key).serial_number(7)
        return builder.not_valid_before(WHEN - timedelta(minutes=5)).not_valid_after(WHEN + lasts)

    def _certified(self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str) -> x509.Certificate:
        oidc = x509.UnrecognizedExtension(_OIDC_ISSUER, issuer.encode())
        builder = (
            self._builder(x509.Name([]), self.root.subject, key.public_key(), timedelta(minutes=5))
            .add_extension(x509.SubjectAlternativeName([x509.RFC822Name(identity)]), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), critical=False
            )
            .add_extension(oidc, critical=False)
        )
        before = builder.sign(self.authority, hashes.SHA256())
        logged = x509.UnrecognizedExtension(_SCTS, self._logged(before.tbs_certificate_bytes))
        return builder.add_extension(logged, critical=False).sign(self.authority, hashes.SHA256())

    def _logged(self, certificate: bytes) -> bytes:
        """The word of the log of certificates for one that has none yet: RFC 6962, 3.2 and 3.3."""
        at = int(WHEN.timestamp() * 1000)
        entry = _id(self.authority) + len(certificate).to_bytes(3, "big") + certificate
        signature = self.certificates.sign(struct.pack("!BBQH", 0, 0, at, 1) + entry + b"\0\0", _SHA256)
        promise = struct.pack("!B32sQH", 0, _id(self.certificates), at, 0) + b"\4\3"
        promise += struct.pack("!H", len(signature)) + signature
        listed = struct.pack("!HH", len(promise) + 2, len(promise)) + promise
        return bytes((0x04, 0x81, len(listed)) if len(listed) > 127 else (0x04, len(listed))) + listed

    def _entry(self, certificate: x509.Certificate, digest: bytes, signature: bytes) -> dict[str, Any]:
        """The log's only entry: a tree of one leaf."""
        public = _text(certificate.public_bytes(Encoding.PEM))
        body = _canonical(
            {
                "apiVersion": "0.0.1",
                "kind": "hashedrekord",
                "spec": {
                    "data": {"hash": {"algorithm": "sha256", "value": digest.hex()}},
                    "signature": {"content": _text(signature), "publicKey": {"content": public}},
                },
            }
        )
        at, root = int(WHEN.timestamp()), sha256(b"\0" + body).digest()
        promise = {"body": _text(body), "integratedTime": at, "logID": _id(self.log).hex(), "logIndex": 0}
        note = f"log.test - 1\n1\n{_text(root)}\n"
        by = _text(_id(self.log)[:4] + self.log.sign(note.encode(), _SHA256))
        return {
            "logIndex": "0",
            "logId": {"keyId": _text(_id(self.log))},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": str(at),
            "inclusionPromise": {"signedEntryTimestamp": _text(self.log.sign(_canonical(promise), _SHA256))},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _text(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\N{EM DASH} log.test {by}\n"},
            },
            "canonicalizedBody": _text(body),
        }
