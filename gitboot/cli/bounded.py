"""Commands that read a commit, held to what a commit may take: in a child that may die of it, and is reported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gitboot.cli.configuration import Setting
from gitboot.cli.exit import Exit
from gitboot.cli.inputs import LONGEST_S, MOST_MEMORY_MIB, no_cache_option, open_cache

if TYPE_CHECKING:
    from gitboot.disk_cache import DiskCache
    from gitboot.evaluator.protocol import Allowance
    from gitboot.evaluator.workers import Forks

Command = TypeVar("Command", bound=Callable[..., Any])

_FORWARDED: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
_EXCEEDED: Final = {
    -signal.SIGXCPU: "it takes more time",
    -signal.SIGABRT: "it takes more memory",  # so pydantic ends where it can have none
    -signal.SIGSEGV: "it takes more memory, as it seems,",  # so do libraries that do not look whether they have it
}
_SI_KERNEL: Final = 0x80  # sigaction(2): a terminal's own signal, which the child got, too


def allowance_options(command: Command) -> Command:
    """Add --commit-seconds, --commit-memory and --commit-workers: the limits for evaluating one commit."""
    return _allowance(command, click.Option)


def allowance_settings(command: Command) -> Command:
    """Add the limits for evaluating one commit as settings of the configuration file."""
    return _allowance(command, Setting)


def _allowance(command: Command, cls: type[click.Option]) -> Command:
    seconds = click.option(
        "--commit-seconds",
        cls=cls,
        type=click.IntRange(min=1, max=LONGEST_S),  # the kernel counts whole seconds
        metavar="SECONDS",
        envvar="GITBOOT_COMMIT_SECONDS",
        help="Whole seconds of processor time for evaluating one commit. Default: 60, and 6 for each 1,000 files.",
    )
    memory = click.option(
        "--commit-memory",
        cls=cls,
        type=click.IntRange(min=1, max=MOST_MEMORY_MIB),
        metavar="MIB",
        envvar="GITBOOT_COMMIT_MEMORY",
        help="MiB of memory for evaluating one commit. Default: 1,024 MiB, and 64 for each 1,000 files.",
    )
    workers = click.option(
        "--commit-workers",
        cls=cls,
        type=click.IntRange(min=1, max=64),
        metavar="NUMBER",
        envvar="GITBOOT_COMMIT_WORKERS",
        help="Processes that evaluate a commit if all of its files must be read and there are at least 500. Default: "
        "one for each processor, at most 8.",
    )
    return seconds(memory(workers(command)))


def bounded(command: Command) -> Command:
    """A command that reads commits within limits, which are options of it."""

    @wraps(command)
    def limited(
        *args: Any,
        commit_seconds: int | None,
        commit_memory: int | None,
        commit_workers: int | None,
        no_cache: bool,
        **given: Any,
    ) -> Any:
        global _workers, _no_cache
        _workers, _no_cache = commit_workers, no_cache
        if click.get_current_context().obj is PROGRAM:
            _part(commit_seconds, commit_memory)
        return command(*args, **given)

    return no_cache_option(allowance_options(limited))  # type: ignore[return-value]


def user_cache() -> DiskCache:
    """Return the cache of this user for the command that runs; with --no-cache it stays empty."""
    return open_cache(no_cache=_no_cache)


PROGRAM: Final = object()  # the context of a command that is a process of its own, and no test's

Begun = Callable[[int], None]
_workers: int | None = None
_no_cache = False
_begun: Begun | None = None  # in a child: gives a commit of so many files what it may take


@contextmanager
def evaluating() -> Iterator[Begun]:
    """While a commit is read and decided, limits hold; they grow with its files once those are counted.

    Raises `InvalidRepository` where the memory is not enough. For the time only this process's end is left.
    """
    from gitboot.bounds import lift, uncollected

    if _begun is None:
        with uncollected():
            yield lambda _: None
        return
    from gitboot.errors import InvalidRepository, LedgerError, SourceError
    from gitboot.evaluator.protocol import exceeded

    _begun(0)
    try:
        with uncollected():  # nearly all of a fleet stays: it would only be looked at again and again
            yield _begun
    except (MemoryError, SystemError, SourceError, LedgerError, OSError) as error:  # so end modules, and libraries
        lift()
        from gitboot.source.repository import lacks_memory

        if not isinstance(error, SystemError) and not lacks_memory(error):
            raise
        raise InvalidRepository([exceeded("it takes more memory to evaluate than it may")]) from None
    finally:
        lift()


def workers() -> Forks:
    """How many processes evaluate a commit of which all has to be looked at."""
    from gitboot.evaluator.workers import Forks, processors

    return Forks(number=_workers or processors())


def _part(seconds: int | None, mebibytes: int | None) -> None:
    """Go on as a child of this process, which waits for it and ends as it does."""
    from gitboot.evaluator.protocol import Allowance
    from gitboot.processes import end_with

    global _begun
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    parent = os.getpid()
    if child := os.fork():
        sys.exit(_waited(child))
    end_with(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _begun = partial(_allow, Allowance(seconds=seconds, mebibytes=mebibytes))


def _allow(allowance: Allowance, files: int) -> None:
    """Give this process from now on what a commit of so many files may take."""
    from gitboot.bounds import Spent

    allowance.bound(Spent.now(), files)


def _waited(child: int) -> int:
    """The exit code of a child; what this process is told by a signal, the child is told."""
    while True:
        told = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if told.si_signo != signal.SIGCHLD:
            if told.si_code != _SI_KERNEL:
                os.kill(child, told.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
    code = os.waitstatus_to_exitcode(status)
    if code in _EXCEEDED:
        from gitboot.evaluator.protocol import exceeded

        click.echo(f"gitboot: {exceeded(f'{_EXCEEDED[code]} to evaluate than it may')}", err=True)
        return Exit.INVALID
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.kill(os.getpid(), -code)
    return code
