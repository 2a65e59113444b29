"""What to write instead of a registry's tag, found out while a person looks at the problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from gitboot.artifacts.oci import OciReference, Registries, Resolved, resolve
from gitboot.errors import HostUnreachable, OperatorError
from gitboot.model.scalars.artifacts import OCI
from gitboot.problems.codes import Code, Problem
from gitboot.text import shell_words


def with_digests(problems: Iterable[Problem], registries: Registries) -> tuple[Problem, ...]:
    """The problems; those about a tag have a hint with the digests that it names now, or why nobody knows."""

    @cache
    def hint(image: str) -> str:
        try:
            return "; ".join(_lines(resolve(OciReference.parse(image), registries)))
        except (HostUnreachable, OperatorError) as error:
            return f"`gitboot artifacts resolve {shell_words(image)}` prints what to write; asked now: {error}"

    return tuple(
        replace(problem, hint=hint(found[0].partition("@")[0]))
        if problem.code == Code.OCI_TAG and (found := OCI.search(problem.message)) is not None and found["tag"]
        else problem
        for problem in problems
    )


def _lines(found: Resolved) -> Iterator[str]:
    for architecture, artifacts in found.architectures.items():
        for role, artifact in artifacts.items():
            urls = [each["url"] for each in artifact] if isinstance(artifact, list) else [artifact["url"]]
            yield f"{architecture}.{role} is {', '.join(urls)}"
