"""The disk of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from typing import TypeAlias, TypeVar

from tidelog.errors import StorageError
from tidelog.host.births import birth_of
from tidelog.host.failures import SYNC, storage_error
from tidelog.host.files import DescriptorPool, RealFile, paths_inside
from tidelog.host.limits import open_file_limit, shares
from tidelog.host.threads import DiskThreads
from tidelog.types import Buffer

T = TypeVar("T")
Names: TypeAlias = list[str]

DEFAULT_IO_THREADS = 8
_TEMPORARY = ".tmp"


class RealDisk:
    """Files behind a pool of descriptors, and the disk threads.

    Paths are taken literally: one file should always be named by the same path, since that is how
    renaming and removing find the Files that are open there.
    """

    def __init__(self, *, max_open: int | None = None, num_io_threads: int = DEFAULT_IO_THREADS) -> None:
        self._pool = DescriptorPool(shares(open_file_limit()).log_files if max_open is None else max_open)
        self._threads = DiskThreads(num_io_threads)

    @property
    def open_descriptors(self) -> int:
        return self._pool.open_count

    def open(self, path: str, *, create: bool = False) -> RealFile:
        with _failures_named("open", path):
            return self._pool.open_file(path, create=create)

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def file_size(self, path: str) -> int:
        with _failures_named("stat", path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _failures_named("stat", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, directory: str) -> Names:
        with _failures_named("list", directory):
            return sorted(self._pool.patiently(lambda: os.listdir(directory)))

    def make_directory(self, path: str) -> None:
        with _failures_named("make", path):
            os.makedirs(path, exist_ok=True)

    def read_file(self, path: str) -> bytes:
        with _failures_named("read", path), self._pool.patiently(lambda: open(path, "rb")) as file:
            return file.read()

    def write_file(self, path: str, data: Buffer) -> None:
        temporary = path + _TEMPORARY
        with _failures_named("write", path):
            try:
                with self._pool.patiently(lambda: open(temporary, "wb")) as file:
                    file.write(data)
                    file.flush()
                    with _failures_named(SYNC, temporary):
                        os.fsync(file.fileno())
                os.rename(temporary, path)
            except (OSError, StorageError):
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            self._pool.close_path(path)
        self.sync_directory(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        with _failures_named("rename", source):
            self._pool.rename(source, target)

    def remove(self, path: str) -> None:
        with _failures_named("remove", path):
            self._pool.close_path(path)
            os.unlink(path)

    def remove_directory(self, path: str) -> None:
        with _failures_named("remove", path):
            for inside in self._pool.patiently(lambda: paths_inside(path)):
                self._pool.close_path(inside)
            self._pool.patiently(lambda: shutil.rmtree(path))

    def sync_directory(self, path: str) -> None:
        with _failures_named(SYNC, path):
            self._pool.patiently(lambda: _sync_directory(path))

    def free_bytes(self, path: str) -> int:
        with _failures_named("stat", path):
            status = os.statvfs(path)
            return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        with _failures_named("stat", path):
            status = os.statvfs(path)
            return status.f_blocks * status.f_frsize

    def identity(self, directory: str) -> str:
        """Its number alone may be that of a directory that was removed just before this one was made."""
        with _failures_named("stat", directory):
            status = os.stat(directory)
            return f"{status.st_dev}:{status.st_ino}:{birth_of(directory)}"

    def lock(self, path: str) -> RealLock:
        """`path` is a file made for the purpose, such as `.lock` in a log directory."""
        with _failures_named("lock", path):
            return self._pool.patiently(lambda: RealLock(path))

    def submit(self, key: str, work: Callable[[], T]) -> asyncio.Future[T]:
        return self._threads.submit(key, work)

    def close(self) -> None:
        """Finish what was submitted, then give back every thread and descriptor."""
        self._threads.close()
        self._pool.close()


class RealLock:
    """Two kernel locks on one file, gone with the process however it ends.

    flock keeps out other openers, even in this process; the record lock keeps out Apache Kafka, whose
    JVM takes that kind and would not see the other.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failure:
            os.close(self._fd)
            if failure.errno in (errno.EAGAIN, errno.EACCES):
                raise StorageError(
                    f"cannot lock {path}: another broker is using this log directory; stop it or change log.dirs"
                ) from failure
            raise

    def release(self) -> None:
        """The file stays: removing it would let two processes lock two files of one name."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def _failures_named(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise storage_error(action, path, failure) from failure


def _sync_directory(path: str) -> None:
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
