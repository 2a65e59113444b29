"""Metrics of several instances: what each says of itself, by its site and name, and whether that is as of now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gitboot.hub.overview import Sight, behind
from gitboot.serve.exposition import encoded, of_status

LABELS: Final = ("site", "name")


class Measured(Collector):
    """Everything of these instances."""

    def __init__(self, sights: Iterable[Sight]) -> None:
        self._sights = tuple(sights)

    def page(self, accept: str) -> tuple[bytes, str]:
        """All of it, and its content type."""
        registry = CollectorRegistry()
        registry.register(self)
        return encoded(registry, accept)

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_reading()
        found: dict[str, Metric] = {}
        for sight in self._sights:
            for metric in of_status(sight.status) if sight.status is not None else ():
                if metric.type == "histogram":
                    continue  # how long each step takes is its own endpoint's to say
                known = found.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    known.add_sample(sample.name, {**_labels(sight), **sample.labels}, sample.value)
        yield from (found[name] for name in sorted(found))

    def _of_the_reading(self) -> Iterator[Metric]:
        up = Metric("gitboot_instance_read", "Whether an instance could be read the last time.", "gauge")
        seen = Metric("gitboot_instance_read_timestamp_seconds", "When an instance was read last.", "gauge")
        lag = Metric(
            "gitboot_instance_behind_commits",
            "By how many commits an instance is behind the one that is furthest; absent where nobody can tell.",
            "gauge",
        )
        for sight in self._sights:
            up.add_sample(up.name, _labels(sight), sight.failure is None and sight.status is not None)
            if sight.seen is not None:
                seen.add_sample(seen.name, _labels(sight), sight.seen.timestamp())
            if (by := behind(sight, [each for each in self._sights if each is not sight])) is not None:
                lag.add_sample(lag.name, _labels(sight), by)
        yield from (up, seen, lag)


def _labels(sight: Sight) -> dict[str, str]:
    return dict(zip(LABELS, (sight.member.site, sight.member.name), strict=True))
