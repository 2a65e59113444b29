"""Git repositories, servers of them (correct and faulty), and people who sign commits and files."""

from __future__ import annotations

import base64
import getpass
import hashlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import zlib
from base64 import b64decode, encodebytes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from itertools import repeat
from pathlib import Path
from typing import Any

import pygit2
import pytest

from gitboot.fleet.revision import Revision
from tests.helpers.http_peers import WebServer

# Git repositories as people make them, and commits and packs that no git program writes.

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "GIT_AUTHOR_NAME": "Ada Lovelace",
    "GIT_AUTHOR_EMAIL": "ada@example.net",
    "GIT_AUTHOR_DATE": "2026-11-20T22:00:00+01:00",
    "GIT_COMMITTER_NAME": "Merge Bot",
    "GIT_COMMITTER_EMAIL": "bot@example.net",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",  # a commit starts no program that looks whether there is something to tidy up
    "GIT_CONFIG_KEY_0": "maintenance.auto",
    "GIT_CONFIG_VALUE_0": "false",
    "HOME": os.devnull,
}
_ADA = pygit2.Signature(
    ENVIRONMENT["GIT_AUTHOR_NAME"],
    ENVIRONMENT["GIT_AUTHOR_EMAIL"],
    int(datetime.fromisoformat(ENVIRONMENT["GIT_AUTHOR_DATE"]).timestamp()),
    60,  # minutes: its zone
)


class WorkTree:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if not (path / ".git").exists():  # that is of a linked work tree
            pygit2.init_repository(str(path), initial_head="main")

    def git(self, *arguments: str, text: str = "") -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=ENVIRONMENT, input=text, capture_output=True, text=True, check=True
        ).stdout.strip()

    def write(self, files: Mapping[str, str | None]) -> None:
        for name, text in files.items():
            path = self.path / name
            if text is None:
                path.unlink()
                if path.parent != self.path and not any(path.parent.iterdir()):
                    path.parent.rmdir()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def commit(self, files: Mapping[str, str | None] | None = None, message: str = "Change") -> Revision:
        self.write(files or {})
        repository = pygit2.Repository(str(self.path))  # in this process: git would be started three times
        repository.index.add_all()
        repository.index.write()
        parents = [] if repository.head_is_unborn else [repository.head.target]
        bot = pygit2.Signature(ENVIRONMENT["GIT_COMMITTER_NAME"], ENVIRONMENT["GIT_COMMITTER_EMAIL"])
        tree = repository.index.write_tree()
        return Revision(str(repository.create_commit("HEAD", _ADA, bot, f"{message.strip()}\n", tree, parents)))

    @property
    def head(self) -> Revision:
        return Revision(str(pygit2.Repository(str(self.path)).head.target))

    def bare(self, path: Path) -> Path:
        """A bare repository with the same branches and tags, which ``git push`` goes to from now on."""
        self.git("clone", "--quiet", "--bare", str(self.path), str(path))
        self.git("remote", "add", "origin", str(path))
        return path


_MALFORMED_ADA = b"Ada <ada@example.net> 1700000000 +0000"


def _build_commit(
    author: bytes | None = _MALFORMED_ADA,
    committer: bytes | None = _MALFORMED_ADA,
    more: bytes = b"",
    end: bytes = b"\n",
) -> bytes:
    """A commit with TREE and PARENT as places for two ids."""
    people = b"".join(
        b"%b %b\n" % (header, person)
        for header, person in ((b"author", author), (b"committer", committer))
        if person is not None
    )
    return b"tree TREE\nparent PARENT\n" + people + more + end + b"Malformed\n"


MALFORMED: Mapping[str, bytes] = {
    "badDate": _build_commit(b"Ada <ada@example.net> soon +0000"),
    "badDateOverflow": _build_commit(b"Ada <ada@example.net> 99999999999999999999999 +0000"),
    "badEmail": _build_commit(b"Ada <ada@exam<ple.net> 1700000000 +0000"),
    "badName": _build_commit(b"Ada> <ada@example.net> 1700000000 +0000"),
    "badTimezone": _build_commit(b"Ada <ada@example.net> 1700000000 +99999999"),
    "badGpgsig": _build_commit(more=b"gpgsig\n"),
    "missingAuthor": _build_commit(author=None),
    "missingCommitter": _build_commit(committer=None),
    "missingBoth": _build_commit(None, None),
    "missingDate": _build_commit(b"Ada <ada@example.net>"),
    "missingEmail": _build_commit(b"Ada 1700000000 +0000"),
    "missingEmailOfCommitter": _build_commit(committer=b"Ada 1700000000 +0000"),
    "missingEmailEnd": _build_commit(
        b"Ada <ada@example.net 1700000000 +0000", b"Ada <ada@example.net 1700000000 +0000"
    ),
    "missingNameBeforeEmail": _build_commit(b"<ada@example.net> 1700000000 +0000"),
    "missingPerson": _build_commit(b"", b""),
    "missingSpaceBeforeDate": _build_commit(b"Ada <ada@example.net>1700000000 +0000"),
    "missingSpaceBeforeEmail": _build_commit(b"Ada<ada@example.net> 1700000000 +0000"),
    "multipleAuthors": _build_commit(more=b"author Bob\nauthor <>\n"),
    "multipleCommitters": _build_commit(more=b"committer Bob\n"),
    "negativeDate": _build_commit(b"Ada <ada@example.net> -1 +0000", b"Ada <ada@example.net> -99999999999 +0000"),
    "hugeDate": _build_commit(b"Ada <ada@example.net> 999999999999999999 +0000", b"Ada <a@b> 999999999999999999 +0000"),
    "nulInCommit": _build_commit(end=b"\n\0"),
    "nulInHeader": _build_commit(b"A\0da <ada@example.net> 1700000000 +0000"),
    "notUtf8": _build_commit(b"\xff\xfe <\xff> 1700000000 +0000", more=b"encoding none-such\n"),
    "unterminatedHeader": _build_commit(end=b""),
    "zeroPaddedDate": _build_commit(b"Ada <ada@example.net> 01700000000 +0000"),
}


def commit_malformed(work: WorkTree, raw: bytes) -> Revision:
    """Put a commit of these bytes on the branch. It has the tree of the commit before."""
    if b"TREE" in raw:
        raw = raw.replace(b"TREE", work.git("rev-parse", "HEAD^{tree}").encode())
    raw = raw.replace(b"PARENT", work.git("rev-parse", "HEAD").encode())
    revision = _write_commit(work, raw)
    branch = work.git("symbolic-ref", "HEAD")
    (work.path / ".git" / branch).write_text(f"{revision}\n")  # git points no branch at some of them
    return revision


def _write_commit(work: WorkTree, raw: bytes) -> Revision:
    """Write a commit of exactly these bytes into the repository."""
    command = ["git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally"]
    made = subprocess.run(command, cwd=work.path, env=ENVIRONMENT, input=raw, capture_output=True, check=True)
    return Revision(made.stdout.decode().strip())


def commit_by_git(work: WorkTree, files: Mapping[str, str | None], message: str = "Change") -> Revision:
    """Make a commit with git itself: libgit2 cannot commit on a commit that it cannot parse."""
    work.write(files)
    work.git("add", "--all")
    work.git("commit", "--quiet", f"--message={message}")
    return work.head


_MIB = 1 << 20
_BLOB, _REF_DELTA = 3, 7


def store_zeros(objects: Path, kind: str, mebibytes: int, *, beginning: bytes = b"", end: bytes = b"") -> str:
    """Store an object of so many MiB of zeros, which takes a few KB; return its id. Git takes four times as long."""
    parts, size = (beginning, *_zeros(mebibytes), end), len(beginning) + mebibytes * _MIB + len(end)
    name = _hash_object(parts, size, kind)
    path = objects / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(_compress((f"{kind} {size}\0".encode(), *parts)))
    return name


def push_differences(bare: Path, mebibytes: int) -> str:
    """Commit a file of so many MiB and a second one that is sent as a delta of it; some hundred KB in all.

    A normal client that unpacks the second one has both in memory.
    """
    size, end = mebibytes * _MIB, b"another end"
    base = _hash_object(_zeros(mebibytes), size)
    difference = b"".join(
        (_encode_number(size), _encode_number(size + len(end)), _build_copies(mebibytes), bytes([len(end)]), end)
    )
    pack = b"".join(
        (
            b"PACK" + (2).to_bytes(4) + (2).to_bytes(4),
            *(_encode_header(_BLOB, size), _compress(_zeros(mebibytes))),
            *(_encode_header(_REF_DELTA, len(difference)), bytes.fromhex(base), zlib.compress(difference)),
        )
    )
    _git(bare, "index-pack", "--stdin", stdin=pack + hashlib.sha1(pack, usedforsecurity=False).digest())
    other = _hash_object((*_zeros(mebibytes), end), size + len(end))
    kept = _git(bare, "ls-tree", "main")
    tree = _git(
        bare, "mktree", stdin=f"{kept}\n100644 blob {base}\tbig0.yaml\n100644 blob {other}\tbig1.yaml\n".encode()
    )
    commit = _git(bare, "commit-tree", "-p", "main", "-m", "Large", tree)
    _git(bare, "update-ref", "refs/heads/main", commit)
    return commit


def _zeros(mebibytes: int) -> tuple[bytes, ...]:
    return tuple(repeat(bytes(_MIB), mebibytes))


def _hash_object(parts: tuple[bytes, ...], size: int, kind: str = "blob") -> str:
    made = hashlib.sha1(f"{kind} {size}\0".encode(), usedforsecurity=False)
    for part in parts:
        made.update(part)
    return made.hexdigest()


def _compress(parts: tuple[bytes, ...]) -> bytes:
    packer = zlib.compressobj(1)
    return b"".join((*(packer.compress(part) for part in parts), packer.flush()))


def _encode_header(kind: int, size: int) -> bytes:
    """The type and the size of an object; gitformat-pack(5), "Size encoding"."""
    first, rest = kind << 4 | size & 0x0F, size >> 4
    return bytes([first | (0x80 if rest else 0)]) + (_encode_number(rest) if rest else b"")


def _encode_number(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _build_copies(mebibytes: int) -> bytes:
    """Instructions to copy the base, a MiB each; the same page, "Instruction to copy from base object"."""
    return b"".join(
        bytes([0x80 | 0x0F | 0x40]) + (at * _MIB).to_bytes(4, "little") + b"\x10" for at in range(mebibytes)
    )


def _git(bare: Path, *arguments: str, stdin: bytes = b"") -> str:
    person = {f"GIT_{who}_{what}": "a@example.net" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-C", str(bare), *arguments]
    return subprocess.run(command, input=stdin, env=person, capture_output=True, check=True).stdout.decode().strip()


# Git over the network as forges speak it, on this machine: git's own servers, OpenSSH's, and faulty ones.

_ALL = -1  # bytes
_PACE_S = 0.1  # between two bytes that drip: 10 a second, of which gitboot wants a thousand


def program(name: str, package: str) -> str:
    """Return the path of a program; without it the test is skipped, but fails in CI."""
    if found := shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/lib/git-core"):
        return found
    message = f"needs {name}, of Debian's package {package}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@contextmanager
def run_daemon(
    command: list[str], port: int, environment: Mapping[str, str], *, ended_by: signal.Signals = signal.SIGTERM
) -> Iterator[None]:
    """Wait until the server listens on ``port``."""
    process = subprocess.Popen(command, env=dict(environment), stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(ConnectionRefusedError), closing(socket.create_connection(("127.0.0.1", port))):
                break
            time.sleep(0.01)
        yield
    finally:
        process.send_signal(ended_by)
        process.wait()


def free_port() -> int:
    """Return a free port that no other test process uses while this process runs.

    The kernel must not give the port to another socket before the server listens. So the port is below the range from
    which the kernel chooses ports, and the name of a Unix socket reserves the port until this process ends.
    """
    with _ports_lock:
        return next(_free_ports)


def _find_free_ports() -> Iterator[int]:
    lowest, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    for port in range(int(lowest) - 1, 1023, -1):
        reservation = socket.socket(socket.AF_UNIX)
        try:
            reservation.bind(f"\0gitboot-test-port-{port}")
            with closing(socket.socket()) as bound:  # not listening: a process that another thread forks inherits it
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
            continue
        _reservations.append(reservation)
        yield port


_reservations: list[socket.socket] = []
_free_ports, _ports_lock = _find_free_ports(), threading.Lock()


@contextmanager
def git_daemon(root: Path, environment: Mapping[str, str] = ENVIRONMENT) -> Iterator[str]:
    port = free_port()
    options = ["--listen=127.0.0.1", f"--port={port}", f"--base-path={root}", "--export-all", "--reuseaddr"]
    with run_daemon([program("git-daemon", "git"), *options], port, environment):
        yield f"git://127.0.0.1:{port}"


class HttpsServer:
    """git http-backend behind TLS and, for paths below /private, a password."""

    PASSWORD = "correct horse"

    def __init__(self, root: Path, directory: Path) -> None:
        self.root = root
        self.certificate = directory / "certificate.pem"
        key = directory / "key.pem"
        subprocess.run(
            [
                *(
                    program("openssl", "openssl"),
                    "req",
                    "-x509",
                    "-newkey",
                    "ec",
                    "-pkeyopt",
                    "ec_paramgen_curve:P-256",
                ),
                *("-nodes", "-days", "2", "-subj", "/CN=forge", "-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", str(key), "-out", str(self.certificate)),
            ],
            check=True,
            capture_output=True,
        )
        self.password = self.PASSWORD  # what counts now
        self.requests: list[str] = []
        self.authorized: list[str] = []  # the paths of requests that brought credentials
        self.redirect_target = (
            ""  # the server that paths below /moved are at, and with a password those below /private/moved
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._server = WebServer(("127.0.0.1", 0), type("Handler", (_HttpBackend,), {"forge": self}), context)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HttpsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _HttpBackend(BaseHTTPRequestHandler):
    forge: HttpsServer

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.forge.requests.append(f"{self.command} {path}")
        if self.headers.get("Authorization"):
            self.forge.authorized.append(path)
        expected = base64.b64encode(f"git:{self.forge.password}".encode()).decode()
        if path.startswith("/private/"):
            path = path.removeprefix("/private")
            if self.headers.get("Authorization") != f"Basic {expected}":
                self._answer(401, b"", {"WWW-Authenticate": 'Basic realm="forge"'})
                return
        if path.startswith("/moved/"):
            where = f"{self.forge.redirect_target}{path.removeprefix('/moved')}{f'?{query}' if query else ''}"
            self._answer(302, b"", {"Location": where})
            return
        if path.startswith("/status/"):
            self._answer(int(path.split("/")[2]), b"", {})
            return
        environment = {
            **ENVIRONMENT,
            "GIT_PROJECT_ROOT": str(self.forge.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
        }
        body = self._read_chunks() if self.headers.get("Transfer-Encoding") == "chunked" else self._read_body()
        command = [program("git", "git"), "http-backend"]
        answer = subprocess.run(command, input=body, env=environment, capture_output=True, check=True).stdout
        head, _, content = answer.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self._answer(int(headers.pop("Status", "200").split()[0]), content, headers)

    def _read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _read_chunks(self) -> bytes:
        body = bytearray()  # a push of ten thousand servers has 200,000 chunks
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(body)

    do_POST = do_GET  # noqa: N815 - http.server looks for it

    def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class SshServer:
    PASSPHRASE = "battery staple"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.port = free_port()
        for name, passphrase in (("ed25519", ""), ("rsa", ""), ("client", self.PASSPHRASE), ("stranger", "")):
            kind = ("rsa", "-b", "2048") if name == "rsa" else ("ed25519",)  # a longer one takes a second to make
            keygen = program("ssh-keygen", "openssh-client")
            command = [keygen, "-q", "-a", "1", "-t", *kind, "-N", passphrase, "-f", str(directory / name)]
            subprocess.run(command, check=True)
        (directory / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1:{self.port}\n"
            f"HostKey {directory}/ed25519\nHostKey {directory}/rsa\n"
            f"AuthorizedKeysFile {directory}/client.pub\n"
            "StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\n"
        )

    @contextmanager
    def running(self) -> Iterator[SshServer]:
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # the chroot of sshd; Debian's service makes it
        sshd = program("sshd", "openssh-server")
        command = [sshd, "-D", "-f", str(self._directory / "sshd_config")]
        with run_daemon(command, self.port, {"PATH": os.environ["PATH"]}):
            yield self

    @property
    def host(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1:{self.port}"

    def key(self, name: str) -> Path:
        return self._directory / name

    def public(self, name: str) -> str:
        return " ".join((self._directory / f"{name}.pub").read_text().split()[:2])


class Relay:
    """A relay to a server that passes only so many bytes back; then it hangs, hangs up or sends slowly.

    ``passes`` is a number of bytes for each connection, or the bytes at which they end. ``takes`` limits the bytes of a
    client in the same way. ``connections`` and ``size_bytes`` count what was passed in both directions.
    """

    def __init__(self, url: str, *, passes: int | bytes = _ALL, then: str = "", takes: int = _ALL) -> None:
        scheme, _, authority = url.partition("://")
        self._target = ("127.0.0.1", int(authority.rpartition(":")[2]))
        self.passes, self._takes, self._then = passes, takes, then
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open = [self._listening]
        self._ending = threading.Event()
        self._counting = threading.Lock()
        self.connections = self.size_bytes = 0
        self.stalled = threading.Event()
        self.authority = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.url = f"{scheme}://{self.authority}"

    def __enter__(self) -> Relay:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for opened in self._open:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self.connections += 1
                self._open.append(client)
                server = socket.create_connection(self._target)
                self._open.append(server)
                threading.Thread(target=self._pump, args=(client, server, self._takes), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, self.passes), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, passes: int | bytes) -> None:
        is_held_up = False
        with suppress(OSError):  # a reset ends a connection, too
            is_held_up = _forward(source, target, passes, self._count)
        with suppress(OSError):
            if not is_held_up:
                target.shutdown(socket.SHUT_RDWR)
                return
            self.stalled.set()
            while self._then == "drips" and (piece := source.recv(1)):
                target.sendall(piece)
                self._ending.wait(_PACE_S)
            if self._then == "hangs up":
                target.shutdown(socket.SHUT_RDWR)

    def _count(self, size_bytes: int) -> None:
        with self._counting:
            self.size_bytes += size_bytes


def _forward(source: socket.socket, target: socket.socket, passes: int | bytes, count: Callable[[int], None]) -> bool:
    """Pass on so many bytes, or all up to these; False if there were no more before that."""
    last = b""
    while passes:
        if not (data := source.recv(1 if isinstance(passes, bytes) else passes if passes > 0 else 65536)):
            return False
        count(len(data))
        target.sendall(data)
        if isinstance(passes, bytes):
            last = (last + data)[-len(passes) :]
            if last == passes:
                return True
        elif passes > 0:
            passes -= len(data)
    return True


@contextmanager
def silent_server() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


# People with keys, and what they sign: made by ssh-keygen, gpg, minisign and git themselves.


@dataclass(frozen=True)
class Person:
    name: str
    public: Path
    options: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.public.read_text().strip()

    def commit(
        self, work: WorkTree, files: Mapping[str, str | None] | None = None, message: str = "Change"
    ) -> Revision:
        work.write(files or {})
        work.git("add", "--all")
        work.git(*self.options, "commit", "--quiet", "--allow-empty", "--gpg-sign", f"--message={message}")
        return work.head

    def merge(self, work: WorkTree, branch: str) -> Revision:
        work.git(*self.options, "merge", "--quiet", "--no-ff", "--gpg-sign", f"--message=Merge {branch}", branch)
        return work.head

    def tag(self, work: WorkTree, name: str) -> None:
        work.git(*self.options, "tag", "--sign", f"--message={name}", name)


def make_ssh_person(folder: Path, name: str) -> Person:
    folder.mkdir(parents=True, exist_ok=True)
    private = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", private], check=True)
    return Person(name, private.with_suffix(".pub"), ("-c", "gpg.format=ssh", "-c", f"user.signingkey={private}"))


@contextmanager
def gpg_people(*names: str) -> Iterator[dict[str, Person]]:
    """Return people by name: "expired" has a key that was valid in 2020 only, "revoked" a revoked one."""
    home = Path(tempfile.mkdtemp(prefix="gnupg-", dir="/tmp"))  # an agent's socket has a short path
    home.chmod(0o700)
    try:
        yield {name: _make_gpg_person(home, name) for name in names}
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def _make_gpg_person(home: Path, name: str) -> Person:
    clock = ("--faked-system-time", "20200101T000000!") if name == "expired" else ()
    user = f"{name} <{name}@example.net>"
    _gpg(home, *clock, "--passphrase", "", "--quick-generate-key", user, "ed25519", "sign", "7d")
    public = home / f"{name}.asc"
    if name == "revoked":
        _gpg(home, "--armor", "--out", str(home / "before.asc"), "--export", user)
        (revocation,) = (home / "openpgp-revocs.d").glob(f"{_find_fingerprint(home, user)}.rev")
        certificate = revocation.read_text().replace(":-----BEGIN", "-----BEGIN")
        with tempfile.TemporaryDirectory(prefix="gnupg-", dir="/tmp") as aside:
            other = Path(aside)
            _gpg(other, "--import", str(home / "before.asc"))
            subprocess.run(
                ["gpg", "--homedir", other, "--batch", "--quiet", "--import"], input=certificate, text=True, check=True
            )
            _gpg(other, "--armor", "--out", str(public), "--export", user)
    else:
        _gpg(home, "--armor", "--out", str(public), "--export", user)
    program = home / f"gpg-of-{name}"
    program.write_text(f'#!/bin/sh\nexec gpg --homedir {home} --batch {" ".join(clock)} "$@"\n')
    program.chmod(0o700)
    return Person(name, public, ("-c", f"gpg.program={program}", "-c", f"user.signingkey={name}@example.net"))


def _find_fingerprint(home: Path, user: str) -> str:
    listed = _gpg(home, "--with-colons", "--list-keys", user)
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))


def _gpg(home: Path, *arguments: str) -> str:
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--no-tty", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout


def write_lines(file: Path, lines: Sequence[str]) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def rewrite_commit(work: WorkTree, commit: Revision, old: str, new: str) -> Revision:
    """The commit with something else in it, signature and all."""
    raw = subprocess.run(
        ["git", "cat-file", "commit", commit], cwd=work.path, env=ENVIRONMENT, capture_output=True, check=True
    ).stdout
    assert old.encode() in raw
    return store_commit(work, raw.replace(old.encode(), new.encode(), 1))


def store_commit(work: WorkTree, raw: bytes) -> Revision:
    work.git("reset", "--quiet", "--hard", _write_commit(work, raw))
    return work.head


def sign_with_gpg(person: Person, file: Path, *how: str) -> bytes:
    """Return the signature of a file by a person: detached and binary by default."""
    command = [person.options[1].removeprefix("gpg.program="), "--local-user", f"{person.name}@example.net"]
    done = subprocess.run([*command, *(how or ("--detach-sign",)), "-o", "-", file], capture_output=True, check=True)
    return done.stdout


def clear_sign(folder: Path, content: bytes, *people: Person) -> bytes:
    """Return a clear-signed message. Each further person signs the same text."""
    file = folder / "text"
    file.write_bytes(content)
    first, *others = (sign_with_gpg(person, file, "--clearsign", "--digest-algo", "SHA512") for person in people)
    signatures = [first, *others]
    blocks = [re.search(rb"\n-----BEGIN PGP SIGNATURE-----\n\n(.*)\n=.{4}\n", each, re.DOTALL) for each in signatures]
    packets = b"".join(b64decode(block[1]) for block in blocks if block is not None)
    text = first[: first.index(b"\n-----BEGIN PGP SIGNATURE-----") + 1]
    return b"%s-----BEGIN PGP SIGNATURE-----\n\n%s-----END PGP SIGNATURE-----\n" % (text, encodebytes(packets))


def find_fingerprint(person: Person) -> str:
    """Return the full fingerprint of the OpenPGP key of a person."""
    listed = _gpg(person.public.parent, "--with-colons", "--show-keys", str(person.public))
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))


class Minisign:
    """A key of minisign without a password, and what it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.public, self._private = folder / f"{name}.pub", folder / f"{name}.key"
        self._minisign("-G", "-W", "-p", self.public, "-s", self._private)

    def sign(self, file: Path, *how: str) -> bytes:
        signature = self._private.with_suffix(".minisig")
        self._minisign("-S", "-s", self._private, "-m", file, "-x", signature, *how)
        return signature.read_bytes()

    def _minisign(self, *arguments: str | Path) -> None:
        subprocess.run([program("minisign", "minisign"), *arguments], check=True, capture_output=True, input=b"")
