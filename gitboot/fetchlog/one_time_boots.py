"""One-time boots and secrets: find served boots, and count how often each client fetched a secret."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec import Struct, field, structs

from gitboot.fetchlog.log_entries import Observation, select_consuming_fetches
from gitboot.fetchlog.spool import get_endpoint_folder, list_files, parse_file_name, parse_line, read_whole_lines
from gitboot.jsonio import format_instant, parse_json, to_json_value
from gitboot.render.paths import FAILED, Role, find_non_script_kind, find_path_kind
from gitboot.resolve.provisioning_record import FETCH_GRACE, SoleClaim
from gitboot.system_clock import Uptime

MAX_ADDRESSES: Final = 16  # the number of addresses that gitboot counts separately for each secret in an installation
MAX_FETCHES: Final = 10  # the number of expected fetches of one secret in one installation
OTHERS: Final = "others"  # stands for all addresses beyond MAX_ADDRESSES
_USER_DATA: Final = "user-data/"
_REPORT: Final = "reports/"
_ENCRYPTED: Final = "secrets/"
# a file in the instance's spool that maps each site to the spool of a host
_INSTANCE_FILE: Final = Path(".forwarded", "soles")
_HOST_FILES: Final = ("sole", "sole.left")  # files in the spool of that host


class FetchLogUnavailable(Exception):
    """The error for a fetch log that does not respond in time, or that gitboot cannot read."""


class BatchRejected(Exception):
    """The error for a batch of fetches that the instance rejects. The message states the reason."""


# Fetches of secrets


def find_secret(path: str) -> str | None:
    """Return the secret at a path below the output directory, in the form ``secrets/NAME`` or ``user-data/FILE``.

    User data counts as a secret, because it contains the tokens with which an installer sends its report and fetches
    its secrets. Report paths also contain tokens, and count as ``reports/provisioned`` and ``reports/failed``.
    """
    kind = find_non_script_kind(path)
    if kind is None or kind.role not in (Role.DATA, Role.SEALED, Role.REPORT):
        return None
    if kind.role is Role.REPORT:
        return f"{_REPORT}{'failed' if kind is FAILED else 'provisioned'}"
    name = path.rpartition("/")[2] if "{name}" in kind.template else "config.ign"
    return f"{_ENCRYPTED if kind.role is Role.SEALED else _USER_DATA}{name}"


def is_report(secret: str) -> bool:
    return secret.startswith(_REPORT)


def describe_secret(secret: str) -> str:
    group, _, name = secret.partition("/")
    return f"the secret {name}" if f"{group}/" == _ENCRYPTED else f"the user data {name}"


class AddressFetches(Struct, frozen=True):
    """The fetches of one secret by one address, or by several addresses that gitboot counts together."""

    first: datetime
    last: datetime
    times: int

    def add_fetches(self, at: datetime, times: int) -> AddressFetches:
        return AddressFetches(min(self.first, at), max(self.last, at), self.times + times)


class SecretFetches(Struct, frozen=True, kw_only=True):
    """The fetches of one secret in one installation."""

    # the fetches for each `get_client_network`; at most MAX_ADDRESSES entries
    addresses: Mapping[str, AddressFetches] = field(default_factory=dict)
    others: AddressFetches | None = None  # the fetches by all other addresses
    confirmed: tuple[int, int] = (1, 0)  # the numbers of addresses and fetches that an operator confirmed

    @property
    def totals(self) -> tuple[int, int]:
        """The number of addresses and the number of fetches. All addresses in ``others`` count as one address."""
        return len(self.all_fetches), sum(fetches.times for fetches in self.all_fetches)

    @property
    def all_fetches(self) -> list[AddressFetches]:
        return [*self.addresses.values(), *filter(None, [self.others])]

    @property
    def is_unexpected(self) -> bool:
        """Whether there are more addresses than an operator confirmed, or more than ten fetches since the confirmation.

        The first address does not need an operator's confirmation.
        """
        addresses, times = self.totals
        return addresses > self.confirmed[0] or times > self.confirmed[1] + MAX_FETCHES

    def add_fetch(self, address: str, at: datetime, times: int) -> SecretFetches:
        no_fetches = AddressFetches(at, at, 0)
        if address in self.addresses or (len(self.addresses) < MAX_ADDRESSES and address != OTHERS):
            fetches = self.addresses.get(address, no_fetches).add_fetches(at, times)
            return structs.replace(self, addresses={**self.addresses, address: fetches})
        return structs.replace(self, others=(self.others or no_fetches).add_fetches(at, times))


class InstallationFetches(Struct, frozen=True, kw_only=True):
    """The fetches of one server's secrets in its newest installation."""

    key: str  # the provision key
    attempt: int
    number: int  # the sequence number of the offer in the ledger
    # the fetches of each secret, by its name from `find_secret`
    secrets: Mapping[str, SecretFetches] = field(default_factory=dict)

    @property
    def secret_fetches(self) -> dict[str, SecretFetches]:
        """The fetches of secrets and user data, without requests for report paths."""
        return {name: fetches for name, fetches in self.secrets.items() if not is_report(name)}

    @property
    def is_unexpected(self) -> bool:
        return any(fetches.is_unexpected for fetches in self.secret_fetches.values())

    @property
    def last(self) -> datetime:
        return max(fetches.last for secret in self.secrets.values() for fetches in secret.all_fetches)

    def has_fetched(self, address: str, secret: str) -> bool:
        """Return whether an address has fetched a secret in this installation.

        All user data files count as one secret.
        """
        is_user_data = secret.startswith(_USER_DATA)
        return any(
            address in fetches.addresses
            for name, fetches in self.secrets.items()
            if name == secret or (is_user_data and name.startswith(_USER_DATA))
        )

    def facts(self) -> list[dict[str, Any]]:
        """Return one item for each secret, in the format of the API and of `gitboot secret fetches`."""
        return [
            {
                "installation": self.key,
                "attempt": self.attempt,
                "secret": name,
                "unexpected": secret.is_unexpected,
                "times": secret.totals[1],
                "addresses": [
                    {"address": address, **to_json_value(fetches)}
                    for address, fetches in sorted(secret.addresses.items())
                ],
                "others": to_json_value(secret.others),
            }
            for name, secret in sorted(self.secret_fetches.items())
        ]


# Served boots


class ServedBoot(NamedTuple):
    """The first fetch of a one-time boot."""

    first: Observation  # the first fetch, or the installer's report if there was no fetch
    is_over: bool  # whether the booted system has fetched its user data, or the installer has sent its report

    def __str__(self) -> str:
        if _find_role(self.first) is Role.REPORT:
            return f"the installer sent its report at {format_instant(self.first.at)}"
        served = "perhaps served" if self.first.is_open_intent else "served"
        return f"{served} at {format_instant(self.first.at)} to {self.first.client}"

    def may_serve_again(self, at: datetime, up: Uptime) -> bool:
        """Return whether an endpoint may serve the boot again, for example to another NIC or to GRUB after iPXE."""
        first = self.first.adjust_clock(at, up)
        return not self.is_over and first.at <= at < first.at + FETCH_GRACE


class _FileContent(Struct):
    """The part of a spool file that gitboot has read so far."""

    base: int = 0  # the offset of the file's first byte in the writer's own file
    offset: int = 0
    # the observations by server or offer, and then by offset
    observations: dict[str, dict[int, Observation]] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        """Read the complete lines after the current offset."""
        for offset, line in read_whole_lines(path, self.offset):
            self.offset = offset + len(line)
            match parse_line(line):
                case Observation() as observation if observation.digest is not None and observation.is_evidence:
                    for name in {observation.server, observation.offer or observation.server}:
                        self.observations.setdefault(name, {})[self.base + offset] = observation
                case int(revoked_offset):
                    for observations in self.observations.values():
                        observations.pop(revoked_offset, None)


def find_served_boot(observations: Iterable[Observation], offer: str, report: str | None) -> ServedBoot | None:
    """Return the first fetch of a boot in ``observations``, or None if the boot was not served.

    After an installer has sent its report with the token ``report``, all boots of the same attempt count as served.
    """
    fetches = sorted(select_consuming_fetches(observations), key=lambda fetch: fetch.at)
    first_fetch: Observation | None = None
    first_report: Observation | None = None
    for fetch in fetches:
        is_from_installer = _find_role(fetch) is Role.REPORT
        if first_report is None and is_from_installer and fetch.digest == report:
            first_report = fetch
        if first_fetch is None and not is_from_installer and fetch.offer == offer:
            first_fetch = fetch
    first = first_fetch or first_report
    if first is None:
        return None
    later_fetches = (fetch for fetch in fetches if not _is_before(fetch, first))
    is_over = any(_find_role(fetch) in (Role.DATA, Role.SEALED, Role.REPORT) for fetch in later_fetches)
    return ServedBoot(first, is_over)


def merge_served_boots(first: ServedBoot | None, second: ServedBoot | None) -> ServedBoot | None:
    """Merge the results for a boot from two logs.

    The result contains the earlier of the two fetches. The boot is over if at least one log shows that it is.
    """
    if first is None or second is None:
        return first or second
    first_fetch = min(first.first, second.first, key=lambda fetch: fetch.at)
    return ServedBoot(first_fetch, first.is_over or second.is_over)


def has_report_since_boot(observations: Collection[Observation], token: str) -> bool:
    """Return whether an installer has sent a report with ``token`` since its server's boot was last served."""
    last_boot: Observation | None = None
    reports: list[Observation] = []
    for fetch in select_consuming_fetches(observations):
        role = _find_role(fetch)
        if role is Role.BOOT_SCRIPT and (last_boot is None or _is_before(last_boot, fetch)):
            last_boot = fetch
        elif role is Role.REPORT and fetch.digest == token:
            reports.append(fetch)
    return any(last_boot is None or not _is_before(report, last_boot) for report in reports)


def _is_before(first: Observation, second: Observation) -> bool:
    """Return whether ``first`` is earlier than ``second``. If possible, compare uptimes, which no setting changes."""
    if first.up is not None and second.up is not None and first.up.boot and first.up.boot == second.up.boot:
        return first.up.seconds < second.up.seconds
    return first.at < second.at


class ServedBoots:
    """Finds the boots that any writer of a spool recorded as served.

    Files that the instance has deleted are not included.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _FileContent] = {}

    def find(self, server: str, offer: str, report: str | None = None) -> ServedBoot | None:
        """Return the first fetch of a boot, or None if the boot was not served.

        Raises OSError if gitboot cannot read the spool.

        The offer identifies the boot, even if a commit has changed the boot or the name of the server meanwhile.
        """
        self._refresh()
        return find_served_boot({*self._list_observations(server), *self._list_observations(offer)}, offer, report)

    def has_installer_reported(self, server: str, token: str) -> bool:
        """Return whether an installer has sent a report with ``token`` since its server's boot was last served.

        Raises OSError if the spool cannot be read.
        """
        self._refresh()
        return has_report_since_boot([*self._list_observations(server)], token)

    def _list_observations(self, name: str) -> Iterator[Observation]:
        for file in self._files.values():
            yield from file.observations.get(name, {}).values()

    def _refresh(self) -> None:
        paths_by_name = {path.name: path for path in list_files(self._folder)}
        for name in self._files.keys() - paths_by_name.keys():
            del self._files[name]
        for name, path in paths_by_name.items():
            with suppress(FileNotFoundError):  # the instance may have just deleted the file
                size_bytes = path.stat().st_size
                content = self._files.get(name)
                # content.offset is greater if the writer has removed lines that it could not sync
                if content is None or size_bytes < content.offset:
                    _, base = parse_file_name(name)
                    content = self._files[name] = _FileContent(base)
                if size_bytes > content.offset:
                    content.read(path)


def _find_role(observation: Observation) -> Role | None:
    kind = find_path_kind(observation.path)
    return kind.role if kind is not None else None


# Endpoints that may serve one-time boots


def is_lease_identity(serving_identity: str) -> bool:
    """Return whether ``serving_identity`` is the lease of a shared ledger rather than the identity of a spool."""
    return "/" in serving_identity


def read_claims(folders: Iterable[Path], fetch_log: Path) -> tuple[SoleClaim, ...]:
    """Return the claims in the files of these spools. If gitboot cannot read a file, the claim has no sites.

    ``fetch_log`` is the spool that the instance now reads. An operator must copy the other host's fetches to this
    spool.
    """
    files: list[Path] = []
    for folder in folders:
        files.append(folder / _INSTANCE_FILE)
        files += [get_endpoint_folder(folder) / name for name in _HOST_FILES]
    claims = []
    for file in dict.fromkeys(files):
        sites = _read_claimed_sites(file)
        if sites is not None:
            claims.append(SoleClaim(str(file), sites, str(fetch_log)))
    return tuple(claims)


def _read_claimed_sites(file: Path) -> tuple[str, ...] | None:
    """Return the sites that a file claims.

    Return () if gitboot cannot read the file. Return None if the file is missing or its claims have ended.
    """
    try:
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return ()
    with suppress(ValueError):
        match parse_json(content):
            case {"site": str(site)}:
                return (site,)
            case dict(claimed):
                return tuple(sorted(map(str, claimed))) or None
    return ()
