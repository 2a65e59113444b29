"""Decision changes: the digests that acknowledgements for earlier versions contain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from gitboot.jsonio import Digest
from gitboot.resolve.fleet_decisions import decide
from gitboot.review.decision_changes import compare_decisions
from tests.helpers.fleets import repository
from tests.upgrades import acknowledgements
from tests.upgrades.acknowledgements import CHANGES, Change

# The digest covers more than before. CHANGELOG.md names these changes: extend it with this list.
VOID_SINCE_2FEFE59: Final = {
    "a server with restricted lookups is installed again",
    "an image that newly claims to write no disk is booted",
    "clients are named",
    "lookups become restricted",
    "monitors are named",
}
VOID_SINCE_0_1_0: Final = VOID_SINCE_2FEFE59 - {"clients are named"} | {"a server gets a BMC", "an image is edited"}


@pytest.mark.parametrize(
    ("version", "void"), [("0.1.0", VOID_SINCE_0_1_0), ("2fefe59", VOID_SINCE_2FEFE59)], ids=["0.1.0", "2fefe59"]
)
def test_an_acknowledgement_of_an_earlier_version_counts_but_for_these_changes(version: str, void: set[str]) -> None:
    written = json.loads(Path(acknowledgements.__file__).with_name(f"{version}-acknowledgements.json").read_bytes())
    assert {"a server is installed again", "a server is removed"} < written.keys()
    assert {name for name, digest in written.items() if compute(CHANGES[name]) != digest} == void


def compute(change: Change) -> Digest:
    before, after = (repository(*each) for each in change)
    return compare_decisions(decide(before), decide(after), before, after).digest
