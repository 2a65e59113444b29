"""`gitboot read-access-logs`: read from the access logs of mirrors what machines fetched."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gitboot.cli.options import OutputOption, output_option
from gitboot.cli.terminal import Stop, stopped_by_signal, tell
from gitboot.errors import UsageError
from gitboot.jsonio import document
from gitboot.status.events import Event

if TYPE_CHECKING:
    from gitboot.fetchlog.access_logs import SentVersions
    from gitboot.fetchlog.spool import SpoolFile
    from gitboot.fetchlog.unknown_machines import UnknownAsked

_POLL_S: Final = 0.5
_STDIN: Final = Path("-")


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
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
    from gitboot.fetchlog.access_logs import LogFile, SentVersions
    from gitboot.fetchlog.spool import SpoolFile
    from gitboot.fetchlog.unknown_machines import UnknownAsked

    if _STDIN in logs and len(logs) > 1:
        raise UsageError("standard input (-) is read alone")
    if not follow and (missing := [str(log) for log in logs if log != _STDIN and not log.is_file()]):
        raise UsageError(f"there is no file {', '.join(missing)}")
    spool.mkdir(parents=True, exist_ok=True)
    outcomes: Counter[str] = Counter()
    with ExitStack() as stack:
        asked = UnknownAsked(spool)
        stack.callback(asked.leave)
        written = SpoolFile(spool)
        stack.callback(written.close)
        if logs == (_STDIN,):
            _observe(sys.stdin.buffer, spool, written, outcomes, asked, None)
        else:
            stop = stopped_by_signal() if follow else None
            files = [
                (stack.enter_context(LogFile(log, spool)), SentVersions(log, spool)) for log in dict.fromkeys(logs)
            ]
            for _ in _passes(stop):
                for file, sent in files:
                    with closing(file.lines()) as lines:
                        _observe(lines, spool, written, outcomes, asked, sent)
                    sent.write()
                asked.leave()
    for output in outputs:
        output.write(document(**_facts(outcomes)) if output.format == "json" else _as_text(outcomes))


def _passes(stop: Stop | None) -> Iterator[None]:
    """One pass, or one after the other until ``stop``; what was written before that is still read."""
    yield
    while stop is not None and not stop.is_set:
        stop.wait(_POLL_S)
        yield


_OBSERVED: Final = "observed"
_BACKWARDS: Final = "backwards"
_UNCLEAR: Final = "unclear"  # boots that a machine or a monitor fetched
_UNKNOWN: Final = "unknown"  # entries that are not there: of machines that no document describes, say
_TOLD_APART: Final = (_OBSERVED, _UNCLEAR, _BACKWARDS, _UNKNOWN)


def _observe(
    lines: Iterable[bytes],
    spool: Path,
    written: SpoolFile,
    outcomes: Counter[str],
    asked: UnknownAsked,
    sent: SentVersions | None,
) -> None:
    from gitboot.fetchlog.access_logs import Ignored, read
    from gitboot.fetchlog.spool import line_of
    from gitboot.fetchlog.unknown_machines import UnknownMachine

    for line in lines:
        found = read(line)
        if isinstance(found, Ignored):
            outcomes[found] += 1
            continue
        if isinstance(found, UnknownMachine):
            asked.note(found)
            outcomes[_UNKNOWN] += 1
            continue
        try:
            written.append(line_of(found))
        except OSError as error:
            raise UsageError(f"{spool} cannot be written: {error.strerror}") from error
        outcomes[_UNCLEAR if found.is_open_intent else _OBSERVED] += 1
        if sent is not None and sent.goes_back(found):
            outcomes[_BACKWARDS] += 1
            message = f"{found.path}: the mirror sent {found.client} an older version than before; it went backwards"
            facts = {"path": found.path, "client": found.client}
            tell(Event(at=found.at, type="MirrorBackwards", message=message, facts=facts, warning=True))


def _facts(outcomes: Counter[str]) -> dict[str, object]:
    return {
        "read": _read(outcomes),
        "observed": outcomes[_OBSERVED],
        "unclear": outcomes[_UNCLEAR],
        "unknown": outcomes[_UNKNOWN],
        "backwards": outcomes[_BACKWARDS],
        "ignored": _ignored(outcomes),
    }


def _as_text(outcomes: Counter[str]) -> str:
    reasons = [f"{count} {reason}" for reason, count in _ignored(outcomes).items()]
    ignored = f"; ignored: {', '.join(reasons)}" if reasons else ""
    unknown = f", {outcomes[_UNKNOWN]} for entries that are not there" if outcomes[_UNKNOWN] else ""
    unclear = f", {outcomes[_UNCLEAR]} by clients that may be machines" if outcomes[_UNCLEAR] else ""
    return f"{_read(outcomes)} lines read, {outcomes[_OBSERVED]} observed{unclear}{unknown}{ignored}"


def _read(outcomes: Counter[str]) -> int:
    """How many lines there were: each had one outcome, but for what is told besides."""
    return outcomes.total() - outcomes[_BACKWARDS]


def _ignored(outcomes: Counter[str]) -> dict[str, int]:
    return {reason: count for reason, count in sorted(outcomes.items()) if reason not in _TOLD_APART}
