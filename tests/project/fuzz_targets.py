"""Functions that process bytes of a stranger, each with the defects that must never occur.

Each function takes bytes and ends without an exception, or finds a defect. The suite runs them with Hypothesis and all
seeds in ``fuzz/seeds``; ``fuzz/`` runs them for as long as needed.
"""

from __future__ import annotations

import re
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import cache
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gitboot.artifacts.oci import choose_manifests, group_layers, parse_manifest
from gitboot.bmc.credentials import Credentials
from gitboot.bmc.override_state import Override
from gitboot.bmc.override_steps import NO_OVERRIDE, adapt_override
from gitboot.bmc.redfish.client import BmcConnection
from gitboot.cli.evaluated_fleet import describe_servers
from gitboot.endpoint.age_encryption import AgeKeys, DecryptionError, make_key
from gitboot.errors import BmcBusy, BmcRejected, BmcUnreachable, InvalidRepository, RegistryRefused
from gitboot.fetchlog import access_logs, spool
from gitboot.fetchlog.log_entries import Observation, read_reports, summarise_denials
from gitboot.fetchlog.one_time_boots import ServedBoots
from gitboot.fleet.documents import NotEncrypted, parse_encrypted
from gitboot.fleet.revision import BlobId, Revision, Snapshot
from gitboot.fleet.validation import load
from gitboot.problems import Problem
from gitboot.publish.manifest import parse_digests, parse_head, parse_listing
from gitboot.publish.targets import sync_steps
from gitboot.render import endpoint_files
from gitboot.render.endpoint_files import parse_shard
from gitboot.render.server_files import build_server_state
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from gitboot.resolve.templates import MAX_BYTES, TemplateFault, decode_template, render_template
from gitboot.system_clock import Uptime
from tests.helpers.endpoints import BEFORE, FLEET, Site, connect, read_all
from tests.helpers.fleets import SEED

PASSWORD: Final = "correct-horse-battery"
CANARY: Final = b"canary-in-a-coal-mine"  # in a file beside the tree
_SOUND: Final = "---\n".join(SEED).encode()


# Commits


def document(data: bytes) -> None:
    """A file of a fleet beside a sound one: every problem has a place in it, and no file leaves the tree."""
    _commit({"fleet.yaml": _SOUND, "x.yaml": data})


def fleet(data: bytes) -> None:
    """All of a fleet in one file, with a template that it may name."""
    _commit({"fleet.yaml": data, "t": b"#cloud-config\n{{ server.name }}\n"})


def ignored(data: bytes) -> None:
    """A .gitbootignore."""
    _commit({"fleet.yaml": _SOUND, ".gitbootignore": data})


def _commit(files: Mapping[str, bytes]) -> None:
    blobs = {path: BlobId(sha256(content).hexdigest()) for path, content in files.items()}
    contents = {blobs[path]: content for path, content in files.items()}
    try:
        repository = load(Snapshot(revision=Revision("test"), blobs=blobs, read=contents.__getitem__))
        decisions = decide(repository)
    except InvalidRepository as error:
        _check_problem_places(error.problems, files)
        return
    about = describe_servers(repository, decisions)
    for name, decision in decisions.servers.items():
        found = build_server_state(decisions, decision, Record(), BEFORE, about[name])
        for path in found.files:
            assert path.startswith(("boot/", "ops/")) and not {"", ".", ".."} & set(path.split("/")), path
        assert endpoint_files.parse_state(endpoint_files.render_state(found.published)) == found.published


def _check_problem_places(problems: tuple[Problem, ...], files: Mapping[str, bytes]) -> None:
    assert problems
    for problem in problems:
        assert problem.path in files or problem.path == "fleet.yaml", problem
        assert problem.line >= 1 and problem.column >= 1, problem
        assert str(problem).isprintable(), problem


def template(data: bytes) -> None:
    """A template, with what those of a fleet see."""
    names = {"server": {"name": "web01", "labels": {"site": "fra1"}, "interfaces": [{"mac": "52:54:00:00:00:01"}]}}
    context = {**names, "vars": {"debug": True, "n": "7"}, "urls": {"base": "http://boot.test", "secrets": {}}}
    text, said = "", "fine"
    try:
        text = render_template(decode_template(data), context)
    except TemplateFault as fault:
        said = fault.message
    assert said and len(text.encode()) <= MAX_BYTES


def secret(data: bytes) -> None:
    with suppress(NotEncrypted, DecryptionError):
        _keys().decrypt(parse_encrypted(data))


@cache
def _keys() -> AgeKeys:
    with TemporaryDirectory() as folder:
        make_key(Path(folder) / "keys")
        keys = AgeKeys(Path(folder) / "keys")
        keys.check()
    return keys


# Files of others


def access_log(data: bytes) -> None:
    """Lines of a mirror's access log."""
    for line in data.splitlines(keepends=True):
        found = access_logs.parse_line(line)
        if isinstance(found, Observation):
            assert found.at.tzinfo is not None
            assert found.path.startswith("boot/") and ".." not in found.path.split("/"), found
            spool.encode_line(found)


def spooled(data: bytes) -> None:
    """Read a file of a fetch log and a report, as the instance and the endpoints do."""
    with TemporaryDirectory() as folder:
        for name in ("1-a.jsonl", "1-a.report"):
            (Path(folder) / name).write_bytes(data)
        good = Observation(server="web01", path="boot/x", client="::1", at=BEFORE, modified=1)
        (Path(folder) / "2-b.jsonl").write_bytes(spool.encode_line(good))
        taken = spool.read_new_lines(Path(folder), {})
        assert good in taken.observations
        for each in taken.observations:
            assert each.at.tzinfo is not None
            spool.encode_line(each)
        if (found := ServedBoots(Path(folder)).find("web01", "a" * 64)) is not None:
            found.may_serve_again(BEFORE, Uptime("this", 1))
        ServedBoots(Path(folder)).has_installer_reported("web01", "a" * 64)
        summarise_denials(read_reports(Path(folder), BEFORE).denials)
        spool.delete_finished_files(
            Path(folder), taken.offsets, spool.count_deletions_after(Path(folder), taken.offsets)
        )


def published(data: bytes) -> None:
    """A file of a published tree, which a mirror or a disk may have damaged."""
    parsers: tuple[Callable[[bytes], object], ...] = (
        *(endpoint_files.parse_state, endpoint_files.parse_terms, parse_shard),
        *(parse_digests, parse_head, parse_listing),
    )
    for parse in parsers:
        with suppress(ValueError):
            parse(data)


# Servers and clients


def redfish(data: bytes) -> None:
    """Run the real client against a BMC that responds with these bytes, one part for each request."""
    bmc = _bmc()
    bmc.answers = iter(data.split(b"\n~~\n"))
    wanted = Override(
        enabled=OverrideEnabled.ONCE, target=OverrideTarget.UEFI_HTTP, mode="UEFI", http_boot_uri="http://boot.test/x"
    )
    credentials = Credentials(username="root", password=PASSWORD, name="rack")
    said = ""
    try:
        with BmcConnection(bmc.url, credentials, connect_timeout_s=5, read_timeout_s=5) as connection:
            seen = connection.observe()
            seen = connection.read_clock(seen, lambda: BEFORE)
            if (override := adapt_override(wanted, seen)) is not None:
                connection.set_override(override, seen)
            connection.set_override(NO_OVERRIDE, seen)
    except (BmcUnreachable, BmcBusy, BmcRejected) as error:
        said = str(error)
    assert PASSWORD not in said and b64encode(f"root:{PASSWORD}".encode()).decode() not in said
    assert len(said) < 2_000, said


class _Bmc(ThreadingHTTPServer):
    daemon_threads = True
    answers: Iterator[bytes] = iter(())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: object) -> None:
        """Ignore the error: a client may leave at any time."""


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Bmc

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(length)
        answer = next(self.server.answers, b"")
        status, body = answer[:3], answer[3:]
        if not (status.isdigit() and body[:1] in (b"{", b"[")):
            self.wfile.write(answer)
            self.close_connection = True
            return
        head = f"HTTP/1.1 {status.decode()} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    do_PATCH = do_GET  # noqa: N815 - http.server calls it so

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@cache
def _bmc() -> _Bmc:
    server = _Bmc(("127.0.0.1", 0), _Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def head(data: bytes) -> None:
    """Send these bytes to a real endpoint: it never serves a file outside the tree, and has no fault."""
    url = _endpoint()
    with closing(connect(url)) as client:
        with suppress(OSError):  # it may have been refused before it was whole
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        answer = read_all(client)
    assert CANARY not in answer
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:100]
    for line in answer.split(b"\r\n"):
        assert not line.startswith(b"HTTP/1.1 5") or line.startswith(b"HTTP/1.1 503"), (data, line)


_stack: Final = ExitStack()  # for as long as the process runs


@cache
def _endpoint() -> str:
    folder = Path(_stack.enter_context(TemporaryDirectory())) / "site"
    root = folder / "output"
    root.mkdir(parents=True)
    for place in (folder / "canary", root / "canary", folder.parent / "canary"):
        place.write_bytes(CANARY)
    site = Site(root)
    site.publish(FLEET)
    return _stack.enter_context(site.serve(assets=_assets(folder)))


def _assets(folder: Path) -> Path:
    assets = folder / "assets"
    assets.mkdir()
    (assets / "kernel").write_bytes(b"kernel")
    return assets


# Responses of a registry


def manifest(data: bytes) -> None:
    """An index or manifest: what a BootImage would be made of it is named by digests, or it is refused."""
    with suppress(RegistryRefused):
        found = parse_manifest(data, "x")
        for each in choose_manifests(found.manifests or (), "", "x").values() if found.manifests is not None else ():
            assert re.fullmatch("[0-9a-f]{64}", each.sha256)
        for several in group_layers(found.layers, "x").values() if found.layers is not None else ():
            assert all(re.fullmatch("[0-9a-f]{64}", each.sha256) for each in several)


def followed(data: bytes) -> None:
    """Parse the record in a branch or a bucket: it is valid, or a ValueError is raised."""
    with suppress(ValueError):
        assert all(isinstance(digest, str) for digest in sync_steps.parse_head(data).shards.values())
    with suppress(ValueError):
        units = sync_steps.parse_units(data)
        assert sync_steps.parse_units(sync_steps.render_units(units)) == units
    with suppress(ValueError):
        paths = sync_steps.parse_unlisted(data)
        assert sync_steps.parse_unlisted(sync_steps.render_unlisted(paths)) == paths
        assert all(path.startswith("boot/") and not {"", ".", ".."} & {*path.split("/")} for path in paths)


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    each.__name__: each
    for each in (
        document,
        fleet,
        ignored,
        template,
        secret,
        access_log,
        spooled,
        published,
        redfish,
        head,
        manifest,
        followed,
    )
}

# Parts of edits: words that the readers of these bytes treat specially.
WORDS: Final[tuple[bytes, ...]] = tuple(
    word.encode()
    for word in (
        *("\n", "\r\n", " ", "\0", "\ufeff", "é", "\u2028", "'", '"', "\\", "{", "}", "[", "]", ":", ",", "-", "~"),
        *("{{", "}}", "{%", "%}", "|", "null", "true", "0", "-1", "1e999", "9" * 30, "NaN", "*a", "&a", "!!python/x"),
        *("---\n", "...", "<<: ", "\t", "../", "/..%2f", "%00", "//", "?", "#", "HTTP/1.1", "Host: x\r\n"),
        *("Content-Length: 9\r\n", "Transfer-Encoding: chunked\r\n", "X-Forwarded-For: ", "GET ", "HEAD ", "POST "),
        *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-11-20T22:00:00", "metadata", "spec", "kind"),
    )
)


def seeds(target: str) -> list[Path]:
    """Bytes that are near to what a place expects, and those that once found a defect."""
    return sorted((Path(__file__).parents[2] / "fuzz" / "seeds" / target).iterdir())
