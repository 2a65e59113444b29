"""`gitboot run`: the main job."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from gitboot.cli.bounded import allowance_options
from gitboot.cli.exit import Exit
from gitboot.cli.guards import LIMITS, limit_options, limits_of
from gitboot.cli.inputs import config_option, credentials_option
from gitboot.cli.serving import note_serving, serving, spool_of, watched
from gitboot.cli.telling import tell
from gitboot.errors import DamagedLedger, UsageError
from gitboot.instance.settings import Settings
from gitboot.model.scalars import format_instant
from gitboot.processes import reap_orphans
from gitboot.status import Event, Status

if TYPE_CHECKING:
    from gitboot.bmc.pool import BmcPool
    from gitboot.instance.evaluation import Evaluation
    from gitboot.instance.evidence import Evidence
    from gitboot.instance.journal import Journal
    from gitboot.instance.overrides import Overriding
    from gitboot.instance.provisioning import Told
    from gitboot.instance.reconcile import Reconciler, Target
    from gitboot.ledger import Ledger
    from gitboot.load import Revision
    from gitboot.serve.supervise import Workers
    from gitboot.source import Remote, Source


_COUNT = click.IntRange(min=1)
_SECONDS = click.FloatRange(min=0, min_open=True)


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@config_option
@click.argument("repository", envvar="GITBOOT_REPOSITORY")
@click.option("--reference", metavar="REF", help="Branch, tag or commit to follow. Default: the remote's HEAD.")
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that is published: OUTPUT/boot for machines, OUTPUT/ops for operators.",
)
@click.option(
    "--state",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the ledger and gitboot's own clone live. Back up STATE/ledger.sqlite: it cannot be rebuilt.",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve the same files and the API here. Default: do not serve.")
@click.option("--workers", type=_COUNT, default=1, show_default=True, help="Processes that serve, each on a core.")
@click.option(
    "--records",
    metavar="fresh|adopt|FILE",
    help="What a new, restored or foreign ledger is told: fresh (no server with provision 1 or more is installed), "
    "adopt (all are), or a file of exported records (ops/records.json). One that has been told is not changed.",
)
@credentials_option
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory that is served under /assets/, for kernels and images. Default: none.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where `gitboot serve --spool` records fetches. Default: STATE/spool, where this instance serves itself.",
)
@click.option(
    "--git-credentials",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory with username and password (or token) for an https repository. Default: none.",
)
@click.option("--ssh-key", type=click.Path(path_type=Path, dir_okay=False), help="A private key for an ssh repository.")
@click.option(
    "--known-hosts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The host keys to expect, as ssh reads them; needed for ssh.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Authorities to trust for an https repository, besides the machine's own.",
)
@click.option(
    "--git-timeout",
    "git_timeout_s",
    envvar="GITBOOT_GIT_TIMEOUT",
    type=_SECONDS,
    default=60,
    show_default=True,
    help="Seconds without a byte.",
)
@click.option(
    "--poll",
    "poll_s",
    envvar="GITBOOT_POLL",
    type=_SECONDS,
    default=60,
    show_default=True,
    help="Seconds between two fetches.",
)
@click.option(
    "--bmc-parallel", type=_COUNT, default=32, show_default=True, help="BMCs that are asked at the same time."
)
@click.option("--bmc-per-site", type=_COUNT, default=16, show_default=True, help="Of them, at most so many of a site.")
@click.option(
    "--bmc-failures",
    type=_COUNT,
    default=20,
    show_default=True,
    help="After so many failures in a row, over all BMCs, no more overrides are set until one answers.",
)
@limit_options
@allowance_options
@click.option("--allow-empty", is_flag=True, help="Accept a commit without any server.")
@click.option("--allow-rewind", is_flag=True, help="Accept a commit that does not descend from the accepted one.")
@click.option("--once", is_flag=True, help="One pass, then exit: 3 where the commit is invalid, 8 where it is partial.")
@click.option("--dry-run", is_flag=True, help="Say what one pass would write and override, in full, and do none of it.")
def command(**given: Any) -> None:
    """Watch REPOSITORY and do what its newest valid commit says, until interrupted.

    REPOSITORY is a path or URL of a Git repository. Each pass resolves what every server boots, publishes it
    as files, serves them, and sets boot overrides at BMCs. A commit that is invalid changes nothing: the last
    accepted one goes on. One that changes more than the guards allow is held until it is acknowledged, by a
    line of a commit's message or by `gitboot approve`; `gitboot status` has both. Each option has a GITBOOT_ variable
    (GITBOOT_OUTPUT, GITBOOT_POLL …) and a key in the file of --config.
    """
    limits = {name: given.pop(name) for name in LIMITS}
    settings = Settings(**given, limits=limits)
    sys.exit(_dry_run(settings) if settings.dry_run else _run(settings))


def _run(settings: Settings) -> Exit:
    """Put an instance together, run it, take it apart."""
    from gitboot.instance import directory as state
    from gitboot.instance.loop import Loop
    from gitboot.load import Revision
    from gitboot.observe import spool
    from gitboot.publish.directory import Directory
    from gitboot.serve.tree import status_file
    from gitboot.source import Source

    told = _told(settings.records)
    with ExitStack() as stack:
        _make(settings.state)
        stack.enter_context(state.locked(settings.state))
        ledger = stack.enter_context(_opened_ledger(settings.state / state.LEDGER))
        may_take_over = told not in (None, "fresh")
        target = stack.enter_context(
            Directory.open(settings.output, ledger=ledger.identity, may_take_over=may_take_over)
        )
        foreign = target.stamp is not None and target.stamp.ledger != ledger.identity
        if not foreign:
            _compare_with_tree(ledger, settings.output)
        source = Source(_remote(settings), settings.state)
        parts = _assembled(
            settings,
            stack,
            state=settings.state,
            source=source,
            target=target,
            ledger=ledger,
            told=told,
            foreign=foreign,
            published=Revision(target.stamp.commit) if target.stamp is not None else None,
        )

        folder = spool_of(settings)
        offsets: dict[str, int] = {}  # how far the spool was taken
        workers: Workers | None = None

        def before() -> None:
            if folder is not None:
                taken = spool.take(folder, offsets)
                offsets.clear()
                offsets.update(taken.offsets)
                for observation in taken.observations:
                    parts.evidence.observations.put(observation)
            if workers is not None:
                note_serving(workers.counted(), parts.journal, _clock())

        def after() -> None:
            status, at = parts.reconciler.status, _clock()
            if folder is not None and parts.evidence.observations.empty() and status.condition("Published"):
                spool.forget(folder, offsets)
            facts = {**status.facts(), "at": format_instant(at)}
            state.write_status(settings.state, facts)
            target.write_status(status_file(facts), at)

        loop = Loop(
            parts.reconciler,
            source,
            poll_s=settings.poll_s,
            clock=_clock,
            tell=tell,
            before_pass=before,
            after_pass=after,
        )
        parts.bmcs.on_finished = parts.evaluation.on_answer = loop.wake
        if settings.once:
            loop.once()
            return _exit_of(parts.reconciler.status)
        reap_orphans(loop.wait)
        stack.enter_context(watched(folder, loop.wake))
        workers = stack.enter_context(serving(settings, folder, ledger.identity, loop.wake))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: loop.stop())
        signal.signal(signal.SIGHUP, lambda *_: loop.fetch_now())
        signal.signal(signal.SIGUSR1, lambda *_: loop.wake())
        loop.run()
        tell(Event(at=_clock(), type="Stopped", message="what was published stays"))
    return Exit.FINE


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parts:
    """What an instance is put together from."""

    reconciler: Reconciler
    evidence: Evidence
    journal: Journal
    overriding: Overriding
    bmcs: BmcPool
    evaluation: Evaluation


def _assembled(
    settings: Settings,
    stack: ExitStack,
    *,
    state: Path,
    source: Source,
    target: Target,
    ledger: Ledger,
    told: Told | None,
    foreign: bool = False,
    published: Revision | None = None,
) -> _Parts:
    from gitboot.bmc.pool import BmcPool
    from gitboot.evaluate.limits import Allowance
    from gitboot.instance.accept import Accepting
    from gitboot.instance.evaluation import Evaluation
    from gitboot.instance.evidence import Evidence
    from gitboot.instance.journal import Journal
    from gitboot.instance.overrides import Overriding
    from gitboot.instance.provisioning import Provisioning
    from gitboot.instance.reconcile import Reconciler
    from gitboot.instance.requests import Requests

    journal = Journal(ledger, tell)
    observes = settings.listen is not None or settings.spool is not None
    provisioning = Provisioning(ledger, journal, told=told, foreign=foreign, observes=observes)
    evidence = Evidence(ledger, provisioning, journal)
    bmcs = BmcPool(
        credentials=settings.credentials,
        write=ledger.write_override,
        clock=_clock,
        dry_run=settings.dry_run,
        parallel=settings.bmc_parallel,
        per_site=settings.bmc_per_site,
    )
    stack.callback(bmcs.close)
    overriding = Overriding(bmcs, ledger, evidence, journal, most_failures=settings.bmc_failures)
    evaluation = Evaluation(
        state,
        allowance=Allowance(seconds=settings.commit_seconds, mebibytes=settings.commit_memory),
        waits=settings.once or settings.dry_run,
    )
    stack.callback(evaluation.close)
    accepting = Accepting(
        source,
        evaluation,
        ledger,
        provisioning,
        journal,
        limits=limits_of(settings.limits, allow_rewind=settings.allow_rewind, allow_empty=settings.allow_empty),
        published=published,
    )
    reconciler = Reconciler(
        accepting=accepting,
        target=target,
        ledger=ledger,
        provisioning=provisioning,
        evidence=evidence,
        overriding=overriding,
        requests=Requests(ledger, provisioning, overriding, journal),
        journal=journal,
    )
    return _Parts(
        reconciler=reconciler,
        evidence=evidence,
        journal=journal,
        overriding=overriding,
        bmcs=bmcs,
        evaluation=evaluation,
    )


def _told(records: str | None) -> Told | None:
    """What --records says: a word, or the records of a file."""
    from gitboot.resolve.records import imported

    if records in (None, "fresh", "adopt"):
        return records
    try:
        data = Path(records).read_bytes()
    except OSError as error:
        message = f"--records is fresh, adopt, or a file of exported records; {records}: {error.strerror}"
        raise UsageError(message) from None
    return imported(data, records)


@contextmanager
def _opened_ledger(path: Path) -> Iterator[Ledger]:
    """The ledger at ``path``; a damaged one is set aside, and what the new one cannot know is in doubt."""
    from gitboot.ledger import Ledger, set_aside

    try:
        ledger = Ledger.open(path)
    except DamagedLedger as error:
        aside = set_aside(path)
        tell(Event(at=_clock(), type="LedgerDamaged", message=f"{error}; it is kept as {aside.name}", warning=True))
        ledger = Ledger.open(path)
        ledger.doubt_it("DamagedLedger")
    with ledger:
        if ledger.is_behind:
            ledger.doubt_it("RestoredLedger")
        yield ledger


def _compare_with_tree(ledger: Ledger, output: Path) -> None:
    """Doubt a ledger that knows less than the tree that it published."""
    from gitboot.resolve.records import ahead, imported

    path = output / "ops" / "records.json"
    with suppress(OSError, UsageError):
        published = imported(path.read_bytes(), str(path))
        if ahead(published, ledger.records(), lambda uuid: [each.reason for each in ledger.overrides(uuid)]):
            ledger.doubt_it("RestoredLedger")


def _dry_run(settings: Settings) -> Exit:
    """One pass over a copy of the state, with a target and BMCs that are only looked at."""
    from gitboot.instance.directory import LEDGER, has_ledger, running
    from gitboot.instance.loop import Loop
    from gitboot.ledger import copy_ledger
    from gitboot.publish.look import Looked
    from gitboot.source import Source

    with ExitStack() as stack:
        copy = Path(stack.enter_context(TemporaryDirectory(prefix="gitboot-dry-run-")))
        if has_ledger(settings.state):
            copy_ledger(settings.state / LEDGER, copy / LEDGER, in_use=running(settings.state) is not None)
        ledger = stack.enter_context(_opened_ledger(copy / LEDGER))
        ledger.forget_accepted()  # it is not in the copy's clone
        told = _told(settings.records)
        target = Looked(settings.output, ledger=ledger.identity, may_take_over=told not in (None, "fresh"))
        source = Source(_remote(settings), copy)
        parts = _assembled(settings, stack, state=copy, source=source, target=target, ledger=ledger, told=told)
        Loop(parts.reconciler, source, poll_s=settings.poll_s, clock=_clock, tell=tell).once()
        for what, paths in (("write", target.seen.written), ("withdraw", target.seen.withdrawn)):
            for path in paths:
                click.echo(f"would {what} {settings.output / path}")
        for name, message in parts.overriding.would.items():
            click.echo(f"{name}: {message}")
        return _exit_of(parts.reconciler.status)


def _remote(settings: Settings) -> Remote:
    from gitboot.source import Password, Remote, SshKey

    credentials: Password | SshKey | None = None
    if settings.ssh_key is not None:
        if settings.known_hosts is None:
            raise UsageError("--ssh-key needs --known-hosts: a host key that nobody checks proves nothing")
        credentials = SshKey(private_key=settings.ssh_key, known_hosts=settings.known_hosts)
    elif settings.git_credentials is not None:
        from gitboot.bmc.pool import read_credentials

        found = read_credentials(settings.git_credentials.parent, settings.git_credentials.name)
        credentials = Password(user=found.username, password=found.password)
    return Remote(
        url=settings.repository,
        reference=settings.reference,
        credentials=credentials,
        ca_bundle=settings.ca_bundle,
        timeout_s=settings.git_timeout_s,
    )


def _exit_of(status: Status) -> Exit:
    """What a single pass ends with: the worst that it met."""
    if not status.condition("SourceReady"):
        return Exit.SOURCE
    if any(each.type == "Accepting" and not each.status for each in status.conditions):
        return Exit.SUSPENDED
    if status.held is not None:
        return Exit.HELD
    if not status.condition("CommitAccepted"):
        return Exit.INVALID
    if not all(condition.status for condition in status.conditions):
        return Exit.PARTIAL
    return Exit.FINE


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error.strerror}") from error


def _clock() -> datetime:
    return datetime.now(UTC)
