"""The file of a session: its lock, which ends with the process, and its lease, which ends with its attention.

The lock tells of death at once; the lease, a time that the owner keeps writing into the mapped file, tells of a process
that is there but stopped. Neither needs the journal, so no trouble there can end a session.

The time is the machine's monotonic clock, which all its processes share. It stands still while the machine is
suspended, and that is right: so do all members, and none has to lose its session because a notebook was closed.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import sys
import tempfile
import weakref

from tidelog.ports import Clock

PREFIX = "session-"
_GRACE_NS = 50_000_000
"""Others let it lapse a little later than its owner does, who so always knows first."""


class Lease:
    """The owner's side. `renew` and `release` belong to one thread, all else to the loop.

    Always: others hold it for living until `renewed_ns` + timeout at least, for as long as the lock is held.
    """

    def __init__(self, directory: str, timeout_ms: int, clock: Clock) -> None:
        self._clock = clock
        self._timeout_ns = timeout_ms * 1_000_000
        self._file, self.path = tempfile.mkstemp(prefix=PREFIX, dir=directory)  # is not inherited by what is executed
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._file, 8)
        self._map = mmap.mmap(self._file, 8)
        self._time = memoryview(self._map).cast("q")
        self.name = os.path.basename(self.path)
        self.beat_ns = self.renewed_ns = self._time[0] = clock.monotonic_ns()
        _ours.add(self)

    def is_current(self) -> bool:
        return self._clock.monotonic_ns() < self.over_ns

    @property
    def over_ns(self) -> int:
        return self.renewed_ns + self._timeout_ns

    def beat(self) -> None:
        """The loop turns; so the lease may be renewed as from now."""
        self.beat_ns = self._clock.monotonic_ns()

    def renew(self) -> None:
        beat_ns = self.beat_ns
        if beat_ns == self.renewed_ns:
            return
        self._time[0] = beat_ns
        # If this thread was stopped before the write, others may have seen it lapse: then it has lapsed.
        if self.is_current():
            self.renewed_ns = beat_ns

    def release(self) -> None:
        """Give up the lock; everybody sees that the session is over. The file stays for whoever ends it."""
        if self._file >= 0:
            self._time.release()
            self._map.close()
            os.close(self._file)
            self._file = -1


_ours: weakref.WeakSet[Lease] = weakref.WeakSet()


def _release_in_child() -> None:
    """A forked child shares the lock until it closes it, and would keep its parent's session alive."""
    for lease in list(_ours):
        lease.release()


os.register_at_fork(after_in_child=_release_in_child)


class Probe:
    """The others' side of a session's file. Keeps it open, so that asking costs two system calls."""

    def __init__(self, directory: str, name: str, timeout_ms: int) -> None:
        self._over_after_ns = timeout_ms * 1_000_000 + _GRACE_NS
        self._file = -1
        with contextlib.suppress(FileNotFoundError):
            self._file = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC)

    def is_dead(self, now_ns: int) -> bool:
        """Without a file it was ended before, or its owner gave up."""
        if self._file < 0 or self._is_free():
            return True
        return now_ns >= int.from_bytes(os.pread(self._file, 8, 0), sys.byteorder) + self._over_after_ns

    def _is_free(self) -> bool:
        """A shared lock fails while the owner holds its own, and does not disturb others that ask."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return True

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def remove_orphans(directory: str, members: list[str]) -> None:
    """Files of processes that died before their session was known. One of another size is just being made."""
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if name.startswith(PREFIX) and name not in members:
            with contextlib.suppress(FileNotFoundError):
                probe = Probe(directory, name, 0)
                if os.path.getsize(path) == 8 and probe._is_free():
                    os.unlink(path)
                probe.close()
