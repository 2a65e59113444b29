"""Looking at a fleet's artifacts for `gitboot artifacts`: with a progress bar, and told as a table or JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from gitboot.artifacts.availability import (
    Fetcher,
    NamedArtifact,
    ReadResults,
    Sighting,
    look_at_all,
    named_artifacts,
    unbootable_by_firmware,
)
from gitboot.artifacts.fetchers import Fetchers, FolderFetcher, RegistryFetcher, WebFetcher
from gitboot.artifacts.oci import Registries
from gitboot.cli.bar import progress
from gitboot.cli.evaluated_fleet import evaluate_fleet
from gitboot.cli.exit import Exit
from gitboot.cli.options import now
from gitboot.cli.terminal import table, wrapped
from gitboot.errors import UsageError
from gitboot.jsonio import document, facts
from gitboot.resolve.server_decision import Decisions
from gitboot.resolve.server_decision_from_plan import BootFile
from gitboot.resolve.sites import sites_of
from gitboot.terminal import style
from gitboot.text import count, did_you_mean


def named_in(path: Path, rev: str | None, only: tuple[str, ...]) -> tuple[Decisions, tuple[NamedArtifact, ...]]:
    """The fleet at PATH, and its artifacts; raises `InvalidRepository`, and `UsageError` for an unknown site."""
    decided = evaluate_fleet(path, rev, now()).decided
    decisions, repository = decided.decisions, decided.repository
    for site in only:
        if site not in decisions.sites:
            hint = did_you_mean(site, decisions.sites, "the Fleet names those that there are")
            raise UsageError(f"there is no site {site!r}; {hint}")
    named = named_artifacts(decisions, {name: site.name for name, site in sites_of(repository).items()})
    return decisions, tuple(each for each in named if not only or not set(only).isdisjoint(each.sites))


def fetchers_of(base_url: str, assets: Path | None, registries: Registries | None = None) -> Fetchers:
    """Whoever fetches from web servers, from a directory that is served below the base URL, and from registries."""
    web = WebFetcher()
    by_prefix: dict[str, Fetcher] = {"http://": web, "https://": web}
    if assets is not None:
        base = f"{base_url}/assets/"
        by_prefix[base] = FolderFetcher(assets, base)
    if registries is not None:
        by_prefix["oci://"] = RegistryFetcher(registries)
    return Fetchers(by_prefix)


def looked_at(
    fetchers: Fetchers,
    found: Collection[NamedArtifact],
    results: ReadResults,
    *,
    read: bool,
    parallel: int,
) -> dict[BootFile, Sighting]:
    """Return what is to be seen of each artifact. ``results`` get what gitboot reads, also if it ends early."""
    seen: dict[BootFile, Sighting] = {}
    with progress("artifacts", len(found)) as advance:

        def note(file: BootFile, sighting: Sighting) -> None:
            seen[file] = sighting
            advance(1)

        look_at_all(fetchers, [each.file for each in found], results, note, read=read, parallel=parallel)
    return seen


def _unbootable(each: NamedArtifact, sighting: Sighting) -> str | None:
    """Why no machine can boot by an artifact, as far as that is known; None: nothing is."""
    if sighting.is_absent:
        return sighting.message
    return unbootable_by_firmware(sighting.head) if each.by_firmware and sighting.is_there else None


def exit_of_look(found: Collection[NamedArtifact], seen: Mapping[BootFile, Sighting]) -> Exit:
    if any(_unbootable(each, seen[each.file]) is not None for each in found):
        return Exit.PARTIAL
    return Exit.FINE if all(seen[each.file].is_there for each in found) else Exit.SOURCE


def as_json(found: Collection[NamedArtifact], seen: Mapping[BootFile, Sighting]) -> str:

    items = []
    for each in found:
        sighting = seen[each.file]
        item: dict[str, Any] = {**facts(each), **each.file.facts(), **facts(sighting)}
        items.append({**item, "unbootable": _unbootable(each, sighting)})
        del items[-1]["file"]
    return document(items=items)


def as_text(found: Collection[NamedArtifact], seen: Mapping[BootFile, Sighting]) -> str:
    return "\n".join((*_troubles(found, seen), *_sums(found, seen)))


def _troubles(found: Collection[NamedArtifact], seen: Mapping[BootFile, Sighting]) -> Iterator[str]:
    """A row for each artifact by which something is not in order, with what it is below the table."""
    rows, whys = [], []
    for each in found:
        sighting = seen[each.file]
        unbootable = _unbootable(each, sighting)
        if unbootable is None and sighting.is_there:
            continue
        word = style(str(sighting.presence), fg="yellow" if unbootable is None else "red")
        rows.append((word, ", ".join(each.images), str(each.servers), each.file.url))
        whys.append(wrapped(f"{each.file.url}: {unbootable or sighting.message}"))
    if rows:
        yield table(("SEEN", "IMAGES", "SERVERS", "URL"), rows)
        yield from ("", *whys, "")


def _sums(found: Collection[NamedArtifact], seen: Mapping[BootFile, Sighting]) -> Iterator[str]:
    """How many each site has of what."""
    for site in sorted({site for each in found for site in each.sites}):
        here = [seen[each.file] for each in found if site in each.sites]
        counts = Counter(str(sighting.presence).lower() for sighting in here)
        told = ", ".join(f"{number} {word}" for word, number in sorted(counts.items()))
        yield f"{site or 'the fleet'}: {count(len(here), 'artifact')}: {told}"
    if not found:
        yield "the fleet names no artifacts"
