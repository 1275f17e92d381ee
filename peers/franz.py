"""franz-go, a client in Go, behind a small program of ours (tools/go) that is built into .cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess

from peers import home
from peers.shell import Shell

_SOURCES = home.CHECKOUT / "tools" / "go"
_DIRECTORY = home.CACHE / "franz-go"
_PROGRAM = _DIRECTORY / "clientshell"


def fetch() -> None:
    """Build the program, once for the same sources. With a filled module cache Go needs no network."""
    digest = hashlib.sha256()
    for source in sorted([*_SOURCES.glob("*.go"), *_SOURCES.glob("go.*")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    made_from = digest.hexdigest()
    stamp = home.stamp(_DIRECTORY)
    if stamp.exists() and stamp.read_text() == made_from:
        return
    go = shutil.which("go")
    if go is None:
        raise home.PeersMissingError("`go` is not on the PATH: franz-go needs Go of version 1.26 or later to be built")
    print("building the franz-go client ...", flush=True)
    shutil.rmtree(_DIRECTORY, ignore_errors=True)
    _DIRECTORY.mkdir(parents=True)
    command = [go, "build", "-mod=readonly", "-trimpath", "-o", str(_PROGRAM), "."]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(
        command, cwd=_SOURCES, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise home.PeersMissingError(f"go build failed with status {done.returncode}:\n{done.stdout}")
    stamp.write_text(made_from)


def shell() -> Shell:
    """The program, started."""
    if not home.stamp(_DIRECTORY).exists():
        raise home.PeersMissingError("the franz-go client has not been built: run `make peers`")
    return Shell([str(_PROGRAM)])


def version() -> str:
    found = re.search(r"twmb/franz-go v(\S+)", (_SOURCES / "go.mod").read_text())
    assert found is not None
    return found[1]
