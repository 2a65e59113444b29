"""Planned states as bytes, without what their commit says of the servers: that is looked up where they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from gitboot.decoders import decoder
from gitboot.evaluator.encoded import Compact
from gitboot.evaluator.evaluation_result import Commit
from gitboot.plan import BootFile, BootPlan, Record
from gitboot.render.schedule import About, ServerState
from gitboot.resolve.hosts import idle
from gitboot.stoppage import Halt


class _PlannedState(msgspec.Struct, frozen=True, array_like=True):
    """A `ServerState`, but for what the commit says of the server."""

    server: str
    record: Record | None
    absent: tuple[BootFile, ...]
    at: datetime
    plan: BootPlan | None
    later: tuple[tuple[datetime, BootPlan | None], ...]
    refresh_at: datetime | None


def states(held: Mapping[str, bytes], commit: Commit, stop: Halt) -> Compact[ServerState]:
    """What `to_bytes` gave of servers, by their names, of what ``commit`` says of them."""
    return Compact(held, reader(commit, stop), to_bytes)


def to_bytes(state: ServerState) -> bytes:
    return _encode(
        _PlannedState(
            server=state.decision.server,
            record=state.record,
            absent=tuple(sorted(state.absent, key=lambda file: (file.url, file.sha256))),
            at=state.at,
            plan=state.plan,
            later=state.later,
            refresh_at=state.refresh_at,
        )
    )


def reader(commit: Commit, stop: Halt) -> Callable[[bytes], ServerState]:
    """Reads states that were planned by what ``commit`` says, with what stopped."""

    def read(data: bytes) -> ServerState:
        found = _decode(data)
        return ServerState(
            decision=commit.decisions.servers[found.server],
            record=found.record,
            about=about(commit, found.server),
            stop=stop,
            absent=frozenset(found.absent),
            at=found.at,
            plan=found.plan,
            later=found.later,
            refresh_at=found.refresh_at,
        )

    return read


def about(commit: Commit, name: str) -> About:
    """What a commit says of a server beside its decision."""
    host = commit.decisions.networks[name]
    return About(
        site=commit.sites.get(name),
        labels=commit.labels[name],
        addresses=tuple(sorted(address for nic in host.nics for address in nic.addresses)),
        idle=idle(host),
        machine=commit.machines.get(commit.decisions.servers[name].uuid),
        written=commit.written.get(name),
    )


_encode: Final[Callable[[_PlannedState], bytes]] = msgspec.msgpack.Encoder().encode
_decode: Final[Callable[[bytes], _PlannedState]] = decoder(_PlannedState)
