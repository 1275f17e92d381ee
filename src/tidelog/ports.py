"""Where the machine comes in: time, randomness and disk.

Everything that could differ between two runs reaches the code through these three, so that the
simulator can own it. The real homes are in `tidelog.host`, the simulated ones in `tidelog.lab`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tidelog.types import Buffer

T = TypeVar("T")


class Clock(Protocol):
    """What time it is. Timers belong to the event loop; this is for what is written down or compared."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as record timestamps count them. May jump."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some start. Never falls."""
        ...

    def monotonic_ms(self) -> int:
        """The same in whole milliseconds. Clocks inherit it."""
        return self.monotonic_ns() // 1_000_000


class Random(Protocol):
    """Chance. `random.Random` and `random.SystemRandom` fit."""

    def random(self) -> float: ...
    def randrange(self, start: int, stop: int, /) -> int: ...
    def getrandbits(self, bits: int, /) -> int: ...
    def randbytes(self, size: int, /) -> bytes: ...


class File(Protocol):
    """An open file, written and read at positions. It has no cursor, so readers never disturb each other.

    Every failure is a StorageError; to use it after it was closed is a ValueError, a fault of the caller.
    """

    path: str

    def size(self) -> int: ...

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """All of them, gathered into one write. After a failure any prefix may have been written."""
        ...

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""
        ...

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        """Like read_at if that needs no wait for the device, else None: then submit read_at."""
        ...

    def send_cached(self, socket: int, position: int, size: int) -> int | None:
        """Some of it straight into a socket that does not block, without copying; how much, 0 if that takes nothing.

        None if it cannot be done so: it would have to wait for the device, or this machine has no such way.
        """
        ...

    def sync(self) -> None:
        """What was written survives a power loss when this returns."""
        ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """An exclusive claim on a directory, given up by the death of its process."""

    def release(self) -> None: ...


class Disk(Protocol):
    """Files by path. Calls work at once, on the caller's thread; `submit` is the way to the disk threads.

    Names made or removed survive a power loss only after `sync_directory`. Removing or replacing a name
    closes the Files that are open under it.
    Every failure is a StorageError, but for FileNotFoundError where a file was expected.
    """

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. The descriptor behind it may be closed and opened again as needed."""
        ...

    def exists(self, path: str) -> bool: ...

    def file_size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def list(self, directory: str) -> list[str]:
        """Names in it, sorted, so that no run depends on the order of a directory."""
        ...

    def make_directory(self, path: str) -> None:
        """With its parents; no error if it is there."""
        ...

    def read_file(self, path: str) -> bytes: ...

    def write_file(self, path: str, data: Buffer) -> None:
        """Replace the whole file so that a crash leaves the old or the new one: temporary, sync, rename, sync."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Replaces the target. Atomic. Open Files follow: `path` changes, also under a renamed directory."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """With all that is in it."""
        ...

    def sync_directory(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """Of the volume that holds the path."""
        ...

    def identity(self, directory: str) -> str:
        """What tells it from every other directory of this boot, whatever its name is. A copy has another one."""
        ...

    def lock(self, path: str) -> Lock:
        """StorageError if another process holds it."""
        ...

    def submit(self, key: str, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run on a disk thread. Work with the same key runs one at a time, in the order it was submitted.

        It is done even if the future is cancelled; then nobody hears of its result.
        """
        ...


class Capacity(NamedTuple):
    """What the machine gives this process, as far as a broker divides it."""

    client_connections: int
    """The share of the file descriptors that connections of clients may take."""
    broker_connections: int
    """A reserve beyond it, for connections of other brokers."""
    memory_bytes: int


class Ports(Protocol):
    """The three together, handed down from the process that starts things, and which boot of the machine this is."""

    @property
    def boot_id(self) -> str:
        """Another one after each start of the kernel; what a process left in the page cache outlives the process, but
        not the boot. Empty if the machine does not say: then no earlier process is taken to be of this boot."""
        ...

    @property
    def capacity(self) -> Capacity: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def random(self) -> Random: ...
    @property
    def disk(self) -> Disk: ...
