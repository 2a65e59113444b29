"""Fixtures of all boots: their network, images, and the page with the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.boots import page
from tests.boots.architectures import X86_64
from tests.boots.bmc import MachineDriver
from tests.boots.images import Images
from tests.boots.machine import RunningMachine
from tests.boots.network import new_network


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images.build(tmp_path_factory.mktemp("images"), X86_64)


@pytest.fixture(scope="module")
def network(images: Images) -> Iterator[None]:
    with new_network():
        yield


@pytest.fixture
def row(record_property: Callable[[str, object], None]) -> Callable[[RunningMachine | MachineDriver, float], None]:
    """Tells the page of a boot that did what it had to do."""

    def tell(running: RunningMachine | MachineDriver, seconds: float) -> None:
        record_property(page.PROPERTY, (seconds, running.console_text))

    return tell
