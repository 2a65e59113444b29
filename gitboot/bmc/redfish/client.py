"""Redfish client for one BMC, based on sushy: overrides, resets, virtual media and firmware settings."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
from gitboot.bmc.override_state import (
    EJECT_REQUEST,
    BmcObservation,
    MediaShare,
    MediaSlot,
    Override,
    build_insert_request,
)
from gitboot.bmc.override_steps import has_observation_changed
from gitboot.bmc.power_steps import ResetType
from gitboot.bmc.redfish.quirks import STANDARD, TARGET, TEMPORARY_REFUSALS, build_boot_patch, get_quirks
from gitboot.bmc.redfish.resources import (
    Resource,
    add_clock,
    build_observation,
    parse_reset_types,
    parse_secure_boot,
    parse_slot,
)
from gitboot.bmc.redfish.transport import (
    MAX_REDIRECTS,
    BmcAdapter,
    ConnectionPolicy,
    Login,
    RequestAborted,
    split_origin,
)
from gitboot.errors import BmcBusy, BmcChanged, BmcRejected, BmcUnreachable, OperatorError, TemporaryError
from gitboot.http_client import tls_context
from gitboot.text import one_line

# ETags


ANY_ETAG: Final = "*"  # a value of If-Match that matches any state of the resource (RFC 9110, 13.1.1)


def _strip_quotes(etag: str) -> str:
    return etag.removeprefix("W/").strip("\"'\\ ")


# The forms of an ETag in If-Match, in the order in which gitboot sends them. gitboot sends each form first with the
# ETag of the header, which DSP0266 requires, and then with the optional @odata.etag of the body. Some BMCs accept only
# @odata.etag, because their header has two pairs of double quotes.
_ETAG_FORMS: Final[tuple[Callable[[str], str], ...]] = (
    # First the ETag as the BMC sent it (RFC 9110, 13.1.1; ansible-collections/community.general pull request 3268).
    str,
    # A strong ETag in one pair of quotes. If-Match uses strong comparison, so some BMCs reject the weak ETags that they
    # sent: openstack/sushy, Connector._etag_handler; ansible-collections/community.general pull request 6434.
    lambda etag: f'"{_strip_quotes(etag)}"',
    # Last an ETag without quotes (stmcginnis/gofish pull request 275; community.general pull request 3296).
    _strip_quotes,
)


def read_etags(header: object, body: object) -> tuple[str, ...]:
    """Return the ETag in the header and the ``@odata.etag`` in the body, without duplicates.

    gitboot ignores ETags with characters that a header cannot contain.
    """
    texts = (str(each).strip() for each in (header, body) if isinstance(each, str | int) and not isinstance(each, bool))
    return tuple(dict.fromkeys(each for each in texts if _strip_quotes(each) and each.isascii() and each.isprintable()))


def list_if_match_values(etags: Iterable[str]) -> Iterator[str | None]:
    """Yield the If-Match values that gitboot tries in turn. None means a request without If-Match.

    If the BMC sent no ETag, the request without If-Match comes first.
    """
    # Some BMCs reject every ETag (ansible-collections/community.general issue 11261), or every If-Match
    # (stmcginnis/gofish pull request 277). sushy's Connector._etag_handler also ends with a request without If-Match.
    known = tuple(etags)
    yield from dict.fromkeys(format_etag(etag) for format_etag in _ETAG_FORMS for etag in known)
    yield from (ANY_ETAG, None) if known else (None, ANY_ETAG)


# The client


_ROOT: Final = "/redfish/v1/"
_BUSY_STATUSES: Final = frozenset({409, 423, 429, 503})
_MAX_DETAIL_LENGTH: Final = 300
_MAX_RETRY_AFTER_S: Final = 3600
_APPLY_AT_RESET: Final = {"@Redfish.SettingsApplyTime": {"ApplyTime": "OnReset"}}

# sushy logs each error that it raises. Without a handler, Python would print it to stderr.
logging.getLogger("sushy").addHandler(logging.NullHandler())

# The error of gitboot for each error of sushy. For an HTTPError, the error of gitboot also depends on the status.
ERROR_TYPES: Final[dict[type[exceptions.SushyError], type[BmcUnreachable | BmcRejected]]] = {
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


class BmcConnection:
    """A connection to one BMC that stays open until `close`. Use a connection from one thread at a time.

    Every method may raise `BmcUnreachable`, `BmcBusy` or `BmcRejected`. The messages of these errors name the request
    and the BMC. gitboot does not repeat a request that may have changed the BMC.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        *,
        system: str | None = None,  # the path of the ComputerSystem; None: the BMC's only system
        # several connections may share a context; None: trust the certificate authorities of this machine
        tls: ssl.SSLContext | None = None,
        policy: ConnectionPolicy | None = None,  # None: any address and any certificate that an authority verifies
        shares: tuple[MediaShare, ...] = (),  # the shares from which this BMC fetches images
        share_login: Credentials | None = None,  # the login for the shares; None: the shares need no login
        connect_timeout_s: float = 3,
        read_timeout_s: float = 10,  # how long gitboot waits for a complete response
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
            response_callback=self._store_headers,
            server_side_retries=1,  # sushy repeats a GET once after a 5xx response; sushy would treat 0 as 3
            default_request_timeout=read_timeout_s,
            connect_timeout=connect_timeout_s,
        )
        self.login = Login(self._connector, credentials, self._translate_errors)
        self.media = RedfishMedia(self, shares, share_login)
        self.firmware = RedfishFirmware(self)
        session = self._connector._session
        session.trust_env = False  # ignore REQUESTS_CA_BUNDLE, ~/.netrc and proxies, which do not apply to BMCs
        session.max_redirects = MAX_REDIRECTS
        session.headers["Connection"] = "keep-alive"
        self.policy = policy or ConnectionPolicy()
        adapter = BmcAdapter(tls, self.policy)
        session.mount("http://", adapter)
        session.mount("https://", adapter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, log_out: bool = True) -> None:
        """Log out if there is a session, and close the connection."""
        if log_out:
            with self.policy.mark_as_ending():
                self.login.log_out()
        self._connector.close()

    def observe(self) -> BmcObservation:
        """Read the system.

        The first call sends several requests. Later calls send only one, or two if the system has a Settings resource.
        """
        if self._system is None:
            paths = self.list_systems()
            if len(paths) != 1:
                listed = ", ".join(sorted(paths)) or "none"
                raise BmcRejected(f"{self._address} has these systems: {listed}. Set bmc.system to one of them")
            self._system = paths[0]
        system = self.read(self._system)
        # iDRAC 10, AMI and BlueField keep the override in the Settings resource.
        settings_path = system.link("@Redfish.Settings", "SettingsObject")
        if settings_path is None or settings_path == self._settings_without_override:
            return build_observation(system, None)
        settings = self.read(settings_path)
        if TARGET not in settings.boot:
            self._settings_without_override = settings_path
            return build_observation(system, None)
        return build_observation(system, settings)

    def read_clock(self, observed: BmcObservation, clock: Callable[[], datetime]) -> BmcObservation:
        """Read the Manager's clock with one more request, and add it to ``observed``.

        Return ``observed`` unchanged if the Manager has no clock.
        """
        manager = self.find(observed.manager_path) if observed.marks.bmc_time is None else None
        if manager is None:
            return observed
        return structs.replace(observed, marks=add_clock(observed.marks, manager, clock()))

    def set_override(self, override: Override, observed: BmcObservation) -> None:
        """Write the properties of an override that differ from ``observed``.

        Some BMCs accept an override but do not store it, so the caller must read the BMC again.

        ``override`` must come from `adapt_override`. Raises `BmcChanged` if the BMC no longer matches ``observed``.
        """
        boot = build_boot_patch(override, observed)
        if not boot:
            return

        def is_changed() -> bool:
            current = self.observe()
            return current.etags != observed.etags or has_observation_changed(observed, current)

        self.patch(observed.settings_path, {"Boot": boot}, observed.etags, is_changed)

    def read_reset_types(self, observed: BmcObservation) -> BmcObservation:
        """Read the reset types from the ActionInfo with one more request, if the system itself does not report them."""
        info = self.find(observed.action_info_path) if not observed.reset_types else None
        return structs.replace(observed, reset_types=parse_reset_types(info)) if info is not None else observed

    def reset(self, reset_type: ResetType, observed: BmcObservation) -> None:
        """Request ComputerSystem.Reset once. Some BMCs accept the request without resetting the machine."""
        if observed.reset_action is None:
            raise BmcRejected(f"{self._address}{observed.system} does not support the action ComputerSystem.Reset")
        self.post(observed.reset_action, {"ResetType": reset_type})

    def is_redfish(self) -> bool:
        """Return whether there is a Redfish service at the address. The request contains no credentials.

        Raises `BmcUnreachable` if there is no response, or if the response is not JSON.
        """
        url = f"{self._address}{_ROOT}"
        connector = self._connector
        request = connector._session.prepare_request(Request("GET", url, auth=lambda prepared: prepared))
        timeouts = connector._connect_timeout, connector._default_request_timeout
        try:
            response = connector._session.send(request, timeout=timeouts)
            return "RedfishVersion" in _parse_resource(response).body
        except RequestException as error:
            connection_error = exceptions.ConnectionError(url=url, error=error)
            connection_error.__cause__ = error
            raise _translate_error(connection_error, f"GET {url}") from error

    def read(self, path: str) -> Resource:
        with self._translate_errors("GET", path) as own_path:
            response = self.login.request(own_path, lambda: self._connector.get(own_path))
        return _parse_resource(response)

    def find(self, path: str | None) -> Resource | None:
        """Return a resource, or None if the BMC lacks the resource or the user's role may not read it."""
        if path is None:
            return None
        try:
            return self.read(path)
        except BmcRejected:
            return None

    def list_systems(self) -> tuple[str, ...]:
        """Return the paths of all systems that the BMC reports."""
        return self.read(self.read(_ROOT).link("Systems") or f"{_ROOT}Systems").members

    def post(self, path: str, body: Mapping[str, Any]) -> None:
        with self._translate_errors("POST", path) as own_path:
            self.login.request(own_path, lambda: self._connector.post(own_path, data=body))

    def patch(
        self, path: str, body: Mapping[str, Any], etags: tuple[str, ...], has_resource_changed: Callable[[], bool]
    ) -> None:
        """Send a PATCH request with each form of the ETag in turn, until the BMC accepts one of the requests.

        A request with a failed precondition does not change the BMC, so the next request cannot repeat a change.
        gitboot reads the BMC again after the first failure. gitboot also reads the BMC right before each request whose
        precondition cannot fail or that has no precondition. Raises `BmcChanged` if the resource has changed, or if the
        BMC rejects every form.
        """
        refused_forms: list[str] = []
        answer = ""
        retry_after_s = None
        problem = "the resource has not changed, but the BMC rejects every form of the resource's ETag"
        own_path = self._get_own_path("PATCH", path)
        for if_match in list_if_match_values(etags):
            if (len(refused_forms) == 1 or if_match in (ANY_ETAG, None)) and has_resource_changed():
                problem = "the BMC's state has changed since gitboot read it"
                break
            headers = {"If-Match": if_match} if if_match is not None else None
            send = partial(self._connector.patch, own_path, data=body, headers=headers)
            with self._translate_errors("PATCH", path):
                try:
                    self.login.request(own_path, send)
                except exceptions.HTTPError as error:
                    # Some BMCs return 428 for an If-Match that they cannot parse (community.general pull request 6434).
                    if error.status_code not in (HTTPStatus.PRECONDITION_FAILED, HTTPStatus.PRECONDITION_REQUIRED):
                        raise
                    refused_forms.append(f"If-Match {if_match}" if if_match is not None else "no If-Match")
                    answer = f"{error.status_code} {_format_reason(error)}; "
                    retry_after_s = _parse_retry_after(self._retry_after)
                else:
                    return
        refused = f" (refused: {', '.join(refused_forms)})" if refused_forms else ""
        raise BmcChanged(f"PATCH {self._address}{own_path}: {answer}{problem}{refused}", retry_after_s=retry_after_s)

    def _store_headers(self, response: Response) -> None:
        self._retry_after = response.headers.get("Retry-After")
        self.login.challenge = response.headers.get("WWW-Authenticate", "")

    @contextmanager
    def _translate_errors(self, method: str, link: str) -> Iterator[str]:
        """Yield the path of a link on this BMC. Convert request errors in the block to gitboot's errors."""
        path = self._get_own_path(method, link)
        request = f"{method} {self._address}{path}"
        try:
            yield path
        except exceptions.SushyError as error:
            if isinstance(error, exceptions.HTTPError):
                raise self._translate_http_error(error, request) from error
            raise _translate_error(error, request) from error
        except (AttributeError, TypeError, RecursionError) as error:
            # sushy does not check whether the body of an error has the expected structure.
            raise BmcUnreachable(f"{request}: the BMC returned an error that is not in Redfish format") from error

    def _get_own_path(self, method: str, link: str) -> str:
        """Return the path of a link, which may be a URL. Raises `BmcRejected` if the link does not lead to this BMC."""
        if link.startswith("/") and not link.startswith("//"):
            return link
        with suppress(ValueError):
            target = urlsplit(urljoin(f"{self._address}/", link))
            if "//" in link and split_origin(target.geturl()) == split_origin(self._address) and target.path:
                return target._replace(scheme="", netloc="").geturl()
        raise BmcRejected(f"{method} {self._address}{link}: the link is not a path on this BMC")

    def _translate_http_error(self, error: exceptions.HTTPError, request: str) -> TemporaryError | OperatorError:
        status = error.status_code
        if status == HTTPStatus.UNAUTHORIZED:
            name = f' "{self._credentials}"' if self._credentials else ""
            problem = f"the BMC rejects the user name or password in the credentials{name}"
            session_failure = self.login.session_failure
            if session_failure is not None:
                problem += f" by basic authentication, and does not open a session: {session_failure}"
            return BmcRejected(f"{request}: {status}: {problem}")
        body = json.dumps(error.body) if error.body else ""
        message = f"{request}: {status} {_format_reason(error)}"
        if status == HTTPStatus.PRECONDITION_FAILED:
            return BmcChanged(message, retry_after_s=_parse_retry_after(self._retry_after))
        if status in _BUSY_STATUSES or any(f'{reason}"' in body for reason in TEMPORARY_REFUSALS):
            return BmcBusy(message, retry_after_s=_parse_retry_after(self._retry_after))
        if status in {501, 505}:
            return BmcRejected(message)
        return ERROR_TYPES[type(error)](message)


def _translate_error(error: exceptions.SushyError, request: str) -> TemporaryError | OperatorError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return BmcRejected(f"{request}: certificate not trusted: {cause.verify_message}")
        if isinstance(cause, RequestAborted):
            return cause.error_type(f"{request}: {cause}")
        # use the message of the operating system, without those of urllib3 and requests
        if isinstance(cause, OSError) and cause.strerror:
            return ERROR_TYPES[type(error)](f"{request}: {_shorten(cause.strerror)}")
        cause = cause.__cause__ or cause.__context__
    return ERROR_TYPES[type(error)](f"{request}: {_shorten(error)}")


def _parse_resource(response: Response) -> Resource:
    try:
        body = json.loads(response.content)
        json.dumps(body, ensure_ascii=False).encode()  # UnicodeEncodeError: half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise BmcUnreachable(f"GET {response.url}: the response is not JSON") from error
    if not isinstance(body, dict):
        raise BmcUnreachable(f"GET {response.url}: the response is not a JSON object")
    etags = read_etags(response.headers.get("ETag"), body.get("@odata.etag"))
    return Resource(url=response.url, body=body, etags=etags)


def _format_reason(error: exceptions.HTTPError) -> str:
    return _shorten(error.detail or (json.dumps(error.body) if error.body else "without a reason"))


def _shorten(text: object) -> str:  # sushy does not check whether a message is a string
    return one_line(str(text))[:_MAX_DETAIL_LENGTH]


def _parse_retry_after(retry_after: str | None) -> int | None:
    """Parse the header Retry-After, and return its value in seconds, or None if the header contains a date.

    RFC 9110 allows dates, but BMCs do not send them.
    """
    return min(int(retry_after[:6]), _MAX_RETRY_AFTER_S) if retry_after and retry_after.isdecimal() else None


class RedfishFirmware:
    """The firmware settings of a system. Methods may raise the same errors as those of `BmcConnection`."""

    def __init__(self, bmc: BmcConnection) -> None:
        self._bmc = bmc
        self._uri: str | None = None
        self._uri_state: tuple[str | None, ...] | None = None  # the state of the machine when gitboot read the URI

    def read_secure_boot(self, observed: BmcObservation) -> BmcObservation:
        """Read the Secure Boot state with one more request.

        Add the state to ``observed`` if the user's role may read it.
        """
        resource = self._bmc.find(observed.secure_boot_path)
        return structs.replace(observed, secure_boot=parse_secure_boot(resource)) if resource is not None else observed

    def read_uri(self, observed: BmcObservation) -> BmcObservation:
        """Read the HTTP boot URI with one more request, and add it to ``observed`` if the user's role may read the URI.

        The setting changes only at a reset, so gitboot reads the setting again only after the machine's marks have
        changed.
        """
        setting = get_quirks(observed).firmware_uri
        if setting is None or observed.bios_path is None:
            return observed
        marks = (observed.marks.last_reset_time, observed.marks.boot_progress, observed.marks.boot_progress_time)
        state = (observed.power, *marks)
        if state != self._uri_state or not any(marks):
            bios = self._bmc.find(observed.bios_path)
            self._uri = setting.read(bios.attributes) if bios is not None else None
            self._uri_state = state
        return structs.replace(observed, firmware_uri=self._uri)

    def store_uri(self, uri: str, observed: BmcObservation) -> bool:
        """Store a URI in the firmware settings for the next reset. Some BMCs accept the URI but do not apply it.

        Return False if no change is needed, or if the setting no longer has the value that ``observed`` contains.
        """
        setting = get_quirks(observed).firmware_uri
        if setting is None or observed.bios_path is None:
            return False
        bios = self._bmc.read(observed.bios_path)
        path = bios.link("@Redfish.Settings", "SettingsObject")
        if path is None or bios.attributes.get(setting.attribute) not in ("", uri, observed.firmware_uri):
            return False  # another program or person stored this URI for the next reset
        pending = self._bmc.read(path)
        # Send only attributes that this firmware supports, because it rejects a request with an unknown attribute.
        related = {name: value for name, value in setting.related_attributes.items() if name in bios.attributes}
        attributes = related | {setting.attribute: uri}
        if all(pending.attributes.get(name) == value for name, value in attributes.items()):
            return False
        body = (_APPLY_AT_RESET if bios.can_apply_at_reset else {}) | {"Attributes": attributes}

        def has_resource_changed() -> bool:
            current = self._bmc.read(path)
            return (current.etags, current.attributes) != (pending.etags, pending.attributes)

        self._bmc.patch(path, body, pending.etags, has_resource_changed)
        return True


class RedfishMedia:
    """The virtual media of a system. Methods may raise the same errors as those of `BmcConnection`."""

    def __init__(self, bmc: BmcConnection, shares: tuple[MediaShare, ...], share_login: Credentials | None) -> None:
        self._bmc = bmc
        self._quirks = STANDARD
        self._shares = shares
        self._share_login = share_login

    def read_slots(self, observed: BmcObservation) -> BmcObservation:
        """Add the virtual media slots to ``observed``. Before Redfish 2020.4, the slots belong to the Manager."""
        paths: tuple[str, ...] = ()
        if observed.virtual_media_path is not None:
            paths = self._bmc.read(observed.virtual_media_path).members
        if not paths and observed.manager_path is not None:
            collection = self._bmc.read(observed.manager_path).link("VirtualMedia")
            paths = self._bmc.read(collection).members if collection is not None else ()
        self._quirks = get_quirks(observed)
        prefixes = self._quirks.network_drives
        if prefixes:
            paths = tuple(path for path in paths if path.rstrip("/").rpartition("/")[2].startswith(prefixes))
        return structs.replace(observed, slots=tuple(map(self._read_slot, paths)))

    def insert(self, slot: MediaSlot, url: str) -> None:
        """Insert an image, which the BMC then downloads.

        If the slot shows an image that is not connected, eject it first.
        """
        if not slot.is_free:
            self.eject(slot)
            slot = self._read_slot(slot.path)
        body = build_insert_request(slot, url)
        if body["Image"] != url:
            protocol = body.get("TransferProtocolType")
            if protocol is not None and slot.protocols and protocol not in slot.protocols:
                raise BmcRejected(
                    f"{slot.path}: the BMC fetches images only over {', '.join(sorted(slot.protocols))}, but [media] "
                    f"in access.toml specifies {protocol}"
                )
            if (login := self._share_login) is not None:
                body = {**body, "UserName": login.username, "Password": login.password}
        self._send_change(slot, slot.insert_target, body)

    def eject(self, slot: MediaSlot) -> None:
        self._send_change(slot, slot.eject_target, EJECT_REQUEST if slot.eject_target is None else {})

    def _read_slot(self, path: str) -> MediaSlot:
        """Read a slot. If its image is a copy on a share, show the original URL instead."""
        slot = structs.replace(parse_slot(self._bmc.read(path), self._quirks), shares=self._shares)
        if slot.image is not None:
            for share in self._shares:
                url = share.find_original_url(slot.image)
                if url is not None:
                    return structs.replace(slot, image=url)
        return slot

    def _send_change(self, slot: MediaSlot, action: str | None, body: Mapping[str, Any]) -> None:
        if action is None:
            self._bmc.patch(slot.path, body, slot.etags, lambda: self._read_slot(slot.path) != slot)
        else:
            self._bmc.post(action, body)
