"""Secrets of user data: encrypted in Git and in the tree, decrypted only for a machine during its installation."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from pyrage.x25519 import Identity

from gitboot.cli.main import Exit
from gitboot.endpoint.age_encryption import AgeKeys, encrypt, make_key
from gitboot.errors import InvalidRepository
from gitboot.evaluator.evaluation import compute_decision_keys
from gitboot.jsonio import to_json_value
from gitboot.problems import Code, Severity
from gitboot.render.paths import CHECK, CHECKER, find_path_kind
from gitboot.resolve.provisioning_record import InstallAttempt, Record, StepEvidence
from tests.endpoint.test_server import served
from tests.helpers import http_peers
from tests.helpers.endpoints import BEFORE, ENTRY, LOADER, MAC, PROXY, Fleet, Site, get, plan_fleet, site
from tests.helpers.fleets import decided, decision, fleet, image, maintenance, policy, profile, repository, server
from tests.helpers.forked_commands import run_forked
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.running_instance import Instance, Repository, eventually, running

PLAIN: Final = "token: kubeadm-hunter2-çé\n"
OWN: Final = "-----BEGIN PRIVATE KEY-----\nhunter3\n-----END PRIVATE KEY-----\n"
IGNITION: Final = '{"ignition": {"version": "3.4.0"}, "x": {{ urls.secrets | tojson }}}'
USER_DATA: Final = "userData: {format: Ignition/3.4, template: t, secrets: {join: s/join.age}}"
INSTALLS: Final = "{matchLabels: {role: web}}"


class SealedFleet:
    """A key, and the files of a fleet whose secrets are encrypted to it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.file = folder / "keys"
        self.public = make_key(self.file)
        self.keys = AgeKeys(self.file)
        self.files = {"t": IGNITION, "s/join.age": self.seal(PLAIN), "s/own.age": self.seal(OWN)}

    def seal(self, text: str) -> str:
        return encrypt(text.encode(), [self.public]).decode()


@pytest.fixture(scope="module")
def sealed_fleet(tmp_path_factory: pytest.TempPathFactory) -> SealedFleet:
    return SealedFleet(tmp_path_factory.mktemp("keys"))


def documents(
    *,
    fleet_spec: str = "",
    server_spec: str = "secrets: {own: s/own.age}",
    often: str = "Once",
    user_data: str = USER_DATA,
) -> tuple[str, ...]:
    return (
        fleet(f"baseURL: 'http://boot.test', {fleet_spec}"),
        server("web01", "role: web", f"provision: 1, {server_spec}"),
        image("flatcar-1", "userData: Ignition/3.4", "kernel, initrd"),
        image("memtest-7", "writesDisk: false, userData: Ignition/3.4"),
        profile("web", "flatcar-1", user_data),
        profile("repair", "memtest-7", user_data),
        policy("web", INSTALLS, often=often),
    )


REPORTED: Final = "provisioning: {evidence: Reported}"


def find_secrets(fleet_of: Fleet) -> dict[str, str]:
    text = next(file.content for path, file in fleet_of.boot_files.items() if path.endswith("config.ign"))
    found: dict[str, str] = json.loads(text)["x"]
    return found


def get_path(url: str) -> str:
    return url.removeprefix("http://boot.test")


@pytest.fixture
def here(sealed_fleet: SealedFleet) -> Iterator[Site]:
    with site(plan_fleet(*documents(), templates=sealed_fleet.files)) as made:
        yield made


@pytest.fixture
def secret(sealed_fleet: SealedFleet) -> str:
    return get_path(find_secrets(plan_fleet(*documents(), templates=sealed_fleet.files))["join"])


# In Git


def test_secrets_of_the_server_override_those_of_the_profile(sealed_fleet: SealedFleet) -> None:
    other = documents(server_spec="secrets: {join: s/own.age}")
    boots = [
        decision("web01", *each, files=sealed_fleet.files).policy.boot.user_data.secrets  # type: ignore[union-attr]
        for each in (documents(), other)
    ]
    assert [sorted(each) for each in boots] == [["join", "own"], ["join"]]
    assert boots[1]["join"] == boots[0]["own"] != boots[0]["join"]


def test_another_encrypted_file_is_another_decision_that_does_not_show_its_content(sealed_fleet: SealedFleet) -> None:
    """The digest covers the encrypted file, so that a change is reviewed and counted like a change of user data."""
    files = {**sealed_fleet.files, "s/join.age": sealed_fleet.seal(PLAIN)}  # the same content, encrypted again
    one, other = (decision("web01", *documents(), files=each) for each in (sealed_fleet.files, files))
    assert one.digest != other.digest
    shown = json.dumps(to_json_value(one))
    for each in (PLAIN, OWN):
        assert each.strip() not in shown
        assert base64.b64encode(each.encode()).decode()[:12] not in shown
    secrets = to_json_value(one)["policy"]["boot"]["userData"]["secrets"]
    assert sorted(secrets) == ["join", "own"] and all(len(each) == 64 for each in secrets.values())


@pytest.mark.parametrize(
    ("given", "code", "word"),
    [
        ({"s/join.age": "hunter2"}, Code.NOT_SEALED, "not encrypted with age"),
        ({"s/join.age": None}, Code.UNKNOWN_REFERENCE, "there is no file"),
    ],
)
def test_a_file_that_cannot_be_decrypted_is_a_problem_of_the_commit(
    sealed_fleet: SealedFleet, given: dict[str, str | None], code: Code, word: str
) -> None:
    files = {path: text for path, text in {**sealed_fleet.files, **given}.items() if text is not None}
    with pytest.raises(InvalidRepository) as refused:
        decided(*documents(), files=files)
    problems = [each for each in refused.value.problems if each.code is code]
    assert {each.path for each in problems} == {"004.yaml", "005.yaml"}
    assert word in problems[0].message and "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (documents(often="Always"), "networkBoot: Always"),
        (
            (*documents(), maintenance("repair", "20T22:00 21T04:00")),
            "Maintenance/repair boots servers with this profile",
        ),
        (documents(fleet_spec="unknownServers: {profile: repair}"), "unknown machines boot with this profile"),
    ],
)
def test_a_boot_without_an_end_cannot_have_secrets(
    sealed_fleet: SealedFleet, given: tuple[str, ...], word: str
) -> None:
    with pytest.raises(InvalidRepository) as refused:
        decided(*given, files=sealed_fleet.files)
    assert {each.code for each in refused.value.problems if each.severity is Severity.ERROR} == {Code.SECRET_KEPT_OPEN}
    assert word in str(refused.value)


@pytest.mark.parametrize("often", ["Once", "OnImageChange"])
def test_the_url_of_a_secret_names_its_endpoint(sealed_fleet: SealedFleet, often: str) -> None:
    """A mirror has no secrets: the URL is that of the endpoint."""
    mirrored = "endpoint: 'http://gitboot.test:8080'"
    for fleet_spec, base in (("", "http://boot.test"), (mirrored, "http://gitboot.test:8080")):
        urls = find_secrets(plan_fleet(*documents(fleet_spec=fleet_spec, often=often), templates=sealed_fleet.files))
        assert set(urls) == {"join", "own"}
        assert all(url.startswith(f"{base}/s/") and url.endswith(f"/{MAC}/{name}") for name, url in urls.items())


def test_another_endpoint_gives_another_url(sealed_fleet: SealedFleet) -> None:
    """Also if the secret is the only difference between two commits."""
    fleets = [
        repository(*documents(fleet_spec=each), files=sealed_fleet.files)
        for each in ("", "endpoint: 'http://other.test'", f"{REPORTED[:-1]}, attempts: 2}}")
    ]
    assert len({compute_decision_keys(each, ["web01"])["web01"] for each in fleets}) == 3


@pytest.mark.parametrize(
    ("user_data", "template", "word"),
    [
        (USER_DATA.replace("s/join.age", "t"), "", r"expected the path of an encrypted file \(\*\.age\)"),
        (USER_DATA, '{"ignition": {"version": "3.4.0"}, "x": "{{ secret("join") }}"}', r"urls\.secrets\.NAME"),
    ],
    ids=["a file whose name does not end like an encrypted one", "secret as a function"],
)
def test_a_wrong_reference_to_a_secret_is_rejected_with_the_right_form(
    sealed_fleet: SealedFleet, user_data: str, template: str, word: str
) -> None:
    with pytest.raises(InvalidRepository, match=word):
        decided(*documents(user_data=user_data), files=sealed_fleet.files | ({"t": template} if template else {}))


# In the output tree


def test_nothing_of_a_secret_is_published_except_its_encrypted_form(sealed_fleet: SealedFleet) -> None:
    found = plan_fleet(*documents(), templates=sealed_fleet.files)
    state = found.files["ops/servers/web01.json"].content.decode()
    everything = "\n".join(f"{path}\n{file.content.decode()}" for path, file in found.files.items())
    assert "hunter" not in everything
    assert base64.b64encode(PLAIN.encode())[:20].decode() not in everything
    names = {urls.rpartition("/")[2] for urls in find_secrets(found).values()}
    assert names == {"join", "own"} and '"role":"sealed"' in state
    assert not [path for path in found.files if path.startswith("boot/s/")]
    machines = "\n".join(file.content.decode() for file in found.boot_files.values())
    assert "YWdlLWVuY3J5cHRpb24" not in machines  # not even encrypted, in the files for machines


STEPS: Final = {  # evidence, and whether the secrets are offered
    None: True,
    "Fetched": True,  # the boot that fetches them has just begun
    "Reported": False,
    "Progress": False,
    "Operator": False,
}


@pytest.mark.parametrize("evidence", STEPS)
def test_a_secret_is_offered_with_user_data_and_ends_when_the_installation_is_done(
    sealed_fleet: SealedFleet, evidence: str | None
) -> None:
    done = Record(provision=1, image="flatcar-1", pool="web", evidence=evidence, provisioned_at=BEFORE)
    record, offered = done if evidence is not None else Record(), STEPS[evidence]
    found = plan_fleet(*documents(), records={"web01": record}, templates=sealed_fleet.files)
    paths = [path for path in found.servers["web01"].published.paths if path.startswith("boot/s/")]
    contents = [found.servers["web01"].published.paths[path][0].content for path in paths]
    assert any(contents) is offered, paths


@pytest.mark.parametrize("failed", [True, False])
def test_an_installer_that_has_failed_gets_no_more_secrets(sealed_fleet: SealedFleet, failed: bool) -> None:
    from gitboot.resolve.provisioning_record import Failure

    key = decision("web01", *documents(fleet_spec=REPORTED), files=sealed_fleet.files)
    wanted = plan_fleet(*documents(fleet_spec=REPORTED), templates=sealed_fleet.files).servers["web01"].plan
    assert key.policy is not None and wanted is not None and wanted.key is not None
    attempt = InstallAttempt(
        key=wanted.key,
        boots=(StepEvidence(BEFORE - timedelta(minutes=5), "boot/x", "10.0.0.1"),),
        failed=Failure(BEFORE, "10.0.0.1", "") if failed else None,
    )
    found = plan_fleet(
        *documents(fleet_spec=REPORTED), records={"web01": Record(attempts=(attempt,))}, templates=sealed_fleet.files
    )
    offered = [path for path, turns in found.servers["web01"].published.paths.items() if path.startswith("boot/s/")]
    assert bool(offered) is not failed


# At an endpoint


def test_an_endpoint_serves_its_secrets_and_records_each_fetch(here: Site, sealed_fleet: SealedFleet) -> None:
    urls = find_secrets(plan_fleet(*documents(), templates=sealed_fleet.files))
    with here.serve(keys=sealed_fleet.keys) as url:
        for name, text in (("join", PLAIN), ("own", OWN)):
            found = get(url + get_path(urls[name]))
            assert (found.status_code, found.content) == (200, text.encode())
            assert found.headers["cache-control"] == "no-store" and "etag" not in found.headers
            assert found.headers["content-type"] == "application/octet-stream"
        assert http_peers.head(url + get_path(urls["own"])).headers["content-length"] == str(len(OWN.encode()))
        again = get(url + get_path(urls["own"]).replace(MAC, MAC.replace("-", ":").upper()))
        assert again.content == OWN.encode()
    seen = here.observed()
    assert [each.path.rpartition("/")[2] for each in seen] == ["join", "own", "own"]
    assert all(each.is_from_system and find_path_kind(each.path) is not None for each in seen)
    assert "hunter" not in "".join(path.read_text() for path in here.spool.iterdir() if path.is_file())


def test_any_other_path_of_a_secret_gets_the_same_404(here: Site, sealed_fleet: SealedFleet, secret: str) -> None:
    _, _, token, mac, name = secret.split("/")
    others = [
        f"/s/{token}/{mac}/other",
        f"/s/{'0' * 64}/{mac}/{name}",
        f"/s/{token}/52-54-00-00-00-01/{name}",
        f"/s/{token}/{mac}/",
        f"/s/{token}/{mac}/{name}/",
        f"/s/{token}/{mac}/../{mac}/{name}x",
        f"/s/{token[:-1]}/{mac}/{name}",
        f"/s/{token}/{name}",
        "/s/",
        f"/boot/s/{token}/{mac}/{name}",
    ]
    with here.serve(keys=sealed_fleet.keys) as url:
        assert get(url + secret).status_code == 200
        for other in others:
            found = get(url + other)
            assert (found.status_code, found.content) == (404, b"#"), other


def test_a_client_that_is_not_a_machine_of_the_fleet_gets_no_secret(sealed_fleet: SealedFleet) -> None:
    clients = "provisioning: {clients: [10.12.0.0/24]}"
    made = plan_fleet(*documents(fleet_spec=clients), templates=sealed_fleet.files)
    path = get_path(find_secrets(made)["join"])
    with site(made) as there, there.serve(keys=sealed_fleet.keys, trusted_proxies=PROXY) as url:
        for client, status in (("10.12.0.13", 200), ("10.13.0.13", 404), ("127.0.0.1", 404)):
            assert get(url + path, headers={"x-forwarded-for": client}).status_code == status, client
        assert [each.client for each in there.observed()] == ["10.12.0.13"]


# The two signs of a check by gitboot, together and alone, because a cache may drop one of them.
CHECKS: Final = {
    "both marks": (f"?{CHECK}=1", {"user-agent": f"{CHECKER}/0.2.0"}),
    "its name alone": ("", {"user-agent": f"{CHECKER}/0.2.0"}),
    "the query alone, as a loader names itself": (f"?{CHECK}=1", LOADER),
}


@pytest.mark.parametrize("marks", CHECKS)
def test_finding_m3_a_secret_that_a_check_requests_is_neither_served_nor_counted(
    sealed_fleet: SealedFleet, marks: str
) -> None:
    """All clients of this host count here, so that only the signs distinguish a check from a machine."""
    query, headers = CHECKS[marks]
    clients = "provisioning: {evidence: Reported, clients: [127.0.0.0/8]}"
    made = plan_fleet(*documents(fleet_spec=clients), templates=sealed_fleet.files)
    path = get_path(find_secrets(made)["join"])
    with site(made) as there, there.serve(keys=sealed_fleet.keys) as url:
        for _ in range(9):  # five withheld boots of a machine make a condition false
            found = get(f"{url}{path}{query}", headers=headers)
            assert (found.status_code, found.content) == (404, b"#")
        assert 'gitboot_boots_withheld_total{reason="ClientNotCounted"} 0.0\n' in http_peers.get(f"{url}/metrics").text
        assert get(url + path).content == PLAIN.encode(), "the machine is given its secret"
        assert [each.path for each in there.observed() if each.is_evidence] == [f"boot{path}"]


def test_an_endpoint_that_cannot_decrypt_a_secret_reveals_nothing_to_the_client(
    here: Site, secret: str, tmp_path: Path
) -> None:
    make_key(tmp_path / "other")
    other = AgeKeys(tmp_path / "other")
    for keys, word in ((None, "without --secret-keys"), (other, "no key in the key file can decrypt the file")):
        with here.serve(keys=keys) as url:
            found = get(url + secret)
            assert (found.status_code, found.content, found.headers["retry-after"]) == (503, b"#", "5")
            assert 'reason="SecretNotDecrypted"} 1' in http_peers.get(f"{url}/metrics").text
        assert not here.observed(), word


def test_a_secret_is_served_only_with_the_fetch_log_of_the_tree(
    here: Site, sealed_fleet: SealedFleet, secret: str
) -> None:
    with here.serve(records=False, keys=sealed_fleet.keys) as url:
        assert get(url + secret).status_code == 503
    here.spool.rename(here.spool.with_name("gone"))
    here.spool.mkdir()
    with here.serve(keys=sealed_fleet.keys) as url:
        assert get(url + secret).status_code == 503


def test_the_report_of_the_installer_ends_its_secrets_before_the_instance_reads_it(sealed_fleet: SealedFleet) -> None:
    made = plan_fleet(*documents(fleet_spec=REPORTED), templates=sealed_fleet.files)
    path = get_path(find_secrets(made)["join"])
    report = next(f"/{each}" for each in made.boot_files if "/provisioned/" in each).replace("//", "/")
    with site(made) as there, there.serve(keys=sealed_fleet.keys) as url:
        assert "(Network)" in get(url + ENTRY).text
        assert get(url + path).status_code == 200
        there.now += timedelta(minutes=5)
        assert get(url + path).status_code == 200  # its system fetches the file again
        assert get(url + report).status_code == 204
        assert get(url + path).status_code == 404


def test_secrets_end_by_the_clock_and_when_they_are_removed(sealed_fleet: SealedFleet, secret: str) -> None:
    record = Record(provision=1, image="flatcar-1", pool="web", evidence="Fetched", provisioned_at=BEFORE)
    made = plan_fleet(*documents(), records={"web01": record}, templates=sealed_fleet.files)
    with site(made) as there, there.serve(keys=sealed_fleet.keys) as url:
        for minutes, status in ((0, 200), (119, 200), (120, 404)):
            there.now = BEFORE + timedelta(minutes=minutes)
            assert get(url + secret).status_code == status, minutes
        there.now = BEFORE
        there.publish(
            plan_fleet(*documents(fleet_spec="stopped: 'no'"), templates=sealed_fleet.files), commit="stopped"
        )
        assert get(url + secret).status_code == 404


# End to end


def find_boots_served(instance: Instance) -> dict[str, Any]:
    found = [each for each in instance.status()["conditions"] if each["type"] == "BootsServed"]
    return found[0] if found else {"status": True, "reason": "Given"}


def test_a_machine_fetches_its_secret_while_it_is_installed_and_never_after(
    tmp_path: Path, sealed_fleet: SealedFleet, fleet_repository: Repository
) -> None:
    keys = tmp_path / "keys"
    keys.write_bytes(sealed_fleet.file.read_bytes())
    with running(fleet_repository.bare, tmp_path, "--secret-keys", str(keys), records="fresh") as instance:
        path = boot_installer(instance)
        keys.write_text(f"{Identity.generate()}\n")
        assert instance.get(path).status_code == 503
        said = eventually(
            lambda: (
                find_boots_served(instance)["reason"] == "SecretNotDecrypted" and find_boots_served(instance)["message"]
            )
        )
        assert "the secret join: no key in the key file can decrypt the file" in said
        keys.write_bytes(sealed_fleet.file.read_bytes())
        assert instance.get(path).text == PLAIN
        eventually(lambda: find_boots_served(instance)["status"])
        eventually(lambda: instance.get("/api/v1/servers/web01").json()["step"] == "Started")
        fleet_repository.push(
            {"s/join.age": "hunter2"}
        )  # compared with the previous commit, which differs in nothing else
        eventually(lambda: Code.NOT_SEALED in {each["code"] for each in instance.status()["attempted"]["problems"]})
        assert instance.get(path).text == PLAIN
        report = path.replace("/s/", f"/v1/boot/{MAC}/provisioned/").partition(f"/{MAC}/join")[0]
        assert instance.get(report).status_code == 204
        assert instance.get(path).status_code == 404
        eventually(lambda: instance.status()["records"] == {"Provisioned": 1})
        assert instance.get(path).status_code == 404
        pages = [instance.get(f"/api/v1/{page}").text for page in ("status", "servers", "servers/web01/plan")]
        pages += [instance.get("/metrics").text, json.dumps(instance.events)]
    assert "hunter" not in "".join(pages)
    for folder in ("state", "output", "spool"):
        for file in (tmp_path / folder).rglob("*"):
            assert not file.is_file() or b"hunter" not in file.read_bytes(), file


def test_gitboot_serve_decrypts_secrets_too_and_does_not_start_without_its_key_file(
    here: Site, sealed_fleet: SealedFleet, secret: str
) -> None:
    with served(here.root, "--spool", str(here.spool), "--secret-keys", str(sealed_fleet.file)) as (url, _):
        assert get(url + secret).text == PLAIN
    refused = run_forked("serve", "--out", here.root, "--secret-keys", here.root / "no")
    assert refused.returncode == Exit.USAGE and "no cannot be read: No such file" in refused.stderr


# Fetches by other clients


STRANGER: Final = "127.0.0.66"


def fetch_from(instance: Instance, address: str, path: str, times: int = 1) -> set[int]:
    """Fetch a path several times from an address of this host. Return the statuses."""
    transport = httpx.HTTPTransport(local_address=address, verify=False)
    with httpx.Client(base_url=instance.url, transport=transport, headers=LOADER, timeout=60) as client:
        return {client.get(path).status_code for _ in range(times)}


def find_condition(instance: Instance) -> dict[str, Any] | None:
    """Return the condition about unexpected fetches of a secret. None: it is true."""
    return next((each for each in instance.status()["conditions"] if each["type"] == "SecretsPrivate"), None)


def list_fetches(instance: Instance) -> list[str]:
    told = [each for each in instance.events if each["type"] == "SecretFetched"]
    return [each["client"] for each in told if each["secret"] == "secrets/join"]


def show_fetches(folder: Path) -> dict[str, int]:
    shown = run_command("secret", "fetches", "web01", "--state", folder / "state", "-o", "json")
    (found,) = (each for each in shown.json["items"] if each["secret"] == "secrets/join")
    others = {"others": found["others"]["times"]} if found["others"] is not None else {}
    return {each["address"]: each["times"] for each in found["addresses"]} | others


@pytest.fixture
def fleet_repository(tmp_path: Path, sealed_fleet: SealedFleet) -> Repository:
    made = Repository.create(tmp_path / "git")
    allowed = documents(fleet_spec="provisioning: {evidence: Reported, clients: [127.0.0.0/8]}")
    made.push({"fleet.yaml": "---\n".join(allowed), **sealed_fleet.files})
    return made


def find_data_path(instance: Instance) -> str:
    """Return the path of the user data in the boot of web01."""
    entry = eventually(lambda: "(Network)" in (found := instance.get(ENTRY).text) and found)
    return get_path(next(word for word in entry.split() if "ignition.config.url=" in word).partition("=")[2])


def boot_installer(instance: Instance) -> str:
    """Boot the machine at 127.0.0.1, and fetch its user data and its secret. Return the path of the secret."""
    path = get_path(instance.get(find_data_path(instance)).json()["x"]["join"])
    assert instance.get(path).text == PLAIN
    eventually(lambda: list_fetches(instance) == ["127.0.0.1"])
    return path


def test_finding_s5_a_stranger_who_fetches_a_secret_is_an_event_a_count_and_a_condition(
    tmp_path: Path, sealed_fleet: SealedFleet, fleet_repository: Repository
) -> None:
    with running(fleet_repository.bare, tmp_path, "--secret-keys", str(sealed_fleet.file), records="fresh") as instance:
        path = boot_installer(instance)
        assert find_condition(instance) is None
        assert fetch_from(instance, STRANGER, path, 12) == {200}  # gitboot withholds nothing
        found = eventually(lambda: find_condition(instance))
        assert (found["status"], found["reason"]) == (False, "SecondAddress")
        assert "web01: the secret join was fetched" in found["message"] and STRANGER in found["message"]
        assert found["remedy"].startswith("gitboot secret fetches web01 --state STATE")
        eventually(lambda: show_fetches(tmp_path).get(STRANGER, 0) > 10)
        eventually(lambda: list_fetches(instance) == ["127.0.0.1", STRANGER])

        confirmed = run_command("secret", "fetches", "web01", "--state", tmp_path / "state", "--confirm", "INC-4711")
        assert confirmed.code == 0, confirmed.err
        eventually(lambda: find_condition(instance) is None)

        assert fetch_from(instance, STRANGER, path, 300) == {200}
        lines = [line for file in (tmp_path / "state/spool").glob("*.jsonl") for line in file.read_text().splitlines()]
        assert sum(STRANGER in line for line in lines) < 100, "repeats are counted in place"
    # The endpoint left its count when it ended.
    with running(fleet_repository.bare, tmp_path, "--secret-keys", str(sealed_fleet.file)) as instance:
        # The endpoint first shows the status that the earlier process wrote.
        eventually(lambda: show_fetches(tmp_path) == {"127.0.0.1": 1, STRANGER: 312})
        eventually(lambda: (find_condition(instance) or {}).get("reason") == "ManyFetches")
        assert not list_fetches(instance)


def test_finding_s5_many_addresses_fill_neither_the_events_nor_the_ledger(
    tmp_path: Path, sealed_fleet: SealedFleet, fleet_repository: Repository
) -> None:
    arguments = ("--secret-keys", str(sealed_fleet.file), "--workers", "2")
    with running(fleet_repository.bare, tmp_path, *arguments, records="fresh") as instance:
        path = boot_installer(instance)
        for number in range(60, 120):
            fetch_from(instance, f"127.0.0.{number}", path)
        found = eventually(lambda: found if len(found := show_fetches(tmp_path)) == 17 else None)
        assert found["127.0.0.1"] == 1
        eventually(lambda: len(list_fetches(instance)) == 17)  # the ledger is written before events and status

        def list_shown() -> list[tuple[str, bool, int]]:
            shown = [each for each in instance.status()["secretFetches"] if each["secret"] == "secrets/join"]
            return [(each["server"], each["unexpected"], len(each["addresses"])) for each in shown]

        eventually(lambda: list_shown() == [("web01", True, 16)])
        assert [each["type"] for each in instance.events].count("SecretsFetchedAgain") <= 2
        with closing(sqlite3.connect(tmp_path / "state/ledger.sqlite")) as ledger:
            ((rows, size),) = ledger.execute("SELECT count(*), max(length(facts)) FROM secret_fetches")
        assert rows == 1 and size < 10_000


def test_finding_s5_a_client_that_does_not_count_is_recorded_too(tmp_path: Path, sealed_fleet: SealedFleet) -> None:
    """Every client with the URL can fetch user data. A fetch from another address is only reported."""
    fleet_repository = Repository.create(tmp_path / "git")
    allowed = documents(fleet_spec="provisioning: {evidence: Reported, clients: [127.0.0.1/32]}")
    fleet_repository.push({"fleet.yaml": "---\n".join(allowed), **sealed_fleet.files})
    with running(fleet_repository.bare, tmp_path, "--secret-keys", str(sealed_fleet.file), records="fresh") as instance:
        data = find_data_path(instance)
        eventually(lambda: instance.get("/api/v1/servers/web01").json()["step"] == "Attempted")
        assert fetch_from(instance, STRANGER, data) == {200}
        told = eventually(lambda: [each for each in instance.events if each["type"] == "SecretFetched"])
        assert [each["client"] for each in told] == [STRANGER]
        assert instance.get("/api/v1/servers/web01").json()["step"] == "Attempted"
        instance.get(data)
        eventually(lambda: find_condition(instance))
        eventually(lambda: instance.get("/api/v1/servers/web01").json()["step"] == "Started")
