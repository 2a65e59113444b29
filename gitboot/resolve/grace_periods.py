"""Grace periods: how long a fetch, a consumed override or an installation still counts."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

FETCH_GRACE: Final = timedelta(seconds=60)  # a loader can fetch its boot again, for a retry
CONSUMED_GRACE: Final = timedelta(minutes=30)  # wait for evidence after an override was consumed
SERVED_GRACE: Final = timedelta(minutes=30)  # show an installation without a completion report as served
DATA_GRACE: Final = timedelta(hours=2)  # a booted system can fetch its user data
