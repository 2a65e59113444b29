"""Entries of fetch logs: what the lines of one intent mean together, and reports of other versions."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from pathlib import Path

import pytest

from gitboot.fetchlog.log_entries import (
    Denial,
    DenialReason,
    EndpointReport,
    Observation,
    Outcome,
    UntrustedProxy,
    drop_concluded_intents,
    parse_log_instant,
    read_reports,
    select_consuming_fetches,
    write_report,
)
from gitboot.fetchlog.one_time_boots import ServedBoots, find_served_boot
from gitboot.fetchlog.spool import SpoolFile, encode_line, parse_line
from gitboot.jsonio import Digest
from gitboot.resolve.provisioning_record import FETCH_GRACE
from gitboot.system_clock import Uptime
from tests.helpers.cases import for_each

AT = datetime(2026, 11, 20, 22, tzinfo=UTC)
OFFER = Digest("b" * 64)
NO_CLOCK = Uptime("", 0)
INTENT = Observation(
    server="web01",
    path="boot/v1/boot/52-54-00-00-00-01/boot.ipxe",
    digest=Digest("a" * 64),
    offer=OFFER,
    client="10.12.0.13",
    at=AT,
    intent="one",
)
SERVED, WITHHELD = (replace(INTENT, outcome=each) for each in Outcome)
OTHER = replace(INTENT, intent="two", at=AT + timedelta(seconds=5))
PLAIN = replace(INTENT, intent=None)


@for_each(
    ("lines", "use_up"),
    [
        ([PLAIN], [PLAIN]),
        ([INTENT], [INTENT]),
        ([INTENT, SERVED], [SERVED]),
        ([SERVED], [SERVED]),
        ([INTENT, WITHHELD], []),
        ([WITHHELD], []),
        ([INTENT, SERVED, WITHHELD], [SERVED]),
        ([INTENT, WITHHELD, OTHER], [OTHER]),
        ([PLAIN, WITHHELD], [PLAIN]),
    ],
)
def test_the_order_of_lines_does_not_change_what_uses_up_a_boot(
    lines: Sequence[Observation], use_up: Sequence[Observation]
) -> None:
    assert [select_consuming_fetches(each) for each in permutations(lines)] == [list(use_up)] * len(
        list(permutations(lines))
    )


def test_a_withheld_intent_stays_withheld() -> None:
    assert drop_concluded_intents([INTENT, WITHHELD], lambda each: each) == [WITHHELD]


@pytest.mark.parametrize("line", [INTENT, SERVED, WITHHELD, PLAIN])
def test_a_line_is_decoded_as_it_was_encoded(line: Observation) -> None:
    assert parse_line(encode_line(line)) == line


def test_an_outcome_of_a_later_version_is_a_stray_line() -> None:
    assert parse_line(encode_line(SERVED).replace(b'"served"', b'"delayed"')) is None


def test_an_outcome_without_its_intent_is_invalid() -> None:
    assert parse_line(encode_line(SERVED).replace(b'"intent"', b'"other"')) is None


@pytest.mark.parametrize("line", [INTENT, SERVED], ids=["outcome unknown", "served"])
def test_a_boot_is_served_again_for_a_minute_after_its_first_intent(line: Observation) -> None:
    given = find_served_boot([line, OTHER], OFFER, None)
    assert given is not None
    assert given.may_serve_again(AT + FETCH_GRACE - timedelta(seconds=1), NO_CLOCK)
    assert not given.may_serve_again(AT + FETCH_GRACE, NO_CLOCK)


def test_an_endpoint_serves_a_withheld_boot_again_and_reports_an_unknown_one_as_perhaps_served(
    tmp_path: Path,
) -> None:
    boots, file = ServedBoots(tmp_path), SpoolFile(tmp_path)
    file.append(encode_line(INTENT))
    found = boots.find("web01", OFFER)
    assert found is not None and str(found) == "perhaps served at 2026-11-20T22:00:00Z to 10.12.0.13"
    file.append(encode_line(OTHER))
    file.append(encode_line(WITHHELD))
    found = boots.find("web01", OFFER)
    assert found is not None and found.first == OTHER, "only the intent that it names is withheld"
    file.append(encode_line(replace(OTHER, outcome=Outcome.WITHHELD)))
    assert boots.find("web01", OFFER) is None
    file.close()


@for_each(
    ("text", "fault"),
    [
        ("2026-11-20T22:00:00", "'2026-11-20T22:00:00' has no UTC offset"),
        ("1969-12-31T23:59:59Z", "'1969-12-31T23:59:59Z' is not in the years 1970 to 9998"),
        ("9999-01-01T00:00:00Z", "'9999-01-01T00:00:00Z' is not in the years 1970 to 9998"),
    ],
)
def test_the_error_of_a_time_names_the_time_and_its_fault(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(fault)}$"):
        parse_log_instant(text)


def test_a_report_is_read_back_and_has_the_keys_of_earlier_versions(tmp_path: Path) -> None:
    denial = Denial(
        reason=DenialReason.SECRET_NOT_DECRYPTED, server="web01", detail="no key", client="::1", at=AT, request_count=2
    )
    report = EndpointReport((denial,), (UntrustedProxy(address="10.0.0.1", at=AT),))
    write_report(tmp_path, "a", report)
    assert json.loads((tmp_path / "a.report").read_bytes()) == {
        "refused": [{**REPORTED, "reason": "SecretNotDecrypted", "words": "no key"}],
        "proxies": [{"address": "10.0.0.1", "at": "2026-11-20T22:00:00Z"}],
    }
    assert read_reports(tmp_path, AT) == report


REPORTED = {"server": "web01", "words": "", "client": "::1", "at": "2026-11-20T22:00:00Z", "times": 2}


@pytest.mark.parametrize(
    "changes", [{"reason": "Later"}, {"reason": []}, {"times": 1.5}, {"at": 7}, {"words": "\ud800"}]
)
def test_a_denial_of_another_version_does_not_hide_the_others(tmp_path: Path, changes: dict[str, object]) -> None:
    values = [{"reason": "ClockOff", **REPORTED, **changes}, 7, {"reason": "Stopped", **REPORTED}]
    (tmp_path / "a.report").write_text(json.dumps({"refused": values}))
    (denial,) = read_reports(tmp_path, AT).denials
    assert (denial.reason, denial.server, denial.request_count) == (DenialReason.STOPPED, "web01", 2)


def test_a_proxy_in_several_reports_has_its_latest_time(tmp_path: Path) -> None:
    for name, minute in (("a", 10), ("b", 30), ("c", 20)):
        proxies = [{"address": "10.0.0.1", "at": f"2026-11-20T22:{minute}:00Z"}]
        (tmp_path / f"{name}.report").write_text(json.dumps({"proxies": proxies}))
    (proxy,) = read_reports(tmp_path, AT).proxies
    assert proxy.at == AT + timedelta(minutes=30)
