"""The ImageSource documents that gitboot ships."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from gitboot.fleet.yaml import parse
from gitboot.model.fields import read
from gitboot.model.image_source import BUILT_IN_SOURCES, ImageSource


def read_vendor_document(name: str) -> bytes:
    """Return the document of a built-in source, with its comments."""
    return (files("gitboot.image_sources") / "vendors" / f"{name}.yaml").read_bytes()


@cache
def load_vendor_source(name: str) -> ImageSource:
    """Return a built-in source."""
    (document,) = parse(read_vendor_document(name), f"{name}.yaml").documents
    return read(ImageSource, document.value)


def list_vendor_sources() -> tuple[ImageSource, ...]:
    """Return all built-in sources, sorted by name."""
    return tuple(load_vendor_source(name) for name in BUILT_IN_SOURCES)
