"""What `tidelog up` keeps in its data directory: how many brokers it has, and which process runs them now.

One lock protects the directory. It is a record lock, so the kernel knows which process holds it and lets it go when
that process ends, however it ends. `status` and `down` only ask the kernel, and so never stand in the way of an `up`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import click

_LOCK = "up.lock"
_BROKERS = "cluster.json"
_RUNNING = "up.json"
_BROKER_DIRECTORY = re.compile(r"broker-([1-9]\d*)")
_FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


class RunningBroker(NamedTuple):
    broker: int
    address: str
    metrics: str | None
    process: int


class Running(NamedTuple):
    """A cluster that is up. It has no brokers while it starts or stops."""

    process: int
    since: str
    brokers: tuple[RunningBroker, ...]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def as_json(self) -> dict[str, Any]:
        return {
            "process": self.process,
            "since": self.since,
            "bootstrap": self.bootstrap,
            "brokers": [broker._asdict() for broker in self.brokers],
        }


class DataDirectory:
    """Always: whoever writes here holds the lock."""

    def __init__(self, path: str) -> None:
        self.path = Path(path).absolute()
        self._lock: int | None = None

    def lock(self) -> None:
        """Make the directory if it is not there, and lock it for this process until it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as failure:
            raise click.ClickException(f"{self.path} cannot be used: {failure.strerror}") from failure
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            os.close(self._lock)
            self._lock = None
            raise click.ClickException(self._who_runs()) from failure

    def _who_runs(self) -> str:
        running = self.running()
        if running is None:
            return f"another `tidelog up` has just used {self.path}; try again"
        where = f" on {running.bootstrap}" if running.brokers else ""
        return (
            f"process {running.process} runs the brokers of {self.path} already{where}; "
            f"`tidelog down --data {self.path}` stops them"
        )

    def holder(self) -> int | None:
        """The process that runs the brokers; None if there is none. A process must not ask this of its own lock."""
        try:
            asked = os.open(self.path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, process = struct.unpack(_FLOCK, fcntl.fcntl(asked, fcntl.F_GETLK, wanted))
        finally:
            os.close(asked)
        return None if kind == fcntl.F_UNLCK else process

    # How many brokers it has

    @property
    def brokers(self) -> int:
        """0 if it has none yet. A directory of an earlier version is judged by what is in it."""
        try:
            known = json.loads((self.path / _BROKERS).read_text())["brokers"]
            if isinstance(known, int):
                return known
        except (OSError, ValueError, KeyError, TypeError):
            pass
        if not os.path.isdir(self.path):
            return 0
        found = (_BROKER_DIRECTORY.fullmatch(entry.name) for entry in self.path.iterdir() if entry.is_dir())
        return max((int(match[1]) for match in found if match), default=0)

    def remember(self, brokers: int) -> None:
        self._write(_BROKERS, {"brokers": brokers})

    # Who runs them

    def running(self) -> Running | None:
        process = self.holder()
        if process is None:
            return None
        try:
            told = json.loads((self.path / _RUNNING).read_text())
            if told["process"] == process:
                brokers = tuple(RunningBroker(**broker) for broker in told["brokers"])
                return Running(process, told["since"], brokers)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return Running(process, "", ())

    def tell(self, running: Running) -> None:
        """All brokers are ready, or one of them has another process than before."""
        self._write(_RUNNING, running.as_json())

    def tell_stopped(self) -> None:
        (self.path / _RUNNING).unlink(missing_ok=True)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_json(self.path / name, content)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Readers see the old content or the new one."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)
