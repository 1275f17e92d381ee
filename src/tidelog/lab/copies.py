"""Copies of the directories of a simulated disk: bytes, and nothing of what is on the platter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tidelog.lab.inode import Directory, Inode

Copy: TypeAlias = Mapping[str, "bytes | Copy"]
"""Names, and what the files hold; directories are copies in the copy."""


def copied(directory: Directory) -> Copy:
    return {
        name: bytes(node.content) if isinstance(node, Inode) else copied(node)
        for name, node in sorted(directory.entries.items())
    }


def pasted(copy: Copy, new_directory: Callable[[], Directory], now_ms: int) -> Directory:
    """A directory that holds the copy, all of it synced."""
    made = new_directory()
    for name, found in copy.items():
        if isinstance(found, bytes):
            inode = Inode(now_ms)
            inode.write(0, found)
            inode.sync()
            made.add(name, inode)
        else:
            made.add(name, pasted(found, new_directory, now_ms))
    made.sync()
    return made
