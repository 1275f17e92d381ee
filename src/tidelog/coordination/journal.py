"""The files of the embedded home's journal: appended to by every process, locked by none.

A line is one append to a file that is opened with O_APPEND, and the kernel gives it its place; a process that is
stopped at any moment, even for ever, holds nothing that another needs. (An SQLite file would: whoever is stopped within
a write transaction keeps its lock, and no survivor can take it away.) So the order of the lines is the order of
changes, and what a line means follows from the lines before it: see `replica`.

The journal is a row of generations, `journal-N`, each beginning with a snapshot. A line `Sealed` ends one. Whoever
reads it can make the next, for all have come to the same snapshot; the first to link it into place wins. Needs a local
file system: over a network, appends are not atomic.

A process acts on a line only after it has synced the line itself, and on a generation only after it has synced its
name. A sync that fails ends the process's sessions, and what it left behind is not trusted: the kernel forgets that the
device refused these bytes, and tells no process that opens the file later. So a process that opens a generation writes
what it finds there once more before it syncs and believes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Generator

from tidelog.coordination.entries import LineCutter, Sealed, Snapshot, to_line
from tidelog.coordination.machine import Machine, refusal
from tidelog.errors import StorageError

_PREFIX = "journal-"
_NEW_PREFIX = "new-journal-"
_KEPT = 3
_READ_BYTES = 1 << 20


class FellBehindError(StorageError):
    """The next generation has been made and removed again: too much was missed to follow."""


class Journal:
    """The generation that this process writes to and reads, up to its seal. Calls may wait for the device.

    Where a call is a generator, other processes may act at each of its yields; see `machine.Steps`.
    """

    def __init__(self, machine: Machine, directory: str, generation: int) -> None:
        self.directory = directory
        self.generation = generation
        self.cutter = LineCutter(generation)
        self.path = journal_path(directory, generation)
        self._machine = machine
        self._file = machine.open(self.path)
        try:
            machine.sync_directory(directory)  # its maker may have died before it did
            self._found_bytes = self._file.size()
        except OSError:
            self._file.close()
            raise

    @classmethod
    def open_latest(cls, machine: Machine, directory: str) -> Generator[float, None, Journal]:
        """Makes the directory and the first generation where they are missing."""
        try:
            machine.make_directory(directory)
            while True:
                latest = latest_generation(machine, directory)
                yield 0.0
                if latest == 0:
                    empty = Snapshot({"change": 0, "sessions": [], "nodes": []}, [])
                    yield from make_generation(machine, directory, 1, empty)
                    continue
                with contextlib.suppress(FileNotFoundError):  # the next one was made in between
                    return cls(machine, directory, latest)
        except OSError as error:
            raise _refusal(directory, error) from error

    def append(self, lines: bytes) -> None:
        """After a failure some of it may be there. Then it is a torn line, or counts."""
        try:
            _append_all(self._file.append(lines), lines)
        except OSError as error:
            raise _refusal(self.directory, error) from error

    def read(self) -> Generator[float, None, bytes]:
        """What has come since the last read and is on the device now: a power loss cannot take it back."""
        position = self.cutter.position
        try:
            size = self._file.size()
            if size == position:
                return b""
            if position < self._found_bytes:
                data = self._file.read(position, min(self._found_bytes - position, _READ_BYTES))
                self._file.write_again(position, data)
                yield 0.0
                self._file.sync()
            else:
                self._file.sync()
                yield 0.0
                data = self._file.read(position, min(size - position, _READ_BYTES))
        except OSError as error:
            raise _refusal(self.directory, error) from error
        return data

    @property
    def is_due(self) -> bool:
        """Whether it is time to seal: most of it is history that the next snapshot leaves out."""
        return self.cutter.position > self._machine.seal_bytes + 2 * self.cutter.snapshot_bytes

    def following(self, snapshot: Snapshot) -> Generator[float, None, Journal]:
        """The next generation, made from what this one came to if no process has made it yet. This one is closed.

        A DirectoryFullError leaves this one open, to try again.
        """
        generation = self.generation + 1
        try:
            if latest_generation(self._machine, self.directory) < generation:
                yield 0.0
                yield from make_generation(self._machine, self.directory, generation, snapshot)
            yield 0.0
            journal = Journal(self._machine, self.directory, generation)
            # A process that was stopped while making it may have put it back after it was removed: it has no seal then.
            if latest_generation(self._machine, self.directory) == generation or journal._is_sealed():
                self.close()
                yield 0.0
                _remove_before(self._machine, self.directory, generation)
                return journal
            journal.close()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _refusal(self.directory, error) from error
        raise FellBehindError(f"the journal in {self.directory} has gone on without this process, which was stopped")

    def _is_sealed(self) -> bool:
        content = self._file.read(0, self._file.size())
        return any(isinstance(entry, Sealed) for entry in LineCutter(self.generation).feed(content))

    def close(self) -> None:
        self._file.close()


def latest_generation(machine: Machine, directory: str) -> int:
    """0 if there is none."""
    return max((generation for generation, _ in _files(machine, directory, _PREFIX)), default=0)


def make_generation(
    machine: Machine, directory: str, generation: int, snapshot: Snapshot
) -> Generator[float, None, None]:
    """All or nothing, and only once: a link does not replace. Its name is synced by each process that opens it."""
    file = machine.create(directory, f"{_NEW_PREFIX}{generation}-")
    try:
        line = to_line(snapshot)
        _append_all(file.append(line), line)
        yield 0.0
        file.sync()
        yield 0.0
        # Another process may have made it, and removed our temporary file with the others that are no longer needed.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            machine.link(file.path, journal_path(directory, generation))
        yield 0.0
        machine.remove(file.path)
    except OSError:
        with contextlib.suppress(OSError):
            machine.remove(file.path)
        raise
    finally:
        file.close()


def _append_all(written: int, data: bytes) -> None:
    """The kernel writes less than it was given when the disk has no more room."""
    if written != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _remove_before(machine: Machine, directory: str, generation: int) -> None:
    """What this generation has made superfluous. Some stay for processes that are slow."""
    files = [name for number, name in _files(machine, directory, _PREFIX) if number < generation - _KEPT]
    files += [name for number, name in _files(machine, directory, _NEW_PREFIX) if number <= generation]
    for name in files:
        machine.remove(os.path.join(directory, name))


def _files(machine: Machine, directory: str, prefix: str) -> list[tuple[int, str]]:
    """Files that belong to a generation, with its number."""
    names = [name for name in machine.list(directory) if name.startswith(prefix)]
    numbers = [name.removeprefix(prefix).split("-")[0] for name in names]
    return [(int(number), name) for number, name in zip(numbers, names, strict=True) if number.isdigit()]


def journal_path(directory: str, generation: int) -> str:
    return os.path.join(directory, f"{_PREFIX}{generation}")


def _refusal(directory: str, error: OSError) -> StorageError:
    return refusal("the cluster's journal", directory, error)
