"""Signals that reach the main thread just before it sleeps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gitboot.background_threads import SignalQueue
from gitboot.controller.loop import Bell, Ring


@contextmanager
def handled_late(handler: Callable[[], None]) -> Iterator[None]:
    """Let the operating system hand SIGUSR1 to another thread while the block runs.

    Python calls the handler in the main thread, which goes on sleeping: the same as for a signal that arrives
    between the thread's last step and its sleep.
    """

    def send() -> None:
        time.sleep(0.2)  # the main thread most likely sleeps by then; if not, the test proves less and does not fail
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: handler())
    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_does_not_end_the_sleep_of_the_main_thread_wakes_an_instance() -> None:
    bell = Bell()
    with handled_late(bell.ring):
        assert bell.wait(60) == {Ring.ANYTHING}


def test_a_queue_without_an_item_gives_none_after_its_time() -> None:
    assert SignalQueue[int]().get(0) is None
    assert SignalQueue[int]().get(0.01) is None


def test_items_are_taken_in_the_order_in_which_they_were_put() -> None:
    queue = SignalQueue[int]()
    queue.put(1)
    queue.put(2)
    assert [queue.get(0), queue.get(0), queue.get(0)] == [1, 2, None]
