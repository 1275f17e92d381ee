"""The wheel as a user meets it: in a clean environment, outside of the checkout, with its dependencies and no more.

`make test-pythons` names the wheel to try, for each Python. Else one is built, for this Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.pythons import ROOT, build, constraints

pytestmark = [pytest.mark.long, pytest.mark.minutes]  # .ci/run comes here by make test-pythons

_COMPILED = """
import importlib, shutil, sys
slow = [name for name in sys.argv[1:] if importlib.import_module(name).__file__.endswith(".py")]
print(slow if any(map(shutil.which, ("cc", "gcc", "clang"))) else [])
"""


class Installed:
    """tidelog in a new environment, run from a directory of its own, without variables that point to ours."""

    def __init__(self, wheel: Path, directory: Path) -> None:
        self._work = directory / "work"
        self._work.mkdir()
        self._bin = directory / "environment" / "bin"
        subprocess.run([sys.executable, "-m", "venv", self._bin.parent], check=True)
        (directory / "constraints.txt").write_text(constraints())
        self.run("python", "-m", "pip", "install", "--quiet", "--constraint", "../constraints.txt", str(wheel))

    def run(self, program: str, *words: str, stdin: str = "", **settings: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIDELOG_"))}
        done = subprocess.run(
            [self._bin / program, *words],
            cwd=self._work,
            env=inherited | settings,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    named = os.environ.get("TIDELOG_WHEEL")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Installed(Path(named) if named else build(version, Path(sys.executable)), tmp_path)


def test_the_wheel_works_in_a_clean_environment(installed: Installed) -> None:
    assert installed.run("tidelog", "--version").startswith("tidelog, version ")
    compiled = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["tidelog"]["compiled"]
    assert installed.run("python", "-c", _COMPILED, *compiled) == "[]\n"

    up = installed.run("tidelog", "up", "--detach", "--port", "0", "--metrics-port", "-1")
    try:
        [bootstrap] = [line.split()[3] for line in up.splitlines() if line.startswith("tidelog is up:")]
        settings = {"TIDELOG_BOOTSTRAP": bootstrap}
        installed.run("tidelog", "topics", "create", "orders", **settings)
        installed.run("tidelog", "produce", "orders", stdin="first\nsecond\n", **settings)
        read = installed.run("tidelog", "consume", "orders", **settings)
        assert read.split() == ["first", "second"]
    finally:
        installed.run("tidelog", "down")
