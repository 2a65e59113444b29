"""Templates are compiled once in a process of tests: thousands of fleets are decided there, by the same few.

How a template is read and compiled is said of `gitboot.resolve.templates` itself.
"""

from __future__ import annotations

from functools import lru_cache

from gitboot.resolve import templates

_MOST = 1024


def compile_once() -> None:
    """Remember in this process what a template's source was compiled to."""
    templates.compiled = lru_cache(_MOST)(templates.compiled)
    templates.names_in = lru_cache(_MOST)(templates.names_in)
