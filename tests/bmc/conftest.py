"""Fixtures of the tests of BMCs: machines behind a Redfish double, and an authority for its certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gitboot.bmc.worker_pool import BmcPool
from tests.helpers.bmcs import MakeRack, Rack, racks
from tests.helpers.http_peers import Authority


@pytest.fixture
def make_rack(tmp_path: Path) -> Iterator[MakeRack]:
    with racks(tmp_path) as make:
        yield make


@pytest.fixture
def rack(make_rack: MakeRack) -> Rack:
    return make_rack()


@pytest.fixture
def fleet(rack: Rack) -> Iterator[BmcPool]:
    with rack.fleet() as fleet:
        yield fleet


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))
