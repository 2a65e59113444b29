"""The delay of the end of a maintenance window at each kind of copy: `python -m benchmarks.window_ends`.

Each run starts an instance with copies of its OUTPUT, opens a window of some seconds, and fetches the boot script of a
server from every copy until the script no longer boots the maintenance. `dead` kills the instance inside the window.
Needs the programs of tests/packages.txt.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pygit2

from gitboot.publish.list_root import make_list_keys
from gitboot.publish.mirror_repair import join_program
from tests.helpers import http_peers
from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import (
    fleet,
    image,
    maintenance,
    make_mac,
    policy,
    profile,
    server,
    store_credentials,
    write_configuration,
)
from tests.helpers.git_repositories import SshServer, free_port, run_daemon
from tests.helpers.git_repositories import program as program_of
from tests.helpers.mirrors import CACHES, KEY, caddy, nginx, s3_server
from tests.helpers.running_instance import Repository, eventually, git, running

ENTRY: Final = f"v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"
WINDOW, ALONE = "memtest-7", "live-1"  # the images of the maintenance and of the policy
TIMER_S: Final = 30  # gitboot/publish/mirror_repair.py: OnUnitInactiveSec

Fetch = Callable[[], str]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.window_ends", description=__doc__)
    parser.add_argument("--publisher", choices=("alive", "dead"), action="append", help="default: both")
    parser.add_argument("--endpoint", choices=("with", "without"), action="append", help="default: both")
    parser.add_argument("--opens", type=int, default=75, metavar="SECONDS", help="length of the window: %(default)s")
    parser.add_argument("--watch", type=int, default=90, metavar="SECONDS", help="after the window: %(default)s")
    chosen = parser.parse_args()
    for endpoint in chosen.endpoint or ("with", "without"):
        for publisher in chosen.publisher or ("alive", "dead"):
            with tempfile.TemporaryDirectory() as folder:
                late = measure(Path(folder), endpoint == "with", publisher == "alive", chosen.opens, chosen.watch)
            print(f"\n{endpoint} endpoint, publisher {publisher}")
            for name, seconds in late.items():
                print(f"{name:32} {f'{seconds:.1f} s' if seconds is not None else f'not within {chosen.watch} s'}")
            sys.stdout.flush()
    return 0


class _Measured(Exception):
    """Raised to end an instance without a signal."""


def measure(folder: Path, asks: bool, lives: bool, opens_s: int, watch_s: int) -> dict[str, float | None]:
    """Return how many seconds after its end a window is over at each copy. None: it was not over in time."""
    found: dict[str, float | None] = {}
    with ExitStack() as stack, suppress(_Measured):
        site = Copies(folder, stack)
        port = free_port()
        repository = Repository.create(folder / "git")
        repository.push(_documents(port if asks else None))
        make_list_keys(folder / "keys", None, datetime.now(UTC))
        settings = write_configuration(max_reinstalls=9, list_keys=str(folder / "keys"))
        with running(repository.bare, folder, *settings, *site.targets) as instance:
            if asks:
                serve = [sys.executable, "-m", "gitboot", "serve", "--out", str(site.output)]
                stack.enter_context(run_daemon([*serve, "--listen", f"127.0.0.1:{port}"], port, os.environ))
            fetches = site.fetches(f"http://127.0.0.1:{port}/" if asks else None)
            ends = _round(datetime.now(UTC) + timedelta(seconds=opens_s))
            repository.push({"window.yaml": maintenance("repair", f"- {ends.isoformat()[:19]}")})
            eventually(lambda: all(WINDOW in fetch() for fetch in fetches.values()), opens_s - 5)
            if not lives:
                instance.process.send_signal(signal.SIGKILL)
                instance.process.wait()
            found.update(_watch_fetches(fetches, ends, watch_s))
            raise _Measured
    return found


def _round(instant: datetime) -> datetime:
    return instant.replace(microsecond=0)


def _documents(port: int | None) -> dict[str, str]:
    endpoint = f", endpoint: 'http://127.0.0.1:{port}'" if port is not None else ""
    documents = (
        fleet(f"baseURL: 'http://boot.test'{endpoint}"),
        server("web01", "role: web"),
        image(ALONE, "writesDisk: false"),
        image(WINDOW, "writesDisk: false"),
        profile("live", ALONE),
        profile("repair", WINDOW),
        policy("live", boots="live"),
    )
    return {"fleet.yaml": "---\n".join(documents)}


def _watch_fetches(fetches: Mapping[str, Fetch], ends: datetime, watch_s: int) -> dict[str, float | None]:
    found: dict[str, float | None] = dict.fromkeys(fetches)
    until = ends + timedelta(seconds=watch_s)
    while None in found.values() and datetime.now(UTC) < until:
        for name in [name for name, late in found.items() if late is None]:
            if ALONE in fetches[name]():
                found[name] = (datetime.now(UTC) - ends).total_seconds()
        time.sleep(0.05)
    return found


class Copies:
    """The copies of the OUTPUT of an instance in a folder: targets, mirrors, and caches in front of them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.output = folder / "output"
        self._store = stack.enter_context(s3_server())
        self._store.make("boots")
        self._store.let_anyone_read("boots")
        store_credentials(folder / "s3", "s", user=KEY["aws_access_key_id"], password=KEY["aws_secret_access_key"])
        self._branch = folder / "boots.git"
        pygit2.init_repository(str(self._branch), bare=True).free()
        for name in ("folder", "ssh", "rsync", "program"):
            (folder / name).mkdir()
        self._daemon = self._rsync_daemon()
        self.targets = (
            *("--target", f"s3://boots?endpoint={self._store.url}&credentials={folder}/s3/s"),
            *("--target", f"git+file://{self._branch}#boot"),
            *("--target", str(folder / "folder")),
            *("--target", self._ssh()),
            *("--target", f"{self._daemon}/rsync"),
        )

    def _rsync_daemon(self) -> str:
        port = free_port()
        (self._folder / "rsyncd.conf").write_text(
            f"address = 127.0.0.1\nport = {port}\nuse chroot = no\nuid = {os.geteuid()}\ngid = {os.getegid()}\n"
            f"[rsync]\npath = {self._folder}/rsync\nread only = no\n[output]\npath = {self.output}/boot\n"
        )
        command = [program_of("rsync", "rsync"), "--daemon", "--no-detach", f"--config={self._folder}/rsyncd.conf"]
        self._stack.enter_context(run_daemon(command, port, os.environ))
        return f"rsync://127.0.0.1:{port}"

    def _ssh(self) -> str:
        keys = self._folder / "sshd"
        keys.mkdir()
        ssh = self._stack.enter_context(SshServer(keys).running())
        shutil.copy(ssh.key("client"), keys / "plain")
        command = [program_of("ssh-keygen", "openssh-client"), "-q", "-p", "-P", SshServer.PASSPHRASE, "-N", "", "-f"]
        subprocess.run([*command, keys / "plain"], check=True, capture_output=True)
        (keys / "hosts").write_text(f"[127.0.0.1]:{ssh.port} {ssh.public('ed25519')}\n")
        return f"ssh://{ssh.host}{self._folder}/ssh?ssh-key={keys}/plain&known-hosts={keys}/hosts"

    @contextmanager
    def _mirror_program(self) -> Iterator[None]:
        """Run the program of a mirror as its timer does: again 30 s after the last run has ended."""
        program = self._folder / "program/gitboot-mirror.py"
        command = [sys.executable, "-I", str(program), "--from", f"{self._daemon}/output"]
        command += ["--to", f"{self._folder}/program/boot", "--key", f"{self._folder}/keys/root.pub"]
        command += ["--state", f"{self._folder}/program/state"]
        over = threading.Event()

        def repeat() -> None:
            while not over.is_set():
                subprocess.run(command, capture_output=True, check=False)
                over.wait(TIMER_S)

        (self._folder / "program/boot").mkdir()
        program.write_bytes(join_program())
        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def fetches(self, endpoint: str | None) -> dict[str, Fetch]:
        """Return how a loader that asks the endpoint fetches the boot script of the server from each copy."""
        copies = {name: _make_web_fetch(f"{url}/") for name, url in self._served().items()}
        copies["S3"] = _make_web_fetch(f"{self._store.url}/boots/boot/")
        copies["Git branch, before its checkout"] = self._read_branch
        if endpoint is None:
            return copies
        return {
            "the endpoint": _make_web_fetch(endpoint),
            **{name: _make_boot_fetch(fetch, endpoint) for name, fetch in copies.items()},
        }

    def _served(self) -> dict[str, str]:
        """Serve the copies that are folders, once there is an OUTPUT; return their URLs."""
        serve, found = self.output / "ops/serve", {}
        self._stack.enter_context(self._mirror_program())
        for name in ("output", "folder", "ssh", "rsync", "program"):
            (own := self._folder / f"nginx-{name}").mkdir()
            found[_NAMES[name]] = self._stack.enter_context(nginx(self._folder / name / "boot", serve, own)).url
        (own := self._folder / "caddy").mkdir()
        found["OUTPUT by Caddy"] = self._stack.enter_context(caddy(self.output / "boot", serve, own)).url
        for name, cache in CACHES.items():
            url = cache(found[_NAMES["output"]], self._folder / f"cache-{name}")
            found[f"OUTPUT by nginx, behind {name}"] = self._stack.enter_context(url)
        return found

    def _read_branch(self) -> str:
        return git(self._branch, "show", f"boot:boot/{ENTRY}")


_NAMES: Final = {
    "output": "OUTPUT by nginx",
    "folder": "target: folder",
    "ssh": "target: ssh",
    "rsync": "target: rsync daemon",
    "program": "the mirror's program",
}


def _make_web_fetch(base: str) -> Fetch:
    return lambda: http_peers.get(f"{base}{ENTRY}", headers=LOADER).text


def _make_boot_fetch(fetch: Fetch, endpoint: str) -> Fetch:
    """Return a function that fetches a script from a copy, or from the endpoint if the copy's script refers to it."""

    def fetch_script() -> str:
        script = fetch()
        return http_peers.get(f"{endpoint}{ENTRY}", headers=LOADER).text if f"{endpoint}{ENTRY}" in script else script

    return fetch_script


if __name__ == "__main__":
    sys.exit(main())
