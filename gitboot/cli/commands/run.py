"""`gitboot run`: follow a repository, serve boots and set overrides."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

from gitboot.child_processes import pause_garbage_collection, raise_open_file_limit, reap_orphans
from gitboot.cli.commands.prepare_tree import format_prepare_command
from gitboot.cli.commands.serve import create_spool, forward_spool, print_new_event, serve_endpoints
from gitboot.cli.endpoint_settings import AccessSettings, access_options, check_access_settings, take_access_settings
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    LIMIT_HELP,
    MAX_MEMORY_MIB,
    MAX_SECONDS,
    TRUST_PARAMETERS,
    FiniteRange,
    Setting,
    accept_filesystem_option,
    allowance_settings,
    build_limits,
    config_option,
    credentials_option,
    current_time,
    limit_settings,
    parse_trust_settings,
    reject_old_variables,
    secret_keys_option,
    trust_options,
)
from gitboot.cli.terminal import call_on_signal, log_format_option, log_to_events, print_event, stop_on_signal_within
from gitboot.controller.instance.settings import (
    ArtifactSettings,
    BmcSettings,
    CheckAssets,
    ForgeSettings,
    GitSettings,
    Settings,
)
from gitboot.errors import HeldByAnother, LedgerError, UsageError
from gitboot.evaluator.protocol import EvaluationLimits
from gitboot.files import check_private_paths
from gitboot.git.repository import parse_subpath
from gitboot.ledger.store import PostgresAddress
from gitboot.publish.targets.follower import parse_target
from gitboot.status.conditions import Event
from gitboot.status.instance_status import Status
from gitboot.system_clock import read_clock_state

if TYPE_CHECKING:
    from gitboot.controller.instance.assembly import Instance
    from gitboot.controller.loop import Loop, WakeSignal

_SECTIONS: Final = {  # sections of the help page; the first section contains the most frequent options
    "Git repository": (
        *("subpath", "poll_s", "git_credentials", "git_ssh", "ca_bundle", "push_secret"),
        *("allow_empty", "allow_rewind", "allow_takeover"),
    ),
    "Signatures": ("verify", "allowed_signers", "openpgp_keys", "forge_keys", "reinstalls_need", "image_keys"),
    "Publishing and serving": ("output_group", "targets", "check_assets", "workers", "spool", "machines_tls"),
    "API and metrics": ("operators", "operators_listen", "operators_tokens", "operators_tls"),
    "Ledger and standby": ("ledger", "ledger_password", "site", "accepted_filesystems"),
    "Reports": ("forge", "allow_token_over_http", "notify", "log_format"),
}
_COUNT = click.IntRange(min=1)
_SECONDS = FiniteRange(min=0, min_open=True, max=MAX_SECONDS)
_MAX_NOTIFY_S: Final = 15.0  # maximum time to report to a forge after one reconcile
_FINAL_NOTIFY_S: Final = 1.0  # maximum time to report to a forge at the end of the process
# Maximum time from a signal to the end of the process. The instance can be interrupted at any point, because all writes
# are durable.
_MAX_SHUTDOWN_S: Final = 4.5


@click.command(
    context_settings={"auto_envvar_prefix": "GITBOOT"},
    cls=Command,
    example=("gitboot run /srv/fleet.git --out /srv/gitboot --state /var/lib/gitboot \\\n    --listen 0.0.0.0:8080"),
    exit_codes={
        Exit.FINE: "a signal stopped the instance; with --once: success",
        Exit.INVALID: "with --once: the commit has errors",
        Exit.HELD: "with --once: a guard holds the commit",
        Exit.SOURCE: "with --once: the fetch failed",
        Exit.SUSPENDED: "with --once: the instance is suspended",
        Exit.PARTIAL: "with --once: another condition is false",
        Exit.USAGE: "an option or a setting is wrong, or another process is using STATE",
    },
    sections=_SECTIONS,
)
@config_option
@log_format_option
@click.argument("repository", envvar="GITBOOT_REPOSITORY")
@click.option(
    "--subpath",
    metavar="FOLDER",
    help="The folder of the fleet in REPOSITORY, for example infra/boot. Default: the root of the repository. If "
    "REPOSITORY is a folder in a work tree, the default is that folder.",
)
@click.option(
    "--rev",
    "reference",
    envvar="GITBOOT_REV",
    allow_from_autoenv=False,  # click would derive GITBOOT_REFERENCE from the parameter's name
    metavar="REVISION",
    help="The branch, tag, commit or version range to follow. HEAD follows the commit that is checked out. "
    "Default: the branch that the ledger names; at the first start, the default branch of the remote "
    "repository.",
)
@click.option(
    "--out",
    "output",
    envvar="GITBOOT_OUT",
    allow_from_autoenv=False,  # click would derive GITBOOT_OUTPUT from the parameter's name
    metavar="OUTPUT",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The output tree. OUTPUT/boot is for machines, and OUTPUT/ops is for operators.",
)
@click.option(
    "--output-group",
    metavar="GROUP",
    help="The group that may read OUTPUT, for example the group of a web server. Default: gitboot's own group. If an "
    "earlier version created the ledger, everyone may read OUTPUT.",
)
@click.option(
    "--state",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory, for the ledger and a clone of REPOSITORY. Back up STATE/ledger.sqlite, because "
    "gitboot cannot rebuild it. Default: the variable GITBOOT_STATE.",
)
@click.option(
    "--ledger",
    metavar="URL",
    help="The PostgreSQL database for the ledger: postgresql://USER@HOST/DATABASE. Default: the location that an "
    "earlier start or `gitboot ledger copy` recorded, otherwise STATE/ledger.sqlite.",
)
@click.option(
    "--ledger-password",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with the password of the database. Default: libpq uses its own methods, for example a "
    "client certificate.",
)
@click.option(
    "--lease-seconds",
    "lease_s",
    cls=Setting,
    envvar="GITBOOT_LEASE_SECONDS",
    type=FiniteRange(min=2, max=MAX_SECONDS),
    default=15,
    show_default=True,
    help="Seconds for which the lease of a PostgreSQL ledger is valid. If the instance does not renew the "
    "lease in this time, a standby on another host takes over.",
)
@click.option(
    "--site",
    metavar="NAME",
    help="Manage only the servers of this site. The Fleet must name the ledger of the site. Default: manage all "
    "servers.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Serve the boot files and the API at this address. Default: do not serve."
)
@click.option(
    "--workers",
    metavar="NUMBER",
    type=_COUNT,
    default=1,
    show_default=True,
    help="The number of processes that serve requests. Each process uses one CPU.",
)
@credentials_option
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory with kernels and images, which gitboot serves at /assets/. Default: none.",
)
@click.option(
    "--check-assets",
    type=click.Choice(["off", "head", "read"]),
    default="head",
    show_default=True,
    help="How gitboot checks that artifacts are available: not at all (off), with HEAD requests and the sha256 of "
    "files in --assets (head), or with one download of each artifact (read). gitboot withholds each boot whose "
    "artifact is missing.",
)
@click.option(
    "--check-assets-every",
    "check_assets_every_s",
    cls=Setting,
    envvar="GITBOOT_CHECK_ASSETS_EVERY",
    type=_SECONDS,
    default=300,
    show_default=True,
    help="Seconds between two checks of an available artifact. gitboot checks a missing artifact sooner.",
)
@click.option(
    "--image-keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A directory with more keys that may sign images, for streams with requireProvenance: signed. `gitboot "
    "artifacts signatures` explains the files. Default: only the keys of vendors that gitboot ships.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory to which `gitboot serve --spool` writes fetches. Default: STATE/spool, if this "
    "instance serves.",
)
@secret_keys_option
@click.option(
    "--git-credentials",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory with the files username and password (or token) for an https repository. Default: none.",
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
    help="A PEM file with certificate authorities for an https repository, in addition to those of this "
    "machine. Default: none.",
)
@click.option(
    "--git-timeout",
    "git_timeout_s",
    cls=Setting,
    envvar="GITBOOT_GIT_TIMEOUT",
    type=_SECONDS,
    default=60,
    show_default=True,
    help="Seconds to wait for a response from the Git server. gitboot also stops a clone, a fetch or a push that "
    "transfers less than 1 KiB for each second of this time.",
)
@click.option(
    "--fetch-memory",
    cls=Setting,
    type=click.IntRange(min=1, max=MAX_MEMORY_MIB),
    metavar="MIB",
    help="Memory limit of the process that fetches, in MiB. A file that the Git server sends as a delta needs twice "
    "its size in memory. The default is enough for a history of 3 million objects. Default: 512.",
)
@click.option(
    "--fetch-disk",
    cls=Setting,
    type=click.IntRange(min=1, max=MAX_MEMORY_MIB),
    metavar="MIB",
    help="Disk limit for the clone in STATE, and for the clone of each Git target, in MiB. A fetch that needs more "
    "fails. Default: 4096.",
)
@click.option(
    "--poll",
    "poll_s",
    metavar="SECONDS",
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
    help="The maximum number of BMCs to connect to at the same time.",
)
@click.option(
    "--bmc-per-site",
    cls=Setting,
    type=_COUNT,
    default=128,
    show_default=True,
    help="The maximum number of BMCs of one site to connect to at the same time. gitboot connects to fewer if the "
    "BMCs of the site respond slowly.",
)
@click.option(
    "--bmc-failures",
    cls=Setting,
    type=_COUNT,
    default=20,
    show_default=True,
    help="The number of consecutive failures, across all BMCs, after which gitboot sets no more overrides until a BMC "
    "responds.",
)
@click.option(
    "--forge",
    metavar="KIND=URL TOKEN",
    type=(str, click.Path(path_type=Path, dir_okay=False)),
    help="Report the result of each commit to a forge as a commit status. KIND is github, gitlab or gitea. URL is "
    "the web page of the project. TOKEN is a file with a token that may write commit statuses. gitboot "
    "sends the token only to the host of URL. Default: no status.",
)
@click.option(
    "--forge-name",
    cls=Setting,
    help="The name of the commit status. Each instance of a fleet needs its own name. Default: gitboot, or "
    "gitboot/FOLDER with --subpath FOLDER.",
)
@click.option(
    "--forge-link",
    cls=Setting,
    metavar="URL",
    help="The page to which the commit status links, for example a dashboard. Default: the page of the commit.",
)
@click.option(
    "--forge-api",
    cls=Setting,
    metavar="URL",
    help="The URL of the forge's API, if the API is not at the root of its host. Example: "
    "https://HOST/PATH/api/v4. Default: the usual URL for the KIND of --forge.",
)
@click.option(
    "--allow-token-over-http",
    is_flag=True,
    help="Also send the token of --forge to an http:// URL of another machine, although anyone on the network path "
    "can read it. Default: only to an https:// URL and to this machine.",
)
@click.option(
    "--push-secret",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with the secret of a forge's webhook. The webhook sends POST /hooks/push to the address of "
    "the API, and gitboot then fetches at once. Default: gitboot accepts no webhooks.",
)
@click.option(
    "--notify",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file (mode 0600) with the receivers of notices: docs/how-to/monitoring.md. Default: no notices.",
)
@click.option(
    "--maintenance-hosts",
    cls=Setting,
    multiple=True,
    metavar="URL[=TOKEN]",
    help="A host to which gitboot may send requests before a maintenance: https://HOST[:PORT]. TOKEN is a file (mode "
    "0600) with the bearer token for this host. Default: no host.",
)
@click.option(
    "--step-minutes",
    cls=Setting,
    type=_SECONDS,
    default=30,
    show_default=True,
    help="Minutes that one step of an installation may take. After that, the condition InstallsCompleted becomes "
    "false.",
)
@click.option(
    "--target",
    "targets",
    envvar="GITBOOT_TARGET",
    multiple=True,
    metavar="URL",
    help="Also copy the boot files to this location: a folder /DIR, ssh://USER@HOST/DIR, rsync://HOST/MODULE, "
    "git+https://…#BRANCH, git+ssh://…#BRANCH or s3://BUCKET/PREFIX. The query of the URL can contain settings "
    "(docs/how-to/publish-to-a-mirror.md). Repeat the option for several targets. Default: none.",
)
@click.option(
    "--list-keys",
    cls=Setting,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder with the keys that sign the list of published files, from `gitboot secret keygen "
    "--signed-list`. Default: the list is unsigned.",
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
    help="The number of BMCs to which one commit may send credentials, if access.toml does not allow these BMCs.",
)
@allowance_settings
@click.option("--allow-empty", is_flag=True, help="Accept a commit without servers.")
@click.option("--allow-rewind", is_flag=True, help="Accept a commit that is not a descendant of the accepted commit.")
@click.option("--allow-takeover", is_flag=True, help="Accept a commit after which an instance is no longer active.")
@click.option("--once", is_flag=True, help="Reconcile once, and then exit.")
@click.option("--dry-run", is_flag=True, help="Print the changes that one reconcile would make. Make no changes.")
def command(**options: Any) -> None:
    """Follow a repository, serve boots and set overrides.

    REPOSITORY is the path or the URL of a Git repository. gitboot follows its newest valid commit until you stop it. It
    decides what each server boots, writes the boot files to OUTPUT, serves them at --listen, and sets boot overrides at
    BMCs.

    If a commit has errors, the last accepted commit stays in effect. If a commit changes more than the guards allow,
    gitboot holds it until someone acknowledges it, in a commit message or with `gitboot approve`.

    Each option has an environment variable (GITBOOT_OUT, GITBOOT_POLL and so on) and a key in the file of --config.
    Some settings, such as the limits of guards, have no option. docs/reference/configuration.md lists all settings.
    """
    log_to_events()
    reject_old_variables()
    _check_encoding(map(str, options.values()))
    once, dry_run = options.pop("once"), options.pop("dry_run")
    access = take_access_settings(options)
    check_access_settings(access)
    raise_open_file_limit()  # each BMC needs a connection
    settings = _build_settings(**options)
    if access.machines_tls is not None and settings.listen is None:
        raise UsageError("--machines-tls needs --listen; use --listen 127.0.0.1:8080 if machines use only HTTPS")
    # The web server must not serve secrets, or files on which decisions about installations depend.
    check_private_paths(settings.output, _list_private_paths(settings, access))
    if settings.push_secret is not None:
        from gitboot.endpoint.api import PushSecret

        PushSecret(settings.push_secret).read()
    if dry_run:
        sys.exit(_dry_run_once(settings))
    sys.exit(_reconcile_once(settings) if once else _run_until_signal(settings, access))


def _list_private_paths(settings: Settings, access: AccessSettings) -> dict[str, Path | None]:
    """Return the paths that must not be inside OUTPUT, by the option that sets each path."""
    from gitboot.controller.maintenance_hooks import parse_hook_hosts

    git, bmc = settings.git, settings.bmc
    hosts = parse_hook_hosts(settings.maintenance_hosts) if settings.maintenance_hosts else {}
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
        **{f"maintenance-hosts {scheme}://{host}:{port}": file for (scheme, host, port), file in hosts.items()},
        "--forge": settings.forge.token if settings.forge is not None else None,
        "--operators-tokens": access.operators_tokens,
        "--operators-tls": access.operators_tls[1] if access.operators_tls is not None else None,
        "--machines-tls": access.machines_tls[2] if access.machines_tls is not None else None,
    }


def _check_encoding(values: Iterable[str]) -> None:
    """Raise `UsageError` if a value cannot be stored in the ledger or sent to a child process."""
    for value in values:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{value} is not valid UTF-8: rename the file or the directory") from None


def _build_settings(
    *, repository: str, subpath: str | None, reference: str | None, listen: str | None, poll_s: float, **options: Any
) -> Settings:
    """Return the settings of an instance. ``options`` contains the other options by parameter name.

    Raises `UsageError` if an option is not valid, or if options contradict each other.
    """
    ledger_url, ledger_password = options.pop("ledger"), options.pop("ledger_password")
    if ledger_url is None and ledger_password is not None:
        raise UsageError("--ledger-password needs --ledger, the URL of the database")
    limits = {name: options.pop(name) for name in (*LIMIT_HELP, "max_bmc_changes")}
    allowed = {name: options.pop(name) for name in ("allow_empty", "allow_rewind", "allow_takeover")}
    trust = parse_trust_settings(**{name: options.pop(name) for name in TRUST_PARAMETERS})
    git = GitSettings(
        repository=repository,
        reference=reference,
        subpath=parse_subpath(subpath) if subpath is not None else "",
        credentials=options.pop("git_credentials"),
        ssh=options.pop("git_ssh"),
        ca_bundle=options.pop("ca_bundle"),
        timeout_s=options.pop("git_timeout_s"),
        fetch_mebibytes=options.pop("fetch_memory"),
        disk_mebibytes=options.pop("fetch_disk"),
    )
    project, token = options.pop("forge") or ("", Path())
    forge = ForgeSettings(
        project=project,
        token=token,
        name=options.pop("forge_name") or "/".join(filter(None, ("gitboot", git.subpath))),
        link=options.pop("forge_link"),
        api=options.pop("forge_api"),
        allow_token_over_http=options.pop("allow_token_over_http"),
    )
    return Settings(
        artifacts=ArtifactSettings(
            check=CheckAssets(options.pop("check_assets")),
            every_s=options.pop("check_assets_every_s"),
            image_keys=options.pop("image_keys"),
        ),
        forge=forge if project else None,
        git=git,
        trust=trust,
        bmc=BmcSettings(
            credentials=options.pop("credentials"),
            parallel=options.pop("bmc_parallel"),
            per_site=options.pop("bmc_per_site"),
            failures=options.pop("bmc_failures"),
        ),
        allowance=EvaluationLimits(
            seconds=options.pop("commit_seconds"),
            mebibytes=options.pop("commit_memory"),
            workers=options.pop("commit_workers"),
        ),
        limits=build_limits(limits, **allowed),
        ledger=PostgresAddress.parse(ledger_url, ledger_password) if ledger_url is not None else None,
        listen=listen,
        poll_s=poll_s,
        targets=tuple(map(parse_target, options.pop("targets"))),
        **options,
    )


def _run_until_signal(settings: Settings, access: AccessSettings) -> Exit:
    """Reconcile until a signal arrives. While an instance on another host is active, wait as a standby."""
    from gitboot.controller.instance.standby import Standby

    settings = structs.replace(settings, spool=settings.spool_folder)
    if settings.spool is not None:
        create_spool(settings.spool)
    standby = Standby(settings, print_event, current_time, format_prepare_command(settings))
    with forward_spool(settings.spool, standby.address):
        while standby.wait(stop_on_signal_within):
            try:
                if not _run_as_active(settings, access):
                    break
            except HeldByAnother:  # another standby got the lease first
                continue
            except LedgerError as error:
                if standby.address is None:
                    raise
                standby.report_failure(error)
        else:
            print_new_event("Stopped", "the standby stopped before it became active")
    return Exit.FINE


def _run_as_active(settings: Settings, access: AccessSettings) -> bool:
    """Reconcile as the active instance until a signal arrives. Return whether another instance took over."""
    with pause_garbage_collection():  # the objects of imported modules stay in memory
        from gitboot.controller.loop import WakeSignal, watch_folders

    wake_signal = WakeSignal()
    with _open_loop(settings, wake_signal, timeout_s=_FINAL_NOTIFY_S) as (instance, loop):
        reap_orphans(loop.wait)
        call_on_signal(loop.stop, timeout_s=_MAX_SHUTDOWN_S)
        signal.signal(signal.SIGHUP, lambda *_: loop.fetch_now())
        signal.signal(signal.SIGUSR1, lambda *_: loop.wake())
        ledger = instance.reconciler.status.ledger
        with (
            watch_folders(settings.spool, wake=wake_signal.wake, recursive=False),
            watch_folders(settings.bmc.credentials, wake=wake_signal.wake),
            serve_endpoints(settings, access, ledger or "", wake_signal.wake) as endpoints,
        ):
            loop.run(endpoints=endpoints)
        if wake_signal.is_stopped:
            lease = instance.store.database.lease
            reason = (lease.moved_message if lease is not None else None) or "another instance has taken over"
            print_new_event(
                "LeaseLost", f"{reason}: this instance no longer publishes files or changes BMCs", is_warning=True
            )
        else:
            print_new_event("Stopped", "gitboot stopped; the published files remain")
    signal.setitimer(signal.ITIMER_REAL, 0)  # while it exits, the interpreter has no signal handler
    return wake_signal.is_stopped


@pause_garbage_collection()  # the process ends afterwards
def _reconcile_once(settings: Settings) -> Exit:
    """Reconcile once, and wait for the BMC tasks to finish."""
    from gitboot.controller.loop import WakeSignal

    with _open_loop(settings, WakeSignal(), timeout_s=_MAX_NOTIFY_S, wait=True) as (instance, loop):
        loop.run_once()
        return _find_reconcile_exit_code(instance.reconciler.status)


@contextmanager
def _open_loop(
    settings: Settings, wake_signal: WakeSignal, *, timeout_s: float, wait: bool = False
) -> Iterator[tuple[Instance, Loop]]:
    """Yield an instance and the loop that runs it.

    The loop sends reports to the forge and notifications to their receivers.

    When the block ends, the loop has up to ``timeout_s`` seconds to send the remaining reports. With ``wait``, the
    loop waits for evaluations.
    """
    with pause_garbage_collection():  # the objects of imported modules stay in memory
        from gitboot.controller.forge import ForgeReader, list_verdicts, send_verdicts
        from gitboot.controller.instance.assembly import run_instance
        from gitboot.controller.loop import Loop
        from gitboot.controller.notifications import send_notices

    with send_verdicts(settings, wake_signal.wake, timeout_s=timeout_s) as verdicts, ExitStack() as stack:

        def report_verdicts(status: Status, change: int) -> None:
            if verdicts is not None:
                verdicts.submit_verdicts(list_verdicts(status, change))

        with pause_garbage_collection():  # values read from the ledger stay in memory
            instance_context = run_instance(
                settings,
                tell=print_event,
                clock=current_time,
                wake=wake_signal.wake,
                wait=wait,
                on_status=report_verdicts,
                on_lease_lost=wake_signal.stop,
            )
            instance, source = stack.enter_context(instance_context)
            gc.freeze()  # so that the collector does not examine these objects again
        forge = ForgeReader(verdicts, source, instance.store) if verdicts is not None else None
        identity = instance.store.progress[0]
        notices = stack.enter_context(
            send_notices(settings, identity, current_time, wake_signal.wake, timeout_s=timeout_s)
        )
        loop = Loop(
            instance.reconciler,
            source,
            poll_s=settings.poll_s,
            clock=current_time,
            tell=print_event,
            wake_signal=wake_signal,
            read_clock_state=read_clock_state,
            forge=forge,
            notices=notices,
        )
        yield instance, loop


def _dry_run_once(settings: Settings) -> Exit:
    """Print what one reconcile would change."""
    from gitboot.controller.instance.assembly import open_dry_run
    from gitboot.controller.loop import Loop

    dry_run_types = {"Accepted": "WouldAccept", "Published": "WouldPublish", "BranchChosen": "WouldFollow"}

    def print_dry_event(event: Event) -> None:
        if event.type in dry_run_types:
            event = structs.replace(event, type=dry_run_types[event.type], message=f"dry run: {event.message}")
        print_event(event)

    with open_dry_run(settings, tell=print_dry_event, clock=current_time) as (instance, source, preview):
        Loop(
            instance.reconciler,
            source,
            poll_s=settings.poll_s,
            clock=current_time,
            tell=print_dry_event,
            read_clock_state=read_clock_state,
        ).run_once()
        for path in preview.result.written:
            click.echo(f"would write {settings.output / path}")
        for path in preview.result.withdrawn:
            click.echo(f"would remove {settings.output / path}")
        for bmc in instance.reconciler.state.schedule.bmcs.values():
            click.echo(f"{bmc.name}: {bmc.message}")
        return _find_reconcile_exit_code(instance.reconciler.status)


# These conditions do not mean that the reconcile is incomplete. Any client can make the condition ProxiesTrusted false.
_IGNORED_CONDITIONS: Final = ("BranchFollowed", "OutputPrivate", "ProxiesTrusted")


def _find_reconcile_exit_code(status: Status) -> Exit:
    """Return the exit code for the most severe condition after one reconcile."""
    if not status.condition("SourceReady"):
        return Exit.SOURCE
    if any(condition.type == "AcceptingCommits" and not condition.status for condition in status.conditions):
        return Exit.SUSPENDED
    if status.held is not None:
        return Exit.HELD
    if not status.condition("CommitAccepted"):
        return Exit.INVALID
    if not all(condition.status for condition in status.conditions if condition.type not in _IGNORED_CONDITIONS):
        return Exit.PARTIAL
    return Exit.FINE
