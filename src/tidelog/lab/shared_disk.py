"""A disk that the processes of several hosts share, as processes of one machine do, with the kernel's own rules.

Where the Disk port is kinder than a kernel (removing a name closes its files, a failed sync can be tried again), the
embedded coordination store relies on the kernel's rules, so they are here.
"""

from __future__ import annotations

import errno
import os
import random

from tidelog.errors import StorageError
from tidelog.lab.disk import SimDisk
from tidelog.lab.inode import Inode
from tidelog.lab.process import refuse_the_dead
from tidelog.lab.tree import last_name
from tidelog.types import Buffer

_BLOCK_BYTES = 512
Range = tuple[int, int]


class SharedInode(Inode):
    """A file whose failed syncs cost what they failed to write, as Linux has it.

    The kernel marks the pages clean: their bytes can be read until the next power loss, no later sync writes them,
    and only files that were open at the time hear of it. Bytes that are written again are as good as new.
    """

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.failed_syncs = 0
        self._unsynced: list[Range] = []
        self._refused: list[Range] = []

    def write(self, position: int, data: Buffer) -> None:
        super().write(position, data)
        self._unsynced.append((position, position + len(data)))

    def sync(self) -> None:
        super().sync()
        for written in self._unsynced:
            self._refused = [left for refused in self._refused for left in _without(refused, written)]
        self._unsynced.clear()

    def fail_sync(self) -> None:
        super().sync()
        self._refused += self._unsynced
        self._unsynced.clear()
        self.failed_syncs += 1

    def power_loss(self, chance: random.Random) -> None:
        super().power_loss(chance)
        for start, end in self._refused:
            for block in range(start, min(end, len(self.content)), _BLOCK_BYTES):
                block_end = min(block + _BLOCK_BYTES, end, len(self.content))
                if chance.random() < 0.7:
                    self.content[block:block_end] = bytes(block_end - block)
        self._unsynced.clear()
        self._refused.clear()


class SharedFile:
    """An open file. It can be used after its name was removed, and ends with its process."""

    def __init__(self, disk: SharedDisk, path: str, inode: SharedInode) -> None:
        self.path = path
        self.inode = inode
        self._disk = disk
        self._failed_syncs = inode.failed_syncs

    def size(self) -> int:
        refuse_the_dead()
        return len(self.inode.content)

    def append(self, data: bytes) -> int:
        return self._write(len(self.inode.content), data)

    def write_again(self, position: int, data: bytes) -> None:
        if self._write(position, data) != len(data):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _write(self, position: int, data: bytes) -> int:
        """What the kernel does: it writes as much as it can, and fails only if that is nothing."""
        refuse_the_dead()
        size = len(self.inode.content)
        try:
            self._disk.write(self.inode, self.path, position, data)
        except StorageError as error:
            written = len(self.inode.content) - size
            if not written:
                raise as_kernel(error) from None
            return written
        finally:
            self._disk.notify(self.inode)
        return len(data)

    def read(self, position: int, size: int) -> bytes:
        refuse_the_dead()
        self._disk.check("read", self.path)
        return bytes(self.inode.content[position : position + size])

    def sync(self) -> None:
        """An error is reported once to each file that was open when it happened."""
        refuse_the_dead()
        try:
            self._disk.sync(self.inode, self.path)
        except StorageError:
            self.inode.fail_sync()
        if self._failed_syncs != self.inode.failed_syncs:
            self._failed_syncs = self.inode.failed_syncs
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)

    def close(self) -> None:
        """Nothing is kept for it."""


class SharedDisk(SimDisk):
    """The disk. A kill of one process touches no file of another; `power_loss` is for the machine as a whole."""

    _made = 0

    def create(self, directory: str, prefix: str) -> SharedFile:
        """A new file with a name of its own."""
        self._made += 1
        path = os.path.join(directory, f"{prefix}{self._made:06d}")
        self.check("write", path)
        inode, parent = SharedInode(self._clock.wall_ms()), self._tree.parent(path)
        self.doom.change(lambda: parent.add(last_name(path), inode))
        return SharedFile(self, path, inode)

    def shared(self, path: str) -> SharedFile:
        """FileNotFoundError if it is missing."""
        return SharedFile(self, path, self._shared_inode(path))

    def has_name(self, path: str, inode: Inode) -> bool:
        return self._tree.find(path) is inode

    def link(self, path: str, name: str) -> None:
        inode = self._shared_inode(path)
        if self._tree.find(name) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        parent = self._tree.parent(name)
        self.doom.change(lambda: parent.add(last_name(name), inode))

    def unlink(self, path: str) -> None:
        """Files that are open stay usable. The room is free only when no name is left."""
        inode, parent = self._shared_inode(path), self._tree.parent(path)

        def apply() -> None:
            parent.remove(last_name(path))
            if all(other is not inode for other in self._everything.inodes()):
                self.used_bytes -= len(inode.content)

        self.doom.change(apply)

    def sync_names(self, path: str) -> None:
        try:
            self.sync_directory(path)
        except StorageError as error:
            raise as_kernel(error) from None

    def check(self, action: str, path: str) -> None:
        """Fail if that is what the lab wants."""
        try:
            self.perhaps_fail(action, path)
        except StorageError as error:
            raise as_kernel(error) from None

    def notify(self, inode: Inode) -> None:
        """The file was written to. Whoever watches files replaces this."""

    def _shared_inode(self, path: str) -> SharedInode:
        inode = self._tree.file(path)
        assert isinstance(inode, SharedInode)
        return inode


def as_kernel(error: StorageError) -> OSError:
    """What the simulated disk has wrapped."""
    assert isinstance(error.__cause__, OSError)
    return error.__cause__


def _without(whole: Range, part: Range) -> list[Range]:
    """What of the one is not in the other."""
    pieces = [(whole[0], min(whole[1], part[0])), (max(whole[0], part[1]), whole[1])]
    return [(start, end) for start, end in pieces if start < end]
