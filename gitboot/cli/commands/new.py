"""`gitboot new server` and `gitboot new image`: write Server and Image documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

import click
from msgspec import structs

from gitboot.artifacts.oci import OciReference
from gitboot.artifacts.signatures import VendorKeys
from gitboot.child_processes import lift_processor_limit
from gitboot.cli.completion import complete_servers, complete_sources
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Exit, Group
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    combine_options,
    credentials_option,
    open_registries,
    output_option,
    path_option,
    registry_options,
    write_outputs,
)
from gitboot.cli.terminal import format_table, show_downloads, wrap_text
from gitboot.errors import UsageError
from gitboot.files import create_output_file
from gitboot.fleet.documents import FleetRepository
from gitboot.image_sources.find_releases import (
    ReleaseFinder,
    describe_local_files,
    describe_oci_image,
    describe_urls,
    find_source,
    list_vendor_sources,
)
from gitboot.image_sources.image_builder import BuiltImage, build_image, find_image_name, format_origin
from gitboot.image_sources.index_formats import FileRole, Release, ReleaseFiles
from gitboot.importers.fleet_files import NewServer, render_server
from gitboot.jsonio import format_document, to_json_value
from gitboot.model.image_source import ImageSource
from gitboot.model.scalars import (
    Malformed,
    build_document_name,
    byte_orders,
    parse_artifact_url,
    parse_lookup_mac,
    parse_lookup_uuid,
    parse_mac,
    parse_name,
)
from gitboot.model.server import Architecture, Firmware
from gitboot.text import format_names, format_suggestion, quote_words


@click.group(context_settings=VARIABLES, cls=Group, example="gitboot new server web02 --mac 52:54:00:12:34:56")
def new_command() -> None:
    """Write a document for a new server or image."""


@new_command.command(
    "server",
    context_settings=VARIABLES,
    example="gitboot new server web02 --seen 52:54:00:12:34:56 --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot wrote the document",
        Exit.INVALID: "the fleet has errors",
        Exit.SOURCE: "the BMC did not respond",
        Exit.USAGE: "an option is wrong, or the server already has a document",
    },
)
@click.argument("name")
@path_option
@click.option(
    "--seen",
    metavar="MAC",
    help="Take the facts from the unknown machine with this MAC address. `gitboot unknown-machines` lists "
    "these machines.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of the instance that recorded the machine from --seen. Default: the variable "
    "GITBOOT_STATE.",
)
@click.option("--bmc", "address", metavar="ADDRESS", help="Read the facts from this BMC by Redfish.")
@click.option(
    "--as",
    "credentials_name",
    metavar="NAME",
    help="The name of the credentials for --bmc, as in spec.bmc.credentials.",
)
@credentials_option
@click.option(
    "--no-verify",
    is_flag=True,
    help="Accept any certificate of the BMC, and write this into the document. An access.toml must allow it.",
)
@click.option(
    "--like",
    metavar="SERVER",
    shell_complete=complete_servers,
    help="Copy labels, architecture, policy and variables from this server.",
)
@click.option(
    "--mac",
    "macs",
    multiple=True,
    metavar="MAC",
    help="A MAC address of the machine. Repeat the option for several addresses.",
)
@click.option("--uuid", metavar="UUID", help="The system UUID of the machine, if --seen and --bmc do not supply it.")
@evaluator_command
def server(
    name: str,
    path: Path,
    seen: str | None,
    state: Path | None,
    address: str | None,
    credentials_name: str | None,
    credentials: Path | None,
    no_verify: bool,
    like: str | None,
    macs: tuple[str, ...],
    uuid: str | None,
) -> None:
    """Write a document for a new server.

    gitboot writes servers/NAME.yaml in the fleet, for a pull request. It takes the facts about the machine from --seen,
    --bmc, --mac and --uuid. You can combine some of these options.

    The new server is Parked. gitboot does not boot it, and does not set its BMC, until you change the document. gitboot
    does not overwrite a document, and does not write a second document for a machine.
    """
    from gitboot.cli.evaluated_fleet import find_fleet_file, load_fleet

    fleet = load_fleet(path, None)
    find_fleet_file(path, fleet)  # raises if gitboot cannot write documents there
    new_server = NewServer(macs={})
    comment = "A new server."
    try:
        if seen is not None:
            if state is None:
                raise UsageError("--seen needs --state, the state directory of the instance that lists the machine")
            new_server, comment = _read_unknown_machine(seen, state)
        if address is not None:
            if credentials_name is None:
                raise UsageError("--bmc needs --as NAME: the name of the credentials, as documents use it")
            bmc_server, comment = _read_bmc(address, credentials_name, credentials, verify=not no_verify)
            if seen is not None and new_server.macs.keys().isdisjoint(bmc_server.macs):
                raise UsageError(
                    f"the machine at {address} does not have the MAC address given with --seen: check --bmc and --seen"
                )
            new_server = bmc_server
        added_macs = {parse_lookup_mac(mac): None for mac in macs}
        new_server = structs.replace(new_server, macs={**new_server.macs, **added_macs})
        if uuid is not None:
            new_server = structs.replace(new_server, uuid=parse_lookup_uuid(uuid))
        server_name = parse_name(name)
    except Malformed as error:
        raise UsageError(f"{error.message}; {error.hint}") from None
    if not new_server.macs:
        raise UsageError("the server needs a MAC address: add --seen, --bmc or --mac")
    _check_identity(server_name, new_server, fleet)
    example = fleet.servers.get(like) if like is not None else None
    if like is not None and example is None:
        raise UsageError(f"--like: there is no Server/{like} in the fleet")
    text = render_server(server_name, new_server, example, comment)
    file = path / "servers" / f"{server_name}.yaml"
    if not create_output_file(file, text.encode(), make_folders=True):
        raise UsageError(f"{file} already exists: move the file, or choose another name")
    click.echo(f"wrote {file}; next step: gitboot validate {quote_words(path)}")


def _check_identity(name: str, new_server: NewServer, fleet: FleetRepository) -> None:
    """Raise `UsageError` if a server in the fleet has the same name, MAC address, UUID or serial number."""
    new_uuids = {*byte_orders(new_server.uuid)} if new_server.uuid is not None else set()
    for other_name, other in fleet.servers.items():
        if other_name == name:
            raise UsageError(f"Server/{name} already exists: choose another name")
        shared: set[str] = {nic.mac for nic in other.spec.interfaces if nic.mac in new_server.macs}
        shared |= {*byte_orders(other.uuid)} & new_uuids
        if other.spec.serial and other.spec.serial == new_server.serial:
            shared.add(other.spec.serial)
        if shared:
            raise UsageError(f"Server/{other_name} already has {min(shared)}: write only one document for each machine")


def _read_unknown_machine(name: str, state: Path) -> tuple[NewServer, str]:
    """Return the unknown machine with a MAC address, and a comment for its document.

    Raises `Malformed` if ``name`` is not a MAC address. Raises `UsageError` if there is no such machine.
    """
    from gitboot.fetchlog.unknown_machines import load_unknown_machines

    mac = parse_mac(name)
    machine = next((each for each in load_unknown_machines(state).machines if mac in each.macs), None)
    if machine is None:
        raise UsageError(
            f"no unknown machine with the MAC address {name} has requested a boot; to list the machines, run "
            f"`gitboot unknown-machines --state {quote_words(state)}`"
        )
    when = f"{machine.last:%Y-%m-%d %H:%M} UTC"
    comment = f"The machine with the address {machine.client} requested a boot at {when} and sent these facts."
    new_server = NewServer(macs=dict.fromkeys(machine.macs), uuid=machine.uuid, serial=machine.serial)
    inventory = machine.inventory
    if inventory is None:
        return new_server, comment
    names = {interface.mac: interface.name for interface in inventory.interfaces}
    new_server = structs.replace(
        new_server,
        macs={mac: names.get(mac) for mac in machine.macs},
        architecture=Architecture(inventory.architecture) if inventory.architecture is not None else None,
        firmware=Firmware(inventory.firmware) if inventory.firmware is not None else None,
    )
    return new_server, f"{comment} Its inventory: {inventory}."


def _read_bmc(address: str, credentials_name: str, credentials: Path | None, *, verify: bool) -> tuple[NewServer, str]:
    """Return the only machine of a BMC, and a comment for its document.

    Raises `UsageError` if gitboot cannot read the BMC, or if the BMC shows several machines or no identity.
    """
    from gitboot.bmc.scan import list_addresses
    from gitboot.cli.commands.bmc_scan import scan_places

    probes = scan_places(list_addresses([address], [443]), credentials, credentials_name, verify=verify, parallel=1)
    machines = [machine for probe in probes for machine in probe.servers]
    if len(machines) != 1:
        errors = [probe.error for probe in probes if probe.error is not None]
        raise UsageError(f"{address}: {errors[0] if errors else f'it shows {len(machines)} machines'}")
    [machine] = machines
    if machine.missing_identity is not None:
        raise UsageError(f"{address}: {machine.missing_identity}")
    bmc: dict[str, object] = {"address": machine.address}  # in the order of the fields in a document
    if not machine.is_only_system:
        bmc["system"] = machine.system
    bmc["credentials"] = credentials_name
    if not verify:
        bmc["tls"] = {"verify": False}
    new_server = NewServer(
        macs={nic.mac: nic.name or None for nic in machine.nics},
        uuid=machine.identity.uuid,
        serial=machine.serial,
        architecture=machine.architecture,
        firmware=machine.firmware,
        bmc=bmc,
    )
    model = f"{machine.maker} {machine.model}".strip() or "A machine"
    return new_server, f"{model}, found at {machine.address}."


image_keys_option = click.option(
    "--image-keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A directory with more keys to accept: *.asc and *.gpg of OpenPGP, *.pub of minisign, *.toml of sigstore. "
    "Default: only the keys that gitboot ships.",
)


@contextmanager
def open_image_keys(directory: Path | None) -> Iterator[VendorKeys]:
    """Yield the keys that gitboot ships together with the keys in a directory."""
    with TemporaryDirectory(prefix="gitboot-") as scratch:
        yield VendorKeys(directory, Path(scratch))


_file_options = combine_options(
    *(
        click.option(
            f"--{name}", str(role), multiple=role is FileRole.INITRD, metavar="URL|FILE", help=f"{text}. Default: none."
        )
        for role, name, text in (
            (FileRole.KERNEL, "kernel", "A Linux kernel"),
            (FileRole.INITRD, "initrd", "An initial ramdisk. Repeat the option for several ramdisks, in order"),
            (FileRole.ROOTFS, "rootfs", "A root file system (squashfs)"),
            (FileRole.UKI, "uki", "A unified kernel image"),
            (FileRole.ISO, "iso", "A bootable ISO image"),
        )
    )
)
_WEB: Final = ("http://", "https://")


@new_command.command(
    "image",
    context_settings=VARIABLES,
    example="gitboot new image flatcar --channel stable --dry-run",
    exit_codes={
        Exit.FINE: "gitboot wrote or printed the document, or listed the sources",
        Exit.INVALID: "the fleet has errors",
        Exit.SOURCE: "the source did not respond, or sent an invalid index or file",
        Exit.USAGE: "an option is wrong, or the image already has a document",
    },
    sections={
        "Files instead of a source": (*map(str, FileRole), "assets"),
        "Registries and TLS": ("registries", "registry_credentials", "ca_bundle", "allow_token_over_http"),
        "Evaluation limits": ("no_cache", "commit_seconds", "commit_memory", "commit_workers"),
    },
)
@click.argument("source", required=False, shell_complete=complete_sources)
@click.argument("version", required=False)
@path_option
@click.option("--channel", metavar="NAME", help="The channel of the source. Default: the first channel of the source.")
@click.option(
    "--architecture",
    "architectures",
    multiple=True,
    type=click.Choice([each.value for each in Architecture]),
    help="Only this architecture. Repeat the option for several architectures. Default: all architectures of the "
    "source, or x86_64 for single files.",
)
@click.option("--name", metavar="NAME", help="The name of the document. Default: SOURCE-VERSION.")
@_file_options
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The directory that is served at baseURL/assets/, for files of this host. Each FILE must be below it.",
)
@image_keys_option
@click.option("--dry-run", is_flag=True, help="Print the document. Write nothing.")
@registry_options
@output_option("text", "json")
@evaluator_command
def image(
    source: str | None,
    version: str | None,
    path: Path,
    channel: str | None,
    architectures: tuple[str, ...],
    name: str | None,
    assets: Path | None,
    image_keys: Path | None,
    dry_run: bool,
    registries: tuple[str, ...],
    registry_credentials: Path | None,
    ca_bundle: Path | None,
    allow_token_over_http: bool,
    outputs: tuple[OutputOption, ...],
    **roles: Any,
) -> None:
    """Write a document for a new image.

    SOURCE is the name of an image source, or oci://HOST/NAME:TAG. Without SOURCE, gitboot lists the sources. VERSION is
    a release of the source. Default: the newest release of the channel.

    gitboot downloads and verifies all files, and writes images/NAME.yaml in the fleet, for a pull request. The document
    states for each file where its digest comes from: from a signature of the vendor, from a published digest, or from
    this first download. gitboot does not overwrite a document.

    For an image without a source, name its files with --kernel, --initrd, --rootfs, --uki and --iso. SOURCE is then
    the first part of the name. An https:// URL of an ISO image or of a UKI can be SOURCE too. gitboot looks for
    checksum files beside each URL.
    """
    from gitboot.cli.commands.artifacts import build_fetcher
    from gitboot.cli.evaluated_fleet import find_fleet_file, load_fleet

    fleet = load_fleet(path, None)
    lift_processor_limit()  # downloads need processor time too
    if source is None:
        sources = {each.metadata.name: each for each in list_vendor_sources()} | dict(fleet.image_sources)
        _print_sources(dict(sorted(sources.items())), outputs)
        return
    if not dry_run:
        find_fleet_file(path, fleet)  # raises if gitboot cannot write documents there
    registry = open_registries(registries, registry_credentials, ca_bundle, allow_token_over_http=allow_token_over_http)
    fetcher = build_fetcher(fleet.fleet.spec.base_url, assets, registry)
    wanted = tuple(Architecture(each) for each in dict.fromkeys(architectures))
    files = _list_named_files(roles)
    with open_image_keys(image_keys) as keys, show_downloads() as progress:
        reader = ReleaseFinder(fetcher, keys, registry)
        _check_urls([source, *(file for _, file in files)])
        if source.startswith(_WEB) and not files:
            files = [(_guess_role(source), source)]
            source = PurePosixPath(urlsplit(source).path).stem
        is_oci_image = source.startswith("oci://")
        if channel is not None and (files or is_oci_image):
            raise UsageError("only an image source has channels: remove --channel")
        if files:
            if version is None:
                raise UsageError("gitboot cannot determine the version of individual files: specify VERSION")
            default_name = build_document_name(source if version in source else f"{source}-{version}")
            image_name = _check_image_name(fleet, path, name or default_name)
            release_files = _describe_files(files, wanted, version, assets, reader)
        elif is_oci_image:
            reference = OciReference.parse(source)
            if version is not None:
                raise UsageError("gitboot takes the version from the image's tag: omit VERSION")
            tag = reference.tag or reference.version[7:19]  # the first 12 digits after "sha256:"
            default_name = build_document_name(f"{reference.repository.rpartition('/')[2]}-{tag}")
            image_name = _check_image_name(fleet, path, name or default_name)
            release_files = describe_oci_image(reference, registry, wanted[0] if len(wanted) == 1 else None)
        else:
            image_source = find_source(source, fleet.image_sources)
            release = _find_release(reader, image_source, channel, version)
            default_name = find_image_name(release.source, release.version)
            image_name = _check_image_name(fleet, path, name or default_name)
            release_files = reader.describe_release(image_source, release, wanted)
        built = build_image(release_files, fetcher, keys, progress, name=image_name)
    file = path / "images" / f"{image_name}.yaml"
    if not dry_run and not create_output_file(file, built.text.encode(), make_folders=True):
        raise UsageError(f"{file} already exists: move the file, or choose another name with --name")
    facts = {
        "name": built.name,
        "version": built.image.spec.version,
        "file": None if dry_run else str(file),
        "files": to_json_value(built.files),
        "document": built.text,
    }
    write_outputs(
        outputs,
        json=partial(format_document, **facts),
        text=(lambda: built.text) if dry_run else partial(_format_text, built, file, path),
    )


def _list_named_files(roles: Mapping[str, Any]) -> list[tuple[FileRole, str]]:
    """Return the role and the URL or path of each file that an option names. ``roles`` contains the options by role."""
    files: list[tuple[FileRole, str]] = []
    for role in FileRole:
        values = roles[role] if role is FileRole.INITRD else (roles[role],)  # only --initrd can be repeated
        files += [(role, value) for value in values if value is not None]
    return files


def _check_urls(places: Sequence[str]) -> None:
    """Raise `UsageError` if one of these places is a URL that is not valid. Ignore places that are not URLs."""
    for place in places:
        if place.startswith(_WEB):
            try:
                parse_artifact_url(place)
            except Malformed as error:
                raise UsageError(f"{error.message}; {error.hint}") from None


_ROLES: Final = {".iso": FileRole.ISO, ".efi": FileRole.UKI}  # the role of a single file, by the end of its name


def _guess_role(url: str) -> FileRole:
    suffix = PurePosixPath(urlsplit(url).path).suffix.lower()
    if suffix not in _ROLES:
        raise UsageError(f"{url}: the name of the file does not end with .iso or .efi: use --kernel, --uki or --iso")
    return _ROLES[suffix]


def _check_image_name(fleet: FleetRepository, path: Path, name: str) -> str:
    """Return the name of a new image.

    Raises `UsageError` if the name is not usable, before gitboot downloads the files.
    """
    try:
        chosen = parse_name(name)
    except Malformed as error:
        raise UsageError(f"{error.message}; {error.hint}") from None
    if chosen in fleet.images:
        raise UsageError(f"BootImage/{chosen} already exists: choose another version, or another name with --name")
    file = path / "images" / f"{chosen}.yaml"
    if file.exists():
        raise UsageError(f"{file} already exists: move the file, or choose another name with --name")
    return chosen


def _find_release(reader: ReleaseFinder, source: ImageSource, channel: str | None, version: str | None) -> Release:
    """Return the newest release of a channel, or the release with this version.

    Raises `UsageError` if there is no such release.
    """
    releases = reader.list_releases(source, channel)
    for release in reversed(releases):
        if version in (None, release.version):
            return release
    name = source.metadata.name
    if version is None:
        raise UsageError(f"{name} has no releases in this channel: choose another channel with --channel")
    known = [release.version for release in reversed(releases)]
    hint = format_suggestion(version, known, f"the newest releases are {format_names(known)}")
    raise UsageError(f"{name} has no release {version!r}; {hint}")


def _describe_files(
    files: Sequence[tuple[FileRole, str]],
    architectures: Sequence[Architecture],
    version: str,
    assets: Path | None,
    reader: ReleaseFinder,
) -> ReleaseFiles:
    """Return the files of an image without a source: all of them at URLs, or all of them below ``assets``.

    Raises `UsageError` if the files or the architectures do not fit together.
    """
    if len(architectures) > 1:
        raise UsageError("if you list individual files, specify --architecture only once")
    architecture = architectures[0] if architectures else Architecture.X86_64
    urls = [(architecture, role, place) for role, place in files if place.startswith(_WEB)]
    if len(urls) == len(files):
        return describe_urls(urls, version, reader.fetcher)
    if urls:
        raise UsageError("use either URLs or files on this host, not both")
    if assets is None:
        raise UsageError("to use files on this host, set --assets to the directory that is served at baseURL/assets/")
    local_files = []
    for role, place in files:
        file = Path(place).resolve()
        if not file.is_relative_to(assets.resolve()):
            raise UsageError(f"{place} is outside {assets}, so machines cannot fetch it: copy it into this directory")
        url = f"assets:{file.relative_to(assets.resolve()).as_posix()}"
        local_files.append((architecture, role, file, url))
    return describe_local_files(local_files, version)


def _print_sources(sources: Mapping[str, ImageSource], outputs: Sequence[OutputOption]) -> None:
    items = [
        {
            "name": name,
            "description": source.spec.description,
            "channels": list(source.spec.channels),
            "architectures": sorted(source.spec.architectures),
            "keys": list(source.spec.keys),
        }
        for name, source in sources.items()
    ]
    rows = [
        (
            name,
            source.spec.description or "-",
            "yes" if source.spec.keys else "no",
            ", ".join(source.spec.channels) or "-",
        )
        for name, source in sources.items()
    ]
    text = partial(format_table, ("SOURCE", "DESCRIPTION", "SIGNED", "CHANNELS"), rows, shrinkable=[3])
    write_outputs(outputs, json=partial(format_document, items=items), text=text)


def _format_text(built_image: BuiltImage, file: Path, path: Path) -> str:
    lines = [
        wrap_text(f"{'.'.join(map(str, each.at))}: {format_origin(each)}", "", continuation="    ")
        for each in built_image.files
    ]
    return "\n".join((*lines, f"wrote {file}; next step: gitboot validate {quote_words(path)}"))
