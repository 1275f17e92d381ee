"""The real home of the embedded store's files and threads: this machine, with flock, inotify and O_APPEND."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import tempfile
import threading  # noqa: TID251  behind the Coordination port
import weakref
from collections.abc import Callable

from tidelog.coordination.machine import Steps, Worker
from tidelog.coordination.notice import Notice

_TIME_BYTES = 8


class LocalJournalFile:
    """A descriptor with O_APPEND: the kernel gives each append its place."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._file = descriptor

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def append(self, data: bytes) -> int:
        return os.write(self._file, data)

    def write_again(self, position: int, data: bytes) -> None:
        """With O_APPEND set, Linux ignores the position."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags & ~os.O_APPEND)
        try:
            while data:
                written = os.pwrite(self._file, data, position)
                position, data = position + written, data[written:]
        finally:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags)

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._file, size, position)

    def sync(self) -> None:
        os.fdatasync(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class LocalSessionFile:
    """Holds an exclusive flock.

    The time is written with pwrite and not through mapped memory: where a device is full or fails, a write to mapped
    memory ends the process with SIGBUS, and a pwrite returns an error.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._file = descriptor
        _ours.add(self)

    def write_time(self, time_ns: int) -> None:
        written = os.pwrite(self._file, time_ns.to_bytes(_TIME_BYTES, sys.byteorder), 0)
        if written != _TIME_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # it wrote as much as there was room for

    def has_name(self) -> bool:
        return os.fstat(self._file).st_nlink > 0

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


_ours: weakref.WeakSet[LocalSessionFile] = weakref.WeakSet()


def _release_in_child() -> None:
    """A forked child shares the lock until it closes it, and would keep its parent's session alive."""
    for file in list(_ours):
        file.release()


os.register_at_fork(after_in_child=_release_in_child)


class LocalSessionView:
    """An open descriptor, so that each question costs one system call or two."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def is_locked(self) -> bool:
        """A shared lock fails while the owner holds its own, and does not disturb other processes that ask."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self._file, fcntl.LOCK_UN)
        return False

    def time_ns(self) -> int | None:
        data = os.pread(self._file, _TIME_BYTES, 0)
        return int.from_bytes(data, sys.byteorder) if len(data) == _TIME_BYTES else None

    def close(self) -> None:
        os.close(self._file)


class LocalMachine:
    """This machine. It keeps nothing, so any number of these are one and the same."""

    seal_bytes = 4 << 20

    def make_directory(self, path: str) -> None:
        """Syncs the ancestors too, up to the mount point: another process may have made them and died before that."""
        os.makedirs(path, exist_ok=True)
        path = os.path.abspath(path)
        device = os.stat(path).st_dev
        while (parent := os.path.dirname(path)) != path and os.stat(parent).st_dev == device:
            with contextlib.suppress(PermissionError):  # this user did not make it, then
                self.sync_directory(parent)
            path = parent

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def open(self, path: str) -> LocalJournalFile:
        return LocalJournalFile(path, os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))

    def create(self, directory: str, prefix: str) -> LocalJournalFile:
        descriptor, path = tempfile.mkstemp(prefix=prefix, dir=directory)
        return LocalJournalFile(path, descriptor)

    def link(self, path: str, name: str) -> None:
        os.link(path, name)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def claim(self, directory: str, prefix: str) -> LocalSessionFile:
        """The lock comes first: others take a file with a time in it and no lock for one that was left behind."""
        descriptor, path = tempfile.mkstemp(prefix=prefix, dir=directory)  # is not inherited by what is executed
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return LocalSessionFile(path, descriptor)

    def view(self, path: str) -> LocalSessionView:
        return LocalSessionView(path)

    def start(self, name: str, run: Callable[[Worker], Steps]) -> Notice:
        notice = Notice()
        threading.Thread(target=_do, args=(run, notice), name=name, daemon=True).start()
        return notice


def _do(run: Callable[[Worker], Steps], notice: Notice) -> None:
    try:
        for patience_s in run(notice):
            if patience_s:
                notice.wait(patience_s)
    finally:
        notice.close()
