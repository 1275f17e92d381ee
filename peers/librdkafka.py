"""A measuring client in C over librdkafka: tools/c/rdkafka_bench.c, linked against the library of confluent-kafka.

That library is on every machine that has our .venv, pinned by the lock; nothing else must be installed but a C
compiler. The program is made when it is first needed, and anew when its source or the library changes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka

from peers import home
from peers.process import PeerFailedError

_SOURCE = home.CHECKOUT / "tools" / "c" / "rdkafka_bench.c"
_DIRECTORY = home.CACHE / "c"
_PROGRAM = _DIRECTORY / "rdkafka_bench"


def rdkafka_bench(
    mode: str,
    bootstrap: str,
    topic: str,
    *,
    partitions: int,
    records: int,
    size: int,
    settings: Mapping[str, str | int] | None = None,
    deadline_s: float = 300.0,
) -> dict[str, Any]:
    """Run it once and hand back what it printed: `seconds` of produce and consume, `p50_us` and `p99_us` of sync."""
    command = [str(_program()), mode, bootstrap, topic, str(partitions), str(records), str(size)]
    command += [f"{name}={value}" for name, value in (settings or {}).items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    if done.returncode != 0:
        raise PeerFailedError(f"rdkafka_bench {mode} ended with status {done.returncode}\n{done.stderr}")
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def _program() -> Path:
    library = _library()
    made_from = hashlib.sha256(_SOURCE.read_bytes() + str(library).encode()).hexdigest()
    if home.stamp(_DIRECTORY).exists() and home.stamp(_DIRECTORY).read_text() == made_from:
        return _PROGRAM
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    command = [_compiler(), "-O2", "-Wall", str(_SOURCE), str(library), f"-Wl,-rpath,{library.parent}"]
    done = subprocess.run([*command, "-o", str(_PROGRAM)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise home.PeersMissingError(f"{_SOURCE.name} does not compile:\n{done.stderr}")
    home.stamp(_DIRECTORY).write_text(made_from)
    return _PROGRAM


def _compiler() -> str:
    try:
        return home.program("cc")
    except home.PeersMissingError:
        raise home.PeersMissingError("`cc` is not on the PATH: the measuring client needs a C compiler") from None


def _library() -> Path:
    """The file that confluent-kafka has loaded into this process, wherever its installation put it."""
    loaded = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    for path in sorted(loaded):
        if Path(path).name.startswith("librdkafka"):
            return Path(path)
    version = confluent_kafka.libversion()[0]
    raise home.PeersMissingError(
        f"confluent-kafka (librdkafka {version}) has its librdkafka linked in: install its wheel (`make setup`)"
    )
