"""Keys of images: which keys count, and what a signature proves."""

from __future__ import annotations

import re
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import pytest

from gitboot.artifacts.signatures import SHIPPED_KEYS, ImageSigner, SignatureKind, VendorKeys
from gitboot.errors import UsageError
from gitboot.git.signatures import UntrustedSignature
from gitboot.jsonio import Digest
from tests.helpers.artifact_servers import Sigstore
from tests.helpers.git_repositories import Minisign, Person, clear_sign, gpg_people, sign_with_gpg


@pytest.fixture(scope="module")
def people() -> Iterator[Mapping[str, Person]]:
    with gpg_people("vendor", "stranger", "expired", "revoked") as people:
        yield people


def load_keys(folder: Path, files: Mapping[str, bytes]) -> VendorKeys:
    listed, scratch = folder / "keys", folder / "scratch"
    for each in (listed, scratch):
        each.mkdir(parents=True)
    for name, content in files.items():
        (listed / name).write_bytes(content)
    return VendorKeys(listed, scratch, shipped=None)


def compute_digest(file: Path) -> Digest:
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
    found = load_keys(tmp_path, {"vendor.asc": vendor.public.read_bytes(), "notes.txt": b"", ".hidden.asc": b"none"})
    for signature in (sign_with_gpg(vendor, kernel), sign_with_gpg(vendor, kernel, "--armor", "--detach-sign")):
        signer = found.find_signer(SignatureKind.OPENPGP, signature, kernel, compute_digest(kernel))
        assert signer.name == "vendor <vendor@example.net>"
        assert re.fullmatch("[0-9A-F]{40}", signer.key)


def test_other_openpgp_signatures_are_rejected(people: Mapping[str, Person], kernel: Path, tmp_path: Path) -> None:
    listed = {f"{name}.asc": people[name].public.read_bytes() for name in ("vendor", "expired", "revoked")}
    found = load_keys(tmp_path, listed)
    other = tmp_path / "other"
    other.write_bytes(b"another kernel")
    for signature, says in [
        (sign_with_gpg(people["stranger"], kernel), "not listed"),
        (sign_with_gpg(people["expired"], kernel), "expired"),
        (sign_with_gpg(people["revoked"], kernel), "revoked"),
        (sign_with_gpg(people["vendor"], other), "changed after it was signed"),
        (sign_with_gpg(people["vendor"], other, "--sign"), "are not signatures"),  # whole: it brings what it is of
        # gpg accepts a signature in a compressed packet, RFC 4880, 5.6, and so decompresses what a stranger sends.
        (b"\xa3\x02" + zlib.compress(sign_with_gpg(people["vendor"], kernel)), "are not signatures"),
        (sign_with_gpg(people["vendor"], kernel)[:-1], "are not signatures"),  # cut off
        (sign_with_gpg(people["vendor"], other, "--clearsign"), "changed after it was signed"),
        (b"", "is empty"),
        (
            sign_with_gpg(people["vendor"], other) + sign_with_gpg(people["stranger"], kernel),
            "changed after it was signed",
        ),
        (sign_with_gpg(people["stranger"], kernel) * 9, "more than 8 OpenPGP signatures"),
    ]:
        with pytest.raises(UntrustedSignature, match=says):
            found.find_signer(SignatureKind.OPENPGP, signature, kernel, compute_digest(kernel))


def test_one_good_signature_of_several_is_enough(people: Mapping[str, Person], kernel: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another kernel")
    good, bad = sign_with_gpg(people["vendor"], kernel), sign_with_gpg(people["stranger"], other)
    found = load_keys(tmp_path, {"vendor.asc": people["vendor"].public.read_bytes()})
    for signature in (good + bad, bad + good, sign_with_gpg(people["vendor"], other) + good):
        assert found.find_signer(SignatureKind.OPENPGP, signature, kernel, compute_digest(kernel)).name.startswith(
            "vendor <"
        )
    with pytest.raises(UntrustedSignature, match="changed after it was signed"):
        found.find_signer(SignatureKind.OPENPGP, good + bad, other, compute_digest(other))


def test_only_the_allowed_keys_may_sign(people: Mapping[str, Person], kernel: Path, tmp_path: Path) -> None:
    minisign = Minisign(tmp_path, "mini")
    files = {f"{name}.asc": people[name].public.read_bytes() for name in ("vendor", "stranger")}
    found = load_keys(tmp_path, {**files, "mini.pub": minisign.public.read_bytes()})

    def sign(only: tuple[str, ...] | None, *names: str) -> ImageSigner:
        signature = b"".join(sign_with_gpg(people[name], kernel) for name in names)
        return found.find_signer(SignatureKind.OPENPGP, signature, kernel, compute_digest(kernel), only=only)

    vendor, stranger = sign(None, "vendor").key, sign(None, "stranger").key
    assert sign((vendor,), "stranger", "vendor").key == vendor
    for only, names in [((stranger,), ("vendor",)), ((), ("vendor", "stranger")), ((vendor[-16:],), ("vendor",))]:
        with pytest.raises(UntrustedSignature, match="which is not allowed"):
            sign(only, *names)

    by_minisign, public = minisign.sign(kernel), minisign.public.read_text().split()[-1]
    for kind, signature, allowed in [
        (SignatureKind.MINISIGN, by_minisign, public),
    ]:
        assert found.find_signer(kind, signature, kernel, compute_digest(kernel), only=(allowed,)).key == allowed
        with pytest.raises(UntrustedSignature, match="not listed"):
            found.find_signer(kind, signature, kernel, compute_digest(kernel), only=(vendor,))


CLEAR_TEXT = b"first\n- a dash\n-----BEGIN PGP SIGNATURE-----\nlast"


def test_only_the_signed_text_of_a_clear_signed_message_counts(people: Mapping[str, Person], tmp_path: Path) -> None:
    found = load_keys(tmp_path, {"vendor.asc": people["vendor"].public.read_bytes()})
    vendor, stranger = people["vendor"], people["stranger"]
    message = clear_sign(tmp_path, CLEAR_TEXT, vendor)
    for content in (
        message,
        b"before\n" + message + b"after\n",
        message + clear_sign(tmp_path, b"another text", vendor),
        message.replace(b"\n", b"\r\n"),
        clear_sign(tmp_path, CLEAR_TEXT, stranger, vendor),
        clear_sign(tmp_path, CLEAR_TEXT, vendor, stranger),
    ):
        text, signer = found.read_clear_signed(content)
        assert (text.splitlines(), signer.name) == (CLEAR_TEXT.splitlines(), "vendor <vendor@example.net>")


def test_other_clear_signed_messages_are_rejected(people: Mapping[str, Person], tmp_path: Path) -> None:
    found = load_keys(tmp_path, {"vendor.asc": people["vendor"].public.read_bytes()})
    vendor, stranger = people["vendor"], people["stranger"]
    message, other = clear_sign(tmp_path, CLEAR_TEXT, vendor), clear_sign(tmp_path, b"other", stranger)
    for content, says in [
        (message.replace(b"first", b"third"), "changed after it was signed"),
        (message.replace(b"\nfirst", b"\nmore\nfirst"), "changed after it was signed"),
        (other, "not listed"),
        (other + message, "not listed"),  # the first message counts
        (other[: other.index(b"-----BEGIN PGP SIGNATURE")] + message, "not a complete"),
        (message.replace(b"Hash: ", b"NotDashEscaped: yes\nHash: "), "headers that gitboot does not support"),
        (message.replace(b"\n\nfirst", b"\nmore\n\nfirst"), "headers that gitboot does not support"),
        (message.replace(b"- -----BEGIN", b"-----BEGIN"), "not a complete"),
        (message[: message.index(b"-----END")], "not a complete"),
        (CLEAR_TEXT, "not a complete"),
        (b"", "not a complete"),
    ]:
        with pytest.raises(UntrustedSignature, match=says):
            found.read_clear_signed(content)
    with pytest.raises(UntrustedSignature, match="which is not allowed"):
        found.read_clear_signed(message, only=())


# From the notes on sources of images, or from the packages that keys/README.md names.
FINGERPRINTS = {
    "almalinux-10.asc": "EE6DB7B98F5BF5EDD9DA0DE5DEE5C11CC2A1E572",
    "almalinux-9.asc": "BF18AC2876178908D6E71267D36CB86CB86B3716",
    "alpine.asc": "0482D84022F52DF1C4E7CD43293ACD0907D9495A",
    "debian-12-automatic.asc": "B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8",
    "debian-12-stable.asc": "4D64FEC119C2029067D6E791F8D2585B8783D481",
    "debian-13-automatic.asc": "04B54C3CDCA79751B16BC6B5225629DF75B188BD",
    "debian-13-stable.asc": "41587F7DB8C774BCCF131416762F67A0B2C39DE4",
    "fedora-43.asc": "C6E7F081CF80E13146676E88829B606631645531",
    "fedora-44.asc": "36F612DCF27F7D1A48A835E4DBFCF71C6D9F90A6",
    "fedora-45.asc": "4F50A6114CD5C6976A7F1179655A4B02F577861E",
    "fedora-46.asc": "D924B10D3E810DABDD8B56B596E7E91491211FCE",
    "flatcar.asc": "F88CFEDEFF29A5B4D9523864E25D9AED0593B34A",
    "opensuse.asc": "AD485664E901B867051AB15F35A2F86E29B700A4",
    "redhat-2.asc": "567E347AD0044ADE55BA8A5F199E2F91FD431D51",
    "rocky-10.asc": "FC226859C0860BF0DDB95B085B106C736FEDFC85",
    "rocky-9.asc": "21CB256AE16FC54C6E652949702D426D350D275D",
    "ubuntu-cdimage.asc": "843938DF228D22F7B3742BC0D94AA3F0EFE21092",
    "ubuntu-cloudimage.asc": "D2EB44626FDDC30B513D5BB71A5D6C4C7DB87C81",
}


def test_gitboot_ships_the_keys_of_vendors(tmp_path: Path) -> None:
    found = {}
    for file in SHIPPED_KEYS.glob("*.asc"):
        command = ["gpg", "--homedir", str(tmp_path), "--batch", "--with-colons", "--show-keys", str(file)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
        assert [line.partition(":")[0] for line in lines if line.startswith(("pub", "sec"))] == ["pub"]
        found[file.name] = next(line for line in lines if line.startswith("fpr")).split(":")[9]
    assert found == FINGERPRINTS
    table = re.findall(r"^\| (\S+\.asc) \| `(\w+)` ", (SHIPPED_KEYS / "README.md").read_text(), re.MULTILINE)
    assert dict(table) == FINGERPRINTS


def test_the_shipped_keys_count_beside_those_of_a_directory(
    people: Mapping[str, Person], kernel: Path, tmp_path: Path
) -> None:
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    for folder, name in ((own, "vendor"), (shipped, "stranger")):
        folder.mkdir()
        (folder / f"{name}.asc").write_bytes(people[name].public.read_bytes())
    signatures = {name: sign_with_gpg(people[name], kernel) for name in ("vendor", "stranger")}
    for number, (directory, trusted) in enumerate([(None, {"stranger"}), (own, {"vendor", "stranger"})]):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        found = VendorKeys(directory, scratch, shipped=shipped)
        for name, signature in signatures.items():
            if name in trusted:
                signer = found.find_signer(SignatureKind.OPENPGP, signature, kernel, compute_digest(kernel))
                assert signer.name.startswith(name)
            else:
                with pytest.raises(UntrustedSignature, match="not listed"):
                    found.find_signer(SignatureKind.OPENPGP, signature, kernel, compute_digest(kernel))


def test_the_digest_of_a_key_changes_when_the_key_is_removed_or_changes(
    people: Mapping[str, Person], kernel: Path, tmp_path: Path
) -> None:
    minisign, sigstore = Minisign(tmp_path, "mini"), Sigstore()
    files = {
        "vendor.asc": people["vendor"].public.read_bytes(),
        "mini.pub": minisign.public.read_bytes(),
        "vendor.toml": VENDOR,
        "trusted_root.json": sigstore.trusted_root,
    }
    found = load_keys(tmp_path / "before", files)
    signatures = {
        SignatureKind.OPENPGP: sign_with_gpg(people["vendor"], kernel),
        SignatureKind.MINISIGN: minisign.sign(kernel),
        SignatureKind.SIGSTORE: sigstore.bundle(kernel.read_bytes(), "vendor@example.net"),
    }
    signers = [found.find_signer(kind, each, kernel, compute_digest(kernel)).key for kind, each in signatures.items()]
    digests = [found.compute_key_digest(each) for each in signers]
    assert None not in digests
    assert len(set(digests)) == len(digests)

    more = load_keys(tmp_path / "more", {**files, "other.asc": people["stranger"].public.read_bytes()})
    assert [more.compute_key_digest(each) for each in signers] == digests
    none = load_keys(tmp_path / "none", {"other.asc": people["stranger"].public.read_bytes()})
    assert [none.compute_key_digest(each) for each in (*signers, "--version", "vendor", "")] == [None] * 6

    revoked = load_keys(tmp_path / "revoked", {"revoked.asc": people["revoked"].public.read_bytes()})
    valid = load_keys(tmp_path / "valid", {"before.asc": (people["revoked"].public.parent / "before.asc").read_bytes()})
    key = valid.find_signer(
        SignatureKind.OPENPGP, sign_with_gpg(people["revoked"], kernel), kernel, compute_digest(kernel)
    ).key
    assert None is not valid.compute_key_digest(key) != revoked.compute_key_digest(key) is not None


def test_a_file_that_a_listed_minisign_key_has_signed_is_vouched_for(kernel: Path, tmp_path: Path) -> None:
    vendor, other, stranger = (Minisign(tmp_path, name) for name in ("vendor", "other", "stranger"))
    found = load_keys(tmp_path, {f"{each.public.stem}.pub": each.public.read_bytes() for each in (other, vendor)})
    signature = vendor.sign(kernel)
    for good in (signature, vendor.sign(kernel, "-l")):  # of its hash, or of all of it, as before 2021
        assert found.find_signer(SignatureKind.MINISIGN, good, kernel, compute_digest(kernel)) == ImageSigner(
            vendor.public.read_text().split()[-1], "minisign key vendor"
        )
    for bad, says in [
        (stranger.sign(kernel), "not listed"),
        (
            signature.replace(b"file:vmlinuz", b"file:vmlinux"),
            "the minisign signature is malformed or belongs to a different file",
        ),
        (b"", "the minisign signature is malformed or belongs to a different file"),
    ]:
        with pytest.raises(UntrustedSignature, match=says):
            found.find_signer(SignatureKind.MINISIGN, bad, kernel, compute_digest(kernel))
    kernel.write_bytes(b"another")
    with pytest.raises(UntrustedSignature, match="the minisign signature is malformed or belongs to a different file"):
        found.find_signer(SignatureKind.MINISIGN, signature, kernel, compute_digest(kernel))


@pytest.mark.parametrize("content", ["{0}", "{0}\n", "untrusted comment: minisign public key E762\r\n{0}\r\n"])
def test_a_minisign_key_needs_no_comment(kernel: Path, tmp_path: Path, content: str) -> None:
    """Projects publish the key alone for `minisign -P`."""
    vendor = Minisign(tmp_path, "vendor")
    key = vendor.public.read_text().split()[-1]
    found = load_keys(tmp_path, {"vendor.pub": content.format(key).encode()})
    assert found.find_signer(SignatureKind.MINISIGN, vendor.sign(kernel), kernel, compute_digest(kernel)).key == key


def test_a_signature_of_a_kind_without_listed_keys_is_rejected(
    people: Mapping[str, Person], kernel: Path, tmp_path: Path
) -> None:
    vendor = Minisign(tmp_path, "vendor")
    by_openpgp = load_keys(tmp_path / "openpgp", {"vendor.asc": people["vendor"].public.read_bytes()})
    by_minisign = load_keys(tmp_path / "minisign", {"vendor.pub": vendor.public.read_bytes()})
    for found, kind in [
        (by_openpgp, SignatureKind.MINISIGN),
        (by_openpgp, SignatureKind.SIGSTORE),
        (by_minisign, SignatureKind.OPENPGP),
    ]:
        with pytest.raises(UntrustedSignature, match=r"not listed|gitboot has no trusted"):
            found.find_signer(kind, vendor.sign(kernel), kernel, compute_digest(kernel))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("vendor.txt", b"", "does not contain image keys"),
        ("vendor.asc", b"none", "no OpenPGP public key"),
        ("vendor.pub", b"none", "is not a minisign public key"),
        ("vendor.toml", b"", "is not a trusted root for sigstore"),
    ],
)
def test_malformed_keys_are_rejected(kernel: Path, tmp_path: Path, name: str, content: bytes, says: str) -> None:
    kind = SignatureKind.SIGSTORE if name.endswith("toml") else SignatureKind.MINISIGN
    signature = Minisign(tmp_path, "other").sign(kernel)
    with pytest.raises(UsageError, match=says):
        load_keys(tmp_path, {name: content}).find_signer(kind, signature, kernel, compute_digest(kernel))
    with pytest.raises(UsageError, match="cannot be read"):
        VendorKeys(tmp_path / "missing", tmp_path)


VENDOR = b'identity = "vendor@example.net"\nissuer = "https://accounts.test"\n'


def test_a_file_that_a_listed_identity_has_signed_by_sigstore_is_vouched_for(kernel: Path, tmp_path: Path) -> None:
    sigstore = Sigstore()
    other = VENDOR.replace(b"vendor", b"other")
    found = load_keys(tmp_path, {"trusted_root.json": sigstore.trusted_root, "a.toml": other, "vendor.toml": VENDOR})
    bundle = sigstore.bundle(kernel.read_bytes(), "vendor@example.net")
    assert found.find_signer(SignatureKind.SIGSTORE, bundle, kernel, compute_digest(kernel)) == ImageSigner(
        "vendor@example.net", "sigstore identity vendor"
    )


def test_other_sigstore_bundles_are_rejected(kernel: Path, tmp_path: Path) -> None:
    sigstore, stranger, content = Sigstore(), Sigstore(), kernel.read_bytes()
    found = load_keys(tmp_path, {"trusted_root.json": sigstore.trusted_root, "vendor.toml": VENDOR})
    other = Sigstore(authority=sigstore.authority, certificates=sigstore.certificates)
    uncertified = Sigstore(authority=sigstore.authority, log=sigstore.log)
    for bundle, says in [
        (stranger.bundle(content, "vendor@example.net"), "certificate chain"),
        (other.bundle(content, "vendor@example.net"), "invalid log entry"),
        (uncertified.bundle(content, "vendor@example.net"), "SCT"),
        (sigstore.bundle(content, "stranger@example.net"), "stranger@example.net"),
        (sigstore.bundle(content, "vendor@example.net", "https://others.test"), "https://others.test"),
        (sigstore.bundle(b"another", "vendor@example.net"), "mismatch"),
        (b"{}", "not signed by a listed"),
        (b"", "not signed by a listed"),
    ]:
        with pytest.raises(UntrustedSignature, match=says):
            found.find_signer(SignatureKind.SIGSTORE, bundle, kernel, compute_digest(kernel))


@pytest.mark.parametrize(
    "content", [b"", b'identity = "a"', b"identity = 1\nissuer = 2", VENDOR + b"more = 1", b"\xff"]
)
def test_an_identity_has_a_name_and_an_issuer(kernel: Path, tmp_path: Path, content: bytes) -> None:
    found = load_keys(tmp_path, {"trusted_root.json": Sigstore().trusted_root, "vendor.toml": content})
    with pytest.raises(UsageError, match="expected exactly two keys, identity ="):
        found.find_signer(SignatureKind.SIGSTORE, b"{}", kernel, compute_digest(kernel))
