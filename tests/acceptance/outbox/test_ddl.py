"""opsq outbox ddl: the statements that make the tables of an outbox."""

import sqlite3

import psycopg


def test_statements_for_sqlite_run_again_and_again(opsq):
    statements = opsq.ok("outbox", "ddl", "--for", "sqlite").text
    connection = sqlite3.connect(":memory:")
    for _ in range(2):
        connection.executescript(statements)
    assert connection.execute("SELECT count(*) FROM opsq_outbox").fetchone() == (0,)
    connection.close()


def test_statements_for_postgresql_run_again_and_again(opsq, postgresql):
    statements = opsq.ok("outbox", "--for", "postgresql", "--json").json["sql"]
    with psycopg.connect(postgresql.make_database(), autocommit=True) as connection:
        for _ in range(2):
            connection.execute(statements)
        assert connection.execute("SELECT count(*) FROM opsq_outbox").fetchall() == [(0,)]


def test_database_must_be_named(opsq):
    ran = opsq("outbox", "ddl")
    assert ran.status == 2
    assert "--for postgresql or --for sqlite" in ran.err
    assert opsq("outbox", "ddl", "--for", "oracle").status == 2
