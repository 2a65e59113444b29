"""`gitboot verify-mirror` with the list on a mirror: it only needs the URL and the public key."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gitboot.publish.mirror_comparison import (
    FolderMirror,
    MirrorAnswer,
    MirrorFault,
    MirrorFile,
    WebMirror,
    check_answer,
)
from gitboot.publish.signed_list_check import compare_with_list
from gitboot.publish.signed_list_reader import FileVersion
from gitboot.render.endpoint_files import ListedFile as ListedFile
from gitboot.render.endpoint_files import build_shared_listing, listing_name, render_listing
from gitboot.render.paths import File
from gitboot.resolve.boot_composition import MIRRORED_NAMES
from tests.helpers.cases import for_each
from tests.helpers.endpoints import ENTRY, MAC, Site, plan_fleet
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.forked_commands import run_forked
from tests.helpers.mirrors import KEEP_ANSWERS, nginx
from tests.helpers.signed_lists import ListSigner, SignedSite
from tests.publish.test_mirror_comparison import BY_MAC, FIRST, FLEET, CopyServer, serve_copy

DAY = timedelta(days=1)
CHANGED = plan_fleet(  # FLEET with another image
    fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}"),
    server("new01", "role: new", "provision: 1"),
    policy("new", "{matchLabels: {role: new}}", often="Once"),
    server("web01", "role: web"),
    image("flatcar-2"),
    profile("web", "flatcar-2"),
    policy("web", "{matchLabels: {role: web}}"),
)
LIST = "/signed/timestamp.json"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> SignedSite:
    found = SignedSite(tmp_path_factory.mktemp("published"))
    found.publish(FLEET, made=_now())
    return found


@pytest.fixture
def publisher(tmp_path: Path) -> SignedSite:
    found = SignedSite(tmp_path / "publisher")
    found.publish(FLEET, made=_now())
    return found


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@pytest.fixture
def copy(published: SignedSite, tmp_path: Path) -> Path:
    return shutil.copytree(published.boot, tmp_path / "boot")


def copy_boot(publisher: SignedSite, copy: Path) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    return shutil.copytree(publisher.boot, copy)


@pytest.fixture
def mirror(copy: Path) -> Iterator[CopyServer]:
    with serve_copy(copy) as mirror:
        yield mirror


Verified = tuple[int, dict[str, str], dict[str, Any]]
Verify = Callable[..., Verified]


@pytest.fixture
def verify(published: SignedSite) -> Verify:
    """Type the command with the public key: its exit code, the faults by path, and all that it prints as JSON."""

    def verify(mirror: object, *more: object, key: object = published.public) -> Verified:
        done = run_forked("verify-mirror", mirror, "--key", key, "-o", "json", *more)
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)
        return done.returncode, {f"/{each['path']}": each["fault"] for each in found["items"]}, found

    return verify


def test_finding_m10_one_file_of_a_copy_names_all_files_of_a_server(copy: Path) -> None:
    def named(file: Path) -> set[str]:
        return {*json.loads(file.read_bytes())["files"]}

    by_server = {path.stem: named(path) for path in (copy / "signed/servers").iterdir()}
    shared = named(copy / "signed/shared.json")
    paths = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    published = {listing_name(f"boot/{path}") for path in paths if not path.startswith("signed/")}
    assert by_server.keys() == {"new01", "web01"}
    assert {server for server, names in by_server.items() if ENTRY[1:] in names} == {"web01"}
    assert published <= shared | by_server["new01"] | by_server["web01"]
    assert not by_server["new01"] & by_server["web01"]


def test_a_mirror_is_verified_with_its_url_and_the_public_key_alone(mirror: CopyServer, verify: Verify) -> None:
    code, found, shown = verify(mirror.url)
    assert (code, found) == (0, {})
    assert shown["list"]["signature"] == "Verified" and 0 <= shown["list"]["ageSeconds"] < 3600
    assert {f"/{path}" for path in shown["unchecked"]} >= {ENTRY, BY_MAC}
    asked = {path for _, path in mirror.asked}
    assert {FIRST, "/unknown.ipxe"} <= asked
    evidence = [path for path in asked if path in (ENTRY, BY_MAC) or "/provisioned/" in path]
    assert evidence == [], "a cache turns HEAD into GET, which counts as a fetch of a machine"


def test_finding_m6_a_file_that_was_edited_at_the_mirror_is_found_with_any_size_and_time(
    published: SignedSite, copy: Path, tmp_path: Path
) -> None:
    """The real nginx is compared by HTTP, with the URL and the public key; paths of machines on request."""
    for path in (ENTRY, FIRST):
        before = (copy / path[1:]).stat()
        content = (copy / path[1:]).read_bytes()
        (copy / path[1:]).write_bytes(content[:-2] + b"#\n")
        os.utime(copy / path[1:], (before.st_mtime, before.st_mtime))
        assert (copy / path[1:]).stat().st_size == len(content)
    (tmp_path / "nginx").mkdir()
    with nginx(copy, published.root / "ops/serve", tmp_path / "nginx") as mirror:
        for more, found in (
            ((mirror.url,), {FIRST}),
            ((mirror.url, "--read-entries"), {FIRST, ENTRY}),
            ((copy,), {FIRST, ENTRY}),
        ):
            done = run_forked("verify-mirror", *more, "--key", published.public, "-o", "json")
            items = json.loads(done.stdout)["items"]
            assert done.returncode == 8
            assert {(f"/{each['path']}", each["fault"]) for each in items} == {(path, "Wrong") for path in found}


def test_finding_m6_an_artifact_that_was_edited_at_the_mirror_is_found_in_its_folder(
    copy: Path, verify: Verify
) -> None:
    """The list does not name what `gitboot artifacts` brings to the tree, and its path has its digest."""
    folder = copy / f"o/{sha256(b'kernel').hexdigest()}"
    folder.mkdir(parents=True)
    for name in MIRRORED_NAMES:
        (folder / name).write_bytes(b"kernel")
    assert verify(copy)[:2] == (0, {})
    for name in MIRRORED_NAMES:
        (folder / name).write_bytes(b"rootki")
    assert verify(copy)[:2] == (8, {f"/o/{folder.name}/{name}": "Wrong" for name in MIRRORED_NAMES})


def test_missing_and_additional_files_are_found_in_a_folder_and_by_http(
    mirror: CopyServer, copy: Path, verify: Verify
) -> None:
    token = next(path for path in copy.rglob("*") if path.parent.name == "provisioned")
    gone = "/v1/boot/52-54-00-99-99-99/boot.ipxe"  # of a server that is gone
    (copy / gone[1:]).parent.mkdir(parents=True)
    for name in (gone[1:], f"pxelinux.cfg/01-{MAC}", "left"):
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("#!ipxe\n")
    (copy / "assets").mkdir()
    (copy / "assets/linux").write_text("placed by a person")
    (copy / FIRST[1:]).unlink()
    (copy / BY_MAC[1:]).unlink()
    extra = {f"/pxelinux.cfg/01-{MAC}": "Extra"}
    assert verify(mirror.url)[:2] == (8, {FIRST: "Missing"} | extra)
    assert verify(mirror.url, "--read-entries")[:2] == (8, {FIRST: "Missing", BY_MAC: "Missing"} | extra)
    code, found, _ = verify(copy)
    assert found == {FIRST: "Missing", BY_MAC: "Missing", gone: "Extra", "/left": "Extra"} | extra
    token.unlink()
    code, found, _ = verify(copy)
    assert code == 8 and len(found) == 6, "the digest of a path with a token stands for it"


@for_each(
    ("path", "headers", "fault"),
    [
        (FIRST, {"Content-Type": "application/octet-stream"}, "Mistyped"),
        (FIRST, {"Content-Length": None}, "Unsized"),
        (FIRST, {"Content-Encoding": "gzip"}, "Wrong"),
        (FIRST, {"Age": "7"}, "Cached"),
        (LIST, {"Age": "600"}, "Cached"),  # of a cache that has no query in its key
        (ENTRY, {"Cache-Control": "public, max-age=60"}, "Cacheable"),
        (LIST, {"Cache-Control": "public, max-age=60"}, "Cacheable"),
        (LIST, {"Cache-Control": None}, "Cacheable"),
    ],
)
def test_headers_that_a_loader_or_a_proxy_may_misuse_are_found(
    mirror: CopyServer, verify: Verify, path: str, headers: dict[str, str | None], fault: str
) -> None:
    mirror.headers = {path: headers}
    assert verify(mirror.url, "--read-entries")[:2] == (8, {path: fault})


# The list


def test_each_fault_of_the_list_has_its_own_name(copy: Path, verify: Verify) -> None:
    assert verify(copy, key=ListSigner().keys[0].hex())[:2] == (8, {"/signed/1.root.json": "BadSignature"})
    listing, other = copy / "signed/servers/web01.json", copy / "signed/servers/new01.json"
    for content in (listing.read_bytes()[:-9], other.read_bytes(), (copy / "signed/shared.json").read_bytes()):
        listing.write_bytes(content)
        assert verify(copy)[1][f"/signed/servers/{listing.name}"] == "Damaged"
    listing.unlink()
    assert verify(copy)[1][f"/signed/servers/{listing.name}"] == "Missing"
    timestamp = copy / "signed/timestamp.json"
    timestamp.write_bytes(timestamp.read_bytes().replace(b'"version":"0.2.0"', b'"version":"0.2.1"'))
    assert verify(copy)[:2] == (8, {LIST: "BadSignature"})
    timestamp.write_bytes(b"{}")
    assert verify(copy)[:2] == (8, {LIST: "Damaged"})
    timestamp.unlink()
    assert verify(copy)[:2] == (8, {LIST: "Missing"})


@pytest.mark.parametrize("by", ["folder", "HTTP"])
def test_a_copy_that_was_taken_before_the_list_was_written_is_incomplete_and_not_wrong(
    publisher: SignedSite, copy: Path, verify: Verify, by: str
) -> None:
    """The publisher has replaced boot scripts and listings, and was killed before it wrote the list."""
    more = {"boot/added.ipxe": File(b"#!ipxe\n")}
    Site(publisher.root).publish(replace(CHANGED, shared={**CHANGED.shared, **more}), commit="newer")
    listed = ((path, ListedFile(file.sha256, len(file.content))) for path, file in {**CHANGED.shared, **more}.items())
    (publisher.boot / "signed/shared.json").write_bytes(render_listing(build_shared_listing(sorted(listed))))
    copy_boot(publisher, copy)
    with serve_copy(copy) as mirror:
        place = copy if by == "folder" else mirror.url
        code, found, shown = verify(place, "--read-entries", key=publisher.public)
    assert (code, {*found.values()}) == (8, {"Incomplete"}), found
    assert {"/signed/servers/web01.json", "/signed/shared.json"} <= found.keys()
    assert "a publication or a copy is in progress" in shown["items"][0]["message"]
    edited = copy / ENTRY[1:]
    edited.write_bytes(edited.read_bytes().replace(b"#!ipxe", b"#!IPXE"))
    assert verify(copy, key=publisher.public)[1][ENTRY] == "Wrong", "the listing that is there counts"


def test_an_expired_list_is_a_finding_and_the_files_are_still_compared(
    tmp_path: Path, copy: Path, verify: Verify
) -> None:
    publisher = SignedSite(tmp_path / "publisher")
    publisher.publish(FLEET, made=_now() - 3 * DAY)
    copy_boot(publisher, copy)
    (copy / FIRST[1:]).unlink()
    code, found, shown = verify(copy, key=publisher.public)
    assert (code, found) == (8, {LIST: "Expired", FIRST: "Missing"})
    assert shown["list"]["ageSeconds"] >= 3 * 86400


@pytest.mark.parametrize("ahead", [DAY / 24, DAY])
def test_finding_m10_a_clock_that_is_behind_is_reported_before_its_consequences(
    tmp_path: Path, copy: Path, verify: Verify, ahead: timedelta
) -> None:
    publisher = SignedSite(tmp_path / "publisher")
    publisher.publish(FLEET, made=_now() + ahead)
    copy_boot(publisher, copy)
    (copy / FIRST[1:]).unlink()
    code, found, shown = verify(copy, key=publisher.public)
    assert (code, [*found.items()]) == (8, [(LIST, "Early"), (FIRST, "Missing")])
    assert "but this host's clock shows " in shown["items"][0]["message"]
    assert "ago)" not in run_forked("verify-mirror", copy).stdout


def test_an_unsigned_list_is_reported_and_is_a_finding_if_a_key_is_named(
    tmp_path: Path, copy: Path, verify: Verify
) -> None:
    publisher = SignedSite(tmp_path / "publisher", is_signed=False)
    publisher.publish(FLEET, made=_now())
    copy_boot(publisher, copy)
    assert verify(copy)[:2] == (8, {LIST: "Unsigned"})
    done = run_forked("verify-mirror", copy)
    assert (done.returncode, "unsigned" in done.stdout) == (0, True)
    (copy / FIRST[1:]).unlink()
    assert run_forked("verify-mirror", copy).returncode == 8


def test_a_signed_list_is_compared_without_a_key_and_a_message_says_so(copy: Path) -> None:
    done = run_forked("verify-mirror", copy)
    assert (done.returncode, "gitboot did not check the signatures" in done.stdout) == (0, True)


def test_a_public_key_may_be_a_file_and_must_be_valid(copy: Path, tmp_path: Path, published: SignedSite) -> None:
    (tmp_path / "key").write_text(f"# root of lon1\n{published.key.hex()}\n")
    assert run_forked("verify-mirror", copy, "--key", tmp_path / "key").returncode == 0
    for key in ("x", "ab" * 31, tmp_path):
        done = run_forked("verify-mirror", copy, "--key", key)
        assert (done.returncode, done.stderr.count("\n"), "--key" in done.stderr) == (64, 1, True)


def test_a_mirror_that_denies_the_list_is_one_error_that_names_who_may_read_it(
    mirror: CopyServer, published: SignedSite
) -> None:
    mirror.answers[LIST] = (403, b"")
    done = run_forked("verify-mirror", mirror.url, "--key", published.public)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (6, "", 1)
    assert "spec.provisioning.monitors" in done.stderr


def test_an_absent_root_may_be_denied_as_s3_does(mirror: CopyServer, verify: Verify) -> None:
    mirror.answers["/signed/2.root.json"] = (403, b"<Error><Code>AccessDenied</Code></Error>")
    assert verify(mirror.url)[:2] == (0, {})
    mirror.answers["/signed/1.root.json"] = (403, b"<Error><Code>AccessDenied</Code></Error>")
    assert verify(mirror.url)[:2] == (8, {LIST: "Unsigned"}), "no root at all"


def test_a_list_that_is_published_meanwhile_is_compared_again(publisher: SignedSite, copy: Path) -> None:
    """Files and listings are replaced after the first list was read, and the newer list names what they are now."""
    copy_boot(publisher, copy)

    def begun(_: int) -> None:
        publisher.publish(CHANGED, made=_now())
        copy_boot(publisher, copy)

    look = partial(
        compare_with_list, FolderMirror(copy), [publisher.key], _now(), parallel=2, on_progress=lambda _: None
    )
    assert look(on_start=begun).findings == ()


def test_a_file_that_only_a_newer_list_names_is_compared_too(publisher: SignedSite, copy: Path) -> None:
    """By HTTP, which does not list the files of a mirror."""
    copy_boot(publisher, copy)

    def begun(_: int) -> None:
        shared = {**CHANGED.shared, "boot/added.ipxe": File(b"#!ipxe\n")}
        publisher.publish(replace(CHANGED, shared=shared), made=_now())
        copy_boot(publisher, copy)
        for name in ("added.ipxe", FIRST[1:]):
            (copy / name).write_bytes(b"#!IPXE\n")

    with serve_copy(copy) as mirror:
        opened = WebMirror(mirror.url, None, parallel=2, reads_machine_files=False)
        report = compare_with_list(
            opened, [publisher.key], _now(), parallel=2, on_start=begun, on_progress=lambda _: None
        )
    assert {each.path: each.fault for each in report.findings} == {"added.ipxe": "Wrong", FIRST[1:]: "Wrong"}


# Files that turn

NOW = datetime(2026, 11, 27, 21, tzinfo=UTC)
WINDOW, DISK = FileVersion(None, "a" * 64, 5), FileVersion(NOW, "d" * 64, 5)
LATER = FileVersion(NOW + DAY, None, 0)


def _answer(sha256: str | None, status: int = 200) -> MirrorAnswer:
    return MirrorAnswer(status=status, size=5 if sha256 else None, sha256=sha256)


@pytest.mark.parametrize(
    ("expected", "answer", "fault", "is_turning"),
    [
        pytest.param((DISK,), _answer(DISK.sha256), None, False, id="the version of now"),
        pytest.param((DISK,), _answer(WINDOW.sha256), MirrorFault.STALE, False, id="a window that has ended"),
        pytest.param((DISK,), _answer("e" * 64), MirrorFault.WRONG, False, id="another content"),
        pytest.param((DISK,), _answer(None, 404), MirrorFault.MISSING, False, id="absent"),
        pytest.param((DISK, WINDOW), _answer(WINDOW.sha256), None, True, id="a window that ends now"),
        pytest.param((DISK, WINDOW), _answer("e" * 64), MirrorFault.WRONG, False, id="another content then"),
        pytest.param((None,), _answer(None, 404), None, False, id="a path that is to be absent"),
        pytest.param((None,), _answer(DISK.sha256), MirrorFault.EXTRA, False, id="a path that is there and is to go"),
        pytest.param((None, DISK), _answer(DISK.sha256), None, True, id="a path that is removed now"),
        pytest.param((DISK, None), _answer(None, 404), None, True, id="a path that is added now"),
    ],
)  # fmt: skip
def test_a_file_is_compared_with_the_version_at_the_time_of_the_comparison(
    expected: tuple[FileVersion | None, ...], answer: MirrorAnswer, fault: MirrorFault | None, is_turning: bool
) -> None:
    judged = check_answer(MirrorFile(path="left", expected=expected, versions=(WINDOW, DISK, LATER)), answer)
    assert (judged.finding.fault if judged.finding else None, judged.is_in_transition) == (fault, is_turning)


# Caches


@pytest.mark.parametrize("cache", KEEP_ANSWERS)
def test_finding_m7_a_cache_that_keeps_responses_is_reported_as_one(tmp_path: Path, verify: Verify, cache: str) -> None:
    """The mirror is a real nginx: an earlier check of headers did not find the cache."""
    publisher = SignedSite(tmp_path / "publisher")
    publisher.publish(FLEET, made=_now() - DAY / 2 - DAY / 9)
    root, key = publisher.root, publisher.public
    (tmp_path / "nginx").mkdir()
    with (
        nginx(root / "boot", root / "ops/serve", tmp_path / "nginx") as mirror,
        KEEP_ANSWERS[cache](mirror.url, tmp_path / "cache") as url,
    ):
        assert verify(mirror.url, key=key)[:2] == (0, {})
        assert {*verify(url, key=key)[1].values()} <= {"Cached"}, "the first answers are new, or have an age already"
        publisher.publish(FLEET, made=_now())  # the list is renewed
        assert verify(mirror.url, key=key)[:2] == (0, {})
        assert verify(url, key=key)[1][LIST] == "Cached"
        for each, code in ((mirror.url, 0), (url, 8)):
            assert run_forked("verify-mirror", each, "--tree", root).returncode == code


def test_a_publication_between_two_requests_is_not_a_cache(publisher: SignedSite, copy: Path) -> None:
    copy_boot(publisher, copy)
    publisher.publish(FLEET, made=_now() + DAY / 2 + DAY / 9)
    with serve_copy(copy) as mirror:
        opened = WebMirror(mirror.url, None, parallel=1, reads_machine_files=False)
        get = opened.get

        def get_and_publish(path: str, max_bytes: int) -> bytes | None:
            content = get(path, max_bytes)
            copy_boot(publisher, copy)
            return content

        opened.get = get_and_publish  # type: ignore[method-assign]
        assert [*opened.check_list_caching()] == []
