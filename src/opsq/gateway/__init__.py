"""HTTP in front of a daemon: a process of its own, and a client like any other.

Nothing here is imported by the daemon, nor by other verbs but `opsq queue`, which needs none of what `opsq[gateway]`
installs.
"""
