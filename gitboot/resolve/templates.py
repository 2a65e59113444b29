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

from collections.abc import Mapping

from jinja2 import Template

from gitboot.resolve.template_sandbox import MAX_BYTES, MAX_STEPS, TemplateFault
from gitboot.template.rendering import compiled, decoded, names_in, rendered

__all__ = ["MAX_BYTES", "MAX_STEPS", "TemplateFault", "TemplateSet"]


class TemplateSet:
    """Template files by path, and the templates in YAML; each is compiled once."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = files
        self._sources: dict[bytes, str] = {}  # by content
        self._names: dict[str, frozenset[str]] = {}  # by source
        self._compiled: dict[str, Template | str | TemplateFault] = {}  # by source

    def of(self, files: Mapping[str, bytes]) -> TemplateSet:
        """Return the templates of other files. Both sets compile equal templates once."""
        other = TemplateSet.__new__(TemplateSet)
        other._files = files
        other._sources, other._names, other._compiled = self._sources, self._names, self._compiled
        return other

    def render_file(self, path: str, context: Mapping[str, object]) -> str:
        try:
            return self.render_text(self._source(path), context)
        except TemplateFault as fault:
            fault.path = path
            raise

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
        try:
            source = self._source(path)
            if source not in self._names:
                self._names[source] = names_in(source)
        except TemplateFault as fault:
            fault.path = path
            raise
        return self._names[source]

    def _source(self, path: str) -> str:
        data = self._files[path]
        if data not in self._sources:
            self._sources[data] = decoded(data)
        return self._sources[data]
