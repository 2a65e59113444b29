"""What an instance needs around it, each looked at by itself: what was found, and a hint where something is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from gitboot.artifacts.fetchers import WebFetcher
from gitboot.bmc.credentials import CredentialDirectory, credential_use
from gitboot.controller.instance.assembly import OfflineInstance
from gitboot.errors import BmcNotTrusted, GitbootError, UsageError
from gitboot.files import check_output_directory, check_state_directory
from gitboot.model.fleet import Output
from gitboot.publish.durable_files import is_readable_by_others
from gitboot.publish.manifest import MANIFEST, parse_head
from gitboot.render.dhcp import list_loader_offers, list_mirrors, list_requested_loaders
from gitboot.resolve.server_decision import Decisions
from gitboot.status.conditions import find_remedy
from gitboot.system_clock import ClockState
from gitboot.text import format_count, format_names, quote_words

_FEW: Final = 0.1  # of a file system: less that is free is worth a word
_FILES: Final = 6  # of the tree, for a server
_TIMEOUT_S: Final = 5.0


class Health(StrEnum):
    FINE = "ok"
    DOUBTFUL = "warning"  # it works, and may not for long, or not everywhere
    WRONG = "failed"


class Examined(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    subject: str
    health: Health
    message: str
    hint: str | None = None  # a line to type, or to write


Examination = Iterator[Examined]
_CLOCK: Final = {
    ClockState.SYNCHRONISED: (Health.FINE, "a time service keeps it right", None),
    ClockState.UNKNOWN: (
        Health.DOUBTFUL,
        "the kernel does not say who keeps it",
        "chronyc tracking  # or: timedatectl",
    ),
    ClockState.UNSYNCHRONISED: (
        Health.WRONG,
        "a time service has not set it since the boot: nothing is set at BMCs",
        "timedatectl set-ntp true",
    ),
    ClockState.UNKEPT: (
        Health.DOUBTFUL,
        "no time service keeps it right; where one did before, nothing is set at BMCs",
        "timedatectl set-ntp true",
    ),
}


def of_git(features: Mapping[str, bool], version: str) -> Examination:
    """What the Git library of this machine can speak."""
    lacking = sorted(name for name, has in features.items() if not has)
    if lacking:
        hint = "install gitboot's wheel or package, whose libgit2 has them"
        yield _wrong("git", f"libgit2 {version} is built without {', '.join(lacking)}", hint)
    else:
        yield fine("git", f"libgit2 {version}, with {', '.join(sorted(features))}")


def of_the_clock(keeping: ClockState) -> Examination:
    """Whether windows open and end when they should."""
    health, message, hint = _CLOCK[keeping]
    yield Examined(subject="clock", health=health, message=message, hint=hint)


def of_state(state: Path) -> Examination:
    """Whether a ledger may lie there, and has room."""
    if not state.is_dir():
        yield _wrong(
            "state", f"there is no directory {state}", f"install -d -m 0700 {quote_words(state)}  # for gitboot's user"
        )
        return
    yield from _check_kind(
        "state", f"{state} is this machine's own", lambda warn: check_state_directory(state, (), warn)
    )
    yield from _of_room(state, files=0)


def of_the_ledger(look: OfflineInstance, process: int | None) -> Examination:
    """What it knows, and whether that counts."""
    facts = look.knowledge.facts
    runs = f"process {process} has it" if process is not None else "nobody has it open"
    if facts.doubt is not None:
        hint = "gitboot status  # the condition RecordsVerified has the line that leads out of it"
        yield _wrong("ledger", f"{facts.identity} is in doubt: {facts.doubt}", hint)
    else:
        yield fine("ledger", f"{facts.identity} knows {format_count(len(look.knowledge.machines), 'machine')}; {runs}")


def of_who_sets(look: OfflineInstance) -> Examination:
    """Whether this instance may publish, and set BMCs: the Fleet says who does."""
    commit, identity = look.commit, look.knowledge.facts.identity
    bmcs = sum(each.bmc is not None for each in commit.machines.values())
    if not commit.is_for(identity):
        hint = "gitboot status  # the condition LedgerNamed has the line, where this instance is to act"
        yield _wrong("ledger", f"the Fleet names another than {identity}: nothing is set, and nothing installed", hint)
    elif commit.ledger is None and bmcs:
        message = f"the Fleet names no ledger: nothing is set at the BMCs of {format_count(bmcs, 'server')}"
        yield _wrong("ledger", message, find_remedy("BmcsSet", "LedgerNotNamed", {"LEDGER": identity}))


def of_output(output: Path, state: Path, *, servers: int) -> Examination:
    """Whether a tree may lie there, what stands there, and whether there is room for the fleet's."""
    if not output.is_dir():
        yield _doubtful(
            "output", f"there is no directory {output}; the first pass makes it", f"install -d {quote_words(output)}"
        )
        return
    yield from _check_kind("output", None, lambda warn: check_output_directory(output, (), warn, state=state))
    try:
        stamp = parse_head((output / MANIFEST).read_bytes()).stamp
        yield fine("output", f"{output} stands for {stamp.commit[:12]}, of the ledger {stamp.ledger}")
    except FileNotFoundError:
        yield _doubtful(
            "output", f"{output} holds nothing that was published", f"gitboot run … --out {quote_words(output)}"
        )
    except (OSError, ValueError) as error:
        yield _wrong(
            "output", f"{output / MANIFEST} cannot be read: {error}", f"ls -l {quote_words(output / MANIFEST)}"
        )
    if is_readable_by_others(output):
        message = f"everybody who has a login on this host can read {output}, and so the tokens of installations"
        yield _doubtful("output", message, find_remedy("OutputPrivate", "ReadableByAll"))
    yield from _of_room(output, files=_FILES * servers)


def of_credentials(credentials: Path | None, look: OfflineInstance) -> Examination:
    """Whether each name that BMCs have is there, and may be sent to them."""
    machines = [each for each in look.commit.machines.values() if each.bmc is not None]
    names = sorted({each.bmc.credentials for each in machines if each.bmc is not None})
    if not names:
        yield fine("credentials", "no server has a BMC")
        return
    found = CredentialDirectory(credentials)
    for name in names:
        of_it = sorted(each.name for each in machines if each.bmc is not None and each.bmc.credentials == name)
        try:
            entrusted = found.read(name)
        except UsageError as error:
            hint = f"{credentials or 'DIR'}/{name}/username and …/password, mode 0600"
            yield _wrong(
                "credentials", f"{error}: {format_count(len(of_it), 'server')} ({format_names(of_it, 3)})", hint
            )
            continue
        refused = []
        for each in sorted(machines, key=lambda machine: machine.name):
            if each.bmc is not None and each.bmc.credentials == name:
                try:
                    entrusted.trust.build_address_filter(
                        each.bmc, is_in_ledger=credential_use(each.bmc) in look.knowledge.known_pairs
                    )
                except BmcNotTrusted:
                    refused.append(each.name)
        if refused:
            message = f"{name} may not be sent to the BMCs of {format_count(len(refused), 'server')} ({format_names(refused, 3)})"
            yield _wrong("networks", message, "gitboot bmc access-files --state STATE  # what access.toml may say")
        else:
            yield fine("credentials", f"{name}, for {format_count(len(of_it), 'BMC')}")


def of_mirrors(decisions: Decisions) -> Examination:
    """Whether what DHCP names, and what it leads to, is answered under each base URL."""
    fetcher = WebFetcher(deadline_s=_TIMEOUT_S)
    first = "boot.ipxe" if Output.IPXE in decisions.outputs else "grub.cfg"
    loaders = sorted(
        {
            each.path
            for loader in (None, *list_requested_loaders(decisions))
            for each in list_loader_offers(decisions, loader)
        }
    )
    for mirror in list_mirrors(decisions):
        url = mirror.url(first)
        try:
            fetcher.head(url)
        except GitbootError as error:
            yield _wrong("DHCP", f"machines are told {mirror.base_url}, and {error}", f"curl -I {quote_words(url)}")
            continue
        yield fine("DHCP", f"{url} is answered")
        missing = []
        for path in loaders:
            try:
                fetcher.head(mirror.loader_url(path))
            except GitbootError:
                missing.append(path)
        if missing:
            message = f"{mirror.base_url}/assets/ lacks what DHCP names: {format_names(missing, 3)}"
            yield _wrong("loaders", message, "gitboot artifacts loaders --out OUTPUT/boot --path FLEET")
        else:
            yield fine("loaders", f"{format_count(len(loaders), 'loader')} below {mirror.base_url}/assets/loaders/")


def _of_room(place: Path, *, files: int) -> Examination:
    """Whether a file system has room for as many files more, and for what comes in the next months."""
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if found.f_files and files > found.f_favail:
        message = f"{place} has room for {found.f_favail:,} files, and the fleet's tree has about {files:,}"
        yield _wrong("disk", message, "choose a file system with more inodes: mkfs.ext4 -N")
    elif found.f_bavail < found.f_blocks * _FEW or (found.f_files and found.f_favail < found.f_files * _FEW):
        yield _doubtful(
            "disk", f"{place} has {free / 2**30:,.1f} GiB free, less than a tenth", f"df -h {quote_words(place)}"
        )
    else:
        yield fine("disk", f"{place} has {free / 2**30:,.1f} GiB free")


def _check_kind(subject: str, message: str | None, check: Callable[[Callable[[str], None]], None]) -> Examination:
    """What a check raises, or warns of; where it does neither, ``message``."""
    warnings: list[str] = []
    try:
        check(warnings.append)
    except UsageError as error:
        yield _wrong(subject, str(error), None)
        return
    if warnings:
        yield from (_doubtful(subject, each, None) for each in warnings)
    elif message is not None:
        yield fine(subject, message)


def fine(subject: str, message: str) -> Examined:
    """Return a finding that needs nothing to be done."""
    return Examined(subject=subject, health=Health.FINE, message=message)


def _doubtful(subject: str, message: str, hint: str | None) -> Examined:
    return Examined(subject=subject, health=Health.DOUBTFUL, message=message, hint=hint)


def _wrong(subject: str, message: str, hint: str | None) -> Examined:
    return Examined(subject=subject, health=Health.WRONG, message=message, hint=hint)
