"""`make run`: what the banner promises happens, and the demonstration ends with everything that it started."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

import httpx
import pytest

from tests.helpers.git_repositories import free_port
from tests.helpers.operators_page import Browser, browser, browsers
from tests.helpers.running_instance import eventually

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_example.py"
_SEARCHED_S = 4  # a start is interrupted after so long at most; how far it has come by then does not matter
_PATIENCE_S = 300  # until a wait for an event ends
_LAST_LINE = "To stop the example, press Ctrl-C. The page: "
_COLUMNS = 80


@dataclass
class Run:
    process: subprocess.Popen[bytes]
    mark: str
    scratch: Path
    said: Path

    def started(self) -> list[int]:
        """Every process of this run that is left."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:  # it has ended meanwhile, or belongs to somebody else
                continue
        return sorted(found)

    def wait_until_ready(self) -> None:
        self.wait_for_line(re.escape(_LAST_LINE))

    def wait_for_line(self, pattern: str, *, times: int = 1) -> None:
        """Return when so many lines of the terminal match."""
        until = time.monotonic() + _PATIENCE_S
        while len(re.findall(pattern, self.said.read_text(), re.MULTILINE)) < times:
            assert time.monotonic() < until, f"no {pattern} in\n{self.said.read_text()}"
            assert self.process.poll() is None, self.said.read_text()
            time.sleep(0.1)

    def wait_for(self, *arguments: bytes) -> int:
        """The process of it whose first arguments these are, once there is one."""
        until = time.monotonic() + _PATIENCE_S
        while True:
            assert time.monotonic() < until, self.said.read_text()
            for pid in self.started():
                with suppress(OSError):  # it has ended meanwhile
                    if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1 : 1 + len(arguments)] == [*arguments]:
                        return pid
            time.sleep(0.1)

    def list_remaining(self) -> list[str]:
        until = time.monotonic() + _PATIENCE_S
        while (pids := self.started()) and time.monotonic() < until:
            time.sleep(0.1)
        return [" ".join(Path(f"/proc/{pid}/cmdline").read_text().split("\0")) for pid in pids]

    def banner(self) -> list[str]:
        """The lines from the first word to a visitor to the last."""
        lines = self.said.read_text().splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("gitboot runs on"))
        last = next(number for number, line in enumerate(lines) if line.startswith(_LAST_LINE))
        return lines[first : last + 1]


Start = Callable[..., Run]


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Set the signals as a run inherits them: nohup ignores SIGHUP, and a shell ignores SIGINT in background jobs."""
    ignored = [each for each in (signal.SIGHUP, signal.SIGINT) if signal.getsignal(each) is signal.SIG_IGN]
    for each in ignored:
        signal.signal(each, signal.SIG_DFL)
    yield
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)


@contextmanager
def running(folder: Path, *command: str, terminal: int | None = None) -> Iterator[Run]:
    """A demonstration in 80 columns; with a terminal, events go there. The context kills all that it has started."""
    mark, scratch, said = f"run-{uuid4()}", folder / "scratch", folder / "said"
    scratch.mkdir()
    environment = {
        **os.environ,
        "PORT": str(free_port()),
        "TMPDIR": str(scratch),
        "GITBOOT_TEST_MARK": mark,
        "COLUMNS": str(_COLUMNS),
    }
    with said.open("w") as output:
        process = subprocess.Popen(
            [*command, sys.executable, str(SCRIPT)],
            env=environment,
            stdin=terminal,
            stdout=output,
            stderr=subprocess.STDOUT if terminal is None else terminal,
            start_new_session=terminal is None,
        )
    run = Run(process, mark, scratch, said)
    try:
        yield run
    finally:
        for pid in run.started():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda *command: stack.enter_context(running(tmp_path, *command))


# Promises of the banner


class Shell:
    """The second terminal of a visitor: a shell without the paths of this checkout."""

    def __init__(self, home: Path) -> None:
        environment = {"PATH": os.defpath, "HOME": str(home), "LANG": "C.UTF-8", "COLUMNS": str(_COLUMNS)}
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Self:
        self.process.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)

    def type(self, commands: str) -> str:
        """Type lines as they are printed; return what they print."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{commands}\necho '<end>'\n")
        self.process.stdin.flush()
        printed = ""
        for line in self.process.stdout:
            if line == "<end>\n":
                return printed
            printed += line
        raise AssertionError(f"the shell has ended: {printed}")


@dataclass
class Visit:
    """The results of a visitor who did everything on the banner."""

    printed: dict[str, str] = field(default_factory=dict)  # by what the commands are for
    links: dict[str, httpx.Response] = field(default_factory=dict)  # by the line above each link
    on_page: list[str] = field(default_factory=list)  # what was seen in a browser
    commits: dict[str, str] = field(default_factory=dict)
    said: str = ""
    said_first: str = ""  # when the run was ready
    processes: int = 0  # when the run was ready
    log: str = ""  # gitboot's
    end: tuple[int, list[str], list[Path]] | None = None  # the exit code, and the processes and files that were left


_BLOCKS: Final = ("begin", "install", "history", "change", "hold", "approve", "install again", "maintain", "reset")


def visit(run: Run, shell: Shell, page: Browser | None) -> Visit:
    """Follow the banner in its order, and wait only for what it names."""
    run.wait_until_ready()
    banner, found = run.banner(), Visit(said_first=run.said.read_text(), processes=len(run.started()))
    typed = re.findall(r"(?:^  .*\n)+", "\n".join(banner) + "\n", re.MULTILINE)
    blocks = dict(zip(_BLOCKS, typed, strict=True))

    def run_block(block: str) -> None:
        found.printed[block] = shell.type(blocks[block])

    def check_page(what: str, condition: str) -> None:
        if page is not None:
            page.until(f"refresh().then(() => {condition})")
            found.on_page.append(what)

    def row(server: str, *words: str) -> str:
        """Return whether the row of a server has these words."""
        cells = (
            f"[...document.querySelectorAll('#fleet tbody tr')].find((each) => each.innerText.startsWith('{server}'))"
        )
        return " && ".join(f"{cells}.innerText.includes('{word}')" for word in words)

    found.links = {
        label.rstrip(":"): httpx.get(link, follow_redirects=True, timeout=60) for label, link in _links(banner)
    }
    if page is not None:
        page.sized(1280, 2000)  # so that all rows are drawn
        page.open(next(line for line in banner if line.startswith("http")))
    run_block("begin")
    check_page("who will be installed", row("fra1-w09", "Network", "at its next boot"))
    (hold,) = (each / "hold" for each in run.scratch.iterdir())
    hold.touch()  # so that the installation cannot end before the page was read
    run_block("install")
    run.wait_for_line(r"^\S+ Started +fra1-w09: ")
    check_page("an installation", row("fra1-w09", "Installing since", "installer started"))
    hold.unlink()
    for step in ("Attempted", "Started", "Provisioned"):
        run.wait_for_line(rf"^\S+ {step} +fra1-w09: ")
    run_block("history")
    run.wait_for_line(r"Phase +fra1-w09: Network → Disk")
    run.wait_for_line(r"machine +fra1-w09 boots its disk")
    check_page("an installed machine", f"{row('fra1-w09', 'Disk')} && !({row('fra1-w09', 'at its next boot')})")
    run_block("change")
    found.commits["change"] = shell.type("git rev-parse HEAD").strip()
    check_page(
        "the changed boot", f"document.body.innerText.includes('published commit {found.commits['change'][:12]}')"
    )
    run_block("hold")
    found.commits["held"] = shell.type("git rev-parse HEAD").strip()
    check_page(
        "the held commit", f"document.querySelector('.note.bad').innerText.includes('{found.commits['held'][:12]}')"
    )
    run_block("approve")
    run.wait_for_line(r"^\S+ OverrideConfirmed +fra1-w09: ", times=2)
    check_page(
        "the approved commit", f"document.body.innerText.includes('published commit {found.commits['held'][:12]}')"
    )
    run_block("install again")
    run.wait_for_line(r"^\S+ Provisioned +fra1-w09: ", times=2)
    run_block("maintain")
    run.wait_for_line(r"Phase +fra1-w04: Disk → Maintenance")
    check_page("the open window", row("fra1-w04", "Maintenance", "memory-test-now"))
    run.wait_for_line(r"machine +fra1-w04 runs what it booted")
    run.wait_for_line(r"Phase +fra1-w04: Maintenance → Disk")
    check_page("the closed window", row("fra1-w04", "Disk"))
    run_block("reset")
    run.wait_for_line(r"machine +fra1-w04 boots its disk")
    if page is not None:
        page.run("location.hash = '#/timeline'")
        page.until("document.getElementById('view').innerText.includes('maintenances/memory-test-now.yaml')")
        page.run("location.hash = '#/changes'")
        for commit in found.commits.values():
            page.until(f"document.getElementById('view').innerText.includes('{commit[:12]}')")
        for words in ("Boot the next image", "with gitboot approve: The canaries work (maxReinstalls"):
            page.until(f"document.getElementById('view').innerText.includes('{words}')")
        assert page.faults == []
    found.said = run.said.read_text()
    log = next(run.scratch.glob("*/gitboot.log"))
    assert str(log) in found.said_first
    found.log = log.read_text()
    found.said_first = found.said_first.replace(str(run.scratch), "/tmp")
    return found


def end_impatiently(run: Run) -> tuple[int, list[str], list[Path]]:
    """Press Ctrl-C again and again; return the exit code, and the processes and files that are left."""
    for _ in range(20):
        run.process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    return run.process.wait(_PATIENCE_S), run.list_remaining(), list(run.scratch.iterdir())


def _links(banner: list[str]) -> list[tuple[str, str]]:
    """Return each link of the banner, and the line that describes it."""
    written = [line for line in banner if line]
    return [(written[number - 1], line) for number, line in enumerate(written) if line.startswith("http")]


@pytest.fixture(scope="module")
def visited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    """A visit, in a browser too where there is one."""
    folder = tmp_path_factory.mktemp("visit")
    (folder / "home").mkdir()
    (folder / "chromium").mkdir()
    with ExitStack() as stack:
        run = stack.enter_context(running(folder))
        page = None if browsers.args[0] else stack.enter_context(browser(folder / "chromium"))
        with Shell(folder / "home") as shell:
            found = visit(run, shell, page)
        found.end = end_impatiently(run)
        yield found


def test_finding_r5_each_action_of_the_banner_has_its_described_effect(visited: Visit) -> None:
    printed = visited.printed
    steps = ("OverrideConfirmed", "Attempted", "OverrideConsumed", "Started", "Provisioned")
    assert {line.split()[1] for line in printed["history"].splitlines()} >= set(steps)
    assert re.search(r"Provisioned .* BootImage/flatcar-4230\.2\.4 \(Reported\)", printed["history"])
    changed = [line for line in printed["change"].splitlines() if line.startswith(("<", ">"))]
    assert [line for line in changed if not re.fullmatch("[<>] [0-9a-f]{64}", line)] == ["> quiet"] * 2  # iPXE and GRUB
    assert "held" in printed["hold"] and visited.commits["held"] in printed["hold"]
    assert re.search(r"^approved maxReinstalls", printed["approve"], re.MULTILINE)
    digest = re.search(r"\b[0-9a-f]{64}\b", printed["hold"])
    assert digest is not None and digest[0][:16] in visited.said
    assert re.search(r"^\S+ Held +commit " + visited.commits["held"][:12], visited.said, re.MULTILINE)
    assert re.search(r"^\S+ Accepted +accepted " + visited.commits["held"][:12], visited.said, re.MULTILINE)
    installed = re.findall(r"fra1-w09 GET /assets/flatcar/amd64-usr/([\d.]+)/", visited.said)
    assert list(dict.fromkeys(installed)) == ["4230.2.4", "4459.2.4"]
    phases = re.findall(r"^\d{4}-\S+ (?:\S+Z)? +(\w+)", printed["maintain"], re.MULTILINE)
    assert phases[-2:] == ["Maintenance", "Disk"]
    assert phases[:-2] in (["Disk"], []), "the window may be open when the plan is asked for"
    maintained = re.findall(r"machine +fra1-w04 (boots \w+(?: disk)?|restarts)", visited.said)
    assert maintained == ["boots Pxe", "boots its disk"]
    assert "unknown" not in printed["maintain"]  # whether the server is provisioned


def test_finding_r5_each_link_of_the_banner_shows_curl_what_its_label_states(visited: Visit) -> None:
    page, script, servers, status = visited.links.values()
    assert "<title>gitboot</title>" in page.text
    label, *_ = [each for each in visited.links if "iPXE" in each]
    assert label.startswith("The iPXE script of ams2-b01") and script.text.startswith("#!ipxe\n")
    assert "# ams2-b01: Network" in script.text
    assert len(json.loads(servers.text)["items"]) == 30 and visited.links["All servers"] is servers
    assert json.loads(status.text)["ledger"] and visited.links["The status of gitboot"] is status


@browsers
def test_finding_r5_the_page_shows_each_action_in_a_browser(visited: Visit) -> None:
    assert visited.on_page == [
        *("who will be installed", "an installation", "an installed machine", "the changed boot", "the held commit"),
        *("the approved commit", "the open window", "the closed window"),
    ]


def test_the_banner_comes_last_and_repeated_interrupts_do_no_harm(visited: Visit) -> None:
    lines = visited.said_first.splitlines()
    assert lines[-1] == "" and re.fullmatch(rf"{_LAST_LINE}http://127\.0\.0\.1:\d+/", lines[-2])
    assert [line for line in lines if len(line) > _COLUMNS and "/.venv/bin" not in line] == []
    assert any("Published" in line for line in lines)
    assert '"type": "Published"' in visited.log
    assert visited.processes >= 3  # itself, the BMCs, gitboot
    assert visited.end == (0, [], [])


# Ends


@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_nothing_is_left_at_whatever_time_it_is_ended(start: Start, end: str) -> None:
    run = start()
    after_s = random.uniform(0.05, _SEARCHED_S / 2)
    time.sleep(after_s)
    run.process.send_signal(signal.Signals[end])
    run.process.wait(_PATIENCE_S)
    assert run.list_remaining() == [], f"{end} after {after_s:.3f} s"
    if end != "SIGKILL" and b"scratch folder is removed" in run.said.read_bytes():
        assert list(run.scratch.iterdir()) == []


def test_nothing_is_left_when_its_parent_is_killed(start: Start) -> None:
    run = start("sh", "-c", '"$@" & wait', "sh")
    assert eventually(lambda: list(run.scratch.iterdir())), "it has asked the kernel for a signal by then"
    time.sleep(random.uniform(0, _SEARCHED_S))
    run.process.kill()
    assert run.list_remaining() == []


def test_nothing_is_left_when_its_terminal_closes(tmp_path: Path) -> None:
    """As with make, the leader of the session ignores SIGHUP and waits."""
    terminal, own = os.openpty()
    with running(tmp_path, "setsid", "--ctty", "sh", "-c", 'trap "" HUP; "$@" & wait', "sh", terminal=own) as run:
        os.close(own)
        run.wait_for(b"-m", b"gitboot", b"run")
        os.close(terminal)
        assert run.list_remaining() == []


def test_a_process_that_does_not_end_by_itself_is_killed(start: Start) -> None:
    run = start()
    os.kill(run.wait_for(b"-m", b"gitboot", b"run"), signal.SIGSTOP)
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(_PATIENCE_S) == 0
    assert (run.list_remaining(), list(run.scratch.iterdir())) == ([], [])
