"""`make run`: the example fleet as a real repository, its BMCs as a Redfish double, and gitboot on both.

All of it lives in a scratch folder and on 127.0.0.1, and goes when it is interrupted. PORT is where gitboot
listens: 8080 unless set.
"""

from __future__ import annotations

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
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON = sys.executable
IDENTITY = ["-c", "user.name=You", "-c", "user.email=you@example.net", "-c", "commit.gpgsign=false"]


def main() -> int:
    given = os.environ.get("PORT", "8080")
    if not given.isdecimal():
        raise SystemExit(f"PORT is {given!r}, and is to be a number")
    port = int(given)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            hint = "choose another, as in: PORT=8181 make run"
            raise SystemExit(f"port {port} is not free ({error.strerror}): {hint}") from None
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # ends as Ctrl-C does
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits it ignored
    base = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gitboot-example-")))
        fleet = scratch / "fleet"
        redfish = _double(stack, scratch, base)
        _repository(fleet, base, redfish, authority=scratch / "bmcs" / "ca.pem")
        gitboot = _start(
            stack,
            [
                *(PYTHON, "-m", "gitboot", "run", str(fleet), "--listen", f"127.0.0.1:{port}"),
                *("--output", str(scratch / "output"), "--state", str(scratch / "state")),
                *("--records", "fresh", "--credentials", str(scratch / "credentials")),
            ],
        )
        if not _ready(gitboot, base):
            return gitboot.wait()
        _print_what_to_look_at(fleet, base, redfish)
        try:
            return gitboot.wait()
        except KeyboardInterrupt:
            gitboot.send_signal(signal.SIGINT)
            gitboot.wait(15)
            print("\nEverything in the scratch folder is removed.")
            return 0


def _start(stack: ExitStack, command: list[str], **more: object) -> subprocess.Popen[str]:
    """A process of its own group, so that Ctrl-C is ours to pass on; it is ended when the stack is."""
    process: subprocess.Popen[str] = subprocess.Popen(
        command,
        cwd=ROOT,
        start_new_session=True,
        text=True,
        **more,  # type: ignore[call-overload]
    )

    def end() -> None:
        if process.poll() is None:
            process.terminate()
            process.wait(15)

    stack.callback(end)
    return process


def _double(stack: ExitStack, scratch: Path, base: str) -> str:
    """Start a Redfish double with a system for each server that has a BMC; return its URL."""
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
    (scratch / "bmcs").mkdir()
    command = [PYTHON, "-m", "tests.redfish", "--port", "0", *systems, "--fetch", base]
    if shutil.which("openssl"):  # makes the authority of the BMCs' certificates; without it they speak plain HTTP
        command += ["--tls", str(scratch / "bmcs")]
    process = _start(stack, [*command, "--credentials", str(scratch / "credentials")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not (found := re.search(r"https?://\S+:\d+", line)):
        raise SystemExit("the Redfish double did not start")
    _pump(process)
    return found[0]


def _pump(process: subprocess.Popen[str]) -> None:
    """Show what the machines do, between gitboot's own lines."""
    import threading

    def show() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"         machine           {line.rstrip()}", file=sys.stderr)

    threading.Thread(target=show, daemon=True).start()


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
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "The example fleet"]):
        subprocess.run(["git", *IDENTITY, *arguments], cwd=fleet, check=True)


def _ready(gitboot: subprocess.Popen[str], base: str) -> bool:
    until = time.monotonic() + 60
    while time.monotonic() < until and gitboot.poll() is None:
        try:
            urllib.request.urlopen(f"{base}/readyz", timeout=2)
            time.sleep(0.2)  # a gitboot that finds its port taken by another has ended by now
            return gitboot.poll() is None
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    return False


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def _print_what_to_look_at(fleet: Path, base: str, redfish: str) -> None:
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
    commit = f"git {' '.join(IDENTITY)} commit -qam"
    there = shlex.quote(str(fleet))
    gitboot = shlex.quote(str(Path(PYTHON).parent / "gitboot"))
    authority = fleet / "certs" / "bmc-ca.pem"
    reset = f"{redfish}/redfish/v1/Systems/{name}/Actions/ComputerSystem.Reset"
    print(
        f"""
gitboot runs on the example fleet, a Git repository in {fleet}

  what {name} boots   {entry}
  its plan              {base}/api/v1/servers/{name}/plan
  every server          {base}/api/v1/servers
  status                {base}/api/v1/status

Change how batch servers boot, commit it, and see the new entry of {batch["name"]}:

  (cd {there} && {argument} && {commit} 'Boot quietly') && sleep 1 \\
    && curl -s {base}/v1/boot/{batch["macs"][0]}/boot.ipxe

Move a stream to its next image. That would reinstall servers, so the commit is held; see why, and the lines that let
it pass:

  export GITBOOT_STATE={shlex.quote(str(fleet.parent / "state"))}
  (cd {there} && {stream_change} && {commit} 'Move to {following}') && sleep 1
  {gitboot} status
  {gitboot} diff HEAD~1..HEAD {there}

Reset {name} through its BMC, and watch it boot once from the network; a minute later its entry is its disk's:

  curl -s --cacert {shlex.quote(str(authority))} -u gitboot:example -H 'Content-Type: application/json' \\
    -d '{{"ResetType": "ForceRestart"}}' {reset}

What every BMC was told, and why:

  {gitboot} bmc get --credentials {shlex.quote(str(fleet.parent / "credentials"))}

Ctrl-C ends it.
""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
