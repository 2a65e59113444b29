"""The versions that streams want their servers to boot at least."""

from __future__ import annotations

from typing import NamedTuple

from gitboot.fleet.resources import FleetRepository
from gitboot.model.boot_image import SkewMode


class MinimumVersion(NamedTuple):
    """The lowest version that a stream wants its servers to boot."""

    stream: str
    version: str


def minimum_versions(repository: FleetRepository) -> dict[str, MinimumVersion]:
    """What is wanted of the servers of each profile, where something is said when it is not so."""
    streams = {
        name: profile.spec.stream for name, profile in repository.profiles.items() if profile.spec.stream is not None
    }
    skews = {name: repository.streams[stream].spec.skew for name, stream in streams.items()}
    return {
        name: MinimumVersion(streams[name], skew.minimum_version)
        for name, skew in sorted(skews.items())
        if skew is not None and skew.mode is not SkewMode.NONE
    }
