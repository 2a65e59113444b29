"""gitboot.resolve.decision_inputs_from_resolve_copies."""

from __future__ import annotations

from typing import Final

from gitboot.model.fleet import Output

_OF_IPXE: Final = frozenset({Output.IPXE, Output.SERIAL, Output.SMEE, Output.NETBOOT_XYZ})


_WITHOUT_HTTPS: Final = (
    ("GRUB", frozenset({Output.GRUB, Output.UUID})),
    ("PXELINUX", frozenset({Output.PXELINUX})),
)


LOADER_OUTPUTS: Final = _OF_IPXE.union(*(outputs for _, outputs in _WITHOUT_HTTPS))  # that boot scripts are for
