"""The JSON of `gitboot diff`: a contract, so every field is required and null where it is absent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config
from pydantic.alias_generators import to_camel

_CLOSED = ConfigDict(extra="forbid", alias_generator=to_camel)
Verdict = Literal["unchanged", "fine", "held", "invalid"]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class SideFacts:
    """One of the two revisions."""

    named: Annotated[str, Field(description="As it was asked for: a branch, a commit, WORKTREE.")]
    revision: Annotated[str, Field(description="The commit, WORKTREE, or of what it is the merge.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class CountFacts:
    """How much changes."""

    changed: Annotated[int, Field(description="Servers in both commits whose decision is another.")]
    renamed: Annotated[int, Field(description="Of these, those with another name.")]
    added: int
    removed: int
    unchanged: int
    images: Annotated[int, Field(description="BootImages that were added, removed or edited.")]
    overrides: Annotated[int, Field(description="Servers of which nothing but the override changes.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class AreaFacts:
    """A group of servers by a label, or the whole fleet."""

    area: Annotated[str, Field(description="all, site=VALUE or role=VALUE.")]
    size: Annotated[int, Field(description="Servers of the old commit, and who moved here.")]
    changed: Annotated[int, Field(description="But for those that only offer less.")]
    less: Annotated[int, Field(description="Servers that offer nothing that they did not offer before.")]
    removed: Annotated[int, Field(description="Removed or retired.")]
    added: int
    reinstalled: Annotated[int, Field(description="Servers that may be reinstalled.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class TripFacts:
    """A limit that is exceeded."""

    guard: str
    what: str
    number: int
    limit: int
    of: int | None
    percent: Annotated[bool, Field(description="Whether the limit is a percentage.")]
    area: str
    acknowledged: bool
    by: Annotated[str, Field(description="Who has acknowledged it; empty: nobody.")]
    acknowledgement: Annotated[str, Field(description="The line for a commit's message.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class SignerFacts:
    """A commit between BASE and HEAD, and whose key has signed it."""

    commit: str
    person: str
    key: str
    forge: Annotated[bool, Field(description="Whether it is a forge's own key, which counts for merge commits alone.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """A commit between BASE and HEAD that somebody has to acknowledge."""

    commit: str
    acknowledgements: Annotated[tuple[str, ...], Field(description="The lines for a commit's message.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class UnheededFacts:
    """A line that was to acknowledge something, and does not."""

    commit: str
    line: str
    why: str


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class FieldFacts:
    """A field before and after."""

    field: str
    old: Any
    new: Any


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class CauseFacts:
    """A document or file that servers change by."""

    cause: Annotated[str, Field(description="KIND/NAME, or a file's path.")]
    fate: Literal["added", "removed", "edited"]
    documents: Annotated[int, Field(description="How many: more than 1 where each server has its own.")]
    fields: tuple[str, ...]
    path: str | None
    line: int | None
    column: int | None


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class EffectFacts:
    """When a change takes effect."""

    when: str
    maintenance: str | None
    start: str | None
    end: str | None


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedFacts:
    """A unified diff of what a machine fetches."""

    boot: str
    file: str
    lines: tuple[str, ...]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class OutlierFacts:
    """In what a group renders otherwise than a larger one; each server's own values are replaced by their names."""

    than: Annotated[str, Field(description="The first server of the larger group.")]
    lines: Annotated[tuple[str, ...], Field(description="Lines that only this group's difference has.")]
    missing: Annotated[tuple[str, ...], Field(description="Lines that only the larger group's difference has.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class GroupFacts:
    """Servers that change alike, by the same causes, with rendered differences that are equal but for own values."""

    causes: tuple[CauseFacts, ...]
    risks: tuple[str, ...]
    effects: tuple[EffectFacts, ...]
    reinstalls: tuple[str, ...]
    unknown: Annotated[tuple[str, ...], Field(description="Why it becomes unknown whether they are provisioned.")]
    servers: tuple[str, ...]
    example: Annotated[str, Field(description="The server that fields and rendered are of.")]
    own: Annotated[
        tuple[str, ...], Field(description="What of each server's own stands in the rendered lines that come and go.")
    ]
    outlier: Annotated[OutlierFacts | None, Field(description="null: no larger group changes by the same causes.")]
    fields: tuple[FieldFacts, ...]
    rendered: Annotated[tuple[RenderedFacts, ...] | None, Field(description="null: there are too many lines.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class ServerFacts:
    """One server that changes."""

    server: str
    before: Annotated[str | None, Field(description="Its name in the old commit.")]
    fate: Literal["added", "removed", "edited"]
    risks: tuple[str, ...]
    group: Annotated[int, Field(description="Which of groups, from 0.")]
    old: Annotated[str | None, Field(description="The digest of its old decision.")]
    new: str | None


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFacts:
    """A BootImage that was added, removed or edited."""

    image: str
    fate: Literal["added", "removed", "edited"]
    servers: Annotated[int, Field(description="How many can boot it, before or after.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentFacts:
    """A document or file that differs, whether a decision follows from it or not."""

    document: str
    fate: Literal["added", "removed", "edited"]
    fields: tuple[str, ...]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemFacts:
    """A problem of a commit."""

    path: str
    line: int
    column: int
    code: str
    severity: Literal["error", "warning"]
    message: str
    hint: str


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class CredentialFacts:
    """Whom a server's BMC credentials are for: their name, the address, and how that is trusted."""

    server: str
    old: str | None
    new: str | None


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimFacts:
    """An image that claims for the first time to write no disk (writesDisk: false)."""

    image: str
    path: str
    line: int
    column: int
    author: Annotated[str | None, Field(description="Author and commit of the line; null: not committed.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class AccessFacts:
    """A setting of the Fleet that says who may fetch, before and after."""

    field: str
    old: tuple[str, ...] | bool | str
    new: tuple[str, ...] | bool | str
    widens: Annotated[bool, Field(description="Whether more clients can fetch, or fetches count that did not.")]


@with_config(_CLOSED)
@dataclass(frozen=True, kw_only=True, slots=True)
class DiffFacts:
    """What `gitboot diff -o json` prints."""

    api_version: Literal["gitboot.dev/v1alpha1"]
    base: SideFacts
    head: SideFacts
    verdict: Verdict
    digest: Annotated[str | None, Field(description="What acknowledgements are bound to; null: HEAD is invalid.")]
    compared_with_nothing: Annotated[bool, Field(description="Whether BASE holds no fleet, so that all is new.")]
    counts: CountFacts | None
    areas: tuple[AreaFacts, ...]
    limits: dict[str, int | bool] | None
    trips: tuple[TripFacts, ...]
    steps: tuple[StepFacts, ...]
    unheeded: tuple[UnheededFacts, ...]
    unknown_servers: tuple[RenderedFacts, ...] | None
    shared: tuple[FieldFacts, ...] | None
    access: Annotated[tuple[AccessFacts, ...], Field(description="Who may fetch, where that changes.")]
    images: tuple[ImageFacts, ...]
    claims: Annotated[tuple[ClaimFacts, ...], Field(description="Images that newly claim to write no disk.")]
    groups: tuple[GroupFacts, ...]
    servers: tuple[ServerFacts, ...]
    documents: Annotated[tuple[DocumentFacts, ...], Field(description="Those from which no decision follows.")]
    bmcs: Annotated[tuple[str, ...], Field(description="Servers whose BMC is another, or is trusted otherwise.")]
    credentials: Annotated[
        tuple[CredentialFacts, ...], Field(description="The same and new servers: where credentials go by it.")
    ]
    signers: Annotated[
        tuple[SignerFacts, ...],
        Field(description="Whose trusted keys have signed the commits, where --verify is given."),
    ]
    problems: tuple[ProblemFacts, ...]
    base_problems: tuple[ProblemFacts, ...]
    reproduce: str
