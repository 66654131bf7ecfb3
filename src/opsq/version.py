"""The version of opsq, its single definition: the build, the hello frame and `opsq --version` read it here.

It must import nothing, because every process imports it at start.
"""

__version__ = "0.1.0"
