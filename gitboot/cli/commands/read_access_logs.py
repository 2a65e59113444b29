"""`gitboot read-access-logs`: read from the access logs of mirrors what machines fetched."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final

import click

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


@click.command(context_settings=VARIABLES)
@click.argument("logs", metavar="ACCESSLOG...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--spool",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Write observations here, for `gitboot run --spool`; how far each log was read is remembered here, too.",
)
@click.option("--follow", is_flag=True, help="Go on until SIGTERM. Default: end where the logs end.")
@output_option("text", "json")
def command(logs: tuple[Path, ...], spool: Path, follow: bool, outputs: tuple[OutputOption, ...]) -> None:
    """Read what machines fetched from a mirror in ACCESSLOG..., its access logs; - is standard input.

    They are of nginx or Caddy, in the format of the published ops/serve/, or server access logs of S3, or standard
    logs of CloudFront, which say nothing of entries. Whole answers to GETs of boot entries and of installers' reports
    become observations; GETs of boot entries that are not there are noted for `gitboot unknown-machines`; all
    other lines are counted and ignored. Each line is read once, however often this is called, and through rotations.

    If a line does not show whether a machine fetched a boot, the line is counted as unclear. It proves no installation.
    However, a one-time boot that writes a disk is used up by it, so that no server is installed a second time.
    """
    if _STDIN in logs and len(logs) > 1:
        raise UsageError("standard input (-) is read alone")
    if not follow and (missing := [str(log) for log in logs if log != _STDIN and not log.is_file()]):
        raise UsageError(f"there is no file {', '.join(missing)}")
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
                is_last = stop is None or stop.is_set  # what was written before that is still read
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
    text += f", {counts[_UNKNOWN]} for entries that are not there" if counts[_UNKNOWN] else ""
    if ignored:
        text += f"; ignored: {', '.join(f'{number} {reason}' for reason, number in ignored.items())}"
    listed = partial(format_document, read=lines_read, ignored=ignored, **counts)
    write_outputs(outputs, json=listed, text=partial(str, text))


_OBSERVED: Final = "observed"
_OUT_OF_ORDER: Final = "backwards"
_UNREADABLE: Final = "unclear"  # boots that a machine or a monitor fetched
_UNKNOWN: Final = "unknown"  # entries that are not there: of machines that no document describes, say


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
            message = f"{found.path}: the mirror sent {found.client} an older version than before; it went backwards"
            facts = {"path": found.path, "client": found.client}
            print_event(Event(at=found.at, type="MirrorBackwards", message=message, facts=facts, warning=True))
