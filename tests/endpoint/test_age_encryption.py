"""age: keys, encryption, and checks of encrypted files without a key."""

from __future__ import annotations

from pathlib import Path

import pyrage
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyrage import x25519

from gitboot.endpoint.age_encryption import AgeKeys, DecryptionError, encrypt, make_key
from gitboot.errors import UsageError
from gitboot.fleet.documents import MAX_SECRET_BYTES, NotEncrypted, parse_encrypted
from tests.helpers.cases import for_each

ONE, OTHER = x25519.Identity.generate(), x25519.Identity.generate()
WHOLE = pyrage.encrypt(b"hunter2", [ONE.to_public()])


def write_keys(folder: Path, *keys: x25519.Identity) -> AgeKeys:
    file = folder / "keys"
    file.write_text("# two\n\n" + "".join(f"{key}\n" for key in keys))
    return AgeKeys(file)


def test_an_encrypted_file_is_decrypted_by_its_key(tmp_path: Path) -> None:
    keys = write_keys(tmp_path, ONE)
    content = bytes(range(256))
    assert keys.decrypt(parse_encrypted(encrypt(content, [str(ONE.to_public())]))) == content
    assert keys.decrypt(parse_encrypted(pyrage.encrypt(content, [ONE.to_public()]))) == content  # without armor


def test_a_new_key_and_the_old_one_decrypt_until_the_line_of_the_old_one_is_removed(tmp_path: Path) -> None:
    keys = write_keys(tmp_path, ONE)
    old, new = (parse_encrypted(encrypt(b"secret", [str(key.to_public())])) for key in (ONE, OTHER))
    assert keys.decrypt(old) == b"secret"
    with pytest.raises(DecryptionError):
        keys.decrypt(new)
    write_keys(tmp_path, ONE, OTHER)
    assert (keys.decrypt(old), keys.decrypt(new)) == (b"secret", b"secret")
    write_keys(tmp_path, OTHER)
    assert keys.decrypt(new) == b"secret"
    with pytest.raises(DecryptionError):
        keys.decrypt(old)
    (tmp_path / "keys").unlink()
    with pytest.raises(DecryptionError, match="No such file"):
        keys.decrypt(new)


def test_only_the_owner_can_read_a_new_key_and_it_replaces_no_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    public = make_key(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert AgeKeys(file).list_recipients() == (public,)
    before = file.read_bytes()
    with pytest.raises(UsageError, match="already exists"):
        make_key(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("text", ["", "# none\n", "secret\n", f"{ONE}\n{ONE.to_public()}\n", "\xff\n"])
def test_a_file_without_keys_is_rejected_and_its_content_is_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(UsageError) as refused:
        AgeKeys(tmp_path / "keys").check()
    assert str(ONE)[:20] not in str(refused.value)
    assert "secret keygen" in str(refused.value)


def test_a_secret_key_that_is_given_as_a_recipient_is_not_shown() -> None:
    with pytest.raises(UsageError) as refused:
        encrypt(b"", [str(ONE)])
    assert "AGE-SECRET" not in str(refused.value)


@for_each(
    ("data", "why"),
    [
        (b"", "not encrypted with age"),
        (b"hunter2\n", "not encrypted with age"),
        (encrypt(b"x", [str(ONE.to_public())])[:-60], "not encrypted with age"),  # armor without its end
        (
            encrypt(b"x", [str(ONE.to_public())]).replace(b"-----END", b"x===-----END"),
            "not encrypted|the file's armor is damaged",
        ),
        (pyrage.encrypt(b"x", [ONE.to_public()])[:100], "incomplete"),
        (b"age-encryption.org/v1\n-> scrypt c2FsdA 18\n\n--- " + b"A" * 43 + b"\n", "passphrase"),
        (
            b"age-encryption.org/v1\n-> ssh-ed25519 abc def\n\n--- " + b"A" * 43 + b"\n",
            "recipient types: ssh-ed25519",
        ),
        (b"age-encryption.org/v1\n--- " + b"A" * 43 + b"\n", "recipient types: none"),
        (pyrage.encrypt(b"x", [ONE.to_public()] * 21), "the limit is 20"),
        (pyrage.encrypt(b"x" * MAX_SECRET_BYTES, [ONE.to_public()]), "the limit is 65,536"),
    ],
    ids=[  # encryption is random, and pytest workers compare the ids
        *("empty", "in clear", "armor without an end", "no armor", "incomplete"),
        *("a passphrase", "a key of ssh", "nobody", "too many", "too large"),
    ],
)
def test_a_file_that_no_endpoint_could_decrypt_is_detected_without_a_key(data: bytes, why: str) -> None:
    with pytest.raises(NotEncrypted, match=why):
        parse_encrypted(data)


@given(st.data())
def test_a_damaged_file_is_rejected_or_cannot_be_decrypted(data: st.DataObject) -> None:
    """No content of a file raises any other exception."""
    at = data.draw(st.integers(0, 200))
    damaged = WHOLE[:at] + data.draw(st.binary(max_size=40)) + WHOLE[at + data.draw(st.integers(0, 40)) :]
    said = ""
    try:
        assert pyrage.decrypt(parse_encrypted(damaged), [ONE]) == b"hunter2"
    except (NotEncrypted, pyrage.DecryptError) as error:
        said = str(error)
    assert "hunter2" not in said
