"""kafkajs, a client in JavaScript, behind a small program of ours (tools/js); npm installs it into .cache."""

from __future__ import annotations

import json
import shutil
import subprocess

from peers import home
from peers.shell import Shell

_SOURCES = home.CHECKOUT / "tools" / "js"
_DIRECTORY = home.CACHE / "kafkajs"


def fetch() -> None:
    """Install what the lock file says, once for the same lock file."""
    lock = (_SOURCES / "package-lock.json").read_text()
    stamp = home.stamp(_DIRECTORY)
    if stamp.exists() and stamp.read_text() == lock:
        return
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise home.PeersMissingError("`node` and `npm` are not on the PATH: kafkajs needs Node of version 18 or later")
    print("installing kafkajs ...", flush=True)
    shutil.rmtree(_DIRECTORY, ignore_errors=True)
    _DIRECTORY.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_SOURCES / name, _DIRECTORY / name)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(
        command, cwd=_DIRECTORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise home.PeersMissingError(f"npm ci failed with status {done.returncode}:\n{done.stdout}")
    stamp.write_text(lock)


def shell() -> Shell:
    """The program, started; it is told where npm put kafkajs."""
    node = shutil.which("node")
    if node is None or not home.stamp(_DIRECTORY).exists():
        raise home.PeersMissingError("kafkajs has not been installed: run `make peers`")
    return Shell([node, str(_SOURCES / "clientshell.js"), str(_DIRECTORY)])


def version() -> str:
    packages = json.loads((_SOURCES / "package-lock.json").read_text())["packages"]
    return str(packages["node_modules/kafkajs"]["version"])
