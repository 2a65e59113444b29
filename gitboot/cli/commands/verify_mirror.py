"""`gitboot verify-mirror`: compare a mirror with its signed list or output tree, and repair the mirror."""

from __future__ import annotations

import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
from msgspec import structs

from gitboot.cli.main import Command, Exit
from gitboot.cli.options import OutputOption, current_time, output_option, write_outputs
from gitboot.cli.terminal import format_table, show_growing_progress
from gitboot.errors import UsageError
from gitboot.files import is_directory, write_output_file
from gitboot.jsonio import format_document, format_instant
from gitboot.publish.mirror_comparison import (
    FolderMirror,
    MirrorFault,
    MirrorReport,
    WebMirror,
    compare_mirror,
    read_expected_files,
)
from gitboot.publish.mirror_repair import (
    BucketStore,
    FolderStore,
    MirrorStore,
    RepairReport,
    render_mirror_files,
    repair,
)
from gitboot.publish.signed_list_check import build_list_details, compare_with_list, describe_signature
from gitboot.publish.signed_list_reader import SIGNED, TIMESTAMP, parse_keys
from gitboot.render.paths import BOOT
from gitboot.standard_streams import style
from gitboot.text import format_age, format_count


@click.command(
    cls=Command,
    example="gitboot verify-mirror https://mirror.example.net --key /etc/gitboot/root.pub",
    exit_codes={
        Exit.FINE: "the mirror is correct",
        Exit.SOURCE: "gitboot could not read a file",
        Exit.PARTIAL: "a file is wrong",
        Exit.USAGE: "an option is wrong, or MIRROR cannot be repaired",
    },
)
@click.argument("mirror", metavar="MIRROR")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="The public root key of the list: a PEM file, a file with 64 hexadecimal digits, or the digits. "
    "Repeat the option if several keys sign the root. Each of them must have signed it. Default: gitboot "
    "does not check signatures.",
)
@click.option(
    "--tree",
    type=click.Path(path_type=Path, file_okay=False),
    help="Compare with this output tree, which `gitboot run` wrote. Default: compare with the list in the mirror.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="GITBOOT_CA_BUNDLE",
    help="A PEM file with certificate authorities to trust in addition to those of this machine. Default: none.",
)
@click.option(
    "--read-entries",
    is_flag=True,
    help="Also read the files that only machines fetch. gitboot marks these requests, so that endpoints and `gitboot "
    "read-access-logs` of this version do not count them. Default: do not read these files.",
)
@click.option(
    "--target",
    "as_target",
    is_flag=True,
    help="With --tree: MIRROR is a bucket, a Git branch, or a cache of one of these. Do not compare the times of its "
    "files with those in the tree.",
)
@click.option(
    "--repair",
    "repaired",
    multiple=True,
    metavar="PATH|all",
    help="With --tree: replace the file PATH in MIRROR if it differs from the tree, or replace all such files. Repeat "
    "the option for several files.",
)
@click.option(
    "--write-program",
    "program_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Instead, write a program for a mirror to this directory. The program copies the boot files to the folder "
    "MIRROR, verifies them, and ends maintenance windows. Needs --from and --key.",
)
@click.option(
    "--from",
    "source",
    metavar="SOURCE",
    help="With --write-program: the rsync source of OUTPUT/boot, as seen from that host.",
)
@click.option(
    "--parallel",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    default=16,
    show_default=True,
    help="The number of files to read at the same time.",
)
@output_option("text", "json")
def command(
    mirror: str,
    keys: tuple[str, ...],
    tree: Path | None,
    ca_bundle: Path | None,
    read_entries: bool,
    as_target: bool,
    repaired: tuple[str, ...],
    program_folder: Path | None,
    source: str | None,
    parallel: int,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Compare a mirror with its signed list or output tree.

    MIRROR is the URL of a web server, or a folder with a copy of OUTPUT/boot. With --repair, MIRROR is a folder, or a
    target s3://…, ssh://… or rsync://… with the settings of `gitboot run --target`.

    gitboot reports missing, changed, outdated and additional files, cached responses, an expired list, a list that no
    --key signed, and the age of the list. For a web server, gitboot also reports headers that firmware, boot loaders or
    proxies cannot handle. A web server does not list its files, so gitboot cannot find files of removed servers there.
    To find such files, pass the folder of the mirror. If an instance publishes during the comparison, gitboot compares
    again.
    """
    if program_folder is not None:
        _write_mirror_program(program_folder, mirror, source, keys)
        return
    if source is not None:
        raise UsageError("--from is only for --write-program: add --write-program, or remove --from")
    if tree is not None and keys:
        raise UsageError(
            "--key checks the list of the mirror, and --tree compares with a tree instead: use one of them"
        )
    if tree is None and as_target:
        raise UsageError("--target is only for a comparison with a tree: add --tree, or remove --target")
    if repaired:
        _repair_mirror(mirror, tree, repaired, parallel, outputs)
        return
    public_keys = _parse_public_keys(keys)
    reader: FolderMirror | WebMirror
    if _is_web_url(mirror):
        reader = WebMirror(
            mirror, ca_bundle, parallel=parallel, reads_machine_files=read_entries, nonce=secrets.token_hex(8)
        )
    else:
        reader = FolderMirror(_resolve_folder(mirror), tree)
    now = current_time()
    list_facts: dict[str, Any] = {}
    if tree is None:
        report = _compare_with_list(reader, public_keys, now, parallel)
        signed_list = build_list_details(report.signed_list, now) if report.signed_list is not None else None
        list_facts = {"list": signed_list, "hidden": report.hidden_files, "turning": list(report.in_transition)}
    else:
        report = _compare_with_tree(reader, tree, parallel, as_target=as_target)
    findings = report.findings
    write_outputs(
        outputs,
        json=partial(format_document, files=report.files, items=findings, unchecked=report.unread, **list_facts),
        text=partial(_format_text, report, now),
    )
    if findings:
        is_unknown = all(finding.fault is MirrorFault.UNKNOWN for finding in findings)
        sys.exit(Exit.SOURCE if is_unknown else Exit.PARTIAL)


def _write_mirror_program(folder: Path, mirror: str, source: str | None, keys: Sequence[str]) -> None:
    """Write the program that copies the boot files from ``source`` to ``mirror`` on a host without gitboot."""
    if source is None or not keys:
        raise UsageError(
            "--write-program needs --from, the source of the copy, and --key, the key that the mirror trusts"
        )
    digits = "".join(f"{key.hex()}\n" for key in _parse_public_keys(keys))
    for name, content in render_mirror_files(source, mirror, digits).items():
        write_output_file(folder / name, [content], make_folders=True)
        click.echo(f"wrote {folder / name}")


def _compare_with_list(
    reader: FolderMirror | WebMirror, public_keys: Sequence[bytes], now: datetime, parallel: int
) -> MirrorReport:
    """Compare a mirror with the list of files in the mirror."""
    with show_growing_progress("files") as (set_total, advance):
        return compare_with_list(reader, public_keys, now, parallel=parallel, on_start=set_total, on_progress=advance)


def _compare_with_tree(reader: FolderMirror | WebMirror, tree: Path, parallel: int, *, as_target: bool) -> MirrorReport:
    """Compare a mirror with an output tree. If the tree has a list, also check how the mirror caches the list."""
    read_files = partial(read_expected_files, tree, as_target=as_target)
    with show_growing_progress("files") as (set_total, advance):
        report = compare_mirror(read_files, reader, parallel=parallel, on_start=set_total, on_progress=advance)
        if (tree / BOOT / SIGNED / TIMESTAMP).exists():
            return structs.replace(report, findings=(*reader.check_list_caching(), *report.findings))
    return report


def _repair_mirror(
    mirror: str,
    tree: Path | None,
    paths: tuple[str, ...],
    parallel: int,
    outputs: tuple[OutputOption, ...],
) -> None:
    if tree is None:
        raise UsageError("--repair needs --tree, the output tree with the right files")
    with ExitStack() as stack, show_growing_progress("files") as (set_total, advance):
        store = _open_store(mirror, tree, stack)
        report = repair(
            store, tree, paths, partial(datetime.now, UTC), parallel=parallel, on_start=set_total, on_progress=advance
        )
    write_outputs(
        outputs,
        json=partial(format_document, files=report.files, repairs=report.repairs, left=report.extra_paths),
        text=partial(_format_repairs, report),
    )
    if report.extra_paths:
        sys.exit(Exit.PARTIAL)


def _format_repairs(report: RepairReport) -> str:
    rows = [(str(repair.action), f"/{repair.path}") for repair in report.repairs]
    rows += [(style("Left", fg="red"), f"/{path}") for path in report.extra_paths]
    lines = [format_table(("ACTION", "PATH"), rows), ""] if rows else []
    total = f"{format_count(report.files, 'file')}: {len(report.repairs)} repaired"
    if report.extra_paths:
        total += f", {format_count(len(report.extra_paths), 'extra file')} left on the mirror (not in the output tree)"
    return "\n".join([*lines, total])


_STORE_SCHEMES: Final = ("rsync://", "s3://", "ssh://")  # URL schemes of targets that are not folders on this machine


def _open_store(mirror: str, tree: Path, stack: ExitStack) -> MirrorStore:
    """Open the store of a mirror for writing. The stack closes the store. Raises `UsageError` for a web server."""
    if mirror.startswith(_STORE_SCHEMES):
        from gitboot.bmc.credentials import read_credentials
        from gitboot.publish.targets.folder import RsyncStore
        from gitboot.publish.targets.follower import BucketAddress, RsyncAddress, parse_target

        address = parse_target(mirror)
        assert isinstance(address, BucketAddress | RsyncAddress)  # noqa: S101 - by its scheme
        key = None
        if address.credentials is not None:
            credentials = read_credentials(address.credentials.parent, address.credentials.name)
            key = credentials.username, credentials.password
        if isinstance(address, BucketAddress):
            from gitboot.publish.targets.s3 import Bucket  # imported here, because obstore is an optional dependency

            return BucketStore(address.name, Bucket(address, key))
        return MirrorStore(address.name, RsyncStore(address, Path(stack.enter_context(TemporaryDirectory())), key))
    if _is_web_url(mirror):
        raise UsageError(
            f"{mirror} cannot be repaired over HTTP: pass the folder or the target (s3://…, ssh://…, rsync://…) that "
            "the web server serves"
        )
    folder = _resolve_folder(mirror)
    if folder.resolve() == (tree / BOOT).resolve():
        raise UsageError(
            f"{folder} belongs to the output tree, which only the instance may change: choose a copy of the tree"
        )
    store = FolderStore(folder)
    stack.callback(store.close)
    return store


def _is_web_url(mirror: str) -> bool:
    return "://" in mirror and not mirror.startswith("file://")


def _resolve_folder(mirror: str) -> Path:
    """Return the folder that a path or a file:// URL names. Raises `UsageError` if there is no such folder."""
    folder = Path(mirror.removeprefix("file://"))
    if not is_directory(folder):
        raise UsageError(f"{folder} is not a folder: pass a web server's URL, or a folder on this machine")
    return folder


def _parse_public_keys(values: Sequence[str]) -> list[bytes]:
    """Return the public keys that the values of --key contain as digits or in files."""
    keys: list[bytes] = []
    for text in values:
        try:
            is_key = len(text) == 64 and not Path(text).exists()
            keys += parse_keys(text if is_key else Path(text).read_text())
        except OSError as error:
            raise UsageError(f"--key {text}: expected 64 hexadecimal digits or a file ({error.strerror})") from error
        except ValueError as error:
            raise UsageError(f"--key {text}: {error}") from error
    return keys


def _format_text(report: MirrorReport, now: datetime) -> str:
    rows = [(style(str(finding.fault), fg="red"), f"/{finding.path}", finding.message) for finding in report.findings]
    lines = [format_table(("RESULT", "PATH", "REASON"), rows), ""] if rows else []
    lines += _format_signature_details(report, now)
    if report.unread:
        unread = format_count(len(report.unread), "file")
        lines.append(f"not read: {unread} that only machines fetch (to read them, add --read-entries)")
    counts = Counter(str(finding.fault).lower() for finding in report.findings)
    summary = ", ".join(f"{number} {fault}" for fault, number in sorted(counts.items())) or "no differences"
    return "\n".join([*lines, f"{format_count(report.files, 'file')}: {summary}"])


def _format_signature_details(report: MirrorReport, now: datetime) -> list[str]:
    if (signed := report.signed_list) is None:
        return []
    signatures = {
        "Verified": "the signatures are valid",
        "Unchecked": "gitboot did not check the signatures: pass the public key with --key",
        "Unsigned": "the list is unsigned, so it can reveal damage but not forgery",
    }
    ago = f" ({format_age((now - signed.made).total_seconds())} ago)" if signed.made <= now else ""
    made = f"made {format_instant(signed.made)}{ago} of commit {signed.commit[:12]}"
    lines = [f"list {signed.version}, {made}: {signatures[describe_signature(signed)]}"]
    if report.hidden_files:
        hidden = format_count(report.hidden_files, "file")
        lines.append(f"not read: {hidden} with secret paths (to check them, pass the mirror's folder, not its URL)")
    if report.in_transition:
        changing = format_count(len(report.in_transition), "file")
        lines.append(f"not compared: {changing} whose content is changing right now")
    return lines
