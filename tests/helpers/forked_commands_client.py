"""Client of the process that forks gitboot's commands: see tests/helpers/forked_commands.py.

The `gitboot` of a shell only runs this, so it imports almost nothing to be fast.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import sys

MAX_BYTES = 1 << 18  # bytes of a command with its environment
NETWORK = "/proc/thread-self/ns/net"  # the network of a process, which is not that of the forking process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn


def umask() -> int:
    """This process's, as it is: to set it and set it back takes another thread's for its own now and then."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return int(next(line.split()[1] for line in status if line.startswith("Umask:")), 8)


def ask(
    connection: _socket.socket, arguments: Sequence[str], environment: Mapping[str, str], files: Sequence[int]
) -> int:
    """Have a command forked with these as its standard files; the process that it is."""
    network = os.open(NETWORK, os.O_RDONLY | os.O_CLOEXEC)
    request = marshal.dumps((list(arguments), os.getcwd(), dict(environment), umask()))
    sent = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (*files, network))
    connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, sent)])
    os.close(network)
    return int(connection.recv(MAX_BYTES))


def pass_on(address: str) -> NoReturn:
    """Run the command with which this process was called, and end as it does; a signal ends both."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    connection.connect(address)
    pid = ask(connection, sys.argv[1:], os.environ, (0, 1, 2))
    _signal.signal(_signal.SIGTERM, lambda number, _: os.kill(pid, number))
    sys.exit(int(connection.recv(MAX_BYTES)))
