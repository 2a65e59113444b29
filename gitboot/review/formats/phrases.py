"""Phrases in reviews that all formats share."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gitboot.fleet.identities import BmcAccess
from gitboot.jsonio import format_instant
from gitboot.model.boot_image import DigestOrigin, Provenance
from gitboot.resolve.explanation import describe_origin
from gitboot.review.change_groups import ChangeCause, Group, Outlier
from gitboot.review.decision_changes import BmcChange, Changes, ServerChange, UnknownCause, UnknownReason
from gitboot.review.document_changes import (
    ONE_TIME_BOOTS,
    AccessChange,
    ChangeKind,
    FieldChange,
    Location,
)
from gitboot.review.guards import MIN_SIZE_FOR_PERCENT, Area, ExceededLimit, Guard, Limits
from gitboot.review.images import (
    FileClaim,
    ImageProvenance,
    ProvenanceChanges,
    SourceChange,
    StreamRuleChange,
)
from gitboot.review.reinstalls import Reinstall, ReinstallReason, find_resets
from gitboot.review.risks import Effect, EffectTime, Risk
from gitboot.text import format_count, format_names, format_omitted

ARROW: Final = "\N{RIGHTWARDS ARROW}"
_MAX_VALUE_CHARS: Final = 160
_MAX_OUTLIER_LINES: Final = 20
# the maximum number of reasons for each consequence; each server in a group may have its own reason
_MAX_REASONS: Final = 10
_MAX_FIELDS: Final = 4  # the maximum number of changed fields of a document

# Values


def format_share(number: int, total: int) -> str:
    """Format a count with its percentage. If the count is above 0, the percentage is never shown as 0 %."""
    return f"{number:,} ({_format_percent(number, total)})" if number and total else f"{number:,}"


def _format_percent(number: int, total: int) -> str:
    percent = number * 100 / total
    return f"{'<1' if percent < 1 else f'{percent:.0f}'} %"


def format_value(value: Any) -> str:
    """Format a value on one line."""
    if value is None:
        return "(absent)"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[: _MAX_VALUE_CHARS - 1]}…"


def format_change(field: FieldChange) -> str:
    """Format the old and the new value of a field, or the added and removed items of a list."""
    if isinstance(field.old, list) and isinstance(field.new, list):
        removed = [f"-{format_value(item)}" for item in field.old if item not in field.new]
        added = [f"+{format_value(item)}" for item in field.new if item not in field.old]
        return f"{field.dotted_path}: {' '.join([*removed, *added]) or 'in a different order'}"
    if field.old == field.new:
        return f"{field.dotted_path}: changed"
    return f"{field.dotted_path}: {format_value(field.old)} {ARROW} {format_value(field.new)}"


# Groups


def describe_diff(group: Group) -> str:
    """Describe which server a rendered diff belongs to, and which values differ for the other servers in the group."""
    if len(group.servers) == 1:
        return f"diff for {group.names[0]}"
    values = sorted(group.own, key=lambda name: name != "name")  # the name of the server comes first
    if len(values) > 2:
        values = [", ".join(values[:-1]), values[-1]]
    own = f" with their own {' and '.join(values)}" if values else ""
    return f"diff for {group.names[0]}; the other servers have the same diff{own}"


def format_outlier(outlier: Outlier) -> list[str]:
    """List the diff lines in which a group differs from a larger group with the same causes."""
    lines = [f"only here: {line}" for line in outlier.lines]
    lines += (f"missing here: {line}" for line in outlier.missing)
    if len(lines) > _MAX_OUTLIER_LINES:
        return [*lines[:_MAX_OUTLIER_LINES], format_omitted(len(lines) - _MAX_OUTLIER_LINES, "line")]
    return lines or ["the same lines, but in different positions"]


def list_reasons(group: Group) -> Iterator[tuple[str, str]]:
    """Yield each consequence of a group's change, with the first few reasons and the number of other reasons."""
    reinstalls = [format_reinstall(each) for each in group.reinstalls if each.why is not ReinstallReason.RECORD]
    unknown_reasons = list_unknown_reasons(group)
    for consequence, reasons in (("may be reinstalled", reinstalls), ("state becomes unknown", unknown_reasons)):
        yield from ((consequence, reason) for reason in reasons[:_MAX_REASONS])
        if omitted := format_omitted(len(reasons) - _MAX_REASONS, "reason"):
            yield consequence, omitted


# Credentials of BMCs


def format_bmc_access(bmc: BmcAccess | None) -> str | None:
    """Describe a BMC's address, its credentials, and how gitboot checks its certificate."""
    if bmc is None:
        return None
    parts = [f"{bmc.credentials} at {bmc.address}"]
    if not bmc.address.lower().startswith("https:"):
        return ", ".join([*parts, "unencrypted"])
    if not bmc.verify or bmc.ca is not None:
        parts.append("verified with a CA from the repository" if bmc.verify else "unverified")
    if bmc.fingerprint is not None:
        parts.append(f"with the certificate {bmc.fingerprint}")
    return ", ".join(parts)


def list_credentials(changes: Iterable[BmcChange]) -> list[str]:
    """Return a line for each server whose BMC credentials would be sent to a new recipient."""
    lines = []
    for change in changes:
        old, new = format_bmc_access(change.old), format_bmc_access(change.new)
        if new is not None and new != old:
            lines.append(f"{change.server}: {f'{old} {ARROW} ' if old is not None else ''}{new}")
    return lines


# Reinstallations, resets and effects


_REINSTALL_TEXTS: Final[Mapping[ReinstallReason, str]] = {
    ReinstallReason.MAINTENANCE: f"{{source}}: {{old}} {ARROW} {{new}}",
    ReinstallReason.UNCOVERED: "Maintenance/{old} no longer overrides the boot from {source}",
    ReinstallReason.MAC: "{new} was a MAC address of Server/{old}",
    ReinstallReason.SERIAL: "{new} was the serial number of Server/{old}",
    ReinstallReason.ADDRESS: "{new} was an address of Server/{old}",
    ReinstallReason.UUID: "{new} was the UUID of Server/{old}",
    ReinstallReason.NAME: "{new} was the name of Server/{old}",
    ReinstallReason.NID: "{new} was the nid of Server/{old}",
    ReinstallReason.CLAIM: "{booter} boots BootImage/{new}, which claims for the first time not to write to disk",
    ReinstallReason.CLAIM_OF_BOOT: (
        "{booter} boots BootImage/{new}, which claims not to write to disk, but the arguments, scripts, templates or "
        "base URL are new for this image"
    ),
    ReinstallReason.RECORD: (
        "BootPolicy/{new} installs the server only if the instance's record shows a different image. Without a record, "
        "gitboot regards the server as installed"
    ),
    ReinstallReason.STOPPED: "the Fleet no longer stops boots from {source}",
}


def format_reinstall(reinstall: Reinstall) -> str:
    """Describe why a commit can cause a server to be reinstalled."""
    maintenance = f"Maintenance/{reinstall.maintenance}" if reinstall.maintenance else ""
    if reinstall.why is ReinstallReason.MAINTENANCE and reinstall.old is None:
        return f"{maintenance} is new: {reinstall.new}"
    if reinstall.why is ReinstallReason.WRITES_DISK:
        before = f"{reinstall.old} did not" if reinstall.old else "the server booted its local disk before"
        return f"{reinstall.new} writes disks, but {before}"
    words = {
        "source": maintenance or "the server's policy",
        "booter": maintenance or "the server",
        "why": reinstall.why,
        "old": reinstall.old or "(none)",
        "new": reinstall.new or "(none)",
    }
    return _REINSTALL_TEXTS.get(reinstall.why, f"{{why}} {{old}} {ARROW} {{new}}").format(**words)


def describe_resets(change: ServerChange) -> Iterator[str]:
    """Yield a text for each maintenance that can now reset the machine, with the number of machines down at a time."""
    if change.new is None:
        return
    names = find_resets(change.old, change.new)
    for maintenance in change.new.maintenances:
        if maintenance.name in names:
            per = f" of each {maintenance.max_unavailable_per}" if maintenance.max_unavailable_per is not None else ""
            yield f"Maintenance/{maintenance.name}: {maintenance.power}, {maintenance.max_unavailable} at a time{per}"


_UNKNOWN_TEXTS: Final[Mapping[UnknownCause, str]] = {
    UnknownCause.NEW_SERVER: (
        "the server is new but has provision {0}, so it may be installed already. Set provision to 1 to install the "
        "server, or record its state with gitboot records set"
    ),
    UnknownCause.REPLACES: (
        "the server replaces the UUID {0}, which no Server document contains. gitboot installs the server only if the "
        "instance has a record of this UUID with a lower provision number"
    ),
    UnknownCause.BOARD: "the server's UUID was {0}. To install the server, set replaces: {0} and raise provision",
    UnknownCause.NOT_RAISED: (
        "the server replaces another board, but provision {0} is not higher than before. Raise provision to install "
        "the server"
    ),
    UnknownCause.MOVED: (
        "the server moves to the site {0}, whose instance has no record of the server. Run gitboot records hand-over "
        "and take-over, or record the server's state with gitboot records set"
    ),
    UnknownCause.OVERWRITTEN: (
        "Maintenance/{0} writes to the server's disks. To install the server afterwards, raise provision"
    ),
}


def list_unknown_reasons(group: Group) -> list[str]:
    """List the reasons why gitboot cannot determine whether the servers in a group are provisioned."""
    record_reasons = (format_reinstall(each) for each in group.reinstalls if each.why is ReinstallReason.RECORD)
    return [*record_reasons, *map(format_unknown_reason, group.unknown)]


def format_unknown_reason(reason: UnknownReason) -> str:
    """Describe the reason why gitboot cannot determine whether a server is provisioned, and the next step."""
    return _UNKNOWN_TEXTS[reason.cause].format(reason.detail)


def format_effect(effect: Effect) -> str:
    """Describe when a change takes effect."""
    if effect.when is not EffectTime.WINDOW:
        return effect.when
    if effect.start is None and effect.end is None:
        return f"in Maintenance/{effect.maintenance}, until it is removed from Git"
    start, end = (format_instant(each) if each else "-" for each in (effect.start, effect.end))
    return f"in Maintenance/{effect.maintenance}, [{start}, {end})"


# Exceeded limits


# sentences without a number, by `ExceededLimit.what`
_SENTENCES: Final[Mapping[str, str]] = {
    "servers left": "no server is left",
    "commits taken back": "the commit does not descend from the accepted one",
    "accepted commits without an evaluation": "the accepted commit cannot be evaluated",
    "changes to the boot of unknown machines": "the boot of unknown machines changes; the limit is {limit}",
}


def format_excess(excess: ExceededLimit) -> str:
    """Describe the number that a guard counted, and the limit that it exceeds."""
    if (words := _SENTENCES.get(excess.what)) is not None:
        return words.format(limit=excess.limit)
    number = format_share(excess.number, excess.of) if excess.percent and excess.of else f"{excess.number:,}"
    of = f" of {excess.of:,}" if excess.of is not None else ""
    area = "" if excess.area == "all" else f" in {excess.area}"
    return f"{excess.what}{area}: {number}{of}; the limit is {excess.limit}{' %' if excess.percent else ''}"


# clauses about a commit, by `ExceededLimit.what`
_CLAUSES: Final[Mapping[str, str]] = {
    "commits taken back": "the commit does not descend from the accepted commit",
    "accepted commits without an evaluation": (
        "gitboot cannot evaluate the accepted commit, so it cannot show which servers change"
    ),
    "instances that may no longer act": "the commit takes servers away from the instance that manages them now",
    "BMCs that never received these credentials": (
        "the commit sends credentials to {BMC} that never received these credentials"
    ),
    "first boots": "the commit gives {server} a first boot",
    "servers that may be reset": "the commit could reset {server}",
    "servers that may be reinstalled": "the commit could reinstall {server}",
    "servers that may boot an image that claims for the first time not to write to disk": (
        "{server} could boot an image that claims for the first time not to write to disk"
    ),
    "changes to the boot of unknown machines": "the commit changes the boot of unknown machines",
    "settings that let more clients fetch files": "the commit changes {setting} so that more clients can fetch files",
    "edited images in use": "the commit edits {image} that servers use",
    "servers left": "the commit leaves no server in the fleet",
    "servers removed": "the commit removes {server}",
    "servers changed": "the commit changes {server}",
}
_GUARDS_WITHOUT_NUMBER: Final = frozenset({Guard.ALLOW_EMPTY, Guard.ALLOW_REWIND, Guard.ALLOW_TAKEOVER})


def format_limit_clause(excess: ExceededLimit) -> str:
    """Return a clause for an exceeded limit, such as "it removes 26 servers (maxDeletes allows 25)"."""
    limit = f"{excess.limit}{' %' if excess.percent else ''}"
    guard = f"guard {excess.guard}" if excess.guard in _GUARDS_WITHOUT_NUMBER else f"{excess.guard} allows {limit}"
    number = f"{excess.number:,}" if excess.of is None else f"{excess.number:,} of {excess.of:,}"
    plural = "" if (excess.of or excess.number) == 1 else "s"
    nouns = {noun: f"{number} {noun}{plural}" for noun in ("BMC", "image", "server", "setting")}
    text = _CLAUSES[excess.what].format(**nouns)
    area = "" if excess.area == "all" else f" in {excess.area}"
    share = f", {_format_percent(excess.number, excess.of)}" if excess.percent and excess.of else ""
    return f"{text}{area}{share} ({guard})"


# Numbers and settings


def format_counts(changes: Changes) -> str:
    """Summarize the numbers of changed servers, images and overrides on one line."""
    renamed = sum(each.renamed for each in changes.servers)
    edited = changes.filter_by_fate(ChangeKind.EDITED)
    harmless = sum(Risk.HARMLESS in each.risks for each in edited)
    notes = [f"{number:,} {noun}" for number, noun in ((harmless, "harmless"), (renamed, "renamed")) if number]
    parts = [
        f"{format_count(len(edited), 'server')} changed" + (f" ({', '.join(notes)})" if notes else ""),
        f"{len(changes.filter_by_fate(ChangeKind.ADDED)):,} added",
        f"{len(changes.filter_by_fate(ChangeKind.REMOVED)):,} removed",
        f"{changes.unchanged:,} unchanged",
    ]
    fates = Counter(image.fate for image in changes.images)
    parts += (f"{format_count(fates[fate], 'image')} {fate}" for fate in ChangeKind if fate in fates)
    if overrides := len(changes.filter_by_risk(Risk.OVERRIDE_ONLY)):
        parts.append(f"override only: {format_count(overrides, 'server')}")
    if changes.access:
        parts.insert(0, "access changes for every machine")
    return " · ".join(parts)


# For the meaning of a log entry, see `gitboot.fetchlog.log_entries`.
_RISK_OF_COPIES: Final = (
    " repeatedly; a copy serves an install boot until gitboot has read the log of the copy, and a loader that sends "
    "neither its name (User-Agent) nor uuid and serial leaves no evidence in that log"
)


def format_access_change(change: AccessChange) -> str:
    """Describe the old and the new value of a setting that controls which clients may fetch files."""

    def format_setting(setting: list[str] | bool | str) -> str:
        if isinstance(setting, bool):
            return str(setting).lower()
        if setting:
            return format_value(setting if isinstance(setting, str) else ", ".join(setting))
        return "every client" if change.field.endswith(".clients") else "(absent)"

    effect = "more clients can fetch files" if change.widens else "fewer clients can fetch files"
    if change.widens and change.field == ONE_TIME_BOOTS:
        effect += _RISK_OF_COPIES
    return f"{change.field}: {format_setting(change.old)} {ARROW} {format_setting(change.new)} ({effect})"


def format_claim(image: str, place: Location, writer: str | None) -> str:
    """Describe where an image claims that it does not write disks, and who wrote the claim.

    ``writer`` is None if the claim is not committed.
    """
    path, line, _ = place
    author = f"written by {writer}" if writer is not None else "not committed yet"
    return f"BootImage/{image} claims for the first time not to write to disk ({path}:{line}, {author})"


# Provenance of images


def format_origin(provenance: Provenance | None) -> str:
    """Describe the origin of a digest, with the URL of the checksum list or signature if there is one."""
    origin = describe_origin(provenance)
    return f"{origin} ({provenance.url})" if provenance is not None and provenance.url is not None else origin


def format_file_claim(claim: FileClaim) -> str:
    """Describe the provenance that the image claims for a digest, and the result of the signature check."""
    claimed = claim.claimed
    text = f"claims: {format_origin(claimed)}" if claimed is not None else format_origin(None)
    claims_signature = claimed is not None and claimed.digest is DigestOrigin.SIGNED
    if claims_signature and not claim.names_signature:
        text += ", but the image does not have a signature"
    if claim.before != claimed:
        text += f"; before: {format_origin(claim.before)}"
    if (signer := claim.verified_by) is not None:
        is_same_key = claimed is not None and _normalize_key(claimed.key or "") == _normalize_key(signer.key)
        return f"verified: signed by {signer}" if is_same_key else f"verified: signed by {signer}; {text}"
    if claim.result is not None and (claim.result.fault is not None or claims_signature):
        fault = f"the file is {claim.result.fault}" if claim.result.fault is not None else "the file has no signature"
        return f"not verified: {fault}; {text}"
    return text


def _normalize_key(key: str) -> str:
    """Return a normalized fingerprint, so that fingerprints can be compared.

    People may write fingerprints with spaces between groups of digits, and in upper or lower case.
    """
    return "".join(key.split()).upper().removeprefix("0X")


def list_image_claims(image: ImageProvenance) -> list[tuple[str, str]]:
    """Return the provenance claims of an image, each with the files that the claim applies to."""
    files_by_text: dict[str, list[str]] = {}
    for claim in image.files:
        files_by_text.setdefault(format_file_claim(claim), []).append(claim.file)
    return [(format_names(files), text) for text, files in files_by_text.items()]


def has_unverified_claims(image: ImageProvenance) -> bool:
    """Return whether an image claims a signature that gitboot has not verified."""
    return any(
        each.verified_by is None and each.claimed is not None and each.claimed.digest is DigestOrigin.SIGNED
        for each in image.files
    )


CLAIMS_NOTE: Final = (
    "A claim is a statement in the document. To verify claims, run `gitboot artifacts signatures -o json=FILE`, and "
    "pass FILE to `gitboot diff --verified`."
)


def format_rule_change(rule: StreamRuleChange) -> str:
    """Format the old and the new value of a stream's rule."""
    return format_change(rule.change._replace(old=_join_rules(rule.change.old), new=_join_rules(rule.change.new)))


def list_provenance_changes(provenance: ProvenanceChanges) -> Iterator[tuple[str, Location | None, str]]:
    """Yield each changed stream rule and image source, with its location and a description of the change."""
    for rule in provenance.rules:
        yield f"ImageStream/{rule.stream}", rule.place, format_rule_change(rule)
    for source in provenance.sources:
        yield f"ImageSource/{source.source}", source.place, format_source_change(source)


def _join_rules(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return ", ".join(f"{name}: {format_value(each)}" for name, each in value.items() if each != [])


def format_source_change(source: SourceChange) -> str:
    """Describe the changed fields of an image source, or whether the source was added or removed."""
    if source.fields:
        return _join_fields(list(map(format_change, source.fields)))
    return f"{source.fate} in place of the built-in source" if source.replaces_built_in else source.fate


def _join_fields(texts: Sequence[str]) -> str:
    """Join the texts of the first few fields, and add the number of the other fields."""
    shown, omitted = "; ".join(texts[:_MAX_FIELDS]), format_omitted(len(texts) - _MAX_FIELDS, "field")
    return f"{shown} {omitted}" if omitted else shown


class ProvenanceRisk(NamedTuple):
    """A way in which images may newly boot without the signatures that a stream requires."""

    stream: str
    reason: str
    place: Location | None  # None: the stream was removed


def list_provenance_risks(provenance: ProvenanceChanges) -> Iterator[ProvenanceRisk]:
    """Yield the ways in which images may newly boot without the signatures that a stream requires."""
    for rule in provenance.lowered:
        reason = f"ImageStream/{rule.stream} no longer requires signed images: {format_rule_change(rule)}"
        yield ProvenanceRisk(rule.stream, reason, rule.place)
    for left in provenance.left:
        boots = "boots" if len(left.servers) == 1 else "boot"
        reason = f"{format_names(left.servers, 3)} {boots} BootProfile/{left.profile}"
        reason += f" without the signatures that ImageStream/{left.stream} requires"
        yield ProvenanceRisk(left.stream, reason, left.place)
    for boot, place in provenance.uncovered:
        by = f" by BootProfile/{boot.profile}" if boot.document.kind != "BootProfile" else ""
        reason = (
            f"{boot.document} boots BootImage/{boot.image}{by} without ImageStream/{boot.stream}, which requires "
            "signatures for this image only while the image is in the stream"
        )
        yield ProvenanceRisk(boot.stream, reason, place)


# Titles and causes


def format_title(group: Group) -> str:
    """Describe a group's cause and effect in one sentence, such as "ImageStream/flatcar-stable changes 312 servers"."""
    fate, number = group.servers[0].fate, len(group.servers)
    if fate is not ChangeKind.EDITED:
        return f"{format_count(number, 'server')} {'is' if number == 1 else 'are'} {fate}"
    causes = format_names([str(cause) for cause in group.causes], 3)
    several = len(group.causes) > 1 or any(cause.number > 1 for cause in group.causes)
    return f"{causes or 'The fleet'} {'change' if several else 'changes'} {format_count(number, 'server')}"


def format_shared_title(causes: Sequence[ChangeCause], subject: str) -> str:
    """Describe in one sentence the cause and effect of a change that affects unknown machines or all machines."""
    names = format_names([str(each) for each in causes], 3)
    return (
        f"{names} {'changes' if len(causes) == 1 else 'change'} {subject}"
        if names
        else f"{subject} changes".capitalize()
    )


_SHORT: Final = re.compile(
    r"\.(?:boot|current|diskBoot|httpBoot|image|inherits|lifecycle|mac|method|networkBoot|override|percent|policy"
    r"|power|priority|profile|provision|role|run|select|selector|site|stream|uuid|version|window|writesDisk)\b"
)
_FREE_TEXT: Final = re.compile(r"\.(?:annotations|kernelArguments|reason|vars)\b")


def format_cause(cause: ChangeCause) -> str:
    """Describe the changed fields of a document. Show a value only if it is short and cannot be a secret."""
    if cause.fate is not ChangeKind.EDITED or not cause.fields:
        return "renamed" if cause.fate is ChangeKind.EDITED and cause.id.kind == "Server" else cause.fate
    # Show only names, numbers and times, because free text may contain secrets.
    return _join_fields(
        [
            format_change(field)
            if _SHORT.search(field.dotted_path) and not _FREE_TEXT.search(field.dotted_path)
            else field.dotted_path
            for field in cause.fields
        ]
    )


def count_effects(groups: Iterable[Group]) -> list[tuple[str, int]]:
    """Return each time at which changes take effect, the soonest first, with the number of affected servers."""
    numbers: Counter[Effect] = Counter()
    for group in groups:
        for effect in group.effects:
            numbers[effect] += len(group.servers)
    order = list(EffectTime)
    ordered = sorted(numbers, key=lambda effect: (order.index(effect.when), format_effect(effect)))
    return [(format_effect(effect), numbers[effect]) for effect in ordered]


# Blast radius


def build_area_table(areas: Iterable[Area], limits: Limits) -> Iterator[tuple[str, ...]]:
    """Yield a header row, a row for the whole fleet, and a row for each group of servers with changes.

    An exclamation mark shows that a limit is exceeded.
    """
    yield (
        "GROUP",
        "SERVERS",
        f"CHANGED (max {limits.max_update_percent} %)",
        "HARMLESS",
        f"REMOVED (max {limits.max_delete_percent} %)",
        "ADDED",
        "REINSTALLS",
    )
    for area in areas:
        if area.label is None or area.changed or area.less or area.removed or area.added:
            yield (
                str(area),
                f"{area.size:,}",
                _format_measure(area.changed, area.size, limits.max_update_percent, limits.max_small_group),
                f"{area.less:,}",
                _format_measure(area.removed, area.size, limits.max_delete_percent, limits.max_small_group),
                f"{area.added:,}",
                f"{area.reinstalled:,}",
            )


HARMLESS_NOTE: Final = "Guards ignore harmless changes, because these changes do not offer a new boot to any server."


def _format_measure(number: int, size: int, percent: int, max_small_group: int) -> str:
    if size < MIN_SIZE_FOR_PERCENT:
        mark = "!" if number > max_small_group else ""
        return f"{number}{mark} (max {max_small_group})" if number else "0"
    return format_share(number, size) + ("!" if number * 100 > percent * size else "")
