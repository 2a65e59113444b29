"""Rules R6 and R7: one boot composed of image, profile, policy and server, and whether it can work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from pydantic import TypeAdapter

from gitboot import arguments, userdata
from gitboot.codes import Code
from gitboot.load import FleetRepository, Id, Resource
from gitboot.model.image import Artifact, Artifacts, BootImage, ConfigFrom
from gitboot.model.policy import BootProfile, HttpBoot, Maintenance, Method, Taint
from gitboot.model.scalars import Digest, Malformed
from gitboot.model.server import Architecture, Firmware, Server
from gitboot.plan import Boot, BootFile, BootFiles, Phase, UserDataFiles, provisioned_token
from gitboot.quote import Unquotable, grub_arguments, ipxe_arguments
from gitboot.resolve.choice import Pool
from gitboot.template import TemplateFault, Templates

ArgumentLists = tuple[tuple[Id, tuple[str, ...]], ...]  # by the resource that they are written in


class Unbootable(Exception):
    """A boot that cannot work: the code, what is wrong, its mend, and the resource and field to look at."""

    def __init__(
        self,
        code: Code,
        message: str,
        mend: str,
        resource: Id,
        *path: str | int,
        template: tuple[str, int] | None = None,  # the file and line to look at instead, 1-based
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.mend, self.resource, self.path = code, message, mend, resource, path
        self.template = template


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What one boot is composed of."""

    image: BootImage
    profile: BootProfile
    architecture: Architecture
    firmware: Firmware
    base_url: str
    phase: Phase
    server: Server | None = None  # None: a machine that no document describes
    pool: Pool | None = None  # None: under a maintenance no policy field applies
    maintenance: Maintenance | None = None
    site: str | None = None

    @property
    def profile_id(self) -> Id:
        return Id("BootProfile", self.profile.metadata.name)


class Composer:
    """Composes the boots of one repository; what several share is prepared once."""

    def __init__(self, repository: FleetRepository) -> None:
        self._repository = repository
        self._templates = Templates(repository.files)
        self._plain: dict[Id, dict[str, Any]] = {}

    def compose(self, source: Source) -> Boot:
        """The boot with nothing left to choose; raise `Unbootable` where it cannot work."""
        artifacts = source.image.spec.architectures.get(source.architecture)
        check_method(source, artifacts)
        assert artifacts is not None  # noqa: S101 - check_method
        files = _boot_files(artifacts, source.base_url)
        profile = source.profile.spec
        boot = Boot(
            profile=source.profile.metadata.name,
            image=source.image.metadata.name,
            version=source.image.spec.version,
            method=profile.method,
            http_boot=profile.http_boot,
            writes_disk=source.image.spec.writes_disk,
            config_from=source.image.spec.config_from,
            files=files,
            kernel_arguments=(),
            user_data=None,
            node_labels=source.pool.node_labels if source.pool else {},
            node_taints=source.pool.node_taints if source.pool else (),
            entries={},
            templates=self._template_digests(source.profile),
        )
        return self._rendered(boot, source)

    def _template_digests(self, profile: BootProfile) -> dict[str, Digest]:
        spec = profile.spec
        named = (
            spec.user_data.template if spec.user_data else None,
            spec.templates.ipxe,
            spec.templates.grub,
        )
        return {
            path: Digest(sha256(self._repository.files[path]).hexdigest())
            for path in sorted(path for path in named if path is not None)
        }

    # Templates: arguments first, then user data, which may show them, then entries, which may show all.

    def _rendered(self, boot: Boot, source: Source) -> Boot:
        profile = source.profile.spec
        lists = _argument_lists(boot, source)
        context = _Context(self, boot, source)
        user_data = None
        if profile.user_data is not None:
            with self._template(profile.user_data.template, source, "userData", "template"):
                shows_arguments = "kernel_arguments" in self._templates.names(profile.user_data.template)
            shown = self._arguments(lists, context) if shows_arguments else ()
            user_data = self._user_data(context.having(kernel_arguments=list(shown)), source)
        with_url = context.having(urls=context.urls(user_data))
        merged = self._arguments(lists, with_url)
        if user_data is not None and not boot.direct:
            merged = _with_user_data_arguments(merged, user_data)
        check_way_in(boot, source, _own_arguments(source), user_data)
        if not boot.direct:
            _check_command_line(merged, source)
        entry_context = with_url.having(kernel_arguments=list(merged))
        entries = {
            loader: self._file(path, entry_context, source, "templates", loader)
            for loader in ("grub", "ipxe")
            if (path := getattr(profile.templates, loader)) is not None
        }
        return replace(boot, kernel_arguments=merged, user_data=user_data, entries=entries)

    def _arguments(self, lists: ArgumentLists, context: _Context) -> tuple[str, ...]:
        return arguments.merged(
            [text for _, text in self._rendered_arguments(resource, given, context)] for resource, given in lists
        )

    def _rendered_arguments(self, resource: Id, given: tuple[str, ...], context: _Context) -> list[tuple[int, str]]:
        """One place's arguments with their numbers; an empty one is none."""
        rendered = []
        for number, text in enumerate(given):
            try:
                text = self._templates.render_text(text, context.mapping) if "{" in text else text
            except TemplateFault as fault:
                raise Unbootable(
                    fault.code, fault.message, fault.code.hint, resource, "spec", "kernelArguments", number
                ) from None
            if text:
                rendered.append((number, text))
        return rendered

    def argument_places(self, boot: Boot, source: Source) -> dict[str, tuple[Id, int]]:
        """Where each of a composed boot's arguments is written: (resource, number in its list).

        What leads to the user data is written nowhere.
        """
        context = _Context(self, boot, source)
        with_url = context.having(urls=context.urls(boot.user_data))
        places = {
            text: (resource, number)
            for resource, given in _argument_lists(boot, source)
            for number, text in self._rendered_arguments(resource, given, with_url)
        }
        return {argument: places[argument] for argument in boot.kernel_arguments if argument in places}

    def _user_data(self, context: _Context, source: Source) -> UserDataFiles:
        wanted = source.profile.spec.user_data
        assert wanted is not None  # noqa: S101 - the caller asked
        at = ("spec", "userData", "format")
        at_most = source.image.spec.user_data
        if not userdata.understood(wanted.format, at_most):
            raise Unbootable(
                Code.USER_DATA_FORMAT,
                f"user data is {wanted.format}, and BootImage/{source.image.metadata.name} understands {at_most}",
                "change the format, or the image's userData if it says too little",
                source.profile_id,
                *at,
            )
        text = self._file(wanted.template, context, source, "userData", "template")
        try:
            userdata.check(wanted.format, text)
        except Malformed as error:
            raise Unbootable(
                error.code,
                error.message,
                error.mend,
                source.profile_id,
                *("spec", "userData", "template"),
                template=(wanted.template, 1),
            ) from None
        instance = {}
        if source.server is not None:
            instance = {"instance-id": source.server.spec.uuid, "local-hostname": source.server.metadata.name}
        return userdata.bundled(wanted.format, text, instance=instance, base_url=source.base_url)

    def _file(self, path: str, context: _Context, source: Source, *field: str) -> str:
        with self._template(path, source, *field):
            return self._templates.render_file(path, context.mapping)

    @contextmanager
    def _template(self, path: str, source: Source, *field: str) -> Iterator[None]:
        """A fault of the template at ``path`` makes the boot unbootable, and is looked for in that file."""
        try:
            yield
        except TemplateFault as fault:
            raise Unbootable(
                fault.code,
                fault.message,
                fault.code.hint,
                source.profile_id,
                *("spec", *field),
                template=(path, fault.line or 1),
            ) from None

    def plain(self, resource: Resource) -> dict[str, Any]:
        """A resource in the YAML's own spelling, metadata and spec merged, for templates."""
        key = Id(type(resource).__name__, resource.metadata.name)
        if key not in self._plain:
            dumped = _dumper(type(resource)).dump_python(resource, mode="json", by_alias=True, exclude_none=True)
            plain = _in_order({**dumped["metadata"], **dumped["spec"]})
            for interface in plain.get("interfaces", ()):
                interface["mac"] = interface["mac"].replace("-", ":")
            self._plain[key] = plain
        return self._plain[key]


class _Context:
    """What templates see, made only when one of them looks."""

    def __init__(self, composer: Composer, boot: Boot, source: Source) -> None:
        self._composer, self._boot, self._source = composer, boot, source
        self._more: dict[str, Any] = {}
        self._mapping: dict[str, Any] | None = None

    def having(self, **more: Any) -> _Context:
        other = _Context(self._composer, self._boot, self._source)
        other._more = {**self._more, **more}
        return other

    @property
    def mapping(self) -> Mapping[str, Any]:
        if self._mapping is None:
            self._mapping = {**self._made(), **self._more}
        return self._mapping

    def _made(self) -> dict[str, Any]:
        source, plain = self._source, self._composer.plain
        made: dict[str, Any] = {
            "image": {**plain(source.image), "artifacts": self._boot.files.facts()},
            "profile": plain(source.profile),
            "vars": merged_vars(source),
            "phase": str(source.phase),
            "node_labels": _in_order(self._boot.node_labels),
            "node_taints": [_taint(taint) for taint in self._boot.node_taints],
            "site": {"name": source.site, "baseURL": source.base_url},
            "urls": self.urls(None),
        }
        if source.server is not None:
            made["server"] = plain(source.server)
        if source.pool is not None:
            made["policy"] = {"name": source.pool.name, "profile": source.pool.profile}
        if source.maintenance is not None:
            made["maintenance"] = plain(source.maintenance)
        return made

    def urls(self, user_data: UserDataFiles | None) -> dict[str, str]:
        """Where the machine finds what; ``user_data`` only once that is rendered."""
        source = self._source
        urls = {"base": source.base_url}
        if source.server is not None:
            mac = source.server.boot_macs[0]
            urls["entry"] = f"{source.base_url}/v1/boot/{mac}/boot.ipxe"
            spec = source.server.spec
            token = provisioned_token(spec.uuid, spec.provision, source.image.metadata.name)
            urls["provisioned"] = f"{source.base_url}/v1/boot/{mac}/provisioned/{token}"
        if user_data is not None:
            urls["user_data"] = user_data.url
        return urls


def _taint(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, "value": taint.value, "effect": str(taint.effect)}


_DUMPERS: Final[dict[type, TypeAdapter[Any]]] = {}


def _dumper(kind: type[Resource]) -> TypeAdapter[Any]:
    if kind not in _DUMPERS:
        _DUMPERS[kind] = TypeAdapter(kind)
    return _DUMPERS[kind]


def merged_vars(source: Source) -> dict[str, str | bool]:
    """R7 for variables: policy chain from the root down, profile, server; by name."""
    merged = {
        **(source.pool.vars if source.pool else {}),
        **source.profile.spec.vars,
        **(source.server.spec.vars if source.server else {}),
    }
    return dict(sorted(merged.items()))


def _in_order(value: Any) -> Any:
    """A value whose mappings are in the order of their keys: how YAML was written changes no byte."""
    if isinstance(value, Mapping):
        return {key: _in_order(each) for key, each in sorted(value.items())}
    return [_in_order(each) for each in value] if isinstance(value, list) else value


def _own_arguments(source: Source) -> ArgumentLists:
    """The arguments that are asked for besides the image's own, in the order of R7.

    Under a maintenance they are the maintenance's: neither the policy's nor the server's apply (R2).
    """
    lists: list[tuple[Id, tuple[str, ...]]] = []
    if source.pool is not None:
        lists += (
            (Id("BootPolicy", name), given)
            for name, given in zip(source.pool.chain, source.pool.kernel_arguments, strict=True)
        )
    lists.append((source.profile_id, source.profile.spec.kernel_arguments))
    if source.server is not None and source.maintenance is None:
        lists.append((Id("Server", source.server.metadata.name), source.server.spec.kernel_arguments))
    return tuple(lists)


def _argument_lists(boot: Boot, source: Source) -> ArgumentLists:
    if boot.direct:  # the image's own arguments are built into its uki or iso
        return _own_arguments(source)
    image = (Id("BootImage", source.image.metadata.name), source.image.spec.kernel_arguments)
    return (image, *_own_arguments(source))


def _with_user_data_arguments(merged: tuple[str, ...], user_data: UserDataFiles) -> tuple[str, ...]:
    """Adds what leads a first boot to its user data, unless the author has set it."""
    names = {arguments.name_of(argument) for argument in merged}
    added = (argument for argument in userdata.arguments(user_data) if arguments.name_of(argument) not in names)
    return (*merged, *added)


def _check_command_line(merged: tuple[str, ...], source: Source) -> None:
    try:
        ipxe_arguments(merged)
        grub_arguments(merged)
    except Unquotable as error:
        raise Unbootable(
            Code.UNQUOTABLE, error.message, Code.UNQUOTABLE.hint, source.profile_id, "spec", "kernelArguments"
        ) from None


def _boot_files(artifacts: Artifacts, base_url: str) -> BootFiles:
    def file(artifact: Artifact | None) -> BootFile | None:
        if artifact is None:
            return None
        return BootFile(url=_url(artifact.url, base_url), sha256=artifact.sha256, size=artifact.size)

    return BootFiles(
        kernel=file(artifacts.kernel),
        initrds=tuple(found for initrd in artifacts.initrds if (found := file(initrd)) is not None),
        rootfs=file(artifacts.rootfs),
        uki=file(artifacts.uki),
        iso=file(artifacts.iso),
        loader=file(artifacts.loader),
    )


def _url(url: str, base_url: str) -> str:
    return f"{base_url}/assets/{url.removeprefix('assets:')}" if url.startswith("assets:") else url


# Rule R6: what a method needs of the image, by what the profile says.
_NEEDS: Final[Mapping[HttpBoot, tuple[str, ...]]] = {
    HttpBoot.UKI: ("uki",),
    HttpBoot.ISO: ("iso",),
    HttpBoot.LOADER: ("loader", "kernel"),
}


def check_method(source: Source, artifacts: Artifacts | None) -> None:
    """Image and method agree for this architecture and firmware, or `Unbootable`."""
    image, spec = source.image.metadata.name, source.profile.spec
    at = (source.profile_id, "spec", "method")
    if artifacts is None:
        raise Unbootable(
            Code.NO_ARTIFACT,
            f"BootImage/{image} has nothing for {source.architecture}",
            "add the architecture to the image, or narrow who boots it",
            *at,
        )
    uefi = source.firmware is Firmware.UEFI
    if spec.method is Method.UEFI_HTTP:
        if not uefi:
            raise Unbootable(Code.FIRMWARE, "method UefiHttp needs firmware UEFI, found BIOS", Code.FIRMWARE.hint, *at)
        needs = _NEEDS[spec.http_boot or HttpBoot.LOADER]
    elif spec.method is Method.VIRTUAL_MEDIA:
        needs = ("iso",)
    elif artifacts.kernel is None and artifacts.uki is not None and not uefi:
        raise Unbootable(
            Code.FIRMWARE,
            f"BootImage/{image} has a uki and no kernel for {source.architecture}, which BIOS cannot boot",
            Code.FIRMWARE.hint,
            *at,
        )
    else:
        needs = ("kernel",) if artifacts.uki is None else ()
    lacking = [need for need in needs if getattr(artifacts, need) is None]
    if lacking:
        raise Unbootable(
            Code.NO_ARTIFACT,
            f"BootImage/{image} has no {' and no '.join(lacking)} for {source.architecture}, which method "
            f"{spec.method} needs" + (f" with httpBoot {spec.http_boot}" if spec.http_boot else ""),
            "add the artifact to the image, or change the method",
            *at,
        )
    named = (
        artifacts.kernel,
        *artifacts.initrds,
        artifacts.rootfs,
        artifacts.uki,
        artifacts.iso,
        artifacts.loader,
    )
    if any(artifact is not None and artifact.url.startswith("oci:") for artifact in named):
        raise Unbootable(
            Code.NOT_YET,
            f"BootImage/{image} names an artifact by oci://, which no machine fetches and this version does not mirror",
            "serve the file by http and name that URL",
            *at,
        )


def check_way_in(
    boot: Boot,
    source: Source,
    own: ArgumentLists,
    user_data: UserDataFiles | None,
) -> None:
    """Arguments, user data, labels and taints reach the system by this boot, or `Unbootable`."""
    if not boot.direct:
        if user_data is not None and boot.config_from is ConfigFrom.NONE:
            raise Unbootable(
                Code.NO_WAY_IN,
                f"BootImage/{boot.image} says configFrom: None, so user data does not reach it",
                "leave out userData, or correct the image's configFrom",
                source.profile_id,
                *("spec", "userData"),
            )
        return
    asks_by_uuid = boot.config_from is ConfigFrom.SYSTEM_UUID
    if asks_by_uuid and user_data is not None and userdata.family(user_data.format).value == "Ignition":
        return  # all of it can stand in the Ignition document that the system fetches
    given = next(((resource, number) for resource, each in own for number, _ in enumerate(each)), None)
    what, resource, path = None, source.profile_id, ("spec", "method")
    if user_data is not None:
        what, path = "user data", ("spec", "userData")
    elif given is not None:
        what, resource, path = "kernel arguments", given[0], ("spec", "kernelArguments")
    elif source.pool is not None and (boot.node_labels or boot.node_taints):
        what, resource, path = (
            "node labels and taints",
            Id("BootPolicy", source.pool.name),
            ("spec", "profile"),
        )
    if what is not None:
        file = "iso" if boot.files.uki is None or boot.http_boot is HttpBoot.ISO else "uki"
        raise Unbootable(
            Code.NO_WAY_IN,
            f"{what} cannot reach BootImage/{boot.image}, which is booted directly as {file}",
            Code.NO_WAY_IN.hint,
            resource,
            *path,
        )
