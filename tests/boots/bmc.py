"""A BMC that owns a machine: what Redfish sets is what its firmware does at the next reset."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from tests.boots.machine import PATIENCE_S, Machine, Running
from tests.instance import eventually
from tests.redfish.double import Boot
from tests.redfish.double import Machine as Double

_TICK_S: Final = 0.25
_OFF: Final = "reboot: Power down"  # what Linux says before it switches off; anything else that ends QEMU is a reset


class Owner:
    """Powers ``machine`` as ``double``, which stands behind a Redfish service, is told to."""

    def __init__(self, double: Double, machine: Machine) -> None:
        self._double = double
        self._machine = machine
        self._power = ExitStack()
        self._current: Running | None = None
        self._said: list[str] = []  # at each boot but the current one
        self._end = threading.Event()
        self._wrong: str | None = None  # a boot that was not to be made
        double.on_boot = self._boot

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Let time pass for the BMC as it does for everybody; the machine is off at the end."""
        thread = threading.Thread(target=self._tick)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()
            self._power.close()

    @property
    def said(self) -> str:
        """All that stood on the console, over all boots."""
        return "".join((*self._said, self._current.said if self._current else ""))

    def says(self, boot: int, *words: str) -> None:
        """Wait until the console has shown ``words`` at its so many-th boot, counted from 1."""
        eventually(lambda: self._wrong or self._shows(boot, words), within_s=PATIENCE_S)
        assert self._wrong is None, self._wrong

    def _shows(self, boot: int, words: tuple[str, ...]) -> bool:
        current = self._current.said if self._current else ""
        boots = (*self._said, current)
        return len(boots) >= boot and all(word in boots[boot - 1] for word in words)

    def _tick(self) -> None:
        while not self._end.wait(_TICK_S):
            self._double.advance(_TICK_S)
            if self._double.power == "Off":
                self._power.close()
            elif self._current is not None and self._current.process.poll() is not None and not self._double.in_post:
                self._double.reset("ForceOff" if _OFF in self._current.said else "ForceRestart")

    def _boot(self, boot: Boot) -> None:
        """The end of POST: hand the override to firmware, and let it boot."""
        if self._current is not None:
            self._power.close()
            self._said.append(self._current.said)
        if boot.target == "UefiHttp" and boot.uri:
            self._machine.boot_next(boot.uri)
        else:
            self._wrong = None if boot.target == "None" else f"a boot that this machine was not to make: {boot}"
        self._current = self._power.enter_context(self._machine.on())
