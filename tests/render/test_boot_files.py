"""Boot files: which boots OUTPUT and its copies serve, and the one answer of a server by each lookup."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from gitboot.jsonio import format_instant, to_json_value
from gitboot.model.fleet import Output
from gitboot.model.scalars import parse_mac
from gitboot.publish import mirror_program
from gitboot.publish.tree_reader import write_stop_file
from gitboot.render import paths
from gitboot.render.boot_files import RENDERERS, render_idle_files, render_server_files
from gitboot.render.boot_script_parts import ScriptLoader, find_loader, render_disk_boot
from gitboot.render.paths import PathKind, Role, find_path_kind
from gitboot.render.server_files import RenderedState
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.provisioning_record import Record, Run, StopOrder, StopScope
from tests.helpers.endpoints import BEFORE, START, Site, get, plan_fleet, site
from tests.helpers.fleets import at, decided, fleet, image, maintenance, make_mac, make_uuid, policy, profile, server
from tests.helpers.forked_commands import run_forked
from tests.helpers.git_repositories import free_port, program
from tests.helpers.instance_with_bmcs import BASE_URL, POOL
from tests.helpers.mirrors import nginx
from tests.helpers.running_instance import Instance, Repository, eventually, running
from tests.helpers.signed_lists import make_keys

MAC = make_mac("web01").replace(":", "-")
ENTRIES = (f"/v1/boot/{MAC}/boot.ipxe", f"/v1/boot/{MAC}/grub.cfg")
IMAGE = "flatcar-1/kernel"
END = at("21T04:00")  # of the maintenance that begins at `START`


class _Died(Exception):
    """The end of an instance that a test has killed."""


@contextmanager
def kill_at_end(instance: Instance) -> Iterator[None]:
    """Kill an instance at the end of the block, and let the block of `running` end by `_Died`."""
    yield
    instance.process.kill()
    raise _Died(instance.process.wait(60))


def copy_output(output: Path, copy: Path) -> Path:
    subprocess.run([program("rsync", "rsync"), "--archive", "--delete", f"{output}/boot/", f"{copy}/"], check=True)
    return copy


@contextmanager
def mirrors(output: Path, folder: Path) -> Iterator[tuple[str, str]]:
    folder.mkdir(exist_ok=True)
    copy = copy_output(output, folder / "copy")
    for name in ("nginx", "nginx-copy"):
        (folder / name).mkdir()
    with (
        nginx(output / "boot", output / "ops/serve", folder / "nginx") as own,
        nginx(copy, output / "ops/serve", folder / "nginx-copy") as other,
    ):
        yield own.url, other.url


def serves_installation(url: str, path: str) -> bool:
    answer = get(f"{url}{path}")
    assert answer.status_code == 200
    return IMAGE in answer.text


def create_repository(folder: Path, settings: str) -> Repository:
    repository = Repository.create(folder / "git")
    documents = (fleet(f"{BASE_URL}, {settings}"), server("web01", spec="provision: 1"), *POOL)
    repository.push({"fleet.yaml": "---\n".join(documents)})
    return repository


@pytest.mark.parametrize("settings", ["serving: {oneTimeBoots: EndpointOnly}", "endpoint: 'http://127.0.0.1:9'"])
def test_finding_m2_no_copy_installs_a_server_a_second_time(tmp_path: Path, settings: str) -> None:
    repository = create_repository(tmp_path, settings)
    first, served = list[bool](), list[bool]()
    with (
        suppress(_Died),
        running(repository.bare, tmp_path, records="fresh") as instance,
        kill_at_end(instance),
        mirrors(tmp_path / "output", tmp_path) as urls,
    ):
        first += [serves_installation(url, path) for url in urls for path in ENTRIES]
        served += [
            serves_installation(instance.url, ENTRIES[0]) for _ in range(2)
        ]  # a loader may repeat it for a minute
    with mirrors(tmp_path / "output", tmp_path / "later") as urls:
        last = [serves_installation(url, path) for url in urls for path in ENTRIES * 2]
    assert (first, served, last) == ([False] * 4, [True] * 2, [False] * 8)


def test_a_copy_serves_a_one_time_boot_until_its_log_is_read_if_the_fleet_accepts_that(tmp_path: Path) -> None:
    repository = create_repository(tmp_path, "serving: {oneTimeBoots: Copies}")
    output, spool = tmp_path / "output", tmp_path / "state/spool"
    (tmp_path / "nginx").mkdir()
    with (
        running(repository.bare, tmp_path, records="fresh") as instance,
        nginx(output / "boot", output / "ops/serve", tmp_path / "nginx") as mirror,
    ):
        assert [serves_installation(mirror.url, ENTRIES[0]) for _ in range(2)] == [True, True]
        assert run_forked("read-access-logs", mirror.log, "--spool", spool).returncode == 0
        assert eventually(lambda: "Fetched" in str(instance.get("/api/v1/servers/web01").json()))


# By server: what fetches its boot, whether the mirror logs user agents, and what becomes of the boot.
FETCHES: Final[dict[str, tuple[str, bool, bool, bool]]] = {
    "web01": ("GRUB 2.06", True, True, True),
    "web02": ("GRUB 2.06", False, False, True),  # the nginx.conf of an earlier version
    "web03": ("", True, False, True),
    "web04": ("my-loader 1", True, False, True),
    "web05": ("curl/8.5.0", True, False, False),
}


def test_finding_m2_a_copy_offers_no_boot_again_that_a_machine_may_have_fetched(tmp_path: Path) -> None:
    repository = Repository.create(tmp_path / "git")
    servers = (server(name, spec="provision: 1") for name in FETCHES)
    settings = fleet(f"{BASE_URL}, serving: {{oneTimeBoots: Copies}}")
    repository.push({"fleet.yaml": "---\n".join((settings, *servers, *POOL))})
    output, spool, earlier = tmp_path / "output", tmp_path / "state/spool", tmp_path / "earlier"
    for folder in (tmp_path / "nginx", tmp_path / "nginx-earlier", earlier):
        folder.mkdir()
    with running(repository.bare, tmp_path, records="fresh") as instance:
        configuration, field = (output / "ops/serve/nginx.conf").read_text(), ',"agent":"$http_user_agent"'
        assert field in configuration
        (earlier / "nginx.conf").write_text(configuration.replace(field, ""))
        with (
            nginx(output / "boot", output / "ops/serve", tmp_path / "nginx") as with_agents,
            nginx(output / "boot", earlier, tmp_path / "nginx-earlier") as without_agents,
        ):
            for name, (agent, logs_agents, *_) in FETCHES.items():
                url = (with_agents if logs_agents else without_agents).url
                path = f"/v1/boot/{make_mac(name).replace(':', '-')}/grub.cfg"
                assert IMAGE in get(f"{url}{path}", headers={"user-agent": agent}).text, name

            lines = Counter[Path]()

            def read(log: Path) -> int:
                done = run_forked("read-access-logs", log, "--spool", spool, "-o", "json")
                lines[log] += json.loads(done.stdout)["read"]
                return lines[log]

            assert eventually(lambda: (read(with_agents.log), read(without_agents.log)) == (4, 1))

        def is_offered_later(name: str) -> bool:
            later = format_instant(datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=2))
            done = run_forked("boot-script", name, "--tree", output, "--at", later)
            assert done.returncode == 0, done.stderr
            return IMAGE in done.stdout

        assert run_forked("reconcile", "--state", tmp_path / "state").returncode == 0
        used_up = {name: is_used_up for name, (*_, is_used_up) in FETCHES.items()}
        assert eventually(lambda: {name: not is_offered_later(name) for name in FETCHES} == used_up)
        for name, (_, _, is_installed, _) in FETCHES.items():
            assert ("Fetched" in str(instance.get(f"/api/v1/servers/{name}").json())) is is_installed, name


# A maintenance


LIVE: Final = (
    server("web01", "role: web"),
    image("live-1", "writesDisk: false"),
    image("memtest-7", "writesDisk: false"),
    profile("live", "live-1"),
    profile("repair", "memtest-7"),
    policy("live", boots="live"),
)
ALL_LOADERS: Final = (*ENTRIES, f"/ipxe/{make_uuid('web01')}", f"/grub.cfg-01-{MAC}", f"/pxelinux.cfg/01-{MAC}")
_ASKS: Final = re.compile(
    r"^imgfetch .* (?P<ipxe>http\S+?)\?uuid=|^include (?P<pxelinux>http\S+)$|"
    r"configfile '?\(http,(?P<host>[^)]+)\)(?P<path>[^?'\s]+)\?hop=1",
    re.MULTILINE,
)


def boots(copy: str, path: str) -> str | None:
    """Return which image a loader boots by a script of a copy: by the endpoint's answer, or without an answer."""
    script = get(f"{copy}{path}").text
    if (asks := _ASKS.search(script)) is not None:
        url = asks["ipxe"] or asks["pxelinux"] or f"http://{asks['host']}{asks['path']}"
        with suppress(httpx.TransportError):
            answer = get(url.replace("${uuid}", make_uuid("web01")))
            if answer.status_code == 200:
                script = answer.text
    found = re.search(r"/assets/([a-z]+)-\d/kernel", script)
    return found[1] if found is not None else None


@pytest.mark.parametrize("window", ["20T22:00 21T04:00", "20T22:00 -"], ids=["with an end", "without an end"])
def test_finding_m1_a_maintenance_ends_on_every_copy_even_without_its_publisher(tmp_path: Path, window: str) -> None:
    with site(None) as publisher:
        with publisher.serve() as endpoint:
            settings = f"baseURL: 'http://boot.test', endpoint: '{endpoint}', outputs: [ipxe, grub, pxelinux]"
            fleet_of = plan_fleet(fleet(settings), *LIVE, maintenance("repair", window), now=START)
            publisher.now = START
            publisher.publish(fleet_of, at=START)
            with mirrors(publisher.root, tmp_path) as urls:
                # Nothing is published from here on. Only the clock of the endpoint runs.
                inside = {boots(url, path) for url in urls for path in ALL_LOADERS}
                publisher.now = END
                after = {boots(url, path) for url in urls for path in ALL_LOADERS}
        with mirrors(publisher.root, tmp_path / "without") as urls:  # the endpoint is gone, too
            alone = {boots(url, path) for url in urls for path in ALL_LOADERS}
    assert (inside, after, alone) == ({"memtest"}, {"live"}, {"live"})


def test_finding_m1_a_copy_of_a_killed_instance_leaves_a_window_and_does_not_start_it_again(tmp_path: Path) -> None:
    """Its endpoint serves, does not exist, or answers 503."""
    now, port = datetime.now(UTC).replace(microsecond=0), free_port()
    ends = now + timedelta(days=1)
    window = " ".join(f"{each.replace(tzinfo=None).isoformat()}" for each in (now - timedelta(hours=1), ends))
    repository = Repository.create(tmp_path / "git")
    settings = fleet(f"{BASE_URL}, endpoint: 'http://127.0.0.1:{port}', outputs: [ipxe, grub, pxelinux]")
    repository.push({"fleet.yaml": "---\n".join((settings, *LIVE, maintenance("repair", window)))})
    with (
        suppress(_Died),
        running(repository.bare, tmp_path, records="fresh") as instance,
        kill_at_end(instance),
    ):
        eventually(lambda: "memtest" in get(f"{instance.url}{ENTRIES[0]}").text)
    left = Site(tmp_path / "output")
    for folder in ("empty", "down"):
        (tmp_path / folder).mkdir()
    with mirrors(left.root, tmp_path / "copies") as urls:
        for endpoint in ("up", "refused", "503"):
            left.now = now
            found: list[set[str | None]] = []
            with ExitStack() as stack:
                if endpoint == "up":
                    stack.enter_context(left.serve(f"127.0.0.1:{port}", records=False))
                elif endpoint == "503":  # nginx before a tree that is not there
                    stack.enter_context(
                        nginx(tmp_path / "empty", left.root / "ops/serve", tmp_path / "down", port=port)
                    )
                    assert get(f"http://127.0.0.1:{port}{ENTRIES[0]}").status_code == 503
                for left.now in (now, ends, ends + timedelta(days=1), now):  # the last: the clock was set back
                    found.append({boots(url, path) for url in urls for path in ALL_LOADERS})
            inside = "memtest" if endpoint == "up" else "live"
            assert found == [{inside}, {"live"}, {"live"}, {"live"}], endpoint


def list_script_images(*documents: str, now: datetime = START, **more: Any) -> dict[str, str | None]:
    """Return the image that each boot script of web01 boots without a response; "asks " marks scripts that ask."""
    found = plan_fleet(*documents, now=now, **more).servers["web01"].files
    texts = {path.removeprefix("boot"): each.content.decode() for path, each in found.items() if is_script(path)}
    images = {path: re.findall(r"/(?:assets/)?([a-z]+)-\d/", text) for path, text in texts.items()}
    return {
        path: ("asks " if "gitboot.test" in text else "") + (images[path][0] if images[path] else "disk")
        for path, text in texts.items()
    }


def is_script(path: str) -> bool:
    kind = find_path_kind(path)
    return kind is not None and kind.role in (Role.BOOT_SCRIPT, Role.OFFER, Role.PREVIEW)


HTTP: Final = "baseURL: 'http://boot.test', endpoint: 'http://gitboot.test'"
HTTPS: Final = "baseURL: 'http://boot.test', endpoint: 'https://gitboot.test'"
WINDOW: Final = maintenance("repair", "20T22:00 21T04:00")
TO_DISK: Final = (profile("disk", "", method="Disk"), maintenance("park", "20T22:00 21T04:00", boots="disk"))
INSTALLING: Final = (image("flatcar-1"), profile("web", "flatcar-1"), policy("web"))
IPXE, GRUB, PXELINUX = (*ENTRIES, f"/pxelinux.cfg/01-{MAC}")
OUTPUTS: Final = "outputs: [ipxe, grub, pxelinux]"


@pytest.mark.parametrize(
    ("settings", "documents", "expected"),
    [
        (HTTP, (*LIVE, WINDOW), ("asks live", "asks live", "asks live")),
        (HTTPS, (*LIVE, WINDOW), ("live", "live", "live")),
        (f"{HTTPS}, serving: {{ipxeHttps: true}}", (*LIVE, WINDOW), ("asks live", "live", "live")),
        (f"{HTTPS}, serving: {{lateEnds: Accept}}", (*LIVE, WINDOW), ("memtest", "memtest", "memtest")),
        (
            f"{HTTPS}, serving: {{ipxeHttps: true, lateEnds: Accept}}",
            (*LIVE, WINDOW),
            ("asks live", "memtest", "memtest"),
        ),
        ("baseURL: 'http://boot.test'", (*LIVE, WINDOW), ("memtest", "memtest", "memtest")),
        # A maintenance that boots the disk ends, too; and the disk before and after it needs no answer.
        (HTTP, (*LIVE, *TO_DISK), ("asks live", "asks live", "asks live")),
        (HTTP, (*LIVE[:-1], policy("live", boots="live", often="Never"), *TO_DISK), ("disk", "disk", "disk")),
        # A policy that installs boots the disk if there is no response for a maintenance.
        (
            HTTP,
            (*LIVE[:-1], image("flatcar-1"), profile("web", "flatcar-1"), policy("web"), WINDOW),
            ("asks disk",) * 3,
        ),
        # Outside a window there is no request.
        (HTTP, LIVE, ("live", "live", "live")),
    ],
)
def test_a_boot_script_of_a_maintenance_asks_the_endpoint_if_its_loader_can(
    settings: str, documents: tuple[str, ...], expected: tuple[str, str, str]
) -> None:
    found = list_script_images(fleet(f"{settings}, {OUTPUTS}"), *documents)
    assert tuple(found[path] for path in (IPXE, GRUB, PXELINUX)) == expected


# A stop of all boots


ONE_RUN: Final = maintenance("repair", "20T22:00 21T04:00", "run: 1, networkBoot: Once")
MADE: Final = {"web01": Record(runs={"repair": Run(1, at("20T22:05"), at("21T04:00"))})}


@pytest.mark.parametrize(
    "settings", [HTTP, HTTPS, f"{HTTP}, serving: {{lateEnds: Accept}}", "baseURL: 'http://boot.test'"]
)
@pytest.mark.parametrize(
    ("documents", "now"),
    [
        (LIVE, START),
        ((*LIVE, WINDOW), START),
        ((*LIVE, *TO_DISK), START),
        ((*LIVE, maintenance("repair", "20T22:00 -")), START),
        ((*LIVE, TO_DISK[0], maintenance("park", "20T22:00 -", boots="disk")), START),
        ((*LIVE, ONE_RUN), at("20T22:05")),  # its boot was used, and is served again for a minute
        ((*LIVE, ONE_RUN), at("20T22:10")),  # its boot was made, and the disk boots until the window ends
        ((*LIVE[:-1], *INSTALLING, *TO_DISK), START),
    ],
)
def test_while_all_boots_are_stopped_each_boot_script_in_a_copy_boots_the_disk_without_a_request(
    settings: str, documents: tuple[str, ...], now: datetime
) -> None:
    more = {"records": MADE} if ONE_RUN in documents else {}
    found = list_script_images(
        fleet(f"{settings}, {OUTPUTS}", copies=False), *documents, now=now, stop=StopScope.ALL, **more
    )
    assert {found[path] for path in (IPXE, GRUB, PXELINUX)} == {"disk"}


def test_while_install_boots_are_stopped_a_copy_asks_whether_a_window_has_ended() -> None:
    for documents in ((*LIVE, WINDOW), (*LIVE, *TO_DISK)):
        found = list_script_images(fleet(f"{HTTP}, {OUTPUTS}"), *documents, stop=StopScope.WRITING)
        assert {found[path] for path in (IPXE, GRUB, PXELINUX)} == {"asks live"}


def test_finding_m1_while_all_boots_are_stopped_every_copy_boots_the_disk_after_the_window_too(tmp_path: Path) -> None:
    # An instance is killed while the stop is in force. nginx, an rsync mirror, and the program of a mirror go on.
    now = datetime.now(UTC).replace(microsecond=0)
    ends = now + timedelta(hours=8)
    first, second = (
        " ".join(each.replace(tzinfo=None).isoformat() for each in window)
        for window in ((now - timedelta(hours=1), ends), (ends, ends + timedelta(hours=1)))
    )
    repository = Repository.create(tmp_path / "git")
    settings = fleet(f"{BASE_URL}, endpoint: 'http://127.0.0.1:{free_port()}', outputs: [ipxe, grub, pxelinux]")
    documents = (
        *(settings, *LIVE, server("web02", "role: two"), server("web03", "role: memtest"), TO_DISK[0]),
        maintenance("park", first, select="{matchLabels: {role: web}}", boots="disk"),
        maintenance("first", first, select="{matchLabels: {role: two}}", boots="disk"),
        maintenance("second", second, select="{matchLabels: {role: two}}", boots="disk"),
        maintenance("repair", first, select="{matchLabels: {role: memtest}}"),
    )
    repository.push({"fleet.yaml": "---\n".join(documents)})
    state, output, keys = tmp_path / "state", tmp_path / "output", make_keys(tmp_path / "keys", now)
    paths = [path.replace(MAC, dashed_mac(name)) for name in ("web01", "web02", "web03") for path in MAC_LOADERS]
    before = set[str | None]()
    with (
        suppress(_Died),
        running(repository.bare, tmp_path, records="fresh", environment={"GITBOOT_LIST_KEYS": str(keys)}) as instance,
        kill_at_end(instance),
    ):
        with mirrors(output, tmp_path / "before") as urls:
            before |= {boots(url, path) for url in urls for path in paths}
        stopped = run_forked("stop-installs", "--all-boots", "--reason", "INC-4711", "--state", state)
        assert stopped.returncode == 0, stopped.stderr
        entry = output / f"boot/v1/boot/{dashed_mac('web03')}/boot.ipxe"
        eventually(lambda: "all boots from the network are stopped" in entry.read_text())
        assert run_forked("reconcile", "--state", state).returncode == 0  # the stop is published, with a list
    found: list[set[str | None]] = []
    with mirrors(output, tmp_path / "copies") as urls:
        found.append({boots(url, path) for url in urls for path in paths})
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    arguments = ["--from", f"{output}/boot", "--to", str(mirror), "--key", f"{keys}/root.pub"]
    arguments += ["--state", str(tmp_path / "mirror-state")]
    with nginx(mirror, output / "ops/serve", tmp_path) as served:
        for time in (now, ends, ends + timedelta(hours=2)):
            assert run_mirror_program(time, arguments) == 0
            found.append({boots(served.url, path) for path in paths})
    assert (before, found) == ({"live"}, [{None}] * 4)


def test_a_copy_from_before_a_stop_of_all_boots_boots_the_disk_by_the_response_of_the_endpoint(
    tmp_path: Path,
) -> None:
    with site(None) as publisher, publisher.serve() as endpoint:
        settings = f"baseURL: 'http://boot.test', endpoint: '{endpoint}', {OUTPUTS}"
        publisher.now = START
        publisher.publish(plan_fleet(fleet(settings), *LIVE, WINDOW, now=START), at=START)
        with mirrors(publisher.root, tmp_path) as urls:
            write_stop_file(publisher.root / "ops", StopOrder("ada", "a flood", everything=True), START)
            eventually(lambda: "are stopped" in get(f"{endpoint}{ENTRIES[0]}").text)
            assert {boots(url, path) for url in urls for path in ALL_LOADERS} == {None}


MAC_LOADERS: Final = (*ENTRIES, f"/grub.cfg-01-{MAC}", f"/pxelinux.cfg/01-{MAC}")


def run_mirror_program(now: datetime, arguments: list[str]) -> int:
    return mirror_program.main(arguments, clock=lambda: now)


def dashed_mac(name: str) -> str:
    return make_mac(name).replace(":", "-")


@pytest.mark.parametrize(("accepted", "expected"), [("", "live"), (", lateEnds: Accept", None)])
def test_a_copy_has_no_disk_maintenance_if_its_server_finds_no_boot_script_for_the_disk(
    accepted: str, expected: str | None
) -> None:
    # The endpoint sends a 404 for such a server, which a boot script cannot distinguish from an endpoint that is down.
    settings = f"{HTTP}, unknownServers: NotFound, serving: {{restrict: true{accepted}}}, {OUTPUTS}"
    found = list_script_images(fleet(settings), *LIVE, *TO_DISK)
    assert {found.get(path) for path in (IPXE, GRUB, PXELINUX)} == {expected}


UKI: Final = (
    server("web01", "role: web"),
    image("live-1", "writesDisk: false", "uki"),
    image("memtest-7", "writesDisk: false", "uki, kernel, loader"),
    profile("live", "live-1", "httpBoot: uki", method="UefiHttp"),
    policy("live", boots="live"),
    WINDOW,
)
OFFER: Final = f"/httpboot/{make_uuid('web01')}.json"


@pytest.mark.parametrize(
    ("settings", "http_boot", "expected"),
    [
        (HTTP, "uki", "live"),  # firmware fetches one file, and sends no other request
        (f"{HTTP}, serving: {{lateEnds: Accept}}", "uki", "memtest"),
        (HTTP, "loader", "memtest"),  # the loader asks with its boot script
    ],
)
def test_a_file_that_firmware_fetches_itself_is_omitted_during_a_maintenance(
    settings: str, http_boot: str, expected: str
) -> None:
    repair = profile("repair", "memtest-7", f"httpBoot: {http_boot}", method="UefiHttp")
    assert list_script_images(fleet(settings), *UKI, repair)[OFFER] == expected


def test_user_data_that_a_machine_requests_by_its_uuid_is_that_of_the_policy() -> None:
    by_uuid = "userData: Ignition/3.4, configFrom: SystemUUID, writesDisk: false"
    data = "httpBoot: uki, userData: {{format: Ignition/3.4, template: {name}}}"
    templates = {name: f'{{"ignition": {{"version": "3.4.0"}}, "x": "{name}"}}' for name in ("live", "repair")}
    documents = (
        server("web01", "role: web"),
        *(image(name, by_uuid, "uki") for name in ("live-1", "memtest-7")),
        profile("live", "live-1", data.format(name="live"), method="UefiHttp"),
        profile("repair", "memtest-7", data.format(name="repair"), method="UefiHttp"),
        policy("live", boots="live"),
        WINDOW,
    )
    for settings, expected in ((HTTP, "live"), (f"{HTTP}, serving: {{lateEnds: Accept}}", "repair")):
        files = plan_fleet(fleet(settings), *documents, now=START, templates=templates).servers["web01"].files
        assert f'"x": "{expected}"' in files[f"boot/ignition/{make_uuid('web01')}"].content.decode()
        boots_image = {"live": "live-1", "repair": "memtest-7"}[expected]
        assert boots_image in files[f"boot{IPXE}"].content.decode(), "a script that asks would boot what finds no data"


@pytest.mark.parametrize("settings", ["baseURL: 'http://boot.test'", HTTP])
def test_user_data_of_a_one_time_boot_is_not_in_a_copy_if_the_boot_of_the_policy_requests_its_own(
    settings: str,
) -> None:
    by_uuid = "userData: Ignition/3.4, configFrom: SystemUUID"
    data = "httpBoot: uki, userData: {{format: Ignition/3.4, template: {name}}}"
    documents = (
        server("web01", "role: web"),
        image("live-1", f"{by_uuid}, writesDisk: false", "uki"),
        image("installer-2", by_uuid, "uki"),
        profile("live", "live-1", data.format(name="live"), method="UefiHttp"),
        profile("repair", "installer-2", data.format(name="repair"), method="UefiHttp"),
        policy("live", boots="live"),
        maintenance("repair", "20T22:00 21T04:00", "run: 1, networkBoot: Once"),
    )
    templates = {name: f'{{"ignition": {{"version": "3.4.0"}}, "x": "{name}"}}' for name in ("live", "repair")}
    made = plan_fleet(fleet(settings, copies=False), *documents, now=START, templates=templates).servers["web01"]
    assert any("installer-2" in text for text in made.published.contents.values()), "the endpoint has the one-time boot"
    assert '"x": "live"' in made.files[f"boot/ignition/{make_uuid('web01')}"].content.decode()
    script = made.files[f"boot{IPXE}"].content.decode()
    assert "live-1" in script and "gitboot-asked" not in script


@pytest.mark.parametrize(
    "settings", [HTTP, HTTPS, f"{HTTPS}, serving: {{ipxeHttps: true}}", f"{HTTP}, serving: {{lateEnds: Accept}}"]
)
@pytest.mark.parametrize("window", ["20T22:00 21T04:00", "20T22:00 -"], ids=["with an end", "without an end"])
def test_finding_m1_the_response_of_an_endpoint_does_not_depend_on_the_setting_of_copies(
    settings: str, window: str
) -> None:
    # The digests of plans, the turns and the contents. The files of copies, and the decision, differ.
    documents = (*LIVE, maintenance("repair", window))
    for now in (BEFORE, START, END, at("21T23:00")):
        asking, plain = (
            plan_fleet(fleet(f"{each}, {OUTPUTS}", copies=False), *documents, now=now).servers["web01"]
            for each in (settings, "baseURL: 'http://boot.test'")
        )
        assert (list_digests(asking), asking.published.paths) == (list_digests(plain), plain.published.paths)
        assert asking.published.contents == plain.published.contents


def list_digests(state: RenderedState) -> list[tuple[datetime | None, str | None]]:
    return [(since, each.digest if each is not None else None) for since, each in ((None, state.plan), *state.later)]


def test_the_setting_of_copies_is_in_a_decision_only_if_it_differs_from_the_default() -> None:
    decisions = [decided(fleet(copies=copies), *LIVE, WINDOW).servers["web01"] for copies in (True, False)]
    assert "copies" in to_json_value(decisions[0])
    assert "copies" not in to_json_value(decisions[1])


@pytest.mark.parametrize(
    ("settings", "maintenances", "expected"),
    [
        (HTTP, (), "asks disk"),
        (f"{HTTP}, serving: {{oneTimeBoots: Copies}}", (), "flatcar"),
        ("baseURL: 'http://boot.test', serving: {oneTimeBoots: Copies}", (), "flatcar"),
        ("baseURL: 'http://boot.test', serving: {oneTimeBoots: EndpointOnly}", (), "disk"),
        # The run of a maintenance ends with its window.
        (f"{HTTP}, serving: {{oneTimeBoots: Copies}}", ("run",), "asks disk"),
        (f"{HTTPS}, serving: {{oneTimeBoots: Copies}}", ("run",), "disk"),
        (f"{HTTPS}, serving: {{oneTimeBoots: Copies, lateEnds: Accept}}", ("run",), "flatcar"),
        (f"{HTTPS}, serving: {{lateEnds: Accept}}", ("run",), "asks disk"),
    ],
)
def test_finding_m2_a_copy_has_a_one_time_boot_only_if_the_fleet_accepts_it(
    settings: str, maintenances: tuple[str, ...], expected: str
) -> None:
    run = maintenance("wipe", "20T22:00 21T04:00", "networkBoot: Once", boots="web")
    documents = (server("web01", spec="provision: 1"), *POOL[:1], *POOL[2:])
    found = plan_fleet(fleet(settings), *documents, *(run for _ in maintenances), now=START).servers["web01"]
    assert find_script_image(found, IPXE) == expected
    assert {each.once for turns in found.published.paths.values() if (each := turns[0].writes)} == {True}


def find_script_image(state: RenderedState, path: str) -> str:
    text = state.files[f"boot{path}"].content.decode()
    images = re.findall(r"/(?:assets/)?([a-z]+)-\d/", text)
    return ("asks " if "gitboot.test" in text else "") + (images[0] if images else "disk")


@pytest.mark.parametrize("settings", [HTTP, f"{HTTP}, serving: {{oneTimeBoots: Copies}}"])
def test_an_endpoint_that_cannot_record_redirects_to_the_endpoint_of_the_fleet(settings: str) -> None:
    # `serve` without a fetch log.
    fleet_of = plan_fleet(fleet(settings), server("web01", spec="provision: 1"), *POOL, now=START)
    with site(fleet_of) as here, here.serve(records=False) as url:
        assert "http://gitboot.test/v1/boot/" in get(f"{url}{ENTRIES[0]}").text
        assert not serves_installation(url, f"{ENTRIES[0]}?hop=1"), "a machine that was sent here is sent no further"


@pytest.mark.parametrize("accepted", ["EndpointOnly", "Copies"])
def test_an_endpoint_that_cannot_record_serves_the_fallback_if_the_fleet_names_none(accepted: str) -> None:
    settings = f"baseURL: 'http://boot.test', serving: {{oneTimeBoots: {accepted}}}"
    with site(plan_fleet(fleet(settings), server("web01", spec="provision: 1"), *POOL, now=START)) as here:
        with here.serve(records=False) as url:
            assert not any(serves_installation(url, path) for path in ENTRIES)
        with here.serve() as url:
            assert all(serves_installation(url, path) for path in ENTRIES)


NOON: Final = at("20T12:00")
LOOKUPS: Final = tuple(kind for kind in paths.TABLE if kind.role is Role.BOOT_SCRIPT)
LOOKUP_OUTPUTS: Final = ", ".join(sorted({kind.enabled_by for kind in LOOKUPS if kind.enabled_by is not None}))
UNKNOWN: Final = ("LocalDisk", "NotFound", "{profile: look}")

# Each state: the Fleet and the Server document, how often the policy boots, a maintenance.
STATES: Final = {
    "it boots from the network": ("", "", "Always", ()),
    "it is to be installed": ("", "provision: 1", "Once", ()),
    "it boots its disk": ("", "", "Never", ()),
    "it boots its disk, restricted": ("serving: {restrict: true}", "", "Never", ()),
    "it has no script to its disk": ("", "localDisk: NotFound", "Never", ()),
    "its make has no script to its disk": ("hardware: [{select: All, localDisk: NotFound}]", "", "Never", ()),
    "it leaves for its disk at once": ("", "localDisk: Exit", "Never", ()),
    "a maintenance boots its disk": (
        "serving: {restrict: true}",
        "",
        "Always",
        (maintenance("park", "20T10:00 20T14:00", boots="to-disk"),),
    ),
    "parked": ("", "lifecycle: Parked", "Always", ()),
    "parked, restricted": ("serving: {restrict: true}", "lifecycle: Parked", "Always", ()),
    "parked, without a script to its disk": ("", "lifecycle: Parked, localDisk: NotFound", "Always", ()),
    "retired": ("", "lifecycle: Retired", "Always", ()),
    "no policy selects it": ("requirePolicy: false", "", "", ()),
    "no policy selects it, restricted": ("requirePolicy: false, serving: {restrict: true}", "", "", ()),
}


def list_answers(state: str, unknown: str) -> dict[PathKind, str]:
    fleet_spec, server_spec, often, more = STATES[state]
    spec = f"baseURL: 'http://boot.test', outputs: [{LOOKUP_OUTPUTS}], unknownServers: {unknown}"
    decisions = decided(
        fleet(", ".join(filter(None, (spec, fleet_spec)))),
        server("web01", "role: web", ", ".join(filter(None, ("serial: 4J8VM72", server_spec)))),
        image("flatcar-1"),
        image("look-1", "writesDisk: false"),
        profile("web", "flatcar-1"),
        profile("look", "look-1"),
        profile("to-disk", "flatcar-1", method="Disk"),
        *([policy("web", often=often)] if often else []),
        *more,
    )
    decision = decisions.servers["web01"]
    found: dict[PathKind, str] = dict.fromkeys(LOOKUPS, "404")
    for path, file in render_server_files(decisions, decision, make_plan(decision, NOON, Record())).items():
        kind = find_path_kind(path)
        if kind is not None and kind.role is Role.BOOT_SCRIPT:
            found[kind] = "its boot" if b"boots flatcar-1" in file.content else "its disk"
    return found


def test_each_renderer_of_boot_scripts_is_a_lookup_of_this_table() -> None:
    assert {kind for kind, _ in RENDERERS if kind.role is Role.BOOT_SCRIPT} <= set(LOOKUPS)
    assert {kind.enabled_by for kind in LOOKUPS} <= set(Output)


def test_each_boot_script_has_a_loader_that_can_boot_the_disk() -> None:
    found = {kind.template: render_disk_boot(kind.template, "web01", "stopped") for kind in LOOKUPS}
    assert [text for text, script in found.items() if script is None] == []
    assert {find_loader(text) for text in found} == set(ScriptLoader)


@pytest.mark.parametrize("unknown", UNKNOWN)
@pytest.mark.parametrize("state", STATES)
def test_finding_r16_a_state_has_one_response_by_each_lookup(state: str, unknown: str) -> None:
    found = list_answers(state, unknown)
    assert len(set(found.values())) == 1, found


@pytest.mark.parametrize("state", STATES)
def test_finding_r16_a_known_machine_gets_a_404_only_if_unknown_machines_do(state: str) -> None:
    for unknown in UNKNOWN:
        says = set(list_answers(state, unknown).values())
        assert "404" not in says or unknown == "NotFound", f"it would boot what unknown machines boot: {unknown}"


def test_finding_r16_a_restricted_server_gets_a_404_if_unknown_machines_do() -> None:
    for state in ("it boots its disk, restricted", "it has no script to its disk", "parked, restricted"):
        assert set(list_answers(state, "NotFound").values()) == {"404"}, state
        assert set(list_answers(state, "LocalDisk").values()) == {"its disk"}, state


@pytest.mark.parametrize(("unknown", "answered"), [("NotFound", "404"), ("LocalDisk", "its disk")])
def test_finding_r16_an_interface_that_may_not_boot_gets_the_same_responses(unknown: str, answered: str) -> None:
    serving = "serving: {restrict: true}"
    spec = f"baseURL: 'http://boot.test', outputs: [{LOOKUP_OUTPUTS}], unknownServers: {unknown}, {serving}"
    decisions = decided(
        fleet(spec), server("web01", "role: web"), image("flatcar-1"), profile("web", "flatcar-1"), policy("web")
    )
    found = render_idle_files(decisions.outputs, decisions.servers["web01"], (parse_mac("52:54:00:00:00:01"),))
    assert bool(found) == (answered == "its disk")
