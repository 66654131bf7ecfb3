"""The engine: decides what runs next and remembers what is done.

It does no I/O but SQLite and knows no clock; each call is given `now`.
"""
