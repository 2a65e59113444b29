"""Streams with requireProvenance: signed. No machine boots their images until a trusted key has verified each file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path

import pytest

from gitboot.artifacts.availability import FileSigner, Presence, Sighting, ThreadedArtifactWatch, UnverifiedFile
from gitboot.artifacts.downloads import PrefixFetcher, WebFetcher
from gitboot.artifacts.signatures import BootFileVerifier
from gitboot.controller.instance.assembly import watch_artifacts
from gitboot.controller.instance.settings import ArtifactSettings, GitSettings, Settings
from gitboot.disk_cache import DiskCache
from gitboot.jsonio import Digest
from gitboot.ledger import instance_tables
from gitboot.ledger.store import Store
from gitboot.model.boot_image import Signature
from gitboot.model.scalars import ArtifactUrl
from gitboot.resolve.server_decision import BootFile, Decisions, FileProof
from tests.artifacts.test_availability import ABSENT, AVAILABLE, DISK, OFFERED, SILENT, FakeWatch, summarize_plan
from tests.helpers.artifact_servers import ArtifactServer, artifact_server
from tests.helpers.cases import require_value
from tests.helpers.fleets import (
    decided,
    document,
    fleet,
    image,
    maintenance,
    policy,
    profile,
    server,
    write_configuration,
)
from tests.helpers.git_repositories import Person, gpg_people, sign_with_gpg
from tests.helpers.instance_in_process import Bench, Unsynced
from tests.helpers.instance_with_bmcs import Rack, boots, wait_for_condition
from tests.helpers.running_instance import eventually


def make_stream(rule: str = "signed", spec: str = "current: flatcar-1") -> str:
    return document("ImageStream", "flatcar", f"{spec}{f', requireProvenance: {rule}' if rule else ''}")


def make_documents(*more: str, boots: str = "stream: flatcar", often: str = "Once", pin: str = "") -> tuple[str, ...]:
    return (
        fleet(),
        server("web01", "role: web", f"provision: 1{pin}"),
        *(image(name) for name in ("flatcar-1", "flatcar-2", "flatcar-3")),
        image("memtest-7", "writesDisk: false"),
        profile("web", boots),
        profile("repair", "memtest-7"),
        policy("web", "{matchLabels: {role: web}}", often=often),
        *more,
    )


def list_proofs(decisions: Decisions) -> dict[str, bool]:
    """Return, for each image that web01 may boot, whether all of its files need a signature."""
    found = {}
    for boot in decisions.servers["web01"].boots:
        proofs = {file.proof is not None for file in boot.files.all()}
        assert len(proofs) == 1
        found[boot.image] = proofs.pop()
    return found


PIN = ", pin: {image: flatcar-3, reason: a}"


@pytest.mark.parametrize(
    ("case", "made", "expected"),
    [
        ("no rule", make_documents(make_stream("")), {"flatcar-1": False}),
        ("any", make_documents(make_stream("any")), {"flatcar-1": False}),
        ("current", make_documents(make_stream()), {"flatcar-1": True}),
        (
            "rollout",
            make_documents(make_stream(spec="current: flatcar-1, rollout: {image: flatcar-2}")),
            {"flatcar-2": True},
        ),
        (
            "hold",
            make_documents(make_stream(spec="current: flatcar-1, holds: [{select: All, image: flatcar-2, reason: a}]")),
            {"flatcar-2": True},
        ),
        ("pin", make_documents(make_stream(), pin=PIN), {"flatcar-3": True}),
        ("a profile names the image itself", make_documents(make_stream(), boots="flatcar-1"), {"flatcar-1": True}),
        ("another image", make_documents(make_stream(), boots="flatcar-2"), {"flatcar-2": False}),
        ("maintenance", make_documents(make_stream(), maintenance("fix")), {"flatcar-1": True, "memtest-7": False}),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_the_boots_of_a_stream_need_signatures(case: str, made: tuple[str, ...], expected: dict[str, bool]) -> None:
    assert list_proofs(decided(*made)) == expected


def test_the_rule_changes_no_digest_of_a_decision() -> None:
    before, after = (decided(*make_documents(make_stream(rule), maintenance("fix"))) for rule in ("any", "signed"))
    assert before.servers["web01"].digest == after.servers["web01"].digest
    assert before.servers["web01"].proofs != after.servers["web01"].proofs


def test_unknown_machines_need_signatures_too() -> None:
    unknown = fleet("baseURL: 'http://boot.test', unknownServers: {profile: repair}")
    made = make_documents(
        document("ImageStream", "memtest", "current: memtest-7, requireProvenance: signed"), boots="flatcar-1"
    )
    (boot,) = (decided(unknown, *made[1:]).unknown or {}).values()
    assert all(file.proof is not None for file in boot.fetched_files)


@pytest.fixture
def told() -> FakeWatch:
    return FakeWatch()


@pytest.fixture
def bench(tmp_path: Path, told: FakeWatch) -> Iterator[Bench]:
    with Bench(tmp_path, artifacts=told) as bench:
        yield bench


SIGNER = FileSigner(key="F" * 40, name="vendor", key_digest=Digest("a" * 64))
REASON = "the stream requires a signature, but the file is signed by the key F, which is not listed as a trusted key"
UNSIGNED = Sighting(presence=Presence.UNSIGNED, message=REASON)


@pytest.mark.parametrize(
    ("case", "seen", "is_offered"),
    [
        ("never checked", None, False),
        ("there, but not verified", AVAILABLE, False),
        ("silent, and never verified", SILENT, False),
        ("unsigned", UNSIGNED, False),
        ("verified", Sighting(presence=Presence.FOUND, signer=SIGNER), True),
        ("verified before, and silent now", Sighting(presence=Presence.UNKNOWN, signer=SIGNER), True),
        ("verified before, and missing now", Sighting(presence=Presence.MISSING, signer=SIGNER), False),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_boot_is_withheld_until_a_key_has_verified_its_files(
    bench: Bench, told: FakeWatch, case: str, seen: Sighting | None, is_offered: bool
) -> None:
    assert summarize_plan(bench.decide(*make_documents(make_stream())).reconcile()) == DISK
    if seen is not None:
        told.sightings = dict.fromkeys(told.wanted, seen)
    assert summarize_plan(bench.reconcile()) == (OFFERED if is_offered else DISK)
    if not is_offered:
        status, reason, message = require_value(bench.condition("ArtifactsPresent"))
        assert (status, reason) == (False, "Missing")
        assert "BootImage/flatcar-1 for 1 server (http://boot.test/assets/flatcar-1/" in message
    if seen is UNSIGNED:
        assert REASON in message
        assert bench.told("ArtifactMissing") == ["ArtifactMissing", "ArtifactMissing"]  # kernel and initrd


def test_a_commit_that_only_adds_the_rule_withdraws_the_boot(bench: Bench, told: FakeWatch) -> None:
    assert summarize_plan(bench.decide(*make_documents(make_stream("any"))).reconcile()) == OFFERED
    told.sightings = dict.fromkeys(told.wanted, AVAILABLE)
    assert summarize_plan(bench.reconcile()) == OFFERED
    assert summarize_plan(bench.decide(*make_documents(make_stream("signed"))).reconcile()) == DISK
    told.sightings = dict.fromkeys(told.wanted, Sighting(presence=Presence.FOUND, signer=SIGNER))
    assert summarize_plan(bench.reconcile()) == OFFERED
    told.sightings = {}
    assert summarize_plan(bench.decide(*make_documents(make_stream("any"))).reconcile()) == OFFERED


def test_without_artifact_checks_the_boot_stays_withheld(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        assert summarize_plan(bench.decide(*make_documents(make_stream())).reconcile()) == DISK
        _, _, message = require_value(bench.condition("ArtifactsPresent"))
        assert "gitboot does not check because of --check-assets off" in message
        assert summarize_plan(bench.decide(*make_documents(make_stream("any"))).reconcile()) == OFFERED
        assert bench.condition("ArtifactsPresent") is None


def test_the_ledger_keeps_the_signer_of_a_file(bench: Bench, told: FakeWatch) -> None:
    bench.decide(*make_documents(make_stream())).reconcile()
    kernel, initrd = sorted(told.wanted, key=lambda each: each.url, reverse=True)
    verified = Sighting(presence=Presence.FOUND, signer=SIGNER)
    told.sightings = {kernel: verified, initrd: UNSIGNED, replace(kernel, proof=None): ABSENT}
    bench.reconcile()
    assert instance_tables.read_sightings(bench.ledger, "any host") == told.sightings
    silent = Sighting(presence=Presence.UNKNOWN, signer=SIGNER)
    told.sightings = {kernel: silent}
    bench.reconcile()
    assert instance_tables.read_sightings(bench.ledger, "any host") == {kernel: silent}


# With real signatures


KERNEL = b"kernel" * 1000


@pytest.fixture(scope="module")
def people() -> Iterator[Mapping[str, Person]]:
    with gpg_people("vendor", "stranger") as people:
        yield people


@pytest.fixture
def web() -> Iterator[ArtifactServer]:
    with artifact_server() as server:
        yield server


@pytest.fixture
def trusted(people: Mapping[str, Person], tmp_path: Path) -> Path:
    folder = tmp_path / "image-keys"
    folder.mkdir()
    (folder / "vendor.asc").write_bytes(people["vendor"].public.read_bytes())
    return folder


@pytest.fixture
def signed_kernel(web: ArtifactServer, people: Mapping[str, Person], tmp_path: Path) -> BootFile:
    """A kernel with the signature of its vendor."""
    file = web.file("/kernel", KERNEL)
    web.put("/kernel", KERNEL)
    (tmp_path / "kernel").write_bytes(KERNEL)
    web.put("/kernel.sig", sign_with_gpg(people["vendor"], tmp_path / "kernel"))
    proof = FileProof(url=file.url, signature=Signature(openpgp=ArtifactUrl(f"{web.url}/kernel.sig")), checksums=None)
    return replace(file, proof=proof)


def verifier(trusted: Path | None) -> BootFileVerifier:
    return BootFileVerifier(trusted, lambda _: PrefixFetcher({"http://": WebFetcher()}))


BASES = ("http://boot.test",)


def explain_failure(verifier: BootFileVerifier, file: BootFile, known: FileSigner | None) -> str:
    with pytest.raises(UnverifiedFile) as raised:
        verifier.verify(file, known, BASES)
    return str(raised.value)


def test_a_file_is_verified_once_until_its_key_is_removed(
    signed_kernel: BootFile, web: ArtifactServer, trusted: Path, people: Mapping[str, Person]
) -> None:
    with closing(verifier(trusted)) as first:
        found = first.verify(signed_kernel, None, BASES)
        assert isinstance(found, FileSigner)
        assert found.name == "vendor <vendor@example.net>"
    web.files.clear()  # the vendor deletes the release
    web.asked.clear()
    with closing(verifier(trusted)) as second:
        assert second.verify(signed_kernel, found, BASES) == found
        assert not web.asked
        assert "unavailable" in explain_failure(second, signed_kernel, None)
    (trusted / "vendor.asc").write_bytes(people["stranger"].public.read_bytes())
    with closing(verifier(trusted)) as third:
        assert "unavailable" in explain_failure(third, signed_kernel, found)


def test_another_file_or_signature_is_not_verified(
    signed_kernel: BootFile, web: ArtifactServer, trusted: Path, people: Mapping[str, Person], tmp_path: Path
) -> None:
    proof = require_value(signed_kernel.proof)
    good = web.files["/kernel.sig"]
    with closing(verifier(trusted)) as checked, closing(verifier(None)) as shipped:
        assert "which is not listed" in explain_failure(shipped, signed_kernel, None)
        unsigned = replace(signed_kernel, proof=replace(proof, signature=None))
        assert "does not have one" in explain_failure(checked, unsigned, None)
        for name, content, says in [
            ("/kernel.sig", sign_with_gpg(people["stranger"], tmp_path / "kernel"), "which is not listed"),
            ("/kernel.sig", good[:-1], "incomplete"),
            ("/kernel", b"another", "which has the SHA-256 digest"),
        ]:
            before = web.files[name]
            web.put(name, content)
            assert says in explain_failure(checked, signed_kernel, None)
            web.put(name, before)
        assert isinstance(checked.verify(signed_kernel, None, BASES), FileSigner)


def test_a_mirrored_file_is_read_where_machines_fetch_it(
    signed_kernel: BootFile, web: ArtifactServer, trusted: Path
) -> None:
    web.put("/o/kernel", web.files.pop("/kernel"))
    mirrored = replace(signed_kernel, url=f"{web.url}/o/kernel", source=signed_kernel.url)
    with closing(verifier(trusted)) as found:
        assert isinstance(found.verify(mirrored, None, BASES), FileSigner)


def test_a_malformed_directory_of_keys_verifies_nothing(signed_kernel: BootFile, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with closing(verifier(tmp_path / "empty")) as found:
        assert "does not contain image keys" in explain_failure(found, signed_kernel, None)
    with closing(verifier(tmp_path / "missing")) as found:
        assert "cannot be read" in explain_failure(found, signed_kernel, None)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Store]:
    with Unsynced.open(tmp_path / "ledger.sqlite") as store:
        yield store


def test_a_watch_verifies_a_file_and_keeps_the_result_after_a_restart(
    signed_kernel: BootFile, web: ArtifactServer, trusted: Path, ledger: Store, tmp_path: Path
) -> None:
    artifacts = ArtifactSettings(every_s=0.05, image_keys=trusted)
    settings = Settings(output=tmp_path, state=tmp_path, git=GitSettings(repository=""), artifacts=artifacts)
    signature, plain = web.files.pop("/kernel.sig"), replace(signed_kernel, proof=None)

    def watch() -> AbstractContextManager[ThreadedArtifactWatch | None]:
        return watch_artifacts(settings, ledger, DiskCache(None, pytest.fail), lambda: None)

    with watch() as opened:
        lookout = require_value(opened)
        lookout.watch_files({signed_kernel, plain}, BASES)
        lookout.wait()
        seen = lookout.get_sightings()
        assert (seen[signed_kernel].presence, seen[plain].presence) == (Presence.UNSIGNED, Presence.FOUND)
        assert "/kernel.sig is unavailable" in seen[signed_kernel].message
        web.put("/kernel.sig", signature)
        eventually(lambda: lookout.get_sightings()[signed_kernel].signer is not None)
        assert lookout.get_sightings()[signed_kernel].presence is Presence.FOUND
        with ledger.writing() as tx:
            instance_tables.write_sightings(tx, lookout.get_sightings(), "")
    del web.files["/kernel.sig"]
    web.asked.clear()
    with watch() as opened:
        lookout = require_value(opened)
        lookout.watch_files({signed_kernel}, BASES)
        lookout.wait()
        assert require_value(lookout.get_sightings()[signed_kernel].signer).name == "vendor <vendor@example.net>"
        assert web.asked["GET", "/kernel.sig"] == 0
        del web.files["/kernel"]
        eventually(lambda: lookout.get_sightings()[signed_kernel].presence is Presence.MISSING)
        web.put("/kernel", KERNEL)
        eventually(lambda: lookout.get_sightings()[signed_kernel].presence is Presence.FOUND)
        assert web.asked["GET", "/kernel.sig"] == 0


def test_a_running_instance_offers_an_image_after_its_vendor_signed_it(
    web: ArtifactServer, trusted: Path, people: Mapping[str, Person], tmp_path: Path
) -> None:
    file = web.file("/assets/linux-1/linux", KERNEL)
    web.put("/assets/linux-1/linux", KERNEL)
    (tmp_path / "SHA256SUMS").write_text(f"{file.sha256}  linux\n")
    web.put("/SHA256SUMS", (tmp_path / "SHA256SUMS").read_bytes())
    sums = f"{{url: '{web.url}/SHA256SUMS', signature: {{openpgp: '{web.url}/SHA256SUMS.gpg'}}}}"
    kernel = f"{{url: '{file.url}', sha256: {file.sha256}}}"
    pool = (
        document(
            "BootImage",
            "linux-1",
            f"version: '1', architectures: {{x86_64: {{kernel: {kernel}, checksums: {sums}}}}}",
        ),
        document("ImageStream", "linux", "current: linux-1, requireProvenance: signed"),
        profile("linux", "stream: linux"),
        policy("linux", "{servers: [web01]}", boots="linux", often="Once"),
    )
    options = ("--image-keys", trusted, *write_configuration(check_assets_every=0.2, max_installs=9, max_reinstalls=9))
    with Rack(tmp_path, pool=pool) as rack:
        web01 = rack.add("web01", provision=1)
        rack.push()
        assert rack.once(*options, *rack.spool_options, records="fresh").code == 8
        assert web01.times_set == 0
        with rack.running(*options) as instance:
            found = wait_for_condition(instance, "ArtifactsPresent", status=False, reason="Missing")
            assert "BootImage/linux-1 for 1 server" in found["message"]
            assert "SHA256SUMS.gpg is unavailable" in found["message"]
            assert boots(instance, web01) == "disk"
            web.put("/SHA256SUMS.gpg", sign_with_gpg(people["stranger"], tmp_path / "SHA256SUMS"))
            eventually(lambda: web.asked["GET", "/SHA256SUMS.gpg"] > 3)
            assert web01.times_set == 0
            web.put("/SHA256SUMS.gpg", sign_with_gpg(people["vendor"], tmp_path / "SHA256SUMS"))
            eventually(lambda: web01.stands)
            assert boots(instance, web01) == "linux-1"
            wait_for_condition(instance, "ArtifactsPresent", status=True, reason="Present")


def test_a_running_instance_withdraws_a_boot_when_a_commit_adds_the_rule(web: ArtifactServer, tmp_path: Path) -> None:
    file = web.file("/assets/linux-1/linux", KERNEL)
    web.put("/assets/linux-1/linux", KERNEL)

    def pool(rule: str) -> tuple[str, ...]:
        kernel = f"{{url: '{file.url}', sha256: {file.sha256}}}"
        return (
            document("BootImage", "linux-1", f"version: '1', architectures: {{x86_64: {{kernel: {kernel}}}}}"),
            document("ImageStream", "linux", f"current: linux-1, requireProvenance: {rule}"),
            profile("linux", "stream: linux"),
            policy("linux", "{servers: [web01]}", boots="linux", often="Once"),
        )

    options = ("--poll", 0.2, *write_configuration(check_assets_every=0.2, max_installs=9, max_reinstalls=9))
    with Rack(tmp_path, pool=pool("any")) as rack:
        web01 = rack.add("web01", provision=1)
        rack.push()
        rack.once(*options, *rack.spool_options, records="fresh")
        with rack.running(*options) as instance:
            eventually(lambda: web01.stands)
            assert boots(instance, web01) == "linux-1"
            rack.pool = pool("signed")
            rack.push()
            found = wait_for_condition(instance, "ArtifactsPresent", status=False, reason="Missing")
            assert "the image does not have one" in found["message"] or "has not checked" in found["message"]
            eventually(lambda: boots(instance, web01) == "disk")
            eventually(lambda: not web01.stands)
            rack.pool = pool("any")
            rack.push()
            eventually(lambda: web01.stands)
