"""What templates see of a boot: the resources that it is composed of, in the YAML's own spelling, and its URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.json import decode

from gitboot.fleet.resources import Resource
from gitboot.jsonio import canonical
from gitboot.model.boot_policy import Taint
from gitboot.model.fields import written
from gitboot.model.server import Server
from gitboot.resolve.merging import merged_vars
from gitboot.resolve.secrets import secret_urls
from gitboot.resolve.server_decision_from_plan import Boot, UserDataFiles, provisioned_token
from gitboot.resolve.source import BootSource


class Plain:
    """Resources in the YAML's own spelling, metadata and spec merged; each is made once.

    Of servers, which are many and are asked for one after the other, only the last is held.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[Resource, dict[str, Any]]] = {}  # by the identity of the resource, which is held
        self._last: tuple[Server | None, dict[str, Any]] = None, {}

    def of(self, resource: Resource) -> dict[str, Any]:
        if isinstance(resource, Server):
            if self._last[0] is not resource:
                self._last = resource, _plain(resource)
            return self._last[1]
        if (found := self._made.get(id(resource))) is None:
            found = self._made[id(resource)] = resource, _plain(resource)
        return found[1]


def _plain(resource: Resource) -> dict[str, Any]:
    dumped = written(resource)
    plain: dict[str, Any] = _in_order({**dumped["metadata"], **dumped["spec"]})
    for interface in plain.get("interfaces", ()):
        interface["mac"] = interface["mac"].replace("-", ":")
    return plain


def _in_order(value: Any) -> Any:
    """A value whose mappings are in the order of their keys: how YAML was written changes no byte."""
    return decode(canonical(value))


class Context:
    """What templates see, made only when one of them looks."""

    def __init__(self, plain: Plain, boot: Boot, source: BootSource, shared: dict[str, Any]) -> None:
        self._plain, self._boot, self._source = plain, boot, source
        self._shared = shared  # what boots of other servers see too; empty until one looks
        self._more: dict[str, Any] = {}
        self._common: dict[str, Any] = {}  # what all that are made of this one see; empty until one looks
        self._mapping: dict[str, Any] | None = None

    def having(self, **more: Any) -> Context:
        other = Context(self._plain, self._boot, self._source, self._shared)
        other._more, other._common = {**self._more, **more}, self._common
        return other

    @property
    def mapping(self) -> Mapping[str, Any]:
        if self._mapping is None:
            if not self._common:
                self._common.update(self._made())
            self._mapping = {**self._common, **self._more}
        return self._mapping

    def _made(self) -> dict[str, Any]:
        source = self._source
        if not self._shared:
            self._shared.update(self._seen_by_all())
        made = {**self._shared, "vars": merged_vars(source), "urls": self.urls(None)}
        if source.server is not None:
            made["server"] = self._plain.of(source.server)
        return made

    def _seen_by_all(self) -> dict[str, Any]:
        """Return what does not depend on the server."""
        source, plain = self._source, self._plain.of
        seen: dict[str, Any] = {
            "image": {**plain(source.image), "artifacts": self._boot.files.facts()},
            "profile": plain(source.profile),
            "phase": str(source.phase),
            "node_labels": _in_order(self._boot.node_labels),
            "node_taints": [_taint(taint) for taint in self._boot.node_taints],
            "site": {"name": source.site, "baseURL": source.base_url},
        }
        if source.pool is not None:
            seen["policy"] = {"name": source.pool.name, "profile": source.pool.profile}
        if source.maintenance is not None:
            seen["maintenance"] = plain(source.maintenance)
        return seen

    def urls(self, user_data: UserDataFiles | None) -> dict[str, Any]:
        """Where the machine finds what; ``user_data`` only once that is rendered."""
        own = self._common.get("urls") or _urls(self._source)
        return {**own, "user_data": user_data.url} if user_data is not None else own


def _urls(source: BootSource) -> dict[str, Any]:
    urls: dict[str, Any] = {"base": source.base_url, "secrets": secret_urls(source)}
    if source.server is not None:
        mac = source.server.boot_macs[0]
        urls["entry"] = f"{source.base_url}/v1/boot/{mac}/boot.ipxe"
        spec = source.server.spec
        token = provisioned_token(source.server.uuid, spec.provision, source.image.metadata.name)
        for report in ("failed", "provisioned"):
            urls[report] = f"{source.base_url}/v1/boot/{mac}/{report}/{token}"
    return urls


def _taint(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, "value": taint.value, "effect": str(taint.effect)}
