"""Facts of a review in words: the same in every format."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gitboot.fleet.identities import BmcAccess
from gitboot.jsonio import format_instant
from gitboot.review.change_groups import ChangeCause, Group, Outlier
from gitboot.review.decision_changes import BecomesUnknown, BmcChange, Changes, ServerChange, Since
from gitboot.review.document_changes import (
    ONE_TIME_BOOTS,
    AccessChange,
    Fate,
    FieldChange,
)
from gitboot.review.guards import SMALL, Area, Guard, Limits, Trip
from gitboot.review.reinstalls import Reinstall, Why, resets
from gitboot.review.risks import Effect, Risk, When
from gitboot.text import count, more, some

ARROW: Final = "\N{RIGHTWARDS ARROW}"
_LONGEST: Final = 160  # characters of one value


def share(number: int, of: int) -> str:
    """A count, and how much of the whole it is; not 0 % where it is something."""
    if not number or not of:
        return f"{number:,}"
    percent = number * 100 / of
    return f"{number:,} ({'<1' if percent < 1 else f'{percent:.0f}'} %)"


def value(found: Any) -> str:
    """A value as one line."""
    if found is None:
        return "(absent)"
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def change(field: FieldChange) -> str:
    """One field: what it was and what it is; of a list what comes and what goes."""
    if isinstance(field.old, list) and isinstance(field.new, list):
        signs = [f"-{value(each)}" for each in field.old if each not in field.new]
        signs += [f"+{value(each)}" for each in field.new if each not in field.old]
        return f"{field.dotted}: {' '.join(signs) or 'in another order'}"
    if field.old == field.new:
        return f"{field.dotted}: another"
    return f"{field.dotted}: {value(field.old)} {ARROW} {value(field.new)}"


def rendered_for(group: Group) -> str:
    """Whose rendered difference a group shows, and in what the others differ from it."""
    if len(group.servers) == 1:
        return f"as for {group.names[0]}"
    own = f", with its own {' and '.join(group.own)}" if group.own else ""
    return f"as for each of them{own}; here for {group.names[0]}"


def outlier(found: Outlier) -> list[str]:
    """In what a group is unlike the larger one that changes by the same causes."""
    signed = [*(f"only here: {line}" for line in found.lines), *(f"not here: {line}" for line in found.missing)]
    shown = signed[:_UNLIKE] or ["the same lines in other places"]
    return [*shown, *filter(None, [more(len(signed) - _UNLIKE, "line")])]


_UNLIKE: Final = 20  # lines


def reasons(group: Group) -> Iterator[tuple[str, str]]:
    """What may come of a group's change, and why, by servers of it: the first reasons for each, and how many more."""
    reinstalls, becomes_unknown = map(reason, group.reinstalls), map(unknown, group.unknown)
    for what, found in (("may be reinstalled", [*reinstalls]), ("becomes unknown", [*becomes_unknown])):
        yield from ((what, each) for each in found[:_REASONS])
        if left := more(len(found) - _REASONS, "reason"):
            yield what, left


_REASONS: Final = 10  # that are shown; each server of a group may have one of its own


def access(bmc: BmcAccess | None) -> str | None:
    """Where credentials go, and who proves to be the BMC there."""
    if bmc is None:
        return None
    encrypted = bmc.address.lower().startswith("https:")
    how = ", unverified" if not bmc.verify else ", by an authority of the repository" if bmc.ca is not None else ""
    one = f", with the certificate {bmc.fingerprint}" if bmc.fingerprint is not None else ""
    return f"{bmc.credentials} at {bmc.address}{how + one if encrypted else ', unencrypted'}"


def credentials(changes: Iterable[BmcChange]) -> list[str]:
    """A line for each server whose BMC's credentials go elsewhere than before."""
    lines = []
    for each in changes:
        old, new = access(each.old), access(each.new)
        if new is not None and new != old:
            lines.append(f"{each.server}: {f'{old} {ARROW} ' if old is not None else ''}{new}")
    return lines


def reason(asked: Reinstall) -> str:
    """Why a server can ask for a disk-writing boot that it could not ask for before."""
    where = f"Maintenance/{asked.maintenance}" if asked.maintenance else ""
    if asked.why is Why.MAINTENANCE and asked.old is None:
        return f"{where} is new: {asked.new}"
    if asked.why is Why.WRITES_DISK:
        return f"{asked.new} writes disks, {asked.old or 'the local disk'} did not"
    words = {
        "where": where or "its policy",
        "boots": f"{where} boots" if where else "it boots",
        "why": asked.why,
        "old": asked.old or "(none)",
        "new": asked.new or "(none)",
    }
    return _WORDS_OF_REASONS.get(asked.why, f"{{why}} {{old}} {ARROW} {{new}}").format(**words)


_IDENTITY: Final = "{new} was the {why} of Server/{old}"
_WORDS_OF_REASONS: Final[Mapping[Why, str]] = {
    Why.MAINTENANCE: f"{{where}}: {{old}} {ARROW} {{new}}",
    Why.UNCOVERED: "{where} is no longer behind Maintenance/{old}",
    Why.MAC: "{new} was a MAC address of Server/{old}",
    Why.SERIAL: "{new} was the serial number of Server/{old}",
    Why.ADDRESS: "{new} was an address of Server/{old}",
    **dict.fromkeys((Why.UUID, Why.NAME, Why.NID), _IDENTITY),
    Why.CLAIM: "{boots} BootImage/{new}, which claims for the first time to write no disk",
    Why.CLAIM_OF_BOOT: "{boots} BootImage/{new}, which claims to write no disk, with arguments, scripts, templates or "
    "a base URL that no server was offered with it",
    Why.STOPPED: "{where} is stopped no longer",
}


def switched(change: ServerChange) -> Iterator[str]:
    """By which maintenances a machine can be reset that could not be before, and how many of them at a time."""
    if change.new is None:
        return
    names = resets(change.old, change.new)
    for each in change.new.maintenances:
        if each.name in names:
            per = f" of each {each.max_unavailable_per}" if each.max_unavailable_per is not None else ""
            yield f"Maintenance/{each.name}: {each.power}, {each.max_unavailable} at a time{per}"


def unknown(found: BecomesUnknown) -> str:
    """Why it becomes unknown whether a server is provisioned, and what makes it known."""
    return _WORDS_OF_UNKNOWN[found.since].format(found.what)


_WORDS_OF_UNKNOWN: Final[Mapping[Since, str]] = {
    Since.CAME: "it comes with provision {0}, so it may be installed already: come with 1 to be installed, or say what "
    "it is: gitboot records set",
    Since.REPLACES: "it replaces {0}, which no server is: it is installed only if the instance has a record of that "
    "with a lower number",
    Since.BOARD: "its UUID was {0}: say replaces: {0}, and raise provision to install it",
    Since.NOT_RAISED: "it replaces another board at provision {0}: raise it to install the machine",
    Since.MOVED: "it comes to the site {0}, whose instance knows nothing of it: gitboot records hand-over and "
    "take-over, or say what it is: gitboot records set",
    Since.OVERWRITTEN: "Maintenance/{0} writes its disks: raise provision to install it again afterwards",
}


def when(effect: Effect) -> str:
    """When a change takes effect."""
    if effect.when is not When.WINDOW:
        return effect.when
    if effect.start is None and effect.end is None:
        return f"as long as Maintenance/{effect.maintenance} stands in Git"
    start, end = (format_instant(each) if each else "-" for each in (effect.start, effect.end))
    return f"in Maintenance/{effect.maintenance}, [{start}, {end})"


def trip(tripped: Trip) -> str:
    """What a guard counted, and what it allows."""
    if (words := _WORDS_OF_TRIPS.get(tripped.guard)) is not None:
        return words.format(limit=tripped.limit)
    number = share(tripped.number, tripped.of) if tripped.percent and tripped.of else f"{tripped.number:,}"
    of = f" of {tripped.of:,}" if tripped.of is not None else ""
    where = "" if tripped.area == "all" else f" in {tripped.area}"
    return f"{tripped.what}{where}: {number}{of}; the limit is {tripped.limit}{' %' if tripped.percent else ''}"


_WORDS_OF_TRIPS: Final[Mapping[Guard, str]] = {
    Guard.ALLOW_EMPTY: "no server is left",
    Guard.ALLOW_REWIND: "the commit does not descend from the accepted one",
    Guard.MAX_UNKNOWN_CHANGES: "what unknown machines boot changes; the limit is {limit}",
}


def counts(changes: Changes) -> str:
    """How many servers, images and overrides change, on one line."""
    renamed = sum(each.renamed for each in changes.servers)
    changed = len(changes.having(Fate.EDITED))
    parts = [
        f"{count(changed, 'server')} changed" + (f" ({renamed:,} renamed)" if renamed else ""),
        f"{len(changes.having(Fate.ADDED)):,} added",
        f"{len(changes.having(Fate.REMOVED)):,} removed",
        f"{changes.unchanged:,} unchanged",
    ]
    for fate in Fate:
        if number := sum(image.fate is fate for image in changes.images):
            parts.append(f"{count(number, 'image')} {fate}")
    if overrides := len(changes.of(Risk.OVERRIDE_ONLY)):
        parts.append(f"{count(overrides, 'override')} alone")
    if changes.access:
        parts.insert(0, "who may fetch changes for every machine")
    return " · ".join(parts)


def who_may_fetch(changed: AccessChange) -> str:
    """One setting of who may fetch, before and after."""

    def clients(found: list[str] | bool | str) -> str:
        if isinstance(found, bool):
            return str(found).lower()
        if found:
            return value(found if isinstance(found, str) else ", ".join(found))
        return "every client" if changed.field.endswith(".clients") else "(absent)"

    effect = "more clients can fetch" if changed.widens else "fewer clients can fetch"
    if changed.widens and changed.field == ONE_TIME_BOOTS:
        effect += _RISK_OF_COPIES
    return f"{changed.field}: {clients(changed.old)} {ARROW} {clients(changed.new)}: {effect}"


# What a log proves: `gitboot.fetchlog.log_entries`.
_RISK_OF_COPIES: Final = (
    ", again and again: a copy serves an install boot until gitboot has read the copy's log, and a loader that sends "
    "neither its name (User-Agent) nor uuid and serial leaves no evidence in that log"
)


def claim(image: str, place: tuple[str, int, int], writer: str | None) -> str:
    """Who declared that an image writes no disk, and where; ``writer`` None: it is not committed."""
    path, line, _ = place
    written = f"written by {writer}" if writer is not None else "not committed yet"
    return f"BootImage/{image} claims for the first time to write no disk: {path}:{line}, {written}"


# Groups


def title(group: Group) -> str:
    """Cause and effect in one sentence: ImageStream/flatcar-stable changes 312 servers."""
    fate, number = group.servers[0].fate, len(group.servers)
    if fate is not Fate.EDITED:
        return f"{count(number, 'server')} {'is' if number == 1 else 'are'} {fate}"
    causes = some([str(cause) for cause in group.causes], 3)
    several = len(group.causes) > 1 or any(cause.number > 1 for cause in group.causes)
    return f"{causes or 'The fleet'} {'change' if several else 'changes'} {count(number, 'server')}"


def shared_title(causes: Sequence[ChangeCause], what: str) -> str:
    """The same for what no server is the only one to boot."""
    names = some([str(each) for each in causes], 3)
    return f"{names} {'changes' if len(causes) == 1 else 'change'} {what}" if names else f"{what} changes".capitalize()


def cause(found: ChangeCause) -> str:
    """What was done to a document: its fields, with their values where they are short and no one's secret."""
    if found.fate is not Fate.EDITED or not found.fields:
        return "renamed" if found.fate is Fate.EDITED and found.id.kind == "Server" else found.fate
    # Only a value that is a name, a number or an instant is shown: free text may hold anything.
    shown = [
        change(field) if _SHORT.search(field.dotted) and not _FREE_TEXT.search(field.dotted) else field.dotted
        for field in found.fields
    ]
    return " ".join(filter(None, ("; ".join(shown[:4]), more(len(shown) - 4, "field"))))


_SHORT: Final = re.compile(
    r"\.(?:boot|current|diskBoot|httpBoot|image|inherits|lifecycle|mac|method|networkBoot|override|percent|policy"
    r"|power|priority|profile|provision|role|run|select|selector|site|stream|uuid|version|window|writesDisk)\b"
)
_FREE_TEXT: Final = re.compile(r"\.(?:annotations|kernelArguments|reason|vars)\b")


def effects(groups: Iterable[Group]) -> list[tuple[str, int]]:
    """How many servers are affected when, the soonest first."""
    found: Counter[Effect] = Counter()
    for group in groups:
        for effect in group.effects:
            found[effect] += len(group.servers)
    order = list(When)
    ordered = sorted(found, key=lambda each: (order.index(each.when), when(each)))
    return [(when(effect), found[effect]) for effect in ordered]


# Blast radius


def area_table(areas: Iterable[Area], limits: Limits) -> Iterator[tuple[str, ...]]:
    """A header, and the numbers of the whole fleet and of each group in which something happens.

    An exclamation mark is a limit exceeded.
    """
    yield (
        "GROUP",
        "SERVERS",
        f"CHANGED (max {limits.max_update_percent} %)",
        "REDUCED",
        f"REMOVED (max {limits.max_delete_percent} %)",
        "ADDED",
        "REINSTALLS",
    )
    for area in areas:
        if area.label is None or area.changed or area.less or area.removed or area.added:
            yield (
                str(area),
                f"{area.size:,}",
                _measured(area.changed, area.size, limits.max_update_percent, limits.max_small_group),
                f"{area.less:,}",
                _measured(area.removed, area.size, limits.max_delete_percent, limits.max_small_group),
                f"{area.added:,}",
                f"{area.reinstalled:,}",
            )


def _measured(number: int, size: int, percent: int, small: int) -> str:
    if size < SMALL:
        mark = "!" if number > small else ""
        return f"{number}{mark} (max {small})" if number else "0"
    return share(number, size) + ("!" if number * 100 > percent * size else "")
