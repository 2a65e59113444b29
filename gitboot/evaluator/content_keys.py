"""Content keys: digests of all inputs of a decision."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from typing import Final

from msgspec.msgpack import Encoder

from gitboot.fleet.resources import FleetRepository
from gitboot.resolve.decision_inputs import FleetView, SharedInputs, own_files

Key = bytes
_encode: Final = Encoder().encode
_SIZE: Final = 16  # bytes: no two contents of one fleet have the same digest by chance


def decision_keys(
    repository: FleetRepository,
    names: Collection[str] | None = None,
    documents: Mapping[str, bytes] | None = None,
) -> dict[str, Key]:
    """Return the content key of the decision of each server. ``names``: only of these servers.

    ``documents``: digests of the Server documents by name, if the caller has them. All digests have the same length,
    and documents that differ have digests that differ.
    """
    view, shared_digests = FleetView(repository), _SharedDigests()
    files: dict[str, bytes] = {}  # digests by path
    keys = {}
    for name in repository.servers if names is None else names:
        server = repository.servers[name]
        found = shared_digests.of(view.shared(server))
        found += documents[name] if documents is not None else _encode(server)
        for path in own_files(server):  # in an order that the document determines
            if path not in files:
                files[path] = _digest(repository.files[path])
            found += files[path]
        keys[name] = blake2b(found, digest_size=_SIZE).digest()
    return keys


class _SharedDigests:
    """The digests of inputs that servers share. Each digest is computed once."""

    def __init__(self) -> None:
        self._digests: dict[int, tuple[object, bytes]] = {}  # by id() of the value; the reference keeps the id unique
        self._names = tuple(each.name for each in fields(SharedInputs))

    def of(self, inputs: SharedInputs) -> bytes:
        if (found := self._digests.get(id(inputs))) is None:
            parts = [self._part(getattr(inputs, name)) for name in self._names]
            found = self._digests[id(inputs)] = inputs, _digest(parts)
        return found[1]

    def _part(self, value: object) -> object:
        """Return a value with a digest in place of each dataclass, which other inputs may share."""
        if isinstance(value, tuple):
            return [self._part(each) for each in value]
        if not is_dataclass(value):
            return value
        if (found := self._digests.get(id(value))) is None:
            found = self._digests[id(value)] = value, _digest(value)
        return found[1]


def _digest(value: object) -> bytes:
    return blake2b(_encode(value), digest_size=_SIZE).digest()
