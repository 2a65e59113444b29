"""Credential files that are replaced while an instance runs, and those that are missing or malformed for a while."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pygit2
import pytest

from gitboot.artifacts.oci import OciReference, RegistryCredentials
from gitboot.bmc import credentials
from gitboot.bmc.credentials import read_credentials
from gitboot.bmc.override_session import TaskOutcome
from gitboot.controller.forge import CommitVerdict, Forge, Judgement, Project
from gitboot.controller.notifications import RereadingSender, read_receiver
from gitboot.endpoint.age_encryption import AgeKeys, DecryptionError, encrypt, make_key
from gitboot.errors import ForgeRefused, HostUnreachable, PublishError, UsageError
from gitboot.publish.targets.follower import BucketAddress
from gitboot.publish.targets.s3 import build_bucket_opener
from gitboot.publish.targets.sync_steps import StoreTarget
from tests.controller.test_notifications import NOON, NOTICE
from tests.controller.test_reconcile import fleet_files
from tests.helpers import http_peers
from tests.helpers.bmcs import PASSWORD, racks
from tests.helpers.fleets import server
from tests.helpers.forges import TOKEN, forge_host
from tests.helpers.git_repositories import HttpsServer
from tests.helpers.http_peers import SECRET, WebRequest, WebResponse, hook, notify_file, web_server, write_private
from tests.helpers.running_instance import Instance, Repository, eventually, running


def read_key(folder: Path) -> tuple[str, str]:
    """Read the key of a store, as an instance reads it."""
    found = read_credentials(folder.parent, folder.name)
    return found.username, found.password


def write_pair(folder: Path, password: str, user: str = "git") -> None:
    folder.mkdir(exist_ok=True)
    for name, text in (("username", user), ("password", password)):
        (folder / f"{name}.new").write_text(f"{text}\n")
        (folder / f"{name}.new").rename(folder / name)


def until(instance: Instance, type: str, *, status: bool) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = {each["type"]: each for each in instance.status()["conditions"]}.get(type)
        return found if found is not None and found["status"] is status else None

    found: dict[str, Any] = eventually(look)
    return found


# The fleet's repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push(fleet_files())
    return made


@pytest.fixture
def forge(repository: Repository, tmp_path: Path) -> Iterator[HttpsServer]:
    with HttpsServer(repository.bare.parent, tmp_path) as server:
        yield server


def follow_options(forge: HttpsServer, token: Path) -> tuple[str, ...]:
    return ("--git-credentials", str(token), "--ca-bundle", str(forge.certificate), "--poll", "1")


UNREADABLE: Final[dict[bytes | None, str]] = {
    None: "No such file or directory",
    b"": "password is empty",
    b"one\ntwo\n": "password has several lines",
    b"\xff\xfe\n": "password is not UTF-8 text",
}


def test_finding_p1_a_git_token_is_read_at_each_fetch_and_a_restart_without_it_keeps_the_accepted_commit(
    repository: Repository, forge: HttpsServer, tmp_path: Path
) -> None:
    """A token that cannot be read is a condition, and gitboot does not send the old one."""
    token, url = tmp_path / "token", f"{forge.url}/private/fleet.git"
    write_pair(token, HttpsServer.PASSWORD)
    with running(url, tmp_path, *follow_options(forge, token), records="fresh") as instance:
        forge.password = "the next token"
        found = until(instance, "SourceReady", status=False)
        assert found["reason"] == "SourceRefused" and "refuses the credentials" in found["message"]
        commit = repository.push({"README.md": "A later commit.\n"})
        write_pair(token, forge.password)
        until(instance, "SourceReady", status=True)
        eventually(lambda: instance.status()["applied"]["commit"] == commit)
        for content, message in UNREADABLE.items():
            if content is None:
                (token / "password").unlink()
            else:
                (token / "password.new").write_bytes(content)
                (token / "password.new").rename(token / "password")
            found = until(instance, "SourceReady", status=False)
            assert found["reason"] == "UsageError" and "--git-credentials: " in found["message"]
            assert str(token) in found["message"] and message in found["message"]
            requests = len(forge.requests)
            instance.process.send_signal(1)  # SIGHUP: fetch now
            write_pair(token, forge.password)
            until(instance, "SourceReady", status=True)
            assert len(forge.requests) > requests
    (token / "password").unlink()
    with running(url, tmp_path, *follow_options(forge, token)) as instance:
        found = until(instance, "SourceReady", status=False)
        assert str(token) in found["message"]
        assert eventually(lambda: instance.status()["applied"]["commit"]) == commit


# The endpoints


FIRST, SECOND = "the-first-token-of-16", "another-token-of-16"


def push(instance: Instance, secret: str) -> int:
    """Return the answer to a webhook as GitLab sends it."""
    operators = next(each["url"] for each in instance.events if each["type"] == "ListeningForOperators")
    return http_peers.post(f"{operators}/hooks/push", content=b"{}", headers={"x-gitlab-token": secret}).status_code


def ask(instance: Instance, token: str) -> int:
    operators = next(each["url"] for each in instance.events if each["type"] == "ListeningForOperators")
    return http_peers.get(f"{operators}/api/v1/status", headers={"authorization": f"Bearer {token}"}).status_code


def test_finding_p1_rotated_files_of_the_endpoints_count_at_the_next_request(
    repository: Repository, tmp_path: Path
) -> None:
    tokens, secret, keys = (write_private(tmp_path / name, f"{FIRST}\n") for name in ("tokens", "secret", "keys"))
    keys.unlink()
    make_key(keys)
    files = ("--operators-tokens", str(tokens), "--push-secret", str(secret), "--secret-keys", str(keys))
    options = (*files, "--operators-listen", "127.0.0.1:0", "--poll", "1")
    with running(repository.bare, tmp_path, *options, records="fresh") as instance:

        def status() -> dict[str, Any]:
            found = json.loads((tmp_path / "state/status.json").read_bytes())["conditions"]
            return next((each for each in found if each["type"] == "CredentialsReadable"), {})

        assert (ask(instance, FIRST), push(instance, FIRST)) == (200, 204)
        before = tokens.stat()
        tokens.write_text(f"{FIRST.replace('first', 'other')}\n")  # of the same size and at the same time
        os.utime(tokens, ns=(before.st_atime_ns, before.st_mtime_ns))
        secret.write_text(f"{SECOND}\n")
        assert (ask(instance, FIRST), push(instance, FIRST)) == (401, 403)
        assert (ask(instance, FIRST.replace("first", "other")), push(instance, SECOND)) == (200, 204)
        for file, option in ((tokens, "--operators-tokens"), (secret, "--push-secret"), (keys, "--secret-keys")):
            content = file.read_bytes()
            file.unlink()
            if file == tokens:
                assert ask(instance, FIRST.replace("first", "other")) == 401
            if file == secret:
                assert push(instance, SECOND) == 503

            def find_absence() -> dict[str, Any] | None:  # a reconcile may also have read a file while it was written
                found = status()
                return found if re.search("No such file|cannot be read", found.get("message", "")) else None

            found = eventually(find_absence)
            assert found["status"] is False and f"{option}: {file}" in found["message"], found
            file.write_text("#\n")
            eventually(lambda: "No such file" not in status().get("message", "No such file"))
            assert option in status()["message"] and str(file) in status()["message"] and status()["remedy"]
            file.write_bytes(content)
            eventually(lambda: status() == {})


def test_finding_p1_a_rotated_key_decrypts_secrets_and_the_previous_key_does_not(tmp_path: Path) -> None:
    file, other = tmp_path / "keys", tmp_path / "other"
    before, after = make_key(file), make_key(other)
    keys = AgeKeys(file)
    assert keys.decrypt(encrypt(b"one", [before])) == b"one"
    stat = file.stat()
    file.write_bytes(other.read_bytes())  # in place, of the same size, and at the same time
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert keys.decrypt(encrypt(b"two", [after])) == b"two"
    with pytest.raises(DecryptionError, match="no key in the key file can decrypt the file"):
        keys.decrypt(encrypt(b"one", [before]))
    file.unlink()
    with pytest.raises(DecryptionError, match="the key file cannot be read: No such file"):
        keys.decrypt(encrypt(b"two", [after]))


# Receivers, the forge, targets, BMCs, registries, PostgreSQL


def test_finding_p1_a_rotated_url_and_secret_of_a_receiver_count_for_the_next_message(tmp_path: Path) -> None:
    with hook() as first, hook() as second:
        file = notify_file(tmp_path, one=f'webhook = "{first.url}"')
        send = RereadingSender(partial(read_receiver, file, "one"), None)
        send(NOTICE, NOON)
        notify_file(tmp_path, one=f'webhook = "{second.url}"')
        send(NOTICE, NOON)
        secret = next(path for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_text())
        secret.write_text("short")
        with pytest.raises(UsageError, match="at least 16 characters"):
            send(NOTICE, NOON)
        secret.unlink()
        with pytest.raises(UsageError, match=f"{secret} cannot be read: No such file"):
            send(NOTICE, NOON)
        write_private(secret, SECRET)
        send(NOTICE, NOON)
        assert (len(first.received), len(second.received)) == (1, 2)


def test_finding_p1_a_receiver_whose_secret_is_missing_is_a_condition(repository: Repository, tmp_path: Path) -> None:
    with hook() as taken:
        file = notify_file(tmp_path, one=f'webhook = "{taken.url}"')
        secret = next(path for path in tmp_path.glob("*") if path.is_file() and SECRET in path.read_text())
        with running(repository.bare, tmp_path, "--notify", str(file), "--poll", "1", records="fresh") as instance:
            secret.unlink()
            repository.push({"broken.yaml": "kind: [\n"})  # an event for receivers
            found = until(instance, "NotificationsSent", status=False)
            assert found["reason"] == "UsageError" and str(secret) in found["message"]
            write_private(secret, SECRET)
            eventually(lambda: taken.received)


@pytest.mark.parametrize("kind", ["github", "gitlab", "gitea"])
def test_finding_p1_a_rotated_token_of_a_forge_is_sent_in_the_next_request(kind: str, tmp_path: Path) -> None:
    verdict = CommitVerdict(commit="c" * 40, judgement=Judgement.HELD, says="held", ledger="abc", change=1)
    with forge_host(kind) as host:
        token = write_private(tmp_path / "token", "an old token")
        forge = Forge(Project.parse(host.project), token, name="gitboot")
        with pytest.raises(ForgeRefused, match="401"):
            forge.write(verdict)
        token.write_text(TOKEN)
        forge.write(verdict)
        token.unlink()
        with pytest.raises(ForgeRefused, match=f"{token}: cannot read the token"):
            forge.write(verdict)
    assert len(host.statuses) == 1


def test_finding_p1_a_rotated_token_of_a_git_target_is_used_for_the_next_push(
    repository: Repository, tmp_path: Path
) -> None:
    served, token = tmp_path / "boots", tmp_path / "token"
    boots = pygit2.init_repository(str(served / "boots.git"), bare=True)
    boots.config["http.receivepack"] = "true"
    write_pair(token, "a wrong one")
    with HttpsServer(served, tmp_path) as host:
        asked = f"credentials={token}&ca-bundle={host.certificate}"
        target = f"git+{host.url}/private/boots.git?{asked}#boot"
        with running(repository.bare, tmp_path, "--target", target, "--poll", "1", records="fresh") as instance:
            found = until(instance, "TargetsCurrent", status=False)
            assert "refuses the credentials" in found["message"]
            write_pair(token, HttpsServer.PASSWORD)
            until(instance, "TargetsCurrent", status=True)
            (token / "password").unlink()
            repository.push({"web02.yaml": server("web02", "role: web")})
            found = until(instance, "TargetsCurrent", status=False)
            assert str(token) in found["message"] and "No such file" in found["message"]
            write_pair(token, HttpsServer.PASSWORD)
            until(instance, "TargetsCurrent", status=True)


def test_finding_p1_rotated_keys_of_a_store_sign_the_next_request(tmp_path: Path) -> None:
    signed: list[str] = []

    def answer(request: WebRequest) -> WebResponse:
        signed.append(request.headers["Authorization"].partition("Credential=")[2].partition("/")[0])
        return WebResponse(403)

    with web_server(answer) as endpoint:
        keys = tmp_path / "keys"
        address = BucketAddress(bucket="boots", endpoint=endpoint, path_style=True, credentials=keys)
        open_store = build_bucket_opener(address, read_key)
        target = StoreTarget(address.name, open_store, ledger="abc", heir_of=lambda: None, writer="one")
        for user in ("AKIDONE", "AKIDTWO"):
            write_pair(keys, "secret", user)
            with pytest.raises((PublishError, HostUnreachable)):
                target.load()
            assert signed[-1] == user
        (keys / "password").unlink()
        number = len(signed)
        with pytest.raises(UsageError, match=f"{keys} must contain the files username and password"):
            target.load()
        assert len(signed) == number


def test_finding_p1_a_rotated_password_of_a_bmc_is_used_for_the_next_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "_CACHE_S", 0)
    with racks(tmp_path) as make_rack, (rack := make_rack()).fleet() as fleet:
        file, found = rack.folder / "rack" / "password", []
        for text in ("wrong", None, "", PASSWORD):
            file.unlink(missing_ok=True)
            if text is not None:
                file.write_text(text)
            fleet.submit([job := rack.job()])
            found.append(fleet.take_results(wait_all=True)[job.uuid])
    assert [each.outcome for each in found[-1:]] == [TaskOutcome.APPLIED]
    assert "refuse" in found[0].message or found[0].outcome is TaskOutcome.STALLED
    assert str(file.parent) in found[1].message and "password is empty" in found[2].message


def test_finding_p1_rotated_credentials_of_a_registry_are_sent_in_the_next_request(tmp_path: Path) -> None:
    file = write_private(tmp_path / "auth.json", json.dumps({"auths": {"r.test": {"auth": "YTpi"}}}))
    known, image = RegistryCredentials(file), OciReference.parse("oci://r.test/os/linux:1")
    assert known.get_authorization(image) == "Basic YTpi"
    file.write_text(json.dumps({"auths": {"r.test": {"auth": "YTpj"}}}))
    assert known.get_authorization(image) == "Basic YTpj"
    for content, cause in (("{", "is not a registry credentials file"), (None, "cannot be read: No such file")):
        file.unlink() if content is None else file.write_text(content)
        with pytest.raises(UsageError, match=f"{file} {cause}"):
            known.get_authorization(image)
