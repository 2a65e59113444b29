"""A container's published port, and a Prometheus on another host: networks of their own, joined as engines do.

What Prometheus is told stands in docs/running.md, word by word.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.helpers import http_peers
from tests.helpers.endpoints import ENTRY, LOADER, site
from tests.helpers.forked_commands import join
from tests.helpers.git_repositories import program
from tests.helpers.http_peers import Authority
from tests.helpers.running_instance import eventually

PAGE: Final = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
CONFIGS: Final = re.findall(r"^```yaml\n(scrape_configs:.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

HOST: Final = "198.51.100.1"  # as another host sees it; the engine's bridge is 10.88.0.1
TOKEN: Final = "a-token-of-prometheus"


@dataclass(frozen=True, kw_only=True)
class Places:
    """Network namespaces."""

    host: str  # that publishes the container's ports
    container: str
    elsewhere: str

    def run(self, place: str, *command: object) -> str:
        done = subprocess.run(
            ["ip", "netns", "exec", place, *map(str, command)], capture_output=True, text=True, check=True
        )
        return done.stdout

    def ask(self, place: str, url: str, token: str = "") -> tuple[int, str]:
        """The status and the body of what is answered there; 0 where nothing is."""
        headers = LOADER | ({"Authorization": f"Bearer {token}"} if token else {})

        def asked() -> tuple[int, str]:
            join(os.open(f"/run/netns/{place}", os.O_RDONLY))  # this thread alone
            try:
                answer = http_peers.get(url, headers=headers, timeout=60)
            except httpx.TransportError as error:
                return 0, str(error)
            return answer.status_code, answer.text

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asked).result()

    @contextmanager
    def running(self, place: str, *command: object, log: Path) -> Iterator[None]:
        with log.open("w") as output:
            process = subprocess.Popen(["ip", "netns", "exec", place, *map(str, command)], stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


@pytest.fixture
def places() -> Iterator[Places]:
    """A host with a container whose ports 8080 and 9090 it publishes, and another host."""
    program("ip", "iproute2")
    filtering = program("iptables", "iptables")
    names = Places(**{each: f"gitboot-{os.getpid()}-{each}" for each in ("host", "container", "elsewhere")})
    with ExitStack() as stack:
        for name in (names.host, names.container, names.elsewhere):
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if made.returncode != 0:
                pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")
            stack.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
            names.run(name, "ip", "link", "set", "lo", "up")
        for name, address, peer, peers in (
            (names.container, "10.88.0.2", "bridge", "10.88.0.1"),
            (names.elsewhere, "198.51.100.2", "outside", HOST),
        ):
            names.run(names.host, "ip", "link", "add", peer, "type", "veth", "peer", "name", "eth0", "netns", name)
            for place, link, own in ((names.host, peer, peers), (name, "eth0", address)):
                names.run(place, "ip", "address", "add", f"{own}/24", "dev", link)
                names.run(place, "ip", "link", "set", link, "up")
            names.run(name, "ip", "route", "add", "default", "via", peers)
        names.run(names.host, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for chain in ("PREROUTING", "OUTPUT"):
            for port in (8080, 9090):
                rule = ("-p", "tcp", "-d", HOST, "--dport", port, "-j", "DNAT", "--to-destination", f"10.88.0.2:{port}")
                names.run(names.host, filtering, "-t", "nat", "-A", chain, *rule)
        # As engines without root do, and those with a proxy of their own: each client is the bridge.
        names.run(names.host, filtering, "-t", "nat", "-A", "POSTROUTING", "-o", "bridge", "-j", "MASQUERADE")
        yield names


@contextmanager
def in_a_container(places: Places, folder: Path, *options: object) -> Iterator[None]:
    """An endpoint behind the published ports, with the options of docs/running.md."""
    (folder / "tokens").write_text(f"{TOKEN}\n")
    options = (*options, "--operators-listen", "0.0.0.0:9090", "--operators-tokens", folder / "tokens")
    with site() as made:
        serve = (sys.executable, "-m", "gitboot", "serve", "--out", made.root, "--listen", "0.0.0.0:8080")
        with places.running(places.container, *serve, *options, log=folder / "endpoint.log"):
            eventually(lambda: places.ask(places.elsewhere, f"http://{HOST}:8080/healthz")[0] == 200)
            yield


def test_t12_who_comes_by_a_published_port_is_an_operator_by_token_alone(places: Places, tmp_path: Path) -> None:
    with in_a_container(places, tmp_path):
        for place in (places.elsewhere, places.host):
            assert places.ask(place, f"http://{HOST}:8080{ENTRY}")[0] == 200
            assert places.ask(place, f"http://{HOST}:8080/api/v1/status", TOKEN)[0] == 404
            assert places.ask(place, f"http://{HOST}:9090/api/v1/status")[0] == 404
            assert places.ask(place, f"http://{HOST}:9090/api/v1/status", f"{TOKEN}x")[0] == 401
            assert places.ask(place, f"http://{HOST}:9090/api/v1/status", TOKEN)[0] == 200
        counted = places.ask(places.elsewhere, f"http://{HOST}:9090/metrics", TOKEN)[1]
    for reason in ("Network", "Socket", "Token"):
        assert f'gitboot_operators_refused_total{{reason="{reason}"}} 2.0' in counted


@pytest.mark.parametrize("by", ["http", "https"])
def test_a_prometheus_on_another_host_reads_what_the_page_says(places: Places, tmp_path: Path, by: str) -> None:
    prometheus = program("prometheus", "prometheus")
    (config,) = [each for each in CONFIGS if ("scheme: https" in each) is (by == "https")]
    options: tuple[object, ...] = ()
    if by == "https":
        authority = Authority(tmp_path)
        issued = authority.issue(f"IP:{HOST}")
        (tmp_path / "gitboot-ca.crt").write_text(authority.pem)
        options = ("--operators-tls", issued.certificate, issued.key)
    (tmp_path / "gitboot.token").write_text(f"{TOKEN}\n")
    here = config.replace("/etc/prometheus/", f"{tmp_path}/").replace("boot.example.net:9090", f"{HOST}:9090")
    assert here.count(HOST) == 1
    (tmp_path / "prometheus.yml").write_text(f"global: {{scrape_interval: 2s}}\n{here}")
    command = (
        *(prometheus, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"),
        "--web.listen-address=127.0.0.1:9091",
    )
    with (
        in_a_container(places, tmp_path, *options),
        places.running(places.elsewhere, *command, log=tmp_path / "prometheus.log"),
    ):

        def read(what: str) -> str | None:
            """The newest value of a metric, as Prometheus has it."""
            status, body = places.ask(places.elsewhere, f"http://127.0.0.1:9091/api/v1/query?query={what}")
            found = json.loads(body)["data"]["result"] if status == 200 else []
            return str(found[0]["value"][1]) if found else None

        eventually(lambda: read("gitboot_operators_certificate_read" if by == "https" else "gitboot_ready"))
        eventually(lambda: read("up") == "1")  # one that took too long is none
