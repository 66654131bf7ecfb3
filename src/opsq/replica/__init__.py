"""The copy of a queue in an object store: Litestream keeps it up to date, and a marker says whose the queue is.

The daemon runs it, and `opsq restore` reads it. Nothing here knows chunks or requests.
"""
