"""gitboot.fleet.revision_from_document."""

from __future__ import annotations

MAX_FILE_BYTES = 16 * 1024 * 1024
