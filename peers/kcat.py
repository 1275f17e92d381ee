"""kcat, the command line client on librdkafka: as Debian packages it, installed or unpacked beside us.

Where kcat is not installed, its packages are downloaded and unpacked under .cache: that needs no rights and changes
nothing outside the checkout. Nothing else of the machine's package system is touched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from peers import home

_DIRECTORY = home.CACHE / "kcat"
_ROOT = _DIRECTORY / "root"
_MISSING = "kcat is not on the PATH and could not be fetched (on Debian: apt-get install kcat): "
_DEADLINE_S = 60.0


def fetch() -> None:
    """Make kcat present; does nothing where it is."""
    if shutil.which("kcat") or home.stamp(_DIRECTORY).exists():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise home.PeersMissingError(f"{_MISSING}this is no Debian")
    print("fetching kcat ...", flush=True)
    shutil.rmtree(_DIRECTORY, ignore_errors=True)
    _ROOT.mkdir(parents=True)
    options, packages = _missing_packages()
    _apt([*options, "download", *packages], cwd=_DIRECTORY)
    archives = sorted(_DIRECTORY.glob("*.deb"))
    for archive in archives:
        _run(["dpkg", "-x", str(archive), str(_ROOT)])
    for used in ("lists", "archives"):
        shutil.rmtree(_DIRECTORY / used, ignore_errors=True)
    home.stamp(_DIRECTORY).write_text("\n".join(archive.name for archive in archives))


def _missing_packages() -> tuple[list[str], list[str]]:
    """How apt is to be called, and kcat with those of its libraries that this machine has not.

    A machine on which nobody asked for package lists yet has none: then we get some of our own.
    """
    try:
        return [], _planned([])
    except home.PeersMissingError:
        (_DIRECTORY / "lists" / "partial").mkdir(parents=True)
        (_DIRECTORY / "archives" / "partial").mkdir(parents=True)
        options = ["-o", f"Dir::State::Lists={_DIRECTORY}/lists", "-o", f"Dir::Cache={_DIRECTORY}"]
        _apt([*options, "update"])
        return options, _planned(options)


def _planned(options: list[str]) -> list[str]:
    printed = _apt([*options, "install", "--simulate", "--no-install-recommends", "kcat"])
    return re.findall(r"^Inst (\S+)", printed, re.MULTILINE)


def _apt(arguments: list[str], cwd: Path | None = None) -> str:
    return _run(["apt-get", "-q", "-y", *arguments], cwd)


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise home.PeersMissingError(f"{_MISSING}{' '.join(command)} said\n{done.stdout}")
    return done.stdout


def command(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """What to start, and in which environment."""
    installed = shutil.which("kcat")
    environment = dict(os.environ)
    if installed is None:
        if not home.stamp(_DIRECTORY).exists():
            raise home.PeersMissingError("kcat has not been fetched: run `make peers`")
        installed = str(_ROOT / "usr" / "bin" / "kcat")
        libraries = sorted((_ROOT / "usr" / "lib").glob("*-linux-*"))
        environment["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    return [installed, *arguments], environment


def run(arguments: list[str], given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Let kcat work to its end, whatever status that has."""
    whole, environment = command(arguments)
    return subprocess.run(
        whole, input=given or b"", env=environment, capture_output=True, check=False, timeout=_DEADLINE_S
    )


def version() -> str:
    """kcat's, and librdkafka's in it."""
    printed = run(["-V"]).stdout.decode()
    return " with librdkafka ".join(re.findall(r"(?:Version |librdkafka )(\d[\d.]*\d)", printed))
