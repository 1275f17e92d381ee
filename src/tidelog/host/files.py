"""Open files without open descriptors: a pool lends a descriptor to a file for as long as it is used.

A broker has more partitions than it may have descriptors. So a RealFile is only a path, and its
descriptor can be taken away whenever nobody is using it; the next use opens the path again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from tidelog.errors import NoDescriptorError
from tidelog.host.failures import OUT_OF_DESCRIPTORS, SYNC, storage_error
from tidelog.types import Buffer

T = TypeVar("T")

_log = logging.getLogger(__name__)

_IOV_MAX = os.sysconf("SC_IOV_MAX")
_NO_DESCRIPTOR = -1
_PROBE_BYTES = 128 * 1024
"""The kernel reads ahead and gives up pages in stretches of about this size."""
_RETRY_S = 0.02
_TELL_EVERY_S = 60.0
_GIVEN_UP_AT_ONCE = 8


class RealFile:
    """One file, read and written at positions, from any thread.

    A call pins the descriptor and then looks at it; who wants to take it away first hides it and then looks
    at the pins. So one of the two always sees the other, and an append takes no lock.
    """

    __slots__ = ("_closed", "_fd", "_nowait", "_pins", "_pool", "_used", "path")

    def __init__(self, pool: DescriptorPool, path: str) -> None:
        self.path = path
        self._pool = pool
        self._fd = _NO_DESCRIPTOR
        self._pins: list[None] = []
        """One entry per call that is under way: adding and dropping one is a single step for other threads."""
        self._used = False
        """Since it was opened or last passed over; being opened for a single read does not count."""
        self._closed = False
        self._nowait = True

    def size(self) -> int:
        fd = self._pin()
        try:
            return os.fstat(fd).st_size
        except OSError as failure:
            raise storage_error("stat", self.path, failure) from failure
        finally:
            self._unpin()

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        fd = self._pin()
        try:
            written = os.pwritev(fd, buffers, position) if len(buffers) <= _IOV_MAX else 0
            if written != sum(map(len, buffers)):
                _write_rest(fd, position, buffers, written)
        except OSError as failure:
            raise storage_error("write", self.path, failure) from failure
        finally:
            self._unpin()

    def read_at(self, position: int, size: int) -> bytes:
        fd = self._pin()
        try:
            data = os.pread(fd, size, position)
            if len(data) == size or not data:
                return data
            parts = [data]
            missing = size - len(data)
            while missing and (data := os.pread(fd, missing, position + size - missing)):
                parts.append(data)
                missing -= len(data)
            return b"".join(parts)
        except OSError as failure:
            raise storage_error("read", self.path, failure) from failure
        finally:
            self._unpin()

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        if not self._nowait:
            return None
        try:
            fd = self._pin()
        except NoDescriptorError:
            return None  # a disk thread waits for one
        try:
            data = bytearray(size)
            count = os.preadv(fd, [data], position, os.RWF_NOWAIT)
            if count < size:
                # Short either because the file ends here or because the next page is not in memory.
                if position + count < os.fstat(fd).st_size:
                    return None
                del data[count:]
            return data
        except BlockingIOError:
            return None
        except OSError as failure:
            if failure.errno == errno.EOPNOTSUPP:  # tmpfs, and some file systems on the network
                self._nowait = False
                return None
            raise storage_error("read", self.path, failure) from failure
        finally:
            self._unpin()

    def send_cached(self, socket: int, position: int, size: int) -> int | None:
        """sendfile would wait for pages that are not in memory, so it is looked before whether they seem to be."""
        if not self._nowait:
            return None
        try:
            fd = self._pin()
        except NoDescriptorError:
            return None
        try:
            return os.sendfile(socket, fd, position, size) if _is_cached(fd, position, size) else None
        except BlockingIOError:
            return 0
        except OSError:
            return None  # of the socket, or of the file: who reads and writes the usual way finds out which
        finally:
            self._unpin()

    def sync(self) -> None:
        """fdatasync: the data, and of the inode what is needed to read it back, so its size too; not its times.

        After a failure the kernel may forget that pages were dirty, so trying again proves nothing: the
        log directory is lost, which is what StorageError means.
        """
        fd = self._pin()
        try:
            os.fdatasync(fd)
        except OSError as failure:
            raise storage_error(SYNC, self.path, failure) from failure
        finally:
            self._unpin()

    def truncate(self, size: int) -> None:
        fd = self._pin()
        try:
            os.ftruncate(fd, size)
        except OSError as failure:
            raise storage_error("truncate", self.path, failure) from failure
        finally:
            self._unpin()

    def close(self) -> None:
        self._pool.close_file(self)

    def _pin(self) -> int:
        """The descriptor, which stays open until `_unpin`."""
        self._pins.append(None)
        fd = self._fd
        if fd >= 0:
            self._used = True
            return fd
        try:
            return self._pool.descriptor_for(self)
        except BaseException:
            self._unpin()
            raise

    def _unpin(self) -> None:
        self._pins.pop()
        if self._closed:
            self._pool.close_orphans()


class DescriptorPool:
    """At most `max_open` descriptors; the first to go is one not used since its last turn (the CLOCK rule for LRU).

    Two locks. `_lock` guards the books and is held for a few instructions only. `_names` is held while a
    path is opened or renamed, so that no file is opened by a name that is just being given to another one.
    The pool exceeds `max_open` only by the descriptors that are in use at this moment, one per thread.
    """

    def __init__(self, max_open: int) -> None:
        self.max_open = max_open
        self._lock = threading.Lock()
        self._names = threading.Lock()
        self._ring: OrderedDict[RealFile, None] = OrderedDict()
        """Files that have a descriptor; the hand of the clock is at its front."""
        self._orphans: list[tuple[RealFile, int]] = []
        """Descriptors of files that were closed while a call was under way."""
        self._files: dict[str, list[RealFile]] = {}

    @property
    def open_count(self) -> int:
        return len(self._ring) + len(self._orphans)

    def open_file(self, path: str, *, create: bool) -> RealFile:
        """FileNotFoundError if it is not there and is not to be made. It gets its descriptor at its first use."""
        return self.patiently(lambda: self._open_file(path, create))

    def _open_file(self, path: str, create: bool) -> RealFile:
        file = RealFile(self, path)
        with self._names:
            if create:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
            elif stat.S_ISDIR(os.stat(path).st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            with self._lock:
                self._files.setdefault(path, []).append(file)
        return file

    def descriptor_for(self, file: RealFile) -> int:
        """Open a pinned file that has none, unless another thread was faster."""
        try:
            return self.patiently(lambda: self._open_pinned(file))
        except OSError as failure:
            _must_be_open(file)  # it may have been removed just now
            raise storage_error("open", file.path, failure) from failure

    def _open_pinned(self, file: RealFile) -> int:
        with self._names:
            with self._lock:
                _must_be_open(file)
                if file._fd >= 0:
                    return file._fd
            fd = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
            with self._lock:
                if file._closed:
                    self._orphans.append((file, fd))
                else:
                    file._fd = fd
                    self._ring[file] = None
                surplus = self._take_surplus()
        _close_all(surplus)
        return fd

    def patiently(self, work: Callable[[], T]) -> T:
        """Do what opens a file first of all. If there is no descriptor for it, the pool gives some of its own up.

        If that is not enough, a disk thread waits until there are some, for as long as that takes: what it was given
        to do has to be done. The loop cannot wait and gets the OSError.
        """
        tell_at_s = 0.0
        while True:
            try:
                return work()
            except OSError as failure:
                if failure.errno not in OUT_OF_DESCRIPTORS:
                    raise
                if self._give_up_some():
                    continue
                if _is_on_loop():
                    raise
                if time.monotonic() >= tell_at_s:
                    tell_at_s = time.monotonic() + _TELL_EVERY_S
                    _log.warning("a disk thread waits until a file can be opened: %s", failure)
                time.sleep(_RETRY_S)

    def _give_up_some(self) -> bool:
        """Of the descriptors that no call is using at this moment."""
        free: list[int] = []
        with self._lock:
            for file in list(self._ring):
                if len(free) >= _GIVEN_UP_AT_ONCE:
                    break
                fd = _take_descriptor(file)
                if fd >= 0:
                    del self._ring[file]
                    free.append(fd)
        _close_all(free)
        return bool(free)

    def close_file(self, file: RealFile) -> None:
        with self._lock:
            if file._closed:
                return
            file._closed = True
            same_path = self._files[file.path]
            same_path.remove(file)
            if not same_path:
                del self._files[file.path]
            if file._fd >= 0:
                del self._ring[file]
                self._orphans.append((file, file._fd))
                file._fd = _NO_DESCRIPTOR
        self.close_orphans()

    def close_orphans(self) -> None:
        """Called by whoever closes, and by each call that ends after that; the last of them finds no pins."""
        with self._lock:
            free, kept = [], []
            for file, fd in self._orphans:
                if file._pins:
                    kept.append((file, fd))
                else:
                    free.append(fd)
            self._orphans = kept
        _close_all(free)

    def close_path(self, path: str) -> None:
        """For a name that goes, or comes to mean another file: what is open under it cannot be opened again."""
        with self._lock:
            files = list(self._files.get(path, ()))
        for file in files:
            self.close_file(file)

    def rename(self, source: str, target: str) -> None:
        """Rename on disk and in the books, so that open files (in a renamed directory too) keep working."""
        self.patiently(lambda: self._rename(source, target))

    def _rename(self, source: str, target: str) -> None:
        with self._names:
            inside = paths_inside(source)
            os.rename(source, target)
            if source == target:
                return
            self.close_path(target)
            for old in [source, *inside]:
                self._move(old, target + old[len(source) :])

    def close(self) -> None:
        with self._lock:
            files = [file for same_path in self._files.values() for file in same_path]
        for file in files:
            self.close_file(file)

    def _take_surplus(self) -> list[int]:
        """Descriptors above the limit, to be closed once the lock is free. Two rounds of the clock see every file."""
        surplus: list[int] = []
        for _ in range(2 * len(self._ring)):
            if len(self._ring) <= self.max_open:
                break
            file = next(iter(self._ring))
            fd = _NO_DESCRIPTOR if file._used else _take_descriptor(file)
            if fd >= 0:
                del self._ring[file]
                surplus.append(fd)
            else:
                file._used = False
                self._ring.move_to_end(file)
        return surplus

    def _move(self, old: str, new: str) -> None:
        with self._lock:
            moved = self._files.pop(old, None)
            if moved:
                for file in moved:
                    file.path = new
                self._files[new] = moved


def paths_inside(path: str) -> list[str]:
    """All files below a directory; none if it is a file itself."""

    def refuse(failure: OSError) -> None:
        if failure.errno in OUT_OF_DESCRIPTORS:
            raise failure

    return [os.path.join(where, name) for where, _, names in os.walk(path, onerror=refuse) for name in names]


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _must_be_open(file: RealFile) -> None:
    if file._closed:
        raise ValueError(f"{file.path} is closed")


def _take_descriptor(file: RealFile) -> int:
    """Hide the descriptor, then look at the pins (see RealFile); a pinned one is put back."""
    fd = file._fd
    file._fd = _NO_DESCRIPTOR
    if file._pins:
        file._fd = fd
        return _NO_DESCRIPTOR
    return fd


def _close_all(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _write_rest(fd: int, position: int, buffers: Sequence[Buffer], written: int) -> None:
    """Go on after a short write, or in pieces where there are more buffers than one call takes."""
    rest = deque(memoryview(buffer) for buffer in buffers if len(buffer))
    while True:
        position += written
        while written:
            if written < len(rest[0]):
                rest[0] = rest[0][written:]
                break
            written -= len(rest.popleft())
        if not rest:
            return
        written = os.pwritev(fd, list(islice(rest, _IOV_MAX)), position)
        if not written:
            raise OSError(errno.EIO, "the device took no more bytes")


def _is_cached(fd: int, position: int, size: int) -> bool:
    """Whether a byte here and there of the stretch, and its last, are in memory."""
    probe, last = bytearray(1), position + size - 1
    try:
        return all(
            os.preadv(fd, (probe,), at, os.RWF_NOWAIT) == 1 for at in (*range(position, last, _PROBE_BYTES), last)
        )
    except OSError:
        return False
