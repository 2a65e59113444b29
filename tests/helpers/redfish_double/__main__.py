r"""Run the double in the foreground: machines that boot when they are reset through Redfish.

    python -m tests.helpers.redfish_double --system NAME=UUID[,MAC] ... [--fetch http://127.0.0.1:8080]
    curl -X POST -d '{"ResetType": "ForceRestart"}' \
        http://127.0.0.1:8443/redfish/v1/Systems/NAME/Actions/ComputerSystem.Reset

With ``--tls DIR`` by HTTPS: ``curl --cacert DIR/ca.pem …``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.helpers.redfish_double.booting import Network
from tests.helpers.redfish_double.certificates import Authority
from tests.helpers.redfish_double.double import Boot, Machine
from tests.helpers.redfish_double.profiles import PROFILES
from tests.helpers.redfish_double.server import RedfishServer
from tests.helpers.redfish_double.service import Service

_TICK_S = 0.25
_ENDING = {signal.SIGINT, signal.SIGTERM}


def main() -> None:
    arguments = _arguments()
    machines = []
    for text in arguments.system:
        name, _, identity = text.partition("=")
        uuid, _, mac = identity.partition(",")
        machine = Machine(name, uuid=uuid, system=name, profile=PROFILES[arguments.profile], post_s=arguments.post)
        machine.on_boot = _boots(machine, mac, arguments)
        machines.append(machine)
    # Waited for, not handled: a handler may interrupt whoever holds the lock of the Event that it sets.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    service = Service(*machines, credentials=_credentials(arguments.credentials))
    tls = Authority(arguments.tls).server_context(f"IP:{arguments.host}") if arguments.tls else None
    with RedfishServer(service, tls=tls, host=arguments.host, port=arguments.port) as server:
        _say(f"Redfish: {server.url}/redfish/v1/ with {len(machines)} systems")
        while not signal.sigpending() & _ENDING:  # sigtimedwait also returns after SIGCONT
            time.sleep(_TICK_S)
            for machine in machines:
                machine.advance(_TICK_S)
        os._exit(0)  # at once: a client may keep a connection, or a handshake, open for long


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.redfish_double", description="A Redfish double.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8443)
    parser.add_argument("--system", action="append", required=True, metavar="NAME=UUID[,MAC]")
    parser.add_argument("--profile", choices=sorted(PROFILES), default="generic")
    parser.add_argument("--post", type=float, default=5, metavar="SECONDS", help="from a reset to its boot")
    parser.add_argument("--credentials", type=Path, metavar="DIR", help="DIR/*/username and DIR/*/password")
    parser.add_argument("--tls", type=Path, metavar="DIR", help="HTTPS, by an authority that is made there: DIR/ca.pem")
    parser.add_argument("--fetch", metavar="BASEURL", help="fetch what a machine would from there, and run it")
    parser.add_argument("--work", type=float, default=5, metavar="SECONDS", help="how long an installer works")
    parser.add_argument("--hold", type=Path, metavar="FILE", help="no installer ends while this file exists")
    return parser.parse_args()


def _credentials(directory: Path | None) -> dict[str, str] | None:
    if directory is None:
        return None
    return {
        (path / "username").read_text().strip(): (path / "password").read_text().strip()
        for path in directory.iterdir()
        if (path / "username").is_file()
    }


def _boots(machine: Machine, mac: str, arguments: argparse.Namespace) -> Callable[[Boot], None]:
    """Return what a boot of this machine leads to: a line, and what it fetches from ``--fetch``."""

    def say(line: str) -> None:
        _say(f"{machine.name} {line}")

    base = arguments.fetch.rstrip("/") if arguments.fetch else None
    network = Network(machine, mac, base, arguments.work, say, arguments.hold) if base else None

    def boots(boot: Boot) -> None:
        say(f"boots {boot.uri or boot.target.replace('None', 'its disk')}")
        if network:
            network.begin(boot)

    return boots


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
