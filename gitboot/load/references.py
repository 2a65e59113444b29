"""What a resource names: other resources, and files."""

from __future__ import annotations

from collections.abc import Iterator

from gitboot.fleet.resources import Resource
from gitboot.model.boot_image import ImageStream
from gitboot.model.boot_policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.fleet import Fleet, UnknownProfile
from gitboot.model.scalar_from_document import Path
from gitboot.model.scalars.names import Name
from gitboot.model.selectors import Selector
from gitboot.model.server import Server


def references(resource: Resource) -> Iterator[tuple[str, str, Path]]:
    """Every name of another resource or file in ``resource``: (kind or "file", name, where)."""
    match resource:
        case Fleet(spec=fleet):
            if isinstance(fleet.unknown_servers, UnknownProfile):
                profile = fleet.unknown_servers.profile
                yield "BootProfile", profile, ("spec", "unknownServers", "profile")
            for number, site in enumerate(fleet.sites):
                yield from _selected(site.select, ("spec", "sites", number, "select"))
            for number, made in enumerate(fleet.hardware):
                yield from _selected(made.select, ("spec", "hardware", number, "select"))
        case Server(spec=server):
            if server.policy is not None:
                yield "BootPolicy", server.policy, ("spec", "policy")
            if server.pin is not None:
                yield "BootImage", server.pin.image, ("spec", "pin", "image")
            if server.bmc is not None and server.bmc.tls.ca is not None:
                yield "file", server.bmc.tls.ca, ("spec", "bmc", "tls", "ca")
            for name, secret in server.secrets.items():
                yield "file", secret, ("spec", "secrets", name)
        case ImageStream(spec=stream):
            yield "BootImage", stream.current, ("spec", "current")
            if stream.rollout is not None:
                yield "BootImage", stream.rollout.image, ("spec", "rollout", "image")
                yield from _selected(stream.rollout.selector, ("spec", "rollout", "selector"))
            for number, hold in enumerate(stream.holds):
                yield "BootImage", hold.image, ("spec", "holds", number, "image")
                yield from _selected(hold.select, ("spec", "holds", number, "select"))
        case BootProfile(spec=boot):
            if boot.image is not None:
                yield "BootImage", boot.image, ("spec", "image")
            if boot.stream is not None:
                yield "ImageStream", boot.stream, ("spec", "stream")
            if boot.user_data is not None:
                yield "file", boot.user_data.template, ("spec", "userData", "template")
                for field, path in boot.user_data.beside.values():
                    yield "file", path, ("spec", "userData", field)
                for name, secret in boot.user_data.secrets.items():
                    yield "file", secret, ("spec", "userData", "secrets", name)
            for loader in ("ipxe", "grub"):
                if (template := getattr(boot.templates, loader)) is not None:
                    yield "file", template, ("spec", "templates", loader)
        case BootPolicy(spec=policy):
            if policy.inherits is not None:
                yield "BootPolicy", policy.inherits, ("spec", "inherits")
            if policy.profile is not None:
                yield "BootProfile", policy.profile, ("spec", "profile")
            yield from _selected(policy.select, ("spec", "select"))
        case Maintenance(spec=maintenance):
            yield "BootProfile", maintenance.profile, ("spec", "profile")
            yield from _selected(maintenance.select, ("spec", "select"))


def _selected(select: str | Selector, at: Path) -> Iterator[tuple[str, Name, Path]]:
    if isinstance(select, Selector):
        for number, name in enumerate(select.servers):
            yield "Server", name, (*at, "servers", number)
