"""`make run`: the example fleet as a real repository, its BMCs as a Redfish double, and gitboot on both.

All of it lives in a scratch folder and on 127.0.0.1, and goes when it is interrupted. PORT is where gitboot
listens: 8080 unless set.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
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

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
SETTINGS = {"user.name": "You", "user.email": "you@example.net", "commit.gpgsign": "false"}  # of the fleet's repository


PATIENCE_S = 5  # with what is asked to end, before it is killed
QUIET_S = 1.5  # without a line, and what can be done is shown
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
# Becomes a command that is killed when its parent ends, however that ends, and that no signal is kept from.
LAUNCH = f"""\
import ctypes, os, signal, sys
parent, *command = sys.argv[1:]
ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() != int(parent):
    sys.exit("its parent is gone")
signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.execv(command[0], command)
"""


class Ended(BaseException):
    """A signal asked for the end."""


def main() -> int:
    port = _port()
    base = f"http://127.0.0.1:{port}"
    try:
        with ExitStack() as stack:
            with _undisturbed():
                for number in ENDING:
                    signal.signal(number, _end)
                # Were make killed, nobody would be left to end this.
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
                scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gitboot-example-")))
            return _run(stack, scratch, port, base)
    except Ended:
        with suppress(OSError):  # of a terminal that is closed
            print("\nEverything in the scratch folder is removed.", flush=True)
        return 0


def _port() -> int:
    given = os.environ.get("PORT", "8080")
    if not given.isdecimal():
        raise SystemExit(f"PORT is {given!r}, and is to be a number")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(given)))
        except OSError as error:
            hint = "choose another, as in: PORT=8181 make run"
            raise SystemExit(f"port {given} is not free ({error.strerror}): {hint}") from None
    return int(given)


def _end(*_: object) -> None:
    _ignore_signals()
    raise Ended


def _ignore_signals() -> None:
    """Once is enough: ending is not to be interrupted."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let a signal wait until what is begun here is sure to be ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _run(stack: ExitStack, scratch: Path, port: int, base: str) -> int:
    fleet, log = scratch / "fleet", scratch / "gitboot.log"
    redfish, machines = _double(stack, scratch, base)
    _repository(fleet, base, redfish, authority=scratch / "bmcs" / "ca.pem")
    gitboot = _start(
        stack,
        [
            *(PYTHON, "-m", "gitboot", "run", str(fleet), "--listen", f"127.0.0.1:{port}"),
            *("--check-assets", "off"),  # its images are nowhere
            *("--out", str(scratch / "output"), "--state", str(scratch / "state")),
            *("--credentials", str(scratch / "credentials")),
        ],
        stderr=subprocess.PIPE,
    )
    lines = Lines(log)
    lines.show(gitboot.stderr, _event)
    lines.show(machines, lambda line: f"         machine            {line}")
    if _ready(gitboot, base):
        _name(fleet, ledger=_get(f"{base}/api/v1/status")["ledger"])
        begin = [PYTHON, "-m", "gitboot", "records", "begin", "fresh", "--yes", "--state", str(scratch / "state")]
        here = {**os.environ, "TMPDIR": str(scratch)}  # what it leaves where it is ended
        if code := _start(stack, begin, stdout=subprocess.DEVNULL, env=here).wait():
            return code
        lines.wait_until_quiet()
        _print_what_to_look_at(fleet, base, redfish, log)
    os.waitid(os.P_PID, gitboot.pid, os.WEXITED | os.WNOWAIT)
    _end_group(gitboot)
    return gitboot.returncode


class Lines:
    """What gitboot and the machines say: on the terminal as much as fits on a line, in a file all of it."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("a")
        self._last = time.monotonic()

    def show(self, stream: IO[str] | None, shown: Callable[[str], str]) -> None:
        assert stream is not None

        def pump() -> None:
            for line in stream:
                self._last = time.monotonic()
                self._log.write(line)
                self._log.flush()
                width = shutil.get_terminal_size((100, 24)).columns
                with suppress(OSError):
                    print(_cut(shown(line.rstrip()), width), file=sys.stderr, flush=True)

        threading.Thread(target=pump, daemon=True).start()

    def wait_until_quiet(self) -> None:
        """Let what happens at the start be told first; no longer than some seconds."""
        until = time.monotonic() + 10 * QUIET_S
        while time.monotonic() < min(until, self._last + QUIET_S):
            time.sleep(0.1)


def _event(line: str) -> str:
    """An event of gitboot's as a line of text; what is none stays as it is."""
    try:
        event = json.loads(line)
        return f"{event['at'][11:19]} {event['type']:<18} {event['message']}"
    except (ValueError, TypeError, KeyError):
        return line


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _start(stack: ExitStack, command: list[str], **more: object) -> subprocess.Popen[str]:
    """A process of its own group, so that Ctrl-C is ours to pass on; it is ended when the stack is."""
    with _undisturbed():
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
    """Ask a process to end; kill what it started, and itself where it takes too long."""
    _ignore_signals()
    if process.returncode is None:  # until it is waited for, its number and its group's are nobody else's
        os.kill(process.pid, signal.SIGTERM)
        until = time.monotonic() + PATIENCE_S
        while not _has_ended(process.pid) and time.monotonic() < until:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _has_ended(pid: int) -> bool:
    """Whether a process has ended, without waiting for it: its number stays taken."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _double(stack: ExitStack, scratch: Path, base: str) -> tuple[str, IO[str]]:
    """Start a Redfish double with a system for each server that has a BMC; return its URL, and what it says."""
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
    # What the instance says itself: who may be sent them, and that the fleet's own authority proves who that is.
    (scratch / "credentials" / "access.toml").write_text(
        'networks = ["127.0.0.0/8"]\nhttp = true\nrepository-authorities = true\n'
    )
    (scratch / "bmcs").mkdir()
    command = [PYTHON, "-m", "tests.redfish", "--port", "0", *systems, "--fetch", base]
    if shutil.which("openssl"):  # makes the authority of the BMCs' certificates; without it they speak plain HTTP
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
    """A real Git repository of the example, whose URLs, BMCs and their authority are this machine's."""
    shutil.copytree(ROOT / "example-repo", fleet)
    if authority.exists():
        shutil.copy(authority, fleet / "certs" / "bmc-ca.pem")
    settings = fleet / "fleet.yaml"
    settings.write_text(re.sub(r"http://boot[.\w]*\.example\.net", base, settings.read_text()))
    for path in sorted((fleet / "servers").rglob("*.yaml")):
        text = re.sub(r"address: https://[\d.]+", f"address: {redfish}", path.read_text())
        text = re.sub(r"system: \S+", f"system: /redfish/v1/Systems/{path.stem}", text)
        path.write_text(text)
    settings_of_git = (["config", name, value] for name, value in SETTINGS.items())
    steps = (["init", "-q", "-b", "main"], *settings_of_git, ["add", "-A"], ["commit", "-qm", "The example fleet"])
    for arguments in steps:
        subprocess.run(["git", *arguments], cwd=fleet, check=True)


def _name(fleet: Path, *, ledger: str) -> None:
    """Commit that this instance acts: BMCs are set by the one that the Fleet names."""
    settings = fleet / "fleet.yaml"
    text = settings.read_text()
    assert "  provisioning:\n" in text
    settings.write_text(text.replace("  provisioning:\n", f"  provisioning:\n    ledger: {ledger}\n"))
    subprocess.run(["git", "commit", "-qam", "Name the instance that acts"], cwd=fleet, check=True)


def _ready(gitboot: subprocess.Popen[str], base: str) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until and not _has_ended(gitboot.pid):
        try:
            urllib.request.urlopen(f"{base}/readyz", timeout=2)
            time.sleep(0.2)  # a gitboot that finds its port taken by another has ended by now
            return not _has_ended(gitboot.pid)
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def _print_what_to_look_at(fleet: Path, base: str, redfish: str, log: Path) -> None:
    stream = (fleet / "streams" / "flatcar-stable.yaml").read_text()
    current, following = re.findall(r"(?:current|image): (\S+)", stream)[:2]
    # A machine that waits for its first boot by PXE, of the image that the stream calls current.
    names = [item["name"] for item in _get(f"{base}/api/v1/servers")["items"] if item["image"] == current]
    plans = {name: _get(f"{base}/api/v1/servers/{name}/plan")["plan"] for name in names}
    name = next(name for name, plan in plans.items() if plan["override"] and plan["override"]["target"] == "Pxe")
    entry = f"{base}/v1/boot/{plans[name]['macs'][0]}/boot.ipxe"
    batch = next(
        each for each in _get(f"{base}/api/v1/servers")["items"] if each["policy"] == "batch" and each["image"]
    )
    argument = "sed -i 's/,115200\"]/,115200\", quiet]/' profiles/batch.yaml"
    stream_change = f"sed -i 's/current: {current}/current: {following}/' streams/flatcar-stable.yaml"
    there = shlex.quote(str(fleet))
    gitboot = shlex.quote(str(Path(PYTHON).parent / "gitboot"))
    reset = f"{redfish}/redfish/v1/Systems/{name}/Actions/ComputerSystem.Reset"
    print(
        f"""
gitboot runs on the example fleet, a Git repository, whose newest commit names this instance as the
one that sets BMCs; in another terminal:

  cd {there}
  export GITBOOT_STATE={shlex.quote(str(fleet.parent / "state"))}

  what {name} boots   {entry}
  its plan              {base}/api/v1/servers/{name}/plan
  every server          {base}/api/v1/servers
  status                {base}/api/v1/status

Change how batch servers boot, commit it, and see the new entry of {batch["name"]}:

  {argument} && git commit -qam 'Boot quietly'
  curl -s {base}/v1/boot/{batch["macs"][0]}/boot.ipxe

Move a stream to its next image. That would reinstall servers, so the commit is held; see why,
and the lines that let it pass:

  {stream_change}
  git commit -qam 'Move to {following}'
  {gitboot} status
  {gitboot} diff HEAD~1..HEAD

Reset {name} through its BMC, and watch it boot once from the network; a minute later its
entry is its disk's:

  curl -s --cacert certs/bmc-ca.pem -u gitboot:example -H 'Content-Type: application/json' \\
    -d '{{"ResetType": "ForceRestart"}}' \\
    {reset}

What was set at every BMC, and why:

  {gitboot} bmc get --credentials ../credentials

What happens is shown as far as it fits on a line, and stands whole in
{log}

Ctrl-C ends it.
""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
