"""Running programs on chunks: child processes and the slots that they fill.

This package must not be imported by the client or the daemon; children are run by one thread, without an event loop.
"""
