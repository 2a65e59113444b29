"""Target records: the files below ops/ in which gitboot records the content of a target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Struct, field

from gitboot.jsonio import build_json_decoder, encode_canonical
from gitboot.publish.manifest import MANIFEST
from gitboot.render.endpoint_files import PublishedServer
from gitboot.render.paths import BOOT, Role

HEAD: Final = MANIFEST
UNLISTED: Final = "ops/unlisted.json"
CONTESTED: Final = "ops/contested.json"
SHARDS: Final = "ops/shards/"  # the name of each shard is the digest of its content, except in a Git branch
SHARED: Final = ""  # this text replaces a server name for files that do not belong to a server
LIST: Final = ".list"  # this text replaces a server name for the signed list; a server cannot have this name
MAX_RECORD_BYTES: Final = 32 << 20  # the maximum size of a file below ops/; with a million servers, a shard has 12 MiB
_T = TypeVar("_T")
_Number = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{2}\Z")]  # the number of a shard
_Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
# Without this pattern, anyone who can write to a target could list files outside of the folder for machines.
_Path = Annotated[str, msgspec.Meta(pattern=r"\Aboot(?:/(?!\.{0,2}(?:/|\Z))[^/\0]+)+\Z")]
_ContestedPath = Annotated[str, msgspec.Meta(pattern=r"\A(?:boot|ops/shards)(?:/(?!\.{0,2}(?:/|\Z))[^/\0]+)+\Z")]


# The types of the records


class ServerFiles(msgspec.Struct, frozen=True, omit_defaults=True):
    """A unit of a target: the files of one server, or the files that do not belong to any server.

    All files of a unit change together.
    """

    state: str  # the digest of the server's state
    files: Mapping[_Path, _Digest]  # sha256 by path below the output directory
    withheld: bool = False  # whether a one-time boot was omitted, because no endpoint would record it


Shard = Mapping[str, ServerFiles]  # units by server


class TargetHead(Struct, frozen=True, kw_only=True):
    """The head of a target: a file that is read first and written last."""

    ledger: str
    commit: str
    gitboot: str  # the version of gitboot
    writer: str  # the random number of the process that writes to the target
    shards: Mapping[_Number, _Digest] = field(default_factory=dict)  # sha256 of the shards, by number
    format: Literal[1] = 1


class TargetContent(Struct, frozen=True, kw_only=True):
    """The facts about a target's content that gitboot needs to plan the next step."""

    head: TargetHead
    states: Mapping[str, str]  # digests of states by server, without the servers whose files are unverified
    servers: frozenset[str]  # the servers in the shards
    withheld: frozenset[str]  # the servers whose one-time boot was omitted
    unlisted_paths: frozenset[str]
    contested_paths: frozenset[str] = frozenset()  # files that another process may still write or remove


# The files


def _build_parser(kind: type[_T], fault: str) -> Callable[[bytes], _T]:
    """Return a function that parses a record of a target. The function raises ValueError with the text ``fault``."""
    decode = build_json_decoder(kind)

    def parse(data: bytes) -> _T:
        try:
            return decode(data)
        except (RecursionError, ValueError) as error:
            raise ValueError(fault) from error

    return parse


parse_head: Final = _build_parser(TargetHead, "the file is not a target head in format 1")
parse_units: Final = _build_parser(dict[str, ServerFiles], "the file is not a target shard")
# parses the list of the files at a target that are in no shard
parse_unlisted: Final = _build_parser(frozenset[_Path], "the file is not a list of paths")
# parses the list of the files at a target that another process may still write or remove
parse_contested: Final = _build_parser(list[_ContestedPath], "the file is not a list of paths")


def render_head(head: TargetHead) -> bytes:
    return encode_canonical(msgspec.to_builtins(head)) + b"\n"


def render_units(shard: Shard) -> bytes:
    return encode_canonical(msgspec.to_builtins(shard)) + b"\n"


def render_unlisted(paths: Iterable[str]) -> bytes:
    return encode_canonical(sorted(paths)) + b"\n"


# The content


def build_server_files(digest: str, state: PublishedServer) -> ServerFiles:
    """Return the files that a target serves for one server. ``digest`` is the digest of the server's state.

    `gitboot.render.boot_files` has already omitted one-time boots that copies may not serve.
    """
    current_versions = [versions[0] for versions in state.paths.values() if versions]
    boots = [
        version.writes
        for version in current_versions
        if version.content is not None
        and version.role in (Role.BOOT_SCRIPT, Role.OFFER)
        and version.writes is not None
        and version.writes.once
        and not version.writes.in_copies
    ]
    return ServerFiles(
        digest,
        {path: file.sha256 for path, file in state.files.items() if path.startswith(BOOT)},
        withheld=bool(boots) and all(writes.hop is None for writes in boots),
    )


def find_shard_number(server: str) -> str:
    """Return the number of the shard that lists a server."""
    return sha256(server.encode()).hexdigest()[:2]


def shard_path(digest: str) -> str:
    """Return the path of the shard whose content has this digest."""
    return f"{SHARDS}{digest}.json"


def build_target_content(
    head: TargetHead, shards: Iterable[Shard], unlisted_paths: Iterable[str], *, gitboot: str
) -> TargetContent:
    """Summarize the content of a target from its records.

    The files of a server are unverified if another version of gitboot wrote them, or if an interrupted step may have
    changed them.
    """
    units = {server: unit for shard in shards for server, unit in shard.items()}
    unverified_paths = frozenset(unlisted_paths)
    return TargetContent(
        head=head,
        states={
            server: unit.state
            for server, unit in units.items()
            if head.gitboot == gitboot and unverified_paths.isdisjoint(unit.files.keys())
        },
        servers=frozenset(units),
        withheld=frozenset(server for server, unit in units.items() if unit.withheld),
        unlisted_paths=unverified_paths,
    )
