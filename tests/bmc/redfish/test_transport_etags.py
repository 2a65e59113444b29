"""ETags: each form that BMCs send and accept, over HTTP; a change by somebody else is never written over."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gitboot.bmc.override_session import Outcome
from gitboot.bmc.override_state import Override, State, Wanted
from gitboot.bmc.power_steps import Manner, Switching
from gitboot.bmc.redfish.transport import if_match_values, read_etags
from gitboot.errors import BmcChanged
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget
from tests.helpers.bmcs import ONCE, SET_AT_BMC, MakeRack, Rack
from tests.helpers.cases import for_each
from tests.helpers.redfish_double.profiles import GENERIC, IDRAC9, XCC, Profile
from tests.helpers.redfish_double.server import Body, Status

# Name; the header ETag; @odata.etag; the If-Match that the BMC accepts, {} for the opaque value.
FORMS = [
    ("quotes twice in the header", '""{}""', '"{}"', '"{}"'),
    ("quotes twice, and accepted without any", '""{}""', '"{}"', "{}"),
    ("quotes twice, and no @odata.etag", '""{}""', "", '"{}"'),
    ("quotes twice, as they were sent", '""{}""', '"{}"', '""{}""'),
    ("weak, as it was sent", 'W/"{}"', 'W/"{}"', 'W/"{}"'),
    ("weak, and accepted as strong", 'W/"{}"', 'W/"{}"', '"{}"'),
    ("weak, and accepted without quotes", 'W/"{}"', 'W/"{}"', "{}"),
    ("weak without quotes", "W/{}", "W/{}", '"{}"'),
    ("quotes, and accepted without", '"{}"', '"{}"', "{}"),
    ("without quotes, as it was sent", "{}", "{}", "{}"),
    ("without quotes, and accepted with", "{}", "{}", '"{}"'),
    ("without quotes in the body alone", '"{}"', "{}", "{}"),
    ("another one in the body", '"h{}"', '"b{}"', '"b{}"'),
    ("another one in the body, weak", '"h{}"', 'W/"b{}"', '"b{}"'),
    ("in the body alone", "", 'W/"{}"', 'W/"{}"'),
    ("with backslashes in the body", "", '\\"{}\\"', '"{}"'),
    ("accepted as * alone", '"{}"', '"{}"', "*"),
    ("never accepted", '"{}"', '"{}"', ""),
]
FORM_IDS = [name for name, *_ in FORMS]
LOADER = "http://boot.test/assets/web/loader"


def with_form(profile: Profile, header: str, body: str, if_match: str) -> Profile:
    return replace(
        profile, etag_header=header, etag_body=body, if_match=if_match, if_match_required=if_match not in ("", "*")
    )


def if_matches(rack: Rack) -> list[str | None]:
    return [each.headers.get("If-Match") for each in rack.server.service.requests if each.method == "PATCH"]


@pytest.mark.parametrize(("header", "body", "if_match"), [form[1:] for form in FORMS], ids=FORM_IDS)
def test_finding_p6_an_override_is_set_whatever_form_of_etag_a_bmc_sends_and_accepts(
    make_rack: MakeRack, header: str, body: str, if_match: str
) -> None:
    rack = make_rack(profile=with_form(GENERIC, header, body, if_match))
    result = rack.bring_about()
    assert (result.outcome, rack.records["web01"][ONCE.reason].state) == (Outcome.APPLIED, State.CONFIRMED)
    assert rack.machine.override["BootSourceOverrideEnabled"] == "Once"
    assert rack.bring_about(None).outcome is Outcome.APPLIED
    assert rack.machine.override["BootSourceOverrideEnabled"] == "Disabled"


@pytest.mark.parametrize(("header", "body", "if_match"), [form[1:] for form in FORMS], ids=FORM_IDS)
def test_no_form_of_etag_writes_over_a_change_by_somebody_else(
    make_rack: MakeRack, header: str, body: str, if_match: str
) -> None:
    rack = make_rack(profile=with_form(GENERIC, header, body, if_match))
    bmc = rack.connect()
    seen = bmc.observe()
    rack.machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="BiosSetup")
    with pytest.raises(BmcChanged, match="the BMC has changed since it was read"):
        bmc.set_override(ONCE.override, seen)
    assert rack.machine.override["BootSourceOverrideTarget"] == "BiosSetup"


def test_finding_p6_the_message_lists_what_a_bmc_refused(make_rack: MakeRack) -> None:
    rack = make_rack(profile=replace(GENERIC, etag_header='""{}""', if_match="", if_match_required=True))
    result = rack.bring_about()
    etag = json.loads(json.dumps(rack.machine.system()))["@odata.etag"]
    assert result.outcome is Outcome.WAITING
    assert result.message == (
        f"PATCH {rack.server.url}{rack.machine.path}: 428 the request needs If-Match; the BMC has not changed, and "
        f'refuses each form of its ETag (refused: If-Match "{etag}", If-Match {etag}, If-Match {etag.strip(chr(34))}, '
        "If-Match *, no If-Match)"
    )
    assert if_matches(rack) == [f'"{etag}"', etag, etag.strip('"'), "*", None]
    assert rack.records["web01"][ONCE.reason].state is State.UNSENT


def test_a_change_that_comes_after_the_refusals_is_not_written_over(make_rack: MakeRack) -> None:
    """The BMC is read again right before a request that it would accept after any change."""
    rack = make_rack(profile=with_form(GENERIC, '"{}"', '"{}"', "*"))
    precondition = rack.machine.precondition

    def changed_by_another(body: dict[str, object], if_match: str | None) -> object:
        refused = precondition(body, if_match)
        if if_match is not None and not if_match.startswith('"'):  # the last one that has a precondition
            rack.machine.write(BootSourceOverrideEnabled="Once", BootSourceOverrideTarget="BiosSetup")
        return refused

    rack.machine.precondition = changed_by_another  # type: ignore[assignment,method-assign]
    rack.bring_about()
    assert (rack.machine.override["BootSourceOverrideTarget"], len(if_matches(rack))) == ("BiosSetup", 2)


def test_an_etag_that_is_accepted_costs_one_request_and_one_that_is_misread_one_reading(make_rack: MakeRack) -> None:
    for if_match, expected in (('"{}"', ["GET", "PATCH", "GET"]), ("{}", ["GET", "PATCH", "GET", "PATCH", "GET"])):
        rack = make_rack(profile=with_form(GENERIC, '"{}"', '"{}"', if_match))
        rack.bring_about()
        assert [each.method for each in rack.machine.requests if "Managers" not in each.path] == expected


@pytest.mark.parametrize("status", [412, 428])
@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b'"no"', b"[]", b'{"error": "no"}'])
def test_a_refused_etag_is_known_by_its_status(make_rack: MakeRack, status: int, body: bytes) -> None:
    rack = make_rack(profile=GENERIC)
    rack.server.fault(Status(status=status, body=body), on="PATCH")
    assert rack.bring_about().outcome is Outcome.APPLIED
    assert rack.machine.override["BootSourceOverrideEnabled"] == "Once"


def test_a_bmc_without_etags_that_demands_if_match_gets_an_asterisk(make_rack: MakeRack) -> None:
    rack = make_rack(profile=with_form(GENERIC, "", "", '"{}"'))
    assert rack.bring_about().outcome is Outcome.APPLIED
    assert if_matches(rack) == [None, "*"]


@pytest.mark.parametrize(("header", "body", "if_match"), [form[1:] for form in FORMS], ids=FORM_IDS)
def test_a_medium_is_inserted_and_ejected_whatever_form_of_etag_a_drive_has(
    make_rack: MakeRack, header: str, body: str, if_match: str
) -> None:
    rack = make_rack(profile=with_form(XCC, header, body, if_match))
    iso = "http://boot.test/assets/node/1.iso"
    disc = Wanted(
        reason="provision/1",
        plan_digest="d" * 64,
        override=Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.CD, mode="UEFI", medium=iso),
    )
    assert rack.bring_about(disc).outcome is Outcome.APPLIED
    assert rack.machine.drives[1].image == iso
    rack.bring_about(None)
    assert rack.machine.drives[1].ejected == [iso]


@pytest.mark.parametrize(("header", "body", "if_match"), [form[1:] for form in FORMS], ids=FORM_IDS)
def test_a_uri_is_written_to_firmware_whatever_form_of_etag_its_settings_have(
    make_rack: MakeRack, header: str, body: str, if_match: str
) -> None:
    rack = make_rack(profile=with_form(IDRAC9, header, body, if_match))
    http = Override(enabled=OverrideEnabled.ONCE, target=OverrideTarget.UEFI_HTTP, mode="UEFI", http_boot_uri=LOADER)
    wanted = Wanted(reason="provision/1", plan_digest="d" * 64, override=http, own_loaders="http://boot.test/")
    restart = Switching(reason="power/check/1", manner=Manner.RESTART, override="provision/1", now=True)
    rack.bring_about(wanted, switching=restart)
    assert rack.machine.bios.pending[rack.machine.profile.bios_uri] == LOADER


@for_each(
    ("header", "body", "expected"),
    [
        ('"a"', '"a"', ('"a"',)),
        ('"a"', 'W/"a"', ('"a"', 'W/"a"')),
        (None, '"a"', ('"a"',)),
        (' "a" ', None, ('"a"',)),
        (None, 1682532272, ("1682532272",)),
        (None, None, ()),
        (None, True, ()),
        (None, ["a"], ()),
        ("", "", ()),
        ('""', 'W/""', ()),  # no value to compare
        ('"a\nb"', '"ä"', ()),  # no header can have them
    ],
)
def test_etags_are_read_as_far_as_a_header_can_have_them(
    header: object, body: object, expected: tuple[str, ...]
) -> None:
    assert read_etags(header, body) == expected


def test_the_order_of_forms_goes_from_what_was_sent_to_no_precondition() -> None:
    assert list(if_match_values(('""a""', 'W/"b"'))) == ['""a""', 'W/"b"', '"a"', '"b"', "a", "b", "*", None]
    assert list(if_match_values(())) == [None, "*"]


@pytest.mark.parametrize("etag", ['"ä"', '"a\\nb"', "7", "null"])
def test_an_etag_that_no_header_can_have_is_no_fault(make_rack: MakeRack, etag: str) -> None:
    rack = make_rack(profile=replace(GENERIC, etag_header="", etag_body=""))
    shown = json.dumps(rack.machine.system() | {"@odata.etag": "X"}).replace('"X"', json.dumps(etag))
    rack.server.fault(Body(body=shown.encode()))
    assert rack.bring_about().outcome is Outcome.APPLIED
    assert set(SET_AT_BMC.items()) <= set(rack.machine.override.items())
