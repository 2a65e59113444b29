"""`gitboot run`: run an instance, and the endpoint processes that it starts."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

from gitboot.child_processes import raise_limits, reap_orphans, uncollected
from gitboot.cli.commands.prepare_tree import prepare_command
from gitboot.cli.commands.serve import worker_command
from gitboot.cli.endpoint_options import (
    AccessSettings,
    access_of,
    access_options,
    arguments_of_forwarding,
    certificate_of,
    check,
    credential_files,
    emptied,
    keys_in,
    make_spool,
    operators_socket,
)
from gitboot.cli.main import Exit
from gitboot.cli.options import (
    LIMITS,
    LONGEST_S,
    MOST_MEMORY_MIB,
    TRUST,
    FiniteRange,
    Setting,
    accept_filesystem_option,
    allowance_settings,
    config_option,
    credentials_option,
    limit_settings,
    limits_of,
    reject_old_variables,
    secret_keys_option,
    trust_of,
    trust_options,
)
from gitboot.cli.terminal import end_by_signal, interrupted_by_signal, log_format_option, tell, tell_what_is_logged
from gitboot.controller.instance.settings import (
    ArtifactSettings,
    BmcSettings,
    CheckAssets,
    ForgeSettings,
    GitSettings,
    Settings,
)
from gitboot.controller.instance.state_directory import LEDGER, STATUS
from gitboot.errors import HeldByAnother, LedgerError, UsageError
from gitboot.evaluator.protocol import Allowance
from gitboot.files import check_private
from gitboot.git.repository import parse_subpath
from gitboot.ledger.location import PostgresAddress, address_beside
from gitboot.publish.targets.follower import parse_target
from gitboot.status.conditions import Event
from gitboot.status.instance_status import Endpoints, Status
from gitboot.system_clock import keeping

if TYPE_CHECKING:
    from gitboot.controller.instance.assembly import Instance
    from gitboot.controller.loop import Bell, Loop


_LONGEST_END_S: Final = 4.5  # from a signal to the end, whatever is under way: what was written down is durable
_LONGEST_TELLING_S: Final = 15.0  # of a forge, after reconciling once
_LAST_TELLING_S: Final = 1.0  # of a forge, at the end
_COUNT = click.IntRange(min=1)
_SECONDS = FiniteRange(min=0, min_open=True, max=LONGEST_S)


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@config_option
@log_format_option
@click.argument("repository", envvar="GITBOOT_REPOSITORY")
@click.option(
    "--subpath",
    metavar="FOLDER",
    help="The fleet's folder in REPOSITORY, as infra/boot. Default: the top; of a folder of a work tree, that folder.",
)
@click.option(
    "--rev",
    "reference",
    envvar="GITBOOT_REV",
    allow_from_autoenv=False,  # GITBOOT_REFERENCE, after the parameter's name
    metavar="REVISION",
    help="Branch, tag, commit or range of versions to follow. "
    "Default: the branch that the ledger has; at the first start the remote's default branch. HEAD follows what is "
    "checked out.",
)
@click.option(
    "--out",
    "output",
    envvar="GITBOOT_OUT",
    allow_from_autoenv=False,  # GITBOOT_OUTPUT, after the parameter's name
    metavar="OUTPUT",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that is published: OUTPUT/boot for machines, OUTPUT/ops for operators.",
)
@click.option(
    "--output-group",
    metavar="GROUP",
    help="The group that may read OUTPUT, such as the group of a web server which serves it. Default: gitboot's own "
    "group; with a ledger that an earlier version made, everybody.",
)
@click.option(
    "--state",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the ledger and gitboot's own clone live. Back up STATE/ledger.sqlite: it cannot be rebuilt.",
)
@click.option(
    "--ledger",
    metavar="URL",
    help="A PostgreSQL that has the ledger, as postgresql://USER@HOST/DATABASE. Default: STATE/ledger.sqlite, or where "
    "an earlier start or `gitboot ledger copy` has put it.",
)
@click.option(
    "--ledger-password",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with its password. Default: libpq's own ways, as a client certificate.",
)
@click.option(
    "--lease-seconds",
    "lease_s",
    cls=Setting,
    envvar="GITBOOT_LEASE_SECONDS",
    type=FiniteRange(min=2, max=LONGEST_S),
    default=15,
    show_default=True,
    help="Seconds for which the lease of a ledger in PostgreSQL is valid. If the instance does not renew the lease in "
    "this time, a standby on another host takes over.",
)
@click.option(
    "--site",
    metavar="NAME",
    help="Act for the servers of this site alone, if the Fleet names its ledger there. Default: for all.",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve the same files and the API here. Default: do not serve.")
@click.option("--workers", type=_COUNT, default=1, show_default=True, help="Processes that serve, each on a core.")
@credentials_option
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory that is served under /assets/, for kernels and images. Default: none.",
)
@click.option(
    "--check-assets",
    type=click.Choice(["off", "head", "read"]),
    default="head",
    show_default=True,
    help="Look at the artifacts that machines fetch, and offer no boot of which one is missing: off; head, by the word "
    "of their servers, and by their sha256 below --assets; or read, each once.",
)
@click.option(
    "--check-assets-every",
    "check_assets_every_s",
    cls=Setting,
    envvar="GITBOOT_CHECK_ASSETS_EVERY",
    type=_SECONDS,
    default=300,
    show_default=True,
    help="Seconds between two checks of an artifact that is available. gitboot checks a missing artifact sooner.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where `gitboot serve --spool` records fetches. Default: STATE/spool, where this instance serves itself.",
)
@secret_keys_option
@click.option(
    "--git-credentials",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory with username and password (or token) for an https repository. Default: none.",
)
@click.option(
    "--git-ssh",
    nargs=2,
    metavar="KEY KNOWN_HOSTS",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The private key and the known_hosts file for an ssh repository. Default: none.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Authorities to trust for an https repository, besides the machine's own.",
)
@click.option(
    "--git-timeout",
    "git_timeout_s",
    cls=Setting,
    envvar="GITBOOT_GIT_TIMEOUT",
    type=_SECONDS,
    default=60,
    show_default=True,
    help="Seconds that the Git server has for an answer. During a clone, a fetch or a push, gitboot expects 1 KiB for "
    "each second of such a period.",
)
@click.option(
    "--fetch-memory",
    cls=Setting,
    type=click.IntRange(min=1, max=MOST_MEMORY_MIB),
    metavar="MIB",
    help="MiB of memory for the process that fetches. A file that the Git server sends as a delta needs twice its "
    "size. Default: 512 MiB, which is enough for a history of 3 million objects.",
)
@click.option(
    "--fetch-disk",
    cls=Setting,
    type=click.IntRange(min=1, max=MOST_MEMORY_MIB),
    metavar="MIB",
    help="MiB on disk for the clone in STATE, and for the clone of each Git target. A fetch that needs more fails. "
    "Default: 4096 MiB.",
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
    "--bmc-parallel",
    cls=Setting,
    type=_COUNT,
    default=256,
    show_default=True,
    help="BMCs that gitboot talks to at the same time, at most.",
)
@click.option(
    "--bmc-per-site",
    cls=Setting,
    type=_COUNT,
    default=128,
    show_default=True,
    help="BMCs of one site that gitboot talks to at the same time, at most. gitboot measures how many a site can bear.",
)
@click.option(
    "--bmc-failures",
    cls=Setting,
    type=_COUNT,
    default=20,
    show_default=True,
    help="Consecutive failures, over all BMCs, after which gitboot sets no more overrides until a BMC answers.",
)
@click.option(
    "--forge",
    metavar="KIND=URL TOKEN",
    type=(str, click.Path(path_type=Path, dir_okay=False)),
    help="Report the result of each commit to the forge as a commit status. KIND is github, gitlab or gitea, URL is "
    "the project's page, and TOKEN is a file with a token that may write commit statuses. gitboot sends the token to "
    "the host of URL only. Default: no status.",
)
@click.option(
    "--forge-name",
    cls=Setting,
    help="The name of the commit status. Each instance of a fleet needs a name of its own. Default: gitboot, or "
    "gitboot/FOLDER with --subpath FOLDER.",
)
@click.option(
    "--forge-link",
    cls=Setting,
    metavar="URL",
    help="The page that the commit status links to, such as a dashboard. Default: the commit's page.",
)
@click.option(
    "--forge-api",
    cls=Setting,
    metavar="URL",
    help="The URL of the forge's API if it is not at the root of its host, such as https://HOST/PATH/api/v4. Default: "
    "the usual one for the KIND of --forge.",
)
@click.option(
    "--allow-token-over-http",
    is_flag=True,
    help="Send the token of --forge to an http:// URL of another machine too, where anyone on the way can read it. "
    "Default: only to an https:// URL and to this machine.",
)
@click.option(
    "--push-secret",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with the secret of a forge's webhook: POST /hooks/push, where operators ask, then lets the instance "
    "fetch at once. Default: no webhook is heard.",
)
@click.option(
    "--notify",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file (TOML, mode 0600) that names who is sent notices: docs/monitoring.md. Default: nobody.",
)
@click.option(
    "--step-minutes",
    cls=Setting,
    type=_SECONDS,
    default=30,
    show_default=True,
    help="Minutes that one step of an installation may take. After that, the condition InstallsCompleted is false.",
)
@click.option(
    "--target",
    "targets",
    envvar="GITBOOT_TARGET",
    multiple=True,
    metavar="URL",
    help="Besides OUTPUT, write what machines fetch to a folder /DIR, ssh://USER@HOST/DIR, rsync://HOST/MODULE, "
    "git+https://…#BRANCH, git+ssh://…#BRANCH or s3://BUCKET/PREFIX, with settings in the query of the URL: "
    "docs/mirrors.md. Repeat it for several targets. Default: none.",
)
@click.option(
    "--list-keys",
    cls=Setting,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the keys that sign the list of published files, made by `gitboot secret keygen --signed-list`. "
    "Default: the list is unsigned.",
)
@trust_options
@access_options
@accept_filesystem_option
@limit_settings
@click.option(
    "--max-bmc-changes",
    cls=Setting,
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Guard. BMCs that may get credentials because of one commit although the access.toml beside the credentials "
    "does not allow it.",
)
@allowance_settings
@click.option("--allow-empty", is_flag=True, help="Accept a commit without any server.")
@click.option("--allow-rewind", is_flag=True, help="Accept a commit that does not descend from the accepted one.")
@click.option("--allow-takeover", is_flag=True, help="Accept a commit by which an instance ceases to act.")
@click.option(
    "--once", is_flag=True, help="Reconcile once, then exit: 3 where the commit is invalid, 8 where it is partial."
)
@click.option(
    "--dry-run", is_flag=True, help="Say what one reconcile would write and override, in full, and do none of it."
)
def command(**given: Any) -> None:
    """Watch REPOSITORY and do what its newest valid commit says, until interrupted.

    REPOSITORY is a path or URL of a Git repository. Each pass resolves what every server boots, publishes it
    as files, serves them, and sets boot overrides at BMCs. A commit that is invalid changes nothing: the last
    accepted one goes on. One that changes more than the guards allow is held until it is acknowledged, by a
    line of a commit's message or by `gitboot approve`; `gitboot status` has both. Each option has a GITBOOT_ variable
    (GITBOOT_OUT, GITBOOT_POLL …) and a key in the file of --config. That file also has the settings that operators
    rarely change, such as the limits of guards: docs/reference/configuration.md lists them.
    """
    tell_what_is_logged()
    reject_old_variables()
    once, dry_run = given.pop("once"), given.pop("dry_run")
    access = access_of(given)
    check(access)
    raise_limits()  # each BMC has a connection
    settings = _settings(**given)
    # A secret, or what decides about installations, is not served with the tree.
    check_private(settings.output, _private(settings, access))
    if settings.push_secret is not None:
        from gitboot.endpoint.webhooks import PushSecret

        PushSecret(settings.push_secret).read()
    if dry_run:
        sys.exit(_dry_run(settings))
    sys.exit(_once(settings) if once else _run(settings, access))


def _private(settings: Settings, access: AccessSettings) -> dict[str, Path | None]:
    """Return the paths that OUTPUT may not contain, by option."""
    git, bmc = settings.git, settings.bmc
    return {
        "--state": settings.state,
        "--spool": settings.spool,
        "--credentials": bmc.credentials,
        "--secret-keys": settings.secret_keys,
        "--git-credentials": git.credentials,
        "--git-ssh": git.ssh[0] if git.ssh is not None else None,
        "--push-secret": settings.push_secret,
        "--notify": settings.notify,
        "list-keys": settings.list_keys,
        "--ledger-password": settings.ledger.password if settings.ledger is not None else None,
        "--forge": settings.forge.token if settings.forge is not None else None,
        "--operators-tokens": access.operators_tokens,
        "--operators-tls": access.operators_tls[1] if access.operators_tls is not None else None,
    }


def _settings(
    *, repository: str, subpath: str | None, reference: str | None, listen: str | None, poll_s: float, **given: Any
) -> Settings:
    url, password = given.pop("ledger"), given.pop("ledger_password")
    if url is None and password is not None:
        raise UsageError("--ledger-password needs --ledger, whose password it is")
    limits = {name: given.pop(name) for name in (*LIMITS, "max_bmc_changes")}
    allowed = {name: given.pop(name) for name in ("allow_empty", "allow_rewind", "allow_takeover")}
    trust = trust_of(**{name: given.pop(name) for name in TRUST})
    git = GitSettings(
        repository=repository,
        reference=reference,
        subpath=parse_subpath(subpath) if subpath is not None else "",
        credentials=given.pop("git_credentials"),
        ssh=given.pop("git_ssh"),
        ca_bundle=given.pop("ca_bundle"),
        timeout_s=given.pop("git_timeout_s"),
        fetch_mebibytes=given.pop("fetch_memory"),
        disk_mebibytes=given.pop("fetch_disk"),
    )
    project, token = given.pop("forge") or ("", Path())
    forge = ForgeSettings(
        project=project,
        token=token,
        name=given.pop("forge_name") or "/".join(filter(None, ("gitboot", git.subpath))),
        link=given.pop("forge_link"),
        api=given.pop("forge_api"),
        allow_token_over_http=given.pop("allow_token_over_http"),
    )
    return Settings(
        artifacts=ArtifactSettings(
            check=CheckAssets(given.pop("check_assets")), every_s=given.pop("check_assets_every_s")
        ),
        forge=forge if project else None,
        git=git,
        trust=trust,
        bmc=BmcSettings(
            credentials=given.pop("credentials"),
            parallel=given.pop("bmc_parallel"),
            per_site=given.pop("bmc_per_site"),
            failures=given.pop("bmc_failures"),
        ),
        allowance=Allowance(
            seconds=given.pop("commit_seconds"),
            mebibytes=given.pop("commit_memory"),
            workers=given.pop("commit_workers"),
        ),
        limits=limits_of(limits, **allowed),
        ledger=PostgresAddress.parse(url, password) if url is not None else None,
        listen=listen,
        poll_s=poll_s,
        targets=tuple(map(parse_target, given.pop("targets"))),
        **given,
    )


def _run(settings: Settings, access: AccessSettings) -> Exit:
    """Reconcile until a signal ends it; while another host's instance acts by the same ledger, stand by."""
    from gitboot.controller.instance.standby import Standby

    settings = structs.replace(settings, spool=settings.spool_folder)
    if settings.spool is not None:
        make_spool(settings.spool)
    standby = Standby(settings, tell, _clock, prepare_command(settings))
    with emptied(settings.spool, standby.address):
        while standby.wait(interrupted_by_signal):
            try:
                if not _acted(settings, access):
                    break
            except HeldByAnother:  # it was quicker
                continue
            except LedgerError as error:
                if standby.address is None:
                    raise
                standby.fail(error)
        else:
            tell(Event(at=_clock(), type="Stopped", message="it stood by, and acted for nobody"))
    return Exit.FINE


def _acted(settings: Settings, access: AccessSettings) -> bool:
    """Act until a signal ends it; whether another instance has taken over instead."""
    with uncollected():  # what modules make stays
        from gitboot.controller.loop import Bell, watched

    bell = Bell()
    with _loop(settings, bell, patience_s=_LAST_TELLING_S) as (instance, loop):
        reap_orphans(loop.wait)
        end_by_signal(loop.stop, within_s=_LONGEST_END_S)
        signal.signal(signal.SIGHUP, lambda *_: loop.fetch_now())
        signal.signal(signal.SIGUSR1, lambda *_: loop.wake())
        ledger = instance.reconciler.status.ledger
        with (
            watched(settings.spool, wake=bell.ring, below=False),
            watched(settings.bmc.credentials, wake=bell.ring),
            serving(settings, access, ledger or "", bell.ring) as endpoints,
        ):
            loop.run(serving=endpoints)
        if bell.is_over:
            lease = instance.store.database.lease
            why = (lease.left if lease is not None else None) or "another instance has taken over"
            message = f"{why}: nothing is set, offered or written any more"
            tell(Event(at=_clock(), type="LeaseLost", message=message, warning=True))
        else:
            tell(Event(at=_clock(), type="Stopped", message="what was published stays"))
    signal.setitimer(signal.ITIMER_REAL, 0)  # the interpreter's own end knows no handler any more
    return bell.is_over


def _once(settings: Settings) -> Exit:
    """Reconcile once, to the end of the jobs at BMCs."""
    from gitboot.controller.loop import Bell

    with _loop(settings, Bell(), patience_s=_LONGEST_TELLING_S, wait=True) as (instance, loop):
        with uncollected():  # the process ends after it
            loop.once()
        return _exit_of(instance.reconciler.status)


@contextmanager
def _loop(settings: Settings, bell: Bell, *, patience_s: float, wait: bool = False) -> Iterator[tuple[Instance, Loop]]:
    """Yield an instance and its loop, which tells the forge and the receivers of notices.

    ``patience_s`` is how long these may take at the end. With ``wait``, an evaluation is waited for.
    """
    with uncollected():  # what modules make stays
        from gitboot.controller.forge import telling, verdicts_of, witness_of
        from gitboot.controller.instance.assembly import running
        from gitboot.controller.loop import Loop
        from gitboot.controller.notifications import notifying

    with telling(settings, bell.ring, patience_s=patience_s) as verdicts, ExitStack() as stack:

        def judge(status: Status, change: int) -> None:
            if verdicts is not None:
                verdicts.note(verdicts_of(status, change))

        with uncollected():  # what is read of a ledger stays
            acting = running(settings, tell=tell, clock=_clock, wake=bell.ring, wait=wait, judged=judge, lost=bell.end)
            instance, source = stack.enter_context(acting)
            gc.freeze()  # the collector would look through it again and again
        identity = instance.store.progress[0]
        yield (
            instance,
            Loop(
                *(instance.reconciler, source),
                poll_s=settings.poll_s,
                clock=_clock,
                tell=tell,
                bell=bell,
                keeping=keeping,
                forge=witness_of(verdicts, source, instance.store) if verdicts is not None else None,
                notices=stack.enter_context(notifying(settings, identity, _clock, bell.ring, patience_s=patience_s)),
            ),
        )


def _dry_run(settings: Settings) -> Exit:
    """Say what reconciling once would do."""
    from gitboot.controller.instance.assembly import tried_out
    from gitboot.controller.loop import Loop

    would = {"Accepted": "WouldAccept", "Published": "WouldPublish", "BranchChosen": "WouldFollow"}

    def tell_dry(event: Event) -> None:
        if event.type in would:
            event = structs.replace(event, type=would[event.type], message=f"not done: {event.message}")
        tell(event)

    with tried_out(settings, tell=tell_dry, clock=_clock) as (instance, source, looked):
        Loop(instance.reconciler, source, poll_s=settings.poll_s, clock=_clock, tell=tell_dry, keeping=keeping).once()
        for what, paths in (("write", looked.seen.written), ("withdraw", looked.seen.withdrawn)):
            for path in paths:
                click.echo(f"would {what} {settings.output / path}")
        for each in instance.reconciler.standing.schedule.bmcs.values():
            click.echo(f"{each.name}: {each.message}")
        return _exit_of(instance.reconciler.status)


def _exit_of(status: Status) -> Exit:
    """What reconciling once ends with: the worst that it met."""
    if not status.condition("SourceReady"):
        return Exit.SOURCE
    if any(each.type == "AcceptingCommits" and not each.status for each in status.conditions):
        return Exit.SUSPENDED
    if status.held is not None:
        return Exit.HELD
    if not status.condition("CommitAccepted"):
        return Exit.INVALID
    if not all(condition.status for condition in status.conditions if condition.type not in _BESIDES):
        return Exit.PARTIAL
    return Exit.FINE


# These take nothing from what the pass did, and any client can make the second one false.
_BESIDES: Final = ("BranchFollowed", "OutputPrivate", "ProxiesTrusted")


def _clock() -> datetime:
    return datetime.now(UTC)


@contextmanager
def serving(
    settings: Settings, access: AccessSettings, ledger: str, wake: Callable[[], None]
) -> Iterator[Callable[[], Endpoints] | None]:
    """How the endpoints at --listen fare, as long as the block runs; ``wake`` is called when one has ended or begun."""
    if settings.listen is None:
        yield None
        return
    from gitboot.endpoint.server import Workers, listen_at, url_of

    files = credential_files(access, keys_in(settings.secret_keys), settings.push_secret)
    certificate = certificate_of(access)
    listening = listen_at(settings.listen)
    url = url_of(settings.listen, listening)
    operators = operators_socket(access)
    command = worker_command(
        *(settings.output, settings.spool, settings.assets, settings.state / STATUS, ledger, settings.secret_keys),
        access=access,
        push_secret=settings.push_secret,
    )
    command += arguments_of_forwarding(address_beside(settings.state / LEDGER))
    with Workers(command, listening, settings.workers, wake, operators=operators) as workers:
        tell(Event(at=datetime.now(UTC), type="Listening", message=url, facts={"url": url}))

        def how_they_fare() -> Endpoints:
            found = structs.replace(workers.counted(), unread=files.failures())
            if certificate is None:
                return found
            certificate.look(datetime.now(UTC))  # each of them looks for itself, and tells what it has found
            return structs.replace(found, certificate=certificate.failure)

        yield how_they_fare
