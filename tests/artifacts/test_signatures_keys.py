"""Whose signatures of images count: gpg's and minisign's own, with the keys in a directory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from gitboot.artifacts.signatures import ImageKeys, SignatureKind
from gitboot.errors import UsageError
from gitboot.git.signatures import Distrusted
from gitboot.jsonio import Digest
from tests.helpers.artifact_servers import Sigstore
from tests.helpers.git_repositories import Minisign, Person, by_gpg, gpg_people


@pytest.fixture(scope="module")
def people() -> Iterator[Mapping[str, Person]]:
    with gpg_people("vendor", "stranger", "expired", "revoked") as people:
        yield people


def keys(folder: Path, files: Mapping[str, bytes]) -> ImageKeys:
    listed, scratch = folder / "keys", folder / "scratch"
    for each in (listed, scratch):
        each.mkdir(parents=True)
    for name, content in files.items():
        (listed / name).write_bytes(content)
    return ImageKeys(listed, scratch)


def digest(file: Path) -> Digest:
    return Digest(sha256(file.read_bytes()).hexdigest())


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    file = tmp_path / "vmlinuz"
    file.write_bytes(b"kernel" * 1000)
    return file


def test_a_file_that_a_listed_openpgp_key_has_signed_is_vouched_for(
    people: Mapping[str, Person], kernel: Path, tmp_path: Path
) -> None:
    vendor = people["vendor"]
    found = keys(tmp_path, {"vendor.asc": vendor.public.read_bytes(), "notes.txt": b"", ".hidden.asc": b"none"})
    for signature in (by_gpg(vendor, kernel), by_gpg(vendor, kernel, "--armor", "--detach-sign")):
        assert found.signer(SignatureKind.OPENPGP, signature, kernel, digest(kernel)).startswith("vendor <vendor@")


def test_no_other_signature_of_openpgp_counts(people: Mapping[str, Person], kernel: Path, tmp_path: Path) -> None:
    listed = {f"{name}.asc": people[name].public.read_bytes() for name in ("vendor", "expired", "revoked")}
    found = keys(tmp_path, listed)
    other = tmp_path / "other"
    other.write_bytes(b"another kernel")
    for signature, says in [
        (by_gpg(people["stranger"], kernel), "not listed"),
        (by_gpg(people["expired"], kernel), "expired"),
        (by_gpg(people["revoked"], kernel), "revoked"),
        (by_gpg(people["vendor"], other), "changed after it was signed"),
        (by_gpg(people["vendor"], other, "--sign"), "other OpenPGP packets"),  # whole: it brings what it is of
        # gpg accepts a signature in a compressed packet, RFC 4880, 5.6, and so decompresses what a stranger sends.
        (b"\xa3\x02" + zlib.compress(by_gpg(people["vendor"], kernel)), "other OpenPGP packets"),
        (by_gpg(people["vendor"], kernel)[:-1], "other OpenPGP packets"),  # cut off
        (by_gpg(people["vendor"], other, "--clearsign"), "gpg cannot read|other OpenPGP packets"),
        (b"", "gpg cannot read"),
        (by_gpg(people["vendor"], kernel) + by_gpg(people["stranger"], kernel), "gpg cannot read"),
    ]:
        with pytest.raises(Distrusted, match=says):
            found.signer(SignatureKind.OPENPGP, signature, kernel, digest(kernel))


def test_a_file_that_a_listed_minisign_key_has_signed_is_vouched_for(kernel: Path, tmp_path: Path) -> None:
    vendor, other, stranger = (Minisign(tmp_path, name) for name in ("vendor", "other", "stranger"))
    found = keys(tmp_path, {f"{each.public.stem}.pub": each.public.read_bytes() for each in (other, vendor)})
    signature = vendor.sign(kernel)
    for good in (signature, vendor.sign(kernel, "-l")):  # of its hash, or of all of it, as before 2021
        assert found.signer(SignatureKind.MINISIGN, good, kernel, digest(kernel)) == "minisign key vendor"
    for bad, says in [
        (stranger.sign(kernel), "not listed"),
        (signature.replace(b"file:vmlinuz", b"file:vmlinux"), "not what its minisign signature is of"),
        (b"", "or that is none"),
    ]:
        with pytest.raises(Distrusted, match=says):
            found.signer(SignatureKind.MINISIGN, bad, kernel, digest(kernel))
    kernel.write_bytes(b"another")
    with pytest.raises(Distrusted, match="not what its minisign signature is of"):
        found.signer(SignatureKind.MINISIGN, signature, kernel, digest(kernel))


def test_a_kind_of_which_no_key_is_listed_vouches_for_nothing(
    people: Mapping[str, Person], kernel: Path, tmp_path: Path
) -> None:
    vendor = Minisign(tmp_path, "vendor")
    by_openpgp = keys(tmp_path / "openpgp", {"vendor.asc": people["vendor"].public.read_bytes()})
    by_minisign = keys(tmp_path / "minisign", {"vendor.pub": vendor.public.read_bytes()})
    for found, kind in [
        (by_openpgp, SignatureKind.MINISIGN),
        (by_openpgp, SignatureKind.SIGSTORE),
        (by_minisign, SignatureKind.OPENPGP),
    ]:
        with pytest.raises(Distrusted, match="listed"):
            found.signer(kind, vendor.sign(kernel), kernel, digest(kernel))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("vendor.txt", b"", "has no key of images"),
        ("vendor.asc", b"none", "no OpenPGP public key"),
        ("vendor.pub", b"none", "is not a public key of minisign"),
        ("vendor.toml", b"", "is not a trusted root of sigstore"),
    ],
)
def test_what_is_no_key_is_refused(kernel: Path, tmp_path: Path, name: str, content: bytes, says: str) -> None:
    kind = SignatureKind.SIGSTORE if name.endswith("toml") else SignatureKind.MINISIGN
    signature = Minisign(tmp_path, "other").sign(kernel)
    with pytest.raises(UsageError, match=says):
        keys(tmp_path, {name: content}).signer(kind, signature, kernel, digest(kernel))
    with pytest.raises(UsageError, match="cannot be read"):
        ImageKeys(tmp_path / "missing", tmp_path)


VENDOR = b'identity = "vendor@example.net"\nissuer = "https://accounts.test"\n'


def test_a_file_that_a_listed_identity_has_signed_by_sigstore_is_vouched_for(kernel: Path, tmp_path: Path) -> None:
    sigstore = Sigstore()
    other = VENDOR.replace(b"vendor", b"other")
    found = keys(tmp_path, {"trusted_root.json": sigstore.trusted_root, "a.toml": other, "vendor.toml": VENDOR})
    bundle = sigstore.bundle(kernel.read_bytes(), "vendor@example.net")
    assert found.signer(SignatureKind.SIGSTORE, bundle, kernel, digest(kernel)) == "sigstore identity vendor"


def test_no_other_bundle_of_sigstore_counts(kernel: Path, tmp_path: Path) -> None:
    sigstore, stranger, content = Sigstore(), Sigstore(), kernel.read_bytes()
    found = keys(tmp_path, {"trusted_root.json": sigstore.trusted_root, "vendor.toml": VENDOR})
    other = Sigstore(authority=sigstore.authority, certificates=sigstore.certificates)
    uncertified = Sigstore(authority=sigstore.authority, log=sigstore.log)
    for bundle, says in [
        (stranger.bundle(content, "vendor@example.net"), "certificate chain"),
        (other.bundle(content, "vendor@example.net"), "invalid log entry"),
        (uncertified.bundle(content, "vendor@example.net"), "SCT"),
        (sigstore.bundle(content, "stranger@example.net"), "stranger@example.net"),
        (sigstore.bundle(content, "vendor@example.net", "https://others.test"), "https://others.test"),
        (sigstore.bundle(b"another", "vendor@example.net"), "mismatch"),
        (b"{}", "not signed by anybody"),
        (b"", "not signed by anybody"),
    ]:
        with pytest.raises(Distrusted, match=says):
            found.signer(SignatureKind.SIGSTORE, bundle, kernel, digest(kernel))


@pytest.mark.parametrize(
    "content", [b"", b'identity = "a"', b"identity = 1\nissuer = 2", VENDOR + b"more = 1", b"\xff"]
)
def test_an_identity_is_a_name_and_who_vouches_for_it(kernel: Path, tmp_path: Path, content: bytes) -> None:
    found = keys(tmp_path, {"trusted_root.json": Sigstore().trusted_root, "vendor.toml": content})
    with pytest.raises(UsageError, match="expected identity ="):
        found.signer(SignatureKind.SIGSTORE, b"{}", kernel, digest(kernel))
