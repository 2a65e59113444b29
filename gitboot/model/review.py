"""The JSON of `gitboot diff`: a contract, so every field is required and null where it is absent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

_CLOSED = ConfigDict(extra="forbid")
Verdict = Literal["unchanged", "fine", "held", "invalid"]


@with_config(_CLOSED)
class SideFacts(TypedDict):
    """One of the two revisions."""

    named: Annotated[str, Field(description="As it was asked for: a branch, a commit, WORKTREE.")]
    revision: Annotated[str, Field(description="The commit, WORKTREE, or of what it is the merge.")]


@with_config(_CLOSED)
class CountFacts(TypedDict):
    """How much changes."""

    changed: Annotated[int, Field(description="Servers in both commits whose decision is another.")]
    renamed: Annotated[int, Field(description="Of these, those with another name.")]
    added: int
    removed: int
    unchanged: int
    images: Annotated[int, Field(description="BootImages that were added, removed or edited.")]
    overrides: Annotated[int, Field(description="Servers of which nothing but the override changes.")]


@with_config(_CLOSED)
class AreaFacts(TypedDict):
    """A group of servers by a label, or the whole fleet."""

    area: Annotated[str, Field(description="all, site=VALUE or role=VALUE.")]
    size: Annotated[int, Field(description="Servers of the old commit, and who moved here.")]
    changed: int
    removed: int
    added: int
    reinstalled: Annotated[int, Field(description="Servers that may be reinstalled.")]


@with_config(_CLOSED)
class TripFacts(TypedDict):
    """A limit that is exceeded."""

    guard: str
    what: str
    number: int
    limit: int
    of: int | None
    percent: Annotated[bool, Field(description="Whether the limit is a percentage.")]
    area: str
    acknowledged: bool
    acknowledgement: Annotated[str, Field(description="The line for a commit's message.")]


@with_config(_CLOSED)
class UnheededFacts(TypedDict):
    """A line that was to acknowledge something, and does not."""

    commit: str
    line: str
    why: str


@with_config(_CLOSED)
class FieldFacts(TypedDict):
    """A field before and after."""

    field: str
    old: Any
    new: Any


@with_config(_CLOSED)
class CauseFacts(TypedDict):
    """A document or file that servers change by."""

    cause: Annotated[str, Field(description="KIND/NAME, or a file's path.")]
    fate: Literal["added", "removed", "edited"]
    documents: Annotated[int, Field(description="How many: more than 1 where each server has its own.")]
    fields: list[str]
    path: str | None
    line: int | None
    column: int | None


@with_config(_CLOSED)
class EffectFacts(TypedDict):
    """When a change takes effect."""

    when: str
    maintenance: str | None
    start: str | None
    end: str | None


@with_config(_CLOSED)
class RenderedFacts(TypedDict):
    """A unified diff of what a machine fetches."""

    boot: str
    file: str
    lines: list[str]


@with_config(_CLOSED)
class GroupFacts(TypedDict):
    """Servers that change alike, by the same causes."""

    causes: list[CauseFacts]
    risks: list[str]
    effects: list[EffectFacts]
    reinstalls: list[str]
    servers: list[str]
    example: Annotated[str, Field(description="The server that fields and rendered are of.")]
    fields: list[FieldFacts]
    rendered: Annotated[list[RenderedFacts] | None, Field(description="null: there are too many groups.")]


@with_config(_CLOSED)
class ServerFacts(TypedDict):
    """One server that changes."""

    server: str
    before: Annotated[str | None, Field(description="Its name in the old commit.")]
    fate: Literal["added", "removed", "edited"]
    risks: list[str]
    group: Annotated[int, Field(description="Which of groups, from 0.")]
    old: Annotated[str | None, Field(description="The digest of its old decision.")]
    new: str | None


@with_config(_CLOSED)
class ImageFacts(TypedDict):
    """A BootImage that was added, removed or edited."""

    image: str
    fate: Literal["added", "removed", "edited"]
    servers: Annotated[int, Field(description="How many can boot it, before or after.")]


@with_config(_CLOSED)
class DocumentFacts(TypedDict):
    """A document or file that differs, whether a decision follows from it or not."""

    document: str
    fate: Literal["added", "removed", "edited"]
    fields: list[str]


@with_config(_CLOSED)
class ProblemFacts(TypedDict):
    """A problem of a commit."""

    path: str
    line: int
    column: int
    code: str
    severity: Literal["error", "warning"]
    message: str
    hint: str


@with_config(_CLOSED)
class DiffFacts(TypedDict):
    """What `gitboot diff -o json` prints."""

    apiVersion: Literal["gitboot.dev/v1alpha1"]
    base: SideFacts
    head: SideFacts
    verdict: Verdict
    digest: Annotated[str | None, Field(description="What acknowledgements are bound to; null: HEAD is invalid.")]
    comparedWithNothing: Annotated[bool, Field(description="Whether BASE is no fleet, so that all is new.")]
    counts: CountFacts | None
    areas: list[AreaFacts]
    limits: dict[str, int | bool] | None
    trips: list[TripFacts]
    unheeded: list[UnheededFacts]
    unknownServers: list[RenderedFacts] | None
    shared: list[FieldFacts] | None
    images: list[ImageFacts]
    groups: list[GroupFacts]
    servers: list[ServerFacts]
    documents: Annotated[list[DocumentFacts], Field(description="Those from which no decision follows.")]
    bmcs: Annotated[list[str], Field(description="Servers whose BMC is another, or is trusted otherwise.")]
    problems: list[ProblemFacts]
    baseProblems: list[ProblemFacts]
    reproduce: str
