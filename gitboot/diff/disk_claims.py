"""Claims that a boot writes no disk: each counts as an installation until a commit with it is accepted.

`writesDisk: false` of a BootImage is its author's word. Without this module an image that erases a disk passes as
a memory test. Two things are compared with the earlier commit:

- the image: all of its spec. An image that comes with the claim, or gets the claim, or keeps the claim and boots
  something else, is a new claim, whether a server boots the image or not.
- the boot: what profile, policy, server and templates add to the image for a server that exists. Kernel arguments or
  a boot script that no server was offered with this image can erase a disk just as well, and so can another host that
  serves the files, because boot loaders check no digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.jsonio import Digest, digest
from gitboot.model.boot_image import BootImage
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.server import Lifecycle
from gitboot.resolve.server_decision import Boot, Decision, Decisions
from gitboot.review.document_changes import DocumentChange, Fate, plain
from gitboot.review.reinstalls import Reinstall, Why

# Arguments that only choose where the kernel prints, and how much.
# Source: https://docs.kernel.org/admin-guide/kernel-parameters.html
_PRINTING: Final = frozenset({"console", "earlycon", "earlyprintk", "loglevel", "quiet"})


def new_claims(
    documents: Mapping[Id, DocumentChange], old: FleetRepository | None, new: FleetRepository
) -> frozenset[str]:
    """Return the names of the BootImages of ``new`` whose claim no image of ``old`` makes for the same content.

    There is none if ``old`` has no servers: as in a first commit, no machine has a disk to lose.
    """
    if old is None or not old.servers:
        return frozenset()
    changed = [key.name for key, change in documents.items() if key.kind == "BootImage" and _is_there(change)]
    claiming = [name for name in changed if not new.images[name].spec.writes_disk]
    if not claiming:
        return frozenset()
    known = set(map(_content, old.images.values()))  # the claim is part of the content
    return frozenset(name for name in claiming if _content(new.images[name]) not in known)


def _is_there(change: DocumentChange) -> bool:
    return change.fate is not Fate.REMOVED


def _content(image: BootImage) -> Digest:
    """All that the image boots and claims, whatever it is called."""
    return digest({name: value for name, value in plain(image)["spec"].items() if name != "version"})


class DiskClaims:
    """The claims of one commit beside an earlier one; offered boots are read from the earlier one when needed."""

    def __init__(
        self,
        documents: Mapping[Id, DocumentChange],
        old: Decisions | None,
        old_repository: FleetRepository | None,
        new: FleetRepository,
    ) -> None:
        self.images = new_claims(documents, old_repository, new)
        self._old, self._new = old, new
        fleet = old_repository.fleet.spec if old_repository is not None else None
        sites = fleet.sites if fleet is not None else ()
        self._hosts = {fleet.base_url if fleet is not None else None, *(site.base_url for site in sites)}
        self._offered: frozenset[Digest] | None = None

    def newly_made(self, old: Decision | None, new: Decision) -> tuple[Reinstall, ...]:
        """Return each boot of ``new`` that counts as an installation because of its claim; ``old`` None: it is new."""
        return tuple(self._newly_made(old, new))

    def _newly_made(self, old: Decision | None, new: Decision) -> Iterator[Reinstall]:
        for maintenance, boot in _claimed(new):
            if boot.image in self.images:
                yield Reinstall(Why.CLAIM, None, boot.image, maintenance)
            elif old is not None and not self._is_known(old, new, boot):
                yield Reinstall(Why.CLAIM_OF_BOOT, None, boot.image, maintenance)

    def is_unknown(self, new: Decision) -> bool:
        """Whether a server that is new is offered a boot that claims to write no disk, and that none was offered."""
        return self._old is not None and any(
            boot.image in self.images or not self._is_known(None, new, boot) for _, boot in _claimed(new)
        )

    def _is_known(self, old: Decision | None, new: Decision, boot: Boot) -> bool:
        if new.base_url not in self._hosts:
            return False
        if self._adds_nothing(boot):
            return True
        started = _started(new, boot)
        if old is not None and any(_started(old, was) == started for _, was in _claimed(old)):
            return True  # user data is the configuration of a system without a disk: it changes like any other
        if self._offered is None:
            decisions = self._old.servers.values() if self._old is not None else ()
            self._offered = frozenset(_whole(each, was) for each in decisions for _, was in _claimed(each))
        return _whole(new, boot) in self._offered

    def _adds_nothing(self, boot: Boot) -> bool:
        """Whether a boot is its image alone, but for where it prints."""
        if boot.entries or boot.user_data is not None:
            return False
        if boot.direct:  # no loader, so no arguments
            return True
        own = self._new.images[boot.image].spec.kernel_arguments
        more = [each for each in boot.kernel_arguments if each not in own]
        return set(own) <= set(boot.kernel_arguments) and all(map(_only_prints, more))


def _only_prints(argument: str) -> bool:
    return argument.partition("=")[0] in _PRINTING


def _claimed(decision: Decision) -> Iterator[tuple[str | None, Boot]]:
    """The boots that a decision offers, now or in a window, and that claim to write no disk; None: of its policy."""
    if decision.lifecycle is not Lifecycle.ACTIVE:
        return
    policy = decision.policy
    offered = policy.boot if policy is not None and policy.network_boot is not NetworkBoot.NEVER else None
    if offered is not None and not offered.writes_disk:
        yield None, offered
    for each in decision.maintenances:
        if each.boot is not None and not each.boot.writes_disk:
            yield each.name, each.boot


def _started(decision: Decision, boot: Boot) -> Digest:
    """What a machine starts: files, arguments, scripts, wherever the files and the user data lie.

    Arguments that only choose where it prints make no difference.
    """

    def moved(text: str) -> str:
        text = text.replace(boot.user_data.url, "") if boot.user_data is not None else text
        return text.replace(decision.base_url, "")

    return digest(
        {
            "image": boot.image,
            "method": [boot.method, boot.http_boot, boot.config_from],
            "files": [each.sha256 for each in boot.files.all()],
            "arguments": [moved(each) for each in boot.kernel_arguments if not _only_prints(each) and not boot.direct],
            "entries": {loader: moved(text) for loader, text in boot.entries.items()},
        }
    )


def _whole(decision: Decision, boot: Boot) -> Digest:
    """The same with the templates of its user data."""
    format = boot.user_data.format if boot.user_data is not None else None
    return digest([_started(decision, boot), format, dict(boot.templates)])
