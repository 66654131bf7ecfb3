"""One queue made of several daemons, each the only owner of its file: a router inside the client's process.

It must not know how a client uses the queue, and decides nothing that a daemon decides.
"""
