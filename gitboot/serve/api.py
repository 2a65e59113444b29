"""The operators' API: what is planned for each server, and how the instance fares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gitboot import __version__
from gitboot.canonical import canonical
from gitboot.model.envelope import API_VERSION
from gitboot.plan import Phase
from gitboot.problems.problem import Severity
from gitboot.render.answers import Answers
from gitboot.serve.reply import NOT_FOUND, NOT_YET
from gitboot.status import Status

_ROOT: Final = "/api/v1"
_SERVERS_AT_ONCE: Final = 500  # of a list, before other requests have their turn: about 2 ms


# What is answered: facts as the stages give them, which the tests hold to these models.


class _Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


class _Document(_Model):
    api_version: Literal["gitboot.dev/v1alpha1"]


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


class Servers(_Document):
    """All servers, by name."""

    items: tuple[ServerItem, ...]


class Override(_Model):
    """The boot override that is wanted at the BMC."""

    enabled: str
    target: str
    http_boot_uri: str | None
    reason: str


class Server(_Document, ServerItem):
    """What one server boots now."""

    profile: str | None
    method: str | None
    kernel_arguments: tuple[str, ...]
    files: Mapping[str, str]  # sha256 by path
    override: Override | None
    digest: str | None
    decision_digest: str
    provisioned: Mapping[str, Any] | None  # what is known of it; null too where only a tree is served
    drift: Mapping[str, str]  # ImageDrift, PoolDrift: where it was provisioned otherwise than is planned now


class Plan(_Document):
    """A server's decision and plan, as they stand below ops/plans/."""

    decision: Mapping[str, Any]
    decision_digest: str
    plan: Mapping[str, Any] | None
    digest: str | None
    next_transition: datetime | None


class Problem(_Model):
    """One thing that is wrong with a commit."""

    path: str
    line: int
    column: int
    code: str
    severity: Severity
    message: str
    hint: str


class Held(_Model):
    """What keeps a commit from being accepted, and what an acknowledgement has to name."""

    digest: str
    guards: tuple[str, ...]


class Attempted(_Model):
    """The commit that was tried last."""

    commit: str | None
    problems: tuple[Problem, ...]
    held: Held | None


class Applied(_Model):
    """The commit that what is answered comes from."""

    commit: str | None


class Condition(_Model):
    """One thing that holds or not."""

    type: str
    status: bool
    reason: str
    message: str
    since: datetime


class InstanceStatus(_Document):
    """An instance at a glance."""

    ledger: str | None
    attempted: Attempted
    applied: Applied
    planned_at: datetime | None
    next_transition: datetime | None
    phases: Mapping[str, int]
    records: Mapping[str, int]
    drift: Mapping[str, int]
    bmcs: Mapping[str, int]
    conditions: tuple[Condition, ...]


class _Operation(NamedTuple):
    summary: str
    answer: type[_Document]


_OPERATIONS: Final[Mapping[str, _Operation]] = {
    f"{_ROOT}/servers": _Operation("All servers, and what each boots now", Servers),
    f"{_ROOT}/servers/{{name}}": _Operation("One server, and what it boots now", Server),
    f"{_ROOT}/servers/{{name}}/plan": _Operation("One server's decision and plan", Plan),
    f"{_ROOT}/status": _Operation("What was attempted, what is applied, and how it fares", InstanceStatus),
}


class Api:
    """The pages below /api/v1/."""

    def __init__(
        self,
        answers: Callable[[], Answers | None],
        status: Callable[[], Status],
        clock: Callable[[], datetime],
    ) -> None:
        self._answers, self._status, self._clock = answers, status, clock
        self.routes = [
            Route(f"{_ROOT}/servers", self.list_servers),
            Route(f"{_ROOT}/servers/{{name}}", self.one_server),
            Route(f"{_ROOT}/servers/{{name}}/plan", self.plan),
            Route(f"{_ROOT}/status", self.one_status),
            Route(f"{_ROOT}/openapi.json", self.openapi),
        ]

    async def list_servers(self, _: Request) -> Response:
        if (answers := self._answers()) is None:
            return NOT_YET
        servers = list(answers.servers.items())
        parts = []
        for start in range(0, len(servers), _SERVERS_AT_ONCE):
            parts += [canonical(_item(*server)) for server in servers[start : start + _SERVERS_AT_ONCE]]
            await asyncio.sleep(0)
        items = b",".join(parts)
        return _json(b'{"apiVersion":%b,"items":[%b]}' % (canonical(API_VERSION), items))

    async def one_server(self, request: Request) -> Response:
        if (answers := self._answers()) is None:
            return NOT_YET
        name = request.path_params["name"]
        summary = answers.servers.get(name)
        return NOT_FOUND if summary is None else _json(canonical(_server(name, summary)))

    async def plan(self, request: Request) -> Response:
        if (answers := self._answers()) is None:
            return NOT_YET
        file = answers.at(f"ops/plans/{request.path_params['name']}.json", self._clock())
        return NOT_FOUND if file is None else _json(file.content)

    async def one_status(self, _: Request) -> Response:
        return _json(canonical(self._status().facts()))

    async def openapi(self, _: Request) -> Response:
        return _json(canonical(openapi()))


def _item(name: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    return {key: name if key == "name" else summary[key] for key in _ITEM_KEYS}


_ITEM_KEYS: Final = tuple(to_camel(field) for field in ServerItem.model_fields)


def _server(name: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    facts = {key: value for key, value in summary.items() if key != "server"}
    return {"apiVersion": API_VERSION, "name": name, **facts}


def _json(content: bytes) -> Response:
    headers = {"content-type": "application/json", "cache-control": "no-store"}
    return Response(content, headers=headers)


@cache
def openapi() -> dict[str, Any]:
    """The API's description as an OpenAPI 3.1 document."""
    answers = [operation.answer for operation in _OPERATIONS.values()]
    _, schemas = models_json_schema(
        [(answer, "serialization") for answer in answers], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "gitboot", "version": __version__},
        "paths": {path: {"get": _described(path, operation)} for path, operation in _OPERATIONS.items()},
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
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        described["parameters"] = [name]
    return described
