"""Which artifacts a fleet names, and which of an image's files a boot fetches."""

from __future__ import annotations

from gitboot.artifacts.availability import named_artifacts
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, decided, decision, fleet, image, policy, profile, server

ALL = "kernel, initrd, rootfs, uki, iso, loader"
BASE = "http://boot.test/assets/x-1/"


@for_each(
    ("case", "method", "spec", "artifacts", "fetched"),
    [
        ("a kernel by a loader", "Pxe", "", ALL, {"kernel", "initrd"}),
        ("a uki by a loader", "Pxe", "", "uki, iso", {"uki"}),
        ("firmware fetches the uki", "UefiHttp", "httpBoot: uki", ALL, {"uki"}),
        ("firmware fetches the iso", "UefiHttp", "httpBoot: iso", ALL, {"iso"}),
        ("firmware fetches a loader", "UefiHttp", "httpBoot: loader", ALL, {"loader", "kernel", "initrd"}),
        (
            "an argument names a file",
            "Pxe",
            "kernelArguments: ['root=live:{{ image.artifacts.rootfs.url }}']",
            ALL,
            {"kernel", "initrd", "rootfs"},
        ),
        (
            "user data names a file",
            "Pxe",
            "userData: {format: Kickstart, template: t}",
            ALL,
            {"kernel", "initrd", "rootfs"},
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
)
def test_a_boot_fetches_what_it_starts_and_what_it_is_told_of(
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
    assert {each.url for each in boot.fetched} == {f"{BASE}{name}" for name in fetched}


def test_an_artifact_is_named_once_for_all_who_need_it() -> None:
    named = named_artifacts(decided(*SEED, server("web02", "role: web")), {"web02": "fra"})
    assert [(each.images, each.sites, each.servers) for each in named] == [(("flatcar-1",), ("", "fra"), 2)] * 2


def test_unknown_machines_need_artifacts_too() -> None:
    documents = (
        fleet("baseURL: 'http://boot.test', unknownServers: {profile: discovery}"),
        image("x-1", "writesDisk: false"),
        profile("discovery", "x-1"),
    )
    found = named_artifacts(decided(*documents), {})
    assert [(each.file.url, each.servers) for each in found] == [(f"{BASE}initrd", 0), (f"{BASE}kernel", 0)]
