"""PostgreSQL ledger: failures of the server, the connection and the address, and moves of ledgers."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result
from msgspec import structs

from gitboot.cli.commands import ledger as ledger_command
from gitboot.cli.main import Exit, cli, find_exit_code
from gitboot.controller.instance.state_directory import has_ledger
from gitboot.errors import LeaseLost, LedgerError, LedgerLeft, LockedByAnother, OperatorError, UsageError
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger import postgresql as postgresql_driver
from gitboot.ledger.leader_lease import Holder
from gitboot.ledger.open_ledger import copy_ledger, open_ledger, read_places, summarize_ledger
from gitboot.ledger.postgresql import LeaseConnection, PostgresDatabase, build_arguments
from gitboot.ledger.postgresql_fetch_log import FETCHES, RecordedFetches
from gitboot.ledger.schema import POSTGRESQL_MIGRATIONS, VERSION, Database
from gitboot.ledger.store import PostgresAddress, Transaction, read_address, write_address
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import Record
from gitboot.status.conditions import Event
from tests.helpers.cases import for_each, require_value
from tests.helpers.fleets import make_uuid
from tests.helpers.git_repositories import free_port
from tests.helpers.http_peers import Authority
from tests.helpers.postgresql import PostgresServer, postgresql
from tests.helpers.running_instance import Instance, close_after, eventually
from tests.ledger.test_leader_lease import GIVEN, ONE, end_lease, hold_lease, open_fetch_log, read_schema
from tests.ledger.test_store import NOON, WEB01, WEB02, write_rows, written


@pytest.fixture
def path(postgres_server: PostgresServer, tmp_path: Path) -> Path:
    return postgres_server.ledger(tmp_path)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that tests stop and start. It also listens at a TCP port."""
    with postgresql() as server:
        yield server


# Opening


def test_two_instances_that_open_an_empty_database_at_once_get_one_ledger(path: Path) -> None:
    def look(path: Path) -> str:
        with open_ledger(path) as ledger:
            return instance_tables.read_facts(ledger).identity

    with ThreadPoolExecutor(4) as pool:
        assert len({*pool.map(look, [path] * 4)}) == 1
    assert has_ledger(path.parent)
    assert not path.exists(), "there is no file"


def test_the_ledger_of_a_newer_gitboot_is_rejected(path: Path, postgres_server: PostgresServer) -> None:
    written(path)
    postgres_server.sql(f"UPDATE {read_schema(path)}.ledger_version SET number = 99")
    with pytest.raises(
        LedgerError, match=r"has schema version 99, but this version of gitboot supports \d+; use a newer"
    ):
        open_ledger(path)


@pytest.mark.parametrize("version", sorted(POSTGRESQL_MIGRATIONS))
def test_a_ledger_of_an_earlier_version_can_be_read_and_is_then_upgraded(
    path: Path, postgres_server: PostgresServer, version: int
) -> None:
    written(path)
    schema = read_schema(path)
    later = [table for since, table in NEW_TABLES.items() if since > version]
    dropped = "".join(f"DROP TABLE {schema}.{table}; " for table in later)
    dropped += "".join(
        f"ALTER TABLE {schema}.{table} DROP COLUMN {column}; "
        for since, columns in NEW_COLUMNS.items()
        for table, column in columns
        if since > version
    )
    postgres_server.sql(f"{dropped}UPDATE {schema}.ledger_version SET number = {version}")
    before = summarize_ledger(path)
    assert [before.rows[table] for table in later] == [0] * len(later)
    for _ in range(2):
        with open_ledger(path) as ledger:
            found = (
                instance_tables.read_facts(ledger).identity,
                server_tables.read_secret_fetches(ledger),
                instance_tables.read_acknowledgements(ledger),
            )
            assert found == (before.identity, {}, frozenset())
            assert ledger.rows("SELECT number FROM ledger_version") == [(VERSION,)]


def test_identities_of_machines_that_left_the_fleet_before_the_upgrade_are_lost(
    path: Path, postgres_server: PostgresServer
) -> None:
    written(path)
    schema, gone = read_schema(path), SystemUuid(make_uuid("old01"))
    postgres_server.sql(
        f"DROP TABLE {schema}.lost_identities; "
        f"ALTER TABLE {schema}.records DROP COLUMN clearances, DROP COLUMN version; "
        f"UPDATE {schema}.ledger_version SET number = 9; "
        f"INSERT INTO {schema}.machines VALUES ('{gone}', 'old01', '[\"52-54-00-00-00-01\"]', 'cz1', NULL, 0)"
    )
    with open_ledger(path) as ledger:
        lost = {each for each in server_tables.read_lost_identities(ledger) if each.uuid == gone}
        assert {each.key for each in lost} == {("MAC", "52-54-00-00-00-01"), ("serial", "CZ1")}


# Tables by the ledger version that introduced them. The first version in PostgreSQL was 5.
NEW_TABLES = {6: "secret_fetches", 7: "acknowledgements", 10: "lost_identities"}
NEW_COLUMNS = {
    8: [("records", "unknown_serves")],
    9: [("overrides", "clears_from")],
    11: [("records", "clearances"), ("records", "version")],
}


def test_without_psycopg_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "gitboot.ledger.postgresql")
    with pytest.raises(UsageError, match=r"pip install 'gitboot\[postgresql\]'"):
        importlib.import_module("gitboot.ledger.postgresql")


def test_rows_that_gitboot_would_not_have_written_are_rejected(path: Path) -> None:
    written(path)
    with open_ledger(path) as ledger:
        ledger.rows("UPDATE overrides SET state = 'Nonsense'")
    with pytest.raises(LedgerError, match=r"schema ledger_\w+\): the ledger cannot be read .*restore it from a backup"):
        open_ledger(path)


@for_each("damage", ["DROP TABLE {schema}.facts", "ALTER TABLE {schema}.facts DROP COLUMN value"])
def test_missing_tables_and_columns_are_damage(damage: str, tmp_path: Path, postgres_server: PostgresServer) -> None:
    written(path := postgres_server.ledger(tmp_path))
    postgres_server.sql(damage.format(schema=read_schema(path)))
    with pytest.raises(LedgerError, match=r"does not exist.*restore it from a backup"):
        open_ledger(path)


def test_a_database_that_does_not_sync_its_disk_is_rejected(tmp_path: Path) -> None:
    with (
        postgresql("fsync=off") as server,
        pytest.raises(LedgerError, match=r"has fsync = off"),
    ):
        open_ledger(server.ledger(tmp_path))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://db/gitboot", "expects a PostgreSQL database URL"),
        ("postgresql://gitboot:secret@db/gitboot", "must not contain a password"),
        ("postgresql://gitboot@db/gitboot?password=secret", "must not contain a password"),
        ("postgresql://gitboot@db/gitboot?application_name=a#b&password=secret", "must not contain a password"),
        ("postgresql://gitboot@db/gitboot?sslmode=require&sslpassword=secret", "use an sslkey file without"),
        ("postgresql://gitboot@db/gitboot?scram_client_key=secret", "must not contain scram_client_key"),
        ("postgresql://gitboot:secret\u2100@db/gitboot", "must not contain a password"),
        ("postgresql://gitboot@db", "needs a database name"),
        ("postgresql://gitboot:secret@[db/gitboot", "must not contain a password"),
        ("postgresql://gitboot:secret@d\u2100b/gitboot", "must not contain a password"),
        ("postgresql://gitboot:pa/secret@db/gitboot", "must not contain a password"),
        ("postgresql://gitboot:12/secret@db/gitboot", "must not contain a password"),
        ("postgresql://gitboot:pa?secret@db/gitboot", "must not contain a password"),
        ("postgresql://gitboot:secret?dbname=gitboot&@db", "must not contain a password"),
        ("postgresql://gitboot:secret#dbname@db/gitboot", "must not contain a password"),
        ("postgresql://gitboot:12/a?secret@db/gitboot", "must not contain a password"),
        ("postgresql://gitboot:12?user=secret@db", "must not contain a password"),
        ("postgresql://gitboot:12/a?user=secret@db/gitboot", "must not contain a password"),
        ("postgresql://gitboot:12/a?user=b@c&d=secret@db?dbname=gitboot", "must not contain a password"),
        ("postgresql://gitboot:12/a?b=secret@db", "must not contain a password"),
        ("postgresql://gitboot:12/a?user=b&secret@db", "must not contain a password"),
        ("postgresql://gitboot:12/secret@a?user=b@db", "must not contain a password"),
        ("postgresql://gitboot/a:secret?user=b@db", "must not contain a password"),
        ("postgresql://gitboot:12#secret/a?user=b@db", "must not contain a password"),
        ("postgresql://gitboot:secret/a?user=b@db", "the host or the port is not valid"),
        ("postgresql://gitboot@[secret/gitboot", "the host or the port is not valid"),
        ("postgresql://gitboot@h1:5432,h2:secret/gitboot", "the host or the port is not valid"),
        ("postgresql://gitboot:secret/gitboot", "the host or the port is not valid"),
    ],
)
def test_an_invalid_address_is_rejected_without_its_password(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        PostgresAddress.parse(url, None)
    assert "secret" not in str(refused.value)


def test_the_parameters_of_an_address_may_contain_an_at_sign() -> None:
    """The text after an at sign in these parameters names no host and database, so it does not end a login."""
    for parameters in (
        "user=svc@corp",
        "user=svc@corp&sslrootcert=/etc/ca.pem",
        "application_name=a:b@c&sslmode=require",
        "sslrootcert=/etc/a:b@c",
    ):
        for place in ("h:5432/db", "h/db", "u@h1:5432,h2:5432/db", "[::1]:5432/db"):
            address = PostgresAddress.parse(f"postgresql://{place}?{parameters}", None)
            assert address.name == f"postgresql://{place}"


def test_a_name_server_that_does_not_answer_is_reported_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()

    def look_up(*_: object, **__: object) -> object:
        is_over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "the name server answers too late")

    monkeypatch.setattr(postgresql_driver, "_CONNECT_S", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    write_address(path := tmp_path / "ledger.sqlite", PostgresAddress(url="postgresql://u@db.test/gitboot"))
    try:
        with pytest.raises(LedgerError, match=r"db\.test: the name server did not respond within 0\.1 s"):
            open_ledger(path)
    finally:
        is_over.set()


def test_a_host_name_that_does_not_exist_is_reported_and_the_next_host_is_used(
    tls_server: tuple[PostgresServer, str, Path], tmp_path: Path
) -> None:
    _, url, ca = tls_server
    (file := tmp_path / "password").write_text("a secret")
    port = url.rpartition(":")[2].partition("/")[0]
    path, query = tmp_path / "ledger.sqlite", f"gitboot?sslmode=verify-ca&sslrootcert={ca}"
    write_address(path, PostgresAddress.parse(f"postgresql://gitboot@db1.invalid:{port}/{query}", file))
    with pytest.raises(LedgerError, match=r"db1\.invalid: "):
        open_ledger(path)
    hosts = f"db1.invalid:1,localhost:{port}"
    write_address(path, PostgresAddress.parse(f"postgresql://gitboot@{hosts}/{query}", file))
    open_ledger(path).close()


def test_an_unreachable_address_is_reported_in_time(tmp_path: Path) -> None:
    write_address(path := tmp_path / "ledger.sqlite", PostgresAddress(url="postgresql://u@127.0.0.1:1/db"))
    with pytest.raises(LedgerError, match=r"postgresql://u@127\.0\.0\.1:1/db: the ledger cannot be read .*refused"):
        open_ledger(path)


def test_a_missing_or_forbidden_schema_is_reported_with_the_command_that_fixes_it(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    own_server.sql("CREATE ROLE ops LOGIN")
    address = own_server.address("gitboot2")
    address = structs.replace(address, url=address.url.replace("postgres@", "ops@"))
    write_address(path := tmp_path / "ledger.sqlite", address)
    for said, schema_is_made in (
        ('schema gitboot2 does not exist; run: CREATE SCHEMA "gitboot2" AUTHORIZATION "ops"', False),
        ('ops is not allowed to use schema gitboot2; run: GRANT USAGE, CREATE ON SCHEMA "gitboot2" TO "ops"', True),
    ):
        if schema_is_made:
            own_server.sql("CREATE SCHEMA gitboot2")
        with pytest.raises(UsageError) as failed:
            open_ledger(path)
        assert str(failed.value).endswith(said)
        own_server.sql(said.rpartition(": ")[2] if schema_is_made else "SELECT")
    open_ledger(path).close()


def test_a_role_that_may_not_create_tables_gets_the_command_that_fixes_it_and_no_advice_to_restore(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    own_server.sql("CREATE ROLE plain LOGIN; CREATE SCHEMA narrow; GRANT USAGE ON SCHEMA narrow TO plain")
    address = own_server.address("narrow")
    address = structs.replace(address, url=address.url.replace("postgres@", "plain@"))
    write_address(path := tmp_path / "ledger.sqlite", address)
    command = 'GRANT USAGE, CREATE ON SCHEMA "narrow" TO "plain"'
    with pytest.raises(UsageError, match=f"plain is not allowed to create tables in schema narrow; run: {command}$"):
        open_ledger(path)
    own_server.sql(command)
    open_ledger(path).close()
    own_server.sql("REVOKE SELECT ON narrow.facts FROM plain")
    with pytest.raises(LedgerError, match=r"the ledger cannot be read \(permission denied for table facts\)$"):
        open_ledger(path)


def test_without_a_search_path_the_role_gets_a_schema_of_its_own_name(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    own_server.sql("CREATE ROLE lonely LOGIN")
    own_server.sql("CREATE DATABASE lonely")
    own_server.sql("DROP SCHEMA public", "lonely")
    url = f"postgresql://lonely@/lonely?host={own_server.folder / 'socket'}"
    write_address(path := tmp_path / "ledger.sqlite", PostgresAddress.parse(url, None))
    command = 'CREATE SCHEMA "lonely" AUTHORIZATION "lonely"'
    with pytest.raises(UsageError, match=f"schema lonely does not exist; run: {command}$"):
        open_ledger(path)
    own_server.sql(command, "lonely")
    open_ledger(path).close()


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[PostgresServer, str, Path]]:
    """A PostgreSQL server with TLS and passwords. Yield its URL and the file of its certificate authority."""
    folder = tmp_path_factory.mktemp("far")
    authority, port = Authority(folder), free_port()
    issued = authority.issue()
    with postgresql() as server:
        server.stop()
        server.tls(issued.certificate, issued.key, port)
        server.start()
        server.sql("CREATE ROLE gitboot LOGIN PASSWORD 'a secret'")
        server.sql("CREATE DATABASE gitboot OWNER gitboot")
        (ca := folder / "authority.pem").write_text(authority.pem)
        yield server, f"postgresql://gitboot@127.0.0.1:{port}/gitboot", ca


@pytest.mark.parametrize(
    ("query", "password", "said"),
    [
        ("?sslmode=verify-full&sslrootcert={ca}", "a secret\n", None),
        ("?sslmode=verify-full&sslrootcert={ca}", "a wrong one", "password authentication failed"),
        ("?sslmode=verify-full&sslrootcert={other}", "a secret", "certificate verify failed"),
        ("?sslmode=disable", "a secret", "no pg_hba.conf entry|no encryption"),
    ],
)
def test_over_a_network_the_connection_is_encrypted_and_verified_and_the_password_is_in_a_file(
    tls_server: tuple[PostgresServer, str, Path], tmp_path: Path, query: str, password: str, said: str | None
) -> None:
    _, url, ca = tls_server
    (other := tmp_path / "other").mkdir()
    (other / "ca.crt").write_text(Authority(other).pem)
    (file := tmp_path / "password").write_text(password)
    address = PostgresAddress.parse(url + query.format(ca=ca, other=other / "ca.crt"), file)
    write_address(path := tmp_path / "ledger.sqlite", address)
    if said is None:
        with open_ledger(path) as ledger:
            ((encrypted,),) = ledger.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        assert encrypted
        return
    with pytest.raises(LedgerError, match=said) as failed:
        open_ledger(path)
    assert password.strip() not in str(failed.value)


def test_a_service_of_the_url_supplies_the_host_and_its_certificate_authority(
    tls_server: tuple[PostgresServer, str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url, ca = tls_server
    port = url.rpartition(":")[2].partition("/")[0]
    services = f"[prod]\nhost=localhost\nport={port}\nsslmode=verify-ca\nsslrootcert={ca}\n"
    (tmp_path / "services").write_text(services)
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    (file := tmp_path / "password").write_text("a secret")
    path = tmp_path / "ledger.sqlite"
    write_address(path, PostgresAddress.parse("postgresql://gitboot@/gitboot?service=prod", file))
    with open_ledger(path) as ledger:
        ((encrypted,),) = ledger.rows("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    assert encrypted
    write_address(path, PostgresAddress.parse("postgresql://gitboot@/gitboot?service=missing", file))
    with pytest.raises(LedgerError, match=r"service.*missing.* not found"):
        open_ledger(path)


def test_finding_p1_a_rotated_password_is_used_for_the_next_connection(
    tls_server: tuple[PostgresServer, str, Path], tmp_path: Path
) -> None:
    server, url, ca = tls_server
    (file := tmp_path / "password").write_text("a secret\n")
    asked = f"{url}?sslmode=verify-full&sslrootcert={ca}"
    write_address(path := tmp_path / "ledger.sqlite", PostgresAddress.parse(asked, file))
    with ExitStack() as stack:
        ledger = stack.enter_context(open_ledger(path))
        stack.callback(server.sql, "ALTER ROLE gitboot PASSWORD 'a secret'")
        identity = ledger.progress[0]
        server.sql("ALTER ROLE gitboot PASSWORD 'the second'")

        def lose_connection() -> None:
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'gitboot'")
            with suppress(LedgerError):  # this statement finds out that the connection is lost
                ledger.rows("SELECT 1")

        lose_connection()
        with pytest.raises(LedgerError, match="password authentication failed"):
            ledger.rows("SELECT 1")
        for content, cause in (
            (None, r"the ledger's password cannot be read \(No such file"),
            (b"", "expected one line with the ledger's password"),
            (b"one\ntwo\n", "expected one line with the ledger's password"),
            (b"\xff\xfe", "the ledger's password is not valid UTF-8"),
        ):
            file.unlink(missing_ok=True)
            if content is not None:
                file.write_bytes(content)
            with pytest.raises(LedgerError, match=f"{file}: {cause}"):
                ledger.rows("SELECT 1")
        file.write_text("the second\n")
        assert ledger.rows("SELECT value FROM facts WHERE name = 'identity'") == [(identity,)]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ("", "postgresql://u@db/gitboot"),
        ("?sslmode=disable", "postgresql://u@db/gitboot"),
        ("?options=-csearch_path%3Dfra1", "postgresql://u@db/gitboot (schema fra1)"),
        ("?sslmode=disable&options=-c%20search_path%3D%22ber1%22,public", "postgresql://u@db/gitboot (schema ber1)"),
        ("?options=--search-path%3Dham1%20-cstatement_timeout%3D5s", "postgresql://u@db/gitboot (schema ham1)"),
    ],
)
def test_two_ledgers_in_one_database_have_different_names(options: str, name: str) -> None:
    assert PostgresAddress.parse(f"postgresql://u@db/gitboot{options}", None).name == name


@for_each(
    ("url", "is_here"),
    [
        ("postgresql:///gitboot?host=/run/postgresql", True),
        ("postgresql://u@localhost/gitboot", True),
        ("postgresql://u@[::1]:5432/gitboot", True),
        ("postgresql://u@127.0.0.1:5432/gitboot", True),
        ("postgresql://u@db.example.net/gitboot", False),
        ("postgresql://u@10.0.0.7:5432/gitboot", False),
        ("postgresql://u@127.0.0.1,db.example.net/gitboot", False),
        ("postgresql:///gitboot?host=db.example.net", False),
        ("postgresql:///gitboot?host=/run/postgresql,db.example.net", False),
        ("postgresql://u@localhost/gitboot?host=db.example.net", False),
        ("postgresql:///gitboot?hostaddr=127.0.0.1", True),
        ("postgresql:///gitboot?hostaddr=10.0.0.7", False),
        ("postgresql://u@localhost/gitboot?hostaddr=10.0.0.7", False),
    ],
)
def test_a_server_on_another_host_must_show_a_verified_certificate(url: str, is_here: bool) -> None:
    assert build_arguments(PostgresAddress.parse(url, None)).get("sslmode") == (None if is_here else "verify-full")


@for_each(
    ("variables", "url", "is_here"),
    [
        ({"PGHOST": "db.example.net"}, "postgresql:///gitboot", False),
        ({"PGHOST": "db.example.net"}, "postgresql://localhost/gitboot", True),
        ({"PGHOST": "/run/postgresql"}, "postgresql:///gitboot", True),
        ({"PGHOSTADDR": "10.0.0.7"}, "postgresql://localhost/gitboot", False),
    ],
)
def test_a_host_of_the_environment_counts_like_one_of_the_url(
    variables: dict[str, str], url: str, is_here: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        arguments = build_arguments(PostgresAddress.parse(url, None))
    assert arguments.get("sslmode") == (None if is_here else "verify-full")


SERVICES = """\
[here]
host=localhost
[far]
host=db.example.net
[encrypted]
host=db.example.net
sslmode=require
[unverified]
host=db.example.net
sslmode=disable
sslrootcert=/etc/ca.pem
[private]
host=10.0.0.7
sslmode=verify-ca
sslrootcert=/etc/ca.pem
[full]
host=db.example.net
sslmode=verify-full
"""


@for_each(
    ("service", "query", "added"),
    [
        ("here", "", {}),
        ("here", "host=db.example.net", {"sslmode": "verify-full", "sslrootcert": "system"}),
        ("private", "host=db.example.net", {"sslmode": "verify-full"}),
        ("far", "", {"sslmode": "verify-full", "sslrootcert": "system"}),
        ("far", "host=localhost", {}),
        ("far", "sslmode=disable", {"sslmode": "disable"}),
        ("encrypted", "", {"sslmode": "verify-full", "sslrootcert": "system"}),
        ("unverified", "", {"sslmode": "verify-full"}),
        ("private", "", {}),
        ("full", "", {"sslmode": "verify-full", "sslrootcert": "system"}),
        ("missing", "", {}),  # libpq reports this error when it connects
    ],
)
@pytest.mark.parametrize("is_in_url", [True, False])
def test_a_service_decides_how_a_server_is_verified_but_not_whether(
    is_in_url: bool, service: str, query: str, added: dict[str, str], tmp_path: Path
) -> None:
    (file := tmp_path / "services").write_text(SERVICES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        patch.setenv("PGSERVICEFILE", str(file))
        if is_in_url:
            query = f"service={service}&{query}"
        else:
            patch.setenv("PGSERVICE", service)
        arguments = build_arguments(PostgresAddress.parse(f"postgresql:///gitboot?{query}", None))
    assert {name: arguments[name] for name in ("sslmode", "sslrootcert") if name in arguments} == added


def test_the_default_file_of_libpq_verifies_the_server_of_a_service(tmp_path: Path) -> None:
    (file := tmp_path / "services").write_text(SERVICES)
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql/root.crt").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path))
        patch.setenv("PGSERVICEFILE", str(file))
        arguments = build_arguments(PostgresAddress.parse("postgresql:///gitboot?service=far", None))
    assert (arguments["sslmode"], arguments.get("sslrootcert")) == ("verify-full", None)


@for_each(
    ("variables", "query", "authority"),
    [
        ({}, "", "system"),
        ({"PGSSLROOTCERT": "/etc/ca.pem"}, "", None),
        ({"PGSSLROOTCERT": "/etc/ca.pem", "PGSSLMODE": "disable"}, "", None),
        ({"PGSSLROOTCERT": "/etc/ca.pem"}, "?sslrootcert=system", "system"),
        ({"PGSSLMODE": "verify-ca"}, "", "system"),
    ],
)
def test_the_certificate_authority_of_the_environment_verifies_a_server(
    variables: dict[str, str], query: str, authority: str | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        arguments = build_arguments(PostgresAddress.parse(f"postgresql://u@db.example.net/gitboot{query}", None))
    assert (arguments["sslmode"], arguments.get("sslrootcert")) == ("verify-full", authority)


# Failures during use


def _write_while_the_connection_is_lost(tx: Transaction, server: PostgresServer) -> None:
    server_tables.write_records(tx, [(WEB01, "web01", Record())])
    tx.send()
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gitboot'")
    server_tables.write_records(tx, [(WEB02, "web02", Record())])


def test_a_transaction_whose_connection_is_lost_is_written_completely_or_not_at_all(
    path: Path, postgres_server: PostgresServer
) -> None:
    with open_ledger(path) as ledger:
        write_rows(ledger, instance_tables.write_facts, accepted="one")
        with pytest.raises(LedgerError, match="cannot be written"):
            write_rows(ledger, _write_while_the_connection_is_lost, postgres_server)
        assert ledger.is_suspect
        ledger.read_back()
        assert not ledger.is_suspect
        assert (server_tables.read_records(ledger), instance_tables.read_facts(ledger).accepted) == ({}, "one")
        write_rows(ledger, server_tables.write_records, [(WEB01, "web01", Record())])
        assert server_tables.read_records(ledger) == {WEB01: Record()}


def test_a_long_computation_between_two_writes_does_not_lose_the_transaction(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """For 100,000 servers this takes longer than the server's limit for idle transactions."""
    address = postgres_server.address()
    write_address(
        path := tmp_path / "ledger.sqlite",
        structs.replace(address, url=f"{address.url}%20-cidle_in_transaction_session_timeout%3D1000"),
    )

    def states() -> list[str]:
        return postgres_server.sql(
            "SELECT state FROM pg_stat_activity WHERE application_name = 'gitboot' AND pid <> pg_backend_pid()"
        ).splitlines()

    def nobody_is_in_a_transaction() -> None:
        assert "idle in transaction" not in states()

    def made() -> Iterator[tuple[SystemUuid, str, Record]]:
        nobody_is_in_a_transaction()
        yield WEB01, "web01", Record()

    def write(tx: Transaction) -> None:
        instance_tables.write_facts(tx, accepted="one")
        server_tables.write_records(tx, made())

    def idle(tx: Transaction) -> None:
        tx.send()
        eventually(lambda: "idle in transaction" not in states())

    with open_ledger(path) as ledger:
        write_rows(ledger, write)
        assert (server_tables.read_records(ledger), instance_tables.read_facts(ledger).accepted) == (
            {WEB01: Record()},
            "one",
        )
        with pytest.raises(LedgerError, match="idle-in-transaction timeout"):
            write_rows(ledger, idle)


def test_finding_c2_a_call_without_a_response_ends_at_its_deadline(path: Path) -> None:
    """The server works at it for an hour, and its own `statement_timeout` is another setting."""
    with open_ledger(path) as ledger:
        database = ledger.database
        assert isinstance(database, PostgresDatabase)
        with database._connection.call_timeout(0.5), pytest.raises(LedgerError, match="no answer within 0 s"):
            ledger.rows("SELECT pg_sleep(3600)")
        assert ledger.is_failing
        assert instance_tables.read_facts(ledger).accepted is None, "the next call has a new connection"
        assert not ledger.is_failing


def test_all_calls_of_a_transaction_share_one_deadline_and_rows_extend_it(path: Path) -> None:
    with open_ledger(path) as ledger:
        database = ledger.database
        assert isinstance(database, PostgresDatabase)
        database.begin()
        until_s = database._connection._until_s
        database.insert("events", ("at", "type", "message", "facts"), [("", "", "", "")] * 700)
        assert database._connection._until_s == pytest.approx(until_s + 7)
        database._connection.limit_transaction(0)
        with pytest.raises(psycopg.OperationalError, match="no answer"):
            database.execute("SELECT pg_sleep(3600)")
        database.rollback()
        assert database._connection.closed, "what it came to is unknown"


def test_finding_c2_a_commit_without_a_response_is_read_back_before_anything_depends_on_it(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    """The server waits for a standby that does not exist, and commits when the setting no longer requires it."""

    written = ""

    def write(tx: Transaction) -> None:
        nonlocal written
        written += "x"
        instance_tables.write_facts(tx, accepted=written)
        tx.send()
        assert isinstance(ledger.database, PostgresDatabase)
        ledger.database._commit_s = 0.6

    def is_unanswered() -> bool:
        """Write. Return whether the commit waits: the server applies the setting to commits in another process."""
        try:
            write_rows(ledger, write)
        except LedgerError as error:
            return "no answer within 1 s" in str(error)
        return False

    with open_ledger(own_server.ledger(tmp_path)) as ledger:
        own_server.sql("ALTER SYSTEM SET synchronous_standby_names = 'none_such'")
        own_server.sql("SELECT pg_reload_conf()")
        try:
            eventually(is_unanswered)
            assert ledger.is_suspect
        finally:
            own_server.sql("ALTER SYSTEM RESET synchronous_standby_names")
            own_server.sql("SELECT pg_reload_conf()")
        eventually(lambda: "SyncRep" not in own_server.sql("SELECT wait_event FROM pg_stat_activity"))
        ledger.read_back()
        assert instance_tables.read_facts(ledger).accepted == written


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGINT])
def test_a_restarted_server_has_all_acknowledged_writes(
    own_server: PostgresServer, tmp_path: Path, how: signal.Signals
) -> None:
    """SIGQUIT: at once, as when its machine fails; what it had acknowledged comes back from its log."""
    with open_ledger(own_server.ledger(tmp_path)) as ledger:
        write_rows(ledger, server_tables.write_records, [(WEB01, "web01", Record(provision=1))])
        own_server.stop(how)
        with pytest.raises(LedgerError, match="cannot be written"):
            write_rows(ledger, server_tables.write_records, [(WEB01, "web01", Record(provision=2))])
        with pytest.raises(LedgerError, match="cannot be read"):
            server_tables.read_records(ledger)
        own_server.start()
        if ledger.is_suspect:
            ledger.read_back()
        assert server_tables.read_records(ledger) == {WEB01: Record(provision=1)}
        write_rows(ledger, server_tables.write_records, [(WEB01, "web01", Record(provision=2))])
        assert server_tables.read_records(ledger) == {WEB01: Record(provision=2)}
        assert not instance_tables.is_behind(ledger)


def test_a_writer_waits_for_another_writer(path: Path, postgres_server: PostgresServer) -> None:
    with open_ledger(path) as one, open_ledger(path) as other:
        wrote = threading.Event()
        one.database.execute("SET idle_in_transaction_session_timeout = 0")
        other.database.execute("SET lock_timeout = 0")

        def write() -> None:
            write_rows(other, instance_tables.write_facts, accepted="other")
            wrote.set()

        thread = threading.Thread(target=write)
        with one.writing() as tx:
            instance_tables.write_facts(tx, accepted="one")
            tx.send()
            thread.start()
            eventually(lambda: int(postgres_server.sql("SELECT count(*) FROM pg_locks WHERE NOT granted")))
            assert not wrote.is_set()
        thread.join()
        assert instance_tables.read_facts(one).accepted == "other"


def test_characters_that_postgresql_cannot_store_are_replaced(path: Path) -> None:
    with open_ledger(path) as ledger:
        write_rows(ledger, instance_tables.write_events, [Event(at=NOON, type="t", message="a\0b")])
        assert [each["message"] for _, each in instance_tables.read_numbered_events(ledger)] == [
            "a\N{REPLACEMENT CHARACTER}b"
        ]


# Summaries, copies and moves


def test_read_only_commands_see_the_ledger(path: Path, tmp_path: Path) -> None:
    written(path)
    with open_ledger(path) as ledger:
        write_rows(ledger, instance_tables.write_facts, output="/srv/boot")
    assert instance_tables.read_last_event_number(path) == 1
    assert [event["type"] for _, event in instance_tables.read_events_after(path, 0, 10)] == ["Accepted"]
    assert (read_places(path), summarize_ledger(path).rows["overrides"]) == ((Path("/srv/boot"), None), 1)
    copy_ledger(path, copy := tmp_path / "copy.sqlite", in_use=True)
    with open_ledger(path) as ours, open_ledger(copy) as theirs:
        assert (server_tables.read_records(ours), server_tables.read_overrides(ours)) == (
            server_tables.read_records(theirs),
            server_tables.read_overrides(theirs),
        )
        assert instance_tables.read_facts(ours) == instance_tables.read_facts(theirs)
        assert not instance_tables.is_behind(theirs)


def test_a_reader_does_not_block_a_writer(path: Path, tmp_path: Path) -> None:
    """The reader does not wait either: it does not see what is being written."""
    written(path)
    with open_ledger(path) as ledger:
        with ledger.writing() as tx:
            instance_tables.write_facts(tx, accepted="unwritten")
            tx.send()
            copy_ledger(path, tmp_path / "copy.sqlite", in_use=True)
        assert instance_tables.read_facts(ledger).accepted == "unwritten"
    with open_ledger(tmp_path / "copy.sqlite") as copy:
        assert instance_tables.read_facts(copy).accepted == "c0ffee"


def test_a_ledger_whose_lease_another_host_has_is_not_moved(path: Path, tmp_path: Path) -> None:
    written(path)
    with open_ledger(path) as ledger:
        ledger.database.take_lease(Holder("theirs", "another host"))
        done = CliRunner().invoke(cli, ["ledger", "copy", "--state", str(tmp_path), "--to", "file"])
    assert isinstance(done.exception, LockedByAnother)
    assert read_address(path) is not None
    assert not path.exists()


def show(state: Path) -> str:
    return CliRunner().invoke(cli, ["ledger", "show", "--state", str(state)], catch_exceptions=False).output


def move_ledger(state: Path, to: str) -> str:
    done = CliRunner().invoke(cli, ["ledger", "copy", "--state", str(state), "--to", to], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_ledger_that_is_moved_there_and_back_continues_as_the_same_and_its_former_file_is_rejected(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.sqlite"
    written(path)
    before = summarize_ledger(path)
    with open_ledger(path) as of_before:
        told = move_ledger(tmp_path, postgres_server.address().url)
        with pytest.raises(LedgerLeft, match="was moved to postgresql://"):
            write_rows(of_before, instance_tables.write_facts, accepted="by a process that has had it open")
    assert "Copied and compared" in told
    assert f"The old ledger is now {path}.copied-1" in told
    assert not path.exists()
    (other := tmp_path / "other").mkdir()
    shutil.copyfile(f"{path}.copied-1", other / "ledger.sqlite")
    with pytest.raises(LedgerLeft, match=r"was moved to postgresql://.*gitboot ledger copy --state STATE --to URL"):
        open_ledger(other / "ledger.sqlite")
    found = summarize_ledger(path)
    assert (found.identity, found.changes, found.rows) == (before.identity, before.changes, before.rows)
    with open_ledger(path) as ledger:
        assert not instance_tables.is_behind(ledger)
        assert instance_tables.add_request(ledger, NOON, "ada", "retry", {}) == 2, "they are counted on"
        write_rows(ledger, server_tables.write_records, [(WEB02, "web02", Record())])
        assert server_tables.read_last_observation_number(ledger) == 1
    move_ledger(tmp_path, "file")
    assert read_address(path) is None
    with open_ledger(path) as ledger:
        assert server_tables.read_records(ledger).keys() == {WEB01, WEB02}
        assert not instance_tables.is_behind(ledger)


def fail_copy(state: Path, to: str) -> str:
    done = CliRunner().invoke(cli, ["ledger", "copy", "--state", str(state), "--to", to])
    assert isinstance(done.exception, OperatorError), done.output
    assert find_exit_code(done.exception) is Exit.USAGE
    return str(done.exception)


@pytest.fixture
def second_state(path: Path, tmp_path: Path) -> Path:
    (state := tmp_path / "two").mkdir()
    shutil.copyfile(path.with_suffix(".toml"), state / "ledger.toml")
    return state


def test_a_database_that_was_moved_to_a_file_is_used_by_no_other_host_and_no_endpoint(
    path: Path, second_state: Path, tmp_path: Path
) -> None:
    written(path)
    address = require_value(read_address(path))
    assert "run the same `gitboot ledger copy` command on each of them" in move_ledger(tmp_path, "file")
    place = re.escape(f"{socket.gethostname()}:{path}")
    with pytest.raises(LedgerLeft, match=f"this ledger was moved to {place}; "):
        open_ledger(second_state / "ledger.sqlite")
    assert f"moved to  {socket.gethostname()}:{path}; gitboot no longer uses this ledger" in show(second_state)
    for command in (("events",), ("records", "show"), ("resume",)):
        done = CliRunner().invoke(cli, [*command, "--state", str(second_state)])
        assert isinstance(done.exception, LedgerLeft), command
        assert find_exit_code(done.exception) is Exit.USAGE
    assert "was moved to" in fail_copy(second_state, "file")
    assert not (second_state / "ledger.sqlite").exists()
    (tmp_path / "tree").mkdir()
    places = ("--out", str(tmp_path / "tree"), "--spool", str(tmp_path / "spool"), "--listen", "127.0.0.1:0")
    for url, type, said in (
        (address.url, "LedgerLeft", "was moved to"),
        ("postgresql://postgres@127.0.0.1:1/none?sslmode=disable", "LedgerFailed", "cannot be read"),
    ):
        serve = Instance.start("serve", *places, "--ledger", url)
        reader = threading.Thread(target=serve.read, daemon=True)
        reader.start()
        try:
            told = eventually(lambda: [each["message"] for each in serve.events if each["type"] == type])  # noqa: B023
            assert said in told[0], told
            assert told[0].endswith("the endpoint withholds one-time boots")
        finally:
            serve.process.send_signal(signal.SIGTERM)
            serve.process.wait(120)
            close_after(reader, serve.errors)


def test_after_a_move_to_another_database_each_new_fetch_is_read(
    path: Path, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """The fetch log of the other database numbers its rows from 1."""
    with open_ledger(path) as ledger, ledger.writing() as tx:
        server_tables.write_spool_positions(tx, {FETCHES: 5000})
    move_ledger(tmp_path, postgres_server.address().url)
    with hold_lease(path, ONE) as (ledger, lease), open_fetch_log(path) as fetches:
        fetches.record(GIVEN, str(lease.lease))
        with closing(RecordedFetches(require_value(read_address(path)), lease.lease)) as recorded:
            assert recorded.read(server_tables.read_spool_positions(ledger)).observations == [GIVEN]
            found = recorded.read({FETCHES: 5000})
            assert (found.observations, found.offsets) == ([GIVEN], {FETCHES: 1}), (
                "an earlier version kept the position"
            )
    end_lease(path, postgres_server)
    assert "no instance has processed 1 of the requests" in fail_copy(tmp_path, "file")


def test_the_same_command_moves_the_configuration_of_another_host(
    path: Path, second_state: Path, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    written(path)
    url = postgres_server.address().url
    move_ledger(tmp_path, url)
    with pytest.raises(LedgerLeft):
        open_ledger(second_state / "ledger.sqlite")
    assert "was moved to" in fail_copy(second_state, postgres_server.address().url), "another place"
    assert "An earlier command copied the ledger" in move_ledger(second_state, url)
    with open_ledger(path) as one, open_ledger(second_state / "ledger.sqlite") as other:
        write_rows(one, instance_tables.write_facts, accepted="by one")
        assert instance_tables.read_facts(other).accepted == "by one"


def test_a_former_holder_of_the_lease_of_a_moved_ledger_can_do_nothing_more(
    path: Path, second_state: Path, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """An instance that was paused during the copy cannot renew its lease, write, or take another lease."""
    written(path)
    theirs = Holder("theirs", "another host", 3600)
    address = require_value(read_address(path))
    with open_ledger(second_state / "ledger.sqlite") as ledger, open_ledger(second_state / "ledger.sqlite") as commands:
        ledger.database.take_lease(theirs)
        end_lease(path, postgres_server)
        move_ledger(tmp_path, "file")
        assert ledger.database.lease is not None
        with closing(LeaseConnection(address)) as renewing:
            with pytest.raises(LeaseLost, match="was moved to"):
                renewing.renew(ledger.database.lease)
            with pytest.raises(LedgerLeft, match="was moved to"):
                renewing.find_other_holder(theirs)
        with pytest.raises(LeaseLost, match="was moved to"):
            write_rows(ledger, instance_tables.write_facts, accepted="theirs")
        with pytest.raises(LedgerLeft, match="was moved to"):
            ledger.database.take_lease(theirs)
        with pytest.raises(LedgerLeft, match="was moved to"):
            write_rows(commands, instance_tables.write_facts, accepted="theirs")
    with open_ledger(path) as ledger:
        assert instance_tables.read_facts(ledger).accepted == "c0ffee"


def test_the_copy_of_a_ledger_in_a_file_is_never_readable_by_others(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(path)
    seen: list[int] = []
    finish = ledger_command._finish_copy

    def look(new: Database) -> None:
        seen.extend(each.stat().st_mode & 0o777 for each in tmp_path.glob("ledger.sqlite*"))
        finish(new)

    monkeypatch.setattr(ledger_command, "_finish_copy", look)
    before = os.umask(0o022)
    try:
        move_ledger(tmp_path, "file")
    finally:
        os.umask(before)
    seen.append(path.stat().st_mode & 0o777)
    assert set(seen) == {0o600}
    assert len(seen) > 1


def test_a_wakeup_signal_does_not_end_a_copy(postgres_server: PostgresServer, tmp_path: Path) -> None:
    """Another command takes the holder of the state directory for an instance, and sends it a signal."""
    written(tmp_path / "ledger.sqlite")
    code = f"""
import os, signal
from click.testing import CliRunner
from gitboot.cli.main import cli
from gitboot.cli.commands import ledger as ledger_command
for each in (signal.SIGUSR1, signal.SIGHUP):  # nohup, or a test before this one, may have it ignored
    signal.signal(each, signal.SIG_DFL)
finish = ledger_command._finish_copy
def wake(new):
    for each in (signal.SIGUSR1, signal.SIGHUP):
        os.kill(os.getpid(), each)
    finish(new)
ledger_command._finish_copy = wake
print(CliRunner().invoke(cli, {["ledger", "copy", "--state", str(tmp_path), "--to", postgres_server.address().url]!r}))
assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGHUP)) == (signal.SIG_DFL, signal.SIG_DFL)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "<Result okay>\n"), done


class Killed(BaseException):
    """The copy ends at this point."""


@pytest.mark.parametrize("to", ["file", "database"])
@pytest.mark.parametrize(
    ("at", "is_used", "is_copy_used"),
    [("record_move", True, False), ("_finish_copy", False, False), ("_switch_address", False, True)],
)
def test_a_killed_copy_leaves_one_ledger_or_none_and_the_same_command_completes_it(
    postgres_server: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    at: str,
    is_used: bool,
    is_copy_used: bool,
) -> None:
    path, address = tmp_path / "ledger.sqlite", postgres_server.address()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    if to == "file":
        write_address(path, address)
    else:
        write_address(elsewhere / "ledger.sqlite", address)
    written(path)
    before = summarize_ledger(path)

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ledger_command, at, kill)
        with pytest.raises(Killed):
            move_ledger(tmp_path, "file" if to == "file" else address.url)
    if to == "file":
        shutil.copyfile(path, elsewhere / "ledger.sqlite")
    assert (is_opened(path), is_opened(elsewhere / "ledger.sqlite")) == (is_used, is_copy_used)
    if is_used:
        with open_ledger(path) as ledger:
            write_rows(ledger, instance_tables.write_facts, accepted="goes on")
    move_ledger(tmp_path, "file" if to == "file" else address.url)
    assert (read_address(path) is None) == (to == "file")
    after = summarize_ledger(path)
    assert (after.identity, after.changes, after.rows) == (before.identity, before.changes, before.rows)
    with open_ledger(path) as ledger:
        assert instance_tables.read_facts(ledger).accepted == ("goes on" if is_used else "c0ffee")
        ledger.database.take_lease(Holder("theirs", "another host"))


def is_opened(path: Path) -> bool:
    try:
        open_ledger(path).close()
    except LedgerError as error:
        return "gitboot ledger copy" not in str(error)
    return True


def test_a_ledger_can_be_moved_back_to_a_former_place_that_was_emptied(
    path: Path, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    written(path)
    address = require_value(read_address(path))
    move_ledger(tmp_path, "file")
    assert "already contains a moved ledger" in fail_copy(tmp_path, address.url)
    schema = address.url.rpartition("%3D")[2]
    postgres_server.sql(f"DROP SCHEMA {schema} CASCADE; CREATE SCHEMA {schema}")
    move_ledger(tmp_path, address.url)
    with open_ledger(path) as ledger:
        write_rows(ledger, instance_tables.write_facts, accepted="back")


@pytest.mark.parametrize("from_file", [True, False], ids=["a file", "a database"])
def test_a_former_place_is_used_again_if_the_new_one_is_lost_and_it_is_unverified(
    tmp_path: Path, postgres_server: PostgresServer, from_file: bool
) -> None:
    path, address = tmp_path / "ledger.sqlite", postgres_server.address()
    if not from_file:
        write_address(path, address)
    written(path)
    identity = summarize_ledger(path).identity
    move_ledger(tmp_path, address.url if from_file else "file")
    place = str(tmp_path / "ledger.sqlite.copied-1") if from_file else address.url
    with open_ledger(path) as ledger:
        write_rows(ledger, instance_tables.write_facts, accepted="since")

    def reclaim(state: Path, *more: str) -> Result:
        return CliRunner().invoke(cli, ["ledger", "reclaim", place, "--state", str(state), *more])

    assert "the ledger is in use at" in str(reclaim(tmp_path, "--yes").exception)
    if from_file:
        schema = address.url.rpartition("%3D")[2]
        postgres_server.sql(f"DROP SCHEMA {schema} CASCADE")
    else:
        path.unlink()
    assert "add --yes" in str(reclaim(tmp_path).exception), "nothing is done before somebody says so"
    told = reclaim(tmp_path, "--yes")
    assert (told.exit_code, f"{place.partition('?')[0]} " in told.output) == (0, True), told
    assert (read_address(path) is None) == from_file
    with open_ledger(path) as ledger:
        about = instance_tables.read_facts(ledger)
        assert (about.identity, about.accepted, about.doubt) == (identity, "c0ffee", "RestoredLedger")
        assert not instance_tables.is_behind(ledger)
        ledger.database.take_lease(Holder("theirs", "another host"))
        write_rows(ledger, instance_tables.write_facts, accepted="goes on")
    again = reclaim(tmp_path, "--yes")
    if from_file:
        assert "is not a file" in str(again.exception)
        return
    assert "The ledger is already at" in again.output, "as is another host's STATE told"
    (other := tmp_path / "other").mkdir()
    assert "was not moved" in str(reclaim(other, "--yes").exception), "one that has nothing to do with it"


@pytest.mark.parametrize("tables", ["", "CREATE TABLE users (name); INSERT INTO users VALUES ('ada')"])
def test_a_file_that_is_no_ledger_stays_as_it_is_and_cannot_be_reclaimed(tmp_path: Path, tables: str) -> None:
    (other := tmp_path / "other.sqlite").touch()
    with closing(sqlite3.connect(other)) as database:
        database.executescript(tables)
    before = other.read_bytes()
    done = CliRunner().invoke(cli, ["ledger", "reclaim", str(other), "--state", str(tmp_path), "--yes"])
    assert re.search(r"other\.sqlite: the ledger cannot be read \(no such table", str(done.exception))
    assert other.read_bytes() == before


def test_a_place_with_only_an_identity_can_be_used_again_only_by_that_ledger(path: Path, tmp_path: Path) -> None:
    open_ledger(path).close()
    address = require_value(read_address(path))
    move_ledger(tmp_path, "file")
    (other := tmp_path / "other").mkdir()
    open_ledger(other / "ledger.sqlite").close()
    assert "contains a different ledger, or a newer version of this ledger" in fail_copy(other, address.url)
    move_ledger(tmp_path, address.url)
    with open_ledger(path) as ledger:
        ledger.database.take_lease(Holder("theirs", "another host"))
        write_rows(ledger, instance_tables.write_facts, accepted="back")


def test_an_existing_ledger_is_not_overwritten(postgres_server: PostgresServer, tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "ledger.sqlite")
    url = postgres_server.address().url
    move_ledger(tmp_path / "one", url)
    before = (tmp_path / "other" / "ledger.sqlite").read_bytes()
    done = CliRunner().invoke(cli, ["ledger", "copy", "--state", str(tmp_path / "other"), "--to", url])
    assert isinstance(done.exception, UsageError)
    assert "already contains a ledger" in str(done.exception)
    assert (tmp_path / "other" / "ledger.sqlite").read_bytes() == before
    assert read_address(tmp_path / "other" / "ledger.sqlite") is None
