"""The files of the embedded home's journal: appended to by every process, locked by none.

A line is one append to a file that is opened with O_APPEND, and the kernel gives it its place; a process that is
stopped at any moment, even for ever, holds nothing that another needs. (An SQLite file would: whoever is stopped within
a write transaction keeps its lock, and no survivor can take it away.) So the order of the lines is the order of
changes, and what a line means follows from the lines before it: see `replica`.

The journal is a row of generations, `journal-N`, each beginning with a snapshot. A line `Sealed` ends one. Whoever
reads it can make the next, for all have come to the same snapshot; the first to link it into place wins. Needs a local
file system: over a network, appends are not atomic.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import NoReturn

from tidelog.coordination.entries import LineCutter, Sealed, Snapshot, to_line
from tidelog.errors import StorageError

_PREFIX = "journal-"
_NEW_PREFIX = "new-journal-"
_SEAL_BYTES = 4 << 20
_KEPT = 3
_READ_BYTES = 1 << 20


class FellBehindError(StorageError):
    """The next generation has been made and removed again: too much was missed to follow."""


class Journal:
    """The generation that this process writes to and reads, up to its seal. Calls may wait for the device."""

    def __init__(self, directory: str, generation: int) -> None:
        self.directory = directory
        self.generation = generation
        self.cutter = LineCutter(generation)
        self.path = _path(directory, generation)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    @classmethod
    def open_latest(cls, directory: str) -> Journal:
        """Makes the directory and the first generation where they are missing."""
        try:
            os.makedirs(directory, exist_ok=True)
            while True:
                latest = latest_generation(directory)
                if latest == 0:
                    make_generation(directory, 1, Snapshot({"change": 0, "sessions": [], "nodes": []}, []))
                    continue
                with contextlib.suppress(FileNotFoundError):  # the next one was made in between
                    return cls(directory, latest)
        except OSError as error:
            _refuse(directory, error)

    def append(self, lines: bytes) -> None:
        """After a failure some of it may be there. Then it is a torn line, or counts."""
        try:
            written = os.write(self._file, lines)
        except OSError as error:
            _refuse(self.directory, error)
        if written != len(lines):
            raise StorageError(f"no room for the cluster's journal in {self.directory}: free some space")

    def read(self) -> bytes:
        """What has come since the last read, and is on the device now: nobody acts on what a power loss takes back."""
        try:
            size = os.fstat(self._file).st_size
            if size == self.cutter.position:
                return b""
            os.fdatasync(self._file)
            return os.pread(self._file, min(size - self.cutter.position, _READ_BYTES), self.cutter.position)
        except OSError as error:
            _refuse(self.directory, error)

    @property
    def is_due(self) -> bool:
        """Whether it is time to seal: most of it is history that the next snapshot leaves out."""
        return self.cutter.position > _SEAL_BYTES + 2 * self.cutter.snapshot_bytes

    def following(self, snapshot: Snapshot) -> Journal:
        """The next generation, made from what this one came to if nobody has made it yet. This one is closed."""
        self.close()
        generation = self.generation + 1
        try:
            if latest_generation(self.directory) < generation:
                make_generation(self.directory, generation, snapshot)
            journal = Journal(self.directory, generation)
            # Whoever was stopped while making it may have put it back after it was removed: then it has no seal.
            if latest_generation(self.directory) == generation or journal._is_sealed():
                _remove_before(self.directory, generation)
                return journal
            journal.close()
        except FileNotFoundError:
            pass
        except OSError as error:
            _refuse(self.directory, error)
        raise FellBehindError(f"the journal in {self.directory} has gone on without this process, which was stopped")

    def _is_sealed(self) -> bool:
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        return any(isinstance(entry, Sealed) for entry in LineCutter(self.generation).feed(content))

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def latest_generation(directory: str) -> int:
    """0 if there is none."""
    return max((generation for generation, _ in _files(directory, _PREFIX)), default=0)


def make_generation(directory: str, generation: int, snapshot: Snapshot) -> None:
    """All or nothing, and only once: a link does not replace."""
    descriptor, temporary = tempfile.mkstemp(prefix=f"{_NEW_PREFIX}{generation}-", dir=directory)
    with open(descriptor, "wb") as file:
        file.write(to_line(snapshot))
        file.flush()
        os.fsync(file.fileno())
    # Somebody else may have made it, and removed our temporary file with the others that are no longer needed.
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        os.link(temporary, _path(directory, generation))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)


def _remove_before(directory: str, generation: int) -> None:
    """What it has made superfluous, once it is sure to outlive a power loss. Some stay for those that are slow."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    files = [name for number, name in _files(directory, _PREFIX) if number < generation - _KEPT]
    files += [name for number, name in _files(directory, _NEW_PREFIX) if number <= generation]
    for name in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


def _files(directory: str, prefix: str) -> list[tuple[int, str]]:
    """Files that belong to a generation, with its number."""
    names = [name for name in sorted(os.listdir(directory)) if name.startswith(prefix)]
    numbers = [name.removeprefix(prefix).split("-")[0] for name in names]
    return [(int(number), name) for number, name in zip(numbers, names, strict=True) if number.isdigit()]


def _path(directory: str, generation: int) -> str:
    return os.path.join(directory, f"{_PREFIX}{generation}")


def _refuse(directory: str, error: OSError) -> NoReturn:
    raise StorageError(f"cannot use the cluster's journal in {directory}: {error.strerror}") from error
