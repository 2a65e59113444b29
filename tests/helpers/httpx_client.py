"""httpx for URLs without TLS, and for slow machines: it reads no store of authorities, which takes 30 ms each time."""

from __future__ import annotations

from functools import partial
from typing import Final

import httpx

Client: Final = partial(httpx.Client, verify=False, timeout=60)
get: Final = partial(httpx.get, verify=False, timeout=60)
head: Final = partial(httpx.head, verify=False, timeout=60)
post: Final = partial(httpx.post, verify=False, timeout=60)
request: Final = partial(httpx.request, verify=False, timeout=60)
