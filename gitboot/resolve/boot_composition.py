"""Boot composition: build a boot from an image, a profile, a policy and a Server document (rules R6 and R7)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Final

from msgspec import Struct, field
from msgspec.json import decode

from gitboot.fleet.documents import Id, Resource, parse_encrypted
from gitboot.jsonio import Digest, encode_canonical, to_json_value
from gitboot.model.boot_image import Artifact, Artifacts
from gitboot.model.boot_policy import NetworkBoot, UserData
from gitboot.model.fields import to_yaml_value
from gitboot.model.scalars import Malformed, is_reserved_argument
from gitboot.model.server import Server
from gitboot.problems import Code
from gitboot.quoting import has_boot_nic_placeholder, has_miscased_placeholder
from gitboot.resolve import templates, user_data_formats
from gitboot.resolve.boot_checks import check_command_line, check_config_delivery, select_artifacts
from gitboot.resolve.decision_inputs import FILE, list_templates
from gitboot.resolve.kernel_arguments import (
    ArgumentLists,
    add_user_data_arguments,
    collect_argument_lists,
    collect_own_arguments,
    merge_arguments,
    merge_vars,
)
from gitboot.resolve.policy_selection import BootSource, Unbootable
from gitboot.resolve.server_decision import Boot, BootFile, BootFiles, FileProof, UserDataFiles, report_token
from gitboot.resolve.templates import TemplateFault


class _SharedBoot(Struct, frozen=True):
    """The part of a boot that many servers share, which excludes rendered arguments, user data and scripts."""

    boot: Boot
    documents: tuple[object, ...]  # the source documents; while they are in memory, their id() values stay unique
    template_values: dict[str, Any] = field(default_factory=dict)  # set when a template first needs the values


# The file names of mirrored artifacts, by role. The folder of each file has the digest of the file as its name.
MIRRORED_NAMES: Final = ("kernel", "initrd", "rootfs", "uki.efi", "image.iso", "loader.efi")
_KERNEL, _INITRD, _ROOTFS, _UKI, _ISO, _LOADER = MIRRORED_NAMES
_LOADER_NAMES: Final = ("boot_nic", "kernel_arguments")  # variables whose values the boot loaders fill in


class Composer:
    """A composer of boots, which caches the parts that servers share."""

    def __init__(self) -> None:
        self._plain = PlainDocuments()
        # The key contains everything on which the shared part depends. The key contains id() of each document.
        self._shared_boots: dict[tuple[object, ...], _SharedBoot] = {}
        self._digests: dict[tuple[tuple[str, bytes], ...], Mapping[str, Digest]] = {}  # the texts of template files

    def compose(self, source: BootSource) -> Boot:
        """Compose a boot from its source documents. Raises `Unbootable` if the boot cannot work.

        gitboot renders kernel arguments first, because user data may contain kernel arguments. It renders boot scripts
        last, because boot scripts may contain the kernel arguments and the URL of the user data.
        """
        shared = self._prepare_shared_boot(source)
        boot, profile = shared.boot, source.profile.spec
        lists = collect_argument_lists(boot, source)
        context = TemplateContext(self._plain, boot, source, shared.template_values)
        user_data = self._compose_user_data(lists, context, source)
        url_context = context.with_values(urls=context.make_urls(user_data))
        merged = self._merge_arguments(lists, url_context)
        if user_data is not None and not boot.is_direct:
            merged = add_user_data_arguments(merged, user_data)
        check_config_delivery(boot, source, collect_own_arguments(source), user_data)
        if not boot.is_direct:
            check_command_line(merged, source, lambda: self._locate_arguments(lists, url_context))
        entry_context = url_context.with_values(kernel_arguments=list(merged))
        entries = {
            loader: self._render_entry(loader, path, entry_context, source)
            for loader in ("grub", "ipxe")
            if (path := getattr(profile.templates, loader)) is not None
        }
        digests = self._compute_template_digests(source)
        return replace(boot, kernel_arguments=merged, user_data=user_data, entries=entries, templates=digests)

    def _compose_user_data(
        self, lists: ArgumentLists, context: TemplateContext, source: BootSource
    ) -> UserDataFiles | None:
        """Return the rendered user data, or None if the profile does not set user data."""
        spec = source.profile.spec.user_data
        if spec is None:
            return None
        try:
            template = templates.decode_template(source.files[spec.template])
            shows_arguments = "kernel_arguments" in templates.find_names(template)
        except TemplateFault as fault:
            raise _make_unbootable(fault, spec.template) from None
        arguments = self._merge_arguments(lists, context) if shows_arguments else ()
        # User data cannot use values of the boot NIC, because it must be the same for every NIC.
        user_data_context = context.with_values(
            kernel_arguments=[argument for argument in arguments if not has_boot_nic_placeholder(argument)],
            boot_nic=templates.BOOT_NIC_OF_USER_DATA,
        )
        return self._render_user_data(spec, user_data_context, source)

    def _compute_template_digests(self, source: BootSource) -> Mapping[str, Digest]:
        files = tuple((path, source.files[path]) for path in sorted(list_templates(source.profile)))
        if (digests := self._digests.get(files)) is None:
            digests = self._digests[files] = {path: Digest(sha256(data).hexdigest()) for path, data in files}
        return digests

    def _prepare_shared_boot(self, source: BootSource) -> _SharedBoot:
        profile, image, pool = source.profile, source.image, source.pool
        documents = profile, image, pool, source.maintenance
        platform = source.architecture, source.firmware, source.base_url, source.site
        settings = source.mirrors, source.requires_signature, source.has_ipxe_scripts, source.boots_by_ipxe
        key = (*map(id, documents), *platform, *settings)
        if (known := self._shared_boots.get(key)) is None:
            files = build_boot_files(
                select_artifacts(source),
                source.base_url,
                mirrors=source.mirrors,
                requires_signature=source.requires_signature,
                has_ipxe_scripts=source.has_ipxe_scripts,
            )
            boot = Boot(
                profile=profile.metadata.name,
                image=image.metadata.name,
                version=image.spec.version,
                method=profile.spec.method,
                http_boot=profile.spec.http_boot,
                writes_disk=image.spec.writes_disk,
                config_from=image.spec.config_from,
                files=files,
                kernel_arguments=(),
                user_data=None,
                node_labels=pool.node_labels if pool else {},
                node_taints=pool.node_taints if pool else (),
                entries={},
                templates={},
                boots=image.spec.boots,
                ignores_signatures=bool(files.loader_signatures) and not source.boots_by_ipxe,
            )
            known = self._shared_boots[key] = _SharedBoot(boot, documents)
        return known

    def _merge_arguments(self, lists: ArgumentLists, context: TemplateContext) -> tuple[str, ...]:
        rendered = [self._render_arguments(resource, arguments, context) for resource, arguments in lists]
        merged = merge_arguments(tuple([tuple([text for _, text in arguments]) for arguments in rendered]))
        for number, item in merged.ineffective_items:
            if len(item) == 2:  # only items with a dash and one letter, such as -x
                resource, _ = lists[number]
                index = next(index for index, text in rendered[number] if text == item)
                raise Unbootable(
                    Code.LOST_ARGUMENT,
                    f"{item} removes the kernel argument {item[1:]}, but no earlier list contains this argument",
                    Code.LOST_ARGUMENT.hint,
                    resource,
                    *("spec", "kernelArguments", index),
                )
        return merged.arguments

    def _render_arguments(
        self, resource: Id, arguments: tuple[str, ...], context: TemplateContext
    ) -> list[tuple[int, str]]:
        """Return the rendered arguments, each with its index in the document. Omit arguments without text."""
        rendered = []
        for number, text in enumerate(arguments):
            try:
                text = templates.render_template(text, context.mapping) if "{" in text else text
            except TemplateFault as fault:
                raise Unbootable(
                    fault.code, fault.message, fault.code.hint, resource, "spec", "kernelArguments", number
                ) from None
            if is_reserved_argument(text):
                raise Unbootable(
                    Code.RESERVED_ARGUMENT,
                    f"the kernel argument {text.partition('=')[0]}= is reserved for gitboot and the boot loader",
                    Code.RESERVED_ARGUMENT.hint,
                    resource,
                    *("spec", "kernelArguments", number),
                )
            if has_miscased_placeholder(text):
                raise Unbootable(
                    Code.TEMPLATE_FAILED,
                    "a filter in the template changed a `boot_nic` value",
                    "remove the filter from the `boot_nic` value",
                    resource,
                    *("spec", "kernelArguments", number),
                )
            if text:
                rendered.append((number, text))
        return rendered

    def list_dropped_arguments(self, boot: Boot, source: BootSource) -> list[tuple[str, Id, str]]:
        """Return each kernel argument that the merge dropped, with the argument's document and the reason."""
        context = TemplateContext(self._plain, boot, source, {})
        context = context.with_values(urls=context.make_urls(boot.user_data))
        lists = collect_argument_lists(boot, source)
        rendered = [self._render_arguments(resource, arguments, context) for resource, arguments in lists]
        merged = merge_arguments(tuple([tuple([text for _, text in arguments]) for arguments in rendered]))
        documents = [resource for resource, _ in lists]
        dropped_arguments = [
            (
                dropped.argument,
                documents[dropped.list],
                f"{documents[dropped.dropped_by]} sets or removes this argument",
            )
            for dropped in merged.dropped
        ]
        dropped_arguments += [
            (item, documents[number], "no earlier document sets this argument")
            for number, item in merged.ineffective_items
        ]
        return dropped_arguments

    def _locate_arguments(self, lists: ArgumentLists, context: TemplateContext) -> dict[str, tuple[Id, int]]:
        return {
            text: (resource, number)
            for resource, arguments in lists
            for number, text in self._render_arguments(resource, arguments, context)
        }

    def locate_arguments(self, boot: Boot, source: BootSource) -> dict[str, tuple[Id, int]]:
        """Map each kernel argument of a composed boot to the document that contains it, and to its index in the
        document's list.

        Omit the arguments that gitboot adds for the user data.
        """
        context = TemplateContext(self._plain, boot, source, {})
        places = self._locate_arguments(
            collect_argument_lists(boot, source), context.with_values(urls=context.make_urls(boot.user_data))
        )
        return {argument: places[argument] for argument in boot.kernel_arguments if argument in places}

    def _render_user_data(self, spec: UserData, context: TemplateContext, source: BootSource) -> UserDataFiles:
        supported = source.image.spec.user_data
        if not user_data_formats.is_format_supported(spec.format, supported):
            raise Unbootable(
                Code.USER_DATA_FORMAT,
                f"the user data format is {spec.format}, but BootImage/{source.image.metadata.name} supports "
                f"{supported}",
                "change the format, or correct `userData` in the image",
                source.profile_id,
                *("spec", "userData", "format"),
            )
        secrets = read_secret_texts(source)
        text = self._render_checked_file(
            spec.template, partial(user_data_formats.check_user_data, spec.format), context, source
        )
        extra_files = {}
        for name, (_, path) in spec.extra_templates.items():
            check_user_data = partial(user_data_formats.check_extra_file, spec.format, name)
            extra_files[name] = self._render_checked_file(path, check_user_data, context, source)
        instance = {}
        if source.server is not None:
            instance = {"instance-id": source.server.uuid, "local-hostname": source.server.metadata.name}
        user_data = user_data_formats.bundle_files(
            spec.format, text, extra_files, instance=instance, base_url=source.base_url
        )
        return replace(user_data, secrets=secrets) if secrets else user_data

    def _render_checked_file(
        self, path: str, check: Callable[[str], None], context: TemplateContext, source: BootSource
    ) -> str:
        text = self._render_file(path, context, source)
        try:
            check(text)
        except Malformed as error:
            line = 1
            rendered_line = next((step for step in error.at if isinstance(step, int)), None)
            if rendered_line is not None:
                template = templates.decode_template(source.files[path])
                line = templates.find_source_line(template, context.mapping, text, rendered_line)
            raise Unbootable(error.code, error.message, error.hint, Id(FILE, path), line) from None
        return text

    def _render_entry(self, loader: str, path: str, context: TemplateContext, source: BootSource) -> str:
        text = self._render_file(path, context, source)
        if has_boot_nic_placeholder(text):
            lines = templates.decode_template(source.files[path]).splitlines()
            numbers = (number for number, line in enumerate(lines, 1) if any(name in line for name in _LOADER_NAMES))
            raise Unbootable(
                Code.TEMPLATE_FAILED,
                f"a template for {loader} must apply the filter `{loader}` to `boot_nic` values",
                f"write {{{{ kernel_arguments | {loader} }}}} or {{{{ boot_nic.mac | {loader} }}}}",
                Id(FILE, path),
                next(numbers, 1),
            )
        return text

    def _render_file(self, path: str, context: TemplateContext, source: BootSource) -> str:
        try:
            return templates.render_template(templates.decode_template(source.files[path]), context.mapping)
        except TemplateFault as fault:
            raise _make_unbootable(fault, path) from None


def _make_unbootable(fault: TemplateFault, path: str) -> Unbootable:
    return Unbootable(fault.code, fault.message, fault.code.hint, Id(FILE, path), fault.line or 1)


class PlainDocuments:
    """Documents in the form that templates use, with YAML field names and with metadata and spec merged.

    The cache holds all documents except servers. It holds only the last server, because gitboot renders servers one
    after another.
    """

    def __init__(self) -> None:
        # by id(); while a document is stored, its id() stays unique
        self._cache: dict[int, tuple[Resource, dict[str, Any]]] = {}
        self._last: tuple[Server | None, dict[str, Any]] = None, {}

    def get(self, resource: Resource) -> dict[str, Any]:
        cached = self._last if isinstance(resource, Server) else self._cache.get(id(resource))
        if cached is not None and cached[0] is resource:
            return cached[1]
        dumped = to_yaml_value(resource)
        plain: dict[str, Any] = _sort_keys({**dumped["metadata"], **dumped["spec"]})
        for interface in plain.get("interfaces", ()):
            interface["mac"] = interface["mac"].replace("-", ":")
        if isinstance(resource, Server):
            self._last = resource, plain
        else:
            self._cache[id(resource)] = resource, plain
        return plain


def _sort_keys(value: Any) -> Any:
    """Sort the keys of all mappings, so that the order of keys in YAML does not affect the rendered text."""
    return decode(encode_canonical(value))


class TemplateContext:
    """The variables of templates. Each value is computed when a template first uses it."""

    def __init__(self, plain: PlainDocuments, boot: Boot, source: BootSource, shared_values: dict[str, Any]) -> None:
        self._plain, self._boot, self._source = plain, boot, source
        self._shared = shared_values  # shared with boots of other servers; set on first use
        self._extra_values: dict[str, Any] = {}
        # Shared with the contexts that `with_values` derived from this context; set on first use.
        self._common: dict[str, Any] = {}
        self._mapping: dict[str, Any] | None = None

    def with_values(self, **values: Any) -> TemplateContext:
        derived = TemplateContext(self._plain, self._boot, self._source, self._shared)
        derived._extra_values, derived._common = {**self._extra_values, **values}, self._common
        return derived

    @property
    def mapping(self) -> Mapping[str, Any]:
        if self._mapping is None:
            source = self._source
            if not self._common:
                if not self._shared:
                    self._shared.update(self._make_shared_values())
                self._common.update({**self._shared, "vars": merge_vars(source), "urls": self.make_urls(None)})
                if source.server is not None:
                    self._common["server"] = self._plain.get(source.server)
            self._mapping = {**self._common, **self._extra_values}
        return self._mapping

    def _make_shared_values(self) -> dict[str, Any]:
        source, plain, boot = self._source, self._plain.get, self._boot
        taints = [{"key": taint.key, "value": taint.value, "effect": str(taint.effect)} for taint in boot.node_taints]
        values: dict[str, Any] = {
            "image": {**plain(source.image), "artifacts": to_json_value(boot.files)},
            "profile": plain(source.profile),
            "phase": str(source.phase),
            "node_labels": _sort_keys(boot.node_labels),
            "node_taints": taints,
            "site": {"name": source.site, "baseURL": source.base_url},
            "boot_nic": templates.BOOT_NIC,
        }
        if source.pool is not None:
            values["policy"] = {"name": source.pool.name, "profile": source.pool.profile}
        if source.maintenance is not None:
            values["maintenance"] = plain(source.maintenance)
        return values

    def make_urls(self, user_data: UserDataFiles | None) -> dict[str, Any]:
        """Return the URLs that templates may use.

        After gitboot has rendered the user data, the URLs include the URL of the user data.
        """
        urls = self._common.get("urls") or _make_urls(self._source)
        return {**urls, "user_data": user_data.url} if user_data is not None else urls


def _make_urls(source: BootSource) -> dict[str, Any]:
    # Only the host that serves one-time boots serves secrets. Mirrors may serve all other files.
    urls: dict[str, Any] = {"base": source.base_url, "secrets": {}}
    if source.server is not None:
        mac = source.server.boot_macs[0]
        urls["entry"] = f"{source.base_url}/v1/boot/{mac}/boot.ipxe"
        token = report_token(source.server.uuid, source.server.spec.provision, source.image.metadata.name)
        for report in ("failed", "provisioned"):
            urls[report] = f"{source.base_url}/v1/boot/{mac}/{report}/{token}"
        urls["secrets"] = {name: f"{source.endpoint}/s/{token}/{mac}/{name}" for name in find_secret_files(source)}
    return urls


def find_secret_files(source: BootSource) -> dict[str, str]:
    """Return the paths of a server's secret files, by secret name.

    The server's secrets override the profile's secrets.
    """
    user_data = source.profile.spec.user_data
    if user_data is None or source.server is None or source.pool is None:
        return {}
    if source.pool.network_boot not in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE, NetworkBoot.NEVER):
        return {}
    return dict(sorted({**user_data.secrets, **source.server.spec.secrets}.items()))


def read_secret_texts(source: BootSource) -> dict[str, str]:
    """Return the encrypted secrets as base64, by name.

    Raises `Unbootable` if gitboot would serve the profile's secrets for an unlimited time, for example with networkBoot
    Always.
    """
    secret_files = find_secret_files(source)
    user_data = source.profile.spec.user_data
    if user_data is not None and user_data.secrets and not secret_files:
        why = "unknown machines boot with this profile"
        if source.maintenance is not None:
            name = source.maintenance.metadata.name
            why = f"Maintenance/{name} boots servers with this profile and does not install them"
        elif (pool := source.pool) is not None:
            why = f"BootPolicy/{pool.name} boots servers with this profile and networkBoot: {pool.network_boot}"
        raise Unbootable(
            Code.SECRET_KEPT_OPEN,
            f"the user data refers to secrets, but {why}",
            Code.SECRET_KEPT_OPEN.hint,
            source.profile_id,
            *("spec", "userData", "secrets"),
        )
    return {name: b64encode(parse_encrypted(source.files[path])).decode() for name, path in secret_files.items()}


def build_boot_files(
    artifacts: Artifacts, base_url: str, *, mirrors: bool, requires_signature: bool, has_ipxe_scripts: bool
) -> BootFiles:
    """Return the files of an image with the URLs from which machines fetch them.

    With ``mirrors``, machines fetch the files from the mirror, which downloads them.
    """
    signatures: dict[str, str] = {}

    def make_file(artifact: Artifact | None, name: str) -> BootFile | None:
        if artifact is None:
            return None
        url, source = choose_download_url(artifact.url, base_url), None
        if mirrors and not artifact.url.startswith("assets:"):
            url, source = f"{base_url}/o/{artifact.sha256}/{name}", artifact.url
        if artifact.loader_signature is not None and has_ipxe_scripts:
            signatures[url] = choose_download_url(artifact.loader_signature, base_url)
        proof = None
        if requires_signature:
            proof = FileProof(url=artifact.url, signature=artifact.signature, checksums=artifacts.checksums)
        return BootFile(url=url, sha256=artifact.sha256, size=artifact.size, source=source, proof=proof)

    return BootFiles(
        kernel=make_file(artifacts.kernel, _KERNEL),
        initrds=tuple(found for initrd in artifacts.initrds if (found := make_file(initrd, _INITRD)) is not None),
        rootfs=make_file(artifacts.rootfs, _ROOTFS),
        uki=make_file(artifacts.uki, _UKI),
        iso=make_file(artifacts.iso, _ISO),
        loader=make_file(artifacts.loader, _LOADER),
        loader_signatures=signatures,  # complete at this point, because gitboot builds the files first
    )


def choose_download_url(url: str, base_url: str) -> str:
    """Return the URL of an artifact. In an ``assets:`` URL, replace the prefix with ``base_url``."""
    return f"{base_url}/assets/{url.removeprefix('assets:')}" if url.startswith("assets:") else url
