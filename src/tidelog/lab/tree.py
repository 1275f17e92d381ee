"""The names of a simulated disk, and the errors of a real one for those that are not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from tidelog.errors import StorageError
from tidelog.host.failures import storage_error
from tidelog.lab.inode import Directory, Inode, Node


class Tree:
    """Directories and files from one root. Whether a path starts with a slash makes no difference."""

    def __init__(self) -> None:
        self.root = Directory()

    def inodes(self) -> Iterator[Inode]:
        return inodes(self.root)

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for name in parts(path):
            found = node.entries.get(name) if isinstance(node, Directory) else None
            if found is None:
                return None
            node = found
        return node

    def existing(self, path: str) -> Node:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    def file(self, path: str) -> Inode:
        node = self.existing(path)
        if isinstance(node, Directory):
            raise failure("open", path, errno.EISDIR)
        return node

    def directory(self, path: str) -> Directory:
        node = self.existing(path)
        if isinstance(node, Inode):
            raise failure("list", path, errno.ENOTDIR)
        return node

    def parent(self, path: str) -> Directory:
        return self.directory(os.path.dirname(path.rstrip("/")))


def inodes(node: Node) -> Iterator[Inode]:
    """All files at or below it."""
    if isinstance(node, Inode):
        yield node
    else:
        for name in sorted(node.entries):
            yield from inodes(node.entries[name])


def parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def last_name(path: str) -> str:
    return os.path.basename(path.rstrip("/"))


def failure(action: str, path: str, number: int) -> StorageError:
    """What a real disk would raise for this errno, to the word."""
    cause = OSError(number, os.strerror(number), path)
    error = storage_error(action, path, cause)
    error.__cause__ = cause
    return error
