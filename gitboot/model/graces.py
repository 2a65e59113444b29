"""How long after something happened it may still happen again, or show itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

FETCH_GRACE: Final = timedelta(seconds=60)  # a loader's own retry still finds the boot that it fetched
CONSUMED_GRACE: Final = timedelta(minutes=30)  # how long an override's evidence may take after it was consumed
SERVED_GRACE: Final = timedelta(minutes=30)  # how long an installation that reports no completion is shown as served
DATA_GRACE: Final = timedelta(hours=2)  # how long a system that was booted may ask for its user data
