"""`gitboot read-access-logs` on logs that do not grow: observations, counts, positions and errors."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from gitboot.fetchlog.spool import read_new_lines
from tests.fetchlog.test_access_logs import NGINX, OBSERVED
from tests.helpers.endpoints import ENTRY
from tests.helpers.forked_commands import run_forked

LINE = json.dumps(NGINX) + "\n"
HEAD = json.dumps({**NGINX, "method": "HEAD"}) + "\n"
SUMMARY = {
    "apiVersion": "gitboot.dev/v1alpha1",
    "read": 3,
    "observed": 1,
    "unclear": 0,
    "backwards": 0,
    "unknown": 0,
    "ignored": {"not a GET": 1, "not in the published format": 1},
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "gitboot.log"
    path.write_text(f"{LINE}{HEAD}Nov 20 dnsmasq-tftp[1]: sent /srv/tftp{ENTRY} to 10.12.0.13\n")
    return path


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "a" / "spool"


def observe(*arguments: object, given: str = "", most_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    if most_bytes is None:
        return run_forked("read-access-logs", *arguments, given=given)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    command = [sys.executable, "-m", "gitboot", "read-access-logs", *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, preexec_fn=limit)


def test_evidence_is_stored_in_the_fetch_log_and_other_lines_are_counted(log: Path, spool: Path) -> None:
    done = observe(log, "--spool", spool)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "3 lines read, 1 observed; ignored: 1 not a GET, 1 not in the published format\n"
    assert read_new_lines(spool, {}).observations == [OBSERVED]


def test_fetches_by_clients_that_may_be_machines_are_counted_separately(log: Path, spool: Path) -> None:
    without_agent = {name: value for name, value in NGINX.items() if name != "agent"}
    log.write_text(LINE + json.dumps(without_agent) + "\n" + json.dumps({**NGINX, "agent": "curl/8.5.0"}) + "\n")
    done = observe(log, "--spool", spool)
    assert (
        done.stdout
        == "3 lines read, 1 observed, 1 unclear line (possibly from machines); ignored: 1 by a tool or a monitor\n"
    )
    assert [each.is_open_intent for each in read_new_lines(spool, {}).observations] == [False, True]


def test_a_log_that_is_read_twice_counts_once_and_later_only_new_lines_count(log: Path, spool: Path) -> None:
    for count in (3, 0):
        assert json.loads(observe(log, "--spool", spool, "-o", "json").stdout)["read"] == count
    with log.open("a") as file:
        file.write(LINE)
    assert json.loads(observe(log, log, "--spool", spool, "-o", "json").stdout)["observed"] == 1
    assert read_new_lines(spool, {}).observations == [OBSERVED, OBSERVED]


def test_e38_a_mirror_that_goes_backwards_is_reported(log: Path, spool: Path) -> None:
    assert json.loads(observe(log, "--spool", spool, "-o", "json").stdout)["backwards"] == 0
    older = {**NGINX, "modified": "Thu, 19 Nov 2026 22:00:00 GMT"}
    with log.open("a") as file:
        file.write(LINE + json.dumps(older) + "\n")
    done = observe(log, "--spool", spool, "-o", "json")
    assert json.loads(done.stdout) == {**SUMMARY, "read": 2, "observed": 2, "backwards": 1, "ignored": {}}
    told = json.loads(done.stderr)
    assert (told["type"], told["path"]) == ("MirrorBackwards", OBSERVED.path)


def test_standard_input_is_read_to_its_end(log: Path, spool: Path) -> None:
    done = observe("-", "--spool", spool, "-o", "json", given=log.read_text())
    assert json.loads(done.stdout) == SUMMARY
    assert read_new_lines(spool, {}).observations == [OBSERVED]
    assert [path.suffix for path in spool.iterdir()] == [".jsonl"], "nothing to remember"


def test_several_logs_have_one_summary(log: Path, spool: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text(LINE)
    assert json.loads(observe(log, other, "--spool", spool, "-o", "json").stdout)["observed"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.log", "other.log"], "no such file: missing.log, other.log"),
        (["-", "missing.log"], "standard input (-) cannot be combined"),
        ([], "Missing argument 'ACCESSLOG...'"),
    ],
)
def test_invalid_arguments_are_rejected(spool: Path, arguments: list[str], said: str) -> None:
    done = observe(*arguments, "--spool", spool)
    assert (done.returncode, done.stdout) == (64, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_lines_that_the_full_disk_did_not_take_are_read_again(log: Path, spool: Path) -> None:
    log.write_text(LINE * 3)
    observed = len(take_line(spool, log))
    for written in spool.glob("*.jsonl"):
        written.unlink()
    for memory in spool.glob("log-*.json"):
        memory.unlink()
    refused = observe(log, "--spool", spool, most_bytes=observed * 2 + 10)
    assert (refused.returncode, "cannot be written" in refused.stderr) == (64, True), refused
    assert len(read_new_lines(spool, {}).observations) == 2
    assert json.loads(observe(log, "--spool", spool, "-o", "json").stdout)["observed"] == 1


def take_line(spool: Path, log: Path) -> bytes:
    observe(log, "--spool", spool)
    return next(spool.glob("*.jsonl")).read_bytes().splitlines(keepends=True)[0]


def test_t11_malformed_lines_of_a_log_are_counted_and_the_rest_is_read(log: Path, spool: Path) -> None:
    odd: list[dict[str, object]] = [
        {"modified": "Mon, 01 Jan 0001 00:00:00 +2359"},
        {"modified": "Thu, 99999999999999999999 Jan 2026 00:00:00 GMT"},
        {"at": "0001-01-01T00:00:00+23:59"},
        {"client": "::1%" + "x" * 100_000},
        {"status": 10**4000},
        {"path": "/" + "a/" * 50_000},
    ]
    garbage = [
        *(json.dumps({**NGINX, **each}).encode() for each in odd),
        b"[" * 100_000,
        b"\0" * 70_000,
        b"\xff\xfe\x00\xd8",
        b"{" + b'"a":' * 1000,
        bytes(range(256)).replace(b"\n", b""),
        b"x" * 1_000_000,
    ]
    log.write_bytes(b"\n".join([*garbage, LINE.encode()]))
    done = observe(log, "--spool", spool, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["read"] == len(garbage) + 1 + 3, "a line of a megabyte is counted in pieces"
    assert OBSERVED in read_new_lines(spool, {}).observations
