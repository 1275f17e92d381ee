"""What `tidelog up` keeps in its data directory: how many brokers it has, and which process runs them now.

One lock protects the directory. It is a record lock, so the kernel knows which process holds it and lets it go when
that process ends, however it ends. `status` and `down` only ask the kernel, and so never stand in the way of an `up`.
A broker locks its log directory in the same way. So a broker that somebody started with `tidelog broker` is found too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import click

from tidelog.errors import TidelogError

_LOCK = "up.lock"
_BROKERS = "cluster.json"
_RUNNING = "up.json"
_BROKER_FILES = re.compile(r"broker-([1-9]\d*)(\.properties)?")
_FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length, process."""


class RunningBroker(NamedTuple):
    broker: int
    address: str
    metrics: str | None
    process: int
    by_hand: bool = False
    """`tidelog broker` was called for it; it is not a child of `tidelog up`."""


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
        self._made: list[Path] = []
        """The file and the directories that were not there before `make`, the innermost first."""

    def make(self, name: str) -> None:
        """The directory, for a file of this name."""
        paths = (self.path / name, self.path, *self.path.parents)
        self._made = [path for path in paths if not os.path.lexists(path)]
        self.path.mkdir(parents=True, exist_ok=True)

    def lock(self) -> None:
        """Make the directory if it is not there, and lock it for this process until it ends."""
        lock = self.path / _LOCK
        try:
            self.make(_LOCK)
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as failure:
            raise click.ClickException(f"{self.path} cannot be used: {failure.strerror}") from failure
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            os.close(self._lock)
            self._lock = None
            raise click.ClickException(self._who_runs()) from failure
        if not _is_file_of(self._lock, lock):  # who had made it has just given it up
            raise click.ClickException(f"another `tidelog up` has just used {self.path}; try again")

    def give_up(self) -> None:
        """Nothing is started: leave the directory as it was before `make` or `lock`."""
        for path in self._made:
            with contextlib.suppress(OSError):  # others have put something there
                path.rmdir() if path.is_dir() else path.unlink()

    def _who_runs(self) -> str:
        running = self.running()
        if running is None:
            return f"another `tidelog up` has just used {self.path}; try again"
        where = f" on {running.bootstrap}" if running.brokers else ""
        advice = f"; `tidelog down --data {self.path}` stops them" if running.process > 0 else ""
        return f"{process_text(running.process)} runs the brokers of {self.path} already{where}{advice}"

    def holder(self) -> int | None:
        """The process that runs the brokers; None if there is none. A process must not ask this of its own lock."""
        return _lock_holder(self.path / _LOCK)

    # How many brokers it has

    @property
    def brokers(self) -> int:
        """0 if it has none yet. A broker that was added by hand counts too: `up` starts it the next time."""
        known = 0
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads((self.path / _BROKERS).read_text())["brokers"]
            known = said if isinstance(said, int) else 0
        return max(known, self.highest_broker)

    @property
    def highest_broker(self) -> int:
        """The highest number of a broker that has files here; 0 if none has. An empty mount point does not count."""
        if not os.path.isdir(self.path):
            return 0
        found = (_BROKER_FILES.fullmatch(entry.name) for entry in self.path.iterdir())
        return max((int(match[1]) for match in found if match and self._has_files(match)), default=0)

    def _has_files(self, match: re.Match[str]) -> bool:
        from tidelog.log.names import META_PROPERTIES

        return match[2] is not None or (self.path / match[0] / META_PROPERTIES).exists()

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

    def by_hand(self) -> tuple[RunningBroker, ...]:
        """The brokers of this directory that run and are no children of `up`. Like `holder`, a process that has the
        lock must not ask this.
        """
        supervisor = self.holder()
        files = (_BROKER_FILES.fullmatch(path.name) for path in self.path.glob("broker-*.properties"))
        found = [self.broker(int(match[1])) for match in files if match]
        return tuple(
            sorted(broker for broker in found if broker is not None and _starter(broker.process) != supervisor)
        )

    def broker(self, number: int) -> RunningBroker | None:
        """The broker that runs by this properties file; None if no process holds its log directory."""
        from tidelog.config.properties import parse_properties
        from tidelog.log.names import LOCK

        try:
            text = (self.path / f"broker-{number}.properties").read_text(encoding="utf-8")
            settings = parse_properties(text)
        except (OSError, ValueError, TidelogError):
            return None
        process = _lock_holder(Path(settings.get("log.dirs", "").split(",")[0].strip()) / LOCK)
        if process is None:
            return None
        listener = settings.get("advertised.listeners", settings.get("listeners", "")).split(",")[0].strip()
        metrics = settings.get("tidelog.metrics.port", "-1")
        return RunningBroker(
            number,
            listener.rpartition("//")[2],
            f"http://127.0.0.1:{metrics}/metrics" if metrics.isdecimal() and metrics != "0" else None,
            process,
            by_hand=True,
        )

    def tell(self, running: Running) -> None:
        """All brokers are ready, or one of them has another process than before."""
        self._write(_RUNNING, running.as_json())

    def tell_stopped(self) -> None:
        (self.path / _RUNNING).unlink(missing_ok=True)

    def _write(self, name: str, content: dict[str, Any]) -> None:
        write_json(self.path / name, content)


def _is_file_of(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def _lock_holder(path: Path) -> int | None:
    """The process that holds a record lock on this file; None if there is none, or no such file. Its id is not positive
    if it runs in another container or on another machine.

    Only to read the file is enough to ask, so other users can ask too. What cannot be found out is an error: who hears
    that nothing runs may move or delete the directory.
    """
    try:
        asked = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as failure:
        raise click.ClickException(
            f"it cannot be seen whether a process uses {path}: {failure.strerror}; ask as the user who runs it"
        ) from failure
    try:
        wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = struct.unpack(_FLOCK, fcntl.fcntl(asked, fcntl.F_GETLK, wanted))
    finally:
        os.close(asked)
    return None if kind == fcntl.F_UNLCK else process


def process_text(process: int) -> str:
    """As a message names it."""
    return f"process {process}" if process > 0 else "a process outside of this container"


def _starter(process: int) -> int | None:
    """The parent of this process. If it runs elsewhere, it is taken for a child of the `up` that runs elsewhere."""
    if process <= 0:
        return process
    with contextlib.suppress(OSError, ValueError, IndexError):
        after_name = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(after_name[1])
    return None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Readers see the old content or the new one."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(content, indent=1) + "\n")
    draft.replace(path)
