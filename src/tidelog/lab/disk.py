"""A disk in memory that forgets what was not synced, fails, fills up and takes its time, as a seed decides."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from tidelog.errors import StorageError
from tidelog.lab.copies import Copy, copied, pasted
from tidelog.lab.doom import Doom
from tidelog.lab.inode import Directory, Inode, Node
from tidelog.lab.process import refuse_the_dead
from tidelog.lab.tree import Tree, failure, inodes, last_name, parts
from tidelog.lab.work import SimWork
from tidelog.ports import Clock
from tidelog.types import Buffer

T = TypeVar("T")
Names: TypeAlias = list[str]


@dataclass
class _Fault:
    action: str
    error: int
    under: str
    left: int | None


class SimFile:
    """An open file of a SimDisk. It ends with the process that opened it: after a kill it counts as closed."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._closed = False
        inode.handles.append(self)

    def size(self) -> int:
        return len(self._opened().content)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        inode = self._opened()
        self._disk.perhaps_fail_to_open(self.path)
        self._disk.write(inode, self.path, position, buffers[0] if len(buffers) == 1 else b"".join(buffers))

    def read_at(self, position: int, size: int) -> bytes:
        content = self._opened().content
        self._disk.perhaps_fail("read", self.path)
        return bytes(memoryview(content)[position : position + size])

    def read_cached(self, position: int, size: int) -> bytes | bytearray | None:
        self._opened()
        return None if self._disk.is_cold() else self.read_at(position, size)

    def send_cached(self, socket: int, position: int, size: int) -> None:
        """Simulated sockets have no descriptors."""

    def sync(self) -> None:
        self._disk.sync(self._opened(), self.path)

    def truncate(self, size: int) -> None:
        self._disk.truncate(self._opened(), self.path, size)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._inode.handles.remove(self)

    def _opened(self) -> Inode:
        if self._closed:
            refuse_the_dead()  # whose files the kernel has closed
            raise ValueError(f"{self.path} is closed")
        return self._inode


class SimLock:
    """A claim that ends with its process."""

    def __init__(self, held: dict[str, SimLock], path: str) -> None:
        self._held = held
        self._path = path
        held[path] = self

    def release(self) -> None:
        if self._held.get(self._path) is self:
            del self._held[self._path]


class SimDisk:
    """The disk of one host.

    Always: a byte that was synced, and not written over since, is there after whatever happens; so is a name
    whose directory was synced. All else is up to `power_loss`. A byte that a failed sync could not write is there
    until then, and no later sync changes that, unless it is written again.
    """

    def __init__(self, clock: Clock, chance: random.Random, device: str = "disk") -> None:
        self.device = device
        self.capacity_bytes: int | None = None
        """None is without end."""
        self.used_bytes = 0
        self.cold_chance = 0.1
        """How often bytes are not in the page cache."""
        self._clock = clock
        self._chance = chance
        self._everything = Tree()
        self._faults: list[_Fault] = []
        self._locks: dict[str, SimLock] = {}
        self._directories_made = 0
        self.work = SimWork(chance)
        self.doom = Doom()

    @property
    def _tree(self) -> Tree:
        refuse_the_dead()
        return self._everything

    # Faults

    def fail_next(
        self, action: str = "write", *, count: int | None = 1, error: int = errno.EIO, under: str = ""
    ) -> None:
        """Let the next `count` of "write", "read", "sync" or "open" fail, of those whose path starts with `under`.

        None is all of them until `mend`. "open" is for EMFILE and ENFILE. It also fails writes to open files, because
        these may have lost their descriptors to others; disk threads wait until it passes, so it fails only the loop.
        """
        self._faults.append(_Fault(action, error, under, count))

    def mend(self) -> None:
        """No more failures from now on, and room again."""
        self._faults.clear()
        self.capacity_bytes = None

    def kill(self) -> None:
        """The process died: its files, locks and work in hand are gone; what it wrote stays in the page cache."""
        for inode in self._everything.inodes():
            for handle in list(inode.handles):
                handle.close()
        self._locks.clear()
        self.work.drop()

    def power_loss(self, chance: random.Random) -> None:
        """The page cache is gone too: what was not synced may be lost, kept or torn, names as well as bytes."""
        self.kill()
        self._everything.root.power_loss(chance)
        self.used_bytes = sum(len(inode.content) for inode in self._everything.inodes())

    def copy_of(self, path: str) -> Copy:
        """All files of a directory, as an operator's `cp` finds them; those of directories in it are nested."""
        return copied(self._everything.directory(path))

    def put_back(self, path: str, copy: Copy) -> None:
        """The directory is replaced by another one that holds the copy. No process may use it."""
        parent = self._everything.parent(path)
        parent.add(last_name(path), pasted(copy, self._new_directory, self._clock.wall_ms()))
        parent.sync()
        self.used_bytes = sum(len(inode.content) for inode in self._everything.inodes())

    def _new_directory(self) -> Directory:
        self._directories_made += 1
        return Directory(self._directories_made)

    # What files ask for

    def perhaps_fail(self, action: str, path: str) -> None:
        for fault in self._faults:
            if fault.action == action and path.startswith(fault.under):
                if fault.left is not None:
                    fault.left -= 1
                    if not fault.left:
                        self._faults.remove(fault)
                raise failure(action, path, fault.error)

    def perhaps_fail_to_open(self, path: str) -> None:
        if not self.work.is_running:
            self.perhaps_fail("open", path)

    def is_cold(self) -> bool:
        return self._chance.random() < self.cold_chance

    def write(self, inode: Inode, path: str, position: int, data: Buffer) -> None:
        """After a failure some of the bytes have been written, as many as there was room for or as chance will."""
        size = len(inode.content)
        try:
            self.perhaps_fail("write", path)
        except StorageError:
            self._put(inode, position, data[: self._chance.randrange(len(data) + 1)])
            raise
        growth = position + len(data) - size
        if self.capacity_bytes is not None and growth > 0 and self.used_bytes + growth > self.capacity_bytes:
            room = max(0, self.capacity_bytes - self.used_bytes)
            self._put(inode, position, data[: max(0, size + room - position)])
            raise failure("write", path, errno.ENOSPC)
        self.doom.write(len(data), lambda count: self._put(inode, position, data[:count]))

    def truncate(self, inode: Inode, path: str, size: int) -> None:
        self.perhaps_fail("write", path)

        def cut() -> None:
            self.used_bytes += size - len(inode.content)
            inode.truncate(size)
            inode.modified_ms = self._clock.wall_ms()

        self.doom.change(cut)

    def sync(self, inode: Inode, path: str) -> None:
        """After a failure the page cache takes for clean what it could not write, as Linux does ("fsyncgate")."""
        try:
            self.perhaps_fail("sync", path)
        except StorageError:
            inode.failed_sync(self._chance)
            raise
        self.doom.change(inode.sync)

    def _put(self, inode: Inode, position: int, data: Buffer) -> None:
        before = len(inode.content)
        inode.write(position, data)
        self.used_bytes += len(inode.content) - before
        inode.modified_ms = self._clock.wall_ms()

    # The Disk port

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.perhaps_fail_to_open(path)
        node = self._tree.find(path)
        if node is None and create:
            self.perhaps_fail("write", path)
            parent, new = self._tree.parent(path), Inode(self._clock.wall_ms())
            self.doom.change(lambda: parent.add(last_name(path), new))
        return SimFile(self, path, self._tree.file(path))

    def exists(self, path: str) -> bool:
        return self._tree.find(path) is not None

    def file_size(self, path: str) -> int:
        return len(self._tree.file(path).content)

    def modified_ms(self, path: str) -> int:
        return self._tree.file(path).modified_ms

    def list(self, directory: str) -> Names:
        return sorted(self._tree.directory(directory).entries)

    def make_directory(self, path: str) -> None:
        directory = self._tree.root
        for name in parts(path):
            node = directory.entries.get(name)
            if node is None:
                node = self._new_directory()
                self.doom.change(partial(directory.add, name, node))
            if isinstance(node, Inode):
                raise failure("make", path, errno.ENOTDIR)
            directory = node

    def read_file(self, path: str) -> bytes:
        inode = self._tree.file(path)
        self.perhaps_fail("read", path)
        return bytes(inode.content)

    def write_file(self, path: str, data: Buffer) -> None:
        temporary = path + ".tmp"
        try:
            file = self.open(temporary, create=True)
            file.truncate(0)
            file.write_at(0, [data])
            file.sync()
            file.close()
            self.rename(temporary, path)
        except StorageError:
            if self.exists(temporary):
                self.remove(temporary)
            raise
        self.doom.change(self._tree.parent(path).sync)

    def rename(self, source: str, target: str) -> None:
        """Across directories both are synced at once: a real file system keeps such a change whole by its journal."""
        node = self._tree.existing(source)
        if source == target:
            return
        self._check_way(target, node)
        from_directory, to_directory = self._tree.parent(source), self._tree.parent(target)
        self.doom.change(lambda: self._move(node, from_directory, source, to_directory, target))

    def _move(self, node: Node, from_directory: Directory, source: str, to_directory: Directory, target: str) -> None:
        replaced = to_directory.entries.get(last_name(target))
        if isinstance(replaced, Inode):
            self._drop(replaced)
        if from_directory is to_directory:
            from_directory.rename(last_name(source), last_name(target))
        else:
            to_directory.add(last_name(target), node)
            from_directory.remove(last_name(source))
            to_directory.sync()
            from_directory.sync()
        for inode in inodes(node):
            for handle in inode.handles:
                handle.path = target + handle.path[len(source) :]

    def remove(self, path: str) -> None:
        self._tree.file(path)
        self._remove(self._tree.parent(path), last_name(path))

    def remove_directory(self, path: str) -> None:
        self._empty(self._tree.directory(path))
        self._remove(self._tree.parent(path), last_name(path))

    def sync_directory(self, path: str) -> None:
        directory = self._tree.directory(path)
        self.perhaps_fail("sync", path)
        self.doom.change(directory.sync)

    def free_bytes(self, path: str) -> int:
        return max(0, self.total_bytes(path) - self.used_bytes)

    def total_bytes(self, path: str) -> int:
        self._tree.existing(path)
        return (1 << 40) if self.capacity_bytes is None else self.capacity_bytes

    def identity(self, directory: str) -> str:
        return f"{self.device}:{self._tree.directory(directory).number}"

    def lock(self, path: str) -> SimLock:
        self.open(path, create=True).close()
        if path in self._locks:
            raise StorageError(
                f"cannot lock {path}: another broker is using this log directory; stop it or change log.dirs"
            )
        return SimLock(self._locks, path)

    def submit(self, key: str, work: Callable[[], T]) -> asyncio.Future[T]:
        refuse_the_dead()
        return self.work.submit(key, work)

    def _check_way(self, target: str, newcomer: Node) -> None:
        """What rename(2) allows: a file replaces a file, a directory an empty directory."""
        node = self._tree.find(target)
        if isinstance(node, Inode):
            if isinstance(newcomer, Directory):
                raise failure("rename", target, errno.ENOTDIR)
        elif node is not None:
            if isinstance(newcomer, Inode):
                raise failure("rename", target, errno.EISDIR)
            if node.entries:
                raise failure("rename", target, errno.ENOTEMPTY)

    def _drop(self, inode: Inode) -> None:
        self.used_bytes -= len(inode.content)
        for handle in list(inode.handles):
            handle.close()

    def _empty(self, directory: Directory) -> None:
        for name in sorted(directory.entries):
            node = directory.entries[name]
            if isinstance(node, Directory):
                self._empty(node)
            self._remove(directory, name)

    def _remove(self, directory: Directory, name: str) -> None:
        def apply() -> None:
            node = directory.entries[name]
            if isinstance(node, Inode):
                self._drop(node)
            directory.remove(name)

        self.doom.change(apply)
