"""Receivers of notices: web servers that answer, refuse or hang, and what they were sent."""

from __future__ import annotations

import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SECRET = "correct-horse-staple"


@dataclass
class Hook:
    """A web server that takes webhooks, and looks at how they are signed."""

    url: str = ""
    status: int = 204
    hangs: bool = False
    got: list[dict[str, Any]] = field(default_factory=list)
    deliveries: list[str] = field(default_factory=list)
    tried: int = 0
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def hook() -> Iterator[Hook]:
    made = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.tried += 1
            if made.hangs:
                made.ended.wait()
                return
            at = self.headers["X-Gitboot-Timestamp"]
            wanted = hmac.new(SECRET.encode(), f"{at}.".encode() + body, "sha256").hexdigest()
            assert self.headers["X-Gitboot-Signature-256"] == f"sha256={wanted}"
            if made.status < 300:
                made.got.append(json.loads(body))
                made.deliveries.append(self.headers["X-Gitboot-Delivery"])
            self.send_response(made.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quietly."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        made.url = f"http://127.0.0.1:{server.server_address[1]}/T0/very-secret-path"
        yield made
        made.ended.set()
        server.shutdown()


def write_private(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def notify_file(folder: Path, **receivers: str) -> Path:
    """A file of receivers, each with what its table says besides the secret of a webhook."""
    write_private(folder / "hook.secret", f"{SECRET}\n")
    tables = (
        f"[receivers.{name}]\n{said}\n" + ('secret-file = "hook.secret"\n' if said.startswith("webhook") else "")
        for name, said in receivers.items()
    )
    return write_private(folder / "notify.toml", "".join(tables))
