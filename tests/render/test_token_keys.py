"""Published tokens: a client that knows Git cannot derive a path of reports or secrets."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from datetime import timedelta
from hashlib import sha256
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.jsonio import Digest
from gitboot.render.paths import DATA, FAILED, IGNITION, PROVISIONED, File, Role, find_path_kind, find_token
from gitboot.render.server_files import RenderedState
from gitboot.render.token_keys import EarlierKey, TokenKeys
from gitboot.resolve.provisioning_record import InstallAttempt, Record, StepEvidence
from gitboot.resolve.server_decision import replace_token
from tests.helpers.cases import for_each
from tests.helpers.endpoints import AFTER, BEFORE, ENTRY, MAC, START, Fleet, get, plan_fleet, site
from tests.helpers.fleets import fleet, image, maintenance, make_uuid, policy, profile, server

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
KEYS: Final = TokenKeys(KEY)
REPORTED: Final = "baseURL: 'http://boot.test', provisioning: {evidence: Reported, attempts: 2}"
IGNITION_DATA: Final = '{"ignition": {"version": "3.4.0"}, "x": "{{ urls.provisioned }}"}'


def documents(format: str = "CloudInit", *more: str, of_image: str = "") -> tuple[str, ...]:
    return (
        fleet(REPORTED),
        server("web01", "role: web", "provision: 1"),
        image("flatcar-1", f"userData: {format}{of_image}", "kernel, initrd, uki"),
        image("memtest-7", "writesDisk: false"),
        profile("web", "flatcar-1", f"userData: {{format: {format}, template: t}}"),
        profile("repair", "memtest-7"),
        policy("web", "{matchLabels: {role: web}}", often="Once"),
        *more,
    )


def plan_with_template(text: str, *given: str, keys: TokenKeys = KEYS, record: Record | None = None) -> Fleet:
    return plan_fleet(*given or documents(), templates={"t": text}, keys=keys, records={"web01": record or Record()})


def render_user_data(text: str, keys: TokenKeys = KEYS) -> str:
    found = plan_with_template(text, keys=keys)
    (path,) = [path for path in found.boot_files if "/data/" in path and path.endswith("user-data")]
    return found.boot_files[path].content.decode()


def find_tokens(paths: Iterable[str]) -> set[str]:
    return {token for path in paths if (token := find_token(path)) is not None}


PUBLIC: Final = plan_fleet(*documents(), templates={"t": "#cloud-config\n"}).servers["web01"].decision.token or Digest(
    ""
)
(NAME,) = find_tokens(plan_with_template("#cloud-config\n").files)
TEMPLATE: Final = "#cloud-config\nurl: {{ urls.provisioned }}\n"


def test_t6_no_path_and_no_boot_file_has_a_token_that_can_be_derived_from_git() -> None:
    found = plan_with_template("#cloud-config\nurls: [{{ urls.provisioned }}, {{ urls.failed }}]\n").servers["web01"]
    lying = [file.content.decode() for path, file in found.files.items() if path.startswith("boot/v1/")]
    assert PUBLIC != NAME and len(lying) > 4
    assert not [text for text in (*lying, *found.published.contents.values()) if PUBLIC in text]
    assert not [path for path in (*found.files, *found.published.paths) if PUBLIC in path]
    assert find_tokens(found.published.paths) == {NAME}


def test_t6_plans_and_decisions_are_the_same_with_and_without_a_key() -> None:
    keyed, open_to_all = (
        plan_with_template(TEMPLATE).servers["web01"],
        plan_with_template(TEMPLATE, keys=TokenKeys()).servers["web01"],
    )
    assert keyed.plan == open_to_all.plan and keyed.decision == open_to_all.decision
    assert (keyed.published.plan, keyed.published.summary) == (
        open_to_all.published.plan,
        open_to_all.published.summary,
    )
    assert keyed.files.keys() != open_to_all.files.keys()


def test_t6_the_same_key_gives_the_same_bytes_and_another_key_gives_others() -> None:
    first, again, other = (plan_with_template(TEMPLATE, keys=TokenKeys(key)) for key in (KEY, KEY, OTHER))
    assert first.files == again.files
    assert not find_tokens(first.files) & find_tokens(other.files)


def test_t6_no_part_of_a_key_is_published_or_shown() -> None:
    keys = TokenKeys(KEY, (EarlierKey(OTHER, BEFORE, AFTER),))
    found = plan_with_template(TEMPLATE, keys=keys)
    for key in (KEY, OTHER):
        shown = (key, key.hex().encode(), b64encode(key)[:40])
        assert not [path for path, file in found.files.items() if any(each in file.content for each in shown)]
        assert not any(each.decode("latin-1") in f"{keys!r}{found.servers!r}" for each in shown)


# However a template has written it

ENCODINGS: Final = {
    "as it is": "{{ urls.provisioned }}",
    "in base64": "{{ urls.provisioned | b64encode }}",
    "in base64, one byte on": "{{ ('x' ~ urls.provisioned) | b64encode }}",
    "in base64, two bytes on": "{{ ('xy' ~ urls.provisioned ~ 'z') | b64encode }}",
    "in base64 in base64": "{{ ('x' ~ (('yz' ~ urls.provisioned) | b64encode) ~ 'u') | b64encode }}",
    "as a data URL": "{{ ('#!/bin/sh\\ncurl ' ~ urls.provisioned) | data_url }}",
    "in capitals of another word": "{{ ('CURL ' ~ urls.provisioned) | b64encode }}",
}


@pytest.mark.parametrize("written", ENCODINGS.values(), ids=ENCODINGS)
def test_t6_a_template_may_encode_a_token_in_base64(written: str) -> None:
    # The file is what the template would have made of the published path itself.
    text = f"#cloud-config\nurls: {written} and {written}\n"
    path = f"http://boot.test/v1/boot/{MAC}/provisioned/"
    assert render_user_data(text) == render_user_data(text.replace("urls.provisioned", f"'{path}{NAME}'"))
    assert render_user_data(text) != render_user_data(text, keys=TokenKeys())


@given(
    st.binary(max_size=7), st.binary(max_size=7), st.binary(max_size=7), st.binary(max_size=7), st.sampled_from("abc")
)
def test_t6_a_token_in_base64_is_replaced_at_any_offset(
    before: bytes, after: bytes, around: bytes, beyond: bytes, what: str
) -> None:
    token = Digest(sha256(what.encode()).hexdigest())
    names = KEYS.build_names([token], BEFORE)
    ((path, _),) = names.rename_files({PROVISIONED.build_path(MAC, token): File(b"")}).items()

    def written(name: str) -> bytes:
        inner = b64encode(before + name.encode() + after)
        return name.encode() + inner + b64encode(around + inner + beyond)

    assert names.rename_files({"boot/x": File(written(token))})["boot/x"].content == written(find_token(path) or "")


@given(
    st.binary(max_size=7),
    st.binary(max_size=7),
    st.binary(max_size=7),
    st.binary(max_size=7),
    st.text("a/:=", max_size=5),
)
def test_a_token_in_base64_becomes_the_token_of_another_attempt_at_any_offset(
    before: bytes, after: bytes, around: bytes, beyond: bytes, prefix: str
) -> None:
    old, new = (sha256(each.encode()).hexdigest() for each in "ab")

    def written(token: str) -> str:
        inner = b64encode(before + token.encode() + after)
        return f"{token} {prefix}{inner.decode()} {prefix}{b64encode(around + inner + beyond).decode()}"

    assert replace_token(written(old), old, new) == written(new)


# Owners


def test_t6_an_endpoint_maps_the_published_token_to_the_internal_one() -> None:
    # A client that computes it from Git gets the 404 of a missing path.
    with site(plan_with_template(TEMPLATE)) as there, there.serve() as url:
        script = get(url + ENTRY).text
        (data,) = set(re.findall(r"http://boot\.test(/v1/boot/\S+/data/\S+/)", script))
        assert PUBLIC not in script and data == f"/v1/boot/{MAC}/data/{NAME}/"
        (report,) = re.findall(r"http://boot\.test(\S+)", get(f"{url}{data}user-data").text)
        for kind in (PROVISIONED, FAILED):
            assert get(f"{url}/{kind.build_path(MAC, PUBLIC).removeprefix('boot/')}").status_code == 404
        assert get(url + data.replace(NAME, PUBLIC) + "user-data").status_code == 404
        assert get(url + report).status_code == 204
        seen = there.observed()
    kinds = [find_path_kind(each.path) for each in seen]
    assert [each.role for each in kinds if each is not None] == [Role.BOOT_SCRIPT, Role.DATA, Role.REPORT]
    assert [each.digest for each in seen][1:] == [PUBLIC, PUBLIC]


def test_t6_each_attempt_has_its_own_token() -> None:
    attempt = InstallAttempt(key="provision/1", boots=(StepEvidence(BEFORE, "boot/x", "10.0.0.1"),))
    found = plan_with_template(TEMPLATE, record=Record(attempts=(attempt,), offered=3)).servers["web01"]
    assert found.plan is not None and found.plan.token is not None
    (own,) = find_tokens(
        KEYS.build_names([found.plan.token], BEFORE).rename_files({FAILED.build_path(MAC, found.plan.token): File(b"")})
    )
    assert {FAILED.build_path(MAC, own), FAILED.build_path(MAC, NAME)} <= found.files.keys() and own != NAME
    assert f"/provisioned/{own}\n" in found.files[DATA.build_path(MAC, own, "user-data")].content.decode()


def test_t6_a_maintenance_has_a_token_too() -> None:
    repair = maintenance("repair", "20T20:00 21T04:00", "networkBoot: Once", boots="web")
    found = plan_with_template(TEMPLATE, *documents("CloudInit", repair)).servers["web01"]
    assert found.plan is not None and found.plan.data is not None
    assert found.plan.data not in "".join((*found.files, *found.published.contents.values()))
    data = [turns[0] for path, turns in found.published.paths.items() if path.endswith("/user-data")]
    assert [turn.digest for turn in data if turn.content and turn.since is None] == [found.plan.data]


# An earlier key


def read_contents(state: RenderedState, path: str) -> str:
    contents: dict[str | None, str] = {file.sha256: file.content.decode() for file in state.files.values()}
    return contents[state.published.paths[path][0].content] if path in state.published.paths else ""


EARLIER_KEY: Final = EarlierKey(OTHER, BEFORE, START)
INSTALLING: Final = Record(
    attempts=(InstallAttempt(key="provision/1", boots=(StepEvidence(BEFORE, "boot/x", "10.0.0.1"),)),)
)


@for_each("key", [OTHER, None], ids=["another key", "none yet"])
@for_each(("minutes", "is_heard"), [(-1, False), (0, True), (59, True), (60, False)])
def test_t6_reports_with_a_token_of_an_earlier_key_count_while_that_key_is_valid(
    key: bytes | None, minutes: int, is_heard: bool
) -> None:
    (before,) = find_tokens(plan_with_template(TEMPLATE, keys=TokenKeys(key)).files)
    keys, at = TokenKeys(KEY, (EarlierKey(key, BEFORE, START),)), BEFORE + timedelta(minutes=minutes)
    found = plan_fleet(*documents(), templates={"t": TEMPLATE}, keys=keys, now=at).servers["web01"]
    paths = {
        PROVISIONED.build_path(MAC, before),
        FAILED.build_path(MAC, before),
        DATA.build_path(MAC, before, "user-data"),
    }
    assert len(paths & found.published.paths.keys()) == (3 if is_heard else 0)
    assert {found.published.paths[path][0].digest for path in paths if is_heard} <= {PUBLIC}
    told = {name: read_contents(found, DATA.build_path(MAC, name, "user-data")) for name in (before, NAME)}
    assert (before in told[before], NAME in told[before]) == (is_heard, False), "who knows the one learns no other"
    assert (before in told[NAME], NAME in told[NAME]) == (False, True)


def test_t6_a_server_is_rendered_again_when_an_earlier_key_ends() -> None:
    keys = TokenKeys(KEY, (EARLIER_KEY,))
    turns = [
        plan_fleet(*documents(), templates={"t": TEMPLATE}, keys=keys, now=now, records={"web01": INSTALLING}).servers[
            "web01"
        ]
        for now in (BEFORE - timedelta(minutes=1), BEFORE, START)
    ]
    # The served boot is served again for a minute, and its data for two hours.
    assert [each.refresh_at for each in turns] == [BEFORE, START, None]
    assert all(each.transition is not None and each.transition <= (each.refresh_at or AFTER) for each in turns[:2])
    resting = plan_fleet(*documents(), templates={"t": TEMPLATE}, keys=keys, now=BEFORE, records={"web01": Record()})
    assert resting.servers["web01"].transition == START


# Found by public identities of a machine


BY_UUID: Final = {
    "it is told where": (IGNITION_DATA, "", False),
    "its image asks by UUID": (IGNITION_DATA, ", configFrom: SystemUUID", True),
    "it is told to": (
        IGNITION_DATA.replace('"x":', '"y": "{{ urls.base }}/ignition/{{ server.uuid }}", "x":'),
        "",
        True,
    ),
}


@pytest.mark.parametrize(("text", "of_image", "is_told"), BY_UUID.values(), ids=BY_UUID)
def test_t6_a_client_that_asks_by_uuid_gets_a_token_only_if_the_machine_may_ask_by_uuid(
    text: str, of_image: str, is_told: bool
) -> None:
    found = plan_with_template(text, *documents("Ignition/3.4", of_image=of_image)).servers["web01"]
    said = read_contents(found, IGNITION.build_path(make_uuid("web01")))
    (data,) = [path for path in found.published.paths if path.endswith("/config.ign")]
    assert (NAME in said, PUBLIC in said) == (is_told, not is_told)
    assert NAME in read_contents(found, data)
