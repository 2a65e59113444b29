"""`gitboot compare-old-system`: compare the fleet's boots with another system's."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from copy import copy
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click
from msgspec import Struct, structs

from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import FiniteRange, OutputOption, current_second, fleet_argument, output_option, write_outputs
from gitboot.cli.terminal import format_table, show_progress, wrap_text
from gitboot.errors import HostUnreachable
from gitboot.http_client import SLOWEST_DOWNLOAD, HttpClient, RedirectRefused, format_host
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
from gitboot.importers.inventory import split_url_or_none
from gitboot.jsonio import format_document
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.server import Lifecycle, Server
from gitboot.resolve.server_decision import Boot, Decision, Decisions
from gitboot.text import format_count

if TYPE_CHECKING:
    from gitboot.fleet.documents import FleetRepository

_MAX_SCRIPT_BYTES: Final = 1 << 20  # maximum size of one response
_MAX_FILE_BYTES: Final = 1 << 32  # maximum size of one file that machines boot
_CHUNK_BYTES: Final = 1 << 20
_MAX_REDIRECTS: Final = 3  # the maximum number of redirects from one script to the next
_ANY_TYPE: Final = {"Accept": "*/*"}
# columns of the cells in the table
_MAX_NAME: Final = 40
_MAX_DIFFERENCE: Final = 45

Document = TypeVar("Document")


@click.command(
    cls=Command,
    example="gitboot compare-old-system fleet --old http://10.0.0.5:8080 --as matchbox",
    exit_codes={
        Exit.FINE: "both systems boot every server the same way",
        Exit.CHANGES: "a server boots differently, or is missing from one system",
        Exit.INVALID: "the fleet has errors",
        Exit.SOURCE: "the old system did not respond",
    },
)
@fleet_argument
@click.option("--old", "old_url", required=True, metavar="URL", help="The URL at which the old system serves machines.")
@click.option(
    "--as",
    "system",
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
    old_url: str,
    system: str,
    names: tuple[str, ...],
    parallel: int,
    timeout_s: float,
    contents: bool,
    ca_bundle: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Compare the fleet's boots with another system's.

    gitboot fetches the boot of each server from the old system, as the machine would. It compares the kernel, the
    initrds, the arguments and the user data with the boot that the policy gives the server. It also compares Parked
    servers.

    Two files are equal if they have the same path below both systems. The location of user data may differ, but not its
    content. gitboot does not print values that look like secrets. It only reads from --old, and sends requests to no
    other host. Some systems, such as Ironic and Tinkerbell, log these requests as if the
    machine had sent them.
    """
    from gitboot.cli.evaluated_fleet import plan_fleet

    format_host(old_url)  # raises if the URL is not valid
    old_system = _OldSystem(old_url, system, HttpClient(ca_bundle=ca_bundle, connections_per_host=parallel), timeout_s)
    now = current_second()
    fleet = plan_fleet(path, rev, now, None)
    fleet.require_servers(names)
    decisions = [
        decision
        for name, decision in _evaluate_parked_as_active(fleet.repository, now).servers.items()
        if not names or name in names
    ]
    comparisons = _compare_servers(old_system, decisions, fleet.repository.servers, parallel, contents=contents)
    write_outputs(
        outputs,
        text=partial(_format_text, comparisons),
        markdown=partial(_format_markdown, comparisons),
        json=partial(format_document, items=[_build_item(comparison) for comparison in comparisons]),
    )
    verdicts = {comparison.verdict for comparison in comparisons}
    if verdicts & {Verdict.DIFFERS, Verdict.MISSING, Verdict.NOTHING}:
        sys.exit(Exit.CHANGES)
    if Verdict.UNKNOWN in verdicts:
        sys.exit(Exit.SOURCE)


def _evaluate_parked_as_active(repository: FleetRepository, now: datetime) -> Decisions:
    """Evaluate the fleet as if Parked servers were Active, because the old system still manages them."""
    from gitboot.resolve.fleet_decisions import decide

    # Do not require a policy: a server without a policy boots its disk, and gitboot compares this boot too.
    fleet_spec = _copy_with(repository.fleet.spec, require_policy=False)
    servers = {
        name: _copy_with(server, spec=_copy_with(server.spec, lifecycle=Lifecycle.ACTIVE))
        if server.spec.lifecycle is Lifecycle.PARKED
        else server
        for name, server in repository.servers.items()
    }
    fleet = _copy_with(repository.fleet, spec=fleet_spec)
    return decide(structs.replace(repository, fleet=fleet, servers=servers), now)


def _copy_with(document: Document, **fields: Any) -> Document:
    """Return a copy of a document, or of a part of a document, with different values of these fields.

    gitboot validates a document only once, as text, so this function does not validate the values.
    """
    changed = copy(document)
    for name, value in fields.items():
        object.__setattr__(changed, name, value)  # the documents are frozen
    return changed


def _compare_servers(
    old_system: _OldSystem,
    decisions: Collection[Decision],
    servers: Mapping[str, Server],
    parallel: int,
    *,
    contents: bool,
) -> list[BootComparison]:
    """Compare the boots of servers, with ``parallel`` servers at the same time. Return the results by server name."""
    comparisons = []
    pool = ThreadPoolExecutor(parallel, thread_name_prefix="compare")
    try:
        jobs = [
            pool.submit(_compare_server, old_system, decision, servers[decision.server], contents=contents)
            for decision in decisions
        ]
        with show_progress("servers", len(jobs)) as advance:
            for job in as_completed(jobs):
                advance(1)
                comparisons.append(job.result())
    finally:
        pool.shutdown(cancel_futures=True)
    return sorted(comparisons, key=lambda comparison: comparison.server)


def _compare_server(old_system: _OldSystem, decision: Decision, server: Server, *, contents: bool) -> BootComparison:
    """Compare the boot of one server. If the old system does not respond, the verdict is UNKNOWN.

    With ``contents``, fetch the files whose paths differ and compare their content.
    """
    machine = ComparedMachine(
        name=decision.server,
        uuid=str(decision.uuid),
        macs=tuple(mac.replace("-", ":") for mac in server.boot_macs),
        serial=server.spec.serial or "",
        addresses=tuple(address.partition("/")[0] for nic in server.spec.interfaces for address in nic.addresses),
        architecture=server.spec.architecture,
        firmware=server.spec.firmware,
    )
    build_result = partial(BootComparison, server=machine.name)
    boot = decision.policy.boot if decision.policy is not None else None
    try:
        old_boot = old_system.fetch_boot(machine, is_uki=boot is not None and boot.direct_uki is not None)
        if old_boot is None:
            return build_result(verdict=Verdict.MISSING, message="the old system has no boot for this server")
        if boot is None:
            if old_boot.kernel is None:
                return build_result(verdict=Verdict.EQUAL, message="both systems boot the server from its disk")
            return build_result(verdict=Verdict.NOTHING, message="no policy boots the server from the network")
        if old_boot.kernel is None and old_boot.chain is None and not _boots_from_network(decision):
            message = "both systems boot the server from its disk, because it is installed"
            return build_result(verdict=Verdict.EQUAL, message=message)
        return _compare_network_boots(old_system, machine, old_boot, boot, decision.base_url, contents=contents)
    except HostUnreachable as error:
        return build_result(verdict=Verdict.UNKNOWN, message=str(error))


def _boots_from_network(decision: Decision) -> bool:
    """Return whether gitboot would boot the server from the network if the server were not Parked."""
    policy = decision.policy
    return decision.provision > 0 or (policy is not None and policy.network_boot is NetworkBoot.ALWAYS)


def _compare_network_boots(
    old_system: _OldSystem, machine: ComparedMachine, old_boot: OldBoot, boot: Boot, base_url: str, *, contents: bool
) -> BootComparison:
    """Compare two network boots. Fetch user data and, with ``contents``, files. Raises `HostUnreachable`."""
    digests = {}
    user_data = old_system.fetch_user_data(old_boot)
    if contents:
        for url in list_moved_files(old_boot, boot, old_url=old_system.url, base_url=base_url):
            if old_system.serves(url) and (digest := old_system.hash_file(url)) is not None:
                digests[url] = digest
    return compare_boots(
        machine.name,
        old_boot,
        user_data,
        boot,
        digests,
        old_url=old_system.url,
        base_url=base_url,
        macs=machine.macs,
    )


class _OldSystem(Struct, frozen=True):
    """The web server from which machines boot in the old system.

    The methods that send requests raise `HostUnreachable` if the web server does not respond or returns an error.
    """

    url: str
    system: str  # the type of the system, such as matchbox
    client: HttpClient
    timeout_s: float  # for each response

    def fetch_boot(self, machine: ComparedMachine, *, is_uki: bool) -> OldBoot | None:
        """Return what a machine boots, or None if the system has no boot for the machine.

        If the system supports UEFI HTTP boot, first request the kind of boot that the fleet uses.
        """
        fetchers = [self._fetch_script]
        if self.system in HTTP_BOOT_PATHS:
            fetchers.insert(0 if is_uki else 1, self._fetch_http_boot)
        failures = []
        for fetch in fetchers:
            try:
                boot = fetch(machine)
            except RedirectRefused:
                raise
            except HostUnreachable as error:  # boot-operator: 503 if iPXE is disabled, and 500 without a default uki
                failures.append(error)
                continue
            if boot is not None:
                return boot
        if len(failures) == len(fetchers):
            raise failures[0]
        return None

    def _fetch_script(self, machine: ComparedMachine) -> OldBoot | None:
        """Return the boot of the first boot script that the system serves to the machine, or None."""
        for paths in (SCRIPT_PATHS, OTHER_SCRIPT_PATHS):
            for number, url in enumerate(machine.list_script_urls(self.url, self.system, paths)):
                mac = machine.macs[min(number, len(machine.macs) - 1)] if machine.macs else ""
                boot = self._follow_scripts(url, machine.list_variables(mac))
                if boot is not None:
                    return boot
        return None

    def _follow_scripts(self, url: str, variables: Mapping[str, str]) -> OldBoot | None:
        """Follow a boot script to the last script that this system serves. Return its boot, or None without a boot.

        Raises `RedirectRefused` if there are too many scripts.
        """
        for _ in range(_MAX_REDIRECTS + 1):
            script = self.fetch_text(url) or ""
            if not script.strip():  # Cobbler sends an empty response to an unknown machine.
                return None
            boot = parse_boot_script(script, url, variables)
            if boot.fails:
                return None
            if boot.chain is None or not self.serves(boot.chain) or "${" in boot.chain:
                return boot
            url = boot.chain
        raise RedirectRefused(
            f"the boot script of {urlsplit(url).netloc} loads another script more than {_MAX_REDIRECTS} times"
        )

    def _fetch_http_boot(self, machine: ComparedMachine) -> OldBoot | None:
        """Return the boot that the system serves to UEFI HTTP boot, or None."""
        root = self.url.rstrip("/")
        headers = {"X-Forwarded-For": ", ".join((*machine.addresses, *machine.macs))}
        text = self.fetch_text(f"{root}/{HTTP_BOOT_PATHS[self.system]}", headers)
        return parse_http_boot(text, machine.uuid, f"{root}/ignition/{machine.uuid}") if text else None

    def fetch_user_data(self, boot: OldBoot) -> str | None:
        """Return the user data of a boot, or None if this system does not serve user data for the boot."""
        url = boot.user_data_url
        if url is None or not self.serves(url):
            return None
        return self.fetch_text(f"{url}user-data" if url.endswith("/") else url)

    def serves(self, url: str) -> bool:
        """Return whether a URL belongs to this system."""
        own, other = urlsplit(self.url), split_url_or_none(url)
        return other is not None and (own.scheme, own.netloc) == (other.scheme, other.netloc)

    def fetch_text(self, url: str, headers: Mapping[str, str] = MappingProxyType({})) -> str | None:
        """Return the text at a URL, or None if the status is 404 or 410."""
        with self.client.stream("GET", url, headers={**_ANY_TYPE, **headers}, deadline_s=self.timeout_s) as response:
            if response.status in (404, 410):
                return None
            if response.status != 200:
                raise HostUnreachable(f"{urlsplit(url).netloc} answers {response.status}")
            return response.read_whole(_MAX_SCRIPT_BYTES).decode(errors="replace")

    def hash_file(self, url: str) -> str | None:
        """Return the SHA-256 of the file at a URL, or None if the status is not 200."""
        digest = sha256()
        size_bytes = 0
        with self.client.stream(
            "GET", url, headers=_ANY_TYPE, deadline_s=self.timeout_s, rate=SLOWEST_DOWNLOAD
        ) as response:
            if response.status != 200:
                return None
            while chunk := response.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
                if size_bytes > _MAX_FILE_BYTES:
                    raise HostUnreachable(
                        f"a file from {urlsplit(url).netloc} is larger than {_MAX_FILE_BYTES:,} bytes"
                    )
        return digest.hexdigest()


def _build_item(comparison: BootComparison) -> dict[str, object]:
    """Return a comparison as an item of the JSON document."""
    return {
        "server": comparison.server,
        "verdict": str(comparison.verdict),
        "message": comparison.message,
        "differences": [{"field": part, "old": old, "gitboot": new} for part, old, new in comparison.differences],
    }


def _format_text(comparisons: list[BootComparison]) -> str:
    rows: list[tuple[str, str, str]] = []
    details: list[str] = []
    for comparison in comparisons:
        if comparison.verdict is Verdict.EQUAL:
            continue
        server = comparison.server
        difference = comparison.message or ", ".join(part for part, _, _ in comparison.differences)
        rows.append((_shorten(server, _MAX_NAME), str(comparison.verdict), _shorten(difference, _MAX_DIFFERENCE)))
        for part, old, new in comparison.differences:
            details.append("")
            details.append(wrap_text(f"{server}: {part}"))
            details.append(wrap_text(f"old:     {old}", "  "))
            details.append(wrap_text(f"gitboot: {new}", "  "))
    lines = []
    if rows:
        lines = [format_table(("SERVER", "RESULT", "DIFFERENCE"), rows), *details, ""]
    return "\n".join((*lines, _format_summary(comparisons)))


def _shorten(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def _format_summary(comparisons: list[BootComparison]) -> str:
    if not comparisons:
        return "the fleet has no servers"
    counts = Counter(str(comparison.verdict) for comparison in comparisons)
    numbers = ", ".join(f"{number:,} {verdict}" for verdict, number in sorted(counts.items()))
    return f"{format_count(len(comparisons), 'server')}: {numbers}"


def _format_markdown(comparisons: list[BootComparison]) -> str:
    lines = [_format_summary(comparisons)]
    rows = [row for comparison in comparisons for row in _format_markdown_rows(comparison)]
    if rows:
        lines += ["", "| server | result | difference | old | gitboot |", "|---|---|---|---|---|", *rows]
    return "\n".join(lines)


def _format_markdown_rows(comparison: BootComparison) -> Iterator[str]:
    from gitboot.review.formats.markdown import format_code

    if comparison.verdict is Verdict.EQUAL:
        return
    for difference in comparison.differences or ((comparison.message, "-", "-"),):
        server, *cells = (format_code(text, in_table=True) for text in (comparison.server, *difference))
        yield f"| {' | '.join((server, str(comparison.verdict), *cells))} |"
