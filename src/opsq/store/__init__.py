"""SQLite: one file, STRICT tables, ordered migrations.

Every SQL statement of opsq stands in this package or in `strategy/arms.py`.

It knows rows and nothing of reservations, strategies or connections; every write happens inside a transaction that
`database` begins.
"""
