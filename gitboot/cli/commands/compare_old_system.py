"""`gitboot compare-old-system`: compare what an old provisioning system boots with what a fleet boots."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from copy import copy
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click
from msgspec import structs

from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import FiniteRange, OutputOption, current_second, fleet_argument, output_option, write_outputs
from gitboot.cli.terminal import format_table, show_progress, wrap_text
from gitboot.errors import HostUnreachable
from gitboot.http_client import SLOWEST_DOWNLOAD, HttpClient, format_host
from gitboot.importers.boot_comparison import (
    HTTP_BOOT_PATHS,
    OTHER_SCRIPT_PATHS,
    SCRIPT_PATHS,
    BootComparison,
    ComparedMachine,
    OldBoot,
    Verdict,
    compare_boots,
    list_moved_files,
    parse_boot_script,
    parse_http_boot,
)
from gitboot.jsonio import format_document
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.server import Lifecycle, Server
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.text import format_count

if TYPE_CHECKING:
    from gitboot.fleet.documents import FleetRepository

_MAX_SCRIPT_BYTES: Final = 1 << 20  # maximum size of one response
_MAX_FILE_BYTES: Final = 1 << 32  # maximum size of one file that machines boot
_CHUNK_BYTES: Final = 1 << 20
_MAX_REDIRECTS: Final = 3  # the maximum number of redirects from one script to the next


@click.command(
    cls=Command,
    example="gitboot compare-old-system fleet --old http://10.0.0.5:8080 --as matchbox",
    exit_codes={
        Exit.FINE: "each server boots the same with both systems",
        Exit.CHANGES: "a server differs, or is missing in one system",
        Exit.INVALID: "the fleet has errors",
        Exit.SOURCE: "the old system did not respond",
    },
)
@fleet_argument
@click.option("--old", required=True, metavar="URL", help="The URL at which the old system serves machines.")
@click.option(
    "--as",
    "shape",
    required=True,
    type=click.Choice(list(SCRIPT_PATHS)),
    help="The type of the old system.",
)
@click.option(
    "--server",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_servers,
    help="Compare only this server. Repeat the option for several servers.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 256),
    default=32,
    metavar="NUMBER",
    help="The number of servers to compare at the same time. Default: 32.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=FiniteRange(min=0, min_open=True, max=300),
    default=10.0,
    metavar="SECONDS",
    help="Seconds to wait for each response. Default: 10.",
)
@click.option(
    "--contents",
    is_flag=True,
    help="Also fetch files whose paths differ between the two systems, and compare their content. Ironic, for "
    "example, has copies "
    "for each node.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A PEM file with the certificate authority of the old system. Default: the authorities that this machine "
    "trusts.",
)
@output_option("text", "markdown", "json")
@evaluator_command
def command(
    path: Path,
    rev: str | None,
    old: str,
    shape: str,
    names: tuple[str, ...],
    parallel: int,
    timeout_s: float,
    contents: bool,
    ca_bundle: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Compare what another system boots with the fleet.

    gitboot fetches the boot of each server from the old system, as the machine would. It compares the kernel, the
    initrds, the arguments and the user data with the boot that the policy gives the server. It also compares Parked
    servers.

    Two files are equal if they have the same path below both systems. The location of user data may differ, but not its
    content. gitboot does not print values that look like secrets. It only reads from --old, and sends requests to no
    other host. Some systems, such as Ironic and Tinkerbell, log these requests as if the
    machine had sent them.
    """
    from gitboot.cli.evaluated_fleet import plan_fleet

    format_host(old)
    client = HttpClient(ca_bundle=ca_bundle, connections_per_host=parallel)
    now = current_second()
    fleet = plan_fleet(path, rev, now, None)
    for name in names:
        fleet.find_decision(name)
    decisions = [
        each for name, each in _evaluate_as_active(fleet.repository, now).servers.items() if not names or name in names
    ]

    pool = ThreadPoolExecutor(parallel, thread_name_prefix="compare")
    compare, found = partial(_compare_server, client, old, shape, timeout_s, contents=contents), []
    try:
        jobs = [pool.submit(compare, each, fleet.repository.servers[each.server]) for each in decisions]
        with show_progress("servers", len(jobs)) as advance:
            for job in as_completed(jobs):
                advance(1)
                found.append(job.result())
    finally:
        pool.shutdown(cancel_futures=True)
    found.sort(key=lambda each: each.server)
    items = [
        {
            "server": each.server,
            "verdict": str(each.verdict),
            "message": each.message,
            "differences": [{"field": what, "old": old, "gitboot": new} for what, old, new in each.differences],
        }
        for each in found
    ]
    as_json = partial(format_document, items=items)
    write_outputs(outputs, text=partial(_format_text, found), markdown=partial(_format_markdown, found), json=as_json)
    verdicts = {each.verdict for each in found}
    if verdicts & {Verdict.DIFFERS, Verdict.MISSING, Verdict.NOTHING}:
        sys.exit(Exit.CHANGES)
    if Verdict.UNKNOWN in verdicts:
        sys.exit(Exit.SOURCE)


def _evaluate_as_active(repository: FleetRepository, now: datetime) -> Decisions:
    """Evaluate the fleet as if Parked servers were Active, because the old system still manages them."""
    from gitboot.resolve.fleet_decisions import decide

    fleet, servers = copy(repository.fleet), {}
    object.__setattr__(fleet, "spec", copy(fleet.spec))
    # Do not require a policy: a server without a policy boots its disk, and gitboot compares this boot too.
    object.__setattr__(fleet.spec, "require_policy", False)
    for name, server in repository.servers.items():
        servers[name] = active = copy(server)
        # Change a copy of the document, because gitboot validates a document only once, as text.
        if server.spec.lifecycle is Lifecycle.PARKED:
            spec = copy(server.spec)
            object.__setattr__(spec, "lifecycle", Lifecycle.ACTIVE)
            object.__setattr__(active, "spec", spec)
    return decide(structs.replace(repository, fleet=fleet, servers=servers), now)


def _compare_server(
    client: HttpClient,
    old: str,
    shape: str,
    timeout_s: float,
    decision: Decision,
    server: Server,
    *,
    contents: bool,
) -> BootComparison:
    macs = tuple(mac.replace("-", ":") for mac in server.boot_macs)
    asker = ComparedMachine(
        name=decision.server,
        uuid=str(decision.uuid),
        macs=macs,
        serial=server.spec.serial or "",
        addresses=tuple(each.partition("/")[0] for nic in server.spec.interfaces for each in nic.addresses),
    )
    policy = decision.policy
    boot = policy.boot if policy is not None else None
    try:
        is_uki = boot is not None and boot.direct_uki is not None
        answer = _fetch_old_boot(client, old, shape, asker, timeout_s, is_uki=is_uki)
        if answer is None:
            return BootComparison(
                server=asker.name, verdict=Verdict.MISSING, message="the old system responds with 404"
            )
        if boot is None:
            if answer.kernel is None:
                return BootComparison(
                    server=asker.name, verdict=Verdict.EQUAL, message="the server boots from its disk with both systems"
                )
            return BootComparison(
                server=asker.name, verdict=Verdict.NOTHING, message="no policy boots the server from the network"
            )
        # Whether gitboot would boot the server from the network if the server were not Parked.
        installs = decision.provision > 0 or (policy is not None and policy.network_boot is NetworkBoot.ALWAYS)
        if answer.kernel is None and answer.chain is None and not installs:
            return BootComparison(
                server=asker.name,
                verdict=Verdict.EQUAL,
                message="the server boots from its disk with both systems, because it is installed",
            )
        data, url = None, answer.user_data_url
        if url is not None and _is_same_host(url, old):
            data = _fetch_text(client, f"{url}user-data" if url.endswith("/") else url, timeout_s)
        digests = {
            url: _hash_url(client, url, timeout_s)
            for url in (list_moved_files(answer, boot, old_url=old, base_url=decision.base_url) if contents else ())
            if _is_same_host(url, old)
        }
    except HostUnreachable as error:
        return BootComparison(server=asker.name, verdict=Verdict.UNKNOWN, message=str(error))
    return compare_boots(
        asker.name, answer, data, boot, digests, old_url=old, base_url=decision.base_url, macs=asker.macs
    )


def _fetch_old_boot(
    client: HttpClient, old: str, shape: str, asker: ComparedMachine, timeout_s: float, *, is_uki: bool
) -> OldBoot | None:
    """Return the boot of a machine in the old system.

    If the old system supports UEFI HTTP boot, first request the kind of boot that the fleet uses.
    """
    ways = [partial(_fetch_old_script, client, old, shape, asker, timeout_s)]
    if shape in HTTP_BOOT_PATHS:
        ways.insert(0 if is_uki else 1, partial(_fetch_http_boot, client, old, shape, asker, timeout_s))
    failures = []
    for way in ways:
        try:
            if (boot := way()) is not None:
                return boot
        except HostUnreachable as error:  # boot-operator returns 503 if iPXE is disabled, and 500 without a default uki
            failures.append(error)
    if len(failures) == len(ways):
        raise failures[0]
    return None


def _fetch_old_script(
    client: HttpClient, old: str, shape: str, asker: ComparedMachine, timeout_s: float
) -> OldBoot | None:
    urls = [
        each
        for paths in (SCRIPT_PATHS, OTHER_SCRIPT_PATHS)
        for each in enumerate(asker.list_script_urls(old, shape, paths))
    ]
    for number, script_url in urls:
        mac = asker.macs[min(number, len(asker.macs) - 1)] if asker.macs else ""
        url, variables = script_url, asker.list_variables(mac)
        for _ in range(_MAX_REDIRECTS):
            # Cobbler sends an empty response to an unknown machine.
            if not (script := _fetch_text(client, url, timeout_s) or "").strip():
                break
            boot = parse_boot_script(script, url, variables)
            if boot.fails:
                break
            if boot.chain is None or not _is_same_host(boot.chain, old) or "${" in boot.chain:
                return boot
            url = boot.chain
    return None


def _fetch_http_boot(
    client: HttpClient, old: str, shape: str, asker: ComparedMachine, timeout_s: float
) -> OldBoot | None:
    root = old.rstrip("/")
    headers = {"X-Forwarded-For": ", ".join((*asker.addresses, *asker.macs))}
    answer = _fetch_text(client, f"{root}/{HTTP_BOOT_PATHS[shape]}", timeout_s, headers)
    return parse_http_boot(answer, asker.uuid, f"{root}/ignition/{asker.uuid}") if answer else None


def _hash_url(client: HttpClient, url: str, timeout_s: float) -> str:
    """Return the SHA-256 of the file at a URL.

    If the status of the response is not 200, return the SHA-256 of empty content.
    """
    found, size = sha256(), 0
    headers = {"Accept": "*/*"}
    with client.stream("GET", url, headers=headers, deadline_s=timeout_s, rate=SLOWEST_DOWNLOAD) as answer:
        while answer.status == 200 and (piece := answer.read(_CHUNK_BYTES)):
            found.update(piece)
            if (size := size + len(piece)) > _MAX_FILE_BYTES:
                raise HostUnreachable(f"{urlsplit(url).netloc} sent more than {_MAX_FILE_BYTES:,} bytes")
    return found.hexdigest()


def _is_same_host(url: str, old: str) -> bool:
    ours, theirs = urlsplit(old), urlsplit(url)
    return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)


def _fetch_text(client: HttpClient, url: str, timeout_s: float, headers: Mapping[str, str] | None = None) -> str | None:
    with client.stream("GET", url, headers={"Accept": "*/*", **(headers or {})}, deadline_s=timeout_s) as answer:
        if answer.status in (404, 410):
            return None
        if answer.status != 200:
            raise HostUnreachable(f"{urlsplit(url).netloc} answers {answer.status}")
        return answer.read_whole(_MAX_SCRIPT_BYTES).decode(errors="replace")


# Output


def _format_text(contrasts: list[BootComparison]) -> str:
    rows, lines = [], []
    for each in contrasts:
        if each.verdict is not Verdict.EQUAL:
            name = each.server if len(each.server) <= 40 else f"{each.server[:39]}…"
            what = each.message or ", ".join(what for what, _, _ in each.differences)
            rows.append((name, str(each.verdict), what if len(what) <= 45 else f"{what[:44]}…"))
            for what, old, new in each.differences:
                lines += ["", wrap_text(f"{each.server}: {what}")]
                lines += [wrap_text(f"old:     {old}", "  "), wrap_text(f"gitboot: {new}", "  ")]
    if rows:
        lines = [format_table(("SERVER", "RESULT", "DIFFERENCE"), rows), *lines, ""]
    return "\n".join((*lines, _format_summary(contrasts)))


def _format_summary(contrasts: list[BootComparison]) -> str:
    counts = Counter(str(each.verdict) for each in contrasts)
    numbers = ", ".join(f"{number:,} {word}" for word, number in sorted(counts.items()))
    return f"{format_count(len(contrasts), 'server')}: {numbers}" if contrasts else "the fleet has no server"


def _format_markdown(contrasts: list[BootComparison]) -> str:
    from gitboot.review.formats.markdown import format_code

    lines = []
    for each in contrasts:
        if each.verdict is not Verdict.EQUAL:
            for what, old, new in each.differences or ((each.message, "-", "-"),):
                server, *cells = (format_code(text, in_table=True) for text in (each.server, what, old, new))
                lines.append(f"| {' | '.join((server, str(each.verdict), *cells))} |")
    if lines:
        lines = ["", "| server | result | difference | old | gitboot |", "|---|---|---|---|---|", *lines]
    return "\n".join((_format_summary(contrasts), *lines))
