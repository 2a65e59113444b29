"""`gitboot secret`: keys, files that are encrypted to them, and whether they open what a fleet has."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from gitboot.cli.main import Exit, cli
from gitboot.endpoint.age_encryption import AgeKeys
from gitboot.fleet.documents import parse_encrypted
from gitboot.publish.signed_list import read_list_keys
from tests.endpoint.test_boot_responses_secrets import IGNITION, documents


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["secret", *map(str, arguments)], input=stdin)


def get_error(*arguments: str | Path) -> str:
    return str(run(*arguments).exception)


def write_key(folder: Path, key: Path) -> Path:
    (folder / "s").mkdir(parents=True)
    (folder / "fleet.yaml").write_text("---\n".join(documents()))
    (folder / "t").write_text(IGNITION)
    for name in ("join", "own"):
        assert run("encrypt", "--to-keys", key, "--file", folder / "s" / f"{name}.age", stdin="hunter2").exit_code == 0
    return folder


def test_a_new_key_decrypts_its_secrets_and_a_fleet_is_checked_with_it(tmp_path: Path) -> None:
    key, other = tmp_path / "key", tmp_path / "other"
    public = run("keygen", key).output.strip()
    assert public.startswith("age1")
    fleet = write_key(tmp_path / "fleet", key)
    assert AgeKeys(key).decrypt(parse_encrypted((fleet / "s/join.age").read_bytes())) == b"hunter2"
    assert run("check", fleet, "--secret-keys", key).exit_code == 0

    new = run("keygen", other).output.strip()
    assert run("encrypt", fleet / "t", "--to", public, "--to", new, "--file", fleet / "s/own.age").exit_code == 0
    found = run("check", fleet, "--secret-keys", other, "-o", "json")
    assert found.exit_code == Exit.INVALID
    items = json.loads(found.stdout)["items"]
    assert [(each["path"], each["closed"]) for each in items] == [
        ("s/join.age", "no key in the key file can decrypt the file"),
        ("s/own.age", None),
    ]
    text = run("check", fleet, "--secret-keys", other)
    assert text.output == (
        "s/join.age: no key in the key file can decrypt the file\n"
        "2 secrets checked: 1 cannot be decrypted with these keys\n"
    )
    assert "hunter2" not in found.output + text.output


def test_errors_are_reported_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "x.age"
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "none").write_text("hunter2")
    public = run("keygen", tmp_path / "key").output.strip()
    assert "a secret needs a recipient" in get_error("encrypt", tmp_path / "none", "--file", out)
    assert "expected a complete age public key" in get_error(
        "encrypt", tmp_path / "none", "--to", "hunter2", "--file", out
    )
    assert "the limit is 65,536" in get_error("encrypt", tmp_path / "large", "--to", public, "--file", out)
    no_key = get_error("encrypt", tmp_path / "none", "--to-keys", tmp_path / "none", "--file", out)
    assert "line 1 is not an age key" in no_key and "hunter2" not in no_key
    assert "already exists" in get_error("keygen", tmp_path / "key")
    assert not out.exists()


def test_signing_keys_are_made_once_and_later_replaced_with_the_root_key(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made = run("keygen", folder, "--signed-list")
    assert made.output == (folder / "root.pub").read_text() and "PUBLIC KEY" in made.output
    first = (folder / "publication.key").read_bytes()
    assert run("keygen", folder, "--signed-list").output == made.output
    assert (folder / "publication.key").read_bytes() != first
    assert {(folder / name).stat().st_mode & 0o777 for name in ("root.key", "publication.key")} == {0o600}
    names = {"root.key", "root.pub", "publication.key"} | {
        f"{n}.{kind}.json" for n in (1, 2) for kind in ("root", "targets")
    }
    assert {each.name for each in folder.iterdir()} == names
    read_list_keys(folder)


def test_a_root_key_may_be_in_another_folder_and_may_be_replaced(tmp_path: Path) -> None:
    folder, old, new = tmp_path / "keys", tmp_path / "away/old.key", tmp_path / "away/new.key"
    first = run("keygen", folder, "--signed-list", "--root-key", old).output
    assert not (folder / "root.key").exists()
    assert str(folder / "root.key") in get_error("keygen", folder, "--signed-list")
    second = run("keygen", folder, "--signed-list", "--root-key", old, "--new-root-key", new).output
    assert second == (folder / "root.pub").read_text() != first
    assert "is not a root key" in get_error("keygen", folder, "--signed-list", "--root-key", old)
    assert run("keygen", folder, "--signed-list", "--root-key", new).output == second
    read_list_keys(folder)


def test_signing_keys_that_cannot_be_made_are_rejected_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    assert "add --signed-list" in get_error("keygen", folder, "--root-key", tmp_path / "x")
    assert "no root key to replace" in get_error("keygen", folder, "--signed-list", "--new-root-key", tmp_path / "x")
    (tmp_path / "x").write_text("something")
    assert "already exists" in get_error("keygen", folder, "--signed-list", "--root-key", tmp_path / "x")
    assert not folder.exists()
