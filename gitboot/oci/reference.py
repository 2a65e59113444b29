"""The name of an image in a registry, or of one of its files, and which registries an instance lets be asked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from gitboot.errors import RegistryRefused, UsageError
from gitboot.jsonio import Digest
from gitboot.model.scalars.artifacts import OCI


@dataclass(frozen=True, kw_only=True, slots=True)
class OciReference:
    """``oci://HOST/REPOSITORY`` with a tag, or with the digest of a manifest or blob."""

    host: str  # with its port, where it has one
    repository: str
    tag: str | None
    digest: Digest | None

    @classmethod
    def parse(cls, text: str) -> OciReference:
        """Raise `UsageError` for what names nothing in a registry; a digest wins over a tag beside it."""
        found = OCI.fullmatch(text)
        if found is None or (found["tag"] is None and found["digest"] is None):
            raise UsageError(
                f"{text!r} is no image of a registry: expected oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:…"
            )
        digest = Digest(found["digest"]) if found["digest"] is not None else None
        return cls(host=found["host"], repository=found["repository"], tag=found["tag"], digest=digest)

    def at(self, digest: Digest) -> OciReference:
        """What has that digest in the same repository."""
        return replace(self, tag=None, digest=digest)

    @property
    def version(self) -> str:
        """What stands last in the registry's URLs."""
        return f"sha256:{self.digest}" if self.digest is not None else self.tag or ""

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag is not None else ""
        digest = f"@sha256:{self.digest}" if self.digest is not None else ""
        return f"oci://{self.host}/{self.repository}{tag}{digest}"


_PATTERN: Final = re.compile(r"(?P<scheme>https?://)?(?P<host>[^/\s]+)(?:/(?P<repository>\S+))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowedRegistry:
    """Registries that may be asked: a host and a repository, each a name or with ``*`` and ``?``."""

    scheme: str
    host: str
    repository: str

    @classmethod
    def parse(cls, text: str) -> AllowedRegistry:
        """``[http://]HOST[/REPOSITORY]``; raises `UsageError`. Without a repository: all of the host's."""
        found = _PATTERN.fullmatch(text)
        if found is None or "@" in found["host"]:
            raise UsageError(f"{text!r} is no registry: expected HOST or HOST/REPOSITORY, with * for any characters")
        if set(found["host"]) <= set("*?."):
            raise UsageError(f"{text!r} would allow any registry: name its host, or the domain it is below")
        scheme = (found["scheme"] or "https://").removesuffix("://")
        return cls(scheme=scheme, host=found["host"].lower(), repository=found["repository"] or "*")

    def allows(self, reference: OciReference) -> bool:
        # Each by itself: a * of the host's must not reach into what stands behind the slash.
        is_host = fnmatchcase(reference.host.lower(), self.host)
        return is_host and fnmatchcase(reference.repository, self.repository)


def origin(reference: OciReference, allowed: Iterable[AllowedRegistry]) -> str:
    """The scheme and host by which a registry is asked; raises `RegistryRefused` for one that is not allowed."""
    for each in allowed:
        if each.allows(reference):
            return f"{each.scheme}://{reference.host}"
    raise RegistryRefused(
        f"{reference.host}/{reference.repository} is not among the registries that may be asked: give --registries"
    )
