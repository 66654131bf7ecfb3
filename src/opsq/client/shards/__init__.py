"""A client over several daemons, each of which owns a part of the submissions: its shards are one queue to it.

A **router** runs in a thread of the client's process. It speaks the protocol of a daemon with the client, over a pair
of sockets, and with each shard as any client does; so nothing else of a client knows that there are several.
"""
