"""The file of a session: its lock, which ends with the process, and its lease, which ends with its attention.

The lock tells of death at once; the lease, a time that the owner keeps writing into the file, tells of a process that
is there but stopped. Neither needs the journal, so no trouble there can end a session.

The time is the machine's monotonic clock, which all its processes share and which never jumps. It stands still while
the machine is suspended, and that is right: all members stand still too, and none has to lose its session because a
notebook was closed.
"""

from __future__ import annotations

import contextlib
import logging
import os

from tidelog.coordination.machine import Machine, SessionView, refusal
from tidelog.ports import Clock

PREFIX = "session-"
_GRACE_NS = 50_000_000
"""Others let it lapse a little later than its owner does, so the owner always knows first."""

_log = logging.getLogger(__name__)


class Lease:
    """The owner's side. `renew` and `release` belong to one thread, all else to the loop.

    Always: others take it for living until `renewed_ns` + timeout at least, for as long as the lock is held.
    """

    def __init__(self, machine: Machine, directory: str, timeout_ms: int, clock: Clock) -> None:
        self._clock = clock
        self._timeout_ns = timeout_ms * 1_000_000
        self._is_broken = False
        try:
            self._file = machine.claim(directory, PREFIX)
            self.name = os.path.basename(self._file.path)
            self.beat_ns = self.renewed_ns = clock.monotonic_ns()
            self._take_room(machine)
        except OSError as error:
            raise refusal("the file of a session", directory, error) from error

    def _take_room(self, machine: Machine) -> None:
        """The first write needs room on the disk. No later one does, so a disk that fills up ends no session."""
        try:
            self._file.write_time(self.renewed_ns)
        except OSError:
            self._file.release()
            with contextlib.suppress(OSError):
                machine.remove(self._file.path)
            raise

    def is_current(self) -> bool:
        return self._clock.monotonic_ns() < self.renewed_ns + self._timeout_ns

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
        try:
            # Others wait for a whole timeout when they do not find the file, so a lease without a file is not renewed.
            if not self._file.has_name():
                self._complain("it was removed")
                return
            self._file.write_time(beat_ns)
        except OSError as error:
            self._complain(error.strerror or repr(error))
            return
        self._is_broken = False
        # If this thread was stopped before the write, others may have seen it lapse: then it has lapsed.
        if self.is_current():
            self.renewed_ns = beat_ns

    def _complain(self, reason: str) -> None:
        if not self._is_broken:
            _log.error("the session ends soon, for its file %s cannot be written: %s", self._file.path, reason)
        self._is_broken = True

    def release(self) -> None:
        """Give up the lock; everybody sees that the session is over. The file stays for whoever ends it."""
        self._file.release()


class Probe:
    """The others' side of a session's file."""

    def __init__(self, machine: Machine, directory: str, name: str, timeout_ms: int, now_ns: int) -> None:
        self._over_after_ns = timeout_ms * 1_000_000 + _GRACE_NS
        self._looked_ns = now_ns
        self._view: SessionView | None = None
        with contextlib.suppress(FileNotFoundError):
            self._view = machine.view(os.path.join(directory, name))

    def is_dead(self, now_ns: int) -> bool:
        """Without a file the lock cannot be seen: the owner notices that too, and its lease runs out."""
        if self._view is None:
            return now_ns >= self._looked_ns + self._over_after_ns
        if not self._view.is_locked():
            return True
        time_ns = self._view.time_ns()
        return time_ns is not None and now_ns >= time_ns + self._over_after_ns

    def close(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None


def remove_orphans(machine: Machine, directory: str, members: list[str]) -> None:
    """Files of processes that died before their session was known. One without a time is just being made."""
    for name in machine.list(directory):
        if name.startswith(PREFIX) and name not in members:
            path = os.path.join(directory, name)
            with contextlib.suppress(FileNotFoundError):
                view = machine.view(path)
                if view.time_ns() is not None and not view.is_locked():
                    machine.remove(path)
                view.close()
