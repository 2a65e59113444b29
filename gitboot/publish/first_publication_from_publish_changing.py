"""gitboot.publish.first_publication_from_publish_changing."""

from __future__ import annotations

from collections.abc import Mapping

from gitboot.publish.index import Shard, render_shard


def rendered(shards: Mapping[str, Shard]) -> dict[str, bytes | None]:
    """The files of shards; None: it has none any more."""
    return {path: render_shard(shard) if shard else None for path, shard in shards.items()}
