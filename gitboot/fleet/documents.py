"""One document -> a resource, or what is wrong with it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gitboot.fleet.resources import KINDS, Id, Resource
from gitboot.fleet.yaml import Value
from gitboot.jsonio import API_VERSION
from gitboot.load.findings import Finding, Wording, findings
from gitboot.load.schemas import adapter
from gitboot.model.scalars.names import parse_name
from gitboot.model.scalars.texts import Malformed, shown
from gitboot.model.structure import read
from gitboot.problems.codes import Code
from gitboot.text import did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A document that is no resource, and why."""

    findings: tuple[Finding, ...]
    id: Id | None = None  # None where its kind or name is not known


def checked(value: dict[str, Value]) -> Resource | Broken:
    """A document against the schema of its kind."""
    kind, version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or kind not in KINDS:
        return Broken(findings=(Finding(("kind",), partial(_no_kind, kind)),))
    kind = str(kind)
    if version != API_VERSION:
        return Broken(findings=(Finding(("apiVersion",), partial(_other_version, version)),), id=_id(kind, value))
    try:
        return read(KINDS[kind], value)
    except ValueError:
        return _examined(kind, value)


def _examined(kind: str, value: dict[str, Value]) -> Resource | Broken:
    """A document with which something is wrong."""
    from pydantic import ValidationError

    try:
        resource: Resource = adapter(kind).validate_python(value)
    except ValidationError as error:
        return Broken(findings=findings(kind, error), id=_id(kind, value))
    return resource


def _no_kind(found: Value) -> Wording:
    if found is None:
        message, code = "every document says its kind", Code.MISSING_FIELD
    else:
        message, code = f"there is no kind {shown(found)}", Code.KIND
    hint = did_you_mean(found, KINDS, f"use one of {', '.join(KINDS)}, or list the file in .gitbootignore")
    return Wording(code, message, hint)


def _other_version(found: Value) -> Wording:
    code = Code.MISSING_FIELD if found is None else Code.API_VERSION
    message = f"expected apiVersion {API_VERSION}, found {shown(found)}"
    return Wording(code, message, f"write apiVersion: {API_VERSION}")


def _id(kind: str, value: dict[str, Value]) -> Id | None:
    metadata = value.get("metadata")
    with suppress(Malformed):
        return Id(kind, parse_name(metadata.get("name") if isinstance(metadata, dict) else None))
    return None
