"""`gitboot read-access-logs`: read the access logs of a mirror, and record the fetches."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
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
from gitboot.files import convert_os_errors, is_file
from gitboot.jsonio import format_document
from gitboot.status.conditions import Event
from gitboot.text import format_count

_POLL_S: Final = 0.5
_STDIN: Final = Path("-")
# The outcomes of lines that gitboot does not ignore, as in the JSON output.
_OBSERVED: Final = "observed"
_OUT_OF_ORDER: Final = "backwards"
_UNCLEAR: Final = "unclear"  # fetches of boots by a machine or by a monitor
_UNKNOWN: Final = "unknown"  # requests for boot scripts that do not exist, for example by unknown machines


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
    """Read a mirror's access logs and record the fetches.

    Each of ACCESSLOG... is an access log of the mirror, or - for standard input. gitboot reads logs of nginx and Caddy
    in the format that the published ops/serve/ configures, server access logs of S3, and standard logs of CloudFront.

    gitboot records an observation for each complete response to a GET request for a boot script or an installer's
    report. For logs of S3 and CloudFront, gitboot records only paths with a token. `gitboot unknown-machines` shows the
    GET requests for boot scripts that do not exist. gitboot counts all other lines and ignores them. It reads each
    line once, also after a rotation and in later runs.

    If a line does not show whether a machine or another client fetched a boot, gitboot counts the line as unclear. Such
    a line does not prove an installation. It does consume a one-time install boot, so that gitboot never installs a
    server twice.
    """
    if _STDIN in logs and len(logs) > 1:
        raise UsageError("standard input (-) cannot be combined with other logs: pass only -")
    if not follow and (missing := [str(log) for log in logs if log != _STDIN and not is_file(log)]):
        raise UsageError(f"no such file: {', '.join(missing)}")
    with convert_os_errors(spool, "created"):
        spool.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        recorder = stack.enter_context(closing(_LogRecorder(spool)))
        if logs == (_STDIN,):
            recorder.record_lines(sys.stdin.buffer)
        else:
            stop = stop_on_signal() if follow else None
            files = [
                (stack.enter_context(LogFile(log, spool)), SentVersions(log, spool)) for log in dict.fromkeys(logs)
            ]
            is_last = False
            while not is_last:
                is_last = stop is None or stop.is_set  # read the lines that were written before the stop
                for file, sent_versions in files:
                    with closing(file.read_lines()) as lines:
                        recorder.record_lines(lines, sent_versions)
                    sent_versions.write()
                recorder.unknown_machines.write_file()
                if stop is not None and not is_last:
                    stop.wait(_POLL_S)
    counts = {outcome: recorder.outcomes.pop(outcome, 0) for outcome in (_OBSERVED, _UNCLEAR, _UNKNOWN, _OUT_OF_ORDER)}
    ignored = dict(sorted(recorder.outcomes.items()))
    lines_read = sum(ignored.values()) + counts[_OBSERVED] + counts[_UNCLEAR] + counts[_UNKNOWN]
    write_outputs(
        outputs,
        json=partial(format_document, read=lines_read, ignored=ignored, **counts),
        text=partial(_format_log_counts, lines_read, counts, ignored),
    )


class _LogRecorder:
    """A recorder that writes the fetches in access logs to a spool, and counts the lines by outcome."""

    def __init__(self, spool: Path) -> None:
        self.outcomes: Counter[str] = Counter()  # an outcome is `_OBSERVED` and so on, or the reason to ignore a line
        self.unknown_machines = UnknownMachineRecorder(spool)
        self._spool = spool
        self._spool_file = SpoolFile(spool)

    def close(self) -> None:
        try:
            self._spool_file.close()
        finally:
            self.unknown_machines.write_file()

    def record_lines(self, lines: Iterable[bytes], sent_versions: SentVersions | None = None) -> None:
        """Record the lines of one log. With ``sent_versions``, warn if the mirror sent an older version of a file."""
        for line in lines:
            fetch = parse_line(line)
            if isinstance(fetch, IgnoreReason):
                self.outcomes[fetch] += 1
                continue
            if isinstance(fetch, UnknownMachine):
                self.unknown_machines.add(fetch)
                self.outcomes[_UNKNOWN] += 1
                continue
            with convert_os_errors(self._spool):
                self._spool_file.append(encode_line(fetch))
            self.outcomes[_UNCLEAR if fetch.is_open_intent else _OBSERVED] += 1
            if sent_versions is not None and sent_versions.is_older(fetch):
                self.outcomes[_OUT_OF_ORDER] += 1
                message = f"{fetch.path}: the mirror sent {fetch.client} an older version than before"
                facts = {"path": fetch.path, "client": fetch.client}
                print_event(Event(at=fetch.at, type="MirrorBackwards", message=message, facts=facts, warning=True))


def _format_log_counts(lines_read: int, counts: Mapping[str, int], ignored: Mapping[str, int]) -> str:
    text = f"{lines_read} lines read, {counts[_OBSERVED]} observed"
    if counts[_UNCLEAR]:
        text += f", {format_count(counts[_UNCLEAR], 'unclear line')} (possibly from machines)"
    if counts[_UNKNOWN]:
        text += f", {format_count(counts[_UNKNOWN], 'request')} for nonexistent boot scripts"
    if ignored:
        text += f"; ignored: {', '.join(f'{number} {reason}' for reason, number in ignored.items())}"
    return text
