"""Redfish client of one BMC: overrides, drives and firmware, through sushy."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import urljoin, urlsplit

from msgspec import structs
from requests import Request, Response
from requests.exceptions import RequestException
from sushy import exceptions
from sushy.connector import Connector

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.override_state import EJECTION, MediaSlot, Observed, Override, insertion
from gitboot.bmc.override_steps import has_changed
from gitboot.bmc.power_steps import ResetType
from gitboot.bmc.redfish.quirks import NOT_NOW, TARGET, boot_patch, row_of
from gitboot.bmc.redfish.resources import Resource, observe, read_clock, reset_types, slot_of, starts_only_signed
from gitboot.bmc.redfish.transport import (
    ANY,
    MAX_REDIRECTS,
    BmcAdapter,
    Login,
    Reach,
    RequestGivenUp,
    if_match_values,
    origin_of,
    read_etags,
)
from gitboot.errors import BmcBusy, BmcChanged, BmcRejected, BmcUnreachable, OperatorError, TryAgain
from gitboot.http_client import tls_context

_ROOT = "/redfish/v1/"
_LONGEST_RETRY_AFTER_S = 3600
_LONGEST_DETAIL = 300


# What sushy logs of an error, it raises as well: without a handler, Python would print it to stderr.
logging.getLogger("sushy").addHandler(logging.NullHandler())


# What each error of sushy means. An HTTPError is judged by its status besides.
MEANING: dict[type[exceptions.SushyError], type[BmcUnreachable | BmcRejected]] = {
    exceptions.SushyError: BmcUnreachable,
    exceptions.ConnectionError: BmcUnreachable,
    exceptions.HTTPError: BmcRejected,
    exceptions.BadRequestError: BmcRejected,
    exceptions.ResourceNotFoundError: BmcRejected,
    exceptions.AccessError: BmcRejected,
    exceptions.NotAcceptableError: BmcRejected,
    exceptions.ServerSideError: BmcUnreachable,
    exceptions.MissingXAuthToken: BmcUnreachable,
    exceptions.MissingHeaderError: BmcUnreachable,
    exceptions.MissingAttributeError: BmcUnreachable,
    exceptions.MalformedAttributeError: BmcUnreachable,
    exceptions.ArchiveParsingError: BmcUnreachable,
    exceptions.MissingActionError: BmcRejected,
    exceptions.InvalidParameterValueError: BmcRejected,
    exceptions.UnknownDefaultError: BmcRejected,
    exceptions.ExtensionError: BmcRejected,
    exceptions.OEMExtensionNotFoundError: BmcRejected,
}
_BUSY = frozenset({409, 423, 429, 503})
# 428: what some BMCs answer to an If-Match that they cannot read (community.general pull request 6434).
_PRECONDITION = frozenset({HTTPStatus.PRECONDITION_FAILED, HTTPStatus.PRECONDITION_REQUIRED})
_NEVER = frozenset({501, 505})


class BmcConnection:
    """A connection to one BMC, kept open until `close`; for one thread at a time.

    Every method raises `BmcUnreachable`, `BmcBusy` or `BmcRejected`. Their messages name the request and the BMC.
    Nothing is tried again that may have changed something.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        *,
        system: str | None = None,  # the path of the ComputerSystem; None: the only one
        tls: ssl.SSLContext | None = None,  # shared between BMCs; None: what this machine trusts
        reach: Reach | None = None,  # None: wherever the address leads
        connect_timeout_s: float = 3,
        read_timeout_s: float = 10,  # until the answer is whole
    ) -> None:
        self._address = address.rstrip("/")
        self._credentials = credentials.name
        self._system = system
        self._settings_without_override: str | None = None
        self._retry_after: str | None = None
        tls = tls or tls_context()
        self._connector = Connector(
            self._address,
            verify=tls.verify_mode is not ssl.CERT_NONE,
            response_callback=self._note_headers,
            server_side_retries=1,  # one try; a GET that got a 5xx has a second one. 0 would mean 3
            default_request_timeout=read_timeout_s,
            connect_timeout=connect_timeout_s,
        )
        self.login = Login(self._connector, credentials, self._door)
        self.media = RedfishDrives(self)
        self.firmware = RedfishFirmware(self)
        session = self._connector._session
        session.trust_env = False  # REQUESTS_CA_BUNDLE, ~/.netrc, proxies: none of them is meant for a BMC
        session.max_redirects = MAX_REDIRECTS
        session.headers["Connection"] = "keep-alive"
        self.reach = reach or Reach()
        adapter = BmcAdapter(tls, self.reach)
        session.mount("http://", adapter)
        session.mount("https://", adapter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, log_out: bool = True) -> None:
        """Log out, where there is a session, and close the connection."""
        if log_out:
            self.login.log_out()
        self._connector.close()

    def observe(self) -> Observed:
        """Read the system, in one request once its path and the whereabouts of its override are known."""
        if self._system is None:
            paths = self.read(self.read(_ROOT).link("Systems") or f"{_ROOT}Systems").members
            if len(paths) != 1:
                found = ", ".join(sorted(paths)) or "none"
                raise BmcRejected(f"{self._address} has not one system, but {found}: name it in bmc.system")
            self._system = paths[0]
        system = self.read(self._system)
        # iDRAC 10, AMI and BlueField have overrides in the Settings resource.
        path = system.link("@Redfish.Settings", "SettingsObject")
        if path is None or path == self._settings_without_override:
            return observe(system, None)
        settings = self.read(path)
        if TARGET in settings.boot:
            return observe(system, settings)
        self._settings_without_override = path
        return observe(system, None)

    def with_clock(self, seen: Observed, clock: Callable[[], datetime]) -> Observed:
        """Read the Manager's clock, too, in one more request; a BMC that shows none is as it was seen."""
        if seen.manager is None or seen.marks.bmc_time is not None:
            return seen
        try:
            manager = self.read(seen.manager)
        except BmcRejected:  # a role that may not see the Manager, a path that leads nowhere
            return seen
        return structs.replace(seen, marks=read_clock(seen.marks, manager, clock()))

    def set_override(self, wanted: Override, seen: Observed) -> None:
        """Write what differs from ``seen``, unless the BMC has changed since: then `BmcChanged`.

        ``wanted`` has to fit the BMC. The BMC may accept it, and still not keep it.
        """
        boot = boot_patch(wanted, seen)
        if not boot:
            return

        def is_changed() -> bool:
            now = self.observe()
            return now.etags != seen.etags or has_changed(seen, now)

        self.patch(seen.settings, {"Boot": boot}, seen.etags, is_changed)

    def with_reset_types(self, seen: Observed) -> Observed:
        """Read the reset types in the ActionInfo, in one more request, if the system itself has none."""
        if seen.reset_types or seen.reset_info is None:
            return seen
        try:
            return structs.replace(seen, reset_types=reset_types(self.read(seen.reset_info)))
        except BmcRejected:  # a path that leads nowhere
            return seen

    def reset(self, type: ResetType, seen: Observed) -> None:
        """Ask for ComputerSystem.Reset, once. That the BMC accepted it does not say that the machine obeys."""
        path = seen.reset_action
        if path is None:
            raise BmcRejected(f"{self._address}{seen.system} shows no action ComputerSystem.Reset")
        self.post(path, {"ResetType": type})

    def is_redfish(self) -> bool:
        """Return whether a Redfish service answers. Asks without credentials, as every service allows."""
        url, connector = f"{self._address}{_ROOT}", self._connector
        asked = connector._session.prepare_request(Request("GET", url, auth=lambda request: request))
        timeouts = connector._connect_timeout, connector._default_request_timeout
        try:
            return "RedfishVersion" in _resource(connector._session.send(asked, timeout=timeouts)).body
        except RequestException as error:
            failed = exceptions.ConnectionError(url=url, error=error)
            failed.__cause__ = error
            raise _meaning(failed, f"GET {url}") from error

    def read(self, path: str) -> Resource:
        with self._door("GET", path) as own:
            response = self.login.ask(own, lambda: self._connector.get(own))
            return _resource(response)

    def post(self, path: str, body: Mapping[str, Any]) -> None:
        with self._door("POST", path) as own:
            self.login.ask(own, lambda: self._connector.post(own, data=body))

    def patch(
        self, path: str, body: Mapping[str, Any], etags: tuple[str, ...], has_changed: Callable[[], bool]
    ) -> None:
        """Send a PATCH with each form of the ETag in turn, until the BMC accepts one.

        A refused precondition changed nothing, so the next form cannot repeat a change. gitboot reads the BMC again
        after the first refusal, and right before each request that the BMC would accept after any change.
        Raises `BmcChanged` if the resource has changed, or if the BMC refuses every form.
        """
        refused: list[str] = []
        answer = ""
        with self._door("PATCH", path) as own:
            for if_match in if_match_values(etags):
                if (len(refused) == 1 or if_match in (ANY, None)) and has_changed():
                    raise self._changed(own, answer, "the BMC has changed since it was read", refused)
                headers = {"If-Match": if_match} if if_match is not None else None
                send = partial(self._connector.patch, own, data=body, headers=headers)
                try:
                    self.login.ask(own, send)
                except exceptions.HTTPError as error:
                    if error.status_code not in _PRECONDITION:
                        raise
                    refused.append(f"If-Match {if_match}" if if_match is not None else "no If-Match")
                    answer = f"{error.status_code} {_reason(error)}"
                else:
                    return
            raise self._changed(own, answer, "the BMC has not changed, and refuses each form of its ETag", refused)

    def _changed(self, path: str, answer: str, what: str, refused: Sequence[str]) -> BmcChanged:
        said = f"{answer}; " if answer else ""
        sent = f" (refused: {', '.join(refused)})" if refused else ""
        retry_after_s = _seconds(self._retry_after) if refused else None
        return BmcChanged(f"PATCH {self._address}{path}: {said}{what}{sent}", retry_after_s=retry_after_s)

    def _note_headers(self, response: Response) -> None:
        self._retry_after = response.headers.get("Retry-After")
        self.login.challenge = response.headers.get("WWW-Authenticate", "")

    @contextmanager
    def _door(self, method: str, link: str) -> Iterator[str]:
        """Yield the path to which a link leads at this BMC, and raise what requests come to as errors of gitboot."""
        path = self._own_path(link)
        if path is None:
            raise BmcRejected(f"{method} {self._address}{link}: not a path on this BMC")
        request = f"{method} {self._address}{path}"
        try:
            yield path
        except exceptions.SushyError as error:
            if isinstance(error, exceptions.HTTPError):
                raise self._answered(error, request) from error
            raise _meaning(error, request) from error
        except (AttributeError, TypeError, RecursionError) as error:
            # sushy takes for granted that the body of an error is shaped as Redfish says.
            raise BmcUnreachable(f"{request}: an error that is not Redfish's") from error

    def _own_path(self, link: str) -> str | None:
        """Return the path of a link to this BMC, which may be a whole URL; None for a link to another place."""
        if link.startswith("/") and not link.startswith("//"):
            return link
        try:
            target = urlsplit(urljoin(f"{self._address}/", link))
            is_own = "//" in link and origin_of(target.geturl()) == origin_of(self._address)
        except ValueError:
            return None
        return target._replace(scheme="", netloc="").geturl() if is_own and target.path else None

    def _answered(self, error: exceptions.HTTPError, request: str) -> TryAgain | OperatorError:
        status = error.status_code
        if status == HTTPStatus.UNAUTHORIZED:
            name = f' "{self._credentials}"' if self._credentials else ""
            what = f"the BMC refuses the user name or password of credentials{name}"
            if (why := self.login.no_session) is not None:
                what += f" by basic authentication, and opens no session: {why}"
            return BmcRejected(f"{request}: {status}: {what}")
        said = json.dumps(error.body) if error.body else ""
        message = f"{request}: {status} {_reason(error)}"
        if status == HTTPStatus.PRECONDITION_FAILED:
            return BmcChanged(message, retry_after_s=_seconds(self._retry_after))
        if status in _BUSY or any(f'{reason}"' in said for reason in NOT_NOW):
            return BmcBusy(message, retry_after_s=_seconds(self._retry_after))
        return BmcRejected(message) if status in _NEVER else MEANING[type(error)](message)


def _meaning(error: exceptions.SushyError, request: str) -> TryAgain | OperatorError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return BmcRejected(f"{request}: certificate refused: {cause.verify_message}")
        if isinstance(cause, RequestGivenUp):
            return cause.meaning(f"{request}: {cause}")
        if isinstance(cause, OSError) and cause.strerror:  # what the system said, without the layers above it
            return MEANING[type(error)](f"{request}: {_detail(cause.strerror)}")
        cause = cause.__cause__ or cause.__context__
    return MEANING[type(error)](f"{request}: {_detail(str(error))}")


def _resource(response: Response) -> Resource:
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise BmcUnreachable(f"GET {response.url}: not JSON") from error
    if not isinstance(body, dict):
        raise BmcUnreachable(f"GET {response.url}: not a JSON object")
    return Resource(
        url=response.url, body=body, etags=read_etags(response.headers.get("ETag"), body.get("@odata.etag"))
    )


def _reason(error: exceptions.HTTPError) -> str:
    return _detail(error.detail or (json.dumps(error.body) if error.body else "without a reason"))


def _detail(text: str) -> str:
    """Return text from outside on one line, cut to a line or two."""
    return " ".join(text.split())[:_LONGEST_DETAIL]


def _seconds(retry_after: str | None) -> int | None:
    """Return Retry-After in seconds; BMCs send no dates, which RFC 9110 allows too."""
    if retry_after is None or not retry_after.isdecimal():
        return None
    return min(int(retry_after), _LONGEST_RETRY_AFTER_S)


_AT_RESET: Final = {"@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}}


class RedfishFirmware:
    """What `BmcConnection` reads and writes of a system's firmware settings; it raises as that does."""

    def __init__(self, bmc: BmcConnection) -> None:
        self._bmc = bmc
        self._uri: tuple[tuple[str | None, ...], str | None] | None = None  # as it was read, and at which marks

    def with_secure_boot(self, seen: Observed) -> Observed:
        """Read it in one more request; a BMC that shows none, or not to this role, is as it was seen."""
        if seen.secure_boot_path is None:
            return seen
        try:
            resource = self._bmc.read(seen.secure_boot_path)
        except BmcRejected:
            return seen
        return structs.replace(seen, secure_boot=starts_only_signed(resource))

    def with_uri(self, seen: Observed) -> Observed:
        """Read what firmware boots by HTTP, in one more request; not again before the machine's marks move.

        A setting takes effect at a reset. A BMC that shows none, or not to this role, is as it was seen.
        """
        setting, marks = row_of(seen).firmware_uri, seen.marks
        since = seen.power, marks.last_reset_time, marks.boot_progress, marks.boot_progress_time
        if setting is None or seen.bios is None:
            return seen
        if self._uri is None or self._uri[0] != since or not any(since[1:]):
            try:
                self._uri = since, setting.read(self._bmc.read(seen.bios).attributes)
            except BmcRejected:
                self._uri = since, None
        return structs.replace(seen, firmware_uri=self._uri[1])

    def keep_uri(self, uri: str, seen: Observed) -> bool:
        """Have firmware keep a URI from the next reset on, in place of what was seen; False: it is to already.

        That the BMC has taken it says nothing of what the reset makes of it.
        """
        setting = row_of(seen).firmware_uri
        if setting is None or seen.bios is None:
            return False
        bios = self._bmc.read(seen.bios)
        path = bios.link("@Redfish.Settings", "SettingsObject")
        if path is None or bios.attributes.get(setting.attribute) not in ("", uri, seen.firmware_uri):
            return False  # what does not count now is somebody's all the same
        pending = self._bmc.read(path)
        # Only what this firmware has: one that it does not know would be refused with the rest.
        beside = {name: value for name, value in setting.beside.items() if name in bios.attributes}
        attributes = beside | {setting.attribute: uri}
        if all(pending.attributes.get(name) == value for name, value in attributes.items()):
            return False
        body = (_AT_RESET if bios.settings_at_reset else {}) | {"Attributes": attributes}

        def has_changed() -> bool:
            now = self._bmc.read(path)
            return (now.etags, now.attributes) != (pending.etags, pending.attributes)

        self._bmc.patch(path, body, pending.etags, has_changed)
        return True


class RedfishDrives:
    """What `BmcConnection` reads and sends of virtual media; it raises as that does."""

    def __init__(self, bmc: BmcConnection) -> None:
        self._bmc = bmc

    def with_slots(self, seen: Observed) -> Observed:
        """Read the slots of the system; if it has none, those of its Manager, as before Redfish 2020.4."""
        paths = self._bmc.read(seen.virtual_media).members if seen.virtual_media is not None else ()
        if not paths and seen.manager is not None:
            collection = self._bmc.read(seen.manager).link("VirtualMedia")
            paths = self._bmc.read(collection).members if collection is not None else ()
        return structs.replace(seen, slots=tuple(slot_of(self._bmc.read(path)) for path in paths))

    def insert(self, slot: MediaSlot, url: str) -> None:
        """Insert an image, which the BMC fetches by itself."""
        self._change(slot, slot.insert, insertion(slot, url))

    def eject(self, slot: MediaSlot) -> None:
        self._change(slot, slot.eject, EJECTION if slot.eject is None else {})

    def _change(self, slot: MediaSlot, action: str | None, body: Mapping[str, Any]) -> None:
        if action is None:
            self._bmc.patch(slot.path, body, slot.etags, lambda: slot_of(self._bmc.read(slot.path)) != slot)
        else:
            self._bmc.post(action, body)
