"""Ordinary days with real processes: no protection has to be switched off for work, and no machine boots twice."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gitboot.cli.main import Exit
from gitboot.fetchlog.log_entries import drop_concluded_intents
from gitboot.fetchlog.spool import read_new_lines
from tests.endpoint.test_server import served
from tests.helpers import http_peers
from tests.helpers.fleets import fleet, image, make_mac, policy, profile, server, write_configuration
from tests.helpers.git_repositories import free_port, program
from tests.helpers.instance_with_bmcs import Rack, condition, run_command, wait_for_condition
from tests.helpers.running_instance import Instance, Repository, eventually, running

IPXE = {"user-agent": "iPXE/1.21.1"}
PROXY = "127.0.0.2"
REASON = ("--reason", "INC-4711")
ONCE = ("Once", "Pxe")
FRESH = ("records", "begin", "fresh", "--yes")


@dataclass
class Client:
    """A machine that boots from the network: its loader, its system, its installer."""

    name: str
    url: str
    address: str | None = None  # the header of a proxy in front of the endpoint

    def get(self, path: str, **headers: str) -> httpx.Response:
        if self.address is None:
            return http_peers.get(f"{self.url}{path}", headers=headers)
        with http_peers.Client(transport=httpx.HTTPTransport(local_address=PROXY)) as proxy:
            return proxy.get(f"{self.url}{path}", headers={**headers, "x-forwarded-for": self.address})

    @property
    def entry(self) -> str:
        return f"/v1/boot/{make_mac(self.name).replace(':', '-')}/boot.ipxe"

    def load_script(self) -> str:
        found = self.get(self.entry, **IPXE)
        assert found.status_code == 200
        return found.text

    def is_boot_served(self) -> bool:
        return "\nkernel " in self.load_script()

    def start_installer(self, script: str) -> None:
        found = re.search(r"ds=nocloud;s=http://boot\.test(\S+?)['\"\s]", script)
        assert found is not None, script
        for name in ("meta-data", "user-data"):
            assert self.get(found[1] + name, **{"user-agent": "Cloud-Init/24.4"}).status_code == 200


def documents(*names: str, evidence: str = "Fetched", **spec: Any) -> dict[str, str]:
    """Return a fleet whose servers are installed once, by an image that requests user data."""
    settings = f"baseURL: 'http://boot.test', provisioning: {{evidence: {evidence}}}"
    pool = (
        image("flatcar-1", ", ".join(["userData: CloudInit", *(f"{key}: {value}" for key, value in spec.items())])),
        profile("web", "flatcar-1", "userData: {format: CloudInit, template: user-data.j2}"),
        policy("web", often="Once"),
    )
    servers = (server(name, "role: web", "provision: 1") for name in names)
    return {"fleet.yaml": "---\n".join((fleet(settings), *servers, *pool)), "user-data.j2": "#cloud-config\n"}


@contextmanager
def run_instance(folder: Path, files: dict[str, str], *arguments: str, is_fresh: bool = True) -> Iterator[Instance]:
    """Run an instance that follows these files, with a ledger that was begun as fresh."""
    repository = Repository.create(folder / "git")
    repository.push(files)
    with running(repository.bare, folder, *arguments) as instance:
        if is_fresh:
            done = run_command(*FRESH, "--state", folder / "state")
            assert done.code == 0, done
        yield instance


def steps(instance: Instance) -> dict[str, int]:
    found: dict[str, int] = instance.status()["records"]
    return found


# E7: boot scripts are served, and the files that they name are missing


def test_e7_boot_scripts_with_missing_kernels_are_not_installations(tmp_path: Path) -> None:
    names = [f"web{number:02}" for number in range(8)]
    with run_instance(tmp_path, documents(*names), *write_configuration(step_minutes=0.05)) as instance:
        clients = [Client(name, instance.url) for name in names]
        eventually(lambda: steps(instance) == {"Pending": 8})
        assert all(each.is_boot_served() for each in clients)
        eventually(lambda: steps(instance) == {"Attempted": 8})
        eventually(lambda: "and 5 more" in condition(instance, "InstallsCompleted")["message"])
        wait_for_condition(instance, "InstallsCompleted", status=False, reason="Overdue")
        fetched = re.compile(r"web00 \(127\.0\.0\.1 fetched boot/v1/boot/\S+ at 20")
        eventually(lambda: fetched.search(condition(instance, "InstallsCompleted")["message"]))
        remedy = f"gitboot records set {' '.join(names)} provisioned "  # each step has its own three seconds
        eventually(lambda: condition(instance, "InstallsCompleted")["remedy"].startswith(remedy))
        script = next(each for each in clients if each.name == "web03").load_script()
        assert 'gitboot_records{known="Attempted"} 8.0' in instance.get("/metrics").text
        asked = instance.get("/api/v1/servers?step=Attempted&limit=2").json()
        assert [item["step"] for item in asked["items"]] == ["Attempted", "Attempted"]
        clients[3].start_installer(script)  # its kernel was found at last
        eventually(lambda: steps(instance) == {"Attempted": 7, "Provisioned": 1})
        one = instance.get("/api/v1/servers/web03").json()
        assert (one["step"], one["provisioned"]["evidence"]) == ("Provisioned", "Fetched")
        assert one["provisioned"]["attempts"][0]["started"]["path"].endswith("-data")


# R4: an installation that has begun is not green


def read_installation(instance: Instance, name: str) -> tuple[str, str] | None:
    """Return the state and the last step of an installation, once the API's document and its list agree."""

    def seen() -> list[Any]:
        items = instance.get("/api/v1/servers").json()["items"]
        listed = next(each["installing"] for each in items if each["name"] == name)
        one = instance.get(f"/api/v1/servers/{name}").json()["installing"]
        return [one] if listed == one else []

    (one,) = eventually(seen)
    return (one["state"], one["step"]) if one is not None else None


def test_finding_r4_an_installation_is_visible_from_its_first_fetch(tmp_path: Path) -> None:
    """The page of the tree, `status`, `plan`, the API and the metrics show it, with its last step and the time."""
    files = documents("web01", evidence="Reported")
    files["fleet.yaml"] = files["fleet.yaml"].replace(
        "'http://boot.test'", "'http://boot.test', outputs: [ipxe, pages]", 1
    )
    with run_instance(tmp_path, files) as instance:
        web01 = Client("web01", instance.url)
        eventually(lambda: steps(instance) == {"Pending": 1})
        script = web01.load_script()
        assert "\nkernel " in script
        eventually(lambda: read_installation(instance, "web01") == ("Installing", "Attempted"))
        message = re.compile(r"Installing since 20\S+Z; last step: boot served at\s+20\S+Z")
        status = ("status", "--state", tmp_path / "state")
        eventually(lambda: message.search(run_command(*status).out))
        assert "no installation is waiting for evidence" not in run_command(*status).out
        plan = ("plan", tmp_path / "git" / "fleet.git", "--records", tmp_path / "output" / "ops" / "records")
        eventually(lambda: message.search(run_command(*plan).out))
        web01.start_installer(script)
        eventually(lambda: read_installation(instance, "web01") == ("Installing", "Started"))
        counted = 'gitboot_servers_installing{state="Installing",step="Started"} 1.0'
        eventually(lambda: counted in instance.get("/metrics").text)
        shards = tmp_path / "output" / "ops" / "pages" / "data" / "shard"
        eventually(lambda: '"state":"Installing"' in "".join(each.read_text() for each in shards.glob("*.js")))
        assert not web01.is_boot_served(), "it boots its disk"
        assert read_installation(instance, "web01") == ("Installing", "Started")


# E13: BMCs lose what was set


@pytest.mark.parametrize("many", [6])
def test_e13_a_rack_that_lost_its_overrides_is_repaired_by_one_request(tmp_path: Path, many: int) -> None:
    with Rack(tmp_path) as rack:
        blades = [rack.add(f"web{number:02}", provision=1) for number in range(many)]
        rack.push()
        with rack.running(records="fresh") as instance:
            eventually(lambda: all(blade.override == ONCE for blade in blades))
            eventually(lambda: len([each for each in instance.events if each["type"] == "OverrideConfirmed"]) == many)
            for blade in blades:
                blade.machine.restart_bmc(forgets=True)
            rack.said("bmc", "apply")
            found = wait_for_condition(instance, "InstallsCompleted", status=False, reason="NeedsOperator")
            eventually(
                lambda: (
                    "and 3 more"
                    in wait_for_condition(instance, "InstallsCompleted", status=False, reason="NeedsOperator")[
                        "message"
                    ]
                )
            )
            got = rack.bmc_get()
            assert {each["needsOperator"] for each in got.values()} == {True}
            assert all("gitboot records set " in each["hint"] for each in got.values())
            found = wait_for_condition(instance, "InstallsCompleted", status=False, reason="NeedsOperator")
            order = found["remedy"].replace("provisioned", "pending").split(" --state")[0].split()[1:]
            assert order == ["records", "set", *(blade.name for blade in blades), "pending"]
            rack.said(*order, "--yes", *REASON)
            eventually(lambda: all(blade.override == ONCE for blade in blades))
            wait_for_condition(instance, "InstallsCompleted", status=True, reason="Completed")
            assert [blade.times_set for blade in blades] == [2] * many


# Loaders, networks, hosts


def test_two_nics_and_a_repeated_boot_script_request_are_one_boot_that_is_shown_until_the_disk_boots(
    tmp_path: Path,
) -> None:
    """The loader of the first NIC gets a 503 for the kernel and comes back; the second NIC requests the boot too."""
    with run_instance(tmp_path, documents("web01")) as instance:
        web01 = Client("web01", instance.url)
        eventually(lambda: steps(instance) == {"Pending": 1})
        assert web01.is_boot_served()
        eventually(lambda: steps(instance) == {"Attempted": 1})
        assert [web01.is_boot_served() for _ in range(2)] == [True, True]
        web01.start_installer(web01.load_script())
        eventually(lambda: steps(instance) == {"Provisioned": 1})
        eventually(lambda: read_installation(instance, "web01") == ("Served", "Started"))
        counted = 'gitboot_servers_installing{state="Served",step="Started"} 1.0'
        eventually(lambda: counted in instance.get("/metrics").text)
        eventually(lambda: not web01.is_boot_served())
        eventually(lambda: read_installation(instance, "web01") is None)
        (attempt,) = instance.get("/api/v1/servers/web01").json()["provisioned"]["attempts"]
        assert (attempt["number"], len(attempt["boots"])) == (1, 1)


def test_a_failed_installer_reports_it_and_is_tried_as_often_as_the_fleet_allows(tmp_path: Path) -> None:
    files = documents("web01", evidence="Reported, attempts: 2")
    files["user-data.j2"] = "#cloud-config\nfailed: {{ urls.failed }}\n"
    with run_instance(tmp_path, files) as instance:
        web01 = Client("web01", instance.url)
        eventually(lambda: steps(instance) == {"Pending": 1})
        for number in (1, 2):
            eventually(lambda: web01.is_boot_served())
            eventually(lambda: steps(instance) == {"Attempted": 1})
            token = re.search(r"/data/([0-9a-f]{64})/", web01.load_script())
            assert token is not None
            path = web01.entry.replace("boot.ipxe", f"failed/{token[1]}")
            log = f"attempt {number}\n\x1b[31mno disk\n".encode()
            assert http_peers.post(f"{instance.url}{path}", content=log).status_code == 204
            eventually(lambda: steps(instance) == ({"Pending": 1} if number == 1 else {"Failed": 1}))  # noqa: B023
        assert not web01.is_boot_served()
        found = wait_for_condition(instance, "InstallsCompleted", status=False, reason="Failed")
        assert "[31mno disk" in found["message"] and "\x1b" not in found["message"]
        attempts = instance.get("/api/v1/servers/web01").json()["provisioned"]["attempts"]
        assert [each["failed"]["log"].splitlines()[0] for each in attempts] == ["attempt 1", "attempt 2"]


def test_finding_s6_a_proxy_near_the_machines_caches_no_boot_and_a_condition_names_the_setting_that_trusts_it(
    tmp_path: Path,
) -> None:
    with run_instance(tmp_path, documents("web01")) as instance, run_proxy(instance.url, tmp_path / "proxy") as url:
        web01 = Client("web01", url)
        eventually(lambda: steps(instance) == {"Pending": 1})
        script = web01.load_script()
        assert "\nkernel " in script
        web01.start_installer(script)
        eventually(lambda: steps(instance) == {"Provisioned": 1})
        eventually(lambda: not web01.is_boot_served())
        assert web01.get("/api/v1/servers").status_code == 404
        found = wait_for_condition(instance, "ProxiesTrusted", status=False, reason="Unnamed")
        assert found["remedy"].startswith('trusted-proxies = ["127.0.0.2"]  # ')
        assert 'trusted-proxies = ["127.0.0.2"]' in found["message"]


def test_finding_s6_a_named_proxy_gives_operators_access_by_the_forwarded_address(tmp_path: Path) -> None:
    arguments = ("--operators", "127.0.0.1/32", *write_configuration(trusted_proxies=[PROXY]))
    with (
        run_instance(tmp_path, documents("web01"), *arguments) as instance,
        run_forwarding(instance.url, tmp_path / "proxy") as url,
        http_peers.Client(transport=httpx.HTTPTransport(local_address="127.0.0.3")) as stranger,
    ):
        invented = {"x-forwarded-for": "127.0.0.1"}
        assert http_peers.get(f"{url}/api/v1/servers").status_code == 200
        assert stranger.get(f"{url}/api/v1/servers").status_code == 404
        assert stranger.get(f"{url}/api/v1/servers", headers=invented).status_code == 404
        assert stranger.get(f"{instance.url}/api/v1/servers", headers=invented).status_code == 404
        assert condition(instance, "ProxiesTrusted").get("remedy", "").find(PROXY) == -1


def test_finding_s17_readyz_shows_strangers_neither_the_account_nor_the_reason_of_a_stop(tmp_path: Path) -> None:
    with run_instance(tmp_path, documents("web01")) as instance:
        done = run_command("stop-installs", "--state", tmp_path / "state", *REASON)
        assert done.code == 0, done
        eventually(lambda: "INC-4711" in http_peers.get(f"{instance.url}/readyz").text)
        by_a_stranger = http_peers.get(f"{instance.url}/readyz", headers={"host": "boot.test"})
        assert by_a_stranger.text in ("ready\n", "not ready\n")


@contextmanager
def run_forwarding(url: str, folder: Path) -> Iterator[str]:
    """Run nginx as another user before an endpoint; it connects from 127.0.0.2 and appends to X-Forwarded-For."""
    text = f"""user nobody nogroup; daemon off; pid {folder}/pid; error_log stderr; events {{}}
        http {{ access_log off; server {{ listen 127.0.0.1:PORT; location / {{
          proxy_pass {url}; proxy_bind 127.0.0.2; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }} }} }}"""
    with run_nginx(text, folder) as found:
        yield found


@contextmanager
def run_proxy(url: str, folder: Path) -> Iterator[str]:
    """nginx before an endpoint, which keeps what it is allowed to keep."""
    text = f"""user root; daemon off; pid {folder}/pid; error_log stderr; events {{}}
        http {{
          access_log off; proxy_cache_path {folder}/cache keys_zone=near:1m; proxy_temp_path {folder}/temp;
          client_body_temp_path {folder}/body; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;
          scgi_temp_path {folder}/s;
          server {{ listen 127.0.0.1:PORT; location / {{
            proxy_pass {url}; proxy_cache near; proxy_cache_valid any 10m; proxy_cache_revalidate on;
            proxy_set_header X-Forwarded-For $remote_addr; proxy_bind 127.0.0.2;
          }} }}
        }}"""
    with run_nginx(text, folder) as found:
        yield found


@contextmanager
def run_nginx(text: str, folder: Path) -> Iterator[str]:
    folder.mkdir()
    port = str(free_port())
    (folder / "nginx.conf").write_text(text.replace("PORT", port))
    process = subprocess.Popen([program("nginx", "nginx"), "-c", str(folder / "nginx.conf")], stderr=subprocess.PIPE)
    try:
        eventually(lambda: http_peers.get(f"http://127.0.0.1:{port}/healthz").status_code == 200)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_a_timer_may_run_gitboot_once_beside_an_endpoint(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    repository.push(documents("web01"))
    spool = tmp_path / "spool"
    spool.mkdir()
    places = ("--out", tmp_path / "output", "--state", tmp_path / "state", "--spool", spool)

    def has_outcomes() -> bool:
        found = drop_concluded_intents(read_new_lines(spool, {}).observations, lambda each: each)
        return not any(each.is_open_intent for each in found)

    def passes() -> None:
        eventually(has_outcomes)  # the endpoint writes the outcome of a response after the client has received it
        done = run_command("run", repository.bare, *places, "--once")
        assert done.code in (Exit.FINE, Exit.PARTIAL), done

    passes()
    assert run_command(*FRESH, "--state", tmp_path / "state").code == 0
    passes()
    with served(tmp_path / "output", "--spool", str(spool)) as (url, _):
        web01 = Client("web01", url)
        script = web01.load_script()
        assert "\nkernel " in script
        passes()
        assert "1 Served" in run_command("status", "--state", tmp_path / "state").out
        web01.start_installer(script)
        passes()
        assert "1 Provisioned" in run_command("status", "--state", tmp_path / "state").out
        assert not web01.is_boot_served()
        web01.get("/healthz", **{"x-forwarded-for": "192.0.2.1"})
        eventually(lambda: any("127.0.0.1" in each.read_text() for each in spool.glob("*.report")))
        done = run_command("run", repository.bare, *places, "--once")
        assert done.code == Exit.FINE, "a client that claims to be another fails no timer"
        assert "ProxiesTrusted" in run_command("status", "--state", tmp_path / "state").out


def test_monitors_may_fetch_everything_without_an_effect(tmp_path: Path) -> None:
    files = documents("web01", evidence="Fetched, monitors: [192.0.2.0/24]")
    with run_instance(tmp_path, files, *write_configuration(trusted_proxies=[PROXY])) as instance:
        eventually(lambda: steps(instance) == {"Pending": 1})
        web01, monitor = (Client("web01", instance.url, address) for address in ("10.0.0.7", "192.0.2.9"))
        data = f"/v1/boot/{make_mac('web01').replace(':', '-')}/data/"
        published = next((tmp_path / "output" / "boot").glob(f"{data[1:]}*/user-data"))
        for path in (web01.entry, data + str(published.relative_to(published.parents[1])), "/healthz"):
            monitor.get(path)
        script = web01.load_script()
        assert "\nkernel " in script
        web01.start_installer(script)
        eventually(lambda: steps(instance) == {"Provisioned": 1})
        (attempt,) = instance.get("/api/v1/servers/web01").json()["provisioned"]["attempts"]
        assert [each["client"] for each in attempt["boots"]] == ["10.0.0.7"]
