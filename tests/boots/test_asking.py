"""A copy asks the endpoint for a maintenance, in iPXE, GRUB and PXELINUX, and boots without a response."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.boots.asking import ALONE, ERRORS, IN_WINDOW, LOADERS, boot


@pytest.mark.parametrize("loader", LOADERS)
def test_finding_m1_a_copy_boots_a_maintenance_if_the_endpoint_responds(loader: str, tmp_path: Path) -> None:
    assert boot(loader, "answered", tmp_path)[:2] == (IN_WINDOW, 1)


# One of each kind; `python -m benchmarks.asking_endpoint` boots all of `CASES`.
WITHOUT_ANSWER: Final = [
    *((loader, case) for loader in LOADERS for case in ("502 with a page", "refused", "dropped")),
    ("ipxe", "503 for now"),  # which only iPXE tries again: net/tcp/httpcore.c, http_response
]


@pytest.mark.parametrize(("loader", "case"), WITHOUT_ANSWER)
def test_finding_m1_a_copy_boots_no_maintenance_without_a_response(loader: str, case: str, tmp_path: Path) -> None:
    kernel, requests, _ = boot(loader, case, tmp_path)
    assert kernel == ALONE
    if case == "503 for now":
        assert requests >= 1
    else:
        assert requests == (1 if case in ERRORS else 0)


@pytest.mark.parametrize("loader", LOADERS)
def test_finding_m1_a_boot_script_of_a_copy_that_gets_a_response_boots_the_maintenance_no_more(
    loader: str, tmp_path: Path
) -> None:
    """A load balancer may send the request to a copy. iPXE and GRUB fetch their own script once more."""
    assert boot(loader, "itself", tmp_path)[:2] == (ALONE, 1)
