"""Which file a request means: as the tree names it, or by another spelling of a MAC address or UUID."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final, NamedTuple

from gitboot.canonical import canonical
from gitboot.render.answers import Answers
from gitboot.render.ipxe import first_script
from gitboot.render.paths import ContentType, asked_for
from gitboot.render.tree import File


class Found(NamedTuple):
    path: str  # below the output directory
    file: File


# Where boot-operator's users point iPXE to; one level down from the scripts that it chains to.
_CHAIN: Final = Found("boot/ipxe/", File(first_script("../").encode(), ContentType.TEXT))
_FIRST_SCRIPT: Final = "boot/boot.ipxe"


def find(answers: Answers, path: str, client: Callable[[], str | None], at: datetime) -> Found | None:
    """The file that a request for ``path`` by ``client`` is answered with at the instant ``at``."""
    for name in (f"boot{path}", *_spellings(path)):
        if (file := answers.at(name, at)) is not None:
            return Found(name, file)
    if path == "/ipxe/" and _FIRST_SCRIPT in answers.files:
        return _CHAIN
    return _by_address(answers, client(), at) if path == "/httpboot" else None


def _by_address(answers: Answers, client: str | None, at: datetime) -> Found | None:
    """What boot-operator answers the server with this address: what its firmware boots."""
    server = answers.addresses.get(client) if client else None
    if server is None:
        return None
    path = f"boot/httpboot/{answers.servers[server]['uuid']}.json"
    file = answers.at(path, at)
    if file is None:
        return None
    answer = canonical({"ClientIPs": client, **json.loads(file.content)})
    return Found(path, File(answer + b"\n", ContentType.JSON))


def _spellings(path: str) -> Iterator[str]:
    """The paths of the tree that ``path`` may stand for; none where an address or UUID is malformed."""
    return (asked.path for asked in asked_for(path.removeprefix("/")))
