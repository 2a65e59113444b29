"""`gitboot verify-mirror`: mirrors that lag behind, lose, change and keep what they should not, each by name."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import formatdate
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from gitboot.http_client import MinimumRate
from gitboot.publish.mirror_comparison import (
    SAMPLE_SIZE,
    FolderMirror,
    MirrorAnswer,
    MirrorFault,
    MirrorFile,
    WebMirror,
    check_absence,
    check_answer,
    compare_mirror,
    find_leftover_paths,
    read_expected_files,
)
from gitboot.publish.signed_list_reader import FileVersion
from gitboot.render.paths import IPXE_BY_MAC, PXELINUX, find_content_type, find_path_kind
from tests.helpers.cases import for_each
from tests.helpers.documentation import find_mirror_file, write_mirror_script
from tests.helpers.endpoints import BEFORE, ENTRY, MAC, Site, plan_fleet
from tests.helpers.fleets import SEED, fleet, policy, server
from tests.helpers.forked_commands import run_forked
from tests.helpers.git_repositories import free_port, program, run_daemon
from tests.helpers.http_peers import StrangeClient, run_server, strange_server

FLEET = plan_fleet(
    fleet("baseURL: 'http://boot.test', provisioning: {evidence: Reported}"),
    server("new01", "role: new", "provision: 1"),
    policy("new", "{matchLabels: {role: new}}", often="Once"),
    *SEED[1:],
)
NOBODY = "/v1/boot/02-00-00-00-00-00/boot.ipxe"
FIRST = "/boot.ipxe"
BY_MAC = f"/grub.cfg-01-{MAC}"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("published") / "output"
    Site(root).publish(FLEET)
    return root


@pytest.fixture
def copy(output: Path, tmp_path: Path) -> Path:
    return shutil.copytree(output / "boot", tmp_path / "boot")


@dataclass
class CopyServer:
    """A web server over a copy with faults for some paths; None means that a header is not sent."""

    folder: Path
    url: str = ""
    headers: dict[str, Mapping[str, str | None]] = field(default_factory=dict)
    answers: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    default_answer: tuple[int, bytes] = (404, b"#")
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    connections: int = 0

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        file = self.folder / path.removeprefix("/")
        if path in self.answers or not file.is_file():
            status, content = self.answers.get(path, self.default_answer)
            headers: dict[str, str | None] = {"Cache-Control": "no-store"}
        else:
            status, content = 200, file.read_bytes()
            headers = {
                "Content-Type": find_content_type(f"boot{path}"),
                "Cache-Control": "no-store",
                "Last-Modified": formatdate(int(file.stat().st_mtime), usegmt=True),
            }
        headers |= {"Content-Length": str(len(content)), **self.headers.get(path, {})}
        return status, content, {name: value for name, value in headers.items() if value is not None}


@contextmanager
def serve_copy(folder: Path, context: ssl.SSLContext | None = None) -> Iterator[CopyServer]:
    copy = CopyServer(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            copy.connections += 1

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            copy.asked[self.command, path] += 1
            status, content, headers = copy.answer(path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                with suppress(OSError):  # the client does not want the rest
                    self.wfile.write(content)
            self.close_connection = "Content-Length" not in headers

        do_HEAD = do_GET  # noqa: N815 - http.server looks for it

        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    with run_server(Handler, context) as copy.url:
        yield copy


@pytest.fixture
def mirror(copy: Path) -> Iterator[CopyServer]:
    with serve_copy(copy) as mirror:
        yield mirror


Verify = Callable[..., tuple[int, dict[str, str]]]


def run_verify(*arguments: object) -> tuple[int, str, str]:
    done = run_forked("verify-mirror", *arguments)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def verify(output: Path) -> Verify:
    """Type the command: its exit code, and the faults by path."""

    def verify(mirror: object, *more: object) -> tuple[int, dict[str, str]]:
        code, out, err = run_verify("--tree", output, mirror, "-o", "json", *more)
        assert out, err
        return code, {f"/{each['path']}": each["fault"] for each in json.loads(out)["items"]}

    return verify


# Over HTTP


def test_a_copy_matches_the_tree_and_the_comparison_makes_no_fetch_of_a_machine(
    mirror: CopyServer, output: Path, verify: Verify
) -> None:
    assert verify(mirror.url) == (0, {})
    asked = {path for _, path in mirror.asked}
    assert {FIRST, "/unknown.ipxe"} <= asked
    evidence = {f"/{path}" for path, file in read_expected_files(output).items() if file.is_evidence}
    assert ENTRY in evidence and evidence & asked == set(), "a cache turns a HEAD into a GET"
    assert mirror.connections <= 16 * 2, "connections are kept"


def test_all_files_of_a_mirror_without_a_log_of_reads_may_be_read(
    mirror: CopyServer, copy: Path, verify: Verify
) -> None:
    entry = copy / ENTRY[1:]
    before = entry.stat()
    entry.write_bytes(entry.read_bytes()[::-1])
    os.utime(entry, (before.st_mtime, before.st_mtime))
    assert verify(mirror.url) == (0, {}), "of the same size and time"
    assert verify(mirror.url, "--read-entries") == (8, {ENTRY: "Wrong"})
    assert (mirror.asked["HEAD", ENTRY], mirror.asked["GET", ENTRY]) == (0, 1), "as loaders ask"
    assert mirror.asked["HEAD", FIRST] == mirror.asked["GET", FIRST] == 2, "as firmware asks, in both comparisons"


BEFORE_TEXT, OTHER_TEXT = b"#!ipxe\n# before\n", b"#!ipxe\n# whatever\n"


def change_file(path: Path, content: bytes | None, seconds: int = 0) -> None:
    """Give a file another content, if that is not None, and change its time by so many seconds."""
    if content is not None:
        path.write_bytes(content)
    at = path.stat().st_mtime + seconds
    os.utime(path, (at, at))


@for_each(
    ("entry", "first", "faults"),
    [
        ((BEFORE_TEXT, -(10**9)), (BEFORE_TEXT, -(10**9)), ["Stale", "Stale"]),
        ((None, -60), (None, -60), ["Undated", None]),  # the script was the same before
        ((OTHER_TEXT, 0), (OTHER_TEXT, 0), ["Wrong", "Wrong"]),
        ((None, 60), (None, 60), ["Undated", None]),  # the time of the script proves nothing anyway
        (None, None, ["Missing", "Missing"]),
    ],
)
def test_each_fault_of_a_boot_script_and_of_another_script_has_its_own_name(
    mirror: CopyServer,
    copy: Path,
    output: Path,
    verify: Verify,
    entry: tuple[bytes | None, int] | None,
    first: tuple[bytes | None, int] | None,
    faults: list[str | None],
) -> None:
    for path, changed in ((ENTRY, entry), (FIRST, first)):
        shutil.copy2(output / f"boot{path}", copy / path[1:])
        if changed is None:
            (copy / path[1:]).unlink()
        else:
            change_file(copy / path[1:], *changed)
    found = {path: fault for path, fault in zip((ENTRY, FIRST), faults, strict=True) if fault is not None}
    assert verify(mirror.url, "--read-entries") == (8, found)


@for_each(
    ("headers", "faults"),
    [
        (
            {
                FIRST: {"Content-Type": "application/octet-stream"},
                ENTRY: {"Cache-Control": None},
                NOBODY: {"Cache-Control": None},
            },
            {FIRST: "Mistyped", ENTRY: "Cacheable", NOBODY: "Cacheable"},
        ),
        (
            {FIRST: {"Content-Type": None}, ENTRY: {"Cache-Control": "public, max-age=60"}},
            {FIRST: "Mistyped", ENTRY: "Cacheable"},
        ),
        ({FIRST: {"Content-Length": None}, ENTRY: {"Last-Modified": None}}, {FIRST: "Unsized", ENTRY: "Undated"}),
        ({ENTRY: {"Last-Modified": "yesterday"}}, {ENTRY: "Undated"}),
        ({FIRST: {"Content-Encoding": "gzip"}}, {FIRST: "Wrong"}),
        ({FIRST: {"Cache-Control": None}}, {FIRST: "Cacheable"}),
        ({FIRST: {"Cache-Control": "max-age=300"}}, {FIRST: "Cacheable"}),
        ({FIRST: {"Content-Type": "TEXT/plain"}, ENTRY: {"Cache-Control": "No-Cache, private"}}, {}),
        ({FIRST: {"Cache-Control": "no-cache"}}, {}),
    ],
)
def test_headers_for_firmware_loaders_and_proxies_are_checked(
    mirror: CopyServer, verify: Verify, headers: dict[str, Mapping[str, str | None]], faults: dict[str, str]
) -> None:
    mirror.headers = headers
    assert verify(mirror.url, "--read-entries") == (8 if faults else 0, faults)


def test_a_redirect_is_not_followed(mirror: CopyServer, output: Path, verify: Verify) -> None:
    for path in (FIRST, ENTRY):
        mirror.answers[path] = (302, b"")
        mirror.headers[path] = {"Location": f"{mirror.url}/elsewhere?sig=s3cret"}
    assert verify(mirror.url, "--read-entries") == (8, {FIRST: "Redirected", ENTRY: "Redirected"})
    assert not [path for _, path in mirror.asked if path.startswith("/elsewhere")]
    _, out, err = run_verify("--tree", output, mirror.url, "--read-entries")
    assert f"redirects to {mirror.url}/elsewhere, but" in " ".join(out.split()).replace("/ elsewhere", "/elsewhere")
    assert "s3cret" not in out + err


def test_a_server_with_a_response_for_every_path_is_a_finding(mirror: CopyServer, verify: Verify) -> None:
    shutil.rmtree(mirror.folder)
    mirror.default_answer = (200, b"<html>Welcome!</html>")
    code, found = verify(mirror.url, "--read-entries")
    assert (code, found[NOBODY], found["/ops/manifest.json"], found["/"]) == (8, "Extra", "Extra", "Extra")
    assert (found[FIRST], found[ENTRY]) == ("Wrong", "Wrong")


def test_p3_a_404_with_a_body_is_not_a_404_for_grub(mirror: CopyServer, output: Path, verify: Verify) -> None:
    xml = b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>"  # of a bucket
    for body in (b"<h1>Not found</h1>", b"#\nreboot\n", xml):
        mirror.default_answer = (404, body)
        assert verify(mirror.url) == (8, {NOBODY: "Wrong"}), body
    (finding,) = json.loads(run_verify("--tree", output, mirror.url, "-o", "json")[1])["items"]
    message = "the body of the 404 response must be `#`, because GRUB executes the body as its configuration"
    assert finding["message"] == message


def place_shim(copy: Path, architecture: str = "x64") -> None:
    (copy / "assets/loaders").mkdir(parents=True)
    (copy / f"assets/loaders/shim{architecture}.efi").write_bytes(b"MZ")


@pytest.mark.parametrize(("status", "architecture"), [(404, "x64"), (410, "aa64")])
def test_p3_a_404_with_an_empty_body_is_a_finding_because_shim_waits_for_it(
    mirror: CopyServer, copy: Path, output: Path, verify: Verify, status: int, architecture: str
) -> None:
    place_shim(copy, architecture)
    mirror.default_answer = (status, b"")
    assert verify(mirror.url) == (8, {NOBODY: "Wrong"})
    (finding,) = json.loads(run_verify("--tree", output, mirror.url, "-o", "json")[1])["items"]
    assert finding["message"] == (
        f"the {status} response has an empty body, so shim waits forever. Set the body to `#` with error_page in nginx "
        "or handle_errors in Caddy (see OUTPUT/ops/serve), or with the CDN's custom error response"
    )
    mirror.default_answer = (status, b"#")
    assert verify(mirror.url) == (0, {})


def test_a_404_with_an_empty_body_is_right_if_machines_do_not_load_shim(mirror: CopyServer, verify: Verify) -> None:
    mirror.default_answer = (404, b"")
    assert verify(mirror.url) == (0, {})


@pytest.mark.parametrize("body", [b"", b"<?xml version='1.0'?><Error/>"])
@pytest.mark.parametrize(("outputs", "result"), [("ipxe, pxelinux", 0), ("ipxe, grub", 8)])
def test_the_body_of_a_404_matters_only_to_loaders_of_the_fleet(
    tmp_path: Path, body: bytes, outputs: str, result: int
) -> None:
    root = tmp_path / "output"
    Site(root).publish(plan_fleet(fleet(f"baseURL: 'http://boot.test', outputs: [{outputs}]"), *SEED[1:]))
    place_shim(root / "boot")
    with serve_copy(root / "boot") as mirror:
        mirror.default_answer = (404, body)
        code, shown, _ = run_verify("--tree", root, mirror.url)
        assert (code, "the 404 response " in shown) == (result, bool(result)), shown
        mirror.default_answer = (404, b"#")
        assert run_verify("--tree", root, mirror.url)[0] == 0


def test_an_absent_grub_script_with_a_body_is_a_finding() -> None:
    answer = MirrorAnswer(status=404, sha256="a" * 64, has_body=True)
    found = check_absence("grub.cfg-01-52-54-00-00-00-01", answer, "why")
    assert found is not None and found.fault is MirrorFault.WRONG
    assert check_absence("ipxe/1.ipxe", answer, "why") is None


def test_removed_files_must_be_absent(mirror: CopyServer, copy: Path, verify: Verify) -> None:
    (copy / "pxelinux.cfg").mkdir(exist_ok=True)
    (copy / f"pxelinux.cfg/01-{MAC}").write_text("DEFAULT install\n")
    assert verify(mirror.url) == (8, {f"/pxelinux.cfg/01-{MAC}": "Extra"})


def test_a_missing_response_is_unknown_and_not_a_fault_of_the_copy(mirror: CopyServer, verify: Verify) -> None:
    for path, status in ((FIRST, 503), (ENTRY, 429)):
        mirror.answers[path] = (status, b"")
    assert verify(mirror.url, "--read-entries") == (6, {FIRST: "Unknown", ENTRY: "Unknown"})


def test_a_file_that_is_sent_slowly_without_end_is_unknown(output: Path) -> None:
    file = min(read_expected_files(output).values(), key=lambda each: each.path)
    size = file.versions[0].size_bytes

    def answer(client: StrangeClient) -> None:
        client.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        if asked.requests[-1].startswith(b"GET"):
            client.drip(b"")

    rate = MinimumRate(size_bytes=1 << 20, period_s=0.4)
    with strange_server(answer) as asked:
        mirror = WebMirror(asked.url, None, parallel=1, reads_machine_files=True, rate=rate)
        assert "the host sent less than 1048576 bytes" in mirror.read(file.path, (size,)).failure


def test_an_unreachable_mirror_is_one_error(output: Path) -> None:
    code, out, err = run_verify("--tree", output, f"http://127.0.0.1:{free_port()}")
    assert (code, out, err.count("\n")) == (6, "", 1)
    assert "Connection refused" in err


def test_a_certificate_has_to_be_trusted_and_an_authority_can_be_named(
    copy: Path, tmp_path: Path, output: Path, verify: Verify
) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    subject = ("-subj", "/CN=mirror", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
    subprocess.run([program("openssl", "openssl"), *made, *subject], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serve_copy(copy, context) as mirror:
        code, _, err = run_verify("--tree", output, mirror.url)
        assert (code, "certificate verify failed" in err) == (6, True)
        assert verify(mirror.url, "--ca-bundle", certificate) == (0, {})


def test_the_table_has_each_finding_with_its_reason_and_a_summary(mirror: CopyServer, copy: Path, output: Path) -> None:
    (copy / ENTRY[1:]).unlink()
    change_file(copy / FIRST[1:], BEFORE_TEXT, -(10**9))
    code, out, _ = run_verify("--tree", output, mirror.url, "--read-entries")
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    assert code == 8
    assert rows[0] == ["RESULT", "PATH", "REASON"]
    assert [row[:2] for row in rows[1:3]] == [["Stale", FIRST], ["Missing", ENTRY]]
    assert out.splitlines()[-1].endswith("files: 1 missing, 1 stale")


# Folders


def test_all_files_of_a_folder_are_compared(output: Path, copy: Path, verify: Verify) -> None:
    assert verify(copy) == verify(f"file://{copy}") == (0, {})
    gone = "/v1/boot/52-54-00-99-99-99/boot.ipxe"  # of a server that is nowhere any more
    (copy / gone[1:]).parent.mkdir(parents=True)
    (copy / gone[1:]).write_text("#!ipxe\n")
    (output / "boot/assets").mkdir()
    for folder in (output / "boot", copy):
        (folder / "assets").mkdir(exist_ok=True)
        (folder / "assets/linux").write_text("laid there by a person")
    try:
        (copy / FIRST[1:]).unlink()
        change_file(copy / ENTRY[1:], None, 60)
        change_file(copy / BY_MAC[1:], OTHER_TEXT)
        found = {gone: "Extra", FIRST: "Missing", ENTRY: "Undated", BY_MAC: "Wrong"}
        assert verify(copy) == (8, found)
    finally:
        shutil.rmtree(output / "boot/assets")


DAEMON = find_mirror_file("# /etc/rsyncd.conf\n")


@pytest.fixture
def source(output: Path, tmp_path: Path) -> Iterator[str]:
    port, rsync = free_port(), program("rsync", "rsync")
    (output / "boot/o").mkdir(exist_ok=True)
    (timestamp := output / "boot/signed/timestamp.json").write_text("{}\n")
    daemon = DAEMON.replace("uid = gitboot", f"uid = {os.geteuid()}").replace("gid = gitboot", f"gid = {os.getegid()}")
    (tmp_path / "rsyncd.conf").write_text(daemon.replace("OUTPUT", str(output)))
    command = [rsync, "--daemon", "--no-detach", f"--config={tmp_path}/rsyncd.conf"]
    with run_daemon([*command, "--address=127.0.0.1", f"--port={port}"], port, os.environ):
        yield f"rsync://127.0.0.1:{port}/boot"
    timestamp.unlink()


def test_a_copy_by_the_script_in_the_documentation_matches_the_tree(
    source: str, tmp_path: Path, verify: Verify
) -> None:
    script = write_mirror_script(folder := tmp_path / "srv")
    for served in ("a", "b", "a"):
        subprocess.run([script, source], check=True)
        assert (folder / "current").readlink() == Path(served)
        assert verify(folder / "current") == (0, {})
        (folder / "current/left").touch()
        change_file(folder / "current" / ENTRY[1:], BEFORE_TEXT, -(10**9))
        assert verify(folder / "current") == (8, {"/left": "Extra", ENTRY: "Stale"})


def test_files_that_are_published_meanwhile_are_compared_again(tmp_path: Path) -> None:
    site = Site(tmp_path / "output")
    site.publish(FLEET)

    def publish(_: int) -> None:
        site.publish(plan_fleet(*SEED), commit="feed", at=BEFORE + timedelta(hours=1))

    mirror = FolderMirror(tmp_path / "output/boot", tmp_path / "output")
    found = compare_mirror(
        partial(read_expected_files, tmp_path / "output"),
        mirror,
        parallel=2,
        on_start=publish,
        on_progress=lambda _: None,
    )
    assert (found.findings, found.files, found.unread) == ((), len(FLEET.boot_files), ())


@pytest.mark.parametrize("where", ["nowhere", "file:///nowhere", "ftp://127.0.0.1/x", "https://a:b@c/x"])
def test_a_malformed_mirror_is_a_usage_error(output: Path, where: str) -> None:
    code, _, err = run_verify("--tree", output, where)
    assert (code, "a:b" in err) == (64, False)


def test_a_folder_without_a_tree_is_rejected(tmp_path: Path) -> None:
    code, _, err = run_verify("--tree", tmp_path, tmp_path)
    assert (code, "expected an output tree" in err) == (8, True)


# Findings


def test_an_absent_path_is_absent_with_any_error_status() -> None:
    assert check_absence("x", MirrorAnswer(status=403), "why") is None
    found = check_absence("x", MirrorAnswer(status=502), "why")
    assert found is not None and found.fault is MirrorFault.UNKNOWN


def test_content_at_a_digest_path_was_never_different() -> None:
    version = FileVersion(None, "b" * 64, 3)
    file = MirrorFile(path=f"o/{'a' * 64}/user-data", expected=(version,), versions=(version,), modified=1000)
    found = check_answer(file, MirrorAnswer(status=200, size=4, modified=1)).finding
    assert found is not None and found.fault is MirrorFault.WRONG


def test_paths_of_a_kind_without_servers_are_checked_for_a_sample_of_machines() -> None:
    macs = [f"02-00-00-00-{number >> 8:02x}-{number & 255:02x}" for number in range(10 * SAMPLE_SIZE)]
    found = find_leftover_paths([f"grub.cfg-01-{mac}" for mac in macs] + [f"v1/boot/{macs[0]}/boot.ipxe"])
    by_kind = Counter(find_path_kind(f"boot/{path}") for path in found)
    assert by_kind.pop(IPXE_BY_MAC) == len(macs) - 1
    assert set(by_kind.values()) == {SAMPLE_SIZE}
    assert PXELINUX in by_kind


def test_leftover_paths_belong_to_the_same_machines() -> None:
    colons = MAC.replace("-", ":")
    assert find_leftover_paths(["boot.ipxe", f"v1/boot/{MAC}/boot.ipxe"]) == (
        f"{colons}/auto.ipxe",
        f"MAC-{MAC.replace('-', '')}.ipxe",
        f"grub.cfg-01-{MAC}",
        f"ipxe/script/{colons}/auto.ipxe",
        f"pixiecore/v1/boot/{colons}",
        f"pxelinux.cfg/01-{MAC}",
        f"v1/boot/{MAC}/bootparameters.json",
        f"v1/boot/{MAC}/grub.cfg",
    )
