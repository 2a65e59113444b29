"""What is different for machines of some make: how they come to their disk, and which loader DHCP names for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gitboot.load import FleetRepository, Id
from gitboot.model.fleet import Fleet, Hardware, Output
from gitboot.model.server import Loader, Server
from gitboot.problems.codes import Code
from gitboot.resolve.found import DecisionFinding
from gitboot.resolve.selection import Selecting

NOT_FOUND: Final = "NotFound"  # on to the local disk by having no entry
_OUTPUTS: Final = {Loader.IPXE: Output.IPXE, Loader.GRUB: Output.GRUB}


class Makes:
    """Of which make servers are, by a Fleet."""

    def __init__(self, repository: FleetRepository) -> None:
        self._fleet = repository.fleet
        self._hardware: Selecting[Hardware] = Selecting((each, each.select) for each in self._fleet.spec.hardware)

    def loader(self, server: Server) -> Loader | None:
        """What DHCP names for it; None: as for most machines."""
        made = (each.loader for each in self._hardware.of(server))
        return server.spec.loader or next(filter(None, made), None)

    def local_disk(self, server: Server) -> str | None:
        """How loaders hand over to its disk; None: as for most machines."""
        made = (each.local_disk for each in self._hardware.of(server))
        return server.spec.local_disk or next(filter(None, made), None)

    def unpublished(self, server: Server) -> Iterator[DecisionFinding]:
        """A loader that finds no entry, for none is published for it."""
        loader = self.loader(server)
        if loader is None or _OUTPUTS[loader] in self._fleet.spec.outputs:
            return
        place = _place(self._fleet, server)
        message = f"DHCP would name {loader} for it, and {_OUTPUTS[loader]} is not among the outputs"
        hint = f"add {_OUTPUTS[loader]} to the Fleet's outputs, or name another loader"
        yield DecisionFinding(Code.COMBINATION, message, hint, place)


def _place(fleet: Fleet, server: Server) -> tuple[Id, tuple[str, ...]]:
    if server.spec.loader is not None:
        return Id("Server", server.metadata.name), ("spec", "loader")
    return Id("Fleet", fleet.metadata.name), ("spec", "hardware")
