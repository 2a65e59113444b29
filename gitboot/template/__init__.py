"""Sandboxed Jinja2 over the fleet's own files: strict, bounded, deterministic.

A template sees plain data: texts, numbers, booleans, lists, mappings. It can do with them what `filters` and
`environment` list, and nothing else. A dot looks up a key, never a Python attribute.

What could grow without end is counted while it happens, and never timed, so that a template gives the same
text or the same fault on any machine. For that its syntax tree is changed before it is compiled (`metering`):
wherever a loop turns, texts are joined or values compared, the `budget` of the rendering is asked first.

Each module uses only those before it: `faults`, `values`, `budget`, `filters`, `metering`, `environment`,
`diagnosis`, `rendering`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jinja2 import Template

from gitboot.template.budget import MAX_BYTES, MAX_STEPS
from gitboot.template.faults import TemplateFault
from gitboot.template.rendering import compiled, decoded, names_in, rendered

__all__ = ["MAX_BYTES", "MAX_STEPS", "TemplateFault", "TemplateSet"]


class TemplateSet:
    """The template files of a commit, by path, and the templates in its YAML; each is compiled once."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._sources: dict[str, str] = {}  # by path
        self._names: dict[str, frozenset[str]] = {}  # by path
        self._compiled: dict[str, Template | str | TemplateFault] = {}  # by source

    def __len__(self) -> int:
        """How many are compiled."""
        return len(self._compiled)

    def render_file(self, path: str, context: Mapping[str, object]) -> str:
        with _faults_in(path):
            return self.render_text(self._source(path), context)

    def render_text(self, source: str, context: Mapping[str, object]) -> str:
        """What the template gives; text without markup is given back as it is."""
        template = self._compiled.get(source)
        if template is None:
            template = self._compiled[source] = compiled(source)
        if isinstance(template, TemplateFault):
            raise TemplateFault(template.code, template.message, template.line)
        return template if isinstance(template, str) else rendered(template, context)

    def names(self, path: str) -> frozenset[str]:
        """The names that the template takes from its context."""
        if path not in self._names:
            with _faults_in(path):
                self._names[path] = names_in(self._source(path))
        return self._names[path]

    def _source(self, path: str) -> str:
        if path not in self._sources:
            self._sources[path] = decoded(self._files[path])
        return self._sources[path]


@contextmanager
def _faults_in(path: str) -> Iterator[None]:
    try:
        yield
    except TemplateFault as fault:
        fault.path = path
        raise
