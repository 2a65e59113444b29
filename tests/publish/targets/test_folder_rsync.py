"""Another host as a target, by ssh and by an rsync daemon: order, interruptions, other writers, what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gitboot.child_processes import ProcessResult, run_with_input
from gitboot.errors import ForeignTree, GitbootError, HostUnreachable, LockedByAnother, PublishError
from gitboot.publish.mirror_repair import ALL
from gitboot.publish.targets import folder as rsync_module
from gitboot.publish.targets.folder import RsyncStore
from gitboot.publish.targets.follower import RsyncAddress, parse_target
from gitboot.publish.targets.sync_steps import UNLISTED, FileStore
from tests.helpers.cases import get_interval
from tests.helpers.endpoints import ENTRY, eventually
from tests.helpers.fleets import store_credentials
from tests.helpers.forked_commands import run_forked
from tests.helpers.git_repositories import Relay, SshServer, free_port, program, run_daemon
from tests.publish.targets.test_folder import ENTRIES, Site, read_boot_files
from tests.publish.targets.test_s3 import assert_no_chain_is_mixed
from tests.publish.test_mirror_repair import GONE, edit_file, publish_signed, run_repair

_USER, _PASSWORD = "gitboot", "not-to-be-seen"


class OtherHost(Site):
    """A published directory, and a folder behind an rsync that follows it."""

    def __init__(self, root: Path, folder: Path, url: str, own: Path, *, ledger: str = "ours") -> None:
        self.url, self.own = url, own
        super().__init__(root, folder, ledger=ledger)

    @property
    def name(self) -> str:
        return self.url.partition("?")[0]

    def open_store(self) -> FileStore:
        address = parse_target(self.url)
        assert isinstance(address, RsyncAddress)
        return RsyncStore(address, self.own, (_USER, _PASSWORD) if address.is_daemon else None)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The URLs of one folder by each protocol, and that folder."""
    root = tmp_path_factory.mktemp("hosts")
    (folder := root / "srv").mkdir()
    (keys := root / "keys").mkdir()
    with ExitStack() as stack:
        ssh = stack.enter_context(SshServer(keys).running())
        shutil.copy(ssh.key("client"), keys / "plain")
        command = [program("ssh-keygen", "openssh-client"), "-q", "-p", "-P", SshServer.PASSPHRASE, "-N", "", "-f"]
        subprocess.run([*command, keys / "plain"], check=True, capture_output=True)
        (keys / "known hosts").write_text(f"[127.0.0.1]:{ssh.port} {ssh.public('ed25519')}\n")
        (keys / "others").write_text(f"[127.0.0.1]:{ssh.port} {ssh.public('stranger')}\n")
        port = free_port()
        (root / "secrets").write_text(f"{_USER}:{_PASSWORD}\n")
        (root / "secrets").chmod(0o600)
        (root / "rsyncd.conf").write_text(
            f"address = 127.0.0.1\nport = {port}\nuse chroot = no\nuid = {os.geteuid()}\ngid = {os.getegid()}\n"
            f"[boots]\npath = {folder}\nread only = no\n"
            f"auth users = {_USER}\nsecrets file = {root}/secrets\n"
        )
        daemon = [program("rsync", "rsync"), "--daemon", "--no-detach", f"--config={root}/rsyncd.conf"]
        stack.enter_context(run_daemon(daemon, port, {"PATH": os.environ["PATH"]}))
        yield {
            "folder": str(folder),
            "port": str(port),
            "ssh": f"ssh://{ssh.host}{folder}?ssh-key={keys}/plain&known-hosts={keys}/known%20hosts",
            "rsync": f"rsync://127.0.0.1:{port}/boots",
        }


@pytest.fixture
def folder(hosts: dict[str, str]) -> Path:
    folder = Path(hosts["folder"])
    shutil.rmtree(folder)
    folder.mkdir()
    return folder


@pytest.fixture
def daemon_host(tmp_path: Path, hosts: dict[str, str], folder: Path) -> OtherHost:
    return OtherHost(tmp_path / "out", folder, hosts["rsync"], tmp_path / "own")


class RsyncHooks:
    """Hooks before and after each rsync process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.killed_at: int | None = None
        self.after = False  # whether the rsync process ends before this one is killed
        monkeypatch.setattr(rsync_module, "run_with_input", self._run_rsync)

    def _run_rsync(self, command: list[str], **how: Any) -> ProcessResult:
        self.calls += 1
        is_killed = self.calls == self.killed_at
        if is_killed and not self.after:
            raise KeyboardInterrupt
        done = run_with_input(command, **how)
        if is_killed:
            raise KeyboardInterrupt
        return done


def test_a_host_that_ssh_reaches_has_the_files_for_machines(
    tmp_path: Path, hosts: dict[str, str], folder: Path
) -> None:
    site = OtherHost(tmp_path / "out", folder, hosts["ssh"], tmp_path / "own")
    site.max_servers = 99  # each connection of ssh takes its time
    site.open_target()
    site.publish(1)
    assert site.follow() == 1
    site.assert_holds(1)


def test_another_host_has_the_files_for_machines_with_the_times_of_the_tree(daemon_host: OtherHost) -> None:
    site = daemon_host
    site.publish(1)
    assert site.follow() > 1
    site.assert_holds(1)
    for path in site.read_served():
        assert int((site.folder / path).stat().st_mtime) == int((site.root / path).stat().st_mtime)
    site.open_target("another process")
    assert site.follow() == 0
    site.deliver(2, (0, 2, 3), b"#!ipxe\n# another\n")
    assert site.read_served()["boot/boot.ipxe"] == b"#!ipxe\n# another\n"
    assert not (site.folder / ENTRIES[1]).parent.exists()
    site.publish(5, ())
    site.open_target()
    site.follow()
    assert [path for path in site.read_served() if path.startswith("boot/v1/")] == []


def test_finding_m4_killed_before_or_after_any_rsync_another_host_has_complete_chains(
    daemon_host: OtherHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, version = daemon_host, 0
    site.deliver(0)
    rsyncs = RsyncHooks(monkeypatch)
    for at in count(1, get_interval(3)):
        version += 1
        site.publish(version, (0, 1 + version % 2))
        site.open_target()
        rsyncs.calls, rsyncs.killed_at, rsyncs.after = 0, at, bool(at % 2)
        with suppress(KeyboardInterrupt):
            site.follow()
        assert_no_chain_is_mixed(site.read_served())
        is_over = rsyncs.calls < at
        rsyncs.killed_at = None
        if at % 3 == 0:  # meanwhile something else is wanted
            version += 1
            site.publish(version, (0, 1 + version % 2))
        site.open_target()
        site.follow()
        site.assert_holds(version, (0, 1 + version % 2))
        if is_over:
            break
    assert at > 15


def test_finding_m4_a_connection_that_ends_after_any_bytes_leaves_complete_chains(
    tmp_path: Path, hosts: dict[str, str], folder: Path
) -> None:
    direct = OtherHost(tmp_path / "out", folder, hosts["rsync"], tmp_path / "own")
    direct.deliver(0)
    version = 0
    for takes in (200, 600, 1000, 2000):
        version += 1
        direct.publish(version)
        with Relay(f"rsync://127.0.0.1:{hosts['port']}", passes=-1, then="hangs up", takes=takes) as relay:
            cut = OtherHost(direct.root, folder, f"{relay.url}/boots", tmp_path / "cut")
            with suppress(GitbootError):
                cut.follow()
        assert_no_chain_is_mixed(direct.read_served())
    direct.open_target()
    direct.follow()
    direct.assert_holds(version)


def test_finding_m4_a_file_that_was_edited_with_its_size_and_time_is_replaced_with_its_next_version(
    daemon_host: OtherHost,
) -> None:
    site = daemon_host
    site.deliver(1)
    path = site.folder / ENTRIES[0]
    site.publish(2)
    wanted = (site.root / ENTRIES[0]).read_bytes()
    path.write_bytes(wanted.replace(b"0002", b"9999"))
    at = (site.root / ENTRIES[0]).stat().st_mtime
    os.utime(path, (at, at))
    site.follow()
    assert path.read_bytes() == wanted


@pytest.fixture(params=["this host", "another host"])
def any_site(request: pytest.FixtureRequest, tmp_path: Path, hosts: dict[str, str], folder: Path) -> Iterator[Site]:
    """A folder that follows a published directory, by each kind of store."""
    if request.param == "this host":
        site = Site(tmp_path / "out", folder)
    else:
        site = OtherHost(tmp_path / "out", folder, hosts["rsync"], tmp_path / "own")
    yield site
    site.close()


@pytest.mark.parametrize(
    ("any_site", "kind"),
    [
        *(("this host", kind) for kind in ("file", "symlink", "folder")),
        *(("another host", kind) for kind in ("file", "symlink")),  # rsync compares files alone
    ],
    indirect=["any_site"],
)
def test_a_foreign_file_at_a_target_path_is_an_error_and_stays(any_site: Site, tmp_path: Path, kind: str) -> None:
    path = any_site.folder / ENTRIES[1]
    path.parent.mkdir(parents=True)
    (elsewhere := tmp_path / "elsewhere").write_bytes(b"theirs")
    if kind == "symlink":
        path.symlink_to(elsewhere)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"theirs")
    any_site.publish(1)
    with pytest.raises(PublishError, match=rf"gitboot did not write the file at {ENTRIES[1]} "):
        any_site.follow()
    assert elsewhere.read_bytes() == b"theirs"
    assert path.is_dir() if kind == "folder" else path.read_bytes() == b"theirs"


def test_other_files_in_the_folder_do_not_change(any_site: Site) -> None:
    theirs = {"boot/assets/kernel": b"theirs", "README": b"theirs", "ops/notes": b"theirs"}
    for path, content in theirs.items():
        (any_site.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (any_site.folder / path).write_bytes(content)
    for version in (1, 2):
        any_site.deliver(version)
    any_site.open_target()
    any_site.deliver(5, ())
    assert {path: (any_site.folder / path).read_bytes() for path in theirs} == theirs
    assert [path for path in any_site.read_served() if path.startswith("boot/v1/")] == []


def test_another_host_cannot_name_a_file_of_this_host(daemon_host: OtherHost, tmp_path: Path) -> None:
    (mine := tmp_path / "mine").write_bytes(b"mine")
    daemon_host.deliver(1)
    name = os.path.relpath(mine, daemon_host.own / "read")
    (daemon_host.folder / UNLISTED).write_text(json.dumps([name]))
    daemon_host.open_target()
    with pytest.raises(PublishError, match=f"{UNLISTED} is damaged"):
        daemon_host.follow()
    assert mine.read_bytes() == b"mine"


def test_another_ledger_and_another_process_are_detected(daemon_host: OtherHost, tmp_path: Path) -> None:
    site = daemon_host
    site.deliver(1)
    other = OtherHost(site.root, site.folder, site.url, tmp_path / "other", ledger="theirs")
    with pytest.raises(ForeignTree, match="belongs to the ledger ours, not to theirs"):
        other.follow()
    copy = OtherHost(site.root, site.folder, site.url, tmp_path / "copy")
    copy.open_target("a copy of this instance")
    copy.follow()
    site.publish(2)
    with pytest.raises(LockedByAnother, match="a copy of this instance; this process is me"):
        site.follow()
    site.assert_holds(1)


def test_an_rsync_of_an_earlier_process_that_still_runs_is_waited_for(daemon_host: OtherHost, tmp_path: Path) -> None:
    daemon_host.publish(1)
    (slow := tmp_path / "bin").mkdir()
    (slow / "rsync").write_text(f"#!/bin/sh\necho >> {slow}/begun\nread line < {slow}/gate\n")
    (slow / "rsync").chmod(0o755)
    os.mkfifo(slow / "gate")
    os.mkfifo(slow / "begun")
    child = os.fork()
    if child == 0:  # pragma: no cover - it is killed
        os.environ["PATH"] = f"{slow}:{os.environ['PATH']}"
        with suppress(BaseException):
            daemon_host.follow()
        os._exit(0)
    (slow / "begun").read_bytes()  # waits until rsync begins
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(HostUnreachable, match="an rsync process from an earlier gitboot run is still running"):
        daemon_host.follow()
    with (slow / "gate").open("w"):
        pass

    def follows() -> bool:
        with suppress(HostUnreachable):
            daemon_host.follow()
            return True
        return False

    assert eventually(follows)
    daemon_host.assert_holds(1)


@pytest.mark.parametrize(
    ("scheme", "old", "new", "error", "words"),
    [
        ("ssh", "known%20hosts", "others", PublishError, "Host key verification failed"),
        ("ssh", "/plain", "/stranger", PublishError, "Permission denied"),
        ("ssh", "/srv?", "/srv/absent?", PublishError, "No such file or directory .* .create the folder"),
        ("rsync", "/boots", "/others", PublishError, "Unknown module 'others'"),
        ("rsync", "127.0.0.1:", "127.0.0.1:1", HostUnreachable, "(?i)refused|port"),
    ],
)
def test_an_error_names_the_target_and_the_cause_and_no_secret(
    tmp_path: Path, hosts: dict[str, str], folder: Path, scheme: str, old: str, new: str, error: type, words: str
) -> None:
    url = hosts[scheme].replace(old, new) if old != "127.0.0.1:" else f"rsync://127.0.0.1:{free_port()}/boots"
    site = OtherHost(tmp_path / "out", folder, url, tmp_path / "own")
    site.publish(1)
    with pytest.raises(error, match=words) as raised:
        site.follow()
    assert str(raised.value).startswith(site.name)
    assert _PASSWORD not in str(raised.value)
    assert list(folder.iterdir()) == []


def test_finding_m6_repair_replaces_edited_files_on_another_host(
    tmp_path: Path, hosts: dict[str, str], folder: Path
) -> None:
    root = publish_signed(tmp_path / "publisher").root
    shutil.copytree(root / "boot", folder / "boot")
    store_credentials(tmp_path, "rsync", user=_USER, password=_PASSWORD)
    url = f"{hosts['rsync']}?credentials={tmp_path}/rsync"
    assert run_repair(url, root, ALL)[0] == 0  # a target has no one-time boots
    assert _list_faults(folder, root) == []
    right = read_boot_files(folder)
    edit_file(folder / f"boot{ENTRY}")
    (folder / "boot/signed/timestamp.json").unlink()
    (folder / f"boot/{GONE}").parent.mkdir(parents=True)
    (folder / f"boot/{GONE}").write_bytes(b"#!ipxe\nshell\n")
    wrong = {f"/{path}" for path in (ENTRY[1:], "signed/timestamp.json", GONE)}
    assert {f"/{each}" for each in run_repair(url, root, ALL)[1]} == wrong
    assert (_list_faults(folder, root), read_boot_files(folder)) == ([], right)
    assert run_repair(url, root, ALL)[1] == {}


def _list_faults(folder: Path, root: Path) -> list[str]:
    done = run_forked("verify-mirror", folder / "boot", "--tree", root, "--target", "-o", "json")
    return [each["path"] for each in json.loads(done.stdout)["items"]]


def test_a_wrong_password_is_rejected(tmp_path: Path, hosts: dict[str, str], folder: Path) -> None:
    address = parse_target(hosts["rsync"])
    assert isinstance(address, RsyncAddress)
    with pytest.raises(PublishError, match="auth failed"):
        RsyncStore(address, tmp_path / "own", (_USER, "wrong")).get("ops/manifest.json")
