"""IPMI 2.0 client for one BMC without Redfish.

The client reads and sets the boot flags with ipmitool.

IPMI does not report the time of the last reset or the boot progress, so gitboot cannot prove that a machine consumed an
override. If an override disappears, gitboot treats the override as lost. Then only other evidence or a person can
determine whether the machine booted from the override. docs/adr/0035 explains why gitboot uses ipmitool instead of a
library.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import Final, TypeAlias
from urllib.parse import urlsplit
from uuid import UUID

from gitboot.bmc.credentials import Credentials
from gitboot.bmc.identity import ReportedIdentity
from gitboot.bmc.override_state import IPMI, BmcObservation, Override
from gitboot.bmc.override_steps import has_observation_changed, is_override_shown
from gitboot.bmc.power_steps import ResetType
from gitboot.bmc.redfish.transport import ConnectionPolicy, RequestAborted
from gitboot.errors import BmcBusy, BmcChanged, BmcRejected, BmcUnreachable
from gitboot.http_client import RequestLimits
from gitboot.model.scalars import SystemUuid, is_placeholder_uuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

# the requests Set and Get System Boot Options with parameters 3 and 5 (IPMI 2.0, 28.12 and 28.13)
_GET_FLAGS: Final = (0x00, 0x09, 0x05, 0x00, 0x00)
_SET_OPTIONS: Final = (0x00, 0x08)
# the BMC keeps the flags for any kind of next boot, and for longer than a minute
_KEEP_VALID: Final = (*_SET_OPTIONS, 0x03, 0x1F)
_VALID, _PERSISTENT, _EFI = 0x80, 0x40, 0x20
_DEVICES: Final = {OverrideTarget.NONE: 0, OverrideTarget.PXE: 1, OverrideTarget.HDD: 2, OverrideTarget.CD: 5}
_TARGETS: Final = {number: target for target, number in _DEVICES.items()}
_GET_STATUS: Final = (0x00, 0x01)
_GET_GUID: Final = (0x06, 0x37)
# the request Chassis Control (IPMI 2.0, 28.3). Its value 5, a graceful shutdown, sends the system an ACPI event
_CHASSIS_CONTROL: Final = (0x00, 0x02)
_CONTROLS: Final = {
    ResetType.FORCE_OFF: 0,
    ResetType.ON: 1,
    ResetType.POWER_CYCLE: 2,
    ResetType.FORCE_RESTART: 3,
    ResetType.GRACEFUL_SHUTDOWN: 5,
}

# completion codes of a BMC that is busy or cannot carry out a request now (IPMI 2.0, 5.2)
_BUSY_CODES: Final = frozenset({0xC0, 0xC3, 0xCE, 0xD0, 0xD2, 0xD5})
# Patterns for the output of ipmitool -v. It prints "is not what we requested" if the BMC chose another algorithm.
_SUITE_REFUSED: Final = re.compile(r"invalid \w+ algorithm|algorithm \S+ is not what we requested|cipher suite", re.I)
_LOGIN_REFUSED: Final = re.compile(
    r"HMAC is invalid|unauthorized name|password is longer|Set Session Privilege Level", re.I
)
_RESULT_LINE: Final = re.compile(r"^RAW RSP \((\d+) bytes\)|rsp=0x([0-9a-f]{2})\):? *(.*)$", re.I | re.M)
_BYTES_PER_LINE: Final = 16
# IPMI 2.0, 22.15.2: suite 17 is HMAC-SHA256 and AES, and suite 3 is HMAC-SHA1 and AES. Both encrypt. Older BMCs have
# only suite 3.
_CIPHER_SUITES: Final = (17, 3)
_PORT: Final = 623

_Answer: TypeAlias = bytes | BmcBusy | BmcRejected  # a response, or the reason why there is no response


class IpmiConnection:
    """A connection to one BMC that starts an ipmitool process for each call. Use it from one thread at a time.

    Every method may raise `BmcUnreachable`, `BmcBusy` or `BmcRejected`. The messages of these errors name the request
    and the BMC.
    """

    def __init__(
        self, address: str, credentials: Credentials, *, policy: ConnectionPolicy | None = None, timeout_s: float = 15
    ) -> None:
        self._address = address.rstrip("/")
        self._credentials = credentials
        self.policy = policy or ConnectionPolicy()
        self.login = self.media = self.firmware = None  # IPMI has no equivalent
        self._timeout_s = timeout_s
        self._suite: int | None = None  # the cipher suite that the BMC accepted last

    def close(self, *, log_out: bool = True) -> None:
        pass  # nothing to close, because each call starts its own ipmitool process

    def observe(self) -> BmcObservation:
        """Read the boot flags, the power state and the identity of the system in one IPMI session."""
        answers = self._send_requests(_GET_FLAGS, _GET_STATUS, _GET_GUID)
        flags, status = (_get_answer_bytes(answer) for answer in answers[:2])
        if len(flags) < 4 or not status:
            raise BmcUnreachable(f"{self._address}: the response is too short: {flags.hex(' ')}")
        return BmcObservation(
            system="",
            override=_parse_override(flags[2], flags[3]),
            identity=self._read_identity(answers[2]),
            power="On" if status[0] & 1 else "Off",
            allowable_targets=frozenset(_DEVICES),
            reset_types=frozenset(_CONTROLS),
            quirks_name=IPMI,
        )

    def read_clock(self, observed: BmcObservation, clock: Callable[[], datetime]) -> BmcObservation:
        """Return ``observed`` unchanged, because IPMI does not report the BMC's clock."""
        return observed

    def set_override(self, override: Override, observed: BmcObservation) -> None:
        """Write the boot flags if they differ from ``override``. Some BMCs accept the flags but do not store them.

        Raises `BmcChanged` if the BMC has changed since ``observed`` was read.
        """
        if is_override_shown(override, observed):
            return
        if has_observation_changed(observed, self.observe()):
            raise BmcChanged(f"{self._address}: the BMC's state has changed since gitboot read it")
        self.policy.check_fence()
        # gitboot ignores the result of the first request, which some BMCs do not support
        _, answer = self._send_requests(_KEEP_VALID, (*_SET_OPTIONS, 0x05, *_encode_flags(override)))
        _get_answer_bytes(answer)

    def read_reset_types(self, observed: BmcObservation) -> BmcObservation:
        """Return ``observed`` unchanged.

        ``observed`` already contains the reset types, because all BMCs with IPMI support the same types.
        """
        return observed

    def reset(self, reset_type: ResetType, observed: BmcObservation) -> None:
        self.policy.check_fence()
        (answer,) = self._send_requests((*_CHASSIS_CONTROL, _CONTROLS[reset_type]))
        _get_answer_bytes(answer)

    def _read_identity(self, guid: _Answer) -> ReportedIdentity:
        """Return the UUID of the system, or its serial number if the GUID is missing or ambiguous."""
        if isinstance(guid, BmcBusy):
            raise guid  # a serial number would look like another machine
        if isinstance(guid, bytes) and (uuid := parse_system_guid(guid)) is not None:
            return ReportedIdentity(uuid=uuid)
        output = self._run_ipmitool(("fru", "print", "0")).stdout
        found = re.search(rb"^ *(?:Product|Chassis) Serial +: *(\S.*?) *$", output, re.M)
        return ReportedIdentity(serial=found[1].decode("ascii", "replace")) if found else ReportedIdentity()

    def _send_requests(self, *requests: tuple[int, ...]) -> list[_Answer]:
        """Send raw requests in one IPMI session, and return one answer for each request."""
        commands = [" ".join(("raw", *(f"0x{octet:02x}" for octet in octets))) for octets in requests]
        script = "".join(f"{command}\n" for command in commands)
        process = self._run_ipmitool(("exec", "/dev/stdin"), script)
        lines = iter(process.stdout.splitlines())
        answers: list[_Answer] = []
        for size, code, reason in _RESULT_LINE.findall(process.stderr.decode("utf-8", "replace")):
            if code:
                request = commands[min(len(answers), len(commands) - 1)]
                error_type = BmcBusy if int(code, 16) in _BUSY_CODES else BmcRejected
                answers.append(error_type(f"{self._address}: {request}: 0x{code} {reason.strip()}"))
            else:
                line_count = max(1, -(-int(size) // _BYTES_PER_LINE))
                try:
                    answers.append(bytes.fromhex(b"".join(islice(lines, line_count)).decode("ascii")))
                except ValueError:  # the output of ipmitool does not contain a response
                    answers.append(b"")
        if len(answers) != len(requests):  # ipmitool does not show which request failed
            raise BmcUnreachable(
                f"{self._address}: ipmitool printed {len(answers)} responses to {len(requests)} requests"
            )
        return answers

    def _run_ipmitool(self, command: tuple[str, ...], script: str = "") -> subprocess.CompletedProcess[bytes]:
        """Run ipmitool with the cipher suite that the BMC accepts.

        Raises `BmcRejected` if the BMC rejects the login, and `BmcUnreachable` if no suite leads to a session.
        """
        stderr = ""
        suites = (self._suite,) if self._suite is not None else _CIPHER_SUITES
        for suite in suites:
            process = self._run_with_suite(command, script, suite)
            stderr = process.stderr.decode("utf-8", "replace")
            if "Unable to establish" not in stderr and not _LOGIN_REFUSED.search(stderr):
                self._suite = suite
                return process
            if not _SUITE_REFUSED.search(stderr):
                break
        if _LOGIN_REFUSED.search(stderr):
            name = f' "{self._credentials.name}"' if self._credentials.name else ""
            raise BmcRejected(f"{self._address}: the BMC rejects the user name or password in the credentials{name}")
        lines = [line.strip("> ") for line in stderr.splitlines() if line.strip() and "IANA PEN" not in line]
        raise BmcUnreachable(f"{self._address}: no IPMI session: {lines[0][:200] if lines else 'no answer'}")

    def _run_with_suite(self, command: tuple[str, ...], script: str, suite: int) -> subprocess.CompletedProcess[bytes]:
        parts = urlsplit(self._address)
        host, port = parts.hostname or "", parts.port or _PORT
        address = self._resolve_host(host, port)
        options = (
            *("-I", "lanplus", "-H", address, "-p", str(port), "-L", "OPERATOR", "-C", str(suite)),
            *("-U", self._credentials.username, "-E", "-v", "-N", "1", "-R", "2"),
        )
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LC_ALL": "C",
            "IPMI_PASSWORD": self._credentials.password,  # other users of this host could read a command-line argument
        }
        began_s = time.monotonic()
        try:
            process = subprocess.run(
                ("ipmitool", *options, *command),
                env=environment,
                input=script.encode(),
                capture_output=True,
                timeout=self._timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BmcUnreachable(f"{self._address}: no answer within {self._timeout_s:g} s") from None
        except OSError as error:
            raise BmcRejected(
                f"{self._address}: cannot start ipmitool: {error.strerror}; install ipmitool on this machine"
            ) from None
        self.policy.latency_s = time.monotonic() - began_s
        return process

    def _resolve_host(self, host: str, port: int) -> str:
        """Resolve the BMC's host name to an allowed IP address, so that ipmitool does not resolve the name again."""
        try:
            return self.policy.resolve_allowed_addresses(host, port, RequestLimits(deadline_s=self._timeout_s))[0]
        except RequestAborted as error:
            raise error.error_type(f"{self._address}: {error}") from None
        except OSError as error:
            raise BmcUnreachable(f"{self._address}: {error.strerror or error}") from None


def _get_answer_bytes(answer: _Answer) -> bytes:
    if isinstance(answer, bytes):
        return answer
    raise answer


def _parse_override(flags: int, device: int) -> Override:
    mode = "UEFI" if flags & _EFI else "Legacy"
    if not flags & _VALID:
        return Override(enabled=OverrideEnabled.DISABLED, target=OverrideTarget.NONE, mode=mode)
    number = device >> 2 & 0b1111
    return Override(
        enabled=OverrideEnabled.CONTINUOUS if flags & _PERSISTENT else OverrideEnabled.ONCE,
        target=_TARGETS.get(number, f"device {number}"),
        mode=mode,
    )


def _encode_flags(override: Override) -> tuple[int, ...]:
    """Return the five bytes of boot option parameter 5: the flags, the device, and three zeros."""
    if override.enabled is OverrideEnabled.DISABLED:
        return (0, 0, 0, 0, 0)
    persistent = _PERSISTENT if override.enabled is OverrideEnabled.CONTINUOUS else 0
    flags = _VALID | persistent | (_EFI if override.mode == "UEFI" else 0)
    return (flags, _DEVICES[OverrideTarget(override.target)] << 2, 0, 0, 0)


def parse_system_guid(guid: bytes) -> SystemUuid | None:
    """Convert an IPMI system GUID to a UUID. Return None if the byte order of the GUID is ambiguous or invalid.

    According to IPMI 2.0, 20.8, the last byte comes first. Many BMCs send the bytes in the SMBIOS order instead, which
    is one of the orders that `byte_orders` returns. The version and variant bits of RFC 9562 determine the byte order.
    """
    if len(guid) != 16:
        return None
    is_smbios_order = guid[8] >> 6 == 0b10 and (1 <= guid[6] >> 4 <= 8 or 1 <= guid[7] >> 4 <= 8)
    is_ipmi_order = guid[7] >> 6 == 0b10 and 1 <= guid[9] >> 4 <= 8
    if is_smbios_order is is_ipmi_order:
        return None
    uuid = SystemUuid(str(UUID(bytes=guid if is_smbios_order else guid[::-1])))
    return None if is_placeholder_uuid(uuid) else uuid
