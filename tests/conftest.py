"""How Hypothesis searches: the same examples each time in CI, new ones on a developer's machine.

Neither has a deadline: a busy machine is not a wrong result.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
