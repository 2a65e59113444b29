"""How machines of some make boot their disk, and which boot loader DHCP names for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gitboot.fleet.resources import Id
from gitboot.model.fleet import Output
from gitboot.model.server import Loader
from gitboot.problems.codes import Code
from gitboot.resolve.decision_inputs import DecisionFinding, ServerInputs

NOT_FOUND: Final = "NotFound"  # on to the local disk by having no entry
_OUTPUTS: Final = {Loader.IPXE: Output.IPXE, Loader.GRUB: Output.GRUB}


def loader_of(inputs: ServerInputs) -> Loader | None:
    """Return the boot loader that DHCP names for a server; None: the default one."""
    return inputs.server.spec.loader or inputs.shared.loader


def local_disk_of(inputs: ServerInputs) -> str | None:
    """Return how boot loaders start the disk of a server; None: the default way."""
    return inputs.server.spec.local_disk or inputs.shared.local_disk


def check_loader(inputs: ServerInputs) -> Iterator[DecisionFinding]:
    """Yield that DHCP would name a boot loader for which gitboot publishes no entries."""
    loader, fleet = loader_of(inputs), inputs.shared.fleet
    if loader is None or _OUTPUTS[loader] in fleet.outputs:
        return
    place = (Id("Fleet", fleet.name), ("spec", "hardware"))
    if inputs.server.spec.loader is not None:
        place = (Id("Server", inputs.server.metadata.name), ("spec", "loader"))
    message = f"DHCP would name {loader} for it, and {_OUTPUTS[loader]} is not among the outputs"
    hint = f"add {_OUTPUTS[loader]} to the Fleet's outputs, or name another loader"
    yield DecisionFinding(Code.COMBINATION, message, hint, place)
