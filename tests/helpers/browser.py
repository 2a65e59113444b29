"""A real Chromium without a window, told what to do by pipes: one process for as many pages as are wanted."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

browsers = pytest.mark.skipif(
    shutil.which("chromium") is None and "CI" not in os.environ, reason="needs chromium: scripts/install-packages"
)
_OPTIONS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
_PATIENCE_S: Final = 300.0


class Browser:
    """A page of a Chromium that runs; see the Chrome DevTools Protocol."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._left, self._number = send, receive, b"", 0
        self.faults: list[str] = []  # what scripts threw, and what the page's policy refused
        self._traced: list[dict[str, Any]] = []
        self._is_traced = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **parameters: Any) -> Any:
        """What a command answers."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                assert "error" not in said, said["error"]
                return said["result"]
            self._heard(said)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._receive, 1 << 20)
            assert more, "the browser has ended"
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _heard(self, said: dict[str, Any]) -> None:
        if said.get("method") == "Runtime.exceptionThrown":
            self.faults.append(str(said["params"]["exceptionDetails"]))
        elif said.get("method") == "Log.entryAdded" and said["params"]["entry"]["source"] == "security":
            self.faults.append(said["params"]["entry"]["text"])
        elif said.get("method") == "Tracing.dataCollected":
            self._traced += said["params"]["value"]
        elif said.get("method") == "Tracing.tracingComplete":
            self._is_traced = True

    def run(self, script: str) -> Any:
        """What an expression comes to, once it is settled."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.run(condition):
            assert time.monotonic() < deadline, (condition, self.text, self.faults)
            time.sleep(0.02)

    def open(self, address: str, ready: str = "document.documentElement?.dataset.read === ''") -> None:
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.until(ready)

    @property
    def text(self) -> str:
        """What can be read of the page."""
        found: str = self.run("document.body.innerText")
        return found

    def press(self, key: str) -> None:
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key], text=text
            )

    def looks(self, *, dark: bool = False, media: str = "screen") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def sized(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def type(self, text: str) -> None:
        """One key, as a person types it."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=text, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=text)

    def painted(self) -> None:
        """Wait until what is there by now is on the screen."""
        self.run("new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)))")

    @contextmanager
    def traced(self, categories: str) -> Iterator[list[dict[str, Any]]]:
        """The events of these categories; the list is filled when the context ends."""
        self._traced, self._is_traced = [], False
        self.call(
            "Tracing.start", transferMode="ReportEvents", traceConfig={"includedCategories": categories.split(",")}
        )
        found = self._traced
        yield found
        self.call("Tracing.end")
        while not self._is_traced:
            self._heard(self._next())

    def printed(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF")["data"])


_KEYS: Final = {"Tab": 9, "Enter": 13, "/": 191}


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser whose profile lies in ``folder``; it ends with the context."""
    asked, send = os.pipe()
    receive, answered = os.pipe()
    command = ("chromium", *_OPTIONS, f"--user-data-dir={folder}", "about:blank")

    def placed() -> None:
        """Chromium reads what it is told from descriptor 3, and answers on 4."""
        above = [os.dup2(fd, 64 + number) for number, fd in enumerate((asked, answered))]
        os.dup2(above[0], 3)
        os.dup2(above[1], 4)

    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(command, preexec_fn=placed, pass_fds=(3, 4), stdout=errors, stderr=errors)
    for fd in (asked, answered):
        os.close(fd)
    try:
        yield Browser(send, receive)
    finally:
        process.kill()
        process.wait()
        for fd in (send, receive):
            os.close(fd)
