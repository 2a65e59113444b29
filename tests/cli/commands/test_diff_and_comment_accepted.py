"""`gitboot diff --accepted`: what an instance has accepted, by its endpoint, a mirror, or its files."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gitboot.cli.instance_client import accepted_by
from gitboot.errors import HostUnreachable, UsageError
from tests.helpers.git_repositories import Work
from tests.helpers.instance_with_bmcs import Rack, typed, until_condition
from tests.helpers.running_instance import eventually


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


@contextmanager
def served(answers: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a web server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Mirror(http.server.SimpleHTTPRequestHandler):
    """One that serves files."""

    def log_message(self, format: str, *args: object) -> None:
        """Quietly."""


class Answering(http.server.BaseHTTPRequestHandler):
    """One that has the same answer for everything."""

    answer: tuple[int, dict[str, str], bytes]

    def do_GET(self) -> None:
        status, headers, content = self.answer
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quietly."""


def answering(status: int, content: bytes = b"", **headers: str) -> type[Answering]:
    return type("AnsweringSo", (Answering,), {"answer": (status, headers, content)})


def test_an_instance_says_what_it_has_accepted_while_it_holds_the_newest(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    accepted = rack.push()
    with rack.running(records="adopt") as instance:
        web.provision = 2
        held = rack.push("Reinstall web01")
        until_condition(instance, "CommitAccepted", status=False, reason="GuardTripped")
        found = instance.status()
        assert (found["attempted"]["commit"], found["accepted"]["commit"]) == (held, accepted)
        assert accepted_by(instance.url) == accepted_by(f"{instance.url}/") == accepted_by(str(rack.output)) == accepted
        done = typed("diff", "--accepted", instance.url, "..main", rack.repository.work)
        assert (done.code, "Gitboot-Ack" in done.out, f"accepted ({accepted[:12]}) → main" in done.out) == (
            4,
            True,
            True,
        )
        assert f"gitboot diff ..main {rack.repository.work} --accepted {instance.url}" in done.out
        held_digest = found["attempted"]["held"]["digest"]
        assert f"Gitboot-Ack: {held_digest} maxReinstalls" in done.out  # the instance has the same digest
    assert accepted_by(str(rack.output)) == accepted  # whether it runs or not


def test_what_lies_uncommitted_is_compared_with_it(rack: Rack) -> None:
    web = rack.add("web01", provision=1)
    rack.push()
    rack.once(records="adopt")
    web.provision = 2
    rack.push("Reinstall web01")
    done = typed("diff", "--accepted", rack.output, "WORKTREE", rack.repository.work)
    assert done.code == 64  # it is no BASE
    (rack.repository.work / "more.txt").write_text("")
    done = typed("diff", "--accepted", rack.output, "main", rack.repository.work)
    assert (done.code, "maxReinstalls" in done.out) == (4, True)


def test_a_mirror_says_what_it_serves(rack: Rack) -> None:
    rack.add("web01")
    accepted = rack.push()
    rack.once(records="adopt")
    with served(partial(Mirror, directory=str(rack.output))) as url:
        assert accepted_by(url) == accepted
        (rack.output / "ops" / "manifest.json").unlink()
        with pytest.raises(UsageError, match="names no commit that was accepted"):
            accepted_by(url)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answering(503, b'{"message": "starting\\nup"}'), "answered 503 starting up"),
        (answering(302, Location="http://127.0.0.1:9/elsewhere"), "answered 302"),
        (answering(200, b"<html>"), "answered 200"),
        (answering(200, b'"' + b"a" * (1 << 20) + b'"'), "answers more than 1,048,576 bytes"),
    ],
    ids=["busy", "leads elsewhere", "no JSON", "too much"],
)
def test_an_answer_that_cannot_be_used_is_none(answer: type[Answering], said: str) -> None:
    with served(answer) as url, pytest.raises(HostUnreachable, match=said):
        accepted_by(url)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("ftp://boot.test", "no URL of a web server"),
        ("http://user:secret@boot.test", "must not hold a user or a password"),
        ("/nowhere", "names no commit"),
    ],
)
def test_a_place_that_cannot_be_meant_is_said(where: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        accepted_by(where)
    assert "secret" not in str(raised.value)


def test_nothing_to_compare_with_is_said() -> None:
    done = typed("diff")
    assert (done.code, "--accepted" in done.err) == (64, True)


def test_an_instance_that_has_accepted_nothing_says_so(rack: Rack) -> None:
    rack.repository.push({"fleet.yaml": "nonsense"})
    with rack.running(ready=False) as instance:
        eventually(lambda: instance.status()["attempted"]["commit"])
        with pytest.raises(UsageError, match="names no commit that was accepted"):
            accepted_by(instance.url)


def test_a_commit_that_the_clone_does_not_have_is_said(rack: Rack, tmp_path: Path) -> None:
    rack.add("web01")
    accepted = rack.push()
    rack.once(records="adopt")
    other = Work(tmp_path / "other")
    other.commit({"fleet.yaml": "x"})
    done = typed("diff", "main", other.path, "--accepted", rack.output)
    assert (done.code, f"has no commit {accepted}" in done.err) == (64, True)
