"""gitboot.controller.instance.settings_from_instance_build."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from gitboot.status.events_from_status import Event

Tell = Callable[[Event], None]


Clock = Callable[[], datetime]
