"""HTTP in front of a daemon: a process of its own, and a client like any other.

Nothing here is imported by the daemon or by other verbs; Starlette and uvicorn come with `opsq[gateway]`.
"""
