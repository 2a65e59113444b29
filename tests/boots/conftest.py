"""What all boots share: a network of their own, images, and the page that says what was booted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.boots import page
from tests.boots.bmc import Owner
from tests.boots.images import Images
from tests.boots.kernel import kernel
from tests.boots.machine import Running
from tests.boots.network import own_network


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    return Images.build(kernel(), tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def network(images: Images) -> Iterator[None]:
    with own_network():
        yield


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Callable[[Running | Owner, float], None]:
    """Tells the page of a boot that did what it had to do."""

    def tell(running: Running | Owner, seconds: float) -> None:
        if request.config.getoption("write_boots"):
            page.write(request.node.nodeid, seconds, running.said)

    return tell
