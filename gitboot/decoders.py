"""Decoders of msgpack and JSON, which several threads may make at once.

msgspec stores what it learns of a class on the class itself before that is complete, so that classes may refer to
themselves (`DataclassInfo_Convert` in its `_core.c`). A decoder that another thread makes at this moment ends the
process by SIGSEGV at its first use. Therefore gitboot makes one decoder after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import RLock
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_making: Final = RLock()


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes msgpack as a type. It looks into the type at its first call, which takes time."""
    return _later(lambda: msgspec.msgpack.Decoder(kind).decode)


def json_decoder(kind: type[T]) -> Callable[[bytes | str], T]:
    """Return a function that decodes JSON as a type. It looks into the type at its first call, which takes time."""
    return _later(lambda: msgspec.json.Decoder(kind).decode)


def convert(value: object, kind: type[T]) -> T:
    """Return a JSON value as a type. Raises `msgspec.ValidationError`."""
    with _making:
        return msgspec.convert(value, kind)


def _later(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    @cache
    def made() -> Callable[..., Any]:
        with _making:
            return make()

    return lambda data: made()(data)
