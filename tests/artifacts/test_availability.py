"""Artifacts that a fleet names, and boots by artifacts that are not there; with real servers and real BMCs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gitboot.artifacts.availability import (
    FileSigner,
    Presence,
    Sighting,
    ThreadedArtifactWatch,
    is_withheld,
    keep_known_state,
    list_artifacts,
)
from gitboot.bmc.override_state import OverrideState
from gitboot.controller.instance.assembly import read_sightings, watch_artifacts
from gitboot.controller.instance.settings import ArtifactSettings, CheckAssets, GitSettings, Settings
from gitboot.disk_cache import DiskCache
from gitboot.jsonio import Digest
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store
from gitboot.render.paths import Role
from gitboot.resolve.server_decision import BootFile, FileProof
from gitboot.resolve.server_plan import BootPlan, Cause, Phase
from tests.controller.bmcs.test_schedule import MakeSite, make_site
from tests.helpers.artifact_servers import ArtifactServer, artifact_server, compute_digest
from tests.helpers.cases import for_each, require_value
from tests.helpers.fleets import (
    SEED,
    SHA,
    at,
    decided,
    decision,
    document,
    fleet,
    image,
    maintenance,
    policy,
    profile,
    server,
    write_configuration,
)
from tests.helpers.git_repositories import free_port
from tests.helpers.instance_in_process import Bench, Unsynced
from tests.helpers.instance_with_bmcs import Rack, boots, condition, wait_for_condition
from tests.helpers.running_instance import eventually

ALL_FILES = "kernel, initrd, rootfs, uki, iso, loader"
BASE = "http://boot.test/assets/x-1/"


@for_each(
    ("case", "method", "spec", "artifacts", "fetched"),
    [
        ("a kernel by a loader", "Pxe", "", ALL_FILES, {"kernel", "initrd"}),
        ("a uki by a loader", "Pxe", "", "uki, iso", {"uki"}),
        ("firmware fetches the uki", "UefiHttp", "httpBoot: uki", ALL_FILES, {"uki"}),
        ("firmware fetches the iso", "UefiHttp", "httpBoot: iso", ALL_FILES, {"iso"}),
        ("firmware fetches a loader", "UefiHttp", "httpBoot: loader", ALL_FILES, {"loader", "kernel", "initrd"}),
        (
            "an argument names a file",
            "Pxe",
            "kernelArguments: ['root=live:{{ image.artifacts.rootfs.url }}']",
            ALL_FILES,
            {"kernel", "initrd", "rootfs"},
        ),
        (
            "user data names a file",
            "Pxe",
            "userData: {format: Kickstart, template: t}",
            ALL_FILES,
            {"kernel", "initrd", "rootfs"},
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
)
def test_a_boot_fetches_its_kernel_and_the_files_in_its_arguments(
    case: str, method: str, spec: str, artifacts: str, fetched: set[str]
) -> None:
    documents = (
        fleet(),
        server("web01"),
        image("x-1", "userData: Kickstart", artifacts),
        profile("web", "x-1", spec, method=method),
        policy("web"),
    )
    (boot,) = decision("web01", *documents, files={"t": f"liveimg --url={BASE}rootfs\n"}).boots
    assert {each.url for each in boot.fetched_files} == {f"{BASE}{name}" for name in fetched}


def test_an_artifact_of_several_servers_is_listed_once() -> None:
    named = list_artifacts(decided(*SEED, server("web02", "role: web")), {"web02": "fra"})
    assert [(each.images, each.sites, each.servers) for each in named] == [(("flatcar-1",), ("", "fra"), 2)] * 2


def test_unknown_machines_need_artifacts_too() -> None:
    documents = (
        fleet("baseURL: 'http://boot.test', unknownServers: {profile: discovery}"),
        image("x-1", "writesDisk: false"),
        profile("discovery", "x-1"),
    )
    found = list_artifacts(decided(*documents), {})
    assert [(each.file.url, each.servers) for each in found] == [(f"{BASE}initrd", 0), (f"{BASE}kernel", 0)]


__all__ = ["make_site"]  # a fixture

ASSETS = "http://boot.test/assets"
ABSENT = Sighting(presence=Presence.MISSING, message="boot.test returned 404")
WRONG = Sighting(presence=Presence.WRONG, message="the file is 3 bytes long, but the image specifies 4")
SILENT = Sighting(presence=Presence.UNKNOWN, message="boot.test: no answer")
AVAILABLE = Sighting(presence=Presence.FOUND)


@dataclass
class FakeWatch:
    sightings: Mapping[BootFile, Sighting] = field(default_factory=dict)
    wanted: Collection[BootFile] = ()
    late: Mapping[BootFile, Sighting] | None = None  # a fault that only its waiters see

    def watch_files(self, files: Collection[BootFile], base_urls: tuple[str, ...]) -> None:
        self.wanted = files

    def get_sightings(self) -> Mapping[BootFile, Sighting]:
        return self.sightings

    def wait(self) -> None:
        if self.late is not None:
            self.sightings, self.late = self.late, None

    def see(self, what: Sighting, *names: str) -> None:
        files = {BootFile(url=f"{ASSETS}/{name}", sha256=SHA, size=None): what for name in names}  # type: ignore[arg-type]
        self.sightings = {**self.sightings, **files}


KERNEL = "flatcar-1/kernel"
ONCE = (SEED[0], server("web01", "role: web", "provision: 1"), *SEED[2:6], policy("web", often="Once"))


@pytest.fixture
def told() -> FakeWatch:
    return FakeWatch()


@pytest.fixture
def bench(tmp_path: Path, told: FakeWatch) -> Iterator[Bench]:
    with Bench(tmp_path, artifacts=told) as bench:
        yield bench


def summarize_plan(planned: BootPlan | None) -> tuple[Phase, Cause, str | None]:
    assert planned is not None
    return planned.phase, planned.cause, planned.boot.image if planned.boot is not None else None


DISK = (Phase.DISK, Cause.FILE_MISSING, None)
OFFERED = (Phase.NETWORK, Cause.PENDING, "flatcar-1")


@pytest.mark.parametrize(
    ("case", "seen", "name", "expected"),
    [
        ("no result of it", None, KERNEL, OFFERED),
        ("no server responds", SILENT, KERNEL, OFFERED),
        ("it is there", AVAILABLE, KERNEL, OFFERED),
        ("there is no file", ABSENT, KERNEL, DISK),
        ("a file with another digest", WRONG, KERNEL, DISK),
        ("an initrd of it", ABSENT, "flatcar-1/initrd", DISK),
        ("a file of another image", ABSENT, "memtest-7/kernel", OFFERED),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
)
def test_only_an_artifact_that_is_certainly_absent_withholds_a_boot(
    bench: Bench,
    told: FakeWatch,
    case: str,
    seen: Sighting | None,
    name: str,
    expected: tuple[Phase, Cause, str | None],
) -> None:
    if seen is not None:
        told.see(seen, name)
    assert summarize_plan(bench.decide(*ONCE).reconcile()) == expected
    state = bench.rendered["web01"]
    turn = next(turns for path, turns in state.published.paths.items() if path.endswith("boot.ipxe"))[0]
    assert (turn.writes is not None) == (expected == OFFERED)


def test_a_boot_is_offered_when_its_artifact_appears_and_each_change_is_one_event(
    bench: Bench, told: FakeWatch
) -> None:
    bench.decide(*ONCE)
    told.see(ABSENT, KERNEL)
    for _ in range(2):
        assert summarize_plan(bench.reconcile()) == DISK
    status, reason, message = bench.condition("ArtifactsPresent") or (None, "", "")
    assert (status, reason) == (False, "Missing")
    assert f"BootImage/flatcar-1 for 1 server ({ASSETS}/{KERNEL}: boot.test returned 404)" in message
    told.see(AVAILABLE, KERNEL)
    for _ in range(2):
        assert summarize_plan(bench.reconcile()) == OFFERED
    assert bench.told("ArtifactMissing", "ArtifactFound", "ArtifactsMissing") == [
        "ArtifactMissing",
        "ArtifactsMissing",
        "ArtifactFound",
    ]
    assert bench.condition("ArtifactsPresent") == (True, "Present", "no artifact is missing")
    record = bench.record
    assert record is not None and not record.attempts


def test_only_needed_artifacts_are_checked(bench: Bench, told: FakeWatch) -> None:
    bench.decide(*ONCE).reconcile()
    assert {each.url for each in told.wanted} == {f"{ASSETS}/flatcar-1/{name}" for name in ("kernel", "initrd")}
    bench.decide(*ONCE, maintenance("check", "20T22:00 21T04:00")).reconcile()
    names = ("flatcar-1/kernel", "flatcar-1/initrd", "memtest-7/kernel", "memtest-7/initrd")
    assert {each.url for each in told.wanted} == {f"{ASSETS}/{name}" for name in names}
    bench.decide(*SEED[:1], policy("web", "None"), *SEED[2:6]).reconcile()
    assert told.wanted == frozenset()


def test_other_servers_continue_and_the_servers_of_a_missing_file_are_counted(bench: Bench, told: FakeWatch) -> None:
    blue = [server(f"blue{number}", "role: blue", "provision: 1") for number in range(3)]
    more = (
        image("flatcar-2"),
        profile("blue", "flatcar-2"),
        policy("blue", "{matchLabels: {role: blue}}", boots="blue"),
    )
    bench.decide(SEED[0], *ONCE[1:-1], policy("web", "{matchLabels: {role: web}}", often="Once"), *blue, *more)
    told.see(ABSENT, "flatcar-2/kernel")
    bench.reconcile()
    found = {name: summarize_plan(state.plan)[1] for name, state in bench.servers.items()}
    assert found == {"web01": Cause.PENDING, **{f"blue{number}": Cause.FILE_MISSING for number in range(3)}}
    assert "BootImage/flatcar-2 for 3 servers" in (bench.condition("ArtifactsPresent") or ("", "", ""))[2]


def test_a_maintenance_with_a_missing_artifact_is_replaced_by_a_boot_that_writes_no_disk(
    bench: Bench, told: FakeWatch
) -> None:
    diskless = (
        *(fleet(), server("web01", "role: web"), image("live-1", "writesDisk: false"), image("memtest-7")),
        *(profile("web", "live-1"), profile("repair", "memtest-7"), policy("web")),
        maintenance("repair", "20T11:00 20T14:00", "networkBoot: Once, run: 1"),
    )
    assert summarize_plan(bench.decide(*diskless).reconcile()) == (Phase.MAINTENANCE, Cause.MAINTENANCE, "memtest-7")
    told.see(ABSENT, "memtest-7/kernel")
    assert summarize_plan(bench.reconcile()) == (Phase.NETWORK, Cause.FILE_MISSING, "live-1")
    told.see(ABSENT, "live-1/initrd")
    assert summarize_plan(bench.reconcile()) == DISK
    bench.now = at("20T14:00")
    assert summarize_plan(bench.reconcile()) == DISK  # the policy's own boot is absent as well
    told.see(AVAILABLE, "live-1/initrd")
    assert summarize_plan(bench.reconcile()) == (Phase.NETWORK, Cause.ALWAYS, "live-1")


DISKLESS = (
    *(fleet(), server("web01", "role: web"), image("live-1", "writesDisk: false"), image("install-1")),
    *(image("memtest-7", "writesDisk: false"), profile("web", "live-1"), profile("install", "install-1")),
    *(profile("repair", "memtest-7"), policy("web")),
)


def test_a_fallback_with_a_missing_artifact_is_not_served(bench: Bench, told: FakeWatch) -> None:
    bench.decide(*DISKLESS, maintenance("install", "20T11:00 20T14:00", "networkBoot: Once, run: 1", boots="install"))

    def instead() -> str:
        bench.reconcile()
        found = bench.rendered["web01"].published
        writes = found.paths[next(path for path in found.paths if path.endswith("boot.ipxe"))][0].writes
        assert writes is not None and writes.fallback is not None
        return found.contents[writes.fallback]

    assert "live-1" in instead()
    told.see(ABSENT, "live-1/kernel")
    assert "live-1" not in instead()


def test_a_boot_with_a_missing_artifact_is_withheld_while_the_instance_is_down(bench: Bench, told: FakeWatch) -> None:
    bench.decide(*DISKLESS, maintenance("repair"))

    def unheard() -> tuple[Phase, Cause, str | None]:
        bench.reconcile()
        return summarize_plan(bench.rendered["web01"].later[-1][1])

    assert unheard() == (Phase.NETWORK, Cause.INSTANCE_SILENT, "live-1")
    told.see(ABSENT, "live-1/kernel")
    assert unheard() == (Phase.DISK, Cause.INSTANCE_SILENT, None)


def test_a_later_window_with_a_missing_artifact_is_not_published_ahead(bench: Bench, told: FakeWatch) -> None:
    bench.decide(*SEED, maintenance("repair", "20T22:00 21T04:00"))
    told.see(ABSENT, "memtest-7/kernel")
    bench.reconcile()
    later = [summarize_plan(planned) for _, planned in bench.rendered["web01"].later]
    assert all(cause is not Cause.MAINTENANCE for _, cause, _ in later), later
    told.see(AVAILABLE, "memtest-7/kernel")
    bench.reconcile()
    assert summarize_plan(bench.rendered["web01"].later[0][1]) == (Phase.MAINTENANCE, Cause.MAINTENANCE, "memtest-7")


def test_a_boot_that_was_served_is_served_again_on_a_retry(bench: Bench, told: FakeWatch) -> None:
    # A second NIC, or GRUB after iPXE, is the same boot: it is under way.
    bench.decide(*ONCE)
    bench.fetch(bench.reconcile())
    told.see(ABSENT, KERNEL)
    assert summarize_plan(bench.wait(seconds=10).reconcile()) == OFFERED
    planned = bench.wait(seconds=60).reconcile()
    assert planned is not None and planned.boot is None
    assert planned.cause is not Cause.FILE_MISSING  # the boot that was started keeps its name


def test_the_next_boot_of_an_installer_that_boots_twice_waits_for_its_files(bench: Bench, told: FakeWatch) -> None:
    bench.decide(*ONCE[:2], image("flatcar-1", "boots: 2"), *ONCE[3:])
    bench.fetch(bench.reconcile())
    assert summarize_plan(bench.wait(minutes=5).reconcile()) == OFFERED
    told.see(ABSENT, KERNEL)
    assert summarize_plan(bench.reconcile()) == DISK
    told.see(AVAILABLE, KERNEL)
    planned = bench.reconcile()
    assert summarize_plan(planned) == OFFERED
    assert planned is not None and planned.key == "provision/1/boot/2"


def test_unknown_machines_boot_their_disk_until_the_missing_artifact_appears(bench: Bench, told: FakeWatch) -> None:
    bench.decide(fleet("baseURL: 'http://boot.test', unknownServers: {profile: repair}"), *ONCE[1:])
    told.see(ABSENT, "memtest-7/kernel")

    def unknown() -> str:
        return require_value(bench.target.shared)["boot/unknown.ipxe"].content.decode()

    bench.reconcile()
    assert "memtest-7" not in unknown()
    assert "BootImage/memtest-7 for unknown machines" in (bench.condition("ArtifactsPresent") or ("", "", ""))[2]
    assert summarize_plan(bench.rendered["web01"].plan) == OFFERED
    told.see(AVAILABLE, "memtest-7/kernel")
    bench.reconcile()
    assert "memtest-7" in unknown()


MIRRORING = (
    fleet("baseURL: 'http://boot.test', outputs: [ipxe, grub, mirror]"),
    ONCE[1],
    image("flatcar-1").replace("assets:", "https://vendor.test/"),
    *ONCE[3:],
)


def test_a_boot_of_a_mirrored_artifact_is_offered_after_a_check_finds_it(bench: Bench, told: FakeWatch) -> None:
    assert summarize_plan(bench.decide(*MIRRORING).reconcile()) == DISK
    assert "gitboot has not checked this file yet" in (bench.condition("ArtifactsPresent") or ("", "", ""))[2]
    assert {each.url for each in told.wanted} == {f"http://boot.test/o/{SHA}/{name}" for name in ("kernel", "initrd")}
    told.sightings = dict.fromkeys(told.wanted, SILENT)
    assert summarize_plan(bench.reconcile()) == DISK
    told.sightings = dict.fromkeys(told.wanted, AVAILABLE)
    assert summarize_plan(bench.reconcile()) == OFFERED


def test_a_boot_is_withheld_while_a_signature_that_ipxe_fetches_is_missing(bench: Bench, told: FakeWatch) -> None:
    signed = ONCE[2].replace(f"{SHA}}}", f"{SHA}, loaderSignature: 'assets:flatcar-1/any.sig'}}")
    documents = (*ONCE[:2], signed, *ONCE[3:])
    assert summarize_plan(bench.decide(*documents).reconcile()) == OFFERED
    signature = BootFile(url=f"{ASSETS}/flatcar-1/any.sig", sha256=None, size=None)
    assert signature in told.wanted
    told.sightings = {signature: ABSENT}
    assert summarize_plan(bench.reconcile()) == DISK
    assert f"{signature.url}: boot.test returned 404" in (bench.condition("ArtifactsPresent") or ("", "", ""))[2]
    told.sightings = {signature: AVAILABLE}
    assert summarize_plan(bench.reconcile()) == OFFERED


def test_without_scripts_for_ipxe_a_missing_signature_withholds_no_boot(bench: Bench, told: FakeWatch) -> None:
    signed = ONCE[2].replace(f"{SHA}}}", f"{SHA}, loaderSignature: 'assets:flatcar-1/any.sig'}}")
    signature = BootFile(url=f"{ASSETS}/flatcar-1/any.sig", sha256=None, size=None)
    told.sightings = {signature: ABSENT}
    for outputs, expected in (("ipxe", DISK), ("grub", OFFERED), ("pxelinux", OFFERED), ("grub, smee", DISK)):
        settings = fleet(f"baseURL: 'http://boot.test', outputs: [{outputs}]")
        assert summarize_plan(bench.decide(settings, ONCE[1], signed, *ONCE[3:]).reconcile()) == expected, outputs
        assert (signature in told.wanted) is (expected == DISK)


@for_each(
    ("case", "spec", "method", "expected"),
    [
        ("iPXE", "", "Pxe", DISK),
        ("GRUB", "loader: GRUB", "Pxe", OFFERED),
        ("Shim", "loader: Shim", "Pxe", OFFERED),
        ("Secure Boot", "secureBoot: true", "Pxe", OFFERED),
        ("Secure Boot with a signed iPXE", "secureBoot: true, loader: iPXE", "Pxe", DISK),
        ("a loader of the image, which may be an iPXE", "loader: GRUB", "UefiHttp", DISK),
    ],
)
def test_a_missing_signature_withholds_only_the_scripts_of_ipxe_if_grub_boots_the_server(
    tmp_path: Path, case: str, spec: str, method: str, expected: tuple[Phase, Cause, str | None]
) -> None:
    signed = image("flatcar-1", "", "kernel, initrd").replace(f"{SHA}}}", f"{SHA}, loaderSignature: 'assets:any.sig'}}")
    loader = f", loader: {{url: 'assets:flatcar-1/loader', sha256: {SHA}}}}}}}"
    signed = signed.replace("]}}", f"]{loader}")
    by = profile("web", "flatcar-1", "httpBoot: loader" if method == "UefiHttp" else "", method=method)
    signature = BootFile(url=f"{ASSETS}/any.sig", sha256=None, size=None)
    told, folder = FakeWatch({signature: ABSENT}), tmp_path / case
    folder.mkdir()
    with Bench(folder, artifacts=told) as bench:
        settings = fleet("baseURL: 'http://boot.test', outputs: [ipxe, grub, serial, smee, netboot.xyz, uuid]")
        one = server("web01", "role: web", f"provision: 1, serial: CZ29200XYZ{spec and ', '}{spec}")
        bench.decide(settings, one, signed, *ONCE[3:4], by, *ONCE[5:])
        assert summarize_plan(bench.reconcile()) == expected, case
        scripts = find_boot_scripts(bench)
        assert {path for path, writes in scripts.items() if writes and "ipxe" in path} == set()
        assert any(writes for path, writes in scripts.items() if "grub" in path) is (expected == OFFERED)
        told.sightings = {signature: AVAILABLE}
        bench.reconcile()
        assert all(find_boot_scripts(bench).values()) and len(scripts) > 5, case


def find_boot_scripts(bench: Bench) -> dict[str, bool]:
    """Return the paths of the boot scripts of web01, and whether each of them boots the image.

    A script that boots the image is evidence, and a script that boots the disk is not.
    """
    published, found = bench.rendered["web01"].published, {}
    for path, (version, *_) in published.paths.items():
        if version.role is Role.BOOT_SCRIPT:
            text = published.contents[require_value(version.content)]
            found[path] = "flatcar-1/kernel" in text
            assert (version.writes is not None, version.digest is not None) == (found[path], found[path]), path
    return found


SIGNED = ONCE[2].replace(f"{SHA}}}", f"{SHA}, loaderSignature: 'assets:any.sig'}}")
SIGNATURE = BootFile(url=f"{ASSETS}/any.sig", sha256=None, size=None)
BY_GRUB = (ONCE[0], server("web01", "role: web", "provision: 1, loader: GRUB"), SIGNED, *ONCE[3:])


def test_a_boot_that_was_served_is_served_again_by_ipxe_although_a_signature_is_missing(
    bench: Bench, told: FakeWatch
) -> None:
    bench.decide(*BY_GRUB)
    bench.fetch(bench.reconcile())
    told.sightings = {SIGNATURE: ABSENT}
    assert summarize_plan(bench.wait(seconds=10).reconcile()) == OFFERED
    scripts = find_boot_scripts(bench)
    assert all(scripts.values()) and any("ipxe" in path for path in scripts)


def test_the_condition_does_not_say_that_a_boot_is_withheld_which_grub_offers(bench: Bench, told: FakeWatch) -> None:
    bench.decide(*BY_GRUB)
    told.sightings = {SIGNATURE: ABSENT}
    assert summarize_plan(bench.reconcile()) == OFFERED
    missing = f"BootImage/flatcar-1 for 1 server ({SIGNATURE.url}: boot.test returned 404)"
    again = "gitboot checks the files again automatically"
    only_ipxe = f"gitboot withholds the iPXE boot scripts for {missing}. GRUB still boots these servers. {again}"
    assert bench.condition("ArtifactsPresent") == (False, "Missing", only_ipxe)
    assert SIGNATURE in told.wanted
    bench.decide(*BY_GRUB, server("web02", "role: web", "provision: 1")).reconcile()
    found = {name: summarize_plan(state.plan)[1] for name, state in bench.servers.items()}
    assert found == {"web01": Cause.PENDING, "web02": Cause.FILE_MISSING}
    both = f"gitboot withholds these boots until their files are available: {missing}. {only_ipxe}"
    assert bench.condition("ArtifactsPresent") == (False, "Missing", both)
    told.sightings = {SIGNATURE: AVAILABLE}
    bench.decide(*BY_GRUB).reconcile()
    assert bench.condition("ArtifactsPresent") == (True, "Present", "no artifact is missing")


@for_each(
    ("case", "documents"),
    [
        ("a maintenance", (BY_GRUB[-1], maintenance("install", "20T11:00 20T14:00", boots="web"))),
        ("a policy", (policy("web"),)),
    ],
)
def test_an_install_boot_of_each_start_is_not_guarded_where_a_script_boots_the_disk(
    bench: Bench, told: FakeWatch, case: str, documents: tuple[str, ...]
) -> None:
    bench.decide(*BY_GRUB[:-1], *documents)
    told.sightings = {SIGNATURE: ABSENT}
    planned = require_value(bench.reconcile())
    assert (planned.key, planned.writes_disk, planned.is_withheld_from_ipxe) == (None, True, True), case
    published = bench.rendered["web01"].published.paths
    scripts = {path: turns[0].writes for path, turns in published.items() if turns[0].role is Role.BOOT_SCRIPT}
    assert {path for path, writes in scripts.items() if writes} == {path for path in scripts if "grub" in path}


def test_a_signature_of_a_file_that_the_boot_does_not_start_is_not_needed(bench: Bench, told: FakeWatch) -> None:
    uki = f"uki: {{url: 'assets:flatcar-1/uki', sha256: {SHA}, loaderSignature: 'assets:flatcar-1/uki.sig'}}, "
    signed = ONCE[2].replace(f"{SHA}}}", f"{SHA}, loaderSignature: 'assets:flatcar-1/any.sig'}}")
    bench.decide(*ONCE[:2], signed.replace("kernel: {", f"{uki}kernel: {{", 1), *ONCE[3:]).reconcile()
    assert {each.url for each in told.wanted if each.url.endswith(".sig")} == {f"{ASSETS}/flatcar-1/any.sig"}


def test_reconciling_once_checks_artifacts_before_it_offers_boots(bench: Bench, told: FakeWatch) -> None:
    file = BootFile(url=f"{ASSETS}/{KERNEL}", sha256=SHA, size=None)  # type: ignore[arg-type]
    told.late = {file: ABSENT}
    assert summarize_plan(bench.decide(*ONCE).reconcile()) == DISK
    assert bench.told("ArtifactMissing") == ["ArtifactMissing"]


def test_without_artifact_checks_there_is_no_condition(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        assert summarize_plan(bench.decide(*ONCE).reconcile()) == OFFERED
        assert bench.condition("ArtifactsPresent") is None


def test_an_override_is_cleared_while_its_file_is_missing_and_set_again_when_it_appears(
    make_site: MakeSite, tmp_path: Path
) -> None:
    site = make_site()
    told = FakeWatch()
    site.restart(artifacts=told)
    site.decide()
    site.bench.reconcile()
    site.bench.reconcile()
    assert site.shown == "Once Pxe"
    told.see(ABSENT, KERNEL)
    site.wait(5)
    site.bench.reconcile()
    site.bench.reconcile()
    assert site.shown.startswith("Disabled")
    assert site.states == {"provision/1": OverrideState.CLEARED}
    told.see(AVAILABLE, KERNEL)
    site.wait(5)
    site.bench.reconcile()
    assert site.shown == "Once Pxe"


def test_a_boot_that_an_override_started_is_not_withheld(make_site: MakeSite) -> None:
    # The machine has reset with it, and is about to fetch its boot script.
    site = make_site()
    told = FakeWatch()
    site.restart(artifacts=told)
    site.observe_resets()
    site.decide()
    site.bench.reconcile()
    site.bench.reconcile()
    site.boot()
    site.wait(31)
    planned = site.bench.reconcile()
    planned = site.bench.reconcile()
    assert site.states["provision/1"] is OverrideState.CONSUMED
    told.see(ABSENT, KERNEL)
    planned = site.bench.reconcile()
    assert summarize_plan(planned) == OFFERED
    assert planned is not None and planned.override is None


def test_the_ledger_has_the_latest_results_and_a_shared_ledger_has_the_host(bench: Bench, told: FakeWatch) -> None:
    bench.decide(*ONCE)
    told.see(ABSENT, KERNEL)
    told.see(AVAILABLE, "flatcar-1/initrd")
    told.see(SILENT, "memtest-7/kernel")
    bench.reconcile()
    kernel, initrd, _ = told.sightings
    assert instance_tables.read_sightings(bench.ledger, "any host") == {kernel: ABSENT, initrd: AVAILABLE}
    told.see(AVAILABLE, KERNEL)
    bench.reconcile()
    assert instance_tables.read_sightings(bench.ledger, "any host") == {kernel: AVAILABLE, initrd: AVAILABLE}
    with bench.ledger.writing() as tx:
        instance_tables.write_sightings(tx, told.sightings, "one:/state")
    assert instance_tables.read_sightings(bench.ledger, "one:/state") == {kernel: AVAILABLE, initrd: AVAILABLE}
    assert instance_tables.read_sightings(bench.ledger, "two:/state") == {}
    with bench.ledger.writing() as tx:
        instance_tables.write_sightings(tx, {}, "one:/state")
    assert instance_tables.read_sightings(bench.ledger, "one:/state") == {}


# Looking, in threads


KERNEL_BYTES, OTHER = b"kernel " * 100, b"other"


@pytest.fixture
def web() -> Iterator[ArtifactServer]:
    with artifact_server() as server:
        yield server


def settings(folder: Path, check: str = "head", assets: Path | None = None) -> Settings:
    made = ArtifactSettings(check=CheckAssets(check), every_s=0.05)
    return Settings(output=folder, state=folder, git=GitSettings(repository=""), artifacts=made, assets=assets)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Store]:
    with Unsynced.open(tmp_path / "ledger.sqlite") as store:
        yield store


def test_an_upgrade_keeps_the_results_of_an_earlier_version_until_the_ledger_has_them(
    tmp_path: Path, ledger: Store
) -> None:
    seen = {BootFile(url="http://boot.test/kernel", sha256=Digest(SHA), size=7): AVAILABLE}
    file = tmp_path / "artifacts.json"
    assert read_sightings(settings(tmp_path), ledger) == {}
    file.write_text("no JSON")
    assert read_sightings(settings(tmp_path), ledger) == {}
    item = {"url": "http://boot.test/kernel", "sha256": SHA, "size": 7, "presence": "Found", "message": "", "head": {}}
    file.write_text(json.dumps({"version": 1, "items": [item]}))
    assert read_sightings(settings(tmp_path), ledger) == seen
    assert file.exists()
    with ledger.writing() as tx:
        instance_tables.write_sightings(tx, seen, "")
    assert read_sightings(settings(tmp_path), ledger) == seen
    assert not file.exists()


def test_the_ledger_keeps_the_result_for_a_signature_without_a_digest(ledger: Store) -> None:
    seen = {BootFile(url="http://boot.test/kernel.sig", sha256=None, size=None): ABSENT}
    with ledger.writing() as tx:
        instance_tables.write_sightings(tx, seen, "")
    assert instance_tables.read_sightings(ledger, "") == seen


@pytest.fixture
def make_watch(tmp_path: Path, ledger: Store) -> Iterator[Callable[..., ThreadedArtifactWatch]]:
    with DiskCache(tmp_path / "cache.sqlite", pytest.fail) as cache, ExitStack() as stack:

        def make_watch(
            check: str = "head", assets: Path | None = None, wake: Callable[[], None] = lambda: None
        ) -> ThreadedArtifactWatch:
            return require_value(
                stack.enter_context(watch_artifacts(settings(tmp_path, check, assets), ledger, cache, wake))
            )

        yield make_watch


def observe_once(
    lookout: ThreadedArtifactWatch, files: Collection[BootFile], base_urls: tuple[str, ...]
) -> Mapping[BootFile, Sighting]:
    """Let a lookout look at each of these files once; return what it has seen."""
    lookout.watch_files(files, base_urls)
    lookout.wait()
    return lookout.get_sightings()


def test_a_watch_notices_a_missing_artifact_and_its_appearance(
    web: ArtifactServer, make_watch: Callable[..., ThreadedArtifactWatch]
) -> None:
    woken: list[bool] = []
    lookout = make_watch(wake=lambda: woken.append(True))
    there, missing = web.put("/there", KERNEL_BYTES), web.file("/missing", KERNEL_BYTES)
    observe_once(lookout, {there, missing}, (web.url,))
    assert lookout.get_sightings()[there].presence is Presence.FOUND
    assert lookout.get_sightings()[missing].is_absent
    assert woken
    web.put("/missing", KERNEL_BYTES)
    eventually(lambda: lookout.get_sightings()[missing].is_there)
    eventually(lambda: len(woken) >= 2)
    assert len(woken) == 2  # each wakeup has a reason
    del web.files["/there"]
    eventually(lambda: lookout.get_sightings()[there].is_absent)


def test_a_server_that_stops_answering_still_counts_as_lacking_the_artifact(
    web: ArtifactServer, make_watch: Callable[..., ThreadedArtifactWatch]
) -> None:
    lookout = make_watch()
    there, missing = web.put("/there", KERNEL_BYTES), web.file("/missing", KERNEL_BYTES)
    observe_once(lookout, {there, missing}, (web.url,))
    web.statuses |= {"/there": 503, "/missing": 503}
    eventually(lambda: lookout.get_sightings()[there].presence is Presence.UNKNOWN)
    before = web.asked["HEAD", "/missing"]
    eventually(lambda: web.asked["HEAD", "/missing"] > before + 1)
    assert lookout.get_sightings()[missing].is_absent


def test_a_missing_artifact_stays_missing_after_a_restart_until_it_is_checked(
    web: ArtifactServer, make_watch: Callable[..., ThreadedArtifactWatch], ledger: Store
) -> None:
    missing, there = web.file("/missing", KERNEL_BYTES), web.put("/there", KERNEL_BYTES)
    first = make_watch()
    observe_once(first, {missing, there}, (web.url,))
    first.close()
    with ledger.writing() as tx:
        instance_tables.write_sightings(tx, first.get_sightings(), "")
    asked = sum(web.asked.values())
    second = make_watch()
    assert {file: each.presence for file, each in second.get_sightings().items()} == {
        missing: Presence.MISSING,
        there: Presence.FOUND,
    }
    assert sum(web.asked.values()) == asked
    web.put("/missing", KERNEL_BYTES)
    observe_once(second, {missing, there}, (web.url,))
    assert second.get_sightings()[missing].is_there


def test_a_restart_reads_no_artifact_again_unless_the_cache_is_gone(
    web: ArtifactServer, make_watch: Callable[..., ThreadedArtifactWatch], tmp_path: Path
) -> None:
    right, wrong = (
        web.put("/right", KERNEL_BYTES),
        replace(web.put("/wrong", OTHER), sha256=compute_digest(KERNEL_BYTES)),
    )
    for reads, has_cache in ((1, True), (1, True), (2, False)):
        if not has_cache:
            (tmp_path / "cache.sqlite").unlink()
        lookout = make_watch("read")
        observe_once(lookout, {right, wrong}, (web.url,))
        assert (lookout.get_sightings()[right].presence, lookout.get_sightings()[wrong].presence) == (
            Presence.VERIFIED,
            Presence.WRONG,
        )
        assert (web.asked["GET", "/right"], web.asked["GET", "/wrong"]) == (reads, reads)
        lookout.close()


def test_results_of_unneeded_artifacts_are_dropped(
    web: ArtifactServer, make_watch: Callable[..., ThreadedArtifactWatch]
) -> None:
    lookout, missing = make_watch(), web.file("/missing", KERNEL_BYTES)
    same = observe_once(lookout, {missing}, (web.url,))
    assert lookout.get_sightings() is same
    lookout.watch_files((), (web.url,))
    assert lookout.get_sightings() == {}


def test_files_that_this_host_serves_are_read_and_others_only_if_configured(
    web: ArtifactServer, make_watch: Callable[..., ThreadedArtifactWatch], tmp_path: Path
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "kernel").write_bytes(KERNEL_BYTES[::-1])  # of the same size
    own, other = web.file("/assets/kernel", KERNEL_BYTES), web.put("/other", KERNEL_BYTES[::-1])
    other = replace(other, sha256=own.sha256)
    lookout = make_watch(assets=assets)
    observe_once(lookout, {own, other}, (web.url,))
    assert lookout.get_sightings()[own].presence is Presence.WRONG
    assert lookout.get_sightings()[other].presence is Presence.FOUND
    assert web.asked["HEAD", "/assets/kernel"] == 0
    (assets / "new").write_bytes(KERNEL_BYTES)
    (assets / "new").rename(assets / "kernel")
    eventually(lambda: lookout.get_sightings()[own].presence is Presence.VERIFIED)
    lookout.close()
    reading = make_watch("read")
    observe_once(reading, {other}, (web.url,))
    assert reading.get_sightings()[other].presence is Presence.WRONG


def test_a_mirrored_artifact_is_checked_in_the_tree_and_at_sites(
    web: ArtifactServer, make_watch: Callable[..., ThreadedArtifactWatch], tmp_path: Path
) -> None:
    # A site has its own artifacts; if its server does not respond, the local results count for it.
    path = f"o/{compute_digest(KERNEL_BYTES)}/kernel"
    base_urls = ("http://boot.invalid", web.url, f"http://127.0.0.1:{free_port()}")
    own, site, silent = (replace(web.file("/", KERNEL_BYTES), url=f"{base}/{path}", source="s") for base in base_urls)
    lookout = make_watch()
    found = observe_once(lookout, {own, site, silent}, base_urls)
    assert [found[each].presence for each in (own, site, silent)] == [
        *(Presence.UNKNOWN, Presence.MISSING, Presence.UNKNOWN),
    ]
    (tmp_path / "boot" / path).parent.mkdir(parents=True)
    (tmp_path / "boot" / path).write_bytes(KERNEL_BYTES)
    eventually(lambda: lookout.get_sightings()[own].presence is Presence.VERIFIED)
    eventually(lambda: lookout.get_sightings()[silent].presence is Presence.FOUND)
    assert lookout.get_sightings()[site].presence is Presence.MISSING
    web.put(f"/{path}", KERNEL_BYTES)
    eventually(lambda: lookout.get_sightings()[site].presence is Presence.FOUND)


def test_a_server_that_stops_answering_still_counts_as_having_a_mirrored_artifact(
    web: ArtifactServer, make_watch: Callable[..., ThreadedArtifactWatch], ledger: Store
) -> None:
    path, base_urls = f"o/{compute_digest(KERNEL_BYTES)}/kernel", ("http://boot.invalid", web.url)
    site, lookout = replace(web.put(f"/{path}", KERNEL_BYTES), source="s"), make_watch()
    assert not is_withheld(site, observe_once(lookout, {site}, base_urls))
    web.statuses[f"/{path}"] = 503

    def is_checked_again() -> bool:
        asked = web.asked["HEAD", f"/{path}"]
        eventually(lambda: web.asked["HEAD", f"/{path}"] > asked + 1)
        return True

    assert is_checked_again() and not is_withheld(site, lookout.get_sightings())
    lookout.close()
    with ledger.writing() as tx:
        instance_tables.write_sightings(tx, lookout.get_sightings(), "")
    lookout = make_watch()
    assert not is_withheld(site, observe_once(lookout, {site}, base_urls))
    web.statuses[f"/{path}"] = 404
    eventually(lambda: is_withheld(site, lookout.get_sightings()))
    web.statuses[f"/{path}"] = 503
    assert is_checked_again() and is_withheld(site, lookout.get_sightings())


SIGNER = FileSigner(key="F" * 40, name="vendor", key_digest=Digest("a" * 64))


@pytest.mark.parametrize(
    ("before", "now", "is_offered"),
    [
        (None, None, False),
        (Presence.UNKNOWN, SIGNER, False),
        (Presence.MISSING, SIGNER, False),
        (Presence.UNSIGNED, SIGNER, False),
        (Presence.FOUND, SIGNER, True),
        (Presence.VERIFIED, SIGNER, True),
        (Presence.VERIFIED, None, False),
    ],
)
def test_a_mirrored_artifact_of_a_silent_server_still_needs_a_signer(
    before: Presence | None, now: FileSigner | None, is_offered: bool
) -> None:
    proof = FileProof(url="http://vendor.test/kernel", signature=None, checksums=None)
    file = BootFile(url="http://boot.test/o/kernel", source="s", sha256=Digest(SHA), size=7, proof=proof)
    earlier = Sighting(presence=before, signer=SIGNER) if before is not None else None
    current = Sighting(presence=Presence.UNKNOWN, signer=now)
    assert is_withheld(file, {file: keep_known_state(file, current, earlier)}) != is_offered


def test_artifact_checks_can_be_switched_off(tmp_path: Path, ledger: Store) -> None:
    with watch_artifacts(settings(tmp_path, "off"), ledger, DiskCache(None, pytest.fail), lambda: None) as lookout:
        assert lookout is None


# All of it, running


def test_a_running_instance_waits_for_an_image_and_others_go_on(tmp_path: Path, web: ArtifactServer) -> None:
    # A kernel that is missing on its server, and one that is missing in --assets: neither offered nor set until they
    # come.
    assets = tmp_path / "assets"
    (assets / "own-1").mkdir(parents=True)
    remote, own = web.file("/assets/remote/kernel", KERNEL_BYTES), web.file("/assets/own-1/kernel", OTHER)
    sites = f"sites: [{{name: far, select: {{servers: [web01, web03]}}, baseURL: '{web.url}'}}]"
    web.put("/assets/good/kernel", KERNEL_BYTES)

    def linux(name: str, url: str, file: BootFile) -> str:
        kernel = f"{{url: '{url}', sha256: {file.sha256}, size: {file.size}}}"
        return document("BootImage", name, f"version: '1', architectures: {{x86_64: {{kernel: {kernel}}}}}")

    def pool(name: str, image: str, server: str) -> tuple[str, str]:
        return profile(name, image), policy(name, f"{{servers: [{server}]}}", boots=name, often="Once")

    documents = (
        linux("remote", "assets:remote/kernel", remote),
        linux("own-1", "assets:own-1/kernel", own),
        linux("good", "assets:good/kernel", remote),
        *pool("a", "remote", "web01"),
        *pool("b", "own-1", "web02"),
        *pool("c", "good", "web03"),
    )
    options = ("--assets", assets, *write_configuration(check_assets_every=0.2, max_installs=9, max_reinstalls=9))
    with Rack(tmp_path, settings=f"baseURL: 'http://boot.test', {sites}", pool=documents) as rack:
        web01, web02, web03 = (rack.add(name, provision=1) for name in ("web01", "web02", "web03"))
        rack.push()
        assert rack.once(*options, *rack.spool_options, records="fresh").code == 8
        assert (web01.times_set, web02.times_set, web03.times_set) == (0, 0, 1)
        with rack.running(*options) as instance:
            found = wait_for_condition(instance, "ArtifactsPresent", status=False, reason="Missing")
            assert "BootImage/remote for 1 server" in found["message"]
            assert "BootImage/own-1 for 1 server" in found["message"]
            wanted = rack.bmc_get()
            assert (wanted["web01"]["wanted"], wanted["web03"]["wanted"] is None) == (None, False)
            assert [boots(instance, each) for each in (web01, web02, web03)] == ["disk", "disk", "good"]
            assert "remote/kernel" not in (tmp_path / "output" / "boot" / web01.entry[1:]).read_text()
            web.put("/assets/remote/kernel", KERNEL_BYTES)
            eventually(lambda: web01.stands)
            assert boots(instance, web01) == "remote"
            assert (boots(instance, web02), web02.times_set) == ("disk", 0)
            (assets / "own-1" / "kernel").write_bytes(OTHER)
            eventually(lambda: web02.stands)
            wait_for_condition(instance, "ArtifactsPresent", status=True, reason="Present")
            assert condition(instance, "ArtifactsPresent")["remedy"] is None
            assert (web01.times_set, web02.times_set, web03.times_set) == (1, 1, 1)
        assert [event["type"] for event in instance.events].count("ArtifactFound") == 2


def test_e7_an_assets_directory_that_is_empty_sets_no_bmc(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    with Rack(tmp_path) as rack:
        web01, parked = rack.add("web01", provision=1), rack.add("web02")
        rack.push()
        assert rack.once("--assets", tmp_path / "assets", *rack.spool_options, records="fresh").code == 8
        assert (web01.times_set, parked.times_set) == (0, 0)
        assert "flatcar-1" not in (tmp_path / "output" / "boot" / web01.entry[1:]).read_text()
        assert "BootImage/flatcar-1 for 2 servers" in " ".join(rack.said("status").split())
