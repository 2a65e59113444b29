"""Connections to a server that threads carry, so that a test may stop what goes through them."""

from __future__ import annotations

import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Self


class CarriedConnections(ABC):
    """What comes in at a socket, carried to another; a connection ends once both its ends have, or it is cut.

    No thread closes a socket in which another may be about to read: its number may be another's by then.
    """

    def __init__(self, listening: socket.socket, connect: Callable[[], socket.socket]) -> None:
        self.listening, self._connect = listening, connect
        self._open: set[socket.socket] = set()
        self._opening = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.hang_up()

    def hang_up(self) -> None:
        """End each connection that there is, at both its ends."""
        with self._opening:
            for each in self._open:
                _end(each)

    @abstractmethod
    def carried(self, data: bytes) -> bytes:
        """What of ``data`` is carried on; may wait."""

    @property
    def is_stuck(self) -> bool:
        """Whether nothing is carried any more, not even an end: until all is hung up, or the client has left."""
        return False

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listening.accept()
                threading.Thread(target=self._hold, args=(client,), daemon=True).start()

    def _hold(self, client: socket.socket) -> None:
        with client, suppress(OSError), self._connect() as server:
            both = [
                threading.Thread(target=self._carry, args=(*ends, client), daemon=True)
                for ends in ((client, server), (server, client))
            ]
            with self._opening:
                self._open |= {client, server}
            for each in both:
                each.start()
            for each in both:
                each.join()
            with self._opening:
                self._open -= {client, server}

    def _carry(self, one: socket.socket, other: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while not self.is_stuck and (data := one.recv(65536)):
                other.sendall(self.carried(data))
        if self.is_stuck:
            ends = select.poll()
            ends.register(client, 0)
            ends.poll()
        _end(other)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
