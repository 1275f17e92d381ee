"""franz-go, a client in Go: behind a small program of ours (tools/go), and its own tests, both built into .cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from peers import home
from peers.shell import Shell, die_with_parent

_SOURCES = home.CHECKOUT / "tools" / "go"
_DIRECTORY = home.CACHE / "franz-go"
_PROGRAM = _DIRECTORY / "clientshell"
_TEST_DIRECTORY = home.CACHE / "franz-go-tests"
_TESTS = _TEST_DIRECTORY / "kgo.test"
_TEST_DEADLINE_S = 120.0


def fetch() -> None:
    """Build both, once for the same sources. With a filled module cache Go needs no network."""
    digest = hashlib.sha256()
    for source in sorted([*_SOURCES.glob("*.go"), *_SOURCES.glob("go.*")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    _make(_DIRECTORY, digest.hexdigest(), ["build", "-o", str(_PROGRAM), "."])
    _make(_TEST_DIRECTORY, version(), ["test", "-c", "-o", str(_TESTS), "github.com/twmb/franz-go/pkg/kgo"])


def _make(directory: Path, made_from: str, arguments: list[str]) -> None:
    stamp = home.stamp(directory)
    if stamp.exists() and stamp.read_text() == made_from:
        return
    go = shutil.which("go")
    if go is None:
        raise home.PeersMissingError("`go` is not on the PATH: franz-go needs Go of version 1.26 or later to be built")
    print(f"building {directory.name} ...", flush=True)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    command = [go, arguments[0], "-mod=readonly", "-trimpath", *arguments[1:]]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(
        command, cwd=_SOURCES, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode != 0:
        raise home.PeersMissingError(f"go {arguments[0]} failed with status {done.returncode}:\n{done.stdout}")
    stamp.write_text(made_from)


def run_tests(bootstrap: str, run: str, skip: str, records: int) -> str:
    """Let tests of franz-go's own play on a broker; what they printed, which names those that passed."""
    if not home.stamp(_TEST_DIRECTORY).exists():
        raise home.PeersMissingError("the tests of franz-go have not been built: run `make peers`")
    settings = {
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(records),
        "KGO_TEST_MAX_TOPIC_PARTS": "4",
        "KGO_LOG_LEVEL": "none",
    }
    command = [str(_TESTS), "-test.v", "-test.parallel", "8", "-test.run", run, "-test.skip", skip]
    done = subprocess.run(
        command,
        cwd=_TEST_DIRECTORY,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=_TEST_DEADLINE_S,
        check=False,
        preexec_fn=die_with_parent,
    )
    return done.stdout


def shell() -> Shell:
    """The program, started."""
    if not home.stamp(_DIRECTORY).exists():
        raise home.PeersMissingError("the franz-go client has not been built: run `make peers`")
    return Shell([str(_PROGRAM)])


def version() -> str:
    found = re.search(r"twmb/franz-go v(\S+)", (_SOURCES / "go.mod").read_text())
    assert found is not None
    return found[1]
