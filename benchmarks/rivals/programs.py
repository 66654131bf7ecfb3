"""The foreign programs that benchmarks need, and what to install when one is not there.

It finds and starts programs; it measures nothing.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from typing import Protocol


class RivalMissingError(Exception):
    """A rival is not installed, so the benchmark cannot say anything."""


class Rival(Protocol):
    """What a benchmark cannot do without."""

    def find(self) -> str:
        """Where it is.

        Raises:
            RivalMissingError: it is not installed.
        """


@dataclass(frozen=True, slots=True)
class Program:
    """A program on PATH. `says` is what its version text must contain, where another of that name would not do."""

    name: str
    package: str
    version_option: str = "--version"
    says: str = ""

    def find(self) -> str:
        """Its full path.

        Raises:
            RivalMissingError: it is not on PATH, or is not the one meant.
        """
        path = shutil.which(self.name)
        if path is None:
            raise RivalMissingError(f"the rival {self.name} is not installed; try: apt-get install {self.package}")
        if self.says:
            asked = subprocess.run([path, self.version_option], capture_output=True, text=True, check=False)
            if self.says not in asked.stdout + asked.stderr:
                raise RivalMissingError(f"{path} is not {self.says} {self.name}; try: apt-get install {self.package}")
        return path


@dataclass(frozen=True, slots=True)
class Package:
    """A package of Python, which the benchmarks import."""

    name: str

    def find(self) -> str:
        """Where it is.

        Raises:
            RivalMissingError: it is not installed.
        """
        found = importlib.util.find_spec(self.name)
        if found is None:
            raise RivalMissingError(f"the rival {self.name} is not installed; try: .venv/bin/pip install {self.name}")
        return found.origin or ""


BEANSTALKD = Program("beanstalkd", "beanstalkd", "-v", "beanstalkd")
CP = Program("cp", "coreutils", says="GNU coreutils")
SYNC = Program("sync", "coreutils", says="GNU coreutils")
WRK = Program("wrk", "wrk", "-v", "wrk")
REDIS = Program("redis-server", "redis-server", "--version", "Redis server")
PROCRASTINATE = Package("procrastinate")
RQ = Package("rq")
DRAMATIQ = Package("dramatiq")
PARALLEL = Program("parallel", "parallel", says="GNU parallel")
TR = Program("tr", "coreutils")
TRUE = Program("true", "coreutils")
XARGS = Program("xargs", "findutils")
