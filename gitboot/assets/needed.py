"""Which artifacts the decisions of a commit name, for which images, and for how many servers of which sites."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gitboot.resolve.server_decision import Decisions
from gitboot.resolve.server_decision_from_plan import Boot, BootFile


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedArtifact:
    """One artifact, and who needs it."""

    file: BootFile
    images: tuple[str, ...]
    sites: tuple[str, ...]  # by name; "" is the fleet itself
    servers: int  # that may boot by it; unknown machines are none
    by_firmware: bool  # whether UEFI HTTP boot fetches it itself


@dataclass(slots=True)
class _Needs:
    images: set[str] = field(default_factory=set)
    sites: set[str] = field(default_factory=set)
    servers: set[str] = field(default_factory=set)
    by_firmware: bool = False

    def note(self, boot: Boot, file: BootFile, site: str, server: str | None) -> None:
        self.images.add(boot.image)
        self.sites.add(site)
        self.servers |= {server} if server is not None else set()
        self.by_firmware |= boot.http_boot_file == file


def named_artifacts(decisions: Decisions, sites: Mapping[str, str]) -> tuple[NamedArtifact, ...]:
    """Every artifact that any server, or an unknown machine, may be told to fetch, by URL; ``sites`` are by server."""
    found: defaultdict[BootFile, _Needs] = defaultdict(_Needs)
    for server, decision in decisions.servers.items():
        for boot in decision.boots:
            for file in boot.fetched:
                found[file].note(boot, file, sites.get(server, ""), server)
    for boot in (decisions.unknown or {}).values():
        for file in boot.fetched:
            found[file].note(boot, file, "", None)
    return tuple(
        NamedArtifact(
            file=file,
            images=tuple(sorted(needs.images)),
            sites=tuple(sorted(needs.sites)),
            servers=len(needs.servers),
            by_firmware=needs.by_firmware,
        )
        for file, needs in sorted(found.items(), key=lambda each: (each[0].url, each[0].sha256, each[0].size or 0))
    )


def at_sources(artifacts: Iterable[NamedArtifact]) -> tuple[NamedArtifact, ...]:
    """The same, each where a mirror takes it from; what several sites fetch from their own mirrors is one there."""
    found: dict[BootFile, NamedArtifact] = {}
    for each in artifacts:
        if each.file.source is not None:
            file = replace(each.file, url=each.file.source, source=None)
            each = replace(each, file=file, by_firmware=False)  # it is served under another name
        other = found.get(each.file)
        found[each.file] = _together(each, other) if other is not None else each
    return tuple(sorted(found.values(), key=lambda each: (each.file.url, each.file.sha256, each.file.size or 0)))


def _together(one: NamedArtifact, other: NamedArtifact) -> NamedArtifact:
    return replace(
        one,
        images=tuple(sorted({*one.images, *other.images})),
        sites=tuple(sorted({*one.sites, *other.sites})),
        servers=one.servers + other.servers,
    )
