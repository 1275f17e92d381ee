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
from types import TracebackType
from typing import Any, Self

import confluent_kafka

from peers import home
from peers.process import PeerFailedError

_SOURCE = home.CHECKOUT / "tools" / "c" / "rdkafka_bench.c"
_DIRECTORY = home.CACHE / "c"
_PROGRAM = _DIRECTORY / "rdkafka_bench"
_END_DEADLINE_S = 90.0
"""Longer than the program itself waits for anything."""

Settings = Mapping[str, str | int]
"""Of librdkafka; what is not named is at its default."""


def rdkafka_bench(
    mode: str,
    bootstrap: str,
    topic: str,
    *,
    partitions: int,
    records: int,
    size: int,
    settings: Settings | None = None,
    deadline_s: float = 300.0,
) -> dict[str, Any]:
    """Run it once and hand back what it printed: `seconds` of produce and consume, `p50_us` and `p99_us` of sync."""
    command = _command(mode, bootstrap, topic, (partitions, records, size), settings or {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    if done.returncode != 0:
        raise PeerFailedError(f"rdkafka_bench {mode} ended with status {done.returncode}\n{done.stderr}")
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


class SteadyProducer:
    """A producer that sends `rate` records a second to each partition while it is entered.

    Left without an error, it has checked that every record it sent was acknowledged and is stored once.
    """

    def __init__(
        self, bootstrap: str, topic: str, *, partitions: int, rate: int, size: int, settings: Settings
    ) -> None:
        quiet = {"log_level": 0, **settings}  # nobody reads what it says of lost connections while it runs
        self._command = _command("gap", bootstrap, topic, (partitions, rate, size), quiet)

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        return self

    def longest_gaps_s(self) -> list[float]:
        """By partition, the longest time between two acknowledgements since the last call; of the first call, since
        its first one. Returns when each partition has acknowledged a record that was sent after the call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write("?\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._end()
        line = self._process.stdout.readline()
        if not line:
            self._end()
        return [gap_ms / 1000 for gap_ms in json.loads(line)["longest_ms"]]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end()
        else:
            self._process.kill()
            self._process.communicate()

    def _end(self) -> None:
        try:
            _, complaint = self._process.communicate(timeout=_END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, complaint = self._process.communicate()
        if self._process.returncode != 0:
            raise PeerFailedError(f"rdkafka_bench gap ended with status {self._process.returncode}\n{complaint}")


def _command(mode: str, bootstrap: str, topic: str, numbers: tuple[int, int, int], settings: Settings) -> list[str]:
    command = [str(_program()), mode, bootstrap, topic, *map(str, numbers)]
    return command + [f"{name}={value}" for name, value in settings.items()]


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
