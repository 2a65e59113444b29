"""What an instance says of itself and of its machines: its API is asked, or what it publishes is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import quote

from gitboot.audit.rollout import AppliedRollout, Proof
from gitboot.errors import HostUnreachable, UsageError
from gitboot.load.snapshot import Revision
from gitboot.model.scalars.machines import SystemUuid
from gitboot.publish.recorded import read_records
from gitboot.render.parts import RECORDS
from gitboot.resolve.provisioning_record import record_of
from gitboot.resolve.provisioning_record_from_plan import Record
from gitboot.resolve.server_decision_from_plan import Decision

if TYPE_CHECKING:
    from gitboot.http_client import HttpClient, WebAnswer

# Conditions without which nothing is proven by what records say, or nothing is offered that would be.
_NEEDED: Final = ("Accepting", "BootsOffered", "ClockTrusted", "LedgerNamed", "LedgerWritable", "RecordsKnown")
_OF_SERVERS: Final = "UnknownServers"  # of RecordsKnown: it is about some servers, each of which says it by itself


class Informant(Protocol):
    """An instance, as far as it can be asked."""

    def status(self) -> Mapping[str, Any]:
        """How it fares."""

    def records(self, machines: Iterable[Decision]) -> Mapping[SystemUuid, Record]:
        """What it knows of these machines; of those that it does not know nothing."""


def proof_by(informant: Informant, applied_at: Callable[[Revision], AppliedRollout]) -> tuple[AppliedRollout, Proof]:
    """A rollout in the commit that an instance has applied, and what it knows of the machines that this reaches.

    Raises `HostUnreachable` where it goes on to another commit meanwhile, and what asking it raises.
    """
    said = informant.status()
    commit = _commit(said)
    applied = applied_at(commit)
    records = informant.records(applied.machines)
    if _commit(informant.status()) != commit:
        raise HostUnreachable(f"the instance has applied another commit than {commit[:12]} meanwhile; ask it again")
    at = _instant(said.get("at") or said.get("clock"))
    return applied, Proof(commit=commit, at=at, doubt=_doubt(said), records=records)


def _commit(said: Mapping[str, Any]) -> Revision:
    applied = said.get("applied")
    commit = applied.get("commit") if isinstance(applied, Mapping) else None
    if not isinstance(commit, str):
        raise UsageError("the instance has applied no commit yet: there is nothing that it could prove")
    return Revision(commit)


def _doubt(said: Mapping[str, Any]) -> str | None:
    for each in said.get("conditions", ()):
        if each["type"] in _NEEDED and not each["status"] and each["reason"] != _OF_SERVERS:
            return f"the instance says {each['type']}: {each['reason']}: {each['message']}"
    return None


def _instant(written: object) -> datetime | None:
    return datetime.fromisoformat(written).astimezone(UTC) if isinstance(written, str) else None


@dataclass(frozen=True, slots=True)
class TreeInformant:
    """The tree that an instance publishes, or its records with its status beside them."""

    folder: Path

    def status(self) -> Mapping[str, Any]:
        from gitboot.publish.manifest import STATUS

        found = json.loads(_content(self.folder / STATUS))
        return found if isinstance(found, dict) else {}

    def records(self, machines: Iterable[Decision]) -> Mapping[SystemUuid, Record]:
        records = self.folder / RECORDS
        try:
            known = read_records(records)
        except OSError as error:
            raise _unreadable(records, error) from None
        return {each.uuid: known[each.uuid] for each in machines if each.uuid in known}


@dataclass(frozen=True, slots=True)
class ApiInformant:
    """The API of an instance."""

    url: str
    client: HttpClient
    credentials: Mapping[str, str]  # headers
    deadline_s: float  # of each request

    def status(self) -> Mapping[str, Any]:
        said = self._get("status")
        if not isinstance(said.json, dict):
            raise HostUnreachable(f"{self.url} answers no status")
        return said.json

    def records(self, machines: Iterable[Decision]) -> Mapping[SystemUuid, Record]:
        found = {}
        for each in machines:
            item = self._get(f"servers/{quote(each.server, safe='')}").json
            if isinstance(item, dict) and item.get("uuid") == each.uuid and item.get("provisioned") is not None:
                found[each.uuid] = record_of(item["provisioned"])
        return found

    def _get(self, path: str) -> WebAnswer:
        said = self.client.ask(f"{self.url}/api/v1/{path}", credentials=self.credentials, deadline_s=self.deadline_s)
        if said.status != 200:
            raise HostUnreachable(f"{self.url}/api/v1/{path} answered {said.status} {said.detail}".rstrip())
        return said


def informant_at(
    where: str,
    token: Path | None,
    ca_bundle: Path | None,
    *,
    allow_token_over_http: bool = False,
    deadline_s: float = 30,
) -> Informant:
    """The instance behind a URL of its API, or a directory that it publishes, by its ``ops/records`` as well."""
    if "://" in where:
        from gitboot.http_client import HttpClient

        client = HttpClient(ca_bundle=ca_bundle, allow_token_over_http=allow_token_over_http)
        if token is None:
            return ApiInformant(where.rstrip("/"), client, {}, deadline_s)
        client.check_credentials(where, f"the token in {token}")
        words = _content(token).decode(errors="replace").strip()
        return ApiInformant(where.rstrip("/"), client, {"Authorization": f"Bearer {words}"}, deadline_s)
    path = Path(where)
    is_records = path.parts[-2:] == Path(RECORDS).parts
    return TreeInformant(path.parent.parent if is_records else path)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(file: Path, error: OSError) -> UsageError:
    return UsageError(f"{file} cannot be read: {error.strerror}")
