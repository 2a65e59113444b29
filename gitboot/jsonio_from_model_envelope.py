"""gitboot.jsonio_from_model_envelope."""

from __future__ import annotations

from typing import Final

API_VERSION: Final = "gitboot.dev/v1alpha1"
