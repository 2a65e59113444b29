"""Reviews of commits, with the verdict, changes, groups, problems and next steps that gitboot shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.revision import Message, ReinstallsNeed, Signer
from gitboot.problems import Problem, Severity
from gitboot.review.acknowledgements import (
    ANY_LINE,
    AckRules,
    IgnoredLine,
    find_acknowledgements,
    format_ack_lines,
    format_approval,
    list_ack_guards,
)
from gitboot.review.change_groups import CauseFinder, ChangeCause, Commit, Group, build_groups, describe_causes
from gitboot.review.commit_path import HeldStep, ReviewedCommit, judge_by_steps, tighten_limits
from gitboot.review.decision_changes import Changes, ReviewedRevision, compare_decisions
from gitboot.review.document_changes import (
    ChangeKind,
    DocumentChange,
    FieldChange,
    Location,
    affects_all_files,
    compare_fields,
    locate_field,
)
from gitboot.review.formats import phrases
from gitboot.review.guards import Guard, Limits, Verdict, judge
from gitboot.review.images import ProvenanceChanges, SignatureResults, compare_provenance
from gitboot.review.reinstalls import RAISED_NUMBERS, may_be_already_installed
from gitboot.review.rendered_diffs import RenderedDiff, diff_shared_files, diff_unknown_boots
from gitboot.review.risks import DANGEROUS, Risk
from gitboot.text import format_count, format_names


class ReviewOutcome(StrEnum):
    """The overall result of a review."""

    UNCHANGED = "unchanged"
    FINE = "fine"
    HELD = "held"
    INVALID = "invalid"


class Danger(NamedTuple):
    """The servers or machines that a dangerous change affects, and the reasons for the danger."""

    risk: Risk
    names: tuple[str, ...]
    reasons: tuple[str, ...]
    number: str  # the number of servers, with a colon; "" if the names are not names of servers


class CommonChange(Struct, frozen=True, kw_only=True):
    """A change that affects unknown machines or all machines, with its causes."""

    title: str
    causes: tuple[ChangeCause, ...]
    fields: tuple[FieldChange, ...]
    rendered: tuple[RenderedDiff, ...]


class ImageClaim(Struct, frozen=True, kw_only=True):
    """An image that newly claims not to write disks, and the author of the claim."""

    image: str
    place: Location  # the location of writesDisk in the new commit
    writer: str | None  # the commit and the author of the line; None: the line is not committed


class Review(Struct, frozen=True, kw_only=True):
    """All facts about a commit that gitboot shows to a reviewer, before they are formatted."""

    base: ReviewedRevision
    head: ReviewedRevision
    command: str  # the command that shows this review again
    changes: Changes | None = None  # None if HEAD is invalid
    verdict: Verdict | None = None
    ignored_lines: tuple[IgnoredLine, ...] = ()
    steps: tuple[HeldStep, ...] = ()  # the held commits, if there are several commits, each with its own digest
    groups: tuple[Group, ...] = ()
    unknown: CommonChange | None = None  # the change in the boots of unknown machines; None: there is no change
    shared: CommonChange | None = None  # the change in the files for all machines; None: there is no change
    claims: tuple[ImageClaim, ...] = ()  # claims by image
    provenance: ProvenanceChanges = ProvenanceChanges()
    reinstalls_need: ReinstallsNeed | None = None  # the only way to acknowledge reinstallations
    signers: tuple[tuple[str, Signer], ...] = ()  # commits and the trusted keys that signed them, with --verify

    @property
    def outcome(self) -> ReviewOutcome:
        if self.changes is None or self.verdict is None:
            return ReviewOutcome.INVALID
        if self.verdict.held:
            return ReviewOutcome.HELD
        is_same = self.changes.is_empty and not self.changes.moved_bmcs and not self.provenance.changes_requirement
        return ReviewOutcome.UNCHANGED if is_same else ReviewOutcome.FINE

    @property
    def areas(self) -> list[tuple[str, ...]]:
        """A table with a header and a row for each group of servers.

        The table is empty if there is no change or if HEAD is invalid.
        """
        if self.outcome in (ReviewOutcome.INVALID, ReviewOutcome.UNCHANGED) or not self.changes or not self.verdict:
            return []
        return list(phrases.build_area_table(self.changes.areas, self.verdict.limits))

    @property
    def note_on_harmless_changes(self) -> str | None:
        """An explanation of harmless changes, or None if the table in `areas` shows no harmless changes."""
        areas = self.changes.areas if self.changes is not None and self.areas else ()
        return phrases.HARMLESS_NOTE if any(each.less for each in areas) else None

    def problems(self) -> Iterator[tuple[str, tuple[Problem, ...]]]:
        """Yield the sections of problems, each as a heading and its problems."""
        if self.head.problems:
            yield "Problems", self.head.problems
        if self.base.problems and self.base.decisions is None:
            yield "Problems in the base", self.base.problems

    @property
    def headline(self) -> str:
        """The outcome as a short phrase."""
        match self.outcome:
            case ReviewOutcome.INVALID:
                errors = sum(problem.severity is Severity.ERROR for problem in self.head.problems)
                return f"invalid: {format_count(errors, 'error')}"
            case ReviewOutcome.HELD:
                assert self.verdict is not None  # noqa: S101 - a held review has a verdict
                return f"held by {', '.join(self.verdict.holding_guards)}"
            case ReviewOutcome.UNCHANGED:
                return "unchanged: no decisions change"
        acknowledged = dict.fromkeys(trip.guard for trip in self.verdict.trips) if self.verdict else ()
        return f"fine, {', '.join(acknowledged)} acknowledged" if acknowledged else "fine: no guard holds the changes"

    @property
    def note_on_records(self) -> str | None:
        """A note that an instance's records may lead to a different verdict, or None if records do not matter."""
        if self.changes is None or self.verdict is None or Guard.MAX_REINSTALLS not in self.verdict.holding_guards:
            return None
        changes = self.changes.reinstallable_servers
        if self.changes.disk_claims or not all(may_be_already_installed(each.reinstalls) for each in changes):
            return None
        if any(reason.why in RAISED_NUMBERS for each in changes for reason in each.reinstalls):
            return None
        return "The instance ignores maxReinstalls if its records show that no server will be installed again."

    @property
    def note_on_identities(self) -> str | None:
        """A note about new identities in HEAD that may belong to installed machines, or None if there are none."""
        if self.changes is None or not any(
            each.is_new and not each.is_counted for each in self.changes.gained_identities
        ):
            return None
        return (
            "A comparison of two commits cannot show which machine had a new identity (MAC address, serial number, "
            "UUID, address, name) before BASE. The instance counts a server for maxReinstalls if an installed machine "
            "had the identity."
        )

    @property
    def document_only_changes(self) -> tuple[DocumentChange, ...]:
        """The changed documents that do not affect decisions. All other changed documents appear in groups."""
        if self.changes is None or self.changes.first:
            return ()
        causes = {cause.id for group in self.groups for cause in group.causes}
        causes |= {cause.id for each in (self.unknown, self.shared) if each is not None for cause in each.causes}
        # An instance uses this field to withhold boots.
        causes |= {Id("ImageStream", each.stream) for each in self.provenance.rules if each.is_requirement}
        servers = {change.name for change in self.changes.servers}
        return tuple(
            change
            for key, change in self.changes.documents.items()
            if key not in causes and not (key.kind == "Server" and (key.name in servers or not change.fields))
        )

    @property
    def _unknown_boot(self) -> str:
        """A description of how unknown machines boot in HEAD."""
        decisions = self.head.decisions
        if decisions is None or decisions.unknown is None:
            return "no boot script (404)" if decisions is not None and decisions.unknown_not_found else "the local disk"
        return ", ".join(sorted({f"BootImage/{boot.image}" for boot in decisions.unknown.values()}))

    def find_dangers(self) -> Iterator[Danger]:
        """Yield the dangers, the worst first."""
        if self.changes is None:
            return
        server_names = {change.name for change in self.changes.servers}
        for risk in Risk:
            if risk not in DANGEROUS:
                continue
            names, reasons = self._describe_danger(self.changes, risk)
            if names:
                number = f"{format_count(len(names), 'server')}: " if names[0] in server_names else ""
                yield Danger(risk, names, reasons, number)

    def _describe_danger(self, changes: Changes, risk: Risk) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of what a dangerous change affects, and the reasons. No names: the risk does not exist."""
        groups = [group for group in self.groups if risk in group.risks]
        names = tuple(sorted(name for group in groups for name in group.names))
        reasons: Iterable[str] = ()
        match risk:
            case Risk.REINSTALL:
                claims = [phrases.format_claim(claim.image, claim.place, claim.writer) for claim in self.claims]
                reasons = (*claims, *(phrases.format_reinstall(each) for group in groups for each in group.reinstalls))
                names = names or tuple(f"BootImage/{claim.image}" for claim in self.claims)
            case Risk.ACCESS if changes.access:
                names = ("every machine",)
                reasons = map(phrases.format_access_change, changes.access)
            case Risk.RESET:
                reasons = (
                    text for group in groups for change in group.servers for text in phrases.describe_resets(change)
                )
            case Risk.BECOMES_UNKNOWN:
                reasons = (text for group in groups for text in phrases.list_unknown_reasons(group))
            case Risk.WITHDRAWN if any(group.servers[0].fate is ChangeKind.REMOVED for group in groups):
                reasons = (f"a machine without a document gets the boot of unknown machines: {self._unknown_boot}",)
            case Risk.UNKNOWN_SERVERS if changes.unknown and not changes.first:
                names = ("every unknown machine",)
            case Risk.MUTATED_IMAGE:
                reasons = (f"BootImage/{image.name}" for image in changes.images if image.mutated)
            case Risk.PROVENANCE:
                provenance_risks = list(phrases.list_provenance_risks(self.provenance))
                names = tuple(dict.fromkeys(f"ImageStream/{each.stream}" for each in provenance_risks))
                reasons = [each.reason for each in provenance_risks]
            case Risk.KERNEL_ARGUMENTS:
                fields = (field for group in groups for field in group.fields if "kernelArguments" in field.path)
                reasons = map(phrases.format_change, fields)
        return names, tuple(dict.fromkeys(reasons))

    @property
    def ack_lines(self) -> tuple[str, ...]:
        """The commit message line that acknowledges the commit, or () if no line can acknowledge it."""
        return format_ack_lines(self.verdict, self.reinstalls_need) if self.verdict is not None else ()

    @property
    def ack_guards(self) -> tuple[Guard, ...]:
        """The guards that hold the commit and that `ack_lines` acknowledges."""
        return list_ack_guards(self.verdict, self.reinstalls_need) if self.verdict is not None else ()

    @property
    def shown_digest(self) -> str | None:
        """The digest of the changes, or None if nothing changed or an acknowledgement line already shows the digest."""
        if self.verdict is None or self.outcome is ReviewOutcome.UNCHANGED or self.ack_lines:
            return None
        return self.verdict.digest

    @property
    def approval_note(self) -> str:
        """The sentence to show before `approval`. It names the guards that a commit message line cannot acknowledge."""
        holding_guards = self.verdict.holding_guards if self.verdict is not None else ()
        others = [guard for guard in holding_guards if guard not in self.ack_guards]
        if not others:
            return "Or run this on the instance's host"
        return (
            f"A commit message cannot acknowledge {format_names(others)}. After you have checked the change, run this "
            "on the instance's host"
        )

    @property
    def approval(self) -> str | None:
        """The command that approves the commit on the host of an instance, or None if no guard holds the commit."""
        return format_approval(self.verdict.digest) if self.verdict is not None and self.verdict.held else None


def review_commits(
    base: ReviewedRevision,
    head: ReviewedRevision,
    *,
    limits: Limits,
    messages: Iterable[Message],
    commits: Sequence[ReviewedCommit] = (),
    command: str,
    ack_rules: AckRules = ANY_LINE,
    known_changes: Changes | None = None,
    writer: Callable[[str, int], str | None] | None = None,
    signature_results: SignatureResults | None = None,
) -> Review:
    """Compare two revisions, and judge the changes.

    The guards of both Fleets apply, so a commit cannot relax the guards.

    - ``known_changes`` contains the changes if the caller has already computed them.
    - ``writer`` takes a path and a line number (counted from 1) in the new commit. It returns the commit and the author
      of the line, or None if the line is not committed.
    - ``signature_results`` contains the results of `gitboot artifacts signatures` if the caller has them.
    """
    if head.decisions is None or head.repository is None:
        return Review(base=base, head=head, command=command)
    changes = known_changes or compare_decisions(base.decisions, head.decisions, base.repository, head.repository)
    acknowledgements, ignored = find_acknowledgements(messages, changes.digest, ack_rules)
    verdict = judge(changes.extent, tighten_limits(limits, base, head), acknowledgements)
    steps: tuple[HeldStep, ...] = ()
    if len(commits) > 1:
        verdict, steps, ignored = judge_by_steps(verdict, base, head, commits, limits, ack_rules)
    new = head.decisions, head.repository
    old = (base.decisions, base.repository) if base.decisions and base.repository else None
    causes = CauseFinder(changes, base.repository, head.repository)
    return Review(
        base=base,
        head=head,
        command=command,
        changes=changes,
        verdict=verdict,
        ignored_lines=ignored,
        steps=steps,
        groups=build_groups(changes, old, new, causes),
        unknown=_build_unknown_change(changes, old, new, causes) if old is not None else None,
        shared=_build_shared_change(changes, old, new, causes) if old is not None else None,
        claims=tuple(_find_image_claims(changes, head.repository, writer)),
        provenance=compare_provenance(changes, base.repository, head.repository, signature_results or {}),
        reinstalls_need=ack_rules.reinstalls_need,
    )


def _build_unknown_change(changes: Changes, old: Commit, new: Commit, causes: CauseFinder) -> CommonChange | None:
    if changes.unknown is None:
        return None
    return CommonChange(
        title="the boot of unknown machines",
        causes=describe_causes(causes.find_unknown_causes((old[0].unknown, new[0].unknown)), changes, new[1]),
        fields=(),
        rendered=diff_unknown_boots(old[0], new[0]),
    )


def _build_shared_change(changes: Changes, old: Commit, new: Commit, causes: CauseFinder) -> CommonChange | None:
    if changes.shared is None:
        return None
    affects_boots = affects_all_files(changes.shared)
    return CommonChange(
        title="the boot files of all machines" if affects_boots else "what gitboot publishes for all machines",
        causes=describe_causes(causes.find_shared_causes(changes.shared), changes, new[1]),
        fields=tuple(compare_fields(changes.shared.old or {}, changes.shared.new)),
        rendered=diff_shared_files(old[0], new[0]),
    )


def _find_image_claims(
    changes: Changes, repository: FleetRepository, writer: Callable[[str, int], str | None] | None
) -> Iterator[ImageClaim]:
    for image in changes.disk_claims:
        place = locate_field(repository, Id("BootImage", image), "spec", "writesDisk")
        path, line, _ = place
        yield ImageClaim(image=image, place=place, writer=writer(path, line) if writer is not None else None)
