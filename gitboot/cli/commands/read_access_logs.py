"""`gitboot read-access-logs`: record machines' fetches from the access logs of mirrors."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final

import click

from gitboot.cli.main import Command, Exit
from gitboot.cli.options import VARIABLES, OutputOption, output_option, write_outputs
from gitboot.cli.terminal import print_event, stop_on_signal
from gitboot.errors import UsageError
from gitboot.fetchlog.access_logs import IgnoreReason, LogFile, SentVersions, parse_line
from gitboot.fetchlog.spool import SpoolFile, encode_line
from gitboot.fetchlog.unknown_machines import UnknownMachine, UnknownMachineRecorder
from gitboot.files import convert_os_errors
from gitboot.jsonio import format_document
from gitboot.status.conditions import Event

_POLL_S: Final = 0.5
_STDIN: Final = Path("-")


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot read-access-logs /var/log/nginx/boot.log --spool /srv/spool --follow",
    exit_codes={
        Exit.FINE: "gitboot read the logs",
        Exit.USAGE: "a log does not exist, or an option is wrong",
    },
)
@click.argument("logs", metavar="ACCESSLOG...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--spool",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory for observations, which `gitboot run --spool` reads. It also contains the position up to "
    "which gitboot has read each log.",
)
@click.option("--follow", is_flag=True, help="Continue until SIGTERM. Default: stop at the end of the logs.")
@output_option("text", "json")
def command(logs: tuple[Path, ...], spool: Path, follow: bool, outputs: tuple[OutputOption, ...]) -> None:
    """Read what machines fetched from a mirror.

    Each of ACCESSLOG... is an access log of the mirror, or - for standard input. gitboot reads logs of nginx and Caddy
    in the format that the published ops/serve/ configures, server access logs of S3, and standard logs of CloudFront.

    gitboot records an observation for each complete response to a GET request for a boot script or an installer's
    report. In logs of S3 and CloudFront, only paths with a token count. `gitboot unknown-machines` shows the GET
    requests for boot scripts that do not exist. gitboot counts all other lines and ignores them. It reads each line
    once, also after a rotation and in later runs.

    If a line does not show whether a machine or another client fetched a boot, gitboot counts the line as unclear. Such
    a line does not prove an installation. It does consume a one-time install boot, so that gitboot never installs a
    server twice.
    """
    if _STDIN in logs and len(logs) > 1:
        raise UsageError("standard input (-) cannot be combined with other logs: pass only -")
    if not follow and (missing := [str(log) for log in logs if log != _STDIN and not log.is_file()]):
        raise UsageError(f"no such file: {', '.join(missing)}")
    spool.mkdir(parents=True, exist_ok=True)
    outcomes: Counter[str] = Counter()
    with ExitStack() as stack:
        asked = UnknownMachineRecorder(spool)
        stack.callback(asked.write_file)
        written = SpoolFile(spool)
        stack.callback(written.close)
        if logs == (_STDIN,):
            _record_lines(sys.stdin.buffer, spool, written, outcomes, asked, None)
        else:
            stop = stop_on_signal() if follow else None
            files = [
                (stack.enter_context(LogFile(log, spool)), SentVersions(log, spool)) for log in dict.fromkeys(logs)
            ]
            is_last = False
            while not is_last:
                is_last = stop is None or stop.is_set  # read the lines that were written before the stop
                for file, sent in files:
                    with closing(file.read_lines()) as lines:
                        _record_lines(lines, spool, written, outcomes, asked, sent)
                    sent.write()
                asked.write_file()
                if stop is not None and not is_last:
                    stop.wait(_POLL_S)
    counts = {name: outcomes.pop(name, 0) for name in (_OBSERVED, _UNREADABLE, _UNKNOWN, _OUT_OF_ORDER)}
    ignored = dict(sorted(outcomes.items()))
    lines_read = sum(ignored.values()) + counts[_OBSERVED] + counts[_UNREADABLE] + counts[_UNKNOWN]
    text = f"{lines_read} lines read, {counts[_OBSERVED]} observed"
    text += f", {counts[_UNREADABLE]} by clients that may be machines" if counts[_UNREADABLE] else ""
    text += f", {counts[_UNKNOWN]} for boot scripts that do not exist" if counts[_UNKNOWN] else ""
    if ignored:
        text += f"; ignored: {', '.join(f'{number} {reason}' for reason, number in ignored.items())}"
    listed = partial(format_document, read=lines_read, ignored=ignored, **counts)
    write_outputs(outputs, json=listed, text=partial(str, text))


_OBSERVED: Final = "observed"
_OUT_OF_ORDER: Final = "backwards"
_UNREADABLE: Final = "unclear"  # fetches of boots by a machine or by a monitor
_UNKNOWN: Final = "unknown"  # requests for boot scripts that do not exist, for example by unknown machines


def _record_lines(
    lines: Iterable[bytes],
    spool: Path,
    written: SpoolFile,
    outcomes: Counter[str],
    asked: UnknownMachineRecorder,
    sent: SentVersions | None,
) -> None:
    for line in lines:
        found = parse_line(line)
        if isinstance(found, IgnoreReason):
            outcomes[found] += 1
            continue
        if isinstance(found, UnknownMachine):
            asked.add(found)
            outcomes[_UNKNOWN] += 1
            continue
        with convert_os_errors(spool):
            written.append(encode_line(found))
        outcomes[_UNREADABLE if found.is_open_intent else _OBSERVED] += 1
        if sent is not None and sent.is_older(found):
            outcomes[_OUT_OF_ORDER] += 1
            message = f"{found.path}: the mirror sent {found.client} an older version than in an earlier response"
            facts = {"path": found.path, "client": found.client}
            print_event(Event(at=found.at, type="MirrorBackwards", message=message, facts=facts, warning=True))
