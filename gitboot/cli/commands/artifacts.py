"""`gitboot artifacts`: install boot loaders, and download, verify and resolve artifacts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import click

from gitboot.artifacts.availability import (
    Fetcher,
    NeededArtifact,
    ReadResults,
    Sighting,
    check_artifacts,
    find_firmware_obstacle,
    group_by_source,
    list_artifacts,
)
from gitboot.artifacts.downloads import (
    FolderFetcher,
    MirroredArtifact,
    MirrorOutcome,
    PrefixFetcher,
    RegistryFetcher,
    WebFetcher,
    get_mirror_path,
    mirror_files,
    prune_mirror,
)
from gitboot.artifacts.oci import OciReference, Registries, ResolvedImage, resolve
from gitboot.artifacts.signatures import FileCheck, SignatureCheck, VendorKeys
from gitboot.cli.commands.validate import FORMATS, add_path_prefix, format_problem_counts, format_problems
from gitboot.cli.evaluated_fleet import evaluate_fleet, load_fleet
from gitboot.cli.evaluator_child import evaluator_command, get_results_cache
from gitboot.cli.main import Exit, Group
from gitboot.cli.options import (
    OutputOption,
    current_time,
    fleet_argument,
    fleet_options,
    format_path_prefix,
    open_registries,
    output_option,
    registry_options,
    write_outputs,
)
from gitboot.cli.terminal import format_table, show_progress, wrap_text
from gitboot.errors import AssetError, InvalidRepository, UsageError
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.jsonio import Digest, format_document, to_json_value
from gitboot.model.boot_image import BootImage
from gitboot.model.fields import to_yaml_value
from gitboot.model.fleet import Output
from gitboot.model.scalars import Malformed, parse_base_url
from gitboot.model.server import Architecture
from gitboot.problems import Code, Problem, Severity
from gitboot.resolve.decision_inputs import find_signed_images
from gitboot.resolve.fleet_decisions import FleetDecisions, find_server_sites
from gitboot.resolve.server_decision import BootFile
from gitboot.standard_streams import style
from gitboot.text import format_count, format_suggestion, printable


@click.group(cls=Group, example="gitboot artifacts verify fleet")
def command() -> None:
    """Install boot loaders; download and verify images."""


@command.command(
    example="gitboot artifacts download fleet --out /srv/gitboot/boot",
    exit_codes={
        Exit.FINE: "the output tree contains all required files",
        Exit.INVALID: "the fleet has errors",
        Exit.PARTIAL: "a download failed, or a file does not match its digest in the BootImage document",
        Exit.USAGE: "`mirror` is missing from the Fleet's `outputs`, or an option is wrong",
    },
)
@fleet_argument
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that machines see at the base URL: OUTPUT/boot, or a mirror of it. gitboot writes to "
    "its folder o/.",
)
@click.option("--site", "sites", multiple=True, metavar="NAME", help="Only the artifacts of this site. Default: all.")
@click.option(
    "--parallel",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Files to download at the same time.",
)
@click.option(
    "--keep-days",
    metavar="DAYS",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    help="Days to keep a file that no decision needs any more, for boots that are in progress.",
)
@click.option(
    "--image-keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Download only files that a trusted key signed: a key that gitboot ships, or a key in this directory. "
    "`gitboot artifacts signatures` explains the check. Default: all files.",
)
@registry_options
@output_option("text", "json")
@evaluator_command
def download(
    path: Path,
    rev: str | None,
    out: Path,
    sites: tuple[str, ...],
    parallel: int,
    keep_days: int,
    image_keys: Path | None,
    outputs: tuple[OutputOption, ...],
    **registry_arguments: Any,
) -> None:
    """Download the files of images into the output tree.

    PATH is the fleet. gitboot downloads the files of the images in the fleet from web servers and registries. It stores
    each file under its digest. Use this command for a fleet with `mirror` in its outputs, whose machines fetch images
    from the output tree.

    gitboot creates a file only when its download is complete. If you stop the command and start it again, it continues.
    gitboot deletes files that no decision needs any more, but not the files in assets/.
    """
    decided, artifacts = load_artifacts(path, rev, sites)
    decisions = decided.decisions
    if Output.MIRROR not in decisions.outputs:
        raise UsageError(
            "`mirror` is missing from the Fleet's `outputs`, so machines fetch artifacts directly from their sources; "
            "add `mirror` to `outputs`"
        )
    files_by_path = {
        get_mirror_path(artifact.file): artifact.file for artifact in artifacts if artifact.file.source is not None
    }
    fetcher = build_fetcher(decisions.base_url, None, open_registries(**registry_arguments))
    results: list[MirroredArtifact] = []
    if image_keys is not None:
        results = _refuse_unsigned_files(decided.repository, image_keys, fetcher, files_by_path, out)
    refused_paths = {result.path for result in results}
    files_to_download = [file for file_path, file in files_by_path.items() if file_path not in refused_paths]
    with show_progress("artifacts", len(files_to_download)) as advance:

        def add_result(result: MirroredArtifact) -> None:
            results.append(result)
            advance(1)

        mirror_files(fetcher, files_to_download, out, add_result, parallel=parallel)
    results.sort(key=lambda result: result.path)
    pruned_paths = []
    if not sites:  # with --site, do not remove files, because gitboot does not know which artifacts other sites need
        try:
            pruned_paths = prune_mirror(out, set(files_by_path), current_time(), timedelta(days=keep_days))
        except OSError as error:
            raise AssetError(f"{error.filename}: {error.strerror}") from error
    rows = [(str(result.outcome), result.path, result.source, result.message or "-") for result in results]
    rows += [("pruned", pruned_path, "-", "-") for pruned_path in pruned_paths]
    write_outputs(
        outputs,
        json=partial(format_document, items=results, pruned=pruned_paths),
        text=partial(format_table, ("RESULT", "PATH", "SOURCE", "REASON"), rows) if rows else str,
    )
    if any(result.outcome is MirrorOutcome.FAILED for result in results):
        sys.exit(Exit.PARTIAL)


def load_artifacts(
    path: Path, rev: str | None, sites: tuple[str, ...]
) -> tuple[FleetDecisions, tuple[NeededArtifact, ...]]:
    """Return the decisions for a fleet and the artifacts that the decisions need.

    Raises `InvalidRepository` if the fleet has errors, and `UsageError` for an unknown site.
    """
    decided = evaluate_fleet(path, rev, current_time()).decided
    decisions, repository = decided.decisions, decided.repository
    for site in sites:
        if site not in decisions.sites:
            raise UsageError(
                f"there is no site {site!r}; {format_suggestion(site, decisions.sites, 'check the sites in the Fleet')}"
            )
    artifacts = list_artifacts(decisions, {name: site.name for name, site in find_server_sites(repository).items()})
    return decided, tuple(each for each in artifacts if not sites or not set(sites).isdisjoint(each.sites))


def build_fetcher(base_url: str, assets: Path | None, registries: Registries) -> PrefixFetcher:
    """Return a fetcher for web servers, for registries, and for the directory ``assets`` below the base URL.

    The fetcher uses the proxy settings in the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY), as Git does.
    """
    web = WebFetcher(uses_proxies=True)
    fetchers: dict[str, Fetcher] = {"http://": web, "https://": web, "oci://": RegistryFetcher(registries)}
    if assets is not None:
        assets_url = f"{base_url}/assets/"
        fetchers[assets_url] = FolderFetcher(assets, assets_url)
    return PrefixFetcher(fetchers)


def _refuse_unsigned_files(
    fleet: FleetRepository, image_keys: Path, fetcher: Fetcher, files_by_path: Mapping[str, BootFile], out: Path
) -> list[MirroredArtifact]:
    """Return a failed result for each file that is not in ``out`` yet and has no trusted signature."""
    new_digests = {
        file.sha256 for path, file in files_by_path.items() if file.sha256 is not None and not (out / path).is_file()
    }
    reasons = _find_unsigned_files(fleet, image_keys, fetcher, new_digests)
    return [
        MirroredArtifact(
            path=path, source=file.source or "", outcome=MirrorOutcome.FAILED, message=reasons[file.sha256]
        )
        for path, file in files_by_path.items()
        if file.sha256 in reasons
    ]


_UNSIGNED: Final = "the file has no signature"


def _find_unsigned_files(
    fleet: FleetRepository, image_keys: Path, fetcher: Fetcher, digests: Collection[Digest]
) -> dict[Digest, str]:
    """Return the digests of the files for which no image has a trusted signature, each with the reason."""
    signed: set[Digest] = set()
    faults: dict[Digest, str] = {}
    with TemporaryDirectory(prefix="gitboot-") as scratch:
        signature_check = SignatureCheck(fetcher, VendorKeys(image_keys, Path(scratch)), fleet.fleet.spec.base_url)
        for _, image in sorted(fleet.images.items()):
            for file in signature_check.files(image, digests):
                if file.signer is not None:
                    signed.add(file.sha256)
                else:
                    faults[file.sha256] = f"the file is {file.fault}" if file.fault is not None else _UNSIGNED
    return {digest: faults.get(digest, _UNSIGNED) for digest in digests if digest not in signed}


@command.command(
    example="gitboot artifacts signatures fleet --image-keys /etc/gitboot/image-keys",
    exit_codes={
        Exit.FINE: "gitboot found no invalid signatures or provenance",
        Exit.INVALID: "a signature or provenance is invalid, a required signature is missing, or the fleet has errors",
    },
)
@fleet_argument
@click.option(
    "--image-keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A directory with more keys to accept: *.asc and *.gpg of OpenPGP, *.pub of minisign, *.toml of sigstore. "
    "Default: only the keys of vendors that gitboot ships.",
)
@click.option(
    "--required",
    is_flag=True,
    help="Report an unsigned file as an error, and not as a warning. Default: an error only for images of streams with "
    "requireProvenance: signed.",
)
@click.option(
    "--since",
    metavar="REVISION",
    help="Check only images that are new or changed since this revision, and images that a stream newly requires to be "
    "signed. Use it for a pull request. Default: all images.",
)
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The directory that is served at baseURL/assets/. gitboot reads its files there.",
)
@registry_options
@output_option(*FORMATS)
@evaluator_command
def signatures(
    path: Path,
    rev: str | None,
    image_keys: Path | None,
    required: bool,
    since: str | None,
    assets: Path | None,
    outputs: tuple[OutputOption, ...],
    **registry_arguments: Any,
) -> None:
    """Check the signatures and the provenance of the files of images.

    PATH is the fleet. An image names the signature of a file, or of a list of digests that contains the file. gitboot
    accepts the keys that it ships and the keys in --image-keys. The repository cannot add keys. If gitboot cannot fetch
    a signature, the file counts as unsigned. For each file, the command shows the provenance that the image claims, and
    the key that signed the file.
    """
    fleet = load_fleet(path, rev)
    images_to_sign = find_signed_images(fleet)
    images = _select_images(path, fleet, images_to_sign, since)
    base_url = fleet.fleet.spec.base_url
    fetcher = build_fetcher(base_url, assets, open_registries(**registry_arguments))
    problems: list[Problem] = []
    checked_files: list[_CheckedFile] = []
    total = sum(1 for image in images for artifacts in image.spec.architectures.values() for _ in artifacts.files())
    with TemporaryDirectory(prefix="gitboot-") as scratch, show_progress("files", total) as advance:
        signature_check = SignatureCheck(fetcher, VendorKeys(image_keys, Path(scratch)), base_url)
        for image in images:
            name = image.metadata.name
            for file in signature_check.files(image):
                advance(1)
                checked_files.append(_CheckedFile(image=name, file=file))
                problems += _find_file_problems(fleet, name, file, is_required=required or name in images_to_sign)
    problems.sort()
    prefix = format_path_prefix(path)
    writers = {format: partial(format_problems, problems, prefix) for format, format_problems in FORMATS.items()}
    writers["text"] = partial(_format_checked_files, checked_files, problems, prefix)
    writers["json"] = partial(_format_checked_files_json, checked_files, problems, prefix)
    write_outputs(outputs, **writers)
    if any(output.format == "text" for output in outputs):
        click.echo(f"{path}: {format_count(len(images), 'image')}, {format_problem_counts(problems)}", err=True)
    if any(problem.severity is Severity.ERROR for problem in problems):
        sys.exit(Exit.INVALID)


def _select_images(
    path: Path, fleet: FleetRepository, images_to_sign: frozenset[str], since: str | None
) -> list[BootImage]:
    """Return the images that are new, changed or newly required to be signed since a revision, sorted by name.

    Return all images if ``since`` is None.
    """
    images_before: Mapping[str, BootImage] = {}
    signed_before: frozenset[str] = frozenset()
    if since is not None:
        with suppress(InvalidRepository):  # check all images if the earlier commit is invalid
            fleet_before = load_fleet(path, since)
            images_before = fleet_before.images
            signed_before = find_signed_images(fleet_before)
    newly_signed = images_to_sign - signed_before
    return [
        image
        for name, image in sorted(fleet.images.items())
        if images_before.get(name) != image or name in newly_signed
    ]


class _CheckedFile(NamedTuple):
    image: str  # the name of the BootImage
    file: FileCheck


def _format_field(file: FileCheck) -> str:
    """Return the path of the field for a file, relative to spec.architectures."""
    return ".".join(map(str, file.at[2:]))


def _find_file_problems(fleet: FleetRepository, name: str, file: FileCheck, *, is_required: bool) -> Iterator[Problem]:
    """Yield at most one problem: a false claim, or else a missing or invalid signature."""
    image = Id("BootImage", name)
    field = _format_field(file)
    if file.false_claim is not None:
        message = f"{field} of {image}: {file.false_claim}"
        at = (*file.at, "provenance", "key")
        yield fleet.build_problem(Code.FALSE_PROVENANCE, message, image, *at, hint=Code.FALSE_PROVENANCE.hint)
    elif file.signer is None:
        fault = f"is {file.fault}" if file.fault is not None else "has no signature"
        yield fleet.build_problem(
            Code.NOT_VOUCHED_FOR,
            f"{field} of {image} {fault}",
            image,
            *file.at,
            hint=Code.NOT_VOUCHED_FOR.hint,
            severity=Severity.ERROR if is_required or file.fault is not None else Severity.WARNING,
        )


def _format_checked_files(checked_files: Collection[_CheckedFile], problems: Sequence[Problem], prefix: str) -> str:
    rows: list[tuple[str, str, str, str]] = []
    keys: list[str] = []
    for image, file in checked_files:
        claim = file.claim.digest if file.claim is not None else "not stated"
        signer = file.signer.name if file.signer is not None else "-"
        rows.append((image, _format_field(file), claim, signer))
        keys.append(f"    key {printable(file.signer.key)}" if file.signer is not None else "")
    parts = []
    if rows:
        parts.append(format_table(("IMAGE", "FILE", "CLAIM", "SIGNED BY"), rows, below=keys))
    if problems:
        parts.append(format_problems(problems, prefix))
    return "\n\n".join(parts)


def _format_checked_files_json(
    checked_files: Collection[_CheckedFile], problems: Sequence[Problem], prefix: str
) -> str:
    """Return the problems as JSON, with a list of the checked files."""
    files = [
        {
            "image": image,
            "field": _format_field(file),
            "url": file.url,
            "sha256": file.sha256,
            "claim": to_yaml_value(file.claim) if file.claim is not None else None,
            "signer": file.signer._asdict() if file.signer is not None else None,
            "fault": file.fault,
        }
        for image, file in checked_files
    ]
    return format_document(items=add_path_prefix(problems, prefix), files=files)


@command.command(
    example=("gitboot artifacts loaders --path fleet --out /srv/gitboot/boot \\\n    --tftp /srv/tftp"),
    exit_codes={
        Exit.FINE: "at least one loader is in place",
        Exit.INVALID: "the fleet has errors",
        Exit.PARTIAL: "all loaders are missing",
    },
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that machines see at the base URL: OUTPUT/boot, or a mirror of it. gitboot writes to "
    "its folder assets/.",
)
@click.option(
    "--tftp",
    type=click.Path(path_type=Path, file_okay=False),
    help="The root directory of a TFTP server, to which gitboot also writes. Default: none.",
)
@click.option(
    "--base-url",
    metavar="URL",
    help="The URL of a mirror, if --out is a mirror. Default: the baseURL of the Fleet.",
)
@click.option(
    "--system",
    "systems",
    multiple=True,
    default=[Path("/")],
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The root directory in which the packages are installed or unpacked, for example for another "
    "architecture. Repeat the option for several directories. Default: /.",
)
@fleet_options
@evaluator_command
def loaders(
    path: Path,
    rev: str | None,
    out: Path,
    tftp: Path | None,
    base_url: str | None,
    systems: tuple[Path, ...],
) -> None:
    """Install boot loaders under the names that DHCP sends.

    gitboot copies iPXE, GRUB and PXELINUX from the packages of the distribution. It builds a GRUB image that starts
    with grub.cfg at the base URL. If a loader is missing, gitboot prints the package that contains it. A second run
    does not write files.
    """
    from gitboot.artifacts.boot_loaders import PlacedLoader, PlacementOutcome, place_loaders

    try:
        url = parse_base_url(base_url) if base_url is not None else load_fleet(path, rev).fleet.spec.base_url
    except Malformed as error:
        raise UsageError(f"--base-url {base_url}: {error.message}; {error.hint}") from None

    def print_loader(loader: PlacedLoader) -> None:
        colour = {PlacementOutcome.PLACED: "green", PlacementOutcome.MISSING: "yellow"}.get(loader.outcome)
        outcome = style(f"{loader.outcome:<9}", fg=colour)
        click.echo(f"{outcome}  {loader.path:<27}  {loader.message}")

    placed_loaders = place_loaders(out, tftp, url, print_loader, systems=systems)
    if all(loader.outcome is PlacementOutcome.MISSING for loader in placed_loaders):
        sys.exit(Exit.PARTIAL)


@command.command(
    "resolve",
    example=("gitboot artifacts resolve oci://ghcr.io/gardenlinux/gardenlinux:1877.0 \\\n    --registries ghcr.io"),
    exit_codes={
        Exit.FINE: "gitboot printed the image's `spec`",
        Exit.SOURCE: "the registry did not respond, or rejected the request",
    },
)
@click.argument("image", metavar="oci://HOST/NAME:TAG")
@click.option(
    "--cname",
    default="",
    metavar="PREFIX",
    help="Choose the image whose annotation cname starts with this prefix, for example metal_pxe, if the index "
    "has several images for an architecture. Default: any image.",
)
@click.option(
    "--architecture",
    type=click.Choice(["x86_64", "aarch64"]),
    help="Print only this architecture. For an image without an index, the architecture of the image. Default: "
    "all architectures.",
)
@registry_options
@output_option("yaml", "json")
def resolve_image(
    image: str,
    cname: str,
    architecture: str | None,
    outputs: tuple[OutputOption, ...],
    **registry_arguments: Any,
) -> None:
    """Print the BootImage spec of an image in a registry.

    The spec names each file of the image by its digest. The image must have the format of boot-operator. In this
    format, the media types of the layers mark the kernel, the initrd, the squashfs, the UKI or the ISO. gitboot only
    reads from the registry. The address of the image is oci://HOST/NAME:TAG.
    """
    resolved_image = resolve(
        OciReference.parse(image),
        open_registries(**registry_arguments),
        cname=cname,
        architecture=Architecture(architecture) if architecture is not None else None,
    )
    write_outputs(
        outputs,
        json=partial(format_document, image=str(resolved_image.image), architectures=resolved_image.architectures),
        yaml=partial(_format_image_spec, resolved_image),
    )


def _format_image_spec(resolved_image: ResolvedImage) -> str:
    import yaml

    spec = yaml.safe_dump({"architectures": resolved_image.architectures}, sort_keys=False, width=1000)
    return f"# {resolved_image.image}\n{spec}"


@command.command(
    example="gitboot artifacts verify fleet --site lon1",
    exit_codes={
        Exit.FINE: "all artifacts are available",
        Exit.INVALID: "the fleet has errors",
        Exit.SOURCE: "gitboot could not check an artifact",
        Exit.PARTIAL: "an artifact is missing, has the wrong content, or cannot boot",
    },
)
@fleet_argument
@click.option("--site", "sites", multiple=True, metavar="NAME", help="Only the artifacts of this site. Default: all.")
@click.option("--head", is_flag=True, help="Send HEAD requests only, and trust the responses. Download nothing.")
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The directory that is served at baseURL/assets/. gitboot reads its files there.",
)
@click.option(
    "--parallel",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="Artifacts to check at the same time.",
)
@click.option(
    "--sources",
    is_flag=True,
    help="Check the sources from which `download` fetches, and not the places from which machines fetch. Use "
    "it before a merge.",
)
@registry_options
@output_option("text", "json")
@evaluator_command
def verify(
    path: Path,
    rev: str | None,
    sites: tuple[str, ...],
    head: bool,
    assets: Path | None,
    parallel: int,
    sources: bool,
    outputs: tuple[OutputOption, ...],
    **registry_arguments: Any,
) -> None:
    """Check that each artifact exists and has the right digest.

    PATH is the fleet, which names the artifacts with size and sha256. gitboot downloads each artifact once, and again
    if its server reports a change. For files that firmware fetches, gitboot also checks that firmware accepts the
    content type and the size. If you stop the command and start it again, it continues.
    """
    decided, artifacts = load_artifacts(path, rev, sites)
    if sources:
        artifacts = group_by_source(artifacts)
    fetcher = build_fetcher(decided.decisions.base_url, assets, open_registries(**registry_arguments))
    checked = _check_artifacts(fetcher, artifacts, read=not head, parallel=parallel)
    write_outputs(
        outputs,
        json=partial(format_document, items=[_build_item(each) for each in checked]),
        text=partial(_format_text, checked),
    )
    if any(each.boot_fault is not None for each in checked):
        sys.exit(Exit.PARTIAL)
    sys.exit(Exit.FINE if all(each.sighting.is_there for each in checked) else Exit.SOURCE)


class _CheckedArtifact(NamedTuple):
    artifact: NeededArtifact
    sighting: Sighting
    boot_fault: str | None  # why machines cannot boot the artifact; None: gitboot found no reason


def _check_artifacts(
    fetcher: PrefixFetcher, artifacts: Collection[NeededArtifact], *, read: bool, parallel: int
) -> list[_CheckedArtifact]:
    """Check whether each artifact is available and can boot. Cache the results, even if the command ends early."""
    sightings: dict[BootFile, Sighting] = {}
    with show_progress("artifacts", len(artifacts)) as advance:

        def add_sighting(file: BootFile, sighting: Sighting) -> None:
            sightings[file] = sighting
            advance(1)

        files = [artifact.file for artifact in artifacts]
        results = ReadResults(get_results_cache())
        check_artifacts(fetcher, files, results, add_sighting, read=read, parallel=parallel)
    checked = []
    for artifact in artifacts:
        sighting = sightings[artifact.file]
        boot_fault = None
        if sighting.is_absent:
            boot_fault = sighting.message
        elif artifact.by_firmware and sighting.is_there:
            boot_fault = find_firmware_obstacle(artifact.file.url, sighting.head)
        checked.append(_CheckedArtifact(artifact, sighting, boot_fault))
    return checked


def _build_item(checked: _CheckedArtifact) -> dict[str, object]:
    """Return a checked artifact as an item of the JSON document."""
    facts = to_json_value(checked.artifact)
    del facts["file"]
    return {
        **facts,
        **to_json_value(checked.artifact.file),
        **to_json_value(checked.sighting),
        "unbootable": checked.boot_fault,
    }


def _format_text(checked_artifacts: Collection[_CheckedArtifact]) -> str:
    if not checked_artifacts:
        return "the fleet has no artifacts"
    rows: list[tuple[str, str, str, str]] = []
    faults: list[str] = []
    sightings_by_site: dict[str, list[Sighting]] = {}
    for artifact, sighting, boot_fault in checked_artifacts:
        if boot_fault is not None or not sighting.is_there:
            url = artifact.file.url
            result = style(str(sighting.presence), fg="yellow" if boot_fault is None else "red")
            rows.append((result, ", ".join(artifact.images), str(artifact.servers), url))
            faults.append(wrap_text(f"{url}: {boot_fault or sighting.message}"))
        for site in artifact.sites:
            sightings_by_site.setdefault(site, []).append(sighting)
    lines = []
    if rows:
        lines = [format_table(("RESULT", "IMAGES", "SERVERS", "URL"), rows), "", *faults, ""]
    for site, sightings in sorted(sightings_by_site.items()):
        counts = Counter(str(sighting.presence).lower() for sighting in sightings)
        numbers = ", ".join(f"{number} {presence}" for presence, number in sorted(counts.items()))
        lines.append(f"{site or 'the fleet'}: {format_count(len(sightings), 'artifact')}: {numbers}")
    return "\n".join(lines)
