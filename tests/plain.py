"""httpx for URLs without TLS: it reads no store of authorities, for which it takes 30 ms each time."""

from __future__ import annotations

from functools import partial
from typing import Final

import httpx

Client: Final = partial(httpx.Client, verify=False)
get: Final = partial(httpx.get, verify=False)
head: Final = partial(httpx.head, verify=False)
post: Final = partial(httpx.post, verify=False)
request: Final = partial(httpx.request, verify=False)
