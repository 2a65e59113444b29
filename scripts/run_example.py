"""`make run`: a demonstration of gitboot with the example fleet, and with simulated machines and BMCs.

The demonstration copies the example fleet into a Git repository in a scratch folder, starts the Redfish double and
gitboot on 127.0.0.1, and prints what a visitor can do. Ctrl-C ends all of it and removes the folder. The environment
variable PORT sets the port of gitboot; the default is 8080.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

PARENT = os.getppid()
ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
SETTINGS = {"user.name": "You", "user.email": "you@example.net", "commit.gpgsign": "false"}  # of the fleet's repository

# The servers of the steps, and the change that gitboot holds.
INSTALLED, BATCH, MAINTAINED = "fra1-w09", "ams2-b01", "fra1-w04"
NEXT_IMAGE = """\
sed -i -e '/current:/s/4230.2.4/4459.2.4/' -e '/rollout:/,/selector:/d' \\
    streams/flatcar-stable.yaml"""
INSTALLS_S = 20  # long enough to see the installation on the page

LAST_LINE = "To stop the example, press Ctrl-C. The page: {}/"
JUDGED = "--judged"  # the argument with which the hook of the repository calls this script

PATIENCE_S = 5  # the time for a process to end before this script kills it
QUIET_S = 1.5  # the time without a line after which the banner is printed
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
# Run a command that the kernel kills when its parent ends. The command receives all signals.
LAUNCH = f"""\
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() != int(parent):
    sys.exit("the parent process has ended")
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execv(command[0], command)
"""


class Ended(BaseException):
    """A signal requested the end."""


def main() -> int:
    if sys.argv[1:2] == [JUDGED]:
        _wait_until_judged(*sys.argv[2:])
        return 0
    port = _port()
    base = f"http://127.0.0.1:{port}"
    try:
        with ExitStack() as stack:
            with _blocked_signals():
                for number in ENDING:
                    signal.signal(number, _end)
                # If make is killed, the kernel ends this process.
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
                if os.getppid() != PARENT:  # the parent ended before the prctl call
                    raise Ended
                threading.Thread(target=_end_with_terminal, daemon=True).start()
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gitboot-example-")))
            return _run(stack, scratch, port, base)
    except Ended:
        with suppress(OSError):  # of a terminal that is closed
            print("\nThe example has stopped, and its files are removed.", flush=True)
        return 0


def _port() -> int:
    given = os.environ.get("PORT", "8080")
    if not given.isdecimal():
        raise SystemExit(f"PORT must be a number, not {given!r}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(given)))
        except OSError as error:
            hint = "choose another port, for example: PORT=8181 make run"
            raise SystemExit(f"port {given} is in use ({error.strerror}): {hint}") from None
    return int(given)


def _end(*_: object) -> None:
    _ignore_signals()
    raise Ended


def _end_with_terminal() -> None:
    """Send SIGHUP when the terminal closes: if make leads the session, only make gets it, and waits for its child."""
    if sys.stderr.isatty():
        terminal = select.poll()
        terminal.register(sys.stderr, 0)  # POLLHUP and POLLERR are always reported
        terminal.poll()
        os.kill(os.getpid(), signal.SIGHUP)


def _ignore_signals() -> None:
    """Ignore further signals, so that they do not interrupt the end."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Delay a signal until the resource that starts here is registered for its end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _run(stack: ExitStack, scratch: Path, port: int, base: str) -> int:
    fleet, log = scratch / "fleet", scratch / "gitboot.log"
    redfish, machines = _start_redfish_double(stack, scratch, base)
    _repository(fleet, base, redfish, authority=scratch / "bmcs" / "ca.pem")
    gitboot = _start(
        stack,
        [
            *(PYTHON, "-m", "gitboot", "run", str(fleet), "--listen", f"127.0.0.1:{port}"),
            *("--assets", str(scratch / "assets")),
            *("--out", str(scratch / "output"), "--state", str(scratch / "state")),
            *("--credentials", str(scratch / "credentials")),
        ],
        stderr=subprocess.PIPE,
    )
    lines = Lines(log)
    lines.show(gitboot.stderr, _event)
    lines.show(machines, lambda line: f"         machine            {line}")
    if _wait_until_ready(gitboot, base):
        _commit_ledger(fleet, ledger=_get(f"{base}/api/v1/status")["ledger"])
        begin = [PYTHON, "-m", "gitboot", "records", "begin", "fresh", "--yes", "--state", str(scratch / "state")]
        here = {**os.environ, "TMPDIR": str(scratch)}  # for the files that remain if the process is killed
        if code := _start(stack, begin, stdout=subprocess.DEVNULL, env=here).wait():
            return code
        _install_hook(fleet, scratch / "state")
        digest = _compute_change_digest(stack, fleet, scratch)
        lines.wait_for("OverrideConfirmed", INSTALLED)
        lines.wait_until_quiet()
        threading.Thread(target=_show_phases, args=(base,), daemon=True).start()
        print(_banner(scratch, base, digest), flush=True)
    os.waitid(os.P_PID, gitboot.pid, os.WEXITED | os.WNOWAIT)
    _end_group(gitboot)
    return gitboot.returncode


class Lines:
    """Lines of gitboot and of the machines. The terminal shows them cut, and the log contains them completely."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("a")
        self._last = time.monotonic()
        self._told: set[tuple[str, str]] = set()  # type and server of each event

    def show(self, stream: IO[str] | None, shown: Callable[[str], str]) -> None:
        assert stream is not None

        def pump() -> None:
            for line in stream:
                self._last = time.monotonic()
                self._log.write(line)
                self._log.flush()
                _show(shown(line.rstrip()))
                with suppress(ValueError, TypeError, KeyError):  # a line that is not an event of a server
                    event = json.loads(line)
                    self._told.add((event["type"], event["server"]))

        threading.Thread(target=pump, daemon=True).start()

    def wait_for(self, type: str, server: str) -> None:
        """Wait until gitboot has reported an event of this type about the server, but at most a minute."""
        until = time.monotonic() + 60
        while (type, server) not in self._told and time.monotonic() < until:
            time.sleep(0.1)

    def wait_until_quiet(self) -> None:
        """Wait until the events of the start are printed, but at most some seconds."""
        until = time.monotonic() + 10 * QUIET_S
        while time.monotonic() < min(until, self._last + QUIET_S):
            time.sleep(0.1)


def _event(line: str) -> str:
    """Format an event of gitboot as a line of text. Return any other line unchanged."""
    try:
        event = json.loads(line)
        return f"{event['at'][11:19]} {event['type']:<18} {event['message']}"
    except (ValueError, TypeError, KeyError):
        return line


def _show_phases(base: str) -> None:
    """Show each change of a server's phase, as when a maintenance window opens or closes. Never returns."""
    known: dict[str, str] = {}
    while True:
        with suppress(OSError, ValueError):
            items = _get(f"{base}/api/v1/servers")["items"]
            phases = {each["name"]: each["phase"] or "undecided" for each in items}
            now = time.strftime("%H:%M:%S", time.gmtime())
            for name in sorted(known.keys() & phases.keys()):
                if known[name] != phases[name]:
                    _show(f"{now} {'Phase':<18} {name}: {known[name]} → {phases[name]}")
            known = phases
        time.sleep(0.5)


def _show(line: str) -> None:
    """Print a line, cut to the width of the terminal. One write, because several threads print."""
    width = shutil.get_terminal_size((100, 24)).columns
    with suppress(OSError):  # of a terminal that is closed
        sys.stderr.write(f"{_cut(line, width)}\n")
        sys.stderr.flush()


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _start(stack: ExitStack, command: list[str], **more: object) -> subprocess.Popen[str]:
    """Start a process in its own group, so that Ctrl-C does not reach it. The stack ends the process."""
    with _blocked_signals():
        process: subprocess.Popen[str] = subprocess.Popen(
            [PYTHON, "-c", LAUNCH, str(os.getpid()), *command],
            cwd=ROOT,
            start_new_session=True,
            text=True,
            **more,  # type: ignore[call-overload]
        )
        stack.callback(_end_group, process)
    return process


def _end_group(process: subprocess.Popen[str]) -> None:
    """End a process and the processes that it started. Kill them if they do not end in time."""
    _ignore_signals()
    if process.returncode is None:  # until wait() is called, the kernel does not reuse the process ID
        os.kill(process.pid, signal.SIGTERM)
        until = time.monotonic() + PATIENCE_S
        while not _has_ended(process.pid) and time.monotonic() < until:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended. Do not reap it, so that its process ID stays in use."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _start_redfish_double(stack: ExitStack, scratch: Path, base: str) -> tuple[str, IO[str]]:
    """Start a Redfish double with a system for each server that has a BMC. Return its URL and its output."""
    systems = []
    for path in sorted((ROOT / "example-repo" / "servers").rglob("*.yaml")):
        text = path.read_text()
        if "\n  bmc:" in text:
            uuid, mac = re.findall(r"uuid: (\S+)", text)[0], re.findall(r'mac: "(\S+)"', text)[0]
            systems += ["--system", f"{path.stem}={uuid},{mac}"]
    for name in set(re.findall(r"credentials: (\S+)", _all_text(ROOT / "example-repo" / "servers"))):
        folder = scratch / "credentials" / name
        folder.mkdir(parents=True)
        (folder / "username").write_text("gitboot")
        (folder / "password").write_text("example")
    # The hosts that may get the credentials. The certificate authority is in the fleet.
    (scratch / "credentials" / "access.toml").write_text(
        'networks = ["127.0.0.0/8"]\nhttp = true\nrepository-authorities = true\n'
    )
    (scratch / "bmcs").mkdir()
    command = [PYTHON, "-m", "tests.helpers.redfish_double", "--port", "0", *systems, "--fetch", base, "--post", "3"]
    command += ["--work", str(INSTALLS_S), "--hold", str(scratch / "hold")]
    if shutil.which("openssl"):  # creates the certificates of the BMCs. Without openssl, the BMCs use HTTP
        command += ["--tls", str(scratch / "bmcs")]
    process = _start(stack, [*command, "--credentials", str(scratch / "credentials")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not (found := re.search(r"https?://\S+:\d+", line)):
        raise SystemExit("the Redfish double did not start")
    return found[0], process.stdout


def _all_text(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.rglob("*.yaml")))


def _repository(fleet: Path, base: str, redfish: str, *, authority: Path) -> None:
    """Create a Git repository of the example fleet, with the URLs, the BMCs and the authority of this machine."""
    shutil.copytree(ROOT / "example-repo", fleet)
    if authority.exists():
        shutil.copy(authority, fleet / "certs" / "bmc-ca.pem")
    settings = fleet / "fleet.yaml"
    settings.write_text(re.sub(r"http://boot[.\w]*\.example\.net", base, settings.read_text()))
    _artifacts(fleet / "images", fleet.parent / "assets")
    for path in sorted((fleet / "servers").rglob("*.yaml")):
        text = re.sub(r"address: https://[\d.]+", f"address: {redfish}", path.read_text())
        text = re.sub(r"system: \S+", f"system: /redfish/v1/Systems/{path.stem}", text)
        path.write_text(text)
    settings_of_git = (["config", name, value] for name, value in SETTINGS.items())
    steps = (["init", "-q", "-b", "main"], *settings_of_git, ["add", "-A"], ["commit", "-qm", "The example fleet"])
    for arguments in steps:
        subprocess.run(["git", *arguments], cwd=fleet, check=True)


def _artifacts(images: Path, assets: Path) -> None:
    """Write a small file for each artifact, and write the digest and the size of the file into the BootImage."""
    artifact = re.compile(r"(url: assets:(\S+)\n +sha256: )\S+(\n +size: )\d+")

    def written(found: re.Match[str]) -> str:
        content = f"{found[2]}, of the demonstration\n".encode()
        path = assets / found[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return f"{found[1]}{hashlib.sha256(content).hexdigest()}{found[3]}{len(content)}"

    for path in sorted(images.glob("*.yaml")):
        path.write_text(artifact.sub(written, path.read_text()))


def _commit_ledger(fleet: Path, *, ledger: str) -> None:
    """Commit the ledger of this instance to the Fleet, so that the instance sets BMCs."""
    settings = fleet / "fleet.yaml"
    text = settings.read_text()
    assert "  provisioning:\n" in text
    settings.write_text(text.replace("  provisioning:\n", f"  provisioning:\n    ledger: {ledger}\n"))
    subprocess.run(["git", "commit", "-qam", "Name the instance that acts"], cwd=fleet, check=True)


def _wait_until_ready(gitboot: subprocess.Popen[str], base: str) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until and not _has_ended(gitboot.pid):
        try:
            urllib.request.urlopen(f"{base}/readyz", timeout=2)
            time.sleep(0.2)  # if another process uses the port, gitboot has ended by now
            return not _has_ended(gitboot.pid)
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def _install_hook(fleet: Path, state: Path) -> None:
    """Install a hook that waits until gitboot has judged a commit, so that the next command sees the result."""
    hook = fleet / ".git" / "hooks" / "post-commit"
    hook.parent.mkdir(exist_ok=True)
    command = shlex.join([PYTHON, str(Path(__file__).resolve()), JUDGED, str(state)])
    hook.write_text(f'#!/bin/sh\nexec {command} "$(git rev-parse HEAD)"\n')
    hook.chmod(0o755)


def _wait_until_judged(state: str, commit: str) -> None:
    """Wait until gitboot has accepted, held or rejected the commit, but at most a minute."""
    until = time.monotonic() + 60
    while time.monotonic() < until and Path(state).exists():
        with suppress(OSError, ValueError, KeyError):
            status = json.loads((Path(state) / "status.json").read_bytes())
            attempted = status["attempted"]
            if attempted["commit"] == commit and (
                status["applied"]["commit"] == commit or attempted.get("held") or attempted["problems"]
            ):
                return
        time.sleep(0.1)


def _compute_change_digest(stack: ExitStack, fleet: Path, scratch: Path) -> str:
    """Make the change of step 3 in a copy of the fleet, and return its digest."""
    copy = scratch / "rehearsal"
    shutil.copytree(fleet, copy)
    subprocess.run(["sh", "-c", NEXT_IMAGE], cwd=copy, check=True)
    command = [PYTHON, "-m", "gitboot", "diff", "HEAD", str(copy), "-o", "json"]
    review, _ = _start(stack, command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(scratch)}).communicate()
    shutil.rmtree(copy)
    return str(json.loads(review)["digest"])


def _banner(scratch: Path, base: str, digest: str) -> str:
    """Return the instructions for a visitor. Each line with two leading spaces is a command, and a test types it."""
    fleet, state, credentials, log = (
        shlex.quote(str(scratch / name)) for name in ("fleet", "state", "credentials", "gitboot.log")
    )
    batch = _get(f"{base}/api/v1/servers/{BATCH}")
    script = f"{base}/v1/boot/{batch['macs'][0]}/boot.ipxe"
    in_seconds = "$(date -u -d @$(($(date +%s) + {})) +%FT%TZ)".format
    return f"""
gitboot runs on the example fleet: 30 servers in a Git repository, with
simulated machines and BMCs. This terminal shows the events. The page shows
the same to operators, and reloads itself every 5 seconds:

{base}/

Open a second terminal, and type these lines first:

  cd {fleet}
  export PATH={shlex.quote(str(Path(PYTHON).parent))}:"$PATH"
  export GITBOOT_STATE={state}
  export GITBOOT_CREDENTIALS={credentials}

1. Install a machine. {INSTALLED} waits for its first boot. Restart the machine
through its BMC:

  gitboot bmc power reset {INSTALLED} --force --reason 'First boot'

This terminal shows Attempted, Started and, {INSTALLS_S} seconds later, Provisioned for
{INSTALLED}. Until then, the page shows that {INSTALLED} is installing. After
Provisioned, print the events of the server:

  gitboot events --server {INSTALLED}

2. Change a boot with a commit. The last command compares the boot script of
{BATCH} before and after the commit:

  gitboot boot-script {BATCH} --tree ../output | tr ' ' '\\n' > ../before
  sed -i 's/,115200"]/,115200", quiet]/' profiles/batch.yaml
  git commit -qam 'Boot quietly'
  gitboot boot-script {BATCH} --tree ../output | tr ' ' '\\n' | diff ../before -

The iPXE script of {BATCH} has this URL:
{script}

3. Approve a commit. This commit would reinstall servers, so gitboot holds it
until a person approves it. The last command shows the commit and the reasons:

  {NEXT_IMAGE}
  git commit -qam 'Boot the next image'
  gitboot status

Approve the commit:

  gitboot approve {digest[:16]} --all-guards --reason 'The canaries work'

After OverrideConfirmed for {INSTALLED}, restart the machine to install the image:

  gitboot bmc power reset {INSTALLED} --force --reason 'Next image'

4. Open a maintenance window. It opens in 10 seconds and closes 60 seconds
later. In the window, gitboot restarts {MAINTAINED}, and the machine boots a
memory test. The last command shows when the window opens and closes. It reads
the records from the published tree:

  echo "
  apiVersion: gitboot.dev/v1alpha1
  kind: Maintenance
  metadata: {{name: memory-test-now}}
  spec:
    select: {{servers: [{MAINTAINED}]}}
    window:
      start: {in_seconds(10)}
      end: {in_seconds(70)}
    profile: memory-test
    networkBoot: Always
    power: Restart
    reason: Memory errors" > maintenances/memory-test-now.yaml
  git add maintenances
  git commit -qm 'Test the memory of {MAINTAINED}'
  gitboot plan --timeline {MAINTAINED} --records ../output/ops/records

This terminal shows `Phase  {MAINTAINED}: Disk → Maintenance` when the window
opens, and `Phase  {MAINTAINED}: Maintenance → Disk` when it closes. Then restart
{MAINTAINED}, which boots its disk again:

  gitboot bmc power reset {MAINTAINED} --force --reason 'Memory is fine'

5. Find all changes on the page. Servers shows the servers, Timeline shows the
window, and Changes shows the commits. The API has the same data as JSON:

All servers:
{base}/api/v1/servers
The status of gitboot:
{base}/api/v1/status

This terminal cuts long lines. The log contains the complete lines:
{log}

{LAST_LINE.format(base)}
"""


if __name__ == "__main__":
    sys.exit(main())
