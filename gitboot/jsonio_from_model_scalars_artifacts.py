"""gitboot.jsonio_from_model_scalars_artifacts."""

from __future__ import annotations

from typing import NewType

Digest = NewType("Digest", str)  # 64 lower-case hexadecimal digits of a sha256
