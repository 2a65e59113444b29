from __future__ import annotations

import base64
import hmac

import pytest

from gitboot.git.remote import trusted_keys
from tests.helpers.cases import for_each

ED, RSA = "ssh-ed25519 AAAAC3Nza", "ssh-rsa AAAAB3Nza"


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.digest(salt, name.encode(), "sha1")
    return "|1|" + "|".join(base64.b64encode(part).decode() for part in (salt, digest))


@for_each(
    ("lines", "keys"),
    [
        pytest.param(f"git.example.net {ED}", {ED}, id="the host"),
        pytest.param(f"git.example.net {ED} comment", {ED}, id="with a comment"),
        pytest.param(f"git.example.net {ED}\ngit.example.net {RSA}\r\n", {ED, RSA}, id="two keys"),
        pytest.param(f"GIT.Example.net {ED}", {ED}, id="names have no case"),
        pytest.param(f"other.example.net {ED}", set(), id="another host"),
        pytest.param(f"a,git.example.net,b {ED}", {ED}, id="a list"),
        pytest.param(f"*.example.net {ED}", {ED}, id="a pattern"),
        pytest.param(f"git.example.ne? {ED}", {ED}, id="a single character"),
        pytest.param(f"*.example.net,!git.example.net {ED}", set(), id="excluded"),
        pytest.param(f"!git.example.net,*.example.net {ED}", set(), id="excluded first"),
        pytest.param(f"!other.example.net {ED}", set(), id="nothing but an exclusion"),
        pytest.param(f"{hashed('git.example.net')} {ED}", {ED}, id="hashed"),
        pytest.param(f"{hashed('other.example.net')} {ED}", set(), id="another host, hashed"),
        pytest.param(f"|1|nonsense {ED}", set(), id="a hash that is none"),
        pytest.param(f"[git.example.net]:2222 {ED}", set(), id="another port"),
        pytest.param(f"@revoked git.example.net {ED}\n* {ED}\n* {RSA}", {RSA}, id="revoked"),
        pytest.param(f"* {ED}\n@revoked {hashed('git.example.net')} {ED}", set(), id="revoked later, hashed"),
        pytest.param(f"@cert-authority *.example.net {ED}", set(), id="an authority is no key"),
        pytest.param(f"# git.example.net {ED}\n\nwhat?\ngit.example.net\n", set(), id="nothing of use"),
    ],
)
def test_known_hosts_are_read_as_by_openssh(lines: str, keys: set[str]) -> None:
    assert set(trusted_keys(lines, "git.example.net", 22)) == keys


@for_each(
    ("names", "is_known"),
    [
        pytest.param("[git.example.net]:2222", True, id="with the port"),
        pytest.param(hashed("[git.example.net]:2222"), True, id="with the port, hashed"),
        pytest.param("git.example.net", True, id="without a port, as ssh falls back to"),
        pytest.param("[git.example.net]:2223", False, id="another port"),
        pytest.param("[*.example.net]:2222", True, id="a pattern with the port"),
    ],
)
def test_another_port_has_names_of_its_own(names: str, is_known: bool) -> None:
    assert trusted_keys(f"{names} {ED}", "git.example.net", 2222) == ((ED,) if is_known else ())
