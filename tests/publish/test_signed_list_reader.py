"""The reader of signed lists, which runs without gitboot: against RFC 8032, cryptography and python-tuf."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import DownloadHTTPError, RepositoryError
from tuf.api.metadata import Metadata, Root, TargetFile, Targets

import gitboot.publish.signed_list_reader as reader
from gitboot.publish.signed_list_reader import (
    AcceptedList,
    FileVersion,
    ListProblem,
    SignedList,
    Target,
    canonical_json,
    find_version,
    find_versions_around,
    parse_keys,
    parse_listing,
    read_list,
    verify_ed25519,
)
from tests.helpers.cases import for_each
from tests.helpers.signed_lists import FAR, ListSigner, encode_listing, make_client, target, write_list

NOW = datetime(2026, 11, 27, 21, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
SOURCE = Path(reader.__file__)
ORDER = 2**252 + 27742317777372353535851937790883648493  # RFC 8032, 5.1: L

# Ed25519

# RFC 8032, 7.1: TEST 1, 2, 3 and SHA(abc): public key, message, signature.
VECTORS = {
    "TEST 1": (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
        "24655141438e7a100b",
    ),
    "TEST 2": (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302ae"
        "eb00d291612bb0c00",
    ),
    "TEST 3": (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28d"
        "c027beceea1ec40a",
    ),
    "SHA(abc)": (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e"
        "2a9ac94fa54ca49f",
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17a"
        "d9bef1177331a704",
    ),
}


@for_each("vector", VECTORS.values(), ids=VECTORS.keys())
def test_a_signature_of_the_rfc_is_valid_and_each_of_its_bits_counts(vector: tuple[str, str, str]) -> None:
    key, message, signature = map(bytes.fromhex, vector)
    assert verify_ed25519(key, message, signature)
    assert not verify_ed25519(key, message + b"\0", signature)
    for bit in range(0, 512, 7):
        assert not verify_ed25519(key, message, _flip_bit(signature, bit)), bit
    for bit in range(0, 256, 7):
        assert not verify_ed25519(_flip_bit(key, bit), message, signature), bit


def _flip_bit(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _is_valid(key: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.data())
def test_openssl_and_the_reader_agree_on_signatures(seed: bytes, message: bytes, data: st.DataObject) -> None:
    own = Ed25519PrivateKey.from_private_bytes(seed)
    key, signature = own.public_key().public_bytes_raw(), own.sign(message)
    assert verify_ed25519(key, message, signature)
    s = int.from_bytes(signature[32:], "little")
    changed = data.draw(
        st.one_of(
            st.integers(0, 511).map(lambda bit: (key, _flip_bit(signature, bit))),
            st.integers(0, 255).map(lambda bit: (_flip_bit(key, bit), signature)),
            st.integers(1, 14).map(lambda n: (key, signature[:32] + (s + n * ORDER).to_bytes(32, "little"))),
            st.binary(min_size=32, max_size=32).map(lambda r: (key, r + signature[32:])),
            st.integers(0, 63).map(lambda size: (key, signature[:size])),
            st.just((key, signature + b"\0")),
        )
    )
    assert verify_ed25519(changed[0], message, changed[1]) == _is_valid(changed[0], message, changed[1])


# Points whose order divides 8, as RFC 8032 encodes them, and encodings of y that are not canonical.
SMALL = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


@for_each("key", SMALL)
def test_a_key_of_small_order_verifies_nothing(key: str) -> None:
    """With such a key, a signature that names no private key is right for one message in eight, or for each."""
    neutral = bytes.fromhex(SMALL[0]) + bytes(32)
    assert not any(verify_ed25519(bytes.fromhex(key), b"%d" % number, neutral) for number in range(32))


# Lists

CONTENT, OTHER = b"#!ipxe\nexit 0\n", b"#!ipxe\necho maintenance\n"
LISTING = encode_listing("lon1", {"ipxe/x": [(None, OTHER), (LATER, CONTENT)]}, (LATER, {"ipxe/x": CONTENT}))
LISTINGS = {"servers/lon1.json": LISTING, "shared.json": encode_listing(None, {"boot.ipxe": [(None, CONTENT)]})}


# The bins of the listings: TAP 15.
BINS = [f"1.servers-{sha256(name.encode()).hexdigest()[:2]}.json" for name in LISTINGS]


def make_list(signer: ListSigner, **more: Any) -> dict[str, bytes]:
    return signer.make(LISTINGS, **{"made": NOW, **more})


@pytest.fixture
def signer() -> ListSigner:
    return ListSigner()


@pytest.fixture
def files(signer: ListSigner) -> dict[str, bytes]:
    return make_list(signer)


def read_signed(files: Mapping[str, bytes], signer: ListSigner, seen: AcceptedList | None = None) -> SignedList:
    return read_list(lambda name, _: files.get(name), signer.keys, seen)


def get_fault(files: Mapping[str, bytes], signer: ListSigner, seen: AcceptedList | None = None) -> tuple[str, str]:
    with pytest.raises(ListProblem) as refused:
        read_signed(files, signer, seen)
    return refused.value.fault, refused.value.path.removeprefix("signed/")


def test_a_list_that_python_tuf_signed_is_read(signer: ListSigner) -> None:
    files = signer.make(LISTINGS, made=NOW, expires=LATER, commit="f00d", manifest="ab" * 32)
    found = read_signed(files, signer)
    assert (found.is_signed, found.is_verified, found.commit, found.manifest) == (True, True, "f00d", "ab" * 32)
    assert (found.made, found.expires, found.expiring) == (NOW, LATER, "timestamp.json")
    assert {*found.targets} == {*LISTINGS}
    listing = parse_listing("servers/lon1.json", LISTING, found.targets["servers/lon1.json"])
    assert listing.end is not None and listing.end.since == LATER
    assert listing.server == "lon1" and [*listing.contents.values()] == [CONTENT.decode()]


def test_a_list_without_signatures_is_read_without_a_key_and_reported_with_one() -> None:
    unsigned, signer = ListSigner.unsigned(), ListSigner()
    files = make_list(unsigned)
    found = read_signed(files, unsigned)
    assert (found.is_signed, found.is_verified) == (False, False)
    assert get_fault(files, signer) == ("Unsigned", "timestamp.json")
    found = read_signed(make_list(signer), unsigned)
    assert (found.is_signed, found.is_verified) == (True, False)


def test_a_list_of_another_publisher_is_rejected() -> None:
    assert get_fault(make_list(ListSigner()), ListSigner()) == ("BadSignature", "1.root.json")


@for_each("name", ["timestamp.json", "1.snapshot.json", "1.targets.json", *BINS])
def test_each_part_must_be_signed_by_the_key_of_its_role(name: str) -> None:
    signer, stranger = ListSigner(), ListSigner()
    files = make_list(signer)
    for signatures in ("of a stranger", "none"):
        metadata: Metadata[Any] = Metadata.from_bytes(files[name])
        metadata.signatures.clear()
        if signatures == "of a stranger":
            assert stranger.publication is not None
            metadata.sign(stranger.publication)
        changed = {**files, name: metadata.to_bytes()}
        # The timestamp names the snapshot's digest, so another snapshot is refused before its signatures are read.
        expected = "Damaged" if name == "1.snapshot.json" else "BadSignature"
        assert get_fault(changed, signer) == (expected, name)


def test_the_publication_key_signs_no_root_and_delegates_nothing(signer: ListSigner, files: dict[str, bytes]) -> None:
    assert signer.publication is not None
    for name in ("1.root.json", "1.targets.json"):
        metadata: Metadata[Any] = Metadata.from_bytes(files[name])
        metadata.sign(signer.publication)
        assert get_fault({**files, name: metadata.to_bytes()}, signer) == ("BadSignature", name)


def test_a_root_needs_as_many_signatures_as_it_states() -> None:
    signer = ListSigner(roots=[CryptoSigner.generate_ed25519() for _ in range(3)], threshold=2)
    files = make_list(signer)
    assert read_signed(files, signer).is_verified
    metadata: Metadata[Root] = Metadata.from_bytes(files["1.root.json"])
    for lost, is_enough in ((0, True), (1, False)):
        del metadata.signatures[signer.roots[lost].public_key.keyid]
        changed = {**files, "1.root.json": metadata.to_bytes()}
        named = ListSigner(roots=signer.roots[2:])
        if is_enough:
            assert read_signed(changed, named).is_verified
        else:
            assert get_fault(changed, named) == ("BadSignature", "1.root.json")
    assert get_fault(changed, signer) == ("BadSignature", "1.root.json"), "each key that is named has to have signed"


def test_a_key_with_two_ids_counts_once() -> None:
    signer = ListSigner(roots=[CryptoSigner.generate_ed25519()])
    signer.make_root()
    root: Metadata[Root] = Metadata.from_bytes(signer.roots_made[0])
    (key,) = (root.signed.keys[keyid] for keyid in root.signed.roles["root"].keyids)
    document = root.signed.to_dict()
    document["keys"]["f" * 64] = key.to_dict()
    document["roles"]["root"] = {"keyids": [key.keyid, "f" * 64], "threshold": 2}
    signature = signer.roots[0].sign(canonical_json(document)).signature
    signed = [{"keyid": each, "sig": signature} for each in (key.keyid, "f" * 64)]
    signer.roots_made = [json.dumps({"signed": document, "signatures": signed}).encode()]
    assert get_fault(make_list(signer), signer) == ("BadSignature", "1.root.json")


# Rotation of keys


def test_after_the_rotation_of_the_publication_key_a_list_of_the_stolen_one_is_rejected(signer: ListSigner) -> None:
    before = make_list(signer)
    seen = read_signed(make_list(signer), signer).accepted
    stolen, signer.publication = signer.publication, CryptoSigner.generate_ed25519()
    signer.make_root()
    files = make_list(signer)
    assert read_signed(files, signer, seen).accepted.root == 2
    thief = ListSigner(roots=signer.roots, publication=stolen, version=99, roots_made=signer.roots_made)
    assert get_fault(make_list(thief), signer, seen) == ("BadSignature", "timestamp.json")
    with pytest.raises(ListProblem, match="a replaced key signed the file"):
        read_signed(make_list(thief), signer, seen)
    assert get_fault(before, signer, read_signed(files, signer).accepted) == ("Older", "1.root.json")


def test_a_list_of_a_new_publication_key_may_begin_with_a_lower_version() -> None:
    """The owner of a stolen key may have signed the highest version: TUF, 5.3.11."""
    signer = ListSigner(version=10**6)
    seen = read_signed(make_list(signer), signer).accepted
    signer.version = 7
    assert get_fault(make_list(signer), signer, seen) == ("Older", "timestamp.json")
    signer.publication = CryptoSigner.generate_ed25519()
    signer.make_root()
    assert read_signed(make_list(signer), signer, seen).version == 9


def test_a_root_key_is_replaced_by_roots_that_both_keys_signed(signer: ListSigner) -> None:
    signer.make_root()
    old, signer.roots = signer.roots, [CryptoSigner.generate_ed25519()]
    signer.make_root(signed_by=old)
    files = make_list(signer)
    for roots in (old, signer.roots):
        assert read_signed(files, ListSigner(roots=roots)).accepted.root == 2
    signer.roots_made[1:] = []
    signer.make_root()
    assert get_fault(make_list(signer), ListSigner(roots=old)) == ("BadSignature", "2.root.json")


# Attacks on versions and parts


def test_an_older_list_is_rejected_and_the_same_one_is_not(signer: ListSigner, files: dict[str, bytes]) -> None:
    newer = signer.renew(files, expires=FAR)
    seen = read_signed(newer, signer).accepted
    assert read_signed(newer, signer, seen).accepted == seen
    assert get_fault(files, signer, seen) == ("Older", "timestamp.json")


SPOILT: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "cut short": ("timestamp.json", lambda data: data[:-20], "Damaged"),
    "no JSON object": ("timestamp.json", lambda _: b"[]", "Damaged"),
    "no text": ("timestamp.json", lambda _: b"\xff", "Damaged"),
    "nested": ("timestamp.json", lambda _: b'{"signed":' + b"[" * 8000 + b"]" * 8000 + b"}", "Damaged"),
    "a name twice": ("timestamp.json", lambda data: data.replace(b'"signed":', b'"signed":{},"signed":'), "Damaged"),
    "a float": ("timestamp.json", lambda data: data.replace(b'"version":1', b'"version":1.0'), "Damaged"),
    "large number": ("timestamp.json", lambda data: data.replace(b'"version":1', b'"version":' + b"1" * 99), "Damaged"),
    "control characters": ("timestamp.json", lambda data: data.replace(b'"feed"', b'"\\n"'), "Damaged"),
    "half a character": ("timestamp.json", lambda data: data.replace(b'"feed"', b'"\\ud800"'), "Damaged"),
    "another role": ("timestamp.json", lambda data: data.replace(b'"timestamp"', b'"snapshot"'), "Damaged"),
    "too large": ("timestamp.json", lambda data: data + b" " * 20000, "Damaged"),
    "another made": ("timestamp.json", lambda data: data.replace(b'"made":"2026-', b'"made":"2027-'), "BadSignature"),
    "another date": ("timestamp.json", lambda data: data.replace(b"2100-", b"2101-"), "BadSignature"),
    "another commit": ("timestamp.json", lambda data: data.replace(b'"feed"', b'"f00d"'), "BadSignature"),
    "another snapshot": ("1.snapshot.json", lambda data: data.replace(b"2100-", b"2101-"), "Damaged"),
    "another bin": (BINS[0], lambda data: data.replace(b"2100-", b"2101-"), "BadSignature"),
    "another root": ("1.root.json", lambda data: data.replace(b"2100-", b"2101-"), "BadSignature"),
}  # fmt: skip


@for_each("case", SPOILT)
def test_a_damaged_part_is_rejected_by_name(case: str) -> None:
    name, change, fault = SPOILT[case]
    signer = ListSigner()
    files = make_list(signer)
    assert change(files[name]) != files[name]
    assert get_fault({**files, name: change(files[name])}, signer) == (fault, name)


@for_each("name", ["1.snapshot.json", "1.targets.json", BINS[0], "timestamp.json"])
def test_a_missing_part_is_named(name: str, signer: ListSigner, files: dict[str, bytes]) -> None:
    others = {each: content for each, content in files.items() if each != name}
    assert get_fault(others, signer) == ("Missing", name)


def test_a_part_of_an_earlier_list_is_rejected(signer: ListSigner) -> None:
    before = make_list(signer)
    files = make_list(signer)
    for name in ("1.snapshot.json", "1.targets.json", BINS[0]):
        newer = name.replace("1.", "2.", 1)
        assert get_fault({**files, newer: before[name]}, signer) == ("Damaged", newer)


def test_a_bin_lists_only_its_own_names(signer: ListSigner, files: dict[str, bytes]) -> None:
    for name in ("shared.json", "../boot.ipxe", "servers/../x.json", "/shared.json"):
        metadata: Metadata[Targets] = Metadata.from_bytes(files[BINS[0]])
        metadata.signed.targets[name] = TargetFile(1, {"sha256": "0" * 64}, name)
        assert signer.publication is not None
        metadata.sign(signer.publication)
        assert get_fault({**files, BINS[0]: metadata.to_bytes()}, signer)[0] == "Damaged"


def test_an_expired_list_is_read_because_it_still_ends_windows(signer: ListSigner) -> None:
    found = read_signed(make_list(signer, made=NOW - timedelta(days=9), expires=NOW), signer)
    assert found.expires == NOW and found.expiring == "timestamp.json"
    signer.make_root(expires=NOW - timedelta(days=1))
    found = read_signed(make_list(signer), signer)
    assert (found.expires, found.expiring) == (NOW - timedelta(days=1), "2.root.json")


def test_a_list_that_is_replaced_while_it_is_read_is_read_again(signer: ListSigner) -> None:
    before = make_list(signer)
    after = {name: content for name, content in make_list(signer).items() if not name.startswith("1.s")}
    fetched: list[str] = []

    def fetch(name: str, _: int) -> bytes | None:
        fetched.append(name)
        return before[name] if fetched == ["timestamp.json"] else after.get(name)

    assert read_list(fetch, signer.keys).version == 2
    assert fetched.count("timestamp.json") == 3  # of the first try, whether it changed, of the second


# python-tuf's own client


def is_accepted_by_tuf(files: Mapping[str, bytes], root: bytes, folder: Path) -> bool:
    write_list(folder, files)
    updater = make_client(folder / "signed", root, folder / "cache")
    try:
        return all(target(updater, name) is not None for name in LISTINGS)
    except (RepositoryError, DownloadHTTPError):
        return False


def test_the_client_of_python_tuf_accepts_what_the_reader_accepts(
    tmp_path: Path, signer: ListSigner, files: dict[str, bytes]
) -> None:
    signer.publication = CryptoSigner.generate_ed25519()
    signer.make_root()
    for number, each in enumerate((files, make_list(signer))):
        assert is_accepted_by_tuf(each, signer.roots_made[0], tmp_path / str(number))
        assert read_signed(each, signer).is_verified


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_client_of_python_tuf_rejects_each_change_that_the_reader_rejects(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Each change is one bit. The reader may reject more, such as capital digits."""
    name = data.draw(st.sampled_from(sorted(SIGNED)))
    bit = data.draw(st.integers(0, 8 * len(SIGNED[name]) - 1))
    files = {**SIGNED, name: _flip_bit(SIGNED[name], bit)}
    folder = tmp_path_factory.mktemp("tuf") / "x"
    try:
        found = read_signed(files, SIGNER)
        for each in LISTINGS:
            parse_listing(each, files[each], found.targets[each])
    except (KeyError, ListProblem):
        return
    assert is_accepted_by_tuf(files, SIGNER.roots_made[0], folder)


SIGNER = ListSigner()
SIGNED = make_list(SIGNER)


# Listings

TWO = NOW + timedelta(hours=2)
VERSIONS = (FileVersion(None, "a", 1), FileVersion(LATER, None, 0), FileVersion(TWO, "c", 1))


@pytest.mark.parametrize(
    ("now", "version"),
    [
        (NOW, "a"),
        (LATER - timedelta(microseconds=1), "a"),
        (LATER, None),
        (TWO - timedelta(seconds=1), None),
        (TWO, "c"),
        (FAR, "c"),
    ],
)
def test_a_version_counts_from_its_time_until_the_next(now: datetime, version: str | None) -> None:
    found = find_version(VERSIONS, now)
    assert (found.sha256 if found is not None else None) == version
    assert find_version(VERSIONS[1:], NOW) is None


@pytest.mark.parametrize(
    ("now", "versions"),
    [
        (LATER - timedelta(seconds=121), ["a"]),
        (LATER - timedelta(seconds=120), ["a", None]),
        (LATER + timedelta(seconds=119), [None, "a"]),
        (LATER + timedelta(seconds=120), [None]),
        (TWO, ["c", None]),
    ],
)
def test_near_a_transition_a_mirror_may_have_either_version(now: datetime, versions: list[str | None]) -> None:
    found = find_versions_around(VERSIONS, now)
    assert [each.sha256 if each is not None else None for each in found] == versions


def _make_listing(**more: Any) -> bytes:
    return json.dumps({"server": None, "files": {}, "ends": None, "contents": {}, **more}).encode()


SHA, SINCE = "0" * 64, "2026-11-27T21:00:00Z"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_make_listing(ends={"since": SINCE, "files": {"../x": [None, 0]}}), id="an end above the tree"),
        pytest.param(_make_listing(ends={"since": SINCE, "files": {"x": [SHA, 1]}}), id="an end without its content"),
        pytest.param(_make_listing(ends={"since": "soon", "files": {}}), id="an end at no time"),
        pytest.param(_make_listing(ends={"since": SINCE}), id="an end of no files"),
        pytest.param(_make_listing(files={"../etc/passwd": []}), id="above the tree"),
        pytest.param(_make_listing(files={"/etc/passwd": []}), id="an absolute path"),
        pytest.param(_make_listing(files={"a//b": []}), id="an empty name"),
        pytest.param(_make_listing(files={"a/./b": []}), id="a dot"),
        pytest.param(_make_listing(files={"a\nb": []}), id="a line feed"),
        pytest.param(_make_listing(files={"signed/timestamp.json": []}), id="a file of the list"),
        pytest.param(_make_listing(files={"a": [[None, "x", 1]]}), id="no digest"),
        pytest.param(_make_listing(files={"a": [[None, SHA, -1]]}), id="a negative size"),
        pytest.param(_make_listing(files={"a": [[None, SHA, True]]}), id="a size that is no number"),
        pytest.param(_make_listing(files={"a": [["2026-11-27", SHA, 1]]}), id="a day"),
        pytest.param(_make_listing(files={"a": [[None, SHA, 1], [None, SHA, 1]]}), id="a second start"),
        pytest.param(
            _make_listing(files={"a": [["2026-11-27T00:00:01Z", SHA, 1], ["2026-11-27T00:00:00Z", SHA, 1]]}),
            id="times that fall",
        ),
        pytest.param(_make_listing(contents={SHA: "x"}), id="a content of another digest"),
        pytest.param(b"[]", id="no object"),
    ],
)
def test_a_listing_that_could_mislead_a_mirror_is_rejected(data: bytes) -> None:
    with pytest.raises(ListProblem, match="not part of a signed list"):
        parse_listing("shared.json", data, Target(sha256(data).hexdigest(), len(data)))
    with pytest.raises(ListProblem, match="the file's digest differs"):
        parse_listing("shared.json", _make_listing(), Target(SHA, 1))


def test_public_keys_are_pem_or_digits() -> None:
    key = Ed25519PrivateKey.generate().public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    digits = key.public_bytes_raw().hex()
    assert parse_keys(pem) == parse_keys(digits) == parse_keys(f"# root\n\n{digits.upper()} # lon1\n")
    assert len(parse_keys(pem + digits)) == 2
    rsa = generate_private_key(65537, 2048).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for text in ("", "# none", digits[:-1], f"{digits}x", pem.replace("MCow", "MCox"), rsa.decode()):
        with pytest.raises(ValueError, match=r"public key|hexadecimal digits"):
            parse_keys(text)
