"""Evaluation of commits in a child process with resource limits.

The parent process gives the child access to the cache.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import Struct

from gitboot.child_processes import ProcessUsage, exit_with_parent, lift_memory_limit, pause_garbage_collection
from gitboot.cli.main import Exit
from gitboot.cli.options import evaluation_options, find_user_cache
from gitboot.errors import InvalidRepository
from gitboot.files import is_on_network

if TYPE_CHECKING:
    from gitboot.disk_cache import DiskCache
    from gitboot.evaluator.cache import Cache
    from gitboot.evaluator.evaluation import Workers
    from gitboot.evaluator.protocol import EvaluationLimits, ResultKind

Command = TypeVar("Command", bound=Callable[..., Any])
SetLimits = Callable[[int], None]

OWN_PROCESS: Final = object()  # the context object of a command that runs in its own process, and not in a test


class _EvaluationSettings(Struct, frozen=True, kw_only=True):
    workers: int | None = None  # None: one worker for each processor
    cache: Cache | None = None  # None: with --no-cache
    # a function that sets the limits for a number of files; None: there are no limits (in tests)
    set_limits: SetLimits | None = None


_settings = _EvaluationSettings()


def evaluator_command(command: Command) -> Command:
    """Make a command evaluate commits in a child process with resource limits.

    Add --no-cache and the options for the limits to the command. The parent process opens the cache, because a commit
    must not be able to damage the cache.
    """

    @wraps(command)
    def evaluate_in_child(
        *args: Any,
        commit_seconds: int | None,
        commit_memory: int | None,
        commit_workers: int | None,
        no_cache: bool,
        **options: Any,
    ) -> Any:
        global _settings
        context = click.get_current_context()
        cache_opener = partial(open_cache, options.get("state")) if not no_cache else None
        cache: Cache | None = None
        set_limits: SetLimits | None = None
        if context.obj is OWN_PROCESS:
            from gitboot.evaluator.protocol import EvaluationLimits

            cache = _continue_in_child(cache_opener)
            set_limits = partial(_apply_limits, EvaluationLimits(seconds=commit_seconds, mebibytes=commit_memory))
        elif cache_opener is not None:
            disk_cache = cache_opener()
            context.call_on_close(disk_cache.close)
            cache = disk_cache
        _settings = _EvaluationSettings(workers=commit_workers, cache=cache, set_limits=set_limits)
        try:
            return command(*args, **options)
        finally:
            _settings = _EvaluationSettings()

    return evaluation_options(evaluate_in_child)  # type: ignore[return-value]


def get_results_cache() -> Cache | None:
    """Return the results cache for the current command, or None with --no-cache."""
    return _settings.cache


def count_evaluation_workers() -> Workers:
    """Return the number of processes that the current command uses to evaluate a commit."""
    from gitboot.evaluator.evaluation import Workers, choose_worker_count

    return Workers(number=_settings.workers or choose_worker_count())


@contextmanager
def limit_evaluation() -> Iterator[SetLimits]:
    """Limit the resources of this process while it reads and evaluates a commit.

    Yields a function that adjusts the limits to a number of files. Raises `InvalidRepository` if the process runs out
    of memory. If the process runs out of CPU time, the kernel kills it.
    """
    set_limits = _settings.set_limits
    if set_limits is None:
        with pause_garbage_collection():
            yield lambda _: None
        return
    from gitboot.evaluator.protocol import build_limit_problem

    set_limits(0)
    try:
        # Turn off the garbage collector. Most objects of a fleet stay in memory, and the garbage collector would
        # examine them again and again.
        with pause_garbage_collection():
            yield set_limits
    except Exception as error:
        lift_memory_limit()
        from gitboot.git.repository import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        raise InvalidRepository([build_limit_problem("the evaluation exceeds its memory limit")]) from None
    finally:
        lift_memory_limit()


def _apply_limits(limits: EvaluationLimits, file_count: int) -> None:
    limits.set_limits(ProcessUsage.measure(), file_count)


def open_cache(state: Path | None) -> DiskCache:
    """Return the cache of the instance with this state directory (read-only), or the user's cache if ``state`` is None.

    The user's cache stays empty if there is no home directory. The cache also stays empty on a network file system,
    because there the file server determines how long SQLite waits for locks.
    """
    from gitboot.disk_cache import DiskCache

    if state is not None:
        from gitboot.controller.instance import state_directory

        # Do not warn, because the instance reports errors of its cache.
        return state_directory.open_cache(state, lambda _: None, writes=False)
    path = find_user_cache()
    if path is not None and is_on_network(path):
        path = None
    return DiskCache(
        path, lambda text: click.echo(f"gitboot: {text} (to evaluate without a cache, use --no-cache)", err=True)
    )


_FORWARDED: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


def _continue_in_child(cache_opener: Callable[[], DiskCache] | None) -> Cache | None:
    """Fork, and continue in the child.

    The parent serves the cache, waits for the child, and exits with the child's status.
    """
    import gitboot.evaluator.cache  # noqa: F401 - before the fork: both processes need it
    from gitboot.evaluator.cache import RemoteCache

    parent_socket, child_socket = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    parent = os.getpid()
    child = os.fork()
    if child != 0:
        child_socket.close()
        code = _supervise_child(child, parent_socket, cache_opener)
        sys.stderr.flush()
        os._exit(code & 0xFF)  # a normal exit would take 0.02 s to clean up all modules
    exit_with_parent(parent)
    parent_socket.close()
    signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
    if cache_opener is None:
        return None
    return RemoteCache(child_socket.makefile("rb"), child_socket.makefile("wb"))


_LIMIT_BY_EXIT_STATUS: Final = {
    -signal.SIGXCPU: "the evaluation exceeds its time limit",
    -signal.SIGABRT: "the evaluation exceeds its memory limit",  # some libraries abort if they cannot allocate memory
    -signal.SIGSEGV: "the evaluation probably exceeds its memory limit",  # some libraries do not check allocations
}


def _supervise_child(child: int, channel: socket.socket, cache_opener: Callable[[], DiskCache] | None) -> int:
    """Give a child process access to the cache until the child ends.

    Return the child's exit code. If a signal ended the child, end this process with the same signal.
    """
    thread = None
    if cache_opener is not None:
        thread = Thread(target=_serve_cache, args=(channel, cache_opener), name="cache")
        try:
            thread.start()
        except RuntimeError:  # the system cannot start a thread, so the child evaluates without a cache
            channel.close()
            thread = None
    code = _wait_for_child(child)
    if thread is not None:
        with suppress(OSError):
            channel.shutdown(socket.SHUT_RDWR)  # the thread reads the messages that have already arrived, and then ends
        thread.join()
    if code in _LIMIT_BY_EXIT_STATUS:
        from gitboot.evaluator.protocol import build_limit_problem

        click.echo(f"gitboot: {build_limit_problem(_LIMIT_BY_EXIT_STATUS[code])}", err=True)
        return Exit.INVALID
    if code < 0:
        number = -code
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.kill(os.getpid(), number)
    return code


_SI_KERNEL: Final = 0x80  # sigaction(2): the signal came from a terminal, so the child received it too


def _wait_for_child(child: int) -> int:
    """Wait until a child ends, and forward the signals that the child did not receive itself.

    Return the exit code of the child.
    """
    while True:
        received = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if received.si_signo != signal.SIGCHLD:
            if received.si_code != _SI_KERNEL:
                os.kill(child, received.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _serve_cache(channel: socket.socket, cache_opener: Callable[[], DiskCache]) -> None:
    from gitboot.evaluator.cache import serve_cache

    with (
        suppress(OSError),
        channel,
        cache_opener() as cache,
        channel.makefile("rb") as incoming,
        channel.makefile("wb") as outgoing,
    ):
        serve_cache(cache, incoming, outgoing, _is_stored_result)


def _is_stored_result(kind: ResultKind, value: bytes) -> bool:
    """Return whether a value is a valid result. A child process must not be able to store anything else."""
    from gitboot.evaluator.cache import is_valid_result

    if is_valid_result(kind, value):
        return True
    if kind == "artifact":
        from gitboot.artifacts.availability import is_read_result

        return is_read_result(value)
    from gitboot.evaluator.decision_history import is_valid_history_result

    return is_valid_history_result(kind, value)
