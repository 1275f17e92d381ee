"""What the embedded store asks of the machine that its members share: files, locks, threads and wake-up notices.

`local_machine` is the real home, `tidelog.lab.machine` a simulated one. Every failure is an OSError, as the kernel
raises it. All that the store promises rests on these calls, so a test that breaks one of them breaks it for the same
code that runs in production.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from tidelog.coordination.port import ConnectionLostError
from tidelog.errors import StorageError

Steps: TypeAlias = Iterator[float]
"""The work of one thread, cut where other processes may act in between.

Each item is how many seconds the thread wants to sleep unless it is rung; 0 means that it goes on at once.
"""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the kernel answers when the disk, the quota or the limit of this process is full. This passes."""
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""And what it answers when this process, or all together, have too many files open. This passes too."""


class DirectoryFullError(StorageError):
    """There is no room in the store's directory, or no descriptor to open a file of it. The call may be tried again."""


class NoRoomError(ConnectionLostError):
    """The same, as the caller of a session hears it."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.args = (reason,)


def refusal(what: str, directory: str, error: OSError) -> StorageError:
    """The error for the operator: what cannot be done, where, why, and what to change. Raise it `from error`."""
    text = f"cannot use {what} in {directory}: {error.strerror}"
    if error.errno in NO_ROOM:
        return DirectoryFullError(f"{text}; free some space there, or name another directory in {SETTING}")
    if error.errno in NO_DESCRIPTOR:
        return DirectoryFullError(f"{text}; raise the limit of open files (ulimit -n, fs.file-max)")
    return StorageError(f"{text}; check that directory, or name another one in {SETTING}")


SETTING = "tidelog.coordination.dir"


class Worker(Protocol):
    """A thread, as others see it."""

    def ring(self) -> None:
        """End its sleep. Any thread may call this."""
        ...

    def watch(self, path: str) -> None:
        """From now on a write to this file ends its sleep, and a write to the file before does not."""
        ...


class JournalFile(Protocol):
    """An open file that several processes append to. It can be read and written after its name was removed."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def append(self, data: bytes) -> int:
        """Write behind the end of the file, in one piece that no other append divides; how many bytes were written.

        If that is fewer than given, or if it fails, the disk is full or failing.
        """
        ...

    def write_again(self, position: int, data: bytes) -> None:
        """Write the bytes that are there already, so that the next sync writes them to the device."""
        ...

    def read(self, position: int, size: int) -> bytes: ...

    def sync(self) -> None:
        """What was written before survives a power loss when this returns.

        It fails if the device has refused bytes of this file since it was opened. The kernel drops such bytes: they
        can be read until the next power loss, and a later sync succeeds without them.
        """
        ...

    def close(self) -> None: ...


class SessionFile(Protocol):
    """The file of a session of this process: it is locked from `Machine.claim` until `release` or death."""

    @property
    def path(self) -> str: ...

    def write_time(self, time_ns: int) -> None:
        """Processes of this machine see it at once. Only the first write needs room on the disk."""
        ...

    def has_name(self) -> bool:
        """False if the file was removed, so that other processes may not find it."""
        ...

    def release(self) -> None:
        """Harmless if it was released before. The file stays."""
        ...


class SessionView(Protocol):
    """Another process's look at a session's file, kept open."""

    def is_locked(self) -> bool: ...

    def time_ns(self) -> int | None:
        """None while no time was written."""
        ...

    def close(self) -> None: ...


class Machine(Protocol):
    """The machine. All calls but `start` may wait for the device."""

    seal_bytes: int
    """A generation of the journal that has grown by this much is sealed."""

    def make_directory(self, path: str) -> None:
        """With its parents. They all survive a power loss when this returns, whichever process made them."""
        ...

    def list(self, directory: str) -> list[str]:
        """The names in it, sorted."""
        ...

    def open(self, path: str) -> JournalFile:
        """FileNotFoundError if it is missing."""
        ...

    def create(self, directory: str, prefix: str) -> JournalFile:
        """A new empty file with a name of its own."""
        ...

    def link(self, path: str, name: str) -> None:
        """Give the file a second name. FileExistsError if it is taken, FileNotFoundError if there is no such file."""
        ...

    def remove(self, path: str) -> None:
        """Harmless if it is missing."""
        ...

    def sync_directory(self, path: str) -> None:
        """Names that were made or removed in it before survive a power loss when this returns."""
        ...

    def claim(self, directory: str, prefix: str) -> SessionFile:
        """A new file with a name of its own, locked by this process."""
        ...

    def view(self, path: str) -> SessionView:
        """FileNotFoundError if it is missing."""
        ...

    def start(self, name: str, run: Callable[[Worker], Steps]) -> Worker:
        """Do the steps of `run` in a thread of that name until there are no more."""
        ...
