"""Paths of other systems: their responses. A fetch by an alias counts as a fetch of the boot script."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.controller.bmcs.desired_state import build_media_urls
from gitboot.endpoint.boot_responses import AliasResponses, BootResponse, BootResponses
from gitboot.endpoint.served_files import PublishedTree
from gitboot.fetchlog.access_logs import IgnoreReason, LineContent, parse_line
from gitboot.fetchlog.log_entries import Observation, parse_query
from gitboot.fetchlog.unknown_machines import parse_unknown_machine
from gitboot.model.scalars import SystemUuid, swap_byte_order
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.tree_reader import write_stop_file
from gitboot.render.emulated_apis import TABLE
from gitboot.render.paths import IdentityKind, Role, find_path_kind, format_identity
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.provisioning_record import Record, StopOrder
from tests.helpers import endpoints, http_peers
from tests.helpers.cases import for_each, require_value
from tests.helpers.endpoints import (
    ADDRESS,
    ALWAYS,
    BEFORE,
    LOADER,
    PROXY,
    TEMPLATES,
    Fleet,
    Site,
    eventually,
    get,
    plan_fleet,
    site,
)
from tests.helpers.fleets import fleet, image, make_mac, make_uuid, policy, profile, server
from tests.helpers.git_repositories import program
from tests.helpers.mirrors import Mirror, caddy, make_unreadable, nginx

PEERS = "outputs: [ipxe, grub, serial, matchbox, bss, smee, pixiecore, nocloud, ec2, netboot.xyz, foreman]"
REPORTED = "provisioning: {evidence: Reported}"
COLON_MAC = make_mac("web01")
MAC = COLON_MAC.replace(":", "-")
BARE = MAC.replace("-", "")
UUID = make_uuid("web01")
INIT = make_uuid("init01")
ENTRY = f"/v1/boot/{MAC}/boot.ipxe"
CLOUD = "#cloud-config\nhostname: {{ server.name }}\n"
DOCUMENTS = (
    fleet(f"baseURL: 'http://boot.test', unknownServers: {{profile: look}}, {PEERS}, {REPORTED}"),
    server("web01", "role: web, nid: '7', xname: x0c0s0b0n0", "provision: 1, serial: ABC123").replace(
        '"}]', f'", addresses: [{ADDRESS}]}}]'
    ),
    server("init01", "role: init").replace('"}]', '", addresses: [127.0.0.1]}]'),
    server("disk01", "role: disk"),
    image("flatcar-1", "userData: Ignition/3.4", "kernel, initrd"),
    image("live-1", "userData: CloudInit, writesDisk: false", "kernel, initrd"),
    image("look-1", "writesDisk: false", "uki"),
    profile("web", "flatcar-1", "userData: {format: Ignition/3.4, template: t}"),
    profile("init", "live-1", "userData: {format: CloudInit, template: c}"),
    profile("look", "look-1"),
    policy("web", "{matchLabels: {role: web}}", often="Once"),
    policy("init", "{matchLabels: {role: init}}", boots="init"),
    policy("disk", "{matchLabels: {role: disk}}", often="Never"),
)
FLEET = plan_fleet(*DOCUMENTS, templates={**TEMPLATES, "c": CLOUD})
LOG = b"x" * 65536 + b"\nlast"
TOKEN = next(path.rpartition("/")[2] for path in FLEET.boot_files if "/provisioned/" in path)

# Requests for the boot script of a server with a one-time boot, as the clients of each project spell them.
ENTRIES = {
    "matchbox's first script": f"/ipxe?uuid={UUID}&mac={MAC}&domain=&hostname=&serial=ABC123",
    "matchbox by MAC": f"/ipxe?mac={MAC}",
    "matchbox by an encoded MAC": f"/ipxe?mac={COLON_MAC.replace(':', '%3a')}",
    "matchbox by UUID": f"/ipxe?uuid={UUID}",
    "matchbox by serial": "/ipxe?serial=ABC123",
    "bss by MAC": f"/boot/v1/bootscript?mac={COLON_MAC}&retry=1&arch=x86_64&ts=1",
    "bss in short": f"/bootscript?mac={COLON_MAC}",
    "smee": f"/{COLON_MAC}/auto.ipxe",
    "smee's script": f"/ipxe/script/{COLON_MAC}/auto.ipxe",
    "netboot.xyz": f"/MAC-{BARE}.ipxe",
}
LOOKED_UP = {  # paths that only an endpoint serves
    "bss by name": "/boot/v1/bootscript?name=web01",
    "bss by xname": "/boot/v1/bootscript?host=x0c0s0b0n0",
    "bss by nid": "/boot/v1/bootscript?nid=7",
    "matchbox in capitals": f"/ipxe?mac={COLON_MAC.upper()}",
    # The two that netboot.xyz tries one after the other: roles/netbootxyz/templates/disks/netboot.xyz.j2.
    "netboot.xyz with hyphens": f"/MAC-{MAC}.ipxe",
    # The spellings of --dhcp-mac-address-format: smee/internal/ipxe/script/ipxe.go takes what Go's net.ParseMAC does.
    "smee with hyphens": f"/ipxe/script/{MAC}/auto.ipxe",
    "smee with dots": f"/{BARE[:4]}.{BARE[4:8]}.{BARE[8:]}/auto.ipxe",
}
NOBODY = (
    "/ipxe?mac=52:54:00:00:00:99",
    "/ipxe?mac=zz",
    "/ipxe?mac=%00",
    "/ipxe?mac=..%2f..%2fops",
    "/ipxe?uuid=..&mac=%ff%fe",
    "/ipxe?serial=-",
    "/grub?mac=",
    "/grub",
    "/boot/v1/bootscript",
    "/boot/v1/bootparameters",
    "/bootscript?mac=52:54:00:00:00:99",
    "/52:54:00:00:00:99/auto.ipxe",
    "/MAC-525400000099.ipxe",
    "/pixiecore/v1/boot/52:54:00:00:00:99",
    "/unattended/built?token=x",
    f"/unattended/built?token={'0' * 64}",
    "/metadata?mac=zz",
    "/ignition?mac=zz",
    f"/cloud?mac={MAC}",
    f"/generic?mac={MAC}",
    f"/nocloud/{UUID}/user-data",
)


@pytest.fixture
def here() -> Iterator[Site]:
    with site(FLEET) as made:
        yield made


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("peers") / "output"
    Site(root).publish(FLEET)
    return root


@pytest.fixture(scope="module")
def read_client(output: Path) -> Iterator[httpx.Client]:
    """An endpoint for requests that consume no boot."""
    with Site(output).serve(trusted_proxies=PROXY) as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        yield client


def test_every_alias_belongs_to_an_output_that_a_fleet_may_choose() -> None:
    for alias in TABLE:
        assert {alias.path for alias in TABLE if alias.output in PEERS} == {alias.path for alias in TABLE}
        assert alias.kinds and all(
            kind.role in (Role.BOOT_SCRIPT, Role.DATA, Role.PREVIEW, Role.REPORT) for kind in alias.kinds
        )


@pytest.mark.parametrize("asked", [*ENTRIES, *LOOKED_UP])
def test_e2_a_boot_served_by_an_alias_is_served_by_no_path_again(here: Site, asked: str) -> None:
    """The first fetch counts for the boot script. When a second one is too late, all aliases serve the disk."""
    alias = {**ENTRIES, **LOOKED_UP}[asked]
    with here.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        assert "boots flatcar-1" in client.get(alias).text
        [seen] = here.observed()
        kind = find_path_kind(seen.path)
        assert kind is not None
        assert (seen.server, kind.role, seen.offer) == ("web01", Role.BOOT_SCRIPT, offer())
        here.now += timedelta(seconds=61)
        for path in (ENTRY, f"/ipxe/{UUID}", *ENTRIES.values(), *LOOKED_UP.values()):
            assert "boots its local disk" in client.get(path).text, path
        assert here.observed() == []


def test_e2_a_boot_served_by_the_boot_script_is_served_by_no_alias(here: Site) -> None:
    with here.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        assert "boots flatcar-1" in client.get(ENTRY).text
        here.now += timedelta(seconds=61)
        for path in (f"/ipxe/{UUID}", *ENTRIES.values(), *LOOKED_UP.values()):
            assert "boots its local disk" in client.get(path).text, path


def offer() -> str | None:
    writes = FLEET.servers["web01"].published.paths[f"boot{ENTRY}"][0].writes
    return writes.offer if writes is not None else None


def test_e1_a_fetch_by_an_alias_that_cannot_be_recorded_gets_no_boot(here: Site) -> None:
    with here.serve(records=False) as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        for path in (*ENTRIES.values(), *LOOKED_UP.values()):
            answer = client.get(path).text
            assert "could not record the fetch" in answer and "boots its local disk" in answer, path


def test_clients_that_do_not_boot_consume_nothing_by_an_alias_and_no_proxy_can_revalidate_it(here: Site) -> None:
    """E6, E25 and E5: no loader, a HEAD, another machine, and then loaders within one minute."""
    with here.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        for path in ENTRIES.values():
            assert "withheld the boot" in client.get(path, headers={"user-agent": "curl/8"}).text, path
            assert client.head(path).status_code == 200, path
        another = client.get(f"/ipxe?mac={MAC}&uuid={make_uuid('other')}")
        assert "boots its local disk" in another.text
        assert here.observed() == []
        for path in ENTRIES.values():
            for more in ({}, {"if-none-match": "*"}):
                answer = client.get(path, headers=more)
                assert "boots flatcar-1" in answer.text, path
                assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store"), path
                assert "etag" not in answer.headers, path


def test_a_stop_of_all_boots_applies_to_aliases(here: Site) -> None:
    with here.serve() as url:
        write_stop_file(here.root / "ops", StopOrder("ada", "a flood", everything=True), BEFORE)
        for path in ENTRIES.values():
            stopped = partial(lambda path: "a flood" in http_peers.get(f"{url}{path}", headers=LOADER).text, path)
            assert eventually(stopped), path
        assert http_peers.get(f"{url}/httpboot", headers={"x-forwarded-for": "10.12.0.99"}).status_code == 404
        assert "boots flatcar-1" not in http_peers.get(f"{url}{ENTRY}", headers=LOADER).text


def test_pixiecore_chains_the_machine_to_its_boot_script(read_client: httpx.Client) -> None:
    """Read a response as Pixiecore's client does: go.universe.tf/netboot, pixiecore/booters.go, apibooter.BootSpec."""
    said = read_client.get(f"/pixiecore/v1/boot/{COLON_MAC}").json()
    assert list(said) == ["ipxe-script"]
    first, chain = said["ipxe-script"].splitlines()
    assert first == "#!ipxe"
    assert chain.startswith(f"chain --autofree http://boot.test{ENTRY}?uuid=${{uuid}}")
    assert read_client.get(f"/pixiecore/v1/boot/{make_mac('disk01')}").status_code == 404  # "don't boot this machine"


def test_boot_parameters_show_no_install_boot(read_client: httpx.Client) -> None:
    [web] = read_client.get(f"/boot/v1/bootparameters?mac={COLON_MAC}").json()
    assert web == {"hosts": ["web01"], "macs": [COLON_MAC]}
    [init] = read_client.get("/boot/v1/bootparameters?name=init01").json()
    assert init["kernel"].endswith("/kernel") and init["initrd"].endswith("initrd")
    assert "ds=nocloud" in init["params"]
    assert read_client.post("/boot/v1/bootparameters").status_code == 405


def test_matchbox_paths_serve_ignition_cloud_config_and_metadata(read_client: httpx.Client) -> None:
    assert read_client.get(f"/ignition?uuid={UUID}&mac={MAC}").json() == {"ignition": {"version": "3.4.0"}}
    assert read_client.get(f"/ignition?uuid={UUID}").json() == {"ignition": {"version": "3.4.0"}}
    assert read_client.get(f"/cloud?uuid={INIT}").text == "#cloud-config\nhostname: init01\n"
    told = read_client.get(f"/metadata?mac={MAC}&foo=bar").text.splitlines()
    assert {"ROLE=web", f"REQUEST_QUERY_MAC={MAC}", "REQUEST_QUERY_FOO=bar"} <= {*told}
    assert f"REQUEST_RAW_QUERY=mac={MAC}&foo=bar" in told
    assert not any(
        line.startswith("X=") for line in read_client.get(f"/metadata?mac={MAC}&a=b%0aX=1").text.splitlines()
    )


def test_paths_of_first_scripts_serve_the_first_script(read_client: httpx.Client) -> None:
    script = read_client.get("/boot.ipxe").content
    assert {read_client.get(path).content for path in ("/boot.ipxe.0", "/auto.ipxe", "/ipxe")} == {script}
    assert read_client.get(f"/ipxe?mac={MAC}").content != script  # although that path was fetched before
    # dhcp-boot of Tinkerbell's docs/technical/smee/DHCP.md: the fetched file is two levels up.
    deeper = script.decode().replace("--name entry ", "--name entry ../../")
    assert read_client.get("/ipxe/script/auto.ipxe").text == deeper


def test_ec2_metadata_finds_a_machine_by_its_address(read_client: httpx.Client) -> None:
    assert read_client.get("/2009-04-04/user-data").text == "#cloud-config\nhostname: init01\n"
    assert read_client.get("/2009-04-04/meta-data/instance-id").text == INIT
    assert read_client.get("/latest/meta-data/").text.split() == ["hostname", "instance-id", "local-hostname"]
    assert read_client.get("/2009-04-04/meta-data/nothing").status_code == 404
    elsewhere = {"x-forwarded-for": "10.12.0.99"}
    assert read_client.get("/2009-04-04/user-data", headers=elsewhere).status_code == 404


def test_an_unknown_client_of_http_boot_gets_the_profile_of_unknown_servers(read_client: httpx.Client) -> None:
    said = read_client.get("/httpboot", headers={"x-forwarded-for": "10.12.0.99"}).json()
    assert said["ClientIPs"] == "10.12.0.99"
    assert said["UKIURL"].endswith(".efi") or "uki" in said["UKIURL"]
    assert "SystemUUID" not in said
    assert read_client.get("/httpboot", headers={"x-forwarded-for": ADDRESS}).status_code == 404


@pytest.mark.parametrize("path", NOBODY)
def test_an_unknown_machine_and_a_malformed_key_get_the_same_404(read_client: httpx.Client, path: str) -> None:
    answer = read_client.get(path)
    assert (answer.status_code, answer.content, answer.headers["cache-control"]) == (404, b"#", "no-store")


def test_an_output_that_was_not_chosen_has_no_paths() -> None:
    with site() as made, made.serve() as url:
        for path in (*ENTRIES.values(), *LOOKED_UP.values(), "/2009-04-04/user-data", f"/metadata?mac={MAC}"):
            answer = http_peers.get(f"{url}{path}", headers=LOADER)
            assert answer.status_code == 404 or (
                path.startswith("/ipxe?") and "looks up the boot script" in answer.text
            )


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("word", ["built", "failed"])
def test_callbacks_of_foreman_are_reports(here: Site, word: str, method: str) -> None:
    with here.serve() as url:
        answer = http_peers.request(
            method,
            f"{url}/unattended/{word}?token={TOKEN}",
            content=LOG if method == "POST" else b"",
            headers={"content-type": "text/plain", "user-agent": "curl/8.5"},  # as Foreman's snippet `built` sends it
        )
        assert answer.status_code == 204
        [seen] = here.observed()
        assert (seen.reports_success, seen.reports_failure) == (word == "built", word == "failed")
        assert (seen.server, seen.digest) == ("web01", TOKEN)
        assert (seen.log or "").endswith("last") == (word == "failed" and method == "POST")


def test_a_callback_of_foreman_ends_the_offer_of_the_boot(here: Site) -> None:
    with here.serve() as url, http_peers.Client(base_url=url, headers=LOADER) as client:
        assert "boots flatcar-1" in client.get(ENTRIES["smee"]).text
        client.get(f"/unattended/built?token={TOKEN}")
        assert "boots its local disk" in client.get(ENTRIES["smee"]).text


@given(
    st.sampled_from([f"/{alias.path}" for alias in TABLE] + ["/metadata", "/2009-04-04/user-data"]),
    st.binary(max_size=40)
    | st.sampled_from([b"mac=", b"uuid=", b"token=", b"nid="]).flatmap(
        lambda key: st.binary(max_size=40).map(lambda value: key + value)
    ),
)
def test_no_query_finds_a_path_that_is_not_a_machine(output: Path, path: str, query: bytes) -> None:
    tree = PublishedTree(output, lambda: BEFORE)
    found = AliasResponses(tree, BootResponses(tree)).find(path, query, lambda: "10.0.0.1", BEFORE)
    assert found is None or path == "/ipxe" or b"nid=" in query  # which names one by a digit


def test_tokens_find_no_server_if_foreman_is_not_chosen() -> None:
    state = plan_fleet(*[each.replace(", foreman", "") for each in DOCUMENTS], templates={**TEMPLATES, "c": CLOUD})
    identities = state.servers["web01"].published.identities
    assert format_identity(IdentityKind.TOKEN, TOKEN) not in identities
    assert format_identity(IdentityKind.TOKEN, TOKEN) in FLEET.servers["web01"].published.identities


@pytest.mark.parametrize(
    "path",
    [
        f"/ipxe?mac={COLON_MAC}&uuid={UUID}",
        f"/boot/v1/bootscript?mac={COLON_MAC}",
        f"/{COLON_MAC}/auto.ipxe",
        f"/MAC-{BARE}.ipxe",
    ],
)
def test_an_unknown_machine_is_recorded_by_any_path_that_it_requests(path: str) -> None:
    below, _, query = path.partition("?")
    noted = parse_unknown_machine(below, parse_query(query), "10.12.0.99", BEFORE)
    assert noted is not None and noted.macs == (MAC,)


REPORTING_CONFIG = '{"ignition": {"version": "3.4.0"}, "told": "{{ urls.provisioned }}"}'


def test_data_at_a_public_path_reveals_no_token_of_an_installation(tmp_path: Path) -> None:
    """The machine's own system uses another path, with a token that only the key of this instance can make."""
    keyed = plan_fleet(*DOCUMENTS, templates={"t": REPORTING_CONFIG, "c": CLOUD}, keys=TokenKeys(b"k" * 32))
    named = {path.rpartition("/")[2] for path in keyed.boot_files if "/provisioned/" in path}
    [token] = named
    data = next(file.content for path, file in keyed.boot_files.items() if f"/data/{token}/" in path)
    assert token.encode() in data
    for path in (f"/v1/boot/{MAC}/user-data/ignition", f"/ignition/{UUID}"):
        assert token.encode() not in keyed.boot_files[path].content
    with site(keyed) as here, here.serve() as url:
        assert http_peers.get(f"{url}/unattended/built?token={token}").status_code == 204
        [seen] = here.observed()
        assert (seen.server, seen.reports_success) == ("web01", True)


def test_e29_if_an_endpoint_is_named_no_alias_in_the_tree_contains_a_one_time_boot() -> None:
    named = fleet(f"baseURL: 'http://boot.test', endpoint: 'http://gitboot.test', {PEERS}, {REPORTED}")
    found = plan_fleet(named, *DOCUMENTS[1:], templates={**TEMPLATES, "c": CLOUD})
    for path in (f"/{COLON_MAC}/auto.ipxe", f"/ipxe/script/{COLON_MAC}/auto.ipxe", f"/MAC-{BARE}.ipxe"):
        text = found.boot_files[path].content.decode()
        assert f"imgfetch --timeout 8000 --name answer http://gitboot.test{path}?" in text and "kernel" not in text
    said = json.loads(found.boot_files[f"/pixiecore/v1/boot/{COLON_MAC}"].content)
    assert f"http://boot.test{ENTRY}" in said["ipxe-script"]  # this path redirects by itself
    assert not any(f"boot/{MAC}/user-data" in path for path in found.servers["web01"].evidence_digests)


S3 = (
    "a b [21/Nov/2026:02:00:00 +0000] 10.0.0.1 - C REST.GET.OBJECT boot/{key} "
    '"GET /x HTTP/1.1" 200 - 7 7 1 1 "-" "-" - '
)


def test_the_log_of_a_bucket_names_an_alias_that_is_a_file_of_the_tree() -> None:
    """The log does not show which version was sent, so only a path that names an installation is evidence."""
    for path in (f"52%253A54%253A00{COLON_MAC[8:].replace(':', '%253A')}/auto.ipxe", f"MAC-{BARE}.ipxe"):
        assert parse_line(S3.format(key=path).encode()) is IgnoreReason.VERSION
    assert parse_line(S3.format(key=f"v1/boot/{MAC}/bootparameters.json").encode()) is IgnoreReason.PATH


# Mirrors


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def mirror(request: pytest.FixtureRequest, output: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirror]:
    running = nginx if request.param == "nginx" else caddy
    with running(output / "boot", output / "ops" / "serve", tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture(scope="module")
def client(mirror: Mirror) -> Iterator[httpx.Client]:
    with http_peers.Client(base_url=mirror.url, headers=LOADER) as found:
        yield found


@pytest.fixture
def logged(mirror: Mirror) -> Callable[[int], list[LineContent]]:
    return mirror.follow_log()


def test_e29_an_alias_at_a_mirror_is_the_boot_script_and_its_log_shows_it(
    client: httpx.Client, logged: Callable[[int], list[LineContent]]
) -> None:
    for path in ENTRIES.values():
        answer = client.get(path)
        assert "boots flatcar-1" in answer.text, path
        assert (answer.headers["cache-control"], "etag" in answer.headers) == ("no-store", False), path
    for seen, path in zip(logged(len(ENTRIES)), ENTRIES.values(), strict=True):
        assert isinstance(seen, Observation), (path, seen)
        kind = find_path_kind(seen.path)
        assert kind is not None and kind.role is Role.BOOT_SCRIPT
        assert FLEET.servers["web01"].evidence_digests[seen.path], path


@pytest.mark.parametrize(
    ("below", "query", "status"),
    [
        ("v1", f"mac={MAC}", 503),
        ("ipxe", f"uuid={UUID}", 503),
        ("ipxe", f"mac={MAC}", 200),
        ("ipxe/serial", "serial=ABC123", 503),
        ("ipxe/serial", "mac=52-54-00-00-00-99", 503),
        ("v1/boot", "mac=52-54-00-00-00-99", 503),
    ],
)
def test_finding_m5_an_alias_of_an_unreadable_file_is_not_absent(
    output: Path, client: httpx.Client, below: str, query: str, status: int
) -> None:
    with make_unreadable(output / "boot" / below, "forbidden"):
        answer = client.get(f"/ipxe?{query}")
        assert (answer.status_code, answer.content == b"#") == (status, status == 503)
    assert client.get(f"/ipxe?mac={MAC}").status_code == 200


def test_a_mirror_serves_data_and_first_scripts(client: httpx.Client) -> None:
    assert client.get(f"/ignition?uuid={UUID}&mac={MAC}").json() == {"ignition": {"version": "3.4.0"}}
    assert client.get(f"/cloud?mac={make_mac('init01')}").text == "#cloud-config\nhostname: init01\n"
    assert client.get(f"/nocloud/{INIT}/user-data").headers["content-type"] == "text/cloud-config; charset=utf-8"
    script = client.get("/boot.ipxe").content
    assert {client.get(path).content for path in ("/boot.ipxe.0", "/auto.ipxe", "/ipxe")} == {script}
    [init] = client.get(f"/boot/v1/bootparameters?mac={make_mac('init01')}").json()
    assert init["hosts"] == ["init01"]
    assert json.loads(client.get(f"/pixiecore/v1/boot/{COLON_MAC}").content)["ipxe-script"]


@pytest.mark.parametrize("path", [*NOBODY, *LOOKED_UP.values()])
def test_a_mirror_has_the_same_404_for_every_unknown_machine(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.content, answer.headers["cache-control"]) == (404, b"#", "no-store")


_FOLDER = TemporaryDirectory()


@pytest.fixture(autouse=True, scope="module")
def tree() -> Iterator[None]:
    Site(ROOT).publish()
    yield
    _FOLDER.cleanup()


ROOT = Path(_FOLDER.name) / "output"


def find_response(path: str, client: str | None = None) -> BootResponse | None:
    return BootResponses(PublishedTree(ROOT, lambda: BEFORE)).find(path, lambda: client, BEFORE)


CONTENTS = {file.content for file in endpoints.FLEET.boot_files.values()}


@given(st.text() | st.from_regex(r"/(v1/boot|ipxe|ignition|httpboot|ops|o|\.\.)/[^/]*(/[^/]*){0,3}"))
def test_only_boot_files_are_ever_found(path: str) -> None:
    found = find_response(path)
    assert found is None or bytes(found.reply.body) in CONTENTS


def vary_case(text: str) -> st.SearchStrategy[str]:
    return st.lists(st.booleans(), min_size=len(text), max_size=len(text)).map(
        lambda upper: "".join(c.upper() if up else c for c, up in zip(text, upper, strict=True))
    )


def assert_same_file(path: str, other: str) -> None:
    found = find_response(path)
    assert found is not None
    assert bytes(found.reply.body) == endpoints.FLEET.boot_files[other].content


@given(vary_case(MAC.replace("-", "")), st.sampled_from([("", 2), ("-", 2), (":", 2), (".", 4)]))
def test_a_mac_address_is_found_in_any_notation(digits: str, notation: tuple[str, int]) -> None:
    separator, width = notation
    mac = separator.join(digits[i : i + width] for i in range(0, 12, width))
    assert_same_file(f"/v1/boot/{mac}/boot.ipxe", ENTRY)


@given(st.sampled_from([UUID, swap_byte_order(SystemUuid(UUID))]).flatmap(vary_case))
def test_a_uuid_is_found_in_any_case_and_both_byte_orders(uuid: str) -> None:
    for folder, suffix in (("ipxe", ""), ("ignition", ""), ("httpboot", ".json")):
        assert_same_file(f"/{folder}/{uuid}{suffix}", f"/{folder}/{UUID}{suffix}")


def test_the_cache_is_limited_by_the_size_of_the_responses(here: Site) -> None:
    documents = [each.replace("userData: Ignition", "configFrom: SystemUUID, userData: Ignition") for each in ALWAYS]
    spellings = product(*(sorted({digit, digit.upper()}) for digit in UUID[:18]))  # 64
    paths = [f"/ignition/{''.join(each)}{UUID[18:]}" for each in spellings]
    responses = BootResponses(PublishedTree(here.root, lambda: BEFORE))
    for filler in "xy":  # the second publication invalidates the responses of the first
        template = TEMPLATES["t"].replace("}}", f'}}, "x": "{filler * 1_000_000}"}}')
        here.publish(plan_fleet(*documents, templates={"t": template}))
        for path in (*paths[-33:], *paths):
            assert len(require_value(responses.find(path, lambda: None, BEFORE)).reply.body) > 1_000_000
        is_cached = [responses.find_cached(path, BEFORE) is not None for path in paths]
        assert is_cached == [False] * 31 + [True] * 33, "33 MB are less than 32 MiB"


@for_each("client", [None, "", "10.12.0.99", "web01", UUID])
def test_httpboot_finds_servers_by_address_only(client: str | None) -> None:
    assert find_response("/httpboot", client) is None
    assert find_response("/httpboot", ADDRESS) is not None


KEYS: Final = TokenKeys(b"a key of this test")
REPORT: Final = "#cloud-config\nphone_home: {url: '{{ urls.provisioned }}'}\n"


def _fleet(format: str = "CloudInit", text: str = REPORT, record: Record | None = None) -> Fleet:
    documents = (
        fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}"),
        server("web01", spec="provision: 1"),
        image("flatcar-1", f"configFrom: Medium, userData: {format}", "iso"),
        profile("web", "flatcar-1", f"userData: {{format: {format}, template: t}}", method="VirtualMedia"),
        policy("web", often="Once"),
    )
    return plan_fleet(*documents, templates={"t": text}, keys=KEYS, records={"web01": record or Record()})


def _get_path(found: Fleet) -> str:
    _, url = build_media_urls(found.servers["web01"].plan, KEYS)
    assert url is not None
    return url.removeprefix("http://boot.test")


@pytest.fixture(scope="module")
def medium() -> Iterator[tuple[Site, str]]:
    found = _fleet()
    with site(found) as made:
        yield made, _get_path(found)


def _files(content: bytes, folder: Path) -> dict[str, str]:
    made, out = folder / "fetched.iso", folder / "out"
    made.write_bytes(content)
    command = [program("xorriso", "xorriso"), "-osirrox", "on", "-indev", f"stdio:{made}", "-extract", "/", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return {str(each.relative_to(out)): each.read_text() for each in out.rglob("*") if each.is_file()}


def test_a_medium_is_served_to_a_bmc_and_proves_nothing_about_the_machine(
    medium: tuple[Site, str], tmp_path: Path
) -> None:
    made, path = medium
    with made.serve() as url:
        found = get(url + path)
        assert (found.status_code, found.headers["content-type"]) == (200, "application/vnd.efi-iso")
        report = _files(found.content, tmp_path)["user-data"].partition("http://boot.test")[2].partition("'")[0]
        assert made.observed() == []
        assert get(url + report).status_code == 204, "the system on it reports by a token that is known"
        assert [each.path for each in made.observed()] == [f"boot{report}"]
    assert sorted(_files(found.content, tmp_path)) == ["meta-data", "user-data", "vendor-data"]


@pytest.mark.parametrize(
    ("asked", "status", "which"),
    [
        ("bytes=0-", 206, slice(0, None)),
        ("bytes=32768-34815", 206, slice(32768, 34816)),
        ("bytes=2048-99999999", 206, slice(2048, None)),
        ("bytes=-2048", 206, slice(-2048, None)),
        ("bytes=99999999-", 416, slice(0, 0)),
        ("bytes=0-1, 4-5", 200, slice(0, None)),
        ("sectors=1-2", 200, slice(0, None)),
    ],
)
def test_a_medium_can_be_read_in_parts(
    medium: tuple[Site, str], asked: str, status: int, which: slice[int | None]
) -> None:
    made, path = medium
    with made.serve() as url:
        whole = get(url + path)
        part = get(url + path, headers={"range": asked})
    assert whole.headers["accept-ranges"] == "bytes"
    assert (part.status_code, part.content) == (status, whole.content[which])
    if status == 206:
        start, end, _ = which.indices(len(whole.content))
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{len(whole.content)}"


def test_the_path_of_a_medium_cannot_be_derived_from_git(medium: tuple[Site, str]) -> None:
    """The path is like that of user data of a boot that ends: it needs the key of the instance."""
    made, path = medium
    state = _fleet().servers["web01"]
    assert state.plan is not None and state.plan.data is not None
    assert state.plan.data not in path and "/o/" not in path
    with made.serve() as url:
        assert get(f"{url}/media/{state.plan.uuid}/{state.plan.data}/user-data.iso").status_code == 404


def test_a_medium_is_removed_together_with_the_user_data() -> None:
    done = Record(provision=1, image="flatcar-1", evidence="Reported", provisioned_at=BEFORE - timedelta(minutes=1))
    found = _fleet()
    assert [path for path in found.boot_files if path.endswith(".iso")] == [_get_path(found)]
    with site(found) as made, made.serve() as url:
        assert get(url + _get_path(found)).status_code == 200
        after = _fleet(record=done)
        made.publish(after)
        assert (made.root / MANIFEST).exists()
        assert [path for path, turns in after.servers["web01"].published.paths.items() if "/media/" in path] == []
        assert get(url + _get_path(found)).status_code == 404


@pytest.mark.parametrize(
    ("format", "text", "names"),
    [
        ("Kickstart", "text\n", ["ks.cfg"]),
        ("AutoYaST", '<profile xmlns="http://www.suse.com/1.0/yast2ns"/>', ["autoinst.xml"]),
        ("Combustion", "#!/bin/bash\n", ["combustion/script"]),
        ("Ignition/3.4", '{"ignition": {"version": "3.4.0"}}', ["ignition/config.ign"]),
        ("Talos", "version: v1alpha1\nmachine:\n  type: worker\n", ["meta-data", "user-data"]),
    ],
)
def test_each_format_is_where_its_systems_look(tmp_path: Path, format: str, text: str, names: list[str]) -> None:
    found = _fleet(format, text)
    files = _files(found.boot_files[_get_path(found)].content, tmp_path)
    assert sorted(files) == names and text in files.values()
