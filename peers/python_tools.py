"""Tools written in Python, each in a virtual environment of its own under .cache: they never meet our dependencies.

tools/python/NAME/requirements.lock says what is installed; what lies beside it is what we let the tool run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from peers import home

_SOURCES = home.CHECKOUT / "tools" / "python"
_NOT_THEIRS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class PythonTool:
    """By the name of its distribution, which is also that of its directories."""

    name: str

    @property
    def sources(self) -> Path:
        return _SOURCES / self.name

    @property
    def _directory(self) -> Path:
        return home.CACHE / self.name

    def fetch(self) -> None:
        """Install what the lock file says, once for the same lock file."""
        lock = (self.sources / "requirements.lock").read_text()
        stamp = home.stamp(self._directory)
        if stamp.exists() and stamp.read_text() == lock:
            return
        print(f"installing {self.name} ...", flush=True)
        shutil.rmtree(self._directory, ignore_errors=True)
        # The pip of this environment installs into that one: it starts without, which is faster.
        _run([sys.executable, "-m", "venv", "--without-pip", str(self._directory)])
        into = ["--python", str(self._directory / "bin" / "python")]
        locked = ["--require-hashes", "--no-deps", "--requirement", str(self.sources / "requirements.lock")]
        _run([sys.executable, "-m", "pip", *into, "install", "--quiet", "--no-compile", *locked])
        stamp.write_text(lock)

    def program(self, name: str = "python") -> str:
        """The path of a program in its environment."""
        if not home.stamp(self._directory).exists():
            raise home.PeersMissingError(f"{self.name} has not been installed: run `python -m peers --tools`")
        return str(self._directory / "bin" / name)

    def version(self, distribution: str = "") -> str:
        """Its own, or that of what it brings."""
        lock = (self.sources / "requirements.lock").read_text()
        found = re.search(rf"^{re.escape(distribution or self.name)}==(\S+)", lock, re.MULTILINE)
        assert found is not None
        return found[1]


FASTSTREAM = PythonTool("faststream")
QUIX_STREAMS = PythonTool("quixstreams")
KASKADE = PythonTool("kaskade")


def fetch() -> None:
    for tool in (FASTSTREAM, QUIX_STREAMS, KASKADE):
        tool.fetch()


def environment(**settings: str) -> dict[str, str]:
    """For a tool's process: ours, without what would lead it to our packages."""
    ours = {name: value for name, value in os.environ.items() if name not in _NOT_THEIRS}
    return {**ours, "PYTHONUNBUFFERED": "1", **settings}


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise home.PeersMissingError(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout}")
