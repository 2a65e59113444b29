"""gitboot.publish.manifest_from_publish_reindex."""

from __future__ import annotations

Pair = tuple[str, str]  # an identity and the server that it may mean
