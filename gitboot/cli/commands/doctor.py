"""`gitboot doctor`: check this host and an instance on this host, with a hint for each problem."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import click
from msgspec import Struct, structs

from gitboot.artifacts.boot_loaders import HEAD, SIGNED_GRUBS, find_program_fault, supports_http
from gitboot.artifacts.downloads import WebFetcher
from gitboot.bmc.credentials import CredentialDirectory, get_credential_use
from gitboot.cli.endpoint_settings import machines_tls_option
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    build_config_option,
    credentials_option,
    current_time,
    output_option,
    reject_old_variables,
    write_outputs,
)
from gitboot.cli.terminal import wrap_text
from gitboot.errors import ArtifactMissing, BmcNotTrusted, GitbootError, HeldByAnother, UsageError
from gitboot.files import check_output_directory, check_state_directory, is_directory
from gitboot.jsonio import format_document
from gitboot.model.boot_policy import Method
from gitboot.model.fleet import Output
from gitboot.model.server import Lifecycle, Loader
from gitboot.publish.durable_files import is_readable_by_others
from gitboot.publish.manifest import MANIFEST, parse_head
from gitboot.render.dhcp import (
    LONGEST_PROXY_URL,
    Mirror,
    list_loader_offers,
    list_mirrors,
    list_omitted_proxy_urls,
    list_requested_loaders,
)
from gitboot.render.paths import BOOT, SIGNED_GRUB
from gitboot.resolve.server_decision import Decisions, Host
from gitboot.standard_streams import style
from gitboot.status.conditions import fill_placeholders, find_remedy
from gitboot.system_clock import ClockState, read_clock_state
from gitboot.text import format_count, format_names, quote_words

if TYPE_CHECKING:
    from gitboot.controller.instance.assembly import OfflineInstance


@click.command(
    context_settings=VARIABLES,
    cls=Command,
    example="gitboot doctor --config /etc/gitboot/run.toml",
    exit_codes={
        Exit.FINE: "no check failed",
        Exit.PARTIAL: "a check failed",
    },
)
@build_config_option("run")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of the instance. Default: the variable GITBOOT_STATE. If neither is set, gitboot checks "
    "only the host.",
)
@click.option(
    "--out",
    "output",
    envvar="GITBOOT_OUT",
    allow_from_autoenv=False,  # click would derive GITBOOT_OUTPUT from the parameter's name
    metavar="OUTPUT",
    type=click.Path(path_type=Path, file_okay=False),
    help="The output tree of the instance. Default: none.",
)
@credentials_option
@machines_tls_option
@click.option(
    "--machines-ca",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The PEM file with the certificate authority that the firmware of machines trusts. gitboot verifies the chain "
    "of --machines-tls and https base URLs with it. Default: the chain is not verified, and the authorities of this "
    "host verify https base URLs.",
)
@output_option("text", "json")
@evaluator_command
def command(
    state: Path | None,
    output: Path | None,
    credentials: Path | None,
    machines_tls: tuple[str, Path, Path] | None,
    firmware_ciphers: bool,
    machines_ca: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Check this host: clock, disks, credentials, loaders.

    gitboot checks the Git library, the clock, STATE and its ledger, OUTPUT, free disk space, the credentials for BMCs
    and where gitboot may send them, the certificate for machines, and the boot loaders that machines fetch at each base
    URL. For servers with secureBoot: true, it warns about loaders, kernels and UKIs without a signature. For each
    failed check, it prints what to do. The instance does not have to run. gitboot only reads, and does not connect to
    BMCs. To check BMCs, use `gitboot bmc get`.

    With --config, gitboot reads the configuration file of `gitboot run`.
    """
    reject_old_variables()
    checks = _run_checks(state, output, credentials, MachineTls(machines_tls, firmware_ciphers, machines_ca))
    results = tuple(dict.fromkeys(checks))  # show each result once, because several sites may use the same mirror
    text = partial("\n".join, [_format_result(result) for result in results])
    write_outputs(outputs, json=partial(format_document, items=results), text=text)
    if any(result.health == "failed" for result in results):
        sys.exit(Exit.PARTIAL)


class MachineTls(NamedTuple):
    """The settings for HTTPS to machines."""

    address: tuple[str, Path, Path] | None  # HOST:PORT, certificate and key
    firmware_ciphers: bool = True
    authority: Path | None = None  # the certificate authority that machines trust


def _run_checks(
    state: Path | None, output: Path | None, credentials: Path | None, tls: MachineTls
) -> Iterator[CheckResult]:
    from gitboot.cli.instance_client import open_offline
    from gitboot.controller.instance.state_directory import has_ledger, read_own_lease, require_active
    from gitboot.git.repository import LIBGIT2_VERSION, list_features

    yield from check_git(list_features(), LIBGIT2_VERSION)
    yield from check_clock(read_clock_state())
    if state is not None:
        yield from check_state(state)
    if state is None or not is_directory(state) or not has_ledger(state):
        yield from check_certificate(tls)
        return
    try:
        require_active(state)
    except HeldByAnother as error:
        yield make_success("ledger", str(error))  # an instance on another host uses the ledger
        return
    lease = read_own_lease(state)
    if lease is not None:
        yield make_success(
            "lease",
            f"the instance on this host is active and is renewing lease {lease.number} (valid until {lease.until})",
        )
    with open_offline(state, current_time()) as instance:
        places = {"STATE": str(state)}
        tree = output or instance.snapshot.facts.output
        if tree is not None:
            places["OUTPUT"] = str(tree)
        for result in _check_instance(instance, state, output, credentials, tls):
            hint = fill_placeholders(result.hint, places) if result.hint else result.hint
            yield structs.replace(result, hint=hint)


def _check_instance(
    instance: OfflineInstance, state: Path, output: Path | None, credentials: Path | None, tls: MachineTls
) -> Iterator[CheckResult]:
    from gitboot.controller.instance.state_directory import find_running_process

    yield from check_ledger(instance, find_running_process(state))
    yield from check_named_ledger(instance)
    if output is not None:
        yield from check_output(output, state, servers=len(instance.commit.decisions.servers))
    yield from check_credentials(credentials, instance)
    yield from check_certificate(tls, instance.commit.decisions)
    yield from check_mirrors(instance.commit.decisions, tls)
    yield from check_secure_boot(instance.commit.decisions, tls.authority)
    yield from check_proxy_urls(instance.commit.decisions)


_COLOURS: Final = {"ok": "green", "warning": "yellow", "failed": "red"}


def _format_result(result: CheckResult) -> str:
    indent = " " * len(f"{result.health:<8} {result.subject:<12} ")
    message = wrap_text(result.message, indent, continuation="    ").removeprefix(indent)
    health = style(f"{result.health:<8}", fg=_COLOURS[result.health])
    return f"{health} {result.subject:<12} {message}" + (f"\n    {result.hint}" if result.hint else "")


class Health(StrEnum):
    FINE = "ok"
    WARNING = "warning"  # this works now, but may fail later or on other machines
    FAILED = "failed"


class CheckResult(Struct, frozen=True, kw_only=True):
    """A result of a check."""

    subject: str
    health: Health
    message: str
    hint: str | None = None  # a command to run, or a line to add to a configuration file


CheckResults = Iterator[CheckResult]
_CLOCK_RESULTS: Final = {
    ClockState.SYNCHRONISED: (Health.FINE, "a time service is synchronizing the clock", None),
    ClockState.UNKNOWN: (
        Health.WARNING,
        "the kernel does not report whether a time service is synchronizing the clock",
        "chronyc tracking  # or: timedatectl",
    ),
    ClockState.UNSYNCHRONISED: (
        Health.FAILED,
        "no time service has set the clock since this machine booted, so gitboot does not change BMCs",
        "timedatectl set-ntp true",
    ),
    ClockState.NEVER_SET: (
        Health.WARNING,
        "no time service is synchronizing the clock; if one did so before, gitboot has stopped changing BMCs",
        "timedatectl set-ntp true",
    ),
}


def check_git(features: Mapping[str, bool], version: str) -> CheckResults:
    """Check whether the Git library has the required features."""
    missing = sorted(name for name, has in features.items() if not has)
    if missing:
        yield _make_failure(
            "git",
            f"libgit2 {version} was built without {', '.join(missing)}",
            "install gitboot from its wheel or package, which contains a libgit2 with these features",
        )
    else:
        yield make_success("git", f"libgit2 {version}, with {', '.join(sorted(features))}")


def check_clock(clock_state: ClockState) -> CheckResults:
    """Check whether a time service synchronizes the clock."""
    health, message, hint = _CLOCK_RESULTS[clock_state]
    yield CheckResult(subject="clock", health=health, message=message, hint=hint)


def check_state(state: Path) -> CheckResults:
    """Check whether the state directory is suitable for a ledger."""
    if not is_directory(state):
        yield _make_failure(
            "state",
            f"the directory {state} does not exist",
            f"install -d -m 0700 {quote_words(state)}  # for gitboot's user",
        )
        return
    yield from _run_check(
        "state", f"{state} is on a local file system", lambda warn: check_state_directory(state, (), warn)
    )
    yield from _check_free_space(state, files=0)


def check_ledger(instance: OfflineInstance, process_id: int | None) -> CheckResults:
    """Check whether the ledger is verified."""
    facts = instance.snapshot.facts
    user = f"process {process_id}" if process_id is not None else "no gitboot process"
    if facts.doubt is not None:
        hint = "gitboot status --state STATE  # see the remedy for the condition RecordsVerified"
        yield _make_failure("ledger", f"the ledger {facts.identity} is unverified: {facts.doubt}", hint)
    else:
        machines = format_count(len(instance.snapshot.machines), "machine")
        yield make_success("ledger", f"the ledger {facts.identity} has {machines}; {user} is using the ledger")


def check_named_ledger(instance: OfflineInstance) -> CheckResults:
    """Check whether the Fleet allows this instance to publish and to change BMCs."""
    commit, identity = instance.commit, instance.snapshot.facts.identity
    bmcs = sum(machine.bmc is not None for machine in commit.machines.values())
    if not commit.allows_ledger(identity):
        hint = (
            "gitboot status --state STATE  # only if this instance must become active: see the remedy for the "
            "condition LedgerNamed"
        )
        message = f"the Fleet names a ledger other than {identity}, so this instance is a standby"
        yield _make_failure("ledger", message, hint)
    elif commit.ledger is None and bmcs:
        yield _make_failure(
            "ledger",
            "the Fleet does not name a ledger, so gitboot does not set boot overrides for "
            f"{format_count(bmcs, 'server')}",
            find_remedy("BmcsSet", "LedgerNotNamed", {"LEDGER": identity}),
        )


_FILES_PER_SERVER: Final = 6  # approximate number of files for each server in the output tree


def check_output(output: Path, state: Path, *, servers: int) -> CheckResults:
    """Check the output directory: its file system, the published tree, and free space for the fleet."""
    if not is_directory(output):
        yield _make_warning(
            "output",
            f"the directory {output} does not exist; the first reconcile creates it",
            f"install -d {quote_words(output)}",
        )
        return
    yield from _run_check("output", None, lambda warn: check_output_directory(output, (), warn, state=state))
    try:
        origin = parse_head((output / MANIFEST).read_bytes()).origin
        yield make_success(
            "output",
            f"{output} contains the boot files for commit {origin.commit[:12]}, published with ledger {origin.ledger}",
        )
    except FileNotFoundError:
        yield _make_warning(
            "output", f"{output} contains no published files yet", f"gitboot run … --out {quote_words(output)}"
        )
    except (OSError, ValueError) as error:
        yield _make_failure(
            "output", f"{output / MANIFEST} cannot be read: {error}", f"ls -l {quote_words(output / MANIFEST)}"
        )
    if is_readable_by_others(output):
        yield _make_warning(
            "output",
            f"every user on this host can read {output}, including the installation tokens in it",
            find_remedy("OutputPrivate", "ReadableByAll"),
        )
    yield from _check_free_space(output, files=_FILES_PER_SERVER * servers)


def check_credentials(credentials: Path | None, instance: OfflineInstance) -> CheckResults:
    """Check that the credentials for each BMC exist, and that gitboot may send these credentials to the BMC."""
    bmcs = {machine.name: machine.bmc for machine in instance.commit.machines.values() if machine.bmc is not None}
    if not bmcs:
        yield make_success("credentials", "no server has a BMC")
        return
    directory = CredentialDirectory(credentials)
    for name in sorted({bmc.credentials for bmc in bmcs.values()}):
        servers = sorted(server for server, bmc in bmcs.items() if bmc.credentials == name)
        try:
            trusted = directory.read(name)
        except UsageError as error:
            yield _make_failure(
                "credentials",
                f"{error}: {_format_servers(servers)}",
                f"create {credentials or 'DIR'}/{name}/username and …/password with mode 0600",
            )
            continue
        refused = []
        for server in servers:
            is_known = get_credential_use(bmcs[server]) in instance.snapshot.known_pairs
            try:
                trusted.trust.build_address_filter(bmcs[server], is_in_ledger=is_known)
            except BmcNotTrusted:
                refused.append(server)
        if refused:
            yield _make_failure(
                "networks",
                f"access.toml does not allow gitboot to send the credentials {name} to the BMCs of "
                f"{_format_servers(refused)}",
                "gitboot bmc access-files --state STATE  # prints a suitable access.toml",
            )
        else:
            yield make_success("credentials", f"{name}, for {format_count(len(servers), 'BMC')}")


_CERTIFICATE_HINTS: Final = {
    "certificate has expired": "renew the certificate; gitboot reads the new file without a restart",
    "certificate is not yet valid": "timedatectl  # compare the clock with the certificate",
    "unable to get local issuer certificate": "append the intermediate certificates to the file, or pass the issuing "
    "authority with --machines-ca",
}


def check_certificate(tls: MachineTls, decisions: Decisions | None = None) -> CheckResults:
    """Check whether firmware accepts the machines' TLS certificate for the https URLs of the fleet."""
    if tls.address is None:
        return
    from gitboot.endpoint.tls import CipherSuites, find_certificate_problem

    _, certificate, key = tls.address
    suites = CipherSuites.FIRMWARE if tls.firmware_ciphers else CipherSuites.MACHINES
    check = partial(find_certificate_problem, certificate, key, suites, authority=tls.authority)
    try:
        problem = check()
        if problem is not None:
            yield _make_failure(
                "certificate", f"machines reject {certificate}: {problem}", _CERTIFICATE_HINTS.get(problem)
            )
            return
        if decisions is None:
            yield make_success(
                "certificate", f"machines can use {certificate} if it is valid for the host in the base URL"
            )
            return
        hosts = sorted({urlsplit(url).hostname or "" for url in _list_https_urls(decisions)} - {""})
        usable = [host for host in hosts if check(host=host) is None]
    except UsageError as error:
        yield _make_failure("certificate", str(error), None)
        return
    if usable:
        yield make_success("certificate", f"machines can use {certificate} for {format_names(usable, 3)}")
    elif hosts:  # only a warning, because other web servers may serve some of the hosts
        kind = "IP" if _is_address(hosts[0]) else "DNS"
        yield _make_failure(
            "certificate",
            f"{certificate} is not valid for {format_names(hosts, 3)}, which the base URL uses",
            f"get a certificate with `subjectAltName={kind}:{hosts[0]}`",
        )
    else:
        yield _make_warning(
            "certificate",
            f"no base URL in the fleet begins with https, so machines do not use {certificate}",
            "baseURL: https://HOST:PORT  # in the Fleet",
        )
    if usable and tls.authority is None:
        yield _make_warning(
            "certificate",
            "gitboot did not check the certificate chain against the authority that machines trust",
            "gitboot doctor … --machines-ca CA.pem",
        )


def _list_https_urls(decisions: Decisions) -> set[str]:
    """Return the base URLs and the endpoints' URLs that begin with https."""
    urls = {mirror.base_url for mirror in list_mirrors(decisions)}
    urls |= {decision.endpoint for decision in decisions.servers.values() if decision.endpoint is not None}
    return {url for url in urls if urlsplit(url).scheme == "https"}


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


_TIMEOUT_S: Final = 5.0


def check_cipher_suites(url: str) -> CheckResults:
    """Check whether firmware can boot from an https URL."""
    from gitboot.endpoint.tls import has_firmware_suites

    parts = urlsplit(url)
    try:
        is_suitable = has_firmware_suites(parts.hostname or "", parts.port or 443, _TIMEOUT_S)
    except OSError:
        return  # the check of the first script has already reported the error
    if not is_suitable:
        yield _make_warning(
            "certificate",
            f"{url} offers no cipher suite that common UEFI firmware supports, so HTTPS boot fails on many machines",
            "enable AES128-GCM-SHA256 for TLS 1.2, with an RSA certificate; see docs/how-to/https-for-machines.md",
        )


_DHCP_OUTPUTS: Final = frozenset({Output.DHCP_DNSMASQ, Output.DHCP_KEA, Output.DHCP_PROXY})
_ACCEPTED_FLEET: Final = "STATE/repository.git --rev refs/gitboot/accepted"  # the fleet that the instance has accepted
_LOADERS: Final = f"gitboot artifacts loaders --out OUTPUT/boot --path {_ACCEPTED_FLEET}"


def check_mirrors(decisions: Decisions, tls: MachineTls) -> CheckResults:
    """Check that each mirror serves the boot loaders and the first script whose URLs DHCP sends to machines."""
    fetcher = WebFetcher(deadline_s=_TIMEOUT_S, ca_bundle=tls.authority)
    first_script = "boot.ipxe" if Output.IPXE in decisions.outputs else "grub.cfg"
    offers = [
        offer
        for loader in (None, *list_requested_loaders(decisions))
        for offer in list_loader_offers(decisions, loader)
    ]
    loaders = sorted({offer.path for offer in offers})
    # DHCP sends these offers as URLs to UEFI HTTP boot, which fetches the loaders itself.
    loads_by_http = bool(decisions.outputs & _DHCP_OUTPUTS) and any(offer.client.http for offer in offers)
    firmware_urls = _list_firmware_urls(decisions)
    for mirror in list_mirrors(decisions):
        url = mirror.url(first_script)
        try:
            fetcher.head(url)
        except GitbootError as error:
            yield _make_failure(
                "DHCP", f"machines get the URL {mirror.base_url} from DHCP, but {error}", f"curl -I {quote_words(url)}"
            )
            continue
        yield make_success("DHCP", f"{url} can be fetched")
        is_for_firmware = loads_by_http or any(each.startswith(f"{mirror.base_url}/") for each in firmware_urls)
        if is_for_firmware and url.startswith("https:") and tls.firmware_ciphers:
            yield from check_cipher_suites(mirror.base_url)
        yield from _check_loaders(fetcher, mirror, loaders)


def _list_firmware_urls(decisions: Decisions) -> set[str]:
    """Return the URLs of the files that firmware fetches by UEFI HTTP boot."""
    boots = [*(decisions.unknown or {}).values()]
    for decision in decisions.servers.values():
        boots += decision.boots
    return {boot.http_boot_file.url for boot in boots if boot.http_boot_file is not None}


def _check_loaders(fetcher: WebFetcher, mirror: Mirror, loaders: Sequence[str]) -> CheckResults:
    """Check that a mirror serves the boot loaders at these paths."""
    missing = []
    has_fault = False
    for path in loaders:
        url = mirror.loader_url(path)
        try:
            fetcher.head(url)
        except ArtifactMissing:
            missing.append(path)
        except GitbootError as error:
            yield _make_failure("loaders", f"{url} cannot be read: {error}", f"curl -I {quote_words(url)}")
            has_fault = True
    if missing:
        yield _make_failure(
            "loaders",
            f"boot loaders that DHCP offers are missing from {mirror.base_url}/assets/: {format_names(missing, 3)}",
            _LOADERS,
        )
    elif not has_fault:
        yield make_success("loaders", f"{format_count(len(loaders), 'loader')} below {mirror.base_url}/assets/loaders/")


_NO_HTTP: Final = "the GRUB has no HTTP module"


def check_secure_boot(decisions: Decisions, authority: Path | None = None) -> CheckResults:
    """Check that programs for servers with Secure Boot have signatures, and that the signed GRUB supports HTTP.

    gitboot does not verify the signatures, because only the firmware contains the trusted keys. ``authority`` is a
    certificate authority that gitboot trusts in addition to the authorities that this machine trusts.
    """
    servers_by_url: dict[str, set[str]] = {}  # the servers that verify the program at a URL
    shim_servers: dict[str, set[str]] = {}  # the servers that boot with shim, by base URL
    for host in decisions.hosts:
        if not host.secure_boot or host.lifecycle is Lifecycle.RETIRED:
            continue
        decision = decisions.servers[host.server]
        urls = {file.url for boot in decision.boots for file in boot.verified_programs}
        if not decision.boots or any(boot.method is Method.PXE for boot in decision.boots):
            urls |= {f"{decision.base_url}/assets/{path}" for path in _list_verified_loaders(decisions, host)}
            if host.loader is Loader.SHIM:
                shim_servers.setdefault(decision.base_url, set()).add(host.server)
        for url in urls:
            servers_by_url.setdefault(url, set()).add(host.server)
    fetcher = WebFetcher(deadline_s=_TIMEOUT_S, ca_bundle=authority)
    has_fault = False
    for url, servers in sorted(servers_by_url.items()):
        warning = _check_signed_program(fetcher, url, servers, authority)
        if warning is not None:
            yield warning
            has_fault = True
    if servers_by_url and not has_fault:
        programs = format_count(len(servers_by_url), "program")
        yield make_success("Secure Boot", f"signatures found in {programs} for servers with Secure Boot")
    for base_url, servers in sorted(shim_servers.items()):
        yield from _check_signed_grub_script(fetcher, base_url, servers)


def _check_signed_program(
    fetcher: WebFetcher, url: str, servers: Collection[str], authority: Path | None
) -> CheckResult | None:
    """Return a warning if gitboot cannot read a program, or if the program cannot boot with Secure Boot."""
    servers_text = _format_servers(servers)
    try:
        fault = _find_secure_boot_fault(fetcher, url)
    except GitbootError as error:
        message = f"{url} cannot be read: {error}; Secure Boot on {servers_text} requires this file"
        return _make_warning("Secure Boot", message, f"curl -I {quote_words(url)}")
    if fault is None:
        return None
    if fault == _NO_HTTP:
        message = f"the GRUB at {url} has no HTTP module, so it cannot boot {servers_text}"
        hint = f"{_LOADERS} --system DIR --system /  # DIR: the unpacked grub-efi-amd64-signed of Debian 13"
        return _make_warning("Secure Boot", message, hint)
    message = f"{url} {fault}, so the firmware on {servers_text} rejects it"
    ca_option = f"--cacert {quote_words(authority)} " if authority is not None else ""
    fetch = f"curl {ca_option}-fsSo program.efi {quote_words(url)}"
    return _make_warning("Secure Boot", message, f"{fetch} && sbverify --list program.efi")


def _check_signed_grub_script(fetcher: WebFetcher, base_url: str, servers: set[str]) -> CheckResults:
    """Check the script that the signed GRUB loads from the root of the web server if the machine loaded GRUB over HTTP.

    The output tree contains the script, so the script is at the root if the base URL has no path. Otherwise machines
    that load shim over HTTP need a copy of the script at the root. Machines that load shim over TFTP find the script in
    the TFTP root.
    """
    path = SIGNED_GRUB.removeprefix(BOOT)
    url = urljoin(base_url, f"/{path}")
    try:
        fetcher.head(url)
    except GitbootError as error:
        condition = f"if {_format_servers(servers)} {'loads' if len(servers) == 1 else 'load'} shim over HTTP"
        if isinstance(error, ArtifactMissing) and urlsplit(base_url).path.strip("/"):
            message = f"{url} is missing; add the file {condition} instead of TFTP"
            hint = f"curl -fsSO {quote_words(f'{base_url}/{path}')}  # then put the file at {url}"
            yield CheckResult(subject="Secure Boot", health=Health.FINE, message=message, hint=hint)
            return
        message = f"{url} cannot be read: {error}; GRUB needs this file {condition}"
        yield _make_warning("Secure Boot", message, f"curl -I {quote_words(url)}")


def _format_servers(names: Collection[str]) -> str:
    return f"{format_count(len(names), 'server')} ({format_names(sorted(names), 3)})"


def _list_verified_loaders(decisions: Decisions, host: Host) -> Iterator[str]:
    """Yield the paths of the loaders that the firmware of a machine verifies, and of the GRUB that shim verifies."""
    architecture = str(decisions.servers[host.server].architecture)
    for offer in list_loader_offers(decisions, host.loader):
        if offer.client.platform.value == architecture:
            yield offer.path
            if host.loader is Loader.SHIM:
                yield offer.path.replace("shim", "grub")


_MAX_GRUB_BYTES: Final = 16 * 2**20


def _find_secure_boot_fault(fetcher: WebFetcher, url: str) -> str | None:
    """Return the reason why the program at a URL cannot boot under Secure Boot, or None."""
    is_grub = url.endswith(tuple(f"/assets/{path}" for path in SIGNED_GRUBS))
    with fetcher.read(url) as content:
        program = b""
        for chunk in content.chunks:
            program += chunk
            if len(program) >= (_MAX_GRUB_BYTES if is_grub else HEAD):
                break
    fault = find_program_fault(program[:HEAD])
    return _NO_HTTP if fault is None and is_grub and not supports_http(program) else fault


def check_proxy_urls(decisions: Decisions) -> CheckResults:
    """If the Fleet has an output for a proxyDHCP server, check that the server can send each URL."""
    if Output.DHCP_PROXY not in decisions.outputs:
        return
    omitted = list_omitted_proxy_urls(decisions)
    if not omitted:
        yield make_success("DHCP", "the URLs are short enough for a proxyDHCP server")
    for url in omitted:
        yield _make_failure(
            "DHCP",
            f"a proxyDHCP server can send only URLs of up to {LONGEST_PROXY_URL} characters, so its configuration does "
            f"not contain {url}",
            "use a shorter `baseURL`, or the output `dhcp-dnsmasq` or `dhcp-kea`",
        )


_MIN_FREE_SHARE: Final = 0.1  # gitboot warns if less than this fraction of a file system is free


def _check_free_space(folder: Path, *, files: int) -> CheckResults:
    """Check whether a file system has enough free space, and enough inodes for ``files`` new files."""
    usage = os.statvfs(folder)
    free_gib = usage.f_bavail * usage.f_frsize / 2**30
    if usage.f_files and files > usage.f_favail:
        yield _make_failure(
            "disk",
            f"{folder} has only {usage.f_favail:,} free inodes, but the fleet's output tree needs about {files:,}",
            "use a file system with more inodes, for example one created with mkfs.ext4 -N",
        )
    elif usage.f_bavail < usage.f_blocks * _MIN_FREE_SHARE:
        message = f"{folder} has {free_gib:,.1f} GiB free, which is less than 10 %"
        yield _make_warning("disk", message, f"df -h {quote_words(folder)}")
    elif usage.f_files and usage.f_favail < usage.f_files * _MIN_FREE_SHARE:
        message = f"{folder} has {usage.f_favail:,} inodes free, which is less than 10 %"
        yield _make_warning("disk", message, f"df -i {quote_words(folder)}")
    else:
        yield make_success("disk", f"{folder} has {free_gib:,.1f} GiB free")


def _run_check(
    subject: str, success_message: str | None, check: Callable[[Callable[[str], None]], None]
) -> CheckResults:
    """Run a check. Yield its error or its warnings, or ``success_message`` if the check finds no fault."""
    warnings: list[str] = []
    try:
        check(warnings.append)
    except UsageError as error:
        yield _make_failure(subject, str(error), None)
        return
    if warnings:
        yield from (_make_warning(subject, warning, None) for warning in warnings)
    elif success_message is not None:
        yield make_success(subject, success_message)


def make_success(subject: str, message: str) -> CheckResult:
    """Build the result of a check that found no problem."""
    return CheckResult(subject=subject, health=Health.FINE, message=message)


def _make_warning(subject: str, message: str, hint: str | None) -> CheckResult:
    return CheckResult(subject=subject, health=Health.WARNING, message=message, hint=hint)


def _make_failure(subject: str, message: str, hint: str | None) -> CheckResult:
    return CheckResult(subject=subject, health=Health.FAILED, message=message, hint=hint)
