"""The operators' API as an OpenAPI document: what is answered, held to these models by the tests."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema

from gitboot import __version__
from gitboot.plan import InstallState, InstallStep, Phase
from gitboot.problems.problem import Severity
from gitboot.serve.api import FILTERS, MOST, ROOT


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


class _Document(_Model):
    api_version: Literal["gitboot.dev/v1alpha1"]


class InstallingItem(_Model):
    """An installation that has begun, until there is evidence of its completion."""

    state: InstallState  # Served: its boot was served, and nothing reports its completion
    since: datetime  # of its first fetch
    step: InstallStep  # the last one
    at: datetime  # of the last step
    maintenance: str | None  # whose boot writes the disk; null: a policy's
    message: str


class ServerItem(_Model):
    """What one server boots now, in short; what is absent is null."""

    name: str
    uuid: str
    macs: tuple[str, ...]
    phase: Phase | None
    cause: str | None
    policy: str | None
    maintenance: str | None
    image: str | None
    version: str | None
    next_transition: datetime | None
    site: str | None
    role: str | None  # its label of that name
    labels: Mapping[str, str]
    step: InstallStep  # how far the installation has come that is wanted
    installing: InstallingItem | None  # an installation that has begun; null: none is under way


class InstallationItem(InstallingItem):
    """The same with the name of its server."""

    server: str


class Servers(_Document):
    """Servers by name, a page at a time."""

    items: tuple[ServerItem, ...]
    next: str | None = Field(alias="continue")  # what to ask the next page by; null: this is the last


class OverrideItem(_Model):
    """The boot override that is wanted at the BMC."""

    enabled: str
    target: str
    http_boot_uri: str | None
    reason: str


class OneServer(_Document, ServerItem):
    """What one server boots now."""

    profile: str | None
    method: str | None
    kernel_arguments: tuple[str, ...]
    files: Mapping[str, str]  # sha256 by path
    override: OverrideItem | None
    digest: str | None
    decision_digest: str
    provisioned: Mapping[str, Any] | None  # what is known of it
    drift: Mapping[str, str]  # ImageDrift, PoolDrift: where it was provisioned otherwise than is planned now


class Plan(_Document):
    """A server's decision and plan."""

    decision: Mapping[str, Any]
    decision_digest: str
    plan: Mapping[str, Any] | None
    digest: str | None
    next_transition: datetime | None


class ProblemItem(_Model):
    """One thing that is wrong with a commit."""

    path: str
    line: int
    column: int
    code: str
    severity: Severity
    message: str
    hint: str


class HeldItem(_Model):
    """What keeps a commit from being accepted, and what an acknowledgement has to name."""

    digest: str
    guards: tuple[str, ...]
    lines: tuple[str, ...] = ()  # that acknowledge it in a commit's message; none where no line does
    reinstalls: tuple[str, ...] = ()  # servers whose records do not rule out that the commit reinstalls them


class WithheldItem(_Model):
    """A server of which gitboot withholds an install boot, because a newer commit does not offer it."""

    server: str
    by: tuple[str, ...]  # the newer commits
    boots: str | None  # the image that it boots now; null: its disk
    why: str


class Attempted(_Model):
    """The commit that was tried last."""

    commit: str | None
    problems: tuple[ProblemItem, ...]
    held: HeldItem | None
    withheld: tuple[WithheldItem, ...] = ()


class SignerItem(_Model):
    """Whose trusted key vouches for a commit."""

    person: str
    key: str
    is_forge: bool


class HeededItem(_Model):
    """An acknowledgement by which a commit was accepted, and who has made it."""

    commit: str
    guard: str
    by: str


class ChangedItem(_Model):
    """How much of a group of servers an accepted commit has changed."""

    commit: str
    label: str  # site=fra1; empty: the whole fleet
    size: int
    changed: int
    less: int
    removed: int
    added: int
    reinstalled: int
    subject: str = ""  # the first line of the commit's message


class AcceptedItem(ChangedItem):
    """How much of the whole fleet an accepted commit has changed, and when the instance said so."""

    at: str
    acknowledged: tuple[Mapping[str, str], ...] = ()  # guard, and by whom: how it was let pass


class Accepted(_Model):
    """The commit that the next one is compared with, by the guards and in CI."""

    commit: str | None
    committed_at: datetime | None = None  # its committer time
    signer: SignerItem | None = None
    acknowledged: tuple[HeededItem, ...] = ()
    changed: tuple[ChangedItem, ...] = ()  # by the commits that were accepted last
    lately: tuple[AcceptedItem, ...] = ()  # of each commit that was accepted, the newest first, as far as is known


class Applied(_Model):
    """The commit that what is answered comes from."""

    commit: str | None


class ConditionItem(_Model):
    """One thing that holds or not."""

    type: str
    status: bool
    reason: str
    message: str
    since: datetime
    remedy: str | None


class StageItem(_Model):
    """How often something took how long since the instance's start."""

    bounds_s: tuple[float, ...]
    counts: tuple[int, ...]  # up to each bound, and above the last
    seconds: float  # all together


class Progress(_Model):
    """How far long work has come."""

    work: str  # Reading, Planning, Publishing
    done: int
    total: int
    left_seconds: int | None  # that it still takes, as far as that follows from what is done
    message: str  # the same in words


class LinksItem(_Model):
    """URLs of a forge's pages, with {commit}, {path} and {line} to be filled in."""

    commit: str
    line: str
    blame: str
    history: str


class FetchesItem(_Model):
    """Fetches of one secret."""

    first: datetime
    last: datetime
    times: int


class AddressFetchesItem(FetchesItem):
    """Fetches of one secret by one address."""

    address: str  # of IPv6 the /64 network


class SecretFetchesItem(_Model):
    """Who fetched one secret, or one file of user data, in the newest installation of a server."""

    server: str
    installation: str  # its provision key
    attempt: int
    secret: str  # secrets/NAME or user-data/FILE
    unexpected: bool  # whether a person should look: gitboot secret fetches --confirm
    times: int
    addresses: tuple[AddressFetchesItem, ...]  # at most 16
    others: FetchesItem | None  # by all further addresses


class LastFetch(_Model):
    """The last fetch of the repository that ended."""

    commit: str | None  # that it found; null: none yet
    began: datetime | None  # null: none has ended yet


class InstanceStatus(_Document):
    """An instance at a glance."""

    ledger: str | None
    attempted: Attempted
    accepted: Accepted
    applied: Applied
    fetched: LastFetch
    at: datetime | None = None  # when the instance said so last; absent where only a tree is served
    clock: datetime | None = None  # its clock, which endpoints compare with theirs
    age_seconds: int | None = None  # since the instance wrote this status; null: no instance has
    changes: int | None = None  # of its ledger, since there is one
    site: str | None = None  # for whose servers alone it acts; null: for all
    branch: str | None = None  # that the instance follows, or what --rev named; null before the first fetch
    links: LinksItem | None = None  # to the forge that it tells of commits
    progress: Progress | None = None  # of long work that is being done; null: none is
    planned_at: datetime | None
    next_transition: datetime | None
    phases: Mapping[str, int]
    records: Mapping[str, int]
    installs: Mapping[str, int] = Field(default_factory=dict)  # servers that are offered an installation: Now, Later
    runs: Mapping[str, int]
    installing: Mapping[str, int] = Field(default_factory=dict)  # servers by state and step: Installing/Started
    installations: tuple[InstallationItem, ...] = ()  # of those, at most 50 servers, the oldest last step first
    drift: Mapping[str, int]
    bmcs: Mapping[str, int]
    below_minimum_version: Mapping[str, int] = Field(default_factory=dict)  # servers by stream
    secret_fetches: tuple[SecretFetchesItem, ...] = ()  # of at most 50 servers: those to look at, and the latest
    stages: Mapping[str, StageItem] = Field(default_factory=dict)  # by what takes its time; those that ran
    conditions: tuple[ConditionItem, ...]


class FoundInterfaceItem(_Model):
    """A network interface that an image has found."""

    mac: str
    name: str | None = None  # as an installed system calls it
    link: bool | None = None  # whether a cable was found in it


class FoundDiskItem(_Model):
    """A disk that an image has found."""

    name: str
    bytes: int | None = None
    model: str | None = None
    serial: str | None = None


class InventoryItem(_Model):
    """What an image found in a machine, by its word; what it has not said is not there."""

    interfaces: tuple[FoundInterfaceItem, ...]
    disks: tuple[FoundDiskItem, ...] = ()
    manufacturer: str | None = None
    product: str | None = None
    architecture: str | None = None
    firmware: str | None = None
    cpus: int | None = None
    memory_mib: int | None = Field(default=None, alias="memoryMiB")


class SeenItem(_Model):
    """A machine that asked for a boot and that no document describes, by its own word."""

    macs: tuple[str, ...]
    uuid: str | None
    serial: str | None
    client: str  # the address that asked last
    path: str  # what for
    first: datetime
    last: datetime
    times: int
    server: str | None  # whose document has some of this, and not its UUID
    inventory: InventoryItem | None  # what an image has sent of it; null: none has


class SeenMachines(_Document):
    """Machines that no document describes, the last that asked first."""

    items: tuple[SeenItem, ...]
    unkept: int  # requests of machines for which there was no room


class NoticedEvent(_Model):
    """An event as the ledger has it."""

    sequence: int  # its number there
    at: datetime
    type: str
    message: str
    level: Literal["info", "warning"]
    servers: tuple[str, ...]
    site: str | None  # of the server, where it is of one
    commit: str | None


class NoticeItem(_Document):
    """What a receiver of notices is sent: events of one type, the oldest first."""

    kind: Literal["Notice"]
    id: str  # the same where it is sent again
    ledger: str
    type: str
    level: Literal["info", "warning"]  # the highest
    number: int  # of all events; the first of them are shown
    events: tuple[NoticedEvent, ...]


class _Operation(NamedTuple):
    summary: str
    answer: type[_Document]


_OPERATIONS: Final[Mapping[str, _Operation]] = {
    f"{ROOT}/servers": _Operation("Servers by name, and what each boots now; a page at a time", Servers),
    f"{ROOT}/servers/{{name}}": _Operation("One server, and what it boots now", OneServer),
    f"{ROOT}/servers/{{name}}/plan": _Operation("One server's decision and plan", Plan),
    f"{ROOT}/seen": _Operation("Machines that asked for a boot and that no document describes", SeenMachines),
    f"{ROOT}/status": _Operation("What was attempted, what is applied, and how it fares", InstanceStatus),
}


@cache
def openapi() -> dict[str, Any]:
    """The API's description as an OpenAPI 3.1 document."""
    answers: list[type[_Document]] = [*(each.answer for each in _OPERATIONS.values()), NoticeItem]
    _, schemas = models_json_schema(
        [(answer, "serialization") for answer in answers], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "gitboot", "version": __version__},
        "paths": {path: {"get": _described(path, operation)} for path, operation in _OPERATIONS.items()},
        "webhooks": {"notice": {"post": _NOTICE}},
        "components": {"schemas": schemas["$defs"]},
    }


def _described(path: str, operation: _Operation) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{operation.answer.__name__}"}
    described: dict[str, Any] = {
        "operationId": operation.answer.__name__,
        "summary": operation.summary,
        "responses": {
            "200": {"description": operation.summary, "content": {"application/json": {"schema": schema}}},
            "404": {"description": "No such server, or no operator"},
            "503": {"description": "Nothing was planned yet since the start"},
        },
    }
    if "{name}" in path:
        described["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": _TEXT}]
    if operation.answer is Servers:
        described["parameters"] = [_in_query(*each) for each in _PARAMETERS]
        described["responses"]["400"] = {"description": "A parameter that there is not, or not so"}
    return described


_NOTICE: Final = {
    "operationId": "Notice",
    "summary": "What a receiver is sent that `gitboot run --notify` names",
    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/NoticeItem"}}}},
    "responses": {"2XX": {"description": "It was taken, and is not sent again"}},
}
_TEXT: Final = {"type": "string"}
_LABELS: Final = {"type": "array", "items": {"type": "string", "pattern": "^[^=]+="}}
_PARAMETERS: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("limit", f"Servers on a page; at most {MOST}", {"type": "integer", "minimum": 1, "maximum": MOST}),
    ("continue", "The last page's own `continue`", _TEXT),
    *((name, f"Only servers of this {name}", _TEXT) for name in FILTERS),
    ("label", "Only servers with this label, key=value; may be given several times", _LABELS),
)


def _in_query(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": dict(schema)}
