"""The version of opsq, in its only place: the build, the hello frame and `opsq --version` read it here.

It must import nothing, since every process start passes through it.
"""

__version__ = "0.1.0"
