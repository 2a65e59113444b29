"""Fetches of secrets: which paths have one, how an endpoint counts repeats, and what a ledger keeps of all that."""

from __future__ import annotations

import string
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gitboot.endpoint.recorder import RepeatedFetches
from gitboot.fetchlog.log_entries import Observation, get_client_network
from gitboot.fetchlog.one_time_boots import (
    MAX_ADDRESSES,
    MAX_FETCHES,
    InstallationFetches,
    SecretFetches,
    find_secret,
    has_report_since_boot,
)
from gitboot.fetchlog.spool import encode_line, parse_line
from gitboot.jsonio import Digest
from gitboot.ledger import server_tables
from gitboot.system_clock import Uptime

AT = datetime(2026, 11, 20, 22, tzinfo=UTC)
TOKEN = "ab" * 32
PATH = f"boot/s/{TOKEN}/52-54-00-12-34-56/join"


def fetch(client: str, path: str = PATH, server: str = "web01") -> Observation:
    return Observation(server=server, path=path, client=client, at=AT, digest=Digest(TOKEN))


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        (PATH, "secrets/join"),
        (f"boot/v1/boot/52-54-00-12-34-56/data/{TOKEN}/user-data", "user-data/user-data"),
        ("boot/ignition/4c4c4544-0042-4410-8056-b4c04f4a3132", "user-data/config.ign"),
        ("boot/nocloud/4c4c4544-0042-4410-8056-b4c04f4a3132/user-data", "user-data/user-data"),
        ("boot/v1/boot/52-54-00-12-34-56/boot.ipxe", None),
        (f"boot/v1/boot/52-54-00-12-34-56/provisioned/{TOKEN}", "reports/provisioned"),
        (f"boot/v1/boot/52-54-00-12-34-56/failed/{TOKEN}", "reports/failed"),
        ("boot/o/abc/user-data", None),
    ],
)
def test_the_path_of_user_data_or_of_a_secret_has_its_name(path: str, secret: str | None) -> None:
    assert find_secret(path) == secret


@pytest.mark.parametrize(
    ("client", "address"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::9", "2001:db8::/64"),
        ("2001:db8:0:1::9", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("unknown", "unknown"),
        (None, ""),
    ],
)
def test_addresses_of_one_ipv6_network_count_as_one(client: str | None, address: str) -> None:
    assert get_client_network(client) == address


BOOT = Uptime("this boot", 1000)


@pytest.mark.parametrize("clock", [timedelta(), timedelta(hours=-1), timedelta(hours=1)])
@pytest.mark.parametrize(
    ("up", "is_ended"),
    [
        (BOOT._replace(seconds=1900), True),
        (BOOT._replace(seconds=900), False),
        (Uptime("another boot", 10), None),
        (None, None),
    ],
)
def test_a_report_after_the_last_boot_ends_the_secrets_for_any_setting_of_the_clock(
    up: Uptime | None, is_ended: bool | None, clock: timedelta
) -> None:
    """If the two uptimes cannot be compared, the clocks decide."""
    folder = "boot/v1/boot/52-54-00-12-34-56"
    boot = replace(fetch("10.0.0.7", f"{folder}/boot.ipxe"), up=BOOT)
    earlier = replace(boot, up=BOOT._replace(seconds=10), at=AT + timedelta(hours=-2))
    report = replace(fetch("10.0.0.7", f"{folder}/provisioned/{TOKEN}"), up=up, at=AT + clock)
    for found in permutations([earlier, boot, report]):
        assert has_report_since_boot(found, TOKEN) is (clock >= timedelta() if is_ended is None else is_ended)


# Repeats at an endpoint


def test_the_first_eleven_fetches_are_recorded_at_once_and_then_one_line_a_minute() -> None:
    repeated = RepeatedFetches()
    found = [repeated.count(fetch("10.0.0.66"), second / 10) for second in range(10_000)]
    lines = [each for each in found if each is not None]
    assert found[: MAX_FETCHES + 1] == [fetch("10.0.0.66")] * (MAX_FETCHES + 1)
    assert len(lines) == MAX_FETCHES + 1 + 16  # 1,000 seconds
    assert sum(each.times for each in (*lines, *repeated.take_due_observations(inf))) == 10_000


def test_counted_fetches_are_recorded_a_minute_later_even_without_another_fetch() -> None:
    repeated = RepeatedFetches()
    for _ in range(20):
        repeated.count(fetch("10.0.0.66"), 5.0)
    assert (repeated.take_due_observations(64.9), [each.times for each in repeated.take_due_observations(65.0)]) == (
        [],
        [9],
    )
    assert repeated.take_due_observations(1000.0) == []


def test_fetches_of_other_paths_are_not_counted_together() -> None:
    entry = fetch("10.0.0.66", "boot/v1/boot/52-54-00-12-34-56/boot.ipxe")
    repeated = RepeatedFetches()
    assert [repeated.count(entry, 0.0) for _ in range(100)] == [entry] * 100


def test_many_addresses_are_counted_together_and_hide_no_earlier_address() -> None:
    repeated = RepeatedFetches()
    taken = [repeated.count(fetch(f"10.0.{number // 250}.{number % 250}"), 0.0) for number in range(5000)]
    lines = [each for each in taken if each is not None]
    assert len({each.client for each in lines[:MAX_ADDRESSES]}) == MAX_ADDRESSES
    assert len(lines) == MAX_ADDRESSES + MAX_FETCHES + 1
    assert repeated.count(fetch("10.0.0.3"), 0.0) is not None


def test_many_secrets_take_limited_memory_and_lose_no_fetch() -> None:
    repeated, lines = RepeatedFetches(), 0
    for number in range(6000):
        for _ in range(13):
            lines += repeated.count(fetch("10.0.0.1", server=f"web{number}"), 0.0) is not None
    assert len(repeated._secrets) == RepeatedFetches._MAX_SECRETS
    assert lines + sum(each.times for each in repeated.take_due_observations(inf)) == 6000 * 13


def test_a_count_that_could_not_be_recorded_comes_with_the_next_fetch() -> None:
    repeated = RepeatedFetches()
    for _ in range(20):
        repeated.count(fetch("10.0.0.1"), 0.0)
    (waited,) = repeated.take_due_observations(60.0)
    repeated.restore_count(waited)
    again = repeated.count(fetch("10.0.0.1"), 61.0)
    assert again is not None and again.times == waited.times


@pytest.mark.parametrize("more", [{}, {"times": 7}, {"is_evidence": False}])
def test_a_line_of_the_fetch_log_has_its_number_of_fetches(more: dict[str, int]) -> None:
    found = replace(fetch("10.0.0.1"), **more)  # type: ignore[arg-type]
    assert parse_line(encode_line(found)) == found


@pytest.mark.parametrize("times", ["-1", "0", '"9"', "1e9", "99999999999999"])
def test_a_count_that_no_endpoint_writes_counts_as_one(times: str) -> None:
    line = encode_line(replace(fetch("10.0.0.1"), times=7)).replace(b'"times":7', f'"times":{times}'.encode())
    found = parse_line(line)
    assert isinstance(found, Observation) and found.times == 1


# What a ledger keeps


CLIENTS = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str), st.text(string.ascii_letters))


@given(st.lists(st.tuples(CLIENTS, st.integers(1, 10**6)), max_size=60))
def test_no_sequence_of_fetches_makes_a_row_longer_than_17_addresses_or_loses_a_fetch(
    fetches: list[tuple[str, int]],
) -> None:
    found = SecretFetches()
    for client, times in fetches:
        found = found.add_fetch(get_client_network(client), AT, times)
    assert len(found.addresses) <= MAX_ADDRESSES
    assert found.totals[1] == sum(times for _, times in fetches)
    whole = InstallationFetches(key="provision/1", attempt=1, number=3, secrets={"secrets/join": found})
    assert server_tables.parse_struct(InstallationFetches, server_tables.to_json(whole)) == whole


@pytest.mark.parametrize(
    ("fetches", "unexpected"),
    [
        ([("10.0.0.1", 10)], False),
        ([("10.0.0.1", 11)], True),
        ([("10.0.0.1", 1), ("10.0.0.2", 1)], True),
        ([("2001:db8::1", 1), ("2001:db8::2", 1)], False),
    ],
)
def test_a_second_address_or_more_than_ten_fetches_is_unexpected(
    fetches: list[tuple[str, int]], unexpected: bool
) -> None:
    found = SecretFetches()
    for client, times in fetches:
        found = found.add_fetch(get_client_network(client), AT, times)
    assert found.is_unexpected is unexpected
    confirmed = structs.replace(found, confirmed=found.totals)
    assert not confirmed.is_unexpected
    assert confirmed.add_fetch("10.9.9.9", AT + timedelta(hours=1), 1).is_unexpected
